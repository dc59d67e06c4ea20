// SPDX-License-Identifier: Apache-2.0
#pragma once
// The allocate+free pair that instructions.sh counts.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "hot_paths/timing.hpp"
#include "peers/peer.hpp"

namespace tarn::bench {

struct counts {
  std::size_t bytes = 0;
  std::uint64_t pairs = 0;
};

template <peer P>
bool run_if(std::string_view name, counts n) {
  if (name != P::name) return false;
  P pool{setup{}};
  for (std::uint64_t i = 0; i < n.pairs; ++i) {
    void* const block = pool.allocate(0, n.bytes);
    keep(block);
    pool.deallocate(0, block, n.bytes);
  }
  return true;
}

/// In a separate translation unit: one more caller of the same functions would change the compiler's inlining decisions
/// elsewhere.
bool run_if_watched(std::string_view name, counts n);

}  // namespace tarn::bench
