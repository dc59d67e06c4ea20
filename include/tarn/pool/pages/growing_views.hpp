// SPDX-License-Identifier: Apache-2.0
#pragma once
// Views that grow in place, for growing_buffer: blocks of whole handles follow each other at addresses that
// are reserved once. Such a view is in no search of the pool's other views, and is not dropped as idle; when
// it ends, it becomes one of them.
//
//   addresses   | block 1 | block 2 | block 3 |  reserved, not mapped ...                       |
//   slots       | h4 | h9 | h2      | h7 | h1 |
//
// A block that is freed leaves its handles to all requests. They stay mapped here, too, until the view grows
// again over other handles or ends.

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
#include "tarn/pool/pages/page_views.hpp"
#include "tarn/pool/pages/view_table.hpp"

namespace TARN_NAMESPACE::detail {

template <page_source Source>
class growing_views {
 public:
  using driver_type = typename Source::driver_type;

  /// @param device  for errors
  growing_views(view_table<Source>& table, page_map& map, address_space& space, page_views<Source>& others,
                int device) noexcept
      : table_(table), map_(map), addresses_(space), others_(others), device_(device) {}

  /// Reserves addresses for a view that grows up to `bytes`, whole granules. It serves no other request until
  /// end(). Returns its index, 0 if no address is left. O(views) @throws std::bad_alloc, nothing has
  /// changed
  [[nodiscard]] std::uint32_t reserve(arena& a, std::size_t bytes) {
    a.ranges.make_room(1);
    range_ref const region = addresses_.find_view(a, bytes, map_.granularity());
    if (region == 0) return 0;
    std::uint32_t const i = table_.find_unused(a);
    others_.expect_one();
    addresses_.take(a, region, bytes);
    a.ranges[region].state = range_state::view;
    table_[i].region = region;
    table_[i].address = a.ranges[region].address;
    table_[i].grows = true;
    ++growing_;
    return i;
  }

  /// The growing view that an address lies in; 0 if there is none. O(views)
  [[nodiscard]] std::uint32_t find(arena const& a, std::uintptr_t address) const noexcept {
    for (std::uint32_t i = 1; growing_ != 0 && i < table_.size(); ++i) {
      TARN_VISIT();
      view const& v = table_[i];
      if (v.grows && address >= v.address && address - v.address < a.ranges[v.region].bytes) return i;
    }
    return 0;
  }

  [[nodiscard]] std::uintptr_t address_of(std::uint32_t i) const noexcept { return table_[i].address; }

  /// Whether blocks begin at or after an offset of a view: freed ones stay there as long as they are deferred
  /// for streams or graphs. O(slots)
  [[nodiscard]] bool has_blocks_from(arena const& a, std::uint32_t i, std::size_t offset) const noexcept {
    std::size_t at = 0;
    for (view_slot const& slot : table_[i].view_slots) {
      TARN_VISIT();
      if (at >= offset && a.blocks.find(table_[i].address + at) != 0) return true;
      at += slot.bytes;
    }
    return false;
  }

  /// The bytes to ask extend() for, at least those of the request, so many that free handles have them
  /// together; 0 if they do not suffice. O(views + free ranges + handles) @throws std::bad_alloc
  [[nodiscard]] std::size_t suggest(arena const& a, growth_request const& request, std::uint32_t i,
                                    std::size_t offset) const {
    view const& v = table_[i];
    std::size_t const kept = free_after(
        a, v, offset, request.taker, [&](std::size_t before, std::size_t) { return before < request.bytes; });
    if (kept >= request.bytes) return kept;
    std::size_t rest = request.bytes - kept;
    sequence<piece> chosen;
    free_pieces free = find_pieces(a, map_, request);
    free.mark(v);
    piece const above = free.whole.take(rest, 0, chosen, [&](piece const& p) { return free.is_shown(p); });
    if (rest == 0) return request.bytes;
    return above.bytes != 0 ? request.bytes - rest + above.bytes : 0;
  }

  /// Adds a block of `request.bytes`, whole granules, at an offset where the live blocks of a growing view
  /// end. It takes handles that are free for the taker: those that the view still shows there, then others,
  /// which are mapped after them. Handles that it shows there and cannot take are unmapped first; the host
  /// waits for the work on them if the device has not completed it.
  /// @param lack  receives how many bytes are missing, if the free handles do not suffice; null is returned
  /// @throws cuda_error  an open capture prevents it, or a graph may use what was freed at these addresses
  /// @throws misuse      freed pages at these addresses are pinned; the block would not lie in the view
  /// @throws out_of_memory, std::bad_alloc. Nothing has changed
  [[nodiscard]] void* extend(arena& a, may_release hot, ordering<driver_type>& order,
                             growth_request const& request, std::uint32_t i, std::size_t offset,
                             std::size_t& lack) {
    view& v = table_[i];
    if (offset > v.bytes || request.bytes > a.ranges[v.region].bytes - offset)
      refuse_pointer(reinterpret_cast<void*>(v.address + offset), "growing_buffer");
    std::size_t kept = 0;
    for (;;) {  // again after each cut: others may have taken what was free while the lock was released
      if (has_blocks_from(a, i, offset)) throw_blocked();
      kept = free_after(a, v, offset, request.taker, [&](std::size_t before, std::size_t handle) {
        return before + handle <= request.bytes;
      });
      if (kept == request.bytes || offset + kept == v.bytes) break;
      require_finished_work(a, hot, order, i);
      cut(v, hot, offset + kept);
    }
    looked_up<choice> const chosen(hot.held(), choose_after(a, v, offset, kept, request, lack));
    if (lack != 0) return nullptr;
    sequence<piece> const& pieces = chosen.get(hot.held()).pieces;
    v.view_slots.reserve(v.view_slots.size() + pieces.size());
    sequence<range_ref> carved;
    table_.carve(a, hot.held(), chosen, carved);
    try {
      map_after(v, hot, offset, pieces);
      a.blocks.make_room(1);  // other threads may have used it up meanwhile
    } catch (...) {           // what is mapped stays in the view, as after a block is freed
      table_.free_again(a, carved);
      throw;
    }
    a.join_pieces(carved.begin(), carved.size(), request.taker, v.address + offset, i);
    return reinterpret_cast<void*>(v.address + offset);
  }

