// SPDX-License-Identifier: Apache-2.0

#include "tarn/transfer/convert.hpp"

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "contract/convert_contract.hpp"
#include "contract/owners_reported.hpp"
#include "driver/faulty.hpp"
#include "raii/archetype.hpp"
#include "tarn/policy/accessible_from.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/raii/pinned_buffer.hpp"
#include "tarn/report/stats.hpp"
#include "tarn/sim.hpp"
#include "tarn/source/host_memory.hpp"

using namespace tarn;
using tarn_test::bare_stream;
using tarn_test::fail_each_step;
using tarn_test::kept_memory;

namespace {

constexpr sim_nanoseconds second = 1'000'000'000;

std::vector<float> tenths(std::size_t n) {
  std::vector<float> v(n);
  for (std::size_t i = 0; i < n; ++i) v[i] = static_cast<float>(i) / 10;
  return v;
}
/// tenths(), rounded to T and converted back to float.
template <class T>
std::vector<float> tenths_as(std::size_t n) {
  std::vector<float> v = tenths(n);
  for (float& x : v) x = static_cast<float>(T(x));
  return v;
}
template <class Buffer>
std::vector<float> as_floats(Buffer const& b) {
  std::vector<typename Buffer::value_type> v(b.size());
  b.copy_to_sync(v);
  std::vector<float> floats;
  for (auto const x : v) floats.push_back(static_cast<float>(x));
  return floats;
}
template <class Memory>
auto tenths_in(Memory memory, std::size_t n, stream_ref stream) {
  return make_device_buffer<float>(memory, std::span<float const>(tenths(n)), stream);
}

/// A machine on which streams and events complete late, depending on the seed.
sim_machine adversarial(std::uint64_t seed, int devices = 1) {
  sim_options o;
  o.devices = devices;
  o.checks = sim_checks::stream_order;
  o.seed = seed;
  o.jitter = 1'000'000;
  o.slow_streams = 500;
  o.late_events = 100'000;
  return sim_machine(o);
}

}  // namespace

TEST_CASE("convert between all pairs of element types gives the host's results on the simulated device",
          "[raii][convert]") {
  sim_machine const machine;
  basic_stream const stream{machine.driver()};
  tarn_test::every_pair_converts(sim_pool{sim_pages{machine.driver()}}, stream, 4000);
}

TEST_CASE("convert of host_memory runs synchronously", "[raii][convert]") {
  auto const pool = host_memory{} | pooled{};
  auto const full = tenths_in(pool, 1000, stream_ref{});
  auto const half = converted<float16>(full);
  CHECK(as_floats(half) == tenths_as<float16>(1000));
  CHECK(as_floats(converted<double>(half)) == tenths_as<float16>(1000));
  float const one = 1;
  CHECK(no_driver{}.convert(stream_ref{}, static_cast<float16*>(nullptr), &one, 1).kind == failure::other);
  CHECK(no_driver{}.convert(stream_ref{}, static_cast<float16*>(nullptr), &one, 0).ok());
}

TEST_CASE("convert writes only its target, at any alignment", "[raii][convert]") {
  sim_machine const machine;
  basic_stream const stream{machine.driver()};
  sim_pool const pool{sim_pages{machine.driver()}};
  tarn_test::every_alignment_converts<float16, float>(pool, stream);
}

