// SPDX-License-Identifier: Apache-2.0
#pragma once
// The thread cache: how a thread finds its magazines, and how they return to the heap when the thread or the
// pool ends.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "tarn/core/at_fork.hpp"
#include "tarn/core/config.hpp"
#include "tarn/core/mutex.hpp"
#include "tarn/core/owned.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/core/wait.hpp"
#include "tarn/pool/arena/stream_table.hpp"
#include "tarn/pool/cache/magazine.hpp"
#include "tarn/pool/cache/owner_lock.hpp"

namespace TARN_NAMESPACE::detail {

/// Number of streams per thread with magazines; the least recently used one is evicted. It is more than
/// programs use at a time and small enough to search: 64 compares when the stream changes.
inline constexpr std::size_t cached_streams = 64;

/// The blocks that one thread caches of one pool. The pool owns it; the thread uses it under `lock`.
struct alignas(cache_line_bytes) thread_cache {
  owner_lock lock;
  stream_cache* last = nullptr;  ///< the stream used last: nearly always the next one, too
  /// Written by the owner thread, read by any: bytes and blocks that this thread allocated less those it
  /// freed.
  std::atomic<std::int64_t> live_bytes{0};
  std::atomic<std::int64_t> live_blocks{0};
  /// Bytes in the magazines; other threads read it to decide whether to visit.
  std::atomic<std::size_t> held_bytes{0};
  std::atomic<std::size_t> host_bytes{0};  ///< host memory of the magazines
  unsigned watches = 0;                    ///< open captures of this thread; under the mutex of the list
  std::uint64_t serial = 0;                ///< never reused, unlike the address
  /// The stream of a capture that this thread has opened, so that its calls find it without a lock;
  /// unknown_id if none. Set by the owner thread, which reads the others only for calls on that stream.
  std::atomic<stream_id> captured_stream{stream_ref::unknown_id};
  std::atomic<stream_id> captured_as{0};  ///< the identity that the capture gives the stream
  std::atomic<void*> capture_owner{nullptr};
  /// One bit for each stream that ever had a cache here; other threads skip this one if the bit is not set.
  std::atomic<std::uint64_t> stream_bits{0};
  sequence<owned<stream_cache>> streams;

