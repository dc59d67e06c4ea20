// SPDX-License-Identifier: Apache-2.0
#pragma once
// A program that uses every feature, in scenes. Each scene is short, has its own machine, and is run once for
// each of its driver calls and allocations.

#include <span>

#include "faults/trial.hpp"

namespace tarn_test {

struct scene {
  char const* name;
  sim_options (*machine)();
  void (*run)(trial&);
  bool refuses_host_memory = false;  /// < the scene refuses host memory itself, at some point
  bool is_slow = false;              ///< made to fail in a few ways only, unless all are asked for
  /// Where the driver does not wait for the device, memory that work may use is never given back.
  bool may_keep_memory = false;
};

[[nodiscard]] std::span<scene const> pool_scenes();
[[nodiscard]] std::span<scene const> source_scenes();
[[nodiscard]] std::span<scene const> owner_scenes();
[[nodiscard]] std::span<scene const> policy_scenes();
[[nodiscard]] std::span<scene const> across_scenes();
[[nodiscard]] std::span<scene const> report_scenes();
[[nodiscard]] std::span<scene const> sleep_scenes();
[[nodiscard]] std::span<scene const> sharing_scenes();

}  // namespace tarn_test
