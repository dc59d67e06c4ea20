// SPDX-License-Identifier: Apache-2.0
#pragma once
// Growth by pages, over one virtual range. Free memory is used at its home address; if no contiguous range of
// it is large enough, these are tried in this order:
//
//   1 new handles at home addresses, while reserved memory may grow with live memory   36 us each
//   2 a free handle of the large zone, or a view whose handles are free again          no driver call
//   3 for others, a view of free handles: an existing one extended, or a new one       27 us a handle
//   4 new handles beyond that, for the missing bytes
//
// For a graph memory's part, wholly free handles of the common part, and of the owner's other one, come
// before new ones: they change the part without a driver call.
// A free range in front of a hole is extended rather than a new range begun, if the request says so.
// The ladder says how much may be created before free handles are mapped again (growth_request::may_create).

#include <cstddef>
#include <cstdint>
#include <exception>

#include "tarn/core/min_max.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/pool/arena/arena.hpp"
#include "tarn/pool/arena/hot_lock.hpp"
#include "tarn/pool/arena/looked_up.hpp"
#include "tarn/pool/order/ordering.hpp"
#include "tarn/pool/pages/adopted_handles.hpp"
#include "tarn/pool/pages/created_handles.hpp"
#include "tarn/pool/pages/growing_views.hpp"
#include "tarn/pool/pages/growth.hpp"
#include "tarn/pool/pages/growth_rules.hpp"
#include "tarn/pool/pages/largest_block.hpp"
#include "tarn/pool/pages/page_choice.hpp"
#include "tarn/pool/pages/page_views.hpp"
#include "tarn/pool/pages/physical_segments.hpp"
#include "tarn/pool/pages/view_table.hpp"
#include "tarn/pool/relocate/page_compact.hpp"
#include "tarn/pool/relocate/page_sleep.hpp"

namespace TARN_NAMESPACE::detail {

template <page_source Source>
class page_growth {
 public:
  using driver_type = typename Source::driver_type;

  page_growth(Source& source, growth_counters& counters)
      : source_(source),
        counters_(counters),
        table_(source_, counters_, map_),
        views_(table_, map_, addresses_),
        growing_(table_, map_, addresses_, views_, source.driver().device().value),
        sleep_(source_, counters_, map_, addresses_, table_),
        compact_(source_, counters_, map_, addresses_, table_, sleep_),
        segments_(map_, table_) {}

  [[nodiscard]] bool contains(std::uintptr_t address) const noexcept { return map_.contains(address); }
  [[nodiscard]] std::size_t host_bytes() const noexcept {
    return map_.host_bytes() + table_.host_bytes() + sleep_.host_bytes();
  }

  /// Serves the request: sets `block` if it was assembled from pieces; otherwise leaves a free range of at
  /// least `request.bytes` in the taker's domain. Returns false if free memory does not suffice and nothing
  /// may be created.
  /// @throws out_of_memory, cuda_error, std::bad_alloc  nothing has changed
  bool grow(growth_lock const& growing, arena& a, may_release hot, ordering<driver_type>& order,
            growth_request const& request, void*& block) {
    if (!map_.is_set_up()) set_up(a, hot, request.device_bytes);
    // No address would be found, and creating handles first would briefly take the whole device.
    if (request.bytes > map_.bytes()) return false;
    std::size_t const grain = map_.granularity();
    hot_lock const& held = hot.held();
    // Repeated if idle views had to be unmapped, which releases the lock: everything is looked up again.
    for (bool has_dropped = false, has_adopted = false;;) {
      looked_up const e(held, request.extend && a.joins_handles ? extendable(a, request) : extension{});
      std::size_t const extended = e.get(held).bytes;
      std::size_t const missing = align_up(request.bytes - extended, grain);
      if (!has_adopted && (!request.may_remap || missing <= request.may_create)) {
        if (!adopt_handles(a, map_, request, align_up(request.bytes, grain), has_adopted))
          return create(growing, a, hot, request, e, request.bytes - extended);
        if (!has_adopted) return true;
      }
      if ((block = views_.reuse(a, held, request)) != nullptr) return true;
      std::size_t lack = missing;
      if (request.where == zone::smaller) {
        if (change_zone(a, request)) return true;
      } else {
        looked_up<free_pieces> pieces(held, find_pieces(a, map_, request));
        looked_up<choice> const c(held, choose_pieces(pieces.get(held), request, request.bytes));
        lack = align_up(c.get(held).lack, grain);
        if (lack == 0 && views_.is_full() && !has_dropped) {
          views_.drop_idle(a, hot, order, request.taker);
          has_dropped = true;
          continue;
        }
        if (lack == 0) {
          if ((block = views_.build(a, hot, order, pieces, c, request)) != nullptr) return true;
          // No address was left. Idle views have been unmapped: try again, then do without a view.
          if (has_dropped)
            return request.may_exceed &&
                   create(growing, a, hot, request, looked_up<extension>(held, {}), request.bytes);
          has_dropped = true;
          continue;
        }
      }
      if (bool several = false; !has_adopted && adopt_handles(a, map_, request, lack, several)) {
        if (!several && lack >= align_up(request.bytes, grain)) return true;
        has_adopted = true;
        continue;
      }
      if (!request.may_exceed && lack > request.may_create) return false;
      if (lack >= missing) return create(growing, a, hot, request, e, request.bytes - extended);
      if (!create(growing, a, hot, request, looked_up<extension>(held, {}), lack)) return false;
      for (int attempt = 0; attempt < 2; ++attempt) {  // the first may find no address, and unmap idle views
        looked_up<free_pieces> pieces(held, find_pieces(a, map_, request));
        looked_up<choice> const c(held, choose_pieces(pieces.get(held), request, request.bytes));
        if (c.get(held).lack != 0) return false;
        if ((block = views_.build(a, hot, order, pieces, c, request)) != nullptr) return true;
      }
      return false;
    }
  }

