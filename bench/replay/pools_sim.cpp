// SPDX-License-Identifier: Apache-2.0
#include "peers/simulated_device.hpp"
#include "peers/stack_arena.hpp"
#include "peers/tarn_pool.hpp"
#include "replay/pools.hpp"

namespace tarn::bench {

std::vector<pool_entry> simulated_pools() {
  return {entry_of<tarn_pool<simulated_device, with_defaults>>(),
          entry_of<tarn_pool<simulated_device, without_remap>>(),
          entry_of<tarn_pool<simulated_device, with_segments>>(),
          entry_of<tarn_pool<simulated_device, with_tracking>>(), entry_of<stack_arena<simulated_device>>()};
}

}  // namespace tarn::bench
