// SPDX-License-Identifier: Apache-2.0
#pragma once
// Free ranges by size, found in O(1) for any number of ranges. Two levels of bitmaps over bins, after TLSF
// (Masmano, Ripoll, Crespo, Real, ECRTS 2004), with a short search inside a bin so that the fit is close to
// the best. A range before a hole is taken only if no other range fits, whatever its size (wilderness
// preservation: Korn and Vo, 1985): it can grow, and a second pass over the same requests, which finds it
// grown, then places every block as the first pass did.

#include <bit>
#include <cstddef>
#include <cstdint>

#include "tarn/pool/arena/range.hpp"
#include "tarn/pool/arena/size_class.hpp"

namespace TARN_NAMESPACE::detail {

class range_index {
 public:
  /// Bins per doubling: with 16, ranges in one bin differ by at most 6.25 %.
  static constexpr unsigned bins_per_doubling = 16;
  static constexpr unsigned levels = 36;  ///< up to 512 B << 40: beyond any address space
  /// How many ranges of a bin are searched for the best fit.
  static constexpr std::size_t search_limit = 24;
  /// How many ranges of a list are searched for the largest one.
  static constexpr std::size_t largest_limit = 256;

  void insert(range_table& table, range_ref r) noexcept {
    range& node = table[r];
    node.at_end = node.next != 0 && table[node.next].state == range_state::hole;
    unsigned const bin = bin_of(node.bytes);
    range_ref& head = node.at_end ? ends_ : heads_[bin];
    node.bin_previous = 0;
    node.bin_next = head;
    if (head != 0) table[head].bin_previous = r;
    head = r;
    if (!node.at_end) {
      sub_[bin / bins_per_doubling] |= static_cast<std::uint16_t>(1U << (bin % bins_per_doubling));
      top_ |= std::uint64_t{1} << (bin / bins_per_doubling);
    }
    bytes_ += node.bytes;
    ++count_;
  }

  void erase(range_table& table, range_ref r) noexcept {
    range& node = table[r];
    unsigned const bin = bin_of(node.bytes);
    if (node.bin_previous != 0) {
      table[node.bin_previous].bin_next = node.bin_next;
    } else if (node.at_end) {
      ends_ = node.bin_next;
    } else {
      heads_[bin] = node.bin_next;
      if (heads_[bin] == 0) {
        unsigned const level = bin / bins_per_doubling;
        sub_[level] &= static_cast<std::uint16_t>(~(1U << (bin % bins_per_doubling)));
        if (sub_[level] == 0) top_ &= ~(std::uint64_t{1} << level);
      }
    }
    if (node.bin_next != 0) table[node.bin_next].bin_previous = node.bin_previous;
    bytes_ -= node.bytes;
    --count_;
  }

  /// The smallest range found that holds `bytes` at `alignment`; 0 if none. Ties go to the lower address.
  /// Searches `limit` ranges of a bin: a fitting range may be missed among more of similar size.
  [[nodiscard]] range_ref find(range_table const& table, std::size_t bytes, std::size_t alignment,
                               std::size_t limit = search_limit) const noexcept {
    unsigned bin = bin_of(bytes);
    for (; (bin = next_bin(bin)) < bin_count; ++bin) {
      range_ref const best = best_of(table, heads_[bin], bytes, alignment, limit);
      if (best != 0) return best;
    }
    return ends_ != 0 ? best_of(table, ends_, bytes, alignment, limit) : 0;
  }

  /// Calls f(range_ref) for each range of at least `bytes`, smaller bins first, ranges before a hole last; f
  /// must not change the index.
  template <class F>
  void for_each(range_table const& table, std::size_t bytes, F&& f) const {
    for (unsigned bin = next_bin(bin_of(bytes)); bin < bin_count; bin = next_bin(bin + 1)) {
      for (range_ref r = heads_[bin]; r != 0; r = table[r].bin_next) {
        if (table[r].bytes >= bytes) f(r);
      }
    }
    for (range_ref r = ends_; r != 0; r = table[r].bin_next) {
      if (table[r].bytes >= bytes) f(r);
    }
  }

