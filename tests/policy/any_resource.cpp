// SPDX-License-Identifier: Apache-2.0

#include "tarn/policy/any_resource.hpp"

#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "contract/resource_contract.hpp"
#include "tarn/debug/fenced.hpp"
#include "tarn/debug/poisoned.hpp"
#include "tarn/debug/with_history.hpp"
#include "tarn/policy/compose.hpp"
#include "tarn/policy/fallback_to.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/tagged.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/raii/graph_memory.hpp"
#include "tarn/raii/peak_scope.hpp"
#include "tarn/raii/pinned_buffer.hpp"
#include "tarn/raii/sleep.hpp"
#include "tarn/report/explain_memory.hpp"
#include "tarn/report/memory_stats.hpp"
#include "tarn/report/stats.hpp"
#include "tarn/report/summary.hpp"
#include "tarn/sim.hpp"
#include "tarn/transfer/available_memory.hpp"
#include "tarn/transfer/micro_batches.hpp"

using namespace tarn;

namespace {

using any_sim = basic_any_resource<sim_driver, device_accessible>;
using any_pinned = basic_any_resource<sim_driver, device_accessible, host_accessible>;

/// No template: called with pools of different types.
std::size_t allocated_while_used(any_sim memory) {
  auto const used = make_device_buffer<float>(memory, 1000, stream_ref{});
  return memory_allocated(memory);
}

}  // namespace

TEST_CASE("any_resource keeps the contract of a resource", "[policy][any_resource]") {
  sim_machine const machine;
  tarn_test::resource_contract([&] { return any_sim(sim_pool{sim_pages{machine.driver()}}); });
}

TEST_CASE("any_resource takes pools of different types, which then are used without a template",
          "[policy][any_resource]") {
  sim_pool const plain;
  auto const capped = sim_pages{} | limited{1_GiB} | pooled{} | tracked{} | limited{1_MiB};
  CHECK(allocated_while_used(plain) == 4096);
  CHECK(allocated_while_used(capped) == 4096);
  any_sim memory = plain;
  std::vector<any_sim> const all{plain, capped, memory};
  CHECK((memory == all[0] && memory == all[2] && all[1] != all[0] && memory != any_sim()));
  memory = capped;
  CHECK(memory == all[1]);
  CHECK_THROWS_AS((void)memory.allocate({}, 2_MiB), out_of_memory);
  CHECK(memory.device() == plain.device());
}

