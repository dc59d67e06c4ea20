// SPDX-License-Identifier: Apache-2.0
#pragma once
// Devices without virtual memory management (many virtual GPUs): whether a page source has pages there, and
// the errors of what needs them.

#include "tarn/core/error.hpp"
#include "tarn/core/layers.hpp"
#include "tarn/core/source_location.hpp"

namespace TARN_NAMESPACE::detail {

/// Whether the device of a source has pages: the answer of the lowest layer that defines has_pages(), true if
/// none does.
template <class Source>
[[nodiscard]] constexpr bool has_pages(Source const& source) noexcept {
  if constexpr (reachable<Source const, has_pages_call>) {
    return nearest(source, has_pages_call{});
  } else {
    return true;
  }
}

/// The error of a call that needs pages. @param call  what was called, and why it is refused; static storage
[[nodiscard]] constexpr status without_pages(char const* call) noexcept {
  return unsupported_call(call);
}

/// Throws cuda_error of kind `unsupported` if the device has no pages.
template <class Source>
void require_pages(Source const& source, char const* call) {
  if (!has_pages(source)) [[unlikely]]
    throw cuda_error(without_pages(call), source.driver().device().value, source_location{});
}

inline constexpr char const* page_call_refused =
    "a call of pages (no virtual memory management on this device; use cuda_malloc, or a pool over the "
    "pages)";
inline constexpr char const* no_pages_nor_blocks =
    "page_granularity (no virtual memory management on this device; use cuda_malloc | pooled)";
inline constexpr char const* layer_keeps_blocks =
    "pooled (no virtual memory management on this device, and a layer below the pool passes no plain blocks "
    "on; remove that "
    "layer, or add allocate_plain and deallocate_plain to it)";
inline constexpr char const* sharing_refused =
    "accessible_from (no virtual memory management on this device; remove it: copies do not need it)";
inline constexpr char const* sleep_refused =
    "sleep (no virtual memory management on this device: the pool could not keep its addresses; use "
    "empty_cache)";

inline constexpr char const* segments_refused =
    "segments_of or page_pin (the pool's memory is cudaMalloc blocks, since the device has no virtual memory "
    "management or a memory "
    "tool is attached: there are no handles to list)";

}  // namespace TARN_NAMESPACE::detail
