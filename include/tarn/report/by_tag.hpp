// SPDX-License-Identifier: Apache-2.0
#pragma once
// memory_by_tag: memory use per tag.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tarn/core/concat.hpp"
#include "tarn/core/shared_resource.hpp"
#include "tarn/core/text_prefix.hpp"
#include "tarn/policy/memory_history.hpp"
#include "tarn/report/summary.hpp"

namespace tarn {

/// Returns the statistics of each tag under which memory was allocated, including "untagged", sorted by bytes (descending),
/// then by name. For memory with a `with_history` layer. Takes its lock briefly. @throws std::bad_alloc
template <class Resource>
[[nodiscard]] std::vector<history_tag> memory_by_tag(Resource memory) {
  auto const ask = [](auto& layer) -> decltype(layer.tags()) { return layer.tags(); };
  static_assert(reachable<Resource, decltype(ask)>,
                "tarn: memory_by_tag needs recorded tags; add: | tarn::with_history{}");
  std::vector<history_tag> tags = nearest(memory, ask);
  std::erase_if(tags, [](history_tag const& t) { return t.allocations == 0; });
  std::sort(tags.begin(), tags.end(), [](history_tag const& a, history_tag const& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.name < b.name;
  });
  return tags;
}

/// Returns memory_by_tag() as a table, 75 columns between its edges, with the sum last. Peaks are per tag and occur at
/// different times.
/// @throws std::bad_alloc
template <class Resource>
[[nodiscard]] std::string memory_by_tag_summary(Resource memory) {
  std::string const line = detail::concat({"|", std::string(75, '='), "|\n"});
  std::string out = line;
  out += "| Tag                    | Cur Usage  | Peak Usage | Requested  | Blocks     |\n" + line;
  auto const row = [&](std::string const& name, history_tag const& t, bool has_peak) {
    auto const bytes = [](std::size_t n) {
      auto const number = static_cast<std::int64_t>(n);
      return detail::concat({" ", detail::table_number(number, number), " |"});
    };
    auto const blocks = static_cast<std::int64_t>(t.blocks);
    out += detail::concat(
        {"| ", detail::left(std::string(detail::text_prefix(name, 22)), 22), " |", bytes(t.bytes)});
    out += has_peak ? bytes(t.peak_bytes) : std::string(12, ' ') + "|";
    out +=
        bytes(t.requested) + " " + detail::table_number(blocks, blocks, detail::number_unit::count) + " |\n";
  };
  history_tag all;
  for (history_tag const& t : memory_by_tag(std::move(memory))) {
    row(t.name, t, true);
    all.bytes += t.bytes;
    all.requested += t.requested;
    all.blocks += t.blocks;
  }
  out += detail::concat({"|", std::string(75, '-'), "|\n"});
  row("all", all, false);
  return out + line;
}

}  // namespace tarn
