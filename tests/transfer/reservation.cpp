// SPDX-License-Identifier: Apache-2.0
#include "tarn/transfer/reservation.hpp"

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#if defined(__unix__)
#include <sys/wait.h>
#include <unistd.h>
#endif

#include "catch.hpp"
#include "contract/memory_access.hpp"
#include "contract/resource_contract.hpp"
#include "driver/faulty.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/tracked.hpp"
#include "tarn/raii/budget_scope.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/report/stats.hpp"
#include "tarn/sim.hpp"
#include "tarn/source/host_memory.hpp"
#include "tarn/transfer/available_memory.hpp"

using namespace tarn;
using namespace std::chrono_literals;
using tarn_test::test_stream;

namespace {
constexpr auto without_end = std::chrono::nanoseconds::max();
constexpr auto long_enough =
    20s;  // a thread that is not woken in time ends the program with its out_of_memory

/// Waits until so many threads wait for bytes of the limit.
template <class Memory>
void until_waiting(Memory const& memory, unsigned threads) {
  while (memory->budget().waiting() != threads) std::this_thread::sleep_for(100us);
}
template <class Memory>
[[nodiscard]] bool fits(Memory const& memory, std::size_t bytes) {
  try {
    auto const task = reserve(memory, bytes);
    return true;
  } catch (out_of_memory const&) {
    return false;
  }
}
}  // namespace

TEST_CASE("a reservation's memory meets the resource contract", "[raii][reservation]") {
  auto const memory = host_memory{} | pooled{} | limited{1_TiB};
  std::vector<decltype(reserve(memory, 1))> tasks;
  tarn_test::resource_contract([&] {
    tasks.push_back(reserve(memory, 2_GiB));
    return tasks.back().resource();
  });
}

TEST_CASE("a reservation takes its bytes from the limit once", "[raii][reservation]") {
  auto const memory = host_memory{} | limited{10_MiB};
  {
    auto const task = reserve(memory, 6_MiB);
    CHECK(memory->used() == 6_MiB);
    CHECK(task.bytes() == 6_MiB);
    CHECK(task.used() == 0);
    auto const buffer = make_device_buffer<char>(task.resource(), 6_MiB, stream_ref{});
    CHECK(memory->used() == 6_MiB);
    CHECK(task.used() == 6_MiB);
    // Others have the rest, and no more.
    auto const other = make_device_buffer<char>(memory, 4_MiB, stream_ref{});
    CHECK_THROWS_AS(make_device_buffer<char>(memory, 1, stream_ref{}), out_of_memory);
    CHECK_FALSE(fits(memory, 1));
  }
  CHECK(memory->used() == 0);
  CHECK(fits(memory, 10_MiB));
  CHECK(fits(memory, 0));
}

