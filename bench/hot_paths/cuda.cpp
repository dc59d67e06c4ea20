// SPDX-License-Identifier: Apache-2.0
#include "hot_paths/hot_paths.hpp"
#include "peers/cub.hpp"
#include "peers/cuda_async.hpp"
#include "peers/cuda_device.hpp"
#include "peers/cuda_malloc.hpp"
#include "peers/tarn_pool.hpp"
#include "peers/thrust_mr.hpp"

namespace tarn::bench {

void register_cuda() {
  register_hot_paths<tarn_pool<cuda_device, with_defaults>>();
  register_hot_paths<tarn_pool<cuda_device, with_tracking>>();
  register_hot_paths<cuda_async_peer>();
  register_hot_paths<cub_peer>();
  register_hot_paths<cub_default_peer>();
  register_hot_paths<thrust_peer>();
  register_hot_paths<cuda_malloc_peer>();
}

}  // namespace tarn::bench
