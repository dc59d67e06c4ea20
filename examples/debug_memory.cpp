// SPDX-License-Identifier: Apache-2.0
// Debugging policies: fences find writes past the end, poison shows memory that was never written.

#include <tarn/tarn.hpp>

#include <cstdio>
#include <span>

int main() {
  tarn::set_misuse_handler([](tarn::misuse const& what) {
    std::puts(what.kind() == tarn::misuse_kind::overrun ? "the handler received an overrun"
                                                        : "the handler received another misuse");
  });
  auto memory = tarn::cuda_pages{} | tarn::pooled{} | tarn::fenced{} | tarn::poisoned{};
  tarn::stream const stream;
  auto* const p = static_cast<unsigned char*>(memory.allocate(stream, 100));
  unsigned char byte = 0;
  std::span<unsigned char> const on_host(&byte, 1);
  tarn::copy_sync(memory.driver(), std::span<unsigned char>(p, 1), on_host, stream);
  std::printf("a fresh byte reads 0x%02X\n", byte);
  // In place of a kernel that writes one past the end.
  tarn::copy_sync(memory.driver(), on_host, std::span<unsigned char>(p + 100, 1), stream);
  std::printf("broken fences: %zu\n", memory->upstream()->check_all());
  memory.deallocate(stream, p, 100);
}
