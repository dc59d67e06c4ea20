// SPDX-License-Identifier: Apache-2.0

#include "tarn/transfer/per_device.hpp"

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/raii/device_guard.hpp"
#include "tarn/report/stats.hpp"
#include "tarn/sim.hpp"

using namespace tarn;

namespace {

sim_machine machine_of(int devices) {
  sim_options o;
  o.devices = devices;
  return sim_machine(o);
}
auto pools_on(sim_machine const& machine) {
  return [machine](device_id device) { return sim_pool{sim_pages{machine.driver(device)}}; };
}

}  // namespace

TEST_CASE("per_device makes one pool per device at its first use", "[raii][per_device]") {
  sim_machine const machine = machine_of(3);
  {
    per_device pools{pools_on(machine)};
    CHECK(pools.size() == 0);
    CHECK(pools.find(device_id{2}) == nullptr);
    sim_pool& two = pools[device_id{2}];
    CHECK(two.device() == device_id{2});
    CHECK(&pools[device_id{2}] == &two);
    CHECK(pools.find(device_id{2}) == &two);
    CHECK(pools.size() == 1);
    CHECK_FALSE(pools[device_id{0}] == two);
    std::vector<int> seen;
    pools.for_each([&](device_id device, sim_pool& pool) {
      CHECK(pool.device() == device);
      seen.push_back(device.value);
    });
    CHECK(seen == std::vector<int>{0, 2});
    auto const buffer = make_device_buffer<int>(pools[device_id{2}], 1000, stream_ref{});
    CHECK(memory_allocated(two) >= 4000);
    CHECK(memory_allocated(pools[device_id{0}]) == 0);
  }
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("per_device makes pools with default policies on the requested device", "[raii][per_device]") {
  per_device<sim_pool> pools;
  CHECK(pools[device_id{0}].device() == device_id{0});
  per_device<sim_malloc> sources;  // a bare source is a pool without policies
  CHECK(sources[device_id{0}].device() == device_id{0});
}

TEST_CASE("per_device current follows the thread's current device", "[raii][per_device]") {
  sim_machine const machine = machine_of(2);
  per_device pools{pools_on(machine)};
  CHECK(pools.current().device() == device_id{0});
  {
    basic_device_guard<sim_driver> const guard{device_id{1}};
    CHECK(pools.current().device() == device_id{1});
    std::thread([&] { CHECK(pools.current().device() == device_id{0}); }).join();
  }
  CHECK(pools.current().device() == device_id{0});
}

TEST_CASE("per_device reports the number of a device that does not exist and still serves the others",
          "[raii][per_device]") {
  sim_machine const machine = machine_of(2);
  per_device pools{pools_on(machine)};
  for (int const wrong : {2, -1, 127, 128, 1 << 30}) {
    try {
      (void)pools[device_id{wrong}];
      FAIL("no exception was thrown");
    } catch (cuda_error const& error) {
      CHECK(error.kind() == failure::no_device);
      CHECK(error.device() == wrong);
      bool const known_at_once = wrong < 0 || wrong >= decltype(pools)::most_devices;
      CHECK((std::string_view(error.call()) == "per_device") == known_at_once);
    }
    CHECK(pools.find(device_id{wrong}) == nullptr);
  }
  CHECK(pools.size() == 0);
  CHECK(pools[device_id{1}].device() == device_id{1});
}

TEST_CASE("per_device retries a pool whose construction failed, and refuses a pool of another device",
          "[raii][per_device]") {
  sim_machine const machine = machine_of(2);
  int tries = 0;
  per_device pools{[&](device_id device) {
    if (++tries == 1) throw length_error("not yet");
    return sim_pool{sim_pages{machine.driver(tries == 2 ? device_id{0} : device)}};
  }};
  CHECK_THROWS_AS(pools[device_id{1}], length_error);
  try {
    (void)pools[device_id{1}];
    FAIL("no exception was thrown");
  } catch (misuse const& error) {
    CHECK(error.kind() == misuse_kind::wrong_device);
    CHECK(std::string_view(error.what()).find("device 1") != std::string_view::npos);
  }
  CHECK(pools.size() == 0);
  CHECK(pools[device_id{1}].device() == device_id{1});
}

TEST_CASE("per_device makes a pool once when several threads request it at once",
          "[raii][per_device][threads]") {
  // Address-only backing: ThreadSanitizer has no room for the ranges of four devices.
  sim_machine const machine{sim_options{.devices = 4, .backing = sim_backing::address_only}};
  std::atomic<int> made{0};
  per_device pools{[&](device_id device) {
    ++made;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // so that others request it too
    return sim_pages{machine.driver(device)} | pooled{} | limited{1_GiB};
  }};
  std::vector<std::thread> threads;
  std::atomic<bool> go{false};
  std::atomic<int> wrong{0};
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      while (!go.load()) {
      }
      for (int i = 0; i < 200; ++i) {
        device_id const device{(t + i) % 4};
        auto& pool = pools[device];
        if (pool.device() != device) ++wrong;
        pool.deallocate(stream_ref{}, pool.allocate(stream_ref{}, 512), 512);
      }
    });
  }
  go = true;
  for (auto& t : threads) t.join();
  CHECK(made == 4);
  CHECK(wrong == 0);
}

TEST_CASE("per_device allows the construction of a pool to request the pools of other devices",
          "[raii][per_device][threads]") {
  sim_machine const machine{sim_options{.devices = 3, .backing = sim_backing::address_only}};
  int made = 0;
  std::atomic<int> wrong{0};  // Catch2's assertions are not thread-safe
  std::function<sim_pool*(device_id)> pool_of;
  per_device pools{[&](device_id device) {
    ++made;
    device_id const below{device.value - 1};
    if (device.value != 0 && pool_of(below)->device() != below) ++wrong;
    return sim_pool{sim_pages{machine.driver(device)}};
  }};
  pool_of = [&](device_id device) { return &pools[device]; };
  std::thread other([&] {
    if (pools[device_id{1}].device() != device_id{1}) ++wrong;
  });
  CHECK(pools[device_id{2}].device() == device_id{2});
  other.join();
  CHECK(wrong == 0);
  CHECK(pools.size() == 3);
  CHECK(made == 3);
}

TEST_CASE("per_device refuses a pool whose construction requests itself, and can be retried",
          "[raii][per_device]") {
  sim_machine const machine = machine_of(2);
  bool in_circles = true;
  std::function<void(device_id)> ask;
  per_device pools{[&](device_id device) {
    if (in_circles) ask(device_id{1 - device.value});  // device 0 requests 1, and 1 requests 0
    return sim_pool{sim_pages{machine.driver(device)}};
  }};
  ask = [&](device_id device) { (void)pools[device]; };
  for (int const first : {0, 1}) {
    try {
      (void)pools[device_id{first}];
      FAIL("no exception was thrown");
    } catch (misuse const& error) {
      CHECK(error.kind() == misuse_kind::recursion);
      std::string const named = "creating the pool of device " + std::to_string(first);
      CHECK(std::string_view(error.what()).find(named) != std::string_view::npos);
    }
    CHECK(pools.size() == 0);
  }
  in_circles = false;
  CHECK(pools[device_id{0}].device() == device_id{0});
  CHECK(pools[device_id{1}].device() == device_id{1});
}
