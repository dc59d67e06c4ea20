// SPDX-License-Identifier: Apache-2.0
// Makes each call of driver/nvtx_memory once, on invented addresses: no GPU is needed. Prints whether a tool
// is attached.

#include <cstdio>

#include "tarn/driver/cuda_memory_tool.hpp"

int main() {
  tarn::nvtx_memory const tool = tarn::nvtx_memory::attached();
  std::printf("attached %d\n", static_cast<bool>(tool) ? 1 : 0);
  if (!static_cast<bool>(tool)) return 0;
  void* const p = reinterpret_cast<void*>(0x10000);
  void* const inside = reinterpret_cast<void*>(0x10100);
  void* const heap = tool.register_heap(p, 4096);
  tool.register_region(heap, inside, 1000);
  tool.unregister_region(inside);
  tool.reset_heap(heap);
  tool.unregister_heap(heap);
}
