// SPDX-License-Identifier: Apache-2.0
#pragma once
// Growth by pages: new ranges out of one virtual range. Physical handles come from three places: spare ones,
// wholly free ones that serve elsewhere in the range (they are moved: mapped here too, their old place goes
// stale), and the driver. Moving ends external fragmentation at handle granularity. Above it: ladder. Below
// it: arena, page_map, ordering.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <vector>

#include "tarn/core/resource.hpp"
#include "tarn/pool/arena.hpp"
#include "tarn/pool/growth.hpp"
#include "tarn/pool/ordering.hpp"
#include "tarn/pool/page_map.hpp"

namespace tarn::detail {

/// Largest physical handle to create for a pool whose live peak is `peak`, bytes. A handle can serve
/// elsewhere only when all of it is free, so what is lost grows with the handle's size beside the pool's;
/// driver calls fall with it. Creating costs about 10 us whatever the size; releasing grows to 338 us at 1
/// GiB, hence the bound of 64 MiB.
[[nodiscard]] constexpr std::size_t handle_limit(std::size_t peak) noexcept {
  std::size_t const share = std::bit_floor(peak / 1024 + 1);
  return std::clamp(share, std::size_t{2_MiB}, std::size_t{64_MiB});
}

/// Address space is reserved this many times the device's memory: moved handles leave their old addresses
/// behind, and an extent that may grow wants room after it. Address space costs the driver 5-77 us once,
/// whatever its size.
inline constexpr std::size_t reservation_factor = 16;

/// Room left after a new extent, so that it can be extended in place, bytes of address space.
inline constexpr std::size_t extension_room = 1_GiB;

template <page_source Source>
class page_growth {
 public:
  using driver_type = typename Source::driver_type;
  using lock = std::unique_lock<std::mutex>;

  page_growth(Source source, growth_counters& counters) : source_(std::move(source)), counters_(counters) {}

  [[nodiscard]] Source& source() noexcept { return source_; }
  [[nodiscard]] Source const& source() const noexcept { return source_; }
  [[nodiscard]] bool contains(std::uintptr_t address) const noexcept { return map_.contains(address); }
  [[nodiscard]] std::size_t host_bytes() const noexcept {
    return map_.host_bytes() + holes_.count() * sizeof(range);
  }
  [[nodiscard]] std::size_t handles() const noexcept { return map_.count(); }
  [[nodiscard]] std::size_t spare_bytes() const noexcept { return spare_bytes_; }

  /// Makes a free range of at least `request.bytes` in the taker's domain. False: the handles that may be
  /// used do not suffice and nothing may be created. The hot lock is held on entry and return, and let go
  /// around driver calls.
  /// @throws out_of_memory, cuda_error, std::bad_alloc  nothing is lost, though handles may have become spare
  bool grow(arena& a, lock& hot, ordering<driver_type>& order, growth_request const& request) {
    open(a, hot);
    // No place would ever be found: creating handles first would take the whole device for a moment.
    if (request.bytes > map_.bytes()) return false;
    std::size_t const grain = map_.granularity();
    auto const [base, has] = request.extend ? extendable(a, request) : extension{};
    plan p;
    p.taker = request.taker;
    p.where = request.where;
    // Where nothing moves, one unbroken extent is what coalesces best.
    p.spread = request.may_move;
    p.base = base;
    p.missing = align_up(request.bytes - has, grain);
    choose_handles(a, p, request);
    if (p.total() < p.missing) return false;
    if (!place(a, p)) {
      recycle_addresses(a, hot, order);
      // The lock was let go: what was chosen may be gone. The caller tries again.
      return false;
    }
    carve(a, p);
    hot.unlock();
    try {
      supply(p);
    } catch (...) {
      hot.lock();
      undo(a, p);
      throw;
    }
    hot.lock();
    publish(a, p);
    return true;
  }

