// SPDX-License-Identifier: Apache-2.0
// error: this temporary is destroyed before the loop begins
#include "tarn/source/host_memory.hpp"
#include "tarn/transfer/collect_batches.hpp"

int main() {
  for (auto batch :
       tarn::collect_batches(tarn::make_device_buffer<int>(tarn::host_memory{}, 10, tarn::stream_ref{}), {},
                             tarn::stream_ref{})) {
  }
}
