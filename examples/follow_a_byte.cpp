// SPDX-License-Identifier: Apache-2.0
// Which part of the pool serves an allocation, cold and warm. Each line is derived from what the pool counts:
// the handles that the driver created and mapped, and the free ranges, which all threads share. A call that
// changes none of them was served by the calling thread's cache.

#include <tarn/tarn.hpp>

#include <iostream>

using namespace tarn::literals;

char const* served_by(tarn::pool_state const& before, tarn::pool_state const& after) {
  if (after.creates != before.creates) return "the driver";
  if (after.free_blocks != before.free_blocks || after.inactive_split_bytes != before.inactive_split_bytes)
    return "the shared free ranges";
  return "the thread's cache";
}

int main() {
  auto pool = tarn::cuda_pages{} | tarn::pooled{};
  tarn::stream const stream;
  auto const follow = [&](char const* what, std::size_t bytes) {
    tarn::pool_state const before = pool->state();
    void* const p = pool.allocate(stream, bytes);
    tarn::pool_state const after = pool->state();
    std::cout << what << ": " << served_by(before, after) << "; handles created "
              << after.creates - before.creates << ", mapped " << after.maps - before.maps
              << "; KiB in free ranges " << (before.inactive_split_bytes >> 10) << ", then "
              << (after.inactive_split_bytes >> 10) << "\n";
    pool.deallocate(stream, p, bytes);
  };
  follow("4 KiB, cold", 4_KiB);
  follow("4 KiB, warm", 4_KiB);
  follow("64 KiB", 64_KiB);
  follow("10 MiB, cold", 10_MiB);
  follow("10 MiB, warm", 10_MiB);
  follow("8 MiB, from the 10", 8_MiB);
  follow("8 MiB, warm", 8_MiB);
}
