// SPDX-License-Identifier: Apache-2.0
#pragma once
// Process-wide unique thread numbers, which identify per-thread default streams.

#include <atomic>
#include <cstdint>

namespace tarn::detail {

/// Source of thread numbers; constant-initialised, so that it exists before any thread uses it.
inline std::atomic<std::uint64_t> next_thread_number{1};

/// Returns the calling thread's number, from 1. Unlike a thread id it is not reused after the thread ends.
[[nodiscard]] inline std::uint64_t thread_number() noexcept {
  thread_local std::uint64_t const number = next_thread_number.fetch_add(1, std::memory_order_relaxed);
  return number;
}

}  // namespace tarn::detail
