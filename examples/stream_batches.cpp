// SPDX-License-Identifier: Apache-2.0
// Data larger than the device is streamed through it in batches, from memory, a file or a generator; results
// are copied back in batches, here to a file. While the device works on one batch, the next ones are filled
// and copied.

#include <tarn/tarn.hpp>
#include <tarn/transfer.hpp>

#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <numeric>
#include <string>
#include <vector>

int main() {
  tarn::device_pool pool;
  tarn::stream const stream;
  // Kept for the whole program: pinning is expensive, the pool does it once.
  auto staging = tarn::registered_host{} | tarn::pooled{} | tarn::tracked{};

  std::vector<float> values(1'000'000);
  std::iota(values.begin(), values.end(), 0.0F);
  auto result = tarn::make_device_buffer<float>(pool, values.size(), stream);

  // The body enqueues its work on `stream`; here it copies each batch to its part of the result. A kernel
  // launch works the same way.
  auto const keep = [&](auto const& batch) {
    tarn::copy(pool.driver(), batch.span(), result.span().subspan(batch.offset(), batch.size()), stream);
  };
  tarn::batch_options const options{.batch_bytes = 1'000'000, .depth = 3, .threads = 2};

  std::size_t batches = 0;
  tarn::peak_scope const peak{pool};
  for (auto batch : tarn::stream_batches(values, options, pool, stream, staging)) {
    keep(batch);
    batches = batch.index() + 1;
  }
  std::cout << "memory: " << batches
            << " batches of 4000000 bytes, on the device at once: " << peak.peak_above_start() << "\n";

  // A file: written in batches, while the next ones are copied from the device, and streamed back.
  std::string const path = "/tmp/tarn_stream_batches_" + std::to_string(::getpid());
  {
    std::ofstream file(path, std::ios::binary);
    for (auto batch : tarn::collect_batches(result, options, stream, staging)) {
      file.write(reinterpret_cast<char const*>(batch.data()), static_cast<std::streamsize>(batch.bytes()));
    }
  }
  result.zero();
  {
    tarn::mapped_file const file(path);
    for (auto batch : tarn::stream_batches(tarn::from_file<float>(file), options, pool, stream, staging)) {
      keep(batch);
      batches = batch.index() + 1;
    }
    std::cout << "file: " << file.bytes() << " bytes, " << batches << " batches\n";
  }
  std::remove(path.c_str());
  std::vector<float> back(values.size());
  result.copy_to_sync(back);
  std::cout << "the elements are " << (back == values ? "whole" : "broken") << "\n";

  // A generator: two threads make batches ahead, in any order; the loop gets them in index order.
  auto squares = tarn::generate<float>([](std::span<float> slot, std::size_t index) {
    if (index == 4) return std::size_t{0};  // the end
    for (std::size_t i = 0; i < slot.size(); ++i) slot[i] = static_cast<float>(index * index);
    return slot.size();
  });
  std::cout << "generator:";
  for (auto batch : tarn::stream_batches(std::move(squares), options, pool, stream, staging)) {
    float first = 0;
    tarn::copy_sync(pool.driver(), std::span<float const>(batch.data(), 1), std::span<float>(&first, 1),
                    stream);
    std::cout << ' ' << batch.index() << ":" << first;
  }
  std::cout << "\n";

  // A file that does not exist is reported.
  try {
    tarn::mapped_file const none("/tmp/tarn_there_is_no_such_file");
  } catch (tarn::file_error const& error) {
    std::cout << error.what() << "\n";
  }
  std::cout << "pinned at most " << tarn::max_memory_allocated(staging) << " bytes\n";
}
