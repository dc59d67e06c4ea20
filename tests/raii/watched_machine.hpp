// SPDX-License-Identifier: Apache-2.0
#pragma once
// A simulated machine whose order checker watches, under one schedule of many: with a seed some streams seem never to end
// until they are waited for, and events come late. Above it: tests of raii. Below it: sim.

#include <cstddef>
#include <cstdint>
#include <utility>

#include "catch.hpp"
#include "tarn/sim.hpp"

namespace tarn_test {

/// Tells the machine's order checker whose each block is: the layer above a pool.
template <class Upstream>
class owners_told_layer;
struct owners_told {
  tarn::sim_machine machine;
  template <class Upstream>
  using layer = owners_told_layer<Upstream>;
};
template <class Upstream>
class owners_told_layer {
 public:
  using upstream_type = Upstream;
  using driver_type = typename Upstream::driver_type;
  using properties = typename Upstream::properties;

  owners_told_layer(Upstream upstream, owners_told options)
      : upstream_(std::move(upstream)), machine_(std::move(options.machine)) {}

  void* allocate(tarn::stream_ref stream, std::size_t bytes, std::size_t alignment) {
    return told(upstream_.allocate(stream, bytes, alignment), bytes, stream);
  }
  void deallocate(tarn::stream_ref stream, void* p, std::size_t bytes, std::size_t alignment) noexcept {
    if (p != nullptr) machine_.freed(p, bytes, stream);
    upstream_.deallocate(stream, p, bytes, alignment);
  }
  void* allocate_sync(std::size_t bytes, std::size_t alignment) {
    return told(upstream_.allocate_sync(bytes, alignment), bytes, {});
  }
  void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment) noexcept {
    if (p != nullptr) machine_.freed(p, bytes, {});
    upstream_.deallocate_sync(p, bytes, alignment);
  }
  [[nodiscard]] Upstream& upstream() noexcept { return upstream_; }
  [[nodiscard]] driver_type const& driver() const noexcept { return upstream_.driver(); }

 private:
  void* told(void* p, std::size_t bytes, tarn::stream_ref stream) {
    if (p != nullptr) machine_.allocated(p, bytes, stream);
    return p;
  }
  Upstream upstream_;
  tarn::sim_machine machine_;
};

struct watched_machine {
  explicit watched_machine(std::uint64_t seed, std::size_t capacity = tarn::literals::operator""_GiB(1))
      : machine(options(seed, capacity)) {}

  [[nodiscard]] auto pool() const {
    return tarn::sim_pages{machine.driver()} | tarn::pooled{} | owners_told{machine} | tarn::tracked{};
  }
  [[nodiscard]] auto pinned() const {
    return tarn::sim_pinned_host{machine.driver()} | tarn::pooled{} | owners_told{machine} | tarn::tracked{};
  }
  /// Puts work on a stream that lasts a second of the machine's time.
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
