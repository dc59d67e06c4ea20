// SPDX-License-Identifier: Apache-2.0
#include "tarn/core/clock.hpp"

#include <ctime>

#include "catch.hpp"

TEST_CASE("steady_now_ns never decreases, and now_since_1970_ns is the date", "[core][clock]") {
  std::uint64_t before = tarn::detail::steady_now_ns();
  for (int i = 0; i < 1000; ++i) {
    std::uint64_t const now = tarn::detail::steady_now_ns();
    REQUIRE(now >= before);
    before = now;
  }
  constexpr std::uint64_t second = 1'000'000'000;
  auto const from = static_cast<std::uint64_t>(std::time(nullptr));
  std::uint64_t const date = tarn::detail::now_since_1970_ns() / second;
  auto const to = static_cast<std::uint64_t>(std::time(nullptr));
  CHECK(date + 1 >= from);
  CHECK(date <= to + 1);
}
