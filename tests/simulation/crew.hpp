// SPDX-License-Identifier: Apache-2.0
#pragma once
// The threads of a program: real threads, one of which runs at a time, so that a seed decides the order while
// thread-local caches and thread exit are real.

#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "in_library.hpp"
#include "scheduler.hpp"

namespace simulation {

class crew {
 public:
  explicit crew(scheduler& schedule) : schedule_(schedule) {}
  crew(crew const&) = delete;
  crew& operator=(crew const&) = delete;
  ~crew() {
    for (std::size_t i = 0; i < members_.size(); ++i) end(i);
  }

  /// Runs `work` on thread `i` and waits for it; starts the thread if necessary.
  void run(std::size_t i, std::function<void()> work) {
    member& m = started(i);
    m.work = std::move(work);
    m.its.mine.give();
    back_.wait();
  }
  /// Prepares thread `i` for a run of several threads. With `ends` the thread ends after its work, within the
  /// run.
  task& prepare(std::size_t i, int priority, std::function<void()> work, bool ends) {
    member& m = started(i);
    m.its.priority = priority;
    m.work = std::move(work);
    m.scheduled = true;
    m.ends = ends;
    return m.its;
  }
  /// Runs the work of several threads. Returns false if there is a finding; the threads do not continue then.
  bool run_together(std::vector<task*> const& tasks, scheduler::plan const& how) {
    several_threads = true;
    bool const done = schedule_.run(tasks, how);
    several_threads = false;
    calls_open = 0;
    if (!done) return false;
    for (auto& m : members_) {
      if (m == nullptr) continue;
      m->scheduled = false;
      if (m->ends) m.reset();
    }
    return true;
  }
  /// Ends thread `i` and waits for it.
  void end(std::size_t i) {
    if (i < members_.size()) members_[i].reset();
  }
  /// Leaves the threads as they are, for the end of the process.
  void abandon() {
    for (auto& m : members_) (void)m.release();
  }
  /// A number that no other thread of the crew has or had; 0 if thread `i` is not running.
  [[nodiscard]] unsigned number_of(std::size_t i) const {
    return i < members_.size() && members_[i] != nullptr ? members_[i]->number : 0;
  }
  [[nodiscard]] unsigned started() const noexcept { return started_; }
  [[nodiscard]] std::size_t size() const noexcept { return members_.size(); }

 private:
  struct member {
    crew& all;
    unsigned number = 0;
    task its;
    std::function<void()> work;
    bool scheduled = false;  ///< in a run of several threads
    bool ends = false;       /// < after its work, in that run
    bool over = false;
    std::thread thread{[this] { live(); }};

    explicit member(crew& of) : all(of) {}
    member(member const&) = delete;
    member& operator=(member const&) = delete;
    ~member() {
      if (!ends) {
        over = true;
        its.mine.give();
      }
      thread.join();
    }

    void live() {
      // The thread's first object is destroyed last: the library's thread-local objects are gone by then.
      static thread_local last_act at_end;
      at_end.of = this;
      scheduler::self = &its;
      for (;;) {
        its.mine.wait();
        if (over) return;
        work();
        work = nullptr;
        if (ends) {
          ++calls_open;
          preemptible = true;
          return;
        }
        if (scheduled) {
          all.schedule_.finish(its);
        } else {
          all.back_.give();
        }
      }
    }
  };
  struct last_act {
    member* of = nullptr;
    ~last_act() {
      preemptible = false;
      if (!of->ends) return;
      --calls_open;
      of->all.schedule_.finish(of->its);
    }
  };

  member& started(std::size_t i) {
    if (i >= members_.size()) members_.resize(i + 1);
    if (members_[i] == nullptr) {
      members_[i] = std::make_unique<member>(*this);
      members_[i]->its.thread = i;
      members_[i]->number = ++started_;
    }
    return *members_[i];
  }

  scheduler& schedule_;
  turn back_;
  std::vector<std::unique_ptr<member>> members_;
  unsigned started_ = 0;
};

}  // namespace simulation
