// SPDX-License-Identifier: Apache-2.0
// Replays of graphs on the simulated GPU: when their nodes run, and what the order checker knows about them.

#include "tarn/driver/sim/sim_replay.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdio>
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

constexpr std::size_t half = 64_KiB;

/// A checked machine, where calls take no time, with two blocks' worth of bytes at p and q.
struct replayed {
  explicit replayed(sim_options o = {})
      : machine([&] {
          o.devices = 2;
          o.costs = sim_costs::nothing();
          if (o.checks == sim_checks::off) o.checks = sim_checks::stream_order;
          return o;
        }()) {
    REQUIRE(driver.malloc_device(2 * half, p).ok());
    q = static_cast<char*>(p) + half;
  }
  sim_machine machine;
  sim_driver driver = machine.driver();
  void* p = nullptr;
  void* q = nullptr;
  scoped_stream<sim_driver> a{driver}, b{driver}, c{driver};
  scoped_event<sim_driver> event{driver}, join{driver};
  sim_graph graph;
  std::string log;

  void run(stream_ref s, sim_nanoseconds duration, char name) {
    REQUIRE(machine.launch(s, duration, [this, name] { log += name; }).ok());
  }
  void write(stream_ref s, void* at) { REQUIRE(machine.launch(s, 100, {sim_writes(at, half)}).ok()); }
  void give(stream_ref s, void* at) { machine.allocated(at, half, s); }
  void take(stream_ref s, void* at) { machine.freed(at, half, s); }
  void order(stream_ref first, stream_ref second, event_handle by) { order_on(driver, first, second, by); }
  static void order_on(sim_driver const& d, stream_ref first, stream_ref second, event_handle by) {
    REQUIRE(d.record_event(by, first).ok());
    REQUIRE(d.wait_event(second, by).ok());
  }
  void begin() { REQUIRE(machine.begin_capture(a).ok()); }
  void end() { REQUIRE(machine.end_capture(a, graph).ok()); }
  void fork() { order(a, b, event); }
  void merge() { order(b, a, join); }
  void replay(stream_ref s) { REQUIRE(machine.launch(s, graph).ok()); }
  std::size_t found() const {
    for (auto const& text : machine.findings()) UNSCOPED_INFO(text);
    return machine.findings().size();
  }
  bool found_one(std::string const& part, void* at) const {
    char where[32];
    std::snprintf(where, sizeof where, "0x%llx",
                  static_cast<unsigned long long>(reinterpret_cast<std::uintptr_t>(at)));
    auto const all = machine.findings();
    for (auto const& text : all) UNSCOPED_INFO(text);
    return all.size() == 1 && all[0].find(part) != std::string::npos &&
           all[0].find(where) != std::string::npos;
  }
};

}  // namespace

TEST_CASE("a sim graph's branches run at the same time and its joins wait for all", "[driver][sim][replay]") {
  replayed t;
  t.begin();
  t.run(t.a, 10, '1');
  t.fork();
  t.run(t.a, 300, 'x');
  t.run(t.b, 100, 'y');
  t.run(t.b, 100, 'z');
  t.merge();
  t.run(t.a, 10, '2');
  t.end();
  t.run(t.c, 50, '0');  // the launch waits for earlier work on its stream
  auto const start = t.machine.now();
  t.replay(t.c);
  t.run(t.c, 5, '3');
  CHECK(t.machine.pending() == 7);
  REQUIRE(t.driver.synchronize_stream(t.a).ok());  // the capture's streams have nothing to do with the replay
  CHECK(t.machine.now() == start);
  REQUIRE(t.driver.synchronize_stream(t.c).ok());
  CHECK(t.log == "01yzx23");
  CHECK(t.machine.now() - start == 50 + 10 + 300 + 10 + 5);
}

TEST_CASE("work after a sim graph waits for its longest branch, whichever was captured last",
          "[driver][sim][replay]") {
  replayed t;
  bool const longest_last = GENERATE(false, true);
  t.begin();
  t.fork();
  t.run(t.a, longest_last ? 10 : 500, 'x');
  t.run(t.b, longest_last ? 500 : 10, 'y');
  t.merge();
  t.end();
  auto const start = t.machine.now();
  t.replay(t.c);
  REQUIRE(t.driver.synchronize_stream(t.c).ok());
  CHECK(t.machine.now() - start == 500);
  CHECK(t.log.size() == 2);
}

