// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include <cstddef>
#include <stdexcept>
#include <string>

#include "peers/ballast.hpp"

namespace tarn::bench {

namespace {

/// Smallest allocation of the device, bytes.
constexpr std::size_t page = std::size_t{2} << 20;

std::size_t free_now() {
  std::size_t free = 0, total = 0;
  if (cudaError_t const e = cudaMemGetInfo(&free, &total); e != cudaSuccess) {
    throw std::runtime_error(std::string("cudaMemGetInfo: ") + cudaGetErrorString(e));
  }
  return free;
}

}  // namespace

ballast::ballast(std::uint64_t leave) {
  if (leave == 0) return;
  left_ = free_now();
  if (left_ < leave) throw std::runtime_error("the device has less free memory than the cap");
  // Large pieces first, then smaller ones: a call may take more than requested.
  for (std::size_t piece = std::size_t{1} << 36; piece >= page; piece /= 2) {
    while (left_ >= leave + piece) {
      void* p = nullptr;
      if (cudaMalloc(&p, piece) != cudaSuccess) {
        (void)cudaGetLastError();
        break;
      }
      blocks_.push_back(p);
      std::size_t const now = free_now();
      if (now < leave) {  // it took more than `piece`
        (void)cudaFree(p);
        blocks_.pop_back();
        left_ = free_now();
        break;
      }
      left_ = now;
    }
  }
}

ballast::~ballast() {
  for (void* p : blocks_) (void)cudaFree(p);
}

}  // namespace tarn::bench
