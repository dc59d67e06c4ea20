// SPDX-License-Identifier: Apache-2.0
#pragma once
// One step of a random program: plain numbers, drawn independently of the steps before. A step that is
// invalid in the current state (free an empty slot, use a destroyed stream) is skipped, so that any part of a
// correct program is a correct program: this allows a failing one to be reduced.

#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

namespace simulation {

/// What a step does. A "slot" holds a block of the user; a full slot is freed before it is filled.
enum class act : std::uint8_t {
  allocate,       /// < a block into a slot, in stream order; `how`: by handle alone, first work on it or not
  allocate_sync,  /// < the same for immediate use on any stream
  deallocate,     /// < of a slot; `how`: on which stream it is freed and how that is ordered after its uses
  use,            /// < a kernel writes or reads a slot's block; `how`: in turn, or as a concurrent reader
  copy,           /// < from one slot's block to another's
  order,          /// < a stream waits for another by a user's event
  synchronize,    /// < the host waits for a stream or the device
  pass_time,      /// < the host does other work
  begin_capture,  ///< of a stream
  end_capture,    ///< and keeps the graph
  launch_graph,   ///< a kept one
  drop_graph,     /// < its blocks may be freed from now on
  make_stream,    /// < in place of another, which is destroyed with pending work
  end_thread,     /// < the thread ends; the next step on it starts a new one
  trim,           /// < returns cached memory, down to some bytes
  empty_cache,    ///< all of it
  drain,  /// < frees all blocks of a pool; then nothing may stay reserved, and one block may use all memory
  look,   ///< state(), owns(), largest_free_range(), block_bytes(), memory_stats()
  reset_peaks,    /// < and, occasionally, totals
  open_scope,     ///< a peak_scope
  close_scope,    ///< one of them
  make_pool,      ///< in place of another, which is destroyed
  take_memory,    /// < another process takes or returns memory of the device
  set_limit,      /// < on the bytes that a pool may reserve
  make_buffer,    ///< a device_buffer into an owner's slot
  resize_buffer,  ///< grow, shrink, reserve or shrink_to_fit
  move_buffer,    ///< to another slot, or to another stream
  copy_buffer,    ///< as a new buffer, or onto one of the same size
  fill_buffer,    /// < with bytes that must persist until the next fill
  drop_buffer,    ///< destroyed, reset or released
  make_pointer,   ///< a device_ptr<T[]>; `how`: from make_device, moved, reset
  fragment,  /// < fills a pool with small blocks, frees every other one, and makes large blocks of the pieces
  make_memory,      /// < a graph_memory in place of another, which is destroyed
  drop_memory,      /// < destroys a graph_memory; its graphs are not launched any more, but may still run
  open_capture,     ///< a capture_scope on a stream, and the capture
  join_capture,     /// < another stream becomes part of an open one; `how`: with join() or not
  close_capture,    /// < ends the capture, keeps the graph and closes the scope
  sleep_pool,       /// < `how`: whether contents are kept
  wake_pool,        ///< a sleeping one
  compact_pool,     ///< gives back the free memory between live blocks
  pin_block,        ///< a page_pin of a slot's block; `how`: of all of it, or of a part
  look_at_pin,      ///< its segments
  end_pin,          ///< one of them
  take_headroom,    ///< another user of the device allocates from the headroom; `how`: how much
  return_headroom,  ///< and frees that
  keep_headroom,    ///< of a pool
  count_of_acts
};
inline constexpr std::size_t act_count = static_cast<std::size_t>(act::count_of_acts);

inline constexpr char const* act_names[act_count] = {
    "allocate",      "allocate_sync", "deallocate",  "use",           "copy",
    "order",         "synchronize",   "pass_time",   "begin_capture", "end_capture",
    "launch_graph",  "drop_graph",    "make_stream", "end_thread",    "trim",
    "empty_cache",   "drain",         "look",        "reset_peaks",   "open_scope",
    "close_scope",   "make_pool",     "take_memory", "set_limit",     "make_buffer",
    "resize_buffer", "move_buffer",   "copy_buffer", "fill_buffer",   "drop_buffer",
    "make_pointer",  "fragment",      "make_memory", "drop_memory",   "open_capture",
    "join_capture",  "close_capture", "sleep_pool",  "wake_pool",     "compact_pool",
    "pin_block",     "look_at_pin",   "end_pin",     "take_headroom", "return_headroom",
    "keep_headroom"};

struct operation {
  act what = act::allocate;
  std::uint8_t thread = 0;
  std::uint8_t pool = 0;
  std::uint8_t stream = 0;
  std::uint8_t other = 0;  ///< a second stream
  std::uint8_t how = 0;    /// < the variant, see user
  std::uint16_t slot = 0;
  std::uint16_t second = 0;  ///< a second slot
  std::uint32_t alignment = 256;
  std::uint64_t bytes = 0;
  std::uint64_t duration = 0;  /// < of device work, nanoseconds of virtual time
  std::uint32_t window = 0;    /// < steps of one window run concurrently if they belong to several threads
};

/// A step as a line: "17 [thread 1] allocate pool 0 stream 2 slot 5: 4096 bytes, alignment 256".
inline std::string to_text(std::size_t number, operation const& o) {
  char line[256];
  std::snprintf(line, sizeof line,
                "%6zu  thread %u  %-13s pool %u  stream %u (other %u)  slot %u (second %u)  %" PRIu64
                " bytes align %" PRIu32 "  %" PRIu64 " ns  how %u",
                number, o.thread, act_names[static_cast<std::size_t>(o.what)], o.pool, o.stream, o.other,
                o.slot, o.second, o.bytes, o.alignment, o.duration, o.how);
  return line;
}

}  // namespace simulation
