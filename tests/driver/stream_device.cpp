// SPDX-License-Identifier: Apache-2.0
#include "tarn/driver/stream_device.hpp"

#include <cstring>
#include <vector>

#include "catch.hpp"
#include "driver/faulty.hpp"
#include "tarn/driver/all_work.hpp"
#include "tarn/driver/no_driver.hpp"
#include "tarn/driver/sim/sim_driver.hpp"
#include "tarn/raii/stream.hpp"

using namespace tarn;

namespace {

sim_options devices(int count) {
  sim_options o;
  o.devices = count;
  return o;
}

}  // namespace

static_assert(detail::multi_device_driver<sim_driver> && detail::multi_device_driver<sim_marking_driver> &&
              detail::multi_device_driver<faulty<sim_driver>> && !detail::multi_device_driver<no_driver>);

TEST_CASE("stream_devices finds the device of an identity until another one takes its place",
          "[stream_device]") {
  detail::stream_devices all;
  CHECK(all.find(5) == detail::unknown_device);
  CHECK(all.find(0) == detail::unknown_device);
  all.note(5, device_id{0});
  all.note(6, device_id{3});
  CHECK(all.find(5) == device_id{0});
  CHECK(all.find(6) == device_id{3});
  all.note(5 + 2048, device_id{1});
  CHECK(all.find(5) == detail::unknown_device);
  CHECK(all.find(5 + 2048) == device_id{1});
  // Too large to be noted, or not devices.
  all.note(~stream_id{0}, device_id{2});
  CHECK(all.find(~stream_id{0}) == detail::unknown_device);
  all.note(7, device_id{-1});
  CHECK(all.find(7) == detail::unknown_device);
  all.note(7, device_id{256});
  CHECK(all.find(7) == detail::unknown_device);
  std::vector<int> in_use;
  all.for_each_in_use([&](device_id d) { in_use.push_back(d.value); });
  CHECK((in_use == std::vector<int>{0, 1, 2, 3}));
  all.use(device_id{200});
  in_use.clear();
  all.for_each_in_use([&](device_id d) { in_use.push_back(d.value); });
  CHECK((in_use == std::vector<int>{0, 1, 2, 3, 200}));
}

TEST_CASE("find_device asks once for each stream, and not at all on a machine of one device",
          "[stream_device]") {
  int const count = GENERATE(1, 2);
  sim_machine const machine(devices(count));
  sim_driver const driver = machine.driver();
  stream_ref s;
  REQUIRE(machine.create_blocking_stream(device_id{count - 1}, s).ok());  // tarn has not made it
  machine.reset_calls();
  for (int i = 0; i < 3; ++i) (void)detail::find_device(driver, s);
  CHECK(machine.calls()[driver_call::ask_device] == (count == 1 ? 0U : 1U));
  CHECK(machine.calls()[driver_call::is_capturing] == (count == 1 ? 0U : 1U));
  CHECK(detail::device_of(driver, s) == device_id{count - 1});
  CHECK(detail::driver_of(driver, s).device() == device_id{count - 1});
  stream_ref other;
  REQUIRE(machine.create_blocking_stream(device_id{count - 1}, other).ok());
  status known;
  stream_ref const identified =
      detail::identify_and_learn<detail::default_streams::of_own_device>(driver, other, known);
  CHECK(detail::device_of(driver, identified) == device_id{count - 1});
  stream_ref made;
  REQUIRE(machine.driver(device_id{count - 1}).create_stream(made).ok());
  machine.reset_calls();
  CHECK(detail::device_of(driver, made) == device_id{count - 1});
  CHECK(machine.calls().total() == 0);
}

TEST_CASE("find_device asks nothing about a stream that is being captured", "[stream_device][capture]") {
  sim_machine const machine(devices(2));
  sim_driver const driver = machine.driver();
  stream_ref s;
  REQUIRE(machine.create_blocking_stream(device_id{1}, s).ok());
  REQUIRE(machine.begin_capture(s).ok());
  (void)detail::find_device(driver, s);
  CHECK(detail::device_of(driver, s) == detail::unknown_device);
  CHECK(detail::driver_of(driver, s).device() == device_id{0});
  sim_graph graph;
  CHECK(machine.end_capture(s, graph).ok());
  (void)detail::find_device(driver, s);
  CHECK(detail::device_of(driver, s) == device_id{1});
}

