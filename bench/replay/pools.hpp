// SPDX-License-Identifier: Apache-2.0
#pragma once
// The pools that this program was built with. Each list is a translation unit of its own, so that what needs
// nvcc or a library is compiled only where they are. Above it: main. Below it: run, peers.

#include <string_view>
#include <vector>

#include "replay/run.hpp"

namespace tarn::bench {

/// One pool that can be named on the command line.
struct pool_entry {
  std::string_view name;
  std::string_view about;
  place_of_memory where;
  figures (*run)(trace const&, setup, unsigned passes, progress&);
};

template <peer P>
[[nodiscard]] constexpr pool_entry entry_of() noexcept {
  return {P::name, P::about, P::where, &run<P>};
}

[[nodiscard]] std::vector<pool_entry> host_pools();
[[nodiscard]] std::vector<pool_entry> simulated_pools();
[[nodiscard]] std::vector<pool_entry> cuda_pools();   ///< empty where built without CUDA
[[nodiscard]] std::vector<pool_entry> torch_pools();  ///< empty where built without libtorch

/// The CUDA device's name and memory, or why there is none.
struct cuda_device {
  bool found = false;
  std::string text;
};
[[nodiscard]] cuda_device find_cuda_device();

}  // namespace tarn::bench