TEST_CASE("a wait for the second sim device covers only that device's nodes of a replay",
          "[driver][sim][replay]") {
  replayed t;
  sim_driver const second = t.machine.driver(1);
  scoped_stream<sim_driver> const far(second);
  scoped_event<sim_driver> const back(second);
  t.begin();
  t.run(t.a, 10, 'x');
  t.order(t.a, far, t.event);
  t.run(far, 10, 'y');
  t.run(t.a, 1000, 'z');
  replayed::order_on(second, far, t.a, back);
  t.end();
  t.replay(t.a);
  REQUIRE(second.synchronize_device().ok());
  CHECK(t.log == "xy");
  CHECK_FALSE(t.machine.is_ordered(t.a, t.c));
  REQUIRE(t.driver.synchronize_device().ok());
  CHECK(t.log == "xyz");
  CHECK(t.machine.is_ordered(t.a, t.c));
}

TEST_CASE("launches of one sim graph run one after the other on any stream", "[driver][sim][replay]") {
  replayed t;
  t.begin();
  t.run(t.a, 100, 'x');
  t.run(t.a, 100, 'y');
  t.end();
  sim_graph const copy = t.graph;
  t.replay(t.a);
  REQUIRE(t.machine.launch(t.b, copy).ok());
  CHECK(t.machine.is_ordered(t.a, t.b));
  auto const start = t.machine.now();
  REQUIRE(t.driver.synchronize_stream(t.b).ok());
  CHECK(t.log == "xyxy");
  CHECK(t.machine.now() - start == 400);
}

TEST_CASE("a sim device's waits and events cover all branches of a replay", "[driver][sim][replay]") {
  replayed t;
  t.begin();
  t.fork();
  t.run(t.b, 1000, 'y');
  t.merge();
  t.end();
  t.replay(t.a);
  SECTION("synchronize_device") {
    REQUIRE(t.driver.synchronize_device().ok());
  }
  SECTION("record_all") {
    sim_marking_driver const marking(t.driver);
    REQUIRE(marking.record_all(t.event).ok());
    REQUIRE(t.driver.wait_event(t.c, t.event).ok());
    CHECK(t.machine.is_ordered(t.a, t.c));
    REQUIRE(t.driver.synchronize_event(t.event).ok());
  }
  SECTION("an event on the stream of the launch") {
    REQUIRE(t.driver.record_event(t.event, t.a).ok());
    t.replay(t.a);
    REQUIRE(t.driver.wait_event(t.c, t.event).ok());
    CHECK_FALSE(t.machine.is_ordered(t.a, t.c));  // the second launch is not covered
    REQUIRE(t.driver.synchronize_event(t.event).ok());
    CHECK(t.machine.pending() == 1);
    return;
  }
  SECTION("destroying the stream of the launch") {
    stream_ref s;
    REQUIRE(t.driver.create_stream(s).ok());
    t.replay(s);
    REQUIRE(t.driver.destroy_stream(s).ok());
    REQUIRE(t.driver.synchronize_device().ok());
  }
  CHECK(t.machine.pending() == 0);
}

TEST_CASE("a replay on the legacy sim stream waits for blocking streams, and they for it",
          "[driver][sim][replay]") {
  replayed t;
  stream_ref blocking;
  REQUIRE(t.machine.create_blocking_stream(0, blocking).ok());
  t.begin();
  t.fork();
  t.run(t.b, 100, 'y');
  t.merge();
  t.end();
  t.run(blocking, 100, '1');
  REQUIRE(t.machine.launch({}, t.graph).ok());
  t.run(blocking, 100, '2');
  REQUIRE(t.driver.synchronize_stream(blocking).ok());
  CHECK(t.log == "1y2");
  REQUIRE(t.driver.destroy_stream(blocking).ok());
}

TEST_CASE("1,000 replays between eager steps are deterministic, clean and keep one agent per branch",
          "[driver][sim][replay]") {
  auto const once = [] {
    replayed t(sim_options{.seed = 5, .jitter = 1000});
    t.begin();
    t.give(t.a, t.p);
    t.write(t.a, t.p);
    t.fork();
    t.run(t.b, 100, 'y');
    t.run(t.a, 100, 'x');
    t.merge();
    t.take(t.a, t.p);
    t.give(t.a, t.p);
    t.write(t.a, t.p);
    t.take(t.a, t.p);
    t.end();
    for (int i = 0; i < 1000; ++i) {
      stream_ref const s = i % 3 == 0 ? stream_ref(t.a) : i % 3 == 1 ? stream_ref(t.b) : stream_ref(t.c);
      t.replay(s);
      t.give(s, t.q);
      t.write(s, t.q);
      t.take(s, t.q);
      t.order(s, i % 3 == 0 ? t.b : i % 3 == 1 ? t.c : t.a, t.event);
    }
    REQUIRE(t.driver.synchronize_device().ok());
    CHECK(t.found() == 0);
    CHECK(t.log.size() == 2000);
    return t.log;
  };
  std::string const log = once();
  CHECK(log == once());
  CHECK(log.find("xxy") != std::string::npos);  // the branches end in either order
  CHECK(log.find("xyy") != std::string::npos);
}

