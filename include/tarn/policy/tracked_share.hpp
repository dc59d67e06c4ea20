// SPDX-License-Identifier: Apache-2.0
#pragma once
// The part of the counters that one thread updates on its own. Under contention, each thread gets a share of the room below the
// peaks. While it stays within its share no peak can change, whatever the others do within theirs, so its counts need not be
// published until they are read: every number stays exact. (Shares of the room below a limit: O'Neil, "The escrow transactional
// method", TODS 1986.)
//
// Room is lent separately for small and for large blocks. A byte of either is a byte below the peak of its group and below the peak of
// all blocks, which no other share has.
//
// A share belongs to one thread, which enters it through an owner_lock: two plain stores. Threads pass room to one another without
// entering another's share: each offers what it does not need in atomic counters of its own (`offered_`), from which the others
// take.
//
// Where peaks may be off by a bound, a share has a fixed room in both directions instead, however close the peaks are. Its counts are
// published when the room is used up.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tarn/core/config.hpp"
#include "tarn/core/counter.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/pool/front/owner_lock.hpp"

namespace tarn {

/// PyTorch's three groups; a block is small up to 1 MiB.
enum class block_group : std::uint8_t { all, small, large };

namespace detail {

enum class change_kind : std::uint8_t { allocation, deallocation };

/// The change that one call makes.
struct tracked_update {
  std::int64_t rounded = 0;  ///< bytes; negative for a free
  std::int64_t requested = 0;
  std::uint64_t thread = 0;  ///< number of the thread; 0 if it has none
  unsigned place = 0;        ///< of the thread; thread_places if it has none
  block_group group = block_group::all;

  /// Blocks, rounded bytes, requested bytes.
  [[nodiscard]] std::array<std::int64_t, 3> by_kind() const noexcept {
    return {rounded > 0 ? 1 : -1, rounded, requested};
  }
};

/// One amount for each kind (blocks, rounded, requested bytes) and group.
using tracked_amounts = std::array<std::array<std::int64_t, 3>, 3>;

/// One amount for each group (small, large) and kind.
using tracked_room = std::array<std::array<std::int64_t, 3>, 2>;
[[nodiscard]] constexpr std::size_t index_of(block_group group) noexcept {
  return static_cast<std::size_t>(group) - 1;
}

class alignas(512) tracked_share {  // an element of an array is addressed by a shift
 public:
  // ---- the owner thread

  /// Enters the share. Returns false if another thread visits it.
  [[nodiscard]] TARN_ALWAYS_INLINE bool try_enter() noexcept { return lock_.try_enter(); }
  TARN_ALWAYS_INLINE void leave() noexcept { lock_.leave(); }
  /// Whether its thread counts alone, without shares: it may use all numbers inside its lock. Called inside the lock.
  [[nodiscard]] TARN_ALWAYS_INLINE bool is_alone() const noexcept {
    return state_.load(std::memory_order_acquire) == state::alone;
  }
  /// Counts a call in this share, if it is open and has enough room. Called inside the lock.
  template <change_kind Kind>
  [[nodiscard]] TARN_ALWAYS_INLINE bool count_here(std::size_t rounded, std::size_t requested,
                                                   block_group group) noexcept {
    if (state_.load(std::memory_order_acquire) != state::open) return false;
    std::int64_t const amounts[3] = {1, static_cast<std::int64_t>(rounded),
                                     static_cast<std::int64_t>(requested)};
    auto& room = room_[index_of(group)];
    if constexpr (Kind == change_kind::allocation) {
      std::int64_t const left[3] = {room[0] - amounts[0], room[1] - amounts[1], room[2] - amounts[2]};
      if ((left[0] | left[1] | left[2]) < 0) [[unlikely]]  // one of them
        return false;
      auto& came = came_[index_of(group)];
      for (std::size_t k = 0; k < 3; ++k) room[k] = left[k];
      for (std::size_t k = 0; k < 3; ++k) came[k] += amounts[k];
    } else {
      for (std::size_t k = 0; k < 3; ++k) room[k] += amounts[k];
    }
    note_call();
    return true;
  }
  /// Counts a call in the open share at index `mine`. Returns false if it is not open or there is not enough room; the call must then
  /// be counted globally. Called inside the lock. @param open  indices of shares to take room from
  [[nodiscard]] static bool count(tracked_share* all, unsigned mine, std::uint32_t open,
                                  tracked_update const& u) noexcept {
    tracked_share& s = all[mine];
    state const at = s.state_.load(std::memory_order_acquire);
    if (at != state::open) return at == state::bounded && s.count_bounded(u);
    if (u.rounded > 0 && !s.has_room(u)) [[unlikely]] {
      if (!s.find_room(all, mine, open, u)) return false;
    }
    s.add(u);
    s.note_call();
    return true;
  }
  /// As count(), for any thread, as if it were the owner: for tests.
  [[nodiscard]] bool count(tracked_update const& u) noexcept {
    if (!try_enter()) return false;
    bool const done = count(this, 0, 0, u);
    leave();
    return done;
  }

