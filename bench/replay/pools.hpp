// SPDX-License-Identifier: Apache-2.0
#pragma once
// The pools that this program was built with. Each list is in its own translation unit, so that those that
// need nvcc or a library are compiled only where these are available.

#include <string_view>
#include <vector>

#include "replay/find_waste.hpp"
#include "replay/report.hpp"
#include "replay/run.hpp"
#include "replay/survive.hpp"

namespace tarn::bench {

/// One pool that can be selected on the command line.
struct pool_entry {
  std::string_view name;
  std::string_view about;
  place_of_memory where;
  figures (*run)(trace const&, setup, unsigned passes, progress&, pass_gate const&);
  survival (*survive)(trace const&, double factor, progress&);
  snapshot (*report)(trace const&, setup, progress&);  ///< null: this pool cannot be inspected
  waste (*find_waste)(trace const&, setup, unsigned passes, progress&);  ///< null: likewise
};

template <peer P>
[[nodiscard]] constexpr pool_entry entry_of() noexcept {
  pool_entry entry{P::name, P::about, P::where, &run<P>, &survive<P>, nullptr, nullptr};
  if constexpr (inspected_peer<P>) {
    entry.report = &report<P>;
    entry.find_waste = &find_waste<P>;
  }
  return entry;
}

[[nodiscard]] std::vector<pool_entry> simulated_pools();
[[nodiscard]] std::vector<pool_entry> host_pools();
[[nodiscard]] std::vector<pool_entry> cuda_pools();  ///< built if the CUDA toolkit is available

/// Returns every pool of this program, tarn first. Each program defines it.
[[nodiscard]] std::vector<pool_entry> all_pools();

}  // namespace tarn::bench
