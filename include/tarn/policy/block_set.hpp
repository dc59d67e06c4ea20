// SPDX-License-Identifier: Apache-2.0
#pragma once
// A set of blocks that a policy treats differently, by address.

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tarn/core/address_map.hpp"
#include "tarn/core/at_fork.hpp"
#include "tarn/core/mutex.hpp"

namespace TARN_NAMESPACE::detail {

/// Thread-safe. While the set is empty, contains() and erase() cost one relaxed load: a thread that frees a
/// block was handed it after it was inserted.
class block_set {
 public:
  /// Returns false if the block is there already. @throws std::bad_alloc, nothing has changed
  bool insert(void const* p) {
    scoped_lock const guard(mutex_);
    if (blocks_.find(key_of(p)) != 0) return false;
    blocks_.make_room(1);
    blocks_.insert(key_of(p), 1);
    count_.store(blocks_.size(), std::memory_order_relaxed);
    return true;
  }
  /// Returns true if the block was there.
  bool erase(void const* p) noexcept {
    if (size() == 0) return false;
    scoped_lock const guard(mutex_);
    bool const found = blocks_.erase(key_of(p)) != 0;
    count_.store(blocks_.size(), std::memory_order_relaxed);
    return found;
  }
  [[nodiscard]] bool contains(void const* p) const noexcept {
    if (size() == 0) return false;
    scoped_lock const guard(mutex_);
    return blocks_.find(key_of(p)) != 0;
  }
  [[nodiscard]] std::size_t size() const noexcept { return count_.load(std::memory_order_relaxed); }

 private:
  static std::uintptr_t key_of(void const* p) noexcept { return reinterpret_cast<std::uintptr_t>(p); }

  mutable fork_mutex mutex_;
  address_map<std::uint32_t> blocks_;  ///< 1 for each; of this type, since a pool has one too
  std::atomic<std::size_t> count_{0};
};

}  // namespace TARN_NAMESPACE::detail