  /// Ends the growth of a view. Its addresses go back if no work uses them; otherwise it is a view as any
  /// other.
  /// @param keeps  whether its handles stay mapped in any case
  void end(arena& a, may_release hot, std::uint32_t i, bool keeps) noexcept {
    if (!keeps && a.tenancies[i].blocks == 0 && table_[i].pins == 0 && table_.is_done(a, a.tenancies[i]))
      cut(table_[i], hot, 0);
    --growing_;
    table_[i].grows = false;
    if (table_[i].bytes == 0) {
      addresses_.put(a, table_[i].region);
      table_[i] = view{};
      a.tenancies[i] = tenancy{};
      return others_.expect_one_less();
    }
    others_.adopt(i);
  }

 private:
  /// How many bytes after an offset of a view are whole handles that are free for the taker, as long as
  /// takes(bytes before, bytes of the handle) is true. O(slots, and ranges in their handles)
  template <class Takes>
  [[nodiscard]] std::size_t free_after(arena const& a, view const& v, std::size_t offset, domain_ref taker,
                                       Takes const& takes) const noexcept {
    std::size_t kept = 0;
    std::size_t at = 0;
    for (view_slot const& slot : v.view_slots) {
      TARN_VISIT();
      if (at >= offset) {
        if (!takes(kept, slot.bytes) || slot.handle == 0 || !is_free_for(a, slot.handle, taker)) break;
        kept += slot.bytes;
      }
      at += slot.bytes;
    }
    return kept;
  }

  /// Whether a whole handle is free for a domain.
  [[nodiscard]] bool is_free_for(arena const& a, handle_ref h, domain_ref taker) const noexcept {
    std::uintptr_t const end = map_[h].home + map_[h].bytes;
    for (range_ref r = a.starts.find(a.ranges, map_[h].home); r != 0 && a.ranges[r].address < end;
         r = a.ranges[r].next) {
      range const& node = a.ranges[r];
      if (node.state != range_state::free ||
          (node.domain != taker && node.domain != a.streams[taker].neutral_domain))
        return false;
    }
    return true;
  }

  /// The pieces of a block at an offset of a growing view: `kept` bytes that it shows there, then other free
  /// handles. @throws std::bad_alloc
  [[nodiscard]] choice choose_after(arena const& a, view const& v, std::size_t offset, std::size_t kept,
                                    growth_request const& request, std::size_t& lack) const {
    choice all = pieces_of(map_, v, offset, kept);
    std::size_t rest = request.bytes - kept;
    if (rest != 0) {
      free_pieces free = find_pieces(a, map_, request);
      free.mark(v);
      (void)free.whole.take(rest, 0, all.pieces, [&](piece const& p) { return free.is_shown(p); });
    }
    lack = rest;
    return all;
  }

  /// Waits on the host for the work on the former blocks of a view, of which no more is enqueued.
  /// @throws cuda_error  the driver does not report its end; misuse  it is pinned
  void require_finished_work(arena& a, may_release hot, ordering<driver_type>& order, std::uint32_t i) {
    if (table_[i].pins != 0)
      throw misuse(
          misuse_kind::no_resource, reinterpret_cast<void*>(table_[i].address),
          "growing_buffer cannot grow over pages that it has given back and that are pinned; end the "
          "page_pin or the registration first");
    if (table_.is_done(a, a.tenancies[i])) return;
    bool done = order.finish(a, hot, a.tenancies[i].domain);
    if (!done || a.tenancies[i].several) {
      done = true;
      a.streams.for_each([&](domain_ref d) { done = order.finish(a, hot, d) && done; });
    }
    if (!done) throw_blocked();
    a.tenancies[i] = tenancy{.blocks = a.tenancies[i].blocks};
  }
  [[noreturn]] void throw_blocked() const {
    throw cuda_error(refused_for_capture("growing_buffer: a graph or a capture may use what it gave back"),
                     device_);
  }

  /// Maps those of a block's handles that a view does not show, after the others. @throws out_of_memory,
  /// cuda_error: those that are mapped are in the view
  void map_after(view& v, may_release hot, std::size_t offset, sequence<piece> const& pieces) {
    unlocked const released(hot);
    std::size_t const shown = v.bytes;
    for (piece const& p : pieces) {
      if (offset >= shown) {
        table_.map_again(v.address + offset, p.handle);
        v.view_slots.push_back(view_slot{p.handle, p.bytes});
        v.bytes += p.bytes;
      }
      offset += p.bytes;
    }
  }

  /// Unmaps what a view shows from an offset on, where a handle begins. No work uses it.
  void cut(view& v, may_release hot, std::size_t offset) noexcept {
    unlocked const released(hot);
    while (v.bytes > offset) {
      view_slot const slot = v.view_slots.back();
      v.bytes -= slot.bytes;
      if (table_.is_mapped(slot)) table_.unmap(v.address + v.bytes, slot.bytes);
      v.view_slots.pop_back();
    }
  }

  view_table<Source>& table_;
  page_map& map_;
  address_space& addresses_;
  page_views<Source>& others_;
  int device_;
  std::size_t growing_ = 0;
};

}  // namespace TARN_NAMESPACE::detail
