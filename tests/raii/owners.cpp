// SPDX-License-Identifier: Apache-2.0
// The owners: stream, copy, device_buffer, device_ptr, pinned_buffer, device_guard.

#include <algorithm>
#include <numeric>
#include <vector>

#include "catch.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/raii/copy.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/raii/device_guard.hpp"
#include "tarn/raii/device_ptr.hpp"
#include "tarn/raii/pinned_buffer.hpp"
#include "tarn/raii/stream.hpp"
#include "tarn/report/stats.hpp"
#include "tarn/sim.hpp"

using namespace tarn;

namespace {
std::vector<int> counted(std::size_t n) {
  std::vector<int> v(n);
  std::iota(v.begin(), v.end(), 0);
  return v;
}
template <class Buffer>
std::vector<int> contents(Buffer const& b) {
  std::vector<int> v(b.size());
  b.copy_to_sync(v);
  return v;
}
}  // namespace

TEST_CASE("a buffer keeps its elements through copy, move, growth and shrinking",
          "[raii][device_buffer][copy]") {
  sim_pool pool;
  basic_stream stream{sim_driver{}};
  auto const host = counted(1000);
  {
    auto a = make_device_buffer<int>(pool, std::span<int const>(host), stream);
    CHECK(contents(a) == host);
    int* const place = a.data();
    a.resize(500);
    CHECK(a.data() == place);
    a.resize(1000);
    CHECK(a.data() == place);
    a.resize(5000);
    CHECK(a.size() == 5000);
    auto grown = contents(a);
    CHECK(std::equal(host.begin(), host.begin() + 500, grown.begin()));
    auto b = a;
    CHECK(b.data() != a.data());
    CHECK(contents(b) == grown);
    auto c = std::move(a);
    CHECK(a.empty());  // NOLINT: moved-from is empty
    CHECK(a.data() == nullptr);
    a.resize(3, stream);  // and ready for use
    CHECK(a.size() == 3);
    auto& self = c;
    c = std::move(self);
    CHECK(c.size() == 5000);
    auto const& same = c;
    c = same;
    CHECK(contents(c) == grown);
    c.resize(10);
    c.shrink_to_fit();
    CHECK(c.capacity() == 10);
    c.reserve(100);
    CHECK((c.size() == 10 && c.capacity() == 100));
    swap(b, c);
    CHECK(b.size() == 10);
    b.fill(std::byte{0});
    CHECK(contents(b) == std::vector<int>(10, 0));
  }
  CHECK(memory_allocated(pool) == 0);
}

TEST_CASE("a refused growth changes nothing", "[raii][device_buffer]") {
  auto memory = sim_pages{} | pooled{} | limited{1_MiB} | tracked{};
  auto a = make_device_buffer<char>(memory, 600_KiB, stream_ref{});
  char* const place = a.data();
  CHECK_THROWS_AS(a.resize(900_KiB), out_of_memory);
  CHECK((a.data() == place && a.size() == 600_KiB));
  CHECK_THROWS_AS((device_buffer<char, decltype(memory)>(a)), out_of_memory);
  using wide = device_buffer<double, decltype(memory)>;
  CHECK_THROWS_AS(wide(memory, ~std::size_t{0} / 4, stream_ref{}), length_error);
  CHECK_THROWS_AS(wide(memory, 1, stream_ref{}, 3), bad_alignment);
  a.clear();
  CHECK(memory_allocated(memory) == 0);
}

TEST_CASE("a buffer keeps its alignment, and zero elements own nothing", "[raii][device_buffer]") {
  sim_pool pool;
  device_buffer<int, sim_pool> a(pool, 100, stream_ref{}, 4096);
  CHECK(is_aligned(a.data(), 4096));
  auto b = a;
  CHECK(is_aligned(b.data(), 4096));
  a.resize(10000);
  CHECK(is_aligned(a.data(), 4096));
  auto empty = make_device_buffer<int>(pool, 0, stream_ref{});
  CHECK((empty.data() == nullptr && empty.empty()));
  auto copy = empty;
  CHECK(copy.empty());
  int* const p = b.release();
  CHECK(b.empty());
  pool.deallocate(stream_ref{}, p, 100 * sizeof(int), 4096);
}

