// SPDX-License-Identifier: Apache-2.0
#include "peers/stack_arena.hpp"

#include "catch.hpp"
#include "peers/simulated_device.hpp"

using namespace tarn;
using namespace tarn::bench;

namespace {

using arena = stack_arena<simulated_device>;
static_assert(peer<arena>);

setup with(std::uint64_t capacity, std::size_t streams = 1) {
  setup s;
  s.capacity = capacity;
  s.streams = streams;
  return s;
}

std::ptrdiff_t distance(void* from, void* to) {
  return static_cast<std::byte*>(to) - static_cast<std::byte*>(from);
}

}  // namespace

TEST_CASE("stack_arena places blocks one after the other and reuses the top", "[replay]") {
  arena pool(with(64_MiB));
  void* const first = pool.allocate(0, 1000);
  void* const second = pool.allocate(0, 1);
  CHECK(distance(first, second) == 1024);
  pool.deallocate(0, second, 1);
  CHECK(pool.allocate(0, 300) == second);
  CHECK(pool.used().peak_reserved == 2_MiB);
}

TEST_CASE("stack_arena reuses a block freed below others once all above it are freed", "[replay]") {
  arena pool(with(64_MiB));
  void* const bottom = pool.allocate(0, 3_MiB);
  void* const middle = pool.allocate(0, 1_MiB);
  void* const top = pool.allocate(0, 1_MiB);
  pool.deallocate(0, bottom, 3_MiB);
  pool.deallocate(0, middle, 1_MiB);
  void* const above = pool.allocate(0, 1_MiB);
  CHECK(distance(top, above) == static_cast<std::ptrdiff_t>(1_MiB));
  pool.deallocate(0, above, 1_MiB);
  pool.deallocate(0, top, 1_MiB);
  CHECK(pool.allocate(0, 6_MiB) == bottom);
  CHECK(pool.used().peak_reserved == 6_MiB);
}

TEST_CASE("stack_arena has a stack for each stream, and counts the pages of all", "[replay]") {
  arena pool(with(64_MiB, 2));
  void* const one = pool.allocate(0, 2_MiB);
  void* const other = pool.allocate(1, 2_MiB);
  pool.deallocate(0, one, 2_MiB);
  CHECK(pool.allocate(1, 2_MiB) != one);
  CHECK(pool.allocate(0, 2_MiB) == one);
  CHECK(pool.used().peak_reserved == 6_MiB);
  pool.deallocate(1, other, 2_MiB);
}

TEST_CASE("stack_arena refuses what the device does not have, and goes on", "[replay]") {
  arena pool(with(8_MiB));
  void* const first = pool.allocate(0, 4_MiB);
  CHECK(pool.allocate(0, 6_MiB) == nullptr);
  CHECK(pool.used().peak_reserved == 4_MiB);
  CHECK(distance(first, pool.allocate(0, 4_MiB)) == static_cast<std::ptrdiff_t>(4_MiB));
  pool.deallocate(0, nullptr, 6_MiB);
}
