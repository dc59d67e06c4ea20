// SPDX-License-Identifier: Apache-2.0
// A device_vector in the pool, and a sort whose temporaries come from the pool.

#include <tarn/tarn.hpp>
#include <tarn/thrust.hpp>

#include <thrust/device_vector.h>
#include <thrust/reduce.h>
#include <thrust/sequence.h>
#include <thrust/sort.h>

#include <iostream>

int main() {
  tarn::device_pool pool;
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
