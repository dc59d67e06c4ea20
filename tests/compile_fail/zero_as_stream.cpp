// SPDX-License-Identifier: Apache-2.0
// error: no stream: write tarn::stream_ref{} for the default stream
#include "tarn/sim.hpp"
#include "tarn/tarn.hpp"

int main() {
  tarn::sim_pool pool;
  auto buffer = tarn::make_device_buffer<float>(pool, 10, 0);
}
