// SPDX-License-Identifier: Apache-2.0
// Records a trace of the program itself: its output can be passed to tarn_replay and compared over pools.

#include <cstdio>

#include "tarn/sim.hpp"
#include "tarn/tarn.hpp"

int main() {
  auto memory = tarn::sim_pages{} | tarn::pooled{} | tarn::traced{stdout};
  tarn::basic_stream copies{tarn::sim_driver{}};
  auto a = tarn::make_device_buffer<float>(memory, 1000, tarn::stream_ref{});
  auto b = tarn::make_device_buffer<float>(memory, 500, copies);
  a.clear();
  auto c = tarn::make_device_buffer<double>(memory, 10, tarn::stream_ref{});
}
