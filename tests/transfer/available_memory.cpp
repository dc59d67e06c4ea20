// SPDX-License-Identifier: Apache-2.0
#include "tarn/transfer/available_memory.hpp"

#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "driver/faulty.hpp"
#include "tarn/debug/fenced.hpp"
#include "tarn/policy/fallback_to.hpp"
#include "tarn/policy/headroom.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/raii/graph_memory.hpp"
#include "tarn/raii/sleep.hpp"
#include "tarn/raii/stream.hpp"
#include "tarn/sharing/page_pin.hpp"
#include "tarn/sim.hpp"
#include "tarn/source/host_memory.hpp"
#include "tarn/transfer/micro_batches.hpp"

using namespace tarn;

namespace {
sim_options small() {
  sim_options o;
  o.capacity = 64_MiB;
  o.taken = 4_MiB;
  return o;
}
template <class Memory>
auto block(Memory memory, std::size_t bytes) {
  return make_device_buffer<std::byte>(memory, bytes, stream_ref{});
}
}  // namespace

TEST_CASE("available_memory of a sleeping pool is 0, and micro_batches plans nothing on it",
          "[raii][memory_availability][sleep][pages]") {
  sim_machine const machine{small()};
  auto pool = sim_pages{machine.driver()} | pooled{};
  auto memory = pool | limited{40_MiB};
  auto const held = block(memory, 10_MiB);
  CHECK(available_memory(pool).bytes == 50_MiB);
  (void)sleep(pool);
  for (memory_availability const& a : {available_memory(pool), available_memory(memory)}) {
    CHECK(a.bytes == 0);
    CHECK(a.is_asleep);
    CHECK(std::string_view(a.bounded_by) == "the sleeping pool");
  }
  CHECK_THROWS_AS(micro_batches(100, 1_MiB, pool), pool_asleep);
  CHECK_THROWS_AS(micro_batches(100, 1_MiB, memory, {.when_too_large = too_large_item::one_at_a_time}),
                  pool_asleep);
  (void)wake(pool);
  CHECK(available_memory(pool).bytes == 50_MiB);
}

namespace {
/// Checks, after random calls on several streams, that the largest block and a smaller one are served, also
/// after a refusal, and in nearly all cases no larger one.
/// @param scale   of the blocks
/// @param margin  of what is reported
template <class Memory>
void check_largest_block(sim_machine const& machine, Memory memory, std::mt19937& random, std::size_t scale,
                         std::size_t margin) {
  struct held_block {
    void* p;
    std::size_t bytes;
    stream_ref stream;
  };
  std::vector<held_block> held;
  stream_ref streams[3];
  for (stream_ref& s : streams) REQUIRE(machine.driver().create_stream(s).ok());
  unsigned tried = 0;
  unsigned larger = 0;
  for (unsigned step = 0; step < 400; ++step) {
    if (held.size() < 12 && random() % 3 != 0) {
      std::size_t const bytes =
          random() % 4 == 0 ? 1 + random() % 100'000 : 1_MiB + random() % 30_MiB * scale;
      stream_ref const s = streams[random() % 3];
      try {
        held.push_back({memory.allocate(s, bytes), bytes, s});
      } catch (out_of_memory const&) {
      }
    } else if (!held.empty()) {
      std::swap(held[random() % held.size()], held.back());
      memory.deallocate(held.back().stream, held.back().p, held.back().bytes);
      held.pop_back();
    }
    if (step % 8 != 7) continue;
    std::size_t const largest = largest_available_block(memory);
    INFO("step " << step << ", largest " << largest);
    if (largest <= 1_MiB) continue;
    stream_ref const s = streams[random() % 3];
    auto const is_served = [&](std::size_t bytes) {
      try {
        memory.deallocate(s, memory.allocate(s, bytes), bytes);
        return true;
      } catch (out_of_memory const&) {
        return false;
      }
    };
    larger += is_served(largest + margin + 1);
    CHECK(largest_available_block(memory) + margin >= largest);
    CHECK(is_served(1_MiB + random() % (largest - 1_MiB)));
    CHECK(is_served(largest));
    ++tried;
  }
  CHECK(tried > 20);
  CHECK(larger * 10 <= tried);
  for (held_block const& b : held) memory.deallocate(b.stream, b.p, b.bytes);
}
}  // namespace