  /// Gives handles back to the driver until at most `keep` bytes are reserved: spare ones first, then wholly
  /// free ones whose work is done. Returns the bytes given back. O(handles given back + free ranges).
  std::size_t shrink(arena& a, lock& hot, std::size_t keep) {
    std::size_t given = 0;
    for (handle_ref h = 1; h < map_.size() && counters_.reserved > keep && spare_bytes_ != 0; ++h) {
      if (map_[h].bytes == 0 || map_[h].active != nowhere) continue;
      given += map_[h].bytes;
      spare_bytes_ -= map_[h].bytes;
      destroy(a, hot, h);
    }
    while (counters_.reserved > keep) {
      plan p;
      a.ranges.make_room(4);
      domain_ref const size = a.streams.size();
      for (domain_ref d = 0; d < size && p.moved.empty(); ++d) {
        if (d == neutral || a.streams[d].freed <= a.streams[d].completed)
          find_free_handles(a, d, 0, p.moved, 1);
      }
      if (p.moved.empty()) break;
      handle_ref const h = p.moved.front().handle;
      carve_moved(a, p);
      range_ref const r = p.moved.front().node;
      stale_.make_room(1);
      stale_.insert(a.ranges[r].address, r);
      map_[h].active = nowhere;
      given += map_[h].bytes;
      destroy(a, hot, h);
    }
    return given;
  }

  /// Gives everything back. Nothing on the device uses it any more;
  void close() noexcept {
    if (!map_.is_open()) return;
    for (handle_ref h = 1; h < map_.size(); ++h) {
      if (map_[h].bytes == 0) continue;
      for (std::uint32_t const granule : map_[h].mapped) {
        source_.unmap(reinterpret_cast<void*>(map_.address_of(granule)), map_[h].bytes);
      }
      source_.destroy(map_[h].id, map_[h].bytes);
    }
    source_.unreserve(reinterpret_cast<void*>(map_.base()), map_.bytes());
  }

 private:
  struct moved_handle {
    handle_ref handle;
    range_ref node;
    std::uintptr_t address;
    std::size_t bytes;
    domain_ref domain = neutral;
    std::uint64_t epoch = 0;
  };
  struct plan {
    domain_ref taker = neutral;
    zone where = zone::small;
    bool spread = true;  ///< leave room after the extent before
    range_ref base = 0;  ///< the free range that is extended, 0 for a new place
    std::size_t missing = 0;
    std::vector<handle_ref> spare;
    std::vector<moved_handle> moved;
    std::vector<std::size_t> create;
    std::vector<handle_ref> created;
    std::size_t spare_bytes = 0;
    std::size_t moved_bytes = 0;
    std::size_t create_bytes = 0;
    range_ref region = 0;
    std::uintptr_t address = 0;                                 ///< of the region
    std::vector<std::pair<handle_ref, std::uintptr_t>> mapped;  ///< done so far

    [[nodiscard]] std::size_t total() const noexcept { return spare_bytes + moved_bytes + create_bytes; }
  };
  struct extension {
    range_ref range = 0;
    std::size_t bytes = 0;
  };

  /// Reserves the one virtual range on first use.
  void open(arena& a, lock& hot) {
    if (map_.is_open()) return;
    hot.unlock();
    std::size_t available = 0;
    std::size_t total = 0;
    (void)source_.driver().memory_info(available, total);
    std::size_t const grain = source_.granularity();
    std::size_t bytes = align_up(std::max(total, 64 * grain), grain) * reservation_factor;
    void* base = nullptr;
    for (;; bytes = align_up(bytes / 2, grain)) {
      try {
        base = source_.reserve(bytes);
        break;
      } catch (std::exception const&) {
        if (bytes <= total || bytes <= 64 * grain) {
          hot.lock();
          throw;
        }
      }
    }
    try {
      map_.open(reinterpret_cast<std::uintptr_t>(base), bytes, grain);
      hot.lock();
      a.ranges.make_room(1);
    } catch (...) {
      if (!hot.owns_lock()) hot.lock();
      source_.unreserve(base, bytes);
      throw;
    }
    range_ref const all = a.ranges.take();
    a.ranges[all].address = map_.base();
    a.ranges[all].bytes = bytes;
    a.ranges[all].state = range_state::hole;
    holes_.insert(a.ranges, all);
  }

