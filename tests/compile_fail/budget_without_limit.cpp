// SPDX-License-Identifier: Apache-2.0
// error: tarn: budget_scope needs a limit to lower; add: | tarn::limited{bytes}
#include "tarn/raii/budget_scope.hpp"
#include "tarn/source/host_memory.hpp"

int main() {
  tarn::host_memory memory;
  tarn::budget_scope budget{memory, 5};
}
