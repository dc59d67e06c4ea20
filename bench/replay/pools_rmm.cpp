// SPDX-License-Identifier: Apache-2.0
// A translation unit of its own: RMM brings its own CCCL, newer than the toolkit's.
#include "peers/rmm.hpp"
#include "replay/pools.hpp"

namespace tarn::bench {

std::vector<pool_entry> rmm_pools() {
  return {entry_of<rmm_pool>(), entry_of<rmm_arena>(), entry_of<rmm_binning>()};
}

}  // namespace tarn::bench
