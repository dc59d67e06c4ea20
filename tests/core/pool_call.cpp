// SPDX-License-Identifier: Apache-2.0
#include "tarn/core/pool_call.hpp"

#include <new>
#include <utility>

#include "catch.hpp"
#include "contract/memory_access.hpp"
#include "tarn/debug/fenced.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/tracked.hpp"
#include "tarn/report/stats.hpp"
#include "tarn/sharing/page_pin.hpp"
#include "tarn/source/host_memory.hpp"
#include "tarn/source/sim_sources.hpp"

using namespace tarn;

TEST_CASE("block_bytes_of asks the nearest layer and falls back to the requested bytes",
          "[core][pool_call]") {
  host_memory host;
  CHECK(detail::block_bytes_of(host, 1000, 256) == 1000);
  auto pool = host_memory{} | pooled{};
  CHECK(detail::block_bytes_of(pool, 1, 256) == 256);
  CHECK(detail::block_bytes_of(pool, 0, 256) == 0);
  auto limit = host_memory{} | pooled{} | limited{1_MiB};
  CHECK(detail::block_bytes_of(limit, 1, 256) == 256);
  auto fence = host_memory{} | fenced{64};
  CHECK(detail::block_bytes_of(fence, 100, 1) == 228);
}

TEST_CASE("records_streams is true of a pool and of every layer above one", "[core][pool_call]") {
  STATIC_REQUIRE(!detail::records_streams<host_memory>);
  STATIC_REQUIRE(!detail::records_streams<stack<host_memory, fenced>>);
  STATIC_REQUIRE(detail::records_streams<stack<host_memory, pooled>>);
  STATIC_REQUIRE(detail::records_streams<stack<host_memory, pooled, limited, fenced>>);
}

TEST_CASE("pool_call::record_stream reaches the nearest layer that has record_stream", "[core][pool_call]") {
  struct layer {
    std::size_t recorded = 0;
    void record_stream(void*, std::size_t bytes, stream_ref) { recorded = bytes; }
  } one;
  pool_call::record_stream{nullptr, 42, {}}(one);
  CHECK(one.recorded == 42);
}

/// A router with three resources, which take requests by size, and nothing of the calls of their pools.
template <class A, class B, class C>
struct by_size_layer {
  using upstream_type = A;
  using driver_type = typename A::driver_type;
  using properties = typename A::properties;
  using routes = routes_to<A, B, C>;
  by_size_layer(A first, auto const& options) : a(std::move(first)), b(options.b), c(options.c) {}
  A a;
  B b;
  C c;
  A& upstream() { return a; }
  driver_type const& driver() const { return a.driver(); }
  template <class F>
  decltype(auto) with_routes(F const& f) {
    return f(a, b, c);
  }
  std::size_t route_of(void const* p) const noexcept { return a.owns(p) ? 0 : b.owns(p) ? 1 : 2; }
  void* allocate(stream_ref s, std::size_t n, std::size_t align) {
    return n <= 1_MiB   ? a.allocate(s, n, align)
           : n <= 4_MiB ? b.allocate(s, n, align)
                        : c.allocate(s, n, align);
  }
  void deallocate(stream_ref s, void* p, std::size_t n, std::size_t align) noexcept {
    n <= 1_MiB   ? a.deallocate(s, p, n, align)
    : n <= 4_MiB ? b.deallocate(s, p, n, align)
                 : c.deallocate(s, p, n, align);
  }
  void* allocate_sync(std::size_t n, std::size_t align) { return a.allocate_sync(n, align); }
  void deallocate_sync(void* p, std::size_t n, std::size_t align) noexcept { a.deallocate_sync(p, n, align); }
};
template <class B, class C>
struct by_size {
  B b;
  C c;
  template <class A>
  using layer = by_size_layer<A, B, C>;
};

