// SPDX-License-Identifier: Apache-2.0
#pragma once
// Identifiers for threads: an address among running threads, and a number that is never reused.

#include <atomic>
#include <cstdint>

#include "tarn/version.hpp"

namespace TARN_NAMESPACE::detail {

/// Storage of a thread's number; 0 until the thread needs one.
[[nodiscard]] inline std::uint64_t& thread_number_place() noexcept {
  static thread_local constinit std::uint64_t number = 0;
  return number;
}

/// The last number given; constant-initialised, so that it exists before any thread uses it. A module of the
/// process may have one of its own (a plug-in with hidden symbols).
inline constinit std::atomic<std::uint64_t> last_thread_number{0};

/// Returns an address unique among running threads; a later thread may get the same one.
inline void const* this_thread_tag() noexcept {
  return &thread_number_place();
}

/// Returns a number unique to this thread and never reused; never 0. Assigned at the first call.
[[nodiscard]] inline std::uint64_t this_thread_number() noexcept {
  std::uint64_t& number = thread_number_place();
  if (number == 0) number = last_thread_number.fetch_add(1, std::memory_order_relaxed) + 1;
  return number;
}

}  // namespace TARN_NAMESPACE::detail