  // ---- a visitor: announce() for all shares that it will visit, one remote_barrier(), visit(), and at the end end_visit()

  void announce() noexcept { lock_.announce(); }
  void visit() noexcept { lock_.visit(); }
  void end_visit() noexcept { lock_.end_visit(); }
  /// In a forked child, before end_visit().
  void forget_owner() noexcept { lock_.forget_owner(); }

  /// Opens a closed share with `room` for what is allocated, and `offered` for any thread; there is no bound for what is freed.
  void open(tracked_room const& room, tracked_room const& offered) noexcept {
    given_ = room_ = room;
    for (std::size_t g = 0; g < 2; ++g) {
      for (std::size_t k = 0; k < 3; ++k) {
        step_[g][k] = max_of(room[g][k] / steps_at_first, std::int64_t{1});
        offered_[g][k].store(offered[g][k], std::memory_order_relaxed);
      }
    }
    state_.store(state::open, std::memory_order_release);
  }
  /// Opens a closed share whose counts may differ by `error` from what was published, in each group and in the sum of both.
  void open_bounded(std::array<std::int64_t, 3> const& error) noexcept {
    given_ = room_ = {error, error};
    state_.store(state::bounded, std::memory_order_release);
  }
  /// Lets the thread of this share, which is closed, count alone.
  void let_alone() noexcept { state_.store(state::alone, std::memory_order_release); }
  /// Closes a share in which its thread counted alone. During a visit, or called by its thread.
  void end_alone() noexcept { state_.store(state::closed, std::memory_order_relaxed); }
  /// Reports the counts of a bounded share as close() does; it stays open with the room that it was given. The owner thread calls
  /// this, or waits meanwhile.
  template <class F>
  void publish(F const& f) noexcept {
    report(f);
    room_ = given_;
  }
  /// Closes the share and reports its counts: f(kind, group, change, came) for each. Returns the number of calls. During a visit of
  /// all shares.
  template <class F>
  std::uint64_t close(F const& f) noexcept {
    state_.store(state::closed, std::memory_order_relaxed);
    report(f);
    for (auto& of_group : offered_) {
      for (auto& amount : of_group) amount.store(0, std::memory_order_relaxed);
    }
    std::uint64_t const calls = calls_;
    calls_ = 0;
    return calls;
  }
  /// Takes room that the share offers, any thread, while the share cannot be closed: at least `wanted` or half of it, whichever is
  /// more, as far as there is any. Returns what was taken.
  [[nodiscard]] std::int64_t take_offered(std::size_t g, std::size_t k, std::int64_t wanted) noexcept {
    std::atomic<std::int64_t>& amount = offered_[g][k];
    std::int64_t is = amount.load(std::memory_order_relaxed);
    while (is > 0) {
      std::int64_t const taken = min_of(is, max_of(wanted, is / 2));
      if (amount.compare_exchange_weak(is, is - taken, std::memory_order_relaxed)) return taken;
    }
    return 0;
  }

 private:
  enum class state : std::uint8_t { closed, open, bounded, alone };
  /// The room at first, in steps. Takers take two steps more than they need; a share that has more than twice what it keeps offers the
  /// rest.
  static constexpr std::int64_t steps_at_first = 2;
  static constexpr std::int64_t steps_kept = 3;
  /// How often it looks.
  static constexpr std::uint64_t calls_per_offer = 8;

