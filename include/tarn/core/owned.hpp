// SPDX-License-Identifier: Apache-2.0
#pragma once
// owned<T>: a heap object with one owner. It replaces std::unique_ptr without including <memory>, which costs
// a compiler as much as <memory_resource>, <mutex> and <map> together.

#include "tarn/version.hpp"

namespace TARN_NAMESPACE::detail {

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

  [[nodiscard]] T* get() const noexcept { return p_; }
  [[nodiscard]] T& operator*() const noexcept { return *p_; }
  [[nodiscard]] T* operator->() const noexcept { return p_; }

 private:
  T* p_ = nullptr;
};

}  // namespace TARN_NAMESPACE::detail
