// SPDX-License-Identifier: Apache-2.0
#pragma once
// RAII scopes around CUDA calls: the right device is current, and captures on other threads stay valid.

#include <atomic>

#include "tarn/driver/cuda_entry_points.hpp"
#include "tarn/driver/cuda_runtime_calls.hpp"
#include "tarn/driver/stream_device.hpp"

namespace TARN_NAMESPACE::detail {

/// Where the streams of CUDA live that tarn was given.
[[nodiscard]] inline stream_devices& devices_of_cuda_streams() noexcept {
  static constinit stream_devices all;
  return all;
}

/// Retains a device's primary context until destruction. Handles are not cached: cudaDeviceReset destroys the
/// context, and CUDA does not say what happens to the handle then. Retaining again costs two short calls, and
/// only if another device is current.
///
/// The first retain of each device is never released, so that the context is not recreated for each call. A
/// reset does not release retains (cuDevicePrimaryCtxReset).
class primary_context {
 public:
  primary_context& operator=(primary_context&&) = delete;
  ~primary_context() {
    if (releases_) (void)cuda_driver_calls().primary_context_release(device_);
  }

  [[nodiscard]] status retain(int device, CUcontext& context) noexcept {
    static constexpr int most_devices = 128;
    static std::atomic<bool> is_kept[most_devices];
    auto const& calls = cuda_driver_calls();
    CUcontext retained = nullptr;
    status const s = cuda_status(calls.primary_context_retain(&retained, static_cast<CUdevice>(device)),
                                 "cuDevicePrimaryCtxRetain");
    if (!s.ok()) return s;
    context = retained;
    device_ = static_cast<CUdevice>(device);
    bool const is_first =
        device < 0 || device >= most_devices || !is_kept[device].exchange(true, std::memory_order_relaxed);
    releases_ = !is_first && calls.primary_context_release != nullptr;
    return s;
  }

 private:
  CUdevice device_ = 0;
  bool releases_ = false;
};

/// Makes a device current for one call if it is not, and restores the previous state.
///
/// Around every call of the runtime, since most of them make a context on the current device, also those that
/// name a stream or an event of another one. Pushes the device's primary context rather than calling
/// cudaSetDevice twice: switching back to a device that the program has never used would create a context
/// there, about 500 MiB, for nothing.
class on_device {
 public:
  explicit on_device(int device) noexcept { enter(device); }
  ~on_device() {
    if (!pushed_) return;
    CUcontext ours = nullptr;
    (void)cuda_driver_calls().context_pop(&ours);
  }
  on_device& operator=(on_device&&) = delete;

  /// A failure if the device could not be made current; the call must then be skipped.
  [[nodiscard]] status const& entered() const noexcept { return entered_; }

 private:
  void enter(int device) noexcept {
    int current = 0;
    entered_ = cuda_status(cudart::cudaGetDevice(&current), "cudaGetDevice");
    if (entered_.ok() && current != device) push(device);
    if (entered_.ok()) devices_of_cuda_streams().use(device_id{device});
  }
  void push(int device) noexcept {
    auto const& calls = cuda_driver_calls();
    if (!calls.has_contexts()) {
      entered_ = cuda_lacks("cuCtxPushCurrent");
      return;
    }
    CUcontext context = nullptr;
    entered_ = context_.retain(device, context);
    if (!entered_.ok()) return;
    entered_ = cuda_status(calls.context_push(context), "cuCtxPushCurrent");
    pushed_ = entered_.ok();
  }

  status entered_;
  primary_context context_;  ///< released after the pop
  bool pushed_ = false;
};

/// Permits, for one call of this thread, what a global-mode capture on another thread forbids: event queries,
/// host waits, cudaMalloc. Without it such a call fails and invalidates that capture. The call must not
/// involve a captured stream. ~20 ns.
class beside_capture {
 public:
  beside_capture() noexcept { swapped_ = cudart::cudaThreadExchangeStreamCaptureMode(&mode_) == cudaSuccess; }
  ~beside_capture() {
    if (swapped_) (void)cudart::cudaThreadExchangeStreamCaptureMode(&mode_);
  }
  beside_capture& operator=(beside_capture&&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
  bool swapped_ = false;
};

}  // namespace TARN_NAMESPACE::detail
