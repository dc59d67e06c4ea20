// SPDX-License-Identifier: Apache-2.0
// error: tarn: tracked counts blocks; put it over the pool: pages | pooled{} | tracked{}
#include "tarn/sim.hpp"
#include "tarn/tarn.hpp"

int main() {
  tarn::sim_pool pool;
  auto tracked = tarn::sim_pages{} | tarn::tracked{};
}
