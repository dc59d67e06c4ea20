// SPDX-License-Identifier: Apache-2.0
// A request that cannot be served is refused without a walk over the free ranges.

#include <algorithm>
#include <cstddef>
#include <ctime>
#include <map>
#include <new>
#include <vector>

#include "catch.hpp"
#include "tarn/driver/stream_life.hpp"
#include "tarn/policy/headroom.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/pool/inspection/inspection.hpp"
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
  /// The shortest of several times of this process's processors, microseconds; the streams request in turn.
  double refusal_time(std::size_t wanted, std::vector<stream_ref> const& streams = {stream_ref{}}) {
    double best = 1e9;
    for (std::size_t i = 0; i < 30; ++i) {
      stream_ref const on = streams[i % streams.size()];
      std::clock_t const start = std::clock();
      CHECK_THROWS_AS(memory.allocate(on, wanted), out_of_memory);
      best = std::min(best, 1e6 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
    }
    return best;
  }
};

/// The driver calls that a refused request makes, without the question for the stream's identity.
template <class Memory>
sim_calls calls_of_refusal(sim_machine const& machine, Memory& memory, std::size_t wanted) {
  machine.reset_calls();
  CHECK_THROWS_AS(memory.allocate(stream_ref{}, wanted), out_of_memory);
  sim_calls calls = machine.calls();
  calls.counts[static_cast<std::size_t>(driver_call::identify)] = 0;
  return calls;
}

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

TEST_CASE("pooled refuses in such a time where several streams fail in turn",
          "[pool][ladder][refusal_time]") {
  auto const time_of = [](std::size_t count) {
    full_device full(count);
    detail::own_stream const one(full.machine.driver(0));
    detail::own_stream const two(full.machine.driver(0));
    // Each stream has some free memory of its own.
    for (std::size_t i = 1; i < 40; i += 2)
      full.memory.deallocate((i % 4 == 1 ? one : two).get(), full.blocks[i], full_device::bytes);
    return full.refusal_time(64_MiB, {one.get(), two.get(), full.stream});
  };
  double const few = time_of(300);
  double const many = time_of(30'000);
  CHECK(many < 10 * few + 100);
}

TEST_CASE("a refused request leaves the ranges of its stream to this stream if no others are free",
          "[pool][ladder][refusal_time][pages]") {
  sim_machine const machine{
      sim_options{.capacity = 32_MiB, .taken = 0, .backing = sim_backing::address_only}};
  auto memory = sim_pages{machine.driver(0)} | pooled{};
  detail::own_stream const stream(machine.driver(0));
  std::vector<void*> blocks;
  try {
    for (;;) blocks.push_back(memory.allocate(stream.get(), 512_KiB));
  } catch (out_of_memory const&) {
  }
  REQUIRE(blocks.size() == 64);
  std::sort(blocks.begin(), blocks.end());
  for (std::size_t i = 0; i < blocks.size(); i += 2) memory.deallocate(stream.get(), blocks[i], 512_KiB);
  // The free ranges by the stream that they belong to.
  auto const ranges = [&] {
    std::map<stream_id, std::size_t> count;
    for (auto const& segment : detail::contents_of(memory).segments) {
      for (snapshot_block const& b : segment.blocks)
        if (b.use == block_use::cached) ++count[b.stream];
    }
    return count;
  };
  std::map<stream_id, std::size_t> const own{{stream.get().id(), 32}};
  REQUIRE(ranges() == own);
  CHECK_THROWS_AS(memory.allocate(stream.get(), 24_MiB), out_of_memory);
  CHECK(ranges() == own);
  for (std::size_t i = 1; i < blocks.size(); i += 2) memory.deallocate(stream.get(), blocks[i], 512_KiB);
}

TEST_CASE("pooled refuses what a limit below it does not leave without a driver call",
          "[pool][ladder][refusal_time]") {
  sim_machine const machine{sim_options{.capacity = 8_GiB, .taken = 0, .backing = sim_backing::address_only}};
  auto fresh = sim_pages{machine.driver(0)} | limited{1_GiB} | pooled{};
  (void)calls_of_refusal(machine, fresh, 2_GiB);
  CHECK(calls_of_refusal(machine, fresh, 2_GiB).total() == 0);
  auto memory = sim_pages{machine.driver(0)} | limited{12_GiB} | headroom{1_GiB} | limited{1_GiB} | pooled{};
  CHECK(calls_of_refusal(machine, memory, 2_GiB).total() == 0);
  void* const p = memory.allocate({}, 600_MiB);
  CHECK(calls_of_refusal(machine, memory, 2_GiB).total() == 0);
  CHECK(calls_of_refusal(machine, memory, 1_GiB + 1).total() == 0);
  memory.deallocate({}, p, 600_MiB);
  // What the limit leaves is served.
  void* const rest = memory.allocate({}, 1_GiB);
  memory.deallocate({}, rest, 1_GiB);
}

TEST_CASE("pooled asks a full device once for a handle and twice for its free memory",
          "[pool][ladder][refusal_time][pages]") {
  full_device full(2'000);
  for (std::size_t const wanted : {1_MiB, 64_MiB}) {
    CAPTURE(wanted);
    sim_calls const calls = calls_of_refusal(full.machine, full.memory, wanted);
    CHECK(calls[driver_call::create_pages] == 1);
    CHECK(calls[driver_call::memory_info] == 2);
    try {
      (void)full.memory.allocate({}, wanted);
      FAIL("the request was served");
    } catch (out_of_memory const& error) {
      std::size_t free = 0;
      std::size_t total = 0;
      REQUIRE(full.machine.driver(0).memory_info(free, total).ok());
      CHECK(error.report().device_free == free);
      CHECK(error.report().device_total == total);
      CHECK(error.report().asked == wanted);
    }
  }
}

TEST_CASE("pooled reports what a full device has after a part of the growth was given back",
          "[pool][ladder][refusal_time]") {
  sim_machine const machine{
      sim_options{.capacity = 512_MiB, .taken = 0, .backing = sim_backing::address_only}};
  auto memory = sim_pages{machine.driver(0)} | pooled{};
  void* const live = memory.allocate({}, 200_MiB);
  try {
    (void)memory.allocate({}, 400_MiB);
    FAIL("the request was served");
  } catch (out_of_memory const& error) {
    CHECK(error.report().device_free == 312_MiB);
  }
  memory.deallocate({}, live, 200_MiB);
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
