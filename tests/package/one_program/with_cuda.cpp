// SPDX-License-Identifier: Apache-2.0
#include "unit.hpp"

static_assert(TARN_HAS_CUDA);
std::size_t without_cuda();

int main() {
  return bytes_of_a_buffer() == without_cuda() ? 0 : 1;
}
