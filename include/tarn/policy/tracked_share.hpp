// SPDX-License-Identifier: Apache-2.0
#pragma once
// The part of the counters that one thread updates on its own. Under contention, each thread gets a share of the room below the
// peaks. While it stays within its share no peak can change, whatever the others do within theirs, so its counts need not be
// published until they are read: every number stays exact. (Shares of the room below a limit: O'Neil, "The escrow transactional
// method", TODS 1986.)
//
// Where peaks may be off by a bound, a share has a fixed room in both directions instead, however close the peaks are. Its counts are
// published when the room is used up.

#include <array>
#include <cstddef>
#include <cstdint>

#include "tarn/core/config.hpp"
#include "tarn/core/counter.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/spin_lock.hpp"

namespace tarn {

/// PyTorch's three groups; a block is small up to 1 MiB.
enum class block_group : std::uint8_t { all, small, large };

namespace detail {

/// The change that one call makes.
struct tracked_update {
  std::int64_t rounded = 0;  ///< bytes; negative for a free
  std::int64_t requested = 0;
  void const* thread = nullptr;
  block_group group = block_group::all;

  /// Blocks, rounded bytes, requested bytes.
  [[nodiscard]] std::array<std::int64_t, 3> by_kind() const noexcept {
    return {rounded > 0 ? 1 : -1, rounded, requested};
  }
};

/// One amount for each kind (blocks, rounded, requested bytes) and group.
using tracked_amounts = std::array<std::array<std::int64_t, 3>, 3>;

class alignas(cache_line_bytes) tracked_share {
 public:
  /// Counts a call here. Returns false if there is no open share, or not enough room in it; the call must then be counted
  /// globally.
  [[nodiscard]] TARN_ALWAYS_INLINE bool count(tracked_update const& u) noexcept {
    if (!lock_.try_lock()) return false;
    bool const done = is_open_ && (u.rounded < 0 ? may_shrink(u) : has_room(u));
    if (done) add(u);
    lock_.unlock();
    return done;
  }
  /// The same for a block for which there is not enough room here: moves room from `donor`, which keeps at least half of its own or
  /// what it can spare. Returns false if the two together have not enough, or another thread uses one of them. The room of both
  /// together stays the same, so nothing else has to know.
  [[nodiscard]] bool count_with_room_of(tracked_share& donor, tracked_update const& u) noexcept {
    if (!lock_.try_lock()) return false;
    bool done = false;
    if (donor.lock_.try_lock()) {  // never waits: two threads may take room from each other
      if (is_open_ && donor.is_open_ && move_room_from(donor, u)) {
        add(u);
        done = true;
      }
      donor.lock_.unlock();
    }
    lock_.unlock();
    return done;
  }

  /// Opens this share with `room` for what is allocated; there is no bound for what is freed.
  void open(tracked_amounts const& room) noexcept { open(room, is_bounded::no); }
  /// Opens this share with `room` in both directions.
  void open_bounded(tracked_amounts const& room) noexcept { open(room, is_bounded::yes); }
  /// Reports the counts as close() does, and stays open with the room that it was given.
  template <class F>
  void publish(F const& f) noexcept {
    lock_.lock();
    report(f);
    room_ = given_;
    lock_.unlock();
  }
  /// Reports the counts as close() does and stays open, with less room: where `least` is above 0, by as much as that or half of
  /// the room, whichever is more, as far as there is any. `lent` contains the room of this share before and after.
  template <class F>
  void take_room(tracked_amounts const& least, tracked_amounts& lent, F const& f) noexcept {
    lock_.lock();
    report(f);
    for (std::size_t k = 0; k < 3; ++k) {
      for (std::size_t g = 0; g < 3; ++g) {
        if (least[k][g] > 0) room_[k][g] -= min_of(room_[k][g], max_of(least[k][g], room_[k][g] / 2));
        lent[k][g] += room_[k][g] - given_[k][g];
        given_[k][g] = room_[k][g];
      }
    }
    lock_.unlock();
  }
  /// Closes the share and reports its counts: f(kind, group, change, came) for each. Returns the number of calls.
  template <class F>
  std::uint64_t close(F const& f) noexcept {
    lock_.lock();
    is_open_ = false;
    report(f);
    std::uint64_t const calls = calls_;
    calls_ = 0;
    lock_.unlock();
    return calls;
  }

