// SPDX-License-Identifier: Apache-2.0
// error: this temporary is destroyed before the loop begins
#include <vector>

#include "tarn/source/host_memory.hpp"
#include "tarn/transfer/stream_batches.hpp"

int main() {
  for (auto batch : tarn::stream_batches(std::vector<int>(10), {}, tarn::host_memory{}, tarn::stream_ref{})) {
  }
}
