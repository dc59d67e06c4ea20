// SPDX-License-Identifier: Apache-2.0
#pragma once
// The counters of `tracked`: current values, peaks and totals of all threads' calls, and high-water marks.
// There are two ways to count. Each thread has a slot (tracked_slot), in which it counts small blocks alone.
// Large blocks, and whatever a slot cannot take, are counted under a lock, whose holder counts for the
// threads that wait for it (combining_lock), and there peaks rise. No thread stops another.
//
// Peaks are exact as long as no two calls overlap. Then one thread at a time is the `owner`: all other slots
// are published, so the owner knows how far each number is below its peak. Another thread that counts finds a
// new generation or a slot that is not open, takes the lock, becomes the owner, and publishes the former
// owner's slot. That one finds that the generation has changed:
//
//   owner                          another thread
//   counts in its slot
//   (hands over, by whatever)      takes the lock, ++generation, publishes that slot twice: the second time nothing has moved
//                                  counts in its slot
//
// If something moves meanwhile, or a call waits for the lock while another one is counted, calls overlap.
// From then on there is no owner: each thread publishes when it differs from what it published by more than
// the bound, and a peak is that of the published sums. What was counted is within the sum of the bounds of
// what was published, and so is a peak. A peak that is reset, or a scope that begins, starts anew: it is
// exact until calls overlap after it.

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "tarn/core/at_fork.hpp"
#include "tarn/core/combining_lock.hpp"
#include "tarn/core/config.hpp"
#include "tarn/core/counter.hpp"
#include "tarn/core/deferred_count.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/mutex.hpp"
#include "tarn/core/thread_tag.hpp"
#include "tarn/policy/tracked_slot.hpp"
#include "tarn/pool/arena/size_class.hpp"

namespace TARN_NAMESPACE::detail {

/// Counting a call in a slot is O(1), under the lock O(marks). Reading is O(threads that have counted, at
/// most 32).
class tracked_numbers {
 public:
  /// @param peak_error  bytes; 0: each call is counted under the lock
  explicit tracked_numbers(std::size_t peak_error) noexcept
      : table_(peak_error != 0 ? &places_of_threads : nullptr) {
    auto const bytes = static_cast<std::int64_t>(min_of(peak_error, std::size_t{1} << 60));
    // A call that another thread has overtaken may add a small block to what its slot differs by.
    std::int64_t const most = bytes < std::int64_t{class_limit} ? bytes / 2 : bytes;
    bound_ = {max_of(bytes / bytes_per_block, std::int64_t{1}), most, most};
  }

  /// Counts one block. @param rounded, requested  bytes
  TARN_ALWAYS_INLINE void count_allocation(std::size_t rounded, std::size_t requested,
                                           block_group group) noexcept {
    thread_place const its = this_thread_place;
    auto const r = static_cast<std::int64_t>(rounded);
    auto const q = static_cast<std::int64_t>(requested);
    if (group == block_group::larger || its.table != table_ ||
        !slots_[its.index].allocate(generation(), r, q)) [[unlikely]]
      count_slowly(r, q, false, group);
  }
  TARN_ALWAYS_INLINE void count_deallocation(std::size_t rounded, std::size_t requested,
                                             block_group group) noexcept {
    thread_place const its = this_thread_place;
    auto const r = static_cast<std::int64_t>(rounded);
    auto const q = static_cast<std::int64_t>(requested);
    if (group == block_group::larger || its.table != table_ ||
        !slots_[its.index].deallocate(generation(), r, q)) [[unlikely]]
      count_slowly(r, q, true, group);
  }
  /// Counts what one block becomes longer by, in one step: no reader sees the block gone.
  TARN_NOINLINE void count_extension(std::size_t rounded, std::size_t requested, block_group group) noexcept {
    if (this_thread_place.table == nullptr && table_ != nullptr) place_holder::take();
    lock_.run({{0, static_cast<std::int64_t>(rounded), static_cast<std::int64_t>(requested)},
               false,
               my_place(),
               thread_number_place(),
               group},
              applier{*this});
  }
  /// Counts a change as the thread that it names would.
  void count(tracked_update const& u) noexcept {
    if (u.group == block_group::smaller) {
      tracked_slot& mine = slots_[u.place];
      if (u.is_free && mine.is_open(generation())) mine.renew();
      if (u.is_free ? mine.deallocate(generation(), u.by[1], u.by[2])
                    : mine.allocate(generation(), u.by[1], u.by[2]))
        return;
    }
    lock_.run(u, applier{*this});
  }
  void count_refusal() noexcept {
    scoped_lock const guard(lock_);
    ++ooms_;
  }
  /// Whether calls have overlapped since a peak was reset or a scope began last: peaks are within the bound
  /// only.
  [[nodiscard]] bool has_overlapped() noexcept {
    scoped_lock const guard(lock_);
    return overlapped_;
  }

