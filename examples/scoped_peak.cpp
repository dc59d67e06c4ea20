// SPDX-License-Identifier: Apache-2.0
// Peaks of nested scopes: each has its own high-water mark, and none disturbs another.
#include <iostream>

#include "tarn/sim.hpp"
#include "tarn/tarn.hpp"

int main() {
  tarn::sim_pool pool;
  auto weights = tarn::make_device_buffer<char>(pool, 64 << 20, tarn::stream_ref{});
  tarn::peak_scope step{pool};
  for (std::size_t const mib : {32, 8}) {
    tarn::peak_scope layer{pool};
    auto activations = tarn::make_device_buffer<char>(pool, mib << 20, tarn::stream_ref{});
    std::cout << "layer: peak " << (layer.peak_bytes() >> 20) << " MiB, " << (layer.peak_above_start() >> 20)
              << " MiB of it its own\n";
  }
  std::cout << "step:  peak " << (step.peak_bytes() >> 20) << " MiB, now " << (step.current_bytes() >> 20)
            << " MiB, blocks " << step.count() << "\n";
}
