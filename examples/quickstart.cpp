// SPDX-License-Identifier: Apache-2.0
// Five lines: a pool, an owner, a peak, the peak's size, a summary. thrust_sort.cpp adds Thrust.

#include <tarn/tarn.hpp>

#include <iostream>

int main() {
  std::size_t const n = 1 << 20;
  tarn::stream stream;

  tarn::device_pool pool;                                           // this device, good defaults
  auto weights = tarn::make_device_buffer<float>(pool, n, stream);  // RAII owner, stream-ordered
  tarn::peak_scope peak{pool};                                      // high-water mark of this scope only
  { auto gradients = tarn::make_device_buffer<float>(pool, n, stream); }
  std::cout << "peak of the scope: " << peak.peak_bytes() << " bytes, " << peak.peak_above_start()
            << " of them for the gradients\n"
            << tarn::memory_summary(pool);
}