TEST_CASE("find_device leaves the device unknown where the driver refuses the question", "[stream_device]") {
  sim_machine const machine(devices(2));
  fault_plan const plan;
  faulty<sim_driver> const driver(machine.driver(), plan);
  stream_ref s;
  REQUIRE(machine.create_blocking_stream(device_id{1}, s).ok());
  plan.fail(GENERATE(driver_call::ask_device, driver_call::is_capturing), 1);
  (void)detail::find_device(driver, s);
  CHECK(detail::device_of(driver, s) == detail::unknown_device);
  (void)detail::find_device(driver, s);
  CHECK(detail::device_of(driver, s) == device_id{1});
}

TEST_CASE("a default stream with an identity is that of the device which the identity names",
          "[stream_device]") {
  sim_machine const machine(devices(2));
  sim_driver const first = machine.driver(device_id{0});
  sim_driver const second = machine.driver(device_id{1});
  for (std::uintptr_t const handle : {0U, 1U, 2U}) {
    stream_ref const named = stream_ref::from(reinterpret_cast<void*>(handle));
    stream_id id = 0;
    REQUIRE(second.identify(named, id).ok());
    stream_ref const of_second = stream_ref::from(named.handle(), id);
    CHECK(detail::device_of(first, of_second) == device_id{1});
    CHECK(detail::device_of(first, named) == device_id{0});
    REQUIRE(second.launch(of_second, 1'000'000).ok());
    sim_nanoseconds const before = machine.now();
    CHECK(first.synchronize_stream(named).ok());
    CHECK(machine.now() - before < 1'000'000);
    CHECK(first.synchronize_stream(of_second).ok());
    CHECK(machine.now() - before >= 900'000);
  }
}

TEST_CASE("identify_named takes the current device's default stream, if that device is used at all",
          "[stream_device]") {
  using detail::default_streams;
  sim_machine const machine(devices(2));
  sim_driver const driver = machine.driver(device_id{0});
  stream_id own = 0;
  stream_id other = 0;
  REQUIRE(driver.identify({}, own).ok());
  REQUIRE(sim_driver::set_current_device(device_id{1}).ok());
  stream_id id = 0;
  CHECK(detail::identify_named<default_streams::of_current_device>(driver, {}, id).ok());
  CHECK(id == own);  // nothing has used device 1: no work is there, and no call of tarn makes a context there
  CHECK(machine.usage(device_id{1}).used == 0);
  REQUIRE(machine.driver(device_id{1}).identify({}, other).ok());
  CHECK(detail::identify_named<default_streams::of_current_device>(driver, {}, id).ok());
  CHECK(id == own);  // an identity alone makes no context
  REQUIRE(machine.driver(device_id{1}).synchronize_device().ok());
  CHECK(detail::identify_named<default_streams::of_current_device>(driver, {}, id).ok());
  CHECK(id == other);
  CHECK(detail::identify_named<default_streams::of_own_device>(driver, {}, id).ok());
  CHECK(id == own);
  REQUIRE(sim_driver::set_current_device(device_id{0}).ok());
}

TEST_CASE("make_wait orders streams of two devices", "[stream_device]") {
  sim_options o = devices(2);
  o.checks = sim_checks::stream_order;
  sim_machine const machine(o);
  sim_driver const first = machine.driver(device_id{0});
  sim_driver const second = machine.driver(device_id{1});
  stream_ref a;
  stream_ref b;
  REQUIRE((first.create_stream(a).ok() && second.create_stream(b).ok()));
  REQUIRE(first.launch(a, 1000).ok());
  CHECK_FALSE(detail::make_wait(second, b, second, a).ok());  // an event of another device
  CHECK_FALSE(machine.is_ordered(a, b));
  CHECK(detail::make_wait(second, b, first, a).ok());
  CHECK(machine.is_ordered(a, b));
  CHECK(machine.leaks().events == 0);
}

TEST_CASE("fill_in_order sets bytes in the order of a stream of another device", "[stream_device]") {
  sim_options o = devices(2);
  o.checks = sim_checks::stream_order;
  o.backing = sim_backing::host_backed;
  sim_machine const machine(o);
  sim_driver const driver = machine.driver(device_id{0});
  stream_ref s;
  REQUIRE(machine.driver(device_id{1}).create_stream(s).ok());
  void* p = nullptr;
  REQUIRE(driver.malloc_device(64, p).ok());
  auto const write = [p] { std::memset(p, 1, 64); };
  REQUIRE(machine.driver(device_id{1}).launch(s, 1'000'000, {{p, 64, sim_use::writes}}, write).ok());
  CHECK_FALSE(driver.fill(s, p, 1, 64).ok());  // the stream is not of the driver's device
  CHECK(detail::fill_in_order(driver, s, p, 7, 64).ok());
  unsigned char seen[64] = {};
  REQUIRE(driver.copy(s, seen, p, 64).ok());
  REQUIRE(driver.synchronize_stream(s).ok());
  CHECK(seen[0] == 7);
  CHECK(seen[63] == 7);
  CHECK(machine.findings().empty());
  CHECK(machine.leaks().events == 0);
  CHECK(driver.free_device(p).ok());
}

TEST_CASE("fill_in_order waits on the host where a stream of another device cannot wait",
          "[stream_device][faults]") {
  sim_options o = devices(2);
  o.backing = sim_backing::host_backed;
  sim_machine const machine(o);
  fault_plan const plan;
  faulty<sim_driver> const driver(machine.driver(device_id{0}), plan);
  stream_ref s;
  REQUIRE(machine.driver(device_id{1}).create_stream(s).ok());
  void* p = nullptr;
  REQUIRE(driver.malloc_device(64, p).ok());
  REQUIRE(machine.driver(device_id{1}).launch(s, 1'000'000, {}, [p] { std::memset(p, 1, 64); }).ok());
  plan.fail(GENERATE(driver_call::create_event, driver_call::record_event, driver_call::wait_event), 2);
  CHECK(detail::fill_in_order(driver, s, p, 7, 64).ok());
  CHECK(plan.failed() == 1);
  // The caller may write now: the fill is over.
  CHECK(static_cast<unsigned char const*>(p)[0] == 7);
  CHECK(static_cast<unsigned char const*>(p)[63] == 7);
  CHECK(machine.leaks().events == 0);
  CHECK(driver.free_device(p).ok());
}

TEST_CASE("all work of the devices in use is marked and waited for, and no other device is called",
          "[stream_device][all_work]") {
  sim_machine const machine(devices(4));
  sim_marking_driver const driver(machine.driver(device_id{0}));
  sim_driver const second = machine.driver(device_id{2});
  stream_ref later;
  stream_ref s;
  REQUIRE((driver.create_stream(later).ok() && second.create_stream(s).ok()));
  REQUIRE(second.launch(s, 5'000'000).ok());
  REQUIRE(second.destroy_stream(s).ok());
  event_handle event = nullptr;
  REQUIRE(driver.create_event(event).ok());
  SECTION("record_all_work_in_use") {
    CHECK(detail::record_all_work_in_use(driver, event).ok());
    CHECK(driver.query_event(event).kind == failure::not_ready);
    CHECK(driver.synchronize_event(event).ok());
    CHECK(machine.now() >= 5'000'000);
  }
  SECTION("order_behind_lost") {
    CHECK(detail::order_behind_lost(driver, later).ok());
    CHECK(driver.synchronize_stream(later).ok());
    CHECK(machine.now() >= 5'000'000);
  }
  SECTION("wait_for_all_work") {
    if (GENERATE(false, true)) {
      CHECK(detail::wait_for_all_work(driver).ok());
    } else {
      CHECK(detail::wait_for_all_work(machine.driver(device_id{0})).ok());  // cannot mark
    }
    CHECK(machine.now() >= 5'000'000);
  }
  CHECK(driver.destroy_event(event).ok());
  CHECK(machine.leaks().events == 0);
  CHECK_FALSE(machine.driver(device_id{9}).synchronize_device().ok());  // no device is named so
  std::vector<int> in_use;
  driver.devices_of_streams().for_each_in_use([&](device_id d) { in_use.push_back(d.value); });
  CHECK((in_use == std::vector<int>{0, 2}));
}
