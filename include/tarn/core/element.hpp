// SPDX-License-Identifier: Apache-2.0
#pragma once
// Element types that convert into each other, with their names, sizes and conversion.

#include <concepts>
#include <cstddef>
#include <cstdint>

#include "tarn/core/bytes.hpp"
#include "tarn/core/small_float.hpp"

namespace TARN_NAMESPACE {

namespace detail {
template <class T>
inline constexpr bool is_basic_float = false;
template <class Format>
inline constexpr bool is_basic_float<basic_float<Format>> = true;
}  // namespace detail

/// double, float and the formats of small_float.hpp.
template <class T>
concept element = std::same_as<T, double> || std::same_as<T, float> || detail::is_basic_float<T>;

/// Converts one element, rounding once to nearest even. double to float uses the processor's conversion.
template <element To, element From>
[[nodiscard]] TARN_HOST_DEVICE constexpr To element_cast(From value) noexcept {
  return static_cast<To>(value);
}

/// An element type as a value, for settings, tables and budgets; largest first.
enum class element_type : std::uint8_t { f64, f32, f16, bf16, f8_e4m3, f8_e5m2 };
inline constexpr std::size_t element_type_count = 6;

/// The enumerator of a type: `element_type_of<tarn::float16>`.
template <element T>
inline constexpr element_type element_type_of = std::same_as<T, double>        ? element_type::f64
                                                : std::same_as<T, float>       ? element_type::f32
                                                : std::same_as<T, float16>     ? element_type::f16
                                                : std::same_as<T, bfloat16>    ? element_type::bf16
                                                : std::same_as<T, float8_e4m3> ? element_type::f8_e4m3
                                                                               : element_type::f8_e5m2;

/// Bytes of one element.
[[nodiscard]] constexpr std::size_t bytes_of(element_type type) noexcept {
  constexpr std::uint8_t sizes[element_type_count] = {8, 4, 2, 2, 1, 1};
  return sizes[static_cast<std::size_t>(type)];
}
/// Bytes of `count` elements. @throws length_error  the result does not fit in size_t
[[nodiscard]] constexpr std::size_t bytes_of(std::size_t count, element_type type) {
  return checked_bytes(count, bytes_of(type));
}
/// Returns the number of elements that fit into `bytes`.
[[nodiscard]] constexpr std::size_t items_in(std::size_t bytes, element_type type) noexcept {
  return bytes / bytes_of(type);
}
/// Returns the type's name; static storage.
[[nodiscard]] constexpr char const* name_of(element_type type) noexcept {
  constexpr char const* names[element_type_count] = {"float64",  "float32",     "float16",
                                                     "bfloat16", "float8_e4m3", "float8_e5m2"};
  return names[static_cast<std::size_t>(type)];
}

/// Calls `call` with a value of the type that `type` names, to get from a runtime setting to a static type.
template <class Call>
constexpr decltype(auto) with_element(element_type type, Call const& call) {
  switch (type) {
    case element_type::f64:
      return call(double{});
    case element_type::f32:
      return call(float{});
    case element_type::f16:
      return call(float16{});
    case element_type::bf16:
      return call(bfloat16{});
    case element_type::f8_e4m3:
      return call(float8_e4m3{});
    case element_type::f8_e5m2:
      break;
  }
  return call(float8_e5m2{});
}

}  // namespace TARN_NAMESPACE
