// SPDX-License-Identifier: Apache-2.0
#include "tarn/pool/pool_statistics.hpp"

#include "catch.hpp"

using namespace tarn;
using namespace tarn::detail;

TEST_CASE("growth_counters count the bytes and handles of each zone, and the released bytes", "[pool]") {
  recursive_fork_mutex mutex;
  growth_lock const growing(mutex);
  growth_counters s;
  s.hold(growing, 0, 4_MiB, zone::smaller);
  s.hold(growing, 8_MiB, 6_MiB, zone::larger);
  s.hold(growing, 16_MiB, 2_MiB, zone::larger);
  s.release(growing, 16_MiB, 2_MiB, zone::larger);
  CHECK(s.reserved == 10_MiB);
  CHECK(s.reserved_peak == 12_MiB);
  CHECK(s.reserved_total == 12_MiB);
  CHECK(s.released_total == 2_MiB);
  CHECK(s.handles == 2);
  CHECK(s.handles_peak == 3);
  CHECK(s.smaller.reserved.current == 4194304);
  CHECK(s.larger.reserved.current == 6291456);
  CHECK(s.larger.reserved.peak == 8388608);
  CHECK(s.smaller.handles.current == 1);
  CHECK(s.larger.handles.current == 1);
}

TEST_CASE("add_free_ranges adds the free ranges of all streams to their zones", "[pool]") {
  arena space;
  space.make_room();
  auto const free_range = [&](std::uintptr_t address, std::size_t bytes, zone where, domain_ref domain) {
    range_ref const r = space.ranges.take();
    space.ranges[r].address = address;
    space.ranges[r].bytes = bytes;
    space.ranges[r].where = where;
    (void)space.make_free(r, domain, 0);
  };
  domain_ref const stream = space.streams.get(7, stream_ref{});
  free_range(1_MiB, 1_MiB, zone::smaller, neutral);
  free_range(8_MiB, 4_MiB, zone::larger, neutral);
  free_range(16_MiB, 2_MiB, zone::larger, stream);
  pool_state s;
  add_free_ranges(s, space);
  CHECK(s.free_blocks == 3);
  CHECK(s.inactive_split_bytes == 7_MiB);
  CHECK(s.smaller.free_blocks == 1);
  CHECK(s.smaller.inactive_split_bytes == 1_MiB);
  CHECK(s.larger.free_blocks == 2);
  CHECK(s.larger.inactive_split_bytes == 6_MiB);
}
