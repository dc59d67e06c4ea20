// SPDX-License-Identifier: Apache-2.0
// What the simulated GPU charges for calls.

#include "tarn/driver/sim/sim_cost.hpp"

#include "catch.hpp"
#include "tarn/driver/sim/sim_driver.hpp"

using namespace tarn;

TEST_CASE("sim_machine advances the virtual clock by the cost of calls", "[driver][sim][cost][pages]") {
  sim_machine const machine;
  sim_driver const driver = machine.driver();
  page_handle handle{};
  auto const before = machine.now();
  REQUIRE(driver.create_pages(20_MiB, handle).ok());
  CHECK(machine.now() - before == 10'400);
  REQUIRE(driver.destroy_pages(handle).ok());
  CHECK(machine.now() - before == 10'400 + 16'000);
  CHECK(machine.calls().driver_ns == 26'400);
  machine.advance(5);
  CHECK(machine.now() - before == 26'405);
  CHECK(machine.calls().driver_ns == 26'400);
}

TEST_CASE("sim_machine does not count waiting for work as driver time", "[driver][sim][cost]") {
  sim_machine const machine;
  sim_driver const driver = machine.driver();
  REQUIRE(machine.launch({}, 1'000'000).ok());
  machine.reset_calls();
  auto const before = machine.now();
  REQUIRE(driver.synchronize_stream({}).ok());
  CHECK(machine.calls().driver_ns == sim_costs{}.synchronize);
  CHECK(machine.now() - before == 1'000'000);  // the launch and the call itself took time meanwhile
}

TEST_CASE("sim_machine charges for each kind of memory what it costs to free it", "[driver][sim][cost]") {
  sim_machine const machine;
  sim_driver const driver = machine.driver();
  auto const cost_of = [&](auto const& call) {
    auto const before = machine.calls().driver_ns;
    REQUIRE(call().ok());
    return machine.calls().driver_ns - before;
  };
  void* p = nullptr;
  REQUIRE(driver.malloc_device(64_MiB, p).ok());
  CHECK(cost_of([&] { return driver.free_device(p); }) == 70'000);
  REQUIRE(driver.malloc_pinned(1_MiB, p).ok());
  CHECK(cost_of([&] { return driver.free_pinned(p); }) == 113'000);
  REQUIRE(driver.malloc_managed(64_MiB, p).ok());
  CHECK(cost_of([&] { return driver.free_managed(p); }) == 40'000);
}

TEST_CASE("sim_costs matches the measured points", "[driver][sim][cost]") {
  constexpr sim_costs costs;
  CHECK(costs.create_pages.at(2_MiB) == 9'800);
  CHECK(costs.create_pages.at(1) == 9'800);
  CHECK(costs.create_pages.at(1_GiB) == 17'000);
  CHECK(costs.create_pages.at(110_MiB) == 11'700);
  CHECK(costs.destroy_pages.at(1_GiB) == 338'000);
  CHECK(costs.destroy_pages.at(2_GiB) > 2 * 300'000);
  CHECK(costs.malloc_device.at(64_MiB) == 70'000);
  constexpr sim_costs nothing = sim_costs::nothing();
  CHECK(nothing.create_pages.at(1_TiB) == 0);
  CHECK(nothing.malloc_pinned.at(1_TiB) == 0);
}
