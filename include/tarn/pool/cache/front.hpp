// SPDX-License-Identifier: Apache-2.0
#pragma once
// The front of a pool: caches of free blocks, one per thread, that serve warm calls without a lock or a
// driver call. For each stream that it uses, a thread has magazines of free blocks and one large block
// (magazine.hpp). A cache is made on first use and returned to the heap when the thread or the pool ends, or
// when another thread needs the memory.
//
// A thread enters its own cache through an owner_lock, which costs it two plain stores; other threads stop it
// with a barrier (owner_lock.hpp). The list of caches has a mutex, which a visitor holds, too: there is one
// at a time. It is taken after the growth lock and before the hot lock.
//
// Over 400 lines: what the owner of a cache and what other threads do with it belong together.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "tarn/core/at_fork.hpp"
#include "tarn/core/config.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/mutex.hpp"
#include "tarn/core/owned.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/pool/block_request.hpp"
#include "tarn/pool/cache/magazine.hpp"
#include "tarn/pool/cache/thread_cache.hpp"
#include "tarn/pool/misuse_notes.hpp"

namespace TARN_NAMESPACE::detail {

/// The cached blocks of all threads.
struct idle_blocks {
  std::size_t bytes = 0;
  std::size_t threads = 1;
};

/// Whether a freed block was kept in the thread's cache.
enum class kept : std::uint8_t {
  no,
  yes,
  twice  ///< it is already in the cache
};

/// Whether a call may enter a cache.
enum class entry : std::uint8_t {
  unless_watched,  ///< a warm call: not while calls are watched, a visitor is inside, or the cache is closed
  always           ///< a slow call, which waits for a visitor
};

template <class Heap>
class front {
 public:
  explicit front(Heap& heap) : heap_(heap) {
    (void)has_remote_barrier();  // registers with the kernel now, not at the first allocation
    link_->pool = this;
    link_->retire = [](void* self, thread_cache* cache) noexcept {
      return static_cast<front*>(self)->retire(cache);
    };
  }
  front& operator=(front&&) = delete;

  /// Makes threads that end from now on leave their caches in place. Called when the pool ends.
  void detach() noexcept {
    scoped_lock const guard(link_->mutex);
    link_->pool = nullptr;
  }

  // ---- warm calls

  /// Takes a block that the calling thread cached for the stream; null if there is none, or the call may not
  /// enter.
  template <class Size>
  [[nodiscard]] TARN_ALWAYS_INLINE void* take(stream_id id, Size size,
                                              entry how = entry::unless_watched) noexcept {
    thread_cache* const cache = local();
    if (cache == nullptr || !enter(*cache, how)) [[unlikely]]
      return nullptr;
    void* const p = take_inside(*cache, id, size);
    cache->lock.leave();
    return p;
  }

  /// Keeps a freed block in the calling thread's cache. Returns false if there is no room for it, no cache,
  /// or the call may not enter.
  template <class Size>
  [[nodiscard]] TARN_ALWAYS_INLINE bool put(stream_id id, void* p, Size size,
                                            entry how = entry::unless_watched) noexcept {
    thread_cache* const cache = local();
    if (cache == nullptr || !enter(*cache, how)) [[unlikely]]
      return false;
    bool const done = put_inside(*cache, id, p, size);
    cache->lock.leave();
    return done;
  }

  // ---- calls that reach the heap

  /// The calling thread's cache and, within it, the cache of a stream; null if there is none.
  struct cache_position {
    thread_cache* cache = nullptr;
    stream_cache* of_stream = nullptr;
    stream_id id = 0;
  };

  /// Finds or makes the caches of a stream. There are none if the thread is ending, host memory is exhausted,
  /// or a tool watches, or while another thread visits the caches; in the last case a later call makes them.
  [[nodiscard]] cache_position find_or_make(stream_id id, stream_ref stream) noexcept {
    cache_position at;
    at.cache = local_or_new();
    if (at.cache != nullptr) at.of_stream = stream_cache_of(*at.cache, id, stream);
    at.id = id;
    return at;
  }
  /// Finds them again: a handler of the upstream may have made the thread use other streams meanwhile.
  void find_again(cache_position& at, stream_id id, stream_ref stream) noexcept {
    if (at.cache != nullptr) at.of_stream = stream_cache_of(*at.cache, id, stream);
  }

