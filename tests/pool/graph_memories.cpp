// SPDX-License-Identifier: Apache-2.0
// The parts of pool/graph/ alone: capture_cache, graph_blocks, graph_captures, graph_owner_of, graph_part; tests/raii/graph_memory.cpp has graph_memories as a whole.
#include "tarn/pool/graph/graph_memories.hpp"

#include <algorithm>
#include <atomic>
#include <vector>

#include "catch.hpp"
#include "tarn/driver/captured_handles.hpp"
#include "tarn/pool/graph/capture_cache.hpp"
#include "tarn/pool/graph/graph_blocks.hpp"
#include "tarn/pool/graph/graph_owner_of.hpp"
#include "tarn/pool/graph/graph_part.hpp"
#include "tarn/pool/graph/open_captures.hpp"
#include "tarn/pool/pool_state.hpp"
#include "tarn/sim.hpp"

using namespace tarn;

namespace {
struct counted_part {
  std::atomic<std::size_t> references{0};
  detail::capture_cache cache;
};
using detail::recorded_for;
}  // namespace

TEST_CASE("graph_blocks finds each recorded block and counts references to its part", "[graph_memories]") {
  counted_part a, b;
  detail::graph_blocks<counted_part> blocks;
  std::vector<char> memory(1000);
  CHECK_FALSE(blocks.may_hold(&memory[0]));
  for (std::size_t i = 0; i < memory.size(); ++i)
    CHECK(blocks.record(&memory[i], i % 2 == 0 ? a : b, recorded_for::live_block));
  CHECK((a.references == 500 && b.references == 500));
  for (std::size_t i = 0; i < memory.size(); ++i) {
    CHECK(blocks.may_hold(&memory[i]));
    CHECK(blocks.owner_of(&memory[i]) == (i % 2 == 0 ? &a : &b));
  }
  CHECK((a.references == 1000 && b.references == 1000));
  for (char& c : memory) {
    CHECK(blocks.take(&c).is_there());
    CHECK_FALSE(blocks.take(&c).is_there());
  }
  CHECK((a.references == 1000 && b.references == 1000));  // the caller has the blocks' references
  CHECK(blocks.owner_of(&memory[0]) == nullptr);
}

TEST_CASE("graph_blocks records once whose graphs use a block", "[graph_memories]") {
  counted_part a, b;
  detail::graph_blocks<counted_part> blocks;
  char own = 0, used = 0;
  CHECK(blocks.record(&own, a, recorded_for::live_block));
  CHECK_FALSE(blocks.record_use(&own, a));  // its own graphs
  CHECK_FALSE(blocks.record_use(&own, b));
  CHECK(blocks.record_use(&used, b));
  CHECK_FALSE(blocks.record_use(&used, b));
  CHECK((a.references == 1 && b.references == 2));
  CHECK(blocks.owner_of(&used) == nullptr);
  auto of = blocks.take(&own);
  CHECK((of.owner == &a && !of.users.empty() && &of.users.take() == &b && of.users.empty()));
  CHECK((&blocks.take(&used).users.take() == &b && !blocks.may_hold(&used)));
}

TEST_CASE("capture_cache knows which blocks are live, up to half of its places", "[graph_memories]") {
  detail::capture_cache cache;
  std::vector<char> memory(256 * 600);
  auto const block = [&](std::size_t i) { return &memory[i * 256]; };
  CHECK_FALSE(cache.take(block(0)));
  CHECK_FALSE(cache.give(block(0)));
  std::size_t count = 0;
  for (; cache.has_room(); ++count) cache.add(block(count));
  CHECK(count == 512);
  for (std::size_t i = 0; i < count; i += 2) {
    CHECK(cache.give(block(i)));
    CHECK_FALSE(cache.give(block(i)));  // it is free
  }
  CHECK(cache.take(block(4)));
  std::vector<void*> freed;
  cache.clear([&](void* const* free, std::size_t n) { freed.assign(free, free + n); });
  CHECK(freed.size() == count / 2 - 1);
  CHECK(std::find(freed.begin(), freed.end(), block(4)) == freed.end());
  CHECK(std::find(freed.begin(), freed.end(), block(6)) != freed.end());
  CHECK((cache.has_room() && !cache.take(block(4)) && !cache.take(block(6))));
}

