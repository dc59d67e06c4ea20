// SPDX-License-Identifier: Apache-2.0
#include "peers/dali.hpp"

#include <cuda.h>
#include <dali/core/mm/async_pool.h>
#include <dali/core/mm/cuda_vm_resource.h>

#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>

/// DALI's headers call it; libdali_core does not export it.
bool cuInitChecked() {
  return cuInit(0) == CUDA_SUCCESS;
}

namespace tarn::bench {

namespace {

constexpr std::size_t alignment = 256;

}  // namespace

struct dali_peer::state {
  dali::mm::async_pool_resource<dali::mm::memory_kind::device, dali::mm::cuda_vm_resource, std::mutex, void>
      pool;
};

dali_peer::dali_peer(setup const& s) : streams_(s.streams), state_(std::make_unique<state>()) {}

dali_peer::~dali_peer() {
  (void)cudaDeviceSynchronize();
}

void* dali_peer::allocate(std::size_t stream, std::size_t bytes) noexcept {
  if (bytes == 0) return nullptr;
  try {
    return state_->pool.allocate_async(bytes, alignment, streams_[stream]);
  } catch (std::exception const&) {
    return nullptr;
  }
}

void dali_peer::deallocate(std::size_t stream, void* block, std::size_t bytes) noexcept {
  if (block != nullptr) state_->pool.deallocate_async(block, bytes, alignment, streams_[stream]);
}

usage dali_peer::used() const {
  dali::mm::cuda_vm_resource const& physical = *state_->pool.upstream();
  auto const blocks = static_cast<std::uint64_t>(physical.get_stat().peak_allocated_blocks);
  return {blocks * physical.block_size(), std::nullopt, 0};
}

}  // namespace tarn::bench
