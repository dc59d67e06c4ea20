// SPDX-License-Identifier: Apache-2.0
#pragma once
// Growth by pages, over one virtual range. Free memory is where it lies (at home); where no unbroken range of it is
// large enough, this is asked, cheapest first:
//
//   1 a view that was used before and whose handles are free again       no driver call
//   2 new handles at home, while reserved memory may grow with live memory   36 us each
//   3 a new view of free handles                                          27 us a handle
//   4 new handles beyond that, for what is lacking
//
// Above it: ladder. Below it: page_choice, arena, ordering.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <exception>

#include "tarn/core/extremes.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/pool/arena.hpp"
#include "tarn/pool/growth.hpp"
#include "tarn/pool/hot_lock.hpp"
#include "tarn/pool/ordering.hpp"
#include "tarn/pool/page_choice.hpp"
#include "tarn/source/refusal.hpp"

namespace tarn::detail {

/// Address space is reserved this many times the device's memory: a quarter of it for the homes of each zone, the
/// rest for views. It costs the driver 5-77 us once, whatever its size.
inline constexpr std::size_t reservation_factor = 16;

template <page_source Source>
class page_growth {
 public:
  using driver_type = typename Source::driver_type;
  using lock = hot_lock;

  page_growth(Source source, growth_counters& counters)
      : source_(static_cast<Source&&>(source)), counters_(counters) {}

  [[nodiscard]] Source& source() noexcept { return source_; }
  [[nodiscard]] Source const& source() const noexcept { return source_; }
  [[nodiscard]] bool contains(std::uintptr_t address) const noexcept { return map_.contains(address); }
  /// Memory of the device, 0 before the first growth.
  [[nodiscard]] std::size_t device_bytes() const noexcept { return map_.bytes() / reservation_factor; }
  [[nodiscard]] std::size_t host_bytes() const noexcept {
    return map_.host_bytes() + views_.capacity() * sizeof(view);
  }

  /// Serves the request from a view that exists, without a driver call; null where none is free. Both locks are
  /// held. @throws std::bad_alloc, nothing has changed
  [[nodiscard]] void* reuse(arena& a, growth_request const& request) {
    if (request.where == zone::small || !request.may_remap || views_in_use_ == 0) return nullptr;
    std::uint32_t best = 0;
    free_stretch where;
    std::size_t looked_at = 0;
    for (std::uint32_t const i : by_use_) {
      view const& v = views_[i];
      if (v.bytes < request.bytes) continue;
      if (v.last_bytes != request.bytes && ++looked_at > view_search_limit) continue;
      free_stretch const s = find_stretch(a, map_, v, request);
      if (s.bytes == 0 || (best != 0 && s.bytes >= where.bytes)) continue;
      best = i;
      where = s;
      if (s.bytes == request.bytes) break;
    }
    if (best == 0) return nullptr;
    choice const c = pieces_of(map_, views_[best], where.offset, request.bytes);
    sequence<range_ref> carved;
    carve(a, c, carved);
    return settle(a, carved, best, where.offset, request);
  }

  /// Serves the request: `block` is set where it was put together from pieces; otherwise there is a free range of at
  /// least `request.bytes` in the taker's domain. False: what is free does not suffice and nothing may be created.
  /// The hot lock is held on entry and return, and let go around driver calls.
  /// @throws out_of_memory, cuda_error, std::bad_alloc  nothing has changed
  bool grow(arena& a, lock& hot, ordering<driver_type>& order, growth_request const& request, void*& block) {
    open(a, hot);
    // No place would ever be found: creating handles first would take the whole device for a moment.
    if (request.bytes > map_.bytes()) return false;
    std::size_t const grain = map_.granularity();
    extension const e = request.extend ? extendable(a, request) : extension{};
    std::size_t const missing = align_up(request.bytes - e.bytes, grain);
    if (!request.may_remap || missing <= request.may_create)
      return create(a, hot, request, e, request.bytes - e.bytes);
    if ((block = reuse(a, request)) != nullptr) return true;
    std::size_t lack = missing;
    if (request.where == zone::small) {
      if (change_zone(a, request)) return true;
    } else {
      choice const c = choose_pieces(a, map_, request);
      if (c.lack == 0) return (block = build(a, hot, order, c, request)) != nullptr;
      lack = align_up(c.lack, grain);
    }
    if (!request.may_exceed && lack > request.may_create) return false;
    if (lack >= missing) return create(a, hot, request, e, request.bytes - e.bytes);
    if (!create(a, hot, request, extension{}, lack)) return false;
    choice const c = choose_pieces(a, map_, request);
    return c.lack == 0 && (block = build(a, hot, order, c, request)) != nullptr;
  }

