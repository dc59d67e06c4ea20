// SPDX-License-Identifier: Apache-2.0
#pragma once
// Element conversion as simulated work: a kernel whose reads and writes the order checker records.

#include <cstddef>

#include "tarn/core/element.hpp"
#include "tarn/driver/sim/sim_work.hpp"

namespace TARN_NAMESPACE::detail {

template <class To, class From>
class sim_conversion final : public sim_element_work {
 public:
  sim_conversion(To* target, From const* source, std::size_t count, int device)
      : count_(count), device_(device) {
    to = target;
    from = source;
    touched = {sim_reads(from, count * sizeof(From)), sim_writes(to, count * sizeof(To))};
  }

  sim_code check_access(sim_memory& memory) noexcept override {
    for (sim_access const& a : touched) {
      if (!memory.is_reachable(a.p, device_)) return sim_code::illegal_address;
    }
    return sim_element_work::check_access(memory);
  }
  void write() noexcept override {
    for (std::size_t i = 0; i < count_; ++i)
      static_cast<To*>(to)[i] = element_cast<To>(static_cast<From const*>(from)[i]);
  }

 private:
  std::size_t count_;
  int device_;
};

}  // namespace TARN_NAMESPACE::detail
