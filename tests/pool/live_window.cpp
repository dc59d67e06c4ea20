// SPDX-License-Identifier: Apache-2.0
// A pool gives free memory back by itself once the live peak has fallen, without waiting for the device, and
// not in programs whose peak returns.
#include "tarn/pool/arena/live_window.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "catch.hpp"
#include "tarn/driver/capture_gate.hpp"
#include "tarn/driver/stream_life.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/sim.hpp"

namespace {

using namespace tarn;
using detail::live_window;

/// A pool on a device whose memory is never touched, and phases of a program with different live peaks.
struct phases {
  explicit phases(pooled const& options = {}) : memory(sim_pages{driver} | options) {}

  sim_machine machine{sim_options{.capacity = 64_GiB, .taken = 0, .backing = sim_backing::address_only}};
  sim_driver driver = machine.driver(0);
  stream_ref stream;
  stack<sim_pages, pooled> memory;

  /// Keeps about `live` bytes in blocks that change their sizes, so that no thread cache serves them, until
  /// `volume` bytes were allocated.
  void run(std::size_t live, std::size_t volume) { run(stream, live, volume); }
  void run(stream_ref on, std::size_t live, std::size_t volume) {
    std::size_t const bytes = live / 8;
    std::vector<void*> blocks(8, nullptr);
    std::vector<std::size_t> sizes(8, 0);
    std::size_t taken = 0;
    for (std::size_t i = 0; taken < volume; ++i) {
      std::size_t const at = i % 8;
      if (blocks[at] != nullptr) memory.deallocate(on, blocks[at], sizes[at]);
      sizes[at] = bytes - (i % 3) * 2_MiB;
      blocks[at] = memory.allocate(on, sizes[at]);
      taken += sizes[at];
    }
    for (std::size_t i = 0; i < 8; ++i) {
      if (blocks[i] != nullptr) memory.deallocate(on, blocks[i], sizes[i]);
    }
  }
  [[nodiscard]] std::size_t reserved() const { return memory->state().reserved; }
  [[nodiscard]] std::uint64_t calls(driver_call what) const { return machine.calls()[what]; }
};

/// Allocated bytes in which a window of a pool that has reserved `bytes` ends, whenever it began.
std::size_t window_of(std::size_t bytes) {
  return bytes * live_window::first_factor * (live_window::steps + 2);
}

}  // namespace

TEST_CASE("live_window reports a fall of the live peak after all steps of the window",
          "[pool][live_window]") {
  live_window w;
  CHECK(w.is_step_over());
  CHECK_FALSE(w.end_step(1_GiB, 0, 1_GiB));
  std::size_t const step = 1_GiB * live_window::first_factor;
  auto const pass = [&](std::size_t live, std::size_t peak) {
    w.note(step / 2, live);
    CHECK_FALSE(w.is_step_over());
    w.note(step / 2, live / 2);
    CHECK(w.is_step_over());
    return w.end_step(1_GiB, live / 2, peak);
  };
  CHECK_FALSE(pass(1_GiB, 1_GiB));
  for (unsigned i = 1; i < live_window::steps; ++i) CHECK_FALSE(pass(512_MiB, 1_GiB));
  CHECK(w.peak() == 512_MiB);
  CHECK(pass(512_MiB, 1_GiB));
  CHECK_FALSE(pass(900_MiB, 1_GiB));
  CHECK(w.peak() == 900_MiB);
  for (unsigned i = 1; i < live_window::steps; ++i) CHECK_FALSE(pass(300_MiB, 1_GiB));
  CHECK(pass(300_MiB, 1_GiB));
}

TEST_CASE("live_window counts what stays live over a step as the peak of the next", "[pool][live_window]") {
  live_window w;
  for (unsigned i = 0; i < 2 * live_window::steps; ++i) CHECK_FALSE(w.end_step(1_GiB, 1_GiB, 1_GiB));
  CHECK(w.peak() == 1_GiB);
}

