// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which capabilities the simulated devices of the unit tests lack, where a test does not choose: what
// TARN_TEST_ABSENT names, `pages` (virtual memory management), `memory_pools`, or both. tests/CMakeLists.txt
// writes the options of sim_machine with these defaults.

#include <cstdlib>
#include <cstring>

namespace tarn_test {

[[nodiscard]] inline bool is_absent(char const* capability) noexcept {
  static char const* const absent = std::getenv("TARN_TEST_ABSENT");
  return absent != nullptr && std::strstr(absent, capability) != nullptr;
}

/// `Enum` is sim_paging or sim_memory_pools.
template <class Enum>
[[nodiscard]] Enum unless_absent(char const* capability) noexcept {
  return is_absent(capability) ? Enum::missing : Enum::available;
}

}  // namespace tarn_test
