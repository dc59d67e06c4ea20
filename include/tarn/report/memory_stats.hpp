// SPDX-License-Identifier: Apache-2.0
#pragma once
// memory_stats: all statistics under the keys of torch.cuda.memory_stats(); memory_stats_json: the same
// numbers as JSON. Apart from stats.hpp, because std::vector costs a compiler 40 ms.

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tarn/core/counter.hpp"
#include "tarn/core/sort.hpp"
#include "tarn/core/text.hpp"
#include "tarn/report/stats.hpp"

namespace TARN_NAMESPACE {

/// One statistic under PyTorch's key: "allocated_bytes.all.current", "num_ooms", ...
using memory_stat = std::pair<std::string, std::int64_t>;

/// Returns all statistics under the keys of torch.cuda.memory_stats(), in the same sort order:
///   allocation, allocated_bytes    allocated blocks, as the pool rounds them
///   active, active_bytes           these, and deferred blocks: freed, but used by a stream that record_stream() named, or by
///                                  a destroyed one
///   requested_bytes                bytes requested for active blocks
///   reserved_bytes, segment        bytes held from the driver; physical handles, or segments of a pool over blocks. A handle
///                                  belongs to the small or the large pool it was created for, though it may serve both.
///   inactive_split                 free ranges that lie partly in a handle or a segment without filling it, so that it cannot
///                                  be released; inactive_split_bytes: their bytes in those. (PyTorch omits expandable
///                                  segments.) Blocks in a thread's magazines and free blocks of a run (up to 32 KiB) are not
///                                  counted. Peak and totals are taken when a call that reached the pool's shared part ends.
///   num_alloc_retries              times that the driver refused and the cache was searched again
///   num_sync_all_streams           times that the host waited for a stream
///   oversize_*, max_split_size     0 and -1: blocks of every size may be split
/// The memory of captured graphs is part of these numbers, as PyTorch's private pools are. PyTorch has no
/// keys for it alone. While a pool holds any, there are four keys of tarn's own, each a current value:
///   graph_memory.owners            graph memories, and ended ones whose memory has not been given back yet
///   graph_memory.reserved_bytes    held from the driver for them alone
///   graph_memory.allocated_bytes   the live blocks in it
///   graph_memory.kept_bytes        other blocks that were freed inside a capture, which the pool keeps for the graph; they are
///                                  part of active_bytes until then
/// graph_memory::state() returns these for one owner, take_snapshot() by segment (PyTorch's segment_pool_id).
/// A block is in small_pool up to 1 MiB, as requested; if a layer below `tracked` adds bytes (fences), a
/// deferred block counts with them. Exact while no other thread is inside a call; under concurrency each
/// number belongs to one order of events. Takes the pool's locks briefly. O(threads + streams). @throws
/// std::bad_alloc
template <class Resource>
[[nodiscard]] std::vector<memory_stat> memory_stats(Resource memory) {
  detail::reported_numbers const numbers = detail::read_numbers(memory);
  std::vector<memory_stat> out;
  auto const add = [&](std::string key, std::int64_t n) { out.emplace_back(std::move(key), n); };
  auto const put = [&](std::string const& name, counter const& s) {
    add(name + ".allocated", s.allocated);
    add(name + ".current", s.current);
    add(name + ".freed", s.freed);
    add(name + ".peak", s.peak);
  };
  for (detail::stat_row const& row : detail::stat_rows) {
    std::array<counter, 3> const& s = numbers.*row.values;
    put(std::string(row.key) + ".all", s[0]);
    put(std::string(row.key) + ".small_pool", s[1]);
    put(std::string(row.key) + ".large_pool", s[2]);
  }
  for (detail::pool_number const& n : detail::pool_numbers) {
    if (n.key != nullptr) add(n.key, numbers.since_reset(n));
  }
  for (detail::graph_row const& row : detail::graph_rows) {
    if (numbers.has_graphs()) add(row.key, static_cast<std::int64_t>(numbers.graphs.*row.value));
  }
  add("max_split_size", -1);
  add("num_ooms", static_cast<std::int64_t>(numbers.ooms));
  put("oversize_allocations", {});
  put("oversize_segments", {});
  detail::sort(out.data(), out.size(),
               [](memory_stat const& a, memory_stat const& b) { return a.first < b.first; });
  return out;
}

/// Returns memory_stats() as one line of JSON, as json.dumps(torch.cuda.memory_stats()) has them: an object
/// of the keys in their order, each with an integer. For logs and monitors. For memory with `tracked`. Cost
/// and threads as memory_stats().
/// @throws std::bad_alloc
template <class Resource>
[[nodiscard]] std::string memory_stats_json(Resource memory) {
  std::string out;
  for (auto const& [key, value] : memory_stats(memory))  // keys are plain text: nothing to escape
    out += detail::concat({out.empty() ? "{\"" : ",\"", key, "\":", std::to_string(value)});
  return out += '}';
}

}  // namespace TARN_NAMESPACE
