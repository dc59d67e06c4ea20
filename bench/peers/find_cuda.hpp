// SPDX-License-Identifier: Apache-2.0
#pragma once
// find_cuda(): finds the CUDA device, if there is one.

#include <string>

namespace tarn::bench {

/// The first CUDA device, or why there is none.
struct found_cuda {
  bool found = false;
  std::string text;  ///< "NVIDIA H200, 140 GiB, driver for CUDA 13.0" or the reason
  std::string name;  ///< "NVIDIA H200, 140 GiB"
  std::string cuda;  ///< the version that the driver supports: "13.0"
};

/// Finds the device and creates its context, so that no pool is charged for that.
[[nodiscard]] found_cuda find_cuda();

}  // namespace tarn::bench
