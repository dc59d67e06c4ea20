// SPDX-License-Identifier: Apache-2.0
// Growth by pages (page_growth) and by blocks (segment_growth), and the release of both.

#include <atomic>
#include <cmath>
#include <functional>
#include <random>
#include <semaphore>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/retry_on_oom.hpp"
#include "tarn/raii/compact.hpp"
#include "tarn/raii/graph_memory.hpp"
#include "tarn/raii/sleep.hpp"
#include "tarn/raii/stream.hpp"
#include "tarn/sharing/page_pin.hpp"
#include "tarn/sim.hpp"

using namespace tarn;

namespace {
struct one_stream {
  sim_machine machine{sim_options{.backing = sim_backing::address_only}};
  sim_driver driver = machine.driver(0);
  stream_ref a;
};

/// Calls a handler before it refuses a handle.
struct pages_with_handler : sim_pages {
  pages_with_handler(sim_driver const& driver, std::function<void()> h)
      : sim_pages(driver), handler(std::move(h)) {}
  [[nodiscard]] page_handle create(std::size_t bytes) {
    try {
      return sim_pages::create(bytes);
    } catch (out_of_memory const&) {
      handler();
      throw;
    }
  }
  std::function<void()> handler;
};
}  // namespace

TEST_CASE("trim releases free handles and keeps live data", "[pool][page_growth][pool_state]") {
  one_stream s;
  auto memory = sim_pages{s.driver} | pooled{};
  std::vector<void*> live;
  for (int i = 0; i < 100; ++i) live.push_back(memory.allocate(s.a, 9_MiB));
  // Three of each four neighbours are freed: a handle of at most 20 MiB lies within them.
  auto const stays = [](std::size_t i) { return i % 4 == 0; };
  std::size_t kept = 0;
  for (std::size_t i = 0; i < live.size(); ++i) {
    if (stays(i)) ++kept;
    if (!stays(i)) memory.deallocate(s.a, live[i], 9_MiB);
  }
  std::size_t const before = memory->state().reserved;
  std::size_t const given = memory.trim(0);
  CHECK(given > 0);
  CHECK(memory->state().reserved == before - given);
  CHECK(memory->state().live == kept * 9_MiB);
  for (std::size_t i = 0; i < live.size(); ++i) {
    if (stays(i)) memory.deallocate(s.a, live[i], 9_MiB);
  }
  memory.empty_cache();
  CHECK(memory->state().reserved == 0);
  CHECK(memory->state().live_blocks == 0);
}

TEST_CASE("pooled under a limit serves everything that was freed as one block", "[pool][page_growth]") {
  one_stream s;
  auto memory = sim_pages{s.driver} | limited{1_GiB} | pooled{};
  std::vector<void*> blocks;
  for (int i = 0; i < 500; ++i) blocks.push_back(memory.allocate(s.a, 2_MiB));
  for (void* p : blocks) memory.deallocate(s.a, p, 2_MiB);
  void* const all = memory.allocate(s.a, 1000_MiB);
  CHECK(memory->state().reserved <= 1_GiB);
  memory.deallocate(s.a, all, 1000_MiB);
}

TEST_CASE("pooled serves one large block from a freed checkerboard of whole handles under a limit",
          "[pool][page_growth]") {
  one_stream s;
  auto memory = sim_pages{s.driver} | limited{8_GiB} | pooled{};
  std::vector<void*> blocks;
  for (int i = 0; i < 4096; ++i) blocks.push_back(memory.allocate(s.a, 2_MiB));
  for (std::size_t i = 0; i < blocks.size(); i += 2) memory.deallocate(s.a, blocks[i], 2_MiB);
  void* const large = memory.allocate(s.a, 4_GiB);
  memory.deallocate(s.a, large, 4_GiB);
  for (std::size_t i = 1; i < blocks.size(); i += 2) memory.deallocate(s.a, blocks[i], 2_MiB);
}

TEST_CASE("blocks of a large pool share handles of 8 MiB unless they fill whole granules",
          "[pool][ladder][page_growth][pages]") {
  one_stream s;
  auto memory = sim_pages{s.driver} | pooled{};
  auto const creates_for = [&](std::size_t count, std::size_t bytes) {
    std::vector<void*> blocks;
    std::uint64_t const before = memory->state().creates;
    for (std::size_t i = 0; i < count; ++i) blocks.push_back(memory.allocate(s.a, bytes));
    std::uint64_t const made = memory->state().creates - before;
    for (void* const p : blocks) memory.deallocate(s.a, p, bytes);
    memory.trim(memory->state().live);
    return made;
  };
  std::size_t const odd = 2_MiB + 512;
  CHECK(creates_for(64, odd) >= 60);
  void* const rest = memory.allocate(s.a, 3_GiB);
  CHECK(creates_for(64, odd) <= 20);
  CHECK(creates_for(64, 2_MiB) == 64);
  memory.deallocate(s.a, rest, 3_GiB);
}