TEST_CASE(
    "graph_blocks keeps blocks of a capture_cache recorded until they are forgotten, or taken by another",
    "[graph_memories]") {
  counted_part a, b;
  detail::graph_blocks<counted_part> blocks;
  char memory[4] = {};
  void* all[4] = {&memory[0], &memory[1], &memory[2], &memory[3]};
  for (void* p : all) CHECK(blocks.record(p, a, recorded_for::capture_cache));
  CHECK_FALSE(a.cache.is_old());
  CHECK(blocks.take(all[0]).owner == &a);  // another thread frees it
  CHECK(a.cache.is_old());
  a.cache.clear([](void* const*, std::size_t) {});
  CHECK_FALSE(blocks.record(all[1], a, recorded_for::live_block));  // handed out by another call
  CHECK(a.cache.is_old());
  a.cache.clear([](void* const*, std::size_t) {});
  CHECK_FALSE(blocks.record_use(all[2], b));  // it must not be reused in the capture
  CHECK(a.cache.is_old());
  a.references = 3;
  CHECK(blocks.forget(all, 4, a) == 1);  // all but the one that the cache still has are left alone
  CHECK(a.references == 2);
  CHECK(blocks.take(all[1]).owner == &a);
  CHECK(blocks.take(all[2]).is_there());
  CHECK_FALSE(blocks.take(all[3]).is_there());
}

TEST_CASE("graph_users holds each of four users once", "[graph_memories]") {
  counted_part parts[5];
  detail::graph_users<counted_part> users;
  for (int i = 0; i < 2; ++i) {
    for (int k = 0; k < 4; ++k) users.add(parts[k]);
  }
  CHECK_FALSE(users.is_too_many());
  for (int k = 0; k < 4; ++k) CHECK(parts[k].references == 1);
  users.add(parts[4]);
  CHECK(users.is_too_many());
  CHECK(parts[4].references == 0);
  CHECK(&users.take() == &parts[3]);
  users.clear();
  CHECK(users.empty());
  CHECK((parts[0].references == 0 && parts[3].references == 1));  // the caller of take() has its reference
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
  CHECK((first != second && first != 17 && !detail::is_capture_stream(first)));
  CHECK((captured_handles::find(&handles[1]) == first && captured_handles::find(&handles[2]) == second));
  captured_handles::end_capture();  // another scope is still open
  CHECK(captured_handles::find(&handles[1]) == first);
  captured_handles::remove(17);
  CHECK(captured_handles::find(&handles[0]) == 17);
  captured_handles::remove(17);
  CHECK(captured_handles::find(&handles[0]) == stream_ref::unknown_id);
  detail::capture_gate::end_capture();
  captured_handles::end_capture();
  CHECK(captured_handles::find(&handles[1]) == stream_ref::unknown_id);
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
  CHECK((detail::is_capture_stream(detail::capture_stream_id(1)) && !detail::is_capture_stream(4096) &&
         !detail::is_capture_stream(detail::neutral_id)));
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
  a.live = 1, a.reserved = 5, a.maps = 3, a.largest_free_range = 7, a.smaller.reserved.current = 2;
  b.live = 2, b.reserved = 6, b.maps = 4, b.largest_free_range = 6, b.smaller.reserved.current = 3;
  pool_state const s = detail::sum_of_states(a, b);
  CHECK((s.live == 3 && s.reserved == 11 && s.maps == 7 && s.largest_free_range == 7));
  CHECK(s.smaller.reserved.current == 5);
}

TEST_CASE("graph_owner_of allocates from its own part, whose memory goes back when the owner has ended",
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
  CHECK(memory->state().reserved == owner->state().reserved);
  owner = detail::owned<detail::graph_owner>();
  CHECK(memory->state().reserved == 0);
}
