// SPDX-License-Identifier: Apache-2.0
#pragma once
// Growth by segments: whole blocks of an upstream resource that has no pages to map (cudaMalloc, pinned
// memory, another pool). A segment cannot be moved or extended; wholly free ones are given back when memory
// is short, and when too many would be kept (ladder.hpp).

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "tarn/core/config.hpp"
#include "tarn/core/layers.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/driver/no_driver.hpp"
#include "tarn/pool/arena/arena.hpp"
#include "tarn/pool/arena/hot_lock.hpp"
#include "tarn/pool/arena/looked_up.hpp"
#include "tarn/pool/order/ordering.hpp"
#include "tarn/pool/pages/growth.hpp"
#include "tarn/pool/pages/growth_rules.hpp"
#include "tarn/pool/pages/largest_block.hpp"
#include "tarn/pool/pages/memory_left.hpp"
#include "tarn/pool/tool/tool_regions.hpp"

namespace TARN_NAMESPACE::detail {

/// Segments are multiples of this, bytes: what cudaMalloc rounds to anyway on a device with 2 MiB pages.
inline constexpr std::size_t segment_grain = 2_MiB;

/// The same below a limit, which counts what is asked: rounded up to 2 MiB, blocks of 3 MiB would use it up
/// at 48 of 64 MiB.
[[nodiscard]] constexpr std::size_t segment_grain_below(bool limit, zone where) noexcept {
  return limit && where == zone::larger ? range_grain : segment_grain;
}

/// Over a page source its segments are the plain blocks that it has in place of pages.
template <class Source>
class segment_growth {
 public:
  using driver_type = typename Source::driver_type;
  using regions_type = typename tool_regions_of<Source>::type;

  segment_growth(Source& source, growth_counters& counters, regions_type& tool)
      : source_(source), counters_(counters), tool_(tool) {}

  /// Makes a free range of at least `request.bytes`. Returns false if nothing may be created. The hot lock is
  /// held on entry and return, and released around the upstream's call. @throws what the upstream throws;
  /// nothing has changed
  bool grow(growth_lock const& growing, arena& a, may_release hot, ordering<driver_type>&,
            growth_request const& request, void*&) {
    if (request.part != common && !tool_.active() && adopt(a, request)) return true;
    if (request.may_create == 0 && !request.may_exceed) return false;
    segments_.reserve(segments_.size() + 1);
    a.ranges.make_room(1);
    // Take the node now: other threads may use up the room while the lock is released.
    range_ref const r = a.ranges.take();
    std::size_t const exact = request.bytes + (request.alignment > range_grain ? request.alignment : 0);
    std::size_t const grain = segment_grain_below(is_limited<layer_type>(), request.where);
    std::size_t bytes = align_up(max_of(exact, request.segment), grain);
    void* base = nullptr;
    try {
      unlocked const released(hot);
      try {
        base = take(bytes, request.part);
        // Blocks of whole segment grains nearly always start on a range grain. Request room for the other
        // case only when it occurs: requesting it always would make every block of 2 MiB a segment of 4 MiB.
        if (!is_aligned(base, range_grain) && bytes < exact + range_grain) {
          give(base, bytes, alignment_);
          count_made(growing, base, bytes, request.where);
          count_given(growing, base, bytes, request.where);
          bytes = align_up(exact + range_grain, grain);
          base = take(bytes, request.part);
        }
      } catch (out_of_memory const&) {
        bytes = align_up(exact + (alignment_ < range_grain ? range_grain : 0), range_grain);
        base = take(bytes, request.part);
      }
    } catch (...) {
      a.ranges.put_back(r);
      throw;
    }
    count_made(growing, base, bytes, request.where);
    std::size_t const index = add({base, bytes, alignment_, request.where});
    range& node = a.ranges[r];
    node.address = align_up(reinterpret_cast<std::uintptr_t>(base), range_grain);
    node.bytes = align_down(reinterpret_cast<std::uintptr_t>(base) + bytes - node.address, range_grain);
    node.segment = static_cast<std::uint32_t>(index);
    node.where = request.where;
    a.move_to_part(r, request.part, bytes);
    a.make_free(r, request.taker, 0);
    return true;
  }

