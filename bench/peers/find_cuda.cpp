// SPDX-License-Identifier: Apache-2.0
#include "peers/find_cuda.hpp"

#include <cuda_runtime_api.h>

namespace tarn::bench {

found_cuda find_cuda() {
  int count = 0;
  int version = 0;
  cudaDeviceProp properties{};
  cudaError_t outcome = cudaGetDeviceCount(&count);
  if (outcome == cudaSuccess && count == 0) outcome = cudaErrorNoDevice;
  if (outcome == cudaSuccess) outcome = cudaGetDeviceProperties(&properties, 0);
  if (outcome == cudaSuccess) outcome = cudaDriverGetVersion(&version);
  if (outcome == cudaSuccess) outcome = cudaFree(nullptr);
  if (outcome != cudaSuccess) {
    (void)cudaGetLastError();
    return {false, std::string("no CUDA device: ") + cudaGetErrorString(outcome), {}, {}};
  }
  std::string const name = std::string(properties.name) + ", " +
                           std::to_string((properties.totalGlobalMem + (1U << 29)) >> 30) + " GiB";
  std::string const cuda = std::to_string(version / 1000) + '.' + std::to_string(version % 1000 / 10);
  return {true, name + ", driver for CUDA " + cuda, name, cuda};
}

}  // namespace tarn::bench
