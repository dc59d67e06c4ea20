// SPDX-License-Identifier: Apache-2.0
#pragma once
// Element conversion on CUDA: a kernel that moves 16 bytes at a time and uses the device's conversion
// instructions. Needs nvcc; other compilers may include this file, and report an error only where convert()
// is used.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tarn/core/element.hpp"
#include "tarn/driver/cuda_driver.hpp"

#if defined(__CUDACC__)

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

namespace TARN_NAMESPACE {

namespace detail {

template <class To, class From>
struct cuda_conversion {
  /// Elements that one thread converts at a time: 16 bytes of the wider type.
  static constexpr int together =
      16 / static_cast<int>(sizeof(To) > sizeof(From) ? sizeof(To) : sizeof(From));

  static __device__ float widen(float x) { return x; }
  static __device__ float widen(bfloat16 x) { return __uint_as_float(std::uint32_t{x.bits()} << 16); }
  static __device__ float widen(float16 x) { return __half2float(__ushort_as_half(x.bits())); }
  static __device__ float widen(float8_e4m3 x) {
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(x.bits(), __NV_E4M3)));
  }
  static __device__ float widen(float8_e5m2 x) {
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(x.bits(), __NV_E5M2)));
  }
  static __device__ To narrow(float x) {
    if constexpr (sizeof(To) >= sizeof(float)) {
      return static_cast<To>(x);
    } else if constexpr (element_type_of<To> == element_type::f16) {
      return To::from_bits(__half_as_ushort(__float2half_rn(x)));
    } else if constexpr (element_type_of<To> == element_type::bf16) {
      return To::from_bits(__bfloat16_as_ushort(__float2bfloat16_rn(x)));
    } else {
      return To::from_bits(__nv_cvt_float_to_fp8(x, __NV_SATFINITE, eight_bits<To>));
    }
  }

  static __device__ To one(From x) {
    if constexpr (sizeof(From) == sizeof(double)) {
      return element_cast<To>(x);  // rounds once; two instructions would round twice
    } else {
      return narrow(widen(x));
    }
  }
  /// Converts a pair, with one instruction if the types have a paired instruction.
  static __device__ void two(To* to, From const* from) {
    if constexpr (sizeof(From) == sizeof(double) || (sizeof(To) != 1 && sizeof(From) != 1)) {
      to[0] = one(from[0]);
      to[1] = one(from[1]);
    } else if constexpr (sizeof(To) == 1) {
      __nv_fp8x2_storage_t const bits =
          __nv_cvt_float2_to_fp8x2(widen_two(from), __NV_SATFINITE, eight_bits<To>);
      to[0] = To::from_bits(static_cast<std::uint8_t>(bits));
      to[1] = To::from_bits(static_cast<std::uint8_t>(bits >> 8));
    } else {
      float2 const pair = widen_two(from);
      to[0] = narrow(pair.x);
      to[1] = narrow(pair.y);
    }
  }

 private:
  static __device__ float2 widen_two(From const* from) {
    if constexpr (sizeof(From) == 1) {
      auto const bits = static_cast<__nv_fp8x2_storage_t>(from[0].bits() | from[1].bits() << 8);
      return __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(bits, eight_bits<From>)));
    } else {
      return make_float2(widen(from[0]), widen(from[1]));
    }
  }
  template <class T>
  static constexpr __nv_fp8_interpretation_t eight_bits =
      element_type_of<T> == element_type::f8_e5m2 ? __NV_E5M2 : __NV_E4M3;
};

/// A word of `Bytes` bytes that is loaded and stored with one instruction.
template <int Bytes>
using cuda_word = std::conditional_t<
    Bytes == 2, std::uint16_t,
    std::conditional_t<Bytes == 4, std::uint32_t, std::conditional_t<Bytes == 8, uint2, uint4>>>;

/// A range split into words: `head` single elements, then `words` words, then single elements up to `count`.
struct cuda_split {
  std::size_t head;
  std::size_t words;
  std::size_t count;
};

