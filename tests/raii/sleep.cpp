// SPDX-License-Identifier: Apache-2.0
// sleep(), wake() and sleep_scope: contents, addresses, what works meanwhile, failures at every place.

#include "tarn/raii/sleep.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "driver/faulty.hpp"
#include "raii/failing_calls.hpp"
#include "raii/kept_blocks.hpp"
#include "tarn/debug/checked.hpp"
#include "tarn/debug/fenced.hpp"
#include "tarn/debug/logged.hpp"
#include "tarn/debug/poisoned.hpp"
#include "tarn/debug/with_history.hpp"
#include "tarn/policy/any_resource.hpp"
#include "tarn/policy/fallback_to.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/retry_on_oom.hpp"
#include "tarn/policy/tracked.hpp"
#include "tarn/raii/compact.hpp"
#include "tarn/raii/stream.hpp"
#include "tarn/report/memory_stats.hpp"
#include "tarn/report/stats.hpp"
#include "tarn/report/take_snapshot.hpp"
#include "tarn/sharing/page_pin.hpp"
#include "tarn/sim.hpp"
#include "tarn/transfer/with_oom_retry.hpp"

using namespace tarn;
using tarn_test::fail_waits;
using tarn_test::failing_call;
using tarn_test::failing_calls;
using tarn_test::kept_blocks;
using tarn_test::next_failing;

namespace {

constexpr contents all_kinds[] = {contents::in_pinned_memory, contents::discarded};

using faulty_pages = basic_pages<faulty<sim_driver>>;

sim_options small_machine() {
  sim_options o;
  o.capacity = 512_MiB;
  o.taken = 0;
  return o;
}

}  // namespace

TEST_CASE("sleep gives all memory back, wake restores it at the same addresses with the kept contents",
          "[raii][sleep][pages]") {
  for (contents const where : all_kinds) {
    sim_machine const machine(small_machine());
    {
      auto memory = sim_pages{machine.driver(0)} | limited{80_MiB} | pooled{};
      kept_blocks held(memory);
      REQUIRE(memory->state().remaps > 0);
      std::size_t const reserved = memory->state().reserved;
      std::size_t const live = memory->state().live;
      std::size_t const given = sleep(memory, where);
      CHECK(given == reserved);
      CHECK(is_asleep(memory));
      CHECK(memory->state().reserved == 0);
      CHECK(memory->state().cached == 0);
      CHECK(memory->state().live == live);
      CHECK(machine.usage().page_bytes == 0);
      CHECK(machine.leaks().blocks == (where == contents::in_pinned_memory ? 1 : 0));
      std::size_t const taken = wake(memory);
      CHECK_FALSE(is_asleep(memory));
      CHECK(taken == memory->state().reserved);
      CHECK(taken <= reserved);
      CHECK(machine.leaks().blocks == 0);
      if (where == contents::discarded) held.write();
      CHECK(held.intact());
      held.get(3_MiB);
      CHECK(held.intact());
    }
    CHECK(machine.leaks().total() == 0);
  }
}

TEST_CASE("sleep and wake may be called twice", "[raii][sleep][pages]") {
  sim_machine const machine(small_machine());
  auto memory = sim_pages{machine.driver(0)} | pooled{};
  CHECK(wake(memory) == 0);
  CHECK(sleep(memory) == 0);  // nothing is reserved yet
  CHECK_THROWS_AS(memory.allocate(stream_ref{}, 100), pool_asleep);
  CHECK(wake(memory) == 0);
  kept_blocks held(memory);
  CHECK(sleep(memory) > 0);
  CHECK(sleep(memory, contents::discarded) == 0);  // the contents of the first call stay
  CHECK(wake(memory) > 0);
  CHECK(wake(memory) == 0);
  CHECK(held.intact());
}

