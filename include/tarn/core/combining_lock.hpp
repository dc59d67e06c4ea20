// SPDX-License-Identifier: Apache-2.0
#pragma once
// A lock around small updates that lets its holder apply the updates of waiting threads. A thread that finds
// the lock held publishes its update; the holder applies it before unlocking, so the guarded data stays in
// one processor's cache. (Flat combining: Hendler, Incze, Shavit, Tzafrir, SPAA 2010.) Every update has been
// applied when its call returns.
//
//   a waiting thread                         the holder
//   update = ...                             bits = exchange(asked, 0) (acquire)
//   asked |= its bit (release)               for each bit: apply its update, at = done (release)
//   until at == done (acquire)               unlock (release)
//
// An update is read once, after it was written: its bit is set by the thread alone, and each exchange returns
// it to one holder, which acquires what the thread released. The thread's slot is its own again once it reads
// done, which the holder writes after its last read. No bit is forgotten: unlock() may leave one, and then
// its thread finds the lock free, takes it, and sees its own bit or, later, done. tests/core/litmus/ has
// these arguments as litmus tests.

#include <atomic>
#include <bit>
#include <cstdint>

#include "tarn/core/config.hpp"
#include "tarn/core/spin_lock.hpp"
#include "tarn/core/thread_tag.hpp"
#include "tarn/core/wait.hpp"

namespace TARN_NAMESPACE::detail {

/// @tparam Update  copyable and small; `apply(Update const&)` must not throw
template <class Update>
class combining_lock {
 public:
  /// Applies `update`, on this thread or on the lock's holder, one at a time; updates of one thread keep
  /// their order. Uncontended: one exchange. Returns true if the lock was held at first.
  template <class Apply>
  TARN_ALWAYS_INLINE bool run(Update const& update, Apply const& apply) noexcept {
    if (try_lock()) [[likely]] {
      apply(update);
      unlock_after(apply);
      return false;
    }
    wait(update, apply);
    return true;
  }
  /// The parts of run(), for a caller whose own update needs no copy: try_lock(), then the update, then
  /// unlock_after(apply); if the lock is held, wait(update, apply).
  [[nodiscard]] TARN_ALWAYS_INLINE bool try_lock() noexcept { return lock_.try_lock(); }
  /// Applies published updates, then unlocks.
  template <class Apply>
  TARN_ALWAYS_INLINE void unlock_after(Apply const& apply) noexcept {
    if (asked_.load(std::memory_order_relaxed) != 0) [[unlikely]]
      combine(apply);
    lock_.unlock();
  }
  /// Publishes the update and waits until it has been applied, here or by the lock's holder.
  template <class Apply>
  TARN_NOINLINE void wait(Update const& update, Apply const& apply) noexcept {
    unsigned const mine = take_slot();
    if (mine == slot_count) {
      lock();
      apply(update);
      unlock_after(apply);
      return;
    }
    slot& s = slots_[mine];
    s.update = update;
    s.at.store(step::asked, std::memory_order_relaxed);
    asked_.fetch_or(std::uint32_t{1} << mine, std::memory_order_release);
    for (unsigned tries = 0; s.at.load(std::memory_order_acquire) != step::done; ++tries) {
      // Try rarely, so that the lock stays with the thread that works under it.
      if (tries % tries_apart == 0 && !lock_.is_taken() && lock_.try_lock()) {
        unlock_after(apply);  // applies this thread's update unless the holder already has
      } else {
        spin_wait(tries);
      }
    }
    s.at.store(step::free, std::memory_order_release);
  }

  /// Locks without an update.
  void lock() noexcept { lock_.lock(); }
  /// Unlocks without applying published updates; their threads find the lock free and apply them.
  void unlock() noexcept { lock_.unlock(); }
  /// In a forked child, by the lock's holder: drops the updates of threads that do not exist there.
  void forget_other_threads() noexcept {
    asked_.store(0, std::memory_order_relaxed);
    for (slot& s : slots_) s.at.store(step::free, std::memory_order_relaxed);
  }

 private:
  struct step {  // of a type whose std::atomic is there anyway
    enum : unsigned { free, taken, asked, done };
  };
  struct alignas(cache_line_bytes) slot {
    std::atomic<unsigned> at{step::free};
    Update update{};
  };
  static constexpr unsigned slot_count = 32;  // one bit each in asked_
  static constexpr unsigned tries_apart = 8;

  template <class Apply>
  TARN_NOINLINE void combine(Apply const& apply) noexcept {
    for (std::uint32_t asked = asked_.exchange(0, std::memory_order_acquire); asked != 0;
         asked &= asked - 1) {
      slot& s = slots_[static_cast<unsigned>(std::countr_zero(asked))];
      apply(s.update);
      s.at.store(step::done, std::memory_order_release);
    }
  }

  /// Takes a free slot for one update; returns slot_count if all are taken.
  unsigned take_slot() noexcept {
    auto const first = static_cast<unsigned>(this_thread_number() % slot_count);
    for (unsigned i = 0; i < slot_count; ++i) {
      unsigned const k = (first + i) % slot_count;
      unsigned expected = step::free;
      if (slots_[k].at.load(std::memory_order_relaxed) == step::free &&
          slots_[k].at.compare_exchange_strong(expected, step::taken, std::memory_order_acquire)) {
        return k;
      }
    }
    return slot_count;
  }

  alignas(cache_line_bytes) spin_lock lock_;
  alignas(cache_line_bytes) std::atomic<std::uint32_t> asked_{0};
  slot slots_[slot_count];
};

}  // namespace TARN_NAMESPACE::detail
