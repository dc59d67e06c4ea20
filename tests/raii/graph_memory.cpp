// SPDX-License-Identifier: Apache-2.0
// graph_memory and capture_scope on the simulated device: who gets which memory inside and outside a capture,
// when it goes back, and that no call of the pool invalidates a capture.
#include "tarn/raii/graph_memory.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "contract/owners_reported.hpp"
#include "driver/calling_driver.hpp"
#include "tarn/diagnostics.hpp"
#include "tarn/sim.hpp"
#include "tarn/tarn.hpp"

namespace {

using namespace tarn;

template <class Driver>
struct device_of {
  explicit device_of(sim_options o = {})
      : machine([&] {
          o.checks = sim_checks::stream_order;
          return o;
        }()) {}
  sim_machine machine;
  Driver driver{machine.driver()};
  using stream_type = basic_stream<Driver>;
  auto pages() const { return basic_pages<Driver>(driver); }
  void clean() const {
    for (auto const& text : machine.findings()) FAIL_CHECK(text);
    CHECK(machine.captured_calls() == 0);
  }
};
using device = device_of<sim_marking_driver>;

/// A capture on a stream, inside a scope.
template <class Memory>
struct capture {
  capture(sim_machine const& m, graph_memory<Memory>& memory, stream_ref s)
      : machine(m), stream(s), scope(memory, s) {
    REQUIRE(machine.begin_capture(stream).ok());
  }
  void end() {
    is_open = false;
    REQUIRE(machine.end_capture(stream, graph).ok());
  }
  ~capture() {
    if (is_open) end();
  }
  sim_machine const& machine;
  stream_ref stream;
  sim_graph graph;
  capture_scope scope;
  bool is_open = true;
};

/// Uses a block for long on a stream, and frees it.
template <class Pool>
void use_and_free(sim_machine const& machine, Pool& pool, stream_ref on, void* p, std::size_t bytes) {
  machine.allocated(p, bytes, on);
  REQUIRE(machine.launch(on, 50'000'000, {sim_writes(p, bytes)}).ok());
  machine.freed(p, bytes, on);
  pool.deallocate(on, p, bytes);
}
/// Uses all that a stream can still get, in blocks of a size.
template <class Pool>
void use_all(sim_machine const& machine, Pool& pool, stream_ref on, std::size_t bytes) {
  try {
    for (;;) {
      void* const p = pool.allocate(on, bytes);
      machine.allocated(p, bytes, on);
      REQUIRE(machine.launch(on, 1000, {sim_writes(p, bytes)}).ok());
    }
  } catch (out_of_memory const&) {
  }
}

}  // namespace

TEST_CASE("a capture takes over free handles side by side, and needs no view for them",
          "[graph_memory][pages]") {
  for (remapping const remap : {remapping::when_tight, remapping::off}) {
    device d;
    auto pool = d.pages() | pooled{.remap = remap};
    device::stream_type const before(d.driver), s(d.driver);
    void* const blocks[2] = {pool.allocate(before, 2_MiB), pool.allocate(before, 2_MiB)};
    for (void* p : blocks) pool.deallocate_sync(p, 2_MiB);
    graph_memory memory{pool};
    capture open(d.machine, memory, s);
    void* const p = pool.allocate(s, 4_MiB);
    CHECK(pool->state().reserved == 4_MiB);
    CHECK(pool->state().remaps == 0);
    pool.deallocate(s, p, 4_MiB);
    open.end();
    d.clean();
  }
}

TEST_CASE("what a capture allocates is reused inside it, and nowhere else until its owner ends",
          "[graph_memory]") {
  device d;
  auto pool = d.pages() | pooled{} | tracked{};
  device::stream_type a{d.driver}, b{d.driver};
  std::size_t const bytes = GENERATE(as<std::size_t>{}, 256, 5000, 65536, 1 << 20, 3 << 20, 40 << 20);
  void* const eager = pool.allocate(a, bytes);
  pool.deallocate(a, eager, bytes);
  std::vector<void*> seen;
  {
    graph_memory memory{pool};
    {
      capture c(d.machine, memory, a);
      void* const p = pool.allocate(a, bytes);
      CHECK(p != eager);
      pool.deallocate(a, p, bytes);
      CHECK(pool.allocate(a, bytes) == p);  // in stream order
      pool.deallocate(a, p, bytes);
      seen.push_back(p);
      void* const of_b = pool.allocate(b, bytes);  // b is not captured
      CHECK(of_b != p);
      pool.deallocate(b, of_b, bytes);
    }
    CHECK(memory.state().reserved >= bytes);
    CHECK(memory.state().allocated == 0);
    std::vector<void*> held;
    for (int i = 0; i < 20; ++i) {
      held.push_back(pool.allocate(i % 2 == 0 ? a : b, bytes));
      for (void* const p : seen) CHECK(held.back() != p);
    }
    for (void* const p : held) pool.deallocate(a, p, bytes);
    pool.empty_cache();
    CHECK(pool.owns(seen[0]));
    CHECK(memory.state().reserved >= bytes);
    CHECK(memory_reserved(pool) == memory.state().reserved);
  }
  pool.empty_cache();
  CHECK(memory_reserved(pool) == 0);
  CHECK(memory_allocated(pool) == 0);
  d.clean();
}

TEST_CASE("a block of the pool that a capture frees is kept until the owner ends", "[graph_memory]") {
  device d;
  auto const watch = GENERATE(capture_watch::at_frees, capture_watch::in_scopes, capture_watch::always);
  auto pool = d.pages() | pooled{.captures = watch} | tracked{};
  device::stream_type a{d.driver}, b{d.driver};
  std::size_t const bytes = GENERATE(as<std::size_t>{}, 512, 100000, 8 << 20);
  void* const p = pool.allocate(a, bytes);
  void* const used_on_b = pool.allocate(a, bytes);
  pool.record_stream(used_on_b, bytes, b);
  auto const value = [&](std::string const& key) {
    for (auto const& [name, number] : memory_stats(pool)) {
      if (name == key) return number;
    }
    return std::int64_t{-1};
  };
  auto const active = value("active_bytes.all.current");
  {
    graph_memory memory{pool};
    {
      capture c(d.machine, memory, a);
      pool.deallocate(a, p, bytes);
      pool.deallocate(a, used_on_b, bytes);
    }
    CHECK(memory.state().kept == static_cast<std::size_t>(active));
    CHECK(value("active_bytes.all.current") == active);  // as for blocks deferred for a recorded use
    CHECK(memory_allocated(pool) == 0);
    for (int i = 0; i < 10; ++i) {
      void* const q = pool.allocate(a, bytes);
      CHECK((q != p && q != used_on_b));
    }
    pool.empty_cache();
    CHECK(pool.owns(p));
  }
  pool.empty_cache();
  CHECK(value("active_bytes.all.current") == 5 * active);
  d.clean();
}

TEST_CASE("blocks that outlive their capture are freed to the owner's memory", "[graph_memory]") {
  device d;
  auto pool = d.pages() | pooled{} | tracked{};
  device::stream_type a{d.driver}, b{d.driver};
  std::size_t const bytes = GENERATE(as<std::size_t>{}, 4096, 2 << 20);
  graph_memory memory{pool};
  std::vector<void*> out;
  {
    capture c(d.machine, memory, a);
    for (int i = 0; i < 6; ++i) out.push_back(pool.allocate(a, bytes));
  }
  CHECK(memory.state().allocated == 6 * bytes);
  {
    device::stream_type gone{d.driver};
    stream_ref const handle = gone;
    pool.deallocate(a, out[0], bytes);
    pool.deallocate(b, out[1], bytes);
    pool.deallocate_sync(out[2], bytes);
    pool.record_stream(out[3], bytes, b);
    REQUIRE(d.machine.launch(b, 1'000'000, {sim_writes(out[3], bytes)}).ok());
    pool.deallocate(a, out[3], bytes);
    gone = device::stream_type{d.driver};
    pool.deallocate(handle, out[4], bytes);
    pool.deallocate(stream_ref::from(reinterpret_cast<void*>(0x1234)), out[5],
                    bytes);  // unknown to the driver
  }
  CHECK(memory_allocated(pool) == 0);
  for (int i = 0; i < 20; ++i) {
    void* const q = pool.allocate(i % 2 == 0 ? a : b, bytes);
    for (void* const p : out) CHECK(q != p);
  }
  d.machine.advance(10'000'000);
  {
    capture c(d.machine, memory, b);
    std::vector<void*> again;
    for (int i = 0; i < 6; ++i) again.push_back(pool.allocate(b, bytes));
    std::size_t reused = 0;
    for (void* const q : again) reused += static_cast<std::size_t>(std::count(out.begin(), out.end(), q));
    CHECK(reused == 6);  // the device has finished with all of them
    for (void* const q : again) pool.deallocate(b, q, bytes);
  }
  d.clean();
}

TEST_CASE("an owner that ends before its blocks keeps them valid", "[graph_memory]") {
  device d;
  auto pool = d.pages() | pooled{} | tracked{};
  device::stream_type a{d.driver};
  void* p = nullptr;
  {
    graph_memory memory{pool};
    capture c(d.machine, memory, a);
    p = pool.allocate(a, 3 << 20);
  }
  pool.empty_cache();
  CHECK(pool.owns(p));
  CHECK(d.machine.is_accessible(p, 3 << 20));
  CHECK(memory_allocated(pool) == 3 << 20);
  pool.deallocate(a, p, 3 << 20);
  CHECK(memory_allocated(pool) == 0);
  pool.empty_cache();
  CHECK(memory_reserved(pool) == 0);
  d.clean();
}

