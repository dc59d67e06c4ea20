// SPDX-License-Identifier: Apache-2.0
#pragma once
// Compaction of a growth by pages: a handle that is only partly in use is replaced by smaller ones, at the
// same addresses.
//
//   home   | live | free      free | live |          one handle
//   after  | live |      hole      | live |          two handles; what is not a whole free granule stays
//
// Per handle: create the new handles, map them at a temporary address, copy, unmap the old one from its home
// and its views, map the new ones there. The old handle is destroyed last, so that it can be mapped again if
// a call fails. If mapping it fails as well, it is left unmapped and the pool must fall asleep, until wake()
// can map it.

#include <cstddef>
#include <cstdint>

#include "tarn/core/bytes.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/core/stream.hpp"
#include "tarn/driver/all_work.hpp"
#include "tarn/pool/arena/arena.hpp"
#include "tarn/pool/arena/hot_lock.hpp"
#include "tarn/pool/pages/address_space.hpp"
#include "tarn/pool/pages/growth.hpp"
#include "tarn/pool/pages/view_table.hpp"
#include "tarn/pool/relocate/kept_ranges.hpp"
#include "tarn/pool/relocate/page_sleep.hpp"

namespace TARN_NAMESPACE::detail {

/// Other threads may free blocks meanwhile, and allocate where no granule is wholly free.
template <page_source Source>
class page_compact {
 public:
  page_compact(Source& source, growth_counters& counters, page_map& map, address_space& space,
               view_table<Source>& views, page_sleep<Source>& sleep)
      : source_(source), counters_(counters), map_(map), addresses_(space), views_(views), sleep_(sleep) {}

  /// Gives back all granules without live bytes whose work is complete. A handle for which the driver has no
  /// memory or no addresses left stays as it is.
  /// @throws cuda_error, std::bad_alloc  contents and addresses are kept; handles done before stay compacted
  /// @throws out_of_memory               only if the driver could not map a handle that it had unmapped, or
  /// does not report the end of copies
  void compact(growth_lock const& growing, arena& a, may_release hot, stream_ref stream) {
    for (handle_ref h = 1; h < map_.size(); ++h) {
      if (map_[h].bytes == 0 || map_[h].pins != 0) continue;
      try {
        compact(growing, a, hot, stream, h);
      } catch (out_of_memory const&) {
        if (has_unmapped_ || sleep_.copies_may_run()) throw;
      }
    }
  }
  /// Whether compact() left a handle that is mapped nowhere; the next call returns false.
  [[nodiscard]] bool take_unmapped() noexcept { return detail::exchange(has_unmapped_, false); }

  /// Whether handles of copies that may run are mapped at addresses of the pool for good.
  [[nodiscard]] bool keeps_addresses() const noexcept { return keeps_addresses_; }

  /// Number of contiguous stretches of kept bytes of the common part, counted by handle. O(ranges)
  [[nodiscard]] std::size_t stretches(arena const& a) const {
    std::size_t count = 0;
    for (handle_ref h = 1; h < map_.size(); ++h) {
      if (map_[h].bytes != 0 && map_[h].part == common)
        for_each_kept(a, map_[h], [&](std::size_t, std::size_t) { ++count; });
    }
    return count;
  }

 private:
  /// Contiguous granules of a handle, all kept or all free.
  struct part {
    std::size_t offset = 0;
    std::size_t bytes = 0;
    bool is_kept = false;
    page_handle id = 0;
    std::size_t places = 0;  ///< how many of the old handle's places it is mapped at
    bool is_created = false;
    bool is_temporary = false;  ///< mapped at its temporary address
  };

