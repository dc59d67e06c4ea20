// SPDX-License-Identifier: Apache-2.0
// error: wrap the policy: memory | tarn::around<policy>{}
#include "tarn/sim.hpp"
#include "tarn/tarn.hpp"

struct counting {
  int count = 0;
  void* around_allocate(tarn::request const& r, auto const& next) { return ++count, next.allocate(r); }
};

int main() {
  auto memory = tarn::sim_pool{} | counting{};
}
