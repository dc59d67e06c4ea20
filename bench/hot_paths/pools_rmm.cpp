// SPDX-License-Identifier: Apache-2.0
// The pools of tarn_hot_paths_rmm. A separate program, since RMM brings its own CCCL and a refused request
// may end it.
#include "hot_paths/works.hpp"
#include "peers/cccl.hpp"
#include "peers/rmm.hpp"

namespace tarn::bench {

std::vector<entry> all_entries(bool cuda_found) {
  std::vector<entry> all;
  if (!cuda_found) return all;
  add_works<rmm_pool>(all);
  add_works<rmm_arena>(all);
  add_works<rmm_binning>(all);
  add_works<cccl_peer>(all);
  return all;
}

}  // namespace tarn::bench
