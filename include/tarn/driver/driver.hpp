// SPDX-License-Identifier: Apache-2.0
#pragma once
// The driver contract: each call, its cost and its failure. Two models ship: cuda_driver and sim_driver;
// no_driver stands in where there are no streams (plain host memory).
//
// A driver is a small copyable value for one device. Every call is const, noexcept and safe from any thread,
// works whatever device is current, leaves the current device as it was, and returns a status; results go to
// the last parameter. No call throws, none allocates on the caller's behalf except where it says so. Costs
// are of one H200 (bench/results). `stream` handles are the driver's own; a null handle is the default
// stream.
//
// | call                                                         | cost             | meaning                                                             |
// |--------------------------------------------------------------|------------------|---------------------------------------------------------------------|
// | device()                                                     | 0                | the device's ordinal                                                |
// | survives_fork(), optional                                    | 0                | whether a forked child may use the driver; without it, no           |
// | identify(stream, id&)                                        | ~30 ns           | the identity behind a handle; default streams have fixed ones, the per-thread default one per thread |
// | is_capturing(stream, bool&)                                  | ~30 ns           | true while a graph is captured from it                              |
// | create_event(event&), destroy_event(event)                   | 230 ns           | without timing                                                      |
// | record_event(event, stream)                                  | 250 ns           | marks the work so far                                               |
// | query_event(event)                                           | 260 ns           | ok: done; not_ready: not yet; never touches an event of a capture   |
// | wait_event(stream, event)                                    | 230 ns           | later work on stream waits for the mark                             |
// | synchronize_event(event), _stream(stream), _device()         | blocks           | waits on the host                                                   |
// | create_stream(stream&), destroy_stream(stream)               | 5 us             | non-blocking with respect to the legacy default stream              |
// | copy(stream, to, from, bytes)                                | 2 us             | any direction, asynchronous to the host where the memory allows     |
// | copy_from_device(stream, to, device, from, bytes), optional  | 2 us             | the same from another device's memory, whoever may access it        |
// | fill(stream, to, byte, bytes)                                | 2 us             | sets bytes                                                          |
// | convert(stream, to, from, count), optional                   | 4 us             | a kernel that converts elements (core/element) in device memory     |
// | can_share(device, bool&), optional                           | once             | whether that device's work can be let at this one's pages           |
// | memory_info(free&, total&)                                   | 5 us             | of the whole device, as cudaMemGetInfo                              |
// | page_granularity(bytes&)                                     | once             | unsupported: no virtual memory management here                      |
// | reserve_range(bytes, alignment, p&), release_range(p, bytes) | 5-77 us          | address space                                                       |
// | create_pages(bytes, handle&), destroy_pages(handle)          | 10 us, 15-338 us | physical memory                                                     |
// | map_pages(p, bytes, handle), unmap_pages(p, bytes)           | 26 us, 17 us     | map and grant access; exactly one map is undone                     |
// | share_pages(p, bytes, device), optional                      | 25 us            | lets that device's work, too, at what is mapped there               |
// | malloc_device(bytes, p&), free_device(p)                     | 58 us, 40 us     | cudaMalloc                                                          |
// | malloc_async(bytes, stream, p&), free_async(p, stream)       | 0.7 us warm      | cudaMallocAsync                                                     |
// | malloc_pinned(bytes, p&), free_pinned(p)                     | 460 ms/GiB       | cudaHostAlloc, portable                                             |
// | malloc_managed(bytes, p&), free_managed(p)                   |                  | cudaMallocManaged                                                   |
// | register_host(p, bytes), unregister_host(p), optional        | see registered_host | pins memory that the host has already, whole pages, portable      |
// | memory_tool(), optional                                      | once             | what watches pieces of memory, false without one: see describing_driver |
// | memory_account(account&), optional                           | 10-100 ms        | whose the device's memory is, as nvidia-smi shows it: see accounting_driver |

#include <concepts>
#include <cstddef>

#include "tarn/core/device.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/core/stream.hpp"

