// SPDX-License-Identifier: Apache-2.0
#pragma once
// The driver contract: each call with its cost and its failures. Two models ship: cuda_driver and sim_driver;
// no_driver stands in where there are no streams (plain host memory). The calls are also an enumeration,
// driver_call.
//
// A driver is a small copyable value for one device. Every call is const, noexcept and thread-safe, works
// with any current device, leaves the current device unchanged, and returns a status; the result is stored in
// the last parameter. No call throws, and none allocates for the caller unless stated. Costs are from one
// H200 (bench/results). `stream` handles are the driver's own; a null handle is the default stream.
//
// | call                                                         | cost             | meaning                                                             |
// |--------------------------------------------------------------|------------------|---------------------------------------------------------------------|
// | device()                                                     | 0                | the device's ordinal                                                |
// | identify(stream, id&)                                        | ~19 ns           | the identity of a stream; fixed for default streams, one per thread for the per-thread default stream |
// | several devices, optional                                    |                  | see multi_device_driver in stream_device.hpp                        |
// |   known_device(stream)                                       | 0                | where a stream lives, as far as it was learned                      |
// |   ask_device(stream, device&)                                | ~20 ns           | where an existing stream lives; ends a capture of the stream        |
// |   named_device()                                             | ~20 ns           | whose default streams the calling thread means                      |
// |   retarget(device)                                           | 0                | makes it the driver of another device                               |
// | is_capturing(stream, bool&)                                  | ~19 ns           | true while the stream is captured into a graph                      |
// | create_event(event&), destroy_event(event)                   | 230 ns           | without timing                                                      |
// | record_event(event, stream)                                  | 250 ns           | marks all work on stream so far                                     |
// | query_event(event)                                           | 260 ns           | ok: reached; not_ready: not yet; never for an event of a capture    |
// | wait_event(stream, event)                                    | 230 ns           | later work on stream waits for the event                            |
// | synchronize_event(event), _stream(stream), _device()         | blocks           | waits on the host                                                   |
// | create_stream(stream&), destroy_stream(stream)               | 5 us             | non-blocking with respect to the legacy default stream              |
// | copy(stream, to, from, bytes)                                | 2 us             | any direction, asynchronous to the host if the memory allows        |
// | copy_from_device(stream, to, device, from, bytes), optional  | 2 us             | the same from another device's memory, without peer access          |
// | fill(stream, to, byte, bytes)                                | 2 us             | sets bytes                                                          |
// | convert(stream, to, from, count), optional                   | 4 us             | a kernel that converts elements (core/element) in device memory     |
// | can_share(device, bool&), optional                           | once             | whether that device can access this device's pages                  |
// | prefetch(stream, p, bytes, device), optional                 |                  | moves managed memory to a device or to host_id: see migrating_driver |
// | advise(p, bytes, advice, device), optional                   |                  | how managed memory will be used: see migrating_driver               |
// | memory_info(free&, total&)                                   | 5 us             | of the whole device, as cudaMemGetInfo; what the host has available if the GPU is integrated |
// | allocation_overhead(), optional                              | 0                | bytes that an allocation may need beside its own; 0 if absent       |
// | page_granularity(bytes&)                                     | once             | unsupported: no virtual memory management here                      |
// | reserve_range(bytes, alignment, p&), release_range(p, bytes) | 5-77 us          | address ranges                                                      |
// | create_pages(bytes, handle&), destroy_pages(handle)          | 10 us, 15-338 us | physical memory                                                     |
// | map_pages(p, bytes, handle), unmap_pages(p, bytes)           | 26 us, 17 us     | map and grant access; undo exactly one map                          |
// | share_pages(p, bytes, device), optional                      | 25 us            | grants that device access to the mapping, too                       |
// | sharing with other processes, optional                       |                  | see sharing_driver below                                           |
// | malloc_device(bytes, p&), free_device(p)                     | 58 us, 40 us     | cudaMalloc                                                          |
// | malloc_async(bytes, stream, p&), free_async(p, stream)       | 0.7 us warm      | cudaMallocAsync                                                     |
// | malloc_async(bytes, stream, memory, p&), optional            |                  | cudaMallocFromPoolAsync; see async_memory                           |
// | has_contents(p), optional                                    | 0                | whether memory holds what was written to it; true if absent         |
// | has_memory_pools(), optional                                 | once             | whether the device has malloc_async; true if absent or unknown      |
// | malloc_pinned(bytes, p&), free_pinned(p)                     | 460 ms/GiB       | cudaHostAlloc, portable                                             |
// | malloc_managed(bytes, p&), free_managed(p)                   |                  | cudaMallocManaged                                                   |
// | register_host(p, bytes), unregister_host(p), optional        | see registered_host | pins existing host memory, whole pages, portable                 |
// | memory_tool(), optional                                      | once             | the attached memory tool, false if none: see memory_tool_driver      |
// | memory_account(account&), optional                           | 10-100 ms        | the device's memory by process, as nvidia-smi shows it: see accounting_driver |

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>

