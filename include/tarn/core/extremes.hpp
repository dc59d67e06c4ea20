// SPDX-License-Identifier: Apache-2.0
#pragma once
// The smaller and the larger of two sizes or counts, without <algorithm>, which costs a compiler 40 ms.

namespace tarn::detail {

/// The larger one; the first if they are equal. Both are read by value: sizes and counts.
template <class T>
[[nodiscard]] constexpr T larger_of(T a, T b) noexcept {
  return a < b ? b : a;
}

/// The smaller one; the first if they are equal.
template <class T>
[[nodiscard]] constexpr T smaller_of(T a, T b) noexcept {
  return b < a ? b : a;
}

}  // namespace tarn::detail
