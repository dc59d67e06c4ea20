// SPDX-License-Identifier: Apache-2.0
#pragma once
// The lists of pools of tarn_hot_paths, each a translation unit of its own.

#include <vector>

#include "hot_paths/works.hpp"

namespace tarn::bench {

void add_cuda(std::vector<entry>& list);  ///< built where the CUDA toolkit is

}  // namespace tarn::bench
