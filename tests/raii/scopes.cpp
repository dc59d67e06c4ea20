// SPDX-License-Identifier: Apache-2.0
// The scopes: peak_scope, cache_guard, budget_scope.

#include <algorithm>
#include <array>
#include <atomic>
#include <iterator>
#include <optional>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "tarn/raii/budget_scope.hpp"
#include "tarn/raii/cache_guard.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/raii/peak_scope.hpp"
#include "tarn/report/stats.hpp"
#include "tarn/sim.hpp"

using namespace tarn;

TEST_CASE("peak_scope objects nest without affecting each other", "[raii][peak_scope]") {
  sim_pool pool;
  auto before = make_device_buffer<std::byte>(pool, 10_MiB, stream_ref{});
  peak_scope outer{pool};
  {
    peak_scope inner{pool};
    make_device_buffer<std::byte>(pool, 30_MiB, stream_ref{}).reset();
    CHECK(inner.peak_bytes() == 40_MiB);
    CHECK(inner.peak_above_start() == 30_MiB);
    CHECK(inner.count() == 1);
    CHECK(inner.net_bytes() == 0);
  }
  std::optional<peak_scope<sim_pool>> late(std::in_place, pool);
  make_device_buffer<std::byte>(pool, 5_MiB, stream_ref{}).reset();
  CHECK(late->peak_bytes() == 15_MiB);
  CHECK(outer.peak_bytes() == 40_MiB);
  before.reset();
  CHECK(outer.current_bytes() == 0);
  CHECK(outer.net_bytes() == -static_cast<std::int64_t>(10_MiB));
  late.reset();
  CHECK(max_memory_allocated(pool) == 40_MiB);
  reset_peak_memory_stats(pool);
  CHECK(max_memory_allocated(pool) == 0);
  CHECK(outer.peak_bytes() == 40_MiB);
}

TEST_CASE("peak_scope of this_thread counts only that thread", "[raii][peak_scope][threads]") {
  sim_pool pool;
  peak_scope all{pool};
  peak_scope mine{pool, peak_of::this_thread};
  std::thread([&] { make_device_buffer<std::byte>(pool, 8_MiB, stream_ref{}).reset(); }).join();
  make_device_buffer<std::byte>(pool, 2_MiB, stream_ref{}).reset();
  CHECK(mine.peak_bytes() == 2_MiB);
  CHECK(mine.count() == 1);
  CHECK(all.peak_bytes() == 8_MiB);
}

