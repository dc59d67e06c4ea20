// SPDX-License-Identifier: Apache-2.0
// Recovery from out of memory: a handler frees memory and the request is retried; what still does not fit
// comes from another resource.

#include <tarn/tarn.hpp>

#include <iostream>
#include <optional>

using namespace tarn::literals;

int main() {
  auto small = tarn::cuda_pages{} | tarn::limited{256_MiB} | tarn::pooled{};
  tarn::stream const stream;
  std::optional cache{tarn::make_device_buffer<std::byte>(small, 200_MiB, stream)};
  auto memory = small | tarn::retry_on_oom{[&](tarn::out_of_memory const& error, unsigned attempt) {
                  std::cout << "attempt " << attempt << ": " << (error.asked() >> 20)
                            << " MiB were refused\n";
                  if (!cache) return false;
                  cache.reset();
                  return true;
                }} |
                tarn::fallback_to{tarn::managed{}};
  auto first = tarn::make_device_buffer<std::byte>(memory, 128_MiB, stream);
  std::cout << "128 MiB served once the cache was dropped\n";
  auto second = tarn::make_device_buffer<std::byte>(memory, 512_MiB, stream);
  std::cout << "512 MiB served by managed memory: " << memory->fallback_blocks() << " block\n";
}
