// SPDX-License-Identifier: Apache-2.0
#pragma once
// The contract of Thrust's users, for any pool and device system.

#include <thrust/copy.h>
#include <thrust/device_vector.h>
#include <thrust/functional.h>
#include <thrust/host_vector.h>
#include <thrust/reduce.h>
#include <thrust/sequence.h>
#include <thrust/sort.h>

#include <algorithm>
#include <random>
#include <vector>

#include "catch.hpp"
#include "tarn/report/memory_stats.hpp"
#include "tarn/report/stats.hpp"
#include "tarn/thrust.hpp"

namespace greedy {
/// An element whose namespace compares all that is found through it.
struct element {
  int value = 0;
};
template <class T>
bool operator==(T const&, T const&) = delete;
}  // namespace greedy

namespace tarn_test {

template <class Pool>
void thrust_contract(Pool pool, tarn::stream_ref stream) {
  std::mt19937 random(3);
  std::vector<int> host(100000);
  for (int& x : host) x = static_cast<int>(random() % 1000000);
  std::vector<int> sorted = host;
  std::sort(sorted.begin(), sorted.end());

  using allocator = tarn::thrust_allocator<int, Pool>;
  using vector = thrust::device_vector<int, allocator>;
  SECTION("a device_vector allocates from the pool and deallocates to it") {
    {
      vector v(host.size(), 7, allocator(pool));
      CHECK(tarn::memory_allocated(pool) >= host.size() * sizeof(int));
      CHECK(thrust::reduce(v.begin(), v.end()) == 700000);
      vector w(v);
      CHECK(w.get_allocator() == v.get_allocator());
      vector moved(std::move(v));
      CHECK(moved.size() == host.size());
      w.resize(2 * host.size());
      CHECK(static_cast<int>(w[5]) == 7);
      CHECK(static_cast<int>(w[host.size()]) == 0);
    }
    CHECK(tarn::memory_allocated(pool) == 0);
  }
  SECTION("max_size() is the largest request, and == is not that of the element's namespace") {
    allocator const a(
        pool);  // Thrust's vectors do not ask for it: their trait finds no function without parameters
    CHECK(a.max_size() == tarn::max_request_bytes / sizeof(int));
    CHECK_THROWS_AS(allocator(a).allocate(a.max_size()), tarn::out_of_memory);
    CHECK_THROWS_AS(allocator(a).allocate(a.max_size() + 1), tarn::length_error);
    tarn::thrust_allocator<greedy::element, Pool> const b(pool);
    CHECK(bool(b == b));
    CHECK(!bool(b != b));
  }
  SECTION("sort allocates its temporaries from the pool, on a stream") {
    vector v(host.begin(), host.end(), allocator(pool));
    auto const before = tarn::memory_stats(pool);
    thrust::stable_sort(tarn::par(pool).on(stream), v.begin(), v.end(), thrust::greater<int>());
    auto const after = tarn::memory_stats(pool);
    std::int64_t temporaries = 0;
    for (std::size_t i = 0; i < after.size(); ++i) {
      if (after[i].first == "allocation.all.allocated") temporaries = after[i].second - before[i].second;
    }
    CHECK(temporaries > 0);
    thrust::sort(tarn::par_nosync(pool).on(stream), v.begin(), v.end());
    if (stream.handle() != nullptr) REQUIRE(pool.driver().synchronize_stream(stream).ok());
    thrust::host_vector<int> back = v;
    CHECK(std::equal(sorted.begin(), sorted.end(), back.begin()));
  }
  SECTION("elements can be left uninitialised") {
    using bare = tarn::uninitialised_thrust_allocator<int, Pool>;
    thrust::device_vector<int, bare> v(1000, bare(pool));
    thrust::sequence(v.begin(), v.end());
    CHECK(thrust::reduce(v.begin(), v.end()) == 499500);
  }
}

}  // namespace tarn_test
