// SPDX-License-Identifier: Apache-2.0
#pragma once
// record_use() on its way through a policy that hands out other pointers than it gets, or touches freed blocks.

#include <cstddef>

#include "tarn/core/shared.hpp"

namespace tarn::detail {

/// The call, for whichever layer takes it.
struct record_use_call {
  void* p;
  std::size_t bytes;
  stream_ref stream;
  template <class Layer>
  auto operator()(Layer& layer) const -> decltype(layer.record_use(p, bytes, stream)) {
    return layer.record_use(p, bytes, stream);
  }
};

/// A pool is somewhere below.
template <class Upstream>
concept takes_uses = reachable<Upstream, record_use_call>;

}  // namespace tarn::detail
