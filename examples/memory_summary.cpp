// SPDX-License-Identifier: Apache-2.0
// Memory statistics under the names of PyTorch.

#include <iostream>

#include "tarn/sim.hpp"
#include "tarn/tarn.hpp"

using namespace tarn::literals;

int main() {
  tarn::sim_pool pool;
  auto weights = tarn::make_device_buffer<std::byte>(pool, 300_MiB, tarn::stream_ref{});
  tarn::make_device_buffer<std::byte>(pool, 700, tarn::stream_ref{}).clear();
  std::cout << tarn::memory_summary(pool);
  for (auto const& [key, value] : tarn::memory_stats(pool)) {
    if (key.starts_with("requested_bytes.all")) std::cout << key << " " << value << "\n";
  }
}
