// SPDX-License-Identifier: Apache-2.0
#pragma once
// Threads that play parts of a trace in turn: one at a time, as the threads of a program that wait for each
// other.

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace tarn::bench {

/// Threads that execute tasks one after the other. With one, the calling thread executes them.
class turns {
 public:
  /// @throws std::system_error  no thread can be created; std::bad_alloc
  explicit turns(unsigned threads) : turns() {
    // If a thread cannot be created, the destructor runs, since the delegated-to constructor has completed.
    for (unsigned i = 0; threads > 1 && i < threads; ++i) threads_.emplace_back([this, i] { serve(i); });
  }
  turns(turns const&) = delete;
  turns& operator=(turns const&) = delete;
  ~turns() {
    give(over);
    for (std::thread& t : threads_) t.join();
  }

  /// Executes `task` on the next thread, and returns when it has ended. @throws what the task throws
  void next(std::function<void()> task) {
    if (threads_.empty()) {
      task();
      return;
    }
    task_ = std::move(task);
    failure_ = nullptr;
    std::size_t const whose = next_++ % threads_.size();
    give(whose);
    std::unique_lock guard(mutex_);
    changed_.wait(guard, [&] { return turn_ == nobody; });
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  static constexpr std::size_t nobody = ~std::size_t{0};
  static constexpr std::size_t over = nobody - 1;

  turns() = default;
  void give(std::size_t whose) {
    {
      std::lock_guard const guard(mutex_);
      turn_ = whose;
    }
    changed_.notify_all();
  }
  void serve(std::size_t self) {
    for (;;) {
      {
        std::unique_lock guard(mutex_);
        changed_.wait(guard, [&] { return turn_ == self || turn_ == over; });
        if (turn_ == over) return;
      }
      try {
        task_();
      } catch (...) {
        failure_ = std::current_exception();
      }
      give(nobody);
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t turn_ = nobody;  ///< the thread that executes the task; protected by mutex_
  std::function<void()> task_;
  std::exception_ptr failure_;
  std::size_t next_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace tarn::bench
