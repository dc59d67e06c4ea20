// SPDX-License-Identifier: Apache-2.0
#pragma once
// Budgets by element type: how many bytes elements take, and how many elements bytes hold. Nothing wraps.

#include <concepts>
#include <cstddef>

#include "tarn/core/bytes.hpp"

namespace tarn {

namespace detail {
/// A count that a caller passed, signed or not. @throws length_error  negative
template <std::integral Count>
[[nodiscard]] constexpr std::size_t checked_count(Count count) {
  if constexpr (std::signed_integral<Count>) {
    if (count < 0) throw length_error("tarn: a count of elements is negative");
  }
  return static_cast<std::size_t>(count);
}
}  // namespace detail

/// Bytes of so many elements of each type, side by side and without padding: `bytes_of<float>(n)`, or of one sample with
/// its label: `bytes_of<float, std::uint8_t>(3 * 224 * 224, 1)`. A resource rounds each block up (block_bytes()).
/// @throws length_error  more than max_request_bytes, or a negative count; in a constant expression: does not compile
template <class... T, std::integral... Count>
requires(sizeof...(T) != 0 && sizeof...(T) == sizeof...(Count)) [[nodiscard]] constexpr std::size_t
    bytes_of(Count... counts) {
  std::size_t sum = 0;
  auto const add = [&](std::size_t bytes) {
    if (bytes > max_request_bytes - sum) {
      throw length_error("tarn: the sum of count * sizeof(T) overflows; ask for fewer elements");
    }
    sum += bytes;
  };
  (add(checked_bytes(detail::checked_count(counts), sizeof(T))), ...);
  return sum;
}

/// Whole elements that fit into `bytes`.
template <class T>
[[nodiscard]] constexpr std::size_t items_in(std::size_t bytes) noexcept {
  return bytes / sizeof(T);
}

}  // namespace tarn
