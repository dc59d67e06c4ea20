// SPDX-License-Identifier: Apache-2.0
#pragma once
// available_memory(): how much memory a resource could allocate now, and what limits it.

#include <cstddef>
#include <type_traits>

#include "tarn/core/bytes.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/layers.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/pool_call.hpp"
#include "tarn/core/shared_resource.hpp"
#include "tarn/pool/pages/memory_left.hpp"

namespace TARN_NAMESPACE {

/// How much memory a resource could allocate at one moment, in bytes. Unknown fields stay
/// memory_report::unknown.
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

template <class Resource>
constexpr void require_available() noexcept {
  static_assert(knows_available<layer_behind<Resource>>(),
                "tarn: the free amount of this memory is unknown: no driver reports it for pinned or managed "
                "memory; add | tarn::limited{bytes}, or pass a number of bytes");
}

}  // namespace detail

/// Returns how much `memory` could allocate now. Computed from the source upwards: free memory as the driver
/// reports it; bounded by a `limited` layer over pages; plus what a pool has cached (over pages all of it;
/// over blocks, and where the device has no pages, the largest free range, since blocks are not combined);
/// bounded by each `limited` layer above that. 0 while the pool sleeps. Memory that a `fallback_to` or
/// `retry_on_oom` could add is not counted, nor is memory deferred for recorded uses, nor what only captures
/// of a graph_memory can allocate. A snapshot: other
/// threads and processes continue. Takes the pool's locks briefly and queries the driver once (5 us). Never
/// waits for a stream. Thread-safe.
/// @throws cuda_error  the driver did not report free memory; of kind `unsupported`: a basic_any_resource has
/// a pool of pinned or managed memory without a limit
template <class Resource>
[[nodiscard]] memory_availability available_memory(Resource const& memory,
                                                   source_location where = source_location::current()) {
  detail::require_available<Resource>();
  Resource handle = memory;
  detail::memory_bound const left = detail::memory_left(detail::layer_of(handle));
  if (!left.query.ok()) throw cuda_error(left.query, memory.device().value, where);
  if (left.bytes == detail::unknown_left)
    throw cuda_error(detail::unsupported_call(detail::unknown_amount), memory.device().value, where);
  return {left.bytes, left.by, left.limit, left.live, left.cached, left.device_free, left.is_asleep};
}

/// Returns the size of the largest block that `memory` would serve now, in bytes; 0 if the pool sleeps. Over
/// pages that is what can be put together of free and new memory; over blocks one that is free, or new.
/// Within the limits above and below the pool, and less what `fenced` and `checked` add. Above 1 MiB it is
/// served, and so is each smaller block, on a device where each free byte can be allocated, if no other
/// thread or process allocates. Rarely a larger one is served as well: a view that was made before may show
/// more free memory, and over blocks below a limit 512 bytes are kept for an alignment. Below 1 MiB, and
/// while work of a captured stream uses freed memory, allocate() may serve more or fewer bytes. Memory that
/// other pools cache, that a pool below a pool would give back, or that a `fallback_to` or `retry_on_oom`
/// could add, is not counted.
///
/// Counts what is free once the work on it is done: allocate() may wait for it. Returns the blocks in thread
/// caches to the pool, holds its growth lock for O(free ranges + handles), and queries the driver once (5
/// us). Waits for no stream. Thread-safe.
/// @throws cuda_error, std::bad_alloc  the driver or the host refused; as available_memory()
template <class Resource>
[[nodiscard]] std::size_t largest_available_block(Resource const& memory,
                                                  source_location where = source_location::current()) {
  detail::require_available<Resource>();
  Resource handle = memory;
  return detail::called_from(where, [&] { return detail::largest_request(detail::layer_of(handle)); });
}

}  // namespace TARN_NAMESPACE
