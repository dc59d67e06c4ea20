// SPDX-License-Identifier: Apache-2.0
// error: tarn: headroom is memory of a device; this source has host memory, use limited{} for it
#include "tarn/policy/headroom.hpp"
#include "tarn/sim.hpp"

int main() {
  tarn::sim_machine machine;
  auto memory = tarn::sim_pinned_host{machine.driver()} | tarn::headroom{1000};
}
