// SPDX-License-Identifier: Apache-2.0
#pragma once
// byte_budget: bytes that many threads share, under a limit; threads may wait for some of them.

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tarn/core/at_fork.hpp"
#include "tarn/core/config.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/mutex.hpp"
#include "tarn/core/spin_lock.hpp"
#include "tarn/core/thread_tag.hpp"

namespace TARN_NAMESPACE::detail {

/// An additional, temporary bound on a budget; linked into the budget, so it must stay in place.
struct budget_bound {
  std::size_t bytes = 0;     ///< upper bound for the used bytes
  std::uint64_t thread = 0;  ///< number of the thread that began it
  budget_bound* next = nullptr;
};

/// A thread that waits for bytes of a budget; linked into the budget, so it must stay in place.
class budget_waiter {
 public:
  explicit budget_waiter(std::size_t bytes) noexcept : bytes_(bytes) {}
  budget_waiter& operator=(budget_waiter&&) = delete;
  /// Called once, when it has the bytes or the limit has fallen below them, under the budget's lock.
  virtual void wake() noexcept = 0;
  virtual ~budget_waiter() = default;

 private:
  friend class byte_budget;

  std::size_t const bytes_;
  budget_waiter* next_ = nullptr;
  unsigned passed_by_ = 0;  ///< later requests that were served before it
  bool has_bytes_ = false;
};

/// So many later requests may be served before one that waits. Without a bound, small requests could keep a
/// large one waiting forever; with 0, a large request would hold up all others while memory is free. 16:
/// examples/reservations.cpp has as many tasks.
inline constexpr unsigned most_passes = 16;

/// A budget that cannot be exceeded by races. The smallest of the limit and all bounds is in force, so bounds
/// may begin and end in any order, on any threads. take() and give() are lock-free while no thread waits;
/// other calls take a lock.
///
/// Requests that wait are served in the order in which they came, but one that fits is served before one that
/// does not, at most most_passes times. In a forked child the waiting threads of the parent do not exist:
/// they and the bounds of other threads are forgotten.
class byte_budget {
 public:
  explicit byte_budget(std::size_t limit) noexcept : limit_(limit), own_limit_(limit) {}

  /// Returns false if the bytes do not fit; nothing has changed. Does not wait for those that wait.
  [[nodiscard]] bool take(std::size_t bytes) noexcept {
    // give() frees bytes before it looks for waiters, and wait_for() adds a waiter before it looks for bytes:
    // one of them sees the other, since all four accesses are in one order.
    std::size_t used = used_.load(std::memory_order_seq_cst);
    do {
      std::size_t const limit = limit_.load(std::memory_order_relaxed);
      if (bytes > limit - min_of(limit, counted(used))) return false;
    } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
    return true;
  }
  void give(std::size_t bytes) noexcept {
    used_.fetch_sub(bytes, std::memory_order_seq_cst);
    if (waiting_.load(std::memory_order_seq_cst) != 0) [[unlikely]]
      serve_waiting();
  }

  [[nodiscard]] std::size_t used() const noexcept { return counted(used_.load(std::memory_order_relaxed)); }
  /// The limit in force.
  [[nodiscard]] std::size_t limit() const noexcept { return limit_.load(std::memory_order_relaxed); }
  /// Sets the limit, and returns the previous one; bounds stay. Requests above it that wait get nothing.
  std::size_t set_limit(std::size_t limit) noexcept {
    scoped_lock const guard(lock_);
    std::size_t const before = detail::exchange(own_limit_, limit);
    end_hopeless_waits();
    put_in_force();
    return before;
  }
  /// Allows at most `more` bytes beyond those used now, until remove(bound).
  void add(budget_bound& bound, std::size_t more) noexcept {
    scoped_lock const guard(lock_);
    std::size_t const now = used();
    bound.bytes = more < ~std::size_t{0} - now ? now + more : ~std::size_t{0};
    bound.thread = this_thread_number();
    bound.next = detail::exchange(bounds_, &bound);
    put_in_force();
  }
  /// Ends a bound. O(bounds).
  void remove(budget_bound& bound) noexcept {
    scoped_lock const guard(lock_);
    for (budget_bound** at = &bounds_; *at != nullptr; at = &(*at)->next) {
      TARN_VISIT();
      if (*at != &bound) continue;
      *at = bound.next;
      break;
    }
    put_in_force();
  }

