// SPDX-License-Identifier: Apache-2.0
// What a pool reports to an attached memory tool. The simulated tool behaves as compute-sanitizer does.
#include "tarn/pool/tool/tool_regions.hpp"

#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "contract/resource_contract.hpp"
#include "driver/faulty.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/tracked.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/raii/graph_memory.hpp"
#include "tarn/report/stats.hpp"
#include "tarn/source/host_memory.hpp"
#include "tarn/source/sim_sources.hpp"

using namespace tarn;
using tarn_test::test_stream;

namespace {
sim_machine watched_machine() {
  sim_options options;
  options.tool = sim_tool::attached;
  options.capacity = 4_GiB;
  // Only the declared accesses of simulated work count here; AddressSanitizer has tests of its own.
  options.backing = sim_backing::address_only;
  return sim_machine(options);
}

/// The number of tool findings for work that writes these bytes on a stream of its own.
std::size_t reports_of(sim_machine const& machine, void* p, std::ptrdiff_t offset, std::size_t bytes) {
  std::size_t const before = machine.tool_findings().size();
  test_stream const stream(machine.driver());
  (void)machine.launch(stream, 1000, {sim_writes(static_cast<char*>(p) + offset, bytes)});
  (void)machine.driver().synchronize_stream(stream);
  return machine.tool_findings().size() - before;
}

/// Runs the check on each kind of pool over device memory.
template <class Check>
void over_each_source(Check const& check) {
  SECTION("over pages") {
    sim_machine const machine = watched_machine();
    check(machine, [&] { return sim_pages(machine.driver()) | pooled{}; });
  }
  SECTION("over blocks") {
    sim_machine const machine = watched_machine();
    check(machine, [&] { return sim_malloc(machine.driver()) | pooled{}; });
  }
  SECTION("over blocks that the driver orders by streams") {
    sim_machine const machine = watched_machine();
    if (machine.driver().has_memory_pools())
      check(machine, [&] { return sim_async(machine.driver()) | pooled{}; });
  }
  SECTION("over pages below a limit") {
    sim_machine const machine = watched_machine();
    check(machine, [&] { return sim_pages(machine.driver()) | limited{3_GiB} | pooled{}; });
  }
  SECTION("over ordered blocks below a limit") {
    sim_machine const machine = watched_machine();
    if (machine.driver().has_memory_pools())
      check(machine, [&] { return sim_async(machine.driver()) | limited{3_GiB} | pooled{}; });
  }
}
}  // namespace

TEST_CASE("a thread whose first call of a pool opens a capture_scope has no cache under a memory tool",
          "[pool][tool_regions]") {
  over_each_source([&](sim_machine const& machine, auto const& make) {
    auto pool = make();
    test_stream const stream(machine.driver());
    graph_memory memory(pool);
    { capture_scope const scope(memory, stream); }
    void* blocks[4] = {};
    for (void*& p : blocks) {
      p = pool.allocate(stream, 100);
      CHECK(reports_of(machine, p, 0, 100) == 0);
      CHECK(reports_of(machine, p, 0, 101) != 0);
    }
    for (void* const p : blocks) pool.deallocate(stream, p, 100);
    for (void* const p : blocks) CHECK(reports_of(machine, p, 0, 100) != 0);
    CHECK(machine.findings().empty());
  });
}

