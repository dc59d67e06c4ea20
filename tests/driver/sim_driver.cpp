// SPDX-License-Identifier: Apache-2.0
// The simulated GPU: the driver contract on each backing, costs, counters, device faults, lifetimes.

#include "tarn/driver/sim/sim_driver.hpp"

#include <cstdlib>
#include <cstring>
#include <thread>
#include <type_traits>
#include <vector>

#include "catch.hpp"
#include "driver/contract.hpp"

using namespace tarn;

namespace {
struct sim_bench {
  sim_machine machine;
  device_id device{};
  sim_driver driver() { return machine.driver(device); }
  bool keep_busy(stream_ref stream) { return driver().launch(stream, 1'000'000'000).ok(); }
  bool can_touch() { return machine.options().backing == sim_backing::host_backed; }
  bool begin_capture(stream_ref stream) { return machine.begin_capture(stream).ok(); }
  bool end_capture(stream_ref stream) {
    sim_graph graph;
    return machine.end_capture(stream, graph).ok();
  }
};
}  // namespace

TEST_CASE("sim_driver keeps the driver contract", "[driver][sim][memory_pools]") {
  SECTION("on host memory") {
    test::driver_contract(sim_bench{sim_machine{}});
  }
  SECTION("on addresses only") {
    test::driver_contract(sim_bench{sim_machine{sim_options{.backing = sim_backing::address_only}}});
  }
  SECTION("on a second device") {
    test::driver_contract(sim_bench{sim_machine{sim_options{.devices = 2}}, 1});
  }
  SECTION("without virtual memory management") {
    test::driver_contract(sim_bench{sim_machine{sim_options{.paging = sim_paging::missing}}});
  }
  SECTION("with free calls") {
    test::driver_contract(sim_bench{sim_machine{sim_options{.costs = sim_costs::nothing()}}});
  }
  SECTION("on a seeded schedule") {
    test::driver_contract(sim_bench{sim_machine{sim_options{.seed = 42}}});
  }
  SECTION("with the order checker") {
    sim_machine machine{sim_options{.checks = sim_checks::stream_order}};
    test::driver_contract(sim_bench{machine});
    for (auto const& finding : machine.findings()) CHECK(finding == "");
  }
}

TEST_CASE("a default sim_driver is device 0 of one machine for the process", "[driver][sim]") {
  sim_driver const a, b;
  CHECK(a == b);
  CHECK(a.device() == device_id{0});
  CHECK(a.machine() == sim_machine::standard());
  CHECK_FALSE(a == sim_machine{}.driver());
  std::size_t free = 0, total = 0;
  REQUIRE(a.memory_info(free, total).ok());
  CHECK(total == 140_GiB);
}

TEST_CASE("sim_driver reports a missing device", "[driver][sim]") {
  sim_machine const machine{sim_options{.devices = 2}};
  for (int const missing : {2, -1}) {
    sim_driver const driver = machine.driver(missing);
    void* p = nullptr;
    CHECK(driver.malloc_device(1, p).kind == failure::no_device);
    CHECK(driver.synchronize_device().kind == failure::no_device);
  }
  CHECK(machine.driver(1).synchronize_device().ok());
}

TEST_CASE("sim_driver keeps its machine alive", "[driver][sim]") {
  sim_driver const driver = sim_machine{}.driver();
  void* p = nullptr;
  REQUIRE(driver.malloc_device(1_MiB, p).ok());
  std::memset(p, 1, 1_MiB);
  CHECK(driver.free_device(p).ok());
}

TEST_CASE("sim_machine counts each driver call under its name", "[driver][sim][calls]") {
  sim_machine const machine;
  sim_driver const driver = machine.driver();
  stream_ref stream;
  REQUIRE(driver.create_stream(stream).ok());
  stream_id id = 0;
  bool capturing = false;
  REQUIRE(driver.identify(stream, id).ok());
  REQUIRE(driver.is_capturing(stream, capturing).ok());
  void* p = nullptr;
  REQUIRE(driver.malloc_device(1, p).ok());
  REQUIRE(driver.free_device(p).ok());
  sim_calls const calls = machine.calls();
  CHECK(calls[driver_call::create_stream] == 1);
  CHECK(calls[driver_call::malloc_device] == 1);
  CHECK(calls[driver_call::copy] == 0);
  CHECK(calls.total() == 5);
  CHECK(calls.memory() == 2);
  CHECK(calls.acting() == 3);
  machine.reset_calls();
  CHECK(machine.calls().total() == 0);
  CHECK(machine.calls().driver_ns == 0);
  REQUIRE(driver.destroy_stream(stream).ok());
}

TEST_CASE("sim_machine gives every driver call its own name", "[driver][sim][calls]") {
  for (std::size_t i = 0; i < driver_call_count; ++i) {
    for (std::size_t j = 0; j < i; ++j)
      CHECK(std::strcmp(name_of(driver_call_at(i)), name_of(driver_call_at(j))) != 0);
  }
  CHECK(std::strcmp(name_of(driver_call::identify), "identify") == 0);
  CHECK(std::strcmp(name_of(driver_call::free_managed), "free_managed") == 0);
  CHECK(std::strcmp(name_of(driver_call::map_pages), "map_pages") == 0);
}

TEST_CASE("sim_driver without virtual memory management refuses every page call as unsupported",
          "[driver][sim]") {
  sim_driver const driver = sim_machine{sim_options{.paging = sim_paging::missing}}.driver();
  std::size_t bytes = 0;
  void* p = nullptr;
  page_handle handle{};
  CHECK(driver.page_granularity(bytes).kind == failure::unsupported);
  CHECK(driver.reserve_range(2_MiB, 0, p).kind == failure::unsupported);
  CHECK(driver.create_pages(2_MiB, handle).kind == failure::unsupported);
  CHECK(driver.destroy_pages(handle).kind == failure::unsupported);
  CHECK(driver.malloc_device(1, p).ok());
}

TEST_CASE("a broken sim_machine device fails every call until it is repaired", "[driver][sim]") {
  sim_machine const machine{sim_options{.devices = 2}};
  sim_driver const driver = machine.driver();
  void* p = nullptr;
  REQUIRE(driver.malloc_device(1, p).ok());
  machine.break_device(0);
  status const s = driver.free_device(p);
  CHECK(s.kind == failure::other);
  CHECK(s.code == 700);
  CHECK(std::strcmp(s.name, "cudaErrorIllegalAddress") == 0);
  CHECK(std::strcmp(s.call, "free_device") == 0);
  CHECK_FALSE(machine.launch({}, 1).ok());
  CHECK(machine.driver(1).synchronize_device().ok());
  machine.repair();
  CHECK(driver.free_device(p).ok());
}

TEST_CASE("an unloading sim_driver reports it on every call", "[driver][sim]") {
  sim_machine const machine;
  machine.unload();
  CHECK(machine.driver().synchronize_device().kind == failure::unloading);
  std::size_t bytes = 0;
  CHECK(machine.driver().page_granularity(bytes).kind == failure::unloading);
  machine.repair();
  CHECK(machine.driver().synchronize_device().ok());
}

TEST_CASE("sim_driver rejects streams of another machine", "[driver][sim]") {
  sim_machine const a, b;
  stream_ref stream, other;
  REQUIRE(a.driver().create_stream(stream).ok());
  REQUIRE(b.driver().create_stream(other).ok());
  CHECK(stream.handle() != other.handle());
  CHECK_FALSE(b.driver().synchronize_stream(stream).ok());
  CHECK(a.driver().synchronize_stream(stream).ok());
}

TEST_CASE("sim_machine accepts driver calls from many threads", "[driver][sim][memory_pools]") {
  sim_machine const machine{sim_options{.capacity = 1_GiB, .taken = 0}};
  std::vector<std::thread> threads;
  std::vector<int> failures(4, 0);
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&machine, &failures, t] {
      sim_driver const driver = machine.driver();
      stream_ref stream;
      event_handle event = nullptr;
      int& bad = failures[t];
      bad += !driver.create_stream(stream).ok();
      bad += !driver.create_event(event).ok();
      for (int i = 0; i < 200; ++i) {
        void* p = nullptr;
        bad += !driver.malloc_async(1_MiB, stream, p).ok();
        bad += !driver.fill(stream, p, i, 1_MiB).ok();
        bad += !driver.record_event(event, stream).ok();
        bad += !driver.wait_event({}, event).ok();
        bad += !driver.free_async(p, stream).ok();
        bad += !driver.synchronize_event(event).ok();
      }
      bad += !driver.destroy_event(event).ok();
      bad += !driver.destroy_stream(stream).ok();
    });
  }
  for (auto& thread : threads) thread.join();
  for (int const bad : failures) CHECK(bad == 0);
  CHECK(machine.leaks().total() == 0);
  REQUIRE(machine.driver().synchronize_device().ok());
  CHECK(machine.usage().used == 0);
}

