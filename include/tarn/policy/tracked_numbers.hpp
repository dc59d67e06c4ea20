// SPDX-License-Identifier: Apache-2.0
#pragma once
// The counters of `tracked`: current, peak and totals in one order of all threads' calls, and high-water marks. Without
// contention, a thread counts under a lock. Under contention, the lock's owner counts for the waiting threads (combining_lock);
// then each thread gets a share of the room below the peaks, in which it counts on its own (tracked_share).

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>
#include <utility>

#include "tarn/core/at_fork.hpp"
#include "tarn/core/combining_lock.hpp"
#include "tarn/core/config.hpp"
#include "tarn/core/counter.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/thread_tag.hpp"
#include "tarn/core/waiting_block.hpp"
#include "tarn/policy/tracked_share.hpp"

namespace tarn {

/// Statistics of the blocks that were handed out; each array is indexed by block_group.
struct tracked_statistics {
  std::array<stat, 3> allocations;      ///< blocks
  std::array<stat, 3> allocated_bytes;  ///< as the pool rounds them
  std::array<stat, 3> requested_bytes;  ///< as requested
  std::uint64_t ooms = 0;               ///< requests refused
  /// The same, including freed blocks that the pool holds back for the work of other streams. Such a block counts with the
  /// bytes requested from the pool.
  std::array<stat, 3> active;
  std::array<stat, 3> active_bytes;
  std::array<stat, 3> active_requested_bytes;
};

/// Which threads' calls a high-water mark counts.
enum class peak_of { all_threads, this_thread };

/// A high-water mark over a scope; linked into its tracked_layer while it lives.
struct high_water_mark {
  std::int64_t start = 0;        ///< allocated bytes when it began (0 for one thread's)
  std::int64_t current = 0;      ///< current value
  std::int64_t peak = 0;         ///< the maximum since it began
  std::int64_t allocations = 0;  ///< blocks handed out since it began
  peak_of whose = peak_of::all_threads;
  std::uint64_t thread = 0;  ///< number of the thread whose calls count, for peak_of::this_thread
  high_water_mark* next = nullptr;
};

namespace detail {

/// Exact with any number of threads: a reader sees no call counted late or twice. Counting is O(1); reading is O(threads that
/// count on their own, at most 32).
class tracked_numbers {
 public:
  tracked_numbers() noexcept = default;
  tracked_numbers(tracked_numbers const&) = delete;
  tracked_numbers& operator=(tracked_numbers const&) = delete;
  ~tracked_numbers() {
    lock_.lock();  // another thread may fork
    tracked_share* const shares = std::exchange(shares_, nullptr);
    lock_.unlock();
    delete[] shares;
  }

  TARN_ALWAYS_INLINE void count(tracked_update const& u) noexcept {
    if (std::uint32_t const open = open_.load(std::memory_order_acquire); open != 0) [[unlikely]] {
      unsigned const mine = thread_place(u.thread);
      if ((open >> mine & 1) != 0 && shares_[mine].count(u)) return;
    }
    bool const waited = lock_.run(u, applier{*this});
    if (waited) [[unlikely]]
      ask(u.thread);
  }
  /// Number of threads that count on their own now.
  [[nodiscard]] int sharing() const noexcept { return std::popcount(open_.load(std::memory_order_relaxed)); }
  /// Requests a share for a thread. Shares are opened once at least two threads have requested one.
  void ask(void const* thread) noexcept {
    std::uint32_t const mine = std::uint32_t{1} << thread_place(thread);
    if ((asked_.load(std::memory_order_relaxed) & mine) == 0)
      asked_.fetch_or(mine, std::memory_order_relaxed);
  }
  void count_refusal() noexcept {
    std::lock_guard const guard(lock_);
    ++statistics_.ooms;
  }

  [[nodiscard]] tracked_statistics statistics() noexcept {
    std::lock_guard const guard(lock_);
    call_in();
    tracked_statistics all = statistics_;
    for (std::size_t g = 0; g < 3; ++g) {
      all.active[g] = active(0, g);
      all.active_bytes[g] = active(1, g);
      all.active_requested_bytes[g] = active(2, g);
    }
    return all;
  }
  void reset_peaks() noexcept {
    std::lock_guard const guard(lock_);
    call_in();
    for_each_stat([](stat& s) { s.reset_peak(); });
    for (std::size_t k = 0; k < 3; ++k) {
      for (std::size_t g = 0; g < 3; ++g) active_peak_[k][g] = number(k, g).current + waiting_[k][g];
    }
  }
  void reset_totals() noexcept {
    std::lock_guard const guard(lock_);
    call_in();
    for_each_stat([](stat& s) { s.reset_totals(); });
    not_over_ = {};
    statistics_.ooms = 0;
  }

