// SPDX-License-Identifier: Apache-2.0
#pragma once
// pinned_host: page-locked host memory, which copies to and from devices at full speed and asynchronously.

#include "tarn/core/config.hpp"
#include "tarn/source/block_source.hpp"
#if TARN_HAS_CUDA
#include "tarn/driver/cuda_driver.hpp"
#endif

namespace TARN_NAMESPACE {

/// cudaHostAlloc and cudaFreeHost.
struct pinned_calls {
  using properties = property_set<device_accessible, host_accessible>;
  static constexpr char const* backend = "cudaHostAlloc";
  template <block_driver D>
  static status take(D const& driver, std::size_t bytes, std::size_t, void*& p) noexcept {
    return driver.malloc_pinned(bytes, p);  // whole pages
  }
  template <block_driver D>
  static status give(D const& driver, void* p, std::size_t, std::size_t) noexcept {
    return driver.free_pinned(p);
  }
};

/// Pinned host memory, portable: pinned for every device. About 460 ms per GiB to allocate, so pool it. It
/// cannot be swapped out: take no more than the machine can spare. Aligned to the host's page.
///
/// In a pool over it, allocate(stream) returns memory for work of that stream: copies enqueued earlier may
/// still use it. Memory that the host itself will write must come from allocate_sync(), which returns nothing
/// that a stream still uses; pinned_buffer and the streamed batches do so.
template <block_driver D>
using basic_pinned = block_source<D, pinned_calls>;

#if TARN_HAS_CUDA
using pinned_host = basic_pinned<cuda_driver>;
static_assert(resource<pinned_host>);
#endif

}  // namespace TARN_NAMESPACE
