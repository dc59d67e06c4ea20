// SPDX-License-Identifier: Apache-2.0
// What captures of the simulated GPU record: dependencies by events, branches, and the errors of CUDA.

#include "tarn/driver/sim/sim_capture.hpp"

#include <cstddef>
#include <cstdint>
#include <string>

#include "catch.hpp"
#include "driver/contract.hpp"
#include "tarn/driver/sim/sim_driver.hpp"

using namespace tarn;
using test::scoped_event;
using test::scoped_stream;

namespace {

struct captured {
  sim_machine machine{sim_options{.devices = 2, .costs = sim_costs::nothing()}};
  sim_driver driver = machine.driver();
  scoped_stream<sim_driver> a{driver}, b{driver};
  scoped_event<sim_driver> event{driver}, join{driver};
  sim_graph graph;

  void run(stream_ref s) { REQUIRE(machine.launch(s, 100).ok()); }
  /// Makes later work on `second` depend on the work so far on `first`.
  void order(stream_ref first, stream_ref second, event_handle by) {
    REQUIRE(driver.record_event(by, first).ok());
    REQUIRE(driver.wait_event(second, by).ok());
  }
  bool is_capturing(stream_ref s) const {
    bool yes = false;
    REQUIRE(driver.is_capturing(s, yes).ok());
    return yes;
  }
};

}  // namespace

TEST_CASE("sim_capture orders nodes by leaves and counts branches", "[driver][sim][capture]") {
  detail::sim_capture capture(7);
  detail::sim_leaves a, b;
  std::size_t const branches = GENERATE(1u, 2u, 3u);
  capture.add_work({}, a);
  CHECK(a == detail::sim_leaves{0});
  // Forks that are joined again use the same branches again.
  for (int i = 0; i < 100; ++i) {
    detail::sim_leaves others[2] = {a, a};
    capture.add_work({}, a);
    for (std::size_t o = 0; o + 1 < branches; ++o) capture.add_work({}, others[o]);
    CHECK(capture.is_joined(a) == (branches == 1));
    for (std::size_t o = 0; o + 1 < branches; ++o) detail::join(a, others[o]);
    CHECK(capture.is_joined(a));
    capture.add_work({}, a);
  }
  CHECK(capture.branches() == branches);
  CHECK(capture.works() == 1 + 100 * (branches + 1));
  CHECK_FALSE(capture.is_joined(b));
}

TEST_CASE("a sim capture with a fork ends only on its origin and only if the fork is joined",
          "[driver][sim][capture]") {
  captured t;
  REQUIRE(t.machine.begin_capture(t.a).ok());
  t.run(t.a);
  t.order(t.a, t.b, t.event);
  SECTION("joined") {
    t.run(t.b);
    t.order(t.b, t.a, t.join);
    CHECK(t.machine.end_capture(t.a, t.graph).ok());
    CHECK(t.graph.size() == 2);
  }
  SECTION("joined through another stream") {
    t.run(t.b);
    scoped_stream<sim_driver> const c(t.driver);
    t.order(t.b, c, t.join);
    t.run(c);
    t.order(c, t.a, t.join);
    CHECK(t.machine.end_capture(t.a, t.graph).ok());
  }
  SECTION("a fork without work needs no join") {
    CHECK(t.machine.end_capture(t.a, t.graph).ok());
  }
  SECTION("unjoined") {
    t.run(t.b);
    SECTION("never") {}
    SECTION("joined before its last work") {
      t.order(t.b, t.a, t.join);
      t.run(t.b);
    }
    SECTION("an event without a wait") {
      REQUIRE(t.driver.record_event(t.join, t.b).ok());
    }
    status const s = t.machine.end_capture(t.a, t.graph);
    CHECK(s.code == 904);
    CHECK(std::string(s.name) == "cudaErrorStreamCaptureUnjoined");
    CHECK(t.graph.is_empty());
    CHECK(t.machine.invalidated_captures() == 0);
  }
  CHECK_FALSE(t.is_capturing(t.a));
  CHECK_FALSE(t.is_capturing(t.b));
  t.run(t.b);
}

