// SPDX-License-Identifier: Apache-2.0
#pragma once
// The measurements of tarn_graphs.

#include <functional>
#include <string>

namespace tarn::bench {

/// One figure of captures with a pool. `value` is in `unit`.
struct graph_figure {
  std::string work;
  std::string way;
  std::string unit;
  double value = 0;
  double reference = 0;  ///< the same of what it is compared with, in the same run; 0: not compared
  std::string compared_with;
};

struct graph_effort {
  unsigned captures = 200;  ///< timed, alternately with the reference
  unsigned nodes = 200;     ///< kernels of a captured step; each second one has a temporary buffer
  unsigned pairs = 200'000;
};

using graph_figure_handler = std::function<void(graph_figure const&)>;
/// @throws std::exception  CUDA failed
void measure_graphs(graph_effort const& e, graph_figure_handler const& on_figure);

}  // namespace tarn::bench
