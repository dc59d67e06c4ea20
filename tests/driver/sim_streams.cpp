// SPDX-License-Identifier: Apache-2.0
// The simulated GPU's streams: order, virtual time, events, default streams, capture, what work may do.

#include "tarn/driver/sim/sim_streams.hpp"

#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "driver/contract.hpp"
#include "tarn/driver/sim/sim_driver.hpp"

using namespace tarn;
using test::scoped_event;
using test::scoped_stream;

namespace {

stream_ref const legacy = stream_ref::from(reinterpret_cast<void*>(std::uintptr_t{1}));
stream_ref const per_thread = stream_ref::from(reinterpret_cast<void*>(std::uintptr_t{2}));

/// A machine whose calls take no time: a test advances the clock itself.
struct still {
  sim_machine machine{sim_options{.costs = sim_costs::nothing()}};
  sim_driver driver = machine.driver();
  std::string log;

  void run(stream_ref stream, sim_nanoseconds duration, char name) {
    REQUIRE(machine.launch(stream, duration, [this, name] { log += name; }).ok());
  }
  bool is_done(event_handle event) {
    status const s = driver.query_event(event);
    REQUIRE((s.ok() || s.kind == failure::not_ready));
    return s.ok();
  }
};

}  // namespace

TEST_CASE("sim_machine runs work when its time has come and not before", "[driver][sim][streams]") {
  still t;
  scoped_stream const a(t.driver);
  t.run(a, 100, 'x');
  CHECK(t.log == "");
  t.machine.advance(99);
  CHECK(t.log == "");
  CHECK(t.machine.pending() == 1);
  t.machine.advance(1);
  CHECK(t.log == "x");
  CHECK(t.machine.pending() == 0);
}

TEST_CASE("sim streams run their own work in order and run concurrently with each other",
          "[driver][sim][streams]") {
  still t;
  scoped_stream const a(t.driver), b(t.driver);
  t.run(a, 100, '1');
  t.run(a, 10, '2');
  t.run(b, 105, '3');
  auto const start = t.machine.now();
  REQUIRE(t.driver.synchronize_device().ok());
  CHECK(t.log == "132");
  CHECK(t.machine.now() - start == 110);
}

TEST_CASE("an idle sim stream starts work immediately", "[driver][sim][streams]") {
  still t;
  scoped_stream const a(t.driver);
  t.run(a, 10, '1');
  t.machine.advance(1000);
  auto const start = t.machine.now();
  t.run(a, 10, '2');
  REQUIRE(t.driver.synchronize_stream(a).ok());
  CHECK(t.machine.now() - start == 10);
}

TEST_CASE("sim_driver synchronize advances the clock no further than necessary", "[driver][sim][streams]") {
  still t;
  scoped_stream const a(t.driver), b(t.driver);
  scoped_event const event(t.driver);
  t.run(a, 10, 'a');
  REQUIRE(t.driver.record_event(event, a).ok());
  t.run(a, 10, 'A');
  t.run(b, 1000, 'b');
  REQUIRE(t.driver.synchronize_event(event).ok());
  CHECK(t.log == "a");
  REQUIRE(t.driver.synchronize_stream(a).ok());
  CHECK(t.log == "aA");
  REQUIRE(t.driver.synchronize_stream(b).ok());
  CHECK(t.log == "aAb");
}

TEST_CASE("a waiting sim stream continues after the event even if its own work is short",
          "[driver][sim][streams]") {
  still t;
  scoped_stream const a(t.driver), b(t.driver);
  scoped_event const event(t.driver);
  t.run(a, 100, 'a');
  REQUIRE(t.driver.record_event(event, a).ok());
  t.run(a, 500, 'A');
  REQUIRE(t.driver.wait_event(b, event).ok());
  t.run(b, 1, 'b');
  REQUIRE(t.driver.synchronize_stream(b).ok());
  CHECK(t.log == "ab");
}

