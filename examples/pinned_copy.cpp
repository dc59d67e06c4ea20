// SPDX-License-Identifier: Apache-2.0
// A round trip: pinned host memory, a copy to the device, a copy back, all in the order of one stream.

#include <tarn/tarn.hpp>

#include <algorithm>
#include <iostream>
#include <numeric>

int main() {
  tarn::stream const stream;
  tarn::device_pool pool;
  auto pinned_memory = tarn::pinned_host{} | tarn::pooled{};
  tarn::pinned_buffer<int, decltype(pinned_memory)> host(pinned_memory, 1000, tarn::elements::uninitialised,
                                                         stream);
  std::iota(host.begin(), host.end(), 1);

  auto device = tarn::make_device_buffer<int>(pool, host.size(), stream);
  device.copy_from(host);
  stream.synchronize();  // the copy reads `host` until here
  std::fill(host.begin(), host.end(), 0);
  device.copy_to_sync(host);
  std::cout << "came back: " << host[0] << " ... " << host[999] << ", sum "
            << std::accumulate(host.begin(), host.end(), 0) << "\n";
}
