// SPDX-License-Identifier: Apache-2.0
#pragma once
// pooled: the policy that puts a caching pool on a source. `pooled | limited` bounds live bytes, `limited | pooled` bounds
// reserved bytes.

#include <concepts>
#include <cstddef>
#include <utility>

#include "tarn/policy/compose.hpp"
#include "tarn/pool/pool.hpp"

namespace tarn {

template <class Upstream>
class pooled_layer;

/// A caching, stream-ordered pool over pages or blocks; see pool/pool.hpp. The defaults suit all recorded workloads.
struct pooled {
  /// Whether free handles may be remapped next to each other at a second address. With `off`, a second pass over the same work
  /// makes no driver call, at the cost of more reserved memory.
  remapping remap = remapping::when_tight;
  /// How far reserved memory may exceed the live peak, in thousandths, before free handles are remapped.
  unsigned slack_per_mille = pool_options{}.slack_per_mille;
  /// Largest physical handle to create, bytes, a multiple of 2 MiB; 0 derives it from the live peak. Smaller ones waste less
  /// and cost more driver calls: bench/results/frontier.txt.
  std::size_t largest_handle = 0;

  template <class Upstream>
  using layer = pooled_layer<Upstream>;
};

template <class Upstream>
class pooled_layer : public pool<Upstream> {
 public:
  pooled_layer()
    requires std::default_initializable<Upstream>
      : pooled_layer(Upstream{}) {}
  explicit pooled_layer(Upstream upstream, pooled const& options = {})
      : pool<Upstream>(std::move(upstream),
                       pool_options{options.remap, options.slack_per_mille, options.largest_handle}) {}
};

}  // namespace tarn
