// SPDX-License-Identifier: Apache-2.0
#pragma once
// The user's graph memories. What a correct user must do:
//
//   allocate, free in a capture   on a stream that the pool knows as part of it, in the order that events inside the capture give
//   free elsewhere                a block that outlived its capture, like any other block
//   launch                        after all uses of the blocks that the graph uses or frees, and after every other use of the memory
//                                 of its graph_memory: the graphs of one never run at the same time
//   destroy a graph_memory        no launch of its graphs follows; those before may still run
//
// Included by user.hpp.

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "user.hpp"

namespace simulation {

// ---- owners

inline void user::make_memory(operation const& o, unsigned pool) {
  graph_memory_slot& slot = memories_[o.second % most_memories];
  if (slot != nullptr) {
    if (!can_drop(slot)) return;
    drop_memory(slot);
  }
  ++counted_.other_calls;
  auto made = std::make_unique<graph_memory_of_user>();
  made->pool = pool;
  made->pool_number = pools_[pool].number;
  made->number = ++last_memory_;
  made->it = pools_[pool].memory->make_graph_memory();
  if (made->it != nullptr && slot == nullptr) slot = std::move(made);
}

inline bool user::can_drop(graph_memory_slot const& m) const {
  if (m == nullptr || m->has_capture || m->is_busy || m->allocations != 0) return false;
  // It is the last owner of its pool, which then ends: not while the device cannot be waited for.
  if (m->pool_number != pools_[m->pool].number && any_capture()) return false;
  return std::none_of(captured_.begin(), captured_.end(),
                      [&](auto const& g) { return g->memory == m.get() && g->calls != 0; });
}

inline void user::drop_memory(graph_memory_slot& m) {
  for (std::size_t g = captured_.size(); g-- > 0;) {
    if (captured_[g]->memory == m.get()) {
      for (captured_use const& use : captured_[g]->used) --use.it->graphs;
      captured_.erase(captured_.begin() + static_cast<std::ptrdiff_t>(g));
    } else if (std::erase(captured_[g]->memories, m.get()) != 0) {
      captured_[g]->after.insert(captured_[g]->after.end(), m->users.begin(), m->users.end());
    }
  }
  for (block_slot& b : blocks_) {
    if (b != nullptr && b->of == m.get()) b->of = nullptr;
    if (b != nullptr && b->outside_of == m.get()) b->outside_of = nullptr;
  }
  world_.release_held(m->number);
  ++counted_.other_calls;
  graph_memory_slot const gone = std::move(m);
  bool const may_end_pool = gone->pool_number != pools_[gone->pool].number;
  ending_pools_ += may_end_pool ? 1 : 0;
  gone->it.reset();
  ending_pools_ -= may_end_pool ? 1 : 0;
}

/// The graph_memory that a step allocates from outside a capture; null for most steps.
inline user::graph_memory_of_user* user::memory_for(operation const& o, unsigned pool) const {
  if (!uses_graph_memory_ || o.how % 16 != 9) return nullptr;
  graph_memory_of_user* const m = memories_[o.second % most_memories].get();
  return m != nullptr && m->pool == pool && m->pool_number == pools_[pool].number ? m : nullptr;
}
inline void* user::allocate_outside(graph_memory_of_user& from, tarn::stream_ref stream, operation const& o) {
  struct counted {
    unsigned& n;
    explicit counted(unsigned& of) : n(of) { ++n; }
    ~counted() { --n; }
  } const now(from.allocations);
  return from.it->allocate(stream, o.bytes, o.alignment);
}

inline bool user::has_memories(unsigned pool_number) const {
  return std::any_of(memories_.begin(), memories_.end(),
                     [&](auto const& m) { return m != nullptr && m->pool_number == pool_number; });
}

inline void user::check_memories() {
  for (auto const& m : memories_) {
    if (m == nullptr || m->pool_number != pools_[m->pool].number) continue;
    std::size_t live = 0;
    for (block_slot const& b : blocks_) {
      if (b != nullptr && (b->of == m.get() || b->outside_of == m.get()))
        live += expected_block(b->bytes, b->alignment);
    }
    if (std::size_t const is = m->it->allocated(); is != live)
      world_.found().push_back(text("a graph_memory reports %zu bytes, its live blocks have %zu", is, live));
    if (std::size_t const held = m->it->reserved(); held < live && !pools_[m->pool].asleep)
      world_.found().push_back(text("a graph_memory reserves %zu bytes for %zu live ones", held, live));
  }
}

// ---- captures

/// The open capture that a stream is part of.
inline user::captured_graph* user::capture_of(stream_number s) const {
  if (streams_[s].graph < 0) return nullptr;
  for (auto const& g : captured_) {
    if (g->is_open && g->number == streams_[s].graph) return g.get();
  }
  return nullptr;
}

/// Whether another thread is about to begin the capture of a stream. Whoever names the stream meanwhile does
/// not know whether that is part of the graph; and a call that names it by its handle asks for its identity,
/// which CUDA refuses once it is captured, and which invalidates the capture.
inline bool user::is_being_opened(stream_number s) const {
  return uses_graph_memory_ && streams_[s].graph >= 0 && capture_of(s) == nullptr;
}

/// Whether record_stream() may name a stream: one of a capture only if the block's pool knows of that
/// capture.
inline bool user::may_record(block const& b, stream_number s) const {
  if (!keeps_frees_of_captures<tarn::pooled>) return !is_being_opened(s);
  if (streams_[s].graph < 0) return true;
  captured_graph const* const g = capture_of(s);
  return g != nullptr && g->memory->pool == b.pool && is_known(*g, s);
}

/// While several threads run, work on the legacy stream would invalidate a capture from a stream that is
/// ordered with it, and a thread may end while another one uses its stream.
inline bool user::may_capture(stream_number s) const {
  return !(streams_[s].blocking && several_threads) && !(at_once_ && streams_[s].thread != 0);
}

inline void user::open_capture(operation const& o) {
  graph_memory_of_user* const m = memories_[o.second % most_memories].get();
  if (m == nullptr || m->has_capture || m->is_busy || captured_.size() >= most_graphs) return;
  if (m->pool_number != pools_[m->pool].number || pools_[m->pool].quiet) return;
  stream_number const s = streams_.in(pools_[m->pool].device, o.stream);
  if (!streams_.runs(s) || streams_[s].legacy || streams_.is_named_elsewhere(s)) return;
  if (!may_capture(s) || ending_pools_ != 0) return;
  auto g = std::make_unique<captured_graph>();
  g->memory = m;
  g->number = ++last_capture_;
  g->from = s;
  g->thread = streams_of_user::thread();
  m->has_capture = m->is_busy = true;
  streams_[s].graph = g->number;
  ++counted_.captures;
  ++counted_.other_calls;
  ++opening_captures_;
  try {
    g->scope = m->it->capture(streams_.name(s, o.how));
  } catch (...) {
    --opening_captures_;
    streams_[s].graph = -1;
    m->has_capture = m->is_busy = false;
    throw;
  }
  m->is_busy = false;
  world_.expect(world_.machine().begin_capture(streams_[s].named), "begin_capture");
  --opening_captures_;
  g->is_open = true;
  captured_.push_back(std::move(g));
}

inline bool user::order_in_capture(stream_number before, stream_number after) {
  if (before == after) return true;
  if (!streams_.is_usable(before) || !streams_.is_usable(after)) return false;
  auto const d = streams_.driver(streams_[before]);
  tarn::event_handle event = nullptr;
  if (!world_.expect(d.create_event(event), "create_event")) return false;
  world_.expect(d.record_event(event, streams_[before].named), "record_event in a capture");
  world_.expect(d.wait_event(streams_[after].named, event), "wait_event in a capture");
  world_.expect(d.destroy_event(event), "destroy_event");
  world_.count_captured(2);
  return true;
}

inline void user::join_capture(operation const& o) {
  if (captured_.empty()) return;
  captured_graph& g = *captured_[o.slot % captured_.size()];
  stream_number const s = streams_.in(pools_[g.memory->pool].device, o.stream);
  if (!g.is_open || !streams_.runs(s) || streams_[s].legacy || streams_.is_named_elsewhere(s)) return;
  if (!may_capture(s) || streams_[s].thread != 0 || g.others.size() >= 3) return;
  if (!streams_.is_usable(g.from) || !order_in_capture(g.from, s)) return;
  streams_[s].graph = g.number;
  g.others.push_back({s, false});
  if (o.how % 4 == 0) return;  // the pool recognises it
  ++counted_.other_calls;
  ++g.calls;
  g.scope->join(streams_.name(s, o.how));
  --g.calls;
  for (joined& j : g.others) j.is_known = j.is_known || j.stream == s;
}

inline bool user::is_known(captured_graph const& g, stream_number s) const {
  return s == g.from || std::any_of(g.others.begin(), g.others.end(),
                                    [&](joined const& j) { return j.stream == s && j.is_known; });
}
/// True if the pool recognises a stream that joined when the calling thread allocates on it.
inline bool user::will_be_known(captured_graph const& g) const {
  unsigned const me = streams_of_user::thread();
  return g.thread == me && 1 == std::count_if(captured_.begin(), captured_.end(), [&](auto const& each) {
                             return each->is_open && each->thread == me;
                           });
}

inline void user::close_capture(captured_graph& g) {
  if (!g.is_open || g.calls != 0 || !streams_.is_usable(g.from)) return;
  for (joined const& j : g.others) {
    if (!streams_.is_usable(j.stream)) return;
  }
  for (joined const& j : g.others) (void)order_in_capture(j.stream, g.from);
  g.is_open = false;
  world_.expect(world_.machine().end_capture(streams_[g.from].named, g.recorded), "end_capture");
  ++counted_.other_calls;
  ++g.calls;
  g.memory->is_busy = true;
  g.scope.reset();
  g.memory->is_busy = g.memory->has_capture = false;
  --g.calls;
  streams_[g.from].graph = -1;
  for (joined const& j : g.others) streams_[j.stream].graph = -1;
  for (block_slot& b : blocks_) {
    if (b == nullptr || b->in != &g) continue;
    // It has had no use yet, but graphs that may still run use its memory.
    b->in = nullptr;
    b->unordered = true;
    b->readers = g.memory->users;
    if (!reads_contents()) continue;
    b->stamped_in = b->written ? g.number : -1;  // at each launch, and only there
    b->written = false;
  }
}

inline void user::capture_allocation(operation const& o, stream_number s, block_slot& slot) {
  captured_graph* const g = capture_of(s);
  if (g == nullptr || pools_[g->memory->pool].quiet) return;
  if (!is_known(*g, s) && !will_be_known(*g)) return;
  unsigned const pool = g->memory->pool;
  ++counted_.allocations;
  ++g->calls;
  void* p = nullptr;
  try {
    in_capture const now(g->memory->number);
    p = pools_[pool].memory->allocate(streams_.name(s, o.how), o.bytes, o.alignment);
  } catch (...) {
    --g->calls;
    throw;
  }
  --g->calls;
  if (p == nullptr) return;
  for (joined& j : g->others) j.is_known = j.is_known || j.stream == s;
  slot = std::make_unique<block>();
  *slot = {p, o.bytes, o.alignment, pool, s, false, false, {}, 0, ++numbers_, g, g->memory, true};
  if (o.how % 8 != 1) launch(*slot, s, o.duration, tarn::sim_use::writes);
}

inline void user::use_in_capture(operation const& o, block& b, stream_number s) {
  captured_graph* const g = capture_of(s);
  if (g == nullptr || (b.in != nullptr && b.in != g)) return;
  if (b.in == g) {
    if (!order_in_capture(b.last, s)) return;
    b.last = s;
  } else if (auto const use = std::find(g->used.begin(), g->used.end(), &b); use != g->used.end()) {
    if (!order_in_capture(use->on, s)) return;
    use->on = s;
  } else {
    g->used.push_back({&b, s});
    ++b.graphs;
  }
  bool const before = b.written;
  bool reads = o.how % 4 == 1;
  if (reads_contents()) {
    reads = reads && keeps_contents(b, *g);
    if (b.in != g) (reads ? g->reads : g->writes).push_back(&b);
  }
  launch(b, s, o.duration, reads ? tarn::sim_use::reads : tarn::sim_use::writes);
  b.written = b.in == g || before;
}

/// Whether a block holds its stamps at every launch of a graph. What is in another graph's memory is lost
/// when its graphs run.
inline bool user::keeps_contents(block const& b, captured_graph const& g) const {
  return b.written && (b.in == &g || b.of == nullptr);
}

inline void user::add_uses(std::vector<stream_number>& to, block const& b) {
  if (!b.unordered) to.push_back(b.last);
  to.insert(to.end(), b.readers.begin(), b.readers.end());
}

/// The block is the capture's own, or the graph_memory keeps it.
inline bool user::free_in_capture(block_slot& slot, stream_number s, unsigned how) {
  captured_graph* const g = capture_of(s);
  block& b = *slot;
  if (g == nullptr || !streams_.is_usable(s) || !is_known(*g, s)) return false;
  if (g->memory->pool != b.pool || (b.in != nullptr && b.in != g)) return false;
  if (b.in == g) {
    if (!order_in_capture(b.last, s)) return false;
  } else {
    auto const use = std::find(g->used.begin(), g->used.end(), &b);
    bool const used_here = use != g->used.end();
    if (b.graphs != (used_here ? 1 : 0)) return false;
    if (used_here && !order_in_capture(use->on, s)) return false;
    std::erase(g->used, &b);
    g->reads_freed = std::erase(g->reads, &b) != 0 || g->reads_freed;
    std::erase(g->writes, &b);
    add_uses(g->after, b);
    // Other graphs of the block's memory use the same bytes.
    if (b.of != nullptr) add_uses(b.of->users, b);
    if (b.of != nullptr && b.of != g->memory) g->memories.push_back(b.of);
  }
  if (reads_contents() && how % 4 != 3 && keeps_contents(b, *g)) {
    launch(b, s, 1000, tarn::sim_use::reads);
    g->reads_freed = g->reads_freed || b.in == nullptr;
  }
  ++counted_.deallocations;
  ++g->calls;
  {
    in_capture const now(g->memory->number);
    pools_[b.pool].memory->deallocate(streams_.name(s, how), b.p, b.bytes, b.alignment);
  }
  --g->calls;
  slot.reset();
  return true;
}

// ---- graphs

inline bool user::can_follow(std::vector<stream_number> const& all, stream_number s) const {
  return std::all_of(all.begin(), all.end(), [&](stream_number each) { return streams_.can_order(each, s); });
}

inline void user::replay(operation const& o) {
  if (captured_.empty()) return;
  captured_graph& g = *captured_[o.slot % captured_.size()];
  unsigned const pool = g.memory->pool;
  stream_number const s = streams_.in(pools_[pool].device, o.stream);
  if (g.is_open || g.calls != 0 || !streams_.runs(s)) return;
  std::vector<graph_memory_of_user*> memories = g.memories;
  memories.push_back(g.memory);
  std::vector<block*> touched;
  for (captured_use const& use : g.used) touched.push_back(use.it);
  for (block_slot const& b : blocks_) {
    if (b != nullptr && b->in == nullptr && b->of != nullptr &&
        std::find(memories.begin(), memories.end(), b->of) != memories.end())
      touched.push_back(b.get());
  }
  for (graph_memory_of_user const* m : memories) {
    bool const is_old = m->pool_number != pools_[m->pool].number;
    if (m->is_asleep || (!is_old && pools_[m->pool].quiet) || !can_follow(m->users, s)) return;
  }
  for (block const* b : touched) {
    if (is_quiet(*b) || !can_come_after(*b, s)) return;
  }
  if (!can_follow(g.after, s)) return;
  if (g.has_lost_contents ||
      std::any_of(g.reads.begin(), g.reads.end(), [](block const* b) { return !b->written; }))
    return;
  auto const follow = [&](std::vector<stream_number>& all) {
    for (stream_number const each : all) streams_.order(each, s);
    all.assign(1, s);
  };
  for (graph_memory_of_user* m : memories) follow(m->users);
  follow(g.after);
  for (block* b : touched) come_after(*b, s);
  ++counted_.replays;
  ++counted_.kernels;
  world_.expect(world_.machine().launch(streams_[s].named, g.recorded), "launch of a graph");
  for (block* b : touched) note_launch(g, *b);
}

/// What a launch makes of the contents of a block that it may touch.
inline void user::note_launch(captured_graph const& g, block& b) {
  if (!reads_contents()) {
    b.written = true;
  } else if (std::find(g.used.begin(), g.used.end(), &b) != g.used.end()) {
    b.written = b.written || std::find(g.writes.begin(), g.writes.end(), &b) != g.writes.end();
  } else if (b.of == g.memory) {
    b.written = b.stamped_in == g.number;  // another graph's block may lie where this one has had its own
  }
}

inline void user::drop_captured(unsigned which) {
  if (captured_.empty()) return;
  captured_graph const& g = *captured_[which % captured_.size()];
  if (g.is_open || g.calls != 0) return;
  for (captured_use const& use : g.used) --use.it->graphs;
  captured_.erase(captured_.begin() + static_cast<std::ptrdiff_t>(which % captured_.size()));
}

/// At the end of the program; `with_memories`: the graph memories end, too.
inline void user::close_graphs(bool with_memories) {
  for (auto const& g : captured_) close_capture(*g);
  while (!captured_.empty() && !captured_.front()->is_open) drop_captured(0);
  if (!captured_.empty()) world_.found().push_back("a capture is still open at the end");
  if (!with_memories) return;
  for (graph_memory_slot& m : memories_) {
    if (m != nullptr) drop_memory(m);
  }
}

}  // namespace simulation
