// SPDX-License-Identifier: Apache-2.0
// Calls through debug/nvtx_ranged on host memory, without a GPU. Prints its own steps
// in between.

#include <cstdio>

#include "tarn/debug/nvtx_ranged.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/source/host_memory.hpp"

int main() {
  std::printf("built %d\n", TARN_HAS_NVTX_RANGES);
  auto memory = tarn::host_memory{} | tarn::nvtx_ranged{"host"} | tarn::pooled{} | tarn::limited{1 << 20} |
                tarn::nvtx_ranged{"weights"};
  void* const p = memory.allocate({}, 1000);
  memory.deallocate({}, p, 1000);
  std::printf("again, warm\n");
  void* const q = memory.allocate({}, 1000);
  memory.deallocate({}, q, 1000);
  try {
    (void)memory.allocate({}, 2 << 20);
  } catch (tarn::out_of_memory const&) {
    std::printf("refused\n");
  }
  void* const r = memory.allocate_sync(500);
  memory.deallocate_sync(r, 500);
  tarn::name_stream(tarn::stream_ref::from(reinterpret_cast<void*>(0x40)), "loader");
  { tarn::nvtx_range const mine(tarn::nvtx_text("one's own"), 7); }
}
