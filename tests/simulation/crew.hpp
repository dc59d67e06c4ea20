// SPDX-License-Identifier: Apache-2.0
#pragma once
// The threads of a program: really separate ones, of which one runs at a time, so that a seed decides the order and yet
// thread-local caches and the end of a thread are real. Above it: user. Below it: nothing.

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace simulation {

class crew {
 public:
  crew() = default;
  crew(crew const&) = delete;
  crew& operator=(crew const&) = delete;
  ~crew() {
    for (std::size_t i = 0; i < members_.size(); ++i) end(i);
  }

  /// Runs `work` on thread `i` and waits for it; starts the thread where there is none.
  void run(std::size_t i, std::function<void()> work) {
    if (i >= members_.size()) members_.resize(i + 1);
    if (members_[i] == nullptr) {
      members_[i] = std::make_unique<member>();
      members_[i]->number = ++started_;
    }
    members_[i]->run(std::move(work));
  }
  /// Lets thread `i` end, and waits until it has.
  void end(std::size_t i) {
    if (i < members_.size()) members_[i].reset();
  }
  /// A number that no other thread of the crew has or had; 0 where thread `i` is not running.
  [[nodiscard]] unsigned number_of(std::size_t i) const {
    return i < members_.size() && members_[i] != nullptr ? members_[i]->number : 0;
  }
  [[nodiscard]] unsigned started() const noexcept { return started_; }
  [[nodiscard]] std::size_t size() const noexcept { return members_.size(); }

 private:
  struct member {
    unsigned number = 0;
    std::mutex mutex;
    std::condition_variable turn;
    std::function<void()> work;
    bool over = false;
    std::thread thread{[this] { live(); }};

    void live() {
      std::unique_lock lock(mutex);
      for (;;) {
        turn.wait(lock, [this] { return work || over; });
        if (!work) return;
        work();
        work = nullptr;
        turn.notify_all();
      }
    }
    void run(std::function<void()> what) {
      std::unique_lock lock(mutex);
      work = std::move(what);
      turn.notify_all();
      turn.wait(lock, [this] { return !work; });
    }
    ~member() {
      {
        std::lock_guard const lock(mutex);
        over = true;
      }
      turn.notify_all();
      thread.join();
    }
  };
  std::vector<std::unique_ptr<member>> members_;
  unsigned started_ = 0;
};

}  // namespace simulation
