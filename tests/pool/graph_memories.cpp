// SPDX-License-Identifier: Apache-2.0
// The files of pool/graph/ alone: captured_streams, end_mark, graph_captures, graph_owner_of, graph_parts,
// graph_totals, graph_uses; tests/raii/graph_memory.cpp has graph_memories as a whole. Parts of the heap:
// tests/pool/heap_parts.cpp.
#include "tarn/pool/graph/graph_memories.hpp"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "child_process.hpp"
#include "tarn/driver/captured_handles.hpp"
#include "tarn/policy/fallback_to.hpp"
#include "tarn/pool/graph/captured_streams.hpp"
#include "tarn/pool/graph/deferred_for_graphs.hpp"
#include "tarn/pool/graph/end_mark.hpp"
#include "tarn/pool/graph/graph_captures.hpp"
#include "tarn/pool/graph/graph_owner_of.hpp"
#include "tarn/pool/graph/graph_parts.hpp"
#include "tarn/pool/graph/graph_totals.hpp"
#include "tarn/pool/pool_state.hpp"
#include "tarn/raii/graph_memory.hpp"
#include "tarn/sim.hpp"

using namespace tarn;

TEST_CASE("graph_uses records once whose graphs use a block, with a reference for each", "[graph_memories]") {
  detail::graph_parts a(1), b(2);
  detail::graph_uses uses;
  std::vector<char> memory(1000);
  CHECK_FALSE(uses.may_hold(&memory[0]));
  CHECK(uses.take(&memory[0]).empty());
  for (char& c : memory) CHECK(uses.record(&c, a));
  CHECK_FALSE(uses.record(&memory[0], a));
  CHECK_FALSE(uses.record(&memory[0], b));
  CHECK((a.references == 1000 && b.references == 1));
  auto of_both = uses.take(&memory[0]);
  CHECK((&of_both.take() == &b && &of_both.take() == &a && of_both.empty()));
  CHECK(uses.take(&memory[0]).empty());
  for (std::size_t i = 1; i < memory.size(); ++i) {
    CHECK(uses.may_hold(&memory[i]));
    CHECK(&uses.take(&memory[i]).take() == &a);
  }
  CHECK_FALSE(uses.may_hold(&memory[1]));
  CHECK(a.references == 1000);  // the callers of take() have them
  std::size_t const host_bytes = uses.host_bytes();
  for (char& c : memory) CHECK(uses.record(&c, b));
  CHECK(uses.host_bytes() == host_bytes);
}

TEST_CASE("graph_users holds each user once, and drops those whose graphs are complete", "[graph_memories]") {
  detail::graph_parts parts[5] = {detail::graph_parts(1), detail::graph_parts(2), detail::graph_parts(3),
                                  detail::graph_parts(4), detail::graph_parts(5)};
  detail::graph_users users;
  for (int i = 0; i < 2; ++i) {
    for (detail::graph_parts& p : parts) users.add(p);
  }
  for (int k = 0; k < 5; ++k) CHECK(parts[k].references == 1);
  parts[1].state = detail::graph_parts::life::over;
  parts[2].state = detail::graph_parts::life::marked;
  users.drop_over();
  CHECK((parts[1].references == 0 && parts[2].references == 1));
  CHECK(&users.take() == &parts[4]);
  users.clear();
  CHECK(users.empty());
  for (int const k : {0, 2, 3}) CHECK(parts[k].references == 0);
  CHECK(parts[4].references == 1);  // the caller of take() has its reference
}

TEST_CASE("graph_uses forgets owners whose graphs are complete when a block is recorded again",
          "[graph_memories]") {
  detail::graph_parts a(1), b(2);
  detail::graph_uses uses;
  char block = 0;
  CHECK(uses.record(&block, a));
  a.state = detail::graph_parts::life::over;
  CHECK_FALSE(uses.record(&block, b));
  CHECK((a.references == 0 && b.references == 1));
}

TEST_CASE("the stream of a capture may reuse the part of its owner's captures alone", "[graph_memories]") {
  detail::graph_parts owner(1);
  owner.captured = 3;
  owner.plain = 4;
  detail::captured_stream at;
  CHECK_FALSE((at.is_captured() || at.may_reuse(0) || at.may_reuse(3)));
  at.captured_as = detail::captured_id(1);
  at.owner = &owner;
  CHECK((at.is_captured() && at.may_reuse(3)));
  CHECK_FALSE((at.may_reuse(0) || at.may_reuse(4)));
  at.is_guess = true;
  CHECK_FALSE(at.may_reuse(3));
}

