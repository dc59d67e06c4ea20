// SPDX-License-Identifier: Apache-2.0
// Free memory of integrated GPUs: what /proc/meminfo says, what the simulated device models, and the calls
// that use it.
#include "tarn/driver/meminfo.hpp"

#include <string>
#include <string_view>

#include "catch.hpp"
#include "tarn/policy/headroom.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/report/explain_memory.hpp"
#include "tarn/report/stats.hpp"
#include "tarn/sim.hpp"
#include "tarn/transfer/available_memory.hpp"

using namespace tarn;

namespace {
/// 8 GiB, of which 1 GiB is in use and 5 GiB hold the page cache.
sim_options with_page_cache(sim_placement placement) {
  sim_options o;
  o.capacity = 8_GiB;
  o.taken = 1_GiB;
  o.placement = placement;
  o.page_cache = 5_GiB;
  o.backing = sim_backing::address_only;
  return o;
}
std::size_t free_of(sim_driver const& driver) {
  std::size_t free = 0;
  std::size_t total = 0;
  REQUIRE(driver.memory_info(free, total).ok());
  CHECK(total == 8_GiB);
  return free;
}
std::size_t read(std::string_view meminfo, std::size_t total = 1_TiB) {
  std::size_t free = 77;  // what the driver said
  detail::use_available(meminfo, total, free);
  return free;
}
}  // namespace

TEST_CASE("use_available takes MemAvailable of /proc/meminfo, at most the total", "[driver][meminfo]") {
  std::string const before = "MemTotal:       131072000 kB\nMemFree:          123456 kB\n";
  CHECK(read(before + "MemAvailable:   98765432 kB\nBuffers:  5 kB\n") == 98765432_KiB);
  CHECK(read(before + "MemAvailable:   98765432 kB\n", 8_GiB) == 8_GiB);
  CHECK(read(before + "MemAvailable: 8388608 kB\n", 8_GiB) == 8_GiB);
  CHECK(read(before + "MemAvailable: 8388607 kB\n", 8_GiB) == 8_GiB - 1_KiB);
  CHECK(read(before + "MemAvailable:0 kB\n") == 0);
  CHECK(read(before + "MemAvailable: 99999999999999999999999999 kB\n", 8_GiB) == 8_GiB);
}

TEST_CASE("use_available keeps what the driver said if /proc/meminfo has no such line", "[driver][meminfo]") {
  for (std::string_view const text :
       {"", "MemTotal: 5 kB\nMemFree: 4 kB\n", "\nMemAvailable:", "\nMemAvailable: ", "\nMemAvailable: kB\n",
        "\nMemAvailable: 12", "\nMemAvailable: 12 k", "\nMemAvailable: 12 MB\n", "\nMemAvailable: -1 kB\n",
        "MemAvailable: 12 kB\n", "\nOldMemAvailable: 12 kB\n"}) {
    CAPTURE(text);
    CHECK(read(text) == 77);
  }
}

#if defined(__linux__)
TEST_CASE("use_available reads the system's /proc/meminfo", "[driver][meminfo]") {
  std::size_t free = 0;
  detail::use_available(1_TiB, free);
  CHECK(free > 1_MiB);
  CHECK(free < 1_TiB);
  detail::use_available(1_MiB, free);
  CHECK(free == 1_MiB);
}
#endif

TEST_CASE("memory_info of an integrated device counts the host's page cache as free",
          "[driver][sim][meminfo]") {
  sim_machine const discrete{with_page_cache(sim_placement::discrete)};
  CHECK(free_of(discrete.driver()) == 2_GiB);

  sim_machine const machine{with_page_cache(sim_placement::integrated)};
  sim_driver const driver = machine.driver();
  CHECK(free_of(driver) == 7_GiB);
  void *device = nullptr, *pinned = nullptr, *too_much = nullptr;
  REQUIRE(driver.malloc_device(4_GiB, device).ok());
  REQUIRE(driver.malloc_pinned(1_MiB, pinned).ok());  // from the same memory
  CHECK(free_of(driver) == 3_GiB - 1_MiB);
  CHECK(driver.malloc_pinned(3_GiB, too_much).kind == failure::out_of_memory);
  CHECK(driver.free_pinned(pinned).ok());
  CHECK(driver.free_device(device).ok());
  CHECK(free_of(driver) == 7_GiB);
  CHECK(machine.usage().used == 0);
}

TEST_CASE("headroom, available_memory and the reports of an integrated device count its page cache as free",
          "[driver][sim][meminfo][policy][report][pages]") {
  sim_machine const machine{with_page_cache(sim_placement::integrated)};
  auto memory = sim_pages{machine.driver()} | headroom{1_GiB} | pooled{};
  std::size_t const within = 6_GiB - 16_MiB;  // headroom keeps 16 MiB more
  CHECK(available_memory(memory).bytes <= 6_GiB);
  CHECK(available_memory(memory).bytes >= within);
  CHECK(mem_get_info(memory).free == 7_GiB);

  void* const most = memory.allocate({}, 5_GiB);
  memory_explanation const e = explain_memory(memory);
  CHECK(e.free == 2_GiB);
  CHECK(e.total == 8_GiB);
  CHECK_FALSE(e.set_aside);  // NVML does not report it there
  try {
    (void)memory.allocate({}, 2_GiB);
    FAIL("no exception was thrown");
  } catch (out_of_memory const& refused) {
    CHECK(refused.report().device_free == 2_GiB);
  }
  memory.deallocate({}, most, 5_GiB);
}
