// SPDX-License-Identifier: Apache-2.0
#pragma once
// Counts freed blocks that a pool holds back until other streams have finished with them, and notifies observers of changes.

#include <cstddef>
#include <cstdint>
#include <mutex>

#include "tarn/core/at_fork.hpp"
#include "tarn/core/sequence.hpp"

namespace tarn::detail {

struct waiting_amount {
  std::int64_t blocks = 0;
  std::int64_t bytes = 0;      ///< as rounded by the pool
  std::int64_t requested = 0;  ///< as requested by the caller

  void add(waiting_amount const& more) noexcept {
    blocks += more.blocks;
    bytes += more.bytes;
    requested += more.requested;
  }
};

/// Receives each change as the amounts added. May observe several pools.
class waiting_observer {
 public:
  virtual void waiting_changed(waiting_amount const& smaller, waiting_amount const& larger) noexcept = 0;
  virtual ~waiting_observer() = default;
};

/// Counts blocks when they start and stop waiting. Thread-safe.
class waiting_count {
 public:
  waiting_count() noexcept = default;
  waiting_count(waiting_count const&) = delete;
  waiting_count& operator=(waiting_count const&) = delete;

  /// @param sign  1 if the block starts waiting, -1 if it stops
  void change(bool is_small, std::size_t bytes, std::size_t requested, std::int64_t sign) noexcept {
    waiting_amount const by{sign, sign * static_cast<std::int64_t>(bytes),
                            sign * static_cast<std::int64_t>(requested)};
    std::lock_guard const guard(lock_);
    (is_small ? small_ : large_).add(by);
    for (waiting_observer* const o : observers_)
      o->waiting_changed(is_small ? by : waiting_amount{}, is_small ? waiting_amount{} : by);
  }

  /// Adds changes that were counted elsewhere.
  void add(waiting_amount const& smaller, waiting_amount const& larger) noexcept {
    std::lock_guard const guard(lock_);
    small_.add(smaller);
    large_.add(larger);
    for (waiting_observer* const o : observers_) o->waiting_changed(smaller, larger);
  }

  /// Adds an observer and notifies it of the blocks that already wait. It must not move until it is detached.
  /// @throws std::bad_alloc, nothing has changed
  void attach(waiting_observer& observer) {
    std::lock_guard const guard(lock_);
    observers_.push_back(&observer);
    if (small_.blocks != 0 || large_.blocks != 0) observer.waiting_changed(small_, large_);
  }
  void detach(waiting_observer& observer) noexcept {
    std::lock_guard const guard(lock_);
    for (std::size_t i = 0; i < observers_.size(); ++i) {
      if (observers_[i] == &observer) return observers_.erase_unordered(i);
    }
  }

  [[nodiscard]] waiting_amount now() const noexcept {
    std::lock_guard const guard(lock_);
    return {small_.blocks + large_.blocks, small_.bytes + large_.bytes, small_.requested + large_.requested};
  }

 private:
  mutable fork_mutex lock_;
  waiting_amount small_, large_;
  sequence<waiting_observer*> observers_;
};

}  // namespace tarn::detail
