// SPDX-License-Identifier: Apache-2.0
#pragma once
// memory_summary: the table of torch.cuda.memory_summary() for a tarn pool.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "tarn/core/min_max.hpp"
#include "tarn/core/text.hpp"
#include "tarn/report/stats.hpp"

namespace TARN_NAMESPACE {

namespace detail {

/// Formats a number in ten columns as PyTorch does: the unit is that of `scale`, the next one for bytes from
/// 768 KiB up, for counts from 750,000 up; truncated, not rounded.
[[nodiscard]] inline std::string table_number(std::int64_t number, std::int64_t scale,
                                              number_unit unit = number_unit::bytes) {
  constexpr char const* units[][6] = {{" B  ", " KiB", " MiB", " GiB", " TiB", " PiB"},
                                      {"   ", " K ", " M "}};
  bool const is_bytes = unit == number_unit::bytes;
  std::int64_t const step = is_bytes ? 1024 : 1000;
  std::size_t at = 0;
  for (; at + 1 < (is_bytes ? 6U : 3U) && scale >= (is_bytes ? 768 : 750) * step; ++at, scale /= step)
    number /= step;
  std::string const digits = std::to_string(number);
  std::size_t const width = is_bytes ? 6 : 7;
  return std::string(digits.size() < width ? width - digits.size() : 0, ' ') + digits +
         units[is_bytes ? 0 : 1][at];
}

/// Pads text on the right to `width` characters.
[[nodiscard]] inline std::string left(std::string const& text, std::size_t width) {
  std::size_t shown = 0;
  for (char const c : text) shown += continues_character(c) ? 0 : 1;
  return shown < width ? text + std::string(width - shown, ' ') : text;
}

}  // namespace detail

/// Returns a table, 75 columns between its edges, in the layout of torch.cuda.memory_summary(). While the
/// pool holds memory of captured graphs, three rows more show its current bytes: see memory_stats(). For
/// memory with `tracked` and, for the reserved rows, a pool. The title names the allocator_backend() unless
/// it is "pages". @throws std::bad_alloc
template <class Resource>
[[nodiscard]] std::string memory_summary(Resource memory) {
  detail::reported_numbers const numbers = detail::read_numbers(memory);
  std::string const line = detail::concat({"|", std::string(75, '='), "|\n"});
  std::string const rule = detail::concat({"|", std::string(75, '-'), "|\n"});
  std::string const spaces(17, ' ');
  std::string title =
      detail::concat({spaces, " tarn memory summary, device ID ", std::to_string(memory.device().value)});
  if constexpr (reachable<Resource, pool_call::allocator_backend>) {
    std::string_view const backend = allocator_backend(memory);
    if (backend != "pages") title += detail::concat({", ", backend});
  }
  std::string const ooms = detail::concat({"           CUDA OOMs: ", std::to_string(numbers.ooms)});
  std::string const retries =
      detail::concat({"       cudaMalloc retries: ",
                      std::to_string(numbers.pool.alloc_retries - numbers.pool.totals_reset.alloc_retries)});
  std::string out = detail::concat({line, "|", detail::left(title, 75), "|\n", rule});
  out += detail::concat({"|", detail::left(ooms, 35), "|", detail::left(retries, 39), "|\n", line});
  out += "|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |\n";
  // The first row of a group sets the unit of each column, so that the parts can be added up by eye.
  auto const row = [&](char const* label, counter const& s, counter const& scale, detail::number_unit unit) {
    out += detail::concat({"| ", detail::left(label, 21), " |"});
    for (detail::number_in<counter, std::int64_t> const part :
         {&counter::current, &counter::peak, &counter::allocated, &counter::freed})
      out += detail::concat({" ", detail::table_number(s.*part, scale.*part, unit), " |"});
    out += "\n";
  };
  for (detail::stat_row const& r : detail::stat_rows) {
    std::array<counter, 3> const& s = numbers.*r.values;
    out += rule;
    row(r.label, s[0], s[0], r.unit);
    row("      from large pool", s[2], s[0], r.unit);
    row("      from small pool", s[1], s[0], r.unit);
  }
  for (char const* label : {"Oversize allocations", "Oversize GPU segments"}) {
    out += rule;
    row(label, {}, {}, detail::number_unit::count);
  }
  if (numbers.has_graphs()) {
    std::string const none(12, ' ');
    auto const scale =
        static_cast<std::int64_t>(detail::max_of(numbers.graphs.reserved, numbers.graphs.kept));
    out += rule;
    for (detail::graph_row const& r : detail::graph_rows) {
      if (r.label == nullptr) continue;
      auto const bytes = static_cast<std::int64_t>(numbers.graphs.*r.value);
      out += detail::concat({"| ", detail::left(r.label, 21), " | ", detail::table_number(bytes, scale), " |",
                             none, "|", none, "|", none, "|\n"});
    }
  }
  out += line;
  return out;
}

}  // namespace TARN_NAMESPACE
