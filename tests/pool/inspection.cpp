// SPDX-License-Identifier: Apache-2.0
// What a pool exposes to tools: inspection, pool_facts, growth_notes.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "tarn/debug/fenced.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/pool/inspection/inspection.hpp"
#include "tarn/pool/pages/growth.hpp"
#include "tarn/sim.hpp"

using namespace tarn;

namespace {

std::uint64_t ticks() noexcept {
  static std::atomic<std::uint64_t> now{0};
  return ++now;
}

struct sums {
  std::size_t live = 0;
  std::size_t cached = 0;
  std::size_t segments = 0;
  std::map<std::uintptr_t, std::size_t> live_blocks;
};

/// Checks that blocks tile their segments and segments do not overlap; returns the sums.
sums sums_of(detail::pool_contents const& contents) {
  sums s;
  std::uintptr_t end = 0;
  std::size_t mistakes = 0;
  for (auto const& segment : contents.segments) {
    mistakes += segment.address < end;
    std::uintptr_t at = segment.address;
    for (auto const& b : segment.blocks) {
      mistakes += b.address != at || b.bytes == 0;
      at += b.bytes;
      (b.use == block_use::live ? s.live : s.cached) += b.bytes;
      if (b.use == block_use::live) s.live_blocks.emplace(b.address, b.bytes);
    }
    end = at;
    mistakes += at != segment.address + segment.bytes;
    s.segments += segment.bytes;
  }
  CHECK(mistakes == 0);
  CHECK(s.segments == contents.reserved);
  std::size_t held = 0;
  for (auto const& h : contents.held) held += h.bytes;
  CHECK(held == contents.reserved);
  return s;
}

}  // namespace

TEST_CASE("growth_notes keeps the latest notes, oldest first, and none before open", "[pool][growth_notes]") {
  detail::recursive_fork_mutex mutex;
  detail::growth_lock const growing(mutex);
  detail::growth_notes notes;
  notes.add(growing, detail::growth_change::made, 1, 10);
  CHECK(notes.size() == 0);
  notes.start(growing, 3, ticks);
  for (std::uintptr_t i = 1; i <= 2; ++i) notes.add(growing, detail::growth_change::made, i, 10 * i);
  CHECK(notes.size() == 2);
  CHECK(notes[0].address == 1);
  for (std::uintptr_t i = 3; i <= 8; ++i) notes.add(growing, detail::growth_change::given_back, i, 10 * i);
  REQUIRE(notes.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(notes[i].address == 6 + i);
    CHECK(notes[i].bytes == 60 + 10 * i);
    if (i != 0) CHECK(notes[i].time == notes[i - 1].time + 1);
  }
  CHECK(notes.host_bytes() == 3 * sizeof(detail::growth_note));
  notes.start(growing, 0, ticks);
  CHECK(!notes.is_on());
  CHECK(notes.size() == 0);
}

TEST_CASE("contents_of a pool lists each live block with its address and size", "[pool][inspection][pages]") {
  auto const try_on = [](auto memory, auto const& machine) {
    (void)machine;
    std::mt19937 random(5);
    std::map<std::uintptr_t, std::size_t> live;
    std::size_t views = 0;
    for (int step = 0; step < 15000; ++step) {
      if (live.size() < 150 && random() % 2 == 0) {
        // Separate statements: compilers and sanitizers differ in the order in which operands are evaluated.
        std::size_t const most = std::size_t{1} << (4 + random() % 20);
        std::size_t const bytes = 1 + random() % most;
        try {
          live.emplace(reinterpret_cast<std::uintptr_t>(memory.allocate({}, bytes)), bytes);
        } catch (out_of_memory const&) {
        }
      } else if (!live.empty()) {
        auto const b = std::next(live.begin(), static_cast<std::ptrdiff_t>(random() % live.size()));
        memory.deallocate({}, reinterpret_cast<void*>(b->first), b->second);
        live.erase(b);
      }
      if (step % 100 != 0) continue;  // with 90 MiB 150 inspections find 127 views
      auto const contents = detail::contents_of(memory.layer());
      sums const s = sums_of(contents);
      for (auto const& segment : contents.segments) views += segment.kind == segment_kind::view;
      REQUIRE(s.live_blocks.size() == live.size());
      bool same = true;
      for (auto const& [address, bytes] : live) {
        auto const found = s.live_blocks.find(address);
        same = same && found != s.live_blocks.end() && found->second == detail::rounded_bytes(bytes, 256);
      }
      CHECK(same);
      CHECK(s.live == memory->state().live);
    }
    for (auto const& [address, bytes] : live) memory.deallocate({}, reinterpret_cast<void*>(address), bytes);
    CHECK(sums_of(detail::contents_of(memory.layer())).live == 0);
    return views;
  };
  sim_machine const machine{sim_options{.backing = sim_backing::address_only}};
  SECTION("pages, some of them mapped in views") {
    CHECK(try_on(sim_pages{machine.driver(0)} | limited{90_MiB} | pooled{}, machine) > 0);
  }
  SECTION("blocks of an upstream that begin and end between two grains") {
    sim_machine const backed{sim_options{.capacity = 2_GiB, .taken = 0}};
    CHECK(try_on(sim_malloc{backed.driver(0)} | limited{220_MiB} | fenced{} | pooled{}, backed) == 0);
  }
  SECTION("blocks of an upstream") {
    CHECK(try_on(sim_malloc{machine.driver(0)} | limited{220_MiB} | pooled{}, machine) == 0);
  }
}

