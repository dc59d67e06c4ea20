// SPDX-License-Identifier: Apache-2.0
// Pools on two devices at once: each pool uses its own device's memory, whichever device is current, from one
// thread and from many.

#include <cstdint>
#include <random>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "contract/cuda_device.hpp"
#include "contract/memory_access.hpp"
#include "tarn/tarn.hpp"

using namespace tarn;
using tarn_test::has_cuda_devices;
using tarn_test::is_usable;

namespace {

int device_of(void const* p) {
  cudaPointerAttributes attributes{};
  return cudaPointerGetAttributes(&attributes, p) == cudaSuccess ? attributes.device : -1;
}
int current() {
  int device = -1;
  return cudaGetDevice(&device) == cudaSuccess ? device : -1;
}

/// A pool and a stream on each device.
struct two_pools {
  device_pool pool[2] = {device_pool{cuda_pages{device_id{0}}}, device_pool{cuda_pages{device_id{1}}}};
  basic_stream<cuda_driver> stream[2] = {basic_stream<cuda_driver>{cuda_driver{device_id{0}}},
                                         basic_stream<cuda_driver>{cuda_driver{device_id{1}}}};
};

}  // namespace

TEST_CASE("device_pool allocates on its own device, whichever device is current", "[pool][cuda]") {
  if (!has_cuda_devices(2)) return;
  two_pools two;
  for (int const now : {0, 1}) {
    device_guard const guard{device_id{now}};
    for (std::size_t const bytes : {std::size_t{1000}, std::size_t{1_MiB}, std::size_t{300_MiB}}) {
      void* p[2];
      for (int d : {0, 1}) {
        p[d] = two.pool[d].allocate(two.stream[d], bytes);
        CHECK(device_of(p[d]) == d);
        CHECK(is_usable(two.pool[d], two.stream[d], p[d], bytes));
      }
      for (int d : {0, 1}) {
        CHECK(two.pool[d].owns(p[d]));
        CHECK_FALSE(two.pool[d].owns(p[1 - d]));
        two.pool[d].deallocate(two.stream[d], p[d], bytes);
      }
      CHECK(current() == now);
    }
  }
  for (auto& pool : two.pool) {
    CHECK(memory_allocated(pool) == 0);
    pool.empty_cache();
    CHECK(memory_reserved(pool) == 0);
  }
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("device_pool treats the default streams of two devices as different streams", "[pool][cuda]") {
  if (!has_cuda_devices(2)) return;
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  two_pools two;
  for (int round = 0; round < 20; ++round) {
    for (std::size_t const bytes : {std::size_t{5000}, std::size_t{64_MiB}}) {
      for (int d : {0, 1}) {
        void* const p = two.pool[d].allocate(stream_ref{}, bytes);
        CHECK(device_of(p) == d);
        CHECK(is_usable(two.pool[d], stream_ref{}, p, bytes));
        two.pool[d].deallocate(stream_ref{}, p, bytes);
      }
    }
  }
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("pooled on a device at its limit takes no memory from a pool on another device", "[pool][cuda]") {
  if (!has_cuda_devices(2)) return;
  auto small = cuda_pages{device_id{1}} | limited{64_MiB} | pooled{};
  device_pool other{cuda_pages{device_id{0}}};
  other.deallocate({}, other.allocate({}, 256_MiB), 256_MiB);
  try {
    (void)small.allocate({}, 128_MiB);
    FAIL("the allocation exceeded the limit");
  } catch (out_of_memory const& error) {
    CHECK(error.report().device == 1);
    CHECK(error.report().limit == 64_MiB);
  }
  CHECK(memory_reserved(other) >= 256_MiB);
  CHECK(mem_get_info(small).total > 0);
}

TEST_CASE("device_pool on two devices serves threads that change the current device",
          "[pool][cuda][threads]") {
  if (!has_cuda_devices(2)) return;
  two_pools two;
  std::vector<std::thread> threads;
  std::vector<unsigned> wrong(8);
  for (unsigned t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      basic_stream<cuda_driver> const stream[2] = {basic_stream<cuda_driver>{cuda_driver{device_id{0}}},
                                                   basic_stream<cuda_driver>{cuda_driver{device_id{1}}}};
      for (int i = 0; i < 200; ++i) {
        auto const d = random() % 2;
        device_guard const guard{device_id{static_cast<int>(random() % 2)}};
        std::size_t const bytes = std::size_t{256} << (random() % 16);
        void* const p = two.pool[d].allocate(stream[d], bytes);
        if (device_of(p) != static_cast<int>(d)) ++wrong[t];
        auto const& driver = two.pool[d].driver();
        std::uint8_t last = 0;
        bool const done = driver.fill(stream[d], p, static_cast<int>(t + 1), bytes).ok() &&
                          driver.copy(stream[d], &last, static_cast<char*>(p) + bytes - 1, 1).ok() &&
                          driver.synchronize_stream(stream[d]).ok();
        if (!done || last != t + 1) ++wrong[t];
        two.pool[d].deallocate(stream[d], p, bytes);
      }
    });
  }
  for (auto& t : threads) t.join();
  for (unsigned const w : wrong) CHECK(w == 0);
  for (auto& pool : two.pool) CHECK(memory_allocated(pool) == 0);
  CHECK(cudaGetLastError() == cudaSuccess);
}
