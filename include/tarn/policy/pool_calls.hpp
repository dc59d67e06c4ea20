// SPDX-License-Identifier: Apache-2.0
#pragma once
// Calls of the pool that a policy makes or passes on: the bytes that a request occupies, the uses of a block on other streams,
// and sleep.

#include <cstddef>

#include "tarn/core/graph_owner.hpp"
#include "tarn/core/shared_resource.hpp"
#include "tarn/core/sleeping.hpp"

namespace tarn::detail {

/// Returns the bytes that a request occupies: what the nearest pool below rounds it to, otherwise the request itself.
template <class Upstream>
[[nodiscard]] std::size_t block_bytes_of(Upstream& upstream, std::size_t bytes,
                                         std::size_t alignment) noexcept {
  auto const ask = [&](auto& layer) -> decltype(layer.block_bytes(bytes, alignment)) {
    return layer.block_bytes(bytes, alignment);
  };
  if constexpr (reachable<Upstream, decltype(ask)>) {
    return nearest(upstream, ask);
  } else {
    return bytes;
  }
}

/// The bytes of a request that count against a limit. Zero bytes need no memory.
template <class Upstream>
[[nodiscard]] std::size_t counted_bytes(Upstream& upstream, std::size_t bytes,
                                        std::size_t alignment) noexcept {
  if (bytes == 0 || bytes > max_request_bytes) return bytes;
  return block_bytes_of(upstream, bytes, alignment);
}

/// Returns whether a pool below sleeps: then its memory must not be touched.
template <class Upstream>
[[nodiscard]] bool sleeps(Upstream& upstream) noexcept {
  if constexpr (reachable<Upstream, routed_calls::is_asleep>) {
    return nearest(upstream, [](auto& layer) -> decltype(layer.is_asleep()) { return layer.is_asleep(); });
  } else {
    return false;
  }
}
/// sleep() of the nearest layer, for a policy that must know what happens to contents.
template <class Upstream>
std::size_t put_to_sleep(Upstream& upstream, contents where) {
  return nearest(upstream, [&](auto& layer) -> decltype(layer.sleep(where)) { return layer.sleep(where); });
}

/// record_stream() of the nearest layer that has it, for a policy that returns other pointers than its upstream or that touches
/// freed blocks.
struct record_stream_call {
  void* p;
  std::size_t bytes;
  stream_ref stream;
  template <class Layer>
  auto operator()(Layer& layer) const -> decltype(layer.record_stream(p, bytes, stream)) {
    return layer.record_stream(p, bytes, stream);
  }
};

/// Whether the layer itself takes requests for the owner of a graph's memory: a policy that does not would be passed by.
template <class Resource>
concept allocates_for_owners =
    requires(Resource& memory, graph_owner& owner, stream_ref stream, std::size_t bytes) {
      layer_of(memory).allocate_for(owner, stream, bytes, bytes);
    };

/// Whether there is a pool somewhere below.
template <class Upstream>
concept records_streams = reachable<Upstream, record_stream_call>;

}  // namespace tarn::detail
