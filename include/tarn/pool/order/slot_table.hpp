// SPDX-License-Identifier: Apache-2.0
#pragma once
// An array of numbered slots that never move and are reused.

#include <cstddef>
#include <cstdint>

#include "tarn/core/config.hpp"
#include "tarn/core/owned.hpp"
#include "tarn/core/promised_room.hpp"
#include "tarn/core/sequence.hpp"

namespace TARN_NAMESPACE::detail {

/// The number of a slot; 0 is none.
using slot_number = std::uint32_t;

/// Grows by chunks, so that an element keeps its address and growth copies none. `T` has a member `next`,
/// which links the free slots.
template <class T>
class slot_table {
 public:
  /// Ensures that one more slot can be taken without allocating. @throws std::bad_alloc, nothing has changed
  void make_room() {
    if (free_ == 0 && used_ == chunks_.size() * chunk_slots) {
      chunks_.reserve(chunks_.size() + 1);
      chunks_.push_back(owned(new chunk));
    }
    room_.promise(1);
  }
  /// Takes a slot that holds T{}. Requires make_room().
  [[nodiscard]] slot_number take() noexcept {
    room_.take();
    if (free_ == 0) return static_cast<slot_number>(++used_);
    slot_number const s = free_;
    free_ = (*this)[s].next;
    (*this)[s] = T{};
    return s;
  }
  /// Frees a slot; it holds T{} except for `next`.
  void give(slot_number s) noexcept {
    (*this)[s] = T{};
    (*this)[s].next = free_;
    free_ = s;
  }

  [[nodiscard]] T& operator[](slot_number s) noexcept {
    TARN_VISIT();
    return chunks_[(s - 1) / chunk_slots]->items[(s - 1) % chunk_slots];
  }
  [[nodiscard]] T const& operator[](slot_number s) const noexcept {
    TARN_VISIT();
    return chunks_[(s - 1) / chunk_slots]->items[(s - 1) % chunk_slots];
  }
  /// Slots are numbered from 1 to this; some of them are free.
  [[nodiscard]] slot_number last() const noexcept { return static_cast<slot_number>(used_); }
  [[nodiscard]] std::size_t host_bytes() const noexcept {
    return chunks_.size() * sizeof(chunk) + chunks_.capacity() * sizeof(void*);
  }

 private:
  static constexpr std::size_t chunk_slots = 64;
  struct chunk {
    T items[chunk_slots];
  };

  sequence<owned<chunk>> chunks_;
  std::size_t used_ = 0;
  slot_number free_ = 0;
  [[no_unique_address]] promised_room<check_locks> room_;
};

}  // namespace TARN_NAMESPACE::detail
