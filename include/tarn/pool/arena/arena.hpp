// SPDX-License-Identifier: Apache-2.0
#pragma once
// The arena: every range the pool holds, its owner, and how ranges are split and coalesced. Pure bookkeeping:
// it never calls the driver, so it is safe under the hot lock, and it does not depend on a source, so one
// test covers all of it.
//
// Over 400 lines: a split or a free changes the range, its neighbours, the indexes and the counters in one
// step.

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tarn/core/address_map.hpp"
#include "tarn/core/config.hpp"
#include "tarn/core/counter.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/pool/arena/address_index.hpp"
#include "tarn/pool/arena/live_window.hpp"
#include "tarn/pool/arena/page_map.hpp"
#include "tarn/pool/arena/range.hpp"
#include "tarn/pool/arena/run.hpp"
#include "tarn/pool/arena/size_class.hpp"
#include "tarn/pool/arena/stream_table.hpp"

namespace TARN_NAMESPACE::detail {

/// Result of returning a block; unless it is `done`, nothing has changed.
enum class release_result : std::uint8_t {
  done,
  foreign,      ///< no block of this pool starts at the address
  wrong_size,   ///< the block has another size
  twice,        ///< the block is already free
  needs_finish  ///< no host memory to record the stream: finish the stream, then release as neutral
};

/// The live blocks of a view and the last stream that used it: the view may be unmapped when that use is
/// complete.
struct tenancy {
  std::uint32_t blocks = 0;  ///< live blocks
  domain_ref domain = neutral;
  std::uint64_t epoch = 0;
  bool several = false;  ///< more than one domain since all work was last known to be complete

  void leave(domain_ref giver, std::uint64_t mark) noexcept {
    --blocks;
    several = several || (epoch != 0 && domain != giver);
    domain = giver;
    epoch = mark;
  }
};

/// Free ranges that cannot be given back to the driver on their own, since they lie in partly used handles or
/// segments. Each array: all, small zone, large zone.
struct split_statistics {
  counter blocks[3];
  counter bytes[3];
};

class arena {
 public:
  // Deallocations of all threads read these without the lock. What calls write under it lies on other cache
  // lines: a capture took 1.3 times as long while 15 threads freed blocks.
  /// The handles behind the ranges, for pools over pages; null if segments are created and given back whole.
  alignas(cache_line_bytes) page_map* pages = nullptr;
  std::atomic<std::size_t> reserved_in_parts{0};  ///< of all parts but the common one

  alignas(cache_line_bytes) range_table ranges;
  address_map<std::uint32_t> blocks;  ///< start of each live block that is not in a run
  address_index starts;               ///< the range that covers a home address, for pools over pages
  run_table runs;
  stream_table streams;
  sequence<tenancy> tenancies;  ///< one per view
  /// Aligns blocks of whole granules to handle boundaries, so that freeing one frees whole handles, which may
  /// be remapped.
  bool keeps_handles_whole = false;
  /// Free neighbours in two handles become one range. Otherwise each block lies within one handle.
  bool joins_handles = true;
  /// How many free ranges of similar size a request searches; the ladder lifts it before it throws
  /// out_of_memory.
  std::size_t search_limit = range_index::search_limit;
  /// Searches every free range, which is O(ranges of the request's size).
  struct search_of_all {
    explicit search_of_all(arena& a) noexcept : in(a) { in.search_limit = ~std::size_t{0}; }
    search_of_all& operator=(search_of_all&&) = delete;
    ~search_of_all() { in.search_limit = range_index::search_limit; }

    arena& in;
  };
  split_statistics splits;  ///< as of the last count_splits()
  // Of the common part; streams.part() has the numbers of the others.
  std::size_t live_bytes = 0;     ///< in live ranges, runs included
  std::size_t live_peak = 0;      ///< since the start, or since the pool last gave memory back by itself
  live_window window;             ///< the live peak of late
  std::size_t live_in_parts = 0;  ///< of all other parts together

  /// Makes room for the metadata of one allocation. @throws std::bad_alloc, nothing has changed
  void make_room() {
    ranges.make_room(4);
    blocks.make_room(1);
    runs.make_room();
  }
  /// A promise of a make_room() ends with the hold of the pool's lock, of which `hold` is the number.
  void end_room_with(std::uint64_t const& hold) noexcept {
    ranges.end_room_with(hold);
    blocks.end_room_with(hold);
    runs.end_room_with(hold);
  }