TEST_CASE("live_window doubles its volume when what was given back is needed again", "[pool][live_window]") {
  live_window w;
  for (unsigned i = 0; i < 8; ++i) (void)w.end_step(1_GiB, 100_MiB, 1_GiB);
  CHECK(w.factor() == live_window::first_factor);
  w.note_given(600_MiB, 424_MiB);
  w.note_given(100_MiB, 324_MiB);
  (void)w.end_step(600_MiB, 100_MiB, 400_MiB);  // less than half of it
  CHECK(w.factor() == live_window::first_factor);
  CHECK_FALSE(w.end_step(700_MiB, 100_MiB, 700_MiB));
  CHECK(w.factor() == 2 * live_window::first_factor);
  CHECK_FALSE(w.end_step(1_GiB, 100_MiB, 1_GiB));  // a new window began
  CHECK(w.factor() == 2 * live_window::first_factor);
  for (int i = 0; i < 100; ++i) {
    w.note_given(500_MiB, 524_MiB);
    (void)w.end_step(1_GiB, 100_MiB, 1_GiB);
  }
  CHECK(w.factor() == live_window::last_factor);
  for (unsigned i = 0; i < 8; ++i) CHECK_FALSE(w.end_step(1_GiB, 100_MiB, 1_GiB));
}

TEST_CASE("pooled gives memory back by itself when the live peak has fallen", "[pool][live_window][pages]") {
  phases p;
  p.run(8_GiB, 80_GiB);
  std::size_t const high = p.reserved();
  REQUIRE(high >= 7_GiB);
  p.run(2_GiB, window_of(high));
  CHECK(p.reserved() <= 2_GiB + 2_GiB / 16);
  CHECK(p.memory->state().live == 0);
  CHECK(p.calls(driver_call::synchronize_event) == 0);
  CHECK(p.calls(driver_call::synchronize_stream) == 0);
  CHECK(p.calls(driver_call::synchronize_device) == 0);
  // And the pool makes no more driver calls than before.
  std::uint64_t const created = p.calls(driver_call::create_pages);
  p.run(2_GiB, window_of(2_GiB));
  CHECK(p.calls(driver_call::create_pages) == created);
}

TEST_CASE("pooled keeps its memory while the live peak returns", "[pool][live_window]") {
  phases p;
  for (int pass = 0; pass < 40; ++pass) {
    p.run(8_GiB, 9_GiB);
    p.run(1_GiB, 100_GiB);
  }
  CHECK(p.calls(driver_call::destroy_pages) == 0);
}

TEST_CASE("pooled gives back ever more rarely what is needed again", "[pool][live_window][pages]") {
  phases p;
  p.run(4_GiB, 40_GiB);
  std::size_t const created = p.calls(driver_call::create_pages);
  for (int pass = 0; pass < 64; ++pass) {
    p.run(512_MiB, window_of(4_GiB));
    p.run(4_GiB, 8_GiB);
  }
  CHECK(p.calls(driver_call::destroy_pages) > 0);
  CHECK(p.calls(driver_call::create_pages) < 9 * created);  // 64 releases would take 56 times as many
}

TEST_CASE("pooled gives nothing back by itself below release_threshold", "[pool][live_window][pages]") {
  phases p(pooled{.release_threshold = ~std::size_t{0}});
  p.run(8_GiB, 80_GiB);
  std::size_t const high = p.reserved();
  p.run(1_GiB, window_of(high));
  CHECK(p.reserved() == high);
  CHECK(p.memory.trim(0) == high);

  phases half(pooled{.release_threshold = 4_GiB});
  half.run(8_GiB, 80_GiB);
  half.run(1_GiB, window_of(8_GiB));
  CHECK(half.reserved() <= 4_GiB);
  CHECK(half.reserved() > 3_GiB);
}

