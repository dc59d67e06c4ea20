// SPDX-License-Identifier: Apache-2.0
// Random programs on the simulated machine: stream order, the model, contents. A finding is reduced to the
// fewest steps and printed with the command that reproduces it. Builds on its own:
//   g++ -std=c++20 -O2 -Itests/simulation/hooked -Iinclude tests/simulation/main.cpp -pthread -ldl
//
// Exit status: 0 no findings, 1 findings, 2 a wrong argument. The last line is machine-readable.

#include <dlfcn.h>
#include <getopt.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cinttypes>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "guard.hpp"
#include "profile.hpp"
#include "program.hpp"
#include "run.hpp"
#include "shrink.hpp"

#if !defined(TARN_SIMULATION_HOOKS_HOT_LOCK) || !defined(TARN_SIMULATION_HOOKS_OWNER_LOCK) || \
    !defined(TARN_SIMULATION_HOOKS_SPIN_LOCK) || !defined(TARN_SIMULATION_HOOKS_WAIT)
#error "tests/simulation/hooked must precede the library in the include path"
#endif

namespace {

using namespace simulation;

/// Of the library, for the record.
char const* commit() {
  char const* const known = std::getenv("TARN_COMMIT");
  return known != nullptr ? known : "unknown";
}

struct arguments {
  char const* name = "simulation";  /// < of this program, as it was called
  std::uint64_t first = 1, last = 40;
  std::size_t steps = 3000;
  profile const* only = nullptr;
  unsigned seconds = 0;  /// < continues with further seeds for this long
  unsigned jobs = 1;
  unsigned patience = 60;  ///< seconds without a step, after which a program counts as hung
  std::string keep;        ///< numbers of the steps to run: "3,17,20-25"
  std::string preempt;     ///< the preemptions, by step and switch point: "17:5,20:1"
  std::string record;      /// < a file to which this run appends a line
  bool several = false;    /// < only programs whose threads run concurrently
  bool go_on = false;      ///< after a finding
  bool shrink = true;
  bool print = false;
};

void say_usage() {
  std::printf(
      "simulation [--seeds A..B] [--steps N] [--profile NAME] [--seconds S] [--jobs N] [--keep LIST] "
      "[--print]\n"
      "           [--patience S] [--no-shrink] [--preempt LIST] [--go-on] [--without-pages] "
      "[--without-memory-pools]\n"
      "  --seeds A..B   programs to draw (1..40); with --seconds, the first one\n"
      "  --steps N      steps of each (3000)\n"
      "  --profile P    one of:");
  for (profile const& p : profiles) std::printf(" %s", p.name);
  std::printf(
      "; else a mix of all\n"
      "  --several      only profiles whose threads run at the same time, in turn\n"
      "  --record FILE  adds a line with the seeds, the calls and the findings of this run\n"
      "  --seconds S    as many seeds as fit into this time\n"
      "  --jobs N       parallel processes (1)\n"
      "  --patience S   seconds without a step, after which a program hangs (60)\n"
      "  --keep LIST    of each program only the steps with these numbers, such as 3,17,20-25\n"
      "  --preempt LIST  threads are preempted only at these places: step:switch point, such as 17:5,20:1; "
      "none: at none\n"
      "  --print        print the steps before they run\n"
      "  --go-on        runs all seeds, and prints the first finding of each kind immediately\n"
      "  --no-shrink    do not reduce what fails\n"
      "  --without-pages  on devices without virtual memory management: pools over pages use plain blocks\n"
      "  --without-memory-pools  on devices without memory pools, which cudaMallocAsync needs\n");
}

bool parse(int count, char** values, arguments& a) {
  static option const known[] = {{"seeds", 1, nullptr, 's'},
                                 {"steps", 1, nullptr, 'n'},
                                 {"profile", 1, nullptr, 'p'},
                                 {"seconds", 1, nullptr, 't'},
                                 {"jobs", 1, nullptr, 'j'},
                                 {"keep", 1, nullptr, 'k'},
                                 {"patience", 1, nullptr, 'w'},
                                 {"no-shrink", 0, nullptr, 'f'},
                                 {"print", 0, nullptr, 'v'},
                                 {"preempt", 1, nullptr, 'c'},
                                 {"several", 0, nullptr, 'm'},
                                 {"record", 1, nullptr, 'r'},
                                 {"help", 0, nullptr, 'h'},
                                 {"go-on", 0, nullptr, 'g'},
                                 {"without-pages", 0, nullptr, 'b'},
                                 {"without-memory-pools", 0, nullptr, 'a'},
                                 {nullptr, 0, nullptr, 0}};
  for (int c = 0; (c = getopt_long(count, values, "", known, nullptr)) != -1;) {
    switch (c) {
      case 's': {
        int const read = std::sscanf(optarg, "%" SCNu64 "..%" SCNu64, &a.first, &a.last);
        if (read < 1) return false;
        if (read == 1) a.last = a.first;
        break;
      }
      case 'n':
        a.steps = std::strtoull(optarg, nullptr, 10);
        break;
      case 'p':
        if ((a.only = find_profile(optarg)) == nullptr) return false;
        break;
      case 't':
        a.seconds = static_cast<unsigned>(std::strtoul(optarg, nullptr, 10));
        break;
      case 'j':
        a.jobs = static_cast<unsigned>(std::strtoul(optarg, nullptr, 10));
        break;
      case 'w':
        a.patience = static_cast<unsigned>(std::strtoul(optarg, nullptr, 10));
        break;
      case 'k':
        a.keep = optarg;
        break;
      case 'c':
        a.preempt = optarg;
        break;
      case 'm':
        a.several = true;
        break;
      case 'r':
        a.record = optarg;
        break;
      case 'g':
        a.go_on = true;
        break;
      case 'b':
        without_pages = true;
        break;
      case 'a':
        without_memory_pools = true;
        break;
      case 'f':
        a.shrink = false;
        break;
      case 'v':
        a.print = true;
        break;
      default:
        return false;
    }
  }
  return optind == count && a.jobs != 0 && a.patience != 0 && a.steps != 0 && a.first <= a.last;
}

/// Keeps only the steps whose numbers the list names.
void keep_steps(program& p, std::string const& list) {
  std::vector<operation> steps;
  std::vector<std::uint32_t> numbers;
  for (char const* at = list.c_str(); *at != 0;) {
    char* next = nullptr;
    auto const from = std::strtoull(at, &next, 10);
    auto to = from;
    if (*next == '-') to = std::strtoull(next + 1, &next, 10);
    for (auto i = from; i <= to && i < p.steps.size(); ++i) {
      steps.push_back(p.steps[i]);
      numbers.push_back(static_cast<std::uint32_t>(i));
    }
    if (next == at) break;
    at = *next == ',' ? next + 1 : next;
  }
  p.steps = std::move(steps);
  p.numbers = std::move(numbers);
}
std::string kept_list(program const& p) {
  std::string out;
  for (std::size_t i = 0; i < p.numbers.size();) {
    std::size_t end = i + 1;
    while (end < p.numbers.size() && p.numbers[end] == p.numbers[end - 1] + 1) ++end;
    if (!out.empty()) out += ',';
    out += std::to_string(p.numbers[i]);
    if (end - i > 1) out += '-' + std::to_string(p.numbers[end - 1]);
    i = end;
  }
  return out;
}

program make(arguments const& a, std::uint64_t seed) {
  profile const& kind = a.only != nullptr ? *a.only : a.several ? profile_at_once(seed) : profile_of(seed);
  program p = draw(seed, kind, a.steps, draw_setting(seed, kind).machine.capacity);
  if (!a.keep.empty()) keep_steps(p, a.keep);
  if (!a.preempt.empty()) {
    p.pinned = true;
    for (char const* at = a.preempt.c_str(); *at != 0;) {
      preemption each;
      int length = 0;
      if (std::sscanf(at, "%" SCNu32 ":%" SCNu32 "%n", &each.step, &each.point, &length) != 2) break;
      p.preemptions.push_back(each);
      at += length;
      if (*at == ',') ++at;
    }
  }
  return p;
}
std::string preempt_list(program const& p) {
  std::string out;
  for (preemption const& each : p.preemptions)
    out += (out.empty() ? "" : ",") + std::to_string(each.step) + ':' + std::to_string(each.point);
  return out.empty() ? "none" : out;
}

/// Where in the library a thread was preempted: its call stack with file and line, if addr2line is installed
/// and the program has line numbers.
std::string source_of(std::vector<void*> const& frames) {
  std::string command = "addr2line -e /proc/" + std::to_string(::getpid()) + "/exe";
  bool any = false;
  for (void* const f : frames) {
    Dl_info info{};
    if (f == nullptr || ::dladdr(f, &info) == 0) continue;
    auto const at =
        reinterpret_cast<std::uintptr_t>(f) - reinterpret_cast<std::uintptr_t>(info.dli_fbase) - 1;
    command += text(" 0x%" PRIxPTR, at);
    any = true;
  }
  std::string out;
  std::FILE* const pipe = any ? ::popen((command + " -i 2>/dev/null").c_str(), "r") : nullptr;
  if (pipe == nullptr) return out;
  char line[1024];
  for (unsigned shown = 0; std::fgets(line, sizeof line, pipe) != nullptr;) {
    std::string l(line);
    while (!l.empty() && l.back() == '\n') l.pop_back();
    auto const place = l.rfind("/tarn/");
    if (place == std::string::npos || l.find("/hooked/") != std::string::npos || shown == 6) continue;
    if (auto const more = l.find(" ("); more != std::string::npos) l.resize(more);
    out += (shown++ == 0 ? "" : " < ") + l.substr(place + 6);
  }
  (void)::pclose(pipe);
  return out;
}

/// The steps, with windows of several threads marked: which thread begins, and which one is preempted where.
void print_program(program const& p, shrunk const& s) {
  for (std::size_t i = 0; i < p.steps.size();) {
    std::size_t end = i;
    std::vector<unsigned> threads;
    for (; end < p.steps.size() && p.steps[end].window == p.steps[i].window; ++end) {
      if (std::find(threads.begin(), threads.end(), p.steps[end].thread) == threads.end())
        threads.push_back(p.steps[end].thread);
    }
    if (threads.size() > 1) {
      std::sort(threads.begin(), threads.end(), [&](unsigned x, unsigned y) {
        return first_priority(p, p.steps[i].window, x) > first_priority(p, p.steps[i].window, y);
      });
      std::printf("  at the same time, thread");
      for (unsigned const t : threads) std::printf(" %u", t);
      std::printf(" in this order, except for preemptions:\n");
    }
    for (; i < end; ++i) {
      std::printf("  %s%s\n", threads.size() > 1 ? "  " : "", to_text(p.numbers[i], p.steps[i]).c_str());
      for (std::size_t k = 0; k < s.taken.size(); ++k) {
        if (s.taken[k].step != p.numbers[i]) continue;
        std::printf("           preempted at its switch point %" PRIu32, s.taken[k].point);
        if (k < s.locations.size()) {
          std::string const where = source_of(s.locations[k].frames);
          std::printf(", %s%s%s", switch_point_names[static_cast<std::size_t>(s.locations[k].at)],
                      where.empty() ? "" : ": ", where.c_str());
        }
        std::printf("\n");
      }
    }
  }
}

void print_steps(program const& p) {
  for (std::size_t i = 0; i < p.steps.size(); ++i)
    std::printf("  %s\n", to_text(p.numbers[i], p.steps[i]).c_str());
}
void print_setting(program const& p) {
  setting const s = draw_setting(p.seed, *p.kind);
  std::printf("  %d device(s) of %zu MiB; watched by: %s; ", s.machine.devices, s.machine.capacity >> 20,
              watch_names[static_cast<int>(s.watched)]);
  if (s.machine.seed == 0) {
    std::printf("work takes exactly its nominal time\n");
  } else {
    std::printf("work takes up to %" PRIu64 " ns longer, %u of 1000 streams are slow, events up to %" PRIu64
                " ns late\n",
                s.machine.jitter, s.machine.slow_streams, s.machine.late_events);
  }
  for (std::size_t i = 0; i < s.pools.size(); ++i) {
    pool_choice const& c = s.pools[i];
    std::printf("  pool %zu: over %s, limit %zu MiB%s\n", i, ground_names[static_cast<int>(c.on)],
                c.limit >> 20, c.options.remap == tarn::remapping::off ? ", no remapping" : "");
  }
}

/// The first line of a finding without its numbers.
std::string kind_of(verdict const& v) {
  std::string kind = v.what.substr(0, v.what.find('\n'));
  if (auto const where = kind.find(". "); where != std::string::npos) kind.resize(where);
  for (char& c : kind) c = std::isxdigit(static_cast<unsigned char>(c)) != 0 && !std::islower(c) ? '#' : c;
  return kind;
}

/// Prints what failed, reduced.
void report(arguments const& a, std::uint64_t seed, std::uint64_t step, verdict const& v) {
  program const whole = make(a, seed);
  std::string const where =
      step == after_the_last_step ? "after the last step" : "at step " + std::to_string(step);
  std::printf("FOUND with seed %" PRIu64 ", profile %s, %s:\n%s", seed, whole.kind->name, where.c_str(),
              v.what.c_str());
  program shown = whole;
  if (a.shrink) {
    std::fflush(stdout);
    shrunk const s = shrinker(std::chrono::seconds(60)).reduce(whole, step);
    if (!s.last.failed) {
      std::printf("It does not fail when run alone in a separate process.\n");
      return;
    }
    shown = s.smallest;
    std::printf("Reduced from %zu to %zu steps in %u attempts. Finding:\n%s", whole.steps.size(),
                shown.steps.size(), s.attempts, s.last.what.c_str());
    print_setting(shown);
    print_program(shown, s);
  }
  std::printf("To repeat: %s --seeds %" PRIu64 " --profile %s --steps %zu%s%s%s%s%s%s --no-shrink\n", a.name,
              seed, whole.kind->name, a.steps, without_pages ? " --without-pages" : "",
              without_memory_pools ? " --without-memory-pools" : "", a.shrink ? " --keep " : "",
              a.shrink ? kept_list(shown).c_str() : "", shown.pinned ? " --preempt " : "",
              shown.pinned ? preempt_list(shown).c_str() : "");
}

}  // namespace

