// SPDX-License-Identifier: Apache-2.0
#pragma once
// A policy that reports the owner of each block to the simulated machine's order checker, so that it finds
// uses that are not ordered after those of an earlier owner.

#include "tarn/driver/sim/sim_driver.hpp"
#include "tarn/policy/compose.hpp"
#include "tarn/policy/resource_adaptor.hpp"

namespace tarn_test {

struct owners_reported {
  tarn::sim_machine machine;
  template <class Upstream>
  using layer = tarn::around_layer<owners_reported, Upstream>;

  void* around_allocate(tarn::request const& r, auto const& next) {
    void* const p = next.allocate(r);
    if (p != nullptr) machine.allocated(p, r.bytes, r.stream);
    return p;
  }
  void around_deallocate(tarn::request const& r, void* p, auto const& next) noexcept {
    machine.freed(p, r.bytes, r.stream);
    next.deallocate(r, p);
  }
};

}  // namespace tarn_test
