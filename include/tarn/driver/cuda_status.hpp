// SPDX-License-Identifier: Apache-2.0
#pragma once
// Maps CUDA's error codes to tarn's failure kinds. The runtime and the driver use the same numbers (since
// CUDA 10.1), so one table serves both.

#include <cuda_runtime_api.h>

#include "tarn/core/config.hpp"
#include "tarn/core/error.hpp"

#if CUDART_VERSION < 12000
#error "tarn needs CUDA 12 or later, or TARN_NO_CUDA"
#include <tarn-needs-CUDA-12>  // ends the compilation: what follows would only be errors that mislead
#endif

namespace TARN_NAMESPACE::detail {

/// Returns the kind of a code; `other` for codes not listed.
[[nodiscard]] constexpr failure cuda_failure(int code) noexcept {
  switch (code) {
    case cudaSuccess:
      return failure::none;
    case cudaErrorNotReady:
      return failure::not_ready;
    case cudaErrorMemoryAllocation:
      return failure::out_of_memory;
    case cudaErrorCudartUnloading:  // also CUDA_ERROR_DEINITIALIZED, but not
      return failure::unloading;    // cudaErrorContextIsDestroyed, which a destroyed stream may return
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

/// Out of line: called on failure only.
[[nodiscard]] TARN_NOINLINE inline status cuda_failed(cudaError_t code, char const* call) noexcept {
  failure const kind = cuda_failure(static_cast<int>(code));
  // The runtime keeps the last error for the next query. Errors that tarn handles itself (by a retry, another
  // source, a typed error) must not show up in a caller's later check; kernel errors must.
  if (kind != failure::other && kind != failure::unloading) (void)cudaGetLastError();
  return {kind, static_cast<int>(code), cudaGetErrorName(code), call};
}

/// Converts the result of a runtime call.
[[nodiscard]] inline status cuda_status(cudaError_t code, char const* call) noexcept {
  if (code == cudaSuccess) return {failure::none, 0, "", call};
  return cuda_failed(code, call);
}

}  // namespace TARN_NAMESPACE::detail
