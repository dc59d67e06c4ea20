// SPDX-License-Identifier: Apache-2.0
// explain_memory and memory_explanation.

#include "tarn/report/explain_memory.hpp"

#include <algorithm>
#include <atomic>
#include <clocale>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <locale>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "driver/faulty.hpp"
#include "tarn/policy/accessible_from.hpp"
#include "tarn/policy/fallback_to.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/retry_on_oom.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/sim.hpp"
#include "tarn/source/host_memory.hpp"

using namespace tarn;

namespace {

sim_options crowded() {
  return {.taken = 4_GiB, .context = 1070_MiB, .other_processes = 2_GiB, .set_aside = 600_MiB};
}

/// The invariants of every explanation, with or without unknown parts: the parts of each level sum to the
/// level above.
void check_sums(memory_explanation const& e) {
  std::int64_t parts = 0;
  std::int64_t of_process = 0;
  std::int64_t process = 0;
  bool separated = true;
  for (memory_row const& row : e.rows()) {
    std::int64_t const bytes = row.bytes.value_or(0);
    if (row.depth == 1) parts += bytes;
    if (row.depth == 1 && row.name.starts_with("this process")) process = bytes;
    if (row.depth == 2) of_process += bytes;
    if (row.depth == 2 && !row.bytes) separated = false;
    if (row.depth == 0 && row.name.find("host") != std::string::npos) break;  // not in the device's total
  }
  CHECK(parts == static_cast<std::int64_t>(e.total));
  CHECK(of_process == process);
  CHECK(process == static_cast<std::int64_t>(e.process()));
  CHECK(separated == e.outside_pools.has_value());
  std::vector<pool_share> all = e.pools;
  all.insert(all.end(), e.host_pools.begin(), e.host_pools.end());
  for (pool_share const& p : all) {
    CHECK(p.live + p.deferred + p.cached == p.reserved);
    if (p.requested) CHECK(*p.requested + *p.rounding + p.untracked == p.live);
  }
}

/// The first row whose name starts with `name`.
memory_row row_of(memory_explanation const& e, std::string const& name) {
  for (memory_row const& row : e.rows()) {
    if (row.name.starts_with(name)) return row;
  }
  FAIL("no row " << name << " in\n" << e.text());
  return {};
}

}  // namespace

TEST_CASE("explain_memory of a model of 0.0004 MiB accounts for every byte that nvidia-smi shows",
          "[report][explain_memory]") {
  sim_machine const machine{crowded()};
  context_cost const context = measure_context(machine.driver());
  CHECK(context.bytes == 1070_MiB);
  sim_pool pool{sim_pages{machine.driver()}};
  auto const model = make_device_buffer<float>(pool, 10 * 10 + 10, stream_ref{});
  memory_explanation const e = explain_memory(context, pool);
  check_sums(e);
  CHECK(e.device == 0);
  CHECK(e.total == machine.options().capacity);
  CHECK(e.this_process == 1072_MiB);
  CHECK(e.other_processes == 2_GiB);
  CHECK(e.set_aside == 600_MiB);
  CHECK(e.context == 1070_MiB);
  CHECK(e.other_allocations == 0);
  CHECK(e.residual() == static_cast<std::int64_t>(4_GiB - 2_GiB - 600_MiB - 1070_MiB));
  REQUIRE(e.pools.size() == 1);
  CHECK(e.pools[0].name == "pool 1");
  CHECK(e.pools[0].reserved == 2_MiB);
  CHECK(e.pools[0].requested == 440);
  CHECK(e.pools[0].rounding == 72);
  CHECK(e.pools[0].cached == 2_MiB - 512);
  std::string const text = e.text();
  CHECK(text.find("0.0004\n") != std::string::npos);
  CHECK(text.find("1072.0000  as nvidia-smi shows it") != std::string::npos);
  CHECK(text.find("unknown") == std::string::npos);
}

