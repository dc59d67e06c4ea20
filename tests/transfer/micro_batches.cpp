// SPDX-License-Identifier: Apache-2.0
#include "tarn/transfer/micro_batches.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <random>
#include <ranges>
#include <string_view>
#include <vector>

#include "catch.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/raii/budget_scope.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/sim.hpp"

using namespace tarn;

namespace {
constexpr std::size_t all = std::numeric_limits<std::size_t>::max();

/// Checks that each item is in one part, in order, that parts fit, and that their sizes differ by at most one
/// item.
void check_parts(micro_batches const& parts, std::size_t n, std::size_t most) {
  std::size_t next = 0, index = 0, smallest = all, largest = 0;
  double weight = 0;
  for (micro_batch const part : parts) {
    REQUIRE(part.first == next);
    REQUIRE(part.index == index++);
    REQUIRE(part.of == n);
    REQUIRE((part.count != 0 && part.count <= most));
    next += part.count;
    smallest = std::min(smallest, part.count);
    largest = std::max(largest, part.count);
    weight += part.weight();
  }
  REQUIRE(next == n);
  REQUIRE(index == parts.size());
  if (n == 0) return;
  REQUIRE(largest - smallest <= 1);
  REQUIRE(largest == parts.largest());
  REQUIRE(weight == Approx(1.0));
  REQUIRE(parts.size() == n / most + (n % most != 0));  // the minimum number of parts
}
}  // namespace

TEST_CASE("micro_batches makes the fewest even parts that fit the budget", "[raii][micro_batches]") {
  check_parts(micro_batches(10, 100, 399), 10, 3);
  check_parts(micro_batches(1, 1, 1), 1, 1);
  check_parts(micro_batches(1'000, 7, all), 1'000, 1'000);
  std::vector<std::size_t> counts;
  for (auto part : micro_batches(10, 100, 400)) counts.push_back(part.count);
  CHECK(counts == std::vector<std::size_t>{4, 3, 3});
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    std::size_t const n = random() % 300, item = random() % 50 + 1, budget = item + random() % 2000;
    check_parts(micro_batches(n, item, budget), n, budget / item);
  }
}

TEST_CASE("micro_batches does not overflow with large numbers", "[raii][micro_batches]") {
  micro_batches const halves(all, all / 2, all - 1);
  CHECK(halves.size() == all / 2 + 1);
  CHECK(halves.largest() == 2);
  CHECK(halves[halves.size() - 1].first + halves[halves.size() - 1].count == all);
  micro_batches const ones(all, all, all);
  CHECK(ones.size() == all);
  CHECK(ones[all - 1].first == all - 1);
  CHECK(micro_batches(all, 1, all).size() == 1);
  CHECK(micro_batches(all, 0, std::size_t{0}).size() == 1);
}

TEST_CASE("micro_batches makes no part of zero items, and one part of items of zero bytes",
          "[raii][micro_batches]") {
  micro_batches const none(0, 100, std::size_t{1});
  CHECK(none.empty());
  CHECK(none.largest() == 0);
  CHECK(none.begin() == none.end());
  check_parts(micro_batches(50, 0, std::size_t{0}), 50, 50);
}

TEST_CASE("micro_batches throws out_of_memory at once if an item is larger than the budget",
          "[raii][micro_batches]") {
  try {
    (void)micro_batches(10, 401, 400);
    FAIL("no exception was thrown");
  } catch (out_of_memory const& error) {
    CHECK(error.asked() == 401);
    CHECK(error.report().limit == 400);
    CHECK(std::string_view(error.what()).find("refused by the budget of micro_batches(400 B)") !=
          std::string_view::npos);
  }
  micro_batch_options const singly{.when_too_large = too_large_item::one_at_a_time};
  check_parts(micro_batches(10, 401, 400, singly), 10, 1);
}

TEST_CASE("micro_batches puts at most most_items items into a part", "[raii][micro_batches]") {
  check_parts(micro_batches(100, 1, 1'000, {.most_items = 32}), 100, 32);
  check_parts(micro_batches(100, 1, 8, {.most_items = 32}), 100, 8);
  check_parts(micro_batches(5, 1, 8, {.most_items = 0}), 5, 1);
}

TEST_CASE("micro_batches of a pool can be allocated one after the other", "[raii][micro_batches][pages]") {
  sim_options options;
  options.capacity = 100_MiB;
  options.taken = 0;
  options.backing = sim_backing::address_only;
  sim_machine const machine{options};
  sim_pool const memory{sim_pages{machine.driver()}};
  auto const weights = make_device_buffer<std::byte>(memory, 40_MiB, stream_ref{});
  micro_batches const parts(1'000, 1_MiB, memory);
  CHECK(parts.budget() == 57_MiB);  // of 60 MiB free
  check_parts(parts, 1'000, 57);
  for (auto part : parts) {
    auto const work = make_device_buffer<std::byte>(memory, part.count * 1_MiB, stream_ref{});
    CHECK(parts.size() == 18);  // fixed at construction, though less is free now
  }
  micro_batches const again(1'000, 1_MiB, memory, {.reserve_per_mille = 0});
  CHECK(again.budget() == 60_MiB);  // all cached memory counts
}

TEST_CASE("micro_batches takes the tightest limit as the budget, and out_of_memory reports it",
          "[raii][micro_batches]") {
  auto memory = sim_pages{} | pooled{} | limited{100_MiB};
  micro_batch_options const whole{.reserve_per_mille = 0};
  CHECK(micro_batches(100, 10_MiB, memory, whole).largest() == 10);
  budget_scope const budget{memory, 30_MiB};
  CHECK(micro_batches(99, 10_MiB, memory, whole).size() == 33);
  try {
    (void)micro_batches(100, 31_MiB, memory);
    FAIL("no exception was thrown");
  } catch (out_of_memory const& error) {
    CHECK(error.report().limit == 30_MiB);
    CHECK(error.report().device == 0);
    CHECK(std::string_view(error.report().refused_by) == "limited");
  }
  try {
    (void)micro_batches(100, 30_MiB, memory);
    FAIL("no exception was thrown");
  } catch (out_of_memory const& error) {
    CHECK(std::string_view(error.report().refused_by) == "the reserve of micro_batches");
    CHECK(error.report().limit < 30_MiB);
  }
  CHECK(micro_batches(100, 1_MiB, memory,
                      {.reserve_per_mille = 5'000, .when_too_large = too_large_item::one_at_a_time})
            .budget() == 0);
}

TEST_CASE("micro_batches is a forward range, and its iterators outlive it", "[raii][micro_batches]") {
  static_assert(std::forward_iterator<micro_batches::iterator>);
  static_assert(std::ranges::forward_range<micro_batches const>);
  auto it = micro_batches(4, 1, 2).begin();
  CHECK((*it++).first == 0);
  CHECK((*it).first == 2);
  std::size_t sum = 0;
  std::ranges::for_each(micro_batches(7, 1, 3), [&](micro_batch part) { sum += part.count; });
  CHECK(sum == 7);
}
