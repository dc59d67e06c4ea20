// SPDX-License-Identifier: Apache-2.0
#pragma once
// sleep() and wake(): a pool gives its physical memory back for a while and keeps its addresses. sleep_scope
// does both.

#include <cstddef>
#include <type_traits>
#include <utility>

#include "tarn/core/error.hpp"
#include "tarn/core/layers.hpp"
#include "tarn/core/pool_call.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/core/shared_resource.hpp"

namespace TARN_NAMESPACE {

namespace detail {

/// Whether a stack can sleep. The uppermost pool must: blocks of a pool below it are in use by that one.
template <class Memory>
concept can_sleep = reachable<std::remove_cvref_t<Memory>, pool_call::sleep>;

template <class Memory>
inline constexpr bool require_can_sleep() noexcept {
  static_assert(can_sleep<Memory>,
                "tarn: only a pool over a page source, such as cuda_pages, can give its memory back and keep "
                "the addresses: "
                "use `cuda_pages{} | pooled{}`");
  return true;
}

}  // namespace detail

/// Gives the physical memory of a pool back to the driver, so that other pools and programs can use it, and
/// keeps every address: blocks, views and captured graphs are valid again after wake(). Several pools sleep
/// and wake independently.
///
/// No work uses the pool's memory from this call until wake() returns; the caller has synchronised the
/// streams that did. A `checked` layer reports each stream of a live block that is not idle: it does not know
/// what the work there uses. Until then allocations throw pool_asleep; deallocations, statistics, trim() and
/// the end of the pool work, and wake() does not map again what was freed meanwhile. Does nothing, and
/// returns 0, if the pool is asleep: the contents are those of the first call.
///
/// Handles with a page_pin stay mapped, with their contents. Of several pools below a layer that routes, one
/// that is not over pages stays awake.
///
/// The memory of the pool's graph_memories sleeps and wakes with it, all or none. A capture_scope may be
/// opened while the pool sleeps, but what it allocates throws pool_asleep. take_snapshot() lists the
/// addresses that the pool keeps. In a forked child sleep() and wake() do nothing, and return 0.
/// @param where  whether contents are kept
/// @returns the bytes given back, cached memory included; less if the driver does not report that a copy is
/// complete: handles whose
///          contents are not known to be saved keep their memory
/// @throws out_of_memory               pinned memory for the contents is lacking; the pool is awake, nothing
/// has changed
/// @throws cuda_error, std::bad_alloc  likewise; cuda_error also while a capture_scope is open, in any pool
/// of the process
/// @throws cuda_error                  of kind `unsupported`: the device has no virtual memory management, so
/// the addresses could
///                                     not be kept; nothing has changed. empty_cache() gives back what is free
/// @throws misuse                      called by a handler of the pool's own growth
/// Waits on the host for the copies. Thread-safe. O(handles + ranges): 35 us per handle on an H200, plus the
/// copies.
template <class Memory>
std::size_t sleep(Memory const& memory, contents where = contents::in_pinned_memory,
                  source_location place = source_location::current()) {
  if constexpr (detail::require_can_sleep<Memory>()) {
    return detail::called_from(place, [&] { return nearest(memory, pool_call::sleep{where}); });
  }
}

/// Takes the memory of a sleeping pool again, at the same addresses, with the contents that were kept. Does
/// nothing, and returns 0, if the pool is awake. Of several pools each is asked, and the first error is
/// thrown. If the device has too little, the other pools there give back what they cache, the one that was
/// made last first; what work still uses is waited for only if the rest does not suffice.
/// @param then  whether the host memory of the contents is freed, or kept for the next sleep until the pool
/// ends
/// @returns the bytes taken: those of handles with live blocks
/// @throws out_of_memory  still not enough memory, or a limit below the pool has too little left:
/// report().lacking is what must
///                        become free. The pool stays asleep and keeps its contents: free memory and call again
/// @throws cuda_error, std::bad_alloc  likewise; cuda_error also while a capture_scope is open, in any pool
/// of the process
/// @throws misuse                      called by a handler of the source while it wakes the pool
/// Waits on the host for the copies. Thread-safe. O(handles + slots of views): 45 us per handle on an H200,
/// plus the copies.
template <class Memory>
std::size_t wake(Memory const& memory, after_waking then = after_waking::free_host_memory,
                 source_location place = source_location::current()) {
  if constexpr (detail::require_can_sleep<Memory>()) {
    return detail::called_from(place, [&] { return nearest(memory, pool_call::wake{then}); });
  }
}

/// Returns whether a pool is asleep.
template <class Memory>
[[nodiscard]] bool is_asleep(Memory const& memory) noexcept {
  if constexpr (detail::require_can_sleep<Memory>()) {
    return nearest(memory, pool_call::is_asleep{});
  }
}

/// A pool sleeps during a scope. A pool that sleeps when the scope begins is not woken at its end; of several
/// pools, those that were awake are. If the pool cannot be woken, the error is ignored and it stays asleep:
/// call wake() before the end of the scope to handle it.
template <class Pool>
class sleep_scope {
 public:
  /// @throws as sleep()
  explicit sleep_scope(Pool pool, contents where = contents::in_pinned_memory,
                       source_location place = source_location::current())
      : pool_(std::move(pool)) {
    if constexpr (detail::require_can_sleep<Pool>()) nearest(pool_, pool_call::list_awake{awake_before_});
    released_ = tarn::sleep(pool_, where, place);
  }
  sleep_scope& operator=(sleep_scope&&) = delete;
  ~sleep_scope() { pool_call::wake_again(pool_, awake_before_); }

  /// Wakes before the end of the scope what its end would wake. @throws as wake()
  void wake(source_location place = source_location::current()) {
    (void)detail::called_from(place, [&] {
      return nearest(pool_, pool_call::wake{after_waking::free_host_memory, &awake_before_});
    });
  }
  /// Returns the bytes that falling asleep gave back.
  [[nodiscard]] std::size_t released_bytes() const noexcept { return released_; }

 private:
  Pool pool_;
  detail::sequence<void const*> awake_before_{};
  std::size_t released_ = 0;
};

}  // namespace TARN_NAMESPACE