TEST_CASE("converted to float16 halves the bytes of a buffer and rounds each element once",
          "[raii][convert]") {
  sim_machine const machine;
  basic_stream const stream{machine.driver()};
  sim_pool pool{sim_pages{machine.driver()}};
  auto const full = tenths_in(pool, 10'000, stream);
  auto const half = converted<float16>(pool, full, stream);
  static_assert(std::is_same_v<decltype(half)::value_type, float16>);
  CHECK(half.bytes() == full.bytes() / 2);
  auto const back = converted<float>(half);
  CHECK((as_floats(back) == tenths_as<float16>(10'000)));
  CHECK((as_floats(converted<float8_e5m2>(full, stream)) == tenths_as<float8_e5m2>(10'000)));
  auto same = make_device_buffer<float>(pool, 10'000, stream);
  tarn::convert(full, same);
  CHECK((as_floats(same) == tenths(10'000)));
}

TEST_CASE("convert is ordered after earlier and before later work of both buffers on any schedule",
          "[raii][convert][stream]") {
  for (std::uint64_t seed = 1; seed <= 24; ++seed) {
    INFO("seed " << seed);
    sim_machine const machine = adversarial(seed);
    {
      basic_stream const a{machine.driver()};
      basic_stream const b{machine.driver()};
      basic_stream const c{machine.driver()};
      auto pool = sim_pages{machine.driver()} | pooled{} | tarn_test::owners_reported{machine};
      auto const right = tenths_as<bfloat16>(5000);
      std::optional from(make_device_buffer<float>(pool, 5000, a));
      std::optional to(make_device_buffer<bfloat16>(pool, 5000, b));
      auto const late = tenths(5000);
      pinned_buffer<float, sim_pinned_host> pinned(sim_pinned_host{machine.driver()},
                                                   std::span<float const>(late), a);
      REQUIRE(machine.launch(a, seed % 2 == 0 ? second : 10).ok());
      from->copy_from(std::span<float const>(pinned));
      REQUIRE(machine.launch(b, seed % 3 == 0 ? second : 10).ok());
      to->zero();
      REQUIRE(machine.launch(c, seed % 5 == 0 ? second : 10).ok());
      tarn::convert(*from, *to, c);
      auto const copied = to->clone(b);  // on b, after the conversion
      from->zero();                      // on a, also after the conversion
      to->zero();
      CHECK((as_floats(copied) == right));
      // The memory is reused while the conversion may still run.
      from->copy_from(std::span<float const>(pinned));
      auto const again = converted<bfloat16>(pool, *from, c);
      from.reset();
      to.reset();
      auto others = make_device_buffer<float>(pool, 5000, a);
      others.zero();
      CHECK((as_floats(again) == right));
    }
    CHECK(machine.findings().empty());
    CHECK(machine.leaks().total() == 0);
  }
}

TEST_CASE("convert on one stream is one driver call", "[raii][convert][stream]") {
  sim_machine const machine;
  basic_stream const a{machine.driver()};
  sim_pool pool{sim_pages{machine.driver()}};
  auto const from = tenths_in(pool, 100, a);
  auto to = make_device_buffer<float16>(pool, 100, a);
  machine.reset_calls();
  tarn::convert(from, to, a);
  CHECK(machine.calls()[driver_call::convert] == 1);
  CHECK(machine.calls().acting() == 1);
  // Zero elements need no call.
  auto const none = make_device_buffer<float>(pool, 0, a);
  auto nothing = make_device_buffer<float16>(pool, 0, a);
  machine.reset_calls();
  tarn::convert(none, nothing);
  tarn::convert(machine.driver(), none.span(), nothing.span(), a);
  CHECK(machine.calls().acting() == 0);
}

TEST_CASE("convert takes the time of a copy of as many bytes", "[raii][convert]") {
  sim_options options;
  options.backing = sim_backing::address_only;
  sim_machine const machine{options};
  basic_stream const a{machine.driver()};
  sim_pool pool{sim_pages{machine.driver()}};
  std::size_t const n = 1'000'000'000;
  auto const from = make_device_buffer<float>(pool, n, a);
  auto to = make_device_buffer<float8_e4m3>(pool, n, a);
  auto const start = machine.now();
  tarn::convert(from, to);
  a.synchronize();
  auto const took = machine.now() - start;
  CHECK(took > 1'250'000);  // (4 + 1) GB read or written at 4,000 GB/s
  CHECK(took < 1'300'000);
}

TEST_CASE("convert refuses invalid arguments with a typed error and changes nothing", "[raii][convert]") {
  sim_options options;
  options.devices = 2;
  sim_machine const machine{options};
  basic_stream const a{machine.driver()};
  sim_pool pool{sim_pages{machine.driver()}};
  auto const from = tenths_in(pool, 10, a);
  auto to = make_device_buffer<float16>(pool, 11, a);
  to.zero();
  try {
    tarn::convert(from, to, a);
    FAIL("no exception was thrown");
  } catch (length_error const& error) {
    CHECK(std::string_view(error.what()).find("10 elements to a span of 11") != std::string_view::npos);
  }
  CHECK_THROWS_AS(tarn::convert(pool.driver(), from.span(), to.span(), a), length_error);
  // In place: threads would read what other threads have written.
  auto* const bytes = reinterpret_cast<float16*>(const_cast<float*>(from.data()));
  for (std::size_t const at : {std::size_t{0}, std::size_t{10}, std::size_t{19}}) {
    try {
      tarn::convert(pool.driver(), from.span(), std::span<float16>(bytes + at, 10), a);
      FAIL("no exception was thrown");
    } catch (misuse const& error) {
      CHECK(error.kind() == misuse_kind::overlap);
      CHECK(error.pointer() == bytes + at);
    }
  }
  auto elsewhere =
      make_device_buffer<float16>(sim_pool{sim_pages{machine.driver(device_id{1})}}, 10, stream_ref{});
  try {
    tarn::convert(from, elsewhere);
    FAIL("no exception was thrown");
  } catch (misuse const& error) {
    CHECK(error.kind() == misuse_kind::wrong_device);
    CHECK(std::string_view(error.what()).find("device 0") != std::string_view::npos);
    CHECK(std::string_view(error.what()).find("device 1") != std::string_view::npos);
  }
  CHECK(as_floats(from) == tenths(10));
  CHECK(as_floats(to) == std::vector<float>(11, 0.0F));
}

TEST_CASE("convert of pinned memory runs on the device that can access both buffers", "[raii][convert]") {
  sim_options options;
  options.devices = 2;
  sim_machine const machine{options};
  sim_driver const one = machine.driver(device_id{1});
  basic_stream const a{one};
  // The pinned memory has device 0's driver. Only device 1 can access its own pages.
  auto const host = tenths_in(sim_pinned_host{machine.driver()}, 100, stream_ref{});
  auto device = make_device_buffer<float16>(sim_pool{sim_pages{one}}, 100, a);
  tarn::convert(host, device);
  CHECK(as_floats(device) == tenths_as<float16>(100));
  auto back = make_device_buffer<float>(sim_pinned_host{machine.driver()}, 100, stream_ref{});
  tarn::convert(device, back, a);
  CHECK(as_floats(back) == tenths_as<float16>(100));
}

TEST_CASE(
    "convert into pinned memory runs on the device of its source and is ordered before later work on both "
    "streams",
    "[raii][convert][stream]") {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    sim_machine const machine = adversarial(seed, 2);
    {
      sim_driver const one = machine.driver(device_id{1});
      basic_stream const a{one};
      auto const device = tenths_in(sim_pool{sim_pages{one}}, 100, a);
      auto back = make_device_buffer<float16>(sim_pinned_host{machine.driver()}, 100, stream_ref{});
      REQUIRE(one.launch(a, 1'000'000'000).ok());  // virtual time
      tarn::convert(device, back);
      CHECK(as_floats(back) == tenths_as<float16>(100));
      REQUIRE(one.launch(a, 1'000'000'000).ok());
      auto const again = tarn::converted<float16>(sim_pinned_host{machine.driver()}, device, stream_ref{});
      CHECK(as_floats(again) == tenths_as<float16>(100));
    }
    INFO("seed " << seed);
    CHECK(machine.findings().empty());
    CHECK(machine.leaks().total() == 0);
  }
}

TEST_CASE("convert is ordered with streams of another device than its driver's",
          "[raii][convert][stream][pages]") {
  sim_machine const machine = adversarial(1, 2);
  sim_driver const zero = machine.driver(), one = machine.driver(device_id{1});
  basic_stream const created{one};
  for (stream_ref const s : {default_stream(one), created.ref()}) {
    auto const run = [&](auto memory) {
      auto const from = make_device_buffer<float>(memory, 100, s);
      auto to = make_device_buffer<float16>(memory, 100, s);
      std::vector<float> const values = tenths(100);
      REQUIRE(one.launch(s, second).ok());
      detail::must_succeed(one, one.copy(s, const_cast<float*>(from.data()), values.data(), 400));
      REQUIRE(one.launch(s, second, {sim_writes(from.data(), 400)},
                         [p = const_cast<float*>(from.data())] { p[0] = 5; })
                  .ok());
      tarn::convert(from, to);
      float first = 0;
      REQUIRE(one.launch(s, 1000, {sim_reads(to.data(), 200)}, [&] { first = float(to.data()[0]); }).ok());
      REQUIRE(one.synchronize_stream(s).ok());
      CHECK(first == 5);
    };
    run(basic_managed<sim_driver>{zero} | pooled{});
    run(sim_pages{zero} | accessible_from{device_id{1}} | pooled{});
  }
  // A bare default stream is the current device's where the host can access the memory.
  {
    basic_stream const of_buffers{zero};
    auto const from = make_device_buffer<float>(basic_managed<sim_driver>{zero} | pooled{}, 100, of_buffers);
    auto to = make_device_buffer<float16>(from.resource(), 100, of_buffers);
    REQUIRE(zero.synchronize_stream(of_buffers).ok());
    REQUIRE(sim_driver::set_current_device(device_id{1}).ok());
    auto* const values = const_cast<float*>(from.data());
    REQUIRE(
        one.launch(default_stream(one), second, {sim_writes(values, 400)}, [values] { values[0] = 5; }).ok());
    tarn::convert(from, to, stream_ref{});
    REQUIRE(sim_driver::set_current_device(device_id{0}).ok());
    float first = 0;
    REQUIRE(zero.launch(of_buffers, 1000, {sim_reads(to.data(), 200)}, [&] { first = float(to.data()[0]); })
                .ok());
    REQUIRE(zero.synchronize_stream(of_buffers).ok());
    CHECK(first == 5);
  }
  // The driver puts work on another device's default stream on that device.
  auto memory = basic_managed<sim_driver>{zero};
  auto* const p = static_cast<float*>(memory.allocate_sync(8));
  stream_ref const there = default_stream(one);
  REQUIRE((one.launch(there, second).ok() && zero.fill(there, p, 0, 4).ok()));
  REQUIRE(zero.convert(there, reinterpret_cast<float16*>(p + 1), p, 1).ok());
  CHECK(zero.fill(created, p, 0, 4).code == 400);
  CHECK(zero.convert(created, reinterpret_cast<float16*>(p + 1), p, 1).code == 400);
  sim_nanoseconds const before = machine.now();
  REQUIRE(one.synchronize_stream(there).ok());
  CHECK(machine.now() - before > second / 2);
  memory.deallocate_sync(p, 8);
  CHECK(machine.findings().empty());
}

TEST_CASE("convert on a device that cannot access the memory breaks the device, as a kernel would",
          "[raii][convert][pages]") {
  sim_options options;
  options.devices = 2;
  sim_machine const machine{options};
  auto const from = tenths_in(sim_pool{sim_pages{machine.driver()}}, 10, stream_ref{});
  sim_driver const one = machine.driver(device_id{1});
  auto to = make_device_buffer<float16>(sim_pool{sim_pages{one}}, 10, stream_ref{});
  CHECK(one.convert(stream_ref{}, to.data(), from.data(), 10).ok());
  CHECK(one.synchronize_device().code == 700);
  machine.repair();
  std::vector<float> pageable(10);
  CHECK(one.convert(stream_ref{}, to.data(), pageable.data(), 10).ok());
  CHECK(one.synchronize_device().code == 700);
  machine.repair();
}

TEST_CASE("convert and converted leak nothing, whichever step fails", "[raii][convert]") {
  fail_each_step([](kept_memory const& m) { return tenths_in(m, 10, bare_stream(1)); },
                 [](auto& from) {
                   auto const half = converted<float16>(from.resource(), from, bare_stream(2));
                   auto const seen = as_floats(half);
                   CHECK(seen == tenths_as<float16>(10));
                 },
                 [](auto const& from) { CHECK(as_floats(from) == tenths(10)); });
  fail_each_step(
      [](kept_memory const& m) {
        return std::pair(tenths_in(m, 10, bare_stream(1)),
                         make_device_buffer<float8_e4m3>(m, 10, bare_stream(2)));
      },
      [](auto& both) { tarn::convert(both.first, both.second, bare_stream(3)); },
      [](auto const& both) { CHECK(as_floats(both.first) == tenths(10)); });
}

TEST_CASE("convert synchronizes the host if a buffer's stream cannot be made to wait", "[raii][convert]") {
  kept_memory const memory;
  auto const from = tenths_in(memory, 10, bare_stream(1));
  auto to = make_device_buffer<float16>(memory, 10, bare_stream(2));
  auto const& plan = memory.driver().plan();
  for (std::uint64_t const which : {3U, 4U}) {  // two waits before the conversion, two after it
    plan.reset();
    plan.fail(driver_call::wait_event, which);
    CHECK_THROWS_AS(tarn::convert(from, to, bare_stream(3)), cuda_error);
    CHECK(plan.calls(driver_call::convert) == 1);
    CHECK(plan.calls(driver_call::synchronize_stream) == 1);
  }
  plan.reset();
}

TEST_CASE("convert and converted refuse buffers without a resource", "[raii][convert]") {
  sim_machine const machine;
  sim_pool const pool{sim_pages{machine.driver()}};
  basic_stream const stream(machine.driver());
  device_buffer<float, sim_pool> none;
  device_buffer<float16, sim_pool> no_halves;
  device_buffer<float, sim_pool> empty(pool, stream);
  device_buffer<float16, sim_pool> no_elements(pool, stream);
  CHECK_THROWS_AS(convert(none, no_halves), misuse);
  CHECK_THROWS_AS(convert(none, no_elements), misuse);
  CHECK_THROWS_AS(convert(none, no_elements, stream), misuse);
  CHECK_THROWS_AS(convert(empty, no_halves, stream), misuse);
  CHECK_THROWS_AS(converted<float16>(none), misuse);
}
