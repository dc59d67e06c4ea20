// SPDX-License-Identifier: Apache-2.0
// The simulated GPU's cudaMallocAsync.

#include "tarn/driver/sim/sim_async.hpp"

#include "catch.hpp"
#include "driver/contract.hpp"
#include "tarn/driver/sim/sim_driver.hpp"

using namespace tarn;
using test::scoped_stream;

TEST_CASE("sim_driver malloc_async reuses a freed block in stream order",
          "[driver][sim][async][memory_pools]") {
  sim_machine const machine;
  auto const driver = machine.driver();
  scoped_stream const a(driver), b(driver);
  void *p = nullptr, *q = nullptr;
  REQUIRE(driver.malloc_async(1_MiB, a, p).ok());
  REQUIRE(machine.launch(a, 1'000'000'000).ok());
  REQUIRE(driver.free_async(p, a).ok());
  SECTION("immediately on its stream, at the warm cost") {
    machine.reset_calls();
    REQUIRE(driver.malloc_async(1_MiB, a, q).ok());
    CHECK(q == p);
    CHECK(machine.calls().driver_ns < 1'000);
  }
  SECTION("not on another stream while the first is busy") {
    REQUIRE(driver.malloc_async(1_MiB, b, q).ok());
    CHECK(q != p);
  }
  SECTION("on another stream once the first is idle") {
    machine.advance(2'000'000'000);
    REQUIRE(driver.malloc_async(1_MiB, b, q).ok());
    CHECK(q == p);
  }
  REQUIRE(driver.free_async(q, b).ok());
  CHECK(machine.leaks().blocks == 0);
  REQUIRE(driver.synchronize_device().ok());
  CHECK(machine.usage().used == 0);
}

TEST_CASE("sim_driver malloc_async releases cached blocks before it reports out of memory",
          "[driver][sim][async][memory_pools]") {
  sim_machine const machine{sim_options{.capacity = 8_MiB, .taken = 0}};
  auto const driver = machine.driver();
  void* p = nullptr;
  REQUIRE(driver.malloc_async(5_MiB, {}, p).ok());
  REQUIRE(driver.free_async(p, {}).ok());
  CHECK(driver.malloc_async(6_MiB, {}, p).ok());
  CHECK(driver.malloc_async(6_MiB, {}, p).kind == failure::out_of_memory);
}
