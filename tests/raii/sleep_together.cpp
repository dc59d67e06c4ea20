// SPDX-License-Identifier: Apache-2.0
// sleep(), wake() and compact() of a pool with graph memories, with handlers of its source, in forked
// children and during captures.

#include <atomic>
#include <cstring>
#include <functional>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "driver/faulty.hpp"
#include "raii/failing_calls.hpp"
#include "raii/kept_blocks.hpp"
#include "tarn/debug/checked.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/tracked.hpp"
#include "tarn/raii/compact.hpp"
#include "tarn/raii/graph_memory.hpp"
#include "tarn/raii/growing_buffer.hpp"
#include "tarn/raii/sleep.hpp"
#include "tarn/raii/stream.hpp"
#include "tarn/report/stats.hpp"
#include "tarn/report/take_snapshot.hpp"
#include "tarn/sharing/page_pin.hpp"
#include "tarn/sim.hpp"

#if defined(__unix__) || defined(__APPLE__)
#include "child_process.hpp"
#endif

using namespace tarn;
using tarn_test::failing_call;
using tarn_test::failing_calls;
using tarn_test::kept_blocks;
using tarn_test::next_failing;

namespace {

constexpr contents all_kinds[] = {contents::in_pinned_memory, contents::discarded};

sim_options small_machine(std::size_t capacity = 512_MiB) {
  sim_options o;
  o.capacity = capacity;
  o.taken = 0;
  return o;
}

/// A pool with a block of its own and a graph_memory with another one, each filled with its own byte.
template <class Driver>
struct pool_with_graph {
  static constexpr std::size_t bytes = 3_MiB;
  using memory_type = decltype(std::declval<basic_pages<Driver>>() | pooled{} | tracked{});

  pool_with_graph(sim_machine const& machine, Driver driver)
      : stream(machine.driver(0)),
        memory(basic_pages<Driver>(driver) | pooled{} | tracked{}),
        graphs(memory) {
    own = static_cast<unsigned char*>(memory.allocate(stream, bytes));
    {
      capture_scope const scope(graphs, stream);
      REQUIRE(machine.begin_capture(stream).ok());
      captured = static_cast<unsigned char*>(memory.allocate(stream, bytes));
      sim_graph graph;
      REQUIRE(machine.end_capture(stream, graph).ok());
    }
    write();
  }
  ~pool_with_graph() {
    memory.deallocate(stream, own, bytes);
    memory.deallocate(stream, captured, bytes);
  }
  /// The graph_memory is awake: a capture can allocate from it.
  void allocate_captured(sim_machine const& machine) {
    capture_scope const scope(graphs, stream);
    REQUIRE(machine.begin_capture(stream).ok());
    memory.deallocate(stream, memory.allocate(stream, 1000), 1000);
    sim_graph graph;
    REQUIRE(machine.end_capture(stream, graph).ok());
  }
  void write() {
    std::memset(own, 1, bytes);
    std::memset(captured, 2, bytes);
  }
  [[nodiscard]] bool intact() const {
    return own[0] == 1 && own[bytes - 1] == 1 && captured[0] == 2 && captured[bytes - 1] == 2;
  }

  sim_stream stream;
  memory_type memory;
  graph_memory<memory_type> graphs;
  unsigned char* own = nullptr;
  unsigned char* captured = nullptr;
};

/// A source of a user, which calls a handler before it refuses a handle.
struct pages_with_handler : basic_pages<faulty<sim_driver>> {
  pages_with_handler(faulty<sim_driver> driver, std::function<bool()>& h)
      : basic_pages<faulty<sim_driver>>(std::move(driver)), handler(&h) {}
  [[nodiscard]] page_handle create(std::size_t bytes) {
    for (;;) {
      try {
        return basic_pages<faulty<sim_driver>>::create(bytes);
      } catch (out_of_memory const&) {
        if (!(*handler)()) throw;
      }
    }
  }
  std::function<bool()>* handler;
};

/// Checks that a pool and its graph memories are all awake with their contents, or all asleep.
template <class Pool>
void check_whole(sim_machine const& machine, Pool& p) {
  if (is_asleep(p.memory)) {
    CHECK(machine.usage().page_bytes == 0);
    CHECK(memory_reserved(p.memory) == 0);
  } else {
    CHECK(p.graphs.state().reserved > 0);
    CHECK(machine.usage().page_bytes == memory_reserved(p.memory));
  }
}

}  // namespace

