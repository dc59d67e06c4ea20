// SPDX-License-Identifier: Apache-2.0

#include "tarn/transfer/partitioned_buffer.hpp"

#include <algorithm>
#include <string_view>
#include <type_traits>
#include <utility>

#include "catch.hpp"
#include "contract/across_devices.hpp"
#include "contract/owners_reported.hpp"
#include "driver/faulty.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/raii/pinned_buffer.hpp"
#include "tarn/report/stats.hpp"
#include "tarn/sim.hpp"

using namespace tarn;
using tarn_test::counted_words;
using tarn_test::words;

namespace {

constexpr sim_nanoseconds second = 1'000'000'000;
using word = std::uint32_t;

sim_machine machine_of(int devices, std::uint64_t seed = 0) {
  sim_options o;
  o.devices = devices;
  o.checks = sim_checks::stream_order;
  o.seed = seed;
  o.slow_streams = 500;
  o.late_events = 100'000;
  return sim_machine(o);
}
std::vector<device_id> first_devices(int count) {
  std::vector<device_id> devices;
  for (int d = 0; d < count; ++d) devices.push_back(device_id{d});
  return devices;
}
auto noted_pools(sim_machine const& machine) {
  return [machine](device_id device) {
    return sim_pages{machine.driver(device)} | pooled{} | tarn_test::owners_reported{machine} | tracked{};
  };
}

}  // namespace

TEST_CASE("partitioned_buffer scatters, gathers and repartitions on one to four devices on any schedule",
          "[raii][partitioned_buffer][stream]") {
  for (int devices = 1; devices <= 4; ++devices) {
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      INFO(devices << " devices, seed " << seed);
      sim_machine const machine = machine_of(devices, seed);
      {
        per_device pools{noted_pools(machine)};
        tarn_test::parts_travel(pools, first_devices(devices), [&](int device, stream_ref stream) {
          bool const long_one = (seed + static_cast<std::uint64_t>(device)) % 2 == 0;
          REQUIRE(machine.driver(device_id{device}).launch(stream, long_one ? second : 100).ok());
        });
        pools.for_each([](device_id, auto& pool) { CHECK(memory_allocated(pool) == 0); });
      }
      CHECK(machine.findings().empty());
      CHECK(machine.leaks().total() == 0);
    }
  }
}

TEST_CASE("partitioned_buffer allows several parts on one device and empty parts",
          "[raii][partitioned_buffer]") {
  sim_machine const machine = machine_of(2);
  per_device pools{noted_pools(machine)};
  std::vector<device_id> const devices{1, 0, 1, 1, 0};
  tarn_test::parts_travel(pools, devices, [](int, stream_ref) {});
  partitioned_buffer<word, decltype(pools)::pool_type> few(pools, devices, 3);
  CHECK(few.part(0).size() == 1);
  CHECK(few.part(4).empty());
  few.scatter(counted_words(3));
  words seen(3);
  few.gather_sync(seen);
  CHECK(seen == counted_words(3));
  partitioned_buffer<word, decltype(pools)::pool_type> none(pools, devices, 0);
  none.scatter({});
  none.copy_from(none);
  none.gather_sync({});
  CHECK(none.size() == 0);
}

