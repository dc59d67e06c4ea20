// SPDX-License-Identifier: Apache-2.0
// error: tarn: CUDA's headers were not found: add their folder (-I/usr/local/cuda/include), or simulate a GPU (-DTARN_NO_CUDA -include tarn/sim.hpp)
// flags: -UTARN_NO_CUDA
#include <tarn/tarn.hpp>

int main() {
  tarn::device_pool pool;
}
