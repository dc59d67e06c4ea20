// SPDX-License-Identifier: Apache-2.0

#include "tarn/raii/device_guard.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>
#include <thread>
#include <type_traits>

#include "catch.hpp"
#include "tarn/driver/sim/sim_driver.hpp"

using namespace tarn;

namespace {
using guard = basic_device_guard<sim_driver>;

device_id current() {
  device_id now{-1};
  CHECK(sim_driver::current_device(now).ok());
  return now;
}
/// A driver that counts what sets the device or asks for it.
struct counting_driver : sim_driver {
  static status current_device(device_id& device) noexcept {
    ++queries;
    return sim_driver::current_device(device);
  }
  static status set_current_device(device_id device) noexcept {
    ++changes;
    return sim_driver::set_current_device(device);
  }
  static inline int queries = 0;
  static inline int changes = 0;
};
}  // namespace

TEST_CASE("device_guard of the current device costs one query and restores nothing", "[raii][device_guard]") {
  {
    basic_device_guard<counting_driver> const current_one{device_id{0}};
    CHECK(sim_driver::set_current_device(device_id{1}).ok());
  }
  CHECK(current() == device_id{1});
  CHECK(sim_driver::set_current_device(device_id{0}).ok());
  CHECK(counting_driver::queries == 1);
  CHECK(counting_driver::changes == 0);
}

TEST_CASE("device_guard restores the previous device", "[raii][device_guard]") {
  static_assert(!std::is_copy_constructible_v<guard> && !std::is_move_constructible_v<guard>);
  {
    guard const outer{device_id{1}};
    {
      guard const inner{device_id{2}};
      CHECK(current() == device_id{2});
      CHECK(inner.before() == device_id{1});
      guard const again{device_id{2}};
      CHECK(current() == device_id{2});
    }
    CHECK(current() == device_id{1});
  }
  CHECK(current() == device_id{0});
}

TEST_CASE("device_guard restores the device during stack unwinding", "[raii][device_guard]") {
  try {
    guard const g{device_id{3}};
    throw 0;
  } catch (int) {
  }
  CHECK(current() == device_id{0});
}

TEST_CASE("device_guard refuses a device that does not exist and changes nothing", "[raii][device_guard]") {
  guard const g{device_id{1}};
  CHECK_THROWS_AS(guard{device_id{-1}}, cuda_error);
  CHECK(current() == device_id{1});
}

TEST_CASE("device_guard objects end in any order and restore the device from before the first",
          "[raii][device_guard]") {
  for (auto const& devices :
       {std::array{1, 2, 3}, std::array{1, 1, 2}, std::array{0, 1, 1}, std::array{2, 0, 2}}) {
    std::array<std::size_t, 3> order{0, 1, 2};
    do {
      std::optional<guard> guards[3];
      for (std::size_t i = 0; i < 3; ++i) guards[i].emplace(device_id{devices[i]});
      for (std::size_t const ended : order) {
        guards[ended].reset();
        device_id expected{0};
        for (std::size_t i = 0; i < 3; ++i) {
          if (guards[i]) expected = device_id{devices[i]};
        }
        CHECK(current() == expected);
      }
    } while (std::next_permutation(order.begin(), order.end()));
  }
}

TEST_CASE("device_guard objects on two threads restore each thread's own device",
          "[raii][device_guard][threads]") {
  std::atomic<int> step{0};
  auto const await = [&](int wanted) {
    while (step.load() != wanted) std::this_thread::yield();
  };
  std::thread other([&] {
    await(1);
    {
      guard const mine{device_id{2}};
      step = 2;
      await(3);
      CHECK(current() == device_id{2});
    }
    CHECK(current() == device_id{0});
  });
  {
    guard const mine{device_id{1}};
    step = 1;
    await(2);
    CHECK(current() == device_id{1});
  }
  CHECK(current() == device_id{0});
  step = 3;
  other.join();
}
