// SPDX-License-Identifier: Apache-2.0
#include "replay/table.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <ostream>
#include <vector>

#include "peers/peer.hpp"
#include "replay/pytorch_held.hpp"

namespace tarn::bench {

namespace {

constexpr double mib = 1024.0 * 1024.0;
using row_text = std::array<std::string, 10>;
constexpr std::size_t creep_column = 3;
constexpr std::size_t first_modelled_column = 8;

std::string fixed(double value, int decimals) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", decimals, value);
  return text.data();
}

std::string count(std::optional<std::uint64_t> const& n) {
  return n ? with_commas(*n) : "-";
}

// Whole nanoseconds, but not "0" for a positive time.
std::string nanoseconds(std::optional<double> const& ns) {
  if (!ns) return "-";
  return *ns < 10 ? fixed(*ns, 1) : with_commas(static_cast<std::uint64_t>(std::llround(*ns)));
}

// Only the simulated device models the cost of its calls.
std::string modelled(figures const& row, std::optional<double> const& ns) {
  return row.device == to_text(place_of_memory::simulated) ? nanoseconds(ns) : "-";
}

row_text text_of(figures const& row) {
  return {row.pool,
          row.peak_reserved ? as_mib(static_cast<double>(*row.peak_reserved)) : "-",
          row.out_of_memory != 0 ? "out of memory"
          : row.utilisation()    ? fixed(*row.utilisation(), 3)
                                 : "-",
          row.creep() ? fixed(*row.creep(), 3) : "-",
          count(row.driver_calls),
          count(row.driver_calls_warm),
          nanoseconds(row.cold_ns_per_event),
          nanoseconds(row.warm_ns_per_event),
          modelled(row, row.driver_ns_cold),
          modelled(row, row.passes > 1 ? std::optional(row.driver_ns_warm) : std::nullopt)};
}

row_text text_of(char const* name, double held_mib, std::uint64_t peak_live) {
  return {name,
          as_mib(held_mib * mib),
          fixed(static_cast<double>(peak_live) / (held_mib * mib), 3),
          "-",
          "-",
          "-",
          "-",
          "-",
          "-",
          "-"};
}

/// Returns what PyTorch held for a trace; null if it is not known.
pytorch_held const* pytorch_for(std::string const& trace) noexcept {
  auto const* const held = std::find_if(std::begin(held_by_pytorch), std::end(held_by_pytorch),
                                        [&](pytorch_held const& h) { return h.trace == trace; });
  return held != std::end(held_by_pytorch) ? held : nullptr;
}

}  // namespace

std::string with_commas(std::uint64_t n) {
  std::string digits = std::to_string(n);
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > 0; at -= 3) {
    digits.insert(static_cast<std::size_t>(at), 1, ',');
  }
  return digits;
}

std::string as_mib(double bytes) {
  auto const tenths = static_cast<std::uint64_t>(std::llround(bytes / mib * 10));
  return with_commas(tenths / 10) + '.' + std::to_string(tenths % 10) + " MiB";
}

void write_table(std::ostream& out, std::span<figures const> rows) {
  if (rows.empty()) return;
  figures const& first = rows.front();
  std::vector<row_text> lines{{"pool", "peak reserved", "utilisation", "last/first pass", "driver calls cold",
                               "warm", "ns/event cold", "warm", "driver ns cold", "warm"}};
  for (figures const& row : rows) lines.push_back(text_of(row));
  if (pytorch_held const* const held = pytorch_for(first.trace); held != nullptr) {
    lines.push_back(text_of("PyTorch, default *", held->by_default, first.peak_live));
    lines.push_back(text_of("PyTorch, expandable *", held->expandable, first.peak_live));
  }
  bool const simulated = std::any_of(rows.begin(), rows.end(), [](figures const& row) {
    return row.device == to_text(place_of_memory::simulated);
  });
  bool const shows_creep =
      std::any_of(rows.begin(), rows.end(), [](figures const& row) { return row.passes > 2 && row.creep(); });
  auto const is_shown = [&](std::size_t column) {
    return (column != creep_column || shows_creep) && (column < first_modelled_column || simulated);
  };
  std::array<std::size_t, std::tuple_size_v<row_text>> width{};
  for (row_text const& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i) width[i] = std::max(width[i], line[i].size());
  }
  out << first.trace << ": " << with_commas(first.events) << " events, peak live "
      << as_mib(static_cast<double>(first.peak_live)) << '\n';
  for (row_text const& line : lines) {
    out << "  " << line[0] << std::string(width[0] - line[0].size(), ' ');
    for (std::size_t i = 1; i < line.size(); ++i) {
      if (is_shown(i)) out << std::string(width[i] - line[i].size() + 2, ' ') << line[i];
    }
    out << '\n';
  }
  for (figures const& row : rows) {
    if (row.out_of_memory != 0) {
      out << "  " << row.pool << ": " << with_commas(row.out_of_memory) << " requests refused in "
          << row.passes << " passes; give it more with --capacity\n";
    }
  }
  out << '\n';
}

void write_table(std::ostream& out, std::span<survival const> rows) {
  if (rows.empty()) return;
  out << rows.front().trace << ": " << with_commas(rows.front().events) << " events\n";
  std::size_t width = 0;
  for (survival const& row : rows) width = std::max(width, row.pool.size());
  for (survival const& row : rows) {
    out << "  " << row.pool << std::string(width - row.pool.size() + 2, ' ') << fixed(row.factor, 2)
        << " x peak live, " << as_mib(static_cast<double>(row.cap)) << ": ";
    if (!row.failed.empty()) {
      out << "could not be created: " << row.failed;
    } else if (row.survived()) {
      out << "survived";
    } else {
      out << "first refusal at event " << with_commas(row.first_refusal) << " ("
          << as_mib(static_cast<double>(row.first_refused_bytes)) << " asked, "
          << as_mib(static_cast<double>(row.live_at_first)) << " live), " << with_commas(row.refusals)
          << " in all";
    }
    out << '\n';
  }
  out << '\n';
}

void write_brief(std::ostream& out, figures const& row) {
  out << row.trace << ": " << with_commas(row.events) << " calls, "
      << as_mib(static_cast<double>(row.peak_live)) << " in use at the peak; " << row.pool << " held "
      << (row.peak_reserved ? as_mib(static_cast<double>(*row.peak_reserved)) : "an unknown amount");
  if (row.out_of_memory != 0) out << " and refused " << with_commas(row.out_of_memory) << " requests";
  if (pytorch_held const* const held = pytorch_for(row.trace); held != nullptr) {
    out << ", PyTorch " << as_mib(held->by_default * mib) << ", with expandable segments "
        << as_mib(held->expandable * mib);
  }
  out << '\n';
}

void write_legend(std::ostream& out) {
  out << "peak reserved: the most held from the driver; utilisation: peak live requested bytes / peak "
         "reserved.\n"
         "last/first pass: peak reserved of the last pass / that of the first; shown for more than two "
         "passes.\n"
         "cold: a first pass on a fresh pool; warm: a later one on the same pool. ns/event: host time.\n"
         "driver ns: per event, as the simulated device reports its calls would cost on an H200; not spent "
         "here.\n"
         "* held by PyTorch 2.11 for the same requests, measured on an H200 or an H100 "
         "(bench/replay/pytorch_held.hpp).\n";
}

}  // namespace tarn::bench
