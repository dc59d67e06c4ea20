// SPDX-License-Identifier: Apache-2.0
#pragma once
// Deallocation while a tool watches memory: freed blocks are removed from the tool's regions and quarantined
// for a while (description.hpp). Not called without a tool.

#include <cstddef>
#include <cstdint>

#include "tarn/core/stream.hpp"
#include "tarn/pool/arena/arena.hpp"
#include "tarn/pool/arena/hot_lock.hpp"
#include "tarn/pool/tool/description.hpp"

namespace TARN_NAMESPACE::detail {

/// Whether a freed block goes into quarantine.
enum class reuse : std::uint8_t { later, at_once };

template <class Heap>
TARN_NOINLINE void take_back_described([[maybe_unused]] Heap& heap, [[maybe_unused]] stream_id id,
                                       [[maybe_unused]] stream_ref stream, [[maybe_unused]] void* p,
                                       [[maybe_unused]] std::size_t bytes,
                                       [[maybe_unused]] std::size_t alignment,
                                       [[maybe_unused]] reuse when) noexcept {
  if constexpr (Heap::describes) {
    auto& description = heap.description();
    freed_block const b{p, bytes + guard_bytes, alignment, stream_ref::from(stream.handle(), id)};
    std::size_t const block = rounded_bytes(bytes, alignment);  // as it was counted
    std::size_t const asked = description.take_back(p, bytes);
    {
      hot_lock const held = heap.lock_hot();
      heap.count_uncached(held, -static_cast<std::int64_t>(block), -1);
      if (asked != bytes)
        return heap.note_misuse(held, asked == 0 ? release_result::foreign : release_result::wrong_size, p,
                                block);
    }
    // A deferred block was waited for, and its stream may be destroyed.
    if (id == neutral_id || when == reuse::at_once) {
      description.region_ends(p);
    } else {
      description.region_ends(p, bytes, stream);
    }
    if (when == reuse::at_once || !description.fits(b)) return heap.give_back(b);
    freed_block oldest;
    while (!description.keep(b)) {
      if (description.take_kept(oldest)) heap.give_back(oldest);
    }
  }
}

/// Ends the quarantine of all blocks.
template <class Heap>
void end_quarantine([[maybe_unused]] Heap& heap) noexcept {
  if constexpr (Heap::describes) {
    freed_block b;
    while (heap.description().take_kept(b)) heap.give_back(b);
  }
}

}  // namespace TARN_NAMESPACE::detail
