// SPDX-License-Identifier: Apache-2.0
#pragma once
// fork() while other threads are inside a pool or a policy. Their locks would stay taken in the child for good, over data
// that is half changed. So the thread that forks first takes every lock, as glibc does for malloc, and releases them on both
// sides:
//
//   thread that forks                           another thread
//   fork()                                      inside: leaves
//     take the locks one after the other
//     one is taken? release all, try again      comes: finds a lock taken and waits, or makes way for a moment
//     -- the process is copied: no lock is held by another thread --
//   parent: release all                         goes on
//   child: release all                          does not exist
//
// Nothing waits for a lock while it holds another one, so no order of the locks can deadlock. A lock that the forking
// thread holds itself (it forks in a handler) stays taken on both sides. A lock that cannot be had for `patience` (its owner
// waits for this thread) is given up: the child gets it as new, and what it guards is not to be used there.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>

#include <ctime>
#endif

#include "tarn/core/config.hpp"
#include "tarn/core/spin_lock.hpp"
#include "tarn/core/thread_tag.hpp"
#include "tarn/core/wait.hpp"

namespace tarn::detail {

enum class fork_side : std::uint8_t {
  parent,
  child,
  child_without  ///< in the child, and the lock could not be had
};

/// Something to take before a fork and to release after it, on both sides. The process's hook is set with the first one.
class at_fork {
 public:
  using take_function = bool (*)(void* self) noexcept;  ///< false: not now; must not wait for long
  using release_function = void (*)(void* self, fork_side side) noexcept;

  at_fork(void* self, take_function take, release_function release) noexcept
      : self_(self), take_(take), release_(release) {
    mine_->add(*this);
  }
  at_fork(at_fork const&) = delete;
  at_fork& operator=(at_fork const&) = delete;
  ~at_fork() { mine_->remove(*this); }

  /// True while some thread tries to fork: others make way.
  [[nodiscard]] static bool is_near() noexcept { return registry.forking.load(std::memory_order_relaxed); }

 private:
  /// Of this module; plain data, constant-initialised, never destroyed.
  struct members {
    spin_lock lock;
    at_fork* first = nullptr;
    at_fork* last = nullptr;
    bool hooked = false;
    std::atomic<bool> forking{false};

    void add(at_fork& m) noexcept {
      lock.lock();
#if defined(__unix__) || defined(__APPLE__)
      if (!hooked) hooked = ::pthread_atfork(&before, &in_parent, &in_child) == 0;
#endif
      m.previous_ = last;
      (last != nullptr ? last->next_ : first) = &m;
      last = &m;
      lock.unlock();
    }
    void remove(at_fork& m) noexcept {
      lock.lock();
      (m.previous_ != nullptr ? m.previous_->next_ : first) = m.next_;
      (m.next_ != nullptr ? m.next_->previous_ : last) = m.previous_;
      lock.unlock();
    }
    /// Takes all in the order in which they were made, this lock included. With `last_try` it goes on past those that it
    /// does not get.
    [[nodiscard]] bool take_all(bool const last_try) noexcept {
      lock.lock();
      for (at_fork* m = first; m != nullptr; m = m->next_) {
        m->taken_ = m->take_(m->self_);
        if (m->taken_ || last_try) continue;
        for (at_fork* back = m->previous_; back != nullptr; back = back->previous_)
          back->release_(back->self_, fork_side::parent);
        lock.unlock();
        return false;
      }
      return true;
    }
    /// The last one first: what is taken last stands on what is taken before.
    void release_all(fork_side const side) noexcept {
      for (at_fork* m = last; m != nullptr; m = m->previous_) {
        if (m->taken_) {
          m->release_(m->self_, side);
        } else if (side == fork_side::child) {
          m->release_(m->self_, fork_side::child_without);
        }
      }
      lock.unlock();
    }
  };