TEST_CASE("any_resource is taken by owners, statistics and scopes as the pool is", "[policy][any_resource]") {
  sim_machine const machine;
  {
    std::optional<sim_pool> pool(std::in_place, sim_pages{machine.driver()});
    any_sim memory = *pool;
    peak_scope scope{memory};
    peak_scope const direct{*pool};
    device_buffer<int, any_sim> buffer;
    buffer = make_device_buffer<int>(memory, 1'000'000, stream_ref{});
    CHECK(scope.peak_bytes() == direct.peak_bytes());
    CHECK(memory_allocated(memory) == memory_allocated(*pool));
    CHECK(memory_reserved(memory) == memory_reserved(*pool));
    CHECK(memory_stats(memory) == memory_stats(*pool));
    CHECK(memory_summary(memory) == memory_summary(*pool));
    CHECK(memory.owns(buffer.data()));
    CHECK(memory.largest_free_range() == pool->largest_free_range());
    basic_stream const other(machine.driver());
    buffer.record_stream(other);
    buffer.reset();
    reset_peak_memory_stats(memory);
    CHECK(max_memory_allocated(*pool) == 0);
    reset_accumulated_memory_stats(memory);
    CHECK(memory_stats(*pool) == memory_stats(memory));
    empty_cache(memory);
    CHECK(memory_reserved(*pool) == 0);
    buffer.resize(10);
    pool.reset();  // the handles keep the pool
    buffer.resize(2'000'000);
    any_sim const moved = std::move(memory);
    CHECK_FALSE(memory);  // NOLINT: moved-from is empty
    CHECK(moved);
  }
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("any_resource is empty by default, and an owner over it throws misuse", "[policy][any_resource]") {
  any_sim const none;
  CHECK((!none && none == any_sim(nullptr) && any_sim(sim_pool(nullptr)) == none));
  device_buffer<int, any_sim> buffer;
  CHECK_THROWS_AS(buffer.resize(1), misuse);
  static_assert(std::is_nothrow_default_constructible_v<decltype(buffer)>);
}

TEST_CASE("any_resource takes no memory that lacks a property, a pool or statistics",
          "[policy][any_resource]") {
  using pinned_pool = stack<sim_pinned_host, pooled, tracked>;
  static_assert(std::is_constructible_v<any_pinned, pinned_pool>);
  CHECK_FALSE(std::is_constructible_v<any_sim, pinned_pool>);  // a default stream would mean another one
  static_assert(!std::is_constructible_v<any_pinned, sim_pool>);
  static_assert(!std::is_constructible_v<any_sim, stack<sim_pages, pooled>>);
  static_assert(!std::is_constructible_v<any_sim, stack<sim_malloc, tracked>>);
  any_pinned const memory = pinned_pool{};
  pinned_buffer<int, any_pinned> numbers(memory, 10);
  CHECK(numbers[9] == 0);
}

TEST_CASE("any_resource passes the line of the user's call on to layers and errors",
          "[policy][any_resource]") {
  auto const pool = sim_pages{} | limited{1_GiB} | pooled{} | with_history{.history = 10} | tracked{};
  any_sim memory = pool;
  int const line = __LINE__ + 1;
  void* const p = memory.allocate({}, 100);
  memory.deallocate({}, p, 100);
  auto buffer = make_device_buffer<int>(memory, 100, stream_ref{});
  auto const record = nearest(pool, [](auto& layer) -> decltype(layer.record()) { return layer.record(); });
  REQUIRE(record.events.size() == 3);
  auto const line_of = [&](std::size_t i) {
    return record.locations[record.events[i].location].front().line;
  };
  CHECK(line_of(0) == static_cast<unsigned>(line));
  CHECK(line_of(1) == static_cast<unsigned>(line + 1));
  CHECK(line_of(2) == static_cast<unsigned>(line + 2));
  int const refused = __LINE__ + 2;
  try {
    (void)memory.allocate({}, 2_GiB);
    FAIL("not refused");
  } catch (out_of_memory const& error) {
    CHECK(error.where().line == static_cast<unsigned>(refused));
  }
}

TEST_CASE("layers over any_resource count blocks as the pool rounds them, and deferred ones",
          "[policy][any_resource]") {
  sim_machine const machine;
  sim_pool const pool{sim_pages{machine.driver()}};
  auto const memory = any_sim(pool) | limited{1_MiB} | tracked{};
  basic_stream const own(machine.driver());
  basic_stream const other(machine.driver());
  auto buffer = make_device_buffer<char>(memory, 2049, own);
  auto const used = nearest(memory, [](auto& layer) -> decltype(layer.used()) { return layer.used(); });
  CHECK(used == memory_allocated(pool));
  CHECK(memory_allocated(memory) == memory_allocated(pool));
  REQUIRE(machine.launch(other, 1'000'000'000).ok());
  buffer.record_stream(other);
  buffer.reset();
  CHECK(memory->statistics().active_bytes[0].current == 2304);
}

TEST_CASE("layers over any_resource do not touch the memory of a pool that sleeps",
          "[policy][any_resource][pages]") {
  sim_machine const machine;
  sim_pool const pool{sim_pages{machine.driver()}};
  auto memory = any_sim(pool) | fenced{} | poisoned{};
  basic_stream const stream(machine.driver());
  void* const p = memory.allocate(stream, 4_MiB);
  stream.synchronize();
  (void)tarn::sleep(pool);
  memory.deallocate(stream, p, 4_MiB);
  CHECK(machine.driver().synchronize_device().ok());  // not an access to memory that is not mapped
  (void)tarn::wake(pool);
}

TEST_CASE("available_memory of any_resource is that of its pool", "[policy][any_resource][pages]") {
  sim_machine const machine;
  auto const pool = sim_pages{machine.driver()} | limited{64_MiB} | pooled{} | fenced{} | tracked{};
  any_sim const memory = pool;
  auto const outer = memory | limited{32_MiB};
  auto const check = [&](std::size_t within) {
    CHECK(available_memory(memory).bytes == available_memory(pool).bytes);
    CHECK(available_memory(outer).bytes == available_memory(pool | limited{32_MiB}).bytes);
    CHECK(available_memory(memory).bytes <= within);
    CHECK(largest_available_block(memory) == largest_available_block(pool));
    CHECK(largest_available_block(outer) == largest_available_block(pool | limited{32_MiB}));
  };
  check(64_MiB);
  auto const cached = make_device_buffer<char>(memory, 10_MiB, stream_ref{}).size();
  check(64_MiB);
  CHECK(cached == 10_MiB);
  (void)tarn::sleep(pool);
  check(0);
  CHECK(available_memory(memory).is_asleep);
  CHECK_THROWS_AS(micro_batches(10, 1_MiB, memory), pool_asleep);
  (void)tarn::wake(pool);
  any_pinned const pinned = sim_pinned_host{machine.driver()} | pooled{} | tracked{};
  CHECK_THROWS_AS(available_memory(pinned), cuda_error);
  CHECK_THROWS_AS(largest_available_block(pinned), cuda_error);
  CHECK(available_memory(pinned | limited{1_MiB}).bytes == 1_MiB);
  any_pinned const capped = sim_pinned_host{machine.driver()} | pooled{} | tracked{} | limited{3_MiB};
  CHECK(available_memory(capped).bytes == 3_MiB);
}

TEST_CASE("a default stream named on another device through any_resource is that device's",
          "[policy][any_resource]") {
  constexpr std::size_t n = 8_MiB;
  sim_options options;
  options.devices = 2;
  options.checks = sim_checks::stream_order;
  sim_machine const machine(options);
  sim_driver const first = machine.driver(0);
  sim_driver const other = machine.driver(1);
  sim_stream const in_use(other);
  any_pinned memory = sim_pinned_host{first} | pooled{} | tracked{};
  int seen = 0;
  REQUIRE(sim_driver::set_current_device(device_id{1}).ok());
  {
    auto buffer = make_device_buffer<char>(memory, n, stream_ref{});
    std::memset(buffer.data(), 7, n);
    REQUIRE(other
                .launch(stream_ref{}, 1'000'000'000, {sim_reads(buffer.data(), n)},
                        [p = buffer.data(), &seen] { seen = *p; })
                .ok());
  }
  REQUIRE(sim_driver::set_current_device(device_id{0}).ok());
  void* const p = memory.allocate(stream_ref{}, n);
  REQUIRE(first.launch(stream_ref{}, 10, {sim_writes(p, n)}, [p] { std::memset(p, 9, n); }).ok());
  REQUIRE((first.synchronize_device().ok() && other.synchronize_device().ok()));
  CHECK(seen == 7);
  memory.deallocate(stream_ref{}, p, n);
}

TEST_CASE("extend reaches the pool through any_resource", "[policy][any_resource][pages]") {
  sim_machine const machine;
  auto const pool = sim_pages{machine.driver()} | pooled{} | tracked{};
  any_sim const handle = pool;
  auto memory = handle | limited{1_GiB};
  memory.deallocate({}, memory.allocate({}, 16_MiB), 16_MiB);
  void* const p = memory.allocate({}, 3_MiB);
  REQUIRE(memory.extend({}, p, 3_MiB, 1_MiB));
  CHECK(memory_allocated(pool) == 4_MiB);
  memory.deallocate({}, p, 4_MiB);
  CHECK(memory_allocated(pool) == 0);
}

TEST_CASE("memory_stats and memory_summary of any_resource have the memory of captured graphs",
          "[policy][any_resource][pages]") {
  sim_machine const machine;
  auto pool = sim_pages{machine.driver()} | pooled{} | tracked{};
  graph_memory owner(pool);
  void* const p = owner.allocate(stream_ref{}, 4_MiB);
  any_sim const memory = pool;
  CHECK(memory_stats(memory) == memory_stats(pool));
  CHECK(memory_summary(memory | tagged{"x"}) == memory_summary(pool));
  CHECK(memory_summary(memory).find("Graph memory") != std::string::npos);
  pool.deallocate(stream_ref{}, p, 4_MiB);
}

TEST_CASE("explain_memory counts each pool behind any_resource once", "[policy][any_resource]") {
  sim_machine const machine;
  auto const over = [&](std::size_t limit) {
    return sim_pages{machine.driver()} | limited{limit} | pooled{};
  };
  auto first = over(64_MiB) | tracked{};
  auto second = over(64_MiB) | tracked{};
  auto both = over(8_MiB) | fallback_to{over(64_MiB)} | tracked{};
  auto spilling = over(8_MiB) | fallback_to{sim_malloc{machine.driver()}} | tracked{};
  auto const a = make_device_buffer<char>(first, 20_MiB, stream_ref{});
  auto const b = make_device_buffer<char>(second, 30_MiB, stream_ref{});
  auto const c = make_device_buffer<char>(both, 6_MiB, stream_ref{});
  auto const d = make_device_buffer<char>(both, 10_MiB, stream_ref{});
  auto const e = make_device_buffer<char>(spilling, 5_MiB, stream_ref{});
  std::size_t const all =
      memory_reserved(first) + memory_reserved(second) + memory_reserved(both) + memory_reserved(spilling);
  auto const check = [&](std::size_t pools, std::size_t others, auto const&... memory) {
    memory_explanation const found = explain_memory(memory...);
    CHECK(found.pools.size() == pools);
    CHECK(found.other_pool_count == others);
    CHECK(found.reserved() == all);
  };
  any_sim const any_first = first;
  any_sim const any_both = both;
  check(2, 3, first, second);
  check(2, 3, any_first, any_sim(second));
  check(1, 4, any_first, any_sim(first), first);
  check(1, 4, first, any_first);
  check(2, 2, any_both, second);
  check(1, 4, any_sim(any_first | tracked{}));
  CHECK(explain_memory(any_first).pools[0].requested == 20_MiB);
  CHECK_FALSE(explain_memory(any_both).pools[0].requested);
  CHECK_FALSE(explain_memory(any_sim(spilling)).pools[0].requested);
}
