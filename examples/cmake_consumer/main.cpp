// SPDX-License-Identifier: Apache-2.0
// A program outside of tarn's tree: a pool over host memory, so that it runs on any machine.

#include <tarn/tarn.hpp>

#include <cstdio>

int main() {
  auto memory = tarn::host_memory{} | tarn::pooled{} | tarn::tracked{};
  tarn::peak_scope peak{memory};
  {
    auto first = tarn::make_device_buffer<float>(memory, 1000, tarn::stream_ref{});
    auto second = tarn::make_device_buffer<float>(memory, 1000, tarn::stream_ref{});
  }
  std::printf("tarn %d.%d.%d: peak %zu bytes, %zu still live\n", TARN_VERSION / 10000,
              TARN_VERSION / 100 % 100, TARN_VERSION % 100, static_cast<std::size_t>(peak.peak_bytes()),
              static_cast<std::size_t>(tarn::memory_allocated(memory)));
}
