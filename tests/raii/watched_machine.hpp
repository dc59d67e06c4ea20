// SPDX-License-Identifier: Apache-2.0
#pragma once
// A simulated machine with the stream-order checker, under one of many schedules. With a nonzero seed some
// streams do not complete until they are synchronized, and events complete late.

#include <cstddef>
#include <cstdint>

#include "catch.hpp"
#include "contract/owners_reported.hpp"
#include "tarn/sim.hpp"

namespace tarn_test {

struct watched_machine {
  explicit watched_machine(std::uint64_t seed, std::size_t capacity = tarn::literals::operator""_GiB(1))
      : machine(options(seed, capacity)) {}

  [[nodiscard]] auto pool() const {
    return tarn::sim_pages{machine.driver()} | tarn::pooled{} | owners_reported{machine} | tarn::tracked{};
  }
  [[nodiscard]] auto pinned() const {
    return tarn::sim_pinned_host{machine.driver()} | tarn::pooled{} | owners_reported{machine} |
           tarn::tracked{};
  }
  /// Enqueues work that lasts one second of the machine's time.
  [[nodiscard]] auto busy() const {
    return [m = machine](tarn::stream_ref stream) { REQUIRE(m.launch(stream, 1'000'000'000).ok()); };
  }

  tarn::sim_machine machine;

 private:
  [[nodiscard]] static tarn::sim_options options(std::uint64_t seed, std::size_t capacity) {
    tarn::sim_options o;
    o.capacity = capacity;
    o.taken = 0;
    o.checks = tarn::sim_checks::stream_order;
    o.seed = seed;
    o.slow_streams = seed == 0 ? 0 : 500;
    o.slowness = 5'000'000'000;
    o.late_events = seed == 0 ? 0 : 1'000'000;
    return o;
  }
};

}  // namespace tarn_test
