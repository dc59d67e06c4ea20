// SPDX-License-Identifier: Apache-2.0
// Records a trace of the program itself: its output can be passed to tarn_replay and compared over pools.

#include <tarn/tarn.hpp>

#include <cstdio>

int main() {
  auto memory = tarn::cuda_pages{} | tarn::pooled{} | tarn::traced{stdout};
  tarn::stream const copies;
  auto a = tarn::make_device_buffer<float>(memory, 1000, tarn::stream_ref{});
  auto b = tarn::make_device_buffer<float>(memory, 500, copies);
  a.reset();
  auto c = tarn::make_device_buffer<double>(memory, 10, tarn::stream_ref{});
}
