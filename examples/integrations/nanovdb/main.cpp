// SPDX-License-Identifier: Apache-2.0
// tarn_nanovdb: builds grids of NanoVDB from growing sets of points, with its memory from cudaMallocAsync and
// from tarn, alone and beside a second process. Each run has a process of its own. Exits with 77 if there is
// no device.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "../measure/own_process.hpp"
#include "../measure/results.hpp"
#include "context_json.hpp"
#include "peers/find_cuda.hpp"
#include "points_to_grids.hpp"

namespace {

using namespace tarn_nanovdb;
using tarn_clients::mib;
using tarn_clients::ordered_json;

constexpr std::array ways{way::async, way::kept, way::temporaries, way::one_pool};

double hundredth(double x) {
  return tarn_clients::rounded(x, 100);
}
double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

/// Runs in a process of its own: prints its figures as one line.
int work_here(way w, work const& what) {
  figures const f = measure(w, what);
  ordered_json line;
  line["first_pass_ms"] = hundredth(f.first_ms);
  line["pass_ms"] = hundredth(median(f.later_ms));
  line["live_mib"] = mib(f.live);
  line["held_mib"] = mib(f.held);
  if (what.beside > 0) {
    line["second_asked"] = f.asked;
    line["second_refused"] = f.refused;
  } else {
    line["held_on_device_mib"] = mib(f.held_on_device);
    line["held_after_mib"] = mib(f.held_after);
  }
  line["points"] = f.points;
  line["checksum"] = std::to_string(f.checksum);
  std::cout << line.dump() << std::endl;
  return 0;
}

struct row {
  way memory = way::async;
  double beside = 0;
  tarn_clients::repeated_runs runs;
};

/// A message of NanoVDB without the folder that it was compiled in: "... (/folder/nanovdb/cuda/file:1)".
std::string without_folder(std::string text) {
  std::size_t const begin = text.find("(/");
  std::size_t const end = text.rfind("/nanovdb/");
  if (begin != std::string::npos && end != std::string::npos && begin < end)
    text.erase(begin + 1, end - begin);
  return text;
}

void run_once(row& r, work const& what) {
  auto run =
      tarn_clients::run_self({"--worker", std::to_string(static_cast<int>(r.memory)), "--beside",
                              std::to_string(r.beside), "--rounds", std::to_string(what.rounds), "--first",
                              std::to_string(what.first), "--growth", std::to_string(what.growth), "--keep",
                              std::to_string(what.kept), "--passes", std::to_string(what.passes)},
                             30);
  run.error = without_folder(run.error);
  r.runs.add(run);
}

/// The run with the median time; all ran the same work.
ordered_json json_of(row const& r, tarn::bench::context const& where) {
  ordered_json line;
  line["program"] = "NanoVDB " + nanovdb_version() + ", PointsToGrid";
  line["memory"] = name_of(r.memory);
  if (r.beside > 0) line["left_beside_second_process"] = r.beside;
  r.runs.write(line, "pass_ms");
  write_context(line, where);
  return line;
}

}  // namespace

int main(int argc, char** argv) {
  std::string json;
  int repeats = 3;
  int worker = -1;
  work what;
  CLI::App app("Builds grids of NanoVDB from growing sets of points on several kinds of memory.",
               "tarn_nanovdb");
  app.add_option("--json", json, "also appends one JSON object per line to this file");
  app.add_option("--repeats", repeats, "processes for each kind of memory, interleaved");
  app.add_option("--rounds", what.rounds, "sets of points");
  app.add_option("--first", what.first, "points of the first set");
  app.add_option("--growth", what.growth, "factor from one set to the next");
  app.add_option("--keep", what.kept, "grids that stay alive");
  app.add_option("--passes", what.passes, "timed passes after the first");
  app.add_option("--beside", what.beside)->group("");
  app.add_option("--worker", worker)->group("");
  CLI11_PARSE(app, argc, argv);
  try {
    if (worker >= 0) return work_here(ways.at(static_cast<std::size_t>(worker)), what);
    tarn::bench::found_cuda const device = tarn::bench::find_cuda();
    if (!device.found) {
      std::cout << "skipped, nothing was measured: " << device.text << '\n';
      return 77;
    }
    tarn_clients::result_lines lines(json);
    auto const where = tarn::bench::find_context(device);
    std::string checksum;
    int wrong = 0;
    for (double const beside : {0.0, 1.02, 1.1, 1.25, 1.5, 2.0}) {
      std::vector<row> rows;
      for (way const w : ways) rows.push_back({w, beside, {}});
      for (int repeat = 0; repeat < (beside == 0 ? repeats : 1); ++repeat)
        for (row& r : rows) run_once(r, what);
      for (row const& r : rows) {
        lines.write(json_of(r, where));
        if (beside == 0 && !r.runs.problem.empty()) wrong = 1;
        for (auto const& run : r.runs.all) {
          auto const own = run.at("checksum").get<std::string>();
          if (checksum.empty()) checksum = own;
          if (own == checksum) continue;
          std::cerr << "tarn_nanovdb: the grids on \"" << name_of(r.memory) << "\" differ\n";
          wrong = 1;
        }
      }
    }
    return wrong;
  } catch (std::exception const& e) {
    std::cerr << "tarn_nanovdb: " << e.what() << '\n';
    return 2;
  }
}
