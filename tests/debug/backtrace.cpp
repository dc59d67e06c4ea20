// SPDX-License-Identifier: Apache-2.0
#include "tarn/debug/backtrace.hpp"

#include <string>

#include "catch.hpp"
#include "tarn/debug/with_history.hpp"
#include "tarn/source/host_memory.hpp"

using namespace tarn;

#if TARN_HAS_BACKTRACE
#include <search.h>

TEST_CASE("backtrace_stacks names the frames from the allocation outwards, through other libraries",
          "[policy][backtrace]") {
  static void* allocated = nullptr;
  static auto memory = host_memory{} | with_history{.stacks = backtrace_stacks()};
  int const number = 1;
  std::size_t count = 1;
  // Called back from the C library, whose functions have names. Sanitizers do not replace lfind(). They
  // replace qsort() and bsearch(), and the replacements in g++'s libasan have no names.
  (void)::lfind(&number, &number, &count, sizeof number, [](void const*, void const*) {
    if (allocated == nullptr) allocated = memory.allocate({}, 100);
    return 0;
  });
  memory_history const r = memory->record();
  REQUIRE(r.live.size() == 1);
  auto const& frames = r.locations.at(r.live[0].location);
  CHECK(frames.size() <= stack_depth + 1);
  std::size_t library = 0;
  std::size_t ours = 0;
  for (std::size_t i = 1; i < frames.size(); ++i) {  // the first is the call site
    if (library == 0 && frames[i].function == "lfind") library = i;
    if (library == 0) ++ours;
    CHECK_FALSE(frames[i].function.empty());
    CHECK_FALSE(frames[i].file.empty());
  }
  CHECK(library != 0);
  CHECK(ours >= 2);
  CHECK(frames.size() > library + 1);  // and the frames of its callers
  memory.deallocate({}, allocated, 100);
}

TEST_CASE("backtrace_stacks names an address outside every file by its number", "[policy][backtrace]") {
  history_frame f;
  backtrace_stacks().name(reinterpret_cast<void*>(std::uintptr_t{16}), f);
  CHECK(f.function == "0x10");
  CHECK(f.file.empty());
}
#else
TEST_CASE("backtrace_stacks captures nothing without glibc", "[policy][backtrace]") {
  CHECK(backtrace_stacks().capture == nullptr);
}
#endif
