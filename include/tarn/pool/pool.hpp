// SPDX-License-Identifier: Apache-2.0
#pragma once
// The pool: stream-ordered allocation from cached memory. The files of an allocation, in the order of its steps:
//
//   0 core/shared_resource.hpp, policy/tracked.hpp   how a call on device_pool comes here: allocate_sized()
//   1 arena/size_class.hpp   the request is rounded to a size class, or to 512 bytes; block_request.hpp
//   2 front/front.hpp        the calling thread's cache: thread_cache.hpp, its lock (owner_lock.hpp), its magazines. A warm call
//                            ends here
//   3 heap.hpp               what all threads share, under the hot lock: arena/arena.hpp has the free ranges of each stream
//                            (arena/stream_order.hpp) and the runs that small blocks are cut from
//   4 ladder.hpp             the steps when there is none, under the growth lock: order/reclaim.hpp takes memory from other streams
//                            with an event (order/ordering.hpp, order/mark_work.hpp; the picture is in arena/stream_order.hpp), and
//                            growth/page_growth.hpp gets more (growth/growth.hpp, address_space.hpp; over blocks: segment_growth.hpp)
//   5 source/cuda_pages.hpp  creates and maps pages by calls of driver/cuda_driver.hpp
//
// deallocate() goes through 1 to 3 in the same way. A block with recorded uses waits for them first (waiting_blocks.hpp).
// inspection/ is for tools and snapshots, and empty otherwise.
//
// Bounds: the magazines of one stream on one thread hold at most 104 MiB; if they hold more than 1/32 of the reserved memory, they
// are emptied before a pool that is no longer small grows. Reserved memory stays within the live peak plus pooled::slack_per_mille while whole free handles suffice. Host
// memory is 64 bytes per range.

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>

#include "tarn/core/resource.hpp"
#include "tarn/pool/front/front.hpp"
#include "tarn/pool/heap.hpp"
#include "tarn/pool/inspection/described_blocks.hpp"
#include "tarn/pool/ladder.hpp"
#include "tarn/pool/options.hpp"
#include "tarn/pool/pool_parts.hpp"
#include "tarn/pool/waiting_blocks.hpp"

namespace tarn {

/// A stream-ordered caching pool over pages or over blocks of another resource. Use it through `source | pooled{}`. Any number
/// of threads may call it concurrently. A warm call takes no shared lock and, if the identity of
/// its stream is known, makes no driver call.
///
/// fork() is safe while any number of threads use the pool. In the child, a pool of host memory continues with a copy of all
/// blocks; calls that other threads had in progress are never completed. A pool over a driver that does not survive fork(),
/// such as CUDA, refuses in the child: allocation throws cuda_error of kind `forked`, other calls do nothing, and nothing is
/// freed.
template <memory_source Upstream>
class pool : public detail::pool_parts<Upstream> {
  using parts = detail::pool_parts<Upstream>;

 public:
  using upstream_type = Upstream;
  using driver_type = typename Upstream::driver_type;
  using properties = typename Upstream::properties;
  /// The pool returns pieces of its blocks, so a tool must not treat any of them as a heap.
  static constexpr bool hands_out_pieces = true;

  explicit pool(Upstream upstream, pooled const& options = {}) : parts(std::move(upstream), options) {}
  pool(pool const&) = delete;
  pool& operator=(pool const&) = delete;

  /// Waits for the streams that freed memory here, then gives everything back. Does nothing after the driver has unloaded.
  ~pool() {
    misuse_report const last = report_misuse_at_end();
    front_.detach();
    if (heap_.is_lost()) return;
    std::lock_guard const cold(heap_.cold);
    if constexpr (heap_type::describes) {
      if (heap_.description.active() && heap_.driver().synchronize_device().kind == failure::unloading)
        heap_.description.abandon();
    }
    collect();
    heap_.finish(waiting_.asks_for_device());
    waiting_.close();
    heap_.close();
  }

