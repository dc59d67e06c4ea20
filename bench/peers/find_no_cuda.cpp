// SPDX-License-Identifier: Apache-2.0
#include "peers/find_cuda.hpp"

namespace tarn::bench {

found_cuda find_cuda() {
  return {false, "built without CUDA", {}, {}};
}

}  // namespace tarn::bench
