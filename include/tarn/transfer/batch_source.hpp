// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sources of streamed batches: pageable memory, pinned memory, a file, a generator.
//
// | expression                  | of which | meaning                                                                       |
// |-----------------------------|----------|-------------------------------------------------------------------------------|
// | S::value_type               | all      | trivially copyable                                                            |
// | S::is_staged                | all      | true: copied through pinned slots; false: already in pinned memory            |
// | s.size()                    | all      | total elements; detail::unknown_count: until fill() returns 0                 |
// | s.data()                    | unstaged | pointer to the first element                                                  |
// | s.fill(to, index, offset)   | staged   | writes to.size() elements starting at `offset`; returns the number written    |
// | S::is_divisible             | staged   | parts of a batch may be filled independently of each other                    |

#include <concepts>
#include <cstddef>
#include <cstring>
#include <memory>
#include <ranges>
#include <span>
#include <type_traits>
#include <utility>

#include "tarn/raii/pinned_buffer.hpp"
#include "tarn/transfer/batch_options.hpp"
#include "tarn/transfer/mapped_file.hpp"

namespace TARN_NAMESPACE {

/// Elements in any host memory. The host copies them to pinned slots.
template <class T>
class pageable_source {
 public:
  using value_type = T;
  static constexpr bool is_staged = true;
  static constexpr bool is_divisible = true;
  explicit pageable_source(std::span<T const> elements) noexcept : elements_(elements) {}
  [[nodiscard]] std::size_t size() const noexcept { return elements_.size(); }
  std::size_t fill(std::span<T> to, std::size_t, std::size_t offset) const noexcept {
    if (!to.empty()) std::memcpy(to.data(), elements_.data() + offset, to.size_bytes());
    return to.size();
  }

 private:
  std::span<T const> elements_;
};

/// Elements in pinned memory, copied directly from there.
template <class T>
class pinned_source {
 public:
  using value_type = T;
  static constexpr bool is_staged = false;
  explicit pinned_source(std::span<T const> elements) noexcept : elements_(elements) {}
  [[nodiscard]] std::size_t size() const noexcept { return elements_.size(); }
  [[nodiscard]] T const* data() const noexcept { return elements_.data(); }

 private:
  std::span<T const> elements_;
};

/// Elements of a file, read into pinned slots.
template <class T>
class file_source {
 public:
  using value_type = T;
  static constexpr bool is_staged = true;
  static constexpr bool is_divisible = true;
  /// @throws file_error  the file size is not a multiple of the element size
  explicit file_source(mapped_file const& file) : file_(&file), size_(file.count_of<T>()) {}
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  std::size_t fill(std::span<T> to, std::size_t, std::size_t offset) const {
    file_->read(offset * sizeof(T), std::as_writable_bytes(to));
    return to.size();
  }

 private:
  mapped_file const* file_;
  std::size_t size_;
};

/// Elements produced by a callable.
template <class T, class Fill>
class generated_source {
 public:
  using value_type = T;
  static constexpr bool is_staged = true;
  static constexpr bool is_divisible = false;
  explicit generated_source(Fill fill) : fill_(std::make_unique<Fill>(std::move(fill))) {}
  [[nodiscard]] std::size_t size() const noexcept { return detail::unknown_count; }
  std::size_t fill(std::span<T> to, std::size_t index, std::size_t) const {
    std::size_t const filled = (*fill_)(to, index);
    if (filled > to.size()) throw bad_batch("a generator reported more elements than its slot holds");
    return filled;
  }

 private:
  std::unique_ptr<Fill> fill_;  ///< callable from a const source; the range never copies it
};

/// Declares that memory is pinned (pinned_buffer, cudaHostAlloc, cudaHostRegister), so it is copied without
/// staging. If it is not pinned, the result is still correct, but slow: the driver waits for each batch.
template <class T, std::size_t N>
[[nodiscard]] pinned_source<std::remove_const_t<T>> pinned(std::span<T, N> elements) noexcept {
  return pinned_source<std::remove_const_t<T>>(elements);
}
/// Elements of a file, which must outlive the loop. @throws file_error  the file size is not a multiple of
/// the element size
template <class T>
[[nodiscard]] file_source<T> from_file(mapped_file const& file) {
  return file_source<T>(file);
}
template <class T>
file_source<T> from_file(mapped_file const&&) = delete;  // the file would be closed before the first batch

/// Batches produced by `fill(std::span<T> slot, std::size_t index) -> std::size_t`, which returns the number
/// of elements that it filled, at most slot.size(); 0 ends the range. With batch_options::threads, several
/// threads call it at once, each with its own index, also with indices after the one that ends. Batches
/// arrive in index order.
template <class T, class Fill>
  requires std::is_invocable_r_v<std::size_t, Fill&, std::span<T>, std::size_t>
[[nodiscard]] generated_source<T, std::decay_t<Fill>> generate(Fill&& fill) {
  return generated_source<T, std::decay_t<Fill>>(std::forward<Fill>(fill));
}

namespace detail {

template <class S>
concept batch_source = requires(S const& s) {
  typename S::value_type;
  { S::is_staged } -> std::convertible_to<bool>;
  { s.size() } -> std::same_as<std::size_t>;
};

template <class R>
inline constexpr bool is_pinned_buffer = false;
template <class T, class Resource>
inline constexpr bool is_pinned_buffer<pinned_buffer<T, Resource>> = true;

/// Converts an argument to a source: a source is returned as is, a pinned_buffer becomes pinned memory, any
/// other contiguous range becomes pageable memory. A range that would be destroyed before the loop begins
/// does not compile.
template <class S>
[[nodiscard]] auto as_batch_source(S&& s) {
  using plain = std::remove_cvref_t<S>;
  if constexpr (batch_source<plain>) {
    return plain(std::forward<S>(s));
  } else {
    static_assert(
        std::ranges::contiguous_range<S> && std::ranges::sized_range<S>,
        "tarn: batches are read from contiguous memory, from_file<T>(file) or generate<T>(callable)");
    static_assert(std::ranges::borrowed_range<S>,
                  "tarn: this temporary is destroyed before the loop begins; store it in a variable first");
    using element = std::ranges::range_value_t<S>;
    static_assert(std::is_trivially_copyable_v<element>,
                  "tarn: only trivially copyable elements can be copied between host and device");
    std::span<element const> const all(std::ranges::data(s), std::ranges::size(s));
    if constexpr (is_pinned_buffer<plain>) {
      return pinned_source<element>(all);
    } else {
      return pageable_source<element>(all);
    }
  }
}
template <class S>
using batch_source_of = decltype(as_batch_source(std::declval<S>()));

}  // namespace detail

}  // namespace TARN_NAMESPACE
