// SPDX-License-Identifier: Apache-2.0
#pragma once
// Runs part of a test in a forked child.

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

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

}  // namespace tarn
