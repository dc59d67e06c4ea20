// SPDX-License-Identifier: Apache-2.0
#pragma once
// Size classes: which blocks are interchangeable. Every allocation computes its class first, and a sized
// deallocation needs no lookup because of it.

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "tarn/core/bytes.hpp"
#include "tarn/core/config.hpp"

namespace TARN_NAMESPACE::detail {

/// Every range starts and ends on a multiple of this, bytes (PyTorch rounds to the same).
inline constexpr std::size_t range_grain = 512;

/// Blocks up to this size, bytes, are cut from runs. They are most calls (56-94 % in the recorded traces) and
/// together at most 0.1 % of the live bytes, so a partly filled run has no visible cost.
inline constexpr std::size_t run_limit = 32_KiB;

/// Blocks up to this size, bytes, have a size class and thus a magazine; larger ones keep their exact size.
/// In the recorded traces blocks up to 1 MiB are at most 2.2 % of the peak, so rounding them by at most 6.25
/// % costs at most 0.07 %. Also what statistics call a small block, as PyTorch does, and the zone of a
/// handle.
inline constexpr std::size_t class_limit = 1_MiB;

/// Steps of 256 B to 2 KiB, then 8 steps per doubling to 32 KiB, then 16 to 1 MiB.
inline constexpr unsigned run_class_count = 40;
inline constexpr unsigned class_count = 120;

/// The class of a request of 1 to class_limit bytes. A few instructions and no table; inlined, since a call
/// would add 7 more to the path to a magazine.
[[nodiscard]] TARN_ALWAYS_INLINE constexpr unsigned class_of(std::size_t bytes) noexcept {
  std::size_t const last = bytes - 1;
  if (last < 2048) return static_cast<unsigned>(last >> 8);
  auto const exponent = static_cast<unsigned>(std::bit_width(last)) - 1;
  if (exponent < 15) return 8 + (exponent - 11) * 8 + static_cast<unsigned>((last >> (exponent - 3)) & 7);
  return 40 + (exponent - 15) * 16 + static_cast<unsigned>((last >> (exponent - 4)) & 15);
}

/// Bytes of every block of a class.
[[nodiscard]] constexpr std::size_t compute_class_bytes(unsigned size_class) noexcept {
  if (size_class < 8) return (size_class + std::size_t{1}) << 8;
  if (size_class < 40) {
    unsigned const step = size_class - 8;
    return (9 + std::size_t{step % 8}) << (8 + step / 8);
  }
  unsigned const step = size_class - 40;
  return (17 + std::size_t{step % 16}) << (11 + step / 16);
}

inline constexpr auto class_bytes_table = [] {
  std::array<std::uint32_t, class_count> table{};
  for (unsigned k = 0; k < class_count; ++k) table[k] = static_cast<std::uint32_t>(compute_class_bytes(k));
  return table;
}();

[[nodiscard]] constexpr std::size_t class_bytes(unsigned size_class) noexcept {
  return class_bytes_table[size_class];
}

/// Whether a request has a size class; others keep their exact size. None has 0 bytes, which only a wrong
/// deallocation names.
[[nodiscard]] TARN_ALWAYS_INLINE constexpr bool has_class(std::size_t bytes, std::size_t alignment) noexcept {
  return alignment <= default_alignment && bytes - 1 < class_limit;
}

/// The block that serves a request, for callers that use the numbers several times.
struct block_size {
  std::size_t bytes = 0;
  unsigned size_class = class_count;  ///< class_count if none

  constexpr block_size() noexcept = default;
  /// Pure. `asked` is not 0.
  TARN_ALWAYS_INLINE constexpr block_size(std::size_t asked, std::size_t alignment) noexcept {
    if (tarn::detail::has_class(asked, alignment)) [[likely]] {
      size_class = class_of(asked);
      bytes = class_bytes(size_class);
    } else {
      bytes = align_up(asked, range_grain);
    }
  }
  [[nodiscard]] constexpr bool has_class() const noexcept { return size_class != class_count; }
  [[nodiscard]] constexpr unsigned its_class() const noexcept { return size_class; }
  [[nodiscard]] constexpr std::size_t bytes_in(unsigned) const noexcept { return bytes; }
  [[nodiscard]] constexpr std::size_t large_bytes() const noexcept { return bytes; }
};
/// The same, computed where it is used: fewer instructions for a caller that uses each number once. The
/// alignment is at most default_alignment.
struct lazy_block_size {
  std::size_t asked;

  [[nodiscard]] TARN_ALWAYS_INLINE constexpr bool has_class() const noexcept {
    return asked - 1 < class_limit;
  }
  [[nodiscard]] TARN_ALWAYS_INLINE constexpr unsigned its_class() const noexcept { return class_of(asked); }
  [[nodiscard]] constexpr std::size_t bytes_in(unsigned size_class) const noexcept {
    return class_bytes(size_class);
  }
  [[nodiscard]] constexpr std::size_t large_bytes() const noexcept { return align_up(asked, range_grain); }
};

/// Bytes that a request occupies: its class, or its size rounded to the grain. Pure, so that allocation and
/// sized deallocation agree without a lookup.
[[nodiscard]] TARN_ALWAYS_INLINE constexpr std::size_t rounded_bytes(std::size_t bytes,
                                                                     std::size_t alignment) noexcept {
  return bytes == 0 ? 0 : block_size(bytes, alignment).bytes;
}

/// Handle granularity of current devices, bytes. Blocks of a multiple of it, such as weights and their
/// gradients, start on a multiple if possible: then the free memory next to them is whole granules.
inline constexpr std::size_t usual_granule = 2_MiB;

static_assert(class_of(1) == 0 && class_of(2048) == 7 && class_of(2049) == 8);
static_assert(class_bytes(7) == 2048 && class_bytes(39) == run_limit && class_bytes(119) == class_limit);

}  // namespace TARN_NAMESPACE::detail