  /// Allocates for work on `stream`.
  /// @param bytes      zero returns null; blocks up to 1 MiB are rounded to a size class, others to 512 bytes
  /// @param alignment  a power of two up to 2 MiB; above 256 the block has no magazine
  /// Reuses memory freed on the same stream at once, and memory of other streams once it is ordered (see
  /// pool/arena/stream_order.hpp).
  /// @throws out_of_memory, bad_alignment, cuda_error, std::bad_alloc (host): nothing has changed
  /// O(1) from a magazine or the heap; calls the driver only when it climbs the ladder, sweeps streams that ended, or
  /// must query the identity of a stream.
  [[nodiscard]] void* allocate(stream_ref stream, std::size_t bytes, std::size_t alignment) {
    if (bytes == 0) return nullptr;
    return allocate_sized(detail::lazy_block_size{bytes}, stream, bytes, alignment);
  }

  /// Frees a block; work enqueued on `stream` before this call may still use it. `bytes` and `alignment` are those of the
  /// allocation. Never throws; detected misuse is reported to the misuse handler.
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
    if (id == stream_ref::unknown_id && !heap_.driver().identify(stream, id).ok()) [[unlikely]]
      return deallocate_unknown(stream, p, bytes, alignment);
    if (waiting_.may_hold(p) && waiting_.hold_back(id, stream, p, bytes, alignment)) [[unlikely]]
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
    if (waiting_.may_hold(p) && waiting_.hold_back(detail::neutral_id, {}, p, bytes, alignment)) [[unlikely]]
      return;
    deallocate_on(detail::neutral_id, {}, p, detail::lazy_block_size{bytes}, bytes, alignment);
  }

  /// Records that work on `stream`, enqueued before the block is deallocated, uses the block although it is freed on another
  /// stream. The freed block is held back until that work is done; other blocks are not. Amortised host cost O(1); host memory
  /// 140 bytes times the peak number of recorded uses. @throws std::bad_alloc, cuda_error, nothing has changed
  void record_stream(void* p, std::size_t, stream_ref stream) {
    if (p != nullptr && !heap_.is_lost()) waiting_.note(p, stream);
  }

  /// Gives cached memory back to the driver until at most `keep_bytes` are reserved. Waits for the streams that freed it; other
  /// threads continue meanwhile. Returns the bytes given back. O(handles + slots of views + free ranges).
  std::size_t trim(std::size_t keep_bytes) {
    misuse_report const last = report_misuse_at_end();
    std::lock_guard const cold(heap_.cold);
    if (heap_.counters.reserved <= keep_bytes || heap_.is_lost()) return 0;
    collect();
    return heap_.shrink(keep_bytes);
  }

 private:
  using parts::front_;
  using parts::heap_;
  using parts::waiting_;
  using typename parts::front_type;
  using typename parts::heap_type;
  using misuse_report = detail::misuse_report;

  [[nodiscard]] misuse_report report_misuse_at_end() noexcept { return {heap_.notes, heap_.hot}; }

  // ---- allocation: the thread's cache, the heap, the ladder

  template <class Size>
  TARN_ALWAYS_INLINE void* allocate_on(stream_id id, stream_ref stream, Size size, std::size_t bytes,
                                       std::size_t alignment) {
    if (alignment != default_alignment) [[unlikely]]
      require_alignment(alignment);
    if (alignment <= default_alignment) [[likely]] {
      if (void* const p = front_.take(id, size); p != nullptr) [[likely]]
        return p;
    }
    return allocate_slow(id, stream, bytes, alignment);
  }

  TARN_NOINLINE void* allocate_slow(stream_id id, stream_ref stream, std::size_t bytes,
                                    std::size_t alignment) {
    if (heap_.is_lost()) [[unlikely]]
      heap_.refuse_forked();
    if (bytes > max_request_bytes) heap_.refuse(id, bytes, alignment);
    misuse_report const last = report_misuse_at_end();
    if (heap_.is_crowded()) [[unlikely]]
      heap_.sweep_streams(id != detail::neutral_id && heap_.order.is_capturing(stream)
                              ? detail::sweep_of::default_streams
                              : detail::sweep_of::all_streams);
    detail::room_to_describe room(heap_.description);
    std::size_t const guard = heap_.description.active() ? detail::guard_bytes : 0;
    detail::block_request const request(id, stream, bytes, bytes + guard, alignment);
    auto position = front_.open(id, stream);
    detail::block_batch batch;
    if (position.of_stream != nullptr && request.in_run)
      batch.wanted = detail::magazine_batch(request.size_class);
    if (!take_from_heap(position, request, batch)) {
      climb(position, request, batch);
      front_.find_again(position, id, stream);
    }
    front_.keep_rest(position, request, batch);  // those that have no room in the cache are left in the batch
    if (batch.count > 1) heap_.give_back(id, stream, request.size_class, batch.blocks + 1, batch.count - 1);
    room.use(batch.blocks[0], bytes);
    return batch.blocks[0];
  }

