// SPDX-License-Identifier: Apache-2.0
#pragma once
// A minimal lock for critical sections of a few nanoseconds.

#include <atomic>

#include "tarn/core/config.hpp"
#include "tarn/core/wait.hpp"

namespace TARN_NAMESPACE::detail {

class spin_lock {
 public:
  [[nodiscard]] TARN_ALWAYS_INLINE bool try_lock() noexcept {
    return !taken_.exchange(true, std::memory_order_acquire);
  }
  void lock() noexcept {
    for (unsigned tries = 0; !try_lock(); ++tries) spin_wait(tries);
  }
  TARN_ALWAYS_INLINE void unlock() noexcept { taken_.store(false, std::memory_order_release); }
  /// A snapshot; may already be out of date.
  [[nodiscard]] bool is_taken() const noexcept { return taken_.load(std::memory_order_relaxed); }

 private:
  std::atomic<bool> taken_{false};
};

}  // namespace TARN_NAMESPACE::detail
