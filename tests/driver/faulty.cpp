// SPDX-License-Identifier: Apache-2.0
// Fault injection: the chosen call fails as planned, every other call is forwarded.

#include "driver/faulty.hpp"

#include <unistd.h>

#include <cstring>
#include <new>
#include <string_view>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "driver/contract.hpp"
#include "tarn/core/element.hpp"
#include "tarn/driver/no_driver.hpp"
#include "tarn/driver/sim/sim_driver.hpp"

using namespace tarn;

static_assert(page_driver<faulty<sim_driver>> && block_driver<faulty<sim_driver>>);
static_assert(block_driver<faulty<no_driver>> && registering_driver<faulty<no_driver>>);

namespace {

/// A driver that has only streams: faulty must not add calls that it lacks.
struct streams_only {
  device_id device() const noexcept { return {}; }
  status identify(stream_ref, stream_id&) const noexcept { return {}; }
  status is_capturing(stream_ref, bool&) const noexcept { return {}; }
  status create_event(event_handle&) const noexcept { return {}; }
  status destroy_event(event_handle) const noexcept { return {}; }
  status record_event(event_handle, stream_ref) const noexcept { return {}; }
  status query_event(event_handle) const noexcept { return {}; }
  status wait_event(stream_ref, event_handle) const noexcept { return {}; }
  status synchronize_event(event_handle) const noexcept { return {}; }
  status synchronize_stream(stream_ref) const noexcept { return {}; }
  status synchronize_device() const noexcept { return {}; }
  status create_stream(stream_ref&) const noexcept { return {}; }
  status destroy_stream(stream_ref) const noexcept { return {}; }
  status copy(stream_ref, void*, void const*, std::size_t) const noexcept { return {}; }
  status fill(stream_ref, void*, int, std::size_t) const noexcept { return {}; }
  status memory_info(std::size_t&, std::size_t&) const noexcept { return {}; }
  bool operator==(streams_only const&) const noexcept = default;
};
static_assert(stream_driver<faulty<streams_only>>);
static_assert(!page_driver<faulty<streams_only>> && !block_driver<faulty<streams_only>>);
static_assert(!registering_driver<faulty<streams_only>>);

struct faulty_bench {
  sim_machine machine;
  fault_plan plan;
  faulty<sim_driver> driver() { return faulty(machine.driver(), plan); }
  bool keep_busy(stream_ref stream) { return machine.launch(stream, 1'000'000'000).ok(); }
  bool can_touch() { return true; }
};

sim_options sharing_machine() {
  sim_options o;
  o.sharing = sim_sharing::descriptors;
  return o;
}

/// Makes each call of the contract, most of them once. Returns the calls that failed.
std::vector<status> call_everything(faulty<sim_driver> const& driver) {
  std::vector<status> failed;
  auto const note = [&](status s) {
    if (!s.ok()) failed.push_back(s);
  };
  stream_id id = 0;
  bool capturing = false;
  event_handle event = nullptr;
  stream_ref stream;
  std::size_t a = 0, b = 0;
  void *range = nullptr, *device = nullptr, *async = nullptr, *pinned = nullptr, *managed = nullptr;
  page_handle handle{};
  device_account account;
  note(driver.create_stream(stream));
  note(driver.identify(stream, id));
  device_id where;
  note(driver.ask_device(stream, where));
  note(driver.is_capturing(stream, capturing));
  note(driver.create_event(event));
  note(driver.record_event(event, stream));
  note(driver.wait_event(stream, event));
  note(driver.synchronize_event(event));
  note(driver.query_event(event));
  note(driver.synchronize_stream(stream));
  note(driver.synchronize_device());
  note(driver.destroy_event(event));
  shared_event_token token{};
  event_handle shared = nullptr;
  note(driver.create_shared_event(event, token));
  note(driver.open_shared_event(token, shared));
  note(driver.destroy_event(event));
  note(driver.destroy_event(shared));
  note(driver.memory_info(a, b));
  device_uuid uuid{};
  note(driver.uuid(uuid));
  note(driver.memory_account(account));
  note(driver.can_share(driver.device(), capturing));
  note(driver.page_granularity(a));
  note(driver.reserve_range(2_MiB, 0, range));
  note(driver.create_pages(2_MiB, allocation_handle_type::posix_file_descriptor, handle));
  note(driver.map_pages(range, 2_MiB, handle));
  note(driver.share_pages(range, 2_MiB, driver.device()));
  note(driver.can_export_pages(allocation_handle_type::posix_file_descriptor, capturing));
  page_export exported;
  exported.type = allocation_handle_type::posix_file_descriptor;
  page_handle imported{};
  note(driver.export_pages(handle, exported));
  note(driver.import_pages(exported, imported));
  note(driver.destroy_pages(imported));
  (void)::close(exported.descriptor);
  note(driver.unmap_pages(range, 2_MiB));
  note(driver.destroy_pages(handle));
  note(driver.release_range(range, 2_MiB));
  note(driver.malloc_device(1_KiB, device));
  note(driver.malloc_async(1_KiB, stream, async));
  note(driver.malloc_pinned(1_KiB, pinned));
  note(driver.malloc_managed(1_KiB, managed));
  note(driver.prefetch(stream, managed, 1_KiB, driver.device()));
  note(driver.advise(managed, 1_KiB, memory_advice::read_mostly, driver.device()));
  note(driver.copy(stream, managed, pinned, 1_KiB));
  note(driver.fill(stream, pinned, 1, 1_KiB));
  note(driver.convert(stream, static_cast<float16*>(managed), static_cast<float*>(pinned), 256));
  note(driver.free_device(device));
  note(driver.free_async(async, stream));
  note(driver.free_pinned(pinned));
  note(driver.free_managed(managed));
  void* const page = ::operator new(4096, std::align_val_t{4096});
  note(driver.register_host(page, 4096));
  note(driver.unregister_host(page));
  ::operator delete(page, std::align_val_t{4096});
  note(driver.destroy_stream(stream));
  int buffer = -1;
  note(driver.export_dma_buf(nullptr, 64_KiB, buffer));  // last: the simulated device has none
  return failed;
}

}  // namespace

TEST_CASE("faulty without faults behaves like its driver", "[driver][fault][memory_pools]") {
  test::driver_contract(faulty_bench{});
}

TEST_CASE("faulty forwards and counts every call of the contract once under its name",
          "[driver][fault][pages][memory_pools]") {
  sim_machine const machine(sharing_machine());
  fault_plan const plan;
  auto const failed = call_everything(faulty(machine.driver(), plan));
  REQUIRE(failed.size() == 1);
  CHECK(failed.front().kind == failure::unsupported);  // the simulated device has no dma-bufs
  CHECK(failed.front().call == std::string_view("export_dma_buf"));
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < driver_call_count; ++i) {
    INFO(name_of(driver_call_at(i)));
    sum += plan.calls(driver_call_at(i));
    CHECK(plan.calls(driver_call_at(i)) != 0);
    CHECK(machine.calls()[driver_call_at(i)] == plan.calls(driver_call_at(i)));
  }
  CHECK(plan.calls() == sum);
  CHECK(plan.failed() == 0);
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("faulty fails each call by name, with its typical failure",
          "[driver][fault][pages][memory_pools]") {
  for (std::size_t i = 0; i < driver_call_count; ++i) {
    driver_call const which = driver_call_at(i);
    INFO(name_of(which));
    sim_machine const machine(sharing_machine());
    fault_plan const plan;
    plan.fail(which, 1);
    auto const failed = call_everything(faulty(machine.driver(), plan));
    REQUIRE_FALSE(failed.empty());
    status const first = failed.front();
    CHECK(std::strcmp(first.call, name_of(which)) == 0);
    CHECK(std::strlen(first.name) > 0);
    CHECK(first.code != 0);
    bool const takes_memory = std::strncmp(name_of(which), "malloc", 6) == 0 ||
                              which == driver_call::create_pages || which == driver_call::reserve_range ||
                              which == driver_call::register_host;
    CHECK((first.kind == failure::out_of_memory) == takes_memory);
    CHECK(machine.calls()[which] == plan.calls(which) - 1);  // the driver did not receive the call
    CHECK(plan.failed() == 1);
    CHECK(plan.failed(which) == 1);
  }
}

TEST_CASE("faulty fails the k-th call, for every k", "[driver][fault][pages][memory_pools]") {
  for (std::uint64_t k = 1; k <= driver_call_count; ++k) {
    sim_machine const machine(sharing_machine());
    fault_plan const plan;
    plan.fail(k, {.kind = failure::no_device});
    auto const failed = call_everything(faulty(machine.driver(), plan));
    REQUIRE_FALSE(failed.empty());
    CHECK(failed.front().kind == failure::no_device);
    CHECK(plan.failed() == 1);
  }
}

TEST_CASE("faulty counts calls from when the fault is armed", "[driver][fault]") {
  faulty<no_driver> const driver;
  void* p = nullptr;
  REQUIRE(driver.malloc_device(1, p).ok());
  REQUIRE(driver.free_device(p).ok());
  driver.plan().fail(driver_call::malloc_device, 2);
  REQUIRE(driver.malloc_device(1, p).ok());
  REQUIRE(driver.free_device(p).ok());
  CHECK(driver.malloc_device(1, p).kind == failure::out_of_memory);
  REQUIRE(driver.malloc_device(1, p).ok());
  REQUIRE(driver.free_device(p).ok());
  CHECK(driver.plan().calls(driver_call::malloc_device) == 4);
}

TEST_CASE("faulty fails every later call with the same error after a sticky fault", "[driver][fault]") {
  faulty<no_driver> const driver;
  driver.plan().fail(driver_call::synchronize_device, 1,
                     {.kind = failure::unloading, .span = fault_span::for_good});
  void* p = nullptr;
  REQUIRE(driver.malloc_device(1, p).ok());
  CHECK(driver.synchronize_device().kind == failure::unloading);
  CHECK(driver.free_device(p).kind == failure::unloading);
  CHECK(driver.query_event(nullptr).kind == failure::unloading);
  driver.plan().disarm();
  CHECK(driver.free_device(p).ok());
  CHECK(driver.plan().failed() == 3);
}

TEST_CASE("faulty can do the work of a call and still fail it", "[driver][fault]") {
  sim_machine const machine;
  faulty const driver(machine.driver());
  void* p = nullptr;
  REQUIRE(driver.malloc_device(1, p).ok());
  driver.plan().fail(1, {.moment = fault_moment::after});
  CHECK(driver.free_device(p).kind == failure::other);
  CHECK(machine.leaks().blocks == 0);
}

TEST_CASE("fault plans hold several faults, and reset removes them", "[driver][fault]") {
  faulty<no_driver> const driver;
  driver.plan().fail(driver_call::synchronize_device, 1);
  driver.plan().fail(driver_call::synchronize_device, 3);
  CHECK_FALSE(driver.synchronize_device().ok());
  CHECK(driver.synchronize_device().ok());
  CHECK_FALSE(driver.synchronize_device().ok());
  driver.plan().fail(1);
  driver.plan().reset();
  CHECK(driver.plan().calls() == 0);
  CHECK(driver.plan().failed() == 0);
  CHECK(driver.synchronize_device().ok());
  CHECK(driver.plan().calls(driver_call::synchronize_device) == 1);
}

TEST_CASE("fault plans produce every kind of failure", "[driver][fault]") {
  for (failure const kind : {failure::not_ready, failure::out_of_memory, failure::unloading,
                             failure::unsupported, failure::no_device, failure::other}) {
    faulty<no_driver> const driver;
    driver.plan().fail(1, {.kind = kind});
    status const s = driver.synchronize_device();
    CHECK(s.kind == kind);
    CHECK(s.code != 0);
    CHECK_FALSE(s.ok());
  }
}

TEST_CASE("copies of faulty share a plan; two are equal if driver and plan are equal", "[driver][fault]") {
  faulty<no_driver> const a;
  faulty<no_driver> const copy = a;
  a.plan().fail(1);
  CHECK_FALSE(copy.synchronize_device().ok());
  CHECK(a.plan().failed() == 1);
  CHECK(a == copy);
  CHECK_FALSE(a == faulty<no_driver>{});
  sim_machine const machine;
  CHECK_FALSE(faulty(machine.driver(), a.plan()) == faulty(sim_machine{}.driver(), a.plan()));
}

TEST_CASE("a fault plan counts the calls of all threads", "[driver][fault]") {
  faulty<no_driver> const driver;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([driver] {
      for (int i = 0; i < 1000; ++i) (void)driver.synchronize_device();
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(driver.plan().calls() == 4000);
}

TEST_CASE("a fault of kind none does not fail", "[driver][fault]") {
  CHECK(detail::fault_status(failure::none, driver_call::create_event).ok());
  CHECK(detail::fault_status(failure::not_ready, driver_call::query_event).code == 600);
}
