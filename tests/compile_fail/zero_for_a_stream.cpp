// SPDX-License-Identifier: Apache-2.0
// error: write tarn::stream_ref{} for the default stream
#include "tarn/sim.hpp"
#include "tarn/tarn.hpp"

int main() {
  tarn::sim_pool pool;
  void* const p = pool.allocate(0, 1000);
  return p == nullptr;
}