TEST_CASE("an allocation beyond the reservation is refused and changes nothing", "[raii][reservation]") {
  auto const memory = host_memory{} | limited{10_MiB};
  auto const task = reserve(memory, 1_MiB);
  auto handle = task.resource();
  void* const p = handle.allocate({}, 600'000);
  try {
    (void)handle.allocate_sync(500'000);
    FAIL("nothing was refused");
  } catch (reservation_exceeded& error) {
    error.set_report(error.report());
    CHECK(error.report().limit == 1_MiB);
    CHECK(error.report().limit_used == 600'000);
    CHECK(std::string(error.what()).find("refused by the reservation(1 MiB)") != std::string::npos);
    CHECK(std::string(error.what()).find("Reserve more") != std::string::npos);
  }
  CHECK_THROWS_AS(handle.allocate({}, ~std::size_t{0} - 5), reservation_exceeded);
  CHECK(task.used() == 600'000);
  CHECK(memory->used() == 1_MiB);
  handle.deallocate({}, p, 600'000);
  CHECK(handle.allocate({}, 0) == nullptr);
  void* const all = handle.allocate({}, 1_MiB);
  handle.deallocate({}, all, 1_MiB);
  CHECK(task.peak() == 1_MiB);
}

TEST_CASE("a refusal by the upstream costs nothing of the reservation", "[raii][reservation]") {
  sim_machine const machine;
  fault_plan const plan;
  auto const memory =
      basic_malloc<faulty<sim_driver>>(faulty<sim_driver>(machine.driver(), plan)) | limited{1_MiB};
  auto const task = reserve(memory, 1_MiB);
  auto handle = task.resource();
  plan.fail(driver_call::malloc_device, 1);
  CHECK_THROWS_AS(handle.allocate({}, 1_MiB), out_of_memory);
  CHECK(task.used() == 0);
  CHECK(task.peak() == 0);
  void* const p = handle.allocate({}, 1_MiB);
  handle.deallocate({}, p, 1_MiB);
}

TEST_CASE("blocks count as the pool rounds them", "[raii][reservation]") {
  auto const memory = host_memory{} | pooled{} | tracked{} | limited{1_MiB};
  auto const task = reserve(memory, 1000);
  auto handle = task.resource();
  CHECK_THROWS_AS(handle.allocate({}, 1000), reservation_exceeded);  // 1024
  void* const p = handle.allocate({}, 500);
  CHECK(task.used() == 512);
  CHECK(memory_allocated(memory) == 512);
  handle.deallocate({}, p, 500);
  CHECK(task.used() == 0);
}

TEST_CASE("reserve refuses at once without a time to wait, and above the limit always",
          "[raii][reservation]") {
  auto const memory = host_memory{} | limited{10_MiB};
  auto const task = reserve(memory, 8_MiB);
  try {
    (void)reserve(memory, 3_MiB);
    FAIL("nothing was refused");
  } catch (out_of_memory const& error) {
    CHECK(error.asked() == 3_MiB);
    CHECK(error.report().limit == 10_MiB);
    CHECK(error.report().limit_used == 8_MiB);
    CHECK(std::string(error.what()).find("limited (reserve)(10 MiB), of which 8 MiB are used") !=
          std::string::npos);
    CHECK(std::string(error.where().file).find("reservation.cpp") != std::string::npos);
  }
  CHECK_THROWS_AS(reserve(memory, 10_MiB + 1, without_end), out_of_memory);
  CHECK_THROWS_AS(reserve(memory, ~std::size_t{0}, without_end), out_of_memory);
  CHECK_THROWS_AS(reserve(memory, 3_MiB, -1s), out_of_memory);
  CHECK_THROWS_AS(reserve(memory, 3_MiB, 2ms), out_of_memory);
  CHECK(memory->used() == 8_MiB);
  CHECK(memory->budget().waiting() == 0);
  CHECK(fits(memory, 2_MiB));
}

TEST_CASE("a task waits until its bytes are free", "[raii][reservation][threads]") {
  auto const memory = host_memory{} | limited{10_MiB};
  auto const wait_for = [&](auto const& until_free) {
    std::atomic<bool> started{false};
    std::thread task([&] {
      auto const mine = reserve(memory, 7_MiB, long_enough);
      started = true;
    });
    until_waiting(memory, 1);
    CHECK_FALSE(started);
    until_free();
    task.join();
    CHECK(started);
  };
  SECTION("another reservation ends") {
    auto other = std::make_unique<decltype(reserve(memory, 1))>(reserve(memory, 4_MiB));
    wait_for([&] { other.reset(); });
  }
  SECTION("another reservation gives back what it does not use") {
    auto other = reserve(memory, 4_MiB);
    wait_for([&] {
      CHECK(other.release_unused(2_MiB) == 2_MiB);
      CHECK(other.release_unused(2_MiB) == 0);
      CHECK(other.release_unused(1_MiB) == 1_MiB);
      CHECK(other.bytes() == 1_MiB);
    });
  }
  SECTION("a block that was not reserved is freed") {
    auto handle = memory;
    void* const p = handle.allocate({}, 4_MiB);
    wait_for([&] { handle.deallocate({}, p, 4_MiB); });
  }
  SECTION("a block of a reservation that has ended is freed") {
    auto other = std::make_unique<decltype(reserve(memory, 1))>(reserve(memory, 6_MiB));
    auto buffer = make_device_buffer<char>(other->resource(), 4_MiB, stream_ref{});
    other.reset();
    CHECK(memory->used() == 4_MiB);
    wait_for([&] { auto const last = std::move(buffer); });
  }
  SECTION("the limit rises") {
    auto const other = reserve(memory, 4_MiB);
    wait_for([&] { (void)memory->set_limit(11_MiB); });
  }
  SECTION("a budget_scope ends") {
    auto budget = std::make_unique<budget_scope<std::remove_const_t<decltype(memory)>>>(memory, 6_MiB);
    wait_for([&] { budget.reset(); });
  }
  CHECK(memory->used() == 0);
  CHECK(memory->budget().waiting() == 0);
}

TEST_CASE("reserve that waits is refused when set_limit falls below it", "[raii][reservation][threads]") {
  auto const memory = host_memory{} | limited{10_MiB};
  auto const held = reserve(memory, 8_MiB);
  std::atomic<bool> is_refused{false};
  std::thread large([&] {
    try {
      (void)reserve(memory, 9_MiB, without_end);
    } catch (out_of_memory const& error) {
      is_refused = error.report().limit == 6_MiB;
    }
  });
  until_waiting(memory, 1);
  (void)memory->set_limit(6_MiB);
  CHECK(memory->budget().waiting() == 0);
  if (memory->budget().waiting() != 0) (void)memory->set_limit(20_MiB);  // so that the thread can be joined
  large.join();
  CHECK(is_refused);
}

TEST_CASE("zero bytes are not refused by a limit that was lowered below what is used, nor by a reservation",
          "[raii][reservation][limited]") {
  auto memory = sim_pages{} | pooled{} | limited{10_MiB};
  void* const p = memory.allocate(stream_ref{}, 5_MiB);
  (void)memory->set_limit(1_MiB);
  CHECK(memory.allocate(stream_ref{}, 0) == nullptr);
  CHECK_NOTHROW(make_device_buffer<float>(memory, 0, stream_ref{}));
  memory.deallocate(stream_ref{}, p, 5_MiB);
  auto const task = reserve(memory, 0);
  auto handle = task.resource();
  CHECK(handle.allocate(stream_ref{}, 0) == nullptr);
  CHECK(handle.allocate_sync(0) == nullptr);
}

TEST_CASE("a reservation of all ones is refused, and the limit keeps its bytes", "[raii][reservation]") {
  auto memory = sim_pages{} | pooled{} | limited{~std::size_t{0}};
  CHECK_THROWS_AS(reserve(memory, ~std::size_t{0}), out_of_memory);
  { auto const task = reserve(memory, max_request_bytes); }
  CHECK(memory->used() == 0);
  memory.deallocate(stream_ref{}, memory.allocate(stream_ref{}, 100), 100);
}

TEST_CASE("one that fits goes first, but a large request is passed 16 times at most",
          "[raii][reservation][threads]") {
  auto const memory = host_memory{} | limited{10_MiB};
  auto first = std::make_unique<decltype(reserve(memory, 1))>(reserve(memory, 6_MiB));
  std::atomic<bool> large_started{false};
  std::thread large([&] {
    auto const mine = reserve(memory, 8_MiB, long_enough);
    large_started = true;
  });
  until_waiting(memory, 1);
  for (unsigned i = 0; i < detail::most_passes - 1; ++i) REQUIRE(fits(memory, 1_MiB));
  // A second one that does not fit waits behind it; a third one that fits passes both.
  std::atomic<int> served{0};
  std::thread second([&] {
    auto const mine = reserve(memory, 5_MiB, long_enough);
    ++served;
  });
  until_waiting(memory, 2);
  REQUIRE(fits(memory, 4_MiB));
  CHECK_FALSE(fits(memory, 1));  // passed 16 times: no other request goes before it any more
  std::thread third([&] {
    auto const mine = reserve(memory, 1_MiB, long_enough);
    ++served;
  });
  until_waiting(memory, 3);
  CHECK(served == 0);
  CHECK_FALSE(large_started);
  // Enough for the second and the third, which must not pass.
  CHECK(first->release_unused(4_MiB) == 2_MiB);
  std::this_thread::sleep_for(5ms);
  CHECK(served == 0);
  first.reset();
  large.join();
  second.join();
  third.join();
  CHECK(large_started);
  CHECK(served == 2);
  CHECK(memory->used() == 0);
}

TEST_CASE("a large request that waits is passed by 16 others that wait at most", "[raii][reservation]") {
  struct waiter final : detail::budget_waiter {
    using budget_waiter::budget_waiter;
    void wake() noexcept override { is_awake = true; }
    bool is_awake = false;
  };
  detail::byte_budget budget(100);
  REQUIRE(budget.take(100));
  waiter large(50);
  std::vector<std::unique_ptr<waiter>> small;
  REQUIRE(budget.wait_for(large));
  for (unsigned i = 0; i < detail::most_passes + 1; ++i) {
    small.push_back(std::make_unique<waiter>(1));
    REQUIRE(budget.wait_for(*small.back()));
    budget.give(1);
    CHECK(small.back()->is_awake == (i < detail::most_passes));
  }
  CHECK_FALSE(large.is_awake);
  budget.give(49);
  CHECK(large.is_awake);
  budget.give(1);
  CHECK(small.back()->is_awake);
  CHECK(budget.waiting() == 0);
}

TEST_CASE("a request that gives up does not hold up those behind it", "[raii][reservation][threads]") {
  auto const memory = host_memory{} | limited{10_MiB};
  auto const first = reserve(memory, 6_MiB);
  std::atomic<bool> has_given_up{false};
  std::thread large([&] {
    CHECK_THROWS_AS(reserve(memory, 8_MiB, 200ms), out_of_memory);
    has_given_up = true;
  });
  // Usually it waits now. If this thread was suspended for so long, it has given up before the others come.
  while (memory->budget().waiting() != 1 && !has_given_up) std::this_thread::sleep_for(100us);
  for (unsigned i = 0; i < detail::most_passes; ++i) REQUIRE(fits(memory, 1_MiB));
  std::atomic<bool> served{false};
  std::thread small([&] {
    auto const mine = reserve(memory, 1_MiB, long_enough);
    served = true;
  });
  large.join();
  small.join();
  CHECK(served);
  CHECK(memory->used() == 6_MiB);
  CHECK(memory->budget().waiting() == 0);
}

TEST_CASE("blocks outlive their reservation, which refuses new ones", "[raii][reservation]") {
  auto const memory = host_memory{} | limited{10_MiB};
  auto task = reserve(memory, 6_MiB);
  auto handle = task.resource();
  void* const a = handle.allocate({}, 1_MiB);
  void* const b = handle.allocate_sync(2_MiB);
  task = reserve(memory, 1_MiB);
  CHECK(memory->used() == 4_MiB);
  CHECK(handle->limit() == 3_MiB);
  try {
    (void)handle.allocate({}, 1);
    FAIL("nothing was refused");
  } catch (reservation_exceeded const& error) {
    CHECK(std::string(error.what()).find("has ended") != std::string::npos);
  }
  CHECK(handle->release_unused(0) == 0);
  handle.deallocate({}, a, 1_MiB);
  CHECK(memory->used() == 3_MiB);
  handle.deallocate_sync(b, 2_MiB);
  CHECK(memory->used() == 1_MiB);
  auto moved = std::move(task);
  CHECK(moved.bytes() == 1_MiB);
  CHECK(memory->used() == 1_MiB);
}

TEST_CASE("policies lie over a reservation and below its limit", "[raii][reservation]") {
  sim_machine const machine;
  auto const memory = sim_pages{machine.driver()} | pooled{} | tracked{} | limited{1_GiB};
  test_stream<sim_driver> const s(machine.driver());
  auto const task = reserve(memory, 100_MiB);
  auto mine = task.resource() | tracked{};
  {
    auto const buffer = make_device_buffer<char>(mine, 50_MiB, s);
    CHECK(memory_allocated(mine) == 50_MiB);
    CHECK(memory_allocated(memory) == 50_MiB);
    CHECK(available_memory(mine).bytes == 50_MiB);
    CHECK(mine.owns(buffer.data()));
    auto const smaller = std::make_unique<budget_scope<std::remove_const_t<decltype(memory)>>>(memory, 0);
    auto const another = make_device_buffer<char>(mine, 50_MiB, s);  // a reserved byte is not refused
  }
  CHECK(max_memory_allocated(mine) == 100_MiB);
  CHECK(task.peak() == 100_MiB);
  mine.empty_cache();
  CHECK(memory_reserved(memory) == 0);
}

// [pages]: segments leave more than a tenth of the device in fragments, on some schedules.
TEST_CASE("tasks whose peaks exceed the device three times never run out of memory",
          "[raii][reservation][threads][pages]") {
  sim_options options;
  options.capacity = 1_GiB;
  options.taken = 0;
  options.backing = sim_backing::address_only;
  options.checks = sim_checks::stream_order;
  sim_machine const machine{options};
  // As CUDA's: threads may mark the work of a stream while another thread destroys it.
  sim_marking_driver const driver(machine.driver());
  auto const memory = basic_pages(driver) | pooled{} | tracked{} | limited{1_GiB / 100 * 90};
  constexpr unsigned tasks = 16;
  std::atomic<int> finished{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < tasks; ++t) {
    threads.emplace_back([&, t] {
      std::size_t const peak = (96 + 16 * (t % 13)) * 1_MiB;  // 3,000 MiB in all
      std::mt19937_64 random(t);
      for (int round = 0; round < 4; ++round) {
        auto task = reserve(memory, peak, long_enough);
        test_stream<sim_driver> const s(driver);
        auto handle = task.resource();
        std::vector<std::pair<void*, std::size_t>> live;
        for (int i = 0; i < 60; ++i) {
          std::size_t const bytes = 1 + random() % (peak / 6);
          if (detail::block_bytes_of(handle, bytes, default_alignment) <= peak - task.used()) {
            live.emplace_back(handle.allocate(s, bytes), bytes);
          } else {
            std::swap(live[random() % live.size()], live.back());
            handle.deallocate(s, live.back().first, live.back().second);
            live.pop_back();
          }
        }
        for (auto const& [p, bytes] : live) handle.deallocate(s, p, bytes);
        if (task.used() == 0) ++finished;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(finished == tasks * 4);
  CHECK(memory->used() == 0);
  auto handle = memory;
  auto const state = nearest(handle, [](auto& layer) -> decltype(layer.state()) { return layer.state(); });
  CHECK(state.ooms == 0);
  for (std::string const& finding : machine.findings()) UNSCOPED_INFO(finding);
  CHECK(machine.findings().empty());
}

TEST_CASE("threads that reserve, wait, give up and free never exceed the limit",
          "[raii][reservation][threads]") {
  auto const memory = host_memory{} | pooled{} | limited{1_MiB};
  std::atomic<std::size_t> reserved{0};
  std::atomic<int> exceeded{0};
  std::atomic<int> refused{0};
  std::vector<std::thread> threads;
  std::optional all(reserve(memory, 1_MiB));
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      for (int i = 0; i < 1500; ++i) {
        if (i == 1) {  // the first request was refused
          while (refused < 4) std::this_thread::yield();
        }
        std::size_t const bytes = random() % 600'000;
        try {
          auto task = reserve(memory, bytes, std::chrono::microseconds(random() % 400));
          if (reserved.fetch_add(bytes) + bytes > 1_MiB) ++exceeded;
          auto handle = task.resource();
          void* const p = bytes > 1000 ? handle.allocate({}, bytes / 2) : nullptr;
          if (random() % 4 == 0) std::this_thread::yield();
          reserved -= bytes;  // from here on, parts of it are given back
          if (random() % 2 == 0) task.release_unused(random() % 1000);
          auto const ends_first = std::move(task);
          handle.deallocate({}, p, bytes / 2);
        } catch (out_of_memory const&) {
          ++refused;
        }
      }
    });
  }
  while (refused < 4) std::this_thread::yield();
  all.reset();
  for (std::thread& thread : threads) thread.join();
  CHECK(exceeded == 0);
  CHECK(memory->used() == 0);
  CHECK(memory->budget().waiting() == 0);
}

#if defined(__unix__)
TEST_CASE("a forked child forgets the threads that waited in its parent", "[raii][reservation][fork]") {
  auto const memory = host_memory{} | limited{10_MiB};
  auto first = std::make_unique<decltype(reserve(memory, 1))>(reserve(memory, 6_MiB));
  std::thread large([&] { auto const mine = reserve(memory, 8_MiB, without_end); });
  until_waiting(memory, 1);
  pid_t const child = ::fork();
  if (child == 0) {
    first.reset();
    (void)memory->set_limit(10_MiB);  // looks for threads that wait
    bool const good = memory->used() == 0 && memory->budget().waiting() == 0 && fits(memory, 10_MiB);
    ::_exit(good ? 0 : 1);
  }
  int result = -1;
  CHECK(::waitpid(child, &result, 0) == child);
  CHECK(result == 0);
  first.reset();
  large.join();
  CHECK(memory->used() == 0);
}
#endif