  void compact(growth_lock const& growing, arena& a, may_release hot, stream_ref stream, handle_ref h) {
    physical const old = map_[h];
    sequence<part> parts = parts_of(a, old);
    std::size_t kept = 0;
    std::size_t count = 0;
    for (part const& p : parts) {
      if (p.is_kept) kept += p.bytes, ++count;
    }
    if (kept == old.bytes || count == 0) return;
    range_ref const region = addresses_.find_view(a, kept, map_.granularity());
    if (region == 0) return;
    // All host memory first.
    sequence<std::uintptr_t> places;
    places.push_back(old.home);
    views_.for_each_place(h, [&](std::uintptr_t at) { places.push_back(at); });
    views_.make_room_to_divide(h, parts.size());
    sequence<handle_ref> created;
    created.resize(parts.size());
    sequence<range_ref> carved;
    std::size_t const ranges = ranges_in(a, old);
    carved.reserve(ranges);
    a.ranges.make_room(2 * ranges + 4);
    map_.make_room(count);
    addresses_.take(a, region, kept);
    std::uintptr_t const temporary = a.ranges[region].address;
    // From here on no thread can allocate what will be unmapped.
    for (part const& p : parts) {
      if (!p.is_kept) carve(a, old.home + p.offset, p.bytes, carved);
    }
    try {
      unlocked const released(hot);
      replace(growing, stream, old, parts, places, temporary);
    } catch (...) {
      for (range_ref const r : carved) a.make_free(r, a.ranges[r].domain, a.ranges[r].epoch);
      if (!sleep_.copies_may_run()) addresses_.put(a, region);
      if (has_unmapped_) map_.set(h, old.id, backing::unmapped);
      throw;
    }
    addresses_.put(a, region);
    map_.remove(h);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (!parts[i].is_kept) continue;
      created[i] = map_.add(parts[i].id, parts[i].bytes, old.home + parts[i].offset);
      map_.set_part(old.home + parts[i].offset, parts[i].bytes, old.part);
    }
    views_.divide(h, created, [&](std::size_t i) { return parts[i].bytes; });
    for (range_ref const r : carved) addresses_.put(a, r);
    for (part const& p : parts) {
      if (p.is_kept) count_again(a, old.home + p.offset, p.bytes);
    }
  }

  /// The driver calls of one handle: all or nothing, or has_unmapped_. Where the driver does not report the
  /// end of the copies after a failure, their handles and addresses are never given back.
  void replace(growth_lock const& growing, stream_ref stream, physical const& old, sequence<part>& parts,
               sequence<std::uintptr_t> const& places, std::uintptr_t temporary) {
    bool is_unmapped = false;
    try {
      std::uintptr_t at = temporary;
      for (part& p : parts) {
        if (!p.is_kept) continue;
        p.id = source_.create(p.bytes);
        p.is_created = true;
        counters_.hold(growing, old.home + p.offset, p.bytes, addresses_.zone_at(old.home));
        map(at, p.bytes, p.id);
        p.is_temporary = true;
        must_succeed(source_.driver(),
                     source_.driver().copy(stream, reinterpret_cast<void*>(at),
                                           reinterpret_cast<void const*>(old.home + p.offset), p.bytes));
        at += p.bytes;
      }
      must_succeed(source_.driver(), source_.driver().synchronize_stream(stream));
      unmap_temporary(parts, temporary);
      for (std::uintptr_t const place : places) unmap(place, old.bytes);
      is_unmapped = true;
      for (std::uintptr_t const place : places) {
        for (part& p : parts) {
          if (!p.is_kept) continue;
          map(place + p.offset, p.bytes, p.id);
          ++p.places;
        }
      }
    } catch (...) {
      if (is_unmapped || finish_stream(source_.driver(), stream).ok()) {
        undo(growing, old, parts, places, temporary);
      } else {
        sleep_.note_running_copies(growing);
        keeps_addresses_ = true;
      }
      if (is_unmapped) has_unmapped_ = !map_again(old, places);
      throw;
    }
    source_.destroy(old.id, old.bytes);
    counters_.release(growing, old.home, old.bytes, addresses_.zone_at(old.home));
  }

  /// After a failure: the new handles are unmapped and destroyed. No copy uses them.
  void undo(growth_lock const& growing, physical const& old, sequence<part>& parts,
            sequence<std::uintptr_t> const& places, std::uintptr_t temporary) noexcept {
    unmap_temporary(parts, temporary);
    for (part const& p : parts) {
      for (std::size_t i = 0; i < p.places; ++i) unmap(places[i] + p.offset, p.bytes);
    }
    for (part const& p : parts) {
      if (!p.is_created) continue;
      source_.destroy(p.id, p.bytes);
      counters_.release(growing, old.home + p.offset, p.bytes, addresses_.zone_at(old.home));
    }
  }
  /// Maps the old handle where it was. Returns false if a call fails; it is then mapped nowhere.
  [[nodiscard]] bool map_again(physical const& old, sequence<std::uintptr_t> const& places) noexcept {
    std::size_t mapped = 0;
    try {
      for (; mapped < places.size(); ++mapped) map(places[mapped], old.bytes, old.id);
      return true;
    } catch (...) {
      while (mapped != 0) unmap(places[--mapped], old.bytes);
      return false;
    }
  }

