// SPDX-License-Identifier: Apache-2.0
// Recovery from out of memory: a handler frees memory and the request is retried; what still does not fit comes from another
// resource.

#include <iostream>
#include <optional>

#include "gpu_or_simulated.hpp"
#include "tarn/tarn.hpp"

using namespace tarn::literals;

void run(auto gpu) {
  auto small = gpu.cuda_pages() | tarn::limited{256_MiB} | tarn::pooled{};
  auto const stream = gpu.stream();
  std::optional cache{tarn::make_device_buffer<std::byte>(small, 200_MiB, stream)};
  auto memory = small | tarn::retry_on_oom{[&](tarn::out_of_memory const& error, unsigned attempt) {
                  std::cout << "attempt " << attempt << ": " << (error.asked() >> 20)
                            << " MiB were refused\n";
                  if (!cache) return false;
                  cache.reset();
                  return true;
                }} |
                tarn::fallback_to{gpu.managed()};
  auto first = tarn::make_device_buffer<std::byte>(memory, 128_MiB, stream);
  std::cout << "128 MiB served once the cache was dropped\n";
  auto second = tarn::make_device_buffer<std::byte>(memory, 512_MiB, stream);
  std::cout << "512 MiB served by managed memory: " << memory->fallback_blocks() << " block\n";
}

int main() {
  with_gpu_or_simulated([](auto gpu) { run(gpu); });
}
