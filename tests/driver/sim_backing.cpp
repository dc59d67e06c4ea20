// SPDX-License-Identifier: Apache-2.0
// Where simulated addresses come from.

#include "tarn/driver/sim/sim_backing.hpp"

#include "catch.hpp"

using namespace tarn;

TEST_CASE("sim_backing takes free ranges by best fit and coalesces them", "[driver][sim][backing]") {
  detail::sim_ranges ranges;
  std::uintptr_t at = 0;
  CHECK_FALSE(ranges.take(1, 1, at));
  ranges.give(1000, 100);
  ranges.give(2000, 50);
  REQUIRE(ranges.take(50, 1, at));
  CHECK(at == 2000);  // exact fit
  REQUIRE(ranges.take(64, 64, at));
  CHECK(at == 1024);
  CHECK_FALSE(ranges.take(64, 1, at));
  CHECK_FALSE(ranges.take(20, 512, at));  // 24 are free, but not at a suitable place
  ranges.give(1024, 64);
  REQUIRE(ranges.take(100, 1, at));
  CHECK(at == 1000);
}
