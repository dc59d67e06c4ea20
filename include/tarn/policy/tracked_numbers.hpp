// SPDX-License-Identifier: Apache-2.0
#pragma once
// The counters of `tracked`: current, peak and totals in one order of all threads' calls, and high-water marks. Without
// contention, a thread counts under a lock. Under contention, the lock's owner counts for the waiting threads (combining_lock);
// then each thread gets a share of the room below the peaks, in which it counts on its own (tracked_share). A thread whose share is
// too small takes room from the others'. If peaks may be off by a bound, a share has that room whatever the peaks are, and is published
// when it is used up: another thread's share is never touched.
//
// Over 400 lines: the three ways of counting pass the same counters to one another under the same lock, and are read together.

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
/// count on their own, at most 32). Peaks are exact, too, unless `peak_error` allows that they are not; see tracked.
class tracked_numbers {
 public:
  tracked_numbers() noexcept = default;
  /// @param peak_error  bytes; 0: peaks are exact
  explicit tracked_numbers(std::size_t peak_error) noexcept {
    constexpr std::size_t most = std::size_t{1} << 60;  // twice as much can be counted
    auto const bytes = static_cast<std::int64_t>(min_of(peak_error, most));
    std::int64_t const blocks = min_of(bytes, max_of(bytes / bytes_per_block, std::int64_t{1}));
    for (std::size_t g = 0; g < 3; ++g) {
      error_[0][g] = blocks;
      error_[1][g] = error_[2][g] = bytes;
    }
  }
  tracked_numbers(tracked_numbers const&) = delete;
  tracked_numbers& operator=(tracked_numbers const&) = delete;
  ~tracked_numbers() {
    lock_.lock();  // another thread may fork
    tracked_share* const shares = std::exchange(shares_, nullptr);
    lock_.unlock();
    delete[] shares;
  }

  /// Counts one block. @param rounded, requested  bytes
  TARN_ALWAYS_INLINE void count_allocation(std::size_t rounded, std::size_t requested,
                                           block_group group) noexcept {
    count<change_kind::allocation>(rounded, requested, group);
  }
  TARN_ALWAYS_INLINE void count_deallocation(std::size_t rounded, std::size_t requested,
                                             block_group group) noexcept {
    count<change_kind::deallocation>(rounded, requested, group);
  }
  /// Counts a change by the thread that it names, while other threads count.
  void count(tracked_update const& u) noexcept {
    if (std::uint32_t const open = open_.load(std::memory_order_acquire); open != 0) {
      unsigned const mine = thread_place(u.thread);
      if ((open >> mine & 1) != 0 &&
          (shares_[mine].count(u) || (!has_error() && count_with_others_room(open, mine, u))))
        return;
    }
    if (lock_.run(u, applier{*this})) ask(u.thread);
  }
  /// Number of threads that count on their own now.
  [[nodiscard]] int sharing() const noexcept { return std::popcount(open_.load(std::memory_order_relaxed)); }
  /// Requests a share for a thread. Shares are opened once at least two threads have requested one.
  void ask(void const* thread) noexcept {
    std::uint64_t const mine = std::uint64_t{1} << thread_place(thread);
    if ((flags_.load(std::memory_order_relaxed) & mine) == 0)
      flags_.fetch_or(mine, std::memory_order_relaxed);
  }
  void count_refusal() noexcept {
    std::lock_guard const guard(lock_);
    ++ooms_;
  }

