// SPDX-License-Identifier: Apache-2.0
#include "peers/host_malloc.hpp"
#include "peers/mimalloc.hpp"
#include "peers/std_pmr.hpp"
#include "replay/pools.hpp"

namespace tarn::bench {

std::vector<pool_entry> host_pools() {
  std::vector<pool_entry> pools{entry_of<host_malloc>(), entry_of<std_pmr>(), entry_of<std_pmr_sync>()};
  if (mimalloc::installed()) pools.push_back(entry_of<mimalloc>());
  return pools;
}

}  // namespace tarn::bench
