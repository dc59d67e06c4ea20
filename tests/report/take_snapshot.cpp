// SPDX-License-Identifier: Apache-2.0
// Contents of a snapshot: blocks tile segments, segments sum to the reserved bytes, names come from the
// watched layer.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "driver/faulty.hpp"
#include "report/page_reader.hpp"
#include "report/undo.hpp"
#include "report/unpickle.hpp"
#include "report/whole.hpp"
#include "tarn/core/tag.hpp"
#include "tarn/debug/checked.hpp"
#include "tarn/debug/fenced.hpp"
#include "tarn/debug/poisoned.hpp"
#include "tarn/debug/with_history.hpp"
#include "tarn/policy/fallback_to.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/tagged.hpp"
#include "tarn/raii/compact.hpp"
#include "tarn/raii/graph_memory.hpp"
#include "tarn/raii/sleep.hpp"
#include "tarn/raii/stream.hpp"
#include "tarn/report/perfetto.hpp"
#include "tarn/report/pickle.hpp"
#include "tarn/report/stats.hpp"
#include "tarn/report/take_snapshot.hpp"
#include "tarn/report/timeline_html.hpp"
#include "tarn/sim.hpp"

using namespace tarn;
using tarn_test::blocks_with;
using tarn_test::check_history;
using tarn_test::check_whole;

namespace {

std::uintptr_t address_of(void const* p) {
  return reinterpret_cast<std::uintptr_t>(p);
}

sim_machine address_only_machine() {
  return sim_machine{sim_options{.backing = sim_backing::address_only}};
}

snapshot_block const* block_at(snapshot const& s, void const* p) {
  for (snapshot_segment const& segment : s.segments) {
    for (snapshot_block const& b : segment.blocks) {
      if (b.address == address_of(p)) return &b;
    }
  }
  return nullptr;
}

}  // namespace

TEST_CASE("take_snapshot names each live block as the watched layer does", "[report][snapshot]") {
  sim_machine const machine = address_only_machine();
  auto memory = sim_pages{machine.driver(0)} | pooled{} | with_history{.history = 100};
  basic_stream const stream{machine.driver(0)};
  void* small = nullptr;
  void* large = nullptr;
  {
    tag_scope const here{"weights"};
    small = memory.allocate(stream, 700);
  }
  large = memory.allocate({}, 5_MiB + 1);
  void* const gone = memory.allocate({}, 3_MiB);
  memory.deallocate({}, gone, 3_MiB);
  snapshot const s = take_snapshot(memory);
  check_whole(s);
  REQUIRE(block_at(s, small) != nullptr);
  snapshot_block const& b = *block_at(s, small);
  CHECK(b.use == block_use::live);
  CHECK(b.requested == 700);
  CHECK(b.bytes == 768);
  CHECK(s.tags[b.tag].name == "weights");
  REQUIRE(!s.locations[b.location].empty());
  CHECK(s.locations[b.location][0].file.find("take_snapshot.cpp") != std::string::npos);
  snapshot_block const& c = *block_at(s, large);
  CHECK(c.requested == 5_MiB + 1);
  CHECK(c.bytes == 5_MiB + 512);
  CHECK(c.tag == 0);
  CHECK(c.stream == s.null_stream);
  CHECK(b.stream != c.stream);
  CHECK(blocks_with(s, block_use::live).blocks == 2);
  REQUIRE(block_at(s, gone) != nullptr);  // in the thread's cache
  CHECK(block_at(s, gone)->use == block_use::cached);
  CHECK(s.pool.live == 768 + 5_MiB + 512);
  CHECK(s.device == 0);
  CHECK(s.tags[0].name == "untagged");
  memory.deallocate(stream, small, 700);
  memory.deallocate({}, large, 5_MiB + 1);
  snapshot const empty = take_snapshot(memory);
  check_whole(empty);
  CHECK(blocks_with(empty, block_use::live).blocks == 0);
}

TEST_CASE("take_snapshot reports blocks in magazines as cached and leaves them there", "[report][snapshot]") {
  sim_machine const machine = address_only_machine();
  auto memory = sim_pages{machine.driver(0)} | pooled{};
  std::vector<std::pair<void*, std::size_t>> blocks;
  for (std::size_t const bytes : {256_KiB, 100_KiB, std::size_t{300}, std::size_t{5000}, 9_MiB}) {
    for (int i = 0; i < 3; ++i) blocks.emplace_back(memory.allocate({}, bytes), bytes);
  }
  for (auto const& [p, bytes] : blocks) memory.deallocate({}, p, bytes);
  snapshot const s = take_snapshot(memory);
  check_whole(s);
  CHECK(blocks_with(s, block_use::live).blocks == 0);
  std::uint64_t const calls = machine.calls().memory();
  for (auto const& [p, bytes] : blocks) {
    if (bytes > 1_MiB) continue;  // the thread keeps the last of them; the others are one free range
    REQUIRE(block_at(s, p) != nullptr);
    CHECK(block_at(s, p)->use == block_use::cached);
  }
  void* const again = memory.allocate({}, 300);
  CHECK(block_at(take_snapshot(memory), again)->use == block_use::live);
  CHECK(machine.calls().memory() == calls);
  memory.deallocate({}, again, 300);
}

