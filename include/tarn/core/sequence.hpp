// SPDX-License-Identifier: Apache-2.0
#pragma once
// sequence<T>: a growable array with the few operations of std::vector that tarn needs. Each std::vector<X>
// costs a compiler 5 ms, each sequence<X> 1 ms, and every include of tarn has a dozen of them.

#include <cstddef>
#include <new>

#include "tarn/core/min_max.hpp"
#include "tarn/version.hpp"

namespace TARN_NAMESPACE::detail {

/// Contiguous elements in order of insertion. Growth moves them. Move-only.
template <class T>
class sequence {
 public:
  sequence() noexcept = default;
  sequence(sequence&& other) noexcept { swap(other); }
  sequence& operator=(sequence&& other) noexcept {
    sequence taken(static_cast<sequence&&>(other));
    swap(taken);
    return *this;
  }
  ~sequence() {
    static_assert(noexcept(T(static_cast<T&&>(*items_))) && alignof(T) <= alignof(std::max_align_t));
    clear();
    ::operator delete(items_);
  }

  /// Reserves room for `count` elements in total. @throws std::bad_alloc, nothing has changed
  void reserve(std::size_t count) {
    if (count <= capacity_) return;
    if (count > most_elements) throw std::bad_alloc();
    std::size_t most = capacity_ * 2 > count ? capacity_ * 2 : count;
    if (most > most_elements) most = most_elements;
    std::size_t const bytes = most * element_bytes;
    T* const larger = static_cast<T*>(::operator new(bytes));
    for (std::size_t i = 0; i < size_; ++i) {
      ::new (static_cast<void*>(larger + i)) T(static_cast<T&&>(items_[i]));
      items_[i].~T();
    }
    ::operator delete(items_);
    items_ = larger;
    capacity_ = most;
  }
  /// Appends value-initialised elements until size() is `count`, which must be at least size(). @throws
  /// std::bad_alloc, nothing has changed
  void resize(std::size_t count) {
    reserve(count);
    while (size_ < count) ::new (static_cast<void*>(items_ + size_++)) T{};
  }
  /// Appends `value` by copy or move. `value` must not be an element of this sequence.
  /// @throws std::bad_alloc  no room was reserved; nothing has changed, including `value`
  template <class Value = T>
  void push_back(Value&& value) {
    if (size_ == capacity_) reserve(size_ + 1);
    ::new (static_cast<void*>(items_ + size_)) T(static_cast<Value&&>(value));
    ++size_;
  }
  void pop_back() noexcept { items_[--size_].~T(); }
  /// Destroys the elements; keeps the capacity.
  void clear() noexcept {
    while (size_ != 0) pop_back();
  }
  /// Removes one element by moving the last one into its place. O(1).
  void erase_unordered(std::size_t index) noexcept {
    if (index + 1 != size_) items_[index] = static_cast<T&&>(items_[size_ - 1]);
    pop_back();
  }
  void swap(sequence& other) noexcept {
    items_ = detail::exchange(other.items_, items_);
    size_ = detail::exchange(other.size_, size_);
    capacity_ = detail::exchange(other.capacity_, capacity_);
  }

  [[nodiscard]] T* begin() noexcept { return items_; }
  [[nodiscard]] T* end() noexcept { return items_ + size_; }
  [[nodiscard]] T const* begin() const noexcept { return items_; }
  [[nodiscard]] T const* end() const noexcept { return items_ + size_; }
  [[nodiscard]] T& operator[](std::size_t i) noexcept { return items_[i]; }
  [[nodiscard]] T const& operator[](std::size_t i) const noexcept { return items_[i]; }
  [[nodiscard]] T& front() noexcept { return items_[0]; }
  [[nodiscard]] T const& front() const noexcept { return items_[0]; }
  [[nodiscard]] T& back() noexcept { return items_[size_ - 1]; }
  [[nodiscard]] T const& back() const noexcept { return items_[size_ - 1]; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }

 private:
  // NOLINTNEXTLINE(bugprone-sizeof-expression): T may be a pointer
  static constexpr std::size_t element_bytes = sizeof(T);
  /// Doubling the bytes must not overflow.
  static constexpr std::size_t most_elements = ~std::size_t{0} / 2 / element_bytes;

  T* items_ = nullptr;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

}  // namespace TARN_NAMESPACE::detail
