// SPDX-License-Identifier: Apache-2.0
#pragma once
// call_names: the calls of a handle as other versions of CCCL name them.

#include <concepts>
#include <cstddef>

#include "tarn/core/attribution.hpp"
#include "tarn/core/bytes.hpp"
#include "tarn/core/config.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/core/stream.hpp"

namespace TARN_NAMESPACE {

/// The base of a handle that has allocate, deallocate, allocate_sync and deallocate_sync: the same four calls
/// under their other names. A handle writes `using call_names<Handle>::allocate` and `deallocate`, which its
/// own would hide.
template <class Handle>
class call_names {
 public:
  // As CCCL 3.0 (CUDA 13.0) names them. A braced {} never converts to bytes.

  template <has_allocate_sync H = Handle>
  [[nodiscard]] TARN_ALWAYS_INLINE void* allocate(detail::byte_count bytes,
                                                  std::size_t alignment = default_alignment,
                                                  attribution call = attribution::current()) {
    return static_cast<H&>(*this).allocate_sync(bytes.value, alignment, call);
  }
  template <std::integral Bytes, has_deallocate_sync H = Handle>
  TARN_ALWAYS_INLINE void deallocate(void* p, Bytes bytes, std::size_t alignment = default_alignment,
                                     attribution call = attribution::current()) noexcept {
    static_cast<H&>(*this).deallocate_sync(p, static_cast<std::size_t>(bytes), alignment, call);
  }

  // As earlier versions name them.

  template <has_allocate H = Handle>
  [[nodiscard]] TARN_ALWAYS_INLINE void* allocate_async(std::size_t bytes, std::size_t alignment,
                                                        stream_ref stream,
                                                        attribution call = attribution::current()) {
    return static_cast<H&>(*this).allocate(stream, bytes, alignment, call);
  }
  template <has_allocate H = Handle>
  [[nodiscard]] TARN_ALWAYS_INLINE void* allocate_async(std::size_t bytes, stream_ref stream,
                                                        attribution call = attribution::current()) {
    return static_cast<H&>(*this).allocate(stream, bytes, default_alignment, call);
  }
  template <has_deallocate H = Handle>
  TARN_ALWAYS_INLINE void deallocate_async(void* p, std::size_t bytes, std::size_t alignment,
                                           stream_ref stream,
                                           attribution call = attribution::current()) noexcept {
    static_cast<H&>(*this).deallocate(stream, p, bytes, alignment, call);
  }
  template <has_deallocate H = Handle>
  TARN_ALWAYS_INLINE void deallocate_async(void* p, std::size_t bytes, stream_ref stream,
                                           attribution call = attribution::current()) noexcept {
    static_cast<H&>(*this).deallocate(stream, p, bytes, default_alignment, call);
  }
};

}  // namespace TARN_NAMESPACE
