// SPDX-License-Identifier: Apache-2.0
// A device_vector in the pool, and a sort whose temporaries come from the pool.

#include <thrust/device_vector.h>
#include <thrust/reduce.h>
#include <thrust/sequence.h>
#include <thrust/sort.h>

#include <iostream>

#include "gpu_or_simulated.hpp"
#include "tarn/tarn.hpp"
#include "tarn/thrust.hpp"

void run(auto gpu) {
  auto pool = gpu.device_pool();
  using allocator = tarn::thrust_allocator<int, decltype(pool)>;
  thrust::device_vector<int, allocator> v(100000, 0, allocator(pool));
  thrust::sequence(v.begin(), v.end());
  thrust::stable_sort(tarn::par(pool), v.begin(), v.end(), thrust::greater<int>());
  std::cout << "largest first: " << v[0] << ", last: " << v[99999] << "\n"
            << "the pool holds " << tarn::memory_allocated(pool) << " bytes for " << v.size()
            << " elements\n";
  v.clear();
  v.shrink_to_fit();
  std::cout << "after the vector: " << tarn::memory_allocated(pool) << "\n";
}

int main() {
  with_gpu_or_simulated([](auto gpu) { run(gpu); });
}
