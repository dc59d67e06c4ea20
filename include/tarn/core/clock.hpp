// SPDX-License-Identifier: Apache-2.0
#pragma once
// Host clocks in nanoseconds: a monotonic clock and a calendar clock.

#include <chrono>
#include <cstdint>

#include "tarn/version.hpp"

namespace TARN_NAMESPACE::detail {

template <class Clock>
[[nodiscard]] std::uint64_t now_ns() noexcept {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count());
}
/// Nanoseconds since an arbitrary moment; monotonic.
[[nodiscard]] inline std::uint64_t steady_now_ns() noexcept {
  return now_ns<std::chrono::steady_clock>();
}
[[nodiscard]] inline std::uint64_t now_since_1970_ns() noexcept {
  return now_ns<std::chrono::system_clock>();
}

}  // namespace TARN_NAMESPACE::detail
