// SPDX-License-Identifier: Apache-2.0

#include "tarn/raii/pinned_buffer.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "raii/archetype.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/tracked.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/report/stats.hpp"
#include "tarn/sim.hpp"

using namespace tarn;
using tarn_test::bare_stream;
using tarn_test::fail_each_step;
using tarn_test::kept_memory;

namespace {

using kept_pinned = pinned_buffer<int, kept_memory>;

kept_pinned ten(kept_memory const& memory) {
  kept_pinned b(memory, 10, elements::uninitialised, bare_stream(1));
  std::iota(b.begin(), b.end(), 0);
  return b;
}
void is_still_ten(kept_pinned const& b) {
  CHECK((b.size() == 10 && b.capacity() == 10 && b.stream() == bare_stream(1)));
  for (int i = 0; i < 10; ++i) CHECK(b[static_cast<std::size_t>(i)] == i);
}

}  // namespace

TEST_CASE("pinned_buffer is a contiguous range", "[raii][pinned_buffer]") {
  auto memory = sim_pinned_host{} | pooled{} | tracked{};
  using buffer = pinned_buffer<int, decltype(memory)>;
  static_assert(std::contiguous_iterator<buffer::iterator>);
  static_assert(std::ranges::contiguous_range<buffer> && std::ranges::sized_range<buffer const>);
  static_assert(std::is_nothrow_move_constructible_v<buffer> && std::is_nothrow_swappable_v<buffer>);
  {
    buffer a(memory, 100);
    CHECK(std::ranges::all_of(a, [](int x) { return x == 0; }));
    std::iota(a.begin(), a.end(), 0);
    std::ranges::reverse(a);
    std::ranges::sort(a);
    std::span<int> const view(a);
    CHECK(view.size() == 100);
    CHECK(view[7] == 7);
    auto b = a;
    CHECK(std::ranges::equal(a, b));
    auto const& same = b;
    CHECK((same.begin() == b.data() && same.end() == b.data() + 100));
    auto c = std::move(b);
    CHECK(b.empty());  // NOLINT: moved-from is empty
    b.resize(2);       // a moved-from buffer is usable
    CHECK(b[1] == 0);
    auto& self = c;
    c = std::move(self);
    CHECK(std::ranges::equal(a, c));
    c = self;
    CHECK(std::ranges::equal(a, c));
    swap(b, c);
    CHECK((b.size() == 100 && c.size() == 2));
    buffer const zero(memory, 0);
    CHECK(zero.begin() == zero.end());
  }
  CHECK(memory_allocated(memory) == 0);
}

TEST_CASE("pinned_buffer shrinks in place and value-initializes new elements by default",
          "[raii][pinned_buffer]") {
  kept_memory memory;
  {
    auto b = ten(memory);
    int* const place = b.data();
    b.resize(5);
    CHECK(b.data() == place);
    CHECK((b.size() == 5 && b.capacity() == 10 && b.bytes() == 5 * sizeof(int)));
    b.resize(8);
    CHECK(b.data() == place);
    CHECK((b[4] == 4 && b[5] == 0 && b[7] == 0));
    b.resize(200);
    CHECK((b[4] == 4 && b[7] == 0 && b[199] == 0));
    b.resize(3);
    b.shrink_to_fit();
    CHECK((b.capacity() == 3 && b[2] == 2));
    b.resize(0);
    b.shrink_to_fit();
    CHECK(b.data() == nullptr);
    b.resize(6, elements::uninitialised);
    CHECK(b.size() == 6);
    int const* const kept = b.data();
    b.clear();
    CHECK((b.empty() && b.data() == kept && b.capacity() == 6));
    b.resize(2);
    CHECK((b.data() == kept && b[0] == 0 && b[1] == 0));
    b.reset();
    CHECK((b.empty() && b.data() == nullptr && b.capacity() == 0));
  }
  CHECK(memory.balanced());
}

TEST_CASE("pinned_buffer without a resource is empty and can be assigned later", "[raii][pinned_buffer]") {
  sim_machine const machine;
  auto memory = sim_pinned_host(machine.driver()) | pooled{};
  pinned_buffer<int, decltype(memory)> b;
  static_assert(std::is_nothrow_default_constructible_v<decltype(b)>);
  CHECK((b.empty() && b.data() == nullptr && b.begin() == b.end() && !b.resource()));
  b.clear();
  b.reset();
  b.resize(0);
  CHECK_THROWS_AS(b.resize(1), misuse);
  CHECK_THROWS_AS(b.set_stream(stream_ref{}), misuse);
  b = pinned_buffer<int, decltype(memory)>(memory, 3);
  b.resize(1000);
  CHECK((b.size() == 1000 && b[999] == 0));
  std::vector<pinned_buffer<int, sim_pinned_host>> const of_a_source(2);  // a source is a plain value
  CHECK(of_a_source[1].empty());
}

TEST_CASE("pinned_buffer is unchanged, whichever step of an operation fails", "[raii][pinned_buffer]") {
  fail_each_step([](kept_memory const& m) { return m; }, [](kept_memory& m) { (void)ten(m); },
                 [](kept_memory const&) {});
  fail_each_step(
      ten, [](kept_pinned& b) { kept_pinned const copied(b); }, is_still_ten);
  fail_each_step(
      ten, [](kept_pinned& b) { b.resize(20); }, is_still_ten);
  fail_each_step(
      ten, [](kept_pinned& b) { b.set_stream(bare_stream(2)); }, is_still_ten);
  fail_each_step([](kept_memory const& m) { return std::pair(ten(m), kept_pinned(m, 30)); },
                 [](auto& two) { two.first = two.second; }, [](auto const& two) { is_still_ten(two.first); });
  fail_each_step(
      [](kept_memory const& m) {
        kept_pinned b(m, 20, elements::value_initialised, bare_stream(1));
        b.resize(10);
        return b;
      },
      [](kept_pinned& b) { b.shrink_to_fit(); },
      [](kept_pinned const& b) { CHECK((b.size() == 10 && b.capacity() == 20)); });
}

