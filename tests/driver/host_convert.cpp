// SPDX-License-Identifier: Apache-2.0

#include "tarn/transfer/convert.hpp"

#include <string_view>

#include "catch.hpp"

using namespace tarn;

TEST_CASE("host_convert converts immediately and refuses null", "[driver][no_driver]") {
  float const from[] = {1.0F, -2.5F, 1e9F};
  float8_e4m3 to[4] = {};
  no_driver const driver;
  REQUIRE(driver.convert(stream_ref{}, to, from, 3).ok());
  CHECK(to[0].bits() == 0x38);
  CHECK(to[1].bits() == 0xc2);
  CHECK(to[2].bits() == 0x7e);
  CHECK(to[3].bits() == 0);
  float8_e4m3* const nowhere = nullptr;
  status const s = driver.convert(stream_ref{}, nowhere, from, 3);
  CHECK(s.code == 1);
  CHECK(std::string_view(s.call) == "convert");
  CHECK_FALSE(driver.convert(stream_ref{}, to, static_cast<float const*>(nullptr), 3).ok());
  CHECK(driver.convert(stream_ref{}, nowhere, from, 0).ok());
}
