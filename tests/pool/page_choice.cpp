// SPDX-License-Identifier: Apache-2.0
// The choice of free pieces for a block (page_choice), using up parts of handles or not, on random layouts of
// 2 MiB handles.

#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "catch.hpp"
#include "tarn/pool/pages/growth_rules.hpp"
#include "tarn/pool/pages/page_choice.hpp"

using namespace tarn;
using namespace tarn::detail;

namespace {

constexpr std::uintptr_t base = 0x7f0000000000;
constexpr std::size_t grain = 64_KiB;

/// The live part of a handle, bytes from its home address; the handle is free before and behind it.
struct live_part {
  std::size_t from = 0;
  std::size_t to = 0;
};

/// Handles of 2 MiB side by side, with at most one live part in each.
struct handles {
  arena space;
  page_map map;
  std::vector<live_part> parts;

  bool uses_up_ends = true;

  explicit handles(std::vector<live_part> const& live) : parts(live) {
    std::size_t const bytes = live.size() * 2_MiB;
    map.set_up(base, bytes, 2 * bytes, 2_MiB);
    map.make_room(live.size());
    for (std::size_t i = 0; i < live.size(); ++i) (void)map.add(i + 1, 2_MiB, base + i * 2_MiB);
    space.pages = &map;
    space.starts.set_up(base, bytes, 2_MiB);
    space.ranges.make_room(3 * live.size() + 1);
    range_ref const all = space.ranges.take();
    space.ranges[all].address = base;
    space.ranges[all].bytes = bytes;
    space.ranges[all].where = zone::larger;
    space.starts.note(space.ranges, all);
    (void)space.make_free(all, neutral, 0);
    for (std::size_t i = 0; i < live.size(); ++i) {
      std::uintptr_t const at = base + i * 2_MiB + live[i].from;
      std::size_t const size = live[i].to - live[i].from;
      if (size != 0) (void)space.carve(space.starts.find(space.ranges, at), at, size);
    }
  }

  [[nodiscard]] choice choose(std::size_t bytes) const {
    growth_request request;
    request.where = zone::larger;
    request.bytes = bytes;
    request.uses_up_ends = uses_up_ends;
    free_pieces free = find_pieces(space, map, request);
    return choose_pieces(free, request, bytes);
  }
  [[nodiscard]] bool is_free(piece const& p) const {
    std::size_t const i = (p.address - base) / 2_MiB;
    std::size_t const from = p.address - base - i * 2_MiB;
    return is_whole(p) || from + p.bytes <= parts[i].from || from >= parts[i].to;
  }
  [[nodiscard]] bool is_whole(piece const& p) const {
    live_part const& live = parts[(p.address - base) / 2_MiB];
    return live.from == live.to;
  }
};

std::vector<live_part> random_parts(std::mt19937& random, std::size_t count) {
  std::vector<live_part> parts(count);
  for (live_part& p : parts) {
    std::size_t const x = random() % 33 * grain;
    std::size_t const y = random() % 33 * grain;
    switch (random() % 6) {
      case 0:
        break;  // free
      case 1:
        p = {0, 2_MiB};
        break;
      case 2:
        p = {0, x};
        break;
      case 3:
        p = {x, 2_MiB};
        break;
      default:
        p = {std::min(x, y), std::max(x, y)};
    }
  }
  return parts;
}

/// What any choice has to be: free pieces of different handles that can be mapped side by side, of as many
/// bytes as asked.
void check_choice(handles const& h, choice const& c, std::size_t bytes) {
  std::size_t sum = 0;
  std::set<handle_ref> used;
  for (std::size_t i = 0; i < c.pieces.size(); ++i) {
    piece const& p = c.pieces[i];
    sum += p.bytes;
    REQUIRE(h.is_free(p));
    REQUIRE(used.insert(p.handle).second);
    if (i != 0) REQUIRE(p.address == h.map[p.handle].home);
    if (i + 1 != c.pieces.size()) REQUIRE(p.address + p.bytes == h.map.end_of(p.handle));
  }
  REQUIRE(sum == bytes);
}

/// The free bytes at the ends of partly used handles: 0 of those without.
struct free_sides {
  std::vector<std::size_t> ends;
  std::vector<std::size_t> starts;
  std::size_t whole = 0;
};
free_sides sides_of(handles const& h) {
  free_sides s;
  for (live_part const& p : h.parts) {
    bool const is_whole = p.from == p.to;
    s.whole += is_whole ? 1 : 0;
    s.ends.push_back(is_whole ? 0 : 2_MiB - p.to);
    s.starts.push_back(is_whole ? 0 : p.from);
  }
  return s;
}
/// Calls f(bytes) for each end with each start of another handle, and for each alone.
template <class F>
void for_each_pair(free_sides const& s, F const& f) {
  for (std::size_t e = 0; e < s.ends.size(); ++e) {
    f(s.ends[e]);
    f(s.starts[e]);
    for (std::size_t i = 0; i < s.starts.size(); ++i) {
      if (i != e) f(s.ends[e] + s.starts[i]);
    }
  }
}

}  // namespace

