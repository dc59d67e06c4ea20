// SPDX-License-Identifier: Apache-2.0
// error: tarn: memory_by_tag needs recorded tags; add: | tarn::with_history{}
#include "tarn/policy/pooled.hpp"
#include "tarn/report/by_tag.hpp"
#include "tarn/source/host_memory.hpp"

int main() {
  auto memory = tarn::host_memory{} | tarn::pooled{};
  return static_cast<int>(tarn::memory_by_tag(memory).size());
}
