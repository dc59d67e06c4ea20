// SPDX-License-Identifier: Apache-2.0
#pragma once
// A small handwritten snapshot with all kinds of segments, blocks and events, and names that are hard to
// encode.

#include <cstddef>
#include <cstdint>
#include <string>

#include "tarn/report/snapshot.hpp"

namespace tarn_test {

inline std::string const awkward_name = "we\"ird\\ \x01\n\xff\xc3(\xe2\x82\xac";  // ends in a euro sign
inline std::string const awkward_as_utf8 = "we\"ird\\ \x01\n\xef\xbf\xbd\xef\xbf\xbd(\xe2\x82\xac";

inline void add_block(tarn::snapshot_segment& s, std::size_t bytes, tarn::block_use use,
                      std::size_t requested = 0, std::uint32_t tag = 0, std::uint32_t place = 0) {
  tarn::snapshot_block b;
  b.address = s.address + s.bytes;
  b.bytes = bytes;
  b.use = use;
  b.requested = requested;
  b.stream = 4097;
  b.tag = tag;
  b.location = place;
  s.bytes += bytes;
  s.blocks.push_back(b);
}

inline void add_event(tarn::snapshot& s, tarn::snapshot_event_kind kind, std::uintptr_t address,
                      std::size_t bytes, std::size_t requested = 0, std::uint32_t tag = 0,
                      std::uint32_t place = 0) {
  tarn::snapshot_event e;
  e.kind = kind;
  e.address = address;
  e.bytes = bytes;
  e.requested = requested;
  e.stream = 7;
  e.tag = tag;
  e.location = place;
  e.time_ns = s.events.size() * 1001;
  if (s.now_ns < e.time_ns) s.now_ns = e.time_ns;
  s.events.push_back(e);
}

inline tarn::snapshot sample_snapshot() {
  using namespace tarn;
  using kind = snapshot_event_kind;
  snapshot s;
  s.title = "a sample";
  s.device = 1;
  s.started_ns = 1'700'000'000'000'000'000;
  s.now_ns = 1'000'000;
  s.null_stream = 7;
  s.forgotten_events = 3;
  s.tags.resize(2);
  s.tags[0].name = "untagged";
  s.tags[1].name = awkward_name;
  s.tags[1].bytes = 0x1000;
  s.locations.resize(2);
  s.locations[1] = {{"dir/" + awkward_name + ".cpp", 12, "load"}, {"main.cpp", 3, "main"}};
  snapshot_segment home;
  home.address = 0x7f0000000000;
  home.is_small = true;
  add_block(home, 0x1000, block_use::live, 0xff0, 1, 1);
  add_block(home, 0x2000, block_use::cached);
  add_block(home, 0x1000, block_use::deferred, 0, 1, 1);
  snapshot_segment view;
  view.address = 0x7f9000000000;
  view.kind = segment_kind::view;
  view.handles = 2;
  view.pieces = {{0x7f0000010000, 0x3000}, {0x7f0000020000, 0x1000}};
  add_block(view, 0x4000, block_use::live, 0x4000);
  s.segments = {home, view};
  s.pool.reserved = home.bytes + view.bytes;
  s.pool.live = 0x5000;
  s.pool.live_blocks = 2;
  add_event(s, kind::reserve, 0x7f0000000000, 0x4000);
  add_event(s, kind::reserve, 0x7f0000010000, 0x3000);
  add_event(s, kind::reserve, 0x7f0000020000, 0x1000);
  add_event(s, kind::allocate, 0x7f0000000000, 0x1000, 0xff0, 1, 1);
  add_event(s, kind::allocate, 0x7f0000011000, 0x800, 0x700);
  add_event(s, kind::free, 0x7f0000011000, 0x800, 0x700);
  add_event(s, kind::refused, 0, 0x100000000, 0x100000000, 1);
  add_event(s, kind::allocate, 0x7f9000000000, 0x4000, 0x4000);
  add_event(s, kind::allocate, 0x7f0000003000, 0x1000, 0x1000, 1, 1);
  add_event(s, kind::free, 0x7f0000003000, 0x1000, 0x1000, 1, 1);
  return s;
}

}  // namespace tarn_test