TEST_CASE("pinned_buffer throws if the number of bytes overflows", "[raii][pinned_buffer]") {
  kept_memory memory;
  {
    auto b = ten(memory);
    CHECK_THROWS_AS(b.resize(~std::size_t{0} / 2), length_error);
    CHECK_THROWS_AS(kept_pinned(memory, ~std::size_t{0} / sizeof(int) + 2), length_error);
    is_still_ten(b);
  }
  CHECK(memory.balanced());
}

TEST_CASE("pinned_buffer memory is not reused by the host while a copy still runs",
          "[raii][pinned_buffer][stream]") {
  constexpr sim_nanoseconds second = 1'000'000'000;
  sim_machine const machine;
  auto memory = sim_pinned_host{machine.driver()} | pooled{};
  using buffer = pinned_buffer<int, decltype(memory)>;
  basic_stream const stream{machine.driver()};
  auto device = make_device_buffer<int>(sim_malloc{machine.driver()}, 1000, stream);
  {
    buffer host(memory, 1000, elements::uninitialised, stream);
    std::ranges::fill(host, 7);
    REQUIRE(machine.launch(stream, second).ok());
    device.copy_from(host);
  }
  buffer next(memory, 1000);  // the host writes to it immediately
  std::ranges::fill(next, 8);
  std::vector<int> seen(1000);
  device.copy_to_sync(seen);
  CHECK(seen == std::vector<int>(1000, 7));
}

TEST_CASE("pinned_buffer without a pool waits for its stream before it is freed",
          "[raii][pinned_buffer][stream]") {
  constexpr sim_nanoseconds second = 1'000'000'000;
  sim_machine const machine;
  basic_stream const stream{machine.driver()};
  std::optional host(pinned_buffer<int, sim_pinned_host>(sim_pinned_host{machine.driver()}, 10));
  host->set_stream(stream);
  REQUIRE(machine.launch(stream, second).ok());
  auto const start = machine.now();
  host.reset();
  CHECK(machine.now() - start >= second * 9 / 10);
}

TEST_CASE("pinned_buffer set_stream makes the new stream wait for copies on the old one",
          "[raii][pinned_buffer][stream]") {
  sim_options options;
  options.checks = sim_checks::stream_order;
  sim_machine const machine{options};
  basic_stream const a{machine.driver()};
  basic_stream const b{machine.driver()};
  pinned_buffer<int, sim_pinned_host> host(sim_pinned_host{machine.driver()}, 10, elements::value_initialised,
                                           a);
  REQUIRE(machine.launch(a, 1000).ok());
  CHECK_FALSE(machine.is_ordered(a, b));
  host.set_stream(b);
  CHECK(machine.is_ordered(a, b));
}

TEST_CASE("pinned_buffer frees on its stream and keeps its identity", "[raii][pinned_buffer][stream]") {
  kept_memory memory;
  { auto const b = ten(memory); }
  CHECK(memory.kept().freed_on == bare_stream(1));
  CHECK(memory.kept().freed_on.id() != stream_ref::unknown_id);  // a destroyed handle must not be queried
  {
    auto b = ten(memory);
    b.set_stream(bare_stream(2));
  }
  CHECK(memory.kept().freed_on.id() != stream_ref::unknown_id);
  CHECK(memory.balanced());
}

TEST_CASE("pinned_buffer is destroyed without a report after the driver has unloaded",
          "[raii][pinned_buffer]") {
  sim_machine const machine;
  {
    auto memory = sim_pinned_host{machine.driver()} | pooled{};
    pinned_buffer<int, decltype(memory)> const pooled_one(memory, 10);
    pinned_buffer<int, sim_pinned_host> const bare_one(sim_pinned_host{machine.driver()}, 10);
    machine.unload();
  }
  machine.repair();
  SUCCEED();
}

TEST_CASE("pinned_buffer frees its own elements on move assignment", "[raii][pinned_buffer]") {
  kept_memory memory;
  {
    auto a = ten(memory);
    auto b = kept_pinned(memory, 5, elements::uninitialised, bare_stream(2));
    b = std::move(a);
    is_still_ten(b);
    CHECK(a.empty());  // NOLINT: moved-from is empty
    CHECK(a.stream() == bare_stream(1));
  }
  CHECK(memory.balanced());
}

namespace {
/// Trivially copyable but not default-constructible.
struct of_a_value {
  explicit of_a_value(int v) : value(v) {}
  int value;
};
static_assert(std::is_trivially_copyable_v<of_a_value> && !std::is_default_constructible_v<of_a_value>);
}  // namespace

TEST_CASE("pinned_buffer holds elements without a default constructor", "[raii][pinned_buffer]") {
  kept_memory memory;
  std::vector<of_a_value> const from(5, of_a_value(3));
  using buffer = pinned_buffer<of_a_value, kept_memory>;
  buffer b(memory, std::span<of_a_value const>(from));
  b.resize(7, elements::uninitialised);
  b[6] = of_a_value(9);
  b.shrink_to_fit();
  buffer const copied = b;
  CHECK(copied.size() == 7);
  CHECK((copied[0].value == 3 && copied[4].value == 3 && copied[6].value == 9));
  buffer made(memory, 2, elements::uninitialised);
  CHECK(made.size() == 2);
  static_assert(!std::is_constructible_v<buffer, kept_memory, std::size_t>);
  static_assert(std::is_constructible_v<pinned_buffer<int, kept_memory>, kept_memory, std::size_t>);
}
