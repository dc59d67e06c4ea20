// SPDX-License-Identifier: Apache-2.0
#pragma once
// The scheduler runs exactly one of several real threads. At each switch point (hooked/switch_points.hpp) it
// may run another thread instead. Threads have priorities and the thread with the highest priority runs; at d
// - 1 points of a run, drawn at random, the running thread's priority becomes the lowest. A run of n threads
// with k switch points then finds a bug of depth d with a probability of at least 1 / (n k^(d-1)).
// (Burckhardt, Kothari, Musuvathi, Nagarakatte, "A randomized scheduler with probabilistic guarantees of
// finding bugs", ASPLOS 2010.)

#include <dlfcn.h>
#include <execinfo.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "hooked/switch_points.hpp"
#include "model.hpp"
#include "program.hpp"

namespace simulation {

/// Blocks one thread until another one resumes it.
class turn {
 public:
  void wait() noexcept {
    for (int spins = 0; open_.exchange(0, std::memory_order_acquire) == 0; ++spins)
      (void)::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&open_), FUTEX_WAIT_PRIVATE, 0, nullptr,
                      nullptr, 0);
  }
  void give() noexcept {
    open_.store(1, std::memory_order_release);
    (void)::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&open_), FUTEX_WAKE_PRIVATE, 1, nullptr,
                    nullptr, 0);
  }

 private:
  std::atomic<std::uint32_t> open_{0};
};

/// One thread of a run.
struct task {
  turn mine;
  std::size_t thread = 0;  ///< its index in the program
  int priority = 0;
  bool finished = true;
  void const* waits_for = nullptr;  /// < the lock that it waits for; null: it can run
  std::uint32_t step = 0;           /// < the number of its current step
  std::uint32_t points = 0;         /// < switch points passed in this step
};

/// Statistics of the preemptions, shared by several processes.
struct preemption_log {
  static constexpr std::size_t most = 8192;
  static constexpr int most_frames = 12;
  std::atomic<std::uint32_t> count{0};
  preemption taken[most];
  std::uint8_t where[most];  ///< a switch_point
  void* frames[most][most_frames];
  bool with_frames = false;

  void add(preemption const& p, switch_point at) noexcept {
    std::uint32_t const i = count.load(std::memory_order_relaxed);
    if (i == most) return;
    taken[i] = p;
    where[i] = static_cast<std::uint8_t>(at);
    if (with_frames) {
      for (void*& f : frames[i]) f = nullptr;
      (void)::backtrace(frames[i], most_frames);
    }
    count.store(i + 1, std::memory_order_release);
  }
};

class scheduler {
 public:
  static inline scheduler* active = nullptr;
  static inline thread_local constinit task* self = nullptr;

  scheduler(findings& found, preemption_log& log) : found_(found), log_(log) { active = this; }
  scheduler(scheduler const&) = delete;
  scheduler& operator=(scheduler const&) = delete;
  ~scheduler() { active = nullptr; }

  /// How a run is scheduled.
  struct plan {
    std::vector<std::uint64_t>
        changes;  /// < the running thread is preempted after this many switch points; ascending
    std::vector<preemption> const* pinned = nullptr;  /// < used instead of the above
  };

  /// Runs all tasks until each has finished its work or there is a finding. Returns false if there is a
  /// finding.
  bool run(std::vector<task*> const& tasks, plan const& how) {
    tasks_ = &tasks;
    how_ = &how;
    points_ = 0;
    next_ = 0;
    lowest_ = 0;
    for (task* t : tasks) {
      t->finished = false;
      t->waits_for = nullptr;
      t->points = 0;
    }
    best()->mine.give();
    controller_.wait();
    return !stopped_;
  }
  [[nodiscard]] std::uint64_t points() const noexcept { return points_; }
  /// How often a thread was stopped and another one ran.
  [[nodiscard]] std::uint64_t switches() const noexcept { return switches_; }
  [[nodiscard]] std::uint64_t const* reached() const noexcept { return reached_; }

  /// The calling thread has done its work in this run. It must no longer be preemptible.
  void finish(task& me) noexcept {
    me.finished = true;
    if (task* const next = best(); next != nullptr) {
      next->mine.give();
    } else if (std::any_of(tasks_->begin(), tasks_->end(), [](task* t) { return !t->finished; })) {
      report_deadlock();
      controller_.give();
    } else {
      controller_.give();
    }
  }
  /// There is a finding: the run ends here, and no other thread continues.
  [[noreturn]] void stop() noexcept {
    preemptible = false;
    stopped_ = true;
    controller_.give();
    for (;;) ::pause();
  }

