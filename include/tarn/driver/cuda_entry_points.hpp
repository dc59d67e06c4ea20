// SPDX-License-Identifier: Apache-2.0
#pragma once
// Entry points of the CUDA driver library, found through the runtime, and its error codes as tarn's failure
// kinds. They are the calls that only the driver library has (virtual memory management, contexts), or that
// it answers faster than the runtime (stream identities). Nothing links to libcuda, and a program starts
// without an installed driver. The runtime and the driver use the same error numbers (since CUDA 10.1), so
// one table serves both.

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <cstddef>
#include <type_traits>

#include "tarn/core/config.hpp"
#include "tarn/core/error.hpp"
#include "tarn/driver/cuda_runtime_calls.hpp"

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
  if (kind != failure::other && kind != failure::unloading) (void)cudart::cudaGetLastError();
  return {kind, static_cast<int>(code), link_cudart_or_define_TARN_NO_CUDA(code), call};
}

/// Converts the result of a runtime call.
[[nodiscard]] inline status cuda_status(cudaError_t code, char const* call) noexcept {
  if (code == cudaSuccess) return {failure::none, 0, "", call};
  return cuda_failed(code, call);
}

/// The entry points and the result of looking them up. A call that this driver lacks is null; if `found` is a
/// failure, all of them are.
///
/// The types are written out, not taken from the declarations in cuda.h: each is the signature of the version
/// that is requested, whatever later toolkits declare under the same name.
struct cuda_entry_points {
  using address = CUdeviceptr;
  using handle = CUmemGenericAllocationHandle;
  using flag_bits = unsigned long long;
  using properties = CUmemAllocationProp const*;

  CUresult(CUDAAPI* get_error_name)(CUresult, char const**) = nullptr;
  CUresult(CUDAAPI* device_get_attribute)(int*, CUdevice_attribute, CUdevice) = nullptr;
  CUresult(CUDAAPI* primary_context_retain)(CUcontext*, CUdevice) = nullptr;
  CUresult(CUDAAPI* primary_context_release)(CUdevice) = nullptr;
  CUresult(CUDAAPI* primary_context_get_state)(CUdevice, unsigned*, int*) = nullptr;
  CUresult(CUDAAPI* context_record_event)(CUcontext, CUevent) = nullptr;  ///< since CUDA 12.5
  CUresult(CUDAAPI* device_get_uuid)(CUuuid*, CUdevice) = nullptr;   ///< since 11.4: UUID of the MIG instance
  CUresult(CUDAAPI* stream_get_id)(CUstream, flag_bits*) = nullptr;  ///< since CUDA 12.0
  CUresult(CUDAAPI* stream_get_device)(CUstream, CUdevice*) = nullptr;  ///< since CUDA 12.8
  CUresult(CUDAAPI* stream_get_context)(CUstream, CUcontext*) = nullptr;
  CUresult(CUDAAPI* context_get_device)(CUdevice*) = nullptr;
  CUresult(CUDAAPI* stream_is_capturing)(CUstream, CUstreamCaptureStatus*) = nullptr;
  CUresult(CUDAAPI* context_push)(CUcontext) = nullptr;
  CUresult(CUDAAPI* context_pop)(CUcontext*) = nullptr;

  CUresult(CUDAAPI* get_granularity)(std::size_t*, properties, CUmemAllocationGranularity_flags) = nullptr;
  CUresult(CUDAAPI* reserve)(address*, std::size_t, std::size_t, address, flag_bits) = nullptr;
  CUresult(CUDAAPI* unreserve)(address, std::size_t) = nullptr;
  CUresult(CUDAAPI* create)(handle*, std::size_t, properties, flag_bits) = nullptr;
  CUresult(CUDAAPI* release)(handle) = nullptr;
  CUresult(CUDAAPI* map)(address, std::size_t, std::size_t, handle, flag_bits) = nullptr;
  CUresult(CUDAAPI* unmap)(address, std::size_t) = nullptr;
  CUresult(CUDAAPI* set_access)(address, std::size_t, CUmemAccessDesc const*, std::size_t) = nullptr;
  CUresult(CUDAAPI* export_handle)(void*, handle, CUmemAllocationHandleType, flag_bits) = nullptr;
  CUresult(CUDAAPI* import_handle)(handle*, void*, CUmemAllocationHandleType) = nullptr;
  CUresult(CUDAAPI* get_range_handle)(void*, address, std::size_t, CUmemRangeHandleType,
                                      flag_bits) = nullptr;  ///< since 11.7

  status found;

  /// Returns true if this driver supports virtual memory management; a device may still lack it.
  [[nodiscard]] bool has_pages() const noexcept {
    return get_granularity != nullptr && reserve != nullptr && unreserve != nullptr && create != nullptr &&
           release != nullptr && map != nullptr && unmap != nullptr && set_access != nullptr &&
           device_get_attribute != nullptr;
  }
  /// Returns true if another device's context can be made current for the duration of a call.
  [[nodiscard]] bool has_contexts() const noexcept {
    return primary_context_retain != nullptr && context_push != nullptr && context_pop != nullptr;
  }
};

