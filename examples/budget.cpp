// SPDX-License-Identifier: Apache-2.0
// The position of a limit is its meaning: over a pool it bounds live bytes, under it reserved bytes.
// budget_scope lowers it temporarily.

#include <tarn/tarn.hpp>

#include <iostream>

using namespace tarn::literals;

template <class Memory>
void ask(Memory memory, std::size_t bytes) {
  try {
    auto block = tarn::make_device_buffer<std::byte>(memory, bytes, tarn::stream_ref{});
    std::cout << (bytes >> 20) << " MiB: served\n";
  } catch (tarn::out_of_memory const& error) {
    std::cout << error.what() << "\n";
  }
}

int main() {
  auto live = tarn::cuda_pages{} | tarn::pooled{} | tarn::limited{1_GiB};
  auto reserved = tarn::cuda_pages{} | tarn::limited{1_GiB} | tarn::pooled{};
  ask(live, 2_GiB);
  ask(reserved, 2_GiB);
  {
    tarn::budget_scope budget{live, 100_MiB};
    ask(live, 200_MiB);
  }
  ask(live, 200_MiB);
}
