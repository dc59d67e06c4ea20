// SPDX-License-Identifier: Apache-2.0
#pragma once
// Blocks from cudaMalloc, for sources whose memory is of another kind. A tool that watches suballocated
// memory accepts no other: compute-sanitizer 2025.3.1 refuses, with an error, heaps over mapped pages and
// cudaMallocAsync's memory.

#include <cstddef>

#include "tarn/core/bytes.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/driver/driver.hpp"
#include "tarn/source/refusal.hpp"

namespace TARN_NAMESPACE::detail {

/// A driver that provides them.
template <class D>
concept plain_block_driver =
    stream_driver<D> && requires(D const& driver, std::size_t bytes, void* p, void*& new_p) {
      { driver.malloc_device(bytes, new_p) } noexcept -> std::same_as<status>;
      { driver.free_device(p) } noexcept -> std::same_as<status>;
    };

/// @throws out_of_memory, cuda_error; nothing has changed
template <plain_block_driver D>
[[nodiscard]] void* take_plain_block(D const& driver, std::size_t bytes) {
  void* p = nullptr;
  status const s = bytes <= max_request_bytes ? driver.malloc_device(bytes, p) : too_large();
  if (!s.ok()) refuse(driver, s, stream_ref{}, bytes, default_alignment);
  return p;
}
template <plain_block_driver D>
void give_plain_block(D const& driver, void* p) noexcept {
  (void)driver.free_device(p);
}

}  // namespace TARN_NAMESPACE::detail
