// SPDX-License-Identifier: Apache-2.0
// The layers that one allocation passes through, cold and warm, shown by the driver's call counts.

#include <iostream>

#include "tarn/sim.hpp"
#include "tarn/tarn.hpp"

using namespace tarn::literals;

int main() {
  tarn::sim_machine machine{tarn::sim_options{}};
  auto pool = tarn::sim_pages{machine.driver(0)} | tarn::pooled{};
  auto const stream = tarn::identified(pool, tarn::stream_ref{});
  auto const follow = [&](char const* what, std::size_t bytes) {
    auto const before = machine.calls();
    auto const state = pool->state();
    void* const p = pool.allocate(stream, bytes);
    auto const after = machine.calls();
    auto const now = pool->state();
    std::cout << what << ": " << after.total() - before.total() << " driver calls, "
              << now.creates - state.creates << " handles created, " << now.maps - state.maps << " mapped\n";
    pool.deallocate(stream, p, bytes);
  };
  follow("cold, 4 KiB (magazine, run, range, pages, driver)", 4_KiB);
  follow("warm, 4 KiB (magazine)", 4_KiB);
  follow("cold, 10 MiB (range, pages, driver)", 10_MiB);
  follow("warm, 10 MiB (magazine)", 10_MiB);
  follow("warm, 8 MiB (range)", 8_MiB);
}
