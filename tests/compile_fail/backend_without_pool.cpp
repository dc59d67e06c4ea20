// SPDX-License-Identifier: Apache-2.0
// error: tarn: allocator_backend needs a pool; add: | tarn::pooled{}
#include "tarn/policy/tracked.hpp"
#include "tarn/report/stats.hpp"
#include "tarn/source/host_memory.hpp"

int main() {
  auto memory = tarn::host_memory{} | tarn::tracked{};
  return tarn::allocator_backend(memory) == nullptr;
}
