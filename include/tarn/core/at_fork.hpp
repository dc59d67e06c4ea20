// SPDX-License-Identifier: Apache-2.0
#pragma once
// Keeps locks usable across fork() while other threads are inside a pool or a policy. Without it, locks held
// by other threads would stay locked forever in the child, and the data they guard would be half changed. The
// forking thread therefore takes every lock first, as glibc does for malloc, and releases them in the parent
// and in the child:
//
//   forking thread                              another thread
//   fork()                                      holds a lock, releases it
//     take the locks one by one
//     one is held? release all, try again       arrives: finds a lock held and waits, or backs off briefly
//     -- the process is copied: no other thread holds a lock --
//   parent: release all                         continues
//   child: release all                          does not exist
//
// No thread waits for a lock while it holds another one, so no lock order can deadlock. A lock that the
// forking thread itself holds (it forks in a handler) stays locked on both sides. A lock that cannot be taken
// within `patience` (its owner waits for this thread) is given up. The child constructs the locks anew, and
// must not use the data of one that was given up.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>

#include <ctime>
#endif

#include "tarn/core/config.hpp"
#include "tarn/core/mutex.hpp"
#include "tarn/core/spin_lock.hpp"
#include "tarn/core/thread_tag.hpp"
#include "tarn/core/wait.hpp"

namespace TARN_NAMESPACE::detail {

enum class fork_side : std::uint8_t { parent, child };

/// Identifies the calling thread among the running ones, in all modules of the process.
[[nodiscard]] inline std::uintptr_t this_thread_of_process() noexcept {
#if defined(__unix__) || defined(__APPLE__)
  return reinterpret_cast<std::uintptr_t>(reinterpret_cast<void const*>(::pthread_self()));
#else
  return reinterpret_cast<std::uintptr_t>(this_thread_tag());
#endif
}

/// A lock to take before a fork and to release after it, on both sides, between begin() and end().
class fork_member {
 public:
  using take_function = bool (*)(void* self) noexcept;  ///< false: could not take it; must not wait for long
  /// In the child it is also called if the lock could not be taken.
  using release_function = void (*)(void* self, fork_side side) noexcept;

  constexpr fork_member(void* self, take_function take, release_function release) noexcept
      : self_(self), take_(take), release_(release) {}
  fork_member& operator=(fork_member&&) = delete;
  /// Only the first call has an effect, also after end().
  void begin() noexcept {
    if (!is_member_.load(std::memory_order_acquire)) mine_->add(*this);
  }
  /// Once, after begin().
  void end() noexcept { mine_->remove(*this); }

  /// Returns true while a thread is about to fork; other threads should back off.
  [[nodiscard]] static bool is_near() noexcept { return registry.forking.load(std::memory_order_relaxed); }
  /// Backs off briefly while a thread is about to fork, so that it can take a lock that is contended all the
  /// time.
  static void make_way() noexcept {
    if (is_near()) [[unlikely]]
      wait_for_fork();
  }

  /// The number of this process in this module: a forked child has a higher one.
  [[nodiscard]] static std::uint64_t process() noexcept {
    registry.hook();
    return registry.process.load(std::memory_order_relaxed);
  }

 private:
  friend class creating_process;

  /// The list of this module's members: plain data, constant-initialised, never destroyed.
  struct members {
    spin_lock lock;
    fork_member* first = nullptr;
    fork_member* last = nullptr;
    std::atomic<bool> hooked{false};
    std::atomic<bool> forking{false};
    std::atomic<std::uint64_t> process{1};
    std::atomic<std::uintptr_t> forker{0};  ///< has taken the members; only that thread relies on it

