// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include "faults/endings.hpp"

namespace {
struct on_cuda {
  using memory_type = tarn::device_pool;
  using pinned_type = tarn::pinned_host;
  /// After cudaDeviceReset the next call creates a new context.
  static constexpr bool context_comes_back = true;
  /// The CUDA runtime in a plug-in may keep the plug-in loaded: that of CUDA 13.0 did in one run of this
  /// test, and not in another.
  static constexpr bool must_unload = false;
  static bool is_here() {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess && count != 0;
  }
  static memory_type memory() { return {}; }
  static pinned_type pinned() { return {}; }
  static void leave_device() {
    int count = 0;
    if (cudaGetDeviceCount(&count) == cudaSuccess && count > 1) (void)cudaSetDevice(1);
  }
  static void come_back() { (void)cudaSetDevice(0); }
  static void lose_context() { (void)cudaDeviceReset(); }
};
}  // namespace

int main(int argc, char** argv) {
  return tarn_test::endings<on_cuda>::run(argc, argv);
}
