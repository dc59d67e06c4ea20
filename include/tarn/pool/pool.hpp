// SPDX-License-Identifier: Apache-2.0
#pragma once
// The pool: stream-ordered allocation from cached memory. The files of an allocation, in the order of its steps:
//
//   0 core/shared_resource.hpp, policy/tracked.hpp   how a call on device_pool comes here: allocate_sized()
//   1 arena/size_class.hpp   the request is rounded to a size class, or to 512 bytes; block_request.hpp
//   2 front/front.hpp        the calling thread's cache: thread_cache.hpp, its lock (owner_lock.hpp), its magazines. A warm call
//                            ends here; cache_misses.hpp continues the others
//   3 heap.hpp               what all threads share, under the hot lock: arena/arena.hpp has the free ranges of each stream
//                            (arena/stream_order.hpp) and the runs that small blocks are cut from
//   4 ladder.hpp             the steps when there is none, under the growth lock: order/reclaim.hpp takes memory from other streams
//                            with an event (order/ordering.hpp, order/mark_work.hpp; the picture is in arena/stream_order.hpp), and
//                            growth/page_growth.hpp gets more (growth/growth.hpp, address_space.hpp; over blocks: segment_growth.hpp)
//   5 source/cuda_pages.hpp  creates and maps pages by calls of driver/cuda_driver.hpp
//
// deallocate() goes through 1 to 3 in the same way. A block with recorded uses waits for them first (waiting_blocks.hpp).
// Calls on a stream that is captured into a graph go to graph/. inspection/ is for tools and snapshots, and empty otherwise.
//
// What a program no longer needs goes back to the driver once the live peak has fallen: arena/live_window.hpp.
//
// Bounds: the magazines of one stream on one thread hold at most 104 MiB; if they hold more than 1/32 of the reserved memory, they
// are emptied before a pool that is no longer small grows. Reserved memory stays within the live peak plus the slack of the
// requests (slack_of() in growth/growth.hpp) while whole free handles suffice. Host memory is 64 bytes per range.

#include <cstddef>
#include <cstdint>
#include <utility>

#include "tarn/core/graph_owner.hpp"
#include "tarn/core/owned.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/driver/all_work.hpp"
#include "tarn/driver/capture_gate.hpp"
#include "tarn/pool/arena/size_class.hpp"
#include "tarn/pool/cache_misses.hpp"
#include "tarn/pool/graph/graph_owner_of.hpp"
#include "tarn/pool/growth/growth_lock.hpp"
#include "tarn/pool/heap.hpp"
#include "tarn/pool/options.hpp"
#include "tarn/pool/pool_parts.hpp"
#include "tarn/pool/waiting_blocks.hpp"

namespace tarn {

/// A stream-ordered caching pool over pages or over blocks of another resource. Use it through `source | pooled{}`. Any number
/// of threads may call it concurrently. A warm call takes no shared lock and, if the identity of its stream is known, submits nothing
/// to the driver; a deallocation asks it whether the stream is captured, see capture_watch.
///
/// fork() is safe while any number of threads use the pool. In the child, a pool of host memory continues with a copy of all
/// blocks; calls that other threads had in progress are never completed. A pool over a driver that does not survive fork(),
/// such as CUDA, refuses in the child: allocation throws cuda_error of kind `forked`, other calls do nothing, and nothing is
/// freed.
template <memory_source Upstream>
class pool : public detail::cache_misses<pool<Upstream>, Upstream> {
  using misses = detail::cache_misses<pool, Upstream>;

 public:
  using upstream_type = Upstream;
  using driver_type = typename Upstream::driver_type;
  using properties = typename Upstream::properties;
  /// The pool returns pieces of its blocks, so a tool must not treat any of them as a heap.
  static constexpr bool hands_out_pieces = true;

  explicit pool(Upstream upstream, pooled const& options = {})
      : misses(std::move(upstream), options, nullptr) {}
  /// The pool of a graph_memory, which shares the growth lock of the pool that it is a part of.
  pool(Upstream upstream, pooled const& options, detail::recursive_fork_mutex& shared)
      : misses(std::move(upstream), options, &shared) {}
  pool(pool const&) = delete;
  pool& operator=(pool const&) = delete;

  /// Waits for the streams that freed memory here, then gives everything back. Does nothing after the driver has unloaded. While a
  /// capture_scope is open on any thread, that work cannot be waited for: the destructor waits until the scopes are closed, up to
  /// 10 s. If one is still open then, as one of the caller's own thread is, the memory stays mapped until the process ends.
  ~pool() {
    misses::leave_others();
    misuse_report const last = report_misuse_at_end();
    front_.detach();
    if (heap_.is_lost()) return;
    detail::growth_lock const growing(heap_.growth_mutex);
    if constexpr (heap_type::describes) {
      if (heap_.description.active() && detail::wait_for_all_work(heap_.driver()).kind == failure::unloading)
        heap_.description.abandon();
    }
    misses::finish_or_keep_mapped(growing);
    waiting_.close();
    heap_.close(growing);
  }

