// SPDX-License-Identifier: Apache-2.0
#include "tarn/source/host_memory.hpp"

#include <string>

#include "catch.hpp"
#include "contract/resource_contract.hpp"
#include "tarn/policy/pooled.hpp"

using namespace tarn;

TEST_CASE("host_memory meets the resource contract", "[source][host_memory]") {
  tarn_test::resource_contract([] { return host_memory{}; });
}

TEST_CASE("host_memory honours every alignment up to the largest", "[source][host_memory]") {
  host_memory memory;
  for (std::size_t alignment = 1; alignment <= max_alignment; alignment *= 2) {
    void* const p = memory.allocate({}, 100, alignment);
    CHECK(is_aligned(p, alignment));
    memory.deallocate({}, p, 100, alignment);
  }
}

TEST_CASE("host_memory is accessible from the host only", "[source][host_memory]") {
  STATIC_REQUIRE(has_property<host_memory, host_accessible>);
  STATIC_REQUIRE(!has_property<host_memory, device_accessible>);
  CHECK(host_memory{}.device() == device_id{-1});
  CHECK(host_memory{} == host_memory{});
}

TEST_CASE("host_memory reports the call and no device in out_of_memory", "[source][host_memory]") {
  try {
    (void)host_memory{}.allocate_sync(1_TiB * 1024);
    FAIL("must not succeed");
  } catch (out_of_memory const& error) {
    CHECK(error.report().device == -1);
    CHECK(std::string_view(error.what()).find("operator new") != std::string_view::npos);
    CHECK(std::string_view(error.what()).find("on device") == std::string_view::npos);
  }
}

namespace {
/// A source of a user's that has no memory.
struct full_slab {
  using properties = property_set<host_accessible>;
  static status take(no_driver const&, std::size_t, std::size_t, void*&) noexcept {
    return {failure::out_of_memory, 12, "slab is full", "take_slot"};
  }
  static status give(no_driver const&, void*, std::size_t, std::size_t) noexcept { return {}; }
};
}  // namespace

TEST_CASE("out_of_memory has the reason that a user's source reports", "[source][errors]") {
  auto memory = block_source<no_driver, full_slab>{} | pooled{};
  try {
    (void)memory.allocate_sync(1000);
    FAIL("served");
  } catch (out_of_memory const& error) {
    CHECK(std::string(error.what()).find("refused by the host (take_slot: slab is full)") !=
          std::string::npos);
  }
}
