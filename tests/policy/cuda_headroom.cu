// SPDX-License-Identifier: Apache-2.0
// headroom on CUDA: an outside cudaMalloc of that size succeeds at any moment, while two pools want more than
// the card has.

#include <atomic>
#include <chrono>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "contract/cuda_device.hpp"
#include "tarn/tarn.hpp"

using namespace tarn;
using tarn_test::has_cuda_devices;

TEST_CASE("an outside cudaMalloc of the headroom succeeds while pools fill the card",
          "[headroom][cuda][threads]") {
  if (!has_cuda_devices()) return;
  std::size_t free = 0;
  std::size_t total = 0;
  REQUIRE(cudaMemGetInfo(&free, &total) == cudaSuccess);
  // Most of the card is taken by a plain allocation, so that the pools soon fill the rest.
  constexpr std::size_t rest = 6_GiB;
  constexpr std::size_t spare = 1_GiB;
  if (free < rest + 1_GiB) {
    WARN("skipped, nothing was tested: the device has less than 7 GiB free");
    return;
  }
  void* ballast = nullptr;
  REQUIRE(cudaMalloc(&ballast, free - rest) == cudaSuccess);
  {
    auto pages = cuda_pages{} | headroom{spare} | pooled{};
    auto blocks = cuda_malloc{} | headroom{spare} | pooled{};
    std::atomic<bool> stop{false};
    std::atomic<std::size_t> served{0};
    std::atomic<std::size_t> refused{0};
    auto const load = [&](auto memory, unsigned seed) {
      tarn::stream const s;
      std::mt19937_64 random(seed);
      std::vector<std::pair<void*, std::size_t>> live;
      while (!stop) {
        std::size_t const bytes = 1 + random() % 600_MiB;
        if (live.size() < 12 && random() % 2 == 0) {
          try {
            live.emplace_back(memory.allocate(s, bytes), bytes);
            cudaMemsetAsync(live.back().first, 1, bytes, s.get());
            ++served;
          } catch (out_of_memory const&) {
            ++refused;
          }
        } else if (!live.empty()) {
          memory.deallocate(s, live.back().first, live.back().second);
          live.pop_back();
        }
      }
      for (auto const& [p, bytes] : live) memory.deallocate(s, p, bytes);
    };
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 2; ++t) {
      threads.emplace_back([&, t] { load(pages, t); });
      threads.emplace_back([&, t] { load(blocks, 10 + t); });
    }
    int failed = 0;
    int tried = 0;
    // For a time, with pauses: the pools' growth and cudaMalloc wait for each other in the driver.
    auto const end = std::chrono::steady_clock::now() + std::chrono::seconds(4);
    for (; std::chrono::steady_clock::now() < end; ++tried) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      void* outside = nullptr;
      if (cudaMalloc(&outside, spare) == cudaSuccess) {
        cudaFree(outside);
      } else {
        (void)cudaGetLastError();
        ++failed;
      }
    }
    stop = true;
    for (auto& thread : threads) thread.join();
    CHECK(failed == 0);
    CHECK(tried > 20);
    CHECK(served > 0);
    WARN(tried << " outside allocations beside " << served << " of the pools; " << refused
               << " were refused");
  }
  cudaFree(ballast);
}
