// SPDX-License-Identifier: Apache-2.0
// Records a trace of the program itself: its output can be passed to tarn_replay and compared over pools.

#include <cstdio>

#include "gpu_or_simulated.hpp"
#include "tarn/tarn.hpp"

void run(auto gpu) {
  auto memory = gpu.cuda_pages() | tarn::pooled{} | tarn::traced{stdout};
  auto const copies = gpu.stream();
  auto a = tarn::make_device_buffer<float>(memory, 1000, tarn::stream_ref{});
  auto b = tarn::make_device_buffer<float>(memory, 500, copies);
  a.clear();
  auto c = tarn::make_device_buffer<double>(memory, 10, tarn::stream_ref{});
}

int main() {
  with_gpu_or_simulated([](auto gpu) { run(gpu); });
}
