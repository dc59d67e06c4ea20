// SPDX-License-Identifier: Apache-2.0
#pragma once
// The calls of the CUDA runtime that tarn makes. A host compiler sees them as weak references, so that the
// linker names one missing function, and what to do, where the runtime is not linked: not one line for each
// call.

#include <cuda_runtime_api.h>

#include <cstddef>

#include "tarn/core/config.hpp"

#if CUDART_VERSION < 12000
#error "tarn needs CUDA 12 or later, or TARN_NO_CUDA"
#include <tarn-needs-CUDA-12>  // ends the compilation: what follows would only be errors that mislead
#endif

namespace TARN_NAMESPACE::detail {

// Weak references of tarn's alone: a program's own calls of the runtime stay strong. cuda_failed() has the
// one strong reference, by which the linker takes the runtime, one object, out of a static library. A program
// that makes any of these calls also converts results by cuda_status(), which calls that. nvcc and clang's
// CUDA mode link the runtime anyway, and their headers overload these names. Each file has names of its own,
// where the standard wants an inline function to mean one entity in all files; all are the runtime's symbol.
#if defined(__CUDACC__) || !defined(__GNUC__)
#define TARN_CUDART_CALL(name, ...) using ::name;
#else
#define TARN_CUDART_CALL(name, ...) TARN_CUDART_WEAK(name, TARN_CUDART_TEXT(name), __VA_ARGS__)
// An alias has the parameters that it is given: those of the runtime's declaration are compared.
#define TARN_CUDART_WEAK(name, symbol, ...)                                        \
  static_assert(requires { static_cast<cudaError_t (*)(__VA_ARGS__)>(&::name); }); \
  [[maybe_unused, gnu::weakref(symbol)]] static cudaError_t name(__VA_ARGS__);
#define TARN_CUDART_TEXT(name) TARN_CUDART_QUOTED(name)  // of the symbol, where CUDA's macros rename it
#define TARN_CUDART_QUOTED(name) #name
#endif

namespace cudart {

TARN_CUDART_CALL(cudaGetLastError)
TARN_CUDART_CALL(cudaGetDeviceCount, int*)
TARN_CUDART_CALL(cudaGetDevice, int*)
TARN_CUDART_CALL(cudaSetDevice, int)
TARN_CUDART_CALL(cudaDeviceGetAttribute, int*, cudaDeviceAttr, int)
TARN_CUDART_CALL(cudaDeviceGetPCIBusId, char*, int, int)
TARN_CUDART_CALL(cudaDeviceCanAccessPeer, int*, int, int)
TARN_CUDART_CALL(cudaDeviceSynchronize)
TARN_CUDART_CALL(cudaThreadExchangeStreamCaptureMode, cudaStreamCaptureMode*)
TARN_CUDART_CALL(cudaStreamCreateWithFlags, cudaStream_t*, unsigned)
TARN_CUDART_CALL(cudaStreamDestroy, cudaStream_t)
TARN_CUDART_CALL(cudaStreamGetId, cudaStream_t, unsigned long long*)
TARN_CUDART_CALL(cudaStreamIsCapturing, cudaStream_t, cudaStreamCaptureStatus*)
TARN_CUDART_CALL(cudaStreamSynchronize, cudaStream_t)
TARN_CUDART_CALL(cudaStreamWaitEvent, cudaStream_t, cudaEvent_t, unsigned)
TARN_CUDART_CALL(cudaEventCreateWithFlags, cudaEvent_t*, unsigned)
TARN_CUDART_CALL(cudaEventDestroy, cudaEvent_t)
TARN_CUDART_CALL(cudaEventRecord, cudaEvent_t, cudaStream_t)
TARN_CUDART_CALL(cudaEventQuery, cudaEvent_t)
TARN_CUDART_CALL(cudaEventSynchronize, cudaEvent_t)
TARN_CUDART_CALL(cudaIpcGetEventHandle, cudaIpcEventHandle_t*, cudaEvent_t)
TARN_CUDART_CALL(cudaIpcOpenEventHandle, cudaEvent_t*, cudaIpcEventHandle_t)
TARN_CUDART_CALL(cudaMemcpyAsync, void*, void const*, std::size_t, cudaMemcpyKind, cudaStream_t)
TARN_CUDART_CALL(cudaMemcpyPeerAsync, void*, int, void const*, int, std::size_t, cudaStream_t)
TARN_CUDART_CALL(cudaMemsetAsync, void*, int, std::size_t, cudaStream_t)
TARN_CUDART_CALL(cudaMemGetInfo, std::size_t*, std::size_t*)
TARN_CUDART_CALL(cudaMalloc, void**, std::size_t)
TARN_CUDART_CALL(cudaFree, void*)
TARN_CUDART_CALL(cudaMallocAsync, void**, std::size_t, cudaStream_t)
TARN_CUDART_CALL(cudaMallocFromPoolAsync, void**, std::size_t, cudaMemPool_t, cudaStream_t)
TARN_CUDART_CALL(cudaFreeAsync, void*, cudaStream_t)
TARN_CUDART_CALL(cudaDeviceGetDefaultMemPool, cudaMemPool_t*, int)
TARN_CUDART_CALL(cudaMemPoolSetAccess, cudaMemPool_t, cudaMemAccessDesc const*, std::size_t)
TARN_CUDART_CALL(cudaMemPoolSetAttribute, cudaMemPool_t, cudaMemPoolAttr, void*)
TARN_CUDART_CALL(cudaHostAlloc, void**, std::size_t, unsigned)
TARN_CUDART_CALL(cudaFreeHost, void*)
TARN_CUDART_CALL(cudaHostRegister, void*, std::size_t, unsigned)
TARN_CUDART_CALL(cudaHostUnregister, void*)
TARN_CUDART_CALL(cudaMallocManaged, void**, std::size_t, unsigned)
#if CUDART_VERSION >= 13000
TARN_CUDART_CALL(cudaMemGetDefaultMemPool, cudaMemPool_t*, cudaMemLocation*, cudaMemAllocationType)
TARN_CUDART_CALL(cudaMemPrefetchAsync, void const*, std::size_t, cudaMemLocation, unsigned, cudaStream_t)
TARN_CUDART_CALL(cudaMemAdvise, void const*, std::size_t, cudaMemoryAdvise, cudaMemLocation)
#else
TARN_CUDART_CALL(cudaMemPrefetchAsync, void const*, std::size_t, int, cudaStream_t)
TARN_CUDART_CALL(cudaMemAdvise, void const*, std::size_t, cudaMemoryAdvise, int)
#endif
#if CUDART_VERSION >= 12050
TARN_CUDART_CALL(cudaGetDriverEntryPointByVersion, char const*, void**, unsigned, unsigned long long,
                 cudaDriverEntryPointQueryResult*)
#else
TARN_CUDART_CALL(cudaGetDriverEntryPoint, char const*, void**, unsigned long long,
                 cudaDriverEntryPointQueryResult*)
#endif

}  // namespace cudart

#undef TARN_CUDART_CALL
#undef TARN_CUDART_WEAK
#undef TARN_CUDART_TEXT
#undef TARN_CUDART_QUOTED

/// Returns a code's name. The linker names this function where a program does not link the runtime.
// NOLINTNEXTLINE(readability-identifier-naming): the macro's own name
[[nodiscard]] TARN_NOINLINE inline char const* link_cudart_or_define_TARN_NO_CUDA(cudaError_t code) noexcept {
  return cudaGetErrorName(code);
}

}  // namespace TARN_NAMESPACE::detail
