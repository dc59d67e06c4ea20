// SPDX-License-Identifier: Apache-2.0
#pragma once
// All views of a pool, and what changes their slots: also for sleep (page_sleep.hpp) and compact
// (page_compact.hpp).

#include <cstddef>
#include <cstdint>

#include "tarn/core/config.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/pool/arena/arena.hpp"
#include "tarn/pool/arena/hot_lock.hpp"
#include "tarn/pool/arena/looked_up.hpp"
#include "tarn/pool/arena/page_map.hpp"
#include "tarn/pool/pages/growth.hpp"
#include "tarn/pool/pages/page_choice.hpp"
#include "tarn/pool/pages/view.hpp"

namespace TARN_NAMESPACE::detail {

template <page_source Source>
class view_table {
 public:
  view_table(Source& source, growth_counters& counters, page_map& map) noexcept
      : source_(source), counters_(counters), map_(map) {}

  /// @throws std::bad_alloc
  void set_up(arena& a) {
    a.tenancies.resize(1);
    views_.resize(1);
  }
  [[nodiscard]] view& operator[](std::uint32_t i) noexcept { return views_[i]; }
  [[nodiscard]] view const& operator[](std::uint32_t i) const noexcept { return views_[i]; }
  /// Of the entries; entry 0 is unused.
  [[nodiscard]] std::uint32_t size() const noexcept { return static_cast<std::uint32_t>(views_.size()); }

  [[nodiscard]] std::size_t host_bytes() const noexcept { return views_.capacity() * sizeof(view); }

  /// Unmaps handles from all views. No block and no work uses them. O(slots of all views).
  /// @param leaves  for each handle whether it is one of them
  void forget(sequence<bool> const& leaves) noexcept {
    for (view& v : views_) {
      TARN_VISIT();
      std::uintptr_t at = v.address;
      for (view_slot& slot : v.view_slots) {
        TARN_VISIT();
        if (leaves[slot.handle]) {
          if (is_mapped(slot)) unmap(at, slot.bytes);
          slot.handle = 0;
        }
        at += slot.bytes;
      }
    }
  }

  /// Calls f(address) for each place where a view shows a handle. O(slots of all views).
  template <class F>
  void for_each_place(handle_ref h, F const& f) const {
    for (view const& v : views_) {
      TARN_VISIT();
      std::uintptr_t at = v.address;
      for (view_slot const& slot : v.view_slots) {
        TARN_VISIT();
        if (slot.handle == h) f(at);
        at += slot.bytes;
      }
    }
  }

  /// Calls f(handle, offset, bytes) for the parts of the handles behind addresses of a view, in order, until
  /// f returns false. Returns the view, or null if there is none with all of them. O(views)
  template <class F>
  view* each_handle(std::uintptr_t address, std::size_t bytes, F const& f) {
    for (view& v : views_) {
      TARN_VISIT();
      if (v.region == 0 || address < v.address || address - v.address >= v.bytes) continue;
      std::size_t const from = address - v.address;
      if (bytes > v.bytes - from) return nullptr;
      std::size_t at = 0;
      for (view_slot const& slot : v.view_slots) {
        TARN_VISIT();
        std::size_t const begin = max_of(from, at);
        std::size_t const end = min_of(from + bytes, at + slot.bytes);
        if (begin < end && (slot.handle == 0 || !f(slot.handle, begin - at, end - begin))) return nullptr;
        at += slot.bytes;
      }
      return &v;
    }
    return nullptr;
  }

  /// Makes room to divide a handle's slots into `count` each. @throws std::bad_alloc, nothing has changed
  void make_room_to_divide(handle_ref h, std::size_t count) {
    for (view& v : views_) {
      TARN_VISIT();
      if (v.shows(h)) v.view_slots.reserve(v.view_slots.size() + count);
    }
  }

  /// Divides a handle's slots: `handles` are at their places now, 0 for a gap, of bytes_of(index) each.
  /// Requires room.
  template <class BytesOf>
  void divide(handle_ref h, sequence<handle_ref> const& handles, BytesOf const& bytes_of) noexcept {
    for (view& v : views_) {
      TARN_VISIT();
      if (!v.shows(h)) continue;
      std::size_t at = 0;
      while (v.view_slots[at].handle != h) ++at;
      std::size_t const more = handles.size() - 1;
      std::size_t const before = v.view_slots.size();
      v.view_slots.resize(before + more);
      for (std::size_t i = before; i-- > at + 1;) v.view_slots[i + more] = v.view_slots[i];
      for (std::size_t i = 0; i < handles.size(); ++i)
        v.view_slots[at + i] = view_slot{handles[i], bytes_of(i)};
    }
  }

  /// Unmaps a view. Nothing on the device uses it.
  void forget(view const& v) noexcept {
    unmap_slots(v, [&](view_slot const& slot) { return is_mapped(slot); });
  }
  /// The same for all of them, at the end.
  void close() noexcept {
    for (view const& v : views_) forget(v);
  }

  /// Unmaps all views but the handles that stay, and keeps addresses and slots for map_all(). Nothing on the
  /// device uses it. A second call before map_all() does nothing.
  void unmap_all() noexcept {
    for (view const& v : views_)
      unmap_slots(v, [&](view_slot const& slot) { return is_mapped(slot) && !map_[slot.handle].stays; });
    are_mapped_ = false;
  }

