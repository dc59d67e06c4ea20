// SPDX-License-Identifier: Apache-2.0
// cache_guard: returns the pool's cache to the driver around a scope; live memory stays.

#include <tarn/tarn.hpp>

#include <iostream>

using namespace tarn::literals;

int main() {
  tarn::device_pool pool;
  tarn::stream const stream;
  auto kept = tarn::make_device_buffer<std::byte>(pool, 64_MiB, stream);
  tarn::make_device_buffer<std::byte>(pool, 512_MiB, stream).reset();
  auto const reserved = [&] { return tarn::memory_reserved(pool) >> 20; };
  std::cout << "before the scope: " << reserved() << " MiB reserved, " << (tarn::memory_allocated(pool) >> 20)
            << " live\n";
  {
    tarn::cache_guard guard{pool};
    std::cout << "inside: " << reserved() << " MiB; another library has the rest\n";
    tarn::make_device_buffer<std::byte>(pool, 256_MiB, stream).reset();
    std::cout << "the scope cached again: " << reserved() << " MiB\n";
  }
  std::cout << "after: " << reserved() << " MiB\n";
}
