// SPDX-License-Identifier: Apache-2.0
#include "replay/pools.hpp"

namespace tarn::bench {

std::vector<pool_entry> all_pools() {
  std::vector<pool_entry> all;
  auto const add = [&](std::vector<pool_entry> const& more) {
    all.insert(all.end(), more.begin(), more.end());
  };
#if defined(TARN_BENCH_TORCH)
  add(torch_pools());
#else
  add(simulated_pools());
#if defined(TARN_BENCH_CUDA)
  add(cuda_pools());
#endif
#if defined(TARN_BENCH_RMM)
  add(rmm_pools());
#endif
  add(host_pools());
#endif
  return all;
}

}  // namespace tarn::bench
