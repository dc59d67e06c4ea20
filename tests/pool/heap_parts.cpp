// SPDX-License-Identifier: Apache-2.0
// Parts of the heap: domains of a stream in several parts, ranges that change their part, and a part that
// ends. Without a pool.
#include <atomic>
#include <cstdint>
#include <vector>

#include "catch.hpp"
#include "tarn/pool/arena/arena.hpp"
#include "tarn/pool/arena/stream_table.hpp"
#include "tarn/pool/pages/growth_lock.hpp"

using namespace tarn;
using namespace tarn::detail;

namespace {

constexpr std::uintptr_t home = std::uintptr_t{1} << 40;

/// An arena over pages of 2 MiB, each handle free in the neutral domain of the common part.
struct paged_arena {
  explicit paged_arena(std::size_t handles) {
    space.starts.set_up(home, 256_MiB, 2_MiB);
    map.set_up(home, 256_MiB, 512_MiB, 2_MiB);
    space.pages = &map;
    for (std::size_t i = 0; i < handles; ++i) {
      space.ranges.make_room(4);
      range_ref const r = space.ranges.take();
      space.ranges[r].address = home + i * 4_MiB;
      space.ranges[r].bytes = 2_MiB;
      space.ranges[r].where = zone::larger;
      space.starts.note(space.ranges, r);
      map.make_room(1);
      (void)map.add(i + 1, 2_MiB, home + i * 4_MiB);
      (void)space.make_free(r, neutral, 0);
    }
  }
  /// Moves a free handle of the common part.
  void move(std::uintptr_t address, part_ref to) {
    range_ref const r = space.starts.find(space.ranges, address);
    space.claim(r);
    space.move_to_part(r, to);
    (void)space.make_free(r, space.streams.part(to).neutral_domain, 0);
  }

  page_map map;
  arena space;
  recursive_fork_mutex mutex;
};

}  // namespace

TEST_CASE("a stream has a domain in each part that it uses", "[heap_parts]") {
  stream_table streams;
  recursive_fork_mutex mutex;
  growth_lock const growing(mutex);
  CHECK_FALSE(streams.has_parts());
  part_ref const a = streams.make_part(7, true);
  part_ref const b = streams.make_part(7, false);
  CHECK((streams.has_parts() && a != common && b != common && a != b));
  CHECK((streams.part(a).owner == 7 && streams.part(a).keeps_addresses && !streams.part(b).keeps_addresses));
  int handle = 0;
  stream_ref const s = stream_ref::from(&handle, 9);
  domain_ref const in_common = streams.get(9, s);
  domain_ref const in_a = streams.get(9, s, a);
  domain_ref const in_b = streams.get(9, s, b);
  CHECK((in_common != in_a && in_a != in_b && in_common != in_b));
  CHECK((streams.get(9, s) == in_common && streams.get(9, s, a) == in_a && streams.find(9, b) == in_b));
  CHECK(streams[in_a].neutral_domain == streams.part(a).neutral_domain);
  CHECK((streams[streams.part(a).neutral_domain].is_neutral() && !streams[in_a].is_neutral()));
  CHECK(streams.get(neutral_id, {}, b) == streams.part(b).neutral_domain);
  std::vector<domain_ref> seen;
  streams.for_each_in(a, [&](domain_ref d) { seen.push_back(d); });
  CHECK(seen == std::vector<domain_ref>{in_a});
  // A new stream under the handle: the old one is gone in every part.
  (void)streams.get(12, stream_ref::from(&handle, 12), a);
  CHECK((streams[in_common].gone && streams[in_a].gone && streams[in_b].gone));
  // Forgetting one leaves the others, whichever was the first.
  streams.forget(growing, in_common);
  CHECK((streams.find(9) == neutral && streams.find(9, a) == in_a && streams.find(9, b) == in_b));
  streams.forget(growing, in_b);
  CHECK((streams.find(9, b) == neutral && streams.find(9, a) == in_a));
  streams.forget(growing, in_a);
  CHECK(streams.find(9, a) == neutral);
  std::size_t left = 0;
  streams.for_each([&](domain_ref d) { left += streams[d].id == 12 ? 1 : 100; });
  CHECK(left == 1);
  streams.end_part(growing, b);
  CHECK(streams.make_part(8, true) == b);  // its number is free again
}

