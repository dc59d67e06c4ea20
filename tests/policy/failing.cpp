// SPDX-License-Identifier: Apache-2.0
#include "tarn/policy/failing.hpp"

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "catch.hpp"
#include "contract/resource_contract.hpp"
#include "tarn/policy/any_resource.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/retry_on_oom.hpp"
#include "tarn/policy/tracked.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/raii/growing_buffer.hpp"
#include "tarn/raii/stream.hpp"
#include "tarn/report/stats.hpp"
#include "tarn/source/host_memory.hpp"
#include "tarn/source/sim_sources.hpp"

using namespace tarn;

TEST_CASE("failing meets the resource contract", "[policy][failing]") {
  tarn_test::resource_contract([] { return host_memory{} | failing{.call = 0}; });
}

TEST_CASE("failing refuses the call of its number and no other", "[policy][failing]") {
  sim_machine const machine;
  auto memory = sim_pages{machine.driver()} | pooled{} | failing{.call = 3};
  basic_stream<sim_driver> const stream(machine.driver());
  void* const first = memory.allocate(stream, 100);
  CHECK(memory.allocate(stream, 0) == nullptr);  // is not counted
  void* const second = memory.allocate_sync(200);
  CHECK_FALSE(memory->has_failed());
  try {
    (void)memory.allocate(stream, 300);
    FAIL("the third call was not refused");
  } catch (out_of_memory const& error) {
    CHECK(error.asked() == 300);
    CHECK(error.report().device == 0);
    CHECK(error.report().stream == stream_ref(stream).id());
    CHECK(std::string(error.what()).find("refused by failing. A test refuses") != std::string::npos);
    CHECK(std::string(error.what()).find("failing.cpp") != std::string::npos);
  }
  CHECK(memory->has_failed());
  void* const fourth = memory.allocate(stream, 300);
  CHECK(fourth != nullptr);
  memory.deallocate(stream, first, 100);
  memory.deallocate_sync(second, 200);
  memory.deallocate(stream, fourth, 300);
}

TEST_CASE("failing with number 0 refuses nothing", "[policy][failing]") {
  auto memory = host_memory{} | failing{.call = 0};
  memory.deallocate_sync(memory.allocate_sync(100), 100);
  CHECK_FALSE(memory->has_failed());
}

TEST_CASE("failing lets each allocation of a program fail in turn", "[policy][failing]") {
  using any_memory = basic_any_resource<no_driver, host_accessible>;
  auto const program = [](any_memory const& memory) {
    auto a = make_device_buffer<int>(memory, 10, stream_ref{});
    auto const b = make_device_buffer<int>(memory, 20, stream_ref{});
    a.resize(30);
  };
  auto const pool = host_memory{} | pooled{} | tracked{};
  std::vector<std::size_t> refused;
  for (std::uint64_t call = 1;; ++call) {
    auto const memory = pool | failing{.call = call};
    try {
      program(memory);
    } catch (out_of_memory const& error) {
      refused.push_back(error.asked() / sizeof(int));
    }
    CHECK(memory_allocated(pool) == 0);
    if (!memory->has_failed()) break;
  }
  CHECK(refused == std::vector<std::size_t>{10, 20, 30});
}

TEST_CASE("failing reports a refusal that the program has survived", "[policy][failing]") {
  int retries = 0;
  auto memory = host_memory{} | failing{} | retry_on_oom([&](out_of_memory const&, unsigned) {
                  ++retries;
                  return true;
                });
  memory.deallocate_sync(memory.allocate_sync(100), 100);
  CHECK(retries == 1);
  CHECK(memory->upstream()->has_failed());
}

TEST_CASE("a pool over failing survives one refusal", "[policy][failing]") {
  auto const below = host_memory{} | failing{.call = 1};
  auto memory = below | pooled{};
  void* const p = memory.allocate({}, 100);
  CHECK(p != nullptr);
  CHECK(below->has_failed());
  memory.deallocate({}, p, 100);
}

TEST_CASE("failing refuses as many calls in a row as it is asked to", "[policy][failing]") {
  auto memory = host_memory{} | failing{.call = 2, .times = 3};
  std::string outcomes;
  for (int i = 0; i < 6; ++i) {
    try {
      memory.deallocate_sync(memory.allocate_sync(100), 100);
      outcomes += '+';
    } catch (out_of_memory const&) {
      outcomes += '-';
    }
  }
  CHECK(outcomes == "+---++");
}

TEST_CASE("failing counts the growth of a growing_buffer, which asks again once",
          "[policy][failing][pages]") {
  sim_machine const machine;
  basic_stream<sim_driver> const stream(machine.driver());
  auto const memory = sim_pages{machine.driver()} | pooled{} | tracked{} | failing{.call = 2, .times = 2};
  growing_buffer<char, std::remove_const_t<decltype(memory)>> buffer(memory, 1 << 30, stream);
  buffer.resize(1000);
  void const* const before = buffer.data();
  CHECK_THROWS_AS(buffer.resize(buffer.capacity() + 1), out_of_memory);
  CHECK(buffer.size() == 1000);
  CHECK(memory->has_failed());
  buffer.resize(buffer.capacity() + 1);
  CHECK(buffer.data() == before);
}

TEST_CASE("failing refuses one call of several threads", "[policy][failing][threads]") {
  auto const memory = host_memory{} | failing{.call = 250};
  std::atomic<int> refused{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([mine = memory, &refused]() mutable {
      for (int n = 0; n < 100; ++n) {
        try {
          mine.deallocate_sync(mine.allocate_sync(64), 64);
        } catch (out_of_memory const&) {
          ++refused;
        }
      }
    });
  }
  for (std::thread& t : threads) t.join();
  CHECK(refused == 1);
}
