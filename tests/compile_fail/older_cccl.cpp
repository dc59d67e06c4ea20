// SPDX-License-Identifier: Apache-2.0
// error: tarn/cuda_mr.hpp: needs CCCL 2.3
// flags: -IHERE/old_cuda
#include "tarn/cuda_mr.hpp"

int main() {}
