// SPDX-License-Identifier: Apache-2.0
#include "tarn/policy/headroom.hpp"

#include <atomic>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "contract/memory_access.hpp"
#include "contract/resource_contract.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/tracked.hpp"
#include "tarn/raii/sleep.hpp"
#include "tarn/sim.hpp"
#include "tarn/transfer/available_memory.hpp"
#if defined(__linux__)
#include "voluntary_switches.hpp"
#endif

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

  [[nodiscard]] std::size_t free() const {
    std::size_t bytes = 0;
    std::size_t total = 0;
    REQUIRE(driver.memory_info(bytes, total).ok());
    return bytes;
  }
};
/// Another user of the device. Returns whether it got the memory.
struct outside {
  explicit outside(sim_driver const& driver, std::size_t bytes)
      : driver_(driver), got_(driver_.malloc_device(bytes, p_).ok()) {}
  ~outside() {
    if (got_) (void)driver_.free_device(p_);
  }
  outside(outside const&) = delete;
  outside& operator=(outside const&) = delete;
  explicit operator bool() const noexcept { return got_; }

 private:
  sim_driver driver_;
  void* p_ = nullptr;
  bool got_;
};
template <class Memory>
void cache(Memory& memory, stream_ref stream, std::size_t bytes) {
  void* const p = memory.allocate(stream, bytes);
  memory.deallocate(stream, p, bytes);
}
}  // namespace

TEST_CASE("headroom meets the resource contract", "[policy][headroom]") {
  sim_machine const machine;
  tarn_test::resource_contract([&] { return sim_malloc{machine.driver()} | headroom{1_GiB}; });
  tarn_test::resource_contract([&] { return sim_pages{machine.driver()} | headroom{1_GiB} | pooled{}; });
}

TEST_CASE("headroom refuses a growth that would leave less, and says so", "[policy][headroom]") {
  device d;
  auto const run = [&](auto memory) {
    void* const p = memory.allocate(d.a, 600_MiB);
    CHECK(d.free() >= 200_MiB);
    try {
      (void)memory.allocate(d.a, 300_MiB);
      FAIL("nothing was refused");
    } catch (out_of_memory const& error) {
      CHECK(error.report().headroom == 200_MiB);
      CHECK(error.report().device_free == d.free());
      CHECK(error.report().limit == memory_report::unknown);
      CHECK(std::string(error.what()).find("refused by headroom(200 MiB)") != std::string::npos);
      CHECK(std::string(error.what()).find("lower the headroom") != std::string::npos);
    }
    CHECK(outside(d.driver, 200_MiB));
    CHECK(memory->state().live == 600_MiB);
    memory.deallocate(d.a, p, 600_MiB);
  };
  SECTION("over pages") {
    run(sim_pages{d.driver} | headroom{200_MiB} | pooled{});
  }
  SECTION("over blocks") {
    run(sim_malloc{d.driver} | headroom{200_MiB} | pooled{});
  }
}

namespace {
/// A driver whose allocations need more than their bytes, as CUDA's do.
struct driver_with_overhead : sim_driver {
  explicit driver_with_overhead(sim_driver const& driver) : sim_driver(driver) {}
  [[nodiscard]] static constexpr std::size_t allocation_overhead() noexcept { return 16_MiB; }
};
}  // namespace

TEST_CASE("headroom leaves what the driver needs beside an allocation of others", "[policy][headroom]") {
  device d;
  auto memory =
      basic_pages<driver_with_overhead>{driver_with_overhead(d.driver)} | headroom{200_MiB} | pooled{};
  cache(memory, d.a, 808_MiB);
  CHECK(d.free() == 216_MiB);
  CHECK(keep_headroom(memory) == 0);
  {
    outside const taken(d.driver, 8_MiB);
    CHECK(keep_headroom(memory) >= 8_MiB);
  }
  CHECK_THROWS_AS(memory.allocate(d.a, 810_MiB), out_of_memory);
  auto all = basic_pages<driver_with_overhead>{driver_with_overhead(d.driver)} | headroom{~std::size_t{0}} |
             pooled{};
  CHECK_THROWS_AS(all.allocate_sync(1_MiB), out_of_memory);
  auto none = basic_pages<driver_with_overhead>{driver_with_overhead(d.driver)} | headroom{} | pooled{};
  memory.empty_cache();
  cache(none, d.a, 1_GiB - 8_MiB);
}

TEST_CASE("headroom reports exactly as much as may be taken", "[policy][headroom]") {
  device d;
  auto memory = sim_pages{d.driver} | headroom{200_MiB} | pooled{};
  cache(memory, d.a, 824_MiB);  // all but the headroom
  CHECK(d.free() == 200_MiB);
  memory.empty_cache();
  CHECK_THROWS_AS(memory.allocate(d.a, 826_MiB), out_of_memory);
  CHECK(available_memory(memory).bytes == 824_MiB);
  CHECK(std::string(available_memory(memory).bounded_by) == "headroom");
  auto none = sim_pages{d.driver} | headroom{} | pooled{};
  cache(none, d.a, 1_GiB);
}

