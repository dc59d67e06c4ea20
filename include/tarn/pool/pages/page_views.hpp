// SPDX-License-Identifier: Apache-2.0
#pragma once
// The views of a pool over free handles: an existing view is reused, or extended if its end is free; new
// views are mapped, and old ones unmapped.

#include <cstddef>
#include <cstdint>

#include "tarn/core/config.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/pool/arena/hot_lock.hpp"
#include "tarn/pool/arena/looked_up.hpp"
#include "tarn/pool/order/ordering.hpp"
#include "tarn/pool/pages/address_space.hpp"
#include "tarn/pool/pages/growth.hpp"
#include "tarn/pool/pages/page_choice.hpp"
#include "tarn/pool/pages/view_table.hpp"

namespace TARN_NAMESPACE::detail {

/// A view is extended if that maps at least this many handles fewer than a new one, and leaves at most this
/// part of the request more unused next to it; for less, the best fitting pieces are worth more. Measured on
/// the recorded traces from 1 to 12 handles, and from a 16th to a 64th: all other values lose up to 0.02 of
/// utilisation on one of them or another.
inline constexpr std::size_t least_saving = 6;
inline constexpr std::size_t left_over_part = 32;

template <page_source Source>
class page_views {
 public:
  using driver_type = typename Source::driver_type;

  page_views(view_table<Source>& table, page_map& map, address_space& space) noexcept
      : table_(table), map_(map), addresses_(space) {}

  /// Serves the request from an existing view, without a driver call; null if none is free.
  /// @throws std::bad_alloc, nothing has changed
  [[nodiscard]] void* reuse(arena& a, hot_lock const& held, growth_request const& request) {
    if (request.where == zone::smaller || !request.may_remap || in_use_ == 0) return nullptr;
    std::uint32_t best = 0;
    free_stretch where;
    std::size_t looked_at = 0;
    for (std::uint32_t const i : by_use_) {
      TARN_VISIT();
      view const& v = table_[i];
      if (v.bytes < request.bytes) continue;
      if (v.last_bytes != request.bytes && ++looked_at > view_search_limit) continue;
      free_stretch const s = find_stretch(a, map_, v, request);
      if (s.bytes == 0 || (best != 0 && s.bytes >= where.bytes)) continue;
      best = i;
      where = s;
      if (s.bytes == request.bytes) break;
    }
    if (best == 0) return nullptr;
    looked_up<choice> const c(held, pieces_of(map_, table_[best], where.offset, request.bytes));
    sequence<range_ref> carved;
    table_.carve(a, held, c, carved);
    return make_live(a, carved, best, where.offset, request);
  }

  /// Makes room for one more view that is not here yet. @throws std::bad_alloc
  void expect_one() {
    by_use_.reserve(by_use_.size() + expected_ + 1);
    ++expected_;
  }
  /// Takes an expected view over, which has slots; it is the least recently used one.
  void adopt(std::uint32_t i) noexcept {
    --expected_;
    by_use_.push_back(i);
    ++in_use_;
  }
  /// The expected view does not come.
  void expect_one_less() noexcept { --expected_; }
  /// Unmaps all idle views, to get their addresses back. Waits on the host for the work on them.
  void drop_all(arena& a, may_release hot, ordering<driver_type>& order) {
    drop_views(a, hot, order, neutral, patience::wait, 0);
  }

  /// Whether idle views should be unmapped before a new one is made.
  [[nodiscard]] bool is_full() const noexcept { return in_use_ >= most_views; }

  /// Unmaps the older half of the idle views. Waits on the host for their work if there are at least twice
  /// most_views.
  void drop_idle(arena& a, may_release hot, ordering<driver_type>& order, domain_ref taker) {
    drop_views(a, hot, order, taker, in_use_ >= 2 * most_views ? patience::wait : patience::none,
               by_use_.size() / 2);
  }

  /// Joins pieces into one block: at the end of a view that holds most of them, or in a new view. Null if no
  /// address was left; old views have then been unmapped, and the caller must choose again.
  /// @throws out_of_memory, cuda_error, std::bad_alloc  nothing has changed
  [[nodiscard]] void* build(arena& a, may_release hot, ordering<driver_type>& order,
                            looked_up<free_pieces>& free, looked_up<choice> const& c,
                            growth_request const& request) {
    looked_up<prolongation> const p(hot.held(),
                                    find_prolongation(a, free.get(hot.held()), c.get(hot.held()), request));
    if (p.get(hot.held()).view != 0) return prolong(a, hot, p, request);
    return make(a, hot, order, c, request);
  }

