// SPDX-License-Identifier: Apache-2.0
// The pools of tarn_hot_paths_dali. A separate program, since DALI's library brings its own CUDA runtime.
#include "hot_paths/works.hpp"
#include "peers/dali.hpp"

namespace tarn::bench {

std::vector<entry> all_entries(bool cuda_found) {
  std::vector<entry> all;
  if (cuda_found) add_works<dali_peer>(all);
  return all;
}

}  // namespace tarn::bench