  /// Takes a block from the stream's own domain, then from the neutral one. Null if neither has it. Requires
  /// make_room().
  [[nodiscard]] void* take(domain_ref taker, zone where, std::size_t bytes, std::size_t alignment) noexcept {
    range_ref const r = take_range(taker, where, bytes, alignment);
    if (r == 0) return nullptr;
    blocks.insert(ranges[r].address, r);
    return reinterpret_cast<void*>(ranges[r].address);
  }

  /// Returns a block to a stream's domain. O(1), never allocates.
  release_result release(domain_ref giver, void* p, std::size_t bytes) noexcept {
    auto const address = reinterpret_cast<std::uintptr_t>(p);
    range_ref r = blocks.find(address);
    if (r == 0) return release_result::foreign;
    std::size_t total = 0;
    for (range_ref piece = r; piece != 0; piece = ranges[piece].chain) total += ranges[piece].bytes;
    if (total != bytes) return release_result::wrong_size;
    (void)blocks.erase(address);
    count_freed(bytes, ranges[r].part);
    std::uint64_t const mark = streams[giver].mark();
    if (ranges[r].view_or_split != 0) {
      tenancies[ranges[r].view_or_split].leave(giver, mark);
      --streams.part(ranges[r].part).live_in_views;
    }
    while (r != 0) {
      range_ref const piece = r;
      r = ranges[piece].chain;
      ranges[piece].chain = 0;
      ranges[piece].view_or_split = 0;
      make_free(piece, giver, mark);
    }
    return release_result::done;
  }

  /// Takes up to `wanted` blocks of a class: foreign blocks first, then from runs, then from a new run.
  /// Requires make_room().
  [[nodiscard]] std::uint32_t take_small(domain_ref taker, unsigned size_class, void** out,
                                         std::uint32_t wanted) noexcept {
    std::uint32_t taken = 0;
    stream_domain& domain = streams[taker];
    auto& returned = domain.foreign[size_class];
    for (; taken < wanted && !returned.empty(); returned.pop_back(), --domain.foreign_count)
      out[taken++] = returned.back();
    taken += take_from_runs(taker, size_class, out + taken, wanted - taken);
    if (taken == 0 && !domain.is_neutral())
      taken = take_from_runs(domain.neutral_domain, size_class, out, wanted);
    if (taken == 0) {
      range_ref const body = take_range(taker, zone::smaller, run_bytes(size_class), frame_bytes);
      if (body == 0) return 0;
      run_ref const r = runs.add(body, ranges[body].address, size_class, taker);
      runs[r].generation = domain.generation;
      domain.runs[size_class].push(runs, r);
      taken = take_from_runs(taker, size_class, out, wanted);
    }
    return taken;
  }

  /// Joins live pieces into one block, mapped at `address` in a view. Requires make_room().
  void join_pieces(range_ref const* pieces, std::size_t count, domain_ref taker, std::uintptr_t address,
                   std::uint32_t view) noexcept {
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < count; ++i) {
      range& piece = ranges[pieces[i]];
      piece.chain = i + 1 < count ? pieces[i + 1] : 0;
      piece.domain = taker;
      piece.generation = static_cast<std::uint16_t>(streams[taker].generation);
      bytes += piece.bytes;
    }
    count_live(bytes, streams[taker].part);
    if (pages != nullptr) pages->set_part_of_view(address, streams[taker].part);
    ranges[pieces[0]].view_or_split = view;
    ++tenancies[view].blocks;
    ++streams.part_of(taker).live_in_views;
    blocks.insert(address, pieces[0]);
  }

  /// Takes [address, address + bytes) out of the free range `r` that contains it. Requires room for two
  /// nodes.
  range_ref carve(range_ref r, std::uintptr_t address, std::size_t bytes) noexcept {
    take_out(r);
    if (std::size_t const skipped = address - ranges[r].address; skipped != 0) {
      range_ref const body = split(r, skipped);
      put_in(r);
      r = body;
    }
    if (ranges[r].bytes > bytes) put_in(split(r, bytes));
    ranges[r].state = range_state::live;
    return r;
  }

