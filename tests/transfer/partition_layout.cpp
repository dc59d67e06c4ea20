// SPDX-License-Identifier: Apache-2.0

#include "tarn/transfer/partitioned_buffer.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string_view>
#include <vector>

#include "catch.hpp"

using namespace tarn;

namespace {

/// True if the parts are contiguous, begin at multiples of step and cover everything.
bool is_sound(partition_layout const& p, std::size_t count, std::size_t parts, std::size_t step) {
  bool sound = p.size() == count && p.parts() == parts && p.first(0) == 0;
  std::size_t at = 0;
  for (std::size_t i = 0; i < parts; ++i) {
    sound = sound && p.first(i) == at && (p.first(i) % step == 0 || p.first(i) == count);
    at += p.size(i);
  }
  return sound && at == count;
}

constexpr std::size_t most = std::numeric_limits<std::size_t>::max();

}  // namespace

TEST_CASE("partition_layout::even makes parts that differ by at most one step", "[raii][partition]") {
  unsigned wrong = 0;
  for (std::size_t parts = 1; parts < 9; ++parts) {
    for (std::size_t step : {1U, 2U, 7U, 64U}) {
      for (std::size_t count = 0; count < 300; ++count) {
        auto const p = partition_layout::even(count, parts, step);
        std::size_t least = most;
        std::size_t largest = 0;
        for (std::size_t i = 0; i < parts; ++i) {
          std::size_t const steps = p.size(i) / step + (p.size(i) % step != 0 ? 1 : 0);
          least = std::min(least, steps);
          largest = std::max(largest, steps);
        }
        if (!is_sound(p, count, parts, step) || largest - least > 1) ++wrong;
      }
    }
  }
  CHECK(wrong == 0);
  CHECK(partition_layout::even(10, 3).size(0) == 4);
  CHECK(is_sound(partition_layout::even(most, 5, 1000), most, 5, 1000));
  CHECK(is_sound(partition_layout::even(most, 3, most), most, 3, most));
}

TEST_CASE("partition_layout::weighted gives each part its share within a step", "[raii][partition]") {
  std::mt19937 random(11);
  unsigned wrong = 0;
  for (int round = 0; round < 2000; ++round) {
    std::vector<double> weights(1 + random() % 6);
    for (double& w : weights) w = random() % 4 == 0 ? 0.0 : static_cast<double>(random() % 1000) / 7;
    double total = 0;
    for (double const w : weights) total += w;
    if (!(total > 0)) continue;
    std::size_t const step = 1 + random() % 20;
    std::size_t const count = random() % 10'000;
    auto const p = partition_layout::weighted(count, weights, step);
    if (!is_sound(p, count, weights.size(), step)) ++wrong;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      double const share = static_cast<double>(count) * weights[i] / total;
      if (std::fabs(static_cast<double>(p.size(i)) - share) > 1.5 * static_cast<double>(step)) ++wrong;
      if (weights[i] == 0 && i + 1 < weights.size() && p.size(i) != 0) ++wrong;
    }
  }
  CHECK(wrong == 0);
  std::vector<double> const three{1, 3, 1e-300};
  CHECK(partition_layout::weighted(100, three).size(1) == 75);
  CHECK(is_sound(partition_layout::weighted(most, three), most, 3, 1));
  std::vector<double> const first_only{1, 0};
  CHECK(partition_layout::weighted(most, first_only).size(0) == most);
}

TEST_CASE("partition_layout::weighted divides large counts to the step, and by weights of any size",
          "[raii][partition]") {
  using list = std::vector<double>;
  for (double const weight : {1e308, 5e-324, 1.0}) {
    CHECK(partition_layout::weighted(10, list{weight, weight}).size(0) == 5);
    CHECK(partition_layout::weighted(10, list{weight, 0, weight, weight, weight, weight}).size(5) == 2);
  }
  if (std::numeric_limits<long double>::digits < 64) return;
  std::size_t const large = std::size_t{1} << 60;
  auto const thirds = partition_layout::weighted(large, list{1, 1, 1});
  for (std::size_t i = 0; i < 3; ++i) CHECK((thirds.size(i) == large / 3 || thirds.size(i) == large / 3 + 1));
  CHECK(partition_layout::weighted(large + 1, list{1, 3}).size(0) == large / 4);
}

TEST_CASE("partition part_of returns the part that contains the element", "[raii][partition]") {
  std::vector<double> const weights{0, 2, 0, 0, 5, 1, 0};
  auto const p = partition_layout::weighted(97, weights);
  for (std::size_t i = 0; i < p.size(); ++i) {
    std::size_t const part = p.part_of(i);
    REQUIRE(part < p.parts());
    CHECK((p.first(part) <= i && i < p.first(part) + p.size(part)));
  }
  CHECK(p == partition_layout::weighted(97, weights));
  CHECK_FALSE(p == partition_layout::even(97, 7));
}

TEST_CASE("partition refuses invalid arguments with a message", "[raii][partition]") {
  CHECK_THROWS_AS(partition_layout::even(10, 0), bad_partition);
  CHECK_THROWS_AS(partition_layout::even(10, ~std::size_t{0}), bad_partition);
  CHECK_THROWS_AS(partition_layout::even(10, 2, 0), bad_partition);
  using list = std::vector<double>;
  for (auto const& weights :
       {list{}, list{0, 0}, list{1, -1}, list{1, NAN}, list{INFINITY, 1}, list{-INFINITY, 1}})
    CHECK_THROWS_AS(partition_layout::weighted(10, weights), bad_partition);
  try {
    (void)partition_layout::weighted(10, list{1, NAN});
  } catch (bad_partition const& error) {
    CHECK(std::string_view(error.what()).find("a weight must be a finite number of at least 0") !=
          std::string_view::npos);
  }
  try {
    (void)partition_layout::even(10, 0);
  } catch (bad_partition const& error) {
    CHECK(std::string_view(error.what()).find("at least one part") != std::string_view::npos);
  }
}
