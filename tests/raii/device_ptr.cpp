// SPDX-License-Identifier: Apache-2.0

#include "tarn/raii/device_ptr.hpp"

#include <algorithm>
#include <compare>
#include <functional>
#include <type_traits>
#include <unordered_set>
#include <utility>

#include "catch.hpp"
#include "raii/archetype.hpp"
#include "tarn/report/stats.hpp"
#include "tarn/sim.hpp"

using namespace tarn;
using tarn_test::bare_stream;
using tarn_test::kept_memory;

namespace {
template <class P>
concept can_be_read = requires(P const& p) { *p; };
template <class P>
concept can_be_indexed = requires(P const& p) { p[0]; };
template <class P>
concept resets_without_a_count = requires(P& p, typename P::pointer q) { p.reset(q); };
}  // namespace

TEST_CASE("device_ptr has the ownership semantics of unique_ptr", "[raii][device_ptr]") {
  sim_pool pool;
  {
    auto one = make_device<double>(pool, stream_ref{});
    CHECK(one);
    CHECK(one.size() == 1);
    auto const other = make_device<double>(pool, stream_ref{});
    CHECK_FALSE(one == other);
    auto many = make_device<int[]>(pool, 1000, stream_ref{});
    CHECK(many.size() == 1000);
    auto moved = std::move(many);
    CHECK(many == nullptr);  // NOLINT: moved-from is null
    CHECK(moved != nullptr);
    auto& self = moved;
    moved = std::move(self);
    CHECK(moved != nullptr);
    int* const p = moved.release();
    CHECK(moved == nullptr);
    moved.reset(p, 1000);
    swap(many, moved);
    CHECK(many.get() == p);
    many = nullptr;
    CHECK_THROWS_AS(make_device<int[]>(pool, ~std::size_t{0} / 2, stream_ref{}), length_error);
    static_assert(!std::is_copy_constructible_v<decltype(one)>);
    static_assert(!std::is_copy_assignable_v<decltype(one)>);
    static_assert(std::is_nothrow_move_constructible_v<decltype(one)>);
    static_assert(std::is_nothrow_move_assignable_v<decltype(one)>);
  }
  CHECK(memory_allocated(pool) == 0);
}

TEST_CASE("device_ptr without a resource is null and can be assigned later", "[raii][device_ptr]") {
  sim_pool const pool;
  {
    device_ptr<int, sim_pool> p;
    device_ptr<int[], sim_pool> q = nullptr;
    static_assert(std::is_nothrow_default_constructible_v<decltype(p)>);
    CHECK((p == nullptr && p.get() == nullptr && p.size() == 0 && q.size() == 0));
    CHECK_FALSE(p.resource());
    p.reset();
    p = nullptr;
    CHECK_THROWS_AS(p.set_stream(stream_ref{}), misuse);
    p = make_device<int>(pool, stream_ref{});
    q = make_device<int[]>(pool, 3, stream_ref{});
    CHECK((p && q && p.resource() == pool));
    p = {};
    CHECK(p == nullptr);
  }
  CHECK(memory_allocated(pool) == 0);
}

namespace {
struct defined_later;
struct holder {
  device_ptr<defined_later, sim_pool> one;
  device_ptr<defined_later[], sim_pool> several;
  holder();
  ~holder();
  holder(holder&&) noexcept;
};
std::size_t size_of(holder const& h) {
  return h.one.size() + h.several.size();
}  // needs no definition
struct defined_later {
  double value;
};
holder::holder() = default;
holder::~holder() = default;
holder::holder(holder&&) noexcept = default;
}  // namespace

TEST_CASE("device_ptr can be a member where its type is incomplete", "[raii][device_ptr]") {
  sim_pool const pool;
  {
    holder h;
    h.one = make_device<defined_later>(pool, stream_ref{});
    h.several = make_device<defined_later[]>(pool, 2, stream_ref{});
    CHECK(size_of(holder(std::move(h))) == 3);
  }
  CHECK(memory_allocated(pool) == 0);
}

