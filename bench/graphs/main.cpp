// SPDX-License-Identifier: Apache-2.0
// tarn_graphs: what it costs to capture CUDA graphs with a pool, and what they hold. CLI11 for arguments, nlohmann-json for quoting,
// as in the other benchmarks.

#include <CLI/CLI.hpp>
#include <exception>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "context_json.hpp"
#include "graphs/measure.hpp"
#include "peers/find_cuda.hpp"

int main(int argc, char** argv) {
  using namespace tarn::bench;
  graph_effort e;
  std::string json;
  CLI::App app("Captures graphs with a pool and with memory allocated before.", "tarn_graphs");
  app.add_option("--captures", e.captures, "timed")->default_str("200");
  app.add_option("--nodes", e.nodes, "kernels of a captured step")->default_str("200");
  app.add_option("--json", json, "also appends one JSON object per line to this file");
  CLI11_PARSE(app, argc, argv);
  try {
    found_cuda const gpu = find_cuda();
    if (!gpu.found) throw std::runtime_error(gpu.text);
    context const where = find_context(gpu);
    std::ofstream file;
    if (!json.empty()) {
      file.open(json, std::ios::app);
      if (!file) throw std::runtime_error("cannot write " + json);
    }
    std::cout << gpu.text << "; " << where.cpu << '\n';
    measure_graphs(e, [&](graph_figure const& f) {
      std::cout << std::left << std::setw(100) << f.work + ": " + f.way << std::right << std::fixed
                << std::setprecision(1) << std::setw(10) << f.value << ' ' << f.unit;
      if (f.reference != 0)
        std::cout << std::setprecision(3) << "  (" << f.value / f.reference << " of " << f.compared_with
                  << ')';
      std::cout << std::endl;
      if (!file.is_open()) return;
      nlohmann::ordered_json line{{"work", f.work}, {"way", f.way}, {"unit", f.unit}, {"value", f.value}};
      if (f.reference != 0) {
        line["reference"] = f.reference;
        line["compared_with"] = f.compared_with;
        line["of_reference"] = f.value / f.reference;
      }
      write_context(line, where);
      file << line.dump() << std::endl;
    });
    return 0;
  } catch (std::exception const& error) {
    std::cerr << "tarn_graphs: " << error.what() << '\n';
    return 2;
  }
}
