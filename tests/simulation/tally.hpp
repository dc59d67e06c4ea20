// SPDX-License-Identifier: Apache-2.0
#pragma once
// Counts of the work done: counted while programs run, and summed over threads and processes.

#include <cstdint>

namespace simulation {

struct tally {
  std::uint64_t programs = 0;
  std::uint64_t schedules = 0;  /// < with a separate seed for the device's timing
  std::uint64_t steps = 0;
  std::uint64_t threads = 0;  ///< started
  std::uint64_t allocations = 0;
  std::uint64_t deallocations = 0;
  std::uint64_t other_calls = 0;  /// < of pools and owners: record_stream, trim, state, owns, resize ...
  std::uint64_t extended = 0;     /// < blocks that became longer where they are
  std::uint64_t refusals = 0;     /// < out_of_memory, reported and handled
  std::uint64_t kernels = 0;      /// < including copies and fills
  std::uint64_t captures = 0, replays = 0;  ///< with a graph_memory
  std::uint64_t sleeps = 0, compactions = 0;
  std::uint64_t pins = 0, refused_pins = 0;  ///< page_pins made, and refused by pools without pages
  std::uint64_t pin_looks = 0,
                pin_reads = 0;  ///< calls for segments, and reads of a sleeping pool's pinned bytes
  // Which paths of the pools were reached, by their own counters.
  std::uint64_t device_waits = 0;  /// < a stream waited for another
  std::uint64_t host_waits = 0;    /// < the host waited
  std::uint64_t remaps = 0;        /// < free pages were remapped elsewhere
  std::uint64_t retries = 0;       /// < the driver refused, and the cache was searched again

  std::uint64_t asks = 0;      ///< calls of a pool that was refused to the other pools on its device
  std::uint64_t answered = 0;  ///< of these, the calls that were given memory
  std::uint64_t given = 0;     ///< bytes

  // Windows with preempted threads, at the stated depth.
  std::uint64_t runs = 0;  ///< of several threads
  std::uint64_t stated_runs =
      0;  ///< with one change of priority, drawn from at least all their switch points
  std::uint64_t stated_threads = 0, stated_points = 0;  ///< of these, in all
  std::uint64_t most_threads = 0, most_points = 0;
  double chance = 0;                ///< of these, the sum of 1 / (n k)
  double log_missed = 0;            ///< and of log(1 - 1 / (n k))
  std::uint64_t switch_points = 0;  ///< of all runs
  std::uint64_t driver_points = 0, hot_points = 0;
  std::uint64_t switches = 0;

  /// Calls of pool entry points.
  [[nodiscard]] std::uint64_t operations() const noexcept {
    return allocations + deallocations + other_calls;
  }

  void add(tally const& o) noexcept {
    programs += o.programs;
    schedules += o.schedules;
    steps += o.steps;
    threads += o.threads;
    allocations += o.allocations;
    deallocations += o.deallocations;
    other_calls += o.other_calls;
    extended += o.extended;
    refusals += o.refusals;
    kernels += o.kernels;
    captures += o.captures;
    replays += o.replays;
    sleeps += o.sleeps;
    compactions += o.compactions;
    pins += o.pins;
    refused_pins += o.refused_pins;
    pin_looks += o.pin_looks;
    pin_reads += o.pin_reads;
    device_waits += o.device_waits;
    host_waits += o.host_waits;
    remaps += o.remaps;
    retries += o.retries;
    asks += o.asks;
    answered += o.answered;
    given += o.given;
    runs += o.runs;
    stated_runs += o.stated_runs;
    stated_threads += o.stated_threads;
    stated_points += o.stated_points;
    if (o.most_threads > most_threads) most_threads = o.most_threads;
    if (o.most_points > most_points) most_points = o.most_points;
    chance += o.chance;
    log_missed += o.log_missed;
    switch_points += o.switch_points;
    driver_points += o.driver_points;
    hot_points += o.hot_points;
    switches += o.switches;
  }
};

}  // namespace simulation
