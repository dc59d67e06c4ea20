// SPDX-License-Identifier: Apache-2.0
// A translation unit of its own: RMM brings its own CCCL, newer than the toolkit's.
#include "peers/rmm.hpp"
#include "hot_paths/hot_paths.hpp"

namespace tarn::bench {

void register_rmm() {
  register_hot_paths<rmm_pool>();
  register_hot_paths<rmm_arena>();
  register_hot_paths<rmm_binning>();
}

}  // namespace tarn::bench
