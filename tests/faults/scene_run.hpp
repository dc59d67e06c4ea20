// SPDX-License-Identifier: Apache-2.0
#pragma once
// Runs a scene under a fault and checks the guarantees afterwards.

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "faults/host_faults.hpp"
#include "faults/scenes.hpp"

namespace tarn_test {

[[nodiscard]] inline std::vector<scene> all_scenes() {
  std::vector<scene> all;
  for (auto part : {pool_scenes(), source_scenes(), owner_scenes(), policy_scenes(), across_scenes(),
                    report_scenes(), sleep_scenes(), sharing_scenes()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

/// The state of the device when the scene is over.
enum class after_it : std::uint8_t {
  all_is_well,
  device_is_lost,  /// < no work runs on it any more, so nothing can be unordered
  driver_is_gone   ///< the process ends; the memory goes with it
};

struct scene_result {
  std::vector<made_call> calls;
  std::vector<std::string> complaints;
  std::uint64_t asked = 0;    /// < counted host allocations
  std::uint64_t refused = 0;  ///< of them
};

/// In its own thread, whose end belongs to the scene.
[[nodiscard]] inline scene_result run_scene(scene const& s, healing heals, after_it lost,
                                            std::function<void(call_log&)> const& arm) {
  scene_result r;
  std::int64_t const before = host_faults::live();
  host_faults::reset();
  std::thread([&] {
    trial t(s.machine(), heals);
    arm(t.log());
    t.attempt("the whole scene", [&] { s.run(t); });
    r.asked = host_faults::asked();
    r.refused = host_faults::refused();
    t.make_good();
    if (lost != after_it::driver_is_gone) {
      sim_leaks const left = t.machine().leaks();
      if (!s.may_keep_memory || t.log().plan.failed(driver_call::synchronize_device) == 0) {
        t.check_equal(left.ranges, 0, "address ranges leaked");
        t.check_equal(left.maps, 0, "mapped pages leaked");
        t.check_equal(left.handles, 0, "page handles leaked");
        t.check_equal(left.blocks, 0, "blocks leaked");
      }
      t.check_equal(left.streams, 0, "streams leaked");
      t.check_equal(left.events, 0, "events leaked");
    }
    if (lost == after_it::all_is_well) {
      for (std::string const& found : t.machine().findings()) t.complain("stream order: " + found);
    }
    r.calls = t.log().made;
    r.complaints = t.complaints();
  }).join();
  if (host_faults::live() != before) {
    r.complaints.push_back("host memory leaked: " + std::to_string(host_faults::live() - before) +
                           " allocations");
  }
  return r;
}

}  // namespace tarn_test
