// SPDX-License-Identifier: Apache-2.0
#pragma once
// The measurements of tarn_graphs.

#include "figure.hpp"

namespace tarn::bench {

struct graph_effort {
  unsigned captures = 200;  ///< timed, alternately with the reference
  unsigned nodes = 200;     ///< kernels of a captured step; each second one has a temporary buffer
  unsigned pairs = 200'000;
};

/// @throws std::exception  CUDA failed
void measure_graphs(graph_effort const& e, figure_handler const& on_figure);

}  // namespace tarn::bench
