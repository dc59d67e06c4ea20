// SPDX-License-Identifier: Apache-2.0
#pragma once
// available_memory(): how much memory a resource could allocate now, and what limits it.

#include <concepts>
#include <cstddef>
#include <type_traits>

#include "tarn/core/error.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/shared_resource.hpp"
#include "tarn/driver/no_driver.hpp"
#include "tarn/pool/pool_state.hpp"

namespace tarn {

/// How much memory a resource could allocate at one moment, in bytes. Unknown fields stay memory_report::unknown.
struct memory_availability {
  std::size_t bytes = 0;                             ///< bytes that could be allocated
  char const* bounded_by = "the device";             ///< the tightest limit; static storage
  std::size_t limit = memory_report::unknown;        ///< the limit, if bounded by one
  std::size_t live = memory_report::unknown;         ///< allocated, as the nearest layer that knows reports
  std::size_t cached = memory_report::unknown;       ///< held by the nearest pool but not allocated
  std::size_t device_free = memory_report::unknown;  ///< as the driver reports
};

namespace detail {

template <class Layer>
concept bounds_bytes = requires(Layer& layer) {
  { layer.limit() } -> std::convertible_to<std::size_t>;
  { layer.used() } -> std::convertible_to<std::size_t>;
};
template <class Layer>
concept caches_bytes = stands_on_another<Layer> && !routes_calls<Layer> && requires(Layer& layer) {
  { layer.state() } -> std::same_as<pool_state>;
};

/// Whether free memory is known: from a limit, or from the driver of a source of device memory or of plain host memory. No
/// driver reports how much pinned or managed memory is left.
template <class Layer>
constexpr bool knows_available() noexcept {
  if constexpr (bounds_bytes<Layer>) {
    return true;
  } else if constexpr (stands_on_another<Layer>) {
    return knows_available<std::remove_reference_t<decltype(layer_of(std::declval<Layer&>().upstream()))>>();
  } else {
    return !has_property<Layer, host_accessible> || std::same_as<typename Layer::driver_type, no_driver>;
  }
}

template <class Layer>
[[nodiscard]] memory_availability availability_of(Layer& layer, source_location where) {
  constexpr std::size_t everything = ~std::size_t{0};
  memory_availability room{everything, "nothing"};
  if constexpr (!stands_on_another<Layer>) {
    if constexpr (knows_available<Layer>()) {
      std::size_t total = 0;
      status const s = layer.driver().memory_info(room.bytes, total);
      if (!s.ok()) throw cuda_error(s, layer.driver().device().value, where);
      bool const of_host = std::same_as<typename Layer::driver_type, no_driver>;
      room.bounded_by = of_host ? "the host" : "the device";
      room.device_free = room.bytes;
    }
  } else {
    room = availability_of(layer_of(layer.upstream()), where);
  }
  if constexpr (caches_bytes<Layer>) {
    pool_state const s = layer.state();
    // Over pages, free pieces can be combined. Over blocks they cannot, so only the largest piece is certain.
    bool puts_together = page_source<typename Layer::upstream_type>;
    if constexpr (requires { layer.uses_pages(); }) puts_together = layer.uses_pages();
    std::size_t const reusable = puts_together ? s.cached : s.largest_free_range;
    room.bytes += min_of(reusable, everything - room.bytes);
    room.cached = s.cached;
    room.live = s.live;
  }
  if constexpr (requires { layer.headroom_bytes(); }) {
    room.bytes -= min_of(room.bytes, layer.headroom_bytes());
    room.bounded_by = "headroom";
  }
  if constexpr (bounds_bytes<Layer>) {
    std::size_t const limit = layer.limit();
    std::size_t const used = layer.used();
    std::size_t const left = limit - min_of(limit, used);
    if (left < room.bytes) {
      room.bytes = left;
      room.bounded_by = "limited";
      room.limit = limit;
      room.live = used;
    }
  }
  return room;
}

}  // namespace detail

/// Returns how much `memory` could allocate now. Computed from the source upwards: free memory as the driver reports it;
/// bounded by a `limited` layer over pages; plus what a pool has cached (over pages all of it; over blocks, and where the device has
/// no pages, the largest free range, since blocks are not combined); bounded by each `limited` layer above that. Memory that a
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
  return detail::availability_of(detail::layer_of(handle), where);
}

}  // namespace tarn
