// SPDX-License-Identifier: Apache-2.0
// Tensors of DLPack in CUDA memory, and single elements read back, behind kernels that are not done.
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "contract/cuda_device.hpp"
#include "interop/dlpack_layout.hpp"
#include "tarn/dlpack.hpp"
#include "tarn/tarn.hpp"
#include "tarn/transfer.hpp"

using namespace tarn;
using tarn_test::has_cuda_devices;
using tarn_test::keep_busy;

TEST_CASE("a buffer becomes a tensor and a buffer again in stream order on CUDA", "[interop][dlpack][cuda]") {
  if (!has_cuda_devices()) return;
  stream const producer;
  stream const consumer;
  device_pool pool;
  std::vector<std::int32_t> host(6000);
  std::iota(host.begin(), host.end(), 0);
  REQUIRE(keep_busy(producer, 5));
  auto buffer = make_device_buffer<std::int32_t>(pool, std::span<std::int32_t const>(host), producer);
  void const* const at = buffer.data();
  auto* const tensor = to_dlpack<dlpack_layout::versioned>(std::move(buffer), {60, 100}, consumer);
  CHECK(tensor->dl_tensor.device.device_type == dlpack_layout::cuda);
  CHECK(tensor->dl_tensor.data == at);
  {
    auto const mine = from_dlpack<std::int32_t const>(tensor, device_id{0});
    std::vector<std::int32_t> back(mine.size());
    copy_sync(pool.driver(), mine.span(), std::span<std::int32_t>(back), consumer);
    CHECK(back == host);
    CHECK(memory_allocated(pool) != 0);
  }
  CHECK(memory_allocated(pool) == 0);
}

TEST_CASE("element_reader reads an element behind the work of its stream on CUDA",
          "[transfer][element_reader][cuda]") {
  if (!has_cuda_devices()) return;
  stream const busy;
  stream const other;
  device_pool pool;
  std::vector<std::int32_t> const host{1, 2, 3};
  REQUIRE(keep_busy(busy, 5));
  auto const buffer = make_device_buffer<std::int32_t>(pool, std::span<std::int32_t const>(host), busy);
  element_reader<std::int32_t> reader;
  CHECK(reader.element(buffer, 1) == 2);
  REQUIRE(keep_busy(busy, 5));
  CHECK(reader.element(buffer, 2, other) == 3);
  CHECK_THROWS_AS(reader.element(buffer, 3), length_error);
}
