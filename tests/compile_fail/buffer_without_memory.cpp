// SPDX-License-Identifier: Apache-2.0
// error: pass a pool first
#include "tarn/sim.hpp"
#include "tarn/tarn.hpp"

int main() {
  tarn::sim_pool pool;
  auto buffer = tarn::make_device_buffer<float>(10, tarn::stream_ref{});
}
