// SPDX-License-Identifier: Apache-2.0
#pragma once
// min_of, max_of and positive for sizes and counts, without the header algorithm, which costs a compiler 40
// ms, and exchange, without the type traits that std::exchange instantiates for each type.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "tarn/version.hpp"

namespace TARN_NAMESPACE::detail {

/// Returns the larger value. Takes both by value: meant for sizes and counts.
template <class T>
[[nodiscard]] constexpr T max_of(T a, T b) noexcept {
  return a < b ? b : a;
}

/// Returns the smaller value.
template <class T>
[[nodiscard]] constexpr T min_of(T a, T b) noexcept {
  return b < a ? b : a;
}

/// Returns `n`, or 0 if it is negative: a count of which more was freed than allocated.
[[nodiscard]] constexpr std::size_t positive(std::int64_t n) noexcept {
  return static_cast<std::size_t>(max_of(n, std::int64_t{0}));
}

/// Gives an object a new value and returns the old one.
template <class T>
constexpr T exchange(T& object, std::type_identity_t<T> value) noexcept {
  T old = static_cast<T&&>(object);
  object = static_cast<T&&>(value);
  return old;
}

}  // namespace TARN_NAMESPACE::detail
