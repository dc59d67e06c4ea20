// SPDX-License-Identifier: Apache-2.0
// The pools of tarn_hot_paths: tarn on each device, and those that need no separate program.
#include "hot_paths/pools.hpp"

#include "hot_paths/limits.hpp"
#include "peers/host_malloc.hpp"
#include "peers/mimalloc.hpp"
#include "peers/simulated_device.hpp"
#include "peers/stack_arena.hpp"
#include "peers/std_pmr.hpp"
#include "peers/tarn_pool.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/source/host_memory.hpp"

namespace tarn::bench {

namespace {

/// One thread uses many pools of host memory in turn: measures the lookup of the thread's cache.
void many_pools(plan const& p, row& r, std::size_t count) {
  using pool_type = decltype(host_memory{} | pooled{});
  std::vector<std::unique_ptr<pool_type>> pools;
  for (std::size_t i = 0; i < count; ++i) pools.emplace_back(new pool_type(host_memory{} | pooled{}));
  std::size_t at = 0;
  r.pair = time_batches(p, [&](std::uint64_t pairs) {
    return time_loop(pairs, [&] {
      pool_type& pool = *pools[at];
      at = at + 1 < count ? at + 1 : 0;
      void* const block = pool.allocate_sync(1000);
      keep(block);
      pool.deallocate_sync(block, 1000);
    });
  });
}

}  // namespace

std::vector<entry> all_entries(bool cuda_found) {
  std::vector<entry> all;
#if defined(TARN_BENCH_CUDA)
  if (cuda_found) add_cuda(all);
#else
  (void)cuda_found;
#endif
  add_works<tarn_pool<simulated_device, with_defaults>>(all);
  add_works<tarn_pool<simulated_device, with_tracking>>(all);
  add_works<tarn_pool<simulated_device, with_exact_peaks>>(all);
  add_works<tarn_pool<simulated_device, with_watching>>(all);
  add_works<stack_arena<simulated_device>>(all);
  add_limits<simulated_device>(all);
  for (std::size_t const count : {1U, 2U, 9U, 64U, 1000U}) {
    all.push_back({"pools/" + std::to_string(count), "tarn_host", "host", 1,
                   [count](plan const& p, row& r) { many_pools(p, r, count); }});
  }
  if (mimalloc::installed()) add_works<mimalloc>(all);
  add_works<host_malloc>(all);
  add_works<std_pmr>(all);
  add_works<std_pmr_sync>(all);
  return all;
}

}  // namespace tarn::bench
