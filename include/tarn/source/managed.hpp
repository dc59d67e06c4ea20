// SPDX-License-Identifier: Apache-2.0
#pragma once
// managed: memory that migrates between host and devices on access.

#include "tarn/core/config.hpp"
#include "tarn/source/block_source.hpp"
#if TARN_HAS_CUDA
#include "tarn/driver/cuda_driver.hpp"
#endif

namespace TARN_NAMESPACE {

/// cudaMallocManaged and cudaFree.
struct managed_calls {
  using properties = property_set<device_accessible, host_accessible>;
  static constexpr char const* backend = "cudaMallocManaged";
  template <block_driver D>
  static status take(D const& driver, std::size_t bytes, std::size_t, void*& p) noexcept {
    return driver.malloc_managed(bytes, p);
  }
  template <block_driver D>
  static status give(D const& driver, void* p, std::size_t, std::size_t) noexcept {
    return driver.free_managed(p);
  }
};

/// Managed memory, attached to all streams. May exceed the device's memory: a request is refused only if
/// neither host nor device can back it. If the device cannot fault pages in, the host must not touch it while
/// kernels run.
template <block_driver D>
using basic_managed = block_source<D, managed_calls>;

#if TARN_HAS_CUDA
using managed = basic_managed<cuda_driver>;
static_assert(resource<managed>);
#endif

}  // namespace TARN_NAMESPACE
