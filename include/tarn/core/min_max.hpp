// SPDX-License-Identifier: Apache-2.0
#pragma once
// min_of and max_of for sizes and counts, without the header algorithm, which costs a compiler 40 ms, and
// exchange, without the type traits that std::exchange instantiates for each type.

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

/// Gives an object a new value and returns the old one.
template <class T>
constexpr T exchange(T& object, std::type_identity_t<T> value) noexcept {
  T old = static_cast<T&&>(object);
  object = static_cast<T&&>(value);
  return old;
}

}  // namespace TARN_NAMESPACE::detail
