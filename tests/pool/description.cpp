// SPDX-License-Identifier: Apache-2.0
// What a pool tells an attached tool: proven with the simulated one, which reports as compute-sanitizer does.
#include "tarn/pool/description.hpp"

#include <random>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "contract/resource_contract.hpp"
#include "tarn/driver/fault.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/tracked.hpp"
#include "tarn/pool/described_source.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/source/host_memory.hpp"
#include "tarn/source/sim_sources.hpp"

using namespace tarn;
using tarn_test::test_stream;

namespace {
sim_machine watched_machine() {
  sim_options options;
  options.tool = sim_tool::attached;
  options.capacity = 4_GiB;
  // Only what simulated work says that it touches counts here; AddressSanitizer has cases of its own.
  options.backing = sim_backing::address_only;
  return sim_machine(options);
}

/// What the tool reports of work that touches these bytes on a stream of its own.
std::size_t reports_of(sim_machine const& machine, void* p, std::ptrdiff_t offset, std::size_t bytes) {
  std::size_t const before = machine.tool_findings().size();
  test_stream const stream(machine.driver());
  (void)machine.launch(stream, 1000, {sim_writes(static_cast<char*>(p) + offset, bytes)});
  (void)machine.driver().synchronize_stream(stream);
  return machine.tool_findings().size() - before;
}

/// Each kind of pool that a device's memory can have.
template <class Check>
void over_pages_and_blocks(Check const& check) {
  SECTION("over pages") {
    sim_machine const machine = watched_machine();
    check(machine, [&] { return sim_pages(machine.driver()) | pooled{}; });
  }
  SECTION("over blocks") {
    sim_machine const machine = watched_machine();
    check(machine, [&] { return sim_malloc(machine.driver()) | pooled{}; });
  }
}
}  // namespace

