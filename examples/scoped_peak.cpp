// SPDX-License-Identifier: Apache-2.0
// Peaks of nested scopes: each measures its own and does not affect the others.

#include <tarn/tarn.hpp>

#include <iostream>

using namespace tarn::literals;

int main() {
  tarn::device_pool pool;
  tarn::stream const stream;
  auto weights = tarn::make_device_buffer<std::byte>(pool, 100_MiB, stream);
  tarn::peak_scope training{pool};
  for (std::size_t batch : {10_MiB, 40_MiB, 20_MiB}) {
    tarn::peak_scope step{pool};
    auto activations = tarn::make_device_buffer<std::byte>(pool, batch, stream);
    std::cout << "step: peak " << (step.peak_bytes() >> 20) << " MiB, above its start "
              << (step.peak_above_start() >> 20) << " MiB, " << step.count() << " block\n";
  }
  std::cout << "training: peak " << (training.peak_bytes() >> 20) << " MiB, now "
            << (training.current_bytes() >> 20) << " MiB\n"
            << "the pool: max_memory_allocated " << (tarn::max_memory_allocated(pool) >> 20) << " MiB\n";
}
