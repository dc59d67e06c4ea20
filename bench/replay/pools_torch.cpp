// SPDX-License-Identifier: Apache-2.0
// The pools of tarn_replay_torch. A separate program, since libtorch brings its own CUDA runtime.
#include "peers/torch.hpp"
#include "replay/pools.hpp"

namespace tarn::bench {

std::vector<pool_entry> all_pools() {
  return {entry_of<torch_peer>(), entry_of<torch_expandable_peer>()};
}

}  // namespace tarn::bench
