// SPDX-License-Identifier: Apache-2.0
// error: tarn: watched watches blocks; put it over the pool: pages | pooled{} | watched{}
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/watched.hpp"
#include "tarn/source/sim_sources.hpp"

int main() {
  auto memory = tarn::sim_pages{} | tarn::watched{} | tarn::pooled{};
  memory.deallocate({}, memory.allocate({}, 10), 10);
}