TEST_CASE(
    "choose_pieces that uses up parts takes the fewest whole handles and the pair of parts that fits best",
    "[pool][page_choice]") {
  std::mt19937 random(5);
  int found = 0;
  int lacking = 0;
  for (int round = 0; round < 3000; ++round) {
    handles const h(random_parts(random, 2 + random() % 12));
    std::size_t const bytes = (1 + random() % 200) * grain;
    choice const c = h.choose(bytes);
    free_sides const s = sides_of(h);
    std::size_t most = 0;
    for_each_pair(s, [&](std::size_t pair) { most = std::max(most, pair); });
    std::size_t const needed = bytes > most ? (bytes - most + 2_MiB - 1) / 2_MiB : 0;
    std::size_t const fit =
        std::min(s.whole, bytes / 2_MiB);  // whole handles are not used in part while parts suffice
    INFO("round " << round << ": " << bytes / grain << " grains, " << most / grain << " in the largest pair");
    if (needed <= fit) {
      ++found;
      check_choice(h, c, bytes);
      REQUIRE(c.lack == 0);
      std::size_t whole = 0;
      for (piece const& p : c.pieces) whole += h.is_whole(p) ? 1 : 0;
      REQUIRE(whole == needed);
      std::size_t const rest = bytes - needed * 2_MiB;
      std::size_t least = ~std::size_t{0};
      for_each_pair(s, [&](std::size_t pair) { least = pair >= rest ? std::min(least, pair) : least; });
      REQUIRE(c.left_over == least - rest);
    } else if (s.whole <= bytes / 2_MiB) {
      ++lacking;
      REQUIRE(c.lack == bytes - s.whole * 2_MiB - most);
    } else {
      check_choice(h, c, bytes);  // the start of a whole handle
    }
  }
  CHECK(found > 1000);
  CHECK(lacking > 100);
}

TEST_CASE("choose_pieces that does not use up parts takes few pieces, each handle once",
          "[pool][page_choice]") {
  std::mt19937 random(6);
  int found = 0;
  for (int round = 0; round < 3000; ++round) {
    handles h(random_parts(random, 2 + random() % 12));
    h.uses_up_ends = false;
    std::size_t const bytes = (1 + random() % 200) * grain;
    choice const c = h.choose(bytes);
    if (c.lack != 0) continue;
    ++found;
    INFO("round " << round);
    check_choice(h, c, bytes);
    std::size_t whole = 0;
    for (piece const& p : c.pieces) whole += h.is_whole(p) && p.bytes == 2_MiB ? 1 : 0;
    CHECK(whole >= std::min(sides_of(h).whole, bytes / 2_MiB));
  }
  CHECK(found > 1000);
}

TEST_CASE("choose_pieces that uses up parts lacks less", "[pool][page_choice]") {
  // A handle that is free at its end, one that is free at its start, and no other free memory.
  handles h({{0, 512_KiB}, {1_MiB, 2_MiB}});
  CHECK(h.choose(6_MiB).lack == 6_MiB - 1536_KiB - 1_MiB);
  h.uses_up_ends = false;
  CHECK(h.choose(6_MiB).lack == 6_MiB - 1536_KiB);
}

TEST_CASE("uses_up_ends holds for small pools, where memory is scarce, and if the live peak does not rise",
          "[pool][page_choice]") {
  CHECK(uses_up_ends(700_MiB, max_request_bytes, 1_MiB, true));
  CHECK_FALSE(uses_up_ends(800_MiB, max_request_bytes, 33_MiB, true));
  CHECK(uses_up_ends(48_GiB, 1023_MiB, 1_MiB, true));
  CHECK_FALSE(uses_up_ends(48_GiB, 1_GiB, 1_MiB, true));
  CHECK_FALSE(uses_up_ends(48_GiB, 1_GiB, 32_MiB, false));
  CHECK(uses_up_ends(48_GiB, 1_GiB, 33_MiB, false));
}
