// SPDX-License-Identifier: Apache-2.0
#pragma once
// The driver's own stream-ordered pool: cudaMallocAsync.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "peers/cuda_calls.hpp"
#include "peers/cuda_streams.hpp"
#include "peers/peer.hpp"

namespace tarn::bench {

/// cudaMallocFromPoolAsync on a separate pool that never releases memory (maximum release threshold), the
/// usual setting for speed. Each of its calls is a driver call.
class cuda_async_peer {
 public:
  static constexpr std::string_view name = "cuda_async";
  static constexpr std::string_view about = "cudaMallocAsync, release threshold at maximum";
  static constexpr place_of_memory where = place_of_memory::cuda;

  explicit cuda_async_peer(setup const& s) : streams_(s.streams) {
    int device = 0;
    require_cuda(cudaGetDevice(&device), "cudaGetDevice");
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location = {cudaMemLocationTypeDevice, device};
    require_cuda(cudaMemPoolCreate(&pool_, &properties), "cudaMemPoolCreate");
    std::uint64_t keep = std::numeric_limits<std::uint64_t>::max();
    require_cuda(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep),
                 "cudaMemPoolSetAttribute");
  }
  ~cuda_async_peer() {
    (void)cudaDeviceSynchronize();
    (void)cudaMemPoolDestroy(pool_);
  }
  cuda_async_peer(cuda_async_peer const&) = delete;
  cuda_async_peer& operator=(cuda_async_peer const&) = delete;

  void* allocate(std::size_t stream, std::size_t bytes) noexcept {
    void* block = nullptr;
    if (bytes != 0 && cudaMallocFromPoolAsync(&block, bytes, pool_, streams_[stream]) != cudaSuccess) {
      (void)cudaGetLastError();
      return nullptr;
    }
    return block;
  }
  void deallocate(std::size_t stream, void* block, std::size_t /*bytes*/) noexcept {
    if (block != nullptr) (void)cudaFreeAsync(block, streams_[stream]);
  }
  [[nodiscard]] usage used() const {
    // After a reset the high-water mark may be 0 until the pool grows.
    std::uint64_t const peak =
        std::max(ask(cudaMemPoolAttrReservedMemHigh), ask(cudaMemPoolAttrReservedMemCurrent));
    return {peak, cuda_calls::made(), 0};
  }
  void reset_peak() {
    std::uint64_t zero = 0;
    require_cuda(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReservedMemHigh, &zero),
                 "cudaMemPoolSetAttribute");
  }

 private:
  [[nodiscard]] std::uint64_t ask(cudaMemPoolAttr what) const {
    std::uint64_t bytes = 0;
    require_cuda(cudaMemPoolGetAttribute(pool_, what, &bytes), "cudaMemPoolGetAttribute");
    return bytes;
  }
  cuda_streams streams_;
  cudaMemPool_t pool_ = nullptr;
};
static_assert(peer<cuda_async_peer>);

}  // namespace tarn::bench
