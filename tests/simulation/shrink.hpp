// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reduces a failing program: removes steps as long as it still fails (Zeller and Hildebrandt, "Simplifying
// and Isolating Failure-Inducing Input", TSE 2002). Each attempt runs in its own process.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "guard.hpp"
#include "program.hpp"

namespace simulation {

struct shrunk {
  program smallest;
  verdict last;  /// < the message of the smallest one
  unsigned attempts = 0;
  std::vector<preemption> taken;  ///< in the last attempt that failed
  bool where = false;             /// < the next attempt records the source line of each one
  struct location {
    switch_point at;
    std::vector<void*> frames;
  };
  std::vector<location> locations;
};

class shrinker {
 public:
  explicit shrinker(std::chrono::seconds patience) : until_(guarded::clock::now() + patience) {}

  /// @param last_step  where it failed: later steps are removed if it fails without them
  [[nodiscard]] shrunk reduce(program whole, std::uint64_t last_step) {
    shrunk out;
    out.smallest = std::move(whole);
    if (!fails(out.smallest, out)) return out;
    // The preemption point of each thread is fixed from now on, also while steps are removed.
    program pinned = out.smallest;
    pinned.pinned = true;
    pinned.preemptions = out.taken;
    if (fails(pinned, out)) out.smallest = std::move(pinned);
    for (std::size_t i = 0; i < out.smallest.numbers.size(); ++i) {
      if (out.smallest.numbers[i] != last_step) continue;
      std::size_t end = i + 1;  // other threads' steps of the same window may be needed
      while (end < out.smallest.steps.size() &&
             out.smallest.steps[end].window == out.smallest.steps[i].window)
        ++end;
      (void)keeps_failing_without(end, out.smallest.steps.size(), out);
      break;
    }
    reduce_steps(out);
    reduce_preemptions(out);
    reduce_steps(out);
    out.where = true;
    (void)fails(out.smallest, out);
    return out;
  }

 private:
  void reduce_steps(shrunk& out) {
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
  }
  /// Removes unneeded preemptions: all but the last few, all those that did not take place, and each single
  /// one.
  void reduce_preemptions(shrunk& out) {
    auto const try_with = [&](std::vector<preemption> fewer) {
      program less = out.smallest;
      less.preemptions = std::move(fewer);
      if (!fails(less, out)) return false;
      out.smallest = std::move(less);
      return true;
    };
    (void)try_with(out.taken);
    std::vector<preemption> const before = out.smallest.preemptions;
    for (std::size_t const kept : {0u, 1u, 2u, 4u, 8u}) {
      if (kept < before.size() && try_with({before.end() - static_cast<std::ptrdiff_t>(kept), before.end()}))
        break;
    }
    for (std::size_t part = out.smallest.preemptions.size(); part != 0 && in_time(); part /= 2) {
      for (std::size_t end = out.smallest.preemptions.size(); end > 0 && in_time();) {
        std::size_t const begin = end > part ? end - part : 0;
        auto fewer = out.smallest.preemptions;
        fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(begin),
                    fewer.begin() + static_cast<std::ptrdiff_t>(end));
        (void)try_with(std::move(fewer));
        end = begin;
      }
    }
  }

  [[nodiscard]] bool in_time() const { return guarded::clock::now() < until_; }

  [[nodiscard]] bool fails(program const& p, shrunk& out) {
    ++out.attempts;
    guarded process(std::chrono::seconds(10));
    preemption_log& log = process.where().preempted;
    log.with_frames = out.where;
    process.start([&](progress& at) { return run(p, at); });
    verdict v;
    while (!process.attend(std::chrono::milliseconds(200), v)) {
    }
    if (!v.failed) return false;
    out.last = v;
    std::size_t const count = log.count.load();
    out.taken.assign(log.taken, log.taken + count);
    for (std::size_t i = 0; out.where && i < count; ++i) {
      void** const frames = log.frames[i];
      out.locations.push_back(
          {static_cast<switch_point>(log.where[i]), {frames, frames + preemption_log::most_frames}});
    }
    return true;
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