TEST_CASE("compact reports neither live nor reserved bytes of graph memories",
          "[raii][compact][graph_memory][pages]") {
  sim_machine const machine(small_machine());
  auto memory = sim_pages{machine.driver(0)} | pooled{.largest_handle = 64_MiB};
  sim_stream const stream(machine.driver(0));
  graph_memory graphs(memory);
  void* const own = memory.allocate(stream, 4_MiB);
  void* const plain = graphs.allocate(stream, 4_MiB);
  void* captured = nullptr;
  {
    capture_scope const scope(graphs, stream);
    REQUIRE(machine.begin_capture(stream).ok());
    memory.deallocate(stream, memory.allocate(stream, 64_MiB), 64_MiB);
    captured = memory.allocate(stream, 16_MiB);
    sim_graph graph;
    REQUIRE(machine.end_capture(stream, graph).ok());
  }
  std::size_t const reserved = memory->state().reserved;
  compaction const c = compact(memory);
  CHECK(c.live == 4_MiB);
  CHECK(c.reserved == 4_MiB);
  CHECK(c.stretches == 1);
  CHECK(c.released == reserved - memory->state().reserved);
  memory.deallocate(stream, own, 4_MiB);
  memory.deallocate(stream, plain, 4_MiB);
  memory.deallocate(stream, captured, 16_MiB);
}

TEST_CASE("a pool and its graph memories sleep and wake together, or not at all, when driver calls fail",
          "[raii][sleep][graph_memory][pages]") {
  int failures = 0;
  for (contents const where : all_kinds) {
    for (failing_call const& f : failing_calls) {
      for (std::uint64_t distance : {0u, 1u, 2u}) {
        for (std::uint64_t nth = 1, more = 1; more != 0; nth += next_failing) {
          sim_machine const machine(small_machine(64_MiB));
          fault_plan const plan;
          {
            pool_with_graph p(machine, faulty<sim_driver>{machine.driver(0), plan});
            std::uint64_t const first = plan.calls(f.call);
            plan.fail(f.call, nth, {.moment = f.moment});
            if (distance != 0) plan.fail(f.call, nth + distance, {.moment = f.moment});
            bool failed = false;
            try {
              (void)sleep(p.memory, where);
            } catch (std::exception const&) {
              failed = true;
              CHECK_FALSE(is_asleep(p.memory));
              CHECK(machine.leaks().blocks == 0);
              CHECK(p.intact());
              plan.disarm();
              p.allocate_captured(machine);
            }
            check_whole(machine, p);
            for (int tries = 0; is_asleep(p.memory) && tries < 2; ++tries) {
              try {
                (void)wake(p.memory);
              } catch (std::exception const&) {
                failed = true;
                CHECK(is_asleep(p.memory));
              }
              check_whole(machine, p);
            }
            more = plan.calls(f.call) - first >= nth ? 1 : 0;
            plan.disarm();
            if (failed) {
              ++failures;
              (void)sleep(p.memory, where);
              check_whole(machine, p);
              (void)wake(p.memory);
            }
            CHECK_FALSE(is_asleep(p.memory));
            check_whole(machine, p);
            CHECK(machine.leaks().blocks == 0);
            if (where == contents::discarded) p.write();
            CHECK(p.intact());
          }
          CHECK(machine.leaks().total() == 0);
        }
      }
    }
  }
  CHECK(failures > 50 / static_cast<int>(next_failing));
}

TEST_CASE("wake reports what a pool and its graph memories lack together",
          "[raii][sleep][graph_memory][pages]") {
  sim_machine const machine(small_machine(64_MiB));
  pool_with_graph p(machine, machine.driver(0));
  std::size_t const needed = memory_reserved(p.memory);
  (void)sleep(p.memory);
  machine.take_memory(device_id{0}, 64_MiB - needed + 2_MiB);
  try {
    (void)wake(p.memory);
    FAIL("woken without memory");
  } catch (out_of_memory const& error) {
    CHECK(error.report().asked == needed);
    CHECK(error.report().lacking == 2_MiB);
  }
  check_whole(machine, p);
  CHECK(sleep(p.memory) == 0);
  machine.take_memory(device_id{0}, 0);
  CHECK(wake(p.memory) == needed);
  CHECK(p.intact());
}

