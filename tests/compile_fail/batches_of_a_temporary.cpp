// SPDX-License-Identifier: Apache-2.0
// error: this temporary is destroyed before the loop begins
#include <vector>

#include "tarn/raii/stream_batches.hpp"
#include "tarn/source/host_memory.hpp"

int main() {
  for (auto batch : tarn::stream_batches(std::vector<int>(10), {}, tarn::host_memory{}, tarn::stream_ref{})) {
  }
}
