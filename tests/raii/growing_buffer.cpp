// SPDX-License-Identifier: Apache-2.0
// raii/growing_buffer: an array that grows at one address, and the pool's blocks that follow each other.
#include "tarn/raii/growing_buffer.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "driver/calling_driver.hpp"
#include "driver/faulty.hpp"
#include "raii/failing_calls.hpp"
#include "tarn/debug/checked.hpp"
#include "tarn/debug/poisoned.hpp"
#include "tarn/debug/with_history.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/tracked.hpp"
#include "tarn/raii/compact.hpp"
#include "tarn/raii/graph_memory.hpp"
#include "tarn/raii/peak_scope.hpp"
#include "tarn/raii/sleep.hpp"
#include "tarn/report/stats.hpp"
#include "tarn/report/take_snapshot.hpp"
#include "tarn/sharing/page_pin.hpp"
#include "tarn/sim.hpp"

namespace {

using namespace tarn;
using sim_pages = basic_pages<sim_driver>;

constexpr std::size_t per_mib = 1_MiB / sizeof(float);

template <class Memory>
std::vector<float> host_copy_of(growing_buffer<float, Memory> const& buffer) {
  std::vector<float> host(buffer.size());
  copy_sync(buffer.resource().driver(), buffer.span(), std::span<float>(host), buffer.stream());
  return host;
}
/// `count` MiB, each with its own number.
template <class Memory>
void append_numbered(growing_buffer<float, Memory>& buffer, std::size_t count) {
  std::vector<float> piece(per_mib);
  for (std::size_t i = 0; i < count; ++i) {
    piece.front() = piece.back() = static_cast<float>(buffer.size() / per_mib);
    buffer.append(piece);
  }
}
template <class Memory>
bool has_its_numbers(growing_buffer<float, Memory> const& buffer) {
  std::vector<float> const host = host_copy_of(buffer);
  for (std::size_t i = 0; i < host.size(); i += per_mib) {
    if (host[i] != static_cast<float>(i / per_mib) || host[i + per_mib - 1] != host[i]) return false;
  }
  return true;
}

struct machine_and_pool {
  sim_machine machine;
  stack<sim_pages, pooled, tracked> memory;
  basic_stream<sim_driver> stream;

  explicit machine_and_pool(sim_options options = {}, pooled pool = {})
      : machine(options),
        memory(sim_pages(machine.driver(device_id{0})) | pool | tracked{}),
        stream(memory.driver()) {}
  using buffer_type = growing_buffer<float, stack<sim_pages, pooled, tracked>>;
};

}  // namespace

TEST_CASE("a growing buffer keeps its address and its contents while it grows",
          "[raii][pages][growing_buffer]") {
  machine_and_pool t;
  machine_and_pool::buffer_type buffer(t.memory, 1024 * per_mib, t.stream);
  float* const at = buffer.data();
  REQUIRE(buffer.keeps_address());
  CHECK(memory_allocated(t.memory) == 0);
  append_numbered(buffer, 150);
  CHECK(buffer.data() == at);
  CHECK(buffer.size() == 150 * per_mib);
  CHECK(has_its_numbers(buffer));
  SECTION("its memory is counted as that of other blocks, and the tail is less than a step") {
    CHECK(memory_allocated(t.memory) == buffer.capacity() * sizeof(float));
    CHECK(memory_allocated(t.memory) - 150_MiB < 150_MiB / 16 + 2_MiB);
    CHECK(memory_reserved(t.memory) == memory_allocated(t.memory));
  }
  SECTION("a copy of it grows on its own") {
    basic_stream<sim_driver> const other(t.memory.driver());
    auto copied = buffer.clone(other);
    CHECK(copied.data() != at);
    append_numbered(copied, 20);
    CHECK(has_its_numbers(copied));
    CHECK(buffer.size() == 150 * per_mib);
  }
  SECTION("a moved-from buffer is empty and does not grow") {
    machine_and_pool::buffer_type taken(std::move(buffer));
    CHECK(taken.data() == at);
    CHECK(has_its_numbers(taken));
    CHECK(buffer.size() == 0);
    CHECK(buffer.max_size() == 0);
    CHECK_THROWS_AS(buffer.reserve(1), length_error);
    buffer = std::move(taken);
    CHECK(buffer.data() == at);
  }
}

