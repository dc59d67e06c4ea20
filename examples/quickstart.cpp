// SPDX-License-Identifier: Apache-2.0
// tarn in five lines: a pool, an owner, a peak, a sort out of the pool, the numbers.
// The same file is compiled by g++ without CUDA and by nvcc; it says on what it runs, and why.
#include <thrust/sequence.h>
#include <thrust/sort.h>

#include <iostream>

#include "tarn/sim.hpp"
#include "tarn/tarn.hpp"
#include "tarn/thrust.hpp"

template <class Pool, class Policy>
void five_lines(Pool pool, Policy const& policy) {
  std::size_t const n = 1 << 20;
  auto weights = tarn::make_device_buffer<float>(pool, n, tarn::stream_ref{});
  tarn::peak_scope peak{pool};
  float* const first = weights.data();
  thrust::sequence(policy, first, first + n);
  thrust::stable_sort(policy, first, first + n, thrust::greater<float>());
  std::cout << "peak of the scope: " << peak.peak_bytes() << " bytes\n" << tarn::memory_summary(pool);
}

int main() {
#if TARN_HAS_CUDA
  int devices = 0;
  if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0) {
    std::cout << "Running on CUDA: a device was found.\n";
    tarn::device_pool pool;
    five_lines(pool, tarn::par(pool));
    return 0;
  }
  std::cout << "Running on the simulated device: no CUDA device was found.\n";
  five_lines(tarn::sim_pool{}, thrust::host);
#else
  std::cout << "Running on the simulated device: compiled without CUDA.\n";
  tarn::sim_pool pool;
  five_lines(pool, tarn::par(pool));
#endif
}
