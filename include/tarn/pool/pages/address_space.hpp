// SPDX-License-Identifier: Apache-2.0
#pragma once
// The division of the pool's one virtual range: a quarter for the home addresses of each zone's handles, the
// rest for views. Keeps the holes, which are addresses with nothing mapped. Pure bookkeeping.

#include <cstddef>
#include <cstdint>

#include "tarn/pool/arena/arena.hpp"

namespace TARN_NAMESPACE::detail {

/// Address space is reserved this many times the device's memory. It costs the driver 5-77 us once, whatever
/// its size.
inline constexpr std::size_t reservation_factor = 16;

class address_space {
 public:
  /// Starts with one hole for each zone, and one for views. Requires room for zone_count + 1 ranges.
  void set_up(arena& a, std::uintptr_t base, std::size_t bytes) noexcept {
    base_ = base;
    quarter_ = bytes / 4;
    for (std::size_t z = 0; z < zone_count; ++z) add_hole(a, homes_[z], base + quarter_ * z, quarter_);
    add_hole(a, views_, base + bytes / 2, bytes / 2);
  }

  /// The zone of a home address.
  [[nodiscard]] zone zone_at(std::uintptr_t home) const noexcept {
    return static_cast<zone>((home - base_) / quarter_);
  }

  /// A hole of at least `bytes`, 0 if there is none; changes nothing. O(1)
  [[nodiscard]] range_ref find_home(arena& a, zone where, std::size_t bytes, std::size_t grain) noexcept {
    return homes_[static_cast<std::size_t>(where)].find(a.ranges, bytes, grain);
  }
  [[nodiscard]] range_ref find_view(arena& a, std::size_t bytes, std::size_t grain) noexcept {
    return views_.find(a.ranges, bytes, grain);
  }

  /// Takes the first `bytes` of a hole. Requires room for one range.
  void take(arena& a, range_ref hole, std::size_t bytes) noexcept {
    range_index& index = index_of(a.ranges[hole].address);
    index.erase(a.ranges, hole);
    if (a.ranges[hole].bytes > bytes) index.insert(a.ranges, a.split(hole, bytes));
    a.ranges[hole].state = range_state::live;
  }

  /// Turns a range back into a hole, and coalesces it with neighbouring holes. The free range before it may
  /// be extended again.
  void put(arena& a, range_ref r) noexcept {
    range_index& index = index_of(a.ranges[r].address);
    a.move_to_part(r, common);
    a.ranges[r].state = range_state::hole;
    a.ranges[r].domain = neutral;
    a.ranges[r].epoch = 0;
    a.ranges[r].where = zone::smaller;
    if (range_ref const n = a.ranges[r].next; n != 0 && a.ranges[n].state == range_state::hole) {
      index.erase(a.ranges, n);
      a.merge(r, n);
    }
    if (range_ref const b = a.ranges[r].previous; b != 0 && a.ranges[b].state == range_state::hole) {
      index.erase(a.ranges, b);
      a.merge(b, r);
      r = b;
    }
    index.insert(a.ranges, r);
    a.note_hole_after(a.ranges[r].previous);
  }

 private:
  static void add_hole(arena& a, range_index& index, std::uintptr_t address, std::size_t bytes) noexcept {
    range_ref const r = a.ranges.take();
    a.ranges[r].address = address;
    a.ranges[r].bytes = bytes;
    a.ranges[r].state = range_state::hole;
    a.starts.note(a.ranges, r);
    index.insert(a.ranges, r);
  }
  /// By address, not by zone: a handle that changed its zone keeps its home address.
  [[nodiscard]] range_index& index_of(std::uintptr_t address) noexcept {
    std::size_t const quarter = (address - base_) / quarter_;
    return quarter < zone_count ? homes_[quarter] : views_;
  }

  std::uintptr_t base_ = 0;
  std::size_t quarter_ = 1;
  range_index homes_[zone_count];
  range_index views_;
};

}  // namespace TARN_NAMESPACE::detail