#include "tarn/core/error.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/core/stream.hpp"

namespace TARN_NAMESPACE {

/// An event handle of the driver.
using event_handle = void*;

/// Requirements of stream ordering; every driver meets them.
template <class D>
concept stream_driver =
    comparable_value<D> && requires(D const& d, stream_ref stream, stream_ref& new_stream, stream_id& id,
                                    bool& yes, event_handle event, event_handle& new_event, void* to,
                                    void const* from, std::size_t bytes, std::size_t& total) {
      { d.device() } noexcept -> std::same_as<device_id>;
      { d.identify(stream, id) } noexcept -> std::same_as<status>;
      { d.is_capturing(stream, yes) } noexcept -> std::same_as<status>;
      { d.create_event(new_event) } noexcept -> std::same_as<status>;
      { d.destroy_event(event) } noexcept -> std::same_as<status>;
      { d.record_event(event, stream) } noexcept -> std::same_as<status>;
      { d.query_event(event) } noexcept -> std::same_as<status>;
      { d.wait_event(stream, event) } noexcept -> std::same_as<status>;
      { d.synchronize_event(event) } noexcept -> std::same_as<status>;
      { d.synchronize_stream(stream) } noexcept -> std::same_as<status>;
      { d.synchronize_device() } noexcept -> std::same_as<status>;
      { d.create_stream(new_stream) } noexcept -> std::same_as<status>;
      { d.destroy_stream(stream) } noexcept -> std::same_as<status>;
      { d.copy(stream, to, from, bytes) } noexcept -> std::same_as<status>;
      { d.fill(stream, to, 0, bytes) } noexcept -> std::same_as<status>;
      { d.memory_info(bytes, total) } noexcept -> std::same_as<status>;
    };

/// Returns how many bytes an allocation may need beside its own.
template <class D>
[[nodiscard]] constexpr std::size_t allocation_overhead(D const& driver) noexcept {
  if constexpr (requires { driver.allocation_overhead(); }) {
    return driver.allocation_overhead();
  } else {
    return 0;
  }
}

/// Returns whether the memory at `p` holds what was written to it. That of a simulated device may be
/// addresses only.
template <class D>
[[nodiscard]] constexpr bool has_contents(D const& driver, void const* p) noexcept {
  if constexpr (requires { driver.has_contents(p); }) {
    return driver.has_contents(p);
  } else {
    return true;
  }
}

/// Requirements of a page source. Pinned memory keeps the contents of a pool that sleeps.
template <class D>
concept page_driver = stream_driver<D> && requires(D const& d, std::size_t bytes, std::size_t& out, void* p,
                                                   void*& new_p, page_handle h, page_handle& new_h) {
  { d.page_granularity(out) } noexcept -> std::same_as<status>;
  { d.reserve_range(bytes, bytes, new_p) } noexcept -> std::same_as<status>;
  { d.release_range(p, bytes) } noexcept -> std::same_as<status>;
  { d.create_pages(bytes, new_h) } noexcept -> std::same_as<status>;
  { d.destroy_pages(h) } noexcept -> std::same_as<status>;
  { d.map_pages(p, bytes, h) } noexcept -> std::same_as<status>;
  { d.unmap_pages(p, bytes) } noexcept -> std::same_as<status>;
  { d.malloc_pinned(bytes, new_p) } noexcept -> std::same_as<status>;
  { d.free_pinned(p) } noexcept -> std::same_as<status>;
};

/// Requirements of the block sources.
template <class D>
concept block_driver =
    stream_driver<D> && requires(D const& d, std::size_t bytes, void* p, void*& new_p, stream_ref stream) {
      { d.malloc_device(bytes, new_p) } noexcept -> std::same_as<status>;
      { d.free_device(p) } noexcept -> std::same_as<status>;
      { d.malloc_async(bytes, stream, new_p) } noexcept -> std::same_as<status>;
      { d.free_async(p, stream) } noexcept -> std::same_as<status>;
      { d.malloc_pinned(bytes, new_p) } noexcept -> std::same_as<status>;
      { d.free_pinned(p) } noexcept -> std::same_as<status>;
      { d.malloc_managed(bytes, new_p) } noexcept -> std::same_as<status>;
      { d.free_managed(p) } noexcept -> std::same_as<status>;
    };

/// A driver that can pin existing host memory.
template <class D>
concept registering_driver = stream_driver<D> && requires(D const& d, void* p, std::size_t bytes) {
  { d.register_host(p, bytes) } noexcept -> std::same_as<status>;
  { d.unregister_host(p) } noexcept -> std::same_as<status>;
};

/// The memory of one of CUDA's default pools. Those of pinned and managed memory are new in CUDA 13; calls
/// with them are `unsupported` before, and on devices without them.
enum class async_memory : std::uint8_t { device, pinned, managed };

/// The host, where a call takes a device or the host.
inline constexpr device_id host_id{-1};

/// How managed memory will be used, and the undoing of each, as cudaMemoryAdvise numbers them. Advice changes
/// where pages are kept, never what they hold.
enum class memory_advice : std::uint8_t {
  read_mostly = 1,  ///< who reads gets a copy of its own; a write removes the copies. Of all devices
  not_read_mostly,
  preferred_location,  ///< pages stay there and are mapped by others, if they can be
  no_preferred_location,
  accessed_by,  ///< the device's mappings are kept up, so that it does not fault
  not_accessed_by
};

/// A driver with managed memory whose pages move while devices run. Both calls return `unsupported` where a
/// device that is named cannot do that (concurrentManagedAccess is 0), and for memory that is not managed.
/// prefetch() must not be called for a stream that is being captured: that ends the capture.
template <class D>
concept migrating_driver =
    stream_driver<D> && requires(D const& d, stream_ref stream, void const* p, device_id device) {
      { d.prefetch(stream, p, std::size_t{}, device) } noexcept -> std::same_as<status>;
      { d.advise(p, std::size_t{}, memory_advice::read_mostly, device) } noexcept -> std::same_as<status>;
    };

/// A driver through which a pool notifies an attached tool (compute-sanitizer, the simulated one) of its
/// allocated blocks. A heap may be accessed only inside a registered region; a null heap is not tracked.
/// Calls take effect immediately, regardless of stream order. memory_tool() returns a value that must not
/// outlive its driver.
template <class D>
concept memory_tool_driver = stream_driver<D> && requires(D const& d, void* p, std::size_t bytes) {
  static_cast<bool>(d.memory_tool());
  { d.memory_tool().register_heap(p, bytes) } noexcept -> std::same_as<void*>;
  { d.memory_tool().unregister_heap(p) } noexcept;
  { d.memory_tool().register_region(p, p, bytes) } noexcept;
  { d.memory_tool().unregister_region(p) } noexcept;
};

/// A device's memory by process, bytes, as far as the driver's management library reports it; other fields
/// stay `unknown`.
struct device_account {
  static constexpr std::size_t unknown = static_cast<std::size_t>(-1);
  std::size_t total = unknown;      ///< of the device, or of this process's partition, including `set_aside`
  std::size_t free = unknown;       ///< reported without a context, unlike memory_info()'s
  std::size_t set_aside = unknown;  ///< part of `total` reserved by driver and firmware, ECC included
  std::size_t this_process = unknown;     ///< as nvidia-smi shows it: context, modules, all allocations
  std::size_t other_processes = unknown;  ///< the same, summed over all other processes
  char const* source = "";                ///< the library that reported this; static storage
  char const* gap = "";  ///< why the processes are unknown; static storage, empty if they are known
};

/// A driver that reports more than memory_info() does: for reports, too slow for other uses. The call creates
/// no context.
template <class D>
concept accounting_driver = stream_driver<D> && requires(D const& d, device_account& account) {
  { d.memory_account(account) } noexcept -> std::same_as<status>;
};

// Memory and events that other processes use: what the driver calls exchange, and the optional part of the
// driver contract.
//
// | call                                                    | cost     | meaning                                                        |
// |---------------------------------------------------------|----------|----------------------------------------------------------------|
// | can_export_pages(type, bool&)                           | once     | whether the device creates pages that this type can export      |
// | create_pages(bytes, type, handle&)                      | 10 us    | as create_pages(bytes, handle&); the type cannot be changed later |
// | export_pages(handle, page_export&)                      |          | exports with the type that is set; a new descriptor at each call |
// | import_pages(page_export const&, handle&)               |          | the same memory, in this process; the descriptor stays the caller's |
// | create_shared_event(event&, token&)                     |          | an event for other processes, and what they open it with        |
// | open_shared_event(token, event&)                        |          | destroy_event() closes it                                       |
// | export_dma_buf(p, bytes, descriptor&)                   |          | a dma-buf of mapped pages; unsupported if the system has none   |
// | uuid(device_uuid&)                                      | 1 us     | the same in all processes; of a partition, its own              |

/// How other processes get at pages. Fixed when the pages are created.
enum class allocation_handle_type : std::uint8_t {
  none,                   ///< not at all
  posix_file_descriptor,  ///< processes of this machine, by a file descriptor
  fabric  ///< also processes of other machines, by a token of 64 bytes; needs a multi-node NVLink fabric
};

/// Pages as one process gives them to another.
struct page_export {
  allocation_handle_type type = allocation_handle_type::none;
  int descriptor = -1;                     ///< of posix_file_descriptor; whoever receives it closes it
  std::array<unsigned char, 64> fabric{};  ///< of fabric
};

/// What a process opens another process's event with.
using shared_event_token = std::array<unsigned char, 64>;

/// Identifies a device on any machine (CUuuid).
using device_uuid = std::array<unsigned char, 16>;

/// A driver whose pages and events other processes can use.
template <class D>
concept sharing_driver =
    page_driver<D> &&
    requires(D const& d, std::size_t bytes, void* p, page_handle h, page_handle& new_h, bool& yes,
             allocation_handle_type type, page_export& out, page_export const& in, event_handle& event,
             shared_event_token& token, int& descriptor, device_uuid& uuid) {
      { d.can_export_pages(type, yes) } noexcept -> std::same_as<status>;
      { d.create_pages(bytes, type, new_h) } noexcept -> std::same_as<status>;
      { d.export_pages(h, out) } noexcept -> std::same_as<status>;
      { d.import_pages(in, new_h) } noexcept -> std::same_as<status>;
      { d.create_shared_event(event, token) } noexcept -> std::same_as<status>;
      { d.open_shared_event(token, event) } noexcept -> std::same_as<status>;
      { d.export_dma_buf(p, bytes, descriptor) } noexcept -> std::same_as<status>;
      { d.uuid(uuid) } noexcept -> std::same_as<status>;
    };

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

/// A call of the driver contract, for counting and fault injection; device() is not included, it only reads a
/// member.
enum class driver_call : std::uint8_t { TARN_DRIVER_CALLS(TARN_ENUMERATOR) };

namespace detail {
inline constexpr char const* driver_call_names[] = {TARN_DRIVER_CALLS(TARN_NAME)};
}  // namespace detail

/// Number of calls.
inline constexpr std::size_t driver_call_count = std::size(detail::driver_call_names);

/// Returns the call at an index below driver_call_count, for loops over all of them.
[[nodiscard]] constexpr driver_call driver_call_at(std::size_t index) noexcept {
  return static_cast<driver_call>(index);
}

/// Returns the call's name in the contract; static storage.
[[nodiscard]] constexpr char const* name_of(driver_call call) noexcept {
  return detail::driver_call_names[static_cast<std::size_t>(call)];
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
