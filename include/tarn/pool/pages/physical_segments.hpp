// SPDX-License-Identifier: Apache-2.0
#pragma once
// The physical segments behind addresses of a growth by pages: listed, and pinned. A pinned handle is not
// given back (page_growth.hpp), put to sleep (page_sleep.hpp) or replaced (page_compact.hpp), and a view that
// shows a pinned block is not unmapped (page_views.hpp).

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tarn/core/bytes.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/message.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/pool/arena/arena.hpp"
#include "tarn/pool/arena/hot_lock.hpp"
#include "tarn/pool/arena/page_map.hpp"
#include "tarn/pool/pages/growth_lock.hpp"
#include "tarn/pool/pages/view_table.hpp"
#include "tarn/source/refusal.hpp"

namespace TARN_NAMESPACE::detail {

/// Keeps no state: the pins are counted in the page map and in the views.
template <page_source Source>
class physical_segments {
 public:
  physical_segments(page_map& map, view_table<Source>& views) noexcept : map_(map), views_(views) {}

  /// Calls f(memory_segment) for each of them behind these bytes, in order. Returns false if they are not all
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

// The search for the physical segments behind a block of a pool, for segments_of() and page_pin.

/// A block or a part of one, and the user's call that asks for its segments.
struct segments_wanted {
  std::string_view call;
  void const* p = nullptr;
  std::size_t bytes = 0;
};

[[noreturn]] TARN_NOINLINE inline void refuse_segments(segments_wanted const& wanted) {
  message<256> text;
  text.add(wanted.call).add(": no block of this pool has these ").add_bytes(wanted.bytes);
  text.add("; pass a pointer into a block that is allocated, and bytes that end in it");
  throw misuse(misuse_kind::foreign_pointer, wanted.p, text.view());
}

/// Finds the segments of a live block. First returns all threads' cached blocks to the heap, so that those
/// are seen to be free.
/// @throws misuse       not all of the bytes are live in this pool
/// @throws pool_asleep  the pool sleeps
/// @throws cuda_error   in a forked child; of kind `unsupported` if the memory is not pages here;
/// std::bad_alloc: nothing has changed
template <class Heap, class Front>
void find_segments(growth_lock const& growing, Heap& heap, Front& front, segments_wanted const& wanted,
                   sequence<memory_segment>& found) {
  auto const address = reinterpret_cast<std::uintptr_t>(wanted.p);
  if (heap.is_lost()) heap.refuse_forked();
  if (!heap.growth(growing).contains(address)) refuse_segments(wanted);
  if (!heap.uses_pages()) throw cuda_error(without_pages(segments_refused), heap.driver().device().value);
  if (heap.is_asleep()) heap.refuse_asleep(wanted.bytes);
  front.flush_all();
  bool are_live = false;
  {
    hot_lock const held = heap.lock_hot();
    are_live = heap.growth(growing).template visit_pages<bool>([&](auto& pages) {
      return pages.segments().each(heap.space(held), address, wanted.bytes,
                                   [&](memory_segment const& s) { found.push_back(s); });
    });
  }
  if (!are_live || wanted.bytes == 0) refuse_segments(wanted);
}

}  // namespace TARN_NAMESPACE::detail
