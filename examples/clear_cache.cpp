// SPDX-License-Identifier: Apache-2.0
// A cache_guard gives cached memory back around a scope, so that another library can have it inside.
#include <iostream>

#include "tarn/sim.hpp"
#include "tarn/tarn.hpp"

int main() {
  tarn::sim_pool pool;
  auto const show = [&](char const* when) {
    std::cout << when << ": live " << (tarn::memory_allocated(pool) >> 20) << " MiB, reserved "
              << (tarn::memory_reserved(pool) >> 20) << " MiB\n";
  };
  { auto scratch = tarn::make_device_buffer<char>(pool, 256 << 20, tarn::stream_ref{}); }
  show("before");
  {
    tarn::cache_guard guard{pool};
    show("inside");
    { auto scratch = tarn::make_device_buffer<char>(pool, 64 << 20, tarn::stream_ref{}); }
    show("used  ");
  }
  show("after ");
}
