// SPDX-License-Identifier: Apache-2.0
#pragma once
#pragma GCC system_header
// The library's hot mutex, here plain_hot_mutex, with switch points where it is taken and released.

#include "switch_points.hpp"

#define TARN_SIMULATION_HOOKS_HOT_LOCK 1

namespace TARN_NAMESPACE::detail {

class hot_mutex : public plain_hot_mutex {
 public:
  void lock() noexcept {
    if (!simulation::preemptible) return plain_hot_mutex::lock();
    simulation::reach(simulation::switch_point::hot_lock);
    while (!plain_hot_mutex::try_lock()) simulation::wait_for(this);
    ++simulation::hot_locks_held;
  }
  [[nodiscard]] bool try_lock() noexcept {
    bool const taken = plain_hot_mutex::try_lock();
    if (taken && simulation::preemptible) ++simulation::hot_locks_held;
    return taken;
  }
  void unlock() noexcept {
    plain_hot_mutex::unlock();
    if (!simulation::preemptible) return;
    --simulation::hot_locks_held;
    simulation::released(this, simulation::switch_point::hot_unlock);
  }
};

}  // namespace TARN_NAMESPACE::detail
