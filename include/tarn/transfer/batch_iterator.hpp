// SPDX-License-Identifier: Apache-2.0
#pragma once
// batch_iterator: the single-pass iterator of a range of batches. It stores only a pointer to the range.

#include <cstddef>
#include <iterator>

#include "tarn/version.hpp"

namespace TARN_NAMESPACE {

/// An input iterator. The range must outlive it and provide `Batch now()`, `void next()` and
/// `bool is_over() const noexcept`.
template <class Range, class Batch>
class batch_iterator {
 public:
  using iterator_concept = std::input_iterator_tag;
  using value_type = Batch;
  using difference_type = std::ptrdiff_t;

  batch_iterator() noexcept = default;
  explicit batch_iterator(Range& range) noexcept : range_(&range) {}

  /// Returns the current batch. It is valid until ++.
  [[nodiscard]] Batch operator*() const { return range_->now(); }
  batch_iterator& operator++() {
    range_->next();
    return *this;
  }
  void operator++(int) { ++*this; }
  friend bool operator==(batch_iterator const& it, std::default_sentinel_t) noexcept { return it.is_over(); }

 private:
  [[nodiscard]] bool is_over() const noexcept { return range_->is_over(); }
  Range* range_ = nullptr;
};

}  // namespace TARN_NAMESPACE
