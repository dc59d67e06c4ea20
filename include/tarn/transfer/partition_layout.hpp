// SPDX-License-Identifier: Apache-2.0
#pragma once
// partition_layout: divides elements into contiguous parts, evenly or by weight.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "tarn/core/error.hpp"
#include "tarn/core/message.hpp"
#include "tarn/core/min_max.hpp"

namespace TARN_NAMESPACE {

/// Reports a partition that cannot be made, and why.
class bad_partition : public detail::error_of<std::invalid_argument, 320> {
 public:
  explicit bad_partition(std::string_view text) { text_.add(text); }
};

/// Divides elements 0 to size() into contiguous parts. Each element is in exactly one part; parts may be
/// empty. A value type.
class partition_layout {
 public:
  /// Constructs a partition without elements and parts.
  partition_layout() = default;
  /// Divides into parts whose sizes differ by at most one step.
  /// @param multiple_of  the step: a part begins at a multiple of this many elements (a row, a cache line)
  /// @throws bad_partition  `parts` or `multiple_of` is 0
  [[nodiscard]] static partition_layout even(std::size_t count, std::size_t parts,
                                             std::size_t multiple_of = 1,
                                             source_location where = source_location::current()) {
    partition_layout made(count, parts, multiple_of, where);
    std::size_t const steps = steps_of(count, multiple_of);
    for (std::size_t i = 1; i < parts; ++i) {
      std::size_t const before = steps / parts * i + detail::min_of(i, steps % parts);
      made.first_[i] = position_of(before, count, multiple_of);
    }
    return made;
  }
  /// Divides in proportion to weights (memory, speed); each part is within one step of its share.
  /// @throws bad_partition  no weights, a weight is negative or not finite, no weight is positive, or
  /// `multiple_of` is 0
  [[nodiscard]] static partition_layout weighted(std::size_t count, std::span<double const> weights,
                                                 std::size_t multiple_of = 1,
                                                 source_location where = source_location::current()) {
    partition_layout made(count, weights.size(), multiple_of, where);
    // Not double: it would round positions above 2^53, and large weights would add up to infinity.
    long double total = 0;
    for (double const w : weights) {
      if (!(w >= 0) || !std::isfinite(w)) refuse("a weight must be a finite number of at least 0", where);
      total += w;
    }
    if (!(total > 0) || !std::isfinite(total)) refuse("the weights must add up to a number above 0", where);
    auto const steps = static_cast<long double>(steps_of(count, multiple_of));
    long double before = 0;
    for (std::size_t i = 1; i < weights.size(); ++i) {
      before += weights[i - 1];
      long double const position = std::floor(steps * (before / total) + 0.5L);
      // Also covers rounding beyond the last step, and step counts that a long double of few bits cannot
      // represent.
      made.first_[i] =
          position >= steps ? count : position_of(static_cast<std::size_t>(position), count, multiple_of);
    }
    return made;
  }

  /// Returns the total number of elements.
  [[nodiscard]] std::size_t size() const noexcept { return first_.empty() ? 0 : first_.back(); }
  /// Returns the number of parts.
  [[nodiscard]] std::size_t parts() const noexcept { return first_.empty() ? 0 : first_.size() - 1; }
  /// Returns the first element of part i.
  [[nodiscard]] std::size_t first(std::size_t i) const noexcept { return first_[i]; }
  /// Returns the number of elements of part i.
  [[nodiscard]] std::size_t size(std::size_t i) const noexcept { return first_[i + 1] - first_[i]; }
  /// Returns the part that contains an element. @param element  below size(). O(log parts).
  [[nodiscard]] std::size_t part_of(std::size_t element) const noexcept {
    auto const next = std::upper_bound(first_.begin(), first_.end(), element);
    return static_cast<std::size_t>(next - first_.begin()) - 1;
  }

  friend bool operator==(partition_layout const&, partition_layout const&) = default;

 private:
  partition_layout(std::size_t count, std::size_t parts, std::size_t multiple_of, source_location where) {
    if (parts == 0) refuse("it needs at least one part", where);
    if (parts >= first_.max_size()) refuse("the number of parts is too large; check it for overflow", where);
    if (multiple_of == 0) refuse("the multiple at which parts begin must be at least 1 element", where);
    first_.resize(parts + 1);
    first_.back() = count;
  }
  static std::size_t steps_of(std::size_t count, std::size_t multiple_of) noexcept {
    return count / multiple_of + (count % multiple_of != 0 ? 1 : 0);
  }
  static std::size_t position_of(std::size_t step, std::size_t count, std::size_t multiple_of) noexcept {
    return step > count / multiple_of ? count : step * multiple_of;
  }
  [[noreturn]] static void refuse(char const* why, source_location where) {
    throw detail::at(where, bad_partition(message<128>("tarn: invalid partition: ", why).view()));
  }

  std::vector<std::size_t> first_;
};

using partition [[deprecated("write partition_layout")]] = partition_layout;

}  // namespace TARN_NAMESPACE
