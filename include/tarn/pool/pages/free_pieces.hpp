// SPDX-License-Identifier: Apache-2.0
#pragma once
// Free memory by handles: the pieces from which a block can be assembled. Pure: it reads the arena and the
// page map and changes neither.

#include <cstddef>
#include <cstdint>

#include "tarn/core/config.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/core/sort.hpp"
#include "tarn/pool/arena/arena.hpp"
#include "tarn/pool/arena/page_map.hpp"
#include "tarn/pool/pages/growth.hpp"
#include "tarn/pool/pages/view.hpp"

namespace TARN_NAMESPACE::detail {

/// Free bytes of one handle, at their home address.
struct piece {
  std::uintptr_t address = 0;
  std::size_t bytes = 0;
  handle_ref handle = 0;
};

/// Free ends and starts of handles below this size are not worth mapping a handle, bytes.
inline constexpr std::size_t least_piece = 64_KiB;

/// Calls f(piece, free_at_start, free_at_end) for each handle's free part that the domain may use.
template <class F>
void for_each_piece(arena const& a, page_map const& map, domain_ref d, zone where, std::size_t least, F&& f) {
  a.streams[d].ranges(where).for_each(a.ranges, least, [&](range_ref r) {
    range const& node = a.ranges[r];
    for (std::uintptr_t at = node.address; at < node.end();) {
      handle_ref const h = map.at(at);
      std::uintptr_t const end = min_of(node.end(), map.end_of(h));
      f(piece{at, end - at, h}, at == map[h].home, end == map.end_of(h));
      at = end;
    }
  });
}

/// The wholly free handles that may be given back, since their work is complete and no graph has their
/// addresses, the largest first. O(free ranges + handles), plus sorting. @throws std::bad_alloc
[[nodiscard]] inline sequence<piece> free_handles(arena const& a, page_map const& map) {
  sequence<piece> whole;
  for (domain_ref d = 0; d < a.streams.size(); ++d) {
    if (a.streams.part_of(d).keeps_addresses) continue;
    for (zone const where : all_zones) {
      for_each_piece(a, map, d, where, map.granularity(), [&](piece const& p, bool at_start, bool at_end) {
        if (at_start && at_end && map[p.handle].pins == 0 &&
            a.is_complete(a.ranges[a.starts.find(a.ranges, p.address)]))
          whole.push_back(p);
      });
    }
  }
  sort(whole.begin(), whole.size(), [](piece const& x, piece const& y) {
    return x.bytes != y.bytes ? x.bytes > y.bytes : x.address > y.address;
  });
  return whole;
}

/// Wholly free handles by size, the largest first; of one size the lower address comes first. Handles of one
/// size are sorted only as far as they are looked at.
class whole_handles {
 public:
  /// @throws std::bad_alloc
  void add(piece const& p) {
    all_.push_back(p);
    largest_ = max_of(largest_, p.bytes);
  }
  /// Groups what was added by size. O(handles + largest handle / grain)
  /// @param grain  divides all sizes @throws std::bad_alloc
  void group(std::size_t grain) {
    sequence<std::size_t> places;
    places.resize(largest_ / grain + 1);
    for (piece const& p : all_) {
      TARN_VISIT();
      ++places[p.bytes / grain];
    }
    sequence<piece> grouped;
    grouped.resize(all_.size());
    std::size_t first = 0;
    for (std::size_t k = places.size(); k-- > 0;) {
      TARN_VISIT();
      std::size_t const count = detail::exchange(places[k], first);
      if (count != 0) sizes_.push_back({first, count, count, {}});
      first += count;
    }
    for (piece const& p : all_) grouped[places[p.bytes / grain]++] = p;
    all_.swap(grouped);
    for (same_size& s : sizes_) {
      make_heap(all_.begin() + s.first, s.count, later);
      for (std::size_t i = s.first; i < s.first + s.count; ++i) {
        if (all_[i].address >= s.last.address) s.last = all_[i];
      }
    }
  }
  /// Takes handles, the largest that fit first, until at most `leave` of `rest` bytes are left; not those for
  /// which is_taken(piece) is true. Returns the smallest handle that did not fit, bytes 0 if there is none;
  /// of several the last one, if that is not taken. O(sizes), and O(log handles) for each that is looked at
  /// for the first time @throws std::bad_alloc
  template <class IsTaken>
  piece take(std::size_t& rest, std::size_t leave, sequence<piece>& chosen, IsTaken const& is_taken) {
    piece smallest_above;
    for (same_size& s : sizes_) {
      TARN_VISIT();
      for (std::size_t i = 0; i < s.count && rest > leave; ++i) {
        TARN_VISIT();
        piece const& p = at(s, i);
        if (is_taken(p)) continue;
        if (p.bytes > rest) {
          smallest_above = is_taken(s.last) ? p : s.last;
          break;
        }
        chosen.push_back(p);
        rest -= p.bytes;
      }
    }
    return smallest_above;
  }