  // ---- blocks that grow in place

  /// Whether a block of 2 MiB is whole handles.
  [[nodiscard]] bool can_grow_in_place() const noexcept { return source_.granularity() <= usual_granule; }
  /// See growing_views::reserve(); returns the address, null if none is left.
  [[nodiscard]] void* reserve_growing(arena& a, may_release hot, ordering<driver_type>& order,
                                      std::size_t device_bytes, std::size_t bytes) {
    if (!map_.is_set_up()) set_up(a, hot, device_bytes);
    if (bytes > map_.bytes() / 2) return nullptr;  // views have half of the addresses
    std::size_t const whole = align_up(max_of(bytes, std::size_t{1}), map_.granularity());
    if (views_.is_full()) views_.drop_idle(a, hot, order, neutral);
    std::uint32_t i = growing_.reserve(a, whole);
    if (i == 0) {
      views_.drop_all(a, hot, order);
      i = growing_.reserve(a, whole);
    }
    return i != 0 ? reinterpret_cast<void*>(growing_.address_of(i)) : nullptr;
  }
  /// Ends the growth at an address of reserve_growing(); also inside restore() and compact(), by a handler.
  void end_growing(arena& a, may_release hot, void const* p) noexcept {
    if (auto const i = growing_.find(a, reinterpret_cast<std::uintptr_t>(p)); i != 0)
      growing_.end(a, hot, i, is_moving_);
  }
  [[nodiscard]] growing_views<Source>& growing() noexcept { return growing_; }
  [[nodiscard]] bool is_moving() const noexcept { return is_moving_; }  ///< inside restore() or compact()

  /// The largest block that could be served if `left` more bytes can be created.
  [[nodiscard]] std::size_t largest_block(arena const& a, std::size_t left, bool may_remap) const {
    if (!map_.is_set_up()) return align_down(min_of(left, max_request_bytes), usual_granule);
    return detail::largest_block(a, map_, left, may_remap);
  }

  /// How many bytes may stay reserved if the request is served by a new handle. No limit where free handles
  /// can be mapped together.
  [[nodiscard]] std::size_t keep_before(arena const& a, growth_request const& request) const noexcept {
    return a.joins_handles ? ~std::size_t{0} : most_beside(a, align_up(request.bytes, usual_granule));
  }

  /// Gives wholly free handles whose work is complete back to the driver, the largest first, until at most
  /// `keep` bytes are reserved, and returns the bytes; nothing inside restore() and compact(), where a
  /// handler of the source may call it, nor while copies of a sleep may run. O(handles + slots of views +
  /// free ranges).
  std::size_t shrink(growth_lock const& growing, arena& a, may_release hot, std::size_t keep) {
    if (!map_.is_set_up() || is_moving_ || counters_.reserved <= keep) return 0;
    if (!sleep_.finish_copies(growing, hot).ok()) return 0;
    return drop(growing, a, hot, keep);
  }

