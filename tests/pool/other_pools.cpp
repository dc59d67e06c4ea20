// SPDX-License-Identifier: Apache-2.0
// Several pools on one device: one that the device refuses gets what the others cache (other_pools).

#if defined(__unix__) || defined(__APPLE__)
#include <sys/wait.h>
#include <unistd.h>
#endif

#include <atomic>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "contract/memory_access.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/retry_on_oom.hpp"
#include "tarn/policy/tracked.hpp"
#include "tarn/raii/graph_memory.hpp"
#include "tarn/raii/sleep.hpp"
#include "tarn/sim.hpp"

using namespace tarn;
using tarn_test::test_stream;

namespace {
sim_options one_gib() {
  sim_options o;
  o.capacity = 1_GiB;
  o.taken = 0;
  o.checks = sim_checks::stream_order;
  o.backing = sim_backing::address_only;
  return o;
}
struct device {
  sim_machine machine{one_gib()};
  sim_driver driver = machine.driver(0);
  test_stream<sim_driver> a{driver};
};
/// Allocates and frees `bytes`, which the pool then caches.
template <class Memory>
void cache(Memory& memory, stream_ref stream, std::size_t bytes) {
  void* const p = memory.allocate(stream, bytes);
  memory.deallocate(stream, p, bytes);
}
template <class Memory>
std::size_t reserved(Memory const& memory) {
  return memory->state().reserved;
}
}  // namespace

TEST_CASE("a pool that the device refuses gets what another pool caches", "[pool][other_pools]") {
  device d;
  auto const run = [&](auto other, auto memory) {
    cache(other, d.a, 600_MiB);
    void* const p = memory.allocate(d.a, 700_MiB);
    CHECK(reserved(other) < 600_MiB);
    CHECK(memory->state().live == 700_MiB);
    CHECK(memory->state().ooms == 0);
    memory.deallocate(d.a, p, 700_MiB);
  };
  SECTION("over pages") {
    run(sim_pages{d.driver} | pooled{}, sim_pages{d.driver} | pooled{});
  }
  SECTION("over blocks") {
    run(sim_malloc{d.driver} | pooled{}, sim_malloc{d.driver} | pooled{});
  }
  SECTION("a pool over pages from one over blocks") {
    run(sim_malloc{d.driver} | pooled{}, sim_pages{d.driver} | pooled{});
  }
}

TEST_CASE("another pool gives back as much as is lacking, and keeps live blocks",
          "[pool][other_pools][pages]") {
  device d;
  auto other = sim_pages{d.driver} | pooled{.largest_handle = 10_MiB};
  auto memory = sim_pages{d.driver} | pooled{};
  void* const live = other.allocate(d.a, 100_MiB);
  cache(other, d.a, 800_MiB);
  void* const p = memory.allocate(d.a, 200_MiB);
  CHECK(reserved(other) <= 900_MiB - 76_MiB);
  CHECK(reserved(other) >= 690_MiB);
  CHECK_THROWS_AS(memory.allocate(d.a, 800_MiB), out_of_memory);
  CHECK(other->state().live == 100_MiB);
  CHECK(memory->state().ooms == 1);
  memory.deallocate(d.a, p, 200_MiB);
  other.deallocate(d.a, live, 100_MiB);
}

TEST_CASE("the pool that was made last is asked first", "[pool][other_pools]") {
  device d;
  auto first = sim_pages{d.driver} | pooled{};
  auto memory = sim_pages{d.driver} | pooled{};
  auto last = sim_pages{d.driver} | pooled{};
  cache(first, d.a, 400_MiB);
  cache(last, d.a, 400_MiB);
  cache(memory, d.a, 500_MiB);
  CHECK(reserved(first) == 400_MiB);
  CHECK(reserved(last) < 400_MiB);
  memory.empty_cache();
  cache(memory, d.a, 1000_MiB);
  CHECK(reserved(first) <= 24_MiB);  // what a device of 1 GiB has beside 1000 MiB
  CHECK(reserved(last) == 0);
}

