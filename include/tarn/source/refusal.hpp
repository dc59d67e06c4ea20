// SPDX-License-Identifier: Apache-2.0
#pragma once
// Turns a failed driver call of a source into the error that a caller can act on.

#include <concepts>
#include <cstddef>
#include <string_view>

#include "tarn/core/config.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/core/source_location.hpp"
#include "tarn/driver/driver.hpp"
#include "tarn/driver/no_driver.hpp"

namespace TARN_NAMESPACE::detail {

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
  (void)driver.identify(stream, report.stream);
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
