// SPDX-License-Identifier: Apache-2.0
// The scopes: peak_scope, cache_guard, budget_scope.

#include <optional>
#include <thread>

#include "catch.hpp"
#include "tarn/raii/budget_scope.hpp"
#include "tarn/raii/cache_guard.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/raii/peak_scope.hpp"
#include "tarn/report/stats.hpp"
#include "tarn/sim.hpp"

using namespace tarn;

TEST_CASE("nested peaks see their own and disturb nobody", "[raii][peak_scope]") {
  sim_pool pool;
  auto before = make_device_buffer<std::byte>(pool, 10_MiB, stream_ref{});
  peak_scope outer{pool};
  {
    peak_scope inner{pool};
    make_device_buffer<std::byte>(pool, 30_MiB, stream_ref{}).clear();
    CHECK(inner.peak_bytes() == 40_MiB);
    CHECK(inner.peak_above_start() == 30_MiB);
    CHECK(inner.count() == 1);
    CHECK(inner.net_bytes() == 0);
  }
  std::optional<peak_scope<sim_pool>> late(std::in_place, pool);
  make_device_buffer<std::byte>(pool, 5_MiB, stream_ref{}).clear();
  CHECK(late->peak_bytes() == 15_MiB);
  CHECK(outer.peak_bytes() == 40_MiB);
  before.clear();
  CHECK(outer.current_bytes() == 0);
  CHECK(outer.net_bytes() == -static_cast<std::int64_t>(10_MiB));
  late.reset();
  CHECK(max_memory_allocated(pool) == 40_MiB);
  reset_peak_memory_stats(pool);
  CHECK(max_memory_allocated(pool) == 0);
  CHECK(outer.peak_bytes() == 40_MiB);
}

TEST_CASE("a thread's peak sees that thread alone", "[raii][peak_scope][threads]") {
  sim_pool pool;
  peak_scope all{pool};
  peak_scope mine{pool, peak_of::this_thread};
  std::thread([&] { make_device_buffer<std::byte>(pool, 8_MiB, stream_ref{}).clear(); }).join();
  make_device_buffer<std::byte>(pool, 2_MiB, stream_ref{}).clear();
  CHECK(mine.peak_bytes() == 2_MiB);
  CHECK(mine.count() == 1);
  CHECK(all.peak_bytes() == 8_MiB);
}

TEST_CASE("a cache guard clears on both ends, as its options say", "[raii][cache_guard]") {
  sim_pool pool;
  auto const fill = [&] { make_device_buffer<std::byte>(pool, 64_MiB, stream_ref{}).clear(); };
  fill();
  {
    cache_guard guard{pool};
    CHECK(memory_reserved(pool) == 0);
    CHECK(guard.released_bytes() == 64_MiB);
    fill();
  }
  CHECK(memory_reserved(pool) == 0);
  fill();
  {
    cache_guard guard{pool, {.keep_bytes = 64_MiB}};
    CHECK(memory_reserved(pool) == 64_MiB);
  }
  {
    cache_guard guard{pool, {.only_if_free_below = 1}};
    CHECK(memory_reserved(pool) == 64_MiB);
  }
  std::atomic<std::uint32_t> counter{1};
  {
    cache_guard guard{pool, {.every_nth = 3, .counter = &counter}};
    CHECK(memory_reserved(pool) == 64_MiB);
  }
  counter = 3;
  cache_guard const third{pool, {.every_nth = 3, .counter = &counter}};
  CHECK(memory_reserved(pool) == 0);
}

TEST_CASE("a budget bounds a scope and never raises the limit", "[raii][budget_scope]") {
  auto memory = sim_pages{} | pooled{} | limited{100_MiB};
  auto held = make_device_buffer<std::byte>(memory, 10_MiB, stream_ref{});
  {
    budget_scope budget{memory, 20_MiB};
    CHECK(budget.remaining() == 20_MiB);
    CHECK_THROWS_AS(make_device_buffer<std::byte>(memory, 21_MiB, stream_ref{}), out_of_memory);
    {
      budget_scope wider{memory, 500_MiB};
      CHECK(wider.remaining() == 20_MiB);
    }
    CHECK_NOTHROW(make_device_buffer<std::byte>(memory, 20_MiB, stream_ref{}));
  }
  CHECK_NOTHROW(make_device_buffer<std::byte>(memory, 90_MiB, stream_ref{}));
}

namespace {
/// A pool that cannot be trimmed the second time.
struct stubborn_pool {
  int* trims;
  std::size_t trim(std::size_t) {
    if (++*trims == 2) throw std::bad_alloc();
    return 7;
  }
  [[nodiscard]] sim_driver driver() const { return sim_driver{}; }
};
}  // namespace

TEST_CASE("a cache guard that cannot clear at its end ends all the same", "[raii][cache_guard]") {
  int trims = 0;
  {
    cache_guard const guard{stubborn_pool{&trims}};
    CHECK(guard.released_bytes() == 7);
  }
  CHECK(trims == 2);
}