  /// The cache of a stream, or null. Called inside the owner lock.
  [[nodiscard]] TARN_ALWAYS_INLINE stream_cache* find(stream_id id) noexcept {
    if (last != nullptr && last->id == id) [[likely]]
      return last;
    return find_other(id);
  }
  /// Whether a stream may have a cache here. Called by another thread, after a fence.
  [[nodiscard]] bool may_have(stream_id id) const noexcept {
    return (stream_bits.load(std::memory_order_seq_cst) & bit_of(id)) != 0;
  }
  /// Announces that the owner thread will make the cache of a stream, before it looks whether the stream is
  /// captured. A thread that opens a capture does the opposite, with a fence in between: one of the two sees
  /// the other.
  void announce_stream(stream_id id) noexcept {
    stream_bits.fetch_or(bit_of(id), std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  TARN_ALWAYS_INLINE void count_live(std::int64_t bytes, std::int64_t blocks) noexcept {
    live_bytes.store(live_bytes.load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
    live_blocks.store(live_blocks.load(std::memory_order_relaxed) + blocks, std::memory_order_relaxed);
  }
  TARN_ALWAYS_INLINE void count_held(std::size_t more, std::size_t less) noexcept {
    held_bytes.store(held_bytes.load(std::memory_order_relaxed) + more - less, std::memory_order_relaxed);
  }
  /// Counts a cached block as live.
  TARN_ALWAYS_INLINE void count_taken(std::size_t block) noexcept {
    count_live(static_cast<std::int64_t>(block), 1);
    count_held(0, block);
  }
  TARN_ALWAYS_INLINE void count_host(std::size_t more, std::size_t less) noexcept {
    host_bytes.store(host_bytes.load(std::memory_order_relaxed) + more - less, std::memory_order_relaxed);
  }

  /// Makes the cache of a stream unknown, so that it can be emptied; null if there is none. The object stays:
  /// its thread may be in a call that uses it. Called inside the owner lock.
  stream_cache* close(stream_id id) noexcept {
    for (auto& s : streams) {
      if (s->id != id) continue;
      count_held(0, s->held_bytes());
      s->id = closed_id;
      s->newest_large = nullptr;
      return s.get();
    }
    return nullptr;
  }

  /// Makes the cache of a stream that has none. If there are too many, moves the least recently used one to
  /// `oldest`, and the caller must return its blocks to the heap. Called inside the owner lock. @throws
  /// std::bad_alloc, nothing has changed
  stream_cache* make(stream_id id, stream_ref stream, owned<stream_cache>& oldest) {
    for (auto& s : streams) {
      if (s->id != closed_id) continue;
      leave_last();
      s->id = id;
      s->stream = stream;
      s->of_capture.refuses = 0;
      return last = s.get();
    }
    owned<stream_cache> made(new stream_cache(id, stream));
    streams.reserve(streams.size() + 1);
    leave_last();
    if (streams.size() >= cached_streams) {
      std::size_t first = 0;
      for (std::size_t i = 1; i < streams.size(); ++i) {
        if (streams[i]->used < streams[first]->used) first = i;
      }
      oldest = std::move(streams[first]);
      streams.erase_unordered(first);
      count_held(0, oldest->held_bytes());
      count_host(0, oldest->host_bytes());
    }
    count_host(made->host_bytes(), 0);
    last = made.get();
    streams.push_back(std::move(made));
    return last;
  }

 private:
  static constexpr stream_id closed_id = stream_ref::unknown_id;  ///< no call has it

  /// Each capture has an identity of its own. They share a bit, so that its end visits only threads that took
  /// part in captures.
  [[nodiscard]] static std::uint64_t bit_of(stream_id id) noexcept {
    return std::uint64_t{1} << (is_captured_id(id) ? 0 : id * 0x9E3779B97F4A7C15U >> 58);
  }

  TARN_NOINLINE stream_cache* find_other(stream_id id) noexcept {
    for (auto& s : streams) {
      if (s->id != id) continue;
      leave_last();
      return last = s.get();
    }
    return nullptr;
  }
  void leave_last() noexcept {
    if (last != nullptr) last->used = ++changes_;
  }

  std::uint64_t changes_ = 0;
};

/// Source of pool numbers; constant-initialised.
inline constinit std::atomic<std::uint32_t> next_pool_number{0};

/// Links a pool to the threads that cache for it. Outlives both: each side unlinks under the mutex.
struct pool_link {
  fork_mutex mutex;
  std::atomic<void*> pool{nullptr};  ///< null once the pool has ended; changed under the mutex
  /// Takes back the cache of an ending thread; returns false while another thread visits the caches. Does not
  /// wait for that under the mutex: the visitor may be ending a pool below this one, which takes the mutex.
  bool (*retire)(void* pool, thread_cache* cache) noexcept = nullptr;
  /// The first slot of the table where threads look for their cache. Pools made one after another get
  /// different slots.
  std::uint32_t const number = next_pool_number.fetch_add(1, std::memory_order_relaxed);
};

struct local_cache {
  pool_link const* link = nullptr;  ///< null if the place is vacant
  thread_cache* cache = nullptr;
};
inline constexpr local_cache no_local_cache{};

/// The thread's caches by pool: a hash table with linear probing, at most a quarter full, whose memory
/// thread_exit owns. Plain data: it needs no construction and no guard. Before the first pool and after the
/// thread's end it is one vacant place.
struct local_cache_table {
  local_cache const* places = &no_local_cache;
  std::uint32_t mask = 0;  ///< number of places minus one

  /// Null if the thread has no cache of that pool. One compare if no other pool of the thread has the same
  /// first place.
  [[nodiscard]] TARN_ALWAYS_INLINE thread_cache* find(pool_link const* link,
                                                      std::uint32_t number) const noexcept {
    local_cache const& first = places[number & mask];
    if (first.link == link) [[likely]]
      return first.cache;
    return find_other(link, number);
  }

 private:
  TARN_NOINLINE thread_cache* find_other(pool_link const* link, std::uint32_t number) const noexcept {
    for (std::uint32_t at = number & mask; places[at].link != nullptr; at = (at + 1) & mask) {
      if (places[at].link == link) return places[at].cache;
    }
    return nullptr;
  }
};
inline thread_local constinit local_cache_table local_caches{};

/// Returns the caches of an ending thread to the pools that still exist.
class thread_exit {
 public:
  struct entry {
    counted<pool_link> link;
    thread_cache* cache;
  };

  thread_exit() noexcept = default;
  thread_exit& operator=(thread_exit&&) = delete;
  ~thread_exit() {
    over = true;
    local_caches = {};
    for (entry const& e : entries_) {
      for (unsigned tries = 0; !retire(e); ++tries) spin_wait(tries);
    }
  }

  /// Adds a cache and drops those of ended pools. Amortised O(1). @throws std::bad_alloc, nothing has changed
  void add(counted<pool_link> const& link, thread_cache* cache) {
    entries_.reserve(entries_.size() + 1);
    if ((entries_.size() + 1) * places_each > places_.size()) lay_out_again();
    entries_.push_back({link, cache});
    place(places_, entries_.back());
  }

  /// True once this thread's caches were returned to their heaps: later code (static destructors) runs
  /// without caches.
  static inline thread_local constinit bool over = false;

  static thread_exit& of_this_thread() {
    static thread_local thread_exit hook;
    return hook;
  }

 private:
  [[nodiscard]] static bool retire(entry const& e) noexcept {
    scoped_lock const guard(e.link->mutex);
    return e.link->pool == nullptr || e.link->retire(e.link->pool, e.cache);
  }

  static constexpr std::size_t places_each = 4;
  static constexpr std::size_t least_places = 16;

  /// Whether the pool has ended; it may end during this call. Does not take the link's mutex: an ending
  /// thread holds it together with the mutex of its pool's list, and this thread holds that of another pool.
  [[nodiscard]] static bool is_gone(entry const& e) noexcept {
    return e.link->pool.load(std::memory_order_acquire) == nullptr;
  }

  /// Makes a table with room for twice as many pools, without the ended ones.
  void lay_out_again() {
    sequence<entry> left;
    left.reserve(entries_.size() + 1);
    for (entry const& e : entries_) {
      if (!is_gone(e)) left.push_back(e);
    }
    std::size_t count = least_places;
    while (count < (left.size() + 1) * places_each * 2) count *= 2;
    sequence<local_cache> places;
    places.resize(count);
    for (entry const& e : left) place(places, e);
    // Replace the table before `left` releases its links: the memory of a released link may become another
    // pool's link.
    local_caches = {places.begin(), static_cast<std::uint32_t>(count - 1)};
    places_.swap(places);
    entries_.swap(left);
  }

  static void place(sequence<local_cache>& places, entry const& e) noexcept {
    std::size_t const mask = places.size() - 1;
    std::size_t at = e.link->number & mask;
    while (places[at].link != nullptr) at = (at + 1) & mask;
    places[at] = {e.link.get(), e.cache};
  }

  sequence<entry> entries_;
  sequence<local_cache> places_;  ///< the memory of local_caches
};

}  // namespace TARN_NAMESPACE::detail
