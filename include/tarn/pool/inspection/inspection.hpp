// SPDX-License-Identifier: Apache-2.0
#pragma once
// A snapshot of the memory that a pool holds, as segments that blocks tile. Assembled from copied facts,
// without a lock.
//
//  home  | block | free | piece of a view | run: slots | cached by a thread |  two segments beside the piece
//  view  | block, at the address that its user has |                           one segment

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <type_traits>
#include <utility>
#include <vector>

#include "tarn/core/pool_call.hpp"
#include "tarn/pool/arena/arena.hpp"
#include "tarn/pool/arena/hot_lock.hpp"
#include "tarn/pool/cache/magazine.hpp"
#include "tarn/pool/inspection/snapshot_segment.hpp"
#include "tarn/pool/order/recorded_streams.hpp"
#include "tarn/pool/pages/growth.hpp"
#include "tarn/pool/pages/growth_lock.hpp"
#include "tarn/pool/tool/tool_regions.hpp"

namespace TARN_NAMESPACE::detail {

// A copy of a pool's records at one moment. Every thread is kept out of its magazines during the copy, and
// the hot lock is held for the arena's part.

/// Keeps every thread out of its cache. The hot lock is taken after this, never before.
template <class Front>
class stopped_threads {
 public:
  stopped_threads(growth_lock const&, Front& front) noexcept : front_(front) { front_.keep_threads_out(); }
  stopped_threads& operator=(stopped_threads&&) = delete;
  ~stopped_threads() { front_.let_threads_in(); }

 private:
  Front& front_;
};

/// The copied facts.
struct pool_facts {
  struct used_view {
    std::uintptr_t address = 0;  ///< of the block, as its user has it
    std::size_t first_piece = 0;
    std::size_t pieces = 0;
    domain_ref domain = neutral;
    std::uint16_t generation = 0;
  };

  std::vector<range> ranges;  ///< live and free ones
  std::vector<run> runs;
  std::vector<stream_id> domains;          ///< by domain_ref
  std::vector<std::uint16_t> generations;  ///< by domain_ref, the last bits
  std::vector<used_view> views;
  std::vector<snapshot_piece> pieces;
  std::vector<held_memory> held;
  std::vector<snapshot_block>
      cached;  ///< live to the arena: in magazines, freed into another domain's run, or in quarantine
  std::vector<snapshot_block> deferred;
  std::vector<growth_note> notes;
  std::size_t reserved = 0;
  std::vector<std::uint64_t> owners;  ///< by part_ref: the graph_memory that a part belongs to, 0 if none

  /// Copies them from a pool. @throws std::bad_alloc
  template <class Heap, class Front, class Deferred>
  void copy(growth_lock const& growing, Heap& heap, Front& front, Deferred const& blocks) {
    heap.growth(growing).visit(
        [&](auto const& memory) { memory.for_each_held([&](held_memory const& h) { held.push_back(h); }); });
    for (std::size_t i = 0; i < heap.counters(growing).notes.size(); ++i)
      notes.push_back(heap.counters(growing).notes[i]);
    reserved = heap.counters(growing).reserved;
    stopped_threads const stopped(growing, front);
    // Before the hot lock: no two locks are held at once.
    blocks.for_each([&](freed_block const& b) {
      deferred.push_back({address_of(b.p), rounded_bytes(b.bytes, b.alignment), b.bytes, block_use::deferred,
                          public_id(b.stream.id())});
    });
    if constexpr (Heap::has_tool) {
      heap.tool().for_each_quarantined([&](freed_block const& b) {
        cached.push_back({address_of(b.p), 0, 0, block_use::cached, public_id(b.stream.id())});
      });
    }
    front.for_each([&](stream_cache const& mine) { copy_magazines(mine); });
    // Make room outside the hot lock, repeatedly if other threads use it up meanwhile.
    for (;;) {
      std::size_t const most_ranges = count(heap, [](arena const& space) { return space.ranges.size(); });
      std::size_t const most_runs = count(heap, [](arena const& space) { return space.runs.size(); });
      std::size_t const most_domains = count(heap, [](arena const& space) { return space.streams.size(); });
      std::size_t const most_parts = count(heap, [](arena const& space) { return space.streams.parts(); });
      std::size_t const most_foreign = count(heap, [](arena const& space) { return foreign_blocks(space); });
      ranges.reserve(most_ranges);
      runs.reserve(most_runs);
      domains.reserve(most_domains);
      generations.reserve(most_domains);
      owners.reserve(most_parts);
      cached.reserve(cached.size() + most_foreign);
      hot_lock const held_lock = heap.lock_hot();
      arena& space = heap.space(held_lock);
      if (space.ranges.size() > most_ranges || space.runs.size() > most_runs ||
          space.streams.size() > most_domains || space.streams.parts() > most_parts ||
          foreign_blocks(space) > most_foreign)
        continue;
      copy_arena(space);
      return;
    }
  }

