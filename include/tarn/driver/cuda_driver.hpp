// SPDX-License-Identifier: Apache-2.0
#pragma once
// The CUDA driver: the runtime API, plus virtual memory management from the driver API.
//
// Over 400 lines: one short function for each call of the driver contract (driver.hpp).

#include <cuda_runtime_api.h>
#if defined(__linux__)
#include <unistd.h>
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tarn/core/bytes.hpp"
#include "tarn/core/thread_tag.hpp"
#include "tarn/driver/capture_gate.hpp"
#include "tarn/driver/captured_handles.hpp"
#include "tarn/driver/cuda_entry_points.hpp"
#include "tarn/driver/cuda_memory_tool.hpp"
#include "tarn/driver/cuda_runtime_calls.hpp"
#include "tarn/driver/cuda_scope.hpp"
#include "tarn/driver/driver.hpp"
#include "tarn/driver/meminfo.hpp"
#include "tarn/driver/nvml.hpp"
#include "tarn/driver/stream_device.hpp"
#include "tarn/driver/stream_life.hpp"

namespace TARN_NAMESPACE {

/// The stream that a null handle refers to.
enum class null_stream : std::uint8_t {
  legacy,     ///< the device's default stream, which synchronises with all blocking streams
  per_thread  ///< one default stream per thread (nvcc --default-stream per-thread)
};

namespace detail {
/// Number of devices of the process; asked once. Makes no context.
[[nodiscard]] inline int cuda_device_count() noexcept {
  static int const count = [] {
    int found = 0;
    bool const asked = cudart::cudaGetDeviceCount(&found) == cudaSuccess;
    if (!asked) (void)cudart::cudaGetLastError();
    return asked ? found : 0;
  }();
  return count;
}
/// Fails if there is no device of this number. Makes no context.
[[nodiscard]] inline status find_cuda_device(device_id device) noexcept {
  if (device.value >= 0 && device.value < cuda_device_count()) return {};
  return {failure::no_device, static_cast<int>(cudaErrorInvalidDevice), "cudaErrorInvalidDevice",
          "cudaGetDeviceCount"};
}
/// The streams that CUDA drivers of both kinds created.
[[nodiscard]] inline made_streams& streams_made_by_cuda() noexcept {
  static constinit made_streams all;
  return all;
}
}  // namespace detail

/// CUDA behind the driver contract, for one device. The size of an int; copies are equal.
///
/// It never passes a null handle on: a null stream is resolved here, by `Null`, so that translation units
/// built with and without --default-stream per-thread use different types and agree on the meaning of each.
///
/// A per-thread default stream has the same handle in all threads. If a stream_ref carries the identity of
/// another thread's default stream (which the pool recorded at a free on that thread), no handle refers to
/// it. The call then uses the legacy default stream, which synchronises with every blocking stream: the
/// requested order holds, and more.
///
/// No call except record_all() invalidates a graph capture on another stream; identify() of a bare handle
/// invalidates one on that stream, unless a capture_scope is open. Errors that tarn handles itself do not
/// stay in cudaGetLastError. After the runtime is unloaded at process exit, each call returns `unloading`.
template <null_stream Null>
class basic_cuda_driver {
 public:
  static constexpr bool null_is_legacy = Null == null_stream::legacy;

  /// Uses the calling thread's current device; device 0 if the query fails (the first call then reports the
  /// failure).
  basic_cuda_driver() noexcept {
    if (!detail::cuda_status(detail::cudart::cudaGetDevice(&device_), "cudaGetDevice").ok()) device_ = 0;
  }
  explicit constexpr basic_cuda_driver(device_id device) noexcept : device_(device.value) {}

  [[nodiscard]] device_id device() const noexcept { return device_id{device_}; }

  /// Returns the calling thread's current device, for device_guard.
  static status current_device(device_id& device) noexcept {
    return detail::cuda_status(detail::cudart::cudaGetDevice(&device.value), "cudaGetDevice");
  }
  static status set_current_device(device_id device) noexcept {
    return detail::cuda_status(detail::cudart::cudaSetDevice(device.value), "cudaSetDevice");
  }

  // Streams and events.

  /// Default streams have identities that no other stream, device or thread ever has; they need no driver
  /// call.
  status identify(stream_ref stream, stream_id& id) const noexcept {
    cudaStream_t const handle = resolve(stream);
    if (stream.id() != stream_ref::unknown_id) {
      id = stream.id();
    } else if (handle == cudaStreamLegacy) {
      id = stream_id{2} << 62 | bits_of(device_);
    } else if (handle == cudaStreamPerThread) {
      id = per_thread_id(device_);
    } else if (status found; detail::identify_captured(*this, stream, id, found)) [[unlikely]] {
      return found;
    } else {
      // Invalidates a capture of the stream, and fails, if no scope is open for it. Runs at each use of a
      // bare handle: the stream may be destroyed, and its handle given to a new one, between two calls of one
      // pair, so no memory of the last stream proves that this one is the same. A question takes 19 ns: with
      // two of them a warm pair takes 51.5 ns instead of 13.2 (H200). hot_pair/65536 of
      // bench/results/hot_paths_cuda.jsonl: `tarn` and `tarn_identified`.
      unsigned long long number = 0;
      auto const ask = detail::cuda_driver_calls().stream_get_id;
      status const s = ask != nullptr ? detail::cuda_status(ask(handle, &number), "cuStreamGetId")
                                      : detail::cuda_status(detail::cudart::cudaStreamGetId(handle, &number),
                                                            "cudaStreamGetId");
      if (!s.ok()) {
        (void)detail::cudart::cudaGetLastError();  // checking whether a stream still exists is not a caller's
                                                   // error
        return s;
      }
      id = number;
    }
    return {};
  }

