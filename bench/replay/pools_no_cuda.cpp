// SPDX-License-Identifier: Apache-2.0
#include "replay/pools.hpp"

namespace tarn::bench {

std::vector<pool_entry> cuda_pools() {
  return {};
}

cuda_device find_cuda_device() {
  return {false, "this program was built without CUDA"};
}

}  // namespace tarn::bench
