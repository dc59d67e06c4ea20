// SPDX-License-Identifier: Apache-2.0
#pragma once
// static_mutex: the mutex of a list that a module never destroys, and that fork() must find unlocked.

#include <new>

#include "tarn/core/at_fork.hpp"
#include "tarn/core/mutex.hpp"

namespace TARN_NAMESPACE::detail {

/// Every object that locks it has a `user`. While there is none, fork() does not know the mutex: the module
/// may have been unloaded, and the mutex with it.
class static_mutex {
 public:
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

  /// Made before its object locks the mutex for the first time, and destroyed after the last time.
  class user {
   public:
    explicit user(static_mutex& mutex) noexcept : mutex_(mutex) {}

   private:
    static bool take(void* of) noexcept { return static_cast<user*>(of)->mutex_.take_for_fork(); }
    static void release(void* of, fork_side side) noexcept {
      static_cast<user*>(of)->mutex_.release_after_fork(side);
    }

    static_mutex& mutex_;
    at_fork member_{this, &take, &release};
  };

 private:
  // By the forking thread, which takes the mutex once for all users.
  [[nodiscard]] bool take_for_fork() noexcept {
    if (taken_ == 0 && !mutex_.try_lock()) return false;
    ++taken_;
    return true;
  }
  void release_after_fork(fork_side side) noexcept {
    if (side == fork_side::parent) {
      if (--taken_ == 0) mutex_.unlock();
      return;
    }
    taken_ = 0;
    (void)::new (static_cast<void*>(&mutex_)) mutex;  // another owner does not exist in the child
  }

  mutex mutex_;
  unsigned taken_ = 0;  ///< by the forking thread; no other one changes it
};

}  // namespace TARN_NAMESPACE::detail
