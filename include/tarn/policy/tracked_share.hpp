// SPDX-License-Identifier: Apache-2.0
#pragma once
// The part of the counters that one thread updates on its own. Under contention, each thread gets a share of the room below the
// peaks. While it stays within its share no peak can change, whatever the others do within theirs, so its counts need not be
// published until they are read: every number stays exact. (Shares of the room below a limit: O'Neil, "The escrow transactional
// method", TODS 1986.)
//
// A share belongs to one thread, which enters it through an owner_lock: two plain stores. Threads pass room to one another without
// entering another's share: each gives what it does not need to a room_reserve, from which the others take. A thread takes room for a
// few blocks more than it needs, keeps as much when it frees, and gives back what is more than twice that.
//
// A thread that counts alone has all room, and may raise the peaks.
//
// Where peaks may be off by a bound, a share has a fixed room in both directions instead, however close the peaks are. Its counts are
// published when the room is used up.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "tarn/core/config.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/policy/room_reserve.hpp"
#include "tarn/pool/front/owner_lock.hpp"

namespace tarn::detail {

enum class change_kind : std::uint8_t { allocation, deallocation };

/// The change that one call makes.
struct tracked_update {
  std::int64_t rounded = 0;  ///< bytes; negative for a free
  std::int64_t requested = 0;
  std::uint64_t thread = 0;  ///< number of the thread; 0 if it has none
  unsigned place = 0;        ///< of the thread; thread_places if it has none
  block_group group = block_group::all;

  [[nodiscard]] tracked_kinds by_kind() const noexcept { return {rounded > 0 ? 1 : -1, rounded, requested}; }
};

/// One amount for each kind and group.
using tracked_amounts = std::array<std::array<std::int64_t, 3>, 3>;

class alignas(512) tracked_share {  // an element of an array is addressed by a shift
 public:
  // ---- the owner thread

  /// Enters the share. Returns false if another thread visits it.
  [[nodiscard]] TARN_ALWAYS_INLINE bool try_enter() noexcept { return lock_.try_enter(); }
  TARN_ALWAYS_INLINE void leave() noexcept { lock_.leave(); }
  /// Whether its thread counts alone, without shares: it may use all numbers inside its lock. Called inside the lock.
  [[nodiscard]] bool is_alone() const noexcept {
    return state_.load(std::memory_order_acquire) == state::alone;
  }
  /// Counts a call in this share, if there is room. Returns false if count() has to try. Called inside the lock.
  template <change_kind Kind>
  [[nodiscard]] TARN_ALWAYS_INLINE bool count_here(std::size_t rounded, std::size_t requested,
                                                   block_group group) noexcept {
    part& its = parts_[index_of(group)];
    auto const r = static_cast<std::int64_t>(rounded);
    auto const q = static_cast<std::int64_t>(requested);
    // Written out: compilers keep these arrays in registers only without loops.
    if constexpr (Kind == change_kind::allocation) {
      std::int64_t const came0 = its.came[0] + 1;
      std::int64_t const came1 = its.came[1] + r;
      std::int64_t const came2 = its.came[2] + q;
      if (came0 > its.limit[0] || came1 > its.limit[1] || came2 > its.limit[2]) [[unlikely]]
        return false;
      its.came[0] = came0;
      its.came[1] = came1;
      its.came[2] = came2;
    } else {
      std::int64_t const limit0 = its.limit[0] + 1;
      std::int64_t const limit1 = its.limit[1] + r;
      std::int64_t const limit2 = its.limit[2] + q;
      if (limit0 - its.came[0] > its.may_leave(0) || limit1 - its.came[1] > its.may_leave(1) ||
          limit2 - its.came[2] > its.may_leave(2)) [[unlikely]]
        return false;
      its.limit[0] = limit0;
      its.limit[1] = limit1;
      its.limit[2] = limit2;
    }
    return true;
  }
  /// Counts an allocation for which there is room if that for the other group is exchanged. Called inside the lock.
  [[nodiscard]] bool count_exchanging(tracked_kinds const& change, block_group group) noexcept {
    std::size_t const g = index_of(group);
    bool const first = exchange(0, g, change[0]);
    bool const second = exchange(1, g, change[1]);
    bool const enough = exchange(2, g, change[2]) && first && second;
    if (enough) parts_[g].allocate(change);
    return enough;
  }
  /// The two above.
  [[nodiscard]] bool count_here(tracked_update const& u) noexcept {
    if (u.rounded > 0) {
      return count_here<change_kind::allocation>(static_cast<std::size_t>(u.rounded),
                                                 static_cast<std::size_t>(u.requested), u.group) ||
             count_exchanging(u.by_kind(), u.group);
    }
    return count_here<change_kind::deallocation>(static_cast<std::size_t>(-u.rounded),
                                                 static_cast<std::size_t>(-u.requested), u.group);
  }
  /// Counts a call, and takes room from the reserves, or gives room to them, as necessary. Returns false if the share is not open or
  /// there is not enough room; the call must then be counted globally. Called inside the lock.
  [[nodiscard]] bool count(room_reserves& reserves, tracked_update const& u) noexcept {
    state const at = state_.load(std::memory_order_acquire);
    if (at == state::bounded) return count_bounded(u);
    if (at != state::open) return false;
    part& its = parts_[index_of(u.group)];
    tracked_kinds const change = u.by_kind();
    if (u.rounded > 0) {
      if (!its.has_room(change) && !take_room(reserves, u)) return false;
      its.allocate(change);
    } else {
      its.count_free(change);
      give_room(reserves, u);
    }
    return true;
  }

