// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a CUDA call needs around it and must leave as it was: the right device current, and no graph capture
// spoiled. Above it: cuda_driver. Below it: cuda_entry_points.

#include <atomic>

#include "tarn/driver/cuda_entry_points.hpp"

namespace tarn::detail {

/// The primary context of a device, retained once for the life of the process; null if there is none.
[[nodiscard]] inline CUcontext retain_primary_context(int device) noexcept {
  auto const& calls = cuda_driver_calls();
  CUcontext context = nullptr;
  if (calls.primary_context_retain(&context, static_cast<CUdevice>(device)) != CUDA_SUCCESS) return nullptr;
  return context;
}

/// The contexts that were retained, so that a change of device costs one push and one pop.
inline constexpr int most_devices = 128;
[[nodiscard]] inline std::atomic<CUcontext>* remembered_contexts() noexcept {
  static std::atomic<CUcontext> contexts[most_devices];
  return contexts;
}

/// Makes a device current for one call, if it is not, and leaves everything as it was.
///
/// It pushes the device's primary context rather than calling cudaSetDevice twice: setting back to a device
/// that the program has never used would create a context there, some 500 MiB, for nothing.
class on_device {
 public:
  explicit on_device(int device) noexcept { enter(device); }
  /// Only what goes to a default stream depends on the current device: other streams know their own.
  on_device(int device, cudaStream_t stream) noexcept {
    if (stream == cudaStreamLegacy || stream == cudaStreamPerThread) enter(device);
  }
  ~on_device() {
    if (!pushed_) return;
    CUcontext ours = nullptr;
    (void)cuda_driver_calls().context_pop(&ours);
  }
  on_device(on_device const&) = delete;
  on_device& operator=(on_device const&) = delete;

  /// A failure if the device could not be made current; then the call must not be made.
  [[nodiscard]] status const& entered() const noexcept { return entered_; }

 private:
  void enter(int device) noexcept {
    int current = 0;
    entered_ = cuda_status(cudaGetDevice(&current), "cudaGetDevice");
    if (!entered_.ok() || current == device) return;
    auto const& calls = cuda_driver_calls();
    if (!calls.has_contexts()) {
      entered_ = cuda_lacks("cuCtxPushCurrent");
      return;
    }
    std::atomic<CUcontext>* const remembered =
        device >= 0 && device < most_devices ? remembered_contexts() + device : nullptr;
    CUcontext context = remembered != nullptr ? remembered->load(std::memory_order_acquire) : nullptr;
    if (context != nullptr) push(context);
    if (pushed_) return;
    context = retain_primary_context(device);  // the first time, or cudaDeviceReset has destroyed the old one
    if (context == nullptr) {
      entered_ = {failure::no_device, static_cast<int>(cudaErrorInvalidDevice), "cudaErrorInvalidDevice",
                  "cuDevicePrimaryCtxRetain"};
      return;
    }
    push(context);
    if (pushed_ && remembered != nullptr) remembered->store(context, std::memory_order_release);
  }

  void push(CUcontext context) noexcept {
    entered_ = cuda_status(cuda_driver_calls().context_push(context), "cuCtxPushCurrent");
    pushed_ = entered_.ok();
  }

  status entered_;
  bool pushed_ = false;
};

/// Lets this thread make, for one call, what a capture in global mode on another thread forbids: event
/// queries, waits on the host, cudaMalloc. Without it such a call fails and ends the other thread's capture.
/// The call itself has nothing to do with any captured stream. ~20 ns.
class beside_capture {
 public:
  beside_capture() noexcept { swapped_ = cudaThreadExchangeStreamCaptureMode(&mode_) == cudaSuccess; }
  ~beside_capture() {
    if (swapped_) (void)cudaThreadExchangeStreamCaptureMode(&mode_);
  }
  beside_capture(beside_capture const&) = delete;
  beside_capture& operator=(beside_capture const&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
  bool swapped_ = false;
};

}  // namespace tarn::detail
