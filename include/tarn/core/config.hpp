// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the compiler and the platform offer, as macros and constants. Elsewhere, #if selects only headers and
// system calls that exist on one platform, and only in the file that wraps them: core/wait, core/at_fork,
// core/source_location, pool/cache/owner_lock, debug/backtrace, debug/nvtx_ranged, driver/ and the interop
// headers (tests/architecture/check.py).

#include "tarn/version.hpp"

#if defined(_MSVC_LANG) ? _MSVC_LANG < 202002L : __cplusplus < 202002L
#error "tarn needs C++20: compile with -std=c++20, by nvcc from CUDA 12 on"
#include <tarn-needs-C++20>  // ends the compilation: what follows would only be errors that mislead
#endif
#if defined(__SIZEOF_POINTER__) && __SIZEOF_POINTER__ < 8
#error "tarn needs 64-bit addresses: compile without -m32"
#include <tarn-needs-64-bits>
#endif

#if !defined(TARN_NO_CUDA) && defined(__has_include)
#if __has_include(<cuda_runtime_api.h>)
/// 1 if CUDA's runtime header is on the include path (define TARN_NO_CUDA to ignore it).
#define TARN_HAS_CUDA 1
#endif
#endif
#ifndef TARN_HAS_CUDA
#define TARN_HAS_CUDA 0
#endif

#if !defined(__cpp_exceptions) && !defined(__EXCEPTIONS) && !defined(_CPPUNWIND)
#error "tarn: reports errors by exceptions; compile without -fno-exceptions"
#endif

#if defined(__SANITIZE_THREAD__)
#define TARN_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TARN_TSAN 1
#endif
#endif
#ifndef TARN_TSAN
#define TARN_TSAN 0
#endif

#if defined(__SANITIZE_ADDRESS__)
#define TARN_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TARN_ASAN 1
#endif
#endif
#ifndef TARN_ASAN
#define TARN_ASAN 0
#endif

/// 1: a pool checks that nothing it looked up under its lock (pool/arena/looked_up.hpp), and no room that it
/// made in a table (core/promised_room.hpp), is used after the lock was released, and aborts on the spot if
/// it is. For tests of tarn and of user-defined sources; use the same value in every translation unit.
#ifndef TARN_CHECK_LOCKS
#define TARN_CHECK_LOCKS 0
#endif

/// Stands in each loop over what a pool or a policy holds. Tests of costs count by it how many items a call
/// looks at (tests/costs/costs.cpp); it does nothing otherwise. Use the same value in every translation unit.
#ifndef TARN_VISIT
#define TARN_VISIT() static_cast<void>(0)
#endif

#if defined(__GNUC__) || defined(__clang__)
#define TARN_ALWAYS_INLINE inline __attribute__((always_inline))
#define TARN_NOINLINE __attribute__((noinline))
#define TARN_ALWAYS_INLINE_LAMBDA __attribute__((always_inline))
#elif defined(_MSC_VER)
#define TARN_ALWAYS_INLINE __forceinline
#define TARN_NOINLINE __declspec(noinline)
#define TARN_ALWAYS_INLINE_LAMBDA
#else
#define TARN_ALWAYS_INLINE inline
#define TARN_NOINLINE
#define TARN_ALWAYS_INLINE_LAMBDA
#endif

// Functions that kernels call, too.
#if defined(__CUDACC__)
#define TARN_HOST_DEVICE __host__ __device__
#else
#define TARN_HOST_DEVICE
#endif

namespace TARN_NAMESPACE {

/// Size of a cache line, bytes; data of different threads is kept this far apart. Only speed depends on it.
/// It is 64 on x86-64 and on the ARM processors that CUDA runs on (Neoverse, Cortex-A78AE, Cortex-X925).
/// Others have lines of 128 or 256, and g++ says 256 for ARM to fit all
/// (hardware_destructive_interference_size).
inline constexpr unsigned cache_line_bytes = 64;

namespace detail {
inline constexpr bool check_locks = TARN_CHECK_LOCKS != 0;
}

}  // namespace TARN_NAMESPACE
