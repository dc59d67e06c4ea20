// SPDX-License-Identifier: Apache-2.0
#pragma once
// A random program: a list of steps, drawn only from a seed and a profile.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "operation.hpp"
#include "profile.hpp"
#include "random_numbers.hpp"

namespace simulation {

/// A thread is preempted in the step with this number, after this many switch points from its start (the
/// first is 1).
struct preemption {
  std::uint32_t step = 0;
  std::uint32_t point = 0;
};

struct program {
  std::uint64_t seed = 0;
  profile const* kind = nullptr;
  std::vector<operation> steps;
  std::vector<std::uint32_t> numbers;  /// < of each step in the original program
  /// The preemptions, instead of those drawn from the seed, once a failing program is reduced.
  std::vector<preemption> preemptions;
  bool pinned = false;
};

/// True if a program that begins with many views frees them later.
[[nodiscard]] inline bool frees_old_views(std::uint64_t seed) noexcept {
  return random_numbers(seed ^ 0x7669657773).percent(60);
}

/// The priority with which a thread begins a window. It depends on nothing else, so that it stays the same
/// when steps are removed.
[[nodiscard]] inline int first_priority(program const& p, std::uint32_t window, std::size_t thread) noexcept {
  random_numbers order(p.seed * 31 + window * std::uint64_t{64} + thread);
  return static_cast<int>(order.below(std::uint64_t{1} << 30));
}

namespace detail {

/// Relevant sizes: zero, tiny, around every bound of the pool, whole pages, odd, too large.
inline std::uint64_t draw_bytes(random_numbers& random, profile const& kind, std::size_t capacity,
                                std::uint64_t seed) {
  std::uint64_t const what = random.below(1000);
  if (kind.fragments && what < 850) {
    unsigned const several = frees_old_views(seed) ? 75 : 40;  // that no old view serves
    return 2_MiB * (random.percent(several) ? random.between(3, 12) : random.between(1, 2));
  }
  if (what < 5) return 0;
  bool const large = kind.largest >= 16_MiB && what < 900;
  if (large) return random.percent(25) ? 2_MiB * random.between(1, 12) : random.between(1_MiB, kind.largest);
  if (what < 250) return random.between(1, 2_KiB);
  if (what < 450) return random.between(1, 32_KiB);
  if (what < 650) return random.between(1, 1_MiB);
  if (what < 700) {  // around a power of two
    std::uint64_t const power = std::uint64_t{1} << random.between(8, 22);
    return power + random.below(3) - 1;
  }
  if (what < 760) return 2_MiB * random.between(1, kind.largest / 2_MiB + 1);
  if (what < 995) {  // many small, few large, up to the maximum
    std::uint64_t const bits = random.between(12, static_cast<unsigned>(std::bit_width(kind.largest)));
    std::uint64_t const bytes = random.below(std::uint64_t{1} << bits) + 1;
    return bytes < kind.largest ? bytes : kind.largest;
  }
  if (what < 999) return random.between(capacity / 8, capacity + capacity / 8);
  return random.percent(50) ? std::uint64_t{1} << 50 : ~std::uint64_t{0} - random.below(4096);
}

inline std::uint32_t draw_alignment(random_numbers& random, unsigned share) {
  if (!random.percent(share)) return 256;
  if (random.percent(25)) return 2_MiB;
  return std::uint32_t{1} << random.below(22);  // 1 .. 2 MiB
}

}  // namespace detail

/// Draws a program of `steps` steps for a machine whose devices have `capacity` bytes.
inline program draw(std::uint64_t seed, profile const& kind, std::size_t steps, std::size_t capacity) {
  program drawn;
  drawn.seed = seed;
  drawn.kind = &kind;
  random_numbers random(seed ^ 0x70726F6772616D);
  unsigned total = 0;
  for (weight const& w : kind.weights) total += w.share;
  // Programs differ in their preferences: few sizes repeatedly, or any size; one thread, or all.
  std::uint64_t usual[8];
  for (auto& size : usual) size = detail::draw_bytes(random, kind, capacity, seed);
  unsigned const repeats = static_cast<unsigned>(random.below(3)) * 40;
  // The gaps before and after an aligned block are seldom affect other blocks.
  unsigned const aligned = random.percent(25) ? 50 : 6;
  auto const threads = random.between(1, kind.threads);
  auto const streams = random.between(2, kind.streams + 2);
  auto const slots = random.between(4, kind.slots);
  std::uint8_t thread = 0;
  std::uint32_t window = 0;
  std::uint64_t window_steps = 0, window_threads = 0;
  bool aimed = false;
  drawn.steps.reserve(steps);
  while (drawn.steps.size() < steps) {
    operation o;
    auto left = static_cast<unsigned>(random.below(total));
    for (weight const& w : kind.weights) {
      if (left < w.share) {
        o.what = w.what;
        break;
      }
      left -= w.share;
    }
    if (kind.at_once == 0) {
      auto const before = thread;
      if (random.percent(kind.changes)) thread = static_cast<std::uint8_t>(random.below(threads));
      if (thread != before) ++window;
    } else {
      if (window_steps == 0) {
        ++window;
        bool const several = random.percent(kind.at_once) && !drawn.steps.empty();
        window_threads = several ? random.between(2, random.percent(70) ? 2 : 3) : 1;
        window_steps = several ? window_threads + random.below(6) : random.between(1, 12);
        thread = static_cast<std::uint8_t>(random.below(kind.threads));
        aimed = several && kind.fragments && frees_old_views(seed) && random.percent(60);
        if (drawn.steps.empty() && kind.fragments) o.what = act::fragment;
      }
      // Each thread of the window has at least one step.
      o.thread = static_cast<std::uint8_t>((thread + window_steps % window_threads) % kind.threads);
      --window_steps;
      // One thread creates views, which drops old ones, while the others free blocks in old views.
      if (aimed) {
        o.what = o.thread == thread ? act::allocate : act::deallocate;
      }
    }
    if (kind.at_once == 0) o.thread = thread;
    o.window = window;
    o.pool = static_cast<std::uint8_t>(random.below(kind.pools));
    o.stream = static_cast<std::uint8_t>(random.below(streams));
    o.other = static_cast<std::uint8_t>(random.below(streams));
    o.how = static_cast<std::uint8_t>(random.below(256));
    if (aimed) o.how &= 0xF8;
    o.slot = static_cast<std::uint16_t>(random.below(slots));
    o.second = static_cast<std::uint16_t>(random.below(slots));
    o.alignment = detail::draw_alignment(random, aligned);
    o.bytes =
        random.percent(repeats) ? usual[random.below(8)] : detail::draw_bytes(random, kind, capacity, seed);
    o.duration = random.percent(kind.long_work) ? std::uint64_t{1'000'000'000'000} : random.below(200'000);
    drawn.steps.push_back(o);
  }
  drawn.numbers.resize(steps);
  for (std::size_t i = 0; i < steps; ++i) drawn.numbers[i] = static_cast<std::uint32_t>(i);
  return drawn;
}

}  // namespace simulation