  /// Whether there may be room in other shares. Called inside the lock.
  [[nodiscard]] bool is_open() const noexcept {
    return state_.load(std::memory_order_acquire) == state::open;
  }

  // ---- any thread

  /// Makes the thread give away what it does not need, when it frees next. May be overlooked, if the thread gives room at the same time:
  ///
  ///   owner, inside give_room()   other thread
  ///   finds the reserve empty
  ///                               most = -1
  ///   most = 2 * need
  void ask() noexcept {
    for (part& its : parts_) its.set_most(1, -1);
  }
  /// Whether a visitor waits.
  [[nodiscard]] bool is_announced() const noexcept { return lock_.is_announced(); }

  // ---- a visitor: announce() for all shares that it will visit, one remote_barrier(), visit(), and at the end end_visit()

  void announce() noexcept { lock_.announce(); }
  void visit() noexcept { lock_.visit(); }
  void end_visit() noexcept { lock_.end_visit(); }
  /// In a forked child, before end_visit().
  void forget_owner() noexcept { lock_.forget_owner(); }

  // ---- the holder of the common lock

  /// Opens a closed share. Its thread has to take room for what it allocates; there is no bound for what it frees. The thread may be
  /// inside meanwhile, so this changes the state only:
  ///
  ///   owner                                   holder of the common lock
  ///   enters; count_here() finds no room
  ///                                           fills the reserves
  ///                                           state = open (release)
  ///   count() reads the state (acquire), and
  ///   takes room from the reserves
  ///
  /// If the owner reads the state before it changes, it counts this call globally.
  void open() noexcept { state_.store(state::open, std::memory_order_release); }
  /// Opens a closed share whose counts may differ by `error` from what was published, in each group and in the sum of both. As open().
  void open_bounded(tracked_kinds const& error) noexcept {
    error_ = error;
    state_.store(state::bounded, std::memory_order_release);
  }
  /// Lets the thread of this share, which is closed, count alone. The owner calls this, or waits.
  void let_alone() noexcept { state_.store(state::alone, std::memory_order_release); }
  /// Gives a thread that counts alone all room. During a visit, or called by the owner.
  void set_room(room_pairs const& r) noexcept {
    for (std::size_t g = 0; g < 2; ++g) {
      parts_[g].clear();
      parts_[g].limit = parts_[g].given = r.paired[g];
      for (std::size_t k = 0; k < 3; ++k) parts_[g].set_most(k, no_limit);
    }
    unpaired_ = r.unpaired;
  }
  /// Reports all counts: f(kind, group, change, came) for each. The thread's next calls are count()'s. During a visit, or called by the
  /// owner.
  template <class F>
  void report(F const& f) noexcept {
    for (std::size_t k = 0; k < 3; ++k) {
      std::int64_t const smaller = parts_[0].change(k);
      std::int64_t const larger = parts_[1].change(k);
      f(k, std::size_t{0}, smaller + larger, parts_[0].came[k] + parts_[1].came[k]);
      f(k, std::size_t{1}, smaller, parts_[0].came[k]);
      f(k, std::size_t{2}, larger, parts_[1].came[k]);
    }
    for (part& its : parts_) its.clear();
    unpaired_ = {};
  }
  /// Closes the share and reports its counts. Returns the number of calls. During a visit, or called by the owner.
  template <class F>
  std::uint64_t close(F const& f) noexcept {
    state_.store(state::closed, std::memory_order_relaxed);
    std::int64_t const calls = parts_[0].calls() + parts_[1].calls();
    report(f);
    return static_cast<std::uint64_t>(calls);
  }

