// SPDX-License-Identifier: Apache-2.0
#pragma once
// Runs one program to its end and returns its findings.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "crew.hpp"
#include "hooked/asked_pools.hpp"
#include "program.hpp"
#include "random_numbers.hpp"
#include "scheduler.hpp"
#include "tally.hpp"
#include "tarn/core/misuse.hpp"
#include "user.hpp"
#include "world.hpp"

namespace simulation {

inline constexpr std::uint64_t after_the_last_step = ~std::uint64_t{0};

/// The state of a running program, in memory that survives a crash of the process that runs it.
struct progress {
  std::atomic<std::uint64_t> seed{0};
  std::atomic<std::uint64_t> step{0};   /// < its number in the original program
  std::atomic<std::uint64_t> beats{0};  /// < increases while the program makes progress
  tally counted[profile_count];         ///< by profile
  preemption_log preempted;
};

namespace detail {
inline findings* current_findings = nullptr;
/// The library has reported a misuse: in a correct program that is a bug in the library.
inline void note_misuse(tarn::misuse const& what) {
  if (current_findings != nullptr) current_findings->push_back(text("misuse reported: %s", what.what()));
}
}  // namespace detail

/// Runs a program; stops after the first step with a finding.
class runner {
 public:
  runner(program const& p, progress& at)
      : program_(p),
        at_(at),
        chosen_(draw_setting(p.seed, *p.kind)),
        counted_(at.counted[p.kind - profiles]),
        schedule_(found_, at.preempted),
        threads_(schedule_),
        random_(p.seed ^ 0x7363686564756C65) {}

  findings run() {
    ++counted_.programs;
    if (chosen_.machine.seed != 0) ++counted_.schedules;
    at_.preempted.count = 0;
    detail::current_findings = &found_;
    auto const previous = tarn::set_misuse_handler(&detail::note_misuse);
    {
      world here(chosen_, found_);
      learn_driver_mutex(here);
      threads_.run(0, [&] { user_ = std::make_unique<user>(here, *program_.kind, counted_); });
      for (std::size_t i = 0; i < program_.steps.size() && found_.empty();) {
        std::size_t end = i;
        bool several = false;
        for (; end < program_.steps.size() && program_.steps[end].window == program_.steps[i].window; ++end)
          several = several || program_.steps[end].thread != program_.steps[i].thread;
        if (several) {
          run_together(i, end);
        } else {
          run_alone(i, end);
        }
        i = end;
      }
      if (found_.empty()) {
        close(here);
      } else {
        // The finding is known. The state may be corrupt, so nothing is destroyed.
        (void)user_.release();
        threads_.abandon();
      }
    }
    counted_.switches += schedule_.switches();
    counted_.asks += asked_pools.asks.exchange(0);
    counted_.answered += asked_pools.answered.exchange(0);
    counted_.given += asked_pools.given.exchange(0);
    auto const* const reached = schedule_.reached();
    for (std::size_t k = 0; k < static_cast<std::size_t>(switch_point::count); ++k)
      counted_.switch_points += reached[k];
    counted_.driver_points += reached[static_cast<std::size_t>(switch_point::mutex_unlock)];
    counted_.hot_points += reached[static_cast<std::size_t>(switch_point::hot_unlock)];
    tarn::set_misuse_handler(previous);
    detail::current_findings = nullptr;
    return std::move(found_);
  }

 private:
  /// A call of the machine takes the machine's mutex.
  void learn_driver_mutex(world const& here) {
    last_mutex_locked = nullptr;
    (void)here.machine().pending();
    schedule_.set_driver_mutex(last_mutex_locked);
  }

  void begin(std::size_t i) {
    at_.step.store(program_.numbers[i], std::memory_order_relaxed);
    at_.beats.fetch_add(1, std::memory_order_relaxed);
  }
  void end_thread(std::size_t t) {
    if (threads_.number_of(t) != 0) threads_.run(t, [&, t] { user_->leave(threads_.number_of(t)); });
    threads_.end(t);
  }

  /// Steps of one thread: no other thread runs meanwhile, and everything is checked after each step.
  void run_alone(std::size_t i, std::size_t end) {
    std::size_t const thread = program_.steps[i].thread;
    while (i < end && found_.empty()) {
      if (program_.steps[i].what == act::end_thread) {
        end_thread(thread);
        ++i;
        continue;
      }
      std::size_t until = i + 1;
      while (until < end && program_.steps[until].what != act::end_thread) ++until;
      // Its number is known once it runs.
      threads_.run(thread, [&] {
        unsigned const number = threads_.number_of(thread);
        for (; i < until && found_.empty(); ++i) {
          begin(i);
          user_->step(program_.steps[i], number);
          ++counted_.steps;
          user_->check(program_.numbers[i] % chosen_.check_state_every == 0);
        }
      });
    }
  }

