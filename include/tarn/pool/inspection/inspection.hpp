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
#include "tarn/pool/inspection/pool_facts.hpp"

namespace TARN_NAMESPACE::detail {

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