TEST_CASE("device_ptr of const elements takes over a pointer to mutable ones", "[raii][device_ptr]") {
  kept_memory memory;
  {
    auto p = make_device<int[]>(memory, 3, stream_ref{});
    int const* const place = p.get();
    p[2] = 5;
    device_ptr<int const[], kept_memory> fixed = std::move(p);
    CHECK(p == nullptr);  // NOLINT: moved-from is null
    CHECK((fixed.get() == place && fixed.size() == 3 && fixed[2] == 5));
    fixed = make_device<int[]>(memory, 1, stream_ref{});
    CHECK(memory.kept().live.size() == 1);
    auto const one = make_device<int const>(memory, stream_ref{});
    CHECK(one);
    using mutable_one = device_ptr<int, kept_memory>;
    using fixed_one = device_ptr<int const, kept_memory>;
    static_assert(std::is_nothrow_constructible_v<fixed_one, mutable_one&&>);
    static_assert(!std::is_constructible_v<mutable_one, fixed_one&&>);
    static_assert(!std::is_constructible_v<fixed_one, mutable_one const&>);
    static_assert(!std::is_constructible_v<device_ptr<unsigned, kept_memory>, mutable_one&&>);
  }
  CHECK(memory.balanced());
}

TEST_CASE("device_ptr is ordered and hashed by its address", "[raii][device_ptr]") {
  kept_memory memory;
  auto a = make_device<int>(memory, stream_ref{});
  auto b = make_device<int>(memory, stream_ref{});
  device_ptr<int, kept_memory> const none(memory);
  CHECK((a < b) == std::less<>{}(a.get(), b.get()));
  CHECK((a <=> b) == std::compare_three_way{}(a.get(), b.get()));
  CHECK((none < a && a > none && a <= a && a >= a));
  CHECK(std::hash<decltype(a)>{}(a) == std::hash<int*>{}(a.get()));
  std::unordered_set<device_ptr<int, kept_memory>> all;
  int const* const place = a.get();
  all.insert(std::move(a));
  all.insert(std::move(b));
  CHECK(all.size() == 2);
  CHECK(std::any_of(all.begin(), all.end(), [&](auto const& p) { return p.get() == place; }));
}

TEST_CASE("device_ptr deallocates every block once, with its original size", "[raii][device_ptr]") {
  kept_memory memory;
  struct alignas(1024) wide {
    char bytes[1024];
  };
  {
    auto a = make_device<int>(memory, stream_ref{});
    auto b = make_device<int>(memory, stream_ref{});
    a = std::move(b);
    CHECK(memory.kept().live.size() == 1);
    a.reset(static_cast<int*>(memory.allocate({}, sizeof(int), decltype(a)::alignment())));
    CHECK(memory.kept().live.size() == 1);
    auto w = make_device<wide[]>(memory, 3, stream_ref{});
    CHECK(is_aligned(w.get(), 1024));
    w.reset(nullptr);
    CHECK(memory.kept().live.size() == 1);
    b.reset();
    device_ptr<int, kept_memory> nothing(memory, nullptr, 5, stream_ref{});
    CHECK(nothing.size() == 0);
    auto zero = make_device<int[]>(memory, 0, stream_ref{});
    CHECK(zero == nullptr);
    CHECK(zero.size() == 0);
    static_cast<void>(w = make_device<wide[]>(memory, 2, stream_ref{}));  // an empty owner can own again
  }
  CHECK(memory.balanced());
}

TEST_CASE("device_ptr cannot adopt an array without its count", "[raii][device_ptr]") {
  static_assert(resets_without_a_count<device_ptr<int, kept_memory>>);
  static_assert(!resets_without_a_count<device_ptr<int[], kept_memory>>);
  kept_memory memory;
  {
    auto p = make_device<int[]>(memory, 7, stream_ref{});
    std::size_t const count = p.size();
    int* const raw = p.release();
    device_ptr<int[], kept_memory> q(memory, raw, count, stream_ref{});
    CHECK(q.size() == 7);
  }
  CHECK(memory.balanced());
}

