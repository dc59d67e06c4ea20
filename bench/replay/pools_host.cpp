// SPDX-License-Identifier: Apache-2.0
#include "peers/host_malloc.hpp"
#include "peers/std_pmr.hpp"
#include "replay/pools.hpp"
#if defined(TARN_BENCH_MIMALLOC)
#include "peers/mimalloc.hpp"
#endif

namespace tarn::bench {

std::vector<pool_entry> host_pools() {
  return {
    entry_of<host_malloc>(), entry_of<std_pmr>(), entry_of<std_pmr_sync>(),
#if defined(TARN_BENCH_MIMALLOC)
        entry_of<mimalloc>()
#endif
  };
}

}  // namespace tarn::bench
