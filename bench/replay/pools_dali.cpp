// SPDX-License-Identifier: Apache-2.0
// The pools of tarn_replay_dali. A separate program, since DALI's library brings its own CUDA runtime.
#include "peers/dali.hpp"
#include "replay/pools.hpp"

namespace tarn::bench {

std::vector<pool_entry> all_pools() {
  return {entry_of<dali_peer>()};
}

}  // namespace tarn::bench
