// SPDX-License-Identifier: Apache-2.0
// tarn_hot_paths: the host time of an allocate+free pair, for tarn and its peers in the same run. It runs
// work by work, so that the pools of one row are timed within seconds of each other. It does not use Google
// Benchmark, which fills a window anew for each repetition and estimate.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <exception>
#include <fstream>
#include <iostream>
#include <regex>
#include <string>
#include <vector>

#include "context.hpp"
#include "hot_paths/print.hpp"
#include "hot_paths/works.hpp"
#include "peers/find_cuda.hpp"

namespace {

using namespace tarn::bench;

struct arguments {
  std::string device = "all";
  std::string filter;
  std::vector<std::string> pools;
  std::string json;
  double limit_seconds = 110;
  unsigned repetitions = 0;
  bool quick = false;
  bool list = false;
};

/// Returns the selected entries, work by work in the order of the first pool.
std::vector<entry> choose(std::vector<entry> const& all, arguments const& a, plan const& p) {
  std::regex const filter(a.filter);
  std::vector<std::string> works;
  for (entry const& e : all) {
    if (std::find(works.begin(), works.end(), e.work) == works.end()) works.push_back(e.work);
  }
  std::vector<entry> chosen;
  for (std::string const& work : works) {
    for (entry const& e : all) {
      bool const named =
          a.pools.empty() || std::find(a.pools.begin(), a.pools.end(), e.pool) != a.pools.end();
      bool const there = a.device == "all" || a.device == e.device;
      if (e.work == work && named && there && e.live <= p.most_live &&
          std::regex_search(work + '/' + e.pool, filter)) {
        chosen.push_back(e);
      }
    }
  }
  return chosen;
}

row run(entry const& e, plan const& p, bool too_late) {
  row r;
  r.work = e.work;
  r.pool = e.pool;
  r.device = e.device;
  if (too_late) {
    r.problem = "not timed: the time limit was reached";
    return r;
  }
  try {
    e.run(p, r);
  } catch (std::exception const& error) {
    r.problem = error.what();
  }
  return r;
}

int measure(arguments const& a) {
  found_cuda const device = find_cuda();
  plan p = a.quick ? plan::quick() : plan{};
  if (a.repetitions != 0) p.repetitions = a.repetitions;
  std::vector<entry> const chosen = choose(all_entries(device.found), a, p);
  if (a.list) {
    for (entry const& e : chosen) std::cout << e.work << ' ' << e.pool << ' ' << e.device << '\n';
    return 0;
  }
  if (chosen.empty()) {
    std::cerr << "tarn_hot_paths: nothing to time (" << device.text
              << "); --list names the works and pools\n";
    return 2;
  }
  std::ofstream file;
  if (!a.json.empty()) file.open(a.json, std::ios::app);
  if (!a.json.empty() && !file) {
    std::cerr << "tarn_hot_paths: cannot write " << a.json << '\n';
    return 2;
  }
  context const where = find_context(device);
  std::cout << "device " << device.text << "; " << where.cpu
            << "\nhost nanoseconds per allocate+free pair, median of " << p.repetitions
            << " batches (best to worst)\n";
  deadline const end(a.limit_seconds);
  std::string work;
  for (entry const& e : chosen) {
    if (e.work != work) std::cout << '\n' << (work = e.work) << '\n';
    row const r = run(e, p, end.over());
    write_text(std::cout, r);
    std::cout.flush();
    if (!a.json.empty())
      write_json(file, r, where), file.flush();  // keeps the finished rows if a pool ends the program
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  arguments a;
  CLI::App app("Host time of an allocate+free pair, for tarn and its peers.", "tarn_hot_paths");
  app.add_option("--device", a.device, "pools on: all, cuda, sim (a simulated GPU), host")
      ->check(CLI::IsMember({"all", "cuda", "sim", "host"}))
      ->default_str("all");
  app.add_option("--pool", a.pools, "these pools only, separated by commas")
      ->delimiter(',')
      ->allow_extra_args(false);
  app.add_option("--filter", a.filter, "works and pools whose WORK/POOL contains this regular expression");
  app.add_option("--json", a.json, "also appends one JSON object per line to this file");
  app.add_option("--limit", a.limit_seconds, "seconds after which no further row is started")
      ->default_str("110");
  app.add_option("--repetitions", a.repetitions, "timed batches per row")->default_str("7");
  app.add_flag("--quick", a.quick,
               "short batches and small windows: tests that everything runs, without valid times");
  app.add_flag("--list", a.list, "names the works and pools");
  CLI11_PARSE(app, argc, argv);
  try {
    return measure(a);
  } catch (std::exception const& error) {
    std::cerr << "tarn_hot_paths: " << error.what() << '\n';
    return 1;
  }
}