TEST_CASE("sim_machine takes the same virtual time for the same program", "[driver][sim]") {
  auto const run = [](std::uint64_t seed) {
    sim_machine const machine{sim_options{.seed = seed}};
    stream_ref streams[2];
    for (auto& s : streams) REQUIRE(machine.driver().create_stream(s).ok());
    event_handle event = nullptr;
    REQUIRE(machine.driver().create_event(event).ok());
    for (int i = 0; i < 50; ++i) {
      REQUIRE(machine.launch(streams[i % 2], 1000).ok());
      REQUIRE(machine.driver().record_event(event, streams[i % 2]).ok());
      REQUIRE(machine.driver().wait_event(streams[(i + 1) % 2], event).ok());
    }
    REQUIRE(machine.driver().synchronize_device().ok());
    return machine.now();
  };
  CHECK(run(0) == run(0));
  CHECK(run(7) == run(7));
  CHECK(run(7) != run(8));
  CHECK(run(7) > run(0));
}

// Destroyed after main returns, when the process-wide machine must still exist.
namespace {
struct keeps_memory_to_the_end {
  sim_driver driver;
  void* p = nullptr;
  keeps_memory_to_the_end() { (void)driver.malloc_device(1_MiB, p); }
  ~keeps_memory_to_the_end() {
    if (!driver.free_device(p).ok()) std::abort();
  }
};
}  // namespace

TEST_CASE("objects with static storage may use the default sim_machine until exit", "[driver][sim]") {
  static keeps_memory_to_the_end kept;
  CHECK(kept.p != nullptr);
}

TEST_CASE("sim_driver is by default of the calling thread's current device, as cuda_driver",
          "[driver][sim_driver]") {
  CHECK(sim_driver{}.device() == device_id{0});
  REQUIRE(sim_driver::set_current_device(device_id{1}).ok());
  CHECK(sim_driver{}.device() == device_id{1});
  CHECK(sim_driver{device_id{0}}.device() == device_id{0});
  REQUIRE(sim_driver::set_current_device(device_id{0}).ok());
}