  bool take_from_heap(typename front_type::cache_position const& position,
                      detail::block_request const& request, detail::block_batch& batch) {
    // Return the cached large block first: it may coalesce with its neighbours.
    std::size_t cached_bytes = 0;
    void* const cached = position.of_stream != nullptr && request.where != detail::zone::small
                             ? front_.take_large(position, cached_bytes)
                             : nullptr;
    detail::hot_lock held(heap_.hot);
    if (cached != nullptr)
      heap_.return_range(detail::may_release(held), request.id, request.stream, cached, cached_bytes);
    heap_.space(held).make_room();
    if (!heap_.take(held, heap_.space(held).streams.get(request.id, request.stream), request, batch))
      return false;
    heap_.count_if_uncached(held, request, position.cache == nullptr);
    return true;
  }

  TARN_NOINLINE void climb(typename front_type::cache_position const& position,
                           detail::block_request const& request, detail::block_batch& batch) {
    if (heap_.cold.is_mine()) [[unlikely]]  // a growth cannot start another one
      heap_.refuse(request.id, request.asked, request.alignment,
                   "the pool, because a handler of its own growth called it");
    std::lock_guard const cold(heap_.cold);
    waiting_.release(false);
    detail::hot_lock held(heap_.hot);
    detail::ladder(heap_, front_, waiting_, detail::may_release(held), request, batch).climb();
    heap_.count_if_uncached(held, request, position.cache == nullptr);
  }

  // ---- deallocation: the thread's cache, the heap

  template <class Size>
  TARN_ALWAYS_INLINE void deallocate_on(stream_id id, stream_ref stream, void* p, Size size,
                                        std::size_t bytes, std::size_t alignment) noexcept {
    if (alignment <= default_alignment && front_.put(id, p, size)) [[likely]]
      return;
    deallocate_slow(id, stream, p, bytes, alignment);
  }

  TARN_NOINLINE void deallocate_slow(stream_id id, stream_ref stream, void* p, std::size_t bytes,
                                     std::size_t alignment) noexcept {
    if (heap_.is_lost()) [[unlikely]]
      return;
    misuse_report const last = report_misuse_at_end();
    // The stream may have been destroyed, so the driver cannot be asked whether it is capturing.
    if (heap_.is_crowded()) [[unlikely]]
      heap_.sweep_streams(detail::sweep_of::default_streams);
    if (heap_.description.active()) [[unlikely]]
      return take_back_described(heap_, id, stream, p, bytes, alignment, detail::reuse::later);
    detail::block_request const request(id, stream, bytes, bytes, alignment);
    auto const position = front_.open(id, stream);
    if (position.of_stream == nullptr) {
      heap_.count_given(request);
    } else {
      detail::block_batch displaced;
      std::size_t displaced_bytes = 0;
      auto const kept = front_.put_and_displace(position, request, p, displaced, displaced_bytes);
      if (kept == detail::kept::twice) [[unlikely]]
        return heap_.note_double_free(request, p);
      if (displaced.count != 0) heap_.give_back(request, displaced.blocks, displaced.count, displaced_bytes);
      if (kept == detail::kept::yes) return;
    }
    heap_.give_back(request, &p, 1, request.block);
  }

  /// Frees a block whose stream was destroyed: the block waits for all work, or the host waits for it now.
  TARN_NOINLINE void deallocate_unknown(stream_ref stream, void* p, std::size_t bytes,
                                        std::size_t alignment) noexcept {
    if (heap_.is_lost() || waiting_.hold_back_for_all(stream, p, bytes, alignment)) return;
    deallocate_sync(p, bytes, alignment);
  }

  /// Returns to the heap the blocks in thread caches and in quarantine, and the waiting blocks after the host has waited for
  /// their uses. The caller holds the growth lock.
  void collect() noexcept {
    front_.flush_all();
    end_quarantine(heap_);
    waiting_.release(true);
  }
};

}  // namespace tarn