  /// Returns how many threads wait.
  [[nodiscard]] unsigned waiting() const noexcept { return waiting_.load(std::memory_order_relaxed); }
  /// Takes bytes if they fit and no request that waits has been passed too often. O(waiters).
  [[nodiscard]] bool take_in_turn(std::size_t bytes) noexcept {
    scoped_lock const guard(lock_);
    for (budget_waiter const* w = waiters_; w != nullptr; w = w->next_) {
      TARN_VISIT();
      if (w->passed_by_ >= most_passes) return false;
    }
    if (!take(bytes)) return false;
    for (budget_waiter* w = waiters_; w != nullptr; w = w->next_) ++w->passed_by_;
    return true;
  }
  /// Begins to wait for the waiter's bytes; its wake() may be called before this returns. Returns false, and
  /// does not wait, if the limit without its bounds is below them. O(waiters).
  [[nodiscard]] bool wait_for(budget_waiter& waiter) noexcept {
    scoped_lock const guard(lock_);
    if (waiter.bytes_ > own_limit_) return false;
    budget_waiter** at = &waiters_;
    while (*at != nullptr) at = &(*at)->next_;
    *at = &waiter;
    waiting_.fetch_add(1, std::memory_order_seq_cst);
    serve();
    return true;
  }
  /// Ends a wait, and returns whether the waiter has its bytes. Then no other thread refers to it any more.
  /// O(waiters).
  [[nodiscard]] bool stop_waiting(budget_waiter& waiter) noexcept {
    scoped_lock const guard(lock_);
    if (waiter.has_bytes_) return true;
    for (budget_waiter** at = &waiters_; *at != nullptr; at = &(*at)->next_) {
      TARN_VISIT();
      if (*at != &waiter) continue;
      unlink(at);
      break;
    }
    serve();  // it may have been passed too often, and held up later ones
    return false;
  }

  // For held_at_fork.
  void lock() noexcept { lock_.lock(); }
  void unlock() noexcept { lock_.unlock(); }
  void forget_other_threads() noexcept {
    waiters_ = nullptr;
    waiting_.store(0, std::memory_order_relaxed);
    keep_own_items(bounds_);
    put_in_force();
  }

 private:
  /// More may have been given than taken: the report of a second free does not end the program.
  [[nodiscard]] static constexpr std::size_t counted(std::size_t used) noexcept {
    return used > ~std::size_t{0} / 2 ? 0 : used;
  }
  void put_in_force() noexcept {
    std::size_t smallest = own_limit_;
    for (budget_bound const* b = bounds_; b != nullptr; b = b->next) {
      TARN_VISIT();
      smallest = min_of(smallest, b->bytes);
    }
    limit_.store(smallest, std::memory_order_relaxed);
    serve();
  }
  TARN_NOINLINE void serve_waiting() noexcept {
    scoped_lock const guard(lock_);
    serve();
  }
  /// Gives bytes to the waiters that may have them. Under the lock. O(waiters) for each that is served.
  void serve() noexcept {
    for (budget_waiter** at = &waiters_; *at != nullptr;) {
      TARN_VISIT();
      budget_waiter& w = **at;
      if (take(w.bytes_)) {
        for (budget_waiter* earlier = waiters_; earlier != &w; earlier = earlier->next_)
          ++earlier->passed_by_;
        unlink(at);
        w.has_bytes_ = true;
        w.wake();
        at = &waiters_;  // an earlier one may have been passed too often now
      } else if (w.passed_by_ >= most_passes) {
        return;
      } else {
        at = &w.next_;
      }
    }
  }
  /// Ends the waits for more bytes than the limit. Under the lock. O(waiters)
  void end_hopeless_waits() noexcept {
    for (budget_waiter** at = &waiters_; *at != nullptr;) {
      TARN_VISIT();
      budget_waiter& w = **at;
      if (w.bytes_ <= own_limit_) {
        at = &w.next_;
        continue;
      }
      unlink(at);
      w.wake();
    }
  }
  void unlink(budget_waiter** at) noexcept {
    *at = (*at)->next_;
    waiting_.fetch_sub(1, std::memory_order_seq_cst);
  }

  std::atomic<std::size_t> used_{0};
  std::atomic<std::size_t> limit_;  ///< in force
  std::atomic<unsigned> waiting_{0};
  // Under the lock:
  spin_lock lock_;
  std::size_t own_limit_;
  budget_bound* bounds_ = nullptr;
  budget_waiter* waiters_ = nullptr;  ///< in the order in which they came
  held_at_fork<byte_budget> member_{*this};
};

}  // namespace TARN_NAMESPACE::detail
