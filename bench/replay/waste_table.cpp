// SPDX-License-Identifier: Apache-2.0
#include "replay/waste_table.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <ostream>
#include <string>
#include <vector>

#include "replay/table.hpp"

namespace tarn::bench {

namespace {

constexpr std::size_t columns_of_moment = 3;

std::string fixed(double value, int decimals) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", decimals, value);
  return text.data();
}

/// Two decimals, since rounding is often less than a tenth of a MiB.
std::string in_mib(std::uint64_t bytes) {
  auto const hundredths =
      static_cast<std::uint64_t>(std::llround(static_cast<double>(bytes) / double{1_MiB} * 100));
  std::string const decimals = std::to_string(hundredths % 100);
  return with_commas(hundredths / 100) + '.' + std::string(2 - decimals.size(), '0') + decimals;
}

std::string in_per_cent(std::uint64_t bytes, std::uint64_t of) {
  return of == 0 ? "-" : fixed(100 * static_cast<double>(bytes) / static_cast<double>(of), 2);
}

void write_moment(std::ostream& out, char const* what, waste_moment const& m) {
  out << "  " << what << ": first after event " << with_commas(m.event) << " of pass " << m.pass
      << ", an allocation of " << in_mib(m.asked) << " MiB\n";
}

/// The first column is aligned to the left, the others to the right.
void write_lines(std::ostream& out, std::vector<std::vector<std::string>> const& lines) {
  std::vector<std::size_t> width(lines.front().size());
  for (auto const& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i) width[i] = std::max(width[i], line[i].size());
  }
  for (auto const& line : lines) {
    out << "  " << line[0] << std::string(width[0] - line[0].size(), ' ');
    for (std::size_t i = 1; i < line.size(); ++i) {
      std::size_t const gap = (i - 1) % columns_of_moment == 0 ? 4 : 2;
      out << std::string(width[i] - line[i].size() + gap, ' ') << line[i];
    }
    out << '\n';
  }
}

}  // namespace

void write_table(std::ostream& out, waste const& of) {
  out << of.trace << " on " << of.pool << ": " << with_commas(of.events) << " events, peak live "
      << as_mib(static_cast<double>(of.peak_live)) << ", peak reserved "
      << as_mib(static_cast<double>(of.peak_reserved));
  if (auto const utilisation = of.utilisation()) out << ", utilisation " << fixed(*utilisation, 3);
  out << '\n';
  if (of.out_of_memory != 0) {
    out << "  " << with_commas(of.out_of_memory) << " requests refused in " << of.passes
        << " passes; give it more with --capacity\n";
  }
  if (of.at_peak_reserved.event == 0) {
    out << "  no memory was reserved\n\n";
    return;
  }
  std::vector<waste_moment> moments{of.at_peak_reserved};
  if (of.at_peak_live) moments.push_back(*of.at_peak_live);
  write_moment(out, of.at_peak_live ? "peak reserved" : "peak reserved and live", moments.front());
  if (of.at_peak_live) write_moment(out, "peak live", *of.at_peak_live);

  std::vector<std::vector<std::string>> lines(1);
  lines[0].push_back("");
  for (std::size_t i = 0; i < moments.size(); ++i) {
    lines[0].push_back(i == 0 ? "peak reserved, MiB" : "peak live, MiB");
    lines[0].push_back("%");
    lines[0].push_back("count");
  }
  for (std::size_t part = 0; part < memory_part_count; ++part) {
    bool const is_empty = std::all_of(moments.begin(), moments.end(),
                                      [&](waste_moment const& m) { return m.parts[part].bytes == 0; });
    if (is_empty) continue;
    std::vector<std::string>& line = lines.emplace_back();
    line.emplace_back(memory_part_names[part].text);
    for (waste_moment const& m : moments) {
      line.push_back(in_mib(m.parts[part].bytes));
      line.push_back(in_per_cent(m.parts[part].bytes, m.reserved));
      line.push_back(with_commas(m.parts[part].count));
    }
  }
  std::vector<std::string>& last = lines.emplace_back();
  last.emplace_back("reserved");
  for (waste_moment const& m : moments) {
    last.push_back(in_mib(m.reserved));
    last.push_back(in_per_cent(m.reserved, m.reserved));
    last.push_back(with_commas(m.handles));
  }
  write_lines(out, lines);
  if (of.peak_reserved > of.at_peak_reserved.reserved) {
    out << "  within a call " << in_mib(of.peak_reserved - of.at_peak_reserved.reserved)
        << " MiB more were reserved\n";
  }
  out << '\n';
}

void write_waste_legend(std::ostream& out) {
  out << "%: of the memory reserved at that moment, to which the rows add up exactly; empty rows are left "
         "out.\n"
         "count: blocks, stretches or handles.\n"
         "runs: memory divided into equal blocks of up to 32 KiB. thread caches: freed blocks that their "
         "thread reuses first.\n"
         "free parts of handles: by the size of the stretch, which is not a whole handle; free memory of two "
         "streams is not joined.\n"
         "wholly free handles: by the size of the handle; they can be mapped elsewhere or given back. Of a "
         "pool without pages: segments.\n";
}

}  // namespace tarn::bench
