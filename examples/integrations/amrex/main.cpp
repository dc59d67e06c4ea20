// SPDX-License-Identifier: Apache-2.0
// tarn_amrex: grids of AMReX that follow a growing, moving shell, with its device memory from AMReX's own
// arenas, from the driver and from tarn. Each run has a process of its own. Exits with 77 if there is no
// device; without CUDA it runs on the CPU.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdint>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "../measure/own_process.hpp"
#include "../measure/results.hpp"
#include "context_json.hpp"
#include "peers/find_cuda.hpp"
#include "regrid.hpp"

namespace {

using namespace tarn_amrex;
using tarn_clients::mib;
using tarn_clients::ordered_json;

constexpr int most_slow_repeats = 2;  ///< of those that take longer than all others together

constexpr std::array kinds{memory::carena,      memory::carena_grows, memory::carena_tight,
                           memory::cuda_malloc, memory::cuda_async,   memory::tarn};

char const* name_of(memory from) {
  switch (from) {
    case memory::carena:
      return "CArena";
    case memory::carena_grows:
      return "CArena, the_arena_init_size=0";
    case memory::carena_tight:
      return "CArena, the_arena_init_size=0, the_arena_release_threshold=0";
    case memory::cuda_malloc:
      return "cudaMalloc";
    case memory::cuda_async:
      return "cudaMallocAsync, release threshold raised";
    case memory::tarn:
      break;
  }
  return "tarn";
}
double hundredth(double x) {
  return tarn_clients::rounded(x, 100);
}
double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

/// Runs in a process of its own: prints its figures as one line.
int work_here(memory from, work const& what) {
  figures const f = measure(from, what);
  ordered_json line;
  if (what.watch) {
    line["held_peak_mib"] = mib(f.held_peak);
    line["held_after_mib"] = mib(f.held_after);
  } else {
    line["run_ms"] = hundredth(f.run_ms);
    line["step_ms"] = hundredth(median(f.step_ms));
    line["regrid_ms"] = hundredth(f.regrid_ms);
    line["regrids"] = f.regrids;
    line["boxes"] = f.boxes;
    line["cells"] = f.cells;
    if (f.arena_after != 0) line["arena_after_mib"] = mib(f.arena_after);
    if (from == memory::tarn) {
      line["arena_peak_mib"] = mib(f.arena_peak);
      line["live_mib"] = mib(f.live);
      line["handles_created"] = f.creates;
      line["remaps"] = f.remaps;
      line["host_waits"] = f.host_waits;
    }
  }
  line["checksum"] = std::to_string(f.checksum);
  std::cout << line.dump() << std::endl;
  return 0;
}

struct row {
  memory from = memory::carena;
  tarn_clients::repeated_runs runs;
  tarn_clients::repeated_runs watched;
};

/// Whether a run takes several times as long as the others: it calls the driver for each block.
bool is_slow(memory from) {
  return from == memory::carena_tight || from == memory::cuda_malloc;
}
/// The times of a row's runs, each divided by that of the first row in the same repeat. Empty if a run
/// failed.
std::vector<double> relative_times(row const& r, row const& first) {
  std::vector<double> all;
  if (!r.runs.problem.empty() || !first.runs.problem.empty()) return all;
  for (std::size_t i = 0; i < std::min(r.runs.all.size(), first.runs.all.size()); ++i)
    all.push_back(r.runs.all[i].at("run_ms").get<double>() / first.runs.all[i].at("run_ms").get<double>());
  std::sort(all.begin(), all.end());
  return all;
}

ordered_json json_of(row const& r, row const& first, work const& what, tarn::bench::context const& where) {
  ordered_json line;
  line["program"] = "AMReX 25.01, regridding";
  line["memory"] = name_of(r.from);
  line["base_cells"] = what.cells;
  line["levels"] = what.levels + 1;
  line["steps"] = what.steps;
  r.runs.write(line, "run_ms");
  if (auto const times = relative_times(r, first); !times.empty()) {
    line["run_of_first"] = hundredth(median(times));
    line["run_of_first_best"] = hundredth(times.front());
    line["run_of_first_worst"] = hundredth(times.back());
  }
  if (!r.watched.problem.empty()) line["problem_when_watched"] = r.watched.problem;
  if (!r.watched.all.empty()) {
    line["held_peak_mib"] = r.watched.all.front().at("held_peak_mib");
    line["held_after_mib"] = r.watched.all.front().at("held_after_mib");
  }
  write_context(line, where);
  return line;
}

}  // namespace

