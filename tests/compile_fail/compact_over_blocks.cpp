// SPDX-License-Identifier: Apache-2.0
// error: tarn: only a pool over a page source, such as cuda_pages, can be compacted
#include "tarn/policy/pooled.hpp"
#include "tarn/raii/compact.hpp"
#include "tarn/source/host_memory.hpp"

int main() {
  auto memory = tarn::host_memory{} | tarn::pooled{};
  (void)tarn::compact(memory);
}