TEST_CASE("device_ptr can be dereferenced only for host-accessible memory", "[raii][device_ptr]") {
  static_assert(!can_be_read<device_ptr<int, sim_pool>>);
  static_assert(!can_be_indexed<device_ptr<int[], sim_pool>>);
  static_assert(can_be_read<device_ptr<int, kept_memory>>);
  static_assert(!can_be_read<device_ptr<int[], kept_memory>>);
  auto one = make_device<int>(kept_memory{}, stream_ref{});
  *one = 3;
  auto many = make_device<int[]>(kept_memory{}, 2, stream_ref{});
  many[1] = *one;
  CHECK(many[1] == 3);
}

TEST_CASE("device_ptr frees on its stream and keeps its identity", "[raii][device_ptr][stream]") {
  kept_memory memory;
  { auto const p = make_device<int>(memory, bare_stream(1)); }
  CHECK(memory.kept().freed_on == bare_stream(1));
  CHECK(memory.kept().freed_on.id() != stream_ref::unknown_id);
  {
    auto p = make_device<int>(memory, bare_stream(1));
    p.set_stream(bare_stream(2));
    CHECK(p.stream() == bare_stream(2));
  }
  CHECK(memory.kept().freed_on == bare_stream(2));
  CHECK(memory.kept().freed_on.id() != stream_ref::unknown_id);  // a destroyed handle must not be queried
  {
    device_ptr<int, kept_memory> q(memory, static_cast<int*>(memory.allocate({}, 4, 256)), 1, bare_stream(3));
  }
  CHECK(memory.kept().freed_on.id() != stream_ref::unknown_id);
  {
    device_ptr<int, kept_memory> q(memory, bare_stream(4));
    q.reset(static_cast<int*>(memory.allocate({}, 4, 256)));
  }
  CHECK(memory.kept().freed_on.id() != stream_ref::unknown_id);
  CHECK(memory.balanced());
}

TEST_CASE("device_ptr set_stream makes the new stream wait for the old one", "[raii][device_ptr][stream]") {
  sim_options options;
  options.checks = sim_checks::stream_order;
  sim_machine const machine{options};
  sim_pool pool{sim_pages{machine.driver()}};
  basic_stream const a{machine.driver()};
  basic_stream const b{machine.driver()};
  auto p = make_device<int[]>(pool, 1000, a);
  REQUIRE(machine.launch(a, 1'000'000, {sim_writes(p.get(), 4000)}).ok());
  CHECK_FALSE(machine.is_ordered(a, b));
  p.set_stream(b);
  CHECK(machine.is_ordered(a, b));
  REQUIRE(machine.launch(b, 1000, {sim_writes(p.get(), 4000)}).ok());
  CHECK(machine.findings().empty());
}

TEST_CASE("device_ptr leaks and changes nothing if it cannot be made or moved to a stream",
          "[raii][device_ptr]") {
  tarn_test::fail_each_step([](kept_memory const& m) { return m; },
                            [](kept_memory& m) { (void)make_device<int[]>(m, 10, bare_stream(1)); },
                            [](kept_memory const&) {});
  tarn_test::fail_each_step([](kept_memory const& m) { return make_device<int>(m, bare_stream(1)); },
                            [](auto& p) { p.set_stream(bare_stream(2)); },
                            [](auto const& p) { CHECK((p && p.stream() == bare_stream(1))); });
}

TEST_CASE("device_ptr is destroyed without a report after the driver has unloaded", "[raii][device_ptr]") {
  sim_machine const machine;
  {
    auto const pooled_one = make_device<int>(sim_pool{sim_pages{machine.driver()}}, stream_ref{});
    auto const bare_one = make_device<int>(sim_malloc{machine.driver()}, stream_ref{});
    machine.unload();
  }
  machine.repair();
  SUCCEED();
}
