// SPDX-License-Identifier: Apache-2.0
#pragma once
// pooled: the options of a pool, which compose it with a source (policy/pooled.hpp). The defaults suit all recorded traces.

#include <cstddef>

namespace tarn {

/// Whether free physical handles may be remapped next to each other at a second address.
enum class remapping {
  when_tight,  ///< yes, before reserved memory exceeds the live peak (needs a page source)
  off          ///< no: every handle stays where it was first mapped
};

template <class Upstream>
class pooled_layer;

/// A caching, stream-ordered pool over pages or blocks; see pool/pool.hpp. The defaults suit all recorded traces.
struct pooled {
  /// Whether free handles may be remapped next to each other at a second address. With `off`, a second pass over the same work
  /// makes no driver call, at the cost of more reserved memory.
  remapping remap = remapping::when_tight;
  /// How far reserved memory may exceed the peak of live bytes, in thousandths, before free handles are remapped.
  unsigned slack_per_mille = 9;
  /// Largest physical handle to create, bytes, a multiple of 2 MiB; 0 derives it from the live peak, see
  /// pool/growth/growth.hpp. Smaller ones waste less and cost more driver calls: bench/results/frontier.txt.
  std::size_t largest_handle = 0;

  template <class Upstream>
  using layer = pooled_layer<Upstream>;
};

}  // namespace tarn
