// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sizes and alignments: literals, rounding, arithmetic that cannot wrap, and bytes by element type.

#include <concepts>
#include <cstddef>
#include <cstdint>

#include "tarn/core/error.hpp"

namespace TARN_NAMESPACE {

// constexpr, not consteval: clang 14 emits calls of consteval literals in default arguments and templates.
inline namespace literals {
constexpr std::size_t operator""_KiB(unsigned long long n) {
  return static_cast<std::size_t>(n << 10);
}
constexpr std::size_t operator""_MiB(unsigned long long n) {
  return static_cast<std::size_t>(n << 20);
}
constexpr std::size_t operator""_GiB(unsigned long long n) {
  return static_cast<std::size_t>(n << 30);
}
constexpr std::size_t operator""_TiB(unsigned long long n) {
  return static_cast<std::size_t>(n << 40);
}
}  // namespace literals

/// Alignment of every device pointer unless the caller requests more, bytes: the guarantee of cudaMalloc
/// (CUDA C++ Programming Guide, "Device Memory Accesses": at least 256).
inline constexpr std::size_t default_alignment = 256;

namespace detail {
/// Alignment of the elements of an owner, bytes.
template <class T>
inline constexpr std::size_t alignment_of = alignof(T) > default_alignment ? alignof(T) : default_alignment;
}  // namespace detail

/// Largest alignment that every resource must support, bytes; sources of whole pages support more.
inline constexpr std::size_t max_alignment = 2_MiB;

/// Returns true if the alignment is a power of two.
[[nodiscard]] constexpr bool is_alignment(std::size_t alignment) noexcept {
  return alignment != 0 &&
         (alignment & (alignment - 1)) == 0;  // std::has_single_bit calls a function on plain x86-64
}

/// Rounds up to a multiple of a power of two. The caller must ensure that the result fits.
[[nodiscard]] constexpr std::size_t align_up(std::size_t bytes, std::size_t alignment) noexcept {
  return (bytes + (alignment - 1)) & ~(alignment - 1);
}

/// Rounds down to a multiple of a power of two.
[[nodiscard]] constexpr std::size_t align_down(std::size_t bytes, std::size_t alignment) noexcept {
  return bytes & ~(alignment - 1);
}

/// Returns true if the address is a multiple of the alignment.
[[nodiscard]] inline bool is_aligned(void const* p, std::size_t alignment) noexcept {
  return (reinterpret_cast<std::uintptr_t>(p) & (alignment - 1)) == 0;
}

/// Largest size of a single request, bytes: leaves room to round up without wrapping.
inline constexpr std::size_t max_request_bytes = ~std::size_t{0} / 4;

/// Returns the bytes of `count` elements of `element_bytes` each.
/// @throws length_error  the product does not fit in size_t
[[nodiscard]] constexpr std::size_t checked_bytes(std::size_t count, std::size_t element_bytes) {
  if (element_bytes != 0 && count > max_request_bytes / element_bytes) {
    throw length_error("tarn: count * sizeof(T) overflows; ask for fewer elements");
  }
  return count * element_bytes;
}

namespace detail {
/// Converts a count passed by a caller, signed or unsigned. @throws length_error  negative
template <std::integral Count>
[[nodiscard]] constexpr std::size_t checked_count(Count count) {
  if constexpr (std::signed_integral<Count>) {
    if (count < 0) throw length_error("tarn: a count of elements is negative");
  }
  return static_cast<std::size_t>(count);
}
}  // namespace detail

/// Returns the total bytes of the given number of elements of each type, without padding:
/// `bytes_of<float>(n)`, or one sample with its label: `bytes_of<float, std::uint8_t>(3 * 224 * 224, 1)`. A
/// resource rounds each block up (block_bytes()).
/// @throws length_error  more than max_request_bytes, or a negative count; does not compile in a constant
/// expression
template <class... T, std::integral... Count>
  requires(sizeof...(T) != 0 && sizeof...(T) == sizeof...(Count))
[[nodiscard]] constexpr std::size_t bytes_of(Count... counts) {
  std::size_t sum = 0;
  auto const add = [&](std::size_t bytes) {
    if (bytes > max_request_bytes - sum) {
      throw length_error("tarn: the sum of count * sizeof(T) overflows; ask for fewer elements");
    }
    sum += bytes;
  };
  (add(checked_bytes(detail::checked_count(counts), sizeof(T))), ...);
  return sum;
}

/// Returns the number of whole elements that fit into `bytes`.
template <class T>
[[nodiscard]] constexpr std::size_t items_in(std::size_t bytes) noexcept {
  return bytes / sizeof(T);
}

/// Checks an alignment passed by a caller.
/// @param where  for the error
/// @throws bad_alignment  not a power of two, or larger than `limit`
constexpr void require_alignment(std::size_t alignment, std::size_t limit = max_alignment,
                                 source_location where = {}) {
  if (!is_alignment(alignment) || alignment > limit) throw detail::at(where, bad_alignment(alignment, limit));
}

}  // namespace TARN_NAMESPACE
