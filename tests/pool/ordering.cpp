// SPDX-License-Identifier: Apache-2.0
// Stream order in the pool: which stream waits for which, and which does not have to. The order checker of
// the simulated machine verifies it.

#include "tarn/pool/order/ordering.hpp"

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "contract/memory_access.hpp"
#include "driver/calling_driver.hpp"
#include "driver/faulty.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/source/sim_sources.hpp"

using namespace tarn;
using tarn_test::test_stream;

namespace {

constexpr sim_nanoseconds second = 1'000'000'000;

sim_options checked(std::size_t capacity = 64_MiB) {
  sim_options o;
  o.capacity = capacity;
  o.taken = 0;
  o.backing = sim_backing::address_only;
  o.checks = sim_checks::stream_order;
  return o;
}

/// A pool on a checked machine; reports each allocation and deallocation to the checker.
struct checked_order {
  explicit checked_order(std::size_t capacity = 64_MiB) : machine(checked(capacity)) {}

  sim_machine machine;
  stack<sim_pages, pooled> memory{sim_pages(machine.driver())};

  void* get(stream_ref on, std::size_t bytes) {
    void* const p = memory.allocate(on, bytes);
    machine.allocated(p, bytes, on);
    return p;
  }
  void give(stream_ref on, void* p, std::size_t bytes) {
    machine.freed(p, bytes, on);
    memory.deallocate(on, p, bytes);
  }
  void use(stream_ref on, void* p, std::size_t bytes, sim_nanoseconds duration = 1000) {
    REQUIRE(machine.launch(on, duration, {sim_writes(p, bytes)}).ok());
  }
  std::size_t found() const { return machine.findings().size(); }
};

}  // namespace

TEST_CASE("pooled orders memory freed on one stream before its use on another", "[pool][streams]") {
  checked_order t;
  test_stream const a(t.machine.driver()), b(t.machine.driver());
  void* const p = t.get(a, 40_MiB);
  t.use(a, p, 40_MiB, second);  // the delay kernel
  t.give(a, p, 40_MiB);
  auto const start = t.machine.now();
  void* const q = t.get(b, 40_MiB);             // no other memory is free
  CHECK(t.machine.now() - start < second / 2);  // the host did not wait
  t.use(b, q, 40_MiB);
  REQUIRE(t.machine.driver().synchronize_stream(b).ok());
  CHECK(t.machine.now() - start >= second);  // the stream did
  CHECK(t.memory->state().device_waits == 1);
  CHECK(t.found() == 0);
  t.give(b, q, 40_MiB);
}

TEST_CASE("pooled orders memory that another thread frees while an event is recorded",
          "[pool][streams][threads]") {
  sim_machine machine(checked(40_MiB));
  std::function<void()> after_record;
  tarn_test::calling_driver const driver(machine.driver(), driver_call::record_event, after_record);
  auto memory = basic_pages(driver) | pooled{};
  test_stream const a(machine.driver()), b(machine.driver());
  std::array<void*, 2> const blocks{memory.allocate(a, 20_MiB), memory.allocate(a, 20_MiB)};
  auto const use_and_free = [&](void* p) {
    machine.allocated(p, 20_MiB, a);
    REQUIRE(machine.launch(a, second, {sim_writes(p, 20_MiB)}).ok());
    machine.freed(p, 20_MiB, a);
    memory.deallocate(a, p, 20_MiB);
  };
  std::thread([&] { use_and_free(blocks[0]); }).join();  // its thread has ended: no cache keeps the block
  after_record = [&] { std::thread([&] { use_and_free(blocks[1]); }).join(); };
  for (int i = 0; i < 2; ++i) {
    void* const p = memory.allocate(b, 20_MiB);
    machine.allocated(p, 20_MiB, b);
    REQUIRE(machine.launch(b, 1000, {sim_writes(p, 20_MiB)}).ok());
  }
  CHECK(!after_record);
  CHECK(machine.findings().empty());
}

TEST_CASE("pooled does not make a stream wait for another stream's memory while other memory is free",
          "[pool][streams]") {
  checked_order t(256_MiB);
  test_stream const a(t.machine.driver()), b(t.machine.driver());
  void* const mine = t.get(b, 4_MiB);
  void* const p = t.get(a, 40_MiB);
  t.use(a, p, 40_MiB, second);
  t.give(a, p, 40_MiB);
  t.give(b, mine, 4_MiB);
  auto const start = t.machine.now();
  void* const q = t.get(b, 4_MiB);
  t.use(b, q, 4_MiB);
  REQUIRE(t.machine.driver().synchronize_stream(b).ok());
  CHECK(t.machine.now() - start < second / 2);
  CHECK(t.found() == 0);
}

