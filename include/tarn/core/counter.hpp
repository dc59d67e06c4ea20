// SPDX-License-Identifier: Apache-2.0
#pragma once
// counter: one statistic in the form that PyTorch uses, with its current value, its peak, and the totals
// of increases and decreases.

#include <cstdint>

#include "tarn/core/min_max.hpp"

namespace TARN_NAMESPACE {

/// One statistic. Not synchronised: the owner holds a lock.
struct counter {
  std::int64_t current = 0;
  std::int64_t peak = 0;       ///< since the last reset_peak()
  std::int64_t allocated = 0;  ///< total of all increases
  std::int64_t freed = 0;      ///< total of all decreases

  constexpr void increase(std::int64_t amount) noexcept {
    current += amount;
    allocated += amount;
    peak = detail::max_of(peak, current);
  }
  constexpr void decrease(std::int64_t amount) noexcept {
    current -= amount;
    freed += amount;
  }
  /// Applies many changes at once, none of which exceeded the peak; `came` is the sum of the increases.
  constexpr void add(std::int64_t change, std::int64_t came) noexcept {
    current += change;
    allocated += came;
    freed += came - change;
  }
  /// Adds another statistic. The sum of two peaks is an upper bound: they may have occurred at different
  /// times.
  constexpr void add(counter const& other) noexcept {
    current += other.current;
    peak += other.peak;
    allocated += other.allocated;
    freed += other.freed;
  }
  constexpr void reset_peak() noexcept { peak = current; }
  constexpr void reset_totals() noexcept { allocated = freed = 0; }
};

namespace detail {
/// A pointer to a member of a statistic, for tables. nvcc puts one that is written out in parentheses, of
/// which gcc warns.
template <class Statistics, class Value>
using number_in = Value Statistics::*;
}  // namespace detail

}  // namespace TARN_NAMESPACE