TEST_CASE("captured_handles is free in a child that was forked while another thread asked it first",
          "[pool][graph][at_fork]") {
  using detail::captured_handles;
  int handle = 0;
  auto const ask = [&] { return captured_handles::find(&handle) == stream_ref::unknown_id; };
  CHECK(child_forked_during([&] { (void)ask(); }, ask) == 0);
}

TEST_CASE("captured_handles assigns an identity to a captured stream until no scope is open",
          "[graph_memories]") {
  using detail::captured_handles;
  int handles[3] = {};
  captured_handles::add(stream_ref::from(&handles[0], 17));
  captured_handles::add(stream_ref::from(&handles[0], 17));  // by another pool
  captured_handles::add(stream_ref::from(nullptr, 18));      // a default stream
  CHECK(captured_handles::find(&handles[0]) == 17);
  CHECK(captured_handles::find(nullptr) == stream_ref::unknown_id);
  detail::capture_gate::begin_capture();
  stream_id const first = captured_handles::add_unknown(&handles[1]);
  stream_id const second = captured_handles::add_unknown(&handles[2]);
  CHECK((first != second && first != 17 && !detail::is_captured_id(first)));
  CHECK((captured_handles::find(&handles[1]) == first && captured_handles::find(&handles[2]) == second));
  detail::capture_gate::begin_capture();
  detail::capture_gate::end_capture();  // another scope is still open
  CHECK(captured_handles::find(&handles[1]) == first);
  captured_handles::remove(17);
  CHECK(captured_handles::find(&handles[0]) == 17);
  captured_handles::remove(17);
  CHECK(captured_handles::find(&handles[0]) == stream_ref::unknown_id);
  detail::capture_gate::end_capture();
  detail::capture_gate::begin_capture();  // as another version of tarn may: nothing was called in between
  CHECK(captured_handles::find(&handles[1]) == stream_ref::unknown_id);
  detail::capture_gate::end_capture();
  CHECK(captured_handles::find(&handles[2]) == stream_ref::unknown_id);
}

