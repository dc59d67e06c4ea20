// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reads and resets the statistics of a pool. The caller holds the growth lock.

#include <cstddef>
#include <cstdint>
#include <mutex>

#include "tarn/core/counter.hpp"
#include "tarn/core/waiting_block.hpp"
#include "tarn/pool/arena/arena.hpp"
#include "tarn/pool/arena/hot_lock.hpp"
#include "tarn/pool/growth/growth.hpp"
#include "tarn/pool/pool_state.hpp"

namespace tarn::detail {

inline void add_free_ranges(pool_state& s, arena const& space) {
  for (zone const where : {zone::smaller, zone::larger}) {
    pool_part& part = where == zone::smaller ? s.smaller : s.larger;
    for (domain_ref d = 0; d < space.streams.size(); ++d) {
      range_index const& index = space.streams[d].ranges(where);
      part.free_blocks += index.count();
      part.inactive_split_bytes += index.bytes();
    }
    s.free_blocks += part.free_blocks;
    s.inactive_split_bytes += part.inactive_split_bytes;
  }
  s.split = {space.splits.blocks[0], space.splits.bytes[0]};
  s.smaller.split = {space.splits.blocks[1], space.splits.bytes[1]};
  s.larger.split = {space.splits.blocks[2], space.splits.bytes[2]};
}

inline void add_growth(pool_state& s, growth_counters const& c) noexcept {
  s.reserved = c.reserved;
  s.reserved_peak = c.reserved_peak;
  s.reserved_total = c.reserved_total;
  s.released_total = c.released_total;
  s.handles = c.creates - c.destroys;
  s.handles_peak = c.handles_peak;
  s.creates = c.creates;
  s.destroys = c.destroys;
  s.maps = c.maps;
  s.unmaps = c.unmaps;
  s.remaps = c.remaps;
  for (zone const where : {zone::smaller, zone::larger}) {
    pool_part& part = where == zone::smaller ? s.smaller : s.larger;
    part.reserved = c.reserved_in[static_cast<std::size_t>(where)];
    part.handles = c.handles_in[static_cast<std::size_t>(where)];
  }
}

/// Sets what is exact only for a pool and its graph memories together.
inline void set_sums(pool_state& s, growth_sums const& sums) noexcept {
  std::lock_guard const guard(sums.mutex);
  s.reserved = static_cast<std::size_t>(sums.reserved.current);
  s.reserved_peak = static_cast<std::size_t>(sums.reserved.peak);
  s.reserved_total = static_cast<std::uint64_t>(sums.reserved.allocated);
  s.released_total = static_cast<std::uint64_t>(sums.reserved.freed);
  s.handles = static_cast<std::uint64_t>(sums.handles.current);
  s.handles_peak = static_cast<std::uint64_t>(sums.handles.peak);
  s.creates = static_cast<std::uint64_t>(sums.handles.allocated);
  s.destroys = static_cast<std::uint64_t>(sums.handles.freed);
  for (zone const where : {zone::smaller, zone::larger}) {
    pool_part& part = where == zone::smaller ? s.smaller : s.larger;
    part.reserved = sums.reserved_in[static_cast<std::size_t>(where)];
    part.handles = sums.handles_in[static_cast<std::size_t>(where)];
  }
  s.cached = s.reserved > s.live ? s.reserved - s.live : 0;
}

/// Adds the counts of a graph memory that is destroyed, whose memory is no longer held.
inline void add_ended(pool_state& sum, pool_state const& ended) noexcept {
  sum.maps += ended.maps;
  sum.unmaps += ended.unmaps;
  sum.remaps += ended.remaps;
  sum.alloc_retries += ended.alloc_retries;
  sum.ooms += ended.ooms;
  sum.host_waits += ended.host_waits;
  sum.device_waits += ended.device_waits;
  auto const add_split = [](split_ranges& to, split_ranges const& from) {
    to.blocks.add(0, from.blocks.allocated);
    to.bytes.add(0, from.bytes.allocated);
  };
  add_split(sum.split, ended.split);
  add_split(sum.smaller.split, ended.smaller.split);
  add_split(sum.larger.split, ended.larger.split);
}

/// O(free ranges + threads).
template <class Heap, class Front, class Waiting>
[[nodiscard]] pool_state read_state(Heap& heap, Front const& front, Waiting const& waiting) {
  pool_state s;
  auto live = front.live();
  waiting_amount const awaiting = waiting.now();
  s.pending = awaiting.bytes > 0 ? static_cast<std::size_t>(awaiting.bytes) : 0;
  s.pending_blocks = awaiting.blocks > 0 ? static_cast<std::size_t>(awaiting.blocks) : 0;
  s.host_bytes = front.host_bytes() + waiting.host_bytes();
  add_growth(s, heap.counters);
  s.totals_reset = heap.totals_reset;
  hot_lock const held(heap.hot);
  arena& space = heap.space(held);
  live.bytes += heap.uncached_live_bytes;
  live.blocks += heap.uncached_live_blocks;
  s.live = live.bytes > 0 ? static_cast<std::size_t>(live.bytes) : 0;
  s.live_blocks = live.blocks > 0 ? static_cast<std::size_t>(live.blocks) : 0;
  s.cached = s.reserved > s.live ? s.reserved - s.live : 0;
  s.largest_free_range = space.largest_free();
  space.count_splits();  // includes the changes of a call that threw
  add_free_ranges(s, space);
  s.alloc_retries = heap.alloc_retries;
  s.ooms = heap.ooms;
  s.host_waits = heap.order.host_waits();
  s.device_waits = heap.order.device_waits();
  s.host_bytes += space.host_bytes() + heap.growth.host_bytes() + heap.counters.notes.host_bytes();
  return s;
}

template <class Heap>
void reset_peaks(Heap& heap) noexcept {
  growth_counters& c = heap.counters;
  heap.sums.reset_peaks();
  c.reserved_peak = c.reserved;
  c.handles_peak = c.creates - c.destroys;
  for (std::size_t z = 0; z < zone_count; ++z) {
    c.reserved_in[z].reset_peak();
    c.handles_in[z].reset_peak();
  }
  hot_lock const held(heap.hot);
  arena& space = heap.space(held);
  space.count_splits();
  for (stat& s : space.splits.blocks) s.reset_peak();
  for (stat& s : space.splits.bytes) s.reset_peak();
}

template <class Heap>
void reset_totals(Heap& heap) noexcept {
  growth_counters& c = heap.counters;
  pool_totals& reset = heap.totals_reset;
  {
    growth_sums& sums = heap.sums;
    std::lock_guard const guard(sums.mutex);
    reset.reserved = static_cast<std::uint64_t>(sums.reserved.allocated);
    reset.released = static_cast<std::uint64_t>(sums.reserved.freed);
    reset.creates = static_cast<std::uint64_t>(sums.handles.allocated);
    reset.destroys = static_cast<std::uint64_t>(sums.handles.freed);
    for (std::size_t z = 0; z < zone_count; ++z) {
      sums.reserved_in[z].reset_totals();
      sums.handles_in[z].reset_totals();
    }
  }
  reset.host_waits = heap.order.host_waits() + heap.ended.host_waits;
  for (std::size_t z = 0; z < zone_count; ++z) {
    c.reserved_in[z].reset_totals();
    c.handles_in[z].reset_totals();
  }
  hot_lock const held(heap.hot);
  arena& space = heap.space(held);
  reset.alloc_retries = heap.alloc_retries + heap.ended.alloc_retries;
  heap.ended.split = heap.ended.smaller.split = heap.ended.larger.split = {};
  space.count_splits();
  for (stat& s : space.splits.blocks) s.reset_totals();
  for (stat& s : space.splits.bytes) s.reset_totals();
}

}  // namespace tarn::detail
