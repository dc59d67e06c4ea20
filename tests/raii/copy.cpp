// SPDX-License-Identifier: Apache-2.0

#include "tarn/raii/copy.hpp"

#include <string_view>
#include <vector>

#include "catch.hpp"
#include "tarn/driver/sim/sim_driver.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/raii/pinned_buffer.hpp"
#include "tarn/raii/stream.hpp"
#include "tarn/source/sim_sources.hpp"

using namespace tarn;

TEST_CASE("copy moves elements from host to device, between device buffers, and back", "[raii][copy]") {
  sim_driver const driver;
  basic_stream const stream{driver};
  auto a = make_device_buffer<int>(sim_malloc{}, 3, stream);
  auto b = make_device_buffer<int>(sim_malloc{}, 3, stream);
  std::vector<int> const from{1, 2, 3};
  std::vector<int> to(3);
  tarn::copy(driver, std::span(from), a.span(), stream);
  tarn::copy(driver, std::as_const(a).span(), b.span(), stream);
  tarn::copy_sync(driver, b.span(), std::span(to), stream);
  CHECK(to == from);
}

TEST_CASE("copy refuses spans of different sizes, and the error names both sizes", "[raii][copy]") {
  sim_driver const driver;
  std::vector<int> ten(10, 1);
  std::vector<int> eleven(11, 2);
  try {
    tarn::copy(driver, std::span(ten), std::span(eleven), stream_ref{});
    FAIL("no exception was thrown");
  } catch (length_error const& error) {
    std::string_view const text = error.what();
    CHECK(text.find("10 elements to a span of 11") != text.npos);
  }
  CHECK(eleven == std::vector<int>(11, 2));
  CHECK_THROWS_AS(tarn::copy_sync(driver, std::span(eleven), std::span(ten), stream_ref{}), length_error);
}

TEST_CASE("copy of zero elements makes no driver call", "[raii][copy]") {
  sim_machine const machine;
  machine.reset_calls();
  tarn::copy(machine.driver(), std::span<int const>(), std::span<int>(), stream_ref{});
  CHECK(machine.calls().total() == 0);
}

TEST_CASE("copy reports a driver failure with the name of the call", "[raii][copy]") {
  sim_machine const machine;
  auto a = make_device_buffer<int>(sim_malloc(machine.driver()), 3, stream_ref{});
  std::vector<int> host(3);
  machine.break_device({});
  try {
    tarn::copy(machine.driver(), std::span(host), a.span(), stream_ref{});
    FAIL("no exception was thrown");
  } catch (cuda_error const& error) {
    CHECK(std::string_view(error.call()) == "copy");
    CHECK(error.device() == 0);
  }
  machine.repair();
}

TEST_CASE("copy from pinned memory returns at once, and copy_sync waits", "[raii][copy][pinned_buffer]") {
  sim_machine const machine;
  basic_stream const stream{machine.driver()};
  pinned_buffer<int, sim_pinned_host> host(sim_pinned_host(machine.driver()), 1000,
                                           elements::value_initialised, stream);
  auto device = make_device_buffer<int>(sim_malloc(machine.driver()), 1000, stream);
  constexpr sim_nanoseconds second = 1'000'000'000;
  REQUIRE(machine.launch(stream, second).ok());
  auto const start = machine.now();
  tarn::copy(machine.driver(), std::span(host), device.span(), stream);
  CHECK(machine.now() - start < second / 2);
  tarn::copy_sync(machine.driver(), std::span(host), device.span(), stream);
  CHECK(machine.now() - start >= second);
}
