// SPDX-License-Identifier: Apache-2.0
// Tests on several GPUs: one pool per device, peer copies, peer access, partitioned buffers.

#include <cstdint>
#include <vector>

#include "catch.hpp"
#include "contract/across_devices.hpp"
#include "contract/cuda_device.hpp"
#include "tarn/policy/accessible_from.hpp"
#include "tarn/tarn.hpp"

using namespace tarn;
using tarn_test::has_cuda_devices;
using tarn_test::keep_busy;

namespace {

void busy(int device, stream_ref stream) {
  device_guard const guard{device_id{device}};
  REQUIRE(keep_busy(stream, 10));
}
bool reach_each_other() {
  bool yes = false;
  bool back = false;
  return cuda_driver{device_id{0}}.can_share(device_id{1}, yes).ok() &&
         cuda_driver{device_id{1}}.can_share(device_id{0}, back).ok() && yes && back;
}

/// A kernel of one device that modifies another device's memory in place.
__global__ void add_one(std::uint32_t* words, std::size_t count) {
  std::size_t const i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) ++words[i];
}

}  // namespace

TEST_CASE("per_device makes the pool of each GPU at its first use", "[raii][per_device][cuda]") {
  if (!has_cuda_devices()) return;
  per_device<device_pool> pools;
  CHECK(&pools.current() == &pools[device_id{0}]);
  CHECK(pools.size() == 1);
  CHECK_THROWS_AS(pools[device_id{100}], cuda_error);
  CHECK_THROWS_AS(pools[device_id{-1}], cuda_error);
  CHECK(cudaGetLastError() == cudaSuccess);
  if (!has_cuda_devices(2)) return;
  device_guard const guard{device_id{1}};
  CHECK(pools.current().device() == device_id{1});
  CHECK(pools.size() == 2);
}

TEST_CASE("cuda_driver reports a negative device as no_device", "[raii][per_device][cuda]") {
  if (!has_cuda_devices()) return;
  void* p = nullptr;
  CHECK(cuda_driver{device_id{-1}}.malloc_device(64, p).kind == failure::no_device);
  CHECK_THROWS_AS(cuda_pages{device_id{-1}}, cuda_error);
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("peer copies of pieces between GPUs are ordered, with and without peer access",
          "[raii][peer_copy][cuda]") {
  if (!has_cuda_devices(2)) return;
  device_pool const zero{cuda_pages{device_id{0}}};
  device_pool const one{cuda_pages{device_id{1}}};
  for (int const now : {0, 1}) {
    device_guard const guard{device_id{now}};
    tarn_test::pieces_travel(zero, one, busy);
    tarn_test::pieces_travel(one, zero, [](int device, stream_ref stream) { busy(1 - device, stream); });
    tarn_test::pieces_travel(zero, zero, [](int, stream_ref stream) { busy(0, stream); });
    tarn_test::pieces_travel(cuda_malloc{device_id{0}}, one, busy);
    tarn_test::pieces_travel(zero, cuda_async{device_id{1}}, busy);
    tarn_test::pieces_travel(pinned_host{device_id{0}}, one, busy);
    if (reach_each_other()) {
      auto const open_zero = cuda_pages{device_id{0}} | accessible_from{1} | pooled{};
      auto const open_one = cuda_pages{device_id{1}} | accessible_from{0} | pooled{};
      tarn_test::pieces_travel(open_zero, open_one, busy);
      tarn_test::pieces_travel(open_zero, cuda_pages{device_id{1}} | pooled{}, busy);
    }
  }
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("accessible_from lets a kernel of one GPU modify another GPU's memory",
          "[policy][accessible_from][cuda]") {
  if (!has_cuda_devices(2)) return;
  if (!reach_each_other()) {
    CHECK_THROWS_AS(cuda_pages{device_id{0}} | accessible_from{1}, unreachable_device);
    WARN("skipped, nothing more was tested: these two GPUs cannot reach each other's memory");
    return;
  }
  auto pool = cuda_pages{device_id{0}} | accessible_from{1} | pooled{} | tracked{};
  basic_stream<cuda_driver> const a{cuda_driver{device_id{0}}};
  basic_stream<cuda_driver> const b{cuda_driver{device_id{1}}};
  for (std::size_t const n : {std::size_t{1000}, std::size_t{1} << 24}) {
    auto buffer = make_device_buffer<std::uint32_t>(pool, n, a);
    busy(0, a);
    buffer.zero();
    detail::order_streams(cuda_driver{device_id{1}}, b, cuda_driver{device_id{0}}, a);
    {
      device_guard const guard{device_id{1}};
      add_one<<<static_cast<unsigned>((n + 255) / 256), 256, 0, b.ref().get()>>>(buffer.data(), n);
      REQUIRE(cudaGetLastError() == cudaSuccess);
    }
    detail::order_streams(cuda_driver{device_id{0}}, a, cuda_driver{device_id{1}}, b);
    CHECK((tarn_test::words_of(buffer) == tarn_test::words(n, 1)));
  }
  CHECK_THROWS_AS(cuda_pages{device_id{0}} | accessible_from{100}, cuda_error);
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("partitioned_buffer scatters, gathers and repartitions on GPUs",
          "[raii][partitioned_buffer][cuda]") {
  if (!has_cuda_devices()) return;
  int count = 0;
  REQUIRE(cudaGetDeviceCount(&count) == cudaSuccess);
  std::vector<device_id> devices;
  for (int d = 0; d < count && d < 4; ++d) devices.push_back(device_id{d});
  per_device<device_pool> pools;
  tarn_test::parts_travel(pools, devices, busy);
  devices.push_back(device_id{0});  // two parts on one device
  tarn_test::parts_travel(pools, devices, busy);
  partitioned_buffer<std::uint32_t> buffer(pools, devices, 1'000'000);
  buffer.zero();
  buffer.for_each_part([](auto const& part) {
    std::size_t const n = part.elements.size();
    add_one<<<static_cast<unsigned>((n + 255) / 256), 256, 0, part.stream.get()>>>(part.elements.data(), n);
    CHECK(cudaGetLastError() == cudaSuccess);
  });
  tarn_test::words seen(1'000'000);
  buffer.gather_sync(seen);
  CHECK((seen == tarn_test::words(1'000'000, 1)));
  pools.for_each([](device_id, device_pool& pool) { CHECK(memory_allocated(pool) <= 4'002'048); });
}
