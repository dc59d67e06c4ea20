// SPDX-License-Identifier: Apache-2.0
#pragma once
// counted<T>: one heap object with several owners, on any threads; the last one deletes it. Of
// std::shared_ptr what the books of a pool need, without <memory> (see owned).

#include <atomic>
#include <cstdint>

namespace tarn::detail {

/// Copies are owners of the same object. Never null, never moved from: a copy is one atomic increment.
template <class T>
class counted {
 public:
  /// Makes the object from its defaults. @throws std::bad_alloc
  counted() : block_(new block) {}
  counted(counted const& other) noexcept : block_(other.block_) {
    block_->owners.fetch_add(1, std::memory_order_relaxed);
  }
  /// Of itself, too: the new owner is counted before the old one is released.
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
    // What each owner did to the object happens before its end.
    if (b->owners.fetch_sub(1, std::memory_order_acq_rel) == 1) delete b;
  }
  block* block_;
};

}  // namespace tarn::detail
