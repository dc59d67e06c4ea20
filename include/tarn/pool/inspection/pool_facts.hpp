// SPDX-License-Identifier: Apache-2.0
#pragma once
// A copy of a pool's records at one moment. Every thread is kept out of its magazines during the copy, and
// the hot lock is held for the arena's part.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tarn/pool/arena/arena.hpp"
#include "tarn/pool/arena/hot_lock.hpp"
#include "tarn/pool/cache/magazine.hpp"
#include "tarn/pool/inspection/snapshot_segment.hpp"
#include "tarn/pool/order/recorded_streams.hpp"
#include "tarn/pool/pages/growth.hpp"
#include "tarn/pool/pages/growth_lock.hpp"
#include "tarn/pool/tool/tool_regions.hpp"

namespace TARN_NAMESPACE::detail {

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
      heap.tool().for_each_kept([&](freed_block const& b) {
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

}  // namespace TARN_NAMESPACE::detail