  /// Gives wholly free handles back to the driver, those whose work is done, the largest first, until at most `keep`
  /// bytes are reserved. Returns the bytes given back. O(handles given back x views + free ranges).
  std::size_t shrink(arena& a, lock& hot, std::size_t keep) {
    std::size_t given = 0;
    if (!map_.is_open() || counters_.reserved <= keep) return given;
    sequence<piece> whole;
    for (domain_ref d = 0; d < a.streams.size(); ++d) {
      if (d != neutral && a.streams[d].freed > a.streams[d].completed) continue;
      for (zone const where : all_zones) {
        for_each_piece(a, map_, d, where, map_.granularity(),
                       [&](piece const& p, bool at_start, bool at_end) {
                         if (at_start && at_end) whole.push_back(p);
                       });
      }
    }
    sort(whole.begin(), whole.size(), [](piece const& x, piece const& y) {
      return x.bytes != y.bytes ? x.bytes > y.bytes : x.address > y.address;
    });
    sequence<range_ref> carved;
    carved.reserve(whole.size());
    a.ranges.make_room(2 * whole.size() + 4);
    std::size_t count = 0;
    for (piece const& p : whole) {
      if (counters_.reserved - given <= keep) break;
      carved.push_back(a.carve(a.starts.find(a.ranges, p.address), p.address, p.bytes));
      given += p.bytes;
      ++count;
    }
    hot.unlock();
    for (std::size_t i = 0; i < count; ++i) destroy(whole[i].handle);
    hot.lock();
    for (std::size_t i = 0; i < count; ++i) {
      map_.remove(whole[i].handle);
      make_hole(a, carved[i]);
    }
    return given;
  }

  /// Gives everything back. Nothing on the device uses it any more.
  void close() noexcept {
    if (!map_.is_open()) return;
    for (view const& v : views_) unmap_slots(v);
    for (handle_ref h = 1; h < map_.size(); ++h) {
      if (map_[h].bytes == 0) continue;
      unmap(map_[h].home, map_[h].bytes);
      source_.destroy(map_[h].id, map_[h].bytes);
    }
    source_.unreserve(reserved_, map_.bytes() + map_.granularity());
  }

 private:
  struct extension {
    range_ref range = 0;
    std::size_t bytes = 0;
  };
  struct created {
    page_handle id = 0;
    std::size_t bytes = 0;
    bool mapped = false;
  };

