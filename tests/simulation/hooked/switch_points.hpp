// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where another simulated thread may run: before and after each driver call, and where a lock of the library
// is taken or released. The headers in this folder precede those of the library in the include path; each
// includes the header that it replaces and adds calls of the functions below. They work with any tree whose
// locks have the same names and functions.

#include <cstdint>

namespace simulation {

enum class switch_point : std::uint8_t {
  mutex_lock,    ///< before a std::mutex is taken; the simulated machine's covers each driver call
  mutex_unlock,  ///< after it is released
  hot_lock,
  hot_unlock,
  spin_unlock,
  owner_leave,  /// < the owner leaves a thread cache
  owner_visit,  /// < a visitor announces itself, or leaves
  wait,         ///< the thread waits for a lock
  count
};
inline constexpr char const* switch_point_names[] = {
    "before a mutex is locked",      "after a mutex is unlocked",
    "before the hot lock is taken",  "after the hot lock is released",
    "after a spin lock is released", "after the owner left its cache",
    "at a visit of a thread cache",  "waiting for a lock"};

/// True while the calling thread is in a call of the library that may be preempted.
inline thread_local constinit bool preemptible = false;
/// How many hot locks the calling thread holds while it is preemptible.
inline thread_local constinit int hot_locks_held = 0;

/// The calling thread is at a switch point: the scheduler may run another thread first.
void reach(switch_point point) noexcept;
/// The calling thread cannot continue before another one: runs another thread first.
void give_way() noexcept;
/// The calling thread waits until `lock` is released.
void wait_for(void const* lock) noexcept;
/// `lock` was released: threads that wait for it may run.
void released(void const* lock, switch_point point) noexcept;

}  // namespace simulation
