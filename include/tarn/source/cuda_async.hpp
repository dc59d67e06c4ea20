// SPDX-License-Identifier: Apache-2.0
#pragma once
// cuda_async: device memory from CUDA's own stream-ordered pool (cudaMallocAsync). cuda_async_pinned and
// cuda_async_managed: host memory from such pools.

#include <type_traits>

#include "tarn/core/config.hpp"
#include "tarn/driver/all_work.hpp"
#include "tarn/driver/stream_life.hpp"
#include "tarn/source/block_source.hpp"
#if TARN_HAS_CUDA
#include "tarn/driver/cuda_driver.hpp"
#endif

namespace TARN_NAMESPACE {

/// cudaMallocAsync or cudaMallocFromPoolAsync, and cudaFreeAsync.
template <async_memory Memory>
struct async_calls_of {
  static constexpr bool of_device = Memory == async_memory::device;
  using properties = std::conditional_t<of_device, property_set<device_accessible>,
                                        property_set<device_accessible, host_accessible>>;
  static constexpr char const* backend = of_device ? "cudaMallocAsync"
                                         : Memory == async_memory::pinned
                                             ? "cudaMallocFromPoolAsync, pinned"
                                             : "cudaMallocFromPoolAsync, managed";

  template <block_driver D>
  [[nodiscard]] static status refusal(D const& driver) noexcept {
    if constexpr (requires { driver.has_memory_pools(); }) {
      if (!driver.has_memory_pools()) {
        return detail::unsupported_call(
            "cudaMallocAsync (no memory pools on this device; use cuda_malloc | pooled, or device_pool)");
      }
    }
    if constexpr (of_device) {
      return {};
    } else {
      status const s = driver.open_memory_pool(Memory);
      if (s.kind != failure::unsupported) return s;
      return detail::unsupported_call(
          "cudaMemGetDefaultMemPool (no pools of this memory that the devices can access: CUDA before 13, or "
          "the device; use pinned_host | pooled or managed | pooled)");
    }
  }
  template <block_driver D>
  static status take(D const& driver, stream_ref stream, std::size_t bytes, std::size_t, void*& p) noexcept {
    if constexpr (of_device) {
      return driver.malloc_async(bytes, stream, p);
    } else {
      return driver.malloc_async(bytes, stream, Memory, p);
    }
  }
  template <block_driver D>
  static status give(D const& driver, stream_ref stream, void* p, std::size_t, std::size_t) noexcept {
    return driver.free_async(p, stream);
  }
  /// Ordered after all of the device's work, on a stream of its own. While this thread's capture forbids
  /// that, the block stays.
  template <block_driver D>
  static status give_lost(D const& driver, void* p, std::size_t, std::size_t) noexcept {
    return detail::free_behind_lost(driver, [&](stream_ref own) { return driver.free_async(p, own); });
  }

  // Calls without a stream use a short-lived one, which waits for no stream and for which no stream waits.
  // The default stream would wait for the kernels of every blocking stream.

  template <block_driver D>
  static status take(D const& driver, std::size_t bytes, std::size_t, void*& p) noexcept {
    stream_ref stream;
    status s = driver.create_stream(stream);
    if (!s.ok()) return s;
    s = take(driver, stream, bytes, default_alignment, p);
    if (s.ok()) {
      s = driver.synchronize_stream(stream);
      if (!s.ok()) (void)driver.free_async(p, stream);
    }
    (void)driver.destroy_stream(stream);
    return s;
  }
  template <block_driver D>
  static status give(D const& driver, void* p, std::size_t, std::size_t) noexcept {
    detail::own_stream const own(driver);  // a wait on the device is better than a leak
    return driver.free_async(p, own.get());
  }
};

using async_calls = async_calls_of<async_memory::device>;

/// Stream-ordered device memory from the driver's own pool: 0.7 µs warm on an H200, more with several
/// threads, since the pool has one lock. Without a stream (allocate_sync, deallocate_sync) each call creates
/// and destroys a stream, ~10 µs. The underlying pool is the process's default pool of the device, shared
/// with every caller of cudaMallocAsync. Its constructor throws cuda_error of kind `unsupported` on a device
/// without memory pools: use `cuda_malloc{} | pooled{}`.
template <block_driver D>
using basic_async = block_source<D, async_calls>;

/// Stream-ordered memory from the process's default pools of pinned and of managed memory, for one device:
/// streams of other devices are refused. A bare default stream is the current device's. CUDA 13 and later;
/// before, and on devices without such pools, the constructor throws cuda_error of kind `unsupported`: use
/// `pinned_host{} | pooled{}` or `managed{} | pooled{}`. Other failures of the driver keep their kind and
/// code. The constructor lets all devices access the pool of pinned memory. CUDA's pools return their memory
/// at each synchronisation, unless their release threshold was set. Like that of any pool, memory allocated
/// on a stream may still be in use by earlier work of it: the host waits for the stream before it writes.
template <block_driver D>
using basic_async_pinned = block_source<D, async_calls_of<async_memory::pinned>>;
template <block_driver D>
using basic_async_managed = block_source<D, async_calls_of<async_memory::managed>>;

/// Sets how many bytes CUDA's pool keeps at a synchronisation; the initial value is 0, which gives everything
/// back each time. The whole process shares the pool and this setting.
/// @throws cuda_error  the device has no memory pools, or there is no driver
template <block_driver D>
  requires requires(D const& driver) { driver.set_release_threshold(std::size_t{}); }
void set_release_threshold(basic_async<D> const& memory, std::size_t bytes,
                           source_location where = source_location::current()) {
  detail::must_succeed(memory, memory.driver().set_release_threshold(bytes), where);
}

#if TARN_HAS_CUDA
using cuda_async = basic_async<cuda_driver>;
using cuda_async_pinned = basic_async_pinned<cuda_driver>;
using cuda_async_managed = basic_async_managed<cuda_driver>;
static_assert(resource<cuda_async> && resource<cuda_async_pinned> && resource<cuda_async_managed>);
#endif

}  // namespace TARN_NAMESPACE
