// SPDX-License-Identifier: Apache-2.0
#pragma once
// AMReX 25.01 predates CUDA 13. What it calls and CUDA 13 has under another name or with other arguments.
// Included before each of its sources; does nothing with an earlier CUDA.

#ifdef __CUDACC__
#include <cuda_runtime_api.h>

#if CUDART_VERSION >= 13000
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

#include <cstddef>
#include <cub/cub.cuh>
#include <cuda/functional>
#include <cuda/std/functional>

namespace tarn_amrex {
inline cudaMemLocation location_of(int device) {
  cudaMemLocation where{};
  where.type = device == cudaCpuDeviceId ? cudaMemLocationTypeHost : cudaMemLocationTypeDevice;
  where.id = device == cudaCpuDeviceId ? 0 : device;
  return where;
}
}  // namespace tarn_amrex

// They took the number of a device.
inline cudaError_t cudaMemAdvise(void const* p, std::size_t bytes, cudaMemoryAdvise advice, int device) {
  return cudaMemAdvise(p, bytes, advice, tarn_amrex::location_of(device));
}
inline cudaError_t cudaMemPrefetchAsync(void const* p, std::size_t bytes, int device, cudaStream_t stream) {
  return cudaMemPrefetchAsync(p, bytes, tarn_amrex::location_of(device), 0, stream);
}

// CCCL 3 has removed these in favour of libcu++ and Thrust.
namespace cub {
using Sum = ::cuda::std::plus<>;
using Min = ::cuda::minimum<>;
using Max = ::cuda::maximum<>;
template <class Index>
using CountingInputIterator = thrust::counting_iterator<Index>;
template <class Value, class Function, class Iterator>
using TransformInputIterator = thrust::transform_iterator<Function, Iterator, Value>;
}  // namespace cub
#endif
#endif