TEMPLATE_TEST_CASE("memory of an owner that ends is unmapped after its graph has run", "[graph_memory]",
                   sim_driver, sim_marking_driver) {
  device_of<TestType> d;
  auto pool = d.pages() | pooled{};
  basic_stream<TestType> a{d.driver}, b{d.driver};
  constexpr std::size_t bytes = 4 << 20;
  void* const kept = pool.allocate(a, bytes);
  {
    graph_memory memory{pool};
    sim_graph graph;
    void* p = nullptr;
    {
      capture c(d.machine, memory, a);
      p = pool.allocate(a, bytes);
      REQUIRE(d.machine.launch(a, 5'000'000, {sim_writes(p, bytes), sim_writes(kept, bytes)}).ok());
      pool.deallocate(a, p, bytes);
      pool.deallocate(a, kept, bytes);
      c.end();
      graph = c.graph;
    }
    REQUIRE(d.machine.launch(b, graph).ok());
    auto const before = d.machine.now();
    auto const calls = d.machine.calls();
    memory = graph_memory{pool};  // ends the owner
    if constexpr (std::is_same_v<TestType, sim_marking_driver>) {
      CHECK(d.machine.now() - before < 1'000'000);  // did not wait
      CHECK(d.machine.calls()[driver_call::synchronize_device] == calls[driver_call::synchronize_device]);
      CHECK(d.machine.is_accessible(p, bytes));
      CHECK(pool.allocate(a, bytes) != kept);
      detail::graph_totals sum;
      nearest(pool, pool_call::add_graphs{sum});
      CHECK(sum.owners == 2);
      CHECK(sum.reserved == bytes);
    }
  }
  pool.empty_cache();
  CHECK(d.machine.pending() == 0);
  CHECK(memory_reserved(pool) == (std::is_same_v<TestType, sim_marking_driver> ? bytes : 0));
  d.clean();
}

TEST_CASE("a stream that joins a capture gets the owner's memory, in its own order",
          "[graph_memory][pages]") {
  device d;
  auto pool = d.pages() | pooled{};
  device::stream_type a{d.driver}, b{d.driver}, c2{d.driver};
  constexpr std::size_t bytes = 1 << 20;
  void* const of_b = pool.allocate(b, bytes);
  pool.deallocate(b, of_b, bytes);
  void* const of_c = pool.allocate(c2, bytes);
  event_handle fork = nullptr, join = nullptr;
  REQUIRE((d.driver.create_event(fork).ok() && d.driver.create_event(join).ok()));
  graph_memory memory{pool};
  void* p = nullptr;
  {
    capture c(d.machine, memory, a);
    REQUIRE((d.driver.record_event(fork, a).ok() && d.driver.wait_event(b, fork).ok() &&
             d.driver.wait_event(c2, fork).ok()));
    p = pool.allocate(b, bytes);
    CHECK(p != of_b);
    pool.deallocate(b, p, bytes);
    void* const q = pool.allocate(a, bytes);
    CHECK(q != p);  // the capture does not order a after b here
    c.scope.join(c2);
    pool.deallocate(c2, of_c, bytes);  // the first call on this stream
    CHECK(memory.state().kept == bytes);
    for (auto const* const s : {&b, &c2})
      REQUIRE((d.driver.record_event(join, *s).ok() && d.driver.wait_event(a, join).ok()));
    pool.deallocate(a, q, bytes);
  }
  CHECK(pool.allocate(b, bytes) == of_b);
  {
    capture c(d.machine, memory, c2);
    void* const q = pool.allocate(c2, bytes);
    void* const r = pool.allocate(c2, bytes);
    CHECK((q == p || r == p));  // the next capture gets what both streams freed
  }
  CHECK((d.driver.destroy_event(fork).ok() && d.driver.destroy_event(join).ok()));
}

TEST_CASE("a stream of a capture takes what another one freed in order only, also after many other streams",
          "[graph_memory][streams]") {
  device d;
  auto pool = d.pages() | pooled{};
  device::stream_type a{d.driver}, b{d.driver};
  std::vector<device::stream_type> others;
  for (int i = 0; i < 64; ++i) others.emplace_back(d.driver);
  event_handle fork = nullptr, join = nullptr;
  REQUIRE((d.driver.create_event(fork).ok() && d.driver.create_event(join).ok()));
  constexpr std::size_t bytes = 4_MiB;
  graph_memory memory{pool};
  capture c(d.machine, memory, a);
  REQUIRE((d.driver.record_event(fork, a).ok() && d.driver.wait_event(b, fork).ok()));
  void* const p = pool.allocate(a, bytes);
  for (auto const& s : others) pool.deallocate(s, pool.allocate(s, 1000), 1000);
  pool.deallocate(a, p, bytes);
  pool.empty_cache();  // the thread's cache does not keep it
  CHECK(pool.allocate(b, bytes) != p);
  CHECK(pool.allocate(a, bytes) == p);
  REQUIRE((d.driver.record_event(join, b).ok() && d.driver.wait_event(a, join).ok()));
  c.end();
  CHECK((d.driver.destroy_event(fork).ok() && d.driver.destroy_event(join).ok()));
  CHECK(d.machine.findings().empty());
}

TEST_CASE("what a graph uses stays mapped when the pool needs the addresses of unused views",
          "[graph_memory][pages]") {
  device d({.capacity = 128_MiB, .taken = 0});
  auto pool = d.pages() | pooled{};
  device::stream_type a{d.driver};
  graph_memory memory{pool};
  sim_graph graph;
  void* p = nullptr;
  {
    capture c(d.machine, memory, a);
    std::vector<void*> blocks;
    for (int i = 0; i < 4; ++i) blocks.push_back(pool.allocate(a, 4_MiB));
    for (unsigned const i : {0u, 2u}) pool.deallocate(a, blocks[i], 4_MiB);
    p = pool.allocate(a, 8_MiB);
    REQUIRE(pool->state().remaps != 0);  // it lies in a view of both
    REQUIRE(d.machine.launch(a, 1000, {sim_writes(p, 8_MiB)}).ok());
    pool.deallocate(a, p, 8_MiB);
    for (unsigned const i : {1u, 3u}) pool.deallocate(a, blocks[i], 4_MiB);
    c.end();
    graph = c.graph;
  }
  std::size_t const all = 8 * 128_MiB;  // addresses that the pool has for views
  CHECK_THROWS_AS((growing_buffer<char, decltype(pool)>(pool, all, a)), out_of_memory);
  CHECK(d.machine.is_accessible(p, 8_MiB));
  REQUIRE((d.machine.launch(a, graph).ok() && d.driver.synchronize_stream(a).ok()));
  memory = graph_memory{pool};  // ends the owner, and the graph is not launched again
  CHECK_NOTHROW(growing_buffer<char, decltype(pool)>(pool, all, a));
  d.clean();
}

TEST_CASE("the addresses of a view that no capture used are free, although captures have one of its handles",
          "[graph_memory][pages]") {
  device d({.capacity = 128_MiB, .taken = 0});
  auto pool = d.pages() | pooled{};
  device::stream_type a{d.driver};
  void* blocks[4];
  for (void*& p : blocks) p = pool.allocate(a, 4_MiB);
  for (unsigned const i : {0u, 2u}) pool.deallocate_sync(blocks[i], 4_MiB);
  void* const p = pool.allocate(a, 8_MiB);
  REQUIRE(pool->state().remaps != 0);  // it lies in a view of both
  pool.deallocate_sync(p, 8_MiB);
  graph_memory memory{pool};
  std::uint64_t const creates = pool->state().creates;
  {
    capture c(d.machine, memory, a);
    pool.deallocate(a, pool.allocate(a, 4_MiB), 4_MiB);
    c.end();
  }
  REQUIRE(memory.state().reserved != 0);
  REQUIRE(pool->state().creates == creates);  // the handle is one of the view's
  std::size_t const all = 8 * 128_MiB;        // addresses that the pool has for views
  CHECK_NOTHROW(growing_buffer<char, decltype(pool)>(pool, all, a));
  for (unsigned const i : {1u, 3u}) pool.deallocate(a, blocks[i], 4_MiB);
  d.clean();
}

TEST_CASE("captures that share an owner hold little more than the largest needs", "[graph_memory][pages]") {
  device d;
  auto pool = d.pages() | pooled{};
  auto const layer = [](std::size_t batch, int i) {
    return batch * (40'000 + 9'000 * static_cast<std::size_t>(i % 7));
  };
  auto const step = [&](device::stream_type const& s, std::size_t batch) {
    std::vector<std::pair<void*, std::size_t>> live;
    for (int i = 0; i < 24; ++i) {
      std::size_t const bytes = layer(batch, i);
      live.emplace_back(pool.allocate(s, bytes), bytes);
      void* const scratch = pool.allocate(s, bytes / 3);
      pool.deallocate(s, scratch, bytes / 3);
      if (i % 3 == 2) {
        pool.deallocate(s, live.front().first, live.front().second);
        live.erase(live.begin());
      }
    }
    for (auto const& [p, bytes] : live) pool.deallocate(s, p, bytes);
  };
  std::size_t alone = 0;
  {
    device::stream_type s{d.driver};
    graph_memory memory{pool};
    capture c(d.machine, memory, s);
    step(s, 256);
    alone = memory.state().reserved;
  }
  graph_memory memory{pool};
  for (std::size_t n = 32; n != 0; --n) {
    device::stream_type s{d.driver};
    capture c(d.machine, memory, s);
    step(s, 8 * n);
  }
  INFO(memory.state().reserved << " for " << alone);
  CHECK(memory.state().reserved * 100 <= alone * 108);
  // From the smallest to the largest, too.
  graph_memory rising{pool};
  for (std::size_t n = 1; n <= 32; ++n) {
    device::stream_type s{d.driver};
    capture c(d.machine, rising, s);
    step(s, 8 * n);
  }
  INFO(rising.state().reserved << " for " << alone);
  CHECK(rising.state().reserved * 100 <= alone * 108);
}

