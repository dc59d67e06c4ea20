// SPDX-License-Identifier: Apache-2.0
#pragma once
// inspected_peer: a pool that can be asked what it holds. Only tarn's pools can.

#include <concepts>
#include <cstddef>

#include "peers/peer.hpp"
#include "tarn/report/take_snapshot.hpp"

namespace tarn::bench {

/// A pool that snapshots can be taken of.
template <class P>
concept inspected_peer = peer<P> && requires(P const& seen, std::size_t bytes) {
  take_snapshot(seen.memory());
  { seen.state() } -> std::same_as<pool_state>;
  { seen.block_bytes(bytes) } -> std::same_as<std::size_t>;
};

}  // namespace tarn::bench
