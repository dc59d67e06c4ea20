// SPDX-License-Identifier: Apache-2.0
#pragma once
// What one thread may count by itself. Where several threads call at once, each is given a share of the room that is left
// below the peaks. While it stays within its share no peak can change, whatever the others do within theirs, so nobody
// needs to know of it until somebody asks: every number stays exact. (Shares of what is left below a limit: O'Neil, "The
// escrow transactional method", TODS 1986.)

#include <array>
#include <cstddef>
#include <cstdint>

#include "tarn/core/config.hpp"
#include "tarn/core/counter.hpp"
#include "tarn/core/spin_lock.hpp"

namespace tarn {

/// PyTorch's three groups; a block is small up to 1 MiB.
enum class block_group : std::uint8_t { all, small, large };

namespace detail {

/// What one call changes.
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
  /// Counts a call here. False: there is no share now, or not enough of it; it is to be counted by all.
  [[nodiscard]] TARN_ALWAYS_INLINE bool count(tracked_update const& u) noexcept {
    if (!lock_.try_lock()) return false;
    bool const done = is_open_ && (u.rounded < 0 || has_room(u));
    if (done) {
      auto const change = u.by_kind();
      auto const g = static_cast<std::size_t>(u.group);
      for (std::size_t k = 0; k < 3; ++k) {
        room_[k][0] -= change[k];
        room_[k][g] -= change[k];
        if (u.rounded > 0) came_[k][g] += change[k];
      }
      ++calls_;
    }
    lock_.unlock();
    return done;
  }

  /// Gives this share's thread room for itself.
  void open(tracked_amounts const& room) noexcept {
    lock_.lock();
    given_ = room_ = room;
    is_open_ = true;
    lock_.unlock();
  }
  /// Takes the room back and tells what was counted: f(kind, group, change, came) for each. Returns the number of calls.
  template <class F>
  std::uint64_t close(F const& f) noexcept {
    lock_.lock();
    is_open_ = false;
    for (std::size_t k = 0; k < 3; ++k) {
      came_[k][0] = came_[k][1] + came_[k][2];
      for (std::size_t g = 0; g < 3; ++g) f(k, g, given_[k][g] - room_[k][g], came_[k][g]);
    }
    came_ = {};
    std::uint64_t const calls = calls_;
    calls_ = 0;
    lock_.unlock();
    return calls;
  }

  /// For fork(): nobody counts here meanwhile.
  void lock() noexcept { lock_.lock(); }
  void unlock() noexcept { lock_.unlock(); }

 private:
  [[nodiscard]] TARN_ALWAYS_INLINE bool has_room(tracked_update const& u) const noexcept {
    auto const change = u.by_kind();
    auto const g = static_cast<std::size_t>(u.group);
    bool fits = true;
    for (std::size_t k = 0; k < 3; ++k) fits = fits && change[k] <= room_[k][0] && change[k] <= room_[k][g];
    return fits;
  }

  spin_lock lock_;
  bool is_open_ = false;
  std::uint64_t calls_ = 0;  ///< counted here since it was opened
  tracked_amounts room_{};   ///< by how much each number may still grow here
  tracked_amounts given_{};  ///< what room_ was when it was opened
  tracked_amounts came_{};   ///< all increases
};

}  // namespace detail
}  // namespace tarn
