// SPDX-License-Identifier: Apache-2.0
#pragma once
// take_snapshot: captures the state and history of memory from its nearest pool and watched layer.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tarn/core/clock.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/pool_call.hpp"
#include "tarn/core/shared_resource.hpp"
#include "tarn/debug/memory_history.hpp"
#include "tarn/pool/inspection/inspection.hpp"
#include "tarn/pool/pool_state.hpp"
#include "tarn/report/snapshot.hpp"

namespace TARN_NAMESPACE {

namespace detail {

// merge_history() merges the records of a `with_history` layer into the blocks of a pool: tags, locations
// and requested bytes, and one history of calls, handles and segments. The two are taken at different
// moments; differences are resolved so that blocks tile their segments.

/// Returns the stream that holds most of a segment's bytes; on a tie the lowest.
[[nodiscard]] inline stream_id stream_of(snapshot_segment const& s) {
  std::map<stream_id, std::size_t> bytes;
  for (snapshot_block const& b : s.blocks) bytes[b.stream] += b.bytes;
  auto const most = std::max_element(bytes.begin(), bytes.end(),
                                     [](auto const& a, auto const& b) { return a.second < b.second; });
  return most == bytes.end() ? 0 : most->first;
}

[[nodiscard]] inline snapshot_block block_of(history_block const& w) noexcept {
  return {w.address, w.bytes, min_of(w.requested, w.bytes), block_use::live, w.stream, w.tag, w.location,
          w.time_ns, 0};
}

/// Splits one block of the pool at the bounds of the layer's blocks inside it. There is at least one.
inline void cut_block(snapshot_block const& whole, std::vector<history_block>::const_iterator first,
                      std::vector<history_block>::const_iterator last, std::vector<snapshot_block>& out) {
  std::uintptr_t at = whole.address;
  std::uintptr_t const end = whole.address + whole.bytes;
  auto const add_rest = [&](std::uintptr_t to) {
    if (at == to) return;
    out.push_back(whole);
    out.back().address = at;
    out.back().bytes = to - at;
    at = to;
  };
  for (; first != last; ++first) {
    add_rest(first->address);
    std::uintptr_t const limit = std::next(first) != last ? std::next(first)->address : end;
    // A live block of the pool determines the rounding: the rest up to its end belongs to the last block.
    bool const takes_rest = whole.use == block_use::live && limit == end;
    snapshot_block seen = block_of(*first);
    seen.bytes = takes_rest || first->bytes > limit - at ? limit - at : max_of(first->bytes, std::size_t{1});
    seen.requested = min_of(first->requested, seen.bytes);
    out.push_back(seen);
    at += seen.bytes;
  }
  add_rest(end);
}

/// Adds the layer's data to the pool's blocks. `live` is sorted by address. Blocks of the layer for which the
/// pool holds no memory are omitted; blocks that the pool has allocated and the layer has not seen stay live,
/// with 0 requested.
/// @returns true if every block of the layer is live in the pool
inline bool merge_history(std::vector<snapshot_segment>& segments, std::vector<history_block> const& live) {
  bool agreed = true;
  auto next = live.begin();
  for (snapshot_segment& s : segments) {
    while (next != live.end() && next->address < s.address) agreed = false, ++next;
    auto const here = next;
    while (next != live.end() && next->address < s.address + s.bytes) ++next;
    if (here == next) continue;
    std::vector<snapshot_block> blocks;
    blocks.reserve(s.blocks.size() + static_cast<std::size_t>(next - here));
    auto begin = here;
    for (snapshot_block const& b : s.blocks) {
      auto last = begin;
      while (last != next && last->address < b.address + b.bytes) ++last;
      if (begin == last) {
        blocks.push_back(b);
        continue;
      }
      agreed = agreed && b.use == block_use::live;
      cut_block(b, begin, last, blocks);
      begin = last;
    }
    s.blocks.swap(blocks);
  }
  return agreed && next == live.end();
}

/// Reports blocks that `checked` keeps from reuse as deferred: their user has freed them. The record does not
/// have those that a layer below it keeps; where it has one again, that was handed out meanwhile.
/// @param above  kept by a layer above the record, which has them as live: they are freed at its time
inline void defer_quarantined(snapshot& s, memory_history& record,
                              std::vector<quarantined_block> const& above) {
  std::unordered_map<std::uintptr_t, std::size_t> unseen;
  std::unordered_map<std::uintptr_t, std::size_t> seen;
  for (quarantined_block const& k : record.quarantined) unseen.emplace(k.address, k.requested);
  for (quarantined_block const& k : above) seen.emplace(k.address, k.requested);
  for (snapshot_segment& segment : s.segments) {
    for (snapshot_block& b : segment.blocks) {
      if (b.use != block_use::live) continue;
      auto const& kept = b.requested == 0 && unseen.contains(b.address) ? unseen : seen;
      auto const found = kept.find(b.address);
      if (found == kept.end()) continue;
      if (b.requested != 0) {
        history_tag& t = record.tags[b.tag];
        t.bytes -= min_of(t.bytes, b.bytes);
        t.requested -= min_of(t.requested, b.requested);
        --t.blocks;
        s.events.push_back(
            {snapshot_event_kind::free, b.address, b.bytes, b.requested, b.stream, b.tag, 0, record.now_ns});
      }
      b.use = block_use::deferred;
      b.requested = min_of(found->second, b.bytes);
      s.pool.deferred += b.bytes;
      ++s.pool.deferred_blocks;
    }
  }
}

/// Adds tags and locations to deferred blocks, as far as the history contains them.
inline void name_deferred(std::vector<snapshot_segment>& segments, std::vector<history_event> const& events) {
  std::unordered_map<std::uintptr_t, snapshot_block*> deferred;
  for (snapshot_segment& s : segments) {
    for (snapshot_block& b : s.blocks) {
      if (b.use == block_use::deferred) deferred.emplace(b.address, &b);
    }
  }
  for (auto e = events.rbegin(); e != events.rend() && !deferred.empty(); ++e) {
    if (e->kind != history_event_kind::allocate) continue;
    auto const found = deferred.find(e->address);
    if (found == deferred.end()) continue;
    found->second->tag = e->tag;
    found->second->location = e->location;
    if (e->requested != 0) found->second->requested = min_of(e->requested, found->second->bytes);
    found->second->time_ns = e->time_ns;
    deferred.erase(found);
  }
}

/// Returns what the pool reserved and released, by time. Memory that it holds without a recorded reserve, or
/// released without one, is reported as reserved at time 0: at each moment from the first record on, the sum
/// is what was reserved then.
/// @param now    the current time of the records' clock
/// @param now_ns the current time of the snapshot
[[nodiscard]] inline std::vector<snapshot_event> growth_events(pool_contents const& contents,
                                                               std::uint64_t now, std::uint64_t now_ns) {
  // By size, too: a compaction takes the memory of a new handle before it gives the old one at its address
  // back.
  std::set<std::pair<std::uintptr_t, std::size_t>> held;
  for (held_memory const& h : contents.held) {
    if (!h.is_asleep) held.emplace(h.address, h.bytes);
  }
  std::vector<snapshot_event> events;
  auto const add = [&](snapshot_event_kind kind, std::uintptr_t address, std::size_t bytes,
                       std::uint64_t time) {
    events.push_back({.kind = kind, .address = address, .bytes = bytes, .time_ns = time});
  };
  for (std::size_t i = contents.notes.size(); i-- > 0;) {
    growth_note const& n = contents.notes[i];
    std::uint64_t const age = now > n.time ? now - n.time : 0;
    std::uint64_t const time = now_ns > age ? now_ns - age : 0;
    if (n.what == growth_change::given_back) {
      held.emplace(n.address, n.bytes);
      add(snapshot_event_kind::release, n.address, n.bytes, time);
    } else if (held.erase({n.address, n.bytes}) != 0) {
      add(snapshot_event_kind::reserve, n.address, n.bytes, time);
    }
  }
  std::size_t const known = events.size();
  for (auto const& [address, bytes] : held) add(snapshot_event_kind::reserve, address, bytes, 0);
  std::sort(events.begin() + static_cast<std::ptrdiff_t>(known), events.end(),
            [](auto const& a, auto const& b) { return a.address > b.address; });
  std::reverse(events.begin(), events.end());
  return events;
}

[[nodiscard]] inline snapshot_event event_of(history_event const& w) noexcept {
  std::size_t const bytes = w.kind == history_event_kind::refused ? w.requested : w.bytes;
  return {static_cast<snapshot_event_kind>(w.kind),
          w.address,
          bytes,
          w.requested,
          w.stream,
          w.tag,
          w.location,
          w.time_ns};
}

/// Merges the two histories: calls in their order, the pool's reserves and releases between them by time.
[[nodiscard]] inline std::vector<snapshot_event> one_history(std::vector<history_event> const& calls,
                                                             std::vector<snapshot_event> const& growth) {
  std::vector<snapshot_event> events;
  events.reserve(calls.size() + growth.size());
  auto next = growth.begin();
  for (history_event const& call : calls) {
    for (; next != growth.end() && next->time_ns <= call.time_ns; ++next) events.push_back(*next);
    events.push_back(event_of(call));
  }
  events.insert(events.end(), next, growth.end());
  return events;
}

/// Whether the block at `p` is a piece of a pool's memory, and not one of a source.
struct is_of_pool {
  void const* p = nullptr;
  static constexpr auto crosses = crossing::owner;
  [[nodiscard]] void const* address() const noexcept { return p; }
  template <class L>
    requires(gives_pieces<L> || !stands_on_another<L>)
  constexpr bool operator()(L&) const noexcept {
    return gives_pieces<L>;
  }
};

/// Takes the blocks that are in no pool out of a record that is sorted by address, and returns them with
/// those in quarantine below it.
template <class Resource>
[[nodiscard]] std::vector<snapshot_block> take_alone(Resource& memory, memory_history& record) {
  std::vector<snapshot_block> alone;
  auto const is_alone = [&](std::uintptr_t address) {
    return !nearest(memory, is_of_pool{reinterpret_cast<void const*>(address)});  // NOLINT: as recorded
  };
  for (quarantined_block const& k : record.quarantined) {
    auto const at =
        std::lower_bound(record.live.begin(), record.live.end(), k.address,
                         [](history_block const& b, std::uintptr_t address) { return b.address < address; });
    bool const is_live_again = at != record.live.end() && at->address == k.address;
    if (is_live_again || !is_alone(k.address)) continue;
    snapshot_block& b = alone.emplace_back();
    b.address = k.address;
    b.bytes = block_bytes_of(memory, k.requested, default_alignment);
    b.use = block_use::live;
  }
  std::erase_if(record.live, [&](history_block const& w) {
    if (!is_alone(w.address)) return false;
    alone.push_back(block_of(w));
    return true;
  });
  return alone;
}

/// Each block that is in no pool is a segment of its own, which begins and ends with it.
inline void add_alone(snapshot& s, std::vector<snapshot_block> const& alone) {
  for (snapshot_block const& b : alone) {
    snapshot_segment& segment = s.segments.emplace_back();
    segment.address = b.address;
    segment.bytes = b.bytes;
    segment.kind = segment_kind::upstream;
    segment.is_small = b.bytes <= class_limit;
    segment.blocks.push_back(b);
    pool_part& part = segment.is_small ? s.pool.smaller : s.pool.larger;
    part.reserved.current += static_cast<std::int64_t>(b.bytes);
    ++part.handles.current;
    s.pool.reserved += b.bytes;
    ++s.pool.handles;
    s.pool.live += b.bytes;
    ++s.pool.live_blocks;
    for (counter* const of : {&part.reserved, &part.handles}) of->peak = max_of(of->peak, of->current);
  }
  s.pool.reserved_peak = max_of(s.pool.reserved_peak, s.pool.reserved);
  s.pool.handles_peak = max_of(s.pool.handles_peak, s.pool.handles);
  std::sort(s.segments.begin(), s.segments.end(),
            [](auto const& a, auto const& b) { return a.address < b.address; });
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
/// before it at time 0. A block of the record that is in no pool, since there is none or since it is of a
/// source that fallback_to adds, is a segment of its own, and counts in `pool`.
///
/// Blocks always tile their segments, and segments add up to `pool.reserved`. The live blocks with requested
/// bytes are those of the layer's record. If other threads continue meanwhile, the record and the pool are
/// read again up to three times; after that, a block in the layer's record that the pool has already released
/// to the driver is omitted. Live blocks with 0 requested were not seen by the layer: allocated bypassing it,
/// or still inside a call.
///
/// Below fences, addresses and bytes are those of the pool's blocks, which hold the user's. What the
/// quarantine of `checked` keeps is deferred, also in `pool.deferred`. If `checked` is above the layer's
/// record, such a block is freed at the time of the snapshot.
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
    if constexpr (has_record) record = nearest(memory, detail::ask_record{});
    std::vector<quarantined_block> kept;  // above the record
    detail::for_each_quarantined(memory, [&](void* p, std::size_t bytes) {
      kept.push_back({reinterpret_cast<std::uintptr_t>(p), bytes});
    });
    std::sort(record.live.begin(), record.live.end(),
              [](auto const& a, auto const& b) { return a.address < b.address; });
    std::vector<snapshot_block> const alone = detail::take_alone(memory, record);
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
      for (snapshot_block const& b : alone) contents.held.push_back({b.address, b.bytes});
      s.events = detail::one_history(record.events, detail::growth_events(contents, now, record.now_ns));
    } else {
      s.events = detail::one_history(record.events, {});
    }
    detail::add_alone(s, alone);
    detail::defer_quarantined(s, record, kept);
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
