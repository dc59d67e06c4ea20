// SPDX-License-Identifier: Apache-2.0
// compact(): the bound, contents and addresses, views, failures at every place.

#include "tarn/raii/compact.hpp"

#include <cstring>
#include <random>
#include <vector>

#include "catch.hpp"
#include "driver/faulty.hpp"
#include "raii/failing_calls.hpp"
#include "raii/kept_blocks.hpp"
#include "tarn/policy/fallback_to.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/tracked.hpp"
#include "tarn/raii/sleep.hpp"
#include "tarn/report/take_snapshot.hpp"
#include "tarn/sim.hpp"
#include "tarn/transfer/available_memory.hpp"

using namespace tarn;
using tarn_test::failing_call;
using tarn_test::failing_calls;
using tarn_test::kept_blocks;

namespace {

sim_options small_machine(std::size_t capacity = 512_MiB) {
  sim_options o;
  o.capacity = capacity;
  o.taken = 0;
  return o;
}

constexpr pooled large_handles{.largest_handle = 64_MiB};

/// Blocks of 1 to 2 MiB within handles of 64 MiB, of which every other `group` blocks are freed. A hole
/// between two blocks holds a whole granule only if it is larger than one.
template <class Memory>
void make_checkerboard(kept_blocks<Memory>& held, int count, unsigned seed, int group = 3) {
  std::mt19937 random(seed);
  std::vector<unsigned char*> handles;
  for (int i = 0; i < count * 2; i += 64) handles.push_back(held.get(64_MiB));
  for (unsigned char* p : handles) held.free(p);
  std::vector<unsigned char*> all;
  for (int i = 0; i < count; ++i) all.push_back(held.get(1_MiB + random() % 1_MiB));
  for (int i = 0; i < count; ++i) {
    if (i / group % 2 == 0) held.free(all[static_cast<std::size_t>(i)]);
  }
}

/// A block in a view of three handles of 16 MiB, of which the outer ones are shown only for their ends.
///
///   home   | 12 free  4 | 16 live |  16  | 16 live | 4  12 free |
///   view                  [ 4 ][ 16 ][ 4 ]
template <class Memory>
unsigned char* make_view(kept_blocks<Memory>& held) {
  std::vector<unsigned char*> all;
  for (int i = 0; i < 5; ++i) all.push_back(held.get(16_MiB));
  for (unsigned char* p : all) held.free(p);
  all.clear();
  for (std::size_t mib : {12, 4, 16, 16, 16, 4, 12}) all.push_back(held.get(mib * 1_MiB));
  for (std::size_t i : {1, 3, 5}) held.free(all[i]);
  unsigned char* const block = held.get(24_MiB);
  held.free(all[0]);
  held.free(all[6]);
  return block;
}

void check_bound(compaction const& c) {
  CHECK(c.reserved < c.live + 2 * 2_MiB * c.stretches);
  CHECK(c.stretches > 0);
}

}  // namespace

TEST_CASE("compact gives the free half of a checkerboard back at unchanged addresses",
          "[raii][compact][pages]") {
  for (unsigned seed = 1; seed <= 5; ++seed) {
    sim_machine const machine(small_machine());
    {
      auto memory = sim_pages{machine.driver(0)} | large_handles | tracked{};
      kept_blocks held(memory, 0);
      make_checkerboard(held, 120, seed);
      std::size_t const reserved = memory->upstream()->state().reserved;
      compaction const c = compact(memory);
      auto const state = memory->upstream()->state();
      CHECK(c.released > 0);
      CHECK(c.reserved == state.reserved);
      CHECK(c.reserved == reserved - c.released);
      CHECK(c.live >= state.live);
      CHECK(machine.usage().page_bytes == c.reserved);
      check_bound(c);
      CHECK(held.intact());
      compaction const again = compact(memory);
      CHECK(again.released == 0);
      CHECK(again.reserved == c.reserved);
      make_checkerboard(held, 60, seed + 100);
      CHECK(held.intact());
      (void)compact(memory);
      CHECK(held.intact());
      (void)take_snapshot(memory);
    }
    CHECK(machine.leaks().total() == 0);
  }
}

