// SPDX-License-Identifier: Apache-2.0
// host_copy: contents of device memory in host memory; kept_ranges: which bytes are kept.

#include "tarn/pool/relocate/host_copy.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <optional>
#include <vector>

#include "catch.hpp"
#include "driver/faulty.hpp"
#include "tarn/driver/no_driver.hpp"
#include "tarn/sim.hpp"

using namespace tarn;

namespace {

/// Saves stretches of unequal sizes, changes the memory, and loads some of them.
template <class Driver>
void save_and_load(Driver const& driver, unsigned char* memory, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += 64) memory[i] = static_cast<unsigned char>(i / 64 * 13 + i / 65536);
  detail::host_copy<Driver> copy(driver);
  copy.set_up(bytes);
  std::size_t at = 0;
  for (std::size_t step = 512; at < bytes; step = step * 5 + 512) {
    std::size_t const count = step < bytes - at ? step : bytes - at;
    copy.save(at, memory + at, count);
    at += count;
  }
  CHECK(copy.wait_for(bytes));
  copy.end();
  CHECK(copy.host_bytes() >= bytes);
  std::memset(memory, 0, bytes);
  std::size_t const half = bytes / 2 / 512 * 512;
  copy.load(0, memory, 1024);
  copy.load(half, memory + half, bytes - half);  // skips what is before
  copy.finish();
  bool same = true;
  for (std::size_t i = 0; i < bytes; i += 64) {
    bool const loaded = i < 1024 || i >= half;
    same = same && memory[i] == (loaded ? static_cast<unsigned char>(i / 64 * 13 + i / 65536) : 0);
  }
  CHECK(same);
  copy.close();
  CHECK(copy.host_bytes() == 0);
}

}  // namespace

TEST_CASE("host_copy keeps contents in pinned memory", "[pool][sleep]") {
  constexpr std::size_t bytes = 300 * (std::size_t{1} << 20);  // two chunks
  for (std::uint64_t seed = 0; seed < 2; ++seed) {
    sim_options o;
    o.seed = seed;
    o.slow_streams = 1000;  // copies are done only when they are waited for
    o.slowness = 5'000'000'000;
    sim_machine const machine{o};
    void* p = nullptr;
    REQUIRE(machine.driver(0).malloc_device(bytes, p).ok());
    save_and_load(machine.driver(0), static_cast<unsigned char*>(p), bytes);
    REQUIRE(machine.driver(0).free_device(p).ok());
    CHECK(machine.leaks().total() == 0);
  }
  std::vector<unsigned char> memory(1 << 20);
  save_and_load(no_driver{}, memory.data(), memory.size());
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
    detail::host_copy<faulty<sim_driver>> copy(driver);
    copy.set_up(count * part);
    if (failure == 1) {  // a mark that the driver refuses: the next one covers its copies
      plan.fail(driver_call::create_event, 1);
      plan.fail(driver_call::record_event, 1);
    }
    for (std::size_t i = 0; i < count; ++i) copy.save(i * part, static_cast<char*>(p) + i * part, part);
    if (failure == 2) plan.fail(driver_call::synchronize_event, 1);  // waits for the stream instead
    CHECK(copy.wait_for(part));
    CHECK((machine.pending() == 0) == (failure == 2));
    CHECK(copy.wait_for(count * part));
    CHECK(machine.pending() == 0);
    copy.close();
    REQUIRE(driver.free_device(p).ok());
    CHECK(machine.leaks().total() == 0);
  }
}

TEST_CASE("host_copy does not report as saved what no call of the driver waited for", "[pool][sleep]") {
  sim_machine const machine;
  fault_plan const plan;
  faulty<sim_driver> const driver{machine.driver(0), plan};
  void* p = nullptr;
  REQUIRE(driver.malloc_device(2_MiB, p).ok());
  detail::host_copy<faulty<sim_driver>> copy(driver);
  copy.set_up(2_MiB);
  copy.save(0, p, 2_MiB);
  for (driver_call const call :
       {driver_call::synchronize_event, driver_call::synchronize_stream, driver_call::synchronize_device})
    plan.fail(call, 1);
  CHECK_FALSE(copy.wait_for(2_MiB));
  plan.disarm();
  CHECK(copy.wait_for(2_MiB));
  CHECK(machine.pending() == 0);
  copy.close();
  REQUIRE(driver.free_device(p).ok());
}

namespace {

/// Counts the calls that give something back.
struct counting_driver : sim_driver {
  explicit counting_driver(sim_driver const& driver) : sim_driver(driver) {}
  static inline int given_back = 0;
  status free_pinned(void* p) const noexcept { return ++given_back, sim_driver::free_pinned(p); }
  status destroy_event(event_handle e) const noexcept { return ++given_back, sim_driver::destroy_event(e); }
  status destroy_stream(stream_ref s) const noexcept { return ++given_back, sim_driver::destroy_stream(s); }
};

}  // namespace

TEST_CASE("host_copy makes no driver call where it ends in a forked child", "[pool][sleep][fork]") {
  sim_machine const machine;
  counting_driver const driver{machine.driver()};
  void* memory = nullptr;
  REQUIRE(driver.malloc_device(4_MiB, memory).ok());
  std::optional<detail::host_copy<counting_driver>> kept{driver};
  kept->set_up(4_MiB);
  kept->save(0, memory, 4_MiB);
  if (GENERATE(false, true)) kept->finish();
  pid_t const child = ::fork();
  if (child == 0) {
    counting_driver::given_back = 0;
    kept.reset();
    ::_exit(counting_driver::given_back);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  kept.reset();
  CHECK(counting_driver::given_back > 1);
  REQUIRE(driver.free_device(memory).ok());
  CHECK(machine.leaks().total() == 0);
}
