// SPDX-License-Identifier: Apache-2.0
// A limit on live bytes, and what its refusal says.
#include <iostream>

#include "tarn/sim.hpp"
#include "tarn/tarn.hpp"

int main() {
  auto memory = tarn::sim_pages{} | tarn::pooled{} | tarn::limited{std::size_t{64} << 20} | tarn::tracked{};
  auto kept = tarn::make_device_buffer<char>(memory, 48 << 20, tarn::stream_ref{});
  try {
    auto refused = tarn::make_device_buffer<char>(memory, 32 << 20, tarn::stream_ref{});
  } catch (tarn::out_of_memory const& error) {
    std::cout << error.what() << "\n";
  }
  auto fits = tarn::make_device_buffer<char>(memory, 16 << 20, tarn::stream_ref{});
  std::cout << "the refusal cost no budget: " << (tarn::memory_allocated(memory) >> 20) << " MiB are live\n";
}