TEST_CASE("two owners: a block of one that a capture of the other frees stays until the other ends",
          "[graph_memory]") {
  device d;
  auto pool = d.pages() | pooled{};
  device::stream_type a{d.driver}, b{d.driver};
  graph_memory first{pool};
  void* p = nullptr;
  {
    capture c(d.machine, first, a);
    p = pool.allocate(a, 4096);
  }
  {
    graph_memory second{pool};
    {
      capture c(d.machine, second, b);
      pool.deallocate(b, p, 4096);
    }
    capture c(d.machine, first, a);
    for (int i = 0; i < 300; ++i) CHECK(pool.allocate(a, 4096) != p);
  }
  capture c(d.machine, first, b);
  bool found = false;
  for (int i = 0; i < 600; ++i) found = found || pool.allocate(b, 4096) == p;
  CHECK(found);
}

TEST_CASE("trim gives back an ended owner whose block another ended owner kept", "[graph_memory]") {
  device d;
  auto pool = d.pages() | pooled{};
  device::stream_type a{d.driver}, b{d.driver};
  {
    graph_memory first{pool};
    graph_memory second{pool};
    void* p = nullptr;
    {
      capture c(d.machine, first, a);
      p = pool.allocate(a, 4096);
    }
    {
      capture c(d.machine, second, b);
      pool.deallocate(b, p, 4096);
    }
    REQUIRE(d.machine.launch(a, 1'000'000, {}).ok());  // both owners end while the device works
  }
  pool.empty_cache();
  CHECK(memory_reserved(pool) == 0);
  d.clean();
}

TEST_CASE("two ended owners that kept blocks of each other are given back", "[graph_memory]") {
  device d;
  auto pool = d.pages() | pooled{};
  device::stream_type a{d.driver}, b{d.driver};
  {
    graph_memory first{pool};
    graph_memory second{pool};
    void* p = nullptr;
    void* q = nullptr;
    {
      capture c(d.machine, first, a);
      p = pool.allocate(a, 4096);
    }
    {
      capture c(d.machine, second, b);
      q = pool.allocate(b, 4096);
      pool.deallocate(b, p, 4096);
    }
    capture c(d.machine, first, a);
    pool.deallocate(a, q, 4096);
  }
  pool.empty_cache();
  CHECK(memory_reserved(pool) == 0);
  d.clean();
}

TEST_CASE("two blocks that graphs of two ended owners use are given back", "[graph_memory]") {
  device d;
  auto pool = d.pages() | pooled{};
  device::stream_type a{d.driver}, b{d.driver}, e{d.driver};
  void* const p = pool.allocate(e, 4096);
  void* const q = pool.allocate(e, 4096);
  {
    graph_memory first{pool};
    graph_memory second{pool};
    {
      capture const c(d.machine, first, a);
      capture const also(d.machine, second, b);
      pool.record_stream(p, 4096, a);
      pool.record_stream(p, 4096, b);  // p is kept for the second owner, and then for the first
      pool.record_stream(q, 4096, b);
      pool.record_stream(q, 4096, a);
    }
    pool.deallocate(e, p, 4096);
    pool.deallocate(e, q, 4096);
  }
  pool.empty_cache();
  CHECK(memory_reserved(pool) == 0);
  d.clean();
}

TEST_CASE("a block that its owner keeps because the stream was not named is given back at the end",
          "[graph_memory]") {
  device d;
  auto pool = d.pages() | pooled{};
  device::stream_type a{d.driver}, b{d.driver};
  event_handle fork = nullptr;
  REQUIRE(d.driver.create_event(fork).ok());
  {
    graph_memory memory{pool};
    capture c(d.machine, memory, a);
    void* const p = pool.allocate(a, 4096);
    REQUIRE((d.driver.record_event(fork, a).ok() && d.driver.wait_event(b, fork).ok()));
    pool.deallocate(b, p, 4096);  // b only frees, and was not named
  }
  pool.empty_cache();
  CHECK(memory_reserved(pool) == 0);
  CHECK(d.driver.destroy_event(fork).ok());
}

TEST_CASE("join takes a stream that is named by its handle alone", "[graph_memory][threads]") {
  device d;
  auto pool = d.pages() | pooled{};
  device::stream_type a{d.driver}, b{d.driver};
  void* const warm = pool.allocate(b, 4096);
  pool.deallocate(b, warm, 4096);
  event_handle fork = nullptr;
  REQUIRE(d.driver.create_event(fork).ok());
  graph_memory memory{pool};
  capture c(d.machine, memory, a);
  REQUIRE((d.driver.record_event(fork, a).ok() && d.driver.wait_event(b, fork).ok()));
  c.scope.join(stream_ref::from(stream_ref(b).handle()));
  void* p = nullptr;
  std::thread([&] { p = pool.allocate(b, 4096); }).join();
  CHECK(p != warm);
  CHECK(memory.state().allocated == 4096);
  pool.deallocate(b, p, 4096);
  REQUIRE((d.driver.record_event(fork, b).ok() && d.driver.wait_event(a, fork).ok()));
  CHECK_THROWS_AS(c.scope.join(stream_ref::from(reinterpret_cast<void*>(0x77))), cuda_error);
  CHECK(d.driver.destroy_event(fork).ok());
}

TEST_CASE("a block of another thread's default stream is not kept for a capture of the own one",
          "[graph_memory][threads]") {
  device d;
  auto pool = d.pages() | pooled{};
  auto const own = [&] { return identified(d.driver, stream_ref::from(reinterpret_cast<void*>(2))); };
  stream_ref of_other;
  void* p = nullptr;
  std::thread([&] {
    of_other = own();
    p = pool.allocate(of_other, 3 << 20);
  }).join();
  graph_memory memory{pool};
  graph_memory second{pool};
  {
    device::stream_type a{d.driver};
    capture c(d.machine, memory, own());
    capture also(d.machine, second, a);
    pool.deallocate(of_other, p, 3 << 20);
    CHECK(memory.state().kept == 0);
  }
  pool.empty_cache();
  CHECK(memory_reserved(pool) == 0);
}

TEMPLATE_TEST_CASE(
    "memory of an ended owner that a captured stream freed before is not unmapped during the capture",
    "[graph_memory]", sim_driver, sim_marking_driver) {
  device_of<TestType> d;
  auto pool = d.pages() | pooled{};
  basic_stream<TestType> a{d.driver}, b{d.driver}, e{d.driver};
  constexpr std::size_t bytes = 4 << 20;
  void* p = nullptr;
  {
    graph_memory memory{pool};
    capture c(d.machine, memory, a);
    p = pool.allocate(a, bytes);
  }
  REQUIRE(d.machine.launch(b, 50'000'000, {sim_writes(p, bytes)}).ok());
  pool.deallocate(b, p, bytes);
  {
    graph_memory memory{pool};
    capture c(d.machine, memory, b);
    pool.empty_cache();
    CHECK_THROWS_AS(pool.allocate(e, std::size_t{1} << 45), out_of_memory);
  }
  pool.empty_cache();
  CHECK(memory_reserved(pool) == 0);
  d.clean();
}

TEST_CASE("a block that graphs of many owners use returns to the pool when all of them have ended",
          "[graph_memory]") {
  device d;
  auto pool = d.pages() | pooled{};
  device::stream_type a{d.driver}, e{d.driver};
  constexpr std::size_t bytes = 4 << 20;
  void* const p = pool.allocate(e, bytes);
  bool const one_by_one = GENERATE(false, true);
  std::vector<graph_memory<decltype(pool)>> owners;
  for (int i = 0; i < 9; ++i) {
    if (one_by_one) owners.clear();
    owners.emplace_back(pool);
    capture c(d.machine, owners.back(), a);
    pool.record_stream(p, bytes, a);
  }
  pool.deallocate(e, p, bytes);
  bool const oldest_first = GENERATE(false, true);
  while (!owners.empty()) {
    pool.empty_cache();
    CHECK(pool->state().deferred == bytes);
    owners.erase(oldest_first ? owners.begin() : owners.end() - 1);
  }
  pool.empty_cache();
  CHECK(pool->state().deferred == 0);
  CHECK(memory_reserved(pool) == 0);
  d.clean();
}

TEST_CASE("a block that graphs of several owners use is kept until the last of them ends", "[graph_memory]") {
  device d;
  auto pool = d.pages() | pooled{};
  device::stream_type a{d.driver}, b{d.driver}, e{d.driver};
  constexpr std::size_t bytes = 4 << 20;
  bool const in_capture = GENERATE(false, true);
  void* const p = pool.allocate(e, bytes);
  graph_memory first{pool};
  auto second = std::make_unique<graph_memory<decltype(pool)>>(pool);
  {
    capture c(d.machine, first, a);
    capture also(d.machine, *second, b);
    pool.record_stream(p, bytes, b);
    if (!in_capture) pool.record_stream(p, bytes, a);
    pool.deallocate(in_capture ? stream_ref(a) : stream_ref(e), p, bytes);
  }
  second.reset();
  pool.empty_cache();
  CHECK(first.state().kept == bytes);
  for (int i = 0; i < 4; ++i) CHECK(pool.allocate(e, bytes) != p);
  d.clean();
}

TEST_CASE("a recorded use on the stream of the free keeps no block from reuse inside a capture",
          "[graph_memory]") {
  device d;
  auto pool = d.pages() | pooled{};
  device::stream_type a{d.driver}, b{d.driver};
  event_handle fork = nullptr;
  REQUIRE(d.driver.create_event(fork).ok());
  constexpr std::size_t bytes = 4 << 20;
  {
    graph_memory memory{pool};
    bool const handle_only = GENERATE(false, true);
    capture c(d.machine, memory, a);
    void* const p = pool.allocate(a, bytes);
    pool.record_stream(p, bytes, handle_only ? stream_ref::from(stream_ref(a).handle()) : stream_ref(a));
    pool.deallocate(a, p, bytes);
    CHECK(pool->state().deferred == 0);
    CHECK(pool.allocate(a, bytes) == p);
    REQUIRE((d.driver.record_event(fork, a).ok() && d.driver.wait_event(b, fork).ok()));
    pool.record_stream(p, bytes, b);  // b has joined the capture
    pool.deallocate(a, p, bytes);
    CHECK(pool->state().deferred == bytes);
    void* const q = pool.allocate(a, bytes);
    CHECK(q != p);
    pool.deallocate(a, q, bytes);
    REQUIRE((d.driver.record_event(fork, b).ok() && d.driver.wait_event(a, fork).ok()));
  }
  pool.empty_cache();
  CHECK(pool->state().deferred == 0);
  CHECK(memory_reserved(pool) == 0);
  REQUIRE(d.driver.destroy_event(fork).ok());
  CHECK(d.machine.findings().empty());
}

