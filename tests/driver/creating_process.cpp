// SPDX-License-Identifier: Apache-2.0
#include "tarn/driver/creating_process.hpp"

#include "catch.hpp"
#include "child_process.hpp"
#include "tarn/sim.hpp"

using namespace tarn;

TEST_CASE("creating_process: a forked child may use what was created only if the driver survives the fork",
          "[driver][at_fork]") {
  detail::creating_process const process;
  sim_machine const refusing(sim_options{.backing = sim_backing::address_only});
  sim_machine const working(sim_options{.backing = sim_backing::address_only, .forked = sim_fork::works});
  CHECK(process.may_use(refusing.driver(0)));
  CHECK(process.may_use(working.driver(0)));
  CHECK(child_of([&] { return !process.may_use(refusing.driver(0)); }) == 0);
  CHECK(child_of([&] { return process.may_use(working.driver(0)); }) == 0);
}
