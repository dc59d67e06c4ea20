// SPDX-License-Identifier: Apache-2.0
#pragma once
// An enumeration of the driver contract's calls, for counting and fault injection.

#include <cstddef>
#include <cstdint>

#include "tarn/version.hpp"

namespace TARN_NAMESPACE {

// clang-format off
/// Expands CALL(name) once for each call of the contract, in the order of the enumeration, so that a wrapper of drivers is written
/// once for all of them. What changes memory comes last.
#define TARN_DRIVER_CALLS(CALL) \
  CALL(identify) CALL(ask_device) CALL(is_capturing) CALL(create_event) CALL(destroy_event) \
  CALL(record_event) CALL(query_event) CALL(wait_event) CALL(synchronize_event) CALL(synchronize_stream) \
  CALL(synchronize_device) CALL(create_stream) CALL(destroy_stream) CALL(copy) CALL(fill) CALL(convert) CALL(prefetch) CALL(advise) \
  CALL(memory_info) CALL(memory_account) CALL(can_share) CALL(can_export_pages) CALL(export_pages) \
  CALL(create_shared_event) CALL(open_shared_event) CALL(export_dma_buf) CALL(uuid) CALL(page_granularity) \
  CALL(reserve_range) CALL(release_range) CALL(create_pages) CALL(destroy_pages) CALL(map_pages) \
  CALL(unmap_pages) CALL(share_pages) CALL(import_pages) CALL(malloc_device) CALL(free_device) \
  CALL(malloc_async) CALL(free_async) CALL(malloc_pinned) CALL(free_pinned) CALL(malloc_managed) \
  CALL(free_managed) CALL(register_host) CALL(unregister_host)
// clang-format on

#define TARN_ENUMERATOR(call) call,
#define TARN_NAME(call) #call,

/// A call of the driver contract (driver/driver.hpp); device() is not included, it only reads a member.
enum class driver_call : std::uint8_t { TARN_DRIVER_CALLS(TARN_ENUMERATOR) };

/// Number of calls.
inline constexpr std::size_t driver_call_count = static_cast<std::size_t>(driver_call::unregister_host) + 1;

/// Returns the call at an index below driver_call_count, for loops over all of them.
[[nodiscard]] constexpr driver_call driver_call_at(std::size_t index) noexcept {
  return static_cast<driver_call>(index);
}

/// Returns the call's name in the contract; static storage.
[[nodiscard]] constexpr char const* name_of(driver_call call) noexcept {
  constexpr char const* names[] = {TARN_DRIVER_CALLS(TARN_NAME)};
  static_assert(sizeof(names) / sizeof(names[0]) == driver_call_count);
  return names[static_cast<std::size_t>(call)];
}

#undef TARN_ENUMERATOR
#undef TARN_NAME

/// Returns true for the calls that only inspect a stream (about 19 ns); they neither order nor change
/// anything.
[[nodiscard]] constexpr bool only_looks(driver_call call) noexcept {
  return call == driver_call::identify || call == driver_call::ask_device ||
         call == driver_call::is_capturing;
}

/// Returns true for calls that allocate, map or free memory or address space.
[[nodiscard]] constexpr bool changes_memory(driver_call call) noexcept {
  return call >= driver_call::reserve_range;
}

}  // namespace TARN_NAMESPACE
