// SPDX-License-Identifier: Apache-2.0
#pragma once
// pinned_slots: reusable host memory in which copies are staged.

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "tarn/core/bytes.hpp"
#include "tarn/core/layers.hpp"
#include "tarn/core/resource.hpp"

namespace TARN_NAMESPACE::detail {

/// `count` slots of `elements` elements each. No work may use them when they are destroyed, since a pool may
/// reuse them on the host at once. In contrast, a pinned_buffer is freed in stream order.
template <class T, class Pinned>
class pinned_slots {
  static_assert(has_property<Pinned, host_accessible>,
                "tarn: batches are staged in memory that the host can access; use pinned_host, "
                "registered_host or a pool "
                "over them");

 public:
  /// @throws length_error, out_of_memory
  pinned_slots(Pinned memory, std::size_t count, std::size_t elements)
      : pinned_slots(std::move(memory), checked_bytes(elements, sizeof(T))) {
    elements_ = elements;
    slots_.reserve(count);
    while (slots_.size() < count)
      slots_.push_back(static_cast<T*>(memory_.allocate_sync(bytes_, alignment_of<T>)));
  }
  pinned_slots& operator=(pinned_slots&&) = delete;
  ~pinned_slots() {
    for (T* const p : slots_) free_block_sync(memory_, p, bytes_, alignment_of<T>);
  }

  [[nodiscard]] std::span<T> operator[](std::size_t slot) const noexcept { return {slots_[slot], elements_}; }

 private:
  pinned_slots(Pinned memory, std::size_t bytes) : memory_(std::move(memory)), bytes_(bytes) {}

  Pinned memory_;
  std::size_t bytes_;
  std::size_t elements_ = 0;
  std::vector<T*> slots_;
};

}  // namespace TARN_NAMESPACE::detail
