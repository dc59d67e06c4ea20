// SPDX-License-Identifier: Apache-2.0
// Storage formats match CUDA's bit for bit on the device: every pattern of each format, and every float.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cmath>
#include <cstdint>

#include "catch.hpp"
#include "contract/cuda_device.hpp"
#include "tarn/core/small_float.hpp"

using namespace tarn;
using tarn_test::has_cuda_devices;

static_assert(sizeof(float16) == sizeof(__half) && alignof(float16) == alignof(__half));
static_assert(sizeof(bfloat16) == sizeof(__nv_bfloat16) && alignof(bfloat16) == alignof(__nv_bfloat16));
static_assert(sizeof(float8_e4m3) == sizeof(__nv_fp8_e4m3) && sizeof(float8_e5m2) == sizeof(__nv_fp8_e5m2));

namespace {

/// CUDA's own conversions, per format.
template <class T>
struct native;
template <>
struct native<float16> {
  template <class F>
  static __host__ __device__ unsigned bits(F x) {
    if constexpr (sizeof(F) == 8) {
      return __half_raw(__double2half(x)).x;
    } else {
      return __half_raw(__float2half_rn(x)).x;
    }
  }
  static __host__ __device__ float value(unsigned bits) {
    __half_raw raw;
    raw.x = static_cast<unsigned short>(bits);
    return __half2float(__half(raw));
  }
};
template <>
struct native<bfloat16> {
  template <class F>
  static __host__ __device__ unsigned bits(F x) {
    if constexpr (sizeof(F) == 8) {
      return __nv_bfloat16_raw(__double2bfloat16(x)).x;
    } else {
      return __nv_bfloat16_raw(__float2bfloat16_rn(x)).x;
    }
  }
  static __host__ __device__ float value(unsigned bits) {
    __nv_bfloat16_raw raw;
    raw.x = static_cast<unsigned short>(bits);
    return __bfloat162float(__nv_bfloat16(raw));
  }
};
template <>
struct native<float8_e4m3> {
  template <class F>
  static __host__ __device__ unsigned bits(F x) {
    return __nv_fp8_e4m3(x).__x;
  }
  static __host__ __device__ float value(unsigned bits) {
    __nv_fp8_e4m3 x;
    x.__x = static_cast<unsigned char>(bits);
    return static_cast<float>(x);
  }
};
template <>
struct native<float8_e5m2> {
  template <class F>
  static __host__ __device__ unsigned bits(F x) {
    return __nv_fp8_e5m2(x).__x;
  }
  static __host__ __device__ float value(unsigned bits) {
    __nv_fp8_e5m2 x;
    x.__x = static_cast<unsigned char>(bits);
    return static_cast<float>(x);
  }
};

/// Compares numbers bit for bit; all NaNs are equal.
__host__ __device__ inline bool same_value(float a, float b) {
  return (a != a && b != b) || __builtin_bit_cast(unsigned, a) == __builtin_bit_cast(unsigned, b);
}
template <class T>
__host__ __device__ bool pattern_agrees(unsigned bits) {
  return same_value(static_cast<float>(T::from_bits(static_cast<typename T::bits_type>(bits))),
                    native<T>::value(bits));
}
template <class T, class F>
__host__ __device__ bool rounding_agrees(F x) {
  unsigned const ours = T(x).bits();
  unsigned const theirs = native<T>::bits(x);
  bool const is_nan = native<T>::value(theirs) != native<T>::value(theirs);
  return is_nan ? native<T>::value(ours) != native<T>::value(ours) : ours == theirs;
}

struct disagreements {
  unsigned long long patterns, floats, doubles;
};

template <class T>
__global__ void compare(disagreements* found, unsigned long long float_step, unsigned long long doubles) {
  unsigned long long const stride = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
  unsigned long long const first = static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (unsigned long long i = first; i < 1ULL << (8 * sizeof(T)); i += stride) {
    if (!pattern_agrees<T>(static_cast<unsigned>(i))) atomicAdd(&found->patterns, 1ULL);
  }
  for (unsigned long long i = first * float_step; i < 1ULL << 32; i += stride * float_step) {
    if (!rounding_agrees<T>(__builtin_bit_cast(float, static_cast<unsigned>(i))))
      atomicAdd(&found->floats, 1ULL);
  }
  for (unsigned long long i = first; i < doubles; i += stride) {
    unsigned long long bits = i * 0x9E3779B97F4A7C15ULL;  // spread over all exponents
    if (i % 2 == 0)
      bits = (bits & 0x800F'FFFF'FFFF'FFFFULL) | (1023ULL - 30 + bits % 61)
                                                     << 52;  // in the range of the formats
    if (i % 3 == 0) bits &= ~0ULL << 39;                     // some are halfway cases
    if (!rounding_agrees<T>(__builtin_bit_cast(double, bits))) atomicAdd(&found->doubles, 1ULL);
  }
}

template <class T>
void agrees_on_the_device() {
  disagreements* found = nullptr;
  REQUIRE(cudaMallocManaged(&found, sizeof *found) == cudaSuccess);
  *found = {};
  compare<T><<<1024, 256>>>(found, 1, 1ULL << 26);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  CHECK(found->patterns == 0);
  CHECK(found->floats == 0);
  CHECK(found->doubles == 0);
  REQUIRE(cudaFree(found) == cudaSuccess);
}

template <class T>
void agrees_on_the_host() {
  unsigned wrong = 0;
  for (unsigned bits = 0; bits < 1U << (8 * sizeof(T)); ++bits) wrong += pattern_agrees<T>(bits) ? 0U : 1U;
  for (unsigned long long i = 0; i < 1ULL << 32; i += 4099)
    wrong += rounding_agrees<T>(__builtin_bit_cast(float, static_cast<unsigned>(i))) ? 0U : 1U;
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("float16, bfloat16 and float8 match CUDA on the device for every pattern and every float",
          "[core][small_float][cuda]") {
  if (!has_cuda_devices()) return;
  agrees_on_the_device<float16>();
  agrees_on_the_device<bfloat16>();
  agrees_on_the_device<float8_e4m3>();
  agrees_on_the_device<float8_e5m2>();
}

TEST_CASE("float16, bfloat16 and float8 match CUDA on the host without a device", "[core][small_float]") {
  agrees_on_the_host<float16>();
  agrees_on_the_host<bfloat16>();
  agrees_on_the_host<float8_e4m3>();
  agrees_on_the_host<float8_e5m2>();
}