TEST_CASE("largest_available_block is served, and no larger one", "[raii][memory_availability][pages]") {
  std::mt19937 random(GENERATE(1, 2, 4, 15, 26, 110));
  sim_options o;
  o.capacity = 200_MiB;
  o.taken = 0;
  o.backing = sim_backing::address_only;
  std::size_t scale = 1;
  std::size_t margin = 0;
  auto const check = [&](auto const& make) {
    sim_machine const machine{o};
    check_largest_block(machine, make(machine.driver()), random, scale, margin);
  };
  SECTION("pages") {
    check([](sim_driver d) { return sim_pages{d} | pooled{}; });
  }
  SECTION("many pages") {
    scale = 16;
    o.capacity *= scale;
    check([](sim_driver d) { return sim_pages{d} | pooled{}; });
  }
  SECTION("a limit below") {
    check([](sim_driver d) { return sim_pages{d} | limited{120_MiB} | pooled{}; });
  }
  SECTION("a limit above") {
    check([](sim_driver d) { return sim_pages{d} | pooled{} | limited{90_MiB}; });
  }
  SECTION("headroom") {
    check([](sim_driver d) { return sim_pages{d} | headroom{40_MiB} | pooled{}; });
  }
  SECTION("fences") {
    o.backing = sim_options{}.backing;
    check([](sim_driver d) { return sim_pages{d} | pooled{} | fenced{}; });
  }
  SECTION("one handle per block") {
    check([](sim_driver d) { return sim_pages{d} | pooled{.handles = handles_per_block::one}; });
  }
  SECTION("blocks") {
    check([](sim_driver d) { return sim_malloc{d} | pooled{}; });
  }
  SECTION("blocks below a limit") {
    margin = 512;
    check([](sim_driver d) { return sim_malloc{d} | limited{120_MiB} | pooled{}; });
  }
  SECTION("host memory") {
    check([](sim_driver) { return host_memory{} | limited{120_MiB} | pooled{}; });
  }
}

TEST_CASE("largest_available_block of a source, of a sleeping pool and of nothing left",
          "[raii][memory_availability][sleep][pages]") {
  sim_machine const machine{small()};
  CHECK(largest_available_block(sim_malloc{machine.driver()}) == 60_MiB);
  auto pool = sim_pages{machine.driver()} | pooled{};
  CHECK(largest_available_block(pool) == 60_MiB);
  auto const held = block(pool, 60_MiB);
  CHECK(largest_available_block(pool) == 0);
  (void)sleep(pool);
  CHECK(largest_available_block(pool) == 0);
}

TEST_CASE("available_memory of a source is the driver's free memory", "[raii][memory_availability]") {
  sim_machine const machine{small()};
  sim_malloc const memory{machine.driver()};
  CHECK(available_memory(memory).bytes == 60_MiB);
  auto const held = block(memory, 10_MiB);
  memory_availability const room = available_memory(memory);
  CHECK(room.bytes == 50_MiB);
  CHECK(room.device_free == 50_MiB);
  CHECK(std::string_view(room.bounded_by) == "the device");
  CHECK(available_memory(host_memory{}).bytes > 0);
  CHECK(std::string_view(available_memory(host_memory{}).bounded_by) == "the host");
}

TEST_CASE("available_memory of a pool is the free memory plus the cached memory",
          "[raii][memory_availability][pages]") {
  sim_machine const machine{small()};
  sim_pool const memory{sim_pages{machine.driver()}};
  auto held = block(memory, 20_MiB);
  block(memory, 30_MiB).reset();
  memory_availability const room = available_memory(memory);
  CHECK(room.cached == 30_MiB);
  CHECK(room.device_free == 10_MiB);
  CHECK(room.live == 20_MiB);
  CHECK(room.bytes == 40_MiB);
  auto const rest = block(memory, room.bytes);  // the pool can allocate all of it
  CHECK(available_memory(memory).bytes == 0);
}

TEST_CASE(
    "available_memory of a pool over blocks counts the largest free range, because blocks are not coalesced",
    "[raii][memory_availability]") {
  sim_machine const machine{small()};
  auto const memory = sim_malloc{machine.driver()} | pooled{};
  auto a = block(memory, 20_MiB), b = block(memory, 2_MiB), c = block(memory, 20_MiB);
  a.reset();
  c.reset();
  memory_availability const room = available_memory(memory);
  CHECK(room.cached >= 40_MiB);
  CHECK(memory.largest_free_range() < 40_MiB);
  CHECK(room.bytes == room.device_free + memory.largest_free_range());
}

