// SPDX-License-Identifier: Apache-2.0
#pragma once
// How much memory a pool can still take from the layers below it: the device's free memory, less headroom, within each limit.

#include <cstddef>
#include <type_traits>
#include <utility>

#include "tarn/core/error.hpp"
#include "tarn/core/layers.hpp"
#include "tarn/core/min_max.hpp"

namespace tarn::detail {

inline constexpr std::size_t unknown_left = ~std::size_t{0};

template <class Layer>
concept has_headroom = requires(Layer& layer) { layer.headroom_bytes(); };
template <class Layer>
concept has_limit = requires(Layer& layer) { layer.limit(), layer.used(); };

/// Bytes that `layer` and those below it can still provide; unknown_left if the driver does not report free memory, or a layer
/// has several below it. One driver call, 5 to 100 us; no lock of the pool but the growth lock is held.
/// @param r  receives what bounds them, as the layer that refuses more would report it
template <class Layer>
[[nodiscard]] std::size_t memory_left(Layer& layer, memory_report& r) noexcept {
  std::size_t left = unknown_left;
  if constexpr (!stands_on_another<Layer>) {
    std::size_t free = 0;
    std::size_t total = 0;
    if (layer.driver().memory_info(free, total).ok()) {
      left = r.device_free = free;
      r.device_total = total;
    }
  } else if constexpr (!routes_calls<Layer>) {
    left = memory_left(layer_of(layer.upstream()), r);
  }
  if constexpr (has_headroom<Layer>) {
    std::size_t const bytes = layer.headroom_bytes();
    if (left != unknown_left && bytes != 0) {
      left -= min_of(left, bytes);
      r.refused_by = "headroom";
      r.headroom = bytes;
    }
  }
  if constexpr (has_limit<Layer>) {
    std::size_t const limit = layer.limit();
    std::size_t const used = layer.used();
    if (limit - min_of(limit, used) < left) {
      left = limit - min_of(limit, used);
      r.refused_by = "limited";
      r.headroom = memory_report::unknown;
      r.device_free = r.device_total = memory_report::unknown;
      r.limit = limit;
      r.limit_used = used;
    }
  }
  return left;
}

/// Whether the layers below a pool only bound what the device has. Another layer could get more where these refuse, as
/// retry_on_oom does.
template <class Layer>
[[nodiscard]] constexpr bool only_bounds() noexcept {
  if constexpr (!stands_on_another<Layer>) {
    return true;
  } else if constexpr (has_headroom<Layer> || has_limit<Layer>) {
    return only_bounds<std::remove_reference_t<decltype(layer_of(std::declval<Layer&>().upstream()))>>();
  } else {
    return false;
  }
}

/// An estimate of memory_left() that is renewed after each sixteenth of it, so that a growth rarely queries the driver. Others may
/// take memory meanwhile: then it is too high. Under the growth lock.
class known_left {
 public:
  [[nodiscard]] bool is_old(std::size_t reserved) const noexcept {
    return !is_known_ || (reserved > seen_at_ && reserved - seen_at_ > left_ / 16);
  }
  void renew(std::size_t left, std::size_t reserved) noexcept {
    left_ = left;
    seen_at_ = reserved;
    is_known_ = true;
  }
  /// The next growth queries the driver.
  void forget() noexcept { is_known_ = false; }
  [[nodiscard]] std::size_t bytes(std::size_t reserved) const noexcept {
    if (!is_known_ || left_ == unknown_left) return unknown_left;
    return reserved > seen_at_ ? left_ - min_of(left_, reserved - seen_at_) : left_ + (seen_at_ - reserved);
  }

 private:
  std::size_t left_ = 0;
  std::size_t seen_at_ = 0;  ///< reserved bytes when it was queried
  bool is_known_ = false;
};

}  // namespace tarn::detail