  /// Gives up what was freed while the pool slept; returns the bytes that restore() creates.
  /// @throws cuda_error, std::bad_alloc: nothing has changed
  std::size_t prepare_restore(growth_lock const& growing, arena& a, may_release hot) {
    must_succeed(source_.driver(), sleep_.finish_copies(growing, hot));
    if (map_.is_set_up()) (void)drop(growing, a, hot, 0);
    return sleep_.missing();
  }
  /// See page_sleep.
  std::size_t restore(growth_lock const& growing, may_release hot) {
    moving const now(*this);
    return sleep_.restore(growing, hot);
  }
  /// Gives back the granules that hold no live byte; returns the number of stretches of live bytes. Copies on
  /// `stream`. See page_compact.
  std::size_t compact(growth_lock const& growing, arena& a, may_release hot, stream_ref stream) {
    moving const now(*this);
    must_succeed(source_.driver(), sleep_.finish_copies(growing, hot));
    compact_.compact(growing, a, hot, stream);
    return compact_.stretches(a);
  }
  /// After a failure of compact(): if it left a handle that is mapped nowhere, unmaps all others as well and
  /// returns true. The pool is then asleep, and restore() maps them.
  [[nodiscard]] bool unmap_incomplete(growth_lock const& growing) noexcept {
    if (!compact_.take_unmapped()) return false;
    sleep_.unmap(growing);
    return true;
  }

  /// Calls f(held_memory) for each handle, also while it is asleep.
  template <class F>
  void for_each_held(F const& f) const {
    for (handle_ref h = 1; h < map_.size(); ++h) {
      if (physical const& p = map_[h]; p.bytes != 0)
        f(held_memory{p.home, p.bytes, addresses_.zone_at(p.home), true, p.state == backing::released});
    }
  }

  /// The other steps of sleep and wake.
  [[nodiscard]] page_sleep<Source>& sleep() noexcept { return sleep_; }
  /// Segments and pins.
  [[nodiscard]] physical_segments<Source>& segments() noexcept { return segments_; }

  /// Gives everything back. Nothing on the device uses it any more.
  void close(growth_lock const& growing) noexcept {
    if (!map_.is_set_up()) return;
    (void)sleep_.finish_copies(growing);
    table_.close();
    for (handle_ref h = 1; h < map_.size(); ++h) {
      if (map_[h].bytes != 0) (void)destroy_handle(source_, counters_, addresses_, growing, map_, h);
    }
    if (!compact_.keeps_addresses()) source_.unreserve(reserved_, map_.bytes() + map_.granularity());
  }

 private:
  /// A scope in which handles are created for addresses that the pool has.
  class moving {
   public:
    explicit moving(page_growth& growth) noexcept : growth_(growth) { growth_.is_moving_ = true; }
    moving& operator=(moving&&) = delete;
    ~moving() { growth_.is_moving_ = false; }

   private:
    page_growth& growth_;
  };
  struct extension {
    range_ref range = 0;
    std::size_t bytes = 0;
  };

  /// Takes wholly free handles out of the pool, as shrink() does, and gives back those that are not asleep.
  std::size_t drop(growth_lock const& growing, arena& a, may_release hot, std::size_t keep) {
    std::size_t given = 0;
    looked_up<sequence<piece>> const whole(hot.held(), free_handles(a, map_));
    std::size_t const most = whole.get(hot.held()).size();
    sequence<handle_ref> handles;
    handles.reserve(most);
    sequence<range_ref> carved;
    carved.reserve(most);
    sequence<bool> leaves;
    leaves.resize(map_.size());
    a.ranges.make_room(2 * most + 4);
    for (piece const& p : whole.get(hot.held())) {
      bool const is_held = map_[p.handle].state != backing::released;
      if (is_held && counters_.reserved - given <= keep) break;
      carved.push_back(a.carve(a.starts.find(a.ranges, p.address), p.address, p.bytes));
      handles.push_back(p.handle);
      leaves[p.handle] = true;
      if (is_held) given += p.bytes;
    }
    {
      unlocked const released(hot);
      table_.forget(leaves);
      for (handle_ref const h : handles)
        (void)destroy_handle(source_, counters_, addresses_, growing, map_, h);
    }
    for (std::size_t i = 0; i < handles.size(); ++i) {
      map_.remove(handles[i]);
      addresses_.put(a, carved[i]);
    }
    return given;
  }