namespace tarn {

/// An event as its driver knows it.
using event_handle = void*;

/// What stream order needs; every driver has it.
template <class D>
concept stream_driver = std::copyable<D> && std::equality_comparable<D> &&
    requires(D const& d, stream_ref stream, stream_ref& new_stream, stream_id& id, bool& yes,
             event_handle event, event_handle& new_event, void* to, void const* from, std::size_t bytes,
             std::size_t& total) {
  { d.device() }
  noexcept->std::same_as<device_id>;
  { d.identify(stream, id) }
  noexcept->std::same_as<status>;
  { d.is_capturing(stream, yes) }
  noexcept->std::same_as<status>;
  { d.create_event(new_event) }
  noexcept->std::same_as<status>;
  { d.destroy_event(event) }
  noexcept->std::same_as<status>;
  { d.record_event(event, stream) }
  noexcept->std::same_as<status>;
  { d.query_event(event) }
  noexcept->std::same_as<status>;
  { d.wait_event(stream, event) }
  noexcept->std::same_as<status>;
  { d.synchronize_event(event) }
  noexcept->std::same_as<status>;
  { d.synchronize_stream(stream) }
  noexcept->std::same_as<status>;
  { d.synchronize_device() }
  noexcept->std::same_as<status>;
  { d.create_stream(new_stream) }
  noexcept->std::same_as<status>;
  { d.destroy_stream(stream) }
  noexcept->std::same_as<status>;
  { d.copy(stream, to, from, bytes) }
  noexcept->std::same_as<status>;
  { d.fill(stream, to, 0, bytes) }
  noexcept->std::same_as<status>;
  { d.memory_info(bytes, total) }
  noexcept->std::same_as<status>;
};

/// True where a child of fork() may use what the driver gave its parent.
template <class D>
[[nodiscard]] constexpr bool survives_fork(D const& driver) noexcept {
  if constexpr (requires { driver.survives_fork(); }) {
    return driver.survives_fork();
  } else {
    return false;
  }
}

/// What a page source needs.
template <class D>
concept page_driver = stream_driver<D> && requires(D const& d, std::size_t bytes, std::size_t& out, void* p,
                                                   void*& new_p, page_handle h, page_handle& new_h) {
  { d.page_granularity(out) }
  noexcept->std::same_as<status>;
  { d.reserve_range(bytes, bytes, new_p) }
  noexcept->std::same_as<status>;
  { d.release_range(p, bytes) }
  noexcept->std::same_as<status>;
  { d.create_pages(bytes, new_h) }
  noexcept->std::same_as<status>;
  { d.destroy_pages(h) }
  noexcept->std::same_as<status>;
  { d.map_pages(p, bytes, h) }
  noexcept->std::same_as<status>;
  { d.unmap_pages(p, bytes) }
  noexcept->std::same_as<status>;
};

/// What the block sources need.
template <class D>
concept block_driver = stream_driver<D> &&
    requires(D const& d, std::size_t bytes, void* p, void*& new_p, stream_ref stream) {
  { d.malloc_device(bytes, new_p) }
  noexcept->std::same_as<status>;
  { d.free_device(p) }
  noexcept->std::same_as<status>;
  { d.malloc_async(bytes, stream, new_p) }
  noexcept->std::same_as<status>;
  { d.free_async(p, stream) }
  noexcept->std::same_as<status>;
  { d.malloc_pinned(bytes, new_p) }
  noexcept->std::same_as<status>;
  { d.free_pinned(p) }
  noexcept->std::same_as<status>;
  { d.malloc_managed(bytes, new_p) }
  noexcept->std::same_as<status>;
  { d.free_managed(p) }
  noexcept->std::same_as<status>;
};

/// What pins memory that the host has already.
template <class D>
concept registering_driver = stream_driver<D> && requires(D const& d, void* p, std::size_t bytes) {
  { d.register_host(p, bytes) }
  noexcept->std::same_as<status>;
  { d.unregister_host(p) }
  noexcept->std::same_as<status>;
};

/// What lets a pool tell an attached tool (compute-sanitizer, the simulated one) which of its bytes are handed out.
/// A heap may be touched only where a region covers it; a null heap is one that the tool does not watch. Effects are
/// immediate, whatever the streams do. The reference is a value that lives no longer than its driver.
template <class D>
concept describing_driver = stream_driver<D> && requires(D const& d, void* p, std::size_t bytes) {
  static_cast<bool>(d.memory_tool());
  { d.memory_tool().register_heap(p, bytes) }
  noexcept->std::same_as<void*>;
  { d.memory_tool().unregister_heap(p) }
  noexcept;
  { d.memory_tool().register_region(p, p, bytes) }
  noexcept;
  { d.memory_tool().unregister_region(p) }
  noexcept;
};

/// Whose a device's memory is, bytes, as far as the driver's management library tells; the rest stays `unknown`.
struct device_account {
  static constexpr std::size_t unknown = static_cast<std::size_t>(-1);
  std::size_t total =
      unknown;                 ///< of the device, or of this process's part of it, what is set aside included
  std::size_t free = unknown;  ///< told without a context, unlike memory_info()'s
  std::size_t set_aside = unknown;  ///< of it by the driver and the firmware, for themselves and for ECC
  std::size_t this_process =
      unknown;  ///< what nvidia-smi shows for it: context, modules, all that it allocated
  std::size_t other_processes = unknown;  ///< the same of all others together
  char const* source = "";                ///< who says so; static storage
  char const* gap = "";  ///< why processes are unknown; static storage, empty where they are known
};

/// What can tell more of a device than memory_info(): for reports, too slow for anything else. Asking sets up no context.
template <class D>
concept accounting_driver = stream_driver<D> && requires(D const& d, device_account& account) {
  { d.memory_account(account) }
  noexcept->std::same_as<status>;
};

}  // namespace tarn
