// SPDX-License-Identifier: Apache-2.0
#pragma once
// The driver for plain host memory: no device, no streams; all work completes before the call returns.

#include <atomic>
#include <cstdint>
#include <cstring>
#include <new>
#if defined(__linux__)
#include <unistd.h>
#endif

#include "tarn/core/bytes.hpp"
#include "tarn/core/thread_tag.hpp"
#include "tarn/driver/driver.hpp"

namespace TARN_NAMESPACE {

namespace detail {
/// Source of handles for streams and events, which are only names here; constant-initialised.
inline std::atomic<std::uintptr_t> next_host_handle{16};
}  // namespace detail

/// Plain host memory behind the driver contract. Streams and events are only names: all work has already
/// completed, so waits return at once and queries return ok. Pages are unsupported; blocks of every kind are
/// aligned host memory. Thread-safe; the only state is the process's heap.
class no_driver {
 public:
  constexpr no_driver() noexcept = default;
  /// Takes a device for symmetry with the other drivers; the host is the only one.
  constexpr explicit no_driver(device_id) noexcept {}

  /// The host: ordinal -1.
  [[nodiscard]] device_id device() const noexcept { return device_id{-1}; }

  status identify(stream_ref stream, stream_id& id) const noexcept {
    auto const handle = reinterpret_cast<std::uintptr_t>(stream.handle());
    if (handle <= 1) {
      id = 1;
    } else if (handle == 2) {
      id = per_thread_bit | detail::this_thread_number();
    } else {
      id = handle;
    }
    return {};
  }
  status is_capturing(stream_ref, bool& capturing) const noexcept {
    capturing = false;
    return {};
  }

  status create_event(event_handle& event) const noexcept {
    event = new_handle();
    return {};
  }
  status destroy_event(event_handle) const noexcept { return {}; }
  status record_event(event_handle, stream_ref) const noexcept { return {}; }
  status query_event(event_handle) const noexcept { return {}; }
  status wait_event(stream_ref, event_handle) const noexcept { return {}; }
  status synchronize_event(event_handle) const noexcept { return {}; }
  status synchronize_stream(stream_ref) const noexcept { return {}; }
  status synchronize_device() const noexcept { return {}; }
  status create_stream(stream_ref& stream) const noexcept {
    void* const handle = new_handle();
    stream = stream_ref::from(handle, reinterpret_cast<std::uintptr_t>(handle));
    return {};
  }
  status destroy_stream(stream_ref) const noexcept { return {}; }

  status copy(stream_ref, void* to, void const* from, std::size_t bytes) const noexcept {
    if (bytes == 0) return {};
    if (to == nullptr || from == nullptr) return invalid(driver_call::copy);
    std::memmove(to, from, bytes);
    return {};
  }
  status fill(stream_ref, void* to, int byte, std::size_t bytes) const noexcept {
    if (bytes == 0) return {};
    if (to == nullptr) return invalid(driver_call::fill);
    std::memset(to, byte, bytes);
    return {};
  }
  /// Defined in transfer/convert.hpp, so that only users of convert() compile it.
  template <class To, class From>
  status convert(stream_ref, To* to, From const* from, std::size_t count) const noexcept;

  /// Reports the host's memory; unsupported if the system does not provide it.
  status memory_info([[maybe_unused]] std::size_t& free, [[maybe_unused]] std::size_t& total) const noexcept {
#if defined(__linux__)
    long const page = ::sysconf(_SC_PAGESIZE);
    long const available = ::sysconf(_SC_AVPHYS_PAGES);
    long const all = ::sysconf(_SC_PHYS_PAGES);
    if (page > 0 && available >= 0 && all > 0) {
      free = static_cast<std::size_t>(available) * static_cast<std::size_t>(page);
      total = static_cast<std::size_t>(all) * static_cast<std::size_t>(page);
      return {};
    }
#endif
    return unsupported(driver_call::memory_info);
  }

  status page_granularity(std::size_t&) const noexcept { return unsupported(driver_call::page_granularity); }
  status reserve_range(std::size_t, std::size_t, void*&) const noexcept {
    return unsupported(driver_call::reserve_range);
  }
  status release_range(void*, std::size_t) const noexcept { return unsupported(driver_call::release_range); }
  status create_pages(std::size_t, page_handle&) const noexcept {
    return unsupported(driver_call::create_pages);
  }
  status destroy_pages(page_handle) const noexcept { return unsupported(driver_call::destroy_pages); }
  status map_pages(void*, std::size_t, page_handle) const noexcept {
    return unsupported(driver_call::map_pages);
  }
  status unmap_pages(void*, std::size_t) const noexcept { return unsupported(driver_call::unmap_pages); }

  status malloc_device(std::size_t bytes, void*& p) const noexcept {
    return make(bytes, p, driver_call::malloc_device);
  }
  status free_device(void* p) const noexcept { return drop(p); }
  status malloc_async(std::size_t bytes, stream_ref, void*& p) const noexcept {
    return make(bytes, p, driver_call::malloc_async);
  }
  status free_async(void* p, stream_ref) const noexcept { return drop(p); }
  status malloc_pinned(std::size_t bytes, void*& p) const noexcept {
    return make(bytes, p, driver_call::malloc_pinned);
  }
  status free_pinned(void* p) const noexcept { return drop(p); }
  status malloc_managed(std::size_t bytes, void*& p) const noexcept {
    return make(bytes, p, driver_call::malloc_managed);
  }
  status free_managed(void* p) const noexcept { return drop(p); }

  /// Does not pin: there is no device to pin for.
  status register_host(void* p, std::size_t) const noexcept {
    return p != nullptr ? status{} : invalid(driver_call::register_host);
  }
  status unregister_host(void*) const noexcept { return {}; }

  friend constexpr bool operator==(no_driver, no_driver) noexcept { return true; }

 private:
  /// Distinguishes a thread's default stream from every handle: no user address has this bit.
  static constexpr stream_id per_thread_bit = stream_id{1} << 63;

  /// More than any process can address, bytes. Larger requests fail here, so that no allocator (such as a
  /// sanitizer's) reports them as a program error.
  static constexpr std::size_t most_host_bytes = 128_TiB;

  static void* new_handle() noexcept {
    return reinterpret_cast<void*>(detail::next_host_handle.fetch_add(16, std::memory_order_relaxed));
  }
  static status invalid(driver_call call) noexcept {
    return {failure::other, 1, "cudaErrorInvalidValue", name_of(call)};
  }
  static status unsupported(driver_call call) noexcept {
    return {failure::unsupported, 801, "cudaErrorNotSupported", name_of(call)};
  }
  static status make(std::size_t bytes, void*& p, driver_call call) noexcept {
    p = nullptr;
    if (bytes == 0) return {};
    void* block = nullptr;
    if (bytes <= most_host_bytes) {
      block = ::operator new(bytes, std::align_val_t{default_alignment}, std::nothrow);
    }
    if (block == nullptr) return {failure::out_of_memory, 2, "cudaErrorMemoryAllocation", name_of(call)};
    p = block;
    return {};
  }
  static status drop(void* p) noexcept {
    ::operator delete(p, std::align_val_t{default_alignment});
    return {};
  }
};

}  // namespace TARN_NAMESPACE