  /// The stream that a live block was taken for; 0 if it has been forgotten.
  template <class Taken>
  [[nodiscard]] stream_id stream_of(Taken const& taken) const noexcept {
    return taken.generation == generations[taken.domain] ? domains[taken.domain] : 0;
  }

  /// The graph_memory that the memory at a home address belongs to, 0 if none. O(log(ranges)), once they are
  /// sorted.
  [[nodiscard]] std::uint64_t owner_at(std::uintptr_t home) const noexcept {
    auto const after = std::upper_bound(ranges.begin(), ranges.end(), home,
                                        [](std::uintptr_t at, range const& r) { return at < r.address; });
    if (after != ranges.begin() && (after - 1)->end() > home) return owners[(after - 1)->part];
    return after != ranges.end() ? owners[after->part] : 0;  // a segment may begin before its first range
  }

  /// A stream's identity as users know it: 0 if unowned.
  [[nodiscard]] static stream_id public_id(stream_id id) noexcept { return id == neutral_id ? 0 : id; }

 private:
  template <class Heap, class Count>
  static std::size_t count(Heap& heap, Count const& counted) {
    hot_lock const held_lock = heap.lock_hot();
    return static_cast<std::size_t>(counted(heap.space(held_lock)));
  }
  static std::uintptr_t address_of(void const* p) noexcept { return reinterpret_cast<std::uintptr_t>(p); }
  static std::size_t foreign_blocks(arena const& space) noexcept {
    std::size_t sum = 0;
    for (domain_ref d = 0; d < space.streams.size(); ++d) sum += space.streams[d].foreign_count;
    return sum;
  }

  void copy_magazines(stream_cache const& mine) {
    stream_id const id = public_id(mine.id);
    if (mine.large_block != nullptr)
      cached.push_back({address_of(mine.large_block), mine.large_bytes, 0, block_use::cached, id});
    for (std::uint32_t i = 0; i < mine.of_capture.count; ++i) {
      auto const& block = mine.of_capture.blocks[i];
      cached.push_back({address_of(block.p), block.bytes, 0, block_use::cached, id});
    }
    for (magazine const& m : mine.magazines) {
      for (std::uint32_t i = 0; i < m.count; ++i)
        cached.push_back({address_of(m.blocks[i]), 0, 0, block_use::cached, id});
    }
  }

  /// Under the hot lock; there is room for everything but the pieces of views, which are few.
  void copy_arena(arena& space) {
    for (range_ref r = 1; r < space.ranges.size(); ++r) {
      range const& node = space.ranges[r];
      if (node.state == range_state::live || node.state == range_state::free) ranges.push_back(node);
    }
    for (run_ref r = 1; r < space.runs.size(); ++r) {
      if (space.runs[r].address != 0) runs.push_back(space.runs[r]);
    }
    for (part_ref p = common; p < space.streams.parts(); ++p) owners.push_back(space.streams.part(p).owner);
    for (domain_ref d = 0; d < space.streams.size(); ++d) {
      domains.push_back(public_id(space.streams[d].id));
      generations.push_back(static_cast<std::uint16_t>(space.streams[d].generation));
      for (auto const& list : space.streams[d].foreign) {
        for (void* const p : list) cached.push_back({address_of(p), 0, 0, block_use::cached, domains.back()});
      }
    }
    if (space.tenancies.size() <= 1) return;  // no view was ever made
    space.blocks.for_each([&](std::uintptr_t address, range_ref r) {
      if (space.ranges[r].view_or_split == 0) return;
      used_view v{address, pieces.size(), 0, space.ranges[r].domain, space.ranges[r].generation};
      for (; r != 0; r = space.ranges[r].chain, ++v.pieces)
        pieces.push_back({space.ranges[r].address, space.ranges[r].bytes});
      views.push_back(v);
    });
  }
};

/// Assembles copied facts into segments, sorted by address.
class pool_tiling {
 public:
  explicit pool_tiling(pool_facts& facts) : facts_(facts) {
    auto const by_address = [](auto const& a, auto const& b) { return a.address < b.address; };
    std::sort(facts.ranges.begin(), facts.ranges.end(), by_address);
    std::sort(facts.runs.begin(), facts.runs.end(), by_address);
    std::sort(facts.held.begin(), facts.held.end(), by_address);
    std::sort(facts.cached.begin(), facts.cached.end(), by_address);
    std::sort(facts.deferred.begin(), facts.deferred.end(), by_address);
    for (snapshot_piece const& p : facts.pieces) pieces_.push_back(p.address);
    std::sort(pieces_.begin(), pieces_.end());
  }

