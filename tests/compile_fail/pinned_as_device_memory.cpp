// SPDX-License-Identifier: Apache-2.0
// error: tarn: the host can access this memory: take basic_any_resource<Driver, device_accessible, host_accessible>
#include <tarn/sim.hpp>
#include <tarn/tarn.hpp>

void use(tarn::any_resource) {}
int main() {
  use(tarn::pinned_host{} | tarn::pooled{} | tarn::tracked{});
}
