// SPDX-License-Identifier: Apache-2.0
#pragma once
// float16, bfloat16, float8_e4m3, float8_e5m2: storage types for numbers, without arithmetic. The conversions
// work on bit patterns: rounding to nearest even to a narrower format, and exact widening.

#include <cstdint>
#include <type_traits>

#include "tarn/core/config.hpp"

namespace TARN_NAMESPACE {

/// The meaning of a format's largest exponent.
enum class top_exponent : std::uint8_t {
  infinity_and_nan,  ///< as in IEEE 754
  numbers_and_nan    ///< numbers, except the last pattern, which is NaN: the OCP formats marked FN
};

/// The result of converting a value that is too large, infinities included.
enum class overflow : std::uint8_t {
  to_infinity,
  to_largest  ///< the largest number of the same sign, as cuda_fp8's types do (__NV_SATFINITE)
};

/// What a format consists of: a sign, an exponent, and a mantissa without its leading bit.
template <class Bits, int ExponentBits, int MantissaBits, overflow OnOverflow = overflow::to_infinity,
          top_exponent Top = top_exponent::infinity_and_nan>
struct float_format {
  using bits_type = Bits;
  static constexpr int exponent_bits = ExponentBits;
  static constexpr int mantissa_bits = MantissaBits;
  static constexpr overflow on_overflow = OnOverflow;
  static constexpr top_exponent top = Top;
};

/// IEEE 754 binary32, the format of float.
struct binary32 : float_format<std::uint32_t, 8, 23> {};
/// IEEE 754 binary64, the format of double.
struct binary64 : float_format<std::uint64_t, 11, 52> {};
/// IEEE 754 binary16: 11 significant bits, up to 65,504.
struct binary16 : float_format<std::uint16_t, 5, 10> {};
/// The upper half of a binary32: 8 significant bits, the range of float.
struct brain16 : float_format<std::uint16_t, 8, 7> {};
/// OCP E4M3 (FN): 4 significant bits, up to 448, no infinities.
struct ocp_e4m3 : float_format<std::uint8_t, 4, 3, overflow::to_largest, top_exponent::numbers_and_nan> {};
/// OCP E5M2: 3 significant bits, up to 57,344. It has infinities, but no conversion produces one.
struct ocp_e5m2 : float_format<std::uint8_t, 5, 2, overflow::to_largest> {};

namespace detail {

/// Constants derived from a format.
template <class Format>
struct format_of {
  using bits_type = typename Format::bits_type;
  static constexpr int sign_at = Format::exponent_bits + Format::mantissa_bits;
  static constexpr int bias = (1 << (Format::exponent_bits - 1)) - 1;
  static constexpr int top_field = (1 << Format::exponent_bits) - 1;
  static constexpr bool has_infinity = Format::top == top_exponent::infinity_and_nan;
  static constexpr std::uint64_t mantissa_mask = (std::uint64_t{1} << Format::mantissa_bits) - 1;
  static constexpr std::uint64_t infinity = std::uint64_t{top_field} << Format::mantissa_bits;
  static constexpr std::uint64_t largest = has_infinity ? infinity - 1 : (infinity | mantissa_mask) - 1;
  /// The NaN that conversions produce, all bits set except the sign, as in CUDA.
  static constexpr std::uint64_t nan = (std::uint64_t{1} << sign_at) - 1;
};

/// Returns the pattern of To nearest to a pattern of From, ties to even. Every NaN becomes To's single NaN.
template <class To, class From>
[[nodiscard]] TARN_HOST_DEVICE constexpr typename To::bits_type narrowed(
    typename From::bits_type bits) noexcept {
  using to = format_of<To>;
  using from = format_of<From>;
  using word = typename From::bits_type;
  static_assert(To::mantissa_bits < From::mantissa_bits && To::exponent_bits <= From::exponent_bits);
  constexpr int m = From::mantissa_bits;
  constexpr int dropped = m - To::mantissa_bits;
  auto const sign = static_cast<word>(bits >> from::sign_at);
  auto const field = static_cast<int>((bits >> m) & static_cast<word>(from::top_field));
  auto mantissa = static_cast<word>(bits & static_cast<word>(from::mantissa_mask));
  auto const signed_as = [sign](word magnitude) {
    return static_cast<typename To::bits_type>(magnitude | static_cast<word>(sign << to::sign_at));
  };
  if (field == from::top_field) {
    if (mantissa != 0) return static_cast<typename To::bits_type>(to::nan);
    return signed_as(
        static_cast<word>(To::on_overflow == overflow::to_infinity ? to::infinity : to::largest));
  }
  // The value is mantissa * 2^(exponent - m); `steps` is the distance of the exponent from To's smallest one.
  if (field != 0) mantissa = static_cast<word>(mantissa | word{1} << m);
  int const exponent = (field != 0 ? field : 1) - from::bias;
  int const steps = exponent - (1 - to::bias);
  int shift = dropped;
  if (steps < 0)
    shift = -steps < m + 2 - dropped ? dropped - steps : m + 2;  // larger shifts also round to zero
  auto const half = static_cast<word>(word{1} << (shift - 1));
  auto const kept = static_cast<word>(mantissa >> shift);
  auto rounded = static_cast<word>((mantissa + (half - 1) + (kept & 1U)) >> shift);
  // A carry into the exponent is correct, and so is adding the leading one of a normal number.
  if (steps > 0) rounded = static_cast<word>(rounded + (static_cast<word>(steps) << To::mantissa_bits));
  if (rounded > static_cast<word>(to::largest)) {
    rounded = static_cast<word>(To::on_overflow == overflow::to_infinity ? to::infinity : to::largest);
  }
  return signed_as(rounded);
}

/// Returns the binary32 pattern with exactly this value. A NaN keeps its sign and payload and becomes quiet.
template <class From>
[[nodiscard]] TARN_HOST_DEVICE constexpr std::uint32_t widened(typename From::bits_type bits) noexcept {
  using from = format_of<From>;
  constexpr int m = From::mantissa_bits;
  constexpr int up = binary32::mantissa_bits - m;
  auto const word = static_cast<std::uint32_t>(bits);
  std::uint32_t const sign = word >> from::sign_at << 31;
  std::uint32_t mantissa = word & static_cast<std::uint32_t>(from::mantissa_mask);
  int const field = static_cast<int>(word >> m) & from::top_field;
  constexpr std::uint32_t top = 0x7f80'0000;
  constexpr std::uint32_t quiet = 0x0040'0000;
  bool const is_nan = from::has_infinity ? field == from::top_field && mantissa != 0
                                         : (word & static_cast<std::uint32_t>(from::nan)) == from::nan;
  if (is_nan) return sign | top | quiet | mantissa << up;
  if (from::has_infinity && field == from::top_field) return sign | top;
  constexpr int rebias = format_of<binary32>::bias - from::bias;
  if (field != 0 || rebias == 0)
    return sign | static_cast<std::uint32_t>(field + rebias) << 23 | mantissa << up;
  if (mantissa == 0) return sign;
  int exponent = rebias + 1;
  while ((mantissa >> m) == 0) {  // at most m steps: subnormal in From, normal in binary32
    mantissa <<= 1;
    --exponent;
  }
  return sign | static_cast<std::uint32_t>(exponent) << 23 |
         (mantissa & static_cast<std::uint32_t>(from::mantissa_mask)) << up;
}

}  // namespace detail

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
