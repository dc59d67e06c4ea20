// SPDX-License-Identifier: Apache-2.0
// A loader thread of your own: it copies batches to the device on its stream, and the main thread computes on
// another.

#include <tarn/tarn.hpp>

#include <condition_variable>
#include <cstddef>
#include <iostream>
#include <mutex>
#include <queue>
#include <thread>
#include <utility>
#include <vector>

using loaded_batch = tarn::device_buffer<float>;

/// Hands batches from one thread to another, at most two at a time.
class batch_queue {
 public:
  void push(loaded_batch b) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return batches_.size() < 2; });
    batches_.push(std::move(b));
    changed_.notify_all();
  }
  loaded_batch pop() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !batches_.empty(); });
    loaded_batch b = std::move(batches_.front());
    batches_.pop();
    changed_.notify_all();
    return b;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::queue<loaded_batch> batches_;
};

int main() {
  constexpr std::size_t n = 1 << 20;
  constexpr int batches = 8;
  tarn::device_pool pool;  // one pool for all threads
  tarn::stream compute;
  tarn::stream load;  // outlives the loader: `compute` is ordered behind it when the last batch is taken
  batch_queue queue;

  std::thread loader([&] {
    auto staging = tarn::pinned_host{} | tarn::pooled{};
    for (int i = 0; i < batches; ++i) {
      // Freed on `load` at the end of each turn: the pool reuses it once the copy has read it.
      tarn::pinned_buffer<float, decltype(staging)> host(staging, n, tarn::elements::uninitialised, load);
      for (float& value : host) value = static_cast<float>(i);
      auto loaded = tarn::make_device_buffer<float>(pool, n, load);
      loaded.copy_from(host);
      queue.push(std::move(loaded));
    }
  });

  float sum = 0;
  std::vector<float> result(n);
  for (int i = 0; i < batches; ++i) {
    loaded_batch b = queue.pop();
    // From here on `compute` waits, on the device, for the copy; it frees the batch, too.
    b.set_stream(compute);
    b.copy_to_sync(result);  // in place of kernels on `compute`
    sum += result[n - 1];
  }
  loader.join();
  std::cout << "sum of the batches' numbers: " << sum << "\nstill allocated: " << tarn::memory_allocated(pool)
            << '\n';
}