  /// Where a stream lives, as far as it was learned; no driver call. A default stream with an identity is
  /// that of the device which the identity names, one without is this device's.
  [[nodiscard]] device_id known_device(stream_ref stream) const noexcept {
    if (is_default(resolve(stream)) || detail::cuda_device_count() < 2) return device_id{device_for(stream)};
    return devices_of_streams().find(stream.id());
  }
  /// Where an existing stream lives. Invalidates a capture of the stream.
  status ask_device(stream_ref stream, device_id& device) const noexcept {
    cudaStream_t const handle = resolve(stream);
    auto const ask = detail::cuda_driver_calls().stream_get_device;
    if (ask == nullptr) return device_by_context(handle, device);  // before CUDA 12.8
    CUdevice found = 0;
    status const s = detail::cuda_status(ask(handle, &found), "cuStreamGetDevice");
    if (s.ok()) device = device_id{found};
    return s;
  }
  /// The same through the stream's context.
  static status device_by_context(cudaStream_t handle, device_id& device) noexcept {
    auto const& calls = detail::cuda_driver_calls();
    if (calls.stream_get_context == nullptr || !calls.has_contexts())
      return detail::cuda_lacks("cuStreamGetCtx");
    CUcontext context = nullptr;
    status s = detail::cuda_status(calls.stream_get_context(handle, &context), "cuStreamGetCtx");
    if (s.ok()) s = detail::cuda_status(calls.context_push(context), "cuCtxPushCurrent");
    if (!s.ok()) return s;
    CUdevice found = 0;
    s = detail::cuda_status(calls.context_get_device(&found), "cuCtxGetDevice");
    (void)calls.context_pop(&context);
    if (s.ok()) device = device_id{found};
    return s;
  }
  [[nodiscard]] detail::stream_devices& devices_of_streams() const noexcept {
    return detail::devices_of_cuda_streams();
  }
  /// Makes this the driver of another device.
  void retarget(device_id device) noexcept { device_ = device.value; }
  /// The device whose default streams the calling thread means: the current one, or this one where the
  /// current one has no context, so that no work can be there.
  [[nodiscard]] device_id named_device() const noexcept {
    int current = device_;
    auto const ask = detail::cuda_driver_calls().primary_context_get_state;
    if (detail::cudart::cudaGetDevice(&current) != cudaSuccess || current == device_ || ask == nullptr)
      return device();
    unsigned flags = 0;
    int active = 0;
    bool const has_context =
        ask(static_cast<CUdevice>(current), &flags, &active) == CUDA_SUCCESS && active != 0;
    return has_context ? device_id{current} : device();
  }

  /// Also true if the capture was invalidated but not ended, and for the legacy default stream while a
  /// blocking stream is captured: any work on it would then invalidate that capture.
  status is_capturing(stream_ref stream, bool& yes) const noexcept {
    cudaStream_t const handle = reach(stream);
    auto const ask = detail::cuda_driver_calls().stream_is_capturing;
    if (ask != nullptr && !is_default(handle)) {
      // A stream that was created has its context, so that none must be made current; the runtime takes 50 ns
      // with that.
      CUstreamCaptureStatus now = CU_STREAM_CAPTURE_STATUS_NONE;
      status const s = detail::cuda_status(ask(handle, &now), "cuStreamIsCapturing");
      if (s.ok()) yes = now != CU_STREAM_CAPTURE_STATUS_NONE;
      return s;
    }
    detail::on_device const here(device_for(stream));
    if (!here.entered().ok()) return here.entered();
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    cudaError_t const code = detail::cudart::cudaStreamIsCapturing(handle, &capture);
    if (code == cudaErrorStreamCaptureImplicit) {
      (void)detail::cudart::cudaGetLastError();  // a result, not an error
      yes = true;
      return {};
    }
    status const s = detail::cuda_status(code, "cudaStreamIsCapturing");
    if (s.ok()) yes = capture != cudaStreamCaptureStatusNone;
    return s;
  }

