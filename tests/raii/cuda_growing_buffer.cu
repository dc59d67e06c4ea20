// SPDX-License-Identifier: Apache-2.0
// raii/growing_buffer on CUDA: kernels and a captured graph use its address while it grows.
#include "tarn/raii/growing_buffer.hpp"

#include <cuda_runtime.h>

#include <cstddef>
#include <span>
#include <vector>

#include "catch.hpp"
#include "tarn/policy/device_pool.hpp"
#include "tarn/report/stats.hpp"
#include "tarn/tarn.hpp"

namespace {

using namespace tarn;

constexpr std::size_t per_mib = 1_MiB / sizeof(unsigned);

__global__ void number(unsigned* p, std::size_t first, std::size_t count) {
  std::size_t const i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x;
  if (i < count) p[first + i] = static_cast<unsigned>(first + i);
}
__global__ void add_one(unsigned* p, std::size_t count) {
  std::size_t const i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x;
  if (i < count) p[i] += 1;
}
unsigned blocks_for(std::size_t count) {
  return static_cast<unsigned>((count + 255) / 256);
}

/// Numbers elements on the device as the buffer grows to `count`.
void grow_numbered(growing_buffer<unsigned>& buffer, std::size_t count) {
  std::size_t const first = buffer.size();
  buffer.resize(count);
  auto* const on = static_cast<cudaStream_t>(buffer.stream().handle());
  number<<<blocks_for(count - first), 256, 0, on>>>(buffer.data(), first, count - first);
}
bool is_numbered(growing_buffer<unsigned> const& buffer, unsigned plus) {
  std::vector<unsigned> host(buffer.size());
  copy_sync(buffer.resource().driver(), buffer.span(), std::span<unsigned>(host), buffer.stream());
  for (std::size_t i = 0; i < host.size(); ++i) {
    if (host[i] != i + plus) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("kernels write a growing buffer at one address on a GPU", "[raii][cuda][growing_buffer]") {
  device_pool pool;
  stream const work;
  growing_buffer<unsigned> buffer(pool, 4096 * per_mib, work);
  if (!buffer.keeps_address()) return;  // a device without pages
  unsigned* const at = buffer.data();
  for (std::size_t mib = 3; mib < 200; mib += 7) grow_numbered(buffer, mib * per_mib);
  CHECK(buffer.data() == at);
  CHECK(is_numbered(buffer, 0));
  CHECK(memory_allocated(pool) == buffer.capacity() * sizeof(unsigned));
  SECTION("also over handles that other work frees, after it was shrunk") {
    buffer.resize(40 * per_mib);
    buffer.shrink_to_fit();
    {
      stream const other;
      auto block = make_device_buffer<unsigned>(pool, 120 * per_mib, other);
      number<<<blocks_for(block.size()), 256, 0, other.get()>>>(block.data(), 7, block.size() - 7);
      grow_numbered(buffer, 100 * per_mib);
    }
    grow_numbered(buffer, 230 * per_mib);
    CHECK(buffer.data() == at);
    CHECK(is_numbered(buffer, 0));
  }
  SECTION("and a captured graph that has the address runs after growth") {
    std::size_t const count = buffer.size();
    auto* const on = work.get();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t run = nullptr;
    REQUIRE(cudaStreamBeginCapture(on, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    add_one<<<blocks_for(count), 256, 0, on>>>(at, count);
    REQUIRE(cudaStreamEndCapture(on, &graph) == cudaSuccess);
    REQUIRE(cudaGraphInstantiate(&run, graph, 0) == cudaSuccess);
    buffer.reserve(count + 300 * per_mib);
    REQUIRE(cudaGraphLaunch(run, on) == cudaSuccess);
    CHECK(is_numbered(buffer, 1));
    CHECK(cudaGraphExecDestroy(run) == cudaSuccess);
    CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  }
}
