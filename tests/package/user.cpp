// SPDX-License-Identifier: Apache-2.0
// What a user writes first.
#include <tarn/tarn.hpp>

int main() {
  auto memory = tarn::host_memory{} | tarn::pooled{} | tarn::tracked{};
  tarn::peak_scope peak{memory};
  auto buffer = tarn::make_device_buffer<float>(memory, 1000, tarn::stream_ref{});
  return buffer.size() == 1000 && peak.peak_bytes() >= buffer.bytes() ? 0 : 1;
}
