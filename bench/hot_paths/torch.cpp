// SPDX-License-Identifier: Apache-2.0
#include "peers/torch.hpp"

#include "hot_paths/hot_paths.hpp"

namespace tarn::bench {

void register_torch() {
  if (torch_allocator::expandable_asked()) {
    register_hot_paths<torch_expandable_peer>();
  } else {
    register_hot_paths<torch_peer>();
  }
}

}  // namespace tarn::bench
