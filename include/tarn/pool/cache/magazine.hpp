// SPDX-License-Identifier: Apache-2.0
#pragma once
// What one thread caches for one stream: bounded arrays of free blocks, one per size class, and a few large
// blocks. A hit takes no lock and makes no driver call. (Name and idea: Bonwick and Adams, "Magazines and
// Vmem", USENIX 2001.)

#include <cstddef>
#include <cstdint>
#include <new>

#include "tarn/core/config.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/stream.hpp"
#include "tarn/pool/arena/size_class.hpp"

namespace TARN_NAMESPACE::detail {

/// A stack of blocks of one class. It has no array until the first block is put in.
struct magazine {
  void** blocks = nullptr;  ///< blocks[-1] is null, so that newest() needs no check for an empty magazine
  std::uint32_t count = 0;
  std::uint32_t capacity = 0;

  /// The most recently added block; null if there is none. Requires an array.
  [[nodiscard]] TARN_ALWAYS_INLINE void* newest() const noexcept { return *(blocks + count - 1); }
  /// Host memory of the array, bytes.
  [[nodiscard]] std::size_t host_bytes() const noexcept {
    return capacity != 0 ? (capacity + std::size_t{1}) * sizeof(void*) : 0;
  }
};

/// How many blocks of a class a magazine holds: 1 MiB worth, at least 2 and at most 64. A program that
/// replaces blocks at random then misses once in 20,000 pairs (64 blocks live, up to 256 KiB); with 256 KiB
/// worth, once in 120. All magazines of one stream on one thread together hold at most 104 MiB; what is too
/// much of the pool is returned before it grows (ladder.hpp).
[[nodiscard]] constexpr std::uint32_t magazine_capacity(unsigned size_class) noexcept {
  std::size_t const fit = 1_MiB / class_bytes(size_class);
  return static_cast<std::uint32_t>(fit < 2 ? 2 : (fit > 64 ? 64 : fit));
}
static_assert(
    [] {
      std::size_t all = 0;
      for (unsigned k = 0; k < class_count; ++k) all += magazine_capacity(k) * class_bytes(k);
      return all;
    }() <= 104_MiB,
    "the comments here and in pool/pool.hpp state this bound");

/// Blocks moved at once between a magazine and the arena: half a magazine, so that a thread that alternates
/// at the boundary does not reach the arena every time.
[[nodiscard]] constexpr std::uint32_t magazine_batch(unsigned size_class) noexcept {
  return magazine_capacity(size_class) / 2;
}

/// How much of the classes above run_limit a thread may keep of a stream when a request of such a class
/// misses, bytes; more where sizes repeat. Rows that grow from step to step never hit, and what waits for
/// their old sizes keeps free neighbours apart. Figures are in bench/README.md, "The numbers of the growth".
inline constexpr std::size_t most_at_miss = 2_MiB;

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

/// The blocks of one stream that one thread caches.
struct stream_cache {
  stream_id id = 0;
  stream_ref stream;
  std::uint64_t used = 0;  ///< the thread's count of stream changes when this one was last used
  /// The last freed block above class_limit. Only one: it serves a loop that frees and allocates the same
  /// size again. Any other request returns it to the heap first, so that large ranges coalesce as if it were
  /// not cached.
  void* large_block = nullptr;
  std::size_t large_bytes = 0;
  /// The most recently allocated large block. Only this one is cached when it is freed: a longer-lived block
  /// is not a temporary.
  void const* newest_large = nullptr;
  std::size_t newest_bytes = 0;
  large_magazine of_capture;  ///< empty unless the stream is captured
  magazine magazines[class_count];
  std::size_t most_kept = most_at_miss;     ///< see may_keep()
  std::size_t returned_bytes = 0;           ///< at the last miss of a class above run_limit
  bool was_returned[class_count + 1] = {};  ///< by the last call that returned any; the last is false

  stream_cache(stream_id stream_identity, stream_ref handle) noexcept : id(stream_identity), stream(handle) {}
  stream_cache& operator=(stream_cache&&) = delete;
  ~stream_cache() {
    for (magazine& m : magazines) {
      if (m.blocks != nullptr) delete[] (m.blocks - 1);
    }
  }

  /// A block that is freed with another size than its own is the arena's to report.
  [[nodiscard]] TARN_ALWAYS_INLINE bool may_keep_large(void const* p, std::size_t bytes) const noexcept {
    return newest_large == p && newest_bytes == bytes;
  }
  /// Bytes in the magazines.
  [[nodiscard]] std::size_t held_bytes() const noexcept {
    return of_capture.bytes() + (large_block != nullptr ? large_bytes : 0) + bytes_of_classes(0);
  }
  /// Bytes in the magazines of a class and of those above it.
  [[nodiscard]] std::size_t bytes_of_classes(unsigned first) const noexcept {
    std::size_t sum = 0;
    for (unsigned k = first; k < class_count; ++k) sum += magazines[k].count * class_bytes(k);
    return sum;
  }
  /// Bytes of the classes above run_limit that may stay although a request for one of them misses: twice what
  /// the last miss returned if this one asks for a class that it returned, since the sizes repeat. Else half
  /// of what might stay before, at least most_at_miss.
  [[nodiscard]] std::size_t may_keep(unsigned missed) noexcept {
    if (std::size_t const before = detail::exchange(returned_bytes, 0); before != 0)
      most_kept = was_returned[missed] ? 2 * before : max_of(most_at_miss, most_kept / 2);
    return most_kept;
  }
  /// Host memory of the magazines, bytes.
  [[nodiscard]] std::size_t host_bytes() const noexcept {
    std::size_t sum = sizeof(stream_cache);
    for (magazine const& m : magazines) sum += m.host_bytes();
    return sum;
  }

  /// Makes the array of a class. Returns false if the host has no memory: the block then goes without a
  /// magazine.
  [[nodiscard]] bool make_magazine(unsigned size_class) noexcept {
    magazine& m = magazines[size_class];
    std::uint32_t const capacity = magazine_capacity(size_class);
    void** const array = new (std::nothrow) void*[capacity + 1];
    if (array == nullptr) return false;
    array[0] = nullptr;
    m.blocks = array + 1;
    m.capacity = capacity;
    return true;
  }
};

}  // namespace TARN_NAMESPACE::detail
