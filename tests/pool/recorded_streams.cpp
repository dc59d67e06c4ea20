// SPDX-License-Identifier: Apache-2.0
// Recorded uses: their cost for other threads, when the driver is called, which blocks an event covers.
// Stream order is tested in ordering.cpp.

#include "tarn/pool/order/recorded_streams.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "contract/memory_access.hpp"
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

/// Blocks the next call of pass() until open(), as a stream does that waits for a value which another host
/// thread writes.
class gate {
 public:
  void close() {
    std::lock_guard const held(mutex_);
    closed_ = true;
    open_ = inside_ = false;
  }
  void pass() {
    std::unique_lock held(mutex_);
    if (!std::exchange(closed_, false)) return;
    inside_ = true;
    changed_.notify_all();
    if (!changed_.wait_for(held, std::chrono::seconds(20), [this] { return open_; })) timed_out_ = true;
  }
  void wait_until_inside() {
    std::unique_lock held(mutex_);
    if (!changed_.wait_for(held, std::chrono::seconds(20), [this] { return inside_; })) timed_out_ = true;
  }
  void open() {
    std::lock_guard const held(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  [[nodiscard]] bool timed_out() {
    std::lock_guard const held(mutex_);
    return timed_out_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false;
  bool inside_ = false;
  bool open_ = false;
  bool timed_out_ = false;
};

/// Passes a gate before the chosen call: create, query or synchronize an event.
struct gated_driver : sim_driver {
  gated_driver(sim_driver const& d, std::shared_ptr<gate> g, driver_call what)
      : sim_driver(d), at(std::move(g)), gated(what) {}
  status create_event(event_handle& event) const noexcept {
    if (gated == driver_call::create_event) at->pass();
    return sim_driver::create_event(event);
  }
  status query_event(event_handle event) const noexcept {
    if (gated == driver_call::query_event) at->pass();
    return sim_driver::query_event(event);
  }
  status synchronize_event(event_handle event) const noexcept {
    if (gated == driver_call::synchronize_event) at->pass();
    return sim_driver::synchronize_event(event);
  }
  std::shared_ptr<gate> at;
  driver_call gated;
};

/// The block type that block_table requires.
struct keyed_block {
  void* p = nullptr;
  detail::slot_number next = 0;
};

}  // namespace

TEST_CASE("deallocate returns while another thread waits for a recorded use",
          "[pool][streams][record_stream][threads]") {
  // The stream of the use may wait for work that this thread does after its deallocate().
  sim_machine const machine(checked());
  auto const at = std::make_shared<gate>();
  driver_call const blocked = GENERATE(driver_call::query_event, driver_call::synchronize_event);
  auto memory = basic_pages<gated_driver>(gated_driver(machine.driver(), at, blocked)) | pooled{};
  test_stream const a(machine.driver()), b(machine.driver());
  void* const p = memory.allocate(a, 4_KiB);
  void* const q = memory.allocate(a, 4_KiB);
  void* const r = memory.allocate(a, 4_KiB);
  void* const s = memory.allocate(a, 40_MiB);
  REQUIRE(machine.launch(b, second, {sim_writes(p, 4_KiB)}).ok());
  memory.record_stream(p, 4_KiB, b);
  memory.record_stream(q, 4_KiB, b);
  memory.deallocate(a, p, 4_KiB);
  at->close();
  std::thread waits([&] {
    if (blocked == driver_call::query_event) {
      memory.deallocate(a, memory.allocate(a, 20_MiB), 20_MiB);  // a miss: queries which uses are complete
    } else {
      (void)memory.trim();
    }
  });
  at->wait_until_inside();
  memory.record_stream(s, 40_MiB, b);
  memory.deallocate(a, q, 4_KiB);
  memory.deallocate(a, s, 40_MiB);
  // A thread that has no thread cache yet.
  std::thread([&] { memory.deallocate(a, r, 4_KiB); }).join();
  at->open();
  waits.join();
  CHECK_FALSE(at->timed_out());
  (void)memory.trim();
  CHECK(memory->state().live == 0);
  CHECK(memory->state().reserved == 0);
  CHECK(machine.findings().empty());
}

TEST_CASE("trim waits for all uses before its call, although another thread frees meanwhile",
          "[pool][streams][record_stream][threads]") {
  constexpr std::size_t bytes = 2_MiB;
  sim_machine const machine(checked(256_MiB));
  auto const at = std::make_shared<gate>();
  auto memory =
      basic_pages<gated_driver>(gated_driver(machine.driver(), at, driver_call::synchronize_event)) |
      pooled{};
  test_stream const a(machine.driver()), b(machine.driver());
  std::vector<void*> blocks;
  for (int i = 0; i < 65; ++i) blocks.push_back(memory.allocate(a, bytes));
  for (void* const p : blocks) memory.record_stream(p, bytes, b);
  void* const last = blocks.back();
  blocks.pop_back();
  for (void* const p : blocks) {
    REQUIRE(machine.launch(b, second / 100, {sim_writes(p, bytes)}).ok());
    memory.deallocate(a, p, bytes);
  }
  at->close();
  std::thread waits([&] { (void)memory.trim(); });
  at->wait_until_inside();
  memory.deallocate(a, last, bytes);  // joins the uses that one event covers
  at->open();
  waits.join();
  CHECK_FALSE(at->timed_out());
  CHECK(memory->state().deferred_blocks <= 1);
  CHECK(machine.findings().empty());
}

TEST_CASE("deallocate does not block other threads while it records an event",
          "[pool][streams][record_stream][threads]") {
  sim_machine const machine(checked());
  auto const at = std::make_shared<gate>();
  auto memory =
      basic_pages<gated_driver>(gated_driver(machine.driver(), at, driver_call::create_event)) | pooled{};
  test_stream const a(machine.driver()), b(machine.driver());
  void* const p = memory.allocate(a, 4_KiB);
  void* const q = memory.allocate(a, 4_KiB);
  REQUIRE(machine.launch(b, second, {sim_writes(p, 4_KiB)}).ok());
  memory.record_stream(p, 4_KiB, b);
  memory.record_stream(q, 4_KiB, b);
  at->close();
  std::thread records([&] { memory.deallocate(a, p, 4_KiB); });
  at->wait_until_inside();
  CHECK(memory->state().deferred == 4_KiB);  // p is neither live nor free
  memory.deallocate(a, q, 4_KiB);
  CHECK(memory->state().deferred == 8_KiB);
  at->open();
  records.join();
  CHECK_FALSE(at->timed_out());
  (void)memory.trim();
  CHECK(memory->state().live == 0);
  CHECK(machine.findings().empty());
}

TEST_CASE("pooled passes no destroyed stream of a recorded use to the driver at its destruction",
          "[pool][streams][record_stream][capture]") {
  sim_machine const machine(checked());
  test_stream const a(machine.driver()), c(machine.driver());
  stream_ref b;
  REQUIRE(machine.driver().create_stream(b).ok());
  sim_graph graph;
  {
    auto memory = basic_pages<sim_marking_driver>(sim_marking_driver(machine.driver())) | pooled{};
    void* const p = memory.allocate(a, 4_KiB);
    memory.record_stream(p, 4_KiB, b);
    detail::capture_gate::begin_capture();
    REQUIRE(machine.begin_capture(c).ok());
    memory.deallocate(a, p, 4_KiB);  // all work cannot be recorded while a graph is captured
    CHECK(memory->state().deferred == 4_KiB);
    REQUIRE(machine.driver().destroy_stream(b).ok());
  }
  CHECK(machine.end_capture(c, graph).ok());
  detail::capture_gate::end_capture();
  for (auto const& finding : machine.findings()) UNSCOPED_INFO(finding);
  CHECK(machine.findings().empty());
}

TEST_CASE("allocate queries few events, however many blocks are deferred", "[pool][streams][record_stream]") {
  sim_machine const machine(checked(512_MiB));
  auto memory = sim_pages(machine.driver()) | pooled{};
  test_stream const a(machine.driver()), slow(machine.driver()), quick(machine.driver());
  std::size_t const uses = GENERATE(as<std::size_t>{}, 100, 10'000);
  REQUIRE(machine.launch(slow, second).ok());
  for (std::size_t i = 0; i < 2 * uses; ++i) {
    void* const p = memory.allocate(a, 4_KiB);
    memory.record_stream(p, 4_KiB, i % 2 == 0 ? slow : quick);
    memory.deallocate(a, p, 4_KiB);
  }
  CHECK(machine.driver().synchronize_stream(quick).ok());
  auto const queries = [&] { return machine.calls()[driver_call::query_event]; };
  auto const before = queries();
  CHECK(memory->state().deferred >= uses * 4_KiB);
  void* const q = memory.allocate(a, 30_MiB);
  CHECK(queries() - before <= uses + 4);  // one for each complete use, one for each stream
  CHECK(memory->state().deferred == uses * 4_KiB);
  auto const next = queries();
  void* const r = memory.allocate(a, 30_MiB);
  CHECK(queries() - next <= 4);
  memory.deallocate(a, q, 30_MiB);
  memory.deallocate(a, r, 30_MiB);
}

TEST_CASE("record_stream shares few events among many uses and waits for each use",
          "[pool][streams][record_stream][pages]") {
  sim_machine machine(checked(256_MiB));
  auto memory = sim_pages(machine.driver()) | pooled{};
  test_stream const a(machine.driver()), b(machine.driver());
  constexpr std::size_t count = 2000;
  std::vector<void*> blocks;
  for (std::size_t i = 0; i < count; ++i) {
    blocks.push_back(memory.allocate(a, 64_KiB));
    machine.allocated(blocks.back(), 64_KiB, a);
  }
  auto const created = machine.calls()[driver_call::create_event];
  for (void* const p : blocks) {
    REQUIRE(machine.launch(b, second / 1000, {sim_writes(p, 64_KiB)}).ok());
    memory.record_stream(p, 64_KiB, b);
    machine.freed(p, 64_KiB, b);
    memory.deallocate(a, p, 64_KiB);
  }
  CHECK(machine.calls()[driver_call::create_event] - created < 200);
  // Step by step: memory that is free again may be written.
  for (std::size_t step = 0; step < 20; ++step) {
    machine.advance(second / 10);
    std::size_t const before = memory->state().deferred;
    std::size_t const bytes = 100_MiB + step * 1_MiB;
    void* const q = memory.allocate(a, bytes);
    machine.allocated(q, bytes, a);
    REQUIRE(machine.launch(a, 1000, {sim_writes(q, bytes)}).ok());
    CHECK(memory->state().deferred < before);
    machine.freed(q, bytes, a);
    memory.deallocate(a, q, bytes);
  }
  for (auto const& finding : machine.findings()) UNSCOPED_INFO(finding);
  CHECK(machine.findings().empty());
  (void)memory.trim();
  CHECK(memory->state().live == 0);
}

TEST_CASE("record_stream does not let an event cover a block that was freed after the event was recorded",
          "[pool][streams][record_stream][threads]") {
  // The first thread has recorded its event but not noted it; the second frees a block that was used after
  // that event.
  sim_machine machine(checked());
  auto const at = std::make_shared<gate>();
  struct late_driver : sim_driver {
    late_driver(sim_driver const& d, std::shared_ptr<gate> g) : sim_driver(d), at(std::move(g)) {}
    status record_event(event_handle event, stream_ref stream) const noexcept {
      status const s = sim_driver::record_event(event, stream);
      at->pass();  // recorded but not noted yet
      return s;
    }
    std::shared_ptr<gate> at;
  };
  auto memory = basic_pages<late_driver>(late_driver(machine.driver(), at)) | pooled{};
  test_stream const a(machine.driver()), b(machine.driver());
  std::vector<void*> blocks;
  for (int i = 0; i < 42; ++i) blocks.push_back(memory.allocate(a, 4_KiB));
  for (void* const p : blocks) memory.record_stream(p, 4_KiB, b);
  REQUIRE(machine.launch(b, second).ok());
  for (int i = 0; i < 40; ++i) memory.deallocate(a, blocks[static_cast<std::size_t>(i)], 4_KiB);
  void* const early = blocks[40];
  void* const late = blocks[41];
  at->close();
  std::thread first([&] { memory.deallocate(a, early, 4_KiB); });
  at->wait_until_inside();
  REQUIRE(machine.launch(b, 10 * second, {sim_writes(late, 4_KiB)}).ok());
  memory.deallocate(a, late, 4_KiB);
  at->open();
  first.join();
  machine.advance(2 * second);
  memory.deallocate(a, memory.allocate(a, 20_MiB), 20_MiB);
  CHECK(memory->state().deferred >= 4_KiB);  // the late block
  (void)memory.trim();
  CHECK(memory->state().deferred == 0);
  CHECK(machine.now() >= 10 * second);
}

TEST_CASE("the notes of recorded uses are used again once the uses are over",
          "[pool][streams][record_stream]") {
  sim_machine const machine(checked());
  auto memory = sim_pages(machine.driver()) | pooled{};
  test_stream const a(machine.driver()), b(machine.driver());
  auto const use_and_free = [&](int times) {
    for (int i = 0; i < times; ++i) {
      void* const p = memory.allocate(a, 4_KiB);
      memory.record_stream(p, 4_KiB, b);
      if (i % 2 == 0) {
        REQUIRE(machine.launch(b, second).ok());
        memory.deallocate(a, p, 4_KiB);
        (void)memory.trim();
      } else {  // of an idle stream
        memory.deallocate(a, p, 4_KiB);
      }
    }
    return memory->state().host_bytes;
  };
  std::size_t const early = use_and_free(100);
  CHECK(use_and_free(2000) == early);
}

TEST_CASE("each block that is freed on a lost stream waits for all work and is then given back",
          "[pool][streams][record_stream]") {
  sim_machine const machine(checked());
  auto memory = basic_pages<sim_marking_driver>(sim_marking_driver(machine.driver())) | pooled{};
  test_stream const a(machine.driver());
  stream_ref gone;
  REQUIRE(machine.driver().create_stream(gone).ok());
  void* const blocks[3] = {memory.allocate(gone, 10_MiB), memory.allocate(gone, 10_MiB),
                           memory.allocate(gone, 10_MiB)};
  REQUIRE(machine.launch(a, second).ok());
  REQUIRE(machine.driver().destroy_stream(gone).ok());
  for (void* p : blocks) memory.deallocate(stream_ref::from(gone.handle()), p, 10_MiB);
  CHECK(memory->state().deferred == 30_MiB);
  REQUIRE(machine.driver().synchronize_device().ok());
  memory.empty_cache();
  CHECK(memory->state().deferred == 0);
  CHECK(memory->state().reserved == 0);
}

TEST_CASE("record_stream leaves no use after a free on a destroyed stream",
          "[pool][streams][record_stream]") {
  sim_machine const machine(checked());
  auto memory = basic_pages<sim_marking_driver>(sim_marking_driver(machine.driver())) | pooled{};
  test_stream const a(machine.driver()), b(machine.driver());
  stream_ref gone;
  REQUIRE(machine.driver().create_stream(gone).ok());
  void* const p = memory.allocate(gone, 40_MiB);
  memory.record_stream(p, 40_MiB, b);
  REQUIRE(machine.launch(b, second).ok());
  REQUIRE(machine.driver().destroy_stream(gone).ok());
  memory.deallocate(stream_ref::from(gone.handle()), p, 40_MiB);
  CHECK(memory->state().deferred == 40_MiB);
  void* const q = memory.allocate(a, 40_MiB);
  CHECK(q == p);
  memory.deallocate(a, q, 40_MiB);
  CHECK(memory->state().deferred == 0);
}

TEST_CASE(
    "record_stream covers with one event after a capture all uses it could not mark during the capture "
    "itself",
    "[pool][streams][record_stream][capture][pages]") {
  sim_machine machine(checked());
  auto memory = sim_pages(machine.driver()) | pooled{};
  test_stream const a(machine.driver()), b(machine.driver());
  std::vector<void*> blocks;
  for (int i = 0; i < 5; ++i) {
    blocks.push_back(memory.allocate(a, 4_KiB));
    memory.record_stream(blocks.back(), 4_KiB, b);
  }
  REQUIRE(machine.launch(b, second).ok());
  REQUIRE(machine.begin_capture(b).ok());
  for (void* const p : blocks) memory.deallocate(a, p, 4_KiB);
  CHECK(memory->state().deferred == 20_KiB);
  memory.deallocate(a, memory.allocate(a, 10_MiB), 10_MiB);  // tries again without success
  CHECK(memory->state().deferred == 20_KiB);
  sim_graph graph;
  CHECK(machine.end_capture(b, graph).ok());
  CHECK(graph.is_empty());
  auto const recorded = machine.calls()[driver_call::record_event];
  memory.deallocate(a, memory.allocate(a, 11_MiB), 11_MiB);
  CHECK(machine.calls()[driver_call::record_event] - recorded == 1);
  CHECK(memory->state().deferred == 20_KiB);
  machine.advance(2 * second);
  memory.deallocate(a, memory.allocate(a, 30_MiB), 30_MiB);
  CHECK(memory->state().deferred == 0);
  CHECK(memory->state().live == 0);
}

TEST_CASE("trim runs concurrently with threads that free blocks with recorded uses",
          "[pool][streams][record_stream][threads]") {
  sim_machine machine(checked(256_MiB));
  auto memory = sim_pages(machine.driver()) | pooled{};
  std::atomic<bool> over{false};
  // They outlive the trims: the driver cannot mark work without its stream.
  std::deque<test_stream<sim_driver>> streams;
  for (int i = 0; i < 6; ++i) streams.emplace_back(machine.driver());
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      stream_ref const a = streams[static_cast<std::size_t>(2 * t)];
      stream_ref const b = streams[static_cast<std::size_t>(2 * t + 1)];
      for (int i = 0; i < 400; ++i) {
        void* blocks[8];
        for (void*& p : blocks) {
          p = memory.allocate(a, 4_KiB);
          machine.allocated(p, 4_KiB, a);
          memory.record_stream(p, 4_KiB, b);
          (void)machine.launch(b, 1000, {sim_writes(p, 4_KiB)});
        }
        for (void* const p : blocks) {
          machine.freed(p, 4_KiB, b);
          memory.deallocate(a, p, 4_KiB);
        }
        if (i % 16 == 0) (void)machine.driver().synchronize_stream(b);
      }
      (void)machine.driver().synchronize_stream(b);
    });
  }
  std::thread trims([&] {
    while (!over.load()) {
      (void)memory.trim();
      (void)memory->state();
    }
  });
  for (std::thread& t : threads) t.join();
  over.store(true);
  trims.join();
  (void)memory.trim();
  CHECK(memory->state().live == 0);
  CHECK(memory->state().deferred == 0);
  CHECK(memory->state().reserved == 0);
  for (auto const& finding : machine.findings()) UNSCOPED_INFO(finding);
  CHECK(machine.findings().empty());
}