TEST_CASE("take_snapshot reports a block freed on another stream as cached for that stream",
          "[report][snapshot]") {
  sim_machine const machine = address_only_machine();
  auto memory = sim_pages{machine.driver(0)} | pooled{} | with_history{};
  basic_stream const a{machine.driver(0)};
  basic_stream const b{machine.driver(0)};
  std::vector<void*> blocks;
  for (int i = 0; i < 500; ++i) blocks.push_back(memory.allocate(a, 1000));
  for (int i = 0; i < 400; ++i) memory.deallocate(b, blocks[static_cast<std::size_t>(i)], 1000);
  snapshot const s = take_snapshot(memory);
  check_whole(s);
  CHECK(blocks_with(s, block_use::live).blocks == 100);
  stream_id id_of_b = 0;
  REQUIRE(machine.driver(0).identify(b, id_of_b).ok());
  std::size_t of_b = 0;
  for (auto const& segment : s.segments) {
    for (auto const& block : segment.blocks)
      of_b += block.use == block_use::cached && block.stream == id_of_b ? block.bytes : 0;
  }
  CHECK(of_b >= 400 * 1024);
  for (std::size_t i = 400; i < 500; ++i) memory.deallocate(a, blocks[i], 1000);
}

TEST_CASE("take_snapshot reports a block that a graph uses as deferred, with the number of its graph_memory",
          "[report][snapshot][graph_memory]") {
  sim_machine const machine = address_only_machine();
  auto const try_on = [&](auto memory) {
    basic_stream const s{machine.driver(0)};
    auto const capture = [&](auto& owner, auto const& work) {
      capture_scope const scope(owner, s);
      sim_graph graph;
      REQUIRE(machine.begin_capture(s).ok());
      work();
      REQUIRE(machine.end_capture(s, graph).ok());
    };
    void* const small = memory.allocate(s, 700);
    void* const large = memory.allocate(s, 3_MiB);
    void* const live = memory.allocate(s, 3_MiB);
    void* of_first = nullptr;
    {
      graph_memory first(memory), second(memory);
      capture(first, [&] {
        of_first = memory.allocate(s, 5000);
        memory.deallocate(s, large, 3_MiB);
      });
      capture(second, [&] {
        memory.deallocate(s, small, 700);
        memory.deallocate(s, of_first, 5000);
      });
      snapshot const seen = take_snapshot(memory);
      check_whole(seen);
      auto const keeper = [&](void const* p) {
        snapshot_block const* const b = block_at(seen, p);
        REQUIRE(b != nullptr);
        CHECK(b->use == block_use::deferred);
        return b->graph_memory;
      };
      CHECK(keeper(large) == first.state().number);
      CHECK(keeper(small) == second.state().number);
      CHECK(keeper(of_first) == second.state().number);
      CHECK(block_at(seen, large)->requested == 3_MiB);
      CHECK(block_at(seen, large)->stream == block_at(seen, live)->stream);
      CHECK(block_at(seen, live)->use == block_use::live);
      CHECK(block_at(seen, live)->graph_memory == 0);
      CHECK(blocks_with(seen, block_use::deferred).bytes == seen.pool.deferred);
    }
    empty_cache(memory);
    snapshot const after = take_snapshot(memory);
    CHECK(blocks_with(after, block_use::deferred).bytes == 0);
    CHECK(blocks_with(after, block_use::live).bytes == 3_MiB);
    memory.deallocate(s, live, 3_MiB);
  };
  SECTION("over pages") {
    try_on(sim_pages{machine.driver(0)} | pooled{} | with_history{.history = 100});
  }
  SECTION("over blocks, without a history") {
    try_on(sim_malloc{machine.driver(0)} | pooled{});
  }
}

TEST_CASE("take_snapshot reports what a capture has freed and may take again as cached",
          "[report][snapshot]") {
  sim_machine const machine;
  sim_stream const stream{machine.driver()};
  auto memory = sim_pages{machine.driver(0)} | pooled{} | with_history{};
  graph_memory graphs(memory);
  capture_scope const scope(graphs, stream);
  sim_graph graph;
  REQUIRE(machine.begin_capture(stream).ok());
  for (std::size_t const bytes : {std::size_t{1000}, 4_MiB})
    memory.deallocate(stream, memory.allocate(stream, bytes), bytes);
  snapshot const s = take_snapshot(memory);
  check_whole(s);
  CHECK(s.pool.live == 0);
  CHECK(blocks_with(s, block_use::live).blocks == 0);
  CHECK(blocks_with(s, block_use::cached).bytes + blocks_with(s, block_use::deferred).bytes ==
        s.pool.reserved);
  REQUIRE(machine.end_capture(stream, graph).ok());
}

