// SPDX-License-Identifier: Apache-2.0
// Five lines: a pool, an owner, a peak, a sort with temporaries from the pool, a summary. On CUDA it is compiled by nvcc, for
// Thrust.

#include <thrust/device_ptr.h>
#include <thrust/sort.h>

#include <iostream>

#include "gpu_or_simulated.hpp"
#include "tarn/tarn.hpp"
#include "tarn/thrust.hpp"

void run(auto gpu) {
  std::size_t const n = 1 << 20;
  auto const stream = gpu.stream();

  auto pool = gpu.device_pool();                                    // this device, good defaults
  auto weights = tarn::make_device_buffer<float>(pool, n, stream);  // RAII owner, stream-ordered
  tarn::peak_scope peak{pool};                                      // high-water mark of this scope only
  weights.fill(std::byte{0x3f});
  thrust::device_ptr<float> const first(weights.data());
  thrust::sort(tarn::par(pool).on(stream), first, first + n);  // temporaries come from the pool
  std::cout << "peak of the scope: " << peak.peak_bytes() << " bytes, " << peak.peak_above_start()
            << " of them for the sort\n"
            << tarn::memory_summary(pool);
}

int main() {
  with_gpu_or_simulated([](auto gpu) { run(gpu); });
}
