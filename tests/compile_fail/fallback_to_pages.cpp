// SPDX-License-Identifier: Apache-2.0
// error: tarn: fallback_to needs blocks; pages need a pool: fallback_to{pages | pooled{}}
#include "tarn/sim.hpp"
#include "tarn/tarn.hpp"

int main() {
  auto memory = tarn::sim_pool{} | tarn::fallback_to{tarn::sim_pages{}};
}
