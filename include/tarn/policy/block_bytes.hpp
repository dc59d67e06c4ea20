// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bytes that a request occupies: what the nearest pool below rounds it to, otherwise the request itself.

#include <cstddef>

#include "tarn/core/shared_resource.hpp"

namespace tarn::detail {

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

}  // namespace tarn::detail