  void reach(switch_point at) noexcept {
    task& me = *self;
    ++points_;
    ++me.points;
    ++reached_[static_cast<std::size_t>(at)];
    if (how_->pinned != nullptr) {
      for (preemption const& p : *how_->pinned) {
        if (p.step == me.step && p.point == me.points) return preempt(me, at);
      }
    } else if (next_ < how_->changes.size() && points_ >= how_->changes[next_]) {
      ++next_;
      preempt(me, at);
    }
  }
  void give_way() noexcept {
    task& me = *self;
    ++reached_[static_cast<std::size_t>(switch_point::wait)];
    me.priority = --lowest_;
    task* next = nullptr;
    for (task* t : *tasks_) {
      if (t != &me && can_run(*t) && (next == nullptr || t->priority > next->priority)) next = t;
    }
    if (next != nullptr) {
      spins_ = 0;
      return hand_over(me, *next);
    }
    if (++spins_ < most_spins) return;
    found_.push_back(text("thread %zu waits forever: no other thread can run", me.thread));
    stop();
  }
  void wait_for(void const* lock) noexcept {
    task& me = *self;
    ++reached_[static_cast<std::size_t>(switch_point::wait)];
    me.waits_for = lock;
    task* const next = best();
    if (next == nullptr) {
      report_deadlock();
      stop();
    }
    hand_over(me, *next);
  }
  void released(void const* lock, switch_point at) noexcept {
    bool any = false;
    for (task* t : *tasks_) {
      if (t->waits_for != lock) continue;
      t->waits_for = nullptr;
      any = true;
    }
    task& me = *self;
    if (any) {
      if (task* const next = best(); next != &me) hand_over(me, *next);
    }
    reach(at);
  }
  /// A mutex of the simulated machine: a driver call locks it.
  void set_driver_mutex(void const* mutex) noexcept { driver_mutex_ = mutex; }
  /// True if the calling thread is about to call the driver. It must not hold the hot lock.
  bool is_driver_mutex(void const* mutex) {
    if (mutex != driver_mutex_) return false;
    if (hot_locks_held != 0 && !reported_) {
      reported_ = true;
      found_.push_back(text("step %u calls the driver while it holds the hot lock", self->step));
    }
    return true;
  }

 private:
  static constexpr unsigned most_spins = 100000;

  static bool can_run(task const& t) noexcept { return !t.finished && t.waits_for == nullptr; }
  [[nodiscard]] task* best() const noexcept {
    task* out = nullptr;
    for (task* t : *tasks_) {
      if (can_run(*t) && (out == nullptr || t->priority > out->priority)) out = t;
    }
    return out;
  }
  void preempt(task& me, switch_point at) noexcept {
    me.priority = --lowest_;
    task* const next = best();
    if (next == &me) return;  // no other thread can run
    log_.add({me.step, me.points}, at);
    hand_over(me, *next);
  }
  void hand_over(task& me, task& next) noexcept {
    ++switches_;
    // Preemptible and hot_locks_held are thread-local.
    next.mine.give();
    me.mine.wait();
  }
  void report_deadlock() noexcept {
    std::string who;
    for (task* t : *tasks_) {
      if (!t->finished) who += text("%s thread %zu in step %u", who.empty() ? "" : ",", t->thread, t->step);
    }
    found_.push_back("deadlock:" + who + " wait for each other's locks");
    stopped_ = true;
  }

  findings& found_;
  preemption_log& log_;
  std::vector<task*> const* tasks_ = nullptr;
  plan const* how_ = nullptr;
  turn controller_;
  std::uint64_t points_ = 0, switches_ = 0;
  std::uint64_t reached_[static_cast<std::size_t>(switch_point::count)] = {};
  std::size_t next_ = 0;
  int lowest_ = 0;
  unsigned spins_ = 0;
  bool stopped_ = false, reported_ = false;
  void const* driver_mutex_ = nullptr;
};

inline void reach(switch_point at) noexcept {
  scheduler::active->reach(at);
}
inline void give_way() noexcept {
  scheduler::active->give_way();
}
inline void wait_for(void const* lock) noexcept {
  scheduler::active->wait_for(lock);
}
inline void released(void const* lock, switch_point at) noexcept {
  scheduler::active->released(lock, at);
}

/// The last mutex that a thread locked outside the library.
inline thread_local constinit void const* last_mutex_locked = nullptr;

/// The simulated machine's mutex, while the calling thread is in a driver call: a driver call is atomic.
inline thread_local constinit void const* in_driver = nullptr;

/// The functions that std::mutex calls on this system.
struct system_mutex {
  using call = int (*)(pthread_mutex_t*);
  call lock, try_lock, unlock;
  static system_mutex const& get() noexcept {
    static constinit system_mutex calls{nullptr, nullptr, nullptr};
    if (calls.unlock == nullptr) [[unlikely]] {
      calls.lock = reinterpret_cast<call>(::dlsym(RTLD_NEXT, "pthread_mutex_lock"));
      calls.try_lock = reinterpret_cast<call>(::dlsym(RTLD_NEXT, "pthread_mutex_trylock"));
      calls.unlock = reinterpret_cast<call>(::dlsym(RTLD_NEXT, "pthread_mutex_unlock"));
    }
    return calls;
  }
};

}  // namespace simulation

// The program's own definitions take precedence over those of the system: std::mutex calls these.
extern "C" {
inline int simulation_lock(pthread_mutex_t* mutex) noexcept {
  using namespace simulation;
  auto const& system = system_mutex::get();
  if (!preemptible) {
    last_mutex_locked = mutex;
    return system.lock(mutex);
  }
  if (in_driver != nullptr) return system.lock(mutex);
  bool const of_driver = scheduler::active->is_driver_mutex(mutex);
  reach(switch_point::mutex_lock);
  while (system.try_lock(mutex) == EBUSY) wait_for(mutex);
  if (of_driver) in_driver = mutex;
  return 0;
}
int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept;
int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept;
int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept;
int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  return simulation_lock(mutex);
}
int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept {
  return simulation::system_mutex::get().try_lock(mutex);
}
int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  using namespace simulation;
  int const result = system_mutex::get().unlock(mutex);
  if (!preemptible || (in_driver != nullptr && in_driver != mutex)) return result;
  in_driver = nullptr;
  released(mutex, switch_point::mutex_unlock);
  return result;
}
}
