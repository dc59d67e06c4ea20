// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where and of what a figure was measured: every line of results carries it, so that none can be quoted without.

#include <string>

#include "peers/find_cuda.hpp"

namespace tarn::bench {

/// What a reader must know to compare two figures.
struct context {
  std::string gpu;     ///< "NVIDIA H200, 140 GiB", or "none"
  std::string driver;  ///< "580.159.04", or what of it is known, or "none"
  std::string cpu;     ///< the processor's name and the cores that this process may use
  std::string date;    ///< UTC, to the minute
  std::string commit;  ///< the environment's TARN_COMMIT, or "unknown"
};

/// @param gpu  what find_cuda() found
[[nodiscard]] context find_context(found_cuda const& gpu);

}  // namespace tarn::bench