  /// Reserves the one virtual range on first use.
  void open(arena& a, lock& hot) {
    if (map_.is_open()) return;
    hot.unlock();
    std::size_t available = 0;
    std::size_t total = 0;
    (void)source_.driver().memory_info(available, total);
    // Blocks may ask for an alignment up to this: finer pages would put them and their views off it.
    std::size_t const grain = larger_of(source_.granularity(), usual_granule);
    std::size_t const device = align_up(larger_of(total, 64 * grain), 8 * grain);
    std::size_t bytes = device * reservation_factor;
    void* base = nullptr;
    for (;; bytes /= 2) {
      try {
        base = source_.reserve(bytes + grain);
        break;
      } catch (std::exception const&) {
        if (bytes <= 4 * device) {
          hot.lock();
          throw;
        }
      }
    }
    hot.lock();
    auto const first = align_up(reinterpret_cast<std::uintptr_t>(base), grain);
    try {
      a.ranges.make_room(zone_count + 1);
      a.tenancies.resize(1);
      views_.resize(1);
      a.starts.open(first, bytes / 2, grain);
      map_.open(first, bytes / 2, bytes, grain);
    } catch (...) {
      hot.unlock();
      source_.unreserve(base, bytes + grain);
      hot.lock();
      throw;
    }
    reserved_ = base;
    for (std::size_t z = 0; z < zone_count; ++z) add_hole(a, homes_[z], first + bytes / 4 * z, bytes / 4);
    add_hole(a, view_places_, first + bytes / 2, bytes / 2);
  }

  static void add_hole(arena& a, range_index& index, std::uintptr_t address, std::size_t bytes) noexcept {
    range_ref const r = a.ranges.take();
    a.ranges[r].address = address;
    a.ranges[r].bytes = bytes;
    a.ranges[r].state = range_state::hole;
    a.starts.note(a.ranges, r);
    index.insert(a.ranges, r);
  }

  [[nodiscard]] range_index& places_of(std::uintptr_t address) noexcept {
    std::size_t const part = (address - map_.base()) / (map_.bytes() / 4);
    return part < zone_count ? homes_[part] : view_places_;
  }
  /// The zone whose home an address lies in.
  [[nodiscard]] zone zone_at(std::uintptr_t home) const noexcept {
    return static_cast<zone>((home - map_.base()) / (map_.bytes() / 4));
  }
  [[nodiscard]] range_index& homes(zone where) noexcept { return homes_[static_cast<std::size_t>(where)]; }

  /// The free range, with a hole after it, that lacks least of the request.
  extension extendable(arena& a, growth_request const& request) const {
    extension best;
    auto const look = [&](domain_ref d) {
      a.streams[d].ranges(request.where).for_each(a.ranges, range_grain, [&](range_ref r) {
        range const& node = a.ranges[r];
        if (node.next == 0 || a.ranges[node.next].state != range_state::hole) return;
        std::uintptr_t const from = align_up(node.address, request.alignment);
        if (from >= node.end()) return;
        std::size_t const has = node.end() - from;
        if (has >= request.bytes || has <= best.bytes) return;
        if (a.ranges[node.next].bytes < align_up(request.bytes - has, map_.granularity())) return;
        best = {r, has};
      });
    };
    look(request.taker);
    if (request.taker != neutral) look(neutral);
    return best;
  }

  /// Makes new handles for `need` bytes, after the free range of `e` or at a new place. False: no address is left.
  bool create(arena& a, lock& hot, growth_request const& request, extension e, std::size_t need) {
    std::size_t const grain = map_.granularity();
    std::size_t total = align_up(need, grain);
    if (total < request.least_growth && total <= request.may_create)
      total = larger_of(total, align_down(smaller_of(request.least_growth, request.may_create), grain));
    range_ref region = 0;
    if (e.range != 0 && a.ranges[a.ranges[e.range].next].bytes >= total) region = a.ranges[e.range].next;
    if (e.range != 0 && region == 0) return create(a, hot, request, extension{}, request.bytes);
    if (e.range == 0) region = homes(request.where).find(a.ranges, total, grain);
    if (region == 0) return false;
    std::size_t const largest = larger_of(align_down(request.largest_handle, grain), grain);
    sequence<created> made;
    made.reserve(total / largest + 1);
    for (std::size_t left = total; left != 0; left -= made.back().bytes)
      made.push_back(created{0, smaller_of(left, largest), false});
    map_.make_room(made.size());
    a.ranges.make_room(4);

    range const base = a.ranges[e.range];
    if (e.range != 0) a.claim(e.range);
    // Not homes(request.where): a handle that changed its zone may be extended where it is.
    take_place(a, places_of(a.ranges[region].address), region, total);
    std::uintptr_t const address = a.ranges[region].address;
    hot.unlock();
    try {
      make(made, address, total);
    } catch (...) {
      unmake(made, address);
      hot.lock();
      make_hole(a, region);
      if (e.range != 0) a.make_free(e.range, base.domain, base.epoch);
      throw;
    }
    hot.lock();
    std::uintptr_t at = address;
    for (created const& c : made) {
      (void)map_.add(c.id, c.bytes, at);
      at += c.bytes;
    }
    a.ranges[region].where = request.where;
    if (e.range != 0) {
      a.merge(e.range, region);
      region = e.range;
    }
    a.make_free(region, request.taker, e.range != 0 && base.domain == request.taker ? base.epoch : 0);
    return true;
  }

