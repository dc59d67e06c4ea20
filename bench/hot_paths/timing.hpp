// SPDX-License-Identifier: Apache-2.0
#pragma once
// Timing of batches and of single operations.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <vector>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#include "hot_paths/row.hpp"

namespace tarn::bench {

/// Prevents the compiler from removing an unused value.
inline void keep(void* value) noexcept {
  asm volatile("" : : "r"(value) : "memory");
}

/// The time limit for filling a window.
class deadline {
 public:
  explicit deadline(double seconds)
      : end_(clock::now() +
             std::chrono::duration_cast<clock::duration>(std::chrono::duration<double>(seconds))) {}
  [[nodiscard]] bool over() const { return clock::now() > end_; }

 private:
  using clock = std::chrono::steady_clock;
  clock::time_point end_;
};

/// Thrown if a pool cannot do a work: it refuses a block, or allocates them too slowly.
class cannot : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

[[nodiscard]] inline double middle(std::vector<double> values) {
  auto const at = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), at, values.end());
  if (values.size() % 2 != 0) return *at;
  return (*at + *std::max_element(values.begin(), at)) / 2;
}

/// Determines how many pairs a batch takes, which also warms the pool, then times batches of that size.
/// @param batch  called as batch(pairs), returns seconds
template <class Batch>
[[nodiscard]] spread time_batches(plan const& p, Batch&& batch) {
  std::uint64_t pairs = 64;
  double seconds = batch(pairs);
  while (seconds < p.batch_seconds / 4 && pairs < 100'000'000) {
    pairs *= 4;
    seconds = batch(pairs);
  }
  double const wanted = static_cast<double>(pairs) * p.batch_seconds / seconds;
  pairs = std::max<std::uint64_t>(16, static_cast<std::uint64_t>(wanted));
  std::vector<double> ns;
  for (unsigned i = 0; i < p.repetitions; ++i) ns.push_back(batch(pairs) * 1e9 / static_cast<double>(pairs));
  return {middle(ns), *std::min_element(ns.begin(), ns.end()), *std::max_element(ns.begin(), ns.end()),
          p.repetitions, pairs};
}

/// Runs `pair` `pairs` times; returns seconds.
template <class Pair>
[[nodiscard]] double time_loop(std::uint64_t pairs, Pair&& pair) {
  auto const start = std::chrono::steady_clock::now();
  for (std::uint64_t i = 0; i < pairs; ++i) pair();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// The finest clock of the machine: the time-stamp counter, fenced against reordering; the steady clock where
/// there is none.
struct tick_clock {
  double ns_per_tick = 1;
  double own_ticks = 0;  ///< between two consecutive readings, median

  [[nodiscard]] static std::uint64_t now() noexcept {
#if defined(__x86_64__)
    _mm_lfence();
    std::uint64_t const ticks = __rdtsc();
    _mm_lfence();
    return ticks;
#else
    return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
  }

  [[nodiscard]] static tick_clock const& calibrated() {
    static tick_clock const one = calibrate();
    return one;
  }

 private:
  static tick_clock calibrate() {
    using clock = std::chrono::steady_clock;
    tick_clock c;
    std::vector<double> own;
    for (int i = 0; i < 10001; ++i) {
      std::uint64_t const start = now();
      own.push_back(static_cast<double>(now() - start));
    }
    c.own_ticks = middle(own);
    auto const start = clock::now();
    std::uint64_t const first = now();
    while (clock::now() - start < std::chrono::milliseconds(20)) {
    }
    std::uint64_t const ticks = now() - first;
    c.ns_per_tick =
        std::chrono::duration<double, std::nano>(clock::now() - start).count() / static_cast<double>(ticks);
    return c;
  }
};

/// Records durations of one kind of operation: batches of samples, each sorted for its quantiles.
class tail_recorder {
 public:
  explicit tail_recorder(std::size_t samples) : ticks_(samples) {}
  void at(std::size_t sample, std::uint64_t ticks) noexcept { ticks_[sample] = ticks; }

  void end_batch() {
    std::sort(ticks_.begin(), ticks_.end());
    p50_.push_back(quantile(0.50));
    p99_.push_back(quantile(0.99));
    p999_.push_back(quantile(0.999));
    longest_ = std::max(longest_, quantile(1));
  }
  [[nodiscard]] tail result() const { return {middle(p50_), middle(p99_), middle(p999_), longest_}; }

 private:
  [[nodiscard]] double quantile(double q) const {
    auto const at = static_cast<std::size_t>(std::ceil(q * static_cast<double>(ticks_.size()))) - 1;
    tick_clock const& clock = tick_clock::calibrated();
    return std::max(0.0, static_cast<double>(ticks_[at]) - clock.own_ticks) * clock.ns_per_tick;
  }
  std::vector<std::uint64_t> ticks_;
  std::vector<double> p50_, p99_, p999_;
  double longest_ = 0;
};

}  // namespace tarn::bench
