// SPDX-License-Identifier: Apache-2.0
#include "peers/torch.hpp"
#include "replay/pools.hpp"

namespace tarn::bench {

std::vector<pool_entry> torch_pools() {
  return {entry_of<torch_peer>(), entry_of<torch_expandable_peer>()};
}

}  // namespace tarn::bench
