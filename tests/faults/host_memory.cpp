// SPDX-License-Identifier: Apache-2.0
// Refuses every host allocation of every scene once, and once with all that follow until the scene recovers.
// Checks the library's guarantees after each run. Uses CLI11 for the arguments that repeat one run.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <iostream>
#include <map>
#include <string>

#include "faults/scene_run.hpp"

namespace {

using namespace tarn_test;

struct way {
  char const* name;
  host_faults::lasting how;
  healing heals;
};
constexpr way ways[] = {{"once", host_faults::lasting::once, healing::before_the_end},
                        {"until_healed", host_faults::lasting::for_good, healing::before_the_end},
                        {"for_good", host_faults::lasting::for_good, healing::never}};

scene_result run(scene const& s, way const& w, std::uint64_t n) {
  return run_scene(s, w.heals, after_it::all_is_well, [&](call_log&) {
    if (n != 0) host_faults::arm(n, w.how);
  });
}

struct arguments {
  std::string scene, way;
  std::uint64_t allocation = 0;
};

}  // namespace

int main(int argc, char** argv) {
  arguments a;
  CLI::App app("Refuses every host allocation over scenes that use all of tarn.", "tarn_host_faults");
  app.add_option("--scene", a.scene, "only this scene");
  app.add_option("--way", a.way, "only this way to fail");
  app.add_option("--allocation", a.allocation, "only the allocation of this number");
  CLI11_PARSE(app, argc, argv);
  std::uint64_t allocations = 0, runs = 0, failures = 0, never_refused = 0;
  std::map<std::string, unsigned> printed;
  auto const print_complaints = [&](scene const& s, way const& w, std::uint64_t n, scene_result const& r) {
    for (std::string const& c : r.complaints) {
      ++failures;
      if (++printed[std::string(s.name) + w.name] > 3) continue;
      std::cout << "FAILED " << s.name << ", " << w.name << " at allocation " << n << ": " << c
                << "\n  again: tarn_host_faults --scene " << s.name << " --way " << w.name << " --allocation "
                << n << '\n';
    }
  };
  for (scene const& s : all_scenes()) {
    if (!a.scene.empty() && a.scene != s.name) continue;
    if (s.refuses_host_memory) continue;  // it refuses host memory itself
    scene_result const plain = run(s, ways[0], 0);
    print_complaints(s, ways[0], 0, plain);
    // The first run without a refusal gives their number: allocations made once per process do not recur in
    // later runs.
    std::uint64_t asked = 0;
    for (way const& w : ways) {
      if (!a.way.empty() && a.way != w.name) continue;
      for (std::uint64_t n = a.allocation != 0 ? a.allocation : 1;; ++n) {
        scene_result const r = run(s, w, n);
        print_complaints(s, w, n, r);
        if (r.refused == 0) break;
        ++runs;
        asked = std::max(asked, n);
        if (a.allocation != 0) break;
      }
    }
    if (asked == 0 && plain.asked != 0) ++never_refused;
    allocations += asked;
    std::cout << s.name << std::string(34 - std::string_view(s.name).size(), ' ') << asked << " allocations"
              << std::endl;
  }
  if (never_refused != 0)
    std::cout << "FAILED: in " << never_refused << " scenes no allocation was refused\n";
  std::cout << allocations << " host allocations refused in " << runs << " runs, " << failures
            << " failures\n";
  std::cout << "evidence: host_faults allocations=" << allocations << " runs=" << runs
            << " failures=" << failures << '\n';
  return failures == 0 && never_refused == 0 && runs != 0 ? 0 : 1;
}
