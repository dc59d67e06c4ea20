// SPDX-License-Identifier: Apache-2.0
#pragma once
// owned<T>: a heap object with one owner. counted<T>: one with several owners, on any threads; the last owner
// deletes it. They replace std::unique_ptr and std::shared_ptr without including <memory>, which costs a
// compiler as much as <memory_resource>, <mutex> and <map> together.

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

/// Deletes its object on destruction. Move-only; null when moved from. Never throws.
template <class T>
class owned {
 public:
  owned() noexcept = default;
  /// Takes ownership of an object created by new.
  explicit owned(T* made) noexcept : p_(made) {}
  owned(owned&& other) noexcept : p_(other.p_) { other.p_ = nullptr; }
  owned& operator=(owned&& other) noexcept {
    T* const taken = other.p_;
    other.p_ = nullptr;
    delete p_;
    p_ = taken;
    return *this;
  }
  ~owned() { delete p_; }

  /// Gives the ownership up.
  void release() noexcept { p_ = nullptr; }
  [[nodiscard]] T* get() const noexcept { return p_; }
  [[nodiscard]] T& operator*() const noexcept { return *p_; }
  [[nodiscard]] T* operator->() const noexcept { return p_; }

 private:
  T* p_ = nullptr;
};

}  // namespace TARN_NAMESPACE::detail
