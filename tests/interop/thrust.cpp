// SPDX-License-Identifier: Apache-2.0
// Thrust's host-side device systems on the simulated device and on host memory; built once for each system.

#include "interop/thrust.hpp"

#include "tarn/sim.hpp"
#include "tarn/source/host_memory.hpp"

TEST_CASE("thrust_allocator and par work with a pool of the simulated device", "[interop][thrust]") {
  tarn_test::thrust_contract(tarn::sim_pool{}, tarn::stream_ref{});
}
TEST_CASE("thrust_allocator and par work with a pool of host memory", "[interop][thrust]") {
  tarn_test::thrust_contract(tarn::host_memory{} | tarn::pooled{} | tarn::tracked{}, tarn::stream_ref{});
}
