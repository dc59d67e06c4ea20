// SPDX-License-Identifier: Apache-2.0
// error: tarn: evict_scope needs host memory as a target; pass pinned_host or a pool over it first
#include "tarn/sim.hpp"
#include "tarn/transfer/evict_scope.hpp"

int main() {
  tarn::sim_pool memory;
  auto weights = tarn::make_device_buffer<float>(memory, 5, tarn::stream_ref{});
  tarn::evict_scope evicted{memory, tarn::stream_ref{}, weights};
}