  [[nodiscard]] tracked_statistics statistics() noexcept {
    scoped_lock const guard(lock_);
    both_totals const now = totals();
    tracked_statistics all;
    all.ooms = ooms_;
    for (std::size_t g = 0; g < 3; ++g) {
      all.allocations[g] = allocated(now, g, 0);
      all.allocated_bytes[g] = allocated(now, g, 1);
      all.requested_bytes[g] = allocated(now, g, 2);
      all.active[g] = active(now, g, 0);
      all.active_bytes[g] = active(now, g, 1);
      all.active_requested_bytes[g] = active(now, g, 2);
    }
    return all;
  }
  void reset_peaks() noexcept {
    scoped_lock const guard(lock_);
    both_totals const now = totals_at_once();
    for_each_amount([&](std::size_t g, std::size_t k) {
      peak_[g][k] = live(now, g, k);
      active_peak_[g][k] = live(now, g, k) + deferred_[g][k];
    });
    start_anew();
  }
  void reset_totals() noexcept {
    scoped_lock const guard(lock_);
    at_reset_ = totals();
    deferred_at_reset_ = deferred_;
    ooms_ = 0;
  }

  /// Counts blocks that are deferred after their deallocation, or, with negative amounts, are no longer.
  void count_deferred(deferred_amount const& smaller, deferred_amount const& larger) noexcept {
    scoped_lock const guard(lock_);
    tracked_kinds const s{smaller.blocks, smaller.bytes, smaller.requested};
    tracked_kinds const l{larger.blocks, larger.bytes, larger.requested};
    for_each_amount(
        [&](std::size_t g, std::size_t k) { deferred_[g][k] += (g != 2 ? s[k] : 0) + (g != 1 ? l[k] : 0); });
    settle(my_place(), thread_number_place());
  }

  void add(high_water_mark& mark, peak_of whose) noexcept {
    // A thread that has no place now must not get one, and with it the slot of a thread that has ended.
    if (whose == peak_of::this_thread) place_holder::take_now_or_never();
    scoped_lock const guard(lock_);
    mark = {};
    mark.whose = whose;
    mark.thread = this_thread_number();
    mark.next = marks_;
    marks_ = &mark;
    if (whose == peak_of::this_thread) {
      if (unsigned const place = my_place(); place != common) slots_[place].close();
      return;
    }
    mark.start = mark.current = mark.peak = live(totals_at_once(), 0, 1);
    mark.allocations = -allocations(totals());  // while it is linked, less those of all time
    start_anew();
  }
  void remove(high_water_mark& mark) noexcept {
    scoped_lock const guard(lock_);
    for (high_water_mark** at = &marks_; *at != nullptr; at = &(*at)->next) {
      TARN_VISIT();
      if (*at != &mark) continue;
      *at = mark.next;
      return complete(mark);
    }
  }
  [[nodiscard]] high_water_mark read(high_water_mark const& mark) noexcept {
    scoped_lock const guard(lock_);
    high_water_mark now = mark;
    for (high_water_mark const* m = marks_; m != nullptr; m = m->next) {
      TARN_VISIT();
      if (m == &mark) complete(now);
    }
    return now;
  }

  void lock() noexcept { lock_.lock(); }  // for held_at_fork
  void unlock() noexcept { lock_.unlock(); }
  void forget_other_threads() noexcept {
    lock_.forget_other_threads();
    keep_own_items(marks_);
  }

 private:
  using both_totals = std::array<tracked_totals, 2>;  ///< of small and of large blocks
  /// The error of a peak in bytes, divided by this, is its error in blocks.
  static constexpr std::int64_t bytes_per_block = 1024;
  /// The place of the threads that have none. They count under the lock.
  static constexpr unsigned common = thread_places;

  /// Counts calls under the lock: that of its holder, and those of threads that wait. If it counts several,
  /// they overlap.
  struct applier {
    tracked_numbers& numbers;
    mutable bool is_first = true;
    void operator()(tracked_update const& u) const noexcept {
      if (!is_first && numbers.table_ != nullptr) numbers.note_overlap();
      is_first = false;
      numbers.apply(u);
    }
  };