TEST_CASE("the calls of pools cross a layer that routes to three resources and defines none of them",
          "[core][pool_call][pages]") {
  sim_machine const machine;
  auto a = sim_pages{machine.driver()} | pooled{};
  auto b = sim_pages{machine.driver()} | pooled{};
  auto c = sim_pages{machine.driver()} | pooled{};
  auto memory = a | by_size<decltype(b), decltype(c)>{b, c} | tracked{};
  tarn_test::test_stream const s(machine.driver());
  tarn_test::test_stream const other(machine.driver());
  auto const active = [&] {
    auto const all = nearest(memory, [](auto& l) -> decltype(l.statistics()) { return l.statistics(); });
    return all.active_bytes[0].current;
  };
  void* const of_b = memory.allocate(s, 2_MiB);
  void* const of_c = memory.allocate(s, 8_MiB);
  CHECK(memory.owns(of_b));
  CHECK(memory.owns(of_c));
  CHECK_FALSE(memory.owns(&a));
  CHECK(nearest(memory, pool_call::state{}).live == 10_MiB);
  CHECK(detail::block_bytes_of(memory, 1000, 256) == 1024);
  CHECK(active() == static_cast<std::int64_t>(10_MiB));

  // Only the pool that a block belongs to defers it.
  REQUIRE(machine.launch(other, 1'000'000, {sim_writes(of_c, 8_MiB)}).ok());
  memory.record_stream(of_c, 8_MiB, other);
  memory.deallocate(s, of_c, 8_MiB);
  CHECK(c->state().deferred == 8_MiB);
  CHECK(b->state().deferred == 0);
  CHECK(active() == static_cast<std::int64_t>(10_MiB));
  {
    page_pin const pin(memory, of_b, 2_MiB);
    memory.deallocate(s, of_b, 2_MiB);
    CHECK(memory.trim(2_MiB) == 8_MiB);  // the last first, and the pinned page stays
    CHECK(memory.trim(0) == 0);
  }
  CHECK(memory.trim(0) == 2_MiB);
  CHECK(nearest(memory, pool_call::reserved{}) == 0);
  CHECK(pool_call::largest_free_range::join(1, 2) == 2);
  CHECK(pool_call::largest_free_range::join(2, 1) == 2);
}

TEST_CASE("the owner of an address is asked also behind a resource that does not have the call",
          "[core][pool_call]") {
  struct other {
  } first;
  struct numbered {
    int number;
  } second{2}, third{3};
  auto const number = [](auto& layer) -> decltype(layer.number) { return layer.number; };
  CHECK(detail::ask_owner(number, 1, first, second, third) == 2);
  CHECK(detail::ask_owner(number, 2, first, second, third) == 3);
  CHECK(detail::ask_owner(number, 0, second, first, third) == 2);
  CHECK(detail::ask_owner(number, 2, second, first, third) == 3);
}

TEST_CASE("a call that fails in a later resource is undone in the earlier ones", "[core][pool_call]") {
  struct watched {
    bool refuses = false;
    int observers = 0;
    void observe_deferred(detail::deferred_observer&) {
      if (refuses) throw std::bad_alloc();
      ++observers;
    }
    void end_observation(detail::deferred_observer&) noexcept { --observers; }
  };
  struct observer final : detail::deferred_observer {
    void deferred_changed(detail::deferred_amount const&, detail::deferred_amount const&) noexcept override {}
  };
  watched a, b, c;
  observer watching;
  detail::ask_each(pool_call::observe_deferred{watching}, a, b, c);
  CHECK((a.observers == 1 && b.observers == 1 && c.observers == 1));
  c.refuses = true;
  CHECK_THROWS_AS(detail::ask_each(pool_call::observe_deferred{watching}, a, b, c), std::bad_alloc);
  CHECK((a.observers == 1 && b.observers == 1 && c.observers == 1));
}

TEST_CASE("sleep that fails in a later resource wakes those that it put to sleep", "[core][pool_call]") {
  struct sleeper {
    bool refuses = false;
    bool sleeps = false;
    std::size_t sleep(contents) {
      if (refuses) throw std::bad_alloc();
      sleeps = true;
      return 1;
    }
    std::size_t wake(after_waking) {
      if (refuses) throw std::bad_alloc();
      sleeps = false;
      return 1;
    }
    [[nodiscard]] bool is_asleep() const noexcept { return sleeps; }
  };
  sleeper a, b, c;
  CHECK(pool_call::sleep{}.across(a, b, c) == 3);
  CHECK(pool_call::wake{}.across(a, b, c) == 3);
  b.sleeps = true;
  c.refuses = true;
  CHECK_THROWS_AS(pool_call::sleep{}.across(c, a, b), std::bad_alloc);
  CHECK_THROWS_AS(pool_call::sleep{}.across(a, b, c), std::bad_alloc);
  CHECK_FALSE(a.sleeps);
  CHECK(b.sleeps);
}
