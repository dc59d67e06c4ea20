// SPDX-License-Identifier: Apache-2.0
// prefetch() and advise() of managed memory.
#include "tarn/source/managed.hpp"

#include <span>
#include <vector>

#include "catch.hpp"
#include "driver/faulty.hpp"
#include "tarn/policy/fallback_to.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/raii/device_ptr.hpp"
#include "tarn/sim.hpp"

using namespace tarn;

namespace {
sim_options two_devices() {
  sim_options o;
  o.devices = 2;
  o.capacity = 1_GiB;
  o.checks = sim_checks::stream_order;
  return o;
}
struct device {
  sim_machine machine{two_devices()};
  sim_driver driver = machine.driver(0);
  basic_stream<sim_driver> stream{driver};

  [[nodiscard]] device_id location(void const* p) const { return machine.managed_page(p).prefetched_to; }
};
template <class F>
failure kind_of_failure(F const& call) {
  try {
    call();
  } catch (cuda_error const& e) {
    return e.kind();
  }
  return failure::none;
}
}  // namespace

TEST_CASE("prefetch moves whole pages of managed memory to a device or the host", "[source][managed]") {
  device d;
  auto pool = sim_managed{d.driver} | pooled{};
  auto buffer = make_device_buffer<char>(pool, 1_MiB, d.stream);
  CHECK(d.location(buffer.data()) == sim_managed_page::nowhere);
  prefetch(buffer, 1, d.stream);
  CHECK(d.location(buffer.data()) == 1);
  CHECK(d.location(buffer.data() + 1_MiB - 1) == 1);
  prefetch(d.driver, std::span(buffer.data() + 300_KiB, 1), host_id, d.stream);
  CHECK(d.location(buffer.data() + 300_KiB) == host_id);
  CHECK(d.location(buffer.data() + 304_KiB - 1) == host_id);
  CHECK(d.location(buffer.data() + 304_KiB) == 1);
  CHECK(d.location(buffer.data() + 300_KiB - 1) == 1);
  CHECK(d.machine.findings().empty());
}

