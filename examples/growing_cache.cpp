// SPDX-License-Identifier: Apache-2.0
// A cache of keys and values for sequences of unknown length: buffers that grow in place, beside buffers that
// double and copy.

#include <tarn/tarn.hpp>

#include <cstddef>
#include <iostream>
#include <vector>

using namespace tarn::literals;

constexpr std::size_t row = 64_KiB;      // the keys and values of one token, in all layers
constexpr std::size_t most_rows = 4096;  // of the longest sequence
constexpr std::size_t sequences = 16;

/// The length of a sequence, of random sizes from 100 to 800 rows.
std::size_t length_of(std::size_t sequence) {
  return 100 + sequence * 2654435761 % 701;
}

template <class Grow>
void fill(std::vector<std::byte> const& token, Grow const& append) {
  for (std::size_t step = 0; step < 800; ++step) {
    for (std::size_t s = 0; s < sequences; ++s) {
      if (step < length_of(s)) append(s, token);
    }
  }
}

int main() {
  std::vector<std::byte> const token(row);
  std::size_t live = 0;
  for (std::size_t s = 0; s < sequences; ++s) live += length_of(s) * row;
  std::cout << sequences << " sequences with " << (live >> 20) << " MiB\n";
  {
    tarn::device_pool pool;
    tarn::stream const stream;
    std::vector<tarn::growing_buffer<std::byte>> caches;
    for (std::size_t s = 0; s < sequences; ++s) caches.emplace_back(pool, most_rows * row, stream);
    std::byte const* const first = caches[0].data();  // kernels and graphs may keep it
    fill(token, [&](std::size_t s, std::vector<std::byte> const& rows) { caches[s].append(rows); });
    std::cout << "in place: " << (tarn::max_memory_allocated(pool) >> 20) << " MiB at most, "
              << (caches[0].data() == first ? "no element moved\n" : "moved\n");
  }
  {
    tarn::device_pool pool;
    tarn::stream const stream;
    std::vector<tarn::device_buffer<std::byte>> caches;
    for (std::size_t s = 0; s < sequences; ++s) caches.emplace_back(pool, stream);
    std::size_t copies = 0;
    fill(token, [&](std::size_t s, std::vector<std::byte> const& rows) {
      auto& cache = caches[s];
      std::size_t const size = cache.size();
      if (size + row > cache.capacity()) {
        cache.reserve(2 * (size + row));
        ++copies;
      }
      cache.resize(size + row);
      tarn::copy(pool.driver(), std::span<std::byte const>(rows), cache.span().subspan(size), stream);
    });
    std::cout << "doubling: " << (tarn::max_memory_allocated(pool) >> 20) << " MiB at most, " << copies
              << " copies of what was there\n";
  }
}
