// SPDX-License-Identifier: Apache-2.0
#pragma once
// The context of a measurement: machine, driver and commit. Every line of results contains it.

#include <string>

#include "peers/find_cuda.hpp"

namespace tarn::bench {

/// What a reader must know to compare two figures.
struct context {
  std::string gpu;     ///< "NVIDIA H200, 140 GiB", or "none"
  std::string driver;  ///< "580.159.04", or the part that is known, or "none"
  std::string cpu;     ///< the processor's name and the cores that this process may use
  std::string date;    ///< UTC, to the minute
  std::string commit;  ///< TARN_COMMIT from the environment, or "unknown"
};

/// @param gpu  the result of find_cuda()
[[nodiscard]] context find_context(found_cuda const& gpu);

}  // namespace tarn::bench
