// SPDX-License-Identifier: Apache-2.0
#pragma once
// micro_batches: work split into parts that fit a budget, as gradient accumulation wants them.

#include <cstddef>
#include <iterator>

#include "tarn/core/bytes_of.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/extremes.hpp"
#include "tarn/raii/memory_room.hpp"

namespace tarn {

/// What happens where one item does not fit the budget.
enum class too_large_item {
  refuse,        ///< out_of_memory, before anything is done
  one_at_a_time  ///< parts of one item each: the allocation itself may still succeed, or refuse
};

struct micro_batch_options {
  /// Of what a resource could hand out, so many thousandths are left alone: blocks are rounded up (by up to 12.5 % where
  /// they are small), and other programs use the device. A budget given as a number is used to the last byte.
  unsigned reserve_per_mille = 50;
  too_large_item when_too_large = too_large_item::refuse;
  std::size_t most_items = ~std::size_t{0};  ///< in a part, however much fits; 0 counts as 1
};

/// Consecutive items: [first, first + count) of `of`.
struct micro_batch {
  std::size_t first = 0;
  std::size_t count = 0;
  std::size_t index = 0;  ///< of the part, from 0
  std::size_t of = 0;     ///< items in all parts together

  /// The part's share of all items: scale a part's mean loss by it, and the accumulated gradients are those of the whole
  /// batch, though the last parts are an item smaller. The weights of all parts add up to 1.
  [[nodiscard]] double weight() const noexcept {
    return static_cast<double>(count) / static_cast<double>(of);
  }
};

/// `n` items in the fewest parts that fit a budget, as even as possible: no two differ by more than one item. Decided once,
/// when made: a part's count and weight stay what they were, whatever is allocated meanwhile; ask again for a fresh look.
/// A forward range of micro_batch; a small value, holds no memory and no resource. Zero items: no part.
class micro_batches {
 public:
  class iterator;

  /// Splits by a number of bytes.
  /// @param n               items
  /// @param bytes_per_item  that one item needs while its part is worked on: `bytes_of<float>(features)`; 0: all fit
  /// @param budget          bytes that a part may need
  /// @throws out_of_memory  one item is larger than the budget (unless one_at_a_time); nothing was done
  micro_batches(std::size_t n, std::size_t bytes_per_item, std::size_t budget,
                micro_batch_options const& options = {})
      : micro_batches(n, bytes_per_item, memory_room{budget, "the budget of micro_batches", budget}, 0, -1,
                      options) {}

  /// Splits by what a resource could hand out now: room_in(memory) less the reserve.
  /// @throws cuda_error  the driver did not tell what is free
  template <has_driver Resource>
  micro_batches(std::size_t n, std::size_t bytes_per_item, Resource const& memory,
                micro_batch_options const& options = {})
      : micro_batches(n, bytes_per_item, room_in(memory), options.reserve_per_mille,
                      memory.driver().device().value, options) {}

  [[nodiscard]] inline iterator begin() const noexcept;
  [[nodiscard]] inline iterator end() const noexcept;
  /// Parts.
  [[nodiscard]] std::size_t size() const noexcept { return parts_; }
  [[nodiscard]] bool empty() const noexcept { return parts_ == 0; }
  /// Items of the largest part, which is the first: what buffers used by all parts must hold.
  [[nodiscard]] std::size_t largest() const noexcept {
    return parts_ == 0 ? 0 : each_ + (extra_ != 0 ? 1 : 0);
  }
  /// Bytes that a part may need, as decided.
  [[nodiscard]] std::size_t budget() const noexcept { return budget_; }
  /// One part; index < size().
  [[nodiscard]] micro_batch operator[](std::size_t index) const noexcept {
    std::size_t const larger = detail::smaller_of(index, extra_);
    return {index * each_ + larger, each_ + (index < extra_ ? 1 : 0), index, n_};
  }

 private:
  micro_batches(std::size_t n, std::size_t bytes_per_item, memory_room const& room,
                unsigned reserve_per_mille, int device, micro_batch_options const& options)
      : n_(n), budget_(room.bytes - share_of(room.bytes, reserve_per_mille)) {
    if (n == 0) return;
    std::size_t fit = bytes_per_item == 0 ? n : budget_ / bytes_per_item;
    if (fit == 0) {
      if (options.when_too_large == too_large_item::refuse) refuse(bytes_per_item, room, device);
      fit = 1;
    }
    fit = detail::smaller_of(fit, detail::larger_of(options.most_items, std::size_t{1}));
    parts_ = n / fit + (n % fit != 0 ? 1 : 0);
    each_ = n / parts_;
    extra_ = n % parts_;
  }

  [[nodiscard]] static std::size_t share_of(std::size_t bytes, unsigned per_mille) noexcept {
    std::size_t const part = detail::smaller_of(per_mille, 1000U);
    return bytes / 1000 * part + bytes % 1000 * part / 1000;
  }
  [[noreturn]] void refuse(std::size_t bytes_per_item, memory_room const& room, int device) const {
    bool const is_reserve = bytes_per_item <= room.bytes;
    memory_report r;
    r.asked = bytes_per_item;
    r.device = device;
    r.live = room.live;
    r.cached = room.cached;
    r.device_free = room.device_free;
    r.limit = is_reserve ? budget_ : room.limit;
    r.refused_by = is_reserve ? "the reserve of micro_batches" : room.bounded_by;
    throw out_of_memory(r);
  }

  std::size_t n_ = 0;
  std::size_t budget_ = 0;
  std::size_t parts_ = 0;
  std::size_t each_ = 0;   ///< items of the smaller parts
  std::size_t extra_ = 0;  ///< parts of one item more; they come first
};

class micro_batches::iterator {
 public:
  using value_type = micro_batch;
  using reference = micro_batch;
  using difference_type = std::ptrdiff_t;
  using iterator_category = std::input_iterator_tag;  // parts are made as they are asked for
  using iterator_concept = std::forward_iterator_tag;

  iterator() noexcept = default;
  [[nodiscard]] micro_batch operator*() const noexcept { return whole_[at_]; }
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
  iterator(micro_batches const& whole, std::size_t at) noexcept : whole_(whole), at_(at) {}
  inline static constexpr std::size_t nowhere = 0;
  micro_batches whole_{nowhere, nowhere, nowhere};  // by value: a range may be a temporary
  std::size_t at_ = 0;
};

inline micro_batches::iterator micro_batches::begin() const noexcept {
  return {*this, 0};
}
inline micro_batches::iterator micro_batches::end() const noexcept {
  return {*this, parts_};
}

}  // namespace tarn
