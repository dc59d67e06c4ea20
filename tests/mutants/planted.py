# SPDX-License-Identifier: Apache-2.0
# The planted bugs: each a small change of one header, of the kind that slips in unnoticed, by the promise it breaks.
from typing import NamedTuple


class Mutant(NamedTuple):
    name: str
    file: str  # below include/tarn
    old: str  # stands there exactly once
    new: str
    short: bool = False  # one of the few that `./dev test` plants
    # The random programs ("simulation"), the policy matrix ("policies"), or a file of unit tests.
    finder: str = "simulation"
    more: tuple[tuple[str, str], ...] = ()  # further changes of the same file: (old, new)


PLANTED = {
    "a stream waits for earlier work on memory that it takes from another stream": [
        Mutant(
            "skip the wait",
            "pool/order/ordering.hpp",
            """driver_.is_capturing(stream, capturing).ok() && !capturing &&
             driver_.wait_event(stream, event).ok();""",
            "driver_.is_capturing(stream, capturing).ok() && !capturing && event != nullptr;",
            short=True,
        ),
        Mutant(
            "take without waiting if the work is almost complete",
            "pool/order/reclaim.hpp",
            "covered != 0 && order.order(space, hot, taker, d)) {",
            "covered != 0 && (owner.completed + 1 >= covered || order.order(space, hot, taker, d))) {",
        ),
        Mutant(
            "wait on the wrong event",
            "pool/order/ordering.hpp",
            "event_handle const event = a.streams[owner].event;",
            "event_handle const event = a.streams[taker].event;",
        ),
        Mutant(
            "make the owner wait for the taker",
            "pool/order/ordering.hpp",
            """    stream_ref const stream = a.streams[taker].stream;
    event_handle const event = a.streams[owner].event;""",
            """    stream_ref const stream = a.streams[owner].stream;
    event_handle const event = a.streams[owner].event;""",
        ),
        Mutant(
            "later frees count as covered by an event that was recorded too early",
            "pool/order/ordering.hpp",
            "std::uint64_t const mark = domain.epoch++;",
            "std::uint64_t const mark = domain.epoch;",
        ),
        Mutant(
            "the newest frees get no event",
            "pool/order/ordering.hpp",
            "if (domain.recorded < domain.freed) {",
            "if (domain.recorded + 1 < domain.freed) {",
        ),
        Mutant(
            "an event that is not ready counts as complete",
            "pool/order/ordering.hpp",
            "done = driver_.query_event(domain.event).ok();",
            "done = driver_.query_event(domain.event).kind != failure::unloading;",
        ),
        Mutant(
            "take memory that no event covers yet",
            "pool/order/reclaim.hpp",
            "space.hand_over(d, taker, covered);",
            "space.hand_over(d, taker, owner.epoch);",
        ),
        Mutant(
            "hand over one epoch too many",
            "pool/arena/arena.hpp",
            "bool const moves = ranges[r].epoch <= epoch;",
            "bool const moves = ranges[r].epoch <= epoch + 1;",
        ),
        Mutant(
            "memory becomes neutral before its work is complete",
            "pool/order/reclaim.hpp",
            "if (domain.free_bytes() != 0) space.hand_over(d, neutral, domain.completed);",
            "if (domain.free_bytes() != 0) space.hand_over(d, neutral, domain.recorded);",
        ),
    ],
    "a free is marked with the work of its own stream": [
        Mutant(
            "freed into the domain of the stream that allocated it",
            "pool/arena/arena.hpp",
            "make_free(piece, giver, mark);",
            "make_free(piece, ranges[piece].domain, streams[ranges[piece].domain].mark());",
        ),
        Mutant(
            "coalesced ranges keep the older mark",
            "pool/arena/arena.hpp",
            "ranges[first].epoch = max_of(ranges[first].epoch, ranges[second].epoch);",
            "ranges[first].epoch = min_of(ranges[first].epoch, ranges[second].epoch);",
        ),
        Mutant(
            "an empty run becomes free without a mark",
            "pool/arena/arena.hpp",
            "make_free(body, owner, streams[owner].mark());",
            "make_free(body, owner, 0);",
        ),
        Mutant(
            "a block of another stream's run is returned without waiting",
            "pool/arena/arena.hpp",
            "if (giver != neutral && runs[r].domain != giver) {",
            "if (giver != neutral && runs[r].domain == neutral) {",
            short=True,
        ),
        Mutant(
            "returned blocks are returned to their run once an event is recorded",
            "pool/order/reclaim.hpp",
            "domain.foreign_epoch <= domain.completed)",
            "domain.foreign_epoch <= domain.recorded)",
        ),
        Mutant(
            "returned blocks are not marked",
            "pool/arena/arena.hpp",
            "domain.foreign_epoch = domain.mark();",
            "domain.foreign_epoch = domain.completed;",
        ),
        Mutant(
            "coalesce across domains",
            "pool/arena/arena.hpp",
            """    return first.state == range_state::free && second.state == range_state::free &&
           first.domain == second.domain && first.where == second.where &&""",
            """    return first.state == range_state::free && second.state == range_state::free &&
           first.where == second.where &&""",
        ),
        Mutant(
            "magazines are returned to the heap as unowned",
            "pool/front/front.hpp",
            "heap_.give_back(id, of_stream.stream, k, m.blocks, std::exchange(m.count, 0));",
            "heap_.give_back(neutral_id, {}, k, m.blocks, std::exchange(m.count, 0));",
        ),
    ],
    "the pool waits for a destroyed stream's work and does not use its handle": [
        Mutant(
            "reuse a destroyed stream's handle",
            "pool/order/mark_work.hpp",
            "driver.identify(stream_ref::from(stream.handle()), now).ok() && now == stream.id();",
            "driver.identify(stream_ref::from(stream.handle()), now).ok() && now != 0;",
        ),
        Mutant(
            "a destroyed stream counts as complete",
            "pool/order/ordering.hpp",
            "done = wait_for_all_work(driver_).ok();",
            "done = domain.gone;",
        ),
        Mutant(
            "the pool is destroyed before the work of its streams is complete",
            "pool/heap.hpp",
            """    finish_all(space_, order, may_release(held));
    // A stream whose end the driver does not report: its work must not see its memory unmapped.
    if (!has_unfinished(space_) && !asks_for_device) return true;""",
            """    // A stream whose end the driver does not report: its work must not see its memory unmapped.
    if (!asks_for_device) return true;""",
        ),
    ],
    "record_stream() holds a block back until all its uses are complete": [
        Mutant(
            "the use on the second of two streams is lost",
            "pool/order/recorded_streams.hpp",
            "if (uses_[u].stream == id) return;",
            "if (b != 0) return;",
        ),
        Mutant(
            "one complete use counts as all uses",
            "pool/order/recorded_streams.hpp",
            "if (--blocks_[b].pending != 0) continue;",
            "if (std::exchange(blocks_[b].pending, 0u) == 0) continue;",
        ),
        Mutant(
            "a use that cannot be marked yet is lost",
            "pool/order/recorded_streams.hpp",
            "bool const over = result == mark_result::gone && wait_for_all_work(driver_).ok();",
            "bool const over = result != mark_result::marked;",
        ),
        Mutant(
            "a use on the allocating stream needs no event",
            "pool/order/recorded_streams.hpp",
            "if (uses_[u].stream == freed.stream.id()) {",
            "if (queues_[uses_[u].queue].stream.handle() == freed.stream.handle()) {",
        ),
        Mutant(
            "only the first use that shares an event is marked again",
            "pool/order/recorded_streams.hpp",
            "if (in.unmarked != 0) join(g, in.unmarked);",
            "",
        ),
        Mutant(
            "a stream's queue is reused one use too early",
            "pool/order/recorded_streams.hpp",
            "if (--queues_[q].users != 0) return;",
            "if (--queues_[q].users > 1) return;",
        ),
        Mutant(
            "an incomplete event counts as complete in a query that does not wait",
            "pool/order/recorded_streams.hpp",
            "if (!done) return false;",
            "if (!done && wait) return false;",
            short=True,
        ),
        Mutant(
            "a noted block that leaves its bucket hides the others",
            "pool/order/noted_blocks.hpp",
            "for (slot_number b = in.first; b != 0; b = blocks_[b].next) marks |= mark_of(hash(blocks_[b].p), t);",
            "",
        ),
    ],
    "calls during a capture keep it valid": [
        Mutant(
            "record an event on a captured stream",
            "pool/order/mark_work.hpp",
            "driver.is_capturing(stream, capturing).ok() && !capturing && driver.record_event(event, stream).ok();",
            "driver.is_capturing(stream, capturing).ok() && driver.record_event(event, stream).ok();",
        ),
        Mutant(
            "a captured stream waits for an event",
            "pool/order/ordering.hpp",
            """    bool capturing = true;
    return !driver_.is_capturing(stream, capturing).ok() || capturing;
  }

  /// Makes later work of `taker` wait on the device for all that `owner` freed up to its recorded event.
  bool order(arena& a, may_release hot, domain_ref taker, domain_ref owner) {
    stream_ref const stream = a.streams[taker].stream;
    event_handle const event = a.streams[owner].event;
    bool done = false;
    {
      unlocked const open(hot);
      bool capturing = true;
      done = driver_.is_capturing(stream, capturing).ok() && !capturing &&
             driver_.wait_event(stream, event).ok();""",
            """    bool capturing = true;
    return !driver_.is_capturing(stream, capturing).ok();
  }

  /// Makes later work of `taker` wait on the device for all that `owner` freed up to its recorded event.
  bool order(arena& a, may_release hot, domain_ref taker, domain_ref owner) {
    stream_ref const stream = a.streams[taker].stream;
    event_handle const event = a.streams[owner].event;
    bool done = false;
    {
      unlocked const open(hot);
      done = driver_.wait_event(stream, event).ok();""",
        ),
    ],
    "records of ended streams and threads are removed, and none too early": [
        Mutant(
            "the identity of a removed stream finds the domain of the next stream",
            "pool/arena/stream_order.hpp",
            "    (void)by_id_.erase(domain.id);\n",
            "",
        ),
        Mutant(
            "a thread keeps its cache of a destroyed pool",
            "pool/front/thread_cache.hpp",
            "for (entry const& e : left) place(places, e);",
            "for (entry const& e : entries_) place(places, e);",
            finder="tests/pool/thread_cache.cpp",
        ),
    ],
    "magazines hold each block once, in its size class, and return all of them": [
        Mutant(
            "the magazines of a thread that ends are lost",
            "pool/front/front.hpp",
            """    empty(*cache);
    retired_live_.bytes""",
            """    cache->lock.end_visit();
    retired_live_.bytes""",
            short=True,
        ),
        Mutant(
            "flush loses half a magazine",
            "pool/front/front.hpp",
            "give_back(id, of_stream.stream, k, m.blocks, std::exchange(m.count, 0));",
            "give_back(id, of_stream.stream, k, m.blocks, (std::exchange(m.count, 0) + 1) / 2);",
        ),
        Mutant(
            "the younger half of a full magazine is kept twice",
            "pool/front/front.hpp",
            "for (std::uint32_t i = count; i < m.count; ++i) m.blocks[i - count] = m.blocks[i];",
            "",
        ),
        Mutant(
            "the magazines of the oldest of too many streams are lost",
            "pool/front/front.hpp",
            "if (oldest.get() != nullptr) give_back(*oldest);",
            "",
        ),
        Mutant(
            "an aligned block enters the magazine of its size",
            "pool/pool.hpp",
            "if (alignment <= default_alignment && front_.put(",
            "if (bytes <= detail::class_limit && front_.put(",
        ),
        Mutant(
            "a block enters a magazine of the wrong size class",
            "pool/front/front.hpp",
            """        unsigned const k = size.its_class();
        done = put_in(*cache, *of_stream, k, p);""",
            """        unsigned const k = class_of(align_up(size.bytes_in(size.its_class()), range_grain));
        done = put_in(*cache, *of_stream, k, p);""",
        ),
        Mutant(
            "the cached large block serves a smaller request",
            "pool/front/front.hpp",
            "of_stream->large_block != nullptr && of_stream->large_bytes == size.large_bytes()",
            "of_stream->large_block != nullptr && of_stream->large_bytes >= size.large_bytes()",
        ),
        Mutant(
            "a magazine that fills does not count its blocks",
            "pool/front/front.hpp",
            "    cache.count_held(class_bytes(k), 0);\n    return true;",
            "    return true;",
        ),
    ],
    "ranges cover the pool's memory without gaps or overlaps": [
        Mutant(
            "the remainder of a split is lost",
            "pool/arena/arena.hpp",
            "if (ranges[r].bytes > bytes) put_in(split(r, bytes));",
            "if (ranges[r].bytes > bytes) ranges[split(r, bytes)].state = range_state::live;",
            short=True,
        ),
        Mutant(
            "bytes skipped for alignment are lost",
            "pool/arena/arena.hpp",
            """      range_ref const body = split(r, skipped);
      put_in(r);
      r = body;""",
            """      range_ref const body = split(r, skipped);
      ranges[r].state = range_state::live;
      r = body;""",
        ),
        Mutant(
            "alignment is ignored for large blocks",
            "pool/arena/arena.hpp",
            "r = carve(r, align_up(ranges[r].address, alignment), bytes);",
            "r = carve(r, ranges[r].address, bytes);",
        ),
        Mutant(
            "the fit ignores alignment",
            "pool/arena/range_index.hpp",
            "if (node.bytes < skipped || node.bytes - skipped < bytes) continue;",
            "if (node.bytes < skipped || node.bytes < bytes) continue;",
        ),
        Mutant(
            "an empty run stays in the list",
            "pool/arena/arena.hpp",
            "    list.erase(runs, r);\n    range_ref const body = home.body;",
            "    range_ref const body = home.body;",
        ),
        Mutant(
            "a run ends one block late",
            "pool/arena/run.hpp",
            "return static_cast<std::uint32_t>(run_bytes(size_class) / class_bytes(size_class));",
            """std::size_t const bytes = class_bytes(size_class);
  return static_cast<std::uint32_t>((run_bytes(size_class) + bytes - 1) / bytes);""",
        ),
        Mutant(
            "a block in pieces keeps its chain",
            "pool/arena/arena.hpp",
            "      ranges[piece].chain = 0;\n",
            "",
        ),
    ],
    "a view maps free handles, each once, while a block lies in it": [
        Mutant(
            "coalesce across handles",
            "pool/growth/page_choice.hpp",
            "std::uintptr_t const end = min_of(node.end(), map.end_of(h));",
            "std::uintptr_t const end = node.end();",
        ),
        Mutant(
            "a view takes another stream's memory",
            "pool/growth/page_choice.hpp",
            "if (node.state != range_state::free || (node.domain != taker && node.domain != neutral)) continue;",
            "if (node.state != range_state::free) continue;",
        ),
        Mutant(
            "a view maps one handle at both ends",
            "pool/growth/page_choice.hpp",
            "if (end_most.bytes != 0 && end_most.handle == start_most.handle) {",
            "if (end_most.bytes != 0 && end_most.address == start_most.address) {",
        ),
        Mutant(
            "an extended view maps a handle twice",
            "pool/growth/page_choice.hpp",
            "return after != nullptr && after->shows(p.handle);",
            "return after != nullptr && after->region == 0;",
        ),
        Mutant(
            "a view is extended beyond its address range",
            "pool/growth/page_views.hpp",
            "      if (bytes > a.ranges[v.region].bytes) continue;\n",
            "",
        ),
        Mutant(
            "a view is unmapped with a block in it",
            "pool/growth/page_views.hpp",
            "    if (t.blocks != 0) return false;\n",
            "",
        ),
        Mutant(
            "a view still maps a handle that was destroyed",
            "pool/growth/page_views.hpp",
            "          slot.handle = 0;\n",
            "",
        ),
        Mutant(
            "a handle is destroyed while a view maps it",
            "pool/growth/page_growth.hpp",
            "      views_.forget(leaves);\n",
            "",
        ),
    ],
    "memory returned to the driver is whole, free and no longer in use": [
        Mutant(
            "an emptied pool grows up to its earlier peak before it remaps",
            "pool/heap.hpp",
            "    space_.live_peak = max_of(space_.live_bytes, min_of(space_.live_peak, counters.reserved));\n",
            "",
            finder="tests/pool/growth.cpp",
        ),
        Mutant(
            "a page is unmapped while in use",
            "pool/growth/page_growth.hpp",
            "if (at_start && at_end && map_[p.handle].pins == 0 && !must_stay(a, p.address) &&",
            "if ((at_start || at_end) && !must_stay(a, p.address) &&",
        ),
        Mutant(
            "a segment is freed with a live block at its end",
            "pool/growth/segment_growth.hpp",
            "if (node.previous == 0 && node.next == 0 && a.is_complete(node)) whole = r;",
            "if (node.previous == 0 && a.is_complete(node)) whole = r;",
        ),
        Mutant(
            "trim frees memory that waits for a stream's work",
            "pool/growth/page_growth.hpp",
            "!must_stay(a, p.address) &&\n                             a.is_complete(a.ranges[a.starts.find(a.ranges, p.address)]))",
            "!must_stay(a, p.address))",
        ),
    ],
    "a refusal changes nothing": [
        Mutant(
            "the failure path omits a reclaim",
            "pool/growth/page_making.hpp",
            "      unmake(made, address);\n",
            "",
        ),
        Mutant(
            "the range that was to be extended is lost on refusal",
            "pool/growth/page_growth.hpp",
            "      if (e.range != 0) a.make_free(e.range, base.domain, base.epoch);\n",
            "",
        ),
        Mutant(
            "a refusal by the device costs budget",
            "policy/limited.hpp",
            "      budget_.give(counted);\n",
            "",
        ),
    ],
    "counters are exact": [
        Mutant(
            "an allocation is counted twice",
            "pool/heap.hpp",
            "    if (uncached) count_uncached(held",
            "    if (uncached || r.size_class == class_count) count_uncached(held",
        ),
        Mutant(
            "the live bytes of a thread are lost when it ends",
            "pool/front/front.hpp",
            "    retired_live_.bytes += cache->live_bytes.load(std::memory_order_relaxed);\n",
            "",
        ),
        Mutant(
            "reserved is not reduced",
            "pool/growth/growth.hpp",
            "    reserved -= bytes;\n",
            "",
        ),
        Mutant(
            "a peak is missed",
            "policy/tracked_numbers.hpp",
            "      if (now > n.peak) [[unlikely]]\n        n.peak = now;\n",
            "",
        ),
        Mutant(
            "a peak of reserved bytes is missed",
            "core/counter.hpp",
            "    current += amount;\n    allocated += amount;\n    peak = detail::max_of(peak, current);",
            "    peak = detail::max_of(peak, current);\n    current += amount;\n    allocated += amount;",
            finder="tests/report/stats_model.cpp",
        ),
        Mutant(
            "the peak of a scope is its value at the end",
            "policy/tracked_numbers.hpp",
            "m->peak = max_of(m->peak, m->current);",
            "m->peak = max_of(m->start, m->current);",
        ),
        Mutant(
            "a block that waits is not active",
            "policy/tracked_numbers.hpp",
            "    s.current += waiting_[k][g];\n",
            "",
        ),
        Mutant(
            "the peak of active bytes omits waiting blocks",
            "policy/tracked_numbers.hpp",
            "    s.peak = max_of(s.peak, active_peak_[k][g]);\n",
            "",
        ),
        Mutant(
            "a block that no longer waits is counted as waiting",
            "pool/waiting_blocks.hpp",
            "      count(w.bytes, w.alignment, -1);\n",
            "",
        ),
        Mutant(
            "a waiting large block is counted as small",
            "pool/waiting_blocks.hpp",
            "    count_.change(bytes <= class_limit, ",
            "    count_.change(true, ",
            finder="tests/report/stats_model.cpp",
        ),
        Mutant(
            "a free range that fills its handle is counted as split",
            "pool/arena/arena.hpp",
            "    if (first == last) return at_start && at_end ? 0 : node.bytes;",
            "    if (first == last) return node.bytes;",
            finder="tests/report/stats_model.cpp",
        ),
        Mutant(
            "an allocated range stays counted as split",
            "pool/arena/arena.hpp",
            "    split_bytes_[static_cast<std::size_t>(node.where)] -= node.view_or_split * std::int64_t{range_grain};\n",
            "",
            finder="tests/report/stats_model.cpp",
        ),
        Mutant(
            "a reset of the totals omits the totals of driver calls",
            "pool/pool_statistics.hpp",
            "    reset.creates = static_cast<std::uint64_t>(sums.handles.allocated);\n",
            "",
            finder="tests/report/stats_model.cpp",
        ),
        Mutant(
            "a thread's distance to the peak omits waiting blocks",
            "policy/tracked_numbers.hpp",
            "max_of(most, active_peak_[k][g]) - waiting_[k][g]) - current(k, g);",
            "max_of(most, active_peak_[k][g])) - current(k, g);",
            finder="tests/policy/tracked.cpp",
        ),
        Mutant(
            "a block is counted before a share has given up enough room for it",
            "policy/tracked_numbers.hpp",
            "      if (fits(u)) return;\n",
            "      return;\n",
            finder="tests/policy/tracked.cpp",
        ),
        Mutant(
            "a share that gives up room keeps its counts to itself",
            "policy/tracked_share.hpp",
            "    lock_.lock();\n    report(f);\n    for (",
            "    lock_.lock();\n    for (",
            finder="tests/policy/tracked.cpp",
        ),
        Mutant(
            "a share may use room that it gave up",
            "policy/tracked_share.hpp",
            "        if (least[k][g] > 0) room_[k][g] -= ",
            "        if (least[k][g] > 0) lent[k][g] -= ",
            finder="tests/policy/tracked.cpp",
        ),
        Mutant(
            "a reset of the totals keeps what was freed before",
            "policy/tracked_numbers.hpp",
            "        n.at_reset = n.current;\n",
            "",
            finder="tests/policy/tracked.cpp",
        ),
        Mutant(
            "the peak of all blocks is that of their group",
            "policy/tracked_numbers.hpp",
            "if (now + other.of[K].current > peak_of_all_[K])",
            "if (now > peak_of_all_[K])",
        ),
    ],
    "room moves between the shares of threads, and its sum stays": [
        Mutant(
            "a share keeps the room that it gave away",
            "policy/tracked_share.hpp",
            "        donor.room_[k][g] -= moved[k][g];\n",
            "",
            finder="tests/policy/tracked.cpp",
        ),
        Mutant(
            "room that was moved counts as blocks that ended",
            "policy/tracked_share.hpp",
            "        donor.given_[k][g] -= moved[k][g];\n",
            "",
            finder="tests/policy/tracked.cpp",
        ),
        Mutant(
            "numbers are compared with the peaks while shares have not reported",
            "policy/tracked_numbers.hpp",
            "    if (out_ != 0) {\n      add_within_room(u);",
            "    if (out_ > ~std::uint32_t{0} - 1) {\n      add_within_room(u);",
            finder="tests/policy/tracked.cpp",
        ),
    ],
    "memory goes back once the live peak has fallen, and not while it returns": [
        Mutant(
            "a fall of the live peak is not noticed",
            "pool/arena/live_window.hpp",
            "peak() < live_peak - live_peak / least_fall",
            "live_peak < peak() - peak() / least_fall",
            finder="tests/pool/live_window.cpp",
        ),
        Mutant(
            "the peaks of earlier steps are forgotten",
            "pool/arena/live_window.hpp",
            "peak_[i] = peak_[i - 1];",
            "peak_[i] = 0;",
            finder="tests/pool/live_window.cpp",
        ),
        Mutant(
            "a release that was a mistake is repeated as soon",
            "pool/arena/live_window.hpp",
            "factor_ = min_of(factor_ * 2, last_factor);",
            "factor_ = min_of(factor_, last_factor);",
            finder="tests/pool/live_window.cpp",
        ),
        Mutant(
            "memory is given back during a capture",
            "pool/heap.hpp",
            "counters.reserved <= keep || capture_gate::has_captures()) return;",
            "counters.reserved <= keep) return;",
            finder="tests/pool/live_window.cpp",
        ),
        Mutant(
            "release_threshold is ignored",
            "pool/heap.hpp",
            "counters.reserved <= keep || capture_gate::has_captures()) return;",
            "capture_gate::has_captures()) return;",
            finder="tests/pool/live_window.cpp",
            more=(("options.release_threshold);", "std::size_t{0});"),),
        ),
    ],
    "a refusal does not walk over the free ranges": [
        Mutant(
            "the taker's ranges become neutral and its own again",
            "pool/order/reclaim.hpp",
            "d == keeps ? return_foreign(space, d) : neutralise(space, d);",
            "neutralise(space, d);",
            finder="tests/pool/refusal_time.cpp",
        ),
        Mutant(
            "free neighbours of two streams are not joined before a refusal",
            "pool/order/reclaim.hpp",
            "  if (keeps != neutral && space.streams[neutral].free_bytes() != 0) neutralise(space, keeps);\n",
            "",
        ),
    ],
    "peaks with a bound stay within it": [
        Mutant(
            "frees stay in a share without a bound",
            "policy/tracked_share.hpp",
            "if (bounded_ == is_bounded::no) return true;",
            "if (bounded_ == is_bounded::no || u.rounded < 0) return true;",
            finder="tests/policy/tracked.cpp",
        ),
        Mutant(
            "a share that was published keeps what it counted",
            "policy/tracked_share.hpp",
            "    room_ = given_;\n",
            "",
            finder="tests/policy/tracked.cpp",
        ),
    ],
    "a pool that the device refuses gets what other pools cache": [
        Mutant(
            "a pool on another device is asked",
            "pool/other_pools.hpp",
            "asked == this || !is_same_device(asked->driver_, driver_)",
            "asked == this",
            finder="tests/pool/other_pools.cpp",
        ),
        Mutant(
            "another pool gives back all that it caches",
            "pool/cache_misses.hpp",
            "reserved > bytes - given ? reserved - (bytes - given) : 0;",
            "0;",
            finder="tests/pool/other_pools.cpp",
        ),
        Mutant(
            "another pool waits for its streams before the others are asked",
            "pool/cache_misses.hpp",
            "{giving::what_is_idle, giving::what_is_waited_for}",
            "{giving::what_is_waited_for, giving::what_is_idle}",
            finder="tests/pool/other_pools.cpp",
        ),
        Mutant(
            "a limit of its own makes a pool ask others",
            "pool/cache_misses.hpp",
            "return is_on_device && refused.limit == memory_report::unknown;",
            "return is_on_device;",
            finder="tests/pool/other_pools.cpp",
        ),
        Mutant(
            "wake asks no other pool",
            "pool/cache_misses.hpp",
            "    with_help_of_others([&] { taken = parts::wake(then); },\n                        [](memory_report const& refused) {\n",
            "    return parts::wake(then);\n    with_help_of_others([&] { taken = parts::wake(then); },\n                        [](memory_report const& refused) {\n",
            finder="tests/pool/other_pools.cpp",
        ),
        Mutant(
            "wake asks other pools for all that it takes",
            "pool/cache_misses.hpp",
            "return refused.lacking != memory_report::unknown ? refused.lacking : refused.asked;",
            "return refused.asked;",
            finder="tests/pool/other_pools.cpp",
        ),
        Mutant(
            "a refusal that other pools made good is counted as out of memory",
            "pool/ladder.hpp",
            "    query_device(refused, was_refused);\n",
            "    ++heap_.ooms;\n    query_device(refused, was_refused);\n",
            finder="tests/pool/other_pools.cpp",
        ),
    ],
    "nothing invalidates a capture while its scope is open": [
        Mutant(
            "an imported block waits for the device although a stream is captured",
            "raii/imported_block.hpp",
            "is_of_capture(wait_past_captures(driver_))",
            "is_of_capture(driver_.synchronize_device())",
            finder="tests/raii/captures.cpp",
        ),
        Mutant(
            "fallback_to waits for the device although a stream is captured",
            "policy/fallback_to.hpp",
            "if (used_.erase(p) && detail::is_of_capture(detail::wait_for_all_work(driver()))) [[unlikely]]",
            "if (used_.erase(p) && detail::is_of_capture(driver().synchronize_device())) [[unlikely]]",
            finder="tests/raii/captures.cpp",
        ),
        Mutant(
            "fallback_to frees a block at once although its uses could not be waited for",
            "policy/fallback_to.hpp",
            "      return keep_late(r, p);\n",
            "      return give_back(r, p, next);\n",
            finder="tests/raii/captures.cpp",
        ),
        Mutant(
            "blocks that fallback_to keeps for a capture are not given back at its end",
            "policy/fallback_to.hpp",
            "      give_back_late(detail::wait_past_captures<typename base::driver_type>);\n",
            "      late_count_.store(0);\n",
            finder="tests/raii/captures.cpp",
        ),
        Mutant(
            "a block of a destroyed stream is waited for although a stream is captured",
            "driver/capture_gate.hpp",
            "  return !is_of_capture(wait_for_all_work(driver));\n",
            "  return !is_of_capture(driver.synchronize_device());\n",
            finder="tests/raii/captures.cpp",
        ),
        Mutant(
            "a thread waits for its own capture",
            "driver/capture_gate.hpp",
            "    if (capture_gate::may_be_mine() || !capture_gate::wait_for_captures()) break;\n",
            "    if (!capture_gate::wait_for_captures()) break;\n",
            finder="tests/raii/captures.cpp",
        ),
    ],
    "a pool knows what memory is left below it": [
        Mutant(
            "other pools are not asked for what the driver needs beside the headroom",
            "pool/cache_misses.hpp",
            "wanted += refused.headroom + allocation_overhead(heap_.driver());",
            "wanted += refused.headroom;",
            finder="tests/policy/headroom.cpp",
        ),
        Mutant(
            "headroom counts as free",
            "pool/growth/memory_left.hpp",
            "  if constexpr (has_headroom<Layer>) left.leave_headroom(layer.headroom_bytes());\n",
            "",
            finder="tests/pool/memory_left.cpp",
        ),
        Mutant(
            "a limit above the device's free memory is believed",
            "pool/growth/memory_left.hpp",
            "    if (rest >= bytes) return;\n    bytes = rest;\n    by = \"limited\";",
            "    bytes = rest;\n    by = \"limited\";",
            finder="tests/pool/memory_left.cpp",
        ),
        Mutant(
            "what is left is queried once",
            "pool/growth/memory_left.hpp",
            "return !is_known_ || (reserved > seen_at_ && reserved - seen_at_ > left_ / 16);",
            "return !is_known_;",
            finder="tests/pool/memory_left.cpp",
        ),
        Mutant(
            "a request is refused by what was known before",
            "pool/ladder.hpp",
            "      memory_bound const bound = renew_left();  // what was known may be too low\n",
            "      memory_bound const bound;\n",
            finder="tests/pool/memory_left.cpp",
        ),
        Mutant(
            "handles stay coarse as memory becomes scarce",
            "pool/ladder.hpp",
            "min_of(handle_limit(live), handle_limit_near_full(left()));",
            "handle_limit(live);",
            finder="tests/pool/memory_left.cpp",
        ),
        Mutant(
            "blocks of medium size are remapped like large ones",
            "pool/growth/growth.hpp",
            "return slack_per_mille * (5 + min_of(often, std::size_t{3}));",
            "return slack_per_mille;",
            finder="tests/pool/memory_left.cpp",
        ),
    ],
    "a pool leaves its headroom to others": [
        Mutant(
            "pages are created without regard to the headroom",
            "policy/headroom.hpp",
            "    return this->beside_headroom({stream_ref{}, bytes, granularity()},\n                                 [&] { return this->upstream().create(bytes); });",
            "    return this->upstream().create(bytes);",
            finder="tests/policy/headroom.cpp",
        ),
        Mutant(
            "a growth may take the headroom as long as some is left",
            "policy/headroom.hpp",
            "left - bytes >= rest",
            "left >= rest",
            finder="tests/policy/headroom.cpp",
        ),
        Mutant(
            "growth in progress is not counted",
            "policy/headroom.hpp",
            "free > in_progress ? free - in_progress : 0",
            "free",
            finder="tests/policy/headroom.cpp",
        ),
        Mutant(
            "nothing is left beside the headroom for what an allocation needs more",
            "policy/headroom.hpp",
            "return bytes_ != 0 ? bytes_ + allocation_overhead(this->driver()) : 0;",
            "return bytes_;",
            finder="tests/policy/headroom.cpp",
        ),
        Mutant(
            "a growth that the device has served already is counted twice",
            "policy/headroom.hpp",
            "      if (in_progress == 0 || !has_room(free)) return false;\n",
            "      return false;\n",
            finder="tests/policy/headroom.cpp",
        ),
        Mutant(
            "keep_headroom gives back all but what lacks",
            "policy/headroom.hpp",
            "reserved > bytes ? reserved - bytes : 0",
            "bytes",
            finder="tests/policy/headroom.cpp",
        ),
    ],
    "pinned pages stay where they are": [
        Mutant(
            "trim gives pinned handles back",
            "pool/growth/page_growth.hpp",
            "map_[p.handle].pins == 0 && ",
            "",
            finder="tests/raii/page_pin.cpp",
        ),
        Mutant(
            "an idle view with a pin is unmapped",
            "pool/growth/page_views.hpp",
            "views_[by_use_[at]].pins == 0 && ",
            "",
            finder="tests/raii/page_pin.cpp",
        ),
        Mutant(
            "compact replaces a pinned handle",
            "pool/growth/page_compact.hpp",
            " || map_[h].pins != 0",
            "",
            finder="tests/raii/page_pin.cpp",
        ),
        Mutant(
            "a pinned handle is put to sleep",
            "pool/arena/page_map.hpp",
            "p.stays = p.pins != 0;",
            "p.stays = false;",
            finder="tests/raii/page_pin.cpp",
        ),
        Mutant(
            "the end of one pin ends all",
            "pool/arena/page_map.hpp",
            "{ --handles_[h].pins; }",
            "{ handles_[h].pins = 0; }",
            finder="tests/raii/page_pin.cpp",
        ),
        Mutant(
            "wake maps what stayed a second time",
            "pool/growth/page_views.hpp",
            "return slot.handle != 0 && !map_[slot.handle].stays;",
            "return slot.handle != 0;",
            finder="tests/raii/page_pin.cpp",
        ),
        Mutant(
            "a failed wake gives pinned handles back",
            "pool/growth/page_sleep.hpp",
            "++next;\n      if (map_[h].bytes == 0 || map_[h].stays) continue;",
            "++next;\n      if (map_[h].bytes == 0) continue;",
            finder="tests/raii/page_pin.cpp",
        ),
        Mutant(
            "segments of a freed block are listed",
            "pool/growth/page_segments.hpp",
            "      if (node.state != range_state::live) return false;\n",
            "",
            finder="tests/raii/page_pin.cpp",
        ),
        Mutant(
            "the fallback's blocks are looked for in the first pool",
            "policy/fallback_to.hpp",
            "      if (of_other) return static_cast<void>(nearest(other_, call));\n",
            "",
            finder="tests/raii/page_pin.cpp",
        ),
    ],
    "whatever a pool does, pinned pages stay where they are": [
        Mutant(
            "a view does not count its pins",
            "pool/growth/page_segments.hpp",
            "    if (v != nullptr) ++v->pins;\n",
            "",
            more=(("    if (v != nullptr) --v->pins;\n", ""),),
        ),
        Mutant(
            "a pin keeps only the first handle of its block",
            "pool/growth/page_segments.hpp",
            "map_.pin(h);\n                      return true;",
            "map_.pin(h);\n                      return false;",
            more=(
                (
                    "map_.unpin(h);\n                      return true;",
                    "map_.unpin(h);\n                      return false;",
                ),
            ),
        ),
        Mutant(
            "the end of a pin counts only the first handle",
            "pool/growth/page_segments.hpp",
            "map_.unpin(h);\n                      return true;",
            "map_.unpin(h);\n                      return false;",
        ),
        Mutant(
            "the pins of two blocks in one handle count once",
            "pool/arena/page_map.hpp",
            "{ ++handles_[h].pins; }",
            "{ handles_[h].pins = 1; }",
            more=(("{ --handles_[h].pins; }", "{ handles_[h].pins -= handles_[h].pins != 0; }"),),
        ),
        Mutant(
            "compact replaces a handle with one pin",
            "pool/growth/page_compact.hpp",
            " || map_[h].pins != 0",
            " || map_[h].pins > 1",
        ),
        Mutant(
            "a pinned handle that is freed during sleep is given back",
            "pool/growth/page_growth.hpp",
            "map_[p.handle].pins == 0 && ",
            "(map_[p.handle].pins == 0 || map_[p.handle].stays) && ",
        ),
        Mutant(
            "a pin that ends while the pool sleeps stays counted",
            "pool/pool_parts.hpp",
            """    if (heap_.is_lost()) return;
    if (heap_.growth.contains(reinterpret_cast<std::uintptr_t>(p)))
      return heap_.growth.unpin(""",
            """    if (heap_.is_lost() || heap_.is_asleep()) return;
    if (heap_.growth.contains(reinterpret_cast<std::uintptr_t>(p)))
      return heap_.growth.unpin(""",
        ),
        Mutant(
            "sleep unmaps the views of pinned handles",
            "pool/growth/page_views.hpp",
            "if (is_mapped_with_view(slot) && map_[slot.handle].state == backing::mapped) unmap(at, slot.bytes);",
            "if (slot.handle != 0 && map_[slot.handle].state == backing::mapped) unmap(at, slot.bytes);",
        ),
        Mutant(
            "the lock is released between finding and pinning segments",
            "pool/pool_parts.hpp",
            """    std::lock_guard const cold(heap_.cold);
    find_segments({"page_pin", p, bytes}, found,
""",
            """    find_segments({"page_pin", p, bytes}, found, [](auto&) noexcept {});
    std::lock_guard const cold(heap_.cold);
    if (auto const at = reinterpret_cast<std::uintptr_t>(p); heap_.growth.contains(at))
      return heap_.growth.pin(at, bytes);
    find_segments({"page_pin", p, bytes}, found,
""",
        ),
        Mutant(
            "a moved page_pin ends, too",
            "raii/page_pin.hpp",
            ": memory_(other.memory_), p_(std::exchange(other.p_, nullptr)), bytes_(other.bytes_) {}",
            ": memory_(other.memory_), p_(other.p_), bytes_(other.bytes_) {}",
        ),
        Mutant(
            "a segment of a view begins at the start of its handle",
            "pool/growth/page_views.hpp",
            "!f(slot.handle, begin - at, end - begin)",
            "!f(slot.handle, 0, end - begin)",
        ),
    ],
    "a pin holds the memory of a graph": [
        Mutant(
            "the part of an ended graph_memory goes in spite of a pin",
            "pool/pool_parts.hpp",
            "graphs_.add_reference(p);",
            "(void)p;",
            finder="tests/raii/page_pin.cpp",
            more=(("    graphs_.remove_reference(p);\n", ""),),
        ),
    ],
    "a reservation keeps its bytes for its task": [
        Mutant(
            "freed bytes wake no task",
            "policy/byte_budget.hpp",
            "    if (waiting_.load(std::memory_order_seq_cst) != 0) [[unlikely]]\n      serve_waiting();\n",
            "",
            finder="tests/raii/reservation.cpp",
        ),
        Mutant(
            "a raised limit wakes no task",
            "policy/byte_budget.hpp",
            "    limit_.store(smallest, std::memory_order_relaxed);\n    serve();\n",
            "    limit_.store(smallest, std::memory_order_relaxed);\n",
            finder="tests/raii/reservation.cpp",
        ),
        Mutant(
            "requests that wait pass a large one without end",
            "policy/byte_budget.hpp",
            "      } else if (w.passed_by_ >= most_passes) {\n        return;\n",
            "",
            finder="tests/raii/reservation.cpp",
        ),
        Mutant(
            "requests that do not wait pass a large one without end",
            "policy/byte_budget.hpp",
            "      if (w->passed_by_ >= most_passes) return false;\n",
            "",
            finder="tests/raii/reservation.cpp",
        ),
        Mutant(
            "a request that gives up holds up those behind it",
            "policy/byte_budget.hpp",
            "    serve();  // it may have been passed too often, and held up later ones\n",
            "",
            finder="tests/raii/reservation.cpp",
        ),
        Mutant(
            "a forked child serves the waiting threads of its parent",
            "policy/byte_budget.hpp",
            "      budget.waiters_ = nullptr;\n",
            "",
            finder="tests/raii/reservation.cpp",
        ),
        Mutant(
            "a block that outlives its reservation is lost to the limit",
            "raii/reservation.hpp",
            "      memory_->budget().give(bytes);\n      return;\n",
            "      return;\n",
            finder="tests/raii/reservation.cpp",
        ),
        Mutant(
            "a reservation that has ended allocates",
            "raii/reservation.hpp",
            "      if (left == ended || left < bytes) return false;",
            "      if (left < bytes) return false;",
            finder="tests/raii/reservation.cpp",
        ),
        Mutant(
            "a refusal by the upstream costs bytes of the reservation",
            "raii/reservation.hpp",
            "    } catch (...) {\n      give(counted);\n",
            "    } catch (...) {\n",
            finder="tests/raii/reservation.cpp",
        ),
    ],
    "a snapshot shows the memory of the pool": [
        Mutant(
            "the requested size of a waiting block is lost",
            "report/merge_history.hpp",
            "    block.requested = b.requested;\n",
            "",
            finder="tests/report/stats_model.cpp",
        ),
        Mutant(
            "the requested bytes of a segment omit waiting blocks",
            "report/pickle.hpp",
            "      requested += requested_of(b);\n      if (b.use == block_use::live) allocated += b.bytes;\n",
            "      if (b.use == block_use::live) requested += requested_of(b), allocated += b.bytes;\n",
            finder="tests/report/stats_model.cpp",
        ),
        Mutant(
            "blocks in magazines are shown as live",
            "pool/inspection/pool_facts.hpp",
            "      for (std::uint32_t i = 0; i < m.count; ++i)\n        cached.push_back(",
            "      for (std::uint32_t i = 1; i < m.count; ++i)\n        cached.push_back(",
            finder="tests/report/stats_model.cpp",
        ),
        Mutant(
            "a block freed into another stream's run is shown as live",
            "pool/inspection/pool_facts.hpp",
            "        for (void* const p : list) cached.push_back({address_of(p), 0, held_use::cached, domains.back(), 0});\n",
            "",
            finder="tests/report/stats_model.cpp",
        ),
    ],
    "an owner orders its streams": [
        Mutant(
            "a buffer grows before the work on it is complete",
            "raii/device_buffer.hpp",
            "      detail::order_streams(driver(), moved.stream_, stream_);\n",
            "",
        ),
        Mutant(
            "the old block is released on the old stream",
            "raii/device_buffer.hpp",
            "      stream_ = moved.stream_;  // so that the old block is released behind the copy\n",
            "",
        ),
        Mutant(
            "a buffer changes its stream without ordering",
            "raii/device_buffer.hpp",
            "    if (data_ != nullptr) detail::order_streams(driver(), stream, stream_, where);\n",
            "",
        ),
    ],
    "values looked up under a lock are invalid after its release": [
        Mutant(
            "a free range that is extended stays free while its handles are created",
            "pool/growth/page_growth.hpp",
            "    if (e.range != 0) a.claim(e.range);\n",
            "",
            more=(("    if (e.range != 0) {\n      a.merge(", "    if (e.range != 0) {\n      a.claim(e.range);\n      a.merge("),),
        ),
        Mutant(
            "the lock is released between choosing handles to destroy and taking them",
            "pool/growth/page_growth.hpp",
            "    a.ranges.make_room(2 * most + 4);\n",
            "    a.ranges.make_room(2 * most + 4);\n    { unlocked const open(hot); }\n",
        ),
        Mutant(
            "the lock is released between choosing pieces and mapping a view of them",
            "pool/growth/page_growth.hpp",
            "        if (lack == 0) return (block = views_.build(",
            "        { unlocked const open(hot); }\n        if (lack == 0) return (block = views_.build(",
            short=True,
        ),
        Mutant(
            "pieces are used that were chosen before views were unmapped",
            "pool/growth/page_growth.hpp",
            "          views_.drop_idle(a, hot, order, request.taker);\n          continue;\n",
            "          views_.drop_idle(a, hot, order, request.taker);\n",
        ),
        Mutant(
            "completion of the work is checked once for all views",
            "pool/growth/page_views.hpp",
            """    for (std::size_t at = by_use_.size(); at-- > kept;) {
      if (views_[by_use_[at]].pins == 0 && is_idle(a, a.tenancies[by_use_[at]])) drop_view(a, hot, at);
    }
  }
""",
            """    bool const all_done = everything_done(a);
    for (std::size_t at = by_use_.size(); at-- > kept;) {
      tenancy const& t = a.tenancies[by_use_[at]];
      if (is_idle(a, t) || (all_done && t.blocks == 0)) drop_view(a, hot, at);
    }
  }
""",
        ),
        Mutant(
            "the pieces that extend a view are chosen before the lock is released",
            "pool/growth/page_views.hpp",
            "    carve(a, hot.held(), all, carved);\n",
            "    { unlocked const open(hot); }\n    carve(a, hot.held(), all, carved);\n",
        ),
        Mutant(
            "the lock is released between finding a free segment and taking it",
            "pool/growth/segment_growth.hpp",
            "      range_ref const whole = found.get(hot.held());\n",
            "      { unlocked const open(hot); }\n      range_ref const whole = found.get(hot.held());\n",
        ),
        Mutant(
            "memory freed while an event is recorded counts as covered",
            "pool/order/ordering.hpp",
            "      domain.recorded = mark;\n",
            "      domain.recorded = domain.epoch++;\n",
        ),
        Mutant(
            "memory freed while an event is queried counts as complete",
            "pool/order/ordering.hpp",
            "    if (done) domain.completed = max_of(domain.completed, covered);\n    return !done;",
            "    if (done) domain.completed = max_of(covered, domain.freed);\n    return !done;",
        ),
        Mutant(
            "memory freed while the host waits counts as complete",
            "pool/order/ordering.hpp",
            "    if (done) domain.completed = max_of(domain.completed, covered);\n    return done;",
            "    if (done) domain.completed = max_of(covered, domain.freed);\n    return done;",
        ),
        Mutant(
            "the index of a stream is kept across a release of the lock",
            "pool/heap.hpp",
            "    looked_up_domain giver = domain_of(may_release(held), id, stream);\n    for (",
            "    looked_up_domain giver = domain_of(may_release(held), id, stream);\n"
            "    { unlocked const open{may_release(held)}; }\n    for (",
        ),
        Mutant(
            "a visitor leaves a thread's cache before the cache is empty",
            "pool/front/front.hpp",
            "    give_back(cache);\n    end_visit(cache);\n",
            "    end_visit(cache);\n    give_back(cache);\n",
        ),
        Mutant(
            "the cached large block is returned before it is removed from the cache",
            "pool/front/front.hpp",
            "    void* const p = is_open(at) ? std::exchange(at.of_stream->large_block, nullptr) : nullptr;\n",
            "    void* const p = is_open(at) ? at.of_stream->large_block : nullptr;\n",
            more=(
                (
                    "at.of_stream->newest_large = batch.blocks[0];",
                    "at.of_stream->newest_large = batch.blocks[0], at.of_stream->large_block = nullptr;",
                ),
            ),
        ),
    ],
    "a call runs on the device of its resource": [
        Mutant(
            "memory of the wrong device",
            "driver/sim/sim_driver.hpp",
            "return m.memory.create(device_.value, bytes, type, handle);",
            "return m.memory.create(current().value, bytes, type, handle);",
        ),
        Mutant(
            "the host waits for the wrong device",
            "driver/sim/sim_driver.hpp",
            "return synchronized(m, m.streams.synchronize_device(device_.value));",
            "return synchronized(m, m.streams.synchronize_device(current().value));",
        ),
    ],
    "moved elements keep their values and their order": [
        Mutant(
            "a slot is overwritten before the work on its last batch is complete",
            "raii/stream_batches.hpp",
            "    if (sent_ >= depth_) lane_.wait_for(released(sent_));\n",
            "",
            finder="tests/raii/stream_batches.cpp",
        ),
        Mutant(
            "the body does not wait for the copy of its batch",
            "raii/stream_batches.hpp",
            "    if (!is_over()) lane_.let_user_wait(copied(current_));\n",
            "",
            finder="tests/raii/stream_batches.cpp",
        ),
        Mutant(
            "a pinned slot is free once its copy is enqueued",
            "raii/stream_batches.hpp",
            "return index < host_depth_ || lane_.is_past(copied(index));",
            "return index < host_depth_ || sent_ > index - host_depth_;",
            finder="tests/raii/stream_batches.cpp",
        ),
        Mutant(
            "batches are collected before the stream has written them",
            "raii/collect_batches.hpp",
            "    lane_.wait_for(depth_);\n",
            "",
            finder="tests/raii/stream_batches.cpp",
        ),
        Mutant(
            "elements are evicted before the work on them is complete",
            "raii/evict_scope.hpp",
            "      detail::order_behind(stream_, buffers...);\n",
            "",
            finder="tests/raii/evict_scope.cpp",
        ),
        Mutant(
            "evicted elements are restored without ordering the buffer's stream",
            "raii/evict_scope.hpp",
            "    (std::get<I>(back).set_stream(std::get<I>(slots_).buffer->stream()), ...);\n",
            "",
            finder="tests/raii/evict_scope.cpp",
        ),
        Mutant(
            "a rewind stays in the newer chunk",
            "raii/scratch.hpp",
            "    at_ = marks_[m.depth_].at;\n",
            "",
            finder="tests/raii/scratch.cpp",
        ),
        Mutant(
            "a scratch changes its stream without a wait",
            "raii/scratch.hpp",
            "    if (!chunks_.empty()) detail::order_streams(memory_.driver(), stream, stream_, where);\n",
            "",
            finder="tests/raii/scratch.cpp",
        ),
    ],
    "a snapshot is complete, and a scope restores the earlier state": [
        Mutant(
            "a partly written snapshot file is left behind",
            "report/write_file.hpp",
            "    int const why = errno != 0 ? errno : EIO;\n    (void)std::remove(path.c_str());\n",
            "    int const why = errno != 0 ? errno : EIO;\n",
            finder="tests/report/json.cpp",
        ),
        Mutant(
            "blocks that wait for a stream have no tag",
            "report/take_snapshot.hpp",
            "  detail::name_awaiting(s.segments, record.events);\n",
            "",
            finder="tests/report/take_snapshot.cpp",
        ),
        Mutant(
            "the limit of the oldest budget_scope applies",
            "policy/byte_budget.hpp",
            "smallest = min_of(smallest, b->bytes);",
            "smallest = b->bytes;",
            finder="tests/raii/scopes.cpp",
        ),
        Mutant(
            "a device guard restores the device of a guard that has ended",
            "raii/device_guard.hpp",
            "      inner->before_ = before_;  // this guard's device is not to be restored any more\n",
            "",
            finder="tests/raii/device_guard.cpp",
        ),
    ],
    "a policy forwards each call to the resource that owns the block": [
        Mutant(
            "record_stream always reaches the first resource",
            "policy/fallback_to.hpp",
            "    if (blocks_.contains(p)) {\n      record_in(other_, use);",
            "    if (p == nullptr) {\n      record_in(other_, use);",
            finder="policies",
        ),
        Mutant(
            "trim reaches only the first resource",
            "policy/fallback_to.hpp",
            "std::size_t const given = trim_one(other_, keep_bytes > first ? keep_bytes - first : 0);",
            "std::size_t const given = 0 * first;",
            finder="policies",
        ),
        Mutant(
            "a fallback's blocks are unowned",
            "policy/fallback_to.hpp",
            "{ return l.owns(p); };\n    return of_each(ask, [](bool a, bool b) { return a || b; });",
            "{ return l.owns(p); };\n    return of_each(ask, [](bool a, bool b) { return a || (b && false); });",
            finder="policies",
        ),
        Mutant(
            "record_stream passes the block without its fences",
            "policy/fenced.hpp",
            "detail::record_stream_call{fences_.whole_of(p, alignment),",
            "detail::record_stream_call{p,",
            finder="policies",
        ),
        Mutant(
            "a block freed without a stream stays recorded as live",
            "policy/traced.hpp",
            "    note_free(p);\n    next.deallocate(r, p);",
            "    if (!r.is_synchronous()) note_free(p);\n    next.deallocate(r, p);",
            finder="policies",
        ),
        Mutant(
            "a block freed without a stream stays checked",
            "policy/with_history.hpp",
            "    log_.note_free(",
            "    if (!r.is_synchronous()) log_.note_free(",
            finder="policies",
        ),
    ],
    "a policy is written once for both pairs of calls": [
        Mutant(
            "a synchronous free is passed on in stream order",
            "policy/resource_adaptor.hpp",
            "deallocate_around({stream_ref{}, bytes, alignment, call_kind::synchronous}, p);",
            "deallocate_around({stream_ref{}, bytes, alignment, call_kind::stream_ordered}, p);",
            finder="tests/policy/resource_adaptor.cpp",
        ),
        Mutant(
            "a policy is called for a null that is freed",
            "policy/resource_adaptor.hpp",
            "if (p != nullptr) static_cast<Layer&>(*this).around_deallocate(r, p, next);",
            "static_cast<Layer&>(*this).around_deallocate(r, p, next);",
            finder="tests/policy/resource_adaptor.cpp",
        ),
    ],
    "a policy looks values up again after it released its lock": [
        Mutant(
            "fences are verified for a block that was freed after it was listed",
            "policy/fenced.hpp",
            "if (!is_fenced(c.b) || !(blocks_.find(c.p) == c.b)) continue;",
            "if (!is_fenced(c.b)) continue;",
            finder="policies",
        ),
        Mutant(
            "fences are verified before they are written",
            "policy/fenced.hpp",
            "    if (detail::is_of_capture(detail::wait_for_all_work(driver()))) return 0;\n    detail::own_stream const reading(driver());",
            "    detail::own_stream const reading(driver());",
            finder="policies",
        ),
        Mutant(
            "the lifetime of a stream is checked once",
            "policy/poisoned.hpp",
            "if (detail::life_of(driver(), on) != detail::stream_life::alive) {",
            "static bool const lost = detail::life_of(driver(), on) != detail::stream_life::alive;\n    if (lost) {",
            finder="policies",
        ),
        Mutant(
            "the capture state of a stream is checked once",
            "policy/fenced.hpp",
            "bool const fenced = !detail::is_capturing(driver(), r.stream);",
            "static bool const fenced = !detail::is_capturing(driver(), r.stream);",
            finder="policies",
        ),
        Mutant(
            "a stream of another device is accepted",
            "policy/checked.hpp",
            "      return driver().is_of_other_device(stream);\n",
            "      return false;\n",
            finder="tests/policy/checked.cpp",
        ),
        Mutant(
            "a use on another stream is removed before the fences are verified",
            "policy/checked.hpp",
            "      b->used_elsewhere = true;\n",
            "",
            finder="policies",
        ),
    ],
    "the counts of a policy return to zero": [
        Mutant(
            "a block freed without a stream stays in the budget",
            "policy/limited.hpp",
            "    next.deallocate(r, p);\n    this->budget_.give(counted(r));",
            "    next.deallocate(r, p);\n    if (!r.is_synchronous()) this->budget_.give(counted(r));",
            finder="policies",
        ),
        Mutant(
            "a block is counted before its allocation, and a refusal keeps the count",
            "policy/tracked.hpp",
            "    void* p = nullptr;\n    try {\n      p = allocate();\n    } catch (out_of_memory const&) {\n"
            "      numbers_.count_refusal();",
            "    void* p = nullptr;\n    try {\n      p = allocate();\n    } catch (out_of_memory const&) {\n"
            "      numbers_.count_allocation(rounded, bytes, group_of(bytes));\n      numbers_.count_refusal();",
            finder="policies",
        ),
    ],
    "a sleeping pool keeps addresses and contents, and gives no block out": [
        Mutant(
            "pool_asleep loses its type in a policy that changes the report",
            "core/error.hpp",
            "    throw_same(report);\n",
            "",
            finder="policies",
        ),
        Mutant(
            "a block freed while the pool sleeps goes to the thread's cache",
            "pool/front/front.hpp",
            """    if (closed_) {
      cache.lock.close();""",
            """    if (false) {
      cache.lock.close();""",
            finder="tests/raii/sleep.cpp",
        ),
        Mutant(
            "blocks in a thread's cache keep their handles while the pool sleeps",
            "pool/front/front.hpp",
            """    remote_barrier();
    for (auto const& cache : caches_) empty(*cache);
  }
  void open_again""",
            """    remote_barrier();
    for (auto const& cache : caches_) cache->lock.close();
  }
  void open_again""",
            finder="tests/raii/sleep.cpp",
        ),
        Mutant(
            "a stretch of live bytes that ends with its handle is not kept",
            "pool/growth/kept_ranges.hpp",
            "    end = min_of(node.end(), handle_end);\n  }\n  if (begin != end)",
            "    end = min_of(node.end(), handle_end);\n  }\n  if (begin != end && end != handle_end)",
            finder="tests/raii/sleep.cpp",
        ),
        Mutant(
            "views are not mapped again",
            "pool/growth/page_sleep.hpp",
            "      views_.map_all();\n",
            "",
            finder="tests/raii/sleep.cpp",
        ),
        Mutant(
            "a failed wake keeps the handles that it created",
            "pool/growth/page_sleep.hpp",
            "// release() must not unmap a view then\n      (void)release();\n",
            "// release() must not unmap a view then\n",
            finder="tests/raii/sleep.cpp",
        ),
        Mutant(
            "a failed wake drops the contents",
            "pool/growth/page_sleep.hpp",
            "// release() must not unmap a view then\n      (void)release();\n",
            "// release() must not unmap a view then\n      (void)release();\n      forget();\n",
            finder="tests/raii/sleep.cpp",
        ),
        Mutant(
            "memory is unmapped before the copies to the host are done",
            "pool/growth/page_sleep.hpp",
            "if (next != first && are_saved && !copy_is_done(saved_[next - 1])) {",
            "if (next != first && !are_saved) {",
            finder="tests/raii/sleep.cpp",
        ),
        Mutant(
            "the first copy that is complete counts for all",
            "pool/growth/host_copy.hpp",
            "      done_ = marks_[i].position;",
            "      done_ = bytes_;",
            finder="tests/pool/host_copy.cpp",
        ),
        Mutant(
            "a failed wake gives back what was never saved",
            "pool/growth/page_sleep.hpp",
            "        keeps_handles_ = true;  // what a failing restore() must not destroy\n",
            "",
            finder="tests/raii/sleep.cpp",
        ),
        Mutant(
            "the last staging buffer but one is not moved to ordinary memory",
            "pool/growth/host_copy.hpp",
            "      store(buffers_[current_ ^ 1]);\n",
            "",
            finder="tests/pool/host_copy.cpp",
        ),
        Mutant(
            "a staging buffer is filled while the device still reads it",
            "pool/growth/host_copy.hpp",
            "        wait(*b);\n        fetch",
            "        fetch",
            finder="tests/pool/host_copy.cpp",
        ),
        Mutant(
            "memory of handles whose blocks were freed meanwhile is taken again",
            "pool/growth/page_growth.hpp",
            "    if (!a.keeps_addresses) (void)drop(a, hot, 0);\n",
            "",
            finder="tests/raii/sleep.cpp",
        ),
        Mutant(
            "discarded fences are verified",
            "policy/fenced.hpp",
            "if (!slept && where == contents::discarded) lost_ = numbered_;",
            "(void)slept;",
            finder="tests/raii/sleep.cpp",
        ),
        Mutant(
            "a block is poisoned while there is no memory behind it",
            "policy/poisoned.hpp",
            "if (!used_elsewhere_.erase(p) && !detail::sleeps(this->upstream())) fill_freed(r, p);",
            "if (!used_elsewhere_.erase(p)) fill_freed(r, p);",
            finder="tests/raii/sleep.cpp",
        ),
        Mutant(
            "graph memories stay asleep if their pool cannot sleep",
            "pool/pool_parts.hpp",
            "      graphs_.for_each_pool([](auto& part) { part.cancel_sleep(); });\n",
            "",
            finder="tests/raii/sleep_together.cpp",
        ),
        Mutant(
            "graph memories keep their memory if their pool cannot be woken",
            "pool/pool_parts.hpp",
            "      graphs_.for_each_pool([](auto& part) { (void)part.release_asleep(); });\n",
            "",
            finder="tests/raii/sleep_together.cpp",
        ),
        Mutant(
            "trim gives back a handle that wake is creating",
            "pool/growth/page_growth.hpp",
            "!map_.is_open() || is_moving_ || counters_.reserved",
            "!map_.is_open() || counters_.reserved",
            finder="tests/raii/sleep_together.cpp",
        ),
        Mutant(
            "a pool falls asleep while a graph is captured",
            "pool/pool_parts.hpp",
            "    if (capture_gate::has_captures()) throw cuda_error",
            "    if (false) throw cuda_error",
            finder="tests/raii/sleep_together.cpp",
        ),
    ],
    "compact changes no live byte and no address": [
        Mutant(
            "the stream of the copies is made under the hot lock",
            "pool/heap.hpp",
            """      own_stream const stream(growth.source().driver());  // not made or destroyed under the hot lock
      hot_lock held(hot);
""",
            """      hot_lock held(hot);
      own_stream const stream(growth.source().driver());
""",
        ),
        Mutant(
            "a view keeps one slot for a handle that was divided",
            "pool/growth/page_compact.hpp",
            "    views_.for_each_place(h, [&](std::uintptr_t at) { places.push_back(at); });\n",
            "",
            finder="tests/raii/compact.cpp",
        ),
        Mutant(
            "the gaps of a divided handle are left out of the view",
            "pool/growth/page_views.hpp",
            "v.slots[at + i] = view_slot{handles[i], bytes_of(i)};",
            "v.slots[at + i] = view_slot{handles[i], handles[i] != 0 ? bytes_of(i) : 0};",
            finder="tests/raii/compact.cpp",
        ),
        Mutant(
            "a granule with the end of a live block is given back",
            "pool/growth/page_compact.hpp",
            "std::uintptr_t const to = align_up(min_of(node.end(), end), grain);",
            "std::uintptr_t const to = align_down(min_of(node.end(), end), grain);",
            finder="tests/raii/compact.cpp",
        ),
        Mutant(
            "a failed compact does not map the old handle again",
            "pool/growth/page_compact.hpp",
            "for (; mapped < places.size(); ++mapped) map(places[mapped], old.bytes, old.id);",
            "",
            finder="tests/raii/compact.cpp",
        ),
        Mutant(
            "the free granules that were given back stay in the free lists",
            "pool/growth/page_compact.hpp",
            "    for (range_ref const r : carved) addresses_.give_back(a, r);\n",
            "    for (range_ref const r : carved) a.make_free(r, a.ranges[r].domain, a.ranges[r].epoch);\n",
            finder="tests/raii/compact.cpp",
        ),
        Mutant(
            "a handle that compact could not map stays unmapped",
            "pool/pool_parts.hpp",
            "      if (heap_.growth.unmap_incomplete()) refuse_allocations();\n",
            "",
            finder="tests/raii/compact.cpp",
        ),
        Mutant(
            "a failed wake destroys the handles that compact left unmapped",
            "pool/growth/page_sleep.hpp",
            "    if (keeps_handles_) {",
            "    if (false) {",
            finder="tests/raii/compact.cpp",
        ),
    ],
    "a block is shared with another process whole, in stream order, or not at all": [
        Mutant(
            "an imported handle is not given back",
            "raii/imported_block.hpp",
            "    (void)driver_.destroy_pages(handle);\n    check(s);",
            "    check(s);",
            finder="tests/raii/sharing.cpp",
        ),
        Mutant(
            "an import stays mapped",
            "raii/imported_block.hpp",
            "i < mapped_; at += sizes_[i], ++i)",
            "i + 1 < mapped_; at += sizes_[i], ++i)",
            finder="tests/raii/sharing.cpp",
        ),
        Mutant(
            "an import is unmapped while work uses it",
            "raii/imported_block.hpp",
            "if (mapped_ != 0 && is_of_capture(wait_past_captures(driver_))) return;",
            "",
            finder="tests/raii/sharing.cpp",
        ),
        Mutant(
            "the offset in the first handle is lost",
            "raii/imported_block.hpp",
            "return mapping_.data(offset_);",
            "return mapping_.data(0);",
            finder="tests/raii/sharing.cpp",
        ),
        Mutant(
            "another machine's description is accepted",
            "raii/imported_block.hpp",
            "d.exporter.machine != here.machine",
            "d.exporter.machine != here.machine && d.exporter.machine.empty()",
            finder="tests/raii/sharing.cpp",
        ),
        Mutant(
            "a block of another device is accepted",
            "raii/imported_block.hpp",
            "if (own != d.device) {",
            "if (own.empty()) {",
            finder="tests/raii/sharing.cpp",
        ),
        Mutant(
            "descriptors of another export are accepted",
            "raii/imported_block.hpp",
            "header.number == of_.number && header.first == first",
            "header.first == first",
            finder="tests/raii/sharing.cpp",
        ),
        Mutant(
            "too few descriptors are accepted",
            "raii/imported_block.hpp",
            "descriptors.size() == (by_fabric ? 0 : header.count)",
            "descriptors.size() <= (by_fabric ? 0 : header.count)",
            finder="tests/raii/sharing.cpp",
        ),
        Mutant(
            "an importer does not wait for the exporter's stream",
            "raii/exported_block.hpp",
            "      ready_->record(*ready);\n",
            "",
            finder="tests/raii/sharing.cpp",
        ),
        Mutant(
            "the exporter waits for its own event",
            "raii/exported_block.hpp",
            "event_of(done_).wait(stream);",
            "event_of(ready_).wait(stream);",
            finder="tests/raii/sharing.cpp",
        ),
        Mutant(
            "an export may lie beside other blocks of a handle",
            "raii/exported_block.hpp",
            "if (!begins || !ends) refuse(detail::not_side_by_side);",
            "(void)begins, (void)ends;",
            finder="tests/raii/sharing.cpp",
        ),
        Mutant(
            "changed bytes of a description are accepted",
            "raii/block_description.hpp",
            "if (sum != checksum(body)) refuse_damaged();",
            "",
            finder="tests/raii/sharing.cpp",
        ),
        Mutant(
            "a process that was killed counts as alive until its parent asks",
            "raii/block_description.hpp",
            "is_zombie && threads <= 1}",
            "is_zombie && threads < 1}",
            finder="tests/raii/sharing.cpp",
        ),
        Mutant(
            "a process with the number of an earlier one counts as that one",
            "raii/block_description.hpp",
            "return found.is_dead || found.started != id.started;",
            "return found.is_dead;",
            finder="tests/raii/sharing.cpp",
        ),
        Mutant(
            "the end of the exporter is not noticed",
            "raii/imported_block.hpp",
            "[&] { return detail::has_ended(exporter_); }",
            "[&] { return false; }",
            finder="tests/raii/sharing.cpp",
        ),
        Mutant(
            "an error leaves the other process waiting",
            "raii/imported_block.hpp",
            "    detail::await_answer(peer);\n  } catch (...) {\n    peer.shut_down();",
            "    detail::await_answer(peer);\n  } catch (...) {",
            finder="tests/raii/sharing.cpp",
        ),
        Mutant(
            "an exported descriptor stays open",
            "raii/exported_block.hpp",
            "      exported_pages const closed(exported);\n",
            "",
            finder="tests/raii/sharing.cpp",
        ),
        Mutant(
            "a dma-buf of the first of several handles",
            "raii/exported_block.hpp",
            "if (segments.size() != 1) {",
            "if (segments.empty()) {",
            finder="tests/raii/sharing.cpp",
        ),
        Mutant(
            "registered pages are not pinned",
            "raii/page_registrations.hpp",
            "e.held.push_back(std::move(made));",
            "e.held.push_back(std::move(made));\n    { auto const ended = std::move(e.held.back().pin); }",
            finder="tests/raii/page_registrations.cpp",
        ),
        Mutant(
            "a larger block counts as registered by the first of its handles",
            "raii/page_registrations.hpp",
            "return at - begin < e.bytes && bytes <= e.bytes - (at - begin) ? &e : nullptr;",
            "return at - begin < e.bytes && bytes != 0 ? &e : nullptr;",
            finder="tests/raii/page_registrations.cpp",
        ),
        Mutant(
            "a registration that is in use is ended for a larger one",
            "raii/page_registrations.hpp",
            "for (registration& old : i->second.held) e.held.push_back(std::move(old));",
            "for (registration& old : i->second.held) library_.remove(old.registered);",
            finder="tests/raii/page_registrations.cpp",
        ),
        Mutant(
            "overlapping blocks are registered again each time",
            "raii/page_registrations.hpp",
            "extent const all = joined(mapped_around(pin, where));",
            "extent const all = mapped_around(pin, where);",
            finder="tests/raii/page_registrations.cpp",
        ),
        Mutant(
            "a block whose first handle is registered counts as registered",
            "raii/page_registrations.hpp",
            "if (bytes <= covered) return true;",
            "if (bytes <= covered || bytes > 4096) return true;",
            finder="tests/raii/page_registrations.cpp",
        ),
        Mutant(
            "the handles of a block get one registration where each needs its own",
            "raii/page_registrations.hpp",
            "for (memory_segment const& s : pin.segments(where)) (void)ensure(s.address, s.bytes, where);",
            "(void)ensure(p, bytes, where);",
            finder="tests/raii/page_registrations.cpp",
        ),
        Mutant(
            "segments that became too small are kept",
            "pool/ladder.hpp",
            "        give_back_spare();\n",
            "",
            finder="tests/pool/growth.cpp",
        ),
        Mutant(
            "a segment is given back while work uses it",
            "pool/arena/arena.hpp",
            "return node.domain == neutral || node.epoch <= streams[node.domain].completed;",
            "return node.domain == neutral || node.epoch != 0 || streams[node.domain].completed == 0;",
        ),
        Mutant(
            "spare segments are given back during a capture",
            "pool/ladder.hpp",
            "if (capture_gate::has_captures()) return;\n    if (heap_.counters.reserved",
            "if (heap_.counters.reserved",
            finder="tests/pool/growth.cpp",
        ),
        Mutant(
            "neighbours in two handles are joined although each block must lie in one",
            "pool/arena/arena.hpp",
            "(joins_handles || !begins_handle(second.address))",
            "(joins_handles || begins_handle(second.address) || !begins_handle(second.address))",
        ),
        Mutant(
            "a block that must lie in one handle gets handles of the usual size",
            "pool/ladder.hpp",
            "request_.largest_handle = max_request_bytes;",
            "",
            finder="tests/pool/growth.cpp",
        ),
        Mutant(
            "a range is extended by a second handle although each block must lie in one",
            "pool/growth/page_growth.hpp",
            "request.extend && a.joins_handles ? extendable(a, request) : extension{});",
            "request.extend ? extendable(a, request) : extension{});",
            finder="tests/pool/growth.cpp",
        ),
        Mutant(
            "a forked child unmaps a block of the parent's import",
            "raii/imported_block.hpp",
            "if (range_ == nullptr || !process_.may_use(driver_)) return;",
            "if (range_ == nullptr) return;",
            finder="tests/raii/sharing.cpp",
        ),
        Mutant(
            "a forked child destroys the parent's events",
            "raii/shared_event.hpp",
            "if (event_ != nullptr && process_.may_use(driver_))",
            "if (event_ != nullptr)",
            finder="tests/raii/sharing.cpp",
        ),
        Mutant(
            "a forked child ends the parent's registrations",
            "raii/page_registrations.hpp",
            "if (process_.may_use(memory_.driver()))",
            "if (size() != 0)",
            finder="tests/raii/page_registrations.cpp",
        ),
        Mutant(
            "pages are not created with the type that can be exported",
            "source/cuda_pages.hpp",
            "return driver_.create_pages(bytes, type_, handle);",
            "return driver_.create_pages(bytes, allocation_handle_type::none, handle);",
            finder="tests/raii/sharing.cpp",
        ),
        Mutant(
            "a fabric that is missing is not replaced",
            "source/cuda_pages.hpp",
            "        return available(allocation_handle_type::posix_file_descriptor);",
            "        return allocation_handle_type::none;",
            finder="tests/raii/sharing.cpp",
        ),
    ],
    "memory of a captured graph is given to nothing else until its owner ends": [
        Mutant(
            "a captured stream keeps its caches on all threads",
            "pool/graph/graph_captures.hpp",
            "    front_.drop_stream(id);\n",
            "",
            finder="tests/raii/graph_memory.cpp",
        ),
        Mutant(
            "a capture counts on a block that another thread has freed",
            "pool/graph/capture_cache.hpp",
            "return changes.load(std::memory_order_acquire) != seen_;",
            "return false;",
            finder="tests/pool/graph_memories.cpp",
        ),
        Mutant(
            "blocks in the cache of a capture stay noted after its scope",
            "pool/graph/graph_memories.hpp",
            "if (captures_.end_cached(owner, number)) clear(owner);",
            "(void)captures_.end_cached(owner, number);",
            finder="tests/raii/graph_memory.cpp",
        ),
        Mutant(
            "a block that the cache of a capture does not know is not noted",
            "pool/graph/graph_memories.hpp",
            "if (!cache.take(p)) note(p",
            "if (!cache.take(p) && cache.is_old()) note(p",
            finder="tests/raii/graph_memory.cpp",
        ),
        Mutant(
            "a capture empties only the caches of its own thread",
            "pool/front/front.hpp",
            "if (!cache->may_have(id)) continue;",
            "if (cache.get() != own) continue;",
            finder="tests/raii/graph_memory.cpp",
        ),
        Mutant(
            "the driver is asked for the identity of a captured stream",
            "driver/captured_handles.hpp",
            "  if (!captured) return false;",
            "  return false;",
            finder="tests/raii/graph_memory.cpp",
        ),
        Mutant(
            "the thread of a scope stays on its warm path, so that streams that joined are not seen",
            "pool/graph/graph_captures.hpp",
            "    made.watched = front_.watch_this_thread();\n",
            "",
            finder="tests/raii/graph_memory.cpp",
        ),
        Mutant(
            "a block of the pool that a capture frees returns to the pool",
            "pool/cache_misses.hpp",
            "    if (graphs_.is_watching() && graphs_.keep_if_captured(id, stream, p, bytes, alignment)) [[unlikely]]\n      return;\n",
            "",
            finder="tests/raii/graph_memory.cpp",
        ),
        Mutant(
            "an ended capture leaves its marks at the epoch of the next stream in its place",
            "pool/order/reclaim.hpp",
            "domain.freed = domain.completed = domain.epoch++;",
            "domain.freed = domain.completed = domain.epoch;",
            finder="tests/raii/graph_memory.cpp",
        ),
        Mutant(
            "an owner's memory goes back before the device has finished",
            "pool/graph/graph_memories.hpp",
            "      if (!p->end.is_complete(wait)) continue;\n",
            "",
            finder="tests/raii/graph_memory.cpp",
        ),
        Mutant(
            "an owner's memory goes back while blocks of it are live",
            "pool/graph/graph_memories.hpp",
            "p->is_over && (p->references == 0 || !p->kept.empty()) &&",
            "p->is_over &&",
            finder="tests/raii/graph_memory.cpp",
            more=(("!= &gone || gone.references != 0 || !gone.kept.empty()) continue;", "!= &gone) continue;"),),
        ),
        Mutant(
            "a block that one graph's capture frees for another returns to its owner at once",
            "pool/graph/graph_memories.hpp",
            "at.kept_as != 0 && (at.owner != owner || at.is_guess);",
            "at.kept_as != 0 && at.is_guess;",
            finder="tests/raii/graph_memory.cpp",
        ),
        Mutant(
            "a block of an owner that was allocated outside a capture is freed into the pool",
            "pool/graph/graph_memories.hpp",
            "    note(p, from, as, bytes, alignment, nullptr);\n",
            "",
            finder="tests/raii/graph_memory.cpp",
        ),
        Mutant(
            "graph_memory::allocate inside the owner's capture does not follow the order of its stream",
            "pool/graph/graph_memories.hpp",
            "at.owner == &from ? at.kept_as : neutral_id",
            "neutral_id",
            finder="tests/raii/graph_memory.cpp",
        ),
        Mutant(
            "another thread's mark of all work is made during a capture",
            "driver/capture_gate.hpp",
            "    while (now < one_capture) {\n      if (state.compare_exchange_weak(now, now + one_call, std::memory_order_acquire)) return true;",
            "    while (true) {\n      if (state.compare_exchange_weak(now, now + one_call, std::memory_order_acquire)) return true;",
            finder="tests/driver/capture_gate.cpp",
        ),
        Mutant(
            "a block waiting for a recorded use returns to a capture that has ended",
            "pool/heap.hpp",
            "if (is_capture_stream(id) && !kept_as.has(id)) [[unlikely]]",
            "if (is_capture_stream(id) && kept_as.has(id) && id == 0) [[unlikely]]",
            finder="tests/raii/graph_memory.cpp",
        ),
        Mutant(
            "two streams of a capture share what they freed",
            "pool/graph/graph_captures.hpp",
            "of.kept_as = capture_stream_id(++last_identity_);",
            "of.kept_as = capture_stream_id(of.capture);",
            finder="tests/raii/graph_memory.cpp",
        ),
        Mutant(
            "two ended owners that keep blocks of each other hold them forever",
            "pool/graph/graph_memories.hpp",
            "bool const gave_kept = give_back_all_kept(whole, *p);",
            "bool const gave_kept = p->references == 0 && give_back_all_kept(whole, *p);",
            finder="tests/raii/graph_memory.cpp",
        ),
        Mutant(
            "only the first of several owners keeps a block that their graphs use",
            "pool/graph/graph_memories.hpp",
            "if (by != nullptr) b.users.add(*by);",
            "if (by != nullptr && b.users.empty()) b.users.add(*by);",
            finder="tests/raii/graph_memory.cpp",
        ),
        Mutant(
            "a pool that ends does not wait for a capture on another thread",
            "pool/cache_misses.hpp",
            "if ((tries != 0 && !in_scope) || !capture_gate::wait_for_captures()) break;",
            "if (tries != 0 && !in_scope) break;",
            finder="tests/raii/graph_memory.cpp",
        ),
        Mutant(
            "a pool that ends forgets that a capture refused to mark its recorded uses",
            "pool/cache_misses.hpp",
            "if (done && !waiting_.waits_for_capture()) return;",
            "if (done) return;",
            finder="tests/raii/graph_memory.cpp",
        ),
        Mutant(
            "a pool that ends forgets that a capture refused to mark its replays",
            "pool/cache_misses.hpp",
            "return done && graphs_done;",
            "return done;",
            finder="tests/raii/graph_memory.cpp",
        ),
    ],
    "a pool works where the device has no virtual memory management": [
        Mutant(
            "only a tool makes a pool use blocks",
            "pool/inspection/described_source.hpp",
            "return !has_pages_ || regions_->has_tool();",
            "return regions_->has_tool();",
            finder="tests/pool/without_pages.cpp",
        ),
        Mutant(
            "a pool without pages falls asleep",
            "pool/pool_parts.hpp",
            "    if (!heap_.is_lost()) require_pages(heap_.growth.source(), sleep_refused);\n",
            "",
            finder="policies",
        ),
        Mutant(
            "a pool without pages keeps its free segments",
            "pool/growth/page_or_block_growth.hpp",
            "return uses_blocks() ? segments_.shrink(a, hot, keep) :",
            "return uses_blocks() ? 0 :",
            finder="tests/pool/without_pages.cpp",
        ),
        Mutant(
            "a pool without pages does not know its memory",
            "pool/growth/page_or_block_growth.hpp",
            "return uses_blocks() ? segments_.contains(address) :",
            "return uses_blocks() ? false :",
            finder="tests/pool/without_pages.cpp",
        ),
        Mutant(
            "a pool is made over a layer that has neither pages nor blocks",
            "pool/heap.hpp",
            "      require_pages(growth.source(), layer_keeps_blocks);\n",
            "      static_cast<void>(0);\n",
            finder="tests/pool/without_pages.cpp",
        ),
        Mutant(
            "pieces of blocks count as one",
            "pool/growth/memory_left.hpp",
            "puts_together = layer.uses_pages();",
            "puts_together = true;",
            finder="tests/pool/without_pages.cpp",
        ),
        Mutant(
            "plain blocks do not count against the limit",
            "policy/limited.hpp",
            "    return within_budget(bytes, {stream_ref{}, bytes, default_alignment},\n                         [&] { return this->upstream().allocate_plain(bytes); });",
            "    return this->upstream().allocate_plain(bytes);",
            finder="tests/pool/without_pages.cpp",
        ),
        Mutant(
            "plain blocks take the headroom",
            "policy/headroom.hpp",
            "    return beside_headroom({stream_ref{}, bytes, default_alignment},\n                           [&] { return this->upstream().allocate_plain(bytes); });",
            "    return this->upstream().allocate_plain(bytes);",
            finder="tests/pool/without_pages.cpp",
        ),
        Mutant(
            "a pool that a tool watches reports pages",
            "pool/pool_parts.hpp",
            "    if (heap_.uses_plain_blocks()) return \"cudaMalloc\";\n",
            "",
            finder="tests/pool/without_pages.cpp",
        ),
        Mutant(
            "the wrong resource of two reports its memory",
            "policy/fallback_to.hpp",
            "[](char const* first, char const*) { return first; }",
            "[](char const*, char const* second) { return second; }",
            finder="tests/pool/without_pages.cpp",
        ),
        Mutant(
            "a device without memory pools is not noticed",
            "source/cuda_async.hpp",
            "if (!driver.has_memory_pools())",
            "if (false)",
            finder="tests/source/sim_sources.cpp",
        ),
    ],
}