TEST_CASE("sim_order checks the same bytes of two blocks of a capture by the graph's dependencies",
          "[driver][sim][replay][order]") {
  replayed t;
  t.begin();
  t.give(t.a, t.p);
  t.write(t.a, t.p);
  SECTION("on one branch") {
    t.take(t.a, t.p);
    t.give(t.a, t.p);
    t.write(t.a, t.p);
    t.take(t.a, t.p);
    t.end();
    for (int i = 0; i < 3; ++i) t.replay(t.a);
    t.replay(t.b);
    CHECK(t.found() == 0);
  }
  SECTION("on two ordered branches") {
    t.take(t.a, t.p);
    t.fork();
    t.give(t.b, t.p);
    t.run(t.a, 100, 'x');
    t.write(t.b, t.p);
    t.take(t.b, t.p);
    t.merge();
    t.end();
    for (int i = 0; i < 3; ++i) t.replay(t.a);
    CHECK(t.found() == 0);
  }
  SECTION("on two unordered branches") {
    t.fork();
    t.write(t.a, t.p);
    t.take(t.a, t.p);
    t.give(t.b, t.p);
    t.write(t.b, t.p);
    t.take(t.b, t.p);
    t.merge();
    t.end();
    CHECK(t.found() == 0);
    t.replay(t.a);
    CHECK(t.found_one("write not ordered after an earlier owner's write", t.p));
    CHECK(t.machine.findings()[0].find("by branch ") != std::string::npos);
  }
  SECTION("used after it was freed") {
    t.take(t.a, t.p);
    t.write(t.a, t.p);
    t.end();
    t.replay(t.a);
    CHECK(t.found_one("write to freed bytes", t.p));
  }
}

TEST_CASE("sim_order checks replays against eager work", "[driver][sim][replay][order]") {
  replayed t;
  SECTION("a graph gets bytes that eager work still uses") {
    t.give(t.c, t.p);
    t.write(t.c, t.p);
    t.take(t.c, t.p);
    t.begin();
    t.give(t.a, t.p);
    t.write(t.a, t.p);
    t.take(t.a, t.p);
    t.end();
    SECTION("unordered") {
      t.replay(t.a);
      CHECK(t.found_one("write not ordered after an earlier owner's write", t.p));
    }
    SECTION("ordered by an event") {
      t.order(t.c, t.a, t.event);
      t.replay(t.a);
      CHECK(t.found() == 0);
    }
  }
  SECTION("eager work gets bytes that a branch uses") {
    t.give(t.a, t.p);
    t.begin();
    t.fork();
    t.write(t.b, t.p);
    t.merge();
    t.end();
    t.replay(t.a);
    t.take(t.a, t.p);
    bool const ordered = GENERATE(false, true);
    if (ordered) t.order(t.a, t.c, t.event);
    t.give(t.c, t.p);
    t.write(t.c, t.p);
    if (ordered) {
      CHECK(t.found() == 0);
    } else {
      CHECK(t.found_one("write not ordered after an earlier owner's write", t.p));
    }
  }
  SECTION("a root of a branch is ordered after the launch's stream, and only after that") {
    t.begin();
    t.fork();
    t.run(t.a, 100, 'x');
    t.give(t.b, t.p);
    t.write(t.b, t.p);
    t.take(t.b, t.p);
    t.merge();
    t.end();
    t.machine.graph_released(t.p, half);
    t.give(t.c, t.p);
    t.write(t.c, t.p);
    t.take(t.c, t.p);
    t.machine.graph_holds(t.p, half);
    sim_graph again;
    t.begin();
    REQUIRE(t.machine.launch(t.a, t.graph).ok());
    REQUIRE(t.machine.end_capture(t.a, again).ok());
    bool const ordered = GENERATE(false, true);
    REQUIRE(t.machine.launch(ordered ? t.c : t.a, again).ok());
    CHECK(t.found() == (ordered ? 0 : 1));
  }
}

