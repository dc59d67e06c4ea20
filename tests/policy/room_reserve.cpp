// SPDX-License-Identifier: Apache-2.0
#include "tarn/policy/room_reserve.hpp"

#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "catch.hpp"

using tarn::detail::room_answer;
using tarn::detail::room_pairs;
using tarn::detail::room_request;
using tarn::detail::room_reserve;
using tarn::detail::room_reserves;
using tarn::detail::tracked_kinds;
using tarn::detail::tracked_room;

namespace {
constexpr std::size_t small = 0;
constexpr std::size_t large = 1;

tracked_kinds each(std::int64_t amount) {
  return {amount, amount, amount};
}
/// A thread without room for either group.
room_request lacking(std::size_t group, std::int64_t amount) {
  return {group, each(amount), {}};
}
}  // namespace

TEST_CASE("room_reserve::take leaves half of what is left and lets the thread keep as much",
          "[policy][tracked]") {
  room_reserve reserve;
  reserve.set({{each(1000), each(0)}, {}});
  room_answer const a = reserve.take(lacking(small, 100));
  CHECK(a.allowance == each(500));
  CHECK(a.taken == each(100 + 250));
  CHECK(a.exchanged == each(0));
  CHECK(reserve.allowance(small) == each(325));
  reserve.give({{each(350), each(0)}, {}});
  CHECK(reserve.allowance(small) == each(500));
  CHECK(reserve.take(lacking(small, 2000)).taken == each(1000));
  CHECK(reserve.take(lacking(small, 1)).taken == each(0));
}

TEST_CASE("room_reserve::take gives a thread that has enough nothing more than it may keep",
          "[policy][tracked]") {
  room_reserve reserve;
  reserve.set({{each(1000), each(0)}, {}});
  room_answer const a = reserve.take({small, {1, -100, -900}, {}});
  CHECK(a.taken == tracked_kinds{251, 150, 0});
}

TEST_CASE("room_reserve::take exchanges the thread's room for the other group, then the reserve's",
          "[policy][tracked]") {
  room_reserve reserve;
  reserve.set({{each(10), each(50)}, {each(80), each(7)}});
  room_request r = lacking(small, 100);
  r.other = each(30);
  room_answer const a = reserve.take(r);
  CHECK(a.exchanged == each(30));
  CHECK(a.taken == each(10 + 30 + 50));  // all that there is of unpaired small room
  // What was unpaired room for large blocks before, and what the exchange of the reserve's own room left.
  CHECK(reserve.take(lacking(large, 1)).taken == each(0));
  reserve.give({{each(90), each(0)}, {}});
  CHECK(reserve.take(large, 1, 1000) == 57);
  CHECK(reserve.take(large, 1, 1000) == 0);
  CHECK(reserve.take(small, 1, 1000) == 33);
}

TEST_CASE("room_reserve::give_less makes threads take less until many have taken", "[policy][tracked]") {
  room_reserve reserve;
  reserve.set({{each(1 << 20), each(0)}, {}});
  CHECK(reserve.allowance(small) == each(1 << 19));
  reserve.give_less();
  CHECK(reserve.allowance(small) == each(1 << 17));
  for (int i = 0; i < 100; ++i) reserve.give_less();
  CHECK(reserve.allowance(small) == each(0));
  int takes = 0;
  for (; reserve.allowance(small) != each(1 << 19); ++takes) {
    REQUIRE(takes < 100'000);
    reserve.give({{reserve.take(lacking(small, 1)).taken, each(0)}, {}});
  }
  CHECK(takes > 10'000);
}

TEST_CASE("room_reserves::take collects room from all reserves", "[policy][tracked]") {
  for (unsigned const threads : {1U, 2U, 7U, 16U, 32U}) {
    CAPTURE(threads);
    room_reserves reserves;
    reserves.set(threads, {{each(1001), each(0)}, {}});
    for (unsigned place = 0; place < 32; place += 5) {
      room_request r = lacking(small, 1001);
      tracked_kinds sum{};
      reserves.take(place, r, [&](room_answer const& a) {
        for (std::size_t k = 0; k < 3; ++k) sum[k] += a.taken[k];
      });
      CHECK(sum == each(1001));
      CHECK(r.lacking == each(0));
      reserves.give(place, small, [](tracked_kinds const&) { return room_pairs{{each(1001), each(0)}, {}}; });
    }
    CHECK(reserves.take(small, 1, 2000) == 1001);
  }
}

TEST_CASE("room_reserves keeps the sum of each kind of room while threads take, give and exchange",
          "[policy][tracked][threads]") {
  constexpr std::int64_t paired = 100'000;
  constexpr std::int64_t unpaired = 50'000;
  for (unsigned const sharers : {2U, 8U}) {
    CAPTURE(sharers);
    room_reserves reserves;
    reserves.set(sharers, {{each(paired), each(paired)}, {each(unpaired), each(unpaired)}});
    std::vector<room_pairs> has(4);
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937 random(t);
        tracked_room& mine = has[t].paired;
        tracked_room& rest = has[t].unpaired;
        for (int i = 0; i < 20'000; ++i) {
          std::size_t const g = random() % 2;
          if (random() % 2 == 0) {
            auto const amount = static_cast<std::int64_t>(random() % 40'000);
            room_request r{g, {}, mine[1 - g]};
            for (std::size_t k = 0; k < 3; ++k) r.lacking[k] = amount - mine[g][k];
            reserves.take(t, r, [&](room_answer const& a) {
              for (std::size_t k = 0; k < 3; ++k) {
                mine[g][k] += a.taken[k];
                mine[1 - g][k] -= a.exchanged[k];
                rest[1 - g][k] += a.exchanged[k];
              }
            });
          } else {
            reserves.give(t, g, [&](tracked_kinds const&) {
              room_pairs spare{{}, rest};
              rest = {};
              for (std::size_t k = 0; k < 3; ++k) {
                spare.paired[g][k] = mine[g][k] / 2;
                mine[g][k] -= spare.paired[g][k];
              }
              return spare;
            });
          }
        }
      });
    }
    for (std::thread& t : threads) t.join();
    bool negative = false;
    for (room_pairs const& room : has) {
      for (std::size_t g = 0; g < 2; ++g) {
        for (std::size_t k = 0; k < 3; ++k) negative = negative || room.paired[g][k] < 0;
      }
      reserves.give(0, small, [&](tracked_kinds const&) { return room; });
    }
    CHECK_FALSE(negative);
    // Room below the peak of all, then of each group: as much as before.
    std::int64_t const small_room = reserves.take(small, 1, 1'000'000);
    std::int64_t const large_room = reserves.take(large, 1, 1'000'000);
    CHECK(small_room + large_room == 2 * paired);
    if (sharers == 2) CHECK(small_room == paired + unpaired);  // one reserve: all room can be exchanged
  }
}
