// SPDX-License-Identifier: Apache-2.0
#include "tarn/policy/fallback_to.hpp"

#include <cstring>

#include "catch.hpp"
#include "contract/resource_contract.hpp"
#include "driver/driver_of_others.hpp"
#include "driver/faulty.hpp"
#include "tarn/policy/accessible_from.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/raii/graph_memory.hpp"
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
    plan.fail(driver_call::synchronize_device, 3);
    memory.deallocate(a, p, 2_MiB);
    CHECK(memory->fallback_blocks() == 1);
    memory.deallocate(a, memory.allocate(a, 1_MiB), 1_MiB);  // both calls wait, and fail
    CHECK(memory->fallback_blocks() == 1);
    memory.deallocate(a, big, 4_MiB);
    CHECK(memory->fallback_blocks() == 0);
  }
  CHECK(machine.leaks().blocks == 0);
}

TEST_CASE("fallback_to gives a deferred block back before it asks the fallback for another",
          "[policy][fallback_to]") {
  sim_machine const machine;
  fault_plan const plan;
  faulty<sim_driver> const driver{machine.driver(), plan};
  auto memory = basic_pages<faulty<sim_driver>>{driver} | limited{4_MiB} | pooled{} |
                fallback_to{basic_managed<faulty<sim_driver>>{driver} | limited{2_MiB}};
  tarn_test::test_stream const a(machine.driver());
  tarn_test::test_stream const b(machine.driver());
  void* const big = memory.allocate(a, 4_MiB);
  void* p = memory.allocate(a, 2_MiB);
  memory.record_stream(p, 2_MiB, b);
  plan.fail(driver_call::synchronize_device, 1);
  memory.deallocate(a, p, 2_MiB);
  REQUIRE(memory->fallback_blocks() == 1);
  p = memory.allocate(a, 2_MiB);
  CHECK(memory->fallback_blocks() == 1);
  memory.deallocate(a, p, 2_MiB);
  memory.deallocate(a, big, 4_MiB);
}

TEST_CASE("fallback_to takes a default stream for that of its upstream in both resources",
          "[policy][fallback_to][pages]") {
  sim_machine const machine{sim_options{.devices = 2}};
  bool const is_recorded = GENERATE(false, true);
  auto const try_on = [&](auto other, int current) {
    constexpr std::size_t bytes = 4_MiB;
    sim_driver const device = machine.driver(0);
    auto memory =
        sim_pages{device} | accessible_from{device_id{1}} | limited{bytes} | pooled{} | fallback_to{other};
    tarn_test::test_stream const s(device);
    REQUIRE(sim_driver::set_current_device(device_id{current}).ok());
    void* const big = memory.allocate(s, bytes);
    void* const p = memory.allocate(s, bytes);
    int seen = 0;
    auto const reads = [&](stream_ref on, void* q) {
      REQUIRE(device
                  .launch(on, 1'000'000'000, {sim_reads(q, bytes)},
                          [q, &seen] { seen = *static_cast<unsigned char*>(q); })
                  .ok());
    };
    auto const writes = [&](sim_driver const& there, stream_ref on, void* q, int value) {
      REQUIRE(
          there.launch(on, 10, {sim_writes(q, bytes)}, [q, value, n = bytes] { std::memset(q, value, n); })
              .ok());
    };
    writes(device, s, p, 7);
    reads(s, p);
    memory.deallocate(s, p, bytes);
    void* const q = memory.allocate(stream_ref{}, bytes);  // of device 0, whichever is current
    REQUIRE(q == p);
    writes(device, stream_ref{}, q, 9);
    REQUIRE(device.synchronize_device().ok());
    CHECK(seen == 7);
    reads(stream_ref{}, q);
    if (is_recorded) memory.record_stream(q, bytes, stream_ref{});
    memory.deallocate(is_recorded ? stream_ref(s) : stream_ref{}, q, bytes);
    REQUIRE(sim_driver::set_current_device(device_id{1}).ok());
    void* const theirs = other.allocate(stream_ref{}, bytes);
    writes(machine.driver(1), stream_ref{}, theirs, 5);
    REQUIRE(device.synchronize_device().ok());
    REQUIRE(machine.driver(1).synchronize_device().ok());
    CHECK(seen == 9);
    other.deallocate(stream_ref{}, theirs, bytes);
    memory.deallocate(s, big, bytes);
    REQUIRE(sim_driver::set_current_device(device_id{0}).ok());
  };
  SECTION("a pool of a peer device") {
    try_on(sim_pages{machine.driver(1)} | accessible_from{device_id{0}} | limited{4_MiB} | pooled{}, 0);
  }
  SECTION("a pool of pinned memory, while another device is current") {
    try_on(sim_pinned_host{machine.driver(0)} | limited{4_MiB} | pooled{}, 1);
  }
}