  /// The driver calls of create(): no lock but the growth lock is held.
  void make(sequence<created>& made, std::uintptr_t address, std::size_t total) {
    if (total >= ask_first_limit) refuse_what_is_not_free(total);
    for (created& c : made) {
      c.id = source_.create(c.bytes);
      ++counters_.creates;
      counters_.hold(c.bytes, zone_at(address));
      try {
        source_.map(reinterpret_cast<void*>(address), c.bytes, c.id);
      } catch (...) {
        source_.destroy(c.id, c.bytes);
        ++counters_.destroys;
        counters_.release(c.bytes, zone_at(address));
        throw;
      }
      ++counters_.maps;
      c.mapped = true;
      address += c.bytes;
    }
  }
  void unmake(sequence<created> const& made, std::uintptr_t address) noexcept {
    for (created const& c : made) {
      if (!c.mapped) break;
      unmap(address, c.bytes);
      source_.destroy(c.id, c.bytes);
      ++counters_.destroys;
      counters_.release(c.bytes, zone_at(address));
      address += c.bytes;
    }
  }

  /// A request this large is refused before its first handle is made where the device has not so much free:
  /// otherwise it would take the whole device for a moment. Asking costs 5-100 us.
  static constexpr std::size_t ask_first_limit = 1_GiB;
  void refuse_what_is_not_free(std::size_t total) {
    std::size_t available = 0;
    std::size_t all = 0;
    if (!source_.driver().memory_info(available, all).ok() || available >= total) return;
    status const none{failure::out_of_memory, 0, "the device has not so much free", "memory_info"};
    refuse(source_.driver(), none, stream_ref{}, total, map_.granularity());
  }

  /// Lets the small zone have a wholly free handle of the large one.
  bool change_zone(arena& a, growth_request const& request) {
    piece const p = choose_whole_handle(a, map_, request.taker, align_up(request.bytes, map_.granularity()));
    if (p.bytes == 0) return false;
    a.ranges.make_room(4);
    range_ref const r = a.carve(a.starts.find(a.ranges, p.address), p.address, p.bytes);
    a.ranges[r].where = request.where;
    a.make_free(r, a.ranges[r].domain, a.ranges[r].epoch);
    return true;
  }