TEST_CASE("1,000 cycles of sleep and wake leak no byte", "[raii][sleep][pages]") {
  sim_machine const machine(small_machine());
  auto memory = sim_pages{machine.driver(0)} | pooled{};
  void* const p = memory.allocate(stream_ref{}, 300'000);
  void* const q = memory.allocate(stream_ref{}, 3000);
  std::memset(p, 1, 300'000);
  std::memset(q, 2, 3000);
  (void)sleep(memory);
  (void)wake(memory);
  auto const usage = machine.usage();
  auto const leaks = machine.leaks();
  std::size_t const host = memory->state().host_bytes;
  for (int i = 0; i < 1000; ++i) {
    (void)sleep(memory);
    (void)wake(memory);
  }
  CHECK(machine.usage().used == usage.used);
  CHECK(machine.leaks().total() == leaks.total());
  CHECK(memory->state().host_bytes == host);
  CHECK(static_cast<unsigned char*>(p)[299'999] == 1);
  CHECK(static_cast<unsigned char*>(q)[2999] == 2);
  memory.deallocate(stream_ref{}, p, 300'000);
  memory.deallocate(stream_ref{}, q, 3000);
}

TEST_CASE("while a pool sleeps, allocation fails and frees, statistics, trim and owns work",
          "[raii][sleep][pages]") {
  for (contents const where : all_kinds) {
    sim_machine const machine(small_machine());
    {
      auto memory = sim_pages{machine.driver(0)} | pooled{} | tracked{};
      kept_blocks held(memory);
      void* const warm = memory.allocate(stream_ref{}, 1000);
      memory.deallocate(stream_ref{}, warm, 1000);  // in the thread's cache
      (void)sleep(memory, where);
      CHECK_THROWS_AS(memory.allocate(stream_ref{}, 1000), pool_asleep);  // a warm call otherwise
      CHECK_THROWS_AS(memory.allocate(stream_ref{}, 3_MiB), pool_asleep);
      CHECK_THROWS_AS(memory.allocate_sync(100), pool_asleep);
      CHECK(memory.owns(held[0]));
      CHECK(memory.trim(0) == 0);
      CHECK(machine.usage().page_bytes == 0);
      CHECK(memory_reserved(memory) == 0);
      (void)take_snapshot(memory);
      std::size_t const live = memory_allocated(memory);
      std::size_t const before = held.size();
      for (std::size_t i = before; i-- > 0; i -= i != 0 ? 1 : 0) held.free(held[i]);  // every other one
      CHECK(held.size() < before);
      CHECK(memory_allocated(memory) < live);
      CHECK_THROWS_AS(memory.allocate(stream_ref{}, 1000), pool_asleep);  // not one of the blocks just freed
      (void)wake(memory);
      if (where == contents::discarded) held.write();
      CHECK(held.intact());
      held.get(5_MiB);
      held.get(1000);
      CHECK(held.intact());
    }
    CHECK(machine.leaks().total() == 0);
  }
}

TEST_CASE("pool_asleep passes through every policy: it is not an out_of_memory", "[raii][sleep][pages]") {
  static_assert(!std::is_base_of_v<std::bad_alloc, pool_asleep>);
  sim_machine const machine(small_machine());
  auto const throws_pool_asleep = [](auto memory) {
    (void)sleep(memory);
    CHECK_THROWS_AS(memory.allocate(stream_ref{}, 1000), pool_asleep);
    (void)wake(memory);
  };
  throws_pool_asleep(sim_pages{machine.driver(0)} | pooled{} | fenced{});
  throws_pool_asleep(sim_pages{machine.driver(0)} | pooled{} | checked{});
  throws_pool_asleep(sim_pages{machine.driver(0)} | pooled{} | with_history{});
  throws_pool_asleep(sim_pages{machine.driver(0)} | pooled{} |
                     fallback_to{sim_pinned_host{machine.driver(0)} | pooled{}});
  int handled = 0;
  throws_pool_asleep(sim_pages{machine.driver(0)} | pooled{} |
                     retry_on_oom{[&](out_of_memory const&, unsigned attempt) {
                       ++handled;
                       return attempt < 3;
                     }});
  CHECK(handled == 0);
}

TEST_CASE("with_oom_retry passes pool_asleep on at once, and remembers nothing", "[raii][sleep][pages]") {
  sim_machine const machine(small_machine());
  auto memory = sim_pages{machine.driver(0)} | pooled{};
  oom_sizes known;
  oom_sizes const before = known;
  oom_retry_options options;
  options.remember = &known;
  int calls = 0;
  (void)sleep(memory);
  CHECK_THROWS_AS(with_oom_retry(
                      memory, 1000,
                      [&](std::size_t n) {
                        ++calls;
                        memory.deallocate(stream_ref{}, memory.allocate(stream_ref{}, n), n);
                      },
                      options),
                  pool_asleep);
  CHECK(calls == 1);
  CHECK(known.good == before.good);
  CHECK(known.bad == before.bad);
  (void)wake(memory);
}

TEST_CASE("A refusal of a sleeping pool counts as no out of memory, and is logged as failed",
          "[raii][sleep][pages]") {
  sim_machine const machine(small_machine());
  std::vector<call_outcome> outcomes;
  auto memory = sim_pages{machine.driver(0)} | pooled{} | tracked{} |
                logged([&](call_record const& call) { outcomes.push_back(call.outcome); });
  (void)sleep(memory);
  CHECK_THROWS_AS(memory.allocate(stream_ref{}, 1000), pool_asleep);
  (void)wake(memory);
  REQUIRE(!outcomes.empty());
  CHECK(outcomes.back() == call_outcome::failed);
  for (auto const& [key, value] : memory_stats(memory)) {
    if (key == "num_ooms") CHECK(value == 0);
  }
}

TEST_CASE("checked finds a late write although an allocation was refused while the pool slept",
          "[raii][sleep][pages]") {
  struct quiet {
    misuse_handler before = set_misuse_handler([](misuse const&) {});
    ~quiet() { (void)set_misuse_handler(before); }
  } const until_all_ended;
  sim_machine const machine(small_machine());
  auto memory = sim_pages{machine.driver(0)} | pooled{} | checked{};
  void* const p = memory.allocate(stream_ref{}, 1000);
  memory.deallocate(stream_ref{}, p, 1000);
  REQUIRE(machine.driver(0).fill(stream_ref{}, p, 0x11, 4).ok());  // after the free
  REQUIRE(machine.driver(0).synchronize_stream(stream_ref{}).ok());
  (void)sleep(memory);
  CHECK_THROWS_AS(memory.allocate(stream_ref{}, 1000), pool_asleep);
  (void)wake(memory);
  CHECK(check_all(memory) == 1);
}

TEST_CASE("wake takes no memory for blocks that were freed while the pool slept", "[raii][sleep][pages]") {
  sim_machine const machine(small_machine());
  auto memory = sim_pages{machine.driver(0)} | pooled{};
  void* const p = memory.allocate(stream_ref{}, 64_MiB);
  void* const q = memory.allocate(stream_ref{}, 2_MiB);
  std::memset(q, 7, 2_MiB);
  (void)sleep(memory);
  memory.deallocate(stream_ref{}, p, 64_MiB);
  CHECK(wake(memory) < 64_MiB);
  CHECK(static_cast<unsigned char*>(q)[2_MiB - 1] == 7);
  memory.deallocate(stream_ref{}, q, 2_MiB);
}

TEST_CASE("sleep waits for the recorded uses of freed blocks, and does not keep their contents",
          "[raii][sleep][pages]") {
  sim_machine const machine(small_machine());
  auto memory = sim_pages{machine.driver(0)} | pooled{};
  sim_stream const a(machine.driver(0));
  sim_stream const b(machine.driver(0));
  void* const p = memory.allocate(a, 64_MiB);
  REQUIRE(machine.launch(b, 1'000'000, {sim_reads(p, 64_MiB)}).ok());
  memory.record_stream(p, 64_MiB, b);
  memory.deallocate(a, p, 64_MiB);
  REQUIRE(memory->state().deferred == 64_MiB);
  (void)sleep(memory);
  CHECK(memory->state().deferred == 0);
  CHECK(machine.pending() == 0);
  CHECK(machine.leaks().blocks == 0);  // no pinned memory
  CHECK(wake(memory) == 0);
}

TEST_CASE("wake takes no memory for blocks that were cached by a thread", "[raii][sleep][pages]") {
  sim_machine const machine(small_machine());
  auto memory = sim_pages{machine.driver(0)} | pooled{};
  std::vector<void*> all;
  for (int i = 0; i < 40; ++i) all.push_back(memory.allocate(stream_ref{}, 100'000));
  for (void* p : all) memory.deallocate(stream_ref{}, p, 100'000);
  CHECK(sleep(memory) > 0);
  CHECK(machine.leaks().blocks == 0);  // nothing was kept
  CHECK(wake(memory) == 0);
}

TEST_CASE("wake keeps the host memory for the next sleep if it is asked to", "[raii][sleep][pages]") {
  sim_machine const machine(small_machine());
  {
    auto memory = sim_pages{machine.driver(0)} | limited{80_MiB} | pooled{};
    kept_blocks held(memory);
    (void)sleep(memory);
    (void)wake(memory, after_waking::keep_host_memory);
    CHECK(memory->state().host_bytes > memory->state().live);
    std::uint64_t const before = machine.calls()[driver_call::malloc_pinned];
    (void)sleep(memory);
    CHECK(machine.calls()[driver_call::malloc_pinned] == before);
    (void)wake(memory, after_waking::keep_host_memory);
    CHECK(held.intact());
    held.get(7_MiB);  // more than before
    (void)sleep(memory);
    (void)wake(memory, after_waking::keep_host_memory);
    CHECK(held.intact());
    (void)sleep(memory, contents::discarded);
    (void)wake(memory);
    CHECK(machine.leaks().blocks == 0);
  }
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("sleep without pinned memory for the contents refuses, says so and changes nothing",
          "[raii][sleep][pages]") {
  sim_machine const machine(small_machine());
  fault_plan const plan;
  auto memory = faulty_pages{faulty<sim_driver>{machine.driver(0), plan}} | pooled{};
  kept_blocks held(memory);
  std::size_t const reserved = memory->state().reserved;
  plan.fail(driver_call::malloc_pinned, 1);
  try {
    (void)sleep(memory);
    FAIL("asleep without pinned memory");
  } catch (out_of_memory const& error) {
    CHECK(error.asked() >= memory->state().live);
    CHECK(std::string(error.what())
              .find("refused by the host (malloc_pinned). Pinned memory for the contents "
                    "of the pool is lacking: free some, or use contents::discarded.") != std::string::npos);
  }
  CHECK_FALSE(is_asleep(memory));
  CHECK(memory->state().reserved == reserved);
  CHECK(machine.leaks().blocks == 0);
  CHECK(held.intact());
}

TEST_CASE("a pool may end while it sleeps", "[raii][sleep][pages]") {
  for (contents const where : all_kinds) {
    sim_machine const machine(small_machine());
    {
      auto memory = sim_pages{machine.driver(0)} | limited{80_MiB} | pooled{};
      kept_blocks held(memory);
      (void)sleep(memory, where);
    }
    CHECK(machine.leaks().total() == 0);
    CHECK(machine.usage().used == 0);
  }
}

TEST_CASE("wake with too little memory reports what is lacking and stays asleep", "[raii][sleep][pages]") {
  for (contents const where : all_kinds) {
    sim_machine const machine(small_machine());
    auto memory = sim_pages{machine.driver(0)} | pooled{};
    kept_blocks held(memory);
    std::size_t const given = sleep(memory, where);
    machine.take_memory(device_id{0}, 512_MiB - 10_MiB);
    for (int i = 0; i < 2; ++i) {
      try {
        (void)wake(memory);
        FAIL("woken without memory");
      } catch (out_of_memory const& error) {
        CHECK(error.report().lacking == error.report().asked - 10_MiB);
        CHECK(error.report().asked <= given);
        CHECK(std::string(error.what()).find("acking") != std::string::npos);
      }
      CHECK(is_asleep(memory));
      CHECK(machine.usage().page_bytes == 0);
      CHECK_THROWS_AS(memory.allocate(stream_ref{}, 1000), pool_asleep);
    }
    machine.take_memory(device_id{0}, 0);
    (void)wake(memory);
    if (where == contents::discarded) held.write();
    CHECK(held.intact());
  }
}

TEST_CASE("threads that allocate and free while a pool falls asleep and wakes get memory or pool_asleep",
          "[raii][sleep][threads][pages]") {
  sim_machine const machine(small_machine());
  {
    auto memory = sim_pages{machine.driver(0)} | pooled{};
    void* const kept = memory.allocate(stream_ref{}, 5_MiB);
    std::memset(kept, 5, 5_MiB);
    std::atomic<bool> stop{false};
    std::atomic<int> refused{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        std::vector<void*> mine;
        for (unsigned i = 0; !stop; ++i) {
          std::size_t const bytes = 500u * static_cast<unsigned>(t + 1);
          try {
            if (mine.size() < 20) mine.push_back(memory.allocate(stream_ref{}, bytes));
          } catch (pool_asleep const&) {
            ++refused;
          }
          if (mine.size() > 10 || (i % 3 == 0 && !mine.empty())) {
            memory.deallocate(stream_ref{}, mine.back(), bytes);
            mine.pop_back();
          }
        }
        for (void* p : mine) memory.deallocate(stream_ref{}, p, 500u * static_cast<unsigned>(t + 1));
      });
    }
    for (int i = 0; i < 30; ++i) {
      (void)sleep(memory);
      CHECK(machine.usage().page_bytes == 0);
      int const before = refused;
      while (refused == before) std::this_thread::yield();
      CHECK_THROWS_AS(memory.allocate(stream_ref{}, 1000), pool_asleep);
      (void)wake(memory);
    }
    stop = true;
    for (std::thread& t : threads) t.join();
    CHECK(static_cast<unsigned char*>(kept)[5_MiB - 1] == 5);
    memory.deallocate(stream_ref{}, kept, 5_MiB);
    CHECK(memory->state().live == 0);
  }
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("sleep_scope wakes its pool at its end, or before", "[raii][sleep][pages]") {
  sim_machine const machine(small_machine());
  auto memory = sim_pages{machine.driver(0)} | pooled{};
  kept_blocks held(memory);
  {
    sleep_scope const asleep(memory);
    CHECK(asleep.released_bytes() > 0);
    CHECK(machine.usage().page_bytes == 0);
  }
  CHECK(held.intact());
  {
    sleep_scope asleep(memory, contents::in_pinned_memory);
    asleep.wake();
    CHECK(held.intact());
    held.get(1_MiB);
  }
  {
    sleep_scope const asleep(memory);
    machine.take_memory(device_id{0}, 512_MiB);
  }
  CHECK(is_asleep(memory));
  machine.take_memory(device_id{0}, 0);
  (void)wake(memory);
  CHECK(held.intact());
}

TEST_CASE("the end of an inner sleep_scope leaves the pool asleep", "[raii][sleep][pages]") {
  sim_machine const machine(small_machine());
  auto memory = sim_pages{machine.driver(0)} | pooled{};
  kept_blocks held(memory);
  {
    sleep_scope const outer(memory);
    {
      sleep_scope const inner(memory);
      CHECK(inner.released_bytes() == 0);
    }
    CHECK(is_asleep(memory));
  }
  CHECK_FALSE(is_asleep(memory));
  CHECK(held.intact());
}

TEST_CASE("several pools sleep and wake independently", "[raii][sleep][pages]") {
  sim_machine const machine(small_machine());
  auto weights = sim_pages{machine.driver(0)} | pooled{};
  auto cache = sim_pages{machine.driver(0)} | pooled{};
  auto* const w = static_cast<unsigned char*>(weights.allocate(stream_ref{}, 300_MiB));
  std::memset(w, 3, 300_MiB);
  (void)sleep(weights);
  void* const c = cache.allocate(stream_ref{}, 400_MiB);
  (void)sleep(cache, contents::discarded);
  (void)wake(weights);
  CHECK(w[0] == 3);
  CHECK(w[300_MiB - 1] == 3);
  CHECK_THROWS_AS(wake(cache), out_of_memory);
  weights.deallocate(stream_ref{}, w, 300_MiB);
  (void)weights.trim(0);
  (void)wake(cache);
  cache.deallocate(stream_ref{}, c, 400_MiB);
}

TEST_CASE("sleep and wake lose and leak nothing when a driver call fails, and can be tried again",
          "[raii][sleep][pages]") {
  int failures = 0;
  for (contents const where : all_kinds) {
    for (failing_call const& f : failing_calls) {
      for (std::uint64_t nth = 1, more = 1; more != 0; nth += next_failing) {
        sim_machine const machine(small_machine());
        fault_plan const plan;
        {
          auto memory =
              faulty_pages{faulty<sim_driver>{machine.driver(0), plan}} | limited{24_MiB} | pooled{};
          kept_blocks held(memory, 8);
          REQUIRE(memory->state().remaps > 0);
          std::uint64_t const first = plan.calls(f.call);
          plan.fail(f.call, nth, {.moment = f.moment});
          bool failed = false;
          try {
            (void)sleep(memory, where);
          } catch (std::exception const&) {
            failed = true;
            CHECK_FALSE(is_asleep(memory));
            CHECK(machine.leaks().blocks == 0);
            CHECK(held.intact());
          }
          if (!failed) {
            REQUIRE(is_asleep(memory));
            CHECK(memory->state().reserved == 0);
            CHECK(machine.usage().page_bytes == 0);
            try {
              (void)wake(memory);
            } catch (std::exception const&) {
              failed = true;
              CHECK(is_asleep(memory));
              CHECK(memory->state().reserved == 0);
              CHECK(machine.usage().page_bytes == 0);
            }
          }
          more = plan.calls(f.call) - first >= nth ? 1 : 0;
          plan.disarm();
          if (failed) {
            ++failures;
            (void)sleep(memory, where);
            (void)wake(memory);
          }
          CHECK_FALSE(is_asleep(memory));
          CHECK(machine.leaks().blocks == 0);
          if (where == contents::discarded) held.write();
          CHECK(held.intact());
          held.get(2_MiB);
          CHECK(held.intact());
        }
        CHECK(machine.leaks().total() == 0);
      }
    }
  }
  CHECK(failures > 60 / static_cast<int>(next_failing));
}

TEST_CASE("each place is unmapped once where the driver does not report what sleep saved",
          "[raii][sleep][pages]") {
  bool const trims = GENERATE(false, true);
  CAPTURE(trims);
  sim_machine const machine(small_machine());
  fault_plan const plan;
  std::size_t mapped = 0;
  std::uint64_t before = 0;
  {
    auto memory = faulty_pages{faulty<sim_driver>{machine.driver(0), plan}} | limited{24_MiB} | pooled{};
    kept_blocks held(memory, 8);
    REQUIRE(memory->state().remaps > 0);
    mapped = memory->state().maps - memory->state().unmaps;
    before = plan.calls(driver_call::unmap_pages);
    fail_waits(plan);
    (void)sleep(memory, contents::in_pinned_memory);
    plan.disarm();
    REQUIRE(memory->state().reserved > 0);
    while (trims && held.size() != 0) held.free(held[0]);
    if (trims) memory.empty_cache();
    CHECK((memory->state().reserved == 0) == trims);
  }
  CHECK(plan.calls(driver_call::unmap_pages) - before == mapped);
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("a pool wakes at the second try where a pin ended while it slept", "[raii][sleep][pages]") {
  sim_machine const machine(small_machine());
  {
    fault_plan const plan;
    auto memory = faulty_pages{faulty<sim_driver>{machine.driver(0), plan}} | limited{24_MiB} | pooled{};
    kept_blocks held(memory, 8);
    REQUIRE(memory->state().remaps > 0);
    std::optional<page_pin<decltype(memory)>> pin(std::in_place, memory, held[4], 2_MiB);  // of a view
    fail_waits(plan);
    (void)sleep(memory);
    plan.disarm();
    pin.reset();
    plan.fail(driver_call::map_pages, 1);
    CHECK_THROWS_AS(wake(memory), cuda_error);
    plan.disarm();
    (void)wake(memory);
    CHECK(held.intact());
  }
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("a wake that fails keeps mapped what its copies may still write", "[raii][sleep][pages]") {
  sim_options o = small_machine();
  o.checks = sim_checks::stream_order;
  sim_machine const machine(o);
  {
    fault_plan const plan;
    auto memory = faulty_pages{faulty<sim_driver>{machine.driver(0), plan}} | pooled{};
    auto* const p = static_cast<unsigned char*>(memory.allocate(stream_ref{}, 64_MiB));
    std::memset(p, 7, 64_MiB);
    (void)sleep(memory);
    fail_waits(plan);
    CHECK_THROWS_AS(wake(memory), cuda_error);
    CHECK(is_asleep(memory));
    memory.empty_cache();
    plan.disarm();
    CHECK(machine.findings().empty());
    (void)wake(memory);
    CHECK(std::all_of(p, p + 64_MiB, [](unsigned char byte) { return byte == 7; }));
    memory.deallocate(stream_ref{}, p, 64_MiB);
  }
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("sleep keeps what the driver does not report as saved, also over a wake that fails",
          "[raii][sleep][pages]") {
  sim_machine const machine(small_machine());
  {
    fault_plan const plan;
    auto memory = faulty_pages{faulty<sim_driver>{machine.driver(0), plan}} | pooled{};
    kept_blocks held(memory);
    std::size_t const reserved = memory->state().reserved;
    fail_waits(plan);
    std::size_t given = 0;
    try {
      given = sleep(memory, contents::in_pinned_memory);
    } catch (cuda_error const&) {  // refused before anything was given back
      FAIL("not reached");
    }
    plan.disarm();
    CHECK(is_asleep(memory));
    CHECK(given < reserved);
    CHECK(machine.usage().page_bytes == reserved - given);
    std::size_t const unmaps = memory->state().unmaps;
    for (unsigned nth = 1; nth <= 8; ++nth) plan.fail(driver_call::synchronize_device, nth);
    CHECK_THROWS_AS(wake(memory), cuda_error);  // the copies may still run: what they read stays mapped
    plan.disarm();
    CHECK(is_asleep(memory));
    CHECK(machine.usage().page_bytes == reserved - given);
    CHECK(memory->state().unmaps == unmaps);
    for (unsigned nth = 1; nth <= 8; ++nth) plan.fail(driver_call::synchronize_device, nth);
    for (int i = 0; i < 4; ++i) held.free(held[0]);
    memory.empty_cache();  // likewise
    plan.disarm();
    CHECK(machine.usage().page_bytes == reserved - given);
    CHECK(memory->state().unmaps == unmaps);
    plan.fail(driver_call::map_pages, 1);
    CHECK_THROWS_AS(wake(memory), cuda_error);
    plan.disarm();
    CHECK(is_asleep(memory));
    (void)wake(memory);
    CHECK(held.intact());
    std::size_t const left = memory->state().reserved;
    CHECK(sleep(memory) == left);
    (void)wake(memory);
    CHECK(held.intact());
  }
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("sleep gives handles back while later ones are copied, and wake copies while it makes them",
          "[raii][sleep][pages]") {
  sim_options o = small_machine();
  o.slow_streams = 1000;  // copies are done only when they are waited for
  o.slowness = 1'000'000'000;
  sim_machine const machine{o};
  fault_plan const plan;
  auto memory = faulty_pages{faulty<sim_driver>{machine.driver(0), plan}} | pooled{.largest_handle = 2_MiB};
  std::vector<unsigned char*> blocks;
  for (int i = 0; i < 16; ++i) {
    blocks.push_back(static_cast<unsigned char*>(memory.allocate(stream_ref{}, 2_MiB)));
    std::memset(blocks.back(), i + 1, 2_MiB);
  }
  std::uint64_t const waits = plan.calls(driver_call::synchronize_event);
  (void)sleep(memory, contents::in_pinned_memory);
  CHECK(plan.calls(driver_call::synchronize_event) - waits >= 8);  // one by one
  CHECK(machine.usage().page_bytes == 0);
  (void)wake(memory);
  for (int i = 0; i < 16; ++i) {
    CHECK(blocks[static_cast<std::size_t>(i)][2_MiB - 1] == i + 1);
    memory.deallocate(stream_ref{}, blocks[static_cast<std::size_t>(i)], 2_MiB);
  }
}

TEST_CASE("fallback_to puts the pools to sleep that can", "[raii][sleep][pages]") {
  sim_machine const machine(small_machine());
  auto other = sim_pinned_host{machine.driver(0)} | pooled{};
  auto memory = sim_pages{machine.driver(0)} | limited{80_MiB} | pooled{} | fallback_to{other};
  kept_blocks held(memory);
  CHECK(sleep(memory) > 0);
  CHECK(is_asleep(memory));
  CHECK(machine.usage().page_bytes == 0);
  CHECK_THROWS_AS(memory.allocate(stream_ref{}, 1000), pool_asleep);  // not from the fallback
  (void)wake(memory);
  CHECK(held.intact());
}

TEST_CASE("the end of a sleep_scope over several pools wakes those that were awake", "[raii][sleep][pages]") {
  sim_machine const machine(small_machine());
  auto first = sim_pages{machine.driver(0)} | pooled{};
  auto second = sim_pages{machine.driver(0)} | pooled{};
  auto third = sim_pages{machine.driver(0)} | pooled{};
  auto all = first | fallback_to{second} | fallback_to{third};
  (void)sleep(second);
  {
    sleep_scope const asleep(all);
    CHECK((is_asleep(first) && is_asleep(second) && is_asleep(third)));
  }
  CHECK_FALSE(is_asleep(first));
  CHECK(is_asleep(second));
  CHECK_FALSE(is_asleep(third));
}

TEST_CASE("sleep that fails in a later pool leaves asleep what slept before", "[raii][sleep][pages]") {
  sim_machine const machine(small_machine());
  fault_plan const plan;
  auto const driver = faulty<sim_driver>{machine.driver(0), plan};
  auto first = faulty_pages{driver} | pooled{};
  auto second = faulty_pages{driver} | pooled{};
  auto third = faulty_pages{driver} | pooled{};
  auto all = first | fallback_to{second} | fallback_to{third};
  void* const p = third.allocate(stream_ref{}, 1_MiB);
  (void)sleep(first);
  plan.fail(driver_call::malloc_pinned, 1);
  CHECK_THROWS_AS(sleep(all), out_of_memory);
  CHECK(is_asleep(first));
  CHECK_FALSE(is_asleep(second));
  CHECK_FALSE(is_asleep(third));
  third.deallocate(stream_ref{}, p, 1_MiB);
}

TEST_CASE("sleep compiles for pools over pages only", "[raii][sleep]") {
  using over_pages = stack<sim_pages, limited, pooled, tracked>;
  using over_blocks = stack<sim_malloc, pooled>;
  using over_pool = stack<sim_pages, pooled, pooled>;
  static_assert(detail::can_sleep<over_pages>);
  static_assert(!detail::can_sleep<over_blocks>);
  static_assert(!detail::can_sleep<over_pool>);
  static_assert(!detail::can_sleep<sim_pages>);
}

namespace {

/// Collects reports of misuse while it lives.
struct collected_reports {
  collected_reports() {
    kinds.clear();
    (void)set_misuse_handler([](misuse const& m) { kinds.push_back(m.kind()); });
  }
  collected_reports(collected_reports const&) = delete;
  collected_reports& operator=(collected_reports const&) = delete;
  ~collected_reports() { (void)set_misuse_handler(nullptr); }

  static inline std::vector<misuse_kind> kinds;
};

}  // namespace

TEST_CASE(
    "checked, fenced and poisoned touch no memory while the pool sleeps, and make no false report after",
    "[raii][sleep][pages]") {
  auto const run = [](auto const& make) {
    for (contents const where : all_kinds) {
      sim_machine const machine(small_machine());
      {
        collected_reports const reports;
        {
          auto memory = make(machine);
          void* const p = memory.allocate(stream_ref{}, 1_MiB);
          void* const q = memory.allocate(stream_ref{}, 5000);
          void* const r = memory.allocate(stream_ref{}, 5000);
          memory.deallocate(stream_ref{}, r, 5000);
          (void)machine.driver(0).synchronize_device();
          (void)sleep(memory, where);
          memory.deallocate(stream_ref{}, p, 1_MiB);
          CHECK(machine.driver(0).synchronize_device().ok());
          (void)wake(memory);
          void* const s = memory.allocate(stream_ref{}, 5000);
          memory.deallocate(stream_ref{}, q, 5000);
          memory.deallocate(stream_ref{}, s, 5000);
          CHECK(machine.driver(0).synchronize_device().ok());
        }
        CHECK(reports.kinds.empty());
      }
      CHECK(machine.leaks().total() == 0);
    }
  };
  run([](sim_machine const& m) { return sim_pages{m.driver(0)} | pooled{} | checked{}; });
  run([](sim_machine const& m) { return sim_pages{m.driver(0)} | pooled{} | fenced{} | poisoned{}; });
}

TEST_CASE("checked and fenced put the rest of several pools to sleep, and make no false report after",
          "[raii][sleep][pages]") {
  auto const run = [](auto const& policy) {
    for (contents const where : all_kinds) {
      sim_machine const machine(small_machine());
      collected_reports const reports;
      {
        auto first = sim_pages{machine.driver(0)} | limited{4_MiB} | pooled{};
        auto second = sim_pages{machine.driver(0)} | pooled{};
        auto all = first | fallback_to{second} | policy;
        void* const p = all.allocate(stream_ref{}, 1_MiB);
        void* const q = all.allocate(stream_ref{}, 8_MiB);
        (void)machine.driver(0).synchronize_device();
        (void)sleep(first);
        CHECK(sleep(all, where) > 0);
        CHECK(is_asleep(second));
        (void)wake(all);
        all.deallocate(stream_ref{}, p, 1_MiB);
        all.deallocate(stream_ref{}, q, 8_MiB);
      }
      CHECK(reports.kinds.empty());
    }
  };
  run(checked{});
  run(fenced{});
}

TEST_CASE("checked and fenced do not verify what a sleep through another handle discarded",
          "[raii][sleep][pages]") {
  auto const run = [](auto const& as, auto const& policy, auto const& put_to_sleep) {
    for (contents const where : all_kinds) {
      sim_machine const machine(small_machine());
      collected_reports const reports;
      {
        auto pool = sim_pages{machine.driver(0)} | pooled{};
        auto memory = as(pool) | policy;
        void* const p = memory.allocate(stream_ref{}, 1000);
        memory.deallocate(stream_ref{}, memory.allocate(stream_ref{}, 2000), 2000);
        (void)machine.driver(0).synchronize_device();
        put_to_sleep(pool, where);
        void* const q = memory.allocate(stream_ref{}, 1000);
        (void)machine.driver(0).synchronize_device();
        CHECK(memory->check_all() == 0);
        REQUIRE(machine.driver(0).fill(stream_ref{}, static_cast<std::byte*>(q) + 1000, 0x11, 1).ok());
        CHECK(memory->check_all() == 1);  // what was written since then is verified
        memory.deallocate(stream_ref{}, p, 1000);
        CHECK(reports.kinds.size() == 1);
        memory.deallocate(stream_ref{}, q, 1000);
      }
      CHECK(reports.kinds.size() == 2);
    }
  };
  auto const by_pool = [](auto& pool, contents where) {
    (void)sleep(pool, where);
    (void)wake(pool);
  };
  auto const by_policy = [](auto& pool, contents where) {
    auto other = pool | checked{};
    (void)sleep(other, where);
    (void)wake(other);
  };
  auto const itself = [](auto const& pool) { return pool; };
  auto const erased = [](auto const& pool) {
    return basic_any_resource<sim_driver, device_accessible>(pool | tracked{});
  };
  run(itself, checked{}, by_pool);
  run(itself, checked{}, by_policy);
  run(itself, fenced{}, by_pool);
  run(itself, fenced{}, by_policy);
  run(erased, checked{}, by_pool);
  run(erased, fenced{}, by_pool);
}

TEST_CASE("sleep_scope wakes each pool that can wake, and none that slept before", "[raii][sleep][pages]") {
  sim_options options = small_machine();
  options.devices = 2;
  sim_machine const machine(options);
  auto first = sim_pages{machine.driver(0)} | pooled{};
  auto second = sim_pages{machine.driver(1)} | pooled{};
  auto both = first | fallback_to{second};
  void* const p = first.allocate(stream_ref{}, 16_MiB);
  void* const q = second.allocate(stream_ref{}, 16_MiB);
  auto other = sim_malloc{machine.driver(0)};
  std::size_t free = 0;
  std::size_t total = 0;
  void* taken = nullptr;
  {
    sleep_scope scope(both);
    REQUIRE(machine.driver(0).memory_info(free, total).ok());
    taken = other.allocate(stream_ref{}, free);
    if (GENERATE(false, true)) CHECK_THROWS_AS(scope.wake(), out_of_memory);
  }
  CHECK(is_asleep(first));
  CHECK(!is_asleep(second));
  other.deallocate(stream_ref{}, taken, free);
  (void)wake(both);
  CHECK(!is_asleep(first));
  (void)sleep(second);
  {
    sleep_scope scope(both);
    scope.wake();
    CHECK(!is_asleep(first));
    CHECK(is_asleep(second));
  }
  CHECK(is_asleep(second));
  (void)wake(second);
  first.deallocate(stream_ref{}, p, 16_MiB);
  second.deallocate(stream_ref{}, q, 16_MiB);
}

TEST_CASE("checked reports work that is unfinished at the call of sleep or compact", "[raii][sleep][pages]") {
  sim_machine const machine(small_machine());
  collected_reports const reports;
  sim_stream const stream(machine.driver(0));
  auto memory = sim_pages{machine.driver(0)} | pooled{} | checked{};
  void* const p = memory.allocate(stream, 1_MiB);
  REQUIRE(machine.driver(0).synchronize_device().ok());
  (void)sleep(memory);
  (void)wake(memory);
  (void)compact(memory);
  CHECK(reports.kinds.empty());
  REQUIRE(machine.launch(stream, 1'000'000'000).ok());
  (void)sleep(memory);
  CHECK(reports.kinds == std::vector<misuse_kind>{misuse_kind::in_use});
  REQUIRE(machine.driver(0).synchronize_device().ok());
  (void)wake(memory);
  REQUIRE(machine.launch(stream, 1'000'000'000).ok());
  (void)compact(memory);
  CHECK(reports.kinds.size() == 2);
  REQUIRE(machine.driver(0).synchronize_device().ok());
  memory.deallocate(stream, p, 1_MiB);
}

TEST_CASE("checked reports at sleep and compact only streams of live blocks", "[raii][sleep][pages]") {
  sim_machine const machine(small_machine());
  collected_reports const reports;
  sim_stream const own(machine.driver(0)), user(machine.driver(0)), earlier(machine.driver(0));
  auto memory = sim_pages{machine.driver(0)} | pooled{} | checked{};
  void* const gone = memory.allocate(earlier, 1_MiB);
  memory.record_stream(gone, 1_MiB, earlier);
  memory.deallocate(earlier, gone, 1_MiB);
  void* const p = memory.allocate(own, 1_MiB);
  memory.record_stream(p, 1_MiB, user);
  REQUIRE(machine.driver(0).synchronize_device().ok());
  REQUIRE(machine.launch(earlier, 1'000'000'000).ok());  // with other memory
  (void)sleep(memory);
  (void)wake(memory);
  (void)compact(memory);
  CHECK(reports.kinds.empty());
  REQUIRE(machine.launch(user, 1'000'000'000).ok());
  (void)compact(memory);
  CHECK(reports.kinds == std::vector<misuse_kind>{misuse_kind::in_use});
  REQUIRE(machine.driver(0).synchronize_device().ok());
  memory.deallocate(own, p, 1_MiB);
}