TEST_CASE("a handler of the source may free blocks and trim while the pool is woken or compacted",
          "[raii][sleep][compact][pages]") {
  for (bool const compacts : {false, true}) {
    sim_machine const machine(small_machine(64_MiB));
    fault_plan const plan;
    {
      std::function<bool()> handler = [] { return false; };
      auto memory = pages_with_handler(faulty<sim_driver>{machine.driver(0), plan}, handler) |
                    pooled{.largest_handle = 8_MiB};
      std::vector<void*> blocks;
      for (int i = 0; i < 4; ++i) blocks.push_back(memory.allocate(stream_ref{}, 8_MiB));
      void* const half = memory.allocate(stream_ref{}, 4_MiB);
      std::memset(half, 9, 4_MiB);
      int calls = 0;
      handler = [&] {
        if (++calls > 1) return false;
        for (void* p : blocks) memory.deallocate(stream_ref{}, p, 8_MiB);
        blocks.clear();
        (void)memory.trim(0);
        return true;
      };
      if (compacts) {
        memory.deallocate(stream_ref{}, blocks.back(), 8_MiB);
        blocks.pop_back();
        void* const p = memory.allocate(stream_ref{}, 2_MiB);
        plan.fail(driver_call::create_pages, 1);
        (void)compact(memory);
        memory.deallocate(stream_ref{}, p, 2_MiB);
      } else {
        (void)sleep(memory);
        plan.fail(driver_call::create_pages, 2);  // the handle of a block that the handler frees
        (void)wake(memory);
      }
      CHECK(calls == 1);
      CHECK(static_cast<unsigned char*>(half)[4_MiB - 1] == 9);
      (void)memory.trim(0);
      CHECK(memory->state().reserved == machine.usage().page_bytes);
      memory.deallocate(stream_ref{}, half, 4_MiB);
      for (void* p : blocks) memory.deallocate(stream_ref{}, p, 8_MiB);
      (void)memory.trim(0);
      CHECK(memory->state().reserved == 0);
      CHECK(machine.usage().page_bytes == 0);
    }
    CHECK(machine.leaks().total() == 0);
  }
}