TEST_CASE("cache_guard clears the cache at both ends, according to its options", "[raii][cache_guard]") {
  sim_pool pool;
  auto const fill = [&] { make_device_buffer<std::byte>(pool, 64_MiB, stream_ref{}).reset(); };
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

TEST_CASE("budget_scope limits a scope and never raises the limit", "[raii][budget_scope]") {
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
/// A pool whose second trim() throws.
struct stubborn_pool {
  int* trims;
  std::size_t trim(std::size_t) {
    if (++*trims == 2) throw std::bad_alloc();
    return 7;
  }
  [[nodiscard]] sim_driver driver() const { return sim_driver{}; }
};
}  // namespace

TEST_CASE("cache_guard does not throw if it cannot clear at its end", "[raii][cache_guard]") {
  int trims = 0;
  {
    cache_guard const guard{stubborn_pool{&trims}};
    CHECK(guard.released_bytes() == 7);
  }
  CHECK(trims == 2);
}

namespace {

/// Calls f with each permutation of three.
template <class F>
void in_every_order(F const& f) {
  std::array<std::size_t, 3> order{0, 1, 2};
  do {
    f(order);
  } while (std::next_permutation(order.begin(), order.end()));
}

std::size_t limit_of(auto& memory) {
  return nearest(memory, [](auto& layer) -> decltype(layer.limit()) { return layer.limit(); });
}

}  // namespace

TEST_CASE("budget_scope objects end in any order and restore the earlier limit", "[raii][budget_scope]") {
  in_every_order([](auto const& order) {
    auto memory = sim_pages{} | pooled{} | limited{100_MiB};
    std::size_t const bytes[] = {50_MiB, 10_MiB, 30_MiB};
    std::optional<budget_scope<decltype(memory)>> scopes[3];
    for (std::size_t i = 0; i < 3; ++i) scopes[i].emplace(memory, bytes[i]);
    for (std::size_t i = 0; i < 3; ++i) {
      std::size_t least = 100_MiB;
      for (std::size_t k = i; k < 3; ++k) least = std::min(least, bytes[order[k]]);
      CHECK(limit_of(memory) == least);
      CHECK(scopes[order[i]]->remaining() == least);
      scopes[order[i]].reset();
    }
    CHECK(limit_of(memory) == 100_MiB);
  });
}

TEST_CASE("budget_scope keeps a limit that is set during its lifetime", "[raii][budget_scope]") {
  auto memory = sim_pages{} | limited{100_MiB} | pooled{};  // also for a limit on pages
  auto const set = [&](std::size_t bytes) {
    return nearest(memory,
                   [&](auto& layer) -> decltype(layer.set_limit(bytes)) { return layer.set_limit(bytes); });
  };
  {
    budget_scope const scope{memory, 20_MiB};
    CHECK(set(60_MiB) == 100_MiB);
    CHECK(limit_of(memory) == 20_MiB);
    CHECK(set(10_MiB) == 60_MiB);
    CHECK(limit_of(memory) == 10_MiB);
  }
  CHECK(limit_of(memory) == 10_MiB);
  budget_scope const boundless{memory, ~std::size_t{0}};
  CHECK(limit_of(memory) == 10_MiB);
}

TEST_CASE("budget_scope objects on two threads restore the earlier limit", "[raii][budget_scope][threads]") {
  auto memory = sim_pages{} | pooled{} | limited{100_MiB};
  std::atomic<int> step{0};
  auto const await = [&](int wanted) {
    while (step.load() != wanted) std::this_thread::yield();
  };
  std::thread other([&] {
    await(1);
    budget_scope const scope{memory, 20_MiB};  // begins second
    step = 2;
    await(3);
  });  // and ends second
  {
    budget_scope const scope{memory, 40_MiB};
    step = 1;
    await(2);
    CHECK(limit_of(memory) == 20_MiB);
  }
  CHECK(limit_of(memory) == 20_MiB);
  step = 3;
  other.join();
  CHECK(limit_of(memory) == 100_MiB);
  std::vector<std::thread> threads;
  for (std::size_t t = 1; t <= 3; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < 500; ++i) {
        budget_scope const scope{memory, (t + i % 7) * 1_MiB};
        std::this_thread::yield();
      }
    });
  }
  for (auto& t : threads) t.join();
  CHECK(limit_of(memory) == 100_MiB);
}

TEST_CASE("peak_scope objects end in any order, each with its own numbers", "[raii][peak_scope]") {
  in_every_order([](auto const& order) {
    sim_pool pool;
    std::optional<peak_scope<sim_pool>> scopes[3];
    std::vector<device_buffer<std::byte, sim_pool>> held;
    for (auto& scope : scopes) {
      scope.emplace(pool);
      held.push_back(make_device_buffer<std::byte>(pool, 1_MiB, stream_ref{}));
    }
    for (std::size_t i = 0; i < 3; ++i) {
      held.push_back(make_device_buffer<std::byte>(pool, 1_MiB, stream_ref{}));
      for (std::size_t k = i; k < 3; ++k) {
        CHECK(scopes[order[k]]->peak_bytes() == (4 + i) * 1_MiB);
        CHECK(scopes[order[k]]->count() == 3 - order[k] + 1 + i);
      }
      scopes[order[i]].reset();
    }
    held.clear();
    CHECK(memory_allocated(pool) == 0);
  });
}

TEST_CASE("cache_guard objects end in any order, and each clears the cache", "[raii][cache_guard]") {
  in_every_order([](auto const& order) {
    sim_pool pool;
    std::optional<cache_guard<sim_pool>> guards[3];
    for (auto& guard : guards) guard.emplace(pool);
    for (std::size_t i = 0; i < 3; ++i) {
      make_device_buffer<std::byte>(pool, 4_MiB, stream_ref{}).reset();
      CHECK(memory_reserved(pool) != 0);
      guards[order[i]].reset();
      CHECK(memory_reserved(pool) == 0);
    }
  });
}
