// SPDX-License-Identifier: Apache-2.0
#pragma once
// min_of and max_of for sizes and counts, without the header algorithm, which costs a compiler 40 ms.

#include "tarn/version.hpp"

namespace TARN_NAMESPACE::detail {

/// Returns the larger value; the first if they are equal. Takes both by value: meant for sizes and counts.
template <class T>
[[nodiscard]] constexpr T max_of(T a, T b) noexcept {
  return a < b ? b : a;
}

/// Returns the smaller value; the first if they are equal.
template <class T>
[[nodiscard]] constexpr T min_of(T a, T b) noexcept {
  return b < a ? b : a;
}

}  // namespace TARN_NAMESPACE::detail
