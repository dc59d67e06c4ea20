// SPDX-License-Identifier: Apache-2.0
// error: tarn: explain_memory needs a resource that counts its bytes; add: | tarn::pooled{}
#include "tarn/report/explain_memory.hpp"
#include "tarn/source/host_memory.hpp"

int main() {
  (void)tarn::explain_memory(tarn::host_memory{});
}