TEST_CASE("an attached tool reports an access past the requested size and before the block",
          "[pool][description]") {
  std::size_t const bytes =
      GENERATE(std::size_t{1}, std::size_t{100}, std::size_t{256}, 4_KiB, std::size_t{100'000}, 1_MiB, 5_MiB);
  over_pages_and_blocks([&](sim_machine const& machine, auto const& make) {
    auto pool = make();
    test_stream const stream(machine.driver());
    // A neighbour before and after: an overrun that lands in a live block would go unseen.
    void* const before = pool.allocate(stream, bytes);
    void* const p = pool.allocate(stream, bytes);
    void* const after = pool.allocate(stream, bytes);
    CHECK(reports_of(machine, p, 0, bytes) == 0);
    CHECK(reports_of(machine, before, 0, bytes) == 0);
    CHECK(reports_of(machine, after, 0, bytes) == 0);
    CHECK(reports_of(machine, p, static_cast<std::ptrdiff_t>(bytes), 1) == 1);
    CHECK(reports_of(machine, p, static_cast<std::ptrdiff_t>(bytes) + 255, 1) == 1);
    CHECK(reports_of(machine, p, 0, bytes + 1) == 1);
    CHECK(reports_of(machine, after, -1, 1) == 1);
    for (void* const block : {before, p, after}) pool.deallocate(stream, block, bytes);
  });
}

TEST_CASE("an attached tool reports an access after the free, also on another stream",
          "[pool][description]") {
  std::size_t const bytes = GENERATE(std::size_t{100}, std::size_t{70'000}, 3_MiB);
  over_pages_and_blocks([&](sim_machine const& machine, auto const& make) {
    auto pool = make();
    test_stream const stream(machine.driver());
    test_stream const other(machine.driver());
    void* const p = pool.allocate(stream, bytes);
    pool.deallocate(stream, p, bytes);
    CHECK(reports_of(machine, p, 0, 4) == 1);
    // Freed memory is kept from reuse while there is other memory: it stays a mistake to touch it.
    void* const q = pool.allocate(stream, bytes);
    CHECK(q != p);
    CHECK(reports_of(machine, p, 0, 4) == 1);
    // Work of another stream that outlasts the free, which nothing orders before it.
    std::size_t const before = machine.tool_findings().size();
    REQUIRE(machine.launch(other, 50'000'000, {sim_reads(q, 4)}).ok());
    pool.deallocate(stream, q, bytes);
    REQUIRE(machine.driver().synchronize_device().ok());
    CHECK(machine.tool_findings().size() == before + 1);
  });
}

TEST_CASE("what a stream does before the free is no mistake, however late it runs", "[pool][description]") {
  over_pages_and_blocks([&](sim_machine const& machine, auto const& make) {
    auto pool = make();
    test_stream const stream(machine.driver());
    test_stream const other(machine.driver());
    for (int round = 0; round < 20; ++round) {
      void* const p = pool.allocate(stream, 1000);
      REQUIRE(machine.launch(stream, 10'000'000, {sim_writes(p, 1000)}).ok());
      REQUIRE(machine.launch(other, 30'000'000, {sim_reads(p, 1000)}).ok());
      pool.record_use(p, 1000, other);
      pool.deallocate(stream, p, 1000);
    }
    pool.empty_cache();
    CHECK(machine.tool_findings().empty());
    CHECK(machine.tool_counts().regions == 0);
  });
}

TEST_CASE(
    "a random program of several streams is described without a mistake, and in the end nothing is left",
    "[pool][description]") {
  unsigned const seed = GENERATE(1U, 2U, 3U);
  INFO("seed " << seed);
  over_pages_and_blocks([&](sim_machine const& machine, auto const& make) {
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
      for (int i = 0; i < 3000; ++i) {
        if (live.size() < 60 && random() % 5 < 3) {
          std::size_t const bytes = random() % 4 == 0 ? 1 + random() % 30'000'000 : 1 + random() % 50'000;
          std::size_t const s = random() % 3;
          void* const p = pool.allocate(streams[s], bytes);
          live.push_back({p, bytes, s});
          requested += bytes;
          REQUIRE(machine.launch(streams[s], random() % 1'000'000, {sim_writes(p, bytes)}).ok());
        } else if (!live.empty()) {
          std::size_t const k = random() % live.size();
          pool.deallocate(streams[live[k].stream], live[k].p, live[k].bytes);
          requested -= live[k].bytes;
          live[k] = live.back();
          live.pop_back();
        }
        if (i % 500 == 0) (void)pool.trim();
        REQUIRE(machine.tool_counts().region_bytes == requested);
      }
      for (block const& left : live) pool.deallocate(streams[left.stream], left.p, left.bytes);
      CHECK(machine.tool_counts().regions == 0);
    }
    for (std::string const& finding : machine.tool_findings()) FAIL(finding);
    CHECK(machine.tool_counts().heaps == 0);
    CHECK(machine.leaks().total() == 0);
  });
}

TEST_CASE("blocks that are seen through views are described where they are seen", "[pool][description]") {
  sim_machine const machine = watched_machine();
  auto pool = sim_pages(machine.driver()) | limited{208_MiB} | pooled{};
  test_stream const stream(machine.driver());
  std::size_t const bytes = 2_MiB - detail::guard_bytes;
  std::vector<void*> blocks;
  for (int i = 0; i < 100; ++i) blocks.push_back(pool.allocate(stream, bytes));
  for (std::size_t i = 0; i < blocks.size(); i += 2) pool.deallocate(stream, blocks[i], bytes);
  std::size_t const large = 90_MiB;
  void* const p = pool.allocate(stream, large);
  REQUIRE(pool->state().remaps > 0);
  CHECK(reports_of(machine, p, 0, large) == 0);
  CHECK(reports_of(machine, p, static_cast<std::ptrdiff_t>(large), 1) == 1);
  CHECK(reports_of(machine, blocks[0], 0, 1) == 1);
  CHECK(reports_of(machine, blocks[1], 0, bytes) == 0);
  pool.deallocate(stream, p, large);
  CHECK(reports_of(machine, p, 0, 1) == 1);
  for (std::size_t i = 1; i < blocks.size(); i += 2) pool.deallocate(stream, blocks[i], bytes);
  CHECK(machine.tool_findings().size() == 3);
}

TEST_CASE("memory freed while a graph is captured may be touched until it is handed out again",
          "[pool][description]") {
  sim_machine const machine = watched_machine();
  auto pool = sim_pages(machine.driver()) | limited{4_MiB} | pooled{};
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
  while (more.empty() || more.back() != p)
    more.push_back(pool.allocate(stream, 1000));  // until p's turn comes
  for (void* const q : more) pool.deallocate(stream, q, 1000);
  CHECK(machine.tool_findings().empty());
  CHECK(machine.tool_counts().regions == 0);
}

TEST_CASE("a second free and a wrong size are told at once where a tool watches", "[pool][description]") {
  static std::vector<misuse_kind> told;
  told.clear();
  misuse_handler const before = set_misuse_handler([](misuse const& m) { told.push_back(m.kind()); });
  sim_machine const machine = watched_machine();
  auto pool = sim_pages(machine.driver()) | pooled{};
  void* const p = pool.allocate({}, 100);
  pool.deallocate({}, p, 101);
  CHECK(told == std::vector{misuse_kind::wrong_size});
  CHECK(pool->state().live_blocks == 1);
  pool.deallocate({}, p, 100);
  pool.deallocate({}, p, 100);
  CHECK(told == std::vector{misuse_kind::wrong_size, misuse_kind::foreign_pointer});
  CHECK(pool->state().live == 0);
  CHECK(machine.tool_findings().empty());
  (void)set_misuse_handler(before);
}

TEST_CASE("a watched pool keeps the contract of resources, its limits and its numbers",
          "[pool][description]") {
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

TEST_CASE("quarantine is given up before memory is refused", "[pool][description]") {
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

TEST_CASE("threads that share a watched pool are described without a mistake",
          "[pool][description][threads]") {
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

TEST_CASE("without a tool nothing is told and nothing changes", "[pool][description]") {
  sim_machine const machine;
  auto pool = sim_pages(machine.driver()) | pooled{};
  test_stream const stream(machine.driver());
  void* const p = pool.allocate(stream, 256);
  pool.deallocate(stream, p, 256);
  CHECK(pool.allocate(stream, 256) == p);  // from the magazine: no guard, no quarantine
  CHECK(pool->state().live == 256);
  pool.deallocate(stream, p, 256);
  CHECK(machine.calls()[driver_call::synchronize_stream] == 0);
  static_assert(!detail::is_describable<host_memory> && !detail::is_describable<sim_pinned_host>);
  static_assert(detail::is_describable<sim_pages> &&
                detail::is_describable<basic_malloc<faulty<sim_driver>>>);
}