TEST_CASE("sim_order reports replays on bytes that got another owner", "[driver][sim][replay][order]") {
  replayed t;
  t.give(t.a, t.p);
  t.begin();
  t.write(t.a, t.p);
  t.end();
  t.replay(t.a);
  CHECK(t.found() == 0);
  t.take(t.a, t.p);
  t.give(t.a, t.p);  // ordered, but another block
  t.replay(t.a);
  CHECK(t.found_one("write by a replay to bytes that got another owner after the capture", t.p));
}

TEST_CASE("sim_order lets a graph keep its bytes between replays until they are released",
          "[driver][sim][replay][order]") {
  replayed t;
  t.give(t.a, t.q);  // an eager block that the capture frees
  t.begin();
  t.write(t.a, t.q);
  t.give(t.a, t.p);
  t.write(t.a, t.p);
  t.take(t.a, t.q);
  bool const frees = GENERATE(false, true);
  if (frees) t.take(t.a, t.p);
  t.end();
  t.replay(t.a);
  if (!frees) {
    t.write(t.a, t.p);  // the graph's output
    t.take(t.a, t.p);
  }
  t.replay(t.a);
  t.replay(t.b);
  CHECK(t.found() == 0);
  void* const at = GENERATE(false, true) ? t.p : t.q;
  SECTION("eager work writes to it") {
    t.write(t.b, at);
    CHECK(t.found_one("write to freed bytes", at));
  }
  SECTION("eager work gets it, and then it is replayed") {
    t.order(t.b, t.a, t.event);
    t.give(t.a, at);
    t.write(t.a, at);
    CHECK(t.found() == 0);
    t.replay(t.a);
    CHECK(t.found() != 0);
  }
  SECTION("it is given to eager work although the memory of graphs holds it") {
    t.machine.graph_holds(at, half);
    t.give(t.b, at);
    CHECK(t.found_one("bytes that a graph holds are allocated outside its captures", at));
  }
  SECTION("another graph of the same memory gets it") {
    sim_graph other;
    t.begin();
    t.give(t.a, at);
    t.write(t.a, at);
    t.take(t.a, at);
    REQUIRE(t.machine.end_capture(t.a, other).ok());
    t.order(t.b, t.a, t.event);
    REQUIRE(t.machine.launch(t.a, other).ok());
    t.replay(t.a);
    CHECK(t.found() == 0);
    REQUIRE(t.machine.launch(t.c, other).ok());  // not ordered after the other graph
    CHECK(t.found() == 1);
  }
  SECTION("the memory of another graph takes it") {
    t.machine.graph_holds(at, half, &t);
    t.machine.graph_holds(at, half, &t);
    CHECK(t.found() == 0);
    t.machine.graph_holds(at, half, &at);
    CHECK(t.found_one("bytes that the memory of two graphs holds", at));
  }
  SECTION("it is released") {
    t.machine.graph_released(at, half);
    t.order(t.b, t.a, t.event);
    SECTION("and given to eager work") {
      t.give(t.a, at);
      t.write(t.a, at);
      t.take(t.a, at);
      CHECK(t.found() == 0);
    }
    SECTION("and replayed") {
      t.replay(t.a);
      CHECK(t.found() != 0);
    }
    SECTION("and held again by another graph, when the first is replayed") {
      t.machine.graph_holds(at, half);
      t.replay(t.a);
      CHECK(t.found() != 0);
    }
  }
}

TEST_CASE("sim_machine::graph_holds_again leaves memory alone that eager work has been given",
          "[driver][sim][replay]") {
  replayed t;
  t.give(t.a, t.p);
  t.machine.graph_holds_again(t.p, half);
  t.take(t.a, t.p);
  t.give(t.a, t.p);
  CHECK(t.found() == 0);
  t.take(t.a, t.p);
  t.machine.graph_holds_again(t.q, half);
  t.give(t.a, t.q);
  CHECK(t.found_one("bytes that a graph holds are allocated outside its captures", t.q));
}

TEST_CASE("a sim graph is not launched on a broken device, nor on another machine", "[driver][sim][replay]") {
  replayed t;
  t.begin();
  t.run(t.a, 100, 'x');
  t.end();
  SECTION("broken device") {
    t.machine.break_device(0);
    CHECK(t.machine.launch(t.a, t.graph).code == 700);
    t.machine.repair();
    t.replay(t.a);
    CHECK(t.machine.pending() == 1);
  }
  SECTION("another machine") {
    replayed other;
    CHECK(other.machine.launch(other.a, t.graph).code == 1);
    CHECK(other.machine.launch(other.a, sim_graph{}).code == 1);
  }
  SECTION("an illegal access breaks the device of its branch") {
    scoped_stream<sim_driver> const far(t.machine.driver(1));
    sim_graph bad;
    t.begin();
    t.order(t.a, far, t.event);
    REQUIRE(t.machine.launch(far, 10, {sim_writes(reinterpret_cast<void*>(std::uintptr_t{64}), 1)}).ok());
    scoped_event<sim_driver> const back(t.machine.driver(1));
    t.order_on(t.machine.driver(1), far, t.a, back);
    REQUIRE(t.machine.end_capture(t.a, bad).ok());
    REQUIRE(t.machine.launch(t.a, bad).ok());
    CHECK(t.machine.driver(1).synchronize_device().code == 700);
    CHECK(t.driver.synchronize_device().ok());
    t.machine.repair();
  }
}

