// SPDX-License-Identifier: Apache-2.0
#pragma once
#pragma GCC system_header
// The library's spin lock, with a switch point at its release. Precedes the library in the include path.

#define spin_lock plain_spin_lock
#include_next "tarn/core/spin_lock.hpp"
#undef spin_lock

#include "switch_points.hpp"

#define TARN_SIMULATION_HOOKS_SPIN_LOCK 1

namespace TARN_NAMESPACE::detail {

class spin_lock : public plain_spin_lock {
 public:
  spin_lock() noexcept = default;

  void unlock() noexcept {
    plain_spin_lock::unlock();
    if (simulation::preemptible) simulation::reach(simulation::switch_point::spin_unlock);
  }
};

}  // namespace TARN_NAMESPACE::detail
