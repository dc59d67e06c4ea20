// SPDX-License-Identifier: Apache-2.0
#pragma once
// Thread caches: how a thread finds its magazines, and how they come home when the thread or the pool ends
// first.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>

#include "tarn/core/at_fork.hpp"
#include "tarn/core/config.hpp"
#include "tarn/core/counted.hpp"
#include "tarn/core/owned.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/pool/front/magazine.hpp"
#include "tarn/pool/front/owner_lock.hpp"

namespace tarn::detail {

/// Of how many streams a thread keeps magazines; those of the stream not used for longest make room. More than
/// programs use at a time, and few enough to look through: 64 compares where another stream follows.
inline constexpr std::size_t cached_streams = 64;

/// What one thread caches of one pool. The pool owns it; the thread uses it under `lock`.
struct alignas(cache_line_bytes) thread_cache {
  owner_lock lock;
  stream_cache* last = nullptr;  ///< the stream used last: nearly always the next one too
  /// Written by the owner, read by anyone: bytes and blocks this thread handed out less those it took back.
  std::atomic<std::int64_t> live_bytes{0};
  std::atomic<std::int64_t> live_blocks{0};
  /// Bytes in the magazines; lets others see without a visit whether one would be worth it.
  std::atomic<std::size_t> held_bytes{0};
  std::atomic<std::size_t> host_bytes{0};  ///< host memory of the magazines
  sequence<owned<stream_cache>> streams;

  /// The cache of a stream, or null. The owner is inside.
  [[nodiscard]] TARN_ALWAYS_INLINE stream_cache* find(stream_id id) noexcept {
    if (last != nullptr && last->id == id) [[likely]]
      return last;
    return find_other(id);
  }
  TARN_ALWAYS_INLINE void count_live(std::int64_t bytes, std::int64_t blocks) noexcept {
    live_bytes.store(live_bytes.load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
    live_blocks.store(live_blocks.load(std::memory_order_relaxed) + blocks, std::memory_order_relaxed);
  }
  TARN_ALWAYS_INLINE void count_held(std::size_t more, std::size_t less) noexcept {
    held_bytes.store(held_bytes.load(std::memory_order_relaxed) + more - less, std::memory_order_relaxed);
  }
  TARN_ALWAYS_INLINE void count_host(std::size_t more, std::size_t less) noexcept {
    host_bytes.store(host_bytes.load(std::memory_order_relaxed) + more - less, std::memory_order_relaxed);
  }

  /// Makes the cache of a stream that has none. Where there are too many, the one not used for longest is put
  /// in `oldest`, and its blocks are the caller's to bring home. The owner is inside. @throws std::bad_alloc,
  /// nothing has changed
  stream_cache* make(stream_id id, stream_ref stream, owned<stream_cache>& oldest) {
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

/// Ties a pool to the threads that cache for it. Outlives both: each side leaves under the mutex.
struct pool_link {
  fork_mutex mutex;
  std::atomic<void*> pool{nullptr};  ///< null once the pool is gone; changed under the mutex
  void (*retire)(void* pool, thread_cache* cache) noexcept = nullptr;
  /// Where threads look for their cache first. Pools that are made one after the other get different places.
  std::uint32_t const number = next_pool_number.fetch_add(1, std::memory_order_relaxed);
};

struct local_cache {
  pool_link const* link = nullptr;  ///< null: a vacant place
  thread_cache* cache = nullptr;
};
inline constexpr local_cache no_local_cache{};

/// The thread's caches by pool: a hash table with linear probing, at most a quarter full, whose memory thread_exit owns.
/// Plain data: it needs no construction and no guard. Before the first pool and after the thread's end it is one vacant
/// place.
struct local_cache_table {
  local_cache const* places = &no_local_cache;
  std::uint32_t mask = 0;  ///< the number of places less one

  /// Null where the thread has no cache of that pool. One compare where no other pool of the thread has its place.
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

/// Gives the caches of an ending thread back to the pools that still live.
class thread_exit {
 public:
  struct entry {
    counted<pool_link> link;
    thread_cache* cache;
  };

  thread_exit() noexcept = default;
  thread_exit(thread_exit const&) = delete;
  thread_exit& operator=(thread_exit const&) = delete;
  ~thread_exit() {
    over = true;
    local_caches = {};
    for (entry& e : entries_) {
      std::lock_guard const guard(e.link->mutex);
      if (e.link->pool != nullptr) e.link->retire(e.link->pool, e.cache);
    }
  }

  /// Remembers a cache; forgets those of pools that are gone. Amortised O(1). @throws std::bad_alloc, nothing has changed
  void add(counted<pool_link> const& link, thread_cache* cache) {
    entries_.reserve(entries_.size() + 1);
    if ((entries_.size() + 1) * places_each > places_.size()) lay_out_again();
    entries_.push_back({link, cache});
    place(places_, entries_.back());
  }

  /// True once this thread's caches were given back: what runs after (static destructors) goes without.
  static inline thread_local constinit bool over = false;

  static thread_exit& of_this_thread() {
    static thread_local thread_exit hook;
    return hook;
  }

 private:
  static constexpr std::size_t places_each = 4;
  static constexpr std::size_t least_places = 16;

  /// A pool may end while this is called. Not under its link's mutex: an ending thread holds that while it takes the pool's
  /// growth lock, and this thread may hold the growth lock of a pool over pools.
  [[nodiscard]] static bool is_gone(entry const& e) noexcept {
    return e.link->pool.load(std::memory_order_acquire) == nullptr;
  }

  /// Makes a table with room for as many pools again, without those that are gone.
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
    // The table forgets a link before `left` releases it: its memory may be another pool's link next.
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
  sequence<local_cache> places_;  ///< what local_caches shows
};

}  // namespace tarn::detail