  TARN_NOINLINE void count_slowly(std::int64_t rounded, std::int64_t requested, bool is_free,
                                  block_group group) noexcept {
    if (this_thread_place.table == nullptr && table_ != nullptr) place_holder::take();
    count({{1, rounded, requested}, is_free, my_place(), thread_number_place(), group});
  }
  [[nodiscard]] unsigned my_place() const noexcept {
    return this_thread_place.table == table_ ? this_thread_place.index : common;
  }
  [[nodiscard]] TARN_ALWAYS_INLINE std::uint64_t generation() const noexcept {
    return generation_.load(std::memory_order_relaxed);
  }

  // ---- under the lock

  void apply(tracked_update const& u) noexcept {
    tracked_slot& mine = slots_[u.place];
    bool const in_slot = u.group == block_group::smaller && u.place != common;
    if (in_slot) {
      mine.count(u);
    } else {
      sums_[u.group == block_group::larger ? 1 : 0].add(u);
    }
    for (high_water_mark* m = marks_; m != nullptr; m = m->next) {
      TARN_VISIT();
      if (!is_of(*m, u.thread)) continue;
      m->current += u.is_free ? -u.by[1] : u.by[1];
      m->peak = max_of(m->peak, m->current);
      m->allocations += u.is_free ? 0 : u.by[0];
    }
    if (!in_slot && owner_ == u.place) {  // as nothing else has changed, this is enough
      if (u.place == common) return u.is_free ? void() : raise_peaks();
      if (mine.is_open(generation()) && mine.fits(u)) return;
    }
    settle(u.place, u.thread);
  }
  /// Publishes what a thread counted, raises the peaks, and lets the thread count on its own.
  void settle(unsigned place, std::uint64_t thread) noexcept {
    tracked_slot& mine = slots_[place];
    used_ |= std::uint64_t{1} << place;
    (void)mine.publish(sums_[0]);
    if (!overlapped_ && owner_ != place) {
      ++generation_;
      unsigned const former = detail::exchange(owner_, place);
      (void)publish_of(former);
      if (publish_of(former)) note_overlap();
    }
    raise_peaks();
    if (place == common) return;
    bool is_watched = false;
    for (high_water_mark const* m = marks_; m != nullptr; m = m->next) {
      TARN_VISIT();
      is_watched |= is_of(*m, thread);
    }
    if (is_watched) return mine.close();
    mine.open(generation(), bound_, overlapped_ ? tracked_amounts{bound_, bound_, bound_} : room());
  }
  /// Calls overlap: there is no owner any more.
  void note_overlap() noexcept {
    overlapped_ = true;
    owner_ = unowned;
  }
  /// Peaks are exact from now on, until calls overlap: the next thread that counts is the owner.
  void start_anew() noexcept {
    ++generation_;
    overlapped_ = false;
    owner_ = unowned;
  }

  template <class F>
  static void for_each_amount(F const& f) noexcept {
    for (std::size_t g = 0; g < 3; ++g) {
      for (std::size_t k = 0; k < 3; ++k) f(g, k);
    }
  }
  template <class F>
  void for_each_slot(F const& f) noexcept {
    for (std::uint64_t left = used_; left != 0; left &= left - 1)
      f(slots_[static_cast<unsigned>(std::countr_zero(left))]);
  }
  /// Publishes what an owner has counted; without one, what all threads have. Returns whether there was
  /// anything.
  bool publish_of(unsigned owner) noexcept {
    if (owner != unowned) return slots_[owner].publish(sums_[0]);
    bool any = false;
    for_each_slot([&](tracked_slot& s) { any |= s.publish(sums_[0]); });
    return any;
  }
  [[nodiscard]] both_totals read_slots() noexcept {
    both_totals all = sums_;
    for_each_slot([&](tracked_slot const& s) { all[0].add(s.read(), s.published()); });
    return all;
  }
  /// All that was counted. While threads count, of a block that moved from one to another only the free may
  /// have been read. Otherwise a negative number shows that more was freed than allocated.
  [[nodiscard]] both_totals totals() noexcept {
    both_totals const all = read_slots();
    return all == read_slots() ? all : without_debt(all);
  }
  /// The same for a peak to start from: while threads count, what is published, which is within the bound.
  /// Slots that are read one after the other may add up to more than ever was allocated.
  [[nodiscard]] both_totals totals_at_once() noexcept {
    both_totals const all = read_slots();
    return all == read_slots() ? all : without_debt(sums_);
  }
  [[nodiscard]] static both_totals without_debt(both_totals all) noexcept {
    for (std::size_t k = 0; k < 3; ++k) all[0].left[k] = min_of(all[0].left[k], all[0].came[k]);
    return all;
  }
  [[nodiscard]] static std::int64_t live(both_totals const& of, std::size_t group, std::size_t k) noexcept {
    return group == 0 ? of[0].live(k) + of[1].live(k) : of[group - 1].live(k);
  }

