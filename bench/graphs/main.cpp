// SPDX-License-Identifier: Apache-2.0
// tarn_graphs: what it costs to capture CUDA graphs with a pool, and what they hold. CLI11 for arguments, as
// in the other benchmarks.

#include <CLI/CLI.hpp>
#include <string>

#include "figure_output.hpp"
#include "graphs/measure.hpp"

int main(int argc, char** argv) {
  using namespace tarn::bench;
  graph_effort e;
  std::string json;
  CLI::App app("Captures graphs with a pool and with memory allocated before.", "tarn_graphs");
  app.add_option("--captures", e.captures, "timed")->default_str("200");
  app.add_option("--nodes", e.nodes, "kernels of a captured step")->default_str("200");
  app.add_option("--json", json, "also appends one JSON object per line to this file");
  CLI11_PARSE(app, argc, argv);
  return report_figures("tarn_graphs", json, [&](figure_handler const& on) { measure_graphs(e, on); });
}
