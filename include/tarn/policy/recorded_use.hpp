// SPDX-License-Identifier: Apache-2.0
#pragma once
// Forwards record_stream() through a policy that returns other pointers than its upstream, or that touches freed blocks.

#include <cstddef>

#include "tarn/core/shared_resource.hpp"

namespace tarn::detail {

/// The call, for the nearest layer that accepts it.
struct record_stream_call {
  void* p;
  std::size_t bytes;
  stream_ref stream;
  template <class Layer>
  auto operator()(Layer& layer) const -> decltype(layer.record_stream(p, bytes, stream)) {
    return layer.record_stream(p, bytes, stream);
  }
};

/// Whether there is a pool somewhere below.
template <class Upstream>
concept records_streams = reachable<Upstream, record_stream_call>;

}  // namespace tarn::detail
