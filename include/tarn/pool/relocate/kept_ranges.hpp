// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which bytes of a handle must keep their addresses and contents while the pool sleeps or is compacted. Pure.

#include <cstddef>
#include <cstdint>

#include "tarn/core/min_max.hpp"
#include "tarn/pool/arena/arena.hpp"
#include "tarn/pool/arena/page_map.hpp"

namespace TARN_NAMESPACE::detail {

/// Whether the address and the contents of a range are kept. Of what captures received free ranges are kept,
/// too, since their graphs use them.
[[nodiscard]] inline bool is_kept(arena const& a, range const& node) noexcept {
  return node.state == range_state::live || (node.state == range_state::free && a.keeps_address(node));
}

/// Calls f(offset, bytes) for each contiguous stretch of a handle's kept bytes, in order. O(ranges within the
/// handle)
template <class F>
void for_each_kept(arena const& a, physical const& handle, F&& f) {
  std::uintptr_t const handle_end = handle.home + handle.bytes;
  std::uintptr_t begin = handle.home;
  std::uintptr_t end = handle.home;
  for (range_ref r = a.starts.find(a.ranges, handle.home); r != 0 && a.ranges[r].address < handle_end;
       r = a.ranges[r].next) {
    range const& node = a.ranges[r];
    if (!is_kept(a, node)) continue;
    std::uintptr_t const from = max_of(node.address, handle.home);
    if (from != end) {
      if (begin != end)
        f(static_cast<std::size_t>(begin - handle.home), static_cast<std::size_t>(end - begin));
      begin = from;
    }
    end = min_of(node.end(), handle_end);
  }
  if (begin != end) f(static_cast<std::size_t>(begin - handle.home), static_cast<std::size_t>(end - begin));
}

}  // namespace TARN_NAMESPACE::detail