  /// Reserves the virtual range, for the first growth. @param total  memory of the device, 0 if unknown
  void set_up(arena& a, may_release hot, std::size_t total) {
    void* base = nullptr;
    std::size_t bytes = 0;
    std::size_t grain = 0;
    {
      unlocked const released(hot);
      // Callers may request an alignment up to this, to which blocks of finer pages would not be aligned.
      grain = max_of(source_.granularity(), usual_granule);
      std::size_t available = 0;
      if (total == 0) (void)source_.driver().memory_info(available, total);
      std::size_t const device = align_up(max_of(total, 64 * grain), 8 * grain);
      for (bytes = device * reservation_factor; base == nullptr;) {
        try {
          base = source_.reserve(bytes + grain);
        } catch (std::exception const&) {
          if (bytes <= 4 * device) throw;
          bytes /= 2;
        }
      }
    }
    auto const first = align_up(reinterpret_cast<std::uintptr_t>(base), grain);
    try {
      a.ranges.make_room(zone_count + 1);
      table_.set_up(a);
      a.starts.set_up(first, bytes / 2, grain);
      map_.set_up(first, bytes / 2, bytes, grain);
    } catch (...) {
      unlocked const released(hot);
      source_.unreserve(base, bytes + grain);
      throw;
    }
    reserved_ = base;
    addresses_.set_up(a, first, bytes);
    a.pages = &map_;
  }

  /// The free range before a hole that lacks the fewest bytes of the request. O(ranges before a hole)
  extension extendable(arena& a, growth_request const& request) const {
    extension best;
    auto const look = [&](domain_ref d) {
      a.streams[d].ranges(request.where).for_each_at_end(a.ranges, [&](range_ref r) {
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
    a.streams.for_each_usable(request.taker, look);
    return best;
  }

  /// Creates handles for `need` bytes, after the free range of `e` or at a new address. Returns false if no
  /// address is left.
  bool create(growth_lock const& growing, arena& a, may_release hot, growth_request const& request,
              looked_up<extension> const& found, std::size_t need) {
    extension const e = found.get(hot.held());
    std::size_t const grain = map_.granularity();
    std::size_t total = align_up(need, grain);
    if (total < request.least_growth && total <= request.may_create)
      total = max_of(total, align_down(min_of(request.least_growth, request.may_create), grain));
    range_ref region = 0;
    if (e.range != 0 && a.ranges[a.ranges[e.range].next].bytes >= total) region = a.ranges[e.range].next;
    if (e.range != 0 && region == 0)
      return create(growing, a, hot, request, looked_up<extension>(hot.held(), {}), request.bytes);
    if (e.range == 0) region = addresses_.find_home(a, request.where, total, grain);
    if (region == 0) return false;
    std::size_t const largest = max_of(align_down(request.largest_handle, grain), grain);
    std::uintptr_t const address = a.ranges[region].address;
    sequence<physical> made;
    made.reserve(total / largest + 1);
    for (std::size_t done = 0; done != total; done += made.back().bytes)
      made.push_back(physical{0, min_of(total - done, largest), address + done, backing::released});
    map_.make_room(made.size());
    a.ranges.make_room(4);

    range const base = a.ranges[e.range];
    if (e.range != 0) a.claim(e.range);
    addresses_.take(a, region, total);
    try {
      unlocked const released(hot);
      create_handles(source_, counters_, addresses_, growing, made, total);
    } catch (...) {
      addresses_.put(a, region);
      if (e.range != 0) a.make_free(e.range, base.domain, base.epoch);
      throw;
    }
    for (physical const& p : made) (void)map_.add(p.id, p.bytes, p.home);
    a.ranges[region].where = request.where;
    a.move_to_part(region, request.part);
    if (e.range != 0) {
      a.merge(e.range, region);
      region = e.range;
    }
    a.make_free(region, request.taker, e.range != 0 && base.domain == request.taker ? base.epoch : 0);
    return true;
  }

  /// Moves a wholly free handle of the large zone to the small zone.
  bool change_zone(arena& a, growth_request const& request) {
    piece const p = choose_whole_handle(a, map_, request.taker, align_up(request.bytes, map_.granularity()));
    if (p.bytes == 0) return false;
    a.ranges.make_room(4);
    range_ref const r = a.carve(a.starts.find(a.ranges, p.address), p.address, p.bytes);
    a.ranges[r].where = request.where;
    a.make_free(r, a.ranges[r].domain, a.ranges[r].epoch);
    return true;
  }

  Source& source_;
  growth_counters& counters_;
  page_map map_;
  address_space addresses_;
  view_table<Source> table_;
  page_views<Source> views_;
  growing_views<Source> growing_;
  page_sleep<Source> sleep_;
  page_compact<Source> compact_;
  physical_segments<Source> segments_;
  bool is_moving_ = false;
  void* reserved_ = nullptr;  ///< the source's reservation: one granule more than the map covers
};

}  // namespace TARN_NAMESPACE::detail
