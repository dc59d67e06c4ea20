// SPDX-License-Identifier: Apache-2.0

#include "tarn/raii/device_guard.hpp"

#include <type_traits>

#include "catch.hpp"
#include "tarn/driver/sim_driver.hpp"

using namespace tarn;

namespace {
using guard = basic_device_guard<sim_driver>;

device_id current() {
  device_id now{-1};
  CHECK(sim_driver::current_device(now).ok());
  return now;
}
}  // namespace

TEST_CASE("a device guard restores the device of before", "[raii][device_guard]") {
  static_assert(!std::is_copy_constructible_v<guard> && !std::is_move_constructible_v<guard>);
  {
    guard const outer{device_id{1}};
    {
      guard const inner{device_id{2}};
      CHECK(current() == device_id{2});
      CHECK(inner.before() == device_id{1});
      guard const again{device_id{2}};
      CHECK(current() == device_id{2});
    }
    CHECK(current() == device_id{1});
  }
  CHECK(current() == device_id{0});
}

TEST_CASE("a device guard restores while an exception passes", "[raii][device_guard]") {
  try {
    guard const g{device_id{3}};
    throw 0;
  } catch (int) {
  }
  CHECK(current() == device_id{0});
}

TEST_CASE("a device that is not there is refused and changes nothing", "[raii][device_guard]") {
  guard const g{device_id{1}};
  CHECK_THROWS_AS(guard{device_id{-1}}, cuda_error);
  CHECK(current() == device_id{1});
}
