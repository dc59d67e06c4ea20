// SPDX-License-Identifier: Apache-2.0
#pragma once
// The large blocks that a thread caches for a stream that is captured.

#include <cstddef>
#include <cstdint>

#include "tarn/version.hpp"

namespace TARN_NAMESPACE::detail {

/// Free blocks above class_limit of a stream that is captured for a graph_memory, by exact size: the layers
/// of a network repeat the sizes of their temporaries. Unlike `large_block` they stay while others are
/// allocated, as long as the memory suffices: before the pool grows they go back, and the next blocks are not
/// kept.
struct large_magazine {
  static constexpr std::uint32_t capacity = 8;
  /// Blocks that are not kept after the memory was short. Returning all of them costs as much as 8
  /// allocations from the heap.
  static constexpr std::uint32_t pause = 32;
  struct entry {
    void* p = nullptr;
    std::size_t bytes = 0;
  };
  entry blocks[capacity];
  std::uint32_t count = 0;
  std::uint32_t refuses = 0;  ///< this many blocks

  /// The newest block of a size; null if there is none.
  [[nodiscard]] void* take(std::size_t bytes) noexcept {
    for (std::uint32_t i = count; i-- > 0;) {
      if (blocks[i].bytes != bytes) continue;
      void* const p = blocks[i].p;
      blocks[i] = blocks[--count];
      return p;
    }
    return nullptr;
  }
  /// Returns false if there is no room, or if it holds the block already.
  [[nodiscard]] bool put(void* p, std::size_t bytes) noexcept {
    if (refuses != 0) {
      --refuses;
      return false;
    }
    if (count == capacity || has(p)) return false;
    blocks[count++] = {p, bytes};
    return true;
  }
  [[nodiscard]] bool has(void const* p) const noexcept {
    for (std::uint32_t i = 0; i < count; ++i) {
      if (blocks[i].p == p) return true;
    }
    return false;
  }
  /// Any of them; `p` is null if there is none.
  [[nodiscard]] entry take_any() noexcept { return count != 0 ? blocks[--count] : entry{}; }
  [[nodiscard]] std::size_t bytes() const noexcept {
    std::size_t sum = 0;
    for (std::uint32_t i = 0; i < count; ++i) sum += blocks[i].bytes;
    return sum;
  }
};

}  // namespace TARN_NAMESPACE::detail