TEMPLATE_TEST_CASE("fallback_to keeps a block that a capture used for the graph, where no pool does",
                   "[policy][fallback_to]", sim_driver, tarn_test::driver_of_others) {
  sim_machine const machine;
  {
    TestType const driver(machine.driver());
    auto const other = basic_pinned<TestType>{driver};
    auto const memory = basic_pages<TestType>{driver} | limited{2_MiB} | pooled{} | fallback_to{other};
    graph_memory held(memory);
    auto pool = memory;
    tarn_test::test_stream const s(machine.driver());
    auto const captured = [&](auto const& work) {
      capture_scope const scope(held, s);
      REQUIRE(machine.begin_capture(s).ok());
      work();
      sim_graph graph;
      REQUIRE(machine.end_capture(s, graph).ok());
    };
    SECTION("allocated and freed in the capture") {
      captured([&] { pool.deallocate(s, pool.allocate(s, 4_MiB), 4_MiB); });
    }
    SECTION("allocated in the capture") {
      void* p = nullptr;
      captured([&] { p = pool.allocate(s, 4_MiB); });
      pool.deallocate(s, p, 4_MiB);
    }
    SECTION("freed in the capture") {
      void* const p = pool.allocate(s, 4_MiB);
      captured([&] { pool.deallocate(s, p, 4_MiB); });
    }
    SECTION("freed in the capture, with a use that an earlier call recorded") {
      tarn_test::test_stream const t(machine.driver());
      void* const p = pool.allocate(s, 4_MiB);
      pool.record_stream(p, 4_MiB, t);
      captured([&] { pool.deallocate(s, p, 4_MiB); });
    }
    SECTION("used in the capture on its stream, and freed later on another") {
      tarn_test::test_stream const t(machine.driver());
      void* const p = pool.allocate(t, 4_MiB);
      captured([&] { pool.record_stream(p, 4_MiB, s); });
      pool.deallocate(t, p, 4_MiB);
    }
    SECTION("owned in the capture, on a bare handle") {
      stream_ref const bare = stream_ref::from(stream_ref(s).handle());
      captured([&] { device_buffer<char, decltype(pool)> const owner(pool, 4_MiB, bare); });
    }
    CHECK(memory->fallback_blocks() == 1);
    pool.deallocate(s, pool.allocate(s, 3_MiB), 3_MiB);
    CHECK(memory->fallback_blocks() == 1);
    void* const block = pool.allocate(s, 1_MiB);  // the pool keeps its own
    captured([&] { pool.deallocate(s, block, 1_MiB); });
    CHECK(memory->fallback_blocks() == 1);
  }
  CHECK(machine.leaks().blocks == 0);
}

TEST_CASE("fallback_to waits for no earlier block inside a capture without a scope",
          "[policy][fallback_to]") {
  sim_machine const machine;
  auto memory =
      sim_pages{machine.driver()} | limited{4_MiB} | pooled{} | fallback_to{sim_managed{machine.driver()}};
  tarn_test::test_stream const s(machine.driver());
  tarn_test::test_stream const t(machine.driver());
  tarn_test::test_stream const u(machine.driver());
  void* const big = memory.allocate(t, 4_MiB);
  void* const p = memory.allocate(t, 2_MiB);
  void* const q = memory.allocate(t, 2_MiB);
  memory.record_stream(p, 2_MiB, u);
  {
    graph_memory held(memory);
    capture_scope const scope(held, s);
    memory.deallocate(t, p, 2_MiB);  // an open scope forbids the wait: deferred
  }
  REQUIRE(machine.begin_capture(s).ok());
  memory.deallocate(s, q, 2_MiB);
  sim_graph graph;
  CHECK(machine.end_capture(s, graph).ok());
  CHECK(machine.invalidated_captures() == 0);
  memory.deallocate(t, big, 4_MiB);
}