TEST_CASE("available_memory is bounded by the tightest limit", "[raii][memory_availability][pages]") {
  sim_machine const machine{small()};
  auto const reserved = sim_pages{machine.driver()} | limited{32_MiB} | pooled{};
  block(reserved, 10_MiB).reset();
  CHECK(available_memory(reserved).bytes == 32_MiB);  // cached memory can be reused
  CHECK(std::string_view(available_memory(reserved).bounded_by) == "limited");
  auto const live = sim_pages{machine.driver()} | pooled{} | limited{8_MiB} | tracked{};
  auto const held = block(live, 3_MiB);
  memory_availability const room = available_memory(live);
  CHECK(room.bytes == 5_MiB);
  CHECK(room.limit == 8_MiB);
  CHECK(room.live == 3_MiB);
  auto const both = reserved | limited{16_MiB} | fenced{};
  CHECK(available_memory(both).bytes == 16_MiB);
  auto const loose = reserved | limited{1_TiB};
  CHECK(available_memory(loose).bytes == 32_MiB);
  CHECK(available_memory(loose).limit == 32_MiB);
}

TEST_CASE("available_memory is zero above an exceeded limit, and over pinned memory only the limit bounds it",
          "[raii][memory_availability]") {
  sim_machine const machine{small()};
  auto const memory = sim_pinned_host{machine.driver()} | pooled{} | limited{8_MiB};
  CHECK(available_memory(memory).bytes == 8_MiB);
  auto const held = block(memory, 4_MiB);
  memory->set_limit(1_MiB);
  CHECK(available_memory(memory).bytes == 0);
  static_assert(!detail::knows_available<sim_pinned_host>() && !detail::knows_available<sim_managed>());
  static_assert(detail::knows_available<sim_malloc>() && detail::knows_available<host_memory>());
}

TEST_CASE("available_memory does not count the memory of fallback_to", "[raii][memory_availability]") {
  sim_machine const machine{small()};
  auto const memory =
      sim_pages{machine.driver()} | limited{6_MiB} | pooled{} | fallback_to{sim_managed{machine.driver()}};
  CHECK(available_memory(memory).bytes == 6_MiB);
}

TEST_CASE("available_memory throws cuda_error if the driver cannot report the free memory",
          "[raii][memory_availability]") {
  sim_machine const machine{small()};
  fault_plan const plan;
  basic_malloc<faulty<sim_driver>> const memory{faulty<sim_driver>(machine.driver(), plan)};
  plan.fail(driver_call::memory_info, 1);
  CHECK_THROWS_AS(available_memory(memory), cuda_error);
  CHECK(available_memory(memory).bytes == 60_MiB);
}

TEST_CASE("largest_available_block counts free memory before a pinned handle once",
          "[raii][memory_availability][pages]") {
  sim_machine const machine({.capacity = 64_MiB, .taken = 0, .backing = sim_backing::address_only});
  auto pool = sim_pages{machine.driver()} | pooled{};
  void* const first = pool.allocate_sync(16_MiB);
  void* const pinned = pool.allocate_sync(16_MiB);
  {
    page_pin const pin(pool, pinned, 16_MiB);
    pool.deallocate_sync(first, 16_MiB);
    pool.deallocate_sync(pinned, 16_MiB);
    std::size_t const largest = largest_available_block(pool);
    CHECK(largest <= 64_MiB);
    void* p = nullptr;
    CHECK_NOTHROW(p = pool.allocate_sync(largest));
    pool.deallocate_sync(p, largest);
  }
  CHECK(largest_available_block(pool) == 64_MiB);
}

TEST_CASE("available_memory does not count what only captures can allocate",
          "[raii][memory_availability][graph_memory][pages]") {
  sim_machine const machine({.capacity = 64_MiB, .taken = 0, .backing = sim_backing::address_only});
  auto pool = sim_pages{machine.driver()} | pooled{};
  sim_stream const stream(machine.driver());
  graph_memory graphs(pool);
  {
    capture_scope const scope(graphs, stream);
    REQUIRE(machine.begin_capture(stream).ok());
    pool.deallocate(stream, pool.allocate(stream, 40_MiB), 40_MiB);
    sim_graph graph;
    REQUIRE(machine.end_capture(stream, graph).ok());
  }
  REQUIRE(graphs.state().reserved == 40_MiB);
  CHECK(available_memory(pool).bytes == 24_MiB);
  CHECK(available_memory(pool).bytes == largest_available_block(pool));
  CHECK(available_memory(pool | limited{60_MiB}).bytes == 24_MiB);
}
