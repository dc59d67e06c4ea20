// SPDX-License-Identifier: Apache-2.0
#pragma once
// memory_by_tag: memory use per tag.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tarn/core/min_max.hpp"
#include "tarn/core/shared_resource.hpp"
#include "tarn/core/text.hpp"
#include "tarn/debug/memory_history.hpp"
#include "tarn/report/summary.hpp"

namespace TARN_NAMESPACE {

/// Returns the statistics of each tag under which memory was allocated, including "untagged", sorted by bytes
/// (descending), then by name. For memory with a `with_history` layer. Takes its lock briefly. @throws
/// std::bad_alloc
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

/// Returns memory_by_tag() as a table, 75 columns between its edges, with the sum last. A column has one
/// unit, so that it can be added up by eye; numbers are truncated. Peaks are per tag and occur at different
/// times. Names are cut, and printable whatever they hold.
/// @throws std::bad_alloc
template <class Resource>
[[nodiscard]] std::string memory_by_tag_summary(Resource memory) {
  std::vector<history_tag> const tags = memory_by_tag(std::move(memory));
  history_tag all;
  for (history_tag const& t : tags) {
    all.bytes += t.bytes;
    all.peak_bytes = detail::max_of(all.peak_bytes, t.peak_bytes);
    all.requested += t.requested;
    all.blocks += t.blocks;
  }
  std::string const line = detail::concat({"|", std::string(75, '='), "|\n"});
  std::string out = line;
  out += "| Tag                    | Cur Usage  | Peak Usage | Requested  | Blocks     |\n" + line;
  auto const column = [](std::size_t number, std::size_t scale,
                         detail::number_unit unit = detail::number_unit::bytes) {
    auto const shown =
        detail::table_number(static_cast<std::int64_t>(number), static_cast<std::int64_t>(scale), unit);
    return detail::concat({" ", shown, " |"});
  };
  auto const row = [&](history_tag const& t, std::string const& peak) {
    std::string const name = detail::as_printable(detail::text_prefix(t.name, 22));
    out += detail::concat({"| ", detail::left(name, 22), " |", column(t.bytes, all.bytes), peak});
    out +=
        column(t.requested, all.requested) + column(t.blocks, all.blocks, detail::number_unit::count) + "\n";
  };
  for (history_tag const& t : tags) row(t, column(t.peak_bytes, all.peak_bytes));
  out += detail::concat({"|", std::string(75, '-'), "|\n"});
  all.name = "all";
  row(all, std::string(12, ' ') + "|");
  return out + line;
}

}  // namespace TARN_NAMESPACE
