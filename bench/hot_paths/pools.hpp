// SPDX-License-Identifier: Apache-2.0
#pragma once
// The lists of pools of tarn_hot_paths, each in its own translation unit.

#include <vector>

#include "hot_paths/works.hpp"

namespace tarn::bench {

void add_cuda(std::vector<entry>& list);  ///< built if the CUDA toolkit is available

}  // namespace tarn::bench
