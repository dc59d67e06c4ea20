// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the thread that opened a capture_scope remembers of the blocks that its stream uses inside the capture, so that the calls on
// that stream take no lock of the graph memories.
//
// A block of a graph memory is recorded by its address while it is live (graph_blocks.hpp). Blocks of this cache stay recorded when the
// capture frees them into the part, and are forgotten together when the scope ends. If anything else takes one of them meanwhile,
// as another thread does that frees it, graph_blocks counts a change, and the cache starts anew.

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tarn/core/config.hpp"
#include "tarn/core/stream.hpp"

namespace tarn::detail {

/// The blocks of one capture by address, live or freed: a hash table with linear probing, at most half full. Used by the thread that
/// opened the scope, and by the one that ends it; `changes` by any, under the mutex of graph_blocks.
class capture_cache {
 public:
  std::atomic<std::uint64_t> changes{0};

  /// The identity under which the part keeps what the captured stream frees. 0: the cache is not in use.
  stream_id kept_as = 0;

  /// Whether a block was taken away from the cache: what it remembers is void until clear().
  [[nodiscard]] bool is_old() const noexcept { return changes.load(std::memory_order_acquire) != seen_; }

  /// Marks a block as live. Returns false if it is not in the cache.
  [[nodiscard]] bool take(void const* p) noexcept {
    std::uintptr_t* const at = find(p);
    if (at == nullptr) return false;
    *at |= is_live;
    return true;
  }
  /// Marks a block as free. Returns false if it is not in the cache as a live one.
  [[nodiscard]] bool give(void const* p) noexcept {
    std::uintptr_t* const at = find(p);
    if (at == nullptr || (*at & is_live) == 0) return false;
    *at &= ~is_live;
    return true;
  }
  /// Adds a live block that is not there. Returns false if there is no room.
  [[nodiscard]] bool has_room() const noexcept { return count_ < most; }
  void add(void const* p) noexcept {
    std::size_t i = first_place(p);
    while (index_[i] != 0) i = (i + 1) % places;
    blocks_[count_++] = reinterpret_cast<std::uintptr_t>(p) | is_live;
    index_[i] = static_cast<std::uint16_t>(count_);
  }
  /// Empties the cache. Calls f(free blocks, count), which forgets those that were freed.
  template <class F>
  void clear(F const& f) noexcept {
    if (count_ != 0) {
      void* free[most];
      std::size_t count = 0;
      for (std::size_t i = 0; i < count_; ++i) {
        if ((blocks_[i] & is_live) == 0)
          free[count++] = reinterpret_cast<void*>(blocks_[i]);  // NOLINT: an address
      }
      for (std::uint16_t& place : index_) place = 0;
      count_ = 0;
      if (count != 0) f(static_cast<void* const*>(free), count);
    }
    seen_ = changes.load(std::memory_order_acquire);
  }

 private:
  static constexpr std::uintptr_t is_live = 1;  ///< blocks are aligned to more
  static constexpr std::size_t places = 1024;
  static constexpr std::size_t most = places / 2;

  [[nodiscard]] static std::size_t first_place(void const* p) noexcept {
    return static_cast<std::size_t>(
        (std::uint64_t{reinterpret_cast<std::uintptr_t>(p)} * 0x9E3779B97F4A7C15U) >> 54);
  }
  [[nodiscard]] std::uintptr_t* find(void const* p) noexcept {
    std::size_t i = first_place(p);
    for (; index_[i] != 0; i = (i + 1) % places) {
      std::uintptr_t& block = blocks_[index_[i] - 1];
      if ((block & ~is_live) == reinterpret_cast<std::uintptr_t>(p)) return &block;
    }
    return nullptr;
  }

  std::uint64_t seen_ = 0;
  std::size_t count_ = 0;
  std::uint16_t index_[places] = {};  ///< 1 + the position in blocks_, 0 where there is none
  std::uintptr_t blocks_[most];
};

}  // namespace tarn::detail