TEST_CASE("a pool gives cached memory back rather than go below its headroom", "[policy][headroom]") {
  device d;
  auto memory = sim_malloc{d.driver} | headroom{200_MiB} | pooled{};
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(memory.allocate(d.a, 100_MiB));
  for (void* p : blocks) memory.deallocate(d.a, p, 100_MiB);
  // No segment has room for it: cached ones make way.
  void* const p = memory.allocate(d.a, 150_MiB);
  CHECK(d.free() >= 200_MiB);
  CHECK(memory->state().ooms == 0);
  memory.deallocate(d.a, p, 150_MiB);
}

TEST_CASE("keep_headroom gives cached memory back after others took the headroom",
          "[policy][headroom][pages]") {
  device d;
  auto memory = sim_pages{d.driver} | headroom{200_MiB} | pooled{} | tracked{};
  void* const live = memory.allocate(d.a, 100_MiB);
  cache(memory, d.a, 700_MiB);
  CHECK(keep_headroom(memory) == 0);
  outside const first(d.driver, 200_MiB);
  REQUIRE(first);
  CHECK(d.free() < 200_MiB);
  CHECK(keep_headroom(memory) >= 176_MiB);
  CHECK(d.free() >= 200_MiB);
  outside const second(d.driver, 200_MiB);
  REQUIRE(second);
  outside const third(d.driver, d.free());
  REQUIRE(third);
  CHECK(keep_headroom(memory) > 0);
  CHECK(d.free() >= 200_MiB);
  memory.deallocate(d.a, live, 100_MiB);
}

TEST_CASE("an outside allocation of the headroom succeeds at any moment", "[policy][headroom][threads]") {
  device d;
  // A thread that has ended may have destroyed a stream that the pool of the others marks.
  sim_marking_driver const driver(d.driver);
  auto first = basic_pages<sim_marking_driver>(driver) | headroom{150_MiB} | pooled{};
  auto second = basic_malloc<sim_marking_driver>(driver) | headroom{150_MiB} | pooled{};
  std::atomic<bool> stop{false};
  std::atomic<std::size_t> served{0};
  auto const load = [&](auto& memory, unsigned seed) {
    test_stream const s(d.driver);
    std::mt19937_64 random(seed);
    std::vector<std::pair<void*, std::size_t>> live;
    while (!stop) {
      std::size_t const bytes = 1 + random() % 90_MiB;
      if (live.size() < 12 && random() % 2 == 0) {
        try {
          live.emplace_back(memory.allocate(s, bytes), bytes);
          ++served;
        } catch (out_of_memory const&) {
        }
      } else if (!live.empty()) {
        memory.deallocate(s, live.back().first, live.back().second);
        live.pop_back();
      }
    }
    for (auto const& [p, bytes] : live) memory.deallocate(s, p, bytes);
  };
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] { load(first, t); });
    threads.emplace_back([&, t] { load(second, 10 + t); });
  }
  int failed = 0;
  for (int i = 0; i < 2000 || served < 300; ++i) {
    if (!outside(d.driver, 150_MiB)) ++failed;
    if (i % 16 == 0) std::this_thread::yield();
  }
  stop = true;
  for (auto& thread : threads) thread.join();
  CHECK(failed == 0);
  CHECK(served >= 300);
  for (std::string const& finding : d.machine.findings()) FAIL_CHECK(finding);
}

namespace {
/// Calls a function before each allocation is made.
struct before_allocation {
  void (*call)(void*) = nullptr;
  void* argument = nullptr;

  template <class Upstream>
  using layer = around_layer<before_allocation, Upstream>;

  void* around_allocate(request const& r, auto const& next) {
    call(argument);
    return next.allocate(r);
  }
};
}  // namespace

TEST_CASE("headroom counts the growth of another pool that is in progress", "[policy][headroom]") {
  device d;
  auto other = sim_malloc{d.driver} | headroom{200_MiB} | pooled{};
  struct second_pool {
    decltype(other)& memory;
    stream_ref stream;
    int refused = 0;
    void* p = nullptr;
  } second{other, d.a};
  // While 500 MiB are being taken, 324 MiB are left beside the headroom.
  auto memory = sim_malloc{d.driver} |
                before_allocation{[](void* argument) {
                                    auto& s = *static_cast<second_pool*>(argument);
                                    for (std::size_t const bytes : {400_MiB, 300_MiB}) {
                                      try {
                                        s.p = s.memory.allocate(s.stream, bytes);
                                      } catch (out_of_memory const&) {
                                        ++s.refused;
                                      }
                                    }
                                  },
                                  &second} |
                headroom{200_MiB} | pooled{};
  void* const p = memory.allocate(d.a, 500_MiB);
  CHECK(second.refused == 1);
  CHECK(second.p != nullptr);
  CHECK(d.free() >= 200_MiB);
  other.deallocate(d.a, second.p, 300_MiB);
  memory.deallocate(d.a, p, 500_MiB);
}

