// SPDX-License-Identifier: Apache-2.0
#include "hot_paths/hot_pair.hpp"
#include "peers/tarn_pool.hpp"

namespace tarn::bench {

bool run_if_watched(std::string_view name, counts n) {
  return run_if<tarn_pool<idle_device, with_watching>>(name, n) ||
         run_if<tarn_pool<idle_device, with_any_handle>>(name, n);
}

}  // namespace tarn::bench