TEST_CASE("a copy on another stream waits for the first and is waited for", "[raii][device_buffer][stream]") {
  sim_machine machine{sim_options{}};
  sim_driver const driver = machine.driver(0);
  sim_pool pool{sim_pages{driver}};
  basic_stream a{driver};
  basic_stream b{driver};
  auto const host = counted(100);
  auto first = make_device_buffer<int>(pool, std::span<int const>(host), a);
  REQUIRE(machine.launch(a, 1'000'000'000).ok());
  first.fill(std::byte{1});
  device_buffer<int, sim_pool> second(first, b);
  first.fill(std::byte{2});
  CHECK(contents(second) == std::vector<int>(100, 0x01010101));
  CHECK(contents(first) == std::vector<int>(100, 0x02020202));
}

TEST_CASE("spans of different sizes are not copied", "[raii][copy]") {
  sim_pool pool;
  auto a = make_device_buffer<int>(pool, 10, stream_ref{});
  std::vector<int> eleven(11);
  CHECK_THROWS_AS(a.copy_from(eleven), length_error);
  CHECK_THROWS_AS(a.copy_to(eleven), length_error);
}

TEST_CASE("device_ptr owns as unique_ptr does", "[raii][device_ptr]") {
  sim_pool pool;
  {
    auto one = make_device<double>(pool, stream_ref{});
    CHECK(one);
    CHECK(one.size() == 1);
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
  }
  CHECK(memory_allocated(pool) == 0);
}

TEST_CASE("a pinned buffer is a contiguous range", "[raii][pinned_buffer]") {
  auto memory = sim_pinned_host{} | pooled{} | tracked{};
  using buffer = pinned_buffer<int, decltype(memory)>;
  static_assert(std::contiguous_iterator<buffer::iterator>);
  {
    buffer a(memory, 100);
    CHECK(std::all_of(a.begin(), a.end(), [](int x) { return x == 0; }));
    std::iota(a.begin(), a.end(), 0);
    std::span<int> const view(a);
    CHECK(view.size() == 100);
    auto b = a;
    CHECK(std::equal(a.begin(), a.end(), b.begin(), b.end()));
    b.resize(200);
    CHECK((b[99] == 99 && b[199] == 0));
    b.resize(5);
    CHECK((b.size() == 5 && b[4] == 4));
    auto c = std::move(b);
    CHECK(b.empty());  // NOLINT: moved-from is empty
    auto& self = c;
    c = std::move(self);
    CHECK(c.size() == 5);
    buffer const zero(memory, 0);
    CHECK(zero.begin() == zero.end());
  }
  CHECK(memory_allocated(memory) == 0);
}

TEST_CASE("a device guard restores the device of before", "[raii][device_guard]") {
  using guard = basic_device_guard<sim_driver>;
  device_id now;
  {
    guard const outer{device_id{1}};
    {
      guard const inner{device_id{2}};
      (void)sim_driver::current_device(now);
      CHECK(now == device_id{2});
      CHECK(inner.before() == device_id{1});
    }
    (void)sim_driver::current_device(now);
    CHECK(now == device_id{1});
  }
  (void)sim_driver::current_device(now);
  CHECK(now == device_id{0});
  CHECK_THROWS_AS(guard{device_id{-1}}, cuda_error);
}

TEST_CASE("an owned stream knows its identity and may be moved", "[raii][stream]") {
  basic_stream a{sim_driver{}};
  CHECK(a.ref().id() != stream_ref::unknown_id);
  CHECK(identified(a.driver(), stream_ref::from(a.ref().handle())).id() == a.ref().id());
  auto const id = a.ref().id();
  basic_stream b = std::move(a);
  CHECK(b.ref().id() == id);
  b.synchronize();
}
