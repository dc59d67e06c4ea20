// SPDX-License-Identifier: Apache-2.0
// No policy, source or owner makes a call that invalidates a capture while a capture_scope is open: each
// place that waits for the whole device does so behind the capture_gate.
#include "tarn/driver/all_work.hpp"
#include "tarn/driver/capture_gate.hpp"

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "catch.hpp"
#include "child_process.hpp"
#include "contract/memory_access.hpp"
#include "tarn/debug/checked.hpp"
#include "tarn/debug/fenced.hpp"
#include "tarn/debug/poisoned.hpp"
#include "tarn/debug/with_history.hpp"
#include "tarn/policy/fallback_to.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/pool/order/mark_work.hpp"
#include "tarn/raii/graph_memory.hpp"
#include "tarn/sharing/exported_block.hpp"
#include "tarn/sharing/imported_block.hpp"
#include "tarn/sim.hpp"
#if defined(__linux__)
#include "voluntary_switches.hpp"
#endif

using namespace tarn;
using namespace std::chrono_literals;
using tarn_test::test_stream;

namespace {

sim_options one_gib() {
  sim_options o;
  o.capacity = 1_GiB;
  o.taken = 0;
  return o;
}

/// A capture of a stream of its own, in a scope.
template <class Driver>
class capture {
 public:
  capture(sim_machine const& machine, Driver const& driver)
      : machine_(machine), stream_(driver), pool_(basic_pages<Driver>{driver} | pooled{}), memory_(pool_) {
    scope_.emplace(memory_, stream_);
    REQUIRE(machine.begin_capture(stream_).ok());
  }
  capture(capture const&) = delete;
  capture& operator=(capture const&) = delete;
  /// Ends it. Returns whether it was valid.
  bool end() {
    sim_graph graph;
    bool const valid = machine_.end_capture(stream_, graph).ok();
    scope_.reset();
    return valid;
  }

