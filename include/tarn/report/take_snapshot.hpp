// SPDX-License-Identifier: Apache-2.0
#pragma once
// take_snapshot: captures the state and history of memory from its nearest pool and watched layer.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tarn/core/clock.hpp"
#include "tarn/core/pool_call.hpp"
#include "tarn/core/shared_resource.hpp"
#include "tarn/pool/pool_state.hpp"
#include "tarn/report/merge_history.hpp"
#include "tarn/report/snapshot.hpp"

namespace TARN_NAMESPACE {

namespace detail {

/// Without a pool, each block is a segment of its own, which begins and ends with it.
inline void stand_alone(snapshot& s, memory_history const& record) {
  for (history_block const& w : record.live) {
    snapshot_segment segment;
    segment.address = w.address;
    segment.bytes = w.bytes;
    segment.kind = segment_kind::upstream;
    segment.is_small = w.bytes <= class_limit;
    segment.blocks.push_back(block_of(w));
    s.segments.push_back(std::move(segment));
    s.pool.live += w.bytes;
    ++s.pool.live_blocks;
  }
  s.pool.reserved = s.pool.live;
  s.pool.handles = s.pool.live_blocks;
  s.events = one_history(record.events, {});
}

}  // namespace detail

/// Makes the pool record the latest `most` changes of what it holds from the driver, 32 bytes each, so that
/// snapshots show reserved bytes over time; 0 disables it. Without it, what is held at the end appears as
/// held from the start. Costs some 30 ns per driver call that creates or releases a handle. @throws
/// std::bad_alloc, nothing has changed
template <class Resource>
void remember_growth(Resource memory, std::size_t most = 65536) {
  static_assert(reachable<Resource, pool_call::note_growth>,
                "tarn: this needs a pool; add: | tarn::pooled{}");
  nearest(memory, pool_call::note_growth{most, detail::steady_now_ns});
}

/// Returns what `memory` holds now: segments and blocks of the nearest pool; tags, locations, requested bytes
/// and history of the nearest watched layer above the pool. Either suffices. Without a `with_history` layer,
/// blocks are live with 0 requested, and the only history is that of remember_growth(), with what was held
/// before it at time 0; without a pool, each live block is a segment.
///
/// Blocks always tile their segments, and segments add up to `pool.reserved`. The live blocks with requested
/// bytes are those of the layer's record. If other threads continue meanwhile, the record and the pool are
/// read again up to three times; after that, a block in the layer's record that the pool has already released
/// to the driver is omitted. Live blocks with 0 requested were not seen by the layer: allocated bypassing it,
/// or still inside a call.
///
/// Below fences, addresses and bytes are those of the pool's blocks, which hold the user's. What the
/// quarantine of `checked` keeps is deferred, also in `pool.deferred`.
///
/// Memory of captured graphs has segments of its own (snapshot_segment::graph_memory). A block of the pool
/// that was freed inside a capture is deferred until the end of the graph_memory whose graphs use it
/// (snapshot_block::graph_memory).
///
/// Of a sleeping pool, segments and blocks are the addresses that it keeps, and `pool.reserved` is 0: nothing
/// is behind them.
///
/// Thread-safe; threads that enter the pool meanwhile wait, some milliseconds at 100,000 blocks. Host cost
/// O(ranges + history).
/// @throws std::bad_alloc
template <class Resource>
[[nodiscard]] snapshot take_snapshot(Resource memory, std::string title = "tarn") {
  constexpr bool has_record = reachable<Resource, detail::ask_record>;
  constexpr bool has_pool = reachable<Resource, pool_call::inspect<pool_call::any_look>>;
  static_assert(
      has_record || has_pool,
      "tarn: take_snapshot needs a pool or a history; add: | tarn::pooled{} or | tarn::with_history{}");
  snapshot s;
  s.title = std::move(title);
  s.device = memory.device().value;
  stream_id null_stream = 0;
  if (memory.driver().identify(stream_ref{}, null_stream).ok()) s.null_stream = null_stream;
  memory_history record;
  for (int attempts_left = 3; attempts_left != 0; --attempts_left) {
    if constexpr (has_record) {
      record = nearest(memory, detail::ask_record{});
    } else {
      record.kept.clear();
      detail::for_each_kept(memory, [&](void* p, std::size_t bytes) {
        record.kept.push_back({reinterpret_cast<std::uintptr_t>(p), bytes});
      });
    }
    std::sort(record.live.begin(), record.live.end(),
              [](auto const& a, auto const& b) { return a.address < b.address; });
    if constexpr (has_pool) {
      s.pool = nearest(memory, pool_call::state{});
      detail::pool_contents contents = detail::contents_of(memory);
      if constexpr (!has_record) {
        // Both clocks at once: what runs between two readings would shift all events against the wall clock.
        // The first change is at time 1, after what was held before it.
        std::uint64_t const steady = detail::steady_now_ns();
        std::uint64_t const since_1970 = detail::now_since_1970_ns();
        if (!contents.notes.empty())
          record.now_ns = steady - detail::min_of(steady, contents.notes.front().time) + 1;
        record.steady_ns = steady - record.now_ns;
        record.started_ns = since_1970 - record.now_ns;
      }
      // The time of the records' clock when the record was copied; later changes are reported as of this
      // time.
      std::uint64_t const now =
          record.steady_ns != 0 ? record.steady_ns + record.now_ns : detail::steady_now_ns();
      s.segments = std::move(contents.segments);
      s.pool.reserved = contents.reserved;
      s.pool.cached = s.pool.reserved > s.pool.live ? s.pool.reserved - s.pool.live : 0;
      bool const agreed = detail::merge_history(s.segments, record.live);
      if (!agreed && attempts_left != 1) continue;
      detail::defer_kept(s, record.kept);
      s.events = detail::one_history(record.events, detail::growth_events(contents, now, record.now_ns));
    } else {
      detail::stand_alone(s, record);
    }
    break;
  }
  s.started_ns = record.started_ns;
  s.steady_ns = record.steady_ns;
  s.now_ns = record.now_ns;
  s.forgotten_events = record.forgotten_events;
  detail::name_deferred(s.segments, record.events);
  s.tags = std::move(record.tags);
  s.locations = std::move(record.locations);
  if (s.tags.empty()) s.tags.resize(1);
  if (s.tags[0].name.empty()) s.tags[0].name = "untagged";
  if (s.locations.empty()) s.locations.resize(1);
  for (snapshot_segment& segment : s.segments) segment.stream = detail::stream_of(segment);
  return s;
}

}  // namespace TARN_NAMESPACE
