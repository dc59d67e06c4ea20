// SPDX-License-Identifier: Apache-2.0
// The public interface of the pool: the resource contract on every kind of source, reuse, trimming, growth
// under a limit, driver failures, and a random program against a model. Stream order is tested in
// ordering.cpp, threads in thread_cache.cpp.

#include "tarn/pool/pool.hpp"

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "contract/resource_contract.hpp"
#include "driver/faulty.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/tracked.hpp"
#include "tarn/report/stats.hpp"
#include "tarn/source/host_memory.hpp"
#include "tarn/source/sim_sources.hpp"

using namespace tarn;
using tarn_test::resource_contract;
using tarn_test::test_stream;

namespace {

struct block {
  void* p = nullptr;
  std::size_t bytes = 0;
  std::size_t alignment = default_alignment;
};

/// Options of a machine with exactly `capacity` bytes free.
sim_options small_machine(std::size_t capacity) {
  sim_options o;
  o.capacity = capacity;
  o.taken = 0;
  o.backing = sim_backing::address_only;
  return o;
}

template <class Memory>
std::vector<block> fill_up(Memory& memory, stream_ref stream, std::size_t bytes) {
  std::vector<block> blocks;
  for (;;) {
    try {
      void* const p = memory.allocate(stream, bytes);
      blocks.push_back({p, bytes});
    } catch (out_of_memory const&) {
      return blocks;
    }
  }
}

template <class Memory>
void free_all(Memory& memory, stream_ref stream, std::vector<block>& blocks) {
  for (block const& b : blocks) memory.deallocate(stream, b.p, b.bytes, b.alignment);
  blocks.clear();
}

/// Whether the call releases something. If it fails without doing its work it leaks, whatever the caller
/// does.
bool gives_back(driver_call call) {
  switch (call) {
    case driver_call::destroy_event:
    case driver_call::destroy_stream:
    case driver_call::release_range:
    case driver_call::destroy_pages:
    case driver_call::unmap_pages:
    case driver_call::free_device:
    case driver_call::free_async:
    case driver_call::free_pinned:
    case driver_call::free_managed:
      return true;
    default:
      return false;
  }
}

}  // namespace

TEST_CASE("pooled over sim_pages meets the resource contract", "[pool]") {
  resource_contract([] { return sim_pages{} | pooled{}; });
}
TEST_CASE("pooled with remapping::off meets the resource contract", "[pool]") {
  resource_contract([] { return sim_pages{} | pooled{remapping::off}; });
}
TEST_CASE("pooled over sim_malloc meets the resource contract", "[pool]") {
  resource_contract([] { return sim_malloc{} | pooled{}; });
}
TEST_CASE("pooled over sim_pinned_host meets the resource contract", "[pool]") {
  resource_contract([] { return sim_pinned_host{} | pooled{}; });
}
TEST_CASE("pooled over host_memory meets the resource contract", "[pool]") {
  resource_contract([] { return host_memory{} | pooled{}; });
}
TEST_CASE("pooled over pooled meets the resource contract", "[pool]") {
  resource_contract([] { return sim_pages{} | pooled{} | pooled{}; });
}
TEST_CASE("pooled over limited sim_pages meets the resource contract", "[pool]") {
  resource_contract([] { return sim_pages{} | limited{3_GiB} | pooled{}; });
}

