// SPDX-License-Identifier: Apache-2.0
// error: begin with a source
#include "tarn/sim.hpp"
#include "tarn/tarn.hpp"

int main() {
  tarn::sim_pool pool;
  auto stack = tarn::pooled{} | tarn::tracked{};
}
