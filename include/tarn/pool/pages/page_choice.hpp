// SPDX-License-Identifier: Apache-2.0
#pragma once
// The choice of free pieces for a block, if no contiguous free range is large enough. Pure: it reads the
// arena and the page map and changes neither.

#include <cstddef>
#include <cstdint>

#include "tarn/core/config.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/core/sort.hpp"
#include "tarn/pool/arena/arena.hpp"
#include "tarn/pool/arena/page_map.hpp"
#include "tarn/pool/pages/free_pieces.hpp"
#include "tarn/pool/pages/growth.hpp"
#include "tarn/pool/pages/view.hpp"

namespace TARN_NAMESPACE::detail {

/// The pieces of one block, in order, and the bytes still missing.
struct choice {
  sequence<piece> pieces;
  std::size_t lack = 0;
  std::size_t left_over = 0;  ///< free bytes that stay unused in handles of which the block takes a part
};

/// The free end of one handle and the free start of another, at the two ends of a block; either may be
/// missing.
struct piece_pair {
  piece end;
  piece start;

  [[nodiscard]] std::size_t bytes() const noexcept { return end.bytes + start.bytes; }
};

/// The pair with the most bytes. A handle is mapped once: if the largest end and start are of one handle, the
/// next best piece replaces it at one of them. O(pieces)
inline piece_pair largest_pair(free_pieces const& free) noexcept {
  auto const largest_but_of = [](sequence<piece> const& from, handle_ref h) {
    piece most;
    for (piece const& p : from) {
      TARN_VISIT();
      if (p.handle != h && p.bytes > most.bytes) most = p;
    }
    return most;
  };
  piece_pair most{largest_but_of(free.ends, 0), largest_but_of(free.starts, 0)};
  if (most.end.bytes != 0 && most.end.handle == most.start.handle) {
    piece const end_next = largest_but_of(free.ends, most.start.handle);
    piece const start_next = largest_but_of(free.starts, most.end.handle);
    if (end_next.bytes + most.start.bytes > most.end.bytes + start_next.bytes) {
      most.end = end_next;
    } else {
      most.start = start_next;
    }
  }
  return most;
}

/// The pair with the fewest bytes of at least `rest`, which the largest one has. Sorts the pieces. O(pieces
/// log pieces)
inline piece_pair smallest_pair(free_pieces& free, std::size_t rest) noexcept {
  sort(free.ends.begin(), free.ends.size(), free_pieces::smaller);
  free.sort_starts();
  piece_pair best;
  auto const consider = [&](piece const& end, piece const& start) {
    TARN_VISIT();
    piece_pair const p{end, start};
    if (p.bytes() >= rest && (best.bytes() == 0 || p.bytes() < best.bytes())) best = p;
  };
  for (piece const& start : free.starts) consider(piece{}, start);
  std::size_t enough = free.starts.size();  // from here on, each start suffices together with the end
  for (piece const& end : free.ends) {
    consider(end, piece{});
    while (enough != 0 && end.bytes + free.starts[enough - 1].bytes >= rest) --enough;
    // One of the next two is of another handle than the end.
    for (std::size_t i = enough; i < free.starts.size() && i < enough + 2; ++i) {
      if (free.starts[i].handle != end.handle) consider(end, free.starts[i]);
    }
  }
  return best;
}

/// The parts of handles at the two ends of a block, for the `rest` bytes that whole handles leave: if parts
/// are used up, the pair that fits best; otherwise the smallest sufficient free end or start of a handle, or
/// the largest of each. O(pieces), plus sorting.
/// @param most   the largest pair
/// @param whole  the smallest wholly free handle that is not taken; bytes 0 if there is none
/// @param after  whether the block follows a view: no end is then used, and no start that the view shows
/// @return       a pair of fewer bytes than `rest` if there are not enough
inline piece_pair choose_ends(free_pieces& free, piece_pair const& most, piece const& whole, std::size_t rest,
                              bool packs, bool after) noexcept {
  if (packs && rest <= most.bytes())
    return after ? piece_pair{{}, free.smallest_start(rest)} : smallest_pair(free, rest);
  auto const smallest_of = [rest](sequence<piece> const& from) {
    piece best;
    for (piece const& p : from) {
      TARN_VISIT();
      if (p.bytes >= rest && (best.bytes == 0 || p.bytes < best.bytes)) best = p;
    }
    return best;
  };
  piece const end = after ? piece{} : smallest_of(free.ends);
  piece const start = after ? free.smallest_start(rest) : smallest_of(free.starts);
  bool const by_end = end.bytes != 0 && (start.bytes == 0 || end.bytes <= start.bytes);
  piece const& best = by_end ? end : start;
  bool const whole_does = whole.bytes >= rest;
  if (best.bytes != 0 && (!whole_does || best.bytes / 4 <= whole.bytes))
    return by_end ? piece_pair{best, {}} : piece_pair{{}, best};
  if (whole_does) return {{}, whole};
  return most;
}

/// Assembles a block. If it uses up parts, from as few whole handles as the largest free end and start of
/// handles leave necessary, and the pair of such parts that fits best. Otherwise from the largest wholly free
/// handles that fit, then for the rest the smallest sufficient free end or start of a handle, or one of each,
/// or the start of a wholly free handle: few pieces, since each costs 27 us to map. O(free ranges + handles);
/// after a view O(its slots + pieces of the block), plus one sort for all views.
/// @param free   what find_pieces() has found
/// @param after  the view that the pieces will follow: then no piece begins within a handle, and none of the
/// view's handles is
///               taken
/// @throws std::bad_alloc
inline choice choose_pieces(free_pieces& free, growth_request const& request, std::size_t bytes,
                            view const* after = nullptr) {
  if (after != nullptr) free.mark(*after);
  bool const packs = request.uses_up_ends;
  auto const largest = [&] {
    return after != nullptr ? piece_pair{{}, free.largest_start()} : largest_pair(free);
  };
  piece_pair most;
  if (packs) most = largest();
  choice c;
  std::size_t rest = bytes;
  c.pieces.push_back(piece{});  // reserved for the head
  piece const smallest_above = free.whole.take(
      rest, most.bytes(), c.pieces, [&](piece const& p) { return after != nullptr && free.is_shown(p); });
  piece_pair ends;
  if (rest != 0) {
    if (!packs) most = largest();
    ends = choose_ends(free, most, smallest_above, rest, packs, after != nullptr);
    if (ends.bytes() < rest) {
      // New handles follow the head. The tail may follow them if parts are used up.
      std::size_t end_most = 0;
      if (after == nullptr) {
        for (piece const& p : free.ends) {
          TARN_VISIT();
          end_most = max_of(end_most, p.bytes);
        }
      }
      c.lack = rest - (packs ? most.bytes() : end_most);
      return c;
    }
    c.left_over = ends.bytes() - rest;
    std::size_t const used = min_of(rest, ends.end.bytes);
    ends.end.address += ends.end.bytes - used;
    ends.end.bytes = used;
    ends.start.bytes = rest - used;
  }
  if (ends.start.bytes != 0) c.pieces.push_back(ends.start);
  if (ends.end.bytes != 0) {
    c.pieces[0] = ends.end;
  } else {
    for (std::size_t i = 1; i < c.pieces.size(); ++i) c.pieces[i - 1] = c.pieces[i];
    c.pieces.pop_back();
  }
  return c;
}

/// The smallest wholly free handle of at least `bytes` that a domain may use; bytes 0 if there is none.
inline piece choose_whole_handle(arena const& a, page_map const& map, domain_ref taker, std::size_t bytes) {
  piece best;
  auto const look = [&](domain_ref d) {
    for_each_piece(a, map, d, zone::larger, map.granularity(),
                   [&](piece const& p, bool at_start, bool at_end) {
                     if (at_start && at_end && p.bytes >= bytes && (best.bytes == 0 || p.bytes < best.bytes))
                       best = p;
                   });
  };
  a.streams.for_each_usable(taker, look);
  return best;
}

/// A contiguous part of a view whose bytes are all free for the taker.
struct free_stretch {
  std::size_t offset = 0;  ///< in the view
  std::size_t bytes = 0;   ///< 0 if none
};

/// Calls f(begin, end) for each contiguous part of a view that is free for a domain, until it returns true.
/// O(ranges within the view's handles)
template <class F>
void for_each_stretch(arena const& a, page_map const& map, view const& v, domain_ref taker, F&& f) {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t offset = 0;
  for (view_slot const& slot : v.view_slots) {
    TARN_VISIT();
    if (slot.handle != 0) {
      physical const& h = map[slot.handle];
      std::uintptr_t const handle_end = h.home + h.bytes;
      for (range_ref r = a.starts.find(a.ranges, h.home); r != 0 && a.ranges[r].address < handle_end;
           r = a.ranges[r].next) {
        range const& node = a.ranges[r];
        if (node.state != range_state::free ||
            (node.domain != taker && node.domain != a.streams[taker].neutral_domain))
          continue;
        std::size_t const from = offset + (max_of(node.address, h.home) - h.home);
        std::size_t const to = offset + (min_of(node.end(), handle_end) - h.home);
        if (from != end) {
          if (f(begin, end)) return;
          begin = from;
        }
        end = to;
      }
    }
    offset += slot.bytes;
  }
  (void)f(begin, end);
}

/// The smallest free stretch of a view that holds the request, or the place of the last block if that is free
/// and has the same size.
inline free_stretch find_stretch(arena const& a, page_map const& map, view const& v,
                                 growth_request const& request) {
  free_stretch best;
  for_each_stretch(a, map, v, request.taker, [&](std::size_t begin, std::size_t end) {
    std::size_t const from = align_up(begin, request.alignment);
    if (end < from || end - from < request.bytes) return false;
    if (request.bytes == v.last_bytes && v.last_offset >= begin && v.last_offset + v.last_bytes <= end &&
        v.last_offset % request.alignment == 0) {
      best = {v.last_offset, request.bytes};
      return true;
    }
    if (best.bytes == 0 || end - from < best.bytes) best = {from, end - from};
    return false;
  });
  return best;
}

/// The free stretch at the end of a view, from where the request may begin.
inline free_stretch find_free_end(arena const& a, page_map const& map, view const& v,
                                  growth_request const& request) {
  free_stretch last{v.bytes, 0};
  for_each_stretch(a, map, v, request.taker, [&](std::size_t begin, std::size_t end) {
    std::size_t const from = align_up(begin, request.alignment);
    if (end == v.bytes && from < end) last = {from, end - from};
    return false;
  });
  return last;
}

/// The pieces behind a part of a view, in order. @throws std::bad_alloc
inline choice pieces_of(page_map const& map, view const& v, std::size_t offset, std::size_t bytes) {
  choice c;
  std::size_t at = 0;
  for (view_slot const& slot : v.view_slots) {
    TARN_VISIT();
    std::size_t const from = max_of(offset, at);
    std::size_t const to = min_of(offset + bytes, at + slot.bytes);
    if (from < to) c.pieces.push_back(piece{map[slot.handle].home + (from - at), to - from, slot.handle});
    at += slot.bytes;
  }
  return c;
}

}  // namespace TARN_NAMESPACE::detail
