// SPDX-License-Identifier: Apache-2.0
#pragma once
// An index from an address to the range that covers it, in O(1) for ranges of any size. It stores for each
// granule the last range that starts in it, and two levels of bitmaps to find the nearest lower granule with
// one.

#include <bit>
#include <cstddef>
#include <cstdint>

#include "tarn/core/zeroed_array.hpp"
#include "tarn/pool/arena/range.hpp"

namespace TARN_NAMESPACE::detail {

class address_index {
 public:
  address_index() noexcept = default;
  address_index& operator=(address_index&&) = delete;

  /// Covers [base, base + bytes); before this, every call does nothing. Four bytes per granule, touched only
  /// where ranges start. Forgets what it covered before. @throws std::bad_alloc
  void set_up(std::uintptr_t base, std::size_t bytes, std::size_t granularity) {
    bytes_ = 0;
    std::size_t const granules = bytes / granularity;
    last_ = zeroed_array<range_ref>(granules);
    starts_ = zeroed_array<std::uint64_t>(granules / 64 + 1);
    words_ = zeroed_array<std::uint64_t>(granules / 4096 + 1);
    base_ = base;
    bytes_ = bytes;
    shift_ = static_cast<unsigned>(std::countr_zero(granularity));
  }

  /// Adds a range; its neighbours are already linked.
  void note(range_table const& table, range_ref r) noexcept {
    std::uintptr_t const address = table[r].address;
    if (!covers(address)) return;
    std::size_t const g = granule_of(address);
    if (last_[g] != 0 && table[last_[g]].address > address) return;
    last_[g] = r;
    starts_[g / 64] |= std::uint64_t{1} << (g % 64);
    words_[g / 4096] |= std::uint64_t{1} << (g / 64 % 64);
  }

  /// Removes a range; its neighbours are still linked.
  void drop(range_table const& table, range_ref r) noexcept {
    if (!covers(table[r].address)) return;
    std::size_t const g = granule_of(table[r].address);
    if (last_[g] != r) return;
    range_ref const before = table[r].previous;
    if (before != 0 && covers(table[before].address) && granule_of(table[before].address) == g) {
      last_[g] = before;
      return;
    }
    last_[g] = 0;
    starts_[g / 64] &= ~(std::uint64_t{1} << (g % 64));
    if (starts_[g / 64] == 0) words_[g / 4096] &= ~(std::uint64_t{1} << (g / 64 % 64));
  }

  /// The range that covers `address`. Requires that one does.
  [[nodiscard]] range_ref find(range_table const& table, std::uintptr_t address) const noexcept {
    range_ref r = last_[granule_with_start(granule_of(address))];
    while (table[r].address > address) r = table[r].previous;
    return r;
  }

  [[nodiscard]] bool covers(std::uintptr_t address) const noexcept {
    return address >= base_ && address - base_ < bytes_;
  }

 private:
  [[nodiscard]] std::size_t granule_of(std::uintptr_t address) const noexcept {
    return (address - base_) >> shift_;
  }

  /// The granule itself or the nearest lower one in which a range starts. Requires that there is one.
  [[nodiscard]] std::size_t granule_with_start(std::size_t g) const noexcept {
    if (std::uint64_t const here = up_to(starts_[g / 64], g % 64); here != 0)
      return g / 64 * 64 + highest(here);
    std::size_t word = g / 64;
    if (std::uint64_t const nearest = below(words_[word / 64], word % 64); nearest != 0) {
      word = word / 64 * 64 + highest(nearest);
    } else {
      std::size_t group = word / 64 - 1;
      while (words_[group] == 0) --group;
      word = group * 64 + highest(words_[group]);
    }
    return word * 64 + highest(starts_[word]);
  }
  static std::uint64_t up_to(std::uint64_t bits, std::size_t i) noexcept {
    return bits & (~std::uint64_t{0} >> (63 - i));
  }
  static std::uint64_t below(std::uint64_t bits, std::size_t i) noexcept {
    return bits & ((std::uint64_t{1} << i) - 1);
  }
  static std::size_t highest(std::uint64_t bits) noexcept {
    return 63 - static_cast<std::size_t>(std::countl_zero(bits));
  }

  zeroed_array<range_ref> last_;
  zeroed_array<std::uint64_t> starts_;  ///< one bit per granule: a range starts in it
  zeroed_array<std::uint64_t> words_;   ///< one bit per word of `starts_` that is not 0
  std::uintptr_t base_ = 0;
  std::size_t bytes_ = 0;
  unsigned shift_ = 0;
};

}  // namespace TARN_NAMESPACE::detail