int main(int count, char** values) {
  arguments a;
  a.name = values[0];
  if (!parse(count, values, a)) {
    say_usage();
    return 2;
  }
  using clock = guarded::clock;
  auto const start = clock::now();
  auto const until = start + std::chrono::seconds(a.seconds);
  if (a.print) print_steps(make(a, a.first));
  std::vector<std::unique_ptr<guarded>> jobs;
  for (unsigned j = 0; j < a.jobs; ++j) {
    jobs.push_back(std::make_unique<guarded>(std::chrono::seconds(a.patience + 30)));
    jobs[j]->start([&, j](progress& at) {
      std::set<std::string> known;
      findings of_last;
      for (std::uint64_t seed = a.first + j;; seed += a.jobs) {
        if (a.seconds != 0 ? clock::now() >= until : seed > a.last) return of_last;
        // In a separate process: earlier runs must not affect where the heap is, and so in which slot a
        // thread finds its cache.
        program const p = make(a, seed);
        guarded alone{std::chrono::seconds(a.patience)};
        alone.start([&](progress& there) { return run(p, there); });
        verdict v;
        while (!alone.attend(std::chrono::milliseconds(1000), v)) at.beats.fetch_add(1);
        at.beats.fetch_add(1);
        at.seed.store(seed);
        at.step.store(alone.where().step.load());
        for (std::size_t k = 0; k < profile_count; ++k) at.counted[k].add(alone.where().counted[k]);
        if (!v.failed) continue;
        of_last = {v.what};
        if (!a.go_on) return of_last;
        if (known.insert(kind_of(v)).second) {
          std::printf("seed %" PRIu64 ", profile %s, after %.1f s: %s", seed, p.kind->name,
                      std::chrono::duration<double>(clock::now() - start).count(), v.what.c_str());
          std::fflush(stdout);
        }
      }
    });
  }
  tally by_profile[profile_count];
  std::uint64_t last = 0, findings_in_all = 0;
  for (std::size_t open = jobs.size(); open != 0;) {
    for (auto& job : jobs) {
      verdict v;
      if (job == nullptr || !job->attend(std::chrono::milliseconds(100), v)) continue;
      --open;
      progress& at = job->where();
      for (std::size_t p = 0; p < profile_count; ++p) by_profile[p].add(at.counted[p]);
      if (at.seed.load() > last) last = at.seed.load();
      if (v.failed && findings_in_all++ == 0) report(a, at.seed.load(), at.step.load(), v);
      job.reset();
    }
  }
  std::uint64_t runs = 0, at_driver = 0, at_hot = 0;
  for (tally const& t : by_profile) {
    runs += t.runs;
    at_driver += t.driver_points;
    at_hot += t.hot_points;
  }
  if (runs > 100 && (at_driver == 0 || at_hot == 0)) {
    ++findings_in_all;
    std::printf(
        "no switch point was reached %s: the headers in tests/simulation/hooked do not match this library\n",
        at_hot == 0 ? "at the hot lock" : "in driver calls");
  }
  bool const failed = findings_in_all != 0;
  double const seconds = std::chrono::duration<double>(clock::now() - start).count();
  tally all;
  std::uint64_t watched[3] = {};
  std::uint64_t asks_at_once = 0;
  std::printf("%-10s %9s %9s %11s %11s %11s %11s %9s  %s\n", "profile", "programs", "schedules", "pool calls",
              "allocations", "frees", "kernels", "refusals", "watched by");
  for (std::size_t p = 0; p < profile_count; ++p) {
    tally const& t = by_profile[p];
    auto const w = static_cast<std::size_t>(profiles[p].watched);
    all.add(t);
    if (profiles[p].at_once != 0) asks_at_once += t.asks;
    watched[w] += t.operations();
    if (t.programs == 0) continue;
    std::printf("%-10s %9" PRIu64 " %9" PRIu64 " %11" PRIu64 " %11" PRIu64 " %11" PRIu64 " %11" PRIu64
                " %9" PRIu64 "  %s\n",
                profiles[p].name, t.programs, t.schedules, t.operations(), t.allocations, t.deallocations,
                t.kernels, t.refusals, watch_names[w]);
  }
  std::printf("the pools made streams wait %" PRIu64 " times and the host %" PRIu64
              " times, remapped pages %" PRIu64 " times, extended %" PRIu64
              " blocks, and searched again %" PRIu64 " times after the driver had refused\n",
              all.device_waits, all.host_waits, all.remaps, all.extended, all.retries);
  std::printf("%" PRIu64 " times a pool asked the others on its device, and was given memory %" PRIu64
              " times, %" PRIu64 " MiB in all; %" PRIu64 " times while threads ran concurrently\n",
              all.asks, all.answered, all.given >> 20, asks_at_once);
  if (all.captures != 0 || all.sleeps != 0 || all.compactions != 0)
    std::printf("%" PRIu64 " captures with a graph_memory, %" PRIu64 " launches of their graphs, %" PRIu64
                " sleeps, %" PRIu64 " compactions\n",
                all.captures, all.replays, all.sleeps, all.compactions);
  if (all.pins != 0 || all.refused_pins != 0)
    std::printf("%" PRIu64 " page pins, %" PRIu64 " lists of segments, %" PRIu64
                " reads of a sleeping pool's pinned bytes; %" PRIu64 " pins refused without pages\n",
                all.pins, all.pin_looks, all.pin_reads, all.refused_pins);
  if (all.stated_runs != 0) {
    // A run of n threads and k switch points that can show a bug of depth 2 finds it with a probability of at
    // least 1 / (n k).
    std::printf("%" PRIu64 " runs of several threads, %" PRIu64 " switch points (%" PRIu64
                " after driver calls, %" PRIu64 " after the hot lock was released), %" PRIu64 " switches\n",
                all.runs, all.switch_points, all.driver_points, all.hot_points, all.switches);
    auto const stated = static_cast<double>(all.stated_runs);
    std::printf("%" PRIu64 " of them with one preemption, of n = %.1f threads (at most %" PRIu64
                ") and k = %.0f switch points"
                " (at most %" PRIu64
                "): a bug of depth 2 that each run can show is missed with a probability of at most 1e%.0f,"
                " one that a run in %.0f can show is found with 99 %%\n",
                all.stated_runs, static_cast<double>(all.stated_threads) / stated, all.most_threads,
                static_cast<double>(all.stated_points) / stated, all.most_points,
                std::floor(-all.log_missed / -2.302585), std::floor(all.chance / 4.60517));
  }
  std::printf("%s: %" PRIu64 " pool operations in %" PRIu64 " programs on %" PRIu64 " threads, %" PRIu64
              " schedules, seeds %" PRIu64 "..%" PRIu64 ", %.1f s\n",
              failed ? "FOUND SOMETHING" : "nothing found", all.operations(), all.programs, all.threads,
              all.schedules, a.first, last, seconds);
  std::printf(
      "evidence: simulation%s%s verdict=%s findings=%" PRIu64 " operations=%" PRIu64 " allocations=%" PRIu64
      " frees=%" PRIu64 " programs=%" PRIu64 " schedules=%" PRIu64 " kernels=%" PRIu64
      " model_checked=%" PRIu64 " order_checked=%" PRIu64 " contents_checked=%" PRIu64 " pins=%" PRIu64
      " pins_refused=%" PRIu64 " asks=%" PRIu64 " asks_at_once=%" PRIu64 " asks_answered=%" PRIu64
      " bytes_given=%" PRIu64 " preemptive_runs=%" PRIu64 " switch_points=%" PRIu64 " depth2_runs=%" PRIu64
      " depth2_threads=%.2f depth2_points=%.1f depth2_one_in=%.0f first_seed=%" PRIu64 " last_seed=%" PRIu64
      " steps=%zu jobs=%u seconds=%.1f commit=%s\n",
      without_pages ? "_without_pages" : "", without_memory_pools ? "_without_memory_pools" : "",
      failed ? "fail" : "pass", findings_in_all, all.operations(), all.allocations, all.deallocations,
      all.programs, all.schedules, all.kernels, all.operations(), watched[1] + watched[2], watched[2],
      all.pins, all.refused_pins, all.asks, asks_at_once, all.answered, all.given, all.runs,
      all.switch_points, all.stated_runs,
      all.stated_runs == 0 ? 0
                           : static_cast<double>(all.stated_threads) / static_cast<double>(all.stated_runs),
      all.stated_runs == 0 ? 0
                           : static_cast<double>(all.stated_points) / static_cast<double>(all.stated_runs),
      std::floor(all.chance / 4.60517), a.first, last, a.steps, a.jobs, seconds, commit());
  if (!a.record.empty()) {
    std::FILE* const out = std::fopen(a.record.c_str(), "a");
    char const* const kind = a.only != nullptr ? a.only->name : a.several ? "several" : "all";
    bool written = out != nullptr;
    if (written)
      written = std::fprintf(out,
                             "seeds %" PRIu64 "..%" PRIu64 " steps %zu profile %s calls %" PRIu64
                             " programs %" PRIu64 " pins %" PRIu64 " asks %" PRIu64 " findings %" PRIu64
                             " seconds %.1f jobs %u commit %s\n",
                             a.first, last, a.steps, kind, all.operations(), all.programs, all.pins, all.asks,
                             findings_in_all, seconds, a.jobs, commit()) > 0;
    if (out != nullptr && std::fclose(out) != 0) written = false;
    if (!written) {
      std::printf("cannot write %s\n", a.record.c_str());
      return 1;
    }
  }
  return failed ? 1 : 0;
}
