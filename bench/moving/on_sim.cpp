// SPDX-License-Identifier: Apache-2.0
// Runs on virtual time: work of the host itself, such as filling slots, takes no time.
#include "moving/loops.hpp"
#include "tarn/driver/sim/sim_driver.hpp"

namespace tarn::bench {

namespace {

struct sim_place {
  using driver_type = sim_driver;
  static constexpr char const* name = "sim";
  sim_machine machine;
  [[nodiscard]] sim_driver driver() const { return machine.driver(); }
  [[nodiscard]] double now() const { return static_cast<double>(machine.now()) * 1e-9; }
};

}  // namespace

void measure_sim(extent const& e, figure_handler const& on_figure) {
  loops<sim_place>(sim_place{}, e, on_figure).run();
}

}  // namespace tarn::bench
