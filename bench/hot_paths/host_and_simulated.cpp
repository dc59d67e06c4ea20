// SPDX-License-Identifier: Apache-2.0
#include "hot_paths/hot_paths.hpp"
#include "peers/host_malloc.hpp"
#include "peers/mimalloc.hpp"
#include "peers/simulated_device.hpp"
#include "peers/std_pmr.hpp"
#include "peers/tarn_pool.hpp"

namespace tarn::bench {

void register_host_and_simulated() {
  register_hot_paths<tarn_pool<simulated_device, with_defaults>>();
  register_hot_paths<tarn_pool<simulated_device, with_tracking>>();
  register_hot_paths<host_malloc>();
  register_hot_paths<std_pmr>();
  register_hot_paths<std_pmr_sync>();
  if (mimalloc::installed()) register_hot_paths<mimalloc>();
}

}  // namespace tarn::bench