 private:
  /// A view, the free bytes at its end, and the pieces that will follow them.
  struct prolongation {
    std::uint32_t view = 0;  ///< 0 if none
    free_stretch at{};
    choice added{};
  };

  /// Whether the host waits for work that may still use a view.
  enum class patience : std::uint8_t { none, wait };

  /// The view whose extension maps the fewest pieces, compared with the pieces of a new view.
  /// @throws std::bad_alloc
  [[nodiscard]] prolongation find_prolongation(arena const& a, free_pieces& free, choice const& fresh,
                                               growth_request const& request) const {
    prolongation best;
    if (fresh.pieces.size() <= least_saving) return best;
    std::size_t most = fresh.pieces.size() - least_saving;
    std::size_t const most_left_over = fresh.left_over + request.bytes / left_over_part;
    std::size_t looked_at = 0;
    for (std::uint32_t const i : by_use_) {
      TARN_VISIT();
      if (most == 0 || ++looked_at > view_search_limit) break;
      view const& v = table_[i];
      free_stretch const end = find_free_end(a, map_, v, request);
      if (end.bytes >= request.bytes || v.handles_from(end.offset) < least_saving) continue;
      choice c = choose_pieces(free, request, request.bytes - end.bytes, &v);
      if (c.lack != 0 || c.left_over > most_left_over || c.pieces.size() > most) continue;
      std::size_t bytes = v.bytes;
      for (piece const& p : c.pieces) bytes += map_[p.handle].bytes;
      if (bytes > a.ranges[v.region].bytes) continue;
      most = c.pieces.size() - 1;
      best = {i, end, static_cast<choice&&>(c)};
    }
    return best;
  }

  /// The free pieces at the end of a view and those that will follow them.
  [[nodiscard]] choice prolonged(view const& v, prolongation const& p) const {
    choice all = pieces_of(map_, v, p.at.offset, p.at.bytes);
    for (piece const& added : p.added.pieces) all.pieces.push_back(added);
    return all;
  }

  /// Maps handles after the last one of a view. If that fails, the mapped ones stay part of the view.
  void* prolong(arena& a, may_release hot, looked_up<prolongation> const& found,
                growth_request const& request) {
    prolongation const& p = found.get(hot.held());
    view& v = table_[p.view];
    looked_up<choice> const all(hot.held(), prolonged(v, p));
    v.view_slots.reserve(v.view_slots.size() + p.added.pieces.size());
    sequence<range_ref> carved;
    table_.carve(a, hot.held(), all, carved);
    try {
      unlocked const released(hot);
      for (piece const& added : p.added.pieces) {
        std::size_t const bytes = map_[added.handle].bytes;
        table_.map_again(v.address + v.bytes, added.handle);
        v.view_slots.push_back(view_slot{added.handle, bytes});
        v.bytes += bytes;
      }
    } catch (...) {
      table_.free_again(a, carved);
      throw;
    }
    return make_live(a, carved, p.view, p.at.offset, request);
  }

  /// Maps the pieces' handles next to each other in a new region of twice their size, so that the view can be
  /// extended later.
  void* make(arena& a, may_release hot, ordering<driver_type>& order, looked_up<choice> const& chosen,
             growth_request const& request) {
    choice const& c = chosen.get(hot.held());
    std::size_t bytes = 0;
    for (piece const& p : c.pieces) bytes += map_[p.handle].bytes;
    std::size_t place = 2 * bytes;
    range_ref region = addresses_.find_view(a, place, map_.granularity());
    if (region == 0) {
      place = bytes;
      region = addresses_.find_view(a, place, map_.granularity());
    }
    if (region == 0) {
      drop_views(a, hot, order, request.taker, patience::wait, 0);
      return nullptr;  // the pieces were chosen before the lock was released: they may be taken
    }
    std::uint32_t const i = table_.find_unused(a);
    view made;
    made.view_slots.reserve(c.pieces.size());
    for (piece const& p : c.pieces) made.view_slots.push_back(view_slot{p.handle, map_[p.handle].bytes});
    by_use_.reserve(by_use_.size() + expected_ + 1);
    sequence<range_ref> carved;
    table_.carve(a, hot.held(), chosen, carved);
    addresses_.take(a, region, place);
    std::size_t const offset = c.pieces[0].address - map_[c.pieces[0].handle].home;
    a.ranges[region].state = range_state::view;
    made.region = region;
    made.address = a.ranges[region].address;
    made.bytes = bytes;
    try {
      unlocked const released(hot);
      table_.map_slots(made);
    } catch (...) {
      addresses_.put(a, region);
      table_.free_again(a, carved);
      throw;
    }
    table_[i] = static_cast<view&&>(made);
    ++in_use_;
    by_use_.push_back(i);
    return make_live(a, carved, i, offset, request);
  }

