// SPDX-License-Identifier: Apache-2.0
#pragma once
// tarn in one file, made by .ci/amalgamate.py from include/tarn. Do not edit.
// ---- tarn/tarn.hpp
// tarn: GPU memory for C++. The folders, lowest first; each includes only itself and those above it in this list:
//
//   core/    basic types: bytes, streams, errors, the concepts, and shared_resource<>, the handle of every composed resource
//   driver/  the device calls, their costs and errors; the CUDA driver, no driver, and (tarn/sim.hpp) a simulated one
//   source/  sources of memory: pages, cudaMalloc, cudaMallocAsync, pinned, managed and host memory
//   pool/    the caching pool; start reading at pool.hpp:
//     front/       per-thread magazines of free blocks
//     heap.hpp     the shared state of the pool and its locks
//     arena/       ranges, runs, size classes and streams: metadata only, no driver calls
//     order/       which memory the device has finished with, and blocks that several streams use
//     ladder.hpp   the steps tried when neither front nor heap has a block
//     growth/      handles, views and segments, taken from the source
//     graph/       the memory of captured graphs, apart from all other
//     inspection/  what tools and snapshots can read
//   policy/  layers that bound, count, record, retry, check, fence and poison, composed by | and stack<>
//   raii/    owners of memory, and scopes that measure, clear and bound it
//   report/  statistics, snapshots and tables, named as in PyTorch
//
// The interoperability headers are included separately: tarn/thrust.hpp, tarn/stl.hpp, tarn/pmr.hpp, tarn/cuda_mr.hpp.

// ---- tarn/core/config.hpp
// What the compiler and the platform offer, as macros and constants. Elsewhere, #if selects only headers and system calls that
// exist on one platform, and only in the file that wraps them: core/wait, core/at_fork, pool/front/owner_lock, policy/backtrace,
// driver/ and the interop headers (tests/architecture/check.py).

#if defined(_MSVC_LANG) ? _MSVC_LANG < 202002L : __cplusplus < 202002L
#error "tarn needs C++20: compile with -std=c++20"
#include <tarn-needs-C++20>  // ends the compilation: what follows would only be errors that mislead
#endif

#if !defined(TARN_NO_CUDA) && defined(__has_include)
#if __has_include(<cuda_runtime_api.h>)
/// 1 if CUDA's runtime header is on the include path (define TARN_NO_CUDA to ignore it).
#define TARN_HAS_CUDA 1
#endif
#endif
#ifndef TARN_HAS_CUDA
#define TARN_HAS_CUDA 0
#endif

#if !defined(__cpp_exceptions) && !defined(__EXCEPTIONS) && !defined(_CPPUNWIND)
#error "tarn: reports errors by exceptions; compile without -fno-exceptions"
#endif

#if defined(__SANITIZE_THREAD__)
#define TARN_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TARN_TSAN 1
#endif
#endif
#ifndef TARN_TSAN
#define TARN_TSAN 0
#endif

#if defined(__SANITIZE_ADDRESS__)
#define TARN_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TARN_ASAN 1
#endif
#endif
#ifndef TARN_ASAN
#define TARN_ASAN 0
#endif

/// 1: a pool checks that nothing it looked up under its lock is used after the lock was released
/// (pool/arena/looked_up.hpp), and aborts on the spot if it is. For tests of tarn and of user-defined sources; use the same
/// value in every translation unit.
#ifndef TARN_CHECK_LOCKS
#define TARN_CHECK_LOCKS 0
#endif

#if defined(__GNUC__) || defined(__clang__)
#define TARN_ALWAYS_INLINE inline __attribute__((always_inline))
#define TARN_NOINLINE __attribute__((noinline))
#define TARN_ALWAYS_INLINE_LAMBDA __attribute__((always_inline))
#elif defined(_MSC_VER)
#define TARN_ALWAYS_INLINE __forceinline
#define TARN_NOINLINE __declspec(noinline)
#define TARN_ALWAYS_INLINE_LAMBDA
#else
#define TARN_ALWAYS_INLINE inline
#define TARN_NOINLINE
#define TARN_ALWAYS_INLINE_LAMBDA
#endif

// Functions that kernels call, too.
#if defined(__CUDACC__)
#define TARN_HOST_DEVICE __host__ __device__
#else
#define TARN_HOST_DEVICE
#endif

namespace tarn {

/// Size of a cache line, bytes; data of different threads is kept this far apart.
inline constexpr unsigned cache_line_bytes = 64;

namespace detail {
inline constexpr bool check_locks = TARN_CHECK_LOCKS != 0;
}

}  // namespace tarn
// ---- tarn/version.hpp
// The version, for programs and for CMake, which reads this file.

#define TARN_VERSION_MAJOR 0
#define TARN_VERSION_MINOR 1
#define TARN_VERSION_PATCH 0

// ---- tarn/core/at_fork.hpp
// Keeps locks usable across fork() while other threads are inside a pool or a policy. Without it, locks held by other threads
// would stay locked forever in the child, and the data they guard would be half changed. The forking thread therefore takes
// every lock first, as glibc does for malloc, and releases them in the parent and in the child:
//
//   forking thread                              another thread
//   fork()                                      holds a lock, releases it
//     take the locks one by one
//     one is held? release all, try again       arrives: finds a lock held and waits, or backs off briefly
//     -- the process is copied: no other thread holds a lock --
//   parent: release all                         continues
//   child: release all                          does not exist
//
// No thread waits for a lock while it holds another one, so no lock order can deadlock. A lock that the forking thread itself
// holds (it forks in a handler) stays locked on both sides. A lock that cannot be taken within `patience` (its owner waits for
// this thread) is given up: it is constructed anew in the child, which must not use the data it guards.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#include <unistd.h>

#include <ctime>
#endif

// ---- tarn/core/spin_lock.hpp
// A minimal lock for critical sections of a few nanoseconds.

#include <atomic>

// ---- tarn/core/wait.hpp
// Waits briefly for another thread.

#if defined(__linux__)
#include <sched.h>  // <thread> costs as much to include as all of core/

#include <ctime>
#else
#include <thread>
#endif

namespace tarn::detail {

/// Spins for a while, then yields: the thread that is waited for may not be running. Later it sleeps: that thread may be waiting
/// for the device.
inline void spin_wait(unsigned tries) noexcept {
  if (tries >= 64) {
#if defined(__linux__)
    if (tries >= 10'000) {
      timespec const pause{0, 50'000};
      (void)nanosleep(&pause, nullptr);
      return;
    }
    (void)sched_yield();
#else
    std::this_thread::yield();
#endif
    return;
  }
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

}  // namespace tarn::detail

namespace tarn::detail {

class spin_lock {
 public:
  spin_lock() noexcept = default;
  spin_lock(spin_lock const&) = delete;
  spin_lock& operator=(spin_lock const&) = delete;

  [[nodiscard]] TARN_ALWAYS_INLINE bool try_lock() noexcept {
    return !taken_.exchange(true, std::memory_order_acquire);
  }
  void lock() noexcept {
    for (unsigned tries = 0; !try_lock(); ++tries) spin_wait(tries);
  }
  TARN_ALWAYS_INLINE void unlock() noexcept { taken_.store(false, std::memory_order_release); }
  /// A snapshot; may already be out of date.
  [[nodiscard]] bool is_taken() const noexcept { return taken_.load(std::memory_order_relaxed); }

 private:
  std::atomic<bool> taken_{false};
};

}  // namespace tarn::detail
// ---- tarn/core/thread_tag.hpp
// Identifiers for threads: an address among running threads, and a number that is never reused.

#include <atomic>
#include <cstdint>

namespace tarn::detail {

/// Storage of a thread's number; 0 until the thread needs one.
[[nodiscard]] inline std::uint64_t& thread_number_place() noexcept {
  static thread_local constinit std::uint64_t number = 0;
  return number;
}

/// Returns an address unique among running threads; a later thread may get the same one.
inline void const* this_thread_tag() noexcept {
  return &thread_number_place();
}

/// Returns a number unique to this thread and never reused; never 0. Assigned at the first call.
[[nodiscard]] inline std::uint64_t this_thread_number() noexcept {
  static constinit std::atomic<std::uint64_t> last{0};
  std::uint64_t& number = thread_number_place();
  if (number == 0) number = last.fetch_add(1, std::memory_order_relaxed) + 1;
  return number;
}

/// Returns the number of the thread with this tag, 0 if it has none. The thread must be running and not obtain a number
/// concurrently.
[[nodiscard]] inline std::uint64_t thread_number_of(void const* tag) noexcept {
  return *static_cast<std::uint64_t const*>(tag);
}

}  // namespace tarn::detail

namespace tarn::detail {

enum class fork_side : std::uint8_t {
  parent,
  child,
  child_without  ///< in the child, and the lock could not be taken
};

/// A lock to take before a fork and to release after it, on both sides. The first one installs the process's fork hook.
class at_fork {
 public:
  using take_function = bool (*)(void* self) noexcept;  ///< false: could not take it; must not wait for long
  using release_function = void (*)(void* self, fork_side side) noexcept;

  at_fork(void* self, take_function take, release_function release) noexcept
      : self_(self), take_(take), release_(release) {
    mine_->add(*this);
  }
  at_fork(at_fork const&) = delete;
  at_fork& operator=(at_fork const&) = delete;
  ~at_fork() { mine_->remove(*this); }

  /// Returns true while a thread is about to fork; other threads should back off.
  [[nodiscard]] static bool is_near() noexcept { return registry.forking.load(std::memory_order_relaxed); }

 private:
  /// The list of this module's members: plain data, constant-initialised, never destroyed.
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
    /// Takes the list's own lock, then all members in order of construction. Returns false, with nothing taken, if one of
    /// them could not be taken. With `last_try` it skips those members instead.
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
    /// Releases in reverse order: a later member may depend on an earlier one.
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

  members* mine_ = &registry;  ///< of the constructing module; another one may destroy this
  void* self_;
  take_function take_;
  release_function release_;
  at_fork* previous_ = nullptr;
  at_fork* next_ = nullptr;
  bool taken_ = false;
};
inline constinit at_fork::members at_fork::registry{};

/// A number of this process, which a forked child does not have.
[[nodiscard]] inline std::int64_t this_process() noexcept {
#if defined(__unix__) || defined(__APPLE__)
  return ::getpid();
#else
  return 0;
#endif
}

/// Identifies the calling thread among the running ones, in all modules of the process.
[[nodiscard]] inline void const* this_thread_of_process() noexcept {
#if defined(__unix__) || defined(__APPLE__)
  return reinterpret_cast<void const*>(::pthread_self());
#else
  return this_thread_tag();
#endif
}

/// A std::mutex that is unlocked in a forked child, unless the forking thread itself held it.
class fork_mutex {
 public:
  fork_mutex() noexcept = default;
  fork_mutex(fork_mutex const&) = delete;
  fork_mutex& operator=(fork_mutex const&) = delete;

  void lock() {
    if (at_fork::is_near()) [[unlikely]]
      make_way();
    mutex_.lock();
    owner_.store(this_thread_of_process(), std::memory_order_relaxed);
  }
  [[nodiscard]] bool try_lock() {
    if (!mutex_.try_lock()) return false;
    owner_.store(this_thread_of_process(), std::memory_order_relaxed);
    return true;
  }
  void unlock() {
    owner_.store(nullptr, std::memory_order_relaxed);
    mutex_.unlock();
  }

  /// Returns true if the calling thread holds the mutex.
  [[nodiscard]] bool is_mine() const noexcept {
    return owner_.load(std::memory_order_relaxed) == this_thread_of_process();
  }

 private:
  /// Backs off briefly, so that the forking thread can take a lock that is contended all the time. The wait is bounded: this
  /// thread may hold a lock that the forking thread needs.
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
      (void)::new (static_cast<void*>(&m.mutex_)) std::mutex;  // the owner does not exist in the child
    } else if (!m.forker_has_it_) {
      m.unlock();
    }
  }

  std::mutex mutex_;
  std::atomic<void const*> owner_{nullptr};  ///< the owner thread; only that thread relies on it
  bool forker_has_it_ = false;               ///< the forking thread held it before the fork
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
// ---- tarn/core/bytes.hpp
// Sizes and alignments: literals, rounding, and arithmetic that cannot wrap.

#include <cstddef>
#include <cstdint>
#include <limits>

// ---- tarn/core/error.hpp
// The exception types and status codes of tarn. Numbers are fields; texts are built without allocating.

#include <cstddef>
#include <cstdint>
#include <exception>
#include <new>
#include <stdexcept>
#include <string_view>

// ---- tarn/core/message.hpp
// A fixed-size text buffer that never allocates, so that errors can be reported when memory has run out.

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tarn {

namespace detail {

// Not templates on the capacity: every message<N> would compile them again in every file. They append after the first `size`
// characters, reserve one for the terminator, and return the new size.

constexpr std::size_t append(char* to, std::size_t size, std::size_t capacity, char const* text,
                             std::size_t length) noexcept {
  for (std::size_t i = 0; i < length && size + 1 < capacity; ++i) to[size++] = text[i];
  to[size] = '\0';
  return size;
}

constexpr std::size_t append_number(char* to, std::size_t size, std::size_t capacity,
                                    std::uint64_t value) noexcept {
  char digits[20]{};
  std::size_t first = sizeof digits;
  do {
    digits[--first] = static_cast<char>('0' + value % 10);
    value /= 10;
  } while (value != 0);
  return append(to, size, capacity, digits + first, sizeof digits - first);
}

constexpr std::size_t append_hex(char* to, std::size_t size, std::size_t capacity,
                                 std::uint64_t value) noexcept {
  size = append(to, size, capacity, "0x", 2);
  int shift = 60;
  while (shift > 0 && ((value >> shift) & 15U) == 0) shift -= 4;
  for (; shift >= 0; shift -= 4)
    size = append(to, size, capacity, &"0123456789abcdef"[(value >> shift) & 15U], 1);
  return size;
}

constexpr std::size_t append_bytes(char* to, std::size_t size, std::size_t capacity,
                                   std::uint64_t bytes) noexcept {
  constexpr char prefixes[] = "KMGTPE";
  std::size_t unit = 0;
  std::uint64_t rest = 0;
  for (; bytes >= 1024; bytes /= 1024, ++unit) rest = bytes % 1024;
  size = append_number(to, size, capacity, bytes);
  if (std::uint64_t const tenth = rest * 10 / 1024; tenth != 0) {
    size = append(to, size, capacity, ".", 1);
    size = append_number(to, size, capacity, tenth);
  }
  if (unit == 0) return append(to, size, capacity, " B", 2);
  char const name[] = {' ', prefixes[unit - 1], 'i', 'B'};
  return append(to, size, capacity, name, sizeof name);
}

}  // namespace detail

/// Text of bounded size; text that does not fit is truncated.
template <std::size_t Capacity>
class message {
 public:
  constexpr message& add(std::string_view text) noexcept {
    size_ = detail::append(text_, size_, Capacity, text.data(), text.size());
    return *this;
  }
  constexpr message& add_number(std::uint64_t value) noexcept {
    size_ = detail::append_number(text_, size_, Capacity, value);
    return *this;
  }
  constexpr message& add_number(int value) noexcept {
    if (value < 0) add("-");
    auto const wide = static_cast<std::int64_t>(value);
    return add_number(static_cast<std::uint64_t>(wide < 0 ? -wide : wide));
  }
  constexpr message& add_hex(std::uint64_t value) noexcept {
    size_ = detail::append_hex(text_, size_, Capacity, value);
    return *this;
  }
  /// Appends a byte count in human-readable form: "96 B", "1.5 KiB", "512 MiB"; at most one decimal, truncated.
  constexpr message& add_bytes(std::uint64_t bytes) noexcept {
    size_ = detail::append_bytes(text_, size_, Capacity, bytes);
    return *this;
  }

  /// Removes what follows the first `size` characters.
  constexpr void truncate(std::size_t size) noexcept {
    if (size < size_) text_[size_ = size] = '\0';
  }

  [[nodiscard]] constexpr std::size_t size() const noexcept { return size_; }
  [[nodiscard]] constexpr char const* c_str() const noexcept { return text_; }
  [[nodiscard]] constexpr std::string_view view() const noexcept { return {text_, size_}; }

 private:
  char text_[Capacity]{};
  std::size_t size_ = 0;
};

}  // namespace tarn
// ---- tarn/core/source_location.hpp
// A source location. std::source_location is not available with clang 14, which tarn supports; the builtins behind it are
// available everywhere.

namespace tarn {

/// File, line and function of a call; static storage. Use it as a default argument:
/// `source_location where = source_location::current()`.
struct source_location {
  char const* file = "";
  int line = 0;
  char const* function = "";

  [[nodiscard]] static constexpr source_location current(
      char const* file = __builtin_FILE(), int line = __builtin_LINE(),
      char const* function = __builtin_FUNCTION()) noexcept {
    return {file, line, function};
  }
};

}  // namespace tarn

namespace tarn {

/// The kind of a driver call's failure; the part of an error code that tarn acts on.
enum class failure : std::uint8_t {
  none,           ///< the call succeeded
  not_ready,      ///< an event or stream has pending work; not an error
  out_of_memory,  ///< the device or the host has no memory left
  unloading,      ///< the driver is shutting down: the process is exiting
  unsupported,    ///< this device or driver version lacks the call
  no_device,      ///< there is no device, or no driver
  forked,         ///< this process was forked: the driver's state belongs to the parent
  other           ///< everything else; often sticky, from an earlier failed kernel
};

/// Result of one driver call. Cheap, never allocates, never throws.
struct [[nodiscard]] status {
  failure kind = failure::none;
  int code = 0;           ///< the driver's own number (cudaError_t, CUresult), 0 on success
  char const* name = "";  ///< the driver's own name for the code, static storage
  char const* call = "";  ///< the call that was made, static storage

  [[nodiscard]] constexpr bool ok() const noexcept { return kind == failure::none; }
};

/// A count times a size overflows.
class length_error : public std::length_error {
 public:
  using std::length_error::length_error;
};

/// An alignment that is not a power of two, or larger than the resource supports.
class bad_alignment : public std::exception {
 public:
  bad_alignment(std::size_t alignment, std::size_t limit) noexcept : alignment_(alignment), limit_(limit) {
    text_.add("tarn: alignment ").add_number(alignment).add(" is not supported; use a power of two up to ");
    text_.add_number(limit);
  }
  [[nodiscard]] char const* what() const noexcept override { return text_.c_str(); }
  [[nodiscard]] std::size_t alignment() const noexcept { return alignment_; }
  [[nodiscard]] std::size_t limit() const noexcept { return limit_; }

 private:
  std::size_t alignment_;
  std::size_t limit_;
  message<128> text_;
};

namespace detail {
/// Appends " [solver.cpp:42]" after the first `size` characters; nothing for an unknown place. Of a long path, the end.
template <std::size_t Capacity>
void end_with_place(message<Capacity>& text, std::size_t size, source_location const& where) noexcept {
  text.truncate(size);
  if (where.line == 0) return;
  constexpr std::size_t longest = 100;
  std::string_view file = where.file;
  text.add(" [");
  if (file.size() > longest) {
    file.remove_prefix(file.size() - longest);
    text.add("...");
  }
  text.add(file).add(":").add_number(where.line).add("]");
}
}  // namespace detail

/// A driver call failed. Holds the code, its name, the call, and the line of the user's program that led to it.
class cuda_error : public std::exception {
 public:
  explicit cuda_error(status what_happened, int device = -1,
                      source_location where = source_location::current()) noexcept
      : status_(what_happened), device_(device) {
    text_.add("tarn: ").add(status_.call).add(" failed");
    if (device >= 0) text_.add(" on device ").add_number(device);
    text_.add(": ").add(status_.name).add(" (").add_number(status_.code).add(")");
    text_.add(advice(status_));
    size_ = text_.size();
    set_where(where);
  }
  [[nodiscard]] char const* what() const noexcept override { return text_.c_str(); }
  [[nodiscard]] failure kind() const noexcept { return status_.kind; }
  [[nodiscard]] int code() const noexcept { return status_.code; }
  [[nodiscard]] char const* name() const noexcept { return status_.name; }
  [[nodiscard]] char const* call() const noexcept { return status_.call; }
  [[nodiscard]] int device() const noexcept { return device_; }
  [[nodiscard]] source_location where() const noexcept { return where_; }
  /// Replaces the place, in what() too: for functions that know which line of the user's program called them. Line 0: unknown.
  void set_where(source_location where) noexcept {
    if (is_placed_) return;
    where_ = where;
    detail::end_with_place(text_, size_, where);
  }
  /// Keeps the place from now on: for errors that pass through another call of the library.
  void keep_where() noexcept { is_placed_ = true; }

 private:
  [[nodiscard]] static constexpr std::string_view advice(status const& s) noexcept {
    constexpr int invalid_handle = 400;    // cudaErrorInvalidResourceHandle, CUDA_ERROR_INVALID_HANDLE
    constexpr int first_of_capture = 900;  // cudaErrorStreamCaptureUnsupported
    constexpr int last_of_capture = 908;   // cudaErrorStreamCaptureWrongThread
    switch (s.kind) {
      case failure::out_of_memory:
        return "; the driver is out of memory, free some";
      case failure::not_ready:
        return "; earlier work has not finished, synchronise first";
      case failure::no_device:
        return "; check that a device and its driver are installed";
      case failure::forked:
        return "; a forked child has no device memory, fork before the first use or start another program";
      case failure::unsupported:
        return "; this device or driver does not support it, use another source";
      case failure::unloading:
        return "; the driver is shutting down, release owners earlier";
      case failure::other:
        return s.code == invalid_handle ? "; the stream may not exist any more, or is of another device"
               : s.code >= first_of_capture && s.code <= last_of_capture
                   ? "; a stream is being captured into a graph, do this before or after"
                   : "; an earlier kernel or copy may have failed";
      case failure::none:
        break;
    }
    return "";
  }

  status status_;
  int device_;
  source_location where_;
  bool is_placed_ = false;
  std::size_t size_;  ///< of the text before the place
  message<448> text_;
};

/// The live bytes of one tag, see core/tag.
struct bytes_of_tag {
  char const* name = nullptr;  ///< static storage; null: none
  std::size_t bytes = 0;
};

/// The memory state at the time of the failure; bytes. Fields that a resource cannot know stay `unknown`.
struct memory_report {
  static constexpr std::size_t unknown = static_cast<std::size_t>(-1);
  static constexpr std::uint64_t no_stream = ~std::uint64_t{0};
  std::size_t asked = 0;                     ///< bytes of the request
  std::size_t alignment = 0;                 ///< alignment of the request
  int device = -1;                           ///< device ordinal, -1 for the host
  std::uint64_t stream = 0;                  ///< stream identity as the driver numbers it, or no_stream
  std::size_t live = unknown;                ///< allocated to callers
  std::size_t cached = unknown;              ///< reserved from the driver, not allocated to callers
  std::size_t reserved = unknown;            ///< reserved from the driver
  std::size_t largest_free_range = unknown;  ///< the largest request that the cache could serve
  std::size_t device_free = unknown;         ///< free memory as reported by the driver
  std::size_t device_total = unknown;        ///< all memory of the device
  std::size_t limit = unknown;               ///< the limit that refused, if one did
  std::size_t limit_used = unknown;          ///< bytes that all users of that limit hold
  std::size_t headroom = unknown;            ///< the headroom that refused, if one did
  std::size_t lacking =
      unknown;  ///< bytes that must become free first, on the device or under `limit`, if wake() refused
  char const* refused_by = "the device";  ///< which layer refused: "limited", "the device", ...; static
  char const* call = nullptr;             ///< the driver call that failed, if one did; static storage
  source_location where;                  ///< of the user's call; line 0: unknown
  bytes_of_tag biggest_tags[3];           ///< largest live tags first, if a `with_history` layer exists
};

/// Memory ran out. Reports which layer refused, the state, and what to try. Nothing has changed.
class out_of_memory : public std::bad_alloc {
 public:
  explicit out_of_memory(memory_report const& report) noexcept : out_of_memory(report, {}) {}
  [[nodiscard]] char const* what() const noexcept override { return text_.c_str(); }
  [[nodiscard]] memory_report const& report() const noexcept { return report_; }
  [[nodiscard]] std::size_t asked() const noexcept { return report_.asked; }
  /// Throws an error of the same type with another report, for layers that add to it.
  [[noreturn]] void throw_with(memory_report const& report) const {
    throw_same(report);
    throw out_of_memory(report);
  }
  /// Replaces the place, in what() too: for functions that know which line of the user's program called them.
  void set_where(source_location where) noexcept {
    if (is_placed_) return;
    report_.where = where;
    detail::end_with_place(text_, size_, where);
  }
  /// Keeps the place from now on: for errors that pass through another call of the library.
  void keep_where() noexcept { is_placed_ = true; }

 protected:
  /// @param advice  what to try; empty: chosen from the report
  out_of_memory(memory_report const& report, std::string_view advice) noexcept : report_(report) {
    constexpr std::size_t unknown = memory_report::unknown;
    text_.add("tarn: ").add_bytes(report.asked).add(" asked");
    if (report.device >= 0) text_.add(" on device ").add_number(report.device);
    if (report.stream != memory_report::no_stream) text_.add(", stream ").add_number(report.stream);
    text_.add(": refused by ").add(report.refused_by);
    if (report.call != nullptr) text_.add(" (").add(report.call).add(")");
    if (report.limit != unknown) text_.add("(").add_bytes(report.limit).add(")");
    if (report.headroom != unknown) text_.add("(").add_bytes(report.headroom).add(")");
    if (report.limit_used != unknown) text_.add(", of which ").add_bytes(report.limit_used).add(" are used");
    text_.add(".");
    std::size_t const nothing_known = text_.size();
    field(nothing_known, "live ", report.live);
    field(nothing_known, "cached ", report.cached);
    field(nothing_known, "reserved ", report.reserved);
    field(nothing_known, "largest free range ", report.largest_free_range);
    field(nothing_known, report.device >= 0 ? "free on the device " : "free on the host ",
          report.device_free);
    field(nothing_known, "lacking ", report.lacking);
    if (text_.size() != nothing_known) text_.add(".");
    if (report.biggest_tags[0].name != nullptr) {
      char const* before = " By tag: ";
      for (bytes_of_tag const& t : report.biggest_tags) {
        if (t.name != nullptr)
          text_.add(before).add(std::string_view(t.name).substr(0, longest_tag)).add(" ").add_bytes(t.bytes);
        before = ", ";
      }
      text_.add(".");
    }
    if (advice.empty()) {
      add_advice();
    } else {
      text_.add(advice);
    }
    size_ = text_.size();
    set_where(report.where);
  }

 private:
  static constexpr std::size_t longest_tag = 63;  ///< longer names are cut, so that the advice has room
  static constexpr std::size_t max_sensible = std::size_t{1} << 46;  // 64 TiB, above any device of 2026

  /// What to try, from what is known.
  void add_advice() noexcept {
    constexpr std::size_t unknown = memory_report::unknown;
    memory_report const& r = report_;
    if (r.asked > max_sensible) {
      text_.add(" No device has that much: check the size for overflow.");
    } else if (r.device_total != unknown && r.asked > r.device_total) {
      text_.add(r.device >= 0 ? " The device has " : " The host has ").add_bytes(r.device_total);
      text_.add(" in all: ask for less, or split the work.");
    } else if (r.limit != unknown && r.asked > r.limit) {
      text_.add(" The limit is below this request alone: raise it or ask for less.");
    } else if (others() != 0 && r.asked > r.limit - (others() < r.limit ? others() : r.limit)) {
      text_.add(" Others under this limit hold ").add_bytes(others());
      text_.add(": free their memory, call empty_cache() on their pools, or raise the limit.");
    } else if (r.limit != unknown) {
      text_.add(" Free memory or raise the limit.");
    } else if (r.headroom != unknown) {
      text_.add(" What is free is left to others: free buffers, ask for less, or lower the headroom.");
    } else if (r.cached != unknown && r.cached >= r.asked && r.cached != 0) {
      text_.add(" The cache is fragmented: call empty_cache(), or pool over a page source.");
    } else if (r.device >= 0 && std::string_view(r.refused_by) != "the host") {
      text_.add(
          " Free buffers, call empty_cache() on other pools, ask for less, or close other programs on the "
          "device.");
    } else {
      text_.add(" Free memory or ask for less.");
    }
  }
  /// Bytes under the limit that are not this pool's.
  [[nodiscard]] std::size_t others() const noexcept {
    memory_report const& r = report_;
    if (r.limit_used == memory_report::unknown || r.reserved == memory_report::unknown) return 0;
    return r.limit_used > r.reserved ? r.limit_used - r.reserved : 0;
  }
  /// Appends one field if it is known; the first one, at text size `before`, starts the sentence.
  void field(std::size_t before, char const* label, std::size_t value) noexcept {
    if (value == memory_report::unknown) return;
    if (text_.size() == before) {
      char const capital[] = {static_cast<char>(label[0] - 'a' + 'A'), '\0'};
      text_.add(" ").add(capital).add(label + 1).add_bytes(value);
    } else {
      text_.add(", ").add(label).add_bytes(value);
    }
  }
  /// For derived types.
  virtual void throw_same(memory_report const&) const {}

  memory_report report_;
  bool is_placed_ = false;
  std::size_t size_;  ///< of the text before the place
  message<960> text_;
};

/// An allocation while the pool sleeps. Nothing has changed.
class pool_asleep : public out_of_memory {
 public:
  explicit pool_asleep(memory_report const& report) noexcept
      : out_of_memory(report, " The pool is asleep: call tarn::wake(memory) first.") {}

 private:
  void throw_same(memory_report const& report) const override { throw pool_asleep(report); }
};

namespace detail {

/// The status of a call that cannot be made. @param call  what was called, and why it is refused; static storage
[[nodiscard]] constexpr status unsupported_call(char const* call) noexcept {
  return {failure::unsupported, 801, "cudaErrorNotSupported", call};
}

}  // namespace detail

/// The kind of memory misuse that a checked build detects.
enum class misuse_kind : std::uint8_t {
  foreign_pointer,  ///< not from this resource
  double_free,      ///< freed before
  wrong_size,       ///< bytes at deallocation differ from those at allocation
  wrong_alignment,  ///< likewise the alignment
  wrong_device,     ///< the pointer, or the stream of a call, belongs to another device
  overrun,          ///< written past an end
  use_after_free,   ///< written after it was freed
  leak,             ///< live at destruction
  overlap,          ///< two ranges that must not overlap
  capture,          ///< not allowed while the stream is being captured into a graph
  contents_lost,    ///< a scope could not move contents back, and no handler was set to take them
  wrong_thread,     ///< a scope ended on another thread than it began on
  recursion,        ///< constructing an object requested that same object, or a growing pool was put to sleep
  in_use            ///< work on memory was not finished when its pool was put to sleep or compacted
};

/// Misuse of the library with defined behaviour. Thrown where possible; deallocation reports it to the misuse handler instead.
class misuse : public std::exception {
 public:
  misuse(misuse_kind kind, void const* pointer, std::string_view text) noexcept
      : kind_(kind), pointer_(pointer) {
    text_.add("tarn: ").add(text);
  }
  [[nodiscard]] char const* what() const noexcept override { return text_.c_str(); }
  [[nodiscard]] misuse_kind kind() const noexcept { return kind_; }
  [[nodiscard]] void const* pointer() const noexcept { return pointer_; }

 private:
  misuse_kind kind_;
  void const* pointer_;
  message<512> text_;
};

namespace detail {

/// Called while an exception is handled: throws it again; errors that name a place name that of the user's call. Takes the parts
/// of a source_location: in registers, they cost the caller no stack.
[[noreturn]] TARN_NOINLINE inline void rethrow_from(char const* file, int line, char const* function) {
  try {
    throw;
  } catch (cuda_error& error) {
    error.set_where({file, line, function});
    throw;
  } catch (out_of_memory& error) {
    error.set_where({file, line, function});
    throw;
  }
}
/// Calls a function of the user's; its errors keep their places.
template <class Call>
decltype(auto) call_user(Call const& call) {
  try {
    return call();
  } catch (cuda_error& error) {
    error.keep_where();
    throw;
  } catch (out_of_memory& error) {
    error.keep_where();
    throw;
  }
}

/// Runs `call`; the errors that it throws name the place of the user's call. Costs nothing unless it throws.
template <class Call>
TARN_ALWAYS_INLINE decltype(auto) called_from(source_location const& where, Call const& call) {
  try {
    return call();
  } catch (...) {
    rethrow_from(where.file, where.line, where.function);
  }
}

}  // namespace detail

}  // namespace tarn

namespace tarn {

// constexpr, not consteval: clang 14 emits calls of consteval literals in default arguments and templates.
inline namespace literals {
constexpr std::size_t operator""_KiB(unsigned long long n) {
  return static_cast<std::size_t>(n << 10);
}
constexpr std::size_t operator""_MiB(unsigned long long n) {
  return static_cast<std::size_t>(n << 20);
}
constexpr std::size_t operator""_GiB(unsigned long long n) {
  return static_cast<std::size_t>(n << 30);
}
constexpr std::size_t operator""_TiB(unsigned long long n) {
  return static_cast<std::size_t>(n << 40);
}
}  // namespace literals

/// Alignment of every device pointer unless the caller requests more, bytes: the guarantee of cudaMalloc
/// (CUDA C++ Programming Guide, "Device Memory Accesses": at least 256).
inline constexpr std::size_t default_alignment = 256;

/// Largest alignment that every resource must support, bytes; sources of whole pages support more.
inline constexpr std::size_t max_alignment = 2_MiB;

/// Returns true if the alignment is a power of two.
[[nodiscard]] constexpr bool is_alignment(std::size_t alignment) noexcept {
  return alignment != 0 &&
         (alignment & (alignment - 1)) == 0;  // std::has_single_bit calls a function on plain x86-64
}

/// Rounds up to a multiple of a power of two. The caller must ensure that the result fits.
[[nodiscard]] constexpr std::size_t align_up(std::size_t bytes, std::size_t alignment) noexcept {
  return (bytes + (alignment - 1)) & ~(alignment - 1);
}

/// Rounds down to a multiple of a power of two.
[[nodiscard]] constexpr std::size_t align_down(std::size_t bytes, std::size_t alignment) noexcept {
  return bytes & ~(alignment - 1);
}

/// Returns true if the address is a multiple of the alignment.
[[nodiscard]] inline bool is_aligned(void const* p, std::size_t alignment) noexcept {
  return (reinterpret_cast<std::uintptr_t>(p) & (alignment - 1)) == 0;
}

/// Largest size of a single request, bytes: leaves room to round up without wrapping.
inline constexpr std::size_t max_request_bytes = std::numeric_limits<std::size_t>::max() / 4;

/// Returns the bytes of `count` elements of `element_bytes` each.
/// @throws length_error  the product does not fit in size_t
[[nodiscard]] constexpr std::size_t checked_bytes(std::size_t count, std::size_t element_bytes) {
  if (element_bytes != 0 && count > max_request_bytes / element_bytes) {
    throw length_error("tarn: count * sizeof(T) overflows; ask for fewer elements");
  }
  return count * element_bytes;
}

/// Checks an alignment passed by a caller.
/// @throws bad_alignment  not a power of two, or larger than `limit`
constexpr void require_alignment(std::size_t alignment, std::size_t limit = max_alignment) {
  if (!is_alignment(alignment) || alignment > limit) throw bad_alignment(alignment, limit);
}

}  // namespace tarn
// ---- tarn/core/device.hpp
// The device ordinal as a type.

namespace tarn {

/// A device by its ordinal, as cudaSetDevice numbers them.
struct device_id {
  int value = 0;
  constexpr device_id() noexcept = default;
  constexpr device_id(int ordinal) noexcept : value(ordinal) {}  // NOLINT: an ordinal is a device
  friend constexpr bool operator==(device_id, device_id) noexcept = default;
};

}  // namespace tarn
// ---- tarn/core/min_max.hpp
// min_of and max_of for sizes and counts, without the header algorithm, which costs a compiler 40 ms.

namespace tarn::detail {

/// Returns the larger value; the first if they are equal. Takes both by value: meant for sizes and counts.
template <class T>
[[nodiscard]] constexpr T max_of(T a, T b) noexcept {
  return a < b ? b : a;
}

/// Returns the smaller value; the first if they are equal.
template <class T>
[[nodiscard]] constexpr T min_of(T a, T b) noexcept {
  return b < a ? b : a;
}

}  // namespace tarn::detail
// ---- tarn/core/property.hpp
// Memory accessibility: empty tags that a resource lists in its type.

#include <type_traits>

namespace tarn {

/// Kernels may read and write the memory.
struct device_accessible {};
/// The host may read and write the memory.
struct host_accessible {};

/// A list of tags; a resource declares `using properties = property_set<device_accessible>;`.
template <class... Tags>
struct property_set {
  template <class Tag>
  static constexpr bool has = (std::is_same_v<Tag, Tags> || ...);
};

/// True if the resource's memory has the tag.
template <class Resource, class Tag>
inline constexpr bool has_property = Resource::properties::template has<Tag>;

}  // namespace tarn
// ---- tarn/core/resource.hpp
// Concepts for resources, page sources and memory sources.
//
// | expression                                | returns   | throws                       | meaning                                           |
// |-------------------------------------------|-----------|------------------------------|---------------------------------------------------|
// | r.allocate(stream, bytes, alignment)      | void*     | out_of_memory, bad_alignment | usable by work on `stream` from now on            |
// | r.deallocate(stream, p, bytes, alignment) | void      | never                        | reusable after earlier work on `stream` is done   |
// | r.allocate_sync(bytes, alignment)         | void*     | as allocate                  | usable at once on every stream and the host       |
// | r.deallocate_sync(p, bytes, alignment)    | void      | never                        | no stream may still use it                        |
// | a == b                                    | bool      | never                        | memory of one may be freed through the other      |
// | R::properties                             | type      |                              | a property_set: what may access the memory        |
// | r.device()                                | device_id | never                        | where the memory is                               |
// | r.driver()                                | driver    | never                        | the driver that orders its streams                |
//
// Zero bytes: allocate returns null; deallocate of null does nothing. Resources are cheap handles: a copy refers to the same
// resource, and the last copy releases it.

#include <concepts>
#include <cstddef>
#include <cstdint>

// ---- tarn/core/stream.hpp
// A non-owning reference to a stream: the driver's handle and, if known, the stream's identity.

#include <concepts>
#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace tarn {

namespace detail {
/// A type with a get() that returns a cudaStream_t, other than tarn's own owners.
template <class Stream, class Ref>
concept hands_out_stream = requires(Stream const& s) {
  { s.get() } -> std::convertible_to<CUstream_st*>;
} && !requires(Stream const& s) {
  { s.ref() } -> std::same_as<Ref>;
};
}  // namespace detail

/// Identity of a stream. Handles are reused after cudaStreamDestroy; identities are not (cudaStreamGetId).
using stream_id = std::uint64_t;

/// Refers to a stream without owning it. Copy freely.
///
/// A bare handle converts implicitly (`cudaStream_t`, `cuda::stream_ref`, a simulated stream), and the pool queries the
/// driver for its identity at each call; `tarn::identified(resource, stream)` queries once and keeps the result. A
/// default-constructed stream_ref is the default stream.
class stream_ref {
 public:
  /// The identity is not known; the pool must query the driver.
  static constexpr stream_id unknown_id = 0;

  constexpr stream_ref() noexcept = default;
  /// From a cudaStream_t or nullptr. A template, so that an owner that converts to both is not ambiguous.
  template <class Handle>
    requires std::same_as<Handle, CUstream_st*> || std::same_as<Handle, std::nullptr_t>
  constexpr stream_ref(Handle handle) noexcept : handle_(handle) {}  // NOLINT: cudaStream_t is a stream
  // An int is a count or bytes, as the 0 in allocate(0, 256).
  stream_ref(int) = delete;  // no stream: write tarn::stream_ref{} for the default stream
  /// From any type whose get() returns a cudaStream_t: cuda::stream_ref, or RMM's view through value(). tarn's own stream owners
  /// convert by themselves and keep the identity.
  template <class Stream>
    requires detail::hands_out_stream<Stream, stream_ref>
  constexpr stream_ref(Stream const& stream) noexcept : handle_(stream.get()) {}  // NOLINT

  /// Constructs from a driver's own handle, with the identity if the caller knows it.
  [[nodiscard]] static constexpr stream_ref from(void* handle, stream_id id = unknown_id) noexcept {
    stream_ref s;
    s.handle_ = handle;
    s.id_ = id;
    return s;
  }

  /// The driver's handle; null is the default stream.
  [[nodiscard]] constexpr void* handle() const noexcept { return handle_; }
  /// The handle as a cudaStream_t.
  [[nodiscard]] CUstream_st* get() const noexcept { return static_cast<CUstream_st*>(handle_); }
  /// The identity, or `unknown_id`.
  [[nodiscard]] constexpr stream_id id() const noexcept { return id_; }

  /// Compares the handles, as cuda::stream_ref does. One handle may name several streams: those of different devices or threads,
  /// if it is a default stream's, or one that was destroyed and the next one. Compare id() to distinguish them.
  friend constexpr bool operator==(stream_ref a, stream_ref b) noexcept { return a.handle_ == b.handle_; }

 private:
  void* handle_ = nullptr;
  stream_id id_ = unknown_id;
};

}  // namespace tarn

namespace tarn {

template <class R>
concept has_allocate = requires(R& r, stream_ref stream, std::size_t bytes, std::size_t alignment) {
  { r.allocate(stream, bytes, alignment) } -> std::same_as<void*>;
};
template <class R>
concept has_deallocate =
    requires(R& r, stream_ref stream, void* p, std::size_t bytes, std::size_t alignment) {
      { r.deallocate(stream, p, bytes, alignment) } noexcept;
    };
template <class R>
concept has_allocate_sync = requires(R& r, std::size_t bytes, std::size_t alignment) {
  { r.allocate_sync(bytes, alignment) } -> std::same_as<void*>;
};
template <class R>
concept has_deallocate_sync = requires(R& r, void* p, std::size_t bytes, std::size_t alignment) {
  { r.deallocate_sync(p, bytes, alignment) } noexcept;
};
template <class R>
concept has_properties = requires { typename R::properties; };
template <class R>
concept has_driver = requires(R const& r) {
  typename R::driver_type;
  { r.driver() } -> std::convertible_to<typename R::driver_type const&>;
  { r.device() } -> std::convertible_to<device_id>;
};

/// A stream-ordered memory resource; see the table above.
template <class R>
concept resource = std::copyable<R> && std::equality_comparable<R> && has_allocate<R> && has_deallocate<R> &&
                   has_allocate_sync<R> && has_deallocate_sync<R> && has_properties<R> && has_driver<R>;

/// One allocation of physical memory, by the driver's handle (CUmemGenericAllocationHandle).
using page_handle = std::uint64_t;

/// Contiguous bytes of a block that lie in one handle.
struct memory_segment {
  void* address = nullptr;  ///< of the bytes in the block
  std::size_t bytes = 0;
  page_handle handle = 0;
  std::size_t offset = 0;        ///< of the bytes in the handle
  std::size_t handle_bytes = 0;  ///< size of the whole handle
  friend bool operator==(memory_segment const&, memory_segment const&) noexcept = default;
};

/// A source of pages: address ranges, physical handles, and mappings of handles into ranges.
///
/// | expression            | throws                    | meaning                                                   |
/// |-----------------------|---------------------------|-----------------------------------------------------------|
/// | s.granularity()       | never                     | bytes; every size and offset below is a multiple of it    |
/// | s.reserve(bytes)      | out_of_memory, cuda_error | an address range with no memory mapped                    |
/// | s.unreserve(p, bytes) | never                     | releases the whole range of one reserve()                 |
/// | s.create(bytes)       | out_of_memory, cuda_error | one handle of physical memory                             |
/// | s.destroy(h, bytes)   | never                     | releases the handle; it must not be mapped anywhere       |
/// | s.map(p, bytes, h)    | out_of_memory, cuda_error | maps the whole handle at p, readable and writable         |
/// | s.unmap(p, bytes)     | never                     | undoes exactly one map(); no work may still use the range |
/// | s.has_pages()         | never                     | optional: false if the device has none (no virtual memory management); a pool then uses plain blocks, see has_plain_blocks |
template <class S>
concept page_source = std::copyable<S> && std::equality_comparable<S> && has_properties<S> && has_driver<S> &&
                      requires(S& s, std::size_t bytes, void* p, page_handle h) {
                        { s.granularity() } noexcept -> std::same_as<std::size_t>;
                        { s.reserve(bytes) } -> std::same_as<void*>;
                        { s.unreserve(p, bytes) } noexcept;
                        { s.create(bytes) } -> std::same_as<page_handle>;
                        { s.destroy(h, bytes) } noexcept;
                        { s.map(p, bytes, h) };
                        { s.unmap(p, bytes) } noexcept;
                      };

/// A source whose own memory tools cannot track block by block (pages, memory that the driver orders by streams), but which
/// also offers plain blocks that tools can track, and that a pool uses where the device has no pages. A layer over such a source
/// forwards them and counts them like any other memory; over a layer that does not, a tool cannot see inside a pool, and a pool
/// cannot be made on a device without pages.
///
/// | expression                   | throws                    | meaning                                            |
/// |------------------------------|---------------------------|----------------------------------------------------|
/// | s.allocate_plain(bytes)      | out_of_memory, cuda_error | a cudaMalloc block, usable at once everywhere      |
/// | s.deallocate_plain(p, bytes) | never                     | releases it; no work may still use it              |
template <class S>
concept has_plain_blocks = requires(S& s, std::size_t bytes, void* p) {
  { s.allocate_plain(bytes) } -> std::same_as<void*>;
  { s.deallocate_plain(p, bytes) } noexcept;
};

/// A valid upstream of a pool: a resource of whole blocks, or a page source.
template <class S>
concept memory_source = resource<S> || page_source<S>;

/// Reports which clauses a type lacks, one static_assert per clause.
template <class R>
constexpr bool check_memory_source() {
  if constexpr (!memory_source<R>) {
    static_assert(std::copyable<R>, "tarn: not a resource; a resource is a cheap handle: make it copyable");
    static_assert(std::equality_comparable<R>,
                  "tarn: not a resource; add: bool operator==(R const&) const noexcept");
    static_assert(
        has_properties<R>,
        "tarn: not a resource; add: using properties = tarn::property_set<tarn::device_accessible>");
    static_assert(has_driver<R>,
                  "tarn: not a resource; add: using driver_type, driver_type const& driver() const, "
                  "device_id device() const");
    static_assert(has_allocate<R>,
                  "tarn: not a resource; add: void* allocate(stream_ref, size_t bytes, size_t alignment)");
    static_assert(has_deallocate<R>,
                  "tarn: not a resource; add: void deallocate(stream_ref, void*, size_t bytes, size_t "
                  "alignment) noexcept");
    static_assert(has_allocate_sync<R>,
                  "tarn: not a resource; add: void* allocate_sync(size_t bytes, size_t alignment)");
    static_assert(
        has_deallocate_sync<R>,
        "tarn: not a resource; add: void deallocate_sync(void*, size_t bytes, size_t alignment) noexcept");
  }
  return memory_source<R>;
}

}  // namespace tarn
// ---- tarn/driver/capture_gate.hpp
// Keeps calls that would end a graph capture apart from captures that tarn knows of. Two calls concern the whole device and
// invalidate every capture on it, whichever thread makes them: cuCtxRecordEvent and cudaDeviceSynchronize. While a capture_scope is
// open they are refused here, as CUDA would refuse them, but without the call.

#include <atomic>
#include <cstdint>

// ---- tarn/driver/driver.hpp
// The driver contract: each call with its cost and its failures. Two models ship: cuda_driver and sim_driver; no_driver
// stands in where there are no streams (plain host memory).
//
// A driver is a small copyable value for one device. Every call is const, noexcept and thread-safe, works with any current
// device, leaves the current device unchanged, and returns a status; the result is stored in the last parameter. No call
// throws, and none allocates for the caller unless stated. Costs are from one H200 (bench/results). `stream` handles are the
// driver's own; a null handle is the default stream.
//
// | call                                                         | cost             | meaning                                                             |
// |--------------------------------------------------------------|------------------|---------------------------------------------------------------------|
// | device()                                                     | 0                | the device's ordinal                                                |
// | survives_fork(), optional                                    | 0                | whether a forked child may use the driver; false if absent          |
// | identify(stream, id&)                                        | ~19 ns           | the identity of a stream; fixed for default streams, one per thread for the per-thread default stream |
// | is_of_other_device(stream), optional                         | ~20 ns           | whether another device's stream; false if unknown                   |
// | is_capturing(stream, bool&)                                  | ~19 ns           | true while the stream is captured into a graph                      |
// | create_event(event&), destroy_event(event)                   | 230 ns           | without timing                                                      |
// | record_event(event, stream)                                  | 250 ns           | marks all work on stream so far                                     |
// | query_event(event)                                           | 260 ns           | ok: reached; not_ready: not yet; never for an event of a capture    |
// | wait_event(stream, event)                                    | 230 ns           | later work on stream waits for the event                            |
// | synchronize_event(event), _stream(stream), _device()         | blocks           | waits on the host                                                   |
// | create_stream(stream&), destroy_stream(stream)               | 5 us             | non-blocking with respect to the legacy default stream              |
// | copy(stream, to, from, bytes)                                | 2 us             | any direction, asynchronous to the host if the memory allows        |
// | copy_from_device(stream, to, device, from, bytes), optional  | 2 us             | the same from another device's memory, without peer access          |
// | fill(stream, to, byte, bytes)                                | 2 us             | sets bytes                                                          |
// | convert(stream, to, from, count), optional                   | 4 us             | a kernel that converts elements (core/element) in device memory     |
// | can_share(device, bool&), optional                           | once             | whether that device can access this device's pages                  |
// | memory_info(free&, total&)                                   | 5 us             | of the whole device, as cudaMemGetInfo                              |
// | allocation_overhead(), optional                              | 0                | bytes that an allocation may need beside its own; 0 if absent       |
// | page_granularity(bytes&)                                     | once             | unsupported: no virtual memory management here                      |
// | reserve_range(bytes, alignment, p&), release_range(p, bytes) | 5-77 us          | address ranges                                                      |
// | create_pages(bytes, handle&), destroy_pages(handle)          | 10 us, 15-338 us | physical memory                                                     |
// | map_pages(p, bytes, handle), unmap_pages(p, bytes)           | 26 us, 17 us     | map and grant access; undo exactly one map                          |
// | share_pages(p, bytes, device), optional                      | 25 us            | grants that device access to the mapping, too                       |
// | sharing with other processes, optional                       |                  | see sharing_driver.hpp                                              |
// | malloc_device(bytes, p&), free_device(p)                     | 58 us, 40 us     | cudaMalloc                                                          |
// | malloc_async(bytes, stream, p&), free_async(p, stream)       | 0.7 us warm      | cudaMallocAsync                                                     |
// | has_memory_pools(), optional                                 | once             | whether the device has malloc_async; true if absent or unknown      |
// | malloc_pinned(bytes, p&), free_pinned(p)                     | 460 ms/GiB       | cudaHostAlloc, portable                                             |
// | malloc_managed(bytes, p&), free_managed(p)                   |                  | cudaMallocManaged                                                   |
// | register_host(p, bytes), unregister_host(p), optional        | see registered_host | pins existing host memory, whole pages, portable                 |
// | memory_tool(), optional                                      | once             | the attached memory tool, false if none: see describing_driver      |
// | memory_account(account&), optional                           | 10-100 ms        | the device's memory by process, as nvidia-smi shows it: see accounting_driver |

#include <concepts>
#include <cstddef>

namespace tarn {

/// An event handle of the driver.
using event_handle = void*;

/// Requirements of stream ordering; every driver meets them.
template <class D>
concept stream_driver = std::copyable<D> && std::equality_comparable<D> &&
                        requires(D const& d, stream_ref stream, stream_ref& new_stream, stream_id& id,
                                 bool& yes, event_handle event, event_handle& new_event, void* to,
                                 void const* from, std::size_t bytes, std::size_t& total) {
                          { d.device() } noexcept -> std::same_as<device_id>;
                          { d.identify(stream, id) } noexcept -> std::same_as<status>;
                          { d.is_capturing(stream, yes) } noexcept -> std::same_as<status>;
                          { d.create_event(new_event) } noexcept -> std::same_as<status>;
                          { d.destroy_event(event) } noexcept -> std::same_as<status>;
                          { d.record_event(event, stream) } noexcept -> std::same_as<status>;
                          { d.query_event(event) } noexcept -> std::same_as<status>;
                          { d.wait_event(stream, event) } noexcept -> std::same_as<status>;
                          { d.synchronize_event(event) } noexcept -> std::same_as<status>;
                          { d.synchronize_stream(stream) } noexcept -> std::same_as<status>;
                          { d.synchronize_device() } noexcept -> std::same_as<status>;
                          { d.create_stream(new_stream) } noexcept -> std::same_as<status>;
                          { d.destroy_stream(stream) } noexcept -> std::same_as<status>;
                          { d.copy(stream, to, from, bytes) } noexcept -> std::same_as<status>;
                          { d.fill(stream, to, 0, bytes) } noexcept -> std::same_as<status>;
                          { d.memory_info(bytes, total) } noexcept -> std::same_as<status>;
                        };

/// Returns true if a child of fork() may use what the driver allocated in the parent.
template <class D>
[[nodiscard]] constexpr bool survives_fork(D const& driver) noexcept {
  if constexpr (requires { driver.survives_fork(); }) {
    return driver.survives_fork();
  } else {
    return false;
  }
}

/// Returns how many bytes an allocation may need beside its own.
template <class D>
[[nodiscard]] constexpr std::size_t allocation_overhead(D const& driver) noexcept {
  if constexpr (requires { driver.allocation_overhead(); }) {
    return driver.allocation_overhead();
  } else {
    return 0;
  }
}

/// Requirements of a page source.
template <class D>
concept page_driver = stream_driver<D> && requires(D const& d, std::size_t bytes, std::size_t& out, void* p,
                                                   void*& new_p, page_handle h, page_handle& new_h) {
  { d.page_granularity(out) } noexcept -> std::same_as<status>;
  { d.reserve_range(bytes, bytes, new_p) } noexcept -> std::same_as<status>;
  { d.release_range(p, bytes) } noexcept -> std::same_as<status>;
  { d.create_pages(bytes, new_h) } noexcept -> std::same_as<status>;
  { d.destroy_pages(h) } noexcept -> std::same_as<status>;
  { d.map_pages(p, bytes, h) } noexcept -> std::same_as<status>;
  { d.unmap_pages(p, bytes) } noexcept -> std::same_as<status>;
};

/// Requirements of the block sources.
template <class D>
concept block_driver =
    stream_driver<D> && requires(D const& d, std::size_t bytes, void* p, void*& new_p, stream_ref stream) {
      { d.malloc_device(bytes, new_p) } noexcept -> std::same_as<status>;
      { d.free_device(p) } noexcept -> std::same_as<status>;
      { d.malloc_async(bytes, stream, new_p) } noexcept -> std::same_as<status>;
      { d.free_async(p, stream) } noexcept -> std::same_as<status>;
      { d.malloc_pinned(bytes, new_p) } noexcept -> std::same_as<status>;
      { d.free_pinned(p) } noexcept -> std::same_as<status>;
      { d.malloc_managed(bytes, new_p) } noexcept -> std::same_as<status>;
      { d.free_managed(p) } noexcept -> std::same_as<status>;
    };

/// A driver that can pin existing host memory.
template <class D>
concept registering_driver = stream_driver<D> && requires(D const& d, void* p, std::size_t bytes) {
  { d.register_host(p, bytes) } noexcept -> std::same_as<status>;
  { d.unregister_host(p) } noexcept -> std::same_as<status>;
};

/// A driver through which a pool notifies an attached tool (compute-sanitizer, the simulated one) of its allocated blocks.
/// A heap may be accessed only inside a registered region; a null heap is not tracked. Calls take effect immediately,
/// regardless of stream order. memory_tool() returns a value that must not outlive its driver.
template <class D>
concept describing_driver = stream_driver<D> && requires(D const& d, void* p, std::size_t bytes) {
  static_cast<bool>(d.memory_tool());
  { d.memory_tool().register_heap(p, bytes) } noexcept -> std::same_as<void*>;
  { d.memory_tool().unregister_heap(p) } noexcept;
  { d.memory_tool().register_region(p, p, bytes) } noexcept;
  { d.memory_tool().unregister_region(p) } noexcept;
};

/// A device's memory by process, bytes, as far as the driver's management library reports it; other fields stay `unknown`.
struct device_account {
  static constexpr std::size_t unknown = static_cast<std::size_t>(-1);
  std::size_t total = unknown;      ///< of the device, or of this process's partition, including `set_aside`
  std::size_t free = unknown;       ///< reported without a context, unlike memory_info()'s
  std::size_t set_aside = unknown;  ///< part of `total` reserved by driver and firmware, ECC included
  std::size_t this_process = unknown;     ///< as nvidia-smi shows it: context, modules, all allocations
  std::size_t other_processes = unknown;  ///< the same, summed over all other processes
  char const* source = "";                ///< the library that reported this; static storage
  char const* gap = "";  ///< why the processes are unknown; static storage, empty if they are known
};

/// A driver that reports more than memory_info() does: for reports, too slow for other uses. The call creates no context.
template <class D>
concept accounting_driver = stream_driver<D> && requires(D const& d, device_account& account) {
  { d.memory_account(account) } noexcept -> std::same_as<status>;
};

}  // namespace tarn
// ---- tarn/driver/stream_life.hpp
// Checks whether a stream still exists. An owner may outlive its stream, and CUDA may crash when it is called with the handle
// of a destroyed one.

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tarn::detail {

/// What is known of a stream when a call names it.
enum class stream_life : std::uint8_t {
  alive,
  gone,    ///< destroyed; the handle may belong to another stream
  unknown  ///< the driver cannot be queried without the risk of a crash
};

/// The identities of streams that create_stream() created and that still exist. Lock-free and without allocation, so that it
/// can be used at process exit and after fork(). A stream that finds no free place is unknown, which only costs time.
class made_streams {
 public:
  void add(stream_id id, void* handle = nullptr) noexcept {
    bucket& b = bucket_of(id);
    for (std::size_t i = 0; i < places_in_bucket; ++i) {
      stream_id vacant = 0;
      if (!b.places[i].compare_exchange_strong(vacant, being_added, std::memory_order_acquire)) continue;
      b.handles[i].store(handle, std::memory_order_relaxed);
      b.places[i].store(id, std::memory_order_release);
      return;
    }
  }
  /// The identity of the stream with a handle that names an existing stream; 0 if it is not there. Reads every place: 2 us.
  [[nodiscard]] stream_id identity_of(void const* handle) const noexcept {
    for (bucket const& b : all_) {
      for (std::size_t i = 0; i < places_in_bucket; ++i) {
        stream_id const id = b.places[i].load(std::memory_order_acquire);
        if (id != 0 && id != being_added && b.handles[i].load(std::memory_order_relaxed) == handle) return id;
      }
    }
    return 0;
  }
  void remove(stream_id id) noexcept {
    for (std::atomic<stream_id>& place : bucket_of(id).places) {
      stream_id known = id;
      if (place.compare_exchange_strong(known, 0, std::memory_order_relaxed)) return;
    }
  }
  [[nodiscard]] bool has(stream_id id) noexcept {
    for (std::atomic<stream_id> const& place : bucket_of(id).places) {
      if (place.load(std::memory_order_relaxed) == id) return true;
    }
    return false;
  }

 private:
  static constexpr stream_id being_added = ~stream_id{0};  ///< no stream has this identity
  static constexpr std::size_t places_in_bucket = 8;       // a cache line
  static constexpr std::size_t buckets = 512;              // 4096 streams, 64 KiB, committed only where used
  struct bucket {
    std::atomic<stream_id> places[places_in_bucket];
    std::atomic<void*> handles[places_in_bucket];
  };
  /// Identities are assigned consecutively, so the remainder spreads them.
  bucket& bucket_of(stream_id id) noexcept { return all_[id % buckets]; }

  bucket all_[buckets]{};
};

/// Returns true for the null, the legacy and the per-thread default stream: CUDA's handles 0, 1 and 2, never destroyed.
[[nodiscard]] inline bool is_default_stream(stream_ref stream) noexcept {
  return reinterpret_cast<std::uintptr_t>(stream.handle()) <= 2;
}

/// True if the driver can mark the whole device's work without naming a stream.
template <class Driver>
inline constexpr bool marks_all_work =
    requires(Driver const& driver, event_handle event) { driver.record_all(event); };

/// Returns true while the work of a stream is captured into a graph; false if the driver cannot report it.
template <class Driver>
[[nodiscard]] bool is_capturing(Driver const& driver, stream_ref stream) noexcept {
  bool capturing = false;
  return driver.is_capturing(stream, capturing).ok() && capturing;
}

/// Trusts the caller that a bare handle names an existing stream, unless the driver reports otherwise. At most one driver call.
template <stream_driver Driver>
[[nodiscard]] stream_life life_of(Driver const& driver, stream_ref stream) noexcept {
  if (is_default_stream(stream)) return stream_life::alive;
  stream_id now = stream_ref::unknown_id;
  if (stream.id() == stream_ref::unknown_id) {
    return driver.identify(stream, now).ok() ? stream_life::alive : stream_life::gone;
  }
  if constexpr (requires { driver.has_made(stream); }) {
    return driver.has_made(stream) ? stream_life::alive : stream_life::unknown;
  } else if constexpr (marks_all_work<Driver>) {
    return stream_life::unknown;
  } else {
    // A captured stream must not be identified: that invalidates the capture.
    bool captured = false;
    status const asked = driver.is_capturing(stream_ref::from(stream.handle()), captured);
    if (!asked.ok() || captured) {
      if constexpr (requires { driver.made_identity(stream.handle()); })
        return driver.made_identity(stream.handle()) == stream.id() ? stream_life::alive : stream_life::gone;
      return asked.ok() ? stream_life::alive : stream_life::gone;
    }
    bool const same = driver.identify(stream_ref::from(stream.handle()), now).ok() && now == stream.id();
    return same ? stream_life::alive : stream_life::gone;
  }
}

/// A temporary stream that waits for no other stream; the default stream if none can be created.
template <stream_driver Driver>
class own_stream {
 public:
  explicit own_stream(Driver const& driver) noexcept
      : driver_(driver), made_(driver.create_stream(stream_).ok()) {
    if (!made_) stream_ = {};
  }
  own_stream(own_stream const&) = delete;
  own_stream& operator=(own_stream const&) = delete;
  ~own_stream() {
    if (made_) (void)driver_.destroy_stream(stream_);
  }
  [[nodiscard]] stream_ref get() const noexcept { return stream_; }

 private:
  Driver const& driver_;
  stream_ref stream_;
  bool made_;
};

}  // namespace tarn::detail

namespace tarn::detail {

/// Counts the open captures of the process and the calls in progress that would invalidate one. Lock-free; a capture that begins
/// waits for those calls, which take a microsecond.
class capture_gate {
 public:
  /// One call that would invalidate a capture; converts to false if it must not be made now.
  class passage {
   public:
    passage() noexcept : may_pass_(enter()) {}
    passage(passage const&) = delete;
    passage& operator=(passage const&) = delete;
    ~passage() {
      if (may_pass_) state.fetch_sub(one_call, std::memory_order_release);
    }
    explicit operator bool() const noexcept { return may_pass_; }

   private:
    bool may_pass_;
  };

  static void begin_capture() noexcept {
    ++open_on_this_thread;
    state.fetch_add(one_capture, std::memory_order_acq_rel);
    // Not forever: in a forked child, a call that another thread of the parent was in never ends.
    for (unsigned tries = 0; (state.load(std::memory_order_acquire) & calls) != 0 && tries < most_tries;
         ++tries)
      spin_wait(tries);
  }
  /// The same, but returns false where it would wait.
  [[nodiscard]] static bool try_begin_capture() noexcept {
    std::uint64_t now = state.load(std::memory_order_relaxed);
    while ((now & calls) == 0) {
      if (!state.compare_exchange_weak(now, now + one_capture, std::memory_order_acq_rel)) continue;
      ++open_on_this_thread;
      return true;
    }
    return false;
  }
  static void end_capture() noexcept {
    if (open_on_this_thread != 0) --open_on_this_thread;
    state.fetch_sub(one_capture, std::memory_order_release);
  }
  /// Waits until no capture is open; returns false if one still is after 5 to 10 s, as when the caller's own thread has it open.
  [[nodiscard]] static bool wait_for_captures() noexcept {
    for (unsigned tries = 0; has_captures() && tries < most_tries; ++tries) spin_wait(tries);
    return !has_captures();
  }
  /// Whether this thread has begun a capture that it has not ended. Stays true if another thread has ended it.
  [[nodiscard]] static bool may_be_mine() noexcept { return open_on_this_thread != 0; }
  [[nodiscard]] static bool has_captures() noexcept {
    return state.load(std::memory_order_acquire) >= one_capture;
  }

 private:
  static bool enter() noexcept {
    std::uint64_t now = state.load(std::memory_order_relaxed);
    while (now < one_capture) {
      if (state.compare_exchange_weak(now, now + one_call, std::memory_order_acquire)) return true;
    }
    return false;
  }

  static constexpr unsigned most_tries = 100'000;  ///< 5 to 10 s, see spin_wait()
  static constexpr std::uint64_t one_call = 1;
  static constexpr std::uint64_t one_capture = std::uint64_t{1} << 32;
  static constexpr std::uint64_t calls = one_capture - 1;
  inline static constinit std::atomic<std::uint64_t> state{0};
  inline static constinit thread_local unsigned open_on_this_thread = 0;
};

/// Whether a call was refused because a graph is being captured: CUDA's error codes, which every driver uses.
[[nodiscard]] constexpr bool is_of_capture(status const& s) noexcept {
  return s.code >= 900 && s.code <= 907;
}
/// The call that an allocation outside of a scope is refused as.
inline constexpr char const* captured_without_scope =
    "allocation on a captured stream (open a tarn::capture_scope for it, or join() it to the open one)";
[[nodiscard]] constexpr status refused_for_capture(char const* call) noexcept {
  return {failure::other, 900, "cudaErrorStreamCaptureUnsupported", call};
}

/// Marks all work of the device, unless that would invalidate a capture.
template <class Driver>
status record_all_work(Driver const& driver, event_handle event) noexcept {
  capture_gate::passage const open;
  return open ? driver.record_all(event) : refused_for_capture("record_all");
}
/// Waits on the host for all work of the device, unless that would invalidate a capture. If the driver cannot mark that work, a
/// capture that begins meanwhile waits, too.
template <class Driver>
status wait_for_all_work(Driver const& driver) noexcept {
  if (capture_gate::has_captures()) return refused_for_capture("synchronize_device");
  if constexpr (marks_all_work<Driver>) {
    event_handle event = nullptr;
    status s = driver.create_event(event);
    if (s.ok()) s = record_all_work(driver, event);
    if (s.ok()) s = driver.synchronize_event(event);
    if (event != nullptr) (void)driver.destroy_event(event);
    if (s.ok() || capture_gate::has_captures()) return s;
  }
  capture_gate::passage const open;
  return open ? driver.synchronize_device() : refused_for_capture("synchronize_device");
}

/// Waits as above, but while a capture is open waits for its end first, up to 10 s. Returns the refusal if one is open still, or if
/// the caller's own thread may have it open.
template <class Driver>
status wait_past_captures(Driver const& driver) noexcept {
  status s = wait_for_all_work(driver);
  for (int tries = 0; tries < 8 && is_of_capture(s); ++tries) {  // the next capture may have begun
    if (capture_gate::may_be_mine() || !capture_gate::wait_for_captures()) break;
    s = wait_for_all_work(driver);
  }
  return s;
}
/// Orders later work of `later` after the work on a stream that may be destroyed: after all work of the device. Waits on the host if
/// the driver cannot mark that work. Fails if a capture forbids it.
template <stream_driver Driver>
status order_behind_lost(Driver const& driver, stream_ref later) noexcept {
  if constexpr (marks_all_work<Driver>) {
    event_handle event = nullptr;
    status s = driver.create_event(event);
    if (s.ok()) s = record_all_work(driver, event);
    if (s.ok()) s = driver.wait_event(later, event);
    if (event != nullptr) (void)driver.destroy_event(event);
    if (s.ok()) return s;
  }
  return wait_for_all_work(driver);
}
/// Chooses a stream for accessing memory that is freed on `stream`: `stream` itself, or, if it may be destroyed, the default stream
/// after waiting for the work on it. Returns false if a capture forbids to wait: the memory must not be accessed.
template <stream_driver Driver>
[[nodiscard]] bool make_usable(Driver const& driver, stream_ref& stream) noexcept {
  if (life_of(driver, stream) == stream_life::alive) return true;
  stream = {};
  return !is_of_capture(wait_for_all_work(driver));
}

}  // namespace tarn::detail
// ---- tarn/driver/captured_handles.hpp
// The identities of captured streams by their handles. CUDA refuses to identify a stream that is captured (cudaStreamGetId returns
// cudaErrorStreamCaptureUnsupported), and the call invalidates the capture. While a capture_scope is open, identities are therefore
// found here: its streams are noted when they are named, before they are captured; the driver knows the streams that it created; and
// any other captured stream gets an identity that holds until the last scope is closed.

#include <cstddef>
#include <cstdint>
#include <mutex>

namespace tarn::detail {

/// A captured stream.
struct captured_handle {
  void* handle = nullptr;
  stream_id id = stream_ref::unknown_id;
};

/// The captured streams of the process. Thread-safe, never allocates; O(captured streams).
class captured_handles {
 public:
  /// Notes a stream of a capture; its handle and identity are known. Does nothing for default streams, which need no query.
  static void add(stream_ref stream) noexcept {
    if (is_default_stream(stream)) return;
    std::lock_guard const guard(lock);
    for (entry& e : entries) {
      if (e.handle == stream.handle() && e.id != stream.id()) e = entry{};  // of a destroyed stream
    }
    (void)put(stream.handle(), stream.id());
  }
  /// Forgets it; another pool may have noted it as well.
  static void remove(stream_id id) noexcept {
    std::lock_guard const guard(lock);
    for (entry& e : entries) {
      if (e.id != id) continue;
      e = entry{};
      return;
    }
  }
  /// Forgets the assigned identities once no scope is open. Called when one was closed.
  static void end_capture() noexcept {
    std::lock_guard const guard(lock);
    if (capture_gate::has_captures()) return;
    for (entry& e : entries) {
      if ((e.id & assigned) != 0) e = entry{};
    }
  }

  /// The identity of a captured stream that was noted; unknown_id if it was not.
  [[nodiscard]] static stream_id find(void* handle) noexcept {
    std::lock_guard const guard(lock);
    for (entry const& e : entries) {
      if (e.handle == handle && e.id != stream_ref::unknown_id) return e.id;
    }
    return stream_ref::unknown_id;
  }
  /// Notes a captured stream under a new identity. unknown_id if too many are noted.
  [[nodiscard]] static stream_id add_unknown(void* handle) noexcept {
    std::lock_guard const guard(lock);
    return put(handle, assigned | ++last);
  }

 private:
  using entry = captured_handle;
  static constexpr std::size_t most = 128;  ///< twice what one pool's captures may have
  /// No stream's identity has this bit: a driver counts streams from 1, and default streams have higher bits.
  static constexpr stream_id assigned = stream_id{1} << 60;

  static stream_id put(void* handle, stream_id id) noexcept {
    for (entry& e : entries) {
      if (e.id != stream_ref::unknown_id) continue;
      e = {handle, id};
      return id;
    }
    return stream_ref::unknown_id;
  }

  inline static constinit spin_lock lock;
  inline static constinit entry entries[most];
  inline static constinit std::uint64_t last = 0;
};

/// Finds the identity of a stream that is captured, for a driver's identify(). Returns false if it is not captured, and the driver
/// can be asked. At most one driver call; none unless a capture_scope is open.
template <class Driver>
[[nodiscard]] bool identify_captured(Driver const& driver, stream_ref stream, stream_id& id,
                                     status& result) noexcept {
  if (!capture_gate::has_captures()) return false;
  // Also for a stream that was noted: it may have been destroyed since, and its handle may be another stream's.
  bool captured = false;
  result = driver.is_capturing(stream, captured);
  if (!result.ok()) return true;
  if (!captured) return false;
  id = captured_handles::find(stream.handle());
  if (id != stream_ref::unknown_id) return true;
  if constexpr (requires { driver.made_identity(stream.handle()); })
    id = driver.made_identity(stream.handle());
  if (id == stream_ref::unknown_id) id = captured_handles::add_unknown(stream.handle());
  if (id == stream_ref::unknown_id) result = refused_for_capture("identify");
  return true;
}

}  // namespace tarn::detail
// ---- tarn/driver/sharing_driver.hpp
// Memory and events that other processes use: what the driver calls exchange, and the optional part of the driver contract.
//
// | call                                                    | cost     | meaning                                                        |
// |---------------------------------------------------------|----------|----------------------------------------------------------------|
// | can_export_pages(type, bool&)                           | once     | whether the device creates pages that this type can export      |
// | create_pages(bytes, type, handle&)                      | 10 us    | as create_pages(bytes, handle&); the type cannot be changed later |
// | export_pages(handle, page_export&)                      |          | exports with the type that is set; a new descriptor at each call |
// | import_pages(page_export const&, handle&)               |          | the same memory, in this process; the descriptor stays the caller's |
// | create_shared_event(event&, token&)                     |          | an event for other processes, and what they open it with        |
// | open_shared_event(token, event&)                        |          | destroy_event() closes it                                       |
// | export_dma_buf(p, bytes, descriptor&)                   |          | a dma-buf of mapped pages; unsupported if the system has none   |
// | uuid(device_uuid&)                                      | 1 us     | the same in all processes; of a partition, its own              |

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>

namespace tarn {

/// How other processes get at pages. Fixed when the pages are created.
enum class allocation_handle_type : std::uint8_t {
  none,                   ///< not at all
  posix_file_descriptor,  ///< processes of this machine, by a file descriptor
  fabric  ///< also processes of other machines, by a token of 64 bytes; needs a multi-node NVLink fabric
};

/// Pages as one process gives them to another.
struct page_export {
  allocation_handle_type type = allocation_handle_type::none;
  int descriptor = -1;                     ///< of posix_file_descriptor; whoever receives it closes it
  std::array<unsigned char, 64> fabric{};  ///< of fabric
};

/// What a process opens another process's event with.
using shared_event_token = std::array<unsigned char, 64>;

/// Identifies a device on any machine (CUuuid).
using device_uuid = std::array<unsigned char, 16>;

/// A driver whose pages and events other processes can use.
template <class D>
concept sharing_driver =
    page_driver<D> &&
    requires(D const& d, std::size_t bytes, void* p, page_handle h, page_handle& new_h, bool& yes,
             allocation_handle_type type, page_export& out, page_export const& in, event_handle& event,
             shared_event_token& token, int& descriptor, device_uuid& uuid) {
      { d.can_export_pages(type, yes) } noexcept -> std::same_as<status>;
      { d.create_pages(bytes, type, new_h) } noexcept -> std::same_as<status>;
      { d.export_pages(h, out) } noexcept -> std::same_as<status>;
      { d.import_pages(in, new_h) } noexcept -> std::same_as<status>;
      { d.create_shared_event(event, token) } noexcept -> std::same_as<status>;
      { d.open_shared_event(token, event) } noexcept -> std::same_as<status>;
      { d.export_dma_buf(p, bytes, descriptor) } noexcept -> std::same_as<status>;
      { d.uuid(uuid) } noexcept -> std::same_as<status>;
    };

}  // namespace tarn
// ---- tarn/driver/thread_number.hpp
// Process-wide unique thread numbers, which identify per-thread default streams.

#include <atomic>
#include <cstdint>

namespace tarn::detail {

/// Source of thread numbers; constant-initialised, so that it exists before any thread uses it.
inline std::atomic<std::uint64_t> next_thread_number{1};

/// Returns the calling thread's number, from 1. Unlike a thread id it is not reused after the thread ends.
[[nodiscard]] inline std::uint64_t thread_number() noexcept {
  thread_local std::uint64_t const number = next_thread_number.fetch_add(1, std::memory_order_relaxed);
  return number;
}

}  // namespace tarn::detail
// ---- tarn/source/cuda_async.hpp
// cuda_async: device memory from CUDA's own stream-ordered pool (cudaMallocAsync).

// ---- tarn/source/block_source.hpp
// block_source<Driver, Calls>: the common part of all sources of whole blocks: checks, alignment, errors, and each call under
// every name that CCCL versions use. `Calls` is the kind of memory: a struct with
//   using properties = property_set<...>;
//   static status take(D const&, size_t bytes, size_t alignment, void*& p) noexcept;   usable at once
//   static status give(D const&, void* p, size_t bytes, size_t alignment) noexcept;    no longer used
// and, if the driver itself orders the memory by streams, the same two with a stream:
//   static status take(D const&, stream_ref, size_t bytes, size_t alignment, void*& p) noexcept;
//   static status give(D const&, stream_ref, void* p, size_t bytes, size_t alignment) noexcept;
//   static status give_lost(D const&, void* p, size_t bytes, size_t alignment) noexcept;   the stream may be destroyed
// Kinds with a member `options` have const members instead. Optional members:
//   static constexpr char const* backend = "...";   what allocator_backend() returns
//   static char const* refusal(D const&) noexcept;  why the device has no such memory, null if it has: asked in the constructor

#include <concepts>
#include <cstddef>
#include <type_traits>
#include <utility>

// ---- tarn/source/plain_block.hpp
// Blocks from cudaMalloc, for sources whose memory is of another kind. A tool that watches suballocated memory accepts no
// other: compute-sanitizer 2025.3.1 refuses, with an error, heaps over mapped pages and cudaMallocAsync's memory.

#include <cstddef>

// ---- tarn/source/refusal.hpp
// Turns a failed driver call of a source into the error that a caller can act on.

#include <concepts>
#include <cstddef>

// ---- tarn/driver/no_driver.hpp
// The driver for plain host memory: no device, no streams; all work completes before the call returns.

#include <atomic>
#include <cstdint>
#include <cstring>
#include <new>
#if defined(__linux__)
#include <unistd.h>
#endif

// ---- tarn/driver/driver_call.hpp
// An enumeration of the driver contract's calls, for counting and fault injection.

#include <cstddef>
#include <cstdint>

namespace tarn {

/// A call of the driver contract (driver/driver.hpp); device() is not included, it only reads a member.
enum class driver_call : std::uint8_t {
  identify,
  is_capturing,
  create_event,
  destroy_event,
  record_event,
  query_event,
  wait_event,
  synchronize_event,
  synchronize_stream,
  synchronize_device,
  create_stream,
  destroy_stream,
  copy,
  fill,
  convert,
  memory_info,
  memory_account,
  can_share,
  can_export_pages,
  export_pages,
  create_shared_event,
  open_shared_event,
  export_dma_buf,
  uuid,
  page_granularity,
  reserve_range,
  release_range,
  create_pages,
  destroy_pages,
  map_pages,
  unmap_pages,
  share_pages,
  import_pages,
  malloc_device,
  free_device,
  malloc_async,
  free_async,
  malloc_pinned,
  free_pinned,
  malloc_managed,
  free_managed,
  register_host,
  unregister_host
};

/// Number of calls.
inline constexpr std::size_t driver_call_count = static_cast<std::size_t>(driver_call::unregister_host) + 1;

/// Returns the call at an index below driver_call_count, for loops over all of them.
[[nodiscard]] constexpr driver_call driver_call_at(std::size_t index) noexcept {
  return static_cast<driver_call>(index);
}

/// Returns the call's name in the contract; static storage.
[[nodiscard]] constexpr char const* name_of(driver_call call) noexcept {
  constexpr char const* names[] = {"identify",
                                   "is_capturing",
                                   "create_event",
                                   "destroy_event",
                                   "record_event",
                                   "query_event",
                                   "wait_event",
                                   "synchronize_event",
                                   "synchronize_stream",
                                   "synchronize_device",
                                   "create_stream",
                                   "destroy_stream",
                                   "copy",
                                   "fill",
                                   "convert",
                                   "memory_info",
                                   "memory_account",
                                   "can_share",
                                   "can_export_pages",
                                   "export_pages",
                                   "create_shared_event",
                                   "open_shared_event",
                                   "export_dma_buf",
                                   "uuid",
                                   "page_granularity",
                                   "reserve_range",
                                   "release_range",
                                   "create_pages",
                                   "destroy_pages",
                                   "map_pages",
                                   "unmap_pages",
                                   "share_pages",
                                   "import_pages",
                                   "malloc_device",
                                   "free_device",
                                   "malloc_async",
                                   "free_async",
                                   "malloc_pinned",
                                   "free_pinned",
                                   "malloc_managed",
                                   "free_managed",
                                   "register_host",
                                   "unregister_host"};
  static_assert(sizeof(names) / sizeof(names[0]) == driver_call_count);
  return names[static_cast<std::size_t>(call)];
}

/// Returns true for the two calls that only inspect a stream (about 19 ns); they neither order nor change anything.
[[nodiscard]] constexpr bool only_looks(driver_call call) noexcept {
  return call == driver_call::identify || call == driver_call::is_capturing;
}

/// Returns true for calls that allocate, map or free memory or address space.
[[nodiscard]] constexpr bool changes_memory(driver_call call) noexcept {
  return call >= driver_call::reserve_range;
}

/// Returns true for calls that can fail because memory ran out.
[[nodiscard]] constexpr bool can_exhaust(driver_call call) noexcept {
  switch (call) {
    case driver_call::reserve_range:
    case driver_call::create_pages:
    case driver_call::malloc_device:
    case driver_call::malloc_async:
    case driver_call::malloc_pinned:
    case driver_call::malloc_managed:
    case driver_call::register_host:
      return true;
    default:
      return false;
  }
}

}  // namespace tarn

namespace tarn {

namespace detail {
/// Source of handles for streams and events, which are only names here; constant-initialised.
inline std::atomic<std::uintptr_t> next_host_handle{16};
}  // namespace detail

/// Plain host memory behind the driver contract. Streams and events are only names: all work has already completed, so waits
/// return at once and queries return ok. Pages are unsupported; blocks of every kind are aligned host memory. Thread-safe; the
/// only state is the process's heap.
class no_driver {
 public:
  constexpr no_driver() noexcept = default;
  /// Takes a device for symmetry with the other drivers; the host is the only one.
  constexpr explicit no_driver(device_id) noexcept {}

  /// The host: ordinal -1.
  [[nodiscard]] device_id device() const noexcept { return device_id{-1}; }

  /// fork() copies host memory with the process.
  [[nodiscard]] static constexpr bool survives_fork() noexcept { return true; }

  status identify(stream_ref stream, stream_id& id) const noexcept {
    auto const handle = reinterpret_cast<std::uintptr_t>(stream.handle());
    if (handle <= 1) {
      id = 1;
    } else if (handle == 2) {
      id = per_thread_bit | detail::thread_number();
    } else {
      id = handle;
    }
    return {};
  }
  status is_capturing(stream_ref, bool& capturing) const noexcept {
    capturing = false;
    return {};
  }

  status create_event(event_handle& event) const noexcept {
    event = new_handle();
    return {};
  }
  status destroy_event(event_handle) const noexcept { return {}; }
  status record_event(event_handle, stream_ref) const noexcept { return {}; }
  status query_event(event_handle) const noexcept { return {}; }
  status wait_event(stream_ref, event_handle) const noexcept { return {}; }
  status synchronize_event(event_handle) const noexcept { return {}; }
  status synchronize_stream(stream_ref) const noexcept { return {}; }
  status synchronize_device() const noexcept { return {}; }
  status create_stream(stream_ref& stream) const noexcept {
    void* const handle = new_handle();
    stream = stream_ref::from(handle, reinterpret_cast<std::uintptr_t>(handle));
    return {};
  }
  status destroy_stream(stream_ref) const noexcept { return {}; }

  status copy(stream_ref, void* to, void const* from, std::size_t bytes) const noexcept {
    if (bytes == 0) return {};
    if (to == nullptr || from == nullptr) return invalid(driver_call::copy);
    std::memmove(to, from, bytes);
    return {};
  }
  status fill(stream_ref, void* to, int byte, std::size_t bytes) const noexcept {
    if (bytes == 0) return {};
    if (to == nullptr) return invalid(driver_call::fill);
    std::memset(to, byte, bytes);
    return {};
  }
  /// Defined in driver/host_convert.hpp, so that only users of convert() compile it.
  template <class To, class From>
  status convert(stream_ref, To* to, From const* from, std::size_t count) const noexcept;

  /// Reports the host's memory; unsupported if the system does not provide it.
  status memory_info([[maybe_unused]] std::size_t& free, [[maybe_unused]] std::size_t& total) const noexcept {
#if defined(__linux__)
    long const page = ::sysconf(_SC_PAGESIZE);
    long const available = ::sysconf(_SC_AVPHYS_PAGES);
    long const all = ::sysconf(_SC_PHYS_PAGES);
    if (page > 0 && available >= 0 && all > 0) {
      free = static_cast<std::size_t>(available) * static_cast<std::size_t>(page);
      total = static_cast<std::size_t>(all) * static_cast<std::size_t>(page);
      return {};
    }
#endif
    return unsupported(driver_call::memory_info);
  }

  status page_granularity(std::size_t&) const noexcept { return unsupported(driver_call::page_granularity); }
  status reserve_range(std::size_t, std::size_t, void*&) const noexcept {
    return unsupported(driver_call::reserve_range);
  }
  status release_range(void*, std::size_t) const noexcept { return unsupported(driver_call::release_range); }
  status create_pages(std::size_t, page_handle&) const noexcept {
    return unsupported(driver_call::create_pages);
  }
  status destroy_pages(page_handle) const noexcept { return unsupported(driver_call::destroy_pages); }
  status map_pages(void*, std::size_t, page_handle) const noexcept {
    return unsupported(driver_call::map_pages);
  }
  status unmap_pages(void*, std::size_t) const noexcept { return unsupported(driver_call::unmap_pages); }

  status malloc_device(std::size_t bytes, void*& p) const noexcept {
    return make(bytes, p, driver_call::malloc_device);
  }
  status free_device(void* p) const noexcept { return drop(p); }
  status malloc_async(std::size_t bytes, stream_ref, void*& p) const noexcept {
    return make(bytes, p, driver_call::malloc_async);
  }
  status free_async(void* p, stream_ref) const noexcept { return drop(p); }
  status malloc_pinned(std::size_t bytes, void*& p) const noexcept {
    return make(bytes, p, driver_call::malloc_pinned);
  }
  status free_pinned(void* p) const noexcept { return drop(p); }
  status malloc_managed(std::size_t bytes, void*& p) const noexcept {
    return make(bytes, p, driver_call::malloc_managed);
  }
  status free_managed(void* p) const noexcept { return drop(p); }

  /// Does not pin: there is no device to pin for.
  status register_host(void* p, std::size_t) const noexcept {
    return p != nullptr ? status{} : invalid(driver_call::register_host);
  }
  status unregister_host(void*) const noexcept { return {}; }

  friend constexpr bool operator==(no_driver, no_driver) noexcept { return true; }

 private:
  /// Distinguishes a thread's default stream from every handle: no user address has this bit.
  static constexpr stream_id per_thread_bit = stream_id{1} << 63;

  /// More than any process can address, bytes. Larger requests fail here, so that no allocator (such as a sanitizer's) reports
  /// them as a program error.
  static constexpr std::size_t most_host_bytes = 128_TiB;

  static void* new_handle() noexcept {
    return reinterpret_cast<void*>(detail::next_host_handle.fetch_add(16, std::memory_order_relaxed));
  }
  static status invalid(driver_call call) noexcept {
    return {failure::other, 1, "cudaErrorInvalidValue", name_of(call)};
  }
  static status unsupported(driver_call call) noexcept {
    return {failure::unsupported, 801, "cudaErrorNotSupported", name_of(call)};
  }
  static status make(std::size_t bytes, void*& p, driver_call call) noexcept {
    p = nullptr;
    if (bytes == 0) return {};
    void* block = nullptr;
    if (bytes <= most_host_bytes) {
      block = ::operator new(bytes, std::align_val_t{default_alignment}, std::nothrow);
    }
    if (block == nullptr) return {failure::out_of_memory, 2, "cudaErrorMemoryAllocation", name_of(call)};
    p = block;
    return {};
  }
  static status drop(void* p) noexcept {
    ::operator delete(p, std::align_val_t{default_alignment});
    return {};
  }
};

static_assert(stream_driver<no_driver> && page_driver<no_driver> && block_driver<no_driver> &&
              registering_driver<no_driver>);

}  // namespace tarn

namespace tarn::detail {

/// Host memory of a device's driver, pinned or managed: what the device has does not bound it.
template <class Memory>
inline constexpr bool is_host_memory =
    has_property<Memory, host_accessible> && !std::same_as<typename Memory::driver_type, no_driver>;

/// What a memory of this driver belongs to, in errors.
template <class D>
[[nodiscard]] char const* name_of_memory(D const& driver) noexcept {
  return driver.device().value < 0 ? "the host" : "the device";
}

/// Throws for a driver call that failed.
/// @param of_host  whether the memory is pinned or managed
/// @throws out_of_memory  the driver had no memory left; reports which call refused and what the device has
/// @throws cuda_error     anything else
template <class D>
[[noreturn]] TARN_NOINLINE void refuse(D const& driver, status const& failed, stream_ref stream,
                                       std::size_t bytes, std::size_t alignment,
                                       source_location where = source_location::current(),
                                       bool of_host = false) {
  if (failed.kind != failure::out_of_memory) throw cuda_error(failed, driver.device().value, where);
  memory_report report;
  report.asked = bytes;
  report.alignment = alignment;
  report.device = driver.device().value;
  (void)driver.identify(stream, report.stream);
  std::size_t free = 0;
  std::size_t total = 0;
  if (!of_host && driver.memory_info(free, total).ok()) {
    report.device_free = free;
    report.device_total = total;
  }
  if (failed.code == 0) {
    report.refused_by = failed.call;
  } else {
    report.refused_by = of_host ? "the host" : name_of_memory(driver);
    report.call = failed.call;
  }
  report.where = where;
  throw out_of_memory(report);
}

/// The status of a request too large to try: rounding it up could overflow.
[[nodiscard]] inline status too_large() noexcept {
  return {failure::out_of_memory, 0, "larger than any device", "the address space"};
}

}  // namespace tarn::detail

namespace tarn::detail {

/// A driver that provides them.
template <class D>
concept plain_block_driver =
    stream_driver<D> && requires(D const& driver, std::size_t bytes, void* p, void*& new_p) {
      { driver.malloc_device(bytes, new_p) } noexcept -> std::same_as<status>;
      { driver.free_device(p) } noexcept -> std::same_as<status>;
    };

/// @throws out_of_memory, cuda_error; nothing has changed
template <plain_block_driver D>
[[nodiscard]] void* take_plain_block(D const& driver, std::size_t bytes) {
  void* p = nullptr;
  status const s = bytes <= max_request_bytes ? driver.malloc_device(bytes, p) : too_large();
  if (!s.ok()) refuse(driver, s, stream_ref{}, bytes, default_alignment);
  return p;
}
template <plain_block_driver D>
void give_plain_block(D const& driver, void* p) noexcept {
  (void)driver.free_device(p);
}

}  // namespace tarn::detail

namespace tarn {

namespace detail {
/// The driver orders this kind of memory by streams itself.
template <class Calls, class D>
concept stream_ordered_calls = requires(Calls const& calls, D const& driver, stream_ref stream,
                                        std::size_t bytes, void* p, void*& new_p) {
  calls.take(driver, stream, bytes, bytes, new_p);
  calls.give(driver, stream, p, bytes, bytes);
};
}  // namespace detail

/// A source of whole blocks, one driver call each. A small value: copies are the same source.
///
/// Memory that the driver does not order by streams is usable on every stream once allocate returns, and deallocate first waits
/// on the host for the work on its stream. Put a pool on top so that this happens rarely.
/// The stream of a deallocation may be destroyed if its identity is known, as it is to owners. On CUDA, a stream with a known
/// identity that tarn did not create then counts as lost: the device's work is marked instead, which may invalidate a capture
/// in progress. Pass such a stream as a bare handle while it exists.
/// Safe from any thread; keeps no state.
template <stream_driver D, class Calls>
class block_source {
  /// Whether a device may lack this kind of memory.
  static constexpr bool may_be_missing = requires(D const& driver) {
    { Calls::refusal(driver) } noexcept -> std::same_as<char const*>;
  };

 public:
  using driver_type = D;
  using properties = typename Calls::properties;

  /// On the driver's default device; for CUDA the calling thread's current one.
  /// @throws cuda_error  of kind `unsupported`: the device does not have this kind of memory
  block_source() noexcept(!may_be_missing && std::is_nothrow_default_constructible_v<D>)
    requires std::default_initializable<D>
      : driver_() {
    require_memory();
  }
  /// On one device. @throws as above
  explicit block_source(device_id device)
    requires std::constructible_from<D, device_id>
      : driver_(device) {
    require_memory();
  }
  /// On a given driver. @throws as above
  explicit block_source(D driver) noexcept(!may_be_missing) : driver_(std::move(driver)) { require_memory(); }
  /// With options, for kinds that have some. @throws as above
  block_source(D driver, Calls calls) noexcept(!may_be_missing)
      : driver_(std::move(driver)), calls_(std::move(calls)) {
    require_memory();
  }

  // The names of tarn, and of CCCL 3.1 and later.

  /// Allocates for work on `stream`. Zero bytes return null.
  /// @param alignment  up to default_alignment always; above that only if the driver's own blocks have it (a whole 2 MiB page
  /// is
  ///                   tried before the request is refused), since a device block has no room to hide an offset
  /// @throws out_of_memory, bad_alignment, cuda_error; nothing has changed
  [[nodiscard]] void* allocate(stream_ref stream, std::size_t bytes,
                               std::size_t alignment = default_alignment,
                               source_location where = source_location::current()) {
    if constexpr (detail::stream_ordered_calls<Calls, D>) {
      return take_aligned(
          {stream, bytes, alignment}, where,
          [&](std::size_t size, void*& p) noexcept {
            return calls_.take(driver_, stream, size, alignment, p);
          },
          [&](void* p, std::size_t size) noexcept {
            return calls_.give(driver_, stream, p, size, alignment);
          });
    } else {
      return take_now({stream, bytes, alignment}, where);
    }
  }
  /// Frees a block once the earlier work on `stream` is done. Does nothing for null, nor at process exit after the driver has
  /// unloaded. While `stream` is being captured into a graph it does not wait, since that would end the capture: the graph must
  /// not use the block.
  void deallocate(stream_ref stream, void* p, std::size_t bytes,
                  std::size_t alignment = default_alignment) noexcept {
    if (p == nullptr) return;
    if constexpr (detail::stream_ordered_calls<Calls, D>) {
      if (detail::life_of(driver_, stream) == detail::stream_life::alive) {
        (void)calls_.give(driver_, stream, p, bytes, alignment);
      } else {
        (void)calls_.give_lost(driver_, p, bytes, alignment);
      }
    } else {
      if (!wait_for(stream)) return;
      (void)calls_.give(driver_, p, bytes, alignment);
    }
  }
  /// Allocates memory usable at once by every stream.
  [[nodiscard]] void* allocate_sync(std::size_t bytes, std::size_t alignment = default_alignment,
                                    source_location where = source_location::current()) {
    return take_now({stream_ref{}, bytes, alignment}, where);
  }
  /// Frees memory that no stream uses any more.
  void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment = default_alignment) noexcept {
    if (p != nullptr) (void)calls_.give(driver_, p, bytes, alignment);
  }

  /// Allocates a block that the driver does not order: for a pool that a tool watches, in place of allocate_sync().
  /// @throws out_of_memory, cuda_error; nothing has changed
  [[nodiscard]] void* allocate_plain(std::size_t bytes)
    requires(detail::stream_ordered_calls<Calls, D> && detail::plain_block_driver<D>)
  {
    return detail::take_plain_block(driver_, bytes);
  }
  /// Frees such a block; no work uses it any more.
  void deallocate_plain(void* p, std::size_t) noexcept
    requires(detail::stream_ordered_calls<Calls, D> && detail::plain_block_driver<D>)
  {
    detail::give_plain_block(driver_, p);
  }

  // The names of CCCL 3.0 (CUDA 13.0). Templates, so that a braced {} never means bytes.

  template <std::integral Bytes>
  [[nodiscard]] void* allocate(Bytes bytes, std::size_t alignment = default_alignment) {
    return allocate_sync(static_cast<std::size_t>(bytes), alignment);
  }
  template <std::integral Bytes>
  void deallocate(void* p, Bytes bytes, std::size_t alignment = default_alignment) noexcept {
    deallocate_sync(p, static_cast<std::size_t>(bytes), alignment);
  }
  [[nodiscard]] void* allocate_async(std::size_t bytes, std::size_t alignment, stream_ref stream) {
    return allocate(stream, bytes, alignment);
  }
  [[nodiscard]] void* allocate_async(std::size_t bytes, stream_ref stream) { return allocate(stream, bytes); }
  void deallocate_async(void* p, std::size_t bytes, std::size_t alignment, stream_ref stream) noexcept {
    deallocate(stream, p, bytes, alignment);
  }
  void deallocate_async(void* p, std::size_t bytes, stream_ref stream) noexcept {
    deallocate(stream, p, bytes);
  }

  /// Where a pool's memory comes from, see allocator_backend().
  [[nodiscard]] static constexpr char const* backend() noexcept {
    if constexpr (requires { Calls::backend; }) {
      return Calls::backend;
    } else {
      return "blocks";
    }
  }
  [[nodiscard]] D const& driver() const noexcept { return driver_; }
  [[nodiscard]] device_id device() const noexcept { return driver_.device(); }

  /// Equal if the kind of memory, the options and the driver are equal, so either frees what the other allocated.
  friend bool operator==(block_source const& a, block_source const& b) noexcept {
    if constexpr (requires { a.calls_.options; }) {  // not std::equality_comparable, which is slow to compile
      if (!(a.calls_.options == b.calls_.options)) return false;
    }
    return a.driver_ == b.driver_;
  }

 private:
  void require_memory() const noexcept(!may_be_missing) {
    if constexpr (may_be_missing) {
      char const* const refusal = Calls::refusal(driver_);
      if (refusal == nullptr) return;
      throw cuda_error(detail::unsupported_call(refusal), driver_.device().value, source_location{});
    }
  }

  struct block_wanted {
    stream_ref stream;
    std::size_t bytes;
    std::size_t alignment;
  };
  [[nodiscard]] void* take_now(block_wanted const& r, source_location where) {
    return take_aligned(
        r, where,
        [&](std::size_t size, void*& p) noexcept { return calls_.take(driver_, size, r.alignment, p); },
        [&](void* p, std::size_t size) noexcept { return calls_.give(driver_, p, size, r.alignment); });
  }

  template <class Take, class Give>
  [[nodiscard]] void* take_aligned(block_wanted const& r, source_location where, Take const& take,
                                   Give const& give) {
    auto const [stream, bytes, alignment] = r;
    require_alignment(alignment);
    if (bytes == 0) return nullptr;
    void* p = nullptr;
    status taken = bytes <= max_request_bytes ? take(bytes, p) : detail::too_large();
    if (taken.ok() && !is_aligned(p, alignment)) {
      // Blocks smaller than the driver's page share one with others; whole pages start on a page boundary.
      (void)give(p, bytes);
      std::size_t const pages = align_up(bytes, max_alignment);
      taken = take(pages, p);
      if (taken.ok() && !is_aligned(p, alignment)) {
        (void)give(p, pages);
        throw bad_alignment(alignment, default_alignment);
      }
    }
    if (!taken.ok())
      detail::refuse(driver_, taken, stream, bytes, alignment, where, detail::is_host_memory<block_source>);
    return p;
  }

  /// Waits for the work on the stream; returns false if the driver has unloaded and there is nothing left to free.
  [[nodiscard]] bool wait_for(stream_ref stream) noexcept {
    if (detail::life_of(driver_, stream) != detail::stream_life::alive) {
      return detail::wait_past_captures(driver_).kind != failure::unloading;
    }
    bool capturing = false;
    (void)driver_.is_capturing(stream, capturing);
    return capturing || driver_.synchronize_stream(stream).kind != failure::unloading;
  }

  D driver_;
  [[no_unique_address]] Calls calls_{};
};

}  // namespace tarn
#if TARN_HAS_CUDA
// ---- tarn/driver/cuda_driver.hpp
// The CUDA driver: the runtime API, plus virtual memory management from the driver API.
//
// Over 400 lines: one short function for each call of the driver contract (driver.hpp).

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

// ---- tarn/driver/cuda_entry_points.hpp
// Entry points of the CUDA driver library, found through the runtime. They are the calls that only the driver library has
// (virtual memory management, contexts), or that it answers faster than the runtime (stream identities). Nothing links to
// libcuda, and a program starts without an installed driver.

#include <cuda.h>

#include <cstddef>
#include <type_traits>

// ---- tarn/driver/cuda_status.hpp
// Maps CUDA's error codes to tarn's failure kinds. The runtime and the driver use the same numbers (since CUDA 10.1), so one
// table serves both.

#include <cuda_runtime_api.h>

namespace tarn::detail {

/// Returns the kind of a code; `other` for codes not listed.
[[nodiscard]] constexpr failure cuda_failure(int code) noexcept {
  switch (code) {
    case cudaSuccess:
      return failure::none;
    case cudaErrorNotReady:
      return failure::not_ready;
    case cudaErrorMemoryAllocation:
      return failure::out_of_memory;
    case cudaErrorCudartUnloading:  // also CUDA_ERROR_DEINITIALIZED, but not
      return failure::unloading;    // cudaErrorContextIsDestroyed, which a destroyed stream may return
    case cudaErrorNotSupported:
    case cudaErrorCallRequiresNewerDriver:
      return failure::unsupported;
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorStubLibrary:
    case cudaErrorDevicesUnavailable:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
      return failure::no_device;
    default:
      return failure::other;
  }
}

/// Out of line: called on failure only.
[[nodiscard]] TARN_NOINLINE inline status cuda_failed(cudaError_t code, char const* call) noexcept {
  failure const kind = cuda_failure(static_cast<int>(code));
  // The runtime keeps the last error for the next query. Errors that tarn handles itself (by a retry, another source, a typed
  // error) must not show up in a caller's later check; kernel errors must.
  if (kind != failure::other && kind != failure::unloading) (void)cudaGetLastError();
  return {kind, static_cast<int>(code), cudaGetErrorName(code), call};
}

/// Converts the result of a runtime call.
[[nodiscard]] inline status cuda_status(cudaError_t code, char const* call) noexcept {
  if (code == cudaSuccess) return {failure::none, 0, "", call};
  return cuda_failed(code, call);
}

}  // namespace tarn::detail

namespace tarn::detail {

/// The entry points and the result of looking them up. A call that this driver lacks is null; if `found` is a failure, all
/// of them are.
///
/// The types are written out, not taken from the declarations in cuda.h: each is the signature of the version that is
/// requested, whatever later toolkits declare under the same name.
struct cuda_entry_points {
  using address = CUdeviceptr;
  using handle = CUmemGenericAllocationHandle;
  using flag_bits = unsigned long long;
  using properties = CUmemAllocationProp const*;

  CUresult(CUDAAPI* get_error_name)(CUresult, char const**) = nullptr;
  CUresult(CUDAAPI* device_get_attribute)(int*, CUdevice_attribute, CUdevice) = nullptr;
  CUresult(CUDAAPI* primary_context_retain)(CUcontext*, CUdevice) = nullptr;
  CUresult(CUDAAPI* primary_context_release)(CUdevice) = nullptr;
  CUresult(CUDAAPI* context_record_event)(CUcontext, CUevent) = nullptr;  ///< since CUDA 12.5
  CUresult(CUDAAPI* device_get_uuid)(CUuuid*, CUdevice) = nullptr;   ///< since 11.4: UUID of the MIG instance
  CUresult(CUDAAPI* stream_get_id)(CUstream, flag_bits*) = nullptr;  ///< since CUDA 12.0
  CUresult(CUDAAPI* stream_get_device)(CUstream, CUdevice*) = nullptr;  ///< since CUDA 12.8
  CUresult(CUDAAPI* stream_is_capturing)(CUstream, CUstreamCaptureStatus*) = nullptr;
  CUresult(CUDAAPI* context_push)(CUcontext) = nullptr;
  CUresult(CUDAAPI* context_pop)(CUcontext*) = nullptr;

  CUresult(CUDAAPI* get_granularity)(std::size_t*, properties, CUmemAllocationGranularity_flags) = nullptr;
  CUresult(CUDAAPI* reserve)(address*, std::size_t, std::size_t, address, flag_bits) = nullptr;
  CUresult(CUDAAPI* unreserve)(address, std::size_t) = nullptr;
  CUresult(CUDAAPI* create)(handle*, std::size_t, properties, flag_bits) = nullptr;
  CUresult(CUDAAPI* release)(handle) = nullptr;
  CUresult(CUDAAPI* map)(address, std::size_t, std::size_t, handle, flag_bits) = nullptr;
  CUresult(CUDAAPI* unmap)(address, std::size_t) = nullptr;
  CUresult(CUDAAPI* set_access)(address, std::size_t, CUmemAccessDesc const*, std::size_t) = nullptr;
  CUresult(CUDAAPI* export_handle)(void*, handle, CUmemAllocationHandleType, flag_bits) = nullptr;
  CUresult(CUDAAPI* import_handle)(handle*, void*, CUmemAllocationHandleType) = nullptr;
  CUresult(CUDAAPI* get_range_handle)(void*, address, std::size_t, CUmemRangeHandleType,
                                      flag_bits) = nullptr;  ///< since 11.7

  status found;

  /// Returns true if this driver supports virtual memory management; a device may still lack it.
  [[nodiscard]] bool has_pages() const noexcept {
    return get_granularity != nullptr && reserve != nullptr && unreserve != nullptr && create != nullptr &&
           release != nullptr && map != nullptr && unmap != nullptr && set_access != nullptr &&
           device_get_attribute != nullptr;
  }
  /// Returns true if another device's context can be made current for the duration of a call.
  [[nodiscard]] bool has_contexts() const noexcept {
    return primary_context_retain != nullptr && context_push != nullptr && context_pop != nullptr;
  }
};

/// Looks up one symbol with the signature that CUDA `version` (1000 * major + 10 * minor) introduced.
template <class Function>
void find_entry_point(Function& out, char const* symbol, [[maybe_unused]] unsigned version,
                      status& found) noexcept {
  if (!found.ok()) return;
  void* p = nullptr;
#if CUDART_VERSION >= 12050
  found = cuda_status(cudaGetDriverEntryPointByVersion(symbol, &p, version, cudaEnableDefault),
                      "cudaGetDriverEntryPointByVersion");
#else
  found = cuda_status(cudaGetDriverEntryPoint(symbol, &p, cudaEnableDefault), "cudaGetDriverEntryPoint");
#endif
  if (found.ok()) out = reinterpret_cast<Function>(p);
}

[[nodiscard]] inline cuda_entry_points find_cuda_entry_points() noexcept {
  cuda_entry_points e;
  find_entry_point(e.get_error_name, "cuGetErrorName", 6000, e.found);
  find_entry_point(e.device_get_attribute, "cuDeviceGetAttribute", 2000, e.found);
  find_entry_point(e.primary_context_retain, "cuDevicePrimaryCtxRetain", 7000, e.found);
  find_entry_point(e.context_push, "cuCtxPushCurrent", 4000, e.found);
  find_entry_point(e.context_pop, "cuCtxPopCurrent", 4000, e.found);
  find_entry_point(e.stream_is_capturing, "cuStreamIsCapturing", 10000, e.found);
  find_entry_point(e.get_granularity, "cuMemGetAllocationGranularity", 10020, e.found);
  find_entry_point(e.reserve, "cuMemAddressReserve", 10020, e.found);
  find_entry_point(e.unreserve, "cuMemAddressFree", 10020, e.found);
  find_entry_point(e.create, "cuMemCreate", 10020, e.found);
  find_entry_point(e.release, "cuMemRelease", 10020, e.found);
  find_entry_point(e.map, "cuMemMap", 10020, e.found);
  find_entry_point(e.unmap, "cuMemUnmap", 10020, e.found);
  find_entry_point(e.set_access, "cuMemSetAccess", 10020, e.found);
  find_entry_point(e.export_handle, "cuMemExportToShareableHandle", 10020, e.found);
  find_entry_point(e.import_handle, "cuMemImportFromShareableHandle", 10020, e.found);
  status newer = e.found;  // sorted by version: an older driver lacks only the later ones
  find_entry_point(e.primary_context_release, "cuDevicePrimaryCtxRelease", 11000, newer);
  find_entry_point(e.device_get_uuid, "cuDeviceGetUuid", 11040, newer);
  find_entry_point(e.get_range_handle, "cuMemGetHandleForAddressRange", 11070, newer);
  find_entry_point(e.stream_get_id, "cuStreamGetId", 12000, newer);
  find_entry_point(e.context_record_event, "cuCtxRecordEvent", 12050, newer);
  find_entry_point(e.stream_get_device, "cuStreamGetDevice", 12080, newer);
  if (!newer.ok()) (void)cudaGetLastError();
  return e;
}

/// Returns the process's table, filled at the first call. Trivially destructible, so it stays valid until process exit.
[[nodiscard]] inline cuda_entry_points const& cuda_driver_calls() noexcept {
  static_assert(std::is_trivially_destructible_v<cuda_entry_points>);
  static cuda_entry_points const entry_points = find_cuda_entry_points();
  return entry_points;
}

/// Converts the result of a driver API call. Does not change the runtime's last error.
[[nodiscard]] inline status cuda_status(CUresult code, char const* call) noexcept {
  if (code == CUDA_SUCCESS) return {failure::none, 0, "", call};
  char const* name = nullptr;
  auto const& calls = cuda_driver_calls();
  if (calls.get_error_name != nullptr) (void)calls.get_error_name(code, &name);
  return {cuda_failure(static_cast<int>(code)), static_cast<int>(code),
          name != nullptr ? name : "an unknown CUresult", call};
}

/// Returns why an entry point is null: no driver is installed, or it is too old for the call.
[[nodiscard]] inline status cuda_lacks(char const* call) noexcept {
  status found = cuda_driver_calls().found;
  if (!found.ok()) return found;
  return {failure::unsupported, static_cast<int>(cudaErrorNotSupported), "CUDA_ERROR_NOT_SUPPORTED", call};
}

}  // namespace tarn::detail
// ---- tarn/driver/cuda_memory_tool.hpp
// Memory tool notifications for one device, sent with that device current, because compute-sanitizer requires it for heaps.

#include <cstddef>

// ---- tarn/driver/cuda_scope.hpp
// RAII scopes around CUDA calls: the right device is current, and captures on other threads stay valid.

#include <atomic>

namespace tarn::detail {

/// Retains a device's primary context until destruction. Handles are not cached: cudaDeviceReset destroys the context, and
/// CUDA does not say what happens to the handle then. Retaining again costs two short calls, and only if another device is
/// current.
///
/// The first retain of each device is never released, so that the context is not recreated for each call. A reset does not
/// release retains (cuDevicePrimaryCtxReset).
class primary_context {
 public:
  primary_context() noexcept = default;
  primary_context(primary_context const&) = delete;
  primary_context& operator=(primary_context const&) = delete;
  ~primary_context() {
    if (releases_) (void)cuda_driver_calls().primary_context_release(device_);
  }

  [[nodiscard]] status retain(int device, CUcontext& context) noexcept {
    static constexpr int most_devices = 128;
    static std::atomic<bool> is_kept[most_devices];
    auto const& calls = cuda_driver_calls();
    CUcontext retained = nullptr;
    status const s = cuda_status(calls.primary_context_retain(&retained, static_cast<CUdevice>(device)),
                                 "cuDevicePrimaryCtxRetain");
    if (!s.ok()) return s;
    context = retained;
    device_ = static_cast<CUdevice>(device);
    bool const is_first =
        device < 0 || device >= most_devices || !is_kept[device].exchange(true, std::memory_order_relaxed);
    releases_ = !is_first && calls.primary_context_release != nullptr;
    return s;
  }

 private:
  CUdevice device_ = 0;
  bool releases_ = false;
};

/// Makes a device current for one call if it is not, and restores the previous state.
///
/// Pushes the device's primary context rather than calling cudaSetDevice twice: switching back to a device that the program
/// has never used would create a context there, about 500 MiB, for nothing.
class on_device {
 public:
  explicit on_device(int device) noexcept { enter(device); }
  /// Only calls on default streams depend on the current device; other streams belong to theirs.
  on_device(int device, cudaStream_t stream) noexcept {
    if (stream == cudaStreamLegacy || stream == cudaStreamPerThread) enter(device);
  }
  ~on_device() {
    if (!pushed_) return;
    CUcontext ours = nullptr;
    (void)cuda_driver_calls().context_pop(&ours);
  }
  on_device(on_device const&) = delete;
  on_device& operator=(on_device const&) = delete;

  /// A failure if the device could not be made current; the call must then be skipped.
  [[nodiscard]] status const& entered() const noexcept { return entered_; }

 private:
  void enter(int device) noexcept {
    int current = 0;
    entered_ = cuda_status(cudaGetDevice(&current), "cudaGetDevice");
    if (!entered_.ok() || current == device) return;
    auto const& calls = cuda_driver_calls();
    if (!calls.has_contexts()) {
      entered_ = cuda_lacks("cuCtxPushCurrent");
      return;
    }
    CUcontext context = nullptr;
    entered_ = context_.retain(device, context);
    if (!entered_.ok()) return;
    entered_ = cuda_status(calls.context_push(context), "cuCtxPushCurrent");
    pushed_ = entered_.ok();
  }

  status entered_;
  primary_context context_;  ///< released after the pop
  bool pushed_ = false;
};

/// Permits, for one call of this thread, what a global-mode capture on another thread forbids: event queries, host waits,
/// cudaMalloc. Without it such a call fails and invalidates that capture. The call must not involve a captured stream. ~20 ns.
class beside_capture {
 public:
  beside_capture() noexcept { swapped_ = cudaThreadExchangeStreamCaptureMode(&mode_) == cudaSuccess; }
  ~beside_capture() {
    if (swapped_) (void)cudaThreadExchangeStreamCaptureMode(&mode_);
  }
  beside_capture(beside_capture const&) = delete;
  beside_capture& operator=(beside_capture const&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
  bool swapped_ = false;
};

}  // namespace tarn::detail
// ---- tarn/driver/nvtx_memory.hpp
// NVTX's memory extension, which notifies tools such as compute-sanitizer of sub-allocations.

#if TARN_HAS_CUDA && defined(__has_include)
#if __has_include(<nvtx3/nvToolsExtMem.h>)
// Some releases of NVTX name a variable `module`, for which nvcc emits warning 3189 in every program that includes them.
#ifdef __NVCC_DIAG_PRAGMA_SUPPORT__
#pragma nv_diagnostic push
#pragma nv_diag_suppress 3189
#endif
#include <nvtx3/nvToolsExtMem.h>
#ifdef __NVCC_DIAG_PRAGMA_SUPPORT__
#pragma nv_diagnostic pop
#endif
#define TARN_HAS_NVTX_MEMORY 1
#endif
#endif
#ifndef TARN_HAS_NVTX_MEMORY
#define TARN_HAS_NVTX_MEMORY 0
#endif

#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace tarn {

/// A tool that tracks sub-allocations; converts to false if none is attached. A value type, the same throughout the process.
///
/// A heap is a range of device memory that is sub-allocated: its bytes may be accessed only inside a registered region.
/// Registrations take effect immediately, regardless of stream order: synchronise first.
class nvtx_memory {
 public:
  constexpr nvtx_memory() noexcept = default;

  /// Looks for the tool once and caches the result; CUDA must be initialised. Without a tool, no NVTX call is ever made.
  [[nodiscard]] static nvtx_memory attached() noexcept {
    static nvtx_memory const found = find();
    return found;
  }
  explicit operator bool() const noexcept { return domain_ != nullptr || present_; }

#if TARN_HAS_NVTX_MEMORY
  /// Returns null if the tool rejects the memory: all of it may then be accessed, and the tool reports an error.
  /// compute-sanitizer 2025.3.1 accepts blocks of cudaMalloc and parts of them, but neither mapped pages nor memory of
  /// cudaMallocAsync.
  [[nodiscard]] void* register_heap(void const* p, std::size_t bytes) const noexcept {
    nvtxMemVirtualRangeDesc_t const range{bytes, p};
    nvtxMemHeapDesc_t heap{};
    heap.extCompatID = NVTX_EXT_COMPATID_MEM;
    heap.structSize = sizeof heap;
    heap.usage = NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR;
    heap.type = NVTX_MEM_TYPE_VIRTUAL_ADDRESS;
    heap.typeSpecificDescSize = sizeof range;
    heap.typeSpecificDesc = &range;
    nvtxMemHeapHandle_t const made = nvtxMemHeapRegister(domain(), &heap);
    return is_real(made) ? made : nullptr;
  }
  /// Removes the heap. None of it may be accessed any more; free the memory next.
  void unregister_heap(void* heap) const noexcept {
    nvtxMemHeapUnregister(domain(), static_cast<nvtxMemHeapHandle_t>(heap));
  }
  /// Removes all regions; the heap is as newly registered.
  void reset_heap(void* heap) const noexcept {
    nvtxMemHeapReset(domain(), static_cast<nvtxMemHeapHandle_t>(heap));
  }
  void register_region(void* heap, void const* p, std::size_t bytes) const noexcept {
    nvtxMemVirtualRangeDesc_t const range{bytes, p};
    nvtxMemRegionsRegisterBatch_t batch{};
    batch.extCompatID = NVTX_EXT_COMPATID_MEM;
    batch.structSize = sizeof batch;
    batch.regionType = NVTX_MEM_TYPE_VIRTUAL_ADDRESS;
    batch.heap = static_cast<nvtxMemHeapHandle_t>(heap);
    batch.regionCount = 1;
    batch.regionDescElementSize = sizeof range;
    batch.regionDescElements = &range;
    nvtxMemRegionsRegister(domain(), &batch);
  }
  void unregister_region(void const* p) const noexcept {
    nvtxMemRegionRef_t region{};
    region.pointer = p;
    nvtxMemRegionsUnregisterBatch_t batch{};
    batch.extCompatID = NVTX_EXT_COMPATID_MEM;
    batch.structSize = sizeof batch;
    batch.refType = NVTX_MEM_REGION_REF_TYPE_POINTER;
    batch.refCount = 1;
    batch.refElementSize = sizeof region;
    batch.refElements = &region;
    nvtxMemRegionsUnregister(domain(), &batch);
  }

 private:
  constexpr nvtx_memory(void* domain, bool present) noexcept : domain_(domain), present_(present) {}

  static nvtx_memory find() noexcept {
    // A tool names its library here (NVTX loads no other); without one, even the check would cost a file system lookup.
    if (std::getenv("NVTX_INJECTION64_PATH") == nullptr) return {};
    nvtxDomainHandle_t const domain = nvtxDomainCreateA("tarn");
    // Probes with a call that has no effect: profilers implement ranges and marks, but not this call.
    nvtxMemPermissionsHandle_t const made =
        nvtxMemPermissionsCreate(domain, NVTX_MEM_PERMISSIONS_CREATE_FLAGS_NONE);
    if (!is_real(made)) return {};
    nvtxMemPermissionsDestroy(domain, made);
    return {domain, true};
  }
  /// Without a tool, handles are null or all ones: the NVTX headers document both, in macros that do not compile as C++.
  [[nodiscard]] static bool is_real(void const* handle) noexcept {
    auto const bits = reinterpret_cast<std::uintptr_t>(handle);
    return bits != 0 && bits != ~std::uintptr_t{0};
  }
  [[nodiscard]] nvtxDomainHandle_t domain() const noexcept {
    return static_cast<nvtxDomainHandle_t>(domain_);
  }
#else
  [[nodiscard]] void* register_heap(void const*, std::size_t) const noexcept { return nullptr; }
  void unregister_heap(void*) const noexcept {}
  void reset_heap(void*) const noexcept {}
  void register_region(void*, void const*, std::size_t) const noexcept {}
  void unregister_region(void const*) const noexcept {}

 private:
  static nvtx_memory find() noexcept { return {}; }
#endif

  void* domain_ = nullptr;
  bool present_ = false;  ///< a tool without domains returns a null domain
};

}  // namespace tarn

namespace tarn {

/// nvtx_memory for one device; converts to false if no tool is attached. A value type.
class cuda_memory_tool {
 public:
  constexpr cuda_memory_tool() noexcept = default;
  cuda_memory_tool(nvtx_memory tool, int device) noexcept : tool_(tool), device_(device) {}
  explicit operator bool() const noexcept { return static_cast<bool>(tool_); }

  [[nodiscard]] void* register_heap(void const* p, std::size_t bytes) const noexcept {
    detail::on_device const here(device_);
    return here.entered().ok() ? tool_.register_heap(p, bytes) : nullptr;
  }
  void unregister_heap(void* heap) const noexcept {
    detail::on_device const here(device_);
    if (here.entered().ok()) tool_.unregister_heap(heap);
  }
  void register_region(void* heap, void const* p, std::size_t bytes) const noexcept {
    detail::on_device const here(device_);
    if (here.entered().ok()) tool_.register_region(heap, p, bytes);
  }
  void unregister_region(void const* p) const noexcept {
    detail::on_device const here(device_);
    if (here.entered().ok()) tool_.unregister_region(p);
  }

 private:
  nvtx_memory tool_;
  int device_ = 0;
};

}  // namespace tarn
// ---- tarn/driver/nvml.hpp
// NVML, NVIDIA's management library, which reports a device's memory by process. It is loaded at run time if present, never
// linked. The few calls needed are declared here, from the documented ABI. Uses no CUDA names.

#if defined(__linux__)
#include <dlfcn.h>
#endif

#include <cstddef>
#include <new>
#include <string_view>
#include <type_traits>
#include <vector>

namespace tarn::detail {

/// nvmlMemory_t. `total` includes memory reserved by driver and firmware.
struct nvml_memory {
  unsigned long long total, free, used;
};
/// nvmlMemory_v2_t, which reports that reserved memory separately.
struct nvml_memory_v2 {
  unsigned version;  ///< input: size and version of the structure
  unsigned long long total, reserved, free, used;
};
/// nvmlProcessInfo_v2_t, the element of versions 2 and 3 of the process lists.
struct nvml_process {
  unsigned pid;
  unsigned long long used;  ///< all ones: not available
  unsigned gpu_instance, compute_instance;
};
static_assert(sizeof(nvml_memory) == 24 && sizeof(nvml_memory_v2) == 40 && sizeof(nvml_process) == 24);

/// The calls of one loaded library; null if it lacks one. All of them are thread-safe.
struct nvml_calls {
  using device = void*;
  using list_call = int (*)(device, unsigned* count, nvml_process*);
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*device_by_uuid)(char const*, device*) = nullptr;
  int (*device_by_pci_bus_id)(char const*, device*) = nullptr;
  int (*mig_mode)(device, unsigned* current, unsigned* pending) = nullptr;
  int (*memory)(device, nvml_memory*) = nullptr;
  int (*memory_v2)(device, nvml_memory_v2*) = nullptr;
  list_call compute_processes = nullptr;
  list_call graphics_processes = nullptr;
  list_call mps_processes = nullptr;  ///< compute processes that run under the multi-process service

  [[nodiscard]] bool is_there() const noexcept { return init != nullptr && shutdown != nullptr; }
};

inline constexpr int nvml_insufficient_size = 7;

/// Returns nvml.h's name for the codes expected here.
[[nodiscard]] constexpr char const* nvml_name(int code) noexcept {
  switch (code) {
    case 1:
      return "NVML_ERROR_UNINITIALIZED";
    case 2:
      return "NVML_ERROR_INVALID_ARGUMENT";
    case 3:
      return "NVML_ERROR_NOT_SUPPORTED";
    case 4:
      return "NVML_ERROR_NO_PERMISSION";
    case 6:
      return "NVML_ERROR_NOT_FOUND";
    case nvml_insufficient_size:
      return "NVML_ERROR_INSUFFICIENT_SIZE";
    case 9:
      return "NVML_ERROR_DRIVER_NOT_LOADED";
    case 12:
      return "NVML_ERROR_LIBRARY_NOT_FOUND";
    case 13:
      return "NVML_ERROR_FUNCTION_NOT_FOUND";
    case 15:
      return "NVML_ERROR_GPU_IS_LOST";
    case 18:
      return "NVML_ERROR_LIB_RM_VERSION_MISMATCH";
    default:
      return "an NVML error";
  }
}
[[nodiscard]] constexpr status nvml_failed(int code, char const* call) noexcept {
  return {failure::unsupported, code, nvml_name(code), call};
}

/// Loads a library and never unloads it; all calls are null if it cannot be loaded.
[[nodiscard]] inline nvml_calls find_nvml([[maybe_unused]] char const* library) noexcept {
  nvml_calls found;
#if defined(__linux__)
  void* const handle = ::dlopen(library, RTLD_LAZY | RTLD_LOCAL);
  if (handle == nullptr) return found;
  auto const find = [&](auto& call, char const* name, char const* before = nullptr) {
    void* p = ::dlsym(handle, name);
    if (p == nullptr && before != nullptr) p = ::dlsym(handle, before);
    call = reinterpret_cast<std::remove_reference_t<decltype(call)>>(p);
  };
  find(found.init, "nvmlInit_v2");
  find(found.shutdown, "nvmlShutdown");
  find(found.device_by_uuid, "nvmlDeviceGetHandleByUUID");
  find(found.device_by_pci_bus_id, "nvmlDeviceGetHandleByPciBusId_v2");
  find(found.mig_mode, "nvmlDeviceGetMigMode");
  find(found.memory, "nvmlDeviceGetMemoryInfo");
  find(found.memory_v2, "nvmlDeviceGetMemoryInfo_v2");
  // _v2 first: _v3 is the same except in drivers 535.43 to 535.86, whose elements have 32 bytes
  // (nvitop, pull requests 79 to 94).
  find(found.compute_processes, "nvmlDeviceGetComputeRunningProcesses_v2",
       "nvmlDeviceGetComputeRunningProcesses_v3");
  find(found.graphics_processes, "nvmlDeviceGetGraphicsRunningProcesses_v2",
       "nvmlDeviceGetGraphicsRunningProcesses_v3");
  find(found.mps_processes, "nvmlDeviceGetMPSComputeRunningProcesses_v2",
       "nvmlDeviceGetMPSComputeRunningProcesses_v3");
#endif
  return found;
}
/// Returns the process's library, loaded at the first call.
[[nodiscard]] inline nvml_calls const& nvml() noexcept {
  static nvml_calls const found = find_nvml("libnvidia-ml.so.1");
  return found;
}

/// CUDA's identifiers of a device, and the process to report on.
struct nvml_question {
  unsigned char uuid[16]{};  ///< of the MIG instance if the device is one; all zero: not known
  char pci_bus_id[32]{};     ///< empty: not known
  unsigned pid = 0;          ///< this process
};

/// Formats a UUID with its prefix "GPU-" or "MIG-", as NVML expects it.
[[nodiscard]] inline message<48> nvml_uuid(std::string_view prefix,
                                           unsigned char const (&uuid)[16]) noexcept {
  message<48> text;
  text.add(prefix);
  for (std::size_t i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text.add("-");
    constexpr std::string_view digits = "0123456789abcdef";
    text.add(digits.substr(uuid[i] >> 4, 1)).add(digits.substr(uuid[i] & 15U, 1));
  }
  return text;
}

/// Finds NVML's handle of the device. Fails rather than report a whole card in place of its MIG instance.
[[nodiscard]] inline status find_nvml_device(nvml_calls const& calls, nvml_question const& asked,
                                             nvml_calls::device& device, device_account& account) noexcept {
  unsigned char any = 0;
  for (unsigned char const byte : asked.uuid) any |= byte;
  account.source = "NVML";
  bool const by_uuid = any != 0 && calls.device_by_uuid != nullptr;
  if (by_uuid && calls.device_by_uuid(nvml_uuid("MIG-", asked.uuid).c_str(), &device) == 0) {
    account.source = "NVML (this MIG instance)";
    return {};
  }
  if (!by_uuid || calls.device_by_uuid(nvml_uuid("GPU-", asked.uuid).c_str(), &device) != 0) {
    if (asked.pci_bus_id[0] == '\0' || calls.device_by_pci_bus_id == nullptr) {
      return nvml_failed(6, "nvmlDeviceGetHandleByUUID");
    }
    int const code = calls.device_by_pci_bus_id(asked.pci_bus_id, &device);
    if (code != 0) return nvml_failed(code, "nvmlDeviceGetHandleByPciBusId_v2");
  }
  unsigned current = 0;
  unsigned pending = 0;
  bool const in_parts =
      calls.mig_mode != nullptr && calls.mig_mode(device, &current, &pending) == 0 && current != 0;
  return in_parts ? nvml_failed(6, "nvmlDeviceGetHandleByUUID of a MIG instance") : status{};
}

/// NVML's value for a process whose memory use is not available.
inline constexpr unsigned long long nvml_not_available = ~0ULL;

/// Adds one of the process lists; a process that does both compute and graphics is in two lists and counts once.
/// @return NVML's code
[[nodiscard]] inline int add_nvml_processes(nvml_calls::list_call list, nvml_calls::device device,
                                            std::vector<nvml_process>& all) {
  if (list == nullptr) return 13;
  std::vector<nvml_process> here(64);
  for (int attempt = 0;; ++attempt) {
    auto count = static_cast<unsigned>(here.size());
    int const code = list(device, &count, here.data());
    if (code == nvml_insufficient_size && attempt < 8) {  // processes may start between the calls
      here.resize(max_of<std::size_t>(here.size() * 2, count));
      continue;
    }
    if (code != 0) return code;
    here.resize(min_of<std::size_t>(here.size(), count));
    break;
  }
  for (nvml_process const& p : here) {
    nvml_process* known = nullptr;
    for (nvml_process& q : all) {
      if (q.pid == p.pid && q.gpu_instance == p.gpu_instance && q.compute_instance == p.compute_instance) {
        known = &q;
      }
    }
    if (known == nullptr) {
      all.push_back(p);
    } else {
      bool const is_known = known->used != nvml_not_available;
      if (!is_known || p.used != nvml_not_available)
        known->used = is_known ? max_of(known->used, p.used) : p.used;
    }
  }
  return 0;
}

/// Sums up the processes, or sets the reason why they are unknown.
inline void count_nvml_processes(std::vector<nvml_process> const& all, unsigned pid,
                                 device_account& account) noexcept {
  std::size_t mine = 0;
  std::size_t others = 0;
  bool listed = false;
  bool own_known = true;
  bool others_known = true;
  for (nvml_process const& p : all) {
    bool& known = p.pid == pid ? own_known : others_known;
    std::size_t& sum = p.pid == pid ? mine : others;
    listed = listed || p.pid == pid;
    if (p.used == nvml_not_available) {
      known = false;
    } else {
      sum += static_cast<std::size_t>(p.used);
    }
  }
  if (!listed) {  // this process has a context, so it is listed under a process id that it does not know
    account.gap =
        "NVML's list does not contain this process: process ids in a container differ from the host's";
    return;
  }
  if (own_known) account.this_process = mine;
  if (others_known) account.other_processes = others;
  if (!own_known) {
    account.gap = "NVML does not report the memory of this process (no permission, or not supported)";
  } else if (!others_known) {
    account.gap = "NVML does not report the memory of another process (no permission, or not supported)";
  }
}

/// Queries one library about one device on which this process has a CUDA context. Initialises and shuts down NVML: 10 to
/// 100 ms.
/// @return unsupported: NVML is missing or does not know the device; `account` is unchanged
[[nodiscard]] inline status nvml_account(nvml_calls const& calls, nvml_question const& asked,
                                         device_account& account) noexcept {
  if (!calls.is_there()) {
    return {failure::unsupported, 12, "libnvidia-ml.so.1 was not found", "nvmlInit_v2"};
  }
  if (int const code = calls.init(); code != 0) return nvml_failed(code, "nvmlInit_v2");
  struct session {
    nvml_calls const& calls;
    ~session() { (void)calls.shutdown(); }
  } const open{calls};
  device_account reported;
  nvml_calls::device device = nullptr;
  status const found = find_nvml_device(calls, asked, device, reported);
  if (!found.ok()) return found;
  nvml_memory_v2 v2{static_cast<unsigned>(sizeof(nvml_memory_v2)) | 2U << 24, 0, 0, 0, 0};
  nvml_memory v1{};
  if (calls.memory_v2 != nullptr && calls.memory_v2(device, &v2) == 0) {
    reported.total = static_cast<std::size_t>(v2.total);
    reported.free = static_cast<std::size_t>(v2.free);
    reported.set_aside = static_cast<std::size_t>(v2.reserved);
  } else if (calls.memory != nullptr && calls.memory(device, &v1) == 0) {
    reported.total = static_cast<std::size_t>(v1.total);
    reported.free = static_cast<std::size_t>(v1.free);
  }
  try {
    std::vector<nvml_process> all;
    if (add_nvml_processes(calls.compute_processes, device, all) != 0) {
      reported.gap = "NVML does not list the processes of this device";
    } else {
      (void)add_nvml_processes(calls.graphics_processes, device, all);  // not available on every device
      (void)add_nvml_processes(calls.mps_processes, device, all);
      count_nvml_processes(all, asked.pid, reported);
    }
  } catch (std::bad_alloc const&) {
    reported.gap = "not enough host memory for NVML's list of processes";
  }
  account = reported;
  return {};
}

}  // namespace tarn::detail

namespace tarn {

/// The stream that a null handle refers to.
enum class null_stream : std::uint8_t {
  legacy,     ///< the device's default stream, which synchronises with all blocking streams
  per_thread  ///< one default stream per thread (nvcc --default-stream per-thread)
};

/// CUDA behind the driver contract, for one device. The size of an int; copies are equal.
///
/// It never passes a null handle on: a null stream is resolved here, by `Null`, so that translation units built with and
/// without --default-stream per-thread use different types and agree on the meaning of each.
///
/// A per-thread default stream has the same handle in all threads. If a stream_ref carries the identity of another thread's
/// default stream (which the pool recorded at a free on that thread), no handle refers to it. The call then uses the legacy
/// default stream, which synchronises with every blocking stream: the requested order holds, and more.
///
/// No call except record_all() invalidates a graph capture on another stream; identify() of a bare handle invalidates one on that
/// stream, unless a capture_scope is open. Errors that tarn handles itself do not stay in
/// cudaGetLastError. After the runtime is unloaded at process exit, each call returns `unloading`.
template <null_stream Null>
class basic_cuda_driver {
 public:
  /// Uses the calling thread's current device; device 0 if the query fails (the first call then reports the failure).
  basic_cuda_driver() noexcept {
    if (!detail::cuda_status(cudaGetDevice(&device_), "cudaGetDevice").ok()) device_ = 0;
  }
  explicit constexpr basic_cuda_driver(device_id device) noexcept : device_(device.value) {}

  [[nodiscard]] device_id device() const noexcept { return device_id{device_}; }

  /// A context belongs to the process that created it.
  [[nodiscard]] static constexpr bool survives_fork() noexcept { return false; }

  /// Returns the calling thread's current device, for device_guard.
  static status current_device(device_id& device) noexcept {
    return detail::cuda_status(cudaGetDevice(&device.value), "cudaGetDevice");
  }
  static status set_current_device(device_id device) noexcept {
    return detail::cuda_status(cudaSetDevice(device.value), "cudaSetDevice");
  }

  // Streams and events.

  /// Default streams have identities that no other stream, device or thread ever has; they need no driver call.
  status identify(stream_ref stream, stream_id& id) const noexcept {
    cudaStream_t const handle = resolve(stream);
    if (stream.id() != stream_ref::unknown_id) {
      id = stream.id();
    } else if (handle == cudaStreamLegacy) {
      id = legacy_id();
    } else if (handle == cudaStreamPerThread) {
      id = per_thread_id();
    } else if (status found; detail::identify_captured(*this, stream, id, found)) [[unlikely]] {
      return found;
    } else {
      // Invalidates a capture of the stream, and fails, if no scope is open for it. Runs at each use of a bare handle: the stream may
      // be destroyed, and its handle given to a new one, between two calls of one pair, so no memory of the last stream proves that
      // this one is the same. A question takes 19 ns: with two of them a warm pair takes 51.5 ns instead of 13.2 (H200).
      // hot_pair/65536 of bench/results/hot_paths_cuda.jsonl: `tarn` and `tarn_identified`.
      unsigned long long number = 0;
      auto const ask = detail::cuda_driver_calls().stream_get_id;
      status const s = ask != nullptr
                           ? detail::cuda_status(ask(handle, &number), "cuStreamGetId")
                           : detail::cuda_status(cudaStreamGetId(handle, &number), "cudaStreamGetId");
      if (!s.ok()) {
        (void)cudaGetLastError();  // checking whether a stream still exists is not a caller's error
        return s;
      }
      id = number;
    }
    return {};
  }

  /// Whether the stream, which exists, was created on another device. False for default streams, for one that is being captured
  /// (the question would invalidate the capture), and before CUDA 12.8.
  [[nodiscard]] bool is_of_other_device(stream_ref stream) const noexcept {
    cudaStream_t const handle = resolve(stream);
    auto const ask = detail::cuda_driver_calls().stream_get_device;
    bool capturing = false;
    if (ask == nullptr || is_default(handle) || !is_capturing(stream, capturing).ok() || capturing)
      return false;
    CUdevice device = 0;
    return ask(handle, &device) == CUDA_SUCCESS && device != device_;
  }

  /// Also true if the capture was invalidated but not ended, and for the legacy default stream while a blocking stream is
  /// captured: any work on it would then invalidate that capture.
  status is_capturing(stream_ref stream, bool& yes) const noexcept {
    cudaStream_t const handle = reach(stream);
    auto const ask = detail::cuda_driver_calls().stream_is_capturing;
    if (ask != nullptr && !is_default(handle)) {
      // A stream that was created has its context, so that none must be made current; the runtime takes 50 ns with that.
      CUstreamCaptureStatus now = CU_STREAM_CAPTURE_STATUS_NONE;
      status const s = detail::cuda_status(ask(handle, &now), "cuStreamIsCapturing");
      if (s.ok()) yes = now != CU_STREAM_CAPTURE_STATUS_NONE;
      return s;
    }
    detail::on_device const here(device_, handle);
    if (!here.entered().ok()) return here.entered();
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    cudaError_t const code = cudaStreamIsCapturing(handle, &capture);
    if (code == cudaErrorStreamCaptureImplicit) {
      (void)cudaGetLastError();  // a result, not an error
      yes = true;
      return {};
    }
    status const s = detail::cuda_status(code, "cudaStreamIsCapturing");
    if (s.ok()) yes = capture != cudaStreamCaptureStatusNone;
    return s;
  }

  status create_event(event_handle& event) const noexcept {
    detail::on_device const here(device_);
    if (!here.entered().ok()) return here.entered();
    cudaEvent_t made = nullptr;
    // Without timing: half the cost, and no wait of the stream for a timestamp.
    status const s = detail::cuda_status(cudaEventCreateWithFlags(&made, cudaEventDisableTiming),
                                         "cudaEventCreateWithFlags");
    if (s.ok()) event = made;
    return s;
  }
  status destroy_event(event_handle event) const noexcept {
    return detail::cuda_status(cudaEventDestroy(native(event)), "cudaEventDestroy");
  }
  status record_event(event_handle event, stream_ref stream) const noexcept {
    cudaStream_t const handle = reach(stream);
    detail::on_device const here(device_, handle);
    if (!here.entered().ok()) return here.entered();
    return detail::cuda_status(cudaEventRecord(native(event), handle), "cudaEventRecord");
  }
  /// Marks all work submitted to the device so far, on every stream, including destroyed ones; uses no stream handle. Fails
  /// while any stream is captured; `unsupported` before CUDA 12.5.
  status record_all(event_handle event) const noexcept {
    auto const& calls = detail::cuda_driver_calls();
    if (calls.context_record_event == nullptr || calls.primary_context_release == nullptr) {
      return detail::cuda_lacks("cuCtxRecordEvent");
    }
    CUcontext context = nullptr;
    status s =
        detail::cuda_status(calls.primary_context_retain(&context, device_), "cuDevicePrimaryCtxRetain");
    if (!s.ok()) return s;
    detail::beside_capture const permission;
    s = detail::cuda_status(calls.context_record_event(context, native(event)), "cuCtxRecordEvent");
    (void)calls.primary_context_release(device_);
    return s;
  }
  status query_event(event_handle event) const noexcept {
    detail::beside_capture const permission;
    return detail::cuda_status(cudaEventQuery(native(event)), "cudaEventQuery");
  }
  status wait_event(stream_ref stream, event_handle event) const noexcept {
    cudaStream_t const handle = reach(stream);
    detail::on_device const here(device_, handle);
    if (!here.entered().ok()) return here.entered();
    return detail::cuda_status(cudaStreamWaitEvent(handle, native(event), 0), "cudaStreamWaitEvent");
  }
  status synchronize_event(event_handle event) const noexcept {
    detail::beside_capture const permission;
    return detail::cuda_status(cudaEventSynchronize(native(event)), "cudaEventSynchronize");
  }
  /// Must not be called for a stream that is being captured: that ends the capture.
  status synchronize_stream(stream_ref stream) const noexcept {
    cudaStream_t const handle = reach(stream);
    detail::on_device const here(device_, handle);
    if (!here.entered().ok()) return here.entered();
    detail::beside_capture const permission;
    return detail::cuda_status(cudaStreamSynchronize(handle), "cudaStreamSynchronize");
  }
  status synchronize_device() const noexcept {
    detail::on_device const here(device_);
    if (!here.entered().ok()) return here.entered();
    detail::beside_capture const permission;
    return detail::cuda_status(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  /// The new stream_ref holds the stream's identity.
  status create_stream(stream_ref& stream) const noexcept {
    detail::on_device const here(device_);
    if (!here.entered().ok()) return here.entered();
    cudaStream_t made = nullptr;
    status s = detail::cuda_status(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking),
                                   "cudaStreamCreateWithFlags");
    if (!s.ok()) return s;
    stream_id id = stream_ref::unknown_id;
    s = identify(stream_ref(made), id);
    if (s.ok()) {
      stream = stream_ref::from(made, id);
      streams_made().add(id, made);
    } else {
      (void)cudaStreamDestroy(made);
    }
    return s;
  }
  /// Does nothing for default streams.
  status destroy_stream(stream_ref stream) const noexcept {
    cudaStream_t const handle = resolve(stream);
    if (is_default(handle)) return {};
    stream_id id = stream_ref::unknown_id;
    if (identify(stream, id).ok()) streams_made().remove(id);
    return detail::cuda_status(cudaStreamDestroy(handle), "cudaStreamDestroy");
  }

  /// Returns true if create_stream() of any driver created the stream and it is not destroyed: its handle may be used. Nothing
  /// is known of other streams, since CUDA may crash on the handle of a destroyed one.
  [[nodiscard]] bool has_made(stream_ref stream) const noexcept { return streams_made().has(stream.id()); }
  /// The identity of an existing stream, without a driver call; unknown_id if create_stream() did not create it.
  [[nodiscard]] stream_id made_identity(void* handle) const noexcept {
    return streams_made().identity_of(handle);
  }

  // Copies.

  status copy(stream_ref stream, void* to, void const* from, std::size_t bytes) const noexcept {
    if (bytes == 0) return {};
    // Memory that did not come from cudaMalloc can only be copied with its device current.
    detail::on_device const here(device_);
    if (!here.entered().ok()) return here.entered();
    return detail::cuda_status(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, reach(stream)),
                               "cudaMemcpyAsync");
  }
  /// Copies from another device's memory to this device's, on a stream of this device. Unlike copy() it needs no peer access:
  /// pages mapped for their own device only may be copied.
  status copy_from_device(stream_ref stream, void* to, device_id other, void const* from,
                          std::size_t bytes) const noexcept {
    if (bytes == 0) return {};
    detail::on_device const here(device_);
    if (!here.entered().ok()) return here.entered();
    return detail::cuda_status(cudaMemcpyPeerAsync(to, device_, from, other.value, bytes, reach(stream)),
                               "cudaMemcpyPeerAsync");
  }
  status fill(stream_ref stream, void* to, int byte, std::size_t bytes) const noexcept {
    if (bytes == 0) return {};
    detail::on_device const here(device_);
    if (!here.entered().ok()) return here.entered();
    return detail::cuda_status(cudaMemsetAsync(to, byte, bytes, reach(stream)), "cudaMemsetAsync");
  }
  /// Converts elements on the device. Defined in driver/cuda_convert.hpp, compiled by nvcc.
  template <class To, class From>
  status convert(stream_ref stream, To* to, From const* from, std::size_t count) const noexcept;

  /// What cudaMalloc may need beside the bytes that it allocates, for page tables and rounding. With up to 5.2 MiB more than 1 GiB
  /// free, a cudaMalloc of 1 GiB failed (H200, driver 580).
  [[nodiscard]] static constexpr std::size_t allocation_overhead() noexcept { return 16_MiB; }
  status memory_info(std::size_t& free, std::size_t& total) const noexcept {
    detail::on_device const here(device_);
    if (!here.entered().ok()) return here.entered();
    detail::beside_capture const permission;
    return detail::cuda_status(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  }
  /// Reports NVML's figures. Loads NVML at run time; a program that calls this links libdl if that is a separate library (glibc
  /// before 2.34). unsupported: NVML is missing or does not know the device.
  status memory_account(device_account& account) const noexcept {
    detail::nvml_question asked;
    asked.pid = static_cast<unsigned>(detail::this_process());
    auto const get_uuid = detail::cuda_driver_calls().device_get_uuid;
    CUuuid uuid{};
    if (get_uuid != nullptr && get_uuid(&uuid, static_cast<CUdevice>(device_)) == CUDA_SUCCESS) {
      std::memcpy(asked.uuid, uuid.bytes, sizeof asked.uuid);
    }
    status const s = detail::cuda_status(
        cudaDeviceGetPCIBusId(asked.pci_bus_id, static_cast<int>(sizeof asked.pci_bus_id), device_),
        "cudaDeviceGetPCIBusId");
    if (!s.ok()) return s;
    return detail::nvml_account(detail::nvml(), asked, account);
  }

  /// Initialises the device's primary context first: a tool attaches when CUDA starts.
  [[nodiscard]] cuda_memory_tool memory_tool() const noexcept {
    detail::on_device const here(device_);
    if (!here.entered().ok()) return {};
    detail::beside_capture const permission;
    if (!detail::cuda_status(cudaFree(nullptr), "cudaFree").ok()) return {};
    return {nvtx_memory::attached(), device_};
  }

  // Pages. These calls name their device and work with any current context.

  /// Returns the recommended granularity in bytes, 2 MiB on every device so far. Also initialises the device's primary
  /// context, without which mapped memory could not be used. unsupported: this device (many virtual GPUs, WDDM before 2020)
  /// or driver has no virtual memory management; a pool over pages then uses malloc_device().
  status page_granularity(std::size_t& bytes) const noexcept {
    detail::on_device const here(device_);
    if (!here.entered().ok()) return here.entered();
    status s;
    {
      detail::beside_capture const permission;
      s = detail::cuda_status(cudaFree(nullptr), "cudaFree");
    }
    if (!s.ok()) return s;
    auto const& calls = detail::cuda_driver_calls();
    if (!calls.has_pages() || !attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)) {
      return detail::cuda_lacks("cuMemGetAllocationGranularity");
    }
    CUmemAllocationProp const properties = page_properties(allocation_handle_type::none);
    std::size_t granularity = 0;
    s = detail::cuda_status(
        calls.get_granularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
        "cuMemGetAllocationGranularity");
    if (s.ok()) bytes = granularity;
    return s;
  }
  status reserve_range(std::size_t bytes, std::size_t alignment, void*& p) const noexcept {
    auto const& calls = detail::cuda_driver_calls();
    if (!calls.has_pages()) return detail::cuda_lacks("cuMemAddressReserve");
    CUdeviceptr address = 0;
    status const s =
        detail::cuda_status(calls.reserve(&address, bytes, alignment, 0, 0), "cuMemAddressReserve");
    if (s.ok()) p = reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
    return s;
  }
  status release_range(void* p, std::size_t bytes) const noexcept {
    auto const& calls = detail::cuda_driver_calls();
    if (!calls.has_pages()) return detail::cuda_lacks("cuMemAddressFree");
    return detail::cuda_status(calls.unreserve(address_of(p), bytes), "cuMemAddressFree");
  }
  status create_pages(std::size_t bytes, page_handle& handle) const noexcept {
    return create_pages(bytes, allocation_handle_type::none, handle);
  }
  status create_pages(std::size_t bytes, allocation_handle_type type, page_handle& handle) const noexcept {
    auto const& calls = detail::cuda_driver_calls();
    if (!calls.has_pages()) return detail::cuda_lacks("cuMemCreate");
    CUmemAllocationProp const properties = page_properties(type);
    CUmemGenericAllocationHandle made = 0;
    status const s = detail::cuda_status(calls.create(&made, bytes, &properties, 0), "cuMemCreate");
    if (s.ok()) handle = made;
    return s;
  }
  status destroy_pages(page_handle handle) const noexcept {
    auto const& calls = detail::cuda_driver_calls();
    if (!calls.has_pages()) return detail::cuda_lacks("cuMemRelease");
    return detail::cuda_status(calls.release(handle), "cuMemRelease");
  }
  /// Maps the whole handle (cuMemMap's offset must be 0) and grants this device read and write access. If granting access
  /// fails, nothing is mapped.
  status map_pages(void* p, std::size_t bytes, page_handle handle) const noexcept {
    auto const& calls = detail::cuda_driver_calls();
    if (!calls.has_pages()) return detail::cuda_lacks("cuMemMap");
    status s = detail::cuda_status(calls.map(address_of(p), bytes, 0, handle, 0), "cuMemMap");
    if (!s.ok()) return s;
    CUmemAccessDesc const access{memory_of(device_), CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    s = detail::cuda_status(calls.set_access(address_of(p), bytes, &access, 1), "cuMemSetAccess");
    if (!s.ok()) (void)calls.unmap(address_of(p), bytes);
    return s;
  }
  status unmap_pages(void* p, std::size_t bytes) const noexcept {
    auto const& calls = detail::cuda_driver_calls();
    if (!calls.has_pages()) return detail::cuda_lacks("cuMemUnmap");
    return detail::cuda_status(calls.unmap(address_of(p), bytes), "cuMemUnmap");
  }
  /// Reports whether another device can access this device's pages, over NVLink or PCIe. If so, initialises the other device's
  /// primary context, without which it could not use the mapping.
  status can_share(device_id other, bool& yes) const noexcept {
    if (other.value == device_) {
      yes = true;
      return {};
    }
    int can = 0;
    status s =
        detail::cuda_status(cudaDeviceCanAccessPeer(&can, other.value, device_), "cudaDeviceCanAccessPeer");
    if (s.ok() && can != 0) {
      detail::on_device const there(other.value);
      if (!there.entered().ok()) return there.entered();
      detail::beside_capture const permission;
      s = detail::cuda_status(cudaFree(nullptr), "cudaFree");
    }
    if (s.ok()) yes = can != 0;
    return s;
  }
  /// Grants another device read and write access to the mapping at [p, p + bytes), until it is unmapped. This device keeps its
  /// access.
  status share_pages(void* p, std::size_t bytes, device_id other) const noexcept {
    auto const& calls = detail::cuda_driver_calls();
    if (!calls.has_pages()) return detail::cuda_lacks("cuMemSetAccess");
    CUmemAccessDesc const access{memory_of(other.value), CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    return detail::cuda_status(calls.set_access(address_of(p), bytes, &access, 1), "cuMemSetAccess");
  }

  // Pages and events of other processes.

  /// A device may report the fabric and still refuse to create pages with it, as an H200 without one does: a handle of one granule
  /// is created and released to find out.
  status can_export_pages(allocation_handle_type type, bool& yes) const noexcept {
    auto const& calls = detail::cuda_driver_calls();
    if (!calls.has_pages()) return detail::cuda_lacks("cuMemCreate");
    yes = type == allocation_handle_type::none ||
          attribute(type == allocation_handle_type::fabric
                        ? fabric_supported
                        : CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
    if (!yes || type != allocation_handle_type::fabric) return {};
    std::size_t granularity = 0;
    status const s = page_granularity(granularity);
    if (!s.ok()) return s;
    page_handle trial = 0;
    yes = create_pages(granularity, type, trial).ok();
    return yes ? destroy_pages(trial) : status{};
  }
  status export_pages(page_handle handle, page_export& exported) const noexcept {
    auto const& calls = detail::cuda_driver_calls();
    if (!calls.has_pages()) return detail::cuda_lacks("cuMemExportToShareableHandle");
    bool const by_fabric = exported.type == allocation_handle_type::fabric;
    void* const into = by_fabric ? static_cast<void*>(exported.fabric.data()) : &exported.descriptor;
    return detail::cuda_status(calls.export_handle(into, handle, native(exported.type), 0),
                               "cuMemExportToShareableHandle");
  }
  status import_pages(page_export const& exported, page_handle& handle) const noexcept {
    auto const& calls = detail::cuda_driver_calls();
    if (!calls.has_pages()) return detail::cuda_lacks("cuMemImportFromShareableHandle");
    page_export copy =
        exported;  // CUDA takes a fabric token by a pointer to non-const, and a descriptor in place of one
    void* const from = copy.type == allocation_handle_type::fabric
                           ? static_cast<void*>(copy.fabric.data())
                           : reinterpret_cast<void*>(static_cast<std::intptr_t>(copy.descriptor));
    CUmemGenericAllocationHandle made = 0;
    status const s = detail::cuda_status(calls.import_handle(&made, from, native(copy.type)),
                                         "cuMemImportFromShareableHandle");
    if (s.ok()) handle = made;
    return s;
  }
  status create_shared_event(event_handle& event, shared_event_token& token) const noexcept {
    detail::on_device const here(device_);
    if (!here.entered().ok()) return here.entered();
    cudaEvent_t made = nullptr;
    status s =
        detail::cuda_status(cudaEventCreateWithFlags(&made, cudaEventDisableTiming | cudaEventInterprocess),
                            "cudaEventCreateWithFlags");
    if (!s.ok()) return s;
    cudaIpcEventHandle_t exported{};
    s = detail::cuda_status(cudaIpcGetEventHandle(&exported, made), "cudaIpcGetEventHandle");
    if (!s.ok()) {
      (void)cudaEventDestroy(made);
      return s;
    }
    static_assert(sizeof exported == sizeof(shared_event_token));
    std::memcpy(token.data(), &exported, sizeof exported);
    event = made;
    return {};
  }
  status open_shared_event(shared_event_token const& token, event_handle& event) const noexcept {
    detail::on_device const here(device_);
    if (!here.entered().ok()) return here.entered();
    cudaIpcEventHandle_t exported{};
    std::memcpy(&exported, token.data(), sizeof exported);
    cudaEvent_t opened = nullptr;
    status const s = detail::cuda_status(cudaIpcOpenEventHandle(&opened, exported), "cudaIpcOpenEventHandle");
    if (s.ok()) event = opened;
    return s;
  }
  /// CUDA needs `p` and `bytes` to be multiples of the host's page size, and all of the range in one handle.
  status export_dma_buf(void* p, std::size_t bytes, int& descriptor) const noexcept {
    auto const& calls = detail::cuda_driver_calls();
    if (calls.get_range_handle == nullptr || !attribute(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED)) {
      return detail::cuda_lacks("cuMemGetHandleForAddressRange");
    }
    return detail::cuda_status(
        calls.get_range_handle(&descriptor, address_of(p), bytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0),
        "cuMemGetHandleForAddressRange");
  }
  status uuid(device_uuid& id) const noexcept {
    auto const get = detail::cuda_driver_calls().device_get_uuid;
    if (get == nullptr) return detail::cuda_lacks("cuDeviceGetUuid");
    CUuuid found{};
    status const s = detail::cuda_status(get(&found, static_cast<CUdevice>(device_)), "cuDeviceGetUuid");
    if (s.ok()) std::memcpy(id.data(), found.bytes, sizeof found.bytes);
    return s;
  }

  // Blocks.

  status malloc_device(std::size_t bytes, void*& p) const noexcept {
    detail::on_device const here(device_);
    if (!here.entered().ok()) return here.entered();
    detail::beside_capture const permission;
    return detail::cuda_status(cudaMalloc(&p, bytes), "cudaMalloc");
  }
  /// Makes the memory's device current, like every free: otherwise a thread new to CUDA would initialise device 0's context.
  status free_device(void* p) const noexcept {
    detail::on_device const here(device_);
    if (!here.entered().ok()) return here.entered();
    detail::beside_capture const permission;
    return detail::cuda_status(cudaFree(p), "cudaFree");
  }
  /// Whether the device has memory pools; some virtual GPUs and Jetson devices do not. True if CUDA does not answer: the first
  /// allocation then reports why. Creates no context.
  [[nodiscard]] bool has_memory_pools() const noexcept {
    int value = 0;
    status const s = detail::cuda_status(
        cudaDeviceGetAttribute(&value, cudaDevAttrMemoryPoolsSupported, device_), "cudaDeviceGetAttribute");
    return !s.ok() || value != 0;
  }
  /// On a stream that is being captured this becomes a graph node, and the graph owns the memory.
  status malloc_async(std::size_t bytes, stream_ref stream, void*& p) const noexcept {
    cudaStream_t const handle = reach(stream);
    detail::on_device const here(device_, handle);
    if (!here.entered().ok()) return here.entered();
    return detail::cuda_status(cudaMallocAsync(&p, bytes, handle), "cudaMallocAsync");
  }
  status free_async(void* p, stream_ref stream) const noexcept {
    cudaStream_t const handle = reach(stream);
    detail::on_device const here(device_, handle);
    if (!here.entered().ok()) return here.entered();
    return detail::cuda_status(cudaFreeAsync(p, handle), "cudaFreeAsync");
  }
  /// Sets the bytes that the device's default memory pool, used by malloc_async, keeps at a synchronisation instead of
  /// releasing them. The pool and its setting are process-wide. CUDA's default is 0.
  status set_release_threshold(std::size_t bytes) const noexcept {
    detail::on_device const here(device_);
    if (!here.entered().ok()) return here.entered();
    cudaMemPool_t pool = nullptr;
    status const s =
        detail::cuda_status(cudaDeviceGetDefaultMemPool(&pool, device_), "cudaDeviceGetDefaultMemPool");
    if (!s.ok()) return s;
    std::uint64_t threshold = bytes;
    return detail::cuda_status(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold),
                               "cudaMemPoolSetAttribute");
  }
  /// Portable: pinned for the contexts of all devices.
  status malloc_pinned(std::size_t bytes, void*& p) const noexcept {
    detail::on_device const here(device_);  // without it, a context would be created on the current device
    if (!here.entered().ok()) return here.entered();
    detail::beside_capture const permission;
    return detail::cuda_status(cudaHostAlloc(&p, bytes, cudaHostAllocPortable), "cudaHostAlloc");
  }
  status free_pinned(void* p) const noexcept {
    if (p == nullptr) return {};
    detail::on_device const here(device_);
    if (!here.entered().ok()) return here.entered();
    detail::beside_capture const permission;
    return detail::cuda_status(cudaFreeHost(p), "cudaFreeHost");
  }
  /// Pins existing host memory, for the contexts of all devices.
  status register_host(void* p, std::size_t bytes) const noexcept {
    detail::on_device const here(device_);
    if (!here.entered().ok()) return here.entered();
    detail::beside_capture const permission;
    return detail::cuda_status(cudaHostRegister(p, bytes, cudaHostRegisterPortable), "cudaHostRegister");
  }
  status unregister_host(void* p) const noexcept {
    if (p == nullptr) return {};
    detail::on_device const here(device_);
    if (!here.entered().ok()) return here.entered();
    detail::beside_capture const permission;
    return detail::cuda_status(cudaHostUnregister(p), "cudaHostUnregister");
  }
  status malloc_managed(std::size_t bytes, void*& p) const noexcept {
    detail::on_device const here(device_);
    if (!here.entered().ok()) return here.entered();
    detail::beside_capture const permission;
    return detail::cuda_status(cudaMallocManaged(&p, bytes, cudaMemAttachGlobal), "cudaMallocManaged");
  }
  status free_managed(void* p) const noexcept {
    detail::on_device const here(device_);
    if (!here.entered().ok()) return here.entered();
    detail::beside_capture const permission;
    return detail::cuda_status(cudaFree(p), "cudaFree");
  }

  /// Drivers are equal if they are of the same device.
  friend constexpr bool operator==(basic_cuda_driver a, basic_cuda_driver b) noexcept {
    return a.device_ == b.device_;
  }

 private:
  [[nodiscard]] static detail::made_streams& streams_made() noexcept {
    static constinit detail::made_streams all;
    return all;
  }

  // Identities of default streams. cudaStreamGetId counts up from 1 and never reaches the upper half:
  //   bits 63..62   10 legacy, 11 per-thread
  //   bits 61..54   device
  //   bits 53..0    the thread's number plus an offset that depends on the counter's address: shared objects built with hidden
  //                 visibility have their own counter, and no two threads collide before 2^54 threads
  [[nodiscard]] stream_id legacy_id() const noexcept { return stream_id{2} << 62 | device_bits(); }
  [[nodiscard]] stream_id per_thread_id() const noexcept {
    auto const counter =
        static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(&detail::next_thread_number));
    std::uint64_t const start = counter * 0x9E3779B97F4A7C15U >> 10;
    return stream_id{3} << 62 | device_bits() |
           ((start + detail::thread_number()) & ((stream_id{1} << 54) - 1));
  }
  [[nodiscard]] stream_id device_bits() const noexcept {
    return stream_id{static_cast<unsigned>(device_) & 0xffU} << 54;
  }

  /// Replaces a null handle.
  [[nodiscard]] static cudaStream_t resolve(stream_ref stream) noexcept {
    if (stream.handle() != nullptr) return static_cast<cudaStream_t>(stream.handle());
    return Null == null_stream::legacy ? cudaStreamLegacy : cudaStreamPerThread;
  }
  /// Returns the stream to submit work to so that it is ordered with `stream`; see the class.
  [[nodiscard]] cudaStream_t reach(stream_ref stream) const noexcept {
    cudaStream_t const handle = resolve(stream);
    if (handle == cudaStreamPerThread && stream.id() != stream_ref::unknown_id &&
        stream.id() != per_thread_id()) {
      return cudaStreamLegacy;
    }
    return handle;
  }
  [[nodiscard]] static bool is_default(cudaStream_t handle) noexcept {
    return handle == cudaStreamLegacy || handle == cudaStreamPerThread;
  }
  [[nodiscard]] static cudaEvent_t native(event_handle event) noexcept {
    return static_cast<cudaEvent_t>(event);
  }
  [[nodiscard]] static CUdeviceptr address_of(void* p) noexcept {
    return static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(p));
  }

  [[nodiscard]] static CUmemLocation memory_of(int device) noexcept {
    CUmemLocation location{};
    location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    location.id = device;
    return location;
  }
  // In cuda.h since 12.4.
  static constexpr int fabric_supported = 128;  // CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED
  static constexpr auto fabric_handles =
      static_cast<CUmemAllocationHandleType>(8);  // CU_MEM_HANDLE_TYPE_FABRIC
  [[nodiscard]] static CUmemAllocationHandleType native(allocation_handle_type type) noexcept {
    switch (type) {
      case allocation_handle_type::posix_file_descriptor:
        return CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
      case allocation_handle_type::fabric:
        return fabric_handles;
      default:
        return CU_MEM_HANDLE_TYPE_NONE;
    }
  }
  /// Plain device memory. Accessible to network cards if the device supports it: like the handle type, that can only be set at
  /// creation.
  [[nodiscard]] CUmemAllocationProp page_properties(allocation_handle_type type) const noexcept {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = native(type);
    properties.location = memory_of(device_);
    if (attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)) {
      properties.allocFlags.gpuDirectRDMACapable = 1;
    }
    return properties;
  }
  [[nodiscard]] bool attribute(int which) const noexcept {
    int value = 0;
    auto const get = detail::cuda_driver_calls().device_get_attribute;
    return get(&value, static_cast<CUdevice_attribute>(which), static_cast<CUdevice>(device_)) ==
               CUDA_SUCCESS &&
           value != 0;
  }

  int device_ = 0;
};

/// The driver for this translation unit's null streams: legacy, or per-thread if nvcc compiles with
/// --default-stream per-thread (or CUDA_API_PER_THREAD_DEFAULT_STREAM is defined).
#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
using cuda_driver = basic_cuda_driver<null_stream::per_thread>;
#else
using cuda_driver = basic_cuda_driver<null_stream::legacy>;
#endif

static_assert(stream_driver<cuda_driver> && page_driver<cuda_driver> && block_driver<cuda_driver> &&
              registering_driver<cuda_driver> && describing_driver<cuda_driver> &&
              accounting_driver<cuda_driver> && sharing_driver<cuda_driver>);

}  // namespace tarn
#endif

namespace tarn {

/// cudaMallocAsync and cudaFreeAsync.
struct async_calls {
  using properties = property_set<device_accessible>;
  static constexpr char const* backend = "cudaMallocAsync";

  template <block_driver D>
  [[nodiscard]] static char const* refusal(D const& driver) noexcept {
    if constexpr (requires { driver.has_memory_pools(); }) {
      if (!driver.has_memory_pools())
        return "cudaMallocAsync (no memory pools on this device; use cuda_malloc | pooled, or device_pool)";
    }
    return nullptr;
  }
  template <block_driver D>
  static status take(D const& driver, stream_ref stream, std::size_t bytes, std::size_t, void*& p) noexcept {
    return driver.malloc_async(bytes, stream, p);
  }
  template <block_driver D>
  static status give(D const& driver, stream_ref stream, void* p, std::size_t, std::size_t) noexcept {
    return driver.free_async(p, stream);
  }
  /// Ordered after all of the device's work, on a stream of its own. While this thread's capture forbids that, the block stays.
  template <block_driver D>
  static status give_lost(D const& driver, void* p, std::size_t, std::size_t) noexcept {
    return give_on_own_stream(driver, p, [&](stream_ref own) {
      status const s = detail::order_behind_lost(driver, own);
      return detail::is_of_capture(s) ? detail::wait_past_captures(driver) : s;
    });
  }

  // Calls without a stream use a short-lived one, which waits for no stream and for which no stream waits. The default stream
  // would wait for the kernels of every blocking stream.

  template <block_driver D>
  static status take(D const& driver, std::size_t bytes, std::size_t, void*& p) noexcept {
    stream_ref stream;
    status s = driver.create_stream(stream);
    if (!s.ok()) return s;
    s = driver.malloc_async(bytes, stream, p);
    if (s.ok()) {
      s = driver.synchronize_stream(stream);
      if (!s.ok()) (void)driver.free_async(p, stream);
    }
    (void)driver.destroy_stream(stream);
    return s;
  }
  template <block_driver D>
  static status give(D const& driver, void* p, std::size_t, std::size_t) noexcept {
    return give_on_own_stream(driver, p, [](stream_ref) { return status{}; });
  }

 private:
  template <block_driver D, class Order>
  static status give_on_own_stream(D const& driver, void* p, Order const& order) noexcept {
    stream_ref stream;
    bool const own = driver.create_stream(stream).ok();
    if (!own) stream = {};  // a wait on the device is better than a leak
    status s = order(stream);
    if (!detail::is_of_capture(s)) s = driver.free_async(p, stream);
    if (own) (void)driver.destroy_stream(stream);
    return s;
  }
};

/// Stream-ordered device memory from the driver's own pool: 0.7 µs warm on an H200, more with several threads, since the pool
/// has one lock. Without a stream (allocate_sync, deallocate_sync) each call creates and destroys a stream, ~10 µs. The
/// underlying pool is the process's default pool of the device, shared with every caller of cudaMallocAsync. Its constructor throws
/// cuda_error of kind `unsupported` on a device without memory pools: use `cuda_malloc{} | pooled{}`.
template <block_driver D>
using basic_async = block_source<D, async_calls>;

/// Sets how many bytes CUDA's pool keeps at a synchronisation; the initial value is 0, which gives everything back each time.
/// The whole process shares the pool and this setting.
/// @throws cuda_error  the device has no memory pools, or there is no driver
template <block_driver D>
  requires requires(D const& driver) { driver.set_release_threshold(std::size_t{}); }
void set_release_threshold(basic_async<D> const& memory, std::size_t bytes,
                           source_location where = source_location::current()) {
  status const s = memory.driver().set_release_threshold(bytes);
  if (!s.ok()) throw cuda_error(s, memory.device().value, where);
}

#if TARN_HAS_CUDA
using cuda_async = basic_async<cuda_driver>;
static_assert(resource<cuda_async>);
#endif

}  // namespace tarn
// ---- tarn/source/cuda_malloc.hpp
// cuda_malloc: device memory from cudaMalloc, one call per block.

#if TARN_HAS_CUDA
#endif

namespace tarn {

/// cudaMalloc and cudaFree.
struct malloc_calls {
  using properties = property_set<device_accessible>;
  static constexpr char const* backend = "cudaMalloc";
  template <block_driver D>
  static status take(D const& driver, std::size_t bytes, std::size_t, void*& p) noexcept {
    return driver.malloc_device(bytes, p);  // aligned to at least 256; block_source checks for more
  }
  template <block_driver D>
  static status give(D const& driver, void* p, std::size_t, std::size_t) noexcept {
    return driver.free_device(p);
  }
};

/// Device memory; 58 µs to allocate and 40 µs to free on an H200, and a free waits for its stream (in practice for the whole
/// device). Aligned to 256 bytes; blocks of 2 MiB and more to 2 MiB.
template <block_driver D>
using basic_malloc = block_source<D, malloc_calls>;

#if TARN_HAS_CUDA
using cuda_malloc = basic_malloc<cuda_driver>;
static_assert(resource<cuda_malloc>);
#endif

}  // namespace tarn
// ---- tarn/source/cuda_pages.hpp
// cuda_pages: device memory as pages: address ranges are reserved first, physical memory is mapped on demand.

#include <concepts>
#include <cstddef>
#include <utility>

// ---- tarn/source/missing_pages.hpp
// Devices without virtual memory management (many virtual GPUs): whether a page source has pages there, and the errors of what needs
// them.

// ---- tarn/core/layers.hpp
// Finds the first layer of a stack, from the top down, that accepts a call.

#include <concepts>
#include <type_traits>
#include <utility>

// ---- tarn/core/attribution.hpp
// What an allocation is attributed to in reports: the line of the user's call, and a tag if one was given.

#include <cstdint>

namespace tarn {

class tag;

/// The last parameter of every call that allocates: `attribution from = attribution::current()`. A call without it is attributed
/// to its own line. With a tag, `make_device_buffer<float>(memory, n, stream, tarn::tag("weights"))`, it is attributed to its
/// line and the tag.
struct attribution {
  source_location where;
  std::uint32_t tag_id = 0;  ///< of the tag that was given; 0: none

  constexpr attribution() noexcept = default;
  constexpr attribution(source_location at) noexcept : where(at) {}
  /// Defined in core/tag.
  attribution(tag const& name, char const* file = __builtin_FILE(), int line = __builtin_LINE(),
              char const* function = __builtin_FUNCTION()) noexcept;

  [[nodiscard]] static constexpr attribution current(char const* file = __builtin_FILE(),
                                                     int line = __builtin_LINE(),
                                                     char const* function = __builtin_FUNCTION()) noexcept {
    return source_location{file, line, function};
  }
};

}  // namespace tarn
// ---- tarn/core/location_scope.hpp
// The place in the user's source that an allocation is attributed to, across all policies and owners in between. Only stacks
// with a layer that records places (policy/checked, logged, with_history) use it; for all others it is an empty type.

#include <cstdint>
#include <type_traits>

// ---- tarn/core/scope_chain.hpp
// scope_chain: the live scopes of one kind on a thread, for scopes that set a per-thread value. Restoring the previous value
// would be wrong when scopes do not end in reverse order; removing a scope from a chain is correct in any order.

// ---- tarn/core/misuse.hpp
// The process-wide handler for misuse that cannot be thrown. Deallocation is noexcept, so it passes a tarn::misuse to the
// handler.

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace tarn {

/// Called on misuse. If it returns, the block is leaked (never allocated again) and the program continues.
using misuse_handler = void (*)(misuse const&);

/// Prints the message to standard error and aborts: memory that was freed wrongly may already have another owner.
inline void abort_on_misuse(misuse const& what) {
  std::fprintf(stderr, "%s\n", what.what());
  std::abort();
}

namespace detail {
inline std::atomic<misuse_handler> current_misuse_handler{&abort_on_misuse};
}

/// Sets the process-wide handler; null restores abort_on_misuse. Returns the previous handler. Thread-safe.
inline misuse_handler set_misuse_handler(misuse_handler handler) noexcept {
  return detail::current_misuse_handler.exchange(handler != nullptr ? handler : &abort_on_misuse);
}

/// Calls the handler. An exception from the handler terminates the program, as in any noexcept function.
inline void report_misuse(misuse const& what) noexcept {
  detail::current_misuse_handler.load()(what);
}

namespace detail {
/// Reports one of several findings that were made together: the default handler prints all of them before it ends the program.
inline void report_misuse_of_several(misuse const& what, bool is_last) noexcept {
  if (!is_last && current_misuse_handler.load() == &abort_on_misuse) {
    std::fprintf(stderr, "%s\n", what.what());
  } else {
    report_misuse(what);
  }
}
}  // namespace detail

}  // namespace tarn

namespace tarn::detail {

/// The live scopes of the calling thread, innermost first. Scope must have a member `Scope* outer_`, null before begin(), and
/// declare the chain a friend. begin() and end() are O(1) for scopes that end in reverse order, and O(scopes) otherwise.
template <class Scope>
class scope_chain {
 public:
  /// Returns null if there is no live scope.
  [[nodiscard]] static Scope* innermost() noexcept { return last_begun; }

  static void begin(Scope& scope) noexcept {
    scope.outer_ = last_begun;
    last_begun = &scope;
  }
  /// Removes a scope. A scope of another thread cannot be removed: that is reported as misuse.
  /// @param what  the kind of scope, for the message
  /// @returns the next inner scope, null for the innermost one
  TARN_ALWAYS_INLINE static Scope* end(Scope& scope, char const* what) noexcept {
    if (last_begun != &scope) [[unlikely]]
      return end_out_of_order(scope, what);
    last_begun = scope.outer_;
    return nullptr;
  }

 private:
  TARN_NOINLINE static Scope* end_out_of_order(Scope& scope, char const* what) noexcept {
    for (Scope* inner = last_begun; inner != nullptr; inner = inner->outer_) {
      if (inner->outer_ != &scope) continue;
      inner->outer_ = scope.outer_;
      return inner;
    }
    message<160> text;
    text.add(what).add(" ended on a thread that did not begin it; end it on the thread that began it");
    report_misuse(misuse(misuse_kind::wrong_thread, &scope, text.view()));
    return nullptr;
  }

  static inline thread_local constinit Scope* last_begun = nullptr;
};

}  // namespace tarn::detail

namespace tarn {

/// Sets the place for all calls in its scope, unless an enclosing scope has set one. Declare one to attribute every allocation
/// that follows in the scope, including those of owners, to its line: `tarn::location_scope const here;`. A tag given with an
/// inner place is kept unless an outer one has a tag. Scopes may end in any order, each on the thread that began it.
class location_scope {
 public:
  explicit location_scope(attribution from = attribution::current()) noexcept : from_(from) {
    chain::begin(*this);
  }
  location_scope(location_scope const&) = delete;
  location_scope& operator=(location_scope const&) = delete;
  ~location_scope() { (void)chain::end(*this, "location_scope"); }

  /// Returns the location set by the outermost scope, or an empty one if there is none. O(scopes).
  [[nodiscard]] static source_location current() noexcept {
    location_scope const* const p = chain::innermost();
    if (p == nullptr) return {};
    if (p->outer_ != nullptr) [[unlikely]]
      return p->of_several().where;
    return p->from_.where;
  }
  /// Returns the tag number of current(); 0: none.
  [[nodiscard]] static std::uint32_t current_tag_id() noexcept {
    location_scope const* const p = chain::innermost();
    if (p == nullptr) return 0;
    if (p->outer_ != nullptr) [[unlikely]]
      return p->of_several().tag_id;
    return p->from_.tag_id;
  }

 private:
  using chain = detail::scope_chain<location_scope>;
  friend chain;

  [[nodiscard]] TARN_NOINLINE attribution of_several() const noexcept {
    location_scope const* p = this;
    std::uint32_t tag_id = from_.tag_id;
    while (p->outer_ != nullptr) {
      p = p->outer_;
      if (p->from_.tag_id != 0) tag_id = p->from_.tag_id;
    }
    attribution found = p->from_;
    found.tag_id = tag_id;
    return found;
  }

  attribution from_;
  location_scope* outer_ = nullptr;
};

namespace detail {
/// For calls that a container or an algorithm makes: its line says nothing to the user. That of a location_scope around it does.
[[nodiscard]] inline attribution unknown_place() noexcept {
  return location_scope::current();
}
}  // namespace detail

/// Replaces location_scope where no layer records places; does nothing.
struct no_location_scope {
  explicit constexpr no_location_scope(attribution const&) noexcept {}
};

}  // namespace tarn

namespace tarn {

template <class Layer>
class shared_resource;

/// Declared by a layer that routes calls to several resources below it, with all of them:
/// `using routes = tarn::routes_to<Upstream, Other>;`. A call that such a layer does not define is not forwarded, since one of
/// the resources would answer for all. The layer must define each call of detail::routed_calls that a resource below it
/// offers; otherwise it does not compile.
template <class... Resources>
struct routes_to {};

namespace detail {

template <class T>
inline constexpr bool is_shared = false;
template <class Layer>
inline constexpr bool is_shared<shared_resource<Layer>> = true;

template <class Layer>
concept stands_on_another = requires(Layer& layer) { layer.upstream(); };

/// A layer with several resources below it.
template <class Layer>
concept routes_calls = requires { typename Layer::routes; };

/// Returns the layer behind a handle; a source is a plain value and is its own layer.
template <class Resource>
constexpr auto& layer_of(Resource& resource) noexcept {
  if constexpr (is_shared<std::remove_const_t<Resource>>) {
    return resource.layer();
  } else {
    return resource;
  }
}

/// Tries `call` with each layer from the top down; returns true if one accepts it.
template <class Layer, class Call>
constexpr bool can_reach() noexcept {
  if constexpr (std::invocable<Call, Layer&>) {
    return true;
  } else if constexpr (stands_on_another<Layer> && !routes_calls<Layer>) {
    return can_reach<std::remove_reference_t<decltype(layer_of(std::declval<Layer&>().upstream()))>, Call>();
  } else {
    return false;
  }
}
template <class Layer, class Call>
constexpr decltype(auto) reach(Layer& layer, Call const& call) {
  if constexpr (std::invocable<Call const&, Layer&>) {
    return call(layer);
  } else {
    return reach(layer_of(layer.upstream()), call);
  }
}

template <class Layer>
constexpr bool records_places() noexcept;
template <class... Resources>
constexpr bool any_records_places(routes_to<Resources...>) noexcept {
  return (records_places<std::remove_reference_t<decltype(layer_of(std::declval<Resources&>()))>>() || ...);
}
/// Returns true if this layer or one below it records the places of calls.
template <class Layer>
constexpr bool records_places() noexcept {
  if constexpr (requires { requires Layer::records_places; }) {
    return true;
  } else if constexpr (routes_calls<Layer>) {
    return any_records_places(typename Layer::routes{});
  } else if constexpr (stands_on_another<Layer>) {
    return records_places<std::remove_reference_t<decltype(layer_of(std::declval<Layer&>().upstream()))>>();
  } else {
    return false;
  }
}
/// Sets the place of the user's call, if a layer records it.
template <class Resource>
using location_of_call = std::conditional_t<
    records_places<std::remove_reference_t<decltype(layer_of(std::declval<Resource&>()))>>(), location_scope,
    no_location_scope>;

/// Runs an owner's part of the user's call: layers that record the places of calls record that one, and errors name it.
template <class Resource, class Call>
TARN_ALWAYS_INLINE decltype(auto) called_from(attribution const& from, Call const& call) {
  [[maybe_unused]] location_of_call<Resource> const here(from);
  return called_from(from.where, call);
}

/// Whether the device of a page source has pages; for nearest().
struct has_pages_call {
  template <class Layer>
  constexpr auto operator()(Layer& layer) const noexcept -> decltype(static_cast<bool>(layer.has_pages())) {
    return layer.has_pages();
  }
};

/// Returns true if a layer, or everything below it, allocates blocks; false over a bare page source. Not a member of
/// shared_resource: EDG (nvcc) does not find a member in the constraint of a member template.
template <class Layer>
constexpr bool allocates() noexcept {
  if constexpr (has_allocate<Layer>) {
    return true;
  } else if constexpr (stands_on_another<Layer>) {
    return resource<typename Layer::upstream_type>;
  } else {
    return false;
  }
}

}  // namespace detail

/// True if `call` accepts the resource's layer or one below it.
template <class Resource, class Call>
inline constexpr bool reachable =
    detail::can_reach<std::remove_reference_t<decltype(detail::layer_of(std::declval<Resource&>()))>, Call>();

/// Calls the first layer, from the top down, that accepts the call, for example the pool under a stack of policies. Give the
/// lambda a trailing return type, so that acceptance can be tested: `nearest(memory,
/// [](auto& layer) -> decltype(layer.trim(0)) { return layer.trim(0); })`.
template <class Resource, class Call>
  requires reachable<Resource, Call>
decltype(auto) nearest(Resource& resource, Call const& call) {
  return detail::reach(detail::layer_of(resource), call);
}

}  // namespace tarn

namespace tarn::detail {

/// Whether the device of a source has pages: the answer of the lowest layer that defines has_pages(), true if none does.
template <class Source>
[[nodiscard]] constexpr bool has_pages(Source const& source) noexcept {
  if constexpr (reachable<Source const, has_pages_call>) {
    return nearest(source, has_pages_call{});
  } else {
    return true;
  }
}

/// The error of a call that needs pages. @param call  what was called, and why it is refused; static storage
[[nodiscard]] constexpr status without_pages(char const* call) noexcept {
  return unsupported_call(call);
}

/// Throws cuda_error of kind `unsupported` if the device has no pages.
template <class Source>
void require_pages(Source const& source, char const* call) {
  if (!has_pages(source)) [[unlikely]]
    throw cuda_error(without_pages(call), source.driver().device().value, source_location{});
}

inline constexpr char const* page_call_refused =
    "a call of pages (no virtual memory management on this device; use cuda_malloc, or a pool over the "
    "pages)";
inline constexpr char const* no_pages_nor_blocks =
    "page_granularity (no virtual memory management on this device; use cuda_malloc | pooled)";
inline constexpr char const* layer_keeps_blocks =
    "pooled (no virtual memory management on this device, and a layer below the pool passes no plain blocks "
    "on; remove that "
    "layer, or add allocate_plain and deallocate_plain to it)";
inline constexpr char const* sharing_refused =
    "accessible_from (no virtual memory management on this device; remove it: copies do not need it)";
inline constexpr char const* sleep_refused =
    "sleep (no virtual memory management on this device: the pool could not keep its addresses; use "
    "empty_cache)";

inline constexpr char const* segments_refused =
    "segments_of or page_pin (the pool's memory is cudaMalloc blocks, since the device has no virtual memory "
    "management or a memory "
    "tool is attached: there are no handles to list)";

}  // namespace tarn::detail
#if TARN_HAS_CUDA
#endif

namespace tarn {

/// A page source on a driver's virtual memory management. A small value: copies are the same source. Safe from any thread as
/// long as two threads do not map or unmap the same range.
///
/// On a device without virtual memory management (many virtual GPUs), it has no pages but plain blocks, and a pool over it grows by
/// those: allocator_backend(pool) returns "cudaMalloc". The calls of pages throw cuda_error of kind `unsupported` there.
///
/// Other processes can import the memory (export_block) by a file descriptor, which costs nothing to ask for: create takes 11.1 us
/// with the type and 11.7 us without, map 28.4 and 29.6 (H200). The type cannot be changed once the pages are created.
///
/// Costs on an H200, per handle of any size: create 10 µs, map 26 µs, unmap 17 µs, destroy 15 µs (338 µs for 1 GiB). None of
/// them waits for running kernels.
template <page_driver D>
class basic_pages {
 public:
  using driver_type = D;
  using properties = property_set<device_accessible>;

  /// On the driver's default device; for CUDA the calling thread's current one.
  /// @throws cuda_error  of kind `no_device` if there is no device; of kind `unsupported` if the device has no virtual memory
  ///                     management and the driver has no plain blocks
  basic_pages()
    requires std::default_initializable<D>
      : basic_pages(D{}) {}
  /// On one device. @param wanted  see handle_type() @throws as above
  explicit basic_pages(device_id device,
                       allocation_handle_type wanted = allocation_handle_type::posix_file_descriptor)
    requires std::constructible_from<D, device_id>
      : basic_pages(D(device), wanted) {}
  /// On a given driver. @param wanted  see handle_type() @throws as above
  explicit basic_pages(D driver,
                       allocation_handle_type wanted = allocation_handle_type::posix_file_descriptor)
      : driver_(std::move(driver)) {
    status s = driver_.page_granularity(granularity_);
    if (s.kind == failure::unsupported) {
      granularity_ = 0;
      if constexpr (detail::plain_block_driver<D>) return;
      s.call = detail::no_pages_nor_blocks;
    }
    if (!s.ok()) throw cuda_error(s, driver_.device().value, source_location{});
    type_ = available(wanted);
  }

  /// Whether the device has virtual memory management. If not, allocate_plain() is what the source offers.
  [[nodiscard]] bool has_pages() const noexcept { return granularity_ != 0; }
  /// Bytes; every size and offset below is a multiple of it. 2 MiB if there are no pages.
  [[nodiscard]] std::size_t granularity() const noexcept { return has_pages() ? granularity_ : 2_MiB; }

  /// How other processes can import the memory: as it was wanted if the device can, else by a file descriptor if it can, else none.
  [[nodiscard]] allocation_handle_type handle_type() const noexcept { return type_; }

  /// Reserves unmapped addresses, aligned to the granularity.
  /// @throws out_of_memory  the address space has no gap of that size
  /// @throws cuda_error
  [[nodiscard]] void* reserve(std::size_t bytes) {
    detail::require_pages(*this, detail::page_call_refused);
    void* p = nullptr;
    status const s =
        bytes <= max_request_bytes ? driver_.reserve_range(bytes, granularity_, p) : detail::too_large();
    if (!s.ok()) detail::refuse(driver_, s, stream_ref{}, bytes, granularity_);
    return p;
  }
  /// Releases the whole range of one reserve(); nothing is mapped in it any more.
  void unreserve(void* p, std::size_t bytes) noexcept { (void)driver_.release_range(p, bytes); }

  /// Creates one handle of physical memory. The only call here that takes memory from the device.
  /// @throws out_of_memory, cuda_error; nothing has changed
  [[nodiscard]] page_handle create(std::size_t bytes) {
    detail::require_pages(*this, detail::page_call_refused);
    page_handle handle{};
    status const s = bytes <= max_request_bytes ? create_with_type(bytes, handle) : detail::too_large();
    if (!s.ok()) detail::refuse(driver_, s, stream_ref{}, bytes, granularity_);
    return handle;
  }
  /// Destroys a handle, which is no longer mapped anywhere.
  void destroy(page_handle handle, std::size_t) noexcept { (void)driver_.destroy_pages(handle); }

  /// Maps the whole handle at `p`, readable and writable by the device.
  /// @throws out_of_memory  no memory for page tables
  /// @throws cuda_error     nothing is mapped
  void map(void* p, std::size_t bytes, page_handle handle) {
    detail::require_pages(*this, detail::page_call_refused);
    status const s = driver_.map_pages(p, bytes, handle);
    if (!s.ok()) detail::refuse(driver_, s, stream_ref{}, bytes, granularity_);
  }
  /// Undoes exactly one map(). The handle keeps its contents; no work may still use the range.
  void unmap(void* p, std::size_t bytes) noexcept { (void)driver_.unmap_pages(p, bytes); }

  /// Allocates one block that is not a page, in place of create() and map(): for a pool on a device without pages, or that a tool
  /// watches.
  /// @throws out_of_memory, cuda_error; nothing has changed
  [[nodiscard]] void* allocate_plain(std::size_t bytes)
    requires detail::plain_block_driver<D>
  {
    return detail::take_plain_block(driver_, bytes);
  }
  /// Frees such a block; no work uses it any more.
  void deallocate_plain(void* p, std::size_t) noexcept
    requires detail::plain_block_driver<D>
  {
    detail::give_plain_block(driver_, p);
  }

  /// Where a pool's memory comes from, see allocator_backend().
  [[nodiscard]] char const* backend() const noexcept { return has_pages() ? "pages" : "cudaMalloc"; }
  [[nodiscard]] D const& driver() const noexcept { return driver_; }
  [[nodiscard]] device_id device() const noexcept { return driver_.device(); }

  /// Equal if on the same device, so handles of one may be mapped by the other.
  friend bool operator==(basic_pages const& a, basic_pages const& b) noexcept {
    return a.driver_ == b.driver_;
  }

 private:
  [[nodiscard]] status create_with_type(std::size_t bytes, page_handle& handle) const noexcept {
    if constexpr (sharing_driver<D>) {
      return driver_.create_pages(bytes, type_, handle);
    } else {
      return driver_.create_pages(bytes, handle);
    }
  }
  /// Where the question fails, none: the pages work without.
  [[nodiscard]] allocation_handle_type available(allocation_handle_type wanted) const noexcept {
    if constexpr (sharing_driver<D>) {
      bool can = false;
      if (wanted == allocation_handle_type::none) return wanted;
      if (driver_.can_export_pages(wanted, can).ok() && can) return wanted;
      if (wanted == allocation_handle_type::fabric)
        return available(allocation_handle_type::posix_file_descriptor);
    }
    return allocation_handle_type::none;
  }

  D driver_;
  allocation_handle_type type_ = allocation_handle_type::none;
  std::size_t granularity_ = 0;  ///< 0: the device has no pages
};

#if TARN_HAS_CUDA
using cuda_pages = basic_pages<cuda_driver>;
static_assert(page_source<cuda_pages>);
#endif

}  // namespace tarn
// ---- tarn/source/host_memory.hpp
// host_memory: plain host memory from operator new, so that pools and policies run without a device.

#include <cstddef>
#include <new>

namespace tarn {

/// Aligned operator new and operator delete.
struct host_calls {
  using properties = property_set<host_accessible>;
  static constexpr char const* backend = "operator new";

  /// More than a process can address: malloc's 47 bits. Refused without a call, since sanitizers abort the program on such a
  /// request.
  static constexpr std::size_t address_space = 128_TiB;

  static status take(no_driver const&, std::size_t bytes, std::size_t alignment, void*& p) noexcept {
    if (bytes < address_space) p = ::operator new(bytes, std::align_val_t{alignment}, std::nothrow);
    if (p != nullptr) return {};
    return {failure::out_of_memory, 0, "std::bad_alloc", "operator new"};
  }
  static status give(no_driver const&, void* p, std::size_t, std::size_t alignment) noexcept {
    ::operator delete(p, std::align_val_t{alignment});
    return {};
  }
};

/// Pageable host memory with any alignment up to max_alignment. It has no streams: all work counts as already done. If a device
/// copies from or to it, wait for the copy before freeing.
using host_memory = block_source<no_driver, host_calls>;

static_assert(resource<host_memory>);

}  // namespace tarn
// ---- tarn/source/managed.hpp
// managed: memory that migrates between host and devices on access.

#if TARN_HAS_CUDA
#endif

namespace tarn {

/// cudaMallocManaged and cudaFree.
struct managed_calls {
  using properties = property_set<device_accessible, host_accessible>;
  static constexpr char const* backend = "cudaMallocManaged";
  template <block_driver D>
  static status take(D const& driver, std::size_t bytes, std::size_t, void*& p) noexcept {
    return driver.malloc_managed(bytes, p);
  }
  template <block_driver D>
  static status give(D const& driver, void* p, std::size_t, std::size_t) noexcept {
    return driver.free_managed(p);
  }
};

/// Managed memory, attached to all streams. May exceed the device's memory: a request is refused only if neither host nor
/// device can back it. If the device cannot fault pages in, the host must not touch it while kernels run.
template <block_driver D>
using basic_managed = block_source<D, managed_calls>;

#if TARN_HAS_CUDA
using managed = basic_managed<cuda_driver>;
static_assert(resource<managed>);
#endif

}  // namespace tarn
// ---- tarn/source/pinned_host.hpp
// pinned_host: page-locked host memory, which copies to and from devices at full speed and asynchronously.

#if TARN_HAS_CUDA
#endif

namespace tarn {

/// cudaHostAlloc and cudaFreeHost.
struct pinned_calls {
  using properties = property_set<device_accessible, host_accessible>;
  static constexpr char const* backend = "cudaHostAlloc";
  template <block_driver D>
  static status take(D const& driver, std::size_t bytes, std::size_t, void*& p) noexcept {
    return driver.malloc_pinned(bytes, p);  // whole pages
  }
  template <block_driver D>
  static status give(D const& driver, void* p, std::size_t, std::size_t) noexcept {
    return driver.free_pinned(p);
  }
};

/// Pinned host memory, portable: pinned for every device. About 460 ms per GiB to allocate, so pool it. It cannot be swapped
/// out: take no more than the machine can spare. Aligned to the host's page, 4 KiB.
///
/// In a pool over it, allocate(stream) returns memory for work of that stream: copies enqueued earlier may still use it. Memory
/// that the host itself will write must come from allocate_sync(), which returns nothing that a stream still uses;
/// pinned_buffer and the streamed batches do so.
template <block_driver D>
using basic_pinned = block_source<D, pinned_calls>;

#if TARN_HAS_CUDA
using pinned_host = basic_pinned<cuda_driver>;
static_assert(resource<pinned_host>);
#endif

}  // namespace tarn

// ---- tarn/policy/check_all.hpp
// check_all() and report_leaks() of the checked layer of a stack, whatever policies are above it.

#include <cstddef>

namespace tarn {

/// Verifies all blocks: checked_layer::check_all() (policy/checked.hpp). Returns the number of findings. @throws std::bad_alloc
template <class Resource>
std::size_t check_all(Resource const& memory) {
  auto const call = [](auto& layer) -> decltype(layer.check_all()) { return layer.check_all(); };
  static_assert(reachable<Resource, decltype(call)>,
                "tarn: this needs checked memory; add: | tarn::checked{}");
  return nearest(memory, call);
}
/// Reports live blocks: checked_layer::report_leaks() (policy/checked.hpp). Returns their number. @throws std::bad_alloc
template <class Resource>
std::size_t report_leaks(Resource const& memory) {
  auto const call = [](auto& layer) -> decltype(layer.report_leaks()) { return layer.report_leaks(); };
  static_assert(reachable<Resource, decltype(call)>,
                "tarn: this needs checked memory; add: | tarn::checked{}");
  return nearest(memory, call);
}

}  // namespace tarn
// ---- tarn/policy/checked.hpp
// checked: reports every misuse of a block, with the block's history.
//
// Over 400 lines: one short function for each step of a call and for each kind of finding.

#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string_view>
#include <utility>

// ---- tarn/policy/block_history.hpp
// The history of each block: where it was allocated and freed, and its present state.
//
//   live -> quarantined -> gone -> forgotten, or live again if the address is reused

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string_view>

// ---- tarn/core/address_map.hpp
// A hash map from addresses to values: open addressing, linear probing, no tombstones. A value equal to Value{} marks
// an empty slot.

#include <cstddef>
#include <cstdint>
#include <new>

// ---- tarn/core/sequence.hpp
// sequence<T>: a growable array with the few operations of std::vector that tarn needs. Each std::vector<X> costs a compiler
// 5 ms, each sequence<X> 1 ms, and every include of tarn has a dozen of them.

#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

namespace tarn::detail {

/// Contiguous elements in order of insertion. Growth moves them. Move-only.
template <class T>
class sequence {
 public:
  sequence() noexcept = default;
  sequence(sequence&& other) noexcept { swap(other); }
  sequence& operator=(sequence&& other) noexcept {
    sequence taken(static_cast<sequence&&>(other));
    swap(taken);
    return *this;
  }
  ~sequence() {
    static_assert(std::is_nothrow_move_constructible_v<T> && alignof(T) <= alignof(std::max_align_t));
    clear();
    ::operator delete(items_);
  }

  /// Reserves room for `count` elements in total. @throws std::bad_alloc, nothing has changed
  void reserve(std::size_t count) {
    if (count <= capacity_) return;
    if (count > most_elements) throw std::bad_alloc();
    std::size_t most = capacity_ * 2 > count ? capacity_ * 2 : count;
    if (most > most_elements) most = most_elements;
    std::size_t const bytes = most * element_bytes;
    T* const larger = static_cast<T*>(::operator new(bytes));
    for (std::size_t i = 0; i < size_; ++i) {
      ::new (static_cast<void*>(larger + i)) T(static_cast<T&&>(items_[i]));
      items_[i].~T();
    }
    ::operator delete(items_);
    items_ = larger;
    capacity_ = most;
  }
  /// Appends value-initialised elements until size() is `count`, which must be at least size(). @throws std::bad_alloc,
  /// nothing has changed
  void resize(std::size_t count) {
    reserve(count);
    while (size_ < count) ::new (static_cast<void*>(items_ + size_++)) T{};
  }
  /// Appends `value` by copy or move. `value` must not be an element of this sequence.
  /// @throws std::bad_alloc  no room was reserved; nothing has changed, including `value`
  template <class Value = T>
  void push_back(Value&& value) {
    if (size_ == capacity_) reserve(size_ + 1);
    ::new (static_cast<void*>(items_ + size_)) T(static_cast<Value&&>(value));
    ++size_;
  }
  void pop_back() noexcept { items_[--size_].~T(); }
  /// Destroys the elements; keeps the capacity.
  void clear() noexcept {
    while (size_ != 0) pop_back();
  }
  /// Removes one element by moving the last one into its place. O(1).
  void erase_unordered(std::size_t index) noexcept {
    if (index + 1 != size_) items_[index] = static_cast<T&&>(items_[size_ - 1]);
    pop_back();
  }
  void swap(sequence& other) noexcept {
    std::swap(items_, other.items_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
  }

  [[nodiscard]] T* begin() noexcept { return items_; }
  [[nodiscard]] T* end() noexcept { return items_ + size_; }
  [[nodiscard]] T const* begin() const noexcept { return items_; }
  [[nodiscard]] T const* end() const noexcept { return items_ + size_; }
  [[nodiscard]] T& operator[](std::size_t i) noexcept { return items_[i]; }
  [[nodiscard]] T const& operator[](std::size_t i) const noexcept { return items_[i]; }
  [[nodiscard]] T& front() noexcept { return items_[0]; }
  [[nodiscard]] T const& front() const noexcept { return items_[0]; }
  [[nodiscard]] T& back() noexcept { return items_[size_ - 1]; }
  [[nodiscard]] T const& back() const noexcept { return items_[size_ - 1]; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }

 private:
  static constexpr std::size_t element_bytes =
      sizeof(T);  // NOLINT(bugprone-sizeof-expression): T may be a pointer
  /// Doubling the bytes must not overflow.
  static constexpr std::size_t most_elements = ~std::size_t{0} / 2 / element_bytes;

  T* items_ = nullptr;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

}  // namespace tarn::detail

namespace tarn::detail {

template <class Value>
class address_map {
 public:
  /// Reserves room so that `count` entries can be added without allocating. @throws std::bad_alloc, nothing has changed
  void make_room(std::size_t count) {
    if (count > ~std::size_t{0} / 8 - size_) throw std::bad_alloc();
    if ((size_ + count) * 2 <= entries_.size()) return;
    address_map larger;
    std::size_t capacity = entries_.empty() ? 64 : entries_.size();
    while ((size_ + count) * 2 > capacity) capacity *= 2;
    for (std::size_t c = capacity; c != 1; c /= 2) --larger.shift_;
    larger.entries_.resize(capacity);
    for (entry const& e : entries_) {
      if (!(e.value == Value{})) larger.insert(e.key, e.value);
    }
    entries_.swap(larger.entries_);
    shift_ = larger.shift_;
  }

  /// Inserts a key or replaces its value, which must not be Value{}. make_room() must have been called. O(1).
  void insert(std::uintptr_t key, Value value) noexcept {
    std::size_t i = home(key);
    while (!is_vacant(i) && entries_[i].key != key) i = after(i);
    if (is_vacant(i)) ++size_;
    entries_[i] = {key, value};
  }

  /// Returns the value of the key, or Value{} if it is absent. O(1).
  [[nodiscard]] Value find(std::uintptr_t key) const noexcept {
    if (size_ == 0) return Value{};
    for (std::size_t i = home(key); !is_vacant(i); i = after(i)) {
      if (entries_[i].key == key) return entries_[i].value;
    }
    return Value{};
  }

  /// Removes the key and returns its value, or Value{} if it is absent. O(1).
  Value erase(std::uintptr_t key) noexcept {
    if (size_ == 0) return Value{};
    std::size_t i = home(key);
    while (entries_[i].key != key || is_vacant(i)) {
      if (is_vacant(i)) return Value{};
      i = after(i);
    }
    Value const value = entries_[i].value;
    // Move later entries of the probe sequence back, so that no lookup stops too early.
    for (std::size_t j = after(i); !is_vacant(j); j = after(j)) {
      std::size_t const wanted = home(entries_[j].key);
      bool const may_move = i <= j ? (wanted <= i || wanted > j) : (wanted <= i && wanted > j);
      if (may_move) {
        entries_[i] = entries_[j];
        i = j;
      }
    }
    entries_[i] = {};
    --size_;
    return value;
  }

  /// Calls `call(key, value)` for each entry, in unspecified order; `call` must not change the map. O(capacity).
  template <class Call>
  void for_each(Call const& call) const {
    for (entry const& e : entries_) {
      if (!(e.value == Value{})) call(e.key, e.value);
    }
  }

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::size_t host_bytes() const noexcept { return entries_.capacity() * sizeof(entry); }

 private:
  struct entry {
    std::uintptr_t key = 0;
    Value value{};
  };
  [[nodiscard]] bool is_vacant(std::size_t i) const noexcept { return entries_[i].value == Value{}; }
  /// The first slot of a key's probe sequence: the upper bits of its product with 2^64 / golden ratio, which spreads close and
  /// distant keys equally well (Knuth, The Art of Computer Programming, volume 3, 6.4).
  [[nodiscard]] std::size_t home(std::uintptr_t key) const noexcept {
    return static_cast<std::size_t>((std::uint64_t{key} * 0x9E3779B97F4A7C15U) >> shift_);
  }
  [[nodiscard]] std::size_t after(std::size_t i) const noexcept { return (i + 1) & (entries_.size() - 1); }

  sequence<entry> entries_;
  std::size_t size_ = 0;
  unsigned shift_ = 64;  ///< 64 minus log2(capacity)
};

}  // namespace tarn::detail

namespace tarn::detail {

/// One call that concerned a block.
struct block_event {
  source_location where;
  std::uint64_t call = 0;  ///< in the count of its resource's calls, from 1; 0 if it has not happened
  stream_id stream = 0;
  std::uint64_t thread = 0;
};

enum class block_state : std::uint8_t { unused, live, freed, quarantined, gone };

struct block_record {
  void* p = nullptr;
  std::size_t bytes = 0;
  std::size_t alignment = 0;
  block_event allocated;
  block_event freed;
  std::uint32_t previous = 0;  ///< neighbours in the list of its state; index + 1
  std::uint32_t next = 0;
  int device = 0;
  block_state state = block_state::unused;
  bool fenced = false;
  bool used_elsewhere = false;  ///< record_stream() named another stream
};

/// Records by address. Allocates only in make_room(), so that nothing can fail at deallocation. The caller locks.
class block_history {
 public:
  /// Sets how many blocks are remembered after they are gone.
  void remember(std::size_t blocks) noexcept { most_gone_ = blocks; }

  /// Makes room for one block, until begin() or give_up_room(). @throws std::bad_alloc, nothing has changed
  void make_room() {
    index_.make_room(promised_ + 1);
    records_.reserve(records_.size() + promised_ + 1);
    ++promised_;
  }
  void give_up_room() noexcept { --promised_; }

  void begin(block_record const& b) noexcept {
    --promised_;
    block_record* known = find(b.p);
    if (known != nullptr && known->state == block_state::gone) {
      drop_from(gone_, known);
    } else if (known == nullptr) {
      known = fresh();
      index_.insert(key(b.p), index_of(known));
    }
    *known = b;
    known->state = block_state::live;
    ++live_;
  }
  /// The user has freed the block.
  void end(block_record& b, block_event const& freed) noexcept {
    b.state = block_state::freed;
    b.freed = freed;
    --live_;
  }
  void quarantine(block_record& b) noexcept {
    b.state = block_state::quarantined;
    append(waiting_, b);
    waiting_bytes_ += b.bytes;
  }
  /// The memory goes back to the upstream; the record stays for a while.
  void leave(block_record& b) noexcept {
    if (b.state == block_state::quarantined) {
      waiting_bytes_ -= b.bytes;
      drop_from(waiting_, &b);
    }
    b.state = block_state::gone;
    append(gone_, b);
    if (gone_.count <= most_gone_) return;
    block_record& forgotten = records_[gone_.first - 1];
    drop_from(gone_, &forgotten);
    (void)index_.erase(key(forgotten.p));
    forgotten = block_record{};
    forgotten.next = spare_;
    spare_ = index_of(&forgotten);
  }

  [[nodiscard]] block_record* find(void const* p) noexcept {
    std::uint32_t const i = index_.find(key(p));
    return i != 0 ? &records_[i - 1] : nullptr;
  }
  [[nodiscard]] block_record const* find(void const* p) const noexcept {
    std::uint32_t const i = index_.find(key(p));
    return i != 0 ? &records_[i - 1] : nullptr;
  }
  /// The block that has been in quarantine longest. Requires that there is one.
  [[nodiscard]] block_record const& oldest() const noexcept { return records_[waiting_.first - 1]; }
  [[nodiscard]] std::size_t quarantined() const noexcept { return waiting_.count; }
  [[nodiscard]] std::size_t quarantined_bytes() const noexcept { return waiting_bytes_; }
  [[nodiscard]] std::size_t live() const noexcept { return live_; }

  template <class Visit>
  void for_each(Visit const& visit) const {
    for (block_record const& b : records_) {
      if (b.state != block_state::unused) visit(b);
    }
  }

 private:
  /// First in, first out.
  struct queue {
    std::uint32_t first = 0;
    std::uint32_t last = 0;
    std::size_t count = 0;
  };
  static std::uintptr_t key(void const* p) noexcept { return reinterpret_cast<std::uintptr_t>(p); }
  [[nodiscard]] std::uint32_t index_of(block_record const* b) const noexcept {
    return static_cast<std::uint32_t>(b - records_.begin()) + 1;
  }
  block_record* fresh() noexcept {
    if (spare_ == 0) {
      records_.push_back(block_record{});
      return &records_.back();
    }
    block_record& b = records_[spare_ - 1];
    spare_ = b.next;
    return &b;
  }
  void append(queue& q, block_record& b) noexcept {
    std::uint32_t const i = index_of(&b);
    b.previous = q.last;
    b.next = 0;
    if (q.last == 0) {
      q.first = i;
    } else {
      records_[q.last - 1].next = i;
    }
    q.last = i;
    ++q.count;
  }
  void drop_from(queue& q, block_record const* b) noexcept {
    (b->previous != 0 ? records_[b->previous - 1].next : q.first) = b->next;
    (b->next != 0 ? records_[b->next - 1].previous : q.last) = b->previous;
    --q.count;
  }

  sequence<block_record> records_;
  address_map<std::uint32_t> index_;
  std::uint32_t spare_ = 0;
  queue waiting_;
  queue gone_;
  std::size_t waiting_bytes_ = 0;
  std::size_t live_ = 0;
  std::size_t promised_ = 0;
  std::size_t most_gone_ = 0;
};

/// As long as the texts of tarn::misuse.
using history_text = message<480>;

/// "solver.cpp:42 (step), call 7, stream 3, thread 1". Paths and names are shortened: the text is bounded.
inline void add_event(history_text& text, block_event const& e) noexcept {
  std::string_view file = e.where.file;
  if (file.empty()) {
    text.add("at an unknown location");
  } else {
    if (std::size_t const cut = file.find_last_of('/'); cut != std::string_view::npos)
      file.remove_prefix(cut + 1);
    text.add(file).add(":").add_number(e.where.line);
    text.add(" (").add(std::string_view(e.where.function).substr(0, 40)).add(")");
  }
  text.add(", call ").add_number(e.call).add(", stream ").add_number(e.stream);
  text.add(", thread ").add_number(e.thread);
}

/// The event and the recorded history of a block.
[[nodiscard]] inline history_text history_of(block_record const& b, std::string_view what,
                                             std::uint64_t number) noexcept {
  history_text text;
  text.add("block ")
      .add_hex(reinterpret_cast<std::uintptr_t>(b.p))
      .add(" of ")
      .add_number(std::uint64_t{b.bytes});
  text.add(" bytes ").add(what).add_number(number).add("; allocated: ");
  add_event(text, b.allocated);
  if (b.freed.call != 0) {
    text.add("; freed: ");
    add_event(text, b.freed);
  }
  return text;
}

/// Reports blocks as leaks; with the default handler all are printed before the program ends.
inline void report_leaked(sequence<block_record> const& leaks) noexcept {
  for (block_record const& b : leaks) {
    misuse const leak(misuse_kind::leak, b.p,
                      history_of(b, "was not freed; number of leaks: ", leaks.size()).view());
    report_misuse_of_several(leak, &b == leaks.end() - 1);
  }
}

/// The checked resources of the process, to find the owner of a foreign pointer.
class checked_resources {
 public:
  struct member {
    void* layer = nullptr;
    bool (*find)(void* layer, void const* p, block_record& out) noexcept = nullptr;
    /// Adds the live blocks at the end of the process; null: not asked for. @throws std::bad_alloc
    void (*add_leaks)(void* layer, sequence<block_record>& leaks) = nullptr;
    int device = 0;
    member* next = nullptr;
  };
  static void add(member& m) {
    {
      std::lock_guard const guard(mutex());
      m.next = first();
      first() = &m;
    }
    if (m.add_leaks != nullptr) report_at_exit();
  }
  static void remove(member& m) noexcept {
    std::lock_guard const guard(mutex());
    member** at = &first();
    while (*at != &m) at = &(*at)->next;
    *at = m.next;
  }
  /// Finds a live block of another resource.
  static bool find(member const& asking, void const* p, block_record& out) noexcept {
    std::lock_guard const guard(mutex());
    for (member* m = first(); m != nullptr; m = m->next) {
      if (m != &asking && m->find(m->layer, p, out)) return true;
    }
    return false;
  }

 private:
  /// A forked child ends with its parent's live blocks, which it does not report.
  static void report_at_exit() {
    static std::int64_t const process = this_process();
    [[maybe_unused]] static bool const registered = std::atexit([] {
                                                      if (this_process() == process) report_leaks();
                                                    }) == 0;
  }
  static void report_leaks() noexcept {
    (void)std::fflush(stdout);  // the default handler aborts, which would lose it
    sequence<block_record> leaks;
    try {
      std::lock_guard const guard(mutex());
      for (member* m = first(); m != nullptr; m = m->next) {
        if (m->add_leaks != nullptr) m->add_leaks(m->layer, leaks);
      }
    } catch (...) {  // the host has no memory for the list
    }
    report_leaked(leaks);  // without the lock: the handler may use a resource
  }
  /// Resources with static storage may be removed after its destruction: on Linux the destructor of a mutex does nothing.
  static fork_mutex& mutex() noexcept {
    static fork_mutex m;
    return m;
  }
  static member*& first() noexcept {
    static member* m = nullptr;
    return m;
  }
};

}  // namespace tarn::detail
// ---- tarn/policy/compose.hpp
// Composition: `source | policy | policy` and `stack<source, policy, policy>` are the same type, and position is meaning. A
// policy is a small value (its options) with `template <class Upstream> using layer = ...;`. The layer is constructed from
// (Upstream, policy) and defines only what it changes: shared_resource<> passes the rest on. A layer defines once what it does
// around a request and the next layer, see resource_adaptor; around<> is for the shortest policies. A layer that also sends calls
// to a second resource declares both, see tarn::routes_to; it must then define every pool call that one of them provides.

#include <concepts>
#include <type_traits>
#include <utility>

// ---- tarn/core/shared_resource.hpp
// shared_resource<Layer>: the reference-counted handle for every pool and policy. It provides the call names of each generation of
// CUDA libraries, and forwards calls that a layer does not define to the layer below.

#include <atomic>
#include <concepts>
#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

// ---- tarn/core/routed_calls.hpp
// The calls that reach a pool through the layers above it. A layer that routes to several resources defines each of them, or does
// not compile.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <utility>

// ---- tarn/core/sleeping.hpp
// The vocabulary of pools that sleep and are compacted: where contents stay, and what compact() reports. The calls are in
// raii/sleep.hpp and raii/compact.hpp.

#include <cstddef>
#include <cstdint>

namespace tarn {

/// Where the contents of live blocks stay while a pool sleeps.
enum class contents : std::uint8_t {
  in_pinned_memory,  ///< copied at the full rate of the bus; allocating it takes 460 ms/GiB
  in_host_memory,    ///< ordinary memory, copied through two pinned buffers of 32 MiB
  discarded          ///< not kept: indeterminate after waking
};

/// What wake() does with the host memory that held the contents.
enum class after_waking : std::uint8_t {
  free_host_memory,
  keep_host_memory  ///< for the next sleep with the same `contents`, which then allocates nothing
};

/// What compact() reached; bytes. Without the memory of graph_memories.
struct compaction {
  std::size_t released = 0;  ///< physical memory given back
  std::size_t live = 0;  ///< in live blocks, and in runs of small blocks; thread caches in use are included
  std::size_t stretches = 0;  ///< of contiguous live bytes, counted in each handle; 0 of a pool over blocks
  std::size_t reserved =
      0;  ///< held afterwards: `live`, and less than a granule at each end of a stretch; or segments
};

}  // namespace tarn

namespace tarn {

namespace detail {

class waiting_observer;

/// Calls that reach a pool through the layers above it, and all resources below a routing layer.
struct routed_calls {
  struct record_stream {
    template <class L>
    auto operator()(L& l) const -> decltype(static_cast<void>(l.record_stream(static_cast<void*>(nullptr),
                                                                              std::size_t{}, stream_ref{}))) {
    }
  };
  struct trim {
    template <class L>
    auto operator()(L& l) const -> decltype(static_cast<void>(l.trim(std::size_t{}))) {}
  };
  struct owns {
    template <class L>
    auto operator()(L& l) const -> decltype(static_cast<void>(l.owns(static_cast<void const*>(nullptr)))) {}
  };
  struct largest_free_range {
    template <class L>
    auto operator()(L& l) const -> decltype(static_cast<void>(l.largest_free_range())) {}
  };
  struct block_bytes {
    template <class L>
    auto operator()(L& l) const -> decltype(static_cast<void>(l.block_bytes(std::size_t{}, std::size_t{}))) {}
  };
  struct state {
    template <class L>
    auto operator()(L& l) const -> decltype(static_cast<void>(l.state())) {}
  };
  struct reset_peaks {
    template <class L>
    auto operator()(L& l) const -> decltype(static_cast<void>(l.reset_peaks())) {}
  };
  struct reset_totals {
    template <class L>
    auto operator()(L& l) const -> decltype(static_cast<void>(l.reset_totals())) {}
  };
  struct observe_waiting {
    template <class L>
    auto operator()(L& l) const
        -> decltype(static_cast<void>(l.observe_waiting(std::declval<waiting_observer&>()))) {}
  };
  struct end_observation {
    template <class L>
    auto operator()(L& l) const
        -> decltype(static_cast<void>(l.end_observation(std::declval<waiting_observer&>()))) {}
  };
  using clock = std::uint64_t (*)() noexcept;
  struct note_growth {
    template <class L>
    auto operator()(L& l) const -> decltype(static_cast<void>(l.note_growth(std::size_t{}, clock{}))) {}
  };
  struct note_growth_from_now {
    template <class L>
    auto operator()(L& l) const
        -> decltype(static_cast<void>(l.note_growth_from_now(std::size_t{}, clock{}))) {}
  };
  struct sleep {
    template <class L>
    auto operator()(L& l) const -> decltype(static_cast<void>(l.sleep(contents{}))) {}
  };
  struct wake {
    template <class L>
    auto operator()(L& l) const -> decltype(static_cast<void>(l.wake(after_waking{}))) {}
  };
  struct is_asleep {
    template <class L>
    auto operator()(L& l) const -> decltype(static_cast<void>(l.is_asleep())) {}
  };
  struct compact {
    template <class L>
    auto operator()(L& l) const -> decltype(static_cast<void>(l.compact())) {}
  };
  struct any_segment {
    void operator()(memory_segment const&) const noexcept {}
  };
  struct each_segment {
    template <class L>
    auto operator()(L& l) const
        -> decltype(static_cast<void>(l.each_segment(static_cast<void const*>(nullptr), std::size_t{},
                                                     any_segment{}))) {}
  };
  struct pin {
    template <class L>
    auto operator()(L& l) const
        -> decltype(static_cast<void>(l.pin(static_cast<void const*>(nullptr), std::size_t{}))) {}
  };
  struct unpin {
    template <class L>
    auto operator()(L& l) const
        -> decltype(static_cast<void>(l.unpin(static_cast<void const*>(nullptr), std::size_t{}))) {}
  };
  struct any_look {
    template <class... Parts>
    void operator()(Parts&...) const noexcept {}
  };
  struct inspect {
    template <class L>
    auto operator()(L& l) const -> decltype(static_cast<void>(l.inspect(any_look{}))) {}
  };
  struct allocator_backend {
    template <class L>
    auto operator()(L& l) const -> decltype(static_cast<char const*>(l.allocator_backend())) {
      return l.allocator_backend();
    }
  };
  struct new_graph_memory {
    template <class L>
    auto operator()(L& l) const -> decltype(l.new_graph_memory()) {
      return l.new_graph_memory();
    }
  };
};

/// Where memory comes from: the answer of the nearest pool, or of the source below.
struct backend_call {
  template <class L>
  auto operator()(L& l) const -> decltype(static_cast<char const*>(l.allocator_backend())) {
    return l.allocator_backend();
  }
  template <class L>
  auto operator()(L& l) const -> decltype(static_cast<char const*>(l.backend())) {
    return l.backend();
  }
};

/// Whether a call that needs the addresses of a page source reaches the uppermost pool. It must not pass a pool over blocks: that
/// one uses the memory of the pool below it.
template <class Resource, class Call>
constexpr bool keeps_addresses() noexcept {
  using layer = std::remove_reference_t<decltype(layer_of(std::declval<Resource&>()))>;
  if constexpr (std::invocable<Call, layer&>) {
    return true;
  } else if constexpr (stands_on_another<layer> && !routes_calls<layer> &&
                       !requires { requires layer::hands_out_pieces; }) {
    return keeps_addresses<std::remove_reference_t<decltype(std::declval<layer&>().upstream())>, Call>();
  } else {
    return false;
  }
}

/// Returns true if a resource below a routing layer offers a call that the layer does not define.
template <class Layer, class Call, class... Resources>
constexpr bool lacks_route(routes_to<Resources...>) noexcept {
  return (reachable<Resources, Call> || ...) && !std::invocable<Call, Layer&>;
}

/// Reports which calls a routing layer does not define, one static_assert per call.
template <class Layer>
constexpr bool check_routes() {
  if constexpr (routes_calls<Layer>) {
    constexpr typename Layer::routes below;
    static_assert(
        !lacks_route<Layer, routed_calls::record_stream>(below),
        "tarn: this layer routes to several resources but does not route record_stream, so a block could be "
        "reused while another stream uses it; add: void record_stream(void*, size_t bytes, stream_ref)");
    static_assert(!lacks_route<Layer, routed_calls::trim>(below),
                  "tarn: this layer routes to several resources but does not route trim; add: size_t "
                  "trim(size_t keep_bytes)");
    static_assert(!lacks_route<Layer, routed_calls::owns>(below),
                  "tarn: this layer routes to several resources but does not route owns; add: bool owns(void "
                  "const*) const");
    static_assert(
        !lacks_route<Layer, routed_calls::largest_free_range>(below),
        "tarn: this layer routes to several resources but does not route largest_free_range; add: size_t "
        "largest_free_range() const");
    static_assert(!lacks_route<Layer, routed_calls::block_bytes>(below),
                  "tarn: this layer routes to several resources but does not route block_bytes; add: size_t "
                  "block_bytes(size_t bytes, size_t alignment)");
    static_assert(
        !lacks_route<Layer, routed_calls::state>(below),
        "tarn: this layer routes to several resources but does not route state; add: pool_state state()");
    static_assert(!lacks_route<Layer, routed_calls::reset_peaks>(below),
                  "tarn: this layer routes to several resources but does not route reset_peaks; add: void "
                  "reset_peaks()");
    static_assert(!lacks_route<Layer, routed_calls::reset_totals>(below),
                  "tarn: this layer routes to several resources but does not route reset_totals; add: void "
                  "reset_totals()");
    static_assert(!lacks_route<Layer, routed_calls::observe_waiting>(below) &&
                      !lacks_route<Layer, routed_calls::end_observation>(below),
                  "tarn: this layer routes to several resources but does not route observe_waiting and "
                  "end_observation, so active bytes would be counted wrongly; add both, for each resource");
    static_assert(!lacks_route<Layer, routed_calls::note_growth>(below),
                  "tarn: this layer routes to several resources but does not route note_growth; add: void "
                  "note_growth(size_t most, clock)");
    static_assert(
        !lacks_route<Layer, routed_calls::note_growth_from_now>(below),
        "tarn: this layer routes to several resources but does not route note_growth_from_now; add: void "
        "note_growth_from_now(size_t most, clock)");
    static_assert(!lacks_route<Layer, routed_calls::sleep>(below) &&
                      !lacks_route<Layer, routed_calls::wake>(below) &&
                      !lacks_route<Layer, routed_calls::is_asleep>(below),
                  "tarn: this layer routes to several resources but does not route sleep, wake and "
                  "is_asleep; add: size_t "
                  "sleep(contents), size_t wake(after_waking), bool is_asleep() const");
    static_assert(!lacks_route<Layer, routed_calls::allocator_backend>(below),
                  "tarn: this layer routes to several resources but does not route allocator_backend; add: "
                  "char const* allocator_backend() const, of the resource that is asked first");
    static_assert(!lacks_route<Layer, routed_calls::compact>(below),
                  "tarn: this layer routes to several resources but does not route compact; add: compaction "
                  "compact()");
    static_assert(
        !lacks_route<Layer, routed_calls::each_segment>(below) &&
            !lacks_route<Layer, routed_calls::pin>(below) && !lacks_route<Layer, routed_calls::unpin>(below),
        "tarn: this layer routes to several resources but does not route each_segment, pin and unpin, so "
        "pages that are in use elsewhere could be given back; add: void each_segment(void const*, size_t "
        "bytes, f), void pin(void const*, size_t bytes), void unpin(void const*, size_t bytes) noexcept");
    static_assert(
        !lacks_route<Layer, routed_calls::inspect>(below),
        "tarn: this layer routes to several resources but does not route inspect; add: void inspect(look)");
    static_assert(
        !lacks_route<Layer, routed_calls::new_graph_memory>(below),
        "tarn: this layer routes to several resources but does not route new_graph_memory, so a block of "
        "a captured graph could be reused; add: owned<graph_owner> new_graph_memory(), for each");
  }
  return true;
}

}  // namespace detail

}  // namespace tarn

namespace tarn {

namespace detail {

/// Constructs the upstream from all arguments but the last.
template <class Upstream, class Tuple, std::size_t... I>
Upstream make_upstream(Tuple&& arguments, std::index_sequence<I...>) {
  return Upstream(std::get<I>(std::forward<Tuple>(arguments))...);
}

}  // namespace detail

/// A shared handle to one layer and all layers below it. Copies refer to the same resource; the last copy destroys the layer,
/// so a resource lives as long as any owner holds a copy. Copying is one atomic increment; a call is one indirection. A
/// moved-from handle may only be assigned or destroyed.
template <class Layer>
class shared_resource {
 public:
  using layer_type = Layer;
  using driver_type = typename Layer::driver_type;
  using properties = typename Layer::properties;
  static_assert(detail::check_routes<Layer>());

  /// Default-constructs the layer and those below it.
  shared_resource()
    requires std::default_initializable<Layer>
      : block_(new block()) {}

  /// Constructs the layer from its own constructor arguments.
  template <class... Arguments>
    requires(sizeof...(Arguments) > 0 && std::constructible_from<Layer, Arguments...>)
  explicit shared_resource(std::in_place_t, Arguments&&... arguments)
      : block_(new block(std::forward<Arguments>(arguments)...)) {}

  /// Constructs a stack from its parts, source first: stack<cuda_pages, pooled, limited>{cuda_pages{0}, pooled{},
  /// limited{1_GiB}}.
  template <class First, class... Rest>
    requires(detail::stands_on_another<Layer> && !detail::is_shared<std::remove_cvref_t<First>> &&
             !std::same_as<std::remove_cvref_t<First>, std::in_place_t>)
  explicit shared_resource(First&& first, Rest&&... rest) : block_(nullptr) {
    using upstream_type = typename Layer::upstream_type;
    if constexpr (sizeof...(Rest) == 0) {
      static_assert(std::constructible_from<Layer, upstream_type>,
                    "tarn: this layer cannot be made from its upstream alone; pass its policy's options too");
      block_ = new block(upstream_type(std::forward<First>(first)));
    } else {
      auto all = std::forward_as_tuple(std::forward<First>(first), std::forward<Rest>(rest)...);
      constexpr std::size_t below = sizeof...(Rest);
      block_ =
          new block(detail::make_upstream<upstream_type>(std::move(all), std::make_index_sequence<below>{}),
                    std::get<below>(std::move(all)));
    }
  }

  shared_resource(shared_resource const& other) noexcept : block_(other.block_) {
    if (block_ != nullptr) block_->references.fetch_add(1, std::memory_order_relaxed);
  }
  shared_resource(shared_resource&& other) noexcept : block_(std::exchange(other.block_, nullptr)) {}
  shared_resource& operator=(shared_resource other) noexcept {
    std::swap(block_, other.block_);
    return *this;
  }
  ~shared_resource() {
    if (block_ != nullptr && block_->references.fetch_sub(1, std::memory_order_acq_rel) == 1) delete block_;
  }

  // The stream-ordered calls, as tarn and CCCL 3.1 and later name them. Inline, so that the caller's place costs nothing if no
  // layer records it.

  /// Allocates for work on `stream`. Returns null for zero bytes.
  /// @param bytes      any size; the block may be larger
  /// @param alignment  a power of two up to max_alignment
  /// @throws out_of_memory, bad_alignment; nothing has changed
  [[nodiscard]] TARN_ALWAYS_INLINE void* allocate(stream_ref stream, std::size_t bytes,
                                                  std::size_t alignment = default_alignment,
                                                  attribution call = attribution::current())
    requires(detail::allocates<Layer>())
  {
    [[maybe_unused]] detail::location_of_call<shared_resource> const here(call);
    return detail::called_from(call.where, [&]() TARN_ALWAYS_INLINE_LAMBDA {
      if constexpr (has_allocate<Layer>) {
        return block_->layer.allocate(stream, bytes, alignment);
      } else {
        return block_->layer.upstream().allocate(stream, bytes, alignment);
      }
    });
  }
  /// Frees a block; work on `stream` may reuse it at once, other streams once they are ordered after it. Does nothing for
  /// null.
  TARN_ALWAYS_INLINE void deallocate(stream_ref stream, void* p, std::size_t bytes,
                                     std::size_t alignment = default_alignment,
                                     attribution call = attribution::current()) noexcept
    requires(detail::allocates<Layer>())
  {
    [[maybe_unused]] detail::location_of_call<shared_resource> const here(call);
    if constexpr (has_deallocate<Layer>) {
      block_->layer.deallocate(stream, p, bytes, alignment);
    } else {
      static_assert(!has_allocate<Layer>,
                    "tarn: this policy changes allocate but not its counterpart; add: void "
                    "deallocate(stream_ref, void*, size_t bytes, size_t alignment) noexcept");
      block_->layer.upstream().deallocate(stream, p, bytes, alignment);
    }
  }
  /// Allocates memory that every stream may use at once.
  [[nodiscard]] TARN_ALWAYS_INLINE void* allocate_sync(std::size_t bytes,
                                                       std::size_t alignment = default_alignment,
                                                       attribution call = attribution::current())
    requires(detail::allocates<Layer>())
  {
    [[maybe_unused]] detail::location_of_call<shared_resource> const here(call);
    return detail::called_from(call.where, [&]() TARN_ALWAYS_INLINE_LAMBDA {
      if constexpr (has_allocate_sync<Layer>) {
        return block_->layer.allocate_sync(bytes, alignment);
      } else {
        static_assert(!has_allocate<Layer>,
                      "tarn: this policy changes allocate but not allocate_sync; add: void* "
                      "allocate_sync(size_t bytes, size_t alignment)");
        return block_->layer.upstream().allocate_sync(bytes, alignment);
      }
    });
  }
  /// Frees memory that no stream uses any more.
  TARN_ALWAYS_INLINE void deallocate_sync(void* p, std::size_t bytes,
                                          std::size_t alignment = default_alignment,
                                          attribution call = attribution::current()) noexcept
    requires(detail::allocates<Layer>())
  {
    [[maybe_unused]] detail::location_of_call<shared_resource> const here(call);
    if constexpr (has_deallocate_sync<Layer>) {
      block_->layer.deallocate_sync(p, bytes, alignment);
    } else {
      static_assert(!has_allocate<Layer>,
                    "tarn: this policy changes allocate but not deallocate_sync; add: void "
                    "deallocate_sync(void*, size_t bytes, size_t alignment) noexcept");
      block_->layer.upstream().deallocate_sync(p, bytes, alignment);
    }
  }

  // The same four calls as CCCL 3.0 (CUDA 13.0) names them. Templates, so that a braced {} never converts to bytes.

  template <std::integral Bytes>
  [[nodiscard]] TARN_ALWAYS_INLINE void* allocate(Bytes bytes, std::size_t alignment = default_alignment,
                                                  attribution call = attribution::current())
    requires(detail::allocates<Layer>())
  {
    return allocate_sync(static_cast<std::size_t>(bytes), alignment, call);
  }
  template <std::integral Bytes>
  TARN_ALWAYS_INLINE void deallocate(void* p, Bytes bytes, std::size_t alignment = default_alignment,
                                     attribution call = attribution::current()) noexcept
    requires(detail::allocates<Layer>())
  {
    deallocate_sync(p, static_cast<std::size_t>(bytes), alignment, call);
  }
  [[nodiscard]] TARN_ALWAYS_INLINE void* allocate_async(std::size_t bytes, std::size_t alignment,
                                                        stream_ref stream,
                                                        attribution call = attribution::current())
    requires(detail::allocates<Layer>())
  {
    return allocate(stream, bytes, alignment, call);
  }
  [[nodiscard]] TARN_ALWAYS_INLINE void* allocate_async(std::size_t bytes, stream_ref stream,
                                                        attribution call = attribution::current())
    requires(detail::allocates<Layer>())
  {
    return allocate(stream, bytes, default_alignment, call);
  }
  TARN_ALWAYS_INLINE void deallocate_async(void* p, std::size_t bytes, std::size_t alignment,
                                           stream_ref stream,
                                           attribution call = attribution::current()) noexcept
    requires(detail::allocates<Layer>())
  {
    deallocate(stream, p, bytes, alignment, call);
  }
  TARN_ALWAYS_INLINE void deallocate_async(void* p, std::size_t bytes, stream_ref stream,
                                           attribution call = attribution::current()) noexcept
    requires(detail::allocates<Layer>())
  {
    deallocate(stream, p, bytes, default_alignment, call);
  }

  /// Equal handles: memory of one may be freed through the other.
  friend bool operator==(shared_resource const& a, shared_resource const& b) noexcept {
    return a.block_ == b.block_;
  }

  /// Returns the driver that orders the streams of this memory.
  [[nodiscard]] driver_type const& driver() const noexcept {
    return nearest(*this, [](auto& l) -> decltype((l.driver())) { return l.driver(); });
  }
  /// Returns the device that the memory belongs to.
  [[nodiscard]] device_id device() const noexcept { return driver().device(); }

  // Calls that only a pool offers, reachable through any policy above it; without a pool they do not compile. Documented at the
  // pool. A handle is const as a pointer is: the resource behind it is not.

  /// Returns cached memory to the driver until at most `keep_bytes` are reserved; returns the bytes released.
  std::size_t trim(  // NOLINT(modernize-use-nodiscard): may be ignored
      std::size_t keep_bytes = 0, source_location where = source_location::current()) const
    requires reachable<shared_resource, detail::routed_calls::trim>
  {
    return detail::called_from(where, [&] {
      return nearest(*this, [&](auto& l) -> decltype(l.trim(keep_bytes)) { return l.trim(keep_bytes); });
    });
  }
  /// Returns all cached memory to the driver, as torch.cuda.empty_cache does.
  void empty_cache(source_location where = source_location::current()) const
    requires reachable<shared_resource, detail::routed_calls::trim>
  {
    (void)trim(0, where);
  }
  /// Returns true if `p` points into memory that the pool reserved.
  [[nodiscard]] bool owns(void const* p) const noexcept
    requires reachable<shared_resource, detail::routed_calls::owns>
  {
    return nearest(*this, [&](auto& l) -> decltype(l.owns(p)) { return l.owns(p); });
  }
  /// Returns the size of the largest request that can be served without calling the driver, bytes.
  [[nodiscard]] std::size_t largest_free_range() const
    requires reachable<shared_resource, detail::routed_calls::largest_free_range>
  {
    return nearest(*this, [](auto& l) -> decltype(l.largest_free_range()) { return l.largest_free_range(); });
  }
  /// Records that work on `stream`, enqueued before the block is deallocated, uses the block, although it is freed on another
  /// stream. The freed block is held back until that work is done.
  void record_stream(void* p, std::size_t bytes, stream_ref stream,
                     source_location where = source_location::current()) const
    requires reachable<shared_resource, detail::routed_calls::record_stream>
  {
    detail::called_from(where, [&] {
      nearest(*this, [&](auto& l) -> decltype(l.record_stream(p, bytes, stream)) {
        return l.record_stream(p, bytes, stream);
      });
    });
  }

  // Page calls, if this layer is a policy over a page source.

  /// Whether the device has pages: the answer of the source below.
  [[nodiscard]] bool has_pages() const noexcept
    requires(requires(Layer& l) { l.granularity(); } && reachable<shared_resource, detail::has_pages_call>)
  {
    return nearest(*this, detail::has_pages_call{});
  }
  [[nodiscard]] std::size_t granularity() const noexcept
    requires requires(Layer& l) { l.granularity(); }
  {
    return block_->layer.granularity();
  }
  [[nodiscard]] void* reserve(std::size_t bytes)
    requires requires(Layer& l) { l.reserve(bytes); }
  {
    return block_->layer.reserve(bytes);
  }
  void unreserve(void* p, std::size_t bytes) noexcept
    requires requires(Layer& l) { l.unreserve(p, bytes); }
  {
    block_->layer.unreserve(p, bytes);
  }
  [[nodiscard]] page_handle create(std::size_t bytes)
    requires requires(Layer& l) { l.create(bytes); }
  {
    return block_->layer.create(bytes);
  }
  void destroy(page_handle handle, std::size_t bytes) noexcept
    requires requires(Layer& l) { l.destroy(handle, bytes); }
  {
    block_->layer.destroy(handle, bytes);
  }
  void map(void* p, std::size_t bytes, page_handle handle)
    requires requires(Layer& l) { l.map(p, bytes, handle); }
  {
    block_->layer.map(p, bytes, handle);
  }
  void unmap(void* p, std::size_t bytes) noexcept
    requires requires(Layer& l) { l.unmap(p, bytes); }
  {
    block_->layer.unmap(p, bytes);
  }

  // Plain blocks, if this layer forwards them.

  [[nodiscard]] void* allocate_plain(std::size_t bytes)
    requires has_plain_blocks<Layer>
  {
    return block_->layer.allocate_plain(bytes);
  }
  void deallocate_plain(void* p, std::size_t bytes) noexcept
    requires has_plain_blocks<Layer>
  {
    block_->layer.deallocate_plain(p, bytes);
  }

  /// Returns the layer itself, for calls that only it offers.
  [[nodiscard]] Layer& layer() const noexcept { return block_->layer; }
  Layer* operator->() const noexcept { return &block_->layer; }

 private:
  struct block {
    template <class... Arguments>
    explicit block(Arguments&&... arguments) : layer(std::forward<Arguments>(arguments)...) {}
    std::atomic<std::size_t> references{1};
    Layer layer;
  };
  block* block_;
};

}  // namespace tarn
// ---- tarn/policy/resource_adaptor.hpp
// resource_adaptor: the base of layers that are written once around "a request and the next layer", for both pairs of calls; and
// around<Policy>, which makes a layer of a class that defines only that.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace tarn {

/// Which pair of calls a request was made by.
enum class call_kind : std::uint8_t {
  stream_ordered,  ///< allocate and deallocate
  synchronous      ///< allocate_sync and deallocate_sync
};

/// The arguments of one call.
struct request {
  stream_ref stream;          ///< the default stream if the call is synchronous
  std::size_t bytes = 0;      ///< as requested
  std::size_t alignment = 0;  ///< a power of two in a correct program
  call_kind kind = call_kind::stream_ordered;

  [[nodiscard]] constexpr bool is_synchronous() const noexcept { return kind == call_kind::synchronous; }
  /// Returns the same request as a stream-ordered one: for a block that work on its stream still uses.
  [[nodiscard]] constexpr request in_stream_order() const noexcept {
    return {stream, bytes, alignment, call_kind::stream_ordered};
  }
};

/// The layer below, as a policy calls it. A request that is passed on unchanged makes the same call there.
template <class Upstream>
class next_layer {
 public:
  explicit constexpr next_layer(Upstream& upstream) noexcept : upstream_(upstream) {}

  /// Allocates. Returns null for zero bytes. @throws out_of_memory, bad_alignment; nothing has changed
  [[nodiscard]] TARN_ALWAYS_INLINE void* allocate(request const& r) const {
    return r.is_synchronous() ? upstream_.allocate_sync(r.bytes, r.alignment)
                              : upstream_.allocate(r.stream, r.bytes, r.alignment);
  }
  /// Frees a block, also one that the same policy has just allocated. Does nothing for null.
  /// @param r  with the bytes and the alignment that the layer below was asked for
  TARN_ALWAYS_INLINE void deallocate(request const& r, void* p) const noexcept {
    if (r.is_synchronous()) {
      upstream_.deallocate_sync(p, r.bytes, r.alignment);
    } else {
      upstream_.deallocate(r.stream, p, r.bytes, r.alignment);
    }
  }
  [[nodiscard]] constexpr Upstream& upstream() const noexcept { return upstream_; }
  [[nodiscard]] decltype(auto) driver() const noexcept { return upstream_.driver(); }

 private:
  Upstream& upstream_;
};

namespace detail {

template <class Layer, class Upstream>
concept allocates_around = requires(Layer& layer, request const& r, next_layer<Upstream> const& next) {
  { layer.around_allocate(r, next) } -> std::same_as<void*>;
};
template <class Layer, class Upstream>
concept deallocates_around =
    requires(Layer& layer, request const& r, void* p, next_layer<Upstream> const& next) {
      { layer.around_deallocate(r, p, next) } noexcept;
    };

/// A member of either name in T makes that name ambiguous in `named_twice<T>`, whatever its parameters and access are.
struct names_of_adaptors {
  int around_allocate;
  int around_deallocate;
};
template <class T>
struct named_twice : T, names_of_adaptors {};
template <class T>
concept names_around_allocate = !requires { &named_twice<T>::around_allocate; };
template <class T>
concept names_around_deallocate = !requires { &named_twice<T>::around_deallocate; };

/// Asserts at the composition that what a layer declares is what will be called: otherwise its calls would pass it by.
template <class Layer, class Upstream>
constexpr bool check_adaptor() {
  static_assert(
      !(names_around_allocate<Layer> || names_around_deallocate<Layer>) || resource<Upstream>,
      "tarn: this policy changes the calls of blocks; put it over the pool: pages | pooled{} | policy{}");
  if constexpr (resource<Upstream>) {
    static_assert(!names_around_allocate<Layer> || allocates_around<Layer, Upstream>,
                  "tarn: around_allocate of this policy cannot be called; declare it: public: void* "
                  "around_allocate(tarn::request const& r, auto const& next)");
    static_assert(!names_around_deallocate<Layer> || deallocates_around<Layer, Upstream>,
                  "tarn: around_deallocate of this policy cannot be called; declare it: public: void "
                  "around_deallocate(tarn::request const& r, void* p, auto const& next) noexcept");
  }
  return true;
}

}  // namespace detail

/// Holds the layer below, and makes the four calls of a resource out of two functions that a layer may define:
///
/// | in the layer                                | called for                  | if not defined  |
/// |---------------------------------------------|-----------------------------|-----------------|
/// | void* around_allocate(r, next)              | allocate, allocate_sync     | next.allocate   |
/// | void around_deallocate(r, p, next) noexcept | deallocate, deallocate_sync | next.deallocate |
///
/// `r` is a request const&, `next` a next_layer const&; `p` is never null. The request that is passed on may have other bytes,
/// another alignment or another stream. All other calls are forwarded as for any layer, see shared_resource. Costs nothing besides
/// what the layer does. A layer derives from it by its own name:
/// `template <class Upstream> class my_layer : public resource_adaptor<my_layer<Upstream>, Upstream>`.
template <class Layer, class Upstream>
class resource_adaptor {
 public:
  using upstream_type = Upstream;
  using driver_type = typename Upstream::driver_type;
  using properties = typename Upstream::properties;

  explicit resource_adaptor(Upstream upstream) : upstream_(std::move(upstream)) {}
  resource_adaptor(resource_adaptor const&) = delete;
  resource_adaptor& operator=(resource_adaptor const&) = delete;

  [[nodiscard]] TARN_ALWAYS_INLINE void* allocate(stream_ref stream, std::size_t bytes, std::size_t alignment)
    requires resource<Upstream>
  {
    return allocate_around({stream, bytes, alignment, call_kind::stream_ordered});
  }
  TARN_ALWAYS_INLINE void deallocate(stream_ref stream, void* p, std::size_t bytes,
                                     std::size_t alignment) noexcept
    requires resource<Upstream>
  {
    deallocate_around({stream, bytes, alignment, call_kind::stream_ordered}, p);
  }
  [[nodiscard]] TARN_ALWAYS_INLINE void* allocate_sync(std::size_t bytes, std::size_t alignment)
    requires resource<Upstream>
  {
    return allocate_around({stream_ref{}, bytes, alignment, call_kind::synchronous});
  }
  TARN_ALWAYS_INLINE void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment) noexcept
    requires resource<Upstream>
  {
    deallocate_around({stream_ref{}, bytes, alignment, call_kind::synchronous}, p);
  }

  [[nodiscard]] Upstream& upstream() noexcept { return upstream_; }
  [[nodiscard]] driver_type const& driver() const noexcept { return upstream_.driver(); }

 protected:
  ~resource_adaptor() = default;

  Upstream upstream_;

 private:
  [[nodiscard]] TARN_ALWAYS_INLINE void* allocate_around(request const& r) {
    next_layer<Upstream> const next(upstream_);
    if constexpr (detail::allocates_around<Layer, Upstream>) {
      return static_cast<Layer&>(*this).around_allocate(r, next);
    } else {
      return next.allocate(r);
    }
  }
  TARN_ALWAYS_INLINE void deallocate_around(request const& r, void* p) noexcept {
    next_layer<Upstream> const next(upstream_);
    if constexpr (detail::deallocates_around<Layer, Upstream>) {
      if (p != nullptr) static_cast<Layer&>(*this).around_deallocate(r, p, next);
    } else {
      next.deallocate(r, p);
    }
  }
};

template <class Policy, class Upstream>
class around_layer;

/// Puts a class that defines around_allocate, around_deallocate or both on a stack: `pool | around<my_policy>{}`. The layer has
/// a my_policy{} of its own, whose public members are reached through the handle: `memory->member`. A policy with options that
/// can be moved may be its own layer instead, and is then put on a stack as those of tarn are:
/// `template <class Upstream> using layer = tarn::around_layer<my_policy, Upstream>;`.
template <class Policy>
struct around {
  static_assert(
      std::default_initializable<Policy>,
      "tarn: around<Policy> makes its policy without arguments; a policy with options adds: template <class "
      "Upstream> using layer = tarn::around_layer<Policy, Upstream>, and is put on a stack by itself");
  template <class Upstream>
  using layer = around_layer<Policy, Upstream>;
};

/// The layer of such a class.
template <class Policy, class Upstream>
class around_layer : public resource_adaptor<around_layer<Policy, Upstream>, Upstream>, public Policy {
  static_assert(
      detail::names_around_allocate<Policy> || detail::names_around_deallocate<Policy>,
      "tarn: this policy changes no call; add: void* around_allocate(tarn::request const& r, auto const& "
      "next), or void around_deallocate(tarn::request const& r, void* p, auto const& next) noexcept");
  using base = resource_adaptor<around_layer<Policy, Upstream>, Upstream>;

 public:
  around_layer()
    requires std::default_initializable<Upstream> && std::default_initializable<Policy>
      : around_layer(Upstream{}, around<Policy>{}) {}
  around_layer(Upstream upstream, around<Policy> const&)
    requires std::default_initializable<Policy>
      : base(std::move(upstream)), Policy() {}
  around_layer(Upstream upstream, Policy policy) : base(std::move(upstream)), Policy(std::move(policy)) {}
};

}  // namespace tarn

namespace tarn {

namespace detail {
template <class P, class Upstream>
concept makes_layer = requires { typename P::template layer<Upstream>; };

template <class P>
constexpr bool is_only_around() noexcept {
  if constexpr (std::is_class_v<P> && !std::is_final_v<P> && !makes_layer<P, int>) {
    return names_around_allocate<P> || names_around_deallocate<P>;
  } else {
    return false;
  }
}
template <class P>
concept says_only_around = is_only_around<P>();
}  // namespace detail

/// A policy over a given upstream: options that make a layer.
template <class P, class Upstream>
concept policy_over = memory_source<Upstream> && detail::makes_layer<P, Upstream> &&
                      std::constructible_from<typename P::template layer<Upstream>, Upstream, P>;

namespace detail {

/// Whether a policy has the type of a resource as template argument, to which its layers send calls.
template <class Policy>
inline constexpr bool holds_resource = false;
template <template <class...> class Policy, class... Arguments>
inline constexpr bool holds_resource<Policy<Arguments...>> = (memory_source<Arguments> || ...);

/// Asserts at the composition what a layer must define.
template <class Policy, class Upstream>
constexpr bool check_policy() {
  using layer = typename Policy::template layer<Upstream>;
  if constexpr (std::derived_from<layer, resource_adaptor<layer, Upstream>>) check_adaptor<layer, Upstream>();
  static_assert(
      !holds_resource<Policy> || routes_calls<layer>,
      "tarn: this policy holds a second resource, so its layer must name the resources that it calls; "
      "add: using routes = tarn::routes_to<Upstream, Other>");
  return true;
}

template <class Source, class... Policies>
struct stack_of {
  using type = Source;
};
template <class Source, class First, class... Rest>
struct stack_of<Source, First, Rest...> {
  static_assert(check_policy<First, Source>());
  using type = typename stack_of<shared_resource<typename First::template layer<Source>>, Rest...>::type;
};
}  // namespace detail

/// The type of `Source | Policies...`; default-constructible if its parts are.
template <class Source, class... Policies>
using stack = typename detail::stack_of<Source, Policies...>::type;

/// Puts a policy on a source or stack. O(1): one small host allocation.
template <class Upstream, class Policy>
  requires detail::makes_layer<std::remove_cvref_t<Policy>, std::remove_cvref_t<Upstream>> &&
           memory_source<std::remove_cvref_t<Upstream>>
[[nodiscard]] auto operator|(Upstream&& upstream, Policy&& policy) {
  using source = std::remove_cvref_t<Upstream>;
  static_assert(detail::check_policy<std::remove_cvref_t<Policy>, source>());
  using layer = typename std::remove_cvref_t<Policy>::template layer<source>;
  return shared_resource<layer>(std::in_place, source(std::forward<Upstream>(upstream)),
                                std::forward<Policy>(policy));
}
/// Explains a composition that does not begin with memory.
template <class Left, class Policy>
  requires(detail::makes_layer<std::remove_cvref_t<Policy>, int> && !memory_source<std::remove_cvref_t<Left>>)
void operator|(Left&&, Policy&&) = delete;  // begin with a source: tarn::check_memory_source<S>() of yours
/// Explains a policy that only says what it does around a request.
template <class Upstream, class Policy>
  requires(memory_source<std::remove_cvref_t<Upstream>> &&
           detail::says_only_around<std::remove_cvref_t<Policy>>)
void operator|(Upstream&&, Policy&&) = delete;  // wrap the policy: memory | tarn::around<policy>{}

}  // namespace tarn
// ---- tarn/policy/fences.hpp
// The guard bytes of a block: where they are, how they are written and how they are verified.
//
//   whole |--- fence ---|----- requested bytes ----|--- fence ---|
//                       p                          p + bytes

#include <cstddef>

// ---- tarn/policy/fill_pattern.hpp
// The byte patterns that the debugging policies write, and functions to write and compare them in device memory.

#include <cstddef>
#include <cstring>

namespace tarn {

/// Each is unlikely as data, odd as a pointer, and a NaN or huge as a float; in a debugger it identifies what happened.
namespace pattern {
inline constexpr unsigned char fence = 0xFD;          ///< around a block: never the user's
inline constexpr unsigned char uninitialised = 0xCD;  ///< handed out, not yet written ("clean")
inline constexpr unsigned char freed = 0xDD;          ///< given back ("dead")
}  // namespace pattern

namespace detail {

/// Writes a pattern in stream order. Host-accessible memory without a stream order is written directly.
template <class Driver>
status fill_bytes(Driver const& driver, stream_ref stream, void* p, unsigned char byte,
                  std::size_t bytes) noexcept {
  return driver.fill(stream, p, byte, bytes);
}

/// Waits for the stream and finds the first byte that differs; `bytes` if none does, or if it cannot be read. Host cost: a copy
/// of all bytes, up to 1 MiB at a time.
template <class Driver>
std::size_t first_difference(Driver const& driver, stream_ref stream, void const* p, unsigned char byte,
                             std::size_t bytes) noexcept {
  unsigned char small[512];
  unsigned char* window = small;
  std::size_t width = sizeof small;
  sequence<unsigned char> large;
  if (bytes > 16 * width) {
    try {
      large.resize(min_of(bytes, std::size_t{1} << 20));
      window = large.begin();
      width = large.size();
    } catch (...) {  // the small window is slower, but works
    }
  }
  for (std::size_t at = 0; at < bytes; at += width) {
    std::size_t const n = min_of(width, bytes - at);
    if (!driver.copy(stream, window, static_cast<unsigned char const*>(p) + at, n).ok()) return bytes;
    if (!driver.synchronize_stream(stream).ok()) return bytes;
    if (window[0] == byte && std::memcmp(window, window + 1, n - 1) == 0) continue;
    for (std::size_t i = 0; i < n; ++i) {
      if (window[i] != byte) return at + i;
    }
  }
  return bytes;
}

}  // namespace detail
}  // namespace tarn

namespace tarn::detail {

/// Where a block's fences were overwritten; zero if they were not.
struct breach {
  void const* p = nullptr;
  std::size_t before = 0;  ///< distance of the first overwritten byte from the block's start
  std::size_t after = 0;   ///< offset of the first overwritten byte from the block's start
  explicit operator bool() const noexcept { return before != 0 || after != 0; }
};

/// Fences of a minimum width, wider if an alignment requires it, so that the block itself stays aligned.
class fences {
 public:
  explicit fences(std::size_t least) noexcept : least_(max_of(least, std::size_t{1})) {}

  [[nodiscard]] std::size_t width(std::size_t alignment) const noexcept {
    return align_up(least_, alignment);
  }
  [[nodiscard]] std::size_t whole_bytes(std::size_t bytes, std::size_t alignment) const noexcept {
    return bytes > max_request_bytes ? bytes : bytes + 2 * width(alignment);
  }
  /// The request for a block and its fences.
  [[nodiscard]] request whole_of(request const& r) const noexcept {
    return {r.stream, whole_bytes(r.bytes, r.alignment), r.alignment, r.kind};
  }
  [[nodiscard]] void* whole_of(void* p, std::size_t alignment) const noexcept {
    return static_cast<unsigned char*>(p) - width(alignment);
  }
  [[nodiscard]] void* block_in(void* whole, std::size_t alignment) const noexcept {
    return static_cast<unsigned char*>(whole) + width(alignment);
  }

  /// Writes both fences in stream order.
  template <class Driver>
  [[nodiscard]] status draw(Driver const& driver, stream_ref stream, void* p, std::size_t bytes,
                            std::size_t alignment) const noexcept {
    status const s = fill_bytes(driver, stream, whole_of(p, alignment), pattern::fence, width(alignment));
    if (!s.ok()) return s;
    return fill_bytes(driver, stream, static_cast<unsigned char*>(p) + bytes, pattern::fence,
                      width(alignment));
  }

  /// Waits for the stream and compares both fences.
  template <class Driver>
  [[nodiscard]] breach verify(Driver const& driver, stream_ref stream, void* p, std::size_t bytes,
                              std::size_t alignment) const noexcept {
    std::size_t const wide = width(alignment);
    std::size_t const front = first_difference(driver, stream, whole_of(p, alignment), pattern::fence, wide);
    std::size_t const back =
        first_difference(driver, stream, static_cast<unsigned char*>(p) + bytes, pattern::fence, wide);
    return {p, wide - front, back != wide ? bytes + back : 0};
  }

 private:
  std::size_t least_;
};

/// Makes a refusal report the bytes that the caller requested, without the fences.
template <class Allocate>
void* asking_for(std::size_t bytes, Allocate const& allocate) {
  try {
    return allocate();
  } catch (out_of_memory const& error) {
    memory_report report = error.report();
    report.asked = bytes;
    error.throw_with(report);
  }
}

}  // namespace tarn::detail
// ---- tarn/policy/pool_calls.hpp
// Calls of the pool that a policy makes or passes on: the bytes that a request occupies, the uses of a block on other streams,
// and sleep.

#include <cstddef>

// ---- tarn/core/graph_owner.hpp
// graph_owner: what a pool gives to graph_memory (raii/graph_memory.hpp): the ownership of the memory that captured graphs use.

#include <cstddef>
#include <cstdint>

namespace tarn {

/// The memory of one graph_memory at one moment, bytes.
struct graph_state {
  std::size_t reserved = 0;   ///< held from the driver for its graphs alone
  std::size_t allocated = 0;  ///< handed out inside captures and not freed since, rounded to block sizes
  std::size_t kept = 0;       ///< blocks of the pool itself that were freed inside a capture, rounded
  std::uint64_t number = 0;   ///< of the owner, as in snapshot_segment::graph_memory
};

namespace detail {

/// Identifies one open capture of an owner.
using capture_number = std::uint64_t;

/// Destruction ends the ownership: the memory is given back when the device has completed all work submitted before.
class graph_owner {
 public:
  graph_owner() = default;
  graph_owner(graph_owner const&) = delete;
  graph_owner& operator=(graph_owner const&) = delete;
  virtual ~graph_owner() = default;

  /// What is allocated on `stream` from now on is the owner's. The identity of `stream` is known.
  /// @throws cuda_error, std::bad_alloc: nothing has changed
  [[nodiscard]] virtual capture_number begin_capture(stream_ref stream) = 0;
  /// The same for another stream of that capture. @throws as above
  virtual void join_capture(capture_number capture, stream_ref stream) = 0;
  virtual void end_capture(capture_number capture) noexcept = 0;
  [[nodiscard]] virtual graph_state state() const = 0;
};

}  // namespace detail
}  // namespace tarn

namespace tarn::detail {

/// Returns the bytes that a request occupies: what the nearest pool below rounds it to, otherwise the request itself.
template <class Upstream>
[[nodiscard]] std::size_t block_bytes_of(Upstream& upstream, std::size_t bytes,
                                         std::size_t alignment) noexcept {
  auto const ask = [&](auto& layer) -> decltype(layer.block_bytes(bytes, alignment)) {
    return layer.block_bytes(bytes, alignment);
  };
  if constexpr (reachable<Upstream, decltype(ask)>) {
    return nearest(upstream, ask);
  } else {
    return bytes;
  }
}

/// Returns whether a pool below sleeps: then its memory must not be touched.
template <class Upstream>
[[nodiscard]] bool sleeps(Upstream& upstream) noexcept {
  if constexpr (reachable<Upstream, routed_calls::is_asleep>) {
    return nearest(upstream, [](auto& layer) -> decltype(layer.is_asleep()) { return layer.is_asleep(); });
  } else {
    return false;
  }
}
/// sleep() of the nearest layer, for a policy that must know what happens to contents.
template <class Upstream>
std::size_t put_to_sleep(Upstream& upstream, contents where) {
  return nearest(upstream, [&](auto& layer) -> decltype(layer.sleep(where)) { return layer.sleep(where); });
}

/// record_stream() of the nearest layer that has it, for a policy that returns other pointers than its upstream or that touches
/// freed blocks.
struct record_stream_call {
  void* p;
  std::size_t bytes;
  stream_ref stream;
  template <class Layer>
  auto operator()(Layer& layer) const -> decltype(layer.record_stream(p, bytes, stream)) {
    return layer.record_stream(p, bytes, stream);
  }
};

/// Whether the layer itself takes requests for the owner of a graph's memory: a policy that does not would be passed by.
template <class Resource>
concept allocates_for_owners =
    requires(Resource& memory, graph_owner& owner, stream_ref stream, std::size_t bytes) {
      layer_of(memory).allocate_for(owner, stream, bytes, bytes);
    };

/// Whether there is a pool somewhere below.
template <class Upstream>
concept records_streams = reachable<Upstream, record_stream_call>;

}  // namespace tarn::detail
// ---- tarn/policy/used_streams.hpp
// The streams that used a resource, and which of them have unfinished work. For `checked`.

#include <cstddef>
#include <mutex>
#include <utility>

namespace tarn::detail {

/// Remembers the latest 64 streams. Thread-safe.
template <stream_driver Driver>
class used_streams {
 public:
  /// Remembers a stream; not if the driver does not know it or the host has no memory.
  void note(Driver const& driver, stream_ref stream) noexcept {
    stream_id id = stream.id();
    if (id == stream_ref::unknown_id && !driver.identify(stream, id).ok()) return;
    std::lock_guard const guard(mutex_);
    for (stream_ref const known : streams_) {
      if (known.id() == id) return;
    }
    try {
      if (streams_.size() == most) streams_.erase_unordered(next_++ % most);
      streams_.push_back(stream_ref::from(stream.handle(), id));
    } catch (...) {
    }
  }

  /// Reports each stream, if it is known to exist, that has work left. @param call  what needs it finished
  void report_unfinished(Driver const& driver, char const* call) const noexcept {
    stream_ref streams[most];
    std::size_t count = 0;
    {
      std::lock_guard const guard(mutex_);
      for (stream_ref const s : streams_) streams[count++] = s;
    }
    for (std::size_t i = 0; i < count; ++i) {
      if (life_of(driver, streams[i]) != stream_life::alive || is_finished(driver, streams[i])) continue;
      message<256> text;
      text.add(call).add("() was called while stream ").add_number(streams[i].id());
      text.add(", which used blocks of this resource, has unfinished work; synchronise it first");
      report_misuse(misuse(misuse_kind::in_use, nullptr, text.view()));
    }
  }

 private:
  static constexpr std::size_t most = 64;

  /// Whether a stream has no work left. An event on an idle stream may be reached some microseconds after it was recorded, so
  /// this asks for a while, about 300 us.
  [[nodiscard]] static bool is_finished(Driver const& driver, stream_ref stream) noexcept {
    if (is_capturing(driver, stream)) return true;
    event_handle event = nullptr;
    if (!driver.create_event(event).ok()) return true;
    bool finished = !driver.record_event(event, stream).ok();
    for (int tries = 0; tries < 1000 && !finished; ++tries)
      finished = driver.query_event(event).kind != failure::not_ready;
    (void)driver.destroy_event(event);
    return finished;
  }

  mutable fork_mutex mutex_;
  sequence<stream_ref> streams_;
  std::size_t next_ = 0;
};

}  // namespace tarn::detail

namespace tarn {

template <class Upstream>
class checked_layer;

/// Reports double frees, foreign pointers, wrong sizes, alignments and devices, writes past either end and after the free, and
/// leaks. For debugging: `cuda_pages{} | pooled{} | checked{}`.
struct checked {
  std::size_t fence_bytes = 256;           ///< on each side of a block, at least
  std::size_t quarantine_bytes = 64_MiB;   ///< of freed blocks kept from reuse, to detect late writes
  std::size_t quarantine_blocks = 4096;    ///< maximum number of those blocks
  std::size_t remembered_blocks = 16'384;  ///< blocks remembered after that, to detect second frees
  bool leaks_at_exit = false;              ///< calls report_leaks() when the process ends

  template <class Upstream>
  using layer = checked_layer<Upstream>;
};

/// Findings go to the misuse handler, with where, when (a count of this resource's calls), on which stream and by which thread
/// the block was allocated and freed. A block that is freed wrongly is not passed on.
///
/// At allocation a block gets fences and the uninitialised pattern, in stream order. A deallocation waits on the host for its
/// stream, verifies the fences, poisons the block and quarantines it; when it leaves the quarantine, oldest first, the poison
/// is verified. Blocks with a use recorded on another stream (record_stream) wait for the whole device.
///
/// While the stream of a call is capturing a graph, nothing is written, waited for or verified for that call: a block allocated
/// then has no fences, a block freed then is not quarantined. Its pointer, size and history are still checked.
///
/// Blocks that are live when the resource ends are leaks. An owner that was never destroyed keeps its resource alive: such a
/// resource reports its leaks at the end of the process if `leaks_at_exit` is set. Objects with static storage that were
/// constructed after the first such resource have been destroyed by then; those constructed before it count as leaked.
///
/// Cost of a pair: three fills, two copies of a fence, a copy of the block, two waits. Thread-safe; no lock is held while
/// waiting for the device or while the handler runs, except while check_all() reads one block.
template <class Upstream>
class checked_layer : public resource_adaptor<checked_layer<Upstream>, Upstream> {
  using base = resource_adaptor<checked_layer<Upstream>, Upstream>;

 public:
  using base::driver;
  /// Makes handles and owners record the place of a call for this layer, however many policies lie between.
  static constexpr bool records_places = true;

  checked_layer()
    requires std::default_initializable<Upstream>
      : checked_layer(Upstream{}) {}
  explicit checked_layer(Upstream upstream, checked const& options = {})
      : base(std::move(upstream)), options_(options), fences_(options.fence_bytes) {
    history_.remember(options.remembered_blocks);
    member_.device = driver().device().value;
    if (options_.leaks_at_exit) member_.add_leaks = &checked_layer::add_leaks_of;
    detail::checked_resources::add(member_);
  }
  /// Verifies the quarantine, then reports each block that is still live.
  ~checked_layer() {
    detail::checked_resources::remove(member_);
    end_quarantine(0, 0);
    try {
      (void)report_leaks();
    } catch (...) {  // the host has no memory for the list
    }
  }

  void* around_allocate(request const& r, auto const& next) {
    if (r.bytes == 0) return nullptr;
    require_alignment(r.alignment);
    if (is_of_other_device(r.stream)) throw wrong_stream("an allocation was requested on", nullptr, r.stream);
    detail::block_record b;
    b.bytes = r.bytes;
    b.alignment = r.alignment;
    b.allocated = mark_of(r.stream);
    {
      std::lock_guard const guard(mutex_);
      history_.make_room();
    }
    try {
      b.p = fences_.block_in(allocate_whole(r, next), r.alignment);
    } catch (...) {
      std::lock_guard const guard(mutex_);
      history_.give_up_room();
      throw;
    }
    bool const captured = is_capturing(r.stream);
    // A fence that was not written would be reported as overwritten.
    b.fenced = !captured && fences_.draw(driver(), r.stream, b.p, r.bytes, r.alignment).ok();
    if (b.fenced) (void)detail::fill_bytes(driver(), r.stream, b.p, pattern::uninitialised, r.bytes);
    {
      std::lock_guard const guard(mutex_);
      history_.begin(b);
    }
    if (r.is_synchronous() && !captured) (void)driver().synchronize_stream(r.stream);
    return b.p;
  }
  void around_deallocate(request const& r, void* p, auto const& next) noexcept {
    if (detail::life_of(driver(), r.stream) == detail::stream_life::alive && is_of_other_device(r.stream))
      return report_misuse(wrong_stream("a block was freed, and stays allocated, on", p, r.stream));
    detail::block_record const b = take_back(p, r.bytes, r.alignment, mark_of(r.stream));
    if (b.p == nullptr) return;
    stream_ref on = r.stream;
    // While a graph is captured nothing may be written or verified, and while the pool sleeps there is no memory.
    bool const untouchable = !detail::make_usable(driver(), on) || is_capturing(on) ||
                             (b.used_elsewhere && !wait_for_uses()) || detail::sleeps(this->upstream());
    if (!untouchable) verify_fences(b, on);
    if (untouchable || !b.fenced || !quarantine(b, on)) {
      history_gone(b);
      next.deallocate(fences_.whole_of(r), whole_of(b));
      return;
    }
    end_quarantine(options_.quarantine_bytes, options_.quarantine_blocks);
  }

  /// Records that work on `stream` uses the block as well: its deallocation will wait for the whole device.
  void record_stream(void* p, std::size_t bytes, stream_ref stream) {
    std::size_t alignment = 0;
    streams_.note(driver(), stream);
    {
      std::lock_guard const guard(mutex_);
      detail::block_record* const b = history_.find(p);
      if (b == nullptr || b->state != detail::block_state::live) return;  // deallocation will report it
      b->used_elsewhere = true;
      alignment = b->alignment;
    }
    if constexpr (detail::records_streams<Upstream>) {
      nearest(this->upstream(), detail::record_stream_call{fences_.whole_of(p, alignment),
                                                           fences_.whole_bytes(bytes, alignment), stream});
    }
  }

  /// Verifies the fences of every block that is live at the call and the poison of every quarantined one; reports those that
  /// were overwritten and returns their number. A block that is freed or leaves the quarantine meanwhile is verified at that
  /// point. Waits for the device; while a graph is captured, verifies nothing. @throws std::bad_alloc
  std::size_t check_all() {
    if (detail::sleeps(this->upstream())) return 0;
    detail::sequence<detail::block_record> all;
    {
      std::lock_guard const guard(mutex_);
      history_.for_each([&](detail::block_record const& b) {
        bool const live = b.state == detail::block_state::live && has_fences(b);
        if (live || b.state == detail::block_state::quarantined) all.push_back(b);
      });
    }
    // A record begins once its fences are queued, so after this wait they are written. Blocks allocated later are not checked.
    if (detail::is_of_capture(detail::wait_for_all_work(driver()))) return 0;
    detail::own_stream const reading(driver());
    std::size_t found = 0;
    for (detail::block_record const& b : all) {
      detail::breach breach;
      std::size_t written = b.bytes;
      {
        std::lock_guard const guard(mutex_);  // held, so that the block is not given back while it is read
        detail::block_record const* const now = history_.find(b.p);
        if (now == nullptr || now->state != b.state || now->allocated.call != b.allocated.call) continue;
        if (b.state == detail::block_state::live) {
          breach = look_at_fences(b, reading.get());
        } else {
          written = first_written(b, reading.get());
        }
      }
      if (breach) report_breach(b, breach);
      if (written != b.bytes) report_late_write(b, written);
      if (breach || written != b.bytes) ++found;
    }
    return found;
  }

  /// Puts the pool to sleep, after it reported each stream of a block whose work is not finished (misuse_kind::in_use). The
  /// fences of live blocks are discarded with the contents.
  std::size_t sleep(contents where)
    requires reachable<Upstream, detail::routed_calls::sleep>
  {
    if (detail::sleeps(this->upstream())) return 0;
    streams_.report_unfinished(driver(), "sleep");
    if (where == contents::discarded) (void)end_quarantine(0, 0);
    std::size_t const given = detail::put_to_sleep(this->upstream(), where);
    if (where == contents::discarded)
      lost_.store(calls_.load(std::memory_order_relaxed), std::memory_order_relaxed);
    return given;
  }
  /// Compacts the pool, after the same reports.
  compaction compact()
    requires reachable<Upstream, detail::routed_calls::compact>
  {
    streams_.report_unfinished(driver(), "compact");
    return nearest(this->upstream(), [](auto& l) -> decltype(l.compact()) { return l.compact(); });
  }

  /// Reports each block that is live now as a leak, and returns their number. With the default handler all are printed before
  /// the program ends. O(blocks). @throws std::bad_alloc  nothing was reported
  std::size_t report_leaks() {  // NOLINT(modernize-use-nodiscard): may be ignored
    detail::sequence<detail::block_record> leaks;
    add_leaks(leaks);
    detail::report_leaked(leaks);
    return leaks.size();
  }
  /// Number of blocks that are handed out.
  [[nodiscard]] std::size_t live_blocks() const noexcept {
    std::lock_guard const guard(mutex_);
    return history_.live();
  }
  /// The bytes that a block occupies, including fences.
  [[nodiscard]] std::size_t block_bytes(std::size_t bytes, std::size_t alignment) noexcept {
    return bytes == 0
               ? 0
               : detail::block_bytes_of(this->upstream(), fences_.whole_bytes(bytes, alignment), alignment);
  }

 private:
  /// Whether a live block's fences were written, and not discarded by sleep().
  [[nodiscard]] bool has_fences(detail::block_record const& b) const noexcept {
    return b.fenced && b.allocated.call > lost_.load(std::memory_order_relaxed);
  }

  [[nodiscard]] bool is_capturing(stream_ref stream) const noexcept {
    return detail::is_capturing(driver(), stream);
  }
  [[nodiscard]] detail::block_event mark_of(stream_ref stream) noexcept {
    detail::block_event e;
    e.where = location_scope::current();
    e.call = calls_.fetch_add(1, std::memory_order_relaxed) + 1;
    e.thread = detail::thread_number();
    if (stream.id() != stream_ref::unknown_id) {
      e.stream = stream.id();
    } else {
      (void)driver().identify(stream, e.stream);
    }
    streams_.note(driver(), stream_ref::from(stream.handle(), e.stream));
    return e;
  }
  [[nodiscard]] void* whole_of(detail::block_record const& b) const noexcept {
    return fences_.whole_of(b.p, b.alignment);
  }

  /// Allocates a block with its fences; if that fails, empties the quarantine and retries.
  void* allocate_whole(request const& r, auto const& next) {
    request const whole = fences_.whole_of(r);
    return detail::asking_for(r.bytes, [&] {
      try {
        return next.allocate(whole);
      } catch (out_of_memory const&) {
        if (!end_quarantine(0, 0)) throw;
      }
      return next.allocate(whole);
    });
  }

  // ---- deallocation

  /// Takes a live block back from the user; if it may not be freed so, reports that and returns an empty record.
  detail::block_record take_back(void* p, std::size_t bytes, std::size_t alignment,
                                 detail::block_event const& freed) noexcept {
    detail::block_record b;
    {
      std::lock_guard const guard(mutex_);
      if (detail::block_record* const known = history_.find(p)) {
        b = *known;
        if (b.state == detail::block_state::live && b.bytes == bytes && b.alignment == alignment) {
          history_.end(*known, freed);
          return *known;
        }
      }
    }
    report_wrong_free(b, p, bytes, alignment, freed);
    return {};
  }
  void history_gone(detail::block_record const& b) noexcept {
    std::lock_guard const guard(mutex_);
    if (detail::block_record* const known = history_.find(b.p)) history_.leave(*known);
  }
  /// Waits for the uses of other streams; returns false if a capture forbids it.
  [[nodiscard]] bool wait_for_uses() const noexcept {
    return !detail::is_of_capture(detail::wait_for_all_work(driver()));
  }
  void verify_fences(detail::block_record const& b, stream_ref stream) noexcept {
    if (!has_fences(b)) return;
    if (auto const breach = look_at_fences(b, stream)) report_breach(b, breach);
  }
  [[nodiscard]] detail::breach look_at_fences(detail::block_record const& b,
                                              stream_ref stream) const noexcept {
    return fences_.verify(driver(), stream, b.p, b.bytes, b.alignment);
  }
  [[nodiscard]] std::size_t first_written(detail::block_record const& b, stream_ref stream) const noexcept {
    return detail::first_difference(driver(), stream, b.p, pattern::freed, b.bytes);
  }

  /// Poisons a block and keeps it. Waits for its stream, so that the later verification does not need that stream.
  bool quarantine(detail::block_record const& b, stream_ref stream) noexcept {
    if (b.bytes > options_.quarantine_bytes || options_.quarantine_blocks == 0) return false;
    if (!detail::fill_bytes(driver(), stream, b.p, pattern::freed, b.bytes).ok()) return false;
    if (!driver().synchronize_stream(stream).ok()) return false;
    std::lock_guard const guard(mutex_);
    if (detail::block_record* const known = history_.find(b.p)) history_.quarantine(*known);
    return true;
  }
  /// Releases the oldest blocks until at most the given bytes and blocks are left; returns whether one was released. No work on
  /// the device may touch them, so the verification and what follows need no stream order.
  bool end_quarantine(std::size_t bytes, std::size_t blocks) noexcept {
    bool any = false;
    for (;; any = true) {
      detail::block_record b;
      {
        std::lock_guard const guard(mutex_);
        if (history_.quarantined_bytes() <= bytes && history_.quarantined() <= blocks) return any;
        b = history_.oldest();
        history_.leave(*history_.find(b.p));
      }
      if (!is_capturing(stream_ref{}) && !detail::sleeps(this->upstream())) {
        if (std::size_t const at = first_written(b, stream_ref{}); at != b.bytes) report_late_write(b, at);
      }
      this->upstream().deallocate_sync(whole_of(b), fences_.whole_bytes(b.bytes, b.alignment), b.alignment);
    }
  }

  // ---- reports

  /// A pool could never learn that the work on such a stream is done: it would keep the memory for that stream for good.
  [[nodiscard]] bool is_of_other_device(stream_ref stream) const noexcept {
    if constexpr (requires { driver().is_of_other_device(stream); }) {
      return driver().is_of_other_device(stream);
    } else {
      return false;
    }
  }
  [[nodiscard]] misuse wrong_stream(std::string_view what, void const* p, stream_ref stream) const noexcept {
    message<256> text;
    text.add(what);
    if (stream.id() == stream_ref::unknown_id) {
      text.add(" a stream");
    } else {
      text.add(" stream ").add_number(stream.id());
    }
    text.add(" of another device; use a stream of device ");
    text.add_number(member_.device);
    return {misuse_kind::wrong_device, p, text.view()};
  }
  static void report_breach(detail::block_record const& b, detail::breach const& breach) noexcept {
    if (breach.before != 0) {
      report_misuse(
          misuse(misuse_kind::overrun, b.p,
                 detail::history_of(b, "was written before its start, at distance ", breach.before).view()));
    }
    if (breach.after != 0) {
      report_misuse(
          misuse(misuse_kind::overrun, b.p,
                 detail::history_of(b, "was written past its end, at offset ", breach.after).view()));
    }
  }
  static void report_late_write(detail::block_record const& b, std::size_t at) noexcept {
    report_misuse(misuse(misuse_kind::use_after_free, b.p,
                         detail::history_of(b, "was written after it was freed, at offset ", at).view()));
  }
  void report_wrong_free(detail::block_record const& b, void* p, std::size_t bytes, std::size_t alignment,
                         detail::block_event const& freed) noexcept {
    misuse_kind kind = misuse_kind::foreign_pointer;
    detail::history_text text;
    if (b.p == nullptr) {
      detail::block_record other;
      if (detail::checked_resources::find(member_, p, other)) {
        bool const elsewhere = other.device != member_.device;
        if (elsewhere) kind = misuse_kind::wrong_device;
        text = detail::history_of(other,
                                  elsewhere ? "belongs to another device but was freed on device "
                                            : "belongs to another resource but was freed by one of device ",
                                  static_cast<std::uint64_t>(member_.device));
      } else if (detail::block_record const around = containing(p); around.p != nullptr) {
        auto const offset = static_cast<std::uint64_t>(static_cast<char*>(p) - static_cast<char*>(around.p));
        text = detail::history_of(around, "freed by a pointer that is not its start, at offset ", offset);
      } else {
        text.add("pointer ")
            .add_hex(reinterpret_cast<std::uintptr_t>(p))
            .add(" was freed but not allocated by this resource");
      }
    } else if (b.state != detail::block_state::live) {
      kind = misuse_kind::double_free;
      text = detail::history_of(b, "was freed again, in call ", freed.call);
    } else if (b.bytes != bytes) {
      kind = misuse_kind::wrong_size;
      text = detail::history_of(b, "was freed with a different size: ", bytes);
    } else {
      kind = misuse_kind::wrong_alignment;
      text = detail::history_of(b, "was freed with a different alignment: ", alignment);
    }
    text.add("; this free: ");
    detail::add_event(text, freed);
    report_misuse(misuse(kind, p, text.view()));
  }
  [[nodiscard]] detail::block_record containing(void const* p) const noexcept {
    detail::block_record found;
    std::lock_guard const guard(mutex_);
    history_.for_each([&](detail::block_record const& b) {
      auto const at = reinterpret_cast<std::uintptr_t>(p);
      auto const start = reinterpret_cast<std::uintptr_t>(b.p);
      if (b.state != detail::block_state::gone && at >= start && at - start < b.bytes) found = b;
    });
    return found;
  }
  static bool find_in(void* self, void const* p, detail::block_record& out) noexcept {
    auto const& layer = *static_cast<checked_layer*>(self);
    std::lock_guard const guard(layer.mutex_);
    detail::block_record const* const b = layer.history_.find(p);
    if (b == nullptr || b->state != detail::block_state::live) return false;
    out = *b;
    out.device = layer.member_.device;
    return true;
  }

  void add_leaks(detail::sequence<detail::block_record>& leaks) const {
    std::lock_guard const guard(mutex_);
    history_.for_each([&](detail::block_record const& b) {
      if (b.state == detail::block_state::live) leaks.push_back(b);
    });
  }
  static void add_leaks_of(void* self, detail::sequence<detail::block_record>& leaks) {
    static_cast<checked_layer*>(self)->add_leaks(leaks);
  }

  checked const options_;
  detail::fences fences_;
  std::atomic<std::uint64_t> calls_{0};
  std::atomic<std::uint64_t> lost_{0};  ///< blocks allocated up to this call have lost their fences
  mutable detail::fork_mutex mutex_;
  detail::block_history history_;
  detail::used_streams<typename Upstream::driver_type> streams_;
  detail::checked_resources::member member_{this, &checked_layer::find_in};
};

}  // namespace tarn
// ---- tarn/policy/device_pool.hpp
// device_pool: the stack that most programs need: pages of the device, pooled, with exact statistics. A call goes through
// core/shared_resource.hpp and policy/tracked.hpp to pool/pool.hpp, which lists the files behind it.

// ---- tarn/policy/pooled.hpp
// pooled: the policy that puts a caching pool on a source. `pooled | limited` bounds live bytes, `limited | pooled` bounds
// reserved bytes. Its options are in pool/options.hpp.

#include <concepts>
#include <utility>

// ---- tarn/pool/options.hpp
// pooled: the options of a pool, which compose it with a source (policy/pooled.hpp). The defaults suit all recorded traces.

#include <cstddef>

namespace tarn {

/// Whether free physical handles may be remapped next to each other at a second address.
enum class remapping {
  when_tight,  ///< yes, before reserved memory exceeds the live peak (needs a page source)
  off          ///< no: every handle stays where it was first mapped
};

/// In how many physical handles a block of a pool over pages may lie.
enum class handles_per_block {
  any,  ///< several, mapped side by side
  one   ///< one, as a cudaMalloc block: for libraries that look only at the first handle of a block
};

/// When a pool asks whether the stream of a call is captured into a graph. A block that is freed inside a capture must not be
/// handed out while the graph is replayed.
///
/// A bare handle of a captured stream is always refused outside of a capture_scope: the pool asks CUDA for its identity at each call,
/// which CUDA refuses (code 900) and which invalidates the capture, so no graph is replayed. A stream whose identity is known (of
/// tarn::stream, tarn::identified, or a buffer) costs no driver call. To ask CUDA whether it captures takes 20 ns, and 175 ns while 14
/// other threads ask (H200, bench/results/graphs.jsonl). Hence `in_scopes` by default.
enum class capture_watch {
  in_scopes,  ///< while a capture_scope is open. On streams of known identity other captures must not free blocks of the pool that the
              ///< graph uses: they may be handed out again while it is replayed
  always  ///< at each call: warm calls then make one driver call; a pair takes 5 times as long, 114 ns instead of 23 (H200)
};

template <class Upstream>
class pooled_layer;

/// A caching, stream-ordered pool over pages or blocks; see pool/pool.hpp. The defaults suit all recorded traces.
struct pooled {
  /// Whether free handles may be remapped next to each other at a second address. With `off`, a second pass over the same work
  /// makes no driver call, at the cost of more reserved memory.
  remapping remap = remapping::when_tight;
  /// How far reserved memory may exceed the peak of live bytes, in thousandths, before free handles are remapped for a request
  /// above 8 MiB; five to eight times as far for smaller ones, see slack_of() in pool/growth/growth.hpp.
  unsigned slack_per_mille = 9;
  /// Largest physical handle to create, bytes, a multiple of 2 MiB; 0 derives it from the live peak and from the memory that is
  /// left, see pool/growth/growth.hpp. Smaller ones waste less and cost more driver calls: bench/results/frontier.txt.
  std::size_t largest_handle = 0;
  /// Reserved bytes that the pool never gives back by itself. Beyond them it gives free handles back once the live peak has stayed
  /// lower for long: pool/arena/live_window.hpp says when. With the largest std::size_t it gives back only what trim() or empty_cache()
  /// asks for, and what other pools lack.
  std::size_t release_threshold = std::size_t{128} << 20;
  /// When the pool looks for captures. With `always`, a capture without a capture_scope is safe, too: allocation on its streams is
  /// refused, and what is freed on them is kept until the pool ends. This holds for default streams, bare handles and streams that
  /// tarn made: the driver must not be asked about another stream whose identity was noted earlier, since it may be destroyed.
  capture_watch captures = capture_watch::in_scopes;
  /// With `one`, each block lies within one handle: free neighbours in two handles are not joined, free handles are not remapped, and
  /// `largest_handle` has no effect. Does nothing where the pool has plain blocks.
  ///
  /// The pool then wastes more: utilisation of nine recorded traces 0.70 to 0.89 instead of 0.92 to 0.99, and 0.80 to 0.89 instead of
  /// 0.95 to 0.99 without the one of cupy (bench/results/frontier.txt).
  /// So allocate what is sent from a second pool with this option, and the rest from one without it.
  handles_per_block handles = handles_per_block::any;

  template <class Upstream>
  using layer = pooled_layer<Upstream>;
};

namespace detail {
[[nodiscard]] constexpr bool may_remap(pooled const& options) noexcept {
  return options.remap == remapping::when_tight && options.handles == handles_per_block::any;
}
}  // namespace detail

}  // namespace tarn
// ---- tarn/pool/pool.hpp
// The pool: stream-ordered allocation from cached memory. The files of an allocation, in the order of its steps:
//
//   0 core/shared_resource.hpp, policy/tracked.hpp   how a call on device_pool comes here: allocate_sized()
//   1 arena/size_class.hpp   the request is rounded to a size class, or to 512 bytes; block_request.hpp
//   2 front/front.hpp        the calling thread's cache: thread_cache.hpp, its lock (owner_lock.hpp), its magazines. A warm call
//                            ends here; cache_misses.hpp continues the others
//   3 heap.hpp               what all threads share, under the hot lock: arena/arena.hpp has the free ranges of each stream
//                            (arena/stream_order.hpp) and the runs that small blocks are cut from
//   4 ladder.hpp             the steps when there is none, under the growth lock: order/reclaim.hpp takes memory from other streams
//                            with an event (order/ordering.hpp, order/mark_work.hpp; the picture is in arena/stream_order.hpp), and
//                            growth/page_growth.hpp gets more (growth/growth.hpp, address_space.hpp; over blocks: segment_growth.hpp)
//   5 source/cuda_pages.hpp  creates and maps pages by calls of driver/cuda_driver.hpp
//
// deallocate() goes through 1 to 3 in the same way. A block with recorded uses waits for them first (waiting_blocks.hpp).
// Calls on a stream that is captured into a graph go to graph/. inspection/ is for tools and snapshots, and empty otherwise.
//
// What a program no longer needs goes back to the driver once the live peak has fallen: arena/live_window.hpp.
//
// Bounds: the magazines of one stream on one thread hold at most 104 MiB; if they hold more than 1/32 of the reserved memory, they
// are emptied before a pool that is no longer small grows. Reserved memory stays within the live peak plus the slack of the
// requests (slack_of() in growth/growth.hpp) while whole free handles suffice. Host memory is 64 bytes per range.

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>

// ---- tarn/core/owned.hpp
// owned<T>: a heap object with one owner. It replaces std::unique_ptr without including <memory>, which costs a compiler as
// much as <memory_resource>, <mutex> and <map> together.

namespace tarn::detail {

/// Deletes its object on destruction. Move-only; null when moved from. Never throws.
template <class T>
class owned {
 public:
  owned() noexcept = default;
  /// Takes ownership of an object created by new.
  explicit owned(T* made) noexcept : p_(made) {}
  owned(owned&& other) noexcept : p_(other.p_) { other.p_ = nullptr; }
  owned& operator=(owned&& other) noexcept {
    T* const taken = other.p_;
    other.p_ = nullptr;
    delete p_;
    p_ = taken;
    return *this;
  }
  ~owned() { delete p_; }

  [[nodiscard]] T* get() const noexcept { return p_; }
  [[nodiscard]] T& operator*() const noexcept { return *p_; }
  [[nodiscard]] T* operator->() const noexcept { return p_; }

 private:
  T* p_ = nullptr;
};

}  // namespace tarn::detail
// ---- tarn/pool/arena/size_class.hpp
// Size classes: which blocks are interchangeable. Every allocation computes its class first, and a sized deallocation needs no
// lookup because of it.

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace tarn::detail {

/// Every range starts and ends on a multiple of this, bytes (PyTorch rounds to the same).
inline constexpr std::size_t range_grain = 512;

/// Blocks up to this size, bytes, are cut from runs. They are most calls (56-94 % in the recorded traces) and together at most
/// 0.1 % of the live bytes, so a partly filled run has no visible cost.
inline constexpr std::size_t run_limit = 32_KiB;

/// Blocks up to this size, bytes, have a size class and thus a magazine; larger ones keep their exact size. In the recorded
/// traces blocks up to 1 MiB are at most 2.2 % of the peak, so rounding them by at most 6.25 % costs at most 0.07 %.
inline constexpr std::size_t class_limit = 1_MiB;

/// Steps of 256 B to 2 KiB, then 8 steps per doubling to 32 KiB, then 16 to 1 MiB.
inline constexpr unsigned run_class_count = 40;
inline constexpr unsigned class_count = 120;

/// The class of a request of 1 to class_limit bytes. A few instructions and no table; inlined, since a call would add 7 more to
/// the path to a magazine.
[[nodiscard]] TARN_ALWAYS_INLINE constexpr unsigned class_of(std::size_t bytes) noexcept {
  std::size_t const last = bytes - 1;
  if (last < 2048) return static_cast<unsigned>(last >> 8);
  auto const exponent = static_cast<unsigned>(std::bit_width(last)) - 1;
  if (exponent < 15) return 8 + (exponent - 11) * 8 + static_cast<unsigned>((last >> (exponent - 3)) & 7);
  return 40 + (exponent - 15) * 16 + static_cast<unsigned>((last >> (exponent - 4)) & 15);
}

/// Bytes of every block of a class.
[[nodiscard]] constexpr std::size_t compute_class_bytes(unsigned size_class) noexcept {
  if (size_class < 8) return (size_class + std::size_t{1}) << 8;
  if (size_class < 40) {
    unsigned const step = size_class - 8;
    return (9 + std::size_t{step % 8}) << (8 + step / 8);
  }
  unsigned const step = size_class - 40;
  return (17 + std::size_t{step % 16}) << (11 + step / 16);
}

inline constexpr auto class_bytes_table = [] {
  std::array<std::uint32_t, class_count> table{};
  for (unsigned k = 0; k < class_count; ++k) table[k] = static_cast<std::uint32_t>(compute_class_bytes(k));
  return table;
}();

[[nodiscard]] constexpr std::size_t class_bytes(unsigned size_class) noexcept {
  return class_bytes_table[size_class];
}

/// Whether a request has a size class; others keep their exact size.
[[nodiscard]] TARN_ALWAYS_INLINE constexpr bool has_class(std::size_t bytes, std::size_t alignment) noexcept {
  return alignment <= default_alignment && bytes <= class_limit;
}

/// The block that serves a request, for callers that use the numbers several times.
struct block_size {
  std::size_t bytes = 0;
  unsigned size_class = class_count;  ///< class_count if none

  constexpr block_size() noexcept = default;
  /// Pure. `asked` is not 0.
  TARN_ALWAYS_INLINE constexpr block_size(std::size_t asked, std::size_t alignment) noexcept {
    if (tarn::detail::has_class(asked, alignment)) [[likely]] {
      size_class = class_of(asked);
      bytes = class_bytes(size_class);
    } else {
      bytes = align_up(asked, range_grain);
    }
  }
  [[nodiscard]] constexpr bool has_class() const noexcept { return size_class != class_count; }
  [[nodiscard]] constexpr unsigned its_class() const noexcept { return size_class; }
  [[nodiscard]] constexpr std::size_t bytes_in(unsigned) const noexcept { return bytes; }
  [[nodiscard]] constexpr std::size_t large_bytes() const noexcept { return bytes; }
};
/// The same, computed where it is used: fewer instructions for a caller that uses each number once. The alignment is at most
/// default_alignment.
struct lazy_block_size {
  std::size_t asked;

  [[nodiscard]] TARN_ALWAYS_INLINE constexpr bool has_class() const noexcept { return asked <= class_limit; }
  [[nodiscard]] TARN_ALWAYS_INLINE constexpr unsigned its_class() const noexcept { return class_of(asked); }
  [[nodiscard]] constexpr std::size_t bytes_in(unsigned size_class) const noexcept {
    return class_bytes(size_class);
  }
  [[nodiscard]] constexpr std::size_t large_bytes() const noexcept { return align_up(asked, range_grain); }
};

/// Bytes that a request occupies: its class, or its size rounded to the grain. Pure, so that allocation and sized deallocation
/// agree without a lookup.
[[nodiscard]] TARN_ALWAYS_INLINE constexpr std::size_t rounded_bytes(std::size_t bytes,
                                                                     std::size_t alignment) noexcept {
  return bytes == 0 ? 0 : block_size(bytes, alignment).bytes;
}

/// Handle granularity of current devices, bytes. Blocks of a multiple of it, such as weights and their gradients, start on a
/// multiple if possible: then the free memory next to them is whole granules.
inline constexpr std::size_t usual_granule = 2_MiB;

static_assert(class_of(1) == 0 && class_of(2048) == 7 && class_of(2049) == 8);
static_assert(class_bytes(7) == 2048 && class_bytes(39) == run_limit && class_bytes(119) == class_limit);

}  // namespace tarn::detail
// ---- tarn/pool/cache_misses.hpp
// What a pool does for a call that the calling thread's cache does not serve: allocation takes from the heap, then climbs the
// ladder; deallocation puts into the cache and gives what it displaces to the heap. Calls on captured streams go to graph/.
//
// Over 400 lines: allocation, deallocation and what other pools ask for enter the heap under the same locks, in the same order.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>

// ---- tarn/pool/block_request.hpp
// A request, or a freed block, that the fast path did not serve, in the form that the heap and the ladder use.

#include <cstddef>
#include <cstdint>

// ---- tarn/pool/arena/range.hpp
// A range: a piece of address space that is live, free, a view or a hole. Ranges tile the reserved address space; their nodes
// are in host memory, because the host cannot write links into device memory.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace tarn::detail {

/// Index of a node; 0 is none.
using range_ref = std::uint32_t;
/// Index of a stream's domain; 0 is the neutral domain, whose memory nothing on the device uses any more.
using domain_ref = std::uint32_t;
inline constexpr domain_ref neutral = 0;

enum class range_state : std::uint8_t {
  unused,  ///< a spare node
  live,    ///< handed out, or divided into a run
  free,    ///< mapped and reusable by its domain
  view,    ///< addresses where handles are mapped a second time
  hole     ///< address space with nothing mapped
};

/// Blocks above class_limit are kept apart from smaller ones, so that small ones do not pin large handles.
enum class zone : std::uint8_t { small, large };
inline constexpr zone all_zones[] = {zone::large, zone::small};
inline constexpr std::size_t zone_count = 2;

[[nodiscard]] constexpr zone zone_of(std::size_t block_bytes) noexcept {
  return block_bytes <= class_limit ? zone::small : zone::large;
}

/// One node, 64 bytes.
struct range {
  std::uintptr_t address = 0;
  std::size_t bytes = 0;
  std::uint64_t epoch = 0;  ///< when it was freed, in its domain's count
  range_ref previous = 0;   ///< neighbour by address, 0 at the end of the segment
  range_ref next = 0;
  range_ref bin_previous = 0;  ///< neighbours in the index's bin
  range_ref bin_next = 0;
  range_ref chain = 0;  ///< next piece of a live block in pieces
  /// In the first piece of a live block: the view it is mapped in. In an indexed free range: the bytes that the arena counts as
  /// split, in units of range_grain. Otherwise 0.
  std::uint32_t view_or_split = 0;
  std::uint32_t segment = 0;  ///< index of the upstream block, for pools over blocks
  domain_ref domain = neutral;
  std::uint16_t generation = 0;  ///< of a live range: the generation of its domain when it was taken
  range_state state = range_state::unused;
  zone where = zone::small;
  bool at_end = false;  ///< in an index: a hole follows, so it may be extended, see range_index

  [[nodiscard]] std::uintptr_t end() const noexcept { return address + bytes; }
};
static_assert(sizeof(range) == 64, "the documentation states 64 bytes of host memory per range");

/// All nodes. Grows only if a caller made room beforehand, so that releasing never allocates.
class range_table {
 public:
  range_table() { nodes_.resize(1); }

  /// Ensures that `count` nodes can be taken without allocating. @throws std::bad_alloc, nothing has changed
  void make_room(std::size_t count) {
    if (spare_count_ >= count) return;
    std::size_t const first = nodes_.size();
    std::size_t const added = count > first ? count : first;
    nodes_.resize(first + added);
    for (std::size_t i = nodes_.size(); i-- > first;) put_back(static_cast<range_ref>(i));
  }

  /// Takes a new node. Requires make_room().
  [[nodiscard]] range_ref take() noexcept {
    if constexpr (check_locks) {
      if (spare_count_ == 0)
        stop("tarn: a range was taken without room; call make_room() while the same lock is held");
    }
    range_ref const r = first_spare_;
    first_spare_ = nodes_[r].next;
    --spare_count_;
    nodes_[r] = range{};
    return r;
  }

  void put_back(range_ref r) noexcept {
    nodes_[r] = range{};
    nodes_[r].next = first_spare_;
    first_spare_ = r;
    ++spare_count_;
  }

  [[nodiscard]] range& operator[](range_ref r) noexcept { return nodes_[r]; }
  [[nodiscard]] range const& operator[](range_ref r) const noexcept { return nodes_[r]; }
  [[nodiscard]] std::size_t host_bytes() const noexcept { return nodes_.capacity() * sizeof(range); }
  /// One more than the largest index; spare nodes are `unused`.
  [[nodiscard]] std::size_t size() const noexcept { return nodes_.size(); }
  [[nodiscard]] std::size_t in_use() const noexcept { return nodes_.size() - 1 - spare_count_; }

 private:
  [[noreturn]] static void stop(char const* why) noexcept {
    std::fprintf(stderr, "%s\n", why);
    std::abort();
  }

  sequence<range> nodes_;
  range_ref first_spare_ = 0;
  std::size_t spare_count_ = 0;
};

}  // namespace tarn::detail
// ---- tarn/pool/arena/run.hpp
// Runs: ranges divided into equal small blocks, each with a bitmap on the host. A block's run is found by the 64 KiB frame that
// contains it, so runs start on a frame and consist of whole frames.

#include <bit>
#include <cstddef>
#include <cstdint>

namespace tarn::detail {

inline constexpr std::size_t frame_bytes = 64_KiB;

/// Bytes of a run: one frame if that holds 16 blocks or more, otherwise four. A partly filled run wastes at most that.
[[nodiscard]] constexpr std::size_t run_bytes(unsigned size_class) noexcept {
  return class_bytes(size_class) <= 4_KiB ? frame_bytes : 4 * frame_bytes;
}

/// Blocks in a run; at most 256.
[[nodiscard]] constexpr std::uint32_t run_blocks(unsigned size_class) noexcept {
  return static_cast<std::uint32_t>(run_bytes(size_class) / class_bytes(size_class));
}

using run_ref = std::uint32_t;  ///< index of a run; 0 is none

struct run {
  std::uintptr_t address = 0;
  std::uint64_t free_bits[4]{};  ///< one bit per block, set if it is free
  std::uint32_t free_count = 0;
  run_ref previous = 0;  ///< neighbours in the list of partly free runs of the same class and domain
  run_ref next = 0;
  range_ref body = 0;
  domain_ref domain = neutral;
  std::uint16_t generation = 0;  ///< of its domain; if the domain's differs now, the run is neutral
  std::uint16_t size_class = 0;

  /// Takes a free block. Requires that there is one.
  [[nodiscard]] void* take() noexcept {
    unsigned word = 0;
    while (free_bits[word] == 0) ++word;
    auto const bit = static_cast<unsigned>(std::countr_zero(free_bits[word]));
    free_bits[word] &= free_bits[word] - 1;
    --free_count;
    return reinterpret_cast<void*>(address + (word * 64 + bit) * class_bytes(size_class));
  }

  /// Puts a block back. Returns false if `p` is not a block of this run, or is already free.
  [[nodiscard]] bool put_back(void const* p) noexcept {
    std::size_t const offset = reinterpret_cast<std::uintptr_t>(p) - address;
    std::size_t const bytes = class_bytes(size_class);
    std::size_t const n = offset / bytes;
    if (offset % bytes != 0 || n >= run_blocks(size_class)) return false;
    std::uint64_t const bit = std::uint64_t{1} << (n % 64);
    if ((free_bits[n / 64] & bit) != 0) return false;
    free_bits[n / 64] |= bit;
    ++free_count;
    return true;
  }
};

/// All runs of a pool, and the lookup from a block to its run.
class run_table {
 public:
  run_table() { runs_.resize(1); }

  /// Makes room for one more run of the largest kind. @throws std::bad_alloc, nothing has changed
  void make_room() {
    frames_.make_room(4);
    if (first_spare_ == 0) {
      std::size_t const first = runs_.size();
      runs_.resize(first * 2);
      for (std::size_t i = runs_.size(); i-- > first;) {
        runs_[i].next = first_spare_;
        first_spare_ = static_cast<run_ref>(i);
      }
    }
  }

  /// Adds a run over a range; all its blocks are free. Requires make_room().
  [[nodiscard]] run_ref add(range_ref body, std::uintptr_t address, unsigned size_class,
                            domain_ref domain) noexcept {
    run_ref const r = first_spare_;
    first_spare_ = runs_[r].next;
    run& made = runs_[r] = run{};
    made.address = address;
    made.body = body;
    made.domain = domain;
    made.size_class = static_cast<std::uint16_t>(size_class);
    made.free_count = run_blocks(size_class);
    for (std::uint32_t n = 0; n < made.free_count; ++n)
      made.free_bits[n / 64] |= std::uint64_t{1} << (n % 64);
    for (std::size_t at = 0; at < run_bytes(size_class); at += frame_bytes) frames_.insert(address + at, r);
    return r;
  }

  void remove(run_ref r) noexcept {
    for (std::size_t at = 0; at < run_bytes(runs_[r].size_class); at += frame_bytes) {
      (void)frames_.erase(runs_[r].address + at);
    }
    runs_[r] = run{};
    runs_[r].next = first_spare_;
    first_spare_ = r;
  }

  /// The run that holds `p`, 0 if none.
  [[nodiscard]] run_ref find(void const* p) const noexcept {
    return frames_.find(align_down(reinterpret_cast<std::uintptr_t>(p), frame_bytes));
  }

  [[nodiscard]] run& operator[](run_ref r) noexcept { return runs_[r]; }
  [[nodiscard]] run const& operator[](run_ref r) const noexcept { return runs_[r]; }
  [[nodiscard]] std::size_t size() const noexcept { return runs_.size(); }
  [[nodiscard]] std::size_t host_bytes() const noexcept {
    return runs_.capacity() * sizeof(run) + frames_.host_bytes();
  }

 private:
  sequence<run> runs_;
  address_map<std::uint32_t> frames_;
  run_ref first_spare_ = 0;
};

/// The partly free runs of one class and domain; the most recently used one first.
struct run_list {
  run_ref head = 0;

  void push(run_table& runs, run_ref r) noexcept {
    runs[r].previous = 0;
    runs[r].next = head;
    if (head != 0) runs[head].previous = r;
    head = r;
  }
  void erase(run_table& runs, run_ref r) noexcept {
    if (runs[r].previous != 0) {
      runs[runs[r].previous].next = runs[r].next;
    } else {
      head = runs[r].next;
    }
    if (runs[r].next != 0) runs[runs[r].next].previous = runs[r].previous;
    runs[r].previous = runs[r].next = 0;
  }
};

}  // namespace tarn::detail

namespace tarn::detail {

struct block_request {
  stream_id id;
  stream_ref stream;
  std::size_t asked;      ///< bytes requested by the caller
  std::size_t alignment;  ///< requested by the caller
  std::size_t block;      ///< bytes taken: `asked`, plus a guard under a tool, rounded
  unsigned size_class;    ///< class_count if none
  bool in_run;            ///< served from a run of its class, otherwise from a range
  zone where;

  /// @param bytes  `asked` plus the guard
  block_request(stream_id i, stream_ref s, std::size_t asked_for, std::size_t bytes,
                std::size_t aligned) noexcept
      : block_request(i, s, asked_for, block_size(bytes, aligned), aligned) {}

 private:
  block_request(stream_id i, stream_ref s, std::size_t asked_for, block_size size,
                std::size_t aligned) noexcept
      : id(i),
        stream(s),
        asked(asked_for),
        alignment(aligned),
        block(size.bytes),
        size_class(size.size_class),
        in_run(size_class < run_class_count),
        where(zone_of(block)) {}
};

/// Blocks of one size: one for the caller, and others of its class for the thread's magazine.
struct block_batch {
  static constexpr std::uint32_t most = 64;
  void* blocks[most];
  std::uint32_t wanted = 1;
  std::uint32_t count = 0;
  bool ends_step = false;  ///< a step of the pool's live_window is over
};

}  // namespace tarn::detail
// ---- tarn/pool/front/front.hpp
// The front of a pool: caches of free blocks, one per thread, that serve warm calls without a lock or a driver call. For each
// stream that it uses, a thread has magazines of free blocks and one large block (magazine.hpp). A cache is made on first use
// and returned to the heap when the thread or the pool ends, or when another thread needs the memory.
//
// A thread enters its own cache through an owner_lock, which costs it two plain stores; other threads stop it with a barrier
// (owner_lock.hpp). The growth lock protects the list of caches.
//
// Over 400 lines: what the owner of a cache and what other threads do with it belong together.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>

// ---- tarn/core/counted.hpp
// counted<T>: a heap object with several owners, on any threads; the last owner deletes it. It replaces std::shared_ptr
// without including <memory> (see owned).

#include <atomic>
#include <cstdint>

namespace tarn::detail {

/// Copies own the same object. Never null and never moved from: a copy is one atomic increment.
template <class T>
class counted {
 public:
  /// Value-initialises the object. @throws std::bad_alloc
  counted() : block_(new block) {}
  counted(counted const& other) noexcept : block_(other.block_) {
    block_->owners.fetch_add(1, std::memory_order_relaxed);
  }
  /// Safe for self-assignment: counts the new owner before releasing the old one.
  counted& operator=(counted const& other) noexcept {  // NOLINT(bugprone-unhandled-self-assignment)
    block* const old = block_;
    other.block_->owners.fetch_add(1, std::memory_order_relaxed);
    block_ = other.block_;
    release(old);
    return *this;
  }
  ~counted() { release(block_); }

  [[nodiscard]] T* get() const noexcept { return &block_->value; }
  [[nodiscard]] T* operator->() const noexcept { return &block_->value; }

 private:
  struct block {
    std::atomic<std::uint32_t> owners{1};
    T value;
  };
  static void release(block* b) noexcept {
    // acq_rel: each owner's accesses happen before the deletion.
    if (b->owners.fetch_sub(1, std::memory_order_acq_rel) == 1) delete b;
  }
  block* block_;
};

}  // namespace tarn::detail
// ---- tarn/pool/front/magazine.hpp
// Bounded arrays of free blocks, one per size class, for one stream on one thread. A hit takes no lock and makes no driver
// call. (Name and idea: Bonwick and Adams, "Magazines and Vmem", USENIX 2001.)

#include <cstddef>
#include <cstdint>
#include <new>

namespace tarn::detail {

/// A stack of blocks of one class. It has no array until the first block is put in.
struct magazine {
  void** blocks = nullptr;  ///< blocks[-1] is null, so that newest() needs no check for an empty magazine
  std::uint32_t count = 0;
  std::uint32_t capacity = 0;

  /// The most recently added block; null if there is none. Requires an array.
  [[nodiscard]] TARN_ALWAYS_INLINE void* newest() const noexcept { return *(blocks + count - 1); }
  /// Host memory of the array, bytes.
  [[nodiscard]] std::size_t host_bytes() const noexcept {
    return capacity != 0 ? (capacity + std::size_t{1}) * sizeof(void*) : 0;
  }
};

/// How many blocks of a class a magazine holds: 1 MiB worth, at least 2 and at most 64. A program that replaces blocks at
/// random then misses once in 20,000 pairs (64 blocks live, up to 256 KiB); with 256 KiB worth, once in 120. All magazines of
/// one stream on one thread together hold at most 104 MiB; what is too much of the pool is returned before it grows (ladder.hpp).
[[nodiscard]] constexpr std::uint32_t magazine_capacity(unsigned size_class) noexcept {
  std::size_t const fit = 1_MiB / class_bytes(size_class);
  return static_cast<std::uint32_t>(fit < 2 ? 2 : (fit > 64 ? 64 : fit));
}

/// Blocks moved at once between a magazine and the arena: half a magazine, so that a thread that alternates at the boundary
/// does not reach the arena every time.
[[nodiscard]] constexpr std::uint32_t magazine_batch(unsigned size_class) noexcept {
  return magazine_capacity(size_class) / 2;
}

/// The blocks of one stream that one thread caches.
struct stream_cache {
  stream_id id = 0;
  stream_ref stream;
  std::uint64_t used = 0;  ///< the thread's count of stream changes when this one was last used
  /// The last freed block above class_limit. Only one: it serves a loop that frees and allocates the same size again. Any other
  /// request returns it to the heap first, so that large ranges coalesce as if it were not cached.
  void* large_block = nullptr;
  std::size_t large_bytes = 0;
  /// The most recently allocated large block. Only this one is cached when it is freed: a longer-lived block is not a
  /// temporary.
  void const* newest_large = nullptr;
  magazine magazines[class_count];

  stream_cache(stream_id stream_identity, stream_ref handle) noexcept : id(stream_identity), stream(handle) {}
  stream_cache(stream_cache const&) = delete;
  stream_cache& operator=(stream_cache const&) = delete;
  ~stream_cache() {
    for (magazine& m : magazines) {
      if (m.blocks != nullptr) delete[] (m.blocks - 1);
    }
  }

  /// Bytes in the magazines.
  [[nodiscard]] std::size_t held_bytes() const noexcept {
    std::size_t sum = large_block != nullptr ? large_bytes : 0;
    for (unsigned k = 0; k < class_count; ++k) sum += magazines[k].count * class_bytes(k);
    return sum;
  }
  /// Host memory of the magazines, bytes.
  [[nodiscard]] std::size_t host_bytes() const noexcept {
    std::size_t sum = sizeof(stream_cache);
    for (magazine const& m : magazines) sum += m.host_bytes();
    return sum;
  }

  /// Makes the array of a class. Returns false if the host has no memory: the block then goes without a magazine.
  [[nodiscard]] bool open(unsigned size_class) noexcept {
    magazine& m = magazines[size_class];
    std::uint32_t const capacity = magazine_capacity(size_class);
    void** const array = new (std::nothrow) void*[capacity + 1];
    if (array == nullptr) return false;
    array[0] = nullptr;
    m.blocks = array + 1;
    m.capacity = capacity;
    return true;
  }
};

}  // namespace tarn::detail
// ---- tarn/pool/front/thread_cache.hpp
// The thread cache: how a thread finds its magazines, and how they return to the heap when the thread or the pool ends.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>

// ---- tarn/pool/front/owner_lock.hpp
// A lock that costs its owner thread two plain stores. The owner enters often; visitors enter rarely (to flush the data) and
// pay for both sides: they make every core execute a barrier (Linux membarrier), so that the owner does not have to.
//
//   owner                         visitor (one at a time)
//   busy = 1                      wanted = 1 (at every lock it will visit)
//   (compiler barrier)            membarrier: all cores have executed a full barrier
//   if wanted: step back          while busy: wait
//   ... data ...                  ... data ...
//   busy = 0 (release)            wanted = 0 (release)
//
// If the owner's store to busy precedes the barrier, the visitor reads it; otherwise the owner's load of wanted follows the
// barrier and reads the visitor's store. Without membarrier the owner executes the fence itself.
//
// A lock that is closed, or watched, fails try_enter(), so that the owner's calls take their slow path; enter() still enters it.
// A visitor closes it for all calls when it leaves (the pool sleeps); the owner watches its own calls (it captures a graph).

#include <atomic>
#include <cstdint>

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tarn::detail {

/// Whether the kernel can execute barriers on other cores. Queried once per process, by the first pool: in a process that already
/// has threads, registering waits for all of them to pass the scheduler, 17 ms on a machine of 16 cores with CUDA running.
/// Not a static with a guard: a child forked meanwhile would wait for the registering thread, which it does not have.
inline bool has_remote_barrier() noexcept {
#if defined(__linux__) && defined(__NR_membarrier) && !TARN_TSAN
  constexpr int yes = 1;
  constexpr int no = 2;
  static constinit std::atomic<int> answer{0};
  int known = answer.load(std::memory_order_relaxed);
  if (known == 0) {  // several threads may ask at once, and get the same answer
    known = syscall(__NR_membarrier, 1 << 4 /* REGISTER_PRIVATE_EXPEDITED */, 0, 0) == 0 ? yes : no;
    answer.store(known, std::memory_order_relaxed);
  }
  return known == yes;
#else
  return false;
#endif
}

/// Makes every thread of the process execute a full barrier before it returns.
inline void remote_barrier() noexcept {
#if defined(__linux__) && defined(__NR_membarrier)
  if (has_remote_barrier()) {
    (void)syscall(__NR_membarrier, 1 << 3 /* PRIVATE_EXPEDITED */, 0, 0);
    return;
  }
#endif
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

/// In a forked child: not every kernel keeps the registration.
inline void renew_remote_barrier() noexcept {
#if defined(__linux__) && defined(__NR_membarrier)
  if (has_remote_barrier()) (void)syscall(__NR_membarrier, 1 << 4 /* REGISTER_PRIVATE_EXPEDITED */, 0, 0);
#endif
}

class owner_lock {
 public:
  owner_lock() noexcept : light_(has_remote_barrier()) {}

  /// Enters as the owner. Returns false if a visitor is inside or waiting; the owner has stepped back and may try again.
  [[nodiscard]] TARN_ALWAYS_INLINE bool try_enter() noexcept {
    busy_.store(1, std::memory_order_relaxed);
    if (light_) [[likely]] {
      std::atomic_signal_fence(std::memory_order_seq_cst);
    } else {
      busy_.exchange(1, std::memory_order_seq_cst);
    }
    if (wanted_.load(std::memory_order_seq_cst) == 0) [[likely]]
      return true;
    busy_.store(0, std::memory_order_release);
    return false;
  }
  /// Enters as the owner, also if the lock is watched or closed, and waits for a visitor to leave.
  TARN_ALWAYS_INLINE void enter() noexcept {
    if (!try_enter()) [[unlikely]]
      wait_to_enter();
  }
  TARN_ALWAYS_INLINE void leave() noexcept { busy_.store(0, std::memory_order_release); }

  /// Announces a visitor; one remote_barrier() then covers all locks where it announced itself. Visitors exclude one another
  /// with a lock of their own.
  void announce() noexcept { wanted_.fetch_or(visitor, std::memory_order_seq_cst); }
  [[nodiscard]] bool is_announced() const noexcept {
    return (wanted_.load(std::memory_order_relaxed) & visitor) != 0;
  }
  /// Closes the lock to try_enter() or opens it again. Called by the owner; another thread executes a remote_barrier() after the
  /// first one, and then visit(), which waits for an owner that had entered before.
  void watch() noexcept { wanted_.fetch_or(watched, std::memory_order_seq_cst); }
  void end_watch() noexcept { wanted_.fetch_and(~watched, std::memory_order_release); }
  [[nodiscard]] bool is_watched() const noexcept {
    return (wanted_.load(std::memory_order_relaxed) & watched) != 0;
  }
  /// Enters as the visitor, once the owner has left.
  void visit() noexcept {
    for (unsigned tries = 0; busy_.load(std::memory_order_seq_cst) != 0; ++tries) spin_wait(tries);
  }
  void end_visit() noexcept { wanted_.fetch_and(~visitor, std::memory_order_release); }
  /// Ends a visit so that try_enter() fails until open_again().
  void close() noexcept {
    wanted_.fetch_or(closed, std::memory_order_seq_cst);
    end_visit();
  }
  void open_again() noexcept { wanted_.fetch_and(~closed, std::memory_order_release); }
  /// Ends, in a forked child, a visit that began before the fork. The owner may have been about to step back, and does not
  /// exist in the child.
  void forget_owner() noexcept { busy_.store(0, std::memory_order_relaxed); }

 private:
  static constexpr std::uint32_t visitor = 1;
  static constexpr std::uint32_t watched = 2;
  static constexpr std::uint32_t closed = 4;

  TARN_NOINLINE void wait_to_enter() noexcept {
    for (unsigned tries = 0;; ++tries) {
      busy_.exchange(1, std::memory_order_seq_cst);
      if ((wanted_.load(std::memory_order_seq_cst) & visitor) == 0) return;
      busy_.store(0, std::memory_order_release);
      spin_wait(tries);
    }
  }

  std::atomic<std::uint32_t> busy_{0};
  std::atomic<std::uint32_t> wanted_{0};
  bool const light_;
};

}  // namespace tarn::detail

namespace tarn::detail {

/// Number of streams per thread with magazines; the least recently used one is evicted. It is more than programs use at a time
/// and small enough to search: 64 compares when the stream changes.
inline constexpr std::size_t cached_streams = 64;

/// The blocks that one thread caches of one pool. The pool owns it; the thread uses it under `lock`.
struct alignas(cache_line_bytes) thread_cache {
  owner_lock lock;
  stream_cache* last = nullptr;  ///< the stream used last: nearly always the next one, too
  /// Written by the owner thread, read by any: bytes and blocks that this thread allocated less those it freed.
  std::atomic<std::int64_t> live_bytes{0};
  std::atomic<std::int64_t> live_blocks{0};
  /// Bytes in the magazines; other threads read it to decide whether to visit.
  std::atomic<std::size_t> held_bytes{0};
  std::atomic<std::size_t> host_bytes{0};  ///< host memory of the magazines
  unsigned watches = 0;                    ///< open captures of this thread; under the growth lock
  std::uint64_t serial = 0;                ///< never reused, unlike the address
  /// The part whose cache serves the capture that this thread opened last; null if none. Set by the owner thread.
  std::atomic<void*> capture{nullptr};
  /// One bit for each stream that ever had a cache here; other threads skip this one if the bit is not set.
  std::atomic<std::uint64_t> stream_bits{0};
  sequence<owned<stream_cache>> streams;

  /// The cache of a stream, or null. Called inside the owner lock.
  [[nodiscard]] TARN_ALWAYS_INLINE stream_cache* find(stream_id id) noexcept {
    if (last != nullptr && last->id == id) [[likely]]
      return last;
    return find_other(id);
  }
  /// Whether a stream may have a cache here. Called by another thread, after a fence.
  [[nodiscard]] bool may_have(stream_id id) const noexcept {
    return (stream_bits.load(std::memory_order_seq_cst) & bit_of(id)) != 0;
  }
  /// Announces that the owner thread will make the cache of a stream, before it looks whether the stream is captured. A thread that
  /// opens a capture does the opposite, with a fence in between: one of the two sees the other.
  void announce_stream(stream_id id) noexcept {
    stream_bits.fetch_or(bit_of(id), std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  TARN_ALWAYS_INLINE void count_live(std::int64_t bytes, std::int64_t blocks) noexcept {
    live_bytes.store(live_bytes.load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
    live_blocks.store(live_blocks.load(std::memory_order_relaxed) + blocks, std::memory_order_relaxed);
  }
  TARN_ALWAYS_INLINE void count_held(std::size_t more, std::size_t less) noexcept {
    held_bytes.store(held_bytes.load(std::memory_order_relaxed) + more - less, std::memory_order_relaxed);
  }
  /// Counts a cached block as live.
  TARN_ALWAYS_INLINE void count_taken(std::size_t block) noexcept {
    count_live(static_cast<std::int64_t>(block), 1);
    count_held(0, block);
  }
  TARN_ALWAYS_INLINE void count_host(std::size_t more, std::size_t less) noexcept {
    host_bytes.store(host_bytes.load(std::memory_order_relaxed) + more - less, std::memory_order_relaxed);
  }

  /// Makes the cache of a stream unknown, so that it can be emptied; null if there is none. The object stays: its thread may be in
  /// a call that uses it. Called inside the owner lock.
  stream_cache* close(stream_id id) noexcept {
    for (auto& s : streams) {
      if (s->id != id) continue;
      count_held(0, s->held_bytes());
      s->id = closed_id;
      s->newest_large = nullptr;
      return s.get();
    }
    return nullptr;
  }

  /// Makes the cache of a stream that has none. If there are too many, moves the least recently used one to `oldest`, and the
  /// caller must return its blocks to the heap. Called inside the owner lock. @throws std::bad_alloc, nothing has changed
  stream_cache* make(stream_id id, stream_ref stream, owned<stream_cache>& oldest) {
    for (auto& s : streams) {
      if (s->id != closed_id) continue;
      leave_last();
      s->id = id;
      s->stream = stream;
      return last = s.get();
    }
    owned<stream_cache> made(new stream_cache(id, stream));
    streams.reserve(streams.size() + 1);
    leave_last();
    if (streams.size() >= cached_streams) {
      std::size_t first = 0;
      for (std::size_t i = 1; i < streams.size(); ++i) {
        if (streams[i]->used < streams[first]->used) first = i;
      }
      oldest = std::move(streams[first]);
      streams.erase_unordered(first);
      count_held(0, oldest->held_bytes());
      count_host(0, oldest->host_bytes());
    }
    count_host(made->host_bytes(), 0);
    last = made.get();
    streams.push_back(std::move(made));
    return last;
  }

 private:
  static constexpr stream_id closed_id = stream_ref::unknown_id;  ///< no call has it

  [[nodiscard]] static std::uint64_t bit_of(stream_id id) noexcept {
    return std::uint64_t{1} << (id * 0x9E3779B97F4A7C15U >> 58);
  }

  TARN_NOINLINE stream_cache* find_other(stream_id id) noexcept {
    for (auto& s : streams) {
      if (s->id != id) continue;
      leave_last();
      return last = s.get();
    }
    return nullptr;
  }
  void leave_last() noexcept {
    if (last != nullptr) last->used = ++changes_;
  }

  std::uint64_t changes_ = 0;
};

/// Source of pool numbers; constant-initialised.
inline constinit std::atomic<std::uint32_t> next_pool_number{0};

/// Links a pool to the threads that cache for it. Outlives both: each side unlinks under the mutex.
struct pool_link {
  fork_mutex mutex;
  std::atomic<void*> pool{nullptr};  ///< null once the pool has ended; changed under the mutex
  /// Takes back the cache of an ending thread; returns false if another thread holds the growth lock. Does not wait for that lock
  /// under the mutex: its holder may be ending the pool of a graph_memory, which takes the mutex.
  bool (*retire)(void* pool, thread_cache* cache) noexcept = nullptr;
  /// The first slot of the table where threads look for their cache. Pools made one after another get different slots.
  std::uint32_t const number = next_pool_number.fetch_add(1, std::memory_order_relaxed);
};

struct local_cache {
  pool_link const* link = nullptr;  ///< null if the place is vacant
  thread_cache* cache = nullptr;
};
inline constexpr local_cache no_local_cache{};

/// The thread's caches by pool: a hash table with linear probing, at most a quarter full, whose memory thread_exit owns. Plain
/// data: it needs no construction and no guard. Before the first pool and after the thread's end it is one vacant place.
struct local_cache_table {
  local_cache const* places = &no_local_cache;
  std::uint32_t mask = 0;  ///< number of places minus one

  /// Null if the thread has no cache of that pool. One compare if no other pool of the thread has the same first place.
  [[nodiscard]] TARN_ALWAYS_INLINE thread_cache* find(pool_link const* link,
                                                      std::uint32_t number) const noexcept {
    local_cache const& first = places[number & mask];
    if (first.link == link) [[likely]]
      return first.cache;
    return find_other(link, number);
  }

 private:
  TARN_NOINLINE thread_cache* find_other(pool_link const* link, std::uint32_t number) const noexcept {
    for (std::uint32_t at = number & mask; places[at].link != nullptr; at = (at + 1) & mask) {
      if (places[at].link == link) return places[at].cache;
    }
    return nullptr;
  }
};
inline thread_local constinit local_cache_table local_caches{};

/// Returns the caches of an ending thread to the pools that still exist.
class thread_exit {
 public:
  struct entry {
    counted<pool_link> link;
    thread_cache* cache;
  };

  thread_exit() noexcept = default;
  thread_exit(thread_exit const&) = delete;
  thread_exit& operator=(thread_exit const&) = delete;
  ~thread_exit() {
    over = true;
    local_caches = {};
    for (entry const& e : entries_) {
      for (unsigned tries = 0; !give_back(e); ++tries) spin_wait(tries);
    }
  }

  /// Adds a cache and drops those of ended pools. Amortised O(1). @throws std::bad_alloc, nothing has changed
  void add(counted<pool_link> const& link, thread_cache* cache) {
    entries_.reserve(entries_.size() + 1);
    if ((entries_.size() + 1) * places_each > places_.size()) lay_out_again();
    entries_.push_back({link, cache});
    place(places_, entries_.back());
  }

  /// True once this thread's caches were given back: later code (static destructors) runs without caches.
  static inline thread_local constinit bool over = false;

  static thread_exit& of_this_thread() {
    static thread_local thread_exit hook;
    return hook;
  }

 private:
  [[nodiscard]] static bool give_back(entry const& e) noexcept {
    std::lock_guard const guard(e.link->mutex);
    return e.link->pool == nullptr || e.link->retire(e.link->pool, e.cache);
  }

  static constexpr std::size_t places_each = 4;
  static constexpr std::size_t least_places = 16;

  /// Whether the pool has ended; it may end during this call. Does not take the link's mutex: an ending thread holds it
  /// together with the pool's growth lock, and this thread may hold the growth lock of a pool over pools.
  [[nodiscard]] static bool is_gone(entry const& e) noexcept {
    return e.link->pool.load(std::memory_order_acquire) == nullptr;
  }

  /// Makes a table with room for twice as many pools, without the ended ones.
  void lay_out_again() {
    sequence<entry> left;
    left.reserve(entries_.size() + 1);
    for (entry const& e : entries_) {
      if (!is_gone(e)) left.push_back(e);
    }
    std::size_t count = least_places;
    while (count < (left.size() + 1) * places_each * 2) count *= 2;
    sequence<local_cache> places;
    places.resize(count);
    for (entry const& e : left) place(places, e);
    // Replace the table before `left` releases its links: the memory of a released link may become another pool's link.
    local_caches = {places.begin(), static_cast<std::uint32_t>(count - 1)};
    places_.swap(places);
    entries_.swap(left);
  }

  static void place(sequence<local_cache>& places, entry const& e) noexcept {
    std::size_t const mask = places.size() - 1;
    std::size_t at = e.link->number & mask;
    while (places[at].link != nullptr) at = (at + 1) & mask;
    places[at] = {e.link.get(), e.cache};
  }

  sequence<entry> entries_;
  sequence<local_cache> places_;  ///< the memory of local_caches
};

}  // namespace tarn::detail
// ---- tarn/pool/misuse_notes.hpp
// Misuse detected under the hot lock, kept until the call has released its locks, since the misuse handler may use the pool.

#include <atomic>
#include <cstdint>

// ---- tarn/pool/arena/arena.hpp
// The arena: every range the pool holds, its owner, and how ranges are split and coalesced. Pure bookkeeping: it never calls
// the driver, so it is safe under the hot lock, and it does not depend on a source, so one test covers all of it.
//
// Over 400 lines: a split or a free changes the range, its neighbours, the indexes and the counters in one step.

#include <cstddef>
#include <cstdint>

// ---- tarn/core/counter.hpp
// Statistics in the form that PyTorch uses: current, peak, and total increases and decreases.

#include <cstdint>

namespace tarn {

/// One statistic. Not synchronised: the owner holds a lock.
struct stat {
  std::int64_t current = 0;
  std::int64_t peak = 0;       ///< since the last reset_peak()
  std::int64_t allocated = 0;  ///< total of all increases
  std::int64_t freed = 0;      ///< total of all decreases

  constexpr void increase(std::int64_t amount) noexcept {
    current += amount;
    allocated += amount;
    peak = detail::max_of(peak, current);
  }
  constexpr void decrease(std::int64_t amount) noexcept {
    current -= amount;
    freed += amount;
  }
  /// Applies many changes at once, none of which exceeded the peak; `came` is the sum of the increases.
  constexpr void add(std::int64_t change, std::int64_t came) noexcept {
    current += change;
    allocated += came;
    freed += came - change;
  }
  constexpr void reset_peak() noexcept { peak = current; }
  constexpr void reset_totals() noexcept { allocated = freed = 0; }
};

}  // namespace tarn
// ---- tarn/pool/arena/address_index.hpp
// An index from an address to the range that covers it, in O(1) for ranges of any size. It stores for each granule the last
// range that starts in it, and two levels of bitmaps to find the nearest lower granule with one.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace tarn::detail {

class address_index {
 public:
  address_index() noexcept = default;
  address_index(address_index const&) = delete;
  address_index& operator=(address_index const&) = delete;
  ~address_index() { close(); }

  /// Covers [base, base + bytes); before this, every call does nothing. Four bytes per granule, touched only where ranges
  /// start. Forgets what it covered before. @throws std::bad_alloc
  void open(std::uintptr_t base, std::size_t bytes, std::size_t granularity) {
    close();
    std::size_t const granules = bytes / granularity;
    // calloc, so that the tables of a huge range use host memory only where they are touched.
    last_ = static_cast<range_ref*>(std::calloc(granules, sizeof(range_ref)));
    starts_ = static_cast<std::uint64_t*>(std::calloc(granules / 64 + 1, sizeof(std::uint64_t)));
    words_ = static_cast<std::uint64_t*>(std::calloc(granules / 4096 + 1, sizeof(std::uint64_t)));
    if (last_ == nullptr || starts_ == nullptr || words_ == nullptr) throw std::bad_alloc();
    base_ = base;
    bytes_ = bytes;
    shift_ = static_cast<unsigned>(std::countr_zero(granularity));
  }

  /// Adds a range; its neighbours are already linked.
  void note(range_table const& table, range_ref r) noexcept {
    std::uintptr_t const address = table[r].address;
    if (!covers(address)) return;
    std::size_t const g = granule_of(address);
    if (last_[g] != 0 && table[last_[g]].address > address) return;
    last_[g] = r;
    starts_[g / 64] |= std::uint64_t{1} << (g % 64);
    words_[g / 4096] |= std::uint64_t{1} << (g / 64 % 64);
  }

  /// Removes a range; its neighbours are still linked.
  void drop(range_table const& table, range_ref r) noexcept {
    if (!covers(table[r].address)) return;
    std::size_t const g = granule_of(table[r].address);
    if (last_[g] != r) return;
    range_ref const before = table[r].previous;
    if (before != 0 && covers(table[before].address) && granule_of(table[before].address) == g) {
      last_[g] = before;
      return;
    }
    last_[g] = 0;
    starts_[g / 64] &= ~(std::uint64_t{1} << (g % 64));
    if (starts_[g / 64] == 0) words_[g / 4096] &= ~(std::uint64_t{1} << (g / 64 % 64));
  }

  /// The range that covers `address`. Requires that one does.
  [[nodiscard]] range_ref find(range_table const& table, std::uintptr_t address) const noexcept {
    range_ref r = last_[granule_with_start(granule_of(address))];
    while (table[r].address > address) r = table[r].previous;
    return r;
  }

  [[nodiscard]] bool covers(std::uintptr_t address) const noexcept {
    return address >= base_ && address - base_ < bytes_;
  }

 private:
  void close() noexcept {
    std::free(last_);
    std::free(starts_);
    std::free(words_);
    last_ = nullptr;
    starts_ = words_ = nullptr;
    bytes_ = 0;
  }
  [[nodiscard]] std::size_t granule_of(std::uintptr_t address) const noexcept {
    return (address - base_) >> shift_;
  }

  /// The granule itself or the nearest lower one in which a range starts. Requires that there is one.
  [[nodiscard]] std::size_t granule_with_start(std::size_t g) const noexcept {
    if (std::uint64_t const here = up_to(starts_[g / 64], g % 64); here != 0)
      return g / 64 * 64 + highest(here);
    std::size_t word = g / 64;
    if (std::uint64_t const near = below(words_[word / 64], word % 64); near != 0) {
      word = word / 64 * 64 + highest(near);
    } else {
      std::size_t group = word / 64 - 1;
      while (words_[group] == 0) --group;
      word = group * 64 + highest(words_[group]);
    }
    return word * 64 + highest(starts_[word]);
  }
  static std::uint64_t up_to(std::uint64_t bits, std::size_t i) noexcept {
    return bits & (~std::uint64_t{0} >> (63 - i));
  }
  static std::uint64_t below(std::uint64_t bits, std::size_t i) noexcept {
    return bits & ((std::uint64_t{1} << i) - 1);
  }
  static std::size_t highest(std::uint64_t bits) noexcept {
    return 63 - static_cast<std::size_t>(std::countl_zero(bits));
  }

  range_ref* last_ = nullptr;
  std::uint64_t* starts_ = nullptr;  ///< one bit per granule: a range starts in it
  std::uint64_t* words_ = nullptr;   ///< one bit per word of `starts_` that is not 0
  std::uintptr_t base_ = 0;
  std::size_t bytes_ = 0;
  unsigned shift_ = 0;
};

}  // namespace tarn::detail
// ---- tarn/pool/arena/live_window.hpp
// How much memory was live lately: the peak of live bytes over the last allocations from the arena. If it has fallen, the pool gives
// back by itself what it no longer needs (heap::give_back_unused). Pure arithmetic.
//
// Time is counted in bytes taken from the arena, in steps of a multiple of the reserved bytes. Blocks that a thread takes from its
// own cache are not counted: a warm call costs nothing, and a program of warm calls alone keeps its memory.

#include <cstddef>
#include <cstdint>

namespace tarn::detail {

class live_window {
 public:
  /// The window has this many steps: memory is given back once the live peak stayed lower for all of them.
  static constexpr unsigned steps = 4;
  /// The volume of a step at first, in multiples of the reserved bytes, and by which part of the live peak the window's peak must be
  /// lower. With 32 and an eighth, or 16 and a quarter, 20 passes of the recorded traces and of the patterns of tarn_replay give
  /// nothing back. With 16 and an eighth, two of them give back what they need again: warm passes of `bert_recompute` take 10 times
  /// the driver time. Bytes beyond the live peak are no reason: given back, the free parts of handles between live blocks become
  /// more, and up to 0.05 of the utilisation was lost.
  static constexpr std::size_t first_factor = 32;
  static constexpr std::size_t least_fall = 8;
  /// With this factor the pool no longer gives back by itself.
  static constexpr std::size_t last_factor = std::size_t{1} << 20;

  /// Counts one allocation. @param live  live bytes with it
  void note(std::size_t bytes, std::size_t live) noexcept {
    volume_ += bytes;
    peak_[0] = max_of(peak_[0], live);
  }
  [[nodiscard]] bool is_step_over() const noexcept { return volume_ >= step_ends_; }

  /// The live peak of the window, bytes.
  [[nodiscard]] std::size_t peak() const noexcept {
    std::size_t most = 0;
    for (std::size_t const p : peak_) most = max_of(most, p);
    return most;
  }
  /// Bytes taken since the start.
  [[nodiscard]] std::size_t volume() const noexcept { return volume_; }
  /// The volume of a step, in multiples of the reserved bytes.
  [[nodiscard]] std::size_t factor() const noexcept { return factor_; }

  /// Ends a step and begins the next one. Returns whether the live peak of the last steps was lower than `live_peak` was before.
  bool end_step(std::size_t reserved, std::size_t live, std::size_t live_peak) noexcept {
    // What was given back is needed again: the window was too short. It gets twice the volume, so a program whose peaks return
    // creates handles for this reason only as often as the logarithm of the bytes that it allocates.
    if (before_ != 0 && reserved > after_ + (before_ - after_) / 2) {
      factor_ = min_of(factor_ * 2, last_factor);
      before_ = 0;
      ended_ = 0;
    }
    ended_ = min_of(ended_ + 1, steps);
    bool const fell = ended_ == steps && factor_ < last_factor && peak() < live_peak - live_peak / least_fall;
    for (unsigned i = steps - 1; i > 0; --i) peak_[i] = peak_[i - 1];
    peak_[0] = live;
    step_ends_ = volume_ + max_of(reserved, least_reserved) * factor_;
    return fell;
  }
  /// Notes that `given` bytes were given back because the peak fell. @param left  bytes that stay reserved
  void note_given(std::size_t given, std::size_t left) noexcept {
    if (given == 0) return;
    before_ = max_of(before_, left + given);
    after_ = left;
  }

 private:
  static constexpr std::size_t least_reserved = 64_MiB;

  std::size_t volume_ = 0;
  std::size_t step_ends_ = 0;     ///< at this volume
  std::size_t peak_[steps] = {};  ///< live peaks of the steps, the current one first
  unsigned ended_ = 0;            ///< steps that ended, up to all
  std::size_t factor_ = first_factor;
  std::size_t before_ =
      0;  ///< most reserved bytes before a release, since a release was last a mistake; 0 if there was none
  std::size_t after_ = 0;  ///< reserved bytes after the last release
};

}  // namespace tarn::detail
// ---- tarn/pool/arena/page_map.hpp
// The page map: the physical handle behind each address. Every handle is first mapped at its home address, within one long
// virtual range, and stays mapped there until it is destroyed or the pool sleeps. All records of free and live bytes use home addresses. (Views
// map handles at further addresses: view.hpp.)

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace tarn::detail {

using handle_ref = std::uint32_t;  ///< index of a handle; 0 is none

/// Whether there is memory behind a handle's addresses. Other states than `mapped` occur only while the pool sleeps.
enum class backing : std::uint8_t {
  mapped,    ///< at its home address, and in the views that show it
  unmapped,  ///< created, but not mapped
  released   ///< destroyed; its addresses, size and ranges are kept
};

/// One physical handle.
struct physical {
  page_handle id = 0;
  std::size_t bytes = 0;    ///< 0 if the entry is unused
  std::uintptr_t home = 0;  ///< in an unused entry: the index of the next one
  backing state = backing::mapped;
  bool stays = false;      ///< the pool sleeps, but not this handle: it was pinned when the pool fell asleep
  std::uint32_t pins = 0;  ///< while there are any, it is not given back, replaced or put to sleep
};

class page_map {
 public:
  page_map() noexcept = default;
  page_map(page_map const&) = delete;
  page_map& operator=(page_map const&) = delete;
  ~page_map() { std::free(table_); }

  /// Home addresses lie in [base, base + home_bytes); views follow up to base + bytes. @throws std::bad_alloc
  void open(std::uintptr_t base, std::size_t home_bytes, std::size_t bytes, std::size_t granularity) {
    handles_.resize(1);
    table_ = static_cast<handle_ref*>(std::calloc(home_bytes / granularity, sizeof(handle_ref)));
    if (table_ == nullptr) throw std::bad_alloc();
    base_ = base;
    home_bytes_ = home_bytes;
    bytes_ = bytes;
    granularity_ = granularity;
    shift_ = static_cast<unsigned>(std::countr_zero(granularity));
  }
  [[nodiscard]] bool is_open() const noexcept { return table_ != nullptr; }

  /// The handle at a home address, 0 if none.
  [[nodiscard]] handle_ref at(std::uintptr_t address) const noexcept {
    return table_[(address - base_) >> shift_];
  }
  [[nodiscard]] physical const& operator[](handle_ref h) const noexcept { return handles_[h]; }
  /// One more than the largest index.
  [[nodiscard]] handle_ref size() const noexcept { return static_cast<handle_ref>(handles_.size()); }
  [[nodiscard]] std::uintptr_t end_of(handle_ref h) const noexcept {
    return handles_[h].home + handles_[h].bytes;
  }

  /// Makes room to add `count` handles. @throws std::bad_alloc
  void make_room(std::size_t count) { handles_.reserve(handles_.size() + count); }

  /// Adds a handle that is mapped at its home address. Requires make_room().
  handle_ref add(page_handle id, std::size_t bytes, std::uintptr_t home) noexcept {
    handle_ref h = first_unused_;
    if (h != 0) {
      first_unused_ = static_cast<handle_ref>(handles_[h].home);
      handles_[h] = physical{id, bytes, home};
    } else {
      h = size();
      handles_.push_back(physical{id, bytes, home});
    }
    fill(h, h);
    ++count_;
    return h;
  }
  /// Changes what is behind a handle's addresses. Under the growth lock; the arena reads neither value.
  void set(handle_ref h, page_handle id, backing state) noexcept {
    handles_[h].id = id;
    handles_[h].state = state;
  }
  void pin(handle_ref h) noexcept { ++handles_[h].pins; }
  void unpin(handle_ref h) noexcept { --handles_[h].pins; }
  /// At the begin of a sleep: pinned handles stay; at its end: none is treated apart.
  void keep_pinned() noexcept {
    for (physical& p : handles_) p.stays = p.pins != 0;
  }
  void treat_all_alike() noexcept {
    for (physical& p : handles_) p.stays = false;
  }
  void remove(handle_ref h) noexcept {
    fill(h, 0);
    handles_[h] = physical{0, 0, first_unused_};
    first_unused_ = h;
    --count_;
  }

  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  [[nodiscard]] std::size_t granularity() const noexcept { return granularity_; }
  [[nodiscard]] std::uintptr_t base() const noexcept { return base_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] bool contains(std::uintptr_t address) const noexcept {
    return is_open() && address >= base_ && address - base_ < bytes_;
  }
  [[nodiscard]] bool is_home(std::uintptr_t address) const noexcept { return address - base_ < home_bytes_; }
  [[nodiscard]] std::size_t host_bytes() const noexcept { return handles_.capacity() * sizeof(physical); }

 private:
  void fill(handle_ref h, handle_ref value) noexcept {
    std::size_t const first = (handles_[h].home - base_) >> shift_;
    for (std::size_t g = 0; g < handles_[h].bytes >> shift_; ++g) table_[first + g] = value;
  }

  handle_ref* table_ = nullptr;  ///< one entry per granule of the home addresses
  sequence<physical> handles_;
  std::uintptr_t base_ = 0;
  std::size_t home_bytes_ = 0;
  std::size_t bytes_ = 0;
  std::size_t granularity_ = 0;
  std::size_t count_ = 0;
  unsigned shift_ = 0;
  handle_ref first_unused_ = 0;
};

}  // namespace tarn::detail
// ---- tarn/pool/arena/stream_order.hpp
// Stream order: which stream may reuse which memory without synchronisation. Each stream has a domain: the free memory that its
// own later work may take at once, with no driver call. Frees carry the domain's epoch; one event, recorded only when another
// stream is short of memory, covers every epoch up to now.
//
//   stream A              pool                             stream B
//   kernel uses p
//   deallocate(A, p) ---> p is free in A's domain, epoch 7
//                         A allocates: p at once, no driver call
//                         B allocates and has no free memory left:
//                           record event on A   (epoch 7 is covered, frees from now on are epoch 8)
//                           already complete?  -> p is neutral: every stream may take it
//                           else B waits for the event (on the device) -> p joins B's domain
//
// From CUDA 12.5 on, one event marks the work of all streams of the device (order/mark_work.hpp). Blocks of a run that is partly in
// use stay with their stream until it is swept (order/reclaim.hpp).

#include <atomic>
#include <cstdint>
#include <new>

// ---- tarn/pool/arena/range_index.hpp
// Free ranges by size, found in O(1) for any number of ranges. Two levels of bitmaps over bins, after TLSF (Masmano, Ripoll,
// Crespo, Real, ECRTS 2004), with a short search inside a bin so that the fit is close to the best.
// A range before a hole is taken only if no other range fits, whatever its size (wilderness preservation: Korn and Vo, 1985):
// it can grow, and a second pass over the same requests, which finds it grown, then places every block as the first pass did.

#include <bit>
#include <cstddef>
#include <cstdint>

namespace tarn::detail {

class range_index {
 public:
  /// Bins per doubling: with 16, ranges in one bin differ by at most 6.25 %.
  static constexpr unsigned bins_per_doubling = 16;
  static constexpr unsigned levels = 36;  ///< up to 512 B << 40: beyond any address space
  /// How many ranges of a bin are searched for the best fit.
  static constexpr std::size_t search_limit = 24;
  /// How many ranges of a list are searched for the largest one.
  static constexpr std::size_t largest_limit = 256;

  void insert(range_table& table, range_ref r) noexcept {
    range& node = table[r];
    node.at_end = node.next != 0 && table[node.next].state == range_state::hole;
    unsigned const bin = bin_of(node.bytes);
    range_ref& head = node.at_end ? ends_ : heads_[bin];
    node.bin_previous = 0;
    node.bin_next = head;
    if (head != 0) table[head].bin_previous = r;
    head = r;
    if (!node.at_end) {
      sub_[bin / bins_per_doubling] |= static_cast<std::uint16_t>(1U << (bin % bins_per_doubling));
      top_ |= std::uint64_t{1} << (bin / bins_per_doubling);
    }
    bytes_ += node.bytes;
    ++count_;
  }

  void erase(range_table& table, range_ref r) noexcept {
    range& node = table[r];
    unsigned const bin = bin_of(node.bytes);
    if (node.bin_previous != 0) {
      table[node.bin_previous].bin_next = node.bin_next;
    } else if (node.at_end) {
      ends_ = node.bin_next;
    } else {
      heads_[bin] = node.bin_next;
      if (heads_[bin] == 0) {
        unsigned const level = bin / bins_per_doubling;
        sub_[level] &= static_cast<std::uint16_t>(~(1U << (bin % bins_per_doubling)));
        if (sub_[level] == 0) top_ &= ~(std::uint64_t{1} << level);
      }
    }
    if (node.bin_next != 0) table[node.bin_next].bin_previous = node.bin_previous;
    bytes_ -= node.bytes;
    --count_;
  }

  /// The smallest range found that holds `bytes` at `alignment`; 0 if none. Ties go to the lower address. Searches `limit`
  /// ranges of a bin: a fitting range may be missed among more of similar size.
  [[nodiscard]] range_ref find(range_table const& table, std::size_t bytes, std::size_t alignment,
                               std::size_t limit = search_limit) const noexcept {
    unsigned bin = bin_of(bytes);
    for (; (bin = next_bin(bin)) < bin_count; ++bin) {
      range_ref const best = best_of(table, heads_[bin], bytes, alignment, limit);
      if (best != 0) return best;
    }
    return ends_ != 0 ? best_of(table, ends_, bytes, alignment, limit) : 0;
  }

  /// Calls f(range_ref) for each range of at least `bytes`, smaller bins first, ranges before a hole last; f must not change
  /// the index.
  template <class F>
  void for_each(range_table const& table, std::size_t bytes, F&& f) const {
    for (unsigned bin = next_bin(bin_of(bytes)); bin < bin_count; bin = next_bin(bin + 1)) {
      for (range_ref r = heads_[bin]; r != 0; r = table[r].bin_next) {
        if (table[r].bytes >= bytes) f(r);
      }
    }
    for (range_ref r = ends_; r != 0; r = table[r].bin_next) {
      if (table[r].bytes >= bytes) f(r);
    }
  }

  /// Calls f(range_ref) for each range that was before a hole when it was inserted.
  template <class F>
  void for_each_at_end(range_table const& table, F&& f) const {
    for (range_ref r = ends_; r != 0; r = table[r].bin_next) f(r);
  }

  /// Any range, 0 if empty.
  [[nodiscard]] range_ref any() const noexcept {
    unsigned const bin = next_bin(0);
    return bin < bin_count ? heads_[bin] : ends_;
  }

  /// Bytes of the largest range; of more than largest_limit ranges of similar size, one of the largest: at most 6.25 % less. O(1)
  [[nodiscard]] std::size_t largest(range_table const& table) const noexcept {
    std::size_t most = 0;
    auto const look = [&](range_ref r) {
      for (std::size_t left = largest_limit; r != 0 && left != 0; r = table[r].bin_next, --left)
        most = table[r].bytes > most ? table[r].bytes : most;
    };
    look(ends_);
    if (top_ != 0) {
      auto const level = static_cast<unsigned>(std::bit_width(top_)) - 1;
      look(heads_[level * bins_per_doubling + static_cast<unsigned>(std::bit_width(sub_[level])) - 1]);
    }
    return most;
  }

  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::size_t count() const noexcept { return count_; }

 private:
  /// The smallest of a list's first `limit` ranges that holds the request; 0 if none.
  static range_ref best_of(range_table const& table, range_ref r, std::size_t bytes, std::size_t alignment,
                           std::size_t limit) noexcept {
    range_ref best = 0;
    for (std::size_t looked_at = 0; r != 0 && looked_at < limit; r = table[r].bin_next, ++looked_at) {
      range const& node = table[r];
      std::size_t const skipped = align_up(node.address, alignment) - node.address;
      if (node.bytes < skipped || node.bytes - skipped < bytes) continue;
      if (best == 0 || node.bytes < table[best].bytes ||
          (node.bytes == table[best].bytes && node.address < table[best].address)) {
        best = r;
      }
    }
    return best;
  }

  static constexpr unsigned bin_count = levels * bins_per_doubling;

  /// Below 16 grains, one bin per grain; above, the bin is the four bits after the leading one.
  static unsigned bin_of(std::size_t bytes) noexcept {
    std::size_t const grains = bytes / range_grain;
    if (grains < bins_per_doubling) return static_cast<unsigned>(grains);
    auto const exponent = static_cast<unsigned>(std::bit_width(grains)) - 1;
    unsigned const bin =
        (exponent - 3) * bins_per_doubling + static_cast<unsigned>((grains >> (exponent - 4)) & 15);
    return bin < bin_count ? bin : bin_count - 1;
  }

  /// The first non-empty bin from `bin` on.
  [[nodiscard]] unsigned next_bin(unsigned bin) const noexcept {
    if (bin >= bin_count) return bin_count;
    unsigned level = bin / bins_per_doubling;
    unsigned const here = static_cast<unsigned>(sub_[level]) >> (bin % bins_per_doubling);
    if (here != 0) return bin + static_cast<unsigned>(std::countr_zero(here));
    if (level + 1 >= levels) return bin_count;
    std::uint64_t const above = top_ >> (level + 1);
    if (above == 0) return bin_count;
    level += 1 + static_cast<unsigned>(std::countr_zero(above));
    return level * bins_per_doubling +
           static_cast<unsigned>(std::countr_zero(static_cast<unsigned>(sub_[level])));
  }

  std::uint64_t top_ = 0;
  std::uint16_t sub_[levels]{};
  range_ref heads_[bin_count]{};
  range_ref ends_ = 0;  ///< ranges before a hole
  std::size_t bytes_ = 0;
  std::size_t count_ = 0;
};

}  // namespace tarn::detail

namespace tarn::detail {

/// The identity of "no stream": memory that nothing on the device uses (allocate_sync).
inline constexpr stream_id neutral_id = ~stream_id{0};

/// The identity that memory of a graph capture is kept under (pool/graph/): no stream has one with these two bits, see
/// cuda_driver. Nothing is recorded on it and no other stream takes its memory. When the capture ends, its memory becomes neutral.
[[nodiscard]] constexpr stream_id capture_stream_id(std::uint64_t number) noexcept {
  return stream_id{1} << 62 | number;
}
[[nodiscard]] constexpr bool is_capture_stream(stream_id id) noexcept {
  return id >> 62 == 1;
}

struct stream_domain {
  stream_id id = 0;
  stream_ref stream;
  bool climbing = false;       ///< its stream is climbing the ladder, see ladder
  bool gone = false;           ///< its stream was destroyed; nothing may be recorded on it
  bool used = false;           ///< looked up by a thread since the last sweep, see stream_table
  bool runs_marked = false;    ///< `freed` covers what is free in its runs, which carry no marks of their own
  std::uint64_t epoch = 1;     ///< the mark of memory freed now
  std::uint64_t freed = 0;     ///< newest mark on memory that is free or stale here
  std::uint64_t recorded = 0;  ///< marks up to here are covered by `event`
  std::uint64_t completed = 0;  ///< marks up to here are complete on the device
  event_handle event = nullptr;
  domain_ref next_free = neutral;  ///< of a free place
  std::uint16_t generation = 0;    ///< number of streams that had this place before
  range_index index[zone_count];
  run_list runs[run_class_count];
  /// Blocks freed on this stream that were cut from another domain's run. This stream reuses them; they return to their runs
  /// when the device has completed `foreign_epoch`.
  sequence<void*> foreign[run_class_count];
  std::size_t foreign_count = 0;
  std::uint64_t foreign_epoch = 0;

  [[nodiscard]] range_index& ranges(zone where) noexcept { return index[static_cast<std::size_t>(where)]; }
  [[nodiscard]] range_index const& ranges(zone where) const noexcept {
    return index[static_cast<std::size_t>(where)];
  }
  [[nodiscard]] std::size_t free_bytes() const noexcept { return index[0].bytes() + index[1].bytes(); }
  [[nodiscard]] std::size_t range_count() const noexcept { return index[0].count() + index[1].count(); }
  /// Whether it holds memory that another stream could take once it is ordered.
  [[nodiscard]] bool has_free() const noexcept { return free_bytes() != 0 || foreign_count != 0; }
  [[nodiscard]] bool holds_no_run() const noexcept {
    for (run_list const& list : runs) {
      if (list.head != 0) return false;
    }
    return true;
  }
  /// Whether the device has completed the uses of all that was freed here.
  [[nodiscard]] bool is_completed() const noexcept { return freed <= completed; }
  /// Whether nothing is left of it; its stream gets a new domain if it is used again. Work not known to be complete counts as
  /// left: views may be marked with it, and completed marks of the next stream in its place would be mistaken for its own.
  [[nodiscard]] bool is_empty() const noexcept {
    return !climbing && id != 0 && id != neutral_id && is_completed() && !has_free() && holds_no_run();
  }
  /// Whether its stream was destroyed and nothing is left of it.
  [[nodiscard]] bool is_over() const noexcept { return gone && is_empty(); }
  /// Marks a free and returns the mark.
  std::uint64_t mark() noexcept { return freed = epoch; }
};

/// The domains of a pool by stream identity. Protected by the arena's lock; a domain is forgotten only under the growth lock,
/// too, so that a climbing thread may keep its index while the arena's lock is released.
///
/// The end of a thread, and of its default stream, is not reported. Therefore the pool sweeps the domains when there are many
/// (sweep() in reclaim.hpp): it forgets a domain that no thread has looked up since the last sweep and whose work is complete.
/// If its stream still exists, it gets a new domain on its next use. The next sweep comes after as many new streams as the last
/// one queried the driver about without success, or an eighth of those left if that is more. Its cost per new stream is thus
/// constant, and the number of domains is bounded by the streams that are used between two sweeps or that hold something.
class stream_table {
 public:
  /// No sweep before this many new streams.
  static constexpr std::size_t sweep_from = 16;

  stream_table() {
    domains_.push_back(owned(new stream_domain));
    domains_[neutral]->id = neutral_id;
  }

  /// The domain of a stream, made on first use. A handle that returns with a higher identity (they are counted up) means that
  /// its former stream was destroyed; a thread may still return blocks that it cached for that stream. O(1).
  /// @throws std::bad_alloc, nothing has changed
  [[nodiscard]] TARN_ALWAYS_INLINE domain_ref get(stream_id id, stream_ref stream) {
    domain_ref& recent = recent_[id % recent_count];
    if (domains_[recent]->id != id) [[unlikely]]
      recent = get_other(id, stream);
    domains_[recent]->used = true;
    return recent;
  }

  /// The domain of a stream, or `neutral` if it has none; never allocates.
  [[nodiscard]] domain_ref find(stream_id id) const noexcept {
    return static_cast<domain_ref>(by_id_.find(id));
  }

  /// Forgets an empty domain; its place is reused. Epochs continue counting, so that an old mark is never mistaken for a new
  /// one. Runs that are wholly handed out keep its index and generation: they are neutral from now on. The caller holds the
  /// growth lock.
  void forget(domain_ref d) noexcept {
    stream_domain& domain = *domains_[d];
    (void)by_id_.erase(domain.id);
    if (newest_of_handle(domain.stream) == d) (void)by_handle_.erase(key_of(domain.stream));
    domain.id = 0;
    domain.stream = {};
    domain.gone = false;
    domain.used = domain.runs_marked = false;
    ++domain.generation;
    domain.next_free = first_free_;
    first_free_ = d;
    --in_use_;
  }

  /// Whether the domains should be swept. Needs no lock.
  [[nodiscard]] bool is_crowded() const noexcept { return crowded_.load(std::memory_order_relaxed); }
  /// Ends a sweep over all domains, which queried the driver about `in_vain` of them without success.
  void swept(std::size_t in_vain) noexcept {
    sweep_at_ = in_use_ + max_of(sweep_from, max_of(in_vain, in_use_ / 8));
    crowded_.store(false, std::memory_order_relaxed);
  }

  [[nodiscard]] stream_domain& operator[](domain_ref d) noexcept { return *domains_[d]; }
  [[nodiscard]] stream_domain const& operator[](domain_ref d) const noexcept { return *domains_[d]; }
  /// One more than the largest index; places may be free (identity 0).
  [[nodiscard]] domain_ref size() const noexcept { return static_cast<domain_ref>(domains_.size()); }
  /// Number of streams that have a domain now.
  [[nodiscard]] std::size_t in_use() const noexcept { return in_use_; }
  [[nodiscard]] std::size_t host_bytes() const noexcept {
    return domains_.size() * sizeof(stream_domain) + domains_.capacity() * sizeof(owned<stream_domain>) +
           by_id_.host_bytes() + by_handle_.host_bytes();
  }

 private:
  static constexpr std::size_t max_domains = ~domain_ref{0} - 1;
  static constexpr std::size_t recent_count = 64;

  static std::uintptr_t key_of(stream_ref stream) noexcept {
    return reinterpret_cast<std::uintptr_t>(stream.handle());
  }
  /// The domain of the newest stream seen under a handle; `neutral` if there is none.
  [[nodiscard]] domain_ref newest_of_handle(stream_ref stream) const noexcept {
    return is_default_stream(stream) ? neutral : static_cast<domain_ref>(by_handle_.find(key_of(stream)));
  }

  TARN_NOINLINE domain_ref get_other(stream_id id, stream_ref stream) {
    if (domain_ref const known = find(id); known != neutral || id == neutral_id) return known;
    by_id_.make_room(1);
    by_handle_.make_room(1);
    if (first_free_ == neutral) {
      if (domains_.size() == max_domains) throw std::bad_alloc();
      domains_.reserve(domains_.size() + 1);
      domains_.push_back(owned(new stream_domain));
      first_free_ = static_cast<domain_ref>(domains_.size() - 1);
    }
    domain_ref const place = first_free_;
    stream_domain& made = *domains_[place];
    first_free_ = made.next_free;
    by_id_.insert(id, place);
    made.id = id;
    made.stream = stream_ref::from(stream.handle(), id);
    if (!is_default_stream(stream)) {
      domain_ref const newest = newest_of_handle(stream);
      made.gone = newest != neutral && domains_[newest]->id > id;
      if (newest != neutral && !made.gone) {
        domains_[newest]->gone = true;
        (void)by_handle_.erase(key_of(stream));
      }
      if (!made.gone) by_handle_.insert(key_of(stream), place);
    }
    if (++in_use_ >= sweep_at_) crowded_.store(true, std::memory_order_relaxed);
    return place;
  }

  sequence<owned<stream_domain>> domains_;
  address_map<std::uint32_t> by_id_;  ///< does not contain the neutral domain
  address_map<std::uint32_t>
      by_handle_;  ///< of streams that are created and destroyed: the newest of each handle
  domain_ref first_free_ = neutral;
  std::size_t in_use_ = 0;
  std::size_t sweep_at_ = sweep_from;
  std::atomic<bool> crowded_{false};
  /// The last place of an identity's domain; identities are consecutive. A wrong entry is detected by its identity.
  domain_ref recent_[recent_count] = {};
};

}  // namespace tarn::detail

namespace tarn::detail {

/// Result of returning a block; unless it is `done`, nothing has changed.
enum class release_result : std::uint8_t {
  done,
  foreign,      ///< no block of this pool starts at the address
  wrong_size,   ///< the block has another size
  twice,        ///< the block is already free
  needs_finish  ///< no host memory to record the stream: finish the stream, then release as neutral
};

/// The live blocks of a view and the last stream that used it: the view may be unmapped when that use is complete.
struct tenancy {
  std::uint32_t blocks = 0;  ///< live blocks
  domain_ref domain = neutral;
  std::uint64_t epoch = 0;
  bool several = false;  ///< more than one domain since all work was last known to be complete

  void leave(domain_ref giver, std::uint64_t mark) noexcept {
    --blocks;
    several = several || (epoch != 0 && domain != giver);
    domain = giver;
    epoch = mark;
  }
};

/// Free ranges that cannot be given back to the driver on their own, since they lie in partly used handles or segments. Each
/// array: all, small zone, large zone.
struct split_statistics {
  stat blocks[3];
  stat bytes[3];
};

class arena {
 public:
  range_table ranges;
  address_map<std::uint32_t> blocks;  ///< start of each live block that is not in a run
  address_index starts;               ///< the range that covers a home address, for pools over pages
  run_table runs;
  stream_table streams;
  sequence<tenancy> tenancies;  ///< one per view
  /// Aligns blocks of whole granules to handle boundaries, so that freeing one frees whole handles, which may be remapped.
  bool keeps_handles_whole = false;
  /// Free neighbours in two handles become one range. Otherwise each block lies within one handle.
  bool joins_handles = true;
  /// Nothing that was handed out is ever unmapped or given back: captured graphs hold the addresses.
  bool keeps_addresses = false;
  /// How many free ranges of similar size a request searches; the ladder lifts it before it throws out_of_memory.
  std::size_t search_limit = range_index::search_limit;
  /// The handles behind the ranges, for pools over pages; null if segments are created and given back whole.
  page_map const* pages = nullptr;
  split_statistics splits;     ///< as of the last count_splits()
  std::size_t live_bytes = 0;  ///< in live ranges, runs included
  std::size_t live_peak = 0;   ///< since the start, or since the pool last gave memory back by itself
  live_window window;          ///< the live peak of late

  /// Makes room for the metadata of one allocation. @throws std::bad_alloc, nothing has changed
  void make_room() {
    ranges.make_room(4);
    blocks.make_room(1);
    runs.make_room();
  }

  /// Takes a block from the stream's own domain, then from the neutral one. Null if neither has it. Requires make_room().
  [[nodiscard]] void* take(domain_ref taker, zone where, std::size_t bytes, std::size_t alignment) noexcept {
    range_ref const r = take_range(taker, where, bytes, alignment);
    if (r == 0) return nullptr;
    blocks.insert(ranges[r].address, r);
    return reinterpret_cast<void*>(ranges[r].address);
  }

  /// Returns a block to a stream's domain. O(1), never allocates.
  release_result release(domain_ref giver, void* p, std::size_t bytes) noexcept {
    auto const address = reinterpret_cast<std::uintptr_t>(p);
    range_ref r = blocks.find(address);
    if (r == 0) return release_result::foreign;
    std::size_t total = 0;
    for (range_ref piece = r; piece != 0; piece = ranges[piece].chain) total += ranges[piece].bytes;
    if (total != bytes) return release_result::wrong_size;
    (void)blocks.erase(address);
    live_bytes -= bytes;
    std::uint64_t const mark = streams[giver].mark();
    if (ranges[r].view_or_split != 0) tenancies[ranges[r].view_or_split].leave(giver, mark);
    while (r != 0) {
      range_ref const piece = r;
      r = ranges[piece].chain;
      ranges[piece].chain = 0;
      ranges[piece].view_or_split = 0;
      make_free(piece, giver, mark);
    }
    return release_result::done;
  }

  /// Takes up to `wanted` blocks of a class: foreign blocks first, then from runs, then from a new run. Requires make_room().
  [[nodiscard]] std::uint32_t take_small(domain_ref taker, unsigned size_class, void** out,
                                         std::uint32_t wanted) noexcept {
    std::uint32_t taken = 0;
    stream_domain& domain = streams[taker];
    auto& returned = domain.foreign[size_class];
    for (; taken < wanted && !returned.empty(); returned.pop_back(), --domain.foreign_count)
      out[taken++] = returned.back();
    taken += take_from_runs(taker, size_class, out + taken, wanted - taken);
    if (taken == 0 && taker != neutral) taken = take_from_runs(neutral, size_class, out, wanted);
    if (taken == 0) {
      range_ref const body = take_range(taker, zone::small, run_bytes(size_class), frame_bytes);
      if (body == 0) return 0;
      run_ref const r = runs.add(body, ranges[body].address, size_class, taker);
      runs[r].generation = domain.generation;
      domain.runs[size_class].push(runs, r);
      taken = take_from_runs(taker, size_class, out, wanted);
    }
    return taken;
  }

  /// Joins live pieces into one block, mapped at `address` in a view. Requires make_room().
  void join_pieces(range_ref const* pieces, std::size_t count, domain_ref taker, std::uintptr_t address,
                   std::uint32_t view) noexcept {
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < count; ++i) {
      range& piece = ranges[pieces[i]];
      piece.chain = i + 1 < count ? pieces[i + 1] : 0;
      piece.domain = taker;
      piece.generation = streams[taker].generation;
      bytes += piece.bytes;
    }
    count_live(bytes);
    ranges[pieces[0]].view_or_split = view;
    ++tenancies[view].blocks;
    blocks.insert(address, pieces[0]);
  }

  /// Takes [address, address + bytes) out of the free range `r` that contains it. Requires room for two nodes.
  range_ref carve(range_ref r, std::uintptr_t address, std::size_t bytes) noexcept {
    take_out(r);
    if (std::size_t const skipped = address - ranges[r].address; skipped != 0) {
      range_ref const body = split(r, skipped);
      put_in(r);
      r = body;
    }
    if (ranges[r].bytes > bytes) put_in(split(r, bytes));
    ranges[r].state = range_state::live;
    return r;
  }

  /// Returns a block of a run to a stream's domain; the range of an empty run is freed.
  release_result release_small(domain_ref giver, unsigned size_class, void* p) noexcept {
    run_ref const r = runs.find(p);
    if (r == 0) return release_result::foreign;
    if (runs[r].size_class != size_class) return release_result::wrong_size;
    let_go_of_forgotten(runs[r]);
    if (giver != neutral && runs[r].domain != giver) {
      stream_domain& domain = streams[giver];
      try {
        domain.foreign[size_class].push_back(p);
      } catch (...) {
        return release_result::needs_finish;
      }
      ++domain.foreign_count;
      domain.foreign_epoch = domain.mark();
      return release_result::done;
    }
    return put_into_run(r, p);
  }

  /// Returns the foreign blocks of a domain to their runs, once the device has completed their uses.
  void send_foreign_home(domain_ref d) noexcept {
    stream_domain& domain = streams[d];
    for (auto& list : domain.foreign) {
      for (void* p : list) {
        (void)put_into_run(runs.find(p), p);
      }
      list.clear();
    }
    domain.foreign_count = 0;
  }

  /// Makes the partly free runs of a domain neutral. The device has completed the uses of all that was freed in them.
  void neutralise_runs(domain_ref d) noexcept {
    for (run_list& list : streams[d].runs) {
      while (run_ref const r = list.head) {
        list.erase(runs, r);
        runs[r].domain = neutral;
        runs[r].generation = streams[neutral].generation;
        streams[neutral].runs[runs[r].size_class].push(runs, r);
      }
    }
  }

  /// Moves the ranges of `from` that are marked `epoch` or older to the domain `to`.
  void hand_over(domain_ref from, domain_ref to, std::uint64_t epoch) noexcept {
    std::uint64_t const mark = to == neutral ? 0 : streams[to].mark();
    claim_each(from, [&](range_ref r) {
      bool const moves = ranges[r].epoch <= epoch;
      make_free(r, moves ? to : from, moves ? mark : ranges[r].epoch);
    });
  }

  /// Joins the free ranges of a stream with neutral ones beside them; other neutral ranges stay neutral, for every stream. O(ranges of
  /// the stream or neutral ones, whichever are fewer)
  void join_neutral(domain_ref d) noexcept {
    domain_ref const walked = streams[neutral].range_count() < streams[d].range_count() ? neutral : d;
    domain_ref const other = walked == d ? neutral : d;
    claim_each(walked, [&](range_ref r) {
      bool joined = walked == d;
      for (range_ref const beside : {ranges[r].previous, ranges[r].next}) {
        if (beside == 0 || ranges[beside].state != range_state::free || ranges[beside].domain != other ||
            ranges[beside].where != ranges[r].where)
          continue;
        joined = true;
        if (other == d) continue;
        take_out(beside);
        ranges[beside].domain = d;
        ranges[beside].epoch = 0;  // complete: a mark of the neutral domain means nothing in another
        put_in(beside);
      }
      make_free(r, joined ? d : neutral, walked == d ? ranges[r].epoch : 0);
    });
  }

  /// Makes a node that is in no index free in a domain, and coalesces it with free neighbours of the same domain and zone.
  range_ref make_free(range_ref r, domain_ref domain, std::uint64_t epoch) noexcept {
    ranges[r].state = range_state::free;
    ranges[r].domain = domain;
    ranges[r].epoch = epoch;
    if (range_ref const n = ranges[r].next; n != 0 && joins(r, n)) absorb(r, n);
    if (range_ref const p = ranges[r].previous; p != 0 && joins(p, r)) {
      take_out(p);
      merge(p, r);
      r = p;
    }
    put_in(r);
    return r;
  }

  /// Splits a node at `bytes`; returns the second part, which copies the first and is in no index. Requires make_room().
  range_ref split(range_ref r, std::size_t bytes) noexcept {
    range_ref const tail = ranges.take();
    range& first = ranges[r];
    range& second = ranges[tail];
    second = first;
    second.address = first.address + bytes;
    second.bytes = first.bytes - bytes;
    second.previous = r;
    second.next = first.next;
    second.bin_next = second.bin_previous = 0;
    if (second.next != 0) ranges[second.next].previous = tail;
    first.next = tail;
    first.bytes = bytes;
    starts.note(ranges, tail);
    return tail;
  }

  /// Merges two neighbours that are in no index; the second's node is released.
  void merge(range_ref first, range_ref second) noexcept {
    starts.drop(ranges, second);
    ranges[first].bytes += ranges[second].bytes;
    ranges[first].epoch = max_of(ranges[first].epoch, ranges[second].epoch);
    ranges[first].next = ranges[second].next;
    if (ranges[first].next != 0) ranges[ranges[first].next].previous = first;
    ranges.put_back(second);
  }

  /// Notes that the memory after a range was given back: the range may be extended there, if it is free.
  void note_hole_after(range_ref r) noexcept {
    if (r == 0 || ranges[r].state != range_state::free) return;
    take_out(r);
    put_in(r);
  }

  /// Takes a free node out of its domain's index.
  void claim(range_ref r) noexcept {
    take_out(r);
    ranges[r].state = range_state::live;
  }

  /// Counts the change of the split ranges since the last call as one step; changes that cancelled out in between are not
  /// counted.
  void count_splits() noexcept {
    auto const small = static_cast<std::size_t>(zone::small);
    auto const large = static_cast<std::size_t>(zone::large);
    move(splits.blocks[0], split_blocks_[small] + split_blocks_[large]);
    move(splits.blocks[1], split_blocks_[small]);
    move(splits.blocks[2], split_blocks_[large]);
    move(splits.bytes[0], split_bytes_[small] + split_bytes_[large]);
    move(splits.bytes[1], split_bytes_[small]);
    move(splits.bytes[2], split_bytes_[large]);
  }

  /// Whether the device has completed the uses of a free range.
  [[nodiscard]] bool is_complete(range const& node) const noexcept {
    return node.domain == neutral || node.epoch <= streams[node.domain].completed;
  }

  [[nodiscard]] std::size_t free_bytes() const noexcept {
    std::size_t sum = 0;
    for (domain_ref d = 0; d < streams.size(); ++d) sum += streams[d].free_bytes();
    return sum;
  }
  [[nodiscard]] std::size_t largest_free() const noexcept {
    std::size_t most = 0;
    for (domain_ref d = 0; d < streams.size(); ++d) {
      for (auto const& index : streams[d].index) most = max_of(most, index.largest(ranges));
    }
    return most;
  }
  [[nodiscard]] std::size_t host_bytes() const noexcept {
    return ranges.host_bytes() + blocks.host_bytes() + runs.host_bytes() + streams.host_bytes();
  }

 private:
  /// Claims all free ranges of a domain, one zone after the other, and then calls f(range) for each, which makes it free again.
  template <class F>
  void claim_each(domain_ref d, F const& f) noexcept {
    for (range_index& index : streams[d].index) {
      range_ref chain = 0;
      while (range_ref const r = index.any()) {
        claim(r);
        ranges[r].bin_next = chain;
        chain = r;
      }
      while (chain != 0) {
        range_ref const r = chain;
        chain = ranges[r].bin_next;
        f(r);
      }
    }
  }

  void count_live(std::size_t bytes) noexcept {
    live_bytes += bytes;
    live_peak = max_of(live_peak, live_bytes);
    window.note(bytes, live_bytes);
  }
  static void move(stat& s, std::int64_t to) noexcept {
    if (to > s.current) s.increase(to - s.current);
    if (to < s.current) s.decrease(s.current - to);
  }

  /// Puts a free range into its domain's index.
  void put_in(range_ref r) noexcept {
    range& node = ranges[r];
    streams[node.domain].ranges(node.where).insert(ranges, r);
    node.view_or_split = static_cast<std::uint32_t>(split_bytes(node) / range_grain);
    if (node.view_or_split == 0) return;
    ++split_blocks_[static_cast<std::size_t>(node.where)];
    split_bytes_[static_cast<std::size_t>(node.where)] += node.view_or_split * std::int64_t{range_grain};
  }
  /// Takes a free range out of its domain's index.
  void take_out(range_ref r) noexcept {
    range& node = ranges[r];
    streams[node.domain].ranges(node.where).erase(ranges, r);
    if (node.view_or_split == 0) return;
    --split_blocks_[static_cast<std::size_t>(node.where)];
    split_bytes_[static_cast<std::size_t>(node.where)] -= node.view_or_split * std::int64_t{range_grain};
    node.view_or_split = 0;
  }
  /// Bytes of a free range in handles, or in a segment, that it does not fill.
  [[nodiscard]] std::size_t split_bytes(range const& node) const noexcept {
    if (pages == nullptr) return node.previous == 0 && node.next == 0 ? 0 : node.bytes;
    handle_ref const first = pages->at(node.address);
    handle_ref const last = pages->at(node.end() - 1);
    bool const at_start = (*pages)[first].home == node.address;
    bool const at_end = pages->end_of(last) == node.end();
    if (first == last) return at_start && at_end ? 0 : node.bytes;
    return (at_start ? 0 : pages->end_of(first) - node.address) +
           (at_end ? 0 : node.end() - (*pages)[last].home);
  }

  range_ref take_range(domain_ref taker, zone where, std::size_t bytes, std::size_t alignment) noexcept {
    range_ref r = 0;
    if (keeps_handles_whole && where == zone::large && bytes % usual_granule == 0 &&
        alignment < usual_granule) {
      r = streams[taker].ranges(where).find(ranges, bytes, usual_granule, search_limit);
      if (r != 0) alignment = usual_granule;
    }
    if (r == 0) r = streams[taker].ranges(where).find(ranges, bytes, alignment, search_limit);
    if (r == 0 && taker != neutral)
      r = streams[neutral].ranges(where).find(ranges, bytes, alignment, search_limit);
    if (r == 0) return 0;
    r = carve(r, align_up(ranges[r].address, alignment), bytes);
    ranges[r].domain = taker;
    ranges[r].generation = streams[taker].generation;
    count_live(bytes);
    return r;
  }

  [[nodiscard]] std::uint32_t take_from_runs(domain_ref d, unsigned size_class, void** out,
                                             std::uint32_t wanted) noexcept {
    run_list& list = streams[d].runs[size_class];
    std::uint32_t taken = 0;
    while (taken < wanted && list.head != 0) {
      run_ref const r = list.head;
      while (taken < wanted && runs[r].free_count != 0) out[taken++] = runs[r].take();
      if (runs[r].free_count == 0) list.erase(runs, r);
    }
    return taken;
  }

  /// Makes a run neutral if its domain was forgotten while all its blocks were handed out.
  void let_go_of_forgotten(run& r) const noexcept {
    if (r.generation == streams[r.domain].generation) [[likely]]
      return;
    r.domain = neutral;
    r.generation = streams[neutral].generation;
  }

  release_result put_into_run(run_ref r, void* p) noexcept {
    run& home = runs[r];
    let_go_of_forgotten(home);
    bool const was_full = home.free_count == 0;
    if (!home.put_back(p)) return release_result::twice;
    unsigned const size_class = home.size_class;
    run_list& list = streams[home.domain].runs[size_class];
    if (was_full) list.push(runs, r);
    if (home.free_count < run_blocks(size_class)) return release_result::done;
    list.erase(runs, r);
    range_ref const body = home.body;
    domain_ref const owner = home.domain;
    runs.remove(r);
    live_bytes -= ranges[body].bytes;
    make_free(body, owner, streams[owner].mark());
    return release_result::done;
  }

  [[nodiscard]] bool joins(range_ref a, range_ref b) const noexcept {
    range const& first = ranges[a];
    range const& second = ranges[b];
    return first.state == range_state::free && second.state == range_state::free &&
           first.domain == second.domain && first.where == second.where &&
           (joins_handles || !begins_handle(second.address));
  }
  [[nodiscard]] bool begins_handle(std::uintptr_t address) const noexcept {
    return (*pages)[pages->at(address)].home == address;
  }
  /// Merges the indexed neighbour `second` into `first`, which is in no index.
  void absorb(range_ref first, range_ref second) noexcept {
    take_out(second);
    merge(first, second);
  }

  std::int64_t split_blocks_[zone_count] = {};  ///< current values
  std::int64_t split_bytes_[zone_count] = {};
};

}  // namespace tarn::detail
// ---- tarn/pool/arena/hot_lock.hpp
// A scoped holder of the arena's lock, and a parameter type for functions that may release it.
//
//   f(hot_lock const& held)   runs under the lock and keeps it
//   f(may_release hot)        may release it in between, which invalidates what its caller looked up before
//

// ---- tarn/pool/arena/hot_mutex.hpp
// The arena's mutex, which spins for about a microsecond before it sleeps. It is held for tens of nanoseconds, far less than
// putting a thread to sleep and waking it costs. One word and one inlined atomic operation each way: half the cost of
// std::mutex without contention. (Drepper, "Futexes are tricky", 2011, mutex 2.)

#include <atomic>
#include <cstdint>

namespace tarn::detail {

/// What a mutex records of its holds if TARN_CHECK_LOCKS is 1. Written by the holder.
template <bool Checked>
class hold_record {
 public:
  void begin() noexcept { ++number_; }
  void release(source_location where) noexcept { released_at_ = where; }
  /// The number of the current hold; unique for each hold.
  [[nodiscard]] std::uint64_t number() const noexcept { return number_; }
  /// Where the lock was last released in the middle of a hot_lock's scope.
  [[nodiscard]] source_location released_at() const noexcept { return released_at_; }

 private:
  std::uint64_t number_ = 0;
  source_location released_at_{};
};
template <>
class hold_record<false> {
 public:
  void begin() noexcept {}
  void release(source_location) noexcept {}
  [[nodiscard]] std::uint64_t number() const noexcept { return 0; }
  [[nodiscard]] source_location released_at() const noexcept { return {}; }
};

class hot_mutex {
 public:
  TARN_ALWAYS_INLINE void lock() noexcept {
    if (!try_lock()) [[unlikely]]
      wait();
  }
  [[nodiscard]] TARN_ALWAYS_INLINE bool try_lock() noexcept {
    std::uint32_t expected = open;
    return state_.compare_exchange_strong(expected, taken, std::memory_order_acquire,
                                          std::memory_order_relaxed);
  }
  TARN_ALWAYS_INLINE void unlock() noexcept {
    if (state_.exchange(open, std::memory_order_seq_cst) == awaited) [[unlikely]]
      state_.notify_one();
  }

  /// Written by the holder.
  [[nodiscard]] hold_record<check_locks>& hold() noexcept { return hold_; }

 private:
  static constexpr std::uint32_t open = 0;
  static constexpr std::uint32_t taken = 1;
  static constexpr std::uint32_t awaited = 2;  ///< taken, and a thread may be sleeping
  static constexpr unsigned most_spins = 40;

  TARN_NOINLINE void wait() noexcept {
    for (unsigned tries = 0; tries < most_spins; ++tries) {
      spin_wait(0);
      if (state_.load(std::memory_order_relaxed) == open && try_lock()) return;
    }
    while (state_.exchange(awaited, std::memory_order_seq_cst) != open)
      state_.wait(awaited, std::memory_order_relaxed);
  }

  std::atomic<std::uint32_t> state_{open};
  [[no_unique_address]] hold_record<check_locks> hold_;
};

}  // namespace tarn::detail

namespace tarn::detail {

/// Holds a hot_mutex for its scope.
class hot_lock {
 public:
  TARN_ALWAYS_INLINE explicit hot_lock(hot_mutex& mutex) noexcept : mutex_(mutex) { acquire(); }
  hot_lock(hot_lock const&) = delete;
  hot_lock& operator=(hot_lock const&) = delete;
  TARN_ALWAYS_INLINE ~hot_lock() { mutex_.unlock(); }

  [[nodiscard]] auto const& hold() const noexcept { return mutex_.hold(); }

 private:
  friend class unlocked;

  TARN_ALWAYS_INLINE void acquire() noexcept {
    mutex_.lock();
    mutex_.hold().begin();
  }
  void release(source_location where) noexcept {
    mutex_.hold().release(where);
    mutex_.unlock();
  }

  hot_mutex& mutex_;
};

/// A parameter of functions that may release the lock. Callers write `may_release(held)`; such a call invalidates everything
/// they looked up before it.
class may_release {
 public:
  explicit may_release(hot_lock& held) noexcept : held_(&held) {}
  /// For functions that keep the lock.
  [[nodiscard]] hot_lock const& held() const noexcept { return *held_; }

 private:
  friend class unlocked;
  hot_lock* held_;
};

/// Releases the lock for its scope, for driver calls and other locks; takes it again at the end, also after an exception.
class [[nodiscard]] unlocked {
 public:
  explicit unlocked(may_release hot, source_location where = source_location::current()) noexcept
      : lock_(*hot.held_) {
    lock_.release(where);
  }
  unlocked(unlocked const&) = delete;
  unlocked& operator=(unlocked const&) = delete;
  ~unlocked() { lock_.acquire(); }

 private:
  hot_lock& lock_;
};

}  // namespace tarn::detail

namespace tarn::detail {

class misuse_notes {
 public:
  /// Adds a note; if there are more than `most` at once, the first ones are kept.
  void add(hot_lock const&, release_result what, void const* p) noexcept {
    unsigned const count = count_.load(std::memory_order_relaxed);
    if (count == most) return;
    notes_[count] = {what, p};
    count_.store(count + 1, std::memory_order_relaxed);
  }

  /// Calls the misuse handler for each note. The caller holds no lock of the pool.
  void report_all(hot_mutex& mutex) noexcept {
    while (count_.load(std::memory_order_relaxed) != 0) [[unlikely]] {
      note next;
      {
        hot_lock const held(mutex);
        unsigned const count = count_.load(std::memory_order_relaxed);
        if (count == 0) return;
        next = notes_[count - 1];
        count_.store(count - 1, std::memory_order_relaxed);
      }
      report(next);
    }
  }

 private:
  struct note {
    release_result what = release_result::done;
    void const* p = nullptr;
  };

  static void report(note const& n) noexcept {
    message<200> text;
    misuse_kind kind = misuse_kind::foreign_pointer;
    text.add("deallocation of ").add_hex(reinterpret_cast<std::uintptr_t>(n.p)).add(": ");
    switch (n.what) {
      case release_result::wrong_size:
        kind = misuse_kind::wrong_size;
        text.add("the block has a different size; pass the bytes and alignment of its allocation");
        break;
      case release_result::twice:
        kind = misuse_kind::double_free;
        text.add("the block is already free; add | tarn::checked{} to see where");
        break;
      default:
        text.add(
            "no live block of this pool starts there (freed twice, or allocated by another pool); add | "
            "tarn::checked{} to see where");
        break;
    }
    report_misuse(misuse(kind, n.p, text.view()));
  }

  static constexpr unsigned most = 16;
  note notes_[most];  ///< under the hot lock
  std::atomic<unsigned> count_{0};
};

/// Reports the notes when a call ends. Declared before the locks of its function, so that it runs after their release.
class misuse_report {
 public:
  misuse_report(misuse_notes& notes, hot_mutex& mutex) noexcept : notes_(notes), mutex_(mutex) {}
  misuse_report(misuse_report const&) = delete;
  misuse_report& operator=(misuse_report const&) = delete;
  ~misuse_report() { notes_.report_all(mutex_); }

 private:
  misuse_notes& notes_;
  hot_mutex& mutex_;
};

}  // namespace tarn::detail

namespace tarn::detail {

struct live_count {
  std::int64_t bytes = 0;
  std::int64_t blocks = 0;
};

/// The cached blocks of all threads.
struct idle_blocks {
  std::size_t bytes = 0;
  std::size_t threads = 1;
};

/// Whether a freed block was kept in the thread's cache.
enum class kept : std::uint8_t {
  no,
  yes,
  twice  ///< it is already in the cache
};

template <class Heap>
class front {
 public:
  explicit front(Heap& heap) : heap_(heap) {
    (void)has_remote_barrier();  // registers with the kernel now, not at the first allocation
    link_->pool = this;
    link_->retire = [](void* self, thread_cache* cache) noexcept {
      return static_cast<front*>(self)->retire(cache);
    };
  }
  front(front const&) = delete;
  front& operator=(front const&) = delete;

  /// Makes threads that end from now on leave their caches in place. Called when the pool ends.
  void detach() noexcept {
    std::lock_guard const guard(link_->mutex);
    link_->pool = nullptr;
  }

  // ---- warm calls

  /// Takes a block that the calling thread cached for the stream; null if there is none.
  template <class Size>
  [[nodiscard]] TARN_ALWAYS_INLINE void* take(stream_id id, Size size) noexcept {
    thread_cache* const cache = local();
    if (cache == nullptr || !cache->lock.try_enter()) [[unlikely]]
      return nullptr;
    void* const p = take_inside(*cache, id, size);
    cache->lock.leave();
    return p;
  }
  /// As take(), also while calls are watched.
  template <class Size>
  [[nodiscard]] void* take_watched(stream_id id, Size size) noexcept {
    thread_cache* const cache = local();
    if (cache == nullptr) return nullptr;
    cache->lock.enter();
    void* const p = take_inside(*cache, id, size);
    cache->lock.leave();
    return p;
  }

  /// Keeps a freed block in the calling thread's cache. Returns false if there is no room for it, or no cache.
  template <class Size>
  [[nodiscard]] TARN_ALWAYS_INLINE bool put(stream_id id, void* p, Size size) noexcept {
    thread_cache* const cache = local();
    if (cache == nullptr || !cache->lock.try_enter()) [[unlikely]]
      return false;
    bool const done = put_inside(*cache, id, p, size);
    cache->lock.leave();
    return done;
  }
  /// As put(), if calls of the thread are watched, and only then.
  template <class Size>
  [[nodiscard]] bool put_watched(stream_id id, void* p, Size size) noexcept {
    thread_cache* const cache = local();
    if (cache == nullptr || !cache->lock.is_watched()) return false;
    cache->lock.enter();
    bool const done = put_inside(*cache, id, p, size);
    cache->lock.leave();
    return done;
  }

  // ---- calls that reach the heap

  /// The calling thread's cache and, within it, the cache of a stream; null if there is none.
  struct cache_position {
    thread_cache* cache = nullptr;
    stream_cache* of_stream = nullptr;
    stream_id id = 0;
  };

  /// Finds or makes the caches of a stream. There are none if the thread is ending, host memory is exhausted, or a tool
  /// watches, or while another thread holds the growth lock; in the last case a later call makes them.
  [[nodiscard]] cache_position open(stream_id id, stream_ref stream) noexcept {
    cache_position at;
    at.cache = local_or_new();
    if (at.cache != nullptr) at.of_stream = stream_cache_of(*at.cache, id, stream);
    at.id = id;
    return at;
  }
  /// Finds them again: a handler of the upstream may have made the thread use other streams meanwhile.
  void find_again(cache_position& at, stream_id id, stream_ref stream) noexcept {
    if (at.cache != nullptr) at.of_stream = stream_cache_of(*at.cache, id, stream);
  }

  /// Takes the cached large block out of the cache, to be returned to the heap.
  [[nodiscard]] TARN_ALWAYS_INLINE void* take_large(cache_position const& at, std::size_t& bytes) noexcept {
    at.cache->lock.enter();
    void* const p = is_open(at) ? std::exchange(at.of_stream->large_block, nullptr) : nullptr;
    bytes = at.of_stream->large_bytes;
    if (p != nullptr) at.cache->count_held(0, bytes);
    at.cache->lock.leave();
    return p;
  }

  /// Counts the first block of a batch as the caller's and caches the others as far as there is room; `batch.count` is then the
  /// number of blocks left.
  void keep_rest(cache_position const& at, block_request const& r, block_batch& batch) noexcept {
    if (at.cache == nullptr) return;
    at.cache->lock.enter();
    at.cache->count_live(static_cast<std::int64_t>(r.block), 1);
    bool const has_stream = is_open(at);
    while (batch.count > 1 && has_stream &&
           put_in(*at.cache, *at.of_stream, r.size_class, batch.blocks[batch.count - 1]))
      --batch.count;
    if (has_stream && r.where == zone::large) at.of_stream->newest_large = batch.blocks[0];
    at.cache->lock.leave();
  }

  /// Keeps a freed block and makes room for it: evicted blocks go into `displaced`, each of `displaced_bytes`. Requires a cache
  /// of the stream.
  [[nodiscard]] kept put_and_displace(cache_position const& at, block_request const& r, void* p,
                                      block_batch& displaced, std::size_t& displaced_bytes) noexcept {
    thread_cache& cache = *at.cache;
    stream_cache& of_stream = *at.of_stream;
    kept result = kept::no;
    displaced_bytes = r.block;
    cache.lock.enter();
    cache.count_live(-static_cast<std::int64_t>(r.block), -1);
    if (!is_open(at)) {
      // A capture has begun on the stream.
    } else if (r.size_class != class_count) {
      magazine& m = of_stream.magazines[r.size_class];
      for (std::uint32_t i = 0; i < m.count; ++i) {
        if (m.blocks[i] == p) result = kept::twice;
      }
      if (result == kept::no && m.count == m.capacity && m.count != 0) {
        // Full: the older half leaves.
        std::uint32_t const count = magazine_batch(r.size_class);
        for (std::uint32_t i = 0; i < count; ++i) displaced.blocks[i] = m.blocks[i];
        for (std::uint32_t i = count; i < m.count; ++i) m.blocks[i - count] = m.blocks[i];
        m.count -= count;
        displaced.count = count;
        cache.count_held(0, count * r.block);
      }
      if (result == kept::no && put_in(cache, of_stream, r.size_class, p)) result = kept::yes;
    } else if (r.alignment <= default_alignment && of_stream.newest_large == p) {
      void* const before = std::exchange(of_stream.large_block, p);
      if (before == p) {
        result = kept::twice;
      } else {
        result = kept::yes;
        displaced_bytes = std::exchange(of_stream.large_bytes, r.block);
        cache.count_held(r.block, before != nullptr ? displaced_bytes : 0);
        displaced.blocks[0] = before;
        displaced.count = before != nullptr ? 1 : 0;
      }
    }
    cache.lock.leave();
    return result;
  }

  // ---- all threads; the caller holds the growth lock

  /// The blocks in the magazines.
  [[nodiscard]] idle_blocks idle() const noexcept {
    idle_blocks sum{0, caches_.size() != 0 ? caches_.size() : 1};
    for (auto const& cache : caches_) sum.bytes += cache->held_bytes.load(std::memory_order_relaxed);
    return sum;
  }
  /// Blocks that callers hold, as counted by threads' caches.
  [[nodiscard]] live_count live() const noexcept {
    live_count sum = retired_live_;
    for (auto const& cache : caches_) {
      sum.bytes += cache->live_bytes.load(std::memory_order_relaxed);
      sum.blocks += cache->live_blocks.load(std::memory_order_relaxed);
    }
    return sum;
  }
  [[nodiscard]] std::size_t host_bytes() const noexcept {
    std::size_t sum = 0;
    for (auto const& cache : caches_)
      sum += sizeof(*cache) + cache->host_bytes.load(std::memory_order_relaxed);
    return sum;
  }

  /// Returns the blocks of all threads' caches to the heap.
  void flush_all() noexcept {
    thread_cache* const own = local();
    bool any = false;
    for (auto const& cache : caches_) {
      if (cache->held_bytes.load(std::memory_order_relaxed) == 0) continue;
      if (cache.get() == own) {  // the cache's owner thread needs no barrier
        own->lock.enter();
        give_back(*own);
        own->lock.leave();
        continue;
      }
      cache->lock.announce();
      any = true;
    }
    if (!any) return;
    remote_barrier();
    for (auto const& cache : caches_) {
      if (cache->lock.is_announced()) empty(*cache);
    }
  }

  /// Keeps every thread out of its cache until let_threads_in(). The hot lock is taken after this, never before.
  void keep_threads_out() noexcept {
    announce();
    remote_barrier();
    for (auto const& cache : caches_) cache->lock.visit();
  }
  void let_threads_in() noexcept {
    for (auto const& cache : caches_) end_visit(*cache);
  }
  /// In a forked child: the owners were other threads, which do not exist here.
  void let_threads_in_child() noexcept {
    renew_remote_barrier();
    for (auto const& cache : caches_) {
      cache->lock.forget_owner();
      end_visit(*cache);
    }
  }
  /// Returns the blocks of all caches to the heap and closes the caches to warm calls, until open_again(). The pool is asleep:
  /// threads that have just begun a slow call may still use their caches.
  void close() noexcept {
    closed_ = true;
    announce();
    remote_barrier();
    for (auto const& cache : caches_) empty(*cache);
  }
  void open_again() noexcept {
    closed_ = false;
    for (auto const& cache : caches_) cache->lock.open_again();
  }
  /// Closes every cache to its owner, without waiting until the owner has left.
  void announce() noexcept {
    for (auto const& cache : caches_) cache->lock.announce();
  }

  /// Makes take() and put() fail on every thread from now on, so that each call takes the slow path. The caches keep their blocks.
  /// No thread has one yet.
  void watch_all() noexcept { watches_all_ = true; }
  /// The same on the calling thread, until end_watch() of what it returns, which any thread may call.
  [[nodiscard]] std::uint64_t watch_this_thread() noexcept {
    thread_cache* const own = local_or_new();
    if (own == nullptr) return 0;  // it has none, so that every call takes the slow path
    ++own->watches;
    own->lock.watch();
    return own->serial;
  }
  void end_watch(std::uint64_t serial) noexcept {
    for (auto const& cache : caches_) {
      if (cache->serial == serial && --cache->watches == 0 && !watches_all_) cache->lock.end_watch();
    }
  }
  enum class watched : std::uint8_t { no, yes, unknown };
  /// `unknown` on a thread without a cache.
  [[nodiscard]] watched is_this_thread_watched() const noexcept {
    thread_cache const* const own = local();
    if (own == nullptr) return watched::unknown;
    return own->lock.is_watched() ? watched::yes : watched::no;
  }

  /// Empties the caches of a stream, on all threads that used it. While heap::captured has it, none is made.
  void drop_stream(stream_id id) noexcept {
    std::atomic_thread_fence(std::memory_order_seq_cst);  // see thread_cache::announce_stream()
    thread_cache* const own = local();
    bool any = false;
    for (auto const& cache : caches_) {
      if (!cache->may_have(id)) continue;
      if (cache.get() == own) {  // the cache's owner thread needs no barrier
        own->lock.enter();
        drop_stream(*own, id);
        own->lock.leave();
        continue;
      }
      cache->lock.announce();
      any = true;
    }
    if (!any) return;
    remote_barrier();
    for (auto const& cache : caches_) {
      if (!cache->lock.is_announced()) continue;
      cache->lock.visit();
      drop_stream(*cache, id);
      cache->lock.end_visit();
    }
  }

  /// What the calling thread's capture uses, as set_capture() said; null if it has none.
  [[nodiscard]] void* capture() const noexcept {
    thread_cache const* const own = local();
    return own != nullptr ? own->capture.load(std::memory_order_relaxed) : nullptr;
  }
  /// Returns false on a thread without a cache.
  bool set_capture(void* part) noexcept {
    thread_cache* const own = local();
    if (own == nullptr) return false;
    own->capture.store(part, std::memory_order_relaxed);
    return true;
  }
  /// Ends that on whichever thread it was set. The caller holds the growth lock.
  void end_capture(void const* part) noexcept {
    for (auto const& cache : caches_) {
      if (cache->capture.load(std::memory_order_relaxed) == part)
        cache->capture.store(nullptr, std::memory_order_relaxed);
    }
  }

  /// Calls f(stream_cache) for each cache. The caller keeps the threads out.
  template <class F>
  void for_each(F const& f) const {
    for (auto const& cache : caches_) {
      for (auto const& of_stream : cache->streams) f(*of_stream);
    }
  }

 private:
  [[nodiscard]] TARN_ALWAYS_INLINE thread_cache* local() const noexcept {
    return local_caches.find(link_.get(), number_);
  }
  [[nodiscard]] TARN_ALWAYS_INLINE thread_cache* local_or_new() noexcept {
    if (auto* const cache = local(); cache != nullptr) [[likely]]
      return cache;
    return new_local();
  }
  TARN_NOINLINE thread_cache* new_local() noexcept {
    if (thread_exit::over || heap_.description.active() || heap_.is_lost()) return nullptr;
    try {
      thread_exit& hook = thread_exit::of_this_thread();
      owned made(new thread_cache);
      thread_cache* const cache = made.get();
      // Do not wait for the lock: its holder may be waiting for work that this thread launches after a deallocation.
      std::unique_lock const cold(heap_.cold, std::try_to_lock);
      if (!cold.owns_lock() || closed_) return nullptr;
      caches_.reserve(caches_.size() + 1);
      cache->serial = ++last_serial_;
      if (watches_all_) cache->lock.watch();
      hook.add(link_, cache);
      caches_.push_back(std::move(made));
      return cache;
    } catch (...) {
      return nullptr;
    }
  }

  /// The cache of a stream, made on first use; null without host memory. If the thread uses too many streams, returns the
  /// magazines of the least recently used one to the heap.
  stream_cache* stream_cache_of(thread_cache& cache, stream_id id, stream_ref stream) noexcept {
    owned<stream_cache> oldest;
    cache.lock.enter();
    stream_cache* of_stream = cache.find(id);
    if (of_stream == nullptr) cache.announce_stream(id);
    if (of_stream == nullptr && !heap_.captured.has(id)) {
      try {
        of_stream = cache.make(id, stream, oldest);
      } catch (...) {
        of_stream = nullptr;
      }
    }
    cache.lock.leave();
    if (oldest.get() != nullptr) give_back(*oldest);
    return of_stream;
  }

  template <class Size>
  [[nodiscard]] TARN_ALWAYS_INLINE static void* take_inside(thread_cache& cache, stream_id id,
                                                            Size size) noexcept {
    void* p = nullptr;
    if (stream_cache* const of_stream = cache.find(id); of_stream != nullptr) [[likely]] {
      if (size.has_class()) [[likely]] {
        unsigned const k = size.its_class();
        magazine& m = of_stream->magazines[k];
        if (m.count != 0) [[likely]] {
          p = m.blocks[--m.count];
          cache.count_taken(size.bytes_in(k));
        }
      } else if (of_stream->large_block != nullptr && of_stream->large_bytes == size.large_bytes()) {
        p = std::exchange(of_stream->large_block, nullptr);
        cache.count_taken(of_stream->large_bytes);
      }
    }
    return p;
  }

  template <class Size>
  [[nodiscard]] TARN_ALWAYS_INLINE bool put_inside(thread_cache& cache, stream_id id, void* p,
                                                   Size size) noexcept {
    stream_cache* const of_stream = cache.find(id);
    if (of_stream == nullptr) [[unlikely]]
      return false;
    if (size.has_class()) [[likely]] {
      unsigned const k = size.its_class();
      if (!put_in(cache, *of_stream, k, p)) return false;
      cache.count_live(-static_cast<std::int64_t>(size.bytes_in(k)), -1);
      return true;
    }
    if (of_stream->large_block != nullptr || of_stream->newest_large != p) return false;
    of_stream->large_block = p;
    of_stream->large_bytes = size.large_bytes();
    cache.count_live(-static_cast<std::int64_t>(of_stream->large_bytes), -1);
    cache.count_held(of_stream->large_bytes, 0);
    return true;
  }

  /// Whether the stream still has the cache: a capture_scope may have closed it since. Called inside the owner lock.
  [[nodiscard]] static bool is_open(cache_position const& at) noexcept {
    return at.of_stream != nullptr && at.of_stream->id == at.id;
  }

  /// Puts a block into its magazine, unless the magazine is full or its newest block is the same one. Called inside the owner
  /// lock.
  TARN_ALWAYS_INLINE bool put_in(thread_cache& cache, stream_cache& of_stream, unsigned k, void* p) noexcept {
    magazine& m = of_stream.magazines[k];
    if (m.count == m.capacity) [[unlikely]] {
      if (m.capacity != 0 || !of_stream.open(k)) return false;
      cache.count_host(m.host_bytes(), 0);
    }
    if (m.newest() == p) [[unlikely]]
      return false;  // freed twice: put_and_displace() reports it
    m.blocks[m.count++] = p;
    cache.count_held(class_bytes(k), 0);
    return true;
  }

  /// Empties one thread's cache of a stream. Called inside the owner lock.
  void drop_stream(thread_cache& cache, stream_id id) noexcept {
    if (stream_cache* const closed = cache.close(id); closed != nullptr) give_back(*closed, id);
  }

  /// See pool_link::retire. The caller holds the link's mutex.
  bool retire(thread_cache* cache) noexcept {
    if (heap_.is_lost()) return true;
    misuse_report const last(heap_.notes, heap_.hot);
    std::unique_lock const cold(heap_.cold, std::try_to_lock);
    if (!cold.owns_lock()) return false;
    cache->lock.announce();
    remote_barrier();
    empty(*cache);
    retired_live_.bytes += cache->live_bytes.load(std::memory_order_relaxed);
    retired_live_.blocks += cache->live_blocks.load(std::memory_order_relaxed);
    for (std::size_t i = 0; i < caches_.size(); ++i) {
      if (caches_[i].get() != cache) continue;
      caches_.erase_unordered(i);
      break;
    }
    return true;
  }

  /// Empties a cache. Called after announce() and a barrier.
  void empty(thread_cache& cache) noexcept {
    cache.lock.visit();
    give_back(cache);
    end_visit(cache);
  }
  void end_visit(thread_cache& cache) noexcept {
    if (closed_) {
      cache.lock.close();
    } else {
      cache.lock.end_visit();
    }
  }
  /// Empties all magazines of a thread. Called inside the owner lock.
  void give_back(thread_cache& cache) noexcept {
    for (auto const& of_stream : cache.streams) give_back(*of_stream);
    cache.held_bytes.store(0, std::memory_order_relaxed);
  }
  /// Empties a stream's magazines, which no other thread can reach meanwhile.
  void give_back(stream_cache& of_stream) noexcept { give_back(of_stream, of_stream.id); }
  void give_back(stream_cache& of_stream, stream_id id) noexcept {
    if (of_stream.large_block != nullptr)
      heap_.give_back_range(id, of_stream.stream, std::exchange(of_stream.large_block, nullptr),
                            of_stream.large_bytes);
    for (unsigned k = 0; k < class_count; ++k) {
      magazine& m = of_stream.magazines[k];
      if (m.count != 0) heap_.give_back(id, of_stream.stream, k, m.blocks, std::exchange(m.count, 0));
    }
  }

  Heap& heap_;
  counted<pool_link> link_;
  std::uint32_t const number_ = link_->number;
  sequence<owned<thread_cache>> caches_;
  live_count retired_live_;  ///< of threads that have ended
  bool watches_all_ = false;
  std::uint64_t last_serial_ = 0;
  bool closed_ = false;  ///< the caches are closed to warm calls
};

}  // namespace tarn::detail
// ---- tarn/pool/heap.hpp
// The shared part of a pool, with its locks: the arena and the object that grows it. heap::take() takes blocks and
// heap::give_back() returns them. If neither the stream's own memory nor the neutral memory has a fitting range, the ladder
// decides what to do (ladder.hpp).
//
// Two locks, in this order:
//
//   cold   the growth lock. One thread at a time climbs the ladder, grows and shrinks. The upstream is called under it, and a
//          handler of the upstream (retry_on_oom) may call the pool, so the owner thread may take it again.
//   hot    the arena's lock. Held for tens of nanoseconds, never across a driver call.
//
// No deallocation waits for `cold`: its owner may be waiting for the device.
//
// Over 400 lines: all that takes the hot lock for a caller is here.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>
#include <type_traits>
#include <utility>

// ---- tarn/pool/arena/looked_up.hpp
// A value that was looked up under the hot lock, and is invalid once the lock was released. Another thread may then have taken
// the range, filled the view or ended the stream that it names. If TARN_CHECK_LOCKS is 1, each use compares the hold of the
// lookup with the current one and aborts if they differ; otherwise the object is the value alone.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace tarn::detail {

/// Where a value was looked up, and during which hold of the lock.
template <bool Checked>
class lookup_record {
 public:
  lookup_record(hot_lock const& held, source_location where) noexcept
      : hold_(held.hold().number()), where_(where) {}

  /// Aborts if the lock was released since the lookup. @param use  the place that uses the value
  void check(hot_lock const& held, source_location use) const noexcept {
    if (held.hold().number() == hold_) [[likely]]
      return;
    source_location const released = held.hold().released_at();
    std::fprintf(stderr,
                 "tarn: a value looked up at %s:%d is used at %s:%d after the pool's lock was released (last "
                 "at %s:%d). "
                 "Look it up again.\n",
                 where_.file, where_.line, use.file, use.line, released.file, released.line);
    std::abort();
  }

 private:
  std::uint64_t hold_;
  source_location where_;
};
template <>
class lookup_record<false> {
 public:
  lookup_record(hot_lock const&, source_location) noexcept {}
  void check(hot_lock const&, source_location) const noexcept {}
};

template <class T>
class looked_up {
 public:
  /// @param held  the lock under which `value` was found
  looked_up(hot_lock const& held, T value, source_location where = source_location::current())
      : value_(std::move(value)), record_(held, where) {}

  /// The value, under the same hold of the lock. No cost if TARN_CHECK_LOCKS is 0.
  [[nodiscard]] T const& get(hot_lock const& held,
                             source_location use = source_location::current()) const noexcept {
    record_.check(held, use);
    return value_;
  }

 private:
  T value_;
  [[no_unique_address]] lookup_record<check_locks> record_;
};

}  // namespace tarn::detail
// ---- tarn/pool/graph/open_captures.hpp
// The streams of open captures. Any thread looks up a stream without a lock.

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tarn::detail {

/// The identities of the streams that are part of an open capture. A place is added to and cleared under a mutex of the owner.
class captured_streams {
 public:
  static constexpr std::size_t most = 64;  ///< at a time, in all captures of a pool

  [[nodiscard]] bool any() const noexcept { return count_.load(std::memory_order_relaxed) != 0; }
  /// The place of a stream, `most` if it has none. A thread that uses a captured stream was ordered after the opening of the scope,
  /// so it finds the stream.
  [[nodiscard]] std::size_t find(stream_id stream) const noexcept {
    if (!any()) return most;
    for (std::size_t i = 0; i < most; ++i) {
      if (places_[i].load(std::memory_order_acquire) == stream) return i;
    }
    return most;
  }
  [[nodiscard]] bool has(stream_id stream) const noexcept { return find(stream) != most; }
  /// A place that is free; `most` if there is none.
  [[nodiscard]] std::size_t free_place() const noexcept {
    for (std::size_t i = 0; i < most; ++i) {
      if (places_[i].load(std::memory_order_relaxed) == 0) return i;
    }
    return most;
  }
  void set(std::size_t place, stream_id stream) noexcept {
    places_[place].store(stream, std::memory_order_release);
    count_.fetch_add(1, std::memory_order_relaxed);
  }
  void clear(std::size_t place) noexcept {
    count_.fetch_sub(1, std::memory_order_relaxed);
    places_[place].store(0, std::memory_order_release);
  }

 private:
  std::atomic<std::size_t> count_{0};
  std::atomic<stream_id> places_[most]{};
};

/// A stream of an open capture, and the identity under which the owner's pool keeps what this stream frees.
template <class Part>
struct captured_stream {
  stream_id kept_as = 0;  ///< 0: not captured
  capture_number capture = 0;
  Part* owner = nullptr;  ///< null: of an unknown capture
  bool is_guess = false;  ///< the stream was not announced: `kept_as` orders nothing
  stream_id stream = 0;   ///< its own identity
};

}  // namespace tarn::detail
// ---- tarn/pool/growth/memory_left.hpp
// How much memory a pool can still take from the layers below it: the device's free memory, less headroom, within each limit.

#include <concepts>
#include <cstddef>
#include <type_traits>
#include <utility>

// ---- tarn/pool/pool_state.hpp
// The statistics of a pool at one moment, for reports and tests. In bytes unless noted.

#include <cstddef>
#include <cstdint>

namespace tarn {

/// Free ranges that cannot be given back to the driver on their own: the parts of free ranges that lie in handles, or in a
/// segment, that they do not fill. Counted at the end of each call that reaches the pool's shared part. Blocks in threads'
/// magazines and free blocks of a run are excluded.
struct split_ranges {
  stat blocks;  ///< free ranges with such a part
  stat bytes;   ///< in those parts
};

/// The totals of a pool at the last reset_totals().
struct pool_totals {
  std::uint64_t reserved = 0;
  std::uint64_t released = 0;
  std::uint64_t creates = 0;
  std::uint64_t destroys = 0;
  std::uint64_t alloc_retries = 0;
  std::uint64_t host_waits = 0;
};

/// One of PyTorch's two pools: memory taken for blocks up to 1 MiB, or for larger ones. A wholly free handle of one may also
/// serve the other.
struct pool_part {
  stat reserved;                         ///< bytes held from the driver
  stat handles;                          ///< physical handles, or segments, held
  std::size_t free_blocks = 0;           ///< free ranges
  std::size_t inactive_split_bytes = 0;  ///< bytes in them
  split_ranges split;
};

struct pool_state {
  std::size_t live = 0;                ///< handed out, rounded to block sizes; includes `pending`
  std::size_t live_blocks = 0;         ///< number of those blocks
  std::size_t reserved = 0;            ///< held from the driver
  std::size_t reserved_peak = 0;       ///< since the last reset_peaks()
  std::size_t cached = 0;              ///< reserved, not handed out
  std::size_t pending = 0;             ///< freed, but waiting for another stream that used it (record_stream)
  std::size_t pending_blocks = 0;      ///< number of those blocks
  std::size_t largest_free_range = 0;  ///< largest block without a driver call, magazines excluded
  std::size_t free_blocks = 0;         ///< free ranges
  std::size_t inactive_split_bytes = 0;  ///< bytes in them, including whole free handles and segments
  split_ranges split;                    ///< the part of them that cannot be given back on its own
  std::uint64_t reserved_total = 0;      ///< taken from the driver since the start
  std::uint64_t released_total = 0;      ///< given back since the start
  std::uint64_t handles = 0;             ///< physical handles, or segments, held
  std::uint64_t handles_peak = 0;
  std::uint64_t creates = 0;  ///< handles or segments created
  std::uint64_t destroys = 0;
  std::uint64_t maps = 0;
  std::uint64_t unmaps = 0;
  std::uint64_t remaps = 0;         ///< maps of handles that were used at another address before
  std::uint64_t alloc_retries = 0;  ///< times the driver refused and the cache was searched again
  std::uint64_t ooms = 0;           ///< out_of_memory thrown
  std::uint64_t host_waits = 0;     ///< times the host waited for a stream
  std::uint64_t device_waits = 0;   ///< times a stream was made to wait for another stream
  /// Host memory of the metadata, bytes. About 3 for a live block of up to 2 KiB, 65 to 105 for one up to 1 MiB, up to 260 for
  /// a larger one, including its share of the free ranges; 13 to 22 KiB for a GiB of large blocks. Constant at constant live
  /// size, however many calls are made (tests/pool/growth.cpp).
  std::size_t host_bytes = 0;
  pool_part small;  ///< the part of the above for blocks up to 1 MiB
  pool_part large;  ///< for larger blocks
  pool_totals totals_reset;
};

}  // namespace tarn

namespace tarn::detail {

inline constexpr std::size_t unknown_left = ~std::size_t{0};

template <class Layer>
concept has_headroom = requires(Layer& layer) {
  { layer.headroom_bytes() } -> std::convertible_to<std::size_t>;
};
template <class Layer>
concept has_limit = requires(Layer& layer) {
  { layer.limit() } -> std::convertible_to<std::size_t>;
  { layer.used() } -> std::convertible_to<std::size_t>;
};
template <class Layer>
concept caches_bytes = stands_on_another<Layer> && !routes_calls<Layer> && requires(Layer& layer) {
  { layer.state() } -> std::same_as<pool_state>;
};

/// Whether the driver reports how much of a source's memory is free: it does for memory of the device and for plain host memory,
/// but not for pinned and managed memory.
template <class Source>
inline constexpr bool reports_free =
    !has_property<Source, host_accessible> || std::same_as<typename Source::driver_type, no_driver>;

/// What a stack of layers can still provide, and what bounds that. In bytes.
struct memory_bound {
  std::size_t bytes = unknown_left;
  char const* by = "nothing";                         ///< the tightest bound; static storage
  std::size_t limit = memory_report::unknown;         ///< if a limit is the tightest
  std::size_t limit_used = memory_report::unknown;    ///< likewise
  std::size_t headroom = memory_report::unknown;      ///< if a headroom is the tightest
  std::size_t live = memory_report::unknown;          ///< as the nearest layer that counts it reports
  std::size_t cached = memory_report::unknown;        ///< held by the nearest pool, but not allocated
  std::size_t device_free = memory_report::unknown;   ///< as the driver reports
  std::size_t device_total = memory_report::unknown;  ///< likewise
  status query;                                       ///< of the driver's report

  void leave_headroom(std::size_t more) noexcept {
    if (device_free == memory_report::unknown || more == 0) return;
    std::size_t const rest = device_free - min_of(device_free, more);
    if (rest >= bytes) return;
    bytes = rest;
    by = "headroom";
    headroom = more;
    limit = limit_used = memory_report::unknown;
  }
  void keep_within(std::size_t most, std::size_t used) noexcept {
    std::size_t const rest = most - min_of(most, used);
    if (rest >= bytes) return;
    bytes = rest;
    by = "limited";
    limit = most;
    limit_used = live = used;
    headroom = memory_report::unknown;
  }
  /// @param reusable  of what the pool has cached
  void add_pool(pool_state const& s, std::size_t reusable) noexcept {
    bytes += min_of(reusable, unknown_left - bytes);
    cached = s.cached;
    live = s.live;
  }
};

/// Returns what `layer` and those below it can still provide: the device's free memory, less headroom, within each limit, plus what
/// a pool on the way caches. Of a layer that routes calls, only upstream() counts. One driver call, 5 to 100 us.
template <class Layer>
[[nodiscard]] memory_bound memory_left(Layer& layer) {
  memory_bound left;
  if constexpr (stands_on_another<Layer>) {
    left = memory_left(layer_of(layer.upstream()));
  } else if constexpr (reports_free<Layer>) {
    std::size_t free = 0;
    std::size_t total = 0;
    left.query = layer.driver().memory_info(free, total);
    if (left.query.ok()) {
      left.bytes = left.device_free = free;
      left.device_total = total;
      left.by = std::same_as<typename Layer::driver_type, no_driver> ? "the host" : "the device";
    }
  }
  if constexpr (caches_bytes<Layer>) {
    pool_state const s = layer.state();
    // Over pages, free pieces can be combined. Over blocks they cannot, so only the largest piece is certain.
    bool puts_together = page_source<typename Layer::upstream_type>;
    if constexpr (requires { layer.uses_pages(); }) puts_together = layer.uses_pages();
    left.add_pool(s, puts_together ? s.cached : s.largest_free_range);
  }
  if constexpr (has_headroom<Layer>) left.leave_headroom(layer.headroom_bytes());
  if constexpr (has_limit<Layer>) left.keep_within(layer.limit(), layer.used());
  return left;
}

/// Returns what the limits of `layer` and those below it leave, whatever the device has; unknown_left if there is none. Makes no
/// driver call.
template <class Layer>
[[nodiscard]] memory_bound limits_left(Layer& layer) noexcept {
  memory_bound left;
  if constexpr (stands_on_another<Layer> && !routes_calls<Layer>)
    left = limits_left(layer_of(layer.upstream()));
  if constexpr (has_limit<Layer>) left.keep_within(layer.limit(), layer.used());
  return left;
}

/// Whether the layers below a pool only bound what the device has. Another layer could get more where these refuse, as
/// retry_on_oom does.
template <class Layer>
[[nodiscard]] constexpr bool only_bounds() noexcept {
  if constexpr (!stands_on_another<Layer>) {
    return true;
  } else if constexpr (has_headroom<Layer> || has_limit<Layer>) {
    return only_bounds<std::remove_reference_t<decltype(layer_of(std::declval<Layer&>().upstream()))>>();
  } else {
    return false;
  }
}

/// An estimate of memory_left() that is renewed after each sixteenth of it, so that a growth rarely queries the driver. Others may
/// take memory meanwhile: then it is too high. Under the growth lock.
class known_left {
 public:
  [[nodiscard]] bool is_old(std::size_t reserved) const noexcept {
    return !is_known_ || (reserved > seen_at_ && reserved - seen_at_ > left_ / 16);
  }
  void renew(std::size_t left, std::size_t reserved) noexcept {
    left_ = left;
    seen_at_ = reserved;
    is_known_ = true;
  }
  /// The next growth queries the driver.
  void forget() noexcept { is_known_ = false; }
  [[nodiscard]] std::size_t bytes(std::size_t reserved) const noexcept {
    if (!is_known_ || left_ == unknown_left) return unknown_left;
    return reserved > seen_at_ ? left_ - min_of(left_, reserved - seen_at_) : left_ + (seen_at_ - reserved);
  }

 private:
  std::size_t left_ = 0;
  std::size_t seen_at_ = 0;  ///< reserved bytes when it was queried
  bool is_known_ = false;
};

}  // namespace tarn::detail
// ---- tarn/pool/growth/page_growth.hpp
// Growth by pages, over one virtual range. Free memory is used at its home address; if no contiguous range of it is large
// enough, these are tried in this order:
//
//   1 new handles at home addresses, while reserved memory may grow with live memory   36 us each
//   2 for small blocks, a free handle of the large zone                                no driver call
//     for others, a view that was used before and whose handles are free again         no driver call
//   3 for others, a view of free handles: an existing one extended, or a new one       27 us a handle
//   4 new handles beyond that, for the missing bytes
//
// A free range in front of a hole is extended rather than a new range begun, if the request says so.
// The ladder says how much may be created before free handles are mapped again (growth_request::may_create).

#include <bit>
#include <cstddef>
#include <cstdint>
#include <exception>

// ---- tarn/pool/growth/growth.hpp
// The request that the ladder passes to a growth, and the counters of every growth, by pages or by segments.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <mutex>

// ---- tarn/pool/growth/growth_notes.hpp
// A ring of the latest growth records: which handle or segment a pool created or gave back, and when. Off by default.

#include <cstddef>
#include <cstdint>

namespace tarn::detail {

enum class growth_change : std::uint8_t { made, given_back };

struct growth_note {
  std::uint64_t time = 0;  ///< from the clock
  std::uintptr_t address = 0;
  std::size_t bytes = 0;
  growth_change what = growth_change::made;
};

/// Under the growth lock. Until open(), a record costs one null pointer check, next to driver calls of microseconds.
class growth_notes {
 public:
  using clock_type = std::uint64_t (*)() noexcept;

  /// Keeps the latest `most` records from now on, 32 bytes each, all allocated now; drops earlier records. 0 stops recording.
  /// @throws std::bad_alloc  nothing has changed
  void open(std::size_t most, clock_type of_records) {
    sequence<growth_note> ring;
    ring.resize(most);
    ring_.swap(ring);
    clock_ = most != 0 ? of_records : nullptr;
    count_ = 0;
  }
  [[nodiscard]] bool is_open() const noexcept { return clock_ != nullptr; }
  /// What open() was called with.
  [[nodiscard]] std::size_t most() const noexcept { return ring_.size(); }
  [[nodiscard]] clock_type clock() const noexcept { return clock_; }

  void add(growth_change what, std::uintptr_t address, std::size_t bytes) noexcept {
    if (clock_ == nullptr) return;
    ring_[count_++ % ring_.size()] = {clock_(), address, bytes, what};
  }

  /// The number of records kept, and one of them, the oldest first.
  [[nodiscard]] std::size_t size() const noexcept { return count_ < ring_.size() ? count_ : ring_.size(); }
  [[nodiscard]] growth_note const& operator[](std::size_t i) const noexcept {
    return ring_[(count_ - size() + i) % ring_.size()];
  }
  [[nodiscard]] std::size_t host_bytes() const noexcept { return ring_.capacity() * sizeof(growth_note); }

 private:
  sequence<growth_note> ring_;
  std::size_t count_ = 0;  ///< added since open()
  clock_type clock_ = nullptr;
};

}  // namespace tarn::detail

namespace tarn::detail {

/// Largest physical handle to create for a pool whose live peak is `peak`, bytes. A handle can be remapped only if it is free,
/// so waste grows with the handle's size relative to the pool's, while driver calls become fewer. These bounds keep utilisation
/// at 0.95 or more on the recorded traces above 1 GiB, and the first pass below the driver time of PyTorch's expandable segments.
/// bench/results/frontier.txt has the alternatives: 8 MiB wastes half as much for up to 12 times the driver time. A pool that
/// is still small starts with small handles, which fit anywhere later; with 8 MiB below 2 GiB, small pools would hold up to 4 %
/// less, but the first pass of large ones would take up to 1.7 times the driver time.
[[nodiscard]] constexpr std::size_t handle_limit(std::size_t peak) noexcept {
  return min_of(max_of(align_down(peak / 32, usual_granule), std::size_t{20_MiB}), std::size_t{96_MiB});
}

/// The same where `left` more bytes can be created, which the device or a limit bounds: handles get finer as memory becomes scarce,
/// down to 2 MiB in the last 1.5 GiB, so that little of it is lost in handles that are partly used. With the part 768, all eight
/// recorded traces finish in 1.02 times their peak and seven in 1.01 (`tarn_replay --cap`), for 3 to 36 times the driver time of a
/// first pass with ample memory; 256 saves half of that time, and two traces do not finish in 1.02.
[[nodiscard]] constexpr std::size_t handle_limit_near_full(std::size_t left) noexcept {
  return max_of(align_down(left / 768, usual_granule), usual_granule);
}

/// Whether a pool creates the finest handles for a request, since it would otherwise waste too much: a small pool that already reserves
/// its live peak, `peak` bytes with the request. There a handle of the usual size is a large part of the pool. Without this rule
/// `cupy_flow_cg` (0.4 GiB) has a utilisation of 0.81 after 20 passes and creeps by 12 %; with it 0.92 and 0.9 %, for 2.5 times the
/// driver time of the first pass. Traces that become larger are as before: finer handles from the start would give them up to a third
/// more driver time. Requests up to 1 MiB share handles anyway.
[[nodiscard]] constexpr bool needs_finest_handles(std::size_t peak, std::size_t reserved,
                                                  std::size_t bytes) noexcept {
  return peak < 512_MiB && reserved >= peak && bytes > 1_MiB;
}

/// How far reserved memory may exceed the live peak before free handles are remapped for a request of `bytes`, in thousandths. Up
/// to 8 MiB it is 5 times as much as for larger requests: a view for each of many blocks of medium size costs more driver calls than
/// it saves memory, and splits handles. Where sizes creep up, as those of an attention cache do, remapping at 9 thousandths took 100
/// times the driver time, and held up to 4 % more (`tarn_replay --pattern attention_cache`). If it remaps all the same, more often than
/// once for each GiB that it hands out, it gets up to 8 times as much: such a pool would reach the larger bound anyway, and the first
/// pass of `attention_cache` takes a seventh of the driver time. Remaps in relation to handles are no such measure: those of
/// `bert_recompute` are few for what it allocates, and save 2 % of its memory.
///
/// Larger requests get up to 3 times as much where more than 20 are remapped for each GiB, as by a server with requests of random
/// length: its first pass takes 0.76 to 0.95 of the driver time, and no trace or pattern holds over 0.1 % more. From one remap a GiB on,
/// `bert_recompute` holds 3 % more; with 4 times as much the server does, 1 %. With 3 times as much instead of 5 up to 8 MiB, the
/// first pass of `attention_cache` takes 7 to 35 times the driver time.
[[nodiscard]] constexpr std::size_t slack_of(std::size_t bytes, unsigned slack_per_mille,
                                             std::size_t remaps_per_gib) noexcept {
  if (bytes > 8_MiB) {
    std::size_t const often = remaps_per_gib > 20 ? remaps_per_gib - 20 : 0;
    return slack_per_mille * (1 + min_of(often, std::size_t{2}));
  }
  std::size_t const often = remaps_per_gib > 1 ? remaps_per_gib - 1 : 0;
  return slack_per_mille * (5 + min_of(often, std::size_t{3}));
}

/// Requests below this size share a handle of this size, bytes: 2 MiB up to a peak of 16 GiB, so that the freed half of a
/// checkerboard of 2 MiB blocks consists of whole handles. Larger ones save no driver time on the recorded traces.
[[nodiscard]] constexpr std::size_t shared_handle(std::size_t peak) noexcept {
  return min_of(max_of(std::bit_floor(peak / 4096 + 1), std::size_t{2_MiB}), std::size_t{16_MiB});
}

/// How many bytes may stay reserved beside a new segment of `bytes` where free segments are neither joined nor moved: together with
/// it a quarter more than the live peak, which it may raise. Sizes that grow would otherwise leave several times the live peak
/// reserved; with a quarter more, seven of the eight recorded traces make no driver call in later passes (bench/results/frontier.txt).
/// With a fifth more, `burst` holds 1.21 instead of 1.26 times its live peak, but `cupy_flow_cg` 1.32 and `streams:4` 1.33 as before; the
/// first pass of `attention_cache` takes 1.4 times the driver time, a later one 3 times.
[[nodiscard]] inline std::size_t most_beside(arena const& a, std::size_t bytes) noexcept {
  std::size_t const live = max_of(a.live_peak, a.live_bytes + bytes);
  std::size_t const most = live + live / 4;
  return most > bytes ? most - bytes : 0;
}

struct growth_request {
  domain_ref taker = neutral;
  zone where = zone::small;
  std::size_t bytes = 0;
  std::size_t alignment = default_alignment;
  std::size_t asked = 0;  ///< bytes and alignment of the caller's request, for the error
  std::size_t asked_alignment = 0;
  // The ladder sets the rest for each step. A small pool that grows at once, and a step that only puts memory together, do not
  // exceed may_create; other growth may.
  std::size_t may_create = 0;          ///< bytes that may be created before free handles are remapped instead
  std::size_t largest_handle = 2_MiB;  ///< upper bound for handles that are created
  std::size_t least_growth = 2_MiB;    ///< small requests share a handle of this size, if it may be created
  bool may_exceed = true;              ///< if remapping does not suffice, create more anyway
  bool may_remap = true;               ///< false: handles are mapped only at their home addresses
  bool extend = true;                  ///< whether a free range followed by a hole may be extended
};

/// What a pool and its graph memories hold from the driver, so that the peak of the sum is exact. A growth takes the mutex once for
/// each handle, next to driver calls of microseconds.
struct growth_sums {
  mutable fork_mutex mutex;
  stat reserved;  ///< bytes
  stat handles;   ///< or segments
  stat reserved_in[zone_count];
  stat handles_in[zone_count];

  void hold(std::size_t bytes, zone where) noexcept {
    std::lock_guard const guard(mutex);
    reserved.increase(static_cast<std::int64_t>(bytes));
    handles.increase(1);
    reserved_in[static_cast<std::size_t>(where)].increase(static_cast<std::int64_t>(bytes));
    handles_in[static_cast<std::size_t>(where)].increase(1);
  }
  void release(std::size_t bytes, zone where) noexcept {
    std::lock_guard const guard(mutex);
    reserved.decrease(static_cast<std::int64_t>(bytes));
    handles.decrease(1);
    reserved_in[static_cast<std::size_t>(where)].decrease(static_cast<std::int64_t>(bytes));
    handles_in[static_cast<std::size_t>(where)].decrease(1);
  }
  [[nodiscard]] std::size_t reserved_now() const noexcept {
    std::lock_guard const guard(mutex);
    return static_cast<std::size_t>(reserved.current);
  }
  void reset_peaks() noexcept {
    std::lock_guard const guard(mutex);
    reserved.reset_peak();
    handles.reset_peak();
    for (std::size_t z = 0; z < zone_count; ++z) {
      reserved_in[z].reset_peak();
      handles_in[z].reset_peak();
    }
  }
};

/// Written under the growth lock and read without it for statistics; there is one writer, so plain loads are enough.
struct growth_counters {
  growth_sums* sums = nullptr;  ///< that count this pool's, too
  std::size_t reserved = 0;
  std::size_t reserved_peak = 0;
  std::size_t reserved_total = 0;  ///< taken from the driver since the start
  std::size_t released_total = 0;
  std::uint64_t creates = 0;
  std::uint64_t destroys = 0;
  std::uint64_t maps = 0;
  std::uint64_t unmaps = 0;
  std::uint64_t remaps = 0;  ///< maps of handles into views
  std::uint64_t handles_peak = 0;

  stat reserved_in[zone_count];  ///< bytes by the zone that they were taken for
  stat handles_in[zone_count];
  growth_notes notes;

  void hold(std::uintptr_t address, std::size_t bytes, zone where) noexcept {
    if (sums != nullptr) sums->hold(bytes, where);
    notes.add(growth_change::made, address, bytes);
    reserved_in[static_cast<std::size_t>(where)].increase(static_cast<std::int64_t>(bytes));
    handles_in[static_cast<std::size_t>(where)].increase(1);
    reserved += bytes;
    reserved_total += bytes;
    reserved_peak = max_of(reserved_peak, reserved);
    handles_peak = max_of(handles_peak, creates - destroys);
  }
  void release(std::uintptr_t address, std::size_t bytes, zone where) noexcept {
    if (sums != nullptr) sums->release(bytes, where);
    notes.add(growth_change::given_back, address, bytes);
    reserved_in[static_cast<std::size_t>(where)].decrease(static_cast<std::int64_t>(bytes));
    handles_in[static_cast<std::size_t>(where)].decrease(1);
    reserved -= bytes;
    released_total += bytes;
  }
};

/// Takes a pool that ends out of the sums.
inline void leave_sums(growth_sums& sums, growth_counters const& ending) noexcept {
  std::lock_guard const guard(sums.mutex);
  for (std::size_t z = 0; z < zone_count; ++z) {
    sums.reserved.decrease(ending.reserved_in[z].current);
    sums.handles.decrease(ending.handles_in[z].current);
    sums.reserved_in[z].decrease(ending.reserved_in[z].current);
    sums.handles_in[z].decrease(ending.handles_in[z].current);
  }
}

/// One piece of the memory that a growth holds, for inspection: a handle at its home address, or a segment.
struct held_memory {
  std::uintptr_t address = 0;
  std::size_t bytes = 0;
  zone where = zone::small;  ///< the zone it was taken for
  bool is_handle = false;    ///< otherwise a segment, which is never joined to another or remapped
};

}  // namespace tarn::detail
// ---- tarn/pool/growth/kept_ranges.hpp
// Which bytes of a handle must keep their addresses and contents while the pool sleeps or is compacted. Pure.

#include <cstddef>
#include <cstdint>

namespace tarn::detail {

/// Whether a free range must keep its address and its pages although no block lies in it: then its handle is neither given back
/// nor shrunk, and its contents are kept: in the pool of a graph_memory all do, since captured graphs use them.
[[nodiscard]] inline bool must_stay(arena const& a, range const&) noexcept {
  return a.keeps_addresses;
}

[[nodiscard]] inline bool must_stay(arena const& a, std::uintptr_t address) noexcept {
  return must_stay(a, a.ranges[a.starts.find(a.ranges, address)]);
}

/// Whether the bytes of a range are kept.
[[nodiscard]] inline bool is_kept(arena const& a, range const& node) noexcept {
  return node.state == range_state::live || (node.state == range_state::free && must_stay(a, node));
}

/// Calls f(offset, bytes) for each contiguous stretch of a handle's kept bytes, in order. O(ranges within the handle)
template <class F>
void for_each_kept(arena const& a, physical const& handle, F&& f) {
  std::uintptr_t const handle_end = handle.home + handle.bytes;
  std::uintptr_t begin = handle.home;
  std::uintptr_t end = handle.home;
  for (range_ref r = a.starts.find(a.ranges, handle.home); r != 0 && a.ranges[r].address < handle_end;
       r = a.ranges[r].next) {
    range const& node = a.ranges[r];
    if (!is_kept(a, node)) continue;
    std::uintptr_t const from = max_of(node.address, handle.home);
    if (from != end) {
      if (begin != end)
        f(static_cast<std::size_t>(begin - handle.home), static_cast<std::size_t>(end - begin));
      begin = from;
    }
    end = min_of(node.end(), handle_end);
  }
  if (begin != end) f(static_cast<std::size_t>(begin - handle.home), static_cast<std::size_t>(end - begin));
}

}  // namespace tarn::detail
// ---- tarn/pool/growth/page_choice.hpp
// The choice of free pieces for a block, if no contiguous free range is large enough. Pure: it reads the arena and the page map
// and changes neither.

#include <cstddef>
#include <cstdint>

// ---- tarn/core/sort.hpp
// In-place heap sort without the header algorithm, which costs a compiler 40 ms.

#include <cstddef>

namespace tarn::detail {

/// Sorts `items[0, count)` by `before(a, b)`. Not stable: for a deterministic order `before` must distinguish all elements.
/// O(count log count), never allocates.
template <class T, class Before>
void sort(T* items, std::size_t count, Before const& before) {
  auto const sink = [&](std::size_t at, std::size_t end) {
    T sinking = static_cast<T&&>(items[at]);
    for (std::size_t child; (child = 2 * at + 1) < end; at = child) {
      if (child + 1 < end && before(items[child], items[child + 1])) ++child;
      if (!before(sinking, items[child])) break;
      items[at] = static_cast<T&&>(items[child]);
    }
    items[at] = static_cast<T&&>(sinking);
  };
  for (std::size_t at = count / 2; at-- > 0;) sink(at, count);
  for (std::size_t end = count; end-- > 1;) {
    T last = static_cast<T&&>(items[end]);
    items[end] = static_cast<T&&>(items[0]);
    items[0] = static_cast<T&&>(last);
    sink(0, end);
  }
}

}  // namespace tarn::detail
// ---- tarn/pool/growth/view.hpp
// A view: a second mapping that places handles next to each other that are not neighbours at their home addresses. A block
// without a sufficient contiguous free range is assembled from free pieces: the free end of one handle, any number of wholly
// free handles, the free start of another. A handle is mapped whole: cuMemMap refuses an offset, and a part (801, driver 580).
//
//   home    | live  free1 | ... |  free2  | ... |  free3  | ... | free4  live |
//   view                  [live free1][ free2 ][ free3 ][free4 live]
//   block                       '----------------------------'
//
// Views are kept after their block is freed: a later request of the same size reuses the view without a driver call, and a
// larger one may extend it.

#include <cstddef>
#include <cstdint>

namespace tarn::detail {

/// One handle of a view.
struct view_slot {
  handle_ref handle = 0;  ///< 0 if it was unmapped because its handle was given back
  std::size_t bytes = 0;
};

struct view {
  range_ref region = 0;  ///< node of its addresses, some not mapped yet; 0 in an unused entry
  std::uintptr_t address = 0;
  std::size_t bytes = 0;  ///< of its handles
  sequence<view_slot> slots;
  std::size_t last_offset = 0;  ///< of the last block in this view
  std::size_t last_bytes = 0;
  std::uint32_t pins = 0;  ///< while there are any, it stays mapped

  /// Number of handles at or after an offset.
  [[nodiscard]] std::size_t handles_from(std::size_t offset) const noexcept {
    std::size_t count = 0;
    for (std::size_t end = bytes; count < slots.size() && end > offset; ++count)
      end -= slots[slots.size() - 1 - count].bytes;
    return count;
  }
  [[nodiscard]] bool shows(handle_ref h) const noexcept {
    for (view_slot const& slot : slots) {
      if (slot.handle == h) return true;
    }
    return false;
  }
};

/// How many views are kept before the least recently used idle ones are unmapped; at twice as many the host waits for the work
/// in them. The recorded traces need at most 150; each view costs 100 bytes of host memory plus 24 per handle.
inline constexpr std::size_t most_views = 512;

/// How many views one request searches, the most recent ones first; reuse() does not count views last used for the same size.
inline constexpr std::size_t view_search_limit = 64;

}  // namespace tarn::detail

namespace tarn::detail {

/// Free bytes of one handle, at their home address.
struct piece {
  std::uintptr_t address = 0;
  std::size_t bytes = 0;
  handle_ref handle = 0;
};

/// The pieces of one block, in order, and the bytes still missing.
struct choice {
  sequence<piece> pieces;
  std::size_t lack = 0;
  std::size_t left_over = 0;  ///< free bytes that stay unused in handles of which the block takes a part
};

/// Free ends and starts of handles below this size are not worth mapping a handle, bytes.
inline constexpr std::size_t least_piece = 64_KiB;

/// Calls f(piece, free_at_start, free_at_end) for each handle's free part that the domain may use.
template <class F>
void for_each_piece(arena const& a, page_map const& map, domain_ref d, zone where, std::size_t least, F&& f) {
  a.streams[d].ranges(where).for_each(a.ranges, least, [&](range_ref r) {
    range const& node = a.ranges[r];
    for (std::uintptr_t at = node.address; at < node.end();) {
      handle_ref const h = map.at(at);
      std::uintptr_t const end = min_of(node.end(), map.end_of(h));
      f(piece{at, end - at, h}, at == map[h].home, end == map.end_of(h));
      at = end;
    }
  });
}

/// Assembles a block: the largest wholly free handles that fit, then for the rest the smallest sufficient free end or start of
/// a handle, or one of each, or the start of a wholly free handle. Prefers few pieces, since each costs 27 us to map, and keeps
/// handles whole where possible. O(free ranges + handles), plus sorting.
/// @param after  the view that the pieces will follow: then no piece begins within a handle, and none of the view's handles is
///               taken, since a view maps a handle at most once
/// @throws std::bad_alloc
inline choice choose_pieces(arena const& a, page_map const& map, growth_request const& request,
                            std::size_t bytes, view const* after = nullptr) {
  sequence<piece> whole;
  piece start_best;
  piece start_most;
  piece end_best;
  piece end_most;
  sequence<piece> starts;
  sequence<piece> ends;
  bool const head_allowed = after == nullptr && request.alignment <= range_grain;
  auto const is_taken = [&](piece const& p) { return after != nullptr && after->shows(p.handle); };
  auto const look = [&](domain_ref d) {
    auto const sort_in = [&](piece const& p, bool at_start, bool at_end) {
      if (is_taken(p)) return;
      if (at_start && at_end) {
        whole.push_back(p);
      } else if (at_end && head_allowed) {
        ends.push_back(p);
      } else if (at_start) {
        starts.push_back(p);
      }
    };
    for_each_piece(a, map, d, zone::large, least_piece, sort_in);
    for_each_piece(a, map, d, zone::small, map.granularity(),
                   [&](piece const& p, bool at_start, bool at_end) {
                     if (at_start && at_end && !is_taken(p)) whole.push_back(p);
                   });
  };
  look(request.taker);
  if (request.taker != neutral) look(neutral);
  sort(whole.begin(), whole.size(), [](piece const& x, piece const& y) {
    return x.bytes != y.bytes ? x.bytes > y.bytes : x.address < y.address;
  });

  choice c;
  std::size_t rest = bytes;
  c.pieces.push_back(piece{});  // reserved for the head
  piece smallest_above;
  for (piece const& p : whole) {
    if (p.bytes <= rest) {
      c.pieces.push_back(p);
      rest -= p.bytes;
    } else {
      smallest_above = p;
    }
  }
  piece head;
  piece tail;
  if (rest != 0) {
    auto const most_but_of = [](sequence<piece> const& from, handle_ref h) {
      piece most;
      for (piece const& p : from) {
        if (p.handle != h && p.bytes > most.bytes) most = p;
      }
      return most;
    };
    auto const consider = [&](sequence<piece> const& from, piece& best, piece& most) {
      for (piece const& p : from) {
        if (p.bytes >= rest && (best.bytes == 0 || p.bytes < best.bytes)) best = p;
        if (p.bytes > most.bytes) most = p;
      }
    };
    consider(ends, end_best, end_most);
    consider(starts, start_best, start_most);
    piece const end_alone = end_most;
    // A handle is mapped once: if it is free at both ends, the next best piece replaces it at one of them.
    if (end_most.bytes != 0 && end_most.handle == start_most.handle) {
      piece const end_next = most_but_of(ends, start_most.handle);
      piece const start_next = most_but_of(starts, end_most.handle);
      if (end_next.bytes + start_most.bytes > end_most.bytes + start_next.bytes) {
        end_most = end_next;
      } else {
        start_most = start_next;
      }
    }
    bool const by_end = end_best.bytes != 0 && (start_best.bytes == 0 || end_best.bytes <= start_best.bytes);
    piece const& best = by_end ? end_best : start_best;
    // smallest_above did not fit the rest when it was looked at, so it was not taken and is free.
    bool const whole_does = smallest_above.bytes >= rest && smallest_above.bytes != 0;
    if (best.bytes != 0 && (!whole_does || best.bytes / 4 <= smallest_above.bytes)) {
      (by_end ? head : tail) = best;
    } else if (whole_does) {
      tail = smallest_above;
    } else if (end_most.bytes + start_most.bytes >= rest) {
      head = end_most;
      tail = start_most;
    } else {
      head = end_alone;
      c.lack = rest - end_alone.bytes;
      return c;
    }
    c.left_over = head.bytes + tail.bytes - rest;
    if (head.bytes != 0) {
      std::size_t const used = min_of(rest, head.bytes);
      head = {head.address + (head.bytes - used), used, head.handle};
      rest -= used;
    }
    tail.bytes = rest;
  }
  if (tail.bytes != 0) c.pieces.push_back(tail);
  if (head.bytes != 0) {
    c.pieces[0] = head;
  } else {
    for (std::size_t i = 1; i < c.pieces.size(); ++i) c.pieces[i - 1] = c.pieces[i];
    c.pieces.pop_back();
  }
  return c;
}

/// The smallest wholly free handle of at least `bytes` that a domain may use; bytes 0 if there is none.
inline piece choose_whole_handle(arena const& a, page_map const& map, domain_ref taker, std::size_t bytes) {
  piece best;
  auto const look = [&](domain_ref d) {
    for_each_piece(a, map, d, zone::large, map.granularity(),
                   [&](piece const& p, bool at_start, bool at_end) {
                     if (at_start && at_end && p.bytes >= bytes && (best.bytes == 0 || p.bytes < best.bytes))
                       best = p;
                   });
  };
  look(taker);
  if (taker != neutral) look(neutral);
  return best;
}

/// A contiguous part of a view whose bytes are all free for the taker.
struct free_stretch {
  std::size_t offset = 0;  ///< in the view
  std::size_t bytes = 0;   ///< 0 if none
};

/// Calls f(begin, end) for each contiguous part of a view that is free for a domain, until it returns true.
/// O(ranges within the view's handles)
template <class F>
void for_each_stretch(arena const& a, page_map const& map, view const& v, domain_ref taker, F&& f) {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t offset = 0;
  for (view_slot const& slot : v.slots) {
    if (slot.handle != 0) {
      physical const& h = map[slot.handle];
      std::uintptr_t const handle_end = h.home + h.bytes;
      for (range_ref r = a.starts.find(a.ranges, h.home); r != 0 && a.ranges[r].address < handle_end;
           r = a.ranges[r].next) {
        range const& node = a.ranges[r];
        if (node.state != range_state::free || (node.domain != taker && node.domain != neutral)) continue;
        std::size_t const from = offset + (max_of(node.address, h.home) - h.home);
        std::size_t const to = offset + (min_of(node.end(), handle_end) - h.home);
        if (from != end) {
          if (f(begin, end)) return;
          begin = from;
        }
        end = to;
      }
    }
    offset += slot.bytes;
  }
  (void)f(begin, end);
}

/// The smallest free stretch of a view that holds the request, or the place of the last block if that is free and has the same
/// size.
inline free_stretch find_stretch(arena const& a, page_map const& map, view const& v,
                                 growth_request const& request) {
  free_stretch best;
  for_each_stretch(a, map, v, request.taker, [&](std::size_t begin, std::size_t end) {
    std::size_t const from = align_up(begin, request.alignment);
    if (end < from || end - from < request.bytes) return false;
    if (request.bytes == v.last_bytes && v.last_offset >= begin && v.last_offset + v.last_bytes <= end &&
        v.last_offset % request.alignment == 0) {
      best = {v.last_offset, request.bytes};
      return true;
    }
    if (best.bytes == 0 || end - from < best.bytes) best = {from, end - from};
    return false;
  });
  return best;
}

/// The free stretch at the end of a view, from where the request may begin.
inline free_stretch find_free_end(arena const& a, page_map const& map, view const& v,
                                  growth_request const& request) {
  free_stretch last{v.bytes, 0};
  for_each_stretch(a, map, v, request.taker, [&](std::size_t begin, std::size_t end) {
    std::size_t const from = align_up(begin, request.alignment);
    if (end == v.bytes && from < end) last = {from, end - from};
    return false;
  });
  return last;
}

/// The pieces behind a part of a view, in order. @throws std::bad_alloc
inline choice pieces_of(page_map const& map, view const& v, std::size_t offset, std::size_t bytes) {
  choice c;
  std::size_t at = 0;
  for (view_slot const& slot : v.slots) {
    std::size_t const from = max_of(offset, at);
    std::size_t const to = min_of(offset + bytes, at + slot.bytes);
    if (from < to) c.pieces.push_back(piece{map[slot.handle].home + (from - at), to - from, slot.handle});
    at += slot.bytes;
  }
  return c;
}

}  // namespace tarn::detail
// ---- tarn/pool/growth/page_compact.hpp
// Compaction of a growth by pages: a handle that is only partly in use is replaced by smaller ones, at the same addresses.
//
//   home   | live | free      free | live |          one handle
//   after  | live |      hole      | live |          two handles; what is not a whole free granule stays
//
// Per handle: create the new handles, map them at a temporary address, copy, unmap the old one from its home and its views, map
// the new ones there. The old handle is destroyed last, so that it can be mapped again if a call fails. If mapping it fails as
// well, it is left unmapped and the pool must fall asleep, until wake() can map it.

#include <cstddef>
#include <cstdint>
#include <utility>

// ---- tarn/pool/growth/address_space.hpp
// The division of the pool's one virtual range: a quarter for the home addresses of each zone's handles, the rest for views.
// Keeps the holes, which are addresses with nothing mapped. Pure bookkeeping.

#include <cstddef>
#include <cstdint>

namespace tarn::detail {

/// Address space is reserved this many times the device's memory. It costs the driver 5-77 us once, whatever its size.
inline constexpr std::size_t reservation_factor = 16;

class address_space {
 public:
  /// Starts with one hole per part. Requires room for zone_count + 1 ranges.
  void open(arena& a, std::uintptr_t base, std::size_t bytes) noexcept {
    base_ = base;
    part_ = bytes / 4;
    for (std::size_t z = 0; z < zone_count; ++z) add_hole(a, homes_[z], base + part_ * z, part_);
    add_hole(a, views_, base + bytes / 2, bytes / 2);
  }

  /// The zone of a home address.
  [[nodiscard]] zone zone_at(std::uintptr_t home) const noexcept {
    return static_cast<zone>((home - base_) / part_);
  }

  /// A hole of at least `bytes`, 0 if there is none; changes nothing. O(1)
  [[nodiscard]] range_ref find_home(arena& a, zone where, std::size_t bytes, std::size_t grain) noexcept {
    return homes_[static_cast<std::size_t>(where)].find(a.ranges, bytes, grain);
  }
  [[nodiscard]] range_ref find_view(arena& a, std::size_t bytes, std::size_t grain) noexcept {
    return views_.find(a.ranges, bytes, grain);
  }

  /// Takes the first `bytes` of a hole. Requires room for one range.
  void take(arena& a, range_ref hole, std::size_t bytes) noexcept {
    range_index& index = index_of(a.ranges[hole].address);
    index.erase(a.ranges, hole);
    if (a.ranges[hole].bytes > bytes) index.insert(a.ranges, a.split(hole, bytes));
    a.ranges[hole].state = range_state::live;
  }

  /// Turns a range back into a hole, and coalesces it with neighbouring holes.
  void give_back(arena& a, range_ref r) noexcept {
    range_index& index = index_of(a.ranges[r].address);
    a.ranges[r].state = range_state::hole;
    a.ranges[r].domain = neutral;
    a.ranges[r].epoch = 0;
    a.ranges[r].where = zone::small;
    if (range_ref const n = a.ranges[r].next; n != 0 && a.ranges[n].state == range_state::hole) {
      index.erase(a.ranges, n);
      a.merge(r, n);
    }
    if (range_ref const b = a.ranges[r].previous; b != 0 && a.ranges[b].state == range_state::hole) {
      index.erase(a.ranges, b);
      a.merge(b, r);
      r = b;
    }
    index.insert(a.ranges, r);
  }

 private:
  static void add_hole(arena& a, range_index& index, std::uintptr_t address, std::size_t bytes) noexcept {
    range_ref const r = a.ranges.take();
    a.ranges[r].address = address;
    a.ranges[r].bytes = bytes;
    a.ranges[r].state = range_state::hole;
    a.starts.note(a.ranges, r);
    index.insert(a.ranges, r);
  }
  /// By address, not by zone: a handle that changed its zone keeps its home address.
  [[nodiscard]] range_index& index_of(std::uintptr_t address) noexcept {
    std::size_t const part = (address - base_) / part_;
    return part < zone_count ? homes_[part] : views_;
  }

  std::uintptr_t base_ = 0;
  std::size_t part_ = 1;
  range_index homes_[zone_count];
  range_index views_;
};

}  // namespace tarn::detail
// ---- tarn/pool/growth/page_views.hpp
// The views of a pool over free handles: an existing view is reused, or extended if its end is free; new views are mapped, and
// old ones unmapped.
//
// Over 400 lines: what changes a view's slots is here, also for sleep (page_sleep.hpp) and compact (page_compact.hpp).

#include <cstddef>
#include <cstdint>

// ---- tarn/pool/order/ordering.hpp
// The driver calls of stream order: record, query and wait, never under the hot lock and never on a capturing stream. Used
// only by the ladder, sweeps of streams that ended, trim() and ~pool().

#include <cstdint>

// ---- tarn/pool/order/mark_work.hpp
// Marks a stream's work with an event, without knowing whether the stream still exists. CUDA crashes if it is queried about a
// destroyed stream's handle (cudaStreamGetId and similar calls end in a segmentation fault). If the driver can mark the whole
// device's work, that is used instead: it covers more than needed, and uses no stream's handle.

#include <cstdint>

namespace tarn::detail {

enum class mark_result : std::uint8_t {
  marked,   ///< the event covers the stream's work so far
  refused,  ///< not now: a graph is being captured, or the driver failed
  gone      ///< the stream was destroyed, or may be: only waiting for the whole device helps
};

/// Marks the work of `stream`, which carries its identity. At most three driver calls.
/// @param captured  set to whether the mark was refused because of a capture
template <stream_driver Driver>
mark_result mark_work(Driver const& driver, event_handle event, stream_ref stream, bool& captured) noexcept {
  bool capturing = false;
  captured = false;
  if (!is_default_stream(stream)) {
    if constexpr (marks_all_work<Driver>) {
      status const s = record_all_work(driver, event);
      if (s.ok()) return mark_result::marked;
      captured = is_of_capture(s);
      return s.kind == failure::unsupported ? mark_result::gone : mark_result::refused;
    } else {
      // A captured stream cannot be identified. A capture that begins meanwhile waits for these two calls.
      capture_gate::passage const none_begins;
      if (driver.is_capturing(stream_ref::from(stream.handle()), capturing).ok() && capturing) {
        captured = true;
        return mark_result::refused;
      }
      stream_id now = 0;
      bool const same = driver.identify(stream_ref::from(stream.handle()), now).ok() && now == stream.id();
      if (!same) return mark_result::gone;
    }
  }
  bool const recorded =
      driver.is_capturing(stream, capturing).ok() && !capturing && driver.record_event(event, stream).ok();
  captured = !recorded && capturing;
  return recorded ? mark_result::marked : mark_result::refused;
}
template <stream_driver Driver>
mark_result mark_work(Driver const& driver, event_handle event, stream_ref stream) noexcept {
  bool captured = false;
  return mark_work(driver, event, stream, captured);
}

}  // namespace tarn::detail

namespace tarn::detail {

/// The device's progress on what a domain freed.
enum class progress : std::uint8_t {
  completed,  ///< complete: every stream may take the memory
  running,    ///< not complete; an event covers it
  unknown     ///< cannot be queried now: the stream is being captured, or the driver refused
};

/// What settle() does about a stream that was destroyed, if the driver cannot mark its work.
enum class gone_stream : std::uint8_t {
  is_waited_for,  ///< the host waits for the device
  stays_unknown   ///< nothing waits
};

template <stream_driver Driver>
class ordering {
 public:
  explicit ordering(Driver const& driver) : driver_(driver) {}

  /// Covers all that `d` has freed with an event, of its stream or of the whole device (mark_work.hpp), and queries it. At most five driver calls, none if nothing was freed since
  /// the last completed mark.
  ///
  /// `domain` stays valid across releases of the lock: domains are forgotten only under the growth lock, which the caller
  /// holds. The mark is taken before the event is recorded, so frees in between get a later mark.
  progress settle(arena& a, may_release hot, domain_ref d, gone_stream gone = gone_stream::is_waited_for) {
    stream_domain& domain = a.streams[d];
    if (d == neutral || domain.freed <= domain.completed) return progress::completed;
    if (is_capture_stream(domain.id)) return progress::unknown;
    if (domain.recorded < domain.freed) {
      std::uint64_t const mark = domain.epoch++;
      stream_ref const stream = domain.stream;
      bool const known_gone = domain.gone;
      mark_result result = mark_result::gone;
      {
        unlocked const open(hot);
        // Waiting for the device would invalidate a capture on any stream; recording an event is merely refused then.
        if (!known_gone || marks_all_work<Driver>) {
          result = ensure_event(domain) ? mark_work(driver_, domain.event, stream) : mark_result::refused;
        }
      }
      if (result == mark_result::refused) return progress::unknown;
      if (result == mark_result::gone) {
        if (gone == gone_stream::stays_unknown) return progress::unknown;
        domain.gone = true;
        return wait_for_gone(hot, domain, mark);
      }
      domain.recorded = mark;
    }
    if (is_running(a, hot, d)) return progress::running;
    return domain.freed <= domain.completed ? progress::completed : progress::running;
  }

  /// Whether the work up to the last mark of `d` runs still. At most one driver call.
  [[nodiscard]] bool is_running(arena& a, may_release hot, domain_ref d) {
    stream_domain& domain = a.streams[d];
    std::uint64_t const covered = domain.recorded;
    if (covered <= domain.completed) return false;
    bool done = false;
    {
      unlocked const open(hot);
      done = driver_.query_event(domain.event).ok();
    }
    if (done) domain.completed = max_of(domain.completed, covered);
    return !done;
  }

  /// Waits on the host until the device has completed all that `d` freed. Returns false if that cannot be determined.
  bool finish(arena& a, may_release hot, domain_ref d) {
    progress const now = settle(a, hot, d);
    if (now != progress::running) return now == progress::completed;
    stream_domain& domain = a.streams[d];
    std::uint64_t const covered = domain.recorded;
    bool done = false;
    {
      unlocked const open(hot);
      ++host_waits_;
      done = driver_.synchronize_event(domain.event).ok();
    }
    if (done) domain.completed = max_of(domain.completed, covered);
    return done;
  }

  /// Whether nothing may be recorded or waited for on behalf of a stream, since it is capturing a graph: marking other streams'
  /// work would invalidate the capture.
  [[nodiscard]] bool is_capturing(stream_ref stream) const noexcept {
    bool capturing = true;
    return !driver_.is_capturing(stream, capturing).ok() || capturing;
  }

  /// Makes later work of `taker` wait on the device for all that `owner` freed up to its recorded event.
  bool order(arena& a, may_release hot, domain_ref taker, domain_ref owner) {
    stream_ref const stream = a.streams[taker].stream;
    event_handle const event = a.streams[owner].event;
    bool done = false;
    {
      unlocked const open(hot);
      bool capturing = true;
      done = driver_.is_capturing(stream, capturing).ok() && !capturing &&
             driver_.wait_event(stream, event).ok();
    }
    if (done) ++device_waits_;
    return done;
  }

  /// Destroys the events. The pool is ending and has finished every domain.
  void close(arena& a) noexcept {
    for (domain_ref d = 0; d < a.streams.size(); ++d) {
      if (a.streams[d].event != nullptr) (void)driver_.destroy_event(a.streams[d].event);
      a.streams[d].event = nullptr;
    }
  }

  [[nodiscard]] Driver const& driver() const noexcept { return driver_; }
  /// Times the host or a stream had to wait for another stream's frees.
  [[nodiscard]] std::uint64_t host_waits() const noexcept { return host_waits_; }
  [[nodiscard]] std::uint64_t device_waits() const noexcept { return device_waits_; }

 private:
  bool ensure_event(stream_domain& domain) const noexcept {
    return domain.event != nullptr || driver_.create_event(domain.event).ok();
  }

  /// Waits for the whole device: nothing can be recorded on a destroyed stream, and its last work may still run.
  progress wait_for_gone(may_release hot, stream_domain& domain, std::uint64_t mark) {
    bool done = false;
    {
      unlocked const open(hot);
      ++host_waits_;
      done = wait_for_all_work(driver_).ok();
    }
    if (!done) return progress::unknown;
    domain.completed = max_of(domain.completed, mark);
    return domain.freed <= domain.completed ? progress::completed : progress::running;
  }

  Driver driver_;
  std::uint64_t host_waits_ = 0;
  std::uint64_t device_waits_ = 0;
};

}  // namespace tarn::detail

namespace tarn::detail {

/// A view is extended if that maps at least this many handles fewer than a new one, and leaves at most this part of the request
/// more unused next to it; for less, the best fitting pieces are worth more. Measured on the recorded traces from 1 to 12
/// handles, and from a 16th to a 64th: all other values lose up to 0.02 of utilisation on one of them or another.
inline constexpr std::size_t least_saving = 6;
inline constexpr std::size_t left_over_part = 32;

template <page_source Source>
class page_views {
 public:
  using driver_type = typename Source::driver_type;

  page_views(Source& source, growth_counters& counters, page_map& map, address_space& space)
      : source_(source), counters_(counters), map_(map), addresses_(space) {}

  [[nodiscard]] std::size_t host_bytes() const noexcept { return views_.capacity() * sizeof(view); }

  /// @throws std::bad_alloc
  void open(arena& a) {
    a.tenancies.resize(1);
    views_.resize(1);
  }

  /// Serves the request from an existing view, without a driver call; null if none is free. The caller holds both locks.
  /// @throws std::bad_alloc, nothing has changed
  [[nodiscard]] void* reuse(arena& a, hot_lock const& held, growth_request const& request) {
    if (request.where == zone::small || !request.may_remap || in_use_ == 0) return nullptr;
    std::uint32_t best = 0;
    free_stretch where;
    std::size_t looked_at = 0;
    for (std::uint32_t const i : by_use_) {
      view const& v = views_[i];
      if (v.bytes < request.bytes) continue;
      if (v.last_bytes != request.bytes && ++looked_at > view_search_limit) continue;
      free_stretch const s = find_stretch(a, map_, v, request);
      if (s.bytes == 0 || (best != 0 && s.bytes >= where.bytes)) continue;
      best = i;
      where = s;
      if (s.bytes == request.bytes) break;
    }
    if (best == 0) return nullptr;
    looked_up<choice> const c(held, pieces_of(map_, views_[best], where.offset, request.bytes));
    sequence<range_ref> carved;
    carve(a, held, c, carved);
    return make_live(a, carved, best, where.offset, request);
  }

  /// Whether idle views should be unmapped before a new one is made.
  [[nodiscard]] bool is_full() const noexcept { return in_use_ >= most_views; }

  /// Unmaps the older half of the idle views. Waits on the host for their work if there are at least twice most_views.
  void drop_idle(arena& a, may_release hot, ordering<driver_type>& order, domain_ref taker) {
    drop_views(a, hot, order, taker, in_use_ >= 2 * most_views ? patience::wait : patience::none,
               by_use_.size() / 2);
  }

  /// Joins pieces into one block: at the end of a view that holds most of them, or in a new view. Null if no address was left;
  /// old views have then been unmapped, and the caller must choose again.
  /// @throws out_of_memory, cuda_error, std::bad_alloc  nothing has changed
  [[nodiscard]] void* build(arena& a, may_release hot, ordering<driver_type>& order,
                            looked_up<choice> const& c, growth_request const& request) {
    looked_up<prolongation> const p(hot.held(), find_prolongation(a, c.get(hot.held()), request));
    if (p.get(hot.held()).view != 0) return prolong(a, hot, p, request);
    return make(a, hot, order, c, request);
  }

  /// Unmaps handles from all views. No block and no work uses them. O(slots of all views).
  /// @param leaves  for each handle whether it is one of them
  void forget(sequence<bool> const& leaves) noexcept {
    for (view& v : views_) {
      std::uintptr_t at = v.address;
      for (view_slot& slot : v.slots) {
        if (leaves[slot.handle]) {
          if (map_[slot.handle].state == backing::mapped) unmap(at, slot.bytes);
          slot.handle = 0;
        }
        at += slot.bytes;
      }
    }
  }

  /// Calls f(address) for each place where a view shows a handle. O(slots of all views).
  template <class F>
  void for_each_place(handle_ref h, F const& f) const {
    for (view const& v : views_) {
      std::uintptr_t at = v.address;
      for (view_slot const& slot : v.slots) {
        if (slot.handle == h) f(at);
        at += slot.bytes;
      }
    }
  }
  /// Calls f(handle, offset, bytes) for the parts of the handles behind addresses of a view, in order, until f returns false.
  /// Returns the view, or null if there is none with all of them. O(views)
  template <class F>
  view* each_part(std::uintptr_t address, std::size_t bytes, F const& f) {
    for (view& v : views_) {
      if (v.region == 0 || address < v.address || address - v.address >= v.bytes) continue;
      std::size_t const from = address - v.address;
      if (bytes > v.bytes - from) return nullptr;
      std::size_t at = 0;
      for (view_slot const& slot : v.slots) {
        std::size_t const begin = max_of(from, at);
        std::size_t const end = min_of(from + bytes, at + slot.bytes);
        if (begin < end && (slot.handle == 0 || !f(slot.handle, begin - at, end - begin))) return nullptr;
        at += slot.bytes;
      }
      return &v;
    }
    return nullptr;
  }
  /// Makes room to divide a handle's slots into `count` each. @throws std::bad_alloc, nothing has changed
  void make_room_to_divide(handle_ref h, std::size_t count) {
    for (view& v : views_) {
      if (v.shows(h)) v.slots.reserve(v.slots.size() + count);
    }
  }
  /// Divides a handle's slots: `handles` are at their places now, 0 for a gap, of bytes_of(index) each. Requires room.
  template <class BytesOf>
  void divide(handle_ref h, sequence<handle_ref> const& handles, BytesOf const& bytes_of) noexcept {
    for (view& v : views_) {
      if (!v.shows(h)) continue;
      std::size_t at = 0;
      while (v.slots[at].handle != h) ++at;
      std::size_t const more = handles.size() - 1;
      std::size_t const before = v.slots.size();
      v.slots.resize(before + more);
      for (std::size_t i = before; i-- > at + 1;) v.slots[i + more] = v.slots[i];
      for (std::size_t i = 0; i < handles.size(); ++i) v.slots[at + i] = view_slot{handles[i], bytes_of(i)};
    }
  }

  /// Unmaps everything that is mapped, and keeps addresses and slots for map_all(). Nothing on the device uses it.
  void unmap_all() noexcept {
    for (view const& v : views_) unmap_slots(v);
  }
  /// Maps the handles of all views again, or none. @throws out_of_memory, cuda_error
  void map_all() {
    std::size_t mapped = 0;
    try {
      for (; mapped < views_.size(); ++mapped) map_slots(views_[mapped]);
    } catch (...) {
      for (std::size_t i = 0; i < mapped; ++i) unmap_slots(views_[i]);
      throw;
    }
  }

 private:
  /// A view, the free bytes at its end, and the pieces that will follow them.
  struct prolongation {
    std::uint32_t view = 0;  ///< 0 if none
    free_stretch at{};
    choice added{};
  };

  /// Whether the host waits for work that may still use a view.
  enum class patience : std::uint8_t { none, wait };

  /// Takes pieces out of the free ranges that hold them, so that other threads cannot take them.
  /// @throws std::bad_alloc, nothing has changed
  static void carve(arena& a, hot_lock const& held, looked_up<choice> const& chosen,
                    sequence<range_ref>& carved) {
    choice const& c = chosen.get(held);
    std::size_t count = 0;
    for (piece const& p : c.pieces) {
      // A piece may lie in two ranges, one of the taker's and one that is neutral.
      range_ref r = a.starts.find(a.ranges, p.address);
      for (++count; a.ranges[r].end() < p.address + p.bytes; ++count) r = a.ranges[r].next;
    }
    carved.reserve(count);
    a.ranges.make_room(2 * count + 4);
    a.blocks.make_room(1);
    for (piece const& p : c.pieces) {
      for (std::uintptr_t at = p.address; at < p.address + p.bytes;) {
        range_ref const r = a.starts.find(a.ranges, at);
        std::uintptr_t const end = min_of(a.ranges[r].end(), p.address + p.bytes);
        carved.push_back(a.carve(r, at, end - at));
        at = end;
      }
    }
  }
  static void give_back(arena& a, sequence<range_ref> const& carved) noexcept {
    for (range_ref const r : carved) a.make_free(r, a.ranges[r].domain, a.ranges[r].epoch);
  }

  /// The view whose extension maps the fewest pieces, compared with the pieces of a new view.
  /// @throws std::bad_alloc
  [[nodiscard]] prolongation find_prolongation(arena const& a, choice const& fresh,
                                               growth_request const& request) const {
    prolongation best;
    if (fresh.pieces.size() <= least_saving) return best;
    std::size_t most = fresh.pieces.size() - least_saving;
    std::size_t const most_left_over = fresh.left_over + request.bytes / left_over_part;
    std::size_t looked_at = 0;
    for (std::uint32_t const i : by_use_) {
      if (most == 0 || ++looked_at > view_search_limit) break;
      view const& v = views_[i];
      free_stretch const end = find_free_end(a, map_, v, request);
      if (end.bytes >= request.bytes || v.handles_from(end.offset) < least_saving) continue;
      choice c = choose_pieces(a, map_, request, request.bytes - end.bytes, &v);
      if (c.lack != 0 || c.left_over > most_left_over || c.pieces.size() > most) continue;
      std::size_t bytes = v.bytes;
      for (piece const& p : c.pieces) bytes += map_[p.handle].bytes;
      if (bytes > a.ranges[v.region].bytes) continue;
      most = c.pieces.size() - 1;
      best = {i, end, static_cast<choice&&>(c)};
    }
    return best;
  }

  /// The free pieces at the end of a view and those that will follow them.
  [[nodiscard]] choice prolonged(view const& v, prolongation const& p) const {
    choice all = pieces_of(map_, v, p.at.offset, p.at.bytes);
    for (piece const& added : p.added.pieces) all.pieces.push_back(added);
    return all;
  }

  /// Maps handles after the last one of a view. If that fails, the mapped ones stay part of the view.
  void* prolong(arena& a, may_release hot, looked_up<prolongation> const& found,
                growth_request const& request) {
    prolongation const& p = found.get(hot.held());
    view& v = views_[p.view];  // protected by the growth lock, as all views are
    looked_up<choice> const all(hot.held(), prolonged(v, p));
    v.slots.reserve(v.slots.size() + p.added.pieces.size());
    sequence<range_ref> carved;
    carve(a, hot.held(), all, carved);
    try {
      unlocked const open(hot);
      for (piece const& added : p.added.pieces) {
        std::size_t const bytes = map_[added.handle].bytes;
        map_again(v.address + v.bytes, added.handle);
        v.slots.push_back(view_slot{added.handle, bytes});
        v.bytes += bytes;
      }
    } catch (...) {
      give_back(a, carved);
      throw;
    }
    return make_live(a, carved, p.view, p.at.offset, request);
  }

  /// Maps the pieces' handles next to each other in a new region of twice their size, so that the view can be extended later.
  void* make(arena& a, may_release hot, ordering<driver_type>& order, looked_up<choice> const& chosen,
             growth_request const& request) {
    choice const& c = chosen.get(hot.held());
    std::size_t bytes = 0;
    for (piece const& p : c.pieces) bytes += map_[p.handle].bytes;
    std::size_t place = 2 * bytes;
    range_ref region = addresses_.find_view(a, place, map_.granularity());
    if (region == 0) {
      place = bytes;
      region = addresses_.find_view(a, place, map_.granularity());
    }
    if (region == 0) {
      drop_views(a, hot, order, request.taker, patience::wait, 0);
      return nullptr;  // the pieces were chosen before the lock was released: they may be taken
    }
    std::uint32_t const i = unused_view(a);
    view made;
    made.slots.reserve(c.pieces.size());
    for (piece const& p : c.pieces) made.slots.push_back(view_slot{p.handle, map_[p.handle].bytes});
    by_use_.reserve(by_use_.size() + 1);
    sequence<range_ref> carved;
    carve(a, hot.held(), chosen, carved);
    addresses_.take(a, region, place);
    std::size_t const offset = c.pieces[0].address - map_[c.pieces[0].handle].home;
    a.ranges[region].state = range_state::view;
    made.region = region;
    made.address = a.ranges[region].address;
    made.bytes = bytes;
    try {
      unlocked const open(hot);
      map_slots(made);
    } catch (...) {
      addresses_.give_back(a, region);
      give_back(a, carved);
      throw;
    }
    views_[i] = static_cast<view&&>(made);
    ++in_use_;
    by_use_.push_back(i);
    return make_live(a, carved, i, offset, request);
  }

  /// Maps all of a view's handles, or none.
  void map_slots(view const& v) {
    std::size_t mapped = 0;
    try {
      std::uintptr_t at = v.address;
      for (; mapped < v.slots.size(); ++mapped) {
        if (is_mapped_with_view(v.slots[mapped])) map_again(at, v.slots[mapped].handle);
        at += v.slots[mapped].bytes;
      }
    } catch (...) {
      std::uintptr_t at = v.address;
      for (std::size_t k = 0; k < mapped; ++k) {
        if (is_mapped_with_view(v.slots[k])) unmap(at, v.slots[k].bytes);
        at += v.slots[k].bytes;
      }
      throw;
    }
  }

  /// An entry of views_, with its tenancy. @throws std::bad_alloc, nothing has changed
  std::uint32_t unused_view(arena& a) {
    for (std::uint32_t i = 1; i < views_.size(); ++i) {
      if (views_[i].region == 0) return i;
    }
    a.tenancies.reserve(views_.size() + 1);
    views_.push_back(view{});
    a.tenancies.push_back(tenancy{});
    return static_cast<std::uint32_t>(views_.size() - 1);
  }

  /// Makes the block live in its view. @throws std::bad_alloc, the carved pieces are free again
  void* make_live(arena& a, sequence<range_ref> const& carved, std::uint32_t i, std::size_t offset,
                  growth_request const& request) {
    try {
      a.blocks.make_room(1);  // other threads may have used it up meanwhile
    } catch (...) {
      give_back(a, carved);
      throw;
    }
    view& v = views_[i];
    v.last_offset = offset;
    v.last_bytes = request.bytes;
    std::size_t at = 0;
    while (by_use_[at] != i) ++at;
    for (; at != 0; --at) by_use_[at] = by_use_[at - 1];
    by_use_[0] = i;
    a.join_pieces(carved.begin(), carved.size(), request.taker, v.address + offset, i);
    return reinterpret_cast<void*>(v.address + offset);
  }

  /// Unmaps views without live blocks whose last work is complete, except for the `kept` most recently used ones. Checks each
  /// view immediately before unmapping it: unmapping releases the lock, so other views may change meanwhile.
  void drop_views(arena& a, may_release hot, ordering<driver_type>& order, domain_ref taker,
                  patience const chosen, std::size_t kept) {
    if (a.keeps_addresses) return;
    bool captured = false;
    if (taker != neutral) {
      stream_ref const stream = a.streams[taker].stream;
      unlocked const open(hot);
      captured = order.is_capturing(stream);
    }
    for (domain_ref d = 1; d < a.streams.size() && !captured; ++d) {
      if (chosen == patience::wait) {
        (void)order.finish(a, hot, d);
      } else {
        (void)order.settle(a, hot, d);
      }
    }
    for (std::size_t at = by_use_.size(); at-- > kept;) {
      if (views_[by_use_[at]].pins == 0 && is_idle(a, a.tenancies[by_use_[at]])) drop_view(a, hot, at);
    }
  }

  /// Whether a view has no live block and the device has completed all work on its former blocks.
  static bool is_idle(arena const& a, tenancy const& t) noexcept {
    if (t.blocks != 0) return false;
    bool const done = t.domain == neutral || t.epoch <= a.streams[t.domain].completed;
    return (done && !t.several) || everything_done(a);
  }
  static bool everything_done(arena const& a) noexcept {
    for (domain_ref d = 1; d < a.streams.size(); ++d) {
      if (a.streams[d].freed > a.streams[d].completed) return false;
    }
    return true;
  }

  void drop_view(arena& a, may_release hot, std::size_t at) {
    std::uint32_t const i = by_use_[at];
    for (std::size_t k = at + 1; k < by_use_.size(); ++k) by_use_[k - 1] = by_use_[k];
    by_use_.pop_back();
    view const gone = static_cast<view&&>(views_[i]);
    views_[i] = view{};
    a.tenancies[i] = tenancy{};
    --in_use_;
    {
      unlocked const open(hot);
      unmap_slots(gone);
    }
    addresses_.give_back(a, gone.region);
  }

  void unmap_slots(view const& v) noexcept {
    std::uintptr_t at = v.address;
    for (view_slot const& slot : v.slots) {
      if (is_mapped_with_view(slot) && map_[slot.handle].state == backing::mapped) unmap(at, slot.bytes);
      at += slot.bytes;
    }
  }
  /// Whether the slot has a handle that is mapped and unmapped with all others.
  [[nodiscard]] bool is_mapped_with_view(view_slot const& slot) const noexcept {
    return slot.handle != 0 && !map_[slot.handle].stays;
  }
  void map_again(std::uintptr_t address, handle_ref h) {
    source_.map(reinterpret_cast<void*>(address), map_[h].bytes, map_[h].id);
    ++counters_.maps;
    ++counters_.remaps;
  }
  void unmap(std::uintptr_t address, std::size_t bytes) noexcept {
    source_.unmap(reinterpret_cast<void*>(address), bytes);
    ++counters_.unmaps;
  }

  Source& source_;
  growth_counters& counters_;
  page_map& map_;
  address_space& addresses_;
  sequence<view> views_;            ///< entry 0 is unused
  sequence<std::uint32_t> by_use_;  ///< the most recently used one first
  std::size_t in_use_ = 0;
};

}  // namespace tarn::detail

namespace tarn::detail {

/// Under the growth lock. Other threads may free blocks meanwhile, and allocate where no granule is wholly free.
template <page_source Source>
class page_compact {
 public:
  page_compact(Source& source, growth_counters& counters, page_map& map, address_space& space,
               page_views<Source>& views)
      : source_(source), counters_(counters), map_(map), addresses_(space), views_(views) {}

  /// Gives back all granules without live bytes whose work is complete. A handle for which the driver has no memory or no
  /// addresses left stays as it is.
  /// @throws cuda_error, std::bad_alloc  contents and addresses are kept; handles done before stay compacted
  /// @throws out_of_memory               only if take_unmapped(): the driver could not map a handle that it had unmapped
  void compact(arena& a, may_release hot, stream_ref stream) {
    for (handle_ref h = 1; h < map_.size(); ++h) {
      if (map_[h].bytes == 0 || map_[h].pins != 0) continue;
      try {
        compact(a, hot, stream, h);
      } catch (out_of_memory const&) {
        if (has_unmapped_) throw;
      }
    }
  }
  /// Whether compact() left a handle that is mapped nowhere; the next call returns false.
  [[nodiscard]] bool take_unmapped() noexcept { return std::exchange(has_unmapped_, false); }

  /// Number of contiguous stretches of kept bytes, counted by handle. O(ranges)
  [[nodiscard]] std::size_t stretches(arena const& a) const {
    std::size_t count = 0;
    for (handle_ref h = 1; h < map_.size(); ++h) {
      if (map_[h].bytes != 0) for_each_kept(a, map_[h], [&](std::size_t, std::size_t) { ++count; });
    }
    return count;
  }

 private:
  /// Contiguous granules of a handle, all kept or all free.
  struct part {
    std::size_t offset = 0;
    std::size_t bytes = 0;
    bool is_kept = false;
    page_handle id = 0;
    std::size_t places = 0;  ///< how many of the old handle's places it is mapped at
    bool is_created = false;
    bool is_temporary = false;  ///< mapped at its temporary address
  };

  void compact(arena& a, may_release hot, stream_ref stream, handle_ref h) {
    physical const old = map_[h];
    sequence<part> parts = parts_of(a, old);
    std::size_t kept = 0;
    std::size_t count = 0;
    for (part const& p : parts) {
      if (p.is_kept) kept += p.bytes, ++count;
    }
    if (kept == old.bytes || count == 0) return;
    range_ref const region = addresses_.find_view(a, kept, map_.granularity());
    if (region == 0) return;
    // All host memory first.
    sequence<std::uintptr_t> places;
    places.push_back(old.home);
    views_.for_each_place(h, [&](std::uintptr_t at) { places.push_back(at); });
    views_.make_room_to_divide(h, parts.size());
    sequence<handle_ref> created;
    created.resize(parts.size());
    sequence<range_ref> carved;
    std::size_t const ranges = ranges_in(a, old);
    carved.reserve(ranges);
    a.ranges.make_room(2 * ranges + 4);
    map_.make_room(count);
    addresses_.take(a, region, kept);
    std::uintptr_t const temporary = a.ranges[region].address;
    // From here on no thread can allocate what will be unmapped.
    for (part const& p : parts) {
      if (!p.is_kept) carve(a, old.home + p.offset, p.bytes, carved);
    }
    try {
      unlocked const open(hot);
      replace(stream, old, parts, places, temporary);
    } catch (...) {
      for (range_ref const r : carved) a.make_free(r, a.ranges[r].domain, a.ranges[r].epoch);
      addresses_.give_back(a, region);
      if (has_unmapped_) map_.set(h, old.id, backing::unmapped);
      throw;
    }
    addresses_.give_back(a, region);
    map_.remove(h);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (parts[i].is_kept) created[i] = map_.add(parts[i].id, parts[i].bytes, old.home + parts[i].offset);
    }
    views_.divide(h, created, [&](std::size_t i) { return parts[i].bytes; });
    for (range_ref const r : carved) addresses_.give_back(a, r);
    for (part const& p : parts) {
      if (p.is_kept) count_again(a, old.home + p.offset, p.bytes);
    }
  }

  /// The driver calls of one handle: all or nothing, or has_unmapped_.
  void replace(stream_ref stream, physical const& old, sequence<part>& parts,
               sequence<std::uintptr_t> const& places, std::uintptr_t temporary) {
    bool is_unmapped = false;
    try {
      std::uintptr_t at = temporary;
      for (part& p : parts) {
        if (!p.is_kept) continue;
        p.id = source_.create(p.bytes);
        p.is_created = true;
        ++counters_.creates;
        counters_.hold(old.home + p.offset, p.bytes, addresses_.zone_at(old.home));
        map(at, p.bytes, p.id);
        p.is_temporary = true;
        check(source_.driver().copy(stream, reinterpret_cast<void*>(at),
                                    reinterpret_cast<void const*>(old.home + p.offset), p.bytes));
        at += p.bytes;
      }
      check(source_.driver().synchronize_stream(stream));
      unmap_temporary(parts, temporary);
      for (std::uintptr_t const place : places) unmap(place, old.bytes);
      is_unmapped = true;
      for (std::uintptr_t const place : places) {
        for (part& p : parts) {
          if (!p.is_kept) continue;
          map(place + p.offset, p.bytes, p.id);
          ++p.places;
        }
      }
    } catch (...) {
      undo(stream, old, parts, places, temporary);
      if (is_unmapped) has_unmapped_ = !map_again(old, places);
      throw;
    }
    source_.destroy(old.id, old.bytes);
    ++counters_.destroys;
    counters_.release(old.home, old.bytes, addresses_.zone_at(old.home));
  }

  /// After a failure: the new handles are unmapped and destroyed.
  void undo(stream_ref stream, physical const& old, sequence<part>& parts,
            sequence<std::uintptr_t> const& places, std::uintptr_t temporary) noexcept {
    if (!source_.driver().synchronize_stream(stream).ok()) (void)wait_past_captures(source_.driver());
    unmap_temporary(parts, temporary);
    for (part const& p : parts) {
      for (std::size_t i = 0; i < p.places; ++i) unmap(places[i] + p.offset, p.bytes);
    }
    for (part const& p : parts) {
      if (!p.is_created) continue;
      source_.destroy(p.id, p.bytes);
      ++counters_.destroys;
      counters_.release(old.home + p.offset, p.bytes, addresses_.zone_at(old.home));
    }
  }
  /// Maps the old handle where it was. Returns false if a call fails; it is then mapped nowhere.
  [[nodiscard]] bool map_again(physical const& old, sequence<std::uintptr_t> const& places) noexcept {
    std::size_t mapped = 0;
    try {
      for (; mapped < places.size(); ++mapped) map(places[mapped], old.bytes, old.id);
      return true;
    } catch (...) {
      while (mapped != 0) unmap(places[--mapped], old.bytes);
      return false;
    }
  }

  /// The handle divided at granules: whether one holds a byte that is kept, or that work may still use.
  [[nodiscard]] sequence<part> parts_of(arena const& a, physical const& old) const {
    std::size_t const grain = map_.granularity();
    sequence<part> parts;
    std::uintptr_t const end = old.home + old.bytes;
    std::uintptr_t kept_to = old.home;  // end of the granules known to be kept
    auto const add = [&](std::uintptr_t from, std::uintptr_t to, bool is_kept) {
      if (from == to) return;
      if (!parts.empty() && parts.back().is_kept == is_kept) {
        parts.back().bytes += to - from;
      } else {
        parts.push_back(part{from - old.home, to - from, is_kept});
      }
    };
    for (range_ref r = a.starts.find(a.ranges, old.home); r != 0 && a.ranges[r].address < end;
         r = a.ranges[r].next) {
      range const& node = a.ranges[r];
      bool const is_busy = node.state == range_state::free && node.domain != neutral &&
                           a.streams[node.domain].freed > a.streams[node.domain].completed;
      if (!is_kept(a, node) && !is_busy) continue;
      std::uintptr_t const from = max_of(align_down(max_of(node.address, old.home), grain), kept_to);
      std::uintptr_t const to = align_up(min_of(node.end(), end), grain);
      if (to <= kept_to) continue;
      add(kept_to, from, false);
      add(from, to, true);
      kept_to = to;
    }
    add(kept_to, end, false);
    return parts;
  }
  [[nodiscard]] static std::size_t ranges_in(arena const& a, physical const& old) noexcept {
    std::size_t count = 0;
    for (range_ref r = a.starts.find(a.ranges, old.home);
         r != 0 && a.ranges[r].address < old.home + old.bytes; r = a.ranges[r].next)
      ++count;
    return count;
  }

  /// Takes free bytes, which may lie in several ranges, out of them.
  static void carve(arena& a, std::uintptr_t address, std::size_t bytes, sequence<range_ref>& carved) {
    for (std::uintptr_t at = address; at < address + bytes;) {
      range_ref const r = a.starts.find(a.ranges, at);
      std::uintptr_t const end = min_of(a.ranges[r].end(), address + bytes);
      carved.push_back(a.carve(r, at, end - at));
      at = end;
    }
  }
  /// Puts the free ranges of a new handle into their indexes again: what counts as split depends on the handles.
  static void count_again(arena& a, std::uintptr_t address, std::size_t bytes) {
    for (std::uintptr_t at = address; at < address + bytes;) {
      range_ref r = a.starts.find(a.ranges, at);
      at = a.ranges[r].end();
      if (a.ranges[r].state != range_state::free) continue;
      domain_ref const domain = a.ranges[r].domain;
      std::uint64_t const epoch = a.ranges[r].epoch;
      a.claim(r);
      r = a.make_free(r, domain, epoch);
      at = a.ranges[r].end();
    }
  }

  void unmap_temporary(sequence<part>& parts, std::uintptr_t at) noexcept {
    for (part& p : parts) {
      if (!p.is_kept) continue;
      if (p.is_temporary) unmap(at, p.bytes);
      p.is_temporary = false;
      at += p.bytes;
    }
  }
  void map(std::uintptr_t address, std::size_t bytes, page_handle id) {
    source_.map(reinterpret_cast<void*>(address), bytes, id);
    ++counters_.maps;
  }
  void unmap(std::uintptr_t address, std::size_t bytes) noexcept {
    source_.unmap(reinterpret_cast<void*>(address), bytes);
    ++counters_.unmaps;
  }
  void check(status const& s) const {
    if (!s.ok()) throw cuda_error(s, source_.driver().device().value);
  }

  Source& source_;
  growth_counters& counters_;
  page_map& map_;
  address_space& addresses_;
  page_views<Source>& views_;
  bool has_unmapped_ = false;
};

}  // namespace tarn::detail
// ---- tarn/pool/growth/page_making.hpp
// The driver calls with which a growth by pages creates handles at their home addresses.

#include <cstddef>
#include <cstdint>

namespace tarn::detail {

/// A handle to create.
struct made_handle {
  page_handle id = 0;
  std::size_t bytes = 0;
  bool mapped = false;
};

/// No lock but the growth lock is held.
template <page_source Source>
class page_making {
 public:
  page_making(Source& source, growth_counters& counters, address_space const& space, page_map const& map)
      : source_(source), counters_(counters), addresses_(space), map_(map) {}

  /// Creates each handle and maps it behind the one before, from `address` on: all or none.
  /// @throws out_of_memory, cuda_error, nothing has changed
  void make(sequence<made_handle>& made, std::uintptr_t const address, std::size_t total) {
    if (total >= ask_first_limit) refuse_what_is_not_free(total);
    std::uintptr_t at = address;
    try {
      for (made_handle& c : made) {
        make(c, at);
        at += c.bytes;
      }
    } catch (...) {
      unmake(made, address);
      throw;
    }
  }

 private:
  void make(made_handle& c, std::uintptr_t address) {
    c.id = source_.create(c.bytes);
    ++counters_.creates;
    counters_.hold(address, c.bytes, addresses_.zone_at(address));
    try {
      source_.map(reinterpret_cast<void*>(address), c.bytes, c.id);
    } catch (...) {
      source_.destroy(c.id, c.bytes);
      ++counters_.destroys;
      counters_.release(address, c.bytes, addresses_.zone_at(address));
      throw;
    }
    ++counters_.maps;
    c.mapped = true;
  }
  void unmake(sequence<made_handle> const& made, std::uintptr_t address) noexcept {
    for (made_handle const& c : made) {
      if (!c.mapped) break;
      unmap(address, c.bytes);
      source_.destroy(c.id, c.bytes);
      ++counters_.destroys;
      counters_.release(address, c.bytes, addresses_.zone_at(address));
      address += c.bytes;
    }
  }

  /// A request this large is refused before its first handle is created if the device does not have that much free memory:
  /// otherwise it would briefly take the whole device. The query costs 5-100 us.
  static constexpr std::size_t ask_first_limit = 1_GiB;
  void refuse_what_is_not_free(std::size_t total) {
    std::size_t available = 0;
    std::size_t all = 0;
    if (!source_.driver().memory_info(available, all).ok() || available >= total) return;
    status const none{failure::out_of_memory, 0, "the device does not have that much free memory",
                      name_of_memory(source_.driver())};
    refuse(source_.driver(), none, stream_ref{}, total, map_.granularity());
  }

  void unmap(std::uintptr_t address, std::size_t bytes) noexcept {
    source_.unmap(reinterpret_cast<void*>(address), bytes);
    ++counters_.unmaps;
  }

  Source& source_;
  growth_counters& counters_;
  address_space const& addresses_;
  page_map const& map_;
};

}  // namespace tarn::detail
// ---- tarn/pool/growth/page_segments.hpp
// The physical handles behind addresses of a growth by pages: listed, and pinned. A pinned handle is not given back
// (page_growth.hpp), put to sleep (page_sleep.hpp) or replaced (page_compact.hpp), and a view that shows a pinned block is not
// unmapped (page_views.hpp).

#include <cstddef>
#include <cstdint>

namespace tarn::detail {

/// Keeps no state: the pins are counted in the page map and in the views.
template <page_source Source>
class page_segments {
 public:
  page_segments(page_map& map, page_views<Source>& views) noexcept : map_(map), views_(views) {}

  /// Calls f(memory_segment) for each segment behind these bytes, in order. Returns false if they are not all live: then f was
  /// called for some of them. Both locks are held. O(views + segments)
  template <class F>
  [[nodiscard]] bool each(arena const& a, std::uintptr_t address, std::size_t bytes, F const& f) {
    std::size_t done = 0;
    return walk(address, bytes,
                [&](handle_ref h, std::size_t offset, std::size_t part) {
                  if (!is_live(a, map_[h].home + offset, part)) return false;
                  f(memory_segment{reinterpret_cast<void*>(address + done), part, map_[h].id, offset,
                                   map_[h].bytes});
                  done += part;
                  return true;
                })
        .all;
  }
  /// Keeps the handles behind these bytes mapped where they are until unpin(). The caller holds the growth lock, and each() has
  /// found all of them. Pins are counted.
  void pin(std::uintptr_t address, std::size_t bytes) noexcept {
    view* const v = walk(address, bytes, [&](handle_ref h, std::size_t, std::size_t) {
                      map_.pin(h);
                      return true;
                    }).in;
    if (v != nullptr) ++v->pins;
  }
  void unpin(std::uintptr_t address, std::size_t bytes) noexcept {
    view* const v = walk(address, bytes, [&](handle_ref h, std::size_t, std::size_t) {
                      map_.unpin(h);
                      return true;
                    }).in;
    if (v != nullptr) --v->pins;
  }

 private:
  struct walked {
    bool all = false;    ///< there is a handle behind every byte, and f returned true for all of them
    view* in = nullptr;  ///< the view that has them; null at home addresses
  };
  /// Calls f(handle, offset, bytes) for the parts of handles behind these addresses, until it returns false.
  template <class F>
  walked walk(std::uintptr_t address, std::size_t bytes, F const& f) {
    if (!map_.contains(address) || bytes > map_.base() + map_.bytes() - address) return {};
    if (!map_.is_home(address)) {
      view* const v = views_.each_part(address, bytes, f);
      return {v != nullptr, v};
    }
    for (std::size_t done = 0; done < bytes;) {
      std::uintptr_t const at = address + done;
      handle_ref const h = map_.is_home(at) ? map_.at(at) : 0;
      if (h == 0) return {};
      std::size_t const part = min_of(bytes - done, static_cast<std::size_t>(map_.end_of(h) - at));
      if (!f(h, at - map_[h].home, part)) return {};
      done += part;
    }
    return {true, nullptr};
  }
  /// Whether all bytes from a home address on lie in blocks, as far as ranges show it.
  [[nodiscard]] static bool is_live(arena const& a, std::uintptr_t home, std::size_t bytes) noexcept {
    for (range_ref r = a.starts.find(a.ranges, home); r != 0; r = a.ranges[r].next) {
      range const& node = a.ranges[r];
      if (node.address >= home + bytes) return true;
      if (node.state != range_state::live) return false;
    }
    return true;
  }

  page_map& map_;
  page_views<Source>& views_;
};

}  // namespace tarn::detail
// ---- tarn/pool/growth/page_sleep.hpp
// A growth by pages that sleeps: its physical memory is given back, its addresses, sizes and views are kept. Each direction has a
// step that can fail and changes nothing if it does, and a step that cannot fail, so that a pool and its graph memories fall
// asleep and wake together or not at all.
//
//   sleep   save()      enqueues the copies of kept contents to the host
//           release()   unmaps the views; for each handle, waits for its copy, unmaps its home and destroys it
//   wake    restore()   for each handle, creates it, maps its home and enqueues the copy back; maps the views; waits for the copies
//           keep()      frees the copy on the host; or release() again, which leaves the copy as it was
//
// If compact() can map a handle neither new nor old, unmap() leaves all handles created and maps none: restore() maps them.
//
// Per handle on an H200: sleep about 35 us, wake 45 us, and 20 us for each view that shows it. The driver makes and destroys
// handles while it copies others, so that with kept contents these times are hidden behind the copies.

#include <cstddef>
#include <cstdint>
#include <utility>

// ---- tarn/pool/growth/host_copy.hpp
// Contents of device memory, kept in host memory while a pool sleeps: in pinned memory, or in ordinary memory that is copied
// through two pinned buffers, one of which the device copies while the host copies the other.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>

namespace tarn::detail {

/// A driver that allocates pinned memory.
template <class D>
concept pinning_driver = stream_driver<D> && requires(D const& d, std::size_t bytes, void* p, void*& new_p) {
  { d.malloc_pinned(bytes, new_p) } noexcept -> std::same_as<status>;
  { d.free_pinned(p) } noexcept -> std::same_as<status>;
};

/// One contiguous sequence of bytes, addressed by position, in chunks of host memory. Used by one thread at a time.
///
/// save() and load() enqueue copies; finish() waits for all of them, wait_for() for the first. Their positions must not decrease
/// between two calls of finish().
/// An error leaves copies enqueued: call finish() or abandon() before the device memory changes.
template <class Driver>
class host_copy {
 public:
  explicit host_copy(Driver const& driver) noexcept : driver_(driver) {}
  host_copy(host_copy const&) = delete;
  host_copy& operator=(host_copy const&) = delete;
  ~host_copy() { close(); }

  /// Begins an empty copy of `bytes`, in the memory of the last one if that is of the same kind. More is allocated as save()
  /// needs it. @throws std::bad_alloc
  void open(std::size_t bytes, contents where) {
    if (where != where_) close();
    std::size_t const count = (bytes + chunk_bytes - 1) / chunk_bytes;
    chunks_.reserve(count);
    while (chunks_.size() > count ||
           (!chunks_.empty() && chunks_.back().bytes < bytes_of_chunk(chunks_.size() - 1, bytes)))
      drop_chunk();
    bytes_ = bytes;
    done_ = 0;
    where_ = where;
  }

  /// Copies from device memory to [position, position + bytes).
  /// @throws out_of_memory, std::bad_alloc  the host has no memory
  /// @throws cuda_error
  void save(stream_ref stream, std::size_t position, void const* from, std::size_t bytes) {
    auto const* source = static_cast<unsigned char const*>(from);
    if (!is_staged()) {
      for_each_part(position, bytes, [&](void* part, std::size_t count) {
        copy(stream, part, source, count);
        source += count;
      });
      return;
    }
    while (bytes != 0) {
      buffer* b = &buffers_[current_];
      if (b->used == b->capacity || b->position + b->used != position) {
        submit(stream, *b);
        current_ ^= 1;
        b = &buffers_[current_];
        store(*b);
        b->position = position;
      }
      std::size_t const count = min_of(bytes, b->capacity - b->used);
      copy(stream, static_cast<unsigned char*>(b->p) + b->used, source, count);
      b->used += count;
      b->saves = true;
      source += count;
      position += count;
      bytes -= count;
    }
  }

  /// Copies [position, position + bytes) back to device memory. @throws cuda_error
  void load(stream_ref stream, std::size_t position, void* to, std::size_t bytes) {
    auto* target = static_cast<unsigned char*>(to);
    if (!is_staged()) {
      for_each_part(position, bytes, [&](void* part, std::size_t count) {
        copy(stream, target, part, count);
        target += count;
      });
      return;
    }
    while (bytes != 0) {
      buffer* b = &buffers_[current_];
      if (position < b->position || position >= b->position + b->used) {
        submit(stream, *b);
        current_ ^= 1;
        b = &buffers_[current_];
        wait(*b);
        fetch(*b, position);
      }
      std::size_t const skipped = position - b->position;
      std::size_t const count = min_of(bytes, b->used - skipped);
      copy(stream, target, static_cast<unsigned char*>(b->p) + skipped, count);
      target += count;
      position += count;
      bytes -= count;
    }
  }

  /// Whether copies go through the two buffers: the host must take part, so that finish() alone completes them.
  [[nodiscard]] bool is_staged() const noexcept { return buffers_[0].capacity != 0; }

  /// Makes the two buffers for copies of ordinary memory; without them its copies are the driver's own. Does nothing for pinned
  /// memory.
  void begin() noexcept {
    if (where_ != contents::in_host_memory) return;
    if constexpr (pinning_driver<Driver>) {
      for (buffer& b : buffers_) {
        std::size_t const capacity = min_of(staging_bytes, align_up(bytes_, 4096));
        if (driver_.malloc_pinned(capacity, b.p).ok()) b.capacity = capacity;
        if (b.capacity == 0 || !driver_.create_event(b.event).ok()) return end();
        b.has_event = true;
      }
    }
  }
  /// Marks the end of the copies that were enqueued so far, which cover all before `position`, for wait_for(). Marks are set where
  /// at least a part of all bytes was enqueued since the last one. Does nothing while copies are staged, or if the driver refuses.
  void mark(stream_ref stream, std::size_t position) noexcept {
    std::size_t const last = mark_count_ != 0 ? marks_[mark_count_ - 1].position : 0;
    if (is_staged() || mark_count_ == most_marks || position - last < bytes_ / most_marks) return;
    mark_of_copies& m = marks_[mark_count_];
    if (!driver_.create_event(m.event).ok()) return;
    m.position = position;
    ++mark_count_;
    if (driver_.record_event(m.event, stream).ok()) return;
    (void)driver_.destroy_event(m.event);
    --mark_count_;
  }
  /// Waits until the copies of all bytes before `position` are done. Returns false if the driver does not report it.
  [[nodiscard]] bool wait_for(stream_ref stream, std::size_t position) noexcept {
    if (position <= done_) return true;
    std::size_t i = 0;
    while (i < mark_count_ && marks_[i].position < position) ++i;
    if (i < mark_count_ && driver_.synchronize_event(marks_[i].event).ok()) {
      done_ = marks_[i].position;
      return true;
    }
    if (!driver_.synchronize_stream(stream).ok() && !wait_past_captures(driver_).ok()) return false;
    done_ = bytes_;
    return true;
  }
  /// Waits until all copies are done. @throws cuda_error, std::bad_alloc
  void finish(stream_ref stream) {
    if (is_staged()) {
      submit(stream, buffers_[current_]);
      store(buffers_[current_ ^ 1]);
      store(buffers_[current_]);
    }
    check(driver_.synchronize_stream(stream));
    done_ = bytes_;
  }
  /// Waits for what was enqueued, after an error.
  void abandon(stream_ref stream) noexcept {
    if (!driver_.synchronize_stream(stream).ok()) (void)wait_past_captures(driver_);
  }
  /// Frees the buffers; no copy is enqueued.
  void end() noexcept {
    for (buffer& b : buffers_) {
      if (b.has_event) (void)driver_.destroy_event(b.event);
      if constexpr (pinning_driver<Driver>) {
        if (b.capacity != 0) (void)driver_.free_pinned(b.p);
      }
      b = buffer{};
    }
    current_ = 0;
    while (mark_count_ != 0) (void)driver_.destroy_event(marks_[--mark_count_].event);
  }

  /// Frees all memory; no copy is enqueued.
  void close() noexcept {
    end();
    while (!chunks_.empty()) drop_chunk();
    bytes_ = 0;
  }
  /// Host memory held, bytes.
  [[nodiscard]] std::size_t host_bytes() const noexcept {
    std::size_t sum = 0;
    for (chunk const& c : chunks_) sum += c.bytes;
    return sum;
  }

 private:
  /// Small enough that no large contiguous allocation is needed; while one is allocated, the copies to the one before it run.
  static constexpr std::size_t chunk_bytes = 256_MiB;
  static constexpr std::size_t staging_bytes = 32_MiB;
  /// Handles are given back while later ones are copied: what is left after the last copy is a part in most_marks.
  static constexpr std::size_t most_marks = 32;

  struct chunk {
    void* p = nullptr;
    std::size_t bytes = 0;
    bool is_pinned = false;
  };
  /// One buffer of pinned memory that covers [position, position + used).
  struct buffer {
    void* p = nullptr;
    std::size_t capacity = 0;
    std::size_t position = 0;
    std::size_t used = 0;
    event_handle event = nullptr;
    bool has_event = false;
    bool is_submitted = false;  ///< the event was recorded, and not waited for yet
    bool saves = false;         ///< its bytes must be stored in ordinary memory
  };

  struct mark_of_copies {
    event_handle event = nullptr;
    std::size_t position = 0;
  };
  void check(status const& s) const {
    if (!s.ok()) throw cuda_error(s, driver_.device().value);
  }
  void copy(stream_ref stream, void* to, void const* from, std::size_t bytes) const {
    check(driver_.copy(stream, to, from, bytes));
  }

  /// Marks the end of the copies from or to a buffer.
  void submit(stream_ref stream, buffer& b) {
    if (b.used == 0 || b.is_submitted) return;
    check(driver_.record_event(b.event, stream));
    b.is_submitted = true;
  }
  void wait(buffer& b) {
    if (b.is_submitted) check(driver_.synchronize_event(b.event));
    b.is_submitted = false;
  }
  /// Empties a buffer: moves saved bytes to ordinary memory.
  void store(buffer& b) {
    wait(b);
    auto const* from = static_cast<unsigned char const*>(b.p);
    if (b.saves) {
      for_each_part(b.position, b.used, [&](void* part, std::size_t count) {
        std::memcpy(part, from, count);
        from += count;
      });
    }
    b.saves = false;
    b.used = 0;
  }
  /// Fills a buffer from ordinary memory, from a position on.
  void fetch(buffer& b, std::size_t position) {
    b.position = position;
    b.used = 0;
    auto* to = static_cast<unsigned char*>(b.p);
    for_each_part(position, min_of(b.capacity, bytes_ - position), [&](void* part, std::size_t count) {
      std::memcpy(to, part, count);
      to += count;
      b.used += count;
    });
  }

  /// Calls f(host memory, bytes) for each chunk's part of [position, position + bytes).
  template <class F>
  void for_each_part(std::size_t position, std::size_t bytes, F const& f) {
    while (bytes != 0) {
      std::size_t const index = position / chunk_bytes;
      std::size_t const offset = position % chunk_bytes;
      while (chunks_.size() <= index) add_chunk();
      std::size_t const count = min_of(bytes, chunk_bytes - offset);
      f(static_cast<unsigned char*>(chunks_[index].p) + offset, count);
      position += count;
      bytes -= count;
    }
  }
  [[nodiscard]] static std::size_t bytes_of_chunk(std::size_t index, std::size_t total) noexcept {
    return min_of(chunk_bytes, total - index * chunk_bytes);
  }
  void drop_chunk() noexcept {
    chunk const c = chunks_.back();
    chunks_.pop_back();
    if (c.is_pinned) {
      if constexpr (pinning_driver<Driver>) (void)driver_.free_pinned(c.p);
    } else {
      ::operator delete(c.p);
    }
  }
  void add_chunk() {
    std::size_t const bytes = bytes_of_chunk(chunks_.size(), bytes_);
    chunk c;
    c.bytes = bytes;
    if constexpr (pinning_driver<Driver>) {
      if (where_ == contents::in_pinned_memory) {
        status const s = driver_.malloc_pinned(bytes, c.p);
        if (!s.ok())
          refuse(driver_, s, stream_ref{}, bytes, default_alignment, source_location::current(), true);
        c.is_pinned = true;
      }
    }
    if (!c.is_pinned) c.p = ::operator new(bytes);
    chunks_.push_back(c);  // open() reserved it
  }

  Driver const& driver_;
  sequence<chunk> chunks_;
  std::size_t bytes_ = 0;
  contents where_ = contents::discarded;
  buffer buffers_[2];
  unsigned current_ = 0;
  mark_of_copies marks_[most_marks];
  std::size_t mark_count_ = 0;
  std::size_t done_ = 0;  ///< the copies of all bytes before it are complete
};

}  // namespace tarn::detail

namespace tarn::detail {

/// Under the growth lock. Meanwhile nothing allocates from the pool, so no handle is created or taken, and other threads only
/// free blocks: a stretch that was found live may be free later, which makes its copy superfluous and never wrong.
template <page_source Source>
class page_sleep {
 public:
  using driver_type = typename Source::driver_type;

  page_sleep(Source& source, growth_counters& counters, page_map& map, address_space const& space,
             page_views<Source>& views)
      : source_(source),
        counters_(counters),
        map_(map),
        addresses_(space),
        views_(views),
        copy_(source.driver()) {}

  /// Enqueues copies of kept contents to the host, for release() or forget(). No work on the device uses the memory until wake()
  /// returns.
  /// @throws out_of_memory, std::bad_alloc  the host has no memory for the contents; nothing has changed
  /// @throws cuda_error                     nothing has changed
  void save(arena const& a, may_release hot, contents const where) {
    sequence<stretch> found;
    std::size_t kept = 0;
    map_.keep_pinned();
    for (handle_ref h = 1; h < map_.size() && where != contents::discarded; ++h) {
      if (map_[h].bytes == 0 || map_[h].stays) continue;
      for_each_kept(a, map_[h], [&](std::size_t offset, std::size_t bytes) {
        found.push_back(stretch{h, offset, bytes, kept});
        kept += bytes;
      });
    }
    unlocked const open(hot);
    if (kept != 0) copy_all(found, kept, where);
    saved_.swap(found);
  }
  /// Gives all physical memory back, and keeps what save() copied; returns its bytes. Handles that unmap() kept stay so. If the
  /// driver does not report that a copy is complete, its handle and the later ones stay mapped.
  std::size_t release() noexcept {
    if (keeps_handles_) {
      unmap();
      return 0;
    }
    views_.unmap_all();
    std::size_t given = 0;
    std::size_t next = 0;  // in saved_, which is in the order of handles
    bool are_saved = true;
    for (handle_ref h = 1; h < map_.size(); ++h) {
      std::size_t const first = next;
      while (next < saved_.size() && saved_[next].handle == h) ++next;
      if (map_[h].bytes == 0 || map_[h].stays) continue;
      if (next != first && are_saved && !copy_is_done(saved_[next - 1])) {
        are_saved = false;
        copies_may_run_ = true;
        keeps_handles_ = true;  // what a failing restore() must not destroy
        while (saved_.size() > first) saved_.pop_back();
        next = first;
      }
      if (are_saved) given += destroy(h);
    }
    end_copies();
    return given;
  }
  /// Unmaps everything, and keeps the handles and what is in them for restore().
  void unmap() noexcept {
    keeps_handles_ = true;
    map_.keep_pinned();
    views_.unmap_all();
    unmap_homes();
  }

  /// Creates and maps what release() gave back, and copies the contents back; returns the bytes created.
  /// @throws out_of_memory  the device or a limit has not enough; still asleep, nothing is lost
  /// @throws cuda_error     likewise
  std::size_t restore(may_release hot) {
    unlocked const open(hot);
    if (status const done = finish_copies(); !done.ok())
      throw cuda_error(done, source_.driver().device().value);
    std::size_t const bytes = missing();
    if (saved_.empty()) {
      restore_on(stream_ref{});
    } else {
      own_stream const stream(source_.driver());
      restore_on(stream.get());
    }
    return bytes;
  }
  /// Ends the sleep after restore().
  void keep(after_waking then) noexcept {
    keeps_handles_ = false;
    map_.treat_all_alike();
    if (then == after_waking::free_host_memory) copy_.close();
    sequence<stretch>().swap(saved_);
  }

  /// Bytes that restore() creates.
  [[nodiscard]] std::size_t missing() const noexcept {
    std::size_t sum = 0;
    for (handle_ref h = 1; h < map_.size(); ++h) {
      if (map_[h].state == backing::released) sum += map_[h].bytes;
    }
    return sum;
  }

  /// Waits for copies that the driver did not report as complete when it was asked last.
  status finish_copies() noexcept {
    if (!copies_may_run_) return {};
    status const done = wait_past_captures(source_.driver());
    copies_may_run_ = !done.ok();
    return done;
  }

  /// Frees the contents on the host. The handles are as save() found them.
  void forget() noexcept {
    map_.treat_all_alike();
    if (stream_.get() != nullptr) copy_.abandon(stream_->get());
    end_copies();
    copy_.close();
    sequence<stretch>().swap(saved_);
  }

  /// Unmaps and destroys a handle that is in no view, as far as it is mapped and created; returns the bytes given back.
  std::size_t destroy(handle_ref h) noexcept {
    physical const p = map_[h];
    if (p.state == backing::mapped) unmap_home(p);
    if (p.state == backing::released) return 0;
    source_.destroy(p.id, p.bytes);
    ++counters_.destroys;
    counters_.release(p.home, p.bytes, addresses_.zone_at(p.home));
    map_.set(h, page_handle{}, backing::released);
    return p.bytes;
  }

  /// Host memory of the kept contents and their list, bytes.
  [[nodiscard]] std::size_t host_bytes() const noexcept {
    return copy_.host_bytes() + saved_.capacity() * sizeof(stretch);
  }

 private:
  /// Contiguous kept bytes of one handle.
  struct stretch {
    handle_ref handle = 0;
    std::size_t offset = 0;  ///< in the handle
    std::size_t bytes = 0;
    std::size_t position = 0;  ///< in the copy
  };

  [[nodiscard]] void* address_of(stretch const& s) const noexcept {
    return reinterpret_cast<void*>(map_[s.handle].home + s.offset);
  }

  void copy_all(sequence<stretch> const& found, std::size_t bytes, contents where) {
    owned<own_stream<driver_type>> stream(new own_stream<driver_type>(source_.driver()));
    try {
      copy_.open(bytes, where);
      copy_.begin();
      for (stretch const& s : found) {
        copy_.save(stream->get(), s.position, address_of(s), s.bytes);
        copy_.mark(stream->get(), s.position + s.bytes);
      }
      if (copy_.is_staged()) copy_.finish(stream->get());
    } catch (...) {
      copy_.abandon(stream->get());
      copy_.close();
      throw;
    }
    stream_ = std::move(stream);
  }
  [[nodiscard]] bool copy_is_done(stretch const& s) noexcept {
    return stream_.get() == nullptr || copy_.wait_for(stream_->get(), s.position + s.bytes);
  }
  /// Frees what the copies of save() needed. They are complete, or the driver does not report it.
  void end_copies() noexcept {
    copy_.end();
    stream_ = {};
  }

  void unmap_home(physical const& p) noexcept {
    source_.unmap(reinterpret_cast<void*>(p.home), p.bytes);
    ++counters_.unmaps;
  }
  void unmap_homes() noexcept {
    for (handle_ref h = 1; h < map_.size(); ++h) {
      physical const p = map_[h];
      if (p.bytes == 0 || p.state != backing::mapped || p.stays) continue;
      unmap_home(p);
      map_.set(h, p.id, backing::unmapped);
    }
  }
  /// Restores all, or leaves the pool asleep. @param stream  of the copies
  void restore_on(stream_ref stream) {
    bool has_views = false;
    try {
      copy_.begin();
      make_handles(stream);
      views_.map_all();
      has_views = true;
      if (!saved_.empty()) copy_.finish(stream);
      copy_.end();
    } catch (...) {
      if (!saved_.empty()) copy_.abandon(stream);
      copy_.end();
      if (!has_views) unmap_homes();  // release() must not unmap a view then
      (void)release();
      throw;
    }
  }
  /// Creates and maps the handles, and enqueues the copies of what they held.
  void make_handles(stream_ref stream) {
    std::size_t next = 0;
    for (handle_ref h = 1; h < map_.size(); ++h) {
      if (map_[h].bytes != 0 && map_[h].state == backing::released) create(h);
      if (map_[h].bytes != 0 && map_[h].state == backing::unmapped) map_home(h);
      for (; next < saved_.size() && saved_[next].handle == h; ++next) {
        stretch const& s = saved_[next];
        // A handle whose blocks were all freed meanwhile is gone.
        if (map_[h].bytes != 0) copy_.load(stream, s.position, address_of(s), s.bytes);
      }
    }
  }
  void create(handle_ref h) {
    physical const p = map_[h];
    map_.set(h, source_.create(p.bytes), backing::unmapped);
    ++counters_.creates;
    counters_.hold(p.home, p.bytes, addresses_.zone_at(p.home));
  }
  void map_home(handle_ref h) {
    physical const p = map_[h];
    source_.map(reinterpret_cast<void*>(p.home), p.bytes, p.id);
    ++counters_.maps;
    map_.set(h, p.id, backing::mapped);
  }

  Source& source_;
  growth_counters& counters_;
  page_map& map_;
  address_space const& addresses_;
  page_views<Source>& views_;
  host_copy<driver_type> copy_;
  sequence<stretch> saved_;                ///< by handle; empty unless contents are kept on the host
  owned<own_stream<driver_type>> stream_;  ///< of the copies between save() and release()
  bool copies_may_run_ =
      false;  ///< asleep, and the copies from handles that are still mapped may not be complete
  bool keeps_handles_ = false;  ///< asleep, and the contents are in handles that are mapped nowhere
};

}  // namespace tarn::detail

namespace tarn::detail {

template <page_source Source>
class page_growth {
 public:
  using driver_type = typename Source::driver_type;

  page_growth(Source source, growth_counters& counters)
      : source_(static_cast<Source&&>(source)),
        counters_(counters),
        making_(source_, counters_, addresses_, map_),
        views_(source_, counters_, map_, addresses_),
        sleep_(source_, counters_, map_, addresses_, views_),
        compact_(source_, counters_, map_, addresses_, views_),
        segments_(map_, views_) {}

  [[nodiscard]] Source& source() noexcept { return source_; }
  [[nodiscard]] Source const& source() const noexcept { return source_; }
  [[nodiscard]] bool contains(std::uintptr_t address) const noexcept { return map_.contains(address); }
  /// Memory of the device, 0 before the first growth.
  [[nodiscard]] std::size_t device_bytes() const noexcept { return map_.bytes() / reservation_factor; }
  [[nodiscard]] std::size_t host_bytes() const noexcept {
    return map_.host_bytes() + views_.host_bytes() + sleep_.host_bytes();
  }

  /// Serves the request: sets `block` if it was assembled from pieces; otherwise leaves a free range of at least
  /// `request.bytes` in the taker's domain. Returns false if free memory does not suffice and nothing may be created.
  /// @throws out_of_memory, cuda_error, std::bad_alloc  nothing has changed
  bool grow(arena& a, may_release hot, ordering<driver_type>& order, growth_request const& request,
            void*& block) {
    open(a, hot);
    // No address would be found, and creating handles first would briefly take the whole device.
    if (request.bytes > map_.bytes()) return false;
    std::size_t const grain = map_.granularity();
    // Repeated if idle views had to be unmapped, which releases the lock: everything is looked up again.
    for (bool has_dropped = false;; has_dropped = true) {
      looked_up<extension> const e(hot.held(),
                                   request.extend && a.joins_handles ? extendable(a, request) : extension{});
      std::size_t const extended = e.get(hot.held()).bytes;
      std::size_t const missing = align_up(request.bytes - extended, grain);
      if (!request.may_remap || missing <= request.may_create)
        return create(a, hot, request, e, request.bytes - extended);
      if ((block = views_.reuse(a, hot.held(), request)) != nullptr) return true;
      std::size_t lack = missing;
      if (request.where == zone::small) {
        if (change_zone(a, request)) return true;
      } else {
        looked_up<choice> const c = choose(a, hot.held(), request);
        lack = align_up(c.get(hot.held()).lack, grain);
        if (lack == 0 && views_.is_full() && !has_dropped) {
          views_.drop_idle(a, hot, order, request.taker);
          continue;
        }
        if (lack == 0) return (block = views_.build(a, hot, order, c, request)) != nullptr;
      }
      if (!request.may_exceed && lack > request.may_create) return false;
      if (lack >= missing) return create(a, hot, request, e, request.bytes - extended);
      if (!create(a, hot, request, looked_up<extension>(hot.held(), {}), lack)) return false;
      looked_up<choice> const c = choose(a, hot.held(), request);
      return c.get(hot.held()).lack == 0 && (block = views_.build(a, hot, order, c, request)) != nullptr;
    }
  }

  /// How many bytes may stay reserved if the request is served by a new handle. No limit where free handles can be mapped together.
  [[nodiscard]] std::size_t keep_before(arena const& a, growth_request const& request) const noexcept {
    return a.joins_handles ? ~std::size_t{0} : most_beside(a, align_up(request.bytes, usual_granule));
  }

  /// Gives wholly free handles whose work is complete back to the driver, the largest first, until at most `keep` bytes are
  /// reserved. Returns the bytes given back. Gives nothing back inside restore() and compact(), whose handles it could be: a
  /// handler of the source may call it there. O(handles + slots of views + free ranges).
  std::size_t shrink(arena& a, may_release hot, std::size_t keep) {
    if (!map_.is_open() || is_moving_ || counters_.reserved <= keep || a.keeps_addresses) return 0;
    return drop(a, hot, keep);
  }

  // The steps of sleep and wake; see page_sleep.

  void save(arena const& a, may_release hot, contents where) {
    if (map_.is_open()) sleep_.save(a, hot, where);
  }
  std::size_t release() noexcept { return map_.is_open() ? sleep_.release() : 0; }
  /// Gives up what was freed meanwhile; returns the bytes that restore() creates. @throws std::bad_alloc, nothing has changed
  std::size_t prepare_restore(arena& a, may_release hot) {
    if (!map_.is_open()) return 0;
    if (!a.keeps_addresses) (void)drop(a, hot, 0);
    return sleep_.missing();
  }
  std::size_t restore(may_release hot) {
    if (!map_.is_open()) return 0;
    moving const now(*this);
    return sleep_.restore(hot);
  }
  void keep(after_waking then) noexcept { sleep_.keep(then); }
  /// Frees the contents on the host: the pool does not fall asleep.
  void forget() noexcept { sleep_.forget(); }

  /// Gives back the granules that hold no live byte; returns the number of stretches of live bytes. Copies on `stream`. See
  /// page_compact.
  std::size_t compact(arena& a, may_release hot, stream_ref stream) {
    if (!map_.is_open()) return 0;
    moving const now(*this);
    compact_.compact(a, hot, stream);
    return compact_.stretches(a);
  }
  /// After a failure of compact(): if it left a handle that is mapped nowhere, unmaps all others as well and returns true. The
  /// pool is then asleep, and restore() maps them.
  [[nodiscard]] bool unmap_incomplete() noexcept {
    if (!compact_.take_unmapped()) return false;
    sleep_.unmap();
    return true;
  }

  /// Calls f(held_memory) for each handle, also while it is asleep. Under the growth lock.
  template <class F>
  void for_each_held(F const& f) const {
    for (handle_ref h = 1; h < map_.size(); ++h) {
      physical const& p = map_[h];
      if (p.bytes != 0) f(held_memory{p.home, p.bytes, addresses_.zone_at(p.home), true});
    }
  }

  // Segments and pins; see page_segments. Both locks are held by callers of each_segment(), the growth lock by the others.

  template <class F>
  [[nodiscard]] bool each_segment(arena const& a, std::uintptr_t address, std::size_t bytes, F const& f) {
    return map_.is_open() && segments_.each(a, address, bytes, f);
  }
  void pin(std::uintptr_t address, std::size_t bytes) noexcept { segments_.pin(address, bytes); }
  void unpin(std::uintptr_t address, std::size_t bytes) noexcept { segments_.unpin(address, bytes); }

  /// Gives everything back. Nothing on the device uses it any more.
  void close() noexcept {
    if (!map_.is_open()) return;
    (void)sleep_.finish_copies();
    map_.treat_all_alike();
    views_.unmap_all();
    for (handle_ref h = 1; h < map_.size(); ++h) {
      if (map_[h].bytes != 0) (void)sleep_.destroy(h);
    }
    sleep_.forget();
    source_.unreserve(reserved_, map_.bytes() + map_.granularity());
  }

 private:
  /// A scope in which handles are created for addresses that the pool has.
  class moving {
   public:
    explicit moving(page_growth& growth) noexcept : growth_(growth) { growth_.is_moving_ = true; }
    moving(moving const&) = delete;
    moving& operator=(moving const&) = delete;
    ~moving() { growth_.is_moving_ = false; }

   private:
    page_growth& growth_;
  };
  struct extension {
    range_ref range = 0;
    std::size_t bytes = 0;
  };

  /// The wholly free handles whose work is complete, the largest first.
  [[nodiscard]] sequence<piece> free_handles(arena const& a) const {
    sequence<piece> whole;
    for (domain_ref d = 0; d < a.streams.size(); ++d) {
      for (zone const where : all_zones) {
        for_each_piece(a, map_, d, where, map_.granularity(),
                       [&](piece const& p, bool at_start, bool at_end) {
                         if (at_start && at_end && map_[p.handle].pins == 0 && !must_stay(a, p.address) &&
                             a.is_complete(a.ranges[a.starts.find(a.ranges, p.address)]))
                           whole.push_back(p);
                       });
      }
    }
    sort(whole.begin(), whole.size(), [](piece const& x, piece const& y) {
      return x.bytes != y.bytes ? x.bytes > y.bytes : x.address > y.address;
    });
    return whole;
  }

  /// Takes wholly free handles out of the pool, as shrink() does, and gives back those that are not asleep.
  std::size_t drop(arena& a, may_release hot, std::size_t keep) {
    std::size_t given = 0;
    looked_up<sequence<piece>> const whole(hot.held(), free_handles(a));
    std::size_t const most = whole.get(hot.held()).size();
    sequence<handle_ref> handles;
    handles.reserve(most);
    sequence<range_ref> carved;
    carved.reserve(most);
    sequence<bool> leaves;
    leaves.resize(map_.size());
    a.ranges.make_room(2 * most + 4);
    for (piece const& p : whole.get(hot.held())) {
      bool const is_held = map_[p.handle].state != backing::released;
      if (is_held && counters_.reserved - given <= keep) break;
      carved.push_back(a.carve(a.starts.find(a.ranges, p.address), p.address, p.bytes));
      handles.push_back(p.handle);
      leaves[p.handle] = true;
      if (is_held) given += p.bytes;
    }
    {
      unlocked const open(hot);
      views_.forget(leaves);
      for (handle_ref const h : handles) (void)sleep_.destroy(h);
    }
    for (std::size_t i = 0; i < handles.size(); ++i) {
      map_.remove(handles[i]);
      range_ref const before = a.ranges[carved[i]].previous;
      addresses_.give_back(a, carved[i]);
      a.note_hole_after(before);
    }
    return given;
  }

  [[nodiscard]] looked_up<choice> choose(arena const& a, hot_lock const& held,
                                         growth_request const& request) const {
    return {held, choose_pieces(a, map_, request, request.bytes)};
  }

  /// Reserves the virtual range on first use.
  void open(arena& a, may_release hot) {
    if (map_.is_open()) return;
    void* base = nullptr;
    std::size_t bytes = 0;
    std::size_t grain = 0;
    {
      unlocked const released(hot);
      // Callers may request an alignment up to this: with finer pages, blocks and views would not be aligned to it.
      grain = max_of(source_.granularity(), usual_granule);
      std::size_t available = 0;
      std::size_t total = 0;
      (void)source_.driver().memory_info(available, total);
      std::size_t const device = align_up(max_of(total, 64 * grain), 8 * grain);
      for (bytes = device * reservation_factor; base == nullptr;) {
        try {
          base = source_.reserve(bytes + grain);
        } catch (std::exception const&) {
          if (bytes <= 4 * device) throw;
          bytes /= 2;
        }
      }
    }
    auto const first = align_up(reinterpret_cast<std::uintptr_t>(base), grain);
    try {
      a.ranges.make_room(zone_count + 1);
      views_.open(a);
      a.starts.open(first, bytes / 2, grain);
      map_.open(first, bytes / 2, bytes, grain);
    } catch (...) {
      unlocked const released(hot);
      source_.unreserve(base, bytes + grain);
      throw;
    }
    reserved_ = base;
    addresses_.open(a, first, bytes);
    a.pages = &map_;
  }

  /// The free range before a hole that lacks the fewest bytes of the request. O(ranges before a hole)
  extension extendable(arena& a, growth_request const& request) const {
    extension best;
    auto const look = [&](domain_ref d) {
      a.streams[d].ranges(request.where).for_each_at_end(a.ranges, [&](range_ref r) {
        range const& node = a.ranges[r];
        if (node.next == 0 || a.ranges[node.next].state != range_state::hole) return;
        std::uintptr_t const from = align_up(node.address, request.alignment);
        if (from >= node.end()) return;
        std::size_t const has = node.end() - from;
        if (has >= request.bytes || has <= best.bytes) return;
        if (a.ranges[node.next].bytes < align_up(request.bytes - has, map_.granularity())) return;
        best = {r, has};
      });
    };
    look(request.taker);
    if (request.taker != neutral) look(neutral);
    return best;
  }

  /// Creates handles for `need` bytes, after the free range of `e` or at a new address. Returns false if no address is left.
  bool create(arena& a, may_release hot, growth_request const& request, looked_up<extension> const& found,
              std::size_t need) {
    extension const e = found.get(hot.held());
    std::size_t const grain = map_.granularity();
    std::size_t total = align_up(need, grain);
    if (total < request.least_growth && total <= request.may_create)
      total = max_of(total, align_down(min_of(request.least_growth, request.may_create), grain));
    range_ref region = 0;
    if (e.range != 0 && a.ranges[a.ranges[e.range].next].bytes >= total) region = a.ranges[e.range].next;
    if (e.range != 0 && region == 0)
      return create(a, hot, request, looked_up<extension>(hot.held(), {}), request.bytes);
    if (e.range == 0) region = addresses_.find_home(a, request.where, total, grain);
    if (region == 0) return false;
    std::size_t const largest = max_of(align_down(request.largest_handle, grain), grain);
    sequence<made_handle> made;
    made.reserve(total / largest + 1);
    for (std::size_t left = total; left != 0; left -= made.back().bytes)
      made.push_back(made_handle{0, min_of(left, largest), false});
    map_.make_room(made.size());
    a.ranges.make_room(4);

    range const base = a.ranges[e.range];
    if (e.range != 0) a.claim(e.range);
    addresses_.take(a, region, total);
    std::uintptr_t const address = a.ranges[region].address;
    try {
      unlocked const open(hot);
      making_.make(made, address, total);
    } catch (...) {
      addresses_.give_back(a, region);
      if (e.range != 0) a.make_free(e.range, base.domain, base.epoch);
      throw;
    }
    std::uintptr_t at = address;
    for (made_handle const& c : made) {
      (void)map_.add(c.id, c.bytes, at);
      at += c.bytes;
    }
    a.ranges[region].where = request.where;
    if (e.range != 0) {
      a.merge(e.range, region);
      region = e.range;
    }
    a.make_free(region, request.taker, e.range != 0 && base.domain == request.taker ? base.epoch : 0);
    return true;
  }

  /// Moves a wholly free handle of the large zone to the small zone.
  bool change_zone(arena& a, growth_request const& request) {
    piece const p = choose_whole_handle(a, map_, request.taker, align_up(request.bytes, map_.granularity()));
    if (p.bytes == 0) return false;
    a.ranges.make_room(4);
    range_ref const r = a.carve(a.starts.find(a.ranges, p.address), p.address, p.bytes);
    a.ranges[r].where = request.where;
    a.make_free(r, a.ranges[r].domain, a.ranges[r].epoch);
    return true;
  }

  Source source_;
  growth_counters& counters_;
  page_map map_;
  address_space addresses_;
  page_making<Source> making_;
  page_views<Source> views_;
  page_sleep<Source> sleep_;
  page_compact<Source> compact_;
  page_segments<Source> segments_;
  bool is_moving_ = false;
  void* reserved_ = nullptr;  ///< the source's reservation: one granule more than the map covers
};

}  // namespace tarn::detail
// ---- tarn/pool/growth/page_or_block_growth.hpp
// Growth over a page source that also has plain blocks. It grows by pages, or by segments of plain blocks where pages cannot be
// used: on a device without virtual memory management, and under a tool, since compute-sanitizer 2025.3.1 refuses heaps over
// mapped pages and counts each refusal as an error of the program.

#include <concepts>
#include <cstddef>
#include <cstdint>

// ---- tarn/pool/growth/segment_growth.hpp
// Growth by segments: whole blocks of an upstream resource that has no pages to map (cudaMalloc, pinned memory, another pool).
// A segment cannot be moved or extended; wholly free ones are given back when memory is short, and when too many would be kept
// (ladder.hpp).

#include <cstddef>
#include <cstdint>
#include <utility>

namespace tarn::detail {

/// Segments are multiples of this, bytes: what cudaMalloc rounds to anyway on a device with 2 MiB pages.
inline constexpr std::size_t segment_grain = 2_MiB;

/// A source that can provide segments.
template <class S>
concept segment_source = has_allocate_sync<S> && has_deallocate_sync<S> && has_driver<S>;

template <segment_source Source>
class segment_growth {
 public:
  using driver_type = typename Source::driver_type;

  segment_growth(Source source, growth_counters& counters)
      : source_(std::move(source)), counters_(counters) {}

  [[nodiscard]] Source& source() noexcept { return source_; }
  [[nodiscard]] Source const& source() const noexcept { return source_; }

  /// The upstream's memory is unknown.
  [[nodiscard]] static constexpr std::size_t device_bytes() noexcept { return 0; }

  /// Makes a free range of at least `request.bytes`. Returns false if nothing may be created. The hot lock is held on entry and
  /// return, and released around the upstream's call. @throws what the upstream throws; nothing has changed
  bool grow(arena& a, may_release hot, ordering<driver_type>&, growth_request const& request, void*&) {
    if (request.may_create == 0 && !request.may_exceed) return false;
    segments_.reserve(segments_.size() + 1);
    a.ranges.make_room(1);
    // Take the node now: other threads may use up the room while the lock is released.
    range_ref const r = a.ranges.take();
    std::size_t const exact = request.bytes + (request.alignment > range_grain ? request.alignment : 0);
    std::size_t bytes = align_up(exact, segment_grain);
    void* base = nullptr;
    try {
      unlocked const open(hot);
      try {
        base = source_.allocate_sync(bytes, default_alignment);
        // Blocks of whole segment grains nearly always start on a range grain. Request room for the other case only when it
        // occurs: requesting it always would make every block of 2 MiB a segment of 4 MiB.
        if (!is_aligned(base, range_grain) && bytes < exact + range_grain) {
          source_.deallocate_sync(base, bytes, default_alignment);
          bytes = align_up(exact + range_grain, segment_grain);
          base = source_.allocate_sync(bytes, default_alignment);
        }
      } catch (out_of_memory const&) {
        bytes = align_up(exact + range_grain, range_grain);
        base = source_.allocate_sync(bytes, default_alignment);
      }
    } catch (...) {
      a.ranges.put_back(r);
      throw;
    }
    ++counters_.creates;
    counters_.hold(reinterpret_cast<std::uintptr_t>(base), bytes, request.where);
    auto const index = free_index();
    segments_[index] = {base, bytes, request.where};
    range& node = a.ranges[r];
    node.address = align_up(reinterpret_cast<std::uintptr_t>(base), range_grain);
    node.bytes = align_down(reinterpret_cast<std::uintptr_t>(base) + bytes - node.address, range_grain);
    node.segment = static_cast<std::uint32_t>(index);
    node.where = request.where;
    a.make_free(r, request.taker, 0);
    return true;
  }

  /// How many bytes may stay reserved if the request is served by a new segment.
  [[nodiscard]] std::size_t keep_before(arena const& a, growth_request const& request) const noexcept {
    return most_beside(a, align_up(request.bytes, segment_grain));
  }

  /// Gives wholly free segments whose work is complete back, until at most `keep` bytes are reserved; returns the bytes given
  /// back.
  std::size_t shrink(arena& a, may_release hot, std::size_t keep) {
    std::size_t given = 0;
    while (counters_.reserved > keep && !a.keeps_addresses) {
      looked_up<range_ref> const found(hot.held(), free_segment(a));
      range_ref const whole = found.get(hot.held());
      if (whole == 0) break;
      a.claim(whole);
      segment const gone = std::exchange(segments_[a.ranges[whole].segment], {});
      a.ranges.put_back(whole);
      ++counters_.destroys;
      counters_.release(reinterpret_cast<std::uintptr_t>(gone.base), gone.bytes, gone.where);
      given += gone.bytes;
      unlocked const open(hot);
      source_.deallocate_sync(gone.base, gone.bytes, default_alignment);
    }
    return given;
  }

  /// Calls f(held_memory) for each segment. Under the growth lock.
  template <class F>
  void for_each_held(F const& f) const {
    for (segment const& s : segments_) {
      if (s.base != nullptr)
        f(held_memory{reinterpret_cast<std::uintptr_t>(s.base), s.bytes, s.where, false});
    }
  }

  /// Whether `address` lies in a segment. O(segments).
  [[nodiscard]] bool contains(std::uintptr_t address) const noexcept {
    for (segment const& s : segments_) {
      auto const base = reinterpret_cast<std::uintptr_t>(s.base);
      if (s.base != nullptr && address >= base && address - base < s.bytes) return true;
    }
    return false;
  }

  /// Gives everything back; nothing on the device uses it any more.
  void close() noexcept {
    for (segment const& s : segments_) {
      if (s.base != nullptr) source_.deallocate_sync(s.base, s.bytes, default_alignment);
    }
    segments_.clear();
  }

  [[nodiscard]] std::size_t host_bytes() const noexcept { return segments_.capacity() * sizeof(segment); }

 private:
  struct segment {
    void* base = nullptr;
    std::size_t bytes = 0;
    zone where = zone::small;
  };

  /// A wholly free segment whose work is complete; 0 if there is none.
  [[nodiscard]] static range_ref free_segment(arena const& a) noexcept {
    range_ref whole = 0;
    for (domain_ref d = 0; d < a.streams.size() && whole == 0; ++d) {
      stream_domain const& domain = a.streams[d];
      for (range_index const& index : domain.index) {
        index.for_each(a.ranges, range_grain, [&](range_ref r) {
          range const& node = a.ranges[r];
          if (node.previous == 0 && node.next == 0 && a.is_complete(node)) whole = r;
        });
      }
    }
    return whole;
  }

  /// An unused entry. Requires room for one.
  std::size_t free_index() noexcept {
    for (std::size_t i = 0; i < segments_.size(); ++i) {
      if (segments_[i].base == nullptr) return i;
    }
    segments_.push_back({});
    return segments_.size() - 1;
  }

  Source source_;
  growth_counters& counters_;
  sequence<segment> segments_;
};

}  // namespace tarn::detail

namespace tarn::detail {

/// Provides pages, or blocks in their place. Which of them does not change after the first growth.
template <class S>
concept pages_or_blocks = page_source<S> && segment_source<S> && requires(S const& s) {
  { s.uses_blocks() } noexcept -> std::same_as<bool>;
};

template <pages_or_blocks Source>
class page_or_block_growth {
 public:
  using driver_type = typename Source::driver_type;

  page_or_block_growth(Source source, growth_counters& counters)
      : pages_(source, counters), segments_(static_cast<Source&&>(source), counters) {}

  [[nodiscard]] Source& source() noexcept { return pages_.source(); }
  [[nodiscard]] Source const& source() const noexcept { return pages_.source(); }

  /// Whether the memory is, or will be, segments of plain blocks.
  [[nodiscard]] bool uses_blocks() const noexcept { return source().uses_blocks(); }
  [[nodiscard]] bool contains(std::uintptr_t address) const noexcept {
    return uses_blocks() ? segments_.contains(address) : pages_.contains(address);
  }
  [[nodiscard]] std::size_t device_bytes() const noexcept {
    return uses_blocks() ? segments_.device_bytes() : pages_.device_bytes();
  }
  [[nodiscard]] std::size_t host_bytes() const noexcept {
    return segments_.host_bytes() + pages_.host_bytes();
  }
  bool grow(arena& a, may_release hot, ordering<driver_type>& order, growth_request const& request,
            void*& block) {
    if (uses_blocks()) return segments_.grow(a, hot, order, request, block);
    return pages_.grow(a, hot, order, request, block);
  }
  [[nodiscard]] std::size_t keep_before(arena const& a, growth_request const& request) const noexcept {
    return uses_blocks() ? segments_.keep_before(a, request) : pages_.keep_before(a, request);
  }
  std::size_t shrink(arena& a, may_release hot, std::size_t keep) {
    return uses_blocks() ? segments_.shrink(a, hot, keep) : pages_.shrink(a, hot, keep);
  }
  // Blocks cannot be given back and keep their addresses: under a tool, the pool sleeps and keeps its memory. On a device without
  // pages, the pool refuses to sleep.
  void save(arena const& a, may_release hot, contents where) {
    if (!uses_blocks()) pages_.save(a, hot, where);
  }
  std::size_t release() noexcept { return uses_blocks() ? 0 : pages_.release(); }
  std::size_t prepare_restore(arena& a, may_release hot) {
    return uses_blocks() ? 0 : pages_.prepare_restore(a, hot);
  }
  std::size_t restore(may_release hot) { return uses_blocks() ? 0 : pages_.restore(hot); }
  void keep(after_waking then) noexcept { pages_.keep(then); }
  void forget() noexcept { pages_.forget(); }
  std::size_t compact(arena& a, may_release hot, stream_ref stream) {
    return uses_blocks() ? 0 : pages_.compact(a, hot, stream);
  }
  [[nodiscard]] bool unmap_incomplete() noexcept { return pages_.unmap_incomplete(); }
  // Blocks have no handles: no segment is found.
  template <class F>
  [[nodiscard]] bool each_segment(arena const& a, std::uintptr_t address, std::size_t bytes, F const& f) {
    return !uses_blocks() && pages_.each_segment(a, address, bytes, f);
  }
  void pin(std::uintptr_t address, std::size_t bytes) noexcept { pages_.pin(address, bytes); }
  void unpin(std::uintptr_t address, std::size_t bytes) noexcept { pages_.unpin(address, bytes); }
  template <class F>
  void for_each_held(F const& f) const {
    pages_.for_each_held(f);
    segments_.for_each_held(f);
  }
  void close() noexcept {
    segments_.close();
    pages_.close();
  }

 private:
  page_growth<Source> pages_;
  segment_growth<Source> segments_;
};

}  // namespace tarn::detail
// ---- tarn/pool/inspection/described_source.hpp
// A pool's source as the pool uses it: it provides blocks in place of pages where pages cannot be used, and reports each segment
// to a tool while the pool holds it.

#include <cstddef>
#include <type_traits>
#include <utility>

// ---- tarn/pool/inspection/description.hpp
// What a pool reports to a tool that watches memory (compute-sanitizer, the simulated one): which bytes are handed out.
//
// Without a tool this costs one byte, read when a call reaches the arena. With a tool the pool behaves differently: it uses
// whole blocks of the driver, also in place of pages and of cudaMallocAsync's memory, which tools refuse; it has no magazines;
// an unowned guard of `guard_bytes` follows every block; a freed block is waited for on its stream, stops being a region, and
// is quarantined for a while. So an access past the requested size, before it, or after the free is outside every region:
//
//   heap     |--------------------------- one segment -------------------------|
//   regions   [ asked ]          [ asked ]                    [ asked ]
//   unowned            guard,slack        guard,slack, freed           guard,...

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <type_traits>
#include <utility>

namespace tarn::detail {

/// Unowned bytes after each block; those before a block are the guard of the previous block. NVIDIA's guide requires no
/// distance; with this one, an overrun by one thread block of words does not reach the next block.
inline constexpr std::size_t guard_bytes = 256;

/// Bounds of the quarantine, in blocks and in bytes. If the driver has no more memory, all quarantined blocks return to the
/// heap.
inline constexpr std::size_t quarantine_blocks = 1024;
inline constexpr std::size_t quarantine_bytes = 256_MiB;

/// A freed block that has not yet returned to the heap.
struct freed_block {
  void* p = nullptr;
  std::size_t bytes = 0;  ///< including the guard
  std::size_t alignment = 0;
  stream_id id = 0;
  stream_ref stream;
};

/// Whether the blocks of the lowest source may each be a heap. False above another pool, which describes its own blocks, and
/// over memory that a tool refuses.
template <class Layer>
constexpr bool gives_heaps() noexcept {
  if constexpr (requires { requires Layer::hands_out_pieces; }) {
    return false;
  } else if constexpr (stands_on_another<Layer>) {
    return gives_heaps<std::remove_reference_t<decltype(layer_of(std::declval<Layer&>().upstream()))>>();
  } else {
    return resource<Layer> && !has_plain_blocks<Layer>;
  }
}

/// Memory that a tool can watch: device-only memory, of a driver that supports tools, in blocks that may be heaps.
template <class Source>
inline constexpr bool is_describable =
    describing_driver<typename Source::driver_type> && has_property<Source, device_accessible> &&
    !has_property<Source, host_accessible> &&
    (has_plain_blocks<Source> ||
     gives_heaps<std::remove_reference_t<decltype(layer_of(std::declval<Source&>()))>>());

/// Safe from any thread; no other lock is taken under its lock. If host memory runs out, only reports are lost.
template <describing_driver Driver>
class description {
 public:
  explicit description(Driver const& driver) : driver_(driver) {}
  description(description const&) = delete;
  description& operator=(description const&) = delete;

  [[nodiscard]] bool active() const noexcept {
    return state_.load(std::memory_order_acquire) == state::active;
  }
  /// Whether a tool is attached, which cannot watch pages.
  [[nodiscard]] bool has_tool() const noexcept {
    return active() || state_.load(std::memory_order_acquire) == state::silent;
  }
  /// Reports no blocks: captured graphs use the memory of a graph_memory also while no block lies in it. Before the first heap.
  void keep_silent() noexcept { is_silent_ = true; }

  /// Looks for a tool, once, before the first heap. Not in the constructor, since that must not start CUDA.
  bool decide() noexcept {
    if (state_.load(std::memory_order_acquire) == state::undecided) [[unlikely]]
      look();
    return active();
  }

  void heap_begins(void* p, std::size_t bytes) noexcept {
    if (!active()) return;
    std::lock_guard const guard(mutex_);
    void* const handle = tool_.register_heap(p, bytes);
    if (handle == nullptr) return;
    try {
      heaps_.push_back(heap{address(p), bytes, handle});
    } catch (...) {
      tool_.unregister_heap(handle);
    }
  }
  /// Called before the memory is given back.
  void heap_ends(void* p) noexcept {
    if (!active()) return;
    std::lock_guard const guard(mutex_);
    for (std::size_t i = 0; i < heaps_.size(); ++i) {
      if (heaps_[i].begin != address(p)) continue;
      forget_left(heaps_[i].begin, heaps_[i].bytes);
      tool_.unregister_heap(heaps_[i].handle);
      heaps_.erase_unordered(i);
      return;
    }
  }
  /// Stops all reports: the driver has unloaded, and a tool with it.
  void abandon() noexcept {
    std::lock_guard const guard(mutex_);
    heaps_.clear();
    left_.clear();
  }

  /// Makes room for one block. @throws std::bad_alloc, nothing has changed
  void make_room() {
    std::lock_guard const guard(mutex_);
    live_.make_room(1 + promised_);
    ++promised_;
  }
  void give_up_room() noexcept {
    std::lock_guard const guard(mutex_);
    --promised_;
  }
  /// Reports a block that is handed out. Requires make_room().
  void block_begins(void* p, std::size_t bytes) noexcept {
    std::lock_guard const guard(mutex_);
    --promised_;
    live_.insert(address(p), bytes);
    forget_left(address(p), bytes);
    if (heap const* const h = heap_of(address(p)); h != nullptr) tool_.register_region(h->handle, p, bytes);
  }
  /// Takes a block back: returns its requested bytes, 0 if there is none. If they equal `bytes`, the block is no longer live,
  /// but still a region.
  std::size_t take_back(void* p, std::size_t bytes) noexcept {
    std::lock_guard const guard(mutex_);
    std::size_t const asked = live_.find(address(p));
    if (asked == bytes) (void)live_.erase(address(p));
    return asked;
  }

  /// Ends the region of a block once earlier work on the stream is complete.
  void region_ends(void* p, std::size_t bytes, stream_ref stream) noexcept {
    wait_for(p, bytes, stream);
    region_ends(p);
  }
  /// As above, if the stream was already waited for; it may be destroyed by now.
  void region_ends(void* p) noexcept {
    std::lock_guard const guard(mutex_);
    if (!is_left(address(p))) end_region(address(p));
  }
  /// Waits for the stream of a block that is held back; does nothing if the block is not live or has another size, which is
  /// reported later.
  void wait_if_live(void* p, std::size_t bytes, stream_ref stream) noexcept {
    {
      std::lock_guard const guard(mutex_);
      if (live_.find(address(p)) != bytes) return;
    }
    wait_for(p, bytes, stream);
  }

  /// Quarantines a freed block. Returns false if there is no room: take some out, oldest first, and retry. If `fits()` is
  /// false, there never will be room.
  [[nodiscard]] bool keep(freed_block const& b) noexcept {
    std::lock_guard const guard(mutex_);
    if (kept_ == ring_.size() || kept_bytes_ + b.bytes > quarantine_bytes) return false;
    ring_[(first_ + kept_++) % ring_.size()] = b;
    kept_bytes_ += b.bytes;
    return true;
  }
  [[nodiscard]] bool fits(freed_block const& b) const noexcept {
    return !ring_.empty() && b.bytes <= quarantine_bytes;
  }
  bool take_kept(freed_block& out) noexcept {
    std::lock_guard const guard(mutex_);
    if (kept_ == 0) return false;
    out = ring_[first_];
    kept_bytes_ -= out.bytes;
    first_ = (first_ + 1) % ring_.size();
    --kept_;
    return true;
  }

  /// Calls f(freed_block) for each block in quarantine.
  template <class F>
  void for_each_kept(F const& f) {
    std::lock_guard const guard(mutex_);
    for (std::size_t i = 0; i < kept_; ++i) f(ring_[(first_ + i) % ring_.size()]);
  }

 private:
  enum class state : std::uint8_t { undecided, inactive, active, silent };
  struct stretch {
    std::uintptr_t begin = 0;
    std::size_t bytes = 0;
  };
  struct heap {
    std::uintptr_t begin = 0;
    std::size_t bytes = 0;
    void* handle = nullptr;
  };

  static std::uintptr_t address(void const* p) noexcept { return reinterpret_cast<std::uintptr_t>(p); }

  /// Waits for the stream's work on a live block. During a capture of the stream that is impossible, and the graph may still
  /// run: the region then stays until its bytes are handed out again. If the stream may be destroyed, its handle is not
  /// queried: waits for the whole device's work.
  void wait_for(void* p, std::size_t bytes, stream_ref stream) noexcept {
    if (life_of(driver_, stream) != stream_life::alive) {
      if (is_of_capture(wait_for_all_work(driver_))) leave(p, bytes);
      return;
    }
    bool capturing = false;
    bool const known = driver_.is_capturing(stream, capturing).ok();
    if (known && capturing) {
      leave(p, bytes);
    } else if (!known || !driver_.synchronize_stream(stream).ok()) {
      (void)wait_past_captures(driver_);
    }
  }
  void leave(void* p, std::size_t bytes) noexcept {
    std::lock_guard const guard(mutex_);
    if (is_left(address(p))) return;
    try {
      left_.push_back(stretch{address(p), bytes});
    } catch (...) {  // reported at the graph's next launch, rightly or not
    }
  }
  void look() noexcept {
    std::lock_guard const guard(mutex_);
    if (state_.load(std::memory_order_relaxed) != state::undecided) return;
    tool_ = driver_.memory_tool();
    if (static_cast<bool>(tool_)) {
      try {
        ring_.resize(quarantine_blocks);
      } catch (...) {  // freed blocks are reused at once
      }
    }
    state const with_tool = is_silent_ ? state::silent : state::active;
    state_.store(static_cast<bool>(tool_) ? with_tool : state::inactive, std::memory_order_release);
  }

  /// The segment that contains a block; null if the tool refused it. O(segments).
  [[nodiscard]] heap const* heap_of(std::uintptr_t at) const noexcept {
    for (heap const& h : heaps_) {
      if (at >= h.begin && at - h.begin < h.bytes) return &h;
    }
    return nullptr;
  }
  [[nodiscard]] bool is_left(std::uintptr_t at) const noexcept {
    for (stretch const& s : left_) {
      if (s.begin == at) return true;
    }
    return false;
  }
  void end_region(std::uintptr_t at) noexcept {
    if (heap_of(at) != nullptr) tool_.unregister_region(reinterpret_cast<void*>(at));
  }
  /// Ends the regions that a capture left among these bytes.
  void forget_left(std::uintptr_t begin, std::size_t bytes) noexcept {
    for (std::size_t i = left_.size(); i-- > 0;) {
      stretch const s = left_[i];
      if (s.begin >= begin + bytes || begin >= s.begin + s.bytes) continue;
      end_region(s.begin);
      left_.erase_unordered(i);
    }
  }

  Driver driver_;
  bool is_silent_ = false;
  std::atomic<state> state_{state::undecided};
  fork_mutex mutex_;
  decltype(driver_.memory_tool()) tool_;
  sequence<heap> heaps_;
  address_map<std::size_t> live_;  ///< requested bytes of each block handed out
  std::size_t promised_ = 0;       ///< blocks that room was made for and that are not handed out yet
  sequence<stretch> left_;
  sequence<freed_block> ring_;  ///< the quarantine, oldest at first_
  std::size_t first_ = 0;
  std::size_t kept_ = 0;
  std::size_t kept_bytes_ = 0;
};

/// For memory that no tool can watch: does nothing, at no cost.
struct no_description {
  template <class Driver>
  explicit constexpr no_description(Driver const&) noexcept {}
  [[nodiscard]] static constexpr bool active() noexcept { return false; }
  [[nodiscard]] static constexpr bool decide() noexcept { return false; }
  [[nodiscard]] static constexpr bool has_tool() noexcept { return false; }
  static constexpr void heap_begins(void*, std::size_t) noexcept {}
  static constexpr void heap_ends(void*) noexcept {}
};

/// Room for a block's description: used, or given up in the destructor.
template <class Description>
class room_to_describe {
 public:
  explicit room_to_describe(Description& description) : description_(description) {
    if constexpr (describes) {
      made_ = description_.decide();
      if (made_) description_.make_room();
    }
  }
  room_to_describe(room_to_describe const&) = delete;
  room_to_describe& operator=(room_to_describe const&) = delete;
  ~room_to_describe() {
    if constexpr (describes) {
      if (made_) description_.give_up_room();
    }
  }
  void use([[maybe_unused]] void* p, [[maybe_unused]] std::size_t bytes) noexcept {
    if constexpr (describes) {
      if (std::exchange(made_, false)) description_.block_begins(p, bytes);
    }
  }

 private:
  static constexpr bool describes = !std::is_same_v<Description, no_description>;
  Description& description_;
  bool made_ = false;
};

}  // namespace tarn::detail

namespace tarn::detail {

/// The source, blocks in place of its pages, and reports to a tool. Must not outlive the description.
template <class Source, class Description>
class described_source {
 public:
  using driver_type = typename Source::driver_type;
  using properties = typename Source::properties;

  described_source(Source source, Description& regions)
      : source_(std::move(source)), regions_(&regions), has_pages_(detail::has_pages(source_)) {}

  [[nodiscard]] Source& source() noexcept { return source_; }
  /// Whether the pool's memory is plain blocks: the device has no pages, or a tool was found, which happens before the first growth
  /// or never.
  [[nodiscard]] bool uses_blocks() const noexcept { return !has_pages_ || regions_->has_tool(); }
  /// Whether the device has pages, or the source never had any.
  [[nodiscard]] bool has_pages() const noexcept { return has_pages_; }
  [[nodiscard]] driver_type const& driver() const noexcept { return source_.driver(); }
  [[nodiscard]] device_id device() const { return source_.device(); }

  // Pages are not reported, since no tool accepts them as heaps.

  [[nodiscard]] std::size_t granularity() const noexcept
    requires page_source<Source>
  {
    return source_.granularity();
  }
  [[nodiscard]] void* reserve(std::size_t bytes)
    requires page_source<Source>
  {
    return source_.reserve(bytes);
  }
  void unreserve(void* p, std::size_t bytes) noexcept
    requires page_source<Source>
  {
    source_.unreserve(p, bytes);
  }
  [[nodiscard]] page_handle create(std::size_t bytes)
    requires page_source<Source>
  {
    return source_.create(bytes);
  }
  void destroy(page_handle handle, std::size_t bytes) noexcept
    requires page_source<Source>
  {
    source_.destroy(handle, bytes);
  }
  void map(void* p, std::size_t bytes, page_handle handle)
    requires page_source<Source>
  {
    source_.map(p, bytes, handle);
  }
  void unmap(void* p, std::size_t bytes) noexcept
    requires page_source<Source>
  {
    source_.unmap(p, bytes);
  }

  // Whole blocks, which are a pool's segments: each is a heap.

  [[nodiscard]] void* allocate_sync(std::size_t bytes, std::size_t alignment) {
    if (uses_blocks()) {
      void* const p = take_plain(bytes, alignment);
      regions_->heap_begins(p, bytes);
      return p;
    }
    if constexpr (has_allocate_sync<Source>) {
      return source_.allocate_sync(bytes, alignment);
    } else {
      return nullptr;  // a pool that uses pages takes no blocks
    }
  }
  void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment) noexcept {
    if (uses_blocks()) {
      regions_->heap_ends(p);
      give_plain(p, bytes, alignment);
    } else if constexpr (has_deallocate_sync<Source>) {
      source_.deallocate_sync(p, bytes, alignment);
    }
  }

  friend bool operator==(described_source const& a, described_source const& b) noexcept {
    return a.source_ == b.source_;
  }

 private:
  [[nodiscard]] void* take_plain(std::size_t bytes, [[maybe_unused]] std::size_t alignment) {
    if constexpr (has_plain_blocks<Source>) {
      return source_.allocate_plain(bytes);
    } else {
      return source_.allocate_sync(bytes, alignment);
    }
  }
  void give_plain(void* p, std::size_t bytes, [[maybe_unused]] std::size_t alignment) noexcept {
    if constexpr (has_plain_blocks<Source>) {
      source_.deallocate_plain(p, bytes);
    } else {
      source_.deallocate_sync(p, bytes, alignment);
    }
  }

  Source source_;
  Description* regions_;
  bool has_pages_;
};

/// The description of a pool over `Source`, and the source that the pool then uses.
template <class Source, bool = is_describable<Source> || (page_source<Source> && has_plain_blocks<Source>)>
struct description_of {
  using type = no_description;
  using source_type = Source;
  static Source wrap(Source source, type&) { return source; }
  static Source& unwrap(Source& source) noexcept { return source; }
};
template <class Source, bool IsDescribable>
struct description_for {
  using type = no_description;
};
template <class Source>
struct description_for<Source, true> {
  using type = description<typename Source::driver_type>;
};
template <class Source>
struct description_of<Source, true> {
  using type = typename description_for<Source, is_describable<Source>>::type;
  using source_type = described_source<Source, type>;
  static source_type wrap(Source source, type& regions) { return {std::move(source), regions}; }
  static Source& unwrap(source_type& source) noexcept { return source.source(); }
};

}  // namespace tarn::detail
// ---- tarn/pool/order/reclaim.hpp
// Reclaiming free memory of one stream for others. The device is found to have completed the work on it, the host waits for
// it, or another stream is made to wait on the device. Streams whose work is complete are forgotten.
//
// All functions run under the growth lock and the hot lock, and release the hot lock around driver calls. Under the growth lock
// a domain keeps its stream.

#include <cstddef>
#include <cstdint>

namespace tarn::detail {

/// Which streams a sweep may query the driver about.
enum class sweep_of : std::uint8_t {
  all_streams,
  default_streams  ///< marking them invalidates no capture: the calling thread may be capturing a graph
};

/// Whether a stream other than `taker` has free memory.
[[nodiscard]] inline bool others_have_free(arena const& space, domain_ref taker) noexcept {
  for (domain_ref d = 1; d < space.streams.size(); ++d) {
    if (d != taker && space.streams[d].has_free()) return true;
  }
  return false;
}

/// Whether work may still run on memory that a stream freed.
[[nodiscard]] inline bool has_unfinished(arena const& space) noexcept {
  for (domain_ref d = 1; d < space.streams.size(); ++d) {
    stream_domain const& domain = space.streams[d];
    if ((domain.has_free() || domain.gone) && domain.freed > domain.completed) return true;
  }
  return false;
}

/// Returns to their runs the blocks of other domains' runs that a stream freed, if the device has completed their uses.
inline void return_foreign(arena& space, domain_ref d) {
  stream_domain const& domain = space.streams[d];
  if (domain.foreign_count != 0 && domain.foreign_epoch <= domain.completed) space.send_foreign_home(d);
}

/// Makes the ranges that a stream freed neutral as far as the device has completed them; runs that are partly in use stay. Memory
/// that a stream never freed becomes neutral, too: its share of handles that were created for it (marked 0). O(its ranges)
inline void neutralise(arena& space, domain_ref d) {
  stream_domain& domain = space.streams[d];
  return_foreign(space, d);
  if (domain.free_bytes() != 0) space.hand_over(d, neutral, domain.completed);
  if (domain.is_over()) space.streams.forget(d);
}

/// Makes frees neutral that the device has completed. Never waits.
template <stream_driver Driver>
void collect_finished(arena& space, ordering<Driver>& order, may_release hot, domain_ref except) {
  for (domain_ref d = 1; d < space.streams.size(); ++d) {
    if (d == except) continue;
    if (space.streams[d].has_free()) (void)order.settle(space, hot, d);
    neutralise(space, d);
  }
}

/// Waits on the host for everything that was freed. A block that returns to its run may empty that run in the domain of a
/// stream that was finished earlier, hence the second pass.
/// @param keeps  its ranges stay its own if no others are free: moving many of them takes milliseconds, and joins nothing
template <stream_driver Driver>
void finish_all(arena& space, ordering<Driver>& order, may_release hot, domain_ref keeps = neutral) {
  bool has_returned = true;
  for (int pass = 0; pass < 2 && has_returned; ++pass) {
    has_returned = false;
    for (domain_ref d = 1; d < space.streams.size(); ++d) {
      if (space.streams[d].has_free() || space.streams[d].gone) (void)order.finish(space, hot, d);
      bool const had_foreign = space.streams[d].foreign_count != 0;
      d == keeps ? return_foreign(space, d) : neutralise(space, d);
      has_returned = has_returned || had_foreign;
    }
  }
  // Neighbours of different domains are not joined.
  if (keeps != neutral && space.streams[neutral].free_bytes() != 0) neutralise(space, keeps);
}

/// Makes neutral what a captured stream freed: the capture has ended, and its owner's next graph may use the memory, since it is
/// never replayed together with this one.
inline void end_captured_stream(arena& space, stream_id kept_as) noexcept {
  domain_ref const d = space.streams.find(kept_as);
  if (d == neutral) return;
  stream_domain& domain = space.streams[d];
  domain.freed = domain.completed = domain.epoch++;  // the next stream in this place continues above
  if (domain.foreign_count != 0) space.send_foreign_home(d);
  space.hand_over(d, neutral, domain.completed);
  space.neutralise_runs(d);
  if (domain.is_empty()) space.streams.forget(d);
}

/// Makes the taker's stream wait, on the device, for other streams' frees, and moves them to its domain. For memory that every
/// stream may use, the host waits instead.
/// `covered` is read before order() releases the lock and used after it: memory freed meanwhile, by this stream or by one that
/// was given its place, has a later mark and stays.
template <stream_driver Driver>
void steal(arena& space, ordering<Driver>& order, may_release hot, domain_ref taker) {
  for (domain_ref d = 1; d < space.streams.size(); ++d) {
    stream_domain const& owner = space.streams[d];
    if (d == taker || owner.free_bytes() == 0) continue;
    if (taker == neutral) {
      (void)order.finish(space, hot, d);
      neutralise(space, d);
    } else if (std::uint64_t const covered = owner.recorded;
               covered != 0 && order.order(space, hot, taker, d)) {
      space.hand_over(d, taker, covered);
    }
  }
}

/// Forgets the streams that no thread has used since the last sweep and whose work is complete; their memory becomes neutral.
/// Waits only for destroyed streams whose work cannot be marked.
template <stream_driver Driver>
void sweep(arena& space, ordering<Driver>& order, may_release hot, sweep_of which) {
  std::size_t in_vain = 0;
  for (domain_ref d = 1; d < space.streams.size(); ++d) {
    stream_domain& domain = space.streams[d];
    if (domain.used) {
      domain.used = domain.runs_marked = false;
      continue;
    }
    if (domain.id == 0 || domain.climbing) continue;
    // A destroyed stream with nothing to wait for needs no query.
    bool const is_left_over = domain.gone && domain.is_completed() && domain.holds_no_run();
    if (which == sweep_of::default_streams && !is_default_stream(domain.stream) && !is_left_over) continue;
    if (!domain.runs_marked && !domain.holds_no_run()) {
      (void)domain.mark();
      domain.runs_marked = true;
    }
    bool const done = order.settle(space, hot, d) == progress::completed;
    if (!done || domain.used) {  // the stream may have been used again while the lock was released
      ++in_vain;
      continue;
    }
    if (domain.foreign_count != 0) space.send_foreign_home(d);
    space.hand_over(d, neutral, domain.completed);
    space.neutralise_runs(d);
    if (domain.is_empty()) space.streams.forget(d);
  }
  space.streams.swept(in_vain);
}

}  // namespace tarn::detail

namespace tarn::detail {

/// How a pool grows over a source. Over cuda_pages it is page_or_block_growth, which is page_growth unless the device has no pages
/// or compute-sanitizer is attached.
template <class Source>
struct growth_for {
  using type = segment_growth<Source>;
};
template <page_source Source>
struct growth_for<Source> {
  using type = page_growth<Source>;
};
template <pages_or_blocks Source>
struct growth_for<Source> {
  using type = page_or_block_growth<Source>;
};

template <memory_source Upstream>
class heap {
 public:
  using upstream_type = Upstream;
  using driver_type = typename Upstream::driver_type;
  using described = description_of<Upstream>;
  using source_type = typename described::source_type;
  using growth_type = typename growth_for<source_type>::type;
  /// Whether a tool that watches memory may be notified of the blocks.
  static constexpr bool describes = is_describable<Upstream>;

  /// @throws cuda_error  of kind `unsupported`: the device has no pages, and a layer over the source does not pass plain blocks on
  /// @param growth_lock  of the pool that this one is a part of; null: its own
  heap(Upstream upstream, pooled const& chosen, recursive_fork_mutex* growth_lock)
      : options(chosen),
        cold(growth_lock != nullptr ? *growth_lock : own_cold_),
        order(upstream.driver()),
        growth(described::wrap(std::move(upstream), description), counters),
        description(order.driver()) {
    counters.sums = &sums;
    if (page_source<source_type> && !pages_or_blocks<source_type>)
      require_pages(growth.source(), layer_keeps_blocks);
    bool const by_pages = page_source<source_type> && has_pages(growth.source());
    space_.keeps_handles_whole = by_pages && may_remap(options);
    space_.joins_handles = !by_pages || options.handles == handles_per_block::any;
  }
  heap(heap const&) = delete;
  heap& operator=(heap const&) = delete;

  // State. Members are protected by `cold` unless marked otherwise.
  pooled const options;
  mutable hot_mutex hot;
  recursive_fork_mutex&
      cold;  ///< shared by a pool and its graph memories, so that there is one order of locks
  growth_counters counters;
  known_left left;  ///< how much the growth can still create
  ordering<driver_type> order;
  growth_type growth;
  std::uint64_t alloc_retries = 0;
  std::uint64_t ooms = 0;
  pool_totals totals_reset;
  captured_streams kept_as;               ///< in the pool of a graph_memory: identities of open captures
  captured_streams captured;              ///< whose calls go to graph memories (graph/)
  growth_sums sums;                       ///< of this pool and its graph memories; has a mutex of its own
  pool_state ended;                       ///< counts of graph memories that were destroyed
  std::uint64_t graph_memory = 0;         ///< number of the graph_memory that the pool belongs to; 0 if none
  misuse_notes notes;                     ///< under `hot`
  std::int64_t uncached_live_bytes = 0;   ///< of calls without a thread cache; under `hot`
  std::int64_t uncached_live_blocks = 0;  ///< likewise

  /// The arena, under the hot lock.
  [[nodiscard]] arena& space(hot_lock const&) noexcept { return space_; }
  [[nodiscard]] arena const& space(hot_lock const&) const noexcept { return space_; }

  [[nodiscard]] driver_type const& driver() const noexcept { return order.driver(); }
  [[nodiscard]] Upstream& upstream() noexcept { return described::unwrap(growth.source()); }
  /// Whether the memory is plain blocks in place of what the source is made for. May become true before the first growth.
  [[nodiscard]] bool uses_plain_blocks() const noexcept {
    if constexpr (has_plain_blocks<Upstream> && requires { growth.source().uses_blocks(); }) {
      return growth.source().uses_blocks();
    } else {
      return false;
    }
  }
  /// Whether the memory is pages: physical handles at addresses that the pool keeps.
  [[nodiscard]] bool uses_pages() const noexcept { return page_source<source_type> && !uses_plain_blocks(); }
  /// Whether give_back_unused() may do anything: only pages go back by themselves, and a graph's stay.
  [[nodiscard]] bool trims_itself() const noexcept { return uses_pages() && !space_.keeps_addresses; }

  // ---- taking

  /// Takes a block, or up to `batch.wanted` blocks of a class that has runs, from the taker's own memory, then from neutral
  /// memory. Returns false if neither has one. Requires arena::make_room(). O(1).
  bool take(hot_lock const&, domain_ref taker, block_request const& r, block_batch& batch) noexcept {
    if (is_asleep()) [[unlikely]]
      return false;
    if (r.in_run) {
      batch.count = space_.take_small(taker, r.size_class, batch.blocks, batch.wanted);
    } else if ((batch.blocks[0] = space_.take(taker, r.where, r.block, r.alignment)) != nullptr) {
      batch.count = 1;
    }
    batch.ends_step = space_.window.is_step_over() && trims_itself();
    return batch.count != 0;
  }

  // ---- giving back: never throws, never waits for `cold`

  /// Returns blocks of a size class to the arena.
  void give_back(stream_id id, stream_ref stream, unsigned k, void* const* blocks,
                 std::uint32_t count) noexcept {
    hot_lock held(hot);
    looked_up_domain giver = domain_of(may_release(held), id, stream);
    for (std::uint32_t i = 0; i < count; ++i) {
      bool const in_run = k < run_class_count;
      if (giver.get(held) == no_domain) {
        count_uncached(held, static_cast<std::int64_t>(class_bytes(k)), 1);
        continue;
      }
      auto result = in_run ? space_.release_small(giver.get(held), k, blocks[i])
                           : space_.release(giver.get(held), blocks[i], class_bytes(k));
      if (result == release_result::needs_finish) {
        bool const finished = wait_for_device(may_release(held)).ok();
        giver = domain_of(may_release(held), id, stream);  // its place may belong to another stream now
        if (!finished) {
          count_uncached(held, static_cast<std::int64_t>(class_bytes(k)), 1);
          continue;
        }
        result = space_.release_small(neutral, k, blocks[i]);
      }
      if (result != release_result::done) note_misuse(held, result, blocks[i], class_bytes(k));
    }
    space_.count_splits();
  }
  /// Returns blocks of `bytes` each to the arena, in the way the request for one of them was served.
  void give_back(block_request const& r, void* const* blocks, std::uint32_t count,
                 std::size_t bytes) noexcept {
    if (r.size_class != class_count) return give_back(r.id, r.stream, r.size_class, blocks, count);
    for (std::uint32_t i = 0; i < count; ++i) give_back_range(r.id, r.stream, blocks[i], bytes);
  }
  /// Returns a block without a size class to the arena. @param block  its rounded bytes
  void give_back_range(stream_id id, stream_ref stream, void* p, std::size_t block) noexcept {
    hot_lock held(hot);
    return_range(may_release(held), id, stream, p, block);
    space_.count_splits();
  }
  void give_back(freed_block const& b) noexcept {
    if (has_class(b.bytes, b.alignment)) {
      give_back(b.id, b.stream, class_of(b.bytes), &b.p, 1);
    } else {
      give_back_range(b.id, b.stream, b.p, rounded_bytes(b.bytes, b.alignment));
    }
  }
  void return_range(may_release held, stream_id id, stream_ref stream, void* p, std::size_t block) noexcept {
    domain_ref const giver = domain_of(held, id, stream).get(held.held());
    if (giver == no_domain) [[unlikely]]
      return count_uncached(held.held(), static_cast<std::int64_t>(block), 1);
    auto const result = space_.release(giver, p, block);
    if (result != release_result::done) [[unlikely]]
      note_misuse(held.held(), result, p, block);
  }

  /// Counts live blocks that no thread cache counts.
  void count_uncached(hot_lock const&, std::int64_t bytes, std::int64_t blocks) noexcept {
    uncached_live_bytes += bytes;
    uncached_live_blocks += blocks;
  }
  /// Counts a served request. @param uncached  whether no thread cache counts the block; a guard is not counted
  void count_if_uncached(hot_lock const& held, block_request const& r, bool uncached) noexcept {
    if (uncached) count_uncached(held, static_cast<std::int64_t>(rounded_bytes(r.asked, r.alignment)), 1);
    space_.count_splits();
  }
  void count_given(block_request const& r) noexcept {
    hot_lock const held(hot);
    count_uncached(held, -static_cast<std::int64_t>(r.block), -1);
  }
  void note_double_free(block_request const& r, void const* p) noexcept {
    hot_lock const held(hot);
    note_misuse(held, release_result::twice, p, r.block);
  }
  /// Records a misuse, and counts the block as live again since it was not freed.
  void note_misuse(hot_lock const& held, release_result what, void const* p, std::size_t block) noexcept {
    count_uncached(held, static_cast<std::int64_t>(block), 1);
    notes.add(held, what, p);
  }

  // ---- streams

  /// @throws cuda_error  the driver does not know the stream
  [[nodiscard]] TARN_ALWAYS_INLINE stream_id identity(stream_ref stream) const {
    if (stream.id() != stream_ref::unknown_id) [[likely]]
      return stream.id();
    stream_id id = 0;
    status const s = driver().identify(stream, id);
    if (!s.ok()) {
      if (is_lost()) refuse_forked();
      throw cuda_error(is_of_capture(s) ? refused_for_capture(captured_without_scope) : s,
                       driver().device().value);
    }
    return id;
  }

  /// Returns whether streams should be swept. Needs no lock.
  [[nodiscard]] bool is_crowded() const noexcept { return space_.streams.is_crowded(); }
  /// Forgets streams that no longer use the pool, including default streams of ended threads. If another thread is climbing, a
  /// later call does it.
  TARN_NOINLINE void sweep_streams(sweep_of which) noexcept {
    if (!cold.try_lock()) return;
    std::lock_guard const guard(cold, std::adopt_lock);
    hot_lock held(hot);
    if (is_crowded()) sweep(space_, order, may_release(held), which);
  }

  // ---- under the growth lock

  /// Gives free memory back to the source until at most `keep_bytes` are reserved, after the host has waited for the streams
  /// that freed it. Returns the bytes given back.
  std::size_t shrink(std::size_t keep_bytes) {
    hot_lock held(hot);
    finish_all(space_, order, may_release(held));
    std::size_t const given = growth.shrink(space_, may_release(held), keep_bytes);
    // What was given back no longer counts as a peak up to which growth creates handles before it remaps free ones: an emptied pool
    // grows as a new one does. Otherwise NanoVDB's grids (examples/nanovdb) took 1,434 MiB after empty_cache() instead of 1,364.
    space_.live_peak = max_of(space_.live_bytes, min_of(space_.live_peak, counters.reserved));
    space_.count_splits();
    return given;
  }
  /// The same without waiting: what streams may still use stays.
  std::size_t shrink_idle(std::size_t keep_bytes) {
    hot_lock held(hot);
    collect_finished(space_, order, may_release(held), neutral);
    std::size_t const given = growth.shrink(space_, may_release(held), keep_bytes);
    space_.count_splits();
    return given;
  }
  /// Ends a step of the live_window. If the live peak has fallen, gives back the handles beyond the window's peak that are free and that
  /// no work uses. Never waits: work of all streams is marked, and what is not complete stays until a later step, after as many
  /// allocated bytes as live_window counts. To wait here would stall an allocate() for the whole queue of the device, for memory
  /// that no request lacks. Only where memory is pages, since the driver waits for the device before it frees a plain block.
  void give_back_unused(stream_id id) {
    if (is_asleep()) return;
    hot_lock held(hot);
    may_release const releasing(held);
    if (!space_.window.is_step_over() || !trims_itself()) return;
    std::size_t const peak = space_.window.peak();
    bool const fell = space_.window.end_step(counters.reserved, space_.live_bytes, space_.live_peak);
    std::size_t const keep =
        max_of(peak + peak / 1000 * slack_of(0, options.slack_per_mille, 0), options.release_threshold);
    if (!fell || counters.reserved <= keep || capture_gate::has_captures()) return;
    if (domain_ref const d = space_.streams.find(id); d != neutral && !space_.streams[d].gone) {
      stream_ref const stream = space_.streams[d].stream;
      bool is_captured = true;
      {
        unlocked const open(releasing);
        is_captured = order.is_capturing(stream);
      }
      if (is_captured) return;
      // The mark of the step before: where the device is always behind, a new one would never be found complete.
      if (!order.is_running(space_, releasing, d)) (void)order.settle(space_, releasing, d);
    }
    mark_other_streams(releasing, id);
    std::size_t const given = growth.shrink(space_, releasing, keep);
    space_.window.note_given(given, counters.reserved);
    if (counters.reserved <= keep) space_.live_peak = max_of(peak, space_.live_bytes);
    space_.count_splits();
  }
  /// Copies what sleep must keep to the host, after shrink(0); returns the bytes that this gave back. The pool is marked asleep.
  std::size_t prepare_sleep(contents where) {
    std::size_t const given = shrink(0);
    hot_lock held(hot);
    growth.save(space_, may_release(held), where);
    return given;
  }
  /// Gives up what was freed while the pool slept; returns the bytes that restore() takes. The pool is still marked asleep.
  std::size_t prepare_wake() {
    hot_lock held(hot);
    finish_all(space_, order, may_release(held));
    std::size_t const bytes = growth.prepare_restore(space_, may_release(held));
    space_.count_splits();
    return bytes;
  }
  /// Takes the memory of a sleeping pool again; returns the bytes taken. The pool is still marked asleep.
  std::size_t restore() {
    hot_lock held(hot);
    return growth.restore(may_release(held));
  }
  /// Refuses to wake if the device, or a limit that no layer can raise, does not have `bytes`.
  void require_free(std::size_t bytes) {
    using layer = std::remove_reference_t<decltype(layer_of(upstream()))>;
    memory_bound const bound = memory_left(layer_of(upstream()));
    bool const by_limit = bound.limit != memory_report::unknown;
    if (bytes <= bound.bytes || (by_limit && !only_bounds<layer>())) return;
    memory_report r =
        refusal_of(memory_report::no_stream, bytes, usual_granule, "the device, to wake the pool");
    r.device_free = bound.device_free;
    r.device_total = bound.device_total;
    r.headroom = bound.headroom;
    r.limit = bound.limit;
    r.limit_used = bound.limit_used;
    if (by_limit) r.refused_by = bound.by;
    r.lacking = bytes - bound.bytes;
    throw out_of_memory(r);
  }
  /// Gives back all granules without live bytes, after shrink(0).
  compaction compact() {
    compaction result;
    std::size_t const reserved = counters.reserved;
    (void)shrink(0);
    if (uses_pages()) {
      own_stream const stream(growth.source().driver());  // not made or destroyed under the hot lock
      hot_lock held(hot);
      result.stretches = growth.compact(space_, may_release(held), stream.get());
    }
    hot_lock const held(hot);
    space_.count_splits();
    result.live = space_.live_bytes;
    result.reserved = counters.reserved;
    result.released = reserved - result.reserved;
    return result;
  }
  /// Waits for all work on the pool's memory, as far as the driver can report it. Returns false if an open capture forbids it.
  /// @param asks_for_device  whether blocks wait for uses that only a device synchronisation covers
  [[nodiscard]] bool finish(bool asks_for_device) noexcept {
    hot_lock held(hot);
    finish_all(space_, order, may_release(held));
    // A stream whose end the driver does not report: its work must not see its memory unmapped.
    if (!has_unfinished(space_) && !asks_for_device) return true;
    status s = wait_for_device(may_release(held));
    if (!s.ok()) s = wait_for_device(may_release(held));
    return !is_of_capture(s);
  }
  /// Work may still use the memory when the pool ends: close() will give none of it back.
  void keep_mapped() noexcept { keeps_mapped_ = true; }
  [[nodiscard]] bool keeps_mapped() const noexcept { return keeps_mapped_; }
  /// Gives everything back to the source, unless keep_mapped() was called.
  void close() noexcept {
    order.close(space_);
    if (!keeps_mapped_) growth.close();
  }

  // ---- fork

  /// Returns true in a forked child that cannot use its parent's driver resources. Its thread caches are closed, so every call
  /// reaches a check of this.
  [[nodiscard]] bool is_lost() const noexcept { return lost_.load(std::memory_order_relaxed); }
  void set_lost(bool lost) noexcept { lost_.store(lost, std::memory_order_relaxed); }
  /// Whether the pool sleeps: its thread caches are closed, so every call reaches a check of this. Changed under both locks.
  [[nodiscard]] bool is_asleep() const noexcept { return asleep_.load(std::memory_order_relaxed); }
  void set_asleep(bool asleep) noexcept {
    hot_lock const held(hot);
    asleep_.store(asleep, std::memory_order_relaxed);
  }
  /// Used in a forked child if the lock's owner thread does not exist there.
  void renew_hot_lock() noexcept { (void)::new (static_cast<void*>(&hot)) hot_mutex; }

  [[noreturn]] void refuse_forked() const {
    status const s{failure::forked, 3, "cudaErrorInitializationError", "allocation in a forked child"};
    throw cuda_error(s, driver().device().value);
  }
  [[noreturn]] void refuse(stream_id id, std::size_t bytes, std::size_t alignment,
                           char const* refused_by = "the pool") const {
    throw out_of_memory(refusal_of(id, bytes, alignment, refused_by));
  }
  [[noreturn]] void refuse_asleep(stream_id id, std::size_t bytes, std::size_t alignment) const {
    throw pool_asleep(refusal_of(id, bytes, alignment, "the sleeping pool"));
  }

 private:
  using looked_up_domain = looked_up<domain_ref>;
  /// If the host has no memory to record a free and the device cannot be waited for, the block stays live until the pool ends:
  /// no thread may reuse it while work may still use it.
  static constexpr domain_ref no_domain = static_cast<domain_ref>(-1);

  [[nodiscard]] memory_report refusal_of(stream_id id, std::size_t bytes, std::size_t alignment,
                                         char const* refused_by) const {
    memory_report r;
    r.asked = bytes;
    r.alignment = alignment;
    r.device = driver().device().value;
    r.stream = id;
    r.refused_by = refused_by;
    return r;
  }

  /// The domain that a free belongs to. If the host has no memory to make one, waits for the stream's work instead.
  looked_up_domain domain_of(may_release held, stream_id id, stream_ref stream) noexcept {
    domain_ref found = no_domain;
    if (is_capture_stream(id) && !kept_as.has(id)) [[unlikely]]
      return {held.held(), neutral};  // the capture has ended, and with it the order of its streams
    try {
      found = space_.streams.get(id, stream);
    } catch (...) {
      if (wait_for_device(held).ok()) found = neutral;
    }
    return {held.held(), found};
  }
  /// Marks the work of streams other than `id` that have free memory, and finds out which earlier marks are complete. Without it, a
  /// stream that has queued work, but allocates nothing, would keep what it freed. Never waits.
  void mark_other_streams(may_release held, stream_id id) {
    for (domain_ref d = 1; d < space_.streams.size(); ++d) {
      stream_domain const& domain = space_.streams[d];
      if (domain.id == 0 || domain.id == id || !domain.has_free() || domain.is_completed()) continue;
      if (!order.is_running(space_, held, d)) (void)order.settle(space_, held, d, gone_stream::stays_unknown);
    }
  }
  /// Waits for the device, not the stream: the stream of a late free may be destroyed, and its handle must not be used.
  status wait_for_device(may_release held) noexcept {
    unlocked const open(held);
    return wait_for_all_work(driver());
  }

  arena space_;
  std::atomic<bool> lost_{false};
  recursive_fork_mutex own_cold_;
  std::atomic<bool> asleep_{false};
  bool keeps_mapped_ = false;

 public:
  typename described::type description;  ///< last: away from the members that a warm call reads
};

}  // namespace tarn::detail
// ---- tarn/pool/inspection/described_blocks.hpp
// Deallocation while a tool watches memory: freed blocks are removed from the tool's regions and quarantined for a while
// (description.hpp). Not called without a tool.

#include <cstddef>
#include <cstdint>

namespace tarn::detail {

/// Whether a freed block waits in quarantine.
enum class reuse : std::uint8_t { later, at_once };

template <class Heap>
TARN_NOINLINE void take_back_described([[maybe_unused]] Heap& heap, [[maybe_unused]] stream_id id,
                                       [[maybe_unused]] stream_ref stream, [[maybe_unused]] void* p,
                                       [[maybe_unused]] std::size_t bytes,
                                       [[maybe_unused]] std::size_t alignment,
                                       [[maybe_unused]] reuse when) noexcept {
  if constexpr (Heap::describes) {
    auto& description = heap.description;
    freed_block const b{p, bytes + guard_bytes, alignment, id, stream};
    std::size_t const block = rounded_bytes(bytes, alignment);  // as it was counted
    std::size_t const asked = description.take_back(p, bytes);
    {
      hot_lock const held(heap.hot);
      heap.count_uncached(held, -static_cast<std::int64_t>(block), -1);
      if (asked != bytes)
        return heap.note_misuse(held, asked == 0 ? release_result::foreign : release_result::wrong_size, p,
                                block);
    }
    // A held-back block was waited for, and its stream may be destroyed.
    if (id == neutral_id || when == reuse::at_once) {
      description.region_ends(p);
    } else {
      description.region_ends(p, bytes, stream);
    }
    if (when == reuse::at_once || !description.fits(b)) return heap.give_back(b);
    freed_block oldest;
    while (!description.keep(b)) {
      if (description.take_kept(oldest)) heap.give_back(oldest);
    }
  }
}

/// Ends the quarantine of all blocks.
template <class Heap>
void end_quarantine([[maybe_unused]] Heap& heap) noexcept {
  if constexpr (Heap::describes) {
    freed_block b;
    while (heap.description.take_kept(b)) heap.give_back(b);
  }
}

}  // namespace tarn::detail
// ---- tarn/pool/ladder.hpp
// The ladder: the steps tried, in order, when neither a stream's own memory nor neutral memory has a fitting range.
//
//   - a request above a limit below the pool is refused at once
//   0 small pools   grow at once, except the first time: below roomy_limit speed matters more than memory
//   1 magazines     return all threads' cached blocks to the heap, each to its own stream's domain, if there are enough of them
//   2 finished      make frees of other streams that the device has completed neutral
//   3 stealing      make the stream wait, on the device, for another stream's frees, and take them over; add neutral ranges to
//                   its own, so that neighbours coalesce
//   4 growth        create new handles while reserved memory may grow, reuse a view of free handles, or make a new view; where free
//                   memory is neither joined nor moved, free segments go back first if too much would be reserved
//   5 exhaustion    the driver refused: the host waits for all streams and recorded uses, free memory is remapped together,
//                   free handles and segments are given back
//   6 out_of_memory   or, if the device refused, other pools give back what they cache (cache_misses.hpp, other_pools.hpp)
//
// One thread climbs at a time (the growth lock). The hot lock is released around every driver call, which invalidates
// everything looked up before.

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace tarn::detail {

/// Up to this many bytes per thread, a pool over pages grows before it takes other threads' cached blocks or other streams'
/// memory. The full magazines of one thread and one stream hold 104 MiB (magazine.hpp). Limited to one
/// part in roomy_part of the device's memory: 2 GiB on a device of 128 GiB.
inline constexpr std::size_t roomy_limit = 128_MiB;
inline constexpr std::size_t roomy_part = 64;
/// Growth for small blocks is this fraction of the reserved bytes.
inline constexpr std::size_t roomy_step = 8;

/// If several threads cache less than this fraction of the reserved bytes, they are not stopped to take it back.
inline constexpr std::size_t idle_part = 32;

/// Raises `used` to the bytes that count against a limit of `limit` bytes in this layer or one below it.
template <class Layer>
void find_limit(Layer& layer, std::size_t limit, std::size_t& used) noexcept {
  if constexpr (has_limit<Layer>) {
    if (layer.limit() == limit) used = max_of(used, std::size_t{layer.used()});
  }
  if constexpr (stands_on_another<Layer> && !routes_calls<Layer>)
    find_limit(layer_of(layer.upstream()), limit, used);
}

/// One climb. Both locks are held when it starts and when it ends; the hot lock is released in between.
template <class Heap, class Front, class Waiting>
class ladder {
 public:
  using source_type = typename Heap::source_type;

  /// @param batch  receives the block, and others of its class
  ladder(Heap& heap, Front& front, Waiting& waiting, may_release hot, block_request const& wanted,
         block_batch& batch)
      : heap_(heap), front_(front), waiting_(waiting), hot_(hot), wanted_(wanted), batch_(batch) {
    request_.taker = space().streams.get(wanted.id, wanted.stream);
    request_.where = wanted.where;
    request_.bytes = wanted.in_run ? run_bytes(wanted.size_class) : wanted.block;
    request_.alignment = wanted.in_run ? frame_bytes : wanted.alignment;
    request_.asked = wanted.asked;
    request_.asked_alignment = wanted.alignment;
  }

  /// Climbs until a block is found.
  /// @throws out_of_memory  every rung failed, or the request is above a limit; nothing has changed
  void climb() {
    kept_domain const kept(space().streams[request_.taker]);
    idle_blocks const idle = front_.idle();
    if (take()) return;
    refuse_above_limit();
    // What was known may be too low, too.
    if (page_source<source_type> && (heap_.left.is_old(heap_.counters.reserved) || is_above_what_is_left()))
      renew_left();
    set_budget();
    if (page_source<source_type> && grow_roomy(idle.threads)) return;
    bool const flush_early = idle.threads == 1 || idle.bytes * idle_part > heap_.counters.reserved;
    if (flush_early) {
      {
        unlocked const open(hot_);
        front_.flush_all();
      }
      if (take()) return;
    }
    if (take_from_others()) return;
    refusal last(heap_);
    try {
      for (int attempt = 0; attempt < 3; ++attempt) {
        set_budget();
        give_back_spare();
        if (grow()) return;
      }
    } catch (out_of_memory const& error) {
      last.set(error.report());
    }
    heap_.left.forget();
    ++heap_.alloc_retries;
    if (take_what_is_waited_for(flush_early) || put_together()) return;
    bool const has_given = heap_.growth.shrink(space(), hot_, 0) != 0;
    if (has_given || !is_final(last)) {
      request_.may_exceed = true;
      request_.extend = true;
      try {
        if (grow()) return;
      } catch (out_of_memory const& error) {
        last.set(error.report());
      }
    }
    query_device(last);
    throw out_of_memory(report(last.why));
  }

 private:
  /// Why the last growth was refused.
  struct refusal {
    explicit refusal(Heap const& heap) noexcept
        : creates(heap.counters.creates), waits(heap.order.host_waits()) {}
    void set(memory_report const& report) noexcept {
      why = report;
      by_source = true;
    }
    /// Whether the source was asked and gave nothing, not even for a moment.
    [[nodiscard]] bool took_nothing(Heap const& heap) const noexcept {
      return by_source && creates == heap.counters.creates;
    }

    memory_report why;
    bool by_source = false;  ///< otherwise nothing could be created
    std::uint64_t creates;   ///< of the pool, before all growth
    std::uint64_t waits;     ///< of the host, likewise
  };
  /// Keeps a stream's domain while the hot lock is released. Without it, blocks of a destroyed stream that are returned under
  /// the same handle would make the living stream look destroyed. Constructed and destroyed under the hot lock.
  class kept_domain {
   public:
    explicit kept_domain(stream_domain& domain) noexcept : domain_(domain) { domain_.climbing = true; }
    kept_domain(kept_domain const&) = delete;
    kept_domain& operator=(kept_domain const&) = delete;
    ~kept_domain() { domain_.climbing = false; }

   private:
    stream_domain& domain_;
  };

  [[nodiscard]] arena& space() noexcept { return heap_.space(hot_.held()); }

  bool take() {
    space().make_room();
    return heap_.take(hot_.held(), request_.taker, wanted_, batch_);
  }

  /// Returns true if a growth assembled a block, or created memory that now serves the request.
  /// @throws what the source throws, nothing has changed
  bool grow() {
    void* block = nullptr;
    if (!heap_.growth.grow(space(), hot_, heap_.order, request_, block)) return false;
    if (block == nullptr) return take();
    batch_.blocks[0] = block;
    batch_.count = 1;
    return true;
  }

  /// Before rung 4, where free memory is neither joined nor moved: gives back wholly free segments, which are too small for the
  /// request, if too much would be reserved beside the new one. Never waits: those that work still uses stay. Does nothing during a
  /// capture, which the driver's calls could invalidate.
  void give_back_spare() {
    if (capture_gate::has_captures()) return;
    if (heap_.counters.reserved <= heap_.growth.keep_before(space(), request_)) return;
    if (domain_ref const taker = request_.taker; taker != neutral) {
      if (is_captured()) return;
      // Where the device is always behind, a new mark for each growth would never be found complete.
      if (!heap_.order.is_running(space(), hot_, taker)) (void)heap_.order.settle(space(), hot_, taker);
    }
    (void)heap_.growth.shrink(space(), hot_, heap_.growth.keep_before(space(), request_));
  }

  /// Rung 0. Returns false if the pool is no longer small, or the source refuses.
  bool grow_roomy(std::size_t threads) {
    std::size_t const reserved = heap_.counters.reserved;
    std::size_t const limit = min_of(roomy_limit * threads, heap_.growth.device_bytes() / roomy_part);
    if (reserved >= limit || align_up(request_.bytes, usual_granule) > limit - reserved) return false;
    growth_request const usual = request_;
    request_.may_create = limit - reserved;
    request_.may_exceed = false;
    // Many threads that start together wait for each other here: create a few handles, not hundreds.
    if (request_.where == zone::small)
      request_.least_growth = max_of(request_.least_growth, align_down(reserved / roomy_step, usual_granule));
    bool served = false;
    try {
      served = grow();
    } catch (out_of_memory const&) {
    }
    request_ = usual;
    return served;
  }

  /// Rungs 2 and 3.
  bool take_from_others() {
    domain_ref const taker = request_.taker;
    // While a stream is captured its frees cannot be marked, and others' must not wait for it.
    if (!others_have_free(space(), taker) || !is_captured()) {
      collect_finished(space(), heap_.order, hot_, taker);
      if (take()) return true;
      steal(space(), heap_.order, hot_, taker);
      if (take()) return true;
    }
    // Neutral ranges and the stream's own may be neighbours: coalesced, one may fit.
    if (taker != neutral) space().join_neutral(taker);
    return take();
  }

  /// Rung 5: everything that is free after the host has waited.
  bool take_what_is_waited_for(bool has_flushed) {
    {
      unlocked const open(hot_);
      if (!has_flushed) front_.flush_all();
      end_quarantine(heap_);
      waiting_.release(true);
    }
    if (!is_captured()) finish_all(space(), heap_.order, hot_, request_.taker);
    // Searches every free range, which is O(ranges of the request's size).
    space().make_room();
    space().search_limit = ~std::size_t{0};
    bool const found = heap_.take(hot_.held(), request_.taker, wanted_, batch_);
    space().search_limit = range_index::search_limit;
    return found;
  }
  /// Rung 5: a view of free handles, without creating any.
  bool put_together() {
    request_.may_create = 0;
    request_.may_exceed = false;
    if (!request_.may_remap)
      return false;  // without remapping, a growth calls the driver: only after handles were given back
    for (bool const extend : {true, false}) {
      request_.extend = extend;
      if (grow()) return true;
    }
    return false;
  }

  /// Returns whether the taker's stream is capturing a graph now: then nothing may be recorded on it or waited for on its
  /// behalf. Asked again before each rung that needs it, since a user's thread may begin a capture in between.
  [[nodiscard]] bool is_captured() {
    if (request_.taker == neutral) return false;
    if (is_capture_stream(space().streams[request_.taker].id)) return true;
    stream_ref const stream = space().streams[request_.taker].stream;
    unlocked const open(hot_);
    return heap_.order.is_capturing(stream);
  }

  /// Finds out how much can still be created.
  void renew_left() {
    std::size_t left = 0;
    {
      unlocked const open(hot_);
      left = memory_left(layer_of(heap_.upstream())).bytes;
    }
    heap_.left.renew(left, heap_.counters.reserved);
  }
  /// What can still be created, as known now.
  [[nodiscard]] std::size_t left() const noexcept { return heap_.left.bytes(heap_.counters.reserved); }

  using layer_below = std::remove_reference_t<decltype(layer_of(std::declval<Heap&>().upstream()))>;
  /// Whether the upstream only bounds what its source has: what it refuses, a second call does not get.
  static constexpr bool is_bounded_source = only_bounds<layer_below>();

  /// Refuses a request above a limit below the pool: more than the pool holds and the limit has left. The other steps would only search
  /// and wait. What the device reports as free is no such bound: where it shares the host's memory, it can provide more. Makes no
  /// driver call.
  /// @throws out_of_memory, nothing has changed
  void refuse_above_limit() {
    if constexpr (page_source<source_type> && is_bounded_source) {
      memory_bound const bound = limits_left(layer_of(heap_.upstream()));
      if (bound.bytes >= request_.bytes || heap_.counters.reserved >= request_.bytes - bound.bytes) return;
      memory_report refused;
      refused.refused_by = bound.by;
      refused.limit = bound.limit;
      refused.limit_used = bound.limit_used;
      throw out_of_memory(report(refused));
    }
  }
  [[nodiscard]] bool is_above_what_is_left() const noexcept {
    return left() < request_.bytes && heap_.counters.reserved < request_.bytes - left();
  }
  /// Whether another growth would be refused again, after free memory was put together and none was given back: the source did not
  /// have even one handle of the smallest size, and the host has not waited since.
  [[nodiscard]] bool is_final(refusal const& last) const noexcept {
    return is_bounded_source && heap_.uses_pages() && last.took_nothing(heap_) &&
           last.why.asked <= usual_granule && last.waits == heap_.order.host_waits();
  }

  /// Sets how much may be created before free handles are remapped: slightly more than the peak of live memory so far.
  void set_budget() noexcept {
    pooled const& options = heap_.options;
    std::size_t const live = max_of(space().live_peak, space().live_bytes + request_.bytes);
    std::size_t const reserved = heap_.counters.reserved;
    if (options.largest_handle != 0) {
      request_.largest_handle = max_of(align_down(options.largest_handle, usual_granule), usual_granule);
    } else if (may_remap(options) && needs_finest_handles(live, reserved, request_.bytes)) {
      request_.largest_handle = usual_granule;
    } else {
      request_.largest_handle = min_of(handle_limit(live), handle_limit_near_full(left()));
    }
    request_.least_growth =
        request_.where == zone::large ? min_of(shared_handle(live), request_.largest_handle) : usual_granule;
    request_.may_remap = may_remap(options);
    if (!request_.may_remap) {
      if (options.handles == handles_per_block::one) {
        request_.largest_handle = max_request_bytes;
      } else {
        // The remainder of a growth absorbs small differences between passes over the same work.
        request_.least_growth = max_of(request_.least_growth, align_up(live / 128, usual_granule));
      }
      request_.may_create = max_request_bytes;
      return;
    }
    std::size_t const remaps = heap_.counters.remaps / (1 + space().window.volume() / 1_GiB);
    std::size_t const target = live + live / 1000 * slack_of(request_.bytes, options.slack_per_mille, remaps);
    request_.may_create = min_of(target > reserved ? target - reserved : 0, left());
  }

  /// Reports the device's memory as it is now: what the attempt had taken has been given back. Only for memory of the device. A
  /// refusal that took nothing has reported it.
  void query_device(refusal& last) {
    memory_report& refused = last.why;
    if (!last.by_source) refused.refused_by = "the pool";
    if (refused.limit != memory_report::unknown || is_host_memory<source_type>) return;
    if (last.took_nothing(heap_) && refused.device_total != memory_report::unknown) return;
    unlocked const open(hot_);
    std::size_t free = 0;
    std::size_t total = 0;
    if (!heap_.driver().memory_info(free, total).ok()) return;
    refused.device_free = free;
    refused.device_total = total;
    if (!last.by_source && request_.asked > total) refused.refused_by = name_of_memory(heap_.driver());
  }
  [[nodiscard]] memory_report report(memory_report const& refused) {
    memory_report r = refused;
    std::size_t const reserved = heap_.counters.reserved;
    r.asked = request_.asked;
    r.alignment = request_.asked_alignment;
    r.device = heap_.driver().device().value;
    r.stream = space().streams[request_.taker].id;
    r.live = space().live_bytes;
    r.reserved = reserved;
    r.cached = reserved > space().live_bytes ? reserved - space().live_bytes : 0;
    r.largest_free_range = space().largest_free();
    if (r.limit_used != memory_report::unknown) {  // as it is now, without what the attempt had taken
      std::size_t used = 0;
      find_limit(layer_of(heap_.upstream()), r.limit, used);
      r.limit_used = used;
    }
    return r;
  }

  Heap& heap_;
  Front& front_;
  Waiting& waiting_;
  may_release hot_;
  block_request const& wanted_;
  block_batch& batch_;
  growth_request request_;
};

}  // namespace tarn::detail
// ---- tarn/pool/other_pools.hpp
// The pools of the process by device. A pool that the device refuses asks the other pools there to give back what they cache,
// before its allocation, that of one of its graph memories, or its wake() fails. It holds no lock of its own meanwhile, and takes the growth lock of another pool only if that is
// free, so no order of pools can deadlock. The pool that was made last is asked first: a pool over another one is made later, and
// what it gives back the lower one can give to the device.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>
#include <type_traits>
#include <utility>

// ---- tarn/core/static_mutex.hpp
// static_mutex: the mutex of a list that a module never destroys, and that fork() must find unlocked.

#include <mutex>
#include <new>

namespace tarn::detail {

/// Every object that locks it has a `user`. While there is none, fork() does not know the mutex: the module may have been unloaded,
/// and the mutex with it.
class static_mutex {
 public:
  static_mutex() noexcept = default;
  static_mutex(static_mutex const&) = delete;
  static_mutex& operator=(static_mutex const&) = delete;

  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

  /// Made before its object locks the mutex for the first time, and destroyed after the last time.
  class user {
   public:
    using child_function = void (*)(void* self) noexcept;

    /// @param in_child  called with `self` in a forked child, under the mutex; null: nothing is called
    explicit user(static_mutex& mutex, void* self = nullptr, child_function in_child = nullptr) noexcept
        : mutex_(mutex), self_(self), in_child_(in_child) {}

   private:
    static bool take(void* of) noexcept { return static_cast<user*>(of)->mutex_.take_for_fork(); }
    static void release(void* of, fork_side side) noexcept {
      auto& u = *static_cast<user*>(of);
      if (side != fork_side::parent && u.in_child_ != nullptr) u.in_child_(u.self_);
      u.mutex_.release_after_fork(side);
    }

    static_mutex& mutex_;
    void* self_;
    child_function in_child_;
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
    if (side == fork_side::child_without) {
      (void)::new (static_cast<void*>(&mutex_)) std::mutex;  // the owner does not exist in the child
    } else if (--taken_ == 0) {
      mutex_.unlock();
    }
  }

  std::mutex mutex_;
  unsigned taken_ = 0;  ///< by the forking thread; no other one changes it
};

}  // namespace tarn::detail

namespace tarn::detail {

/// Whether a pool that gives memory back may wait on the host for the streams that freed it.
enum class giving : std::uint8_t { what_is_idle, what_is_waited_for };

/// Whether a pool over this layer may give its memory to another pool.
template <class Layer>
constexpr bool may_stand_on_a_pool() noexcept {
  if constexpr (requires { requires Layer::hands_out_pieces; } || routes_calls<Layer>) {
    return true;
  } else if constexpr (stands_on_another<Layer>) {
    return may_stand_on_a_pool<
        std::remove_reference_t<decltype(layer_of(std::declval<Layer&>().upstream()))>>();
  } else {
    return false;
  }
}

/// The place of one pool in the list of all pools over `Driver`. Pools over other driver types do not see it.
template <class Driver>
class other_pools {
 public:
  using give_back_function = std::size_t (*)(void* pool, std::size_t bytes, giving how) noexcept;

  /// Where the memory goes that a pool gives back.
  enum class goes_to : std::uint8_t {
    nowhere,       ///< the pool is not in the list
    another_pool,  ///< which is asked later
    the_device
  };

  /// Makes `pool` known. `give_back` returns the bytes that it gave back, and does not wait for a lock.
  other_pools(Driver const& driver, void* pool, give_back_function give_back, goes_to to)
      : driver_(driver), pool_(pool), give_back_(give_back), to_(to), has_left_(to == goes_to::nowhere) {
    if (has_left_) return;
    std::lock_guard const guard(all_.mutex);
    next_ = all_.latest;
    all_.latest = this;
  }
  other_pools(other_pools const&) = delete;
  other_pools& operator=(other_pools const&) = delete;
  ~other_pools() { leave(); }

  /// Takes the pool out of the list, after the calls of other threads to its give_back have returned.
  void leave() noexcept {
    if (has_left_) return;
    for (unsigned tries = 0;; ++tries) {
      {
        std::lock_guard const guard(all_.mutex);
        if (calls_ == 0) {
          other_pools** at = &all_.latest;
          while (*at != this) at = &(*at)->next_;
          *at = next_;
          has_left_ = true;
          return;
        }
      }
      spin_wait(tries);
    }
  }

  /// Asks the other pools on the same device, the latest first, until the device has got `bytes`. Returns the bytes given back, also
  /// to pools below those that were asked. The caller holds no lock of a pool.
  std::size_t ask(std::size_t bytes, giving how) noexcept {
    list& all = all_;
    std::size_t given = 0;
    std::size_t to_device = 0;
    std::uint64_t process = all.processes;
    for (other_pools* asked = nullptr; to_device < bytes;) {
      {
        std::lock_guard const guard(all.mutex);
        other_pools* const last = asked;
        asked = last == nullptr ? all.latest : last->next_;
        while (asked != nullptr && (asked == this || !is_same_device(asked->driver_, driver_)))
          asked = asked->next_;
        if (last != nullptr && process == all.processes) --last->calls_;
        if (asked == nullptr) return given;
        ++asked->calls_;
        process = all.processes;
      }
      std::size_t const by_it = asked->give_back_(asked->pool_, bytes - to_device, how);
      given += by_it;
      if (asked->to_ == goes_to::the_device) to_device += by_it;
      if (to_device < bytes) continue;
      std::lock_guard const guard(all.mutex);
      if (process == all.processes) --asked->calls_;
    }
    return given;
  }

 private:
  struct list {
    static_mutex mutex;
    other_pools* latest = nullptr;
    /// More in each forked child, where the calls of other threads do not exist.
    std::uint64_t processes = 1;
  };
  /// Made by the first pool and never destroyed: threads may still use pools while the process exits.
  static list& all_pools() noexcept {
    alignas(list) static std::byte storage[sizeof(list)];
    static list& all = *::new (static_cast<void*>(storage)) list;
    return all;
  }
  static bool is_same_device(Driver const& a, Driver const& b) noexcept {
    if constexpr (std::equality_comparable<Driver>) {
      return a == b;
    } else {
      return a.device() == b.device();
    }
  }

  static void begin_in_child(void* self) noexcept {
    auto& pool = *static_cast<other_pools*>(self);
    ++pool.all_.processes;
    pool.calls_ = 0;
  }

  list& all_ = all_pools();  ///< of the constructing module; another one may destroy this
  static_mutex::user const user_{all_.mutex, this, &begin_in_child};
  Driver const& driver_;
  void* const pool_;
  give_back_function const give_back_;
  goes_to const to_;
  // Under the list's mutex:
  other_pools* next_ = nullptr;
  unsigned calls_ = 0;  ///< of give_back_, in progress
  bool has_left_;
};

}  // namespace tarn::detail
// ---- tarn/pool/pool_parts.hpp
// The parts of a pool, their handling of fork(), and their state for reports and tools. pool.hpp implements allocate() and
// deallocate() on them.
//
// Over 400 lines: each call that a pool has besides those two is here, and passes it on to the parts.

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string_view>
#include <utility>

// ---- tarn/core/waiting_block.hpp
// Counts freed blocks that a pool holds back until other streams have finished with them, and notifies observers of changes.

#include <cstddef>
#include <cstdint>
#include <mutex>

namespace tarn::detail {

struct waiting_amount {
  std::int64_t blocks = 0;
  std::int64_t bytes = 0;      ///< as rounded by the pool
  std::int64_t requested = 0;  ///< as requested by the caller

  void add(waiting_amount const& more) noexcept {
    blocks += more.blocks;
    bytes += more.bytes;
    requested += more.requested;
  }
};

/// Receives each change as the amounts added. May observe several pools.
class waiting_observer {
 public:
  virtual void waiting_changed(waiting_amount const& small, waiting_amount const& large) noexcept = 0;
  virtual ~waiting_observer() = default;
};

/// Counts blocks when they start and stop waiting. Thread-safe.
class waiting_count {
 public:
  waiting_count() noexcept = default;
  waiting_count(waiting_count const&) = delete;
  waiting_count& operator=(waiting_count const&) = delete;

  /// @param sign  1 if the block starts waiting, -1 if it stops
  void change(bool is_small, std::size_t bytes, std::size_t requested, std::int64_t sign) noexcept {
    waiting_amount const by{sign, sign * static_cast<std::int64_t>(bytes),
                            sign * static_cast<std::int64_t>(requested)};
    std::lock_guard const guard(lock_);
    (is_small ? small_ : large_).add(by);
    for (waiting_observer* const o : observers_)
      o->waiting_changed(is_small ? by : waiting_amount{}, is_small ? waiting_amount{} : by);
  }

  /// Adds changes that were counted elsewhere.
  void add(waiting_amount const& small, waiting_amount const& large) noexcept {
    std::lock_guard const guard(lock_);
    small_.add(small);
    large_.add(large);
    for (waiting_observer* const o : observers_) o->waiting_changed(small, large);
  }

  /// Adds an observer and notifies it of the blocks that already wait. It must not move until it is detached.
  /// @throws std::bad_alloc, nothing has changed
  void attach(waiting_observer& observer) {
    std::lock_guard const guard(lock_);
    observers_.push_back(&observer);
    if (small_.blocks != 0 || large_.blocks != 0) observer.waiting_changed(small_, large_);
  }
  void detach(waiting_observer& observer) noexcept {
    std::lock_guard const guard(lock_);
    for (std::size_t i = 0; i < observers_.size(); ++i) {
      if (observers_[i] == &observer) return observers_.erase_unordered(i);
    }
  }

  [[nodiscard]] waiting_amount now() const noexcept {
    std::lock_guard const guard(lock_);
    return {small_.blocks + large_.blocks, small_.bytes + large_.bytes, small_.requested + large_.requested};
  }

 private:
  mutable fork_mutex lock_;
  waiting_amount small_, large_;
  sequence<waiting_observer*> observers_;
};

}  // namespace tarn::detail
// ---- tarn/pool/graph/graph_memories.hpp
// The memory of captured graphs. A graph holds addresses: what is allocated inside a capture must not serve anything else until no
// graph uses it any more. Each graph_memory therefore owns a part, which is a pool of its own over the same source.
//
//   a capture_scope opens       its stream has no cache on any thread from now on, so that all its calls take the slow path; so do
//                               all calls of the thread, which ask whether their stream is captured: it may have joined the capture
//   allocate, captured stream   from the part, under an identity that the capture gives the stream
//   deallocate there            to the part under the same identity: reused inside the capture in the order of the stream
//     of a block of the pool    kept by the part: the graph uses it
//   deallocate elsewhere        to the part, in the order of that stream
//   allocate for an owner       from its part, outside a capture in the order of the stream: see graph_memory::allocate()
//   the scope ends              what captured streams freed is free for the owner's next capture
//   the owner ends              when the device has completed all work submitted before and no block is live, the part's memory
//                               goes back to the source and the kept blocks to the pool
//
// Other threads and streams pay nothing. A live block of a part is noted by its address, so that deallocation finds it with one
// load more while there is one.
//
// Over 400 lines: what calls, owners and pins do with the parts, whose list has one mutex.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>

// ---- tarn/pool/graph/capture_cache.hpp
// What the thread that opened a capture_scope remembers of the blocks that its stream uses inside the capture, so that the calls on
// that stream take no lock of the graph memories.
//
// A block of a graph memory is noted by its address while it is live (graph_blocks.hpp). Blocks of this cache stay noted when the
// capture frees them into the part, and are forgotten together when the scope ends. If anything else takes one of them meanwhile,
// as another thread does that frees it, graph_blocks counts a change, and the cache starts anew.

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tarn::detail {

/// The blocks of one capture by address, live or freed: a hash table with linear probing, at most half full. Used by the thread that
/// opened the scope, and by the one that ends it; `changes` by any, under the mutex of graph_blocks.
class capture_cache {
 public:
  std::atomic<std::uint64_t> changes{0};

  /// The captured stream, and the identity under which the part keeps what it frees. 0: the cache is not in use.
  stream_id stream = stream_ref::unknown_id;
  stream_id kept_as = 0;

  /// Whether a block was taken away from the cache: what it remembers is void until clear().
  [[nodiscard]] bool is_old() const noexcept { return changes.load(std::memory_order_acquire) != seen_; }

  /// Marks a block as live. Returns false if it is not in the cache.
  [[nodiscard]] bool take(void const* p) noexcept {
    std::uintptr_t* const at = find(p);
    if (at == nullptr) return false;
    *at |= is_live;
    return true;
  }
  /// Marks a block as free. Returns false if it is not in the cache as a live one.
  [[nodiscard]] bool give(void const* p) noexcept {
    std::uintptr_t* const at = find(p);
    if (at == nullptr || (*at & is_live) == 0) return false;
    *at &= ~is_live;
    return true;
  }
  /// Adds a live block that is not there. Returns false if there is no room.
  [[nodiscard]] bool has_room() const noexcept { return count_ < most; }
  void add(void const* p) noexcept {
    std::size_t i = first_place(p);
    while (index_[i] != 0) i = (i + 1) % places;
    blocks_[count_++] = reinterpret_cast<std::uintptr_t>(p) | is_live;
    index_[i] = static_cast<std::uint16_t>(count_);
  }
  /// Empties the cache. Calls f(free blocks, count), which forgets those that were freed.
  template <class F>
  void clear(F const& f) noexcept {
    if (count_ != 0) {
      void* free[most];
      std::size_t count = 0;
      for (std::size_t i = 0; i < count_; ++i) {
        if ((blocks_[i] & is_live) == 0)
          free[count++] = reinterpret_cast<void*>(blocks_[i]);  // NOLINT: an address
      }
      for (std::uint16_t& place : index_) place = 0;
      count_ = 0;
      if (count != 0) f(static_cast<void* const*>(free), count);
    }
    seen_ = changes.load(std::memory_order_acquire);
  }

 private:
  static constexpr std::uintptr_t is_live = 1;  ///< blocks are aligned to more
  static constexpr std::size_t places = 1024;
  static constexpr std::size_t most = places / 2;

  [[nodiscard]] static std::size_t first_place(void const* p) noexcept {
    return static_cast<std::size_t>(
        (std::uint64_t{reinterpret_cast<std::uintptr_t>(p)} * 0x9E3779B97F4A7C15U) >> 54);
  }
  [[nodiscard]] std::uintptr_t* find(void const* p) noexcept {
    std::size_t i = first_place(p);
    for (; index_[i] != 0; i = (i + 1) % places) {
      std::uintptr_t& block = blocks_[index_[i] - 1];
      if ((block & ~is_live) == reinterpret_cast<std::uintptr_t>(p)) return &block;
    }
    return nullptr;
  }

  std::uint64_t seen_ = 0;
  std::size_t count_ = 0;
  std::uint16_t index_[places] = {};  ///< 1 + the position in blocks_, 0 where there is none
  std::uintptr_t blocks_[most];
};

}  // namespace tarn::detail
// ---- tarn/pool/graph/graph_blocks.hpp
// The live blocks of graph memories by address, so that a deallocation in the pool finds the part that a block belongs to. Blocks
// of the pool that record_stream() named for a captured stream are here, too, and blocks that a capture_cache keeps noted while
// they are free (capture_cache.hpp).

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>

// ---- tarn/pool/graph/graph_part.hpp
// The part of a pool that one graph_memory owns: a pool of its own over the same source, the blocks of the pool that its captures
// freed, and the event after which nothing uses either.

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tarn {

template <memory_source Upstream>
class pool;

namespace detail {

/// Counts the waiting blocks of a part as the pool's.
template <class Waiting>
class forward_waiting final : public waiting_observer {
 public:
  explicit forward_waiting(Waiting& to) noexcept : to_(to) {}
  /// Takes back what is left: a part may end while a block waits that can never be waited for.
  ~forward_waiting() override {
    to_.count_of_part({-small_.blocks, -small_.bytes, -small_.requested},
                      {-large_.blocks, -large_.bytes, -large_.requested});
  }
  forward_waiting(forward_waiting const&) = delete;
  forward_waiting& operator=(forward_waiting const&) = delete;
  void waiting_changed(waiting_amount const& small, waiting_amount const& large) noexcept override {
    small_.add(small);
    large_.add(large);
    to_.count_of_part(small, large);
  }

 private:
  Waiting& to_;
  waiting_amount small_, large_;
};

/// Finds out when the device has completed the work that was submitted before the owner ended, without waiting for it.
template <stream_driver Driver>
class end_mark {
 public:
  explicit end_mark(Driver const& driver) noexcept : driver_(driver) {}
  end_mark(end_mark const&) = delete;
  end_mark& operator=(end_mark const&) = delete;
  ~end_mark() {
    if (event_ != nullptr) (void)driver_.destroy_event(event_);
  }

  /// Returns true once that work is complete. `wait` makes the host wait for it. Without a driver that marks the work of the whole
  /// device, and while a capture is open, later work may be waited for, too.
  bool is_complete(bool const wait) noexcept {
    if (is_complete_) return true;
    if constexpr (marks_all_work<Driver>) {
      if (!is_marked_) {
        status s = event_ != nullptr ? status{} : driver_.create_event(event_);
        if (s.ok()) s = record_all_work(driver_, event_);
        waits_for_capture_ = is_of_capture(s);
        if (s.kind == failure::unloading || s.kind == failure::unsupported)
          return is_complete_ = host_waits();
        is_marked_ = s.ok();
      }
      if (!is_marked_) return false;
      status s = driver_.query_event(event_);
      if (!s.ok() && wait) s = driver_.synchronize_event(event_);
      return is_complete_ = s.ok() || s.kind == failure::unloading;
    } else {
      return is_complete_ = host_waits();
    }
  }

  /// Whether a capture prevented the last call of is_complete() from finding out.
  [[nodiscard]] bool waits_for_capture() const noexcept { return !is_complete_ && waits_for_capture_; }

  /// Something uses the memory that was submitted after the mark.
  void renew() noexcept { is_marked_ = is_complete_ = false; }

  /// In a forked child that must not use the driver.
  void abandon() noexcept {
    event_ = nullptr;
    is_complete_ = true;
  }

 private:
  bool host_waits() noexcept {
    status const s = wait_for_all_work(driver_);
    waits_for_capture_ = is_of_capture(s);
    return s.ok() || s.kind == failure::unloading;
  }

  Driver const& driver_;
  event_handle event_ = nullptr;
  bool is_marked_ = false;
  bool is_complete_ = false;
  bool waits_for_capture_ = false;
};

/// The owners whose graphs use a block, each with a reference to its part.
template <class Part>
class graph_users {
 public:
  [[nodiscard]] bool empty() const noexcept { return count_ == 0; }
  /// Whether there were more than it has room for: such a block is kept until the pool ends.
  [[nodiscard]] bool is_too_many() const noexcept { return is_too_many_; }
  void add(Part& user) noexcept {
    for (std::size_t i = 0; i < count_; ++i) {
      if (all_[i] == &user) return;
    }
    if (count_ == most) {
      is_too_many_ = true;
      return;
    }
    all_[count_++] = &user;
    ++user.references;
  }
  /// Removes one; the caller takes over its reference.
  [[nodiscard]] Part& take() noexcept { return *all_[--count_]; }
  void clear() noexcept {
    while (!empty()) --take().references;
  }

 private:
  static constexpr std::size_t most = 4;
  Part* all_[most] = {};
  std::size_t count_ = 0;
  bool is_too_many_ = false;
};

/// A block that a capture freed although it is not the owner's own: work of the graph uses it.
template <class Part>
struct kept_block {
  void* p = nullptr;
  std::size_t bytes = 0;
  std::size_t alignment = 0;
  Part* from = nullptr;     ///< whose block it is; null: the pool's
  graph_users<Part> users;  ///< that keep it afterwards
};

/// One owner's memory.
template <class Upstream, class Waiting>
struct graph_part {
  template <class Heap>
  graph_part(Heap& heap, Waiting& waiting, std::uint64_t segment_pool)
      : observer(waiting),
        memory(heap.upstream(), told(heap.options), heap.cold),
        number(segment_pool),
        end(heap.driver()) {}

  forward_waiting<Waiting> observer;
  pool<Upstream> memory;
  std::uint64_t const number;  ///< counted from 1, as PyTorch's segment_pool_id
  capture_cache cache;         ///< of the open scope that got it first
  sequence<kept_block<graph_part>> kept;
  std::size_t kept_bytes = 0;
  /// Open captures, live blocks, calls in progress, and blocks that other parts keep: while there is one, the part stays.
  std::atomic<std::size_t> references{0};
  bool is_over = false;      ///< its graph_memory was destroyed
  bool is_mark_old = false;  ///< a block was kept after the mark
  end_mark<typename Upstream::driver_type> end;

 private:
  static pooled told(pooled options) noexcept {
    options.captures = capture_watch::in_scopes;
    return options;
  }
};

}  // namespace detail
}  // namespace tarn
// ---- tarn/pool/order/noted_blocks.hpp
// A hash table from address to noted block, with a filter that any thread reads without the lock. Freeing a block that is not
// in the table costs two loads.

#include <atomic>
#include <cstddef>
#include <cstdint>

// ---- tarn/pool/order/slots.hpp
// An array of numbered slots that never move and are reused.

#include <cstddef>
#include <cstdint>

namespace tarn::detail {

/// The number of a slot; 0 is none.
using slot_number = std::uint32_t;

/// Grows by chunks, so that an element keeps its address and growth copies none. `T` has a member `next`, which links the free
/// slots.
template <class T>
class slots {
 public:
  /// Ensures that one more slot can be taken without allocating. @throws std::bad_alloc, nothing has changed
  void make_room() {
    if (free_ != 0 || used_ < chunks_.size() * chunk_slots) return;
    chunks_.reserve(chunks_.size() + 1);
    chunks_.push_back(owned(new chunk));
  }
  /// Takes a slot that holds T{}. Requires make_room().
  [[nodiscard]] slot_number take() noexcept {
    if (free_ == 0) return static_cast<slot_number>(++used_);
    slot_number const s = free_;
    free_ = (*this)[s].next;
    (*this)[s] = T{};
    return s;
  }
  /// Frees a slot; it holds T{} except for `next`.
  void give(slot_number s) noexcept {
    (*this)[s] = T{};
    (*this)[s].next = free_;
    free_ = s;
  }

  [[nodiscard]] T& operator[](slot_number s) noexcept {
    return chunks_[(s - 1) / chunk_slots]->items[(s - 1) % chunk_slots];
  }
  [[nodiscard]] T const& operator[](slot_number s) const noexcept {
    return chunks_[(s - 1) / chunk_slots]->items[(s - 1) % chunk_slots];
  }
  /// Slots are numbered from 1 to this; some of them are free.
  [[nodiscard]] slot_number last() const noexcept { return static_cast<slot_number>(used_); }
  [[nodiscard]] std::size_t host_bytes() const noexcept {
    return chunks_.size() * sizeof(chunk) + chunks_.capacity() * sizeof(void*);
  }

 private:
  static constexpr std::size_t chunk_slots = 64;
  struct chunk {
    T items[chunk_slots];
  };

  sequence<owned<chunk>> chunks_;
  std::size_t used_ = 0;
  slot_number free_ = 0;
};

}  // namespace tarn::detail

namespace tarn::detail {

/// `Block` has the members `p`, its key, and `next`, which links the blocks of a bucket. All functions but may_hold() are
/// called under the owner's lock.
template <class Block>
class noted_blocks {
 public:
  explicit noted_blocks(slots<Block>& blocks) noexcept : blocks_(blocks) {}

  /// Returns false if `p` is not in the table. May return true for a block that is not there: for one in 64 when the table is
  /// full. Needs no lock: a thread that frees a block has been ordered after the recording of its uses, so it reads the table
  /// that the block was added to, or a newer one, which contains the block, too.
  [[nodiscard]] TARN_ALWAYS_INLINE bool may_hold(void const* p) const noexcept {
    table const* const t = current_.load(std::memory_order_acquire);
    if (t == nullptr) return false;
    std::uint64_t const h = hash(p);
    return (t->buckets[h >> t->shift].marks.load(std::memory_order_relaxed) & mark_of(h, *t)) != 0;
  }

  /// Makes room to add one more block. Amortised O(1). @throws std::bad_alloc, nothing has changed
  void make_room() {
    std::size_t const buckets = tables_.empty() ? 0 : tables_.back()->count;
    if (size_ < buckets) return;
    tables_.reserve(tables_.size() + 1);
    owned<table> larger(new table(buckets == 0 ? first_buckets : buckets * 2));
    for (std::size_t i = 0; i < buckets; ++i) {
      for (slot_number b = tables_.back()->buckets[i].first; b != 0;) {
        slot_number const next = blocks_[b].next;
        link(*larger, b);
        b = next;
      }
    }
    tables_.push_back(static_cast<owned<table>&&>(larger));
    current_.store(tables_.back().get(), std::memory_order_release);
  }
  /// Adds a block that is not there. Requires make_room().
  void insert(slot_number b) noexcept {
    link(*tables_.back(), b);
    ++size_;
  }
  [[nodiscard]] slot_number find(void const* p) const noexcept {
    if (size_ == 0) return 0;
    std::uint64_t const h = hash(p);
    slot_number b = tables_.back()->buckets[h >> tables_.back()->shift].first;
    while (b != 0 && blocks_[b].p != p) b = blocks_[b].next;
    return b;
  }
  /// Removes a block and returns it; 0 if it is not there.
  slot_number take(void const* p) noexcept {
    if (size_ == 0) return 0;
    table& t = *tables_.back();
    bucket& in = t.buckets[hash(p) >> t.shift];
    slot_number* at = &in.first;
    while (*at != 0 && blocks_[*at].p != p) at = &blocks_[*at].next;
    slot_number const taken = *at;
    if (taken == 0) return 0;
    *at = blocks_[taken].next;
    blocks_[taken].next = 0;
    --size_;
    std::uint64_t marks = 0;
    for (slot_number b = in.first; b != 0; b = blocks_[b].next) marks |= mark_of(hash(blocks_[b].p), t);
    in.marks.store(marks, std::memory_order_relaxed);
    return taken;
  }

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::size_t host_bytes() const noexcept {
    std::size_t sum = 0;
    for (auto const& t : tables_) sum += sizeof(table) + t->count * sizeof(bucket);
    return sum;
  }

 private:
  struct bucket {
    std::atomic<std::uint64_t> marks{0};  ///< one bit per block of the bucket
    slot_number first = 0;
  };
  struct table {
    explicit table(std::size_t buckets_wanted) : count(buckets_wanted), buckets(new bucket[buckets_wanted]) {
      for (std::size_t c = count; c != 1; c /= 2) --shift;
    }
    table(table const&) = delete;
    table& operator=(table const&) = delete;
    ~table() { delete[] buckets; }

    std::size_t count;
    unsigned shift = 64;  ///< 64 minus log2 of the count
    bucket* buckets;
  };
  static constexpr std::size_t first_buckets = 64;

  /// As in address_map: the upper bits of a product with 2^64 over the golden ratio.
  [[nodiscard]] static std::uint64_t hash(void const* p) noexcept {
    return std::uint64_t{reinterpret_cast<std::uintptr_t>(p)} * 0x9E3779B97F4A7C15U;
  }
  /// The six bits of the hash after those of the bucket.
  [[nodiscard]] static std::uint64_t mark_of(std::uint64_t h, table const& t) noexcept {
    return std::uint64_t{1} << ((h >> (t.shift - 6)) & 63);
  }
  void link(table& t, slot_number b) noexcept {
    std::uint64_t const h = hash(blocks_[b].p);
    bucket& in = t.buckets[h >> t.shift];
    blocks_[b].next = in.first;
    in.first = b;
    in.marks.store(in.marks.load(std::memory_order_relaxed) | mark_of(h, t), std::memory_order_relaxed);
  }

  slots<Block>& blocks_;
  std::size_t size_ = 0;
  std::atomic<table const*> current_{nullptr};
  sequence<owned<table>> tables_;  ///< the last one is current; a thread may still be reading an earlier one
};

}  // namespace tarn::detail

namespace tarn::detail {

/// Who keeps a block noted: while it is live, or also while the cache of a capture has it.
enum class note_of : std::uint8_t { live_block, capture_cache };

/// A noted block holds a reference to its part. Thread-safe; all calls are O(1) amortised.
template <class Part>
class graph_blocks {
 public:
  /// Returns false if `p` is no noted block. Takes no lock.
  [[nodiscard]] TARN_ALWAYS_INLINE bool may_hold(void const* p) const noexcept { return noted_.may_hold(p); }

  /// Notes a block that was handed out. Returns false if it was noted before: a capture_cache had kept it so, and gives it up.
  /// @param keeps  of a capture that keeps the block noted when it is freed
  /// @throws std::bad_alloc, nothing has changed
  bool note(void* p, Part& owner, note_of keeps) {
    std::lock_guard const guard(mutex_);
    blocks_.make_room();
    noted_.make_room();
    slot_number b = noted_.find(p);
    bool const is_new = b == 0;
    if (is_new) {
      b = blocks_.take();
      blocks_[b].p = p;
      blocks_[b].of.owner = &owner;
      noted_.insert(b);
      ++owner.references;
    } else {
      ++owner.cache.changes;
    }
    blocks_[b].is_cached = keeps == note_of::capture_cache;
    return is_new;
  }
  /// Forgets the blocks that a capture_cache kept noted, except those that it has given up meanwhile. Returns how many.
  std::size_t forget(void* const* free, std::size_t count, Part& owner) noexcept {
    std::lock_guard const guard(mutex_);
    std::size_t forgotten = 0;
    for (std::size_t i = 0; i < count; ++i) {
      slot_number const b = noted_.find(free[i]);
      if (b == 0 || !blocks_[b].is_cached) continue;
      (void)noted_.take(free[i]);
      blocks_.give(b);
      ++forgotten;
    }
    owner.references -= forgotten;
    return forgotten;
  }
  /// Records that graphs of `user` use a block, of a part or of the pool. Returns true if the block was not noted before.
  /// @throws std::bad_alloc, nothing has changed
  bool note_use(void* p, Part& user) {
    std::lock_guard const guard(mutex_);
    slot_number b = noted_.find(p);
    bool const is_new = b == 0;
    if (is_new) {
      blocks_.make_room();
      noted_.make_room();
      b = blocks_.take();
      blocks_[b].p = p;
      noted_.insert(b);
    }
    if (blocks_[b].of.owner != &user) {
      blocks_[b].of.users.add(user);
      give_up(b);
    }
    return is_new;
  }
  /// The parts of a block: whose it is, and whose graphs use it.
  struct noted {
    Part* owner = nullptr;  ///< null: the pool's
    graph_users<Part> users;
    [[nodiscard]] bool is_there() const noexcept { return owner != nullptr || !users.empty(); }
  };
  /// Forgets a block and returns its parts, with the block's references; empty if it is not noted.
  noted take(void* p) noexcept {
    std::lock_guard const guard(mutex_);
    slot_number const b = noted_.take(p);
    if (b == 0) return {};
    noted const of = blocks_[b].of;
    give_up(b);
    blocks_.give(b);
    return of;
  }
  /// The part that a block belongs to, with one reference more; null if it belongs to none.
  Part* owner_of(void const* p) noexcept {
    std::lock_guard const guard(mutex_);
    slot_number const b = noted_.find(p);
    if (b == 0 || blocks_[b].of.owner == nullptr) return nullptr;
    ++blocks_[b].of.owner->references;
    return blocks_[b].of.owner;
  }
  [[nodiscard]] std::size_t host_bytes() const noexcept {
    std::lock_guard const guard(mutex_);
    return noted_.host_bytes() + blocks_.host_bytes();
  }

 private:
  struct block {
    void* p = nullptr;
    slot_number next = 0;
    noted of;
    bool is_cached = false;  ///< a capture_cache counts on finding it noted
  };

  /// Makes the capture_cache that counts on a block start anew.
  void give_up(slot_number b) noexcept {
    if (std::exchange(blocks_[b].is_cached, false)) ++blocks_[b].of.owner->cache.changes;
  }
  mutable fork_mutex mutex_;
  slots<block> blocks_;
  noted_blocks<block> noted_{blocks_};
};

}  // namespace tarn::detail
// ---- tarn/pool/graph/graph_captures.hpp
// The captures that capture_scopes have opened in a pool, with the streams of each.

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>

namespace tarn::detail {

/// Scopes and streams are added and removed under the growth lock. A scope holds a reference to its owner's part.
template <class Part, class Heap, class Front>
class graph_captures {
 public:
  using capture = captured_stream<Part>;

  graph_captures(Heap& heap, Front& front) noexcept : heap_(heap), front_(front) {
    if (always()) front_.watch_all();
  }
  graph_captures(graph_captures const&) = delete;
  graph_captures& operator=(graph_captures const&) = delete;

  /// Whether a call that is not warm must look for a capture.
  [[nodiscard]] bool any() const noexcept { return heap_.captured.any() || always(); }

  /// The capture of an allocation; `kept_as` is 0 if its stream is not captured.
  /// @throws cuda_error  it is captured, and it is not known by which capture
  [[nodiscard]] capture of_allocation(stream_id id, stream_ref stream) {
    capture const at = known(id);
    return at.kept_as != 0 || !is_captured_unknown(stream) ? at : join(stream_ref::from(stream.handle(), id));
  }
  /// The capture of a deallocation. The stream may be destroyed: then the driver must not be asked about it.
  [[nodiscard]] capture of_deallocation(stream_id id, stream_ref stream) noexcept {
    if (id == neutral_id || !any()) return {};
    capture at = known(id);
    if (at.kept_as != 0 || !may_have_joined() || !denotes(stream, id)) return at;
    if (life_of(heap_.driver(), stream) != stream_life::alive || !is_captured_unknown(stream)) return at;
    at.kept_as = capture_stream_id(0);
    at.is_guess = true;
    std::lock_guard const guard(mutex_);
    if (scope const* const guessed = guess(); guessed != nullptr) at.owner = guessed->owner;
    return at;
  }

  /// The capture of a stream that record_stream() names; no owner if it is not captured.
  [[nodiscard]] capture of_use(stream_ref stream) noexcept {
    stream_id id = stream.id();
    if (id == stream_ref::unknown_id && !heap_.driver().identify(stream, id).ok()) return {};
    return of_deallocation(id, stream);
  }

  /// The owner of the calling thread's capture, if its cache serves the stream; null if not. Takes no lock.
  [[nodiscard]] Part* cached(stream_id id) const noexcept {
    auto* const owner = static_cast<Part*>(front_.capture());
    return owner != nullptr && owner->cache.stream == id && id != stream_ref::unknown_id ? owner : nullptr;
  }

  // ---- scopes; the caller holds the growth lock

  /// @throws cuda_error, std::bad_alloc: nothing has changed
  [[nodiscard]] capture_number begin(Part& owner, stream_ref stream) {
    scope& made = add_scope(owner);
    try {
      add_stream(stream, {0, made.number, &owner});
    } catch (...) {
      remove_scope(made.number);
      throw;
    }
    made.watched = front_.watch_this_thread();
    capture_cache& cache = owner.cache;
    if (cache.kept_as == 0 && front_.capture() == nullptr && front_.set_capture(&owner)) {
      cache.kept_as = known(stream.id()).kept_as;
      cache.stream = stream.id();
      made.has_cache = true;
    }
    capture_gate::begin_capture();
    return made.number;
  }
  /// Ends the use of the owner's cache. Returns false if this scope does not use it.
  bool end_cached(Part& owner, capture_number number) noexcept {
    for (scope& s : scopes_) {
      if (s.number != number || !std::exchange(s.has_cache, false)) continue;
      front_.end_capture(&owner);
      owner.cache.kept_as = 0;
      owner.cache.stream = stream_ref::unknown_id;
      return true;
    }
    return false;
  }
  /// Adds a stream, unless it is part of a capture. @throws cuda_error  too many streams
  void add(Part& owner, capture_number number, stream_ref stream) {
    if (!heap_.captured.has(stream.id())) add_stream(stream, {0, number, &owner});
  }
  void end(Part& owner, capture_number number) noexcept {
    for (stream_id kept_as = 0; (kept_as = take_stream(number)) != 0;) owner.memory.end_capture(kept_as);
    capture_gate::end_capture();
    captured_handles::end_capture();
    remove_scope(number);
  }

 private:
  struct scope {
    capture_number number = 0;
    Part* owner = nullptr;
    std::uint64_t thread = 0;   ///< number of the one that opened it
    std::uint64_t watched = 0;  ///< cache of that thread, 0 if none
    bool has_cache = false;     ///< the owner's capture_cache serves it
  };

  [[nodiscard]] bool always() const noexcept { return heap_.options.captures == capture_watch::always; }

  /// The capture that a stream is known to be part of; `kept_as` is 0 if none. Its scope keeps the owner's part.
  [[nodiscard]] capture known(stream_id id) const noexcept {
    if (id == stream_ref::unknown_id || !heap_.captured.has(id)) return {};
    std::lock_guard const guard(mutex_);
    std::size_t const place = heap_.captured.find(id);
    return place == captured_streams::most ? capture{} : streams_[place];
  }
  /// Whether a handle still denotes the stream with this identity. cudaStreamPerThread denotes another stream on each thread.
  [[nodiscard]] bool denotes(stream_ref stream, stream_id id) const noexcept {
    stream_id now = id;
    if (is_default_stream(stream) && id != stream_ref::unknown_id)
      (void)heap_.driver().identify(stream_ref::from(stream.handle()), now);
    return now == id;
  }
  /// Whether a stream of no known capture is captured. Asked only by threads that have opened a scope, or in
  /// capture_watch::always. The legacy default stream is never captured itself.
  [[nodiscard]] bool is_captured_unknown(stream_ref stream) const noexcept {
    bool const is_legacy = reinterpret_cast<std::uintptr_t>(stream.handle()) <= 1;
    return !is_legacy && may_have_joined() && is_capturing(heap_.driver(), stream);
  }
  [[nodiscard]] bool may_have_joined() const noexcept {
    auto const is_watched = front_.is_this_thread_watched();
    if (is_watched != Front::watched::unknown) return is_watched == Front::watched::yes;
    if (always()) return true;
    std::lock_guard const guard(mutex_);
    for (scope const& s : scopes_) {
      if (s.thread == this_thread_number()) return true;
    }
    return false;
  }
  /// Adds a stream to the capture that it must have joined. @throws cuda_error  it is not known which one
  [[nodiscard]] capture join(stream_ref stream) {
    std::lock_guard const cold(heap_.cold);
    capture of;
    {
      std::lock_guard const guard(mutex_);
      scope const* const guessed = guess();
      if (guessed == nullptr) refuse_unknown();
      of = {0, guessed->number, guessed->owner};
    }
    if (!heap_.captured.has(stream.id())) add_stream(stream, of);
    return known(stream.id());
  }
  /// The scope of the calling thread; null if it has none or several. Under the mutex.
  [[nodiscard]] scope const* guess() const noexcept {
    scope const* own = nullptr;
    for (scope const& s : scopes_) {
      if (s.thread != this_thread_number()) continue;
      if (own != nullptr) return nullptr;
      own = &s;
    }
    return own;
  }

  scope& add_scope(Part& owner) {
    std::lock_guard const guard(mutex_);
    scopes_.push_back(scope{last_capture_ + 1, &owner, this_thread_number()});
    ++last_capture_;
    ++owner.references;
    return scopes_.back();
  }
  void remove_scope(capture_number number) noexcept {
    std::lock_guard const guard(mutex_);
    for (std::size_t i = 0; i < scopes_.size(); ++i) {
      if (scopes_[i].number != number) continue;
      if (scopes_[i].watched != 0) front_.end_watch(scopes_[i].watched);
      --scopes_[i].owner->references;
      return scopes_.erase_unordered(i);
    }
  }
  /// Closes the caches of a stream. Under the growth lock.
  void add_stream(stream_ref stream, capture of) {
    stream_id const id = stream.id();
    std::size_t const place = heap_.captured.free_place();
    if (heap_.captured.has(id)) refuse("capture_scope (this stream is already part of an open one)");
    if (place == captured_streams::most) refuse("capture_scope (64 streams are captured already)");
    of.kept_as = capture_stream_id(++last_identity_);
    of.stream = id;
    of.owner->memory.open_capture(of.kept_as);
    captured_handles::add(stream);
    {
      std::lock_guard const guard(mutex_);
      streams_[place] = of;
      heap_.captured.set(place, id);
    }
    front_.drop_stream(id);
  }
  /// Removes one stream of a capture. Returns what its memory is kept as, 0 if none is left. Under the growth lock.
  stream_id take_stream(capture_number number) noexcept {
    for (std::size_t i = 0; i < captured_streams::most; ++i) {
      if (streams_[i].capture != number) continue;
      std::lock_guard const guard(mutex_);
      heap_.captured.clear(i);
      captured_handles::remove(streams_[i].stream);
      stream_id const kept_as = streams_[i].kept_as;
      streams_[i] = {};
      return kept_as;
    }
    return 0;
  }

  [[noreturn]] void refuse_unknown() const { refuse(captured_without_scope); }
  [[noreturn]] void refuse(char const* call) const {
    throw cuda_error(refused_for_capture(call), heap_.driver().device().value);
  }

  Heap& heap_;
  Front& front_;
  mutable fork_mutex mutex_;  ///< of what follows, for threads without the growth lock
  sequence<scope> scopes_;
  capture streams_[captured_streams::most];  ///< by their places in heap::captured
  capture_number last_capture_ = 0;
  std::uint64_t last_identity_ = 0;
};

}  // namespace tarn::detail
// ---- tarn/pool/pool_statistics.hpp
// Reads and resets the statistics of a pool. The caller holds the growth lock.

#include <cstddef>
#include <cstdint>
#include <mutex>

namespace tarn::detail {

inline void add_free_ranges(pool_state& s, arena const& space) {
  for (zone const where : {zone::small, zone::large}) {
    pool_part& part = where == zone::small ? s.small : s.large;
    for (domain_ref d = 0; d < space.streams.size(); ++d) {
      range_index const& index = space.streams[d].ranges(where);
      part.free_blocks += index.count();
      part.inactive_split_bytes += index.bytes();
    }
    s.free_blocks += part.free_blocks;
    s.inactive_split_bytes += part.inactive_split_bytes;
  }
  s.split = {space.splits.blocks[0], space.splits.bytes[0]};
  s.small.split = {space.splits.blocks[1], space.splits.bytes[1]};
  s.large.split = {space.splits.blocks[2], space.splits.bytes[2]};
}

inline void add_growth(pool_state& s, growth_counters const& c) noexcept {
  s.reserved = c.reserved;
  s.reserved_peak = c.reserved_peak;
  s.reserved_total = c.reserved_total;
  s.released_total = c.released_total;
  s.handles = c.creates - c.destroys;
  s.handles_peak = c.handles_peak;
  s.creates = c.creates;
  s.destroys = c.destroys;
  s.maps = c.maps;
  s.unmaps = c.unmaps;
  s.remaps = c.remaps;
  for (zone const where : {zone::small, zone::large}) {
    pool_part& part = where == zone::small ? s.small : s.large;
    part.reserved = c.reserved_in[static_cast<std::size_t>(where)];
    part.handles = c.handles_in[static_cast<std::size_t>(where)];
  }
}

/// Sets what is exact only for a pool and its graph memories together.
inline void set_sums(pool_state& s, growth_sums const& sums) noexcept {
  std::lock_guard const guard(sums.mutex);
  s.reserved = static_cast<std::size_t>(sums.reserved.current);
  s.reserved_peak = static_cast<std::size_t>(sums.reserved.peak);
  s.reserved_total = static_cast<std::uint64_t>(sums.reserved.allocated);
  s.released_total = static_cast<std::uint64_t>(sums.reserved.freed);
  s.handles = static_cast<std::uint64_t>(sums.handles.current);
  s.handles_peak = static_cast<std::uint64_t>(sums.handles.peak);
  s.creates = static_cast<std::uint64_t>(sums.handles.allocated);
  s.destroys = static_cast<std::uint64_t>(sums.handles.freed);
  for (zone const where : {zone::small, zone::large}) {
    pool_part& part = where == zone::small ? s.small : s.large;
    part.reserved = sums.reserved_in[static_cast<std::size_t>(where)];
    part.handles = sums.handles_in[static_cast<std::size_t>(where)];
  }
  s.cached = s.reserved > s.live ? s.reserved - s.live : 0;
}

/// Adds the counts of a graph memory that is destroyed, whose memory is no longer held.
inline void add_ended(pool_state& sum, pool_state const& ended) noexcept {
  sum.maps += ended.maps;
  sum.unmaps += ended.unmaps;
  sum.remaps += ended.remaps;
  sum.alloc_retries += ended.alloc_retries;
  sum.ooms += ended.ooms;
  sum.host_waits += ended.host_waits;
  sum.device_waits += ended.device_waits;
  auto const add_split = [](split_ranges& to, split_ranges const& from) {
    to.blocks.add(0, from.blocks.allocated);
    to.bytes.add(0, from.bytes.allocated);
  };
  add_split(sum.split, ended.split);
  add_split(sum.small.split, ended.small.split);
  add_split(sum.large.split, ended.large.split);
}

/// O(free ranges + threads).
template <class Heap, class Front, class Waiting>
[[nodiscard]] pool_state read_state(Heap& heap, Front const& front, Waiting const& waiting) {
  pool_state s;
  auto live = front.live();
  waiting_amount const awaiting = waiting.now();
  s.pending = awaiting.bytes > 0 ? static_cast<std::size_t>(awaiting.bytes) : 0;
  s.pending_blocks = awaiting.blocks > 0 ? static_cast<std::size_t>(awaiting.blocks) : 0;
  s.host_bytes = front.host_bytes() + waiting.host_bytes();
  add_growth(s, heap.counters);
  s.totals_reset = heap.totals_reset;
  hot_lock const held(heap.hot);
  arena& space = heap.space(held);
  live.bytes += heap.uncached_live_bytes;
  live.blocks += heap.uncached_live_blocks;
  s.live = live.bytes > 0 ? static_cast<std::size_t>(live.bytes) : 0;
  s.live_blocks = live.blocks > 0 ? static_cast<std::size_t>(live.blocks) : 0;
  s.cached = s.reserved > s.live ? s.reserved - s.live : 0;
  s.largest_free_range = space.largest_free();
  space.count_splits();  // includes the changes of a call that threw
  add_free_ranges(s, space);
  s.alloc_retries = heap.alloc_retries;
  s.ooms = heap.ooms;
  s.host_waits = heap.order.host_waits();
  s.device_waits = heap.order.device_waits();
  s.host_bytes += space.host_bytes() + heap.growth.host_bytes() + heap.counters.notes.host_bytes();
  return s;
}

template <class Heap>
void reset_peaks(Heap& heap) noexcept {
  growth_counters& c = heap.counters;
  heap.sums.reset_peaks();
  c.reserved_peak = c.reserved;
  c.handles_peak = c.creates - c.destroys;
  for (std::size_t z = 0; z < zone_count; ++z) {
    c.reserved_in[z].reset_peak();
    c.handles_in[z].reset_peak();
  }
  hot_lock const held(heap.hot);
  arena& space = heap.space(held);
  space.count_splits();
  for (stat& s : space.splits.blocks) s.reset_peak();
  for (stat& s : space.splits.bytes) s.reset_peak();
}

template <class Heap>
void reset_totals(Heap& heap) noexcept {
  growth_counters& c = heap.counters;
  pool_totals& reset = heap.totals_reset;
  {
    growth_sums& sums = heap.sums;
    std::lock_guard const guard(sums.mutex);
    reset.reserved = static_cast<std::uint64_t>(sums.reserved.allocated);
    reset.released = static_cast<std::uint64_t>(sums.reserved.freed);
    reset.creates = static_cast<std::uint64_t>(sums.handles.allocated);
    reset.destroys = static_cast<std::uint64_t>(sums.handles.freed);
    for (std::size_t z = 0; z < zone_count; ++z) {
      sums.reserved_in[z].reset_totals();
      sums.handles_in[z].reset_totals();
    }
  }
  reset.host_waits = heap.order.host_waits() + heap.ended.host_waits;
  for (std::size_t z = 0; z < zone_count; ++z) {
    c.reserved_in[z].reset_totals();
    c.handles_in[z].reset_totals();
  }
  hot_lock const held(heap.hot);
  arena& space = heap.space(held);
  reset.alloc_retries = heap.alloc_retries + heap.ended.alloc_retries;
  heap.ended.split = heap.ended.small.split = heap.ended.large.split = {};
  space.count_splits();
  for (stat& s : space.splits.blocks) s.reset_totals();
  for (stat& s : space.splits.bytes) s.reset_totals();
}

}  // namespace tarn::detail

namespace tarn::detail {

/// What a pool keeps of its graph memories. Parts are made and destroyed under the growth lock. Mutexes are never held across a call
/// of a pool or driver.
template <class Upstream, class Heap, class Front, class Waiting>
class graph_memories {
 public:
  using driver_type = typename Upstream::driver_type;
  using part = graph_part<Upstream, Waiting>;
  using capture = captured_stream<part>;

  graph_memories(Heap& heap, Front& front, Waiting& waiting) noexcept
      : heap_(heap), waiting_(waiting), captures_(heap, front) {}
  graph_memories(graph_memories const&) = delete;
  graph_memories& operator=(graph_memories const&) = delete;
  ~graph_memories() {
    if (!heap_.is_lost()) return;
    for (auto& p : parts_) p->end.abandon();
  }

  // ---- calls of the pool

  /// Whether a call that is not warm must look for a capture.
  [[nodiscard]] bool is_watching() const noexcept { return captures_.any(); }
  /// Returns false if `p` is no live block of a part. Takes no lock.
  [[nodiscard]] TARN_ALWAYS_INLINE bool may_hold(void const* p) const noexcept { return blocks_.may_hold(p); }

  /// Serves a request if its stream is captured; null if it is not. `Pool` is the pool itself.
  /// @throws out_of_memory; cuda_error: captured, and no scope says for which owner; std::bad_alloc: nothing has changed
  template <class Pool>
  [[nodiscard]] void* allocate(Pool& whole, stream_id id, stream_ref stream, std::size_t bytes,
                               std::size_t alignment) {
    if (part* const owner = captures_.cached(id); owner != nullptr) {
      capture_cache& cache = owner->cache;
      stream_ref const as = stream_ref::from(nullptr, cache.kept_as);
      void* const p = take(whole, *owner, as, id, bytes, alignment);
      if (cache.is_old()) clear(*owner);
      if (!cache.take(p)) note(p, *owner, as, bytes, alignment, &cache);
      return p;
    }
    capture const at = captures_.of_allocation(id, stream);
    if (at.kept_as == 0) return nullptr;
    stream_ref const as = stream_ref::from(nullptr, at.kept_as);
    void* const p = take(whole, *at.owner, as, id, bytes, alignment);
    note(p, *at.owner, as, bytes, alignment, nullptr);
    return p;
  }

  /// Serves a request from a part, whether its stream is captured or not; see graph_memory::allocate().
  /// @throws as allocate()
  template <class Pool>
  [[nodiscard]] void* allocate_from(Pool& whole, part& from, stream_id id, stream_ref stream,
                                    std::size_t bytes, std::size_t alignment) {
    capture const at = is_watching() ? captures_.of_allocation(id, stream) : capture{};
    stream_ref as = stream_ref::from(stream.handle(), id);
    // The part keeps no order of the streams of another owner's capture.
    if (at.kept_as != 0) as = stream_ref::from(nullptr, at.owner == &from ? at.kept_as : neutral_id);
    void* const p = take(whole, from, as, id, bytes, alignment);
    note(p, from, as, bytes, alignment, nullptr);
    return p;
  }

  /// Takes back a live block of a part. Returns false if `p` is none. `id` may be neutral_id, or unknown for a destroyed stream.
  bool deallocate(stream_id id, stream_ref stream, void* p, std::size_t bytes,
                  std::size_t alignment) noexcept {
    if (part* const owner = captures_.cached(id);
        owner != nullptr && !owner->cache.is_old() && owner->cache.give(p)) {
      owner->memory.deallocate(stream_ref::from(nullptr, owner->cache.kept_as), p, bytes, alignment);
      return true;
    }
    auto const of = blocks_.take(p);
    if (!of.is_there()) return false;
    waiting_.count_noted_elsewhere(false);
    part* const owner = of.owner;
    capture const at = captures_.of_deallocation(id, stream);
    bool const is_others = at.kept_as != 0 && (at.owner != owner || at.is_guess);
    if (is_others || !of.users.empty()) {
      kept_type kept{p, bytes, alignment, owner, of.users};  // with the block's reference to its owner
      keep(kept, is_others, at.owner);
      return true;
    }
    if (at.kept_as != 0) {
      owner->memory.deallocate(stream_ref::from(nullptr, at.kept_as), p, bytes, alignment);
    } else if (id == neutral_id) {
      owner->memory.deallocate_sync(p, bytes, alignment);
    } else {
      owner->memory.deallocate(stream_ref::from(stream.handle(), id), p, bytes, alignment);
    }
    --owner->references;
    return true;
  }

  /// Keeps a block of the pool that is freed on a captured stream. Returns false if the stream is not captured.
  bool keep_if_captured(stream_id id, stream_ref stream, void* p, std::size_t bytes,
                        std::size_t alignment) noexcept {
    capture const at = captures_.of_deallocation(id, stream);
    if (at.kept_as == 0) return false;
    kept_type kept{p, bytes, alignment, nullptr, {}};
    keep(kept, true, at.owner);
    return true;
  }

  /// Records a use of a part's block, or of any block by a captured stream. Returns false if it is neither.
  /// @throws std::bad_alloc, cuda_error: nothing has changed
  bool record_stream(void* p, std::size_t bytes, stream_ref stream) {
    if (is_watching()) {
      if (capture const at = captures_.of_use(stream); at.owner != nullptr) {
        if (blocks_.note_use(p, *at.owner)) waiting_.count_noted_elsewhere(true);
        if (!may_be_own(p)) return true;
      }
    }
    if (!may_hold(p)) return false;
    part* const owner = blocks_.owner_of(p);
    if (owner == nullptr) return false;
    call_in_progress const call(*owner);
    owner->memory.record_stream(p, bytes, stream);
    return true;
  }

  // ---- owners and captures; the caller holds the growth lock

  /// @throws what the pool's constructor throws, std::bad_alloc: nothing has changed
  [[nodiscard]] part& make_part() {
    owned<part> made(new part(heap_, waiting_, ++last_number_));
    made->memory.observe_waiting(made->observer);
    made->memory.mark_as_graph_memory(made->number, heap_.sums);
    if (heap_.counters.notes.is_open())
      made->memory.note_growth(heap_.counters.notes.most(), heap_.counters.notes.clock());
    std::lock_guard const guard(mutex_);
    parts_.push_back(std::move(made));
    return *parts_.back();
  }
  /// Waits for the graphs that the device still runs, and gives back what ended owners had. The pool ends: there is no owner left.
  /// Returns false if a capture prevents it.
  template <class Pool>
  [[nodiscard]] bool finish(Pool& whole) noexcept {
    for (auto& p : parts_) (void)p->end.is_complete(true);
    (void)reap(whole, true);
    for (auto& p : parts_) {
      if (p->end.waits_for_capture()) return false;
    }
    return true;
  }
  /// The pool ends while work may use what its ended owners had: none of it is given back.
  void keep_mapped() noexcept {
    for (auto& p : parts_) p->memory.keep_mapped();
  }
  /// Ends an owner. Its memory is given back now if the device has completed its work, else later.
  template <class Pool>
  void end_part(Pool& whole, part& of) noexcept {
    {
      std::lock_guard const guard(mutex_);
      of.is_over = true;
      ++over_count_;
    }
    if (!heap_.is_lost()) (void)reap(whole, false);
  }

  /// @throws cuda_error, std::bad_alloc: nothing has changed
  [[nodiscard]] capture_number begin_capture(part& owner, stream_ref stream) {
    owner.memory.prepare_for_capture();
    {
      std::lock_guard const guard(mutex_);
      owner.kept.reserve(owner.kept.size() + kept_at_least);
    }
    return captures_.begin(owner, stream);
  }
  void join_capture(part& owner, capture_number number, stream_ref stream) {
    captures_.add(owner, number, stream);
  }
  void end_capture(part& owner, capture_number number) noexcept {
    if (captures_.end_cached(owner, number)) clear(owner);
    captures_.end(owner, number);
  }

  /// Gives back what ended owners had, as far as nothing uses it. `wait` makes the host wait for graphs that still run. Returns
  /// true if anything was given back. The caller holds the growth lock.
  template <class Pool>
  bool reap(Pool& whole, bool const wait) noexcept {
    bool any = false;
    for (std::uint64_t last = 0; over_count_ != 0;) {
      part* const p = next_over(last);
      if (p == nullptr) break;
      last = p->number;
      {
        std::lock_guard const guard(mutex_);
        if (std::exchange(p->is_mark_old, false)) p->end.renew();
      }
      if (!p->end.is_complete(wait)) continue;
      // Before the part itself: blocks that two ended owners keep of each other, or one of its own, would hold them forever.
      bool const gave_kept = give_back_all_kept(whole, *p);
      // Its destructor must find nothing to wait for: a capture may open at any moment.
      bool const can_end =
          p->memory.can_end_now() || (!capture_gate::has_captures() && p->memory.finish_work());
      owned<part> const gone = can_end ? take_part(*p) : owned<part>();
      if (gave_kept || gone.get() != nullptr) {
        any = true;
        last = 0;  // an ended owner that was passed may have waited for a block that this one kept
      }
      if (gone.get() == nullptr) continue;
      pool_state const last_state = gone->memory.state();
      add_ended(heap_.ended, last_state);
      heap_.totals_reset.alloc_retries += last_state.totals_reset.alloc_retries;
      heap_.totals_reset.host_waits += last_state.totals_reset.host_waits;
      gone->memory.leave_whole();
    }
    return any;
  }
  /// Bytes that ended owners still hold. The caller holds the growth lock.
  [[nodiscard]] std::size_t reserved_by_ended() const {
    std::size_t sum = 0;
    if (over_count_ == 0) return sum;
    for (auto const& p : parts_) {
      if (p->is_over) sum += p->memory.state().reserved;
    }
    return sum;
  }
  /// Bytes that all graph memories hold. The caller holds the growth lock.
  [[nodiscard]] std::size_t reserved() const {
    std::size_t sum = 0;
    for (auto const& p : parts_) sum += p->memory.state().reserved;
    return sum;
  }
  [[nodiscard]] bool has_ended_parts() const noexcept { return over_count_ != 0; }

  // ---- reports

  [[nodiscard]] graph_state state_of(part& of) const {
    pool_state const s = of.memory.state();
    std::lock_guard const guard(mutex_);
    return {s.reserved, s.live > s.pending ? s.live - s.pending : 0, of.kept_bytes, of.number};
  }
  /// Calls f(pool) for each part under the growth lock, since reap() leaves alone what a call refers to.
  template <class F>
  void for_each_pool(F const& f) {
    std::lock_guard const cold(heap_.cold);
    part* p = nullptr;
    for (std::uint64_t last = 0; (p = next_part(last)) != nullptr;) {
      call_in_progress const call(*p);
      last = p->number;
      f(p->memory);
    }
  }
  [[nodiscard]] std::size_t host_bytes() const noexcept { return blocks_.host_bytes(); }
  /// Calls f(address, bytes, number of the owner) for each block that a graph keeps. The caller holds the growth lock: none of them is
  /// given back meanwhile.
  template <class F>
  void for_each_kept(F const& f) const {
    std::lock_guard const guard(mutex_);
    for (auto const& p : parts_) {
      for (auto const& b : p->kept) f(b.p, b.bytes, p->number);
    }
  }

  // ---- pins: a part stays, also after its owner has ended. The caller holds the growth lock.

  void add_reference(void const* p) noexcept { ++part_with(p)->references; }
  void remove_reference(void const* p) noexcept { --part_with(p)->references; }

 private:
  using kept_type = kept_block<part>;
  static constexpr std::size_t kept_at_least =
      64;  ///< blocks of each capture for which there is room beforehand

  /// Whether `p` is a live block of a part, and not only used by one.
  [[nodiscard]] bool may_be_own(void const* p) noexcept {
    part* const owner = blocks_.owner_of(p);
    if (owner != nullptr) --owner->references;
    return owner != nullptr;
  }
  /// Gives up, at the end of a call, a reference that was taken for it.
  class call_in_progress {
   public:
    explicit call_in_progress(part& of) noexcept : of_(of) {}
    call_in_progress(call_in_progress const&) = delete;
    call_in_progress& operator=(call_in_progress const&) = delete;
    ~call_in_progress() { --of_.references; }

   private:
    part& of_;
  };

  /// Notes a block that was handed out under the identity of `as`, and adds it to the cache of its capture.
  /// @throws std::bad_alloc, the block is free again
  void note(void* p, part& owner, stream_ref as, std::size_t bytes, std::size_t alignment,
            capture_cache* cache) {
    bool const is_cached = cache != nullptr && cache->has_room();
    bool is_new = false;
    try {
      is_new = blocks_.note(p, owner, is_cached ? note_of::capture_cache : note_of::live_block);
    } catch (...) {
      owner.memory.deallocate(as, p, bytes, alignment);
      throw;
    }
    if (is_new) waiting_.count_noted_elsewhere(true);
    if (is_cached) cache->add(p);
  }
  /// Empties the cache of a capture.
  void clear(part& owner) noexcept {
    owner.cache.clear([&](void* const* free, std::size_t count) {
      for (std::size_t left = blocks_.forget(free, count, owner); left != 0; --left)
        waiting_.count_noted_elsewhere(false);
    });
  }

  template <class Pool>
  void* take(Pool& whole, part& from, stream_ref as, stream_id id, std::size_t bytes, std::size_t alignment) {
    try {
      return from.memory.allocate(as, bytes, alignment);
    } catch (out_of_memory const& refused) {
      memory_report report = refused.report();
      if (whole.trim(0) != 0) {
        try {
          return from.memory.allocate(as, bytes, alignment);
        } catch (out_of_memory const& again) {
          report = again.report();
        }
      }
      report.stream = id;
      refused.throw_with(report);
    }
  }

  /// Keeps a block until none of its users is left, and `by`, if a capture freed it. Without host memory to note it, the block
  /// stays as it is until the pool ends. So does one of an unknown capture.
  void keep(kept_type& b, bool is_of_capture, part* by) noexcept {
    std::lock_guard const guard(mutex_);
    count_kept(b, 1);
    if (by != nullptr) b.users.add(*by);
    if ((is_of_capture && by == nullptr) || b.users.is_too_many()) return b.users.clear();
    pass_on(b);
  }
  /// Lets the next user keep a block. Under the mutex.
  void pass_on(kept_type& b) noexcept {
    part& next = b.users.take();
    try {
      next.kept.push_back(b);
      next.is_mark_old = next.is_over;
      next.kept_bytes += rounded_bytes(b.bytes, b.alignment);
    } catch (...) {
      b.users.clear();
    }
    --next.references;
  }
  void count_kept(kept_type const& b, std::int64_t sign) noexcept {
    if (b.from == nullptr) {
      waiting_.count_kept(b.bytes, b.alignment, sign);
    } else {
      b.from->memory.count_kept(b.bytes, b.alignment, sign);
    }
  }
  template <class Pool>
  void give_back_kept(Pool& whole, kept_type& b) noexcept {
    if (!b.users.empty()) {
      std::lock_guard const guard(mutex_);
      return pass_on(b);
    }
    count_kept(b, -1);
    if (b.from == nullptr) {
      whole.deallocate_sync(b.p, b.bytes, b.alignment);
    } else {
      b.from->memory.deallocate_sync(b.p, b.bytes, b.alignment);
      --b.from->references;
    }
  }

  /// Gives back the blocks that an ended owner kept, whose work is complete. Returns false if there was none.
  template <class Pool>
  bool give_back_all_kept(Pool& whole, part& of) noexcept {
    sequence<kept_type> kept;
    {
      std::lock_guard const guard(mutex_);
      if (of.is_mark_old) return false;  // kept since the mark: at the next call
      kept.swap(of.kept);
      of.kept_bytes = 0;
    }
    for (auto& b : kept) give_back_kept(whole, b);
    return !kept.empty();
  }

  /// The ended part with the lowest number above `last` that keeps a block, or that nothing refers to.
  part* next_over(std::uint64_t last) noexcept {
    std::lock_guard const guard(mutex_);
    part* next = nullptr;
    for (auto& p : parts_) {
      if (p->number > last && p->is_over && (p->references == 0 || !p->kept.empty()) &&
          (next == nullptr || p->number < next->number))
        next = p.get();
    }
    return next;
  }
  /// The part that reserved an address; there is one.
  part* part_with(void const* p) noexcept {
    std::lock_guard const guard(mutex_);
    std::size_t i = 0;
    while (!parts_[i]->memory.owns(p)) ++i;
    return parts_[i].get();
  }
  part* next_part(std::uint64_t last) noexcept {
    std::lock_guard const guard(mutex_);
    part* next = nullptr;
    for (auto& p : parts_) {
      if (p->number > last && (next == nullptr || p->number < next->number)) next = p.get();
    }
    if (next != nullptr) ++next->references;
    return next;
  }
  /// Takes a part out of the list, unless something refers to it again.
  owned<part> take_part(part& gone) noexcept {
    std::lock_guard const guard(mutex_);
    owned<part> taken;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      if (parts_[i].get() != &gone || gone.references != 0 || !gone.kept.empty()) continue;
      taken = std::move(parts_[i]);
      parts_.erase_unordered(i);
      --over_count_;
      break;
    }
    return taken;
  }

  Heap& heap_;
  Waiting& waiting_;
  graph_captures<part, Heap, Front> captures_;
  graph_blocks<part> blocks_;
  mutable fork_mutex mutex_;
  sequence<owned<part>> parts_;
  std::uint64_t last_number_ = 0;
  std::atomic<std::size_t> over_count_{0};
};

}  // namespace tarn::detail
// ---- tarn/pool/pool_segments.hpp
// The search for the physical segments behind a block of a pool, for segments_of() and page_pin.

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string_view>

namespace tarn::detail {

/// A block or a part of one, and the user's call that asks for its segments.
struct segments_wanted {
  std::string_view call;
  void const* p = nullptr;
  std::size_t bytes = 0;
};

[[noreturn]] TARN_NOINLINE inline void refuse_segments(segments_wanted const& wanted) {
  message<256> text;
  text.add(wanted.call).add(": no block of this pool has these ").add_bytes(wanted.bytes);
  text.add("; pass a pointer into a block that is allocated, and bytes that end in it");
  throw misuse(misuse_kind::foreign_pointer, wanted.p, text.view());
}

/// Finds the segments of a live block in one pool, and calls then(growth) under the growth lock. Returns false if the pool has not
/// reserved the address. First returns all threads' cached blocks to the heap, so that those are seen to be free.
/// @throws misuse       not all of the bytes are live
/// @throws pool_asleep  the pool sleeps
/// @throws cuda_error   in a forked child; of kind `unsupported` if the memory is not pages here; std::bad_alloc: nothing has changed
template <class Heap, class Front, class Then>
[[nodiscard]] bool find_own_segments(Heap& heap, Front& front, segments_wanted const& wanted,
                                     sequence<memory_segment>& found, Then const& then) {
  auto const address = reinterpret_cast<std::uintptr_t>(wanted.p);
  std::lock_guard const cold(heap.cold);
  if (heap.is_lost()) heap.refuse_forked();
  if (!heap.growth.contains(address)) return false;
  if (!heap.uses_pages()) throw cuda_error(without_pages(segments_refused), heap.driver().device().value);
  if (heap.is_asleep()) heap.refuse_asleep(memory_report::no_stream, wanted.bytes, default_alignment);
  front.flush_all();
  bool are_live = false;
  {
    hot_lock const held(heap.hot);
    are_live = heap.growth.each_segment(heap.space(held), address, wanted.bytes,
                                        [&](memory_segment const& s) { found.push_back(s); });
  }
  if (!are_live || wanted.bytes == 0) refuse_segments(wanted);
  then(heap.growth);
  return true;
}

}  // namespace tarn::detail
// ---- tarn/pool/sum_of_states.hpp
// The statistics of two pools added up.

namespace tarn::detail {

/// Two pools as one. Peaks are the sum of both peaks, which is an upper bound: they may have occurred at different times.
[[nodiscard]] inline pool_state sum_of_states(pool_state const& a, pool_state const& b) noexcept {
  auto const joined_stat = [](stat const& x, stat const& y) {
    return stat{x.current + y.current, x.peak + y.peak, x.allocated + y.allocated, x.freed + y.freed};
  };
  auto const joined_split = [&](split_ranges const& x, split_ranges const& y) {
    return split_ranges{joined_stat(x.blocks, y.blocks), joined_stat(x.bytes, y.bytes)};
  };
  auto const joined_part = [&](pool_part const& x, pool_part const& y) {
    return pool_part{joined_stat(x.reserved, y.reserved), joined_stat(x.handles, y.handles),
                     x.free_blocks + y.free_blocks, x.inactive_split_bytes + y.inactive_split_bytes,
                     joined_split(x.split, y.split)};
  };
  pool_state s = a;
  s.live += b.live;
  s.live_blocks += b.live_blocks;
  s.reserved += b.reserved;
  s.reserved_peak += b.reserved_peak;
  s.cached += b.cached;
  s.pending += b.pending;
  s.pending_blocks += b.pending_blocks;
  s.largest_free_range = max_of(a.largest_free_range, b.largest_free_range);
  s.free_blocks += b.free_blocks;
  s.inactive_split_bytes += b.inactive_split_bytes;
  s.split = joined_split(a.split, b.split);
  s.reserved_total += b.reserved_total;
  s.released_total += b.released_total;
  s.handles += b.handles;
  s.handles_peak += b.handles_peak;
  s.creates += b.creates;
  s.destroys += b.destroys;
  s.maps += b.maps;
  s.unmaps += b.unmaps;
  s.remaps += b.remaps;
  s.alloc_retries += b.alloc_retries;
  s.ooms += b.ooms;
  s.host_waits += b.host_waits;
  s.device_waits += b.device_waits;
  s.host_bytes += b.host_bytes;
  s.small = joined_part(a.small, b.small);
  s.large = joined_part(a.large, b.large);
  s.totals_reset.reserved += b.totals_reset.reserved;
  s.totals_reset.released += b.totals_reset.released;
  s.totals_reset.creates += b.totals_reset.creates;
  s.totals_reset.destroys += b.totals_reset.destroys;
  s.totals_reset.alloc_retries += b.totals_reset.alloc_retries;
  s.totals_reset.host_waits += b.totals_reset.host_waits;
  return s;
}

}  // namespace tarn::detail
// ---- tarn/pool/waiting_blocks.hpp
// Freed blocks that wait for streams named by record_stream(), or for a stream that the driver does not know. They count as live
// until the device has completed those uses (order/recorded_streams.hpp); then they return to the heap.

#include <atomic>
#include <cstddef>
#include <cstdint>

// ---- tarn/pool/order/recorded_streams.hpp
// Blocks used on more streams than the one they are freed on. record_stream() records the uses, and a freed block is held back
// until the device has completed them. Costs one relaxed load per deallocation while nothing is recorded, two more while other
// blocks are.
//
//   record_stream(p, B)     p is recorded, with a use on B's queue
//   deallocate(A, p)     an event is recorded on B; the use is appended to B's queue: first | ... | last
//   allocate(), a miss   the first event of each queue is queried; once it is complete, p is freed on A
//
// A queue's uses are in the order of their events, so one failed query ends the search of a queue. If many uses wait, several
// share the event that was recorded after all of them.
//
// The driver is never called under the mutex. A call in progress keeps what it works on: a deallocation keeps the block by a
// count, a query keeps the event by `asked`, and a group that is marked again is in no list meanwhile.
//
// Over 400 lines: the queues, the events and the blocks are under one mutex. Their changes are correct only in the order in which
// one function after another releases it.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>

namespace tarn::detail {

template <stream_driver Driver>
class recorded_streams {
 public:
  /// A block that was freed and held back.
  struct waiting {
    void* p = nullptr;
    std::size_t bytes = 0;
    std::size_t alignment = 0;
    stream_ref stream;
  };

  explicit recorded_streams(Driver const& driver) : driver_(driver) {}
  recorded_streams(recorded_streams const&) = delete;
  recorded_streams& operator=(recorded_streams const&) = delete;

  [[nodiscard]] bool any() const noexcept { return noted_count_.load(std::memory_order_relaxed) != 0; }
  /// Makes any() true for a block that is noted elsewhere (pool/graph/), so that a deallocation reads one counter.
  void count_noted_elsewhere(bool more) noexcept {
    if (more) {
      noted_count_.fetch_add(1, std::memory_order_relaxed);
    } else {
      noted_count_.fetch_sub(1, std::memory_order_relaxed);
    }
  }
  /// Returns false if `p` has no recorded use. Takes no lock.
  [[nodiscard]] bool may_hold(void const* p) const noexcept { return noted_.may_hold(p); }
  [[nodiscard]] bool any_waiting() const noexcept {
    return waiting_count_.load(std::memory_order_relaxed) != 0;
  }

  /// Records a use, and makes room for all that deallocation needs. Amortised O(1); O(streams that the block is used on).
  /// @throws std::bad_alloc, cuda_error: nothing has changed
  void note(void* p, stream_ref stream) {
    stream_id id = stream.id();
    if (id == stream_ref::unknown_id) {
      if (status const s = driver_.identify(stream, id); !s.ok()) throw cuda_error(s, driver_.device().value);
      stream = stream_ref::from(stream.handle(), id);
    }
    std::lock_guard const guard(mutex_);
    slot_number b = noted_.find(p);
    for (slot_number u = b != 0 ? blocks_[b].uses : 0; u != 0; u = uses_[u].next) {
      if (uses_[u].stream == id) return;
    }
    if (b == 0) {
      blocks_.make_room();
      noted_.make_room();
    }
    uses_.make_room();
    slot_number const q = queue_of(stream);
    if (b == 0) {
      b = blocks_.take();
      blocks_[b].p = p;
      noted_.insert(b);
      noted_count_.fetch_add(1, std::memory_order_relaxed);
    }
    add_use(b, q, id);
  }

  /// Called at deallocation: returns true if the block is held back, false if it has no recorded use and may be freed now.
  /// Records one event on each recorded stream. Waits for the device only if a stream was destroyed and the driver cannot mark
  /// its work.
  bool hold_back(void* p, std::size_t bytes, std::size_t alignment, stream_ref stream) noexcept {
    lock held(mutex_);
    slot_number const b = take_noted(p);
    return b != 0 && hold(held, b, {p, bytes, alignment, stream});
  }

  /// As hold_back(), for a block freed on a stream that the driver does not know, perhaps a destroyed one: holds it back until
  /// that stream's work is complete; the block is then free for every stream. If the host has no memory to record that and the
  /// device cannot be waited for, the block stays live until the pool ends.
  bool hold_back_for_all(void* p, std::size_t bytes, std::size_t alignment, stream_ref unknown) noexcept {
    lock held(mutex_);
    slot_number q = 0;
    try {
      blocks_.make_room();
      uses_.make_room();
      q = queue_of(unknown);
    } catch (...) {
      held.unlock();
      return !wait_for_all_work(driver_).ok();
    }
    slot_number b = take_noted(p);
    if (b == 0) b = blocks_.take();
    add_use(b, q, stream_ref::unknown_id);
    return hold(held, b, {p, bytes, alignment, stream_ref::from(nullptr, neutral_id)});
  }

  /// Finds out which uses are complete; `wait` makes the host wait for all that were marked before the call. One thread at a
  /// time. At most two queries per queue, plus one for each completed event.
  void settle(bool const wait) noexcept {
    lock held(mutex_);
    for (slot_number q = 1; q <= queues_.last(); ++q) {
      if (queues_[q].users == 0) continue;
      mark_again(held, q);
      // Deallocations continue meanwhile: ignore their marks, so that this loop ends.
      std::uint64_t const now = ++clock_;
      while (queues_[q].first != 0 && uses_[queues_[q].first].ticket < now && ask_first(held, q, wait)) {
      }
    }
  }

  /// Takes out one block whose uses settle() found complete. Returns false if there is none. Amortised O(1).
  bool take_ready(waiting& out) noexcept {
    std::lock_guard const guard(mutex_);
    while (over_ != 0) {
      slot_number const group = over_;
      slot_number u = uses_[group].members;
      if (u != 0) {
        uses_[group].members = uses_[u].next;
      } else {
        u = group;
        over_ = uses_[group].next;
      }
      slot_number const b = uses_[u].block;
      drop(u);
      if (--blocks_[b].pending != 0) continue;
      out = blocks_[b].freed;
      end_waiting(b);
      return true;
    }
    return false;
  }

  /// Whether work may still run on held-back blocks and the host may synchronise the device. It may not while a stream to be
  /// marked is capturing, since that would only end the capture.
  [[nodiscard]] bool asks_for_device() const noexcept { return any_waiting() && !waits_for_capture(); }
  /// Whether a capture prevents a stream from being marked that held-back blocks wait for. Uses what settle() found: a stream's
  /// handle is not queried, since the stream may be destroyed.
  [[nodiscard]] bool waits_for_capture() const noexcept {
    std::lock_guard const guard(mutex_);
    for (slot_number q = 1; q <= queues_.last() && any_waiting(); ++q) {
      if (queues_[q].unmarked != 0 && queues_[q].captured) return true;
    }
    return false;
  }

  /// Destroys the events of blocks that could not be waited for. The pool is ending, and their memory with it.
  void close() noexcept {
    lock held(mutex_);
    for (slot_number q = 1; q <= queues_.last(); ++q) {
      for (slot_number u = std::exchange(queues_[q].first, 0); u != 0; u = uses_[u].next)
        recycle(held, uses_[u].event);
    }
    while (idle_count_ != 0) destroy(held, idle_[--idle_count_]);
  }

  /// Calls f(waiting) for each block held back. While the growth lock is held none of them is handed out again.
  template <class F>
  void for_each_waiting(F const& f) const {
    std::lock_guard const guard(mutex_);
    for (slot_number b = 1; b <= blocks_.last(); ++b) {
      if (blocks_[b].is_waiting) f(blocks_[b].freed);
    }
  }
  [[nodiscard]] std::size_t host_bytes() const noexcept {
    std::lock_guard const guard(mutex_);
    return blocks_.host_bytes() + uses_.host_bytes() + queues_.host_bytes() + noted_.host_bytes() +
           by_stream_.host_bytes();
  }

 private:
  using lock = std::unique_lock<fork_mutex>;

  /// A block from its first recorded use until it is freed. `p` is its key while it has recorded uses.
  struct block {
    void* p = nullptr;
    slot_number next = 0;
    slot_number uses = 0;       ///< until it is held back: linked by `next`
    std::uint32_t pending = 0;  ///< incomplete uses, plus one for a deallocation in progress
    bool is_waiting = false;
    waiting freed;
  };
  /// A use; after its deallocation, part of a group that one event covers. The first use represents the group.
  struct use {
    slot_number block = 0;
    slot_number queue = 0;
    slot_number next = 0;     ///< next use of the block, next member of the group, or next group
    slot_number members = 0;  ///< of the group, without the first
    slot_number last_member = 0;
    std::uint32_t count = 1;  ///< number of uses in the group
    stream_id stream = 0;
    std::uint64_t ticket = 0;  ///< taken before the event was recorded; it covers uses up to this
    event_handle event = nullptr;
  };
  /// The uses of one stream, or of all but the default streams if the driver marks the whole device's work.
  struct use_queue {
    stream_id key = 0;
    stream_ref stream;
    slot_number next = 0;
    slot_number first = 0;  ///< marked groups, linked by `next`
    slot_number last = 0;
    slot_number unmarked = 0;  ///< one group of those that could not be marked when they were freed
    std::uint32_t users = 0;   ///< uses, in any state
    std::uint32_t marked = 0;  ///< uses in marked groups
    bool asked = false;        ///< the first event is being queried
    bool gone = false;         ///< its stream was destroyed: the handle is not passed on
    bool captured = false;     ///< whether a capture caused the last refusal of a mark
  };

  /// A group has at most this part of the uses that wait on its queue: a use waits for an event recorded slightly later than its
  /// own would be. 32 uses have 32 events; each doubling adds 11.
  static constexpr std::uint32_t group_part = 16;
  /// Number of events kept for later marks.
  static constexpr std::size_t most_idle = 64;

  // ---- under the mutex

  /// @throws std::bad_alloc, nothing has changed
  slot_number queue_of(stream_ref stream) {
    bool const shared = marks_all_work<Driver> && !is_default_stream(stream);
    stream_id const key = shared ? neutral_id : stream.id();
    if (slot_number const known = by_stream_.find(key); known != 0) return known;
    by_stream_.make_room(1);
    queues_.make_room();
    slot_number const q = queues_.take();
    by_stream_.insert(key, q);
    queues_[q].key = key;
    queues_[q].stream = stream;
    queues_[q].gone = key == stream_ref::unknown_id;
    return q;
  }
  void add_use(slot_number b, slot_number q, stream_id id) noexcept {
    slot_number const u = uses_.take();
    uses_[u].block = b;
    uses_[u].queue = q;
    uses_[u].stream = id;
    uses_[u].next = blocks_[b].uses;
    blocks_[b].uses = u;
    ++queues_[q].users;
  }
  void drop(slot_number u) noexcept {
    slot_number const q = uses_[u].queue;
    uses_.give(u);
    if (--queues_[q].users != 0) return;
    (void)by_stream_.erase(queues_[q].key);
    queues_.give(q);
  }
  slot_number take_noted(void* p) noexcept {
    slot_number const b = noted_.take(p);
    if (b != 0) noted_count_.fetch_sub(1, std::memory_order_relaxed);
    return b;
  }
  void end_waiting(slot_number b) noexcept {
    waiting_count_.store(waiting_count_.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
    blocks_.give(b);
  }
  /// Adds group `added` to group `g`.
  void join(slot_number g, slot_number added) noexcept {
    slot_number const tail = uses_[added].members != 0 ? uses_[added].last_member : added;
    uses_[added].next = std::exchange(uses_[added].members, 0);
    uses_[tail].next = uses_[g].members;
    if (uses_[g].members == 0) uses_[g].last_member = tail;
    uses_[g].members = added;
    uses_[g].count += uses_[added].count;
  }
  /// Appends a group marked by `event`, which was recorded after `ticket` was taken. Returns an event that is no longer needed,
  /// or null.
  event_handle append(slot_number g, std::uint64_t ticket, event_handle event) noexcept {
    use_queue& in = queues_[uses_[g].queue];
    in.marked += uses_[g].count;
    slot_number const last = in.last;
    // Another thread's deallocation may have taken its ticket after this one and appended its group before it.
    bool const covers_last = last != 0 && uses_[last].ticket <= ticket && !(in.asked && last == in.first);
    if (covers_last && (uses_[last].count + uses_[g].count) * group_part <= in.marked) {
      join(last, g);
      uses_[last].ticket = ticket;
      return std::exchange(uses_[last].event, event);
    }
    uses_[g].ticket = ticket;
    uses_[g].event = event;
    (last != 0 ? uses_[last].next : in.first) = g;
    in.last = g;
    return nullptr;
  }
  /// Queues a group whose uses are complete for take_ready().
  void is_over(slot_number g) noexcept {
    uses_[g].next = over_;
    over_ = g;
  }

  // ---- under the mutex, which is released around driver calls

  /// Marks the uses of a freed block. Returns false if there is none left to wait for.
  bool hold(lock& held, slot_number b, waiting const& freed) noexcept {
    block& of = blocks_[b];  // its address is stable, and `pending` keeps it
    std::uint64_t const ticket = ++clock_;
    of.pending = 1;
    slot_number kept = 0;
    for (slot_number u = std::exchange(of.uses, 0); u != 0;) {
      slot_number const next = uses_[u].next;
      if (uses_[u].stream == freed.stream.id()) {
        drop(u);
      } else {
        uses_[u].next = std::exchange(kept, u);
        ++of.pending;
      }
      u = next;
    }
    if (kept == 0) {
      blocks_.give(b);
      return false;
    }
    of.freed = freed;
    of.is_waiting = true;
    waiting_count_.store(waiting_count_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    while (kept != 0) {
      slot_number const u = std::exchange(kept, std::exchange(uses_[kept].next, 0));
      if (!mark(held, u, ticket)) continue;
      drop(u);
      --of.pending;
    }
    if (--of.pending != 0) return true;
    end_waiting(b);
    return false;
  }

  /// Marks a group, which is in no list, with an event. A group that cannot be marked now, since a graph is being captured or
  /// the driver refused, is set aside: waiting for the device would invalidate the capture, and freeing the block would be
  /// wrong. Returns true if its uses are complete; the group is then still in no list.
  bool mark(lock& held, slot_number g, std::uint64_t ticket) noexcept {
    slot_number const q = uses_[g].queue;
    stream_ref const stream = queues_[q].stream;
    bool const known_gone = queues_[q].gone;
    event_handle event = !known_gone && idle_count_ != 0 ? idle_[--idle_count_] : nullptr;
    held.unlock();
    bool captured = false;
    mark_result result = mark_result::gone;
    if (!known_gone) {
      bool const has_event = event != nullptr || driver_.create_event(event).ok();
      result = has_event ? mark_work(driver_, event, stream, captured) : mark_result::refused;
    }
    bool const over = result == mark_result::gone && wait_for_all_work(driver_).ok();
    held.lock();
    use_queue& in = queues_[q];
    in.captured = captured;
    in.gone = in.gone || result == mark_result::gone;
    if (result == mark_result::marked) {
      recycle(held, append(g, ticket, event));
      return false;
    }
    if (!over) {
      if (in.unmarked != 0) join(g, in.unmarked);
      in.unmarked = g;
    }
    if (event != nullptr) destroy(held, event);
    return over;
  }
  /// Retries all uses of a queue that could not be marked: one event covers them all.
  void mark_again(lock& held, slot_number q) noexcept {
    slot_number const g = std::exchange(queues_[q].unmarked, 0);
    if (g != 0 && mark(held, g, ++clock_)) is_over(g);
  }

  /// Returns whether the first group of a queue is complete.
  bool ask_first(lock& held, slot_number q, bool const wait) noexcept {
    slot_number const g = queues_[q].first;
    event_handle const event = uses_[g].event;
    queues_[q].asked = true;
    held.unlock();
    bool done = driver_.query_event(event).ok();
    if (!done && wait) done = driver_.synchronize_event(event).ok() || wait_for_all_work(driver_).ok();
    held.lock();
    use_queue& in = queues_[q];  // still has users: only this thread takes groups out
    in.asked = false;
    if (!done) return false;
    in.first = uses_[g].next;
    if (in.first == 0) in.last = 0;
    in.marked -= uses_[g].count;
    uses_[g].event = nullptr;
    is_over(g);
    recycle(held, event);
    return true;
  }

  void recycle(lock& held, event_handle event) noexcept {
    if (event == nullptr) return;
    if (idle_count_ == most_idle) return destroy(held, event);
    idle_[idle_count_++] = event;
  }
  void destroy(lock& held, event_handle event) const noexcept {
    held.unlock();
    (void)driver_.destroy_event(event);
    held.lock();
  }

  Driver driver_;
  mutable fork_mutex mutex_;
  slots<block> blocks_;
  slots<use> uses_;
  slots<use_queue> queues_;
  address_map<std::uint32_t> by_stream_;
  noted_blocks<block> noted_{blocks_};
  slot_number over_ = 0;  ///< groups whose uses are complete
  std::uint64_t clock_ = 0;
  event_handle idle_[most_idle] = {};
  std::size_t idle_count_ = 0;
  std::atomic<std::size_t> noted_count_{0};
  std::atomic<std::size_t> waiting_count_{0};
};

}  // namespace tarn::detail

namespace tarn::detail {

template <class Heap>
class waiting_blocks {
 public:
  using driver_type = typename Heap::driver_type;

  explicit waiting_blocks(Heap& heap) : heap_(heap), uses_(heap.driver()) {}
  waiting_blocks(waiting_blocks const&) = delete;
  waiting_blocks& operator=(waiting_blocks const&) = delete;

  /// See recorded_streams::note().
  void note(void* p, stream_ref stream) { uses_.note(p, stream); }

  /// Returns false if no block has a recorded use, or is noted elsewhere. One relaxed load.
  [[nodiscard]] TARN_ALWAYS_INLINE bool any_noted() const noexcept { return uses_.any(); }
  /// Returns false if `p` has no recorded use. Takes no lock.
  [[nodiscard]] TARN_ALWAYS_INLINE bool may_hold(void const* p) const noexcept { return uses_.may_hold(p); }
  void count_noted_elsewhere(bool more) noexcept { uses_.count_noted_elsewhere(more); }

  /// Called when a block is freed: returns true if it waits for recorded uses. From here on the stream is known by its
  /// identity: when the block returns to the heap, the stream may be destroyed, its handle reused, and the calling thread a
  /// different one.
  TARN_NOINLINE bool hold_back(stream_id id, stream_ref stream, void* p, std::size_t bytes,
                               std::size_t alignment) noexcept {
    if (heap_.is_lost()) return true;
    if constexpr (Heap::describes) {
      if (heap_.description.active() && id != neutral_id) heap_.description.wait_if_live(p, bytes, stream);
    }
    // Count first: once the block is held back, another thread may free it.
    count(bytes, alignment, 1);
    bool const held = uses_.hold_back(p, bytes, alignment, stream_ref::from(stream.handle(), id));
    if (!held) count(bytes, alignment, -1);
    return held;
  }

  /// As hold_back(), for a block freed on a destroyed stream: nothing can be ordered after that stream, so the block waits for
  /// all work. Returns false if the host waited for that work now.
  bool hold_back_for_all(stream_ref stream, void* p, std::size_t bytes, std::size_t alignment) noexcept {
    count(bytes, alignment, 1);
    if (uses_.hold_back_for_all(p, bytes, alignment, stream)) return true;
    count(bytes, alignment, -1);
    return false;
  }

  /// Returns blocks whose uses are complete to the heap. `wait` makes the host wait for the uses. The caller holds the growth
  /// lock.
  void release(bool const wait) noexcept {
    if (!uses_.any_waiting()) return;
    uses_.settle(wait);
    typename recorded_streams<driver_type>::waiting w;
    while (uses_.take_ready(w)) {
      count(w.bytes, w.alignment, -1);
      stream_id const id = w.stream.id();
      if (heap_.description.active()) {
        take_back_described(heap_, id, w.stream, w.p, w.bytes, w.alignment, reuse::at_once);
        continue;
      }
      {
        hot_lock const held(heap_.hot);
        heap_.count_uncached(held, -static_cast<std::int64_t>(rounded_bytes(w.bytes, w.alignment)), -1);
      }
      heap_.give_back(freed_block{w.p, w.bytes, w.alignment, id, w.stream});
    }
  }

  [[nodiscard]] bool asks_for_device() const noexcept { return uses_.asks_for_device(); }
  [[nodiscard]] bool waits_for_capture() const noexcept { return uses_.waits_for_capture(); }
  void close() noexcept { uses_.close(); }

  /// Counts a block that a graph memory keeps as waiting. @param sign  1 when it is freed, -1 when it is given back
  void count_kept(std::size_t bytes, std::size_t alignment, std::int64_t sign) noexcept {
    count(bytes, alignment, sign);
    kept_bytes_.fetch_add(sign * static_cast<std::int64_t>(rounded_bytes(bytes, alignment)),
                          std::memory_order_relaxed);
  }
  /// Counts what waits in a graph memory's part.
  void count_of_part(waiting_amount const& small, waiting_amount const& large) noexcept {
    count_.add(small, large);
  }

  // For statistics and inspection.
  [[nodiscard]] waiting_amount now() const noexcept { return count_.now(); }
  /// Those of them that graph memories keep, rounded bytes.
  [[nodiscard]] std::size_t kept_bytes() const noexcept {
    std::int64_t const bytes = kept_bytes_.load(std::memory_order_relaxed);
    return bytes > 0 ? static_cast<std::size_t>(bytes) : 0;
  }
  [[nodiscard]] std::size_t host_bytes() const noexcept { return uses_.host_bytes(); }
  void attach(waiting_observer& observer) { count_.attach(observer); }
  void detach(waiting_observer& observer) noexcept { count_.detach(observer); }
  template <class F>
  void for_each(F const& f) const {
    uses_.for_each_waiting(f);
  }

 private:
  void count(std::size_t bytes, std::size_t alignment, std::int64_t sign) noexcept {
    count_.change(bytes <= class_limit, rounded_bytes(bytes, alignment), bytes, sign);
  }

  Heap& heap_;
  recorded_streams<driver_type> uses_;
  waiting_count count_;
  std::atomic<std::int64_t> kept_bytes_{0};
};

}  // namespace tarn::detail

namespace tarn::detail {

template <memory_source Upstream>
class pool_parts {
 public:
  using driver_type = typename Upstream::driver_type;

  pool_parts(pool_parts const&) = delete;
  pool_parts& operator=(pool_parts const&) = delete;

  /// Returns whether `p` lies in memory that the pool reserved. Takes the growth lock.
  [[nodiscard]] bool owns(void const* p) const noexcept {
    {
      std::lock_guard const cold(heap_.cold);
      if (heap_.growth.contains(reinterpret_cast<std::uintptr_t>(p))) return true;
    }
    bool found = false;
    graphs_.for_each_pool([&](auto const& pool) { found = found || pool.owns(p); });
    return found;
  }

  /// The largest block that the heap can hand out without a driver call, bytes.
  [[nodiscard]] std::size_t largest_free_range() const {
    hot_lock const held(heap_.hot);
    return heap_.space(held).largest_free();
  }

  /// Whether the memory is pages, which can be put together: false over blocks, and where pages cannot be used. Needs no lock.
  [[nodiscard]] bool uses_pages() const noexcept { return heap_.uses_pages(); }
  /// Whether each block lies within one handle, see pooled::handles.
  [[nodiscard]] bool has_one_handle_per_block() const noexcept {
    return heap_.options.handles == handles_per_block::one;
  }
  /// Where the memory comes from, see tarn::allocator_backend(). Static storage. Needs no lock.
  [[nodiscard]] char const* allocator_backend() const noexcept {
    if (heap_.uses_plain_blocks()) return "cudaMalloc";
    if constexpr (reachable<Upstream, backend_call>) {
      return nearest(heap_.upstream(), backend_call{});
    } else {
      return page_source<Upstream> ? "pages" : "blocks";
    }
  }

  /// Bytes that a request occupies. Pure.
  [[nodiscard]] std::size_t block_bytes(std::size_t bytes, std::size_t alignment) const noexcept {
    return rounded_bytes(bytes, alignment);
  }

  /// All statistics at one moment, those of graph memories included; exact while no other thread is in a call.
  /// O(free ranges + threads), for each graph memory.
  [[nodiscard]] pool_state state() const {
    pool_state all;
    {
      std::lock_guard const cold(heap_.cold);
      all = detail::read_state(heap_, front_, waiting_);
      add_ended(all, heap_.ended);
    }
    if (heap_.graph_memory != 0) return all;
    graphs_.for_each_pool([&](auto const& pool) {
      pool_state of_graphs = pool.state();
      of_graphs.pending = of_graphs.pending_blocks = 0;  // `all` has counted them, and the sums these
      of_graphs.totals_reset.reserved = of_graphs.totals_reset.released = 0;
      of_graphs.totals_reset.creates = of_graphs.totals_reset.destroys = 0;
      all = sum_of_states(all, of_graphs);
    });
    all.host_bytes += graphs_.host_bytes();
    set_sums(all, heap_.sums);
    return all;
  }

  /// Restarts the peaks from the current values.
  void reset_peaks() noexcept {
    {
      std::lock_guard const cold(heap_.cold);
      detail::reset_peaks(heap_);
    }
    graphs_.for_each_pool([](auto& pool) { pool.reset_peaks(); });
  }

  /// Restarts the totals of `small`, `large` and `split` from zero. The other totals continue; `totals_reset` holds their
  /// values at this call.
  void reset_totals() noexcept {
    {
      std::lock_guard const cold(heap_.cold);
      detail::reset_totals(heap_);
    }
    graphs_.for_each_pool([](auto& pool) { pool.reset_totals(); });
  }

  /// Notifies `observer` when a freed block starts or stops waiting for other streams, until end_observation().
  /// @throws std::bad_alloc, nothing has changed
  void observe_waiting(waiting_observer& observer) { waiting_.attach(observer); }
  void end_observation(waiting_observer& observer) noexcept { waiting_.detach(observer); }

  /// Keeps the latest `most` records of handles and segments created and given back from now on; 0 stops recording. `clock`
  /// supplies the time of each record. @throws std::bad_alloc, nothing has changed
  void note_growth(std::size_t most, growth_notes::clock_type clock) {
    {
      std::lock_guard const cold(heap_.cold);
      heap_.counters.notes.open(most, clock);
    }
    graphs_.for_each_pool([&](auto& pool) { pool.note_growth(most, clock); });
  }

  /// Starts recording as above unless it is already on. @throws std::bad_alloc
  void note_growth_from_now(std::size_t most, growth_notes::clock_type clock) {
    {
      std::lock_guard const cold(heap_.cold);
      if (!heap_.counters.notes.is_open()) heap_.counters.notes.open(most, clock);
    }
    graphs_.for_each_pool([&](auto& pool) { pool.note_growth_from_now(most, clock); });
  }

  /// Calls `look(heap, front, waiting blocks, graph memories)` while nothing grows and no thread cache is created or destroyed, and
  /// then the same for each graph memory. For pool/inspection/inspection.hpp, which takes the other locks in their order.
  template <class Look>
  void inspect(Look&& look) {
    std::lock_guard const cold(heap_.cold);
    if (heap_.is_lost()) return;
    look(heap_, front_, waiting_, graphs_);
    graphs_.for_each_pool([&](auto& pool) { pool.inspect(look); });
  }

  /// Counts a block of a graph_memory that another one keeps as waiting, or as waiting no more.
  void count_kept(std::size_t bytes, std::size_t alignment, std::int64_t sign) noexcept {
    waiting_.count_kept(bytes, alignment, sign);
  }
  /// Takes the pool of a graph_memory out of the sums of the whole, before it is destroyed.
  void leave_whole() noexcept {
    leave_sums(*heap_.counters.sums, heap_.counters);
    heap_.counters.sums = nullptr;
  }
  /// Makes this the pool of a graph_memory, for snapshots.
  void mark_as_graph_memory(std::uint64_t number, growth_sums& sums) noexcept {
    if constexpr (heap_type::describes) heap_.description.keep_silent();
    hot_lock const held(heap_.hot);
    heap_.space(held).keeps_addresses = true;
    heap_.graph_memory = number;
    heap_.counters.sums = &sums;
  }

  /// Gives all physical memory back to the driver and keeps every address, for the pool and its graph memories together; returns
  /// the bytes given back. No work uses the pool's memory from this call until wake() returns: the caller has waited for the
  /// streams that did, also for those that freed blocks. Until then allocations throw pool_asleep; all other calls work. Does
  /// nothing if the pool is asleep.
  /// Waits on the host for the copies of the contents. Other threads continue; their cached blocks are returned to the heap.
  /// @throws out_of_memory, std::bad_alloc  the host has no memory for the contents; the pool is awake, only its cache is empty
  /// @throws cuda_error                     likewise; also while a capture_scope is open
  /// @throws cuda_error                     of kind `unsupported`: the device has no virtual memory management; nothing has changed
  /// @throws misuse                         called by a handler of the pool's own growth
  /// O(handles + slots of views + ranges), 35 us per handle on an H200, plus the copies.
  std::size_t sleep(contents where)
    requires page_source<typename heap<Upstream>::source_type>
  {
    require_no_growth("sleep");
    if (!heap_.is_lost()) require_pages(heap_.growth.source(), sleep_refused);
    misuse_report const last(heap_.notes, heap_.hot);
    std::lock_guard const cold(heap_.cold);
    if (heap_.is_lost() || heap_.is_asleep()) return 0;
    require_no_capture("sleep");
    std::size_t given = 0;
    try {
      graphs_.for_each_pool([&](auto& part) { given += part.prepare_sleep(where); });
      given += prepare_sleep(where);
    } catch (...) {
      graphs_.for_each_pool([](auto& part) { part.cancel_sleep(); });
      cancel_sleep();
      throw;
    }
    graphs_.for_each_pool([&](auto& part) { given += part.release_asleep(); });
    return given + release_asleep();
  }
  /// Takes the memory again, at the same addresses, with the contents that were kept; returns the bytes taken. Blocks that were
  /// freed meanwhile need none. Does nothing if the pool is awake.
  /// @throws out_of_memory  the device or a limit has not enough: report().lacking is what must become free. The pool and its
  ///                        graph memories are asleep, contents kept; free memory and call again
  /// @throws cuda_error, std::bad_alloc  likewise; cuda_error also while a capture_scope is open
  /// @throws misuse                      called by a handler of the source while the pool is woken
  /// O(handles + slots of views), 45 us per handle on an H200, plus the copies.
  std::size_t wake(after_waking then)
    requires page_source<typename heap<Upstream>::source_type>
  {
    if (heap_.is_asleep()) require_no_growth("wake");
    std::lock_guard const cold(heap_.cold);
    if (heap_.is_lost() || !heap_.is_asleep()) return 0;
    require_no_capture("wake");
    std::size_t lacking = prepare_wake();
    graphs_.for_each_pool([&](auto& part) { lacking += part.prepare_wake(); });
    heap_.require_free(lacking);
    std::size_t taken = 0;
    try {
      graphs_.for_each_pool([&](auto& part) { taken += part.restore(); });
      taken += restore();
    } catch (...) {
      graphs_.for_each_pool([](auto& part) { (void)part.release_asleep(); });
      throw;
    }
    graphs_.for_each_pool([&](auto& part) { part.end_sleep(then); });
    end_sleep(then);
    return taken;
  }
  /// Gives back all granules without a live byte, at unchanged addresses; see tarn::compact(). The promise is that of sleep(). A pool
  /// that uses blocks gives back those without a live byte.
  /// @throws cuda_error, std::bad_alloc  contents and addresses are kept. If the driver can map a handle neither at its new nor at
  ///                                     its old place, the pool is asleep and keeps its memory: wake() maps it
  /// @throws out_of_memory               only in that case
  /// @throws misuse                      called by a handler of the pool's own growth
  compaction compact()
    requires page_source<typename heap<Upstream>::source_type>
  {
    require_no_growth("compact");
    misuse_report const last(heap_.notes, heap_.hot);
    std::lock_guard const cold(heap_.cold);
    if (heap_.is_lost() || heap_.is_asleep()) return {};
    require_no_capture("compact");
    front_.flush_all();
    end_quarantine(heap_);
    waiting_.release(true);
    try {
      return heap_.compact();
    } catch (...) {
      if (heap_.growth.unmap_incomplete()) refuse_allocations();
      throw;
    }
  }
  [[nodiscard]] bool is_asleep() const noexcept
    requires page_source<typename heap<Upstream>::source_type>
  {
    return heap_.is_asleep();
  }

  /// Calls f(memory_segment) for each physical segment behind a live block, or a part of one, in order. Returns the cached blocks of
  /// all threads to the heap first, so that those are seen to be free. The caller holds no lock of the pool; f may throw.
  /// @throws misuse       not all of the bytes are live in this pool
  /// @throws pool_asleep  the pool sleeps
  /// @throws cuda_error   in a forked child; std::bad_alloc. Nothing has changed
  /// O(views + segments)
  template <class F>
  void each_segment(void const* p, std::size_t bytes, F const& f)
    requires page_source<typename heap<Upstream>::source_type>
  {
    sequence<memory_segment> found;
    find_segments({"segments_of", p, bytes}, found, [](auto&) noexcept {});
    for (memory_segment const& s : found) f(s);
  }
  /// Keeps the pages behind a live block mapped where they are, until unpin(): they are not given back, moved or put to sleep, also
  /// after the block is freed. Pins are counted. @throws as each_segment()
  void pin(void const* p, std::size_t bytes)
    requires page_source<typename heap<Upstream>::source_type>
  {
    sequence<memory_segment> found;
    std::lock_guard const cold(heap_.cold);
    find_segments({"page_pin", p, bytes}, found,
                  [&](auto& growth) noexcept { growth.pin(reinterpret_cast<std::uintptr_t>(p), bytes); });
    if (!heap_.growth.contains(reinterpret_cast<std::uintptr_t>(p))) graphs_.add_reference(p);
  }
  /// Finds the segments, and calls then(growth) under the growth lock if all of them are there. For the parts of a pool.
  template <class Then>
  void find_segments(segments_wanted const& wanted, sequence<memory_segment>& found, Then const& then)
    requires page_source<typename heap<Upstream>::source_type>
  {
    if (find_own_segments(heap_, front_, wanted, found, then)) return;
    bool is_found = false;
    graphs_.for_each_pool([&](auto& part) {
      if (is_found || !part.owns(wanted.p)) return;
      part.find_segments(wanted, found, then);
      is_found = true;
    });
    if (!is_found) refuse_segments(wanted);
  }
  /// Waits for the growth lock.
  void unpin(void const* p, std::size_t bytes) noexcept
    requires page_source<typename heap<Upstream>::source_type>
  {
    std::lock_guard const cold(heap_.cold);
    if (heap_.is_lost()) return;
    if (heap_.growth.contains(reinterpret_cast<std::uintptr_t>(p)))
      return heap_.growth.unpin(reinterpret_cast<std::uintptr_t>(p), bytes);
    graphs_.for_each_pool([&](auto& part) {
      if (part.owns(p)) part.unpin(p, bytes);
    });
    graphs_.remove_reference(p);
  }

  // The steps of sleep() and wake(), for the pools of graph memories. The caller holds the growth lock.

  /// Step 1 of sleep(): all that can fail. Returns the bytes given back; after an exception call cancel_sleep().
  std::size_t prepare_sleep(contents where) {
    refuse_allocations();
    end_quarantine(heap_);
    waiting_.release(true);
    return heap_.prepare_sleep(where);
  }
  /// Undoes step 1, also if it failed or was not reached.
  void cancel_sleep() noexcept {
    if (!heap_.is_asleep()) return;
    heap_.growth.forget();
    let_allocate();
  }
  /// Step 2 of sleep(), and undoes step 2 of wake(): gives everything back. A graph_memory that was made meanwhile is awake.
  std::size_t release_asleep() noexcept { return heap_.is_asleep() ? heap_.growth.release() : 0; }
  /// Step 1 of wake(): returns the bytes that step 2 takes.
  std::size_t prepare_wake() { return heap_.is_asleep() ? heap_.prepare_wake() : 0; }
  /// Step 2 of wake(): all that can fail; returns the bytes taken.
  std::size_t restore() { return heap_.is_asleep() ? heap_.restore() : 0; }
  /// Step 3 of wake().
  void end_sleep(after_waking then) noexcept {
    if (!heap_.is_asleep()) return;
    heap_.growth.keep(then);
    let_allocate();
  }

  [[nodiscard]] Upstream& upstream() noexcept { return heap_.upstream(); }
  [[nodiscard]] driver_type const& driver() const noexcept { return heap_.growth.source().driver(); }

 protected:
  using heap_type = heap<Upstream>;
  using front_type = front<heap_type>;
  using waiting_type = waiting_blocks<heap_type>;
  using graphs_type = graph_memories<Upstream, heap_type, front_type, waiting_type>;

  pool_parts(Upstream upstream, pooled const& options, recursive_fork_mutex* growth_lock)
      : heap_(std::move(upstream), options, growth_lock) {}
  ~pool_parts() = default;

  mutable heap_type heap_;
  waiting_type waiting_{heap_};
  front_type front_{heap_};
  mutable graphs_type graphs_{heap_, front_, waiting_};

 private:
  void refuse_allocations() noexcept {
    heap_.set_asleep(true);
    front_.close();
  }
  void let_allocate() noexcept {
    heap_.set_asleep(false);
    front_.open_again();
  }
  /// A handler of the source runs inside a growth, which would continue on memory that is gone.
  void require_no_growth(std::string_view call) const {
    if (!heap_.cold.is_mine()) return;
    message<128> text;
    text.add(call).add(
        "() was called by a handler of the pool's own growth; call it when the allocation has returned");
    throw misuse(misuse_kind::recursion, nullptr, text.view());
  }

  /// Synchronising a stream and pinning host memory would invalidate a capture.
  void require_no_capture(char const* call) const {
    if (capture_gate::has_captures()) throw cuda_error(refused_for_capture(call), driver().device().value);
  }

  /// Keeps every thread out. The caller has taken the locks that were made before this pool's at_fork.
  [[nodiscard]] bool prepare_fork() noexcept {
    if (heap_.is_lost()) return true;
    if (!heap_.cold.is_mine()) return false;
    front_.keep_threads_out();
    heap_.hot.lock();
    return true;
  }
  void end_fork(fork_side side) noexcept {
    if (heap_.is_lost()) return;
    if (side == fork_side::child_without) {
      heap_.renew_hot_lock();
      front_.announce();
    } else {
      heap_.hot.unlock();
    }
    bool const goes_on =
        side == fork_side::parent || (side == fork_side::child && survives_fork(heap_.driver()));
    heap_.set_lost(!goes_on);
    if (!goes_on) return;
    if (side == fork_side::parent) {
      front_.let_threads_in();
    } else {
      front_.let_threads_in_child();
    }
  }

  at_fork member_{
      this, [](void* self) noexcept { return static_cast<pool_parts*>(self)->prepare_fork(); },
      [](void* self, fork_side side) noexcept { static_cast<pool_parts*>(self)->end_fork(side); }};
};

}  // namespace tarn::detail

namespace tarn::detail {

/// The base of `Pool`, a pool<Upstream>.
template <class Pool, memory_source Upstream>
class cache_misses : public pool_parts<Upstream> {
  using parts = pool_parts<Upstream>;

 public:
  /// Wakes the pool: see pool_parts::wake(). Before the device refuses it, other pools there give back what they cache.
  std::size_t wake(after_waking then)
    requires page_source<typename heap<Upstream>::source_type>
  {
    std::size_t taken = 0;
    with_help_of_others([&] { taken = parts::wake(then); },
                        [](memory_report const& refused) {
                          return refused.lacking != memory_report::unknown ? refused.lacking : refused.asked;
                        });
    return taken;
  }

  // ---- graph memories; see graph/graph_memories.hpp

  /// Makes free memory that the device has finished with usable by every stream, and marks the rest: while a capture is open, the
  /// host can wait only for what was marked before.
  void prepare_for_capture() {
    std::lock_guard const cold(heap_.cold);
    front_.flush_all();
    waiting_.release(false);
    hot_lock held(heap_.hot);
    collect_finished(heap_.space(held), heap_.order, may_release(held), neutral);
  }
  /// For the pool of a graph_memory: whether its end would wait for no work. While a capture is open, the end may be unable to wait.
  [[nodiscard]] bool can_end_now() {
    std::lock_guard const cold(heap_.cold);
    prepare_for_capture();
    if (waiting_.asks_for_device() || this->state().pending != 0) return false;
    hot_lock held(heap_.hot);
    return !has_unfinished(heap_.space(held));
  }
  /// Waits for all work on the pool's memory and for its graphs. Returns false if a capture prevents it: work may then run still.
  [[nodiscard]] bool finish_work() noexcept {
    std::lock_guard const cold(heap_.cold);
    bool const graphs_done = graphs_.finish(whole());
    collect();
    bool const done = heap_.finish(waiting_.asks_for_device());
    return done && graphs_done;
  }
  /// The same, but waits for the captures in scopes. If one stays open, none of the pool's memory is given back when it ends.
  void finish_or_keep_mapped() noexcept {
    std::lock_guard const cold(heap_.cold);
    bool done = false;
    for (int tries = 0; tries < 8 && !heap_.keeps_mapped(); ++tries) {  // the next capture may have begun
      bool const in_scope = capture_gate::has_captures();
      done = finish_work();
      if (done && !waiting_.waits_for_capture()) return;
      // A capture without a scope is not waited for: nothing reports its end.
      if ((tries != 0 && !in_scope) || !capture_gate::wait_for_captures()) break;
    }
    // Recorded uses on a stream that is captured without a scope are never waited for.
    if (done && !capture_gate::has_captures()) return;
    keep_mapped();
    graphs_.keep_mapped();
  }
  /// Allocates a block of a graph memory; see graph_memory::allocate(). @throws as allocate()
  template <class Part>
  [[nodiscard]] void* allocate_from(Part& from, stream_ref stream, std::size_t bytes, std::size_t alignment) {
    stream_id const id = heap_.identity(stream);
    if (heap_.is_lost()) heap_.refuse_forked();
    if (heap_.is_asleep()) heap_.refuse_asleep(id, bytes, alignment);
    if (bytes > max_request_bytes) heap_.refuse(id, bytes, alignment);
    return graphs_.allocate_from(whole(), from, id, stream, bytes, alignment);
  }
  /// Work may still use the memory when the pool ends: none of it is given back.
  void keep_mapped() noexcept { heap_.keep_mapped(); }
  /// For the pool of a graph_memory: keeps the order of a captured stream from now on. There is room for as many as a pool has.
  void open_capture(stream_id kept_as) noexcept { heap_.kept_as.set(heap_.kept_as.free_place(), kept_as); }
  /// For the pool of a graph_memory: makes what a captured stream freed usable by the next capture.
  void end_capture(stream_id kept_as) noexcept {
    std::lock_guard const cold(heap_.cold);
    front_.drop_stream(kept_as);
    hot_lock held(heap_.hot);
    heap_.kept_as.clear(heap_.kept_as.find(kept_as));
    end_captured_stream(heap_.space(held), kept_as);
  }

 protected:
  using parts::front_;
  using parts::graphs_;
  using parts::heap_;
  using parts::waiting_;
  using typename parts::front_type;

  cache_misses(Upstream upstream, pooled const& options, recursive_fork_mutex* growth_lock)
      : parts(std::move(upstream), options, growth_lock),
        others_(heap_.driver(), this, &give_back_cached, place_in_list(growth_lock != nullptr)) {}
  ~cache_misses() = default;

  /// Waits until no other pool asks this one for memory. The destructor's first step.
  void leave_others() noexcept { others_.leave(); }

  /// Whether a capture may have to take memory that the pool caches. The driver call takes 5 us, as long as the rest of opening a
  /// scope: an answer that was far from scarce holds for some captures, unless the pool grows. Under the growth lock.
  [[nodiscard]] bool is_memory_scarce() noexcept {
    std::size_t const reserved = heap_.sums.reserved_now();
    if (captures_with_ample_memory_ != 0 && reserved <= ample_up_to_) {
      --captures_with_ample_memory_;
      return false;
    }
    std::size_t free = 0;
    std::size_t total = 0;
    if (!heap_.driver().memory_info(free, total).ok()) return false;
    captures_with_ample_memory_ = free >= total / 4 ? 63 : 0;
    ample_up_to_ = reserved + total / 16;
    return free < total / 8;
  }

  /// Takes back a block with recorded uses, or one of a graph memory. Returns false if `p` is neither.
  TARN_NOINLINE bool take_back_noted(stream_id id, stream_ref stream, void* p, std::size_t bytes,
                                     std::size_t alignment) noexcept {
    if (heap_.is_lost()) return true;
    if (graphs_.may_hold(p) && graphs_.deallocate(id, stream, p, bytes, alignment)) return true;
    if (!waiting_.may_hold(p)) return false;
    if (graphs_.is_watching() && graphs_.keep_if_captured(id, stream, p, bytes, alignment)) return true;
    return waiting_.hold_back(id, stream, p, bytes, alignment);
  }

  [[nodiscard]] Pool& whole() noexcept { return static_cast<Pool&>(*this); }
  [[nodiscard]] misuse_report report_misuse_at_end() noexcept { return {heap_.notes, heap_.hot}; }

  // ---- allocation: the heap, the ladder

  TARN_NOINLINE void* allocate_slow(stream_id id, stream_ref stream, std::size_t bytes,
                                    std::size_t alignment) {
    if (heap_.is_lost()) [[unlikely]]
      heap_.refuse_forked();
    if (heap_.is_asleep()) [[unlikely]]
      heap_.refuse_asleep(id, bytes, alignment);
    if (bytes > max_request_bytes) heap_.refuse(id, bytes, alignment);
    if (graphs_.is_watching() && id != neutral_id) [[unlikely]] {
      if (void* const p = graphs_.allocate(whole(), id, stream, bytes, alignment); p != nullptr) return p;
      if (alignment <= default_alignment && front_.is_this_thread_watched() == front_type::watched::yes) {
        if (void* const p = front_.take_watched(id, lazy_block_size{bytes}); p != nullptr) return p;
      }
    }
    misuse_report const last = report_misuse_at_end();
    if (heap_.is_crowded()) [[unlikely]]
      heap_.sweep_streams(id != neutral_id && heap_.order.is_capturing(stream) ? sweep_of::default_streams
                                                                               : sweep_of::all_streams);
    room_to_describe room(heap_.description);
    std::size_t const guard = heap_.description.active() ? guard_bytes : 0;
    block_request const request(id, stream, bytes, bytes + guard, alignment);
    auto position = front_.open(id, stream);
    block_batch batch;
    if (position.of_stream != nullptr && request.in_run) {
      batch.wanted = magazine_batch(request.size_class);
      if (is_capture_stream(id)) batch.wanted = min_of(batch.wanted, batch_of_capture);
    }
    if (!take_from_heap(position, request, batch)) {
      climb(position, request, batch);
      front_.find_again(position, id, stream);
    }
    front_.keep_rest(position, request, batch);  // those that have no room in the cache are left in the batch
    if (batch.count > 1) heap_.give_back(id, stream, request.size_class, batch.blocks + 1, batch.count - 1);
    room.use(batch.blocks[0], bytes);
    if (batch.ends_step) [[unlikely]]
      give_back_unused(id);
    return batch.blocks[0];
  }

  bool take_from_heap(typename front_type::cache_position const& position, block_request const& request,
                      block_batch& batch) {
    // Return the cached large block first: it may coalesce with its neighbours.
    std::size_t cached_bytes = 0;
    void* const cached = position.of_stream != nullptr && request.where != zone::small
                             ? front_.take_large(position, cached_bytes)
                             : nullptr;
    hot_lock held(heap_.hot);
    if (cached != nullptr)
      heap_.return_range(may_release(held), request.id, request.stream, cached, cached_bytes);
    heap_.space(held).make_room();
    if (!heap_.take(held, heap_.space(held).streams.get(request.id, request.stream), request, batch))
      return false;
    heap_.count_if_uncached(held, request, position.cache == nullptr);
    return true;
  }

  TARN_NOINLINE void climb(typename front_type::cache_position const& position, block_request const& request,
                           block_batch& batch) {
    if (heap_.cold.is_mine()) [[unlikely]]  // a growth cannot start another one
      heap_.refuse(request.id, request.asked, request.alignment,
                   "the pool, because a handler of its own growth called it");
    try {
      with_help_of_others([&] { climb_alone(position, request, batch); },
                          [&](memory_report const& refused) { return lacking(refused, request); });
    } catch (pool_asleep const&) {
      throw;
    } catch (out_of_memory const&) {
      std::lock_guard const cold(heap_.cold);
      ++heap_.ooms;
      throw;
    }
  }
  /// Calls `attempt`. If the device refuses it, other pools there give back what they cache, first what is idle, then what the host
  /// must wait for, and it is called again. The caller holds no lock of a pool.
  /// @param lacking  returns what the device lacks after a refusal, bytes
  /// @throws what the last attempt throws
  template <class Attempt, class Lacking>
  void with_help_of_others(Attempt const& attempt, Lacking const& lacking) {
    constexpr giving in_turn[] = {giving::what_is_idle, giving::what_is_waited_for};
    for (std::size_t asked = 0;;) {
      try {
        return attempt();
      } catch (pool_asleep const&) {
        throw;
      } catch (out_of_memory const& refused) {
        std::size_t given = 0;
        while (given == 0 && asked < 2 && is_refused_by_device(refused.report()))
          given = others_.ask(lacking(refused.report()), in_turn[asked++]);
        if (given == 0) throw;
      }
    }
  }
  /// Whether memory that other pools give back may help.
  [[nodiscard]] static bool is_refused_by_device(memory_report const& refused) noexcept {
    if (refused.device_total != memory_report::unknown && refused.asked > refused.device_total) return false;
    return is_on_device && refused.limit == memory_report::unknown;
  }
  /// What the device lacks for a request, bytes; the whole request if it has that much, but cannot use it.
  [[nodiscard]] std::size_t lacking(memory_report const& refused,
                                    block_request const& request) const noexcept {
    std::size_t wanted = align_up(request.block, usual_granule);
    if (refused.headroom != memory_report::unknown)
      wanted += refused.headroom + allocation_overhead(heap_.driver());
    std::size_t const free = refused.device_free != memory_report::unknown ? refused.device_free : 0;
    return wanted > free ? wanted - free : wanted;
  }
  /// Climbs with the memory that this pool has or gets.
  void climb_alone(typename front_type::cache_position const& position, block_request const& request,
                   block_batch& batch) {
    std::lock_guard const cold(heap_.cold);
    if (heap_.is_asleep()) [[unlikely]]
      heap_.refuse_asleep(request.id, request.asked, request.alignment);
    waiting_.release(false);
    if (graphs_.has_ended_parts()) (void)graphs_.reap(whole(), false);
    try {
      climb_once(position, request, batch);
    } catch (out_of_memory const&) {
      if (!graphs_.has_ended_parts() || !graphs_.reap(whole(), true)) throw;
      climb_once(position, request, batch);
    }
  }
  void climb_once(typename front_type::cache_position const& position, block_request const& request,
                  block_batch& batch) {
    hot_lock held(heap_.hot);
    ladder(heap_, front_, waiting_, may_release(held), request, batch).climb();
    heap_.count_if_uncached(held, request, position.cache == nullptr);
  }

  /// Gives back what the last allocations did not need, unless another thread climbs, or this call is made from within a climb.
  TARN_NOINLINE void give_back_unused(stream_id id) noexcept {
    if (heap_.cold.is_mine() || !heap_.cold.try_lock()) return;
    std::lock_guard const cold(heap_.cold, std::adopt_lock);
    try {
      heap_.give_back_unused(id);
    } catch (...) {  // no host memory for the lists: a later step gives back
    }
  }

  // ---- deallocation: the cache, the heap

  TARN_NOINLINE void deallocate_slow(stream_id id, stream_ref stream, void* p, std::size_t bytes,
                                     std::size_t alignment) noexcept {
    if (heap_.is_lost()) [[unlikely]]
      return;
    misuse_report const last = report_misuse_at_end();
    if (graphs_.is_watching()) [[unlikely]] {
      if (graphs_.keep_if_captured(id, stream, p, bytes, alignment)) return;
      if (alignment <= default_alignment && !heap_.is_asleep() &&
          front_.put_watched(id, p, lazy_block_size{bytes}))
        return;
    }
    // The stream may have been destroyed, so the driver cannot be asked whether it is capturing.
    if (heap_.is_crowded()) [[unlikely]]
      heap_.sweep_streams(sweep_of::default_streams);
    if (heap_.description.active()) [[unlikely]]
      return take_back_described(heap_, id, stream, p, bytes, alignment, reuse::later);
    block_request const request(id, stream, bytes, bytes, alignment);
    auto const position = heap_.is_asleep() ? typename front_type::cache_position{} : front_.open(id, stream);
    if (position.of_stream == nullptr) {
      heap_.count_given(request);
    } else {
      block_batch displaced;
      std::size_t displaced_bytes = 0;
      kept const result = front_.put_and_displace(position, request, p, displaced, displaced_bytes);
      if (result == kept::twice) [[unlikely]]
        return heap_.note_double_free(request, p);
      if (displaced.count != 0) heap_.give_back(request, displaced.blocks, displaced.count, displaced_bytes);
      if (result == kept::yes) return;
    }
    heap_.give_back(request, &p, 1, request.block);
  }

  /// Frees a block whose stream was destroyed: the block waits for all work, or the host waits for it now.
  TARN_NOINLINE void deallocate_unknown(stream_ref stream, void* p, std::size_t bytes,
                                        std::size_t alignment) noexcept {
    if (heap_.is_lost()) return;
    if (graphs_.may_hold(p) && graphs_.deallocate(stream_ref::unknown_id, stream, p, bytes, alignment))
      return;
    if (waiting_.hold_back_for_all(stream, p, bytes, alignment)) return;
    whole().deallocate_sync(p, bytes, alignment);
  }

  /// Returns to the heap the blocks in thread caches and in quarantine, and the waiting blocks after the host has waited for
  /// their uses. The caller holds the growth lock.
  void collect() noexcept {
    front_.flush_all();
    end_quarantine(heap_);
    waiting_.release(true);
  }

  // ---- for other pools on the device

  /// Gives cached memory back to the device for another pool. Returns the bytes given back; 0 while a thread grows this pool.
  static std::size_t give_back_cached(void* self, std::size_t bytes, giving how) noexcept {
    try {
      return static_cast<cache_misses*>(self)->give_back_cached(bytes, how);
    } catch (...) {
      return 0;
    }
  }
  std::size_t give_back_cached(std::size_t bytes, giving how) {
    misuse_report const last = report_misuse_at_end();
    if (!heap_.cold.try_lock()) return 0;
    std::lock_guard const cold(heap_.cold, std::adopt_lock);
    if (heap_.is_lost() || heap_.is_asleep()) return 0;
    bool const waits = how == giving::what_is_waited_for;
    std::size_t const before = heap_.sums.reserved_now();
    if (graphs_.has_ended_parts()) (void)graphs_.reap(whole(), waits);
    std::size_t const given = before - heap_.sums.reserved_now();
    if (given >= bytes) return given;
    std::size_t const reserved = heap_.counters.reserved;
    std::size_t const keep = reserved > bytes - given ? reserved - (bytes - given) : 0;
    if (waits) {
      collect();
      return given + heap_.shrink(keep);
    }
    front_.flush_all();
    waiting_.release(false);
    return given + heap_.shrink_idle(keep);
  }

 private:
  /// Blocks moved at once for a captured stream: what a capture has not used goes back when it ends.
  static constexpr std::uint32_t batch_of_capture = 4;
  /// Host memory is no device's.
  static constexpr bool is_on_device =
      !std::same_as<typename Upstream::driver_type, no_driver> && !has_property<Upstream, host_accessible>;

  using list_of_pools = other_pools<typename Upstream::driver_type>;
  [[nodiscard]] static constexpr typename list_of_pools::goes_to place_in_list(bool is_part) noexcept {
    using goes_to = typename list_of_pools::goes_to;
    if (!is_on_device || is_part) return goes_to::nowhere;
    return may_stand_on_a_pool<std::remove_reference_t<decltype(layer_of(std::declval<Upstream&>()))>>()
               ? goes_to::another_pool
               : goes_to::the_device;
  }

  list_of_pools others_;
  unsigned captures_with_ample_memory_ = 0;  ///< for which is_memory_scarce() does not ask
  std::size_t ample_up_to_ = 0;              ///< bytes reserved
};

}  // namespace tarn::detail
// ---- tarn/pool/graph/graph_owner_of.hpp
// The owner of a part of a pool, as graph_memory holds it.

#include <cstddef>
#include <mutex>

namespace tarn::detail {

/// The graph_memory that holds it holds the pool, too.
template <class Pool>
class graph_owner_of final : public graph_owner {
 public:
  /// @throws cuda_error, std::bad_alloc: nothing has changed
  explicit graph_owner_of(Pool& whole) : whole_(whole), part_(make(whole)) {}
  graph_owner_of(graph_owner_of const&) = delete;
  graph_owner_of& operator=(graph_owner_of const&) = delete;
  ~graph_owner_of() override {
    std::lock_guard const cold(whole_.heap_.cold);
    whole_.graphs_.end_part(whole_, part_);
  }

  [[nodiscard]] capture_number begin_capture(stream_ref stream) override {
    if (whole_.heap_.is_lost()) whole_.heap_.refuse_forked();
    std::lock_guard const cold(whole_.heap_.cold);
    if (whole_.is_memory_scarce()) whole_.prepare_for_capture();
    return whole_.graphs_.begin_capture(part_, stream);
  }
  void join_capture(capture_number capture, stream_ref stream) override {
    stream_id id = stream.id();
    if (id == stream_ref::unknown_id) {
      status const s = whole_.driver().identify(stream, id);
      if (!s.ok()) throw cuda_error(s, whole_.driver().device().value);
    }
    std::lock_guard const cold(whole_.heap_.cold);
    whole_.graphs_.join_capture(part_, capture, stream_ref::from(stream.handle(), id));
  }
  void end_capture(capture_number capture) noexcept override {
    std::lock_guard const cold(whole_.heap_.cold);
    whole_.graphs_.end_capture(part_, capture);
  }
  [[nodiscard]] graph_state state() const override { return whole_.graphs_.state_of(part_); }
  /// See graph_memory::allocate(); `bytes` is not 0.
  [[nodiscard]] void* allocate(stream_ref stream, std::size_t bytes, std::size_t alignment) {
    return whole_.allocate_from(part_, stream, bytes, alignment);
  }

 private:
  using part_type = typename Pool::graphs_type::part;

  static part_type& make(Pool& whole) {
    std::lock_guard const cold(whole.heap_.cold);
    (void)whole.graphs_.reap(whole, false);
    return whole.graphs_.make_part();
  }

  Pool& whole_;
  part_type& part_;
};

}  // namespace tarn::detail

namespace tarn {

/// A stream-ordered caching pool over pages or over blocks of another resource. Use it through `source | pooled{}`. Any number
/// of threads may call it concurrently. A warm call takes no shared lock and, if the identity of
/// its stream is known, makes no driver call.
///
/// fork() is safe while any number of threads use the pool. In the child, a pool of host memory continues with a copy of all
/// blocks; calls that other threads had in progress are never completed. A pool over a driver that does not survive fork(),
/// such as CUDA, refuses in the child: allocation throws cuda_error of kind `forked`, other calls do nothing, and nothing is
/// freed.
template <memory_source Upstream>
class pool : public detail::cache_misses<pool<Upstream>, Upstream> {
  using misses = detail::cache_misses<pool, Upstream>;

 public:
  using upstream_type = Upstream;
  using driver_type = typename Upstream::driver_type;
  using properties = typename Upstream::properties;
  /// The pool returns pieces of its blocks, so a tool must not treat any of them as a heap.
  static constexpr bool hands_out_pieces = true;

  explicit pool(Upstream upstream, pooled const& options = {})
      : misses(std::move(upstream), options, nullptr) {}
  /// The pool of a graph_memory, which shares the growth lock of the pool that it is a part of.
  pool(Upstream upstream, pooled const& options, detail::recursive_fork_mutex& growth_lock)
      : misses(std::move(upstream), options, &growth_lock) {}
  pool(pool const&) = delete;
  pool& operator=(pool const&) = delete;

  /// Waits for the streams that freed memory here, then gives everything back. Does nothing after the driver has unloaded. While a
  /// capture_scope is open on any thread, that work cannot be waited for: the destructor waits until the scopes are closed, up to
  /// 10 s. If one is still open then, as one of the caller's own thread is, the memory stays mapped until the process ends.
  ~pool() {
    misses::leave_others();
    misuse_report const last = report_misuse_at_end();
    front_.detach();
    if (heap_.is_lost()) return;
    std::lock_guard const cold(heap_.cold);
    if constexpr (heap_type::describes) {
      if (heap_.description.active() && detail::wait_for_all_work(heap_.driver()).kind == failure::unloading)
        heap_.description.abandon();
    }
    misses::finish_or_keep_mapped();
    waiting_.close();
    heap_.close();
  }

  /// Allocates for work on `stream`.
  /// @param stream     of the pool's device. Memory that is freed on another device's stream stays cached for that stream until the
  ///                   pool ends; `checked` refuses such streams
  /// @param bytes      zero returns null; blocks up to 1 MiB are rounded to a size class, others to 512 bytes
  /// @param alignment  a power of two up to 2 MiB; above 256 the block has no magazine
  /// Reuses memory freed on the same stream at once, and memory of other streams once it is ordered (see
  /// pool/arena/stream_order.hpp).
  /// @throws out_of_memory, bad_alignment, cuda_error, std::bad_alloc (host): nothing has changed
  /// O(1) from a magazine or the heap; calls the driver only when it climbs the ladder, sweeps streams that ended, or
  /// must query the identity of a stream.
  [[nodiscard]] void* allocate(stream_ref stream, std::size_t bytes, std::size_t alignment) {
    if (bytes == 0) return nullptr;
    return allocate_sized(detail::lazy_block_size{bytes}, stream, bytes, alignment);
  }

  /// Frees a block; work enqueued on `stream` before this call may still use it. `bytes` and `alignment` are those of the
  /// allocation. Never throws; detected misuse is reported to the misuse handler.
  void deallocate(stream_ref stream, void* p, std::size_t bytes, std::size_t alignment) noexcept {
    if (p == nullptr) return;
    deallocate_sized(detail::lazy_block_size{bytes}, stream, p, bytes, alignment);
  }
  /// The same for a layer that has computed the block_size for itself; `bytes` and `p` are not 0.
  template <class Size>
  [[nodiscard]] TARN_ALWAYS_INLINE void* allocate_sized(Size size, stream_ref stream, std::size_t bytes,
                                                        std::size_t alignment) {
    return allocate_on(heap_.identity(stream), stream, size, bytes, alignment);
  }
  template <class Size>
  TARN_ALWAYS_INLINE void deallocate_sized(Size size, stream_ref stream, void* p, std::size_t bytes,
                                           std::size_t alignment) noexcept {
    stream_id id = stream.id();
    if (id == stream_ref::unknown_id && !heap_.driver().identify(stream, id).ok()) [[unlikely]]
      return misses::deallocate_unknown(stream, p, bytes, alignment);
    if (waiting_.any_noted() && may_be_noted(p) && take_back_noted(id, stream, p, bytes, alignment))
        [[unlikely]]
      return;
    deallocate_on(id, stream, p, size, bytes, alignment);
  }

  /// Allocates memory that every stream may use at once. Waits for other streams' frees if nothing else serves the request.
  [[nodiscard]] void* allocate_sync(std::size_t bytes, std::size_t alignment) {
    if (bytes == 0) return nullptr;
    return allocate_on(detail::neutral_id, {}, detail::lazy_block_size{bytes}, bytes, alignment);
  }

  /// Frees memory that no stream uses any more; every stream may reuse it at once.
  void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment) noexcept {
    if (p == nullptr) return;
    if (waiting_.any_noted() && may_be_noted(p) &&
        take_back_noted(detail::neutral_id, {}, p, bytes, alignment)) [[unlikely]]
      return;
    deallocate_on(detail::neutral_id, {}, p, detail::lazy_block_size{bytes}, bytes, alignment);
  }

  /// Records that work on `stream`, enqueued before the block is deallocated, uses the block although it is freed on another
  /// stream. The freed block is held back until that work is done; other blocks are not. Amortised host cost O(1); host memory
  /// 140 bytes times the peak number of recorded uses. @throws std::bad_alloc, cuda_error, nothing has changed
  void record_stream(void* p, std::size_t bytes, stream_ref stream) {
    if (p == nullptr || heap_.is_lost() || graphs_.record_stream(p, bytes, stream)) return;
    waiting_.note(p, stream);
  }

  /// Gives cached memory back to the driver until at most `keep_bytes` are reserved. Waits for the streams that freed it; other
  /// threads continue meanwhile. Returns the bytes given back. O(handles + slots of views + free ranges).
  std::size_t trim(std::size_t keep_bytes) {
    misuse_report const last = report_misuse_at_end();
    std::lock_guard const cold(heap_.cold);
    if (heap_.is_lost()) return 0;
    std::size_t given = 0;
    if (graphs_.has_ended_parts()) {
      given = graphs_.reserved_by_ended();
      (void)graphs_.reap(*this, true);
      given -= graphs_.reserved_by_ended();
    }
    std::size_t const kept_apart = graphs_.reserved();
    keep_bytes = keep_bytes > kept_apart ? keep_bytes - kept_apart : 0;
    if (heap_.counters.reserved <= keep_bytes) return given;
    collect();
    return given + heap_.shrink(keep_bytes);
  }

  /// Makes an owner for the memory of captured graphs, for graph_memory (raii/graph_memory.hpp).
  /// @throws cuda_error, std::bad_alloc: nothing has changed
  [[nodiscard]] detail::owned<detail::graph_owner> new_graph_memory() {
    if (heap_.is_lost()) heap_.refuse_forked();
    return detail::owned<detail::graph_owner>(new detail::graph_owner_of<pool>(*this));
  }
  /// Allocates a block of an owner that new_graph_memory() of this pool made; see graph_memory::allocate().
  /// @throws as allocate()
  [[nodiscard]] void* allocate_for(detail::graph_owner& owner, stream_ref stream, std::size_t bytes,
                                   std::size_t alignment) {
    if (bytes == 0) return nullptr;
    require_alignment(alignment);
    return static_cast<detail::graph_owner_of<pool>&>(owner).allocate(stream, bytes, alignment);
  }

 private:
  using misses::collect;
  using misses::front_;
  using misses::graphs_;
  using misses::heap_;
  using misses::report_misuse_at_end;
  using misses::take_back_noted;
  using misses::waiting_;
  using typename misses::graphs_type;
  using typename misses::heap_type;
  using misuse_report = detail::misuse_report;

  friend class detail::graph_owner_of<pool>;

  [[nodiscard]] TARN_ALWAYS_INLINE bool may_be_noted(void const* p) const noexcept {
    return waiting_.may_hold(p) || graphs_.may_hold(p);
  }

  template <class Size>
  TARN_ALWAYS_INLINE void* allocate_on(stream_id id, stream_ref stream, Size size, std::size_t bytes,
                                       std::size_t alignment) {
    if (alignment != default_alignment) [[unlikely]]
      require_alignment(alignment);
    if (alignment <= default_alignment) [[likely]] {
      if (void* const p = front_.take(id, size); p != nullptr) [[likely]]
        return p;
    }
    return misses::allocate_slow(id, stream, bytes, alignment);
  }

  template <class Size>
  TARN_ALWAYS_INLINE void deallocate_on(stream_id id, stream_ref stream, void* p, Size size,
                                        std::size_t bytes, std::size_t alignment) noexcept {
    if (alignment <= default_alignment && front_.put(id, p, size)) [[likely]]
      return;
    misses::deallocate_slow(id, stream, p, bytes, alignment);
  }
};

}  // namespace tarn

namespace tarn {

/// The layer of `pooled`: a pool over `Upstream`.
template <class Upstream>
class pooled_layer : public pool<Upstream> {
 public:
  pooled_layer()
    requires std::default_initializable<Upstream>
      : pooled_layer(Upstream{}) {}
  explicit pooled_layer(Upstream upstream, pooled const& options = {})
      : pool<Upstream>(std::move(upstream), options) {}
};

}  // namespace tarn
// ---- tarn/policy/tracked.hpp
// tracked: exact statistics of the blocks that were handed out, as PyTorch defines them, and independent high-water scopes.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <utility>

// ---- tarn/policy/tracked_numbers.hpp
// The counters of `tracked`: current, peak and totals in one order of all threads' calls, and high-water marks. A thread that has
// counted alone for a while goes on without a lock, until another thread visits it (owner_lock). Otherwise, a thread counts under a
// lock. Under contention, the lock's owner counts for the waiting threads (combining_lock); then each thread gets a share of the room
// below the peaks, in which it counts on its own (tracked_share). A thread whose share is too small takes what the others offer. If
// there is not enough, all shares are closed. If peaks may be off by a bound, a share has that room whatever the peaks are, and is
// published when it is used up: another thread's share is never touched.
//
// Over 400 lines: the ways of counting pass the same counters to one another under the same lock, and are read together.

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>
#include <utility>

// ---- tarn/core/combining_lock.hpp
// A lock around small updates that lets its holder apply the updates of waiting threads. A thread that finds the lock held
// publishes its update; the holder applies it before unlocking, so the guarded data stays in one processor's cache. (Flat
// combining: Hendler, Incze, Shavit, Tzafrir, SPAA 2010.) Every update has been applied when its call returns.

#include <atomic>
#include <bit>
#include <cstdint>

namespace tarn::detail {

/// @tparam Update  copyable and small; `apply(Update const&)` must not throw
template <class Update>
class combining_lock {
 public:
  combining_lock() noexcept = default;
  combining_lock(combining_lock const&) = delete;
  combining_lock& operator=(combining_lock const&) = delete;

  /// Applies `update`, on this thread or on the lock's holder, one at a time; updates of one thread keep their order.
  /// Uncontended: one exchange. Returns true if the lock was held at first.
  template <class Apply>
  TARN_ALWAYS_INLINE bool run(Update const& update, Apply const& apply) noexcept {
    if (try_lock()) [[likely]] {
      apply(update);
      unlock_after(apply);
      return false;
    }
    wait(update, apply);
    return true;
  }
  /// The parts of run(), for a caller whose own update needs no copy: try_lock(), then the update, then unlock_after(apply);
  /// if the lock is held, wait(update, apply).
  [[nodiscard]] TARN_ALWAYS_INLINE bool try_lock() noexcept { return lock_.try_lock(); }
  /// Applies published updates, then unlocks.
  template <class Apply>
  TARN_ALWAYS_INLINE void unlock_after(Apply const& apply) noexcept {
    if (asked_.load(std::memory_order_relaxed) != 0) [[unlikely]]
      combine(apply);
    lock_.unlock();
  }
  /// Publishes the update and waits until it has been applied, here or by the lock's holder.
  template <class Apply>
  TARN_NOINLINE void wait(Update const& update, Apply const& apply) noexcept {
    unsigned const mine = take_slot();
    if (mine == slot_count) {
      lock();
      apply(update);
      unlock_after(apply);
      return;
    }
    slot& s = slots_[mine];
    s.update = update;
    s.at.store(step::asked, std::memory_order_relaxed);
    asked_.fetch_or(std::uint32_t{1} << mine, std::memory_order_release);
    for (unsigned tries = 0; s.at.load(std::memory_order_acquire) != step::done; ++tries) {
      // Try rarely, so that the lock stays with the thread that works under it.
      if (tries % tries_apart == 0 && !lock_.is_taken() && lock_.try_lock()) {
        unlock_after(apply);  // applies this thread's update unless the holder already has
      } else {
        spin_wait(tries);
      }
    }
    s.at.store(step::free, std::memory_order_release);
  }

  /// Locks without an update.
  void lock() noexcept { lock_.lock(); }
  /// Unlocks without applying published updates; their threads find the lock free and apply them.
  void unlock() noexcept { lock_.unlock(); }

 private:
  enum class step : std::uint8_t { free, taken, asked, done };
  struct alignas(cache_line_bytes) slot {
    std::atomic<step> at{step::free};
    Update update{};
  };
  static constexpr unsigned slot_count = 32;  // one bit each in asked_
  static constexpr unsigned tries_apart = 8;

  template <class Apply>
  TARN_NOINLINE void combine(Apply const& apply) noexcept {
    for (std::uint32_t asked = asked_.exchange(0, std::memory_order_acquire); asked != 0;
         asked &= asked - 1) {
      slot& s = slots_[static_cast<unsigned>(std::countr_zero(asked))];
      apply(s.update);
      s.at.store(step::done, std::memory_order_release);
    }
  }

  /// Takes a free slot for one update; returns slot_count if all are taken.
  unsigned take_slot() noexcept {
    auto const first = static_cast<unsigned>(this_thread_number() % slot_count);
    for (unsigned i = 0; i < slot_count; ++i) {
      unsigned const k = (first + i) % slot_count;
      step expected = step::free;
      if (slots_[k].at.load(std::memory_order_relaxed) == step::free &&
          slots_[k].at.compare_exchange_strong(expected, step::taken, std::memory_order_acquire)) {
        return k;
      }
    }
    return slot_count;
  }

  alignas(cache_line_bytes) spin_lock lock_;
  alignas(cache_line_bytes) std::atomic<std::uint32_t> asked_{0};
  slot slots_[slot_count];
};

}  // namespace tarn::detail
// ---- tarn/core/thread_place.hpp
// Small numbers for running threads: an array with one element per place has an element for each thread alone.

#include <atomic>
#include <bit>
#include <cstdint>

namespace tarn::detail {

/// Number of places. Threads beyond it have none.
inline constexpr unsigned thread_places = 32;

/// Gives each place to one running thread at a time.
class place_table {
 public:
  /// Takes the lowest free place; returns thread_places if there is none.
  [[nodiscard]] unsigned take() noexcept {
    std::uint32_t taken = taken_.load(std::memory_order_relaxed);
    while (taken != ~std::uint32_t{0}) {
      auto const place = static_cast<unsigned>(std::countr_one(taken));
      if (taken_.compare_exchange_weak(taken, taken | std::uint32_t{1} << place, std::memory_order_acquire,
                                       std::memory_order_relaxed)) {
        return place;
      }
    }
    return thread_places;
  }
  /// What the thread did at this place happens before what the next one does there.
  void give_back(unsigned place) noexcept {
    taken_.fetch_and(~(std::uint32_t{1} << place), std::memory_order_release);
  }

 private:
  static_assert(thread_places == 32, "one bit each");
  std::atomic<std::uint32_t> taken_{0};
};

/// A module of the process may have a table of its own (a plug-in with hidden symbols). A place is unique among those of its table.
/// A forked child keeps the places of the threads that it does not have.
inline constinit place_table places_of_threads{};

/// The place of a thread; plain data, so that reading it needs no guard.
struct thread_place {
  place_table const* table = nullptr;  ///< that gave the place; null if the thread has none
  unsigned index = thread_places;
};
inline thread_local constinit thread_place this_thread_place{};

/// Gives the place of an ending thread back.
class place_holder {
 public:
  place_holder() noexcept = default;
  place_holder(place_holder const&) = delete;
  place_holder& operator=(place_holder const&) = delete;
  ~place_holder() {
    over = true;
    if (this_thread_place.table == nullptr) return;
    unsigned const place = this_thread_place.index;
    this_thread_place = {};
    places_of_threads.give_back(place);
  }

  /// Takes a place for the calling thread, which has none, if one is free.
  static void take() noexcept {
    if (over) return;
    static thread_local place_holder holder;
    (void)holder;
    if (unsigned const place = places_of_threads.take(); place != thread_places)
      this_thread_place = {&places_of_threads, place};
  }

 private:
  static inline thread_local constinit bool over =
      false;  ///< code that runs later, in other destructors, has no place
};

}  // namespace tarn::detail
// ---- tarn/policy/tracked_share.hpp
// The part of the counters that one thread updates on its own. Under contention, each thread gets a share of the room below the
// peaks. While it stays within its share no peak can change, whatever the others do within theirs, so its counts need not be
// published until they are read: every number stays exact. (Shares of the room below a limit: O'Neil, "The escrow transactional
// method", TODS 1986.)
//
// Room is lent separately for small and for large blocks. A byte of either is a byte below the peak of its group and below the peak of
// all blocks, which no other share has.
//
// A share belongs to one thread, which enters it through an owner_lock: two plain stores. Threads pass room to one another without
// entering another's share: each offers what it does not need in atomic counters of its own (`offered_`), from which the others
// take.
//
// Where peaks may be off by a bound, a share has a fixed room in both directions instead, however close the peaks are. Its counts are
// published when the room is used up.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tarn {

/// PyTorch's three groups; a block is small up to 1 MiB.
enum class block_group : std::uint8_t { all, small, large };

namespace detail {

enum class change_kind : std::uint8_t { allocation, deallocation };

/// The change that one call makes.
struct tracked_update {
  std::int64_t rounded = 0;  ///< bytes; negative for a free
  std::int64_t requested = 0;
  std::uint64_t thread = 0;  ///< number of the thread; 0 if it has none
  unsigned place = 0;        ///< of the thread; thread_places if it has none
  block_group group = block_group::all;

  /// Blocks, rounded bytes, requested bytes.
  [[nodiscard]] std::array<std::int64_t, 3> by_kind() const noexcept {
    return {rounded > 0 ? 1 : -1, rounded, requested};
  }
};

/// One amount for each kind (blocks, rounded, requested bytes) and group.
using tracked_amounts = std::array<std::array<std::int64_t, 3>, 3>;

/// One amount for each group (small, large) and kind.
using tracked_room = std::array<std::array<std::int64_t, 3>, 2>;
[[nodiscard]] constexpr std::size_t index_of(block_group group) noexcept {
  return static_cast<std::size_t>(group) - 1;
}

class alignas(512) tracked_share {  // an element of an array is addressed by a shift
 public:
  // ---- the owner thread

  /// Enters the share. Returns false if another thread visits it.
  [[nodiscard]] TARN_ALWAYS_INLINE bool try_enter() noexcept { return lock_.try_enter(); }
  TARN_ALWAYS_INLINE void leave() noexcept { lock_.leave(); }
  /// Whether its thread counts alone, without shares: it may use all numbers inside its lock. Called inside the lock.
  [[nodiscard]] TARN_ALWAYS_INLINE bool is_alone() const noexcept {
    return state_.load(std::memory_order_acquire) == state::alone;
  }
  /// Counts a call in this share, if it is open and has enough room. Called inside the lock.
  template <change_kind Kind>
  [[nodiscard]] TARN_ALWAYS_INLINE bool count_here(std::size_t rounded, std::size_t requested,
                                                   block_group group) noexcept {
    if (state_.load(std::memory_order_acquire) != state::open) return false;
    std::int64_t const amounts[3] = {1, static_cast<std::int64_t>(rounded),
                                     static_cast<std::int64_t>(requested)};
    auto& room = room_[index_of(group)];
    if constexpr (Kind == change_kind::allocation) {
      std::int64_t const left[3] = {room[0] - amounts[0], room[1] - amounts[1], room[2] - amounts[2]};
      if ((left[0] | left[1] | left[2]) < 0) [[unlikely]]  // one of them
        return false;
      auto& came = came_[index_of(group)];
      for (std::size_t k = 0; k < 3; ++k) room[k] = left[k];
      for (std::size_t k = 0; k < 3; ++k) came[k] += amounts[k];
    } else {
      for (std::size_t k = 0; k < 3; ++k) room[k] += amounts[k];
    }
    note_call();
    return true;
  }
  /// Counts a call in the open share at index `mine`. Returns false if it is not open or there is not enough room; the call must then
  /// be counted globally. Called inside the lock. @param open  indices of shares to take room from
  [[nodiscard]] static bool count(tracked_share* all, unsigned mine, std::uint32_t open,
                                  tracked_update const& u) noexcept {
    tracked_share& s = all[mine];
    state const at = s.state_.load(std::memory_order_acquire);
    if (at != state::open) return at == state::bounded && s.count_bounded(u);
    if (u.rounded > 0 && !s.has_room(u)) [[unlikely]] {
      if (!s.find_room(all, mine, open, u)) return false;
    }
    s.add(u);
    s.note_call();
    return true;
  }
  /// As count(), for any thread, as if it were the owner: for tests.
  [[nodiscard]] bool count(tracked_update const& u) noexcept {
    if (!try_enter()) return false;
    bool const done = count(this, 0, 0, u);
    leave();
    return done;
  }

  // ---- a visitor: announce() for all shares that it will visit, one remote_barrier(), visit(), and at the end end_visit()

  void announce() noexcept { lock_.announce(); }
  void visit() noexcept { lock_.visit(); }
  void end_visit() noexcept { lock_.end_visit(); }
  /// In a forked child, before end_visit().
  void forget_owner() noexcept { lock_.forget_owner(); }

  /// Opens a closed share with `room` for what is allocated, and `offered` for any thread; there is no bound for what is freed.
  void open(tracked_room const& room, tracked_room const& offered) noexcept {
    given_ = room_ = room;
    for (std::size_t g = 0; g < 2; ++g) {
      for (std::size_t k = 0; k < 3; ++k) {
        step_[g][k] = max_of(room[g][k] / steps_at_first, std::int64_t{1});
        offered_[g][k].store(offered[g][k], std::memory_order_relaxed);
      }
    }
    state_.store(state::open, std::memory_order_release);
  }
  /// Opens a closed share whose counts may differ by `error` from what was published, in each group and in the sum of both.
  void open_bounded(std::array<std::int64_t, 3> const& error) noexcept {
    given_ = room_ = {error, error};
    state_.store(state::bounded, std::memory_order_release);
  }
  /// Lets the thread of this share, which is closed, count alone.
  void let_alone() noexcept { state_.store(state::alone, std::memory_order_release); }
  /// Closes a share in which its thread counted alone. During a visit, or called by its thread.
  void end_alone() noexcept { state_.store(state::closed, std::memory_order_relaxed); }
  /// Reports the counts of a bounded share as close() does; it stays open with the room that it was given. The owner thread calls
  /// this, or waits meanwhile.
  template <class F>
  void publish(F const& f) noexcept {
    report(f);
    room_ = given_;
  }
  /// Closes the share and reports its counts: f(kind, group, change, came) for each. Returns the number of calls. During a visit of
  /// all shares.
  template <class F>
  std::uint64_t close(F const& f) noexcept {
    state_.store(state::closed, std::memory_order_relaxed);
    report(f);
    for (auto& of_group : offered_) {
      for (auto& amount : of_group) amount.store(0, std::memory_order_relaxed);
    }
    std::uint64_t const calls = calls_;
    calls_ = 0;
    return calls;
  }
  /// Takes room that the share offers, any thread, while the share cannot be closed: at least `wanted` or half of it, whichever is
  /// more, as far as there is any. Returns what was taken.
  [[nodiscard]] std::int64_t take_offered(std::size_t g, std::size_t k, std::int64_t wanted) noexcept {
    std::atomic<std::int64_t>& amount = offered_[g][k];
    std::int64_t is = amount.load(std::memory_order_relaxed);
    while (is > 0) {
      std::int64_t const taken = min_of(is, max_of(wanted, is / 2));
      if (amount.compare_exchange_weak(is, is - taken, std::memory_order_relaxed)) return taken;
    }
    return 0;
  }

 private:
  enum class state : std::uint8_t { closed, open, bounded, alone };
  /// The room at first, in steps. Takers take two steps more than they need; a share that has more than twice what it keeps offers the
  /// rest.
  static constexpr std::int64_t steps_at_first = 2;
  static constexpr std::int64_t steps_kept = 3;
  /// How often it looks.
  static constexpr std::uint64_t calls_per_offer = 8;

  [[nodiscard]] TARN_ALWAYS_INLINE bool has_room(tracked_update const& u) const noexcept {
    auto const change = u.by_kind();
    auto const& room = room_[index_of(u.group)];
    return change[0] <= room[0] && change[1] <= room[1] && change[2] <= room[2];
  }
  TARN_ALWAYS_INLINE void add(tracked_update const& u) noexcept {
    auto const change = u.by_kind();
    std::size_t const g = index_of(u.group);
    for (std::size_t k = 0; k < 3; ++k) {
      room_[g][k] -= change[k];
      if (u.rounded > 0) came_[g][k] += change[k];
    }
  }
  TARN_ALWAYS_INLINE void note_call() noexcept {
    if ((++calls_ & (calls_per_offer - 1)) == 0) [[unlikely]]
      offer();
  }

  /// Takes room for a block from what this share and the others offer. Keeps what it took if that is not enough.
  TARN_NOINLINE bool find_room(tracked_share* all, unsigned mine, std::uint32_t open,
                               tracked_update const& u) noexcept {
    auto const change = u.by_kind();
    std::size_t const g = index_of(u.group);
    for (std::size_t k = 0; k < 3; ++k) {
      std::int64_t lacking = change[k] - room_[g][k];
      if (lacking <= 0) continue;
      lacking -= take(*this, g, k, lacking);
      for (unsigned tries = 0; lacking > 0 && tries < 32; ++tries) {
        if ((open >> donor_ & 1) != 0 && donor_ != mine) lacking -= take(all[donor_], g, k, lacking);
        if (lacking > 0) donor_ = (donor_ + 1) % 32;
      }
      if (lacking > 0) return false;
    }
    return true;
  }
  std::int64_t take(tracked_share& from, std::size_t g, std::size_t k, std::int64_t lacking) noexcept {
    std::int64_t const taken = from.take_offered(g, k, lacking + 2 * step_[g][k]);
    room_[g][k] += taken;
    given_[g][k] += taken;
    return taken;
  }
  /// Offers the room that this thread is not likely to need soon.
  TARN_NOINLINE void offer() noexcept {
    for (std::size_t g = 0; g < 2; ++g) {
      for (std::size_t k = 0; k < 3; ++k) {
        std::int64_t const kept = steps_kept * step_[g][k];
        std::int64_t const spare = room_[g][k] - kept;
        if (spare <= kept) continue;
        room_[g][k] = kept;
        given_[g][k] -= spare;
        offered_[g][k].fetch_add(spare, std::memory_order_relaxed);
      }
    }
  }

  /// Counts a call if the counts, of its group and of both, then stay within the bound.
  TARN_NOINLINE bool count_bounded(tracked_update const& u) noexcept {
    auto const change = u.by_kind();
    std::size_t const g = index_of(u.group);
    for (std::size_t k = 0; k < 3; ++k) {
      std::int64_t const bound = given_[g][k];
      std::int64_t const now = bound - room_[g][k] + change[k];
      std::int64_t const both = now + given_[1 - g][k] - room_[1 - g][k];
      if (now > bound || -now > bound || both > bound || -both > bound) return false;
    }
    add(u);
    ++calls_;
    return true;
  }

  template <class F>
  void report(F const& f) noexcept {
    for (std::size_t k = 0; k < 3; ++k) {
      std::int64_t const small = given_[0][k] - room_[0][k];
      std::int64_t const large = given_[1][k] - room_[1][k];
      f(k, std::size_t{0}, small + large, came_[0][k] + came_[1][k]);
      f(k, std::size_t{1}, small, came_[0][k]);
      f(k, std::size_t{2}, large, came_[1][k]);
    }
    came_ = {};
  }

  owner_lock lock_;
  std::atomic<state> state_{state::closed};
  unsigned donor_ = 0;       ///< share that had room the last time
  std::uint64_t calls_ = 0;  ///< counted here since it was opened
  tracked_room room_{};      ///< by how much each number may still grow here
  tracked_room
      given_{};  ///< room_ when its counts were last reported, and what was taken since, less what was offered
  tracked_room came_{};  ///< all increases since
  tracked_room step_{};  ///< by how much room is taken and offered
  alignas(cache_line_bytes) std::array<std::array<std::atomic<std::int64_t>, 3>, 2> offered_{};
};

}  // namespace detail
}  // namespace tarn

namespace tarn {

/// Statistics of the blocks that were handed out; each array is indexed by block_group.
struct tracked_statistics {
  std::array<stat, 3> allocations;      ///< blocks
  std::array<stat, 3> allocated_bytes;  ///< as the pool rounds them
  std::array<stat, 3> requested_bytes;  ///< as requested
  std::uint64_t ooms = 0;               ///< requests refused
  /// The same, including freed blocks that the pool holds back for the work of other streams. Such a block counts with the
  /// bytes requested from the pool.
  std::array<stat, 3> active;
  std::array<stat, 3> active_bytes;
  std::array<stat, 3> active_requested_bytes;
};

/// Which threads' calls a high-water mark counts.
enum class peak_of { all_threads, this_thread };

/// A high-water mark over a scope; linked into its tracked_layer while it lives.
struct high_water_mark {
  std::int64_t start = 0;        ///< allocated bytes when it began (0 for one thread's)
  std::int64_t current = 0;      ///< current value
  std::int64_t peak = 0;         ///< the maximum since it began
  std::int64_t allocations = 0;  ///< blocks handed out since it began
  peak_of whose = peak_of::all_threads;
  std::uint64_t thread = 0;  ///< number of the thread whose calls count, for peak_of::this_thread
  high_water_mark* next = nullptr;
};

namespace detail {

/// Exact with any number of threads: a reader sees no call counted late or twice. Counting is O(1); reading is O(threads that
/// count on their own, at most 32). Peaks are exact, too, unless `peak_error` allows that they are not; see tracked.
class tracked_numbers {
 public:
  tracked_numbers() noexcept : tracked_numbers(0) {}
  /// @param peak_error  bytes; 0: peaks are exact
  explicit tracked_numbers(std::size_t peak_error) noexcept {
    (void)has_remote_barrier();                         // registers with the kernel now, not at a call
    constexpr std::size_t most = std::size_t{1} << 60;  // twice as much can be counted
    auto const bytes = static_cast<std::int64_t>(min_of(peak_error, most));
    std::int64_t const blocks = min_of(bytes, max_of(bytes / bytes_per_block, std::int64_t{1}));
    error_ = {blocks, bytes, bytes};
  }
  tracked_numbers(tracked_numbers const&) = delete;
  tracked_numbers& operator=(tracked_numbers const&) = delete;
  ~tracked_numbers() {
    lock_.lock();  // another thread may fork
    tracked_share* const shares = shares_.exchange(nullptr, std::memory_order_relaxed);
    lock_.unlock();
    delete[] shares;
  }

  /// Counts one block. @param rounded, requested  bytes
  TARN_ALWAYS_INLINE void count_allocation(std::size_t rounded, std::size_t requested,
                                           block_group group) noexcept {
    count<change_kind::allocation>(rounded, requested, group);
  }
  TARN_ALWAYS_INLINE void count_deallocation(std::size_t rounded, std::size_t requested,
                                             block_group group) noexcept {
    count<change_kind::deallocation>(rounded, requested, group);
  }
  /// Counts a change by the thread that it names.
  void count(tracked_update const& u) noexcept {
    if (tracked_share* const shares = shares_.load(std::memory_order_acquire);
        shares != nullptr && u.place < share_count && shares[u.place].try_enter()) {
      tracked_share& mine = shares[u.place];
      bool done = true;
      if (mine.is_alone()) {
        add_alone(u);
      } else {
        done = tracked_share::count(shares, u.place, open_.load(std::memory_order_relaxed), u);
      }
      mine.leave();
      if (done) return;
    }
    count_globally(u);
  }
  /// Number of threads that count on their own now, with other threads.
  [[nodiscard]] int sharing() const noexcept { return std::popcount(open_.load(std::memory_order_relaxed)); }
  /// Returns true if a thread counts alone.
  [[nodiscard]] bool has_alone() noexcept {
    std::lock_guard const guard(lock_);
    return alone_ != thread_places;
  }
  /// Requests a share for the thread at a place. Shares are opened once at least two threads have requested one.
  void ask(unsigned place) noexcept {
    if (place >= share_count) return;
    std::uint64_t const mine = std::uint64_t{1} << place;
    if ((flags_.load(std::memory_order_relaxed) & mine) == 0)
      flags_.fetch_or(mine, std::memory_order_relaxed);
  }
  void count_refusal() noexcept {
    std::lock_guard const guard(lock_);
    ++ooms_;
  }

  [[nodiscard]] tracked_statistics statistics() noexcept {
    stopped const now(*this);
    tracked_statistics all;
    all.ooms = ooms_;
    for (std::size_t g = 0; g < 3; ++g) {
      all.allocations[g] = number(0, g);
      all.allocated_bytes[g] = number(1, g);
      all.requested_bytes[g] = number(2, g);
      all.active[g] = active(0, g);
      all.active_bytes[g] = active(1, g);
      all.active_requested_bytes[g] = active(2, g);
    }
    return all;
  }
  void reset_peaks() noexcept {
    stopped const now(*this);
    for (std::size_t k = 0; k < 3; ++k) {
      for (std::size_t g = 1; g < 3; ++g) of(k, g).peak = of(k, g).current;
      peak_of_all_[k] = current(k, 0);
      for (std::size_t g = 0; g < 3; ++g) active_peak_[k][g] = current(k, g) + waiting_[k][g];
    }
  }
  void reset_totals() noexcept {
    stopped const now(*this);
    for (group_numbers& its : groups_) {
      for (group_number& n : its.of) {
        n.allocated = 0;
        n.at_reset = n.current;
      }
    }
    not_over_ = {};
    ooms_ = 0;
  }

  /// Counts blocks that start to wait after their deallocation, or, with negative amounts, stop waiting.
  void count_waiting(waiting_amount const& small, waiting_amount const& large) noexcept {
    stopped const now(*this);
    tracked_amounts const change{{{small.blocks + large.blocks, small.blocks, large.blocks},
                                  {small.bytes + large.bytes, small.bytes, large.bytes},
                                  {small.requested + large.requested, small.requested, large.requested}}};
    for (std::size_t k = 0; k < 3; ++k) {
      for (std::size_t g = 0; g < 3; ++g) {
        waiting_[k][g] += change[k][g];
        not_over_[k][g] += change[k][g];
      }
    }
    note_active(block_group::small);
    note_active(block_group::large);
    note_whether_watched();
  }

  void add(high_water_mark& mark, peak_of whose) noexcept {
    stopped const now(*this);
    mark.whose = whose;
    mark.thread = this_thread_number();
    mark.start = whose == peak_of::all_threads ? current(1, 0) : 0;
    mark.current = mark.peak = mark.start;
    mark.next = marks_;
    marks_ = &mark;
    note_whether_watched();
  }
  void remove(high_water_mark& mark) noexcept {
    stopped const now(*this);
    for (high_water_mark** at = &marks_; *at != nullptr; at = &(*at)->next) {
      if (*at == &mark) {
        *at = mark.next;
        note_whether_watched();
        return;
      }
    }
  }
  [[nodiscard]] high_water_mark read(high_water_mark const& mark) noexcept {
    stopped const now(*this);
    return mark;
  }

 private:
  static constexpr unsigned share_count = thread_places;
  static constexpr std::uint64_t all_threads = 0xFFFF'FFFF;  ///< of flags_
  static constexpr std::uint64_t watched_flag = all_threads + 1;
  /// With fewer calls than this per share, opening shares costs more than it saves.
  static constexpr std::uint64_t least_calls = 32;
  static constexpr std::uint32_t longest_pause = 4096;
  /// The error of a peak in bytes, divided by this, is its error in blocks.
  static constexpr std::int64_t bytes_per_block = 4096;
  /// A thread counts alone after this many calls without another thread's. Doubled whenever another thread ends that: a visit takes
  /// microseconds.
  static constexpr std::uint32_t first_streak = 16;
  static constexpr std::uint32_t longest_streak = 4096;

  /// Holds the lock, and no thread counts on its own.
  class stopped {
   public:
    explicit stopped(tracked_numbers& numbers) noexcept : numbers_(numbers) {
      numbers_.lock_.lock();
      numbers_.call_in();
      numbers_.visit_alone();
    }
    stopped(stopped const&) = delete;
    stopped& operator=(stopped const&) = delete;
    ~stopped() {
      numbers_.end_visit_alone();
      numbers_.lock_.unlock();
    }

   private:
    tracked_numbers& numbers_;
  };

  struct applier {
    tracked_numbers& numbers;
    void operator()(tracked_update const& u) const noexcept { numbers.apply(u); }
  };

  /// One number of one group. The sums of both groups and the totals freed are computed when they are read, so that a call
  /// updates as little as possible.
  struct group_number {
    std::int64_t current = 0;
    std::int64_t peak = 0;
    std::int64_t allocated = 0;  ///< total
    std::int64_t at_reset = 0;   ///< current when the totals were reset
  };
  /// Blocks, rounded bytes, requested bytes. Aligned, so that a group is addressed by a shift.
  struct alignas(128) group_numbers {
    std::array<group_number, 3> of;
  };

  [[nodiscard]] group_number& of(std::size_t k, std::size_t group) noexcept {
    return groups_[group - 1].of[k];
  }
  [[nodiscard]] std::int64_t current(std::size_t k, std::size_t group) noexcept {
    return group == 0 ? of(k, 1).current + of(k, 2).current : of(k, group).current;
  }
  [[nodiscard]] std::int64_t peak(std::size_t k, std::size_t group) noexcept {
    return group == 0 ? peak_of_all_[k] : of(k, group).peak;
  }
  [[nodiscard]] stat number(std::size_t k, std::size_t group) noexcept {
    stat s;
    s.current = current(k, group);
    s.peak = peak(k, group);
    for (std::size_t g = 1; g < 3; ++g) {
      if (group != 0 && group != g) continue;
      s.allocated += of(k, g).allocated;
      s.freed += of(k, g).allocated + of(k, g).at_reset - of(k, g).current;
    }
    return s;
  }

  template <change_kind Kind>
  TARN_ALWAYS_INLINE void count(std::size_t rounded, std::size_t requested, block_group group) noexcept {
    thread_place const at = this_thread_place;
    tracked_share* const shares = shares_.load(std::memory_order_acquire);
    if (at.table != table_ || shares == nullptr) [[unlikely]]
      return count_without_place<Kind>(rounded, requested, group);
    tracked_share& mine = shares[at.index];
    if (!mine.try_enter()) [[unlikely]]
      return count_by_waiting<Kind>(rounded, requested, group);
    if (mine.is_alone()) [[likely]] {
      if ((flags_.load(std::memory_order_relaxed) & watched_flag) == 0) [[likely]] {
        add<Kind>(rounded, requested, group);
      } else {
        add_alone_watched<Kind>(rounded, requested, group);
      }
      mine.leave();
      return;
    }
    if (mine.template count_here<Kind>(rounded, requested, group)) [[likely]] {
      mine.leave();
      return;
    }
    count_in_share<Kind>(shares, at.index, rounded, requested, group);
  }
  /// Inside the lock of the thread's share, which this leaves.
  template <change_kind Kind>
  TARN_NOINLINE void count_in_share(tracked_share* shares, unsigned mine, std::size_t rounded,
                                    std::size_t requested, block_group group) noexcept {
    tracked_update const u = update_of<Kind>(rounded, requested, group);
    bool const done = tracked_share::count(shares, mine, open_.load(std::memory_order_relaxed), u);
    shares[mine].leave();
    if (!done) count_globally(u);
  }
  template <change_kind Kind>
  TARN_NOINLINE void count_by_waiting(std::size_t rounded, std::size_t requested,
                                      block_group group) noexcept {
    count_globally(update_of<Kind>(rounded, requested, group));
  }
  template <change_kind Kind>
  TARN_NOINLINE void count_without_place(std::size_t rounded, std::size_t requested,
                                         block_group group) noexcept {
    if (this_thread_place.table == nullptr) place_holder::take();
    count_globally(update_of<Kind>(rounded, requested, group));
  }
  template <change_kind Kind>
  TARN_NOINLINE void add_alone_watched(std::size_t rounded, std::size_t requested,
                                       block_group group) noexcept {
    add_alone(update_of<Kind>(rounded, requested, group));
  }
  template <change_kind Kind>
  [[nodiscard]] tracked_update update_of(std::size_t rounded, std::size_t requested,
                                         block_group group) const noexcept {
    std::int64_t const sign = Kind == change_kind::allocation ? 1 : -1;
    return {sign * static_cast<std::int64_t>(rounded), sign * static_cast<std::int64_t>(requested),
            thread_number_place(), my_place(), group};
  }
  /// The place of the calling thread; thread_places if it has none here.
  [[nodiscard]] unsigned my_place() const noexcept {
    return this_thread_place.table == table_ ? this_thread_place.index : thread_places;
  }

  /// Counts a call under the lock.
  void count_globally(tracked_update const& u) noexcept {
    if (!lock_.try_lock()) {
      lock_.wait(u, applier{*this});
      ask(u.place);
      return;
    }
    apply(u);
    note_streak(u.place);
    if (out_ != 0) ask(u.place);  // it has no share, or one that was too small
    lock_.unlock_after(applier{*this});
  }
  /// Lets the calling thread, whose call was counted last, count alone if only its calls were counted for long. The caller holds the
  /// lock.
  void note_streak(unsigned place) noexcept {
    if (place >= share_count || out_ != 0 || alone_ != thread_places || ++streak_ < least_streak_) return;
    if (tracked_share* const shares = make_shares(); shares != nullptr) {
      alone_ = place;
      shares[place].let_alone();
    }
  }
  /// Enters the share of the thread that counts alone, unless that is the calling thread. The caller holds the lock.
  void visit_alone() noexcept {
    visits_alone_ = alone_ != thread_places && alone_ != my_place();
    if (!visits_alone_) return;
    share(alone_).announce();
    remote_barrier();
    share(alone_).visit();
  }
  void end_visit_alone() noexcept {
    if (visits_alone_) share(alone_).end_visit();
  }
  /// The caller holds the lock.
  TARN_NOINLINE void end_alone() noexcept {
    visit_alone();
    share(alone_).end_alone();
    end_visit_alone();
    alone_ = thread_places;
    least_streak_ = min_of(least_streak_ * 2, longest_streak);
  }
  [[nodiscard]] tracked_share& share(unsigned place) noexcept {
    return shares_.load(std::memory_order_relaxed)[place];
  }
  /// Null without host memory. The caller holds the lock.
  [[nodiscard]] tracked_share* make_shares() noexcept {
    tracked_share* shares = shares_.load(std::memory_order_relaxed);
    if (shares == nullptr) {
      shares = new (std::nothrow) tracked_share[share_count];
      shares_.store(shares, std::memory_order_release);
    }
    return shares;
  }

  /// The caller holds the lock.
  void apply(tracked_update const& u) noexcept {
    if (u.place != last_place_) [[unlikely]] {
      last_place_ = u.place;
      streak_ = 0;
    }
    if (alone_ != thread_places) {
      if (alone_ == u.place) return add_alone(u);
      end_alone();
    }
    if (flags_.load(std::memory_order_relaxed) != 0) return apply_slow(u);
    add(u);
  }
  void add(tracked_update const& u) noexcept {
    if (u.rounded > 0) {
      add<change_kind::allocation>(static_cast<std::size_t>(u.rounded), static_cast<std::size_t>(u.requested),
                                   u.group);
    } else {
      add<change_kind::deallocation>(static_cast<std::size_t>(-u.rounded),
                                     static_cast<std::size_t>(-u.requested), u.group);
    }
  }
  template <change_kind Kind>
  TARN_ALWAYS_INLINE void add(std::size_t rounded, std::size_t requested, block_group group) noexcept {
    auto const g = static_cast<std::size_t>(group);  // 1 or 2
    group_numbers& its = groups_[g - 1];
    group_numbers const& other = groups_[2 - g];
    add_to<Kind, 0>(its, other, 1);
    add_to<Kind, 1>(its, other, static_cast<std::int64_t>(rounded));
    add_to<Kind, 2>(its, other, static_cast<std::int64_t>(requested));
  }
  template <change_kind Kind, std::size_t K>
  TARN_ALWAYS_INLINE void add_to(group_numbers& its, group_numbers const& other,
                                 std::int64_t amount) noexcept {
    group_number& n = its.of[K];
    if constexpr (Kind == change_kind::deallocation) {
      n.current -= amount;
    } else {
      std::int64_t const now = n.current += amount;
      n.allocated += amount;
      if (now > n.peak) [[unlikely]]
        n.peak = now;
      if (now + other.of[K].current > peak_of_all_[K]) [[unlikely]]
        peak_of_all_[K] = now + other.of[K].current;
    }
  }
  /// Counts a call of the thread that counts alone.
  void add_alone(tracked_update const& u) noexcept {
    add(u);
    if ((flags_.load(std::memory_order_relaxed) & watched_flag) == 0) return;
    change_marks(u);
    note_active(u.group);
  }
  /// Counts while a mark exists, blocks wait, or several threads count.
  TARN_NOINLINE void apply_slow(tracked_update const& u) noexcept {
    std::uint64_t const flags = flags_.load(std::memory_order_relaxed);
    bool const several = (flags & all_threads) != 0;
    if (has_error() && out_ != 0) return publish_with(u, static_cast<std::uint32_t>(flags) & ~out_);
    if (several && out_ != 0) {
      if ((static_cast<std::uint32_t>(flags) & ~out_) != 0) [[unlikely]]
        open_late(static_cast<std::uint32_t>(flags) & ~out_);
      if (u.rounded > 0 && !fits(u)) take_room_for(u);
    }
    if (out_ != 0) return add_within_room(u);
    add_alone(u);
    if (several) hand_out();
  }

  /// A number including waiting blocks. If it passes its peak while nothing waits, it passes the peak of `number`, too.
  [[nodiscard]] stat active(std::size_t k, std::size_t g) noexcept {
    stat s = number(k, g);
    s.current += waiting_[k][g];
    s.peak = max_of(s.peak, active_peak_[k][g]);
    s.freed -= not_over_[k][g];
    return s;
  }
  void note_active(block_group group) noexcept {
    for (std::size_t k = 0; k < 3; ++k) {
      for (std::size_t const g : {std::size_t{0}, static_cast<std::size_t>(group)})
        active_peak_[k][g] = max_of(active_peak_[k][g], current(k, g) + waiting_[k][g]);
    }
  }
  void note_whether_watched() noexcept {
    bool waits = false;
    for (auto const& kind : waiting_) {
      for (std::int64_t const amount : kind) waits = waits || amount != 0;
    }
    if (waits || marks_ != nullptr) {
      flags_.fetch_or(watched_flag, std::memory_order_relaxed);
    } else {
      flags_.fetch_and(~watched_flag, std::memory_order_relaxed);
    }
  }
  /// How far a number may grow before it, or its sum with the waiting blocks, passes its peak.
  [[nodiscard]] std::int64_t room(std::size_t k, std::size_t g) noexcept {
    std::int64_t const most = peak(k, g);
    return min_of(most, max_of(most, active_peak_[k][g]) - waiting_[k][g]) - current(k, g);
  }

  /// By how much the room that the shares leave is too small for a block: above 0, a peak may be passed if all shares are used up.
  [[nodiscard]] std::int64_t lacking(tracked_update const& u, std::size_t k, std::size_t g) noexcept {
    std::int64_t const lent = g == 0 ? lent_[0][k] + lent_[1][k] : lent_[g - 1][k];
    std::int64_t const wanted = u.by_kind()[k] + lent;
    std::int64_t most = wanted - room(k, g);
    for (high_water_mark const* m = k == 1 && g == 0 ? marks_ : nullptr; m != nullptr; m = m->next)
      most = max_of(most, m->current + wanted - m->peak);
    return most;
  }
  /// Whether a block can be added without a new peak, even if all shares are used up.
  [[nodiscard]] bool fits(tracked_update const& u) noexcept {
    for (std::size_t k = 0; k < 3; ++k) {
      for (std::size_t const g : {std::size_t{0}, static_cast<std::size_t>(u.group)}) {
        if (lacking(u, k, g) > 0) return false;
      }
    }
    return true;
  }
  /// Adds what a share counted. It stayed within its room, so no peak changes.
  [[nodiscard]] auto adding() noexcept {
    return [this](std::size_t k, std::size_t g, std::int64_t change, std::int64_t came) noexcept {
      if (g != 0) {
        of(k, g).current += change;
        of(k, g).allocated += came;
      }
      for (high_water_mark* m = g == 0 ? marks_ : nullptr; m != nullptr; m = m->next) {
        if (k == 0) m->allocations += came;
        if (k == 1) m->current += change;
      }
    };
  }
  /// Adds a call for which there is room, while shares are open: no peak changes. The numbers must not be compared with the peaks
  /// then: of two shares one may have reported blocks that took the room of blocks whose end the other has not reported.
  void add_within_room(tracked_update const& u) noexcept {
    auto const change = u.by_kind();
    auto const f = adding();
    for (std::size_t k = 0; k < 3; ++k) {
      for (std::size_t const g : {std::size_t{0}, static_cast<std::size_t>(u.group)})
        f(k, g, change[k], u.rounded > 0 ? change[k] : 0);
    }
  }
  /// Takes room for a block from what the shares offer. If that is not enough, there may be a new peak: the shares are closed.
  TARN_NOINLINE void take_room_for(tracked_update const& u) noexcept {
    std::size_t const mine = index_of(u.group);
    for (std::size_t k = 0; k < 3; ++k) {
      std::int64_t missing = max_of(lacking(u, k, 0), lacking(u, k, mine + 1));
      for (std::uint32_t left = out_; left != 0 && missing > 0; left &= left - 1) {
        tracked_share& its = share(static_cast<unsigned>(std::countr_zero(left)));
        std::int64_t const taken = its.take_offered(mine, k, missing);
        missing -= taken;
        lent_[mine][k] -= taken;
      }
      if (missing > 0) return call_in();
    }
  }
  /// Whether peaks may be off.
  [[nodiscard]] bool has_error() const noexcept { return error_[0] != 0; }
  /// Counts a call for which its thread's share has no room, and all that was counted there: peaks may be off.
  TARN_NOINLINE void publish_with(tracked_update const& u, std::uint32_t asked) noexcept {
    for (std::uint32_t left = asked; left != 0; left &= left - 1)
      share(static_cast<unsigned>(std::countr_zero(left))).open_bounded(error_);
    if (asked != 0) {
      out_ |= asked;
      open_.store(out_, std::memory_order_release);
    }
    if (u.place < share_count && (out_ >> u.place & 1) != 0) share(u.place).publish(adding());
    add_within_room(u);
    note_peaks();
  }
  /// Raises every peak to the current value.
  void note_peaks() noexcept {
    for (std::size_t k = 0; k < 3; ++k) {
      for (std::size_t g = 1; g < 3; ++g) of(k, g).peak = max_of(of(k, g).peak, of(k, g).current);
      peak_of_all_[k] = max_of(peak_of_all_[k], current(k, 0));
    }
    for (high_water_mark* m = marks_; m != nullptr; m = m->next) {
      if (m->current > m->peak) m->peak = m->current;
    }
    if ((flags_.load(std::memory_order_relaxed) & watched_flag) == 0) return;
    note_active(block_group::small);
    note_active(block_group::large);
  }
  /// Opens shares without room for threads that asked after the others: what such a thread frees is its room.
  TARN_NOINLINE void open_late(std::uint32_t asked) noexcept {
    for (std::uint32_t left = asked; left != 0; left &= left - 1)
      share(static_cast<unsigned>(std::countr_zero(left))).open({}, {});
    out_ |= asked;
    open_.store(out_, std::memory_order_release);
  }

  /// Gives each requesting thread an equal share of the room below every peak, half of it offered to all.
  TARN_NOINLINE void hand_out() noexcept {
    if (pause_ != 0) {
      --pause_;
      return;
    }
    auto const asked = static_cast<std::uint32_t>(flags_.load(std::memory_order_relaxed) & all_threads);
    int const takers = std::popcount(asked);
    if (takers < 2) return;
    if (make_shares() == nullptr) return;
    std::int64_t below_marks = room(1, 0);
    for (high_water_mark const* m = marks_; m != nullptr; m = m->next) {
      if (m->whose == peak_of::this_thread) return;  // a share does not distinguish its threads
      below_marks = min_of(below_marks, m->peak - m->current);
    }
    for (std::size_t k = 0; k < 3; ++k) {
      // Half of the room of all for each group, and what one cannot use for the other.
      std::int64_t const all = k == 1 ? below_marks : room(k, 0);
      std::int64_t const large = min_of(room(k, 2), all - min_of(room(k, 1), all / 2));
      lent_[0][k] = min_of(room(k, 1), all - large);
      lent_[1][k] = large;
    }
    std::int64_t takers_left = takers;
    tracked_room rest = lent_;
    for (std::uint32_t left = asked; left != 0; left &= left - 1, --takers_left) {
      tracked_share& its = share(static_cast<unsigned>(std::countr_zero(left)));
      if (has_error()) {
        its.open_bounded(error_);
        continue;
      }
      tracked_room room{};
      tracked_room offered{};
      for (std::size_t g = 0; g < 2; ++g) {
        for (std::size_t k = 0; k < 3; ++k) {
          std::int64_t const part = (rest[g][k] + takers_left - 1) / takers_left;
          rest[g][k] -= part;
          room[g][k] = part / 2;
          offered[g][k] = part - part / 2;
        }
      }
      its.open(room, offered);
    }
    out_ = asked;
    open_.store(asked, std::memory_order_release);
  }

  /// Closes all shares. The caller holds the lock.
  TARN_NOINLINE void call_in() noexcept {
    if (out_ == 0) return;
    open_.store(0, std::memory_order_relaxed);
    for_each_share(out_, [](tracked_share& s) { s.announce(); });
    remote_barrier();
    for_each_share(out_, [](tracked_share& s) { s.visit(); });
    std::uint64_t calls = 0;
    std::uint32_t idle = 0;
    for (std::uint32_t left = out_; left != 0; left &= left - 1) {
      auto const i = static_cast<unsigned>(std::countr_zero(left));
      std::uint64_t const made = share(i).close(adding());
      calls += made;
      if (made == 0) idle |= std::uint32_t{1} << i;
    }
    for_each_share(out_, [](tracked_share& s) { s.end_visit(); });
    if (has_error()) note_peaks();
    if (idle != 0) flags_.fetch_and(~std::uint64_t{idle}, std::memory_order_relaxed);
    bool const paid = calls >= least_calls * static_cast<std::uint64_t>(std::popcount(out_));
    last_pause_ = paid ? 0 : min_of(last_pause_ * 2 + 16, longest_pause);
    pause_ = last_pause_;
    out_ = 0;
  }
  template <class F>
  void for_each_share(std::uint32_t places, F const& f) noexcept {
    for (; places != 0; places &= places - 1) f(share(static_cast<unsigned>(std::countr_zero(places))));
  }

  void change_marks(tracked_update const& u) noexcept {
    for (high_water_mark* m = marks_; m != nullptr; m = m->next) {
      if (m->whose != peak_of::all_threads && m->thread != u.thread) continue;
      m->current += u.rounded;
      if (u.rounded < 0) continue;
      m->peak = max_of(m->peak, m->current);
      ++m->allocations;
    }
  }
  place_table const* const table_ = &places_of_threads;  ///< of the module that made this
  std::atomic<tracked_share*> shares_{nullptr};          ///< by place; made under the lock at first use; kept
  std::atomic<std::uint32_t> open_{0};                   ///< threads whose share is open; a hint
  /// Bits of the threads that found the lock taken or have a share, and watched_flag: there is a mark, or a block waits. 0: a call only
  /// adds.
  std::atomic<std::uint64_t> flags_{0};
  combining_lock<tracked_update> lock_;
  // Under the lock:
  std::array<group_numbers, 2> groups_;        ///< small, large
  std::array<std::int64_t, 3> peak_of_all_{};  ///< of the sums of both
  std::uint64_t ooms_ = 0;
  high_water_mark* marks_ = nullptr;
  tracked_amounts waiting_{};  ///< of the waiting blocks
  tracked_amounts
      active_peak_{};  ///< the maximum of a number plus waiting blocks, at the moments when something waited
  std::array<std::int64_t, 3>
      error_{};                 ///< by how much a share may differ from what it published; 0: peaks are exact
  tracked_amounts not_over_{};  ///< what started to wait since the totals were reset, less what stopped
  std::uint32_t out_ = 0;       ///< threads whose share is open
  tracked_room lent_{};         ///< the room of all open shares when their counts were last reported
  unsigned alone_ =
      thread_places;  ///< place of the thread that counts alone; its share's lock guards all numbers, too
  unsigned last_place_ = thread_places;  ///< of the call that was counted last
  std::uint32_t streak_ = 0;             ///< calls of that thread since another one's
  std::uint32_t least_streak_ = first_streak;
  bool visits_alone_ = false;
  std::uint32_t pause_ = 0;  ///< calls to count before shares are opened again
  std::uint32_t last_pause_ = 0;
  at_fork member_{this,
                  [](void* self) noexcept {
                    auto& n = *static_cast<tracked_numbers*>(self);
                    n.lock_.lock();
                    if (n.shares_.load(std::memory_order_relaxed) == nullptr) return true;
                    n.for_each_share(all_threads, [](tracked_share& s) { s.announce(); });
                    remote_barrier();
                    n.for_each_share(all_threads, [](tracked_share& s) { s.visit(); });
                    return true;
                  },
                  [](void* self, fork_side side) noexcept {
                    auto& n = *static_cast<tracked_numbers*>(self);
                    if (side != fork_side::parent) renew_remote_barrier();
                    if (n.shares_.load(std::memory_order_relaxed) != nullptr) {
                      n.for_each_share(all_threads, [side](tracked_share& s) {
                        if (side != fork_side::parent) s.forget_owner();
                        s.end_visit();
                      });
                    }
                    n.lock_.unlock();
                  }};
};

}  // namespace detail
}  // namespace tarn

namespace tarn {

template <class Upstream>
class tracked_layer;

/// Counts allocations, allocated (rounded) and requested bytes, for all blocks and separately for small and large ones.
struct tracked {
  /// By how many bytes a peak may be off for each thread that counts on its own: 0, the default, for exact peaks. Otherwise each peak,
  /// that of a high_water_mark included, lies at most n * peak_error bytes above or below the exact one, and peaks of blocks at most
  /// n * max(1, peak_error / 4096) blocks, for the n threads that used the pool concurrently, counted up to 32. It is exact as long
  /// as threads do not meet. Current values, totals, and the peaks of one thread stay exact.
  ///
  /// For programs with many threads: exact peaks cost them shared cache lines whenever live memory is near its peak. With 1 MiB,
  /// blocks above 1 MiB are counted under a common lock, and others nearly always without.
  std::size_t peak_error = 0;

  template <class Upstream>
  using layer = tracked_layer<Upstream>;
};

/// Exact with any number of threads: current and peak values are those of one order of events, peaks unless tracked::peak_error allows
/// a difference. A block is counted before its
/// address is returned and uncounted before it is freed, so an address that another thread gets at once is never counted twice.
/// Of several layers over one pool, each counts as active all blocks that wait in the pool. A block that starts waiting first
/// stops being allocated, within its deallocation: for that moment, another thread may see it as neither.
template <class Upstream>
class tracked_layer {
 public:
  static_assert(resource<Upstream>,
                "tarn: tracked counts blocks; put it over the pool: pages | pooled{} | tracked{}");
  using upstream_type = Upstream;
  using driver_type = typename Upstream::driver_type;
  using properties = typename Upstream::properties;

  /// Blocks up to this size are small, bytes (PyTorch: kSmallSize).
  static constexpr std::size_t small_limit = 1_MiB;

  tracked_layer()
    requires std::default_initializable<Upstream>
      : tracked_layer(Upstream{}) {}
  explicit tracked_layer(Upstream upstream, tracked const& options = {})
      : upstream_(std::move(upstream)), numbers_(options.peak_error) {
    if constexpr (reachable<Upstream, attach_call>) nearest(upstream_, attach_call{observer_});
  }
  tracked_layer(tracked_layer const&) = delete;
  tracked_layer& operator=(tracked_layer const&) = delete;
  ~tracked_layer() {
    if constexpr (reachable<Upstream, attach_call>) nearest(upstream_, detach_call{observer_});
  }

  void* allocate(stream_ref stream, std::size_t bytes, std::size_t alignment) {
    if constexpr (on_pool) {
      if (bytes == 0) return nullptr;
      detail::block_size const size(bytes, alignment);
      return count(size.bytes, bytes, [=, this]() TARN_ALWAYS_INLINE_LAMBDA {
        return upstream_.layer().allocate_sized(size, stream, bytes, alignment);
      });
    } else {
      return count(rounded(bytes, alignment), bytes,
                   [&] { return upstream_.allocate(stream, bytes, alignment); });
    }
  }
  void deallocate(stream_ref stream, void* p, std::size_t bytes, std::size_t alignment) noexcept {
    if (p == nullptr) return;
    if constexpr (on_pool) {
      detail::block_size const size(bytes, alignment);
      numbers_.count_deallocation(size.bytes, bytes, group_of(bytes));
      upstream_.layer().deallocate_sized(size, stream, p, bytes, alignment);
    } else {
      numbers_.count_deallocation(rounded(bytes, alignment), bytes, group_of(bytes));
      upstream_.deallocate(stream, p, bytes, alignment);
    }
  }
  void* allocate_sync(std::size_t bytes, std::size_t alignment) {
    return count(rounded(bytes, alignment), bytes, [&] { return upstream_.allocate_sync(bytes, alignment); });
  }
  void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment) noexcept {
    if (p == nullptr) return;
    numbers_.count_deallocation(rounded(bytes, alignment), bytes, group_of(bytes));
    upstream_.deallocate_sync(p, bytes, alignment);
  }

  /// Counts a block that belongs to the owner of a graph's memory as any other; see graph_memory::allocate().
  [[nodiscard]] void* allocate_for(detail::graph_owner& owner, stream_ref stream, std::size_t bytes,
                                   std::size_t alignment)
    requires detail::allocates_for_owners<Upstream>
  {
    return count(rounded(bytes, alignment), bytes,
                 [&] { return detail::layer_of(upstream_).allocate_for(owner, stream, bytes, alignment); });
  }

  [[nodiscard]] Upstream& upstream() noexcept { return upstream_; }
  [[nodiscard]] driver_type const& driver() const noexcept { return upstream_.driver(); }

  /// All counters at one moment.
  [[nodiscard]] tracked_statistics statistics() const noexcept { return numbers_.statistics(); }
  /// Restarts every peak from the current values; high-water marks of scopes are unaffected.
  void reset_peak_statistics() noexcept { numbers_.reset_peaks(); }
  /// Sets the totals (allocated, freed) and the count of refusals to zero.
  void reset_accumulated_statistics() noexcept { numbers_.reset_totals(); }

  /// Starts a high-water mark; it must stay in place until remove(). O(1).
  void add(high_water_mark& mark, peak_of whose) noexcept { numbers_.add(mark, whose); }
  /// Ends a high-water mark. O(marks).
  void remove(high_water_mark& mark) noexcept { numbers_.remove(mark); }
  /// The current values of the mark.
  [[nodiscard]] high_water_mark read(high_water_mark const& mark) const noexcept {
    return numbers_.read(mark);
  }

 private:
  /// Counts the blocks that the pool below holds back for the work of other streams.
  class observer final : public detail::waiting_observer {
   public:
    explicit observer(detail::tracked_numbers& counted) noexcept : numbers_(counted) {}
    void waiting_changed(detail::waiting_amount const& small,
                         detail::waiting_amount const& large) noexcept override {
      numbers_.count_waiting(small, large);
    }

   private:
    detail::tracked_numbers& numbers_;
  };
  struct attach_call {
    detail::waiting_observer& observer;
    template <class Layer>
    auto operator()(Layer& layer) const -> decltype(layer.observe_waiting(observer)) {
      return layer.observe_waiting(observer);
    }
  };
  struct detach_call {
    detail::waiting_observer& observer;
    template <class Layer>
    auto operator()(Layer& layer) const -> decltype(layer.end_observation(observer)) {
      return layer.end_observation(observer);
    }
  };

  /// Directly on a pool, a block's size is computed once, here, and passed down.
  static constexpr bool on_pool = [] {
    if constexpr (detail::is_shared<Upstream>) {
      return requires(typename Upstream::layer_type& pool, detail::block_size size) {
        pool.allocate_sized(size, stream_ref{}, std::size_t{}, std::size_t{});
      };
    }
    return false;
  }();

  template <class Allocate>
  TARN_ALWAYS_INLINE void* count(std::size_t rounded, std::size_t bytes, Allocate const& allocate) {
    void* p = nullptr;
    try {
      p = allocate();
    } catch (out_of_memory const&) {
      numbers_.count_refusal();
      throw;
    }
    if (p != nullptr) numbers_.count_allocation(rounded, bytes, group_of(bytes));
    return p;
  }
  [[nodiscard]] std::size_t rounded(std::size_t bytes, std::size_t alignment) noexcept {
    return detail::block_bytes_of(upstream_, bytes, alignment);
  }
  static block_group group_of(std::size_t bytes) noexcept {
    return bytes <= small_limit ? block_group::small : block_group::large;
  }

  Upstream upstream_;
  mutable detail::tracked_numbers numbers_;
  observer observer_{numbers_};
};

}  // namespace tarn

namespace tarn {

/// A tracked pool over any page source or resource.
template <class Source>
using pool_over = stack<Source, pooled, tracked>;

#if TARN_HAS_CUDA
/// A pool of the current device's memory: `tarn::device_pool pool;`, or of another: `device_pool
/// pool{cuda_pages{1}};`.
///
/// Where the device has no virtual memory management it uses blocks of cudaMalloc, and only sleep() is refused:
/// allocator_backend(pool) reports which.
///
/// It reports a double free to the misuse handler if the block has not been handed out again meanwhile: at once, or when the
/// thread's cached blocks return to the pool. It cannot detect a use after the free, an overrun, or a second free of a block that
/// has a new owner; `| checked{}` detects these, too.
using device_pool = pool_over<cuda_pages>;
#endif

}  // namespace tarn
// ---- tarn/policy/fallback_to.hpp
// fallback_to: a second resource for what the first one cannot serve, such as managed or host memory.
//
// Over 400 lines: each call of a pool is routed here.

#include <atomic>
#include <cstddef>
#include <mutex>
#include <utility>

// ---- tarn/policy/block_set.hpp
// A set of blocks that a policy treats differently, by address.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace tarn::detail {

/// Thread-safe. While the set is empty, contains() and erase() cost one relaxed load: a thread that frees a block was handed it
/// after it was inserted.
class block_set {
 public:
  /// Returns false if the block is there already. @throws std::bad_alloc, nothing has changed
  bool insert(void const* p) {
    std::lock_guard const guard(mutex_);
    if (blocks_.find(key_of(p))) return false;
    blocks_.make_room(1);
    blocks_.insert(key_of(p), true);
    count_.store(blocks_.size(), std::memory_order_relaxed);
    return true;
  }
  /// Returns true if the block was there.
  bool erase(void const* p) noexcept {
    if (size() == 0) return false;
    std::lock_guard const guard(mutex_);
    bool const found = blocks_.erase(key_of(p));
    count_.store(blocks_.size(), std::memory_order_relaxed);
    return found;
  }
  [[nodiscard]] bool contains(void const* p) const noexcept {
    if (size() == 0) return false;
    std::lock_guard const guard(mutex_);
    return blocks_.find(key_of(p));
  }
  [[nodiscard]] std::size_t size() const noexcept { return count_.load(std::memory_order_relaxed); }

 private:
  static std::uintptr_t key_of(void const* p) noexcept { return reinterpret_cast<std::uintptr_t>(p); }

  mutable fork_mutex mutex_;
  address_map<bool> blocks_;
  std::atomic<std::size_t> count_{0};
};

}  // namespace tarn::detail

namespace tarn {

template <class Upstream, class Other>
class fallback_layer;

/// Allocates from `other` when the upstream throws out_of_memory. Its memory must be usable wherever the upstream's is.
///
/// Pool calls reach both resources: record_stream() and owns() the one that the block belongs to; trim(), state(), reset_peaks(),
/// reset_totals(), note_growth() and inspect() both. The features of other layers (limits, exact statistics, records) work only
/// over this layer, where they cover the blocks of both.
template <class Other>
struct fallback_to {
  Other other;

  explicit fallback_to(Other resource) : other(std::move(resource)) {}

  template <class Upstream>
  using layer = fallback_layer<Upstream, Other>;
};

namespace detail {

/// The memory of captured graphs in two pools.
class two_graph_owners final : public graph_owner {
 public:
  two_graph_owners(owned<graph_owner> first, owned<graph_owner> second) noexcept
      : first_(std::move(first)), second_(std::move(second)) {}

  [[nodiscard]] capture_number begin_capture(stream_ref stream) override {
    {
      std::lock_guard const guard(mutex_);
      open_.reserve(open_.size() + ++expected_);
    }
    numbers made{};
    try {
      made.in_first = first_->begin_capture(stream);
      try {
        made.in_second = second_->begin_capture(stream);
      } catch (...) {
        first_->end_capture(made.in_first);
        throw;
      }
    } catch (...) {
      std::lock_guard const guard(mutex_);
      --expected_;
      throw;
    }
    std::lock_guard const guard(mutex_);
    --expected_;
    made.own = ++last_;
    open_.push_back(made);
    return made.own;
  }
  /// If it throws, the stream may have joined in the first pool.
  void join_capture(capture_number capture, stream_ref stream) override {
    numbers const of = find(capture);
    first_->join_capture(of.in_first, stream);
    second_->join_capture(of.in_second, stream);
  }
  void end_capture(capture_number capture) noexcept override {
    numbers const of = find(capture);
    second_->end_capture(of.in_second);
    first_->end_capture(of.in_first);
    std::lock_guard const guard(mutex_);
    for (std::size_t i = 0; i < open_.size(); ++i) {
      if (open_[i].own == capture) return open_.erase_unordered(i);
    }
  }
  [[nodiscard]] graph_state state() const override {
    graph_state const a = first_->state();
    graph_state const b = second_->state();
    return {a.reserved + b.reserved, a.allocated + b.allocated, a.kept + b.kept};
  }

 private:
  struct numbers {
    capture_number own = 0, in_first = 0, in_second = 0;
  };
  [[nodiscard]] numbers find(capture_number capture) const noexcept {
    std::lock_guard const guard(mutex_);
    for (numbers const& n : open_) {
      if (n.own == capture) return n;
    }
    return {};
  }
  owned<graph_owner> first_;
  owned<graph_owner> second_;
  mutable fork_mutex mutex_;
  sequence<numbers> open_;
  std::size_t expected_ = 0;  ///< captures that are being opened, for which there is room
  capture_number last_ = 0;
};

/// Whether one of two resources, or a layer below it, accepts a call.
template <class First, class Second, class Call>
concept either_reaches = reachable<First, Call> || reachable<Second, Call>;

}  // namespace detail

/// Each block returns to the resource that it came from: the addresses of fallback blocks are kept out of band. While none is
/// live, a deallocation costs one more relaxed load. Thread-safe.
template <class Upstream, class Other>
class fallback_layer : public resource_adaptor<fallback_layer<Upstream, Other>, Upstream> {
  using base = resource_adaptor<fallback_layer<Upstream, Other>, Upstream>;

 public:
  static_assert(resource<Other>,
                "tarn: fallback_to needs blocks; pages need a pool: fallback_to{pages | pooled{}}");
  static_assert(
      (has_property<Other, device_accessible> ||
       !has_property<Upstream, device_accessible>)&&(has_property<Other, host_accessible> ||
                                                     !has_property<Upstream, host_accessible>),
      "tarn: memory that fallback_to adds must be usable wherever the first is; for device memory use "
      "pinned_host or managed");
  using base::driver;
  using routes = routes_to<Upstream, Other>;

  fallback_layer(Upstream upstream, fallback_to<Other> options)
      : base(std::move(upstream)), other_(std::move(options.other)) {}
  /// Waits for captures in scopes, up to 10 s, if a block was freed whose uses a capture forbade to wait for. If one is open still,
  /// that block is never given back.
  ~fallback_layer() {
    if (late_count_.load(std::memory_order_relaxed) != 0)
      give_back_late(detail::wait_past_captures<typename base::driver_type>);
  }

  /// @throws out_of_memory  both refused; the error is the fallback's
  void* around_allocate(request const& r, auto const& next) {
    try {
      return next.allocate(r);
    } catch (out_of_memory const&) {
    }
    next_layer const other(other_);
    void* const p = other.allocate(r);
    if (p == nullptr) return p;
    try {
      blocks_.insert(p);
    } catch (...) {
      other.deallocate(r, p);
      throw;
    }
    return p;
  }
  void around_deallocate(request const& r, void* p, auto const& next) noexcept {
    // Waits for the device if record_stream() named a block that no pool holds back. If a capture forbids that, the block is freed later.
    if (used_.erase(p) && detail::is_of_capture(detail::wait_for_all_work(driver()))) [[unlikely]]
      return keep_late(r, p);
    if (late_count_.load(std::memory_order_relaxed) != 0) [[unlikely]]
      give_back_late(detail::wait_for_all_work<typename base::driver_type>);
    give_back(r, p, next);
  }

  // Pool calls, for both resources.

  /// Reaches the resource that the block belongs to. If that one has no pool, the block's deallocation waits for the whole
  /// device.
  /// @throws std::bad_alloc, cuda_error: nothing has changed
  void record_stream(void* p, std::size_t bytes, stream_ref stream)
    requires(detail::records_streams<Upstream> || detail::records_streams<Other>)
  {
    if (p == nullptr) return;
    detail::record_stream_call const use{p, bytes, stream};
    if (blocks_.contains(p)) {
      record_in(other_, use);
    } else {
      record_in(this->upstream(), use);
    }
  }
  /// Gives cached memory back until both together hold at most `keep_bytes`, the fallback's first; returns the bytes given
  /// back.
  std::size_t trim(std::size_t keep_bytes)
    requires detail::either_reaches<Upstream, Other, detail::routed_calls::trim>
  {
    std::size_t const first = reserved_in(this->upstream());
    std::size_t const given = trim_one(other_, keep_bytes > first ? keep_bytes - first : 0);
    std::size_t const second = reserved_in(other_);
    return given + trim_one(this->upstream(), keep_bytes > second ? keep_bytes - second : 0);
  }
  /// Puts each resource to sleep that can; if the second one fails, the first one is woken. @throws as they do
  std::size_t sleep(contents where)
    requires detail::either_reaches<Upstream, Other, detail::routed_calls::sleep>
  {
    auto const ask = [where](auto& l) -> decltype(static_cast<std::size_t>(l.sleep(where))) {
      return l.sleep(where);
    };
    try {
      return of_each(ask, [](std::size_t a, std::size_t b) { return a + b; });
    } catch (...) {
      try {
        (void)wake(after_waking::free_host_memory);
      } catch (...) {  // is_asleep() reports it
      }
      throw;
    }
  }
  /// Wakes both. If one fails, it is still asleep; call again.
  std::size_t wake(after_waking then)
    requires detail::either_reaches<Upstream, Other, detail::routed_calls::wake>
  {
    auto const ask = [then](auto& l) -> decltype(static_cast<std::size_t>(l.wake(then))) {
      return l.wake(then);
    };
    return of_each(ask, [](std::size_t a, std::size_t b) { return a + b; });
  }
  /// Compacts each that can be; the sums of both.
  compaction compact()
    requires detail::either_reaches<Upstream, Other, detail::routed_calls::compact>
  {
    auto const ask = [](auto& l) -> decltype(compaction(l.compact())) { return l.compact(); };
    return of_each(ask, [](compaction const& a, compaction const& b) {
      return compaction{a.released + b.released, a.live + b.live, a.stretches + b.stretches,
                        a.reserved + b.reserved};
    });
  }
  /// Whether either sleeps.
  [[nodiscard]] bool is_asleep()
    requires detail::either_reaches<Upstream, Other, detail::routed_calls::is_asleep>
  {
    auto const ask = [](auto& l) -> decltype(static_cast<bool>(l.is_asleep())) { return l.is_asleep(); };
    return of_each(ask, [](bool a, bool b) { return a || b; });
  }
  // Segments and pins: of the resource whose pool reserved the memory.

  /// @throws as pool::each_segment()
  template <class F>
  void each_segment(void const* p, std::size_t bytes, F const& f)
    requires detail::either_reaches<Upstream, Other, detail::routed_calls::each_segment>
  {
    to_owner(p, [&](auto& l) -> decltype(l.each_segment(p, bytes, f)) { l.each_segment(p, bytes, f); });
  }
  void pin(void const* p, std::size_t bytes)
    requires detail::either_reaches<Upstream, Other, detail::routed_calls::pin>
  {
    to_owner(p, [&](auto& l) -> decltype(l.pin(p, bytes)) { l.pin(p, bytes); });
  }
  void unpin(void const* p, std::size_t bytes) noexcept
    requires detail::either_reaches<Upstream, Other, detail::routed_calls::unpin>
  {
    to_owner(p, [&](auto& l) -> decltype(l.unpin(p, bytes)) { l.unpin(p, bytes); });
  }
  /// That of the first resource, or of the other one if only that has a pool.
  [[nodiscard]] char const* allocator_backend()
    requires detail::either_reaches<Upstream, Other, detail::routed_calls::allocator_backend>
  {
    return of_each(detail::routed_calls::allocator_backend{},
                   [](char const* first, char const*) { return first; });
  }
  /// Whether `p` lies in memory that either pool reserved.
  [[nodiscard]] bool owns(void const* p)
    requires detail::either_reaches<Upstream, Other, detail::routed_calls::owns>
  {
    auto const ask = [p](auto& l) -> decltype(static_cast<bool>(l.owns(p))) { return l.owns(p); };
    return of_each(ask, [](bool a, bool b) { return a || b; });
  }
  /// The larger one of both.
  [[nodiscard]] std::size_t largest_free_range()
    requires detail::either_reaches<Upstream, Other, detail::routed_calls::largest_free_range>
  {
    auto const ask = [](auto& l) -> decltype(static_cast<std::size_t>(l.largest_free_range())) {
      return l.largest_free_range();
    };
    return of_each(ask, [](std::size_t a, std::size_t b) { return detail::max_of(a, b); });
  }
  /// The bytes that a request occupies in either resource, the larger value if they round differently: it is needed before it
  /// is known which of them serves, and limits must hold for both.
  [[nodiscard]] std::size_t block_bytes(std::size_t bytes, std::size_t alignment) noexcept {
    return detail::max_of(detail::block_bytes_of(this->upstream(), bytes, alignment),
                          detail::block_bytes_of(other_, bytes, alignment));
  }
  /// The sum of both, each read at one moment. Peaks are an upper bound, see detail::sum_of_states().
  [[nodiscard]] pool_state state()
    requires detail::either_reaches<Upstream, Other, detail::routed_calls::state>
  {
    auto const ask = [](auto& l) -> decltype(pool_state(l.state())) { return l.state(); };
    return of_each(ask, detail::sum_of_states);
  }
  void reset_peaks()
    requires detail::either_reaches<Upstream, Other, detail::routed_calls::reset_peaks>
  {
    to_each([](auto& l) -> decltype(static_cast<void>(l.reset_peaks())) { l.reset_peaks(); });
  }
  void reset_totals()
    requires detail::either_reaches<Upstream, Other, detail::routed_calls::reset_totals>
  {
    to_each([](auto& l) -> decltype(static_cast<void>(l.reset_totals())) { l.reset_totals(); });
  }
  /// Notifies of waiting blocks in both. @throws std::bad_alloc, nothing has changed
  void observe_waiting(detail::waiting_observer& observer)
    requires detail::either_reaches<Upstream, Other, detail::routed_calls::observe_waiting>
  {
    try {
      to_each([&](auto& l) -> decltype(static_cast<void>(l.observe_waiting(observer))) {
        l.observe_waiting(observer);
      });
    } catch (...) {
      end_observation(observer);
      throw;
    }
  }
  void end_observation(detail::waiting_observer& observer) noexcept
    requires detail::either_reaches<Upstream, Other, detail::routed_calls::end_observation>
  {
    to_each([&](auto& l) -> decltype(static_cast<void>(l.end_observation(observer))) {
      l.end_observation(observer);
    });
  }
  /// @throws std::bad_alloc
  template <class Clock>
  void note_growth(std::size_t most, Clock clock)
    requires detail::either_reaches<Upstream, Other, detail::routed_calls::note_growth>
  {
    to_each([&](auto& l) -> decltype(static_cast<void>(l.note_growth(most, clock))) {
      l.note_growth(most, clock);
    });
  }
  /// @throws std::bad_alloc
  template <class Clock>
  void note_growth_from_now(std::size_t most, Clock clock)
    requires detail::either_reaches<Upstream, Other, detail::routed_calls::note_growth_from_now>
  {
    to_each([&](auto& l) -> decltype(static_cast<void>(l.note_growth_from_now(most, clock))) {
      l.note_growth_from_now(most, clock);
    });
  }
  /// Inspects one pool, then the other; see pool::inspect().
  template <class Look>
  void inspect(Look&& look)
    requires detail::either_reaches<Upstream, Other, detail::routed_calls::inspect>
  {
    to_each([&](auto& l) -> decltype(static_cast<void>(l.inspect(look))) { l.inspect(look); });
  }

  /// Makes an owner for the memory of captured graphs in both. @throws cuda_error, std::bad_alloc
  [[nodiscard]] detail::owned<detail::graph_owner> new_graph_memory()
    requires detail::either_reaches<Upstream, Other, detail::routed_calls::new_graph_memory>
  {
    return of_each(detail::routed_calls::new_graph_memory{}, [](auto first, auto second) {
      return detail::owned<detail::graph_owner>(
          new detail::two_graph_owners(std::move(first), std::move(second)));
    });
  }

  /// Number of live blocks that came from the fallback.
  [[nodiscard]] std::size_t fallback_blocks() const noexcept { return blocks_.size(); }

 private:
  /// Calls each resource that accepts the call, and joins the results.
  template <class Ask, class Join>
  auto of_each(Ask const& ask, Join const& join) {
    if constexpr (!reachable<Upstream, Ask>) {
      return nearest(other_, ask);
    } else if constexpr (!reachable<Other, Ask>) {
      return nearest(this->upstream(), ask);
    } else {
      return join(nearest(this->upstream(), ask), nearest(other_, ask));
    }
  }
  /// Calls the resource with the address; the one with a pool over pages if neither has it, which then refuses it.
  template <class Call>
  void to_owner(void const* p, Call const& call) {
    if constexpr (!reachable<Upstream, Call>) {
      nearest(other_, call);
    } else if constexpr (!reachable<Other, Call>) {
      nearest(this->upstream(), call);
    } else {
      bool const of_other =
          nearest(other_, [p](auto& l) -> decltype(static_cast<bool>(l.owns(p))) { return l.owns(p); });
      if (of_other) return static_cast<void>(nearest(other_, call));
      nearest(this->upstream(), call);
    }
  }
  template <class Call>
  void to_each(Call const& call) {
    if constexpr (reachable<Upstream, Call>) nearest(this->upstream(), call);
    if constexpr (reachable<Other, Call>) nearest(other_, call);
  }
  template <class Resource>
  static std::size_t trim_one(Resource& resource, std::size_t keep_bytes) {
    auto const ask = [&](auto& l) -> decltype(static_cast<std::size_t>(l.trim(keep_bytes))) {
      return l.trim(keep_bytes);
    };
    if constexpr (reachable<Resource, decltype(ask)>) {
      return nearest(resource, ask);
    } else {
      return 0;
    }
  }
  template <class Resource>
  static std::size_t reserved_in(Resource& resource) {
    auto const ask = [](auto& l) -> decltype(static_cast<std::size_t>(l.state().reserved)) {
      return l.state().reserved;
    };
    if constexpr (reachable<Resource, decltype(ask)>) {
      return nearest(resource, ask);
    } else {
      return 0;
    }
  }

  template <class Resource>
  void record_in(Resource& resource, detail::record_stream_call const& use) {
    if constexpr (detail::records_streams<Resource>) {
      nearest(resource, use);
    } else {
      used_.insert(use.p);
    }
  }

  /// A block whose uses on other streams could not be waited for when it was freed.
  struct late_block {
    request freed;
    void* p = nullptr;
  };
  void give_back(request const& r, void* p, next_layer<Upstream> const& next) noexcept {
    if (blocks_.erase(p)) {
      next_layer(other_).deallocate(r, p);
    } else {
      next.deallocate(r, p);
    }
  }
  /// Without host memory to note it, the block is never given back.
  TARN_NOINLINE void keep_late(request const& r, void* p) noexcept {
    std::lock_guard const guard(late_mutex_);
    try {
      late_.push_back({{stream_ref{}, r.bytes, r.alignment, call_kind::synchronous}, p});
      late_count_.fetch_add(1, std::memory_order_relaxed);
    } catch (...) {
    }
  }
  /// Gives back what waited for a capture, after the device's work.
  template <class Wait>
  TARN_NOINLINE void give_back_late(Wait const& wait) noexcept {
    detail::sequence<late_block> blocks;
    {
      std::lock_guard const guard(late_mutex_);
      blocks.swap(late_);
      late_count_.store(0, std::memory_order_relaxed);
    }
    bool const may_not = detail::is_of_capture(wait(driver()));
    for (late_block const& b : blocks) {
      if (may_not) {
        keep_late(b.freed, b.p);
      } else {
        give_back(b.freed, b.p, next_layer<Upstream>(this->upstream()));
      }
    }
  }

  Other other_;
  detail::fork_mutex late_mutex_;
  detail::sequence<late_block> late_;
  std::atomic<std::size_t> late_count_{0};
  detail::block_set blocks_;  ///< live blocks of the fallback
  detail::block_set used_;    ///< blocks that no pool holds back, with uses on other streams
};

}  // namespace tarn
// ---- tarn/policy/fenced.hpp
// fenced: guard bytes before and after every block, which detect writes past either end.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>

namespace tarn {

template <class Upstream>
class fenced_layer;

/// Guard bytes on both sides; at least `fence_bytes` each. For debugging.
struct fenced {
  std::size_t fence_bytes = 256;

  template <class Upstream>
  using layer = fenced_layer<Upstream>;
};

/// Fences are written in stream order at allocation and verified at deallocation and by check_all(). Verifying waits for the
/// stream on the host. It also detects pointers that are not live here, and wrong sizes. Findings go to the misuse handler; a
/// block that is not live is not passed on. Alignment is kept. Thread-safe: one mutex, not held while waiting for the device.
///
/// While the stream of a call is capturing a graph, nothing is written, waited for or verified for that call: a block allocated
/// then has no fences. Nor is anything verified while the pool sleeps.
template <class Upstream>
class fenced_layer : public resource_adaptor<fenced_layer<Upstream>, Upstream> {
  using base = resource_adaptor<fenced_layer<Upstream>, Upstream>;

 public:
  using base::driver;

  fenced_layer()
    requires std::default_initializable<Upstream>
      : fenced_layer(Upstream{}) {}
  explicit fenced_layer(Upstream upstream, fenced const& options = {})
      : base(std::move(upstream)), fences_(options.fence_bytes) {}

  void* around_allocate(request const& r, auto const& next) {
    if (r.bytes == 0) return nullptr;
    require_alignment(r.alignment);
    request const whole = fences_.whole_of(r);
    void* const whole_block = detail::asking_for(r.bytes, [&] { return next.allocate(whole); });
    void* const p = fences_.block_in(whole_block, r.alignment);
    try {
      build(r, p);
    } catch (...) {
      next.deallocate(whole.in_stream_order(), whole_block);  // a fence may still be written
      throw;
    }
    if (r.is_synchronous() && !detail::is_capturing(driver(), r.stream))
      (void)driver().synchronize_stream(r.stream);
    return p;
  }
  void around_deallocate(request const& r, void* p, auto const& next) noexcept {
    if (retire(r, p)) next.deallocate(fences_.whole_of(r), fences_.whole_of(p, r.alignment));
  }

  /// Passes on the block with its fences, as the pool knows it.
  void record_stream(void* p, std::size_t bytes, stream_ref stream)
    requires detail::records_streams<Upstream>
  {
    std::size_t alignment = 0;
    {
      std::lock_guard const guard(mutex_);
      alignment = blocks_.find(key_of(p)).alignment;
    }
    if (alignment == 0) return;  // deallocation will report it
    nearest(this->upstream(), detail::record_stream_call{fences_.whole_of(p, alignment),
                                                         fences_.whole_bytes(bytes, alignment), stream});
  }

  /// Verifies the fences of every block that was live at the call and is still live, reports broken ones and returns their
  /// number. Waits for the device; while a graph is captured, verifies nothing. Another thread's call waits at most for the verification
  /// of one block.
  /// @throws std::bad_alloc
  std::size_t check_all() {
    if (detail::sleeps(this->upstream())) return 0;
    struct candidate {
      std::uintptr_t p = 0;
      block b;
    };
    detail::sequence<candidate> all;
    {
      std::lock_guard const guard(mutex_);
      all.reserve(blocks_.size());
      blocks_.for_each([&](std::uintptr_t p, block const& b) { all.push_back({p, b}); });
    }
    // A block is recorded once its fences are queued, so after this wait they are written. Later blocks are not candidates.
    if (detail::is_of_capture(detail::wait_for_all_work(driver()))) return 0;
    detail::own_stream const reading(driver());
    std::size_t broken = 0;
    for (candidate const& c : all) {
      detail::breach found;
      {
        std::lock_guard const guard(mutex_);  // held, so that the block is not freed while it is read
        if (!is_fenced(c.b) || !(blocks_.find(c.p) == c.b)) continue;
        found =
            fences_.verify(driver(), reading.get(), reinterpret_cast<void*>(c.p), c.b.bytes, c.b.alignment);
      }
      if (!found) continue;
      ++broken;
      report(found);
    }
    return broken;
  }

  /// Puts the pool to sleep. Where contents are discarded, so are the fences of the blocks that are live now.
  std::size_t sleep(contents where)
    requires reachable<Upstream, detail::routed_calls::sleep>
  {
    bool const slept = detail::sleeps(this->upstream());
    std::size_t const given = detail::put_to_sleep(this->upstream(), where);
    std::lock_guard const guard(mutex_);
    if (!slept && where == contents::discarded) lost_ = numbered_;
    return given;
  }

  /// The bytes that a block occupies, including fences.
  [[nodiscard]] std::size_t block_bytes(std::size_t bytes, std::size_t alignment) noexcept {
    return bytes == 0
               ? 0
               : detail::block_bytes_of(this->upstream(), fences_.whole_bytes(bytes, alignment), alignment);
  }

 private:
  struct block {
    std::size_t bytes = 0;
    std::size_t alignment = 0;
    std::uint64_t number = 0;  ///< in the order of allocation: an address may be reused
    bool fenced = false;       ///< false if allocated during a capture
    friend bool operator==(block const&, block const&) = default;
  };
  [[nodiscard]] static std::uintptr_t key_of(void* p) noexcept { return reinterpret_cast<std::uintptr_t>(p); }
  [[nodiscard]] bool is_fenced(block const& b) const noexcept { return b.fenced && b.number > lost_; }

  /// Writes the fences and records the block. @throws std::bad_alloc, cuda_error: the block is not recorded
  void build(request const& r, void* p) {
    {
      std::lock_guard const guard(mutex_);
      blocks_.make_room(promised_ + 1);
      ++promised_;
    }
    bool const fenced = !detail::is_capturing(driver(), r.stream);
    status const s = fenced ? fences_.draw(driver(), r.stream, p, r.bytes, r.alignment) : status{};
    {
      std::lock_guard const guard(mutex_);
      --promised_;
      // Recorded after its fences are queued: otherwise check_all() would report a fence that is not yet there.
      if (s.ok()) blocks_.insert(key_of(p), {r.bytes, r.alignment, ++numbered_, fenced});
    }
    if (!s.ok()) throw cuda_error(s, driver().device().value);
  }

  /// Verifies and forgets a block; returns false if it must not be passed on. The handler is called without the mutex, since it
  /// may use this very resource.
  bool retire(request const& r, void* p) noexcept {
    block b{};
    bool matches = false;
    bool has_fences = false;
    {
      std::lock_guard const guard(mutex_);
      b = blocks_.find(key_of(p));
      matches = b.bytes == r.bytes && b.alignment == r.alignment;
      has_fences = is_fenced(b);
      if (matches) (void)blocks_.erase(key_of(p));
    }
    if (b == block{}) {
      report(misuse_kind::foreign_pointer, p,
             "is not live in this resource: freed twice, or allocated by another resource", 0);
      return false;
    }
    if (!matches) {
      auto const kind = b.bytes != r.bytes ? misuse_kind::wrong_size : misuse_kind::wrong_alignment;
      report(kind, p, "was freed with a different size or alignment; its allocated size in bytes is ",
             b.bytes);
      return false;
    }
    if (!has_fences || detail::sleeps(this->upstream())) return true;
    stream_ref on = r.stream;
    if (!detail::make_usable(driver(), on) || detail::is_capturing(driver(), on)) return true;
    if (detail::breach const found = fences_.verify(driver(), on, p, r.bytes, r.alignment)) report(found);
    return true;
  }

  static void report(detail::breach const& found) noexcept {
    if (found.before != 0)
      report(misuse_kind::overrun, found.p, "was written before its start, at distance ", found.before);
    if (found.after != 0)
      report(misuse_kind::overrun, found.p, "was written past its end, at offset ", found.after);
  }
  static void report(misuse_kind kind, void const* p, std::string_view what, std::size_t number) noexcept {
    message<256> text;
    text.add("block ").add_hex(reinterpret_cast<std::uintptr_t>(p)).add(" ").add(what);
    if (number != 0) text.add_number(number);
    report_misuse(misuse(kind, p, text.view()));
  }

  detail::fences fences_;
  detail::fork_mutex mutex_;
  detail::address_map<block> blocks_;
  std::size_t promised_ = 0;  ///< blocks whose fences are being queued; there is room for them
  std::uint64_t numbered_ = 0;
  std::uint64_t lost_ = 0;  ///< blocks up to this number have no fences: their contents were discarded
};

}  // namespace tarn
// ---- tarn/policy/headroom.hpp
// headroom: device memory that a pool leaves to others: NCCL, cuBLAS, another pool, another process.

#include <atomic>
#include <cstddef>
#include <mutex>
#include <new>
#include <utility>

namespace tarn {

template <class Upstream>
class headroom_layer;

/// Leaves `bytes` of the device free: `cuda_pages{} | headroom{2_GiB} | pooled{} | tracked{}`. Its place is under the pool. A growth
/// that would leave less is refused; the pool then gives back what it caches and tries again, and asks other pools on the device,
/// before out_of_memory reaches the caller. While nothing else has taken the headroom, an allocation of up to `bytes` by another
/// user of the device succeeds at any moment, whatever the pool does meanwhile. Once it was taken, the pool restores it at its next
/// growth, or at keep_headroom(). Several pools of a process may keep headroom on one device: they count each other's growth in
/// progress. Another process's growth at the same instant is not seen.
///
/// On CUDA 16 MiB more stay free, since cudaMalloc may need that beside its bytes.
///
/// Costs one query of the device's free memory for each handle or segment that is created: 5 to 100 us.
struct headroom {
  std::size_t bytes = 0;

  template <class Upstream>
  using layer = headroom_layer<Upstream>;
};

namespace detail {

/// What the layers over drivers of this type are about to take from a device, bytes. Thread-safe.
template <class Driver>
class planned_growth {
 public:
  /// Made at first use and never destroyed: threads may still use pools while the process exits.
  static planned_growth& of_module() noexcept {
    alignas(planned_growth) static std::byte storage[sizeof(planned_growth)];
    static planned_growth& all = *::new (static_cast<void*>(storage)) planned_growth;
    return all;
  }
  /// Every caller has a user of it.
  [[nodiscard]] static_mutex& mutex() noexcept { return mutex_; }

  /// Plans to take `bytes`, unless the device would then have less than `rest` free. Returns false if so. Of a growth in progress it
  /// is unknown whether the device has given the memory already: if that decides, waits for it, up to 10 ms.
  /// @param free  receives what the device has free, unknown if the driver cannot report it; then nothing is refused
  [[nodiscard]] bool plan(Driver const& driver, std::size_t bytes, std::size_t rest, std::size_t& free) {
    std::lock_guard const guard(mutex_);  // nothing else is planned while this waits
    std::atomic<std::size_t>& planned = planned_[place_of(driver)];
    auto const has_room = [&](std::size_t left) { return bytes <= left && left - bytes >= rest; };
    for (unsigned tries = 0;;) {
      // Before the query: a growth that ends in between is counted twice, rather than not at all.
      std::size_t const in_progress = planned.load(std::memory_order_acquire);
      std::size_t total = 0;
      if (!driver.memory_info(free, total).ok()) {
        free = memory_report::unknown;
        break;
      }
      if (has_room(free > in_progress ? free - in_progress : 0)) break;
      if (in_progress == 0 || !has_room(free)) return false;
      while (planned.load(std::memory_order_relaxed) == in_progress) {
        if (tries == most_tries) return false;
        spin_wait(tries++);
      }
    }
    planned.fetch_add(bytes, std::memory_order_relaxed);
    return true;
  }
  /// The device has given the bytes, or has refused them.
  void done(Driver const& driver, std::size_t bytes) noexcept {
    planned_[place_of(driver)].fetch_sub(bytes, std::memory_order_release);
  }

 private:
  static constexpr std::size_t places = 64;  // devices that share one only see more growth than there is
  static std::size_t place_of(Driver const& driver) noexcept {
    return static_cast<std::size_t>(driver.device().value) % places;
  }

  static constexpr unsigned most_tries = 10'000;  ///< 5 to 10 ms, see spin_wait()

  static_mutex mutex_;
  std::atomic<std::size_t> planned_[places]{};
};

/// The common part for pages and for blocks.
template <class Layer, class Upstream>
class headroom_base : public resource_adaptor<Layer, Upstream> {
 public:
  headroom_base(Upstream upstream, headroom const& options)
      : resource_adaptor<Layer, Upstream>(std::move(upstream)), bytes_(options.bytes) {}

  /// What stays free while the pool grows, bytes: what others can take, and what the driver needs beside that.
  [[nodiscard]] std::size_t headroom_bytes() const noexcept {
    return bytes_ != 0 ? bytes_ + allocation_overhead(this->driver()) : 0;
  }
  /// How much less than that the device has free now, bytes; 0 if the driver cannot report it. One driver call, 5 to 100 us.
  [[nodiscard]] std::size_t headroom_lacking() const noexcept {
    std::size_t free = 0;
    std::size_t total = 0;
    if (!this->driver().memory_info(free, total).ok()) return 0;
    std::size_t const wanted = headroom_bytes();
    return wanted > free ? wanted - free : 0;
  }
  /// Plain blocks leave the headroom, too. @throws out_of_memory, as the layer's other calls
  [[nodiscard]] void* allocate_plain(std::size_t bytes)
    requires has_plain_blocks<Upstream>
  {
    return beside_headroom({stream_ref{}, bytes, default_alignment},
                           [&] { return this->upstream().allocate_plain(bytes); });
  }
  void deallocate_plain(void* p, std::size_t bytes) noexcept
    requires has_plain_blocks<Upstream>
  {
    this->upstream().deallocate_plain(p, bytes);
  }

 protected:
  template <class Allocate>
  auto beside_headroom(request const& r, Allocate const& allocate) {
    std::size_t free = 0;
    if (!planned_.plan(this->driver(), r.bytes, headroom_bytes(), free)) refuse(r, free);
    class in_progress {
     public:
      in_progress(headroom_base& layer, std::size_t bytes) noexcept : layer_(layer), bytes_(bytes) {}
      in_progress(in_progress const&) = delete;
      in_progress& operator=(in_progress const&) = delete;
      ~in_progress() { layer_.planned_.done(layer_.driver(), bytes_); }

     private:
      headroom_base& layer_;
      std::size_t bytes_;
    } const growth(*this, r.bytes);
    return allocate();
  }

 private:
  [[noreturn]] TARN_NOINLINE void refuse(request const& r, std::size_t free) const {
    memory_report report;
    report.asked = r.bytes;
    report.alignment = r.alignment;
    report.device = this->driver().device().value;
    report.stream = r.stream.id();
    report.device_free = free;
    report.headroom = bytes_;
    report.refused_by = "headroom";
    throw out_of_memory(report);
  }

  std::size_t const bytes_;
  /// Of the constructing module; another one may destroy this.
  planned_growth<typename Upstream::driver_type>& planned_ =
      planned_growth<typename Upstream::driver_type>::of_module();
  static_mutex::user const user_{planned_.mutex()};
};

}  // namespace detail

/// The headroom beside blocks: of cudaMalloc and cudaMallocAsync, whose own pool must be trimmed to leave any.
template <class Upstream>
class headroom_layer : public detail::headroom_base<headroom_layer<Upstream>, Upstream> {
  using base = detail::headroom_base<headroom_layer, Upstream>;

 public:
  using base::base;
  static_assert(!detail::records_streams<Upstream>,
                "tarn: headroom bounds what a pool takes from the device; put it under the pool: "
                "cuda_pages{} | headroom{2_GiB} | pooled{}");
  static_assert(!has_property<Upstream, host_accessible>,
                "tarn: headroom is memory of a device; this source has host memory, use limited{} for it");

  /// @throws out_of_memory  the device would have less than the headroom free
  void* around_allocate(request const& r, auto const& next) {
    return this->beside_headroom(r, [&] { return next.allocate(r); });
  }
};

/// The headroom beside pages. It is a page source itself, so a pool can use it.
template <page_source Upstream>
class headroom_layer<Upstream> : public detail::headroom_base<headroom_layer<Upstream>, Upstream> {
  using base = detail::headroom_base<headroom_layer, Upstream>;

 public:
  using base::base;
  static_assert(!has_property<Upstream, host_accessible>,
                "tarn: headroom is memory of a device; this source has host memory, use limited{} for it");

  [[nodiscard]] std::size_t granularity() const noexcept { return this->upstream_.granularity(); }
  [[nodiscard]] void* reserve(std::size_t bytes) { return this->upstream().reserve(bytes); }
  void unreserve(void* p, std::size_t bytes) noexcept { this->upstream().unreserve(p, bytes); }
  /// @throws out_of_memory  the device would have less than the headroom free
  [[nodiscard]] page_handle create(std::size_t bytes) {
    return this->beside_headroom({stream_ref{}, bytes, granularity()},
                                 [&] { return this->upstream().create(bytes); });
  }
  void destroy(page_handle handle, std::size_t bytes) noexcept { this->upstream().destroy(handle, bytes); }
  void map(void* p, std::size_t bytes, page_handle handle) { this->upstream().map(p, bytes, handle); }
  void unmap(void* p, std::size_t bytes) noexcept { this->upstream().unmap(p, bytes); }
};

/// Gives cached memory of a pool back to the device until its headroom is free again, or nothing is cached. Waits for the streams
/// that freed it. Returns the bytes given back. For programs in which others took the headroom while the pool did not grow.
/// Two driver calls of 5 to 100 us if the headroom is free. @throws cuda_error
template <class Resource>
std::size_t keep_headroom(Resource const& memory, source_location where = source_location::current()) {
  auto const lacking = [](auto& layer) -> decltype(layer.headroom_lacking()) {
    return layer.headroom_lacking();
  };
  auto const held = [](auto& layer) -> decltype(layer.state()) { return layer.state(); };
  static_assert(reachable<Resource, decltype(lacking)> && reachable<Resource, decltype(held)>,
                "tarn: keep_headroom needs a pool over headroom: cuda_pages{} | headroom{2_GiB} | pooled{}");
  std::size_t const bytes = nearest(memory, lacking);
  if (bytes == 0) return 0;
  std::size_t const reserved = nearest(memory, held).reserved;
  return memory.trim(reserved > bytes ? reserved - bytes : 0, where);
}

}  // namespace tarn
// ---- tarn/policy/limited.hpp
// limited: a bound on bytes. Its position decides which: over a pool it bounds live bytes, under it reserved bytes.

#include <cstddef>
#include <utility>

// ---- tarn/policy/byte_budget.hpp
// byte_budget: bytes that many threads share, under a limit; threads may wait for some of them.

#include <atomic>
#include <cstddef>
#include <mutex>
#include <utility>

namespace tarn::detail {

/// An additional, temporary bound on a budget; linked into the budget, so it must stay in place.
struct budget_bound {
  std::size_t bytes = 0;  ///< upper bound for the used bytes
  budget_bound* next = nullptr;
};

/// A thread that waits for bytes of a budget; linked into the budget, so it must stay in place.
class budget_waiter {
 public:
  explicit budget_waiter(std::size_t bytes) noexcept : bytes_(bytes) {}
  budget_waiter(budget_waiter const&) = delete;
  budget_waiter& operator=(budget_waiter const&) = delete;
  /// Called once, when it has the bytes, under the budget's lock.
  virtual void wake() noexcept = 0;
  virtual ~budget_waiter() = default;

 private:
  friend class byte_budget;

  std::size_t const bytes_;
  budget_waiter* next_ = nullptr;
  unsigned passed_by_ = 0;  ///< later requests that were served before it
  bool has_bytes_ = false;
};

/// So many later requests may be served before one that waits. Without a bound, small requests could keep a large one waiting for
/// ever; with 0, a large request would hold up all others while memory is free. 16: examples/reservations.cpp has as many tasks.
inline constexpr unsigned most_passes = 16;

/// A budget that cannot be exceeded by races. The smallest of the limit and all bounds is in force, so bounds may begin and end
/// in any order, on any threads. take() and give() are lock-free while no thread waits; other calls take a lock.
///
/// Requests that wait are served in the order in which they came, but one that fits is served before one that does not, at most
/// most_passes times. In a forked child the waiting threads of the parent do not exist and are forgotten.
class byte_budget {
 public:
  explicit byte_budget(std::size_t limit) noexcept : limit_(limit), own_limit_(limit) {}
  byte_budget(byte_budget const&) = delete;
  byte_budget& operator=(byte_budget const&) = delete;

  /// Returns false if the bytes do not fit; nothing has changed. Does not wait for those that wait.
  [[nodiscard]] bool take(std::size_t bytes) noexcept {
    // give() frees bytes before it looks for waiters, and wait_for() adds a waiter before it looks for bytes: one of them sees the
    // other, since all four accesses are in one order.
    std::size_t used = used_.load(std::memory_order_seq_cst);
    do {
      std::size_t const limit = limit_.load(std::memory_order_relaxed);
      if (used > limit || bytes > limit - used) return false;
    } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
    return true;
  }
  void give(std::size_t bytes) noexcept {
    used_.fetch_sub(bytes, std::memory_order_seq_cst);
    if (waiting_.load(std::memory_order_seq_cst) != 0) [[unlikely]]
      serve_waiting();
  }

  [[nodiscard]] std::size_t used() const noexcept { return used_.load(std::memory_order_relaxed); }
  /// The limit in force.
  [[nodiscard]] std::size_t limit() const noexcept { return limit_.load(std::memory_order_relaxed); }
  /// Sets the limit, and returns the previous one; bounds stay.
  std::size_t set_limit(std::size_t limit) noexcept {
    std::lock_guard const guard(lock_);
    std::size_t const before = std::exchange(own_limit_, limit);
    put_in_force();
    return before;
  }
  /// Allows at most `more` bytes beyond those used now, until remove(bound).
  void add(budget_bound& bound, std::size_t more) noexcept {
    std::lock_guard const guard(lock_);
    std::size_t const now = used();
    bound.bytes = more < ~std::size_t{0} - now ? now + more : ~std::size_t{0};
    bound.next = std::exchange(bounds_, &bound);
    put_in_force();
  }
  /// Ends a bound. O(bounds).
  void remove(budget_bound& bound) noexcept {
    std::lock_guard const guard(lock_);
    for (budget_bound** at = &bounds_; *at != nullptr; at = &(*at)->next) {
      if (*at != &bound) continue;
      *at = bound.next;
      break;
    }
    put_in_force();
  }

  /// Returns how many threads wait.
  [[nodiscard]] unsigned waiting() const noexcept { return waiting_.load(std::memory_order_relaxed); }
  /// Takes bytes if they fit and no request that waits has been passed too often. O(waiters).
  [[nodiscard]] bool take_in_turn(std::size_t bytes) noexcept {
    std::lock_guard const guard(lock_);
    for (budget_waiter const* w = waiters_; w != nullptr; w = w->next_) {
      if (w->passed_by_ >= most_passes) return false;
    }
    if (!take(bytes)) return false;
    for (budget_waiter* w = waiters_; w != nullptr; w = w->next_) ++w->passed_by_;
    return true;
  }
  /// Begins to wait for the waiter's bytes; its wake() may be called before this returns. Returns false, and does not wait, if the
  /// limit without its bounds is below them. O(waiters).
  [[nodiscard]] bool wait_for(budget_waiter& waiter) noexcept {
    std::lock_guard const guard(lock_);
    if (waiter.bytes_ > own_limit_) return false;
    budget_waiter** at = &waiters_;
    while (*at != nullptr) at = &(*at)->next_;
    *at = &waiter;
    waiting_.fetch_add(1, std::memory_order_seq_cst);
    serve();
    return true;
  }
  /// Ends a wait, and returns whether the waiter has its bytes. Then no other thread refers to it any more. O(waiters).
  [[nodiscard]] bool stop_waiting(budget_waiter& waiter) noexcept {
    std::lock_guard const guard(lock_);
    if (waiter.has_bytes_) return true;
    for (budget_waiter** at = &waiters_; *at != nullptr; at = &(*at)->next_) {
      if (*at != &waiter) continue;
      unlink(at);
      break;
    }
    serve();  // it may have been passed too often, and held up later ones
    return false;
  }

 private:
  void put_in_force() noexcept {
    std::size_t smallest = own_limit_;
    for (budget_bound const* b = bounds_; b != nullptr; b = b->next) smallest = min_of(smallest, b->bytes);
    limit_.store(smallest, std::memory_order_relaxed);
    serve();
  }
  TARN_NOINLINE void serve_waiting() noexcept {
    std::lock_guard const guard(lock_);
    serve();
  }
  /// Gives bytes to the waiters that may have them. Under the lock. O(waiters) for each that is served.
  void serve() noexcept {
    for (budget_waiter** at = &waiters_; *at != nullptr;) {
      budget_waiter& w = **at;
      if (take(w.bytes_)) {
        for (budget_waiter* earlier = waiters_; earlier != &w; earlier = earlier->next_)
          ++earlier->passed_by_;
        unlink(at);
        w.has_bytes_ = true;
        w.wake();
        at = &waiters_;  // an earlier one may have been passed too often now
      } else if (w.passed_by_ >= most_passes) {
        return;
      } else {
        at = &w.next_;
      }
    }
  }
  void unlink(budget_waiter** at) noexcept {
    *at = (*at)->next_;
    waiting_.fetch_sub(1, std::memory_order_seq_cst);
  }

  static bool take_lock(void* self) noexcept {
    static_cast<byte_budget*>(self)->lock_.lock();
    return true;
  }
  static void release_lock(void* self, fork_side side) noexcept {
    auto& budget = *static_cast<byte_budget*>(self);
    if (side != fork_side::parent) {
      budget.waiters_ = nullptr;
      budget.waiting_.store(0, std::memory_order_relaxed);
    }
    budget.lock_.unlock();
  }

  std::atomic<std::size_t> used_{0};
  std::atomic<std::size_t> limit_;  ///< in force
  std::atomic<unsigned> waiting_{0};
  // Under the lock:
  spin_lock lock_;
  std::size_t own_limit_;
  budget_bound* bounds_ = nullptr;
  budget_waiter* waiters_ = nullptr;  ///< in the order in which they came
  at_fork member_{this, &take_lock, &release_lock};
};

}  // namespace tarn::detail

namespace tarn {

template <class Upstream>
class limited_layer;

/// Refuses allocations that would exceed `limit` bytes. Over a pool, blocks count as the pool rounds them.
struct limited {
  std::size_t limit = 0;

  template <class Upstream>
  using layer = limited_layer<Upstream>;
};

namespace detail {

/// The common part of both kinds of limit: the budget, and the refusal.
template <class Layer, class Upstream>
class limited_base : public resource_adaptor<Layer, Upstream> {
 public:
  limited_base(Upstream upstream, std::size_t limit)
      : resource_adaptor<Layer, Upstream>(std::move(upstream)), budget_(limit) {}

  /// Bytes that count against the limit now.
  [[nodiscard]] std::size_t used() const noexcept { return budget_.used(); }
  /// The limit in force: the layer's own, or that of a live budget_scope if it is smaller.
  [[nodiscard]] std::size_t limit() const noexcept { return budget_.limit(); }
  /// The upstream's plain blocks count against the same limit. @throws out_of_memory, as the layer's other calls
  [[nodiscard]] void* allocate_plain(std::size_t bytes)
    requires has_plain_blocks<Upstream>
  {
    return within_budget(bytes, {stream_ref{}, bytes, default_alignment},
                         [&] { return this->upstream().allocate_plain(bytes); });
  }
  void deallocate_plain(void* p, std::size_t bytes) noexcept
    requires has_plain_blocks<Upstream>
  {
    this->upstream().deallocate_plain(p, bytes);
    budget_.give(bytes);
  }

  /// Changes the layer's own limit and returns the previous one; if it is below used(), allocations are refused until enough is
  /// freed. Live budget_scopes stay in force. Thread-safe.
  std::size_t set_limit(std::size_t bytes) noexcept { return budget_.set_limit(bytes); }
  /// Begins an additional bound, of `more` bytes above used(); it must stay in place until remove(). For budget_scope.
  void add(detail::budget_bound& bound, std::size_t more) noexcept { budget_.add(bound, more); }
  /// Ends a bound; in any order, from any thread. O(bounds).
  void remove(detail::budget_bound& bound) noexcept { budget_.remove(bound); }

 protected:
  /// Runs `allocate` within the budget: a refusal or an upstream failure uses none of it.
  template <class Allocate>
  TARN_ALWAYS_INLINE auto within_budget(std::size_t counted, request const& r, Allocate const& allocate) {
    if (!budget_.take(counted)) [[unlikely]]
      refuse(r.stream, r.bytes, r.alignment);
    try {
      return allocate();
    } catch (...) {
      budget_.give(counted);
      throw;
    }
  }

  byte_budget budget_;

 private:
  [[noreturn]] TARN_NOINLINE void refuse(stream_ref stream, std::size_t bytes, std::size_t alignment) const {
    memory_report r;
    r.asked = bytes;
    r.alignment = alignment;
    r.device = this->driver().device().value;
    r.stream = stream.id();
    r.live = used();
    r.limit = limit();
    r.limit_used = used();
    r.refused_by = "limited";
    throw out_of_memory(r);
  }
};

}  // namespace detail

/// The limit over a resource: bounds live bytes. Two relaxed atomic operations per allocation and free.
template <class Upstream>
class limited_layer : public detail::limited_base<limited_layer<Upstream>, Upstream> {
  using base = detail::limited_base<limited_layer, Upstream>;

 public:
  limited_layer(Upstream upstream, limited const& options) : base(std::move(upstream), options.limit) {}

  /// @throws out_of_memory  the limit, or the upstream, refused; no budget was used
  TARN_ALWAYS_INLINE void* around_allocate(request const& r, auto const& next) {
    return this->within_budget(counted(r), r, [&] { return next.allocate(r); });
  }
  TARN_ALWAYS_INLINE void around_deallocate(request const& r, void* p, auto const& next) noexcept {
    next.deallocate(r, p);
    this->budget_.give(counted(r));
  }
  /// The bytes under the limit. For reservations.
  [[nodiscard]] detail::byte_budget& budget() noexcept { return this->budget_; }

 private:
  [[nodiscard]] std::size_t counted(request const& r) noexcept {
    if (r.bytes > max_request_bytes) return r.bytes;
    return detail::block_bytes_of(this->upstream(), r.bytes, r.alignment);
  }
};

/// The limit over a page source: bounds physical bytes. It is a page source itself, so a pool can use it.
template <page_source Upstream>
class limited_layer<Upstream> : public detail::limited_base<limited_layer<Upstream>, Upstream> {
  using base = detail::limited_base<limited_layer, Upstream>;

 public:
  limited_layer(Upstream upstream, limited const& options) : base(std::move(upstream), options.limit) {}

  [[nodiscard]] std::size_t granularity() const noexcept { return this->upstream_.granularity(); }
  [[nodiscard]] void* reserve(std::size_t bytes) { return this->upstream().reserve(bytes); }
  void unreserve(void* p, std::size_t bytes) noexcept { this->upstream().unreserve(p, bytes); }
  /// @throws out_of_memory  the limit, or the device, refused; no budget was used
  [[nodiscard]] page_handle create(std::size_t bytes) {
    return this->within_budget(bytes, {stream_ref{}, bytes, granularity()},
                               [&] { return this->upstream().create(bytes); });
  }
  void destroy(page_handle handle, std::size_t bytes) noexcept {
    this->upstream().destroy(handle, bytes);
    this->budget_.give(bytes);
  }
  void map(void* p, std::size_t bytes, page_handle handle) { this->upstream().map(p, bytes, handle); }
  void unmap(void* p, std::size_t bytes) noexcept { this->upstream().unmap(p, bytes); }
};

}  // namespace tarn
// ---- tarn/policy/poisoned.hpp
// poisoned: fills memory at allocation and deallocation, so that reading it too early or too late becomes visible.

#include <concepts>
#include <cstddef>
#include <utility>

namespace tarn {

template <class Upstream>
class poisoned_layer;

/// Fills with pattern::uninitialised at allocation and pattern::freed at deallocation. For debugging.
struct poisoned {
  template <class Upstream>
  using layer = poisoned_layer<Upstream>;
};

/// Costs one fill of the whole block per call, in stream order (about 2 us, plus its bytes at memory bandwidth). Never
/// synchronises, except for the _sync calls, which wait for their fill, and if the stream of a deallocation may be destroyed
/// and its work cannot be ordered on the device. Fills nothing while the stream is capturing a graph or the pool sleeps.
template <class Upstream>
class poisoned_layer : public resource_adaptor<poisoned_layer<Upstream>, Upstream> {
  using base = resource_adaptor<poisoned_layer<Upstream>, Upstream>;

 public:
  using base::driver;

  poisoned_layer()
    requires std::default_initializable<Upstream>
      : poisoned_layer(Upstream{}) {}
  explicit poisoned_layer(Upstream upstream, poisoned const& = {}) : base(std::move(upstream)) {}

  void* around_allocate(request const& r, auto const& next) {
    void* const p = next.allocate(r);
    if (p == nullptr || detail::is_capturing(driver(), r.stream)) return p;
    (void)detail::fill_bytes(driver(), r.stream, p, pattern::uninitialised, r.bytes);
    if (!r.is_synchronous()) return p;
    if (status const s = driver().synchronize_stream(r.stream); !s.ok()) {
      // The fill may still run, and would overwrite what the caller writes: free the block after the fill, in stream order.
      next.deallocate(r.in_stream_order(), p);
      throw cuda_error(s, driver().device().value);
    }
    return p;
  }
  void around_deallocate(request const& asked, void* p, auto const& next) noexcept {
    request r = asked;
    if (!used_elsewhere_.erase(p) && !detail::sleeps(this->upstream())) fill_freed(r, p);
    next.deallocate(r, p);
  }

  /// Such a block is not poisoned when it is freed: the other stream may still use it. @throws std::bad_alloc
  void record_stream(void* p, std::size_t bytes, stream_ref stream)
    requires detail::records_streams<Upstream>
  {
    bool const added = p != nullptr && used_elsewhere_.insert(p);
    try {
      nearest(this->upstream(), detail::record_stream_call{p, bytes, stream});
    } catch (...) {
      if (added) used_elsewhere_.erase(p);
      throw;
    }
  }

 private:
  /// Poisons a block that is being freed, and changes how it is freed so that no other caller gets it before the fill.
  void fill_freed(request& r, void* p) noexcept {
    stream_ref on = r.stream;
    if (detail::life_of(driver(), on) != detail::stream_life::alive) {
      on = stream_ref{};
      if (!detail::order_behind_lost(driver(), on).ok()) return;
    }
    if (detail::is_capturing(driver(), on)) return;
    bool const filled = detail::fill_bytes(driver(), on, p, pattern::freed, r.bytes).ok();
    if (r.is_synchronous()) {
      if (!driver().synchronize_stream(on).ok()) r = r.in_stream_order();  // the fill may still run
    } else if (filled) {
      r.stream = on;
    }
  }

  detail::block_set used_elsewhere_;  ///< blocks that record_stream() named
};

}  // namespace tarn
// ---- tarn/policy/retry_on_oom.hpp
// retry_on_oom: a user's handler that may free memory before out_of_memory reaches the caller.

#include <concepts>
#include <utility>

namespace tarn {

/// Calls `handler(error, attempt)`, with attempt counting from 1, when the upstream throws out_of_memory. If it returns true,
/// something was freed and the request is retried; if false, the error is passed on. Exceptions of the handler reach the
/// caller. The handler may be called from several threads at once, and may itself free through the same memory.
///
/// Under a pool (`source | retry_on_oom{f} | pooled{}`) the handler runs inside the pool's growth. It may use that pool:
/// empty_cache() gives back what is wholly free; owns(), state() and deallocate() work; allocate() is served from the cache, or
/// refused with out_of_memory, since the pool cannot grow meanwhile. Other threads that need the pool to grow wait for the
/// handler, so it must not wait for them.
template <class Handler>
  requires std::predicate<Handler&, out_of_memory const&, unsigned>
struct retry_on_oom {
  Handler handler;

  explicit retry_on_oom(Handler h) : handler(std::move(h)) {}

  template <class Upstream>
  using layer = around_layer<retry_on_oom, Upstream>;

  /// @throws out_of_memory  the handler declined; other exceptions are passed on unchanged
  void* around_allocate(request const& r, auto const& next) {
    for (unsigned attempt = 1;; ++attempt) {
      try {
        return next.allocate(r);
      } catch (out_of_memory const& error) {
        if (!detail::call_user([&] { return handler(error, attempt); })) throw;
      }
    }
  }
};

}  // namespace tarn
// ---- tarn/policy/traced.hpp
// traced: writes every call as a trace for tarn_replay, so that a program can be measured against any pool.

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <system_error>
#include <utility>

// ---- tarn/policy/trace_format.hpp
// The trace format: one line per event, readable by people and by tarn_replay.
//
//   a <id> <bytes> <stream>   allocate: requested bytes; stream is a small number, 0 the first one seen
//   f <id>                    free
//   # ...                     a comment
//

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string_view>
#include <type_traits>

namespace tarn {

/// A line that is not an event. Reports the line number and the reason.
class trace_error : public std::exception {
 public:
  trace_error(std::uint64_t line, std::string_view reason) noexcept : line_(line) {
    text_.add("line ").add_number(line).add(": ").add(reason);
  }
  [[nodiscard]] char const* what() const noexcept override { return text_.c_str(); }
  [[nodiscard]] std::uint64_t line() const noexcept { return line_; }

 private:
  std::uint64_t line_;
  message<256> text_;
};

/// Streams that a trace can distinguish, including the default one. The limit of `traced` and of tarn_replay.
inline constexpr std::uint32_t most_trace_streams = 65535;

enum class trace_event_kind : std::uint8_t { comment, allocate, free };

struct trace_event {
  trace_event_kind kind = trace_event_kind::comment;
  std::uint64_t id = 0;
  std::uint64_t bytes = 0;   ///< allocate only
  std::uint32_t stream = 0;  ///< allocate only
};

/// Reads one line, without its line feed. Blank lines are comments.
/// @param number  of the line, for the error
/// @throws trace_error  anything else, including numbers that do not fit and extra words. O(length)
[[nodiscard]] inline trace_event parse_trace_line(std::string_view line, std::uint64_t number) {
  while (!line.empty() && (line.back() == '\r' || line.back() == ' ' || line.back() == '\t'))
    line.remove_suffix(1);
  auto const skip_blanks = [&] {
    while (!line.empty() && (line.front() == ' ' || line.front() == '\t')) line.remove_prefix(1);
  };
  auto const read = [&](auto& value, std::string_view what) {
    skip_blanks();
    using number_type = std::remove_reference_t<decltype(value)>;
    constexpr auto most = static_cast<number_type>(-1);
    message<96> reason;
    if (line.empty() || line.front() < '0' || line.front() > '9')
      throw trace_error(number, reason.add(what).add(" is missing or not a number").c_str());
    for (value = 0; !line.empty() && line.front() >= '0' && line.front() <= '9'; line.remove_prefix(1)) {
      auto const digit = static_cast<number_type>(line.front() - '0');
      if (value > most / 10 || value * 10 > most - digit) {
        throw trace_error(number, reason.add(what).add(" is too large").c_str());
      }
      value = value * 10 + digit;
    }
    if (!line.empty() && line.front() != ' ' && line.front() != '\t') {
      throw trace_error(number, reason.add(what).add(" is not a number").c_str());
    }
  };
  trace_event event;
  skip_blanks();
  if (line.empty() || line.front() == '#') return event;
  char const letter = line.front();
  if ((letter != 'a' && letter != 'f') || (line.size() > 1 && line[1] != ' ' && line[1] != '\t')) {
    throw trace_error(number, "an event must begin with a, f or #");
  }
  line.remove_prefix(1);
  event.kind = letter == 'a' ? trace_event_kind::allocate : trace_event_kind::free;
  read(event.id, "the id");
  if (event.kind == trace_event_kind::allocate) {
    read(event.bytes, "the size");
    read(event.stream, "the stream");
  }
  if (!line.empty()) throw trace_error(number, "too many words");
  return event;
}

/// Formats one event as a line, including the line feed.
[[nodiscard]] inline message<72> format_trace_line(trace_event const& event) noexcept {
  message<72> line;
  if (event.kind == trace_event_kind::allocate) {
    line.add("a ").add_number(event.id).add(" ").add_number(event.bytes).add(" ");
    line.add_number(std::uint64_t{event.stream});
  } else if (event.kind == trace_event_kind::free) {
    line.add("f ").add_number(event.id);
  } else {
    line.add("#");
  }
  line.add("\n");
  return line;
}

}  // namespace tarn

namespace tarn {

template <class Upstream>
class traced_layer;

/// Records to a newly created file of that name, or to an open file, which the caller closes.
struct traced {
  char const* path = nullptr;
  std::FILE* file = nullptr;

  constexpr explicit traced(char const* name) noexcept : path(name) {}
  constexpr explicit traced(std::FILE* open) noexcept : file(open) {}

  template <class Upstream>
  using layer = traced_layer<Upstream>;
};

/// Writes `a id bytes stream` with requested bytes and `f id`, in an order that happened: an address that is freed and handed
/// out again is never live twice in the trace. One mutex around the record, none around the upstream. Costs a hash lookup and a
/// buffered write per call; write errors are reported once on standard error and end the recording, never the program. Up to
/// 65,533 streams besides the default one have numbers of their own; further ones share one number, so that every trace can be
/// replayed.
template <class Upstream>
class traced_layer : public resource_adaptor<traced_layer<Upstream>, Upstream> {
  using base = resource_adaptor<traced_layer<Upstream>, Upstream>;

 public:
  /// @throws std::system_error  the file cannot be created
  traced_layer(Upstream upstream, traced const& options)
      : base(std::move(upstream)), file_(options.file), owned_(options.file == nullptr) {
    if (owned_) file_ = options.path != nullptr ? std::fopen(options.path, "w") : nullptr;
    if (file_ == nullptr) {
      throw std::system_error(errno, std::generic_category(), "tarn: cannot write the trace; check the path");
    }
    put("# a <id> <bytes> <stream> | f <id>\n");
  }
  ~traced_layer() {
    (void)flush();
    if (file_ != nullptr && owned_ && std::fclose(std::exchange(file_, nullptr)) != 0) complain();
  }

  void* around_allocate(request const& r, auto const& next) {
    void* const p = next.allocate(r);
    if (p == nullptr) return p;
    try {
      note_allocation(p, r.bytes, key_of(r.stream));
    } catch (...) {
      next.deallocate(r, p);
      throw;
    }
    return p;
  }
  void around_deallocate(request const& r, void* p, auto const& next) noexcept {
    note_free(p);
    next.deallocate(r, p);
  }

  /// Writes what is buffered; returns false if that failed, now or before.
  bool flush() noexcept {
    std::lock_guard const guard(mutex_);
    if (file_ != nullptr && std::fflush(file_) != 0) complain();
    return file_ != nullptr;
  }

 private:
  static constexpr std::uint64_t default_key = 0;

  /// The stream's identity, or its handle if the driver does not report one.
  [[nodiscard]] std::uint64_t key_of(stream_ref stream) const noexcept {
    stream_id id = stream.id();
    if (stream.handle() == nullptr && id == stream_ref::unknown_id) return default_key;
    if (id == stream_ref::unknown_id && !this->driver().identify(stream, id).ok()) {
      id = reinterpret_cast<std::uintptr_t>(stream.handle());
    }
    stream_id null_id = 0;
    return this->driver().identify(stream_ref{}, null_id).ok() && null_id == id ? default_key : id;
  }

  /// @throws std::bad_alloc, nothing is recorded
  void note_allocation(void* p, std::size_t bytes, std::uint64_t key) {
    std::lock_guard const guard(mutex_);
    std::uint32_t const stream = number_of(key);
    live_.make_room(1);
    live_.insert(reinterpret_cast<std::uintptr_t>(p), next_id_);
    put(format_trace_line({trace_event_kind::allocate, next_id_, bytes, stream}).view());
    ++next_id_;
  }
  void note_free(void* p) noexcept {
    std::lock_guard const guard(mutex_);
    std::uint64_t const id = live_.erase(reinterpret_cast<std::uintptr_t>(p));
    if (id == 0) return;  // the layers below report misuse
    put(format_trace_line({trace_event_kind::free, id, 0, 0}).view());
  }
  /// Streams are numbered from 1 in the order of their first call. The last number of the format stands for all later streams:
  /// a program may create more streams than can be replayed. @throws std::bad_alloc
  [[nodiscard]] std::uint32_t number_of(std::uint64_t key) {
    if (key == default_key) return 0;
    if (std::uint32_t const known = streams_.find(key); known != 0) return known;
    constexpr std::uint32_t last = most_trace_streams - 1;
    if (streams_.size() == last - 1) {
      if (!std::exchange(streams_are_shared_, true)) put("# all further streams share the last number\n");
      return last;
    }
    streams_.make_room(1);
    auto const number = static_cast<std::uint32_t>(streams_.size() + 1);
    streams_.insert(key, number);
    return number;
  }
  void put(std::string_view text) noexcept {
    if (file_ != nullptr && std::fwrite(text.data(), 1, text.size(), file_) != text.size()) complain();
  }
  void complain() noexcept {
    std::fputs("tarn: writing the trace failed; recording stopped\n", stderr);
    if (owned_ && file_ != nullptr) (void)std::fclose(file_);
    file_ = nullptr;
  }

  detail::fork_mutex mutex_;
  std::FILE* file_;
  bool owned_;
  bool streams_are_shared_ = false;  ///< written to the trace once
  std::uint64_t next_id_ = 1;
  detail::address_map<std::uint64_t> live_;     ///< the id of each live block
  detail::address_map<std::uint32_t> streams_;  ///< the number of each stream except the default one
};

}  // namespace tarn

// ---- tarn/raii/budget_scope.hpp
// budget_scope: limits how much memory may grow during a scope.

#include <cstddef>
#include <utility>

namespace tarn {

/// Limits memory that has a `limited` layer to grow by at most `bytes` during a scope. It never raises an existing limit.
/// The bound applies to all threads. Scopes nest and overlap freely on any threads: the smallest live bound holds, and each
/// ends with its scope.
template <class Resource>
class budget_scope {
 public:
  budget_scope(Resource memory, std::size_t bytes) : memory_(std::move(memory)) {
    ask([&](auto& layer) -> decltype(layer.add(bound_, bytes)) { return layer.add(bound_, bytes); });
  }
  budget_scope(budget_scope const&) = delete;
  budget_scope& operator=(budget_scope const&) = delete;
  /// Removes the bound of this scope only.
  ~budget_scope() {
    ask([&](auto& layer) -> decltype(layer.remove(bound_)) { return layer.remove(bound_); });
  }

  /// Returns the bytes that may still be allocated.
  [[nodiscard]] std::size_t remaining() const noexcept {
    std::size_t const limit = ask([](auto& layer) -> decltype(layer.limit()) { return layer.limit(); });
    std::size_t const used = ask([](auto& layer) -> decltype(layer.used()) { return layer.used(); });
    return limit - detail::min_of(limit, used);
  }

 private:
  template <class Call>
  decltype(auto) ask(Call const& call) const {
    static_assert(reachable<Resource, Call>,
                  "tarn: budget_scope needs a limit to lower; add: | tarn::limited{bytes}");
    return nearest(memory_, call);
  }
  mutable Resource memory_;
  detail::budget_bound bound_;
};

}  // namespace tarn
// ---- tarn/raii/cache_guard.hpp
// cache_guard: clears a pool's cache when a scope begins and ends.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace tarn {

/// When and how far a cache_guard clears the cache. `every_nth` needs a counter that outlives the guards.
struct cache_guard_options {
  std::size_t keep_bytes = 0;  ///< reserved bytes to keep
  std::size_t only_if_free_below =
      ~std::size_t{0};          ///< clears only while the device has less free memory than this, bytes
  std::uint32_t every_nth = 1;  ///< clears in one of this many scopes
  std::atomic<std::uint32_t>* counter = nullptr;  ///< counts the scopes so far; null: every scope
};

/// Returns cached memory to the driver on entry and exit of a scope, as a pair of torch.cuda.empty_cache calls does, so that
/// another library can use the memory inside and the scope leaves nothing cached. Live memory is not touched. Each clearing
/// costs one trim(). An error in the destructor is ignored.
template <class Pool>
class cache_guard {
 public:
  explicit cache_guard(Pool pool, cache_guard_options options = {})
      : pool_(std::move(pool)), options_(options) {
    if (options_.counter != nullptr && options_.every_nth > 1) {
      active_ = options_.counter->fetch_add(1, std::memory_order_relaxed) % options_.every_nth == 0;
    }
    clear();
  }
  cache_guard(cache_guard const&) = delete;
  cache_guard& operator=(cache_guard const&) = delete;
  ~cache_guard() {
    try {
      clear();
    } catch (...) {
    }
  }

  /// Returns the bytes that this guard has released so far.
  [[nodiscard]] std::size_t released_bytes() const noexcept { return released_; }

 private:
  void clear() {
    if (!active_) return;
    if (options_.only_if_free_below != ~std::size_t{0}) {
      std::size_t free = 0;
      std::size_t total = 0;
      if (pool_.driver().memory_info(free, total).ok() && free >= options_.only_if_free_below) return;
    }
    released_ += pool_.trim(options_.keep_bytes);
  }

  Pool pool_;
  cache_guard_options options_;
  bool active_ = true;
  std::size_t released_ = 0;
};

}  // namespace tarn
// ---- tarn/raii/compact.hpp
// compact(): gives back the free memory between live blocks, at unchanged addresses.

#include <type_traits>

namespace tarn {

/// Gives back every granule (2 MiB on current devices) of a pool without a live byte: handles that are partly live are copied
/// into smaller ones, which are mapped at the old addresses. No work uses the pool's memory from this call until it returns; the
/// caller has synchronised the streams that did. Does nothing while the pool sleeps.
///
/// Afterwards `reserved` < `live` + 2 granules * `stretches`. Addresses stay, and a granule is indivisible: a stretch of live bytes
/// that begins and ends inside granules also holds the free rest of both, each less than a granule. Two live bytes on either side of
/// a boundary thus hold two granules; a stretch that begins or ends on a boundary holds less than one granule beyond its bytes.
/// Blocks up to 32 KiB lie in runs; a run with a live block counts as live as a whole, and so do blocks that wait for recorded uses.
/// Three kinds of handles stay as they are, and may exceed the bound: those with a page_pin, those for whose copy the device has no
/// memory, and those that work may still use, contrary to the promise above.
/// The memory of the pool's graph_memories stays, and is counted neither as live nor as reserved here: its graphs hold addresses.
///
/// Where the device has no virtual memory management, or a memory tool is attached, gives back the segments without a live byte, and
/// `compaction::stretches` is 0: segments are neither split nor moved.
///
/// Needs memory for a copy of at most one handle at a time; a handle for which there is none stays as it is.
/// @throws cuda_error, std::bad_alloc  contents and addresses are kept; cuda_error also while a capture_scope is open, in any pool
///                                     of the process. If the driver refuses to map a handle at its new and then at its old
///                                     place, is_asleep() is true and the pool keeps its memory: wake() maps it again
/// @throws out_of_memory               only in that case
/// @throws misuse                      called by a handler of the pool's own growth
/// Waits on the host for the copies. Thread-safe. O(handles + ranges): about 150 us for each handle that is replaced, on an
/// H200, and one copy on the device of its live granules.
template <class Memory>
compaction compact(Memory const& memory, source_location place = source_location::current()) {
  constexpr bool can = detail::keeps_addresses<Memory, detail::routed_calls::compact>();
  static_assert(can,
                "tarn: only a pool over a page source, such as cuda_pages, can be compacted: use "
                "`cuda_pages{} | pooled{}`");
  if constexpr (can) {
    return detail::called_from(
        place, [&] { return nearest(memory, [](auto& l) -> decltype(l.compact()) { return l.compact(); }); });
  }
}

}  // namespace tarn
// ---- tarn/raii/copy.hpp
// Typed stream-ordered copies between host and device, in any direction.

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace tarn {

namespace detail {

/// @throws misuse  of kind `overlap`, with `what_to_do`, if the ranges share a byte
inline void require_no_overlap(void const* from, std::size_t from_bytes, void const* to, std::size_t to_bytes,
                               char const* what_to_do) {
  auto const source = reinterpret_cast<std::uintptr_t>(from);
  auto const target = reinterpret_cast<std::uintptr_t>(to);
  if (source < target + to_bytes && target < source + from_bytes)
    throw misuse(misuse_kind::overlap, to, what_to_do);
}

}  // namespace detail

/// Copies elements in stream order. The spans have the same number of elements and must not overlap.
/// Asynchronous if both sides are device or pinned memory; otherwise the driver may wait. Keep pinned host memory alive until
/// the stream has completed the copy.
/// @throws length_error  the sizes differ; nothing is copied
/// @throws cuda_error    the driver refused
template <stream_driver Driver, class From, class To>
  requires std::is_same_v<std::remove_const_t<From>, To>
void copy(Driver const& driver, std::span<From> from, std::span<To> to, stream_ref stream,
          source_location where = source_location::current()) {
  static_assert(std::is_trivially_copyable_v<To>,
                "tarn: only trivially copyable elements can be copied between host and device");
  if (from.size() != to.size()) {
    message<320> text;
    text.add("tarn: copy of ").add_number(static_cast<std::uint64_t>(from.size()));
    text.add(" elements to a span of ").add_number(static_cast<std::uint64_t>(to.size()));
    text.add("; take a subspan of the longer one");
    detail::end_with_place(text, text.size(), where);
    throw length_error(text.c_str());
  }
  if (from.empty()) return;
  status const s = driver.copy(stream, to.data(), from.data(), from.size_bytes());
  if (!s.ok()) throw cuda_error(s, driver.device().value, where);
}

/// Copies as copy() does, then waits on the host for the stream.
template <stream_driver Driver, class From, class To>
  requires std::is_same_v<std::remove_const_t<From>, To>
void copy_sync(Driver const& driver, std::span<From> from, std::span<To> to, stream_ref stream,
               source_location where = source_location::current()) {
  tarn::copy(driver, from, to, stream, where);
  if (status const s = driver.synchronize_stream(stream); !s.ok())
    throw cuda_error(s, driver.device().value, where);
}

}  // namespace tarn
// ---- tarn/raii/device_buffer.hpp
// device_buffer<T>: an owning, sized, uninitialised array in device memory with stream-ordered operations.

#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>

// ---- tarn/raii/in_turn.hpp
// in_turn(): orders work on one stream after the earlier work of other streams and before their later work, on the device.

// ---- tarn/raii/stream.hpp
// Streams: an owning stream, and the identity of a stream that is not owned.

#include <concepts>
#include <utility>

#if TARN_HAS_CUDA
#endif

namespace tarn {

/// Queries the driver once for a stream's identity, so that a pool need not query it at every call (about 18 ns each).
/// Query again if the stream is destroyed and its handle is reused.
/// @throws cuda_error  the driver does not know the stream
template <stream_driver Driver>
[[nodiscard]] stream_ref identified(Driver const& driver, stream_ref stream,
                                    source_location where = source_location::current()) {
  if (stream.id() != stream_ref::unknown_id) return stream;
  stream_id id = 0;
  if (status const s = driver.identify(stream, id); !s.ok())
    throw cuda_error(s, driver.device().value, where);
  return stream_ref::from(stream.handle(), id);
}
template <has_driver Resource>
[[nodiscard]] stream_ref identified(Resource const& memory, stream_ref stream,
                                    source_location where = source_location::current()) {
  return stream.id() != stream_ref::unknown_id ? stream : identified(memory.driver(), stream, where);
}

/// Owns a stream that does not synchronise with the legacy default stream. Its identity is queried once. Destruction does not
/// wait: the driver completes the stream's work. The constructor takes no place for its errors: nvcc 13.0 ends without a message
/// where a default member initialiser constructs such a type in braces.
template <stream_driver Driver>
class basic_stream {
 public:
  /// @throws cuda_error
  explicit basic_stream(Driver driver = Driver{}) : driver_(std::move(driver)) {
    if (status const s = driver_.create_stream(stream_); !s.ok())
      throw cuda_error(s, driver_.device().value, source_location{});
    try {
      stream_ = identified(driver_, stream_, source_location{});
    } catch (...) {
      (void)driver_.destroy_stream(stream_);
      throw;
    }
  }
  basic_stream(basic_stream&& other) noexcept
      : driver_(other.driver_), stream_(std::exchange(other.stream_, stream_ref{})) {}
  /// Destroys the stream owned so far. Self-move changes nothing.
  basic_stream& operator=(basic_stream&& other) noexcept {
    if (this != &other) {
      basic_stream stolen(std::move(other));
      std::swap(driver_, stolen.driver_);
      std::swap(stream_, stolen.stream_);
    }
    return *this;
  }
  ~basic_stream() {
    if (stream_.handle() != nullptr) (void)driver_.destroy_stream(stream_);
  }

  [[nodiscard]] stream_ref ref() const noexcept { return stream_; }
  operator stream_ref() const noexcept { return stream_; }  // NOLINT: an owned stream is a stream
  /// The handle as a cudaStream_t; it also converts to one, for kernel launches and libraries.
  [[nodiscard]] CUstream_st* get() const noexcept { return stream_.get(); }
  operator CUstream_st*() const noexcept { return get(); }  // NOLINT: as cudaStream_t is passed everywhere
  [[nodiscard]] Driver const& driver() const noexcept { return driver_; }

  /// Waits on the host for the stream's work. @throws cuda_error  also for errors of earlier kernels
  void synchronize(source_location where = source_location::current()) const {
    if (status const s = driver_.synchronize_stream(stream_); !s.ok())
      throw cuda_error(s, driver_.device().value, where);
  }

 private:
  Driver driver_;
  stream_ref stream_;
};

#if TARN_HAS_CUDA
/// An owning stream of the current device: `tarn::stream stream;`. A class, since g++ warns of a parameter that shadows an alias.
class stream : public basic_stream<cuda_driver> {
 public:
  using basic_stream<cuda_driver>::basic_stream;
};
#endif

namespace detail {

/// A stream argument that knows the line of the call, for functions whose last parameters are a pack.
struct stream_at {
  template <class Stream>
    requires std::convertible_to<Stream const&, stream_ref>
  stream_at(Stream const& of_call, source_location line = source_location::current())  // NOLINT: a stream
      : stream(of_call), where(line) {}
  stream_ref stream;
  source_location where;
};

/// As identified(), where exceptions are not possible: returns a stream that the driver does not know unchanged.
template <has_driver Resource>
[[nodiscard]] stream_ref identified_if_known(Resource const& memory, stream_ref stream) noexcept {
  if (stream.id() != stream_ref::unknown_id) return stream;
  stream_id id = 0;
  return memory.driver().identify(stream, id).ok() ? stream_ref::from(stream.handle(), id) : stream;
}

/// Whether two streams of a device are the same one: by their identities if both are known, else by their handles.
[[nodiscard]] inline bool same_stream(stream_ref a, stream_ref b) noexcept {
  bool const known = a.id() != stream_ref::unknown_id && b.id() != stream_ref::unknown_id;
  return known ? a.id() == b.id() : a == b;
}

/// Orders later work on `after` behind earlier work on `before`, on the device. Both streams must exist. Each is passed with
/// the driver of its device: an event is recorded only on the device it was created for, but any device may wait for it.
/// @throws cuda_error
template <stream_driver Driver>
void order_streams(Driver const& driver_of_after, stream_ref after, Driver const& driver_of_before,
                   stream_ref before, source_location where = source_location::current()) {
  if (driver_of_after.device() == driver_of_before.device() && same_stream(after, before)) return;
  event_handle event = nullptr;
  status s = driver_of_before.create_event(event);
  if (s.ok()) {
    s = driver_of_before.record_event(event, before);
    if (s.ok()) s = driver_of_after.wait_event(after, event);
    (void)driver_of_before.destroy_event(event);
  }
  if (!s.ok()) throw cuda_error(s, driver_of_after.device().value, where);
}
/// Orders two streams of one device.
template <stream_driver Driver>
void order_streams(Driver const& driver, stream_ref after, stream_ref before,
                   source_location where = source_location::current()) {
  order_streams(driver, after, driver, before, where);
}

}  // namespace detail
}  // namespace tarn

namespace tarn::detail {

/// A stream and the driver of its device.
template <class Driver>
struct driven_stream {
  Driver const& driver;
  stream_ref stream;
};

/// Calls `enqueue`, which puts work on `on`, behind all work enqueued so far on the other streams; their later work waits for
/// it. A stream equal to `on` costs nothing; any other costs two events. If one of the others cannot be made to wait, the host
/// waits for the work instead. @throws what enqueue throws; cuda_error
template <class Driver, class Enqueue, class... Others>
void in_turn(driven_stream<Driver> on, Enqueue const& enqueue, source_location where,
             Others const&... others) {
  (order_streams(on.driver, on.stream, others.driver, others.stream, where), ...);
  enqueue();
  try {
    (order_streams(others.driver, others.stream, on.driver, on.stream, where), ...);
  } catch (...) {
    Driver const& driver = on.driver;
    (void)driver.synchronize_stream(on.stream);  // the memory's next users may not be ordered behind the work
    throw;
  }
}

}  // namespace tarn::detail

namespace tarn {

namespace detail {
#if TARN_HAS_CUDA
using default_device_resource = device_pool;
#else
struct name_a_resource;  // without CUDA there is no default: use device_buffer<T, sim_pool> or
                         // make_device_buffer
using default_device_resource = name_a_resource;
#endif
}  // namespace detail

/// Owns `size()` elements of device memory. Elements are never constructed: T is trivially copyable.
/// Every operation is ordered on stream(); none synchronises the host unless documented. Report use on another stream by
/// set_stream() or record_stream(). One thread at a time per buffer. Holds its resource, so the pool stays alive
/// as long as the buffer. A moved-from buffer is empty, keeps its resource and stream, and may be reused. Destruction never
/// throws, works with any current device and after the stream is destroyed, and does nothing once the driver is unloaded. All
/// other operations need the stream to exist.
template <class T, class Resource = detail::default_device_resource>
class device_buffer {
  static_assert(std::is_trivially_copyable_v<T>,
                "tarn: device_buffer<T> never constructs elements: T must be trivially copyable");

 public:
  using value_type = T;
  using size_type = std::size_t;
  using resource_type = Resource;

  /// Constructs an empty buffer. @param alignment  of the data, bytes; kept by copies and moves
  explicit device_buffer(Resource memory, stream_ref stream = {}, std::size_t alignment = least_alignment(),
                         source_location where = source_location::current())
      : memory_(std::move(memory)),
        stream_(identified(memory_, stream, where)),
        alignment_(detail::max_of(alignment, least_alignment())) {
    require_alignment(alignment);
  }
  /// Allocates `count` uninitialised elements.
  /// @throws length_error   count * sizeof(T) overflows
  /// @throws out_of_memory  nothing is held
  device_buffer(Resource memory, std::size_t count, stream_ref stream,
                std::size_t alignment = least_alignment(), attribution call = attribution::current())
      : device_buffer(std::move(memory), stream, alignment, call.where) {
    data_ = take(count, call);
    size_ = capacity_ = count;
  }
  /// Allocates with a name: `device_buffer<float> weights(pool, n, stream, tarn::tag("weights"));` (core/tag). The name belongs
  /// to the block: a new block taken by a later resize() gets the name given there.
  device_buffer(Resource memory, std::size_t count, stream_ref stream, attribution call)
      : device_buffer(std::move(memory), count, stream, least_alignment(), call) {}
  /// Constructs a copy of host or device elements, in stream order.
  device_buffer(Resource memory, std::span<T const> from, stream_ref stream,
                std::size_t alignment = least_alignment(), attribution call = attribution::current())
      : device_buffer(std::move(memory), from.size(), stream, alignment, call) {
    copy_from(
        from,
        call.where);  // if it throws, the destructor runs, since the delegated-to constructor has completed
  }
  device_buffer(Resource memory, std::span<T const> from, stream_ref stream, attribution call)
      : device_buffer(std::move(memory), from, stream, least_alignment(), call) {}
  device_buffer(device_buffer const&) = delete;  // copies are explicit: buffer.clone(stream), or copy_from()
  device_buffer& operator=(device_buffer const&) = delete;
  device_buffer(device_buffer&& other) noexcept
      : memory_(other.memory_),
        stream_(other.stream_),
        alignment_(other.alignment_),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        capacity_(std::exchange(other.capacity_, 0)) {}
  /// Takes over the other's block; the old block is freed on its own stream. Self-move changes nothing.
  device_buffer& operator=(device_buffer&& other) noexcept {
    if (this != &other) {
      device_buffer stolen(std::move(other));
      swap(stolen);
    }
    return *this;
  }
  ~device_buffer() { give(); }

  [[nodiscard]] T* data() noexcept { return data_; }
  [[nodiscard]] T const* data() const noexcept { return data_; }
  /// Returns the number of elements.
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return size_ * sizeof(T); }
  /// Returns the number of elements that fit without a new block.
  [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] std::size_t alignment() const noexcept { return alignment_; }
  [[nodiscard]] stream_ref stream() const noexcept { return stream_; }
  [[nodiscard]] Resource const& resource() const noexcept { return memory_; }
  /// Returns the elements as device pointers. The host must not access them unless the memory is host-accessible.
  [[nodiscard]] std::span<T> span() noexcept { return {data_, size_}; }
  [[nodiscard]] std::span<T const> span() const noexcept { return {data_, size_}; }

  /// Changes the number of elements; keeps the first min(size(), count). Shrinking keeps the pointer.
  /// @param count   elements, not bytes
  /// @param stream  orders the copy, the release of the old block, and later work
  /// @throws length_error, out_of_memory, cuda_error  nothing has changed
  void resize(std::size_t count, stream_ref stream, attribution call = attribution::current()) {
    detail::called_from<Resource>(call, [&] {
      if (count > capacity_) {
        relocate(count, stream);
      } else {
        set_stream(stream);
      }
    });
    size_ = count;
  }
  void resize(std::size_t count, attribution call = attribution::current()) { resize(count, stream_, call); }

  /// Reserves capacity for `count` elements; size() is unchanged. Strong guarantee, as resize().
  void reserve(std::size_t count, stream_ref stream, attribution call = attribution::current()) {
    detail::called_from<Resource>(call, [&] {
      if (count > capacity_) {
        relocate(count, stream);
      } else {
        set_stream(stream);
      }
    });
  }
  void reserve(std::size_t count, attribution call = attribution::current()) {
    reserve(count, stream_, call);
  }

  /// Releases unused capacity by moving to a block of size() elements. Strong guarantee.
  void shrink_to_fit(stream_ref stream, attribution call = attribution::current()) {
    detail::called_from<Resource>(call, [&] {
      if (size_ < capacity_) {
        relocate(size_, stream);
      } else {
        set_stream(stream);
      }
    });
  }
  void shrink_to_fit(attribution call = attribution::current()) { shrink_to_fit(stream_, call); }

  /// Changes the buffer's stream. Later work on `stream` waits, on the device, for what was enqueued on the old stream. Both
  /// streams must exist. @throws cuda_error  nothing has changed
  void set_stream(stream_ref stream, source_location where = source_location::current()) {
    stream = identified(memory_, stream, where);
    if (data_ != nullptr) detail::order_streams(driver(), stream, stream_, where);
    stream_ = stream;
  }

  /// Returns a copy on `stream`, from the same resource, with the same alignment. `stream` first waits, on the device, for this
  /// buffer's stream, which then waits for the copy: this buffer may be changed or destroyed at once.
  /// @throws out_of_memory, cuda_error  nothing has changed
  [[nodiscard]] device_buffer clone(stream_ref stream, attribution call = attribution::current()) const {
    device_buffer made(memory_, size_, stream, alignment_, call);
    made.copy_from(*this, call.where);
    return made;
  }

  /// Records that work on `stream`, enqueued before the memory is freed, uses it, as torch.Tensor.record_stream() does. The
  /// memory is held back until that work is done; the order of the streams does not change. Needs a pool. Amortised O(1).
  /// @throws std::bad_alloc, cuda_error  nothing has changed
  void record_stream(stream_ref stream, source_location where = source_location::current()) const
    requires requires(Resource& memory) { memory.record_stream(nullptr, std::size_t{}, stream_ref{}); }
  {
    if (data_ == nullptr) return;
    detail::called_from(where, [&] { memory_.record_stream(data_, capacity_ * sizeof(T), stream); });
  }

  /// Copies from a host or device span of the same size, in stream order. @throws length_error, cuda_error
  void copy_from(std::span<T const> from, source_location where = source_location::current()) {
    tarn::copy(driver(), from, span(), stream_, where);
  }
  /// Copies from a buffer of the same size, of any resource or device, on stream(), which first waits, on the device, for the
  /// other buffer's stream. That stream then waits for the copy, so the other buffer may be changed or destroyed at once.
  /// @throws length_error, cuda_error
  template <class Other>
    requires std::is_same_v<typename Other::driver_type, typename Resource::driver_type>
  void copy_from(device_buffer<T, Other> const& other, source_location where = source_location::current()) {
    if (size_ == 0 || other.size() != size_)
      return copy_from(other.span(), where);  // throws if the sizes differ
    auto const& theirs = other.resource().driver();
    detail::driven_stream<typename Resource::driver_type> const source{theirs, other.stream()};
    detail::driven_stream<typename Resource::driver_type> const target{driver(), stream_};
    if (must_be_sent(other)) {
      detail::in_turn(
          source, [&] { tarn::copy(theirs, other.span(), span(), other.stream(), where); }, where, target);
    } else {
      detail::in_turn(
          target,
          [&] {
            if (!copied_between_devices(other, where)) copy_from(other.span(), where);
          },
          where, source);
    }
  }
  /// Copies to a host or device span of the same size, in stream order. @throws length_error, cuda_error
  void copy_to(std::span<T> to, source_location where = source_location::current()) const {
    tarn::copy(driver(), span(), to, stream_, where);
  }
  /// Copies as copy_to() does, then waits on the host, so that the host may read.
  void copy_to_sync(std::span<T> to, source_location where = source_location::current()) const {
    tarn::copy_sync(driver(), span(), to, stream_, where);
  }
  /// Sets every byte, in stream order. @throws cuda_error
  void fill(std::byte value, source_location where = source_location::current()) {
    if (size_ == 0) return;
    status const s = driver().fill(stream_, data_, std::to_integer<int>(value), bytes());
    if (!s.ok()) throw cuda_error(s, driver().device().value, where);
  }
  /// Sets every byte to 0, in stream order. @throws cuda_error
  void zero(source_location where = source_location::current()) { fill(std::byte{}, where); }

  /// Frees the elements; the buffer is empty and may be reused.
  void clear() noexcept { give(); }

  /// Releases ownership. The caller deallocates through resource(), at alignment(), as many bytes as capacity() elements
  /// had before the call.
  [[nodiscard]] T* release() noexcept {
    size_ = capacity_ = 0;
    return std::exchange(data_, nullptr);
  }

  void swap(device_buffer& other) noexcept {
    using std::swap;
    swap(memory_, other.memory_);
    swap(stream_, other.stream_);
    swap(alignment_, other.alignment_);
    swap(data_, other.data_);
    swap(size_, other.size_);
    swap(capacity_, other.capacity_);
  }
  friend void swap(device_buffer& a, device_buffer& b) noexcept { a.swap(b); }

 private:
  static constexpr std::size_t least_alignment() noexcept {
    return detail::max_of(default_alignment, alignof(T));
  }
  [[nodiscard]] auto const& driver() const noexcept { return memory_.driver(); }

  [[nodiscard]] T* take(std::size_t count, attribution const& call) {
    return detail::called_from<Resource>(call, [&] {
      return static_cast<T*>(memory_.allocate(stream_, checked_bytes(count, sizeof(T)), alignment_));
    });
  }
  void give() noexcept {
    if (data_ != nullptr) memory_.deallocate(stream_, data_, capacity_ * sizeof(T), alignment_);
    data_ = nullptr;
    size_ = capacity_ = 0;
  }
  /// Copies between the device memories of two devices by copy_from_device, if the driver has it. Returns whether it copied.
  template <class Other>
  bool copied_between_devices(device_buffer<T, Other> const& other, source_location where) {
    if constexpr (has_property<Resource, device_accessible> && !has_property<Resource, host_accessible> &&
                  has_property<Other, device_accessible> && !has_property<Other, host_accessible> &&
                  requires { driver().copy_from_device(stream_, data_, device_id{}, data_, size_); }) {
      device_id const theirs = other.resource().driver().device();
      if (theirs == driver().device()) return false;
      status const s = driver().copy_from_device(stream_, data_, theirs, other.data(), bytes());
      if (!s.ok()) throw cuda_error(s, driver().device().value, where);
      return true;
    }
    return false;
  }
  /// Whether only its own device can read the other memory, and this is a different device.
  template <class Other>
  [[nodiscard]] bool must_be_sent(device_buffer<T, Other> const& other) const {
    return has_property<Resource, host_accessible> && !has_property<Other, host_accessible> &&
           other.resource().driver().device() != driver().device();
  }
  /// Moves to a block of `count` elements on `stream`.
  void relocate(std::size_t count, stream_ref stream) {
    device_buffer moved(memory_, count, stream, alignment_);
    moved.size_ = detail::min_of(size_, count);
    if (data_ != nullptr) {
      detail::order_streams(driver(), moved.stream_, stream_);
      tarn::copy(driver(), std::span<T const>(data_, moved.size_), moved.span(), moved.stream_);
      stream_ = moved.stream_;  // so that the old block is released behind the copy
    }
    swap(moved);
  }

  Resource memory_;
  stream_ref stream_;
  std::size_t alignment_;
  T* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

/// Allocates `count` uninitialised elements of T from a resource, in stream order.
/// @throws length_error, out_of_memory
template <class T, class Resource>
  requires tarn::resource<Resource>
[[nodiscard]] device_buffer<T, Resource> make_device_buffer(Resource memory, std::size_t count,
                                                            stream_ref stream,
                                                            attribution call = attribution::current()) {
  return device_buffer<T, Resource>(std::move(memory), count, stream,
                                    detail::max_of(default_alignment, alignof(T)), call);
}
/// Constructs a buffer with a copy of host elements. Pageable host memory may be reused at once, pinned memory once the stream
/// has completed the copy.
template <class T, class Resource>
  requires tarn::resource<Resource>
[[nodiscard]] device_buffer<T, Resource> make_device_buffer(Resource memory, std::span<T const> from,
                                                            stream_ref stream,
                                                            attribution call = attribution::current()) {
  return device_buffer<T, Resource>(std::move(memory), from, stream,
                                    detail::max_of(default_alignment, alignof(T)), call);
}
// Explain a call without a stream, or without memory.
template <class T, class Resource>
  requires tarn::resource<Resource>
void make_device_buffer(Resource, std::size_t) = delete;  // add a stream: tarn::stream_ref{} is the default
template <class T, class First, class... Rest>
  requires(!tarn::resource<First>)
void make_device_buffer(First, Rest...) = delete;  // pass a pool first; pages need one: pages | pooled{}

}  // namespace tarn
// ---- tarn/raii/device_guard.hpp
// device_guard: sets the current device for a scope.

#if TARN_HAS_CUDA
#endif

namespace tarn {

/// Makes a device the calling thread's current one and restores the previous one at the end. For the caller's own kernel
/// launches: tarn itself works with any current device. If the device is already current, the cost is one query. Guards of a
/// thread may end in any order: while any is alive, the device of the innermost one is current; after the last, the device from
/// before the first. Each guard must end on the thread that created it.
template <stream_driver Driver>
class basic_device_guard {
 public:
  /// @throws cuda_error  the device does not exist; nothing has changed
  explicit basic_device_guard(device_id device, source_location where = source_location::current())
      : device_(device) {
    if (status const s = Driver::current_device(before_); !s.ok()) throw cuda_error(s, device.value, where);
    if (device != before_) {
      if (status const s = Driver::set_current_device(device); !s.ok())
        throw cuda_error(s, device.value, where);
    }
    chain::begin(*this);
  }
  basic_device_guard(basic_device_guard const&) = delete;
  basic_device_guard& operator=(basic_device_guard const&) = delete;
  ~basic_device_guard() {
    bool const innermost = chain::innermost() == this;
    basic_device_guard* const inner = chain::end(*this, "device_guard");
    if (innermost) {
      if (device_ != before_) (void)Driver::set_current_device(before_);
    } else if (inner != nullptr) {
      inner->before_ = before_;  // this guard's device is not to be restored any more
    }
  }

  /// Returns the device that will be restored.
  [[nodiscard]] device_id before() const noexcept { return before_; }

 private:
  using chain = detail::scope_chain<basic_device_guard>;
  friend chain;

  device_id device_;
  device_id before_;
  basic_device_guard* outer_ = nullptr;
};

#if TARN_HAS_CUDA
using device_guard = basic_device_guard<cuda_driver>;
#endif

}  // namespace tarn
// ---- tarn/raii/device_ptr.hpp
// device_ptr<T> and device_ptr<T[]>: unique ownership of one object or array in device memory, with the interface of
// unique_ptr.

#include <cstddef>
#include <type_traits>
#include <utility>

namespace tarn {

/// Owns device memory for one T, or for an array as device_ptr<T[]>, freed on stream(). The memory is uninitialised: T is
/// trivially copyable. Move-only. A moved-from pointer is null, keeps its resource and may be reused. Report use on streams
/// other than stream() by set_stream() or by the resource's record_stream(). Not thread-safe. Destruction never throws, works with
/// any current device and after the stream is destroyed, and does nothing once the driver is unloaded. There is no default
/// constructor, since a null pointer needs a resource, too.
template <class T, class Resource = detail::default_device_resource>
class device_ptr {
  static constexpr bool is_array = std::is_unbounded_array_v<T>;

 public:
  using element_type = std::remove_extent_t<T>;
  using pointer = element_type*;
  using resource_type = Resource;
  static_assert(std::is_trivially_copyable_v<element_type>,
                "tarn: device_ptr<T> never constructs elements: T must be trivially copyable");
  static_assert(!std::is_bounded_array_v<T>, "tarn: use device_ptr<T[]> and pass the count to make_device");

  /// Constructs a null pointer.
  explicit device_ptr(Resource memory, stream_ref stream = {}) noexcept
      : memory_(std::move(memory)), stream_(detail::identified_if_known(memory_, stream)) {}
  /// Takes over `count` elements at `p`, allocated by `memory` with alignment(). If `p` is null, `count` is ignored.
  device_ptr(Resource memory, pointer p, std::size_t count, stream_ref stream) noexcept
      : memory_(std::move(memory)),
        stream_(detail::identified_if_known(memory_, stream)),
        p_(p),
        count_(p != nullptr ? count : 0) {}
  device_ptr(device_ptr&& other) noexcept
      : memory_(other.memory_),
        stream_(other.stream_),
        p_(std::exchange(other.p_, nullptr)),
        count_(std::exchange(other.count_, 0)) {}
  device_ptr& operator=(device_ptr&& other) noexcept {
    if (this != &other) {
      device_ptr stolen(std::move(other));
      swap(stolen);
    }
    return *this;
  }
  device_ptr& operator=(std::nullptr_t) noexcept {
    reset();
    return *this;
  }
  ~device_ptr() { reset(); }

  [[nodiscard]] pointer get() const noexcept { return p_; }
  [[nodiscard]] explicit operator bool() const noexcept { return p_ != nullptr; }
  /// Returns the number of owned elements: 1 or 0 for device_ptr<T>.
  [[nodiscard]] std::size_t size() const noexcept { return count_; }
  [[nodiscard]] stream_ref stream() const noexcept { return stream_; }
  [[nodiscard]] Resource const& resource() const noexcept { return memory_; }
  /// Returns the alignment of the memory, bytes.
  [[nodiscard]] static constexpr std::size_t alignment() noexcept {
    return alignof(element_type) > default_alignment ? alignof(element_type) : default_alignment;
  }

  /// Returns the object itself, if the host can access it.
  [[nodiscard]] element_type& operator*() const noexcept
    requires(!is_array && has_property<Resource, host_accessible>)
  {
    return *p_;
  }
  [[nodiscard]] pointer operator->() const noexcept
    requires(!is_array && has_property<Resource, host_accessible>)
  {
    return p_;
  }
  [[nodiscard]] element_type& operator[](std::size_t i) const noexcept
    requires(is_array && has_property<Resource, host_accessible>)
  {
    return p_[i];
  }

  /// Changes the stream that frees the memory. Later work on `stream` waits, on the device, for what was enqueued on the old
  /// stream, which must still exist. @throws cuda_error  nothing has changed
  void set_stream(stream_ref stream, source_location where = source_location::current()) {
    stream = identified(memory_, stream, where);
    if (p_ != nullptr) detail::order_streams(memory_.driver(), stream, stream_, where);
    stream_ = stream;
  }

  /// Releases ownership. The caller deallocates, at alignment(), as many bytes as size() elements had before the call.
  [[nodiscard]] pointer release() noexcept {
    count_ = 0;
    return std::exchange(p_, nullptr);
  }
  /// Frees the owned memory.
  void reset(std::nullptr_t = nullptr) noexcept { replace(nullptr, 0); }
  /// Frees the owned memory, then takes over `p`, allocated by resource() with alignment().
  void reset(pointer p) noexcept
    requires(!is_array)
  {
    replace(p, 1);
  }
  void reset(pointer p, std::size_t count) noexcept
    requires(is_array)
  {
    replace(p, count);
  }
  void swap(device_ptr& other) noexcept {
    using std::swap;
    swap(memory_, other.memory_);
    swap(stream_, other.stream_);
    swap(p_, other.p_);
    swap(count_, other.count_);
  }
  friend void swap(device_ptr& a, device_ptr& b) noexcept { a.swap(b); }
  friend bool operator==(device_ptr const& a, device_ptr const& b) noexcept { return a.p_ == b.p_; }
  friend bool operator==(device_ptr const& a, std::nullptr_t) noexcept { return a.p_ == nullptr; }

 private:
  void replace(pointer p, std::size_t count) noexcept {
    pointer const old = std::exchange(p_, p);
    std::size_t const old_count = std::exchange(count_, p != nullptr ? count : 0);
    if (old != nullptr) memory_.deallocate(stream_, old, old_count * sizeof(element_type), alignment());
  }

  Resource memory_;
  stream_ref stream_;
  pointer p_ = nullptr;
  std::size_t count_ = 0;
};

/// Allocates one uninitialised T. @throws out_of_memory
template <class T, class Resource>
  requires(tarn::resource<Resource> && !std::is_array_v<T>)
[[nodiscard]] device_ptr<T, Resource> make_device(Resource memory, stream_ref stream,
                                                  attribution call = attribution::current()) {
  stream = identified(memory, stream, call.where);
  void* const p = detail::called_from<Resource>(
      call, [&] { return memory.allocate(stream, sizeof(T), device_ptr<T, Resource>::alignment()); });
  return device_ptr<T, Resource>(std::move(memory), static_cast<T*>(p), 1, stream);
}
/// Allocates `count` uninitialised elements: make_device<T[]>(memory, count, stream). @throws length_error, out_of_memory
template <class T, class Resource>
  requires(tarn::resource<Resource> && std::is_unbounded_array_v<T>)
[[nodiscard]] device_ptr<T, Resource> make_device(Resource memory, std::size_t count, stream_ref stream,
                                                  attribution call = attribution::current()) {
  using element = std::remove_extent_t<T>;
  stream = identified(memory, stream, call.where);
  void* const p = detail::called_from<Resource>(call, [&] {
    return memory.allocate(stream, checked_bytes(count, sizeof(element)),
                           device_ptr<T, Resource>::alignment());
  });
  return device_ptr<T, Resource>(std::move(memory), static_cast<element*>(p), count, stream);
}
// Explain a call without a stream, or without memory.
template <class T, class Resource, std::convertible_to<std::size_t>... Count>
  requires tarn::resource<Resource>
void make_device(Resource, Count...) = delete;  // add a stream: tarn::stream_ref{} is the default
template <class T, class First, class... Rest>
  requires(!tarn::resource<First>)
void make_device(First, Rest...) = delete;  // pass a pool first; pages need one: pages | tarn::pooled{}

}  // namespace tarn
// ---- tarn/raii/graph_memory.hpp
// graph_memory: owns the memory that captured CUDA graphs use; capture_scope: a scope in which captured work allocates from it.

#include <cstddef>
#include <utility>

namespace tarn {

class capture_scope;

/// Owns the memory of one graph, or of several graphs that are never replayed at the same time: torch.cuda.graph_pool_handle as an
/// owner. Inside a capture_scope, what captured work allocates from `memory` or any copy of it belongs to the owner. Blocks that
/// the capture frees are reused inside it in the order of its streams, and by later captures of the same owner. Nothing else
/// receives them until the owner is destroyed, whatever other streams and threads do. The owner may outlive the scope, the stream
/// and the cudaGraphExec_t.
///
/// Destruction does not wait: the memory goes back when the device has completed all work submitted before (at a later allocation
/// that needs memory, at trim() and at the pool's end). Before CUDA 12.5 it waits for the device. Blocks that are still live stay
/// valid. An owner is moved, not copied; it keeps the pool alive. Threads may use one owner if one capture at a time is begun.
template <class Memory>
class graph_memory {
  static_assert(
      reachable<Memory, detail::routed_calls::new_graph_memory>,
      "tarn: graph_memory needs a pool, which keeps a graph's addresses apart: pages | tarn::pooled{}");

 public:
  /// Holds no memory until a capture allocates. Host cost 20 us. @throws cuda_error, std::bad_alloc
  explicit graph_memory(Memory memory, source_location where = source_location::current())
      : memory_(std::move(memory)), owner_(detail::called_from(where, [&] {
          return nearest(memory_, detail::routed_calls::new_graph_memory{});
        })) {}
  graph_memory(graph_memory&&) noexcept = default;
  graph_memory& operator=(graph_memory&& other) noexcept {
    owner_ = std::move(other.owner_);  // before the pool that it belongs to
    memory_ = std::move(other.memory_);
    return *this;
  }
  ~graph_memory() = default;

  /// Allocates a block of the owner for work on `stream`, inside or outside a capture: what the warm-up before a capture should
  /// leave to it, or a part of the pool that is kept apart (PyTorch's MemPool). It is freed as any block, with
  /// resource().deallocate(), and is then reused by this owner only, in the order of the stream. On a stream that is captured for
  /// another owner, it is memory that every stream may use, and that graph keeps it when it is freed there.
  /// For a pool, and for a pool under `tracked`, which counts the block; other policies would not see it.
  /// @throws out_of_memory, bad_alignment, cuda_error, std::bad_alloc: nothing has changed
  /// Thread-safe. No warm path: one lock more than an allocation that the calling thread's cache does not serve.
  [[nodiscard]] void* allocate(stream_ref stream, std::size_t bytes,
                               std::size_t alignment = default_alignment,
                               source_location where = source_location::current())
    requires detail::allocates_for_owners<Memory>
  {
    return detail::called_from(
        where, [&] { return detail::layer_of(memory_).allocate_for(*owner_, stream, bytes, alignment); });
  }

  /// The pool or stack that captures allocate from.
  [[nodiscard]] Memory const& resource() const noexcept { return memory_; }
  /// What the owner holds now, bytes. O(free ranges).
  [[nodiscard]] graph_state state() const { return owner_->state(); }

 private:
  friend class capture_scope;
  Memory memory_;
  detail::owned<detail::graph_owner> owner_;
};

/// While it lives, what is allocated on `stream` belongs to the owner. Open it, begin the capture, end the capture, close it:
/// cudaStreamBeginCapture and cudaStreamEndCapture, in any capture mode. Work that is launched on the stream inside the scope but
/// outside the capture must be complete before the graph is replayed on another stream.
///
/// A stream that joins the capture is recognised when the thread that opened the scope allocates on it. Name it with join() before
/// another thread uses it, before it only frees, and if the thread has several scopes open. That thread captures nothing else
/// meanwhile, and all its calls of the pool ask whether their stream joined: a pair on a stream that did not costs 153 ns there, 23
/// without a scope (H200). Other threads use the pool as before, at the same cost; a bare handle costs one driver call more (20 ns).
///
/// Bare handles may be used inside the capture: CUDA refuses to identify a captured stream, so the pool remembers it. A stream that
/// tarn did not make and that joined before it was named must be named in one way only: by its handle, or by an identity that was
/// queried before the capture.
///
/// tarn makes no driver call meanwhile that invalidates a capture, on any thread: what would need one is done after the scope.
/// (fenced, poisoned and checked verify and poison nothing then that they would have to wait for on the device.)
/// Opening and closing it takes 0.53 us (H200), and longer with many threads. Must be destroyed before its owner; any thread may do
/// so.
class [[nodiscard]] capture_scope {
 public:
  /// @throws cuda_error  the driver does not know the stream, another scope is open for it, or 64 streams are captured already;
  ///                     std::bad_alloc
  template <class Memory>
  capture_scope(graph_memory<Memory>& memory, stream_ref stream,
                source_location where = source_location::current())
      : owner_(*memory.owner_), capture_(detail::called_from(where, [&] {
          return owner_.begin_capture(identified(memory.memory_, stream, where));
        })) {}
  capture_scope(capture_scope const&) = delete;
  capture_scope& operator=(capture_scope const&) = delete;
  ~capture_scope() { owner_.end_capture(capture_); }

  /// Names another stream of the capture. @throws cuda_error, nothing has changed
  void join(stream_ref stream) { owner_.join_capture(capture_, stream); }

 private:
  detail::graph_owner& owner_;
  detail::capture_number capture_;
};

}  // namespace tarn
// ---- tarn/raii/peak_scope.hpp
// peak_scope: measures the high-water mark of memory during a scope.

#include <cstddef>
#include <cstdint>
#include <utility>

namespace tarn {

/// Observes memory that has a `tracked` layer, from construction to destruction. Scopes nest and overlap freely: each has its
/// own mark and does not affect other scopes or the pool's peak. Exact; bytes as the pool rounds them. With
/// peak_of::this_thread only calls of the constructing thread count, starting from zero; memory freed by another thread does
/// not lower it. Thread-safe. Each live scope adds a few instructions to every call.
template <class Resource>
class peak_scope {
 public:
  explicit peak_scope(Resource memory, peak_of whose = peak_of::all_threads) : memory_(std::move(memory)) {
    with_layer([&](auto& layer) -> decltype(layer.add(mark_, whose)) { return layer.add(mark_, whose); });
  }
  peak_scope(peak_scope const&) = delete;
  peak_scope& operator=(peak_scope const&) = delete;
  ~peak_scope() {
    with_layer([&](auto& layer) -> decltype(layer.remove(mark_)) { return layer.remove(mark_); });
  }

  /// Returns the most bytes allocated at once during the scope, including those allocated before it: what
  /// max_memory_allocated() returns after a reset.
  [[nodiscard]] std::size_t peak_bytes() const noexcept { return positive(read().peak); }
  /// Returns how far the scope rose above its start, bytes: what the scope itself needed.
  [[nodiscard]] std::size_t peak_above_start() const noexcept {
    high_water_mark const m = read();
    return positive(m.peak - m.start);
  }
  /// Returns the bytes allocated now.
  [[nodiscard]] std::size_t current_bytes() const noexcept { return positive(read().current); }
  /// Returns the bytes allocated now minus those at the start; negative if more was freed.
  [[nodiscard]] std::int64_t net_bytes() const noexcept {
    high_water_mark const m = read();
    return m.current - m.start;
  }
  /// Returns the number of blocks allocated during the scope.
  [[nodiscard]] std::size_t count() const noexcept { return positive(read().allocations); }

 private:
  template <class Call>
  decltype(auto) with_layer(Call const& call) const {
    static_assert(reachable<Resource, Call>, "tarn: peak_scope needs exact numbers; add: | tarn::tracked{}");
    return nearest(memory_, call);
  }
  [[nodiscard]] high_water_mark read() const noexcept {
    return with_layer([&](auto& layer) -> decltype(layer.read(mark_)) { return layer.read(mark_); });
  }
  static std::size_t positive(std::int64_t n) noexcept { return n > 0 ? static_cast<std::size_t>(n) : 0; }

  mutable Resource memory_;
  high_water_mark mark_;
};

}  // namespace tarn
// ---- tarn/raii/pinned_buffer.hpp
// pinned_buffer<T>: an owning contiguous range of host memory that devices copy from and to at full speed.

#include <cstddef>
#include <cstring>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

namespace tarn {

/// The initial contents of new elements.
enum class elements { value_initialised, uninitialised };

namespace detail {
void elements_without_a_default_constructor_can_only_be_uninitialised();  // not defined: its name is the error message

/// Parameter for a type without a default constructor: anything but elements::uninitialised does not compile.
struct can_only_be_uninitialised {
  consteval can_only_be_uninitialised(elements what) {  // NOLINT: stands for the enumerator
    if (what != elements::uninitialised) elements_without_a_default_constructor_can_only_be_uninitialised();
  }
};

#if TARN_HAS_CUDA
using default_pinned_resource = pinned_host;
#else
struct name_a_pinned_resource;  // without CUDA there is no default: use pinned_buffer<T, sim_pinned_host>
using default_pinned_resource = name_a_pinned_resource;
#endif
}  // namespace detail

/// Owns `size()` elements of page-locked host memory: a contiguous range with iterators, usable as std::span and with
/// std::ranges. Freed on stream(): a running copy on that stream keeps its memory, since a pool reuses it only behind that
/// work, and a bare pinned source waits for the stream. Set the stream that the copies run on, here or by set_stream(); report
/// further streams to a pool by record_stream(). The host does not wait for anything: synchronise before it reads what a device
/// writes. Holds its resource. A moved-from buffer is empty, keeps its resource and stream, and may be reused. Destruction
/// never throws, and does nothing once the driver is unloaded. Not thread-safe.
template <class T, class Resource = detail::default_pinned_resource>
class pinned_buffer {
  static_assert(std::is_trivially_copyable_v<T>,
                "tarn: pinned_buffer<T> is for copies to devices: T must be trivially copyable");

 public:
  using value_type = T;
  using size_type = std::size_t;
  using difference_type = std::ptrdiff_t;
  using reference = T&;
  using const_reference = T const&;
  using iterator = T*;
  using const_iterator = T const*;
  using resource_type = Resource;

  /// Constructs an empty buffer.
  explicit pinned_buffer(Resource memory, stream_ref stream = {},
                         source_location where = source_location::current())
      : memory_(std::move(memory)), stream_(identified(memory_, stream, where)) {
    static_assert(has_property<Resource, host_accessible>,
                  "tarn: pinned_buffer needs memory that the host can access; use pinned_host, managed or a "
                  "pool over them");
  }
  /// Allocates `count` elements, which the host may use at once. @throws length_error, out_of_memory
  pinned_buffer(Resource memory, std::size_t count, elements what = elements::value_initialised,
                stream_ref stream = {}, attribution call = attribution::current())
    requires std::is_default_constructible_v<T>
      : pinned_buffer(std::move(memory), stream, call.where) {
    detail::called_from<Resource>(call, [&] { take_uninitialised(count); });
    if (what == elements::value_initialised) value_initialise(data_, size_);
  }
  /// Allocates for a T without a default constructor: the elements stay uninitialised until they are written.
  pinned_buffer(Resource memory, std::size_t count, detail::can_only_be_uninitialised, stream_ref stream = {},
                attribution call = attribution::current())
    requires(!std::is_default_constructible_v<T>)
      : pinned_buffer(std::move(memory), stream, call.where) {
    detail::called_from<Resource>(call, [&] { take_uninitialised(count); });
  }
  /// Constructs a copy of host elements.
  pinned_buffer(Resource memory, std::span<T const> from, stream_ref stream = {},
                attribution call = attribution::current())
      : pinned_buffer(std::move(memory), stream, call.where) {
    detail::called_from<Resource>(call, [&] { take_uninitialised(from.size()); });
    copy_elements(from.data(), size_, data_);
  }
  pinned_buffer(pinned_buffer const& other, attribution call = attribution::current())
      : pinned_buffer(other.memory_, std::span<T const>(other), other.stream_, call) {}
  pinned_buffer(pinned_buffer&& other) noexcept
      : memory_(other.memory_),
        stream_(other.stream_),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        capacity_(std::exchange(other.capacity_, 0)) {}
  /// Copies elements, stream and resource. Strong guarantee.
  pinned_buffer& operator=(pinned_buffer const& other) {
    if (this != &other) {
      pinned_buffer copied(other);
      swap(copied);
    }
    return *this;
  }
  /// Takes over the other's block; the old block is freed on its own stream. Self-move changes nothing.
  pinned_buffer& operator=(pinned_buffer&& other) noexcept {
    if (this != &other) {
      pinned_buffer stolen(std::move(other));
      swap(stolen);
    }
    return *this;
  }
  ~pinned_buffer() { clear(); }

  [[nodiscard]] T* data() noexcept { return data_; }
  [[nodiscard]] T const* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return size_ * sizeof(T); }
  /// Returns the number of elements that fit without a new block.
  [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] iterator begin() noexcept { return data_; }
  [[nodiscard]] iterator end() noexcept { return data_ + size_; }
  [[nodiscard]] const_iterator begin() const noexcept { return data_; }
  [[nodiscard]] const_iterator end() const noexcept { return data_ + size_; }
  [[nodiscard]] T& operator[](std::size_t i) noexcept { return data_[i]; }
  [[nodiscard]] T const& operator[](std::size_t i) const noexcept { return data_[i]; }
  [[nodiscard]] stream_ref stream() const noexcept { return stream_; }
  [[nodiscard]] Resource const& resource() const noexcept { return memory_; }
  /// Returns the alignment of the memory, bytes.
  [[nodiscard]] static constexpr std::size_t alignment() noexcept {
    return detail::max_of(default_alignment, alignof(T));
  }

  /// Changes the stream that frees the memory. Later work on `stream` waits, on the device, for the copies on the old stream,
  /// which must still exist. @throws cuda_error  nothing has changed
  void set_stream(stream_ref stream, source_location where = source_location::current()) {
    stream = identified(memory_, stream, where);
    if (data_ != nullptr) detail::order_streams(memory_.driver(), stream, stream_, where);
    stream_ = stream;
  }

  /// Changes the number of elements; keeps the first min(size(), count). Shrinking keeps the pointer. No copy may be running.
  /// @throws length_error, out_of_memory  nothing has changed
  void resize(std::size_t count, elements what = elements::value_initialised,
              attribution call = attribution::current())
    requires std::is_default_constructible_v<T>
  {
    if (count > capacity_) detail::called_from<Resource>(call, [&] { relocate(count); });
    if (what == elements::value_initialised && count > size_) value_initialise(data_ + size_, count - size_);
    size_ = count;
  }
  /// Changes the number of elements of a T without a default constructor.
  void resize(std::size_t count, detail::can_only_be_uninitialised, attribution call = attribution::current())
    requires(!std::is_default_constructible_v<T>)
  {
    if (count > capacity_) detail::called_from<Resource>(call, [&] { relocate(count); });
    size_ = count;
  }
  /// Releases unused capacity by moving to a block of size() elements. No copy may be running. Strong guarantee.
  void shrink_to_fit(attribution call = attribution::current()) {
    if (size_ < capacity_) detail::called_from<Resource>(call, [&] { relocate(size_); });
  }
  /// Frees the elements; the buffer is empty and may be reused.
  void clear() noexcept {
    if (data_ != nullptr) memory_.deallocate(stream_, data_, capacity_ * sizeof(T), alignment());
    data_ = nullptr;
    size_ = capacity_ = 0;
  }
  /// Releases ownership. The caller deallocates through resource(), at alignment(), as many bytes as capacity() elements had
  /// before the call.
  [[nodiscard]] T* release() noexcept {
    size_ = capacity_ = 0;
    return std::exchange(data_, nullptr);
  }
  void swap(pinned_buffer& other) noexcept {
    using std::swap;
    swap(memory_, other.memory_);
    swap(stream_, other.stream_);
    swap(data_, other.data_);
    swap(size_, other.size_);
    swap(capacity_, other.capacity_);
  }
  friend void swap(pinned_buffer& a, pinned_buffer& b) noexcept { a.swap(b); }

 private:
  [[nodiscard]] T* take(std::size_t count) {
    // The host writes at once, not in stream order, so no earlier work may still use the memory.
    return static_cast<T*>(memory_.allocate_sync(checked_bytes(count, sizeof(T)), alignment()));
  }
  void take_uninitialised(std::size_t count) {
    data_ = take(count);
    size_ = capacity_ = count;
  }

  static void value_initialise(T* to, std::size_t count)
    requires std::is_default_constructible_v<T>
  {
    for (std::size_t i = 0; i < count; ++i) ::new (static_cast<void*>(to + i)) T();
  }
  /// Copies elements. T is trivially copyable, so copying also creates the objects and cannot fail.
  static void copy_elements(T const* from, std::size_t count, T* to) noexcept {
    if (count != 0) std::memcpy(static_cast<void*>(to), from, count * sizeof(T));
  }

  /// Moves to a block of `count` elements.
  void relocate(std::size_t count) {
    pinned_buffer moved(memory_, stream_);
    moved.take_uninitialised(count);
    moved.size_ = size_;
    copy_elements(data_, size_, moved.data_);
    swap(moved);
  }

  Resource memory_;
  stream_ref stream_;
  T* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

}  // namespace tarn
// ---- tarn/raii/sleep.hpp
// sleep() and wake(): a pool gives its physical memory back for a while and keeps its addresses. sleep_scope does both.

#include <cstddef>
#include <type_traits>
#include <utility>

namespace tarn {

namespace detail {

/// Whether a stack can sleep. The uppermost pool must: blocks of a pool below it are in use by that one.
template <class Memory>
concept can_sleep = keeps_addresses<std::remove_cvref_t<Memory>, routed_calls::sleep>();

template <class Memory>
inline constexpr bool require_can_sleep() noexcept {
  static_assert(can_sleep<Memory>,
                "tarn: only a pool over a page source, such as cuda_pages, can give its memory back and keep "
                "the addresses: "
                "use `cuda_pages{} | pooled{}`. Each pool below a layer that routes must be one, or have no "
                "pool at all");
  return true;
}

}  // namespace detail

/// Gives the physical memory of a pool back to the driver, so that other pools and programs can use it, and keeps every address:
/// blocks, views and captured graphs are valid again after wake(). Several pools sleep and wake independently.
///
/// No work uses the pool's memory from this call until wake() returns; the caller has synchronised the streams that did. A
/// `checked` layer reports where that is not so. Until then allocations throw pool_asleep; deallocations, statistics, trim() and
/// the end of the pool work, and blocks that are freed need not be taken back. Does nothing, and returns 0, if the pool is
/// asleep: the contents are those of the first call.
///
/// Handles with a page_pin stay mapped, with their contents.
///
/// The memory of the pool's graph_memories sleeps and wakes with it, all or none. A capture_scope may be opened while the pool
/// sleeps, but what it allocates throws pool_asleep. take_snapshot() lists the addresses that the pool keeps. In a forked child whose
/// driver survives the fork the pool is asleep if its parent's was; in any other child sleep() and wake() do nothing, and return 0.
/// @param where  whether contents are kept, and in which memory
/// @returns the bytes given back, cached memory included; less if the driver does not report that a copy is complete: handles whose
///          contents are not known to be saved keep their memory
/// @throws out_of_memory, std::bad_alloc  the host has no memory for the contents; the pool is awake
/// @throws cuda_error                     likewise; also while a capture_scope is open, in any pool of the process
/// @throws cuda_error                     of kind `unsupported`: the device has no virtual memory management, so the addresses could
///                                        not be kept; nothing has changed. empty_cache() gives back what is free
/// @throws misuse                         called by a handler of the pool's own growth
/// Waits on the host for the copies. Thread-safe. O(handles + ranges): 35 us per handle on an H200, plus the copies.
template <class Memory>
std::size_t sleep(Memory const& memory, contents where = contents::in_pinned_memory,
                  source_location place = source_location::current()) {
  if constexpr (detail::require_can_sleep<Memory>()) {
    return detail::called_from(place, [&] {
      return nearest(memory, [&](auto& l) -> decltype(l.sleep(where)) { return l.sleep(where); });
    });
  }
}

/// Takes the memory of a sleeping pool again, at the same addresses, with the contents that were kept. Does nothing, and
/// returns 0, if the pool is awake. If the device has too little, the other pools there give back what they cache, the one that was
/// made last first; what work still uses is waited for only if the rest does not suffice.
/// @param then  whether the host memory of the contents is freed, or kept for the next sleep until the pool ends
/// @returns the bytes taken: those of handles with live blocks
/// @throws out_of_memory  still not enough memory, or a limit below the pool has too little left: report().lacking is what must
///                        become free. The pool stays asleep and keeps its contents: free memory and call again
/// @throws cuda_error, std::bad_alloc  likewise; cuda_error also while a capture_scope is open, in any pool of the process
/// @throws misuse                      called by a handler of the source while it wakes the pool
/// Waits on the host for the copies. Thread-safe. O(handles + slots of views): 45 us per handle on an H200, plus the copies.
template <class Memory>
std::size_t wake(Memory const& memory, after_waking then = after_waking::free_host_memory,
                 source_location place = source_location::current()) {
  if constexpr (detail::require_can_sleep<Memory>()) {
    return detail::called_from(place, [&] {
      return nearest(memory, [&](auto& l) -> decltype(l.wake(then)) { return l.wake(then); });
    });
  }
}

/// Returns whether a pool is asleep.
template <class Memory>
[[nodiscard]] bool is_asleep(Memory const& memory) noexcept {
  if constexpr (detail::require_can_sleep<Memory>()) {
    return nearest(memory, [](auto& l) -> decltype(l.is_asleep()) { return l.is_asleep(); });
  }
}

/// A pool sleeps during a scope. If it cannot be woken at the end, the error is ignored and the pool stays asleep: call wake()
/// before the end of the scope to handle it.
template <class Pool>
class sleep_scope {
 public:
  /// @throws as sleep()
  explicit sleep_scope(Pool pool, contents where = contents::in_pinned_memory,
                       source_location place = source_location::current())
      : pool_(std::move(pool)), released_(tarn::sleep(pool_, where, place)) {}
  sleep_scope(sleep_scope const&) = delete;
  sleep_scope& operator=(sleep_scope const&) = delete;
  ~sleep_scope() {
    try {
      (void)tarn::wake(pool_);
    } catch (...) {
    }
  }

  /// Wakes the pool before the end of the scope. @throws as wake()
  void wake(source_location place = source_location::current()) {
    (void)tarn::wake(pool_, after_waking::free_host_memory, place);
  }
  /// Returns the bytes that falling asleep gave back.
  [[nodiscard]] std::size_t released_bytes() const noexcept { return released_; }

 private:
  Pool pool_;
  std::size_t released_;
};

}  // namespace tarn

// ---- tarn/report/stats.hpp
// Memory statistics under the names of PyTorch. Reading them changes nothing; the reset functions change peaks and totals.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tarn {

namespace detail {

inline constexpr auto ask_statistics = [](auto& layer) -> decltype(layer.statistics()) {
  return layer.statistics();
};
inline constexpr auto ask_state = [](auto& layer) -> decltype(layer.state()) { return layer.state(); };

/// The memory that pools hold for captured graphs, bytes.
struct graph_totals {
  std::size_t owners = 0;  ///< graph memories, and ended ones whose memory has not gone back yet
  std::size_t reserved = 0;
  std::size_t allocated = 0;
  std::size_t kept = 0;  ///< blocks that captures freed though they are not their owner's
};
inline constexpr auto ask_graphs = [](auto& layer) -> decltype(layer.inspect(routed_calls::any_look{}),
                                                               graph_totals{}) {
  graph_totals sum;
  layer.inspect([&](auto& heap, auto& front, auto& waiting, auto&) {
    sum.kept += waiting.kept_bytes();
    if (heap.graph_memory == 0) return;
    pool_state const s = read_state(heap, front, waiting);
    ++sum.owners;
    sum.reserved += s.reserved;
    sum.allocated += s.live > s.pending ? s.live - s.pending : 0;
  });
  return sum;
};

template <class Resource>
inline constexpr bool is_tracked = reachable<Resource, decltype(ask_statistics)>;
template <class Resource>
inline constexpr bool is_pooled = reachable<Resource, decltype(ask_state)>;

template <class Resource>
tracked_statistics statistics_of(Resource& memory) {
  static_assert(is_tracked<Resource>, "tarn: this needs exact numbers; add: | tarn::tracked{}");
  return nearest(memory, ask_statistics);
}
template <class Resource>
pool_state state_of(Resource& memory) {
  static_assert(is_pooled<Resource>, "tarn: this needs a pool; add: | tarn::pooled{}");
  return nearest(memory, ask_state);
}

}  // namespace detail

/// Returns the bytes allocated now, as the pool rounds them. Exact. If more bytes were freed than allocated, which only a double
/// free or a free to the wrong resource can cause, it reports misuse and returns 0.
template <class Resource>
[[nodiscard]] std::size_t memory_allocated(Resource memory) {
  std::int64_t const bytes = detail::statistics_of(memory).allocated_bytes[0].current;
  if (bytes < 0) [[unlikely]] {
    message<160> text;
    text.add("memory_allocated: ").add_number(static_cast<std::uint64_t>(-bytes));
    text.add(" more bytes were freed than allocated; add | tarn::checked{} to find the double free");
    report_misuse(misuse(misuse_kind::double_free, nullptr, text.view()));
    return 0;
  }
  return static_cast<std::size_t>(bytes);
}
/// Returns the maximum of memory_allocated() since the start or the last reset_peak_memory_stats(). Exact.
template <class Resource>
[[nodiscard]] std::size_t max_memory_allocated(Resource memory) {
  return static_cast<std::size_t>(detail::statistics_of(memory).allocated_bytes[0].peak);
}
/// Returns all cached memory of the pool to the driver, as torch.cuda.empty_cache() does. Waits for the streams that freed it.
template <class Resource>
void empty_cache(Resource const& memory, source_location where = source_location::current()) {
  static_assert(detail::is_pooled<Resource>, "tarn: empty_cache needs a pool; add: | tarn::pooled{}");
  memory.empty_cache(where);
}
/// Returns the bytes that the pool holds from the driver now.
template <class Resource>
[[nodiscard]] std::size_t memory_reserved(Resource memory) {
  return detail::state_of(memory).reserved;
}
/// Returns the maximum of memory_reserved() since the start or the last reset_peak_memory_stats().
template <class Resource>
[[nodiscard]] std::size_t max_memory_reserved(Resource memory) {
  return detail::state_of(memory).reserved_peak;
}

/// Returns where the nearest pool's memory comes from, as torch.cuda.get_allocator_backend() does: "pages" (mapped pages of
/// cuda_pages), "cudaMalloc", "cudaMallocAsync", "cudaHostAlloc", "cudaHostRegister", "cudaMallocManaged" or "operator new";
/// "blocks" if a source of your own does not report it. A device_pool returns "pages", and "cudaMalloc" where the device has no
/// virtual memory management or a memory tool is attached: its memory is then segments that are neither extended nor remapped, and
/// sleep() is refused. Of a fallback_to: that of the first resource. A tool is noticed at the first allocation. Static storage. One
/// read of the state; thread-safe.
template <class Resource>
[[nodiscard]] char const* allocator_backend(Resource const& memory) noexcept {
  static_assert(reachable<Resource, detail::routed_calls::allocator_backend>,
                "tarn: allocator_backend needs a pool; add: | tarn::pooled{}");
  return nearest(memory, detail::routed_calls::allocator_backend{});
}

/// Resets every peak to the current value. Peaks of peak_scopes are unaffected.
template <class Resource>
void reset_peak_memory_stats(Resource memory) {
  nearest(memory, [](auto& l) -> decltype(l.reset_peak_statistics()) { return l.reset_peak_statistics(); });
  auto const reset_pool = [](auto& l) -> decltype(l.reset_peaks()) { return l.reset_peaks(); };
  if constexpr (reachable<Resource, decltype(reset_pool)>) nearest(memory, reset_pool);
}
/// Resets the totals ("allocated", "freed") and the counts of calls and refused requests to zero.
template <class Resource>
void reset_accumulated_memory_stats(Resource memory) {
  nearest(memory, [](auto& l) -> decltype(l.reset_accumulated_statistics()) {
    return l.reset_accumulated_statistics();
  });
  auto const reset_pool = [](auto& l) -> decltype(l.reset_totals()) { return l.reset_totals(); };
  if constexpr (reachable<Resource, decltype(reset_pool)>) nearest(memory, reset_pool);
}

/// Free and total bytes of the whole device, as the driver reports.
struct memory_info {
  std::size_t free = 0;
  std::size_t total = 0;
};
/// @throws cuda_error
template <has_driver Resource>
[[nodiscard]] memory_info mem_get_info(Resource const& memory,
                                       source_location where = source_location::current()) {
  memory_info info;
  status const s = memory.driver().memory_info(info.free, info.total);
  if (!s.ok()) throw cuda_error(s, memory.device().value, where);
  return info;
}

/// One statistic under PyTorch's key: "allocated_bytes.all.current", "num_ooms", ...
using memory_stat = std::pair<std::string, std::int64_t>;

/// Returns all statistics under the keys of torch.cuda.memory_stats(), in the same sort order:
///   allocation, allocated_bytes    allocated blocks, as the pool rounds them
///   active, active_bytes           these, and freed blocks that wait for a use noted by record_stream() or for the work
///                                  of a destroyed stream
///   requested_bytes                bytes requested for active blocks
///   reserved_bytes, segment        bytes held from the driver; physical handles, or segments of a pool over blocks. A handle
///                                  belongs to the small or the large pool it was created for, though it may serve both.
///   inactive_split                 free ranges that lie partly in a handle or a segment without filling it, so that it cannot
///                                  be released; inactive_split_bytes: their bytes in those. (PyTorch omits expandable
///                                  segments.) Blocks in a thread's magazines and free blocks of a run (up to 32 KiB) are not
///                                  counted. Peak and totals are taken when a call that reached the pool's shared part ends.
///   num_alloc_retries              times that the driver refused and the cache was searched again
///   num_sync_all_streams           times that the host waited for a stream
///   oversize_*, max_split_size     0 and -1: blocks of every size may be split
/// The memory of captured graphs is part of these numbers, as PyTorch's private pools are. PyTorch has no keys for it alone. While
/// a pool holds any, there are four keys of tarn's own, each a current value:
///   graph_memory.owners            graph memories, and ended ones whose memory has not been given back yet
///   graph_memory.reserved_bytes    held from the driver for them alone
///   graph_memory.allocated_bytes   the live blocks in it
///   graph_memory.kept_bytes        other blocks that were freed inside a capture, which the pool keeps for the graph; they are
///                                  part of active_bytes until then
/// graph_memory::state() returns these for one owner, take_snapshot() by segment (PyTorch's segment_pool_id).
/// A block is in small_pool up to 1 MiB, as requested; if a layer below `tracked` adds bytes (fences), a waiting block counts
/// with them. Exact while no other thread is inside a call; under concurrency each number belongs to one order of events. Takes
/// the pool's locks briefly. @throws std::bad_alloc
template <class Resource>
[[nodiscard]] std::vector<memory_stat> memory_stats(Resource memory) {
  tracked_statistics const t = detail::statistics_of(memory);
  std::vector<memory_stat> out;
  auto const add = [&](std::string key, std::int64_t n) { out.emplace_back(std::move(key), n); };
  auto const put = [&](char const* name, char const* group, stat const& s) {
    std::string const key = std::string(name) + "." + group + ".";
    add(key + "allocated", s.allocated);
    add(key + "current", s.current);
    add(key + "freed", s.freed);
    add(key + "peak", s.peak);
  };
  auto const put_groups = [&](char const* name, std::array<stat, 3> const& s) {
    put(name, "all", s[0]);
    put(name, "large_pool", s[2]);
    put(name, "small_pool", s[1]);
  };
  auto const number = [](auto n) { return static_cast<std::int64_t>(n); };
  pool_state p;
  if constexpr (detail::is_pooled<Resource>) p = detail::state_of(memory);
  std::int64_t const creates = number(p.creates - p.totals_reset.creates);
  std::int64_t const destroys = number(p.destroys - p.totals_reset.destroys);
  stat const reserved{number(p.reserved), number(p.reserved_peak),
                      number(p.reserved_total - p.totals_reset.reserved),
                      number(p.released_total - p.totals_reset.released)};
  stat const segments{number(p.handles), number(p.handles_peak), creates, destroys};
  put_groups("active", t.active);
  put_groups("active_bytes", t.active_bytes);
  put_groups("allocated_bytes", t.allocated_bytes);
  put_groups("allocation", t.allocations);
  if constexpr (reachable<Resource, decltype(detail::ask_graphs)>) {
    detail::graph_totals const graphs = nearest(memory, detail::ask_graphs);
    if (graphs.owners != 0 || graphs.kept != 0) {
      add("graph_memory.allocated_bytes", number(graphs.allocated));
      add("graph_memory.kept_bytes", number(graphs.kept));
      add("graph_memory.owners", number(graphs.owners));
      add("graph_memory.reserved_bytes", number(graphs.reserved));
    }
  }
  put_groups("inactive_split", {p.split.blocks, p.small.split.blocks, p.large.split.blocks});
  put_groups("inactive_split_bytes", {p.split.bytes, p.small.split.bytes, p.large.split.bytes});
  add("max_split_size", -1);
  add("num_alloc_retries", number(p.alloc_retries - p.totals_reset.alloc_retries));
  add("num_device_alloc", creates);
  add("num_device_free", destroys);
  add("num_ooms", number(t.ooms));
  add("num_sync_all_streams", number(p.host_waits - p.totals_reset.host_waits));
  for (char const* part : {"allocated", "current", "freed", "peak"}) {
    add(std::string("oversize_allocations.") + part, 0);
  }
  for (char const* part : {"allocated", "current", "freed", "peak"}) {
    add(std::string("oversize_segments.") + part, 0);
  }
  put_groups("requested_bytes", t.active_requested_bytes);
  put_groups("reserved_bytes", {reserved, p.small.reserved, p.large.reserved});
  put_groups("segment", {segments, p.small.handles, p.large.handles});
  return out;
}

}  // namespace tarn
// ---- tarn/report/summary.hpp
// memory_summary: the table of torch.cuda.memory_summary() for a tarn pool.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

// ---- tarn/core/concat.hpp
// Concatenates strings.

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>

namespace tarn::detail {

/// Returns the concatenation of the parts, with one allocation. Use it in place of `"text" + std::string(...)`: g++ 12 inlines
/// that operator and then warns in the user's program (-Wrestrict), at -O2 and above. @throws std::bad_alloc
[[nodiscard]] inline std::string concat(std::initializer_list<std::string_view> parts) {
  std::size_t size = 0;
  for (std::string_view const part : parts) size += part.size();
  std::string out;
  out.reserve(size);
  for (std::string_view const part : parts) out += part;
  return out;
}

}  // namespace tarn::detail
// ---- tarn/core/text_prefix.hpp
// Truncates text to a number of bytes without splitting a UTF-8 character.

#include <cstddef>
#include <string_view>

namespace tarn::detail {

/// Returns true for a UTF-8 continuation byte.
[[nodiscard]] constexpr bool continues_character(char c) noexcept {
  return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U;
}

/// Returns at most `most` bytes from the front. O(1).
[[nodiscard]] constexpr std::string_view text_prefix(std::string_view text, std::size_t most) noexcept {
  if (text.size() <= most) return text;
  while (most > 0 && continues_character(text[most])) --most;
  return text.substr(0, most);
}
/// Returns at most `most` bytes from the end. O(1).
[[nodiscard]] constexpr std::string_view text_suffix(std::string_view text, std::size_t most) noexcept {
  if (text.size() <= most) return text;
  std::size_t begin = text.size() - most;
  while (begin < text.size() && continues_character(text[begin])) ++begin;
  return text.substr(begin);
}

}  // namespace tarn::detail

namespace tarn {

namespace detail {

/// Formats a size in ten columns as PyTorch does: the unit is that of `scale`, the next one from 768 KiB up; truncated, not
/// rounded.
[[nodiscard]] inline std::string table_bytes(std::int64_t bytes, std::int64_t scale) {
  constexpr char const* units[] = {"B  ", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  for (; unit + 1 < std::size(units) && scale >= 768 * std::int64_t{1024}; ++unit, scale /= 1024)
    bytes /= 1024;
  std::string const digits = std::to_string(bytes);
  return std::string(digits.size() < 6 ? 6 - digits.size() : 0, ' ') + digits + " " + units[unit];
}
/// Formats a count in ten columns as PyTorch does: thousands from 750,000 up.
[[nodiscard]] inline std::string table_count(std::int64_t count, std::int64_t scale) {
  constexpr char const* units[] = {" ", "K", "M"};
  std::size_t unit = 0;
  for (; unit + 1 < std::size(units) && scale >= 750 * std::int64_t{1000}; ++unit, scale /= 1000)
    count /= 1000;
  std::string const digits = std::to_string(count);
  return std::string(digits.size() < 7 ? 7 - digits.size() : 0, ' ') + digits + " " + units[unit] + " ";
}

/// Pads text on the right to `width` characters.
[[nodiscard]] inline std::string left(std::string const& text, std::size_t width) {
  std::size_t shown = 0;
  for (char const c : text) shown += continues_character(c) ? 0 : 1;
  return shown < width ? text + std::string(width - shown, ' ') : text;
}

}  // namespace detail

/// Returns a table, 75 columns between its edges, in the layout of torch.cuda.memory_summary(). While the pool holds memory of
/// captured graphs, three rows more show its current bytes: see memory_stats(). For memory with `tracked` and, for the reserved
/// rows, a pool. The title names the allocator_backend() unless it is "pages". @throws std::bad_alloc
template <class Resource>
[[nodiscard]] std::string memory_summary(Resource memory) {
  std::vector<memory_stat> const stats = memory_stats(memory);
  auto const value = [&](std::string const& key) -> std::int64_t {
    for (auto const& [name, number] : stats) {
      if (name == key) return number;
    }
    return 0;
  };
  using format = std::string (*)(std::int64_t, std::int64_t);
  std::string const line = detail::concat({"|", std::string(75, '='), "|\n"});
  std::string const rule = detail::concat({"|", std::string(75, '-'), "|\n"});
  std::string const spaces(17, ' ');
  std::string title =
      detail::concat({spaces, " tarn memory summary, device ID ", std::to_string(memory.device().value)});
  if constexpr (reachable<Resource, detail::routed_calls::allocator_backend>) {
    std::string_view const backend = allocator_backend(memory);
    if (backend != "pages") title += detail::concat({", ", backend});
  }
  std::string const ooms = detail::concat({"           CUDA OOMs: ", std::to_string(value("num_ooms"))});
  std::string const retries =
      detail::concat({"       cudaMalloc retries: ", std::to_string(value("num_alloc_retries"))});
  std::string out = detail::concat({line, "|", detail::left(title, 75), "|\n", rule});
  out += detail::concat({"|", detail::left(ooms, 35), "|", detail::left(retries, 39), "|\n", line});
  out += "|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |\n";
  char const* const parts[] = {".current", ".peak", ".allocated", ".freed"};
  // The first row of a group sets the unit of each column, so that the parts can be added up by eye.
  auto const row = [&](std::string const& label, std::string const& key, std::string const& scale,
                       format write) {
    out += detail::concat({"| ", detail::left(label, 21), " |"});
    for (char const* part : parts)
      out += detail::concat({" ", write(value(key + part), value(scale + part)), " |"});
    out += "\n";
  };
  auto const group = [&](char const* label, char const* key, format write) {
    std::string const all = std::string(key) + ".all";
    out += rule;
    row(label, all, all, write);
    row("      from large pool", std::string(key) + ".large_pool", all, write);
    row("      from small pool", std::string(key) + ".small_pool", all, write);
  };
  group("Allocated memory", "allocated_bytes", &detail::table_bytes);
  group("Active memory", "active_bytes", &detail::table_bytes);
  group("Requested memory", "requested_bytes", &detail::table_bytes);
  group("GPU reserved memory", "reserved_bytes", &detail::table_bytes);
  group("Non-releasable memory", "inactive_split_bytes", &detail::table_bytes);
  group("Allocations", "allocation", &detail::table_count);
  group("Active allocs", "active", &detail::table_count);
  group("GPU reserved segments", "segment", &detail::table_count);
  group("Non-releasable allocs", "inactive_split", &detail::table_count);
  out += rule;
  row("Oversize allocations", "oversize_allocations", "oversize_allocations", &detail::table_count);
  out += rule;
  row("Oversize GPU segments", "oversize_segments", "oversize_segments", &detail::table_count);
  if (value("graph_memory.owners") != 0 || value("graph_memory.kept_bytes") != 0) {
    std::string const none(12, ' ');
    std::int64_t const scale =
        detail::max_of(value("graph_memory.reserved_bytes"), value("graph_memory.kept_bytes"));
    auto const current = [&](char const* label, char const* key) {
      out += detail::concat({"| ", detail::left(label, 21), " | ", detail::table_bytes(value(key), scale),
                             " |", none, "|", none, "|", none, "|\n"});
    };
    out += rule;
    current("Graph memory", "graph_memory.reserved_bytes");
    current("      allocated", "graph_memory.allocated_bytes");
    current("      kept blocks", "graph_memory.kept_bytes");
  }
  out += line;
  return out;
}

}  // namespace tarn
