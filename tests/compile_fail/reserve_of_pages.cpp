// SPDX-License-Identifier: Apache-2.0
// error: tarn: reserve() divides a limit on live bytes, which must be the uppermost layer: `auto memory = pool | tarn::limited{bytes};`, then reserve(memory, ...)
#include "tarn/sim.hpp"
#include "tarn/transfer/reservation.hpp"

int main() {
  tarn::sim_machine const machine;
  auto const memory = tarn::sim_pages{machine.driver()} | tarn::limited{100};
  (void)tarn::reserve(memory, 5);
}
