// SPDX-License-Identifier: Apache-2.0
#pragma once
// crew: threads that start one batch of work together and are timed individually.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

namespace tarn::bench {

/// Threads that are kept between batches, so that the pool's per-thread state is warm.
class crew {
 public:
  /// @param work  called as work(thread) in every thread, once per batch
  template <class Work>
  crew(std::size_t count, Work const& work) : crew(count) {
    // If a thread cannot be created, the destructor runs, since the delegated-to constructor has completed.
    threads_.reserve(count);
    for (std::size_t t = 0; t < count; ++t) {
      threads_.emplace_back([this, t, &work] {
        for (unsigned batch = 1; wait_for(batch); ++batch) {
          auto const start = clock::now();
          try {
            work(t);
          } catch (...) {
            std::lock_guard const guard(lock_);
            failure_ = std::current_exception();
          }
          seconds_[t] = std::chrono::duration<double>(clock::now() - start).count();
          if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == seconds_.size()) done_.notify_one();
        }
      });
    }
  }
  ~crew() {
    batch_.store(over, std::memory_order_release);
    for (std::thread& t : threads_) t.join();
  }
  crew(crew const&) = delete;
  crew& operator=(crew const&) = delete;

  /// Runs one batch in all threads at once; returns the mean seconds per thread. Rethrows an exception of a
  /// thread.
  double run() {
    done_.store(0, std::memory_order_relaxed);
    batch_.fetch_add(1, std::memory_order_release);
    for (std::size_t n = 0; (n = done_.load(std::memory_order_acquire)) != seconds_.size();) {
      done_.wait(n, std::memory_order_acquire);  // blocks: spinning would take a core from the crew
    }
    if (failure_) std::rethrow_exception(failure_);
    return std::accumulate(seconds_.begin(), seconds_.end(), 0.0) / static_cast<double>(seconds_.size());
  }

 private:
  using clock = std::chrono::steady_clock;
  static constexpr unsigned over = ~0U;

  explicit crew(std::size_t count) : seconds_(count) {}
  bool wait_for(unsigned batch) const {
    unsigned now = 0;
    while ((now = batch_.load(std::memory_order_acquire)) < batch) std::this_thread::yield();
    return now != over;
  }
  std::atomic<unsigned> batch_{0};
  std::atomic<std::size_t> done_{0};
  std::mutex lock_;
  std::exception_ptr failure_;
  std::vector<double> seconds_;
  std::vector<std::thread> threads_;
};

/// A bounded queue from one thread to another; bounded, so that the producer cannot run far ahead.
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
