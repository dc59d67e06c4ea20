// SPDX-License-Identifier: Apache-2.0
// The containers of a pool's metadata: sequence, address_map, owned, counted, sort, extremes.

#include <algorithm>
#include <functional>
#include <map>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "tarn/core/address_map.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/owned.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/core/sort.hpp"

using namespace tarn::detail;

namespace {

/// Counts live objects.
struct witness {
  inline static int alive = 0;
  int value = 0;
  witness() { ++alive; }
  explicit witness(int v) : value(v) { ++alive; }
  witness(witness&& other) noexcept : value(std::exchange(other.value, -1)) { ++alive; }
  witness& operator=(witness&& other) noexcept {
    value = std::exchange(other.value, -1);
    return *this;
  }
  ~witness() { --alive; }
};

}  // namespace

TEST_CASE("sequence keeps its elements and their order while it grows", "[core][sequence]") {
  sequence<std::string> texts;
  std::vector<std::string> reference;
  CHECK(texts.empty());
  CHECK(texts.begin() == texts.end());
  for (int i = 0; i < 1000; ++i) {
    texts.push_back("a text that is too long for the small buffer: " + std::to_string(i));
    reference.push_back("a text that is too long for the small buffer: " + std::to_string(i));
  }
  CHECK(std::equal(texts.begin(), texts.end(), reference.begin(), reference.end()));
  CHECK(texts.front() == reference.front());
  CHECK(texts.back() == reference.back());
  texts.pop_back();
  CHECK(texts.size() == 999);
  texts.resize(1001);
  CHECK(texts[998] == reference[998]);
  CHECK(texts[999].empty());
  sequence<std::string> moved = std::move(texts);
  CHECK(moved.size() == 1001);
  moved = sequence<std::string>();
  CHECK(moved.empty());
}

TEST_CASE("sequence push_back within capacity does not allocate", "[core][sequence]") {
  sequence<int> numbers;
  numbers.reserve(100);
  int const* const place = numbers.begin();
  std::size_t const room = numbers.capacity();
  CHECK(room >= 100);
  for (int i = 0; i < 100; ++i) numbers.push_back(i);
  CHECK(numbers.begin() == place);
  CHECK(numbers.capacity() == room);
  numbers.clear();
  CHECK(numbers.capacity() == room);
  CHECK(numbers.empty());
}

TEST_CASE("sequence destroys each element once", "[core][sequence]") {
  {
    sequence<witness> all;
    for (int i = 0; i < 10; ++i) all.push_back(witness(i));
    CHECK(witness::alive == 10);
    all.erase_unordered(3);
    CHECK(all[3].value == 9);
    all.erase_unordered(8);
    CHECK(all.back().value == 7);
    CHECK(witness::alive == 8);
    sequence<witness> other;
    other.push_back(witness(42));
    other = std::move(all);
    CHECK(witness::alive == 8);
    other.clear();
    CHECK(witness::alive == 0);
    other.resize(3);
    CHECK(witness::alive == 3);
  }
  CHECK(witness::alive == 0);
}

TEST_CASE("address_map finds inserted entries for any distance of keys", "[core][address_map]") {
  struct block {
    std::size_t bytes = 0;
    std::size_t alignment = 0;
    bool operator==(block const&) const = default;
  };
  std::uintptr_t const step =
      GENERATE(std::uintptr_t{1}, std::uintptr_t{256}, std::uintptr_t{1} << 21, std::uintptr_t{1} << 44);
  address_map<block> map;
  std::map<std::uintptr_t, block> reference;
  std::mt19937 random(3);
  for (int i = 0; i < 20000; ++i) {
    std::uintptr_t const key = random() % 2000 * step;
    if (random() % 2 == 0) {
      map.make_room(1);
      block const value{1 + random() % 100, 256};
      map.insert(key, value);
      reference[key] = value;
    } else {
      auto const known = reference.find(key);
      block const expected = known != reference.end() ? known->second : block{};
      REQUIRE(map.find(key) == expected);
      REQUIRE(map.erase(key) == expected);
      if (known != reference.end()) reference.erase(known);
    }
    REQUIRE(map.size() == reference.size());
  }
  std::map<std::uintptr_t, block> seen;
  map.for_each([&](std::uintptr_t key, block value) { seen[key] = value; });
  CHECK(seen == reference);
}

