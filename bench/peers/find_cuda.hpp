// SPDX-License-Identifier: Apache-2.0
#pragma once
// Is there a CUDA device?

#include <string>

namespace tarn::bench {

/// The first CUDA device, or why there is none.
struct found_cuda {
  bool found = false;
  std::string text;  ///< "NVIDIA H200, 140 GiB, driver for CUDA 13.0" or the reason
  std::string name;  ///< "NVIDIA H200, 140 GiB"
  std::string cuda;  ///< what the driver supports: "13.0"
};

/// Looks, and starts the device's context, so that no pool pays for it.
[[nodiscard]] found_cuda find_cuda();

}  // namespace tarn::bench
