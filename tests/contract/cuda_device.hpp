// SPDX-License-Identifier: Apache-2.0
#pragma once
// Shared by the CUDA tests: whether there is a device, and work that keeps a stream busy.

#include <cuda_runtime.h>

#include "catch.hpp"
#include "tarn/core/stream.hpp"

namespace tarn_test {

/// The number of devices; prints that the test is skipped if there are fewer than needed.
inline bool has_cuda_devices(int needed = 1) {
  int devices = 0;
  cudaError_t const code = cudaGetDeviceCount(&devices);
  (void)cudaGetLastError();
  if (code == cudaSuccess && devices >= needed) return true;
  WARN("skipped, nothing was tested: " << needed << " CUDA device(s) needed, " << devices << " found ("
                                       << cudaGetErrorName(code) << ")");
  return false;
}

/// A refusing resource must not change CUDA's last error.
struct last_error_is_clean {
  void operator()() const { CHECK(cudaGetLastError() == cudaSuccess); }
};

/// Occupies a stream for a while. A template, so that several files may include it.
template <class Count>
__global__ void spin(Count nanoseconds) {
  Count begin = 0;
  Count now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < nanoseconds);
}

/// Puts work on a stream that continues long after the call has returned.
inline bool keep_busy(tarn::stream_ref stream, unsigned long long milliseconds = 50) {
  spin<<<1, 1, 0, stream.get()>>>(milliseconds * 1'000'000ULL);
  return cudaGetLastError() == cudaSuccess;
}

}  // namespace tarn_test
