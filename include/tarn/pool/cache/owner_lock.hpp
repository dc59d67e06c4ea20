// SPDX-License-Identifier: Apache-2.0
#pragma once
// A lock that costs its owner thread two plain stores. The owner enters often; visitors enter rarely (to
// flush the data) and pay for both sides: they make every core execute a barrier (Linux membarrier), so that
// the owner does not have to.
//
//   owner                         visitor (one at a time)
//   busy = 1                      wanted = 1 (at every lock it will visit)
//   (compiler barrier)            membarrier: all cores have executed a full barrier
//   if wanted: step back          while busy: wait
//   ... data ...                  ... data ...
//   busy = 0 (release)            wanted = 0 (release)
//
// Why both are never inside: membarrier(2) orders what each thread of the process does before a point of its
// own, and after it, with what the caller does before and after the call. Where that point is in the owner:
//
//   after "busy = 1"    the store precedes the visitor's later read of busy, which sees it: the visitor waits
//   before "busy = 1"   "wanted = 1" precedes the owner's later read of wanted, which sees it: it steps back
//
// The compiler barrier keeps the two statements of the owner in this order; without it the point could be
// between a read of wanted and a later store to busy. C++ has no such barrier. Without membarrier the owner
// stores busy once more by a sequentially consistent exchange. Then all four operations are in the one order
// of [atomics.order], each store before the read of its own side, so that one of the reads sees the other
// side's store. In both cases the data follows by release and acquire: busy = 0 to the visitor that reads 0,
// wanted = 0 to the owner that reads 0. tests/core/litmus/ has both arguments as litmus tests.
//
// A lock that is closed, or watched, fails try_enter(), so that the owner's calls take their slow path;
// enter() still enters it. A visitor closes it for all calls when it leaves (the pool sleeps); the owner
// watches its own calls (it captures a graph).

#include <atomic>
#include <cstdint>

