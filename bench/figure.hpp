// SPDX-License-Identifier: Apache-2.0
#pragma once
// A figure of a benchmark that compares with a reference in the same run.

#include <functional>
#include <string>

namespace tarn::bench {

struct figure {
  std::string work;
  std::string way;
  std::string unit;  ///< of `value` and `reference`
  double value = 0;
  double reference = 0;  ///< the same of what it is compared with, in the same run; 0: not compared
  std::string compared_with;
};

using figure_handler = std::function<void(figure const&)>;

}  // namespace tarn::bench
