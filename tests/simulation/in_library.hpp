// SPDX-License-Identifier: Apache-2.0
#pragma once
// Marks the parts of a thread's work that are calls of the library: only those are preempted. What the user
// and the model do between them is atomic.

#include <utility>

#include "hooked/switch_points.hpp"

namespace simulation {

/// The steps of several threads run concurrently now.
inline bool several_threads = false;
/// Calls of the library that have begun but not ended, while several threads run.
inline unsigned calls_open = 0;
/// The calling thread is not preempted, even in calls of the library.
inline thread_local constinit bool uninterrupted = false;

class in_library {
 public:
  in_library() noexcept : before_(preemptible) {
    if (!several_threads) return;
    ++calls_open;
    preemptible = !uninterrupted;
  }
  in_library(in_library const&) = delete;
  in_library& operator=(in_library const&) = delete;
  ~in_library() {
    if (!several_threads) return;
    preemptible = before_;
    --calls_open;
  }

 private:
  bool const before_;
};

/// The witness on top of a pool is called from inside a call of the library.
class outside_library {
 public:
  outside_library() noexcept : before_(std::exchange(preemptible, false)) {}
  outside_library(outside_library const&) = delete;
  outside_library& operator=(outside_library const&) = delete;
  ~outside_library() { preemptible = before_; }

 private:
  bool const before_;
};

/// No other thread runs until this ends.
class without_interruption {
 public:
  without_interruption() noexcept : before_(std::exchange(uninterrupted, true)) {}
  without_interruption(without_interruption const&) = delete;
  without_interruption& operator=(without_interruption const&) = delete;
  ~without_interruption() { uninterrupted = before_; }

 private:
  bool const before_;
};

}  // namespace simulation