TEST_CASE("block_table finds each block in it and may_hold rejects nearly all others",
          "[pool][record_stream]") {
  detail::slot_table<keyed_block> blocks;
  detail::block_table<keyed_block> table(blocks);
  auto const address = [](std::size_t i) { return reinterpret_cast<void*>(0x200000000000 + i * 512); };
  CHECK_FALSE(table.may_hold(address(0)));
  constexpr std::size_t count = 20'000;
  for (std::size_t i = 0; i < count; ++i) {
    blocks.make_room();
    table.make_room();
    detail::slot_number const b = blocks.take();
    blocks[b].p = address(i);
    table.insert(b);
  }
  std::size_t found = 0, passed_by = 0;
  for (std::size_t i = 0; i < count; ++i) {
    detail::slot_number const b = table.find(address(i));
    found += table.may_hold(address(i)) && b != 0 && blocks[b].p == address(i) ? 1 : 0;
    passed_by += !table.may_hold(address(count + i)) && table.find(address(count + i)) == 0 ? 1 : 0;
  }
  CHECK(found == count);
  CHECK(passed_by >= count * 97 / 100);
  for (std::size_t i = 0; i < count; i += 2) {
    detail::slot_number const b = table.take(address(i));
    REQUIRE(b != 0);
    blocks.give(b);
  }
  CHECK(table.take(address(0)) == 0);
  CHECK(table.size() == count / 2);
  std::size_t kept = 0, gone = 0;
  for (std::size_t i = 0; i < count; i += 2) {
    kept += table.may_hold(address(i + 1)) && table.find(address(i + 1)) != 0 ? 1 : 0;
    gone += !table.may_hold(address(i)) ? 1 : 0;
  }
  CHECK(kept == count / 2);
  CHECK(gone >= count / 2 * 97 / 100);
}