TEST_CASE("prefetch takes the time of a copy in stream order, and none where the pages are there",
          "[source][managed]") {
  device d;
  auto pool = sim_managed{d.driver} | pooled{};
  auto buffer = make_device_buffer<char>(pool, 16_MiB, d.stream);
  auto const time_of = [&](device_id to, std::size_t skipped = 0) {
    sim_nanoseconds const before = d.machine.now();
    prefetch(d.driver, std::span(buffer.data() + skipped, buffer.size() - skipped), to, d.stream);
    CHECK(d.machine.now() - before < 3'000);  // no wait on the host
    REQUIRE(d.driver.synchronize_stream(d.stream).ok());
    return d.machine.now() - before;
  };
  CHECK(time_of(0) > 300'000);  // 16 MiB at 53 bytes per nanosecond
  CHECK(time_of(0) < 10'000);
  CHECK(time_of(host_id) > 300'000);
  sim_nanoseconds const half = time_of(0, 8_MiB);
  CHECK(half > 150'000);
  CHECK(half < 180'000);
}

TEST_CASE("advise sets and undoes each advice for managed memory", "[source][managed]") {
  device d;
  auto pool = sim_managed{d.driver} | pooled{};
  auto buffer = make_device_buffer<int>(pool, 1000, d.stream);
  auto const page = [&] { return d.machine.managed_page(buffer.data() + 999); };
  advise(buffer, memory_advice::read_mostly, host_id);
  CHECK(page().read_mostly);
  advise(buffer, memory_advice::preferred_location, host_id);
  CHECK(page().preferred_location == host_id);
  advise(buffer, memory_advice::accessed_by, 0);
  advise(buffer, memory_advice::accessed_by, 1);
  advise(buffer, memory_advice::accessed_by, 1);
  CHECK(page().accessed_by == std::vector<device_id>{0, 1});
  advise(buffer, memory_advice::not_accessed_by, 0);
  CHECK(page().accessed_by == std::vector<device_id>{1});
  advise(buffer, memory_advice::no_preferred_location, host_id);
  CHECK(page().preferred_location == sim_managed_page::nowhere);
  advise(buffer, memory_advice::not_read_mostly, host_id);
  CHECK_FALSE(page().read_mostly);
  CHECK(page().prefetched_to == sim_managed_page::nowhere);
}

TEST_CASE("prefetch and advise refuse memory that is not managed, and devices that do not exist",
          "[source][managed]") {
  device d;
  auto pinned = sim_pinned_host{d.driver} | pooled{};
  auto const other = make_device_buffer<int>(pinned, 1000, d.stream);
  auto pool = sim_managed{d.driver} | pooled{};
  auto const buffer = make_device_buffer<int>(pool, 1000, d.stream);
  int on_stack = 0;
  CHECK(kind_of_failure([&] { prefetch(other, 0, d.stream); }) == failure::unsupported);
  CHECK(kind_of_failure([&] { prefetch(d.driver, std::span(&on_stack, 1), 0, d.stream); }) ==
        failure::unsupported);
  CHECK(kind_of_failure([&] { advise(other, memory_advice::read_mostly, 0); }) == failure::unsupported);
  CHECK(kind_of_failure([&] { prefetch(buffer, 2, d.stream); }) == failure::no_device);
  CHECK(kind_of_failure([&] { advise(buffer, memory_advice::accessed_by, 2); }) == failure::no_device);
  CHECK(d.location(buffer.data()) == sim_managed_page::nowhere);
}

TEST_CASE("prefetch and advise of no elements do nothing", "[source][managed]") {
  device d;
  prefetch(d.driver, std::span<int>(), 0, d.stream);
  advise(d.driver, std::span<int>(), memory_advice::read_mostly, 0);
  auto pool = sim_managed{d.driver} | pooled{};
  device_buffer<int, decltype(pool)> const empty(pool, 0, d.stream);
  prefetch(empty, 1, d.stream);
  device_buffer<int, decltype(pool)> const without_pool;
  CHECK_THROWS_AS(prefetch(without_pool, 1, d.stream), misuse);
  CHECK_THROWS_AS(advise(without_pool, memory_advice::read_mostly, 1), misuse);
}

TEST_CASE("prefetch and advise are unsupported where a device cannot move pages while it runs",
          "[source][managed]") {
  sim_options o = two_devices();
  o.migration = sim_migration::missing;
  sim_machine const machine{o};
  auto pool = sim_managed{machine.driver()} | pooled{};
  auto const buffer = make_device_buffer<int>(pool, 1000, stream_ref{});
  CHECK(kind_of_failure([&] { prefetch(buffer, 0, {}); }) == failure::unsupported);
  CHECK(kind_of_failure([&] { advise(buffer, memory_advice::accessed_by, 0); }) == failure::unsupported);
}

TEST_CASE("prefetch refuses a captured stream and leaves the capture valid", "[source][managed]") {
  device d;
  auto pool = sim_managed{d.driver} | pooled{};
  auto const buffer = make_device_buffer<int>(pool, 1000, d.stream);
  basic_stream<sim_driver> captured(d.driver);
  sim_graph graph;
  REQUIRE(d.driver.begin_capture(captured).ok());
  CHECK(kind_of_failure([&] { prefetch(buffer, 0, captured); }) == failure::unsupported);
  CHECK(d.driver.end_capture(captured, graph).ok());
  CHECK(d.machine.invalidated_captures() == 0);
  CHECK(d.location(buffer.data()) == sim_managed_page::nowhere);
}

TEST_CASE("prefetch takes a stream of another device", "[source][managed]") {
  device d;
  auto pool = sim_managed{d.driver} | pooled{};
  basic_stream<sim_driver> there(d.machine.driver(1));
  auto const buffer = make_device_buffer<int>(pool, 1000, d.stream);
  prefetch(buffer, 1, there);
  prefetch(buffer, 0, stream_ref(there).get());
  CHECK(d.location(buffer.data()) == 0);
}

TEST_CASE("prefetch and advise report a failed call by its name", "[source][managed][fault]") {
  using driver_type = faulty<sim_driver>;
  sim_machine const machine{two_devices()};
  fault_plan const plan;
  auto pool = basic_managed<driver_type>{driver_type(machine.driver(), plan)} | pooled{};
  auto const buffer = make_device_buffer<int>(pool, 1000, stream_ref{});
  plan.fail(driver_call::prefetch, 1);
  CHECK(kind_of_failure([&] { prefetch(buffer, 0, {}); }) == failure::other);
  plan.fail(driver_call::advise, 1);
  CHECK(kind_of_failure([&] { advise(buffer, memory_advice::read_mostly, 0); }) == failure::other);
  plan.fail(driver_call::is_capturing, 1);
  CHECK(kind_of_failure([&] { prefetch(buffer, 0, {}); }) == failure::other);
  CHECK(machine.managed_page(buffer.data()).prefetched_to == sim_managed_page::nowhere);
}
