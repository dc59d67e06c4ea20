// SPDX-License-Identifier: Apache-2.0
// Compares the storage formats with a slow reference that is built only from the formats' definitions: a
// table of all numbers, and the nearest one by distance.

#include "tarn/core/small_float.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "catch.hpp"

using namespace tarn;

namespace {

/// A format as its specification defines it, independent of the header.
struct specification {
  int exponent_bits, mantissa_bits, bias;
  bool has_infinity, saturates;
  unsigned nan;
};
template <class T>
specification specification_of();
template <>
specification specification_of<float16>() {
  return {5, 10, 15, true, false, 0x7fff};
}
template <>
specification specification_of<bfloat16>() {
  return {8, 7, 127, true, false, 0x7fff};
}
template <>
specification specification_of<float8_e4m3>() {
  return {4, 3, 7, false, true, 0x7f};
}
template <>
specification specification_of<float8_e5m2>() {
  return {5, 2, 15, true, true, 0x7f};
}

/// The value of a magnitude's bit pattern by the definition of the format.
double value_of(specification const& s, unsigned bits) {
  unsigned const top = (1U << s.exponent_bits) - 1;
  unsigned const field = bits >> s.mantissa_bits & top;
  unsigned const mantissa = bits & ((1U << s.mantissa_bits) - 1);
  if (field == top && s.has_infinity) return mantissa == 0 ? INFINITY : NAN;
  if (!s.has_infinity && bits == s.nan) return NAN;
  if (field == 0) return std::ldexp(mantissa, 1 - s.bias - s.mantissa_bits);
  return std::ldexp((1U << s.mantissa_bits) + mantissa, static_cast<int>(field) - s.bias - s.mantissa_bits);
}

/// All finite magnitudes in order; the index is the bit pattern.
template <class T>
std::vector<double> const& magnitudes() {
  static std::vector<double> const all = [] {
    std::vector<double> v;
    for (unsigned bits = 0; std::isfinite(value_of(specification_of<T>(), bits)); ++bits)
      v.push_back(value_of(specification_of<T>(), bits));
    return v;
  }();
  return all;
}

/// The pattern of the nearest number; ties go to even. long double has 11 more bits for the differences.
template <class T>
unsigned nearest(double x) {
  specification const s = specification_of<T>();
  std::vector<double> const& all = magnitudes<T>();
  auto const last = static_cast<unsigned>(all.size() - 1);
  unsigned const sign = std::signbit(x) ? 1U << (s.exponent_bits + s.mantissa_bits) : 0;
  if (std::isnan(x)) return s.nan;
  double const magnitude = std::fabs(x);
  unsigned const too_large = s.saturates ? last : last + 1;
  if (std::isinf(magnitude)) return sign | too_large;
  // std::lower_bound by hand: in debug mode, libstdc++'s checks all elements at each call.
  unsigned above = 0;
  for (unsigned left = last + 1; left != 0;) {
    unsigned const half = left / 2;
    bool const is_below = all[above + half] < magnitude;
    above += is_below ? half + 1 : 0;
    left = is_below ? left - half - 1 : half;
  }
  if (above <= last && all[above] == magnitude) return sign | above;
  unsigned const below = above - 1;
  // The next number beyond the largest, as if there were one more exponent.
  long double const next = above <= last ? all[above] : 2.0L * all[last] - all[last - 1];
  long double const down = static_cast<long double>(magnitude) - all[below];
  long double const up = next - static_cast<long double>(magnitude);
  bool const goes_up = up < down || (up == down && (below & 1U) != 0);
  return sign | (goes_up ? (above <= last ? above : too_large) : below);
}

template <class T>
void agrees(double x, unsigned& wrong) {
  if (T(x).bits() != nearest<T>(x)) {
    if (++wrong < 5)
      UNSCOPED_INFO("double " << x << ": " << unsigned{T(x).bits()} << ", not " << nearest<T>(x));
  }
  auto const f = static_cast<float>(x);
  if (T(f).bits() != nearest<T>(f)) {
    if (++wrong < 5)
      UNSCOPED_INFO("float " << f << ": " << unsigned{T(f).bits()} << ", not " << nearest<T>(f));
  }
}

template <class T>
void all_patterns() {
  specification const s = specification_of<T>();
  unsigned const sign = 1U << (s.exponent_bits + s.mantissa_bits);
  unsigned wrong = 0;
  for (unsigned bits = 0; bits < 2 * sign; ++bits) {
    T const stored = T::from_bits(static_cast<typename T::bits_type>(bits));
    double const expected = std::copysign(value_of(s, bits & (sign - 1)), bits >= sign ? -1.0 : 1.0);
    float const seen = static_cast<float>(stored);
    bool const right = std::isnan(expected) ? std::isnan(seen) && std::isnan(static_cast<double>(stored))
                                            : seen == static_cast<float>(expected) &&
                                                  static_cast<double>(stored) == expected &&
                                                  std::signbit(seen) == std::signbit(expected);
    unsigned const back = std::isnan(expected)                  ? s.nan
                          : std::isinf(expected) && s.saturates ? bits - 1
                                                                : bits;
    if (!right || stored.bits() != bits || T(seen).bits() != back) ++wrong;
  }
  CHECK(wrong == 0);
}

template <class T>
void rounding() {
  unsigned wrong = 0;
  std::vector<double> const& all = magnitudes<T>();
  std::size_t const n = all.size();
  for (std::size_t i = 0; i < n; ++i) {
    double const next = i + 1 < n ? all[i + 1] : 2 * all[i] - all[i - 1];
    double const half = all[i] + (next - all[i]) / 2;
    for (double const x : {all[i], half, next}) {
      auto const f = static_cast<float>(x);
      for (double const near : {x, std::nextafter(x, 0.0), std::nextafter(x, INFINITY),
                                double{std::nextafterf(f, 0.0F)}, double{std::nextafterf(f, INFINITY)}}) {
        agrees<T>(near, wrong);
        agrees<T>(-near, wrong);
      }
    }
  }
  double const inf = std::numeric_limits<double>::infinity();
  for (double const x :
       {0.0, inf, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::max(),
        std::numeric_limits<double>::min(), std::numeric_limits<double>::denorm_min(),
        double{std::numeric_limits<float>::max()}, double{std::numeric_limits<float>::denorm_min()}}) {
    agrees<T>(x, wrong);
    agrees<T>(-x, wrong);
  }
  std::mt19937_64 random(7);
  for (int i = 0; i < 50'000; ++i) {
    agrees<T>(double{std::bit_cast<float>(static_cast<std::uint32_t>(random()))}, wrong);
    agrees<T>(std::bit_cast<double>(random()), wrong);
    // In the range of the format's numbers.
    agrees<T>(std::ldexp(std::bit_cast<double>((random() >> 12) | 0x3ff0'0000'0000'0000U),
                         static_cast<int>(random() % 50) - 30),
              wrong);
  }
  CHECK(wrong == 0);
}

constexpr bool at_compile_time = float16(1.0F).bits() == 0x3c00 && float16(65519.0F).bits() == 0x7bff &&
                                 float16(65520.0F).bits() == 0x7c00 && bfloat16(-0.0F).bits() == 0x8000 &&
                                 float8_e4m3(1e9F).bits() == 0x7e && float8_e5m2(1e9).bits() == 0x7b &&
                                 static_cast<float>(float16::from_bits(1)) == 0x1p-24F &&
                                 static_cast<float>(float8_e4m3::largest()) == 448.0F &&
                                 static_cast<float>(float8_e5m2::smallest()) == 0x1p-16F;
static_assert(at_compile_time);

}  // namespace

TEST_CASE("float16, bfloat16 and float8 convert every pattern to its number and back",
          "[core][small_float]") {
  all_patterns<float16>();
  all_patterns<bfloat16>();
  all_patterns<float8_e4m3>();
  all_patterns<float8_e5m2>();
}

TEST_CASE("float16, bfloat16 and float8 round to nearest, ties to even", "[core][small_float]") {
  rounding<float16>();
  rounding<bfloat16>();
  rounding<float8_e4m3>();
  rounding<float8_e5m2>();
}

TEST_CASE("float16 rounds a double once, not through float", "[core][small_float]") {
  double const just_above_half = 1.0 + 0x1p-11 + 0x1p-40;  // as a float it is halfway and would round down
  CHECK(float16(just_above_half).bits() == 0x3c01);
  CHECK(float16(static_cast<float>(just_above_half)).bits() == 0x3c00);
}

TEST_CASE("float16, bfloat16 and float8 compare as numbers", "[core][small_float]") {
  CHECK(float16(0.0F) == float16(-0.0F));
  CHECK_FALSE(float16(std::nanf("")) == float16(std::nanf("")));
  CHECK(float8_e4m3(3) == float8_e4m3(3.1F));
  CHECK(float8_e5m2(bfloat16(1.75F)) == float8_e5m2(1.75F));
  CHECK(bfloat16(float16::from_bits(0x7c00)).bits() == 0x7f80);
  CHECK(float8_e4m3(float16::from_bits(0xfc00)).bits() == 0xfe);
}

TEST_CASE("float16 and float8_e5m2 convert a NaN to a quiet NaN with its sign and payload",
          "[core][small_float]") {
  CHECK(std::bit_cast<std::uint32_t>(static_cast<float>(float16::from_bits(0xfc01))) == 0xffc0'2000);
  CHECK(std::bit_cast<std::uint32_t>(static_cast<float>(float8_e5m2::from_bits(0x7d))) == 0x7fe0'0000);
}

TEST_CASE("largest, smallest, smallest_normal and epsilon give the limits of each storage format",
          "[core][small_float]") {
  CHECK(static_cast<float>(float16::largest()) == 65504.0F);
  CHECK(static_cast<float>(bfloat16::largest()) == 0x1.fep127F);
  CHECK(static_cast<float>(float8_e5m2::largest()) == 57344.0F);
  CHECK(static_cast<float>(float16::smallest_normal()) == 0x1p-14F);
  CHECK(static_cast<float>(bfloat16::smallest()) == 0x1p-133F);
  CHECK(static_cast<float>(float8_e4m3::smallest()) == 0x1p-9F);
  CHECK(float16::epsilon() == 0x1p-10F);
}

// Before version 13 g++ for ARM has no such type in C++.
#if defined(__FLT16_MANT_DIG__) && !defined(__clang__) && (!defined(__aarch64__) || __GNUC__ > 12)
TEST_CASE("float16 rounds as the compiler's _Float16", "[core][small_float]") {
  std::mt19937 random(3);
  unsigned wrong = 0;
  for (int i = 0; i < 1'000'000; ++i) {
    auto const f = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (std::isnan(f)) continue;
    if (std::bit_cast<std::uint16_t>(static_cast<_Float16>(f)) != float16(f).bits()) ++wrong;
    auto const near = std::ldexp(f, -static_cast<int>(std::ilogb(f)) + static_cast<int>(random() % 44) - 28);
    if (std::bit_cast<std::uint16_t>(static_cast<_Float16>(near)) != float16(near).bits()) ++wrong;
  }
  CHECK(wrong == 0);
}
#endif
