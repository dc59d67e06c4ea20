// SPDX-License-Identifier: Apache-2.0
#include "tarn/policy/prefetched.hpp"

#include "catch.hpp"
#include "contract/resource_contract.hpp"
#include "driver/faulty.hpp"
#include "tarn/policy/fallback_to.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/tracked.hpp"
#include "tarn/raii/stream.hpp"
#include "tarn/report/stats.hpp"
#include "tarn/sim.hpp"
#include "tarn/source/host_memory.hpp"

using namespace tarn;

namespace {
sim_options two_devices() {
  sim_options o;
  o.devices = 2;
  o.capacity = 1_GiB;
  o.checks = sim_checks::stream_order;
  return o;
}
device_id location(sim_machine const& machine, void const* p) {
  return machine.managed_page(p).prefetched_to;
}
}  // namespace

TEST_CASE("prefetched over managed memory meets the resource contract", "[policy][prefetched]") {
  tarn_test::resource_contract([] { return sim_managed{} | pooled{} | prefetched{}; });
}

TEST_CASE("prefetched moves each block of managed memory to the memory's device", "[policy][prefetched]") {
  sim_machine const machine{two_devices()};
  auto memory = sim_managed{machine.driver(1)} | pooled{} | prefetched{} | tracked{};
  basic_stream<sim_driver> const stream(machine.driver(1));
  auto const calls = [&] { return machine.calls()[driver_call::prefetch]; };
  for (int i = 0; i < 3; ++i) {
    void* const p = memory.allocate(stream, 100_KiB);
    CHECK(location(machine, p) == 1);
    CHECK(location(machine, static_cast<char*>(p) + 100_KiB - 1) == 1);
    CHECK(calls() == static_cast<unsigned>(i) + 1);  // also where the pool has the block
    memory.deallocate(stream, p, 100_KiB);
    CHECK(calls() == static_cast<unsigned>(i) + 1);
  }
  void* const q = memory.allocate_sync(1_MiB);
  CHECK(location(machine, q) == 1);
  memory.deallocate_sync(q, 1_MiB);
  CHECK(memory.allocate(stream, 0) == nullptr);
  CHECK(calls() == 4);
  CHECK(machine.findings().empty());
}

TEST_CASE("prefetched leaves blocks where they are that are not managed, or whose device cannot move them",
          "[policy][prefetched][pages]") {
  sim_machine const machine{two_devices()};
  auto memory = sim_pages{machine.driver()} | limited{2_MiB} | pooled{} |
                fallback_to{sim_managed{machine.driver()}} | prefetched{};
  void* const in_pages = memory.allocate({}, 1_MiB);
  void* const managed = memory.allocate({}, 8_MiB);
  CHECK(location(machine, in_pages) == sim_managed_page::nowhere);
  CHECK(location(machine, managed) == 0);
  memory.deallocate({}, managed, 8_MiB);
  memory.deallocate({}, in_pages, 1_MiB);

  sim_options o = two_devices();
  o.migration = sim_migration::missing;
  sim_machine const unable{o};
  auto still = sim_managed{unable.driver()} | pooled{} | prefetched{};
  void* const p = still.allocate({}, 1_MiB);
  CHECK(p != nullptr);
  CHECK(location(unable, p) == sim_managed_page::nowhere);
  still.deallocate({}, p, 1_MiB);

  auto host = host_memory{} | prefetched{};
  host.deallocate_sync(host.allocate_sync(100), 100);
}

TEST_CASE("prefetched does not invalidate a capture", "[policy][prefetched]") {
  sim_machine const machine{two_devices()};
  auto memory = sim_managed{machine.driver()} | pooled{} | prefetched{};
  basic_stream<sim_driver> stream(machine.driver());
  void* const before = memory.allocate(stream, 1_MiB);
  memory.deallocate(stream, before, 1_MiB);
  auto const prefetches = machine.calls()[driver_call::prefetch];
  sim_graph graph;
  REQUIRE(machine.begin_capture(stream).ok());
  void* const p = memory.allocate(stream, 1_MiB);
  CHECK(machine.calls()[driver_call::prefetch] == prefetches);
  CHECK(machine.end_capture(stream, graph).ok());
  CHECK(machine.invalidated_captures() == 0);
  memory.deallocate(stream, p, 1_MiB);
}

TEST_CASE("prefetched gives the block back if the prefetch fails", "[policy][prefetched][fault]") {
  using driver_type = faulty<sim_driver>;
  sim_machine const machine{two_devices()};
  fault_plan const plan;
  auto memory =
      basic_managed<driver_type>{driver_type(machine.driver(), plan)} | pooled{} | tracked{} | prefetched{};
  plan.fail(driver_call::prefetch, 1);
  CHECK_THROWS_AS(memory.allocate({}, 1_MiB), cuda_error);
  CHECK(memory_allocated(memory) == 0);
  plan.fail(driver_call::prefetch, 1);
  CHECK_THROWS_AS(memory.allocate_sync(1_MiB), cuda_error);
  CHECK(memory_allocated(memory) == 0);
  void* const p = memory.allocate({}, 1_MiB);
  CHECK(location(machine, p) == 0);
  memory.deallocate({}, p, 1_MiB);
}
