// SPDX-License-Identifier: Apache-2.0
// error: tarn: free_on takes the memory of its owners; pass std::move(owner)
#include "tarn/source/host_memory.hpp"
#include "tarn/transfer/free_on.hpp"

int main() {
  auto weights = tarn::make_device_buffer<float>(tarn::host_memory{}, 5, tarn::stream_ref{});
  tarn::free_on(weights, tarn::stream_ref{});
}