TEST_CASE("memory_explanation prints its text", "[report][explain_memory]") {
  sim_pool pool;
  auto const explained = explain_memory(pool);
  std::ostringstream out;
  out << explained;
  CHECK(out.str() == explained.text());
  CHECK(out.str().find("total on the device") != std::string::npos);
}

TEST_CASE("explain_memory reports a pool's own state in its rows", "[report][explain_memory]") {
  sim_machine const machine{crowded()};
  sim_pool pool{sim_pages{machine.driver()}};
  stream_ref other;
  REQUIRE(machine.driver().create_stream(other).ok());
  void* const kept = pool.allocate({}, 5_MiB + 1);
  void* const small = pool.allocate({}, 700);
  void* const used_elsewhere = pool.allocate({}, 3_MiB);
  REQUIRE(machine.launch(other, 1'000'000'000).ok());
  pool.record_stream(used_elsewhere, 3_MiB, other);
  pool.deallocate({}, used_elsewhere, 3_MiB);
  memory_explanation const e = explain_memory(pool);
  check_sums(e);
  pool_state const s = detail::state_of(pool);
  tracked_statistics const t = detail::statistics_of(pool);
  REQUIRE(e.pools.size() == 1);
  pool_share const& p = e.pools[0];
  CHECK(s.deferred == 3_MiB);
  CHECK(p.reserved == s.reserved);
  CHECK(p.live + p.deferred == s.live);
  CHECK(p.deferred == s.deferred);
  CHECK(p.cached == s.cached);
  CHECK(p.requested == 5_MiB + 701);
  CHECK(p.rounding == static_cast<std::size_t>(t.allocated_bytes[0].current - t.requested_bytes[0].current));
  CHECK(p.untracked == 0);
  CHECK(row_of(e, "deferred for another stream").bytes == 3 * 1048576);
  pool.deallocate({}, kept, 5_MiB + 1);
  pool.deallocate({}, small, 700);
  CHECK(machine.driver().synchronize_device().ok());
  CHECK(machine.driver().destroy_stream(other).ok());
}

TEST_CASE("explain_memory separates allocations outside the pools if the context was measured",
          "[report][explain_memory]") {
  sim_machine const machine{crowded()};
  sim_driver const driver = machine.driver();
  context_cost const context = measure_context(driver);
  sim_pool pool{sim_pages{driver}};
  void* const mine = pool.allocate({}, 10_MiB);
  void* theirs = nullptr;
  REQUIRE(driver.malloc_device(7_MiB, theirs).ok());
  memory_explanation const separated = explain_memory(pool, context);
  check_sums(separated);
  CHECK(separated.context == 1070_MiB);
  CHECK(separated.other_allocations == 7_MiB);
  CHECK(row_of(separated, "context and modules").bytes == 1070 * 1048576);
  memory_explanation const together = explain_memory(pool);
  check_sums(together);
  CHECK(together.outside_pools == 1077_MiB);
  CHECK_FALSE(together.context);
  CHECK(row_of(together, "context, modules, other allocations").how.find("estimated") != std::string::npos);
  pool.deallocate({}, mine, 10_MiB);
  CHECK(driver.free_device(theirs).ok());
}

TEST_CASE("explain_memory names what pools hold that were not passed", "[report][explain_memory]") {
  sim_options two = crowded();
  two.devices = 2;
  sim_machine const machine{two};
  sim_pool mine{sim_pages{machine.driver()}};
  sim_pool theirs{sim_pages{machine.driver()}};
  auto above = theirs | pooled{};  // its memory counts in the lower pool
  auto on_host = sim_pinned_host{machine.driver()} | pooled{};
  sim_pool elsewhere{sim_pages{machine.driver(1)}};
  void* const a = mine.allocate({}, 10_MiB);
  void* const b = above.allocate({}, 20_MiB);
  void* const c = on_host.allocate({}, 30_MiB);
  void* const d = elsewhere.allocate({}, 40_MiB);
  memory_explanation const e = explain_memory(mine);
  check_sums(e);
  CHECK(e.other_pools == memory_reserved(theirs));
  CHECK(e.other_pool_count == 1);
  CHECK(row_of(e, "other pools, reserved").bytes == static_cast<std::int64_t>(memory_reserved(theirs)));
  memory_explanation const both = explain_memory(mine, theirs);
  check_sums(both);
  CHECK(both.other_pool_count == 0);
  CHECK(both.reserved() == e.reserved());
  CHECK(both.outside_pools == e.outside_pools);
  memory_explanation const device_only = explain_memory(machine.driver());
  check_sums(device_only);
  CHECK(device_only.other_pool_count == 2);
  mine.deallocate({}, a, 10_MiB);
  above.deallocate({}, b, 20_MiB);
  on_host.deallocate({}, c, 30_MiB);
  elsewhere.deallocate({}, d, 40_MiB);
}

TEST_CASE("explain_memory counts both pools of fallback_to once", "[report][explain_memory]") {
  sim_machine const machine{crowded()};
  auto second = sim_malloc{machine.driver()} | pooled{};
  auto memory = sim_pages{machine.driver()} | limited{10_MiB} | pooled{} | fallback_to{second};
  void* const a = memory.allocate({}, 8_MiB);
  void* const b = memory.allocate({}, 30_MiB);
  memory_explanation const e = explain_memory(memory);
  check_sums(e);
  CHECK(e.reserved() == memory_reserved(memory));
  CHECK(e.other_pool_count == 0);
  memory.deallocate({}, a, 8_MiB);
  memory.deallocate({}, b, 30_MiB);
}

TEST_CASE("explain_memory counts a pool once that is passed before the memory that falls back to it",
          "[report][explain_memory]") {
  sim_machine const machine{crowded()};
  auto second = sim_malloc{machine.driver()} | pooled{};
  auto memory = sim_pages{machine.driver()} | limited{10_MiB} | pooled{} | fallback_to{second};
  void* const a = memory.allocate({}, 8_MiB);
  void* const b = memory.allocate({}, 30_MiB);
  for (memory_explanation const& e : {explain_memory(second, memory), explain_memory(memory, second)}) {
    check_sums(e);
    CHECK(e.pools.size() == 2);
    CHECK(e.reserved() == memory_reserved(memory));
  }
  memory.deallocate({}, a, 8_MiB);
  memory.deallocate({}, b, 30_MiB);
}

TEST_CASE("explain_memory counts no managed pool as device memory to which a pool of the device falls back",
          "[report][explain_memory]") {
  sim_machine const machine{crowded()};
  auto managed = sim_managed{machine.driver()} | pooled{};
  auto memory = sim_pages{machine.driver()} | pooled{} | limited{10_MiB} | fallback_to{managed} | tracked{};
  void* const a = memory.allocate({}, 8_MiB);
  void* const b = memory.allocate({}, 40_MiB);
  memory_explanation const e = explain_memory(memory);
  check_sums(e);
  REQUIRE(e.pools.size() == 1);
  REQUIRE(e.host_pools.size() == 1);
  CHECK(e.pools[0].live == 8_MiB);
  CHECK(e.host_pools[0].reserved == memory_reserved(managed));
  CHECK(e.reserved() == memory_reserved(memory) - memory_reserved(managed));
  memory.deallocate({}, a, 8_MiB);
  memory.deallocate({}, b, 40_MiB);
}

TEST_CASE("explain_memory counts no pool of another device to which a pool of the device falls back",
          "[report][explain_memory][pages]") {
  sim_machine const machine{{.devices = 2}};
  auto second = sim_pages{machine.driver(1)} | accessible_from{0, 1} | pooled{};
  auto memory = sim_pages{machine.driver(0)} | pooled{} | limited{10_MiB} | fallback_to{second};
  void* const a = memory.allocate({}, 8_MiB);
  void* const b = memory.allocate({}, 40_MiB);
  memory_explanation const e = explain_memory(memory);
  check_sums(e);
  CHECK(e.pools.size() == 1);
  CHECK(e.reserved() == memory_reserved(memory) - memory_reserved(second));
  memory.deallocate({}, a, 8_MiB);
  memory.deallocate({}, b, 40_MiB);
}

TEST_CASE("explain_memory counts nothing where more was freed than allocated", "[report][explain_memory]") {
  sim_machine const machine{crowded()};
  auto memory = sim_malloc{machine.driver()} | tracked{};
  void* const p = memory.allocate({}, 1000);
  memory.deallocate({}, p, 5000);  // a wrong size
  memory_explanation const e = explain_memory(memory);
  check_sums(e);
  CHECK(e.reserved() == 0);
  REQUIRE(e.pools.size() == 1);
  CHECK((e.pools[0].requested == 0 && e.pools[0].rounding == 0 && e.pools[0].live == 0));
}

TEST_CASE("explain_memory in handlers of two growths waits for neither",
          "[report][explain_memory][threads]") {
  sim_machine const machine{crowded()};
  std::atomic<int> in_handler{0};
  std::atomic<int> wrong{0};
  auto const explain = [&](out_of_memory const&, unsigned) {
    ++in_handler;
    while (in_handler < 2) std::this_thread::yield();
    if (explain_memory(machine.driver()).other_pool_count != 2) ++wrong;
    return false;
  };
  auto one = sim_malloc{machine.driver()} | retry_on_oom{explain} | pooled{};
  auto other = sim_malloc{machine.driver()} | retry_on_oom{explain} | pooled{};
  std::atomic<int> refused{0};
  auto const ask = [&](auto& memory) {
    try {
      (void)memory.allocate({}, 1_TiB);
    } catch (out_of_memory const&) {
      ++refused;
    }
  };
  std::thread thread([&] { ask(other); });
  ask(one);
  thread.join();
  CHECK(refused == 2);
  CHECK(in_handler >= 2);
  CHECK(wrong == 0);
}

TEST_CASE("explain_memory counts each of any number of pools once, with host memory apart from the total",
          "[report][explain_memory]") {
  sim_machine const machine{crowded()};
  sim_driver const driver = machine.driver();
  sim_pool first{sim_pages{driver}};
  auto second = sim_malloc{driver} | pooled{} | limited{1_GiB};
  auto staging = sim_pinned_host{driver} | pooled{} | tracked{};
  auto plain = sim_malloc{driver} | tracked{};
  auto const on_host = host_memory{} | pooled{};
  void* const a = first.allocate({}, 100);
  void* const b = second.allocate({}, 200);
  void* const c = staging.allocate({}, 300);
  void* const d = plain.allocate({}, 400);
  memory_explanation e = explain_memory(driver, first, second, first, staging, plain, on_host);
  check_sums(e);
  REQUIRE(e.pools.size() == 3);
  CHECK(e.pools[1].name == "pool 2");
  CHECK_FALSE(e.pools[1].requested);  // no layer counts the requested bytes
  CHECK(e.pools[1].live == detail::state_of(second).live);
  CHECK(e.pools[2].requested == 400);
  CHECK(e.pools[2].reserved ==
        static_cast<std::size_t>(detail::statistics_of(plain).allocated_bytes[0].current));
  REQUIRE(e.host_pools.size() == 2);
  CHECK(e.host_pools[0].requested == 300);
  CHECK(e.reserved() == e.pools[0].reserved + e.pools[1].reserved + e.pools[2].reserved);
  e.pools[0].name = "activations";
  CHECK(row_of(e, "activations, reserved").depth == 2);
  CHECK(row_of(e, "pool 3, reserved in host or managed memory").depth == 0);
  first.deallocate({}, a, 100);
  second.deallocate({}, b, 200);
  staging.deallocate({}, c, 300);
  plain.deallocate({}, d, 400);
}

TEST_CASE("explain_memory counts blocks that bypass the counting layer as live, not as rounding",
          "[report][explain_memory]") {
  sim_machine const machine{crowded()};
  auto pool = sim_pages{machine.driver()} | pooled{};
  auto counted = pool | tracked{};
  void* const a = counted.allocate({}, 1000);
  void* const b = pool.allocate({}, 5000);
  memory_explanation const e = explain_memory(counted);
  check_sums(e);
  CHECK(e.pools[0].requested == 1000);
  CHECK(e.pools[0].rounding == 24);
  CHECK(e.pools[0].untracked == e.pools[0].live - 1024);
  CHECK(row_of(e, "live, not counted by").bytes == static_cast<std::int64_t>(e.pools[0].untracked));
  counted.deallocate({}, a, 1000);
  pool.deallocate({}, b, 5000);
}

TEST_CASE("explain_memory reports rounding as unknown if the counting layer counts another source too",
          "[report][explain_memory]") {
  sim_machine const machine{crowded()};
  sim_driver const driver = machine.driver();
  auto memory = sim_pages{driver} | pooled{} | limited{1_MiB} | fallback_to{sim_managed{driver}} | tracked{};
  void* const a = memory.allocate({}, 1000);
  void* const b = memory.allocate({}, 4_MiB);
  memory_explanation const e = explain_memory(driver, memory);
  check_sums(e);
  CHECK(e.pools.size() + e.host_pools.size() == 1);
  pool_share const& p = e.pools.empty() ? e.host_pools[0] : e.pools[0];
  CHECK_FALSE(p.requested);
  CHECK(p.live == 1024);
  memory.deallocate({}, a, 1000);
  memory.deallocate({}, b, 4_MiB);
}

TEST_CASE("explain_memory takes no bytes of another source for the pool's", "[report][explain_memory]") {
  sim_machine const machine{crowded()};
  sim_driver const driver = machine.driver();
  auto pool = sim_pages{driver} | limited{22_MiB} | pooled{};
  auto memory = pool | fallback_to{sim_managed{driver}} | tracked{};
  void* const own = pool.allocate({}, 20_MiB);      // not through `tracked`
  void* const other = memory.allocate({}, 15_MiB);  // of the fallback
  memory_explanation const e = explain_memory(memory);
  check_sums(e);
  CHECK(e.pools[0].live == 20_MiB);
  CHECK_FALSE(e.pools[0].requested);
  CHECK_FALSE(e.pools[0].untracked);
  memory.deallocate({}, other, 15_MiB);
  pool.deallocate({}, own, 20_MiB);
}

TEST_CASE("explain_memory without NVML: unknown parts are named in the residual, and the sum stays exact",
          "[report][explain_memory]") {
  sim_options options = crowded();
  options.accounting = sim_accounting::missing;
  sim_machine const machine{options};
  sim_pool pool{sim_pages{machine.driver()}};
  auto const model = make_device_buffer<float>(pool, 110, stream_ref{});
  CHECK_FALSE(measure_context(machine.driver()).bytes);
  memory_explanation const e = explain_memory(measure_context(machine.driver()), pool);
  check_sums(e);
  CHECK_FALSE(e.this_process);
  CHECK_FALSE(e.other_processes);
  CHECK_FALSE(e.set_aside);
  CHECK_FALSE(e.outside_pools);
  CHECK(e.process() == 2_MiB);
  CHECK(e.residual() == static_cast<std::int64_t>(4_GiB));
  CHECK(e.source.find("the driver only") != std::string::npos);
  std::string const how = row_of(e, "not accounted for").how;
  CHECK(how.find("other processes") != std::string::npos);
  CHECK(how.find("context, modules, other allocations") != std::string::npos);
  CHECK(how.find("set aside") != std::string::npos);
  CHECK_FALSE(row_of(e, "other processes").bytes);
  CHECK(e.text().find("this process, at least") != std::string::npos);
}

TEST_CASE("explain_memory with hidden processes reports sums and explains the gap",
          "[report][explain_memory]") {
  sim_options options = crowded();
  options.accounting = sim_accounting::hidden;
  sim_machine const machine{options};
  sim_pool pool{sim_pages{machine.driver()}};
  void* const p = pool.allocate({}, 100);
  memory_explanation const e = explain_memory(pool);
  check_sums(e);
  CHECK(e.set_aside == 600_MiB);
  CHECK_FALSE(e.this_process);
  CHECK(row_of(e, "other processes").how.find("container") != std::string::npos);
  memory_explanation const measured = explain_memory(pool, context_cost{1070_MiB});
  check_sums(measured);
  CHECK(measured.process() == 1070_MiB + e.reserved());
  CHECK(row_of(measured, "not accounted for").how.find("other allocations") ==
        std::string("other processes, ").size());
  pool.deallocate({}, p, 100);
}

namespace {
/// A driver whose memory_account() returns the values of the test.
struct reporting_driver : sim_driver {
  using sim_driver::sim_driver;
  reporting_driver(sim_driver const& driver, device_account what) : sim_driver(driver), reported(what) {}
  status memory_account(device_account& account) const noexcept {
    account = reported;
    return {};
  }
  device_account reported;
};
}  // namespace

TEST_CASE("explain_memory ignores an account that contradicts the driver or the pools",
          "[report][explain_memory]") {
  sim_machine const machine{crowded()};
  sim_pool pool{sim_pages{machine.driver()}};
  void* const p = pool.allocate({}, 100);
  device_account account;
  account.source = "a test";
  SECTION("the library reports less for this process than its pools reserve") {
    account.this_process = 1_MiB;
    memory_explanation const e = explain_memory(reporting_driver(machine.driver(), account), pool);
    check_sums(e);
    CHECK(e.this_process == 1_MiB);
    CHECK_FALSE(e.outside_pools);
    CHECK(e.process() == e.reserved());
    CHECK(e.gap.find("not used") != std::string::npos);
  }
  SECTION("the library reports less total memory than the driver") {
    account.total = 1_GiB;
    account.set_aside = 5;
    account.other_processes = 7;
    memory_explanation const e = explain_memory(reporting_driver(machine.driver(), account), pool);
    check_sums(e);
    CHECK(e.total == machine.options().capacity);
    CHECK_FALSE(e.set_aside);
    CHECK_FALSE(e.other_processes);
    CHECK(e.source.find("a different memory") != std::string::npos);
  }
  SECTION("the parts overlap: the residual is negative and the sum is exact") {
    account.this_process = 100_GiB;
    account.other_processes = 100_GiB;
    memory_explanation const e = explain_memory(reporting_driver(machine.driver(), account), pool);
    check_sums(e);
    CHECK(e.residual() < 0);
    CHECK(e.text().find(" -") != std::string::npos);  // only a negative number follows a space so
  }
  SECTION("the measured context is larger than the memory outside the pools") {
    account.this_process = 10_MiB + pool.trim(0) + detail::state_of(pool).reserved;
    memory_explanation const e =
        explain_memory(reporting_driver(machine.driver(), account), pool, context_cost{500_MiB});
    check_sums(e);
    CHECK(e.context == e.outside_pools);
    CHECK(e.other_allocations == 0);
  }
  pool.deallocate({}, p, 100);
}

namespace {
/// A driver whose memory_info() creates the context; only the free memory shows it.
struct waking_driver : sim_driver {
  waking_driver(sim_driver const& driver, std::size_t takes, std::size_t& awake)
      : sim_driver(driver), takes_(takes), awake_(&awake) {}
  status memory_account(device_account& account) const noexcept {
    status const s = sim_driver::memory_account(account);
    if (reports_free && *awake_ == 0) account.free += takes_;
    if (!reports_free) account.free = device_account::unknown;
    return s;
  }
  status memory_info(std::size_t& free, std::size_t& total) const noexcept {
    ++*awake_;
    return sim_driver::memory_info(free, total);
  }
  bool reports_free = true;

 private:
  std::size_t takes_;
  std::size_t* awake_;
};
}  // namespace

TEST_CASE("measure_context in a container compares the free memory before and after the context",
          "[report][explain_memory]") {
  sim_options options = crowded();
  options.accounting = sim_accounting::hidden;
  sim_machine const machine{options};
  std::size_t awake = 0;
  waking_driver const driver(machine.driver(), 500_MiB, awake);
  context_cost const first = measure_context(driver);
  CHECK(first.bytes == 500_MiB);
  memory_explanation const e = explain_memory(driver, first);
  check_sums(e);
  CHECK(e.context == 500_MiB);
  CHECK(row_of(e, "context and modules").how.find("free memory before") != std::string::npos);
  CHECK_FALSE(e.other_allocations);
  CHECK_FALSE(
      measure_context(driver).bytes);  // the context exists already: nothing is measured, nothing made up
  awake = 0;
  CHECK_FALSE(
      measure_context(waking_driver(machine.driver(), 31_MiB, awake)).bytes);  // caused by other processes
  awake = 0;
  waking_driver silent(machine.driver(), 500_MiB, awake);
  silent.reports_free = false;
  CHECK_FALSE(measure_context(silent).bytes);
}

TEST_CASE("explain_memory refuses a pool of another device with a message and makes no driver call",
          "[report][explain_memory]") {
  sim_machine const machine{{.devices = 2}};
  sim_pool first{sim_pages{machine.driver(device_id{0})}};
  sim_pool second{sim_pages{machine.driver(device_id{1})}};
  std::uint64_t const before = machine.calls()[driver_call::memory_info];
  try {
    (void)explain_memory(first, second);
    FAIL("no exception was thrown");
  } catch (misuse const& e) {
    CHECK(e.kind() == misuse_kind::wrong_device);
    CHECK(std::string(e.what()).find("once for each device") != std::string::npos);
  }
  CHECK_THROWS_AS(explain_memory(machine.driver(device_id{1}), first), misuse);
  CHECK(machine.calls()[driver_call::memory_info] == before);
  CHECK(explain_memory(second).device == 1);
}

TEST_CASE("explain_memory throws cuda_error if the driver fails, and reports unknown if NVML fails",
          "[report][explain_memory][fault]") {
  using driver_type = faulty<sim_driver>;
  sim_machine const machine{crowded()};
  fault_plan const plan;
  {
    auto pool = basic_pages<driver_type>{driver_type(machine.driver(), plan)} | pooled{} | tracked{};
    void* const p = pool.allocate({}, 100);
    plan.fail(driver_call::memory_info, 1);
    try {
      (void)explain_memory(pool);
      FAIL("no exception was thrown");
    } catch (cuda_error const& e) {
      CHECK(std::string(e.call()) == "memory_info");
      CHECK(e.device() == 0);
    }
    plan.fail(driver_call::memory_account, 1);
    memory_explanation const e = explain_memory(pool);
    check_sums(e);
    CHECK_FALSE(e.this_process);
    CHECK(e.source.find("memory_account") != std::string::npos);
    CHECK(explain_memory(pool).this_process == 1072_MiB);
    CHECK(plan.failed() == 2);
    pool.deallocate({}, p, 100);
  }
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("explain_memory accepts a driver that reports only the free memory", "[report][explain_memory]") {
  auto memory = host_memory{} | pooled{};
  void* const p = memory.allocate({}, 100);
  memory_explanation const e = explain_memory(memory);
  CHECK(e.pools.empty());
  REQUIRE(e.host_pools.size() == 1);
  CHECK(e.source.find("reports no more") != std::string::npos);
  check_sums(e);
  memory.deallocate({}, p, 100);
}

TEST_CASE("explain_memory is consistent while other threads allocate", "[report][explain_memory][threads]") {
  // A small device: a pool reserves addresses for many times its memory, of which ThreadSanitizer leaves few.
  sim_options options = crowded();
  options.capacity = 16_GiB;
  sim_machine const machine{options};
  sim_pool pool{sim_pages{machine.driver()}};
  std::vector<std::thread> workers;
  for (int t = 0; t < 3; ++t) {
    workers.emplace_back([pool]() mutable {
      for (std::size_t i = 1; i <= 300; ++i) pool.deallocate({}, pool.allocate({}, i * 1000), i * 1000);
    });
  }
  for (int i = 0; i < 20; ++i) check_sums(explain_memory(pool));
  for (std::thread& w : workers) w.join();
  memory_explanation const e = explain_memory(pool);
  check_sums(e);
  CHECK(e.pools[0].live == 0);
}

namespace {

memory_explanation explanation_of(std::size_t total) {
  memory_explanation e;
  e.total = e.free = total;
  return e;
}
/// The MiB of the total, as text() writes it.
std::string mib_in_text(std::size_t total) {
  std::string const text = explanation_of(total).text();
  std::string row = text.substr(text.find("total on the device"));
  row.resize(row.find('\n'));
  return row.substr(row.find_last_of(' ') + 1);
}

/// Sets a locale with a decimal comma for a scope; creates one if the system has none.
class comma_locale {
 public:
  comma_locale() {
    char folder[] = "/tmp/tarn_locale_XXXXXX";
    if (::mkdtemp(folder) == nullptr) return;
    folder_ = folder;
    std::string const make = "localedef -i de_DE -f UTF-8 " + folder_ + "/de_DE.UTF-8 >/dev/null 2>&1";
    (void)!std::system(make.c_str());
    ::setenv("LOCPATH", folder_.c_str(), 1);
    is_set_ = std::setlocale(LC_ALL, "de_DE.UTF-8") != nullptr;
  }
  comma_locale(comma_locale const&) = delete;
  comma_locale& operator=(comma_locale const&) = delete;
  ~comma_locale() {
    std::setlocale(LC_ALL, "C");
    ::unsetenv("LOCPATH");
    (void)!std::system(("rm -rf '" + folder_ + "'").c_str());
  }
  [[nodiscard]] bool is_set() const noexcept { return is_set_; }

 private:
  std::string folder_;
  bool is_set_ = false;
};

}  // namespace

TEST_CASE("explain_memory writes MiB with four decimals, rounded as printf rounds",
          "[report][explain_memory]") {
  for (std::size_t const bytes : {std::size_t{0}, std::size_t{1}, std::size_t{52}, std::size_t{53},
                                  std::size_t{440}, std::size_t{32768}, std::size_t{98304}, 1_MiB - 1, 1_MiB,
                                  1_MiB + 32768, 2_MiB - 53, 2_MiB - 52, 80_GiB + 12345}) {
    char expected[64];
    (void)std::snprintf(expected, sizeof expected, "%.4f", static_cast<double>(bytes) / 1048576.0);
    CHECK(mib_in_text(bytes) == expected);
  }
  memory_explanation overlapping = explanation_of(1_MiB);
  overlapping.free = 3_MiB + 1024;
  CHECK(overlapping.text().find(" -2.0010") != std::string::npos);
}

TEST_CASE("explain_memory's text does not follow the locale", "[report][explain_memory]") {
  std::string const expected = explanation_of(1_MiB + 512_KiB).text();
  REQUIRE(expected.find("1.5000") != std::string::npos);
  struct grouped : std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
  };
  std::locale const before = std::locale::global(std::locale(std::locale(), new grouped));
  CHECK(explanation_of(1_MiB + 512_KiB).text() == expected);
  std::locale::global(before);
  comma_locale const german;
  if (!german.is_set()) {
    WARN("skipped: no locale with a decimal comma, and localedef cannot create one");
    return;
  }
  char sample[8];
  (void)std::snprintf(sample, sizeof sample, "%.1f", 1.5);
  REQUIRE(std::string(sample) == "1,5");
  CHECK(explanation_of(1_MiB + 512_KiB).text() == expected);
}
