// SPDX-License-Identifier: Apache-2.0
#pragma once
// How much memory a pool can still take from the layers below it: the device's free memory, less headroom,
// within each limit.

#include <concepts>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "tarn/core/error.hpp"
#include "tarn/core/layers.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/pool_call.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/driver/no_driver.hpp"
#include "tarn/pool/pages/growth_lock.hpp"
#include "tarn/pool/pool_state.hpp"

namespace TARN_NAMESPACE::detail {

inline constexpr std::size_t unknown_left = ~std::size_t{0};
inline constexpr char const* unknown_amount =
    "available_memory (no driver reports the free amount of pinned or managed memory; add | "
    "tarn::limited{bytes})";

template <class Layer>
concept has_headroom = requires(Layer& layer) {
  { layer.headroom_bytes() } -> std::convertible_to<std::size_t>;
};
template <class Layer>
concept has_limit = requires(Layer& layer) {
  { layer.limit() } -> std::convertible_to<std::size_t>;
  { layer.used() } -> std::convertible_to<std::size_t>;
};
template <class Layer>
concept caches_bytes = stands_on_another<Layer> && !routes_calls<Layer> && requires(Layer& layer) {
  { layer.state() } -> std::same_as<pool_state>;
};

/// Whether the driver reports how much of a source's memory is free: it does for memory of the device and for
/// plain host memory, but not for pinned and managed memory.
template <class Source>
inline constexpr bool reports_free =
    !has_property<Source, host_accessible> || std::same_as<typename Source::driver_type, no_driver>;

/// What a stack of layers can still provide, and what bounds that. In bytes.
struct memory_bound {
  std::size_t bytes = unknown_left;
  char const* by = "nothing";                         ///< the tightest bound; static storage
  std::size_t limit = memory_report::unknown;         ///< if a limit is the tightest
  std::size_t limit_used = memory_report::unknown;    ///< likewise
  std::size_t headroom = memory_report::unknown;      ///< if a headroom is the tightest
  std::size_t live = memory_report::unknown;          ///< as the nearest layer that counts it reports
  std::size_t cached = memory_report::unknown;        ///< held by the nearest pool, but not allocated
  std::size_t device_free = memory_report::unknown;   ///< as the driver reports
  std::size_t device_total = memory_report::unknown;  ///< likewise
  status query;                                       ///< of the driver's report
  bool is_asleep = false;                             ///< the nearest pool sleeps

