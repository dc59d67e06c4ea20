// SPDX-License-Identifier: Apache-2.0
// The pools of tarn_replay_rmm. A separate program, since RMM brings its own CCCL and a refused request may
// end it.
#include "peers/cccl.hpp"
#include "peers/rmm.hpp"
#include "replay/pools.hpp"

namespace tarn::bench {

std::vector<pool_entry> all_pools() {
  return {entry_of<rmm_pool>(), entry_of<rmm_arena>(), entry_of<rmm_binning>(), entry_of<cccl_peer>()};
}

}  // namespace tarn::bench
