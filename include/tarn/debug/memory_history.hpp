// SPDX-License-Identifier: Apache-2.0
#pragma once
// A copy of what a `with_history` layer recorded, at one moment: plain data for reports. Call stacks come
// from a hook: the program chooses how to walk the stack and how to name a frame. debug/backtrace.hpp
// provides glibc's.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "tarn/core/stream.hpp"

namespace TARN_NAMESPACE {

/// One frame of a location: file, line and function, outermost last.
struct history_frame {
  std::string file;
  int line = 0;
  std::string function;
};

/// A block that is handed out. Address and bytes are those of the pool's block, with the fences of layers
/// below.
struct history_block {
  std::uintptr_t address = 0;
  std::size_t requested = 0;   ///< bytes requested by the caller
  std::size_t bytes = 0;       ///< bytes that it occupies
  stream_id stream = 0;        ///< of the allocation
  std::uint32_t tag = 0;       ///< index into memory_history::tags; 0 is "untagged"
  std::uint32_t location = 0;  ///< index into memory_history::locations; 0 if unknown
  std::uint64_t time_ns = 0;   ///< since memory_history::started_ns
};

/// A block that its user has freed, and that a layer below keeps from reuse, as the quarantine of `checked`
/// does.
struct quarantined_block {
  std::uintptr_t address = 0;
  std::size_t requested = 0;
};

enum class history_event_kind : std::uint8_t { allocate, free, refused };

/// One call, in the order in which the calls took effect.
struct history_event {
  history_event_kind kind = history_event_kind::allocate;
  std::uintptr_t address = 0;  ///< 0 for a refusal
  std::size_t requested = 0;   ///< bytes; for a refusal, those requested
  std::size_t bytes = 0;       ///< bytes that it occupies; 0 for a refusal
  stream_id stream = 0;        ///< of this call
  std::uint32_t tag = 0;
  std::uint32_t location = 0;
  std::uint64_t time_ns = 0;
};

/// The amounts of one tag. Bytes as the blocks occupy them.
struct history_tag {
  std::string name;
  std::size_t bytes = 0;
  std::size_t peak_bytes = 0;
  std::size_t requested = 0;
  std::size_t blocks = 0;
  std::uint64_t allocations = 0;
};

struct memory_history {
  std::uint64_t started_ns = 0;  ///< when the layer was made, since 1970
  std::uint64_t now_ns = 0;      ///< when this was copied, since started_ns
  std::uint64_t steady_ns = 0;   ///< the steady clock at started_ns; 0 with a user's clock
  std::vector<history_block> live;
  std::vector<quarantined_block> quarantined;
  std::vector<history_event> events;                  ///< the latest ones, oldest first
  std::uint64_t forgotten_events = 0;                 ///< older ones that the ring no longer holds
  std::vector<history_tag> tags;                      ///< tags[0] is "untagged"
  std::vector<std::vector<history_frame>> locations;  ///< innermost frame first; locations[0] is empty
};

namespace detail {

/// The nearest record of blocks above the pool: one below it records the pool's segments. No lambda: nvcc
/// drops the constraint of one.
struct ask_record {
  static constexpr bool ends_at_pools = true;
  template <class L>
  auto operator()(L& l) const
      -> std::enable_if_t<std::same_as<std::remove_cvref_t<decltype(l.record())>, memory_history>,
                          memory_history> {
    return l.record();
  }
};

}  // namespace detail

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
