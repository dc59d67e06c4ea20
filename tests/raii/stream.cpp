// SPDX-License-Identifier: Apache-2.0

#include "tarn/raii/stream.hpp"

#include <optional>
#include <utility>

#include "catch.hpp"
#include "raii/archetype.hpp"
#include "tarn/driver/sim/sim_driver.hpp"

using namespace tarn;
using tarn_test::kept_memory;

namespace {
/// A driver whose create_stream does not return the stream's identity, as in CUDA.
struct nameless_streams : faulty<sim_driver> {
  using faulty<sim_driver>::faulty;
  status create_stream(stream_ref& stream) const noexcept {
    status const s = faulty<sim_driver>::create_stream(stream);
    stream = stream_ref::from(stream.handle());
    return s;
  }
};
}  // namespace

TEST_CASE("basic_stream knows its identity and is movable", "[raii][stream]") {
  basic_stream a{sim_driver{}};
  CHECK(a.ref().id() != stream_ref::unknown_id);
  CHECK(identified(a.driver(), stream_ref::from(a.ref().handle())).id() == a.ref().id());
  auto const id = a.ref().id();
  basic_stream b = std::move(a);
  CHECK(b.ref().id() == id);
  b.synchronize();
}

TEST_CASE("basic_stream move assignment destroys the old stream at once, and no stream twice",
          "[raii][stream]") {
  sim_machine const machine;
  {
    basic_stream a{machine.driver()};
    basic_stream b{machine.driver()};
    auto const kept = b.ref();
    a = std::move(b);
    CHECK(a.ref() == kept);
    CHECK(machine.leaks().streams == 1);
    auto& self = a;
    a = std::move(self);
    CHECK(a.ref() == kept);
    CHECK(machine.leaks().streams == 1);
  }
  CHECK(machine.leaks().streams == 0);
}

TEST_CASE("basic_stream does not leak a stream that cannot be identified", "[raii][stream]") {
  sim_machine const machine;
  nameless_streams const driver(machine.driver());
  driver.plan().fail(driver_call::create_stream, 1);
  CHECK_THROWS_AS(basic_stream(driver), cuda_error);
  driver.plan().fail(driver_call::identify, 1);
  CHECK_THROWS_AS(basic_stream(driver), cuda_error);
  CHECK(machine.leaks().streams == 0);
  CHECK(basic_stream(driver).ref().id() != stream_ref::unknown_id);
}

TEST_CASE("identified queries the identity of a stream only once", "[raii][stream]") {
  kept_memory const memory;
  auto const known = identified(memory, tarn_test::bare_stream(5));
  CHECK(known.id() != stream_ref::unknown_id);
  CHECK(known.handle() == tarn_test::bare_stream(5).handle());
  CHECK(identified(memory, known).id() == known.id());
  CHECK(memory.driver().plan().calls(driver_call::identify) == 1);
  memory.driver().plan().fail(driver_call::identify, 1);
  CHECK_THROWS_AS(identified(memory, tarn_test::bare_stream(6)), cuda_error);
}

TEST_CASE("basic_stream synchronize reports an earlier failure", "[raii][stream]") {
  sim_machine const machine;
  basic_stream const s{machine.driver()};
  machine.break_device({});
  CHECK_THROWS_AS(s.synchronize(), cuda_error);
  machine.repair();
  s.synchronize();
}

TEST_CASE("basic_stream is destroyed without a report after the driver has unloaded", "[raii][stream]") {
  sim_machine const machine;
  {
    basic_stream const s{machine.driver()};
    machine.unload();
  }
  machine.repair();
  SUCCEED();
}

TEST_CASE("basic_stream converts to the driver's handle and, with its identity, to stream_ref", "[raii]") {
  sim_machine const machine;
  basic_stream<sim_driver> const stream(machine.driver());
  CUstream_st* const handle = stream;
  CHECK(handle == stream.get());
  CHECK(stream_ref(stream).handle() == handle);
  CHECK(stream_ref(stream).id() == stream.ref().id());
  stream_ref const copied = stream;
  CHECK(copied.id() != stream_ref::unknown_id);
  CHECK(stream_ref(handle).id() == stream_ref::unknown_id);
  CHECK(stream_ref(nullptr).handle() == nullptr);
}
