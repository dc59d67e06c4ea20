// SPDX-License-Identifier: Apache-2.0
#pragma once
// The statistics of two pools added up.

#include "tarn/core/counter.hpp"
#include "tarn/core/layers.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/pool/pool_state.hpp"

namespace tarn::detail {

/// Two pools as one. Peaks are the sum of both peaks, which is an upper bound: they may have occurred at different times.
[[nodiscard]] inline pool_state sum_of_states(pool_state const& a, pool_state const& b) noexcept {
  auto const joined_stat = [](stat const& x, stat const& y) {
    return stat{x.current + y.current, x.peak + y.peak, x.allocated + y.allocated, x.freed + y.freed};
  };
  auto const joined_split = [&](split_ranges const& x, split_ranges const& y) {
    return split_ranges{joined_stat(x.blocks, y.blocks), joined_stat(x.bytes, y.bytes)};
  };
  auto const joined_part = [&](pool_part const& x, pool_part const& y) {
    return pool_part{joined_stat(x.reserved, y.reserved), joined_stat(x.handles, y.handles),
                     x.free_blocks + y.free_blocks, x.inactive_split_bytes + y.inactive_split_bytes,
                     joined_split(x.split, y.split)};
  };
  pool_state s = a;
  s.live += b.live;
  s.live_blocks += b.live_blocks;
  s.reserved += b.reserved;
  s.reserved_peak += b.reserved_peak;
  s.cached += b.cached;
  s.pending += b.pending;
  s.pending_blocks += b.pending_blocks;
  s.largest_free_range = max_of(a.largest_free_range, b.largest_free_range);
  s.free_blocks += b.free_blocks;
  s.inactive_split_bytes += b.inactive_split_bytes;
  s.split = joined_split(a.split, b.split);
  s.reserved_total += b.reserved_total;
  s.released_total += b.released_total;
  s.handles += b.handles;
  s.handles_peak += b.handles_peak;
  s.creates += b.creates;
  s.destroys += b.destroys;
  s.maps += b.maps;
  s.unmaps += b.unmaps;
  s.remaps += b.remaps;
  s.alloc_retries += b.alloc_retries;
  s.ooms += b.ooms;
  s.host_waits += b.host_waits;
  s.device_waits += b.device_waits;
  s.host_bytes += b.host_bytes;
  s.smaller = joined_part(a.smaller, b.smaller);
  s.larger = joined_part(a.larger, b.larger);
  s.totals_reset.reserved += b.totals_reset.reserved;
  s.totals_reset.released += b.totals_reset.released;
  s.totals_reset.creates += b.totals_reset.creates;
  s.totals_reset.destroys += b.totals_reset.destroys;
  s.totals_reset.alloc_retries += b.totals_reset.alloc_retries;
  s.totals_reset.host_waits += b.totals_reset.host_waits;
  return s;
}

}  // namespace tarn::detail

namespace tarn::pool_call {

/// The statistics of a pool; of several, their sum, where peaks are an upper bound.
struct state {
  static constexpr auto crosses = crossing::joined;
  [[nodiscard]] static pool_state join(pool_state const& a, pool_state const& b) noexcept {
    return detail::sum_of_states(a, b);
  }
  template <class L>
  auto operator()(L& l) const -> decltype(pool_state(l.state())) {
    return l.state();
  }
};

}  // namespace tarn::pool_call