 private:
  sim_machine const& machine_;
  test_stream<Driver> stream_;
  decltype(basic_pages<Driver>{std::declval<Driver const&>()} | pooled{}) pool_;
  graph_memory<decltype(pool_)> memory_;
  std::optional<capture_scope> scope_;
};

/// Allocates a block for work on another stream, which then is destroyed; frees the block while a capture is
/// open.
template <class Driver, class Memory>
void free_on_destroyed_stream(sim_machine const& machine, Driver const& driver, Memory memory) {
  std::optional<test_stream<Driver>> gone(driver);
  void* const p = memory.allocate(*gone, 10'000);
  stream_ref const stream = *gone;
  capture during(machine, driver);
  gone.reset();
  memory.deallocate(stream, p, 10'000);
  CHECK(during.end());
  CHECK(machine.invalidated_captures() == 0);
  CHECK(machine.findings().empty());
}

}  // namespace

TEMPLATE_TEST_CASE("blocks freed on a destroyed stream leave an open capture valid", "[capture_gate]",
                   sim_driver, sim_marking_driver) {
  sim_machine const machine(one_gib());
  TestType const driver(machine.driver());
  auto const pages = basic_pages<TestType>{driver};
  SECTION("pool") {
    free_on_destroyed_stream(machine, driver, pages | pooled{});
  }
  SECTION("fenced") {
    free_on_destroyed_stream(machine, driver, pages | pooled{} | fenced{});
  }
  SECTION("poisoned") {
    free_on_destroyed_stream(machine, driver, pages | pooled{} | poisoned{});
  }
  SECTION("checked") {
    free_on_destroyed_stream(machine, driver, pages | pooled{} | checked{});
  }
}

TEST_CASE("no layer over a source asks for the identity of a stream that is captured without a scope",
          "[captures][memory_pools]") {
  sim_machine const machine(one_gib());
  auto const check = [&](auto memory) {
    test_stream const stream(machine.driver());
    stream_ref const bare = stream_ref::from(stream_ref(stream).handle());
    REQUIRE(machine.begin_capture(stream).ok());
    memory.deallocate(bare, memory.allocate(bare, 1000), 1000);
    sim_graph graph;
    CHECK(machine.end_capture(stream, graph).ok());
  };
  sim_async const source(machine.driver());
  check(source | checked{});
  check(source | with_history{.history = 10});
  check(source | fenced{});
  check(source | poisoned{});
  check(source | fallback_to{sim_managed(machine.driver())});
  check(source | tracked{} | limited{1_MiB});
}

TEST_CASE("a plain block freed on a destroyed stream waits for a capture of another thread",
          "[capture_gate][threads][memory_pools]") {
  sim_machine const machine(one_gib());
  sim_driver const driver = machine.driver();
  std::atomic<bool> is_open{false};
  std::thread other([&] {
    capture during(machine, driver);
    is_open = true;
    std::this_thread::sleep_for(50ms);
    CHECK(during.end());
  });
  while (!is_open) std::this_thread::yield();
  auto const run = [&](auto memory) {
    std::optional<test_stream<sim_driver>> gone(driver);
    void* const p = memory.allocate(*gone, 10'000);
    stream_ref const stream = *gone;
    gone.reset();
    memory.deallocate(stream, p, 10'000);
  };
  run(sim_malloc{driver});
  run(sim_async{driver});
  other.join();
  CHECK(machine.invalidated_captures() == 0);
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("checked frees a block with uses on other streams without invalidating a capture",
          "[capture_gate][checked]") {
  sim_machine const machine(one_gib());
  sim_driver const driver = machine.driver();
  test_stream const a(driver);
  test_stream const b(driver);
  auto memory = sim_pages{driver} | pooled{} | checked{};
  void* const p = memory.allocate(a, 10'000);
  memory.record_stream(p, 10'000, b);
  void* const live = memory.allocate(a, 10'000);
  capture during(machine, driver);
  CHECK(check_all(memory) == 0);
  memory.deallocate(a, p, 10'000);
  CHECK(during.end());
  CHECK(machine.invalidated_captures() == 0);
  CHECK(check_all(memory) == 0);
  memory.deallocate(a, live, 10'000);
}

TEST_CASE("fallback_to gives back after the capture what it could not wait for",
          "[capture_gate][fallback_to]") {
  sim_options options = one_gib();
  options.checks = sim_checks::stream_order;
  sim_machine const machine(options);
  sim_driver const driver = machine.driver();
  test_stream const a(driver);
  test_stream const b(driver);
  bool const frees_more = GENERATE(true, false);
  std::size_t before = 0;
  {
    auto memory = sim_malloc{driver} | fallback_to{sim_managed{driver} | pooled{}};
    before = machine.usage().used;
    void* const p = memory.allocate(a, 1_MiB);
    REQUIRE(machine.launch(b, 5'000'000, {sim_writes(p, 1_MiB)}).ok());
    memory.record_stream(p, 1_MiB, b);
    void* const q = frees_more ? memory.allocate(a, 1_MiB) : nullptr;
    std::size_t const both = machine.usage().used;
    {
      capture during(machine, driver);
      memory.deallocate(a, p, 1_MiB);
      CHECK(during.end());
    }
    CHECK(machine.usage().used >= both);  // not freed before its use has ended
    memory.deallocate(a, q, frees_more ? 1_MiB : 0);
    CHECK((machine.usage().used == before) == frees_more);  // else at its end
  }
  CHECK(machine.invalidated_captures() == 0);
  CHECK(machine.findings().empty());
  CHECK(machine.usage().used == 0);
}

TEST_CASE("an imported block waits for a capture of another thread before it is unmapped",
          "[capture_gate][sharing][threads][pages]") {
  sim_options options = one_gib();
  options.sharing = sim_sharing::descriptors;
  sim_machine const machine(options);
  sim_driver const driver = machine.driver();
  auto memory = sim_pages{driver} | pooled{};
  void* const p = memory.allocate(stream_ref{}, 3_MiB);
  {
    auto const exported = export_block(memory, p, 3_MiB);
    auto imported = std::optional(import_block(sim_pages{driver}, exported.description(),
                                               [&](std::size_t i) { return exported.pages(i); }));
    std::atomic<bool> is_open{false};
    std::thread other([&] {
      capture during(machine, driver);
      is_open = true;
      std::this_thread::sleep_for(50ms);
      CHECK(during.end());
    });
    while (!is_open) std::this_thread::yield();
    imported.reset();
    other.join();
  }
  CHECK(machine.invalidated_captures() == 0);
  memory.deallocate(stream_ref{}, p, 3_MiB);
  memory.empty_cache();
  CHECK(machine.leaks().handles == 0);
}

namespace {
/// Finds out whether a capture could begin between the two calls that identify a stream.
class probed_driver : public sim_driver {
 public:
  explicit probed_driver(sim_driver const& driver) : sim_driver(driver) {}
  status is_capturing(stream_ref stream, bool& yes) const noexcept {
    bool const begins = detail::capture_gate::try_begin_capture();
    if (begins) detail::capture_gate::end_capture();
    begun += begins && stream.id() == stream_ref::unknown_id ? 1 : 0;
    return sim_driver::is_capturing(stream, yes);
  }
  inline static int begun = 0;
};
}  // namespace

TEST_CASE("no capture begins while mark_work asks for a stream's identity, which would invalidate it",
          "[capture_gate][mark_work]") {
  sim_machine const machine(one_gib());
  probed_driver const driver(machine.driver());
  test_stream const s(machine.driver());
  event_handle event = nullptr;
  REQUIRE(driver.create_event(event).ok());
  stream_id id = 0;
  REQUIRE(driver.identify(s, id).ok());
  probed_driver::begun = 0;
  CHECK(detail::mark_work(driver, driver.device(), event, stream_ref::from(stream_ref(s).handle(), id)) ==
        detail::mark_result::marked);
  CHECK(probed_driver::begun == 0);
  REQUIRE(driver.destroy_event(event).ok());
}

#if defined(__linux__)
TEST_CASE("wait_past_captures does not wait for a capture of its own thread", "[capture_gate]") {
  sim_machine const machine(one_gib());
  sim_driver const driver = machine.driver();
  long const before = tarn_test::voluntary_switches();
  {
    capture during(machine, driver);
    CHECK(detail::is_capture_error(detail::wait_past_captures(driver)));
    CHECK(detail::is_capture_error(detail::order_behind_lost(driver, stream_ref{})));
    CHECK(during.end());
  }
  CHECK(detail::wait_past_captures(driver).ok());
  CHECK(tarn_test::voluntary_switches() - before < 1000);  // of 90,000 sleeps until it gives up
  CHECK(machine.invalidated_captures() == 0);
}
#endif

TEST_CASE("a forked child has the captures of its own thread open, and none of other threads", "[captures]") {
  sim_machine const machine{one_gib()};
  auto pool = sim_pages(machine.driver()) | pooled{};
  std::atomic<int> step{0};
  std::thread other([&] {
    test_stream<sim_driver> const s{machine.driver()};
    graph_memory memory{pool};
    {
      capture_scope const scope(memory, s);
      step = 1;
      while (step != 2) std::this_thread::yield();
    }
  });
  while (step != 1) std::this_thread::yield();
  CHECK(detail::capture_gate::has_captures());
  CHECK(0 == child_of([] { return !detail::capture_gate::has_captures(); }));
  {
    test_stream<sim_driver> const s{machine.driver()};
    graph_memory memory{pool};
    capture_scope const scope(memory, s);
    CHECK(0 == child_of([] { return detail::capture_gate::has_captures(); }));
  }
  step = 2;
  other.join();
  CHECK_FALSE(detail::capture_gate::has_captures());
}

TEST_CASE("the current device's per-thread stream is recognised where it joins a capture over host memory",
          "[raii][captures]") {
  sim_machine const machine{{.devices = 2}};
  sim_driver const other = machine.driver(device_id{1});
  basic_stream<sim_driver> const stream{other};
  auto pool = basic_pinned<sim_driver>(machine.driver(device_id{0})) | pooled{};
  graph_memory graphs(pool);
  auto const per_thread = stream_ref::from(reinterpret_cast<void*>(std::uintptr_t{2}));
  event_handle event = nullptr;
  REQUIRE(other.create_event(event).ok());
  REQUIRE(sim_driver::set_current_device(device_id{1}).ok());
  void* p = nullptr;
  {
    capture_scope const scope(graphs, stream);
    sim_graph graph;
    REQUIRE(other.begin_capture(stream).ok());
    REQUIRE(other.record_event(event, stream).ok());
    REQUIRE(other.wait_event(per_thread, event).ok());
    p = pool.allocate(per_thread, 4096);
    REQUIRE(other.launch(per_thread, 1000, {sim_writes(p, 4096)}).ok());
    REQUIRE(other.record_event(event, per_thread).ok());
    REQUIRE(other.wait_event(stream, event).ok());
    REQUIRE(other.end_capture(stream, graph).ok());
  }
  CHECK(graphs.state().allocated == 4096);
  pool.deallocate(per_thread, p, 4096);
  REQUIRE(sim_driver::set_current_device(device_id{0}).ok());
  REQUIRE(other.destroy_event(event).ok());
}
