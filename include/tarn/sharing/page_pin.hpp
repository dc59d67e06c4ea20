// SPDX-License-Identifier: Apache-2.0
#pragma once
// page_pin: keeps the physical segments behind a block in place, for libraries that registered or exported
// them; segments_of() lists them.

#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

#include "tarn/core/error.hpp"
#include "tarn/core/layers.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/pool_call.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/core/shared_resource.hpp"

namespace TARN_NAMESPACE {

namespace detail {

/// Whether a pool over pages, below layers that keep addresses, has the blocks.
template <class Memory>
inline constexpr bool has_segments = reachable<Memory, pool_call::pin>;

template <class Memory>
constexpr bool require_segments() noexcept {
  static_assert(has_segments<Memory>,
                "tarn: only blocks of a pool over a page source, such as cuda_pages, have segments: use "
                "`cuda_pages{} | pooled{}`");
  return has_segments<Memory>;
}

}  // namespace detail

/// Returns the physical segments behind a block or a part of one, in order: the blocks of a pool over pages
/// may lie across several handles that are mapped side by side. A library that looks at the first handle only
/// (cuMemRetainAllocationHandle of the first address) sees the first of these. The list is valid as long as
/// the block is not freed and the pool does not sleep and is not compacted; take a page_pin before.
///
/// @param p      into a block of the pool
/// @param bytes  up to the end of the block
/// @throws misuse (foreign_pointer)  not all of these bytes are in blocks of the pool. A small freed block
/// may not be noticed
/// @throws pool_asleep               the pool sleeps
/// @throws cuda_error (unsupported)  the device has no virtual memory management, or a memory tool is
/// attached: the pool then has
///                                   cudaMalloc blocks and no handles
/// @throws std::bad_alloc, cuda_error  nothing has changed
/// Thread-safe. Stops all threads' caches for a moment, as trim() does. O(views + segments), no driver call.
template <class Memory>
[[nodiscard]] std::vector<memory_segment> segments_of(Memory const& memory, void const* p, std::size_t bytes,
                                                      source_location where = source_location::current()) {
  std::vector<memory_segment> all;
  if constexpr (detail::require_segments<Memory>()) {
    auto const add = [&](memory_segment const& s) { all.push_back(s); };
    detail::called_from(where, [&] { nearest(memory, pool_call::each_segment{p, bytes, add}); });
  }
  return all;
}

/// Keeps the physical pages behind a block mapped at their addresses while it lives: they are not given back,
/// moved, replaced by compact() or put to sleep. For memory that is exported or registered with a
/// communication library. sleep() gives back the rest of the pool, and pinned contents stay on the device.
///
/// The block should outlive the pin: after it was freed, its pages stay, but the pool gives the bytes to
/// others. Pins of one block, or of blocks that share a handle, are counted. Keeps a copy of the handle on
/// the memory. Thread-safe.
template <class Memory>
class [[nodiscard]] page_pin {
 public:
  /// @throws as segments_of(); misuse: by a handler of the pool's own growth, which may be moving the pages.
  /// Stops all threads' caches for a moment; O(views + segments)
  page_pin(Memory memory, void const* p, std::size_t bytes,
           source_location where = source_location::current())
      : memory_(std::move(memory)), p_(p), bytes_(bytes) {
    if constexpr (detail::require_segments<Memory>()) {
      detail::called_from(where, [&] { nearest(memory_, pool_call::pin{p, bytes}); });
    }
  }
  page_pin(page_pin&& other) noexcept
      : memory_(other.memory_), p_(detail::exchange(other.p_, nullptr)), bytes_(other.bytes_) {}
  /// Ends this pin, and takes over the other.
  page_pin& operator=(page_pin&& other) noexcept {
    if (this == &other) return *this;
    end();
    memory_ = other.memory_;
    p_ = detail::exchange(other.p_, nullptr);
    bytes_ = other.bytes_;
    return *this;
  }
  /// Waits for the pool's growth lock: another thread may be growing the pool.
  ~page_pin() { end(); }

  /// The driver of the memory's device.
  [[nodiscard]] decltype(auto) driver() const noexcept { return memory_.driver(); }
  [[nodiscard]] void const* data() const noexcept { return p_; }
  [[nodiscard]] std::size_t size_bytes() const noexcept { return p_ != nullptr ? bytes_ : 0; }
  /// The physical segments, which do not change while the pin lives. @throws as segments_of()
  [[nodiscard]] std::vector<memory_segment> segments(
      source_location where = source_location::current()) const {
    return segments_of(memory_, p_, bytes_, where);
  }

 private:
  void end() noexcept {
    if constexpr (detail::has_segments<Memory>) {
      if (p_ != nullptr) nearest(memory_, pool_call::unpin{p_, bytes_});
    }
  }

  Memory memory_;
  void const* p_;
  std::size_t bytes_;
};

}  // namespace TARN_NAMESPACE