    /// Installs the process's fork hook. Holds no lock, which a fork before would leave locked in the child:
    /// several threads may install it, and only the first call of each in a fork counts.
    void hook() noexcept {
      if (hooked.load(std::memory_order_acquire)) return;
#if defined(__unix__) || defined(__APPLE__)
      if (::pthread_atfork(&before, &in_parent, &in_child) == 0) hooked = true;
#endif
    }
    void add(fork_member& m) noexcept {
      hook();
      lock.lock();
      if (!m.is_member_) {
        m.previous_ = last;
        (last != nullptr ? last->next_ : first) = &m;
        last = &m;
        m.is_member_.store(true, std::memory_order_release);
      }
      lock.unlock();
    }
    void remove(fork_member& m) noexcept {
      lock.lock();
      (m.previous_ != nullptr ? m.previous_->next_ : first) = m.next_;
      (m.next_ != nullptr ? m.next_->previous_ : last) = m.previous_;
      lock.unlock();
    }
    /// Takes the list's own lock, then all members in order of construction. Returns false, with nothing
    /// taken, if one of them could not be taken. With `last_try` it skips those members instead.
    [[nodiscard]] bool take_all(bool const last_try) noexcept {
      lock.lock();
      for (fork_member* m = first; m != nullptr; m = m->next_) {
        m->taken_ = m->take_(m->self_);
        if (m->taken_ || last_try) continue;
        for (fork_member* back = m->previous_; back != nullptr; back = back->previous_)
          back->release_(back->self_, fork_side::parent);
        lock.unlock();
        return false;
      }
      return true;
    }
    /// Releases in reverse order: a later member may depend on an earlier one.
    void release_all(fork_side const side) noexcept {
      for (fork_member* m = last; m != nullptr; m = m->previous_) {
        if (m->taken_ || side == fork_side::child) m->release_(m->self_, side);
      }
      lock.unlock();
    }
  };

  /// The wait is bounded: this thread may hold a lock that the forking thread needs.
  TARN_NOINLINE static void wait_for_fork() noexcept {
#if defined(__unix__) || defined(__APPLE__)
    for (int tries = 0; tries < 20 && is_near(); ++tries) {
      timespec const pause{0, 50'000};
      (void)::nanosleep(&pause, nullptr);
    }
#endif
  }

  static constexpr long patience = 2;  ///< seconds

#if defined(__unix__) || defined(__APPLE__)
  static bool is_forker() noexcept { return registry.forker == this_thread_of_process(); }
  static void before() noexcept {
    if (is_forker()) return;
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
    registry.forker = this_thread_of_process();
  }
  static void in_parent() noexcept {
    if (!is_forker()) return;
    registry.forker = 0;
    registry.forking.store(false, std::memory_order_relaxed);
    registry.release_all(fork_side::parent);
  }
  static void in_child() noexcept {
    if (!is_forker()) return;
    registry.forker = 0;
    registry.forking.store(false, std::memory_order_relaxed);
    registry.process.fetch_add(1, std::memory_order_relaxed);
    registry.release_all(fork_side::child);
  }
#endif

  static members registry;

  members* mine_ = &registry;  ///< of the constructing module; another one may destroy this
  void* self_;
  take_function take_;
  release_function release_;
  fork_member* previous_ = nullptr;
  fork_member* next_ = nullptr;
  std::atomic<bool> is_member_{false};
  bool taken_ = false;
};
inline constinit fork_member::members fork_member::registry{};

/// One that is a member during its life.
class at_fork : public fork_member {
 public:
  at_fork(void* self, take_function take, release_function release) noexcept
      : fork_member(self, take, release) {
    begin();
  }
  at_fork& operator=(at_fork&&) = delete;
  ~at_fork() { end(); }
};

/// Remembers the process that constructs it: a forked child has a copy of what that process made, and must
/// not use it.
class creating_process {
 public:
  /// Whether this is that process, and no child of it.
  [[nodiscard]] bool is_this() const noexcept { return number_ == now_->load(std::memory_order_relaxed); }

 private:
  std::uint64_t number_ = at_fork::process();
  /// of the constructing module; another one may ask
  std::atomic<std::uint64_t> const* now_ = &fork_member::registry.process;
};

/// A mutex that is unlocked in a forked child, unless the forking thread itself held it.
class fork_mutex {
 public:
  void lock() {
    at_fork::make_way();
    mutex_.lock();
    owner_.store(this_thread_of_process(), std::memory_order_relaxed);
  }
  [[nodiscard]] bool try_lock() {
    if (!mutex_.try_lock()) return false;
    owner_.store(this_thread_of_process(), std::memory_order_relaxed);
    return true;
  }
  void unlock() {
    owner_.store(0, std::memory_order_relaxed);
    mutex_.unlock();
  }

  /// Returns true if the calling thread holds the mutex.
  [[nodiscard]] bool is_mine() const noexcept {
    return owner_.load(std::memory_order_relaxed) == this_thread_of_process();
  }

 private:
  static bool take(void* self) noexcept {
    auto& m = *static_cast<fork_mutex*>(self);
    m.forker_has_it_ = m.is_mine();
    if (m.forker_has_it_) return true;
    return m.try_lock();
  }
  static void release(void* self, fork_side side) noexcept {
    auto& m = *static_cast<fork_mutex*>(self);
    if (m.forker_has_it_) return;
    if (side == fork_side::parent) return m.unlock();
    m.owner_.store(0, std::memory_order_relaxed);
    (void)::new (static_cast<void*>(&m.mutex_)) mutex;  // another owner does not exist in the child
  }