  /// Lengthens a live block in place by `more` bytes of the free range behind it. Returns false, and changes
  /// nothing, unless that range is the taker's own or neutral, and the block is a range of the common part.
  /// Requires make_room(). O(1)
  [[nodiscard]] bool extend(domain_ref taker, void const* p, std::size_t bytes, std::size_t more) noexcept {
    range_ref const r = blocks.find(reinterpret_cast<std::uintptr_t>(p));
    if (r == 0 || ranges[r].bytes != bytes || ranges[r].chain != 0 || ranges[r].view_or_split != 0 ||
        ranges[r].part != common)
      return false;
    range_ref const behind = ranges[r].next;
    if (behind == 0) return false;
    range const& free = ranges[behind];
    bool const is_usable =
        free.state == range_state::free && (free.domain == taker || free.domain == neutral);
    if (!is_usable || free.bytes < more || free.where != ranges[r].where) return false;
    if (!joins_handles && begins_handle(free.address)) return false;
    merge(r, carve(behind, free.address, more));
    count_live(more, common);
    return true;
  }

  /// Whether a block that is not free starts at an address. Those that threads cache are not free here.
  [[nodiscard]] bool is_block(void const* p) const noexcept {
    if (blocks.find(reinterpret_cast<std::uintptr_t>(p)) != 0) return true;
    run_ref const r = runs.find(p);
    std::size_t const n = r != 0 ? runs[r].find(p) : run::none;
    return n != run::none && !runs[r].is_free(n);
  }

  /// Returns a block of a run to a stream's domain; the range of an empty run is freed.
  release_result release_small(domain_ref giver, unsigned size_class, void* p) noexcept {
    run_ref const r = runs.find(p);
    if (r == 0) return release_result::foreign;
    if (runs[r].size_class != size_class) return release_result::wrong_size;
    let_go_of_forgotten(runs[r]);
    if (!streams[giver].is_neutral() && runs[r].domain != giver) {
      stream_domain& domain = streams[giver];
      try {
        domain.foreign[size_class].push_back(p);
      } catch (...) {
        return release_result::needs_finish;
      }
      ++domain.foreign_count;
      domain.foreign_epoch = domain.mark();
      return release_result::done;
    }
    return put_into_run(r, p);
  }

  /// Returns the foreign blocks of a domain to their runs, once the device has completed their uses.
  void send_foreign_home(domain_ref d) noexcept {
    stream_domain& domain = streams[d];
    for (auto& list : domain.foreign) {
      for (void* p : list) {
        (void)put_into_run(runs.find(p), p);
      }
      list.clear();
    }
    domain.foreign_count = 0;
  }

  /// Makes the partly free runs of a domain neutral. The device has completed the uses of all that was freed
  /// in them.
  void neutralise_runs(domain_ref d) noexcept { move_runs(d, streams[d].neutral_domain); }
  /// Moves the partly free runs of a domain to another one.
  void move_runs(domain_ref from, domain_ref to) noexcept {
    for (run_list& list : streams[from].runs) {
      while (run_ref const r = list.head) {
        list.erase(runs, r);
        runs[r].domain = to;
        runs[r].generation = streams[to].generation;
        streams[to].runs[runs[r].size_class].push(runs, r);
      }
    }
  }

  /// Makes the ranges of a domain neutral that are marked `epoch` or older.
  void neutralise_ranges(domain_ref d, std::uint64_t epoch) noexcept {
    hand_over(d, streams[d].neutral_domain, epoch);
  }
  /// Moves the ranges of `from` that are marked `epoch` or older to the domain `to` of the same part.
  void hand_over(domain_ref from, domain_ref to, std::uint64_t epoch) noexcept {
    std::uint64_t const mark = streams[to].is_neutral() ? 0 : streams[to].mark();
    claim_each(from, [&](range_ref r) {
      bool const moves = ranges[r].epoch <= epoch;
      make_free(r, moves ? to : from, moves ? mark : ranges[r].epoch);
    });
  }