  /// Takes the cached large block out of the cache, to be returned to the heap.
  [[nodiscard]] TARN_ALWAYS_INLINE void* take_large(cache_position const& at, std::size_t& bytes) noexcept {
    at.cache->lock.enter();
    void* const p = is_open(at) ? detail::exchange(at.of_stream->large_block, nullptr) : nullptr;
    bytes = at.of_stream->large_bytes;
    if (p != nullptr) at.cache->count_held(0, bytes);
    at.cache->lock.leave();
    return p;
  }

  /// Returns the blocks above run_limit to the heap if there are more of them than may_keep(): a request of
  /// such a class was not served. Not for a captured stream.
  void return_unused(cache_position const& at, unsigned size_class) noexcept {
    at.cache->lock.enter();
    std::size_t const bytes = at.of_stream->bytes_of_classes(run_class_count);
    if (bytes > at.of_stream->may_keep(size_class) && is_open(at)) {
      at.of_stream->returned_bytes = bytes;
      at.cache->count_held(0, bytes);
      return_classes(*at.of_stream, at.id, run_class_count);
    }
    at.cache->lock.leave();
  }

  /// Takes a large block that a captured stream caches likewise, because the memory is short; null if there
  /// is none.
  [[nodiscard]] large_magazine::entry take_of_capture(cache_position const& at) noexcept {
    large_magazine::entry taken;
    at.cache->lock.enter();
    if (is_open(at) && at.of_stream->of_capture.count != 0) {
      taken = at.of_stream->of_capture.take_any();
      at.of_stream->of_capture.refuses = large_magazine::pause;
      at.cache->count_held(0, taken.bytes);
    }
    at.cache->lock.leave();
    return taken;
  }

  /// Counts the first block of a batch as the caller's and caches the others as far as there is room;
  /// `batch.count` is then the number of blocks left.
  void keep_rest(cache_position const& at, block_request const& r, block_batch& batch) noexcept {
    if (at.cache == nullptr) return;
    at.cache->lock.enter();
    at.cache->count_live(static_cast<std::int64_t>(r.block), 1);
    bool const has_stream = is_open(at);
    while (batch.count > 1 && has_stream &&
           put_in(*at.cache, *at.of_stream, r.size_class, batch.blocks[batch.count - 1]))
      --batch.count;
    if (has_stream && r.where == zone::larger) {
      at.of_stream->newest_large = batch.blocks[0];
      at.of_stream->newest_bytes = r.block;
    }
    at.cache->lock.leave();
  }

  /// Keeps a freed block and makes room for it: evicted blocks go into `displaced`, each of
  /// `displaced_bytes`. Requires a cache of the stream.
  [[nodiscard]] kept put_and_displace(cache_position const& at, block_request const& r, void* p,
                                      block_batch& displaced, std::size_t& displaced_bytes) noexcept {
    thread_cache& cache = *at.cache;
    stream_cache& of_stream = *at.of_stream;
    kept result = kept::no;
    displaced_bytes = r.block;
    cache.lock.enter();
    cache.count_live(-static_cast<std::int64_t>(r.block), -1);
    if (!is_open(at)) {
      // A capture has begun on the stream.
    } else if (r.size_class != class_count) {
      magazine& m = of_stream.magazines[r.size_class];
      for (std::uint32_t i = 0; i < m.count; ++i) {
        if (m.blocks[i] == p) result = kept::twice;
      }
      if (result == kept::no && m.count == m.capacity && m.count != 0) {
        // Full: the older half leaves.
        std::uint32_t const count = magazine_batch(r.size_class);
        for (std::uint32_t i = 0; i < count; ++i) displaced.blocks[i] = m.blocks[i];
        for (std::uint32_t i = count; i < m.count; ++i) m.blocks[i - count] = m.blocks[i];
        m.count -= count;
        displaced.count = count;
        cache.count_held(0, count * r.block);
      }
      if (result == kept::no && put_in(cache, of_stream, r.size_class, p)) result = kept::yes;
    } else if (of_stream.of_capture.has(p)) {
      result = kept::twice;
    } else if (r.alignment <= default_alignment && of_stream.may_keep_large(p, r.block)) {
      void* const before = detail::exchange(of_stream.large_block, p);
      if (before == p) {
        result = kept::twice;
      } else {
        result = kept::yes;
        displaced_bytes = detail::exchange(of_stream.large_bytes, r.block);
        cache.count_held(r.block, before != nullptr ? displaced_bytes : 0);
        displaced.blocks[0] = before;
        displaced.count = before != nullptr ? 1 : 0;
      }
    }
    cache.lock.leave();
    return result;
  }

