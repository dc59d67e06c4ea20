// SPDX-License-Identifier: Apache-2.0
#pragma once
// snapshot_segment: a range of addresses of a pool, tiled by its blocks. Plain data of a snapshot.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tarn/core/stream.hpp"

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

}  // namespace TARN_NAMESPACE