/// Looks up one symbol with the signature that CUDA `version` (1000 * major + 10 * minor) introduced.
template <class Function>
void find_entry_point(Function& out, char const* symbol, [[maybe_unused]] unsigned version,
                      status& found) noexcept {
  if (!found.ok()) return;
  void* p = nullptr;
#if CUDART_VERSION >= 12050
  found =
      cuda_status(cudart::cudaGetDriverEntryPointByVersion(symbol, &p, version, cudaEnableDefault, nullptr),
                  "cudaGetDriverEntryPointByVersion");
#else
  found = cuda_status(cudart::cudaGetDriverEntryPoint(symbol, &p, cudaEnableDefault, nullptr),
                      "cudaGetDriverEntryPoint");
#endif
  if (found.ok()) out = reinterpret_cast<Function>(p);
}

[[nodiscard]] inline cuda_entry_points find_cuda_entry_points() noexcept {
  cuda_entry_points e;
  find_entry_point(e.get_error_name, "cuGetErrorName", 6000, e.found);
  find_entry_point(e.device_get_attribute, "cuDeviceGetAttribute", 2000, e.found);
  find_entry_point(e.primary_context_retain, "cuDevicePrimaryCtxRetain", 7000, e.found);
  find_entry_point(e.primary_context_get_state, "cuDevicePrimaryCtxGetState", 7000, e.found);
  find_entry_point(e.context_get_device, "cuCtxGetDevice", 2000, e.found);
  find_entry_point(e.stream_get_context, "cuStreamGetCtx", 9020, e.found);
  find_entry_point(e.context_push, "cuCtxPushCurrent", 4000, e.found);
  find_entry_point(e.context_pop, "cuCtxPopCurrent", 4000, e.found);
  find_entry_point(e.stream_is_capturing, "cuStreamIsCapturing", 10000, e.found);
  find_entry_point(e.get_granularity, "cuMemGetAllocationGranularity", 10020, e.found);
  find_entry_point(e.reserve, "cuMemAddressReserve", 10020, e.found);
  find_entry_point(e.unreserve, "cuMemAddressFree", 10020, e.found);
  find_entry_point(e.create, "cuMemCreate", 10020, e.found);
  find_entry_point(e.release, "cuMemRelease", 10020, e.found);
  find_entry_point(e.map, "cuMemMap", 10020, e.found);
  find_entry_point(e.unmap, "cuMemUnmap", 10020, e.found);
  find_entry_point(e.set_access, "cuMemSetAccess", 10020, e.found);
  find_entry_point(e.export_handle, "cuMemExportToShareableHandle", 10020, e.found);
  find_entry_point(e.import_handle, "cuMemImportFromShareableHandle", 10020, e.found);
  status newer = e.found;  // sorted by version: an older driver lacks only the later ones
  find_entry_point(e.primary_context_release, "cuDevicePrimaryCtxRelease", 11000, newer);
  find_entry_point(e.device_get_uuid, "cuDeviceGetUuid", 11040, newer);
  find_entry_point(e.get_range_handle, "cuMemGetHandleForAddressRange", 11070, newer);
  find_entry_point(e.stream_get_id, "cuStreamGetId", 12000, newer);
  find_entry_point(e.context_record_event, "cuCtxRecordEvent", 12050, newer);
  find_entry_point(e.stream_get_device, "cuStreamGetDevice", 12080, newer);
  if (!newer.ok()) (void)cudart::cudaGetLastError();
  return e;
}

/// Returns the process's table, filled at the first call. Trivially destructible, so it stays valid until
/// process exit.
[[nodiscard]] inline cuda_entry_points const& cuda_driver_calls() noexcept {
  static_assert(std::is_trivially_destructible_v<cuda_entry_points>);
  static cuda_entry_points const entry_points = find_cuda_entry_points();
  return entry_points;
}

/// Converts the result of a driver API call. Does not change the runtime's last error.
[[nodiscard]] inline status cuda_status(CUresult code, char const* call) noexcept {
  if (code == CUDA_SUCCESS) return {failure::none, 0, "", call};
  char const* name = nullptr;
  auto const& calls = cuda_driver_calls();
  if (calls.get_error_name != nullptr) (void)calls.get_error_name(code, &name);
  return {cuda_failure(static_cast<int>(code)), static_cast<int>(code),
          name != nullptr ? name : "an unknown CUresult", call};
}

/// Returns why an entry point is null: no driver is installed, or it is too old for the call.
[[nodiscard]] inline status cuda_lacks(char const* call) noexcept {
  status found = cuda_driver_calls().found;
  if (!found.ok()) return found;
  return {failure::unsupported, static_cast<int>(cudaErrorNotSupported), "CUDA_ERROR_NOT_SUPPORTED", call};
}

}  // namespace TARN_NAMESPACE::detail
