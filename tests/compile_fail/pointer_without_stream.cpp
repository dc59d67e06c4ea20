// SPDX-License-Identifier: Apache-2.0
// error: add a stream: tarn::stream_ref{} is the default
#include "tarn/sim.hpp"
#include "tarn/tarn.hpp"

int main() {
  tarn::sim_pool pool;
  auto pointer = tarn::make_device<float[]>(pool, 10);
}
