// SPDX-License-Identifier: Apache-2.0
// Many graph memories in one heap: what each costs, and how free memory moves between them and the rest of
// the pool.
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "tarn/diagnostics.hpp"
#include "tarn/sim.hpp"
#include "tarn/tarn.hpp"

using namespace tarn;

namespace {

sim_options of_capacity(std::size_t bytes) {
  sim_options o;
  o.capacity = bytes;
  o.taken = 0;
  o.backing = sim_backing::address_only;
  return o;
}
template <class Memory>
pool_state state_of_pool(Memory& memory) {
  return nearest(memory, pool_call::state{});
}

}  // namespace

TEST_CASE("as many graph memories live at once as there are handles on the device", "[graph_owners]") {
  sim_machine const machine{of_capacity(4_GiB)};
  auto pool = sim_pages(machine.driver()) | pooled{} | tracked{};
  basic_stream<sim_driver> const s{machine.driver()};
  using memory = graph_memory<decltype(pool)>;
  constexpr std::size_t count = 1500;
  std::vector<std::unique_ptr<memory>> all;
  std::vector<void*> blocks;
  std::size_t const host_before = state_of_pool(pool).host_bytes;
  for (std::size_t i = 0; i < count; ++i) {
    all.push_back(std::make_unique<memory>(pool));
    capture_scope const scope(*all.back(), s);
    blocks.push_back(pool.allocate(s, 1_MiB));
  }
  CHECK(memory_reserved(pool) == count * 2_MiB);
  CHECK(all.front()->state().reserved == 2_MiB);  // not more than it needs, however large the heap is
  CHECK(all.back()->state().reserved == 2_MiB);
  CHECK((state_of_pool(pool).host_bytes - host_before) / count < 8_KiB);
  // The common calls are as with one.
  auto second = sim_pages(machine.driver()) | pooled{};
  void* const p = second.allocate(s, 1_MiB);
  second.deallocate(s, p, 1_MiB);
  void* const q = pool.allocate(s, 100_MiB);
  pool.deallocate(s, q, 100_MiB);
  all.clear();
  for (void* const block : blocks) pool.deallocate(s, block, 1_MiB);
  pool.empty_cache();
  CHECK(memory_reserved(pool) == 0);
}

TEST_CASE("a capture that lacks memory takes free handles of the pool, and the rest stays cached",
          "[graph_owners][pages]") {
  sim_machine const machine{of_capacity(8_GiB)};
  bool const is_limited = GENERATE(false, true);
  auto pool = sim_pages(machine.driver()) | limited{is_limited ? 1_GiB : 16_GiB} | pooled{} | tracked{};
  basic_stream<sim_driver> const s{machine.driver()}, t{machine.driver()};
  std::vector<void*> cached;
  for (int i = 0; i < 90; ++i) cached.push_back(pool.allocate(s, 10_MiB));
  for (void* const p : cached) pool.deallocate(s, p, 10_MiB);
  if (GENERATE(false, true))
    pool.deallocate(t, pool.allocate(t, 200_MiB), 200_MiB);  // complete, and passed on
  pool_state const before = state_of_pool(pool);
  graph_memory<decltype(pool)> owner(pool);
  void* p = nullptr;
  {
    capture_scope const scope(owner, t);
    p = pool.allocate(t, 200_MiB);
  }
  pool_state const after = state_of_pool(pool);
  CHECK(after.ooms == 0);
  // What was created up to the limit went back; nothing else did.
  CHECK(after.reserved >= before.reserved);
  CHECK(after.destroys - before.destroys <= after.creates - before.creates);
  if (is_limited) CHECK(after.reserved == before.reserved);
  CHECK(owner.state().reserved >= 200_MiB);
  CHECK(owner.state().reserved <= 210_MiB);
  pool.deallocate(t, p, 200_MiB);
}

TEST_CASE("an owner gives its memory to the pool, and the next owner gets it, without a driver call",
          "[graph_owners]") {
  sim_machine const machine{of_capacity(8_GiB)};
  auto pool = sim_pages(machine.driver()) | pooled{} | tracked{};
  basic_stream<sim_driver> const s{machine.driver()};
  std::size_t const bytes = GENERATE(as<std::size_t>{}, 300, 3 << 20, 64 << 20);
  std::vector<void*> seen;
  for (int i = 0; i < 3; ++i) {
    graph_memory<decltype(pool)> owner(pool);
    pool_state const before = state_of_pool(pool);
    {
      capture_scope const scope(owner, s);
      seen.push_back(pool.allocate(s, bytes));
      pool.deallocate(s, seen.back(), bytes);
    }
    if (i == 0) continue;
    CHECK(seen.back() == seen.front());
    CHECK(state_of_pool(pool).creates == before.creates);
    CHECK(state_of_pool(pool).maps == before.maps);
  }
  void* const p = pool.allocate(s, bytes);
  CHECK(p == seen.front());
  pool.deallocate(s, p, bytes);
}

TEST_CASE("driver calls for owners that end are linear in their number, while the device works",
          "[graph_owners]") {
  auto const calls_for = [](std::size_t n) {
    sim_machine const machine{of_capacity(2_GiB)};
    sim_marking_driver const driver(machine.driver());
    auto pool = basic_pages<sim_marking_driver>(driver) | pooled{};
    basic_stream<sim_marking_driver> const s{driver}, busy{driver};
    std::vector<std::unique_ptr<graph_memory<decltype(pool)>>> all;
    for (std::size_t i = 0; i < n; ++i) {
      all.push_back(std::make_unique<graph_memory<decltype(pool)>>(pool));
      capture_scope const scope(*all.back(), s);
      pool.deallocate(s, pool.allocate(s, 1_MiB), 1_MiB);
    }
    REQUIRE(machine.launch(busy, 3'600'000'000'000).ok());
    auto const before = machine.calls().total();
    all.clear();
    return machine.calls().total() - before;
  };
  auto const few = calls_for(50);
  CHECK(calls_for(200) <= 4 * few + 16);
}

TEST_CASE("a moved-from graph_memory holds nothing, and can be assigned", "[graph_owners]") {
  sim_machine const machine{of_capacity(1_GiB)};
  auto pool = sim_pages(machine.driver()) | pooled{};
  graph_memory first{pool};
  graph_memory second{std::move(first)};
  CHECK((first.state().number == 0 && first.state().reserved == 0));  // NOLINT(bugprone-use-after-move)
  CHECK(second.state().number == 1);
  first = std::move(second);
  CHECK(first.state().number == 1);
}

TEST_CASE("a graph memory over plain blocks grows without giving back what the pool caches",
          "[graph_owners]") {
  sim_machine const machine{of_capacity(8_GiB)};
  auto pool = sim_malloc(machine.driver()) | pooled{} | tracked{};
  basic_stream<sim_driver> const s{machine.driver()};
  std::vector<void*> cached;
  for (int i = 0; i < 10; ++i) cached.push_back(pool.allocate(s, 20_MiB));
  for (void* const p : cached) pool.deallocate(s, p, 20_MiB);
  std::size_t const before = memory_reserved(pool);
  graph_memory memory{pool};
  std::size_t held = 0;
  std::size_t most = 0;
  for (std::size_t mib = 30; mib <= 150; mib += 20) {
    void* const p = memory.allocate(s, mib << 20);
    most = memory_reserved(pool);
    held = memory.state().reserved;
    CHECK(most == before + held);
    pool.deallocate(s, p, mib << 20);
  }
  CHECK(held != 0);
}
