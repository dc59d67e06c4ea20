// SPDX-License-Identifier: Apache-2.0
#pragma once
// memory_summary: the table that torch.cuda.memory_summary() prints, for a tarn pool.
// Above it: user code. Below it: stats.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tarn/report/stats.hpp"

namespace tarn {

namespace detail {

/// As PyTorch writes sizes: a unit is left for the next from 768 of it up; whole numbers, cut.
[[nodiscard]] inline std::string table_bytes(std::int64_t bytes) {
  constexpr std::string_view units[] = {"B  ", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  while (unit + 1 < std::size(units) && (bytes < 0 ? -bytes : bytes) >= 768 * std::int64_t{1024}) {
    bytes /= 1024;
    ++unit;
  }
  return std::to_string(bytes) + " " + std::string(units[unit]);
}
/// As PyTorch writes counts: thousands from 750,000 up.
[[nodiscard]] inline std::string table_count(std::int64_t count) {
  constexpr std::string_view units[] = {" ", "K", "M", "B"};
  std::size_t unit = 0;
  while (unit + 1 < std::size(units) && (count < 0 ? -count : count) >= 750 * std::int64_t{1000}) {
    count /= 1000;
    ++unit;
  }
  return std::to_string(count) + " " + std::string(units[unit]);
}

[[nodiscard]] inline std::string right(std::string text, std::size_t width) {
  return text.size() < width ? std::string(width - text.size(), ' ') + text : text;
}
[[nodiscard]] inline std::string left(std::string text, std::size_t width) {
  return text.size() < width ? text + std::string(width - text.size(), ' ') : text;
}
[[nodiscard]] inline std::string centred(std::string const& text, std::size_t width) {
  std::size_t const before = text.size() < width ? (width - text.size()) / 2 : 0;
  return left(std::string(before, ' ') + text, width);
}

}  // namespace detail

/// A table of 75 columns in the layout of torch.cuda.memory_summary(). For memory with `tracked` and, for the
/// reserved rows, a pool. @throws std::bad_alloc
template <class Resource>
[[nodiscard]] std::string memory_summary(Resource memory) {
  std::vector<memory_stat> const stats = memory_stats(memory);
  auto const value = [&](std::string const& key) -> std::int64_t {
    for (auto const& [name, number] : stats) {
      if (name == key) return number;
    }
    return 0;
  };
  using format = std::string (*)(std::int64_t);
  std::string const line(75, '=');
  std::string const rule(75, '-');
  std::string const device = "tarn memory summary, device ID " + std::to_string(memory.device().value);
  std::string out = "|" + line.substr(2) + "|\n";
  out += "|" + detail::centred(device, 73) + "|\n|" + rule.substr(2) + "|\n";
  out += "|" + detail::centred("CUDA OOMs: " + std::to_string(value("num_ooms")), 36) + "|" +
         detail::centred("cudaMalloc retries: " + std::to_string(value("num_alloc_retries")), 36) + "|\n";
  out += "|" + line.substr(2) + "|\n";
  out += "|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |\n";
  auto const row = [&](std::string const& label, std::string const& key, format write) {
    out += "| " + detail::left(label, 21) + " |";
    char const* const parts[] = {"current", "peak", "allocated", "freed"};
    for (char const* part : parts) out += " " + detail::right(write(value(key + "." + part)), 10) + " |";
    out += "\n";
  };
  auto const group = [&](char const* label, char const* key, format write) {
    out += "|" + rule.substr(2) + "|\n";
    row(label, std::string(key) + ".all", write);
    row("      from large pool", std::string(key) + ".large_pool", write);
    row("      from small pool", std::string(key) + ".small_pool", write);
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
  out += "|" + rule.substr(2) + "|\n";
  row("Oversize allocations", "oversize_allocations", &detail::table_count);
  out += "|" + rule.substr(2) + "|\n";
  row("Oversize GPU segments", "oversize_segments", &detail::table_count);
  out += "|" + line.substr(2) + "|\n";
  return out;
}

}  // namespace tarn