 private:
  enum class state : std::uint8_t { closed, open, bounded, alone };
  static constexpr std::int64_t no_limit = (std::numeric_limits<std::int64_t>::max)() / 2;
  /// A bounded share keeps 1 / this of what it has not counted for the group whose blocks it does not count now.
  static constexpr std::int64_t part_of_other = 8;

  /// What the share has of one group. The room that is left is limit - came. Without room, count_here() always fails.
  struct alignas(cache_line_bytes) part {
    tracked_kinds came{};   ///< all increases since the counts were reported
    tracked_kinds limit{};  ///< of `came`
    std::array<std::atomic<std::int64_t>, 3> most{-1, -1, -1};  ///< the room that a free may leave
    tracked_kinds given{};  ///< the room at first, and what was taken since, less what was given away
    tracked_kinds need{};   ///< of the block for which room was taken last

    [[nodiscard]] std::int64_t room(std::size_t k) const noexcept { return limit[k] - came[k]; }
    [[nodiscard]] std::int64_t change(std::size_t k) const noexcept { return given[k] - room(k); }
    /// Allocations and frees.
    [[nodiscard]] std::int64_t calls() const noexcept { return came[0] + limit[0] - given[0]; }
    [[nodiscard]] bool has_room(tracked_kinds const& change) const noexcept {
      return change[0] <= room(0) && change[1] <= room(1) && change[2] <= room(2);
    }
    void allocate(tracked_kinds const& change) noexcept {
      for (std::size_t k = 0; k < 3; ++k) came[k] += change[k];
    }
    /// @param change  negative
    void count_free(tracked_kinds const& change) noexcept {
      for (std::size_t k = 0; k < 3; ++k) limit[k] -= change[k];
    }
    void add_room(std::size_t k, std::int64_t amount) noexcept {
      limit[k] += amount;
      given[k] += amount;
    }
    /// Lets the thread keep `allowance`, and what it needed for a block when it took room.
    void set_most(tracked_kinds const& allowance) noexcept {
      for (std::size_t k = 0; k < 3; ++k) set_most(k, max_of(allowance[k], 2 * need[k]));
    }
    void set_most(std::size_t k, std::int64_t amount) noexcept {
      most[k].store(amount, std::memory_order_relaxed);
    }
    [[nodiscard]] std::int64_t may_leave(std::size_t k) const noexcept {
      return most[k].load(std::memory_order_relaxed);
    }
    /// Lets the change be between -most_change and most_change.
    void bound(std::size_t k, std::int64_t most_change) noexcept {
      add_room(k, most_change - given[k]);
      set_most(k, 2 * most_change);
    }
    /// Takes all room away, and forgets what was counted.
    void clear() noexcept {
      came = limit = given = need = {};
      for (std::size_t k = 0; k < 3; ++k) set_most(k, -1);
    }
  };

