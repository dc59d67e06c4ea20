// SPDX-License-Identifier: Apache-2.0
// free_on(), evict_scope and scratch on CUDA: the contract of the simulated device, with kernels that keep
// streams busy.

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "contract/cuda_device.hpp"
#include "contract/early_release_contract.hpp"
#include "tarn/tarn.hpp"
#include "tarn/transfer/micro_batches.hpp"
#include "tarn/transfer/with_oom_retry.hpp"

using namespace tarn;
using tarn_test::has_cuda_devices;

namespace cuda_early_release_test {
struct busy {
  void operator()(stream_ref stream) const { REQUIRE(tarn_test::keep_busy(stream, 30)); }
};
}  // namespace cuda_early_release_test
using cuda_early_release_test::busy;

TEST_CASE("retire on CUDA orders the release after the last user", "[raii][free_on][cuda]") {
  if (!has_cuda_devices()) return;
  SECTION("pages") {
    tarn_test::free_on_contract(device_pool{}, pinned_host{} | pooled{}, busy{});
  }
  SECTION("cudaMalloc") {
    tarn_test::free_on_contract(cuda_malloc{} | pooled{}, pinned_host{} | pooled{}, busy{});
  }
  SECTION("cudaMallocAsync, without a pool") {
    tarn_test::free_on_contract(cuda_async{}, pinned_host{} | pooled{}, busy{});
  }
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("evict_scope on CUDA restores the elements of its buffers", "[raii][evict_scope][cuda]") {
  if (!has_cuda_devices()) return;
  SECTION("pages") {
    tarn_test::evict_contract(device_pool{}, pinned_host{} | pooled{}, busy{});
  }
  SECTION("cudaMallocAsync, without a pool") {
    tarn_test::evict_contract(cuda_async{}, pinned_host{} | pooled{}, busy{});
  }
  SECTION("pinned memory that is not pooled") {
    tarn_test::evict_contract(device_pool{}, pinned_host{}, busy{});
  }
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("scratch on CUDA orders its temporaries by its stream", "[raii][scratch][cuda]") {
  if (!has_cuda_devices()) return;
  tarn_test::scratch_contract(device_pool{}, busy{});
  tarn_test::scratch_contract(cuda_async{}, busy{});
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("evict_scope refuses a stream that CUDA captures, and keeps the capture valid",
          "[raii][evict_scope][cuda]") {
  if (!has_cuda_devices()) return;
  device_pool memory;
  auto const pinned = pinned_host{} | pooled{};
  tarn::stream const stream;
  auto buffer = make_device_buffer<int>(memory, 1000, stream);
  cudaGraph_t graph = nullptr;
  REQUIRE(cudaStreamBeginCapture(stream.ref().get(), cudaStreamCaptureModeRelaxed) == cudaSuccess);
  CHECK_THROWS_AS((evict_scope{pinned, stream, buffer}), misuse);
  REQUIRE(cudaStreamEndCapture(stream.ref().get(), &graph) == cudaSuccess);
  std::size_t nodes = 1;
  CHECK(cudaGraphGetNodes(graph, nullptr, &nodes) == cudaSuccess);
  CHECK(nodes == 0);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  CHECK(buffer.size() == 1000);
}

TEST_CASE("evict_scope on CUDA keeps the elements on the host until the device has room",
          "[raii][evict_scope][cuda]") {
  if (!has_cuda_devices()) return;
  auto const memory = cuda_pages{} | limited{256_MiB} | pooled{};
  auto const pinned = pinned_host{} | pooled{};
  tarn::stream const stream;
  std::vector<int> words(10'000'000);
  std::iota(words.begin(), words.end(), 0);
  auto buffer = make_device_buffer<int>(memory, words, stream);
  {
    evict_scope evicted{pinned, stream, buffer};
    {
      auto const other = make_device_buffer<std::byte>(memory, 250_MiB, stream);
      CHECK_THROWS_AS(evicted.bring_back(), out_of_memory);
      auto const there = evicted.host_copy<0>();
      CHECK(std::equal(words.begin(), words.end(), there.begin(), there.end()));
    }
    evicted.bring_back();
  }
  CHECK((tarn_test::elements_of<int>(buffer) == words));
}

TEST_CASE("micro_batches sized by free CUDA memory can be allocated", "[raii][micro_batches][cuda]") {
  if (!has_cuda_devices()) return;
  device_pool memory;
  tarn::stream const stream;
  memory_availability const room = available_memory(memory);
  CHECK(room.bytes > 0);
  CHECK(room.device_free == room.bytes);
  // Three times the free memory in total. Each part fits what was free, less the reserve.
  std::size_t const each = 16_MiB;
  micro_batches const parts(3 * (room.bytes / each) + 1, each, memory);
  CHECK(parts.size() >= 3);
  for (auto part : parts)
    CHECK_NOTHROW(make_device_buffer<std::byte>(memory, part.count * each, stream).reset());
}

TEST_CASE("with_oom_retry retries after another CUDA pool's cache is cleared",
          "[raii][with_oom_retry][cuda]") {
  if (!has_cuda_devices()) return;
  auto const memory = cuda_pages{} | pooled{};
  cuda_malloc const rival;
  std::size_t free = 0;
  std::size_t total = 0;
  REQUIRE(memory.driver().memory_info(free, total).ok());
  make_device_buffer<std::byte>(memory, free / 4 * 3, stream_ref{}).reset();
  auto const r = with_oom_retry(memory, free / 2, [&](std::size_t bytes) {
    return make_device_buffer<std::byte>(rival, bytes, stream_ref{}).size();
  });
  CHECK(r.attempts == 2);
  CHECK(r.value == free / 2);
  auto const largest = with_oom_retry(
      memory, 1_GiB,
      [&](std::size_t bytes) { (void)make_device_buffer<std::byte>(rival, bytes, stream_ref{}); },
      {.search = oom_search::upward, .tolerance = 256_MiB});
  CHECK(largest.size > free / 10 * 8);
  CHECK(largest.size <= total);
  CHECK(cudaGetLastError() == cudaSuccess);
}
