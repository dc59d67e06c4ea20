// SPDX-License-Identifier: Apache-2.0
#include "faults/ending_plugin.hpp"

namespace {
struct on_cuda {
  tarn::device_pool operator()() const { return {}; }
};
}  // namespace
TARN_TEST_PLUGIN(on_cuda)