namespace {
/// Calls a function after each allocation was made, before it returns.
struct after_allocation {
  void (*call)(void*) = nullptr;
  void* argument = nullptr;

  template <class Upstream>
  using layer = around_layer<after_allocation, Upstream>;

  void* around_allocate(request const& r, auto const& next) {
    void* const p = next.allocate(r);
    call(argument);
    return p;
  }
};
}  // namespace

TEST_CASE("headroom does not count a growth twice while the device has served it already",
          "[policy][headroom][threads]") {
  device d;
  auto other = sim_malloc{d.driver} | headroom{200_MiB};
  struct second_thread {
    device& d;
    decltype(other)& memory;
    std::atomic<bool> refused{false};
    std::thread thread{};
    [[nodiscard]] std::uint64_t queries() const { return d.machine.calls()[driver_call::memory_info]; }
  } second{d, other};
  // 400 MiB are taken, and not yet reported as such, when the other thread asks for 400 MiB: 224 MiB stay.
  auto memory = sim_malloc{d.driver} |
                after_allocation{[](void* argument) {
                                   auto& s = *static_cast<second_thread*>(argument);
                                   auto const before = s.queries();
                                   s.thread = std::thread([&s] {
                                     try {
                                       s.memory.deallocate(s.d.a, s.memory.allocate(s.d.a, 400_MiB), 400_MiB);
                                     } catch (out_of_memory const&) {
                                       s.refused = true;
                                     }
                                   });
                                   while (s.queries() == before) std::this_thread::yield();
                                 },
                                 &second} |
                headroom{200_MiB};
  void* const p = memory.allocate(d.a, 400_MiB);
  second.thread.join();
  CHECK_FALSE(second.refused);
  memory.deallocate(d.a, p, 400_MiB);
}

namespace {
/// A driver that calls a function after a query of the free memory, before it returns that.
struct driver_after_query : sim_driver {
  driver_after_query(sim_driver const& driver, std::function<void()> const& query)
      : sim_driver(driver), after_query(&query) {}
  status memory_info(std::size_t& free, std::size_t& total) const noexcept {
    status const s = sim_driver::memory_info(free, total);
    (*after_query)();
    return s;
  }
  std::function<void()> const* after_query;
};
}  // namespace

TEST_CASE("headroom counts a growth that ends while it queries the device", "[policy][headroom][threads]") {
  device d;
  std::atomic<bool> has_planned{false};
  std::atomic<bool> is_queried{false};
  std::atomic<bool> is_over{false};
  std::function<void()> const nothing = [] {};
  std::function<void()> const until_over = [&] {
    is_queried = true;
    while (!is_over) std::this_thread::yield();
  };
  auto planned = [&] {
    has_planned = true;
    while (!is_queried) std::this_thread::yield();
  };
  auto first = basic_malloc<driver_after_query>(driver_after_query(d.driver, nothing)) |
               before_allocation{[](void* f) { (*static_cast<decltype(planned)*>(f))(); }, &planned} |
               headroom{200_MiB};
  auto second =
      basic_malloc<driver_after_query>(driver_after_query(d.driver, until_over)) | headroom{200_MiB};
  void* p = nullptr;
  std::thread growing([&] {
    p = first.allocate(d.a, 400_MiB);
    is_over = true;
  });
  while (!has_planned) std::this_thread::yield();
  // The query still finds 1 GiB free; when it returns, the other growth is over.
  CHECK_THROWS_AS(second.allocate(d.a, 500_MiB), out_of_memory);
  growing.join();
  CHECK(d.free() >= 200_MiB);
  first.deallocate(d.a, p, 400_MiB);
}

TEST_CASE("headroom refuses at once what does not fit whatever is in progress", "[policy][headroom]") {
  device d;
  auto other = sim_malloc{d.driver} | headroom{200_MiB};
  struct second_request {
    device& d;
    decltype(other)& memory;
    int refused = 0;
    std::uint64_t queries = 0;
  } second{d, other};
  auto memory = sim_malloc{d.driver} |
                after_allocation{[](void* argument) {
                                   auto& s = *static_cast<second_request*>(argument);
                                   auto const before = s.d.machine.calls()[driver_call::memory_info];
                                   // The second one only waits for this thread's own growth, and not forever.
                                   for (std::size_t const bytes : {500_MiB, 400_MiB}) {
                                     try {
                                       (void)s.memory.allocate(s.d.a, bytes);
                                     } catch (out_of_memory const&) {
                                       ++s.refused;
                                     }
                                   }
                                   s.queries = s.d.machine.calls()[driver_call::memory_info] - before;
                                 },
                                 &second} |
                headroom{200_MiB};
  void* const p = memory.allocate(d.a, 400_MiB);
  CHECK(second.refused == 2);
  CHECK(second.queries == 2);
  memory.deallocate(d.a, p, 400_MiB);
}

