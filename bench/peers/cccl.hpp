// SPDX-License-Identifier: Apache-2.0
#pragma once
// CCCL's cuda::device_memory_pool. CUDA 13.0's CCCL 3.0.1 does not have it; the CCCL 3.5 that RMM 26.10
// brings has.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cuda/memory_pool>
#include <cuda/stream_ref>
#include <stdexcept>

#include "peers/cuda_streams.hpp"
#include "peers/peer.hpp"

namespace tarn::bench {

/// cuda::device_memory_pool with its default properties: no initial size, and memory is never released before
/// its end. It calls the driver's entry points directly, so that its calls cannot be counted.
class cccl_peer {
 public:
  static constexpr std::string_view name = "cccl";
  static constexpr std::string_view about = "cuda::device_memory_pool, default properties";
  static constexpr place_of_memory where = place_of_memory::cuda;

  explicit cccl_peer(setup const& s) : streams_(s.streams), pool_(cuda::device_ref(current_device())) {}
  ~cccl_peer() { (void)cudaDeviceSynchronize(); }
  cccl_peer(cccl_peer const&) = delete;
  cccl_peer& operator=(cccl_peer const&) = delete;

  void* allocate(std::size_t stream, std::size_t bytes) noexcept {
    if (bytes == 0) return nullptr;
    try {
      return pool_.allocate(cuda::stream_ref(streams_[stream]), bytes, alignment);
    } catch (std::runtime_error const&) {  // cuda::cuda_error, also where the device is full
      return nullptr;
    }
  }
  void deallocate(std::size_t stream, void* block, std::size_t bytes) noexcept {
    if (block != nullptr) pool_.deallocate(cuda::stream_ref(streams_[stream]), block, bytes, alignment);
  }
  [[nodiscard]] usage used() const {
    return {pool_.attribute<cudaMemPoolAttrReservedMemHigh>(), std::nullopt, 0};
  }

 private:
  static constexpr std::size_t alignment = 256;
  [[nodiscard]] static int current_device() {
    int device = 0;
    require_cuda(cudaGetDevice(&device), "cudaGetDevice");
    return device;
  }
  cuda_streams streams_;
  cuda::device_memory_pool pool_;
};
static_assert(peer<cccl_peer>);

}  // namespace tarn::bench
