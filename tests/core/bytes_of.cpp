// SPDX-License-Identifier: Apache-2.0
#include "tarn/core/bytes.hpp"

#include <cstdint>
#include <limits>

#include "catch.hpp"

using namespace tarn;

namespace {
constexpr std::size_t all = std::numeric_limits<std::size_t>::max();
}

TEST_CASE("bytes_of and items_in count by element type, also at compile time", "[core][bytes_of]") {
  static_assert(bytes_of<float>(10) == 40);
  static_assert(bytes_of<float, std::uint8_t>(std::size_t{3 * 224 * 224}, 1) == 602'113);
  static_assert(bytes_of<double, float, char>(0, 0, 0) == 0);
  static_assert(items_in<float>(43) == 10);
  static_assert(items_in<double>(7) == 0);
  static_assert(bytes_of<char>(max_request_bytes) == max_request_bytes);
  CHECK(items_in<std::uint16_t>(bytes_of<std::uint16_t>(12'345)) == 12'345);
}

TEST_CASE("bytes_of throws length_error if the bytes overflow", "[core][bytes_of]") {
  CHECK_THROWS_AS(bytes_of<float>(all), length_error);
  CHECK_THROWS_AS(bytes_of<double>(all / 8 + 1), length_error);
  CHECK_THROWS_AS(bytes_of<float>(max_request_bytes / 4 + 1), length_error);
  CHECK_THROWS_AS(bytes_of<char>(max_request_bytes + 1), length_error);
  CHECK_THROWS_AS(bytes_of<float>(-1), length_error);
}

TEST_CASE("bytes_of throws length_error if the sum overflows, though each term fits", "[core][bytes_of]") {
  CHECK(bytes_of<char, char>(max_request_bytes - 1, 1) == max_request_bytes);
  CHECK_THROWS_AS((bytes_of<char, char>(max_request_bytes, 1)), length_error);
  CHECK_THROWS_AS(
      (bytes_of<char, char, char, char, char, char>(max_request_bytes, max_request_bytes, max_request_bytes,
                                                    max_request_bytes, max_request_bytes, 8)),
      length_error);
}
