// SPDX-License-Identifier: Apache-2.0
#pragma once
// Waits briefly for another thread.

#include "tarn/version.hpp"

#if defined(__linux__)
#include <sched.h>  // <thread> costs as much to include as all of core/

#include <ctime>
#else
#include <thread>
#endif

namespace TARN_NAMESPACE::detail {

/// Spins for a while, then yields: the thread that is waited for may not be running. Later it sleeps: that
/// thread may be waiting for the device.
inline void spin_wait(unsigned tries) noexcept {
  if (tries >= 64) {
#if defined(__linux__)
    if (tries >= 10'000) {
      timespec const pause{0, 50'000};
      (void)nanosleep(&pause, nullptr);
      return;
    }
    (void)sched_yield();
#else
    std::this_thread::yield();
#endif
    return;
  }
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // about as long as pause; yield returns at once
#endif
}

}  // namespace TARN_NAMESPACE::detail
