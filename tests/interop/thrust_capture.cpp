// SPDX-License-Identifier: Apache-2.0
// Temporaries of Thrust in a capture of the simulated device come from the graph's memory. Thrust's host
// systems do the work of an algorithm at once and not as work of a stream, so the replayed work is that of
// simulated kernels with Thrust's temporaries.

#include <thrust/execution_policy.h>
#include <thrust/memory.h>
#include <thrust/sort.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "tarn/sim.hpp"
#include "tarn/tarn.hpp"
#include "tarn/thrust.hpp"

namespace thrust_capture_test {

using number = std::uint32_t;
using driver_type = tarn::sim_marking_driver;
using stream_type = tarn::basic_stream<driver_type>;

tarn::sim_options checked_device() {
  tarn::sim_options o;
  o.checks = tarn::sim_checks::stream_order;
  return o;
}

/// A user's own allocator for Thrust's temporaries. Notes what it gives out.
template <class Pool>
struct own_temporaries {
  using value_type = char;

  char* allocate(std::ptrdiff_t bytes) {
    auto* const p = static_cast<char*>(pool.allocate(on, static_cast<std::size_t>(bytes)));
    given.emplace_back(p, static_cast<std::size_t>(bytes));
    return p;
  }
  void deallocate(char* p, std::size_t bytes) { pool.deallocate(on, p, bytes); }

  Pool pool;
  tarn::stream_ref on;
  std::vector<std::pair<char*, std::size_t>> given{};
};

/// Sorts by way of a temporary of Thrust's, and adds up: three kernels of which each needs the one before.
template <class Policy>
void sort_and_scan(driver_type const& driver, tarn::stream_ref s, Policy const& policy, number const* in,
                   number* out, std::size_t n) {
  auto const got = thrust::get_temporary_buffer<number>(policy, static_cast<std::ptrdiff_t>(n));
  REQUIRE(got.second == static_cast<std::ptrdiff_t>(n));
  number* const t = thrust::raw_pointer_cast(got.first);
  std::size_t const bytes = n * sizeof(number);
  auto const launch = [&](tarn::sim_access from, tarn::sim_access to, auto body) {
    REQUIRE(driver.launch(s, 1000 + n, {from, to}, body).ok());
  };
  launch(tarn::sim_reads(in, bytes), tarn::sim_writes(t, bytes), [=] {
    for (std::size_t i = 0; i < n; ++i) t[i] = (in[i] * 2654435761U) >> 12;
  });
  launch(tarn::sim_reads(t, bytes), tarn::sim_writes(t, bytes), [=] { std::sort(t, t + n); });
  launch(tarn::sim_reads(t, bytes), tarn::sim_writes(out, bytes), [=] { std::partial_sum(t, t + n, out); });
  thrust::return_temporary_buffer(policy, got.first, got.second);
}

}  // namespace thrust_capture_test
using namespace thrust_capture_test;

