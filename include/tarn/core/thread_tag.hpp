// SPDX-License-Identifier: Apache-2.0
#pragma once
// What tells the threads that run now apart. Above it: combining_lock, tracked_numbers. Below it: config.

#include <cstdint>

#include "tarn/core/config.hpp"

namespace tarn::detail {

/// An address that differs between threads; a later thread may get it again.
inline void const* this_thread_tag() noexcept {
  static thread_local char const tag = 0;
  return &tag;
}

/// How many places thread_place() knows.
inline constexpr unsigned thread_places = 32;

/// A place below thread_places for a thread's tag; several threads may share one. Threads' own memory lies at equal
/// distances of whole pages: multiplied by the golden ratio (Knuth, TAOCP 3, 6.4) the page numbers' high bits differ.
[[nodiscard]] TARN_ALWAYS_INLINE unsigned thread_place(void const* tag) noexcept {
  auto const page = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(tag) >> 12);
  return static_cast<unsigned>((page * 0x9E3779B97F4A7C15U) >> 59);
}

}  // namespace tarn::detail
