// SPDX-License-Identifier: Apache-2.0
#include "replay/pools.hpp"

namespace tarn::bench {

std::vector<pool_entry> torch_pools() {
  return {};
}

}  // namespace tarn::bench