TEST_CASE("each call that invalidates a sim capture is counted once per capture", "[driver][sim][capture]") {
  captured t;
  REQUIRE(t.machine.begin_capture(t.a).ok());
  REQUIRE(t.driver.record_event(t.event, t.a).ok());
  SECTION("query") {
    CHECK(t.driver.query_event(t.event).code == 907);
    CHECK(t.driver.query_event(t.event).code == 907);
  }
  SECTION("synchronize_event") {
    CHECK(t.driver.synchronize_event(t.event).code == 907);
  }
  SECTION("synchronize_stream") {
    CHECK(t.driver.synchronize_stream(t.a).code == 900);
  }
  SECTION("synchronize_device") {
    CHECK(t.driver.synchronize_device().code == 900);
  }
  CHECK(t.machine.invalidated_captures() == 1);
  CHECK(t.machine.end_capture(t.a, t.graph).code == 901);
  CHECK(t.driver.query_event(t.event).code == 907);  // the capture is over
  CHECK(t.machine.invalidated_captures() == 1);
}

TEST_CASE("destroying the origin of a sim capture ends the capture", "[driver][sim][capture]") {
  captured t;
  stream_ref origin;
  REQUIRE(t.machine.create_blocking_stream(0, origin).ok());
  REQUIRE(t.machine.begin_capture(origin).ok());
  t.order(origin, t.b, t.event);
  CHECK(t.is_capturing(stream_ref{}));  // work there would invalidate it
  REQUIRE(t.driver.destroy_stream(origin).ok());
  CHECK(t.machine.invalidated_captures() == 1);
  CHECK_FALSE(t.is_capturing(t.b));
  CHECK_FALSE(t.is_capturing(stream_ref{}));
  t.run(t.b);
  CHECK(t.driver.wait_event(t.a, t.event).code == 907);
  // A capture that begins later is not confused with it.
  REQUIRE(t.machine.begin_capture(t.a).ok());
  CHECK(t.driver.synchronize_device().code == 900);
  CHECK(t.machine.end_capture(t.a, t.graph).code == 901);
  CHECK(t.driver.synchronize_device().ok());
}

TEST_CASE("destroying another stream of a sim capture leaves the capture as it is",
          "[driver][sim][capture]") {
  captured t;
  bool const is_joined = GENERATE(true, false);
  stream_ref other;
  REQUIRE(t.machine.create_blocking_stream(0, other).ok());
  REQUIRE(t.machine.begin_capture(t.a).ok());
  t.order(t.a, other, t.event);
  t.run(other);
  if (is_joined) t.order(other, t.a, t.join);
  REQUIRE(t.driver.destroy_stream(other).ok());
  CHECK(t.machine.invalidated_captures() == 0);
  CHECK(t.machine.end_capture(t.a, t.graph).code == (is_joined ? 0 : 904));
  CHECK_FALSE(t.is_capturing(t.a));
}

TEST_CASE("a sim graph that is launched on a captured stream becomes part of the capture",
          "[driver][sim][capture]") {
  captured t;
  REQUIRE(t.machine.begin_capture(t.a).ok());
  t.run(t.a);
  t.order(t.a, t.b, t.event);
  t.run(t.a);
  t.run(t.b);
  t.order(t.b, t.a, t.join);
  REQUIRE(t.machine.end_capture(t.a, t.graph).ok());
  sim_graph outer;
  REQUIRE(t.machine.begin_capture(t.a).ok());
  t.run(t.a);
  REQUIRE(t.machine.launch(t.a, t.graph).ok());
  t.run(t.a);
  REQUIRE(t.machine.end_capture(t.a, outer).ok());
  CHECK(outer.size() == 5);
  auto const start = t.machine.now();
  REQUIRE(t.machine.launch(t.b, outer).ok());
  REQUIRE(t.driver.synchronize_stream(t.b).ok());
  CHECK(t.machine.now() - start == 400);
}

TEST_CASE("sim captures begin and end on the default streams of any device", "[driver][sim][capture]") {
  captured t;
  sim_driver const second = t.machine.driver(1);
  auto const own = stream_ref::from(reinterpret_cast<void*>(std::uintptr_t{2}));
  REQUIRE(second.begin_capture(own).ok());
  CHECK_FALSE(t.is_capturing(own));
  CHECK(t.machine.end_capture(own, t.graph).code == 903);  // device 0's
  REQUIRE(second.launch(own, 100).ok());
  REQUIRE(second.end_capture(own, t.graph).ok());
  CHECK(t.graph.size() == 1);
  REQUIRE(second.launch(own, t.graph).ok());
  REQUIRE(t.driver.synchronize_device().ok());
  CHECK(t.machine.pending() == 1);
  REQUIRE(second.synchronize_device().ok());
  CHECK(t.machine.pending() == 0);
  CHECK(t.machine.driver(2).begin_capture(own).code == 101);
}
