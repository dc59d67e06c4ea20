// SPDX-License-Identifier: Apache-2.0
// error: tarn: a limit needs a number of bytes: limited{60_GiB}
#include "tarn/policy/limited.hpp"
#include "tarn/source/host_memory.hpp"

int main() {
  auto memory = tarn::host_memory{} | tarn::limited{};
}