TEST_CASE("pooled refuses a request larger than the device before it creates any pages",
          "[pool][page_growth][!mayfail]") {
  sim_options options{.backing = sim_backing::address_only};
  options.capacity = 2_GiB;
  options.taken = 512_MiB;  // by other processes
  sim_machine const machine{options};
  auto memory = sim_pages{machine.driver(0)} | pooled{};
  void* const live = memory.allocate({}, 256_MiB);
  memory.deallocate({}, memory.allocate({}, 128_MiB), 128_MiB);
  auto const before = memory->state();
  for (std::size_t const bytes : {1500_MiB, 2_GiB, 20_GiB}) {
    try {
      (void)memory.allocate({}, bytes);
      FAIL("the allocation must not succeed");
    } catch (out_of_memory const& e) {
      CHECK(e.asked() == bytes);
    }
    auto const after = memory->state();
    CHECK(after.creates == before.creates);
    CHECK(after.reserved <= before.reserved);
    CHECK(after.reserved_peak == before.reserved_peak);
  }
  void* const most = memory.allocate({}, 1200_MiB);  // free device memory and cached memory together
  memory.deallocate({}, most, 1200_MiB);
  memory.deallocate({}, live, 256_MiB);
}

TEST_CASE("pooled serves smaller requests after out_of_memory", "[pool][ladder]") {
  one_stream s;
  auto memory = sim_pages{s.driver} | limited{100_MiB} | pooled{};
  void* const p = memory.allocate(s.a, 60_MiB);
  try {
    (void)memory.allocate(s.a, 60_MiB);
    FAIL("the allocation exceeded the limit");
  } catch (out_of_memory const& e) {
    CHECK(e.report().limit == 100_MiB);
    CHECK(e.report().live == 60_MiB);
    CHECK(e.asked() == 60_MiB);
  }
  void* const q = memory.allocate(s.a, 30_MiB);
  memory.deallocate(s.a, q, 30_MiB);
  memory.deallocate(s.a, p, 60_MiB);
  CHECK(memory->state().ooms == 1);
}

