// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the programs that measure clients have in common: figures of several runs, each a process of its own,
// as JSON lines.

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "own_process.hpp"

namespace tarn_clients {

using nlohmann::ordered_json;

/// MiB, to a tenth.
[[nodiscard]] inline double mib(std::size_t bytes) {
  return static_cast<double>(bytes * 10 / (1U << 20)) / 10;
}
/// To the nearest 1 / `parts`, for positive numbers.
[[nodiscard]] inline double rounded(double x, int parts) {
  return static_cast<double>(static_cast<long long>(x * parts + 0.5)) / parts;
}

/// Runs of the same work.
struct repeated_runs {
  std::vector<ordered_json> all;
  std::string problem;  ///< of a run that failed; empty if none did

  void add(ended_run const& run) {
    if (run.status == 0) {
      all.push_back(ordered_json::parse(run.out));
    } else {
      problem = "status " + std::to_string(run.status) + ": " + run.error;
    }
  }
  /// Adds the number of processes, the best and the worst `key`, and the figures of the run with the median
  /// `key`.
  void write(ordered_json& line, std::string const& key) const {
    if (!problem.empty()) line["problem"] = problem;
    if (all.empty()) return;
    auto sorted = all;
    std::sort(sorted.begin(), sorted.end(), [&](auto const& a, auto const& b) {
      return a.at(key).template get<double>() < b.at(key).template get<double>();
    });
    line["processes"] = sorted.size();
    line[key + "_best"] = sorted.front().at(key);
    line[key + "_worst"] = sorted.back().at(key);
    for (auto const& [name, value] : sorted[sorted.size() / 2].items()) line[name] = value;
  }
};

/// Writes lines to stdout, and appends them to a file if one is named.
class result_lines {
 public:
  /// @throws std::runtime_error  the file cannot be written
  explicit result_lines(std::string const& path) {
    if (path.empty()) return;
    file_.open(path, std::ios::app);
    if (!file_) throw std::runtime_error("cannot write " + path);
  }
  void write(ordered_json const& line) {
    std::cout << line.dump() << std::endl;
    if (file_.is_open()) file_ << line.dump() << '\n' << std::flush;
  }

 private:
  std::ofstream file_;
};

}  // namespace tarn_clients
