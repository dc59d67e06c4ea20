// SPDX-License-Identifier: Apache-2.0
#pragma once
// The vocabulary of pools that sleep and are compacted: where contents stay, and what compact() reports. The
// calls are in raii/sleep.hpp and raii/compact.hpp.

#include <cstddef>
#include <cstdint>

#include "tarn/version.hpp"

namespace TARN_NAMESPACE {

/// Where the contents of live blocks stay while a pool sleeps.
enum class contents : std::uint8_t {
  in_pinned_memory,  ///< copied at the full rate of the bus; allocating it takes 460 ms/GiB
  discarded          ///< not kept: indeterminate after waking
};

/// What wake() does with the pinned memory that held the contents.
enum class after_waking : std::uint8_t {
  free_host_memory,
  keep_host_memory  ///< for the next sleep that keeps contents, which then allocates nothing
};

/// What compact() reached; bytes. Without the memory of graph_memories.
struct compaction {
  std::size_t released = 0;  ///< physical memory given back
  std::size_t live = 0;  ///< in live blocks, and in runs of small blocks; thread caches in use are included
  std::size_t stretches = 0;  ///< of contiguous live bytes, counted in each handle; 0 of a pool over blocks
  /// held afterwards: `live`, and less than a granule at each end of a stretch; or segments
  std::size_t reserved = 0;
};

}  // namespace TARN_NAMESPACE
