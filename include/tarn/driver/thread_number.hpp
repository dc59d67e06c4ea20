// SPDX-License-Identifier: Apache-2.0
#pragma once
// A number for the calling thread that no other thread of the process ever gets: what names its default
// stream.

#include <atomic>
#include <cstdint>

namespace tarn::detail {

/// Source of thread numbers; constant-initialised, so that it exists before any thread asks.
inline std::atomic<std::uint64_t> next_thread_number{1};

/// The calling thread's number, from 1. Unlike a thread's id it is not reused after the thread ends.
[[nodiscard]] inline std::uint64_t thread_number() noexcept {
  thread_local std::uint64_t const number = next_thread_number.fetch_add(1, std::memory_order_relaxed);
  return number;
}

}  // namespace tarn::detail
