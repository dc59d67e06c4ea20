// SPDX-License-Identifier: Apache-2.0
#pragma once
#pragma GCC system_header
// The lock of a thread cache, here plain_owner_lock, with switch points.

#include "switch_points.hpp"

#define TARN_SIMULATION_HOOKS_OWNER_LOCK 1

namespace TARN_NAMESPACE::detail {

class owner_lock : public plain_owner_lock {
 public:
  void leave() noexcept {
    plain_owner_lock::leave();
    if (simulation::preemptible) simulation::reach(simulation::switch_point::owner_leave);
  }
  void announce() noexcept {
    plain_owner_lock::announce();
    if (simulation::preemptible) simulation::reach(simulation::switch_point::owner_visit);
  }
  void end_visit() noexcept {
    plain_owner_lock::end_visit();
    if (simulation::preemptible) simulation::reach(simulation::switch_point::owner_visit);
  }
};

}  // namespace TARN_NAMESPACE::detail
