// SPDX-License-Identifier: Apache-2.0
// The pools of tarn_hot_paths_torch. A separate program, since a process has one configuration of PyTorch's
// allocator.
#include "hot_paths/works.hpp"
#include "peers/torch.hpp"

namespace tarn::bench {

std::vector<entry> all_entries(bool cuda_found) {
  std::vector<entry> all;
  if (!cuda_found) return all;
  if (torch_allocator::expandable_asked()) {
    add_works<torch_expandable_peer>(all);
  } else {
    add_works<torch_peer>(all);
  }
  return all;
}

}  // namespace tarn::bench