TEST_CASE("a part takes only from its own memory, and handles that change their part are counted",
          "[heap_parts]") {
  paged_arena p(3);
  arena& a = p.space;
  part_ref const part = a.streams.make_part(1, true);
  a.make_room();
  int handle = 0;
  stream_ref const s = stream_ref::from(&handle, 5);
  domain_ref const taker = a.streams.get(5, s, part);
  CHECK(a.take(taker, zone::larger, 2_MiB, 256) == nullptr);  // there is free memory in the common part
  p.move(home + 4_MiB, part);
  CHECK((a.reserved_of(part, 6_MiB) == 2_MiB && a.reserved_of(common, 6_MiB) == 4_MiB));
  CHECK((p.map.part_at(home + 4_MiB) == part && p.map.part_at(home) == common));
  void* const own = a.take(taker, zone::larger, 2_MiB, 256);
  CHECK(own == reinterpret_cast<void*>(home + 4_MiB));
  CHECK(a.take(taker, zone::larger, 2_MiB, 256) == nullptr);
  CHECK((a.part_of(own) == part && a.live_of(part) == 2_MiB && a.live_of(common) == 0));
  CHECK((a.all_live() == 2_MiB && a.peak_of(part) == 2_MiB && a.live_peak == 0));
  a.make_room();
  domain_ref const others = a.streams.get(5, s);
  void* const common_one = a.take(others, zone::larger, 2_MiB, 256);
  CHECK((common_one != nullptr && a.part_of(common_one) == common));
  CHECK(a.release(taker, own, 2_MiB) == release_result::done);
  a.make_room();
  CHECK(a.take(others, zone::larger, 2_MiB, 256) == reinterpret_cast<void*>(home + 8_MiB));
  CHECK(a.take(others, zone::larger, 2_MiB, 256) == nullptr);  // what is free is the part's
  CHECK(a.live_of(part) == 0);
}

TEST_CASE("a block of a part is not extended into common memory behind it", "[heap_parts][extend]") {
  paged_arena a(0);
  arena& space = a.space;
  part_ref const part = space.streams.make_part(7, true);
  space.ranges.make_room(4);
  range_ref const first = space.ranges.take();
  space.ranges[first].address = home;
  space.ranges[first].bytes = 4_MiB;
  space.ranges[first].where = zone::larger;
  space.starts.note(space.ranges, first);
  for (std::size_t i = 0; i < 2; ++i) {
    a.map.make_room(1);
    (void)a.map.add(i + 1, 2_MiB, home + i * 2_MiB);
  }
  range_ref const second = space.split(first, 2_MiB);
  (void)space.make_free(second, neutral, 0);
  space.move_to_part(first, part);
  (void)space.make_free(first, space.streams.part(part).neutral_domain, 0);
  space.make_room();
  void* const p = space.take(space.streams.part(part).neutral_domain, zone::larger, 2_MiB, 256);
  REQUIRE(p == reinterpret_cast<void*>(home));
  CHECK_FALSE(space.extend(neutral, p, 2_MiB, 1_MiB));
  CHECK(space.free_bytes() == 2_MiB);
  CHECK(space.release(space.streams.part(part).neutral_domain, p, 2_MiB) == release_result::done);
}

