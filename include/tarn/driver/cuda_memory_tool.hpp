// SPDX-License-Identifier: Apache-2.0
#pragma once
// Memory tool notifications for one device, through NVTX's memory extension, which notifies tools such as
// compute-sanitizer of sub-allocations. They are sent with that device current, because compute-sanitizer
// requires it for heaps.

#include <cstddef>

#include "tarn/core/config.hpp"
#include "tarn/driver/cuda_scope.hpp"

#if TARN_HAS_CUDA && defined(__has_include)
#if __has_include(<nvtx3/nvToolsExtMem.h>)
// Some releases of NVTX name a variable `module`, for which nvcc emits warning 3189 in every program that
// includes them.
#ifdef __NVCC_DIAG_PRAGMA_SUPPORT__
#pragma nv_diagnostic push
#pragma nv_diag_suppress 3189
#endif
#include <nvtx3/nvToolsExtMem.h>
#ifdef __NVCC_DIAG_PRAGMA_SUPPORT__
#pragma nv_diagnostic pop
#endif
#define TARN_HAS_NVTX_MEMORY 1
#endif
#endif
#ifndef TARN_HAS_NVTX_MEMORY
#define TARN_HAS_NVTX_MEMORY 0
#endif

#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace TARN_NAMESPACE {

/// A tool that tracks sub-allocations; converts to false if none is attached. A value type, the same
/// throughout the process.
///
/// A heap is a range of device memory that is sub-allocated: its bytes may be accessed only inside a
/// registered region. Registrations take effect immediately, regardless of stream order: synchronise first.
class nvtx_memory {
 public:
  constexpr nvtx_memory() noexcept = default;

  /// Looks for the tool once and caches the result; CUDA must be initialised. Without a tool, no NVTX call is
  /// ever made.
  [[nodiscard]] static nvtx_memory attached() noexcept {
    static nvtx_memory const found = find();
    return found;
  }
  explicit operator bool() const noexcept { return domain_ != nullptr || present_; }

#if TARN_HAS_NVTX_MEMORY
  /// Returns null if the tool rejects the memory: all of it may then be accessed, and the tool reports an
  /// error. compute-sanitizer 2025.3.1 accepts blocks of cudaMalloc and parts of them, but neither mapped
  /// pages nor memory of cudaMallocAsync.
  [[nodiscard]] void* register_heap(void const* p, std::size_t bytes) const noexcept {
    nvtxMemVirtualRangeDesc_t const range{bytes, p};
    nvtxMemHeapDesc_t heap{};
    heap.extCompatID = NVTX_EXT_COMPATID_MEM;
    heap.structSize = sizeof heap;
    heap.usage = NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR;
    heap.type = NVTX_MEM_TYPE_VIRTUAL_ADDRESS;
    heap.typeSpecificDescSize = sizeof range;
    heap.typeSpecificDesc = &range;
    nvtxMemHeapHandle_t const made = nvtxMemHeapRegister(domain(), &heap);
    return is_real(made) ? made : nullptr;
  }
  /// Removes the heap. None of it may be accessed any more; free the memory next.
  void unregister_heap(void* heap) const noexcept {
    nvtxMemHeapUnregister(domain(), static_cast<nvtxMemHeapHandle_t>(heap));
  }
  /// Removes all regions; the heap is as newly registered.
  void reset_heap(void* heap) const noexcept {
    nvtxMemHeapReset(domain(), static_cast<nvtxMemHeapHandle_t>(heap));
  }
  void register_region(void* heap, void const* p, std::size_t bytes) const noexcept {
    nvtxMemVirtualRangeDesc_t const range{bytes, p};
    nvtxMemRegionsRegisterBatch_t batch{};
    batch.extCompatID = NVTX_EXT_COMPATID_MEM;
    batch.structSize = sizeof batch;
    batch.regionType = NVTX_MEM_TYPE_VIRTUAL_ADDRESS;
    batch.heap = static_cast<nvtxMemHeapHandle_t>(heap);
    batch.regionCount = 1;
    batch.regionDescElementSize = sizeof range;
    batch.regionDescElements = &range;
    nvtxMemRegionsRegister(domain(), &batch);
  }
  void unregister_region(void const* p) const noexcept {
    nvtxMemRegionRef_t region{};
    region.pointer = p;
    nvtxMemRegionsUnregisterBatch_t batch{};
    batch.extCompatID = NVTX_EXT_COMPATID_MEM;
    batch.structSize = sizeof batch;
    batch.refType = NVTX_MEM_REGION_REF_TYPE_POINTER;
    batch.refCount = 1;
    batch.refElementSize = sizeof region;
    batch.refElements = &region;
    nvtxMemRegionsUnregister(domain(), &batch);
  }