TEST_CASE("partitioned_buffer copies all parts from pinned memory concurrently without a host wait",
          "[raii][partitioned_buffer]") {
  sim_machine const machine = machine_of(3);
  per_device pools{noted_pools(machine)};
  std::size_t const n = 3 * 1'000'000;
  pinned_buffer<word, sim_pinned_host> host(sim_pinned_host{machine.driver()}, n);
  partitioned_buffer<word, decltype(pools)::pool_type> buffer(pools, first_devices(3), n);
  auto const start = machine.now();
  buffer.scatter(std::span<word const>(host));
  CHECK(machine.now() - start < 20'000);
  buffer.synchronize();
  auto const one_part = 4e6 / sim_costs{}.pinned_rate;
  CHECK(static_cast<double>(machine.now() - start) < 1.5 * one_part);
  CHECK(static_cast<double>(machine.now() - start) > one_part);
  auto const before = machine.now();
  buffer.gather(std::span<word>(host));
  CHECK(machine.now() - before < 20'000);
  buffer.gather_sync(std::span<word>(host));
  CHECK(static_cast<double>(machine.now() - before) > 2 * one_part);
}

TEST_CASE("partitioned_buffer frees all parts if one device refuses its allocation",
          "[raii][partitioned_buffer]") {
  sim_machine const machine = machine_of(3);
  {
    per_device pools{[machine](device_id device) {
      return sim_pages{machine.driver(device)} | pooled{} | limited{device.value == 2 ? 1_KiB : 1_GiB} |
             tracked{};
    }};
    using buffer = partitioned_buffer<word, decltype(pools)::pool_type>;
    auto const streams = machine.leaks().streams;
    CHECK_THROWS_AS(buffer(pools, first_devices(3), 3'000'000), out_of_memory);
    pools.for_each([](device_id, auto& pool) { CHECK(memory_allocated(pool) == 0); });
    CHECK(machine.leaks().streams == streams);
    CHECK_NOTHROW(buffer(pools, first_devices(3), 300));
    CHECK_THROWS_AS(buffer(pools, first_devices(4), 300), cuda_error);  // there is no device 3
    CHECK_THROWS_AS(buffer(pools, first_devices(3), static_cast<std::size_t>(-1)), length_error);
    CHECK_THROWS_AS(buffer(pools, {}, 300), bad_partition);
    try {
      buffer(pools, first_devices(2), partition_layout::even(300, 3));
      FAIL("no exception was thrown");
    } catch (bad_partition const& error) {
      CHECK(std::string_view(error.what()).find("3 parts and 2 memories") != std::string_view::npos);
    }
  }
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("partitioned_buffer refuses a different number of elements and copies nothing",
          "[raii][partitioned_buffer]") {
  sim_machine const machine = machine_of(2);
  per_device pools{noted_pools(machine)};
  using buffer = partitioned_buffer<word, decltype(pools)::pool_type>;
  buffer a(pools, first_devices(2), 10);
  buffer const b(pools, first_devices(2), 11);
  a.scatter(counted_words(10));
  words eleven(11);
  CHECK_THROWS_AS(a.scatter(eleven), length_error);
  CHECK_THROWS_AS(a.gather(eleven), length_error);
  CHECK_THROWS_AS(a.copy_from(b), length_error);
  words ten(10);
  a.gather_sync(ten);
  CHECK(ten == counted_words(10));
}

TEST_CASE("partitioned_buffer order_behind and order_before order an external stream with all parts",
          "[raii][partitioned_buffer][stream]") {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    sim_machine const machine = machine_of(3, seed);
    per_device pools{noted_pools(machine)};
    basic_stream const outside{machine.driver(device_id{1})};
    pinned_buffer<word, sim_pinned_host> host(sim_pinned_host{machine.driver()}, 900);
    partitioned_buffer<word, decltype(pools)::pool_type> buffer(pools, first_devices(3), 900);
    auto const fill = [&](word value, stream_ref stream) {
      return machine.launch(stream, second, {sim_writes(host.data(), host.bytes())}, [&host, value] {
        for (word& w : host) w = value;
      });
    };
    REQUIRE(fill(1, outside).ok());
    buffer.order_behind(outside.driver(), outside);
    buffer.scatter(std::span<word const>(host));
    buffer.order_before(outside.driver(), outside);
    REQUIRE(fill(2, outside).ok());
    words seen(900);
    buffer.gather_sync(seen);
    CHECK((seen == words(900, 1)));
  }
}

TEST_CASE("partitioned_buffer for_each_part makes the part's device current", "[raii][partitioned_buffer]") {
  sim_machine const machine = machine_of(3);
  per_device pools{noted_pools(machine)};
  partitioned_buffer<word, decltype(pools)::pool_type> buffer(pools, first_devices(3), 10);
  auto const current = [] {
    device_id device{-1};
    CHECK(sim_driver::current_device(device).ok());
    return device;
  };
  buffer.for_each_part([&](auto const& part) { CHECK(current() == part.elements.resource().device()); });
  CHECK(current() == device_id{0});
  CHECK_THROWS_AS(buffer.for_each_part([](auto const& part) {
    if (part.index == 1) throw length_error("");
  }),
                  length_error);
  CHECK(current() == device_id{0});
}

TEST_CASE("partitioned_buffer moves and is not copyable", "[raii][partitioned_buffer]") {
  sim_machine const machine = machine_of(2);
  per_device pools{noted_pools(machine)};
  using buffer = partitioned_buffer<word, decltype(pools)::pool_type>;
  static_assert(std::is_nothrow_move_constructible_v<buffer> && !std::is_copy_constructible_v<buffer>);
  buffer a(pools, first_devices(2), 10);
  a.scatter(counted_words(10));
  buffer b(pools, first_devices(2), 3);
  b = std::move(a);
  buffer const c = std::move(b);
  words seen(10);
  c.gather_sync(seen);
  CHECK(seen == counted_words(10));
}

TEST_CASE("partitioned_buffer has no elements and no parts when it is default-constructed or moved from",
          "[raii][partitioned_buffer]") {
  per_device pools{noted_pools(machine_of(1))};
  using buffer = partitioned_buffer<word, decltype(pools)::pool_type>;
  buffer kept;
  CHECK((kept.size() == 0 && kept.parts() == 0));
  kept = buffer(pools, first_devices(1), 10);
  CHECK((kept.size() == 10 && kept.parts() == 1));
  buffer const taken = std::move(kept);
  CHECK((kept.size() == 0 && kept.parts() == 0));  // NOLINT: moved-from is empty
  CHECK(partition_layout().parts() == 0);
}

TEST_CASE("partitioned_buffer gather_sync does not write to its target after it has thrown",
          "[raii][partitioned_buffer]") {
  using faulty_driver = faulty<sim_driver>;
  driver_call const failing = GENERATE(driver_call::copy, driver_call::synchronize_stream);
  sim_machine const machine = machine_of(3);
  fault_plan const plan;
  per_device pools{[&](device_id device) {
    return basic_pages<faulty_driver>(faulty_driver(machine.driver(device), plan)) | pooled{};
  }};
  partitioned_buffer<word, decltype(pools)::pool_type> whole(pools, first_devices(3), 300);
  whole.scatter(counted_words(300));
  basic_pinned<sim_driver> pinned(machine.driver());
  auto* const seen = static_cast<word*>(pinned.allocate_sync(300 * sizeof(word)));
  std::fill_n(seen, 300, word{0});
  for (std::size_t i = 0; i < 3; ++i)
    REQUIRE(machine.driver(device_id{static_cast<int>(i)}).launch(whole.stream(i), second).ok());
  plan.reset();
  plan.fail(failing, failing == driver_call::copy ? 3 : 1);
  CHECK_THROWS_AS(whole.gather_sync(std::span(seen, 300)), cuda_error);
  plan.disarm();
  words const original = counted_words(300);
  std::size_t const first =
      failing == driver_call::copy ? 0 : 100;  // not the part whose stream failed to synchronize
  std::size_t const last = failing == driver_call::copy ? 200 : 300;
  for (std::size_t i = first; i < last; ++i) CHECK(seen[i] == original[i]);
  pinned.deallocate_sync(seen, 300 * sizeof(word));
}

TEST_CASE("partitioned_buffer leaks nothing, whichever step fails", "[raii][partitioned_buffer]") {
  using faulty_driver = faulty<sim_driver>;
  bool struck = true;
  int refusals = 0;
  for (std::uint64_t step = 1; struck; ++step) {
    REQUIRE(step < 300);
    sim_machine const machine = machine_of(3, step);
    fault_plan const plan;
    std::size_t not_destroyed = 0;
    {
      per_device pools{[&](device_id device) {
        return basic_pages<faulty_driver>(faulty_driver(machine.driver(device), plan)) | pooled{} |
               tarn_test::owners_reported{machine};
      }};
      plan.fail(step);
      try {
        using buffer = partitioned_buffer<word, decltype(pools)::pool_type>;
        buffer whole(pools, first_devices(3), 1000);
        whole.scatter(counted_words(1000));
        buffer otherwise(pools, first_devices(2), 1000);
        otherwise.copy_from(whole);
        words seen(1000);
        otherwise.gather_sync(seen);
        CHECK((seen == counted_words(1000)));
      } catch (out_of_memory const&) {
        ++refusals;
      } catch (cuda_error const&) {
        ++refusals;
      }
      struck = plan.failed() != 0;
      not_destroyed = plan.failed(driver_call::destroy_event) + plan.failed(driver_call::destroy_stream);
      plan.disarm();
    }
    INFO("step " << step);
    if (struck && not_destroyed == 0 && plan.failed() == 1) CHECK(machine.leaks().total() == 0);
    CHECK(machine.findings().empty());
  }
  CHECK(refusals > 20);
}
