// SPDX-License-Identifier: Apache-2.0
#pragma once
// Ranges of sizes, used as tags for replayed traces: a trace has sizes only.

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tarn::bench {

struct size_span {
  std::size_t most;  ///< bytes, as requested
  std::string_view name;
};

inline constexpr size_span size_spans[] = {
    {std::size_t{4} << 10U, "up to 4 KiB"},        {std::size_t{64} << 10U, "up to 64 KiB"},
    {std::size_t{1} << 20U, "up to 1 MiB"},        {std::size_t{8} << 20U, "up to 8 MiB"},
    {std::size_t{64} << 20U, "up to 64 MiB"},      {std::size_t{512} << 20U, "up to 512 MiB"},
    {static_cast<std::size_t>(-1), "over 512 MiB"}};

/// Returns the index into snapshot::tags for a request of `bytes`: 1 is the first range, 0 is "untagged".
[[nodiscard]] constexpr std::uint32_t tag_of_size(std::size_t bytes) noexcept {
  std::uint32_t i = 0;
  while (bytes > size_spans[i].most) ++i;
  return i + 1;
}

}  // namespace tarn::bench
