// SPDX-License-Identifier: Apache-2.0
// Captures without a scope, which are not announced to a pool: what is freed on a captured stream is kept,
// since the graph may be replayed. By default the pool asks the driver at each deallocation on a stream of
// known identity.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "tarn/diagnostics.hpp"
#include "tarn/sim.hpp"
#include "tarn/tarn.hpp"

namespace {

using namespace tarn;

template <class Driver>
struct device_of {
  sim_machine machine{[] {
    sim_options o;
    o.checks = sim_checks::stream_order;
    return o;
  }()};
  Driver driver{machine.driver()};
  using stream_type = basic_stream<Driver>;
  auto pages() const { return basic_pages<Driver>(driver); }
  std::uint64_t asked() const { return machine.calls()[driver_call::is_capturing]; }
  void clean() const {
    for (auto const& text : machine.findings()) FAIL_CHECK(text);
    CHECK(machine.invalidated_captures() == 0);
  }
};
using device = device_of<sim_marking_driver>;

/// A capture that is not announced to any pool.
class capture {
 public:
  template <class Device>
  capture(Device const& d, stream_ref s) : machine_(d.machine), stream_(s) {
    REQUIRE(machine_.begin_capture(s).ok());
  }
  capture(capture const&) = delete;
  capture& operator=(capture const&) = delete;
  ~capture() { CHECK(machine_.end_capture(stream_, graph_).ok()); }

 private:
  sim_machine const& machine_;
  stream_ref stream_;
  sim_graph graph_;
};

/// Fails if any of the blocks is handed out again, for a stream or for all, by this thread or another one.
template <class Memory>
void require_kept(Memory& memory, std::vector<void*> const& blocks, std::size_t bytes, stream_ref a,
                  stream_ref b) {
  auto const look = [&] {
    std::vector<std::pair<void*, stream_ref>> held;
    for (int i = 0; i < 40; ++i) {
      stream_ref const s = i % 2 == 0 ? a : b;
      held.emplace_back(i % 3 == 0 ? memory.allocate_sync(bytes) : memory.allocate(s, bytes), s);
      for (void* const p : blocks) CHECK(held.back().first != p);
    }
    for (auto const& [p, s] : held) memory.deallocate(s, p, bytes);
  };
  look();
  std::thread(look).join();
  memory.empty_cache();
  look();
  for (void* const p : blocks) CHECK(memory.owns(p));
}

}  // namespace

