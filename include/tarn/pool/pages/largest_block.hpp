// SPDX-License-Identifier: Apache-2.0
#pragma once
// The largest block that a growth could serve now. Pure: it reads the arena as it would be once all work on
// free memory is done.

#include <cstddef>
#include <cstdint>

#include "tarn/core/bytes.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/pool/arena/arena.hpp"
#include "tarn/pool/arena/page_map.hpp"
#include "tarn/pool/arena/size_class.hpp"
#include "tarn/pool/pages/page_choice.hpp"

namespace TARN_NAMESPACE::detail {

/// Calls f(first range, bytes, range after it or 0) for each contiguous free stretch of one zone and part,
/// whichever streams freed it. Not for what graphs have the addresses of. O(ranges)
template <class F>
void for_each_free_stretch(arena const& a, F const& f) {
  for (range_ref r = 1; r < a.ranges.size(); ++r) {
    range const& first = a.ranges[r];
    auto const goes_on = [&](range_ref next) {
      range const& node = a.ranges[next];
      return next != 0 && node.state == range_state::free && node.where == first.where &&
             node.part == first.part;
    };
    if (!goes_on(r) || goes_on(first.previous) || a.keeps_address(first)) continue;
    std::size_t bytes = 0;
    range_ref at = r;
    for (; goes_on(at); at = a.ranges[at].next) bytes += a.ranges[at].bytes;
    f(first, bytes, at);
  }
}

/// The largest of several sizes, which a block of one of the zones can have.
class largest_size {
 public:
  /// A block of `where` can have up to so many bytes.
  void consider(zone where, std::size_t bytes) noexcept {
    std::size_t& most = where == zone::larger ? large_ : small_;
    most = max_of(most, bytes);
  }
  /// New memory, or memory that any block can use.
  void consider(std::size_t bytes) noexcept {
    consider(zone::larger, bytes);
    consider(zone::smaller, bytes);
  }
  /// The zone for small blocks serves no others, nor does the other one serve small blocks.
  [[nodiscard]] std::size_t bytes() const noexcept {
    return large_ > class_limit ? large_ : min_of(small_, class_limit);
  }

 private:
  std::size_t large_ = 0;
  std::size_t small_ = 0;
};

/// A free stretch that new handles can extend: its bytes before the wholly free handles at its end, and the
/// addresses from there on.
struct extensible {
  zone where = zone::larger;
  std::size_t bytes = 0;
  std::size_t hole = 0;
};

/// Over pages. O(ranges + handles).
/// @param left       bytes that can be created
/// @param may_remap  whether free handles are mapped together
/// @throws std::bad_alloc
[[nodiscard]] inline std::size_t largest_block(arena const& a, page_map const& map, std::size_t left,
                                               bool may_remap) {
  largest_size most;
  free_pieces found;
  std::size_t whole = 0;
  std::size_t const fresh = align_down(left, map.granularity());
  sequence<extensible> before_holes;
  for_each_free_stretch(a, [&](range const& first, std::size_t bytes, range_ref next) {
    bool const is_common = first.part == common;  // of other parts, whole handles can be given back
    if (is_common && a.joins_handles) most.consider(first.where, bytes);
    extensible last{first.where, 0, 0};
    std::uintptr_t at = first.address;
    while (at < first.address + bytes) {
      handle_ref const h = map.at(at);
      std::uintptr_t const end = min_of(first.address + bytes, map.end_of(h));
      piece const p{at, end - at, h};
      bool const at_end = end == map.end_of(h);
      bool const at_start = at == map[h].home;
      at = end;
      if (is_common && !a.joins_handles) most.consider(first.where, p.bytes);
      bool const can_go = at_start && at_end && map[h].pins == 0;
      if (can_go) {
        last.hole += p.bytes;
      } else {
        last.bytes = last.hole == 0 ? last.bytes + p.bytes : p.bytes;  // those before it are given back
        last.hole = 0;
      }
      if (map[h].pins != 0) continue;
      if (can_go) {
        whole += p.bytes;
      } else if (!is_common || p.bytes < least_piece) {
        continue;
      } else if (first.where == zone::larger && at_end) {
        found.ends.push_back(p);
      } else if (first.where == zone::larger && at_start) {
        found.starts.push_back(p);
      }
    }
    if (!is_common || !a.joins_handles || last.bytes == 0) return;
    if (next != 0 && a.ranges[next].state == range_state::hole) last.hole += a.ranges[next].bytes;
    if (last.hole != 0) before_holes.push_back(last);
  });
  for (extensible const& e : before_holes) most.consider(e.where, e.bytes + min_of(e.hole, whole + fresh));
  if (!may_remap) {
    most.consider(align_down(min_of(left, max_request_bytes) + whole, map.granularity()));
    return most.bytes();
  }
  most.consider(whole + fresh);
  most.consider(zone::larger, whole + largest_pair(found).bytes() + fresh);
  return most.bytes();
}

/// Over blocks, which are neither joined nor moved. @param grain  of a new segment
[[nodiscard]] inline std::size_t largest_block(arena const& a, std::size_t left, std::size_t grain) noexcept {
  largest_size most;
  std::size_t whole = 0;
  for_each_free_stretch(a, [&](range const& first, std::size_t bytes, range_ref) {
    if (first.part == common) most.consider(first.where, bytes);
    // A wholly free segment is given back before its memory is taken anew.
    bool is_whole = first.previous == 0;
    for (range const* last = &first; is_whole; last = &a.ranges[last->next]) {
      if (last->next == 0) break;
      is_whole = a.ranges[last->next].state == range_state::free;
    }
    if (is_whole) whole += bytes;
  });
  most.consider(align_down(min_of(left, max_request_bytes) + whole, grain));
  return most.bytes();
}

}  // namespace TARN_NAMESPACE::detail
