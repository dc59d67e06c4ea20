// SPDX-License-Identifier: Apache-2.0
#include "tarn/policy/fallback_to.hpp"

#include "catch.hpp"
#include "contract/resource_contract.hpp"
#include "driver/faulty.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/source/host_memory.hpp"
#include "tarn/source/sim_sources.hpp"

using namespace tarn;

TEST_CASE("fallback_to meets the resource contract", "[policy][fallback_to]") {
  tarn_test::resource_contract([] { return host_memory{} | limited{100'000} | fallback_to(host_memory{}); });
}

TEST_CASE("fallback_to returns each block to the resource it came from", "[policy][fallback_to]") {
  auto first = host_memory{} | limited{1000};
  auto second = host_memory{} | limited{5000};
  auto memory = first | fallback_to(second);
  void* const p = memory.allocate({}, 800);
  CHECK(first->used() == 800);
  CHECK(memory->fallback_blocks() == 0);
  void* const q = memory.allocate({}, 900);
  void* const r = memory.allocate_sync(900);
  CHECK(second->used() == 1800);
  CHECK(memory->fallback_blocks() == 2);
  memory.deallocate({}, p, 800);
  CHECK(first->used() == 0);
  CHECK(second->used() == 1800);
  memory.deallocate({}, q, 900);
  memory.deallocate_sync(r, 900);
  CHECK(second->used() == 0);
  CHECK(memory->fallback_blocks() == 0);
  void* const s = memory.allocate({}, 900);  // the first resource is tried first again
  CHECK(first->used() == 900);
  memory.deallocate({}, s, 900);
}

TEST_CASE("fallback_to throws the fallback's error when both refuse", "[policy][fallback_to]") {
  auto memory = host_memory{} | limited{1000} | fallback_to(host_memory{} | limited{2000});
  try {
    (void)memory.allocate({}, 3000);
    FAIL("must not succeed");
  } catch (out_of_memory const& error) {
    CHECK(error.report().limit == 2000);
  }
  CHECK(memory->fallback_blocks() == 0);
}

TEST_CASE("fallback_to does not fall back on errors other than out_of_memory", "[policy][fallback_to]") {
  fault_plan const plan;
  sim_machine const machine;
  using source = basic_malloc<faulty<sim_driver>>;
  auto memory =
      source(faulty<sim_driver>(machine.driver(), plan)) | fallback_to(sim_malloc(machine.driver()));
  plan.fail(driver_call::malloc_device, 1, {failure::other});
  CHECK_THROWS_AS(memory.allocate({}, 1000), cuda_error);
  CHECK_THROWS_AS(memory.allocate({}, 1000, 3), bad_alignment);
  CHECK(memory->fallback_blocks() == 0);
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("fallback_to forwards record_stream to the pool that owns the block", "[policy][fallback_to]") {
  sim_machine const machine;
  auto first = sim_pages{machine.driver()} | limited{4_MiB} | pooled{};
  auto second = sim_malloc{machine.driver()} | pooled{};
  auto memory = first | fallback_to{second};
  tarn_test::test_stream const a(machine.driver());
  tarn_test::test_stream const b(machine.driver());
  void* const big = memory.allocate(a, 4_MiB);
  void* const p = memory.allocate(a, 2_MiB);
  REQUIRE(second.owns(p));
  CHECK(memory.owns(p));
  CHECK(memory.owns(big));
  REQUIRE(machine.launch(b, 1'000'000, {sim_writes(p, 2_MiB)}).ok());
  memory.record_stream(p, 2_MiB, b);
  memory.deallocate(a, p, 2_MiB);
  CHECK(first->state().deferred == 0);
  CHECK(second->state().deferred == 2_MiB);
  CHECK(nearest(memory, pool_call::state{}).deferred == 2_MiB);
  CHECK(nearest(memory, pool_call::reserved{}) == first->state().reserved + second->state().reserved);
  memory.deallocate(a, big, 4_MiB);
  CHECK(memory.trim() == 6_MiB);
  CHECK(first->state().reserved + second->state().reserved == 0);
}

TEST_CASE("fallback_to waits in deallocate after record_stream of a block that no pool defers",
          "[policy][fallback_to]") {
  sim_machine const machine;
  auto memory =
      sim_pages{machine.driver()} | limited{4_MiB} | pooled{} | fallback_to{sim_managed{machine.driver()}};
  tarn_test::test_stream const a(machine.driver());
  tarn_test::test_stream const b(machine.driver());
  void* const big = memory.allocate(a, 4_MiB);
  void* const p = memory.allocate(a, 2_MiB);
  REQUIRE(memory->fallback_blocks() == 1);
  REQUIRE(machine.launch(b, 1'000'000, {sim_writes(p, 2_MiB)}).ok());
  memory.record_stream(p, 2_MiB, b);
  machine.reset_calls();
  memory.deallocate(a, p, 2_MiB);
  CHECK(machine.calls()[driver_call::synchronize_device] == 1);
  CHECK(machine.pending() == 0);
  memory.deallocate(a, big, 4_MiB);
  CHECK(machine.calls()[driver_call::synchronize_device] == 1);
}

TEST_CASE("fallback_to keeps a block whose uses it could not wait for", "[policy][fallback_to]") {
  sim_machine const machine;
  {
    fault_plan const plan;
    faulty<sim_driver> const driver{machine.driver(), plan};
    auto memory = basic_pages<faulty<sim_driver>>{driver} | limited{4_MiB} | pooled{} |
                  fallback_to{basic_managed<faulty<sim_driver>>{driver}};
    tarn_test::test_stream const a(machine.driver());
    tarn_test::test_stream const b(machine.driver());
    void* const big = memory.allocate(a, 4_MiB);
    void* const p = memory.allocate(a, 2_MiB);
    REQUIRE(memory->fallback_blocks() == 1);
    memory.record_stream(p, 2_MiB, b);
    plan.fail(driver_call::synchronize_device, 1);
    plan.fail(driver_call::synchronize_device, 2);
    memory.deallocate(a, p, 2_MiB);
    CHECK(memory->fallback_blocks() == 1);
    memory.deallocate(a, memory.allocate(a, 1_MiB), 1_MiB);  // the wait fails again
    CHECK(memory->fallback_blocks() == 1);
    memory.deallocate(a, big, 4_MiB);
    CHECK(memory->fallback_blocks() == 0);
  }
  CHECK(machine.leaks().blocks == 0);
}
