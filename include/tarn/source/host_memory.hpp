// SPDX-License-Identifier: Apache-2.0
#pragma once
// host_memory: plain host memory from operator new, so that pools and policies run without a device.

#include <cstddef>
#include <new>

#include "tarn/driver/no_driver.hpp"
#include "tarn/source/block_source.hpp"

namespace TARN_NAMESPACE {

/// Aligned operator new and operator delete.
struct host_calls {
  using properties = property_set<host_accessible>;
  static constexpr char const* backend = "operator new";
  static constexpr std::size_t block_alignment = max_alignment;

  /// More than a process can address: malloc's 47 bits. Refused without a call, since sanitizers abort the
  /// program on such a request.
  static constexpr std::size_t address_space = 128_TiB;

  static status take(no_driver const&, std::size_t bytes, std::size_t alignment, void*& p) noexcept {
    if (bytes < address_space) p = ::operator new(bytes, std::align_val_t{alignment}, std::nothrow);
    if (p != nullptr) return {};
    return {failure::out_of_memory, 0, "", "operator new"};
  }
  static status give(no_driver const&, void* p, std::size_t, std::size_t alignment) noexcept {
    ::operator delete(p, std::align_val_t{alignment});
    return {};
  }
};

/// Pageable host memory with any alignment up to max_alignment. It has no streams: all work counts as already
/// done. If a device copies from or to it, wait for the copy before freeing.
using host_memory = block_source<no_driver, host_calls>;

}  // namespace TARN_NAMESPACE
