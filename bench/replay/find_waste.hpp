// SPDX-License-Identifier: Apache-2.0
#pragma once
// Replays a trace and describes the pool's memory at the peaks of reserved and of live bytes.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "replay/inspected_peer.hpp"
#include "replay/progress.hpp"
#include "replay/run.hpp"
#include "replay/trace.hpp"
#include "replay/waste.hpp"
#include "tarn/core/shared_resource.hpp"
#include "tarn/pool/inspection/inspection.hpp"

namespace tarn::bench {

namespace detail {

using tarn::detail::held_memory;

/// Adds one free range: the handles that lie in it, and the stretches between them. `held` is sorted by
/// address.
inline void add_free_range(waste_moment& m, tarn::detail::range const& free,
                           std::vector<held_memory> const& held) {
  auto const before = [](std::uintptr_t at, held_memory const& h) { return at < h.address; };
  std::uintptr_t at = free.address;
  for (auto h = std::upper_bound(held.begin(), held.end(), free.address, before) - 1;
       h != held.end() && h->address < free.end(); ++h) {
    if (h->address < free.address || h->address + h->bytes > free.end()) continue;
    if (h->address != at) m.add_free(memory_part::free_parts, h->address - at);
    m.add_free(memory_part::free_handles, h->bytes);
    at = h->address + h->bytes;
  }
  if (at != free.end()) m.add_free(memory_part::free_parts, free.end() - at);
}

/// Adds what the arena has: free ranges, and the free blocks of runs.
inline void add_arena(waste_moment& m, tarn::detail::pool_facts& facts) {
  std::sort(facts.held.begin(), facts.held.end(),
            [](auto const& a, auto const& b) { return a.address < b.address; });
  m.handles += facts.held.size();
  std::size_t in_segments = 0, in_ranges = 0;
  for (held_memory const& h : facts.held) in_segments += h.is_handle ? 0 : h.bytes;
  for (tarn::detail::range const& node : facts.ranges) {
    in_ranges += node.bytes;
    if (node.state == tarn::detail::range_state::free) add_free_range(m, node, facts.held);
  }
  if (in_segments > in_ranges) m.of(memory_part::segment_ends).add(in_segments - in_ranges);
  for (tarn::detail::run const& r : facts.runs) {
    std::size_t const step = tarn::detail::class_bytes(r.size_class);
    part_amount& blocks = m.of(memory_part::run_blocks);
    blocks.bytes += r.free_count * step;
    blocks.count += r.free_count;
    std::size_t const rest =
        tarn::detail::run_bytes(r.size_class) - tarn::detail::run_blocks(r.size_class) * step;
    if (rest != 0) m.of(memory_part::run_ends).add(rest);
  }
}

/// Adds the blocks that threads cache.
template <class Front>
void add_thread_caches(tarn::detail::growth_lock const& growing, waste_moment& m, Front& front) {
  tarn::detail::stopped_threads const stopped(growing, front);
  front.for_each([&](tarn::detail::stream_cache const& mine) {
    part_amount& caches = m.of(memory_part::thread_caches);
    caches.bytes += mine.held_bytes();
    caches.count += mine.large_block != nullptr ? 1 : 0;
    for (tarn::detail::magazine const& of_class : mine.magazines) caches.count += of_class.count;
  });
}

/// Adds the blocks that a stream freed into the run of another.
template <class Heap>
void add_foreign_blocks(waste_moment& m, Heap& heap) {
  tarn::detail::hot_lock const held = heap.lock_hot();
  tarn::detail::arena& space = heap.space(held);
  for (tarn::detail::domain_ref d = 0; d < space.streams.size(); ++d) {
    for (unsigned k = 0; k < tarn::detail::run_class_count; ++k) {
      part_amount& waiting = m.of(memory_part::stream_order);
      waiting.bytes += space.streams[d].foreign[k].size() * tarn::detail::class_bytes(k);
      waiting.count += space.streams[d].foreign[k].size();
    }
  }
}

/// Adds all that the pool holds beside live blocks.
template <inspected_peer P>
void add_pool(waste_moment& m, P const& pool) {
  auto const look = [&](tarn::detail::growth_lock const& growing, auto& heap, auto& front, auto& waiting,
                        auto&) {
    tarn::detail::pool_facts facts;
    facts.copy(growing, heap, front, waiting);
    add_arena(m, facts);
    add_thread_caches(growing, m, front);
    for (tarn::snapshot_block const& b : facts.deferred) m.of(memory_part::recorded_uses).add(b.bytes);
    add_foreign_blocks(m, heap);
  };
  auto memory = pool.memory();
  nearest(memory, tarn::pool_call::inspect{look});
  m.reserved = pool.state().reserved;
}

/// Counts the live blocks of a replay, as their user knows them.
class live_blocks {
 public:
  enum class change : std::uint8_t { added, removed };

