// SPDX-License-Identifier: Apache-2.0
#pragma once
// Runs part of a test in a forked child.

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "tarn/core/at_fork.hpp"

namespace tarn {

/// Runs `act` in a child, for at most 20 seconds. Returns the child's exit status: 0 if `act` returned true,
/// 1 if it returned false or threw, -1 if the child did not exit.
template <class Act>
int child_of(Act const& act) {
  pid_t const pid = ::fork();
  if (pid == 0) {
    (void)::alarm(20);
    bool good = false;
    try {
      good = act();
    } catch (...) {
    }
    ::_exit(good ? 0 : 1);
  }
  int status = -1;
  if (pid < 0 || ::waitpid(pid, &status, 0) != pid || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

/// Runs `act` in a child that is forked while another thread runs `first`. What `first` adds to the locks of
/// fork() waits for the fork.
template <class First, class Act>
int child_forked_during(First const& first, Act const& act) {
  std::atomic<bool> forking{false};
  detail::at_fork const last{&forking,
                             [](void* of) noexcept {
                               *static_cast<std::atomic<bool>*>(of) = true;
                               ::usleep(100'000);
                               return true;
                             },
                             [](void*, detail::fork_side) noexcept {}};
  std::thread other([&] {
    while (!forking) std::this_thread::yield();
    first();
  });
  int const result = child_of(act);
  other.join();
  return result;
}

}  // namespace tarn
