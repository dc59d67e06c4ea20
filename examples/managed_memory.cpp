// SPDX-License-Identifier: Apache-2.0
// Managed memory: the host fills a table in place, which moves to the device before the kernels that read it
// and comes back before the host reads it.

#include <tarn/tarn.hpp>

#include <iostream>

int main() {
  auto pool = tarn::managed{} | tarn::pooled{} | tarn::tracked{};
  tarn::stream const stream;
  auto table = tarn::make_device_buffer<float>(pool, 1 << 20, stream);
  stream.synchronize();  // pooled memory may still be in use on the stream
  for (std::size_t i = 0; i < table.size(); ++i) table.data()[i] = 0.5F * static_cast<float>(i);

  tarn::advise(table, tarn::memory_advice::read_mostly, pool.device());  // each reader gets a copy of its own
  tarn::prefetch(table, pool.device(), stream);
  // Kernels on `stream` now find the table without page faults.

  tarn::prefetch(table, tarn::host_id, stream);
  stream.synchronize();
  std::cout << "the last of " << table.size() << " numbers is " << table.data()[table.size() - 1] << '\n';

  // Or each allocation is moved to the device by itself:
  auto ahead = pool | tarn::prefetched{};
  auto const weights = tarn::make_device_buffer<float>(ahead, 1000, stream);
  std::cout << weights.bytes() << " bytes of weights begin on the device\n";
}