  /// The largest block that could be served if the source has `left` more bytes.
  [[nodiscard]] std::size_t largest_block(arena const& a, std::size_t left, bool) const noexcept {
    // Below a limit a new segment is as large as the block, and may start beside a range grain.
    std::size_t const spare = is_limited<layer_type>() && alignment_ < range_grain ? range_grain : 0;
    return detail::largest_block(a, left > spare ? left - spare : 0,
                                 segment_grain_below(is_limited<layer_type>(), zone::larger));
  }

  /// How many bytes may stay reserved if the request is served by a new segment.
  [[nodiscard]] std::size_t keep_before(arena const& a, growth_request const& request) const noexcept {
    return most_beside(a,
                       align_up(request.bytes, segment_grain_below(is_limited<layer_type>(), request.where)));
  }

  /// Gives wholly free segments whose work is complete back, until at most `keep` bytes are reserved; returns
  /// the bytes given back. O(free ranges). @throws std::bad_alloc, nothing has changed
  std::size_t shrink(growth_lock const& growing, arena& a, may_release hot, std::size_t keep) {
    if (counters_.reserved <= keep) return 0;
    looked_up<sequence<range_ref>> const whole(hot.held(), free_segments(a));
    sequence<segment> gone;
    gone.reserve(whole.get(hot.held()).size());
    std::size_t given = 0;
    for (range_ref const r : whole.get(hot.held())) {
      if (counters_.reserved <= keep) break;
      a.claim(r);
      gone.push_back(remove(a.ranges[r].segment));
      a.move_to_part(r, common, gone.back().bytes);
      a.ranges.put_back(r);
      count_given(growing, gone.back().base, gone.back().bytes, gone.back().where);
      given += gone.back().bytes;
    }
    unlocked const released(hot);
    for (segment const& s : gone) give(s.base, s.bytes, s.alignment);
    return given;
  }

  /// Calls f(held_memory) for each segment.
  template <class F>
  void for_each_held(F const& f) const {
    for (segment const& s : segments_) {
      if (s.base != nullptr)
        f(held_memory{reinterpret_cast<std::uintptr_t>(s.base), s.bytes, s.where, false});
    }
  }

  /// Whether `address` lies in a segment. O(segments).
  [[nodiscard]] bool contains(std::uintptr_t address) const noexcept {
    for (segment const& s : segments_) {
      TARN_VISIT();
      auto const base = reinterpret_cast<std::uintptr_t>(s.base);
      if (s.base != nullptr && address >= base && address - base < s.bytes) return true;
    }
    return false;
  }

  /// Gives everything back; nothing on the device uses it any more.
  void close(growth_lock const&) noexcept {
    for (segment const& s : segments_) {
      if (s.base != nullptr) give(s.base, s.bytes, s.alignment);
    }
    segments_.clear();
    first_unused_ = 0;
  }

  [[nodiscard]] std::size_t host_bytes() const noexcept { return segments_.capacity() * sizeof(segment); }

 private:
  using layer_type = layer_behind<Source>;
  void count_made(growth_lock const& growing, void const* base, std::size_t bytes, zone where) noexcept {
    counters_.hold(growing, reinterpret_cast<std::uintptr_t>(base), bytes, where);
  }
  void count_given(growth_lock const& growing, void const* base, std::size_t bytes, zone where) noexcept {
    counters_.release(growing, reinterpret_cast<std::uintptr_t>(base), bytes, where);
  }
  /// Takes a block with as much alignment as the source has.
  [[nodiscard]] void* take(std::size_t bytes, part_ref part) {
    try {
      return take_block(bytes, part);
    } catch (bad_alignment const&) {
      if (alignment_ == default_alignment) throw;
    }
    alignment_ = default_alignment;
    return take_block(bytes, part);
  }
  /// Plain blocks stand in for pages, and under a tool for memory that it refuses.
  [[nodiscard]] bool are_plain() const noexcept {
    return has_plain_blocks<Source> && (page_source<Source> || tool_.active());
  }
  /// Takes a block, which is a heap to a tool; not one for graphs, which use its memory also while no block
  /// lies in it.
  [[nodiscard]] void* take_block(std::size_t bytes, part_ref part) {
    void* p = nullptr;
    if constexpr (has_plain_blocks<Source>) {
      if (are_plain()) p = source_.allocate_plain(bytes);
    }
    if constexpr (!page_source<Source>) {
      if (!are_plain()) p = source_.allocate_sync(bytes, alignment_);
    }
    if (part == common) tool_.heap_begins(p, bytes);
    return p;
  }
  void give(void* p, std::size_t bytes, [[maybe_unused]] std::size_t alignment) noexcept {
    tool_.heap_ends(p);
    if constexpr (has_plain_blocks<Source>) {
      if (are_plain()) return source_.deallocate_plain(p, bytes);
    }
    if constexpr (!page_source<Source>) source_.deallocate_sync(p, bytes, alignment);
  }

