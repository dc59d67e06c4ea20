// SPDX-License-Identifier: Apache-2.0
// error: copies are explicit: buffer.clone(stream), or copy_from()
#include "tarn/sim.hpp"
#include "tarn/tarn.hpp"

int main() {
  auto buffer = tarn::make_device_buffer<float>(tarn::sim_pool{}, 10, tarn::stream_ref{});
  auto copy = buffer;
}
