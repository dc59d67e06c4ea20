// SPDX-License-Identifier: Apache-2.0
#pragma once
// Prints figures and appends them to a file as JSON. nlohmann-json quotes the strings.

#include <exception>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "context_json.hpp"
#include "figure.hpp"
#include "peers/find_cuda.hpp"

namespace tarn::bench {

/// Measures on the GPU, prints each figure, and appends it to the file `json` unless that is empty. Returns
/// the program's exit status: 0, or 2 with a message on std::cerr.
///
/// @param measure  gets a figure_handler
template <class Measure>
int report_figures(char const* program, std::string const& json, Measure const& measure) {
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
    measure([&](figure const& f) {
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
    std::cerr << program << ": " << error.what() << '\n';
    return 2;
  }
}

}  // namespace tarn::bench