  struct segment {
    void* base = nullptr;   ///< null in an unused entry
    std::size_t bytes = 0;  ///< in an unused entry: the index of the next one
    std::size_t alignment = 0;
    zone where = zone::smaller;
  };

  /// Gives the smallest wholly free segment that serves a request, and no more than twice as large, to its
  /// part. Returns false if there is none.
  bool adopt(arena& a, growth_request const& request) noexcept {
    std::size_t const least = request.bytes + (request.alignment > range_grain ? request.alignment : 0);
    range_ref best = 0;
    a.streams.for_each_source(request.part, [&](part_ref from) {
      for (range_index const& index : a.streams[a.streams.part(from).neutral_domain].index) {
        index.for_each(a.ranges, least, [&](range_ref r) {
          range const& node = a.ranges[r];
          if (node.previous == 0 && node.next == 0 && node.bytes <= max_of(2 * least, segment_grain) &&
              (best == 0 || node.bytes < a.ranges[best].bytes))
            best = r;
        });
      }
    });
    if (best == 0) return false;
    a.claim(best);
    a.ranges[best].where = request.where;
    a.move_to_part(best, request.part, segments_[a.ranges[best].segment].bytes);
    a.make_free(best, a.streams.part(request.part).neutral_domain, 0);
    return true;
  }

  /// The wholly free segments whose work is complete, larger ones mostly first. O(free ranges) @throws
  /// std::bad_alloc
  [[nodiscard]] static sequence<range_ref> free_segments(arena const& a) {
    sequence<range_ref> whole;
    for (domain_ref d = 0; d < a.streams.size(); ++d) {
      TARN_VISIT();
      if (a.streams.part_of(d).keeps_addresses) continue;
      std::size_t const first = whole.size();
      for (range_index const& index : a.streams[d].index) {
        index.for_each(a.ranges, range_grain, [&](range_ref r) {
          range const& node = a.ranges[r];
          if (node.previous == 0 && node.next == 0 && a.is_complete(node)) whole.push_back(r);
        });
      }
      // An index has its smaller ranges first.
      for (std::size_t i = first, k = whole.size(); i + 1 < k; ++i) std::swap(whole[i], whole[--k]);
    }
    return whole;
  }

  /// Adds a segment and returns its index. Requires room for one. O(1)
  std::size_t add(segment const& s) noexcept {
    std::size_t const index = first_unused_;
    if (index == segments_.size()) {
      segments_.push_back(s);
      first_unused_ = index + 1;
    } else {
      first_unused_ = segments_[index].bytes;
      segments_[index] = s;
    }
    return index;
  }
  /// Removes a segment. O(1)
  segment remove(std::size_t index) noexcept {
    segment const gone = segments_[index];
    segments_[index] = {nullptr, detail::exchange(first_unused_, index)};
    return gone;
  }

  Source& source_;
  /// Of the next segment. Host memory mostly has more than a device's, of which no more is asked than every
  /// source of blocks has.
  std::size_t alignment_ = std::same_as<driver_type, no_driver> ? range_grain : default_alignment;
  growth_counters& counters_;
  regions_type& tool_;
  sequence<segment> segments_;
  std::size_t first_unused_ = 0;  ///< segments_.size() if there is none
};

}  // namespace TARN_NAMESPACE::detail