  [[nodiscard]] std::vector<snapshot_segment> segments() {
    std::vector<snapshot_segment> all;
    std::size_t r = 0;
    for (std::size_t h = 0; h < facts_.held.size();) {
      held_memory const& first = facts_.held[h];
      std::uintptr_t end = first.address + first.bytes;
      for (++h; h < facts_.held.size() && joins(first, facts_.held[h], end); ++h) end += facts_.held[h].bytes;
      add_home(all, r, first, end);
    }
    for (auto const& v : facts_.views) all.push_back(seen_through(v));
    std::sort(all.begin(), all.end(), [](auto const& a, auto const& b) { return a.address < b.address; });
    return all;
  }

 private:
  [[nodiscard]] bool joins(held_memory const& first, held_memory const& next,
                           std::uintptr_t end) const noexcept {
    return first.is_handle && next.is_handle && next.address == end && next.where == first.where &&
           facts_.owner_at(next.address) == facts_.owner_at(first.address);
  }

  /// Adds the ranges from `r` on that lie before `end`, split at pieces of views.
  void add_home(std::vector<snapshot_segment>& all, std::size_t& r, held_memory const& memory,
                std::uintptr_t end) {
    snapshot_segment s;
    std::uintptr_t at = memory.address;
    auto const begin = [&] {
      s = snapshot_segment{};
      s.address = at;
      s.kind = memory.is_handle ? segment_kind::pages : segment_kind::upstream;
      s.is_small = memory.where == zone::smaller;
      s.graph_memory = facts_.owner_at(memory.address);
    };
    auto const finish = [&] {
      s.bytes = at - s.address;
      if (s.bytes == 0) return;
      s.handles = handles_in(s.address, s.bytes);
      all.push_back(std::move(s));
    };
    begin();
    for (; r < facts_.ranges.size() && facts_.ranges[r].address < end; ++r) {
      range const& node = facts_.ranges[r];
      fill(s, at, node.address);
      if (std::binary_search(pieces_.begin(), pieces_.end(), node.address)) {
        finish();
        at = node.end();
        begin();
        continue;
      }
      add_range(s, node);
      at = node.end();
    }
    fill(s, at, end);
    finish();
  }

  /// Adds what no range covers: the unaligned ends of a segment.
  static void fill(snapshot_segment& s, std::uintptr_t& at, std::uintptr_t end) {
    if (at >= end) return;
    s.blocks.push_back({at, end - at});
    at = end;
  }

  void add_range(snapshot_segment& s, range const& node) {
    if (node.state == range_state::free) {
      s.blocks.push_back({node.address, node.bytes, 0, block_use::cached, facts_.domains[node.domain]});
      return;
    }
    auto const found = std::lower_bound(facts_.runs.begin(), facts_.runs.end(), node.address,
                                        [](run const& a, std::uintptr_t at) { return a.address < at; });
    if (found != facts_.runs.end() && found->address == node.address) return add_run(s, *found, node.bytes);
    s.blocks.push_back(taken(node.address, node.bytes, facts_.stream_of(node)));
  }

  /// Adds a run's blocks; adjacent free ones are merged.
  void add_run(snapshot_segment& s, run const& r, std::size_t bytes) {
    std::size_t const step = class_bytes(r.size_class);
    stream_id const stream = facts_.stream_of(r);
    bool open = false;
    auto const add_free = [&](std::uintptr_t address, std::size_t length) {
      if (open) {
        s.blocks.back().bytes += length;
      } else if (length != 0) {
        s.blocks.push_back({address, length, 0, block_use::cached, stream});
        open = true;
      }
    };
    std::uint32_t const blocks = run_blocks(r.size_class);
    for (std::uint32_t n = 0; n < blocks; ++n) {
      std::uintptr_t const address = r.address + n * step;
      if (((r.free_bits[n / 64] >> (n % 64)) & 1) != 0) {
        add_free(address, step);
      } else {
        s.blocks.push_back(taken(address, step, stream));
        open = false;
      }
    }
    add_free(r.address + blocks * step, bytes - blocks * step);
  }

