// SPDX-License-Identifier: Apache-2.0
#pragma once
// The memory of one device: tarn's pool with a limit below it, and its numbers in PyTorch's form.

#include <c10/cuda/CUDACachingAllocator.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <tarn/diagnostics.hpp>
#include <tarn/tarn.hpp>

#include "growth_noted.hpp"
#include "peer_access.hpp"

namespace tarn_torch {

/// device_pool, with other devices' access and a limit of the reserved bytes below it.
using memory_type =
    tarn::stack<tarn::cuda_pages, peer_access, growth_noted, tarn::limited, tarn::pooled, tarn::tracked>;

inline constexpr std::size_t no_limit = std::numeric_limits<std::size_t>::max() / 2;

/// The options of the pools that are made from now on. tarn_torch.install() sets them before the first pool.
inline tarn::pooled& pool_options() noexcept {
  static tarn::pooled options;
  return options;
}

[[nodiscard]] inline memory_type make_memory(int device) {
  return memory_type{tarn::cuda_pages{tarn::device_id{device}},
                     peer_access{},
                     growth_noted{},
                     tarn::limited{no_limit},
                     pool_options(),
                     tarn::tracked{}};
}

/// Bounds the reserved bytes. What is reserved already stays.
inline void set_limit(memory_type& memory, std::size_t bytes) {
  tarn::nearest(memory,
                [&](auto& layer) -> decltype(layer.set_limit(bytes)) { return layer.set_limit(bytes); });
}
inline void grant_access(memory_type& memory, int device) {
  tarn::nearest(memory, [&](auto& layer) -> decltype(layer.grant(tarn::device_id{device})) {
    return layer.grant(tarn::device_id{device});
  });
}
template <class Memory>
[[nodiscard]] tarn::pool_state pool_state_of(Memory& memory) {
  return tarn::nearest(memory, [](auto& layer) -> decltype(layer.state()) { return layer.state(); });
}
/// The bytes that the pool makes of a request.
template <class Memory>
[[nodiscard]] std::size_t rounded(Memory& memory, std::size_t bytes) {
  constexpr std::size_t alignment = tarn::default_alignment;
  return tarn::nearest(memory, [&](auto& layer) -> decltype(layer.block_bytes(bytes, alignment)) {
    return layer.block_bytes(bytes, alignment);
  });
}

/// Blocks that are kept for checkpoints: tarn counts them as allocated, PyTorch's user has freed them.
struct parked_amount {
  std::int64_t blocks[3] = {};  ///< all, small, large
  std::int64_t bytes[3] = {};
  std::int64_t asked[3] = {};
  /// The peaks of what a block that is parked changes, when one was parked last: they do not fall with it.
  std::array<std::int64_t, 15> peaks{};
};
/// Calls f(statistic, its place in parked_amount::peaks) for each that a parked block changes.
template <class F>
void for_each_parked(c10::CachingDeviceAllocator::DeviceStats& of, F const& f) {
  std::size_t place = 0;
  for (auto* const array :
       {&of.allocation, &of.allocated_bytes, &of.active, &of.active_bytes, &of.requested_bytes}) {
    for (std::size_t group = 0; group < 3; ++group) f((*array)[group], place++);
  }
}

inline void put(c10::CachingAllocator::Stat& to, tarn::counter const& from, std::int64_t parked_now = 0) {
  to.current = from.current - parked_now;
  to.peak = std::max(from.peak - parked_now, to.current);
  to.allocated = from.allocated;
  to.freed = from.freed;
}
/// The statistics of blocks. Where blocks are parked, the caller holds the mutex of what is parked.
inline void put_blocks(c10::CachingDeviceAllocator::DeviceStats& out, tarn::tracked_statistics const& t,
                       parked_amount const& parked) {
  using c10::CachingAllocator::Stat;
  auto const put_all = [&](auto& to, auto const& from, std::int64_t const(&parked_now)[3]) {
    for (std::size_t group = 0; group < 3; ++group) put(to[group], from[group], parked_now[group]);
  };
  put_all(out.allocation, t.allocations, parked.blocks);
  put_all(out.allocated_bytes, t.allocated_bytes, parked.bytes);
  put_all(out.active, t.active, parked.blocks);
  put_all(out.active_bytes, t.active_bytes, parked.bytes);
  put_all(out.requested_bytes, t.active_requested_bytes, parked.asked);
  for_each_parked(out, [&](Stat& s, std::size_t place) { s.peak = std::max(s.peak, parked.peaks[place]); });
}

/// The other statistics that torch.cuda.memory_stats() shows, of what the pool holds. Waits for a growth of
/// the pool.
template <class Memory>
[[nodiscard]] c10::CachingDeviceAllocator::DeviceStats statistics_of_pool(Memory& memory) {
  c10::CachingDeviceAllocator::DeviceStats out;
  tarn::pool_state const p = pool_state_of(memory);
  auto const number = [](auto n) { return static_cast<std::int64_t>(n); };
  tarn::pool_totals const& since = p.totals_reset;
  put(out.reserved_bytes[0],
      {number(p.reserved), number(p.reserved_peak), number(p.reserved_total - since.reserved),
       number(p.released_total - since.released)});
  put(out.segment[0], {number(p.handles), number(p.handles_peak), number(p.creates - since.creates),
                       number(p.destroys - since.destroys)});
  put(out.inactive_split[0], p.split.blocks);
  put(out.inactive_split_bytes[0], p.split.bytes);
  for (std::size_t group = 1; group < 3; ++group) {
    tarn::pool_part const& part = group == 1 ? p.smaller : p.larger;
    put(out.reserved_bytes[group], part.reserved);
    put(out.segment[group], part.handles);
    put(out.inactive_split[group], part.split.blocks);
    put(out.inactive_split_bytes[group], part.split.bytes);
  }
  out.num_alloc_retries = number(p.alloc_retries - since.alloc_retries);
  out.num_sync_all_streams = number(p.host_waits - since.host_waits);
  out.num_device_alloc = number(p.creates - since.creates);
  out.num_device_free = number(p.destroys - since.destroys);
  out.max_split_size = -1;  // blocks of every size are split
  return out;
}

/// What the pool did so far, and why: tarn_torch.pool_counters() names them in this order.
inline constexpr std::size_t pool_counter_count = 8;
template <class Memory>
void read_counters(Memory& memory, std::uint64_t (&out)[pool_counter_count]) {
  tarn::pool_state const p = pool_state_of(memory);
  std::uint64_t const values[] = {p.creates, p.destroys,   p.maps,         p.unmaps,
                                  p.remaps,  p.host_waits, p.device_waits, p.alloc_retries};
  std::copy(std::begin(values), std::end(values), out);
}

/// Adds the numbers of another pool. The sum of two peaks is at least the peak of the sum.
inline void add(c10::CachingDeviceAllocator::DeviceStats& to,
                c10::CachingDeviceAllocator::DeviceStats const& more) {
  using stats = c10::CachingDeviceAllocator::DeviceStats;
  for (auto const array : {&stats::allocation, &stats::segment, &stats::active, &stats::inactive_split,
                           &stats::allocated_bytes, &stats::reserved_bytes, &stats::active_bytes,
                           &stats::inactive_split_bytes, &stats::requested_bytes}) {
    for (std::size_t group = 0; group < 3; ++group) {
      auto& sum = (to.*array)[group];
      auto const& one = (more.*array)[group];
      sum.current += one.current;
      sum.peak += one.peak;
      sum.allocated += one.allocated;
      sum.freed += one.freed;
    }
  }
  to.num_alloc_retries += more.num_alloc_retries;
  to.num_sync_all_streams += more.num_sync_all_streams;
  to.num_device_alloc += more.num_device_alloc;
  to.num_device_free += more.num_device_free;
}

}  // namespace tarn_torch