  void count(std::uint64_t asked, std::uint64_t block_bytes, change what) noexcept {
    std::uint64_t const sign = what == change::added ? 1 : ~std::uint64_t{0};
    requested_.bytes += sign * asked;
    requested_.count += sign;
    part_amount& rounding = asked <= tarn::detail::class_limit ? class_rounding_ : grain_rounding_;
    rounding.bytes += sign * (block_bytes - asked);
    rounding.count += block_bytes != asked ? sign : 0;
  }
  void describe(waste_moment& m) const noexcept {
    m.of(memory_part::requested) = requested_;
    m.of(memory_part::class_rounding) = class_rounding_;
    m.of(memory_part::grain_rounding) = grain_rounding_;
  }

 private:
  part_amount requested_, class_rounding_, grain_rounding_;
};

/// Returns the first event after which the trace's peak is live: its number, from 1.
[[nodiscard]] inline std::uint64_t peak_live_event(trace const& t) noexcept {
  std::uint64_t live = 0;
  for (std::size_t i = 0; i < t.events.size(); ++i) {
    event const& e = t.events[i];
    live += e.what == operation::allocate ? e.bytes : 0 - e.bytes;
    if (live == t.peak_live) return i + 1;
  }
  return 0;
}

}  // namespace detail

/// Replays `t` `passes` times on one new pool. The pool is described whenever it reserves more than ever
/// before, so the last description is that of the peak, also where a second replay would take another course
/// (on a GPU). A refused request is counted, and the replay continues without it.
/// @throws waste_error  the parts do not add up
template <inspected_peer P>
[[nodiscard]] waste find_waste(trace const& t, setup made_for, unsigned passes, progress& line) {
  made_for.streams = std::max<std::size_t>(1, t.stream_numbers.size());
  waste found;
  found.trace = t.name;
  found.pool = P::name;
  found.device = to_text(P::where);
  found.events = t.events.size();
  found.passes = passes;
  found.peak_live = t.peak_live;
  std::uint64_t const peak_live_event = detail::peak_live_event(t);
  std::vector<event> const left_over = detail::missing_frees(t);
  std::vector<void*> blocks(t.slots, nullptr);
  P pool(made_for);
  for (unsigned pass = 1; pass <= passes; ++pass) {
    line.begin(found.trace + ", " + found.pool + ", waste, pass " + std::to_string(pass) + " of " +
               std::to_string(passes));
    detail::live_blocks live;
    waste_moment at_peak_live;
    for (std::size_t i = 0; i < t.events.size(); ++i) {
      if (i % detail::chunk_events == 0) line.show(i, t.events.size());
      event const& e = t.events[i];
      bool const allocates = e.what == operation::allocate;
      if (allocates) blocks[e.slot] = detail::request(pool, e, found.out_of_memory);
      if (blocks[e.slot] != nullptr) {
        live.count(e.bytes, pool.block_bytes(e.bytes),
                   allocates ? detail::live_blocks::change::added : detail::live_blocks::change::removed);
      }
      if (!allocates) pool.deallocate(e.stream, blocks[e.slot], e.bytes);
      bool const is_peak_live = i + 1 == peak_live_event;
      bool const is_peak_reserved = allocates && pool.state().reserved > found.at_peak_reserved.reserved;
      if (!is_peak_live && !is_peak_reserved) continue;
      waste_moment m;
      m.pass = pass;
      m.event = i + 1;
      m.asked = e.bytes;
      live.describe(m);
      detail::add_pool(m, pool);
      require_sum(found, m);
      if (is_peak_live) at_peak_live = m;
      if (is_peak_reserved) found.at_peak_reserved = m;
    }
    if (found.at_peak_reserved.pass == pass) {
      bool const is_same = at_peak_live.event == found.at_peak_reserved.event;
      found.at_peak_live = is_same ? std::nullopt : std::optional(at_peak_live);
    }
    std::uint64_t ignored = 0;
    detail::play(pool, left_over, blocks, ignored);
  }
  found.peak_reserved = pool.state().reserved_peak;
  line.clear();
  return found;
}

}  // namespace tarn::bench
