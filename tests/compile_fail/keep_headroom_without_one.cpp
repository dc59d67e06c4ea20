// SPDX-License-Identifier: Apache-2.0
// error: tarn: keep_headroom needs a pool over headroom: cuda_pages{} | headroom{2_GiB} | pooled{}
#include "tarn/policy/headroom.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/sim.hpp"

int main() {
  tarn::sim_machine machine;
  auto memory = tarn::sim_pages{machine.driver()} | tarn::pooled{};
  (void)tarn::keep_headroom(memory);
}
