// SPDX-License-Identifier: Apache-2.0
#pragma once
// Threads that start one batch of work together and are timed each for itself.
// Above it: hot_paths. Below it: nothing.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

namespace tarn::bench {

/// Runs `work(thread)` on `count` threads at once, started by one flag; returns the mean seconds of a thread.
template <class Work>
double run_together(std::size_t count, Work const& work) {
  using clock = std::chrono::steady_clock;
  std::atomic<std::size_t> ready{0};
  std::atomic<bool> go{false};
  std::vector<double> seconds(count);
  std::vector<std::thread> threads;
  threads.reserve(count);
  for (std::size_t t = 0; t < count; ++t) {
    threads.emplace_back([&, t] {
      ready.fetch_add(1);
      while (!go.load(std::memory_order_acquire)) std::this_thread::yield();
      auto const start = clock::now();
      work(t);
      seconds[t] = std::chrono::duration<double>(clock::now() - start).count();
    });
  }
  while (ready.load() != count) std::this_thread::yield();
  go.store(true, std::memory_order_release);
  double sum = 0;
  for (std::size_t t = 0; t < count; ++t) {
    threads[t].join();
    sum += seconds[t];
  }
  return sum / static_cast<double>(count);
}

/// A queue from one thread to one other; bounded, so that the giver cannot run far ahead.
class handover {
 public:
  void give(void* block) {
    std::size_t const at = given_.load(std::memory_order_relaxed);
    while (at - taken_.load(std::memory_order_acquire) == slots) std::this_thread::yield();
    blocks_[at % slots] = block;
    given_.store(at + 1, std::memory_order_release);
  }
  void* take() {
    std::size_t const at = taken_.load(std::memory_order_relaxed);
    while (given_.load(std::memory_order_acquire) == at) std::this_thread::yield();
    void* const block = blocks_[at % slots];
    taken_.store(at + 1, std::memory_order_release);
    return block;
  }

 private:
  static constexpr std::size_t slots = 256;
  void* blocks_[slots] = {};
  alignas(64) std::atomic<std::size_t> given_{0};
  alignas(64) std::atomic<std::size_t> taken_{0};
};

}  // namespace tarn::bench
