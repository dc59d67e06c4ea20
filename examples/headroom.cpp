// SPDX-License-Identifier: Apache-2.0
// Several users of one card: a pool that leaves memory to others, and two pools that get what the other
// caches.

#include <tarn/tarn.hpp>
#include <tarn/transfer.hpp>

#include <cstddef>
#include <iostream>

using namespace tarn::literals;

int main() {
  std::size_t const free = tarn::available_memory(tarn::device_pool{}).bytes;
  std::size_t const most = tarn::align_down(free / 10 * 8, 2_MiB);

  // A tenth of what is free stays so, for NCCL, cuBLAS or another process.
  std::size_t const spare = free / 10;
  auto first = tarn::cuda_pages{} | tarn::headroom{spare} | tarn::pooled{} | tarn::tracked{};
  auto second = tarn::cuda_pages{} | tarn::headroom{spare} | tarn::pooled{} | tarn::tracked{};

  { auto const buffer = tarn::make_device_buffer<std::byte>(first, most, tarn::stream_ref{}); }
  std::cout << "the first pool caches 80 % of what was free: " << std::boolalpha
            << (tarn::memory_reserved(first) >= most) << '\n';
  auto const buffer = tarn::make_device_buffer<std::byte>(second, most, tarn::stream_ref{});
  std::cout << "the second pool gets it: " << (tarn::memory_allocated(second) >= most)
            << ", and the first pool gave it back: " << (tarn::memory_reserved(first) < most) << '\n';
  try {
    (void)tarn::make_device_buffer<std::byte>(first, free / 6, tarn::stream_ref{});
  } catch (tarn::out_of_memory const& error) {
    std::cout << "the rest is left to others: " << (error.report().headroom == spare) << '\n';
  }
}
