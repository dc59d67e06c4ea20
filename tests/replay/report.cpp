// SPDX-License-Identifier: Apache-2.0
// A replayed trace as a snapshot: events, tags, and the pool's blocks at the peak.

#include "replay/report.hpp"

#include <algorithm>
#include <initializer_list>
#include <map>
#include <random>
#include <string_view>

#include "catch.hpp"
#include "peers/simulated_device.hpp"
#include "peers/tarn_pool.hpp"
#include "replay/trace_reader.hpp"

using namespace tarn;
using namespace tarn::bench;

namespace {

using simulated = tarn_pool<simulated_device, with_defaults>;
constexpr std::size_t mib = std::size_t{1} << 20U;

trace parse(std::initializer_list<std::string_view> lines) {
  trace_parser parser("t.trace");
  for (std::string_view const line : lines) parser.take(line);
  return std::move(parser).finish();
}
snapshot report_of(trace const& t, std::uint64_t capacity = 0) {
  progress silent(progress::output::silent);
  setup s;
  s.capacity = capacity;
  return report<simulated>(t, s, silent);
}
std::size_t live_bytes(snapshot const& s) {
  std::size_t live = 0;
  for (snapshot_segment const& segment : s.segments) {
    for (snapshot_block const& b : segment.blocks) live += b.use == block_use::live ? b.bytes : 0;
  }
  return live;
}

}  // namespace

TEST_CASE("report has every call of its trace, numbered, and the blocks at the peak", "[replay][report]") {
  snapshot const s = report_of(parse({"a 1 1000 5", "a 2 3000000 9", "f 1", "a 3 100 5", "f 2", "f 3"}));
  CHECK(s.title == "t on tarn");
  CHECK(s.now_ns == 2);
  std::vector<snapshot_event> calls;
  std::size_t reserved = 0;
  for (snapshot_event const& e : s.events) {
    if (e.kind == snapshot_event_kind::reserve) reserved += e.bytes;
    if (e.kind == snapshot_event_kind::allocate || e.kind == snapshot_event_kind::free) calls.push_back(e);
  }
  REQUIRE(calls.size() == 6);
  for (std::size_t i = 0; i < calls.size(); ++i) CHECK(calls[i].time_ns == i + 1);
  CHECK(calls[0].requested == 1000);
  CHECK(calls[0].bytes == 1024);
  CHECK(calls[0].stream == 5);
  CHECK(calls[1].stream == 9);
  CHECK(calls[2].kind == snapshot_event_kind::free);
  CHECK(calls[2].address == calls[0].address);
  CHECK(calls[2].requested == 1000);
  CHECK(s.tags[calls[0].tag].name == "up to 4 KiB");
  CHECK(s.tags[calls[1].tag].name == "up to 8 MiB");
  CHECK(reserved == s.pool.reserved_peak);
  CHECK(s.pool.live == calls[0].bytes + calls[1].bytes);
  CHECK(live_bytes(s) == s.pool.live);
  CHECK(s.tags[calls[0].tag].bytes == 1024);
  CHECK(s.tags[calls[0].tag].blocks == 1);
  CHECK(s.tags[calls[0].tag].allocations == 2);
}

TEST_CASE("report lists all segments of the pool with the streams and tags of the trace",
          "[replay][report]") {
  std::mt19937 random(4);
  for (int round = 0; round < 10; ++round) {
    trace_parser parser("t.trace");
    std::vector<int> live;
    for (int i = 0; i < 600; ++i) {
      bool const frees = !live.empty() && random() % 5 < 2;
      if (frees) {
        std::size_t const at = random() % live.size();
        parser.take("f " + std::to_string(live[at]));
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
      } else {
        live.push_back(i);
        auto const bytes = std::size_t{1} << random() % 26;
        parser.take("a " + std::to_string(i) + " " + std::to_string(bytes + random() % bytes) + " " +
                    std::to_string(random() % 3));
      }
    }
    snapshot const s = report_of(std::move(parser).finish());
    CHECK(live_bytes(s) == s.pool.live);
    std::size_t held = 0;
    for (snapshot_segment const& segment : s.segments) held += segment.bytes;
    CHECK(held == s.pool.reserved);
    std::uintptr_t end = 0;
    for (snapshot_segment const& segment : s.segments) {
      CHECK(segment.address >= end);
      std::uintptr_t at = segment.address;
      for (snapshot_block const& b : segment.blocks) {
        CHECK(b.address == at);
        CHECK(b.stream < 3);  // the trace's stream, not the device's
        if (b.use == block_use::live) CHECK(tag_of_size(b.requested) == b.tag);
        at += b.bytes;
      }
      end = segment.address + segment.bytes;
      CHECK(at == end);
    }
  }
}

TEST_CASE("report includes a request that the device refuses, and omits its free", "[replay][report]") {
  snapshot const s = report_of(parse({"a 1 4000000 0", "a 2 90000000 0", "f 2", "f 1"}), 16 * mib);
  std::size_t refused = 0, freed = 0;
  for (snapshot_event const& e : s.events) {
    refused += e.kind == snapshot_event_kind::refused && e.requested == 90'000'000;
    freed += e.kind == snapshot_event_kind::free;
  }
  CHECK(refused == 1);
  CHECK(freed == 1);
  for (history_tag const& tag : s.tags) CHECK(tag.blocks <= 1);
}

TEST_CASE("report of an empty trace is empty", "[replay][report]") {
  snapshot const s = report_of(parse({}));
  CHECK(s.events.empty());
  CHECK(s.segments.empty());
  CHECK(s.now_ns == 0);
}

TEST_CASE("tag_of_size is the smallest span that holds the size", "[replay][report][size_spans]") {
  CHECK(tag_of_size(0) == 1);
  CHECK(tag_of_size(4096) == 1);
  CHECK(tag_of_size(4097) == 2);
  CHECK(tag_of_size(static_cast<std::size_t>(-1)) == std::size(size_spans));
}
