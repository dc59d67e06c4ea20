// SPDX-License-Identifier: Apache-2.0
#pragma once
// Options, batch types and iterator of stream_batches() and collect_batches().

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <stdexcept>
#include <string_view>

#include "tarn/core/bytes.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/message.hpp"
#include "tarn/core/min_max.hpp"

namespace TARN_NAMESPACE {

struct batch_options {
  /// Maximum bytes per batch; elements are never split. From 16 MiB on, the overhead of a batch besides its
  /// copy is below 3 %. Where host threads fill the slots, larger batches are slower because the slots no
  /// longer fit the processor's cache (bench/results/moving.jsonl).
  std::size_t batch_bytes = 16_MiB;
  /// Number of device slots, that is, batches held at once, including the current one. 1 alternates copy and
  /// work; 2 overlap them; the third hides delays of the host. The host uses as many slots where copies are
  /// staged, one more where threads fill them (so that they do not wait for the copy), and one more than
  /// `threads` for a generator.
  std::size_t depth = 3;
  /// Threads that fill slots ahead of the loop. 0: chosen by size for memory and files, up to 8; a generator
  /// is called by the looping thread.
  unsigned threads = 0;
};

/// Reports options that cannot be met, or a generator that overruns its slot. No data was copied for it.
class bad_batch : public detail::error_of<std::invalid_argument, 320> {
 public:
  explicit bad_batch(std::string_view text) { text_.add("tarn: ").add(text); }
};

/// Elements of one batch and their position in the source. A non-owning view, valid until the loop advances.
template <class T>
class batch_view {
 public:
  using element_type = T;
  batch_view(std::span<T> elements, std::size_t index, std::size_t offset) noexcept
      : elements_(elements), index_(index), offset_(offset) {}

  [[nodiscard]] T* data() const noexcept { return elements_.data(); }
  /// Number of elements; never 0.
  [[nodiscard]] std::size_t size() const noexcept { return elements_.size(); }
  [[nodiscard]] std::size_t bytes() const noexcept { return elements_.size_bytes(); }
  [[nodiscard]] std::span<T> span() const noexcept { return elements_; }
  /// Number of batches before this one.
  [[nodiscard]] std::size_t index() const noexcept { return index_; }
  /// Number of elements before this batch.
  [[nodiscard]] std::size_t offset() const noexcept { return offset_; }

 private:
  std::span<T> elements_;
  std::size_t index_;
  std::size_t offset_;
};

/// A batch in device memory, for work on the loop's stream. That work may write to it.
template <class T>
class device_batch : public batch_view<T> {
 public:
  using batch_view<T>::batch_view;
};

/// A batch in host memory; a contiguous range.
template <class T>
class host_batch : public batch_view<T> {
 public:
  using batch_view<T>::batch_view;
  [[nodiscard]] T* begin() const noexcept { return this->data(); }
  [[nodiscard]] T* end() const noexcept { return this->data() + this->size(); }
  [[nodiscard]] T& operator[](std::size_t i) const noexcept { return this->data()[i]; }
};

namespace detail {

/// Marks an unknown number of elements or batches.
inline constexpr std::size_t unknown_count = static_cast<std::size_t>(-1);

/// Returns the number of elements of a full batch. @throws bad_batch  the options cannot be met
[[nodiscard]] inline std::size_t batch_capacity(batch_options const& options, std::size_t element_bytes) {
  if (options.depth == 0) throw bad_batch("batch_options::depth is 0; use 1 or more, 2 to overlap");
  if (options.batch_bytes < element_bytes || options.batch_bytes > max_request_bytes) {
    message<160> text("batch_options::batch_bytes is ", options.batch_bytes);
    if (options.batch_bytes < element_bytes) {
      text.add("; it must hold at least one element, ").add_number(std::uint64_t{element_bytes}).add(" B");
    } else {
      text.add(", more than the largest request; check the number for overflow");
    }
    throw bad_batch(text.view());
  }
  return options.batch_bytes / element_bytes;
}
/// Returns the number of slots for so many batches. @throws bad_batch  they exceed the largest request
[[nodiscard]] inline std::size_t batch_depth(batch_options const& options, std::size_t batches,
                                             std::size_t bytes_of_slot) {
  std::size_t const depth = min_of(options.depth, batches);
  if (depth > max_request_bytes / bytes_of_slot) {
    message<160> const text("batch_options::depth is ", options.depth,
                            "; so many batches exceed the largest request; check the number for overflow");
    throw bad_batch(text.view());
  }
  return depth;
}

}  // namespace detail

// The single-pass iterator of a range of batches. It stores only a pointer to the range.

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
