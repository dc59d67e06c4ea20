// SPDX-License-Identifier: Apache-2.0
#pragma once
// The statistics of a pool at one moment, for reports and tests. In bytes unless noted. Sums, resets of
// totals and reports read the table pool_numbers: a new number is a member of pool_state, a row below, and a
// line where it is counted; a new peak also one in reset_peaks() (pool_statistics.hpp).

#include <concepts>
#include <cstddef>

#include "tarn/core/counter.hpp"
#include "tarn/core/layers.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/sequence.hpp"

namespace TARN_NAMESPACE {

/// Free ranges that cannot be given back to the driver on their own: the parts of free ranges that lie in
/// handles, or in a segment, that they do not fill. Counted at the end of each call that reaches the pool's
/// shared part. Blocks in threads' magazines and free blocks of a run are excluded.
struct split_ranges {
  counter blocks;  ///< free ranges with such a part
  counter bytes;   ///< in those parts
};

/// The totals of a pool at the last reset_totals().
struct pool_totals {
  std::size_t reserved = 0;
  std::size_t released = 0;
  std::size_t creates = 0;
  std::size_t destroys = 0;
  std::size_t alloc_retries = 0;
  std::size_t host_waits = 0;
};

/// One zone of a pool, which is one of PyTorch's two pools: memory taken for blocks up to 1 MiB, or for
/// larger ones. A wholly free handle of one may also serve the other.
struct pool_part {
  counter reserved;                      ///< bytes held from the driver
  counter handles;                       ///< physical handles, or segments, held
  std::size_t free_blocks = 0;           ///< free ranges
  std::size_t inactive_split_bytes = 0;  ///< bytes in them
  split_ranges split;
};

struct pool_state {
  std::size_t live = 0;                ///< handed out, rounded to block sizes; includes `deferred`
  std::size_t live_blocks = 0;         ///< number of those blocks
  std::size_t reserved = 0;            ///< held from the driver
  std::size_t reserved_peak = 0;       ///< since the last reset_peaks()
  std::size_t cached = 0;              ///< reserved, not handed out
  std::size_t deferred = 0;            ///< freed, but waiting for another stream that used it (record_stream)
  std::size_t deferred_blocks = 0;     ///< number of those blocks
  std::size_t largest_free_range = 0;  ///< largest block without a driver call, magazines excluded
  std::size_t free_blocks = 0;         ///< free ranges
  std::size_t inactive_split_bytes = 0;  ///< bytes in them, including whole free handles and segments
  split_ranges split;                    ///< the part of them that cannot be given back on its own
  std::size_t reserved_total = 0;        ///< taken from the driver since the start
  std::size_t released_total = 0;        ///< given back since the start
  std::size_t handles = 0;               ///< physical handles, or segments, held
  std::size_t handles_peak = 0;
  std::size_t creates = 0;  ///< handles or segments created
  std::size_t destroys = 0;
  std::size_t maps = 0;
  std::size_t unmaps = 0;
  std::size_t remaps = 0;         ///< maps of handles that were used at another address before
  std::size_t alloc_retries = 0;  ///< times the driver refused and the cache was searched again
  std::size_t ooms = 0;           ///< allocations that found no memory; of a size that a block can have
  std::size_t host_waits = 0;     ///< times the host waited for a stream
  std::size_t device_waits = 0;   ///< times a stream was made to wait for another stream
  /// Host memory of the metadata, bytes. About 3 for a live block of up to 2 KiB, 65 to 105 for one up to 1
  /// MiB, up to 260 for a larger one, including its share of the free ranges; 13 to 22 KiB for a GiB of large
  /// blocks. Constant at constant live size, however many calls are made (tests/pool/growth.cpp).
  std::size_t host_bytes = 0;
  pool_part smaller;  ///< of the above, for blocks up to 1 MiB
  pool_part larger;   ///< for larger blocks
  pool_totals totals_reset;
};

namespace detail {

enum class number_unit { bytes, count };

/// How the numbers of two pools are added up.
enum class number_sum { added, largest };

/// A row of the table.
struct pool_number {
  char const* name;  ///< in files
  number_in<pool_state, std::size_t> value;
  number_unit unit = number_unit::bytes;
  number_sum sum = number_sum::added;
  number_in<pool_totals, std::size_t> at_reset = nullptr;  ///< if reset_totals() notes it
  char const* key = nullptr;                               ///< in memory_stats(), if it stands there alone
};

inline constexpr pool_number pool_numbers[] = {
    {"live", &pool_state::live},
    {"live_blocks", &pool_state::live_blocks, number_unit::count},
    {"reserved", &pool_state::reserved},
    {"reserved_peak", &pool_state::reserved_peak},
    {"cached", &pool_state::cached},
    {"deferred", &pool_state::deferred},
    {"deferred_blocks", &pool_state::deferred_blocks, number_unit::count},
    {"largest_free_range", &pool_state::largest_free_range, number_unit::bytes, number_sum::largest},
    {"free_blocks", &pool_state::free_blocks, number_unit::count},
    {"inactive_split_bytes", &pool_state::inactive_split_bytes},
    {"reserved_total", &pool_state::reserved_total, number_unit::bytes, number_sum::added,
     &pool_totals::reserved},
    {"released_total", &pool_state::released_total, number_unit::bytes, number_sum::added,
     &pool_totals::released},
    {"handles", &pool_state::handles, number_unit::count},
    {"handles_peak", &pool_state::handles_peak, number_unit::count},
    {"creates", &pool_state::creates, number_unit::count, number_sum::added, &pool_totals::creates,
     "num_device_alloc"},
    {"destroys", &pool_state::destroys, number_unit::count, number_sum::added, &pool_totals::destroys,
     "num_device_free"},
    {"maps", &pool_state::maps, number_unit::count},
    {"unmaps", &pool_state::unmaps, number_unit::count},
    {"remaps", &pool_state::remaps, number_unit::count},
    {"alloc_retries", &pool_state::alloc_retries, number_unit::count, number_sum::added,
     &pool_totals::alloc_retries, "num_alloc_retries"},
    {"ooms", &pool_state::ooms, number_unit::count},
    {"host_waits", &pool_state::host_waits, number_unit::count, number_sum::added, &pool_totals::host_waits,
     "num_sync_all_streams"},
    {"device_waits", &pool_state::device_waits, number_unit::count},
    {"host_bytes", &pool_state::host_bytes},
};

inline void add(split_ranges& a, split_ranges const& b) noexcept {
  a.blocks.add(b.blocks);
  a.bytes.add(b.bytes);
}
inline void add(pool_part& a, pool_part const& b) noexcept {
  a.reserved.add(b.reserved);
  a.handles.add(b.handles);
  a.free_blocks += b.free_blocks;
  a.inactive_split_bytes += b.inactive_split_bytes;
  add(a.split, b.split);
}

/// Two pools as one. Peaks are the sum of both peaks, which is an upper bound: they may have occurred at
/// different times.
[[nodiscard]] inline pool_state sum_of_states(pool_state a, pool_state const& b) noexcept {
  for (pool_number const& n : pool_numbers) {
    std::size_t& sum = a.*n.value;
    sum = n.sum == number_sum::largest ? max_of(sum, b.*n.value) : sum + b.*n.value;
    if (n.at_reset != nullptr) a.totals_reset.*n.at_reset += b.totals_reset.*n.at_reset;
  }
  add(a.split, b.split);
  add(a.smaller, b.smaller);
  add(a.larger, b.larger);
  return a;
}

/// The pools that state() sums up.
struct pools_of_stack {
  sequence<void const*> pools;    ///< the address of each
  bool has_other_blocks = false;  ///< a layer above them also has blocks of another resource
};

/// Whether a layer above the nearest pool routes to several resources.
template <class Layer>
[[nodiscard]] constexpr bool routes_above_pool() noexcept {
  if constexpr (routes_calls<Layer>) {
    return true;
  } else if constexpr (stands_on_another<Layer> && !gives_pieces<Layer>) {
    return routes_above_pool<layer_below<Layer>>();
  } else {
    return false;
  }
}

}  // namespace detail
namespace pool_call {

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

/// Adds each of these pools.
struct list_pools {
  detail::pools_of_stack& found;
  static constexpr auto crosses = crossing::each;
  template <class L>
    requires std::invocable<state const&, L&>
  void operator()(L& l) const {
    if constexpr (requires { l.list_pools(found); }) {
      l.list_pools(found);
    } else {
      found.pools.push_back(&l);
    }
  }
};

}  // namespace pool_call

}  // namespace TARN_NAMESPACE
