// SPDX-License-Identifier: Apache-2.0
// A plug-in with hidden symbols: it has a copy of tarn of its own, but not of the gate.
#include "tarn/driver/capture_gate.hpp"

extern "C" __attribute__((visibility("default"))) bool hidden_sees_capture() {
  return tarn::detail::capture_gate::has_captures();
}
