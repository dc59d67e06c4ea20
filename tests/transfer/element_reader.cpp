// SPDX-License-Identifier: Apache-2.0
#include "tarn/transfer/element_reader.hpp"

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "driver/faulty.hpp"
#include "tarn/sim.hpp"

using namespace tarn;

namespace {

using faulty_driver = faulty<sim_driver>;
using faulty_pinned = basic_pinned<faulty_driver>;

}  // namespace

TEST_CASE("element_reader returns the element after the work of the buffer's stream",
          "[transfer][element_reader]") {
  sim_machine const machine;
  sim_stream const stream{machine.driver()};
  std::vector<int> host(100);
  std::iota(host.begin(), host.end(), 0);
  auto const pool = sim_pages{machine.driver()} | pooled{};
  auto buffer = make_device_buffer<int>(pool, std::span<int const>(host), stream);
  element_reader<int, sim_pinned_host> reader(sim_pinned_host{machine.driver()});
  CHECK(reader.element(buffer, 0) == 0);
  CHECK(reader.element(buffer, 99) == 99);
  REQUIRE(machine.driver().launch(stream, 1'000'000).ok());
  buffer.fill(std::byte{1});
  CHECK(reader.element(buffer, 7) == 0x01010101);
}

TEST_CASE("element_reader orders another stream behind the buffer's", "[transfer][element_reader][stream]") {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    sim_options options;
    options.checks = sim_checks::stream_order;
    options.seed = seed;
    options.late_events = 100'000;
    sim_machine const machine(options);
    {
      sim_stream const stream{machine.driver()};
      sim_stream const other{machine.driver()};
      auto buffer = make_device_buffer<int>(sim_pages{machine.driver()} | pooled{}, 100, stream);
      element_reader<int, sim_pinned_host> reader(sim_pinned_host{machine.driver()});
      REQUIRE(machine.driver().launch(stream, 1'000'000'000).ok());
      buffer.fill(std::byte{2});
      CHECK(reader.element(buffer, 50, other) == 0x02020202);
    }
    CHECK(machine.findings().empty());
    CHECK(machine.leaks().total() == 0);
  }
}

TEST_CASE("element_reader orders the default streams of two threads", "[transfer][element_reader][stream]") {
  sim_machine const machine;
  stream_ref const per_thread = stream_ref::from(reinterpret_cast<void*>(2));
  auto buffer = make_device_buffer<int>(sim_pages{machine.driver()} | pooled{}, 4, per_thread);
  buffer.zero();
  REQUIRE(machine.driver().synchronize_stream(per_thread).ok());
  REQUIRE(machine.driver().launch(per_thread, 1'000'000'000).ok());
  buffer.fill(std::byte{1});
  int read = 0;
  std::thread([&] {
    element_reader<int, sim_pinned_host> reader(sim_pinned_host{machine.driver()});
    read = reader.element(buffer, 0, per_thread);
  }).join();
  CHECK(read == 0x01010101);
}

TEST_CASE("element_reader makes two driver calls for a read and allocates nothing",
          "[transfer][element_reader]") {
  sim_machine const machine;
  fault_plan const plan;
  faulty_driver const driver(machine.driver(), plan);
  basic_stream<faulty_driver> const stream(driver);
  basic_stream<faulty_driver> const other(driver);
  auto buffer = make_device_buffer<float>(basic_pages<faulty_driver>(driver) | pooled{}, 10, stream);
  buffer.zero();
  element_reader<float, faulty_pinned> reader{faulty_pinned(driver)};
  std::uint64_t const before = plan.calls();
  CHECK(reader.element(buffer, 3) == 0.0F);
  CHECK(plan.calls() - before == 2);
  CHECK(plan.calls(driver_call::malloc_pinned) == 1);
  CHECK_THROWS_AS(reader.element(buffer, 10), length_error);
  CHECK_THROWS_AS(reader.element(buffer, 10, other), length_error);
  auto const moved = std::move(buffer);
  CHECK_THROWS_AS(reader.element(buffer, 0), length_error);
  CHECK(plan.calls() - before == 2);
}

TEST_CASE("element_reader leaves no copy behind that it could not wait for", "[transfer][element_reader]") {
  sim_machine const machine;
  fault_plan const plan;
  faulty_driver const driver(machine.driver(), plan);
  basic_stream<faulty_driver> const stream(driver);
  auto buffer = make_device_buffer<float>(basic_pages<faulty_driver>(driver) | pooled{}, 10, stream);
  buffer.zero();
  element_reader<float, faulty_pinned> reader{faulty_pinned(driver)};
  REQUIRE(machine.driver().launch(stream, 1'000'000'000).ok());
  plan.fail(driver_call::synchronize_stream, 1);
  CHECK_THROWS_AS(reader.element(buffer, 0), cuda_error);
  CHECK(machine.now() >= 1'000'000'000);
  CHECK(reader.element(buffer, 0) == 0.0F);
}

TEST_CASE("element_reader without pinned memory, or whose driver fails, leaks nothing",
          "[transfer][element_reader]") {
  sim_machine const machine;
  {
    fault_plan const plan;
    faulty_driver const driver(machine.driver(), plan);
    plan.fail(driver_call::malloc_pinned, 1);
    using reader_type = element_reader<float, faulty_pinned>;
    CHECK_THROWS_AS(reader_type{faulty_pinned(driver)}, out_of_memory);
    reader_type reader{faulty_pinned(driver)};
    basic_stream<faulty_driver> const stream(driver);
    auto buffer = make_device_buffer<float>(basic_pages<faulty_driver>(driver) | pooled{}, 10, stream);
    buffer.zero();
    for (driver_call const call : {driver_call::copy, driver_call::synchronize_stream}) {
      plan.fail(call, 1);
      try {
        (void)reader.element(buffer, 0);
        FAIL("no exception was thrown");
      } catch (cuda_error const& error) {
        CHECK(std::string_view(error.where().file).find("element_reader.cpp") != std::string_view::npos);
      }
      CHECK(reader.element(buffer, 0) == 0.0F);
    }
  }
  CHECK(machine.leaks().total() == 0);
}
