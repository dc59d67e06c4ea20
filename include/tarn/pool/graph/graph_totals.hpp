// SPDX-License-Identifier: Apache-2.0
#pragma once
// The memory that pools hold for captured graphs, summed up for the statistics.

#include <concepts>
#include <cstddef>

#include "tarn/core/graph_owner.hpp"
#include "tarn/core/layers.hpp"
#include "tarn/core/pool_call.hpp"
#include "tarn/pool/pages/growth_lock.hpp"

namespace TARN_NAMESPACE {
namespace detail {

/// Bytes but for `owners`.
struct graph_totals {
  std::size_t owners = 0;  ///< graph memories, and ended ones whose memory has not gone back yet
  std::size_t reserved = 0;
  std::size_t allocated = 0;
  std::size_t kept = 0;  ///< blocks that captures freed though they are not their owner's
};

}  // namespace detail
namespace pool_call {

/// Adds those of each pool to `sum`.
struct add_graphs {
  detail::graph_totals& sum;
  static constexpr auto crosses = crossing::each;
  template <class L>
    requires(requires(L& l, detail::graph_totals& s) { l.add_graphs(s); } ||
             std::invocable<inspect<any_look> const&, L&>)
  void operator()(L& l) const {
    if constexpr (requires { l.add_graphs(sum); }) {
      l.add_graphs(sum);
    } else {
      auto const look = [&](detail::growth_lock const& growing, auto&, auto&, auto& deferred, auto& graphs) {
        sum.kept += deferred.bytes_for_graphs();
        graphs.for_each_state(growing, [&](graph_state const& s) {
          ++sum.owners;
          sum.reserved += s.reserved;
          sum.allocated += s.allocated;
        });
      };
      inspect{look}(l);
    }
  }
};

}  // namespace pool_call
}  // namespace TARN_NAMESPACE
