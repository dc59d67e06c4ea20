// SPDX-License-Identifier: Apache-2.0

#include "tarn/core/thread_tag.hpp"

#include <cstdint>
#include <set>
#include <thread>

#include "catch.hpp"

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
  std::set<std::uint64_t> numbers{mine};
  for (int i = 0; i < 8; ++i) {  // consecutive threads often have the same tag address
    std::thread([&] { numbers.insert(this_thread_number()); }).join();
  }
  CHECK(numbers.size() == 9);
}
