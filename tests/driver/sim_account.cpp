// SPDX-License-Identifier: Apache-2.0
// The accounts of the simulated management library: sim_account.

#include <string>

#include "catch.hpp"
#include "tarn/driver/sim/sim_driver.hpp"

using namespace tarn;

namespace {
device_account account_of(sim_machine const& machine) {
  device_account account;
  REQUIRE(machine.driver().memory_account(account).ok());
  return account;
}
}  // namespace

TEST_CASE("sim_account counts the context and every block as this process's",
          "[driver][sim_account][pages]") {
  sim_machine const machine{
      {.taken = 2_GiB, .context = 500_MiB, .other_processes = 1_GiB, .set_aside = 100_MiB}};
  CHECK(account_of(machine).this_process == 500_MiB);
  void* p = nullptr;
  page_handle pages{};
  REQUIRE(machine.driver().malloc_device(3_MiB, p).ok());
  REQUIRE(machine.driver().create_pages(4_MiB, pages).ok());
  device_account const account = account_of(machine);
  CHECK(account.total == machine.options().capacity);
  CHECK(account.free == machine.usage().free_bytes());
  CHECK(account.this_process == 507_MiB);
  CHECK(account.other_processes == 1_GiB);
  CHECK(account.set_aside == 100_MiB);
  CHECK(std::string(account.gap).empty());
  CHECK(machine.driver().free_device(p).ok());
  CHECK(machine.driver().destroy_pages(pages).ok());
  CHECK(account_of(machine).this_process == 500_MiB);
  CHECK(machine.calls()[driver_call::memory_account] == 3);
}

TEST_CASE("sim_account attributes memory taken later to other processes", "[driver][sim_account]") {
  sim_machine const machine{{.taken = 1_GiB, .context = 500_MiB}};
  CHECK(account_of(machine).other_processes == 0);
  machine.take_memory({}, 6_GiB);
  CHECK(account_of(machine).other_processes == 5_GiB);
  CHECK(account_of(machine).this_process == 500_MiB);
}

TEST_CASE("a simulated device of any capacity has free memory", "[driver][sim_options]") {
  auto const free_of = [](sim_options const& options) {
    std::size_t free = 0, total = 0;
    REQUIRE(sim_machine(options).driver().memory_info(free, total).ok());
    return free;
  };
  CHECK(free_of({}) == 139_GiB);
  CHECK(free_of({.capacity = 1_GiB}) == 1_GiB - 6_MiB);
  CHECK(free_of({.capacity = 64_MiB}) == 64_MiB);
  CHECK(free_of({.capacity = 1000_GiB}) == 999_GiB);
  CHECK(free_of({.capacity = 16_GiB, .taken = 0}) == 16_GiB);
  CHECK(free_of({.capacity = 16_GiB, .context = 500_MiB, .set_aside = 100_MiB}) == 16_GiB - 600_MiB);
  CHECK(sim_machine(sim_options{}).options().taken == 1_GiB);
}

TEST_CASE("sim_account reports the processes of an integrated device, and not its memory",
          "[driver][sim_account]") {
  sim_machine const machine{{.taken = 2_GiB, .context = 500_MiB, .placement = sim_placement::integrated}};
  device_account const account = account_of(machine);
  CHECK(account.total == device_account::unknown);
  CHECK(account.free == device_account::unknown);
  CHECK(account.this_process == 500_MiB);
}

TEST_CASE("sim_account never reports more than is taken", "[driver][sim_account]") {
  sim_machine const machine{
      {.taken = 1_GiB, .context = 600_MiB, .other_processes = 5_GiB, .set_aside = 1_GiB}};
  device_account const account = account_of(machine);
  CHECK(account.this_process == 600_MiB);
  CHECK(account.set_aside == 424_MiB);
  CHECK(account.other_processes == 0);
}

TEST_CASE("sim_account may hide processes, or report no NVML", "[driver][sim_account]") {
  sim_machine const hidden{{.context = 500_MiB, .set_aside = 100_MiB, .accounting = sim_accounting::hidden}};
  device_account account = account_of(hidden);
  CHECK(account.this_process == device_account::unknown);
  CHECK(account.other_processes == device_account::unknown);
  CHECK(account.set_aside == 100_MiB);
  CHECK(std::string(account.gap).find("container") != std::string::npos);
  sim_machine const missing{{.accounting = sim_accounting::missing}};
  account = {};
  CHECK(missing.driver().memory_account(account).kind == failure::unsupported);
  CHECK(account.total == device_account::unknown);
}
