// SPDX-License-Identifier: Apache-2.0
#pragma once
// The host's clocks, in nanoseconds: one that never goes back, and one that knows the date.

#include <chrono>
#include <cstdint>

namespace tarn::detail {

template <class Clock>
[[nodiscard]] std::uint64_t now_ns() noexcept {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count());
}
/// Since some moment; never goes back.
[[nodiscard]] inline std::uint64_t steady_now_ns() noexcept {
  return now_ns<std::chrono::steady_clock>();
}
[[nodiscard]] inline std::uint64_t now_since_1970_ns() noexcept {
  return now_ns<std::chrono::system_clock>();
}

}  // namespace tarn::detail