  // ---- all threads

  /// The blocks in the magazines.
  [[nodiscard]] idle_blocks idle() const noexcept {
    scoped_lock const guard(list_mutex_);
    idle_blocks sum{0, caches_.size() != 0 ? caches_.size() : 1};
    for (auto const& cache : caches_) {
      TARN_VISIT();
      sum.bytes += cache->held_bytes.load(std::memory_order_relaxed);
    }
    return sum;
  }
  /// Blocks that callers hold, as counted by threads' caches.
  [[nodiscard]] live_count live() const noexcept {
    scoped_lock const guard(list_mutex_);
    live_count sum = retired_live_;
    for (auto const& cache : caches_) {
      sum.bytes += cache->live_bytes.load(std::memory_order_relaxed);
      sum.blocks += cache->live_blocks.load(std::memory_order_relaxed);
    }
    return sum;
  }
  [[nodiscard]] std::size_t host_bytes() const noexcept {
    scoped_lock const guard(list_mutex_);
    std::size_t sum = 0;
    for (auto const& cache : caches_)
      sum += sizeof(*cache) + cache->host_bytes.load(std::memory_order_relaxed);
    return sum;
  }

  /// Returns the blocks of all threads' caches to the heap.
  void flush_all() noexcept {
    scoped_lock const guard(list_mutex_);
    visit_those(
        [](thread_cache const& cache) { return cache.held_bytes.load(std::memory_order_relaxed) != 0; },
        [&](thread_cache& cache) { flush(cache); });
  }

  /// Keeps every thread out of its cache until let_threads_in(). The hot lock is taken after this, never
  /// before.
  void keep_threads_out() noexcept {
    list_mutex_.lock();
    stop_threads();
  }
  void let_threads_in() noexcept {
    let_threads_in_after_fork();
    list_mutex_.unlock();
  }
  /// The same at a fork, which has taken the mutex of the list. Returns false if it has not.
  [[nodiscard]] bool keep_threads_out_at_fork() noexcept {
    if (!list_mutex_.is_mine()) return false;
    stop_threads();
    return true;
  }
  void let_threads_in_after_fork() noexcept {
    for (auto const& cache : caches_) end_visit(*cache);
  }
  /// Returns the blocks of all caches to the heap and closes the caches to warm calls, until open_again().
  /// The pool is asleep: threads that have just begun a slow call may still use their caches.
  void close() noexcept {
    scoped_lock const guard(list_mutex_);
    closed_ = true;
    announce_to_all();
    for (auto const& cache : caches_) empty(*cache);
  }
  void open_again() noexcept {
    scoped_lock const guard(list_mutex_);
    closed_ = false;
    for (auto const& cache : caches_) cache->lock.open_again();
  }
  /// In a forked child: closes every cache for good. Owners and visitors of the parent do not exist here, so
  /// no call waits for them.
  void close_in_child() noexcept {
    for (auto const& cache : caches_) {
      cache->lock.forget_owner();
      cache->lock.close();
    }
  }

  /// Makes take() and put() fail on every thread from now on, so that each call takes the slow path. The
  /// caches keep their blocks. No thread has one yet.
  void watch_all() noexcept { watches_all_ = true; }
  /// The same on the calling thread, until end_watch() of what it returns, which any thread may call.
  [[nodiscard]] std::uint64_t watch_this_thread() noexcept {
    scoped_lock const guard(list_mutex_);
    thread_cache* const known = local();
    thread_cache* const own = known != nullptr ? known : make_local();
    if (own == nullptr) return 0;  // it can have none now: its calls take the slow path
    ++own->watches;
    own->lock.watch();
    return own->serial;
  }
  void end_watch(std::uint64_t serial) noexcept {
    scoped_lock const guard(list_mutex_);
    for (auto const& cache : caches_) {
      if (cache->serial == serial && --cache->watches == 0 && !watches_all_) cache->lock.end_watch();
    }
  }
  enum class watched : std::uint8_t { no, yes, unknown };
  /// `unknown` on a thread without a cache.
  [[nodiscard]] watched is_this_thread_watched() const noexcept {
    thread_cache const* const own = local();
    if (own == nullptr) return watched::unknown;
    return own->lock.is_watched() ? watched::yes : watched::no;
  }

