// SPDX-License-Identifier: Apache-2.0
// error: tarn: with_history records blocks; put it above the pool: pages | pooled{} | with_history{}
#include "tarn/debug/with_history.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/source/sim_sources.hpp"

int main() {
  auto memory = tarn::sim_pages{} | tarn::with_history{} | tarn::pooled{};
  memory.deallocate({}, memory.allocate({}, 10), 10);
}
