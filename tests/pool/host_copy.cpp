// SPDX-License-Identifier: Apache-2.0
// host_copy: contents of device memory in host memory; for_each_kept: which bytes are kept.

#include "tarn/pool/growth/host_copy.hpp"

#include <cstring>
#include <vector>

#include "catch.hpp"
#include "driver/faulty.hpp"
#include "tarn/driver/no_driver.hpp"
#include "tarn/sim.hpp"

using namespace tarn;

namespace {

/// Saves stretches of unequal sizes, changes the memory, and loads some of them.
template <class Driver>
void save_and_load(Driver const& driver, contents where, unsigned char* memory, std::size_t bytes) {
  stream_ref stream;
  REQUIRE(driver.create_stream(stream).ok());
  for (std::size_t i = 0; i < bytes; i += 64) memory[i] = static_cast<unsigned char>(i / 64 * 13 + i / 65536);
  detail::host_copy<Driver> copy(driver);
  copy.open(bytes, where);
  copy.begin();
  std::size_t at = 0;
  for (std::size_t step = 512; at < bytes; step = step * 5 + 512) {
    std::size_t const count = step < bytes - at ? step : bytes - at;
    copy.save(stream, at, memory + at, count);
    at += count;
  }
  copy.finish(stream);
  copy.end();
  CHECK(copy.host_bytes() >= bytes);
  std::memset(memory, 0, bytes);
  copy.begin();
  std::size_t const half = bytes / 2 / 512 * 512;
  copy.load(stream, 0, memory, 1024);
  copy.load(stream, half, memory + half, bytes - half);  // skips what is before
  copy.finish(stream);
  copy.end();
  bool same = true;
  for (std::size_t i = 0; i < bytes; i += 64) {
    bool const loaded = i < 1024 || i >= half;
    same = same && memory[i] == (loaded ? static_cast<unsigned char>(i / 64 * 13 + i / 65536) : 0);
  }
  CHECK(same);
  copy.close();
  CHECK(copy.host_bytes() == 0);
  REQUIRE(driver.destroy_stream(stream).ok());
}

}  // namespace

TEST_CASE("host_copy keeps contents in pinned and in ordinary memory", "[pool][sleep]") {
  constexpr std::size_t bytes = 150 * (std::size_t{1} << 20);  // more than both staging buffers
  for (contents const where : {contents::in_pinned_memory, contents::in_host_memory}) {
    for (std::uint64_t seed = 0; seed < 2; ++seed) {
      sim_options o;
      o.seed = seed;
      o.slow_streams = 1000;  // copies are done only when they are waited for
      o.slowness = 5'000'000'000;
      sim_machine const machine{o};
      void* p = nullptr;
      REQUIRE(machine.driver(0).malloc_device(bytes, p).ok());
      save_and_load(machine.driver(0), where, static_cast<unsigned char*>(p), bytes);
      REQUIRE(machine.driver(0).free_device(p).ok());
      CHECK(machine.leaks().total() == 0);
    }
    std::vector<unsigned char> memory(1 << 20);
    save_and_load(no_driver{}, where, memory.data(), memory.size());
  }
}

TEST_CASE("host_copy without staging buffers copies ordinary memory by the driver", "[pool][sleep]") {
  sim_machine const machine{sim_options{}};
  fault_plan const plan;
  faulty<sim_driver> const driver{machine.driver(0), plan};
  void* p = nullptr;
  REQUIRE(driver.malloc_device(1_MiB, p).ok());
  plan.fail(driver_call::malloc_pinned, 1);
  plan.fail(driver_call::malloc_pinned, 2);
  save_and_load(driver, contents::in_host_memory, static_cast<unsigned char*>(p), 1_MiB);
  REQUIRE(driver.free_device(p).ok());
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("host_copy waits for what was enqueued before a position, and no longer", "[pool][sleep]") {
  constexpr std::size_t part = 1_MiB;
  constexpr std::size_t count = 64;
  for (int failure = 0; failure < 3; ++failure) {
    sim_options o;
    o.slow_streams = 1000;
    o.slowness = 1'000'000;
    sim_machine const machine{o};
    fault_plan const plan;
    faulty<sim_driver> const driver{machine.driver(0), plan};
    void* p = nullptr;
    REQUIRE(driver.malloc_device(count * part, p).ok());
    stream_ref stream;
    REQUIRE(driver.create_stream(stream).ok());
    detail::host_copy<faulty<sim_driver>> copy(driver);
    copy.open(count * part, contents::in_pinned_memory);
    if (failure == 1) {  // a mark that the driver refuses: the next one covers its copies
      plan.fail(driver_call::create_event, 1);
      plan.fail(driver_call::record_event, 1);
    }
    for (std::size_t i = 0; i < count; ++i) {
      copy.save(stream, i * part, static_cast<char*>(p) + i * part, part);
      copy.mark(stream, (i + 1) * part);
    }
    if (failure == 2) plan.fail(driver_call::synchronize_event, 1);  // waits for the stream instead
    CHECK(copy.wait_for(stream, part));
    CHECK((machine.pending() == 0) == (failure == 2));
    CHECK(copy.wait_for(stream, count * part));
    CHECK(machine.pending() == 0);
    copy.end();
    copy.close();
    REQUIRE(driver.destroy_stream(stream).ok());
    REQUIRE(driver.free_device(p).ok());
    CHECK(machine.leaks().total() == 0);
  }
}
