// SPDX-License-Identifier: Apache-2.0
#pragma once
// room_in(): how much a resource could hand out now, and what bounds that.

#include <concepts>
#include <cstddef>
#include <type_traits>

#include "tarn/core/error.hpp"
#include "tarn/core/extremes.hpp"
#include "tarn/core/shared.hpp"
#include "tarn/driver/no_driver.hpp"
#include "tarn/pool/pool_state.hpp"

namespace tarn {

/// What a resource could hand out at one moment. Bytes; fields that are not known stay memory_report::unknown.
struct memory_room {
  std::size_t bytes = 0;                             ///< could be handed out
  char const* bounded_by = "the device";             ///< what gives out first, static storage
  std::size_t limit = memory_report::unknown;        ///< where that is a limit
  std::size_t live = memory_report::unknown;         ///< handed out, as the nearest layer that knows says
  std::size_t cached = memory_report::unknown;       ///< held by the nearest pool, not handed out
  std::size_t device_free = memory_report::unknown;  ///< as the driver says
};

namespace detail {

template <class Layer>
concept bounds_bytes = requires(Layer& layer) {
  { layer.limit() } -> std::convertible_to<std::size_t>;
  { layer.used() } -> std::convertible_to<std::size_t>;
};
template <class Layer>
concept caches_bytes = stands_on_another<Layer> && !routes_calls<Layer> && requires(Layer & layer) {
  { layer.state() } -> std::same_as<pool_state>;
};

/// True where somebody knows: a limit, or the driver of a source of device memory or of plain host memory. What is left of
/// pinned and managed memory no driver tells.
template <class Layer>
constexpr bool tells_room() noexcept {
  if constexpr (bounds_bytes<Layer>) {
    return true;
  } else if constexpr (stands_on_another<Layer>) {
    return tells_room<std::remove_reference_t<decltype(layer_of(std::declval<Layer&>().upstream()))>>();
  } else {
    return !has_property<Layer, host_accessible> || std::same_as<typename Layer::driver_type, no_driver>;
  }
}

template <class Layer>
[[nodiscard]] memory_room room_of(Layer& layer) {
  constexpr std::size_t everything = ~std::size_t{0};
  memory_room room{everything, "nothing"};
  if constexpr (!stands_on_another<Layer>) {
    if constexpr (tells_room<Layer>()) {
      std::size_t total = 0;
      status const s = layer.driver().memory_info(room.bytes, total);
      if (!s.ok()) throw cuda_error(s, layer.driver().device().value);
      bool const of_host = std::same_as<typename Layer::driver_type, no_driver>;
      room.bounded_by = of_host ? "the host" : "the device";
      room.device_free = room.bytes;
    }
  } else {
    room = room_of(layer_of(layer.upstream()));
  }
  if constexpr (caches_bytes<Layer>) {
    pool_state const s = layer.state();
    // Over pages free pieces are put together. Over blocks they are not: of them one piece is sure.
    bool const puts_together = page_source<typename Layer::upstream_type>;
    std::size_t const reusable = puts_together ? s.cached : s.largest_free_range;
    room.bytes += smaller_of(reusable, everything - room.bytes);
    room.cached = s.cached;
    room.live = s.live;
  }
  if constexpr (bounds_bytes<Layer>) {
    std::size_t const limit = layer.limit();
    std::size_t const used = layer.used();
    std::size_t const left = limit - smaller_of(limit, used);
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

/// How much `memory` could hand out now: from the source up, what the driver says is free; bounded by a `limited` layer
/// over pages; plus what a pool has cached (over pages all of it, over blocks the largest free range, since blocks are not
/// put together); bounded by each `limited` layer over that. What a `fallback_to` or `retry_on_oom` could add is not
/// counted, nor what recorded uses hold back. A moment's figure: other threads and processes go on.
/// Takes the pool's locks for a moment and asks the driver once (5 us). Never waits for a stream. Safe from any thread.
/// @throws cuda_error  the driver did not tell
template <class Resource>
[[nodiscard]] memory_room room_in(Resource const& memory) {
  using layer = std::remove_reference_t<decltype(detail::layer_of(std::declval<Resource&>()))>;
  static_assert(
      detail::tells_room<layer>(),
      "tarn: nobody knows how much of this memory is free (no driver tells it of pinned or managed memory); "
      "add: | tarn::limited{bytes}, or give a number of bytes");
  Resource handle = memory;
  return detail::room_of(detail::layer_of(handle));
}

}  // namespace tarn
