// SPDX-License-Identifier: Apache-2.0
// error: can_only_be_uninitialised
#include "tarn/raii/pinned_buffer.hpp"
#include "tarn/source/host_memory.hpp"

struct of_a_value {
  explicit of_a_value(int v) : value(v) {}
  int value;
};

int main() {
  tarn::pinned_buffer<of_a_value, tarn::host_memory> b(tarn::host_memory{}, 3,
                                                       tarn::elements::value_initialised);
}