  /// The free range, with a hole after it, that lacks least of the request.
  extension extendable(arena& a, growth_request const& request) const {
    extension best;
    for (domain_ref const d : {request.taker, neutral}) {
      a.streams[d].ranges(request.where).for_each(a.ranges, range_grain, [&](range_ref r) {
        range const& node = a.ranges[r];
        if (node.next == 0 || a.ranges[node.next].state != range_state::hole) return;
        std::uintptr_t const from = align_up(node.address, request.alignment);
        if (from >= node.end()) return;
        std::size_t const has = node.end() - from;
        if (has >= request.bytes || has <= best.bytes) return;
        if (a.ranges[node.next].bytes < align_up(request.bytes - has, map_.granularity()) + 64_MiB) return;
        best = {r, has};
      });
      if (d == neutral) break;
    }
    return best;
  }

  void choose_handles(arena& a, plan& p, growth_request const& request) {
    for (handle_ref h = 1; h < map_.size() && spare_bytes_ != 0 && p.total() < p.missing; ++h) {
      if (map_[h].bytes == 0 || map_[h].active != nowhere || map_[h].bytes > p.missing - p.total()) continue;
      p.spare.push_back(h);
      p.spare_bytes += map_[h].bytes;
    }
    std::size_t const wanted = p.missing - std::min(p.missing, p.total());
    if (request.may_move && wanted > request.may_create) {
      std::vector<moved_handle> candidates;
      find_free_handles(a, request.taker, p.base, candidates, ~std::size_t{0});
      if (request.taker != neutral) find_free_handles(a, neutral, p.base, candidates, ~std::size_t{0});
      select(candidates, wanted, p);
    }
    std::size_t left = p.missing - std::min(p.missing, p.total());
    if (left == 0) return;
    if (left > request.may_create && !request.may_exceed) return;
    std::size_t const most = request.where == zone::small
                                 ? map_.granularity()
                                 : std::max(map_.granularity(), request.largest_handle);
    while (left != 0) {
      std::size_t const bytes = std::min(most, std::bit_floor(left));
      p.create.push_back(bytes);
      p.create_bytes += bytes;
      left -= bytes;
    }
  }

  /// Lists handles that lie wholly in free ranges of a domain, `base` excepted.
  void find_free_handles(arena& a, domain_ref d, range_ref base, std::vector<moved_handle>& out,
                         std::size_t most) const {
    std::size_t const grain = map_.granularity();
    for (zone const where : {zone::large, zone::small}) {
      a.streams[d].ranges(where).for_each(a.ranges, grain, [&](range_ref r) {
        if (r == base || out.size() >= most) return;
        range const& node = a.ranges[r];
        for (std::uintptr_t at = align_up(node.address, grain);
             at + grain <= node.end() && out.size() < most;) {
          handle_ref const h = map_.at(at);
          physical const& handle = map_[h];
          if (map_.address_of(handle.active) == at && at + handle.bytes <= node.end()) {
            out.push_back({h, r, at, handle.bytes, node.domain, node.epoch});
            at += handle.bytes;
          } else {
            at += grain;
          }
        }
      });
    }
  }

