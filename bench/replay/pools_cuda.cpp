// SPDX-License-Identifier: Apache-2.0
#include "peers/cub.hpp"
#include "peers/cuda_async.hpp"
#include "peers/cuda_device.hpp"
#include "peers/cuda_malloc.hpp"
#include "peers/stack_arena.hpp"
#include "peers/tarn_pool.hpp"
#include "peers/thrust_mr.hpp"
#include "replay/pools.hpp"

namespace tarn::bench {

std::vector<pool_entry> cuda_pools() {
  return {entry_of<tarn_pool<counted_cuda_device, with_defaults>>(),
          entry_of<tarn_pool<with_known_streams<counted_cuda_device>, with_identity>>(),
          entry_of<tarn_pool<counted_cuda_device, without_remap>>(),
          entry_of<tarn_pool<counted_cuda_device, with_segments>>(),
          entry_of<tarn_pool<counted_cuda_device, with_tracking>>(),
          entry_of<cuda_malloc_peer>(),
          entry_of<cuda_async_peer>(),
          entry_of<cub_peer>(),
          entry_of<cub_default_peer>(),
          entry_of<thrust_peer>(),
          entry_of<stack_arena<counted_cuda_device>>()};
}

}  // namespace tarn::bench
