// SPDX-License-Identifier: Apache-2.0
#pragma once
// prefetched: moves each block of managed memory to its device as it is allocated.

#include <type_traits>

#include "tarn/core/error.hpp"
#include "tarn/core/location_scope.hpp"
#include "tarn/policy/compose.hpp"
#include "tarn/policy/resource_adaptor.hpp"
#include "tarn/source/managed.hpp"

namespace TARN_NAMESPACE {

/// Calls prefetch() for each block, to the memory's device and on the stream of the allocation: `managed{} |
/// pooled{} | prefetched{}`. The first kernel on the block then finds its pages without faults. For
/// allocate_sync() the stream is the default stream. Leaves a block where it is if that cannot be done: on a
/// captured stream, on a device that cannot move pages while it runs, and if it is not managed memory, as one
/// of pages above `fallback_to`. Two driver calls per allocation, none per deallocation.
struct prefetched {
  template <class Upstream>
  using layer = around_layer<prefetched, Upstream>;

  /// @throws what the upstream throws; cuda_error  the device is broken or lost; nothing is allocated then
  void* around_allocate(request const& r, auto const& next) {
    void* const p = next.allocate(r);
    if constexpr (migrating_driver<std::remove_cvref_t<decltype(next.driver())>>) {
      if (p == nullptr) return p;
      auto const& driver = next.driver();
      status const s = detail::prefetch_managed(driver, r.stream, p, r.bytes, driver.device());
      if (!s.ok() && s.kind != failure::unsupported) {
        next.deallocate(r, p);
        detail::must_succeed(driver, s, location_scope::current());
      }
    }
    return p;
  }
};

}  // namespace TARN_NAMESPACE
