// SPDX-License-Identifier: Apache-2.0
#pragma once
// What `tracked` reports: the statistics of all blocks, and high-water marks over scopes.

#include <array>
#include <cstdint>

#include "tarn/core/counter.hpp"

namespace TARN_NAMESPACE {

/// PyTorch's three groups; a block is small up to 1 MiB.
enum class block_group : std::uint8_t { all, smaller, larger };

/// Statistics of the blocks that were handed out; each array is indexed by block_group.
struct tracked_statistics {
  std::array<stat, 3> allocations;      ///< blocks
  std::array<stat, 3> allocated_bytes;  ///< as the pool rounds them
  std::array<stat, 3> requested_bytes;  ///< as requested
  std::uint64_t ooms = 0;               ///< requests refused
  /// The same, including freed blocks that the pool holds back for the work of other streams. Such a block
  /// counts with the bytes requested from the pool.
  std::array<stat, 3> active;
  std::array<stat, 3> active_bytes;
  std::array<stat, 3> active_requested_bytes;
};

/// Which threads' calls a high-water mark counts.
enum class peak_of { all_threads, this_thread };

/// A high-water mark over a scope; linked into its tracked_layer while it lives.
struct high_water_mark {
  std::int64_t start = 0;        ///< allocated bytes when it began (0 for one thread's)
  std::int64_t current = 0;      ///< current value
  std::int64_t peak = 0;         ///< the maximum since it began
  std::int64_t allocations = 0;  ///< blocks handed out since it began
  peak_of whose = peak_of::all_threads;
  std::uint64_t thread = 0;  ///< number of the thread whose calls count, for peak_of::this_thread
  high_water_mark* next = nullptr;
};

}  // namespace TARN_NAMESPACE
