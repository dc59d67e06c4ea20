// SPDX-License-Identifier: Apache-2.0
// Plain host memory behind the driver contract.

#include "tarn/driver/no_driver.hpp"

#include <cstring>

#include "catch.hpp"
#include "driver/contract.hpp"

using namespace tarn;

static_assert(stream_driver<no_driver> && page_driver<no_driver> && block_driver<no_driver> &&
              registering_driver<no_driver>);

namespace {
struct host_bench {
  no_driver driver() { return {}; }
  bool keep_busy(stream_ref) { return false; }  // work is done when the call returns
  bool can_touch() { return true; }
};
}  // namespace

TEST_CASE("no_driver keeps the driver contract", "[driver][no_driver]") {
  test::driver_contract(host_bench{});
}

TEST_CASE("no_driver has no device", "[driver][no_driver]") {
  CHECK(no_driver{}.device() == device_id{-1});
  CHECK(no_driver{device_id{3}} == no_driver{});
}

TEST_CASE("no_driver refuses page calls by name", "[driver][no_driver]") {
  no_driver const driver;
  std::size_t bytes = 0;
  void* p = nullptr;
  page_handle handle{};
  status const refusals[] = {
      driver.page_granularity(bytes), driver.reserve_range(2_MiB, 2_MiB, p),
      driver.release_range(p, 2_MiB), driver.create_pages(2_MiB, handle),
      driver.destroy_pages(handle),   driver.map_pages(p, 2_MiB, handle),
      driver.unmap_pages(p, 2_MiB),
  };
  for (status const& s : refusals) CHECK(s.kind == failure::unsupported);
  CHECK(std::strcmp(refusals[3].call, "create_pages") == 0);
}

TEST_CASE("no_driver copies overlapping host ranges correctly", "[driver][no_driver]") {
  char text[] = "abcdef";
  REQUIRE(no_driver{}.copy({}, text + 1, text, 5).ok());
  CHECK(std::strcmp(text, "aabcde") == 0);
}
