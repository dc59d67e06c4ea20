// SPDX-License-Identifier: Apache-2.0
#pragma once
#pragma GCC system_header
// The library's wait for another thread, which yields to that thread. Precedes the library in the include
// path.

#define spin_wait plain_wait_a_moment
#include_next "tarn/core/wait.hpp"
#undef spin_wait

#include "switch_points.hpp"

#define TARN_SIMULATION_HOOKS_WAIT 1

namespace TARN_NAMESPACE::detail {

inline void spin_wait(unsigned tries) noexcept {
  if (simulation::preemptible) return simulation::give_way();
  plain_wait_a_moment(tries);
}

}  // namespace TARN_NAMESPACE::detail
