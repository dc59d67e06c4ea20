// SPDX-License-Identifier: Apache-2.0
#pragma once
// mutex and scoped_lock: std::mutex and std::unique_lock without the header mutex, which also brings chrono
// and costs a compiler 25 ms.

#include <pthread.h>

#include "tarn/version.hpp"

namespace TARN_NAMESPACE::detail {

class mutex {
 public:
  void lock() noexcept { (void)::pthread_mutex_lock(&mutex_); }
  [[nodiscard]] bool try_lock() noexcept { return ::pthread_mutex_trylock(&mutex_) == 0; }
  void unlock() noexcept { (void)::pthread_mutex_unlock(&mutex_); }

 private:
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
};

struct already_locked {};

/// Holds a lock for its scope.
template <class Lock>
class scoped_lock {
 public:
  explicit scoped_lock(Lock& lock) : lock_(lock) { lock_.lock(); }
  /// After lock.try_lock() has returned true.
  scoped_lock(Lock& lock, already_locked) noexcept : lock_(lock) {}
  scoped_lock& operator=(scoped_lock&&) = delete;
  ~scoped_lock() { lock_.unlock(); }

  /// Releases the lock for a while. lock() must follow before the end of the scope.
  void unlock() { lock_.unlock(); }
  void lock() { lock_.lock(); }

 private:
  Lock& lock_;
};

}  // namespace TARN_NAMESPACE::detail
