// SPDX-License-Identifier: Apache-2.0
#pragma once
// Runs one program to its end and says what was found.
// Above it: guarded, main. Below it: user, crew, program.

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "crew.hpp"
#include "program.hpp"
#include "tally.hpp"
#include "tarn/core/misuse.hpp"
#include "user.hpp"
#include "world.hpp"

namespace simulation {

inline constexpr std::uint64_t after_the_last_step = ~std::uint64_t{0};

/// Where a program stands; in memory that survives a crash of the process that runs it.
struct progress {
  std::atomic<std::uint64_t> seed{0};
  std::atomic<std::uint64_t> step{0};   ///< its number in the program as drawn
  std::atomic<std::uint64_t> beats{0};  ///< goes on counting while anything moves
  tally counted[profile_count];         ///< by profile
};

namespace detail {
inline findings* told = nullptr;
/// The library has noticed a misuse: in a correct program that is its own mistake.
inline void note_misuse(tarn::misuse const& what) {
  if (told != nullptr) told->push_back(text("misuse reported: %s", what.what()));
}
}  // namespace detail

/// Runs a program; stops at the first step after which something is wrong.
inline findings run(program const& p, progress& at) {
  findings found;
  setting const chosen = draw_setting(p.seed, *p.kind);
  tally& counted = at.counted[p.kind - profiles];
  ++counted.programs;
  if (chosen.machine.seed != 0) ++counted.schedules;
  detail::told = &found;
  auto const previous = tarn::set_misuse_handler(&detail::note_misuse);
  {
    world here(chosen, found);
    crew threads;
    std::unique_ptr<user> someone;
    threads.run(0, [&] { someone = std::make_unique<user>(here, *p.kind, counted); });
    auto const end_thread = [&](std::size_t t) {
      if (threads.number_of(t) != 0) threads.run(t, [&] { someone->leave(threads.number_of(t)); });
      threads.end(t);
    };
    std::size_t i = 0;
    while (i < p.steps.size() && found.empty()) {
      std::size_t const thread = p.steps[i].thread;
      if (p.steps[i].what == act::end_thread) {
        end_thread(thread);
        ++i;
        continue;
      }
      std::size_t end = i + 1;
      while (end < p.steps.size() && p.steps[end].thread == thread && p.steps[end].what != act::end_thread)
        ++end;
      // Its number is known once it runs.
      threads.run(thread, [&] {
        unsigned const number = threads.number_of(thread);
        for (; i < end && found.empty(); ++i) {
          at.step.store(p.numbers[i], std::memory_order_relaxed);
          at.beats.fetch_add(1, std::memory_order_relaxed);
          someone->step(p.steps[i], number);
          ++counted.steps;
          someone->check(p.numbers[i] % chosen.check_state_every == 0);
        }
      });
    }
    if (found.empty()) {
      at.step.store(after_the_last_step, std::memory_order_relaxed);
      // Some threads end before the pools do, others outlive them.
      for (std::size_t t = 1; t < threads.size(); ++t) {
        if (t % 2 == 1) {
          end_thread(t);
        } else if (threads.number_of(t) != 0) {
          threads.run(t, [&] { someone->leave(threads.number_of(t)); });
        }
      }
      threads.run(0, [&] {
        someone->close(threads.number_of(0));
        someone.reset();
      });
      counted.threads += threads.started();
      for (std::size_t t = 0; t < threads.size(); ++t) threads.end(t);
      if (found.empty()) {
        (void)here.machine().driver().synchronize_device();
        here.check_order();
        auto const l = here.machine().leaks();
        if (l.total() != 0)
          found.push_back(
              text("left over: %zu ranges, %zu maps, %zu handles, %zu blocks, %zu streams, %zu events",
                   l.ranges, l.maps, l.handles, l.blocks, l.streams, l.events));
        for (int d = 0; d < chosen.machine.devices; ++d) {
          if (here.machine().usage(d).used != 0)
            found.push_back(text("device %d still holds %zu bytes", d, here.machine().usage(d).used));
        }
      }
    } else {
      // What went wrong is known; everything may be broken now, and is left as it is.
      someone.release();
    }
  }
  tarn::set_misuse_handler(previous);
  detail::told = nullptr;
  return found;
}

}  // namespace simulation
