// SPDX-License-Identifier: Apache-2.0
#include "tarn/source/host_memory.hpp"

#include "catch.hpp"
#include "contract/resource_contract.hpp"

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
