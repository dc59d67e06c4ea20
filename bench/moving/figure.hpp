// SPDX-License-Identifier: Apache-2.0
#pragma once
// The output of tarn_moving: one figure of one way to move memory.

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace tarn::bench {

/// One figure. `value` is in `unit`: "GB/s" (10^9 bytes), "ms/GiB", "ns" per pair, "times" another figure,
/// "bytes".
struct figure {
  std::string work;    ///< "to the device", "to the host", "pin", ...
  std::string way;     ///< "pinned, stream_batches"
  std::string device;  ///< cuda or sim
  std::string unit;
  double value = 0;
  double best = 0;
  double worst = 0;
  double of_reference = 0;  ///< ratio to the plain pinned copy of the same run; 0: not compared
  std::string problem;      ///< why there is no figure
};

/// How much is moved, and how often.
struct extent {
  std::size_t bytes = std::size_t{2} << 30;
  std::size_t batch_bytes = std::size_t{16} << 20;
  std::size_t depth = 3;
  unsigned threads = 8;
  unsigned repetitions = 5;
  std::size_t pin_bytes = std::size_t{1} << 30;
  std::string folder = "/tmp";  ///< for a file of `bytes`
};

/// Receives each figure as soon as it is measured, so that it is kept if a later one ends the program.
using figure_handler = std::function<void(figure const&)>;

void measure_sim(extent const& e, figure_handler const& on_figure);
/// Defined only if the program was built with CUDA.
void measure_cuda(extent const& e, figure_handler const& on_figure);

}  // namespace tarn::bench