#include "tarn/core/at_fork.hpp"
#include "tarn/core/config.hpp"
#include "tarn/core/wait.hpp"

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace TARN_NAMESPACE::detail {

#if defined(__linux__) && defined(__NR_membarrier) && !TARN_TSAN
#define TARN_HAS_MEMBARRIER 1
#else
#define TARN_HAS_MEMBARRIER 0
#endif

/// What the kernel said of barriers on other cores: the number of the process that may have them; below zero:
/// that of one that may not. 0: not asked yet.
inline constinit std::atomic<std::int64_t> remote_barrier_answer{0};
/// The kernel let the process register, and refused a barrier later (a seccomp filter came between).
inline constinit std::atomic<bool> remote_barrier_refused{false};

/// Whether the kernel can execute barriers on other cores. Queried once per process, by the first pool: in a
/// process that already has threads, registering waits for all of them to pass the scheduler, 17 ms on a
/// machine of 16 cores with CUDA running. Not a static with a guard: a child forked meanwhile would wait for
/// the registering thread, which it does not have. A forked child asks again: not every kernel keeps the
/// registration.
inline bool has_remote_barrier() noexcept {
#if TARN_HAS_MEMBARRIER
  auto const yes = static_cast<std::int64_t>(at_fork::process());
  std::int64_t known = remote_barrier_answer.load(std::memory_order_relaxed);
  if (known != yes && known != -yes) {  // several threads may ask at once, and get the same answer
    known = syscall(__NR_membarrier, 1 << 4 /* REGISTER_PRIVATE_EXPEDITED */, 0, 0) == 0 ? yes : -yes;
    remote_barrier_answer.store(known, std::memory_order_relaxed);
  }
  return known == yes;
#else
  return false;
#endif
}

/// Makes every thread of the process execute a full barrier before it returns. Where the kernel refuses what
/// it had promised, it waits 1 ms instead: the buffer in which a core holds an owner's store back is empty
/// long before, though no standard says when. Locks that are made from then on execute the fence.
inline void remote_barrier() noexcept {
#if TARN_HAS_MEMBARRIER
  if (has_remote_barrier()) {
    if (syscall(__NR_membarrier, 1 << 3 /* PRIVATE_EXPEDITED */, 0, 0) == 0) return;
    remote_barrier_refused.store(true, std::memory_order_relaxed);
    remote_barrier_answer.store(-static_cast<std::int64_t>(at_fork::process()), std::memory_order_relaxed);
  }
  if (remote_barrier_refused.load(std::memory_order_relaxed)) ::usleep(1000);
#endif
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

class owner_lock {
 public:
  owner_lock() noexcept : light_(has_remote_barrier()) {}

  /// Enters as the owner. Returns false if a visitor is inside or waiting, or the lock is watched or closed.
  [[nodiscard]] TARN_ALWAYS_INLINE bool try_enter() noexcept { return enter_unless(~0U); }
  /// Enters as the owner, also if the lock is watched or closed, and waits for a visitor to leave.
  TARN_ALWAYS_INLINE void enter() noexcept {
    for (unsigned tries = 0; !enter_unless(visitor); ++tries) [[unlikely]]
      spin_wait(tries);
  }
  TARN_ALWAYS_INLINE void leave() noexcept { busy_.store(0, std::memory_order_release); }

  /// Announces a visitor; one remote_barrier() then covers all locks where it announced itself. Visitors
  /// exclude one another with a lock of their own.
  void announce() noexcept { wanted_.fetch_or(visitor, std::memory_order_seq_cst); }
  [[nodiscard]] bool is_announced() const noexcept {
    return (wanted_.load(std::memory_order_relaxed) & visitor) != 0;
  }
  /// Closes the lock to try_enter() or opens it again. Called by the owner; another thread executes a
  /// remote_barrier() after the first one, and then visit(), which waits for an owner that had entered
  /// before.
  void watch() noexcept { wanted_.fetch_or(watched, std::memory_order_seq_cst); }
  void end_watch() noexcept { wanted_.fetch_and(~watched, std::memory_order_release); }
  [[nodiscard]] bool is_watched() const noexcept {
    return (wanted_.load(std::memory_order_relaxed) & watched) != 0;
  }
  /// Enters as the visitor, once the owner has left.
  void visit() noexcept {
    for (unsigned tries = 0; busy_.load(std::memory_order_seq_cst) != 0; ++tries) spin_wait(tries);
  }
  void end_visit() noexcept { wanted_.fetch_and(~visitor, std::memory_order_release); }
  /// Ends a visit so that try_enter() fails until open_again().
  void close() noexcept {
    wanted_.fetch_or(closed, std::memory_order_seq_cst);
    end_visit();
  }
  void open_again() noexcept { wanted_.fetch_and(~closed, std::memory_order_release); }
  /// Ends, in a forked child, a visit that began before the fork. The owner may have been about to step back,
  /// and does not exist in the child.
  void forget_owner() noexcept { busy_.store(0, std::memory_order_relaxed); }

 private:
  static constexpr std::uint32_t visitor = 1;
  static constexpr std::uint32_t watched = 2;
  static constexpr std::uint32_t closed = 4;

  /// Enters as the owner, or steps back if `wanted_` has one of `reasons`.
  [[nodiscard]] TARN_ALWAYS_INLINE bool enter_unless(std::uint32_t reasons) noexcept {
    busy_.store(1, std::memory_order_relaxed);
    if (light_) [[likely]] {
      std::atomic_signal_fence(std::memory_order_seq_cst);
    } else {
      busy_.exchange(1, std::memory_order_seq_cst);
    }
    if ((wanted_.load(std::memory_order_seq_cst) & reasons) == 0) [[likely]]
      return true;
    busy_.store(0, std::memory_order_release);
    return false;
  }

  std::atomic<std::uint32_t> busy_{0};
  std::atomic<std::uint32_t> wanted_{0};
  bool const light_;
};

}  // namespace TARN_NAMESPACE::detail
