// SPDX-License-Identifier: Apache-2.0
// pool::extend: a block becomes longer where it is, through each layer.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "driver/faulty.hpp"
#include "tarn/core/error.hpp"
#include "tarn/debug/checked.hpp"
#include "tarn/debug/fenced.hpp"
#include "tarn/debug/logged.hpp"
#include "tarn/debug/nvtx_ranged.hpp"
#include "tarn/debug/with_history.hpp"
#include "tarn/policy/compose.hpp"
#include "tarn/policy/failing.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/retry_on_oom.hpp"
#include "tarn/policy/tagged.hpp"
#include "tarn/policy/traced.hpp"
#include "tarn/policy/tracked.hpp"
#include "tarn/raii/graph_memory.hpp"
#include "tarn/raii/sleep.hpp"
#include "tarn/raii/stream.hpp"
#include "tarn/report/stats.hpp"
#include "tarn/report/take_snapshot.hpp"
#include "tarn/sim.hpp"

namespace {

using namespace tarn;
using sim_pages = basic_pages<sim_driver>;

/// A block of 3 MiB with free memory of the default stream behind it.
template <class Memory>
void* with_room_behind(Memory& memory, std::size_t bytes = 3_MiB) {
  memory.deallocate(stream_ref{}, memory.allocate(stream_ref{}, 16_MiB), 16_MiB);
  return memory.allocate(stream_ref{}, bytes);
}
template <class Memory>
bool extends(Memory& memory) {
  void* const p = with_room_behind(memory);
  bool const extended = memory.extend(stream_ref{}, p, 3_MiB, 1_MiB);
  memory.deallocate(stream_ref{}, p, extended ? 4_MiB : 3_MiB);
  return extended;
}

struct counts_calls {
  int calls = 0;
  void* around_allocate(request const& r, auto const& next) {
    ++calls;
    return next.allocate(r);
  }
};
struct adds_bytes {
  std::size_t bytes = 0;
  void* around_allocate(request const& r, auto const& next) {
    bytes += r.bytes;
    return next.allocate(r);
  }
  bool around_extend(request const& r, void* p, std::size_t more, auto const& next) {
    bool const extended = next.extend(r, p, more);
    if (extended) bytes += more;
    return extended;
  }
};

}  // namespace

TEST_CASE("extend makes a block longer where it is, and keeps its contents", "[pool][extend]") {
  sim_machine const machine;
  auto pool = sim_pages(machine.driver()) | pooled{} | tracked{};
  void* const p = with_room_behind(pool);
  std::memset(p, 7, 3_MiB);
  auto const calls = machine.calls().acting();
  REQUIRE(pool.extend(stream_ref{}, p, 3_MiB, 5_MiB));
  CHECK(machine.calls().acting() == calls);
  CHECK(static_cast<char*>(p)[3_MiB - 1] == 7);
  CHECK(memory_allocated(pool) == 8_MiB);
  CHECK(memory_reserved(pool) == 16_MiB);
  void* const next = pool.allocate(stream_ref{}, 8_MiB);
  CHECK(next == static_cast<char*>(p) + 8_MiB);
  CHECK_FALSE(pool.extend(stream_ref{}, p, 8_MiB, 512));  // the next block is in the way
  pool.deallocate(stream_ref{}, next, 8_MiB);
  pool.deallocate(stream_ref{}, p, 8_MiB);
  pool.empty_cache();
  CHECK(memory_reserved(pool) == 0);
}

TEST_CASE("extend over blocks of another resource stays within a segment", "[pool][extend]") {
  sim_machine const machine;
  auto pool = sim_malloc(machine.driver()) | pooled{} | tracked{};
  void* const p = with_room_behind(pool);
  CHECK_FALSE(pool.extend(stream_ref{}, p, 3_MiB, 14_MiB));
  CHECK(pool.extend(stream_ref{}, p, 3_MiB, 13_MiB));
  CHECK_FALSE(pool.extend(stream_ref{}, p, 16_MiB, 512));
  pool.deallocate(stream_ref{}, p, 16_MiB);
}

TEST_CASE("extend takes what its stream may use at once, and nothing else", "[pool][extend]") {
  sim_machine const machine;
  auto pool = sim_pages(machine.driver()) | pooled{} | tracked{};
  basic_stream<sim_driver> const a(machine.driver());
  basic_stream<sim_driver> const b(machine.driver());
  pool.deallocate(a, pool.allocate(a, 16_MiB), 16_MiB);
  void* const p = pool.allocate(a, 3_MiB);
  CHECK_FALSE(pool.extend(b, p, 3_MiB, 1_MiB));  // what is behind was freed on `a`
  REQUIRE(pool.extend(a, p, 3_MiB, 1_MiB));
  pool.deallocate(a, p, 4_MiB);
  pool.empty_cache();
  void* const neutral = pool.allocate_sync(16_MiB, 256);
  pool.deallocate_sync(neutral, 16_MiB);
  void* const q = pool.allocate_sync(3_MiB, 256);
  REQUIRE(pool.extend(b, q, 3_MiB, 1_MiB));  // nothing uses neutral memory
  pool.deallocate(b, q, 4_MiB);
}

