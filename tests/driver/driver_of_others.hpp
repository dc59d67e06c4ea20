// SPDX-License-Identifier: Apache-2.0
#pragma once
// The simulated driver as cuda_driver sees the streams that a program made with cudaStreamCreate: they may be
// destroyed without its knowledge, so that it must not be asked about one by its identity.

#include "tarn/driver/sim/sim_driver.hpp"

namespace tarn_test {

class driver_of_others : public tarn::sim_marking_driver {
 public:
  using sim_marking_driver::sim_marking_driver;
  [[nodiscard]] bool has_made(tarn::stream_ref) const noexcept { return false; }
  [[nodiscard]] tarn::stream_id made_identity(void*) const noexcept { return tarn::stream_ref::unknown_id; }
};

}  // namespace tarn_test
