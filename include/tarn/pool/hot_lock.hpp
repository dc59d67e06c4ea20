// SPDX-License-Identifier: Apache-2.0
#pragma once
// The arena's lock. Held for tens of nanoseconds, far less than putting a thread to sleep and waking it costs: who finds
// it taken spins for about a microsecond before it sleeps. One word, one atomic operation each way, in line: half of what
// std::mutex costs where nobody waits. (Drepper, "Futexes are tricky", 2011, mutex 2.)
// Above it: ladder, pool. Below it: core/wait.

#include <atomic>
#include <cstdint>
#include <mutex>

#include "tarn/core/config.hpp"
#include "tarn/core/wait.hpp"

namespace tarn::detail {

class hot_mutex {
 public:
  TARN_ALWAYS_INLINE void lock() noexcept {
    if (!try_lock()) [[unlikely]]
      wait();
  }
  [[nodiscard]] TARN_ALWAYS_INLINE bool try_lock() noexcept {
    std::uint32_t expected = open;
    return state_.compare_exchange_strong(expected, taken, std::memory_order_acquire,
                                          std::memory_order_relaxed);
  }
  TARN_ALWAYS_INLINE void unlock() noexcept {
    if (state_.exchange(open, std::memory_order_seq_cst) == awaited) [[unlikely]]
      state_.notify_one();
  }

 private:
  static constexpr std::uint32_t open = 0;
  static constexpr std::uint32_t taken = 1;
  static constexpr std::uint32_t awaited = 2;  ///< taken, and somebody may sleep
  static constexpr unsigned most_spins = 40;

  TARN_NOINLINE void wait() noexcept {
    for (unsigned tries = 0; tries < most_spins; ++tries) {
      wait_a_moment(0);
      if (state_.load(std::memory_order_relaxed) == open && try_lock()) return;
    }
    while (state_.exchange(awaited, std::memory_order_seq_cst) != open)
      state_.wait(awaited, std::memory_order_relaxed);
  }

  std::atomic<std::uint32_t> state_{open};
};

/// Held, or let go around driver calls.
using hot_lock = std::unique_lock<hot_mutex>;

}  // namespace tarn::detail