TEST_CASE("another pool gives back first what the device has finished with", "[pool][other_pools][pages]") {
  device d;
  test_stream const b(d.driver);
  auto finished = sim_pages{d.driver} | pooled{};
  auto busy = sim_pages{d.driver} | pooled{};
  auto memory = sim_pages{d.driver} | pooled{};
  cache(finished, d.a, 400_MiB);
  void* const p = busy.allocate(b, 400_MiB);
  REQUIRE(d.machine.launch(b, 50'000'000, {sim_writes(p, 400_MiB)}).ok());
  busy.deallocate(b, p, 400_MiB);
  cache(memory, d.a, 500_MiB);
  CHECK(reserved(busy) == 400_MiB);
  CHECK(d.machine.now() < 50'000'000);
  // More than that: the host waits.
  cache(memory, d.a, 1000_MiB);
  CHECK(reserved(busy) < 24_MiB);
  CHECK(d.machine.now() >= 50'000'000);
  CHECK(d.machine.findings().empty());
}

TEST_CASE("pools of other devices, machines, host memory and sleeping pools are not asked",
          "[pool][other_pools][pages]") {
  sim_options two = one_gib();
  two.devices = 2;
  sim_machine const machine(two);
  sim_machine const other_machine(two);
  test_stream const s(machine.driver(0));
  auto memory = sim_pages{machine.driver(0)} | pooled{};
  auto other_device = sim_pages{machine.driver(1)} | pooled{};
  auto elsewhere = sim_pages{other_machine.driver(0)} | pooled{};
  auto on_host = sim_pinned_host{machine.driver(0)} | pooled{};
  auto asleep = sim_pages{machine.driver(0)} | pooled{};
  cache(other_device, {}, 600_MiB);
  cache(elsewhere, {}, 600_MiB);
  cache(on_host, {}, 600_MiB);
  void* const live = asleep.allocate(s, 300_MiB);
  tarn::sleep(asleep, contents::discarded);
  // Together the two requests are more than the device has, but either alone is not, so that the pool asks
  // for help.
  void* const half = memory.allocate(s, 600_MiB);
  CHECK_THROWS_AS(memory.allocate(s, 600_MiB), out_of_memory);
  CHECK(reserved(other_device) == 600_MiB);
  CHECK(reserved(elsewhere) == 600_MiB);
  CHECK(reserved(on_host) >= 600_MiB);
  // A sleeping pool refuses by itself.
  CHECK_THROWS_AS(asleep.allocate(s, 1_MiB), pool_asleep);
  memory.deallocate(s, half, 600_MiB);
  wake(asleep);
  asleep.deallocate(s, live, 300_MiB);
}

TEST_CASE("a limit of its own does not make a pool ask others", "[pool][other_pools]") {
  device d;
  auto other = sim_pages{d.driver} | pooled{};
  auto memory = sim_pages{d.driver} | limited{100_MiB} | pooled{};
  cache(other, d.a, 600_MiB);
  CHECK_THROWS_AS(memory.allocate(d.a, 200_MiB), out_of_memory);
  CHECK(reserved(other) == 600_MiB);
}

TEST_CASE("a pool whose thread is growing is not waited for", "[pool][other_pools]") {
  device d;
  // The handler of one pool's growth allocates from another pool, which asks the first.
  auto memory = sim_pages{d.driver} | pooled{};
  bool inside_refused = false;
  auto handler = [&](out_of_memory const&, unsigned attempt) {
    if (attempt > 1) return false;
    std::thread([&] {
      try {
        cache(memory, d.a, 900_MiB);
      } catch (out_of_memory const&) {
        inside_refused = true;
      }
    }).join();
    return true;
  };
  auto growing = sim_malloc{d.driver} | retry_on_oom{handler} | pooled{};
  void* const half = growing.allocate(d.a, 512_MiB);
  CHECK_THROWS_AS(growing.allocate(d.a, 600_MiB), out_of_memory);
  CHECK(inside_refused);
  growing.deallocate(d.a, half, 512_MiB);
}

TEST_CASE("a pool over another pool gives back before the lower one", "[pool][other_pools]") {
  device d;
  auto upper = sim_pages{d.driver} | pooled{} | pooled{};
  auto memory = sim_pages{d.driver} | pooled{};
  cache(upper, d.a, 600_MiB);
  cache(memory, d.a, 900_MiB);
  CHECK(memory->state().ooms == 0);
}

