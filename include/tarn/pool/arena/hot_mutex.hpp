// SPDX-License-Identifier: Apache-2.0
#pragma once
// The arena's mutex, which spins for about a microsecond before it sleeps. It is held for tens of
// nanoseconds, far less than putting a thread to sleep and waking it costs. One word and one inlined atomic
// operation each way: half the cost of std::mutex without contention. (Drepper, "Futexes are tricky", 2011,
// mutex 2.)

#include <atomic>
#include <cstdint>

#include "tarn/core/config.hpp"
#include "tarn/core/source_location.hpp"
#include "tarn/core/wait.hpp"

namespace TARN_NAMESPACE::detail {

/// What a mutex records of its holds if TARN_CHECK_LOCKS is 1. Written by the holder.
template <bool Checked>
class hold_record {
 public:
  void begin() noexcept { ++number_; }
  void release(source_location where) noexcept { released_at_ = where; }
  /// The number of the current hold; unique for each hold.
  [[nodiscard]] std::uint64_t const& number() const noexcept { return number_; }
  /// Where the lock was last released in the middle of a hot_lock's scope.
  [[nodiscard]] source_location released_at() const noexcept { return released_at_; }

 private:
  std::uint64_t number_ = 0;
  source_location released_at_{};
};
template <>
class hold_record<false> {
 public:
  void begin() noexcept {}
  void release(source_location) noexcept {}
  [[nodiscard]] std::uint64_t const& number() const noexcept { return none; }
  [[nodiscard]] source_location released_at() const noexcept { return {}; }

 private:
  static constexpr std::uint64_t none = 0;
};

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

  /// Written by the holder.
  [[nodiscard]] hold_record<check_locks>& hold() noexcept { return hold_; }

 private:
  static constexpr std::uint32_t open = 0;
  static constexpr std::uint32_t taken = 1;
  static constexpr std::uint32_t awaited = 2;  ///< taken, and a thread may be sleeping
  static constexpr unsigned most_spins = 40;

  TARN_NOINLINE void wait() noexcept {
    for (unsigned tries = 0; tries < most_spins; ++tries) {
      spin_wait(0);
      if (state_.load(std::memory_order_relaxed) == open && try_lock()) return;
    }
    while (state_.exchange(awaited, std::memory_order_seq_cst) != open)
      state_.wait(awaited, std::memory_order_relaxed);
  }

  std::atomic<std::uint32_t> state_{open};
  [[no_unique_address]] hold_record<check_locks> hold_;
};

}  // namespace TARN_NAMESPACE::detail
