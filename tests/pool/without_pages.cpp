// SPDX-License-Identifier: Apache-2.0
// A pool over pages on a device without virtual memory management: it works on plain blocks, and reports it.
#include "tarn/pool/pages/pool_growth.hpp"

#include <cstddef>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "contract/memory_access.hpp"
#include "contract/resource_contract.hpp"
#include "tarn/policy/accessible_from.hpp"
#include "tarn/policy/fallback_to.hpp"
#include "tarn/policy/headroom.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/raii/compact.hpp"
#include "tarn/raii/graph_memory.hpp"
#include "tarn/raii/sleep.hpp"
#include "tarn/report/explain_memory.hpp"
#include "tarn/report/memory_stats.hpp"
#include "tarn/report/summary.hpp"
#include "tarn/report/take_snapshot.hpp"
#include "tarn/sim.hpp"
#include "tarn/source/refusal.hpp"
#include "tarn/transfer/available_memory.hpp"

using namespace tarn;
using tarn_test::resource_contract;
using tarn_test::test_stream;

namespace {

sim_options without_pages() {
  sim_options o;
  o.capacity = 1_GiB;
  o.taken = 0;
  o.paging = sim_paging::missing;
  o.checks = sim_checks::stream_order;
  o.backing = sim_backing::address_only;
  return o;
}
struct device {
  explicit device(sim_options const& o = without_pages()) : machine(o) {}
  ~device() {
    for (std::string const& found : machine.findings()) FAIL_CHECK(found);
  }
  [[nodiscard]] sim_pages pages() const { return sim_pages{driver}; }
  [[nodiscard]] std::uint64_t page_calls() const {
    sim_calls const c = machine.calls();
    return c[driver_call::reserve_range] + c[driver_call::create_pages] + c[driver_call::map_pages];
  }
  sim_machine machine;
  sim_driver driver = machine.driver(0);
  test_stream<sim_driver> a{driver};
  test_stream<sim_driver> b{driver};
};

template <class Memory>
void cache(Memory& memory, stream_ref stream, std::size_t bytes) {
  memory.deallocate(stream, memory.allocate(stream, bytes), bytes);
}
template <class Memory>
std::string_view backend(Memory const& memory) {
  return allocator_backend(memory);
}
template <class Call>
std::string refusal(Call const& call) {
  try {
    call();
  } catch (cuda_error const& error) {
    CHECK(error.kind() == failure::unsupported);
    return error.what();
  }
  return "nothing was refused";
}
bool has(std::string const& text, char const* part) {
  return text.find(part) != std::string::npos;
}

/// A layer over pages that does not pass plain blocks on.
template <class Source>
struct pages_only {
  using driver_type = typename Source::driver_type;
  using properties = typename Source::properties;
  Source below;
  [[nodiscard]] std::size_t granularity() const noexcept { return below.granularity(); }
  [[nodiscard]] void* reserve(std::size_t bytes) { return below.reserve(bytes); }
  void unreserve(void* p, std::size_t bytes) noexcept { below.unreserve(p, bytes); }
  [[nodiscard]] page_handle create(std::size_t bytes) { return below.create(bytes); }
  void destroy(page_handle h, std::size_t bytes) noexcept { below.destroy(h, bytes); }
  void map(void* p, std::size_t bytes, page_handle h) { below.map(p, bytes, h); }
  void unmap(void* p, std::size_t bytes) noexcept { below.unmap(p, bytes); }
  [[nodiscard]] driver_type const& driver() const noexcept { return below.driver(); }
  [[nodiscard]] device_id device() const noexcept { return below.device(); }
  [[nodiscard]] Source const& upstream() const noexcept { return below; }
  friend bool operator==(pages_only const& a, pages_only const& b) noexcept { return a.below == b.below; }
};

/// A driver that supports no memory tool.
struct plain_driver : sim_driver {
  plain_driver(sim_driver driver) : sim_driver(std::move(driver)) {}  // NOLINT: the same device
  void memory_tool() const noexcept = delete;
};

}  // namespace