  /// Empties the caches of a stream, on all threads that used it. While heap::captured has it, none is made.
  void drop_stream(stream_id id) noexcept {
    scoped_lock const guard(list_mutex_);
    std::atomic_thread_fence(std::memory_order_seq_cst);  // see thread_cache::announce_stream()
    visit_those([&](thread_cache const& cache) { return cache.may_have(id); },
                [&](thread_cache& cache) {
                  if (stream_cache* const closed = cache.close(id); closed != nullptr) flush(*closed, id);
                });
  }

  /// What set_capture() noted of the calling thread's capture of a stream; null owner if there is none.
  /// Nothing is read of a capture of other streams: another thread may be ending it, and its owner.
  struct own_capture {
    void* owner = nullptr;
    stream_id captured_as = 0;
  };
  [[nodiscard]] own_capture capture_of(stream_id stream) const noexcept {
    thread_cache const* const own = local();
    if (own == nullptr || own->captured_stream.load(std::memory_order_relaxed) != stream) return {};
    return {own->capture_owner.load(std::memory_order_relaxed),
            own->captured_as.load(std::memory_order_relaxed)};
  }
  /// Does nothing on a thread that has one already, or has no cache.
  void set_capture(stream_id stream, stream_id captured_as, void* owner) noexcept {
    thread_cache* const own = local();
    if (own == nullptr) return;
    scoped_lock const guard(list_mutex_);  // another thread may be ending an earlier capture
    if (own->captured_stream.load(std::memory_order_relaxed) != stream_ref::unknown_id) return;
    own->capture_owner.store(owner, std::memory_order_relaxed);
    own->captured_as.store(captured_as, std::memory_order_relaxed);
    own->captured_stream.store(stream, std::memory_order_relaxed);
  }
  /// Ends that on whichever thread it was set.
  void end_capture(stream_id captured_as) noexcept {
    scoped_lock const guard(list_mutex_);
    for (auto const& cache : caches_) {
      if (cache->captured_as.load(std::memory_order_relaxed) != captured_as) continue;
      cache->captured_stream.store(stream_ref::unknown_id, std::memory_order_relaxed);
      cache->captured_as.store(0, std::memory_order_relaxed);
    }
  }

  /// Calls f(stream_cache) for each cache. The caller keeps the threads out.
  template <class F>
  void for_each(F const& f) const {
    for (auto const& cache : caches_) {
      for (auto const& of_stream : cache->streams) f(*of_stream);
    }
  }

 private:
  [[nodiscard]] TARN_ALWAYS_INLINE static bool enter(thread_cache& cache, entry how) noexcept {
    if (how == entry::unless_watched) return cache.lock.try_enter();
    cache.lock.enter();
    return true;
  }
  [[nodiscard]] TARN_ALWAYS_INLINE thread_cache* local() const noexcept {
    return local_caches.find(link_.get(), number_);
  }
  [[nodiscard]] TARN_ALWAYS_INLINE thread_cache* local_or_new() noexcept {
    if (auto* const cache = local(); cache != nullptr) [[likely]]
      return cache;
    return new_local();
  }
  /// Does not wait: a visitor may have every thread stopped for a while.
  TARN_NOINLINE thread_cache* new_local() noexcept {
    if (!list_mutex_.try_lock()) return nullptr;
    scoped_lock const guard(list_mutex_, already_locked{});
    return make_local();
  }
  /// Under the mutex of the list. Null on a thread that is ending, without host memory, while a tool watches,
  /// or while the caches are closed.
  thread_cache* make_local() noexcept {
    if (thread_exit::over || heap_.is_lost() || closed_ || heap_.tool().decide()) return nullptr;
    try {
      thread_exit& hook = thread_exit::of_this_thread();
      owned made(new thread_cache);
      thread_cache* const cache = made.get();
      caches_.reserve(caches_.size() + 1);
      cache->serial = ++last_serial_;
      if (watches_all_) cache->lock.watch();
      hook.add(link_, cache);
      caches_.push_back(std::move(made));
      return cache;
    } catch (...) {
      return nullptr;
    }
  }

