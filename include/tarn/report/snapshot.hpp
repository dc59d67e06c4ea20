// SPDX-License-Identifier: Apache-2.0
#pragma once
// A snapshot: the state of a pool at one moment and its history, as plain data. Writers turn it into files:
// pickle (PyTorch's memory_viz), timeline_html, perfetto, snapshot_json.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tarn/debug/memory_history.hpp"
#include "tarn/pool/pool_state.hpp"

namespace TARN_NAMESPACE {

enum class block_use : std::uint8_t {
  live,  ///< allocated (PyTorch: active_allocated)
  /// Freed, but another stream that used it has not finished, a graph uses it, or `checked` keeps it
  /// (active_pending_free).
  deferred,
  cached  ///< free for reuse (inactive)
};

struct snapshot_block {
  std::uintptr_t address = 0;
  std::size_t bytes = 0;
  /// Set for a live block that a `with_history` layer saw, and for a deferred one (the size requested from
  /// the pool if the history lacks its allocation); otherwise 0.
  std::size_t requested = 0;
  block_use use = block_use::cached;
  stream_id stream = 0;        ///< of the allocation; of a cached block: the last possible user; 0: unowned
  std::uint32_t tag = 0;       ///< index into snapshot::tags
  std::uint32_t location = 0;  ///< index into snapshot::locations
  std::uint64_t time_ns = 0;   ///< of the allocation, since snapshot::started_ns
  /// that a block is deferred for which a capture freed, counted from 1; 0 if none
  std::uint64_t graph_memory = 0;
};

enum class segment_kind : std::uint8_t {
  pages,    ///< consecutive physical handles, at their original addresses
  view,     ///< one live block remapped from handles of several locations; these are not listed at their
            ///< original addresses
  upstream  ///< one block of the resource below a pool that has no pages
};

/// A part of a view's block, at its original address.
struct snapshot_piece {
  std::uintptr_t address = 0;
  std::size_t bytes = 0;
};

/// An address range backed by memory; its blocks tile it. The bytes of all segments add up to the pool's
/// reserved bytes.
struct snapshot_segment {
  std::uintptr_t address = 0;
  std::size_t bytes = 0;
  segment_kind kind = segment_kind::pages;
  bool is_small = false;               ///< for blocks of up to 1 MiB
  std::uint32_t handles = 1;           ///< physical handles that back it, wholly or in part
  stream_id stream = 0;                ///< stream of most of its bytes
  std::uint64_t graph_memory = 0;      ///< that it belongs to, counted from 1; 0 if none
  std::vector<snapshot_block> blocks;  ///< by address
  std::vector<snapshot_piece> pieces;  ///< of a view: its original ranges, in order
};

/// Calls, and what the pool reserved from and released to the driver, in one order.
enum class snapshot_event_kind : std::uint8_t { allocate, free, refused, reserve, release };

struct snapshot_event {
  snapshot_event_kind kind = snapshot_event_kind::allocate;
  std::uintptr_t address = 0;
  std::size_t bytes = 0;      ///< size of the block or handle; of a refused request its size
  std::size_t requested = 0;  ///< of allocate, free and refused
  stream_id stream = 0;
  std::uint32_t tag = 0;
  std::uint32_t location = 0;
  std::uint64_t time_ns = 0;
};

struct snapshot {
  std::string title = "tarn";
  int device = 0;
  std::uint64_t started_ns = 0;  ///< since 1970
  std::uint64_t now_ns = 0;      ///< since started_ns
  std::uint64_t steady_ns = 0;   ///< the steady clock at started_ns; 0 with a user's clock
  stream_id null_stream = 0;     ///< identity of the default stream, 0 if the driver does not report it
  pool_state pool;
  std::vector<snapshot_segment> segments;             ///< by address
  std::vector<snapshot_event> events;                 ///< oldest first
  std::uint64_t forgotten_events = 0;                 ///< number of events before the first of `events`
  std::vector<history_tag> tags;                      ///< tags[0] is "untagged"
  std::vector<std::vector<history_frame>> locations;  ///< innermost frame first; locations[0] is empty
};

}  // namespace TARN_NAMESPACE