TEST_CASE("a sim event becomes ready after enough queries", "[driver][sim][streams]") {
  sim_machine const machine;
  scoped_stream const a(machine.driver());
  scoped_event const event(machine.driver());
  REQUIRE(machine.launch(a, 10'000).ok());
  REQUIRE(machine.driver().record_event(event, a).ok());
  int polls = 0;
  while (machine.driver().query_event(event).kind == failure::not_ready) ++polls;
  CHECK(polls > 20);
  CHECK(polls < 60);
}

TEST_CASE("the sim legacy default stream and blocking streams wait for each other",
          "[driver][sim][streams]") {
  still t;
  stream_ref blocking;
  REQUIRE(t.machine.create_blocking_stream(0, blocking).ok());
  scoped_stream const independent(t.driver);
  SECTION("legacy work waits for blocking streams") {
    t.run(blocking, 100, 'b');
    t.run(legacy, 1, 'l');
    t.run(independent, 10, 'i');
    REQUIRE(t.driver.synchronize_device().ok());
    CHECK(t.log == "ibl");
  }
  SECTION("blocking streams wait for legacy work") {
    t.run(legacy, 100, 'l');
    t.run(blocking, 1, 'b');
    t.run(independent, 10, 'i');
    REQUIRE(t.driver.synchronize_device().ok());
    CHECK(t.log == "ilb");
  }
  SECTION("per-thread default streams are blocking") {
    t.run(per_thread, 100, 'p');
    t.run({}, 1, 'l');
    REQUIRE(t.driver.synchronize_stream({}).ok());
    CHECK(t.log == "pl");
  }
  SECTION("an event on the legacy stream also marks the work of blocking streams") {
    scoped_event const event(t.driver);
    t.run(blocking, 100, 'b');
    REQUIRE(t.driver.record_event(event, legacy).ok());
    CHECK_FALSE(t.is_done(event));
    REQUIRE(t.driver.synchronize_event(event).ok());
    CHECK(t.log == "b");
  }
  REQUIRE(t.driver.destroy_stream(blocking).ok());
}

TEST_CASE("sim_driver gives each thread and device its own per-thread default stream",
          "[driver][sim][streams]") {
  sim_machine const machine{sim_options{.devices = 2}};
  stream_id const here = test::id_of(machine.driver(0), per_thread);
  CHECK(here == test::id_of(machine.driver(0), per_thread));
  CHECK(here != test::id_of(machine.driver(1), per_thread));
  CHECK(test::id_of(machine.driver(0), legacy) != test::id_of(machine.driver(1), legacy));
  CHECK(test::id_of(machine.driver(0), legacy) == test::id_of(machine.driver(0), {}));
  std::vector<stream_id> seen{here};
  for (int i = 0; i < 3; ++i) {  // one after the other, so that the system reuses their thread numbers
    stream_id there = 0;
    std::thread([&] { (void)machine.driver(0).identify(per_thread, there); }).join();
    for (stream_id const earlier : seen) CHECK(there != earlier);
    seen.push_back(there);
  }
}

TEST_CASE("another thread's default sim stream is reached through the legacy stream",
          "[driver][sim][streams]") {
  still t;
  stream_ref theirs;
  std::thread([&] {
    stream_id id = 0;
    (void)t.driver.identify(per_thread, id);
    theirs = stream_ref::from(per_thread.handle(), id);
    (void)t.machine.launch(per_thread, 100, [&t] { t.log += 't'; });
  }).join();
  scoped_event const event(t.driver);
  SECTION("the handle alone denotes this thread's stream, which is not ordered") {
    REQUIRE(t.driver.record_event(event, per_thread).ok());
    CHECK(t.is_done(event));
  }
  SECTION("the identity denotes the ordered stream") {
    REQUIRE(t.driver.record_event(event, theirs).ok());
    CHECK_FALSE(t.is_done(event));
  }
}

TEST_CASE("sim_driver reuses handles of destroyed streams and events immediately", "[driver][sim][streams]") {
  sim_machine const machine;
  auto const driver = machine.driver();
  stream_ref first, second;
  REQUIRE(driver.create_stream(first).ok());
  REQUIRE(machine.launch(first, 1'000'000'000).ok());
  REQUIRE(driver.destroy_stream(first).ok());
  CHECK_FALSE(driver.destroy_stream(first).ok());
  CHECK(driver.synchronize_stream(first).code == 400);
  REQUIRE(driver.create_stream(second).ok());
  CHECK(second.handle() == first.handle());
  CHECK(second.id() != first.id());
  scoped_event const event(driver);
  REQUIRE(driver.record_event(event, second).ok());
  CHECK(driver.query_event(event).ok());  // a recreated handle inherits no state
  REQUIRE(driver.destroy_stream(second).ok());
  event_handle dead = nullptr, again = nullptr;
  REQUIRE(driver.create_event(dead).ok());
  REQUIRE(driver.destroy_event(dead).ok());
  CHECK(driver.query_event(dead).code == 400);
  CHECK_FALSE(driver.destroy_event(dead).ok());
  REQUIRE(driver.create_event(again).ok());
  CHECK(again == dead);
  REQUIRE(driver.destroy_event(again).ok());
}

TEST_CASE("sim_driver refuses to destroy default streams", "[driver][sim][streams]") {
  sim_machine const machine;
  for (stream_ref const stream : {stream_ref{}, legacy, per_thread}) {
    CHECK(machine.driver().destroy_stream(stream).ok());
    CHECK(machine.driver().synchronize_stream(stream).ok());
  }
}

TEST_CASE("sim events belong to their device, and waits work across devices", "[driver][sim][streams]") {
  sim_machine const machine{sim_options{.devices = 2}};
  auto const d0 = machine.driver(0), d1 = machine.driver(1);
  scoped_stream const s0(d0), s1(d1);
  scoped_event const e0(d0), after(d1);
  CHECK(d0.record_event(e0, s1).code == 400);
  REQUIRE(machine.launch(s0, 1'000'000).ok());
  REQUIRE(d0.record_event(e0, s0).ok());
  REQUIRE(d1.wait_event(s1, e0).ok());
  REQUIRE(d1.record_event(after, s1).ok());
  CHECK(d1.query_event(after).kind == failure::not_ready);
  REQUIRE(d0.synchronize_device().ok());
  CHECK(d1.query_event(after).ok());
}

TEST_CASE("a shared sim event is opened until the last of its handles is destroyed",
          "[driver][sim][streams]") {
  sim_machine const machine{sim_options{.sharing = sim_sharing::descriptors}};
  sim_driver const driver = machine.driver();
  event_handle made = nullptr, opened = nullptr, late = nullptr;
  shared_event_token token{};
  REQUIRE(driver.create_shared_event(made, token).ok());
  REQUIRE(driver.open_shared_event(token, opened).ok());
  REQUIRE(driver.destroy_event(made).ok());
  REQUIRE(driver.open_shared_event(token, late).ok());
  REQUIRE(driver.destroy_event(opened).ok());
  REQUIRE(driver.destroy_event(late).ok());
  CHECK_FALSE(driver.open_shared_event(token, opened).ok());
}

TEST_CASE("synchronizing one sim device leaves the others running", "[driver][sim][streams]") {
  sim_machine const machine{sim_options{.devices = 2}};
  REQUIRE(machine.driver(1).launch({}, 1'000'000'000).ok());
  scoped_event const event(machine.driver(1));
  REQUIRE(machine.driver(1).record_event(event, {}).ok());
  REQUIRE(machine.driver(0).synchronize_device().ok());
  CHECK(machine.driver(1).query_event(event).kind == failure::not_ready);
}

TEST_CASE("simulated work may not call the driver", "[driver][sim][streams]") {
  still t;
  status inside;
  sim_nanoseconds time = 0;
  REQUIRE(t.machine
              .launch({}, 5,
                      [&] {
                        void* p = nullptr;
                        inside = t.driver.malloc_device(1, p);
                        time = t.machine.now();
                      })
              .ok());
  REQUIRE(t.driver.synchronize_stream({}).ok());
  CHECK(inside.code == 800);
  CHECK(time == t.machine.now());
}

TEST_CASE("sim_driver copies and fills take effect in stream order", "[driver][sim][streams]") {
  sim_machine const machine;
  auto const driver = machine.driver();
  scoped_stream const a(driver);
  void* p = nullptr;
  REQUIRE(driver.malloc_pinned(4_KiB, p).ok());
  auto* const bytes = static_cast<unsigned char*>(p);
  std::memset(bytes, 1, 4_KiB);
  REQUIRE(machine.launch(a, 1'000'000).ok());
  REQUIRE(driver.fill(a, bytes, 2, 2_KiB).ok());
  REQUIRE(driver.copy(a, bytes + 2_KiB, bytes, 2_KiB).ok());
  CHECK(bytes[0] == 1);
  REQUIRE(driver.synchronize_stream(a).ok());
  CHECK(bytes[0] == 2);
  CHECK(bytes[4_KiB - 1] == 2);
  REQUIRE(driver.free_pinned(p).ok());
}

TEST_CASE("a pageable sim copy is complete when the call returns", "[driver][sim][streams]") {
  sim_machine const machine;
  auto const driver = machine.driver();
  scoped_stream const a(driver);
  void* p = nullptr;
  REQUIRE(driver.malloc_device(64, p).ok());
  {
    std::vector<char> const gone_soon(64, 'x');
    REQUIRE(driver.copy(a, p, gone_soon.data(), 64).ok());
  }
  REQUIRE(machine.launch(a, 1'000'000'000).ok());
  REQUIRE(driver.fill(a, p, 'y', 32).ok());
  char back[64]{};
  REQUIRE(driver.copy(a, back, p, 64).ok());
  CHECK(back[31] == 'y');
  CHECK(back[32] == 'x');
  CHECK_FALSE(driver.copy(a, back, nullptr, 1).ok());
  CHECK_FALSE(driver.copy(a, nullptr, p, 1).ok());
  CHECK_FALSE(driver.fill(a, back, 0, 1).ok());  // memory unknown to the device cannot be filled
  REQUIRE(driver.free_device(p).ok());
}

TEST_CASE("sim copies take the time of their kind", "[driver][sim][streams]") {
  sim_machine const machine;
  auto const driver = machine.driver();
  scoped_stream const a(driver);
  void *device = nullptr, *other = nullptr, *pinned = nullptr;
  REQUIRE(driver.malloc_device(64_MiB, device).ok());
  REQUIRE(driver.malloc_device(64_MiB, other).ok());
  REQUIRE(driver.malloc_pinned(64_MiB, pinned).ok());
  auto const time = [&](void* to, void const* from) {
    auto const start = machine.now();
    REQUIRE(driver.copy(a, to, from, 64_MiB).ok());
    REQUIRE(driver.synchronize_stream(a).ok());
    return machine.now() - start;
  };
  std::vector<char> pageable(64_MiB);
  auto const on_device = time(device, other), up = time(device, pinned), down = time(pinned, device);
  CHECK(up == down);
  CHECK(up > 10 * on_device);
  CHECK(time(device, pageable.data()) > 5 * up);
  CHECK(up > 1'200'000);  // 64 MiB at 53 GB/s
  CHECK(up < 1'350'000);
}

TEST_CASE("simulated work that touches freed memory breaks the device", "[driver][sim][streams][pages]") {
  sim_machine const machine;
  auto const driver = machine.driver();
  scoped_stream const a(driver);
  void* base = nullptr;
  page_handle handle{};
  REQUIRE(driver.reserve_range(4_MiB, 0, base).ok());
  REQUIRE(driver.create_pages(2_MiB, handle).ok());
  REQUIRE(driver.map_pages(base, 2_MiB, handle).ok());
  bool ran = false;
  SECTION("work past the end of the mapping") {
    REQUIRE(machine.launch(a, 10, {sim_reads(base, 2_MiB + 1)}, [&] { ran = true; }).ok());
  }
  SECTION("work on pages that are unmapped before the work ends") {
    REQUIRE(machine.launch(a, 1'000'000, {sim_writes(base, 2_MiB)}, [&] { ran = true; }).ok());
    REQUIRE(driver.unmap_pages(base, 2_MiB).ok());
  }
  SECTION("a fill past the end of the mapping") {
    REQUIRE(machine.launch(a, 1'000'000).ok());
    REQUIRE(driver.fill(a, base, 1, 2_MiB).ok());
    REQUIRE(driver.unmap_pages(base, 2_MiB).ok());
  }
  status const s = driver.synchronize_stream(a);
  CHECK(s.code == 700);
  std::size_t free = 0, total = 0;
  CHECK(driver.memory_info(free, total).code == 700);
  CHECK_FALSE(ran);
  machine.repair();
  CHECK(driver.synchronize_stream(a).ok());
}

TEST_CASE("sim_driver free_device waits for the device", "[driver][sim][streams]") {
  still t;
  scoped_stream const a(t.driver);
  void* p = nullptr;
  REQUIRE(t.driver.malloc_device(1, p).ok());
  t.run(a, 1000, 'x');
  REQUIRE(t.driver.free_device(nullptr).ok());
  CHECK(t.log == "");
  REQUIRE(t.driver.free_device(p).ok());
  CHECK(t.log == "x");
}

TEST_CASE("sim_driver map_pages and unmap_pages do not wait", "[driver][sim][streams][pages]") {
  sim_machine const machine;
  auto const driver = machine.driver();
  void* base = nullptr;
  page_handle handle{};
  REQUIRE(machine.launch({}, 1'000'000'000).ok());
  REQUIRE(driver.reserve_range(2_MiB, 0, base).ok());
  REQUIRE(driver.create_pages(2_MiB, handle).ok());
  REQUIRE(driver.map_pages(base, 2_MiB, handle).ok());
  REQUIRE(driver.unmap_pages(base, 2_MiB).ok());
  REQUIRE(driver.destroy_pages(handle).ok());
  CHECK(machine.pending() == 1);
}

TEST_CASE("captured sim work runs once per launch of its graph", "[driver][sim][capture]") {
  still t;
  scoped_stream const a(t.driver);
  REQUIRE(t.machine.begin_capture(a).ok());
  t.run(a, 10, 'x');
  t.run(a, 10, 'y');
  sim_graph graph;
  CHECK(graph.is_empty());
  REQUIRE(t.machine.end_capture(a, graph).ok());
  CHECK(graph.size() == 2);
  REQUIRE(t.driver.synchronize_device().ok());
  CHECK(t.log == "");
  REQUIRE(t.machine.launch(a, graph).ok());
  REQUIRE(t.machine.launch(a, graph).ok());
  REQUIRE(t.driver.synchronize_stream(a).ok());
  CHECK(t.log == "xyxy");
  CHECK(t.machine.captured_calls() == 0);  // these were intended by the user
}

TEST_CASE("sim_machine counts driver calls recorded into a graph as accidents",
          "[driver][sim][capture][memory_pools]") {
  sim_machine const machine;
  auto const driver = machine.driver();
  scoped_stream const a(driver), b(driver);
  scoped_event const event(driver);
  REQUIRE(machine.begin_capture(a).ok());
  REQUIRE(driver.record_event(event, a).ok());
  CHECK(machine.captured_calls() == 1);
  REQUIRE(driver.wait_event(b, event).ok());
  CHECK(machine.captured_calls() == 2);
  bool capturing = false;
  REQUIRE(driver.is_capturing(b, capturing).ok());
  CHECK(capturing);  // waiting for a captured event added it to the capture
  void* p = nullptr;
  REQUIRE(driver.malloc_async(1_KiB, a, p).ok());
  REQUIRE(driver.fill(a, p, 0, 1_KiB).ok());
  REQUIRE(driver.free_async(p, b).ok());
  CHECK(machine.captured_calls() == 5);
  sim_graph graph;
  REQUIRE(machine.end_capture(a, graph).ok());
  REQUIRE(driver.is_capturing(b, capturing).ok());
  CHECK_FALSE(capturing);
}

TEST_CASE("calls that CUDA forbids during capture fail and end the sim capture", "[driver][sim][capture]") {
  sim_machine const machine;
  auto const driver = machine.driver();
  scoped_stream const a(driver), b(driver);
  scoped_event const event(driver), recorded_before(driver);
  REQUIRE(driver.record_event(recorded_before, b).ok());
  REQUIRE(machine.begin_capture(a).ok());
  REQUIRE(driver.record_event(event, a).ok());
  int code = 0;
  SECTION("synchronising the stream") {
    code = driver.synchronize_stream(a).code - 900;
  }
  SECTION("synchronising the device") {
    code = driver.synchronize_device().code - 900;
  }
  SECTION("querying a captured event") {
    code = driver.query_event(event).code - 907;
  }
  SECTION("synchronising a captured event") {
    code = driver.synchronize_event(event).code - 907;
  }
  SECTION("waiting for work outside the capture") {
    code = driver.wait_event(a, recorded_before).code - 905;
  }
  SECTION("making the legacy stream wait for a captured event") {
    code = driver.wait_event(stream_ref{}, event).code - 906;
  }
  SECTION("joining two captures") {
    REQUIRE(machine.begin_capture(b).ok());
    code = driver.wait_event(b, event).code - 902;
  }
  CHECK(code == 0);
  CHECK(machine.invalidated_captures() >= 1);
  CHECK(machine.launch(a, 1).code == 901);
  sim_graph graph;
  CHECK(machine.end_capture(a, graph).code == 901);
  CHECK(graph.is_empty());
  CHECK(machine.launch(a, 1).ok());
}

TEST_CASE("legacy work invalidates a blocking sim stream's capture, which is_capturing reports before",
          "[driver][sim][capture]") {
  sim_machine const machine;
  auto const driver = machine.driver();
  stream_ref blocking;
  REQUIRE(machine.create_blocking_stream(0, blocking).ok());
  scoped_event const event(driver);
  REQUIRE(machine.begin_capture(blocking).ok());
  bool capturing = false;
  REQUIRE(driver.is_capturing(legacy, capturing).ok());
  CHECK(capturing);
  sim_graph graph;
  SECTION("a capture without other calls stays valid") {
    CHECK(machine.end_capture(blocking, graph).ok());
  }
  SECTION("a record on the legacy stream") {
    CHECK(driver.record_event(event, legacy).code == 906);
    CHECK(machine.end_capture(blocking, graph).code == 901);
  }
  SECTION("a launch on the legacy stream") {
    CHECK(machine.launch({}, 1).code == 906);
    CHECK(machine.end_capture(blocking, graph).code == 901);
  }
  REQUIRE(driver.destroy_stream(blocking).ok());
}

TEST_CASE("sim captures begin on non-legacy streams and end on the stream where they began",
          "[driver][sim][capture]") {
  sim_machine const machine;
  auto const driver = machine.driver();
  scoped_stream const a(driver), b(driver);
  scoped_event const event(driver);
  sim_graph graph;
  CHECK(machine.begin_capture({}).code == 900);
  CHECK(machine.end_capture(a, graph).code == 903);
  REQUIRE(machine.begin_capture(a).ok());
  CHECK_FALSE(machine.begin_capture(a).ok());
  REQUIRE(driver.record_event(event, a).ok());
  REQUIRE(driver.wait_event(b, event).ok());
  CHECK(machine.end_capture(b, graph).code == 903);
  CHECK(machine.end_capture(a, graph).code == 901);
}

TEST_CASE("a sim event of a finished capture marks nothing until it is recorded again",
          "[driver][sim][capture]") {
  sim_machine const machine;
  auto const driver = machine.driver();
  scoped_stream const a(driver);
  scoped_event const event(driver);
  REQUIRE(machine.begin_capture(a).ok());
  REQUIRE(driver.record_event(event, a).ok());
  sim_graph graph;
  REQUIRE(machine.end_capture(a, graph).ok());
  CHECK(driver.query_event(event).code == 907);
  CHECK_FALSE(driver.wait_event(a, event).ok());
  REQUIRE(driver.record_event(event, a).ok());
  CHECK(driver.query_event(event).ok());
}

TEST_CASE("slow sim streams keep their work until a thread waits", "[driver][sim][streams]") {
  constexpr sim_nanoseconds hour = 3'600'000'000'000;
  unsigned const slow = GENERATE(0u, 500u, 1000u);
  sim_machine const machine(sim_options{
      .costs = sim_costs::nothing(), .seed = 7, .jitter = 0, .slow_streams = slow, .slowness = hour});
  sim_driver const driver = machine.driver();
  std::vector<stream_ref> streams(40);
  for (auto& s : streams) {
    REQUIRE(driver.create_stream(s).ok());
    REQUIRE(machine.launch(s, 10).ok());
  }
  machine.advance(1000);
  CHECK((machine.pending() == 0) == (slow == 0));
  CHECK((machine.pending() == streams.size()) == (slow == 1000));
  for (auto& s : streams) REQUIRE(driver.synchronize_stream(s).ok());
  CHECK(machine.pending() == 0);
  CHECK(machine.now() <= hour + 1000);
  for (auto& s : streams) REQUIRE(driver.destroy_stream(s).ok());
}

TEST_CASE("late sim events complete late, and waits last as long", "[driver][sim][streams]") {
  constexpr sim_nanoseconds most = 1'000'000;
  sim_machine const machine(
      sim_options{.costs = sim_costs::nothing(), .seed = 7, .jitter = 0, .late_events = most});
  sim_driver const driver = machine.driver();
  test::scoped_stream const a(driver);
  test::scoped_event const event(driver);
  unsigned late = 0;
  for (int i = 0; i < 50; ++i) {
    REQUIRE(driver.record_event(event, a).ok());
    if (!driver.query_event(event).ok()) ++late;
    auto const start = machine.now();
    REQUIRE(driver.synchronize_event(event).ok());
    CHECK(machine.now() - start < most);
    CHECK(driver.query_event(event).ok());
  }
  CHECK(late > 40);
}

TEST_CASE("a sim device's work is marked as a whole, unless some of it is captured",
          "[driver][sim][streams][capture]") {
  sim_machine const machine(
      sim_options{.devices = 2, .backing = sim_backing::address_only, .checks = sim_checks::stream_order});
  sim_marking_driver const driver(machine.driver());
  test::scoped_stream<sim_driver> const a(driver), b(driver), c(driver);
  test::scoped_event<sim_driver> const event(driver);
  REQUIRE(machine.launch(a, 1000).ok());
  REQUIRE(machine.launch(b, 1'000'000).ok());
  SECTION("the work is marked") {
    REQUIRE(driver.record_all(event).ok());
    CHECK(driver.query_event(event).kind == failure::not_ready);
    CHECK_FALSE(machine.is_ordered(b, c));
    REQUIRE(driver.wait_event(c, event).ok());
    CHECK(machine.is_ordered(a, c));
    CHECK(machine.is_ordered(b, c));
    REQUIRE(driver.synchronize_event(event).ok());
    CHECK(machine.pending() == 0);
  }
  SECTION("the call fails and invalidates the capture") {
    REQUIRE(machine.begin_capture(a).ok());
    CHECK(machine.invalidated_captures() == 0);
    CHECK(driver.record_all(event).code == 900);
    CHECK(driver.record_all(event).code == 900);
    CHECK(machine.invalidated_captures() == 1);
    sim_graph graph;
    CHECK(machine.end_capture(a, graph).code == 901);
    CHECK(driver.record_all(event).ok());
    CHECK(machine.captured_calls() == 0);
  }
  SECTION("a capture on another device does not matter") {
    stream_ref other;
    REQUIRE(machine.driver(1).create_stream(other).ok());
    REQUIRE(machine.begin_capture(other).ok());
    CHECK(driver.record_all(event).ok());
    CHECK(driver.synchronize_device().ok());
    sim_graph graph;
    CHECK(machine.end_capture(other, graph).ok());
    CHECK(machine.invalidated_captures() == 0);
    REQUIRE(machine.driver(1).destroy_stream(other).ok());
  }
}
