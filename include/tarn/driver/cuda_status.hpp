// SPDX-License-Identifier: Apache-2.0
#pragma once
// What CUDA's error codes mean to tarn. The runtime and the driver number their errors alike (since
// CUDA 10.1), so one table serves both.

#include <cuda_runtime_api.h>

#include "tarn/core/config.hpp"
#include "tarn/core/error.hpp"

namespace tarn::detail {

/// The kind of a code. Whatever is not named here is `other`.
[[nodiscard]] constexpr failure cuda_failure(int code) noexcept {
  switch (code) {
    case cudaSuccess:
      return failure::none;
    case cudaErrorNotReady:
      return failure::not_ready;
    case cudaErrorMemoryAllocation:
      return failure::out_of_memory;
    case cudaErrorCudartUnloading:  // also CUDA_ERROR_DEINITIALIZED; not cudaErrorContextIsDestroyed, which
      return failure::unloading;    // a destroyed stream may answer with while all else lives
    case cudaErrorNotSupported:
    case cudaErrorCallRequiresNewerDriver:
      return failure::unsupported;
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorStubLibrary:
    case cudaErrorDevicesUnavailable:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
      return failure::no_device;
    default:
      return failure::other;
  }
}

/// Out of line: only failures come here.
[[nodiscard]] TARN_NOINLINE inline status cuda_failed(cudaError_t code, char const* call) noexcept {
  failure const kind = cuda_failure(static_cast<int>(code));
  // The runtime keeps the last error for the next one who asks. What tarn answers itself (by a retry, another
  // source, a typed error) must not surface in a caller's later check; errors of kernels stay to be seen.
  if (kind != failure::other && kind != failure::unloading) (void)cudaGetLastError();
  return {kind, static_cast<int>(code), cudaGetErrorName(code), call};
}

/// Outcome of one runtime call.
[[nodiscard]] inline status cuda_status(cudaError_t code, char const* call) noexcept {
  if (code == cudaSuccess) return {failure::none, 0, "", call};
  return cuda_failed(code, call);
}

}  // namespace tarn::detail