TEST_CASE("an owner whose memory compact moves is ended only afterwards",
          "[raii][compact][graph_memory][pages]") {
  sim_machine const machine(small_machine(128_MiB));
  fault_plan const plan;
  {
    std::function<bool()> handler = [] { return false; };
    auto memory = pages_with_handler(faulty<sim_driver>{machine.driver(0), plan}, handler) |
                  pooled{.largest_handle = 16_MiB};
    using memory_type = decltype(memory);
    basic_stream<faulty<sim_driver>> const s(memory.driver()), captured(memory.driver());
    std::optional<graph_memory<memory_type>> ending(memory);
    graph_memory<memory_type> other(memory);
    void* const whole = ending->allocate(s, 16_MiB);  // one handle
    memory.deallocate(s, whole, 16_MiB);
    void* blocks[4];
    for (void*& p : blocks) p = ending->allocate(s, 4_MiB);
    memory.deallocate(s, blocks[1], 4_MiB);
    memory.deallocate(s, blocks[2], 4_MiB);
    s.synchronize();
    {
      capture_scope const scope(other, captured);
      ending.reset();
    }
    int calls = 0;
    handler = [&] {
      (void)memory.trim(0);
      return ++calls == 1;
    };
    plan.fail(driver_call::create_pages, 1);
    (void)compact(memory);
    CHECK(calls == 1);
    (void)memory.trim(0);
    graph_memory<memory_type> first(memory), second(memory);
    void* of_graph = nullptr;
    {
      capture_scope const scope(second, captured);
      of_graph = memory.allocate(captured, 2_MiB);
      memory.deallocate(captured, blocks[0], 4_MiB);
    }
    CHECK(second.state().kept == 4_MiB);  // no part of an ended owner
    memory.deallocate(s, of_graph, 2_MiB);
    memory.deallocate(s, blocks[3], 4_MiB);
  }
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("a handler of the source may end a growing buffer while the pool is woken or compacted",
          "[raii][sleep][compact][growing_buffer][pages]") {
  for (bool const compacts : {false, true}) {
    sim_machine const machine(small_machine(128_MiB));
    fault_plan const plan;
    {
      std::function<bool()> handler = [] { return false; };
      auto memory = pages_with_handler(faulty<sim_driver>{machine.driver(0), plan}, handler) |
                    pooled{.largest_handle = 16_MiB};
      using buffer_type = growing_buffer<std::byte, decltype(memory)>;
      basic_stream<faulty<sim_driver>> const s(memory.driver());
      std::optional<buffer_type> buffer;
      buffer.emplace(memory, 64_MiB, s, growing_options{16_MiB});
      buffer->reserve(16_MiB);
      buffer->reset();
      void* const p = memory.allocate(s, 4_MiB);  // in the handle that the buffer's addresses show
      std::memset(p, 7, 4_MiB);
      s.synchronize();
      int calls = 0;
      handler = [&] {
        buffer.reset();
        return ++calls == 1;
      };
      if (!compacts) (void)sleep(memory);
      plan.fail(driver_call::create_pages, 1);
      compacts ? (void)compact(memory) : (void)wake(memory);
      CHECK(calls == 1);
      CHECK(static_cast<unsigned char*>(p)[4_MiB - 1] == 7);
      memory.deallocate(s, p, 4_MiB);
      (void)memory.trim(0);
      CHECK(memory->state().reserved == 0);
      CHECK(machine.usage().page_bytes == 0);
      buffer_type another(memory, 64_MiB, s, growing_options{16_MiB});
      another.reserve(16_MiB);
    }
    CHECK(machine.leaks().total() == 0);
  }
}

TEST_CASE("a handler of the source cannot call wake inside wake", "[raii][sleep][pages]") {
  sim_machine const machine(small_machine(64_MiB));
  fault_plan const plan;
  {
    std::function<bool()> handler = [] { return false; };
    auto memory = pages_with_handler(faulty<sim_driver>{machine.driver(0), plan}, handler) | pooled{};
    void* const p = memory.allocate(stream_ref{}, 4_MiB);
    handler = [&] {
      (void)wake(memory);
      return true;
    };
    (void)sleep(memory);
    plan.fail(driver_call::create_pages, 1);
    CHECK_THROWS_AS(wake(memory), misuse);
    CHECK(is_asleep(memory));
    (void)wake(memory);
    memory.deallocate(stream_ref{}, p, 4_MiB);
  }
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("a handler of the source cannot pin the pages that compact replaces", "[raii][compact][pages]") {
  sim_machine const machine(small_machine(64_MiB));
  fault_plan const plan;
  {
    std::function<bool()> handler = [] { return false; };
    auto memory = pages_with_handler(faulty<sim_driver>{machine.driver(0), plan}, handler) |
                  pooled{.largest_handle = 8_MiB};
    memory.deallocate(stream_ref{}, memory.allocate(stream_ref{}, 8_MiB), 8_MiB);
    void* const p = memory.allocate(stream_ref{}, 2_MiB);
    std::string said;
    handler = [&] {
      try {
        page_pin const pinned(memory, p, 2_MiB);
      } catch (misuse const& error) {
        said = error.what();
      }
      return true;
    };
    plan.fail(driver_call::create_pages, 1);
    (void)compact(memory);
    CHECK(said.find("page_pin was called by a handler") != std::string::npos);
    {
      page_pin const pinned(memory, p, 2_MiB);
      memory.deallocate(stream_ref{}, p, 2_MiB);
      (void)memory.trim(0);
      CHECK(memory->state().reserved == 2_MiB);
    }
    (void)memory.trim(0);
    CHECK(memory->state().reserved == 0);
  }
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("while a capture_scope is open, sleep, wake and compact are refused and change nothing",
          "[raii][sleep][graph_memory][pages]") {
  sim_machine const machine(small_machine(64_MiB));
  {
    pool_with_graph p(machine, machine.driver(0));
    auto other = sim_pages{machine.driver(0)} | pooled{};
    void* const q = other.allocate(p.stream, 4_MiB);
    {
      capture_scope const scope(p.graphs, p.stream);
      REQUIRE(machine.begin_capture(p.stream).ok());
      CHECK_THROWS_AS(sleep(p.memory), cuda_error);
      CHECK_THROWS_AS(compact(p.memory), cuda_error);
      CHECK_THROWS_AS(sleep(other), cuda_error);
      CHECK_FALSE(is_asleep(p.memory));
      CHECK_FALSE(is_asleep(other));
      p.memory.deallocate(p.stream, p.memory.allocate(p.stream, 1000), 1000);
      sim_graph graph;
      CHECK(machine.end_capture(p.stream, graph).ok());
    }
    CHECK(p.intact());
    (void)sleep(p.memory);
    {
      capture_scope const scope(p.graphs, p.stream);
      REQUIRE(machine.begin_capture(p.stream).ok());
      CHECK_THROWS_AS(p.memory.allocate(p.stream, 1000), pool_asleep);
      CHECK_THROWS_AS(wake(p.memory), cuda_error);
      CHECK(is_asleep(p.memory));
      sim_graph graph;
      CHECK(machine.end_capture(p.stream, graph).ok());
    }
    (void)wake(p.memory);
    CHECK(p.intact());
    CHECK(machine.captured_calls() == 0);
    other.deallocate(p.stream, q, 4_MiB);
  }
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("graph memories may be made and destroyed while their pool sleeps",
          "[raii][sleep][graph_memory][pages]") {
  sim_machine const machine(small_machine(64_MiB));
  {
    pool_with_graph p(machine, machine.driver(0));
    (void)sleep(p.memory);
    {
      graph_memory made(p.memory);
      CHECK(made.state().reserved == 0);
      p.memory.deallocate(p.stream, p.captured, p.bytes);
      p.captured = nullptr;
      p.graphs = std::move(made);  // the owner whose memory sleeps ends
    }
    CHECK(machine.usage().page_bytes == 0);
    std::size_t const taken = wake(p.memory);
    CHECK(taken == memory_reserved(p.memory));
    CHECK(p.own[p.bytes - 1] == 1);
    capture_scope const scope(p.graphs, p.stream);
    REQUIRE(machine.begin_capture(p.stream).ok());
    p.memory.deallocate(p.stream, p.memory.allocate(p.stream, 1000), 1000);
    sim_graph graph;
    CHECK(machine.end_capture(p.stream, graph).ok());
  }
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("a snapshot of a sleeping pool lists the addresses that it keeps", "[raii][sleep][pages]") {
  sim_machine const machine(small_machine(64_MiB));
  pool_with_graph p(machine, machine.driver(0));
  snapshot const awake = take_snapshot(p.memory);
  (void)sleep(p.memory);
  snapshot const asleep = take_snapshot(p.memory);
  CHECK(memory_reserved(p.memory) == 0);
  CHECK(asleep.pool.reserved == 0);
  CHECK(asleep.pool.live == awake.pool.live);
  REQUIRE(asleep.segments.size() == awake.segments.size());
  for (std::size_t i = 0; i < awake.segments.size(); ++i) {
    CHECK(asleep.segments[i].address == awake.segments[i].address);
    CHECK(asleep.segments[i].bytes == awake.segments[i].bytes);
    CHECK(asleep.segments[i].graph_memory == awake.segments[i].graph_memory);
    CHECK(asleep.segments[i].blocks.size() == awake.segments[i].blocks.size());
  }
  (void)wake(p.memory);
  CHECK(p.intact());
}

#if defined(__unix__) || defined(__APPLE__)

TEST_CASE("sleep and wake do nothing in a forked child", "[raii][sleep][at_fork][pages]") {
  sim_machine const machine(small_machine(64_MiB));
  {
    auto memory = sim_pages{machine.driver(0)} | pooled{} | tracked{};
    void* const p = memory.allocate(stream_ref{}, 3_MiB);
    (void)sleep(memory, contents::discarded);
    CHECK(child_of([&] { return is_asleep(memory) && sleep(memory) == 0 && wake(memory) == 0; }) == 0);
    CHECK(is_asleep(memory));
    (void)wake(memory);
    memory.deallocate(stream_ref{}, p, 3_MiB);
  }
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE(
    "a capture_scope that is open at a fork ends in the child, and a stream that joins is refused there",
    "[raii][graph_memory][at_fork][pages]") {
  sim_machine const machine(small_machine(64_MiB));
  {
    basic_stream<sim_driver> const a(machine.driver(0)), b(machine.driver(0));
    auto memory = sim_pages{machine.driver(0)} | pooled{} | tracked{};
    graph_memory graphs{memory};
    sim_graph graph;
    auto scope = std::make_unique<capture_scope>(graphs, a);
    REQUIRE(machine.begin_capture(a).ok());
    void* const p = memory.allocate(a, 3000);
    memory.deallocate(a, p, 3000);
    CHECK(child_of([&] {
            try {
              scope->join(b);
              return false;
            } catch (cuda_error const& refused) {
              if (refused.kind() != failure::forked) return false;
            }
            scope.reset();
            return true;
          }) == 0);
    REQUIRE(machine.end_capture(a, graph).ok());
    scope.reset();
  }
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("a child that is forked while another thread puts the pool to sleep does not hang",
          "[raii][sleep][at_fork][threads][pages]") {
  sim_machine const machine(small_machine(64_MiB));
  {
    pool_with_graph p(machine, machine.driver(0));
    std::atomic<bool> stop{false};
    std::thread other([&] {
      while (!stop) {
        (void)sleep(p.memory);
        (void)wake(p.memory);
      }
    });
    int bad = 0;
    for (int i = 0; i < 10; ++i) {
      bad += child_of([&] {
        (void)memory_reserved(p.memory);
        (void)p.memory.owns(p.own);
        return wake(p.memory) == 0;  // the driver is lost, and with it the pool
      });
    }
    stop = true;
    other.join();
    CHECK(bad == 0);
    CHECK(p.intact());
  }
  CHECK(machine.leaks().total() == 0);
}

#endif