  [[nodiscard]] tracked_statistics statistics() noexcept {
    std::lock_guard const guard(lock_);
    call_in();
    tracked_statistics all;
    all.ooms = ooms_;
    for (std::size_t g = 0; g < 3; ++g) {
      all.allocations[g] = number(0, g);
      all.allocated_bytes[g] = number(1, g);
      all.requested_bytes[g] = number(2, g);
      all.active[g] = active(0, g);
      all.active_bytes[g] = active(1, g);
      all.active_requested_bytes[g] = active(2, g);
    }
    return all;
  }
  void reset_peaks() noexcept {
    std::lock_guard const guard(lock_);
    call_in();
    for (std::size_t k = 0; k < 3; ++k) {
      for (std::size_t g = 1; g < 3; ++g) of(k, g).peak = of(k, g).current;
      peak_of_all_[k] = current(k, 0);
      for (std::size_t g = 0; g < 3; ++g) active_peak_[k][g] = current(k, g) + waiting_[k][g];
    }
  }
  void reset_totals() noexcept {
    std::lock_guard const guard(lock_);
    call_in();
    for (group_numbers& its : groups_) {
      for (group_number& n : its.of) {
        n.allocated = 0;
        n.at_reset = n.current;
      }
    }
    not_over_ = {};
    ooms_ = 0;
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
    mark.start = whose == peak_of::all_threads ? current(1, 0) : 0;
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
  static constexpr std::uint64_t all_threads = 0xFFFF'FFFF;  ///< of flags_
  static constexpr std::uint64_t watched_flag = all_threads + 1;
  /// With fewer calls than this per share, opening shares costs more than it saves.
  static constexpr std::uint64_t least_calls = 4;
  static constexpr std::uint32_t longest_pause = 4096;
  /// The error of a peak in bytes, divided by this, is its error in blocks.
  static constexpr std::int64_t bytes_per_block = 4096;
  /// Shares that are asked for room before the lock is taken, which may take room from all.
  static constexpr unsigned most_donors = 4;

  struct applier {
    tracked_numbers& numbers;
    void operator()(tracked_update const& u) const noexcept { numbers.apply(u); }
  };

  /// One number of one group. The sums of both groups and the totals freed are computed when they are read, so that a call
  /// updates as little as possible.
  struct group_number {
    std::int64_t current = 0;
    std::int64_t peak = 0;
    std::int64_t allocated = 0;  ///< total
    std::int64_t at_reset = 0;   ///< current when the totals were reset
  };
  /// Blocks, rounded bytes, requested bytes. Aligned, so that a group is addressed by a shift.
  struct alignas(128) group_numbers {
    std::array<group_number, 3> of;
  };

  [[nodiscard]] group_number& of(std::size_t k, std::size_t group) noexcept {
    return groups_[group - 1].of[k];
  }
  [[nodiscard]] std::int64_t current(std::size_t k, std::size_t group) noexcept {
    return group == 0 ? of(k, 1).current + of(k, 2).current : of(k, group).current;
  }
  [[nodiscard]] std::int64_t peak(std::size_t k, std::size_t group) noexcept {
    return group == 0 ? peak_of_all_[k] : of(k, group).peak;
  }
  [[nodiscard]] stat number(std::size_t k, std::size_t group) noexcept {
    stat s;
    s.current = current(k, group);
    s.peak = peak(k, group);
    for (std::size_t g = 1; g < 3; ++g) {
      if (group != 0 && group != g) continue;
      s.allocated += of(k, g).allocated;
      s.freed += of(k, g).allocated + of(k, g).at_reset - of(k, g).current;
    }
    return s;
  }

  enum class change_kind : std::uint8_t { allocation, deallocation };

  template <change_kind Kind>
  TARN_ALWAYS_INLINE void count(std::size_t rounded, std::size_t requested, block_group group) noexcept {
    if (open_.load(std::memory_order_acquire) != 0) [[unlikely]]
      return count_with_shares<Kind>(rounded, requested, group);
    if (!lock_.try_lock()) [[unlikely]]
      return count_by_waiting<Kind>(rounded, requested, group);
    if (flags_.load(std::memory_order_relaxed) != 0) [[unlikely]] {
      apply_here<Kind>(rounded, requested, group);
    } else {
      add<Kind>(rounded, requested, group);
    }
    lock_.unlock_after(applier{*this});
  }
  /// Counts a block in a share that has not enough room, with room of one of the next shares: without the lock that all threads share.
  [[nodiscard]] bool count_with_others_room(std::uint32_t open, unsigned mine,
                                            tracked_update const& u) noexcept {
    if (u.rounded < 0) return false;
    unsigned tries = 0;
    for (unsigned step = 1; step < share_count && tries < most_donors; ++step) {
      unsigned const donor = (mine + step) % share_count;
      if ((open >> donor & 1) == 0) continue;
      ++tries;
      if (shares_[mine].count_with_room_of(shares_[donor], u)) return true;
    }
    return false;
  }
  template <change_kind Kind>
  TARN_NOINLINE void count_with_shares(std::size_t rounded, std::size_t requested,
                                       block_group group) noexcept {
    count(update_of<Kind>(rounded, requested, group));
  }
  template <change_kind Kind>
  TARN_NOINLINE void count_by_waiting(std::size_t rounded, std::size_t requested,
                                      block_group group) noexcept {
    tracked_update const u = update_of<Kind>(rounded, requested, group);
    lock_.wait(u, applier{*this});
    ask(u.thread);
  }
  template <change_kind Kind>
  TARN_NOINLINE void apply_here(std::size_t rounded, std::size_t requested, block_group group) noexcept {
    apply_slow(update_of<Kind>(rounded, requested, group));
  }
  template <change_kind Kind>
  static tracked_update update_of(std::size_t rounded, std::size_t requested, block_group group) noexcept {
    std::int64_t const sign = Kind == change_kind::allocation ? 1 : -1;
    return {sign * static_cast<std::int64_t>(rounded), sign * static_cast<std::int64_t>(requested),
            this_thread_tag(), group};
  }

  /// The caller holds the lock.
  void apply(tracked_update const& u) noexcept {
    if (flags_.load(std::memory_order_relaxed) != 0) return apply_slow(u);
    add(u);
  }
  void add(tracked_update const& u) noexcept {
    if (u.rounded > 0) {
      add<change_kind::allocation>(static_cast<std::size_t>(u.rounded), static_cast<std::size_t>(u.requested),
                                   u.group);
    } else {
      add<change_kind::deallocation>(static_cast<std::size_t>(-u.rounded),
                                     static_cast<std::size_t>(-u.requested), u.group);
    }
  }
  template <change_kind Kind>
  TARN_ALWAYS_INLINE void add(std::size_t rounded, std::size_t requested, block_group group) noexcept {
    auto const g = static_cast<std::size_t>(group);  // 1 or 2
    group_numbers& its = groups_[g - 1];
    group_numbers const& other = groups_[2 - g];
    add_to<Kind, 0>(its, other, 1);
    add_to<Kind, 1>(its, other, static_cast<std::int64_t>(rounded));
    add_to<Kind, 2>(its, other, static_cast<std::int64_t>(requested));
  }
  template <change_kind Kind, std::size_t K>
  TARN_ALWAYS_INLINE void add_to(group_numbers& its, group_numbers const& other,
                                 std::int64_t amount) noexcept {
    group_number& n = its.of[K];
    if constexpr (Kind == change_kind::deallocation) {
      n.current -= amount;
    } else {
      std::int64_t const now = n.current += amount;
      n.allocated += amount;
      if (now > n.peak) [[unlikely]]
        n.peak = now;
      if (now + other.of[K].current > peak_of_all_[K]) [[unlikely]]
        peak_of_all_[K] = now + other.of[K].current;
    }
  }
  /// Counts while a mark exists, blocks wait, or several threads count.
  TARN_NOINLINE void apply_slow(tracked_update const& u) noexcept {
    std::uint64_t const flags = flags_.load(std::memory_order_relaxed);
    bool const several = (flags & all_threads) != 0;
    if (has_error() && out_ != 0) return publish_with(u, static_cast<std::uint32_t>(flags) & ~out_);
    if (several && out_ != 0) {
      if ((static_cast<std::uint32_t>(flags) & ~out_) != 0) [[unlikely]]
        open_late(static_cast<std::uint32_t>(flags) & ~out_);
      if (u.rounded > 0 && !fits(u)) take_room_for(u);
    }
    if (out_ != 0) {
      add_within_room(u);
    } else {
      add(u);
      if ((flags & watched_flag) != 0) {
        change_marks(u);
        note_active(u.group);
      }
    }
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
        active_peak_[k][g] = max_of(active_peak_[k][g], current(k, g) + waiting_[k][g]);
    }
  }
  void note_whether_watched() noexcept {
    bool waits = false;
    for (auto const& kind : waiting_) {
      for (std::int64_t const amount : kind) waits = waits || amount != 0;
    }
    if (waits || marks_ != nullptr) {
      flags_.fetch_or(watched_flag, std::memory_order_relaxed);
    } else {
      flags_.fetch_and(~watched_flag, std::memory_order_relaxed);
    }
  }
  /// How far a number may grow before it, or its sum with the waiting blocks, passes its peak.
  [[nodiscard]] std::int64_t room(std::size_t k, std::size_t g) noexcept {
    std::int64_t const most = peak(k, g);
    return min_of(most, max_of(most, active_peak_[k][g]) - waiting_[k][g]) - current(k, g);
  }