TEST_CASE("an append that needs no memory makes no driver call but its copy",
          "[raii][pages][growing_buffer]") {
  sim_machine machine;
  auto memory = basic_pages<faulty<sim_driver>>(faulty<sim_driver>(machine.driver(device_id{0}))) | pooled{};
  fault_plan const& plan = memory.driver().plan();
  basic_stream<faulty<sim_driver>> const stream(memory.driver());
  growing_buffer<float, decltype(memory)> buffer(memory, 1024 * per_mib, stream, {32_MiB});
  std::vector<float> const piece(per_mib);
  buffer.append(piece);
  plan.reset();
  for (int i = 1; i < 32; ++i) buffer.append(piece);
  CHECK(plan.calls() == 31);
  CHECK(plan.calls(driver_call::copy) == 31);
  plan.reset();
  buffer.append(piece);
  CHECK(plan.calls(driver_call::copy) == 1);  // growth copies nothing
  CHECK(plan.calls(driver_call::create_pages) >= 1);
}

TEST_CASE("a growing buffer takes free memory of the pool before new memory",
          "[raii][pages][growing_buffer]") {
  machine_and_pool t;
  { auto const block = make_device_buffer<char>(t.memory, 96_MiB, t.stream); }
  std::size_t const reserved = memory_reserved(t.memory);
  machine_and_pool::buffer_type buffer(t.memory, 1024 * per_mib, t.stream);
  buffer.resize(64 * per_mib);
  CHECK(memory_reserved(t.memory) <= reserved);
  SECTION("also what another stream has freed, ordered on the device") {
    basic_stream<sim_driver> const other(t.memory.driver());
    machine_and_pool::buffer_type second(t.memory, 1024 * per_mib, other);
    buffer.resize(0);
    buffer.shrink_to_fit();
    second.resize(64 * per_mib);
    CHECK(memory_reserved(t.memory) <= reserved);
  }
}

TEST_CASE("memory that a growing buffer gives back serves other blocks", "[raii][pages][growing_buffer]") {
  machine_and_pool t;
  machine_and_pool::buffer_type buffer(t.memory, 1024 * per_mib, t.stream);
  append_numbered(buffer, 100);
  float* const at = buffer.data();
  buffer.resize(10 * per_mib);
  CHECK(memory_allocated(t.memory) >= 100_MiB);  // resize() keeps the memory
  buffer.shrink_to_fit();
  CHECK(memory_allocated(t.memory) < 16_MiB);
  std::size_t const reserved = memory_reserved(t.memory);
  auto block = make_device_buffer<char>(t.memory, 60_MiB, t.stream);
  CHECK(memory_reserved(t.memory) == reserved);
  SECTION("and it grows again, over other handles, at the same address") {
    append_numbered(buffer, 120);
    CHECK(buffer.data() == at);
    CHECK(has_its_numbers(buffer));
  }
  SECTION("and it takes back what is free again without a driver call") {
    block.reset();
    auto const before = t.machine.calls().counts[static_cast<std::size_t>(driver_call::map_pages)];
    buffer.resize(12 * per_mib);
    CHECK(t.machine.calls().counts[static_cast<std::size_t>(driver_call::map_pages)] == before);
    CHECK(buffer.data() == at);
  }
}

