// SPDX-License-Identifier: Apache-2.0
#pragma once
// live_blocks_summary: what is still allocated, as text, for the end of a test.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "tarn/core/message.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/pool_call.hpp"
#include "tarn/core/shared_resource.hpp"
#include "tarn/debug/memory_history.hpp"
#include "tarn/report/stats.hpp"

namespace TARN_NAMESPACE {

/// Returns what is allocated from `memory` now, as text; an empty text if nothing is. Every test framework
/// prints both sides of a comparison that fails:
///
///   CHECK(tarn::live_blocks_summary(pool) == "");      // Catch2 2 and 3
///   EXPECT_EQ(tarn::live_blocks_summary(pool), "");    // GoogleTest
///
/// Of memory with `tracked` the text is "2 blocks with 5 KiB are live"; `with_history` adds a line for each
/// block, the largest first, with its bytes, its tag and the line that allocated it.
/// @param most  blocks that are listed
/// Freed blocks that wait for other streams are not live. Those that `checked` has in quarantine are verified
/// and given back first. Costs as memory_allocated(), with `with_history` as
/// a copy of its records. @throws std::bad_alloc
template <class Resource>
[[nodiscard]] std::string live_blocks_summary(Resource memory, std::size_t most = 10) {
  constexpr bool has_record = reachable<Resource, detail::ask_record>;
  static_assert(
      detail::is_tracked<Resource> || has_record,
      "tarn: live_blocks_summary needs counts or records; add: | tarn::tracked{} or | tarn::with_history{}");
  detail::release_quarantine(memory);
  memory_history history;
  if constexpr (has_record) history = nearest(memory, detail::ask_record{});
  auto blocks = static_cast<std::int64_t>(history.live.size());
  std::int64_t bytes = 0;
  for (history_block const& b : history.live) bytes += static_cast<std::int64_t>(b.requested);
  if constexpr (detail::is_tracked<Resource>) {
    tracked_statistics const counts = nearest(memory, detail::ask_statistics);
    if (counts.allocations[0].current != 0) {
      blocks = counts.allocations[0].current;
      bytes = counts.requested_bytes[0].current;
    }
  }
  if (blocks == 0) return {};
  if (blocks < 0 || bytes < 0)
    return "more was freed than allocated; add | tarn::checked{} to find the double free or the wrong size";
  message<64> first;
  first.add_number(static_cast<std::uint64_t>(blocks)).add(blocks == 1 ? " block with " : " blocks with ");
  first.add_bytes(static_cast<std::uint64_t>(bytes)).add(blocks == 1 ? " is live" : " are live");
  std::string out(first.view());
  std::sort(history.live.begin(), history.live.end(), [](history_block const& a, history_block const& b) {
    return a.requested != b.requested ? a.requested > b.requested : a.address < b.address;
  });
  std::size_t const listed = detail::min_of(most, history.live.size());
  for (std::size_t i = 0; i < listed; ++i) {
    history_block const& b = history.live[i];
    message<512> line;
    line.add("\n  ").add_bytes(b.requested);
    if (b.tag != 0) line.add(" \"").add_printable(history.tags[b.tag].name).add("\"");
    if (auto const& stack = history.locations[b.location]; !stack.empty())
      line.add(" at ").add_printable(stack[0].file).add(":").add_number(stack[0].line);
    out += line.view();
  }
  if (std::size_t const rest = history.live.size() - listed; rest != 0)
    out += message<64>("\n  and ", rest, " more").view();
  return out;
}

}  // namespace TARN_NAMESPACE
