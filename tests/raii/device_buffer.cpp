// SPDX-License-Identifier: Apache-2.0

#include "tarn/raii/device_buffer.hpp"
#include "tarn/raii/device_ptr.hpp"
#include "tarn/raii/pinned_buffer.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "driver/faulty.hpp"
#include "raii/archetype.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/report/stats.hpp"
#include "tarn/sim.hpp"

using namespace tarn;
using tarn_test::bare_stream;
using tarn_test::fail_each_step;
using tarn_test::kept_memory;

namespace {

constexpr sim_nanoseconds second = 1'000'000'000;

std::vector<int> counted(std::size_t n) {
  std::vector<int> v(n);
  std::iota(v.begin(), v.end(), 0);
  return v;
}
template <class Buffer>
std::vector<int> values_in(Buffer const& b) {
  std::vector<int> v(b.size());
  b.copy_to_sync(v);
  return v;
}

using kept_buffer = device_buffer<int, kept_memory>;

/// Ten counted elements with capacity ten on stream 1, and the check that a failed operation left them
/// unchanged.
kept_buffer ten(kept_memory const& memory) {
  return make_device_buffer<int>(memory, counted(10), bare_stream(1));
}
void is_still_ten(kept_buffer const& b) {
  CHECK(values_in(b) == counted(10));
  CHECK(b.capacity() == 10);
  CHECK(b.stream() == bare_stream(1));
}

sim_options checked(int devices = 1) {
  sim_options options;
  options.checks = sim_checks::stream_order;
  options.devices = devices;
  return options;
}

}  // namespace

TEST_CASE("device_buffer keeps its elements through copy, move, growth and shrinking",
          "[raii][device_buffer][copy]") {
  sim_pool pool;
  basic_stream stream{sim_driver{}};
  auto const host = counted(1000);
  {
    auto a = make_device_buffer<int>(pool, host, stream);
    CHECK(values_in(a) == host);
    int* const place = a.data();
    a.resize(500);
    CHECK(a.data() == place);
    a.resize(1000);
    CHECK(a.data() == place);
    a.resize(5000);
    CHECK(a.size() == 5000);
    auto grown = values_in(a);
    CHECK(std::equal(host.begin(), host.begin() + 500, grown.begin()));
    auto b = a.clone(a.stream());
    CHECK(b.data() != a.data());
    CHECK(values_in(b) == grown);
    auto c = std::move(a);
    CHECK(a.empty());  // NOLINT: moved-from is empty
    CHECK(a.data() == nullptr);
    a.resize(3, stream);  // a moved-from buffer is usable
    CHECK(a.size() == 3);
    auto& self = c;
    c = std::move(self);
    CHECK(c.size() == 5000);
    c.resize(10);
    c.shrink_to_fit();
    CHECK(c.capacity() == 10);
    c.reserve(100);
    CHECK((c.size() == 10 && c.capacity() == 100));
    swap(b, c);
    CHECK(b.size() == 10);
    b.fill(std::byte{7});
    CHECK(values_in(b) == std::vector<int>(10, 0x07070707));
    b.zero();
    CHECK(values_in(b) == std::vector<int>(10, 0));
  }
  CHECK(memory_allocated(pool) == 0);
}

TEST_CASE("device_buffer deallocates every block once, with its original size", "[raii][device_buffer]") {
  kept_memory memory;
  {
    auto a = ten(memory);
    a.resize(3);  // the block is still deallocated with capacity ten
    auto b = a.clone(a.stream());
    b.resize(20);
    b = a.clone(a.stream());
    b = std::move(a);
    a.resize(5);
    a.shrink_to_fit();
    a.resize(0);
    a.shrink_to_fit();
    CHECK(a.data() == nullptr);
    b.reset();
    b.resize(4);
    b.resize(4, bare_stream(2));
    std::size_t const count = b.capacity();
    std::size_t const alignment = b.alignment();
    int* const p = b.release();
    CHECK((b.empty() && b.data() == nullptr && b.capacity() == 0));
    memory.deallocate({}, p, count * sizeof(int), alignment);
  }
  CHECK(memory.balanced());
}