TEST_CASE("contents_of a pool makes no driver call and leaves the magazines as they are",
          "[pool][inspection]") {
  sim_machine const machine{sim_options{.backing = sim_backing::address_only}};
  auto memory = sim_pages{machine.driver(0)} | pooled{};
  std::vector<void*> blocks;
  for (int i = 0; i < 40; ++i) blocks.push_back(memory.allocate({}, 5000));
  for (void* const p : blocks) memory.deallocate({}, p, 5000);
  pool_state const before = memory->state();
  std::uint64_t const calls = machine.calls().memory();
  CHECK(sums_of(detail::contents_of(memory.layer())).live == 0);
  CHECK(machine.calls().memory() == calls);
  pool_state const after = memory->state();
  CHECK(after.inactive_split_bytes == before.inactive_split_bytes);  // differs if magazines were emptied
  CHECK(after.free_blocks == before.free_blocks);
  CHECK(memory.allocate({}, 5000) == blocks.back());
  memory.deallocate({}, blocks.back(), 5000);
}

TEST_CASE("pool_facts::copy makes room for ranges, runs and streams before it takes the hot lock",
          "[pool][inspection]") {
  sim_machine const machine;
  auto memory = sim_pages{machine.driver(0)} | pooled{};
  std::vector<basic_stream<sim_driver>> streams;
  for (int i = 0; i < 9; ++i) streams.emplace_back(machine.driver(0));
  std::vector<void*> blocks;
  for (auto const& s : streams) {
    for (int i = 0; i < 30; ++i) blocks.push_back(memory.allocate(s, 16_KiB));
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) memory.deallocate(streams[i / 30], blocks[i], 16_KiB);
  memory.empty_cache();
  detail::pool_facts facts;
  std::size_t ranges = 0, runs = 0, domains = 0;
  auto const look = [&](detail::growth_lock const& growing, auto& heap, auto& front, auto& deferred, auto&) {
    facts.copy(growing, heap, front, deferred);
    detail::hot_lock const held = heap.lock_hot();
    ranges = heap.space(held).ranges.size();
    runs = heap.space(held).runs.size();
    domains = heap.space(held).streams.size();
  };
  nearest(memory, pool_call::inspect{look});
  // As much as the tables may hold, although nothing is left. A list that grows under the lock has another
  // size.
  CHECK((ranges != 0 && runs != 0 && domains == 10));
  CHECK(facts.ranges.capacity() == ranges);
  CHECK(facts.runs.capacity() == runs);
  CHECK(facts.domains.capacity() == domains);
  CHECK(facts.generations.capacity() == domains);
}

TEST_CASE("stopped_threads keeps the warm calls of every thread out while it exists", "[pool][inspection]") {
  sim_machine const machine{sim_options{.backing = sim_backing::address_only}};
  auto memory = sim_pages{machine.driver(0)} | pooled{};
  basic_stream<sim_driver> const s(machine.driver(0));
  memory.deallocate(s, memory.allocate(s, 5000), 5000);  // the calling thread caches it
  detail::block_size const size{5000, default_alignment};
  auto const look = [&](detail::growth_lock const& growing, auto&, auto& front, auto&, auto&) {
    stream_id const id = stream_ref(s).id();
    {
      detail::stopped_threads const stopped(growing, front);
      CHECK(front.take(id, size) == nullptr);
    }
    void* const p = front.take(id, size);
    CHECK(p != nullptr);
    CHECK(front.put(id, p, size));
  };
  nearest(memory, pool_call::inspect{look});
}

TEST_CASE("contents_of a pool blocks concurrent threads only while it runs", "[pool][inspection][threads]") {
  sim_machine const machine{sim_options{.backing = sim_backing::address_only}};
  auto memory = sim_pages{machine.driver(0)} | pooled{};
  std::atomic<bool> over{false};
  std::atomic<std::uint64_t> pairs{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      while (!over) {
        for (std::size_t const bytes : {std::size_t{300}, 3000_KiB, std::size_t{70000}})
          memory.deallocate({}, memory.allocate({}, bytes), bytes);
        ++pairs;
      }
    });
  }
  for (int i = 0; i < 100; ++i) (void)sums_of(detail::contents_of(memory.layer()));
  std::uint64_t const so_far = pairs;
  while (pairs < so_far + 100) std::this_thread::yield();
  over = true;
  for (std::thread& t : threads) t.join();
  CHECK(sums_of(detail::contents_of(memory.layer())).live == 0);
}