TEST_CASE("a graph with temporaries of Thrust gives the eager result when it is replayed between eager work",
          "[interop][thrust][graph_memory]") {
  tarn::sim_machine const machine(checked_device());
  driver_type const driver(machine.driver());
  auto const pool = tarn::basic_pages<driver_type>(driver) | tarn::pooled{} | tarn::tracked{};
  stream_type const s(driver), other(driver);
  std::size_t const n = GENERATE(as<std::size_t>{}, 300, 20'000, 400'000);
  {
    auto in = tarn::make_device_buffer<number>(pool, n, s);
    auto out = tarn::make_device_buffer<number>(pool, n, s);
    REQUIRE(driver
                .launch(s, 1000, {tarn::sim_writes(in.data(), in.bytes())},
                        [p = in.data(), n] { std::iota(p, p + n, 7U); })
                .ok());
    auto const fill = [&](tarn::stream_ref on, number* p, std::size_t count, number value) {
      REQUIRE(
          driver.launch(on, 500, {tarn::sim_writes(p, 4 * count)}, [=] { std::fill(p, p + count, value); })
              .ok());
    };
    auto const result = [&] {
      std::vector<number> host(n);
      out.copy_to_sync(host);
      return host;
    };
    auto const policy = tarn::par_nosync(pool).on(s);
    auto const step = [&] { sort_and_scan(driver, s, policy, in.data(), out.data(), n); };
    step();
    auto const eager = result();
    REQUIRE(std::is_sorted(eager.begin(), eager.begin() + 16));
    tarn::graph_memory memory{pool};
    tarn::sim_graph graph;
    {
      tarn::capture_scope const scope(memory, s);
      REQUIRE(machine.begin_capture(s).ok());
      step();
      REQUIRE(machine.end_capture(s, graph).ok());
    }
    CHECK(graph.size() == 3);
    CHECK(memory.state().allocated == 0);
    CHECK(memory.state().reserved >= 4 * n);
    std::minstd_rand random(1);
    struct eager_block {
      tarn::device_buffer<number, std::remove_const_t<decltype(pool)>> data;
      number value;
    };
    std::vector<eager_block> live;
    unsigned wrong = 0, overwritten = 0;
    // Sorting what is large takes long with sanitizers.
    unsigned const rounds = n > 100'000 ? 25 : 100;
    for (unsigned round = 0; round < rounds; ++round) {
      tarn::stream_ref const on = random() % 2 == 0 ? tarn::stream_ref(s) : tarn::stream_ref(other);
      std::size_t const count = random() % 3 == 0 ? n : 1 + random() % 30'000;
      live.push_back({tarn::make_device_buffer<number>(pool, count, on), round});
      fill(on, live.back().data.data(), count, round);
      if (live.size() > 8) {
        std::swap(live[random() % live.size()], live.back());
        std::vector<number> host(live.back().data.size());
        live.back().data.copy_to_sync(host);
        overwritten += host != std::vector<number>(host.size(), live.back().value) ? 1U : 0U;
        live.pop_back();
      }
      fill(s, out.data(), n, 0);
      REQUIRE(machine.launch(s, graph).ok());
      if (round % 20 == 0) {
        wrong += result() != eager ? 1U : 0U;
        step();  // eager, with its temporary in the pool
        tarn::empty_cache(pool);
      }
      wrong += result() != eager ? 1U : 0U;
    }
    CHECK(overwritten == 0);
    CHECK(wrong == 0);
  }
  for (auto const& text : machine.findings()) FAIL_CHECK(text);
}

TEST_CASE("temporaries of a Thrust algorithm in a capture serve nothing else until the graph's memory ends",
          "[interop][thrust][graph_memory]") {
  tarn::sim_machine const machine(checked_device());
  driver_type const driver(machine.driver());
  auto const pool = tarn::basic_pages<driver_type>(driver) | tarn::pooled{} | tarn::tracked{};
  stream_type const s(driver);
  own_temporaries<std::remove_const_t<decltype(pool)>> of_user{pool, s};
  std::vector<number> values(5'000);
  auto const sort = [&] {  // on the host, at once; its temporaries are the device's
    std::iota(values.begin(), values.end(), 0U);
    thrust::stable_sort(thrust::device(of_user), thrust::device_pointer_cast(values.data()),
                        thrust::device_pointer_cast(values.data() + values.size()), std::greater<number>());
    CHECK(std::is_sorted(values.rbegin(), values.rend()));
  };
  sort();
  std::size_t const eager = of_user.given.size();
  REQUIRE(eager != 0);
  std::size_t taken_again = 0;
  auto const count_overlaps = [&] {
    for (std::size_t i = 2 * eager; i < of_user.given.size(); ++i) {
      for (std::size_t k = eager; k < 2 * eager; ++k) {
        auto const& [p, bytes] = of_user.given[i];
        auto const& [q, captured] = of_user.given[k];
        taken_again += p < q + captured && q < p + bytes ? 1U : 0U;
      }
    }
  };
  {
    tarn::graph_memory memory{pool};
    {
      tarn::capture_scope const scope(memory, s);
      tarn::sim_graph graph;
      REQUIRE(machine.begin_capture(s).ok());
      sort();
      REQUIRE(machine.end_capture(s, graph).ok());
    }
    REQUIRE(of_user.given.size() == 2 * eager);
    CHECK(memory.state().allocated == 0);
    CHECK(memory.state().reserved >= of_user.given.back().second);
    for (int i = 0; i < 20; ++i) {
      sort();
      auto const held = tarn::make_device_buffer<number>(pool, 1'000, s);
      sort();
    }
    count_overlaps();
    CHECK(taken_again == 0);
    CHECK(pool.owns(of_user.given[eager].first));
  }
  tarn::empty_cache(pool);
  CHECK(tarn::memory_reserved(pool) == 0);
  for (auto const& text : machine.findings()) FAIL_CHECK(text);
}
