// SPDX-License-Identifier: Apache-2.0
#pragma once
// What was tried: counted while programs run, added up over threads and processes.
// Above it: user, run, guarded. Below it: nothing.

#include <cstdint>

namespace simulation {

struct tally {
  std::uint64_t programs = 0;
  std::uint64_t schedules = 0;  ///< with a seed of their own for what the device does when
  std::uint64_t steps = 0;
  std::uint64_t threads = 0;  ///< started
  std::uint64_t allocations = 0;
  std::uint64_t deallocations = 0;
  std::uint64_t other_calls = 0;  ///< of pools and owners: record_use, trim, state, owns, resize ...
  std::uint64_t refusals = 0;     ///< out_of_memory, told and survived
  std::uint64_t kernels = 0;      ///< copies and fills too
  // How deep the pools were driven, as they count it.
  std::uint64_t device_waits = 0;  ///< a stream was made to wait for another
  std::uint64_t host_waits = 0;    ///< the host had to
  std::uint64_t remaps = 0;        ///< free pages were put together elsewhere
  std::uint64_t retries = 0;       ///< the driver refused, and the cache was searched again

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
    refusals += o.refusals;
    kernels += o.kernels;
    device_waits += o.device_waits;
    host_waits += o.host_waits;
    remaps += o.remaps;
    retries += o.retries;
  }
};

}  // namespace simulation
