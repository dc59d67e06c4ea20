// SPDX-License-Identifier: Apache-2.0
#pragma once
// A view: a second mapping that places handles next to each other that are not neighbours at their home
// addresses. A block without a sufficient contiguous free range is assembled from free pieces: the free end
// of one handle, any number of wholly free handles, the free start of another. A handle is mapped whole:
// cuMemMap refuses an offset, and a part (801, driver 580).
//
//   home    | live  free1 | ... |  free2  | ... |  free3  | ... | free4  live |
//   view                  [live free1][ free2 ][ free3 ][free4 live]
//   block                       '----------------------------'
//
// Views are kept after their block is freed: a later request of the same size reuses the view without a
// driver call, and a larger one may extend it.

#include <cstddef>
#include <cstdint>

#include "tarn/core/config.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/pool/arena/page_map.hpp"
#include "tarn/pool/arena/range.hpp"

namespace TARN_NAMESPACE::detail {

/// One handle of a view.
struct view_slot {
  handle_ref handle = 0;  ///< 0 if it was unmapped because its handle was given back
  std::size_t bytes = 0;
};

struct view {
  range_ref region = 0;  ///< node of its addresses, some not mapped yet; 0 in an unused entry
  std::uintptr_t address = 0;
  std::size_t bytes = 0;  ///< of its handles
  sequence<view_slot> view_slots;
  std::size_t last_offset = 0;  ///< of the last block in this view
  std::size_t last_bytes = 0;
  std::uint32_t pins = 0;  ///< while there are any, it stays mapped
  bool grows = false;      ///< serves a growing block alone (growing_views.hpp), and is in no search
  bool captured = false;   ///< a capture has received a block in it, so that graphs may have its addresses

  /// Number of handles at or after an offset.
  [[nodiscard]] std::size_t handles_from(std::size_t offset) const noexcept {
    std::size_t count = 0;
    for (std::size_t end = bytes; count < view_slots.size() && end > offset; ++count)
      end -= view_slots[view_slots.size() - 1 - count].bytes;
    return count;
  }
  [[nodiscard]] bool shows(handle_ref h) const noexcept {
    for (view_slot const& slot : view_slots) {
      TARN_VISIT();
      if (slot.handle == h) return true;
    }
    return false;
  }
};

/// How many views are kept before the least recently used idle ones are unmapped; at twice as many the host
/// waits for the work in them. The recorded traces need at most 150; each view costs 100 bytes of host memory
/// plus 24 per handle.
inline constexpr std::size_t most_views = 512;

/// How many views one request searches, the most recent ones first; reuse() does not count views last used
/// for the same size.
inline constexpr std::size_t view_search_limit = 64;

}  // namespace TARN_NAMESPACE::detail