  /// Allocates for work on `stream`.
  /// @param stream     of any device that can use the memory: every device can use pinned and managed memory,
  ///                   and pages those that accessible_from names. A default stream is that of the pool's
  ///                   device, whichever is current; of host memory it is the calling thread's current
  ///                   device's
  /// @param bytes      zero returns null; blocks up to 1 MiB are rounded to a size class, others to 512 bytes
  /// @param alignment  a power of two up to 2 MiB; above 256 the block has no magazine
  /// Reuses memory freed on the same stream at once, and memory of other streams once it is ordered (see
  /// pool/arena/stream_order.hpp).
  /// @throws misuse  the stream is of a device that cannot use the memory
  /// @throws out_of_memory, bad_alignment, cuda_error, std::bad_alloc (host): nothing has changed
  /// O(1) from a magazine or the heap; calls the driver only when it climbs the ladder, sweeps streams that ended, or
  /// must query the identity of a stream.
  [[nodiscard]] void* allocate(stream_ref stream, std::size_t bytes, std::size_t alignment) {
    if (bytes == 0) return nullptr;
    return allocate_sized(detail::lazy_block_size{bytes}, stream, bytes, alignment);
  }

  /// Frees a block; work enqueued on `stream`, of any device, before this call may still use it. `bytes` and
  /// `alignment` are those of the allocation. Never throws; detected misuse is reported to the misuse
  /// handler.
  void deallocate(stream_ref stream, void* p, std::size_t bytes, std::size_t alignment) noexcept {
    if (p == nullptr) return;
    deallocate_sized(detail::lazy_block_size{bytes}, stream, p, bytes, alignment);
  }
  /// The same for a layer that has computed the block_size for itself; `bytes` and `p` are not 0.
  template <class Size>
  [[nodiscard]] TARN_ALWAYS_INLINE void* allocate_sized(Size size, stream_ref stream, std::size_t bytes,
                                                        std::size_t alignment) {
    return allocate_on(heap_.identity(stream), stream, size, bytes, alignment);
  }
  template <class Size>
  TARN_ALWAYS_INLINE void deallocate_sized(Size size, stream_ref stream, void* p, std::size_t bytes,
                                           std::size_t alignment) noexcept {
    stream_id id = stream.id();
    bool asks = misses::asks_at_frees();
    if (id == stream_ref::unknown_id) {
      detail::capture_gate::watch const scopes;
      if (!heap_.identify(stream, id).ok()) [[unlikely]]
        return misses::deallocate_unknown(stream, p, bytes, alignment);
      // While no scope is open, CUDA refuses to identify a captured stream.
      asks = asks && (scopes.saw_capture() || detail::is_default_stream(stream));
    }
    if (waiting_.any_noted() && may_be_noted(p) && take_back_noted(id, stream, p, bytes, alignment))
        [[unlikely]]
      return;
    if (asks && misses::is_freed_in_capture(id, stream) &&
        misses::keep_of_capture(id, stream, p, bytes, alignment)) [[unlikely]]
      return;
    deallocate_on(id, stream, p, size, bytes, alignment);
  }

  /// Allocates memory that every stream may use at once. Waits for other streams' frees if nothing else serves the request.
  [[nodiscard]] void* allocate_sync(std::size_t bytes, std::size_t alignment) {
    if (bytes == 0) return nullptr;
    return allocate_on(detail::neutral_id, {}, detail::lazy_block_size{bytes}, bytes, alignment);
  }

  /// Frees memory that no stream uses any more; every stream may reuse it at once.
  void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment) noexcept {
    if (p == nullptr) return;
    if (waiting_.any_noted() && may_be_noted(p) &&
        take_back_noted(detail::neutral_id, {}, p, bytes, alignment)) [[unlikely]]
      return;
    deallocate_on(detail::neutral_id, {}, p, detail::lazy_block_size{bytes}, bytes, alignment);
  }

  /// Records that work on `stream`, enqueued before the block is deallocated, uses the block although it is freed on another
  /// stream. The freed block is held back until that work is done; other blocks are not. Amortised host cost O(1); host memory
  /// 140 bytes times the peak number of recorded uses. @throws std::bad_alloc, cuda_error, nothing has changed
  void record_stream(void* p, std::size_t bytes, stream_ref stream) {
    if (p == nullptr || heap_.is_lost() || graphs_.record_stream(p, bytes, stream)) return;
    waiting_.note(p, stream);
  }

