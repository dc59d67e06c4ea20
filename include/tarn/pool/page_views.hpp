// SPDX-License-Identifier: Apache-2.0
#pragma once
// Views over free handles: a view that exists is used again, a view whose end is free is prolonged, a new one is made,
// and old ones are unmapped. Above it: page_growth. Below it: page_choice, address_space, ordering.

#include <cstddef>
#include <cstdint>

#include "tarn/core/resource.hpp"
#include "tarn/pool/address_space.hpp"
#include "tarn/pool/growth.hpp"
#include "tarn/pool/hot_lock.hpp"
#include "tarn/pool/ordering.hpp"
#include "tarn/pool/page_choice.hpp"

namespace tarn::detail {

/// A view is prolonged where that maps at least this many handles fewer than a new one, and leaves at most this part of
/// the request more beside it: for less, the pieces that fit best are worth more. Measured on the recorded traces from 1 to
/// 12 handles, from a 16th to a 64th: all others lose up to 0.02 of utilisation on one of them or another.
inline constexpr std::size_t least_saving = 6;
inline constexpr std::size_t left_over_part = 32;

template <page_source Source>
class page_views {
 public:
  using driver_type = typename Source::driver_type;
  using lock = hot_lock;

  page_views(Source& source, growth_counters& counters, page_map& map, address_space& space)
      : source_(source), counters_(counters), map_(map), space_(space) {}

  [[nodiscard]] std::size_t host_bytes() const noexcept { return views_.capacity() * sizeof(view); }

  /// @throws std::bad_alloc
  void open(arena& a) {
    a.tenancies.resize(1);
    views_.resize(1);
  }

  /// Serves the request from a view that exists, without a driver call; null where none is free. Both locks are
  /// held. @throws std::bad_alloc, nothing has changed
  [[nodiscard]] void* reuse(arena& a, growth_request const& request) {
    if (request.where == zone::small || !request.may_remap || in_use_ == 0) return nullptr;
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

  /// Makes one block of pieces: at the end of a view that holds most of them, or in a new view. The hot lock is held on
  /// entry and return, and let go around driver calls. Null: no address was left, and old views have been unmapped;
  /// ask again. @throws out_of_memory, cuda_error, std::bad_alloc  nothing has changed
  [[nodiscard]] void* build(arena& a, lock& hot, ordering<driver_type>& order, choice const& c,
                            growth_request const& request) {
    if (prolongation const p = find_prolongation(a, c, request); p.view != 0)
      return prolong(a, hot, p, request);
    return make(a, hot, order, c, request);
  }

  /// Unmaps a handle wherever it is seen. Nobody uses it.
  void forget(handle_ref h) noexcept {
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
  }

  /// Unmaps everything. Nothing on the device uses it any more.
  void close() noexcept {
    for (view const& v : views_) unmap_slots(v);
  }

 private:
  /// A view, the free bytes at its end, and what is to follow them.
  struct prolongation {
    std::uint32_t view = 0;  ///< 0: none
    free_stretch at{};
    choice added{};
  };

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

  /// The view that leaves fewest pieces to map beside what a new view would take.
  /// @throws std::bad_alloc
  [[nodiscard]] prolongation find_prolongation(arena const& a, choice const& fresh,
                                               growth_request const& request) const {
    prolongation best;
    if (fresh.pieces.size() <= least_saving) return best;
    std::size_t most = fresh.pieces.size() - least_saving;
    std::size_t const most_left_over = fresh.left_over + request.bytes / left_over_part;
    std::size_t looked_at = 0;
    for (std::uint32_t const i : by_use_) {
      if (most == 0 || ++looked_at > view_search_limit) break;
      view const& v = views_[i];
      free_stretch const end = find_free_end(a, map_, v, request);
      if (end.bytes >= request.bytes || v.handles_from(end.offset) < least_saving) continue;
      choice c = choose_pieces(a, map_, request, request.bytes - end.bytes, &v);
      if (c.lack != 0 || c.left_over > most_left_over || c.pieces.size() > most) continue;
      std::size_t bytes = v.bytes;
      for (piece const& p : c.pieces) bytes += map_[p.handle].bytes;
      if (bytes > a.ranges[v.region].bytes) continue;
      most = c.pieces.size() - 1;
      best = {i, end, static_cast<choice&&>(c)};
    }
    return best;
  }

  /// Maps handles behind the last one of a view. Where that fails, those that are mapped stay: they are part of it.
  void* prolong(arena& a, lock& hot, prolongation const& p, growth_request const& request) {
    view& v = views_[p.view];
    choice all = pieces_of(map_, v, p.at.offset, p.at.bytes);
    for (piece const& added : p.added.pieces) all.pieces.push_back(added);
    v.slots.reserve(v.slots.size() + p.added.pieces.size());
    sequence<range_ref> carved;
    carve(a, all, carved);
    hot.unlock();
    try {
      for (piece const& added : p.added.pieces) {
        std::size_t const bytes = map_[added.handle].bytes;
        map_again(v.address + v.bytes, added.handle);
        v.slots.push_back(view_slot{added.handle, bytes});
        v.bytes += bytes;
      }
    } catch (...) {
      hot.lock();
      give_back(a, carved);
      throw;
    }
    hot.lock();
    return settle(a, carved, p.view, p.at.offset, request);
  }

  /// Maps the pieces' handles side by side at a new place, twice as long, for what may follow them one day.
  void* make(arena& a, lock& hot, ordering<driver_type>& order, choice const& c,
             growth_request const& request) {
    std::size_t bytes = 0;
    for (piece const& p : c.pieces) bytes += map_[p.handle].bytes;
    std::size_t place = 2 * bytes;
    range_ref region = space_.find_view(a, place, map_.granularity());
    if (region == 0) {
      place = bytes;
      region = space_.find_view(a, place, map_.granularity());
    }
    if (region == 0 || in_use_ >= most_views) {
      bool const wait = region == 0 || in_use_ >= 2 * most_views;
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
    space_.take(a, region, place);
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
        map_again(at, slot.handle);
        at += slot.bytes;
      }
    } catch (...) {
      std::uintptr_t at = made.address;
      for (std::size_t k = 0; k < mapped; ++k) {
        unmap(at, made.slots[k].bytes);
        at += made.slots[k].bytes;
      }
      hot.lock();
      space_.give_back(a, region);
      give_back(a, carved);
      throw;
    }
    hot.lock();
    views_[i] = static_cast<view&&>(made);
    ++in_use_;
    by_use_.push_back(i);
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

  /// The block begins to live in its view. @throws std::bad_alloc, what was carved is free again
  void* settle(arena& a, sequence<range_ref> const& carved, std::uint32_t i, std::size_t offset,
               growth_request const& request) {
    try {
      a.blocks.make_room(1);  // other threads may have used it up meanwhile
    } catch (...) {
      give_back(a, carved);
      throw;
    }
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
    --in_use_;
    hot.unlock();
    unmap_slots(gone);
    hot.lock();
    space_.give_back(a, gone.region);
  }

  void unmap_slots(view const& v) noexcept {
    std::uintptr_t at = v.address;
    for (view_slot const& slot : v.slots) {
      if (slot.handle != 0) unmap(at, slot.bytes);
      at += slot.bytes;
    }
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

  Source& source_;
  growth_counters& counters_;
  page_map& map_;
  address_space& space_;
  sequence<view> views_;            ///< entry 0 is none
  sequence<std::uint32_t> by_use_;  ///< the most recently used one first
  std::size_t in_use_ = 0;
};

}  // namespace tarn::detail
