// SPDX-License-Identifier: Apache-2.0
#pragma once
// Counts deferred blocks, which were freed and wait for other streams, and notifies observers of changes.

#include <cstddef>
#include <cstdint>

#include "tarn/core/at_fork.hpp"
#include "tarn/core/mutex.hpp"
#include "tarn/core/sequence.hpp"

namespace TARN_NAMESPACE::detail {

struct deferred_amount {
  std::int64_t blocks = 0;
  std::int64_t bytes = 0;      ///< as rounded by the pool
  std::int64_t requested = 0;  ///< as requested by the caller

  void add(deferred_amount const& more) noexcept {
    blocks += more.blocks;
    bytes += more.bytes;
    requested += more.requested;
  }
};

/// Receives each change as the amounts added. May observe several pools.
class deferred_observer {
 public:
  virtual void deferred_changed(deferred_amount const& smaller, deferred_amount const& larger) noexcept = 0;
  virtual ~deferred_observer() = default;
};

/// Counts blocks when they become deferred and when they are free. Thread-safe.
class deferred_count {
 public:
  /// @param sign  1 if the block becomes deferred, -1 if it is free
  void change(bool is_small, std::size_t bytes, std::size_t requested, std::int64_t sign) noexcept {
    deferred_amount const by{sign, sign * static_cast<std::int64_t>(bytes),
                             sign * static_cast<std::int64_t>(requested)};
    scoped_lock const guard(lock_);
    (is_small ? small_ : large_).add(by);
    for (deferred_observer* const o : observers_)
      o->deferred_changed(is_small ? by : deferred_amount{}, is_small ? deferred_amount{} : by);
  }

  /// Adds an observer and notifies it of the blocks that are deferred already. It must not move until it is
  /// detached.
  /// @throws std::bad_alloc, nothing has changed
  void attach(deferred_observer& observer) {
    scoped_lock const guard(lock_);
    observers_.push_back(&observer);
    if (small_.blocks != 0 || large_.blocks != 0) observer.deferred_changed(small_, large_);
  }
  void detach(deferred_observer& observer) noexcept {
    scoped_lock const guard(lock_);
    for (std::size_t i = 0; i < observers_.size(); ++i) {
      if (observers_[i] == &observer) return observers_.erase_unordered(i);
    }
  }

  [[nodiscard]] deferred_amount now() const noexcept {
    scoped_lock const guard(lock_);
    return {small_.blocks + large_.blocks, small_.bytes + large_.bytes, small_.requested + large_.requested};
  }

 private:
  mutable fork_mutex lock_;
  deferred_amount small_, large_;
  sequence<deferred_observer*> observers_;
};

}  // namespace TARN_NAMESPACE::detail
