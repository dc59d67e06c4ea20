// SPDX-License-Identifier: Apache-2.0

#include <iterator>  // must be first: with _GLIBCXX_DEBUG, <string> of libstdc++ 12 uses declarations of this header

#include "tarn/stl.hpp"

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "raii/archetype.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/tracked.hpp"
#include "tarn/report/stats.hpp"
#include "tarn/source/host_memory.hpp"

using namespace tarn;

namespace {
/// A stateless resource, as a program may define it.
struct empty_resource {
  using driver_type = no_driver;
  using properties = property_set<host_accessible>;
  void* allocate(stream_ref, std::size_t bytes, std::size_t alignment) {
    return host_memory{}.allocate_sync(bytes, alignment);
  }
  void deallocate(stream_ref, void* p, std::size_t bytes, std::size_t alignment) noexcept {
    host_memory{}.deallocate_sync(p, bytes, alignment);
  }
  void* allocate_sync(std::size_t bytes, std::size_t alignment) { return allocate({}, bytes, alignment); }
  void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment) noexcept {
    deallocate({}, p, bytes, alignment);
  }
  static no_driver driver() { return {}; }
  static device_id device() { return {}; }
  friend bool operator==(empty_resource, empty_resource) noexcept { return true; }
};
}  // namespace

namespace greedy {
/// An element whose namespace compares all that is found through it.
struct element {
  int value = 0;
};
template <class T>
bool operator==(T const&, T const&) = delete;
}  // namespace greedy

TEST_CASE("stl_allocator lets standard containers use a pool and propagates with them", "[interop][stl]") {
  using pool_type = stack<host_memory, pooled, tracked>;
  pool_type one;
  pool_type two;
  using ints = std::vector<int, stl_allocator<int, pool_type>>;
  {
    ints a(1000, 7, stl_allocator<int, pool_type>(one));
    ints b{stl_allocator<int, pool_type>(two)};
    b = a;
    CHECK(b.get_allocator() == a.get_allocator());
    int const* const place = a.data();
    ints c{stl_allocator<int, pool_type>(two)};
    c = std::move(a);
    CHECK(c.data() == place);
    swap(b, c);
    CHECK(b.data() == place);
    std::list<std::string, stl_allocator<std::string, pool_type>> names(one);
    names.emplace_back("a name that is too long for the small buffer of a string");
    std::unordered_map<int, int, std::hash<int>, std::equal_to<int>,
                       stl_allocator<std::pair<int const, int>, pool_type>>
        map(4, stl_allocator<std::pair<int const, int>, pool_type>(two));
    for (int i = 0; i < 1000; ++i) map[i] = i;
    CHECK(map[999] == 999);
    CHECK(memory_allocated(one) > 0);
    CHECK_THROWS_AS((stl_allocator<double, pool_type>(one).allocate(~std::size_t{0} / 4)), length_error);
  }
  CHECK(memory_allocated(one) + memory_allocated(two) == 0);
}

TEST_CASE("stl_allocator traits follow its resource", "[interop][stl]") {
  using pool_type = stack<host_memory, pooled>;
  using traits = std::allocator_traits<stl_allocator<int, pool_type>>;
  static_assert(traits::propagate_on_container_copy_assignment::value);
  static_assert(traits::propagate_on_container_move_assignment::value);
  static_assert(traits::propagate_on_container_swap::value);
  static_assert(!traits::is_always_equal::value);
  static_assert(std::allocator_traits<stl_allocator<int, empty_resource>>::is_always_equal::value);
  static_assert(std::is_same_v<traits::rebind_alloc<double>, stl_allocator<double, pool_type>>);
  static_assert(std::is_nothrow_copy_constructible_v<stl_allocator<int, pool_type>>);
  pool_type const one;
  pool_type const two;
  stl_allocator<int, pool_type> const a(one);
  stl_allocator<double, pool_type> const b(a);
  stl_allocator<double, pool_type> const c(two);
  CHECK(a == b);
  CHECK(b == a);
  CHECK(a != c);
  CHECK(stl_allocator<int, pool_type>(b) == a);
  CHECK(stl_allocator<int, empty_resource>() == stl_allocator<int, empty_resource>());
}

