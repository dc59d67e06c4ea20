// SPDX-License-Identifier: Apache-2.0
#pragma once
// For tests of programs that use tarn: allocations that fail. Opt-in. The simulated device is tarn/sim.hpp.

#include "tarn/tarn.hpp"

#include "tarn/policy/failing.hpp"
