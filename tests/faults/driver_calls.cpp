// SPDX-License-Identifier: Apache-2.0
// Makes every driver call of every scene fail, in every possible way, one run for each, and checks the
// guarantees after each run. The call sites that were made to fail are written to a file, which sites.py
// compares with those in the sources. Uses CLI11 for the arguments that repeat one run.
#include <CLI/CLI.hpp>
#include <fstream>
#include <iostream>
#include <map>
#include <set>
#include <string>

#include "faults/scene_run.hpp"

namespace {

using namespace tarn_test;

/// One way in which a call fails, and what follows.
struct way {
  char const* name;
  failure kind = failure::other;
  fault_moment moment = fault_moment::instead;
  fault_span span = fault_span::once;
  healing heals = healing::before_the_end;
  bool device_is_full = false;  // no single call fails; from this call on those that allocate find no memory
  std::uint64_t second = 0;     // another call fails this many calls later
  bool in_slow_scenes = false;  // without --all-ways, too; all but `once` at every eighth call
};

constexpr way ways[] = {
    {.name = "once", .in_slow_scenes = true},
    {.name = "once_done", .moment = fault_moment::after},
    {.name = "once_no_memory", .kind = failure::out_of_memory},
    {.name = "once_unsupported", .kind = failure::unsupported},
    {.name = "once_no_device", .kind = failure::no_device},
    {.name = "twice_next", .second = 1, .in_slow_scenes = true},
    {.name = "twice_after_2", .second = 2},
    {.name = "twice_after_3", .second = 3},
    {.name = "twice_after_4", .second = 4},
    {.name = "twice_after_6", .second = 6},
    {.name = "twice_after_9", .second = 9},
    {.name = "until_healed", .span = fault_span::for_good, .in_slow_scenes = true},
    {.name = "for_good", .span = fault_span::for_good, .heals = healing::never},
    {.name = "unloading", .kind = failure::unloading, .span = fault_span::for_good, .heals = healing::never},
    {.name = "full_until_healed", .device_is_full = true},
    {.name = "full_for_good", .heals = healing::never, .device_is_full = true},
};

bool makes_something(driver_call call) {
  switch (call) {
    case driver_call::create_event:
    case driver_call::create_stream:
    case driver_call::map_pages:
    case driver_call::export_pages:
    case driver_call::import_pages:
    case driver_call::create_shared_event:
    case driver_call::open_shared_event:
    case driver_call::export_dma_buf:
      return true;
    default:
      return can_exhaust(call);
  }
}

bool applies(way const& w, driver_call call) {
  std::string_view const name = w.name;
  // An object that was created by a call reported as failed could not be released.
  if (name == "once_done")
    return !makes_something(call) && !only_looks(call) && call != driver_call::query_event;
  if (name == "once_no_memory" || w.device_is_full) return makes_something(call);
  return true;
}

/// Runs a scene; its k-th call fails, or none if k is 0.
scene_result run(scene const& s, way const& w, std::uint64_t k) {
  fault const how{w.kind, w.moment, w.span};
  auto const arm = [&](call_log& log) {
    if (k == 0) return;
    log.moment = w.moment;
    if (w.device_is_full) {
      log.full_from = k;
    } else {
      log.plan.fail(k, how);
      if (w.second != 0) log.plan.fail(k + w.second, how);
    }
  };
  bool const lasts = k != 0 && w.span == fault_span::for_good && w.heals == healing::never;
  auto const lost = !lasts                         ? after_it::all_is_well
                    : w.kind == failure::unloading ? after_it::driver_is_gone
                                                   : after_it::device_is_lost;
  return run_scene(s, w.heals, lost, arm);
}

struct arguments {
  std::string scene, way;
  std::uint64_t call = 0;
  std::string sites;
  bool all_ways = false;
  bool few_calls = false;
  bool list = false;
};

struct totals {
  std::uint64_t runs = 0, calls = 0, failures = 0;
  std::map<std::string, std::uint64_t> sites, printed;
};

void print_complaints(scene const& s, way const& w, std::uint64_t k, scene_result const& r, totals& sum) {
  for (std::string const& c : r.complaints) {
    ++sum.failures;
    if (++sum.printed[std::string(s.name) + w.name] > 3) continue;
    std::cout << "FAILED " << s.name << ", " << w.name << " at call " << k;
    if (k != 0 && k <= r.calls.size()) {
      made_call const& c2 = r.calls[k - 1];
      std::cout << " (" << c2.name << ", " << c2.file << ':' << c2.line << ')';
    }
    std::cout << ": " << c << "\n  again: tarn_driver_faults --scene " << s.name << " --way " << w.name
              << " --call " << k << '\n';
  }
}

void note_sites(scene_result const& r, totals& sum) {
  for (made_call const& c : r.calls) {
    std::uint64_t& times = sum.sites[std::string(c.file) + ':' + std::to_string(c.line) + ' ' + c.name];
    if (c.struck) ++times;
  }
}

/// For `once` in a slow scene with --few-calls: the first and the last call that each place of the library
/// makes.
std::set<std::uint64_t> usual_calls(std::vector<made_call> const& calls) {
  std::map<std::string, std::pair<std::uint64_t, std::uint64_t>> by_place;
  for (std::uint64_t k = 1; k <= calls.size(); ++k) {
    made_call const& c = calls[k - 1];
    std::string const place = std::string(c.file) + ':' + std::to_string(c.line) + ' ' + c.name;
    by_place.try_emplace(place, k, k).first->second.second = k;
  }
  std::set<std::uint64_t> chosen;
  for (auto const& [place, ends] : by_place) chosen.insert({ends.first, ends.second});
  return chosen;
}

void sweep(scene const& s, arguments const& a, totals& sum) {
  scene_result const plain = run(s, ways[0], 0);
  print_complaints(s, ways[0], 0, plain, sum);
  if (a.list) {
    std::uint64_t k = 0;
    for (made_call const& c : plain.calls)
      std::cout << ++k << ' ' << c.name << ' ' << c.file << ':' << c.line << '\n';
  }
  std::set<std::uint64_t> const usual = usual_calls(plain.calls);
  std::uint64_t runs = 0;
  std::uint64_t quick_ways = 0;
  for (way const& w : ways) {
    if (w.in_slow_scenes) ++quick_ways;
    if (!a.way.empty() && a.way != w.name) continue;
    if (a.way.empty() && s.is_slow && !w.in_slow_scenes && !a.all_ways) continue;
    for (std::uint64_t k = 1; k <= plain.calls.size(); ++k) {
      if (a.call != 0 && a.call != k) continue;
      bool const in_turn =
          quick_ways == 1 ? !a.few_calls || usual.contains(k) : (k + 4 * quick_ways) % 8 == 0;
      if (a.call == 0 && a.way.empty() && s.is_slow && !a.all_ways && !in_turn) continue;
      if (!applies(w, plain.calls[k - 1].kind)) continue;
      scene_result const r = run(s, w, k);
      ++runs;
      print_complaints(s, w, k, r, sum);
      note_sites(r, sum);
    }
  }
  sum.runs += runs;
  sum.calls += plain.calls.size();
  std::cout << s.name << std::string(34 - std::string_view(s.name).size(), ' ') << plain.calls.size()
            << " calls, " << runs << " runs" << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  arguments a;
  CLI::App app("Makes every driver call fail, in every way, over scenes that use all of tarn.",
               "tarn_driver_faults");
  app.add_option("--scene", a.scene, "only this scene");
  app.add_option("--way", a.way, "only this way to fail");
  app.add_option("--call", a.call, "only the call of this number");
  app.add_option("--sites", a.sites, "file for the call sites that were made to fail");
  app.add_flag("--all-ways", a.all_ways, "slow scenes fail in every way, too");
  app.add_flag("--few-calls", a.few_calls,
               "slow scenes fail once at the first and the last call of each place");
  app.add_flag("--list", a.list, "print the calls of each scene");
  CLI11_PARSE(app, argc, argv);
  totals sum;
  for (scene const& s : all_scenes()) {
    if (a.scene.empty() || a.scene == s.name) sweep(s, a, sum);
  }
  if (!a.sites.empty()) {
    std::ofstream out(a.sites);
    for (auto const& [site, times] : sum.sites) out << site << ' ' << times << '\n';
  }
  std::cout << sum.calls << " driver calls made to fail in " << sum.runs << " runs, " << sum.failures
            << " failures\n";
  std::cout << "evidence: driver_faults calls=" << sum.calls << " runs=" << sum.runs
            << " failures=" << sum.failures << '\n';
  return sum.failures == 0 && sum.runs != 0 ? 0 : 1;
}