  /// Takes pieces out of the free ranges that hold them. @throws std::bad_alloc, nothing has changed
  static void carve(arena& a, choice const& c, sequence<range_ref>& carved) {
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
        std::uintptr_t const end = smaller_of(a.ranges[r].end(), p.address + p.bytes);
        carved.push_back(a.carve(r, at, end - at));
        at = end;
      }
    }
  }
  static void give_back(arena& a, sequence<range_ref> const& carved) noexcept {
    for (range_ref const r : carved) a.make_free(r, a.ranges[r].domain, a.ranges[r].epoch);
  }

  /// Maps the pieces' handles side by side and makes one block of them. Null: no address was left, and old views
  /// have been unmapped; ask again.
  void* build(arena& a, lock& hot, ordering<driver_type>& order, choice const& c,
              growth_request const& request) {
    std::size_t bytes = 0;
    for (piece const& p : c.pieces) bytes += map_[p.handle].bytes;
    range_ref region = view_places_.find(a.ranges, bytes, map_.granularity());
    if (region == 0 || views_in_use_ >= most_views) {
      bool const wait = region == 0 || views_in_use_ >= 2 * most_views;
      std::size_t const kept = region == 0 ? 0 : by_use_.size() / 2;
      std::size_t const dropped = drop_views(a, hot, order, request.taker, wait, kept);
      if (dropped != 0 || region == 0) return nullptr;
    }
    std::uint32_t const i = unused_view(a);
    view made;
    made.slots.reserve(c.pieces.size());
    for (piece const& p : c.pieces) made.slots.push_back(view_slot{p.handle, map_[p.handle].bytes});
    by_use_.reserve(by_use_.size() + 1);
    sequence<range_ref> carved;
    carve(a, c, carved);
    take_place(a, view_places_, region, bytes);
    a.ranges[region].state = range_state::view;
    made.region = region;
    made.address = a.ranges[region].address;
    made.bytes = bytes;
    hot.unlock();
    std::size_t mapped = 0;
    try {
      std::uintptr_t at = made.address;
      for (; mapped < made.slots.size(); ++mapped) {
        view_slot const& slot = made.slots[mapped];
        source_.map(reinterpret_cast<void*>(at), slot.bytes, map_[slot.handle].id);
        ++counters_.maps;
        ++counters_.remaps;
        at += slot.bytes;
      }
    } catch (...) {
      std::uintptr_t at = made.address;
      for (std::size_t k = 0; k < mapped; ++k) {
        unmap(at, made.slots[k].bytes);
        at += made.slots[k].bytes;
      }
      hot.lock();
      make_hole(a, region);
      give_back(a, carved);
      throw;
    }
    hot.lock();
    views_[i] = static_cast<view&&>(made);
    ++views_in_use_;
    by_use_.push_back(i);
    try {
      a.blocks.make_room(1);  // other threads may have used it up meanwhile
    } catch (...) {
      give_back(a, carved);
      throw;
    }
    return settle(a, carved, i, c.pieces[0].address - map_[c.pieces[0].handle].home, request);
  }

  /// An entry of views_, with its tenancy. @throws std::bad_alloc, nothing has changed
  std::uint32_t unused_view(arena& a) {
    for (std::uint32_t i = 1; i < views_.size(); ++i) {
      if (views_[i].region == 0) return i;
    }
    a.tenancies.reserve(views_.size() + 1);
    views_.push_back(view{});
    a.tenancies.push_back(tenancy{});
    return static_cast<std::uint32_t>(views_.size() - 1);
  }

  /// The block begins to live in its view.
  void* settle(arena& a, sequence<range_ref> const& carved, std::uint32_t i, std::size_t offset,
               growth_request const& request) noexcept {
    view& v = views_[i];
    v.last_offset = offset;
    v.last_bytes = request.bytes;
    std::size_t at = 0;
    while (by_use_[at] != i) ++at;
    for (; at != 0; --at) by_use_[at] = by_use_[at - 1];
    by_use_[0] = i;
    a.join_pieces(carved.begin(), carved.size(), request.taker, v.address + offset, i);
    return reinterpret_cast<void*>(v.address + offset);
  }

  /// Unmaps views that nobody is in and whose last work is done, or waited for: all but those used last. Returns how
  /// many.
  std::size_t drop_views(arena& a, lock& hot, ordering<driver_type>& order, domain_ref taker, bool const wait,
                         std::size_t kept) {
    stream_ref const stream = a.streams[taker].stream;
    hot.unlock();
    bool const captured = taker != neutral && order.is_capturing(stream);
    hot.lock();
    for (domain_ref d = 1; d < a.streams.size() && !captured; ++d) {
      if (wait) {
        (void)order.finish(a, hot, d);
      } else {
        (void)order.settle(a, hot, d);
      }
    }
    bool const all_done = everything_done(a);
    std::size_t dropped = 0;
    for (std::size_t at = by_use_.size(); at-- > kept;) {
      std::uint32_t const i = by_use_[at];
      tenancy const& t = a.tenancies[i];
      bool const done = t.domain == neutral || t.epoch <= a.streams[t.domain].completed;
      if (t.blocks != 0 || ((t.several || !done) && !all_done)) continue;
      drop_view(a, hot, at);
      ++dropped;
    }
    return dropped;
  }
  static bool everything_done(arena const& a) noexcept {
    for (domain_ref d = 1; d < a.streams.size(); ++d) {
      if (a.streams[d].freed > a.streams[d].completed) return false;
    }
    return true;
  }

  void drop_view(arena& a, lock& hot, std::size_t at) {
    std::uint32_t const i = by_use_[at];
    for (std::size_t k = at + 1; k < by_use_.size(); ++k) by_use_[k - 1] = by_use_[k];
    by_use_.pop_back();
    view const gone = static_cast<view&&>(views_[i]);
    views_[i] = view{};
    a.tenancies[i] = tenancy{};
    --views_in_use_;
    hot.unlock();
    unmap_slots(gone);
    hot.lock();
    make_hole(a, gone.region);
  }

  void unmap_slots(view const& v) noexcept {
    std::uintptr_t at = v.address;
    for (view_slot const& slot : v.slots) {
      if (slot.handle != 0) unmap(at, slot.bytes);
      at += slot.bytes;
    }
  }
  void unmap(std::uintptr_t address, std::size_t bytes) noexcept {
    source_.unmap(reinterpret_cast<void*>(address), bytes);
    ++counters_.unmaps;
  }

  /// Unmaps a handle wherever it is seen and gives it back. Nobody uses it.
  void destroy(handle_ref h) noexcept {
    for (view& v : views_) {
      std::uintptr_t at = v.address;
      for (view_slot& slot : v.slots) {
        if (slot.handle == h) {
          unmap(at, slot.bytes);
          slot.handle = 0;
        }
        at += slot.bytes;
      }
    }
    unmap(map_[h].home, map_[h].bytes);
    source_.destroy(map_[h].id, map_[h].bytes);
    ++counters_.destroys;
    counters_.release(map_[h].bytes, zone_at(map_[h].home));
  }

  /// Takes the first `bytes` of a hole. Room was made.
  static void take_place(arena& a, range_index& places, range_ref region, std::size_t bytes) noexcept {
    places.erase(a.ranges, region);
    if (a.ranges[region].bytes > bytes) places.insert(a.ranges, a.split(region, bytes));
    a.ranges[region].state = range_state::live;
  }

  void make_hole(arena& a, range_ref r) noexcept {
    range_index& places = places_of(a.ranges[r].address);
    a.ranges[r].state = range_state::hole;
    a.ranges[r].domain = neutral;
    a.ranges[r].epoch = 0;
    a.ranges[r].where = zone::small;
    if (range_ref const n = a.ranges[r].next; n != 0 && a.ranges[n].state == range_state::hole) {
      places.erase(a.ranges, n);
      a.merge(r, n);
    }
    if (range_ref const b = a.ranges[r].previous; b != 0 && a.ranges[b].state == range_state::hole) {
      places.erase(a.ranges, b);
      a.merge(b, r);
      r = b;
    }
    places.insert(a.ranges, r);
  }

  Source source_;
  growth_counters& counters_;
  page_map map_;
  void* reserved_ = nullptr;       ///< what the source reserved: a granule more than the map covers
  range_index homes_[zone_count];  ///< of each zone, address space with nothing behind it
  range_index view_places_;
  sequence<view> views_;            ///< entry 0 is none
  sequence<std::uint32_t> by_use_;  ///< the most recently used one first
  std::size_t views_in_use_ = 0;
};

}  // namespace tarn::detail
