// SPDX-License-Identifier: Apache-2.0

#include "tarn/core/spin_lock.hpp"

#include <mutex>
#include <thread>
#include <vector>

#include "catch.hpp"

using namespace tarn::detail;

TEST_CASE("spin_lock admits one thread at a time", "[core][spin_lock][threads]") {
  spin_lock lock;
  int inside = 0;
  long total = 0;
  long crowded = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        std::lock_guard const guard(lock);
        if (++inside != 1) ++crowded;
        ++total;
        --inside;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(total == 8000);
  CHECK(crowded == 0);
}

TEST_CASE("spin_lock try_lock fails while the lock is taken", "[core][spin_lock]") {
  spin_lock lock;
  CHECK(!lock.is_taken());
  REQUIRE(lock.try_lock());
  CHECK(lock.is_taken());
  CHECK(!lock.try_lock());
  lock.unlock();
  CHECK(lock.try_lock());
  lock.unlock();
}
