// SPDX-License-Identifier: Apache-2.0
#pragma once
// The statistics of a pool at one moment, for reports and tests. In bytes unless noted.

#include <cstddef>
#include <cstdint>

#include "tarn/core/counter.hpp"

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
  pool_part smaller;  ///< the part of the above for blocks up to 1 MiB
  pool_part larger;   ///< for larger blocks
  pool_totals totals_reset;
};

}  // namespace tarn
