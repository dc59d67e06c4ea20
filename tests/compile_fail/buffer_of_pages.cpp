// SPDX-License-Identifier: Apache-2.0
// error: pages need one: pages | pooled{}
#include "tarn/sim.hpp"
#include "tarn/tarn.hpp"

int main() {
  tarn::sim_pool pool;
  auto buffer = tarn::make_device_buffer<float>(tarn::sim_pages{}, 10, tarn::stream_ref{});
}
