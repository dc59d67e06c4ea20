// SPDX-License-Identifier: Apache-2.0
// error: tarn: nccl.h or CUDA was not found: install libnccl-dev
#include "tarn/nccl.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/sim.hpp"

int main() {
  auto memory = tarn::sim_pages{} | tarn::pooled{};
  tarn::register_with_nccl(memory, nullptr);
}
