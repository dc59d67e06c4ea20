// SPDX-License-Identifier: Apache-2.0
// error: tarn: the free amount of this memory is unknown: no driver reports it for pinned or managed memory; add | tarn::limited{bytes}
#include "tarn/sim.hpp"
#include "tarn/transfer/micro_batches.hpp"

int main() {
  tarn::sim_pinned_host memory;
  tarn::micro_batches parts(100, 5, memory);
}