  /// The actual use of a block that is live to the arena.
  [[nodiscard]] snapshot_block taken(std::uintptr_t address, std::size_t bytes, stream_id stream) const {
    for (auto const* list : {&facts_.cached, &facts_.deferred}) {
      auto const found =
          std::lower_bound(list->begin(), list->end(), address,
                           [](snapshot_block const& b, std::uintptr_t at) { return b.address < at; });
      if (found != list->end() && found->address == address)
        return {.address = address,
                .bytes = bytes,
                .requested = found->requested,
                .use = found->use,
                .stream = found->graph_memory != 0 ? stream : found->stream,
                .graph_memory = found->graph_memory};
    }
    return {address, bytes, 0, block_use::live, stream};
  }

  [[nodiscard]] snapshot_segment seen_through(pool_facts::used_view const& v) const {
    snapshot_segment s;
    s.address = v.address;
    s.kind = segment_kind::view;
    s.handles = 0;
    for (std::size_t i = v.first_piece; i < v.first_piece + v.pieces; ++i) {
      snapshot_piece const& p = facts_.pieces[i];
      s.pieces.push_back(p);
      s.bytes += p.bytes;
      s.handles += handles_in(p.address, p.bytes);
    }
    s.graph_memory = facts_.owner_at(facts_.pieces[v.first_piece].address);
    s.blocks.push_back(taken(v.address, s.bytes, facts_.stream_of(v)));
    return s;
  }

  /// Number of handles or segments that lie in a range of home addresses, wholly or in part.
  [[nodiscard]] std::uint32_t handles_in(std::uintptr_t address, std::size_t bytes) const {
    auto const before = [](std::uintptr_t at, held_memory const& h) { return at < h.address; };
    auto const first = std::upper_bound(facts_.held.begin(), facts_.held.end(), address, before) - 1;
    auto const last = std::upper_bound(facts_.held.begin(), facts_.held.end(), address + bytes - 1, before);
    return static_cast<std::uint32_t>(last - first);
  }

  pool_facts& facts_;
  std::vector<std::uintptr_t> pieces_;
};

/// The memory that a pool holds.
struct pool_contents {
  std::vector<snapshot_segment> segments;  ///< by address; their bytes sum to `reserved`
  std::vector<held_memory> held;           ///< handles and segments, by address
  std::vector<growth_note> notes;          ///< if they are recorded, the oldest first
  std::size_t reserved = 0;
};

/// Inspects the pools of a stack. Threads that call it meanwhile wait while 64 bytes per range and 80 per run
/// are copied, some milliseconds at 100,000 blocks. A block that another thread is just moving from the arena
/// to its magazine appears live.
/// @throws std::bad_alloc
template <class Memory>
[[nodiscard]] pool_contents contents_of(Memory& memory) {
  std::vector<pool_facts> of_each;  // a layer that routes inspects several pools, one after another
  auto const look = [&](growth_lock const& growing, auto& heap, auto& front, auto& deferred, auto& graphs) {
    pool_facts& facts = of_each.emplace_back();
    facts.copy(growing, heap, front, deferred);
    graphs.for_each_deferred(growing, [&](void const* p, std::size_t bytes, std::uint64_t number) {
      facts.deferred.push_back({.address = reinterpret_cast<std::uintptr_t>(p),
                                .requested = bytes,
                                .use = block_use::deferred,
                                .graph_memory = number});
    });
  };
  nearest(memory, pool_call::inspect{look});
  pool_contents contents;
  auto const by_address = [](auto const& a, auto const& b) { return a.address < b.address; };
  auto const by_time = [](auto const& a, auto const& b) { return a.time < b.time; };
  auto const append = [](auto& to, auto& from, auto const& before) {
    auto merged = std::remove_reference_t<decltype(to)>();
    merged.reserve(to.size() + from.size());
    std::merge(std::move_iterator(to.begin()), std::move_iterator(to.end()), std::move_iterator(from.begin()),
               std::move_iterator(from.end()), std::back_inserter(merged), before);
    to = std::move(merged);
  };
  for (pool_facts& facts : of_each) {
    std::vector<snapshot_segment> segments = pool_tiling(facts).segments();
    append(contents.segments, segments, by_address);
    append(contents.held, facts.held, by_address);
    append(contents.notes, facts.notes, by_time);
    contents.reserved += facts.reserved;
  }
  return contents;
}

}  // namespace TARN_NAMESPACE::detail
