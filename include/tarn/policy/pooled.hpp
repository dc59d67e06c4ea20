// SPDX-License-Identifier: Apache-2.0
#pragma once
// pooled: the policy that puts a caching pool on a source. `pooled | limited` bounds live bytes, `limited |
// pooled` bounds reserved bytes. Its options are in pool/options.hpp.

#include <concepts>
#include <utility>

#include "tarn/policy/compose.hpp"
#include "tarn/pool/options.hpp"
#include "tarn/pool/pool.hpp"

namespace TARN_NAMESPACE {

/// The layer of `pooled`: a pool over `Upstream`.
template <class Upstream>
class pooled_layer : public pool<Upstream> {
 public:
  pooled_layer()
    requires std::default_initializable<Upstream>
      : pooled_layer(Upstream{}) {}
  explicit pooled_layer(Upstream upstream, pooled const& options = {})
      : pool<Upstream>(std::move(upstream), options) {}
};

}  // namespace TARN_NAMESPACE
