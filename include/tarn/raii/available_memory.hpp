// SPDX-License-Identifier: Apache-2.0
#pragma once
// available_memory(): how much memory a resource could allocate now, and what limits it.

#include <cstddef>
#include <type_traits>

#include "tarn/core/error.hpp"
#include "tarn/core/layers.hpp"
#include "tarn/core/shared_resource.hpp"
#include "tarn/pool/growth/memory_left.hpp"

namespace tarn {

/// How much memory a resource could allocate at one moment, in bytes. Unknown fields stay memory_report::unknown.
struct memory_availability {
  std::size_t bytes = 0;                             ///< bytes that could be allocated
  char const* bounded_by = "the device";             ///< the tightest limit; static storage
  std::size_t limit = memory_report::unknown;        ///< the limit, if bounded by one
  std::size_t live = memory_report::unknown;         ///< allocated, as the nearest layer that knows reports
  std::size_t cached = memory_report::unknown;       ///< held by the nearest pool but not allocated
  std::size_t device_free = memory_report::unknown;  ///< as the driver reports
  bool is_asleep = false;  ///< the nearest pool sleeps: nothing is available before tarn::wake(memory)
};

namespace detail {

/// Whether free memory is known: from a limit, or from the driver of the source.
template <class Layer>
constexpr bool knows_available() noexcept {
  if constexpr (has_limit<Layer>) {
    return true;
  } else if constexpr (stands_on_another<Layer>) {
    return knows_available<std::remove_reference_t<decltype(layer_of(std::declval<Layer&>().upstream()))>>();
  } else {
    return reports_free<Layer>;
  }
}

}  // namespace detail

/// Returns how much `memory` could allocate now. Computed from the source upwards: free memory as the driver reports it;
/// bounded by a `limited` layer over pages; plus what a pool has cached (over pages all of it; over blocks, and where the device has
/// no pages, the largest free range, since blocks are not combined); bounded by each `limited` layer above that. 0 while the
/// pool sleeps. Memory that a
/// `fallback_to` or `retry_on_oom` could add is not counted, nor is memory held back by recorded uses. A snapshot: other threads and
/// processes continue. Takes the pool's locks briefly and queries the driver once (5 us). Never waits for a stream. Thread-safe.
/// @throws cuda_error  the driver did not report free memory
template <class Resource>
[[nodiscard]] memory_availability available_memory(Resource const& memory,
                                                   source_location where = source_location::current()) {
  using layer = std::remove_reference_t<decltype(detail::layer_of(std::declval<Resource&>()))>;
  static_assert(detail::knows_available<layer>(),
                "tarn: the free amount of this memory is unknown: no driver reports it for pinned or managed "
                "memory; add | tarn::limited{bytes}, or pass a number of bytes");
  Resource handle = memory;
  detail::memory_bound const left = detail::memory_left(detail::layer_of(handle));
  if (!left.query.ok()) throw cuda_error(left.query, memory.device().value, where);
  return {left.bytes, left.by, left.limit, left.live, left.cached, left.device_free, left.is_asleep};
}

}  // namespace tarn