TEST_CASE("a thread is not taken for one that ended with a scope open", "[graph_memory][threads]") {
  device d;
  auto pool = d.pages() | pooled{};
  device::stream_type a{d.driver}, b{d.driver}, e{d.driver};
  event_handle fork = nullptr;
  REQUIRE(d.driver.create_event(fork).ok());
  graph_memory first{pool};
  graph_memory second{pool};
  std::optional<capture_scope> left_open;
  for (int i = 0; i < 2; ++i) {  // the second thread mostly gets the place of the first
    std::thread([&] {
      if (i == 0) return void(left_open.emplace(first, a));
      capture c(d.machine, second, b);
      REQUIRE((d.driver.record_event(fork, b).ok() && d.driver.wait_event(e, fork).ok()));
      pool.deallocate(e, pool.allocate(e, 4096), 4096);
      CHECK(second.state().reserved != 0);
      REQUIRE((d.driver.record_event(fork, e).ok() && d.driver.wait_event(b, fork).ok()));
    }).join();
  }
  CHECK(d.driver.destroy_event(fork).ok());
}

TEST_CASE("a capture that finds the device full gets the pool's cached memory", "[graph_memory]") {
  sim_options o;
  o.capacity = 256 << 20;
  o.taken = 48 << 20;
  device d(o);
  auto pool = d.pages() | pooled{};
  device::stream_type a{d.driver}, b{d.driver};
  void* const p = pool.allocate(b, 200 << 20);
  REQUIRE(d.machine.launch(b, 1'000'000, {sim_writes(p, 200 << 20)}).ok());
  pool.deallocate(b, p, 200 << 20);
  graph_memory memory{pool};
  {
    capture c(d.machine, memory, a);
    void* const q = pool.allocate(a, 200 << 20);
    CHECK_THROWS_AS(pool.allocate(a, 200 << 20), out_of_memory);
    pool.deallocate(a, q, 200 << 20);
  }
  CHECK_THROWS_AS(pool.allocate(a, 200 << 20), out_of_memory);  // the owner's
  memory = graph_memory{pool};
  void* const r = pool.allocate(a, 200 << 20);  // an ended owner's memory is taken before the pool fails
  pool.deallocate(a, r, 200 << 20);
  d.clean();
}

TEST_CASE("during a capture each stream waits for the earlier uses of what it takes from another one",
          "[graph_memory][streams]") {
  device d({.capacity = 28_MiB, .taken = 0});
  auto pool = d.pages() | pooled{} | tarn_test::owners_reported{d.machine};
  device::stream_type a{d.driver}, b{d.driver}, e{d.driver}, g{d.driver};
  graph_memory memory{pool};
  auto const use = [&](stream_ref stream, void* p, std::size_t bytes, std::uint64_t ns) {
    REQUIRE(d.machine.launch(stream, ns, {sim_writes(p, bytes)}).ok());
    return p;
  };
  void* const p = use(a, pool.allocate(a, 8_MiB), 8_MiB, 50'000'000);
  (void)pool.allocate(e, 2_MiB);  // lies between both
  void* const q = use(b, pool.allocate(b, 16_MiB), 16_MiB, 50'000'000);
  pool.deallocate(a, p, 8_MiB);
  pool.deallocate(b, q, 16_MiB);
  {
    capture const c(d.machine, memory, g);  // an event marks these uses; during the capture none can
    CHECK(use(a, pool.allocate(a, 16_MiB), 16_MiB, 1000) == q);
    CHECK(use(e, pool.allocate(e, 8_MiB), 8_MiB, 1000) == p);
  }
  d.clean();
}

TEST_CASE("without a scope, a pool that always looks for captures refuses and keeps", "[graph_memory]") {
  device d;
  auto pool = d.pages() | pooled{.captures = capture_watch::always};
  device::stream_type a{d.driver};
  for (std::size_t const bytes : {std::size_t{4096}, std::size_t{2} << 20}) {
    void* const p = pool.allocate(a, bytes);
    void* const warm = pool.allocate(a, bytes);
    pool.deallocate(a, warm, bytes);
    CHECK(pool.allocate(a, bytes) == warm);
    sim_graph graph;
    REQUIRE(d.machine.begin_capture(a).ok());
    try {
      (void)pool.allocate(a, bytes);
      FAIL("not refused");
    } catch (cuda_error const& e) {
      CHECK(std::string(e.what()).find("capture_scope") != std::string::npos);
      CHECK(e.code() == 900);
    }
    pool.deallocate(a, p, bytes);
    REQUIRE(d.machine.end_capture(a, graph).ok());
    for (int i = 0; i < 10; ++i) CHECK(pool.allocate(a, bytes) != p);
    graph_memory memory{pool};
    capture c(d.machine, memory, a);
    CHECK(pool.allocate(a, bytes) != p);
  }
  d.clean();
}

TEST_CASE("a capture on a bare handle allocates and frees without being invalidated",
          "[graph_memory][threads]") {
  device d;
  auto pool = d.pages() | pooled{} | tracked{};
  device::stream_type a{d.driver}, joined{d.driver}, other{d.driver};
  stream_ref const bare = stream_ref::from(a.get());
  std::size_t const bytes = GENERATE(as<std::size_t>{}, 4096, 3 << 20);
  void* const eager = pool.allocate(bare, bytes);
  graph_memory memory{pool};
  void* kept = nullptr;
  {
    capture c(d.machine, memory, bare);
    void* const p = pool.allocate(bare, bytes);
    pool.deallocate(a, p, bytes);  // the same stream
    CHECK(pool.allocate(bare, bytes) == p);
    kept = p;
    pool.deallocate(bare, eager, bytes);  // a block of the pool: the graph may use it
    CHECK(identified(pool, bare).id() == a.ref().id());
    void* const q = pool.allocate(stream_ref::from(other.get()), bytes);  // not captured
    CHECK(identified(pool, stream_ref::from(other.get())).id() == other.ref().id());
    pool.deallocate(stream_ref::from(other.get()), q, bytes);
    // A stream that joins the capture, known by its handle alone.
    event_handle e = nullptr;
    REQUIRE(d.driver.create_event(e).ok());
    REQUIRE(d.driver.record_event(e, a).ok());
    REQUIRE(d.driver.wait_event(joined, e).ok());
    stream_ref const bare_joined = stream_ref::from(joined.get());
    void* const r = pool.allocate(bare_joined, bytes);
    pool.deallocate(bare_joined, r, bytes);
    CHECK(pool.allocate(bare_joined, bytes) == r);
    pool.deallocate(bare_joined, r, bytes);
    std::thread([&] { CHECK(identified(pool, bare_joined).id() == joined.ref().id()); }).join();
    REQUIRE(d.driver.record_event(e, joined).ok());
    REQUIRE(d.driver.wait_event(a, e).ok());
    REQUIRE(d.driver.destroy_event(e).ok());
  }
  CHECK(d.machine.invalidated_captures() == 0);
  CHECK(identified(pool, bare).id() == a.ref().id());
  CHECK(identified(pool, stream_ref::from(joined.get())).id() == joined.ref().id());
  CHECK(memory.state().allocated >= bytes);
  CHECK(memory.state().kept >= bytes);
  pool.deallocate(bare, kept, bytes);
  for (auto const& text : d.machine.findings()) FAIL_CHECK(text);
}

TEST_CASE("without a scope, a pool refuses a bare handle of a captured stream, and the capture is invalid",
          "[graph_memory]") {
  device d;
  auto pool = d.pages() | pooled{};
  device::stream_type a{d.driver};
  stream_ref const bare = stream_ref::from(a.get());
  void* const p = pool.allocate(bare, 4096);
  void* const warm = pool.allocate(bare, 4096);
  pool.deallocate(bare, warm, 4096);
  bool const allocates = GENERATE(true, false);
  REQUIRE(d.machine.begin_capture(a).ok());
  if (allocates) {
    try {
      (void)pool.allocate(bare, 4096);
      FAIL("not refused");
    } catch (cuda_error const& e) {
      CHECK(std::string(e.what()).find("capture_scope") != std::string::npos);
      CHECK(e.code() == 900);
    }
  }
  pool.deallocate(bare, p, 4096);  // the graph that might use it is never replayed
  sim_graph graph;
  CHECK_FALSE(d.machine.end_capture(a, graph).ok());
  d.clean();
}

TEST_CASE("opening a scope asks for the device's memory once in a while, and again when the pool has grown",
          "[graph_memory]") {
  device d;
  auto pool = d.pages() | pooled{};
  device::stream_type a{d.driver};
  graph_memory memory{pool};
  auto const asked_by = [&](int scopes) {
    auto const before = d.machine.calls()[driver_call::memory_info];
    for (int i = 0; i < scopes; ++i) capture_scope const scope(memory, a);
    return d.machine.calls()[driver_call::memory_info] - before;
  };
  CHECK(asked_by(1) == 1);
  CHECK(asked_by(63) == 0);
  CHECK(asked_by(1) == 1);
  void* const p = pool.allocate(a, std::size_t{16} << 30);
  CHECK(asked_by(2) == 1);
  pool.deallocate(a, p, std::size_t{16} << 30);
  d.clean();
}