  /// Steps of several threads that run concurrently; everything is checked after the last one.
  void run_together(std::size_t first, std::size_t end) {
    std::vector<std::size_t> taking_part;
    for (std::size_t i = first; i < end; ++i) {
      std::size_t const t = program_.steps[i].thread;
      if (std::find(taking_part.begin(), taking_part.end(), t) == taking_part.end()) taking_part.push_back(t);
    }
    // The priorities depend only on the seed, the window and the thread, not on the other steps.
    std::vector<task*> tasks;
    for (std::size_t const t : taking_part) {
      bool ends = false;
      for (std::size_t i = first; i < end; ++i)
        ends = ends || (program_.steps[i].thread == t && program_.steps[i].what == act::end_thread);
      tasks.push_back(&threads_.prepare(
          t, first_priority(program_, program_.steps[first].window, t),
          [this, t, first, end] { live(t, first, end); }, ends));
    }
    scheduler::plan how;
    std::uint64_t expected = 0;
    if (program_.pinned) {
      how.pinned = &program_.preemptions;
    } else {
      for (std::size_t i = first; i < end; ++i) expected += expected_points(program_.steps[i]);
      // Most runs have far fewer switch points than the maximum: some draw from a part of it.
      std::uint64_t const among = std::max<std::uint64_t>(expected >> 3 * random_.below(scales), 8);
      for (unsigned k = 1; k < chosen_.depth; ++k) how.changes.push_back(1 + random_.below(among));
      std::sort(how.changes.begin(), how.changes.end());
    }
    if (!threads_.run_together(tasks, how)) return;
    count_run(tasks.size(), schedule_.points(), expected);
    if (!found_.empty()) return;
    std::size_t const last = taking_part.back();
    threads_.run(last, [&] { user_->check(program_.numbers[end - 1] % chosen_.check_state_every == 0); });
  }
  /// The work of thread `t` in this window.
  void live(std::size_t t, std::size_t first, std::size_t end) {
    unsigned const number = threads_.number_of(t);
    task& me = *scheduler::self;
    for (std::size_t i = first; i < end; ++i) {
      operation const& o = program_.steps[i];
      if (o.thread != t) continue;
      begin(i);
      me.step = program_.numbers[i];
      me.points = 0;
      if (o.what == act::end_thread) return user_->leave(number);  // and the thread ends
      user_->step(o, number);
      ++counted_.steps;
      expect_points(o, me.points);
      if (found_.empty()) user_->check_order();
      if (found_.empty()) continue;
      at_.step.store(program_.numbers[i], std::memory_order_relaxed);
      schedule_.stop();
    }
  }

  static constexpr unsigned scales = 3;

  // The number of switch points of a step is estimated from earlier steps of its kind.
  std::uint32_t& seen_points(operation const& o) {
    return seen_[static_cast<std::size_t>(o.what)][o.bytes > 1_MiB ? 1 : 0];
  }
  [[nodiscard]] std::uint32_t expected_points(operation const& o) { return seen_points(o) + 4; }
  void expect_points(operation const& o, std::uint32_t points) {
    std::uint32_t& seen = seen_points(o);
    seen = std::max(points, seen - seen / 8);
  }
  /// A run counts for the stated probability if its change of priority was drawn from at least all its switch
  /// points.
  void count_run(std::size_t n, std::uint64_t points, std::uint64_t expected) {
    ++counted_.runs;
    if (program_.pinned || chosen_.depth != 2 || points > expected) return;
    double const chance = 1 / (scales * static_cast<double>(n) * static_cast<double>(expected));
    ++counted_.stated_runs;
    counted_.stated_threads += n;
    counted_.stated_points += expected;
    counted_.most_threads = std::max<std::uint64_t>(counted_.most_threads, n);
    counted_.most_points = std::max(counted_.most_points, expected);
    counted_.chance += chance;
    counted_.log_missed += std::log1p(-chance);
  }

  void close(world& here) {
    at_.step.store(after_the_last_step, std::memory_order_relaxed);
    // Some threads end before the pools, others outlive them.
    for (std::size_t t = 1; t < threads_.size(); ++t) {
      if (t % 2 == 1) {
        end_thread(t);
      } else if (threads_.number_of(t) != 0) {
        threads_.run(t, [&, t] { user_->leave(threads_.number_of(t)); });
      }
    }
    threads_.run(0, [&] {
      user_->close(threads_.number_of(0));
      user_.reset();
    });
    counted_.threads += threads_.started();
    for (std::size_t t = 0; t < threads_.size(); ++t) threads_.end(t);
    if (!found_.empty()) return;
    (void)here.machine().driver().synchronize_device();
    here.check_order();
    auto const l = here.machine().leaks();
    if (l.total() != 0)
      found_.push_back(
          text("left over: %zu ranges, %zu maps, %zu handles, %zu blocks, %zu streams, %zu events", l.ranges,
               l.maps, l.handles, l.blocks, l.streams, l.events));
    for (int d = 0; d < chosen_.machine.devices; ++d) {
      if (here.machine().usage(d).used != 0)
        found_.push_back(text("device %d still holds %zu bytes", d, here.machine().usage(d).used));
    }
  }

  program const& program_;
  progress& at_;
  findings found_;
  setting const chosen_;
  tally& counted_;
  scheduler schedule_;
  crew threads_;
  std::unique_ptr<user> user_;
  random_numbers random_;
  std::uint32_t seen_[act_count][2] = {};
};

inline findings run(program const& p, progress& at) {
  return runner(p, at).run();
}

}  // namespace simulation