 private:
  constexpr nvtx_memory(void* domain, bool present) noexcept : domain_(domain), present_(present) {}

  static nvtx_memory find() noexcept {
    // A tool names its library here (NVTX loads no other); without one, even the check would cost a file
    // system lookup.
    if (std::getenv("NVTX_INJECTION64_PATH") == nullptr) return {};
    nvtxDomainHandle_t const domain = nvtxDomainCreateA("tarn");
    // Probes with a call that has no effect: profilers implement ranges and marks, but not this call.
    nvtxMemPermissionsHandle_t const made =
        nvtxMemPermissionsCreate(domain, NVTX_MEM_PERMISSIONS_CREATE_FLAGS_NONE);
    if (!is_real(made)) return {};
    nvtxMemPermissionsDestroy(domain, made);
    return {domain, true};
  }
  /// Without a tool, handles are null or all ones: the NVTX headers document both, in macros that do not
  /// compile as C++.
  [[nodiscard]] static bool is_real(void const* handle) noexcept {
    auto const bits = reinterpret_cast<std::uintptr_t>(handle);
    return bits != 0 && bits != ~std::uintptr_t{0};
  }
  [[nodiscard]] nvtxDomainHandle_t domain() const noexcept {
    return static_cast<nvtxDomainHandle_t>(domain_);
  }
#else
  [[nodiscard]] void* register_heap(void const*, std::size_t) const noexcept { return nullptr; }
  void unregister_heap(void*) const noexcept {}
  void reset_heap(void*) const noexcept {}
  void register_region(void*, void const*, std::size_t) const noexcept {}
  void unregister_region(void const*) const noexcept {}

 private:
  static nvtx_memory find() noexcept { return {}; }
#endif

  void* domain_ = nullptr;
  bool present_ = false;  ///< a tool without domains returns a null domain
};

/// nvtx_memory for one device; converts to false if no tool is attached. A value type.
class cuda_memory_tool {
 public:
  constexpr cuda_memory_tool() noexcept = default;
  cuda_memory_tool(nvtx_memory tool, int device) noexcept : tool_(tool), device_(device) {}
  explicit operator bool() const noexcept { return static_cast<bool>(tool_); }

  [[nodiscard]] void* register_heap(void const* p, std::size_t bytes) const noexcept {
    detail::on_device const here(device_);
    return here.entered().ok() ? tool_.register_heap(p, bytes) : nullptr;
  }
  void unregister_heap(void* heap) const noexcept {
    detail::on_device const here(device_);
    if (here.entered().ok()) tool_.unregister_heap(heap);
  }
  void register_region(void* heap, void const* p, std::size_t bytes) const noexcept {
    detail::on_device const here(device_);
    if (here.entered().ok()) tool_.register_region(heap, p, bytes);
  }
  void unregister_region(void const* p) const noexcept {
    detail::on_device const here(device_);
    if (here.entered().ok()) tool_.unregister_region(p);
  }

 private:
  nvtx_memory tool_;
  int device_ = 0;
};

}  // namespace TARN_NAMESPACE
