// SPDX-License-Identifier: Apache-2.0
#include "faults/endings.hpp"
#include "tarn/sim.hpp"

namespace {
struct simulated {
  using memory_type = tarn::sim_pool;
  using pinned_type = tarn::sim_pinned_host;
  /// unload() of the standard machine is permanent.
  static constexpr bool context_comes_back = false;
  static constexpr bool must_unload = true;
  static bool is_here() { return true; }
  static memory_type memory() { return {}; }
  static pinned_type pinned() { return {}; }
  static void leave_device() {}
  static void come_back() {}
  static void lose_context() { tarn::sim_machine::standard().unload(); }
};
}  // namespace

int main(int argc, char** argv) {
  return tarn_test::endings<simulated>::run(argc, argv);
}
