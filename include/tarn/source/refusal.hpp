// SPDX-License-Identifier: Apache-2.0
#pragma once
// Turns a failed driver call of a source into the error that a caller can act on. Also whether a page source
// has pages: devices without virtual memory management (many virtual GPUs) have none, and what needs pages is
// refused there.

#include <concepts>
#include <cstddef>
#include <string_view>

#include "tarn/core/config.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/layers.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/core/source_location.hpp"
#include "tarn/driver/driver.hpp"
#include "tarn/driver/no_driver.hpp"
#include "tarn/driver/stream_life.hpp"

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

/// Host memory of a device's driver, pinned or managed: what the device has does not bound it.
template <class Memory>
inline constexpr bool is_host_memory =
    has_property<Memory, host_accessible> && !std::same_as<typename Memory::driver_type, no_driver>;

/// What a memory of this driver belongs to, in errors.
template <class D>
[[nodiscard]] char const* name_of_memory(D const& driver) noexcept {
  return driver.device().value < 0 ? "the host" : "the device";
}

/// Throws for a driver call that failed.
/// @param of_host  whether the memory is pinned or managed
/// @param advice   see out_of_memory
/// @throws out_of_memory  the driver had no memory left; reports which call refused and what the device has
/// @throws cuda_error     anything else
template <class D>
[[noreturn]] TARN_NOINLINE void refuse(D const& driver, status const& failed, stream_ref stream,
                                       std::size_t bytes, std::size_t alignment,
                                       source_location where = source_location::current(),
                                       bool of_host = false, std::string_view advice = {}) {
  if (failed.kind != failure::out_of_memory) throw cuda_error(failed, driver.device().value, where);
  memory_report report;
  report.asked = bytes;
  report.alignment = alignment;
  report.device = driver.device().value;
  (void)identify_beside_captures(driver, stream, report.stream);
  std::size_t free = 0;
  std::size_t total = 0;
  if (!of_host && driver.memory_info(free, total).ok()) {
    report.device_free = free;
    report.device_total = total;
  }
  std::string_view const name = failed.name;  // the driver's own says no more than the type of this error
  if (!name.empty() && !name.starts_with("cuda") && !name.starts_with("CUDA_")) report.reason = failed.name;
  if (failed.code == 0) {
    report.refused_by = failed.call;
  } else {
    report.refused_by = of_host ? "the host" : name_of_memory(driver);
    report.call = failed.call;
  }
  throw at(where, out_of_memory(report, advice));
}

/// The status of a request too large to try: rounding it up could overflow.
[[nodiscard]] inline status too_large() noexcept {
  return {failure::out_of_memory, 0, "larger than any device", "the address space"};
}

}  // namespace TARN_NAMESPACE::detail
