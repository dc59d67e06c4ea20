// SPDX-License-Identifier: Apache-2.0
#include "tarn/policy/backtrace.hpp"

#include <string>

#include "catch.hpp"
#include "tarn/policy/watched.hpp"
#include "tarn/source/host_memory.hpp"

using namespace tarn;

#if TARN_HAS_BACKTRACE
#include <search.h>

TEST_CASE("a stack goes from the allocation outwards, through other libraries, with their names",
          "[policy][backtrace]") {
  static void* allocated = nullptr;
  static auto memory = host_memory{} | watched{.stacks = backtrace_stacks()};
  int const number = 1;
  std::size_t count = 1;
  // Called back from the C library, whose functions have names. Sanitizers do not replace lfind(); they do replace qsort()
  // and bsearch(), and g++'s libasan keeps no name for its own.
  (void)::lfind(&number, &number, &count, sizeof number, [](void const*, void const*) {
    if (allocated == nullptr) allocated = memory.allocate({}, 100);
    return 0;
  });
  watch_record const r = memory->record();
  REQUIRE(r.live.size() == 1);
  auto const& frames = r.places.at(r.live[0].place);
  CHECK(frames.size() <= stack_depth + 1);
  std::size_t library = 0;
  std::size_t ours = 0;
  for (std::size_t i = 1; i < frames.size(); ++i) {  // the first is the place that was named
    if (library == 0 && frames[i].function == "lfind") library = i;
    if (library == 0) ++ours;
    CHECK_FALSE(frames[i].function.empty());
    CHECK_FALSE(frames[i].file.empty());
  }
  CHECK(library != 0);
  CHECK(ours >= 2);
  CHECK(frames.size() > library + 1);  // and on to who called it
  memory.deallocate({}, allocated, 100);
}

TEST_CASE("an address of no file is told as a number", "[policy][backtrace]") {
  watched_frame f;
  backtrace_stacks().name(reinterpret_cast<void*>(std::uintptr_t{16}), f);
  CHECK(f.function == "0x10");
  CHECK(f.file.empty());
}
#else
TEST_CASE("without glibc there are no stacks", "[policy][backtrace]") {
  CHECK(backtrace_stacks().capture == nullptr);
}
#endif
