// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reduces a failing program: takes steps out as long as it still fails (Zeller and Hildebrandt, "Simplifying and Isolating
// Failure-Inducing Input", TSE 2002). Each attempt runs in a process of its own.
// Above it: main. Below it: guard.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "guard.hpp"
#include "program.hpp"

namespace simulation {

struct shrunk {
  program smallest;
  verdict last;  ///< what the smallest one says
  unsigned attempts = 0;
};

class shrinker {
 public:
  explicit shrinker(std::chrono::seconds patience) : until_(guarded::clock::now() + patience) {}

  /// @param last_step  where it failed: what comes after is not looked at, if it fails without that too
  [[nodiscard]] shrunk reduce(program whole, std::uint64_t last_step) {
    shrunk out{std::move(whole), {}, 0};
    if (!fails(out.smallest, out)) return out;
    for (std::size_t i = 0; i < out.smallest.numbers.size(); ++i) {
      if (out.smallest.numbers[i] != last_step) continue;
      (void)keeps_failing_without(i + 1, out.smallest.steps.size(), out);
      break;
    }
    std::size_t part = out.smallest.steps.size() / 2;
    while (part != 0 && in_time()) {
      bool removed = false;
      for (std::size_t end = out.smallest.steps.size(); end > 0 && in_time();) {
        std::size_t const begin = end > part ? end - part : 0;
        removed = keeps_failing_without(begin, end, out) || removed;
        end = begin;
      }
      if (part == 1 && !removed) break;
      if (part > 1) part /= 2;
    }
    return out;
  }

 private:
  [[nodiscard]] bool in_time() const { return guarded::clock::now() < until_; }

  [[nodiscard]] bool fails(program const& p, shrunk& out) {
    ++out.attempts;
    guarded process(std::chrono::seconds(10));
    process.start([&](progress& at) { return run(p, at); });
    verdict v;
    while (!process.attend(std::chrono::milliseconds(200), v)) {
    }
    if (v.failed) out.last = v;
    return v.failed;
  }
  [[nodiscard]] bool keeps_failing_without(std::size_t begin, std::size_t end, shrunk& out) {
    if (begin >= end) return false;
    program less = out.smallest;
    auto const cut = [&](auto& list) {
      list.erase(list.begin() + static_cast<std::ptrdiff_t>(begin),
                 list.begin() + static_cast<std::ptrdiff_t>(end));
    };
    cut(less.steps);
    cut(less.numbers);
    if (!fails(less, out)) return false;
    out.smallest = std::move(less);
    return true;
  }

  guarded::clock::time_point until_;
};

}  // namespace simulation
