// SPDX-License-Identifier: Apache-2.0
// What each line does to memory, as a line profiler prints it: marks around expressions and for the rest of a
// block, then a table.

#include <tarn/diagnostics.hpp>
#include <tarn/tarn.hpp>

#include <iostream>

template <class Pool>
auto layer(Pool pool, std::size_t n, tarn::stream_ref stream) {
  auto scratch = tarn::make_device_buffer<float>(pool, 4 * n, stream);  // freed at the end of the layer
  return tarn::make_device_buffer<float>(pool, n, stream);
}

template <class Pool>
void step(Pool pool, tarn::stream_ref stream) {
  auto hidden = TARN_PROFILE_EXPRESSION(pool, layer(pool, 1 << 20, stream));
  auto output = TARN_PROFILE_EXPRESSION(pool, layer(pool, 1 << 18, stream));
  TARN_PROFILE_EXPRESSION(pool, hidden.reset());
}

int main() {
  tarn::device_pool pool;
  tarn::stream_ref const stream;
  auto weights = TARN_PROFILE_EXPRESSION(pool, tarn::make_device_buffer<float>(pool, 1 << 21, stream));
  for (int i = 0; i < 3; ++i) {
    TARN_PROFILE_LINE(pool);
    step(pool, stream);
  }
  std::cout << tarn::line_profile_table();
}
