// SPDX-License-Identifier: Apache-2.0
#pragma once
// Deallocation while a tool watches memory: freed blocks are removed from the tool's regions and quarantined
// for a while (tool_regions.hpp). Not called without a tool.

#include <cstddef>
#include <cstdint>

#include "tarn/core/stream.hpp"
#include "tarn/pool/arena/arena.hpp"
#include "tarn/pool/arena/hot_lock.hpp"
#include "tarn/pool/tool/tool_regions.hpp"

namespace TARN_NAMESPACE::detail {

/// Whether a freed block goes into quarantine.
enum class reuse : std::uint8_t { later, at_once };

template <class Heap>
TARN_NOINLINE void deallocate_under_tool([[maybe_unused]] Heap& heap, [[maybe_unused]] stream_id id,
                                         [[maybe_unused]] stream_ref stream, [[maybe_unused]] void* p,
                                         [[maybe_unused]] std::size_t bytes,
                                         [[maybe_unused]] std::size_t alignment,
                                         [[maybe_unused]] reuse when) noexcept {
  if constexpr (Heap::has_tool) {
    auto& tool = heap.tool();
    freed_block const b{p, bytes + guard_bytes, alignment, stream_ref::from(stream.handle(), id)};
    std::size_t const block = rounded_bytes(bytes, alignment);  // as it was counted
    std::size_t const asked = tool.take_back(p, bytes);
    {
      hot_lock const held = heap.lock_hot();
      heap.count_uncached(held, -static_cast<std::int64_t>(block), -1);
      if (asked != bytes)
        return heap.note_misuse(held, asked == 0 ? release_result::foreign : release_result::wrong_size, p,
                                block);
    }
    // A deferred block was waited for, and its stream may be destroyed.
    if (id == neutral_id || when == reuse::at_once) {
      tool.region_ends(p);
    } else {
      tool.region_ends(p, bytes, stream);
    }
    if (when == reuse::at_once || !tool.fits(b)) return heap.put(b);
    freed_block oldest;
    while (!tool.keep(b)) {
      if (tool.take_quarantined(oldest)) heap.put(oldest);
    }
  }
}

/// Ends the quarantine of all blocks.
template <class Heap>
void end_quarantine([[maybe_unused]] Heap& heap) noexcept {
  if constexpr (Heap::has_tool) {
    freed_block b;
    while (heap.tool().take_quarantined(b)) heap.put(b);
  }
}

}  // namespace TARN_NAMESPACE::detail
