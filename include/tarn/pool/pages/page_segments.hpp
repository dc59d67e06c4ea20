// SPDX-License-Identifier: Apache-2.0
#pragma once
// The physical handles behind addresses of a growth by pages: listed, and pinned. A pinned handle is not
// given back (page_growth.hpp), put to sleep (page_sleep.hpp) or replaced (page_compact.hpp), and a view that
// shows a pinned block is not unmapped (page_views.hpp).

#include <cstddef>
#include <cstdint>

#include "tarn/core/min_max.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/pool/arena/arena.hpp"
#include "tarn/pool/arena/page_map.hpp"
#include "tarn/pool/pages/view_table.hpp"

namespace TARN_NAMESPACE::detail {

/// Keeps no state: the pins are counted in the page map and in the views.
template <page_source Source>
class page_segments {
 public:
  page_segments(page_map& map, view_table<Source>& views) noexcept : map_(map), views_(views) {}

  /// Calls f(memory_segment) for each segment behind these bytes, in order. Returns false if they are not all
  /// live: then f was called for some of them. O(views + segments)
  template <class F>
  [[nodiscard]] bool each(arena const& a, std::uintptr_t address, std::size_t bytes, F const& f) {
    std::size_t done = 0;
    return walk(address, bytes,
                [&](handle_ref h, std::size_t offset, std::size_t part) {
                  if (!is_live(a, map_[h].home + offset, part)) return false;
                  f(memory_segment{reinterpret_cast<void*>(address + done), part, map_[h].id, offset,
                                   map_[h].bytes});
                  done += part;
                  return true;
                })
        .all;
  }
  /// Keeps the handles behind these bytes mapped where they are until unpin(). each() has found all of them.
  /// Pins are counted.
  void pin(std::uintptr_t address, std::size_t bytes) noexcept {
    view* const v = walk(address, bytes, [&](handle_ref h, std::size_t, std::size_t) {
                      map_.pin(h);
                      return true;
                    }).in;
    if (v != nullptr) ++v->pins;
  }
  void unpin(std::uintptr_t address, std::size_t bytes) noexcept {
    view* const v = walk(address, bytes, [&](handle_ref h, std::size_t, std::size_t) {
                      map_.unpin(h);
                      return true;
                    }).in;
    if (v != nullptr) --v->pins;
  }

 private:
  struct walked {
    bool all = false;    ///< there is a handle behind every byte, and f returned true for all of them
    view* in = nullptr;  ///< the view that has them; null at home addresses
  };
  /// Calls f(handle, offset, bytes) for the parts of handles behind these addresses, until it returns false.
  template <class F>
  walked walk(std::uintptr_t address, std::size_t bytes, F const& f) {
    if (!map_.contains(address) || bytes > map_.base() + map_.bytes() - address) return {};
    if (!map_.is_home(address)) {
      view* const v = views_.each_handle(address, bytes, f);
      return {v != nullptr, v};
    }
    for (std::size_t done = 0; done < bytes;) {
      std::uintptr_t const at = address + done;
      handle_ref const h = map_.is_home(at) ? map_.at(at) : 0;
      if (h == 0) return {};
      std::size_t const part = min_of(bytes - done, static_cast<std::size_t>(map_.end_of(h) - at));
      if (!f(h, at - map_[h].home, part)) return {};
      done += part;
    }
    return {true, nullptr};
  }
  /// Whether all bytes from a home address on lie in blocks, as far as ranges show it.
  [[nodiscard]] static bool is_live(arena const& a, std::uintptr_t home, std::size_t bytes) noexcept {
    for (range_ref r = a.starts.find(a.ranges, home); r != 0; r = a.ranges[r].next) {
      range const& node = a.ranges[r];
      if (node.address >= home + bytes) return true;
      if (node.state != range_state::live) return false;
    }
    return true;
  }

  page_map& map_;
  view_table<Source>& views_;
};

}  // namespace TARN_NAMESPACE::detail