  /// Gives cached memory back to the driver until at most `keep_bytes` are reserved. Waits for the streams that freed it; other
  /// threads continue meanwhile. Returns the bytes given back. O(handles + slots of views + free ranges).
  std::size_t trim(std::size_t keep_bytes) {
    misuse_report const last = report_misuse_at_end();
    detail::growth_lock const growing(heap_.growth_mutex);
    if (heap_.is_lost()) return 0;
    std::size_t const before = heap_.sums.reserved;
    if (graphs_.has_ended_parts()) (void)graphs_.reap(growing, *this, true);
    std::size_t const reserved = heap_.sums.reserved;
    std::size_t const given = before - reserved;
    std::size_t const of_graphs = reserved - heap_.counters.reserved;
    keep_bytes = keep_bytes > of_graphs ? keep_bytes - of_graphs : 0;
    if (heap_.counters.reserved <= keep_bytes) return given;
    collect(growing);
    return given + heap_.shrink(growing, keep_bytes);
  }

  /// The largest block that allocate() would serve now, see tarn::largest_available_block().
  /// @throws cuda_error, std::bad_alloc
  [[nodiscard]] std::size_t largest_available_block() {
    misuse_report const last = report_misuse_at_end();
    detail::growth_lock const growing(heap_.growth_mutex);
    if (heap_.is_lost() || heap_.is_asleep()) return 0;
    if (graphs_.has_ended_parts()) (void)graphs_.reap(growing, *this, false);
    front_.flush_all(growing);
    detail::end_quarantine(heap_);
    waiting_.release(growing, false);
    detail::memory_bound const left = detail::memory_left(detail::layer_of(heap_.upstream()));
    if (!left.query.ok()) throw cuda_error(left.query, heap_.driver().device().value);
    detail::hot_lock held(heap_.hot);
    return heap_.growth(growing).largest_block(heap_.space(held), left.bytes,
                                               detail::may_remap(heap_.options));
  }

  /// For the pool of a graph_memory: a block that the calling thread caches for a captured stream; null if there is none.
  [[nodiscard]] TARN_ALWAYS_INLINE void* take_cached(stream_id id, std::size_t bytes,
                                                     std::size_t alignment) noexcept {
    return alignment <= default_alignment ? front_.take(id, detail::lazy_block_size{bytes}) : nullptr;
  }
  /// Caches a block in the same way. Returns false if there is no room for it, or if blocks have recorded uses.
  [[nodiscard]] TARN_ALWAYS_INLINE bool put_cached(stream_id id, void* p, std::size_t bytes,
                                                   std::size_t alignment) noexcept {
    if (alignment > default_alignment || waiting_.any_noted()) return false;
    return front_.put(id, p, detail::lazy_block_size{bytes});
  }

  /// Makes an owner for the memory of captured graphs, for graph_memory (raii/graph_memory.hpp).
  /// @throws cuda_error, std::bad_alloc: nothing has changed
  [[nodiscard]] detail::owned<detail::graph_owner> new_graph_memory() {
    if (heap_.is_lost()) heap_.refuse_forked();
    return detail::owned<detail::graph_owner>(new detail::graph_owner_of<pool>(*this));
  }
  /// Allocates a block of an owner that new_graph_memory() of this pool made; see graph_memory::allocate().
  /// @throws as allocate()
  [[nodiscard]] void* allocate_for(detail::graph_owner& owner, stream_ref stream, std::size_t bytes,
                                   std::size_t alignment) {
    if (bytes == 0) return nullptr;
    require_alignment(alignment);
    return static_cast<detail::graph_owner_of<pool>&>(owner).allocate(stream, bytes, alignment);
  }

 private:
  using misses::collect;
  using misses::front_;
  using misses::graphs_;
  using misses::heap_;
  using misses::report_misuse_at_end;
  using misses::take_back_noted;
  using misses::waiting_;
  using typename misses::graphs_type;
  using typename misses::heap_type;
  using misuse_report = detail::misuse_report;

  friend class detail::graph_owner_of<pool>;

  [[nodiscard]] TARN_ALWAYS_INLINE bool may_be_noted(void const* p) const noexcept {
    return waiting_.may_hold(p) || graphs_.may_hold(p);
  }

  template <class Size>
  TARN_ALWAYS_INLINE void* allocate_on(stream_id id, stream_ref stream, Size size, std::size_t bytes,
                                       std::size_t alignment) {
    if (alignment != default_alignment) [[unlikely]]
      require_alignment(alignment);
    if (alignment <= default_alignment) [[likely]] {
      if (void* const p = front_.take(id, size); p != nullptr) [[likely]]
        return p;
    }
    return misses::allocate_slow(id, stream, bytes, alignment);
  }

  template <class Size>
  TARN_ALWAYS_INLINE void deallocate_on(stream_id id, stream_ref stream, void* p, Size size,
                                        std::size_t bytes, std::size_t alignment) noexcept {
    if (alignment <= default_alignment && front_.put(id, p, size)) [[likely]]
      return;
    misses::deallocate_slow(id, stream, p, bytes, alignment);
  }
};

}  // namespace tarn
