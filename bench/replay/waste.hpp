// SPDX-License-Identifier: Apache-2.0
#pragma once
// The parts of a pool's reserved memory at the peaks of a replay: what was requested, and where the rest is.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "tarn/core/bytes.hpp"

namespace tarn::bench {

/// Upper bounds of the sizes that free memory is counted by, bytes.
inline constexpr std::size_t free_sizes[] = {64_KiB, 1_MiB,  2_MiB,
                                             8_MiB,  32_MiB, static_cast<std::size_t>(-1)};

/// A part of reserved memory. Free memory has one part for each of `free_sizes`.
enum class memory_part : std::uint8_t {
  requested,
  class_rounding,  ///< of blocks up to 1 MiB
  grain_rounding,  ///< of larger blocks
  run_blocks,      ///< free blocks of runs that are partly in use
  run_ends,        ///< what is too small for one more block
  thread_caches,
  recorded_uses,  ///< deferred blocks (record_stream)
  stream_order,   ///< blocks that were freed on another stream than their run's
  segment_ends,   ///< unaligned ends; only where memory is not pages
  free_parts,     ///< free stretches of handles or segments that are not free as a whole
  free_handles = free_parts + std::size(free_sizes)  ///< handles or segments in one free range
};
inline constexpr std::size_t memory_part_count =
    static_cast<std::size_t>(memory_part::free_handles) + std::size(free_sizes);

/// The names of the parts: in JSON, and in the table.
struct memory_part_name {
  std::string_view key;
  std::string_view text;
};
inline constexpr std::array<memory_part_name, memory_part_count> memory_part_names{{
    {"requested", "requested by live blocks"},
    {"class_rounding", "rounding to size classes"},
    {"grain_rounding", "rounding to 512 bytes"},
    {"run_blocks", "free blocks of runs"},
    {"run_ends", "ends of runs"},
    {"thread_caches", "thread caches"},
    {"recorded_uses", "deferred for recorded uses"},
    {"stream_order", "waiting for stream order"},
    {"segment_ends", "ends of segments"},
    {"free_parts_below_64KiB", "free parts of handles, below 64 KiB"},
    {"free_parts_64KiB_to_1MiB", "free parts of handles, 64 KiB to 1 MiB"},
    {"free_parts_1_to_2MiB", "free parts of handles, 1 to 2 MiB"},
    {"free_parts_2_to_8MiB", "free parts of handles, 2 to 8 MiB"},
    {"free_parts_8_to_32MiB", "free parts of handles, 8 to 32 MiB"},
    {"free_parts_from_32MiB", "free parts of handles, 32 MiB or more"},
    {"free_handles_below_64KiB", "wholly free handles, below 64 KiB"},
    {"free_handles_64KiB_to_1MiB", "wholly free handles, 64 KiB to 1 MiB"},
    {"free_handles_1_to_2MiB", "wholly free handles, 1 to 2 MiB"},
    {"free_handles_2_to_8MiB", "wholly free handles, 2 to 8 MiB"},
    {"free_handles_8_to_32MiB", "wholly free handles, 8 to 32 MiB"},
    {"free_handles_from_32MiB", "wholly free handles, 32 MiB or more"},
}};

struct part_amount {
  std::uint64_t bytes = 0;
  std::uint64_t count = 0;  ///< blocks, runs with an end, free stretches or handles

  void add(std::uint64_t more) noexcept {
    bytes += more;
    ++count;
  }
};

/// The reserved memory after one event.
struct waste_moment {
  unsigned pass = 0;        ///< from 1
  std::uint64_t event = 0;  ///< from 1; 0: the trace has none
  std::uint64_t asked = 0;  ///< bytes that the event requested
  std::uint64_t reserved = 0;
  std::uint64_t handles = 0;  ///< or segments, that are reserved
  std::array<part_amount, memory_part_count> parts{};

  [[nodiscard]] part_amount& of(memory_part part) noexcept { return parts[static_cast<std::size_t>(part)]; }
  [[nodiscard]] part_amount const& of(memory_part part) const noexcept {
    return parts[static_cast<std::size_t>(part)];
  }
  /// Adds free memory to the part of its size. `part` is free_parts or free_handles.
  void add_free(memory_part part, std::size_t bytes) noexcept {
    std::size_t size = 0;
    while (size + 1 < std::size(free_sizes) && bytes >= free_sizes[size]) ++size;
    parts[static_cast<std::size_t>(part) + size].add(bytes);
  }
};

/// The parts do not add up to what is reserved: an error of this program or of the pool's records.
class waste_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The waste of one trace on one pool.
struct waste {
  std::string trace;
  std::string pool;
  std::string device;
  std::uint64_t events = 0;  ///< per pass
  unsigned passes = 0;
  std::uint64_t peak_live = 0;               ///< bytes, requested
  std::uint64_t peak_reserved = 0;           ///< bytes, over all passes, also within a call
  std::uint64_t out_of_memory = 0;           ///< refused requests, all passes together
  waste_moment at_peak_reserved;             ///< the first event after which the most bytes are reserved
  std::optional<waste_moment> at_peak_live;  ///< in the same pass; empty if it is the same event

  /// Returns peak live requested bytes / peak reserved bytes; empty if requests were refused.
  [[nodiscard]] std::optional<double> utilisation() const noexcept {
    if (peak_reserved == 0 || out_of_memory != 0) return std::nullopt;
    return static_cast<double>(peak_live) / static_cast<double>(peak_reserved);
  }
};

/// @throws waste_error  the parts of a moment do not add up to its reserved bytes
void require_sum(waste const& of, waste_moment const& moment);

}  // namespace tarn::bench
