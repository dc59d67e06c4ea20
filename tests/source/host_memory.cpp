// SPDX-License-Identifier: Apache-2.0
#include "tarn/source/host_memory.hpp"

#include <cstdlib>
#include <string>

#include "catch.hpp"
#include "contract/resource_contract.hpp"
#include "tarn/policy/pooled.hpp"

using namespace tarn;

static_assert(resource<host_memory>);

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

namespace {
/// Host memory that is never more aligned than default_alignment.
struct offset_calls {
  using properties = property_set<host_accessible>;
  static status take(no_driver const&, std::size_t bytes, std::size_t, void*& p) noexcept {
    auto* const whole =
        static_cast<char*>(std::aligned_alloc(max_alignment, align_up(bytes + 256, max_alignment)));
    if (whole == nullptr) return {failure::out_of_memory, 12, "ENOMEM", "aligned_alloc"};
    p = whole + 256;
    return {};
  }
  static status give(no_driver const&, void* p, std::size_t, std::size_t) noexcept {
    std::free(static_cast<char*>(p) - 256);
    return {};
  }
};
}  // namespace

TEST_CASE("pooled works over a host source that has no more than default_alignment",
          "[source][host_memory]") {
  auto memory = block_source<no_driver, offset_calls>{} | pooled{};
  for (std::size_t const bytes : {std::size_t{100}, std::size_t{2_MiB}, std::size_t{5_MiB}}) {
    void* const p = memory.allocate({}, bytes);
    CHECK(is_aligned(p, default_alignment));
    memory.deallocate({}, p, bytes);
  }
}

namespace {
/// Aligns blocks as cudaMalloc does: those of 2 MiB and more to 2 MiB, smaller ones to 256 bytes and not to
/// more. Counts its bytes.
struct counting_calls {
  using properties = property_set<host_accessible>;
  struct total {
    std::size_t* live;
    bool operator==(total const&) const = default;
  };
  total options;
  status take(no_driver const&, std::size_t bytes, std::size_t, void*& p) const noexcept {
    std::size_t const offset = bytes < max_alignment ? 256 : 0;
    auto* const whole =
        static_cast<char*>(std::aligned_alloc(max_alignment, align_up(bytes + offset, max_alignment)));
    if (whole == nullptr) return {failure::out_of_memory, 12, "ENOMEM", "aligned_alloc"};
    p = whole + offset;
    *options.live += bytes;
    return {};
  }
  status give(no_driver const&, void* p, std::size_t bytes, std::size_t) const noexcept {
    std::free(static_cast<char*>(p) - (bytes < max_alignment ? 256 : 0));
    *options.live -= bytes;
    return {};
  }
};
}  // namespace

TEST_CASE("block_source gives back the size that it took", "[source][host_memory]") {
  std::size_t live = 0;
  block_source<no_driver, counting_calls> memory(no_driver{}, counting_calls{{&live}});
  for (std::size_t const bytes : {std::size_t{100}, std::size_t{2_MiB} - 1, std::size_t{3_MiB} + 5}) {
    for (std::size_t alignment = 1; alignment <= max_alignment; alignment *= 4) {
      void* const p = memory.allocate({}, bytes, alignment);
      CHECK(is_aligned(p, alignment));
      CHECK(live == (alignment <= 256 || bytes > max_alignment ? bytes : max_alignment));
      memory.deallocate({}, p, bytes, alignment);
      CHECK(live == 0);
      memory.deallocate_sync(memory.allocate_sync(bytes, alignment), bytes, alignment);
      CHECK(live == 0);
    }
  }
}
