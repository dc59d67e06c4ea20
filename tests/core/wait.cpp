// SPDX-License-Identifier: Apache-2.0

#include "tarn/core/wait.hpp"

#include <atomic>
#include <thread>

#include "catch.hpp"

using namespace tarn::detail;

TEST_CASE("spin_wait lets the other thread run", "[core][wait]") {
  std::atomic<int> turn{0};
  std::thread other([&] {
    for (int i = 0; i < 1000; ++i) {
      for (unsigned tries = 0; turn.load() != 1; ++tries) spin_wait(tries);
      turn.store(0);
    }
  });
  for (int i = 0; i < 1000; ++i) {
    turn.store(1);
    for (unsigned tries = 0; turn.load() != 0; ++tries) spin_wait(tries);
  }
  other.join();
  CHECK(turn.load() == 0);
}