  /// Counts blocks that start to wait after their deallocation, or, with negative amounts, stop waiting.
  void count_waiting(waiting_amount const& small, waiting_amount const& large) noexcept {
    std::lock_guard const guard(lock_);
    call_in();
    tracked_amounts const change{{{small.blocks + large.blocks, small.blocks, large.blocks},
                                  {small.bytes + large.bytes, small.bytes, large.bytes},
                                  {small.requested + large.requested, small.requested, large.requested}}};
    for (std::size_t k = 0; k < 3; ++k) {
      for (std::size_t g = 0; g < 3; ++g) {
        waiting_[k][g] += change[k][g];
        not_over_[k][g] += change[k][g];
      }
    }
    note_active(block_group::small);
    note_active(block_group::large);
    note_whether_watched();
  }

  void add(high_water_mark& mark, peak_of whose) noexcept {
    std::lock_guard const guard(lock_);
    call_in();
    mark.whose = whose;
    mark.thread = this_thread_number();
    mark.start = whose == peak_of::all_threads ? statistics_.allocated_bytes[0].current : 0;
    mark.current = mark.peak = mark.start;
    mark.next = marks_;
    marks_ = &mark;
    note_whether_watched();
  }
  void remove(high_water_mark& mark) noexcept {
    std::lock_guard const guard(lock_);
    call_in();
    for (high_water_mark** at = &marks_; *at != nullptr; at = &(*at)->next) {
      if (*at == &mark) {
        *at = mark.next;
        note_whether_watched();
        return;
      }
    }
  }
  [[nodiscard]] high_water_mark read(high_water_mark const& mark) noexcept {
    std::lock_guard const guard(lock_);
    call_in();
    return mark;
  }

 private:
  static constexpr unsigned share_count = thread_places;
  /// With fewer calls than this per share, opening shares costs more than it saves.
  static constexpr std::uint64_t least_calls = 4;
  static constexpr std::uint32_t longest_pause = 4096;

  /// Inlined for the case that the lock is free: a call would double the cost.
  struct applier {
    tracked_numbers& numbers;
    TARN_ALWAYS_INLINE void operator()(tracked_update const& u) const noexcept { numbers.apply(u); }
  };

  [[nodiscard]] stat& number(std::size_t kind, std::size_t group) noexcept {
    return kind == 0   ? statistics_.allocations[group]
           : kind == 1 ? statistics_.allocated_bytes[group]
                       : statistics_.requested_bytes[group];
  }

  /// The caller holds the lock.
  TARN_ALWAYS_INLINE void apply(tracked_update const& u) noexcept {
    bool const several = asked_.load(std::memory_order_relaxed) != 0;  // otherwise no share is open
    if (several && out_ != 0 && u.rounded > 0 && !fits(u)) [[unlikely]]
      call_in();
    auto const g = static_cast<std::size_t>(u.group);
    if (u.rounded > 0) {
      statistics_.allocations[0].increase(1);
      statistics_.allocations[g].increase(1);
      statistics_.allocated_bytes[0].increase(u.rounded);
      statistics_.allocated_bytes[g].increase(u.rounded);
      statistics_.requested_bytes[0].increase(u.requested);
      statistics_.requested_bytes[g].increase(u.requested);
    } else {
      statistics_.allocations[0].decrease(1);
      statistics_.allocations[g].decrease(1);
      statistics_.allocated_bytes[0].decrease(-u.rounded);
      statistics_.allocated_bytes[g].decrease(-u.rounded);
      statistics_.requested_bytes[0].decrease(-u.requested);
      statistics_.requested_bytes[g].decrease(-u.requested);
    }
    if (watched_) [[unlikely]]
      apply_watched(u);
    if (several && out_ == 0) [[unlikely]]
      hand_out();
  }

  /// A number including waiting blocks. If it passes its peak while nothing waits, it passes the peak of `number`, too.
  [[nodiscard]] stat active(std::size_t k, std::size_t g) noexcept {
    stat s = number(k, g);
    s.current += waiting_[k][g];
    s.peak = max_of(s.peak, active_peak_[k][g]);
    s.freed -= not_over_[k][g];
    return s;
  }
  void note_active(block_group group) noexcept {
    for (std::size_t k = 0; k < 3; ++k) {
      for (std::size_t const g : {std::size_t{0}, static_cast<std::size_t>(group)})
        active_peak_[k][g] = max_of(active_peak_[k][g], number(k, g).current + waiting_[k][g]);
    }
  }
  void note_whether_watched() noexcept {
    bool waits = false;
    for (auto const& kind : waiting_) {
      for (std::int64_t const amount : kind) waits = waits || amount != 0;
    }
    watched_ = waits || marks_ != nullptr;
  }
  /// How far a number may grow before it, or its sum with the waiting blocks, passes its peak.
  [[nodiscard]] std::int64_t room(std::size_t k, std::size_t g) noexcept {
    stat const& s = number(k, g);
    return min_of(s.peak, max_of(s.peak, active_peak_[k][g]) - waiting_[k][g]) - s.current;
  }

  /// Whether a block can be added without a new peak, even if all shares are used up.
  [[nodiscard]] bool fits(tracked_update const& u) noexcept {
    auto const change = u.by_kind();
    for (std::size_t k = 0; k < 3; ++k) {
      for (std::size_t const g : {std::size_t{0}, static_cast<std::size_t>(u.group)}) {
        if (change[k] + lent_[k][g] > room(k, g)) return false;
      }
    }
    for (high_water_mark const* m = marks_; m != nullptr; m = m->next) {
      if (m->current + u.rounded + lent_[1][0] > m->peak) return false;
    }
    return true;
  }

