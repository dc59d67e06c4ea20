// SPDX-License-Identifier: Apache-2.0
// tarn_moving: how fast memory moves between host and device in batches, compared with plain copies of pinned
// memory in the same run, and the cost of pinning. CLI11 for arguments, nlohmann-json for quoting, as in the
// other benchmarks.

#include <CLI/CLI.hpp>
#include <exception>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "context_json.hpp"
#include "moving/figure.hpp"
#include "peers/find_cuda.hpp"

namespace {

using namespace tarn::bench;

std::string text_of(figure const& f) {
  std::ostringstream text;
  text << std::left << std::setw(80) << f.work + ": " + f.way << ' ';
  if (!f.problem.empty()) {
    text << "- (" << f.problem << ')';
    return text.str();
  }
  text << std::right << std::fixed << std::setprecision(f.value < 100 ? 2 : 0) << std::setw(12) << f.value
       << ' ' << f.unit;
  if (f.of_reference != 0) text << std::setprecision(3) << "  (" << f.of_reference << " of the reference)";
  return text.str();
}

nlohmann::ordered_json json_of(figure const& f, context const& where) {
  nlohmann::ordered_json line;
  line["work"] = f.work;
  line["way"] = f.way;
  line["device"] = f.device;
  if (!f.problem.empty()) {
    line["problem"] = f.problem;
  } else {
    line["unit"] = f.unit;
    line["value"] = f.value;
    line["best"] = f.best;
    line["worst"] = f.worst;
    if (f.of_reference != 0) line["of_reference"] = f.of_reference;
  }
  write_context(line, where);
  return line;
}

}  // namespace

int main(int argc, char** argv) {
  extent e;
  std::string device = "auto";
  std::string json;
  bool quick = false;
  CLI::App app("Moves memory between host and device in batches, and pins it.", "tarn_moving");
  app.add_option("--device", device, "auto, cuda or sim (a simulated GPU, virtual time)")
      ->check(CLI::IsMember({"auto", "cuda", "sim"}))
      ->default_str("auto");
  app.add_option("--bytes", e.bytes, "moved in each pass")->transform(CLI::AsSizeValue(false));
  app.add_option("--batch", e.batch_bytes, "bytes of a batch")->transform(CLI::AsSizeValue(false));
  app.add_option("--depth", e.depth, "slots")->default_str("3");
  app.add_option("--threads", e.threads, "that fill")->default_str("8");
  app.add_option("--repetitions", e.repetitions, "timed passes")->default_str("5");
  app.add_option("--folder", e.folder, "of the file that is streamed")->default_str("/tmp");
  app.add_option("--json", json, "also appends one JSON object per line to this file");
  app.add_flag("--quick", quick, "little memory: tests that everything runs, without valid times");
  CLI11_PARSE(app, argc, argv);
  if (quick) {
    e.bytes = std::size_t{3} << 20;
    e.batch_bytes = std::size_t{1} << 20;
    e.pin_bytes = std::size_t{4} << 20;
    e.repetitions = 1;
    e.threads = 2;
  }
  try {
    found_cuda const gpu = find_cuda();
    context const where = find_context(gpu);
    if (device == "auto") device = gpu.found ? "cuda" : "sim";
    std::ofstream file;
    if (!json.empty()) {
      file.open(json, std::ios::app);
      if (!file) throw std::runtime_error("cannot write " + json);
    }
    std::cout << (device == "cuda" ? gpu.text : "simulated device, virtual time") << "; " << where.cpu
              << '\n';
    bool problem = false;
    figure_handler const on_figure = [&](figure const& f) {
      std::cout << text_of(f) << std::endl;
      problem = problem || !f.problem.empty();
      if (file.is_open()) {
        file << json_of(f, where).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)
             << std::endl;
      }
    };
    if (device == "sim") {
      measure_sim(e, on_figure);
    } else {
      if (!gpu.found) throw std::runtime_error(gpu.text);
#ifdef TARN_BENCH_CUDA
      measure_cuda(e, on_figure);
#endif
    }
    return problem ? 1 : 0;
  } catch (std::exception const& error) {
    std::cerr << "tarn_moving: " << error.what() << '\n';
    return 2;
  }
}
