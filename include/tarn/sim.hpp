// SPDX-License-Identifier: Apache-2.0
#pragma once
// The simulated device, for tests and for machines without a GPU. Opt-in, since it takes long to compile.

#include "tarn/core/config.hpp"

#include "tarn/policy/device_pool.hpp"
#include "tarn/raii/stream.hpp"
#include "tarn/source/sim_sources.hpp"

namespace tarn {

/// device_pool on the simulated device: `tarn::sim_pool pool;` simulates an H200, `sim_pool{sim_pages{machine.driver(0)}}` a
/// user-defined machine.
using sim_pool = pool_over<sim_pages>;
/// An owning stream of the simulated device.
using sim_stream = basic_stream<sim_driver>;

}  // namespace tarn
