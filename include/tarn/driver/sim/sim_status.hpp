// SPDX-License-Identifier: Apache-2.0
#pragma once
// Error numbers of the simulated GPU and their conversion to a status.

#include "tarn/core/error.hpp"

namespace tarn::detail {

/// Error numbers of the simulated GPU, with the values of cudaError_t.
enum class sim_code : int {
  ok = 0,
  invalid_value = 1,
  out_of_memory = 2,
  forked = 3,
  unloading = 4,
  invalid_device = 101,
  operating_system = 304,
  invalid_handle = 400,
  not_ready = 600,
  illegal_address = 700,
  already_registered = 712,
  not_registered = 713,
  not_permitted = 800,
  not_supported = 801,
  capture_unsupported = 900,
  capture_invalidated = 901,
  capture_merge = 902,
  capture_unmatched = 903,
  capture_unjoined = 904,
  capture_isolation = 905,
  capture_implicit = 906,
  captured_event = 907
};

/// Converts a code to a status of the driver contract.
[[nodiscard]] constexpr status sim_status(sim_code code, char const* call) noexcept {
  auto const make = [&](failure kind, char const* name) {
    return status{kind, static_cast<int>(code), name, call};
  };
  switch (code) {
    case sim_code::ok:
      return {};
    case sim_code::invalid_value:
      return make(failure::other, "cudaErrorInvalidValue");
    case sim_code::out_of_memory:
      return make(failure::out_of_memory, "cudaErrorMemoryAllocation");
    case sim_code::forked:
      return make(failure::forked, "cudaErrorInitializationError");
    case sim_code::unloading:
      return make(failure::unloading, "cudaErrorCudartUnloading");
    case sim_code::invalid_device:
      return make(failure::no_device, "cudaErrorInvalidDevice");
    case sim_code::operating_system:
      return make(failure::other, "cudaErrorOperatingSystem");
    case sim_code::invalid_handle:
      return make(failure::other, "cudaErrorInvalidResourceHandle");
    case sim_code::not_ready:
      return make(failure::not_ready, "cudaErrorNotReady");
    case sim_code::illegal_address:
      return make(failure::other, "cudaErrorIllegalAddress");
    case sim_code::already_registered:
      return make(failure::other, "cudaErrorHostMemoryAlreadyRegistered");
    case sim_code::not_registered:
      return make(failure::other, "cudaErrorHostMemoryNotRegistered");
    case sim_code::not_permitted:
      return make(failure::other, "cudaErrorNotPermitted");
    case sim_code::not_supported:
      return make(failure::unsupported, "cudaErrorNotSupported");
    case sim_code::capture_unsupported:
      return make(failure::other, "cudaErrorStreamCaptureUnsupported");
    case sim_code::capture_invalidated:
      return make(failure::other, "cudaErrorStreamCaptureInvalidated");
    case sim_code::capture_merge:
      return make(failure::other, "cudaErrorStreamCaptureMerge");
    case sim_code::capture_unmatched:
      return make(failure::other, "cudaErrorStreamCaptureUnmatched");
    case sim_code::capture_unjoined:
      return make(failure::other, "cudaErrorStreamCaptureUnjoined");
    case sim_code::capture_isolation:
      return make(failure::other, "cudaErrorStreamCaptureIsolation");
    case sim_code::capture_implicit:
      return make(failure::other, "cudaErrorStreamCaptureImplicit");
    case sim_code::captured_event:
      return make(failure::other, "cudaErrorCapturedEvent");
  }
  return make(failure::other, "cudaErrorUnknown");
}

}  // namespace tarn::detail