  /// Calls f(range_ref) for each range that was before a hole when it was inserted.
  template <class F>
  void for_each_at_end(range_table const& table, F&& f) const {
    for (range_ref r = ends_; r != 0; r = table[r].bin_next) f(r);
  }

  /// Any range, 0 if empty.
  [[nodiscard]] range_ref any() const noexcept {
    unsigned const bin = next_bin(0);
    return bin < bin_count ? heads_[bin] : ends_;
  }

  /// Bytes of the largest range; of more than largest_limit ranges of similar size, one of the largest: at
  /// most 6.25 % less. O(1)
  [[nodiscard]] std::size_t largest(range_table const& table) const noexcept {
    std::size_t most = 0;
    auto const look = [&](range_ref r) {
      for (std::size_t left = largest_limit; r != 0 && left != 0; r = table[r].bin_next, --left)
        most = table[r].bytes > most ? table[r].bytes : most;
    };
    look(ends_);
    if (top_ != 0) {
      auto const level = static_cast<unsigned>(std::bit_width(top_)) - 1;
      look(heads_[level * bins_per_doubling + static_cast<unsigned>(std::bit_width(sub_[level])) - 1]);
    }
    return most;
  }

  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::size_t count() const noexcept { return count_; }

 private:
  /// The smallest of a list's first `limit` ranges that holds the request; 0 if none.
  static range_ref best_of(range_table const& table, range_ref r, std::size_t bytes, std::size_t alignment,
                           std::size_t limit) noexcept {
    range_ref best = 0;
    for (std::size_t looked_at = 0; r != 0 && looked_at < limit; r = table[r].bin_next, ++looked_at) {
      range const& node = table[r];
      std::size_t const skipped = align_up(node.address, alignment) - node.address;
      if (node.bytes < skipped || node.bytes - skipped < bytes) continue;
      if (best == 0 || node.bytes < table[best].bytes ||
          (node.bytes == table[best].bytes && node.address < table[best].address)) {
        best = r;
      }
    }
    return best;
  }

  static constexpr unsigned bin_count = levels * bins_per_doubling;

  /// Below 16 grains, one bin per grain; above, the bin is the four bits after the leading one.
  static unsigned bin_of(std::size_t bytes) noexcept {
    std::size_t const grains = bytes / range_grain;
    if (grains < bins_per_doubling) return static_cast<unsigned>(grains);
    auto const exponent = static_cast<unsigned>(std::bit_width(grains)) - 1;
    unsigned const bin =
        (exponent - 3) * bins_per_doubling + static_cast<unsigned>((grains >> (exponent - 4)) & 15);
    return bin < bin_count ? bin : bin_count - 1;
  }

  /// The first non-empty bin from `bin` on.
  [[nodiscard]] unsigned next_bin(unsigned bin) const noexcept {
    if (bin >= bin_count) return bin_count;
    unsigned level = bin / bins_per_doubling;
    unsigned const here = static_cast<unsigned>(sub_[level]) >> (bin % bins_per_doubling);
    if (here != 0) return bin + static_cast<unsigned>(std::countr_zero(here));
    if (level + 1 >= levels) return bin_count;
    std::uint64_t const above = top_ >> (level + 1);
    if (above == 0) return bin_count;
    level += 1 + static_cast<unsigned>(std::countr_zero(above));
    return level * bins_per_doubling +
           static_cast<unsigned>(std::countr_zero(static_cast<unsigned>(sub_[level])));
  }

  std::uint64_t top_ = 0;
  std::uint16_t sub_[levels]{};
  range_ref heads_[bin_count]{};
  range_ref ends_ = 0;  ///< ranges before a hole
  std::size_t bytes_ = 0;
  std::size_t count_ = 0;
};

}  // namespace TARN_NAMESPACE::detail
