// SPDX-License-Identifier: Apache-2.0
#pragma once
// counted<T>: a heap object with several owners, on any threads; the last owner deletes it. It replaces
// std::shared_ptr without including <memory> (see owned).

#include <atomic>
#include <cstdint>

#include "tarn/version.hpp"

namespace TARN_NAMESPACE::detail {

/// Copies own the same object. Never null and never moved from: a copy is one atomic increment.
template <class T>
class counted {
 public:
  /// Value-initialises the object. @throws std::bad_alloc
  counted() : block_(new block) {}
  counted(counted const& other) noexcept : block_(other.block_) {
    block_->owners.fetch_add(1, std::memory_order_relaxed);
  }
  /// Safe for self-assignment: counts the new owner before releasing the old one.
  counted& operator=(counted const& other) noexcept {  // NOLINT(bugprone-unhandled-self-assignment)
    block* const old = block_;
    other.block_->owners.fetch_add(1, std::memory_order_relaxed);
    block_ = other.block_;
    release(old);
    return *this;
  }
  ~counted() { release(block_); }

  [[nodiscard]] T* get() const noexcept { return &block_->value; }
  [[nodiscard]] T* operator->() const noexcept { return &block_->value; }

 private:
  struct block {
    std::atomic<std::uint32_t> owners{1};
    T value;
  };
  static void release(block* b) noexcept {
    // acq_rel: each owner's accesses happen before the deletion.
    if (b->owners.fetch_sub(1, std::memory_order_acq_rel) == 1) delete b;
  }
  block* block_;
};

}  // namespace TARN_NAMESPACE::detail