  /// For fork(): no thread counts here meanwhile.
  void lock() noexcept { lock_.lock(); }
  void unlock() noexcept { lock_.unlock(); }

 private:
  enum class is_bounded : std::uint8_t { no, yes };

  void open(tracked_amounts const& room, is_bounded bounded) noexcept {
    lock_.lock();
    given_ = room_ = room;
    bounded_ = bounded;
    is_open_ = true;
    lock_.unlock();
  }
  [[nodiscard]] TARN_ALWAYS_INLINE bool has_room(tracked_update const& u) const noexcept {
    auto const change = u.by_kind();
    auto const g = static_cast<std::size_t>(u.group);
    bool fits = true;
    for (std::size_t k = 0; k < 3; ++k) fits = fits && change[k] <= room_[k][0] && change[k] <= room_[k][g];
    return fits;
  }

  /// Whether a free stays within the bound. A share without one has room for any.
  [[nodiscard]] TARN_ALWAYS_INLINE bool may_shrink(tracked_update const& u) const noexcept {
    if (bounded_ == is_bounded::no) return true;
    auto const change = u.by_kind();
    auto const g = static_cast<std::size_t>(u.group);
    bool fits = true;
    for (std::size_t k = 0; k < 3; ++k) {
      fits =
          fits && room_[k][0] - change[k] <= 2 * given_[k][0] && room_[k][g] - change[k] <= 2 * given_[k][g];
    }
    return fits;
  }

  TARN_ALWAYS_INLINE void add(tracked_update const& u) noexcept {
    auto const change = u.by_kind();
    auto const g = static_cast<std::size_t>(u.group);
    for (std::size_t k = 0; k < 3; ++k) {
      room_[k][0] -= change[k];
      room_[k][g] -= change[k];
      if (u.rounded > 0) came_[k][g] += change[k];
    }
    ++calls_;
  }
  /// Moves nothing unless it suffices.
  [[nodiscard]] bool move_room_from(tracked_share& donor, tracked_update const& u) noexcept {
    auto const change = u.by_kind();
    tracked_amounts moved{};
    for (std::size_t k = 0; k < 3; ++k) {
      for (std::size_t const g : {std::size_t{0}, static_cast<std::size_t>(u.group)}) {
        std::int64_t const lacking = change[k] - room_[k][g];
        if (lacking <= 0) continue;
        if (lacking > donor.room_[k][g]) return false;
        moved[k][g] = max_of(lacking, donor.room_[k][g] / 2);
      }
    }
    for (std::size_t k = 0; k < 3; ++k) {
      for (std::size_t g = 0; g < 3; ++g) {
        room_[k][g] += moved[k][g];
        given_[k][g] += moved[k][g];
        donor.room_[k][g] -= moved[k][g];
        donor.given_[k][g] -= moved[k][g];
      }
    }
    return true;
  }

  template <class F>
  void report(F const& f) noexcept {
    for (std::size_t k = 0; k < 3; ++k) {
      came_[k][0] = came_[k][1] + came_[k][2];
      for (std::size_t g = 0; g < 3; ++g) f(k, g, given_[k][g] - room_[k][g], came_[k][g]);
    }
    came_ = {};
  }

  spin_lock lock_;
  bool is_open_ = false;
  is_bounded bounded_ = is_bounded::no;
  std::uint64_t calls_ = 0;  ///< counted here since it was opened
  tracked_amounts room_{};   ///< by how much each number may still grow here
  tracked_amounts given_{};  ///< room_ when its counts were last reported, and what was moved here since
  tracked_amounts came_{};   ///< all increases since
};

}  // namespace detail
}  // namespace tarn
