// SPDX-License-Identifier: Apache-2.0
// Five lines: a pool, an owner, a peak, a sort with temporaries from the pool, a summary. Uses CUDA if a device is found (build
// it as .cu), otherwise the simulated device with Thrust's host system.

#include <thrust/device_ptr.h>
#include <thrust/sort.h>

#include <iostream>

#include "tarn/sim.hpp"
#include "tarn/tarn.hpp"
#include "tarn/thrust.hpp"

template <class Pool, class Driver>
int run(Driver const& driver) {
  tarn::basic_stream<Driver> stream{driver};
  std::size_t const n = 1 << 20;

  Pool pool;                                                        // this device, good defaults
  auto weights = tarn::make_device_buffer<float>(pool, n, stream);  // RAII owner, stream-ordered
  tarn::peak_scope peak{pool};                                      // high-water mark of this scope only
  weights.fill(std::byte{0x3f});
  thrust::device_ptr<float> const first(weights.data());
  thrust::sort(tarn::par(pool).on(stream), first, first + n);  // temporaries come from the pool
  std::cout << "peak of the scope: " << peak.peak_bytes() << " bytes, " << peak.peak_above_start()
            << " of them for the sort\n"
            << tarn::memory_summary(pool);
  return 0;
}

int main() {
#if TARN_HAS_CUDA && THRUST_DEVICE_SYSTEM == THRUST_DEVICE_SYSTEM_CUDA
  int devices = 0;
  if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0) {
    std::cout << "running on CUDA: a device was found\n";
    return run<tarn::device_pool>(tarn::cuda_driver{});
  }
  std::cout << "no CUDA device was found, and this program was built for Thrust on CUDA: build "
               "quickstart.cpp with a host "
               "compiler to run it on the simulated device\n";
  return 0;
#else
  std::cout << "running on the simulated device: this program was built without CUDA\n";
  return run<tarn::sim_pool>(tarn::sim_driver{});
#endif
}
