// SPDX-License-Identifier: Apache-2.0
// Debugging policies: fences find writes past the end, poison shows memory that was never written.

#include <cstdio>

#include "tarn/source/host_memory.hpp"
#include "tarn/tarn.hpp"

int main() {
  tarn::set_misuse_handler([](tarn::misuse const& what) {
    std::puts(what.kind() == tarn::misuse_kind::overrun ? "the handler received an overrun"
                                                        : "the handler received another misuse");
  });
  auto memory = tarn::host_memory{} | tarn::fenced{} | tarn::poisoned{};
  auto* const p = static_cast<unsigned char*>(memory.allocate_sync(100));
  std::printf("a fresh byte reads 0x%02X\n", p[0]);
  p[100] = 1;  // one past the end
  std::printf("broken fences: %zu\n", memory->upstream()->check_all());
  memory.deallocate_sync(p, 100);
}