TEST_CASE("many threads whose pools together need more than the device never wait for one another",
          "[pool][other_pools][threads]") {
  device d;
  constexpr unsigned count = 4;
  std::atomic<std::size_t> served{0};
  std::atomic<std::size_t> refused{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < count; ++t) {
    threads.emplace_back([&, t] {
      test_stream const s(d.driver);
      for (unsigned i = 0; i < 40; ++i) {
        auto memory = sim_pages{d.driver} | pooled{};  // pools come and go while others ask them
        for (std::size_t k = 0; k < 5; ++k) {
          try {
            cache(memory, s, (100 + 150 * ((t + i + k) % 5)) * 1_MiB);
            ++served;
          } catch (out_of_memory const&) {
            ++refused;
          }
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(served + refused == count * 40 * 5);
  // How many are refused depends on what the others hold at that moment. Afterwards nothing is held.
  auto memory = sim_pages{d.driver} | pooled{};
  CHECK_NOTHROW(cache(memory, d.a, 1000_MiB));
  CHECK(memory->state().ooms == 0);
  CHECK(d.machine.findings().empty());
  CHECK(memory->trim(0) >= 1000_MiB);
  CHECK(d.machine.leaks().handles == 0);
}

TEST_CASE("what a pool over a pool gives back is then asked of the lower one", "[pool][other_pools]") {
  for (bool const is_busy : {false, true}) {
    device d;
    test_stream const b(d.driver);
    auto memory = sim_pages{d.driver} | pooled{};
    auto lower = sim_pages{d.driver} | pooled{};
    auto upper = lower | pooled{};
    void* const p = upper.allocate(d.a, 450_MiB);
    void* const q = upper.allocate(b, 450_MiB);
    if (is_busy) REQUIRE(d.machine.launch(b, 5'000'000, {sim_writes(q, 450_MiB)}).ok());
    upper.deallocate(d.a, p, 450_MiB);
    upper.deallocate(b, q, 450_MiB);
    cache(memory, d.a, 500_MiB);
    CHECK(memory->state().ooms == 0);
    CHECK(reserved(lower) < 600_MiB);
  }
}

TEST_CASE("another pool gives back when the device has the bytes, but not in whole handles",
          "[pool][other_pools][pages]") {
  sim_options o = one_gib();
  o.granularity = 64_MiB;
  o.taken = 30_MiB;  // so that 34 MiB of what is free make up no handle
  sim_machine machine{o};
  sim_driver const driver = machine.driver(0);
  test_stream const a(driver);
  auto other = sim_pages{driver} | pooled{};
  auto memory = sim_pages{driver} | pooled{};
  cache(other, a, 640_MiB);
  void* const p = memory.allocate(a, 354_MiB);
  CHECK(reserved(other) < 640_MiB);
  memory.deallocate(a, p, 354_MiB);
}

TEST_CASE("no pool is asked for more than the device has", "[pool][other_pools]") {
  device d;
  auto other = sim_pages{d.driver} | pooled{};
  auto memory = sim_pages{d.driver} | pooled{};
  cache(other, d.a, 600_MiB);
  CHECK_THROWS_AS(memory.allocate(d.a, 64_GiB), out_of_memory);
  CHECK(reserved(other) == 600_MiB);
}

namespace {
/// A pool that sleeps and takes `bytes` when it is woken.
struct sleeper {
  sleeper(device& d, std::size_t wanted)
      : stream(d.a),
        memory(sim_pages{d.driver} | pooled{}),
        bytes(wanted),
        p(memory.allocate(stream, bytes)) {
    tarn::sleep(memory, contents::discarded);
  }
  sleeper(sleeper const&) = delete;
  sleeper& operator=(sleeper const&) = delete;
  ~sleeper() { memory.deallocate(stream, p, bytes); }

  stream_ref stream;
  decltype(sim_pages{std::declval<sim_driver>()} | pooled{}) memory;
  std::size_t bytes;
  void* p;
};
}  // namespace

TEST_CASE("wake gets what other pools cache, of the pool that was made last first",
          "[pool][other_pools][sleep][pages]") {
  device d;
  auto first = sim_pages{d.driver} | pooled{};
  sleeper asleep(d, 500_MiB);
  auto last = sim_pages{d.driver} | pooled{};
  cache(first, d.a, 400_MiB);
  cache(last, d.a, 400_MiB);
  CHECK(wake(asleep.memory) == 500_MiB);
  CHECK(reserved(first) == 400_MiB);
  CHECK(reserved(last) < 400_MiB - 250_MiB);
  CHECK_FALSE(is_asleep(asleep.memory));
  tarn::sleep(asleep.memory, contents::discarded);
  cache(last, d.a, 600_MiB);
  CHECK(wake(asleep.memory) == 500_MiB);
  CHECK(reserved(last) + reserved(first) <= 524_MiB);
}

TEST_CASE("wake waits for the work of other pools only if what is idle does not suffice",
          "[pool][other_pools][sleep][pages]") {
  device d;
  test_stream const b(d.driver);
  sleeper asleep(d, 600_MiB);
  auto finished = sim_pages{d.driver} | pooled{};
  auto busy = sim_pages{d.driver} | pooled{};
  bool const suffices = GENERATE(true, false);
  std::size_t const in_use = suffices ? 400_MiB : 800_MiB;
  cache(finished, d.a, 900_MiB - in_use);
  void* const p = busy.allocate(b, in_use);
  REQUIRE(d.machine.launch(b, 500'000'000, {sim_writes(p, in_use)}).ok());
  busy.deallocate(b, p, in_use);
  CHECK(wake(asleep.memory) == 600_MiB);
  CHECK((d.machine.now() < 500'000'000) == suffices);
  CHECK((reserved(busy) == in_use) == suffices);
  CHECK(d.machine.findings().empty());
}

TEST_CASE("wake reports what is lacking after other pools gave back what they cache",
          "[pool][other_pools][sleep][pages]") {
  device d;
  sleeper asleep(d, 600_MiB);
  auto other = sim_pages{d.driver} | pooled{};
  void* const live = other.allocate(d.a, 500_MiB);
  cache(other, d.a, 200_MiB);
  try {
    (void)wake(asleep.memory);
    FAIL("woken without memory");
  } catch (out_of_memory const& error) {
    CHECK(error.report().lacking == 600_MiB - (1024_MiB - reserved(other)));
    CHECK(error.report().device_free == 1024_MiB - reserved(other));
  }
  CHECK(reserved(other) < 520_MiB);
  CHECK(is_asleep(asleep.memory));
  other.deallocate(d.a, live, 500_MiB);
  CHECK(wake(asleep.memory) == 600_MiB);
}

TEST_CASE("wake under a limit of its own asks no other pool and names the limit",
          "[pool][other_pools][sleep][pages]") {
  device d;
  auto limit = sim_pages{d.driver} | limited{500_MiB};
  auto memory = limit | pooled{};
  auto beside = limit | pooled{};
  auto other = sim_pages{d.driver} | pooled{};
  void* const p = memory.allocate(d.a, 400_MiB);
  tarn::sleep(memory, contents::discarded);
  cache(other, d.a, 300_MiB);
  void* const q = beside.allocate(d.a, 200_MiB);
  auto const created = d.machine.calls()[driver_call::create_pages];
  try {
    (void)wake(memory);
    FAIL("woken above the limit");
  } catch (out_of_memory const& error) {
    CHECK(error.report().limit == 500_MiB);
    CHECK(error.report().limit_used == 200_MiB);
    CHECK(error.report().lacking == 100_MiB);
  }
  CHECK(d.machine.calls()[driver_call::create_pages] == created);
  CHECK(reserved(other) == 300_MiB);
  beside.deallocate(d.a, q, 200_MiB);
  beside.empty_cache();
  CHECK(wake(memory) == 400_MiB);
  memory.deallocate(d.a, p, 400_MiB);
}

TEST_CASE("a capture gets what other pools cache for the memory of its graph",
          "[pool][other_pools][graph_memory]") {
  device d;
  auto other = sim_pages{d.driver} | pooled{};
  auto memory = sim_pages{d.driver} | pooled{};
  test_stream const b(d.driver);
  cache(other, b, 700_MiB);
  graph_memory graph(memory);
  sim_graph recorded;
  REQUIRE(d.machine.begin_capture(d.a).ok());
  {
    capture_scope const scope(graph, d.a);
    cache(memory, d.a, 600_MiB);
  }
  REQUIRE(d.machine.end_capture(d.a, recorded).ok());
  CHECK(reserved(other) <= 424_MiB);
  CHECK(memory->state().ooms == 0);
}

TEST_CASE("pools that sleep and wake in turns on many threads never wait for one another",
          "[pool][other_pools][sleep][threads][pages]") {
  device d;
  constexpr unsigned count = 4;
  std::atomic<std::size_t> woken{0};
  std::atomic<std::size_t> refused{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < count; ++t) {
    threads.emplace_back([&, t] {
      test_stream const s(d.driver);
      auto memory = sim_pages{d.driver} | pooled{};
      auto beside = sim_pages{d.driver} | pooled{};
      void* p = nullptr;
      while (p == nullptr) {
        try {
          p = memory.allocate(s, 200_MiB);
        } catch (out_of_memory const&) {
          std::this_thread::yield();
        }
      }
      for (unsigned i = 0; i < 30; ++i) {
        tarn::sleep(memory, contents::discarded);
        try {
          cache(beside, s, (50 + 50 * ((t + i) % 5)) * 1_MiB);
        } catch (out_of_memory const&) {
        }
        while (is_asleep(memory)) {
          try {
            (void)wake(memory);
            ++woken;
          } catch (out_of_memory const&) {
            ++refused;
            std::this_thread::yield();
          }
        }
      }
      memory.deallocate(s, p, 200_MiB);
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(woken == count * 30);
  CHECK(d.machine.findings().empty());
  CHECK(d.machine.leaks().handles == 0);
}

#if defined(__unix__) || defined(__APPLE__)
namespace {
/// Forks when it destroys a handle.
struct forking_pages : sim_pages {
  using sim_pages::sim_pages;
  void destroy(page_handle handle, std::size_t bytes) noexcept {
    sim_pages::destroy(handle, bytes);
    if (child == nullptr || *child != -1) return;
    *child = ::fork();
    if (*child == 0) ::alarm(20);
  }
  int* child = nullptr;
};
/// Waits when it destroys a handle.
struct waiting_pages : sim_pages {
  using sim_pages::sim_pages;
  void destroy(page_handle handle, std::size_t bytes) noexcept {
    sim_pages::destroy(handle, bytes);
    if (step == nullptr || *step == 0) return;
    *step = 2;
    while (*step == 2) std::this_thread::yield();
  }
  std::atomic<int>* step = nullptr;
};
}  // namespace

TEST_CASE("pools end in a child that was forked while another pool asked them",
          "[pool][other_pools][fork][pages]") {
  sim_machine const machine{one_gib()};
  sim_driver const driver = machine.driver(0);
  int child = -2;
  {
    std::optional lower(sim_pages{driver} | pooled{.largest_handle = 2_MiB});
    forking_pages source{driver};
    source.child = &child;
    auto const first = source | pooled{.largest_handle = 2_MiB};
    auto memory = sim_pages{driver} | pooled{.largest_handle = 2_MiB};
    lower->deallocate_sync(lower->allocate_sync(450_MiB), 450_MiB);
    auto handle = first;
    handle.deallocate_sync(handle.allocate_sync(450_MiB), 450_MiB);
    child = -1;
    try {
      memory.deallocate_sync(memory.allocate_sync(900_MiB), 900_MiB);
    } catch (std::exception const&) {  // in the child, which the device refuses
    }
    if (child == 0) {
      lower.reset();
      ::_exit(0);
    }
  }
  REQUIRE(child > 0);
  int status = -1;
  CHECK(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

TEST_CASE("a pool ends in a child that was forked while another thread asked it",
          "[pool][other_pools][fork][threads][pages]") {
  device d;
  std::atomic<int> step{0};
  waiting_pages source{d.driver};
  source.step = &step;
  std::optional first(source | pooled{.largest_handle = 2_MiB});
  auto memory = sim_pages{d.driver} | pooled{};
  cache(*first, stream_ref{}, 600_MiB);
  step = 1;
  std::thread other([&] { cache(memory, stream_ref{}, 900_MiB); });
  while (step != 2) std::this_thread::yield();
  pid_t const child = ::fork();
  if (child == 0) {
    ::alarm(20);
    first.reset();
    ::_exit(0);
  }
  step = 0;
  other.join();
  int status = -1;
  CHECK(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}
#endif
