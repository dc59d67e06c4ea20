// SPDX-License-Identifier: Apache-2.0
#pragma once
// An enumeration of the driver contract's calls, for counting and fault injection.

#include <cstddef>
#include <cstdint>

namespace tarn {

/// A call of the driver contract (driver/driver.hpp); device() is not included, it only reads a member.
enum class driver_call : std::uint8_t {
  identify,
  ask_device,
  is_capturing,
  create_event,
  destroy_event,
  record_event,
  query_event,
  wait_event,
  synchronize_event,
  synchronize_stream,
  synchronize_device,
  create_stream,
  destroy_stream,
  copy,
  fill,
  convert,
  memory_info,
  memory_account,
  can_share,
  can_export_pages,
  export_pages,
  create_shared_event,
  open_shared_event,
  export_dma_buf,
  uuid,
  page_granularity,
  reserve_range,
  release_range,
  create_pages,
  destroy_pages,
  map_pages,
  unmap_pages,
  share_pages,
  import_pages,
  malloc_device,
  free_device,
  malloc_async,
  free_async,
  malloc_pinned,
  free_pinned,
  malloc_managed,
  free_managed,
  register_host,
  unregister_host
};

/// Number of calls.
inline constexpr std::size_t driver_call_count = static_cast<std::size_t>(driver_call::unregister_host) + 1;

/// Returns the call at an index below driver_call_count, for loops over all of them.
[[nodiscard]] constexpr driver_call driver_call_at(std::size_t index) noexcept {
  return static_cast<driver_call>(index);
}

/// Returns the call's name in the contract; static storage.
[[nodiscard]] constexpr char const* name_of(driver_call call) noexcept {
  constexpr char const* names[] = {"identify",
                                   "ask_device",
                                   "is_capturing",
                                   "create_event",
                                   "destroy_event",
                                   "record_event",
                                   "query_event",
                                   "wait_event",
                                   "synchronize_event",
                                   "synchronize_stream",
                                   "synchronize_device",
                                   "create_stream",
                                   "destroy_stream",
                                   "copy",
                                   "fill",
                                   "convert",
                                   "memory_info",
                                   "memory_account",
                                   "can_share",
                                   "can_export_pages",
                                   "export_pages",
                                   "create_shared_event",
                                   "open_shared_event",
                                   "export_dma_buf",
                                   "uuid",
                                   "page_granularity",
                                   "reserve_range",
                                   "release_range",
                                   "create_pages",
                                   "destroy_pages",
                                   "map_pages",
                                   "unmap_pages",
                                   "share_pages",
                                   "import_pages",
                                   "malloc_device",
                                   "free_device",
                                   "malloc_async",
                                   "free_async",
                                   "malloc_pinned",
                                   "free_pinned",
                                   "malloc_managed",
                                   "free_managed",
                                   "register_host",
                                   "unregister_host"};
  static_assert(sizeof(names) / sizeof(names[0]) == driver_call_count);
  return names[static_cast<std::size_t>(call)];
}

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

}  // namespace tarn