TEST_CASE("pooled gives back by itself only what no work uses", "[pool][live_window][streams][pages]") {
  phases p;
  sim_machine& machine = p.machine;
  detail::own_stream const other(p.driver);
  void* const own = p.memory.allocate(p.stream, 4_GiB);
  void* const used = p.memory.allocate(other.get(), 4_GiB);
  REQUIRE(machine.launch(other.get(), 1'000'000'000'000'000, {sim_writes(used, 4_GiB)}).ok());
  p.memory.deallocate(other.get(), used, 4_GiB);
  p.memory.deallocate(p.stream, own, 4_GiB);
  std::size_t const high = p.reserved();
  REQUIRE(high >= 7_GiB);
  std::uint64_t const waits = p.memory->state().host_waits;
  p.run(1_GiB, window_of(high));
  p.run(other.get(), 1_GiB, window_of(high));
  CHECK(p.reserved() >= 4_GiB);  // the other stream's block
  CHECK(p.reserved() < high - 2_GiB);
  CHECK(p.memory->state().host_waits == waits);
  // Once the work is complete, a window on its stream gives it back.
  machine.advance(2'000'000'000'000'000);
  p.run(other.get(), 1_GiB, window_of(high));
  CHECK(p.reserved() <= 2_GiB + 300_MiB);  // a GiB on each stream
}

TEST_CASE("pooled gives nothing back by itself during a capture", "[pool][live_window][pages]") {
  phases p;
  detail::own_stream const other(p.driver);  // itself not captured
  p.run(other.get(), 8_GiB, 80_GiB);
  std::size_t const high = p.reserved();
  detail::capture_gate::begin_capture();
  p.run(other.get(), 1_GiB, window_of(high));
  CHECK(p.reserved() == high);
  detail::capture_gate::end_capture();
  p.run(other.get(), 1_GiB, window_of(high));
  CHECK(p.reserved() < 2_GiB);
}

TEST_CASE("pooled gives memory back by itself while the device is behind the host",
          "[pool][live_window][streams][pages]") {
  phases p;
  detail::own_stream const behind(p.driver);
  std::vector<void*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(p.memory.allocate(behind.get(), 2_GiB));
  REQUIRE(p.machine.launch(behind.get(), 10'000'000, {}).ok());
  for (void* block : blocks) p.memory.deallocate(behind.get(), block, 2_GiB);
  std::size_t const high = p.reserved();
  REQUIRE(high >= 8_GiB);
  // The stream is ten milliseconds behind, all the time.
  std::size_t taken = 0;
  for (std::size_t i = 0; taken < 2 * window_of(high); ++i) {
    std::size_t const bytes = 1_GiB - i % 3 * 2_MiB;
    void* const block = p.memory.allocate(behind.get(), bytes);
    REQUIRE(p.machine.launch(behind.get(), 100'000, {}).ok());
    p.memory.deallocate(behind.get(), block, bytes);
    p.machine.advance(100'000);
    taken += bytes;
  }
  CHECK(p.reserved() < 3_GiB);
  CHECK(p.memory->state().host_waits == 0);
}

TEST_CASE("pooled gives back what a busy stream freed that allocates nothing more",
          "[pool][live_window][streams][pages]") {
  phases p;
  detail::own_stream const idle(p.driver);
  detail::own_stream const busy(p.driver);
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(p.memory.allocate(idle.get(), 1_GiB));
  void* const own = p.memory.allocate(busy.get(), 2_GiB);  // enough for what follows
  // Both streams are ten milliseconds behind, all the time.
  for (stream_ref const s : {idle.get(), busy.get()}) REQUIRE(p.machine.launch(s, 10'000'000, {}).ok());
  for (void* block : blocks) p.memory.deallocate(idle.get(), block, 1_GiB);
  p.memory.deallocate(busy.get(), own, 2_GiB);
  std::size_t const high = p.reserved();
  REQUIRE(high >= 10_GiB);
  std::uint64_t const waits = p.memory->state().host_waits;
  std::size_t taken = 0;
  for (std::size_t i = 0; taken < 2 * window_of(high); ++i) {
    std::size_t const bytes = 1_GiB - i % 3 * 2_MiB;
    void* const block = p.memory.allocate(busy.get(), bytes);
    for (stream_ref const s : {idle.get(), busy.get()}) REQUIRE(p.machine.launch(s, 100'000, {}).ok());
    p.memory.deallocate(busy.get(), block, bytes);
    p.machine.advance(100'000);
    taken += bytes;
  }
  CHECK(p.reserved() < 3_GiB);
  CHECK(p.memory->state().host_waits == waits);
  CHECK(p.calls(driver_call::synchronize_event) == 0);
  CHECK(p.calls(driver_call::synchronize_device) == 0);
}
