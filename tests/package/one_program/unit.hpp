// SPDX-License-Identifier: Apache-2.0
#pragma once
// What both translation units use: every part of tarn whose definition could depend on CUDA's headers.

#include <cstddef>

#include "tarn/debug/nvtx_ranged.hpp"
#include "tarn/diagnostics.hpp"
#include "tarn/pmr.hpp"
#include "tarn/sharing.hpp"
#include "tarn/sim.hpp"
#include "tarn/stl.hpp"
#include "tarn/tarn.hpp"
#include "tarn/transfer.hpp"

inline std::size_t bytes_of_a_buffer() {
  tarn::sim_machine const machine;
  auto memory = tarn::sim_pages{machine.driver()} | tarn::pooled{} | tarn::tracked{} | tarn::with_history{} |
                tarn::nvtx_ranged{"device"};
  tarn::sim_stream const stream{machine.driver()};
  auto const buffer = tarn::make_device_buffer<float>(memory, 1000, stream);
  auto host = tarn::host_memory{} | tarn::pooled{} | tarn::checked{} | tarn::nvtx_ranged{"host"};
  host.deallocate_sync(host.allocate_sync(1), 1);
  return static_cast<std::size_t>(tarn::memory_allocated(memory));
}
