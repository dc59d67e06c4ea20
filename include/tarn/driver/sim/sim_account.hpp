// SPDX-License-Identifier: Apache-2.0
#pragma once
// The simulated NVML: a device's memory by process.

#include <cstddef>

#include "tarn/core/min_max.hpp"
#include "tarn/driver/driver.hpp"
#include "tarn/driver/sim/sim_memory.hpp"
#include "tarn/driver/sim/sim_options.hpp"

namespace TARN_NAMESPACE::detail {

/// The parts never exceed the memory taken: options named first are served first.
[[nodiscard]] inline device_account sim_account(sim_options const& options, sim_usage const& usage) noexcept {
  std::size_t left = usage.taken;
  auto const part = [&](std::size_t wanted) {
    std::size_t const got = min_of(wanted, left);
    left -= got;
    return got;
  };
  device_account account;
  account.source = "the simulated NVML";
  std::size_t const context = part(options.context);
  std::size_t const set_aside = part(options.set_aside);
  if (options.placement == sim_placement::discrete) {  // of an integrated GPU NVML says "not supported"
    account.total = usage.capacity;
    account.free = usage.free_bytes();
    account.set_aside = set_aside;
  }
  std::size_t const came_later = usage.taken > options.taken ? usage.taken - options.taken : 0;
  std::size_t const others = part(options.other_processes + came_later);
  if (options.accounting == sim_accounting::hidden) {
    account.gap = "its list does not contain this process: process ids in a container differ from the host's";
    return account;
  }
  account.this_process = context + usage.used;
  account.other_processes = others;
  return account;
}

}  // namespace TARN_NAMESPACE::detail
