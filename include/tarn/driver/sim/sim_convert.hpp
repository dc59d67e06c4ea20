// SPDX-License-Identifier: Apache-2.0
#pragma once
// Element conversion as simulated work: a kernel whose reads and writes the order checker records.

#include <atomic>
#include <cstddef>
#include <vector>

#include "tarn/core/element.hpp"
#include "tarn/driver/sim/sim_work.hpp"

namespace tarn::detail {

template <class To, class From>
class sim_conversion final : public sim_work {
 public:
  sim_conversion(To* to, From const* from, std::size_t count, int device)
      : touched_{sim_reads(from, count * sizeof(From)), sim_writes(to, count * sizeof(To))},
        to_(to),
        from_(from),
        count_(count),
        device_(device) {}

  sim_code check_access(sim_memory& memory) noexcept override {
    for (sim_access const& a : touched_) {
      if (!memory.accessible(a.p, a.bytes) || !memory.is_reachable(a.p, device_)) {
        return sim_code::illegal_address;
      }
      show_tool(memory, a);
    }
    if (!memory.is_real(to_) || !memory.is_real(from_)) real_.store(false, std::memory_order_relaxed);
    return sim_code::ok;
  }
  void act() noexcept override {
    if (!real_.load(std::memory_order_relaxed)) return;
    for (std::size_t i = 0; i < count_; ++i) to_[i] = element_cast<To>(from_[i]);
  }
  [[nodiscard]] std::vector<sim_access> const& accesses() const noexcept override { return touched_; }

 private:
  std::vector<sim_access> touched_;
  To* to_;
  From const* from_;
  std::size_t count_;
  int device_;
  std::atomic<bool> real_{true};  ///< atomic for the same reason as sim_inside_work
};

}  // namespace tarn::detail
