// SPDX-License-Identifier: Apache-2.0
// tarn_convert: how fast elements are converted on a GPU, compared with a copy of the same bytes, and how
// fast they are copied between two GPUs. Exits with 77 if there is no device.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "context_json.hpp"
#include "convert/measure.hpp"
#include "peers/find_cuda.hpp"

namespace {

using namespace tarn::bench;

double tenth(double x) {
  return static_cast<double>(static_cast<long long>(x * 10 + 0.5)) / 10;
}

nlohmann::ordered_json json_of(measured const& m, context const& where) {
  nlohmann::ordered_json row;
  row["work"] = m.work;
  if (!m.problem.empty()) {
    row["problem"] = m.problem;
  } else {
    row["gb_per_s"] = tenth(m.own.median);
    row["best"] = tenth(m.own.best);
    row["worst"] = tenth(m.own.worst);
    row["reference"] = m.reference;
    row["reference_gb_per_s"] = tenth(m.other.median);
    row["reference_best"] = tenth(m.other.best);
    row["reference_worst"] = tenth(m.other.worst);
    row["bytes"] = m.bytes;
  }
  write_context(row, where);
  return row;
}

int measure(std::string const& json, effort const& e) {
  found_cuda const device = find_cuda();
  if (!device.found) {
    std::cout << "skipped, nothing was measured: " << device.text << '\n';
    return 77;
  }
  std::ofstream file;
  if (!json.empty()) file.open(json, std::ios::app);
  if (!json.empty() && !file) {
    std::cerr << "tarn_convert: cannot write " << json << '\n';
    return 2;
  }
  context const where = find_context(device);
  std::printf("device %s\n%-42s %10s %10s %7s\n", device.text.c_str(), "GB/s", "tarn", "reference", "share");
  for (auto const part : {measure_conversions, measure_peer_copies}) {
    for (measured const& m : part(e)) {
      if (m.problem.empty()) {
        std::printf("%-42s %10.1f %10.1f %6.1f%%\n", m.work.c_str(), m.own.median, m.other.median,
                    100 * m.own.median / m.other.median);
      } else {
        std::printf("%-42s - (%s)\n", m.work.c_str(), m.problem.c_str());
      }
      std::fflush(stdout);
      if (!json.empty()) file << json_of(m, where).dump() << '\n' << std::flush;
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::string json;
  effort e;
  CLI::App app("Rates of conversions and of copies between devices, compared with CUDA's copies.",
               "tarn_convert");
  app.add_option("--json", json, "also appends one JSON object per line to this file");
  app.add_option("--repetitions", e.repetitions, "timed repetitions of each work")
      ->check(CLI::Range(1U, 1000U))
      ->default_str("9");
  CLI11_PARSE(app, argc, argv);
  try {
    return measure(json, e);
  } catch (std::exception const& error) {
    std::cerr << "tarn_convert: " << error.what() << '\n';
    return 1;
  }
}
