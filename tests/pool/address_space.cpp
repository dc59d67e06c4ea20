// SPDX-License-Identifier: Apache-2.0

#include "tarn/pool/pages/address_space.hpp"

#include <cstdint>

#include "catch.hpp"
#include "tarn/core/bytes.hpp"

using namespace tarn;
using namespace tarn::detail;

namespace {

/// 512 MiB of addresses: 128 MiB of home addresses for each zone, 256 MiB for views.
struct divided {
  static constexpr std::uintptr_t base = std::uintptr_t{1} << 40;
  static constexpr std::size_t bytes = 512_MiB;
  arena a;
  address_space space;
  divided() {
    a.starts.set_up(base, bytes / 2, 2_MiB);
    a.ranges.make_room(64);
    space.set_up(a, base, bytes);
  }
  /// Takes a home range of `n` bytes in a zone; 0 if there is none.
  range_ref home(zone where, std::size_t n) {
    range_ref const r = space.find_home(a, where, n, 2_MiB);
    if (r != 0) space.take(a, r, n);
    return r;
  }
};

}  // namespace

TEST_CASE("address_space keeps the home ranges of each zone and the views apart", "[pool][address_space]") {
  divided d;
  for (zone const where : all_zones) {
    range_ref const r = d.home(where, 4_MiB);
    REQUIRE(r != 0);
    CHECK(d.a.ranges[r].bytes == 4_MiB);
    CHECK(d.space.zone_at(d.a.ranges[r].address) == where);
  }
  range_ref const v = d.space.find_view(d.a, 4_MiB, 2_MiB);
  REQUIRE(v != 0);
  CHECK(d.a.ranges[v].address >= divided::base + divided::bytes / 2);
}

TEST_CASE("address_space::put makes a range available again and coalesces holes", "[pool][address_space]") {
  divided d;
  zone const where = zone::larger;
  range_ref const x = d.home(where, 40_MiB), y = d.home(where, 40_MiB), z = d.home(where, 48_MiB);
  REQUIRE((x != 0 && y != 0 && z != 0));
  CHECK(d.a.ranges[x].end() <= d.a.ranges[y].address);
  CHECK(d.a.ranges[y].end() <= d.a.ranges[z].address);
  CHECK(d.home(where, 2_MiB) == 0);
  d.space.put(d.a, x);
  CHECK(d.space.find_home(d.a, where, 42_MiB, 2_MiB) == 0);
  d.space.put(d.a, z);
  d.space.put(d.a, y);  // between two holes
  range_ref const all = d.space.find_home(d.a, where, 128_MiB, 2_MiB);
  REQUIRE(all != 0);
  CHECK(d.a.ranges[all].address == divided::base + 128_MiB * static_cast<std::size_t>(where));
}

TEST_CASE("address_space::put returns a range to the zone of its address, not its current zone",
          "[pool][address_space]") {
  divided d;
  range_ref const r = d.home(zone::larger, 128_MiB);
  d.a.ranges[r].where = zone::smaller;
  d.space.put(d.a, r);
  CHECK(d.space.find_home(d.a, zone::larger, 128_MiB, 2_MiB) != 0);
}