TEST_CASE("pooled serves blocks of any alignment from pages of any granularity", "[pool][page_growth]") {
  sim_options o{.capacity = 8_GiB, .granularity = 2_MiB, .backing = sim_backing::address_only};
  o.granularity = GENERATE(64_KiB, 2_MiB, 4_MiB, 32_MiB);
  sim_machine const machine(o);
  {
    auto memory = sim_pages{machine.driver()} | pooled{};
    std::vector<std::pair<void*, std::size_t>> live;
    std::mt19937_64 random(3);
    bool aligned = true;
    for (int i = 0; i < 2000; ++i) {
      if (live.size() > 50 || (!live.empty() && random() % 2 == 0)) {
        std::swap(live[random() % live.size()], live.back());
        memory.deallocate({}, live.back().first, live.back().second, 2_MiB);
        live.pop_back();
        continue;
      }
      std::size_t const bytes = 1 + random() % (random() % 2 == 0 ? 5_MiB : 40_MiB);
      void* const p = memory.allocate({}, bytes, 2_MiB);
      aligned = aligned && reinterpret_cast<std::uintptr_t>(p) % 2_MiB == 0;
      live.emplace_back(p, bytes);
    }
    CHECK(aligned);
    for (auto const& [p, bytes] : live) memory.deallocate({}, p, bytes, 2_MiB);
    memory.empty_cache();
    CHECK(memory->state().reserved == 0);
  }
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("pooled with remapping::off never remaps a handle", "[pool][options]") {
  one_stream s;
  auto memory = sim_pages{s.driver} | pooled{.remap = remapping::off};
  std::mt19937 random(4);
  for (int round = 0; round < 3; ++round) {
    std::vector<std::pair<void*, std::size_t>> live;
    for (int i = 0; i < 300; ++i) {
      std::size_t const bytes = (1 + random() % 100) * 1_MiB;
      live.emplace_back(memory.allocate(s.a, bytes), bytes);
      if (random() % 2 == 0) {
        std::size_t const k = random() % live.size();
        memory.deallocate(s.a, live[k].first, live[k].second);
        live[k] = live.back();
        live.pop_back();
      }
    }
    for (auto const& [p, bytes] : live) memory.deallocate(s.a, p, bytes);
  }
  CHECK(memory->state().remaps == 0);
}

TEST_CASE("with handles_per_block::one each block lies within one handle, also after compact and wake",
          "[pool][options][pages]") {
  auto const seed = GENERATE(range(1u, 5u));
  CAPTURE(seed);
  sim_options options;
  options.capacity = 512_MiB;
  options.taken = 0;
  sim_machine const machine(options);
  {
    sim_driver const driver = machine.driver(0);
    stream_ref streams[2];
    for (stream_ref& s : streams) REQUIRE(driver.create_stream(s).ok());
    auto memory = sim_pages{driver} | pooled{.handles = handles_per_block::one};
    std::mt19937 random(seed);
    struct block {
      unsigned char* p;
      std::size_t bytes;
      unsigned char written;
    };
    std::vector<block> live;
    auto const check_all = [&] {
      for (block const& b : live) {
        auto const segments = segments_of(memory, b.p, b.bytes);
        REQUIRE(segments.size() == 1);
        CHECK(segments[0].bytes == b.bytes);
        CHECK(b.p[0] == b.written);
        CHECK(b.p[b.bytes - 1] == b.written);
      }
    };
    for (int round = 0; round < 4; ++round) {
      for (int i = 0; i < 120; ++i) {
        std::size_t const bytes = std::size_t{1 + random() % 1000} << (4 + random() % 10);
        try {
          live.push_back({static_cast<unsigned char*>(memory.allocate(streams[random() % 2], bytes)), bytes,
                          static_cast<unsigned char>(random())});
        } catch (out_of_memory const&) {
          continue;
        }
        block const& b = live.back();
        b.p[0] = b.p[b.bytes - 1] = b.written;
        if (random() % 2 == 0) {
          std::swap(live[random() % live.size()], live.back());
          memory.deallocate(streams[random() % 2], live.back().p, live.back().bytes);
          live.pop_back();
        }
      }
      check_all();
      if (round % 2 == 0) {
        for (stream_ref const s : streams) REQUIRE(driver.synchronize_stream(s).ok());
        compact(memory);
      } else {
        (void)sleep(memory);
        (void)wake(memory);
      }
      check_all();
    }
    CHECK(memory->state().remaps == 0);
    for (block const& b : live) memory.deallocate(streams[0], b.p, b.bytes);
    for (stream_ref const s : streams) REQUIRE(driver.destroy_stream(s).ok());
  }
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("with handles_per_block::one the free handles are given back before a request is refused",
          "[pool][options][ladder][pages]") {
  one_stream s;
  auto memory = sim_pages{s.driver} | limited{64_MiB} | pooled{.handles = handles_per_block::one};
  std::vector<void*> blocks;
  for (int i = 0; i < 3; ++i) blocks.push_back(memory.allocate(s.a, 20_MiB));
  for (void* p : blocks) memory.deallocate(s.a, p, 20_MiB);
  void* const p = memory.allocate(s.a, 50_MiB);
  CHECK(segments_of(memory, p, 50_MiB).size() == 1);
  CHECK(memory->state().reserved == 50_MiB);
  memory.deallocate(s.a, p, 50_MiB);
}

TEST_CASE("pooled with remapping::off releases free handles before it refuses a request",
          "[pool][options][ladder]") {
  one_stream s;
  auto memory =
      sim_pages{s.driver} | limited{64_MiB} | pooled{.remap = remapping::off, .largest_handle = 2_MiB};
  std::vector<void*> blocks;
  for (int i = 0; i < 32; ++i) blocks.push_back(memory.allocate(s.a, 2_MiB));
  for (std::size_t i = 0; i < blocks.size(); i += 2) memory.deallocate(s.a, blocks[i], 2_MiB);
  void* p = nullptr;
  REQUIRE_NOTHROW(p = memory.allocate(s.a, 20_MiB));
  try {
    memory.deallocate(s.a, memory.allocate(s.a, 40_MiB), 40_MiB);
    FAIL("the allocation must not succeed");
  } catch (out_of_memory const& error) {
    CHECK(error.report().asked == 40_MiB);
    CHECK(error.report().live == 52_MiB);
  }
  memory.deallocate(s.a, p, 20_MiB);
  for (std::size_t i = 1; i < blocks.size(); i += 2) memory.deallocate(s.a, blocks[i], 2_MiB);
}

namespace {

/// Buffers whose sizes grow by one part in 50 in each round, as those of a solver that refines its grid.
struct growing_buffers {
  std::size_t live_peak = 0;
  template <class Memory>
  void run(Memory& memory, stream_ref stream, int rounds) {
    double scale = 1;
    for (int round = 0; round < rounds; ++round, scale *= 1.02) {
      std::vector<std::pair<void*, std::size_t>> live;
      std::size_t sum = 0;
      for (double const mib : {3, 10, 17, 24, 31, 38}) {
        auto const bytes = static_cast<std::size_t>(mib * scale * static_cast<double>(1_MiB));
        live.emplace_back(memory.allocate(stream, bytes), bytes);
        sum += bytes;
      }
      if (sum > live_peak) live_peak = sum;
      for (auto const& [p, bytes] : live) memory.deallocate(stream, p, bytes);
    }
  }
};

}  // namespace

TEST_CASE("a pool over blocks gives segments back that have become too small", "[pool][segment_growth]") {
  one_stream s;
  auto memory = sim_malloc{s.driver} | pooled{};
  growing_buffers sizes;
  sizes.run(memory, s.a, 60);
  CHECK(static_cast<double>(memory->state().reserved_peak) < 1.3 * static_cast<double>(sizes.live_peak));
}

namespace {

/// The segments that a pool creates for 200 live blocks of 1 to 8 MiB, of which one after the other is
/// replaced, at random.
template <class Memory>
std::uint64_t segments_for_random_sizes(Memory& memory, stream_ref stream, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::pair<void*, std::size_t>> live;
  for (int i = 0; i < 2000; ++i) {
    if (live.size() == 200) {
      std::swap(live[random() % live.size()], live.back());
      memory.deallocate(stream, live.back().first, live.back().second);
      live.pop_back();
    }
    std::size_t const bytes = (17 + random() % 112) * 64_KiB;
    live.emplace_back(memory.allocate(stream, bytes), bytes);
  }
  for (auto const& [p, bytes] : live) memory.deallocate(stream, p, bytes);
  return memory->state().creates;
}

}  // namespace

TEST_CASE("blocks of random sizes share the segments of a pool over blocks, but not pinned ones",
          "[pool][segment_growth]") {
  auto const seed = GENERATE(1u, 2u, 3u);
  CAPTURE(seed);
  one_stream s;
  auto memory = sim_malloc{s.driver} | pooled{};
  CHECK(segments_for_random_sizes(memory, s.a, seed) < 150);
  auto pinned = sim_pinned_host{s.driver} | pooled{};
  CHECK(segments_for_random_sizes(pinned, s.a, seed) > 180);
}

TEST_CASE("a layer that may find memory for a block is not asked for a segment to share",
          "[pool][segment_growth]") {
  // Every second block is freed, and the device has 2 MiB more: enough for the request, not for a shared
  // segment.
  sim_options options{.backing = sim_backing::address_only};
  options.capacity = 514_MiB;
  options.taken = 0;
  sim_machine machine{options};
  sim_driver const driver = machine.driver(0);
  stream_ref const stream;
  int asked = 0;
  auto const handler = [&](out_of_memory const&, unsigned) {
    ++asked;
    return false;
  };
  auto memory = sim_malloc{driver} | retry_on_oom{handler} | pooled{};
  std::vector<void*> blocks;
  for (int i = 0; i < 256; ++i) blocks.push_back(memory.allocate(stream, 2_MiB));
  std::vector<void*> halves;
  for (std::size_t i = 0; i < blocks.size(); i += 2) {
    memory.deallocate(stream, blocks[i], 2_MiB);
    halves.push_back(memory.allocate(stream, 1025_KiB));
  }
  void* const p = memory.allocate(stream, 2_MiB);
  CHECK(asked == 0);
  memory.deallocate(stream, p, 2_MiB);
  for (std::size_t i = 1; i < blocks.size(); i += 2) memory.deallocate(stream, blocks[i], 2_MiB);
  for (void* const half : halves) memory.deallocate(stream, half, 1025_KiB);
}

TEST_CASE("with handles_per_block::one handles go back that have become too small", "[pool][page_growth]") {
  one_stream s;
  auto memory = sim_pages{s.driver} | pooled{.handles = handles_per_block::one};
  growing_buffers sizes;
  sizes.run(memory, s.a, 60);
  CHECK(static_cast<double>(memory->state().reserved_peak) < 1.35 * static_cast<double>(sizes.live_peak));
}

TEST_CASE("a program that repeats itself soon gives no segment back", "[pool][segment_growth]") {
  auto const seed = GENERATE(range(1u, 9u));
  CAPTURE(seed);
  one_stream s;
  auto memory = sim_malloc{s.driver} | pooled{};
  std::size_t given_first = 0;
  for (int pass = 0; pass < 12; ++pass) {
    std::size_t const before = memory->state().released_total;
    std::mt19937 random(seed);
    std::vector<std::pair<void*, std::size_t>> live;
    for (int i = 0; i < 300; ++i) {
      if (live.size() == 8 || (!live.empty() && random() % 3 == 0)) {
        std::swap(live[random() % live.size()], live.back());
        memory.deallocate(s.a, live.back().first, live.back().second);
        live.pop_back();
      } else {
        std::size_t const bytes = (2 + random() % 100) * 1_MiB;
        live.emplace_back(memory.allocate(s.a, bytes), bytes);
      }
    }
    for (auto const& [p, bytes] : live) memory.deallocate(s.a, p, bytes);
    std::size_t const given = memory->state().released_total - before;
    if (pass == 0) given_first = given;
    if (pass >= 8) CHECK(given == 0);
  }
  CHECK(given_first > 0);
}

TEST_CASE("segments that work still uses are neither waited for nor given back", "[pool][segment_growth]") {
  one_stream s;
  auto memory = sim_malloc{s.driver} | pooled{};
  for (std::size_t const mib : {std::size_t{20}, std::size_t{30}, std::size_t{40}}) {
    void* const p = memory.allocate(s.a, mib * 1_MiB);
    REQUIRE(s.machine.launch(s.a, 1'000'000'000, {sim_writes(p, mib * 1_MiB)}).ok());
    memory.deallocate(s.a, p, mib * 1_MiB);
  }
  CHECK(memory->state().reserved == 90_MiB);
  CHECK(memory->state().host_waits == 0);
  REQUIRE(s.driver.synchronize_stream(s.a).ok());
  void* const p = memory.allocate(s.a, 50_MiB);
  CHECK(memory->state().reserved == 50_MiB);
  memory.deallocate(s.a, p, 50_MiB);
}

TEST_CASE("segments that became too small stay while a capture_scope is open in the process",
          "[pool][segment_growth]") {
  one_stream s;
  sim_machine const other{sim_options{.backing = sim_backing::address_only}};
  auto memory = sim_malloc{s.driver} | pooled{};
  auto graphs = sim_pages{other.driver(0)} | pooled{};
  graph_memory owner(graphs);
  stream_ref captured;
  REQUIRE(other.driver(0).create_stream(captured).ok());
  memory.deallocate_sync(memory.allocate_sync(20_MiB), 20_MiB);  // no work uses it
  {
    REQUIRE(other.begin_capture(captured).ok());
    capture_scope const scope(owner, captured);
    void* const q = memory.allocate(s.a, 40_MiB);
    CHECK(memory->state().released_total == 0);
    memory.deallocate(s.a, q, 40_MiB);
    sim_graph graph;
    REQUIRE(other.end_capture(captured, graph).ok());
  }
  void* const r = memory.allocate(s.a, 60_MiB);
  CHECK(memory->state().released_total == 60_MiB);
  memory.deallocate(s.a, r, 60_MiB);
}

TEST_CASE("trim of a pool over blocks releases segments that are wholly free", "[pool][segment_growth]") {
  one_stream s;
  auto memory = sim_malloc{s.driver} | pooled{};
  std::vector<void*> blocks;
  for (int i = 0; i < 20; ++i) blocks.push_back(memory.allocate(s.a, 5_MiB));
  for (std::size_t i = 0; i < blocks.size(); i += 2) memory.deallocate(s.a, blocks[i], 5_MiB);
  std::size_t const before = memory->state().reserved;
  CHECK(memory.trim(0) >= 10 * 5_MiB);
  CHECK(memory->state().reserved < before);
  CHECK(memory->state().live == 10 * 5_MiB);
  for (std::size_t i = 1; i < blocks.size(); i += 2) memory.deallocate(s.a, blocks[i], 5_MiB);
  memory.empty_cache();
  CHECK(memory->state().reserved == 0);
  CHECK(s.machine.usage(device_id{0}).used == 0);
}

TEST_CASE("pooled finds the one free range that fits among many that are slightly too small",
          "[pool][ladder][range_index]") {
  one_stream s;
  auto memory = sim_malloc{s.driver} | limited{512_MiB} | pooled{};
  memory.deallocate(s.a, memory.allocate(s.a, 509_MiB), 509_MiB);  // one segment
  constexpr std::size_t fits = 10_MiB + 64_KiB;
  void* p = memory.allocate(s.a, fits);
  std::vector<void*> apart;
  std::vector<void*> too_small;
  for (int i = 0; i < 30; ++i) {
    apart.push_back(memory.allocate(s.a, 2_MiB));
    too_small.push_back(memory.allocate(s.a, 10_MiB));
  }
  try {
    for (;;) apart.push_back(memory.allocate(s.a, 2_MiB));
  } catch (out_of_memory const&) {
  }
  memory.deallocate(s.a, p, fits);
  for (void* q : too_small) memory.deallocate(s.a, q, 10_MiB);
  REQUIRE_NOTHROW(p = memory.allocate(s.a, fits));
  memory.deallocate(s.a, p, fits);
  for (void* q : apart) memory.deallocate(s.a, q, 2_MiB);
}

TEST_CASE("owns of a pool over blocks covers a segment to its last byte and not beyond",
          "[pool][segment_growth]") {
  one_stream s;
  auto memory = sim_malloc{s.driver} | pooled{};
  auto* const p = static_cast<char*>(memory.allocate(s.a, 3_MiB));
  std::size_t const reserved = memory->state().reserved;
  REQUIRE(reserved == 4_MiB);
  CHECK(memory.owns(p));
  char* first = p;
  while (memory.owns(first - 1)) --first;
  CHECK(memory.owns(first + reserved - 1));
  CHECK_FALSE(memory.owns(first + reserved));
  memory.deallocate(s.a, p, 3_MiB);
}

TEST_CASE("a small pool exceeds its live peak by handles of 2 MiB, a larger one by the usual handles",
          "[pool][ladder][page_growth][pages]") {
  // Bytes of the handles that are created for a block of 18 MiB. Each handle holds parts of two smaller
  // blocks, of which none or every second one is freed before.
  auto const made_for_18_mib = [](pooled const& options, std::size_t blocks, bool frees) {
    one_stream s;
    auto memory = sim_pages{s.driver} | options;
    std::vector<void*> live;
    for (std::size_t i = 0; i < blocks; ++i) live.push_back(memory.allocate(s.a, 1536_KiB));
    for (std::size_t i = 0; i < blocks && frees; i += 2) memory.deallocate(s.a, live[i], 1536_KiB);
    pool_state const before = memory->state();
    void* const p = memory.allocate(s.a, 18_MiB);
    pool_state const after = memory->state();
    REQUIRE(after.creates > before.creates);
    memory.deallocate(s.a, p, 18_MiB);
    for (std::size_t i = frees ? 1 : 0; i < blocks; i += frees ? 2 : 1)
      memory.deallocate(s.a, live[i], 1536_KiB);
    return (after.reserved - before.reserved) / (after.creates - before.creates);
  };
  CHECK(made_for_18_mib({}, 60, true) == 2_MiB);
  CHECK(made_for_18_mib({}, 60, false) > 4_MiB);  // the peak rises
  CHECK(made_for_18_mib({}, 600, true) > 4_MiB);
  CHECK(made_for_18_mib({.remap = remapping::off}, 60, true) > 4_MiB);
  CHECK(made_for_18_mib({.largest_handle = 8_MiB}, 60, true) > 4_MiB);
}

namespace {

/// Plays 200 live blocks of 1 to 8 MiB, of which one after the other is replaced, at random. Returns the
/// refusals; raises `peak` to the live peak. @param memory  null to find only that
template <class Memory>
int refusals_of_random_sizes(Memory* memory, stream_ref stream, unsigned seed, std::size_t& peak) {
  std::mt19937 random(seed);
  std::vector<std::pair<void*, std::size_t>> live;
  std::size_t sum = 0;
  int refusals = 0;
  auto const drop = [&](std::size_t i) {
    std::swap(live[i], live.back());
    auto const [p, bytes] = live.back();
    if (p != nullptr) memory->deallocate(stream, p, bytes);
    sum -= bytes;
    live.pop_back();
  };
  for (int i = 0; i < 1000; ++i) {
    if (live.size() == 200) drop(random() % live.size());
    std::size_t const bytes = (17 + random() % 112) * 64_KiB;
    void* p = nullptr;
    try {
      if (memory != nullptr) p = memory->allocate(stream, bytes);
    } catch (out_of_memory const&) {
      ++refusals;
    }
    live.emplace_back(p, bytes);
    sum += bytes;
    if (sum > peak) peak = sum;
  }
  while (!live.empty()) drop(live.size() - 1);
  return refusals;
}

}  // namespace

TEST_CASE("a large pool uses up parts of handles as its limit comes near",
          "[pool][ladder][page_growth][pages]") {
  int refusals = 0;
  for (unsigned seed = 1; seed < 9; ++seed) {
    one_stream s;
    auto const memory_within = [&](std::size_t bytes) {
      return sim_pages{s.driver} | limited{bytes} | pooled{};
    };
    using memory_type = decltype(memory_within(0));
    std::size_t peak = 0;
    refusals_of_random_sizes<memory_type>(nullptr, s.a, seed, peak);
    REQUIRE(peak > 800_MiB);
    auto memory = memory_within(peak / 1000 * 1020);
    refusals += refusals_of_random_sizes(&memory, s.a, seed, peak);
  }
  CHECK(refusals < 90);  // 116 if it only uses up parts while it is small
}

TEST_CASE("pooled grows while it is small instead of taking memory freed on another stream",
          "[pool][ladder][pages]") {
  one_stream s;
  REQUIRE(s.driver.create_stream(s.a).ok());
  stream_ref b;
  REQUIRE(s.driver.create_stream(b).ok());
  auto memory = sim_pages{s.driver} | pooled{};
  memory.deallocate(s.a, memory.allocate(s.a, 3_MiB), 3_MiB);
  s.machine.reset_calls();
  memory.deallocate(b, memory.allocate(b, 3_MiB), 3_MiB);
  CHECK(s.machine.calls()[driver_call::record_event] == 0);
  CHECK(s.machine.calls()[driver_call::create_pages] == 1);
  // A pool that is not small reuses what the other stream freed.
  memory.deallocate(s.a, memory.allocate(s.a, 100_MiB), 100_MiB);
  s.machine.reset_calls();
  memory.deallocate(b, memory.allocate(b, 90_MiB), 90_MiB);
  CHECK(s.machine.calls()[driver_call::create_pages] == 0);
}

TEST_CASE("pooled under a limit reuses memory freed on another stream even while it is small",
          "[pool][ladder][pages]") {
  one_stream s;
  REQUIRE(s.driver.create_stream(s.a).ok());
  stream_ref b;
  REQUIRE(s.driver.create_stream(b).ok());
  auto memory = sim_pages{s.driver} | limited{4_MiB} | pooled{};
  memory.deallocate(s.a, memory.allocate(s.a, 3_MiB), 3_MiB);
  void* const p = memory.allocate(b, 3_MiB);
  CHECK(p != nullptr);
  CHECK(memory->state().reserved == 4_MiB);
  memory.deallocate(b, p, 3_MiB);
}

TEST_CASE("pooled serves small blocks from the handles of a freed large one before it creates any",
          "[pool][page_growth][pages]") {
  one_stream s;
  REQUIRE(s.driver.create_stream(s.a).ok());
  auto memory = sim_pages{s.driver} | pooled{.slack_per_mille = 0, .largest_handle = 2_MiB};
  memory.deallocate(s.a, memory.allocate(s.a, 8_GiB), 8_GiB);
  std::size_t const created = memory->state().creates;
  std::vector<void*> blocks;
  for (int i = 0; i < 16; ++i) blocks.push_back(memory.allocate(s.a, 1_MiB));
  CHECK(memory->state().creates == created);
  for (void* const p : blocks) memory.deallocate(s.a, p, 1_MiB);
}

TEST_CASE("pooled lets one stream use the unused part of a handle created for another",
          "[pool][ladder][streams]") {
  one_stream s;
  REQUIRE(s.driver.create_stream(s.a).ok());
  stream_ref b;
  REQUIRE(s.driver.create_stream(b).ok());
  auto memory = sim_pages{s.driver} | limited{4_MiB} | pooled{};
  std::vector<void*> blocks;
  for (int i = 0; i < 32; ++i) blocks.push_back(memory.allocate(s.a, 64_KiB));
  void* const p = memory.allocate(b, 64_KiB);  // creates the second handle
  for (int i = 0; i < 31; ++i) REQUIRE_NOTHROW(blocks.push_back(memory.allocate(s.a, 64_KiB)));
  memory.deallocate(b, p, 64_KiB);
  for (void* q : blocks) memory.deallocate(s.a, q, 64_KiB);
}

TEST_CASE("empty_cache releases the memory of small blocks that were freed on another stream",
          "[pool][ladder][streams]") {
  one_stream s;
  REQUIRE(s.driver.create_stream(s.a).ok());
  stream_ref b;
  REQUIRE(s.driver.create_stream(b).ok());
  auto memory = sim_pages{s.driver} | pooled{};
  void* const p = memory.allocate(s.a, 20_KiB);
  memory.deallocate(b, p, 20_KiB);
  memory.empty_cache();
  CHECK(memory->state().reserved == 0);
}

TEST_CASE("pool_state::host_bytes stays bounded per live block, however many calls are made",
          "[pool][pool_state]") {
  struct load {
    std::size_t blocks, least, most, bytes_a_block;
  };
  for (load const& l :
       {load{100000, 256, 2_KiB, 8}, load{10000, 256, 1_MiB, 110}, load{1000, 2_MiB, 32_MiB, 360}}) {
    one_stream s;
    auto memory = sim_pages{s.driver} | pooled{};
    std::mt19937_64 random(1);
    std::uniform_real_distribution<> exponent(std::log(static_cast<double>(l.least)),
                                              std::log(static_cast<double>(l.most)));
    std::vector<std::pair<void*, std::size_t>> live(l.blocks);
    auto const renew = [&](std::pair<void*, std::size_t>& b) {
      b.second = static_cast<std::size_t>(std::exp(exponent(random)));
      b.first = memory.allocate(s.a, b.second);
    };
    for (auto& b : live) renew(b);
    std::size_t steady = 0;
    for (int round = 0; round < 4; ++round) {
      for (int i = 0; i < 100000; ++i) {
        auto& b = live[random() % live.size()];
        memory.deallocate(s.a, b.first, b.second);
        renew(b);
      }
      INFO("blocks " << l.blocks << ", round " << round);
      if (round == 1) steady = memory->state().host_bytes;
      CHECK(memory->state().host_bytes <= l.blocks * l.bytes_a_block);
      if (round > 1) CHECK(memory->state().host_bytes <= steady + steady / 8);
    }
    for (auto& b : live) memory.deallocate(s.a, b.first, b.second);
  }
}

TEST_CASE("page_growth extends a free range after the handle behind it was given back",
          "[pool][page_growth][pages]") {
  one_stream s;
  auto memory = sim_pages{s.driver} | pooled{.largest_handle = 20_MiB};
  void* const large = memory.allocate(s.a, 200_MiB);  // the pool is no longer small
  void* const p = memory.allocate(s.a, 30_MiB);
  void* const q = memory.allocate(s.a, 20_MiB);
  memory.deallocate(s.a, p, 30_MiB);
  memory.deallocate(s.a, q, 20_MiB);
  void* const front = memory.allocate(s.a, 25_MiB);  // its second handle is free from 5 MiB on
  void* const other = memory.allocate(s.a, 1_MiB + 512);
  memory.empty_cache();
  std::size_t const before = memory->state().reserved;
  void* const extended = memory.allocate(s.a, 30_MiB);
  INFO(before / 1_MiB << " " << memory->state().reserved / 1_MiB);
  CHECK(memory->state().reserved - before < 30_MiB);
  memory.deallocate(s.a, extended, 30_MiB);
  memory.deallocate(s.a, other, 1_MiB + 512);
  memory.deallocate(s.a, front, 25_MiB);
  memory.deallocate(s.a, large, 200_MiB);
}

namespace {
/// Rounds of growing temporaries, as of a program that sorts growing sets of points; the results of the last
/// four rounds stay.
template <class Memory>
void growing_rounds(Memory& memory, stream_ref stream) {
  std::vector<std::pair<void*, std::size_t>> results;
  auto const take = [&](std::size_t bytes) { return std::pair{memory.allocate(stream, bytes), bytes}; };
  auto const give = [&](std::pair<void*, std::size_t> const& block) {
    memory.deallocate(stream, block.first, block.second);
  };
  double points = 540'000;
  for (int round = 0; round < 24; ++round, points *= 1.12) {
    auto const n = static_cast<std::size_t>(points);
    if (results.size() == 4) {
      give(results.front());
      results.erase(results.begin());
    }
    auto const keys = take(8 * n);
    auto const indices = take(4 * n);
    auto const other_keys = take(8 * n);
    auto const other_indices = take(4 * n);
    auto const sorting = take(12 * n);
    auto const counts = take(4 * n);
    give(counts);
    give(other_indices);
    auto const per_cell = take(4 * n);
    auto const sums = take(2 * n);
    auto const per_group = take(4 * n);
    give(other_keys);
    results.push_back(take(46 * n));
    for (auto const& block : {keys, per_cell, sums, per_group, indices, sorting}) give(block);
  }
  for (auto const& block : results) give(block);
}
}  // namespace

TEST_CASE("a request extends the free range at the end of a pool without a view",
          "[pool][page_growth][pages]") {
  sim_machine const machine{sim_options{.capacity = 1_GiB, .taken = 0, .backing = sim_backing::address_only}};
  auto memory = sim_pages{machine.driver(0)} | pooled{};
  basic_stream<sim_driver> const s(machine.driver(0));
  void* const live = memory.allocate(s, 8_MiB);
  memory.deallocate(s, memory.allocate(s, 4_MiB), 4_MiB);
  void* const p = memory.allocate(s, 10_MiB);
  CHECK(memory->state().reserved == 18_MiB);
  CHECK(memory->state().remaps == 0);
  memory.deallocate(s, p, 10_MiB);
  memory.deallocate(s, live, 8_MiB);
}

TEST_CASE("after trim(0) a pool grows as a new one and holds as much", "[pool][page_growth]") {
  one_stream s;
  auto memory = sim_pages{s.driver} | pooled{};
  growing_rounds(memory, s.a);
  std::size_t const held = memory->state().reserved;
  memory->trim(0);
  REQUIRE(memory->state().reserved == 0);
  growing_rounds(memory, s.a);
  CHECK(memory->state().reserved == held);
}

TEST_CASE("pooled serves what another thread freed into its cache while the source was asked",
          "[pool][ladder][threads][pages]") {
  // The freeing thread caches 2 MiB, which the ladder takes back first: what was learned then is void after
  // the source was asked.
  for (bool const flushes_before : {true, false}) {
    sim_machine const machine(
        sim_options{.capacity = 1_GiB, .taken = 0, .backing = sim_backing::address_only});
    std::binary_semaphore is_allocated{0};
    std::binary_semaphore may_cache{0};
    std::binary_semaphore has_cached{0};
    std::binary_semaphore may_free{0};
    std::binary_semaphore is_freed{0};
    std::binary_semaphore may_end{0};
    std::atomic<bool> is_armed{false};
    stream_ref const s;
    auto memory = pages_with_handler(machine.driver(0),
                                     [&] {
                                       if (!is_armed.exchange(false)) return;
                                       may_free.release();
                                       is_freed.acquire();
                                     }) |
                  pooled{};
    std::thread other([&] {
      void* const small[] = {memory.allocate(s, 1_MiB), memory.allocate(s, 1_MiB)};
      void* const large = memory.allocate(s, 512_MiB);
      auto const free_small = [&] {
        for (void* const p : small) memory.deallocate(s, p, 1_MiB);
      };
      is_allocated.release();
      may_cache.acquire();
      if (flushes_before) free_small();
      has_cached.release();
      may_free.acquire();
      memory.deallocate(s, large, 512_MiB);
      is_freed.release();
      may_end.acquire();
      if (!flushes_before) free_small();
    });
    is_allocated.acquire();
    std::vector<void*> blocks;
    for (int i = 0; i < 15; ++i) blocks.push_back(memory.allocate(s, 32_MiB));
    may_cache.release();
    has_cached.acquire();
    void* p = nullptr;
    is_armed = true;
    CHECK_NOTHROW(p = memory.allocate(s, 512_MiB));
    CHECK_FALSE(is_armed);
    if (is_armed) may_free.release();
    may_end.release();
    other.join();
    if (p != nullptr) memory.deallocate(s, p, 512_MiB);
    for (void* const q : blocks) memory.deallocate(s, q, 32_MiB);
  }
}
