// SPDX-License-Identifier: Apache-2.0
// error: no stream: write tarn::stream_ref{} for the default stream
#include "tarn/sim.hpp"
#include "tarn/tarn.hpp"

int main() {
  tarn::sim_pool pool;
  tarn::device_buffer<float, tarn::sim_pool> buffer(pool, 10);
}