TEST_CASE("take_snapshot reports a block that another stream still uses as deferred", "[report][snapshot]") {
  sim_machine const machine = address_only_machine();
  auto memory = sim_pages{machine.driver(0)} | pooled{} | with_history{.history = 10};
  basic_stream const other{machine.driver(0)};
  tag_scope const here{"halo"};
  void* const p = memory.allocate({}, 3_MiB);
  void* const q = memory.allocate({}, 4000);
  REQUIRE(machine.driver(0).launch(other, 1'000'000'000).ok());
  memory.record_stream(p, 3_MiB, other);
  memory.record_stream(q, 4000, other);
  memory.deallocate({}, p, 3_MiB);
  memory.deallocate({}, q, 4000);
  snapshot const s = take_snapshot(memory);
  check_whole(s);
  for (void* const each : {p, q}) {
    REQUIRE(block_at(s, each) != nullptr);
    CHECK(block_at(s, each)->use == block_use::deferred);
    CHECK(s.tags[block_at(s, each)->tag].name == "halo");
  }
  CHECK(blocks_with(s, block_use::deferred).bytes == s.pool.deferred);
  CHECK(blocks_with(s, block_use::live).blocks == 0);
}

namespace {

/// Every other block of 2 MiB is free and the source is exhausted: larger blocks are remapped from pieces.
struct checkerboard {
  sim_machine machine = address_only_machine();
  decltype(sim_pages{} | limited{64_MiB} | pooled{} | with_history{.history = 1000}) memory =
      sim_pages{machine.driver(0)} | limited{64_MiB} | pooled{} | with_history{.history = 1000};
  std::vector<void*> kept;

  checkerboard() {
    std::vector<void*> freed;
    for (int i = 0; i < 24; ++i) (i % 2 == 0 ? kept : freed).push_back(memory.allocate({}, 2_MiB));
    for (void* const p : freed) memory.deallocate({}, p, 2_MiB);
  }
  ~checkerboard() {
    for (void* const p : kept) memory.deallocate({}, p, 2_MiB);
  }
  checkerboard(checkerboard const&) = delete;
  checkerboard& operator=(checkerboard const&) = delete;
};

}  // namespace

TEST_CASE("take_snapshot reports a remapped block as a segment at its user's address, and only there",
          "[report][snapshot][view][pages]") {
  checkerboard board;
  void* const large = board.memory.allocate({}, 23_MiB);
  REQUIRE(board.memory->upstream()->state().remaps > 0);
  snapshot const s = take_snapshot(board.memory);
  check_whole(s);
  check_history(s);
  std::size_t views = 0;
  for (snapshot_segment const& segment : s.segments) {
    if (segment.kind != segment_kind::view) continue;
    ++views;
    CHECK(segment.address == address_of(large));
    CHECK(segment.bytes == 23_MiB);
    CHECK(segment.pieces.size() > 2);
    CHECK(segment.handles >= segment.pieces.size());
    REQUIRE(segment.blocks.size() == 1);
    CHECK(segment.blocks[0].requested == 23_MiB);
  }
  CHECK(views == 1);
  CHECK(blocks_with(s, block_use::live).blocks == board.kept.size() + 1);
  CHECK(blocks_with(s, block_use::live).bytes == s.pool.live);
  board.memory.deallocate({}, large, 23_MiB);
  snapshot const kept_by_thread = take_snapshot(board.memory);
  check_whole(kept_by_thread);
  CHECK(blocks_with(kept_by_thread, block_use::live).blocks == board.kept.size());
  board.memory.trim(0);
  snapshot const after = take_snapshot(board.memory);
  check_whole(after);
  for (snapshot_segment const& segment : after.segments) CHECK(segment.kind == segment_kind::pages);
}

TEST_CASE("take_snapshot over blocks reports each upstream block as a segment, with its unaligned ends",
          "[report][snapshot]") {
  sim_machine const machine = address_only_machine();
  auto memory = sim_malloc{machine.driver(0)} | pooled{} | with_history{.history = 100};
  remember_growth(memory);
  void* const small = memory.allocate({}, 700);
  void* const large = memory.allocate({}, 40_MiB);
  snapshot const s = take_snapshot(memory);
  check_whole(s);
  check_history(s);
  REQUIRE(s.segments.size() == 2);
  for (snapshot_segment const& segment : s.segments) {
    CHECK(segment.kind == segment_kind::upstream);
    CHECK(segment.handles == 1);
  }
  CHECK((s.segments[0].is_small != s.segments[1].is_small));
  CHECK(blocks_with(s, block_use::live).requested == 700 + 40_MiB);
  memory.deallocate({}, small, 700);
  memory.deallocate({}, large, 40_MiB);
  memory.trim(0);
  snapshot const empty = take_snapshot(memory);
  check_history(empty);
  CHECK(empty.segments.empty());
  CHECK(empty.events.size() == 2 + 2 + 4);
}

TEST_CASE("take_snapshot of a pool without watched reports blocks without names", "[report][snapshot]") {
  sim_machine const machine = address_only_machine();
  sim_pool pool{sim_pages{machine.driver(0)}};
  remember_growth(pool);
  void* const p = pool.allocate({}, 700);
  void* const q = pool.allocate({}, 7_MiB);
  snapshot const s = take_snapshot(pool, "unwatched");
  CHECK(s.title == "unwatched");
  check_whole(s);
  check_history(s);
  CHECK(blocks_with(s, block_use::live).blocks == 2);
  CHECK(blocks_with(s, block_use::live).bytes == 768 + 7_MiB);
  CHECK(blocks_with(s, block_use::live).requested == 0);
  CHECK(!s.events.empty());
  CHECK(s.tags.size() == 1);
  CHECK(s.locations.size() == 1);
  CHECK(s.started_ns > 1'600'000'000'000'000'000);
  pool.deallocate({}, p, 700);
  pool.deallocate({}, q, 7_MiB);
}

TEST_CASE(
    "take_snapshot of a pool without watched dates its growth by both clocks, after what was held before",
    "[report][snapshot]") {
  // The wall clock was read after the history was merged, so events appeared later than the calls that caused
  // them.
  sim_machine const machine = address_only_machine();
  auto pool = sim_pages{machine.driver(0)} | pooled{.largest_handle = 2_MiB};
  void* const held = pool.allocate({}, 4'000_MiB);  // 2000 handles, so that merging takes time
  remember_growth(pool);
  CHECK(take_snapshot(pool).events.front().time_ns == 0);
  std::uint64_t const steady_before = detail::steady_now_ns();
  std::uint64_t const before = detail::now_since_1970_ns();
  void* const p = pool.allocate({}, 64_MiB);
  std::uint64_t const after = detail::now_since_1970_ns();
  std::uint64_t const steady_after = detail::steady_now_ns();
  snapshot const s = take_snapshot(pool);
  check_whole(s);
  check_history(s);
  std::size_t grown = 0;
  for (snapshot_event const& e : s.events) {
    if (e.time_ns == 0) continue;
    grown += e.bytes;
    CHECK(s.steady_ns + e.time_ns > steady_before);
    CHECK(s.steady_ns + e.time_ns <= steady_after);
    CHECK(s.started_ns + e.time_ns > before - 50'000);
  }
  CHECK(grown >= 64_MiB);
  std::uint64_t latest = ~std::uint64_t{0};
  for (int i = 0; i < 10; ++i) {  // the thread may be suspended between two clocks, but not each time
    snapshot const again = take_snapshot(pool);
    latest = std::min(latest, again.started_ns + again.events.back().time_ns);
  }
  CHECK(latest < after + 50'000);
  pool.deallocate({}, p, 64_MiB);
  pool.deallocate({}, held, 4'000_MiB);
}

TEST_CASE("take_snapshot works if the driver does not report the identity of its default stream",
          "[report][snapshot]") {
  sim_machine const machine = address_only_machine();
  fault_plan const plan;
  auto memory = basic_pages<faulty<sim_driver>>(faulty(machine.driver(0), plan)) | pooled{};
  void* const p = memory.allocate({}, 5_MiB);
  CHECK(take_snapshot(memory).null_stream != 0);
  plan.fail(driver_call::identify, 1);
  snapshot const s = take_snapshot(memory);
  CHECK(s.null_stream == 0);
  check_whole(s);
  CHECK(blocks_with(s, block_use::live).bytes == 5_MiB);
  memory.deallocate({}, p, 5_MiB);
}

TEST_CASE("take_snapshot without a pool reports each block as a segment", "[report][snapshot]") {
  sim_machine const machine = address_only_machine();
  auto memory = sim_malloc{machine.driver(0)} | with_history{.history = 10};
  void* const p = memory.allocate({}, 3000);
  void* const q = memory.allocate({}, 5_MiB);
  snapshot const s = take_snapshot(memory);
  check_whole(s);
  CHECK(s.segments.size() == 2);
  CHECK(s.pool.live == 3000 + 5_MiB);
  CHECK(s.pool.reserved == s.pool.live);
  CHECK(s.events.size() == 2);
  memory.deallocate({}, p, 3000);
  memory.deallocate({}, q, 5_MiB);
  CHECK(take_snapshot(memory).segments.empty());
}

namespace {

/// The values of a counter of the Perfetto file, in order.
std::vector<std::int64_t> counter_in_perfetto(snapshot const& s, std::string const& name) {
  std::ostringstream file;
  write_perfetto(file, s);
  std::string const text = file.str();
  std::string const begin = "\"name\":\"" + name + "\"", number = "\"bytes\":";
  std::vector<std::int64_t> values;
  for (std::size_t at = 0; (at = text.find(begin, at)) != text.npos; ++at)
    values.push_back(std::stoll(text.substr(text.find(number, at) + number.size(), 20)));
  return values;
}

/// The live bytes after each event of the page, undone from the blocks that are live at the end: by the
/// addresses of its events, as its script does.
std::vector<std::int64_t> live_on_page(snapshot const& s) {
  std::ostringstream file;
  write_timeline_html(file, s);
  snapshot const page = tarn_test::read_page(file.str());
  std::map<std::uintptr_t, std::int64_t> live;
  for (snapshot_segment const& segment : page.segments) {
    for (snapshot_block const& b : segment.blocks) {
      if (b.use == block_use::live) live[b.address] = static_cast<std::int64_t>(b.bytes);
    }
  }
  std::size_t misfits = 0;
  std::vector<std::int64_t> values;
  auto const note = [&] {
    values.push_back(0);
    for (auto const& [address, bytes] : live) values.back() += bytes;
  };
  note();
  for (std::size_t i = page.events.size(); i-- > 0;) {
    snapshot_event const& e = page.events[i];
    if (e.kind == snapshot_event_kind::allocate) misfits += live.erase(e.address) == 0;
    if (e.kind == snapshot_event_kind::free)
      misfits += !live.emplace(e.address, static_cast<std::int64_t>(e.bytes)).second;
    if (e.kind <= snapshot_event_kind::free) note();
  }
  CHECK(misfits == 0);
  std::reverse(values.begin(), values.end());
  return values;
}

/// The page, the Perfetto trace and the pickle show the same live bytes over time; returns them.
std::vector<std::int64_t> live_over_time(snapshot const& s) {
  check_whole(s);
  std::vector<std::int64_t> const traced = counter_in_perfetto(s, "live bytes");
  CHECK(traced == live_on_page(s));
  CHECK(traced.back() == static_cast<std::int64_t>(blocks_with(s, block_use::live).bytes));
  std::ostringstream pickle;
  write_pickle(pickle, s);
  CHECK(tarn_test::undone_history(*tarn_test::unpickler(pickle.str()).read(), 0).mistake() == "");
  return traced;
}

using curve = std::vector<std::int64_t>;
constexpr std::int64_t mib = 1 << 20;

/// Allocates and frees under a tag, and compares each figure of the snapshot with the blocks that the program
/// has.
template <class Memory>
void check_figures(Memory memory) {
  struct block {
    void* p;
    std::size_t bytes, alignment;
  };
  std::vector<block> live;
  auto const free_first = [&] {
    block const b = live.front();
    live.erase(live.begin());
    memory.deallocate({}, b.p, b.bytes, b.alignment);
  };
  {
    tag_scope const here{"x"};
    for (std::size_t i = 0; i < 40; ++i) {
      std::size_t const bytes = i % 3 == 0 ? 3_MiB : 100 + 900 * i;
      std::size_t const alignment = i % 8 == 0 ? 4096 : 256;
      live.push_back({memory.allocate({}, bytes, alignment), bytes, alignment});
      if (i % 2 != 0) free_first();
    }
  }
  snapshot const s = take_snapshot(memory);
  check_whole(s);
  check_history(s);
  tarn_test::block_sum const in_use = blocks_with(s, block_use::live);
  tarn_test::block_sum const deferred = blocks_with(s, block_use::deferred);
  CHECK(in_use.blocks == live.size());
  std::size_t requested = 0;
  for (block const& b : live) requested += b.bytes;
  CHECK(in_use.requested == requested);
  CHECK(in_use.bytes + deferred.bytes == s.pool.live);
  CHECK(in_use.blocks + deferred.blocks == s.pool.live_blocks);
  CHECK(deferred.bytes == s.pool.deferred);
  CHECK(deferred.blocks == s.pool.deferred_blocks);
  REQUIRE(s.tags.size() == 2);
  CHECK(s.tags[1].bytes == in_use.bytes);
  CHECK(s.tags[1].blocks == in_use.blocks);
  for (auto const& [p, bytes, alignment] : live) {
    std::size_t holders = 0;
    for (snapshot_segment const& segment : s.segments) {
      for (snapshot_block const& b : segment.blocks) {
        bool const holds = b.address <= address_of(p) && address_of(p) + bytes <= b.address + b.bytes;
        holders += holds && b.use == block_use::live && b.requested == bytes && b.tag == 1 ? 1 : 0;
      }
    }
    CHECK(holders == 1);
  }
  auto const number = [](std::size_t n) { return static_cast<std::int64_t>(n); };
  for (char const* const name : {"live bytes", "tag x"}) {
    std::vector<std::int64_t> const values = counter_in_perfetto(s, name);
    REQUIRE(values.size() == 61);  // at the start, at 40 allocations and at 20 frees
    CHECK(values.front() == 0);
    CHECK(values.back() == number(in_use.bytes));
    CHECK(*std::max_element(values.begin(), values.end()) == number(s.tags[1].peak_bytes));
  }
  while (!live.empty()) free_first();
}

}  // namespace

TEST_CASE("take_snapshot adds up over layers that move blocks or keep freed ones",
          "[report][snapshot][perfetto]") {
  sim_machine const machine{sim_options{.capacity = 2_GiB, .taken = 0}};
  auto const pool = [&] { return sim_pages{machine.driver(0)} | pooled{}; };
  with_history const recorded{.history = 1000};
  check_figures(pool() | recorded);
  check_figures(pool() | fenced{} | recorded);
  check_figures(pool() | checked{} | recorded);
  check_figures(pool() | checked{.quarantine_blocks = 5} | poisoned{} | fenced{} | tracked{} | recorded);
  check_figures(pool() | fenced{} | checked{} | recorded);
}

TEST_CASE("take_snapshot reports each block of a source that fallback_to adds as a segment of its own",
          "[report][snapshot][viewer_history]") {
  sim_machine const machine;
  auto memory = sim_pages{machine.driver(0)} | limited{6_MiB} | pooled{} |
                fallback_to{sim_pinned_host{machine.driver(0)}} | with_history{};
  void* const own = memory.allocate({}, 4_MiB);
  void* const added = memory.allocate({}, 8_MiB);
  snapshot s = take_snapshot(memory);
  check_history(s);
  CHECK(live_over_time(s) == curve{0, 4 * mib, 12 * mib});
  CHECK(s.pool.live == 12_MiB);
  CHECK(s.pool.reserved == 12_MiB);
  CHECK(s.pool.reserved_peak == 12_MiB);
  CHECK(s.pool.handles_peak == s.pool.handles);
  CHECK(s.pool.larger.reserved.current == static_cast<std::int64_t>(12_MiB));
  CHECK(s.pool.larger.reserved.peak == static_cast<std::int64_t>(12_MiB));
  REQUIRE(block_at(s, added) != nullptr);
  CHECK(block_at(s, added)->requested == 8_MiB);
  memory.deallocate({}, added, 8_MiB);
  s = take_snapshot(memory);
  CHECK(live_over_time(s) == curve{0, 4 * mib, 12 * mib, 4 * mib});
  CHECK(s.pool.reserved == 4_MiB);
  memory.deallocate({}, own, 4_MiB);
}

TEST_CASE("reports omit an allocation whose block the pool has released without the history",
          "[report][snapshot][viewer_history]") {
  sim_machine const machine = address_only_machine();
  auto pool = sim_pages{machine.driver(0)} | pooled{};
  auto memory = pool | with_history{};
  void* const kept = memory.allocate({}, 8_MiB);
  void* const gone = memory.allocate({}, 64_MiB);
  pool.deallocate({}, gone, 64_MiB);
  pool.empty_cache();
  CHECK(live_over_time(take_snapshot(memory)) == curve{0, 8 * mib});
  memory.deallocate({}, kept, 8_MiB);
}

TEST_CASE("reports omit a free whose address the pool has handed out again without the history",
          "[report][snapshot][viewer_history]") {
  sim_machine const machine = address_only_machine();
  auto pool = sim_pages{machine.driver(0)} | pooled{};
  auto memory = pool | with_history{};
  void* const kept = memory.allocate({}, 8_MiB);
  void* const freed = memory.allocate({}, 4_MiB);
  memory.deallocate({}, freed, 4_MiB);
  void* const past = pool.allocate({}, 4_MiB);
  REQUIRE(past == freed);
  CHECK(live_over_time(take_snapshot(memory)) == curve{0, 8 * mib, 12 * mib});
  pool.deallocate({}, past, 4_MiB);
  memory.deallocate({}, kept, 8_MiB);
}

TEST_CASE("take_snapshot reports quarantined blocks as deferred, on both sides of the history",
          "[report][snapshot]") {
  sim_machine const machine;
  sim_driver const driver = machine.driver(0);
  auto const check = [](auto memory, std::size_t keeps) {
    void* const live = memory.allocate({}, 3_MiB);
    void* const small = memory.allocate({}, 1000);
    void* const freed = memory.allocate({}, 5_MiB);
    memory.deallocate({}, freed, 5_MiB);
    snapshot const s = take_snapshot(memory);
    check_whole(s);
    CHECK(blocks_with(s, block_use::deferred).blocks == keeps);
    CHECK(blocks_with(s, block_use::deferred).bytes == s.pool.deferred);
    CHECK(s.pool.deferred_blocks == keeps);
    CHECK(s.pool.deferred >= keeps * 5_MiB);
    CHECK(blocks_with(s, block_use::live).blocks == 2);
    CHECK(s.pool.live >= 3_MiB + 1000 + keeps * 5_MiB);
    if (blocks_with(s, block_use::live).requested != 0) {
      CHECK(live_over_time(s).size() == 5);
      CHECK(s.tags[0].bytes == blocks_with(s, block_use::live).bytes);
    }
    std::int64_t const in_parts = s.pool.smaller.reserved.current + s.pool.larger.reserved.current;
    CHECK(in_parts == static_cast<std::int64_t>(s.pool.reserved));
    std::int64_t const handles = s.pool.smaller.handles.current + s.pool.larger.handles.current;
    CHECK(handles == static_cast<std::int64_t>(s.pool.handles));
    memory.deallocate({}, live, 3_MiB);
    memory.deallocate({}, small, 1000);
  };
  auto const pool = [&] { return sim_pages{driver} | pooled{}; };
  check(pool() | checked{}, 1);
  check(pool() | checked{} | with_history{}, 1);
  check(pool() | with_history{} | checked{}, 1);
  check(pool() | with_history{}, 0);
  check(sim_malloc{driver} | checked{} | with_history{}, 1);
  check(sim_malloc{driver} | with_history{} | checked{}, 1);
  check(sim_malloc{driver} | with_history{}, 0);
  check(sim_pages{driver} | limited{2_MiB} | pooled{} | fallback_to{sim_malloc{driver}} | checked{} |
            with_history{},
        1);
}

TEST_CASE("take_snapshot takes no history of a layer below the pool, which sees the pool's segments",
          "[report][snapshot]") {
  sim_machine const machine{sim_options{.capacity = 2_GiB, .taken = 0}};
  auto memory = sim_malloc{machine.driver(0)} | with_history{.history = 100} | pooled{};
  void* const p = memory.allocate({}, 5_MiB);
  void* const q = memory.allocate({}, 6_MiB);
  memory.deallocate({}, p, 5_MiB);
  snapshot const s = take_snapshot(memory);
  check_whole(s);
  CHECK(blocks_with(s, block_use::live).bytes == s.pool.live);
  CHECK(blocks_with(s, block_use::live).requested == 0);
  CHECK(s.tags.size() == 1);
  for (snapshot_event const& e : s.events) CHECK(e.kind == snapshot_event_kind::reserve);
  memory.deallocate({}, q, 6_MiB);
}

TEST_CASE("take_snapshot reports blocks that bypass the watched layer as live with nothing requested",
          "[report][snapshot]") {
  sim_machine const machine = address_only_machine();
  auto pool = sim_pages{machine.driver(0)} | pooled{};
  auto memory = pool | with_history{};
  void* const past = pool.allocate({}, 6_MiB);
  void* const seen = memory.allocate({}, 5_MiB);
  snapshot const s = take_snapshot(memory);
  check_whole(s);
  REQUIRE(block_at(s, past) != nullptr);
  CHECK(block_at(s, past)->use == block_use::live);
  CHECK(block_at(s, past)->requested == 0);
  CHECK(block_at(s, seen)->requested == 5_MiB);
  pool.deallocate({}, past, 6_MiB);
  memory.deallocate({}, seen, 5_MiB);
}

TEST_CASE("take_snapshot reports blocks in quarantine as cached while a memory tool is attached",
          "[report][snapshot]") {
  sim_machine const machine{sim_options{.capacity = 2_GiB, .taken = 0, .tool = sim_tool::attached}};
  auto memory = sim_pages{machine.driver(0)} | pooled{} | with_history{};
  void* const p = memory.allocate({}, 1000);
  void* const q = memory.allocate({}, 3_MiB);
  void* const r = memory.allocate({}, 4_MiB);
  memory.deallocate({}, p, 1000);
  memory.deallocate({}, q, 3_MiB);
  snapshot const s = take_snapshot(memory);
  check_whole(s);
  CHECK(blocks_with(s, block_use::live).blocks == 1);
  CHECK(block_at(s, q)->use == block_use::cached);
  CHECK(block_at(s, p)->use == block_use::cached);
  for (snapshot_segment const& segment : s.segments) CHECK(segment.kind == segment_kind::upstream);
  memory.deallocate({}, r, 4_MiB);
}

TEST_CASE("take_snapshot orders the pool's reserve and release events among the calls that caused them",
          "[report][snapshot]") {
  sim_machine const machine = address_only_machine();
  auto memory = sim_pages{machine.driver(0)} | limited{100_MiB} | pooled{.largest_handle = 20_MiB} |
                with_history{.history = 100};
  void* const before = memory.allocate({}, 30_MiB);  // before remember_growth
  remember_growth(memory, 16);
  void* const p = memory.allocate({}, 40_MiB);
  CHECK_THROWS_AS(memory.allocate({}, 90_MiB), out_of_memory);
  memory.deallocate({}, p, 40_MiB);
  memory.trim(0);
  snapshot const s = take_snapshot(memory);
  check_whole(s);
  check_history(s);
  std::size_t reserved = 0;
  std::size_t at_refusal = 0;
  std::size_t at_allocation = 0;
  for (snapshot_event const& e : s.events) {
    if (e.kind == snapshot_event_kind::reserve) reserved += e.bytes;
    if (e.kind == snapshot_event_kind::release) reserved -= e.bytes;
    if (e.kind == snapshot_event_kind::refused) {
      at_refusal = reserved;
      CHECK(e.requested == 90_MiB);
    }
    if (e.kind == snapshot_event_kind::allocate && e.address == address_of(p)) at_allocation = reserved;
  }
  CHECK(at_allocation >= 70_MiB);
  CHECK(at_refusal != 0);
  CHECK(reserved >= 30_MiB);
  CHECK(reserved < 40_MiB);
  remember_growth(memory, 0);
  check_history(take_snapshot(memory));
  memory.deallocate({}, before, 30_MiB);
}

TEST_CASE("the history of growth balances after a compaction, asleep and awake again",
          "[report][snapshot][perfetto][pages]") {
  sim_machine const machine;
  auto memory = sim_pages{machine.driver(0)} | pooled{};
  bool const is_recorded = GENERATE(true, false);
  if (is_recorded) remember_growth(memory, 100);
  auto const is_balanced = [&](std::size_t reserved) {
    snapshot const s = take_snapshot(memory);
    CHECK(s.pool.reserved == reserved);
    check_history(s);
    // The curve ends at what is reserved, and begins at 0 if all was recorded.
    std::vector<std::int64_t> const values = counter_in_perfetto(s, "reserved bytes");
    REQUIRE(!values.empty());
    CHECK(values.back() == static_cast<std::int64_t>(reserved));
    if (is_recorded) CHECK(values.front() == 0);
  };
  memory.deallocate({}, memory.allocate({}, 20_MiB), 20_MiB);
  void* const p = memory.allocate({}, 2_MiB);
  REQUIRE(machine.driver(0).synchronize_device().ok());
  REQUIRE(compact(memory).released == 18_MiB);
  is_balanced(2_MiB);
  REQUIRE(tarn::sleep(memory, contents::discarded) == 2_MiB);
  is_balanced(0);
  wake(memory);
  is_balanced(2_MiB);
  memory.deallocate({}, p, 2_MiB);
}

TEST_CASE("take_snapshot keeps the latest growth events, and the history still balances",
          "[report][snapshot]") {
  sim_machine const machine = address_only_machine();
  auto memory = sim_pages{machine.driver(0)} | pooled{} | with_history{};
  remember_growth(memory, 5);
  std::vector<void*> live;
  for (int i = 0; i < 10; ++i) {
    live.push_back(memory.allocate({}, 25_MiB));
    memory.deallocate({}, memory.allocate({}, 13_MiB), 13_MiB);
    memory.trim(0);
  }
  snapshot const s = take_snapshot(memory);
  check_whole(s);
  check_history(s);
  for (void* const p : live) memory.deallocate({}, p, 25_MiB);
}

TEST_CASE("take_snapshot is consistent while other threads allocate", "[report][snapshot][threads]") {
  sim_machine const machine = address_only_machine();
  auto memory = sim_pages{machine.driver(0)} | limited{512_MiB} | pooled{} | with_history{.history = 1000};
  remember_growth(memory);
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      basic_stream const stream{machine.driver(0)};
      std::mt19937 random(t);
      std::vector<std::pair<void*, std::size_t>> live;
      while (!over) {
        if (live.size() < 20 && random() % 2 == 0) {
          std::size_t const bytes = std::size_t{1} << (6 + random() % 17);
          live.emplace_back(memory.allocate(stream, bytes), bytes);
        } else if (!live.empty()) {
          std::size_t const i = random() % live.size();
          memory.deallocate(stream, live[i].first, live[i].second);
          live[i] = live.back();
          live.pop_back();
        }
        if (random() % 1000 == 0) memory.trim(0);
      }
      for (auto const& [p, bytes] : live) memory.deallocate(stream, p, bytes);
    });
  }
  threads.emplace_back([&] {  // the reserved bytes change all the time
    while (!over) {
      memory.deallocate({}, memory.allocate({}, 30_MiB), 30_MiB);
      memory.trim(0);
    }
  });
  for (int i = 0; i < 100; ++i) {
    snapshot const s = take_snapshot(memory);
    check_whole(s);
    std::set<std::uintptr_t> seen;
    for (auto const& segment : s.segments) {
      for (auto const& b : segment.blocks) {
        if (b.requested != 0) CHECK(seen.insert(b.address).second);
      }
    }
    CHECK(seen.size() <= 61);
  }
  over = true;
  for (std::thread& t : threads) t.join();
  snapshot const s = take_snapshot(memory);
  check_whole(s);
  CHECK(blocks_with(s, block_use::live).blocks == 0);
}

TEST_CASE("take_snapshot reads again, at most twice, if a block was freed while it read",
          "[report][snapshot]") {
  sim_machine const machine = address_only_machine();
  static std::function<void()> meanwhile;
  stack_hooks hooks;
  hooks.capture = [](void** frames, std::size_t) -> std::size_t {
    static int here = 0;
    frames[0] = &here;
    return 1;
  };
  hooks.name = [](void*, history_frame&) { meanwhile(); };
  auto memory = sim_pages{machine.driver(0)} | pooled{} | with_history{.history = 100, .stacks = hooks};
  int const blocks = GENERATE(2, 4);
  std::vector<void*> live;
  for (int i = 0; i < blocks; ++i) live.push_back(memory.allocate({}, 5_MiB));
  auto const free_last = [&] {
    if (live.empty()) return;
    memory.deallocate({}, live.back(), 5_MiB);
    live.pop_back();
  };
  meanwhile = free_last;
  snapshot const s = take_snapshot(memory);
  check_whole(s);
  CHECK(live.size() == (blocks == 2 ? 0 : 1));
  // The block that was freed during the last reading is live in the history that it reports.
  CHECK(blocks_with(s, block_use::live).blocks == (blocks == 2 ? 0 : 2));
  auto const is_free = [](snapshot_event const& e) { return e.kind == snapshot_event_kind::free; };
  CHECK(std::count_if(s.events.begin(), s.events.end(), is_free) == 2);
  while (!live.empty()) free_last();
}

TEST_CASE("merge_history resolves contradictions between the layer and the pool so that blocks tile",
          "[report][snapshot][merge_history]") {
  auto const pool = [] {
    std::vector<snapshot_segment> segments(1);
    segments[0].address = 0x1000;
    segments[0].bytes = 0x4000;
    auto const add = [&](std::uintptr_t at, std::size_t bytes, block_use use) {
      snapshot_block b;
      b.address = at;
      b.bytes = bytes;
      b.use = use;
      segments[0].blocks.push_back(b);
    };
    add(0x1000, 0x1000, block_use::live);
    add(0x2000, 0x2000, block_use::cached);
    add(0x4000, 0x1000, block_use::live);
    return segments;
  };
  auto const of_layer = [](std::uintptr_t at, std::size_t bytes) {
    history_block w;
    w.address = at;
    w.bytes = w.requested = bytes;
    w.tag = 1;
    return w;
  };
  auto const lay = [&](std::vector<history_block> const& live, bool agreed) {
    auto segments = pool();
    CHECK(detail::merge_history(segments, live) == agreed);
    std::uintptr_t at = 0x1000;
    std::vector<std::pair<std::size_t, block_use>> found;
    for (snapshot_block const& b : segments[0].blocks) {
      CHECK(b.address == at);
      CHECK((b.tag == 1) == (b.requested != 0));
      found.emplace_back(b.bytes, b.use);
      at += b.bytes;
    }
    CHECK(at == 0x5000);
    return found;
  };
  using found = std::vector<std::pair<std::size_t, block_use>>;
  constexpr auto live = block_use::live;
  constexpr auto cached = block_use::cached;
  found const as_it_was{{0x1000, live}, {0x2000, cached}, {0x1000, live}};
  CHECK(lay({}, true) == as_it_was);
  CHECK(lay({of_layer(0x1000, 0xf00), of_layer(0x4000, 0x1000)}, true) == as_it_was);
  // Freed since the layer's record: live as in the layer, within the pool's segment.
  CHECK(lay({of_layer(0x2800, 0x300)}, false) ==
        found{{0x1000, live}, {0x800, cached}, {0x300, live}, {0x1500, cached}, {0x1000, live}});
  CHECK(lay({of_layer(0x3800, 0x3000)}, false) ==
        found{{0x1000, live}, {0x1800, cached}, {0x800, live}, {0x1000, live}});
  // Two blocks of the layer in one block of the pool, and one with a fence before it.
  CHECK(lay({of_layer(0x1000, 0x200), of_layer(0x1300, 0x100), of_layer(0x4100, 0x100)}, true) ==
        found{{0x200, live}, {0x100, live}, {0xd00, live}, {0x2000, cached}, {0x100, live}, {0xf00, live}});
  // In no segment of the pool: released to the driver since.
  CHECK(lay({of_layer(0x100, 0x100), of_layer(0x9000, 0x100)}, false) == as_it_was);
  CHECK(lay({of_layer(0x9000, 0x100)}, false) == as_it_was);
}

TEST_CASE("take_snapshot orders a release after the free before it, however long the snapshot takes",
          "[report][snapshot]") {
  sim_machine const machine = address_only_machine();
  stack_hooks slow;
  slow.capture = [](void** frames, std::size_t) -> std::size_t {
    static int here = 0;
    frames[0] = &here;
    return 1;
  };
  slow.name = [](void*, history_frame& f) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    f.function = "slow";
  };
  auto memory = sim_pages{machine.driver(0)} | pooled{} | with_history{.history = 100, .stacks = slow};
  memory.deallocate({}, memory.allocate({}, 64_MiB), 64_MiB);
  memory.empty_cache();
  snapshot const s = take_snapshot(memory);
  std::size_t freed = 0;
  std::size_t released = 0;
  for (std::size_t i = 0; i < s.events.size(); ++i) {
    if (s.events[i].kind == snapshot_event_kind::free) freed = i;
    if (s.events[i].kind == snapshot_event_kind::release && released == 0) released = i;
    CHECK(s.events[i].time_ns <= s.now_ns);
  }
  REQUIRE(freed != 0);
  CHECK(released > freed);
}

TEST_CASE("take_snapshot keeps the growth history of a pool that gets a `with_history` layer later",
          "[report][snapshot]") {
  sim_machine const machine = address_only_machine();
  auto pool = sim_pages{machine.driver(0)} | pooled{};
  remember_growth(pool);
  pool.deallocate({}, pool.allocate({}, 64_MiB), 64_MiB);
  pool.empty_cache();
  std::size_t const before = take_snapshot(pool).events.size();
  REQUIRE(before >= 2);
  auto const watching = pool | with_history{.history = 10};
  CHECK(take_snapshot(pool).events.size() == before);
}
