// SPDX-License-Identifier: Apache-2.0
// Composition, and the parts that only make sense composed: pooled, device_pool.

#include "tarn/policy/compose.hpp"

#include <memory>

#include "catch.hpp"
#include "tarn/debug/fenced.hpp"
#include "tarn/policy/device_pool.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/tracked.hpp"
#include "tarn/source/host_memory.hpp"
#include "tarn/source/sim_sources.hpp"

using namespace tarn;

static_assert(std::same_as<decltype(sim_pages{} | pooled{} | tracked{}), pool_over<sim_pages>>);
static_assert(page_source<decltype(sim_pages{} | limited{1_GiB})>);
static_assert(!page_source<pool_over<sim_pages>>);

TEST_CASE("stack and operator| compose the same type", "[policy][compose]") {
  auto memory = host_memory{} | pooled{} | limited{1_MiB} | tracked{};
  STATIC_REQUIRE(std::is_same_v<decltype(memory), stack<host_memory, pooled, limited, tracked>>);
  STATIC_REQUIRE(std::is_same_v<stack<host_memory>, host_memory>);
  stack<host_memory, pooled, limited, tracked> same{host_memory{}, pooled{}, limited{1_MiB}, tracked{}};
  CHECK(same->upstream()->limit() == 1_MiB);
}

TEST_CASE("stack is default constructible if all its parts are", "[policy][compose]") {
  STATIC_REQUIRE(std::is_default_constructible_v<stack<host_memory, pooled, tracked>>);
  STATIC_REQUIRE(!std::is_default_constructible_v<stack<host_memory, limited>>);
  stack<host_memory, pooled, tracked> memory;
  void* const p = memory.allocate({}, 100);
  CHECK(memory->statistics().allocations[0].current == 1);
  memory.deallocate({}, p, 100);
}

TEST_CASE("owns, record_stream, trim and largest_free_range reach the pool through the policies above it",
          "[policy][compose]") {
  auto memory = sim_pages{} | pooled{} | limited{1_GiB} | tracked{} | fenced{};
  void* const p = memory.allocate({}, 10_MiB);
  CHECK(memory.owns(p));
  memory.record_stream(p, 10_MiB, {});
  memory.deallocate({}, p, 10_MiB);
  CHECK(memory.trim() > 0);
  CHECK(memory.largest_free_range() == 0);
}

TEST_CASE("has_property of a stack is that of its source", "[policy][compose]") {
  STATIC_REQUIRE(has_property<stack<host_memory, pooled, tracked>, host_accessible>);
  STATIC_REQUIRE(!has_property<stack<host_memory, pooled>, device_accessible>);
  STATIC_REQUIRE(has_property<stack<sim_pages, pooled>, device_accessible>);
}

TEST_CASE("stack handles keep the layers below them alive", "[policy][compose][pages]") {
  sim_machine const machine;
  auto pool = std::make_unique<stack<sim_pages, pooled>>(sim_pages(machine.driver()));
  auto limit = *pool | limited{1_GiB};
  void* const p = limit.allocate({}, 5_MiB);
  pool.reset();
  CHECK(machine.leaks().handles > 0);
  limit.deallocate({}, p, 5_MiB);
  limit = limit;  // NOLINT: self-assignment is tested
  CHECK(limit->used() == 0);
}

TEST_CASE("pooled with remapping::off remaps no handle in a stack", "[policy][pooled]") {
  sim_machine const machine;
  auto still = sim_pages(machine.driver()) | pooled{remapping::off};
  void* blocks[16];
  for (auto& p : blocks) p = still.allocate({}, 4_MiB);
  for (auto& p : blocks) still.deallocate({}, p, 4_MiB);
  void* const p = still.allocate({}, 30_MiB);
  still.deallocate({}, p, 30_MiB);
  CHECK(still->state().remaps == 0);
}

TEST_CASE("pool_over composes pooled and tracked", "[policy][device_pool]") {
  STATIC_REQUIRE(std::is_same_v<pool_over<sim_pages>, stack<sim_pages, pooled, tracked>>);
  pool_over<sim_pages> memory;
  void* const p = memory.allocate({}, 100);
  CHECK(memory->statistics().allocated_bytes[0].current == 256);
  memory.deallocate({}, p, 100);
}