TEST_CASE("the statistics of a pool include its graph memories and stay exact", "[graph_memory]") {
  device d;
  auto pool = d.pages() | pooled{} | with_history{} | tracked{};
  device::stream_type a{d.driver};
  void* const p = pool.allocate(a, 6 << 20);
  std::size_t reserved = memory_reserved(pool);
  {
    graph_memory memory{pool};
    {
      capture c(d.machine, memory, a);
      void* const q = pool.allocate(a, 10 << 20);
      CHECK(memory_allocated(pool) == 16 << 20);
      CHECK(memory_reserved(pool) == reserved + memory.state().reserved);
      CHECK(memory.state().allocated == 10 << 20);
      pool.deallocate(a, q, 10 << 20);
    }
    reserved = memory_reserved(pool);
    CHECK(max_memory_reserved(pool) == reserved);
    snapshot const s = take_snapshot(pool);
    std::size_t of_graph = 0;
    for (auto const& segment : s.segments) {
      if (segment.graph_memory != 0) of_graph += segment.bytes;
    }
    CHECK(of_graph == memory.state().reserved);
    std::ostringstream json;
    write_json(json, s);
    CHECK(json.str().find("\"graph_memory\"") != std::string::npos);
  }
  pool.deallocate(a, p, 6 << 20);
  pool.empty_cache();
  pool_state const s = nearest(pool, [](auto& l) -> decltype(l.state()) { return l.state(); });
  CHECK((s.reserved == 0 && s.reserved_peak == reserved && s.reserved_total == s.released_total));
  CHECK((s.handles == 0 && s.creates == s.destroys && s.live == 0 && s.live_blocks == 0));
  CHECK(s.smaller.reserved.current + s.larger.reserved.current == 0);
}

TEST_CASE("a sleeping pool reports nothing as held for graphs", "[graph_memory][pages]") {
  device d;
  auto pool = d.pages() | pooled{} | tracked{};
  device::stream_type a{d.driver};
  graph_memory memory{pool};
  void* const p = memory.allocate(a, 4 << 20);
  std::size_t const reserved = memory.state().reserved;
  CHECK(reserved >= 4 << 20);
  (void)sleep(pool, contents::discarded);
  CHECK(memory_reserved(pool) == 0);
  CHECK((memory.state().reserved == 0 && memory.state().allocated == 4 << 20));
  for (auto const& [key, value] : memory_stats(pool))
    CHECK((key != "graph_memory.reserved_bytes" || value == 0));
  (void)wake(pool);
  CHECK(memory.state().reserved == reserved);
  pool.deallocate(a, p, 4 << 20);
  d.clean();
}

namespace {
sim_options small_device() {
  sim_options o;
  o.capacity = 64 << 20;
  o.taken = 0;
  return o;
}
/// What is beyond 8 MiB is in a second pool.
auto limited_with_fallback(device const& d) {
  return d.pages() | pooled{} | limited{8 << 20} |
         fallback_to{basic_managed<sim_marking_driver>(d.driver) | pooled{}};
}
}  // namespace

TEST_CASE("both pools of fallback_to keep a graph's memory", "[graph_memory]") {
  device d(small_device());
  auto memory = limited_with_fallback(d);
  device::stream_type a{d.driver};
  graph_memory graph{memory};
  void* p = nullptr;
  void* q = nullptr;
  {
    capture c(d.machine, graph, a);
    p = memory.allocate(a, 6 << 20);
    q = memory.allocate(a, 6 << 20);  // beyond the limit
    memory.deallocate(a, p, 6 << 20);
    memory.deallocate(a, q, 6 << 20);
  }
  CHECK(graph.state().reserved >= 12 << 20);
  void* const r = memory.allocate(a, 6 << 20);
  void* const s = memory.allocate(a, 6 << 20);
  CHECK((r != p && s != q && r != q && s != p));
  memory.deallocate(a, r, 6 << 20);
  memory.deallocate(a, s, 6 << 20);
}

TEST_CASE("a stream joins the captures of both pools of fallback_to", "[graph_memory]") {
  device d(small_device());
  auto memory = limited_with_fallback(d);
  device::stream_type a{d.driver}, b{d.driver};
  event_handle fork = nullptr;
  REQUIRE(d.driver.create_event(fork).ok());
  graph_memory graph{memory};
  capture c(d.machine, graph, a);
  REQUIRE((d.driver.record_event(fork, a).ok() && d.driver.wait_event(b, fork).ok()));
  c.scope.join(b);
  void* const p = memory.allocate(b, 6 << 20);
  void* const q = memory.allocate(b, 6 << 20);  // beyond the limit
  CHECK(graph.state().allocated == 12 << 20);
  memory.deallocate(b, p, 6 << 20);
  memory.deallocate(b, q, 6 << 20);
  REQUIRE((d.driver.record_event(fork, b).ok() && d.driver.wait_event(a, fork).ok()));
  c.end();
  CHECK(graph.state().reserved >= 12 << 20);
  CHECK(d.driver.destroy_event(fork).ok());
  CHECK(d.machine.findings().empty());
}

TEST_CASE("a scope that the second pool of fallback_to refuses is not open in the first", "[graph_memory]") {
  device d;
  auto first = d.pages() | pooled{};
  auto second = d.pages() | pooled{};
  auto memory = first | fallback_to{second};
  device::stream_type a{d.driver};
  graph_memory of_second{second};
  graph_memory of_both{memory};
  {
    capture_scope const scope(of_second, a);
    CHECK_THROWS_AS(capture_scope(of_both, a), cuda_error);
    void* const p = first.allocate(a, 4096);  // of no capture
    CHECK(of_both.state().allocated == 0);
    first.deallocate(a, p, 4096);
  }
  capture c(d.machine, of_both, a);
  void* const p = memory.allocate(a, 4096);
  CHECK(of_both.state().allocated == 4096);
  memory.deallocate(a, p, 4096);
}

TEST_CASE("scopes that cannot be opened change nothing", "[graph_memory]") {
  device d;
  auto pool = d.pages() | pooled{};
  device::stream_type a{d.driver};
  graph_memory memory{pool};
  {
    capture_scope const scope(memory, a);
    CHECK_THROWS_AS(capture_scope(memory, a), cuda_error);
  }
  CHECK_THROWS_AS(capture_scope(memory, stream_ref::from(reinterpret_cast<void*>(0x77))), cuda_error);
  capture c(d.machine, memory, a);
  void* const p = pool.allocate(a, 4096);
  CHECK(memory.state().allocated == 4096);
  pool.deallocate(a, p, 4096);
}

TEST_CASE("other threads use the pool during captures and invalidate none", "[graph_memory][threads]") {
  device d;
  auto pool = d.pages() | pooled{} | tracked{};
  constexpr int helpers = 6;
  std::vector<device::stream_type> streams;
  for (int i = 0; i < helpers + 1; ++i) streams.emplace_back(d.driver);
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < helpers; ++t) {
    threads.emplace_back([&, t] {
      std::vector<std::pair<void*, std::size_t>> live;
      unsigned random = static_cast<unsigned>(t) + 1;
      for (int i = 0; !over; ++i) {
        random = random * 1664525 + 1013904223;
        std::size_t const bytes = 256u << (random >> 16) % 14;
        live.emplace_back(pool.allocate(streams[static_cast<std::size_t>(t)], bytes), bytes);
        if (i % 5 == 0)
          pool.record_stream(live.back().first, bytes, streams[static_cast<std::size_t>((t + 1) % helpers)]);
        if (live.size() > 24) {
          auto const& [p, size] = live[(random >> 8) % live.size()];
          pool.deallocate(streams[static_cast<std::size_t>(i % 3 == 0 ? (t + 2) % helpers : t)], p, size);
          live[(random >> 8) % live.size()] = live.back();
          live.pop_back();
        }
        if (i % 50 == 0) pool.trim(1 << 20);
      }
      for (auto const& [p, size] : live) pool.deallocate(streams[static_cast<std::size_t>(t)], p, size);
    });
  }
  graph_memory memory{pool};
  for (int round = 0; round < 60; ++round) {
    auto const& s = streams.back();
    capture c(d.machine, memory, s);  // fails if the capture was invalidated
    std::vector<void*> mine;
    for (int i = 0; i < 10; ++i) mine.push_back(pool.allocate(s, 40'000));
    for (void* const p : mine) pool.deallocate(s, p, 40'000);
  }
  over = true;
  for (auto& t : threads) t.join();
  CHECK(memory_allocated(pool) == 0);
  for (auto const& text : d.machine.findings()) FAIL_CHECK(text);
}

TEST_CASE("a block of a graph that another stream freed waits for that stream's work", "[graph_memory]") {
  device d;
  auto pool = d.pages() | pooled{};
  device::stream_type a{d.driver}, b{d.driver};
  graph_memory memory{pool};
  constexpr std::size_t bytes = 4 << 20;
  void* p = nullptr;
  {
    capture c(d.machine, memory, a);
    p = pool.allocate(a, bytes);
  }
  REQUIRE(d.machine.launch(b, 50'000'000, {sim_writes(p, bytes)}).ok());
  pool.deallocate(b, p, bytes);  // its domain takes the place of the capture's
  {
    capture c(d.machine, memory, a);
    void* const q = pool.allocate(a, bytes);
    CHECK(q != p);
    pool.deallocate(a, q, bytes);
  }
  d.clean();
}

TEST_CASE(
    "memory of an owner that ends is ordered after work on small blocks freed while an event is recorded",
    "[graph_memory][pages][threads]") {
  bool const is_of_stream = GENERATE(false, true);  // the event; otherwise that of the end
  device const d({.capacity = 8_MiB, .taken = 0});
  std::function<void()> after_record;
  tarn_test::calling_driver const driver(d.driver, driver_call::record_event, after_record);
  auto pool = basic_pages(driver) | pooled{};
  basic_stream const a{driver}, b{driver};
  std::optional<graph_memory<decltype(pool)>> memory(pool);
  void* const first = memory->allocate(a, 1000);
  void* const second = memory->allocate(a, 1000);
  (void)memory->allocate(a, 1000);  // keeps their run
  pool.deallocate(a, first, 1000);
  std::function<void()> const free_second = [&] {
    std::thread([&] { use_and_free(d.machine, pool, a, second, 1000); }).join();
  };
  after_record = free_second;
  if (is_of_stream) after_record = [&] { after_record = free_second; };
  memory.reset();
  for (std::size_t const bytes : {std::size_t{2_MiB}, std::size_t{1000}}) use_all(d.machine, pool, b, bytes);
  CHECK(!after_record);
  d.clean();
}

TEST_CASE("a pool that ends waits for graphs that use blocks it kept", "[graph_memory]") {
  device d;
  device::stream_type a{d.driver}, b{d.driver};
  {
    auto pool = d.pages() | pooled{};
    void* const p = pool.allocate(a, 1 << 20);
    sim_graph graph;
    {
      graph_memory memory{pool};
      capture c(d.machine, memory, a);
      REQUIRE(d.machine.launch(a, 500'000'000, {sim_writes(p, 1 << 20)}).ok());
      pool.deallocate(a, p, 1 << 20);
      c.end();
      graph = c.graph;
      REQUIRE(d.machine.launch(b, graph).ok());
    }
  }
  CHECK(d.machine.pending() == 0);
  d.clean();
}

TEST_CASE("a pool that ends during another thread's capture waits for it before it unmaps",
          "[graph_memory][threads]") {
  device d;
  auto captured = d.pages() | pooled{};
  device::stream_type a{d.driver}, b{d.driver}, e{d.driver};
  graph_memory memory{captured};
  using capture_type = capture<decltype(captured)>;
  auto const with = GENERATE(as<std::string>{}, "freed memory", "memory that the capture frees",
                             "a recorded use", "a replay");
  auto ending = std::make_unique<decltype(d.pages() | pooled{})>(d.pages() | pooled{});
  constexpr std::size_t bytes = 4 << 20;
  void* const p = ending->allocate(b, bytes);
  std::optional<graph_memory<decltype(captured)>> of_ending;
  sim_graph graph;  // until its replay has ended
  if (with == "a replay") {
    of_ending.emplace(*ending);
    {
      capture c(d.machine, *of_ending, b);
      REQUIRE(d.machine.launch(b, 5'000'000, {sim_writes(p, bytes)}).ok());
      ending->deallocate(b, p, bytes);
      c.end();
      graph = c.graph;
    }
    REQUIRE(d.machine.launch(b, graph).ok());
  } else {
    REQUIRE(d.machine.launch(b, 5'000'000, {sim_writes(p, bytes)}).ok());
  }
  auto open = std::make_unique<capture_type>(d.machine, memory, a);
  of_ending.reset();
  if (with == "a recorded use") {
    ending->record_stream(p, bytes, b);
    ending->deallocate(e, p, bytes);
  } else if (with == "memory that the capture frees") {
    ending->deallocate(a, p, bytes);
  } else if (with == "freed memory") {
    ending->deallocate(b, p, bytes);
  }
  std::atomic<bool> ended{false};
  bool ended_in_capture = false;
  bool was_accessible = false;
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    ended_in_capture = ended;
    was_accessible = d.machine.is_accessible(p, bytes);
    open.reset();
  });
  ending.reset();
  ended = true;
  other.join();
  CHECK_FALSE(ended_in_capture);
  CHECK(was_accessible);
  CHECK(d.machine.pending() == 0);
  CHECK_FALSE(d.machine.is_accessible(p, bytes));
  d.clean();
}

