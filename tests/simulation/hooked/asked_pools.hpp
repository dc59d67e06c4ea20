// SPDX-License-Identifier: Apache-2.0
#pragma once
// How often pools of this process asked others on their device for cached memory, and what they were given.

#include <atomic>
#include <cstdint>

namespace simulation {

struct asked_pools_counts {
  std::atomic<std::uint64_t> asks{0};
  std::atomic<std::uint64_t> answered{0};  ///< with memory
  std::atomic<std::uint64_t> given{0};     ///< bytes
};
inline asked_pools_counts asked_pools;

}  // namespace simulation