int main(int argc, char** argv) {
  std::string json;
  int repeats = 3;
  int worker = -1;
  unsigned limit = 40;
  work what;
  CLI::App app("Grids of AMReX that follow a shell, on AMReX's arenas and on tarn.", "tarn_amrex");
  app.add_option("--json", json, "also appends one JSON object per line to this file");
  app.add_option("--repeats", repeats,
                 "processes for each kind of memory, interleaved; 2 at most for those that call the driver "
                 "for each block");
  app.add_option("--cells", what.cells, "cells of the coarsest level in each direction");
  app.add_option("--levels", what.levels, "levels above it");
  app.add_option("--grid", what.grid, "cells of the largest box in each direction");
  app.add_option("--components", what.components, "values for each cell");
  app.add_option("--steps", what.steps, "steps");
  app.add_option("--regrid", what.regrid, "steps from one regridding to the next");
  app.add_option("--limit", limit, "seconds after which a process is killed");
  app.add_option("--trace", what.trace, "runs once on tarn, and writes a trace for tarn_replay to this file");
  app.add_flag("--watch", what.watch)->group("");
  app.add_option("--worker", worker)->group("");
  CLI11_PARSE(app, argc, argv);
  try {
    if (worker >= 0) return work_here(kinds.at(static_cast<std::size_t>(worker)), what);
    if (!what.trace.empty()) return work_here(memory::tarn, what);
    tarn::bench::found_cuda const device = tarn::bench::find_cuda();
    if (!device.found && !runs_on_cpu()) {
      std::cout << "skipped, nothing was measured: " << device.text << '\n';
      return 77;
    }
    tarn_clients::result_lines lines(json);
    std::vector<row> rows;
    for (memory const from : kinds) {
      if (from != memory::cuda_async || !runs_on_cpu()) rows.push_back({from, {}, {}});
    }
    std::vector<std::string> const same{
        "--cells", std::to_string(what.cells), "--levels",     std::to_string(what.levels),
        "--grid",  std::to_string(what.grid),  "--components", std::to_string(what.components),
        "--steps", std::to_string(what.steps), "--regrid",     std::to_string(what.regrid)};
    // Once each with a thread that samples the device's memory, which disturbs the times.
    for (int repeat = runs_on_cpu() ? 0 : -1; repeat < repeats; ++repeat) {
      for (row& r : rows) {
        if (repeat >= most_slow_repeats && is_slow(r.from)) continue;
        auto arguments = same;
        arguments.insert(arguments.end(), {"--worker", std::to_string(static_cast<int>(r.from))});
        if (repeat < 0) arguments.emplace_back("--watch");
        (repeat < 0 ? r.watched : r.runs).add(tarn_clients::run_self(arguments, limit));
      }
    }
    auto const where = tarn::bench::find_context(device);
    int wrong = 0;
    std::string checksum;
    for (row const& r : rows) {
      lines.write(json_of(r, rows.front(), what, where));
      if (!r.runs.problem.empty() || !r.watched.problem.empty()) wrong = 1;
      for (auto const* const runs : {&r.runs.all, &r.watched.all}) {
        for (auto const& run : *runs) {
          auto const sum = run.at("checksum").get<std::string>();
          if (checksum.empty()) checksum = sum;
          if (sum != checksum) {
            std::cerr << "tarn_amrex: the results differ: " << name_of(r.from) << '\n';
            wrong = 1;
          }
        }
      }
    }
    return wrong;
  } catch (std::exception const& e) {
    std::cerr << "tarn_amrex: " << e.what() << '\n';
    return 2;
  }
}
