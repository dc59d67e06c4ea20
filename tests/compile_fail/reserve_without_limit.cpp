// SPDX-License-Identifier: Apache-2.0
// error: tarn: reserve() divides a limit on live bytes, which must be the uppermost layer: `auto memory = pool | tarn::limited{bytes};`, then reserve(memory, ...)
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/tracked.hpp"
#include "tarn/source/host_memory.hpp"
#include "tarn/transfer/reservation.hpp"

int main() {
  auto const memory = tarn::host_memory{} | tarn::pooled{} | tarn::limited{100} | tarn::tracked{};
  (void)tarn::reserve(memory, 5);
}