TEST_CASE("a pool that ends inside the scope of its own thread leaves its memory mapped", "[graph_memory]") {
  device d;
  auto captured = d.pages() | pooled{};
  device::stream_type a{d.driver}, b{d.driver};
  graph_memory memory{captured};
  constexpr std::size_t bytes = 4 << 20;
  void* p = nullptr;
  {
    capture const open(d.machine, memory, a);
    auto ending = d.pages() | pooled{};
    p = ending.allocate(b, bytes);
    REQUIRE(d.machine.launch(b, 5'000'000, {sim_writes(p, bytes)}).ok());
    ending.deallocate(b, p, bytes);
  }
  CHECK(d.machine.is_accessible(p, bytes));
  d.clean();
}

TEST_CASE("recorded uses in captures defer a block for one capture, not forever", "[graph_memory]") {
  device d;
  auto pool = d.pages() | pooled{};
  device::stream_type a{d.driver}, b{d.driver};
  graph_memory memory{pool};
  constexpr std::size_t bytes = 4 << 20;
  for (int round = 0; round < 20; ++round) {
    capture c(d.machine, memory, a);
    void* const p = pool.allocate(a, bytes);
    pool.record_stream(p, bytes, b);
    pool.deallocate(a, p, bytes);
    c.end();
  }
  CHECK(memory.state().reserved <= 3 * bytes);
  void* const p = pool.allocate(b, bytes);
  {
    capture c(d.machine, memory, a);
    pool.record_stream(p, bytes, a);  // the graph uses a block of the pool
    pool.deallocate(b, p, bytes);
  }
  for (int i = 0; i < 8; ++i) CHECK(pool.allocate(b, bytes) != p);
  CHECK(memory.state().kept == bytes);
}

TEST_CASE("a capture keeps freed large blocks by size while the memory suffices", "[graph_memory]") {
  device d;
  auto pool = d.pages() | pooled{} | tracked{};
  device::stream_type a{d.driver};
  graph_memory memory{pool};
  auto const take_all = [&] {
    capture const c(d.machine, memory, a);
    pool.deallocate(a, pool.allocate(a, 24 << 20), 24 << 20);
  };
  take_all();
  std::size_t held = 0;
  for (int round = 0; round < 3; ++round) {
    capture c(d.machine, memory, a);
    void* const small = pool.allocate(a, 3 << 20);
    pool.deallocate(a, small, 3 << 20);
    void* const large = pool.allocate(a, 5 << 20);
    CHECK(large != small);
    CHECK(memory.state().allocated == 5 << 20);
    CHECK(memory_allocated(pool) == 5 << 20);
    CHECK(pool.allocate(a, 3 << 20) == small);
    CHECK(pool->upstream()->state().live == 8 << 20);
    pool.deallocate(a, large, 5 << 20);
    pool.deallocate(a, small, 3 << 20);
    CHECK(pool.allocate(a, 5 << 20) == large);
    pool.deallocate(a, large, 5 << 20);
    CHECK(memory.state().allocated == 0);
    // Together they are one range again before the memory grows.
    void* const all = pool.allocate(a, 24 << 20);
    pool.deallocate(a, all, 24 << 20);
    if (round == 0) held = memory.state().reserved;
    CHECK(memory.state().reserved == held);
    c.end();
  }
  take_all();  // all of it was given back
  CHECK(memory.state().reserved == held);
  d.clean();
}

TEST_CASE("large blocks that a capture keeps do not make its memory grow", "[graph_memory][pages]") {
  device d;
  auto pool = d.pages() | pooled{};
  device::stream_type a{d.driver};
  graph_memory memory{pool};
  capture c(d.machine, memory, a);
  for (std::size_t i = 0; i < 40; ++i) {
    std::size_t const bytes = (std::size_t{2} << 20) + i * (64 << 10);
    pool.deallocate(a, pool.allocate(a, bytes), bytes);
  }
  CHECK(memory.state().reserved <= 8 << 20);  // the largest takes 4.5 MiB
}

TEST_CASE("a block with a recorded use is not reused inside the capture that frees it", "[graph_memory]") {
  device d;
  auto pool = d.pages() | pooled{};
  device::stream_type a{d.driver}, b{d.driver};
  std::size_t const bytes = GENERATE(as<std::size_t>{}, 4096, 4 << 20);
  graph_memory memory{pool};
  {
    capture c(d.machine, memory, a);
    void* const p = pool.allocate(a, bytes);
    pool.deallocate(a, p, bytes);
    REQUIRE(pool.allocate(a, bytes) == p);  // warm
    pool.record_stream(p, bytes, b);
    pool.deallocate(a, p, bytes);
    void* const q = pool.allocate(a, bytes);
    CHECK(q != p);
    pool.deallocate(a, q, bytes);
  }
  d.clean();
}

TEST_CASE("handlers of retry_on_oom ask pool and graph memory at once", "[graph_memory][threads]") {
  sim_options o;
  o.capacity = 64 << 20;
  o.taken = 0;
  device d(o);
  std::atomic<int> in_handler{0};
  std::function<void()> ask;
  auto pool = basic_malloc<sim_marking_driver>(d.driver) | retry_on_oom{[&](out_of_memory const&, unsigned) {
                ++in_handler;
                for (int i = 0; i < 1000 && in_handler < 2; ++i) std::this_thread::yield();
                ask();
                return false;
              }} |
              pooled{};
  ask = [&] { (void)nearest(pool, [](auto& l) -> decltype(l.state()) { return l.state(); }); };
  device::stream_type a{d.driver}, b{d.driver};
  graph_memory memory{pool};
  std::thread other([&] {
    try {
      (void)pool.allocate(b, 200 << 20);
    } catch (out_of_memory const&) {
    }
  });
  {
    capture c(d.machine, memory, a);
    CHECK_THROWS_AS(pool.allocate(a, 200 << 20), out_of_memory);
  }
  other.join();
}

TEST_CASE("trim counts what graph memories hold", "[graph_memory]") {
  device d;
  auto pool = d.pages() | pooled{};
  device::stream_type a{d.driver}, b{d.driver};
  graph_memory memory{pool};
  {
    capture c(d.machine, memory, a);
    void* const p = pool.allocate(a, 64 << 20);
    pool.deallocate(a, p, 64 << 20);
  }
  void* const p = pool.allocate(b, 32 << 20);
  pool.deallocate(b, p, 32 << 20);
  pool.trim(70 << 20);
  CHECK(memory_reserved(pool) <= 70 << 20);
}