  /// Exchanges half of the room for the other group, or what is lacking if that is more. Returns false if that is not enough.
  TARN_ALWAYS_INLINE bool exchange(std::size_t k, std::size_t g, std::int64_t change) noexcept {
    std::int64_t const lacking = change - parts_[g].room(k);
    if (lacking <= 0) return true;
    std::int64_t const has = parts_[1 - g].room(k);
    std::int64_t const amount = min_of(max_of(lacking, has / 2), min_of(has, unpaired_[g][k]));
    parts_[g].add_room(k, amount);
    parts_[1 - g].add_room(k, -amount);
    unpaired_[g][k] -= amount;
    unpaired_[1 - g][k] += amount;
    return amount >= lacking;
  }
  /// Takes room for a block from the reserves. Keeps what it took if that is not enough.
  TARN_NOINLINE bool take_room(room_reserves& reserves, tracked_update const& u) noexcept {
    std::size_t const g = index_of(u.group);
    part& its = parts_[g];
    part& other = parts_[1 - g];
    tracked_kinds const change = u.by_kind();
    room_request r{g, {}, {}};
    for (std::size_t k = 0; k < 3; ++k) {
      r.lacking[k] = change[k] - its.room(k);
      r.other[k] = other.room(k);
    }
    tracked_kinds allowance{};
    reserves.take(u.place, r, [&](room_answer const& a) noexcept {
      for (std::size_t k = 0; k < 3; ++k) {
        its.add_room(k, a.taken[k]);
        other.add_room(k, -a.exchanged[k]);
        unpaired_[1 - g][k] += a.exchanged[k];
        allowance[k] = max_of(allowance[k], a.allowance[k]);
      }
    });
    if (!its.has_room(change)) return false;
    its.need = change;
    its.set_most(allowance);
    return true;
  }
  /// Gives away what this thread is not likely to need soon, if that is much. @param u  a free
  TARN_NOINLINE void give_room(room_reserves& reserves, tracked_update const& u) noexcept {
    std::size_t const g = index_of(u.group);
    part& its = parts_[g];
    reserves.give(u.place, g, [&](tracked_kinds const& allowance) noexcept {
      its.set_most(allowance);
      room_pairs spare{{}, unpaired_};
      unpaired_ = {};
      for (std::size_t k = 0; k < 3; ++k) {
        spare.paired[g][k] = max_of(its.room(k) - its.may_leave(k) / 2, std::int64_t{0});
        its.add_room(k, -spare.paired[g][k]);
      }
      return spare;
    });
  }

  /// Counts a call of a bounded share. Gives both groups new bounds, since that of the call's was too narrow, or there was none. The
  /// bounds of both add up to the error. Returns false if what was counted exceeds it.
  TARN_NOINLINE bool count_bounded(tracked_update const& u) noexcept {
    part& its = parts_[index_of(u.group)];
    part& other = parts_[1 - index_of(u.group)];
    tracked_kinds const change = u.by_kind();
    tracked_kinds counted{};
    tracked_kinds counted_of_other{};
    tracked_kinds spare{};
    for (std::size_t k = 0; k < 3; ++k) {
      counted[k] = size_of(its.change(k) + change[k]);
      counted_of_other[k] = size_of(other.change(k));
      spare[k] = error_[k] - counted[k] - counted_of_other[k];
      if (spare[k] < 0) return false;
    }
    for (std::size_t k = 0; k < 3; ++k) {
      its.bound(k, counted[k] + spare[k] - spare[k] / part_of_other);
      other.bound(k, counted_of_other[k] + spare[k] / part_of_other);
    }
    if (u.rounded > 0) {
      its.allocate(change);
    } else {
      its.count_free(change);
    }
    return true;
  }
  [[nodiscard]] static std::int64_t size_of(std::int64_t change) noexcept { return max_of(change, -change); }

  owner_lock lock_;
  std::atomic<state> state_{state::closed};
  tracked_kinds error_{};  ///< of a bounded share
  std::array<part, 2> parts_{};
  tracked_room unpaired_{};  ///< room below the peak of a group, without room below the peak of all
};

}  // namespace tarn::detail
