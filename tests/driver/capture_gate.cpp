// SPDX-License-Identifier: Apache-2.0
#include "tarn/driver/capture_gate.hpp"
#include "tarn/driver/all_work.hpp"

#include <atomic>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "child_process.hpp"
#include "driver/calling_driver.hpp"
#include "driver/faulty.hpp"
#include "tarn/driver/sim/sim_driver.hpp"

using namespace tarn;

TEST_CASE("calls that would invalidate a capture are refused without the call while one is known",
          "[capture_gate]") {
  sim_machine const machine;
  sim_marking_driver const driver(machine.driver());
  event_handle event = nullptr;
  REQUIRE(driver.create_event(event).ok());
  CHECK(detail::record_all_work(driver, event).ok());
  CHECK(detail::wait_for_all_work(driver).ok());
  machine.reset_calls();
  detail::capture_gate::begin_capture();
  CHECK(detail::is_capture_error(detail::record_all_work(driver, event)));
  CHECK(detail::is_capture_error(detail::wait_for_all_work(driver)));
  CHECK(machine.calls().total() == 0);
  detail::capture_gate::begin_capture();
  detail::capture_gate::end_capture();
  CHECK_FALSE(detail::record_all_work(driver, event).ok());
  detail::capture_gate::end_capture();
  CHECK(detail::record_all_work(driver, event).ok());
  CHECK_FALSE(detail::capture_gate::has_captures());
  CHECK(driver.destroy_event(event).ok());
}

TEST_CASE("a capture begins only when no such call is in progress", "[capture_gate][threads]") {
  std::atomic<int> capturing{0};
  std::atomic<int> inside{0};
  std::atomic<int> broken{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 2000; ++i) {
        if (t == 0) {
          detail::capture_gate::begin_capture();
          ++capturing;
          if (inside != 0) ++broken;
          --capturing;
          detail::capture_gate::end_capture();
        } else if (detail::capture_gate::passage const passage; passage) {
          ++inside;
          if (capturing != 0) ++broken;
          --inside;
        }
      }
    });
  }
  for (auto& t : threads) t.join();
  CHECK(broken == 0);
}

TEST_CASE("a forked child has no capture that another thread of the parent began or ended",
          "[capture_gate][at_fork]") {
  using detail::capture_gate;
  int ended = -1, began = -1;
  std::thread([&] {
    capture_gate::begin_capture();
    std::thread([] { capture_gate::end_capture(false); }).join();
    ended = child_of([] {
      capture_gate::forget_other_threads();
      return !capture_gate::has_captures();
    });
  }).join();
  CHECK(ended == 0);
  std::thread([] { capture_gate::begin_capture(); }).join();
  began = child_of([] {
    capture_gate::forget_other_threads();
    capture_gate::end_capture(false);
    return !capture_gate::has_captures();
  });
  CHECK(began == 0);
  CHECK(capture_gate::has_captures());
  capture_gate::end_capture(false);
  CHECK_FALSE(capture_gate::has_captures());
}

TEST_CASE("wait_for_all_work reports a capture that begins while the driver fails",
          "[capture_gate][faults]") {
  // The first device cannot be waited for by an event, or not at all.
  auto const [last, devices] =
      GENERATE(std::pair(driver_call::create_event, 1), std::pair(driver_call::create_event, 2),
               std::pair(driver_call::synchronize_device, 2));
  CAPTURE(devices);
  sim_machine const machine{{.devices = devices}};
  machine.driver().devices_of_streams().use(device_id{devices - 1});
  fault_plan const plan;
  plan.fail(driver_call::create_event, 1);
  if (last == driver_call::synchronize_device) plan.fail(last, 1);
  std::function<void()> next = [] { std::thread([] { detail::capture_gate::begin_capture(); }).join(); };
  using failing = faulty<sim_marking_driver>;
  tarn_test::calling_driver<failing> const driver(failing(sim_marking_driver(machine.driver()), plan), last,
                                                  next);
  CHECK(detail::is_capture_error(detail::wait_for_all_work(driver)));
  CHECK(detail::capture_gate::has_captures());
  detail::capture_gate::end_capture(false);
  CHECK(detail::wait_for_all_work(driver).ok());
}
