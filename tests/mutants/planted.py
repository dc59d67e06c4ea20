# SPDX-License-Identifier: Apache-2.0
# The planted bugs: each a small change of one header, of the kind that slips in unnoticed, by the promise it breaks.
# Above it: run.py. Below it: include/tarn.
from typing import NamedTuple


class Mutant(NamedTuple):
    name: str
    file: str  # below include/tarn
    old: str  # stands there exactly once
    new: str
    short: bool = False  # one of the few that `./dev test` plants


PLANTED = {
    "another stream waits for the work on what it takes": [
        Mutant(
            "skip the wait",
            "pool/ordering.hpp",
            "driver_.is_capturing(stream, capturing).ok() && !capturing && driver_.wait_event(stream, event).ok();",
            "driver_.is_capturing(stream, capturing).ok() && !capturing && event != nullptr;",
            short=True,
        ),
        Mutant(
            "steal without waiting where the work is nearly done",
            "pool/ladder.hpp",
            "covered != 0 && order.order(space, held, taker, d)) {",
            "covered != 0 && (owner.completed + 1 >= covered || order.order(space, held, taker, d))) {",
        ),
        Mutant(
            "wait on the wrong event",
            "pool/ordering.hpp",
            "event_handle const event = a.streams[owner].event;",
            "event_handle const event = a.streams[taker].event;",
        ),
        Mutant(
            "order the wrong way round",
            "pool/ordering.hpp",
            """    stream_ref const stream = a.streams[taker].stream;
    event_handle const event = a.streams[owner].event;""",
            """    stream_ref const stream = a.streams[owner].stream;
    event_handle const event = a.streams[owner].event;""",
        ),
        Mutant(
            "record too early: later frees pass for covered",
            "pool/ordering.hpp",
            "std::uint64_t const mark = domain.epoch++;",
            "std::uint64_t const mark = domain.epoch;",
        ),
        Mutant(
            "the newest frees need no event of their own",
            "pool/ordering.hpp",
            "if (domain.recorded < domain.freed) {",
            "if (domain.recorded + 1 < domain.freed) {",
        ),
        Mutant(
            "an event that is not ready passes for done",
            "pool/ordering.hpp",
            "bool const done = driver_.query_event(domain.event).ok();",
            "bool const done = driver_.query_event(domain.event).kind != failure::unloading;",
        ),
        Mutant(
            "take what no event covers yet, too",
            "pool/ladder.hpp",
            "space.hand_over(d, taker, covered);",
            "space.hand_over(d, taker, owner.epoch);",
        ),
        Mutant(
            "hand over one epoch too many",
            "pool/arena.hpp",
            "bool const moves = ranges[r].epoch <= epoch;",
            "bool const moves = ranges[r].epoch <= epoch + 1;",
        ),
        Mutant(
            "neutral before it is finished",
            "pool/ladder.hpp",
            "space.hand_over(d, neutral, domain.completed);",
            "space.hand_over(d, neutral, domain.recorded);",
        ),
    ],
    "a free is marked with its own stream's work": [
        Mutant(
            "freed into the domain of the stream that allocated it",
            "pool/arena.hpp",
            "make_free(piece, giver, mark);",
            "make_free(piece, ranges[piece].domain, streams[ranges[piece].domain].mark());",
        ),
        Mutant(
            "joined ranges keep the older mark",
            "pool/arena.hpp",
            "ranges[first].epoch = larger_of(ranges[first].epoch, ranges[second].epoch);",
            "ranges[first].epoch = smaller_of(ranges[first].epoch, ranges[second].epoch);",
        ),
        Mutant(
            "an emptied run is free without a mark",
            "pool/arena.hpp",
            "make_free(body, owner, streams[owner].mark());",
            "make_free(body, owner, 0);",
        ),
        Mutant(
            "a block of another stream's run goes straight home",
            "pool/arena.hpp",
            "if (giver != neutral && runs[r].domain != giver) {",
            "if (giver != neutral && runs[r].domain == neutral) {",
            short=True,
        ),
        Mutant(
            "returned blocks go home once an event is recorded",
            "pool/ladder.hpp",
            "domain.foreign_epoch <= domain.completed)",
            "domain.foreign_epoch <= domain.recorded)",
        ),
        Mutant(
            "returned blocks are not marked",
            "pool/arena.hpp",
            "domain.foreign_epoch = domain.mark();",
            "domain.foreign_epoch = domain.completed;",
        ),
        Mutant(
            "coalesce across domains",
            "pool/arena.hpp",
            """    return first.state == range_state::free && second.state == range_state::free &&
           first.domain == second.domain && first.where == second.where;""",
            """    return first.state == range_state::free && second.state == range_state::free &&
           first.where == second.where;""",
        ),
        Mutant(
            "magazines come home as nobody's",
            "pool/pool.hpp",
            "if (m.count != 0) give_back(mine.id, mine.stream, k, m.blocks, std::exchange(m.count, 0));",
            "if (m.count != 0) give_back(detail::neutral_id, {}, k, m.blocks, std::exchange(m.count, 0));",
        ),
    ],
    "a destroyed stream's work is waited for, and its handle is not used": [
        Mutant(
            "reuse a destroyed stream's handle",
            "pool/mark_work.hpp",
            "driver.identify(stream_ref::from(stream.handle()), now).ok() && now == stream.id();",
            "driver.identify(stream_ref::from(stream.handle()), now).ok() && now != 0;",
        ),
        Mutant(
            "a destroyed stream passes for done",
            "pool/ordering.hpp",
            "bool const done = driver_.synchronize_device().ok();",
            "bool const done = domain.gone;",
        ),
        Mutant(
            "the pool ends before its streams' work",
            "pool/pool.hpp",
            """    ladder_.finish_all(held);
    // A stream whose end the driver would not tell: its work must not see its memory unmapped.
    if ((ladder_.has_unfinished() || uses_.asks_for_device()) && !finish(held)) (void)finish(held);""",
            """    // A stream whose end the driver would not tell: its work must not see its memory unmapped.
    if (uses_.asks_for_device() && !finish(held)) (void)finish(held);""",
        ),
    ],
    "record_use() holds a block back until all its uses are over": [
        Mutant(
            "forget the use on the second of two streams",
            "pool/record_use.hpp",
            "if (u.p == p && u.stream == stream) return;",
            "if (u.p == p) return;",
        ),
        Mutant(
            "one use that is over passes for all",
            "pool/record_use.hpp",
            "return events.empty() && unmarked.empty();",
            "return events.empty() || unmarked.empty();",
            short=True,
        ),
        Mutant(
            "a use that cannot be marked now is forgotten",
            "pool/record_use.hpp",
            "if (!is_marked(w, used_on)) w.unmarked.push_back(used_on);",
            "(void)is_marked(w, used_on);",
        ),
        Mutant(
            "a use on the allocating stream needs no event",
            "pool/record_use.hpp",
            "if (!(used_on == stream)) known = mark(w, used_on) && known;",
            "if (used_on.handle() != stream.handle()) known = mark(w, used_on) && known;",
        ),
    ],
    "a capture is left alone": [
        Mutant(
            "record into what is captured",
            "pool/mark_work.hpp",
            "driver.is_capturing(stream, capturing).ok() && !capturing && driver.record_event(event, stream).ok();",
            "driver.is_capturing(stream, capturing).ok() && driver.record_event(event, stream).ok();",
        ),
        Mutant(
            "a wait is captured",
            "pool/ordering.hpp",
            """    bool capturing = true;
    return !driver_.is_capturing(stream, capturing).ok() || capturing;
  }

  /// Makes later work of `taker` wait on the device for all that `owner` freed up to its recorded event.
  bool order(arena& a, lock& hot, domain_ref taker, domain_ref owner) {
    stream_ref const stream = a.streams[taker].stream;
    event_handle const event = a.streams[owner].event;
    hot.unlock();
    bool capturing = true;
    bool const done =
        driver_.is_capturing(stream, capturing).ok() && !capturing && driver_.wait_event(stream, event).ok();""",
            """    bool capturing = true;
    return !driver_.is_capturing(stream, capturing).ok();
  }

  /// Makes later work of `taker` wait on the device for all that `owner` freed up to its recorded event.
  bool order(arena& a, lock& hot, domain_ref taker, domain_ref owner) {
    stream_ref const stream = a.streams[taker].stream;
    event_handle const event = a.streams[owner].event;
    hot.unlock();
    bool const done = driver_.wait_event(stream, event).ok();""",
        ),
    ],
    "magazines hold each block once, of its class, and give all back": [
        Mutant(
            "forget the magazines of a thread that ends",
            "pool/pool.hpp",
            """    std::lock_guard const cold(ladder_.cold);
    flush(*cache);
    retired_live_bytes_""",
            """    std::lock_guard const cold(ladder_.cold);
    retired_live_bytes_""",
            short=True,
        ),
        Mutant(
            "flush loses half a magazine",
            "pool/pool.hpp",
            "give_back(mine.id, mine.stream, k, m.blocks, std::exchange(m.count, 0));",
            "give_back(mine.id, mine.stream, k, m.blocks, (std::exchange(m.count, 0) + 1) / 2);",
        ),
        Mutant(
            "the younger half of a full magazine is kept twice",
            "pool/pool.hpp",
            "for (std::uint32_t i = count; i < m.count; ++i) m.blocks[i - count] = m.blocks[i];",
            "",
        ),
        Mutant(
            "the oldest of too many streams is forgotten with its magazines",
            "pool/pool.hpp",
            "if (oldest.get() != nullptr) bring_home(*oldest);",
            "",
        ),
        Mutant(
            "an aligned block enters the magazine of its size",
            "pool/pool.hpp",
            """    if (alignment <= default_alignment) [[likely]] {
      if (detail::thread_cache* const cache = local(); cache != nullptr) [[likely]] {
        if (to_magazine""",
            """    if (bytes <= detail::class_limit) [[likely]] {
      if (detail::thread_cache* const cache = local(); cache != nullptr) [[likely]] {
        if (to_magazine""",
        ),
        Mutant(
            "a magazine of the wrong size class",
            "pool/pool.hpp",
            """        unsigned const k = detail::class_of(bytes);
        done = put_in(cache, *mine, k, p);""",
            """        unsigned const k = detail::class_of(align_up(bytes, detail::range_grain));
        done = put_in(cache, *mine, k, p);""",
        ),
        Mutant(
            "the cached large block serves a smaller request",
            "pool/pool.hpp",
            "mine->large_block != nullptr && mine->large_bytes == align_up(bytes, detail::range_grain)",
            "mine->large_block != nullptr && mine->large_bytes >= align_up(bytes, detail::range_grain)",
        ),
        Mutant(
            "a magazine that fills does not say that it holds anything",
            "pool/pool.hpp",
            "    cache.count_held(detail::class_bytes(k), 0);\n    return true;",
            "    return true;",
        ),
    ],
    "ranges tile what the pool holds": [
        Mutant(
            "lose the remainder of a split",
            "pool/arena.hpp",
            "if (ranges[r].bytes > bytes) index.insert(ranges, split(r, bytes));",
            "if (ranges[r].bytes > bytes) ranges[split(r, bytes)].state = range_state::live;",
            short=True,
        ),
        Mutant(
            "what is skipped for alignment is lost",
            "pool/arena.hpp",
            """      range_ref const body = split(r, skipped);
      index.insert(ranges, r);
      r = body;""",
            """      range_ref const body = split(r, skipped);
      ranges[r].state = range_state::live;
      r = body;""",
        ),
        Mutant(
            "alignment is ignored for large blocks",
            "pool/arena.hpp",
            "r = carve(r, align_up(ranges[r].address, alignment), bytes);",
            "r = carve(r, ranges[r].address, bytes);",
        ),
        Mutant(
            "alignment is left out of the fit",
            "pool/range_index.hpp",
            "if (node.bytes < skipped || node.bytes - skipped < bytes) continue;",
            "if (node.bytes < skipped || node.bytes < bytes) continue;",
        ),
        Mutant(
            "an emptied run stays listed",
            "pool/arena.hpp",
            "    list.erase(runs, r);\n    range_ref const body = home.body;",
            "    range_ref const body = home.body;",
        ),
        Mutant(
            "a run ends one block late",
            "pool/run.hpp",
            "return static_cast<std::uint32_t>(run_bytes(size_class) / class_bytes(size_class));",
            """std::size_t const bytes = class_bytes(size_class);
  return static_cast<std::uint32_t>((run_bytes(size_class) + bytes - 1) / bytes);""",
        ),
        Mutant(
            "a block in pieces keeps its chain",
            "pool/arena.hpp",
            "      ranges[piece].chain = 0;\n",
            "",
        ),
    ],
    "a view shows free handles, each once, while somebody is in it": [
        Mutant(
            "coalesce across handles",
            "pool/page_choice.hpp",
            "std::uintptr_t const end = smaller_of(node.end(), map.end_of(h));",
            "std::uintptr_t const end = node.end();",
        ),
        Mutant(
            "a view takes another stream's memory",
            "pool/page_choice.hpp",
            "if (node.state != range_state::free || (node.domain != taker && node.domain != neutral)) continue;",
            "if (node.state != range_state::free) continue;",
        ),
        Mutant(
            "a view shows one handle at both ends",
            "pool/page_choice.hpp",
            "if (end_most.bytes != 0 && end_most.handle == start_most.handle) {",
            "if (end_most.bytes != 0 && end_most.address == start_most.address) {",
        ),
        Mutant(
            "a prolonged view shows a handle twice",
            "pool/page_choice.hpp",
            "return after != nullptr && after->shows(p.handle);",
            "return after != nullptr && after->region == 0;",
        ),
        Mutant(
            "a view is prolonged beyond its place",
            "pool/page_views.hpp",
            "      if (bytes > a.ranges[v.region].bytes) continue;\n",
            "",
        ),
        Mutant(
            "a view is unmapped with a block in it",
            "pool/page_views.hpp",
            "if (t.blocks != 0 || ((t.several || !done) && !all_done)) continue;",
            "if (((t.several || !done) && !all_done)) continue;",
        ),
        Mutant(
            "a view still shows a handle that was given back",
            "pool/page_views.hpp",
            "          slot.handle = 0;\n",
            "",
        ),
        Mutant(
            "a handle is given back while a view maps it",
            "pool/page_growth.hpp",
            "    views_.forget(h);\n",
            "",
        ),
    ],
    "what is given back is whole, free and finished": [
        Mutant(
            "unmap a page in use",
            "pool/page_growth.hpp",
            "if (at_start && at_end) whole.push_back(p);",
            "if (at_start || at_end) whole.push_back(p);",
        ),
        Mutant(
            "a segment goes back with a live block at its end",
            "pool/segment_growth.hpp",
            "if (a.ranges[r].previous == 0 && a.ranges[r].next == 0) whole = r;",
            "if (a.ranges[r].previous == 0) whole = r;",
        ),
        Mutant(
            "trim gives back what awaits a stream's work",
            "pool/page_growth.hpp",
            "      if (d != neutral && a.streams[d].freed > a.streams[d].completed) continue;\n",
            "",
        ),
    ],
    "a refusal changes nothing": [
        Mutant(
            "drop a reclaim on the failure path",
            "pool/page_growth.hpp",
            "      unmake(made, address);\n",
            "",
        ),
        Mutant(
            "the range that was to be extended is lost on refusal",
            "pool/page_growth.hpp",
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
            "pool/pool.hpp",
            "    if (cache == nullptr)  // a guard is nobody's\n",
            "    if (cache == nullptr || mine == nullptr || !classed)\n",
        ),
        Mutant(
            "what a thread had out is forgotten when it ends",
            "pool/pool.hpp",
            "    retired_live_bytes_ += cache->live_bytes.load(std::memory_order_relaxed);\n",
            "",
        ),
        Mutant(
            "reserved is not reduced",
            "pool/growth.hpp",
            "    reserved -= bytes;\n",
            "",
        ),
        Mutant(
            "a peak is missed",
            "core/counter.hpp",
            "    current += amount;\n    allocated += amount;\n    peak = detail::larger_of(peak, current);",
            "    peak = detail::larger_of(peak, current);\n    current += amount;\n    allocated += amount;",
        ),
        Mutant(
            "a scope's peak is that of its end",
            "policy/tracked_numbers.hpp",
            "m->peak = larger_of(m->peak, m->current);",
            "m->peak = larger_of(m->start, m->current);",
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
    "a call is made on its own device": [
        Mutant(
            "memory of the wrong device",
            "driver/sim_driver.hpp",
            "return m.memory.create(device_.value, bytes, handle);",
            "return m.memory.create(current().value, bytes, handle);",
        ),
        Mutant(
            "the wrong device is waited for",
            "driver/sim_driver.hpp",
            "return synchronized(m, m.streams.synchronize_device(device_.value));",
            "return synchronized(m, m.streams.synchronize_device(current().value));",
        ),
    ],
}
