// SPDX-License-Identifier: Apache-2.0
// Conversions on CUDA: the contract of transfer/convert.cpp, with CUDA's instructions.

#include <cstdint>
#include <optional>
#include <vector>

#include "catch.hpp"
#include "contract/convert_contract.hpp"
#include "contract/cuda_device.hpp"
#include "tarn/tarn.hpp"
#include "tarn/transfer/convert.hpp"

using namespace tarn;
using tarn_test::has_cuda_devices;
using tarn_test::keep_busy;

TEST_CASE("convert between all pairs of element types gives the host's results on CUDA",
          "[raii][convert][cuda]") {
  if (!has_cuda_devices()) return;
  tarn::stream const stream;
  tarn_test::every_pair_converts(device_pool{}, stream, 100'000);
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("convert writes only its target at any alignment on CUDA", "[raii][convert][cuda]") {
  if (!has_cuda_devices()) return;
  tarn::stream const stream;
  device_pool const pool;
  tarn_test::every_alignment_converts<float16, float>(pool, stream);
  tarn_test::every_alignment_converts<float, float16>(pool, stream);
  tarn_test::every_alignment_converts<float8_e4m3, float>(pool, stream);
  tarn_test::every_alignment_converts<bfloat16, float8_e5m2>(pool, stream);
  tarn_test::every_alignment_converts<float8_e5m2, double>(pool, stream);
}

TEST_CASE("convert of hundreds of MiB converts every element on CUDA", "[raii][convert][cuda]") {
  if (!has_cuda_devices()) return;
  tarn::stream const stream;
  device_pool pool;
  std::size_t const n = (std::size_t{1} << 27) + 5;
  auto full = make_device_buffer<float>(pool, n, stream);
  auto const half = [&] {
    full.fill(std::byte{0x3f});  // 0.7470588...
    return converted<bfloat16>(full);
  }();
  std::vector<bfloat16> seen(n);
  half.copy_to_sync(seen);
  std::size_t wrong = 0;
  for (bfloat16 const x : seen) wrong += x.bits() == 0x3f3f ? 0U : 1U;
  CHECK(wrong == 0);
}

TEST_CASE("convert on a busy CUDA stream is ordered after earlier and before later work of both buffers",
          "[raii][convert][stream][cuda]") {
  if (!has_cuda_devices()) return;
  tarn::stream const a;
  tarn::stream const b;
  tarn::stream const c;
  device_pool pool;
  std::size_t const n = 1 << 20;
  for (int busy = 0; busy < 3; ++busy) {
    std::optional from(make_device_buffer<float>(pool, n, a));
    std::optional to(make_device_buffer<float8_e5m2>(pool, n, b));
    REQUIRE(keep_busy(busy == 0 ? a : busy == 1 ? b : c, 20));
    from->fill(std::byte{0x40});  // 3.00392...
    to->zero();
    convert(*from, *to, c);
    auto const copied = to->clone(to->stream());
    from->zero();
    to->zero();
    from.reset();
    to.reset();
    auto reused = make_device_buffer<float>(pool, n, a);
    reused.zero();
    std::vector<float8_e5m2> seen(n);
    copied.copy_to_sync(seen);
    std::size_t wrong = 0;
    for (float8_e5m2 const x : seen) wrong += x == float8_e5m2(3.0F) ? 0U : 1U;
    CHECK(wrong == 0);
  }
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("convert in a captured CUDA stream runs with its graph", "[raii][convert][cuda]") {
  if (!has_cuda_devices()) return;
  tarn::stream const stream;
  device_pool pool;
  auto from = make_device_buffer<float>(pool, 1000, stream);
  auto to = make_device_buffer<float16>(pool, 1000, stream);
  to.zero();
  stream.synchronize();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  REQUIRE(cudaStreamBeginCapture(stream.ref().get(), cudaStreamCaptureModeGlobal) == cudaSuccess);
  convert(from, to);
  REQUIRE(cudaStreamEndCapture(stream.ref().get(), &graph) == cudaSuccess);
  REQUIRE(cudaGraphInstantiate(&ready, graph, 0) == cudaSuccess);
  std::vector<float> const ones(1000, 1.0F);
  from.copy_from(ones);
  REQUIRE(cudaGraphLaunch(ready, stream.ref().get()) == cudaSuccess);
  std::vector<float16> seen(1000);
  to.copy_to_sync(seen);
  CHECK(seen[0].bits() == 0x3c00);
  CHECK(seen[999].bits() == 0x3c00);
  CHECK(cudaGraphExecDestroy(ready) == cudaSuccess);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
}

TEST_CASE("convert refuses a buffer of another CUDA device, whichever device is current",
          "[raii][convert][cuda]") {
  if (!has_cuda_devices(2)) return;
  device_pool one{cuda_pages{device_id{1}}};
  basic_stream<cuda_driver> const b{cuda_driver{device_id{1}}};
  auto const from = make_device_buffer<float>(device_pool{cuda_pages{device_id{0}}}, 100, stream_ref{});
  auto to = make_device_buffer<float16>(one, 100, b);
  CHECK_THROWS_AS(convert(from, to), misuse);
  // Belongs to device 1; device 0 is current.
  auto near = make_device_buffer<float>(one, 100, b);
  near.zero();
  convert(near, to);
  std::vector<float16> seen(100);
  to.copy_to_sync(seen);
  CHECK(seen[99].bits() == 0);
  CHECK(cudaGetLastError() == cudaSuccess);
}