TEST_CASE("when a part ends, its memory is common, with the blocks in it that are live", "[heap_parts]") {
  paged_arena p(3);
  arena& a = p.space;
  growth_lock const growing(p.mutex);
  part_ref const part = a.streams.make_part(1, true);
  std::atomic<std::int64_t> handed_out{0};
  a.streams.part(part).handed_out = &handed_out;
  for (std::size_t i = 0; i < 3; ++i) p.move(home + i * 4_MiB, part);
  int handles[2] = {};
  stream_ref const s = stream_ref::from(&handles[0], 5);
  stream_ref const t = stream_ref::from(&handles[1], 6);
  domain_ref const taker = a.streams.get(5, s, part);
  domain_ref const other = a.streams.get(6, t, part);
  a.make_room();
  void* const live = a.take(taker, zone::larger, 2_MiB, 256);
  a.make_room();
  void* const freed = a.take(taker, zone::larger, 2_MiB, 256);
  CHECK(a.release(other, freed, 2_MiB) == release_result::done);
  // Two blocks of a run: one is freed by another stream, which keeps it.
  range_ref const small = a.starts.find(a.ranges, home + 8_MiB);
  a.claim(small);
  a.ranges[small].where = zone::smaller;
  (void)a.make_free(small, a.streams.part(part).neutral_domain, 0);
  void* blocks[2] = {};
  a.make_room();
  REQUIRE(a.take_small(taker, 0, blocks, 2) == 2);
  CHECK(a.part_of(blocks[0]) == part);
  CHECK(a.release_small(other, 0, blocks[0]) == release_result::done);
  CHECK(a.streams[other].foreign_count == 1);
  auto const generation = a.streams[other].generation;

  a.end_part(growing, part);
  CHECK_FALSE(a.streams.has_parts());
  CHECK(a.streams[other].generation != generation);
  CHECK((a.part_of(live) == common && a.part_of(blocks[1]) == common));
  for (std::size_t i = 0; i < 3; ++i) CHECK(p.map.part_at(home + i * 4_MiB) == common);
  CHECK((a.reserved_in_parts == 0 && a.live_in_parts == 0 && a.live_bytes != 0));
  // A new stream in the place of a forgotten one starts with nothing complete.
  int more[4] = {};
  domain_ref later = neutral;
  for (stream_id id = 20; id < 24 && later != other; ++id)
    later = a.streams.get(id, stream_ref::from(&more[id - 20], id));
  REQUIRE(later == other);
  a.make_room();
  CHECK(a.take(later, zone::larger, 2_MiB, 256) == freed);
  CHECK(a.release(later, freed, 2_MiB) == release_result::done);
  CHECK_FALSE(a.streams[later].is_completed());
  CHECK(a.release(later, live, 2_MiB) == release_result::done);
  void* again[2] = {};
  a.make_room();
  CHECK(a.take_small(later, 0, again, 1) == 1);
  CHECK(again[0] == blocks[0]);  // from the run, which is neutral now
  CHECK(a.release_small(later, 0, blocks[1]) == release_result::done);
}

TEST_CASE("when a part ends, all blocks of a handle become common, with free memory between them",
          "[heap_parts]") {
  paged_arena p(1);
  arena& a = p.space;
  growth_lock const growing(p.mutex);
  part_ref const part = a.streams.make_part(1, true);
  std::atomic<std::int64_t> handed_out{0};
  a.streams.part(part).handed_out = &handed_out;
  p.move(home, part);
  int handle = 0;
  domain_ref const taker = a.streams.get(5, stream_ref::from(&handle, 5), part);
  std::vector<void*> blocks;
  for (int i = 0; i < 4; ++i) {
    a.make_room();
    blocks.push_back(a.take(taker, zone::larger, 512_KiB, 256));
  }
  for (int i : {0, 2})
    CHECK(a.release(taker, blocks[static_cast<std::size_t>(i)], 512_KiB) == release_result::done);
  a.end_part(growing, part);
  CHECK((a.part_of(blocks[1]) == common && a.part_of(blocks[3]) == common));
  CHECK((p.map.part_at(home) == common && a.reserved_in_parts == 0 && a.live_bytes == 1_MiB));
  part_ref const next = a.streams.make_part(2, true);  // under the number of the ended one
  CHECK((next == part && a.part_of(blocks[1]) == common && a.part_of(blocks[3]) == common));
  domain_ref const others = a.streams.get(5, stream_ref::from(&handle, 5));
  for (int i : {1, 3})
    CHECK(a.release(others, blocks[static_cast<std::size_t>(i)], 512_KiB) == release_result::done);
  CHECK(a.live_bytes == 0);
}
