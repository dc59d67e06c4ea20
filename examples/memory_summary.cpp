// SPDX-License-Identifier: Apache-2.0
// Memory statistics under the names of PyTorch.

#include <iostream>

#include "gpu_or_simulated.hpp"
#include "tarn/tarn.hpp"

using namespace tarn::literals;

void run(auto gpu) {
  auto pool = gpu.device_pool();
  auto const stream = gpu.stream();
  auto weights = tarn::make_device_buffer<std::byte>(pool, 300_MiB, stream);
  tarn::make_device_buffer<std::byte>(pool, 700, stream).clear();
  std::cout << tarn::memory_summary(pool);
  for (auto const& [key, value] : tarn::memory_stats(pool)) {
    if (key.starts_with("requested_bytes.all")) std::cout << key << " " << value << "\n";
  }
}

int main() {
  with_gpu_or_simulated([](auto gpu) { run(gpu); });
}
