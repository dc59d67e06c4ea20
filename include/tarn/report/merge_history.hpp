// SPDX-License-Identifier: Apache-2.0
#pragma once
// merge_history(): merges the records of a `with_history` layer into the blocks of a pool: tags, locations
// and requested bytes, and one history of calls, handles and segments. The two are taken at different
// moments; differences are resolved so that blocks tile their segments.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "tarn/core/min_max.hpp"
#include "tarn/debug/memory_history.hpp"
#include "tarn/pool/inspection/inspection.hpp"
#include "tarn/report/snapshot.hpp"

namespace TARN_NAMESPACE::detail {

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

/// Reports blocks that a layer above the pool keeps from reuse as deferred: their user has freed them.
inline void defer_kept(snapshot& s, std::vector<kept_block> const& kept) {
  std::unordered_map<std::uintptr_t, std::size_t> requested;
  for (kept_block const& k : kept) requested.emplace(k.address, k.requested);
  for (snapshot_segment& segment : s.segments) {
    for (snapshot_block& b : segment.blocks) {
      // A block of the record was handed out again meanwhile.
      if (b.use != block_use::live || b.requested != 0) continue;
      auto const found = requested.find(b.address);
      if (found == requested.end()) continue;
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
  std::unordered_map<std::uintptr_t, std::size_t> held;
  for (held_memory const& h : contents.held) held.emplace(h.address, h.bytes);
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
      held[n.address] = n.bytes;
      add(snapshot_event_kind::release, n.address, n.bytes, time);
    } else if (held.erase(n.address) != 0) {
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

}  // namespace TARN_NAMESPACE::detail
