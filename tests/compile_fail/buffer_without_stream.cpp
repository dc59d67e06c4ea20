// SPDX-License-Identifier: Apache-2.0
// error: add a stream: tarn::stream_ref{} is the default
#include "tarn/sim.hpp"
#include "tarn/tarn.hpp"

int main() {
  tarn::sim_pool pool;
  auto buffer = tarn::make_device_buffer<float>(pool, 10);
}