template <class To, class From>
__global__ void __launch_bounds__(256) cuda_convert_elements(To* to, From const* from, cuda_split split) {
  using conversion = cuda_conversion<To, From>;
  constexpr int n = conversion::together;
  using to_word = cuda_word<n* static_cast<int>(sizeof(To))>;
  using from_word = cuda_word<n* static_cast<int>(sizeof(From))>;
  std::size_t const stride = std::size_t{gridDim.x} * blockDim.x;
  std::size_t const first = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;

  std::size_t const singly = split.count - split.words * n;
  for (std::size_t i = first; i < singly; i += stride) {
    std::size_t const at = i < split.head ? i : i + split.words * n;
    to[at] = conversion::one(from[at]);
  }

  auto const* const source = reinterpret_cast<from_word const*>(from + split.head);
  auto* const target = reinterpret_cast<to_word*>(to + split.head);
  auto const convert = [](from_word loaded) {
    From in[n];
    To out[n];
    to_word stored;
    memcpy(in, &loaded, sizeof loaded);
#pragma unroll
    for (int i = 0; i < n; i += 2) conversion::two(out + i, in + i);
    memcpy(&stored, out, sizeof stored);
    return stored;
  };
  // Four loads are in flight before the first result is needed, to hide memory latency.
  std::size_t i = first;
  for (; i + 3 * stride < split.words; i += 4 * stride) {
    from_word const a = source[i];
    from_word const b = source[i + stride];
    from_word const c = source[i + 2 * stride];
    from_word const d = source[i + 3 * stride];
    target[i] = convert(a);
    target[i + stride] = convert(b);
    target[i + 2 * stride] = convert(c);
    target[i + 3 * stride] = convert(d);
  }
  for (; i < split.words; i += stride) target[i] = convert(source[i]);
}

/// Splits a range so that the words are aligned on both sides; without words if no offset aligns both.
template <class To, class From>
[[nodiscard]] cuda_split cuda_split_of(To const* to, From const* from, std::size_t count) noexcept {
  constexpr std::size_t n = static_cast<std::size_t>(cuda_conversion<To, From>::together);
  for (std::size_t head = 0; head < n && head < count; ++head) {
    if (is_aligned(to + head, n * sizeof(To)) && is_aligned(from + head, n * sizeof(From))) {
      return {head, (count - head) / n, count};
    }
  }
  return {0, 0, count};
}

}  // namespace detail

template <null_stream Null>
template <class To, class From>
status basic_cuda_driver<Null>::convert(stream_ref stream, To* to, From const* from,
                                        std::size_t count) const noexcept {
  static_assert(element<To> && element<From>,
                "tarn: convert() supports only the types of tarn/core/element.hpp");
  if (count == 0) return {};
  detail::on_device const here(device_for(stream));
  if (!here.entered().ok()) return here.entered();
  detail::cuda_split split = detail::cuda_split_of(to, from, count);
  // Four words per thread, more if the grid would exceed its limit.
  constexpr std::size_t threads = 256;
  constexpr std::size_t most_blocks = std::size_t{1} << 20;
  std::size_t const units = split.words != 0 ? split.words / 4 + 1 : count;
  std::size_t const blocks = units / threads + 1 < most_blocks ? units / threads + 1 : most_blocks;
  void* arguments[] = {&to, &from, &split};
  void (*const kernel)(To*, From const*, detail::cuda_split) = &detail::cuda_convert_elements<To, From>;
  // As void const*: the host code that nvcc 12.4 writes finds no template for the kernel's type.
  return detail::cuda_status(
      cudaLaunchKernel(reinterpret_cast<void const*>(kernel), dim3(static_cast<unsigned>(blocks)),
                       dim3(static_cast<unsigned>(threads)), arguments, 0, reach(stream)),
      "cudaLaunchKernel");
}

}  // namespace TARN_NAMESPACE

#else

namespace TARN_NAMESPACE {

template <null_stream Null>
template <class To, class From>
status basic_cuda_driver<Null>::convert(stream_ref, To*, From const*, std::size_t) const noexcept {
  static_assert(sizeof(To) == 0,
                "tarn: converting on CUDA launches a kernel; compile this file with nvcc (name it .cu)");
  return {};
}

}  // namespace TARN_NAMESPACE

#endif
