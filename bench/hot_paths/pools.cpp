// SPDX-License-Identifier: Apache-2.0
// The pools of tarn_hot_paths: tarn on each device, and what needs no program of its own.
#include "hot_paths/pools.hpp"

#include "peers/host_malloc.hpp"
#include "peers/mimalloc.hpp"
#include "peers/simulated_device.hpp"
#include "peers/std_pmr.hpp"
#include "peers/tarn_pool.hpp"

namespace tarn::bench {

std::vector<entry> all_entries(bool cuda_found) {
  std::vector<entry> all;
#if defined(TARN_BENCH_CUDA)
  if (cuda_found) add_cuda(all);
#else
  (void)cuda_found;
#endif
  add_works<tarn_pool<simulated_device, with_defaults>>(all);
  add_works<tarn_pool<simulated_device, with_tracking>>(all);
  add_works<tarn_pool<simulated_device, with_watching>>(all);
  if (mimalloc::installed()) add_works<mimalloc>(all);
  add_works<host_malloc>(all);
  add_works<std_pmr>(all);
  add_works<std_pmr_sync>(all);
  return all;
}

}  // namespace tarn::bench
