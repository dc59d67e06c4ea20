// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a pool does when the process forks: every thread is kept out of it until both sides have gone on. In
// the child it refuses.

#include "tarn/core/at_fork.hpp"
#include "tarn/driver/capture_gate.hpp"

namespace TARN_NAMESPACE::detail {

/// Made after the growth mutex and that of the list of caches, which at_fork takes before and releases after
/// it.
template <class Heap, class Front>
class pool_fork {
 public:
  pool_fork(Heap& heap, Front& front) noexcept : heap_(heap), front_(front) {}
  pool_fork& operator=(pool_fork&&) = delete;

 private:
  /// Keeps every thread out. The caller has taken the locks that were made before this pool's at_fork.
  [[nodiscard]] bool prepare() noexcept {
    if (heap_.is_lost()) return true;
    if (!heap_.holds_growth_lock()) return false;
    if (!front_.keep_threads_out_at_fork()) return false;
    heap_.begin_fork();
    return true;
  }
  void end(fork_side side) noexcept {
    if (heap_.is_lost()) return;
    heap_.end_fork(side);
    if (side == fork_side::parent) {
      front_.let_threads_in_after_fork();
    } else {
      front_.close_in_child();
      capture_gate::forget_other_threads();
    }
  }

  Heap& heap_;
  Front& front_;
  at_fork member_{this, [](void* self) noexcept { return static_cast<pool_fork*>(self)->prepare(); },
                  [](void* self, fork_side side) noexcept { static_cast<pool_fork*>(self)->end(side); }};
};

}  // namespace TARN_NAMESPACE::detail
