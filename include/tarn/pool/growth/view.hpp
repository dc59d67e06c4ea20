// SPDX-License-Identifier: Apache-2.0
#pragma once
// A view: a stretch of addresses through which handles that are not neighbours at home are seen side by side.
// A block that finds no unbroken free range is put together from free pieces: the free end of one handle, any
// number of wholly free ones, the free start of another. A handle is mapped whole: cuMemMap refuses an offset, and a part
// (801, driver 580).
//
//   home    | live  free1 | ... |  free2  | ... |  free3  | ... | free4  live |
//   view                  [live free1][ free2 ][ free3 ][free4 live]
//   block                       '----------------------------'
//
// Views are kept after their block is freed: the same request later finds its view and costs no driver call, and a
// larger one may prolong it.

#include <cstddef>
#include <cstdint>

#include "tarn/core/sequence.hpp"
#include "tarn/pool/arena/page_map.hpp"
#include "tarn/pool/arena/range.hpp"

namespace tarn::detail {

/// One handle of a view.
struct view_slot {
  handle_ref handle = 0;  ///< 0: unmapped since, for its handle was given back
  std::size_t bytes = 0;
};

struct view {
  range_ref region = 0;  ///< the node of its addresses, some with nothing behind them yet; 0: an unused entry
  std::uintptr_t address = 0;
  std::size_t bytes = 0;  ///< of its handles
  sequence<view_slot> slots;
  std::size_t last_offset = 0;  ///< of the block that lived here last
  std::size_t last_bytes = 0;

  /// How many handles lie at or behind an offset.
  [[nodiscard]] std::size_t handles_from(std::size_t offset) const noexcept {
    std::size_t count = 0;
    for (std::size_t end = bytes; count < slots.size() && end > offset; ++count)
      end -= slots[slots.size() - 1 - count].bytes;
    return count;
  }
  [[nodiscard]] bool shows(handle_ref h) const noexcept {
    for (view_slot const& slot : slots) {
      if (slot.handle == h) return true;
    }
    return false;
  }
};

/// How many views are kept before the least recently used idle ones are unmapped; beyond twice as many the host waits for
/// the work in them. The recorded traces need at most 150; each costs 100 bytes of host memory and 24 a handle.
inline constexpr std::size_t most_views = 512;

/// How many views are looked into for one request, the most recent ones first where they were used for another size.
inline constexpr std::size_t view_search_limit = 64;

}  // namespace tarn::detail