#if defined(__linux__)
TEST_CASE("headroom sleeps a hundred times for a growth in progress, then refuses", "[policy][headroom]") {
  device d;
  auto other = sim_malloc{d.driver} | headroom{200_MiB};
  struct second_request {
    device& d;
    decltype(other)& memory;
    long sleeps = 0;
    bool refused = false;
  } second{d, other};
  auto memory = sim_malloc{d.driver} |
                after_allocation{[](void* argument) {
                                   auto& s = *static_cast<second_request*>(argument);
                                   long const before = tarn_test::voluntary_switches();
                                   try {  // waits for this thread's own growth
                                     (void)s.memory.allocate(s.d.a, 400_MiB);
                                   } catch (out_of_memory const&) {
                                     s.refused = true;
                                   }
                                   s.sleeps = tarn_test::voluntary_switches() - before;
                                 },
                                 &second} |
                headroom{200_MiB};
  void* const p = memory.allocate(d.a, 400_MiB);
  CHECK(second.refused);
  CHECK(second.sleeps >= 100);
  memory.deallocate(d.a, p, 400_MiB);
}
#endif

TEST_CASE("headroom refuses nothing where the driver does not report what is free", "[policy][headroom]") {
  device d;
  auto memory = sim_pages{d.driver} | headroom{200_MiB} | pooled{};
  d.machine.break_device(0);
  CHECK_THROWS_AS(memory.allocate(d.a, 1_MiB), cuda_error);  // of the device, not of the headroom
}

TEST_CASE("other pools give back what a request and the headroom need together", "[policy][headroom]") {
  for (int const more : {0, 90}) {  // then less than the headroom is free
    device d;
    auto other = sim_pages{d.driver} | pooled{.largest_handle = 2_MiB};
    auto memory = sim_pages{d.driver} | headroom{256_MiB} | pooled{};
    std::vector<void*> blocks;
    for (int i = 0; i < 384 + more; ++i) blocks.push_back(other.allocate(d.a, 2_MiB));
    for (void* p : blocks) other.deallocate(d.a, p, 2_MiB);
    cache(memory, d.a, 64_MiB);
    CHECK(d.free() >= 256_MiB);
    CHECK(other->state().reserved >= 700_MiB);  // and not more
  }
}

TEST_CASE("other pools give back what the driver needs beside a request and the headroom, too",
          "[policy][headroom]") {
  device d;
  auto const source = [&] {
    return basic_pages<driver_with_overhead>{driver_with_overhead(d.driver)} | headroom{100_MiB};
  };
  auto first = source() | pooled{.largest_handle = 2_MiB};
  auto second = source() | pooled{};
  std::vector<void*> blocks;
  for (int i = 0; i < 400; ++i) blocks.push_back(first.allocate(d.a, 2_MiB));
  REQUIRE(
      d.machine.launch(d.a, 1'000'000'000, {sim_writes(blocks[0], 1)}).ok());  // so that no memory is idle
  for (void* p : blocks) first.deallocate(d.a, p, 2_MiB);
  cache(second, d.a, 800_MiB);
  CHECK(second->state().reserved >= 800_MiB);
  CHECK(d.free() >= 116_MiB);
}

TEST_CASE("a pool that cannot wake beside its headroom says what is lacking", "[policy][headroom][pages]") {
  device d;
  auto memory = sim_pages{d.driver} | headroom{256_MiB} | pooled{};
  void* const p = memory.allocate(d.a, 500_MiB);
  (void)sleep(memory, contents::discarded);
  auto const handles = d.machine.calls()[driver_call::create_pages];
  {
    outside const user(d.driver, 400_MiB);
    REQUIRE(user);
    try {
      (void)wake(memory);
      FAIL("it woke");
    } catch (out_of_memory const& error) {
      CHECK(error.report().headroom == 256_MiB);
      CHECK(std::string(error.what()).find("refused by headroom(256 MiB)") != std::string::npos);
      CHECK(error.report().lacking >= 132_MiB);
      CHECK(error.report().lacking < 180_MiB);
    }
    CHECK(d.machine.calls()[driver_call::create_pages] == handles);
  }
  (void)wake(memory);
  memory.deallocate(d.a, p, 500_MiB);
}