  /// Makes the block live in its view. @throws std::bad_alloc, the carved pieces are free again
  void* make_live(arena& a, sequence<range_ref> const& carved, std::uint32_t i, std::size_t offset,
                  growth_request const& request) {
    try {
      a.blocks.make_room(1);  // other threads may have used it up meanwhile
    } catch (...) {
      table_.free_again(a, carved);
      throw;
    }
    view& v = table_[i];
    v.last_offset = offset;
    v.last_bytes = request.bytes;
    v.captured = v.captured || a.streams.part(request.part).keeps_addresses;
    std::size_t at = 0;
    while (by_use_[at] != i) ++at;
    for (; at != 0; --at) {
      TARN_VISIT();
      by_use_[at] = by_use_[at - 1];
    }
    by_use_[0] = i;
    a.join_pieces(carved.begin(), carved.size(), request.taker, v.address + offset, i);
    return reinterpret_cast<void*>(v.address + offset);
  }

  /// Unmaps views without live blocks whose last work is complete, except for the `kept` most recently used
  /// ones. Checks each view immediately before unmapping it: unmapping releases the lock, so other views may
  /// change meanwhile.
  void drop_views(arena& a, may_release hot, ordering<driver_type>& order, domain_ref taker,
                  patience const chosen, std::size_t kept) {
    bool captured = false;
    if (!a.streams[taker].is_neutral()) {
      stream_ref const stream = a.streams[taker].stream;
      unlocked const released(hot);
      captured = may_be_capturing(order.driver(), stream);
    }
    typename ordering<driver_type>::pass const all(order);
    if (!captured) order.mark_together(a, hot, [&](auto const& f) { a.streams.for_each(f); });
    a.streams.for_each([&](domain_ref d) {
      if (captured) return;
      if (chosen == patience::wait) {
        (void)order.finish(a, hot, d);
      } else {
        (void)order.settle(a, hot, d);
      }
    });
    for (std::size_t at = by_use_.size(); at-- > kept;) {
      view const& v = table_[by_use_[at]];
      if (v.pins == 0 && is_idle(a, a.tenancies[by_use_[at]]) && !keeps_addresses(a, v))
        drop_view(a, hot, at);
    }
  }
  /// Whether captured graphs may have addresses of a view. Handles of it that captures have taken over, and
  /// use elsewhere, do not keep it.
  [[nodiscard]] bool keeps_addresses(arena const& a, view const& v) const noexcept {
    if (!v.captured) return false;
    for (view_slot const& slot : v.view_slots) {
      TARN_VISIT();
      if (slot.handle != 0 && a.keeps_address(a.ranges[a.starts.find(a.ranges, map_[slot.handle].home)]))
        return true;
    }
    return false;
  }

  /// Whether a view has no live block and the device has completed all work on its former blocks.
  [[nodiscard]] bool is_idle(arena const& a, tenancy const& t) const noexcept {
    return t.blocks == 0 && table_.is_done(a, t);
  }

  void drop_view(arena& a, may_release hot, std::size_t at) {
    std::uint32_t const i = by_use_[at];
    for (std::size_t k = at + 1; k < by_use_.size(); ++k) {
      TARN_VISIT();
      by_use_[k - 1] = by_use_[k];
    }
    by_use_.pop_back();
    view const gone = static_cast<view&&>(table_[i]);
    table_[i] = view{};
    a.tenancies[i] = tenancy{};
    --in_use_;
    {
      unlocked const released(hot);
      table_.forget(gone);
    }
    addresses_.put(a, gone.region);
  }

  view_table<Source>& table_;
  page_map& map_;
  address_space& addresses_;
  sequence<std::uint32_t> by_use_;  ///< the most recently used one first
  std::size_t in_use_ = 0;
  std::size_t expected_ = 0;  ///< views for which by_use_ has room
};

}  // namespace TARN_NAMESPACE::detail