TEST_CASE("compact frees the free part of one large handle", "[raii][compact][pages]") {
  sim_machine const machine(small_machine());
  auto memory = sim_pages{machine.driver(0)} | pooled{.largest_handle = 64_MiB};
  kept_blocks held(memory, 0);
  held.get(64_MiB);
  unsigned char* const first = held[held.size() - 1];
  held.free(first);
  for (int i = 0; i < 32; ++i) held.get(2_MiB);  // in the same handle
  std::size_t const before = memory->state().reserved;
  for (int i = 0; i < 24; ++i) held.free(held[held.size() - 8]);
  compaction const c = compact(memory);
  CHECK(c.released >= before - memory->state().live - 4_MiB);
  check_bound(c);
  CHECK(held.intact());
  for (int i = 0; i < 24; ++i) held.get(2_MiB);
  CHECK(held.intact());
}

TEST_CASE("compact keeps blocks in views, and the views serve again", "[raii][compact][pages]") {
  for (int count = 8; count <= 24; count += 4) {
    sim_machine const machine(small_machine());
    {
      auto memory =
          sim_pages{machine.driver(0)} | limited{static_cast<std::size_t>(4 * count) * 1_MiB} | pooled{};
      kept_blocks held(memory, count);
      REQUIRE(memory->state().remaps > 0);
      (void)compact(memory);
      CHECK(held.intact());
      (void)sleep(memory);
      (void)wake(memory);
      CHECK(held.intact());
      while (held.size() > 6) {
        held.free(held[held.size() / 2]);
        (void)compact(memory);
        CHECK(held.intact());
      }
      held.get(static_cast<std::size_t>(count) * 1_MiB);
      held.get(static_cast<std::size_t>(count - 3) * 1_MiB);
      CHECK(held.intact());
      check_bound(compact(memory));
    }
    CHECK(machine.leaks().total() == 0);
  }
}

