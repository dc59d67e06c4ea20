// SPDX-License-Identifier: Apache-2.0
#pragma once
// For tests of programs that use tarn: allocations that fail, and what is still allocated at the end. Opt-in.
// The simulated device is tarn/sim.hpp.

#include "tarn/tarn.hpp"

#include "tarn/policy/failing.hpp"
#include "tarn/report/live_blocks_summary.hpp"