  [[nodiscard]] TARN_ALWAYS_INLINE bool has_room(tracked_update const& u) const noexcept {
    auto const change = u.by_kind();
    auto const& room = room_[index_of(u.group)];
    return change[0] <= room[0] && change[1] <= room[1] && change[2] <= room[2];
  }
  TARN_ALWAYS_INLINE void add(tracked_update const& u) noexcept {
    auto const change = u.by_kind();
    std::size_t const g = index_of(u.group);
    for (std::size_t k = 0; k < 3; ++k) {
      room_[g][k] -= change[k];
      if (u.rounded > 0) came_[g][k] += change[k];
    }
  }
  TARN_ALWAYS_INLINE void note_call() noexcept {
    if ((++calls_ & (calls_per_offer - 1)) == 0) [[unlikely]]
      offer();
  }

  /// Takes room for a block from what this share and the others offer. Keeps what it took if that is not enough.
  TARN_NOINLINE bool find_room(tracked_share* all, unsigned mine, std::uint32_t open,
                               tracked_update const& u) noexcept {
    auto const change = u.by_kind();
    std::size_t const g = index_of(u.group);
    for (std::size_t k = 0; k < 3; ++k) {
      std::int64_t lacking = change[k] - room_[g][k];
      if (lacking <= 0) continue;
      lacking -= take(*this, g, k, lacking);
      for (unsigned tries = 0; lacking > 0 && tries < 32; ++tries) {
        if ((open >> donor_ & 1) != 0 && donor_ != mine) lacking -= take(all[donor_], g, k, lacking);
        if (lacking > 0) donor_ = (donor_ + 1) % 32;
      }
      if (lacking > 0) return false;
    }
    return true;
  }
  std::int64_t take(tracked_share& from, std::size_t g, std::size_t k, std::int64_t lacking) noexcept {
    std::int64_t const taken = from.take_offered(g, k, lacking + 2 * step_[g][k]);
    room_[g][k] += taken;
    given_[g][k] += taken;
    return taken;
  }
  /// Offers the room that this thread is not likely to need soon.
  TARN_NOINLINE void offer() noexcept {
    for (std::size_t g = 0; g < 2; ++g) {
      for (std::size_t k = 0; k < 3; ++k) {
        std::int64_t const kept = steps_kept * step_[g][k];
        std::int64_t const spare = room_[g][k] - kept;
        if (spare <= kept) continue;
        room_[g][k] = kept;
        given_[g][k] -= spare;
        offered_[g][k].fetch_add(spare, std::memory_order_relaxed);
      }
    }
  }

  /// Counts a call if the counts, of its group and of both, then stay within the bound.
  TARN_NOINLINE bool count_bounded(tracked_update const& u) noexcept {
    auto const change = u.by_kind();
    std::size_t const g = index_of(u.group);
    for (std::size_t k = 0; k < 3; ++k) {
      std::int64_t const bound = given_[g][k];
      std::int64_t const now = bound - room_[g][k] + change[k];
      std::int64_t const both = now + given_[1 - g][k] - room_[1 - g][k];
      if (now > bound || -now > bound || both > bound || -both > bound) return false;
    }
    add(u);
    ++calls_;
    return true;
  }

  template <class F>
  void report(F const& f) noexcept {
    for (std::size_t k = 0; k < 3; ++k) {
      std::int64_t const small = given_[0][k] - room_[0][k];
      std::int64_t const large = given_[1][k] - room_[1][k];
      f(k, std::size_t{0}, small + large, came_[0][k] + came_[1][k]);
      f(k, std::size_t{1}, small, came_[0][k]);
      f(k, std::size_t{2}, large, came_[1][k]);
    }
    came_ = {};
  }

  owner_lock lock_;
  std::atomic<state> state_{state::closed};
  unsigned donor_ = 0;       ///< share that had room the last time
  std::uint64_t calls_ = 0;  ///< counted here since it was opened
  tracked_room room_{};      ///< by how much each number may still grow here
  tracked_room
      given_{};  ///< room_ when its counts were last reported, and what was taken since, less what was offered
  tracked_room came_{};  ///< all increases since
  tracked_room step_{};  ///< by how much room is taken and offered
  alignas(cache_line_bytes) std::array<std::array<std::atomic<std::int64_t>, 3>, 2> offered_{};
};

}  // namespace detail
}  // namespace tarn
