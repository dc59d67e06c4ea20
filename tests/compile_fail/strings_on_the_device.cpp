// SPDX-License-Identifier: Apache-2.0
// error: T must be trivially copyable
#include <string>

#include "tarn/raii/device_buffer.hpp"
#include "tarn/source/host_memory.hpp"

int main() {
  auto b = tarn::make_device_buffer<std::string>(tarn::host_memory{}, 3, tarn::stream_ref{});
}
