// SPDX-License-Identifier: Apache-2.0
#pragma once
// memory_summary: the table of torch.cuda.memory_summary() for a tarn pool; memory_stats_json: the same numbers as JSON.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tarn/core/concat.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/text_prefix.hpp"
#include "tarn/report/stats.hpp"

namespace tarn {

namespace detail {

/// Formats a size in ten columns as PyTorch does: the unit is that of `scale`, the next one from 768 KiB up; truncated, not
/// rounded.
[[nodiscard]] inline std::string table_bytes(std::int64_t bytes, std::int64_t scale) {
  constexpr char const* units[] = {"B  ", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  for (; unit + 1 < std::size(units) && scale >= 768 * std::int64_t{1024}; ++unit, scale /= 1024)
    bytes /= 1024;
  std::string const digits = std::to_string(bytes);
  return std::string(digits.size() < 6 ? 6 - digits.size() : 0, ' ') + digits + " " + units[unit];
}
/// Formats a count in ten columns as PyTorch does: thousands from 750,000 up.
[[nodiscard]] inline std::string table_count(std::int64_t count, std::int64_t scale) {
  constexpr char const* units[] = {" ", "K", "M"};
  std::size_t unit = 0;
  for (; unit + 1 < std::size(units) && scale >= 750 * std::int64_t{1000}; ++unit, scale /= 1000)
    count /= 1000;
  std::string const digits = std::to_string(count);
  return std::string(digits.size() < 7 ? 7 - digits.size() : 0, ' ') + digits + " " + units[unit] + " ";
}

/// Pads text on the right to `width` characters.
[[nodiscard]] inline std::string left(std::string const& text, std::size_t width) {
  std::size_t shown = 0;
  for (char const c : text) shown += continues_character(c) ? 0 : 1;
  return shown < width ? text + std::string(width - shown, ' ') : text;
}

}  // namespace detail

/// Returns a table, 75 columns between its edges, in the layout of torch.cuda.memory_summary(). While the pool holds memory of
/// captured graphs, three rows more show its current bytes: see memory_stats(). For memory with `tracked` and, for the reserved
/// rows, a pool. The title names the allocator_backend() unless it is "pages". @throws std::bad_alloc
template <class Resource>
[[nodiscard]] std::string memory_summary(Resource memory) {
  std::vector<memory_stat> const stats = memory_stats(memory);
  auto const value = [&](std::string const& key) -> std::int64_t {
    for (auto const& [name, number] : stats) {
      if (name == key) return number;
    }
    return 0;
  };
  using format = std::string (*)(std::int64_t, std::int64_t);
  std::string const line = detail::concat({"|", std::string(75, '='), "|\n"});
  std::string const rule = detail::concat({"|", std::string(75, '-'), "|\n"});
  std::string const spaces(17, ' ');
  std::string title =
      detail::concat({spaces, " tarn memory summary, device ID ", std::to_string(memory.device().value)});
  if constexpr (reachable<Resource, pool_call::allocator_backend>) {
    std::string_view const backend = allocator_backend(memory);
    if (backend != "pages") title += detail::concat({", ", backend});
  }
  std::string const ooms = detail::concat({"           CUDA OOMs: ", std::to_string(value("num_ooms"))});
  std::string const retries =
      detail::concat({"       cudaMalloc retries: ", std::to_string(value("num_alloc_retries"))});
  std::string out = detail::concat({line, "|", detail::left(title, 75), "|\n", rule});
  out += detail::concat({"|", detail::left(ooms, 35), "|", detail::left(retries, 39), "|\n", line});
  out += "|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |\n";
  char const* const parts[] = {".current", ".peak", ".allocated", ".freed"};
  // The first row of a group sets the unit of each column, so that the parts can be added up by eye.
  auto const row = [&](std::string const& label, std::string const& key, std::string const& scale,
                       format write) {
    out += detail::concat({"| ", detail::left(label, 21), " |"});
    for (char const* part : parts)
      out += detail::concat({" ", write(value(key + part), value(scale + part)), " |"});
    out += "\n";
  };
  auto const group = [&](char const* label, char const* key, format write) {
    std::string const all = std::string(key) + ".all";
    out += rule;
    row(label, all, all, write);
    row("      from large pool", std::string(key) + ".large_pool", all, write);
    row("      from small pool", std::string(key) + ".small_pool", all, write);
  };
  group("Allocated memory", "allocated_bytes", &detail::table_bytes);
  group("Active memory", "active_bytes", &detail::table_bytes);
  group("Requested memory", "requested_bytes", &detail::table_bytes);
  group("GPU reserved memory", "reserved_bytes", &detail::table_bytes);
  group("Non-releasable memory", "inactive_split_bytes", &detail::table_bytes);
  group("Allocations", "allocation", &detail::table_count);
  group("Active allocs", "active", &detail::table_count);
  group("GPU reserved segments", "segment", &detail::table_count);
  group("Non-releasable allocs", "inactive_split", &detail::table_count);
  out += rule;
  row("Oversize allocations", "oversize_allocations", "oversize_allocations", &detail::table_count);
  out += rule;
  row("Oversize GPU segments", "oversize_segments", "oversize_segments", &detail::table_count);
  if (value("graph_memory.owners") != 0 || value("graph_memory.kept_bytes") != 0) {
    std::string const none(12, ' ');
    std::int64_t const scale =
        detail::max_of(value("graph_memory.reserved_bytes"), value("graph_memory.kept_bytes"));
    auto const current = [&](char const* label, char const* key) {
      out += detail::concat({"| ", detail::left(label, 21), " | ", detail::table_bytes(value(key), scale),
                             " |", none, "|", none, "|", none, "|\n"});
    };
    out += rule;
    current("Graph memory", "graph_memory.reserved_bytes");
    current("      allocated", "graph_memory.allocated_bytes");
    current("      kept blocks", "graph_memory.kept_bytes");
  }
  out += line;
  return out;
}

/// Returns memory_stats() as one line of JSON, as json.dumps(torch.cuda.memory_stats()) has them: an object of the keys in their
/// order, each with an integer. For logs and monitors. For memory with `tracked`. Cost and threads as memory_stats().
/// @throws std::bad_alloc
template <class Resource>
[[nodiscard]] std::string memory_stats_json(Resource memory) {
  std::string out;
  for (auto const& [key, value] : memory_stats(memory))  // keys are plain text: nothing to escape
    out += detail::concat({out.empty() ? "{\"" : ",\"", key, "\":", std::to_string(value)});
  return out += '}';
}

}  // namespace tarn