  /// Joins the free ranges of a stream with neutral ones beside them; other neutral ranges stay neutral, for
  /// every stream. Returns whether there were any. O(ranges of the stream or neutral ones, whichever are
  /// fewer)
  bool join_neutral(domain_ref d) noexcept {
    bool any = false;
    domain_ref const neutral_one = streams[d].neutral_domain;
    domain_ref const walked = streams[neutral_one].range_count() < streams[d].range_count() ? neutral_one : d;
    domain_ref const other = walked == d ? neutral_one : d;
    claim_each(walked, [&](range_ref r) {
      bool joined = walked == d;
      for (range_ref const beside : {ranges[r].previous, ranges[r].next}) {
        if (beside == 0 || ranges[beside].state != range_state::free || ranges[beside].domain != other ||
            ranges[beside].where != ranges[r].where)
          continue;
        joined = any = true;
        if (other == d) continue;
        take_out(beside);
        ranges[beside].domain = d;
        ranges[beside].epoch = 0;  // complete: a mark of the neutral domain means nothing in another
        put_in(beside);
      }
      make_free(r, joined ? d : neutral_one, walked == d ? ranges[r].epoch : 0);
    });
    return any;
  }

  // ---- parts

  /// The part of a live block; the common one if there is no such block. O(1)
  [[nodiscard]] part_ref part_of(void const* p) const noexcept {
    if (!streams.has_parts()) return common;
    if (range_ref const r = blocks.find(reinterpret_cast<std::uintptr_t>(p)); r != 0) return ranges[r].part;
    run_ref const r = runs.find(p);
    return r != 0 ? ranges[runs[r].body].part : common;
  }
  /// Makes whole handles, or a segment, that fill a range which is in no index, part of `to`.
  void move_to_part(range_ref r, part_ref to) noexcept { move_to_part(r, to, ranges[r].bytes); }
  /// @param reserved  bytes held from the source: of a segment, its ends may lie beside the range
  void move_to_part(range_ref r, part_ref to, std::size_t reserved) noexcept {
    range& node = ranges[r];
    if (node.part == to) return;
    count_reserved(node.part, -static_cast<std::ptrdiff_t>(reserved));
    count_reserved(to, static_cast<std::ptrdiff_t>(reserved));
    node.part = to;
    if (pages != nullptr) pages->set_part(node.address, node.bytes, to);
  }
  /// Whether the address of a range is kept although it is free: of what captures received.
  [[nodiscard]] bool keeps_address(range const& node) const noexcept {
    return streams.part(node.part).keeps_addresses;
  }
  [[nodiscard]] std::size_t live_of(part_ref p) const noexcept {
    return p == common ? live_bytes : streams.part(p).live_bytes;
  }
  [[nodiscard]] std::size_t peak_of(part_ref p) const noexcept {
    return p == common ? live_peak : streams.part(p).live_peak;
  }
  /// Bytes of handles or segments. @param all  of all parts
  [[nodiscard]] std::size_t reserved_of(part_ref p, std::size_t all) const noexcept {
    if (p != common) return streams.part(p).reserved;
    std::size_t const others = reserved_in_parts.load(std::memory_order_relaxed);
    return all > others ? all - others : 0;
  }
  [[nodiscard]] std::size_t all_live() const noexcept { return live_bytes + live_in_parts; }
  /// Free bytes that serve captures alone. O(parts)
  [[nodiscard]] std::size_t free_for_captures() const noexcept {
    std::size_t sum = 0;
    for (part_ref p = 1; p < streams.parts(); ++p) {
      heap_part const& part = streams.part(p);
      if (part.keeps_addresses && part.reserved > part.live_bytes) sum += part.reserved - part.live_bytes;
    }
    return sum;
  }

