// SPDX-License-Identifier: Apache-2.0
// A request that cannot be served is refused without a walk over the free ranges.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <new>
#include <vector>

#include "catch.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/sim.hpp"

using namespace tarn;

namespace {

struct full_device {
  sim_machine machine;
  stack<sim_pages, pooled> memory;
  stream_ref stream;
  std::vector<void*> blocks;
  static constexpr std::size_t bytes = 36_KiB;

  /// A full device with `count` free ranges, each between two live blocks.
  explicit full_device(std::size_t count)
      : machine(sim_options{.capacity = align_up(2 * count * 37_KiB, 2_MiB) + 16_MiB,
                            .taken = 0,
                            .backing = sim_backing::address_only}),
        memory(sim_pages(machine.driver())) {
    for (std::size_t i = 0; i < 2 * count; ++i) blocks.push_back(memory.allocate(stream, bytes));
    std::sort(blocks.begin(), blocks.end());
    for (std::size_t i = 0; i < blocks.size(); i += 2) memory.deallocate(stream, blocks[i], bytes);
    try {
      for (;;) (void)memory.allocate(stream, 1_MiB);
    } catch (out_of_memory const&) {
    }
  }
  /// The shortest of several times, microseconds.
  double refusal_time(std::size_t wanted) {
    double best = 1e9;
    for (int i = 0; i < 30; ++i) {
      auto const start = std::chrono::steady_clock::now();
      CHECK_THROWS_AS(memory.allocate(stream, wanted), out_of_memory);
      best = std::min(
          best, std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
    }
    return best;
  }
};

}  // namespace

TEST_CASE("pooled refuses in a time that does not grow with the number of free ranges",
          "[pool][ladder][refusal_time]") {
  full_device few(300);
  full_device many(30'000);
  REQUIRE(many.memory->state().free_blocks >= 30'000);
  for (std::size_t const wanted : {1_MiB, 64_MiB}) {
    CAPTURE(wanted);
    CHECK(many.refusal_time(wanted) < 10 * few.refusal_time(wanted) + 100);
  }
}

TEST_CASE("range_index::largest looks at a bounded number of ranges of similar size", "[pool][range_index]") {
  detail::range_table table;
  detail::range_index index;
  std::size_t const count = 4 * detail::range_index::largest_limit;
  table.make_room(count + 1);
  // All in one bin.
  for (std::size_t i = 0; i < count; ++i) {
    detail::range_ref const r = table.take();
    table[r].bytes = 1_MiB + (count - i) * 16;
    index.insert(table, r);
  }
  std::size_t const found = index.largest(table);
  CHECK(found >= 1_MiB);
  CHECK(found <= 1_MiB + count * 16);
  CHECK(found == 1_MiB + detail::range_index::largest_limit * 16);  // the newest ones come first
}
