// SPDX-License-Identifier: Apache-2.0
#pragma once
// The counters of `tracked`: current, peak and totals in one order of all threads' calls, and high-water marks. A thread that has
// counted alone for a while goes on without a lock, until another thread visits it (owner_lock). Otherwise, a thread counts under a
// lock. Under contention, the lock's owner counts for the waiting threads (combining_lock); then each thread gets a share of the room
// below the peaks, in which it counts on its own (tracked_share). What no share has is in reserves (room_reserve). A thread for whose
// block its share is too small goes on as follows, until there is enough room:
//
//   1. It takes room from the reserves, and exchanges its own room for the other group of blocks.
//   2. It asks the other threads to give away what they do not need, and waits for a microsecond or two.
//   3. It takes the common lock, closes all shares and adds what they counted: only then may a peak rise.
//
// If peaks may be off by a bound, a share has that room whatever the peaks are, and is published when it is used up: another thread's
// share is never touched.
//
// Over 400 lines: the ways of counting pass the same counters to one another under the same lock, and are read together.

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
#include "tarn/core/deferred_count.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/thread_place.hpp"
#include "tarn/core/thread_tag.hpp"
#include "tarn/core/wait.hpp"
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
  tracked_numbers() noexcept : tracked_numbers(0) {}
  /// @param peak_error  bytes; 0: peaks are exact
  explicit tracked_numbers(std::size_t peak_error) noexcept {
    (void)has_remote_barrier();                         // registers with the kernel now, not at a call
    constexpr std::size_t most = std::size_t{1} << 60;  // twice as much can be counted
    auto const bytes = static_cast<std::int64_t>(min_of(peak_error, most));
    std::int64_t const blocks = min_of(bytes, max_of(bytes / bytes_per_block, std::int64_t{1}));
    error_ = {blocks, bytes, bytes};
  }
  tracked_numbers(tracked_numbers const&) = delete;
  tracked_numbers& operator=(tracked_numbers const&) = delete;
  ~tracked_numbers() {
    lock_.lock();  // another thread may fork
    tracked_share* const shares = shares_.exchange(nullptr, std::memory_order_relaxed);
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
  /// Counts a change as the thread that it names would: for tests.
  void count(tracked_update const& u) noexcept {
    if (tracked_share* const shares = shares_.load(std::memory_order_acquire);
        shares != nullptr && u.place < share_count && shares[u.place].try_enter()) {
      tracked_share& mine = shares[u.place];
      bool const done = mine.count_here(u) || count_inside(mine, u);
      mine.leave();
      if (done) return;
    }
    count_globally(u);
  }
  /// Number of threads that count on their own now, with other threads.
  [[nodiscard]] int sharing() const noexcept { return std::popcount(open_.load(std::memory_order_relaxed)); }
  /// How often all threads that count on their own were stopped.
  [[nodiscard]] std::uint64_t stops() noexcept {
    std::lock_guard const guard(lock_);
    return stops_;
  }
  /// How often a thread asked the others for room.
  [[nodiscard]] std::uint64_t asks() const noexcept { return asks_.load(std::memory_order_relaxed); }
  /// Returns true if a thread counts alone.
  [[nodiscard]] bool has_alone() noexcept {
    std::lock_guard const guard(lock_);
    return alone_ != thread_places;
  }
  /// Requests a share for the thread at a place. Shares are opened once at least two threads have requested one.
  void ask(unsigned place) noexcept {
    if (place >= share_count) return;
    std::uint64_t const mine = std::uint64_t{1} << place;
    if ((flags_.load(std::memory_order_relaxed) & mine) == 0)
      flags_.fetch_or(mine, std::memory_order_relaxed);
  }
  void count_refusal() noexcept {
    std::lock_guard const guard(lock_);
    ++ooms_;
  }

  [[nodiscard]] tracked_statistics statistics() noexcept {
    stopped const now(*this);
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
    stopped const now(*this);
    for (std::size_t k = 0; k < 3; ++k) {
      for (std::size_t g = 1; g < 3; ++g) of(k, g).peak = of(k, g).current;
      peak_of_all_[k] = current(k, 0);
      for (std::size_t g = 0; g < 3; ++g) active_peak_[k][g] = current(k, g) + waiting_[k][g];
    }
  }
  void reset_totals() noexcept {
    stopped const now(*this);
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
  void count_waiting(deferred_amount const& smaller, deferred_amount const& larger) noexcept {
    stopped const now(*this);
    tracked_amounts const change{
        {{smaller.blocks + larger.blocks, smaller.blocks, larger.blocks},
         {smaller.bytes + larger.bytes, smaller.bytes, larger.bytes},
         {smaller.requested + larger.requested, smaller.requested, larger.requested}}};
    for (std::size_t k = 0; k < 3; ++k) {
      for (std::size_t g = 0; g < 3; ++g) {
        waiting_[k][g] += change[k][g];
        not_over_[k][g] += change[k][g];
      }
    }
    note_active(block_group::smaller);
    note_active(block_group::larger);
    note_whether_watched();
  }

  void add(high_water_mark& mark, peak_of whose) noexcept {
    stopped const now(*this);
    mark.whose = whose;
    mark.thread = this_thread_number();
    mark.start = whose == peak_of::all_threads ? current(1, 0) : 0;
    mark.current = mark.peak = mark.start;
    mark.allocations = 0;
    mark.next = marks_;
    marks_ = &mark;
    note_whether_watched();
  }
  void remove(high_water_mark& mark) noexcept {
    stopped const now(*this);
    for (high_water_mark** at = &marks_; *at != nullptr; at = &(*at)->next) {
      if (*at == &mark) {
        *at = mark.next;
        note_whether_watched();
        return;
      }
    }
  }
  [[nodiscard]] high_water_mark read(high_water_mark const& mark) noexcept {
    stopped const now(*this);
    return mark;
  }

 private:
  static constexpr unsigned share_count = thread_places;
  static constexpr std::uint64_t all_threads = 0xFFFF'FFFF;  ///< of flags_
  static constexpr std::uint64_t watched_flag = all_threads + 1;
  /// With fewer calls than this per share, opening shares costs more than it saves.
  static constexpr std::uint64_t least_calls = 32;
  static constexpr std::uint32_t longest_pause = 4096;
  /// The error of a peak in bytes, divided by this, is its error in blocks.
  static constexpr std::int64_t bytes_per_block = 4096;
  /// A thread counts alone after this many calls without another thread's. Doubled whenever another thread ends that: a visit takes
  /// microseconds.
  static constexpr std::uint32_t first_streak = 16;
  /// Stopping all threads takes ten microseconds or more. Before that, a thread waits for one or two for room from the others.
  static constexpr unsigned tries_to_ask = 8;
  static constexpr unsigned waits_per_try = 4;
  static constexpr std::uint32_t longest_streak = 4096;

  /// Holds the lock, and no thread counts on its own.
  class stopped {
   public:
    explicit stopped(tracked_numbers& numbers) noexcept : numbers_(numbers) {
      numbers_.lock_.lock();
      numbers_.call_in();
      numbers_.visit_alone();
      numbers_.settle_alone();
    }
    stopped(stopped const&) = delete;
    stopped& operator=(stopped const&) = delete;
    ~stopped() {
      numbers_.give_alone();
      numbers_.end_visit_alone();
      numbers_.lock_.unlock();
    }

   private:
    tracked_numbers& numbers_;
  };

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

  template <change_kind Kind>
  TARN_ALWAYS_INLINE void count(std::size_t rounded, std::size_t requested, block_group group) noexcept {
    thread_place const at = this_thread_place;
    tracked_share* const shares = shares_.load(std::memory_order_acquire);
    if (at.table != table_ || shares == nullptr) [[unlikely]]
      return count_without_place<Kind>(rounded, requested, group);
    tracked_share& mine = shares[at.index];
    if (!mine.try_enter()) [[unlikely]]
      return count_by_waiting<Kind>(rounded, requested, group);
    if (mine.template count_here<Kind>(rounded, requested, group)) [[likely]] {
      mine.leave();
      return;
    }
    count_in_share<Kind>(mine, rounded, requested, group);
  }
  /// Inside the lock of the thread's share, which this leaves.
  template <change_kind Kind>
  TARN_NOINLINE void count_in_share(tracked_share& mine, std::size_t rounded, std::size_t requested,
                                    block_group group) noexcept {
    if constexpr (Kind == change_kind::allocation) {
      tracked_kinds const change{1, static_cast<std::int64_t>(rounded), static_cast<std::int64_t>(requested)};
      if (mine.count_exchanging(change, group)) {
        mine.leave();
        return;
      }
    }
    tracked_update const u = update_of<Kind>(rounded, requested, group);
    bool const done = count_inside(mine, u);
    mine.leave();
    if (!done) count_globally(u);
  }
  /// Counts a call inside the lock of a thread's share, which has no room for it. Returns false if it must be counted globally.
  bool count_inside(tracked_share& mine, tracked_update const& u) noexcept {
    if (mine.count(reserves_, u)) return true;
    if (mine.is_alone()) {
      count_alone(u);
      return true;
    }
    return u.rounded > 0 && mine.is_open() && ask_others(mine, u);
  }
  /// Counts an allocation for which the reserves do not have enough room, if the other threads give some soon.
  bool ask_others(tracked_share& mine, tracked_update const& u) noexcept {
    asks_.fetch_add(1, std::memory_order_relaxed);
    for (unsigned tries = 0; tries < tries_to_ask && !mine.is_announced(); ++tries) {
      if (tries % (tries_to_ask / 2) == 0) {
        for_each_share(open_.load(std::memory_order_relaxed) & ~(std::uint32_t{1} << u.place),
                       [](tracked_share& s) { s.ask(); });
      }
      for (unsigned waits = 0; waits < waits_per_try; ++waits) spin_wait(0);
      if (mine.count(reserves_, u)) return true;
    }
    return false;
  }
  template <change_kind Kind>
  TARN_NOINLINE void count_by_waiting(std::size_t rounded, std::size_t requested,
                                      block_group group) noexcept {
    count_globally(update_of<Kind>(rounded, requested, group));
  }
  template <change_kind Kind>
  TARN_NOINLINE void count_without_place(std::size_t rounded, std::size_t requested,
                                         block_group group) noexcept {
    if (this_thread_place.table == nullptr) place_holder::take();
    count_globally(update_of<Kind>(rounded, requested, group));
  }
  template <change_kind Kind>
  [[nodiscard]] tracked_update update_of(std::size_t rounded, std::size_t requested,
                                         block_group group) const noexcept {
    std::int64_t const sign = Kind == change_kind::allocation ? 1 : -1;
    return {sign * static_cast<std::int64_t>(rounded), sign * static_cast<std::int64_t>(requested),
            thread_number_place(), my_place(), group};
  }
  /// The place of the calling thread; thread_places if it has none here.
  [[nodiscard]] unsigned my_place() const noexcept {
    return this_thread_place.table == table_ ? this_thread_place.index : thread_places;
  }

  /// Adds what a share counted. It stayed within its room, so no peak changes.
  [[nodiscard]] auto adding() noexcept {
    return [this](std::size_t k, std::size_t g, std::int64_t change, std::int64_t came) noexcept {
      if (came == 0 && change == 0) return;
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
  /// Counts a call under the lock.
  void count_globally(tracked_update const& u) noexcept {
    if (!lock_.try_lock()) {
      lock_.wait(u, applier{*this});
      ask(u.place);
      return;
    }
    apply(u);
    note_streak(u.place);
    if (out_ != 0) ask(u.place);  // it has no share, or one that was too small
    lock_.unlock_after(applier{*this});
  }
  /// Lets the calling thread, whose call was counted last, count alone if only its calls were counted for long. The caller holds the
  /// lock.
  void note_streak(unsigned place) noexcept {
    if (place >= share_count || out_ != 0 || alone_ != thread_places || ++streak_ < least_streak_) return;
    if (tracked_share* const shares = make_shares(); shares != nullptr) {
      alone_ = place;
      shares[place].let_alone();
      give_alone();
    }
  }
  /// Enters the share of the thread that counts alone, unless that is the calling thread. The caller holds the lock.
  void visit_alone() noexcept {
    visits_alone_ = alone_ != thread_places && alone_ != my_place();
    if (!visits_alone_) return;
    share(alone_).announce();
    remote_barrier();
    share(alone_).visit();
  }
  void end_visit_alone() noexcept {
    if (visits_alone_) share(alone_).end_visit();
  }
  /// The caller holds the lock.
  TARN_NOINLINE void end_alone() noexcept {
    visit_alone();
    (void)share(alone_).close(adding());
    end_visit_alone();
    alone_ = thread_places;
    least_streak_ = min_of(least_streak_ * 2, longest_streak);
  }
  /// Adds what the thread that counts alone has counted, and takes its room away. During a visit, or called by that thread.
  void settle_alone() noexcept {
    if (alone_ != thread_places) share(alone_).report(adding());
  }
  /// Gives the thread that counts alone all room, unless each call has to be watched. As settle_alone().
  void give_alone() noexcept {
    if (alone_ == thread_places || (flags_.load(std::memory_order_relaxed) & watched_flag) != 0) return;
    share(alone_).set_room(pair_room(block_group::larger));
  }
  /// Counts a call of the thread that counts alone, for which it has no room: there may be a new peak.
  void count_alone(tracked_update const& u) noexcept {
    settle_alone();
    add_watched(u);
    if ((flags_.load(std::memory_order_relaxed) & watched_flag) == 0)
      share(alone_).set_room(pair_room(u.group));
  }
  [[nodiscard]] tracked_share& share(unsigned place) noexcept {
    return shares_.load(std::memory_order_relaxed)[place];
  }
  /// Null without host memory. The caller holds the lock.
  [[nodiscard]] tracked_share* make_shares() noexcept {
    tracked_share* shares = shares_.load(std::memory_order_relaxed);
    if (shares == nullptr) {
      shares = new (std::nothrow) tracked_share[share_count];
      shares_.store(shares, std::memory_order_release);
    }
    return shares;
  }

  /// The caller holds the lock.
  void apply(tracked_update const& u) noexcept {
    if (u.place != last_place_) [[unlikely]] {
      last_place_ = u.place;
      streak_ = 0;
    }
    if (alone_ != thread_places) {
      if (alone_ == u.place) return count_alone(u);
      end_alone();
    }
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
  /// Adds a call while no share is open.
  void add_watched(tracked_update const& u) noexcept {
    add(u);
    if ((flags_.load(std::memory_order_relaxed) & watched_flag) == 0) return;
    change_marks(u);
    note_active(u.group);
  }
  /// Counts while a mark exists, blocks wait, or several threads count.
  TARN_NOINLINE void apply_slow(tracked_update const& u) noexcept {
    std::uint64_t const flags = flags_.load(std::memory_order_relaxed);
    bool const several = (flags & all_threads) != 0;
    if (has_error() && out_ != 0) return publish_with(u, static_cast<std::uint32_t>(flags) & ~out_);
    if (several && out_ != 0) {
      if ((static_cast<std::uint32_t>(flags) & ~out_) != 0) [[unlikely]]
        open_shares(static_cast<std::uint32_t>(flags) & ~out_);
      if (u.rounded > 0 && !fits(u)) take_room_for(u);
    }
    if (out_ != 0) return add_within_room(u);
    add_watched(u);
    if (several) hand_out();
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
  /// Adds a call for which there is room, while shares are open: no peak changes. The numbers must not be compared with the peaks
  /// then: of two shares one may have reported blocks that took the room of blocks whose end the other has not reported.
  void add_within_room(tracked_update const& u) noexcept {
    auto const change = u.by_kind();
    auto const f = adding();
    for (std::size_t k = 0; k < 3; ++k) {
      for (std::size_t const g : {std::size_t{0}, static_cast<std::size_t>(u.group)})
        f(k, g, change[k], u.rounded > 0 ? change[k] : 0);
    }
    if (u.rounded > 0 || has_error()) return;
    // What a thread without a share frees is room for those with one.
    std::size_t const mine = index_of(u.group);
    room_pairs freed;
    for (std::size_t k = 0; k < 3; ++k) {
      lent_[k][0] -= change[k];
      lent_[k][mine + 1] -= change[k];
      freed.paired[mine][k] = -change[k];
    }
    reserves_.give(u.place, mine, [&](tracked_kinds const&) { return freed; });
  }
  /// Takes room for a block from the reserves. If that is not enough, there may be a new peak: the shares are closed.
  TARN_NOINLINE void take_room_for(tracked_update const& u) noexcept {
    std::size_t const mine = index_of(u.group);
    for (std::size_t k = 0; k < 3; ++k) {
      std::int64_t const missing = max_of(lacking(u, k, 0), lacking(u, k, mine + 1));
      if (missing <= 0) continue;
      std::int64_t const taken = reserves_.take(mine, k, missing);
      lent_[k][0] -= taken;
      lent_[k][mine + 1] -= taken;
      if (taken == missing) continue;
      call_in();
      if (fits(u)) reserves_.give_less();  // the others had enough
      return;
    }
  }
  /// Whether peaks may be off.
  [[nodiscard]] bool has_error() const noexcept { return error_[0] != 0; }
  /// Counts a call for which its thread's share has no room, and all that was counted there: peaks may be off.
  TARN_NOINLINE void publish_with(tracked_update const& u, std::uint32_t asked) noexcept {
    if (asked != 0) open_shares(asked);
    if (u.place < share_count && (out_ >> u.place & 1) != 0) share(u.place).report(adding());
    add_within_room(u);
    note_peaks();
  }
  /// Raises every peak to the current value.
  void note_peaks() noexcept {
    for (std::size_t k = 0; k < 3; ++k) {
      for (std::size_t g = 1; g < 3; ++g) {
        group_number& n = of(k, g);
        if (n.current > n.peak) n.peak = n.current;
      }
      if (current(k, 0) > peak_of_all_[k]) peak_of_all_[k] = current(k, 0);
    }
    for (high_water_mark* m = marks_; m != nullptr; m = m->next) {
      if (m->current > m->peak) m->peak = m->current;
    }
    if ((flags_.load(std::memory_order_relaxed) & watched_flag) == 0) return;
    note_active(block_group::smaller);
    note_active(block_group::larger);
  }
  /// Pairs half of the room below the peak of all for each group, and what one cannot use for the other. An odd unit is for `first`.
  [[nodiscard]] room_pairs pair_room(block_group first) noexcept {
    room_pairs r;
    std::size_t const a = index_of(first);
    std::size_t const b = 1 - a;
    for (std::size_t k = 0; k < 3; ++k) {
      std::int64_t all = room(k, 0);
      for (high_water_mark const* m = k == 1 ? marks_ : nullptr; m != nullptr; m = m->next)
        all = min_of(all, m->peak - m->current);
      std::int64_t const of_a = room(k, a + 1);
      std::int64_t const of_b = room(k, b + 1);
      r.paired[a][k] = min_of(of_a, all - min_of(of_b, all / 2));
      r.paired[b][k] = min_of(of_b, all - r.paired[a][k]);
      r.unpaired[a][k] = of_a - r.paired[a][k];
      r.unpaired[b][k] = of_b - r.paired[b][k];
    }
    return r;
  }
  /// Opens a share for each requesting thread, and puts the room below every peak into the reserves.
  TARN_NOINLINE void hand_out() noexcept {
    if (pause_ != 0) {
      --pause_;
      return;
    }
    auto const asked = static_cast<std::uint32_t>(flags_.load(std::memory_order_relaxed) & all_threads);
    if (std::popcount(asked) < 2) return;
    if (make_shares() == nullptr) return;
    for (high_water_mark const* m = marks_; m != nullptr; m = m->next) {
      if (m->whose == peak_of::this_thread) return;  // a share does not distinguish its threads
    }
    if (!has_error()) {
      room_pairs const r = pair_room(block_group::larger);
      for (std::size_t k = 0; k < 3; ++k) {
        for (std::size_t g = 0; g < 2; ++g) lent_[k][g + 1] = r.paired[g][k] + r.unpaired[g][k];
        lent_[k][0] = r.paired[0][k] + r.paired[1][k];
      }
      reserves_.set(static_cast<unsigned>(std::popcount(asked)), r);
    }
    open_shares(asked);
  }
  void open_shares(std::uint32_t asked) noexcept {
    for_each_share(asked, [this](tracked_share& s) {
      if (has_error()) {
        s.open_bounded(error_);
      } else {
        s.open();
      }
    });
    out_ |= asked;
    open_.store(out_, std::memory_order_release);
  }

  /// Closes all shares. The caller holds the lock.
  TARN_NOINLINE void call_in() noexcept {
    if (out_ == 0) return;
    ++stops_;
    open_.store(0, std::memory_order_relaxed);
    for_each_share(out_, [](tracked_share& s) { s.announce(); });
    remote_barrier();
    for_each_share(out_, [](tracked_share& s) { s.visit(); });
    std::uint64_t calls = 0;
    std::uint32_t idle = 0;
    for (std::uint32_t left = out_; left != 0; left &= left - 1) {
      auto const i = static_cast<unsigned>(std::countr_zero(left));
      std::uint64_t const made = share(i).close(adding());
      calls += made;
      if (made == 0) idle |= std::uint32_t{1} << i;
    }
    for_each_share(out_, [](tracked_share& s) { s.end_visit(); });
    if (has_error()) note_peaks();
    if (idle != 0) flags_.fetch_and(~std::uint64_t{idle}, std::memory_order_relaxed);
    bool const paid = calls >= least_calls * static_cast<std::uint64_t>(std::popcount(out_));
    last_pause_ = paid ? 0 : min_of(last_pause_ * 2 + 16, longest_pause);
    pause_ = last_pause_;
    out_ = 0;
    lent_ = {};
  }
  template <class F>
  void for_each_share(std::uint32_t places, F const& f) noexcept {
    for (; places != 0; places &= places - 1) f(share(static_cast<unsigned>(std::countr_zero(places))));
  }

  void change_marks(tracked_update const& u) noexcept {
    for (high_water_mark* m = marks_; m != nullptr; m = m->next) {
      if (m->whose != peak_of::all_threads && m->thread != u.thread) continue;
      m->current += u.rounded;
      if (u.rounded < 0) continue;
      m->peak = max_of(m->peak, m->current);
      ++m->allocations;
    }
  }
  place_table const* const table_ = &places_of_threads;  ///< of the module that made this
  std::atomic<tracked_share*> shares_{nullptr};          ///< by place; made under the lock at first use; kept
  std::atomic<std::uint32_t> open_{0};                   ///< threads whose share is open; a hint
  /// Bits of the threads that found the lock taken or have a share, and watched_flag: there is a mark, or a block waits. 0: a call only
  /// adds.
  std::atomic<std::uint64_t> flags_{0};
  combining_lock<tracked_update> lock_;
  room_reserves reserves_;
  std::atomic<std::uint64_t> asks_{0};
  // Under the lock:
  std::array<group_numbers, 2> groups_;        ///< small, large
  std::array<std::int64_t, 3> peak_of_all_{};  ///< of the sums of both
  std::uint64_t ooms_ = 0;
  high_water_mark* marks_ = nullptr;
  tracked_amounts waiting_{};  ///< of the waiting blocks
  tracked_amounts
      active_peak_{};  ///< the maximum of a number plus waiting blocks, at the moments when something waited
  std::array<std::int64_t, 3>
      error_{};                 ///< by how much a share may differ from what it published; 0: peaks are exact
  tracked_amounts not_over_{};  ///< what started to wait since the totals were reset, less what stopped
  std::uint32_t out_ = 0;       ///< threads whose share is open
  tracked_amounts
      lent_{};  ///< room of the open shares and of the reserves, when the counts were last reported
  unsigned alone_ =
      thread_places;  ///< place of the thread that counts alone; its share's lock guards all numbers, too
  unsigned last_place_ = thread_places;  ///< of the call that was counted last
  std::uint32_t streak_ = 0;             ///< calls of that thread since another one's
  std::uint32_t least_streak_ = first_streak;
  bool visits_alone_ = false;
  std::uint32_t pause_ = 0;  ///< calls to count before shares are opened again
  std::uint32_t last_pause_ = 0;
  std::uint64_t stops_ = 0;
  at_fork member_{this,
                  [](void* self) noexcept {
                    auto& n = *static_cast<tracked_numbers*>(self);
                    n.lock_.lock();
                    if (n.shares_.load(std::memory_order_relaxed) == nullptr) return true;
                    n.for_each_share(all_threads, [](tracked_share& s) { s.announce(); });
                    remote_barrier();
                    n.for_each_share(all_threads, [](tracked_share& s) { s.visit(); });
                    return true;
                  },
                  [](void* self, fork_side side) noexcept {
                    auto& n = *static_cast<tracked_numbers*>(self);
                    if (n.shares_.load(std::memory_order_relaxed) != nullptr) {
                      n.for_each_share(all_threads, [side](tracked_share& s) {
                        if (side == fork_side::child) s.forget_owner();
                        s.end_visit();
                      });
                    }
                    n.lock_.unlock();
                  }};
};

}  // namespace detail
}  // namespace tarn