  /// Makes the memory of a part common. Its owner has ended, and nothing on the device uses what is free in
  /// it. O(ranges of the part + handles), over segments O(ranges); if a block of it is live in a view,
  /// O(blocks), too.
  void end_part(growth_lock const& growing, part_ref p) noexcept {
    domain_ref const d = streams.part(p).neutral_domain;
    streams.for_each_in(p, [&](domain_ref each) { send_foreign_home(each); });
    streams.for_each_in(p, [&](domain_ref each) {
      neutralise_ranges(each, ~std::uint64_t{0});
      neutralise_runs(each);
      stream_domain& domain = streams[each];
      domain.freed = domain.completed = domain.epoch++;  // the next stream in this place continues above
      streams.forget(growing, each);
    });
    move_runs(d, neutral);
    claim_each(d, [&](range_ref r) { make_free(r, neutral, 0); });
    heap_part const& gone = streams.part(p);
    if (gone.live_in_views != 0) {
      blocks.for_each([&](std::uintptr_t address, range_ref r) {
        if (ranges[r].part == p && ranges[r].view_or_split != 0) pages->set_part_of_view(address, common);
      });
    }
    streams.part(common).live_in_views += gone.live_in_views;
    leave_part(p);
    count_reserved(p, -static_cast<std::ptrdiff_t>(gone.reserved));
    live_in_parts -= gone.live_bytes;
    live_bytes += gone.live_bytes;
    live_peak = max_of(live_peak, live_bytes);
    streams.end_part(growing, p);
  }

  /// Makes a node that is in no index free in a domain, and coalesces it with free neighbours of the same
  /// domain and zone.
  range_ref make_free(range_ref r, domain_ref domain, std::uint64_t epoch) noexcept {
    ranges[r].state = range_state::free;
    ranges[r].domain = domain;
    ranges[r].epoch = epoch;
    ranges[r].part = streams[domain].part;
    if (range_ref const n = ranges[r].next; n != 0 && joins(r, n)) absorb(r, n);
    if (range_ref const p = ranges[r].previous; p != 0 && joins(p, r)) {
      take_out(p);
      merge(p, r);
      r = p;
    }
    put_in(r);
    return r;
  }

  /// Splits a node at `bytes`; returns the second part, which copies the first and is in no index. Requires
  /// make_room().
  range_ref split(range_ref r, std::size_t bytes) noexcept {
    range_ref const tail = ranges.take();
    range& first = ranges[r];
    range& second = ranges[tail];
    second = first;
    second.address = first.address + bytes;
    second.bytes = first.bytes - bytes;
    second.previous = r;
    second.next = first.next;
    second.bin_next = second.bin_previous = 0;
    if (second.next != 0) ranges[second.next].previous = tail;
    first.next = tail;
    first.bytes = bytes;
    starts.note(ranges, tail);
    return tail;
  }

  /// Merges two neighbours that are in no index; the second's node is released.
  void merge(range_ref first, range_ref second) noexcept {
    starts.drop(ranges, second);
    ranges[first].bytes += ranges[second].bytes;
    ranges[first].epoch = max_of(ranges[first].epoch, ranges[second].epoch);
    ranges[first].next = ranges[second].next;
    if (ranges[first].next != 0) ranges[ranges[first].next].previous = first;
    ranges.put_back(second);
  }

  /// Notes that the memory after a range was given back: the range may be extended there, if it is free.
  void note_hole_after(range_ref r) noexcept {
    if (r == 0 || ranges[r].state != range_state::free) return;
    take_out(r);
    put_in(r);
  }

  /// Takes a free node out of its domain's index.
  void claim(range_ref r) noexcept {
    take_out(r);
    ranges[r].state = range_state::live;
  }

  /// Counts the change of the split ranges since the last call as one step; changes that cancelled out in
  /// between are not counted.
  void count_splits() noexcept {
    auto const count = [](counter(&sums)[3], auto const& now) {
      counter& all = sums[0];
      move(sums[1], now[static_cast<std::size_t>(zone::smaller)]);
      move(sums[2], now[static_cast<std::size_t>(zone::larger)]);
      all.current = sums[1].current + sums[2].current;
      all.peak = max_of(all.peak, all.current);
      all.allocated = sums[1].allocated + sums[2].allocated;
      all.freed = sums[1].freed + sums[2].freed;
    };
    count(splits.blocks, split_blocks_);
    count(splits.bytes, split_bytes_);
  }

  /// Whether the device has completed the uses of a free range.
  [[nodiscard]] bool is_complete(range const& node) const noexcept {
    return streams[node.domain].is_neutral() || node.epoch <= streams[node.domain].completed;
  }

