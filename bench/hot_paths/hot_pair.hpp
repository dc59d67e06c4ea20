// SPDX-License-Identifier: Apache-2.0
#pragma once
// The allocate+free pair that instructions.sh counts.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "hot_paths/timing.hpp"
#include "peers/peer.hpp"
#include "peers/simulated_device.hpp"
#include "tarn/driver/stream_life.hpp"

namespace tarn::bench {

/// The simulated driver, which answers at once that no stream is captured: the instructions of a pair are
/// then tarn's. Which streams exist is looked up as in cuda_driver.
class idle_driver : public sim_marking_driver {
 public:
  using sim_marking_driver::sim_marking_driver;
  status is_capturing(stream_ref, bool& yes) const noexcept {
    yes = false;
    return {};
  }
  [[nodiscard]] bool has_made(stream_ref stream) const noexcept { return streams().has(stream.id()); }
  static detail::made_streams& streams() noexcept {
    static constinit detail::made_streams made;
    return made;
  }
};
class idle_device : public simulated_device {
 public:
  using driver_type = idle_driver;
  explicit idle_device(setup const& s) : simulated_device(s) {
    for (std::size_t i = 0; i < s.streams; ++i) idle_driver::streams().add(stream(i).id());
  }
  [[nodiscard]] driver_type driver() const noexcept { return {simulated_device::driver()}; }
};

struct counts {
  std::size_t bytes = 0;
  std::uint64_t pairs = 0;
};

template <peer P>
bool run_if(std::string_view name, counts n) {
  if (name != P::name) return false;
  P pool{setup{}};
  for (std::uint64_t i = 0; i < n.pairs; ++i) {
    void* const block = pool.allocate(0, n.bytes);
    keep(block);
    pool.deallocate(0, block, n.bytes);
  }
  return true;
}

/// In a separate translation unit: one more caller of the same functions would change the compiler's inlining
/// decisions elsewhere.
bool run_if_watched(std::string_view name, counts n);

}  // namespace tarn::bench
