// SPDX-License-Identifier: Apache-2.0
#include "tarn/driver/default_driver.hpp"

#include "tarn/raii/device_buffer.hpp"
#include "tarn/raii/pinned_buffer.hpp"
#include "tarn/report/explain_memory.hpp"
#include "tarn/sim.hpp"  // after what uses the default

#include <type_traits>

#include "catch.hpp"

#if !TARN_HAS_CUDA
TEST_CASE("default_driver: the names of CUDA's types mean the simulated device in a program without CUDA",
          "[driver]") {
  tarn::device_pool pool;
  tarn::stream const stream;
  tarn::device_buffer<float> buffer = tarn::make_device_buffer<float>(pool, 100, stream);
  tarn::pinned_buffer<float> const pinned(tarn::pinned_host{}, 100);
  CHECK(buffer.resource() == pool);
  CHECK(tarn::explain_memory(tarn::device_id{0}).device == 0);
  STATIC_REQUIRE(std::is_same_v<tarn::device_pool, tarn::sim_pool>);
  STATIC_REQUIRE(std::is_same_v<tarn::device_buffer<int>::resource_type, tarn::device_pool>);
  STATIC_REQUIRE(std::is_same_v<tarn::cuda_malloc, tarn::sim_malloc>);
  STATIC_REQUIRE(std::is_same_v<tarn::cuda_async, tarn::sim_async>);
  STATIC_REQUIRE(std::is_same_v<tarn::cuda_async_pinned, tarn::sim_async_pinned>);
  STATIC_REQUIRE(std::is_same_v<tarn::cuda_async_managed, tarn::sim_async_managed>);
  STATIC_REQUIRE(std::is_same_v<tarn::managed, tarn::sim_managed>);
  STATIC_REQUIRE(std::is_same_v<tarn::registered_host, tarn::sim_registered_host>);
}
#endif