  /// Maps the handles of all views again, or none. @throws out_of_memory, cuda_error
  void map_all() {
    std::size_t mapped = 0;
    try {
      for (; mapped < views_.size(); ++mapped) map_slots(views_[mapped]);
    } catch (...) {
      for (std::size_t i = 0; i < mapped; ++i)
        unmap_slots(views_[i], [&](view_slot const& slot) { return is_mapped_with_view(slot); });
      throw;
    }
    are_mapped_ = true;
  }

  /// An entry of views_, with its tenancy. @throws std::bad_alloc, nothing has changed
  std::uint32_t find_unused(arena& a) {
    for (std::uint32_t i = 1; i < views_.size(); ++i) {
      TARN_VISIT();
      if (views_[i].region == 0) return i;
    }
    a.tenancies.resize(views_.size() + 1);  // it keeps one more where the next line throws
    views_.push_back(view{});
    return static_cast<std::uint32_t>(views_.size() - 1);
  }

  /// Maps all of a view's handles, or none.
  void map_slots(view const& v) {
    std::size_t mapped = 0;
    try {
      std::uintptr_t at = v.address;
      for (; mapped < v.view_slots.size(); ++mapped) {
        if (is_mapped_with_view(v.view_slots[mapped])) map_again(at, v.view_slots[mapped].handle);
        at += v.view_slots[mapped].bytes;
      }
    } catch (...) {
      std::uintptr_t at = v.address;
      for (std::size_t k = 0; k < mapped; ++k) {
        if (is_mapped_with_view(v.view_slots[k])) unmap(at, v.view_slots[k].bytes);
        at += v.view_slots[k].bytes;
      }
      throw;
    }
  }

  /// Whether the slot has a handle that is mapped and unmapped with all others.
  [[nodiscard]] bool is_mapped_with_view(view_slot const& slot) const noexcept {
    return slot.handle != 0 && !map_[slot.handle].stays;
  }

  /// Whether the slot shows its handle now: while the pool sleeps, only handles that stay are shown.
  [[nodiscard]] bool is_mapped(view_slot const& slot) const noexcept {
    return slot.handle != 0 && map_[slot.handle].state == backing::mapped &&
           (are_mapped_ || map_[slot.handle].stays);
  }

  void map_again(std::uintptr_t address, handle_ref h) {
    source_.map(reinterpret_cast<void*>(address), map_[h].bytes, map_[h].id);
    ++counters_.maps;
    ++counters_.remaps;
  }

  void unmap(std::uintptr_t address, std::size_t bytes) noexcept {
    source_.unmap(reinterpret_cast<void*>(address), bytes);
    ++counters_.unmaps;
  }

  /// Takes pieces out of the free ranges that hold them, so that other threads cannot take them.
  /// @throws std::bad_alloc, nothing has changed
  static void carve(arena& a, hot_lock const& held, looked_up<choice> const& chosen,
                    sequence<range_ref>& carved) {
    choice const& c = chosen.get(held);
    std::size_t count = 0;
    for (piece const& p : c.pieces) {
      // A piece may lie in two ranges, one of the taker's and one that is neutral.
      range_ref r = a.starts.find(a.ranges, p.address);
      for (++count; a.ranges[r].end() < p.address + p.bytes; ++count) r = a.ranges[r].next;
    }
    carved.reserve(count);
    a.ranges.make_room(2 * count + 4);
    a.blocks.make_room(1);
    for (piece const& p : c.pieces) {
      for (std::uintptr_t at = p.address; at < p.address + p.bytes;) {
        range_ref const r = a.starts.find(a.ranges, at);
        std::uintptr_t const end = min_of(a.ranges[r].end(), p.address + p.bytes);
        carved.push_back(a.carve(r, at, end - at));
        at = end;
      }
    }
  }

  static void free_again(arena& a, sequence<range_ref> const& carved) noexcept {
    for (range_ref const r : carved) a.make_free(r, a.ranges[r].domain, a.ranges[r].epoch);
  }

  /// Whether the device has completed all work on the former blocks of a view.
  static bool is_done(arena const& a, tenancy const& t) noexcept {
    bool const done = a.streams[t.domain].is_neutral() || t.epoch <= a.streams[t.domain].completed;
    return (done && !t.several) || everything_done(a);
  }

  static bool everything_done(arena const& a) noexcept {
    bool all = true;
    a.streams.for_each([&](domain_ref d) { all = all && a.streams[d].is_completed(); });
    return all;
  }

 private:
  template <class Choose>
  void unmap_slots(view const& v, Choose const& is_chosen) noexcept {
    std::uintptr_t at = v.address;
    for (view_slot const& slot : v.view_slots) {
      TARN_VISIT();
      if (is_chosen(slot)) unmap(at, slot.bytes);
      at += slot.bytes;
    }
  }

  Source& source_;
  growth_counters& counters_;
  page_map& map_;
  sequence<view> views_;  ///< entry 0 is unused
  bool are_mapped_ = true;
};

}  // namespace TARN_NAMESPACE::detail
