// SPDX-License-Identifier: Apache-2.0

#include "tarn/core/thread_tag.hpp"

#include <cstdint>
#include <set>
#include <thread>

#include "catch.hpp"
#include "tarn/core/bytes.hpp"

using namespace tarn;
using namespace tarn::detail;

TEST_CASE("this_thread_tag differs between running threads and is constant in each", "[core][thread_tag]") {
  void const* const mine = this_thread_tag();
  CHECK(mine == this_thread_tag());
  void const* theirs = mine;
  bool steady = false;
  std::thread([&] {
    theirs = this_thread_tag();
    steady = theirs == this_thread_tag();
  }).join();
  CHECK(theirs != mine);
  CHECK(steady);
}

TEST_CASE("this_thread_number is never reused by a later thread", "[core][thread_tag]") {
  std::uint64_t const mine = this_thread_number();
  CHECK(mine != 0);
  CHECK(this_thread_number() == mine);
  CHECK(thread_number_of(this_thread_tag()) == mine);
  std::set<std::uint64_t> numbers{mine};
  for (int i = 0; i < 8; ++i) {  // consecutive threads often have the same tag address
    std::thread([&] {
      CHECK(thread_number_of(this_thread_tag()) == 0);
      numbers.insert(this_thread_number());
    }).join();
  }
  CHECK(numbers.size() == 9);
}

TEST_CASE("thread_place gives threads with equally spaced stacks different places", "[core][thread_tag]") {
  // Stacks of 2, 8 and 64 MiB, with and without a guard page between them.
  for (std::uintptr_t const distance : {2_MiB, 2_MiB + 4096, 8_MiB, 8_MiB + 4096, 64_MiB, 64_MiB + 4096}) {
    std::set<unsigned> places;
    for (std::uintptr_t i = 0; i < 16; ++i) {
      unsigned const place = thread_place(reinterpret_cast<void const*>(0x7f12'3456'f6c0 + i * distance));
      REQUIRE(place < thread_places);
      places.insert(place);
    }
    CHECK(places.size() >= 13);
  }
}
