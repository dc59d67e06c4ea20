// SPDX-License-Identifier: Apache-2.0
#pragma once
// A scoped holder of the arena's lock, and a parameter type for functions that may release it.
//
//   f(hot_lock const& held)   runs under the lock and keeps it
//   f(may_release hot)        may release it in between, which invalidates what its caller looked up before
//

#include "tarn/core/config.hpp"
#include "tarn/core/source_location.hpp"
#include "tarn/pool/arena/hot_mutex.hpp"

namespace TARN_NAMESPACE::detail {

/// Holds a hot_mutex for its scope.
class hot_lock {
 public:
  TARN_ALWAYS_INLINE explicit hot_lock(hot_mutex& mutex) noexcept : mutex_(mutex) { acquire(); }
  hot_lock& operator=(hot_lock&&) = delete;
  TARN_ALWAYS_INLINE ~hot_lock() { mutex_.unlock(); }

  [[nodiscard]] auto const& hold() const noexcept { return mutex_.hold(); }

 private:
  friend class unlocked;

  TARN_ALWAYS_INLINE void acquire() noexcept {
    mutex_.lock();
    mutex_.hold().begin();
  }
  void release(source_location where) noexcept {
    mutex_.hold().release(where);
    mutex_.unlock();
  }

  hot_mutex& mutex_;
};

/// A parameter of functions that may release the lock. Callers write `may_release(held)`; such a call
/// invalidates everything they looked up before it.
class may_release {
 public:
  explicit may_release(hot_lock& held) noexcept : held_(&held) {}
  /// For functions that keep the lock.
  [[nodiscard]] hot_lock const& held() const noexcept { return *held_; }

 private:
  friend class unlocked;
  hot_lock* held_;
};

/// Releases the lock for its scope, for driver calls and other locks; takes it again at the end, also after
/// an exception.
class [[nodiscard]] unlocked {
 public:
  explicit unlocked(may_release hot, source_location where = source_location::current()) noexcept
      : lock_(*hot.held_) {
    lock_.release(where);
  }
  unlocked& operator=(unlocked&&) = delete;
  ~unlocked() { lock_.acquire(); }

 private:
  hot_lock& lock_;
};

}  // namespace TARN_NAMESPACE::detail
