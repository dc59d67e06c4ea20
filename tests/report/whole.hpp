// SPDX-License-Identifier: Apache-2.0
#pragma once
// Invariants of every snapshot, however it is taken.

#include <cstddef>
#include <cstdint>
#include <map>

#include "catch.hpp"
#include "tarn/report/snapshot.hpp"

namespace tarn_test {

struct block_sum {
  std::size_t blocks = 0;
  std::size_t bytes = 0;
  std::size_t requested = 0;
};

inline block_sum blocks_with(tarn::snapshot const& s, tarn::block_use use) {
  block_sum sum;
  for (tarn::snapshot_segment const& segment : s.segments) {
    for (tarn::snapshot_block const& b : segment.blocks) {
      if (b.use != use) continue;
      ++sum.blocks;
      sum.bytes += b.bytes;
      sum.requested += b.requested;
    }
  }
  return sum;
}

/// Blocks tile their segments. Segments and pieces of views do not overlap. Segments sum to the reserved
/// bytes.
inline void check_whole(tarn::snapshot const& s) {
  std::size_t reserved = 0;
  std::size_t mistakes = 0;  // one CHECK per block would take minutes
  std::map<std::uintptr_t, std::uintptr_t> stretches;
  auto const add = [&](std::uintptr_t address, std::size_t bytes) {
    mistakes += bytes == 0;
    mistakes += !stretches.emplace(address, address + bytes).second;
  };
  for (tarn::snapshot_segment const& segment : s.segments) {
    add(segment.address, segment.bytes);
    reserved += segment.bytes;
    mistakes += segment.handles == 0;
    std::uintptr_t at = segment.address;
    for (tarn::snapshot_block const& b : segment.blocks) {
      mistakes += b.address != at;
      mistakes += b.bytes == 0;
      mistakes += b.requested > b.bytes;
      mistakes += b.requested != 0 && b.use == tarn::block_use::cached;
      mistakes += b.requested == 0 && b.use == tarn::block_use::deferred;
      mistakes += b.tag >= s.tags.size();
      mistakes += b.location >= s.locations.size();
      at += b.bytes;
    }
    mistakes += at != segment.address + segment.bytes;
    std::size_t of_pieces = 0;
    for (tarn::snapshot_piece const& p : segment.pieces) {
      add(p.address, p.bytes);
      of_pieces += p.bytes;
    }
    if (segment.kind == tarn::segment_kind::view) mistakes += of_pieces != segment.bytes;
  }
  CHECK(mistakes == 0);
  std::uintptr_t end = 0;
  bool apart = true;
  for (auto const& [first, last] : stretches) {
    apart = apart && first >= end;
    end = last;
  }
  CHECK(apart);
  CHECK(reserved == s.pool.reserved);
}

/// The reserve and release events of the history sum to the reserved bytes, and time never decreases.
inline void check_history(tarn::snapshot const& s) {
  std::size_t reserved = 0;
  std::size_t mistakes = 0;
  std::uint64_t time = 0;
  for (tarn::snapshot_event const& e : s.events) {
    if (e.kind == tarn::snapshot_event_kind::reserve) {
      reserved += e.bytes;
      mistakes += e.address == 0;
    }
    if (e.kind == tarn::snapshot_event_kind::release) {
      mistakes += e.bytes > reserved;
      reserved -= e.bytes;
    }
    mistakes += e.time_ns < time;
    mistakes += e.time_ns > s.now_ns;
    time = e.time_ns;
    mistakes += e.tag >= s.tags.size() || e.location >= s.locations.size();
  }
  CHECK(mistakes == 0);
  CHECK(reserved == s.pool.reserved);
}

}  // namespace tarn_test
