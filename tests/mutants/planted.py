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
    "another stream waits for the work on what it takes": [
        Mutant(
            "skip the wait",
            "pool/order/ordering.hpp",
            """driver_.is_capturing(stream, capturing).ok() && !capturing &&
             driver_.wait_event(stream, event).ok();""",
            "driver_.is_capturing(stream, capturing).ok() && !capturing && event != nullptr;",
            short=True,
        ),
        Mutant(
            "steal without waiting where the work is nearly done",
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
            "order the wrong way round",
            "pool/order/ordering.hpp",
            """    stream_ref const stream = a.streams[taker].stream;
    event_handle const event = a.streams[owner].event;""",
            """    stream_ref const stream = a.streams[owner].stream;
    event_handle const event = a.streams[owner].event;""",
        ),
        Mutant(
            "record too early: later frees pass for covered",
            "pool/order/ordering.hpp",
            "std::uint64_t const mark = domain.epoch++;",
            "std::uint64_t const mark = domain.epoch;",
        ),
        Mutant(
            "the newest frees need no event of their own",
            "pool/order/ordering.hpp",
            "if (domain.recorded < domain.freed) {",
            "if (domain.recorded + 1 < domain.freed) {",
        ),
        Mutant(
            "an event that is not ready passes for done",
            "pool/order/ordering.hpp",
            "done = driver_.query_event(domain.event).ok();",
            "done = driver_.query_event(domain.event).kind != failure::unloading;",
        ),
        Mutant(
            "take what no event covers yet, too",
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
            "neutral before it is finished",
            "pool/order/reclaim.hpp",
            "if (domain.free_bytes() != 0) space.hand_over(d, neutral, domain.completed);",
            "if (domain.free_bytes() != 0) space.hand_over(d, neutral, domain.recorded);",
        ),
    ],
    "a free is marked with its own stream's work": [
        Mutant(
            "freed into the domain of the stream that allocated it",
            "pool/arena/arena.hpp",
            "make_free(piece, giver, mark);",
            "make_free(piece, ranges[piece].domain, streams[ranges[piece].domain].mark());",
        ),
        Mutant(
            "joined ranges keep the older mark",
            "pool/arena/arena.hpp",
            "ranges[first].epoch = max_of(ranges[first].epoch, ranges[second].epoch);",
            "ranges[first].epoch = min_of(ranges[first].epoch, ranges[second].epoch);",
        ),
        Mutant(
            "an emptied run is free without a mark",
            "pool/arena/arena.hpp",
            "make_free(body, owner, streams[owner].mark());",
            "make_free(body, owner, 0);",
        ),
        Mutant(
            "a block of another stream's run goes straight home",
            "pool/arena/arena.hpp",
            "if (giver != neutral && runs[r].domain != giver) {",
            "if (giver != neutral && runs[r].domain == neutral) {",
            short=True,
        ),
        Mutant(
            "returned blocks go home once an event is recorded",
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
           first.domain == second.domain && first.where == second.where;""",
            """    return first.state == range_state::free && second.state == range_state::free &&
           first.where == second.where;""",
        ),
        Mutant(
            "magazines are returned to the heap as unowned",
            "pool/front/front.hpp",
            "heap_.give_back(of_stream.id, of_stream.stream, k, m.blocks, std::exchange(m.count, 0));",
            "heap_.give_back(neutral_id, {}, k, m.blocks, std::exchange(m.count, 0));",
        ),
    ],
    "a destroyed stream's work is waited for, and its handle is not used": [
        Mutant(
            "reuse a destroyed stream's handle",
            "pool/order/mark_work.hpp",
            "driver.identify(stream_ref::from(stream.handle()), now).ok() && now == stream.id();",
            "driver.identify(stream_ref::from(stream.handle()), now).ok() && now != 0;",
        ),
        Mutant(
            "a destroyed stream passes for done",
            "pool/order/ordering.hpp",
            "done = driver_.synchronize_device().ok();",
            "done = domain.gone;",
        ),
        Mutant(
            "the pool ends before its streams' work",
            "pool/heap.hpp",
            """    finish_all(space_, order, may_release(held));
    // A stream whose end the driver does not report: its work must not see its memory unmapped.
    if ((has_unfinished(space_) || asks_for_device) &&""",
            """    // A stream whose end the driver does not report: its work must not see its memory unmapped.
    if (asks_for_device &&""",
        ),
    ],
    "record_stream() holds a block back until all its uses are over": [
        Mutant(
            "forget the use on the second of two streams",
            "pool/order/recorded_streams.hpp",
            "if (uses_[u].stream == id) return;",
            "if (b != 0) return;",
        ),
        Mutant(
            "one use that is over passes for all",
            "pool/order/recorded_streams.hpp",
            "if (--blocks_[b].pending != 0) continue;",
            "if (std::exchange(blocks_[b].pending, 0u) == 0) continue;",
        ),
        Mutant(
            "a use that cannot be marked now is forgotten",
            "pool/order/recorded_streams.hpp",
            "bool const over = result == mark_result::gone && driver_.synchronize_device().ok();",
            "bool const over = result != mark_result::marked;",
        ),
        Mutant(
            "a use on the allocating stream needs no event",
            "pool/order/recorded_streams.hpp",
            "if (uses_[u].stream == freed.stream.id()) {",
            "if (queues_[uses_[u].lane].stream.handle() == freed.stream.handle()) {",
        ),
        Mutant(
            "only the first of the uses that share an event is marked again",
            "pool/order/recorded_streams.hpp",
            "if (in.unmarked != 0) join(g, in.unmarked);",
            "",
        ),
        Mutant(
            "a stream's queue is used again one use too early",
            "pool/order/recorded_streams.hpp",
            "if (--queues_[l].users != 0) return;",
            "if (--queues_[l].users > 1) return;",
        ),
        Mutant(
            "an event that is not done is over where nobody waits",
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
    "a capture is left alone": [
        Mutant(
            "record into what is captured",
            "pool/order/mark_work.hpp",
            "driver.is_capturing(stream, capturing).ok() && !capturing && driver.record_event(event, stream).ok();",
            "driver.is_capturing(stream, capturing).ok() && driver.record_event(event, stream).ok();",
        ),
        Mutant(
            "a wait is captured",
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
    "streams and threads that end are forgotten, and none too early": [
        Mutant(
            "a forgotten stream's identity leads to the next stream's domain",
            "pool/arena/stream_order.hpp",
            "    (void)by_id_.erase(domain.id);\n",
            "",
        ),
        Mutant(
            "a thread keeps its place for a pool that ended",
            "pool/front/thread_cache.hpp",
            "for (entry const& e : left) place(places, e);",
            "for (entry const& e : entries_) place(places, e);",
            finder="tests/pool/thread_cache.cpp",
        ),
    ],
    "magazines hold each block once, of its class, and give all back": [
        Mutant(
            "forget the magazines of a thread that ends",
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
            "give_back(of_stream.id, of_stream.stream, k, m.blocks, std::exchange(m.count, 0));",
            "give_back(of_stream.id, of_stream.stream, k, m.blocks, (std::exchange(m.count, 0) + 1) / 2);",
        ),
        Mutant(
            "the younger half of a full magazine is kept twice",
            "pool/front/front.hpp",
            "for (std::uint32_t i = count; i < m.count; ++i) m.blocks[i - count] = m.blocks[i];",
            "",
        ),
        Mutant(
            "the oldest of too many streams is forgotten with its magazines",
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
            "a magazine of the wrong size class",
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
            "a magazine that fills does not say that it holds anything",
            "pool/front/front.hpp",
            "    cache.count_held(class_bytes(k), 0);\n    return true;",
            "    return true;",
        ),
    ],
    "ranges tile what the pool holds": [
        Mutant(
            "lose the remainder of a split",
            "pool/arena/arena.hpp",
            "if (ranges[r].bytes > bytes) put_in(split(r, bytes));",
            "if (ranges[r].bytes > bytes) ranges[split(r, bytes)].state = range_state::live;",
            short=True,
        ),
        Mutant(
            "what is skipped for alignment is lost",
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
            "alignment is left out of the fit",
            "pool/arena/range_index.hpp",
            "if (node.bytes < skipped || node.bytes - skipped < bytes) continue;",
            "if (node.bytes < skipped || node.bytes < bytes) continue;",
        ),
        Mutant(
            "an emptied run stays listed",
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
    "a view shows free handles, each once, while somebody is in it": [
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
            "a view shows one handle at both ends",
            "pool/growth/page_choice.hpp",
            "if (end_most.bytes != 0 && end_most.handle == start_most.handle) {",
            "if (end_most.bytes != 0 && end_most.address == start_most.address) {",
        ),
        Mutant(
            "a prolonged view shows a handle twice",
            "pool/growth/page_choice.hpp",
            "return after != nullptr && after->shows(p.handle);",
            "return after != nullptr && after->region == 0;",
        ),
        Mutant(
            "a view is prolonged beyond its place",
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
            "a view still shows a handle that was given back",
            "pool/growth/page_views.hpp",
            "          slot.handle = 0;\n",
            "",
        ),
        Mutant(
            "a handle is given back while a view maps it",
            "pool/growth/page_growth.hpp",
            "      views_.forget(leaves);\n",
            "",
        ),
    ],
    "what is given back is whole, free and finished": [
        Mutant(
            "unmap a page in use",
            "pool/growth/page_growth.hpp",
            "if (at_start && at_end) whole.push_back(p);",
            "if (at_start || at_end) whole.push_back(p);",
        ),
        Mutant(
            "a segment goes back with a live block at its end",
            "pool/growth/segment_growth.hpp",
            "if (a.ranges[r].previous == 0 && a.ranges[r].next == 0) whole = r;",
            "if (a.ranges[r].previous == 0) whole = r;",
        ),
        Mutant(
            "trim gives back what awaits a stream's work",
            "pool/growth/page_growth.hpp",
            "      if (d != neutral && a.streams[d].freed > a.streams[d].completed) continue;\n",
            "",
        ),
    ],
    "a refusal changes nothing": [
        Mutant(
            "drop a reclaim on the failure path",
            "pool/growth/page_growth.hpp",
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
    "counters say what is": [
        Mutant(
            "count twice",
            "pool/heap.hpp",
            "    if (uncached) count_uncached(held",
            "    if (uncached || r.size_class == class_count) count_uncached(held",
        ),
        Mutant(
            "what a thread had out is forgotten when it ends",
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
            "core/counter.hpp",
            "    current += amount;\n    allocated += amount;\n    peak = detail::max_of(peak, current);",
            "    peak = detail::max_of(peak, current);\n    current += amount;\n    allocated += amount;",
        ),
        Mutant(
            "a scope's peak is that of its end",
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
            "the peak of what is active leaves out what waits",
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
            "a large block waits among the small ones",
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
            "a range that is used stays counted as split",
            "pool/arena/arena.hpp",
            "    split_bytes_[static_cast<std::size_t>(node.where)] -= node.view_or_split * std::int64_t{range_grain};\n",
            "",
            finder="tests/report/stats_model.cpp",
        ),
        Mutant(
            "a reset of the totals leaves those of the driver's calls",
            "pool/pool_statistics.hpp",
            "  reset.creates = c.creates;\n",
            "",
            finder="tests/report/stats_model.cpp",
        ),
        Mutant(
            "a thread's room below the peak leaves out what waits",
            "policy/tracked_numbers.hpp",
            "max_of(most, active_peak_[k][g]) - waiting_[k][g]) - current(k, g);",
            "max_of(most, active_peak_[k][g])) - current(k, g);",
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
    "a snapshot shows what the pool holds": [
        Mutant(
            "what was asked of a block that waits is lost",
            "report/merge_history.hpp",
            "    block.requested = b.requested;\n",
            "",
            finder="tests/report/stats_model.cpp",
        ),
        Mutant(
            "a segment's requested bytes leave out what waits",
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
            "a buffer grows before the work on it",
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
            "a buffer changes its stream without a word",
            "raii/device_buffer.hpp",
            "    if (data_ != nullptr) detail::order_streams(driver(), stream, stream_);\n",
            "",
        ),
    ],
    "what was learned under a lock is void once it was released": [
        Mutant(
            "a free range that is extended stays free while its handles are made",
            "pool/growth/page_growth.hpp",
            "    if (e.range != 0) a.claim(e.range);\n",
            "",
            more=(("    if (e.range != 0) {\n      a.merge(", "    if (e.range != 0) {\n      a.claim(e.range);\n      a.merge("),),
        ),
        Mutant(
            "handles are chosen to be given back, and the lock released before they are taken",
            "pool/growth/page_growth.hpp",
            "    a.ranges.make_room(2 * most + 4);\n",
            "    a.ranges.make_room(2 * most + 4);\n    { unlocked const open(hot); }\n",
        ),
        Mutant(
            "pieces are chosen, and the lock released before a view is made of them",
            "pool/growth/page_growth.hpp",
            "        if (lack == 0) return (block = views_.build(",
            "        { unlocked const open(hot); }\n        if (lack == 0) return (block = views_.build(",
            short=True,
        ),
        Mutant(
            "pieces are used that were chosen before views were dropped",
            "pool/growth/page_growth.hpp",
            "          views_.drop_idle(a, hot, order, request.taker);\n          continue;\n",
            "          views_.drop_idle(a, hot, order, request.taker);\n",
        ),
        Mutant(
            "whether all work is done is asked once for all views",
            "pool/growth/page_views.hpp",
            """    for (std::size_t at = by_use_.size(); at-- > kept;) {
      if (is_idle(a, a.tenancies[by_use_[at]])) drop_view(a, hot, at);
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
            "pieces to prolong a view with are chosen before the lock is released",
            "pool/growth/page_views.hpp",
            "    carve(a, hot.held(), all, carved);\n",
            "    { unlocked const open(hot); }\n    carve(a, hot.held(), all, carved);\n",
        ),
        Mutant(
            "a segment is found free, and the lock released before it is taken",
            "pool/growth/segment_growth.hpp",
            "      range_ref const whole = found.get(hot.held());\n",
            "      { unlocked const open(hot); }\n      range_ref const whole = found.get(hot.held());\n",
        ),
        Mutant(
            "what is freed while an event is recorded passes for covered",
            "pool/order/ordering.hpp",
            "      domain.recorded = mark;\n",
            "      domain.recorded = domain.epoch++;\n",
        ),
        Mutant(
            "what is freed while an event is asked passes for done",
            "pool/order/ordering.hpp",
            "    if (!done) return progress::running;\n    domain.completed = max_of(domain.completed, covered);\n",
            "    if (!done) return progress::running;\n    domain.completed = max_of(covered, domain.freed);\n",
        ),
        Mutant(
            "what is freed while the host waits passes for done",
            "pool/order/ordering.hpp",
            "    if (done) domain.completed = max_of(domain.completed, covered);\n    return done;",
            "    if (done) domain.completed = max_of(covered, domain.freed);\n    return done;",
        ),
        Mutant(
            "the place of a stream is kept over a release of the lock",
            "pool/heap.hpp",
            "    looked_up_domain giver = domain_of(may_release(held), id, stream);\n    for (",
            "    looked_up_domain giver = domain_of(may_release(held), id, stream);\n"
            "    { unlocked const open{may_release(held)}; }\n    for (",
        ),
        Mutant(
            "a visitor leaves a thread's cache before it has emptied it",
            "pool/front/front.hpp",
            "    give_back(cache);\n    cache.lock.end_visit();\n",
            "    cache.lock.end_visit();\n    give_back(cache);\n",
        ),
        Mutant(
            "the cached large block is given back and removed from its place later",
            "pool/front/front.hpp",
            "    void* const p = std::exchange(at.of_stream->large_block, nullptr);\n",
            "    void* const p = at.of_stream->large_block;\n",
            more=(
                (
                    "at.of_stream->newest_large = batch.blocks[0];",
                    "at.of_stream->newest_large = batch.blocks[0], at.of_stream->large_block = nullptr;",
                ),
            ),
        ),
    ],
    "a call is made on its own device": [
        Mutant(
            "memory of the wrong device",
            "driver/sim/sim_driver.hpp",
            "return m.memory.create(device_.value, bytes, handle);",
            "return m.memory.create(current().value, bytes, handle);",
        ),
        Mutant(
            "the wrong device is waited for",
            "driver/sim/sim_driver.hpp",
            "return synchronized(m, m.streams.synchronize_device(device_.value));",
            "return synchronized(m, m.streams.synchronize_device(current().value));",
        ),
    ],
    "what moves keeps its elements and its order": [
        Mutant(
            "a slot is copied to before the work on its last batch is over",
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
            "elements are evicted before the work on them",
            "raii/evict_scope.hpp",
            "      detail::order_behind(stream_, buffers...);\n",
            "",
            finder="tests/raii/evict_scope.cpp",
        ),
        Mutant(
            "evicted elements come back behind the buffer's stream",
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
            "    if (!chunks_.empty()) detail::order_streams(memory_.driver(), stream, stream_);\n",
            "",
            finder="tests/raii/scratch.cpp",
        ),
    ],
    "a snapshot is whole, and a scope ends without a trace": [
        Mutant(
            "a snapshot that could not be written is left behind",
            "report/save_snapshot.hpp",
            "    int const why = errno != 0 ? errno : EIO;\n    (void)std::remove(path.c_str());\n",
            "    int const why = errno != 0 ? errno : EIO;\n",
            finder="tests/report/json.cpp",
        ),
        Mutant(
            "blocks that await a stream have no name",
            "report/take_snapshot.hpp",
            "  detail::name_awaiting(s.segments, record.events);\n",
            "",
            finder="tests/report/take_snapshot.cpp",
        ),
        Mutant(
            "the bound of the oldest budget_scope is the one in force",
            "policy/limited.hpp",
            "smallest = min_of(smallest, b->bytes);",
            "smallest = b->bytes;",
            finder="tests/raii/scopes.cpp",
        ),
        Mutant(
            "a device guard restores the device of one that has ended",
            "raii/device_guard.hpp",
            "      inner->before_ = before_;  // this guard's device is not to be restored any more\n",
            "",
            finder="tests/raii/device_guard.cpp",
        ),
    ],
    "a policy passes on what it is asked, to where it belongs": [
        Mutant(
            "a recorded use reaches the first resource, whosever the block is",
            "policy/fallback_to.hpp",
            "    if (is_of_other(p)) {\n      record_in(other_, use);",
            "    if (p == nullptr) {\n      record_in(other_, use);",
            finder="policies",
        ),
        Mutant(
            "trim reaches the first resource only",
            "policy/fallback_to.hpp",
            "std::size_t const given = trim_one(other_, keep_bytes > first ? keep_bytes - first : 0);",
            "std::size_t const given = 0 * first;",
            finder="policies",
        ),
        Mutant(
            "a fallback's blocks are unowned",
            "policy/fallback_to.hpp",
            "[](bool a, bool b) { return a || b; }",
            "[](bool a, bool b) { return a || (b && false); }",
            finder="policies",
        ),
        Mutant(
            "a recorded use names the block without its fences",
            "policy/fenced.hpp",
            "detail::record_stream_call{fences_.whole_of(p, alignment),",
            "detail::record_stream_call{p,",
            finder="policies",
        ),
        Mutant(
            "what is freed without a stream is still recorded as live",
            "policy/traced.hpp",
            "    if (p != nullptr) note_free(p);\n    upstream_.deallocate_sync(p, bytes, alignment);",
            "    upstream_.deallocate_sync(p, bytes, alignment);",
            finder="policies",
        ),
        Mutant(
            "what is freed without a stream is still watched",
            "policy/with_history.hpp",
            "    note_free(with_id({}), p);\n    upstream_.deallocate_sync(p, bytes, alignment);",
            "    upstream_.deallocate_sync(p, bytes, alignment);",
            finder="policies",
        ),
    ],
    "a policy asks again after it let go": [
        Mutant(
            "fences are verified of a block that was freed since it was listed",
            "policy/fenced.hpp",
            "if (!c.b.fenced || !(blocks_.find(c.p) == c.b)) continue;",
            "if (!c.b.fenced) continue;",
            finder="policies",
        ),
        Mutant(
            "fences are verified before they are drawn",
            "policy/fenced.hpp",
            "    (void)driver().synchronize_device();\n    detail::own_stream const reading(driver());",
            "    detail::own_stream const reading(driver());",
            finder="policies",
        ),
        Mutant(
            "whether a stream lives is decided once",
            "policy/poisoned.hpp",
            "if (detail::life_of(driver(), stream) != detail::stream_life::alive) {",
            "static bool const lost = detail::life_of(driver(), stream) != detail::stream_life::alive;\n      if (lost) {",
            finder="policies",
        ),
        Mutant(
            "whether a stream is captured is decided once",
            "policy/fenced.hpp",
            "bool const fenced = !is_capturing(stream);",
            "static bool const fenced = !is_capturing(stream);",
            finder="policies",
        ),
        Mutant(
            "a use on another stream is forgotten before the fences are verified",
            "policy/checked.hpp",
            "      b->used_elsewhere = true;\n",
            "",
            finder="policies",
        ),
    ],
    "a policy's counts come back": [
        Mutant(
            "what is freed without a stream stays in the budget",
            "policy/limited.hpp",
            "    this->upstream_.deallocate_sync(p, bytes, alignment);\n"
            "    if (p != nullptr) this->budget_.give(counted(bytes, alignment));",
            "    this->upstream_.deallocate_sync(p, bytes, alignment);",
            finder="policies",
        ),
        Mutant(
            "a block is counted before it is there, and a refusal leaves it",
            "policy/tracked.hpp",
            "    void* p = nullptr;\n    try {\n      p = allocate();\n    } catch (out_of_memory const&) {\n"
            "      numbers_.count_refusal();",
            "    void* p = nullptr;\n    try {\n      p = allocate();\n    } catch (out_of_memory const&) {\n"
            "      numbers_.count_allocation(rounded, bytes, group_of(bytes));\n      numbers_.count_refusal();",
            finder="policies",
        ),
    ],
}
