// SPDX-License-Identifier: Apache-2.0
#pragma once
// Memory tool notifications for one device, sent with that device current, because compute-sanitizer requires
// it for heaps.

#include <cstddef>

#include "tarn/driver/cuda_scope.hpp"
#include "tarn/driver/nvtx_memory.hpp"

namespace TARN_NAMESPACE {

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
