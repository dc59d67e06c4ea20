// SPDX-License-Identifier: Apache-2.0
#pragma once
// float16, bfloat16, float8_e4m3, float8_e5m2: storage types for numbers, without arithmetic.

#include <type_traits>

#include "tarn/core/float_format.hpp"

namespace TARN_NAMESPACE {

/// A number stored in 1 or 2 bytes, on host and device; bit-compatible with CUDA's type of the same format
/// (__half,
/// __nv_bfloat16, __nv_fp8_e4m3, __nv_fp8_e5m2). Convert to float, calculate, convert back: both conversions
/// are explicit. Rounds to nearest even, from double in one step; keeps -0.0, subnormals and NaN (one NaN per
/// format; its sign and payload are lost). Values that are too large, including infinities, become infinity
/// in the 16-bit formats and the largest number in the 8-bit ones. Trivially copyable; uninitialised by
/// default, zero when value-initialised.
template <class Format>
class basic_float {
 public:
  using format = Format;
  using bits_type = typename Format::bits_type;

  basic_float() = default;
  TARN_HOST_DEVICE explicit constexpr basic_float(float value) noexcept
      : bits_(detail::narrowed<Format, binary32>(__builtin_bit_cast(std::uint32_t, value))) {}
  /// A template, so that integers convert through float without ambiguity.
  template <class Double>
    requires std::is_same_v<Double, double>
  TARN_HOST_DEVICE explicit constexpr basic_float(Double value) noexcept
      : bits_(detail::narrowed<Format, binary64>(__builtin_bit_cast(std::uint64_t, value))) {}
  /// Converts from another of these formats, with one rounding.
  template <class Other>
  TARN_HOST_DEVICE explicit constexpr basic_float(basic_float<Other> other) noexcept
      : basic_float(static_cast<float>(other)) {}

  /// Returns the number with this bit pattern.
  [[nodiscard]] TARN_HOST_DEVICE static constexpr basic_float from_bits(bits_type bits) noexcept {
    basic_float made{};
    made.bits_ = bits;
    return made;
  }
  [[nodiscard]] TARN_HOST_DEVICE constexpr bits_type bits() const noexcept { return bits_; }

  /// Exact conversion.
  [[nodiscard]] TARN_HOST_DEVICE explicit constexpr operator float() const noexcept {
    return __builtin_bit_cast(float, detail::widened<Format>(bits_));
  }
  [[nodiscard]] TARN_HOST_DEVICE explicit constexpr operator double() const noexcept {
    return static_cast<double>(static_cast<float>(*this));
  }

  /// The largest number.
  [[nodiscard]] TARN_HOST_DEVICE static constexpr basic_float largest() noexcept {
    return from_bits(static_cast<bits_type>(detail::format_of<Format>::largest));
  }
  /// The smallest positive number, which is subnormal.
  [[nodiscard]] TARN_HOST_DEVICE static constexpr basic_float smallest() noexcept { return from_bits(1); }
  /// The smallest positive number with full precision.
  [[nodiscard]] TARN_HOST_DEVICE static constexpr basic_float smallest_normal() noexcept {
    return from_bits(static_cast<bits_type>(1U << Format::mantissa_bits));
  }
  /// Distance from 1 to the next larger number; the relative rounding error is at most half of it.
  [[nodiscard]] TARN_HOST_DEVICE static constexpr float epsilon() noexcept {
    return 1.0F / static_cast<float>(1U << Format::mantissa_bits);
  }

  /// Compares as numbers: NaN is unequal to everything, and both zeros are equal.
  [[nodiscard]] friend TARN_HOST_DEVICE constexpr bool operator==(basic_float a, basic_float b) noexcept {
    return static_cast<float>(a) == static_cast<float>(b);
  }

 private:
  bits_type bits_;
};

using float16 = basic_float<binary16>;
using bfloat16 = basic_float<brain16>;
using float8_e4m3 = basic_float<ocp_e4m3>;
using float8_e5m2 = basic_float<ocp_e5m2>;

static_assert(std::is_trivially_copyable_v<float16> && std::is_trivially_default_constructible_v<float16>);
static_assert(sizeof(float16) == 2 && sizeof(bfloat16) == 2 && sizeof(float8_e4m3) == 1 &&
              sizeof(float8_e5m2) == 1);

}  // namespace TARN_NAMESPACE
