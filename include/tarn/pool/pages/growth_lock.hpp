// SPDX-License-Identifier: Apache-2.0
#pragma once
// A scoped holder of the growth lock. A function that takes a growth_lock const& runs under it and keeps it.

#include <mutex>

#include "tarn/core/at_fork.hpp"

namespace TARN_NAMESPACE::detail {

/// Holds the growth lock for its scope. Its owner thread may take it again: a handler of the source may call
/// the pool in a growth.
class growth_lock {
 public:
  explicit growth_lock(recursive_fork_mutex& mutex) : mutex_(mutex) { mutex_.lock(); }
  /// After mutex.try_lock() has returned true.
  growth_lock(recursive_fork_mutex& mutex, std::adopt_lock_t) noexcept : mutex_(mutex) {}
  growth_lock& operator=(growth_lock&&) = delete;
  ~growth_lock() { mutex_.unlock(); }

 private:
  recursive_fork_mutex& mutex_;
};

}  // namespace TARN_NAMESPACE::detail
