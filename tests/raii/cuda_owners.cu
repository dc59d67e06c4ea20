// SPDX-License-Identifier: Apache-2.0
// Owners and guards on two CUDA devices: copies between the devices, and the current device.

#include <cstdint>
#include <numeric>
#include <vector>

#include "catch.hpp"
#include "contract/cuda_device.hpp"
#include "tarn/tarn.hpp"

using namespace tarn;
using tarn_test::has_cuda_devices;
using tarn_test::keep_busy;

namespace {

using elements = std::vector<std::uint32_t>;

elements counted(std::size_t n) {
  elements e(n);
  std::iota(e.begin(), e.end(), 1U);
  return e;
}

/// Copies back and forth between a memory of device 0 and one of device 1, with the source's stream busy.
template <class Near, class Far>
void travels(Near near, Far far) {
  basic_stream<cuda_driver> const a{cuda_driver{device_id{0}}};
  basic_stream<cuda_driver> const b{cuda_driver{device_id{1}}};
  elements const original = counted(1 << 20);
  for (int const now : {0, 1}) {
    device_guard const guard{device_id{now}};
    auto from = make_device_buffer<std::uint32_t>(near, std::span<std::uint32_t const>(original), a);
    auto to = make_device_buffer<std::uint32_t>(far, original.size(), b);
    to.zero();
    {
      device_guard const launcher{device_id{0}};
      REQUIRE(keep_busy(a, 30));
    }
    to.copy_from(from);
    from.zero();  // ordered after the copy, which is on the other device's stream
    elements back(original.size());
    to.copy_to_sync(back);
    CHECK(back == original);
    from.copy_from(to);
    to.reset();
    from.copy_to_sync(back);
    CHECK(back == original);
    CHECK_THROWS_AS(from.copy_from(make_device_buffer<std::uint32_t>(far, 5, b)), length_error);
  }
  CHECK(cudaGetLastError() == cudaSuccess);
}

}  // namespace

TEST_CASE("device_buffer copies between pools on two CUDA devices are ordered",
          "[raii][device_buffer][cuda]") {
  if (!has_cuda_devices(2)) return;
  travels(device_pool{cuda_pages{device_id{0}}}, device_pool{cuda_pages{device_id{1}}});
}
TEST_CASE("device_buffer copies between other sources on two CUDA devices are ordered",
          "[raii][device_buffer][cuda]") {
  if (!has_cuda_devices(2)) return;
  SECTION("cudaMalloc") {
    travels(cuda_malloc{device_id{0}}, cuda_malloc{device_id{1}});
  }
  SECTION("cudaMallocAsync") {
    travels(cuda_async{device_id{0}}, cuda_async{device_id{1}});
  }
  SECTION("pages and cudaMalloc") {
    travels(device_pool{cuda_pages{device_id{0}}}, cuda_malloc{device_id{1}});
  }
  SECTION("pages and cudaMallocAsync") {
    travels(device_pool{cuda_pages{device_id{0}}}, cuda_async{device_id{1}});
  }
  SECTION("pinned and pages") {
    travels(pinned_host{device_id{0}}, device_pool{cuda_pages{device_id{1}}});
  }
  SECTION("managed") {
    travels(managed{device_id{0}}, managed{device_id{1}});
  }
}

TEST_CASE("default_stream of a device that does not exist throws no_device", "[raii][stream][cuda]") {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess) devices = 0;
  (void)cudaGetLastError();
  for (int const missing : {-1, devices, devices + 256}) {
    try {
      (void)default_stream(device_id{missing});
      FAIL("must not succeed");
    } catch (cuda_error const& error) {
      CHECK(error.kind() == failure::no_device);
      CHECK(error.code() == static_cast<int>(cudaErrorInvalidDevice));
      CHECK(error.device() == missing);
    }
  }
  for (int i = 0; i < devices; ++i) CHECK(default_stream(device_id{i}).id() != stream_ref::unknown_id);
}

TEST_CASE("device_guard changes CUDA's current device and restores it", "[raii][device_guard][cuda]") {
  if (!has_cuda_devices(2)) return;
  auto const current = [] {
    int device = -1;
    CHECK(cudaGetDevice(&device) == cudaSuccess);
    return device;
  };
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  try {
    device_guard const outer{device_id{1}};
    CHECK(current() == 1);
    {
      device_guard const inner{device_id{0}};
      CHECK(current() == 0);
    }
    CHECK(current() == 1);
    CHECK_THROWS_AS(device_guard{device_id{1000}}, cuda_error);
    CHECK(current() == 1);
    throw 0;
  } catch (int) {
  }
  CHECK(current() == 0);
  CHECK(cudaGetLastError() == cudaSuccess);
}