  void leave_headroom(std::size_t more) noexcept {
    if (device_free == memory_report::unknown || more == 0) return;
    std::size_t const rest = device_free - min_of(device_free, more);
    if (rest >= bytes) return;
    bytes = rest;
    by = "headroom";
    headroom = more;
    limit = limit_used = memory_report::unknown;
  }
  void keep_within(std::size_t most, std::size_t used) noexcept {
    std::size_t const rest = most - min_of(most, used);
    if (rest >= bytes) return;
    bytes = rest;
    by = "limited";
    limit = most;
    limit_used = live = used;
    headroom = memory_report::unknown;
  }
  /// A pool that sleeps provides nothing.
  void put_to_sleep() noexcept {
    bytes = 0;
    by = "the sleeping pool";
    is_asleep = true;
    limit = limit_used = headroom = memory_report::unknown;
  }
  /// @param reusable  of what the pool has cached
  void add_pool(pool_state const& s, std::size_t reusable) noexcept {
    bytes += min_of(reusable, unknown_left - bytes);
    cached = s.cached;
    live = s.live;
  }
};

/// Returns what `layer` and those below it can still provide: the device's free memory, less headroom, within
/// each limit, plus what a pool on the way caches; nothing while that pool sleeps. Of a layer that routes
/// calls, only upstream() counts. One driver call, 5 to 100 us.
template <class Layer>
[[nodiscard]] memory_bound memory_left(Layer& layer) {
  memory_bound left;
  for_each_layer(layer, [&]<class L>(L& l) {
    if constexpr (requires { l.memory_left(); }) {
      left = l.memory_left();  // of a stack whose layers are not known here
    } else if constexpr (!stands_on_another<L> && reports_free<L>) {
      std::size_t free = 0;
      std::size_t total = 0;
      left.query = l.driver().memory_info(free, total);
      if (left.query.ok()) {
        left.bytes = left.device_free = free;
        left.device_total = total;
        left.by = std::same_as<typename L::driver_type, no_driver> ? "the host" : "the device";
      }
    }
    if constexpr (caches_bytes<L>) {
      pool_state const s = l.state();
      // Over pages, free pieces can be combined. Over blocks they cannot, so only the largest piece is
      // certain.
      bool puts_together = page_source<typename L::upstream_type>;
      if constexpr (requires { l.uses_pages(); }) puts_together = l.uses_pages();
      std::size_t for_captures = 0;
      if constexpr (requires { l.free_for_captures(); }) for_captures = l.free_for_captures();
      left.add_pool(s, puts_together ? s.cached - min_of(s.cached, for_captures) : s.largest_free_range);
      if constexpr (requires { l.is_asleep(); }) {
        if (l.is_asleep()) left.put_to_sleep();
      }
    }
    if constexpr (has_headroom<L>) left.leave_headroom(l.headroom_bytes());
    if constexpr (has_limit<L>) left.keep_within(l.limit(), l.used());
  });
  return left;
}

/// Whether free memory is known: from a limit, or from the driver of the source. An any_resource learns it
/// when it is asked.
template <class Layer>
constexpr bool knows_available() noexcept {
  if constexpr (has_limit<Layer> || requires(Layer& layer) { layer.memory_left(); }) {
    return true;
  } else if constexpr (stands_on_another<Layer>) {
    return knows_available<layer_below<Layer>>();
  } else {
    return reports_free<Layer>;
  }
}

/// The largest request whose block has at most `most` bytes. O(log most)
template <class Layer>
[[nodiscard]] std::size_t largest_within(Layer& layer, std::size_t most) {
  std::size_t fits = 0;
  for (std::size_t above = min_of(most, max_request_bytes) + 1; above - fits > 1;) {
    std::size_t const middle = fits + (above - fits) / 2;
    (block_bytes_of(layer, middle, default_alignment) <= most ? fits : above) = middle;
  }
  return fits;
}

/// The largest request that `layer` would serve now. Of a layer that routes calls, only upstream() counts.
/// @throws cuda_error
template <class Layer>
[[nodiscard]] std::size_t largest_request(Layer& layer) {
  if constexpr (requires { layer.largest_request(); }) {
    return layer.largest_request();
  } else if constexpr (requires { layer.largest_available_block(); }) {
    return largest_within(layer, layer.largest_available_block());
  } else if constexpr (!stands_on_another<Layer>) {
    memory_bound const left = memory_left(layer);
    if (!left.query.ok()) throw cuda_error(left.query, layer.driver().device().value, source_location{});
    return min_of(left.bytes, max_request_bytes);
  } else {
    std::size_t most = largest_request(layer_of(layer.upstream()));
    if constexpr (requires { layer.fence_bytes(); }) most -= min_of(most, layer.fence_bytes());
    if constexpr (has_limit<Layer>)
      most = min_of(most, largest_within(layer, layer.limit() - min_of(layer.limit(), layer.used())));
    return most;
  }
}

/// Calls f(layer) for each layer whose limit bounds what `layer` provides: those below a layer that routes
/// bound a part of it.
template <class Layer, class F>
void for_each_limit(Layer& layer, F const& f) {
  if constexpr (stands_on_another<Layer> && !routes_calls<Layer>)
    for_each_limit(layer_of(layer.upstream()), f);
  if constexpr (has_limit<Layer>) f(layer);
}
/// Returns what the limits of `layer` and those below it leave, whatever the device has; unknown_left if
/// there is none. Makes no driver call.
template <class Layer>
[[nodiscard]] memory_bound limits_left(Layer& layer) noexcept {
  memory_bound left;
  for_each_limit(layer, [&](auto& l) { left.keep_within(l.limit(), l.used()); });
  return left;
}
/// Returns the bytes that count against a limit of `limit` bytes in `layer` or one below it.
template <class Layer>
[[nodiscard]] std::size_t used_of_limit(Layer& layer, std::size_t limit) noexcept {
  std::size_t used = 0;
  for_each_limit(layer, [&](auto& l) {
    if (l.limit() == limit) used = max_of(used, std::size_t{l.used()});
  });
  return used;
}

/// Whether a limit bounds what `Layer` provides.
template <class Layer>
[[nodiscard]] constexpr bool is_limited() noexcept {
  if constexpr (has_limit<Layer>) {
    return true;
  } else if constexpr (stands_on_another<Layer> && !routes_calls<Layer>) {
    return is_limited<layer_below<Layer>>();
  } else {
    return false;
  }
}

/// Whether the layers below a pool only bound what the device has. Another layer could get more where these
/// refuse, as retry_on_oom does.
template <class Layer>
[[nodiscard]] constexpr bool only_bounds() noexcept {
  return !any_layer<Layer>([]<class L>(std::type_identity<L>) {
    return stands_on_another<L> && !has_headroom<L> && !has_limit<L>;
  });
}

/// An estimate of memory_left() that is renewed after each sixteenth of it, so that a growth rarely queries
/// the driver. Others may take memory meanwhile: then it is too high.
class known_left {
 public:
  [[nodiscard]] bool is_old(std::size_t reserved) const noexcept {
    return !is_known_ || (reserved > seen_at_ && reserved - seen_at_ > left_ / 16);
  }
  void renew(growth_lock const&, memory_bound const& found, std::size_t reserved) noexcept {
    left_ = found.bytes;
    if (found.device_total != memory_report::unknown) device_total_ = found.device_total;
    seen_at_ = reserved;
    is_known_ = true;
  }
  /// The next growth queries the driver.
  void forget(growth_lock const&) noexcept { is_known_ = false; }
  [[nodiscard]] std::size_t bytes(std::size_t reserved) const noexcept {
    if (!is_known_ || left_ == unknown_left) return unknown_left;
    return reserved > seen_at_ ? left_ - min_of(left_, reserved - seen_at_) : left_ + (seen_at_ - reserved);
  }
  /// All memory of the device, 0 if it is not known.
  [[nodiscard]] std::size_t device_total() const noexcept { return device_total_; }

 private:
  std::size_t left_ = 0;
  std::size_t seen_at_ = 0;  ///< reserved bytes when it was queried
  std::size_t device_total_ = 0;
  bool is_known_ = false;
};

}  // namespace TARN_NAMESPACE::detail