TEST_CASE("a pool over pages without virtual memory management meets the resource contract",
          "[pool][without_pages]") {
  sim_options o = without_pages();
  o.capacity = 4_GiB;
  o.backing = sim_backing::host_backed;
  sim_machine const machine(o);
  SECTION("alone") {
    resource_contract([&] { return sim_pages{machine.driver()} | pooled{}; });
  }
  SECTION("without remapping, with statistics") {
    resource_contract([&] { return sim_pages{machine.driver()} | pooled{remapping::off} | tracked{}; });
  }
  SECTION("over a limit and headroom") {
    resource_contract(
        [&] { return sim_pages{machine.driver()} | limited{3_GiB} | headroom{1_MiB} | pooled{}; });
  }
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("allocator_backend reports what a pool's memory is made of, through every layer",
          "[pool][without_pages][memory_pools]") {
  device const without;
  sim_options o = without_pages();
  o.paging = sim_paging::available;
  device const with(o);
  CHECK(backend(sim_pool{without.pages()}) == "cudaMalloc");
  CHECK(backend(sim_pool{with.pages()}) == "pages");
  CHECK(backend(with.pages() | limited{1_GiB} | pooled{} | limited{1_GiB} | tracked{}) == "pages");
  CHECK(backend(without.pages() | limited{1_GiB} | pooled{} | limited{1_GiB} | tracked{}) == "cudaMalloc");
  CHECK(backend(pages_only<sim_pages>{with.pages()} | pooled{}) == "pages");
  CHECK(backend(sim_malloc{with.driver} | pooled{}) == "cudaMalloc");
  CHECK(backend(sim_async{with.driver} | limited{1_GiB} | pooled{}) == "cudaMallocAsync");
  CHECK(backend(sim_pinned_host{with.driver} | pooled{}) == "cudaHostAlloc");
  CHECK(backend(sim_registered_host{with.driver} | pooled{}) == "cudaHostRegister");
  CHECK(backend(sim_managed{with.driver} | pooled{}) == "cudaMallocManaged");
  CHECK(backend(with.pages() | pooled{} | limited{1_MiB} | pooled{}) == "pages");
  CHECK(backend(without.pages() | pooled{} | limited{1_MiB} | pooled{}) == "cudaMalloc");
  CHECK(backend(with.pages() | pooled{} | fallback_to{sim_managed{with.driver} | pooled{}}) == "pages");
  CHECK(backend(sim_malloc{with.driver} | fallback_to{sim_managed{with.driver} | pooled{}}) ==
        "cudaMallocManaged");
  o.tool = sim_tool::attached;
  device const watched(o);
  auto pool = watched.pages() | pooled{};
  auto ordered = sim_async{watched.driver} | pooled{};
  for (auto const& text : {backend(pool), backend(ordered)}) CHECK(text != "cudaMalloc");
  cache(pool, watched.a, 1000);
  cache(ordered, watched.a, 1000);
  for (auto const& text : {backend(pool), backend(ordered)}) CHECK(text == "cudaMalloc");
}

TEST_CASE("a pool without pages grows by segments, and has magazines and no guards",
          "[pool][without_pages]") {
  device d;
  auto const run = [&](auto pool) {
    void* const p = pool.allocate(d.a, 256);
    void* const q = pool.allocate(d.a, 256);
    CHECK(p != q);
    auto const distance = static_cast<char*>(q) - static_cast<char*>(p);
    CHECK((distance == 256 || distance == -256));
    pool.deallocate(d.a, p, 256);
    CHECK(pool.allocate(d.a, 256) == p);  // at once: nothing is quarantined
    d.machine.reset_calls();
    for (int i = 0; i < 100; ++i) cache(pool, d.a, 256);
    CHECK(d.machine.calls().total() == d.machine.calls()[driver_call::is_capturing]);
    void* const large = pool.allocate(d.a, 10_MiB);
    CHECK(d.machine.calls()[driver_call::malloc_device] == 1);
    CHECK(d.machine.usage().used == 12_MiB);
    CHECK(pool->state().reserved == 12_MiB);
    CHECK(pool->state().handles == 2);
    CHECK(pool.owns(static_cast<char*>(large) + 5_MiB));
    CHECK_FALSE(pool.owns(&pool));
    CHECK(pool.largest_free_range() < 2_MiB);
    pool.deallocate(d.a, large, 10_MiB);
    CHECK(pool.allocate(d.a, 9_MiB) != nullptr);
    CHECK(d.machine.calls()[driver_call::malloc_device] == 1);
    CHECK(d.page_calls() == 0);
    pool.deallocate(d.a, large, 9_MiB);
    pool.deallocate(d.a, p, 256);
    pool.deallocate(d.a, q, 256);
  };
  SECTION("with a driver that supports tools") {
    run(d.pages() | pooled{});
  }
  SECTION("with one that does not") {
    run(basic_pages<plain_driver>(d.driver) | pooled{});
  }
  SECTION("with remapping off") {
    run(d.pages() | pooled{remapping::off, 9});
  }
  CHECK(d.machine.usage().used == 0);
}

TEST_CASE("a pool without pages reports its blocks to a memory tool", "[pool][without_pages][tool_regions]") {
  sim_options o = without_pages();
  o.tool = sim_tool::attached;
  device d(o);
  auto pool = d.pages() | pooled{};
  auto* const p = static_cast<char*>(pool.allocate(d.a, 1000));
  REQUIRE(d.machine.launch(d.a, 1000, {sim_writes(p, 1000)}).ok());
  (void)d.driver.synchronize_device();
  CHECK(d.machine.tool_findings().empty());
  REQUIRE(d.machine.launch(d.a, 1000, {sim_writes(p + 1000, 8)}).ok());
  (void)d.driver.synchronize_device();
  CHECK(d.machine.tool_findings().size() == 1);
  pool.deallocate(d.a, p, 1000);
}

TEST_CASE("a pool without pages takes another stream's memory in stream order", "[pool][without_pages]") {
  device d;
  auto pool = d.pages() | pooled{} | tracked{};
  // Most of the device, so that the second stream gets the first one's memory.
  void* const p = pool.allocate(d.a, 700_MiB);
  REQUIRE(d.machine.launch(d.a, 50'000'000, {sim_writes(p, 700_MiB)}).ok());
  pool.deallocate(d.a, p, 700_MiB);
  d.machine.reset_calls();
  void* const q = pool.allocate(d.b, 700_MiB);
  CHECK(q == p);
  CHECK(d.machine.pending() == 1);  // the host did not wait
  CHECK(d.machine.calls()[driver_call::wait_event] == 1);
  CHECK(d.machine.calls()[driver_call::malloc_device] == 0);
  REQUIRE(d.machine.launch(d.b, 1000, {sim_writes(q, 700_MiB)}).ok());
  pool.record_stream(q, 700_MiB, d.a);
  REQUIRE(d.machine.launch(d.a, 1000, {}).ok());
  pool.deallocate(d.b, q, 700_MiB);
  CHECK(pool->upstream()->state().deferred != 0);
  (void)d.driver.synchronize_device();
  cache(pool, d.b, 700_MiB);
}

TEST_CASE("trim and empty_cache of a pool without pages free whole segments", "[pool][without_pages]") {
  device d;
  auto pool = d.pages() | pooled{} | tracked{};
  void* const kept = pool.allocate(d.a, 3_MiB);
  void* const x = pool.allocate(d.a, 20_MiB);
  void* const y = pool.allocate(d.a, 40_MiB);
  REQUIRE(memory_reserved(pool) == 64_MiB);
  pool.deallocate(d.a, x, 20_MiB);
  pool.deallocate(d.a, y, 40_MiB);
  CHECK(pool.trim(44_MiB) > 0);
  CHECK(memory_reserved(pool) <= 44_MiB);
  CHECK(d.machine.usage().used == memory_reserved(pool));
  pool.empty_cache();
  CHECK(memory_reserved(pool) == 4_MiB);
  CHECK(d.machine.is_accessible(kept, 3_MiB));
  pool.deallocate(d.a, kept, 3_MiB);
  pool.empty_cache();
  CHECK(d.machine.usage().used == 0);
  CHECK(d.machine.leaks().blocks == 0);
}

TEST_CASE("statistics, snapshots and reports show a pool without pages as segments",
          "[pool][without_pages]") {
  device d;
  auto pool = d.pages() | pooled{} | tracked{};
  void* const p = pool.allocate(d.a, 10_MiB);
  auto const value = [&](char const* key) -> std::int64_t {
    for (auto const& [name, number] : memory_stats(pool)) {
      if (name == key) return number;
    }
    return -1;
  };
  CHECK(value("segment.all.current") == 1);
  CHECK(value("reserved_bytes.all.current") == static_cast<std::int64_t>(10_MiB));
  CHECK(value("allocated_bytes.all.current") == static_cast<std::int64_t>(10_MiB));
  snapshot const s = take_snapshot(pool);
  REQUIRE(s.segments.size() == 1);
  CHECK(s.segments[0].address == reinterpret_cast<std::uintptr_t>(p));
  CHECK(s.segments[0].bytes == 10_MiB);
  CHECK(s.segments[0].kind == segment_kind::upstream);
  CHECK(has(memory_summary(pool), "device ID 0, cudaMalloc"));
  CHECK(has(explain_memory(pool).text(), "in blocks of cudaMalloc"));
  memory_availability const room = available_memory(pool);
  CHECK(room.bytes == 1_GiB - 10_MiB);
  pool.deallocate(d.a, p, 10_MiB);
  void* const half = pool.allocate(d.a, 4_MiB);
  CHECK(available_memory(pool).bytes ==
        1_GiB - 10_MiB + pool.largest_free_range());  // pieces are not combined
  pool.deallocate(d.a, half, 4_MiB);
}

TEST_CASE("available_memory of a pool without pages counts the largest free range", "[pool][without_pages]") {
  device d;
  auto pool = d.pages() | pooled{};
  void* const p = pool.allocate(d.a, 100_MiB);
  void* const q = pool.allocate(d.a, 80_MiB);
  pool.deallocate(d.a, p, 100_MiB);
  pool.deallocate(d.a, q, 80_MiB);
  CHECK(available_memory(pool).bytes == 1_GiB - 180_MiB + 100_MiB);
}

TEST_CASE("limited and headroom below a pool without pages count its segments", "[pool][without_pages]") {
  device d;
  SECTION("limited") {
    auto pages = d.pages() | limited{100_MiB};
    auto pool = pages | pooled{};
    void* const p = pool.allocate(d.a, 60_MiB);
    CHECK(pages->used() == 60_MiB);
    try {
      (void)pool.allocate(d.a, 50_MiB);
      FAIL("nothing was refused");
    } catch (out_of_memory const& error) {
      CHECK(error.report().limit == 100_MiB);
      CHECK(error.report().limit_used == 60_MiB);
      CHECK(std::string_view(error.report().refused_by) == "limited");
    }
    pool.deallocate(d.a, p, 60_MiB);
    cache(pool, d.a, 90_MiB);  // what is cached makes way
    CHECK(pages->used() == 90_MiB);
    pool.empty_cache();
    CHECK(pages->used() == 0);
  }
  SECTION("headroom") {
    auto pool = d.pages() | headroom{200_MiB} | pooled{};
    void* const p = pool.allocate(d.a, 600_MiB);
    try {
      (void)pool.allocate(d.a, 300_MiB);
      FAIL("nothing was refused");
    } catch (out_of_memory const& error) {
      CHECK(error.report().headroom == 200_MiB);
    }
    pool.deallocate(d.a, p, 600_MiB);
    cache(pool, d.a, 800_MiB);
    CHECK(keep_headroom(pool) == 0);
  }
  CHECK(d.page_calls() == 0);
}

TEST_CASE("a pool without pages asks other pools and is asked by them",
          "[pool][without_pages][other_pools]") {
  device d;
  auto const run = [&](auto other, auto memory) {
    cache(other, d.a, 600_MiB);
    void* const p = memory.allocate(d.a, 700_MiB);
    CHECK(other->state().reserved == 0);
    CHECK(memory->state().ooms == 0);
    memory.deallocate(d.a, p, 700_MiB);
  };
  SECTION("of its kind") {
    run(d.pages() | pooled{}, d.pages() | pooled{});
  }
  SECTION("over blocks") {
    run(sim_malloc{d.driver} | pooled{}, d.pages() | pooled{});
  }
  SECTION("from one over blocks") {
    run(d.pages() | pooled{}, sim_malloc{d.driver} | pooled{});
  }
}

TEST_CASE("a pool without pages reports out_of_memory with the state of the device",
          "[pool][without_pages]") {
  device d;
  auto pool = d.pages() | pooled{} | tracked{};
  void* const p = pool.allocate(d.a, 600_MiB);
  try {
    (void)pool.allocate(d.a, 500_MiB);
    FAIL("nothing was refused");
  } catch (out_of_memory const& error) {
    memory_report const& r = error.report();
    CHECK(r.asked == 500_MiB);
    CHECK(r.live == 600_MiB);
    CHECK(r.reserved == 600_MiB);
    CHECK(r.device_free == 424_MiB);
    CHECK(r.device_total == 1_GiB);
    CHECK(std::string_view(r.call) == "malloc_device");
  }
  CHECK(memory_allocated(pool) == 600_MiB);
  pool.deallocate(d.a, p, 600_MiB);
  cache(pool, d.a, 1_GiB);
}

TEST_CASE("graph_memory over a pool without pages keeps its blocks apart until it ends",
          "[pool][without_pages][graph_memory]") {
  device d;
  auto pool = d.pages() | pooled{} | tracked{};
  void* of_graph = nullptr;
  {
    graph_memory memory{pool};
    sim_graph graph;
    {
      capture_scope const scope(memory, d.a);
      REQUIRE(d.machine.begin_capture(d.a).ok());
      of_graph = pool.allocate(d.a, 20_MiB);
      REQUIRE(d.machine.launch(d.a, 1000, {sim_writes(of_graph, 20_MiB)}).ok());
      pool.deallocate(d.a, of_graph, 20_MiB);
      CHECK(pool.allocate(d.a, 20_MiB) == of_graph);
      pool.deallocate(d.a, of_graph, 20_MiB);
      REQUIRE(d.machine.end_capture(d.a, graph).ok());
    }
    pool.empty_cache();
    CHECK(memory.state().reserved == 20_MiB);
    void* const other = pool.allocate(d.b, 20_MiB);
    CHECK(other != of_graph);
    CHECK(d.machine.launch(d.b, graph).ok());
    CHECK_THROWS_AS(tarn::sleep(pool), cuda_error);
    CHECK(compact(pool).released == 0);
    pool.deallocate(d.b, other, 20_MiB);
    (void)d.driver.synchronize_device();
  }
  CHECK(d.machine.captured_calls() == 0);
  pool.empty_cache();
  CHECK(d.machine.usage().used == 0);
  CHECK(d.page_calls() == 0);
}

TEST_CASE("sleep of a pool without pages is refused and changes nothing", "[pool][without_pages][sleep]") {
  device d;
  auto pool = d.pages() | limited{1_GiB} | pooled{} | tracked{};
  void* const p = pool.allocate(d.a, 10_MiB);
  cache(pool, d.a, 20_MiB);
  for (contents const where : {contents::in_pinned_memory, contents::discarded}) {
    std::string const text = refusal([&] { (void)tarn::sleep(pool, where); });
    CHECK(has(text, "could not keep its addresses"));
    CHECK(has(text, "no virtual memory management on this device"));
    CHECK(has(text, "without_pages.cpp"));
  }
  CHECK_FALSE(is_asleep(pool));
  CHECK(tarn::wake(pool) == 0);
  CHECK(memory_reserved(pool) == 30_MiB);
  d.machine.reset_calls();
  cache(pool, d.a, 20_MiB);
  CHECK(d.machine.calls().memory() == 0);
  pool.deallocate(d.a, p, 10_MiB);
}

TEST_CASE("a fallback_to whose first pool cannot sleep keeps both awake", "[pool][without_pages][sleep]") {
  device d;
  sim_options o = without_pages();
  o.paging = sim_paging::available;
  device other(o);
  auto const run = [&](auto pool) {
    void* const p = pool.allocate(d.a, 10_MiB);
    CHECK(has(refusal([&] { (void)tarn::sleep(pool); }), "could not keep its addresses"));
    CHECK_FALSE(is_asleep(pool));
    pool.deallocate(d.a, p, 10_MiB);
  };
  run(d.pages() | pooled{} | fallback_to{sim_managed{d.driver} | pooled{}});
}

TEST_CASE("compact of a pool without pages frees the segments without live bytes", "[pool][without_pages]") {
  device d;
  auto pool = d.pages() | pooled{} | tracked{};
  void* const p = pool.allocate(d.a, 10_MiB);
  cache(pool, d.a, 20_MiB);
  void* const q = pool.allocate(d.a, 5_MiB);
  compaction const c = compact(pool);
  CHECK(c.live == 15_MiB);
  CHECK(c.released + c.reserved == 30_MiB);
  CHECK(c.reserved == memory_reserved(pool));
  pool.deallocate(d.a, q, 5_MiB);
  compaction const more = compact(pool);
  CHECK(more.reserved == 10_MiB);
  CHECK(more.live == 10_MiB);
  CHECK(more.released == 30_MiB - c.released - 10_MiB);
  CHECK(more.stretches == 0);
  pool.deallocate(d.a, p, 10_MiB);
}

TEST_CASE("fallback_to serves what a pool without pages refuses", "[pool][without_pages]") {
  device d;
  auto pool = d.pages() | pooled{} | fallback_to{sim_managed{d.driver}} | tracked{};
  void* const p = pool.allocate(d.a, 900_MiB);
  void* const q = pool.allocate(d.a, 200_MiB);
  CHECK(pool->upstream()->fallback_blocks() == 1);
  CHECK(d.machine.is_accessible(q, 200_MiB));
  pool.deallocate(d.a, p, 900_MiB);
  pool.deallocate(d.a, q, 200_MiB);
  CHECK(pool->upstream()->fallback_blocks() == 0);
}

TEST_CASE("what needs pages is refused where there are none, and the error says what to do",
          "[pool][without_pages]") {
  sim_options o = without_pages();
  o.devices = 2;
  device const d(o);
  CHECK(has(refusal([&] { (void)(d.pages() | accessible_from{device_id{1}}); }), "copies do not need it"));
  CHECK(has(refusal([&] { (void)(d.pages() | accessible_from{} | pooled{}); }), "passes no plain blocks on"));
  CHECK(has(refusal([&] { (void)(pages_only<sim_pages>{d.pages()} | pooled{}); }),
            "passes no plain blocks on"));
  CHECK(detail::has_pages(d.pages()) == false);
  CHECK(detail::has_pages(sim_malloc{d.driver}));
  CHECK(std::string_view(detail::without_pages("x").call) == "x");
  CHECK(d.machine.leaks().total() == 2);  // the two streams of the test
}

TEST_CASE("threads that use a pool without pages do not disturb each other",
          "[pool][without_pages][threads]") {
  sim_options o = without_pages();
  o.checks = sim_checks::off;
  device d(o);
  auto pool = d.pages() | pooled{} | tracked{};
  std::vector<std::thread> all;
  for (unsigned t = 0; t < 4; ++t) {
    all.emplace_back([&pool, &d, t] {
      test_stream const own(d.driver);
      std::mt19937 random(t);
      std::vector<std::pair<void*, std::size_t>> live;
      for (int i = 0; i < 300; ++i) {
        std::size_t const bytes = std::size_t{1} << (random() % 24);
        live.emplace_back(pool.allocate(own, bytes), bytes);
        if (live.size() > 8 || i % 5 == 4) {
          pool.deallocate(own, live.front().first, live.front().second);
          live.erase(live.begin());
        }
        if (i % 50 == 49) pool.empty_cache();
      }
      for (auto const& [p, bytes] : live) pool.deallocate(own, p, bytes);
    });
  }
  for (std::thread& t : all) t.join();
  CHECK(memory_allocated(pool) == 0);
  pool.empty_cache();
  CHECK(d.machine.usage().used == 0);
}
