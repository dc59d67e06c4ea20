// SPDX-License-Identifier: Apache-2.0
#include "hot_paths/limits.hpp"
#include "hot_paths/pools.hpp"
#include "peers/cub.hpp"
#include "peers/cuda_async.hpp"
#include "peers/cuda_device.hpp"
#include "peers/cuda_malloc.hpp"
#include "peers/stack_arena.hpp"
#include "peers/tarn_pool.hpp"
#include "peers/thrust_mr.hpp"

namespace tarn::bench {

void add_cuda(std::vector<entry>& list) {
  add_works<tarn_pool<cuda_device, with_defaults>>(list);
  add_works<tarn_pool<cuda_device, with_tracking>>(list);
  add_works<tarn_pool<cuda_device, with_watching>>(list);
  add_limits<cuda_device>(list);
  add_works<tarn_pool<with_known_streams<cuda_device>, with_identity>>(list);
  add_works<tarn_pool<with_known_streams<cuda_device>, with_tracking_and_identity>>(list);
  add_thread_works<tarn_pool<cuda_device, with_exact_peaks>>(list);
  add_thread_works<tarn_pool<with_known_streams<cuda_device>, with_exact_peaks_and_identity>>(list);
  add_works<cuda_async_peer>(list);
  add_works<cub_peer>(list);
  add_works<cub_default_peer>(list);
  add_works<thrust_peer>(list);
  add_works<stack_arena<cuda_device>>(list);
  add_works<cuda_malloc_peer>(list);
}

}  // namespace tarn::bench