  /// The cache of a stream, made on first use; null without host memory. If the thread uses too many streams,
  /// returns the magazines of the least recently used one to the heap.
  stream_cache* stream_cache_of(thread_cache& cache, stream_id id, stream_ref stream) noexcept {
    owned<stream_cache> oldest;
    cache.lock.enter();
    stream_cache* of_stream = cache.find(id);
    if (of_stream == nullptr) cache.announce_stream(id);
    if (of_stream == nullptr && !heap_.captured.has(id)) {
      try {
        of_stream = cache.make(id, stream, oldest);
      } catch (...) {
        of_stream = nullptr;
      }
    }
    cache.lock.leave();
    if (oldest.get() != nullptr) flush(*oldest);
    return of_stream;
  }

  template <class Size>
  [[nodiscard]] TARN_ALWAYS_INLINE static void* take_inside(thread_cache& cache, stream_id id,
                                                            Size size) noexcept {
    void* p = nullptr;
    if (stream_cache* const of_stream = cache.find(id); of_stream != nullptr) [[likely]] {
      if (size.has_class()) [[likely]] {
        unsigned const k = size.its_class();
        magazine& m = of_stream->magazines[k];
        if (m.count != 0) [[likely]] {
          p = m.blocks[--m.count];
          cache.count_taken(size.bytes_in(k));
        }
      } else if (of_stream->large_block != nullptr && of_stream->large_bytes == size.large_bytes()) {
        p = detail::exchange(of_stream->large_block, nullptr);
        cache.count_taken(of_stream->large_bytes);
      } else if (of_stream->of_capture.count != 0) {
        p = of_stream->of_capture.take(size.large_bytes());
        if (p != nullptr) cache.count_taken(size.large_bytes());
      }
    }
    return p;
  }

  template <class Size>
  [[nodiscard]] TARN_ALWAYS_INLINE bool put_inside(thread_cache& cache, stream_id id, void* p,
                                                   Size size) noexcept {
    stream_cache* const of_stream = cache.find(id);
    if (of_stream == nullptr) [[unlikely]]
      return false;
    if (size.has_class()) [[likely]] {
      unsigned const k = size.its_class();
      if (!put_in(cache, *of_stream, k, p)) return false;
      cache.count_live(-static_cast<std::int64_t>(size.bytes_in(k)), -1);
      return true;
    }
    if (is_captured_id(id) && of_stream->of_capture.put(p, size.large_bytes())) {
      cache.count_live(-static_cast<std::int64_t>(size.large_bytes()), -1);
      cache.count_held(size.large_bytes(), 0);
      return true;
    }
    std::size_t const bytes = size.large_bytes();
    if (of_stream->large_block != nullptr || !of_stream->may_keep_large(p, bytes) ||
        of_stream->of_capture.has(p))
      return false;
    of_stream->large_block = p;
    of_stream->large_bytes = bytes;
    cache.count_live(-static_cast<std::int64_t>(of_stream->large_bytes), -1);
    cache.count_held(of_stream->large_bytes, 0);
    return true;
  }

  /// Whether the stream still has the cache: a capture_scope may have closed it since. Called inside the
  /// owner lock.
  [[nodiscard]] static bool is_open(cache_position const& at) noexcept {
    return at.of_stream != nullptr && at.of_stream->id == at.id;
  }

  /// Puts a block into its magazine, unless the magazine is full or its newest block is the same one. Called
  /// inside the owner lock.
  TARN_ALWAYS_INLINE bool put_in(thread_cache& cache, stream_cache& of_stream, unsigned k, void* p) noexcept {
    magazine& m = of_stream.magazines[k];
    if (m.count == m.capacity) [[unlikely]] {
      if (m.capacity != 0 || !of_stream.make_magazine(k)) return false;
      cache.count_host(m.host_bytes(), 0);
    }
    if (m.newest() == p) [[unlikely]]
      return false;  // freed twice: put_and_displace() reports it
    m.blocks[m.count++] = p;
    cache.count_held(class_bytes(k), 0);
    return true;
  }

