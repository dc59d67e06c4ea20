// SPDX-License-Identifier: Apache-2.0
// error: tarn: memory that fallback_to adds must be usable wherever the first is
#include "tarn/sim.hpp"
#include "tarn/tarn.hpp"

int main() {
  auto memory = tarn::sim_pool{} | tarn::fallback_to{tarn::host_memory{} | tarn::pooled{}};
}