  status create_event(event_handle& event) const noexcept {
    cudaEvent_t made = nullptr;
    // Without timing: half the cost, and no wait of the stream for a timestamp.
    status const s = on_device("cudaEventCreateWithFlags", device_, [&] {
      return detail::cudart::cudaEventCreateWithFlags(&made, cudaEventDisableTiming);
    });
    if (s.ok()) event = made;
    return s;
  }
  status destroy_event(event_handle event) const noexcept {
    return on_device("cudaEventDestroy", device_,
                     [&] { return detail::cudart::cudaEventDestroy(native(event)); });
  }
  status record_event(event_handle event, stream_ref stream) const noexcept {
    return on_device("cudaEventRecord", device_for(stream),
                     [&] { return detail::cudart::cudaEventRecord(native(event), reach(stream)); });
  }
  /// Marks all work submitted to the device so far, on every stream, including destroyed ones; uses no stream
  /// handle. Fails while any stream is captured; `unsupported` before CUDA 12.5.
  status record_all(event_handle event) const noexcept {
    auto const& calls = detail::cuda_driver_calls();
    if (calls.context_record_event == nullptr || calls.primary_context_release == nullptr) {
      return detail::cuda_lacks("cuCtxRecordEvent");
    }
    detail::on_device const here(device_);
    if (!here.entered().ok()) return here.entered();
    CUcontext context = nullptr;
    status s =
        detail::cuda_status(calls.primary_context_retain(&context, device_), "cuDevicePrimaryCtxRetain");
    if (!s.ok()) return s;
    detail::beside_capture const permission;
    s = detail::cuda_status(calls.context_record_event(context, native(event)), "cuCtxRecordEvent");
    (void)calls.primary_context_release(device_);
    return s;
  }
  status query_event(event_handle event) const noexcept {
    return beside_captures("cudaEventQuery", device_,
                           [&] { return detail::cudart::cudaEventQuery(native(event)); });
  }
  status wait_event(stream_ref stream, event_handle event) const noexcept {
    return on_device("cudaStreamWaitEvent", device_for(stream),
                     [&] { return detail::cudart::cudaStreamWaitEvent(reach(stream), native(event), 0); });
  }
  status synchronize_event(event_handle event) const noexcept {
    return beside_captures("cudaEventSynchronize", device_,
                           [&] { return detail::cudart::cudaEventSynchronize(native(event)); });
  }
  /// Must not be called for a stream that is being captured: that ends the capture.
  status synchronize_stream(stream_ref stream) const noexcept {
    return beside_captures("cudaStreamSynchronize", device_for(stream),
                           [&] { return detail::cudart::cudaStreamSynchronize(reach(stream)); });
  }
  status synchronize_device() const noexcept {
    return beside_captures("cudaDeviceSynchronize", device_,
                           [&] { return detail::cudart::cudaDeviceSynchronize(); });
  }
  /// The new stream_ref holds the stream's identity.
  status create_stream(stream_ref& stream) const noexcept {
    detail::on_device const here(device_);
    if (!here.entered().ok()) return here.entered();
    cudaStream_t made = nullptr;
    status s = detail::cuda_status(detail::cudart::cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking),
                                   "cudaStreamCreateWithFlags");
    if (!s.ok()) return s;
    stream_id id = stream_ref::unknown_id;
    s = identify(stream_ref(made), id);
    if (s.ok()) {
      stream = stream_ref::from(made, id);
      detail::streams_made_by_cuda().add(id, made);
      devices_of_streams().note(id, device());
    } else {
      (void)detail::cudart::cudaStreamDestroy(made);
    }
    return s;
  }
  /// Does nothing for default streams.
  status destroy_stream(stream_ref stream) const noexcept {
    cudaStream_t const handle = resolve(stream);
    if (is_default(handle)) return {};
    detail::on_device const here(device_);
    if (!here.entered().ok()) return here.entered();
    stream_id id = stream_ref::unknown_id;
    if (identify(stream, id).ok()) detail::streams_made_by_cuda().remove(id);
    return detail::cuda_status(detail::cudart::cudaStreamDestroy(handle), "cudaStreamDestroy");
  }

  /// Returns true if create_stream() of any driver created the stream and it is not destroyed: its handle may
  /// be used. Nothing is known of other streams, since CUDA may crash on the handle of a destroyed one.
  [[nodiscard]] bool has_made(stream_ref stream) const noexcept {
    return detail::streams_made_by_cuda().has(stream.id());
  }
  /// The identity of an existing stream, without a driver call; unknown_id if create_stream() did not create
  /// it.
  [[nodiscard]] stream_id made_identity(void* handle) const noexcept {
    return detail::streams_made_by_cuda().identity_of(handle);
  }

  // Copies.