TEST_CASE("pooled makes no stream wait for work that is complete", "[pool][streams]") {
  checked_order t;
  test_stream const a(t.machine.driver()), b(t.machine.driver());
  void* const p = t.get(a, 40_MiB);
  t.use(a, p, 40_MiB);
  t.give(a, p, 40_MiB);
  t.machine.advance(second);
  void* const q = t.get(b, 40_MiB);
  t.use(b, q, 40_MiB);
  CHECK(t.memory->state().device_waits == 0);
  CHECK(t.memory->state().host_waits == 0);
  CHECK(t.found() == 0);
}

TEST_CASE("deallocate on another stream orders reuse of the block after that stream's work",
          "[pool][streams]") {
  checked_order t;
  test_stream const a(t.machine.driver()), b(t.machine.driver());
  for (std::size_t const bytes : {std::size_t{1000}, 100'000_KiB / 100, 40_MiB}) {
    void* const p = t.get(a, bytes);
    t.use(a, p, bytes);
    REQUIRE(t.machine.driver().synchronize_stream(a).ok());
    t.use(b, p, bytes, second);
    t.give(b, p, bytes);
    void* const q = t.get(a, bytes);
    t.use(a, q, bytes);
    CHECK(t.found() == 0);
    t.give(a, q, bytes);
  }
}

TEST_CASE("allocate_sync returns memory that no work on the device still uses", "[pool][streams]") {
  checked_order t;
  test_stream const a(t.machine.driver()), b(t.machine.driver());
  void* const p = t.get(a, 40_MiB);
  t.use(a, p, 40_MiB, second);
  t.give(a, p, 40_MiB);
  auto const start = t.machine.now();
  void* const q = t.memory.allocate_sync(40_MiB);
  CHECK(t.machine.now() - start >= second * 9 / 10);  // the host waited, as it must
  t.machine.allocated(q, 40_MiB, b);
  t.use(b, q, 40_MiB);
  CHECK(t.found() == 0);
  REQUIRE(t.machine.driver().synchronize_stream(b).ok());
  t.machine.freed(q, 40_MiB, b);
  t.memory.deallocate_sync(q, 40_MiB);
  void* const r = t.get(a, 40_MiB);  // at once, on any stream
  t.use(a, r, 40_MiB);
  CHECK(t.found() == 0);
  t.give(a, r, 40_MiB);
}

TEST_CASE("pooled reuses the memory of a destroyed stream after its last work", "[pool][streams]") {
  bool const identified = GENERATE(false, true);
  checked_order t;
  test_stream const b(t.machine.driver());
  for (std::size_t const bytes : {2_KiB, 40_MiB}) {
    stream_ref a;
    REQUIRE(t.machine.driver().create_stream(a).ok());
    stream_id id = 0;
    REQUIRE(t.machine.driver().identify(a, id).ok());
    if (identified) a = stream_ref::from(a.handle(), id);
    void* const p = t.get(a, bytes);
    t.use(a, p, bytes, second);
    t.give(a, p, bytes);
    REQUIRE(t.machine.driver().destroy_stream(a).ok());
    void* const whole = t.get(b, 60_MiB);
    t.use(b, whole, 60_MiB);
    CHECK(t.found() == 0);
    t.give(b, whole, 60_MiB);
  }
}

TEST_CASE("deallocate on a destroyed stream returns the block to the pool", "[pool][streams]") {
  checked_order t;
  test_stream const b(t.machine.driver());
  stream_ref a;
  REQUIRE(t.machine.driver().create_stream(a).ok());
  void* const p = t.memory.allocate(a, 40_MiB);
  t.use(a, p, 40_MiB, second);
  REQUIRE(t.machine.driver().destroy_stream(a).ok());
  t.memory.deallocate(stream_ref::from(a.handle()), p, 40_MiB);
  CHECK(t.memory->state().live == 0);
  void* const q = t.memory.allocate(b, 60_MiB);
  t.use(b, q, 60_MiB);
  CHECK(t.found() == 0);
  t.memory.deallocate(b, q, 60_MiB);
}

TEST_CASE("deallocate on a destroyed stream orders reuse after that stream's work", "[pool][streams]") {
  checked_order t;
  test_stream const b(t.machine.driver());
  stream_ref a;
  REQUIRE(t.machine.driver().create_stream(a).ok());
  void* const p = t.get(a, 40_MiB);
  t.use(a, p, 40_MiB, second);
  t.machine.freed(p, 40_MiB, a);
  REQUIRE(t.machine.driver().destroy_stream(a).ok());
  auto const start = t.machine.now();
  t.memory.deallocate(stream_ref::from(a.handle()), p, 40_MiB);
  void* const q = t.get(b, 60_MiB);
  t.use(b, q, 60_MiB);
  REQUIRE(t.machine.driver().synchronize_stream(b).ok());
  CHECK(t.machine.now() - start >= second * 9 / 10);
  CHECK(t.found() == 0);
  t.give(b, q, 60_MiB);
}

TEST_CASE("pooled reuses small blocks freed on another stream only after its work", "[pool][streams]") {
  checked_order t(8_MiB);
  test_stream const a(t.machine.driver()), b(t.machine.driver());
  std::size_t const bytes = 32_KiB;
  // The stream has completed work before; the pool must not mistake it for the work below.
  void* const early = t.get(a, bytes);
  t.use(b, early, bytes);
  t.give(b, early, bytes);
  t.machine.advance(second);
  void* const whole = t.get(a, 7_MiB);
  t.give(a, whole, 7_MiB);
  std::vector<void*> all;
  try {
    for (;;) all.push_back(t.get(a, bytes));
  } catch (out_of_memory const&) {
  }
  REQUIRE(all.size() > 100);
  REQUIRE(t.machine.driver().synchronize_stream(a).ok());
  REQUIRE(t.machine.launch(b, second).ok());
  for (void* p : all) {
    t.use(b, p, bytes);
    t.give(b, p, bytes);
  }
  void* const q = t.get(a, bytes);
  t.use(a, q, bytes);
  CHECK(t.found() == 0);
  t.give(a, q, bytes);
}

TEST_CASE("pooled does not treat a stream with a reused handle as the destroyed one", "[pool][streams]") {
  checked_order t;
  test_stream const other(t.machine.driver());
  stream_ref a;
  REQUIRE(t.machine.driver().create_stream(a).ok());
  void* const p = t.get(a, 4_KiB);
  void* const big = t.get(a, 40_MiB);
  t.use(a, p, 4_KiB, second);
  t.use(a, big, 40_MiB, second);
  t.give(a, p, 4_KiB);
  t.give(a, big, 40_MiB);
  REQUIRE(t.machine.driver().destroy_stream(a).ok());
  stream_ref again;
  REQUIRE(t.machine.driver().create_stream(again).ok());
  if (again.handle() != a.handle()) WARN("the handle was not reused; only the order is tested");
  void* const q = t.get(again, 4_KiB);
  void* const r = t.get(again, 40_MiB);
  t.use(again, q, 4_KiB);
  t.use(again, r, 40_MiB);
  CHECK(t.found() == 0);
  t.give(again, q, 4_KiB);
  t.give(again, r, 40_MiB);
  REQUIRE(t.machine.driver().destroy_stream(again).ok());
}

TEST_CASE("pooled keeps no bookkeeping for destroyed streams that freed nothing", "[pool][streams]") {
  sim_options o = checked();
  o.checks = sim_checks::off;
  sim_machine const machine(o);
  auto memory = sim_pages(machine.driver()) | pooled{};
  std::size_t after_some = 0;
  for (int i = 0; i < 2000; ++i) {
    test_stream const brief(machine.driver());
    memory.deallocate_sync(memory.allocate(brief, 4_MiB), 4_MiB);
    if (i == 200) after_some = memory->state().host_bytes;
  }
  CHECK(memory->state().host_bytes <= after_some);
}

TEST_CASE("pooled neither records an event on a captured stream nor makes it wait",
          "[pool][streams][capture]") {
  checked_order t;
  test_stream const a(t.machine.driver()), b(t.machine.driver());
  void* const p = t.get(a, 40_MiB);
  t.use(a, p, 40_MiB, second);
  t.give(a, p, 40_MiB);
  REQUIRE(t.machine.begin_capture(b).ok());
  try {
    void* const q = t.memory.allocate(b, 40_MiB);
    t.memory.deallocate(b, q, 40_MiB);
  } catch (out_of_memory const&) {
  } catch (cuda_error const&) {
  }
  CHECK(t.machine.captured_calls() == 0);
  sim_graph graph;
  CHECK(t.machine.end_capture(b, graph).ok());
  CHECK(graph.is_empty());
}

TEST_CASE("pooled returns no block in use to its upstream while a graph is captured",
          "[pool][streams][capture]") {
  sim_machine const machine(checked());
  auto memory = sim_malloc(machine.driver()) | limited{16_MiB} | pooled{};
  test_stream const a(machine.driver()), b(machine.driver());
  void* const p = memory.allocate(a, 9_MiB);
  REQUIRE(machine.launch(a, second, {sim_writes(p, 9_MiB)}).ok());
  memory.deallocate(a, p, 9_MiB);
  REQUIRE(machine.begin_capture(b).ok());
  CHECK_THROWS_AS(memory.allocate(b, 10_MiB), out_of_memory);
  CHECK(memory->state().destroys == 0);
  CHECK(machine.captured_calls() == 0);
  sim_graph graph;
  CHECK(machine.end_capture(b, graph).ok());
  void* const q = memory.allocate(b, 10_MiB);  // after the capture it waits, and then there is room
  memory.deallocate(b, q, 10_MiB);
  CHECK(machine.findings().empty());
}

TEST_CASE("deallocate on a captured stream records no event in the graph", "[pool][streams][capture]") {
  sim_machine const machine(checked(64_MiB));
  auto memory = sim_pages(machine.driver()) | pooled{.captures = capture_watch::in_scopes};
  test_stream const a(machine.driver()), b(machine.driver());
  void* const p = memory.allocate(a, 40_MiB);
  REQUIRE(machine.begin_capture(a).ok());
  memory.deallocate(a, p, 40_MiB);
  try {
    void* const q = memory.allocate(b, 40_MiB);
    memory.deallocate(b, q, 40_MiB);
  } catch (out_of_memory const&) {
  }
  CHECK(machine.captured_calls() == 0);
  sim_graph graph;
  CHECK(machine.end_capture(a, graph).ok());
  void* const r = memory.allocate(b, 40_MiB);  // available after the capture
  CHECK(r != nullptr);
  memory.deallocate(b, r, 40_MiB);
}

namespace {
/// Can record all work at once, as CUDA can since 12.5; refused while any stream is captured.
struct marking_driver : sim_driver {
  using sim_driver::sim_driver;
  explicit marking_driver(sim_driver const& d, bool const& is_captured)
      : sim_driver(d), captured(&is_captured) {}
  status record_all(event_handle event) const noexcept {
    if (*captured) return {failure::other, 900, "cudaErrorStreamCaptureUnsupported", "record_all"};
    status const s = synchronize_device();
    return s.ok() ? record_event(event, stream_ref{}) : s;
  }
  bool const* captured = nullptr;
};
}  // namespace

TEST_CASE("pooled does not invalidate a capture to reuse the memory of a destroyed stream",
          "[pool][streams][capture]") {
  sim_machine const machine(checked());
  bool captured = false;
  auto memory = basic_pages<marking_driver>(marking_driver(machine.driver(), captured)) | pooled{};
  test_stream const b(machine.driver());
  stream_ref a;
  REQUIRE(machine.driver().create_stream(a).ok());
  memory.deallocate(a, memory.allocate(a, 20_MiB), 20_MiB);
  REQUIRE(machine.driver().destroy_stream(a).ok());
  test_stream const again(machine.driver());  // its handle shows that the first stream was destroyed
  REQUIRE(machine.begin_capture(b).ok());
  captured = true;
  try {
    memory.deallocate(again, memory.allocate(again, 60_MiB), 60_MiB);
  } catch (out_of_memory const&) {
  }
  captured = false;
  sim_graph graph;
  CHECK(machine.end_capture(b, graph).ok());
  memory.deallocate(again, memory.allocate(again, 60_MiB), 60_MiB);
}

TEST_CASE(
    "record_stream on a stream that is captured at the free holds the block back and keeps the capture valid",
    "[pool][streams][record_stream][capture]") {
  // The stream of the use is captured; or another one, where the driver records the work of all streams at
  // once.
  sim_machine const machine(checked());
  bool captured = false;
  auto memory = basic_pages<marking_driver>(marking_driver(machine.driver(), captured)) | pooled{};
  bool const marks_all = GENERATE(false, true);
  checked_order t;
  sim_machine const& device = marks_all ? machine : t.machine;
  test_stream const a(device.driver()), b(device.driver()), c(device.driver());
  auto const run = [&](auto& pool) {
    void* const p = pool.allocate(a, 4_KiB);
    device.allocated(p, 4_KiB, a);
    REQUIRE(device.launch(b, second, {sim_writes(p, 4_KiB)}).ok());
    pool.record_stream(p, 4_KiB, b);
    REQUIRE(device.begin_capture(marks_all ? c : b).ok());
    captured = true;
    device.freed(p, 4_KiB, a);
    pool.deallocate(a, p, 4_KiB);
    CHECK(pool->state().deferred == 4_KiB);
    void* const q = pool.allocate(a, 4_KiB);
    CHECK(q != p);
    CHECK(pool.trim() == 0);  // checks again; the block is still deferred
    sim_graph graph;
    CHECK(device.end_capture(marks_all ? c : b, graph).ok());
    CHECK(graph.is_empty());
    captured = false;
    pool.deallocate(a, q, 4_KiB);
    (void)pool.trim();  // waits for the use
    CHECK(pool->state().deferred == 0);
    CHECK(pool->state().reserved == 0);
    CHECK(device.now() >= second);
  };
  if (marks_all) {
    run(memory);
  } else {
    run(t.memory);
  }
  CHECK(device.findings().empty());
}

TEST_CASE("pooled leaks no event when it is destroyed while a block is deferred during a capture",
          "[pool][streams][record_stream][capture]") {
  sim_machine const machine(checked());
  test_stream const a(machine.driver()), b(machine.driver()), c(machine.driver());
  sim_graph graph;
  {
    auto memory = sim_pages(machine.driver()) | pooled{};
    std::size_t const bytes = GENERATE(4_KiB, 4_MiB);
    void* const p = memory.allocate(a, bytes);
    memory.record_stream(p, bytes, b);
    memory.record_stream(p, bytes, c);
    REQUIRE(machine.begin_capture(b).ok());
    memory.deallocate(a, p, bytes);
  }
  CHECK(machine.end_capture(b, graph).ok());
  CHECK(machine.leaks().events == 0);
  CHECK(machine.usage().used == 0);
}

TEST_CASE("record_stream holds the block back until the use is complete", "[pool][streams][record_stream]") {
  checked_order t;
  test_stream const a(t.machine.driver()), b(t.machine.driver());
  for (std::size_t const bytes : {4_KiB, 40_MiB}) {
    void* const p = t.get(a, bytes);
    t.use(a, p, bytes);
    REQUIRE(t.machine.driver().synchronize_stream(a).ok());
    t.use(b, p, bytes, second);
    t.memory.record_stream(p, bytes, b);
    t.memory.record_stream(p, bytes, b);  // a second call changes nothing
    t.machine.freed(p, bytes, b);         // its last use
    t.memory.deallocate(a, p, bytes);
    CHECK(t.memory->state().deferred == bytes);
    void* q = nullptr;
    if (bytes == 4_KiB) {
      q = t.memory.allocate(a, bytes);
      CHECK(q != p);
      t.memory.deallocate(a, q, bytes);
    }
    t.machine.advance(2 * second);
    q = t.get(a, 60_MiB);  // needs all memory
    t.use(a, q, 60_MiB);
    CHECK(t.memory->state().deferred == 0);
    for (auto const& finding : t.machine.findings()) UNSCOPED_INFO(finding);
    CHECK(t.found() == 0);
    t.give(a, q, 60_MiB);
    CHECK(t.memory->state().live == 0);
  }
}

TEST_CASE("pooled waits for no recorded use while other memory is free", "[pool][streams][record_stream]") {
  checked_order t;
  test_stream const a(t.machine.driver()), b(t.machine.driver());
  void* const p = t.get(a, 4_MiB);
  t.use(b, p, 4_MiB, second);
  t.memory.record_stream(p, 4_MiB, b);
  t.machine.freed(p, 4_MiB, b);
  t.memory.deallocate(a, p, 4_MiB);
  auto const start = t.machine.now();
  void* const q = t.get(a, 20_MiB);  // more than is reserved
  CHECK(t.machine.now() - start < second / 2);
  CHECK(t.memory->state().deferred == 4_MiB);
  CHECK(t.memory->state().host_waits == 0);
  t.give(a, q, 20_MiB);
}

TEST_CASE("allocate waits for recorded uses before it throws out_of_memory",
          "[pool][streams][record_stream]") {
  checked_order t;
  test_stream const a(t.machine.driver()), b(t.machine.driver());
  void* const p = t.memory.allocate(a, 40_MiB);
  t.use(b, p, 40_MiB, second);
  t.memory.record_stream(p, 40_MiB, b);
  t.memory.deallocate(a, p, 40_MiB);
  void* q = nullptr;
  CHECK_NOTHROW(q = t.memory.allocate(a, 40_MiB));
  if (q != nullptr) {
    t.use(a, q, 40_MiB);
    CHECK(t.found() == 0);
    t.memory.deallocate(a, q, 40_MiB);
  }
}

TEST_CASE("pooled waits for a recorded use even if synchronize_event fails",
          "[pool][streams][record_stream]") {
  sim_machine const machine(checked());
  fault_plan const plan;
  auto memory = basic_pages<faulty<sim_driver>>(faulty<sim_driver>(machine.driver(), plan)) | pooled{};
  test_stream const a(machine.driver()), b(machine.driver());
  void* const p = memory.allocate(a, 40_MiB);
  memory->record_stream(p, 40_MiB, b);
  REQUIRE(machine.launch(b, second, {sim_reads(p, 40_MiB)}).ok());
  memory.deallocate(a, p, 40_MiB);
  plan.fail(driver_call::synchronize_event, 1);
  void* const q = memory.allocate(a, 60_MiB);
  REQUIRE(machine.launch(a, 1000, {sim_writes(q, 60_MiB)}).ok());
  CHECK(machine.findings().empty());
  memory.deallocate(a, q, 60_MiB);
}

TEST_CASE("mark_together marks streams again only after they have freed more", "[pool][streams]") {
  sim_machine const machine;
  test_stream const a(machine.driver()), b(machine.driver());
  detail::arena space;
  space.make_room();
  detail::ordering<sim_marking_driver> order(machine.driver(), detail::default_streams::of_own_device);
  detail::hot_mutex mutex;
  detail::hot_lock held(mutex);
  detail::domain_ref domains[2] = {};
  for (int i = 0; i < 2; ++i) {
    stream_ref const s = i == 0 ? a : b;
    domains[i] = space.streams.get(s.id(), s);
  }
  std::uint64_t created = 0;
  auto const marks = [&] {
    machine.reset_calls();
    order.mark_together(space, detail::may_release(held), [&](auto const& f) {
      for (detail::domain_ref const d : domains) f(d);
    });
    created += machine.calls()[driver_call::create_event];
    return machine.calls()[driver_call::record_event];
  };
  CHECK(marks() == 0);
  for (int i = 0; i < 10; ++i) {
    for (detail::domain_ref const d : domains) (void)space.streams[d].mark();
    CHECK(marks() == 1);
    CHECK(marks() == 0);
  }
  CHECK(created == 2);  // one that the streams have, and one that they have left
  order.close(space);
}

TEST_CASE("record_stream holds the block back when the event cannot be recorded during a capture",
          "[pool][streams][capture][record_stream]") {
  sim_machine const machine(checked());
  bool captured = false;
  auto memory = basic_pages<marking_driver>(marking_driver(machine.driver(), captured)) | pooled{};
  test_stream const a(machine.driver()), b(machine.driver()), c(machine.driver());
  void* const p = memory.allocate(a, 4_KiB);
  memory->record_stream(p, 4_KiB, b);
  REQUIRE(machine.launch(b, second, {sim_reads(p, 4_KiB)}).ok());
  REQUIRE(machine.begin_capture(c).ok());
  captured = true;
  memory.deallocate(a, p, 4_KiB);
  CHECK(memory->state().deferred == 4_KiB);
  void* const q = memory.allocate(a, 4_KiB);
  CHECK(q != p);
  sim_graph graph;
  CHECK(machine.end_capture(c, graph).ok());
  captured = false;
  memory.deallocate(a, q, 4_KiB);
  (void)memory->trim(0);  // waits for the use
  CHECK(memory->state().deferred == 0);
  CHECK(memory->state().reserved == 0);
  CHECK(machine.findings().empty());
}

TEST_CASE("deallocate on a destroyed stream does not invalidate a capture", "[pool][streams][capture]") {
  sim_machine const machine(checked());
  bool captured = false;
  auto memory = basic_pages<marking_driver>(marking_driver(machine.driver(), captured)) | pooled{};
  test_stream const c(machine.driver());
  stream_ref gone;
  REQUIRE(machine.driver().create_stream(gone).ok());
  void* const p = memory.allocate(gone, 4_KiB);
  REQUIRE(machine.launch(gone, second, {sim_writes(p, 4_KiB)}).ok());
  REQUIRE(machine.driver().destroy_stream(gone).ok());
  REQUIRE(machine.begin_capture(c).ok());
  captured = true;
  memory.deallocate(stream_ref::from(gone.handle()), p, 4_KiB);
  sim_graph graph;
  CHECK(machine.end_capture(c, graph).ok());
  captured = false;
  (void)memory->trim(0);
  CHECK(memory->state().live == 0);
  CHECK(memory->state().reserved == 0);
  CHECK(machine.findings().empty());
}

TEST_CASE("pooled waits at its destruction for work whose event could not be recorded", "[pool][streams]") {
  sim_machine const machine(checked());
  fault_plan const plan;
  test_stream const a(machine.driver());
  {
    auto memory = basic_pages<faulty<sim_driver>>(faulty<sim_driver>(machine.driver(), plan)) | pooled{};
    void* const p = memory.allocate(a, 4_MiB);
    REQUIRE(machine.launch(a, second, {sim_writes(p, 4_MiB)}).ok());
    memory.deallocate(a, p, 4_MiB);
    plan.fail(driver_call::record_event, 1);
  }
  CHECK(plan.failed() == 1);
  CHECK(machine.findings().empty());
  CHECK(machine.leaks().handles == 0);
}

TEST_CASE("pool_state::deferred counts the rounded size of a block", "[pool][record_stream]") {
  checked_order t;
  test_stream const a(t.machine.driver()), b(t.machine.driver());
  void* const p = t.memory.allocate(a, 1000);
  t.memory->record_stream(p, 1000, b);
  t.use(b, p, 1000, second);
  t.memory.deallocate(a, p, 1000);
  CHECK(t.memory->state().deferred == t.memory->block_bytes(1000, 256));
  CHECK(t.memory->state().deferred == t.memory->state().live);
}

TEST_CASE("deallocate_sync holds a block back until its recorded uses are complete",
          "[pool][streams][record_stream]") {
  checked_order t;
  test_stream const a(t.machine.driver()), b(t.machine.driver());
  void* const p = t.memory.allocate_sync(4_KiB);
  t.machine.allocated(p, 4_KiB, b);
  t.memory.record_stream(p, 4_KiB, b);
  t.use(b, p, 4_KiB, second);
  t.machine.freed(p, 4_KiB, b);
  t.memory.deallocate_sync(p, 4_KiB);
  CHECK(t.memory->state().deferred == 4_KiB);
  void* const q = t.memory.allocate_sync(4_KiB);
  CHECK(q != p);
  t.memory.deallocate_sync(q, 4_KiB);
  (void)t.memory.trim();
  CHECK(t.memory->state().deferred == 0);
  CHECK(t.machine.now() >= second);
  CHECK(t.found() == 0);
}

TEST_CASE("pooled orders the front of a grown range after the work on it", "[pool][streams][pages]") {
  sim_machine const machine(checked());
  test_stream const a(machine.driver()), b(machine.driver());
  auto memory = sim_pages(machine.driver()) | pooled{.remap = remapping::off};
  auto const get = [&](stream_ref stream, std::size_t bytes, std::size_t alignment) {
    void* const p = memory.allocate(stream, bytes, alignment);
    machine.allocated(p, bytes, stream);
    return p;
  };
  std::size_t const before = 5_MiB / 2;
  std::size_t const bytes = 7_MiB / 2;
  void* const first = get(a, before, 256);
  void* const second_block = get(a, bytes, 256);
  REQUIRE(static_cast<char*>(second_block) == static_cast<char*>(first) + before);
  REQUIRE(machine.launch(a, second, {sim_writes(second_block, bytes)}).ok());
  machine.freed(second_block, bytes, a);
  memory.deallocate(a, second_block, bytes);
  std::uint64_t const creates = memory->state().creates;
  void* const aligned = get(a, 8_MiB, 2_MiB);
  REQUIRE(memory->state().creates > creates);
  REQUIRE(static_cast<char*>(aligned) == static_cast<char*>(first) + 4_MiB);
  void* const front = get(b, 3_MiB / 2, 256);
  REQUIRE(front == second_block);
  REQUIRE(machine.launch(b, second, {sim_writes(front, 3_MiB / 2)}).ok());
  CHECK(machine.findings().empty());
  memory.deallocate(b, front, 3_MiB / 2);
  memory.deallocate(a, aligned, 8_MiB, 2_MiB);
  memory.deallocate(a, first, before);
}

TEST_CASE("record_stream on the freeing stream does not hold the block back",
          "[pool][streams][record_stream]") {
  checked_order t;
  test_stream const a(t.machine.driver());
  void* const p = t.memory.allocate(a, 4_KiB);
  t.memory.record_stream(p, 4_KiB, a);
  t.memory.deallocate(a, p, 4_KiB);
  CHECK(t.memory->state().deferred == 0);
  CHECK(t.memory->state().live == 0);
}

TEST_CASE("allocate waits after a capture for a recorded use on a stream that was captured at the free",
          "[pool][streams][record_stream][capture]") {
  checked_order t;
  test_stream const a(t.machine.driver()), b(t.machine.driver());
  bool const by_legacy =
      GENERATE(false, true);  // the legacy stream takes no event while a blocking one is captured
  stream_ref captured = b;
  if (by_legacy) REQUIRE(t.machine.create_blocking_stream(0, captured).ok());
  stream_ref const used_on = by_legacy ? stream_ref{} : stream_ref(b);
  void* const p = t.get(a, 40_MiB);
  t.use(used_on, p, 40_MiB, second);
  t.memory.record_stream(p, 40_MiB, used_on);
  REQUIRE(t.machine.begin_capture(captured).ok());
  t.give(a, p, 40_MiB);
  CHECK(t.memory->state().deferred == 40_MiB);
  CHECK_THROWS_AS(t.memory.allocate(a, 60_MiB), out_of_memory);  // the end of the use is not known yet
  sim_graph graph;
  CHECK(t.machine.end_capture(captured, graph).ok());
  CHECK(graph.is_empty());
  CHECK(t.machine.captured_calls() == 0);
  void* const q = t.get(a, 60_MiB);
  t.use(a, q, 60_MiB);
  CHECK(t.found() == 0);
  t.give(a, q, 60_MiB);
  CHECK(t.memory->state().deferred == 0);
  if (by_legacy) REQUIRE(t.machine.driver().destroy_stream(captured).ok());
}

TEST_CASE("record_stream keeps the order after the freeing stream even if that stream is destroyed meanwhile",
          "[pool][streams][record_stream]") {
  checked_order t;
  test_stream const b(t.machine.driver()), c(t.machine.driver());
  stream_ref made;
  REQUIRE(t.machine.driver().create_stream(made).ok());
  stream_ref const a = stream_ref::from(made.handle());
  void* const p = t.get(a, 40_MiB);
  t.memory->record_stream(p, 40_MiB, b);
  t.use(b, p, 40_MiB);
  t.use(a, p, 40_MiB, second);
  t.give(a, p, 40_MiB);
  t.machine.advance(second / 100);  // the use is complete, the freeing stream's work is not
  REQUIRE(t.machine.driver().destroy_stream(made).ok());
  bool const reused = GENERATE(false, true);
  stream_ref again;
  if (reused) REQUIRE(t.machine.driver().create_stream(again).ok());
  stream_ref const taker = reused ? again : stream_ref(c);
  void* const q = t.get(taker, 60_MiB);
  t.use(taker, q, 60_MiB);
  CHECK(t.found() == 0);
  t.give(taker, q, 60_MiB);
  if (reused) REQUIRE(t.machine.driver().destroy_stream(again).ok());
}

TEST_CASE("pooled waits at its destruction for recorded uses and for its streams", "[pool][streams]") {
  sim_machine const machine(checked());
  test_stream const a(machine.driver()), b(machine.driver());
  {
    auto memory = sim_pages(machine.driver()) | pooled{};
    void* const p = memory.allocate(a, 4_MiB);
    void* const q = memory.allocate(a, 4_MiB);
    REQUIRE(machine.launch(b, second, {sim_writes(p, 4_MiB)}).ok());
    REQUIRE(machine.launch(a, second, {sim_writes(q, 4_MiB)}).ok());
    memory.record_stream(p, 4_MiB, b);
    memory.deallocate(a, p, 4_MiB);
    memory.deallocate(a, q, 4_MiB);
  }
  CHECK(machine.driver().synchronize_device().ok());  // no illegal access
  CHECK(machine.findings().empty());
  CHECK(machine.leaks().events == 0);
  CHECK(machine.leaks().handles == 0);
}

TEST_CASE("allocate in a random program on many streams never returns memory that is in use",
          "[pool][streams][random]") {
  for (unsigned seed = 1; seed <= 6; ++seed) {
    INFO("seed " << seed);
    checked_order t(96_MiB);
    std::mt19937_64 random(seed);
    std::vector<stream_ref> streams(5);
    for (auto& s : streams) REQUIRE(t.machine.driver().create_stream(s).ok());
    struct block {
      void* p;
      std::size_t bytes;
      stream_ref on;
    };
    std::vector<block> blocks;
    for (int step = 0; step < 2500; ++step) {
      std::size_t const which = random() % streams.size();
      stream_ref const on = streams[which];
      std::uint64_t const what = random() % 100;
      if (what < 55) {
        std::size_t const bytes = random() % (std::size_t{2} << (random() % 24)) + 1;
        try {
          void* const p = t.get(on, bytes);
          t.use(on, p, bytes, random() % 200'000);
          blocks.push_back({p, bytes, on});
        } catch (out_of_memory const&) {
        }
      } else if (what < 97) {
        if (blocks.empty()) continue;
        std::size_t const at = random() % blocks.size();
        block const b = blocks[at];
        blocks[at] = blocks.back();
        blocks.pop_back();
        t.give(b.on, b.p, b.bytes);
      } else if (what == 97) {
        (void)t.memory.trim(random() % 96_MiB);
      } else if (what == 98) {
        t.machine.advance(random() % 100'000);
      } else {  // one stream is destroyed and another created, possibly with the same handle
        for (std::size_t i = blocks.size(); i-- > 0;) {
          if (!(blocks[i].on == on)) continue;
          t.give(on, blocks[i].p, blocks[i].bytes);
          blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(i));
        }
        REQUIRE(t.machine.driver().destroy_stream(on).ok());
        REQUIRE(t.machine.driver().create_stream(streams[which]).ok());
      }
      REQUIRE(t.found() == 0);
    }
    for (block const& b : blocks) t.give(b.on, b.p, b.bytes);
    CHECK(t.machine.driver().synchronize_device().ok());
  }
}
