// SPDX-License-Identifier: Apache-2.0
#include "tarn/debug/fill_pattern.hpp"

#include <vector>

#include "catch.hpp"
#include "tarn/driver/no_driver.hpp"

using namespace tarn;

TEST_CASE("first_difference returns the offset of the first different byte", "[policy][fill_pattern]") {
  no_driver const driver;
  std::vector<unsigned char> bytes(2000);
  CHECK(detail::fill_in_order(driver, {}, bytes.data(), pattern::fence, bytes.size()).ok());
  CHECK(detail::first_difference(driver, {}, bytes.data(), pattern::fence, 2000) == 2000);
  CHECK(detail::first_difference(driver, {}, bytes.data(), pattern::fence, 0) == 0);
  for (std::size_t const at : {0, 1, 511, 512, 1023, 1999}) {
    bytes[at] = 0;
    CHECK(detail::first_difference(driver, {}, bytes.data(), pattern::fence, 2000) == at);
    CHECK(detail::first_difference(driver, {}, bytes.data(), pattern::fence, at) == at);
    bytes[at] = pattern::fence;
  }
}

TEST_CASE("pattern values are all different", "[policy][fill_pattern]") {
  CHECK(pattern::fence != pattern::freed);
  CHECK(pattern::fence != pattern::uninitialised);
  CHECK(pattern::freed != pattern::uninitialised);
}