 private:
  /// The handles of one size: those that were looked at are at the end, the others are a heap.
  struct same_size {
    std::size_t first = 0;
    std::size_t count = 0;
    std::size_t unsorted = 0;
    piece last;  ///< the one with the highest address
  };
  static bool later(piece const& x, piece const& y) noexcept { return x.address > y.address; }
  piece const& at(same_size& s, std::size_t i) noexcept {
    for (; s.count - s.unsorted <= i; --s.unsorted) pop_heap(all_.begin() + s.first, s.unsorted, later);
    return all_[s.first + s.count - 1 - i];
  }

  sequence<piece> all_;
  sequence<same_size> sizes_;
  std::size_t largest_ = 0;
};

/// Free memory from which a block can be assembled: whole handles, and the free ends and starts of others.
class free_pieces {
 public:
  whole_handles whole;
  sequence<piece> ends;
  sequence<piece> starts;

  /// @param handles  number of all handles
  explicit free_pieces(std::size_t handles = 0) noexcept : handles_(handles) {}

  /// From now on is_shown() is true for the handles of a view. O(its slots), and once O(handles) @throws
  /// std::bad_alloc
  void mark(view const& v) {
    shown_.resize(handles_);
    ++marked_;
    for (view_slot const& slot : v.view_slots) {
      TARN_VISIT();
      shown_[slot.handle] = marked_;
    }
  }
  [[nodiscard]] bool is_shown(piece const& p) const noexcept {
    TARN_VISIT();
    return shown_[p.handle] == marked_;
  }

  static bool smaller(piece const& x, piece const& y) noexcept {
    return x.bytes != y.bytes ? x.bytes < y.bytes : x.address < y.address;
  }
  void sort_starts() noexcept {
    if (!detail::exchange(are_sorted_, true)) sort(starts.begin(), starts.size(), smaller);
  }
  /// The smallest start of at least `least` bytes that is not shown. O(log starts + slots of the view), and
  /// once a sort of the starts
  [[nodiscard]] piece smallest_start(std::size_t least) noexcept {
    sort_starts();
    std::size_t from = 0;
    for (std::size_t end = starts.size(); from < end;) {
      std::size_t const middle = from + (end - from) / 2;
      starts[middle].bytes < least ? from = middle + 1 : end = middle;
    }
    while (from < starts.size() && is_shown(starts[from])) ++from;
    return from < starts.size() ? starts[from] : piece{};
  }
  /// The largest start that is not shown. The same cost.
  [[nodiscard]] piece largest_start() noexcept {
    sort_starts();
    std::size_t end = starts.size();
    while (end != 0 && is_shown(starts[end - 1])) --end;
    return end != 0 ? starts[end - 1] : piece{};
  }

 private:
  sequence<std::uint32_t>
      shown_;  ///< of each handle: the number of the last view that was marked and shows it
  std::size_t handles_;
  std::uint32_t marked_ = 0;
  bool are_sorted_ = false;
};

/// What the taker may use. O(free ranges + handles) @throws std::bad_alloc
inline free_pieces find_pieces(arena const& a, page_map const& map, growth_request const& request) {
  free_pieces found(map.size());
  bool const head_allowed = request.alignment <= range_grain;
  auto const look = [&](domain_ref d) {
    auto const sort_in = [&](piece const& p, bool at_start, bool at_end) {
      if (at_start && at_end) {
        found.whole.add(p);
      } else if (p.bytes < least_piece) {
        return;
      } else if (at_end && head_allowed) {
        found.ends.push_back(p);
      } else if (at_start) {
        found.starts.push_back(p);
      }
    };
    for_each_piece(a, map, d, zone::larger, least_piece, sort_in);
    for_each_piece(a, map, d, zone::smaller, map.granularity(),
                   [&](piece const& p, bool at_start, bool at_end) {
                     if (at_start && at_end) found.whole.add(p);
                   });
  };
  a.streams.for_each_usable(request.taker, look);
  found.whole.group(map.granularity());
  return found;
}

}  // namespace TARN_NAMESPACE::detail