  /// By how much the room that the shares leave is too small for a block: above 0, a peak may be passed if all shares are used up.
  [[nodiscard]] std::int64_t lacking(tracked_update const& u, std::size_t k, std::size_t g) noexcept {
    std::int64_t const wanted = u.by_kind()[k] + lent_[k][g];
    std::int64_t most = wanted - room(k, g);
    for (high_water_mark const* m = k == 1 && g == 0 ? marks_ : nullptr; m != nullptr; m = m->next)
      most = max_of(most, m->current + wanted - m->peak);
    return most;
  }
  /// Whether a block can be added without a new peak, even if all shares are used up.
  [[nodiscard]] bool fits(tracked_update const& u) noexcept {
    for (std::size_t k = 0; k < 3; ++k) {
      for (std::size_t const g : {std::size_t{0}, static_cast<std::size_t>(u.group)}) {
        if (lacking(u, k, g) > 0) return false;
      }
    }
    return true;
  }
  /// Adds what a share counted. It stayed within its room, so no peak changes.
  [[nodiscard]] auto adding() noexcept {
    return [this](std::size_t k, std::size_t g, std::int64_t change, std::int64_t came) noexcept {
      if (g != 0) {
        of(k, g).current += change;
        of(k, g).allocated += came;
      }
      for (high_water_mark* m = g == 0 ? marks_ : nullptr; m != nullptr; m = m->next) {
        if (k == 0) m->allocations += came;
        if (k == 1) m->current += change;
      }
    };
  }
  /// Adds a call for which there is room, while shares are open: no peak changes. The numbers must not be compared with the peaks
  /// then: of two shares one may have reported blocks that took the room of blocks whose end the other has not reported.
  void add_within_room(tracked_update const& u) noexcept {
    auto const change = u.by_kind();
    auto const f = adding();
    for (std::size_t k = 0; k < 3; ++k) {
      for (std::size_t const g : {std::size_t{0}, static_cast<std::size_t>(u.group)})
        f(k, g, change[k], u.rounded > 0 ? change[k] : 0);
    }
  }
  /// Takes room for a block from one share after another. If all together have not enough, there may be a new peak: the shares are
  /// taken back.
  TARN_NOINLINE void take_room_for(tracked_update const& u) noexcept {
    for (unsigned i = 0; i < share_count; ++i) {
      next_donor_ = (next_donor_ + 1) % share_count;
      if ((out_ >> next_donor_ & 1) == 0) continue;
      tracked_amounts least{};
      for (std::size_t k = 0; k < 3; ++k) {
        for (std::size_t const g : {std::size_t{0}, static_cast<std::size_t>(u.group)})
          least[k][g] = lacking(u, k, g);
      }
      shares_[next_donor_].take_room(least, lent_, adding());
      if (fits(u)) return;
    }
    call_in();
  }
  /// Whether peaks may be off.
  [[nodiscard]] bool has_error() const noexcept { return error_[0][0] != 0; }
  /// Counts a call for which its thread's share has no room, and all that was counted there: peaks may be off.
  TARN_NOINLINE void publish_with(tracked_update const& u, std::uint32_t asked) noexcept {
    for (std::uint32_t left = asked; left != 0; left &= left - 1)
      shares_[std::countr_zero(left)].open_bounded(error_);
    if (asked != 0) {
      out_ |= asked;
      open_.store(out_, std::memory_order_release);
    }
    unsigned const mine = thread_place(u.thread);
    if ((out_ >> mine & 1) != 0) shares_[mine].publish(adding());
    add_within_room(u);
    note_peaks();
  }
  /// Raises every peak to the current value.
  void note_peaks() noexcept {
    for (std::size_t k = 0; k < 3; ++k) {
      for (std::size_t g = 1; g < 3; ++g) of(k, g).peak = max_of(of(k, g).peak, of(k, g).current);
      peak_of_all_[k] = max_of(peak_of_all_[k], current(k, 0));
    }
    for (high_water_mark* m = marks_; m != nullptr; m = m->next) {
      if (m->current > m->peak) m->peak = m->current;
    }
    if ((flags_.load(std::memory_order_relaxed) & watched_flag) == 0) return;
    note_active(block_group::small);
    note_active(block_group::large);
  }
  /// Opens shares without room for threads that asked after the others: what such a thread frees is its room.
  TARN_NOINLINE void open_late(std::uint32_t asked) noexcept {
    for (std::uint32_t left = asked; left != 0; left &= left - 1) shares_[std::countr_zero(left)].open({});
    out_ |= asked;
    open_.store(out_, std::memory_order_release);
  }