TEST_CASE("captured_handles that are full assign no identity until no scope is open", "[graph_memories]") {
  using detail::captured_handles;
  std::vector<int> handles(10'000);
  detail::capture_gate::begin_capture();
  std::size_t known = 0;
  while (known < handles.size() && captured_handles::add_unknown(&handles[known]) != stream_ref::unknown_id)
    ++known;
  CHECK(known != 0);
  CHECK(known < handles.size());
  CHECK(captured_handles::find(&handles[known]) == stream_ref::unknown_id);
  detail::capture_gate::end_capture();
  detail::capture_gate::begin_capture();
  CHECK(captured_handles::add_unknown(&handles[known]) != stream_ref::unknown_id);
  detail::capture_gate::end_capture();
}

TEST_CASE("captured_handles can be used in a child that is forked while other threads use them",
          "[pool][graph_memories][capture][at_fork]") {
  std::atomic<bool> over{false};
  std::atomic<int> asked{0};
  std::thread other([&] {
    for (; !over; ++asked) (void)detail::captured_handles::find(&over);
  });
  int hung = 0;
  for (int i = 0; i < 200 && hung == 0; ++i) {
    int const before = asked;
    while (asked < before + 2) std::this_thread::yield();  // it runs
    hung += child_of([&] { return detail::captured_handles::find(&over) == stream_ref::unknown_id; });
  }
  over = true;
  other.join();
  CHECK(hung == 0);
}

TEST_CASE("captured_streams finds a stream until it is cleared, and is full at 64", "[graph_memories]") {
  detail::captured_streams streams;
  CHECK_FALSE(streams.any());
  CHECK_FALSE(streams.has(0));
  for (stream_id id = 1; id <= 64; ++id) {
    REQUIRE(streams.free_place() != detail::captured_streams::most);
    streams.set(streams.free_place(), id);
  }
  CHECK(streams.free_place() == detail::captured_streams::most);
  CHECK((streams.has(1) && streams.has(64) && !streams.has(65)));
  std::size_t const place = streams.find(17);
  streams.clear(place);
  CHECK_FALSE(streams.has(17));
  CHECK(streams.free_place() == place);
  CHECK((detail::is_captured_id(detail::captured_id(1)) && !detail::is_captured_id(4096) &&
         !detail::is_captured_id(detail::neutral_id)));
}

TEST_CASE("end_mark covers the work submitted before its first question", "[graph_memories]") {
  sim_machine const machine;
  sim_marking_driver const driver(machine.driver());
  stream_ref s;
  REQUIRE(driver.create_stream(s).ok());
  REQUIRE(machine.launch(s, 1'000'000).ok());
  {
    detail::end_mark<sim_marking_driver> mark(driver);
    CHECK_FALSE(mark.is_complete(false));
    REQUIRE(machine.launch(s, 1'000'000'000).ok());
    machine.advance(2'000'000);
    CHECK(mark.is_complete(false));
  }
  {
    detail::end_mark<sim_marking_driver> mark(driver);
    REQUIRE(machine.begin_capture(s).ok());
    detail::capture_gate::begin_capture();
    CHECK_FALSE(mark.is_complete(true));
    detail::capture_gate::end_capture();
    sim_graph graph;
    CHECK(machine.end_capture(s, graph).ok());
    CHECK(mark.is_complete(true));
    CHECK(machine.pending() == 0);
  }
  CHECK(machine.leaks().events == 0);
  CHECK(driver.destroy_stream(s).ok());
}

TEST_CASE("sum_of_states adds every count", "[graph_memories]") {
  pool_state a, b;
  a.live = 1, a.reserved = 5, a.maps = 3, a.largest_free_range = 7, a.split.bytes.current = 4;
  b.live = 2, b.reserved = 6, b.maps = 4, b.largest_free_range = 6, b.split.bytes.current = 9;
  for (auto const zone : {&pool_state::smaller, &pool_state::larger}) {
    (a.*zone).reserved.current = 2, (a.*zone).handles.peak = 3, (a.*zone).free_blocks = 4;
    (b.*zone).reserved.current = 3, (b.*zone).handles.peak = 5, (b.*zone).free_blocks = 7;
    (a.*zone).inactive_split_bytes = 5, (a.*zone).split.blocks.current = 6;
    (b.*zone).inactive_split_bytes = 9, (b.*zone).split.blocks.current = 11;
  }
  pool_state const s = detail::sum_of_states(a, b);
  CHECK((s.live == 3 && s.reserved == 11 && s.maps == 7 && s.largest_free_range == 7));
  CHECK(s.split.bytes.current == 13);
  for (pool_part const& part : {s.smaller, s.larger}) {
    CHECK((part.reserved.current == 5 && part.handles.peak == 8 && part.free_blocks == 11));
    CHECK((part.inactive_split_bytes == 14 && part.split.blocks.current == 17));
  }
}

TEST_CASE("graph_owner_of allocates from a part of its own, which is common when the owner has ended",
          "[graph_memories]") {
  sim_machine const machine;
  auto memory = sim_pages(machine.driver()) | pooled{};
  detail::owned<detail::graph_owner> owner = memory->new_graph_memory();
  detail::owned<detail::graph_owner> const other = memory->new_graph_memory();
  CHECK(owner->state().number == 1);
  CHECK(other->state().number == 2);
  void* const p = memory->allocate_for(*owner, stream_ref{}, 4_MiB, 256);
  CHECK(owner->state().allocated == 4_MiB);
  CHECK(other->state().reserved == 0);
  memory->deallocate(stream_ref{}, p, 4_MiB, 256);
  CHECK(owner->state().allocated == 0);
  std::size_t const reserved = memory->state().reserved;
  CHECK(reserved == owner->state().reserved);
  void* const others = memory->allocate(stream_ref{}, 4_MiB, 256);
  CHECK(others != p);
  memory->deallocate(stream_ref{}, others, 4_MiB, 256);
  owner = detail::owned<detail::graph_owner>();
  CHECK(memory->state().reserved >= reserved);
  CHECK(memory->trim(0) != 0);
  CHECK(memory->state().reserved == 0);
}

TEST_CASE("add_graphs adds the graph memories of both pools of fallback_to", "[graph_memories][pages]") {
  sim_machine const machine;
  auto first = sim_pages{machine.driver()} | pooled{};
  auto second = sim_pages{machine.driver()} | pooled{};
  auto const memory = first | fallback_to{second};
  graph_memory a(first);
  graph_memory b(second);
  void* const p = a.allocate(stream_ref{}, 4_MiB);
  void* const q = b.allocate(stream_ref{}, 6_MiB);
  detail::graph_totals sum;
  nearest(memory, pool_call::add_graphs{sum});
  CHECK(sum.owners == 2);
  CHECK(sum.allocated == 10_MiB);
  CHECK(sum.reserved == a.state().reserved + b.state().reserved);
  CHECK(sum.kept == 0);
  first.deallocate(stream_ref{}, p, 4_MiB);
  second.deallocate(stream_ref{}, q, 6_MiB);
}