  [[nodiscard]] std::size_t free_bytes() const noexcept {
    std::size_t sum = 0;
    for (domain_ref d = 0; d < streams.size(); ++d) sum += streams[d].free_bytes();
    return sum;
  }
  /// Not of what graphs have the addresses of.
  [[nodiscard]] std::size_t largest_free() const noexcept {
    std::size_t most = 0;
    for (domain_ref d = 0; d < streams.size(); ++d) {
      if (streams.part_of(d).keeps_addresses) continue;
      for (auto const& index : streams[d].index) most = max_of(most, index.largest(ranges));
    }
    return most;
  }
  [[nodiscard]] std::size_t host_bytes() const noexcept {
    return ranges.host_bytes() + blocks.host_bytes() + runs.host_bytes() + streams.host_bytes();
  }

 private:
  /// Claims all free ranges of a domain, one zone after the other, and then calls f(range) for each, which
  /// makes it free again.
  template <class F>
  void claim_each(domain_ref d, F const& f) noexcept {
    for (range_index& index : streams[d].index) {
      range_ref chain = 0;
      while (range_ref const r = index.any()) {
        claim(r);
        ranges[r].bin_next = chain;
        chain = r;
      }
      while (chain != 0) {
        range_ref const r = chain;
        chain = ranges[r].bin_next;
        f(r);
      }
    }
  }

  void count_live(std::size_t bytes, part_ref p) noexcept {
    if (p != common) [[unlikely]] {
      heap_part& part = streams.part(p);
      part.live_bytes += bytes;
      part.live_peak = max_of(part.live_peak, part.live_bytes);
      live_in_parts += bytes;
      return window.note(bytes, live_bytes);
    }
    live_bytes += bytes;
    live_peak = max_of(live_peak, live_bytes);
    window.note(bytes, live_bytes);
  }
  void count_freed(std::size_t bytes, part_ref p) noexcept {
    if (p != common) [[unlikely]] {
      streams.part(p).live_bytes -= bytes;
      live_in_parts -= bytes;
      return;
    }
    live_bytes -= bytes;
  }
  void count_reserved(part_ref p, std::ptrdiff_t bytes) noexcept {
    if (p == common) return;
    streams.part(p).reserved += static_cast<std::size_t>(bytes);
    reserved_in_parts.fetch_add(static_cast<std::size_t>(bytes), std::memory_order_relaxed);
  }
  static void move(counter& s, std::int64_t to) noexcept {
    if (to > s.current) s.increase(to - s.current);
    if (to < s.current) s.decrease(s.current - to);
  }

  /// Makes the handles, or segments, of a part common, with what is live in them.
  void leave_part(part_ref p) noexcept {
    if (pages == nullptr) {
      for (range_ref r = 1; r < ranges.size(); ++r) {
        if (ranges[r].part == p) ranges[r].part = common;
      }
      return;
    }
    for (handle_ref h = 1; h < pages->size(); ++h) {
      physical const& handle = (*pages)[h];
      if (handle.bytes == 0 || handle.part != p) continue;
      for (range_ref r = starts.find(ranges, handle.home); r != 0 && ranges[r].address < pages->end_of(h);
           r = ranges[r].next)
        ranges[r].part = common;
      pages->set_part(handle.home, handle.bytes, common);
    }
  }
  /// Puts a free range into its domain's index.
  void put_in(range_ref r) noexcept {
    range& node = ranges[r];
    streams[node.domain].ranges(node.where).insert(ranges, r);
    node.view_or_split = static_cast<std::uint32_t>(split_bytes(node) / range_grain);
    if (node.view_or_split == 0) return;
    ++split_blocks_[static_cast<std::size_t>(node.where)];
    split_bytes_[static_cast<std::size_t>(node.where)] += node.view_or_split * std::int64_t{range_grain};
  }
  /// Takes a free range out of its domain's index.
  void take_out(range_ref r) noexcept {
    range& node = ranges[r];
    streams[node.domain].ranges(node.where).erase(ranges, r);
    if (node.view_or_split == 0) return;
    --split_blocks_[static_cast<std::size_t>(node.where)];
    split_bytes_[static_cast<std::size_t>(node.where)] -= node.view_or_split * std::int64_t{range_grain};
    node.view_or_split = 0;
  }
  /// Bytes of a free range in handles, or in a segment, that it does not fill.
  [[nodiscard]] std::size_t split_bytes(range const& node) const noexcept {
    if (pages == nullptr) return node.previous == 0 && node.next == 0 ? 0 : node.bytes;
    handle_ref const first = pages->at(node.address);
    handle_ref const last = pages->at(node.end() - 1);
    bool const at_start = (*pages)[first].home == node.address;
    bool const at_end = pages->end_of(last) == node.end();
    if (first == last) return at_start && at_end ? 0 : node.bytes;
    return (at_start ? 0 : pages->end_of(first) - node.address) +
           (at_end ? 0 : node.end() - (*pages)[last].home);
  }