TEST_CASE("stl_allocator max_size() is the largest request, so reserve(max_size()) runs out of memory",
          "[interop][stl]") {
  stack<host_memory, pooled> pool;
  using alloc = stl_allocator<std::uint64_t, decltype(pool)>;
  std::vector<std::uint64_t, alloc> v{alloc(pool)};
  CHECK(v.max_size() == max_request_bytes / sizeof(std::uint64_t));
  CHECK_THROWS_AS(v.reserve(v.max_size()), out_of_memory);
  CHECK_THROWS_AS(v.reserve(v.max_size() + 1), std::length_error);
  CHECK_THROWS_AS(alloc(pool).allocate(v.max_size() + 1), length_error);
}

TEST_CASE("stl_allocator is default-constructed without exceptions where its resource is", "[interop][stl]") {
  static_assert(std::is_nothrow_default_constructible_v<stl_allocator<int, empty_resource>>);
  static_assert(std::is_nothrow_default_constructible_v<stl_allocator<int, host_memory>>);
  static_assert(!std::is_nothrow_default_constructible_v<stl_allocator<int, stack<host_memory, pooled>>>);
}

TEST_CASE("stl_allocator == is not that of the element's namespace", "[interop][stl]") {
  stl_allocator<greedy::element, host_memory> const a;
  stl_allocator<greedy::element, host_memory> const b;
  CHECK(bool(a == b));
  CHECK(!bool(a != b));
}

TEST_CASE("stl_allocator stays with a moved-from container, which remains usable", "[interop][stl]") {
  stack<host_memory, pooled, tracked> pool;
  using alloc = stl_allocator<int, decltype(pool)>;
  {
    std::vector<int, alloc> a(10, 1, alloc(pool));
    auto b = std::move(a);
    a.push_back(3);  // NOLINT: moved-from containers are empty and usable
    CHECK((a.size() == 1 && a[0] == 3));
    std::vector<int, alloc> c{alloc(pool)};
    c = std::move(b);
    b.push_back(4);  // NOLINT
    CHECK(b.get_allocator() == c.get_allocator());
    std::list<int, alloc> d({1, 2, 3}, alloc(pool));
    auto e = std::move(d);
    d.push_back(5);  // NOLINT
    CHECK((d.size() == 1 && e.size() == 3));
  }
  CHECK(memory_allocated(pool) == 0);
}

TEST_CASE("stl_allocator deallocates each block with its original size and its element's alignment",
          "[interop][stl]") {
  struct alignas(512) wide {
    char bytes[512];
  };
  tarn_test::kept_memory memory;
  {
    std::vector<wide, stl_allocator<wide, tarn_test::kept_memory>> v(memory);
    for (int i = 0; i < 20; ++i) v.emplace_back();
    CHECK(is_aligned(v.data(), 512));
    v.shrink_to_fit();
    std::list<char, stl_allocator<char, tarn_test::kept_memory>> l({'a', 'b'}, memory);
    std::size_t narrow = 0;
    for (auto const& [p, block] : memory.kept().live) narrow += block.alignment == alignof(void*) ? 1 : 0;
    CHECK(narrow >= 2);  // a list node needs no more
  }
  CHECK(memory.balanced());
  CHECK(memory.kept().freed_sync == memory.kept().allocations);
}

TEST_CASE("stl_allocator leaves a container unchanged if its growth is refused", "[interop][stl]") {
  tarn_test::fail_each_step(
      [](tarn_test::kept_memory const& m) {
        return std::vector<int, stl_allocator<int, tarn_test::kept_memory>>({1, 2, 3}, m);
      },
      [](auto& v) { v.reserve(100); }, [](auto const& v) { CHECK((v.size() == 3 && v[2] == 3)); });
}