  /// Few, large handles first; the last one may be larger than what is left.
  void select(std::vector<moved_handle>& candidates, std::size_t wanted, plan& p) const {
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](moved_handle const& x, moved_handle const& y) { return x.bytes > y.bytes; });
    moved_handle const* closing = nullptr;
    for (moved_handle const& c : candidates) {
      if (p.moved_bytes >= wanted) break;
      if (c.bytes <= wanted - p.moved_bytes) {
        p.moved.push_back(c);
        p.moved_bytes += c.bytes;
      } else {
        closing = &c;  // the smallest so far that would do alone
      }
    }
    if (p.moved_bytes < wanted && closing != nullptr) {
      p.moved.push_back(*closing);
      p.moved_bytes += closing->bytes;
    }
  }

  /// Finds address space; the nodes that are needed are there afterwards. False: the range is full.
  bool place(arena& a, plan& p) {
    a.ranges.make_room(2 * p.moved.size() + 8);
    stale_.make_room(p.moved.size());
    map_.make_room(p.create.size());
    for (moved_handle const& m : p.moved) map_.make_room_for_mapping(m.handle);
    for (handle_ref const h : p.spare) map_.make_room_for_mapping(h);
    p.mapped.reserve(p.spare.size() + p.moved.size() + p.create.size());
    p.created.reserve(p.create.size());
    std::size_t const grain = map_.granularity();
    std::size_t const total = align_up(p.total(), grain);
    if (p.base != 0) {
      p.region = a.ranges[p.base].next;
    } else {
      p.region = holes_.find(a.ranges, total + 2 * extension_room, grain);
      if (p.region == 0) p.region = holes_.find(a.ranges, total, grain);
    }
    return p.region != 0 && a.ranges[p.region].bytes >= total;
  }

  /// Takes what was chosen out of circulation.
  void carve(arena& a, plan& p) {
    if (p.base != 0) a.claim(p.base);
    std::size_t const total = p.total();
    holes_.erase(a.ranges, p.region);
    bool const roomy = p.spread && p.base == 0 && a.ranges[p.region].bytes >= total + 2 * extension_room &&
                       a.ranges[p.region].previous != 0;
    if (roomy) {
      range_ref const body = a.split(p.region, extension_room);
      holes_.insert(a.ranges, p.region);
      p.region = body;
    }
    if (a.ranges[p.region].bytes > total) {
      range_ref const rest = a.split(p.region, total);
      holes_.insert(a.ranges, rest);
    }
    a.ranges[p.region].state = range_state::live;
    p.address = a.ranges[p.region].address;
    carve_moved(a, p);
  }

  void carve_moved(arena& a, plan& p) {
    // From the back of each node, so that its front keeps the node.
    std::sort(p.moved.begin(), p.moved.end(), [](moved_handle const& x, moved_handle const& y) {
      return x.node != y.node ? x.node < y.node : x.address > y.address;
    });
    range_ref claimed = 0;
    for (std::size_t i = 0; i < p.moved.size(); ++i) {
      moved_handle& m = p.moved[i];
      range_ref const node = m.node;
      if (claimed != node) a.claim(node);
      claimed = node;
      std::size_t const before = m.address - a.ranges[node].address;
      if (a.ranges[node].bytes > before + m.bytes) {
        range_ref const rest = a.split(node, before + m.bytes);
        a.make_free(rest, m.domain, m.epoch);
      }
      if (before != 0) m.node = a.split(node, before);
      a.ranges[m.node].state = range_state::stale;
      bool const last_of_node = i + 1 == p.moved.size() || p.moved[i + 1].node != node;
      if (before != 0 && last_of_node) a.make_free(node, m.domain, m.epoch);
    }
  }

  /// The driver calls: creates and maps. No lock but the growth lock is held.
  void supply(plan& p) {
    std::uintptr_t at = p.address;
    for (std::size_t const bytes : p.create) {
      page_handle const id = source_.create(bytes);
      ++counters_.creates;
      handle_ref const h = map_.add(id, bytes);
      spare_bytes_ += bytes;
      p.created.push_back(h);
      counters_.hold(bytes);
      map_.make_room_for_mapping(h);
    }
    auto const map_here = [&](handle_ref h) {
      source_.map(reinterpret_cast<void*>(at), map_[h].bytes, map_[h].id);
      ++counters_.maps;
      p.mapped.emplace_back(h, at);
      at += map_[h].bytes;
    };
    for (moved_handle const& m : p.moved) map_here(m.handle);
    for (handle_ref const h : p.spare) map_here(h);
    for (handle_ref const h : p.created) map_here(h);
  }

  void publish(arena& a, plan& p) {
    for (moved_handle const& m : p.moved) {
      stale_.insert(a.ranges[m.node].address, m.node);
      ++counters_.remaps;
    }
    spare_bytes_ -= p.spare_bytes + p.create_bytes;
    for (auto const& [h, address] : p.mapped) map_.note_mapped(h, address);
    a.ranges[p.region].where = p.where;
    bool used_before = !p.moved.empty();
    if (p.base != 0) {
      used_before = used_before || a.ranges[p.base].epoch != 0;
      a.merge(p.base, p.region);
      p.region = p.base;
    }
    a.make_free(p.region, p.taker, used_before ? a.streams[p.taker].mark() : 0);
  }

  void undo(arena& a, plan& p) noexcept {
    for (auto const& [h, address] : p.mapped) source_.unmap(reinterpret_cast<void*>(address), map_[h].bytes);
    for (moved_handle const& m : p.moved) a.make_free(m.node, m.domain, m.epoch);
    if (p.base != 0) a.make_free(p.base, a.ranges[p.base].domain, a.ranges[p.base].epoch);
    make_hole(a, p.region);
  }

  void make_hole(arena& a, range_ref r) noexcept {
    a.ranges[r].state = range_state::hole;
    a.ranges[r].domain = neutral;
    a.ranges[r].epoch = 0;
    a.ranges[r].where = zone::small;
    if (range_ref const n = a.ranges[r].next; n != 0 && a.ranges[n].state == range_state::hole) {
      holes_.erase(a.ranges, n);
      a.merge(r, n);
    }
    if (range_ref const b = a.ranges[r].previous; b != 0 && a.ranges[b].state == range_state::hole) {
      holes_.erase(a.ranges, b);
      a.merge(b, r);
      r = b;
    }
    holes_.insert(a.ranges, r);
  }

  /// Unmaps a handle wherever it is and gives it back. It is spare, and no work uses any of its places.
  void destroy(arena& a, lock& hot, handle_ref h) {
    hot.unlock();
    for (std::uint32_t const granule : map_[h].mapped) {
      source_.unmap(reinterpret_cast<void*>(map_.address_of(granule)), map_[h].bytes);
      ++counters_.unmaps;
    }
    source_.destroy(map_[h].id, map_[h].bytes);
    ++counters_.destroys;
    counters_.release(map_[h].bytes);
    hot.lock();
    while (!map_[h].mapped.empty()) {
      std::uintptr_t const address = map_.address_of(map_[h].mapped.back());
      map_.note_unmapped(h, address);
      if (range_ref const r = stale_.erase(address); r != 0) make_hole(a, r);
    }
    map_.remove(h);
  }

  /// Unmaps every stale place, waiting for the device if need be: the reserved range is used up.
  void recycle_addresses(arena& a, lock& hot, ordering<driver_type>& order) {
    for (domain_ref d = 1; d < a.streams.size(); ++d) (void)order.finish(a, hot, d);
    for (handle_ref h = 1; h < map_.size(); ++h) {
      if (map_[h].bytes == 0) continue;
      std::vector<std::uint32_t> const places = map_[h].mapped;
      for (std::uint32_t const granule : places) {
        if (granule == map_[h].active) continue;
        std::uintptr_t const address = map_.address_of(granule);
        hot.unlock();
        source_.unmap(reinterpret_cast<void*>(address), map_[h].bytes);
        ++counters_.unmaps;
        hot.lock();
        map_.note_unmapped(h, address);
        if (range_ref const r = stale_.erase(address); r != 0) make_hole(a, r);
      }
    }
  }

  Source source_;
  growth_counters& counters_;
  page_map map_;
  range_index holes_;
  block_table stale_;  ///< start of each stale node
  std::size_t spare_bytes_ = 0;
};

}  // namespace tarn::detail