TEST_CASE("a memory tool lets replays access what a capture freed", "[graph_memory]") {
  sim_options o;
  o.tool = sim_tool::attached;
  device d(o);
  auto pool = d.pages() | pooled{};
  device::stream_type a{d.driver};
  {
    graph_memory memory{pool};
    sim_graph graph;
    {
      capture c(d.machine, memory, a);
      for (std::size_t const bytes : {std::size_t{4096}, std::size_t{3} << 20}) {
        void* const p = pool.allocate(a, bytes);
        REQUIRE(d.machine.launch(a, 1000, {sim_writes(p, bytes)}).ok());
        pool.deallocate(a, p, bytes);
      }
      c.end();
      graph = c.graph;
    }
    REQUIRE(d.machine.launch(a, graph).ok());
    a.synchronize();
  }
  for (auto const& text : d.machine.tool_findings()) FAIL_CHECK(text);
}

TEST_CASE("a thread that is warm on a stream gets the owner's memory once a scope is open for it",
          "[graph_memory][threads]") {
  device d;
  auto pool = d.pages() | pooled{};
  device::stream_type a{d.driver};
  graph_memory memory{pool};
  std::atomic<int> step{0};
  void* warm = nullptr;
  void* captured = nullptr;
  std::thread other([&] {
    warm = pool.allocate(a, 4096);
    pool.deallocate(a, warm, 4096);
    step = 1;
    while (step != 2) std::this_thread::yield();
    captured = pool.allocate(a, 4096);
    pool.deallocate(a, captured, 4096);
    step = 3;
  });
  while (step != 1) std::this_thread::yield();
  {
    capture c(d.machine, memory, a);
    step = 2;
    while (step != 3) std::this_thread::yield();
    CHECK(pool.owns(captured));
    CHECK(captured != warm);
  }
  other.join();
}

TEST_CASE("a thread that used a graph_memory may end while its owner ends", "[graph_memory][threads]") {
  device d;
  auto pool = d.pages() | pooled{} | tracked{};
  for (int i = 0; i < 1000; ++i) {
    device::stream_type a{d.driver};
    std::optional<graph_memory<decltype(pool)>> memory(pool);
    std::atomic<bool> has_used_it{false};
    std::thread user([&] {
      {
        capture c(d.machine, *memory, a);
        pool.deallocate(a, pool.allocate(a, 1000), 1000);
      }
      has_used_it = true;
    });
    while (!has_used_it) std::this_thread::yield();
    memory.reset();
    user.join();
  }
  d.clean();
}

TEST_CASE("a block that an ended owner keeps is ordered after work that came later", "[graph_memory]") {
  device d;
  auto pool = d.pages() | pooled{} | tarn_test::owners_reported{d.machine} | tracked{};
  device::stream_type a{d.driver};
  device::stream_type b{d.driver};
  device::stream_type g{d.driver};
  constexpr std::size_t bytes = 200_MiB;
  void* const used = pool.allocate(a, bytes);
  {
    graph_memory memory{pool};
    capture c(d.machine, memory, g);
    void* const kept = pool.allocate(stream_ref{a}, 4_MiB);
    pool.record_stream(used, bytes, g);
    pool.deallocate(g, kept, 4_MiB);
  }
  pool.empty_cache();  // the owner has ended, and its work is complete
  REQUIRE(d.machine.launch(a, 50'000'000, {sim_writes(used, bytes)}).ok());
  pool.deallocate(a, used, bytes);
  SECTION("for another stream") {
    void* const p = pool.allocate(b, bytes);
    REQUIRE(d.machine.launch(b, 1000, {sim_writes(p, bytes)}).ok());
    pool.deallocate(b, p, bytes);
  }
  SECTION("for the driver") {
    pool.empty_cache();
  }
  REQUIRE(d.driver.synchronize_device().ok());
  CHECK(d.machine.findings().empty());
}

TEST_CASE("a block that an ended owner keeps is ordered after work that came while its graph ran",
          "[graph_memory]") {
  device d;
  auto pool = d.pages() | pooled{} | tarn_test::owners_reported{d.machine} | tracked{};
  device::stream_type a{d.driver}, b{d.driver}, g{d.driver};
  constexpr std::size_t bytes = 200_MiB;
  void* const used = pool.allocate(a, bytes);
  sim_graph graph;
  {
    graph_memory memory{pool};
    capture c(d.machine, memory, g);
    REQUIRE(d.machine.launch(g, 50'000'000, {sim_reads(used, bytes)}).ok());
    pool.record_stream(used, bytes, g);
    c.end();
    graph = c.graph;
    REQUIRE(d.machine.launch(g, graph).ok());
  }
  REQUIRE(d.machine.launch(a, 500'000'000, {sim_reads(used, bytes)}).ok());
  pool.deallocate(a, used, bytes);
  REQUIRE(d.driver.synchronize_stream(g).ok());
  void* const p = pool.allocate(b, bytes);
  REQUIRE(d.machine.launch(b, 1000, {sim_writes(p, bytes)}).ok());
  d.clean();
}

TEST_CASE("reading statistics does not keep the memory of an ended owner", "[graph_memory][threads]") {
  sim_options options;
  options.capacity = 1_GiB;
  options.taken = 0;
  options.backing = sim_backing::address_only;
  sim_machine const machine{options};
  sim_marking_driver const driver{machine.driver()};
  device::stream_type a{driver};
  device::stream_type g{driver};
  auto pool = basic_pages<sim_marking_driver>(driver) | pooled{} | tracked{};
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    while (!stop) (void)memory_reserved(pool);
  });
  int refused = 0;
  for (int i = 0; i < 300; ++i) {
    try {
      {
        graph_memory memory{pool};
        capture c(machine, memory, g);
        pool.deallocate(g, pool.allocate(g, 700_MiB), 700_MiB);
      }
      for (int w = 0; w < i * 37 % 200; ++w) std::atomic_signal_fence(std::memory_order_seq_cst);
      pool.deallocate(a, pool.allocate(a, 600_MiB), 600_MiB);
    } catch (out_of_memory const&) {
      ++refused;
    }
    pool.empty_cache();
  }
  stop = true;
  reader.join();
  CHECK(refused == 0);
}

TEST_CASE("graph_memory::allocate outside a capture gives blocks that only the owner reuses",
          "[graph_memory]") {
  device d;
  auto pool = d.pages() | pooled{} | tracked{};
  device::stream_type a{d.driver}, b{d.driver};
  std::size_t const bytes = GENERATE(as<std::size_t>{}, 256, 5000, 1 << 20, 3 << 20, 40 << 20);
  void* p = nullptr;
  {
    graph_memory memory{pool};
    p = memory.allocate(a, bytes);
    std::size_t const counted = memory_allocated(pool);
    CHECK(counted >= bytes);
    CHECK(memory.state().allocated == counted);
    pool.deallocate(a, p, bytes);
    CHECK(memory_allocated(pool) == 0);
    CHECK(memory.state().allocated == 0);
    void* const others = pool.allocate(a, bytes);
    CHECK(others != p);
    pool.deallocate(a, others, bytes);
    CHECK(memory.state().reserved >= bytes);
    CHECK(memory.allocate(a, bytes) == p);
    pool.empty_cache();
    CHECK(memory.state().reserved >= bytes);
    pool.record_stream(p, bytes, b);
    snapshot const s = take_snapshot(pool);
    std::uint64_t number = 0;
    for (auto const& segment : s.segments) {
      for (auto const& block : segment.blocks) {
        if (block.address == reinterpret_cast<std::uintptr_t>(p)) number = segment.graph_memory;
      }
    }
    CHECK(number == memory.state().number);
    CHECK(memory.allocate(a, 0) == nullptr);
    CHECK_THROWS_AS(memory.allocate(a, bytes, 3), bad_alignment);
    CHECK_THROWS_AS(memory.allocate(a, std::size_t{1} << 60), out_of_memory);
  }
  CHECK(pool.owns(p));  // it is live
  pool.deallocate(a, p, bytes);
  pool.empty_cache();
  CHECK(memory_reserved(pool) == 0);
  CHECK(memory_allocated(pool) == 0);
  d.clean();
}

TEST_CASE("graph_memory::allocate outside a capture never returns what a capture received",
          "[graph_memory]") {
  device d;
  auto pool = d.pages() | pooled{};
  device::stream_type a{d.driver}, b{d.driver}, c{d.driver};
  std::size_t const bytes = GENERATE(as<std::size_t>{}, 256, 100000, 4 << 20);
  graph_memory memory{pool}, other{pool};
  void* inside = nullptr;    // freed in the capture
  void* outlives = nullptr;  // freed after it
  {
    capture of(d.machine, memory, a);
    inside = pool.allocate(a, bytes);
    outlives = pool.allocate(a, bytes);
    pool.deallocate(a, inside, bytes);
  }
  pool.deallocate(b, outlives, bytes);
  auto const is_apart = [&](void* p) { return p != inside && p != outlives; };
  std::vector<void*> all;
  for (int i = 0; i < 4; ++i) {
    for (auto const* s : {&a, &b}) {
      all.push_back(memory.allocate(*s, bytes));
      CHECK(is_apart(all.back()));
    }
  }
  {
    capture of(d.machine, other, c);
    void* const p = memory.allocate(c, bytes);
    CHECK(is_apart(p));
    pool.deallocate(c, p, bytes);
  }
  for (void* p : all) pool.deallocate(b, p, bytes);
  CHECK(memory.state().allocated == 0);
  {  // a block from outside that the owner's own capture frees is reused by nothing
    void* const p = memory.allocate(a, bytes);
    a.synchronize();
    {
      capture of(d.machine, memory, a);
      pool.deallocate(a, p, bytes);
      CHECK(memory.state().kept >= bytes);
      for (int i = 0; i < 4; ++i) CHECK(pool.allocate(a, bytes) != p);
    }
    for (int i = 0; i < 4; ++i) CHECK(memory.allocate(b, bytes) != p);
  }
  d.clean();
}

TEST_CASE("capture_scope::join refuses a stream of another owner's capture", "[graph_memory]") {
  device d;
  auto pool = d.pages() | pooled{};
  device::stream_type a{d.driver}, b{d.driver};
  graph_memory first{pool}, second{pool};
  capture_scope scope_a{first, a}, scope_b{second, b};
  CHECK_THROWS_AS(scope_b.join(a), cuda_error);
  scope_b.join(b);  // it is its own
  d.clean();
}

