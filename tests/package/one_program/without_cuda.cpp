// SPDX-License-Identifier: Apache-2.0
#define TARN_NO_CUDA
#include "unit.hpp"

std::size_t without_cuda();
std::size_t without_cuda() {
  return bytes_of_a_buffer();
}
