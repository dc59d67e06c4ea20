// SPDX-License-Identifier: Apache-2.0
#include "tarn/debug/history_log.hpp"

#include <cstdint>
#include <vector>

#include "catch.hpp"

using namespace tarn;
using tarn::detail::call_origin;
using tarn::detail::location_table;

namespace {

constexpr char const* file = "some file";

/// The key that location_table computes from a line and frames; lets a test choose a last frame that makes
/// two keys collide.
std::uint64_t mixed(int line, std::vector<std::uintptr_t> const& frames) {
  auto hash = static_cast<std::uint64_t>(line);
  auto const mix = [&hash](std::uintptr_t bits) {
    hash = (hash ^ bits) * 0x9E3779B97F4A7C15U;
    hash ^= hash >> 32;
  };
  mix(reinterpret_cast<std::uintptr_t>(file));
  for (std::uintptr_t const f : frames) mix(f);
  return hash;
}
call_origin origin(int line, std::vector<void*> const& frames) {
  call_origin o;
  o.where = {file, line, "some function"};
  for (void* const f : frames) o.frames[o.depth++] = f;
  return o;
}
void* at(std::uintptr_t bits) {
  return reinterpret_cast<void*>(bits);
}

}  // namespace

TEST_CASE("location_table distinguishes origins with equal keys by line and by each frame",
          "[policy][with_history]") {
  location_table places;
  std::vector<void*> const a{at(0x1000), at(0x2000)};
  std::vector<void*> const b{at(0x3000), at(mixed(7, {0x1000}) ^ mixed(7, {0x3000}) ^ 0x2000)};
  std::vector<void*> const c{at(0x1000), at(mixed(7, {0x1000}) ^ mixed(8, {0x1000}) ^ 0x2000)};
  REQUIRE(mixed(7, {0x1000, 0x2000}) == mixed(7, {0x3000, reinterpret_cast<std::uintptr_t>(b[1])}));
  REQUIRE(mixed(7, {0x1000, 0x2000}) == mixed(8, {0x1000, reinterpret_cast<std::uintptr_t>(c[1])}));
  CHECK(places.number_of(origin(7, a), 10) == 1);
  CHECK(places.number_of(origin(7, b), 10) == 2);
  CHECK(places.number_of(origin(8, c), 10) == 3);
  CHECK(places.number_of(origin(7, a), 10) == 1);
  CHECK(places.number_of(origin(7, b), 10) == 2);
  CHECK(places.number_of(origin(8, c), 10) == 3);
  CHECK(places.locations().size() == 3);
  CHECK(places.frames().size() == 6);
}

TEST_CASE("location_table::number_of adds no place beyond the limit and still finds known ones",
          "[policy][with_history]") {
  location_table places;
  std::vector<void*> const none;
  CHECK(places.number_of(origin(1, none), 2) == 1);
  CHECK(places.number_of(origin(2, none), 2) == 2);
  CHECK(places.number_of(origin(3, none), 2) == 0);
  CHECK(places.number_of(origin(2, none), 2) == 2);
  CHECK(places.number_of(origin(0, none), 2) == 0);  // an unknown origin
}