  /// The handle divided at granules: whether one holds a byte that is kept, or that work may still use.
  [[nodiscard]] sequence<part> parts_of(arena const& a, physical const& old) const {
    std::size_t const grain = map_.granularity();
    sequence<part> parts;
    std::uintptr_t const end = old.home + old.bytes;
    std::uintptr_t kept_to = old.home;  // end of the granules known to be kept
    auto const add = [&](std::uintptr_t from, std::uintptr_t to, bool is_kept) {
      if (from == to) return;
      if (!parts.empty() && parts.back().is_kept == is_kept) {
        parts.back().bytes += to - from;
      } else {
        parts.push_back(part{from - old.home, to - from, is_kept});
      }
    };
    for (range_ref r = a.starts.find(a.ranges, old.home); r != 0 && a.ranges[r].address < end;
         r = a.ranges[r].next) {
      range const& node = a.ranges[r];
      bool const is_busy = node.state == range_state::free && !a.streams[node.domain].is_neutral() &&
                           !a.streams[node.domain].is_completed();
      if (!is_kept(a, node) && !is_busy) continue;
      std::uintptr_t const from = max_of(align_down(max_of(node.address, old.home), grain), kept_to);
      std::uintptr_t const to = align_up(min_of(node.end(), end), grain);
      if (to <= kept_to) continue;
      add(kept_to, from, false);
      add(from, to, true);
      kept_to = to;
    }
    add(kept_to, end, false);
    return parts;
  }
  [[nodiscard]] static std::size_t ranges_in(arena const& a, physical const& old) noexcept {
    std::size_t count = 0;
    for (range_ref r = a.starts.find(a.ranges, old.home);
         r != 0 && a.ranges[r].address < old.home + old.bytes; r = a.ranges[r].next)
      ++count;
    return count;
  }

  /// Takes free bytes, which may lie in several ranges, out of them.
  static void carve(arena& a, std::uintptr_t address, std::size_t bytes, sequence<range_ref>& carved) {
    for (std::uintptr_t at = address; at < address + bytes;) {
      range_ref const r = a.starts.find(a.ranges, at);
      std::uintptr_t const end = min_of(a.ranges[r].end(), address + bytes);
      carved.push_back(a.carve(r, at, end - at));
      at = end;
    }
  }
  /// Puts the free ranges of a new handle into their indexes again: what counts as split depends on the
  /// handles.
  static void count_again(arena& a, std::uintptr_t address, std::size_t bytes) {
    for (std::uintptr_t at = address; at < address + bytes;) {
      range_ref r = a.starts.find(a.ranges, at);
      at = a.ranges[r].end();
      if (a.ranges[r].state != range_state::free) continue;
      domain_ref const domain = a.ranges[r].domain;
      std::uint64_t const epoch = a.ranges[r].epoch;
      a.claim(r);
      r = a.make_free(r, domain, epoch);
      at = a.ranges[r].end();
    }
  }

  void unmap_temporary(sequence<part>& parts, std::uintptr_t at) noexcept {
    for (part& p : parts) {
      if (!p.is_kept) continue;
      if (p.is_temporary) unmap(at, p.bytes);
      p.is_temporary = false;
      at += p.bytes;
    }
  }
  void map(std::uintptr_t address, std::size_t bytes, page_handle id) {
    source_.map(reinterpret_cast<void*>(address), bytes, id);
    ++counters_.maps;
  }
  void unmap(std::uintptr_t address, std::size_t bytes) noexcept {
    source_.unmap(reinterpret_cast<void*>(address), bytes);
    ++counters_.unmaps;
  }

  Source& source_;
  growth_counters& counters_;
  page_map& map_;
  address_space& addresses_;
  view_table<Source>& views_;
  page_sleep<Source>& sleep_;
  bool has_unmapped_ = false;
  bool keeps_addresses_ = false;
};

}  // namespace TARN_NAMESPACE::detail
