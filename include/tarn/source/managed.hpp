// SPDX-License-Identifier: Apache-2.0
#pragma once
// managed: memory that migrates between host and devices on access; prefetch() and advise(), which say where
// it will be used.

#include <cstddef>
#include <span>

#include "tarn/core/config.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/source_location.hpp"
#include "tarn/driver/driver.hpp"
#include "tarn/driver/stream_device.hpp"
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

namespace detail {

/// As driver.prefetch(), on a stream of any device; refuses a captured stream and leaves the capture valid.
template <migrating_driver D>
[[nodiscard]] status prefetch_managed(D const& driver, stream_ref stream, void const* p, std::size_t bytes,
                                      device_id to) noexcept {
  D const there = driver_of(driver, stream);
  bool captured = false;
  status const s = there.is_capturing(stream, captured);
  if (captured) return unsupported_call("prefetch (the stream is captured, and graphs have no prefetches)");
  return s.ok() ? there.prefetch(stream, p, bytes, to) : s;
}

/// A buffer whose driver knows managed memory.
template <class B>
concept migrating_buffer = requires(B const& b) {
  std::span(b.data(), b.size());
  requires migrating_driver<typename B::resource_type::driver_type>;
};

}  // namespace detail

/// Moves elements of managed memory to a device or to the host (host_id), in the order of `stream`: a kernel
/// there then finds them without page faults. Whole pages move, so neighbours may move, too. The memory stays
/// accessible everywhere meanwhile, and may be freed. Where a device has not enough memory for it, CUDA moves
/// other managed memory to the host. Does nothing for no elements. One driver call; the host does not wait.
/// @param stream  of any device that can do it; not captured
/// @throws cuda_error  of kind `unsupported`: the memory is not managed, one of the devices cannot move pages
///                     while it runs, or the stream is captured, whose capture stays valid; of kind
///                     `no_device`: there is no such device
/// @throws misuse      the buffer has no pool
template <migrating_driver D, class T>
void prefetch(D const& driver, std::span<T> elements, device_id to, stream_ref stream,
              source_location where = source_location::current()) {
  detail::must_succeed(
      driver, detail::prefetch_managed(driver, stream, elements.data(), elements.size_bytes(), to), where);
}
/// The same for all elements of a buffer.
template <detail::migrating_buffer Buffer>
void prefetch(Buffer const& buffer, device_id to, stream_ref stream,
              source_location where = source_location::current()) {
  tarn::prefetch(detail::required(buffer.resource(), where).driver(), std::span(buffer.data(), buffer.size()),
                 to, stream, where);
}

/// Says how elements of managed memory will be used, from now on and until it is undone; not ordered by
/// streams. Of whole pages, as prefetch(); in a pool the advice stays when the memory is reused: undo it
/// first. One driver call.
/// @param of  the device or host_id that prefers or accesses them; of no effect for `read_mostly`
/// @throws cuda_error  as prefetch()
template <migrating_driver D, class T>
void advise(D const& driver, std::span<T> elements, memory_advice advice, device_id of,
            source_location where = source_location::current()) {
  detail::must_succeed(driver, driver.advise(elements.data(), elements.size_bytes(), advice, of), where);
}
/// The same for all elements of a buffer.
template <detail::migrating_buffer Buffer>
void advise(Buffer const& buffer, memory_advice advice, device_id of,
            source_location where = source_location::current()) {
  tarn::advise(detail::required(buffer.resource(), where).driver(), std::span(buffer.data(), buffer.size()),
               advice, of, where);
}

#if TARN_HAS_CUDA
using managed = basic_managed<cuda_driver>;
static_assert(resource<managed>);
#endif

}  // namespace TARN_NAMESPACE