TEST_CASE("device_buffer keeps its alignment, and owns no block for zero elements", "[raii][device_buffer]") {
  kept_memory memory;
  {
    kept_buffer a(memory, 100, stream_ref{}, 4096);
    CHECK(is_aligned(a.data(), 4096));
    auto b = a.clone(a.stream());
    CHECK(b.alignment() == 4096);
    CHECK(is_aligned(b.data(), 4096));
    auto c = std::move(b);
    CHECK(c.alignment() == 4096);
    c.resize(10'000);
    CHECK(is_aligned(c.data(), 4096));
    kept_buffer d(memory);
    d = c.clone(c.stream());
    CHECK(is_aligned(d.data(), 4096));
    auto const allocations = memory.kept().allocations;
    auto empty = make_device_buffer<int>(memory, 0, stream_ref{});
    CHECK((empty.data() == nullptr && empty.empty() && empty.bytes() == 0));
    auto copy = empty.clone(empty.stream());
    CHECK(copy.empty());
    copy.copy_from(empty);
    copy.zero();
    copy.shrink_to_fit();
    copy.set_stream(bare_stream(3));
    CHECK(memory.kept().allocations == allocations);
    CHECK_THROWS_AS(kept_buffer(memory, 1, stream_ref{}, 3), bad_alignment);
    CHECK_THROWS_AS(kept_buffer(memory, 1, stream_ref{}, 2 * max_alignment), bad_alignment);
  }
  CHECK(memory.balanced());
}

TEST_CASE("device_buffer throws if the number of bytes overflows", "[raii][device_buffer]") {
  kept_memory memory;
  {
    auto a = ten(memory);
    for (std::size_t const count :
         {~std::size_t{0}, ~std::size_t{0} / sizeof(int) + 2, max_request_bytes / sizeof(int) + 1}) {
      CHECK_THROWS_AS(make_device_buffer<int>(memory, count, stream_ref{}), length_error);
      CHECK_THROWS_AS(a.resize(count), length_error);
      CHECK_THROWS_AS(a.reserve(count), length_error);
    }
    is_still_ten(a);
  }
  CHECK(memory.balanced());
}

TEST_CASE("device_buffer is unchanged if growth is refused", "[raii][device_buffer]") {
  auto memory = sim_pages{} | pooled{} | limited{1_MiB} | tracked{};
  {
    auto a = make_device_buffer<char>(memory, 600_KiB, stream_ref{});
    char* const place = a.data();
    CHECK_THROWS_AS(a.resize(900_KiB), out_of_memory);
    CHECK((a.data() == place && a.size() == 600_KiB));
    CHECK_THROWS_AS(a.clone(a.stream()), out_of_memory);
    CHECK(memory_allocated(memory) <= 1_MiB);
  }
  CHECK(memory_allocated(memory) == 0);
}

TEST_CASE("make_device_buffer leaks nothing, whichever step fails", "[raii][device_buffer]") {
  fail_each_step([](kept_memory const& m) { return m; }, [](kept_memory& m) { (void)ten(m); },
                 [](kept_memory const&) {});
  fail_each_step(
      ten, [](kept_buffer& b) { auto const copied = b.clone(b.stream()); }, is_still_ten);
  fail_each_step(
      ten, [](kept_buffer& b) { auto const copied = b.clone(bare_stream(2)); }, is_still_ten);
}

TEST_CASE("device_buffer is unchanged, whichever step of an operation fails", "[raii][device_buffer]") {
  fail_each_step(
      ten, [](kept_buffer& b) { b.resize(20); }, is_still_ten);
  fail_each_step(
      ten, [](kept_buffer& b) { b.resize(20, bare_stream(2)); }, is_still_ten);
  fail_each_step(
      ten, [](kept_buffer& b) { b.resize(5, bare_stream(2)); }, is_still_ten);
  fail_each_step(
      ten, [](kept_buffer& b) { b.reserve(20, bare_stream(2)); }, is_still_ten);
  fail_each_step(
      ten, [](kept_buffer& b) { b.set_stream(bare_stream(2)); }, is_still_ten);
  fail_each_step(
      ten, [](kept_buffer& b) { b.copy_from(counted(10)); }, is_still_ten);
  fail_each_step(
      ten, [](kept_buffer& b) { b.zero(); }, is_still_ten);
  fail_each_step(
      [](kept_memory const& m) {
        auto b = make_device_buffer<int>(m, counted(20), bare_stream(1));
        b.resize(10);
        return b;
      },
      [](kept_buffer& b) { b.shrink_to_fit(bare_stream(2)); },
      [](kept_buffer const& b) {
        CHECK(values_in(b) == counted(10));
        CHECK(b.capacity() == 20);
        CHECK(b.stream() == bare_stream(1));
      });
  fail_each_step(
      [](kept_memory const& m) { return std::pair(ten(m), make_device_buffer<int>(m, 30, bare_stream(2))); },
      [](auto& two) { two.first = two.second.clone(two.second.stream()); },
      [](auto const& two) { is_still_ten(two.first); });
}

TEST_CASE("device_buffer synchronizes the host if the source's stream cannot be made to wait for a copy",
          "[raii][device_buffer]") {
  kept_memory memory;
  auto const a = ten(memory);
  auto const& plan = memory.driver().plan();
  plan.reset();
  plan.fail(driver_call::wait_event, 2);
  CHECK_THROWS_AS(a.clone(bare_stream(2)), cuda_error);
  CHECK(plan.calls(driver_call::synchronize_stream) == 1);
}

#ifndef _GLIBCXX_DEBUG  // libstdc++'s debug mode aborts on such a span
TEST_CASE("make_device_buffer from a null span throws and frees its block", "[raii][device_buffer]") {
  kept_memory memory;
  std::span<int const> const nowhere(static_cast<int const*>(nullptr), 5);
  CHECK_THROWS_AS(make_device_buffer<int>(memory, nowhere, stream_ref{}), cuda_error);
  CHECK(memory.balanced());
  sim_pool pool;
  CHECK_THROWS_AS(make_device_buffer<int>(pool, nowhere, stream_ref{}), cuda_error);
  CHECK(memory_allocated(pool) == 0);
}
#endif

TEST_CASE("device_buffer refuses to copy from or to a different number of elements",
          "[raii][device_buffer][copy]") {
  sim_pool pool;
  auto a = make_device_buffer<int>(pool, 10, stream_ref{});
  auto const b = make_device_buffer<int>(pool, 11, stream_ref{});
  std::vector<int> eleven(11);
  CHECK_THROWS_AS(a.copy_from(eleven), length_error);
  CHECK_THROWS_AS(a.copy_to(eleven), length_error);
  CHECK_THROWS_AS(a.copy_to_sync(eleven), length_error);
  CHECK_THROWS_AS(a.copy_from(b), length_error);
}

TEST_CASE("device_buffer keeps negative zero and NaN payloads", "[raii][device_buffer][copy]") {
  sim_pool pool;
  std::vector<double> const from{-0.0, __builtin_nan("0x123"), 1e-310};
  std::vector<double> to(3);
  auto const b = make_device_buffer<double>(pool, from, stream_ref{});
  auto const c = b.clone(b.stream());
  c.copy_to_sync(to);
  CHECK(std::memcmp(to.data(), from.data(), 3 * sizeof(double)) == 0);
}

TEST_CASE("device_buffer copied on another stream is ordered on both streams",
          "[raii][device_buffer][stream]") {
  sim_machine const machine{checked()};
  sim_pool pool{sim_pages{machine.driver()}};
  basic_stream const a{machine.driver()};
  basic_stream const b{machine.driver()};
  auto first = make_device_buffer<int>(pool, counted(100), a);
  REQUIRE(machine.launch(a, second).ok());
  auto const start = machine.now();
  first.fill(std::byte{1});
  auto other = first.clone(b);
  first.fill(std::byte{2});
  other.copy_from(first);
  first.zero();
  CHECK(machine.now() - start < second / 2);  // the host did not wait
  CHECK(values_in(other) == std::vector<int>(100, 0x02020202));
  CHECK(values_in(first) == std::vector<int>(100, 0));
  CHECK(machine.findings().empty());
}

TEST_CASE("device_buffer can be freed directly after it is copied on another stream",
          "[raii][device_buffer][stream]") {
  sim_machine const machine{checked()};
  sim_pool pool{sim_pages{machine.driver()}};
  basic_stream const a{machine.driver()};
  basic_stream const b{machine.driver()};
  std::optional first(make_device_buffer<int>(pool, counted(100), a));
  REQUIRE(machine.launch(b, second).ok());
  auto const other = first->clone(b);
  first.reset();
  auto reused = make_device_buffer<int>(pool, 100, a);
  reused.zero();
  CHECK(values_in(other) == counted(100));
  CHECK(machine.findings().empty());
}

TEST_CASE("device_buffer resize on another stream waits for the old stream, and frees after the copy",
          "[raii][device_buffer][stream]") {
  sim_machine const machine{checked()};
  sim_pool pool{sim_pages{machine.driver()}};
  basic_stream const a{machine.driver()};
  basic_stream const b{machine.driver()};
  auto buffer = make_device_buffer<int>(pool, 100, a);
  REQUIRE(machine.launch(a, second).ok());
  buffer.fill(std::byte{1});
  int* const place = buffer.data();
  buffer.resize(50, b);
  CHECK(buffer.stream() == b);
  buffer.fill(std::byte{2});
  CHECK(buffer.data() == place);
  buffer.resize(5000, a);
  auto next = make_device_buffer<int>(pool, 100, b);
  next.fill(std::byte{3});
  buffer.resize(50);
  CHECK(values_in(buffer) == std::vector<int>(50, 0x02020202));
  CHECK(machine.findings().empty());
}

TEST_CASE("device_buffer copies between devices are ordered on both devices",
          "[raii][device_buffer][stream][pages]") {
  sim_machine const machine{checked(2)};
  sim_driver const zero = machine.driver(device_id{0});
  sim_driver const one = machine.driver(device_id{1});
  basic_stream const a{zero};
  basic_stream const b{one};
  auto from = make_device_buffer<int>(sim_pool{sim_pages{zero}}, counted(100), a);
  auto to = make_device_buffer<int>(sim_malloc{one}, 100, b);
  REQUIRE(machine.launch(a, second).ok());
  from.fill(std::byte{4});
  to.copy_from(from);
  from.zero();
  CHECK(values_in(to) == std::vector<int>(100, 0x04040404));
  CHECK(machine.findings().empty());
  // Only its own device can read the pages, so that device copies them to pinned memory.
  auto host = make_device_buffer<int>(sim_pinned_host{one}, 100, b);
  from.fill(std::byte{5});
  host.copy_from(from);
  from.zero();
  CHECK(values_in(host) == std::vector<int>(100, 0x05050505));
  CHECK_FALSE(one.copy(b, host.data(), from.data(), 400).ok());
  CHECK(machine.findings().empty());
  // The default streams of two devices have the same handle but are different streams.
  auto left = make_device_buffer<int>(sim_malloc{zero}, counted(10), stream_ref{});
  auto right = make_device_buffer<int>(sim_malloc{one}, 10, stream_ref{});
  CHECK(left.stream().id() != right.stream().id());
  right.copy_from(left);
  CHECK(values_in(right) == counted(10));
}

TEST_CASE("device_buffer uses no events on a single stream", "[raii][device_buffer][stream]") {
  sim_machine const machine;
  sim_pool pool{sim_pages{machine.driver()}};
  basic_stream const a{machine.driver()};
  auto buffer = make_device_buffer<int>(pool, 100, a);
  machine.reset_calls();
  auto copied = buffer.clone(buffer.stream());
  copied.resize(1000);
  copied.set_stream(a);
  buffer = copied.clone(copied.stream());
  CHECK(machine.calls()[driver_call::record_event] == 0);
  CHECK(machine.calls()[driver_call::wait_event] == 0);
  CHECK(machine.calls()[driver_call::synchronize_stream] == 0);
}

TEST_CASE("device_buffer frees on its stream, also if the stream was destroyed",
          "[raii][device_buffer][stream]") {
  kept_memory memory;
  { auto const b = ten(memory); }
  CHECK(memory.kept().freed_on == bare_stream(1));
  {
    auto b = ten(memory);
    b.resize(100, bare_stream(2));
    CHECK(memory.kept().freed_on == bare_stream(2));  // the old block is freed after the copy
    CHECK(memory.kept().freed_on.id() != stream_ref::unknown_id);
    b.set_stream(bare_stream(3));
  }
  CHECK(memory.kept().freed_on == bare_stream(3));
  CHECK(memory.kept().freed_on.id() != stream_ref::unknown_id);  // a destroyed handle must not be queried
  sim_machine const machine;
  {
    sim_pool pool{sim_pages{machine.driver()}};
    std::optional stream(basic_stream(machine.driver()));
    auto b = make_device_buffer<int>(pool, 100, stream_ref::from(stream->ref().handle()));
    stream.reset();
    machine.reset_calls();
    b.reset();
    CHECK(machine.calls()[driver_call::identify] == 0);
  }
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("device_buffer::clear keeps the memory, device_buffer::reset frees it", "[raii][device_buffer]") {
  sim_machine const machine;
  sim_pool const pool{sim_pages{machine.driver()}};
  auto b = make_device_buffer<int>(pool, counted(1000), stream_ref{});
  int const* const place = b.data();
  std::size_t const held = memory_allocated(pool);
  b.clear();
  CHECK((b.empty() && b.bytes() == 0 && b.span().empty()));
  CHECK((b.data() == place && b.capacity() == 1000));
  CHECK(memory_allocated(pool) == held);
  CHECK(b.clone(stream_ref{}).capacity() == 0);
  b.copy_from(std::span<int const>{});
  b.zero();
  b.resize(500);
  CHECK(b.data() == place);
  b.clear();
  b.shrink_to_fit();
  CHECK((b.data() == nullptr && b.capacity() == 0));
  CHECK(memory_allocated(pool) == 0);
  b.resize(10);
  b.reset();
  CHECK((b.empty() && b.data() == nullptr && b.capacity() == 0));
  CHECK(memory_allocated(pool) == 0);
  b.clear();
  b.reset();
  CHECK(machine.findings().empty());
}

TEST_CASE("device_buffer without a resource is empty and can be assigned later", "[raii][device_buffer]") {
  using buffer = device_buffer<int, sim_pool>;
  static_assert(std::is_nothrow_default_constructible_v<buffer>);
  sim_pool const pool;
  {
    buffer b;
    CHECK((b.empty() && b.data() == nullptr && b.capacity() == 0 && b.alignment() == default_alignment));
    CHECK_FALSE(b.resource());
    b.clear();
    b.reset();
    b.zero();
    b.record_stream(bare_stream(1));
    buffer moved(std::move(b));
    b = std::move(moved);
    stream_ref const known = stream_ref::from(nullptr, 7);
    auto const refused = [](auto const& act) {
      try {
        act();
      } catch (misuse const& error) {
        return error.kind() == misuse_kind::no_resource && error.where().line != 0;
      }
      return false;
    };
    CHECK(refused([&] { b.resize(1); }));
    CHECK(refused([&] { b.resize(1, known); }));
    CHECK(refused([&] { b.reserve(1); }));
    CHECK(refused([&] { (void)b.clone(stream_ref{}); }));
    CHECK(refused([&] { b.copy_from(std::span<int const>{}); }));
    CHECK(refused([&] { b.copy_to(std::span<int>{}); }));
    CHECK(refused([&] { b.set_stream(stream_ref{}); }));
    CHECK(refused([&] { (void)make_device<int>(b.resource(), known); }));
    CHECK(refused([&] { (void)make_device<int[]>(b.resource(), 1, known); }));
    CHECK(refused([&] { (void)device_buffer<int, sim_pool>(sim_pool(nullptr), 1, known); }));
    CHECK(b.empty());
    b = make_device_buffer<int>(pool, counted(10), stream_ref{});
    CHECK(values_in(b) == counted(10));
    std::vector<buffer> several(3);
    several[1] = std::move(b);
    several.resize(5);
    CHECK(values_in(several[1]) == counted(10));
    several[1] = {};
    CHECK(memory_allocated(pool) == 0);
  }
  device_buffer<int, kept_memory> const of_a_source;  // a source is a plain value
  CHECK(of_a_source.empty());
}

TEST_CASE("device_buffer keeps its pool alive", "[raii][device_buffer]") {
  sim_machine const machine;
  {
    std::optional pool(sim_pool{sim_pages{machine.driver()}});
    auto b = make_device_buffer<int>(*pool, counted(10), stream_ref{});
    pool.reset();
    CHECK(values_in(b) == counted(10));
    b.resize(100);
  }
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("device_buffer is destroyed without a report after the driver has unloaded",
          "[raii][device_buffer][memory_pools]") {
  sim_machine const machine;
  {
    auto const pooled_one = make_device_buffer<int>(sim_pool{sim_pages{machine.driver()}}, 10, stream_ref{});
    auto const bare_one = make_device_buffer<int>(sim_malloc{machine.driver()}, 10, stream_ref{});
    auto const async_one = make_device_buffer<int>(sim_async{machine.driver()}, 10, stream_ref{});
    machine.unload();
    CHECK_THROWS_AS(pooled_one.clone(pooled_one.stream()), std::exception);
  }
  machine.repair();
}

TEST_CASE("device_buffer is copied by clone() alone, and record_stream() needs a pool",
          "[raii][device_buffer]") {
  using bare = device_buffer<int, decltype(sim_malloc{} | tracked{})>;
  using pooled_buffer = device_buffer<int, sim_pool>;
  STATIC_REQUIRE(!std::is_copy_constructible_v<pooled_buffer>);
  STATIC_REQUIRE(!std::is_copy_assignable_v<pooled_buffer>);
  auto const records = [](auto& buffer) { return requires { buffer.record_stream(stream_ref{}); }; };
  bare unpooled(sim_malloc{} | tracked{});
  pooled_buffer pooled(sim_pool{});
  CHECK(!records(unpooled));
  CHECK(records(pooled));
  pooled.record_stream(stream_ref{});  // an empty buffer has nothing to record
}

TEST_CASE("record_stream of each owner holds its block back until the stream has passed",
          "[raii][device_buffer][device_ptr][pinned_buffer][record_stream]") {
  auto const try_on = [](auto const& source, auto const& make) {
    sim_machine const machine;
    auto pool = source(machine) | pooled{} | tracked{};
    basic_stream const a{machine.driver()};
    basic_stream const b{machine.driver()};
    std::optional used(make(pool, a));
    REQUIRE(machine.launch(b, second).ok());
    used->record_stream(b);
    used.reset();
    CHECK(pool->upstream()->state().deferred_blocks == 1);
    REQUIRE(machine.driver().synchronize_stream(b).ok());
    pool.empty_cache();
    CHECK(pool->upstream()->state().deferred_blocks == 0);
  };
  auto const pages = [](sim_machine const& machine) { return sim_pages{machine.driver()}; };
  auto const pinned = [](sim_machine const& machine) { return sim_pinned_host{machine.driver()}; };
  try_on(pages, [](auto& pool, stream_ref s) { return make_device_buffer<int>(pool, 1000, s); });
  try_on(pages, [](auto& pool, stream_ref s) { return make_device<int const[]>(pool, 1000, s); });
  try_on(pinned, [](auto& pool, stream_ref s) {
    return pinned_buffer<int, std::remove_cvref_t<decltype(pool)>>(pool, 1000, elements::uninitialised, s);
  });
}

TEST_CASE("device_buffer moves without throwing, and its resource can be deduced", "[raii][device_buffer]") {
  static_assert(std::is_nothrow_move_constructible_v<kept_buffer>);
  static_assert(std::is_nothrow_move_assignable_v<kept_buffer>);
  static_assert(std::is_nothrow_swappable_v<kept_buffer>);
  kept_memory memory;
  std::vector<int> const host = counted(4);
  device_buffer const deduced(memory, std::span<int const>(host), stream_ref{});
  static_assert(std::is_same_v<decltype(deduced), kept_buffer const>);
  CHECK(values_in(deduced) == host);
}

TEST_CASE("device_buffer reserve within capacity changes the stream without a new block",
          "[raii][device_buffer][stream]") {
  sim_machine const machine{checked(1)};
  basic_stream const a{machine.driver()};
  basic_stream const b{machine.driver()};
  auto buffer = make_device_buffer<int>(sim_pool{sim_pages{machine.driver()}}, counted(100), a);
  int const* const data = buffer.data();
  REQUIRE(machine.launch(a, second).ok());
  buffer.reserve(50, b);
  CHECK(buffer.data() == data);
  CHECK(buffer.stream() == stream_ref(b));
  CHECK(machine.is_ordered(a, b));
  CHECK(values_in(buffer) == counted(100));
}

TEST_CASE("device_buffer in pinned memory synchronizes the host if it cannot wait for another device's copy",
          "[raii][device_buffer][stream]") {
  sim_machine const machine{checked(2)};
  fault_plan const plan;
  using faulty_driver = faulty<sim_driver>;
  auto from = make_device_buffer<int>(
      basic_pages<faulty_driver>(faulty_driver(machine.driver(device_id{0}), plan)) | pooled{}, counted(10),
      stream_ref{});
  auto to =
      make_device_buffer<int>(basic_pinned<faulty_driver>(faulty_driver(machine.driver(device_id{1}), plan)),
                              10, default_stream(machine.driver(device_id{1})));
  bool const synchronizes = GENERATE(true, false);
  REQUIRE(machine.driver(device_id{0}).launch(stream_ref{}, 1'000'000'000).ok());
  plan.reset();
  plan.fail(driver_call::wait_event, 3);  // the copy has waited for both devices
  if (!synchronizes) plan.fail(driver_call::synchronize_stream, 1);
  CHECK_THROWS_AS(to.copy_from(from), cuda_error);
  CHECK(plan.calls(driver_call::synchronize_stream) == 1);
  CHECK(machine.pending() == 0);  // else the copy may still read memory that has its next user
  CHECK(machine.findings().empty());
}
