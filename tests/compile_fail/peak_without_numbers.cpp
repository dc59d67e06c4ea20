// SPDX-License-Identifier: Apache-2.0
// error: tarn: peak_scope needs exact numbers; add: | tarn::tracked{}
#include "tarn/policy/pooled.hpp"
#include "tarn/raii/peak_scope.hpp"
#include "tarn/source/host_memory.hpp"

int main() {
  auto memory = tarn::host_memory{} | tarn::pooled{};
  tarn::peak_scope peak{memory};
}