  /// Gives each requesting thread an equal share of the room below every peak, and keeps one.
  TARN_NOINLINE void hand_out() noexcept {
    if (pause_ != 0) {
      --pause_;
      return;
    }
    auto const asked = static_cast<std::uint32_t>(flags_.load(std::memory_order_relaxed) & all_threads);
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
      for (std::size_t g = 0; g < 3; ++g) lent_[k][g] = has_error() ? 0 : share[k][g] * takers;
    }
    for (std::uint32_t left = asked; left != 0; left &= left - 1) {
      tracked_share& its = shares_[std::countr_zero(left)];
      has_error() ? its.open_bounded(error_) : its.open(share);
    }
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
      std::uint64_t const made = shares_[i].close(adding());
      calls += made;
      if (made == 0) idle |= std::uint32_t{1} << i;
    }
    if (has_error()) note_peaks();
    if (idle != 0) flags_.fetch_and(~std::uint64_t{idle}, std::memory_order_relaxed);
    bool const paid = calls >= least_calls * static_cast<std::uint64_t>(std::popcount(out_));
    last_pause_ = paid ? 0 : min_of(last_pause_ * 2 + 16, longest_pause);
    pause_ = last_pause_;
    out_ = 0;
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
  tracked_share* shares_ = nullptr;     ///< made under the lock at the first contention; kept
  std::atomic<std::uint32_t> open_{0};  ///< threads whose share is open; a hint
  /// Bits of the threads that found the lock taken or have a share, and watched_flag: there is a mark, or a block waits. 0: a call only
  /// adds.
  std::atomic<std::uint64_t> flags_{0};
  combining_lock<tracked_update> lock_;
  // Under the lock:
  std::array<group_numbers, 2> groups_;        ///< small, large
  std::array<std::int64_t, 3> peak_of_all_{};  ///< of the sums of both
  std::uint64_t ooms_ = 0;
  high_water_mark* marks_ = nullptr;
  tracked_amounts waiting_{};  ///< of the waiting blocks
  tracked_amounts
      active_peak_{};  ///< the maximum of a number plus waiting blocks, at the moments when something waited
  tracked_amounts error_{};     ///< by how much a share may differ from what it published; 0: peaks are exact
  tracked_amounts not_over_{};  ///< what started to wait since the totals were reset, less what stopped
  std::uint32_t out_ = 0;       ///< threads whose share is open
  tracked_amounts lent_{};      ///< the room of all open shares when their counts were last reported
  unsigned next_donor_ = 0;     ///< share whose room is taken next
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
