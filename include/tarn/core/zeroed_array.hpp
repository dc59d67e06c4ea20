// SPDX-License-Identifier: Apache-2.0
#pragma once
// zeroed_array: a table that may be as long as an address space, of which only what is written takes memory.

#include <cstddef>
#include <cstdlib>
#include <new>
#include <utility>

#include "tarn/core/config.hpp"

namespace TARN_NAMESPACE::detail {

/// An array of zeros, from calloc: the system adds memory where it is written. Move-only.
/// @tparam T  trivial, or an atomic; zero bytes are a value of it
template <class T>
class zeroed_array {
 public:
  zeroed_array() noexcept = default;
  /// @throws std::bad_alloc
  explicit zeroed_array(std::size_t count)
      : data_(static_cast<T*>((std::calloc)(count, sizeof(T)))) {  // NOLINT(cppcoreguidelines-no-malloc)
    if (data_ == nullptr) throw std::bad_alloc();
  }
  zeroed_array(zeroed_array&& other) noexcept { swap(other); }
  zeroed_array& operator=(zeroed_array other) noexcept {
    swap(other);
    return *this;
  }
  ~zeroed_array() { (std::free)(data_); }

  [[nodiscard]] explicit operator bool() const noexcept { return data_ != nullptr; }
  [[nodiscard]] T& operator[](std::size_t i) const noexcept { return data_[i]; }

 private:
  void swap(zeroed_array& other) noexcept { std::swap(data_, other.data_); }

  T* data_ = nullptr;
};

}  // namespace TARN_NAMESPACE::detail
