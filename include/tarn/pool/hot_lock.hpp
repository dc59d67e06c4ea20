// SPDX-License-Identifier: Apache-2.0
#pragma once
// The arena's lock. Held for tens of nanoseconds, far less than putting a thread to sleep and waking it costs: who finds
// it taken spins for about a microsecond before it sleeps. Above it: ladder, pool. Below it: core/wait.

#include <mutex>

#include "tarn/core/wait.hpp"

namespace tarn::detail {

class hot_mutex {
 public:
  void lock() {
    for (unsigned tries = 0; tries < most_spins; ++tries) {
      if (mutex_.try_lock()) [[likely]]
        return;
      wait_a_moment(0);
    }
    mutex_.lock();
  }
  void unlock() { mutex_.unlock(); }

 private:
  static constexpr unsigned most_spins = 40;
  std::mutex mutex_;
};

/// Held, or let go around driver calls.
using hot_lock = std::unique_lock<hot_mutex>;

}  // namespace tarn::detail
