// SPDX-License-Identifier: Apache-2.0
#pragma once
// Room below the peaks of `tracked` that no thread has. Threads that count on their own take room from a reserve and give it back.
//
// Below the peaks of one number (blocks, rounded or requested bytes) there are three kinds of room: below the peak of small blocks, of
// large blocks and of all blocks. A small block needs room of the first and of the last kind. Such a pair is one unit of room for
// small blocks; what remains of a group's room is unpaired. Room for large blocks becomes room for small blocks by exchanging
// its partner:
//
//   before   large + all,  small (unpaired)
//   after    small + all,  large (unpaired)
//
// The sum of each kind does not change, so no peak can be passed.

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "tarn/core/config.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/spin_lock.hpp"
#include "tarn/core/thread_place.hpp"

namespace tarn {

/// PyTorch's three groups; a block is small up to 1 MiB.
enum class block_group : std::uint8_t { all, smaller, larger };

namespace detail {

/// Blocks, rounded bytes, requested bytes.
using tracked_kinds = std::array<std::int64_t, 3>;

/// One amount for each group (small, large) and kind.
using tracked_room = std::array<tracked_kinds, 2>;
[[nodiscard]] constexpr std::size_t index_of(block_group group) noexcept {
  return static_cast<std::size_t>(group) - 1;
}

/// Room for blocks of each group, and what is left of the room of each group.
struct room_pairs {
  tracked_room paired{};
  tracked_room unpaired{};
};
/// What a thread lacks for a block, and what it has for the other group.
struct room_request {
  std::size_t group;      ///< index of the block's group
  tracked_kinds lacking;  ///< 0 or less: enough
  tracked_kinds other;    ///< room for the other group, which may be exchanged
};
/// What a thread gets. If its own room was exchanged, it also gets the room below the peak of the other group that is left.
struct room_answer {
  tracked_kinds taken{};      ///< room for the block's group
  tracked_kinds exchanged{};  ///< part of it that was the thread's room for the other group
  tracked_kinds allowance{};  ///< the room that the thread may keep
};

/// The room that some of the threads share. Each call needs its lock.
class alignas(2 * cache_line_bytes) room_reserve {
 public:
  [[nodiscard]] bool try_lock() noexcept { return lock_.try_lock(); }
  void lock() noexcept { lock_.lock(); }
  void unlock() noexcept { lock_.unlock(); }

  // ---- under the lock

  /// Takes what is lacking, as far as possible, and half of what this thread may keep, so that it need not come soon again.
  [[nodiscard]] room_answer take(room_request const& r) noexcept {
    room_answer a;
    a.allowance = allowance(r.group);
    for (std::size_t k = 0; k < 3; ++k) {
      std::int64_t& room = room_[r.group][k];
      std::int64_t const taken = min_of(room, max_of(r.lacking[k] + a.allowance[k] / 2, std::int64_t{0}));
      room -= taken;
      std::int64_t const lacking = r.lacking[k] - taken;
      if (lacking > 0) a.exchanged[k] = take_unpaired(r.group, k, min_of(lacking, r.other[k]));
      a.taken[k] = taken + a.exchanged[k];
      if (lacking > a.exchanged[k]) a.taken[k] += take_other(r.group, k, lacking - a.exchanged[k]);
    }
    if (++takes_ % takes_per_step == 0 && part_ > first_part) --part_;
    return a;
  }
  /// Takes at most `wanted`, by exchange if necessary. Returns what it took.
  [[nodiscard]] std::int64_t take(std::size_t group, std::size_t kind, std::int64_t wanted) noexcept {
    std::int64_t const taken = min_of(room_[group][kind], wanted);
    room_[group][kind] -= taken;
    return taken + take_other(group, kind, wanted - taken);
  }
  /// The room that a thread may keep beyond what it needs for a block.
  [[nodiscard]] tracked_kinds allowance(std::size_t group) const noexcept {
    auto const& room = room_[group];
    return {room[0] >> part_, room[1] >> part_, room[2] >> part_};
  }
  void give(room_pairs const& r) noexcept {
    for (std::size_t g = 0; g < 2; ++g) {
      for (std::size_t k = 0; k < 3; ++k) {
        room_[g][k] += r.paired[g][k];
        unpaired_[g][k] += r.unpaired[g][k];
      }
    }
  }
  void set(room_pairs const& r) noexcept {
    room_ = r.paired;
    unpaired_ = r.unpaired;
  }
  /// Makes threads take less beyond what they lack, until many have taken: one found too little, although the others had enough.
  void give_less() noexcept { part_ = min_of(part_ + part_step, last_part); }

