// SPDX-License-Identifier: Apache-2.0
#pragma once
// Error numbers of the simulated GPU and their conversion to a status.

#include "tarn/core/error.hpp"

namespace TARN_NAMESPACE::detail {

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

struct sim_error {
  sim_code code;
  failure kind;
  char const* name;
};
inline constexpr sim_error sim_errors[] = {
    {sim_code::invalid_value, failure::other, "cudaErrorInvalidValue"},
    {sim_code::out_of_memory, failure::out_of_memory, "cudaErrorMemoryAllocation"},
    {sim_code::forked, failure::forked, "cudaErrorInitializationError"},
    {sim_code::unloading, failure::unloading, "cudaErrorCudartUnloading"},
    {sim_code::invalid_device, failure::no_device, "cudaErrorInvalidDevice"},
    {sim_code::operating_system, failure::other, "cudaErrorOperatingSystem"},
    {sim_code::invalid_handle, failure::other, "cudaErrorInvalidResourceHandle"},
    {sim_code::not_ready, failure::not_ready, "cudaErrorNotReady"},
    {sim_code::illegal_address, failure::other, "cudaErrorIllegalAddress"},
    {sim_code::already_registered, failure::other, "cudaErrorHostMemoryAlreadyRegistered"},
    {sim_code::not_registered, failure::other, "cudaErrorHostMemoryNotRegistered"},
    {sim_code::not_permitted, failure::other, "cudaErrorNotPermitted"},
    {sim_code::not_supported, failure::unsupported, "cudaErrorNotSupported"},
    {sim_code::capture_unsupported, failure::other, "cudaErrorStreamCaptureUnsupported"},
    {sim_code::capture_invalidated, failure::other, "cudaErrorStreamCaptureInvalidated"},
    {sim_code::capture_merge, failure::other, "cudaErrorStreamCaptureMerge"},
    {sim_code::capture_unmatched, failure::other, "cudaErrorStreamCaptureUnmatched"},
    {sim_code::capture_unjoined, failure::other, "cudaErrorStreamCaptureUnjoined"},
    {sim_code::capture_isolation, failure::other, "cudaErrorStreamCaptureIsolation"},
    {sim_code::capture_implicit, failure::other, "cudaErrorStreamCaptureImplicit"},
    {sim_code::captured_event, failure::other, "cudaErrorCapturedEvent"},
};

/// Converts a code to a status of the driver contract.
[[nodiscard]] constexpr status sim_status(sim_code code, char const* call) noexcept {
  if (code == sim_code::ok) return {};
  for (sim_error const& e : sim_errors) {
    if (e.code == code) return {e.kind, static_cast<int>(code), e.name, call};
  }
  return {failure::other, static_cast<int>(code), "cudaErrorUnknown", call};
}

}  // namespace TARN_NAMESPACE::detail
