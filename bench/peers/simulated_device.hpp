// SPDX-License-Identifier: Apache-2.0
#pragma once
// simulated_device: a simulated GPU for one pool. It has address space only, so 140 GiB fit on any machine;
// its calls are counted and given modelled costs.

#include <cstdint>
#include <vector>

#include "peers/peer.hpp"
#include "tarn/driver/sim/sim_driver.hpp"

namespace tarn::bench {

/// One device of a separate simulated machine.
class simulated_device {
 public:
  using driver_type = sim_driver;
  static constexpr place_of_memory where = place_of_memory::simulated;

  explicit simulated_device(setup const& s) : machine_(options(s.capacity)), streams_(s.streams) {
    for (stream_ref& stream : streams_) (void)driver().create_stream(stream);
  }

  [[nodiscard]] driver_type driver() const noexcept { return machine_.driver(); }
  /// Returns a stream with the identity that the device gave it, as `identified` stores it.
  [[nodiscard]] stream_ref stream(std::size_t index) const noexcept { return streams_[index]; }
  [[nodiscard]] std::uint64_t driver_calls() const { return machine_.calls().acting(); }
  [[nodiscard]] std::uint64_t driver_ns() const { return machine_.calls().driver_ns; }

 private:
  static sim_options options(std::uint64_t capacity) {
    sim_options o;
    o.backing = sim_backing::address_only;
    if (capacity != 0) {
      o.capacity = static_cast<std::size_t>(capacity);
      o.taken = 0;  // a given capacity means all of it
    }
    return o;
  }
  sim_machine machine_;
  std::vector<stream_ref> streams_;
};

}  // namespace tarn::bench