TEST_CASE("extend answers no where a block cannot become longer", "[pool][extend][pages]") {
  sim_machine const machine;
  auto pool = sim_pages(machine.driver()) | pooled{} | tracked{};
  void* const small = pool.allocate(stream_ref{}, 1000);
  CHECK(pool.extend(stream_ref{}, small, 1000, 24));  // it has 1,024 bytes
  CHECK(memory_allocated(pool) == 1024);
  CHECK_FALSE(pool.extend(stream_ref{}, small, 1024, 1));
  pool.deallocate(stream_ref{}, small, 1024);

  void* const medium = pool.allocate(stream_ref{}, 512_KiB);
  CHECK(pool.extend(stream_ref{}, medium, 512_KiB, 100_KiB));
  CHECK_FALSE(pool.extend(stream_ref{}, medium, 612_KiB, 1_MiB));  // memory of blocks above 1 MiB is apart
  pool.deallocate(stream_ref{}, medium, 612_KiB);

  CHECK_FALSE(pool.extend(stream_ref{}, nullptr, 0, 1));
  void* const p = with_room_behind(pool);
  CHECK_FALSE(pool.extend(stream_ref{}, p, 3_MiB, ~std::size_t{0}));
  CHECK_FALSE(pool.extend(stream_ref{}, p, 2_MiB, 1_MiB + 512));  // it is no block of 2 MiB
  CHECK_THROWS_AS(pool.extend(stream_ref{}, static_cast<char*>(p) + 512, 1_MiB, 1_MiB), misuse);
  (void)sleep(pool);
  CHECK_FALSE(pool.extend(stream_ref{}, p, 3_MiB, 1_MiB));
  (void)wake(pool);
  pool.deallocate(stream_ref{}, p, 3_MiB);

  auto whole = sim_pages(machine.driver()) | pooled{.handles = handles_per_block::one} | tracked{};
  void* const in_one = whole.allocate(stream_ref{}, 2_MiB);
  void* const behind = whole.allocate(stream_ref{}, 2_MiB);
  whole.deallocate(stream_ref{}, behind, 2_MiB);
  CHECK_FALSE(whole.extend(stream_ref{}, in_one, 2_MiB, 1_MiB));
  whole.deallocate(stream_ref{}, in_one, 2_MiB);
}

TEST_CASE("extend answers no for a captured stream and for memory of a graph", "[pool][extend]") {
  sim_machine const machine;
  auto pool = sim_pages(machine.driver()) | pooled{} | tracked{};
  basic_stream<sim_driver> const s(machine.driver());
  pool.deallocate(s, pool.allocate(s, 16_MiB), 16_MiB);
  void* const p = pool.allocate(s, 3_MiB);
  graph_memory memory(pool);
  void* inside = nullptr;
  {
    capture_scope const scope(memory, s);
    REQUIRE(machine.begin_capture(s).ok());
    inside = pool.allocate(s, 3_MiB);
    CHECK_FALSE(pool.extend(s, p, 3_MiB, 1_MiB));
    CHECK_FALSE(pool.extend(s, inside, 3_MiB, 512));
    sim_graph graph;
    REQUIRE(machine.end_capture(s, graph).ok());
  }
  CHECK_FALSE(pool.extend(s, inside, 3_MiB, 512));
  CHECK(pool.extend(s, p, 3_MiB, 1_MiB));
  pool.deallocate(s, inside, 3_MiB);
  pool.deallocate(s, p, 4_MiB);
}

TEST_CASE("layers that know extend pass it on", "[pool][extend]") {
  sim_machine const machine;
  auto over = [&](auto policy) {
    auto memory = sim_pages(machine.driver()) | pooled{} | policy;
    return extends(memory);
  };
  CHECK(over(tracked{}));
  CHECK(over(tagged{"a"}));
  CHECK(over(limited{100_MiB}));
  CHECK(over(with_history{}));
  CHECK(over(nvtx_ranged{"a"}));
  CHECK(over(failing{.call = 0}));
  CHECK(over(logged{[](call_record const&) {}}));
  CHECK(over(retry_on_oom{[](out_of_memory const&, unsigned) { return false; }}));
  CHECK_FALSE(over(checked{}));
  CHECK_FALSE(over(fenced{}));
}

TEST_CASE("a log shows a longer block, and a hook that throws cannot undo it", "[pool][extend][logged]") {
  sim_machine const machine;
  std::vector<call_record> calls;
  auto pool = sim_pages(machine.driver()) | pooled{} | logged{[&](call_record const& c) {
                calls.push_back(c);
                if (c.call == logged_call::extend) throw 1;
              }};
  void* const p = with_room_behind(pool);
  calls.clear();
  CHECK(pool.extend(stream_ref{}, p, 3_MiB, 1_MiB));
  CHECK_FALSE(pool.extend(stream_ref{}, p, 4_MiB, 1_TiB));
  REQUIRE(calls.size() == 1);
  CHECK((calls[0].address == p && calls[0].bytes == 4_MiB && calls[0].outcome == call_outcome::done));
  CHECK(std::string(format_log_line(calls[0]).c_str()).rfind("extend,done,", 0) == 0);
  pool.deallocate(stream_ref{}, p, 4_MiB);
}

