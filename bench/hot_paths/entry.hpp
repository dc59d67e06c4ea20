// SPDX-License-Identifier: Apache-2.0
#pragma once
// One work on one pool, before it is run.

#include <cstddef>
#include <functional>
#include <string>

#include "hot_paths/row.hpp"

namespace tarn::bench {

/// One work on one pool.
struct entry {
  std::string work;
  std::string pool;
  std::string device;
  std::size_t live = 1;  ///< number of blocks it keeps live
  std::function<void(plan const&, row&)> run;
};

}  // namespace tarn::bench
