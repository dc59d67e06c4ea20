// SPDX-License-Identifier: Apache-2.0
#pragma once
// cudaMalloc and cudaFree, one call each per block.

#include <cuda_runtime_api.h>

#include "peers/cuda_calls.hpp"
#include "peers/peer.hpp"

namespace tarn::bench {

/// No pool. Its reserved bytes are the requested bytes: the driver's own rounding to 2 MiB is not visible.
class cuda_malloc_peer {
 public:
  static constexpr std::string_view name = "cuda_malloc";
  static constexpr std::string_view about = "cudaMalloc and cudaFree for every block";
  static constexpr place_of_memory where = place_of_memory::cuda;
  static constexpr bool pools = false;

  explicit cuda_malloc_peer(setup const&) { cuda_calls::reset_peak(); }

  void* allocate(std::size_t /*stream*/, std::size_t bytes) noexcept {
    void* block = nullptr;
    if (bytes != 0 && cudaMalloc(&block, bytes) != cudaSuccess) {
      (void)cudaGetLastError();
      return nullptr;
    }
    return block;
  }
  void deallocate(std::size_t /*stream*/, void* block, std::size_t /*bytes*/) noexcept {
    if (block != nullptr) (void)cudaFree(block);
  }
  [[nodiscard]] usage used() const noexcept { return {cuda_calls::peak_bytes(), cuda_calls::made(), 0}; }
};
static_assert(peer<cuda_malloc_peer>);

}  // namespace tarn::bench
