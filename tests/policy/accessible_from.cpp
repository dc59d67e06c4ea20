// SPDX-License-Identifier: Apache-2.0

#include "tarn/policy/accessible_from.hpp"

#include <string_view>
#include <vector>

#include "catch.hpp"
#include "driver/faulty.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/tracked.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/sim.hpp"

using namespace tarn;

namespace {

sim_machine machine_of(int devices, sim_peers peers = sim_peers::reachable) {
  sim_options o;
  o.devices = devices;
  o.peers = peers;
  return sim_machine(o);
}
/// Whether the device's work may access the address.
bool may_touch(sim_machine const& machine, int device, void const* p) {
  sim_driver const driver = machine.driver(device_id{device});
  char host = 0;
  return driver.copy(stream_ref{}, &host, p, 1).ok();
}

using faulty_driver = faulty<sim_driver>;

}  // namespace

TEST_CASE("accessible_from makes all pool memory accessible from the named devices only",
          "[policy][accessible_from][pages]") {
  sim_machine const machine = machine_of(4);
  {
    auto pool = sim_pages{machine.driver(device_id{1})} | limited{64_MiB} | accessible_from{0, 1, 3} |
                pooled{} | tracked{};
    for (std::size_t const bytes : {std::size_t{1000}, std::size_t{5_MiB}, std::size_t{30_MiB}}) {
      void* const p = pool.allocate(stream_ref{}, bytes);
      for (char const* at : {static_cast<char*>(p), static_cast<char*>(p) + bytes - 1}) {
        CHECK(may_touch(machine, 0, at));
        CHECK(may_touch(machine, 1, at));
        CHECK_FALSE(may_touch(machine, 2, at));
        CHECK(may_touch(machine, 3, at));
      }
      pool.deallocate(stream_ref{}, p, bytes);
    }
    auto const& layer = nearest(pool, [](auto& l) -> decltype((l.reached_from(), l)) { return l; });
    CHECK(std::vector<device_id>(layer.reached_from().begin(), layer.reached_from().end()) ==
          std::vector<device_id>{0, 3});
    CHECK(pool.device() == device_id{1});
    // Two shares for each map, and none when no page is mapped.
    auto const calls = machine.calls();
    CHECK(calls[driver_call::share_pages] == 2 * calls[driver_call::map_pages]);
    machine.reset_calls();
    pool.deallocate(stream_ref{}, pool.allocate(stream_ref{}, 1000), 1000);
    CHECK(machine.calls()[driver_call::share_pages] == 0);
  }
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("accessible_from throws before any allocation if a device cannot reach the memory or is missing",
          "[policy][accessible_from][pages]") {
  sim_machine const machine = machine_of(2, sim_peers::apart);
  sim_pages const pages{machine.driver(device_id{1})};
  try {
    (void)(pages | accessible_from{0});
    FAIL("no exception was thrown");
  } catch (unreachable_device const& error) {
    CHECK(error.memory() == device_id{1});
    CHECK(error.from() == device_id{0});
    std::string_view const text = error.what();
    CHECK(text.find("device 1") != text.npos);
    CHECK(text.find("device 0") != text.npos);
  }
  try {
    (void)(pages | accessible_from{7});
    FAIL("no exception was thrown");
  } catch (cuda_error const& error) {
    CHECK(error.kind() == failure::no_device);
    CHECK(error.device() == 7);
  }
  std::vector<device_id> const itself{device_id{1}};
  auto alone = pages | accessible_from(std::span<device_id const>(itself)) | pooled{};
  alone.deallocate(stream_ref{}, alone.allocate(stream_ref{}, 100), 100);
  CHECK(machine.calls()[driver_call::share_pages] == 0);
  stack<sim_pages, accessible_from, pooled> by_default{pages, accessible_from{}, pooled{}};
  by_default.deallocate(stream_ref{}, by_default.allocate(stream_ref{}, 100), 100);
}

TEST_CASE("accessible_from leaves no page mapped that could not be shared",
          "[policy][accessible_from][pages]") {
  for (std::uint64_t which = 1; which <= 2; ++which) {
    sim_machine const machine = machine_of(3);
    fault_plan const plan;
    {
      auto pool = basic_pages<faulty_driver>(faulty_driver(machine.driver(), plan)) | accessible_from{1, 2} |
                  pooled{};
      plan.reset();
      plan.fail(driver_call::share_pages, which);
      CHECK_THROWS_AS(pool.allocate(stream_ref{}, 1_MiB), cuda_error);
      CHECK(machine.leaks().maps == 0);
      void* const p = pool.allocate(stream_ref{}, 1_MiB);
      CHECK(may_touch(machine, 1, p));
      CHECK(may_touch(machine, 2, p));
      pool.deallocate(stream_ref{}, p, 1_MiB);
      plan.fail(driver_call::can_share, 1);
      CHECK_THROWS_AS(basic_pages<faulty_driver>(faulty_driver(machine.driver(), plan)) | accessible_from{1},
                      cuda_error);
    }
    CHECK(machine.leaks().total() == 0);
  }
}
