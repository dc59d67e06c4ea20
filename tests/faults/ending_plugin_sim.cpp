// SPDX-License-Identifier: Apache-2.0
#include "faults/ending_plugin.hpp"
#include "tarn/sim.hpp"

namespace {
struct simulated {
  tarn::sim_pool operator()() const { return {}; }
};
}  // namespace
TARN_TEST_PLUGIN(simulated)
