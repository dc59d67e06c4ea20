// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reads and resets the statistics of a pool.

#include <cstddef>

#include "tarn/core/counter.hpp"
#include "tarn/core/deferred_count.hpp"
#include "tarn/pool/arena/arena.hpp"
#include "tarn/pool/arena/hot_lock.hpp"
#include "tarn/pool/pages/growth.hpp"
#include "tarn/pool/pages/growth_lock.hpp"
#include "tarn/pool/pool_state.hpp"

namespace TARN_NAMESPACE::detail {

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

/// O(threads + streams).
template <class Heap, class Front, class Deferred>
[[nodiscard]] pool_state read_state(growth_lock const& growing, Heap& heap, Front const& front,
                                    Deferred const& deferred) {
  pool_state s = static_cast<pool_state const&>(heap.counters(growing));
  auto live = front.live();
  deferred_amount const amount = deferred.now();
  s.deferred = amount.bytes > 0 ? static_cast<std::size_t>(amount.bytes) : 0;
  s.deferred_blocks = amount.blocks > 0 ? static_cast<std::size_t>(amount.blocks) : 0;
  s.host_bytes = front.host_bytes() + deferred.host_bytes();
  hot_lock const held = heap.lock_hot();
  arena& space = heap.space(held);
  live.bytes += heap.uncached_live(held).bytes;
  live.blocks += heap.uncached_live(held).blocks;
  s.live = live.bytes > 0 ? static_cast<std::size_t>(live.bytes) : 0;
  s.live_blocks = live.blocks > 0 ? static_cast<std::size_t>(live.blocks) : 0;
  s.cached = s.reserved > s.live ? s.reserved - s.live : 0;
  s.largest_free_range = space.largest_free();
  space.count_splits();  // includes the changes of a call that threw
  add_free_ranges(s, space);
  s.host_waits = heap.order(growing).host_waits();
  s.device_waits = heap.order(growing).device_waits();
  s.host_bytes += space.host_bytes() + heap.growth(growing).visit([](auto const& memory) {
    return memory.host_bytes();
  }) + heap.counters(growing).notes.host_bytes();
  return s;
}

/// Calls f(statistic) for those that a pool resets.
template <class Heap, class F>
void for_each_stat(growth_lock const& growing, Heap& heap, F const& f) noexcept {
  for (pool_part* const part : {&heap.counters(growing).smaller, &heap.counters(growing).larger}) {
    f(part->reserved);
    f(part->handles);
  }
  hot_lock const held = heap.lock_hot();
  arena& space = heap.space(held);
  space.count_splits();
  for (counter& s : space.splits.blocks) f(s);
  for (counter& s : space.splits.bytes) f(s);
}

template <class Heap>
void reset_peaks(growth_lock const& growing, Heap& heap) noexcept {
  pool_state& counted = heap.counters(growing);
  counted.reserved_peak = counted.reserved;
  counted.handles_peak = counted.handles;
  for_each_stat(growing, heap, [](counter& s) { s.reset_peak(); });
}

/// @param now  the state of the pool
template <class Heap>
void reset_totals(growth_lock const& growing, Heap& heap, pool_state const& now) noexcept {
  for (pool_number const& n : pool_numbers) {
    if (n.at_reset != nullptr) heap.counters(growing).totals_reset.*n.at_reset = now.*n.value;
  }
  for_each_stat(growing, heap, [](counter& s) { s.reset_totals(); });
}

}  // namespace TARN_NAMESPACE::detail