TEST_CASE("compact divides handles that a view shows", "[raii][compact][pages]") {
  sim_machine const machine(small_machine());
  {
    auto memory = sim_pages{machine.driver(0)} | limited{96_MiB} | pooled{.largest_handle = 16_MiB};
    kept_blocks held(memory, 0);
    unsigned char* const block = make_view(held);
    REQUIRE(memory->state().remaps == 3);
    compaction const c = compact(memory);
    CHECK(c.released >= 24_MiB);
    check_bound(c);
    CHECK(held.intact());
    (void)sleep(memory);
    (void)wake(memory);
    CHECK(held.intact());
    held.free(block);
    unsigned char* const again = held.get(24_MiB);
    CHECK(held.intact());
    held.get(20_MiB);
    CHECK(held.intact());
    held.free(again);
    (void)compact(memory);
    CHECK(held.intact());
  }
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("compact leaves a handle as it is if there is no memory for a copy", "[raii][compact][pages]") {
  sim_machine const machine(small_machine());
  auto memory = sim_pages{machine.driver(0)} | large_handles;
  kept_blocks held(memory, 0);
  make_checkerboard(held, 80, 3);
  (void)memory.trim(0);
  machine.take_memory(device_id{0}, 512_MiB - machine.usage().used);
  std::size_t const before = memory->state().reserved;
  compaction const c = compact(memory);
  CHECK(c.reserved == before);
  CHECK(held.intact());
  machine.take_memory(device_id{0}, 0);
  CHECK(compact(memory).reserved < before);
  CHECK(held.intact());
}

TEST_CASE("compact does nothing while the pool sleeps, and reaches each pool of fallback_to",
          "[raii][compact][pages]") {
  sim_machine const machine(small_machine());
  auto other = sim_pages{machine.driver(0)} | large_handles;
  auto memory = sim_pages{machine.driver(0)} | limited{140_MiB} | large_handles | fallback_to{other};
  kept_blocks held(memory, 0);
  make_checkerboard(held, 80, 4);
  compaction const c = compact(memory);
  CHECK(c.released > 0);
  CHECK(c.reserved == machine.usage().page_bytes);
  CHECK(held.intact());
  (void)sleep(memory);
  CHECK(compact(memory).released == 0);
  (void)wake(memory);
  CHECK(held.intact());
}

TEST_CASE("compact loses and leaks nothing when a driver call fails, and can be tried again",
          "[raii][compact][pages]") {
  int failures = 0;
  for (failing_call const& f : failing_calls) {
    for (std::uint64_t nth = 1, more = 1; more != 0; ++nth) {
      sim_machine const machine(small_machine());
      fault_plan const plan;
      {
        auto memory = basic_pages<faulty<sim_driver>>{faulty<sim_driver>{machine.driver(0), plan}} |
                      limited{96_MiB} | pooled{.largest_handle = 16_MiB};
        kept_blocks held(memory, 0);
        make_view(held);
        REQUIRE(memory->state().remaps == 3);
        std::uint64_t const first = plan.calls(f.call);
        plan.fail(f.call, nth, {.moment = f.moment});
        std::uint64_t const failed_before = plan.failed();
        try {
          (void)compact(memory);
        } catch (cuda_error const&) {
        }
        failures += plan.failed() != failed_before ? 1 : 0;
        more = plan.calls(f.call) - first >= nth ? 1 : 0;
        plan.disarm();
        CHECK(held.intact());
        CHECK(machine.usage().page_bytes == memory->state().reserved);
        check_bound(compact(memory));
        CHECK(held.intact());
        held.get(2_MiB);
        CHECK(held.intact());
      }
      CHECK(machine.leaks().total() == 0);
    }
  }
  CHECK(failures > 10);
}

TEST_CASE("compact puts the pool to sleep if two maps in a row fail, and wake maps the memory again",
          "[raii][compact][sleep][pages]") {
  int slept = 0;
  for (failure const kind : {failure::other, failure::out_of_memory}) {
    for (std::uint64_t distance : {1u, 2u, 3u, 4u}) {
      for (std::uint64_t nth = 1, more = 1; more != 0; ++nth) {
        sim_machine const machine(small_machine());
        fault_plan const plan;
        {
          auto memory = basic_pages<faulty<sim_driver>>{faulty<sim_driver>{machine.driver(0), plan}} |
                        limited{96_MiB} | pooled{.largest_handle = 16_MiB};
          kept_blocks held(memory, 0);
          make_view(held);
          std::uint64_t const first = plan.calls(driver_call::map_pages);
          plan.fail(driver_call::map_pages, nth, {.kind = kind});
          plan.fail(driver_call::map_pages, nth + distance, {.kind = kind});
          bool threw = false;
          try {
            (void)compact(memory);
          } catch (out_of_memory const&) {
            threw = true;
            CHECK(is_asleep(memory));
          } catch (cuda_error const&) {
            threw = true;
          }
          more = plan.calls(driver_call::map_pages) - first >= nth ? 1 : 0;
          plan.disarm();
          CHECK(machine.usage().page_bytes == memory->state().reserved);
          if (is_asleep(memory)) {
            ++slept;
            CHECK(threw);
            CHECK_THROWS_AS(memory.allocate(stream_ref{}, 1000), pool_asleep);
            CHECK(sleep(memory) == 0);
            CHECK(machine.leaks().maps == 0);
            held.free(held[held.size() - 1]);  // the block in a view
            if (nth % 2 == 0) (void)memory.trim(0);
            // The first attempt to wake fails, and loses nothing: the contents are only in the handles.
            std::size_t const reserved = memory->state().reserved;
            plan.fail(driver_call::map_pages, nth, {.kind = kind});
            try {
              (void)wake(memory);
            } catch (std::exception const&) {
              CHECK(is_asleep(memory));
              CHECK(memory->state().reserved <= reserved);
              CHECK(machine.leaks().maps == 0);
            }
            plan.disarm();
            CHECK(wake(memory) == 0);
          }
          CHECK_FALSE(is_asleep(memory));
          CHECK(held.intact());
          // What an earlier call left unmapped is no reason for the next one to fail.
          plan.fail(driver_call::create_pages, 1, {.kind = failure::out_of_memory});
          CHECK_NOTHROW(compact(memory));
          plan.disarm();
          CHECK_FALSE(is_asleep(memory));
          (void)sleep(memory);
          (void)wake(memory);
          CHECK(held.intact());
          check_bound(compact(memory));
          CHECK(held.intact());
          held.get(24_MiB);
          CHECK(held.intact());
        }
        CHECK(machine.leaks().total() == 0);
      }
    }
  }
  CHECK(slept > 10);
}

TEST_CASE("compact leaves alone what its copies may still use", "[raii][compact][pages]") {
  sim_options o = small_machine();
  o.checks = sim_checks::stream_order;
  sim_machine const machine(o);
  {
    fault_plan const plan;
    auto memory =
        basic_pages<faulty<sim_driver>>{faulty<sim_driver>{machine.driver(0), plan}} | large_handles;
    kept_blocks held(memory, 0);
    held.free(held.get(64_MiB));
    std::vector<unsigned char*> all;
    for (int i = 0; i < 8; ++i) all.push_back(held.get(8_MiB));
    for (std::size_t i = 0; i < 8; i += 2) held.free(all[i]);
    (void)machine.driver(0).synchronize_device();
    tarn_test::fail_waits(plan);
    CHECK_THROWS_AS(compact(memory), cuda_error);
    plan.disarm();
    CHECK(machine.findings().empty());
    CHECK(held.intact());
    SECTION("compacted again") {
      (void)compact(memory);
      CHECK(held.intact());
    }
    SECTION("the handle that they read is given back") {
      while (held.size() != 0) held.free(held[0]);
      CHECK(memory.trim(0) >= 64_MiB);
      CHECK(machine.findings().empty());
    }
  }
  CHECK(machine.leaks().handles != 0);  // the new handles, which are never given back
}

TEST_CASE("free memory before a hole that compact made is extended into it", "[raii][compact][pages]") {
  sim_machine const machine(small_machine(44_MiB));
  auto memory = sim_pages{machine.driver(0)} | pooled{.remap = remapping::off, .largest_handle = 16_MiB};
  memory.deallocate_sync(memory.allocate_sync(32_MiB), 32_MiB);  // two handles
  void* const first = memory.allocate_sync(15_MiB);
  void* const between = memory.allocate_sync(5_MiB);
  void* const last = memory.allocate_sync(12_MiB);
  memory.deallocate_sync(between, 5_MiB);
  REQUIRE(compact(memory).released == 4_MiB);  // the start of the second handle
  machine.take_memory(device_id{0}, 12_MiB);
  CHECK(largest_available_block(memory) == 5_MiB);
  void* p = nullptr;
  CHECK_NOTHROW(p = memory.allocate_sync(5_MiB));
  CHECK(p == between);
  memory.deallocate_sync(p, 5_MiB);
  memory.deallocate_sync(first, 15_MiB);
  memory.deallocate_sync(last, 12_MiB);
}

TEST_CASE("a pool that compact put to sleep may end, and frees give its handles back",
          "[raii][compact][pages]") {
  sim_machine const machine(small_machine());
  fault_plan const plan;
  {
    auto memory = basic_pages<faulty<sim_driver>>{faulty<sim_driver>{machine.driver(0), plan}} |
                  limited{96_MiB} | pooled{.largest_handle = 16_MiB};
    kept_blocks held(memory, 0);
    make_view(held);
    for (std::uint64_t nth = 1; nth < 40; ++nth) plan.fail(driver_call::map_pages, nth + 2);
    CHECK_THROWS_AS(compact(memory), cuda_error);
    REQUIRE(is_asleep(memory));
    std::size_t const before = machine.usage().page_bytes;
    while (held.size() > 1) held.free(held[0]);
    CHECK(memory.trim(0) > 0);
    CHECK(machine.usage().page_bytes < before);
    CHECK(machine.usage().page_bytes == memory->state().reserved);
  }
  CHECK(machine.leaks().total() == 0);
}