  void raise_peaks() noexcept {
    for_each_amount([&](std::size_t g, std::size_t k) {
      std::int64_t const now = live(sums_, g, k);
      peak_[g][k] = max_of(peak_[g][k], now);
      active_peak_[g][k] = max_of(active_peak_[g][k], now + deferred_[g][k]);
    });
    for (high_water_mark* m = marks_; m != nullptr; m = m->next) {
      TARN_VISIT();
      if (m->whose == peak_of::all_threads) m->peak = max_of(m->peak, live(sums_, 0, 1));
    }
  }
  /// How much may be counted before a peak rises.
  [[nodiscard]] tracked_amounts room() const noexcept {
    tracked_amounts r{};
    for_each_amount([&](std::size_t g, std::size_t k) {
      r[g][k] = min_of(peak_[g][k], active_peak_[g][k] - deferred_[g][k]) - live(sums_, g, k);
    });
    for (high_water_mark const* m = marks_; m != nullptr; m = m->next) {
      TARN_VISIT();
      if (m->whose == peak_of::all_threads) r[0][1] = min_of(r[0][1], m->peak - live(sums_, 0, 1));
    }
    return r;
  }

  [[nodiscard]] counter allocated(both_totals const& now, std::size_t group, std::size_t k) const noexcept {
    counter s;
    s.current = live(now, group, k);
    s.peak = max_of(peak_[group][k], s.current);
    for (std::size_t g = 0; g < 2; ++g) {
      if (group == 2 - g) continue;
      s.allocated += now[g].came[k] - at_reset_[g].came[k];
      s.freed += now[g].left[k] - at_reset_[g].left[k];
    }
    return s;
  }
  [[nodiscard]] counter active(both_totals const& now, std::size_t group, std::size_t k) const noexcept {
    counter s = allocated(now, group, k);
    s.current += deferred_[group][k];
    s.peak = max_of(active_peak_[group][k], s.current);
    s.freed = max_of(s.freed - (deferred_[group][k] - deferred_at_reset_[group][k]), std::int64_t{0});
    return s;
  }
  [[nodiscard]] static std::int64_t allocations(both_totals const& now) noexcept {
    return now[0].came[0] + now[1].came[0];
  }
  [[nodiscard]] static bool is_of(high_water_mark const& m, std::uint64_t thread) noexcept {
    return m.whose == peak_of::this_thread && m.thread == thread;
  }
  /// Gives a linked mark its current values.
  void complete(high_water_mark& mark) noexcept {
    if (mark.whose == peak_of::this_thread) return;
    mark.current = live(totals_at_once(), 0, 1);
    mark.peak = max_of(mark.peak, mark.current);
    mark.allocations += allocations(totals());
  }

  static constexpr unsigned unowned = common + 1;

  place_table const* const table_;  ///< of the module that made this; null: no thread has a slot
  std::atomic<std::uint64_t> generation_{1};
  tracked_kinds bound_{};  ///< by how much a slot may differ from what it published
  std::array<tracked_slot, thread_places + 1> slots_;  ///< by place
  combining_lock<tracked_update> lock_;
  // Under the lock:
  both_totals sums_{};      ///< what was published of small blocks, and all large ones
  both_totals at_reset_{};  ///< when the totals were reset
  tracked_amounts peak_{};
  tracked_amounts active_peak_{};
  tracked_amounts deferred_{};
  tracked_amounts deferred_at_reset_{};
  std::uint64_t ooms_ = 0;
  high_water_mark* marks_ = nullptr;
  std::uint64_t used_ = 0;    ///< places whose slots have counted
  unsigned owner_ = unowned;  ///< place of the thread that knows all sums
  bool overlapped_ = false;
  held_at_fork<tracked_numbers> member_{*this};
};

}  // namespace TARN_NAMESPACE::detail
