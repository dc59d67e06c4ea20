// SPDX-License-Identifier: Apache-2.0
#pragma once
// Call stacks as a hook: who walks the stack and who names a frame is the program's choice; glibc's are in
// policy/backtrace.

#include <cstddef>

#include "tarn/policy/watch_record.hpp"

namespace tarn {

/// How call stacks are taken and, much later, read. Both are called from any thread and must not allocate from the
/// memory that is watched. An exception of `capture` ends the program; one of `name` comes out of record().
struct stack_hooks {
  /// Writes the return addresses of the calling thread, innermost first; returns how many, at most `most`. Null: no
  /// stacks.
  std::size_t (*capture)(void** frames, std::size_t most) = nullptr;
  /// Fills what is known of one address. Called when a record is made, and never before. Null: the address as a number.
  void (*name)(void* frame, watched_frame& out) = nullptr;
};

/// Frames kept of a stack, the innermost ones.
inline constexpr std::size_t stack_depth = 32;

}  // namespace tarn