TEST_CASE("a policy of one's own that changes calls answers no, unless it knows extend", "[pool][extend]") {
  sim_machine const machine;
  auto counting = sim_pages(machine.driver()) | pooled{} | around<counts_calls>{};
  CHECK_FALSE(extends(counting));
  auto adding = sim_pages(machine.driver()) | pooled{} | around<adds_bytes>{};
  CHECK(extends(adding));
  CHECK(adding->bytes == 16_MiB + 4_MiB);
}

TEST_CASE("tracked counts what a block becomes longer by", "[pool][extend][tracked]") {
  sim_machine const machine;
  auto pool = sim_pages(machine.driver()) | pooled{} | tracked{};
  void* const p = with_room_behind(pool, 1_MiB + 512);
  reset_peak_memory_stats(pool);
  REQUIRE(pool.extend(stream_ref{}, p, 1_MiB + 512, 1_MiB));
  tracked_statistics const s = pool->statistics();
  CHECK(s.allocations[0].current == 1);
  CHECK(s.requested_bytes[0].current == 2_MiB + 512);
  CHECK(s.allocated_bytes[0].peak == 2_MiB + 512);
  CHECK(s.allocations[0].allocated == 2);  // with the one that made room
  pool.deallocate(stream_ref{}, p, 2_MiB + 512);
  CHECK(memory_allocated(pool) == 0);
}

TEST_CASE("no reader sees a block gone while it becomes longer", "[pool][extend][tracked][threads]") {
  sim_machine const machine;
  auto pool = sim_pages(machine.driver()) | pooled{} | tracked{};
  std::atomic<bool> done{false};
  std::size_t least = ~std::size_t{0};
  void* const first = with_room_behind(pool);
  std::thread reader([&] {
    while (!done.load()) {
      std::size_t const now = memory_allocated(pool);
      if (now < least) least = now;
    }
  });
  std::size_t bytes = 3_MiB;
  for (int i = 0; i < 20'000; ++i) {
    if (pool.extend(stream_ref{}, first, bytes, 512)) bytes += 512;
  }
  done.store(true);
  reader.join();
  CHECK(bytes == 3_MiB + 20'000 * 512);
  CHECK(least >= 3_MiB);
  pool.deallocate(stream_ref{}, first, bytes);
}

TEST_CASE("limited counts a longer block, and refuses by answering no", "[pool][extend][limited]") {
  sim_machine const machine;
  auto pool = sim_pages(machine.driver()) | pooled{} | limited{17_MiB};
  void* const p = with_room_behind(pool);
  void* const other = pool.allocate(stream_ref{}, 10_MiB);  // begins at a handle, 1 MiB behind it
  CHECK_FALSE(pool.extend(stream_ref{}, p, 3_MiB, 5_MiB));
  CHECK(pool->used() == 13_MiB);
  CHECK_FALSE(pool.extend(stream_ref{}, p, 3_MiB, 2_MiB));  // within the limit, but `other` is in the way
  CHECK(pool->used() == 13_MiB);
  pool.deallocate(stream_ref{}, other, 10_MiB);
  CHECK(pool.extend(stream_ref{}, p, 3_MiB, 5_MiB));
  CHECK(pool->used() == 8_MiB);
  pool.deallocate(stream_ref{}, p, 8_MiB);
  CHECK(pool->used() == 0);
}

TEST_CASE("a trace and a history show a longer block as freed and allocated again",
          "[pool][extend][report]") {
  sim_machine const machine;
  std::FILE* const file = std::tmpfile();
  REQUIRE(file != nullptr);
  {
    auto pool = sim_pages(machine.driver()) | pooled{} | with_history{} | traced{file};
    void* const p = with_room_behind(pool);
    {
      tag_scope const other("another");
      REQUIRE(pool.extend(stream_ref{}, p, 3_MiB, 1_MiB));
    }
    snapshot const s = take_snapshot(pool);
    std::size_t live = 0;
    for (auto const& segment : s.segments) {
      for (auto const& b : segment.blocks) live += b.requested;
    }
    CHECK(live == 4_MiB);
    REQUIRE(s.events.size() >= 2);
    CHECK(s.events[s.events.size() - 2].kind == snapshot_event_kind::free);
    CHECK(s.events.back().kind == snapshot_event_kind::allocate);
    CHECK(s.events.back().requested == 4_MiB);
    CHECK(s.events.back().tag == 0);  // of the block, not of the caller
    pool.deallocate(stream_ref{}, p, 4_MiB);
  }
  std::rewind(file);
  char text[512] = {};
  std::size_t const read = std::fread(text, 1, sizeof text - 1, file);
  (void)std::fclose(file);
  CHECK(std::string(text, read).find("a 2 3145728 0\nf 2\na 3 4194304 0\nf 3\n") != std::string::npos);
}