TEST_CASE("address_map make_room reserves memory for that many entries", "[core][address_map]") {
  address_map<bool> map;
  map.make_room(1000);
  std::size_t const bytes = map.host_bytes();
  for (std::uintptr_t key = 1; key <= 1000; ++key) map.insert(key * 16, true);
  CHECK(map.host_bytes() == bytes);
  CHECK(map.size() == 1000);
}

TEST_CASE("owned deletes its object once", "[core][owned]") {
  {
    owned<witness> none;
    CHECK(none.get() == nullptr);
    owned first(new witness(1));
    owned second(new witness(2));
    CHECK(witness::alive == 2);
    second = std::move(first);
    CHECK(witness::alive == 1);
    CHECK(first.get() == nullptr);
    CHECK(second->value == 1);
    owned third(std::move(second));
    CHECK((*third).value == 1);
    auto& same = third;
    third = std::move(same);
    CHECK(third->value == 1);
    CHECK(witness::alive == 1);
  }
  CHECK(witness::alive == 0);
}

TEST_CASE("counted deletes its object with the last owner, on any thread", "[core][counted]") {
  {
    counted<witness> first;
    counted<witness> second(first);
    CHECK(first.get() == second.get());
    counted<witness> other;
    CHECK(witness::alive == 2);
    other = second;
    CHECK(witness::alive == 1);
    auto& same = other;
    other = same;
    other->value = 5;
    CHECK(first->value == 5);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([mine = first] {
        for (int i = 0; i < 1000; ++i) {
          counted<witness> const copy(mine);
          (void)copy;
        }
      });
    }
    for (std::thread& t : threads) t.join();
    CHECK(witness::alive == 1);
  }
  CHECK(witness::alive == 0);
}

TEST_CASE("sort orders any number of elements", "[core][sort]") {
  std::mt19937 random(4);
  for (std::size_t count = 0; count < 200; ++count) {
    std::vector<unsigned> numbers(count);
    for (unsigned& n : numbers) n = static_cast<unsigned>(random() % 50);
    std::vector<unsigned> expected = numbers;
    std::sort(expected.begin(), expected.end(), std::greater<>());
    sort(numbers.data(), numbers.size(), [](unsigned a, unsigned b) { return a > b; });
    REQUIRE(numbers == expected);
  }
}

TEST_CASE("min_of and max_of return either argument when they are equal", "[core][min_max]") {
  static_assert(max_of(1, 2) == 2 && max_of(2, 1) == 2 && max_of(3, 3) == 3);
  static_assert(min_of(1, 2) == 1 && min_of(2, 1) == 1 && min_of(3, 3) == 3);
  CHECK(max_of(std::size_t{0}, ~std::size_t{0}) == ~std::size_t{0});
}

TEST_CASE("exchange gives an object a new value and returns the old one", "[core][min_max]") {
  std::size_t n = 3;
  CHECK(exchange(n, 4) == 3);
  CHECK(n == 4);
  sequence<std::uint64_t> numbers, none;
  numbers.push_back(std::uint64_t{7});
  sequence<std::uint64_t> const taken = exchange(numbers, static_cast<sequence<std::uint64_t>&&>(none));
  CHECK(taken.size() == 1);
  CHECK(numbers.empty());
}

TEST_CASE("sequence throws bad_alloc if the bytes overflow, and keeps its elements", "[core][sequence]") {
  sequence<std::uint64_t> numbers;
  numbers.push_back(std::uint64_t{7});
  std::size_t const too_many[] = {~std::size_t{0}, ~std::size_t{0} / 8 + 1, ~std::size_t{0} / 8 + 2,
                                  std::size_t{1} << 61, (std::size_t{1} << 61) + 1};
  for (std::size_t const count : too_many) {
    CHECK_THROWS_AS(numbers.reserve(count), std::bad_alloc);
    CHECK_THROWS_AS(numbers.resize(count), std::bad_alloc);
    REQUIRE(numbers.size() == 1);
    CHECK(numbers[0] == 7);
  }
}

TEST_CASE("address_map make_room throws bad_alloc if the entries overflow", "[core][address_map]") {
  address_map<std::uint64_t> map;
  map.make_room(1);
  map.insert(5, 6);
  for (std::size_t const count :
       {~std::size_t{0}, ~std::size_t{0} / 2, std::size_t{1} << 62, std::size_t{1} << 58})
    CHECK_THROWS_AS(map.make_room(count), std::bad_alloc);
  CHECK(map.find(5) == 6);
}
