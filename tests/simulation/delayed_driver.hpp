// SPDX-License-Identifier: Apache-2.0
#pragma once
// A simulated driver whose calls sometimes take real time, before or after their work, so that other threads
// run while one is in the driver.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <utility>

#include "driver/wrapped_driver.hpp"
#include "random_numbers.hpp"
#include "tarn/driver/sim/sim_driver.hpp"

namespace simulation {

/// How often and how long calls are delayed, in all threads.
struct driver_delays {
  static inline std::atomic<unsigned> one_in{16};  ///< calls; 0: none
  static inline std::atomic<std::uint64_t> longest_us{100};
  static inline std::atomic<std::uint64_t> made{0};

  static void perhaps() noexcept {
    static std::atomic<std::uint64_t> threads{0};
    static thread_local random_numbers random(threads.fetch_add(1) + 77);
    unsigned const n = one_in.load(std::memory_order_relaxed);
    if (n == 0 || random.below(n) != 0) return;
    made.fetch_add(1, std::memory_order_relaxed);
    // Mostly a moment in which another processor continues; seldom long enough for many calls.
    std::uint64_t const most = random.percent(90) ? 5 : longest_us.load(std::memory_order_relaxed);
    std::uint64_t const us = random.below(most + 1);
    if (us == 0) return std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(us));
  }
};

template <class Driver>
class delayed : public tarn_test::wrapped_driver<Driver, delayed<Driver>> {
  using base = tarn_test::wrapped_driver<Driver, delayed>;

 public:
  delayed() = default;
  explicit delayed(tarn::sim_driver const& driver) noexcept : base(Driver(driver)) {}

  template <class F>
  tarn::status through(tarn::driver_call, F const& f) const noexcept {
    driver_delays::perhaps();
    tarn::status const s = f();
    driver_delays::perhaps();
    return s;
  }
};

}  // namespace simulation
