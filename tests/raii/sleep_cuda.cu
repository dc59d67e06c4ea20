// SPDX-License-Identifier: Apache-2.0
// sleep() and wake() on CUDA: contents, addresses, and what cudaMemGetInfo and NVML report.

#include <cstdint>
#include <vector>

#include "catch.hpp"
#include "contract/cuda_device.hpp"
#include "tarn/tarn.hpp"

using namespace tarn;
using tarn_test::has_cuda_devices;

namespace sleep_cuda_test {

__global__ void write(std::uint32_t* p, std::size_t count, std::uint32_t seed) {
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    p[i] = static_cast<std::uint32_t>(i) * 2654435761u + seed;
}
__global__ void compare(std::uint32_t const* p, std::size_t count, std::uint32_t seed, unsigned* wrong) {
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    if (p[i] != static_cast<std::uint32_t>(i) * 2654435761u + seed) atomicAdd(wrong, 1u);
}

inline std::size_t free_bytes() {
  std::size_t free = 0;
  std::size_t total = 0;
  REQUIRE(cudaMemGetInfo(&free, &total) == cudaSuccess);
  return free;
}

/// The free memory that NVML reports, as nvidia-smi shows it; 0 where it cannot be read.
inline std::size_t free_bytes_of_nvml() {
  device_account account;
  if (!cuda_driver{}.memory_account(account).ok() || account.free == device_account::unknown) return 0;
  return account.free;
}

/// Blocks of many sizes, some of them in a view, with contents that kernels write and compare.
template <class Memory>
struct blocks {
  struct block {
    void* p;
    std::size_t bytes;
  };
  Memory memory;
  std::vector<block> all;
  unsigned* wrong = nullptr;

  explicit blocks(Memory m) : memory(m) {
    REQUIRE(cudaMallocManaged(&wrong, sizeof *wrong) == cudaSuccess);
    std::vector<void*> spread;
    for (int i = 0; i < 48; ++i) spread.push_back(memory.allocate(stream_ref{}, 2_MiB));
    for (std::size_t i = 0; i < spread.size(); ++i) {
      if (i % 2 == 0) {
        memory.deallocate(stream_ref{}, spread[i], 2_MiB);
      } else {
        all.push_back({spread[i], 2_MiB});
      }
    }
    for (std::size_t bytes :
         {std::size_t{40_MiB}, std::size_t{1000}, std::size_t{70'000}, std::size_t{300_MiB}})
      all.push_back({memory.allocate(stream_ref{}, bytes), bytes});
  }
  blocks(blocks const&) = delete;
  blocks& operator=(blocks const&) = delete;
  ~blocks() {
    for (block const& b : all) memory.deallocate(stream_ref{}, b.p, b.bytes);
    (void)cudaFree(wrong);
  }
  void fill() {
    std::uint32_t seed = 0;
    for (block const& b : all) write<<<256, 256>>>(static_cast<std::uint32_t*>(b.p), b.bytes / 4, ++seed);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  }
  [[nodiscard]] bool intact() {
    *wrong = 0;
    std::uint32_t seed = 0;
    for (block const& b : all)
      compare<<<256, 256>>>(static_cast<std::uint32_t const*>(b.p), b.bytes / 4, ++seed, wrong);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    return *wrong == 0;
  }
};

}  // namespace sleep_cuda_test

TEST_CASE(
    "sleep on CUDA gives memory back that cudaMemGetInfo and NVML see, wake restores addresses and contents",
    "[raii][sleep][cuda]") {
  if (!has_cuda_devices()) return;
  if (cuda_driver{}.memory_tool()) return;  // the pool then keeps its memory, in cudaMalloc blocks
  for (contents const where : {contents::in_pinned_memory, contents::discarded}) {
    auto memory = cuda_pages{} | limited{440_MiB} | pooled{};
    sleep_cuda_test::blocks held(memory);
    held.fill();
    std::size_t const reserved = memory->state().reserved;
    std::size_t const awake = sleep_cuda_test::free_bytes();
    std::size_t const awake_in_nvml = sleep_cuda_test::free_bytes_of_nvml();
    CHECK(sleep(memory, where) == reserved);
    std::size_t const asleep = sleep_cuda_test::free_bytes();
    std::size_t const asleep_in_nvml = sleep_cuda_test::free_bytes_of_nvml();
    CHECK(asleep >= awake + reserved);
    if (awake_in_nvml != 0) CHECK(asleep_in_nvml >= awake_in_nvml + reserved);
    CHECK_THROWS_AS(memory.allocate(stream_ref{}, 1000), pool_asleep);
    std::size_t const taken = wake(memory);
    CHECK(sleep_cuda_test::free_bytes() + taken <= asleep);
    if (awake_in_nvml != 0) CHECK(sleep_cuda_test::free_bytes_of_nvml() + taken <= asleep_in_nvml);
    if (where == contents::discarded) held.fill();
    CHECK(held.intact());
    CHECK(cudaGetLastError() == cudaSuccess);
  }
}

TEST_CASE("100 cycles of sleep and wake on CUDA leak nothing", "[raii][sleep][cuda]") {
  if (!has_cuda_devices()) return;
  auto memory = cuda_pages{} | pooled{};
  sleep_cuda_test::blocks held(memory);
  held.fill();
  (void)sleep(memory);
  (void)wake(memory);
  std::size_t const before = sleep_cuda_test::free_bytes();
  for (int i = 0; i < 100; ++i) {
    (void)sleep(memory, i % 20 == 0 ? contents::in_pinned_memory : contents::discarded);
    (void)wake(memory);
    if (i % 20 != 0) held.fill();
  }
  CHECK(sleep_cuda_test::free_bytes() == before);
  CHECK(held.intact());
}
