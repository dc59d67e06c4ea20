// SPDX-License-Identifier: Apache-2.0
#pragma once
// Whether a thread slept, in a number that does not depend on how fast the machine is. Linux only.

#include <sys/resource.h>

namespace tarn_test {

/// How often the calling thread has slept or waited since it began. A yield does not count.
inline long voluntary_switches() noexcept {
  ::rusage used{};
  (void)::getrusage(RUSAGE_THREAD, &used);
  return used.ru_nvcsw;
}

}  // namespace tarn_test
