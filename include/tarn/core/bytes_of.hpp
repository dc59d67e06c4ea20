// SPDX-License-Identifier: Apache-2.0
#pragma once
// Conversions between element counts and bytes, by element type, with overflow checks.

#include <concepts>
#include <cstddef>

#include "tarn/core/bytes.hpp"

namespace TARN_NAMESPACE {

namespace detail {
/// Converts a count passed by a caller, signed or unsigned. @throws length_error  negative
template <std::integral Count>
[[nodiscard]] constexpr std::size_t checked_count(Count count) {
  if constexpr (std::signed_integral<Count>) {
    if (count < 0) throw length_error("tarn: a count of elements is negative");
  }
  return static_cast<std::size_t>(count);
}
}  // namespace detail

/// Returns the total bytes of the given number of elements of each type, without padding:
/// `bytes_of<float>(n)`, or one sample with its label: `bytes_of<float, std::uint8_t>(3 * 224 * 224, 1)`. A
/// resource rounds each block up (block_bytes()).
/// @throws length_error  more than max_request_bytes, or a negative count; does not compile in a constant
/// expression
template <class... T, std::integral... Count>
  requires(sizeof...(T) != 0 && sizeof...(T) == sizeof...(Count))
[[nodiscard]] constexpr std::size_t bytes_of(Count... counts) {
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

/// Returns the number of whole elements that fit into `bytes`.
template <class T>
[[nodiscard]] constexpr std::size_t items_in(std::size_t bytes) noexcept {
  return bytes / sizeof(T);
}

}  // namespace TARN_NAMESPACE