  range_ref take_range(domain_ref taker, zone where, std::size_t bytes, std::size_t alignment) noexcept {
    range_ref r = 0;
    if (keeps_handles_whole && where == zone::larger && bytes % usual_granule == 0 &&
        alignment < usual_granule) {
      r = streams[taker].ranges(where).find(ranges, bytes, usual_granule, search_limit);
      if (r != 0) alignment = usual_granule;
    }
    if (r == 0) r = streams[taker].ranges(where).find(ranges, bytes, alignment, search_limit);
    if (r == 0 && !streams[taker].is_neutral())
      r = streams[streams[taker].neutral_domain].ranges(where).find(ranges, bytes, alignment, search_limit);
    if (r == 0) return 0;
    r = carve(r, align_up(ranges[r].address, alignment), bytes);
    ranges[r].domain = taker;
    ranges[r].generation = static_cast<std::uint16_t>(streams[taker].generation);
    count_live(bytes, streams[taker].part);
    return r;
  }

  [[nodiscard]] std::uint32_t take_from_runs(domain_ref d, unsigned size_class, void** out,
                                             std::uint32_t wanted) noexcept {
    run_list& list = streams[d].runs[size_class];
    std::uint32_t taken = 0;
    while (taken < wanted && list.head != 0) {
      run_ref const r = list.head;
      while (taken < wanted && runs[r].free_count != 0) out[taken++] = runs[r].take();
      if (runs[r].free_count == 0) list.erase(runs, r);
    }
    return taken;
  }

  /// Makes a run neutral if its domain was forgotten while all its blocks were handed out.
  void let_go_of_forgotten(run& r) const noexcept {
    if (r.generation == streams[r.domain].generation) [[likely]]
      return;
    r.domain = streams.part(ranges[r.body].part).neutral_domain;
    r.generation = streams[r.domain].generation;
  }

  release_result put_into_run(run_ref r, void* p) noexcept {
    run& home = runs[r];
    let_go_of_forgotten(home);
    bool const was_full = home.free_count == 0;
    std::size_t const n = home.find(p);
    if (n == run::none) return release_result::foreign;
    if (home.is_free(n)) return release_result::twice;
    home.put_back(n);
    unsigned const size_class = home.size_class;
    run_list& list = streams[home.domain].runs[size_class];
    if (was_full) list.push(runs, r);
    if (home.free_count < run_blocks(size_class)) return release_result::done;
    list.erase(runs, r);
    range_ref const body = home.body;
    domain_ref const owner = home.domain;
    runs.remove(r);
    count_freed(ranges[body].bytes, ranges[body].part);
    make_free(body, owner, streams[owner].mark());
    return release_result::done;
  }

  [[nodiscard]] bool joins(range_ref a, range_ref b) const noexcept {
    range const& first = ranges[a];
    range const& second = ranges[b];
    return first.state == range_state::free && second.state == range_state::free &&
           first.domain == second.domain && first.where == second.where &&
           (joins_handles || !begins_handle(second.address));
  }
  [[nodiscard]] bool begins_handle(std::uintptr_t address) const noexcept {
    return (*pages)[pages->at(address)].home == address;
  }
  /// Merges the indexed neighbour `second` into `first`, which is in no index.
  void absorb(range_ref first, range_ref second) noexcept {
    take_out(second);
    merge(first, second);
  }

  std::int64_t split_blocks_[zone_count] = {};  ///< current values
  std::int64_t split_bytes_[zone_count] = {};
};

}  // namespace TARN_NAMESPACE::detail
