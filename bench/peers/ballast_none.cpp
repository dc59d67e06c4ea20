// SPDX-License-Identifier: Apache-2.0
#include <stdexcept>

#include "peers/ballast.hpp"

namespace tarn::bench {

ballast::ballast(std::uint64_t leave) {
  if (leave != 0) throw std::runtime_error("built without CUDA");
}
ballast::~ballast() = default;

}  // namespace tarn::bench
