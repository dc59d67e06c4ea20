// SPDX-License-Identifier: Apache-2.0
#pragma once
// micro_batches: splits work into parts that fit a memory budget, as gradient accumulation needs.

#include <cstddef>
#include <iterator>

#include "tarn/core/bytes.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/transfer/available_memory.hpp"

namespace TARN_NAMESPACE {

/// What happens if one item does not fit the budget.
enum class too_large_item {
  refuse,        ///< throws out_of_memory before anything is done
  one_at_a_time  ///< parts of one item each: the allocation itself may still succeed or fail
};

struct micro_batch_options {
  /// Thousandths of the available memory that are left unused: blocks are rounded up (small ones by up
  /// to 12.5 %), and other programs use the device. A budget given as a number of bytes is used completely.
  unsigned reserve_per_mille = 50;
  too_large_item when_too_large = too_large_item::refuse;
  std::size_t most_items = ~std::size_t{0};  ///< maximum items per part, regardless of memory; 0 counts as 1
};

/// Consecutive items: [first, first + count) of `of`.
struct micro_batch {
  std::size_t first = 0;
  std::size_t count = 0;
  std::size_t index = 0;  ///< index of the part, from 0
  std::size_t of = 0;     ///< total items of all parts

  /// Returns the part's share of all items. Scaled by it, the mean losses of all parts accumulate to the
  /// gradients of the whole batch, although the last parts have one item fewer. The weights of all parts add
  /// up to 1.
  [[nodiscard]] double weight() const noexcept {
    return static_cast<double>(count) / static_cast<double>(of);
  }
};

/// Splits `n` items into the fewest parts that fit a budget, as evenly as possible: sizes differ by at most
/// one item. The split is computed once, on construction, and does not follow later allocations; construct
/// again for current figures. A forward range of micro_batch; a small value that holds no memory and no
/// resource. Zero items give no parts.
class micro_batches {
  struct split {
    std::size_t items = 0;
    std::size_t parts = 0;
    std::size_t each = 0;   ///< items per smaller part
    std::size_t extra = 0;  ///< parts with one more item; they come first
    [[nodiscard]] micro_batch part(std::size_t index) const noexcept {
      std::size_t const larger = detail::min_of(index, extra);
      return {index * each + larger, each + (index < extra ? 1 : 0), index, items};
    }
  };

 public:
  class iterator {
   public:
    using value_type = micro_batch;
    using reference = micro_batch;
    using difference_type = std::ptrdiff_t;
    using iterator_category = std::input_iterator_tag;  // dereferencing returns a value
    using iterator_concept = std::forward_iterator_tag;

    iterator() noexcept = default;
    [[nodiscard]] micro_batch operator*() const noexcept { return whole_.part(at_); }
    iterator& operator++() noexcept {
      ++at_;
      return *this;
    }
    iterator operator++(int) noexcept {
      iterator const before = *this;
      ++at_;
      return before;
    }
    friend bool operator==(iterator const& a, iterator const& b) noexcept { return a.at_ == b.at_; }

   private:
    friend class micro_batches;
    iterator(split const& whole, std::size_t at) noexcept : whole_(whole), at_(at) {}
    split whole_;  // a copy: the range may be a temporary
    std::size_t at_ = 0;
  };

  /// Splits by a number of bytes.
  /// @param n               items
  /// @param bytes_per_item  needed per item while its part is processed: `bytes_of<float>(features)`; 0: all
  /// items fit
  /// @param budget          bytes that a part may use
  /// @throws out_of_memory  one item exceeds the budget (unless one_at_a_time); nothing was done
  micro_batches(std::size_t n, std::size_t bytes_per_item, std::size_t budget,
                micro_batch_options const& options = {}, source_location where = source_location::current())
      : micro_batches(n, bytes_per_item, memory_availability{budget, "the budget of micro_batches", budget},
                      0, -1, options, where) {}

  /// Splits by what a resource could allocate now: available_memory(memory) minus the reserve.
  /// @throws pool_asleep  the pool sleeps
  /// @throws cuda_error   the driver did not report free memory
  template <has_driver Resource>
  micro_batches(std::size_t n, std::size_t bytes_per_item, Resource const& memory,
                micro_batch_options const& options = {}, source_location where = source_location::current())
      : micro_batches(n, bytes_per_item, available_memory(memory, where), options.reserve_per_mille,
                      memory.driver().device().value, options, where) {}

  [[nodiscard]] iterator begin() const noexcept { return {split_, 0}; }
  [[nodiscard]] iterator end() const noexcept { return {split_, split_.parts}; }
  /// Returns the number of parts.
  [[nodiscard]] std::size_t size() const noexcept { return split_.parts; }
  [[nodiscard]] bool empty() const noexcept { return size() == 0; }
  /// Returns the number of items in the largest part, which is the first. Buffers shared by all parts must
  /// hold this many.
  [[nodiscard]] std::size_t largest() const noexcept {
    return empty() ? 0 : split_.each + (split_.extra != 0 ? 1 : 0);
  }
  /// Returns the bytes that a part may use.
  [[nodiscard]] std::size_t budget() const noexcept { return budget_; }
  /// Returns one part; index < size().
  [[nodiscard]] micro_batch operator[](std::size_t index) const noexcept { return split_.part(index); }

 private:
  micro_batches(std::size_t n, std::size_t bytes_per_item, memory_availability const& room,
                unsigned reserve_per_mille, int device, micro_batch_options const& options,
                source_location where)
      : budget_(room.bytes - share_of(room.bytes, reserve_per_mille)) {
    if (n == 0) return;
    if (room.is_asleep) throw detail::at(where, pool_asleep(bytes_per_item, device));
    std::size_t fit = bytes_per_item == 0 ? n : budget_ / bytes_per_item;
    if (fit == 0) {
      if (options.when_too_large == too_large_item::refuse) refuse(bytes_per_item, room, device, where);
      fit = 1;
    }
    fit = detail::min_of(fit, detail::max_of(options.most_items, std::size_t{1}));
    std::size_t const parts = n / fit + (n % fit != 0 ? 1 : 0);
    split_ = {n, parts, n / parts, n % parts};
  }

  [[nodiscard]] static std::size_t share_of(std::size_t bytes, unsigned per_mille) noexcept {
    std::size_t const part = detail::min_of(per_mille, 1000U);
    return bytes / 1000 * part + bytes % 1000 * part / 1000;
  }
  [[noreturn]] void refuse(std::size_t bytes_per_item, memory_availability const& room, int device,
                           source_location where) const {
    bool const is_reserve = bytes_per_item <= room.bytes;
    memory_report r;
    r.asked = bytes_per_item;
    r.device = device;
    r.live = room.live;
    r.cached = room.cached;
    r.device_free = room.device_free;
    r.limit = is_reserve ? budget_ : room.limit;
    r.refused_by = is_reserve ? "the reserve of micro_batches" : room.bounded_by;
    r.stream = memory_report::no_stream;
    throw detail::at(where, out_of_memory(r));
  }

  std::size_t budget_ = 0;
  split split_;
};

}  // namespace TARN_NAMESPACE