  static constexpr long patience = 2;  ///< seconds

#if defined(__unix__) || defined(__APPLE__)
  static void before() noexcept {
    registry.forking.store(true, std::memory_order_relaxed);
    timespec begin{};
    (void)::clock_gettime(CLOCK_MONOTONIC, &begin);
    for (bool last_try = false; !registry.take_all(last_try);) {
      timespec const pause{0, 50'000};
      (void)::nanosleep(&pause, nullptr);
      timespec now{};
      (void)::clock_gettime(CLOCK_MONOTONIC, &now);
      last_try = now.tv_sec - begin.tv_sec > patience;
    }
  }
  static void in_parent() noexcept {
    registry.forking.store(false, std::memory_order_relaxed);
    registry.release_all(fork_side::parent);
  }
  static void in_child() noexcept {
    registry.forking.store(false, std::memory_order_relaxed);
    registry.release_all(fork_side::child);
  }
#endif

  static members registry;

  members* mine_ = &registry;  ///< where it was made: code of another module may end it
  void* self_;
  take_function take_;
  release_function release_;
  at_fork* previous_ = nullptr;
  at_fork* next_ = nullptr;
  bool taken_ = false;
};
inline constinit at_fork::members at_fork::registry{};

/// A std::mutex that is free in a forked child, unless the forking thread holds it itself.
class fork_mutex {
 public:
  fork_mutex() noexcept = default;
  fork_mutex(fork_mutex const&) = delete;
  fork_mutex& operator=(fork_mutex const&) = delete;

  void lock() {
    if (at_fork::is_near()) [[unlikely]]
      make_way();
    mutex_.lock();
    owner_.store(this_thread_tag(), std::memory_order_relaxed);
  }
  [[nodiscard]] bool try_lock() {
    if (!mutex_.try_lock()) return false;
    owner_.store(this_thread_tag(), std::memory_order_relaxed);
    return true;
  }
  void unlock() {
    owner_.store(nullptr, std::memory_order_relaxed);
    mutex_.unlock();
  }

  /// True where the calling thread holds it.
  [[nodiscard]] bool is_mine() const noexcept {
    return owner_.load(std::memory_order_relaxed) == this_thread_tag();
  }

 private:
  /// Others come first for a moment, so that a lock which is taken all the time is found free. Not for longer: this thread
  /// may hold what the thread that forks needs.
  TARN_NOINLINE static void make_way() noexcept {
#if defined(__unix__) || defined(__APPLE__)
    for (int tries = 0; tries < 20 && at_fork::is_near(); ++tries) {
      timespec const pause{0, 50'000};
      (void)::nanosleep(&pause, nullptr);
    }
#endif
  }
  static bool take(void* self) noexcept {
    auto& m = *static_cast<fork_mutex*>(self);
    m.forker_has_it_ = m.is_mine();
    if (m.forker_has_it_) return true;
    return m.try_lock();
  }
  static void release(void* self, fork_side side) noexcept {
    auto& m = *static_cast<fork_mutex*>(self);
    if (side == fork_side::child_without) {
      m.owner_.store(nullptr, std::memory_order_relaxed);
      (void)::new (static_cast<void*>(&m.mutex_)) std::mutex;  // its owner does not exist here
    } else if (!m.forker_has_it_) {
      m.unlock();
    }
  }

  std::mutex mutex_;
  std::atomic<void const*> owner_{nullptr};  ///< the thread inside, for that thread to know
  bool forker_has_it_ = false;               ///< it was inside before it forked
  at_fork member_{this, &take, &release};
};

/// A fork_mutex that the thread which holds it may take again.
class recursive_fork_mutex {
 public:
  void lock() {
    if (!is_mine()) mutex_.lock();
    ++depth_;
  }
  [[nodiscard]] bool try_lock() {
    if (!is_mine() && !mutex_.try_lock()) return false;
    ++depth_;
    return true;
  }
  void unlock() {
    if (--depth_ == 0) mutex_.unlock();
  }

  /// True where the calling thread holds it.
  [[nodiscard]] bool is_mine() const noexcept { return mutex_.is_mine(); }

 private:
  fork_mutex mutex_;
  std::size_t depth_ = 0;  ///< of the thread that holds it
};

/// Takes a lock that is held for nanoseconds only, while nothing is waited for.
template <class Lock>
class held_at_fork {
 public:
  explicit held_at_fork(Lock& lock) noexcept : member_(&lock, &take, &release) {}

 private:
  static bool take(void* lock) noexcept {
    static_cast<Lock*>(lock)->lock();
    return true;
  }
  static void release(void* lock, fork_side) noexcept { static_cast<Lock*>(lock)->unlock(); }

  at_fork member_;
};

}  // namespace tarn::detail
