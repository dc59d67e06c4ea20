// SPDX-License-Identifier: Apache-2.0
#pragma once
// What tells the threads that run now apart.

#include <atomic>
#include <cstdint>

#include "tarn/core/config.hpp"

namespace tarn::detail {

/// Where a thread keeps its number; 0 until the thread needs one.
[[nodiscard]] inline std::uint64_t& thread_number_place() noexcept {
  static thread_local constinit std::uint64_t number = 0;
  return number;
}

/// An address that differs between threads; a later thread may get it again.
inline void const* this_thread_tag() noexcept {
  return &thread_number_place();
}

/// A number of this thread alone, which no later thread gets again; never 0. Given out at the first call.
[[nodiscard]] inline std::uint64_t this_thread_number() noexcept {
  static constinit std::atomic<std::uint64_t> last{0};
  std::uint64_t& number = thread_number_place();
  if (number == 0) number = last.fetch_add(1, std::memory_order_relaxed) + 1;
  return number;
}

/// The number of the thread with this tag, which is running and does not take a number meanwhile; 0 where it has none.
[[nodiscard]] inline std::uint64_t thread_number_of(void const* tag) noexcept {
  return *static_cast<std::uint64_t const*>(tag);
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
