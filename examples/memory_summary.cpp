// SPDX-License-Identifier: Apache-2.0
// Memory statistics under the names of PyTorch.

#include <tarn/diagnostics.hpp>
#include <tarn/tarn.hpp>

#include <iostream>

using namespace tarn::literals;

int main() {
  tarn::device_pool pool;
  tarn::stream const stream;
  auto weights = tarn::make_device_buffer<std::byte>(pool, 300_MiB, stream);
  tarn::make_device_buffer<std::byte>(pool, 700, stream).reset();
  std::cout << tarn::memory_summary(pool);
  for (auto const& [key, value] : tarn::memory_stats(pool)) {
    if (key.starts_with("requested_bytes.all")) std::cout << key << " " << value << "\n";
  }
}
