// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a pool knows of itself at one moment, for reports and tests. Bytes unless said.

#include <cstddef>
#include <cstdint>

#include "tarn/core/counter.hpp"

namespace tarn {

/// Free ranges that cannot be given back to the driver by themselves: the parts of free ranges that lie in handles, or in a
/// segment, which they do not fill. Counted at the end of each call that reaches the pool's shared part. What threads keep
/// in their magazines and the free blocks of a run are not among them.
struct split_ranges {
  stat blocks;  ///< free ranges with such a part
  stat bytes;   ///< in those parts
};

/// What the totals of a pool were at the last reset_totals().
struct pool_totals {
  std::uint64_t reserved = 0;
  std::uint64_t released = 0;
  std::uint64_t creates = 0;
  std::uint64_t destroys = 0;
  std::uint64_t alloc_retries = 0;
  std::uint64_t host_waits = 0;
};

/// One of PyTorch's two pools: what was taken for blocks up to 1 MiB, or for larger ones. A wholly free handle of one
/// may serve the other, too.
struct pool_part {
  stat reserved;                         ///< bytes held from the driver
  stat handles;                          ///< physical handles, or segments, held
  std::size_t free_blocks = 0;           ///< free ranges
  std::size_t inactive_split_bytes = 0;  ///< bytes in them
  split_ranges split;
};

struct pool_state {
  std::size_t live = 0;                ///< handed out, rounded to blocks; `pending` is part of it
  std::size_t live_blocks = 0;         ///< how many blocks that is
  std::size_t reserved = 0;            ///< held from the driver
  std::size_t reserved_peak = 0;       ///< since the last reset_peaks()
  std::size_t cached = 0;              ///< reserved, not handed out
  std::size_t pending = 0;             ///< freed, but awaiting another stream that used it (record_use)
  std::size_t pending_blocks = 0;      ///< how many blocks that is
  std::size_t largest_free_range = 0;  ///< the largest block that needs no driver call, magazines not counted
  std::size_t free_blocks = 0;         ///< free ranges
  std::size_t inactive_split_bytes = 0;  ///< bytes in them, whole free handles and segments included
  split_ranges split;                    ///< those of them that cannot be given back by themselves
  std::uint64_t reserved_total = 0;      ///< ever taken from the driver
  std::uint64_t released_total = 0;      ///< ever given back
  std::uint64_t handles = 0;             ///< physical handles, or segments, held
  std::uint64_t handles_peak = 0;
  std::uint64_t creates = 0;  ///< handles or segments made
  std::uint64_t destroys = 0;
  std::uint64_t maps = 0;
  std::uint64_t unmaps = 0;
  std::uint64_t remaps = 0;         ///< maps of handles that served elsewhere before
  std::uint64_t alloc_retries = 0;  ///< times the driver refused and the cache was searched again
  std::uint64_t ooms = 0;           ///< out_of_memory thrown
  std::uint64_t host_waits = 0;     ///< times the host waited for a stream
  std::uint64_t device_waits = 0;   ///< times a stream was made to wait for another
  /// Host memory of the bookkeeping, bytes. For a live block of up to 2 KiB some 3, up to 1 MiB some 65 to 105, for a larger
  /// one up to 260, its share of the free ranges among them; for a GiB of large blocks 13 to 22 KiB. Steady at constant
  /// live size, however many calls (tests/pool/growth.cpp).
  std::size_t host_bytes = 0;
  pool_part small;  ///< of what is above: for blocks up to 1 MiB
  pool_part large;  ///< for larger blocks
  pool_totals totals_reset;
};

}  // namespace tarn
