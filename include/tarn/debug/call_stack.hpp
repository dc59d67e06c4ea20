// SPDX-License-Identifier: Apache-2.0
#pragma once
// Call stacks as a hook: the program chooses how to walk the stack and how to name a frame.
// debug/backtrace.hpp provides glibc's.

#include <cstddef>

#include "tarn/debug/memory_history.hpp"

namespace TARN_NAMESPACE {

/// How call stacks are captured and, much later, named. Both functions are called from any thread and must
/// not allocate from the memory that is watched. An exception from `capture` ends the program; one from
/// `name` propagates from record().
struct stack_hooks {
  /// Writes the return addresses of the calling thread, innermost first; returns their number, at most
  /// `most`. Null: no stacks.
  std::size_t (*capture)(void** frames, std::size_t most) = nullptr;
  /// Fills in what is known of one address. Called only when a record is made. Null: the address as a number.
  void (*name)(void* frame, history_frame& out) = nullptr;
};

/// Number of innermost frames that are kept of a stack.
inline constexpr std::size_t stack_depth = 32;

}  // namespace TARN_NAMESPACE
