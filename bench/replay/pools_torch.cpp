// SPDX-License-Identifier: Apache-2.0
// The pools of tarn_replay_torch, and no others: libtorch has a CUDA runtime of its own.
#include "peers/torch.hpp"
#include "replay/pools.hpp"

namespace tarn::bench {

std::vector<pool_entry> all_pools() {
  return {entry_of<torch_peer>(), entry_of<torch_expandable_peer>()};
}

}  // namespace tarn::bench