  /// See pool_link::retire. The caller holds the link's mutex.
  bool retire(thread_cache* cache) noexcept {
    if (heap_.is_lost()) return true;
    misuse_report const last = heap_.misuse_at_end();
    if (!list_mutex_.try_lock()) return false;
    scoped_lock const guard(list_mutex_, already_locked{});
    cache->lock.announce();
    remote_barrier();
    empty(*cache);
    retired_live_.bytes += cache->live_bytes.load(std::memory_order_relaxed);
    retired_live_.blocks += cache->live_blocks.load(std::memory_order_relaxed);
    for (std::size_t i = 0; i < caches_.size(); ++i) {
      if (caches_[i].get() != cache) continue;
      caches_.erase_unordered(i);
      break;
    }
    return true;
  }

  void stop_threads() noexcept {
    announce_to_all();
    for (auto const& cache : caches_) cache->lock.visit();
  }
  /// Announces a visit to each cache.
  void announce_to_all() noexcept {
    for (auto const& cache : caches_) cache->lock.announce();
    remote_barrier();
  }
  /// Calls act(cache) inside the owner lock of each cache that `concerns` accepts. One barrier, if another
  /// thread's is among them.
  template <class Concerns, class Act>
  void visit_those(Concerns const& concerns, Act const& act) noexcept {
    thread_cache* const own = local();
    bool any = false;
    for (auto const& cache : caches_) {
      TARN_VISIT();
      if (!concerns(*cache)) continue;
      if (cache.get() == own) {  // the cache's owner thread needs no barrier
        own->lock.enter();
        act(*own);
        own->lock.leave();
        continue;
      }
      cache->lock.announce();
      any = true;
    }
    if (!any) return;
    remote_barrier();
    for (auto const& cache : caches_) {
      if (!cache->lock.is_announced()) continue;
      cache->lock.visit();
      act(*cache);
      end_visit(*cache);
    }
  }
  /// Empties a cache. Called after an announcement and a barrier.
  void empty(thread_cache& cache) noexcept {
    cache.lock.visit();
    flush(cache);
    end_visit(cache);
  }
  void end_visit(thread_cache& cache) noexcept {
    if (closed_) {
      cache.lock.close();
    } else {
      cache.lock.end_visit();
    }
  }
  /// Empties all magazines of a thread. Called inside the owner lock.
  void flush(thread_cache& cache) noexcept {
    for (auto const& of_stream : cache.streams) {
      TARN_VISIT();
      flush(*of_stream);
    }
    cache.held_bytes.store(0, std::memory_order_relaxed);
  }
  /// Empties a stream's magazines, which no other thread can reach meanwhile.
  void flush(stream_cache& of_stream) noexcept { flush(of_stream, of_stream.id); }
  void flush(stream_cache& of_stream, stream_id id) noexcept {
    if (of_stream.large_block != nullptr)
      heap_.put_range(id, of_stream.stream, detail::exchange(of_stream.large_block, nullptr),
                      of_stream.large_bytes);
    for (auto block = of_stream.of_capture.take_any(); block.p != nullptr;
         block = of_stream.of_capture.take_any())
      heap_.put_range(id, of_stream.stream, block.p, block.bytes);
    return_classes(of_stream, id, 0);
  }
  /// Empties the magazines from a class on.
  void return_classes(stream_cache& of_stream, stream_id id, unsigned first) noexcept {
    for (unsigned k = first; k < class_count; ++k) {
      magazine& m = of_stream.magazines[k];
      of_stream.was_returned[k] = m.count != 0;
      if (m.count != 0) heap_.put(id, of_stream.stream, k, m.blocks, detail::exchange(m.count, 0));
    }
  }

  Heap& heap_;
  counted<pool_link> link_;
  std::uint32_t const number_ = link_->number;
  mutable fork_mutex list_mutex_;  ///< of what follows
  sequence<owned<thread_cache>> caches_;
  live_count retired_live_;  ///< of threads that have ended
  bool watches_all_ = false;
  std::uint64_t last_serial_ = 0;
  bool closed_ = false;  ///< the caches are closed to warm calls
};

}  // namespace TARN_NAMESPACE::detail