  /// Gives each requesting thread an equal share of the room below every peak, and keeps one.
  TARN_NOINLINE void hand_out() noexcept {
    if (pause_ != 0) {
      --pause_;
      return;
    }
    std::uint32_t const asked = asked_.load(std::memory_order_relaxed);
    int const takers = std::popcount(asked);
    if (takers < 2) return;
    if (shares_ == nullptr) shares_ = new (std::nothrow) tracked_share[share_count];
    if (shares_ == nullptr) return;
    tracked_amounts share{};
    for (std::size_t k = 0; k < 3; ++k) {
      for (std::size_t g = 0; g < 3; ++g) share[k][g] = room(k, g) / (takers + 1);
    }
    for (high_water_mark const* m = marks_; m != nullptr; m = m->next) {
      if (m->whose == peak_of::this_thread) return;  // a share does not distinguish its threads
      share[1][0] = min_of(share[1][0], (m->peak - m->current) / (takers + 1));
    }
    for (std::size_t k = 0; k < 3; ++k) {
      for (std::size_t g = 0; g < 3; ++g) lent_[k][g] = share[k][g] * takers;
    }
    for (std::uint32_t left = asked; left != 0; left &= left - 1) shares_[std::countr_zero(left)].open(share);
    out_ = asked;
    open_.store(asked, std::memory_order_release);
  }

  /// Takes all shares back. The caller holds the lock.
  TARN_NOINLINE void call_in() noexcept {
    if (out_ == 0) return;
    open_.store(0, std::memory_order_relaxed);
    std::uint64_t calls = 0;
    std::uint32_t idle = 0;
    for (std::uint32_t left = out_; left != 0; left &= left - 1) {
      int const i = std::countr_zero(left);
      std::uint64_t const made = shares_[i].close(
          [this](std::size_t k, std::size_t g, std::int64_t change, std::int64_t came) noexcept {
            number(k, g).add(change, came);
            for (high_water_mark* m = g == 0 ? marks_ : nullptr; m != nullptr; m = m->next) {
              if (k == 0) m->allocations += came;
              if (k == 1) m->current += change;
            }
          });
      calls += made;
      if (made == 0) idle |= std::uint32_t{1} << i;
    }
    if (idle != 0) asked_.fetch_and(~idle, std::memory_order_relaxed);
    bool const paid = calls >= least_calls * static_cast<std::uint64_t>(std::popcount(out_));
    last_pause_ = paid ? 0 : min_of(last_pause_ * 2 + 16, longest_pause);
    pause_ = last_pause_;
    out_ = 0;
  }

  TARN_NOINLINE void apply_watched(tracked_update const& u) noexcept {
    change_marks(u);
    note_active(u.group);
  }
  void change_marks(tracked_update const& u) noexcept {
    for (high_water_mark* m = marks_; m != nullptr; m = m->next) {
      if (m->whose != peak_of::all_threads && m->thread != thread_number_of(u.thread)) continue;
      m->current += u.rounded;
      if (u.rounded < 0) continue;
      m->peak = max_of(m->peak, m->current);
      ++m->allocations;
    }
  }
  template <class F>
  void for_each_stat(F const& f) noexcept {
    for (std::size_t k = 0; k < 3; ++k) {
      for (std::size_t g = 0; g < 3; ++g) f(number(k, g));
    }
  }

  tracked_share* shares_ = nullptr;      ///< made under the lock at the first contention; kept
  std::atomic<std::uint32_t> open_{0};   ///< threads whose share is open; a hint
  std::atomic<std::uint32_t> asked_{0};  ///< threads that found the lock taken or have a share
  combining_lock<tracked_update> lock_;
  // Under the lock:
  tracked_statistics statistics_;
  high_water_mark* marks_ = nullptr;
  bool watched_ = false;       ///< there is a mark, or a block waits
  tracked_amounts waiting_{};  ///< of the waiting blocks
  tracked_amounts
      active_peak_{};  ///< the maximum of a number plus waiting blocks, at the moments when something waited
  tracked_amounts not_over_{};  ///< what started to wait since the totals were reset, less what stopped
  std::uint32_t out_ = 0;       ///< threads whose share is open
  tracked_amounts lent_{};      ///< the room of all open shares
  std::uint32_t pause_ = 0;     ///< calls to count before shares are opened again
  std::uint32_t last_pause_ = 0;
  at_fork member_{this,
                  [](void* self) noexcept {
                    auto& n = *static_cast<tracked_numbers*>(self);
                    n.lock_.lock();
                    for (unsigned i = 0; n.shares_ != nullptr && i < share_count; ++i) n.shares_[i].lock();
                    return true;
                  },
                  [](void* self, fork_side) noexcept {
                    auto& n = *static_cast<tracked_numbers*>(self);
                    for (unsigned i = 0; n.shares_ != nullptr && i < share_count; ++i) n.shares_[i].unlock();
                    n.lock_.unlock();
                  }};
};

}  // namespace detail
}  // namespace tarn
