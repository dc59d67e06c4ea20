// SPDX-License-Identifier: Apache-2.0
#pragma once
// A lock that costs its owner two plain stores. One thread owns the data and comes often; visitors come
// rarely (to flush it) and pay for both: they make every core pass a barrier (Linux membarrier), so that the
// owner need not.
//
//   owner                         visitor (one at a time)
//   busy = 1                      wanted = 1 (at every lock it is to visit)
//   (compiler barrier)            membarrier: all cores have passed a full barrier
//   if wanted: step back          while busy: wait
//   ... data ...                  ... data ...
//   busy = 0 (release)            wanted = 0 (release)
//
// Either the owner's store of busy came before the barrier, and the visitor sees it, or its load of wanted
// comes after, and the owner sees that. Without membarrier the owner executes the fence itself.

#include <atomic>
#include <cstdint>

#include "tarn/core/config.hpp"
#include "tarn/core/wait.hpp"

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tarn::detail {

/// True if the kernel runs barriers on other cores for us. Asked once per process: before main, because a process that
/// has threads already waits for all of them to pass the scheduler, 17 ms on a machine of 16 cores with CUDA running.
inline bool has_remote_barrier() noexcept {
#if defined(__linux__) && defined(__NR_membarrier) && !TARN_TSAN
  static bool const registered = syscall(__NR_membarrier, 1 << 4 /* REGISTER_PRIVATE_EXPEDITED */, 0, 0) == 0;
  return registered;
#else
  return false;
#endif
}

[[maybe_unused]] inline bool const asked_before_main = has_remote_barrier();

/// Makes every thread of the process pass a full barrier before it returns.
inline void remote_barrier() noexcept {
#if defined(__linux__) && defined(__NR_membarrier)
  if (has_remote_barrier()) {
    (void)syscall(__NR_membarrier, 1 << 3 /* PRIVATE_EXPEDITED */, 0, 0);
    return;
  }
#endif
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

/// In a forked child: not every kernel keeps the registration.
inline void renew_remote_barrier() noexcept {
#if defined(__linux__) && defined(__NR_membarrier)
  if (has_remote_barrier()) (void)syscall(__NR_membarrier, 1 << 4 /* REGISTER_PRIVATE_EXPEDITED */, 0, 0);
#endif
}

class owner_lock {
 public:
  owner_lock() noexcept : light_(has_remote_barrier()) {}

  /// The owner begins. False: a visitor is inside or waiting; the owner has stepped back and may try again.
  [[nodiscard]] TARN_ALWAYS_INLINE bool try_enter() noexcept {
    busy_.store(1, std::memory_order_relaxed);
    if (light_) [[likely]] {
      std::atomic_signal_fence(std::memory_order_seq_cst);
    } else {
      busy_.exchange(1, std::memory_order_seq_cst);
    }
    if (wanted_.load(std::memory_order_seq_cst) == 0) [[likely]]
      return true;
    busy_.store(0, std::memory_order_release);
    return false;
  }
  /// The owner begins, and waits for a visitor to leave.
  TARN_ALWAYS_INLINE void enter() noexcept {
    if (!try_enter()) [[unlikely]]
      wait_to_enter();
  }
  TARN_ALWAYS_INLINE void leave() noexcept { busy_.store(0, std::memory_order_release); }

  /// A visitor says that it comes; one remote_barrier() then does for all locks that it announced itself at. Visitors
  /// exclude one another by a lock of their own.
  void announce() noexcept { wanted_.exchange(1, std::memory_order_seq_cst); }
  [[nodiscard]] bool is_announced() const noexcept { return wanted_.load(std::memory_order_relaxed) != 0; }
  /// It enters, once the owner is out.
  void visit() noexcept {
    for (unsigned tries = 0; busy_.load(std::memory_order_seq_cst) != 0; ++tries) wait_a_moment(tries);
  }
  void end_visit() noexcept { wanted_.store(0, std::memory_order_release); }
  /// In a forked child, after a visit that began before the fork: the owner may have been about to step back, and does not
  /// exist here.
  void end_visit_in_child() noexcept {
    busy_.store(0, std::memory_order_relaxed);
    end_visit();
  }

 private:
  TARN_NOINLINE void wait_to_enter() noexcept {
    for (unsigned tries = 0; !try_enter(); ++tries) wait_a_moment(tries);
  }

  std::atomic<std::uint32_t> busy_{0};
  std::atomic<std::uint32_t> wanted_{0};
  bool const light_;
};

}  // namespace tarn::detail
