// SPDX-License-Identifier: Apache-2.0
// error: tarn needs CUDA 12 or later
// flags: -UTARN_NO_CUDA -IHERE/old_cuda
#include "tarn/tarn.hpp"

int main() {}
