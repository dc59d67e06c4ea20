// SPDX-License-Identifier: Apache-2.0
// tarn_nccl: bus bandwidth of NCCL's collectives on a pool's memory, compared with ncclMemAlloc's in the same
// run. Needs two GPUs. CLI11 for arguments, as in the other benchmarks.

#include <CLI/CLI.hpp>
#include <string>

#include "figure_output.hpp"
#include "nccl/measure.hpp"

int main(int argc, char** argv) {
  using namespace tarn::bench;
  nccl_effort e;
  std::string json;
  CLI::App app("Bus bandwidth of NCCL's collectives on a pool's memory and on ncclMemAlloc's.", "tarn_nccl");
  app.add_option("--smallest", e.smallest, "bytes of the first collective")
      ->check(CLI::PositiveNumber)
      ->default_str("1 MiB");
  app.add_option("--largest", e.largest, "bytes of the last")
      ->check(CLI::PositiveNumber)
      ->default_str("1 GiB");
  app.add_option("--repetitions", e.repetitions, "timed")->check(CLI::Range(1U, 1000U))->default_str("9");
  app.add_option("--json", json, "also appends one JSON object per line to this file");
  CLI11_PARSE(app, argc, argv);
  return report_figures("tarn_nccl", json, [&](figure_handler const& on) { measure_nccl(e, on); });
}