 private:
  /// A thread may keep 1 / 2^part of what the reserve has. At first half of it: 16 threads that replace random ones of their 64 blocks of
  /// up to 256 KiB then visit a reserve at 10 of 100 pairs, and find all reserves empty at 3 of 100,000. With all of it they do so at 8
  /// of 100 and at 90 of 100,000.
  static constexpr unsigned first_part = 1;
  static constexpr unsigned part_step = 2;
  static constexpr unsigned last_part = 62;
  static constexpr std::uint32_t takes_per_step = 256;

  std::int64_t take_unpaired(std::size_t group, std::size_t kind, std::int64_t wanted) noexcept {
    std::int64_t const amount = min_of(wanted, unpaired_[group][kind]);
    unpaired_[group][kind] -= amount;
    return amount;
  }
  /// Takes room of this reserve for the other group, by exchange.
  std::int64_t take_other(std::size_t group, std::size_t kind, std::int64_t wanted) noexcept {
    std::int64_t const amount = take_unpaired(group, kind, min_of(wanted, room_[1 - group][kind]));
    room_[1 - group][kind] -= amount;
    unpaired_[1 - group][kind] += amount;
    return amount;
  }

  spin_lock lock_;
  unsigned part_ = first_part;
  std::uint32_t takes_ = 0;
  tracked_room room_{};
  tracked_room unpaired_{};  ///< below the peak of a group, without room below the peak of all
};

/// The reserves of one tracked_numbers: one for every three threads, so that they seldom meet. Each begins at that of its place. (With
/// one for every two, the threads of the example above visit a reserve at 14 of 100 pairs; with one for every four, at 9.)
class room_reserves {
 public:
  /// Takes room for a block. The request's `lacking` is what is missing afterwards.
  /// @param on_answer  called as on_answer(answer) for each reserve that room was taken from
  template <class F>
  void take(unsigned place, room_request& r, F const& on_answer) noexcept {
    visit_from(place, [&](room_reserve& reserve) {
      room_answer const a = reserve.take(r);
      on_answer(a);
      bool enough = true;
      for (std::size_t k = 0; k < 3; ++k) {
        r.lacking[k] -= a.taken[k];
        r.other[k] -= a.exchanged[k];
        enough = enough && r.lacking[k] <= 0;
      }
      return enough;
    });
  }
  /// Takes at most `wanted`. Returns what it took.
  [[nodiscard]] std::int64_t take(std::size_t group, std::size_t kind, std::int64_t wanted) noexcept {
    std::int64_t taken = 0;
    visit_from(0, [&](room_reserve& reserve) {
      taken += reserve.take(group, kind, wanted - taken);
      return taken == wanted;
    });
    return taken;
  }
  /// @param f  called as f(allowance): the room of the group that a thread may keep; returns what to give
  template <class F>
  void give(unsigned place, std::size_t group, F const& f) noexcept {
    visit_from(place, [&](room_reserve& reserve) {
      reserve.give(f(reserve.allowance(group)));
      return true;
    });
  }
  /// Distributes room, in equal parts. What was in the reserves is lost. No thread may use them meanwhile.
  void set(unsigned threads, room_pairs rest) noexcept {
    used_ = min_of(max_of(threads / threads_per_reserve, 1U), most_reserves);
    auto const part_of = [](tracked_room& all, std::int64_t parts) {
      tracked_room part{};
      for (std::size_t g = 0; g < 2; ++g) {
        for (std::size_t k = 0; k < 3; ++k) {
          part[g][k] = (all[g][k] + parts - 1) / parts;
          all[g][k] -= part[g][k];
        }
      }
      return part;
    };
    for (unsigned i = 0; i < used_; ++i)
      all_[i].set({part_of(rest.paired, used_ - i), part_of(rest.unpaired, used_ - i)});
  }
  /// No thread may use the reserves meanwhile.
  void give_less() noexcept {
    for (room_reserve& reserve : all_) reserve.give_less();
  }

 private:
  /// Calls f(reserve) for each reserve, locked, from that of a place, until it returns true. Those that another thread has locked come
  /// last.
  template <class F>
  void visit_from(unsigned place, F const& f) noexcept {
    std::uint32_t skipped = 0;
    for (unsigned i = 0; i < used_; ++i) {
      room_reserve& reserve = all_[(place + i) % used_];
      if (!reserve.try_lock()) {
        skipped |= std::uint32_t{1} << i;
        continue;
      }
      bool const done = f(reserve);
      reserve.unlock();
      if (done) return;
    }
    for (; skipped != 0; skipped &= skipped - 1) {
      room_reserve& reserve = all_[(place + static_cast<unsigned>(std::countr_zero(skipped))) % used_];
      reserve.lock();
      bool const done = f(reserve);
      reserve.unlock();
      if (done) return;
    }
  }

  static constexpr unsigned threads_per_reserve = 3;
  static constexpr unsigned most_reserves = thread_places / threads_per_reserve;
  unsigned used_ = 1;
  std::array<room_reserve, most_reserves> all_;
};

}  // namespace detail
}  // namespace tarn