TEST_CASE("a growing buffer that ends leaves nothing in the pool", "[raii][pages][growing_buffer]") {
  machine_and_pool t;
  for (int i = 0; i < 40; ++i) {  // more than the addresses would hold at once
    machine_and_pool::buffer_type buffer(t.memory, 200'000 * per_mib, t.stream);
    buffer.resize(8 * per_mib);
  }
  CHECK(memory_allocated(t.memory) == 0);
  t.memory.empty_cache();
  CHECK(memory_reserved(t.memory) == 0);
}

TEST_CASE("a growing buffer that ends while its pool sleeps unmaps each place once",
          "[raii][pages][growing_buffer]") {
  sim_machine const machine({.capacity = 512_MiB, .taken = 0});
  fault_plan const plan;
  auto memory = basic_pages<faulty<sim_driver>>{faulty<sim_driver>{machine.driver(0), plan}} | pooled{};
  std::optional<growing_buffer<char, decltype(memory)>> buffer(std::in_place, memory, 64_MiB, stream_ref{});
  buffer->resize(2_MiB);
  buffer->reset();
  void* const p = memory.allocate(stream_ref{}, 2_MiB);  // the handle serves it at its home
  std::memset(p, 5, 2_MiB);
  memory.deallocate(stream_ref{}, memory.allocate(stream_ref{}, 3_MiB), 3_MiB);
  (void)memory.trim(0);
  tarn_test::fail_waits(plan);
  (void)sleep(memory);
  plan.disarm();
  REQUIRE(is_asleep(memory));
  buffer.reset();
  CHECK(memory->state().maps - memory->state().unmaps == machine.leaks().maps);
  (void)wake(memory);
  memory.deallocate(stream_ref{}, p, 2_MiB);
}

TEST_CASE("more addresses than the pool has are refused as out of memory that names them",
          "[raii][pages][growing_buffer]") {
  machine_and_pool t;
  std::vector<machine_and_pool::buffer_type> all;
  std::string refused;
  for (int i = 0; i < 40 && refused.empty(); ++i) {
    try {
      all.emplace_back(t.memory, 100'000 * per_mib, t.stream);
    } catch (out_of_memory const& error) {
      refused = error.what();
    }
  }
  CHECK(refused.find("addresses") != std::string::npos);
  CHECK(all.size() >= 8);  // eight times the device
  all.pop_back();
  all.emplace_back(t.memory, 100'000 * per_mib, t.stream);
}

TEST_CASE("a place to grow that is in no growing buffer is refused", "[raii][pages][growing_buffer]") {
  machine_and_pool t;
  machine_and_pool::buffer_type buffer(t.memory, 4 * per_mib, t.stream);
  void* const p = t.memory.allocate(t.stream, 2_MiB);
  CHECK_THROWS_AS(t.memory.allocate_at(t.stream, p, 2_MiB, default_alignment), misuse);
  t.memory.deallocate(t.stream, p, 2_MiB);
  auto const beyond = std::size_t{1} << 46;  // bytes from a place in a buffer on
  CHECK_THROWS_AS(t.memory.allocate_at(t.stream, buffer.data(), beyond, default_alignment), misuse);
}

TEST_CASE("a growing buffer refuses to grow in a call that the growth of its pool makes",
          "[raii][pages][growing_buffer]") {
  using driver_type = tarn_test::calling_driver<sim_driver>;
  sim_machine machine;
  std::function<void()> then;
  auto memory =
      basic_pages<driver_type>(driver_type(machine.driver(), driver_call::create_pages, then)) | pooled{};
  growing_buffer<char, decltype(memory)> buffer(memory, 64_MiB, stream_ref{});
  int refused = 0;
  then = [&] {
    try {
      buffer.resize(8_MiB);
    } catch (out_of_memory const&) {
      ++refused;
    }
  };
  void* const p = memory.allocate(stream_ref{}, 8_MiB);
  CHECK(refused == 1);
  CHECK(buffer.size() == 0);
  buffer.resize(8_MiB);
  memory.deallocate(stream_ref{}, p, 8_MiB);
}

TEST_CASE("growth of a buffer is all or nothing", "[raii][pages][growing_buffer]") {
  sim_machine machine{{.capacity = 1_GiB}};
  auto memory = basic_pages<faulty<sim_driver>>(faulty<sim_driver>(machine.driver(device_id{0}))) | pooled{} |
                tracked{};
  fault_plan const& plan = memory.driver().plan();
  basic_stream<faulty<sim_driver>> const stream(memory.driver());
  growing_buffer<float, decltype(memory)> buffer(memory, 4096 * per_mib, stream);
  append_numbered(buffer, 50);
  float* const at = buffer.data();
  std::size_t const capacity = buffer.capacity();
  SECTION("where the device has too little") {
    CHECK_THROWS_AS(buffer.resize(2000 * per_mib), out_of_memory);
    CHECK_THROWS_AS(buffer.append(std::span<float const>(at, 2000 * per_mib)), out_of_memory);
  }
  SECTION("beyond its addresses") {
    CHECK_THROWS_AS(buffer.resize(4097 * per_mib), length_error);
  }
  SECTION("at every driver call that may fail") {
    for (std::uint64_t nth = 1; nth < 200; ++nth) {
      plan.reset();
      plan.fail(nth, {failure::other});
      try {
        buffer.reserve(capacity + 40 * per_mib);
        break;
      } catch (cuda_error const&) {
        REQUIRE(buffer.capacity() == capacity);
        REQUIRE(memory_allocated(memory) == capacity * sizeof(float));
      } catch (out_of_memory const&) {
        REQUIRE(buffer.capacity() == capacity);
      }
    }
    plan.reset();
    buffer.reserve(capacity + 40 * per_mib);
  }
  CHECK(buffer.data() == at);
  CHECK(buffer.size() == 50 * per_mib);
  CHECK(has_its_numbers(buffer));
}

TEST_CASE("a growing buffer gets the memory of free handles that do not fit together",
          "[raii][pages][growing_buffer]") {
  machine_and_pool t({.capacity = 32_MiB, .taken = 0}, {.largest_handle = 64_MiB});
  void* blocks[3];
  std::size_t const bytes[] = {8_MiB, 8_MiB, 16_MiB};
  for (std::size_t i = 0; i < 3; ++i) blocks[i] = t.memory.allocate(t.stream, bytes[i]);
  for (std::size_t i = 0; i < 2; ++i) t.memory.deallocate(t.stream, blocks[i], bytes[i]);
  machine_and_pool::buffer_type buffer(t.memory, 16 * per_mib, t.stream);
  buffer.reserve(10 *
                 per_mib);  // one handle of 8 MiB, and 2 MiB that are created after the other is given back
  CHECK(buffer.capacity() == 10 * per_mib);
  CHECK(t.memory->upstream()->state().ooms == 0);
  t.memory.deallocate(t.stream, blocks[2], bytes[2]);
}

TEST_CASE("the growth that the pool suggests includes what a stream that still works has freed",
          "[raii][pages][growing_buffer]") {
  machine_and_pool t({}, {.largest_handle = 64_MiB});
  basic_stream<sim_driver> const other(t.memory.driver());
  machine_and_pool::buffer_type const buffer(t.memory, 1024 * per_mib, t.stream);
  void* const first = t.memory.allocate(other, 12_MiB);
  void* const second = t.memory.allocate(other, 12_MiB);
  REQUIRE(t.machine.launch(other, 1'000'000'000).ok());
  t.memory.deallocate(other, first, 12_MiB);
  t.memory.deallocate(other, second, 12_MiB);  // the thread's cache keeps this one
  CHECK(nearest(t.memory, pool_call::suggest_growth{t.stream, buffer.data(), 8_MiB}) == 12_MiB);
  CHECK(t.machine.pending() != 0);
}

TEST_CASE("a limit above the pool bounds a growing buffer", "[raii][pages][growing_buffer]") {
  sim_machine machine;
  auto memory = sim_pages(machine.driver(device_id{0})) | pooled{} | tracked{} | limited{64_MiB};
  basic_stream<sim_driver> const stream(memory.driver());
  growing_buffer<float, decltype(memory)> buffer(memory, 4096 * per_mib, stream, {24_MiB});
  buffer.resize(60 * per_mib);  // the last step is smaller than 24 MiB
  CHECK(buffer.capacity() <= 64 * per_mib);
  CHECK_THROWS_AS(buffer.resize(65 * per_mib), out_of_memory);
  buffer.resize(0);
  buffer.shrink_to_fit();
  CHECK(memory_allocated(memory) == 0);
}

TEST_CASE("a growing buffer sleeps, wakes and is compacted with its pool",
          "[raii][pages][growing_buffer][sleep]") {
  machine_and_pool t({.capacity = 1_GiB});
  machine_and_pool::buffer_type buffer(t.memory, 4096 * per_mib, t.stream);
  append_numbered(buffer, 70);
  float* const at = buffer.data();
  t.stream.synchronize();
  SECTION("asleep") {
    (void)sleep(t.memory, contents::in_pinned_memory);
    CHECK_THROWS_AS(buffer.reserve(200 * per_mib), pool_asleep);
    SECTION("and shrunk meanwhile") {
      buffer.resize(20 * per_mib);
      buffer.shrink_to_fit();
    }
    (void)wake(t.memory);
  }
  SECTION("compacted") {
    buffer.resize(33 * per_mib);
    buffer.shrink_to_fit();
    (void)compact(t.memory);
  }
  CHECK(buffer.data() == at);
  CHECK(has_its_numbers(buffer));
  append_numbered(buffer, 60);
  CHECK(has_its_numbers(buffer));
}

TEST_CASE("a report shows a growing buffer with its line and its bytes", "[raii][pages][growing_buffer]") {
  sim_machine machine;
  auto memory = sim_pages(machine.driver(device_id{0})) | pooled{} | tracked{} | with_history{.history = 100};
  basic_stream<sim_driver> const stream(memory.driver());
  growing_buffer<float, decltype(memory)> buffer(memory, 4096 * per_mib, stream);
  buffer.resize(40 * per_mib, tag("cache"));
  auto const taken = take_snapshot(memory);
  std::size_t live = 0;
  for (auto const& segment : taken.segments) {
    for (auto const& block : segment.blocks) live += block.use == block_use::live ? block.bytes : 0;
  }
  CHECK(live == memory_allocated(memory));
  page_pin pin(memory, buffer.data(), 2_MiB);
  CHECK(pin.segments().size() == 1);
}

TEST_CASE("growth over elements that another stream still uses waits for it",
          "[raii][pages][growing_buffer]") {
  sim_machine machine{{.backing = sim_backing::address_only, .checks = sim_checks::stream_order}};
  sim_driver const driver = machine.driver(device_id{0});
  auto memory = sim_pages(driver) | pooled{} | tracked{};
  basic_stream<sim_driver> const stream(driver);
  basic_stream<sim_driver> const other(driver);
  growing_buffer<float, decltype(memory)> buffer(memory, 1024 * per_mib, stream, {8_MiB});
  buffer.resize(16 * per_mib);
  detail::order_streams(driver, stream_ref(other), driver, stream_ref(stream));
  REQUIRE(driver.launch(other, 1'000'000, {sim_writes(buffer.data() + 8 * per_mib, 8_MiB)}).ok());
  buffer.record_stream(other);
  buffer.resize(8 * per_mib);
  buffer.shrink_to_fit();
  buffer.resize(16 * per_mib);
  REQUIRE(driver.launch(stream, 1'000, {sim_writes(buffer.data(), 16_MiB)}).ok());
  CHECK(machine.findings().empty());
  CHECK(memory_allocated(memory) == 16_MiB);
  buffer.reset();
  CHECK(memory_allocated(memory) == 0);
  memory.empty_cache();
  CHECK(machine.findings().empty());
}

TEST_CASE("growth waits for the work on its addresses only, also after it has waited for several streams",
          "[raii][pages][growing_buffer]") {
  sim_machine machine{{.capacity = 16_MiB, .taken = 0, .backing = sim_backing::address_only}};
  sim_driver const driver = machine.driver(device_id{0});
  auto memory = sim_pages(driver) | pooled{};
  basic_stream<sim_driver> const stream(driver);
  basic_stream<sim_driver> const other(driver);
  basic_stream<sim_driver> const busy(driver);
  growing_buffer<float, decltype(memory)> buffer(memory, 1024 * per_mib, stream, {8_MiB});
  // The pages at the end, which a block of another stream takes meanwhile, are unmapped once no work uses
  // their addresses.
  auto const shrink_and_grow = [&](stream_ref last) {
    buffer.set_stream(last);
    REQUIRE(driver.launch(last, 1'000).ok());
    buffer.resize(8 * per_mib);
    buffer.shrink_to_fit();
    make_device_buffer<float>(memory, 8 * per_mib, busy).reset();
    REQUIRE(driver.launch(busy, 1'000'000'000).ok());
    buffer.resize(16 * per_mib);
  };
  for (std::size_t size : {8, 16}) buffer.resize(size * per_mib);
  shrink_and_grow(other);
  shrink_and_grow(stream);
  auto const start = machine.now();
  shrink_and_grow(stream);
  CHECK(machine.now() - start < 1'000'000'000);
}

TEST_CASE("growth over memory that another stream has freed meanwhile is ordered after its work",
          "[raii][pages][growing_buffer]") {
  sim_machine machine{{.capacity = 24_MiB,
                       .taken = 0,
                       .backing = sim_backing::address_only,
                       .checks = sim_checks::stream_order}};
  sim_driver const driver = machine.driver(device_id{0});
  auto memory = sim_pages(driver) | pooled{} | tracked{};
  basic_stream<sim_driver> const stream(driver);
  basic_stream<sim_driver> const other(driver);
  growing_buffer<float, decltype(memory)> buffer(memory, 1024 * per_mib, stream, {8_MiB});
  for (std::size_t size = 8; size <= 24; size += 8) buffer.resize(size * per_mib);
  buffer.resize(8 * per_mib);
  buffer.shrink_to_fit();
  // Both are in handles that the buffer still maps. The thread's cache keeps the one that is freed last.
  auto first = make_device_buffer<float>(memory, 8 * per_mib, other);
  auto second = make_device_buffer<float>(memory, 8 * per_mib, other);
  for (auto* block : {&second, &first}) {
    machine.allocated(block->data(), 8_MiB, other);
    REQUIRE(driver.launch(other, 1'000'000, {sim_writes(block->data(), 8_MiB)}).ok());
    machine.freed(block->data(), 8_MiB, other);
    block->reset();
  }
  buffer.resize(16 * per_mib);
  machine.allocated(buffer.data(), 16_MiB, stream);
  REQUIRE(driver.launch(stream, 1'000, {sim_writes(buffer.data(), 16_MiB)}).ok());
  CHECK(machine.findings().empty());
}

TEST_CASE("a growth that fails after a wait leaves the pool's searches as short as before",
          "[raii][pages][growing_buffer]") {
  sim_options options;
  options.capacity = 64_MiB;
  options.taken = 0;
  sim_machine const machine(options);
  fault_plan const plan;
  auto memory = basic_pages<faulty<sim_driver>>(faulty<sim_driver>{machine.driver(0), plan}) | pooled{};
  basic_stream<faulty<sim_driver>> const s(memory.driver()), user(memory.driver());
  growing_buffer<std::byte, decltype(memory)> buffer(memory, 64_MiB, s, growing_options{32_MiB});
  void* const p = memory.allocate(s, 32_MiB);
  void* const q = memory.allocate(s, 32_MiB);
  memory.record_stream(p, 32_MiB, user);
  REQUIRE(machine.launch(user, 1'000'000'000).ok());
  memory.deallocate(s, p, 32_MiB);
  plan.fail(driver_call::map_pages, 1);
  CHECK_THROWS_AS(buffer.reserve(32_MiB), cuda_error);
  memory->inspect([&](auto const&, auto& heap, auto&...) {
    auto const held = heap.lock_hot();
    CHECK(heap.space(held).search_limit == detail::range_index::search_limit);
  });
  buffer.reserve(32_MiB);
  memory.deallocate(s, q, 32_MiB);
}

TEST_CASE("growth does not take what another thread takes while pages are unmapped for it",
          "[raii][pages][growing_buffer][threads]") {
  sim_machine machine{{.capacity = 36_MiB, .taken = 0}};
  std::function<void()> at_unmap;
  tarn_test::calling_driver const driver(machine.driver(device_id{0}), driver_call::unmap_pages, at_unmap);
  auto memory = basic_pages(driver) | pooled{} | tracked{};
  basic_stream const stream(driver);
  growing_buffer<float, decltype(memory)> buffer(memory, 1024 * per_mib, stream, {8_MiB});
  for (std::size_t size = 8; size <= 24; size += 8) buffer.resize(size * per_mib);
  buffer.resize(8 * per_mib);
  buffer.shrink_to_fit();
  std::array<void*, 2> const blocks{memory.allocate(stream, 8_MiB), memory.allocate(stream, 8_MiB)};
  memory.deallocate(stream, memory.allocate(stream, 12_MiB), 12_MiB);
  memory.deallocate(stream, blocks[0], 8_MiB);
  void* taken = nullptr;
  at_unmap = [&] { std::thread([&] { taken = memory.allocate(stream, 8_MiB); }).join(); };
  // It still maps a free handle, and behind it one that is in use, which it unmaps first.
  CHECK_THROWS_AS(buffer.resize(24 * per_mib), out_of_memory);
  REQUIRE(taken != nullptr);
  CHECK(memory_allocated(memory) == 24_MiB);
  memory.deallocate(stream, taken, 8_MiB);
  memory.deallocate(stream, blocks[1], 8_MiB);
  buffer.resize(24 * per_mib);
  CHECK(memory_allocated(memory) == 24_MiB);
}

TEST_CASE("what a capture has used of a growing buffer is kept for its graph",
          "[raii][pages][growing_buffer]") {
  for (capture_watch const watch :
       {capture_watch::at_frees, capture_watch::in_scopes, capture_watch::always}) {
    machine_and_pool t({}, {.captures = watch});
    auto graphs = std::make_unique<graph_memory<stack<sim_pages, pooled, tracked>>>(t.memory);
    machine_and_pool::buffer_type buffer(t.memory, 1024 * per_mib, t.stream, {8_MiB});
    buffer.resize(8 * per_mib);
    {
      capture_scope const scope(*graphs, t.stream);
      sim_graph recorded;
      REQUIRE(t.machine.begin_capture(t.stream).ok());
      buffer.reset();
      REQUIRE(t.machine.end_capture(t.stream, recorded).ok());
    }
    std::size_t const reserved = memory_reserved(t.memory);
    auto const block = make_device_buffer<char>(t.memory, 8_MiB, t.stream);
    CHECK(memory_reserved(t.memory) > reserved);  // not the graph's memory
    CHECK_THROWS_AS(buffer.resize(per_mib), cuda_error);
    graphs.reset();
    buffer.resize(per_mib);
    CHECK(buffer.keeps_address());
  }
}

TEST_CASE("a growing buffer refuses to grow in a capture, and grows after it",
          "[raii][pages][growing_buffer]") {
  machine_and_pool t;
  graph_memory graphs(t.memory);
  machine_and_pool::buffer_type buffer(t.memory, 64 * per_mib, t.stream);
  append_numbered(buffer, 8);
  {
    capture_scope const scope(graphs, t.stream);
    sim_graph graph;
    REQUIRE(t.machine.begin_capture(t.stream).ok());
    CHECK_THROWS_AS(buffer.reserve(32 * per_mib), cuda_error);
    REQUIRE(t.machine.end_capture(t.stream, graph).ok());
  }
  CHECK(buffer.size() == 8 * per_mib);
  append_numbered(buffer, 24);
  CHECK(has_its_numbers(buffer));
}

TEST_CASE("a growing buffer does not grow over pages that it gave back and that are pinned",
          "[raii][pages][growing_buffer]") {
  machine_and_pool t;
  machine_and_pool::buffer_type buffer(t.memory, 64 * per_mib, t.stream, {8_MiB});
  append_numbered(buffer, 16);
  {
    page_pin const pin(t.memory, buffer.data() + 8 * per_mib, 8_MiB);
    buffer.resize(8 * per_mib);
    buffer.shrink_to_fit();
    auto const other = make_device_buffer<char>(t.memory, 8_MiB, t.stream);  // takes them
    CHECK_THROWS_AS(buffer.reserve(16 * per_mib), misuse);
    CHECK(buffer.capacity() == 8 * per_mib);
  }
  append_numbered(buffer, 8);
  CHECK(has_its_numbers(buffer));
}

namespace {
/// A layer that moves blocks, and does not hide allocate_at().
template <class Upstream>
struct moving_layer : resource_adaptor<moving_layer<Upstream>, Upstream> {
  using base = resource_adaptor<moving_layer, Upstream>;
  template <class Options>
  moving_layer(Upstream upstream, Options const&) : base(std::move(upstream)) {}
  void* allocate_at(stream_ref stream, void* at, std::size_t bytes, std::size_t alignment) {
    auto* const p = static_cast<std::byte*>(base::allocate_at(stream, at, bytes, alignment));
    return p + 256;
  }
  void deallocate_at(stream_ref stream, void* p, std::size_t bytes, std::size_t alignment) noexcept {
    base::deallocate_at(stream, static_cast<std::byte*>(p) - 256, bytes, alignment);
  }
};
struct moving {
  template <class Upstream>
  using layer = moving_layer<Upstream>;
};
}  // namespace

TEST_CASE("a growing buffer refuses a layer that moves its blocks, and keeps nothing",
          "[raii][pages][growing_buffer]") {
  sim_machine const machine;
  auto memory = sim_pages(machine.driver()) | pooled{} | tracked{} | moving{};
  growing_buffer<float, decltype(memory)> buffer(memory, 64 * per_mib, stream_ref{});
  CHECK_THROWS_AS(buffer.reserve(per_mib), misuse);
  CHECK(buffer.capacity() == 0);
  CHECK(memory_allocated(memory) == 0);
}

TEST_CASE("buffers that come and go leave no addresses and no mappings", "[raii][pages][growing_buffer]") {
  machine_and_pool t;
  for (int i = 0; i < 3000; ++i) {
    machine_and_pool::buffer_type buffer(t.memory, 64 * per_mib, t.stream);
    buffer.resize(per_mib);
  }
  auto const calls = t.machine.calls();
  CHECK(calls[driver_call::map_pages] - calls[driver_call::unmap_pages] < 1100);
}

TEST_CASE("one more element takes no more than a step", "[raii][pages][growing_buffer]") {
  machine_and_pool t;
  { auto const block = make_device_buffer<char>(t.memory, 96_MiB, t.stream); }
  machine_and_pool::buffer_type buffer(t.memory, 1024 * per_mib, t.stream, {2_MiB});
  buffer.resize(1);
  CHECK(buffer.capacity() <= 4 * per_mib);
}

TEST_CASE("a growing buffer over memory without pages doubles and copies", "[raii][growing_buffer]") {
  auto grows = [](auto memory) {
    basic_stream<typename decltype(memory)::driver_type> const stream(memory.driver());
    growing_buffer<float, decltype(memory)> buffer(memory, 64 * per_mib, stream);
    CHECK_FALSE(buffer.keeps_address());
    append_numbered(buffer, 20);
    CHECK(buffer.capacity() == 32 * per_mib);
    CHECK(has_its_numbers(buffer));
    buffer.shrink_to_fit();
    CHECK(buffer.capacity() == 20 * per_mib);
    CHECK(has_its_numbers(buffer));
    CHECK_THROWS_AS(buffer.resize(65 * per_mib), length_error);
  };
  sim_machine machine;
  SECTION("cudaMalloc") {
    grows(basic_malloc<sim_driver>(machine.driver(device_id{0})) | pooled{});
  }
  SECTION("a layer that moves addresses") {
    grows(sim_pages(machine.driver(device_id{0})) | pooled{} | checked{});
  }
  SECTION("a memory tool is attached, and pools use whole blocks") {
    sim_machine const watched{{.tool = sim_tool::attached}};
    grows(sim_pages(watched.driver(device_id{0})) | pooled{});
    CHECK(watched.tool_findings().empty());
  }
  SECTION("pages larger than the steps") {
    sim_machine const large{{.granularity = 4_MiB}};
    grows(sim_pages(large.driver(device_id{0})) | pooled{});
  }
  SECTION("a device without pages") {
    sim_machine const virtual_gpu{{.paging = sim_paging::missing}};
    grows(sim_pages(virtual_gpu.driver(device_id{0})) | pooled{});
  }
}

TEST_CASE("swap exchanges the elements and the streams of two growing buffers", "[raii][growing_buffer]") {
  sim_machine const machine;
  auto swaps = [](auto memory) {
    basic_stream<typename decltype(memory)::driver_type> const one(memory.driver()), two(memory.driver());
    growing_buffer<float, decltype(memory)> a(memory, 64 * per_mib, one), b(memory, 8 * per_mib, two);
    append_numbered(a, 20);
    append_numbered(b, 3);
    swap(a, b);
    CHECK((a.size() == 3 * per_mib && b.size() == 20 * per_mib));
    CHECK((a.stream() == stream_ref(two) && b.stream() == stream_ref(one)));
    CHECK((has_its_numbers(a) && has_its_numbers(b)));
    append_numbered(b, 10);
    CHECK(has_its_numbers(b));
    CHECK_THROWS_AS(a.resize(9 * per_mib), length_error);
  };
  swaps(sim_pages(machine.driver(device_id{0})) | pooled{});
  swaps(basic_malloc<sim_driver>(machine.driver(device_id{0})) | pooled{});
}

TEST_CASE("a growing buffer refuses a pool with one handle for each block", "[raii][pages][growing_buffer]") {
  machine_and_pool t({}, {.handles = handles_per_block::one});
  CHECK_THROWS_AS(machine_and_pool::buffer_type(t.memory, per_mib, t.stream), misuse);
}

TEST_CASE("a request is served by new memory where growing buffers have all addresses for views",
          "[raii][pages][growing_buffer]") {
  machine_and_pool t({.capacity = 8_GiB, .taken = 0});
  std::vector<machine_and_pool::buffer_type> all;
  for (std::size_t most = 65'536 * per_mib; most != 0;) {
    try {
      all.emplace_back(t.memory, most, t.stream);
    } catch (out_of_memory const&) {
      most /= 2;
    }
  }
  std::vector<device_buffer<char, stack<sim_pages, pooled, tracked>>> blocks;
  for (int i = 0; i < 110; ++i) blocks.push_back(make_device_buffer<char>(t.memory, 9'728'000, t.stream));
  for (std::size_t i = 0; i < blocks.size(); i += 2) blocks[i].reset();
  for (std::size_t bytes = 9'216'000; bytes < 40'000'000; bytes += 716'800)
    (void)make_device_buffer<char>(t.memory, bytes, t.stream);
}

TEST_CASE("a growing buffer appends elements of its own", "[raii][pages][growing_buffer]") {
  auto const appends = [](auto memory) {
    basic_stream<sim_driver> const stream(memory.driver());
    growing_buffer<float, decltype(memory)> buffer(memory, 64 * per_mib, stream);
    append_numbered(buffer, 2);
    buffer.append(buffer.span());
    buffer.append(buffer.span().subspan(per_mib, 2 * per_mib));
    std::vector<float> const host = host_copy_of(buffer);
    float const expected[] = {0, 1, 0, 1, 1, 0};
    REQUIRE(host.size() == std::size(expected) * per_mib);
    for (std::size_t i = 0; i < std::size(expected); ++i) CHECK(host[i * per_mib] == expected[i]);
  };
  sim_machine machine;
  SECTION("at one address") {
    appends(sim_pages(machine.driver(device_id{0})) | pooled{});
  }
  SECTION("while they move") {
    appends(basic_malloc<sim_driver>(machine.driver(device_id{0})) | pooled{} | poisoned{});
  }
}

TEST_CASE("growing_buffer set_stream orders the default streams of two threads",
          "[raii][pages][growing_buffer][stream]") {
  machine_and_pool t;
  stream_ref const per_thread = stream_ref::from(reinterpret_cast<void*>(2));
  machine_and_pool::buffer_type buffer(t.memory, per_mib, per_thread);
  buffer.resize(4);
  buffer.fill(std::byte{});
  REQUIRE(t.memory.driver().synchronize_stream(per_thread).ok());
  REQUIRE(t.memory.driver().launch(per_thread, 1'000'000'000).ok());
  buffer.fill(std::byte{1});
  unsigned read = 0;
  std::thread([&] {
    buffer.set_stream(per_thread);
    float const element = host_copy_of(buffer)[0];
    std::memcpy(&read, &element, sizeof(read));
  }).join();
  CHECK(read == 0x01010101U);
}