  mutex mutex_;
  std::atomic<std::uintptr_t> owner_{0};  ///< the owner thread; only that thread relies on it
  bool forker_has_it_ = false;            ///< the forking thread held it before the fork
  at_fork member_{this, &take, &release};
};

/// A fork_mutex that its owner thread may lock again.
class recursive_fork_mutex {
 public:
  void lock() {
    if (!is_mine()) {
      mutex_.lock();
      depth_ = 0;  // in a forked child it may be the count of an owner that does not exist there
    }
    ++depth_;
  }
  [[nodiscard]] bool try_lock() {
    if (!is_mine()) {
      if (!mutex_.try_lock()) return false;
      depth_ = 0;
    }
    ++depth_;
    return true;
  }
  void unlock() {
    if (--depth_ == 0) mutex_.unlock();
  }

  /// Returns true if the calling thread holds the mutex.
  [[nodiscard]] bool is_mine() const noexcept { return mutex_.is_mine(); }

 private:
  fork_mutex mutex_;
  std::size_t depth_ = 0;  ///< lock count of the owner thread
};

/// Takes a lock at fork that is only ever held for nanoseconds and never while its owner waits.
template <class Lock, class Member = at_fork>
class held_at_fork : public Member {
 public:
  constexpr explicit held_at_fork(Lock& lock) noexcept : Member(&lock, &take, &release) {}

 private:
  static bool take(void* lock) noexcept {
    static_cast<Lock*>(lock)->lock();
    return true;
  }
  static void release(void* of, fork_side side) noexcept {
    auto& lock = *static_cast<Lock*>(of);
    if constexpr (requires { lock.forget_other_threads(); }) {
      if (side == fork_side::child) lock.forget_other_threads();
    }
    lock.unlock();
  }
};

/// Takes what other threads of the parent have linked out of a list, in a forked child: it lies on stacks
/// that the child gives to its own threads. O(items)
template <class Item>
void keep_own_items(Item*& first) noexcept {
  for (Item** at = &first; *at != nullptr;) {
    if ((*at)->thread == this_thread_number()) {
      at = &(*at)->next;
    } else {
      *at = (*at)->next;
    }
  }
}

/// A spin_lock with static storage that fork() finds unlocked: the only one of its Owner. A local static has
/// a guard instead: a child forked while another thread was held up there would wait for that thread, which
/// it does not have. And one with a destructor would run code before main().
template <class Owner>
class static_spin_lock {
 public:
  static void lock() noexcept {
    member.begin();
    spin.lock();
    if (ends) return;
    ends = true;
    (void)std::atexit([] { member.end(); });  // or when the module is unloaded
  }
  static void unlock() noexcept { spin.unlock(); }

 private:
  inline static constinit spin_lock spin;
  inline static constinit held_at_fork<spin_lock, fork_member> member{spin};
  inline static constinit bool ends = false;
};

/// The mutex of a list that a module never destroys, and that fork() must find unlocked. Every object that
/// locks it has a `user`. While there is none, fork() does not know the mutex: the module may have been
/// unloaded, and the mutex with it.
class static_mutex {
 public:
  void lock() {
    at_fork::make_way();
    mutex_.lock();
  }
  void unlock() { mutex_.unlock(); }

  /// Made before its object locks the mutex for the first time, and destroyed after the last time.
  class user {
   public:
    explicit user(static_mutex& mutex) noexcept : mutex_(mutex) {}

   private:
    static bool take(void* of) noexcept { return static_cast<user*>(of)->mutex_.take_for_fork(); }
    static void release(void* of, fork_side side) noexcept {
      static_cast<user*>(of)->mutex_.release_after_fork(side);
    }

    static_mutex& mutex_;
    at_fork member_{this, &take, &release};
  };

 private:
  // By the forking thread, which takes the mutex once for all users.
  [[nodiscard]] bool take_for_fork() noexcept {
    if (taken_ == 0 && !mutex_.try_lock()) return false;
    ++taken_;
    return true;
  }
  void release_after_fork(fork_side side) noexcept {
    if (side == fork_side::parent) {
      if (--taken_ == 0) mutex_.unlock();
      return;
    }
    taken_ = 0;
    (void)::new (static_cast<void*>(&mutex_)) mutex;  // another owner does not exist in the child
  }

  mutex mutex_;
  unsigned taken_ = 0;  ///< by the forking thread; no other one changes it
};

}  // namespace TARN_NAMESPACE::detail
