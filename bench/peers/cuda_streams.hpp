// SPDX-License-Identifier: Apache-2.0
#pragma once
// Streams for the adapters of CUDA pools.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

namespace tarn::bench {

/// Throws an error with the call and CUDA's text if a call failed that must succeed.
inline void require_cuda(cudaError_t outcome, char const* call) {
  if (outcome != cudaSuccess) {
    throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(outcome));
  }
}

/// Non-blocking streams of the current device, created and destroyed with their owner.
class cuda_streams {
 public:
  explicit cuda_streams(std::size_t count) : streams_(count) {
    for (cudaStream_t& s : streams_) {
      require_cuda(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    }
  }
  ~cuda_streams() {
    for (cudaStream_t const s : streams_) (void)cudaStreamDestroy(s);
  }
  cuda_streams(cuda_streams const&) = delete;
  cuda_streams& operator=(cuda_streams const&) = delete;

  [[nodiscard]] cudaStream_t operator[](std::size_t index) const noexcept { return streams_[index]; }

 private:
  std::vector<cudaStream_t> streams_;
};

}  // namespace tarn::bench
