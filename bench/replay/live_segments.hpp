// SPDX-License-Identifier: Apache-2.0
#pragma once
// Segments from nothing but the live blocks: memory is mapped in pages of 2 MiB, so every page that a live block
// touches is held. Pages of cached blocks alone are not seen; the report says how much that is.
// Above it: report. Below it: tarn/report/snapshot.

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tarn/report/snapshot.hpp"

namespace tarn::bench {

/// A span of sizes that stands for a tag.
struct size_span {
  std::size_t most;  ///< bytes
  std::string_view name;
};

inline constexpr size_span size_spans[] = {
    {std::size_t{4} << 10, "up to 4 KiB"},         {std::size_t{64} << 10, "up to 64 KiB"},
    {std::size_t{1} << 20, "up to 1 MiB"},         {std::size_t{8} << 20, "up to 8 MiB"},
    {std::size_t{64} << 20, "up to 64 MiB"},       {std::size_t{512} << 20, "up to 512 MiB"},
    {static_cast<std::size_t>(-1), "over 512 MiB"}};

/// Index into snapshot::tags of a block that was asked for with so many bytes: 1 is the first span.
[[nodiscard]] std::uint32_t tag_of_size(std::size_t bytes) noexcept;

/// Stretches of pages that hold live blocks, by address, tiled by these blocks and what is cached between them.
/// @param blocks  in any order; those with address 0 are none
[[nodiscard]] std::vector<snapshot_segment> live_segments(std::vector<snapshot_block> const& blocks);

}  // namespace tarn::bench
