// SPDX-License-Identifier: Apache-2.0
#pragma once
// Turns a replayed trace into a snapshot for report pages: all its calls, and what the pool held at the peak.
// Times are the numbers of the trace's calls, from 1. A trace has no tags: the tag of a block is its range of
// sizes.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "replay/inspected_peer.hpp"
#include "replay/progress.hpp"
#include "replay/run.hpp"
#include "replay/size_spans.hpp"
#include "replay/trace.hpp"
#include "tarn/report/take_snapshot.hpp"

namespace tarn::bench {

namespace detail {

/// Returns the event after which the most bytes are live if none is refused: its number, from 1.
template <inspected_peer P>
[[nodiscard]] std::uint64_t peak_of(trace const& t, P const& pool) {
  std::uint64_t live = 0, most = 0, peak = 0;
  for (std::size_t i = 0; i < t.events.size(); ++i) {
    std::uint64_t const bytes = pool.block_bytes(t.events[i].bytes);
    live += t.events[i].what == operation::allocate ? bytes : 0 - bytes;
    if (live <= most) continue;
    most = live;
    peak = i + 1;
  }
  return peak;
}

template <class F>
void for_each_block(snapshot& s, F f) {
  for (snapshot_segment& segment : s.segments) {
    for (snapshot_block& b : segment.blocks) f(b);
  }
}

/// Adds one event to the numbers of a tag.
inline void count_tag(history_tag& tag, snapshot_event const& e) {
  if (e.kind == snapshot_event_kind::allocate) {
    tag.bytes += e.bytes;
    tag.requested += e.requested;
    ++tag.blocks;
    ++tag.allocations;
    tag.peak_bytes = std::max(tag.peak_bytes, tag.bytes);
  } else {
    tag.bytes -= e.bytes;
    tag.requested -= e.requested;
    --tag.blocks;
  }
}

/// Returns what the pool holds now, with the trace's data for its blocks: requested bytes, the trace's
/// streams, tags by size.
template <inspected_peer P>
[[nodiscard]] snapshot held_by(P const& pool, std::vector<history_block> live) {
  snapshot s = take_snapshot(pool.memory());
  std::erase_if(live, [](history_block const& b) { return b.address == 0; });
  std::sort(live.begin(), live.end(), [](auto const& a, auto const& b) { return a.address < b.address; });
  // Cached blocks keep the device's identity of their stream; its number in the trace is taken from live
  // blocks.
  std::map<stream_id, stream_id> number_of;
  for_each_block(s, [&](snapshot_block& b) {
    auto const found =
        std::lower_bound(live.begin(), live.end(), b.address,
                         [](history_block const& w, std::uintptr_t at) { return w.address < at; });
    if (b.use == block_use::live && found != live.end() && found->address == b.address) {
      number_of[b.stream] = found->stream;
    }
  });
  tarn::detail::merge_history(s.segments, live);
  for_each_block(s, [&](snapshot_block& b) {
    auto const found = number_of.find(b.stream);
    if (b.use != block_use::live && found != number_of.end()) b.stream = found->second;
  });
  for (snapshot_segment& segment : s.segments) segment.stream = tarn::detail::stream_of(segment);
  return s;
}

}  // namespace detail

/// Replays `t` once on a new pool. `segments` are those at the peak, `now_ns` is the peak's call; events
/// continue to the end. A refused request is recorded as an event, and the replay continues without it.
template <inspected_peer P>
[[nodiscard]] snapshot report(trace const& t, setup made_for, progress& line) {
  made_for.streams = std::max<std::size_t>(1, t.stream_numbers.size());
  snapshot s;
  s.title = t.name + " on " + std::string(P::name);
  s.locations.resize(1);
  s.tags.resize(1 + std::size(size_spans));
  s.tags[0].name = "untagged";
  for (std::size_t i = 0; i < std::size(size_spans); ++i) s.tags[i + 1].name = size_spans[i].name;
  P pool(made_for);
  s.now_ns = detail::peak_of(t, pool);
  std::vector<history_block> live(t.slots);  // address 0: not live
  std::vector<history_tag> at_peak = s.tags;
  line.begin(t.name + ", " + std::string(P::name) + ", report");
  std::size_t reserved = 0;
  for (std::size_t i = 0; i < t.events.size(); ++i) {
    if (i % detail::chunk_events == 0) line.show(i, t.events.size());
    event const& e = t.events[i];
    history_block& block = live[e.slot];
    snapshot_event seen;
    seen.time_ns = i + 1;
    seen.requested = static_cast<std::size_t>(e.bytes);
    seen.bytes = pool.block_bytes(seen.requested);
    seen.stream = t.stream_numbers[e.stream];
    seen.tag = tag_of_size(seen.requested);
    if (e.what == operation::allocate) {
      std::uint64_t refused = 0;
      seen.address = reinterpret_cast<std::uintptr_t>(detail::request(pool, e, refused));
      if (refused != 0) seen.kind = snapshot_event_kind::refused;
      block = {seen.address, seen.requested, seen.bytes, seen.stream, seen.tag, 0, i + 1};
    } else {
      seen.kind = snapshot_event_kind::free;
      seen.address = block.address;
      pool.deallocate(e.stream, reinterpret_cast<void*>(block.address), seen.requested);
      block.address = 0;
    }
    pool_state const state = pool.state();
    if (state.reserved != reserved) {  // changed by this call, so it precedes the call
      snapshot_event change;
      change.kind = state.reserved > reserved ? snapshot_event_kind::reserve : snapshot_event_kind::release;
      change.bytes = state.reserved > reserved ? state.reserved - reserved : reserved - state.reserved;
      change.time_ns = i + 1;
      s.events.push_back(change);
      reserved = state.reserved;
    }
    if (seen.address != 0) detail::count_tag(s.tags[seen.tag], seen);
    if (seen.address != 0 || seen.kind == snapshot_event_kind::refused) s.events.push_back(seen);
    if (i + 1 == s.now_ns) {
      snapshot held = detail::held_by(pool, live);
      s.pool = held.pool;
      s.segments = std::move(held.segments);
      at_peak = s.tags;
    }
  }
  line.clear();
  // A tag's current values are those at the peak, as the segments are; its peak and counts are over the whole
  // trace.
  for (std::size_t i = 0; i < s.tags.size(); ++i) {
    at_peak[i].peak_bytes = s.tags[i].peak_bytes;
    at_peak[i].allocations = s.tags[i].allocations;
  }
  s.tags = std::move(at_peak);
  std::vector<void*> left(t.slots);
  for (std::size_t i = 0; i < left.size(); ++i) left[i] = reinterpret_cast<void*>(live[i].address);
  for (event const& e : detail::missing_frees(t)) pool.deallocate(e.stream, left[e.slot], e.bytes);
  return s;
}

}  // namespace tarn::bench