TEMPLATE_TEST_CASE("a block that a capture without a scope frees is handed to nothing until the pool ends",
                   "[captures_without_scope]", sim_marking_driver, sim_driver) {
  device_of<TestType> d;
  typename device_of<TestType>::stream_type a{d.driver}, b{d.driver};
  std::size_t const bytes = GENERATE(as<std::size_t>{}, 256, 4096, 100'000, std::size_t{3} << 20);
  {
    auto pool = d.pages() | pooled{} | tracked{};
    void* const before = pool.allocate(a, bytes);
    void* const warm = pool.allocate(a, bytes);
    pool.deallocate(a, warm, bytes);
    std::vector<void*> kept{before};
    {
      capture const c(d, a);
      pool.deallocate(a, before, bytes);
      for (int i = 0; i < 3; ++i) {
        kept.push_back(pool.allocate(a, bytes));
        pool.deallocate(a, kept.back(), bytes);
      }
      // A stream that is not captured is as before.
      void* const p = pool.allocate(b, bytes);
      pool.deallocate(b, p, bytes);
      CHECK(pool.allocate(b, bytes) == p);
      pool.deallocate(b, p, bytes);
    }
    CHECK(memory_allocated(pool) == 0);
    require_kept(pool, kept, bytes, a, b);
  }
  d.clean();
  CHECK(d.machine.leaks().handles == 0);
}

TEMPLATE_TEST_CASE("owners that free in a capture without a scope leave their blocks to the graph",
                   "[captures_without_scope]", sim_marking_driver, sim_driver) {
  device_of<TestType> d;
  auto pool = d.pages() | pooled{};
  typename device_of<TestType>::stream_type a{d.driver}, b{d.driver};
  std::size_t const count = 5000;
  std::vector<void*> kept;
  {
    auto buffer = make_device_buffer<char>(pool, count, a);
    auto grows = make_device_buffer<char>(pool, count, a);
    auto pointer = make_device<char[]>(pool, count, a);
    kept = {buffer.data(), grows.data(), pointer.get()};
    capture const c(d, a);
    buffer.reset();
    buffer.shrink_to_fit(a);
    grows.reserve(100 * count, a);
    pointer.reset();
    void* const p = pool.allocate(b, count);
    kept.push_back(p);
    pool.deallocate(identified(pool, a), p, count);
  }
  require_kept(pool, kept, count, a, b);
  d.clean();
}

TEST_CASE("a default stream of the thread that is captured without a scope keeps what is freed on it",
          "[captures_without_scope]") {
  device d;
  auto pool = d.pages() | pooled{};
  device::stream_type a{d.driver};
  stream_ref const own = stream_ref::from(reinterpret_cast<void*>(std::uintptr_t{2}));
  stream_ref const known = identified(pool, own);
  REQUIRE(known.id() != stream_ref::unknown_id);
  void* const p = pool.allocate(own, 4096);
  void* const q = pool.allocate(known, 4096);
  void* of_another = nullptr;
  stream_ref another;
  std::thread([&] {
    another = identified(pool, own);
    of_another = pool.allocate(another, 4096);
  }).join();
  {
    capture const c(d, own);
    pool.deallocate(own, p, 4096);
    pool.deallocate(known, q, 4096);
    pool.deallocate(another, of_another, 4096);  // not this thread's stream
  }
  pool.empty_cache();
  CHECK(detail::state_of(pool).live == 2 * 4096);
  require_kept(pool, {p, q}, 4096, own, a);
  d.clean();
}

TEST_CASE("a deallocation on the legacy default stream does not ask whether it is captured",
          "[captures_without_scope]") {
  device d;
  auto pool = d.pages() | pooled{};
  pool.deallocate(stream_ref{}, pool.allocate(stream_ref{}, 4096), 4096);
  auto const before = d.asked();
  for (int i = 0; i < 5; ++i) pool.deallocate(stream_ref{}, pool.allocate(stream_ref{}, 4096), 4096);
  CHECK(d.asked() == before);
}

TEST_CASE("a warm deallocation asks once whether its stream is captured, an allocation never",
          "[captures_without_scope]") {
  device d;
  device::stream_type a{d.driver};
  stream_ref const bare = stream_ref::from(a.get());
  std::size_t const bytes = GENERATE(as<std::size_t>{}, 4096, std::size_t{3} << 20);
  auto const asked_by_pair = [&](capture_watch watch, stream_ref s) {
    auto pool = d.pages() | pooled{.captures = watch} | tracked{};
    for (int i = 0; i < 3; ++i) pool.deallocate(s, pool.allocate(s, bytes), bytes);
    auto const before = d.asked();
    void* const p = pool.allocate(s, bytes);
    auto const at_allocation = d.asked() - before;
    pool.deallocate(s, p, bytes);
    return std::pair{at_allocation, d.asked() - before - at_allocation};
  };
  CHECK(asked_by_pair(pooled{}.captures, a) == std::pair<std::uint64_t, std::uint64_t>{0, 1});
  CHECK(asked_by_pair(capture_watch::at_frees, a) == std::pair<std::uint64_t, std::uint64_t>{0, 1});
  CHECK(asked_by_pair(capture_watch::always, a) == std::pair<std::uint64_t, std::uint64_t>{1, 1});
  CHECK(asked_by_pair(capture_watch::in_scopes, a) == std::pair<std::uint64_t, std::uint64_t>{0, 0});
  // Identified at each call, which CUDA refuses while the stream is captured.
  CHECK(asked_by_pair(capture_watch::at_frees, bare) == std::pair<std::uint64_t, std::uint64_t>{0, 0});
}

TEST_CASE("with capture_watch::in_scopes a capture without a scope is not noticed",
          "[captures_without_scope]") {
  device d;
  auto pool = d.pages() | pooled{.captures = capture_watch::in_scopes};
  device::stream_type a{d.driver};
  void* const p = pool.allocate(a, 4096);
  {
    capture const c(d, a);
    pool.deallocate(a, p, 4096);
  }
  CHECK(pool.allocate(a, 4096) == p);
  pool.deallocate(a, p, 4096);
}

TEMPLATE_TEST_CASE("a deallocation on a destroyed stream does not pass its handle to the driver",
                   "[captures_without_scope]", sim_marking_driver, sim_driver) {
  device_of<TestType> d;
  auto pool = d.pages() | pooled{};
  std::optional<typename device_of<TestType>::stream_type> gone(d.driver);
  stream_ref const stream = *gone;
  void* const p = pool.allocate(stream, 4096);
  void* const q = pool.allocate(stream, 4096);
  gone.reset();
  pool.deallocate(stream, p, 4096);
  // Its handle denotes another stream now, and that one is captured.
  typename device_of<TestType>::stream_type next{d.driver};
  REQUIRE(stream_ref(next).handle() == stream.handle());
  {
    capture const c(d, next);
    pool.deallocate(stream, q, 4096);
  }
  pool.empty_cache();
  CHECK(detail::state_of(pool).live == 0);
  d.clean();
}

TEST_CASE("a block with a recorded use that is freed in a capture without a scope is kept",
          "[captures_without_scope]") {
  device d;
  auto pool = d.pages() | pooled{};
  device::stream_type a{d.driver}, b{d.driver};
  void* const p = pool.allocate(a, 4096);
  pool.record_stream(p, 4096, b);
  {
    capture const c(d, a);
    pool.deallocate(a, p, 4096);
  }
  require_kept(pool, {p}, 4096, a, b);
  d.clean();
}

TEST_CASE("a pool that ends waits for work on blocks that it kept of captures without a scope",
          "[captures_without_scope]") {
  device d;
  device::stream_type a{d.driver}, b{d.driver}, c{d.driver};
  constexpr std::size_t bytes = 4 << 20;
  auto const with = GENERATE(as<std::string>{}, "a replay", "earlier work", "a recorded use");
  sim_graph graph;
  {
    auto pool = d.pages() | pooled{};
    void* const p = pool.allocate(a, bytes);
    if (with == "earlier work") {
      REQUIRE(d.machine.launch(a, 5'000'000, {sim_writes(p, bytes)}).ok());
    } else if (with == "a recorded use") {
      REQUIRE(d.machine.launch(c, 5'000'000, {sim_writes(p, bytes)}).ok());
      pool.record_stream(p, bytes, c);
    }
    REQUIRE(d.machine.begin_capture(a).ok());
    if (with == "a replay") REQUIRE(d.machine.launch(a, 5'000'000, {sim_writes(p, bytes)}).ok());
    pool.deallocate(a, p, bytes);
    REQUIRE(d.machine.end_capture(a, graph).ok());
    if (with == "a replay") REQUIRE(d.machine.launch(b, graph).ok());
    CHECK(d.machine.pending() != 0);
  }
  CHECK(d.machine.pending() == 0);
  d.clean();
}

TEST_CASE("a pool that ends beside a capture without a scope leaves memory mapped that work may use",
          "[captures_without_scope]") {
  device d;
  device::stream_type a{d.driver}, b{d.driver};
  constexpr std::size_t bytes = 4 << 20;
  void* p = nullptr;
  sim_graph graph;
  {
    auto pool = d.pages() | pooled{};
    p = pool.allocate(b, bytes);
    REQUIRE(d.machine.launch(b, 5'000'000, {sim_writes(p, bytes)}).ok());
    pool.deallocate(b, p, bytes);
    REQUIRE(d.machine.begin_capture(a).ok());
  }
  CHECK(d.machine.is_accessible(p, bytes));
  CHECK_FALSE(d.machine.end_capture(a, graph).ok());  // the pool tried to wait
  CHECK(d.machine.findings().empty());
}

TEST_CASE("a block of a graph_memory that another capture frees without a scope is kept",
          "[captures_without_scope]") {
  device d;
  auto pool = d.pages() | pooled{};
  device::stream_type a{d.driver}, b{d.driver};
  void* p = nullptr;
  {
    graph_memory memory{pool};
    p = memory.allocate(a, 4096);
    {
      capture const c(d, b);
      pool.deallocate(b, p, 4096);
    }
    CHECK(memory.allocate(a, 4096) != p);
    pool.deallocate(b, memory.allocate(b, 4096), 4096);
  }
  require_kept(pool, {p}, 4096, a, b);
  d.clean();
}

TEST_CASE("a capture without a scope beside one with a scope on another thread keeps what is freed in it",
          "[captures_without_scope][threads]") {
  device d;
  auto pool = d.pages() | pooled{};
  device::stream_type a{d.driver}, b{d.driver};
  bool const is_bare = GENERATE(false, true);
  stream_ref const s = is_bare ? stream_ref::from(b.get()) : stream_ref(b);
  void* const p = pool.allocate(s, 4096);
  graph_memory memory{pool};
  {
    capture_scope const scope(memory, a);
    std::thread([&] {
      capture const c(d, b);
      pool.deallocate(s, p, 4096);
    }).join();
  }
  require_kept(pool, {p}, 4096, a, b);
  d.clean();
}

TEMPLATE_TEST_CASE("record_stream refuses the stream of a capture without a scope",
                   "[captures_without_scope]", sim_marking_driver, sim_driver) {
  device_of<TestType> d;
  auto const watch = GENERATE(capture_watch::at_frees, capture_watch::always);
  auto pool = d.pages() | pooled{.captures = watch};
  typename device_of<TestType>::stream_type a{d.driver}, b{d.driver};
  void* const p = pool.allocate(a, 4096);
  {
    capture const c(d, b);
    // An event that is recorded after the capture would not cover the replays.
    try {
      pool.record_stream(p, 4096, b);
      FAIL_CHECK("it was recorded");
    } catch (cuda_error const& e) {
      CHECK(e.code() == 900);
      CHECK(std::string_view(e.what()).find("capture_scope") != std::string_view::npos);
    }
  }
  pool.record_stream(p, 4096, b);
  pool.deallocate(a, p, 4096);
  d.clean();
}

TEST_CASE("a snapshot lists what a capture without a scope freed as deferred", "[captures_without_scope]") {
  device d;
  auto pool = d.pages() | pooled{} | tracked{};
  device::stream_type a{d.driver};
  constexpr std::size_t bytes = 3 << 20;
  void* const p = pool.allocate(a, bytes);
  {
    capture const c(d, a);
    pool.deallocate(a, p, bytes);
  }
  std::size_t live = 0;
  std::size_t deferred = 0;
  for (auto const& segment : take_snapshot(pool).segments) {
    for (auto const& block : segment.blocks) {
      if (block.use == block_use::live) live += block.bytes;
      if (block.use == block_use::deferred) deferred += block.bytes;
    }
  }
  CHECK(live == memory_allocated(pool));
  CHECK(deferred == bytes);
}

namespace {

/// Calls a function once, after the next identification of a bare handle.
std::function<void()> after_identify;
class interrupted_driver : public sim_marking_driver {
 public:
  interrupted_driver(sim_driver const& d) noexcept : sim_marking_driver(d) {}
  status identify(stream_ref s, stream_id& id) const noexcept {
    status const result = sim_marking_driver::identify(s, id);
    if (s.id() == stream_ref::unknown_id && after_identify) std::exchange(after_identify, nullptr)();
    return result;
  }
};

}  // namespace

TEST_CASE("a bare handle is asked for although the last scope closes once it is identified",
          "[captures_without_scope]") {
  device_of<interrupted_driver> d;
  auto pool = d.pages() | pooled{};
  basic_stream<interrupted_driver> a{d.driver}, b{d.driver};
  stream_ref const bare = stream_ref::from(b.get());
  void* const p = pool.allocate(bare, 4096);
  graph_memory memory{pool};
  std::optional<capture_scope> scope(std::in_place, memory, a);
  {
    capture const c(d, b);
    after_identify = [&] { scope.reset(); };
    pool.deallocate(bare, p, 4096);
    CHECK(!after_identify);
  }
  require_kept(pool, {p}, 4096, a, b);
  d.clean();
}

TEST_CASE("a block of host memory is kept that the current device's per-thread stream frees in a capture",
          "[captures_without_scope]") {
  sim_machine const machine{{.devices = 2}};
  sim_driver const other = machine.driver(device_id{1});
  basic_stream<sim_driver> const uses_the_device{other};
  auto pool = basic_pinned<sim_driver>(machine.driver(device_id{0})) | pooled{};
  auto const per_thread = stream_ref::from(reinterpret_cast<void*>(std::uintptr_t{2}));
  REQUIRE(sim_driver::set_current_device(device_id{1}).ok());
  void* const p = pool.allocate(per_thread, 4096);
  sim_graph graph;
  REQUIRE(other.begin_capture(per_thread).ok());
  REQUIRE(other.launch(per_thread, 1000, {sim_reads(p, 4096)}).ok());
  pool.deallocate(per_thread, p, 4096);
  REQUIRE(other.end_capture(per_thread, graph).ok());
  void* const q = pool.allocate(per_thread, 4096);
  CHECK(q != p);
  pool.deallocate(per_thread, q, 4096);
  REQUIRE(sim_driver::set_current_device(device_id{0}).ok());
}