  status copy(stream_ref stream, void* to, void const* from, std::size_t bytes) const noexcept {
    if (bytes == 0) return {};
    // Memory that did not come from cudaMalloc can only be copied with its device current.
    return on_device("cudaMemcpyAsync", device_for(stream), [&] {
      return detail::cudart::cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, reach(stream));
    });
  }
  /// Copies from another device's memory to this device's, on a stream of this device. Unlike copy() it needs
  /// no peer access: pages mapped for their own device only may be copied.
  status copy_from_device(stream_ref stream, void* to, device_id other, void const* from,
                          std::size_t bytes) const noexcept {
    if (bytes == 0) return {};
    return on_device("cudaMemcpyPeerAsync", device_for(stream), [&] {
      return detail::cudart::cudaMemcpyPeerAsync(to, device_, from, other.value, bytes, reach(stream));
    });
  }
  status fill(stream_ref stream, void* to, int byte, std::size_t bytes) const noexcept {
    if (bytes == 0) return {};
    return on_device("cudaMemsetAsync", device_for(stream),
                     [&] { return detail::cudart::cudaMemsetAsync(to, byte, bytes, reach(stream)); });
  }
  /// Converts elements on the device. Defined in driver/cuda_convert.hpp, compiled by nvcc.
  template <class To, class From>
  status convert(stream_ref stream, To* to, From const* from, std::size_t count) const noexcept;

  /// What cudaMalloc may need beside the bytes that it allocates, for page tables and rounding. With up
  /// to 5.2 MiB more than 1 GiB free, a cudaMalloc of 1 GiB failed (H200, driver 580).
  [[nodiscard]] static constexpr std::size_t allocation_overhead() noexcept { return 16_MiB; }
  /// Of an integrated GPU, which has the host's memory, `free` is what the host reports as available: CUDA
  /// counts the page cache as used. Not so where a card of its own shares the host's page tables (GH200).
  status memory_info(std::size_t& free, std::size_t& total) const noexcept {
    status const s = beside_captures("cudaMemGetInfo", device_,
                                     [&] { return detail::cudart::cudaMemGetInfo(&free, &total); });
    int integrated = 0;
    if (s.ok() &&
        detail::cudart::cudaDeviceGetAttribute(&integrated, cudaDevAttrIntegrated, device_) == cudaSuccess &&
        integrated != 0)
      detail::use_available(total, free);
    return s;
  }
  /// Reports NVML's figures. Loads NVML at run time; a program that calls this links libdl if that is a
  /// separate library (glibc before 2.34). unsupported: NVML is missing or does not know the device.
  status memory_account(device_account& account) const noexcept {
    detail::nvml_question asked;
#if defined(__linux__)
    asked.pid = static_cast<unsigned>(::getpid());
#endif
    auto const get_uuid = detail::cuda_driver_calls().device_get_uuid;
    CUuuid uuid{};
    if (get_uuid != nullptr && get_uuid(&uuid, static_cast<CUdevice>(device_)) == CUDA_SUCCESS) {
      std::memcpy(asked.uuid, uuid.bytes, sizeof asked.uuid);
    }
    status const s =
        detail::cuda_status(detail::cudart::cudaDeviceGetPCIBusId(
                                asked.pci_bus_id, static_cast<int>(sizeof asked.pci_bus_id), device_),
                            "cudaDeviceGetPCIBusId");
    if (!s.ok()) return s;
    return detail::nvml_account(detail::nvml(), asked, account);
  }

  /// Initialises the device's primary context first: a tool attaches when CUDA starts.
  [[nodiscard]] cuda_memory_tool memory_tool() const noexcept {
    detail::on_device const here(device_);
    if (!here.entered().ok()) return {};
    detail::beside_capture const permission;
    if (!detail::cuda_status(detail::cudart::cudaFree(nullptr), "cudaFree").ok()) return {};
    return {nvtx_memory::attached(), device_};
  }

  // Pages. These calls name their device and work with any current context.

  /// Returns the recommended granularity in bytes, 2 MiB on every device so far. Also initialises the
  /// device's primary context, without which mapped memory could not be used. unsupported: this device (many
  /// virtual GPUs, WDDM before 2020) or driver has no virtual memory management; a pool over pages then uses
  /// malloc_device().
  status page_granularity(std::size_t& bytes) const noexcept {
    status s = beside_captures("cudaFree", device_, [] { return detail::cudart::cudaFree(nullptr); });
    if (!s.ok()) return s;
    auto const& calls = detail::cuda_driver_calls();
    if (!calls.has_pages() || !attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)) {
      return detail::cuda_lacks("cuMemGetAllocationGranularity");
    }
    CUmemAllocationProp const properties = page_properties(allocation_handle_type::none);
    std::size_t granularity = 0;
    s = detail::cuda_status(
        calls.get_granularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
        "cuMemGetAllocationGranularity");
    if (s.ok()) bytes = granularity;
    return s;
  }
  status reserve_range(std::size_t bytes, std::size_t alignment, void*& p) const noexcept {
    CUdeviceptr address = 0;
    status const s = on_pages("cuMemAddressReserve", [&](auto const& calls) {
      return calls.reserve(&address, bytes, alignment, 0, 0);
    });
    if (s.ok()) p = reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
    return s;
  }
  status release_range(void* p, std::size_t bytes) const noexcept {
    return on_pages("cuMemAddressFree",
                    [&](auto const& calls) { return calls.unreserve(address_of(p), bytes); });
  }
  status create_pages(std::size_t bytes, page_handle& handle) const noexcept {
    return create_pages(bytes, allocation_handle_type::none, handle);
  }
  status create_pages(std::size_t bytes, allocation_handle_type type, page_handle& handle) const noexcept {
    CUmemGenericAllocationHandle made = 0;
    status const s = on_pages("cuMemCreate", [&](auto const& calls) {
      CUmemAllocationProp const properties = page_properties(type);
      return calls.create(&made, bytes, &properties, 0);
    });
    if (s.ok()) handle = made;
    return s;
  }
  status destroy_pages(page_handle handle) const noexcept {
    return on_pages("cuMemRelease", [&](auto const& calls) { return calls.release(handle); });
  }
  /// Maps the whole handle (cuMemMap's offset must be 0) and grants this device read and write access. If
  /// granting access fails, nothing is mapped.
  status map_pages(void* p, std::size_t bytes, page_handle handle) const noexcept {
    auto const& calls = detail::cuda_driver_calls();
    if (!calls.has_pages()) return detail::cuda_lacks("cuMemMap");
    status s = detail::cuda_status(calls.map(address_of(p), bytes, 0, handle, 0), "cuMemMap");
    if (!s.ok()) return s;
    CUmemAccessDesc const access{memory_of(device_), CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    s = detail::cuda_status(calls.set_access(address_of(p), bytes, &access, 1), "cuMemSetAccess");
    if (!s.ok()) (void)calls.unmap(address_of(p), bytes);
    return s;
  }
  status unmap_pages(void* p, std::size_t bytes) const noexcept {
    return on_pages("cuMemUnmap", [&](auto const& calls) { return calls.unmap(address_of(p), bytes); });
  }
  /// Reports whether another device can access this device's pages, over NVLink or PCIe. If so, initialises
  /// the other device's primary context, without which it could not use the mapping.
  status can_share(device_id other, bool& yes) const noexcept {
    if (other.value == device_) {
      yes = true;
      return {};
    }
    int can = 0;
    status s = detail::cuda_status(detail::cudart::cudaDeviceCanAccessPeer(&can, other.value, device_),
                                   "cudaDeviceCanAccessPeer");
    if (s.ok() && can != 0) {
      s = beside_captures("cudaFree", other.value, [] { return detail::cudart::cudaFree(nullptr); });
    }
    if (s.ok()) yes = can != 0;
    return s;
  }
  /// Grants another device read and write access to the mapping at [p, p + bytes), until it is unmapped. This
  /// device keeps its access.
  status share_pages(void* p, std::size_t bytes, device_id other) const noexcept {
    CUmemAccessDesc const access{memory_of(other.value), CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    return on_pages("cuMemSetAccess",
                    [&](auto const& calls) { return calls.set_access(address_of(p), bytes, &access, 1); });
  }

  // Pages and events of other processes.

  /// A device may report the fabric and still refuse to create pages with it, as an H200 without one does: a
  /// handle of one granule is created and released to find out. A full device can say no more than that it
  /// reports the fabric.
  status can_export_pages(allocation_handle_type type, bool& yes) const noexcept {
    auto const& calls = detail::cuda_driver_calls();
    if (!calls.has_pages()) return detail::cuda_lacks("cuMemCreate");
    yes = type == allocation_handle_type::none ||
          attribute(type == allocation_handle_type::fabric
                        ? fabric_supported
                        : CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
    if (!yes || type != allocation_handle_type::fabric) return {};
    std::size_t granularity = 0;
    status s = page_granularity(granularity);
    if (!s.ok()) return s;
    page_handle trial = 0;
    s = create_pages(granularity, type, trial);
    yes = s.ok() || s.kind == failure::out_of_memory;
    return s.ok() ? destroy_pages(trial) : status{};
  }
  status export_pages(page_handle handle, page_export& exported) const noexcept {
    bool const by_fabric = exported.type == allocation_handle_type::fabric;
    void* const into = by_fabric ? static_cast<void*>(exported.fabric.data()) : &exported.descriptor;
    return on_pages("cuMemExportToShareableHandle", [&](auto const& calls) {
      return calls.export_handle(into, handle, native(exported.type), 0);
    });
  }
  status import_pages(page_export const& exported, page_handle& handle) const noexcept {
    // CUDA takes a fabric token by a pointer to non-const, and a descriptor in place of one
    page_export copy = exported;
    void* const from = copy.type == allocation_handle_type::fabric
                           ? static_cast<void*>(copy.fabric.data())
                           : reinterpret_cast<void*>(static_cast<std::intptr_t>(copy.descriptor));
    CUmemGenericAllocationHandle made = 0;
    status const s = on_pages("cuMemImportFromShareableHandle", [&](auto const& calls) {
      return calls.import_handle(&made, from, native(copy.type));
    });
    if (s.ok()) handle = made;
    return s;
  }
  status create_shared_event(event_handle& event, shared_event_token& token) const noexcept {
    detail::on_device const here(device_);
    if (!here.entered().ok()) return here.entered();
    cudaEvent_t made = nullptr;
    status s = detail::cuda_status(
        detail::cudart::cudaEventCreateWithFlags(&made, cudaEventDisableTiming | cudaEventInterprocess),
        "cudaEventCreateWithFlags");
    if (!s.ok()) return s;
    cudaIpcEventHandle_t exported{};
    s = detail::cuda_status(detail::cudart::cudaIpcGetEventHandle(&exported, made), "cudaIpcGetEventHandle");
    if (!s.ok()) {
      (void)detail::cudart::cudaEventDestroy(made);
      return s;
    }
    static_assert(sizeof exported == sizeof(shared_event_token));
    std::memcpy(token.data(), &exported, sizeof exported);
    event = made;
    return {};
  }
  status open_shared_event(shared_event_token const& token, event_handle& event) const noexcept {
    cudaIpcEventHandle_t exported{};
    std::memcpy(&exported, token.data(), sizeof exported);
    cudaEvent_t opened = nullptr;
    status const s = on_device("cudaIpcOpenEventHandle", device_,
                               [&] { return detail::cudart::cudaIpcOpenEventHandle(&opened, exported); });
    if (s.ok()) event = opened;
    return s;
  }
  /// CUDA needs `p` and `bytes` to be multiples of the host's page size, and all of the range in one handle.
  status export_dma_buf(void* p, std::size_t bytes, int& descriptor) const noexcept {
    auto const& calls = detail::cuda_driver_calls();
    if (calls.get_range_handle == nullptr || !attribute(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED)) {
      return detail::cuda_lacks("cuMemGetHandleForAddressRange");
    }
    return detail::cuda_status(
        calls.get_range_handle(&descriptor, address_of(p), bytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0),
        "cuMemGetHandleForAddressRange");
  }
  status uuid(device_uuid& id) const noexcept {
    auto const get = detail::cuda_driver_calls().device_get_uuid;
    if (get == nullptr) return detail::cuda_lacks("cuDeviceGetUuid");
    CUuuid found{};
    status const s = detail::cuda_status(get(&found, static_cast<CUdevice>(device_)), "cuDeviceGetUuid");
    if (s.ok()) std::memcpy(id.data(), found.bytes, sizeof found.bytes);
    return s;
  }

  // Blocks.

  status malloc_device(std::size_t bytes, void*& p) const noexcept {
    return beside_captures("cudaMalloc", device_, [&] { return detail::cudart::cudaMalloc(&p, bytes); });
  }
  /// Makes the memory's device current, like every free: otherwise a thread new to CUDA would initialise
  /// device 0's context.
  status free_device(void* p) const noexcept {
    return beside_captures("cudaFree", device_, [&] { return detail::cudart::cudaFree(p); });
  }
  /// Whether the device has memory pools; some virtual GPUs and Jetson devices do not. True if CUDA does not
  /// answer: the first allocation then reports why. Creates no context.
  [[nodiscard]] bool has_memory_pools() const noexcept {
    int value = 0;
    status const s = detail::cuda_status(
        detail::cudart::cudaDeviceGetAttribute(&value, cudaDevAttrMemoryPoolsSupported, device_),
        "cudaDeviceGetAttribute");
    return !s.ok() || value != 0;
  }
  /// On a stream that is being captured this becomes a graph node, and the graph owns the memory.
  status malloc_async(std::size_t bytes, stream_ref stream, void*& p) const noexcept {
    return on_device("cudaMallocAsync", device_for(stream),
                     [&] { return detail::cudart::cudaMallocAsync(&p, bytes, reach(stream)); });
  }
  status malloc_async(std::size_t bytes, stream_ref stream, async_memory memory, void*& p) const noexcept {
    if (memory == async_memory::device) return malloc_async(bytes, stream, p);
    cudaMemPool_t pool = nullptr;
    status const s = default_pool(memory, pool);
    if (!s.ok()) return s;
    return on_device("cudaMallocFromPoolAsync", device_for(stream),
                     [&] { return detail::cudart::cudaMallocFromPoolAsync(&p, bytes, pool, reach(stream)); });
  }
  /// Finds the pool of pinned or managed memory, and lets all devices access that of pinned memory, as they
  /// access other pinned memory. CUDA lets none by itself.
  status open_memory_pool(async_memory memory) const noexcept {
    cudaMemPool_t pool = nullptr;
    status const s = default_pool(memory, pool);
    if (!s.ok() || memory != async_memory::pinned) return invalid_as_unsupported(s);
    return invalid_as_unsupported(on_device("cudaMemPoolSetAccess", device_, [&] {
      int count = 0;
      cudaError_t result = detail::cudart::cudaGetDeviceCount(&count);
      for (int device = 0; device < count && result == cudaSuccess; ++device) {
        cudaMemAccessDesc access{};
        access.location.type = cudaMemLocationTypeDevice;
        access.location.id = device;
        access.flags = cudaMemAccessFlagsProtReadWrite;
        result = detail::cudart::cudaMemPoolSetAccess(pool, &access, 1);
      }
      return result;
    }));
  }
  status free_async(void* p, stream_ref stream) const noexcept {
    return on_device("cudaFreeAsync", device_for(stream),
                     [&] { return detail::cudart::cudaFreeAsync(p, reach(stream)); });
  }
  /// Sets the bytes that the device's default memory pool, used by malloc_async, keeps at a synchronisation
  /// instead of releasing them. The pool and its setting are process-wide. CUDA's default is 0.
  status set_release_threshold(std::size_t bytes) const noexcept {
    detail::on_device const here(device_);
    if (!here.entered().ok()) return here.entered();
    cudaMemPool_t pool = nullptr;
    status const s = default_pool(async_memory::device, pool);
    if (!s.ok()) return s;
    std::uint64_t threshold = bytes;
    return detail::cuda_status(
        detail::cudart::cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold),
        "cudaMemPoolSetAttribute");
  }
  /// Portable: pinned for the contexts of all devices. Without on_device() a context would be created on the
  /// current one.
  status malloc_pinned(std::size_t bytes, void*& p) const noexcept {
    return beside_captures("cudaHostAlloc", device_,
                           [&] { return detail::cudart::cudaHostAlloc(&p, bytes, cudaHostAllocPortable); });
  }
  status free_pinned(void* p) const noexcept {
    if (p == nullptr) return {};
    return beside_captures("cudaFreeHost", device_, [&] { return detail::cudart::cudaFreeHost(p); });
  }
  /// Pins existing host memory, for the contexts of all devices.
  status register_host(void* p, std::size_t bytes) const noexcept {
    return beside_captures("cudaHostRegister", device_, [&] {
      return detail::cudart::cudaHostRegister(p, bytes, cudaHostRegisterPortable);
    });
  }
  status unregister_host(void* p) const noexcept {
    if (p == nullptr) return {};
    return beside_captures("cudaHostUnregister", device_,
                           [&] { return detail::cudart::cudaHostUnregister(p); });
  }
  status malloc_managed(std::size_t bytes, void*& p) const noexcept {
    return beside_captures("cudaMallocManaged", device_,
                           [&] { return detail::cudart::cudaMallocManaged(&p, bytes, cudaMemAttachGlobal); });
  }
  status prefetch(stream_ref stream, void const* p, std::size_t bytes, device_id to) const noexcept {
    if (bytes == 0) return {};
    status s = can_migrate(device_for(stream));
    if (s.ok()) s = can_migrate(to.value);
    if (!s.ok()) return s;
    return invalid_as_unsupported(beside_captures("cudaMemPrefetchAsync", device_for(stream), [&] {
#if CUDART_VERSION >= 13000
      return detail::cudart::cudaMemPrefetchAsync(p, bytes, location_of(to), 0, reach(stream));
#else
      return detail::cudart::cudaMemPrefetchAsync(p, bytes, to.value, reach(stream));
#endif
    }));
  }
  status advise(void const* p, std::size_t bytes, memory_advice advice, device_id where) const noexcept {
    if (bytes == 0) return {};
    if (status const s = can_migrate(where.value); !s.ok()) return s;
    return invalid_as_unsupported(beside_captures("cudaMemAdvise", device_, [&] {
      auto const native = static_cast<cudaMemoryAdvise>(advice);
#if CUDART_VERSION >= 13000
      return detail::cudart::cudaMemAdvise(p, bytes, native, location_of(where));
#else
      return detail::cudart::cudaMemAdvise(p, bytes, native, where.value);
#endif
    }));
  }
  status free_managed(void* p) const noexcept {
    return beside_captures("cudaFree", device_, [&] { return detail::cudart::cudaFree(p); });
  }

  /// Drivers are equal if they are of the same device.
  friend constexpr bool operator==(basic_cuda_driver a, basic_cuda_driver b) noexcept {
    return a.device_ == b.device_;
  }

 private:
  /// Makes a call with a device current. Its result is a cudaError_t or CUresult of the function `name`.
  template <class Call>
  static status on_device(char const* name, int device, Call const& call) noexcept {
    detail::on_device const here(device);
    return here.entered().ok() ? detail::cuda_status(call(), name) : here.entered();
  }
  /// Likewise, and captures on other threads stay valid.
  template <class Call>
  static status beside_captures(char const* name, int device, Call const& call) noexcept {
    return on_device(name, device, [&] {
      detail::beside_capture const permission;
      return call();
    });
  }
  /// Makes a call of virtual memory management, if the driver library has it.
  template <class Call>
  static status on_pages(char const* name, Call const& call) noexcept {
    auto const& calls = detail::cuda_driver_calls();
    return calls.has_pages() ? detail::cuda_status(call(calls), name) : detail::cuda_lacks(name);
  }

  /// The pool of a kind of memory that the whole process shares.
  status default_pool(async_memory memory, cudaMemPool_t& pool) const noexcept {
    if (memory == async_memory::device) {
      return detail::cuda_status(detail::cudart::cudaDeviceGetDefaultMemPool(&pool, device_),
                                 "cudaDeviceGetDefaultMemPool");
    }
#if CUDART_VERSION >= 13000
    bool const is_pinned = memory == async_memory::pinned;
    cudaMemLocation location{};
    location.type = is_pinned ? cudaMemLocationTypeHost : cudaMemLocationTypeNone;
    return on_device("cudaMemGetDefaultMemPool", device_, [&] {
      return detail::cudart::cudaMemGetDefaultMemPool(
          &pool, &location, is_pinned ? cudaMemAllocationTypePinned : cudaMemAllocationTypeManaged);
    });
#else
    return detail::cuda_lacks("cudaMemGetDefaultMemPool");
#endif
  }
  /// Fails unless a device can move pages of managed memory while it runs. The host can.
  static status can_migrate(int device) noexcept {
    int can = 1;
    if (device == host_id.value) return {};
    status const s = detail::cuda_status(
        detail::cudart::cudaDeviceGetAttribute(&can, cudaDevAttrConcurrentManagedAccess, device),
        "cudaDeviceGetAttribute");
    return s.ok() && can == 0 ? detail::cuda_lacks("cudaMemPrefetchAsync, cudaMemAdvise") : s;
  }
  /// CUDA calls memory that is not managed an invalid value, and a pool that it does not have.
  static status invalid_as_unsupported(status s) noexcept {
    if (s.code != static_cast<int>(cudaErrorInvalidValue)) return s;
    (void)detail::cudart::cudaGetLastError();
    s.kind = failure::unsupported;
    return s;
  }
#if CUDART_VERSION >= 13000
  [[nodiscard]] static cudaMemLocation location_of(device_id device) noexcept {
    cudaMemLocation location{};
    location.type = device == host_id ? cudaMemLocationTypeHost : cudaMemLocationTypeDevice;
    location.id = device == host_id ? 0 : device.value;
    return location;
  }
#else
  static_assert(cudaCpuDeviceId == host_id.value);
#endif
  static_assert(static_cast<int>(memory_advice::read_mostly) == cudaMemAdviseSetReadMostly &&
                static_cast<int>(memory_advice::not_accessed_by) == cudaMemAdviseUnsetAccessedBy);

  // Identities of default streams. cudaStreamGetId counts up from 1 and never reaches the upper half:
  //   bits 63..62   10 legacy, 11 per-thread
  //   bits 61..54   device
  //   bits 53..0    the thread's number plus an offset that depends on the counter's address: shared objects built with hidden
  //                 visibility have their own counter, and no two threads collide before 2^54 threads
  [[nodiscard]] static stream_id per_thread_id(int device) noexcept {
    auto const counter =
        static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(&detail::last_thread_number));
    std::uint64_t const start = counter * 0x9E3779B97F4A7C15U >> 10;
    return stream_id{3} << 62 | bits_of(device) |
           ((start + detail::this_thread_number()) & ((stream_id{1} << 54) - 1));
  }
  [[nodiscard]] static stream_id bits_of(int device) noexcept {
    return stream_id{static_cast<unsigned>(device) & 0xffU} << 54;
  }

  /// Replaces a null handle.
  [[nodiscard]] static cudaStream_t resolve(stream_ref stream) noexcept {
    if (stream.handle() != nullptr) return static_cast<cudaStream_t>(stream.handle());
    return Null == null_stream::legacy ? cudaStreamLegacy : cudaStreamPerThread;
  }
  /// The device to enter for a call on a stream: the handles of default streams mean the current device's,
  /// those of others their own.
  [[nodiscard]] int device_for(stream_ref stream) const noexcept {
    bool const names_device = stream.id() >> 63 != 0 && is_default(resolve(stream));
    return names_device ? static_cast<int>(stream.id() >> 54 & 0xffU) : device_;
  }
  /// Returns the stream to submit work to so that it is ordered with `stream`; see the class.
  [[nodiscard]] cudaStream_t reach(stream_ref stream) const noexcept {
    cudaStream_t const handle = resolve(stream);
    if (handle == cudaStreamPerThread && stream.id() != stream_ref::unknown_id &&
        stream.id() != per_thread_id(device_for(stream))) {
      return cudaStreamLegacy;
    }
    return handle;
  }
  [[nodiscard]] static bool is_default(cudaStream_t handle) noexcept {
    return handle == cudaStreamLegacy || handle == cudaStreamPerThread;
  }
  [[nodiscard]] static cudaEvent_t native(event_handle event) noexcept {
    return static_cast<cudaEvent_t>(event);
  }
  [[nodiscard]] static CUdeviceptr address_of(void* p) noexcept {
    return static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(p));
  }

  [[nodiscard]] static CUmemLocation memory_of(int device) noexcept {
    CUmemLocation location{};
    location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    location.id = device;
    return location;
  }
  // In cuda.h since 12.4.
  static constexpr int fabric_supported = 128;  // CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED
  // CU_MEM_HANDLE_TYPE_FABRIC
  static constexpr auto fabric_handles = static_cast<CUmemAllocationHandleType>(8);
  [[nodiscard]] static CUmemAllocationHandleType native(allocation_handle_type type) noexcept {
    switch (type) {
      case allocation_handle_type::posix_file_descriptor:
        return CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
      case allocation_handle_type::fabric:
        return fabric_handles;
      default:
        return CU_MEM_HANDLE_TYPE_NONE;
    }
  }
  /// Plain device memory. Accessible to network cards if the device supports it: like the handle type, that
  /// can only be set at creation.
  [[nodiscard]] CUmemAllocationProp page_properties(allocation_handle_type type) const noexcept {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = native(type);
    properties.location = memory_of(device_);
    if (attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)) {
      properties.allocFlags.gpuDirectRDMACapable = 1;
    }
    return properties;
  }
  [[nodiscard]] bool attribute(int which) const noexcept {
    int value = 0;
    auto const get = detail::cuda_driver_calls().device_get_attribute;
    return get(&value, static_cast<CUdevice_attribute>(which), static_cast<CUdevice>(device_)) ==
               CUDA_SUCCESS &&
           value != 0;
  }

  int device_ = 0;
};

/// The driver for this translation unit's null streams: legacy, or per-thread if nvcc compiles with
/// --default-stream per-thread (or CUDA_API_PER_THREAD_DEFAULT_STREAM is defined).
#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
using cuda_driver = basic_cuda_driver<null_stream::per_thread>;
#else
using cuda_driver = basic_cuda_driver<null_stream::legacy>;
#endif

static_assert(stream_driver<cuda_driver> && page_driver<cuda_driver> && block_driver<cuda_driver> &&
              registering_driver<cuda_driver> && migrating_driver<cuda_driver> &&
              memory_tool_driver<cuda_driver> && accounting_driver<cuda_driver> &&
              sharing_driver<cuda_driver> && detail::multi_device_driver<cuda_driver>);

}  // namespace TARN_NAMESPACE