TEST_CASE("pooled lets a memory tool report an access past the requested size and before the block",
          "[pool][tool_regions]") {
  std::size_t const bytes =
      GENERATE(std::size_t{1}, std::size_t{100}, std::size_t{256}, 4_KiB, std::size_t{100'000}, 1_MiB, 5_MiB);
  over_each_source([&](sim_machine const& machine, auto const& make) {
    auto pool = make();
    test_stream const stream(machine.driver());
    // A neighbour before and after: an overrun into a live block must be found too.
    void* const before = pool.allocate(stream, bytes);
    void* const p = pool.allocate(stream, bytes);
    void* const after = pool.allocate(stream, bytes);
    CHECK(reports_of(machine, p, 0, bytes) == 0);
    CHECK(reports_of(machine, before, 0, bytes) == 0);
    CHECK(reports_of(machine, after, 0, bytes) == 0);
    CHECK(reports_of(machine, p, static_cast<std::ptrdiff_t>(bytes), 1) == 1);
    CHECK(reports_of(machine, p, static_cast<std::ptrdiff_t>(bytes) + 255, 1) == 1);
    CHECK(reports_of(machine, p, 0, bytes + 1) == 1);
    // Below a limit a large block is the first of a segment: no memory of the pool is before it.
    bool const is_first = !pool.owns(static_cast<char*>(after) - 1);
    CHECK(reports_of(machine, after, -1, 1) == (is_first ? 0 : 1));
    for (void* const block : {before, p, after}) pool.deallocate(stream, block, bytes);
  });
}

TEST_CASE("pooled lets a memory tool report an access after the free, on any stream",
          "[pool][tool_regions]") {
  std::size_t const bytes = GENERATE(std::size_t{100}, std::size_t{70'000}, 3_MiB);
  over_each_source([&](sim_machine const& machine, auto const& make) {
    auto pool = make();
    test_stream const stream(machine.driver());
    test_stream const other(machine.driver());
    void* const p = pool.allocate(stream, bytes);
    pool.deallocate(stream, p, bytes);
    CHECK(reports_of(machine, p, 0, 4) == 1);
    // Freed memory is not reused while other memory is free: an access to it is still reported.
    void* const q = pool.allocate(stream, bytes);
    CHECK(q != p);
    CHECK(reports_of(machine, p, 0, 4) == 1);
    // Unordered work of another stream that is still running after the free.
    std::size_t const before = machine.tool_findings().size();
    REQUIRE(machine.launch(other, 50'000'000, {sim_reads(q, 4)}).ok());
    pool.deallocate(stream, q, bytes);
    REQUIRE(machine.driver().synchronize_device().ok());
    CHECK(machine.tool_findings().size() == before + 1);
  });
}

TEST_CASE("pooled with a memory tool reports no error for work enqueued before the free",
          "[pool][tool_regions]") {
  over_each_source([&](sim_machine const& machine, auto const& make) {
    auto pool = make();
    test_stream const stream(machine.driver());
    test_stream const other(machine.driver());
    for (int round = 0; round < 20; ++round) {
      void* const p = pool.allocate(stream, 1000);
      REQUIRE(machine.launch(stream, 10'000'000, {sim_writes(p, 1000)}).ok());
      REQUIRE(machine.launch(other, 30'000'000, {sim_reads(p, 1000)}).ok());
      pool.record_stream(p, 1000, other);
      pool.deallocate(stream, p, 1000);
    }
    pool.empty_cache();
    CHECK(machine.tool_findings().empty());
    CHECK(machine.tool_counts().regions == 0);
  });
}

TEST_CASE("pooled with a memory tool never uses the destroyed stream of a deferred block",
          "[pool][tool_regions]") {
  bool const captured = GENERATE(false, true);
  sim_options options;
  options.tool = sim_tool::attached;
  options.capacity = 4_GiB;
  options.backing = sim_backing::address_only;
  options.checks = sim_checks::stream_order;
  sim_machine const machine(options);
  {
    auto pool = sim_pages(machine.driver()) | pooled{};
    void* neighbour = nullptr;  // keeps the device memory reserved
    sim_graph graph;
    {
      test_stream const stream(machine.driver());
      test_stream const other(machine.driver());
      neighbour = pool.allocate(stream, 1000);
      if (captured) REQUIRE(machine.begin_capture(stream).ok());
      void* const p = pool.allocate(stream, 1000);
      REQUIRE(machine.launch(stream, 10'000'000, {sim_writes(p, 1000)}).ok());
      pool.record_stream(p, 1000, other);
      if (!captured) REQUIRE(machine.launch(other, 30'000'000).ok());
      pool.deallocate(stream, p, 1000);
      if (captured) REQUIRE(machine.end_capture(stream, graph).ok());
    }
    pool.empty_cache();
    CHECK(machine.captured_calls() == 0);
    if (captured) {  // the graph may write the freed block until it is allocated again
      test_stream const later(machine.driver());
      REQUIRE(machine.launch(later, graph).ok());
      CHECK(machine.driver().synchronize_stream(later).ok());
    }
    pool.deallocate({}, neighbour, 1000);
  }
  for (std::string const& finding : machine.findings()) FAIL_CHECK(finding);
  for (std::string const& finding : machine.tool_findings()) FAIL_CHECK(finding);
  CHECK(machine.tool_counts().regions == 0);
}

TEST_CASE("pooled with a memory tool passes no destroyed stream to the driver when a block is freed",
          "[pool][tool_regions]") {
  sim_options options;
  options.tool = sim_tool::attached;
  options.capacity = 4_GiB;
  options.backing = sim_backing::address_only;
  options.checks = sim_checks::stream_order;
  sim_machine const machine(options);
  {
    auto pool = sim_pages(machine.driver()) | pooled{};
    stream_ref gone;
    void* p = nullptr;
    void* used_elsewhere = nullptr;
    test_stream const other(machine.driver());
    {
      test_stream const stream(machine.driver());
      stream_ref const bare = stream;
      stream_id id = 0;
      REQUIRE(machine.driver().identify(bare, id).ok());
      gone = stream_ref::from(bare.handle(), id);
      p = pool.allocate(gone, 1000);
      used_elsewhere = pool.allocate(gone, 1000);
      REQUIRE(machine.launch(gone, 10'000'000, {sim_writes(p, 1000)}).ok());
    }
    pool.record_stream(used_elsewhere, 1000, other);
    pool.deallocate(gone, p, 1000);
    pool.deallocate(gone, used_elsewhere, 1000);
  }
  for (std::string const& finding : machine.findings()) FAIL_CHECK(finding);
  for (std::string const& finding : machine.tool_findings()) FAIL_CHECK(finding);
  CHECK(machine.tool_counts().regions == 0);
}

TEST_CASE("pooled reports a random program on several streams to a memory tool without findings or leftovers",
          "[pool][tool_regions]") {
  unsigned const seed = GENERATE(1U, 2U, 3U);
  INFO("seed " << seed);
  over_each_source([&](sim_machine const& machine, auto const& make) {
    {
      auto pool = make();
      test_stream const a(machine.driver());
      test_stream const b(machine.driver());
      test_stream const c(machine.driver());
      stream_ref const streams[] = {a, b, c};
      struct block {
        void* p;
        std::size_t bytes;
        std::size_t stream;
      };
      std::vector<block> live;
      std::mt19937 random(seed);
      std::size_t requested = 0;
      std::size_t rounded = 0;
      for (int i = 0; i < 3000; ++i) {
        if (live.size() < 60 && random() % 5 < 3) {
          std::size_t const bytes = random() % 4 == 0 ? 1 + random() % 30'000'000 : 1 + random() % 50'000;
          std::size_t const s = random() % 3;
          void* const p = pool.allocate(streams[s], bytes);
          live.push_back({p, bytes, s});
          requested += bytes;
          rounded += pool->block_bytes(bytes, default_alignment);
          REQUIRE(machine.launch(streams[s], random() % 1'000'000, {sim_writes(p, bytes)}).ok());
        } else if (!live.empty()) {
          std::size_t const k = random() % live.size();
          pool.deallocate(streams[live[k].stream], live[k].p, live[k].bytes);
          requested -= live[k].bytes;
          rounded -= pool->block_bytes(live[k].bytes, default_alignment);
          live[k] = live.back();
          live.pop_back();
        }
        if (i % 500 == 0) (void)pool.trim();
        REQUIRE(machine.tool_counts().region_bytes == requested);
        REQUIRE(pool->state().live == rounded);
        REQUIRE(pool->state().live_blocks == live.size());
        REQUIRE(pool->state().reserved == machine.usage().used);
        REQUIRE(machine.tool_counts().heaps == pool->state().handles);
      }
      for (block const& left : live) pool.deallocate(streams[left.stream], left.p, left.bytes);
      CHECK(machine.tool_counts().regions == 0);
    }
    for (std::string const& finding : machine.tool_findings()) FAIL(finding);
    CHECK(machine.tool_counts().heaps == 0);
    CHECK(machine.leaks().total() == 0);
  });
}

TEST_CASE("pooled with a memory tool uses blocks instead of pages and reports exact state",
          "[pool][tool_regions]") {
  sim_machine const machine = watched_machine();
  auto pages = sim_pages(machine.driver()) | limited{200_MiB};
  auto pool = pages | pooled{};
  test_stream const stream(machine.driver());
  CHECK_FALSE(pool.owns(nullptr));
  std::vector<void*> blocks;
  for (int i = 0; i < 30; ++i) blocks.push_back(pool.allocate(stream, 3_MiB));
  sim_usage const used = machine.usage();
  CHECK(used.page_bytes == 0);
  CHECK(used.block_bytes == pool->state().reserved);
  CHECK(pages->used() == pool->state().reserved);
  CHECK(pool->state().handles == used.blocks);
  CHECK(machine.tool_counts().heaps == used.blocks);
  CHECK(pool->state().maps == 0);
  CHECK(pool.owns(blocks[7]));
  CHECK(pool.owns(static_cast<char*>(blocks[7]) + 3_MiB - 1));
  CHECK_FALSE(pool.owns(&pool));
  for (void* const p : blocks) pool.deallocate(stream, p, 3_MiB);
  CHECK(pool.trim() == used.block_bytes);
  CHECK(pool->state().reserved == 0);
  CHECK(pages->used() == 0);
  CHECK(machine.usage().used == 0);
  CHECK(machine.tool_counts().heaps == 0);
  CHECK(machine.tool_findings().empty());
  void* const again = pool.allocate(stream, 3_MiB);
  CHECK(reports_of(machine, again, 3_MiB, 1) == 1);
  pool.deallocate(stream, again, 3_MiB);
}

TEST_CASE("limited below a pool with a memory tool refuses as it does without a tool",
          "[pool][tool_regions][memory_pools]") {
  sim_machine const machine = watched_machine();
  auto const check = [&](auto source) {
    auto limit = source | limited{20_MiB};
    auto pool = limit | pooled{};
    test_stream const stream(machine.driver());
    void* const p = pool.allocate(stream, 10_MiB);
    try {
      (void)pool.allocate(stream, 15_MiB);
      FAIL("no exception was thrown");
    } catch (out_of_memory const& error) {
      CHECK(error.report().asked == 15_MiB);
      CHECK(error.report().limit == 20_MiB);
      CHECK(std::string(error.report().refused_by) == "limited");
      CHECK(error.report().live >= 10_MiB);
      CHECK(error.report().reserved == limit->used());
    }
    CHECK(limit->used() <= 20_MiB);
    CHECK(machine.usage().used == limit->used());
    void* const q = pool.allocate(stream, 5_MiB);
    pool.deallocate(stream, q, 5_MiB);
    pool.deallocate(stream, p, 10_MiB);
    pool.empty_cache();
    CHECK(limit->used() == 0);
    CHECK_THROWS_AS(pool.allocate(stream, 1_TiB), out_of_memory);
    CHECK(machine.tool_findings().empty());
  };
  SECTION("over pages") {
    check(sim_pages(machine.driver()));
  }
  SECTION("over ordered blocks") {
    check(sim_async(machine.driver()));
  }
  SECTION("over blocks") {
    check(sim_malloc(machine.driver()));
  }
}

TEST_CASE("pooled with a memory tool reports the free device memory when the device is full",
          "[pool][tool_regions]") {
  sim_machine const machine = watched_machine();
  auto pool = sim_pages(machine.driver()) | pooled{};
  void* const p = pool.allocate({}, 2_GiB);
  try {
    (void)pool.allocate({}, 2_GiB);
    FAIL("no exception was thrown");
  } catch (out_of_memory const& error) {
    CHECK(std::string(error.report().refused_by) == "the device");
    CHECK(std::string(error.report().call) == "malloc_device");
    CHECK(error.report().device_free == machine.usage().free_bytes());
    CHECK(error.report().asked == 2_GiB);
  }
  pool.deallocate({}, p, 2_GiB);
  void* const q = pool.allocate({}, 2_GiB);  // freed memory can be allocated again
  pool.deallocate({}, q, 2_GiB);
  CHECK(machine.tool_findings().empty());
}

TEST_CASE("pooled over pooled reports only the blocks of the lowest pool to a memory tool",
          "[pool][tool_regions]") {
  over_each_source([](sim_machine const& machine, auto const& make) {
    {
      auto lower = make();
      auto pool = lower | tracked{} | pooled{};
      test_stream const stream(machine.driver());
      void* const p = pool.allocate(stream, 1000);
      CHECK(machine.tool_counts().regions == lower->state().live_blocks);
      CHECK(reports_of(machine, p, 0, 1000) == 0);
      pool.deallocate(stream, p, 1000);
    }
    CHECK(machine.tool_findings().empty());
    CHECK(machine.tool_counts().heaps == 0);
  });
}

TEST_CASE("pooled over tracked sim_async is not reported to a memory tool and still allocates",
          "[pool][tool_regions][memory_pools]") {
  sim_machine const machine = watched_machine();
  {
    auto pool = sim_async(machine.driver()) | tracked{} | pooled{};
    test_stream const stream(machine.driver());
    void* const p = pool.allocate(stream, 1000);
    CHECK(reports_of(machine, p, 0, 1000) == 0);
    pool.deallocate(stream, p, 1000);
  }
  CHECK(machine.tool_findings().empty());
  CHECK(machine.tool_counts().calls == 0);
}

TEST_CASE("register_heap of the simulated tool refuses the heaps that compute-sanitizer refuses",
          "[pool][tool_regions][pages][memory_pools]") {
  sim_machine const machine = watched_machine();
  sim_driver const driver = machine.driver();
  sim_pages pages(driver);
  void* const range = pages.reserve(2_MiB);
  page_handle const handle = pages.create(2_MiB);
  pages.map(range, 2_MiB, handle);
  CHECK(driver.memory_tool().register_heap(range, 2_MiB) == nullptr);
  sim_async ordered(driver);
  void* const p = ordered.allocate_sync(4_KiB);
  CHECK(driver.memory_tool().register_heap(p, 4_KiB) == nullptr);
  sim_malloc blocks(driver);
  char* const whole = static_cast<char*>(blocks.allocate_sync(4_KiB));
  CHECK(driver.memory_tool().register_heap(whole, 4_KiB + 1) == nullptr);
  CHECK(machine.tool_findings().size() == 3);
  void* const heap = driver.memory_tool().register_heap(whole + 1_KiB, 1_KiB);  // a part is accepted
  CHECK(heap != nullptr);
  CHECK(machine.tool_findings().size() == 3);
  driver.memory_tool().register_region(heap, whole + 1_KiB, 512);
  driver.memory_tool().register_region(heap, whole + 1_KiB + 256, 512);  // over the other
  CHECK(machine.tool_findings().size() == 4);
  driver.memory_tool().register_region(heap, whole + 2_KiB, 512);  // outside its heap
  CHECK(machine.tool_findings().size() == 5);
  driver.memory_tool().unregister_heap(heap);
  blocks.deallocate_sync(whole, 4_KiB);
  ordered.deallocate_sync(p, 4_KiB);
  pages.unmap(range, 2_MiB);
  pages.destroy(handle, 2_MiB);
  pages.unreserve(range, 2_MiB);
}

TEST_CASE("pooled with a memory tool lets a graph access memory freed during its capture until it is reused",
          "[pool][tool_regions]") {
  sim_machine const machine = watched_machine();
  auto const watch = GENERATE(capture_watch::in_scopes, capture_watch::at_frees);
  auto pool = sim_pages(machine.driver()) | limited{4_MiB} | pooled{.captures = watch};
  test_stream const stream(machine.driver());
  sim_graph graph;
  REQUIRE(machine.begin_capture(stream).ok());
  void* const p = pool.allocate(stream, 1000);
  REQUIRE(machine.launch(stream, 1000, {sim_writes(p, 1000)}).ok());
  pool.deallocate(stream, p, 1000);
  REQUIRE(machine.end_capture(stream, graph).ok());
  CHECK(machine.captured_calls() == 0);
  REQUIRE(machine.launch(stream, graph).ok());
  REQUIRE(machine.driver().synchronize_stream(stream).ok());
  CHECK(machine.tool_findings().empty());
  std::vector<void*> more;
  try {
    while (more.empty() || more.back() != p)
      more.push_back(pool.allocate(stream, 1000));  // until p is handed out again
    CHECK(watch == capture_watch::in_scopes);
  } catch (out_of_memory const&) {
    CHECK(watch == capture_watch::at_frees);  // it is kept
  }
  for (void* const q : more) pool.deallocate(stream, q, 1000);
  CHECK(machine.tool_findings().empty());
  CHECK(machine.tool_counts().regions == (watch == capture_watch::in_scopes ? 0 : 1));
}

TEST_CASE("pooled with a memory tool reports a second free and a wrong size at once",
          "[pool][tool_regions]") {
  static std::vector<misuse_kind> reported;
  reported.clear();
  misuse_handler const before = set_misuse_handler([](misuse const& m) { reported.push_back(m.kind()); });
  sim_machine const machine = watched_machine();
  auto pool = sim_pages(machine.driver()) | pooled{};
  void* const p = pool.allocate({}, 100);
  pool.deallocate({}, p, 101);
  CHECK(reported == std::vector{misuse_kind::wrong_size});
  CHECK(pool->state().live_blocks == 1);
  pool.deallocate({}, p, 100);
  pool.deallocate({}, p, 100);
  CHECK(reported == std::vector{misuse_kind::wrong_size, misuse_kind::foreign_pointer});
  CHECK(pool->state().live == 0);
  CHECK(machine.tool_findings().empty());
  (void)set_misuse_handler(before);
}

TEST_CASE("pooled and tracked with a memory tool meet the resource contract", "[pool][tool_regions]") {
  tarn_test::resource_contract([] {
    static sim_machine const machine = [] {
      sim_options options;
      options.tool = sim_tool::attached;
      options.backing = sim_backing::host_backed;
      return sim_machine(options);
    }();
    return sim_pages(machine.driver()) | pooled{} | tracked{};
  });
}

TEST_CASE("pooled with a memory tool releases its quarantine before it refuses memory",
          "[pool][tool_regions]") {
  sim_machine const machine = watched_machine();
  auto pool = sim_pages(machine.driver()) | limited{64_MiB} | pooled{};
  test_stream const stream(machine.driver());
  for (int i = 0; i < 20; ++i) {
    void* const p = pool.allocate(stream, 40_MiB);
    pool.deallocate(stream, p, 40_MiB);
  }
  CHECK(pool->state().reserved <= 64_MiB);
  CHECK(pool->state().live == 0);
}

TEST_CASE("pooled with a memory tool reports the blocks of several threads without findings",
          "[pool][tool_regions][threads]") {
  sim_machine const machine = watched_machine();
  auto pool = sim_pages(machine.driver()) | pooled{};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      test_stream const stream(machine.driver());
      std::mt19937 random(t);
      for (int i = 0; i < 300; ++i) {
        std::size_t const bytes = 1 + random() % 100'000;
        void* const p = pool.allocate(stream, bytes);
        (void)machine.launch(stream, 1000, {sim_writes(p, bytes)});
        pool.deallocate(stream, p, bytes);
      }
    });
  }
  for (auto& t : threads) t.join();
  CHECK(machine.tool_findings().empty());
  CHECK(machine.tool_counts().regions == 0);
}

TEST_CASE("pooled with a memory tool takes back large blocks that a capture has freed, when their owner ends",
          "[pool][tool_regions][graph_memory]") {
  for (std::size_t const bytes : {1_MiB, 4_MiB}) {
    sim_machine const machine{{.tool = sim_tool::attached}};
    auto memory = sim_pages(machine.driver()) | pooled{} | tracked{};
    test_stream const stream(machine.driver());
    auto graphs = std::make_unique<graph_memory<decltype(memory)>>(memory);
    void* const p = memory.allocate(stream, bytes);
    {
      sim_graph recorded;
      capture_scope const scope(*graphs, stream);
      REQUIRE(machine.begin_capture(stream).ok());
      memory.deallocate(stream, p, bytes);
      REQUIRE(machine.end_capture(stream, recorded).ok());
    }
    graphs.reset();
    memory.empty_cache();
    CHECK(memory_reserved(memory) == 0);
    CHECK(machine.tool_findings().empty());
  }
}

TEST_CASE("pooled without a memory tool uses magazines and pages and does not synchronize",
          "[pool][tool_regions][pages]") {
  sim_machine const machine;
  auto pool = sim_pages(machine.driver()) | pooled{};
  test_stream const stream(machine.driver());
  void* const p = pool.allocate(stream, 256);
  pool.deallocate(stream, p, 256);
  CHECK(pool.allocate(stream, 256) == p);  // from the magazine: no guard, no quarantine
  CHECK(pool->state().live == 256);
  pool.deallocate(stream, p, 256);
  CHECK(machine.calls()[driver_call::synchronize_stream] == 0);
  static_assert(!detail::tool_can_watch<host_memory> && !detail::tool_can_watch<sim_pinned_host>);
  CHECK(machine.usage().block_bytes == 0);  // pages, not blocks
  static_assert(detail::tool_can_watch<sim_pages> && detail::tool_can_watch<sim_async> &&
                detail::tool_can_watch<basic_malloc<faulty<sim_driver>>>);
}
