// SPDX-License-Identifier: Apache-2.0
// tarn_tcnn: a network of tiny-cuda-nn learns an image, with its workspace from its own arenas and from tarn.
// Each run has a process of its own. Exits with 77 if there is no device.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "../measure/own_process.hpp"
#include "../measure/results.hpp"
#include "context_json.hpp"
#include "peers/find_cuda.hpp"
#include "train_image.hpp"

namespace {

using namespace tarn_tcnn;
using tarn_clients::mib;
using tarn_clients::ordered_json;

double thousandth(double x) {
  return tarn_clients::rounded(x, 1000);
}

/// Runs in a process of its own: prints its figures as one line.
int work_here(workspace from, work const& what) {
  figures const f = measure(from, what);
  ordered_json line;
  line["streams"] = what.streams;
  line["step_ms"] = thousandth(f.step_ms);
  line["growing_ms"] = thousandth(f.growing_ms);
  line["device_synchronisations_growing"] = f.syncs_growing;
  line["held_training_mib"] = mib(f.held_training);
  line["inference_ms"] = thousandth(f.inference_ms);
  line["device_synchronisations_inferring"] = f.syncs_inferring;
  line["held_inferring_mib"] = mib(f.held_inferring);
  if (f.live != 0) line["live_mib"] = mib(f.live);
  line["checksum_of_image"] = std::to_string(f.checksum);
  line["losses"] = f.losses;
  std::cout << line.dump() << std::endl;
  return 0;
}

struct row {
  workspace from = workspace::per_stream;
  int streams = 1;
  tarn_clients::repeated_runs runs;
};

/// Returns the largest relative difference of two curves, or 1 if they differ in length.
double difference(std::vector<float> const& a, std::vector<float> const& b) {
  if (a.size() != b.size()) return 1;
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    double const d = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    most = std::isnan(d) ? 1 : std::max(most, d / std::max(1e-9, std::abs(static_cast<double>(a[i]))));
  }
  return most;
}

/// The run with the median time, and how far its curve of losses is from that of the first run on
/// tiny-cuda-nn's own arenas.
ordered_json json_of(row const& r, std::vector<float> const& reference, tarn::bench::context const& where) {
  ordered_json line;
  line["program"] = "tiny-cuda-nn 2.0, an image learned";
  line["workspace"] = r.from == workspace::tarn ? "tarn" : "tiny-cuda-nn's arenas";
  r.runs.write(line, "step_ms");
  line.erase("losses");  // in short below
  if (!r.runs.all.empty()) {
    double most = 0;
    for (auto const& run : r.runs.all)
      most = std::max(most, difference(reference, run.at("losses").get<std::vector<float>>()));
    line["first_loss"] = reference.front();
    line["last_loss"] = r.runs.all.front().at("losses").back();
    line["largest_difference_of_losses"] = most;
  }
  write_context(line, where);
  return line;
}

}  // namespace

int main(int argc, char** argv) {
  std::string json;
  int repeats = 3;
  int worker = -1;
  work what;
  CLI::App app("A network of tiny-cuda-nn learns an image on its own workspace and on tarn's.", "tarn_tcnn");
  app.add_option("image", what.image, "tiny-cuda-nn's data/images/albert.jpg")->required();
  app.add_option("--json", json, "also appends one JSON object per line to this file");
  app.add_option("--repeats", repeats, "processes for each kind of workspace, interleaved");
  app.add_option("--steps", what.steps, "training steps for each size of batch");
  app.add_option("--last", what.last_log2, "logarithm of the largest batch");
  app.add_option("--streams", what.streams)->group("");
  app.add_option("--worker", worker)->group("");
  CLI11_PARSE(app, argc, argv);
  try {
    if (worker >= 0) return work_here(worker == 0 ? workspace::per_stream : workspace::tarn, what);
    tarn::bench::found_cuda const device = tarn::bench::find_cuda();
    if (!device.found) {
      std::cout << "skipped, nothing was measured: " << device.text << '\n';
      return 77;
    }
    tarn_clients::result_lines lines(json);
    std::vector<row> rows;
    for (int const streams : {1, 8})
      for (workspace const w : {workspace::per_stream, workspace::tarn}) rows.push_back({w, streams, {}});
    for (int repeat = 0; repeat < repeats; ++repeat) {
      for (row& r : rows) {
        r.runs.add(
            tarn_clients::run_self({what.image, "--worker", r.from == workspace::tarn ? "1" : "0",
                                    "--streams", std::to_string(r.streams), "--steps",
                                    std::to_string(what.steps), "--last", std::to_string(what.last_log2)},
                                   40));
      }
    }
    if (rows.front().runs.all.empty()) throw std::runtime_error(rows.front().runs.problem);
    auto const reference = rows.front().runs.all.front().at("losses").get<std::vector<float>>();
    auto const where = tarn::bench::find_context(device);
    int wrong = 0;
    for (row const& r : rows) {
      auto const line = json_of(r, reference, where);
      lines.write(line);
      if (!r.runs.problem.empty()) wrong = 1;
      if (!r.runs.all.empty() && line.at("largest_difference_of_losses").get<double>() > 1e-3) {
        std::cerr << "tarn_tcnn: the losses differ\n";
        wrong = 1;
      }
    }
    return wrong;
  } catch (std::exception const& e) {
    std::cerr << "tarn_tcnn: " << e.what() << '\n';
    return 2;
  }
}