TEST_CASE("pooled takes nothing from the device before its first allocation", "[pool]") {
  sim_machine const machine;
  {
    auto memory = sim_pages(machine.driver()) | pooled{};
    CHECK(memory->state().reserved == 0);
    CHECK(memory.trim() == 0);
  }
  CHECK(machine.usage().used == 0);
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("pooled releases all memory and events at its destruction, also with live blocks", "[pool]") {
  bool const freed = GENERATE(true, false);
  sim_machine const machine;
  test_stream const a(machine.driver()), b(machine.driver());
  {
    auto memory = sim_pages(machine.driver()) | pooled{};
    for (std::size_t bytes = 1; bytes < 100_MiB; bytes *= 3) {
      void* const p = memory.allocate(a, bytes);
      if (freed) memory.deallocate(b, p, bytes);
    }
  }
  auto const l = machine.leaks();
  CHECK(l.handles == 0);
  CHECK(l.maps == 0);
  CHECK(l.ranges == 0);
  CHECK(l.blocks == 0);
  CHECK(l.events == 0);
  CHECK(machine.usage().used == 0);
}

TEST_CASE("pooled returns every block to its upstream at its destruction", "[pool]") {
  sim_machine const machine;
  {
    auto memory = sim_malloc(machine.driver()) | limited{1_GiB} | pooled{};
    std::vector<block> blocks;
    for (std::size_t bytes = 1; bytes < 50_MiB; bytes *= 2)
      blocks.push_back({memory.allocate({}, bytes), bytes});
    CHECK(machine.leaks().blocks != 0);
    free_all(memory, {}, blocks);
  }
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("allocate returns a block freed on the same stream without a driver call", "[pool]") {
  sim_machine const machine;
  test_stream const stream(machine.driver());
  stream_id id = 0;
  REQUIRE(machine.driver().identify(stream, id).ok());
  stream_ref const known = stream_ref::from(stream_ref(stream).handle(), id);
  auto const watch = GENERATE(capture_watch::at_frees, capture_watch::in_scopes);
  auto memory = sim_pages(machine.driver()) | pooled{.captures = watch};
  for (std::size_t const bytes : {std::size_t{1}, 4_KiB, 40_KiB, 1_MiB, 1_MiB + 1, 64_MiB}) {
    void* const first = memory.allocate(known, bytes);
    memory.deallocate(known, first, bytes);
    machine.reset_calls();
    for (int i = 0; i < 10; ++i) {
      void* const p = memory.allocate(known, bytes);
      CHECK(p == first);
      CHECK(machine.calls().total() == machine.calls()[driver_call::is_capturing]);
      memory.deallocate(known, p, bytes);
    }
    CHECK(machine.calls().total() == (watch == capture_watch::in_scopes ? 0 : 10));
  }
}

TEST_CASE("pooled serves a repeated allocation pattern from its cache", "[pool]") {
  sim_machine const machine;
  auto memory = sim_pages(machine.driver()) | pooled{.remap = remapping::off};
  std::vector<block> blocks;
  auto const pass = [&] {
    machine.reset_calls();
    for (std::size_t i = 0; i < 300; ++i) {
      std::size_t const bytes = (i * 7919 + 13) % 3'000'000 + 1;
      blocks.push_back({memory.allocate({}, bytes), bytes});
    }
    free_all(memory, {}, blocks);
    return machine.calls().memory();
  };
  std::uint64_t const cold = pass();
  // Magazines keep some blocks in place, so the others may need slightly more memory than the first time.
  CHECK(pass() * 50 <= cold);
  for (int i = 0; i < 6; ++i) (void)pass();
  for (int i = 0; i < 4; ++i) CHECK(pass() == 0);
}

TEST_CASE("allocate serves everything that was freed as one block", "[pool][pages]") {
  sim_machine const machine(small_machine(256_MiB));
  auto memory = sim_pages(machine.driver()) | pooled{};
  for (std::size_t const bytes : {2_MiB, 5_MiB, 3_MiB + 512, std::size_t{300'000}}) {
    auto blocks = fill_up(memory, {}, bytes);
    CHECK(blocks.size() * memory->block_bytes(bytes, 256) > 250_MiB);
    free_all(memory, {}, blocks);
    void* const whole = memory.allocate({}, 256_MiB);
    CHECK(whole != nullptr);
    memory.deallocate({}, whole, 256_MiB);
  }
}

TEST_CASE("pooled remaps free handles between live ones to serve a larger block", "[pool][remap]") {
  sim_machine const machine(small_machine(64_MiB));
  auto memory = sim_pages(machine.driver()) | pooled{};
  auto blocks = fill_up(memory, {}, 2_MiB);
  REQUIRE(blocks.size() == 32);
  for (std::size_t i = 0; i < blocks.size(); i += 2) memory.deallocate({}, blocks[i].p, 2_MiB);
  // Half is free, but no two neighbours are: only remapping makes one block of it.
  void* const half = memory.allocate({}, 32_MiB);
  CHECK(machine.is_accessible(half, 32_MiB));
  CHECK(memory->state().reserved == 64_MiB);
  for (std::size_t i = 1; i < blocks.size(); i += 2) {
    CHECK(machine.is_accessible(blocks[i].p, 2_MiB));
    memory.deallocate({}, blocks[i].p, 2_MiB);
  }
  memory.deallocate({}, half, 32_MiB);
  CHECK(memory->state().live == 0);
}

TEST_CASE("trim releases memory and keeps live data intact", "[pool]") {
  sim_machine const machine;
  auto memory = sim_pages(machine.driver()) | pooled{};
  std::vector<block> kept, dropped;
  for (int i = 0; i < 40; ++i) {
    std::size_t const bytes = i % 4 == 0 ? 10'000 : 3_MiB;
    void* const p = memory.allocate({}, bytes);
    if (i % 3 == 0) {
      REQUIRE(tarn_test::write(memory, {}, p, i, bytes));
      kept.push_back({p, bytes, static_cast<std::size_t>(i)});
    } else {
      dropped.push_back({p, bytes});
    }
  }
  free_all(memory, {}, dropped);
  auto const before = memory->state();
  std::size_t const given = memory.trim(0);
  auto const after = memory->state();
  CHECK(given > 0);
  CHECK(before.reserved - after.reserved == given);
  CHECK(after.live == before.live);
  CHECK(machine.usage().used == after.reserved);
  for (block const& b : kept) {
    CHECK(tarn_test::holds(memory, {}, b.p, static_cast<int>(b.alignment), b.bytes));
    memory.deallocate({}, b.p, b.bytes);
  }
  memory.empty_cache();
  CHECK(memory->state().reserved == 0);
  CHECK(machine.usage().used == 0);
  void* const p = memory.allocate({}, 1_MiB);  // the pool still works
  CHECK(p != nullptr);
  memory.deallocate({}, p, 1_MiB);
}

TEST_CASE("trim keeps the number of bytes it is given", "[pool]") {
  sim_machine const machine;
  auto memory = sim_pages(machine.driver()) | pooled{};
  std::vector<block> blocks;
  for (int i = 0; i < 32; ++i) blocks.push_back({memory.allocate({}, 4_MiB), 4_MiB});
  free_all(memory, {}, blocks);
  std::size_t const reserved = memory->state().reserved;
  CHECK(memory.trim(reserved) == 0);
  CHECK(memory->state().reserved == reserved);
  (void)memory.trim(reserved / 2);
  CHECK(memory->state().reserved <= reserved / 2);
  CHECK(memory->state().reserved > 0);
}

TEST_CASE("pooled under limited grows to the limit, refuses, and still serves smaller requests",
          "[pool][limited]") {
  auto const run = [](auto memory) {
    auto blocks = fill_up(memory, {}, 5_MiB);
    CHECK(blocks.size() >= 10);
    CHECK_THROWS_AS(memory.allocate({}, 8_MiB), out_of_memory);
    void* const small = memory.allocate({}, 100'000);
    CHECK(small != nullptr);
    memory.deallocate({}, small, 100'000);
    free_all(memory, {}, blocks);
    void* const large = memory.allocate({}, 40_MiB);
    CHECK(large != nullptr);
    memory.deallocate({}, large, 40_MiB);
    CHECK_THROWS_AS(memory.allocate({}, 65_MiB), out_of_memory);
  };
  SECTION("pages") {
    run(sim_pages(sim_machine().driver()) | limited{64_MiB} | pooled{});
  }
  SECTION("blocks") {
    run(sim_malloc(sim_machine().driver()) | limited{64_MiB} | pooled{});
  }
}

TEST_CASE("pooled allocates 90 % of the device as one block", "[pool]") {
  sim_machine const machine(small_machine(80_GiB));
  auto memory = sim_pages(machine.driver()) | pooled{};
  void* const p = memory.allocate({}, 72_GiB);
  CHECK(p != nullptr);
  memory.deallocate({}, p, 72_GiB);
}

TEST_CASE("out_of_memory of a pool reports the requested, live and reserved bytes, and nothing changes",
          "[pool]") {
  sim_machine const machine(small_machine(64_MiB));
  auto memory = sim_pages(machine.driver()) | pooled{};
  void* const p = memory.allocate({}, 40_MiB);
  auto const live = memory->state().live;
  try {
    (void)memory.allocate({}, 32_MiB);
    FAIL("must not succeed");
  } catch (out_of_memory const& error) {
    CHECK(error.asked() == 32_MiB);
    CHECK(error.report().live == 40_MiB);
    CHECK(error.report().reserved != memory_report::unknown);
  }
  try {
    (void)memory.allocate({}, 32_MiB + 1);
    FAIL("must not succeed");
  } catch (out_of_memory const& error) {
    CHECK(error.asked() == 32_MiB + 1);  // the requested size, not the rounded one
  }
  CHECK(memory->state().live == live);
  CHECK(memory->state().ooms == 2);
  memory.deallocate({}, p, 40_MiB);
}

TEST_CASE("allocate throws out_of_memory while other processes use the device and recovers afterwards",
          "[pool]") {
  sim_machine const machine(small_machine(64_MiB));
  auto memory = sim_pages(machine.driver()) | pooled{};
  void* const p = memory.allocate({}, 8_MiB);
  machine.take_memory({}, 50_MiB);
  CHECK_THROWS_AS(memory.allocate({}, 16_MiB), out_of_memory);
  machine.take_memory({}, 0);
  void* const q = memory.allocate({}, 16_MiB);
  CHECK(q != nullptr);
  memory.deallocate({}, p, 8_MiB);
  memory.deallocate({}, q, 16_MiB);
}

TEST_CASE("owns of a pool is true for its own addresses only", "[pool]") {
  auto memory = sim_pages(sim_machine().driver()) | pooled{};
  int local = 0;
  CHECK(!memory.owns(&local));
  void* const p = memory.allocate({}, 10'000);
  CHECK(memory.owns(p));
  CHECK(memory.owns(static_cast<char*>(p) + 9'999));
  CHECK(!memory.owns(nullptr));
  CHECK(!memory.owns(&local));
  memory.deallocate({}, p, 10'000);
}

TEST_CASE("largest_free_range bytes are allocated without a memory call to the driver", "[pool]") {
  sim_machine const machine;
  auto memory = sim_pages(machine.driver()) | pooled{};
  void* const p = memory.allocate({}, 48_MiB);
  CHECK(memory.largest_free_range() < 48_MiB);
  void* const q = memory.allocate({}, 2_MiB);
  memory.deallocate({}, p, 48_MiB);
  memory.deallocate({}, q, 2_MiB);  // returns the block before it to the arena
  std::size_t const largest = memory.largest_free_range();
  REQUIRE(largest >= 48_MiB);
  machine.reset_calls();
  void* const r = memory.allocate({}, largest);
  CHECK(machine.calls().memory() == 0);
  memory.deallocate({}, r, largest);
}

TEST_CASE("pool_state::live counts the rounded bytes of live blocks", "[pool]") {
  auto memory = sim_pages(sim_machine().driver()) | pooled{};
  CHECK(memory->state().live == 0);
  std::vector<block> blocks;
  std::size_t live = 0;
  for (std::size_t const bytes : {std::size_t{1}, std::size_t{257}, 33_KiB, 1_MiB + 1, 20_MiB}) {
    for (std::size_t const alignment : {std::size_t{1}, std::size_t{256}, 4_KiB}) {
      blocks.push_back({memory.allocate({}, bytes, alignment), bytes, alignment});
      live += memory->block_bytes(bytes, alignment);
      CHECK(memory->state().live == live);
      CHECK(memory->state().live_blocks == blocks.size());
    }
  }
  auto const s = memory->state();
  CHECK(s.cached == s.reserved - s.live);
  CHECK(s.reserved_total - s.released_total == s.reserved);
  CHECK(s.reserved_peak >= s.reserved);
  free_all(memory, {}, blocks);
  CHECK(memory->state().live == 0);
  CHECK(memory->state().live_blocks == 0);
}

TEST_CASE("reset_peaks restarts the peaks of pool_state", "[pool]") {
  auto memory = sim_pages(sim_machine().driver()) | pooled{};
  void* const p = memory.allocate({}, 100_MiB);
  memory.deallocate({}, p, 100_MiB);
  memory.empty_cache();
  CHECK(memory->state().reserved_peak >= 100_MiB);
  memory->reset_peaks();
  CHECK(memory->state().reserved_peak == 0);
  CHECK(memory->state().handles_peak == 0);
}

TEST_CASE("deallocate of a pool reports a double free and the block is not handed out twice",
          "[pool][misuse]") {
  static std::vector<misuse_kind> seen;
  seen.clear();
  auto const before = set_misuse_handler([](misuse const& m) { seen.push_back(m.kind()); });
  {
    auto memory = sim_pages(sim_machine().driver()) | pooled{};
    void* const p = memory.allocate({}, 10_MiB, 4_KiB);  // above 256: no magazine, so detected at once
    memory.deallocate({}, p, 10_MiB, 4_KiB);
    memory.deallocate({}, p, 10_MiB, 4_KiB);
    CHECK(seen.size() == 1);
    void* const q = memory.allocate({}, 10_MiB, 4_KiB);
    void* const r = memory.allocate({}, 10_MiB, 4_KiB);
    CHECK(q != r);
    memory.deallocate({}, q, 10_MiB, 4_KiB);
    memory.deallocate({}, r, 5_MiB, 4_KiB);  // wrong size
    CHECK(seen.size() == 2);
    CHECK(seen.back() == misuse_kind::wrong_size);
    int local = 0;
    memory.deallocate({}, &local, 10_MiB, 4_KiB);
    CHECK(seen.size() == 3);
    CHECK(seen.back() == misuse_kind::foreign_pointer);
    void* const large = memory.allocate({}, 10_MiB);  // the newest large block is cached
    memory.deallocate({}, large, 10_MiB);
    memory.deallocate({}, large, 10_MiB);
    CHECK(seen.size() == 4);
    CHECK(seen.back() == misuse_kind::double_free);
    void* const first = memory.allocate({}, 10_MiB);
    void* const second = memory.allocate({}, 10_MiB);
    CHECK(first != second);
    memory.deallocate({}, first, 10_MiB);
    memory.deallocate({}, second, 10_MiB);
    CHECK(memory->state().live_blocks == 1);  // r is still live
  }
  (void)set_misuse_handler(before);
}

TEST_CASE("a block that is freed with another size is reported, a small one when the cache is flushed",
          "[pool][misuse]") {
  static std::vector<misuse_kind> seen;
  seen.clear();
  auto const before = set_misuse_handler([](misuse const& m) { seen.push_back(m.kind()); });
  {
    auto memory = sim_pages(sim_machine().driver()) | pooled{};
    void* const large = memory.allocate({}, 10_MiB);  // the newest large block would be cached
    memory.deallocate({}, large, 20_MiB);
    CHECK(seen == std::vector{misuse_kind::wrong_size});
    void* const other = memory.allocate({}, 20_MiB);
    CHECK(other != large);
    memory.deallocate({}, other, 20_MiB);
    memory.deallocate({}, static_cast<char*>(large) + 4096, 10_MiB);
    CHECK(seen == std::vector{misuse_kind::wrong_size, misuse_kind::foreign_pointer});
    seen.clear();
    memory.deallocate({}, memory.allocate({}, 10_MiB), 0);
    CHECK(seen == std::vector{misuse_kind::wrong_size});
    memory.deallocate({}, memory.allocate({}, 100), 0);
    CHECK(seen.size() == 2);
    seen.clear();
    memory.deallocate({}, memory.allocate({}, 100), 5000);
    memory.empty_cache();
    CHECK(seen == std::vector{misuse_kind::wrong_size});
    memory.deallocate({}, static_cast<char*>(memory.allocate({}, 5000)) + 256, 5000);
    memory.empty_cache();
    CHECK(seen == std::vector{misuse_kind::wrong_size, misuse_kind::foreign_pointer});
  }
  (void)set_misuse_handler(before);
}

TEST_CASE("deallocate of a pool reports two successive frees of a small block at once", "[pool][misuse]") {
  static std::vector<misuse> seen;
  seen.clear();
  auto const before = set_misuse_handler([](misuse const& m) { seen.push_back(m); });
  {
    auto memory = sim_pages(sim_machine().driver()) | pooled{} | tracked{};
    for (std::size_t const bytes : {100, 5000, 300000, 1000000}) {
      seen.clear();
      void* const p = memory.allocate({}, bytes);
      memory.deallocate({}, p, bytes);
      memory.deallocate({}, p, bytes);
      REQUIRE(seen.size() == 1);
      CHECK(seen[0].kind() == misuse_kind::double_free);
      CHECK(seen[0].pointer() == p);
      void* const first = memory.allocate({}, bytes);
      void* const second = memory.allocate({}, bytes);
      CHECK(first != second);
      memory.deallocate({}, first, bytes);
      memory.deallocate({}, second, bytes);
    }
  }
  (void)set_misuse_handler(before);
}

TEST_CASE("memory_allocated reports a double free instead of a number below zero", "[pool][misuse]") {
  static std::vector<std::string> seen;
  seen.clear();
  auto const before = set_misuse_handler([](misuse const& m) { seen.emplace_back(m.what()); });
  {
    auto memory = sim_pages(sim_machine().driver()) | pooled{} | tracked{};
    void* const p = memory.allocate({}, 100);
    memory.deallocate({}, p, 100);
    CHECK(memory_allocated(memory) == 0);
    CHECK(seen.empty());
    memory.deallocate({}, p, 100);
    seen.clear();
    CHECK(memory_allocated(memory) == 0);
    REQUIRE(seen.size() == 1);
    CHECK(seen[0].find(" more bytes were freed than allocated") != std::string::npos);
    CHECK(seen[0].find("checked{}") != std::string::npos);
  }
  (void)set_misuse_handler(before);
}

namespace {
/// The pool that the handler of the next test uses, and its call count.
struct asked_by_handler {
  static inline stack<sim_pages, pooled>* memory = nullptr;
  static inline int reported = 0;
};
}  // namespace

TEST_CASE("set_misuse_handler allows a handler to use the pool that reports to it", "[pool][misuse]") {
  sim_machine const machine;
  {
    auto memory = sim_pages(machine.driver()) | pooled{};
    asked_by_handler::memory = &memory;
    asked_by_handler::reported = 0;
    auto const before = set_misuse_handler([](misuse const& m) {
      ++asked_by_handler::reported;
      CHECK(m.kind() == misuse_kind::double_free);
      auto& pool = *asked_by_handler::memory;
      CHECK(pool->state().reserved > 0);
      CHECK_FALSE(pool.owns(&pool));
      pool.deallocate({}, pool.allocate({}, 3_MiB), 3_MiB);
      pool.deallocate({}, pool.allocate({}, 100), 100);
    });
    // A magazine accepts a block twice if another one lies between. The pool detects it when the magazine is
    // emptied: by trimming, for another request, or when a thread ends.
    auto const twice = [&] {
      void* const p = memory.allocate({}, 1000);
      void* const other = memory.allocate({}, 1000);
      memory.deallocate({}, p, 1000);
      memory.deallocate({}, other, 1000);
      memory.deallocate({}, p, 1000);
    };
    void* const beside = memory.allocate({}, 1000);  // keeps the run of small blocks alive
    twice();
    memory.trim(0);
    CHECK(asked_by_handler::reported == 1);
    twice();
    memory.deallocate({}, memory.allocate({}, 200_MiB), 200_MiB);
    CHECK(asked_by_handler::reported == 2);
    std::thread(twice).join();
    CHECK(asked_by_handler::reported == 3);
    memory.deallocate({}, beside, 1000);
    (void)set_misuse_handler(before);
  }
}

TEST_CASE("pooled leaks nothing and keeps working after any failed driver call", "[pool][fault]") {
  using bad_driver = faulty<sim_driver>;
  sim_paging paging = sim_paging::available;
  auto const run = [&](auto make_source, driver_call call, std::uint64_t nth) {
    sim_options o = small_machine(96_MiB);
    o.paging = paging;
    sim_machine const machine(o);
    fault_plan const plan;
    std::uint64_t failed = 0;
    {
      test_stream const a(machine.driver()), b(machine.driver());
      auto memory = make_source(bad_driver(machine.driver(), plan)) | pooled{};
      fault how;
      how.moment = gives_back(call) ? fault_moment::after : fault_moment::instead;
      plan.fail(call, nth, how);
      std::vector<block> blocks;
      std::size_t live = 0;
      std::mt19937 random(7);
      for (int i = 0; i < 60; ++i) {
        stream_ref const on = i % 3 == 0 ? stream_ref(a) : stream_ref(b);
        std::size_t const bytes = i % 5 == 0 ? 9_MiB : (i % 2 == 0 ? 2_MiB : 3_KiB);
        try {
          void* const p = memory.allocate(on, bytes);
          blocks.push_back({p, bytes});
          live += memory->block_bytes(bytes, default_alignment);
        } catch (out_of_memory const&) {
        } catch (cuda_error const&) {
        }
        CHECK(memory->state().live == live);
        while (blocks.size() > 9 || (!blocks.empty() && i % 7 == 6)) {
          std::size_t const at = random() % blocks.size();
          memory.deallocate(i % 2 == 0 ? stream_ref(a) : stream_ref(b), blocks[at].p, blocks[at].bytes);
          live -= memory->block_bytes(blocks[at].bytes, default_alignment);
          blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(at));
          if (i % 7 != 6) break;
        }
        if (i == 40) (void)memory.trim(0);
      }
      for (block const& x : blocks) CHECK(machine.is_accessible(x.p, x.bytes));
      failed = plan.failed();
      plan.disarm();
      free_all(memory, a, blocks);
      void* const again = memory.allocate(a, 64_MiB);  // the fault is over: the pool works again
      CHECK(again != nullptr);
      memory.deallocate(a, again, 64_MiB);
    }
    INFO(name_of(call) << " number " << nth);
    auto const l = machine.leaks();
    CHECK(l.handles == 0);
    CHECK(l.maps == 0);
    CHECK(l.ranges == 0);
    CHECK(l.blocks == 0);
    CHECK(l.events == 0);
    return failed != 0;
  };
  auto const every = [&](auto make_source) {
    std::size_t struck = 0;
    for (std::size_t c = 0; c < driver_call_count; ++c) {
      if (driver_call_at(c) == driver_call::page_granularity) continue;
      for (std::uint64_t nth = 1; nth < 400; ++nth) {
        if (!run(make_source, driver_call_at(c), nth)) break;
        ++struck;
      }
    }
    CHECK(struck > 20);
  };
  SECTION("pages") {
    every([](bad_driver d) { return basic_pages<bad_driver>(d); });
  }
  SECTION("blocks") {
    every([](bad_driver d) { return basic_malloc<bad_driver>(d); });
  }
  SECTION("pages of a device without them") {
    paging = sim_paging::missing;
    every([](bad_driver d) { return basic_pages<bad_driver>(d); });
  }
}

TEST_CASE("pooled in a random program returns disjoint aligned blocks and exact counts", "[pool][random]") {
  auto const run = [](auto make, unsigned seed) {
    sim_machine const machine(small_machine(512_MiB));
    auto memory = make(machine.driver());
    std::vector<std::unique_ptr<test_stream<sim_driver>>> streams;
    for (int i = 0; i < 3; ++i)
      streams.push_back(std::make_unique<test_stream<sim_driver>>(machine.driver()));
    std::mt19937_64 random(seed);
    std::map<std::uintptr_t, block> reference;  // by address
    std::size_t live = 0;
    for (int step = 0; step < 6000; ++step) {
      stream_ref const on = *streams[random() % streams.size()];
      std::uint64_t const what = random() % 100;
      if (what < 55) {
        unsigned const magnitude = static_cast<unsigned>(random() % 25);
        std::size_t const bytes = random() % (std::size_t{2} << magnitude) + 1;
        std::size_t const alignment = random() % 8 == 0 ? std::size_t{1} << (random() % 17) : 256;
        void* p = nullptr;
        try {
          p = random() % 16 == 0 ? memory.allocate_sync(bytes, alignment)
                                 : memory.allocate(on, bytes, alignment);
        } catch (out_of_memory const&) {
          continue;
        }
        auto const at = reinterpret_cast<std::uintptr_t>(p);
        std::size_t const size = memory->block_bytes(bytes, alignment);
        REQUIRE(size >= bytes);
        REQUIRE(is_aligned(p, alignment));
        REQUIRE(machine.is_accessible(p, bytes));
        auto const next = reference.lower_bound(at);
        if (next != reference.end()) REQUIRE(at + bytes <= next->first);
        if (next != reference.begin()) {
          auto const previous = std::prev(next);
          REQUIRE(previous->first + previous->second.bytes <= at);
        }
        reference[at] = {p, bytes, alignment};
        live += size;
      } else if (what < 98 && !reference.empty()) {
        auto it = reference.lower_bound(random());
        if (it == reference.end())
          it = std::next(reference.begin(), static_cast<std::ptrdiff_t>(random() % reference.size()));
        block const b = it->second;
        reference.erase(it);
        live -= memory->block_bytes(b.bytes, b.alignment);
        if (random() % 16 == 0) {
          memory.deallocate_sync(b.p, b.bytes, b.alignment);
        } else {
          memory.deallocate(on, b.p, b.bytes, b.alignment);
        }
      } else if (what == 98) {
        (void)memory.trim(random() % 512_MiB);
      }
      if (step % 50 == 0) {
        auto const s = memory->state();
        REQUIRE(s.live == live);
        REQUIRE(s.live_blocks == reference.size());
        REQUIRE(s.reserved >= s.live);
        REQUIRE(machine.usage().used == s.reserved);
      }
    }
    for (auto const& [at, b] : reference) {
      CHECK(machine.is_accessible(b.p, b.bytes));
      memory.deallocate_sync(b.p, b.bytes, b.alignment);
    }
    CHECK(memory->state().live == 0);
    memory.empty_cache();
    CHECK(memory->state().reserved == 0);
    void* const whole = memory.allocate({}, 500_MiB);
    CHECK(whole != nullptr);
    memory.deallocate({}, whole, 500_MiB);
  };
  for (unsigned seed = 1; seed <= 4; ++seed) {
    INFO("seed " << seed);
    run([](sim_driver d) { return sim_pages(d) | pooled{}; }, seed);
    run([](sim_driver d) { return sim_malloc(d) | pooled{}; }, seed);
  }
}