TEST_CASE("a thread whose scope another thread ends, with its owner, uses other streams meanwhile",
          "[graph_memory][threads]") {
  device d;
  auto pool = d.pages() | pooled{};
  device::stream_type captured{d.driver}, other{d.driver};
  for (int round = 0; round < 200; ++round) {
    auto owner = std::make_unique<graph_memory<decltype(pool)>>(pool);
    auto scope = std::make_unique<capture_scope>(*owner, captured);
    pool.deallocate(captured, pool.allocate(captured, 1_KiB), 1_KiB);
    std::atomic<bool> over{false};
    std::thread closes([&] {
      scope.reset();
      owner.reset();
      over = true;
    });
    while (!over) pool.deallocate(other, pool.allocate(other, 4_MiB), 4_MiB);
    closes.join();
  }
  d.clean();
}

TEST_CASE("graph_memory::allocate inside a capture of the owner is reused in it and in the next one",
          "[graph_memory]") {
  device d;
  auto pool = d.pages() | pooled{} | tracked{};
  device::stream_type a{d.driver}, b{d.driver};
  std::size_t const bytes = GENERATE(as<std::size_t>{}, 256, 100000, 8 << 20);
  graph_memory memory{pool};
  pool.deallocate(b, memory.allocate(b, bytes), bytes);
  std::size_t const warm = memory.state().reserved;
  b.synchronize();
  void* p = nullptr;
  {
    capture c(d.machine, memory, a);
    p = memory.allocate(a, bytes);
    pool.deallocate(a, p, bytes);
    CHECK(pool.allocate(a, bytes) == p);
    pool.deallocate(a, p, bytes);
    CHECK(memory.allocate(a, bytes) == p);
    pool.deallocate(a, p, bytes);
  }
  CHECK(memory.state().reserved == warm);  // the work of the warm-up is complete
  {
    capture c(d.machine, memory, b);
    CHECK(pool.allocate(b, bytes) == p);
    pool.deallocate(b, p, bytes);
  }
  d.clean();
}

TEST_CASE("graph_memory::allocate on a stream of another owner's capture: that graph keeps what it frees",
          "[graph_memory]") {
  device d;
  auto pool = d.pages() | pooled{} | tracked{};
  device::stream_type a{d.driver}, b{d.driver};
  std::size_t const bytes = GENERATE(as<std::size_t>{}, 256, 100000, 8 << 20);
  graph_memory memory{pool};
  auto const waiting = [&] {
    tracked_statistics const s = pool->statistics();
    return static_cast<std::size_t>(s.active_bytes[0].current - s.allocated_bytes[0].current);
  };
  {
    graph_memory of_graph{pool};
    void* p = nullptr;
    {
      capture c(d.machine, of_graph, a);
      p = memory.allocate(a, bytes);
      CHECK(memory.state().allocated >= bytes);
      CHECK(of_graph.state().allocated == 0);
      pool.deallocate(a, p, bytes);
      CHECK(of_graph.state().kept >= bytes);
      CHECK(memory.allocate(a, bytes) != p);
    }
    for (int i = 0; i < 4; ++i) CHECK(memory.allocate(b, bytes) != p);
    CHECK(waiting() >= bytes);
  }
  pool.empty_cache();
  CHECK(waiting() == 0);
  d.clean();
}

TEST_CASE("captures open, run and end while another thread grows the pool", "[graph_memory][threads]") {
  device d;
  std::function<void()> meanwhile = [] {};
  auto pool = basic_malloc<sim_marking_driver>(d.driver) | retry_on_oom{[&](out_of_memory const&, unsigned) {
                meanwhile();  // inside a growth
                return false;
              }} |
              pooled{};
  device::stream_type a{d.driver}, b{d.driver};
  graph_memory memory{pool};
  void* first = nullptr;
  void* second = nullptr;
  {
    capture c(d.machine, memory, a);  // finds out that memory is ample
    first = pool.allocate(a, 5 << 20);
    second = pool.allocate(a, 1000);
    pool.deallocate(a, first, 5 << 20);
    pool.deallocate(a, second, 1000);
  }
  std::size_t const reserved = memory.state().reserved;
  unsigned captures = 0;
  meanwhile = [&] {
    std::thread([&] {
      device::stream_type own{d.driver};
      for (; captures < 40; ++captures) {
        capture c(d.machine, memory, captures % 2 == 0 ? own : a);
        void* const p = pool.allocate(c.stream, 5 << 20);
        void* const q = pool.allocate(c.stream, 1000);
        CHECK((p == first && q == second));  // what the capture before has freed
        pool.deallocate(c.stream, p, 5 << 20);
        pool.deallocate(c.stream, q, 1000);
      }
    }).join();
  };
  CHECK_THROWS_AS(pool.allocate(b, std::size_t{1} << 40), out_of_memory);
  CHECK(captures == 40);
  CHECK(memory.state().reserved == reserved);
  // The domains that stayed are forgotten: host memory does not grow with captures.
  auto const host_bytes = [&] { return nearest(pool, pool_call::state{}).host_bytes; };
  for (int i = 0; i < 100; ++i) capture(d.machine, memory, a);
  std::size_t const before = host_bytes();
  for (int i = 0; i < 300; ++i) capture(d.machine, memory, a);
  CHECK(host_bytes() == before);
  d.clean();
}

TEST_CASE("a thread that closes another thread's scope still has its own", "[graph_memory][threads]") {
  device d;
  auto pool = d.pages() | pooled{};
  device::stream_type a{d.driver}, b{d.driver};
  graph_memory memory{pool};
  auto of_a = std::make_unique<capture_scope>(memory, a);
  std::thread([&] {
    capture_scope const of_b(memory, b);
    of_a.reset();
    CHECK(detail::capture_gate::may_be_mine());  // so that no call of the thread waits for it
  }).join();
  CHECK_FALSE(detail::capture_gate::has_captures());
}

TEST_CASE("a scope watches its thread, of which it is the first call", "[graph_memory][threads]") {
  device d;
  auto pool = d.pages() | pooled{.captures = capture_watch::in_scopes};
  device::stream_type a{d.driver}, b{d.driver};
  graph_memory memory{pool};
  { capture const c(d.machine, memory, a); }  // finds out that memory is ample
  void* of_graph = nullptr;
  std::atomic<bool> begins{false};
  auto const work = [&] {
    begins = true;
    capture c(d.machine, memory, a);
    event_handle joins = nullptr;
    event_handle joined = nullptr;
    REQUIRE((d.driver.create_event(joins).ok() && d.driver.create_event(joined).ok()));
    pool.deallocate(b, pool.allocate(b, 3000), 3000);  // warm
    REQUIRE((d.driver.record_event(joins, a).ok() && d.driver.wait_event(b, joins).ok()));
    of_graph = pool.allocate(b, 3000);
    CHECK(memory.state().allocated != 0);
    pool.deallocate(b, of_graph, 3000);
    REQUIRE((d.driver.record_event(joined, b).ok() && d.driver.wait_event(a, joined).ok()));
    c.end();
    CHECK((d.driver.destroy_event(joins).ok() && d.driver.destroy_event(joined).ok()));
  };
  bool const stopped = GENERATE(false, true);  // the pool works, or all its threads are stopped
  // Until the thread is joined, this one uses no macro of Catch2: its records are for one thread at a time.
  std::thread thread;
  if (!stopped) {
    thread = std::thread(work);
  } else {
    pool->inspect([&](auto& growing, auto&, auto& front, auto&, auto&) {
      detail::stopped_threads const all(growing, front);
      thread = std::thread(work);
      while (!begins) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    });
  }
  thread.join();
  void* const p = pool.allocate(b, 3000);
  CHECK(p != of_graph);
  pool.deallocate(b, p, 3000);
  CHECK(d.machine.findings().empty());
}

TEST_CASE("captures that begin during growth reuse what was freed outside captures",
          "[graph_memory][threads]") {
  device d;
  std::atomic<bool> is_growing{false};
  std::atomic<int> refused{0};
  auto pool = basic_malloc<sim_marking_driver>(d.driver) | retry_on_oom{[&](out_of_memory const&, unsigned) {
                is_growing = true;
                std::this_thread::sleep_for(std::chrono::milliseconds(5));
                return false;
              }} |
              pooled{};
  device::stream_type a{d.driver}, b{d.driver}, c{d.driver};
  graph_memory memory{pool};
  for (int i = 0; i < 20; ++i) {
    std::thread grows([&] {
      try {
        (void)pool.allocate(b, std::size_t{1} << 40);
      } catch (out_of_memory const&) {
        ++refused;
      }
    });
    while (!is_growing) std::this_thread::yield();
    void* p = nullptr;
    {
      capture made(d.machine, memory, a);
      p = pool.allocate(a, 20 << 20);
    }
    pool.deallocate(c, p, 20 << 20);
    grows.join();
    is_growing = false;
  }
  CHECK(refused == 20);
  CHECK(memory.state().reserved <= 20 << 20);
  d.clean();
}

TEST_CASE("an owner's blocks stay its own after many captures of others", "[graph_memory]") {
  device d;
  auto pool = d.pages() | pooled{};
  device::stream_type a{d.driver}, b{d.driver};
  graph_memory first{pool};
  graph_memory second{pool};
  std::vector<void*> blocks;  // a run that is wholly handed out: it keeps the number of the capture's place
  {
    capture c(d.machine, first, a);
    for (int i = 0; i < 256; ++i) blocks.push_back(pool.allocate(a, 256));
  }
  for (int i = 0; i < 33'000; ++i) capture_scope const scope(second, b);
  for (void* const p : blocks) pool.deallocate(a, p, 256);
  capture c(d.machine, second, b);
  for (int i = 0; i < 256; ++i) {
    void* const p = pool.allocate(b, 256);
    REQUIRE(std::find(blocks.begin(), blocks.end(), p) == blocks.end());
    pool.deallocate(b, p, 256);
  }
}
