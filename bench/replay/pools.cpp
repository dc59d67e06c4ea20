// SPDX-License-Identifier: Apache-2.0
// The pools of tarn_replay: tarn on each device, and those that need no separate program.
#include "replay/pools.hpp"

namespace tarn::bench {

std::vector<pool_entry> all_pools() {
  std::vector<pool_entry> all = simulated_pools();
  auto const add = [&](std::vector<pool_entry> const& more) {
    all.insert(all.end(), more.begin(), more.end());
  };
#if defined(TARN_BENCH_CUDA)
  add(cuda_pools());
#endif
  add(host_pools());
  return all;
}

}  // namespace tarn::bench