TEST_CASE("a sim graph that is dropped after its launch still runs", "[driver][sim][replay]") {
  replayed t;
  t.begin();
  t.fork();
  t.run(t.a, 100, 'x');
  t.run(t.b, 200, 'y');
  t.merge();
  t.end();
  t.replay(t.c);
  t.graph = {};
  REQUIRE(t.driver.synchronize_stream(t.c).ok());
  CHECK(t.log == "xy");
}

TEST_CASE("default sim streams of the second device launch graphs", "[driver][sim][replay]") {
  replayed t;
  t.begin();
  t.run(t.a, 100, 'x');
  t.end();
  REQUIRE(t.machine.driver(1).launch(stream_ref{}, t.graph).ok());
  auto const start = t.machine.now();
  REQUIRE(t.driver.synchronize_stream(stream_ref{}).ok());
  CHECK(t.machine.now() == start);
  REQUIRE(t.machine.driver(1).synchronize_stream(stream_ref{}).ok());
  CHECK(t.log == "x");
  CHECK(t.machine.driver(2).launch(stream_ref{}, t.graph).code == 101);
}

TEST_CASE("a replay knows what the thread that launches it knows", "[driver][sim][replay][threads]") {
  replayed t(sim_options{.checks = sim_checks::each_thread});
  t.begin();
  t.give(t.a, t.p);
  t.fork();
  t.write(t.b, t.p);
  t.merge();
  t.take(t.a, t.p);
  t.end();
  t.machine.graph_released(t.p, half);
  t.give(t.c, t.p);
  t.write(t.c, t.p);
  t.take(t.c, t.p);
  t.machine.graph_holds(t.p, half);
  sim_graph graph;
  t.begin();
  REQUIRE(t.machine.launch(t.a, t.graph).ok());
  REQUIRE(t.machine.end_capture(t.a, graph).ok());
  REQUIRE(t.driver.synchronize_stream(t.c).ok());
  bool const told = GENERATE(false, true);
  if (told) t.machine.publish(&t);
  status launched;
  std::thread([&] {
    if (told) t.machine.observe(&t);
    launched = t.machine.launch(t.a, graph);
  }).join();
  CHECK(launched.ok());
  CHECK(t.found() == (told ? 0 : 1));
}

TEST_CASE("threads capture and replay their own sim graphs at the same time",
          "[driver][sim][replay][threads]") {
  replayed t;
  std::vector<std::thread> threads;
  std::vector<int> ran(4), succeeded(4);
  for (int n = 0; n < 4; ++n) {
    threads.emplace_back([&, n] {
      stream_ref s, forked;
      event_handle e = nullptr;
      status all = t.driver.create_stream(s);
      auto const need = [&](status const& x) {
        if (all.ok()) all = x;
      };
      need(t.driver.create_stream(forked));
      need(t.driver.create_event(e));
      sim_graph graph;
      need(t.machine.begin_capture(s));
      need(t.driver.record_event(e, s));
      need(t.driver.wait_event(forked, e));
      need(t.machine.launch(forked, 10, [&ran, n] { ++ran[static_cast<std::size_t>(n)]; }));
      need(t.driver.record_event(e, forked));
      need(t.driver.wait_event(s, e));
      need(t.machine.end_capture(s, graph));
      for (int i = 0; i < 100; ++i) need(t.machine.launch(s, graph));
      need(t.driver.synchronize_stream(s));
      need(t.driver.destroy_event(e));
      need(t.driver.destroy_stream(s));
      need(t.driver.destroy_stream(forked));
      succeeded[static_cast<std::size_t>(n)] = all.ok() ? 1 : 0;
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(succeeded == std::vector<int>(4, 1));
  CHECK(ran == std::vector<int>(4, 100));
  CHECK(t.found() == 0);
  CHECK(t.machine.invalidated_captures() == 0);
}
