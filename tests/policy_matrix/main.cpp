// SPDX-License-Identifier: Apache-2.0
// The policy matrix as a program: runs every promise on every stack, then random programs, until there is a
// finding.
//
//   tarn_policy_matrix [--only TEXT] [--seeds FIRST..LAST] [--steps N] [--threads] [--list]
//
// It prints in the format of tests/simulation: "FOUND with seed ...", the finding, and a machine-readable
// line. Exit status 0: no finding, 1: a finding, 2: wrong arguments.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "all_stacks.hpp"
#include "checks.hpp"

namespace {

char current[512] = "";

/// Reports a hang or a crash as a finding of the current step.
void ended_by(int signal) {
  char text[700];
  int const n = std::snprintf(text, sizeof text, "FOUND with seed 0, profile promises, at step 0:\n%s: %s\n",
                              signal == SIGALRM ? "hangs" : "crashed", current);
  (void)!write(1, text, static_cast<std::size_t>(n));
  _exit(1);
}

bool say(policy_matrix::report const& out, std::string const& seed) {
  if (out.found().empty()) return false;
  std::printf("FOUND with seed %s, profile %s, at step 0:\n", seed.c_str(),
              seed == "0" ? "promises" : "random");
  for (std::size_t i = 0; i < out.found().size() && i < 12; ++i) std::printf("%s\n", out.found()[i].c_str());
  if (out.found().size() > 12) std::printf("and %zu more\n", out.found().size() - 12);
  std::fflush(stdout);
  return true;
}

}  // namespace

int main(int count, char** arguments) {
  using namespace policy_matrix;
  std::string only;
  unsigned long first = 1;
  unsigned long last = 2;
  unsigned steps = 60;
  bool threads = false;
  bool list_only = false;
  bool all_of_it = false;
  for (int i = 1; i < count; ++i) {
    std::string_view const a = arguments[i];
    bool const more = i + 1 < count;
    if (a == "--only" && more) {
      only = arguments[++i];
    } else if (a == "--seeds" && more) {
      if (std::sscanf(arguments[++i], "%lu..%lu", &first, &last) != 2) return 2;
    } else if (a == "--steps" && more) {
      steps = static_cast<unsigned>(std::strtoul(arguments[++i], nullptr, 10));
    } else if (a == "--threads") {
      threads = true;
    } else if (a == "--all") {
      all_of_it = true;
    } else if (a == "--list") {
      list_only = true;
    } else if ((a == "--jobs" || a == "--patience") && more) {
      ++i;
    } else if (a != "--no-shrink") {
      std::fprintf(stderr, "%s: unknown argument %s\n", arguments[0], arguments[i]);
      return 2;
    }
  }
  for (int const s : {SIGALRM, SIGSEGV, SIGABRT, SIGBUS, SIGFPE}) (void)std::signal(s, ended_by);
  auto const start = std::chrono::steady_clock::now();
  auto const stacks = all_stacks();
  unsigned long checks = 0;
  unsigned long found = 0;
  auto const attempt = [&](std::string const& what, std::string const& seed, auto const& run) {
    if (found != 0 && !all_of_it) return;
    std::snprintf(current, sizeof current, "%s", what.c_str());
    (void)alarm(20);
    report out;
    run(out);
    (void)alarm(0);
    ++checks;
    if (say(out, seed)) ++found;
  };
  for (stack_under_test const& stack : stacks) {
    if (stack.name.find(only) == std::string::npos) continue;
    if (list_only) {
      std::printf("%s\n", stack.name.c_str());
      continue;
    }
    for (unsigned mode = 0; mode < device_modes; ++mode) {
      if (!has_mode(stack, mode)) continue;
      for (promise const& p : promises()) {
        attempt(stack.name + ", " + std::string(p.name), "0", [&](report& out) { run(p, stack, mode, out); });
      }
      if (threads && mode == 0) {
        promise const& p = promise_of_ending_threads();
        attempt(stack.name + ", " + std::string(p.name), "0", [&](report& out) { run(p, stack, mode, out); });
      }
    }
  }
  for (unsigned long seed = first; seed <= last && !list_only; ++seed) {
    for (stack_under_test const& stack : stacks) {
      if (stack.name.find(only) == std::string::npos) continue;
      attempt(stack.name + ", random program", std::to_string(seed), [&](report& out) {
        run_random(stack, static_cast<unsigned>(seed % device_modes), seed, steps, out);
      });
    }
  }
  if (list_only) return 0;
  auto const seconds =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - start).count();
  std::printf("evidence: policy_matrix verdict=%s findings=%lu stacks=%zu operations=%lu seconds=%lld\n",
              found == 0 ? "pass" : "fail", found, stacks.size(), checks, static_cast<long long>(seconds));
  return found == 0 ? 0 : 1;
}
