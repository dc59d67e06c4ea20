// SPDX-License-Identifier: Apache-2.0
#pragma once
// line_profile_table: the profiled lines as a table in source order, as line profilers print them.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tarn/core/concat.hpp"
#include "tarn/report/line_profile.hpp"
#include "tarn/report/summary.hpp"
#include "tarn/report/utf8.hpp"

namespace TARN_NAMESPACE {

/// Whether the table shows the text of the lines, read from the source files if they are readable.
enum class source_text { shown, left_out };

/// Returns the memory use of each profiled line since program start or the last reset_line_profile(), by file
/// and line.
/// @throws std::bad_alloc
[[nodiscard]] inline std::vector<profiled_line> line_profile() {
  std::vector<profiled_line> lines;
  detail::line_registry::of_process().for_each([&](profiled_line const& l) { lines.push_back(l); });
  std::sort(lines.begin(), lines.end(), [](profiled_line const& a, profiled_line const& b) {
    int const order = std::strcmp(a.where.file, b.where.file);
    return order != 0 ? order < 0 : a.where.line < b.where.line;
  });
  // A line of a header, or of a template, is stored once per function.
  std::vector<profiled_line> merged;
  for (profiled_line const& l : lines) {
    if (!merged.empty() && merged.back().where.line == l.where.line &&
        std::strcmp(merged.back().where.file, l.where.file) == 0) {
      merged.back().add(l);
    } else {
      merged.push_back(l);
    }
  }
  return merged;
}

namespace detail {

/// Formats signed bytes: "+1.5 MiB", "-20 B", "0 B".
[[nodiscard]] inline std::string signed_bytes(std::int64_t bytes) {
  message<32> text;
  auto const size = static_cast<std::uint64_t>(bytes < 0 ? -bytes : bytes);
  if (bytes != 0) text.add(bytes < 0 ? "-" : "+");
  return text.add_bytes(size).c_str();
}
[[nodiscard]] inline std::string right(std::string_view text, std::size_t width) {
  return std::string(text.size() < width ? width - text.size() : 0, ' ') + std::string(text);
}

/// Lines of source files; each file is read once.
class source_lines {
 public:
  /// Returns a line without leading blanks; empty if it cannot be read.
  [[nodiscard]] std::string of(source_location const& where) {
    auto const [known, is_new] = files_.try_emplace(where.file);
    if (is_new) {
      std::ifstream file(where.file);
      for (std::string line; std::getline(file, line);) known->second.push_back(line);
    }
    auto const at = static_cast<std::size_t>(where.line);
    if (at == 0 || at > known->second.size()) return {};
    std::string const& line = known->second[at - 1];
    std::size_t const begin = line.find_first_not_of(" \t");
    return begin != std::string::npos ? line.substr(begin) : std::string();
  }

 private:
  std::map<std::string, std::vector<std::string>> files_;
};

}  // namespace detail

/// Returns the profile as a table: a heading per file, then per line its number, calls, change of live bytes
/// over all calls, the highest use above the start of a call, and the source text or the function. @throws
/// std::bad_alloc
[[nodiscard]] inline std::string line_profile_table(source_text source = source_text::shown) {
  detail::source_lines sources;
  std::string out;
  std::string_view file;
  for (profiled_line const& l : line_profile()) {
    if (out.empty() || file != l.where.file) {
      if (!out.empty()) out += '\n';
      file = l.where.file;
      out += detail::as_printable(file) + "\n  line      calls       change         peak  source\n";
    }
    out += detail::right(std::to_string(l.where.line), 6) + detail::right(std::to_string(l.calls), 11);
    out += detail::right(detail::signed_bytes(l.change), 13);
    out += detail::right(detail::signed_bytes(static_cast<std::int64_t>(l.peak)), 13);
    std::string text = source == source_text::shown ? sources.of(l.where) : std::string();
    // A macro alone on its line is less informative than the function.
    if (text.starts_with("TARN_PROFILE_LINE(") && text.find(';') + 1 == text.size()) text.clear();
    if (text.empty()) text = detail::concat({"in ", l.where.function});
    out += detail::concat({"  ", detail::as_printable(text), "\n"});
  }
  if (std::uint64_t const dropped = detail::line_registry::of_process().dropped(); dropped != 0) {
    out += std::to_string(dropped) + " calls of further lines are not shown\n";
  }
  return out;
}

}  // namespace TARN_NAMESPACE
