// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a pool does for a call that the calling thread's cache does not serve: allocation takes from the heap, then climbs the
// ladder; deallocation puts into the cache and gives what it displaces to the heap. Calls on captured streams go to graph/.

#include <cstddef>
#include <cstdint>

#include "tarn/core/config.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/stream.hpp"
#include "tarn/pool/block_request.hpp"
#include "tarn/pool/front/front.hpp"
#include "tarn/pool/front/magazine.hpp"
#include "tarn/pool/graph/graph_captures.hpp"
#include "tarn/pool/growth/growth_lock.hpp"
#include "tarn/pool/heap.hpp"
#include "tarn/pool/inspection/described_blocks.hpp"
#include "tarn/pool/ladder.hpp"
#include "tarn/pool/misuse_notes.hpp"

namespace tarn::detail {

template <class Pool>
class slow_path {
 public:
  explicit slow_path(Pool& pool) noexcept
      : pool_(pool),
        heap_(pool.heap_),
        deferred_(pool.deferred_),
        front_(pool.front_),
        graphs_(pool.graphs_) {}
  slow_path(slow_path const&) = delete;
  slow_path& operator=(slow_path const&) = delete;

  TARN_NOINLINE void* allocate(stream_id id, stream_ref stream, std::size_t bytes, std::size_t alignment) {
    heap_.require_ready(id, bytes, alignment);
    if (id != neutral_id) heap_.require_access(stream_ref::from(stream.handle(), id));
    if (graphs_.is_watching() && id != neutral_id) [[unlikely]] {
      if (void* const p = graphs_.allocate(pool_, id, stream, bytes, alignment); p != nullptr) return p;
      if (alignment <= default_alignment && front_.is_this_thread_watched() == front_type::watched::yes) {
        if (void* const p = front_.take_watched(id, lazy_block_size{bytes}); p != nullptr) return p;
      }
    }
    misuse_report const last = heap_.misuse_at_end();
    if (heap_.is_crowded()) [[unlikely]] {
      bool const may_mark = id == neutral_id || !may_be_capturing(heap_.driver(), stream);
      heap_.sweep_streams(may_mark ? sweep_of::all_streams : sweep_of::default_streams);
    }
    room_to_describe room(heap_.description());
    std::size_t const guard = heap_.description().active() ? guard_bytes : 0;
    block_request const request(id, stream, bytes, bytes + guard, alignment);
    cache_position position = front_.open(id, stream);
    block_batch batch;
    if (position.of_stream != nullptr && request.in_run) {
      batch.wanted = magazine_batch(request.size_class);
      if (is_capture_stream(id)) batch.wanted = min_of(batch.wanted, batch_of_capture);
    }
    if (!take_from_heap(position, request, batch) && !take_what_captures_cache(position, request, batch)) {
      climb(position, request, batch);
      front_.find_again(position, id, stream);
    }
    front_.keep_rest(position, request, batch);  // those that have no room in the cache are left in the batch
    if (batch.count > 1) heap_.give_back(id, stream, request.size_class, batch.blocks + 1, batch.count - 1);
    room.use(batch.blocks[0], bytes);
    if (batch.ends_step) [[unlikely]]
      give_back_unused(id);
    return batch.blocks[0];
  }

  TARN_NOINLINE void deallocate(stream_id id, stream_ref stream, void* p, std::size_t bytes,
                                std::size_t alignment) noexcept {
    if (heap_.is_lost()) [[unlikely]]
      return;
    misuse_report const last = heap_.misuse_at_end();
    heap_.learn_if_named(id, stream);
    if (graphs_.is_watching()) [[unlikely]] {
      if_unknown const then = pool_.asks_at_frees() ? if_unknown::not_captured : if_unknown::ask;
      if (graphs_.defer_if_captured(id, stream, p, bytes, alignment, then)) return;
      if (alignment <= default_alignment && !heap_.is_asleep() &&
          front_.put_watched(id, p, lazy_block_size{bytes}))
        return;
    }
    // The stream may have been destroyed, so the driver cannot be asked whether it is capturing.
    if (heap_.is_crowded()) [[unlikely]]
      heap_.sweep_streams(sweep_of::default_streams);
    if (heap_.description().active()) [[unlikely]]
      return take_back_described(heap_, id, stream, p, bytes, alignment, reuse::later);
    block_request const request(id, stream, bytes, bytes, alignment);
    cache_position const position = heap_.is_asleep() ? cache_position{} : front_.open(id, stream);
    if (position.of_stream == nullptr) {
      heap_.count_given(request.block);
    } else {
      block_batch displaced;
      std::size_t displaced_bytes = 0;
      kept const result = front_.put_and_displace(position, request, p, displaced, displaced_bytes);
      if (result == kept::twice) [[unlikely]]
        return heap_.note_double_free(request, p);
      if (displaced.count != 0) heap_.give_back(request, displaced.blocks, displaced.count, displaced_bytes);
      if (result == kept::yes) return;
    }
    heap_.give_back(request, &p, 1, request.block);
  }

  /// Frees a block whose stream was destroyed: the block is deferred for all work, or the host waits for it now.
  TARN_NOINLINE void deallocate_unknown(stream_ref stream, void* p, std::size_t bytes,
                                        std::size_t alignment) noexcept {
    if (heap_.is_lost()) return;
    if (graphs_.may_hold(p) && graphs_.deallocate(stream_ref::unknown_id, stream, p, bytes, alignment))
      return;
    if (deferred_.defer_for_all_work(stream, p, bytes, alignment)) return;
    pool_.deallocate_sync(p, bytes, alignment);
  }

  /// Takes back a block with recorded uses, or one of a graph memory. Returns false if `p` is neither.
  TARN_NOINLINE bool take_back_recorded(stream_id id, stream_ref stream, void* p, std::size_t bytes,
                                        std::size_t alignment) noexcept {
    if (heap_.is_lost()) return true;
    heap_.learn_if_named(id, stream);
    if (graphs_.may_hold(p) && graphs_.deallocate(id, stream, p, bytes, alignment)) return true;
    if (!deferred_.may_hold(p)) return false;
    if (graphs_.watches_frees() && graphs_.defer_if_captured(id, stream, p, bytes, alignment)) return true;
    return deferred_.defer(id, stream, p, bytes, alignment);
  }

 private:
  using front_type = typename Pool::front_type;
  using cache_position = typename front_type::cache_position;

  /// Blocks moved at once for a captured stream: what a capture has not used goes back when it ends.
  static constexpr std::uint32_t batch_of_capture = 4;

  bool take_from_heap(cache_position const& position, block_request const& request, block_batch& batch) {
    // Return the cached large block first: it may coalesce with its neighbours.
    std::size_t cached_bytes = 0;
    void* const cached = position.of_stream != nullptr && request.where != zone::smaller
                             ? front_.take_large(position, cached_bytes)
                             : nullptr;
    hot_lock held = heap_.lock_hot();
    if (cached != nullptr)
      heap_.return_range(may_release(held), request.id, request.stream, cached, cached_bytes);
    heap_.space(held).make_room();
    if (!heap_.take(held, heap_.space(held).streams.get(request.id, request.stream), request, batch))
      return false;
    heap_.count_if_uncached(held, request, position.cache == nullptr);
    return true;
  }

  /// Returns the large blocks that the thread caches for a captured stream to the heap, where they coalesce, and tries again.
  bool take_what_captures_cache(cache_position const& position, block_request const& request,
                                block_batch& batch) {
    if (!is_capture_stream(request.id) || position.of_stream == nullptr) return false;
    bool any = false;
    for (auto block = front_.take_of_capture(position); block.p != nullptr;
         block = front_.take_of_capture(position)) {
      heap_.give_back_range(request.id, request.stream, block.p, block.bytes);
      any = true;
    }
    return any && take_from_heap(position, request, batch);
  }

  /// Climbs the ladder with the memory that the pool has or gets. If the device refuses, other pools there give back what they cache.
  TARN_NOINLINE void climb(cache_position const& position, block_request const& request, block_batch& batch) {
    if (heap_.holds_growth_lock()) [[unlikely]]  // a growth cannot start another one
      heap_.refuse(request.id, request.asked, request.alignment,
                   "the pool, because a handler of its own growth called it");
    auto const climb_alone = [&] {
      growth_lock const growing = heap_.lock_growth();
      if (heap_.is_asleep()) [[unlikely]]
        heap_.refuse_asleep(request.asked);
      deferred_.release(growing, false);
      if (graphs_.has_ended_parts()) (void)graphs_.reap(growing, pool_, false);
      for (;;) {
        try {
          hot_lock held = heap_.lock_hot();
          ladder(growing, heap_, front_, deferred_, may_release(held), request, batch).climb();
          return heap_.count_if_uncached(held, request, position.cache == nullptr);
        } catch (out_of_memory const&) {
          if (!graphs_.has_ended_parts() || !graphs_.reap(growing, pool_, true)) throw;
        }
      }
    };
    try {
      pool_.others_.with_help(climb_alone, [&](memory_report const& r) { return lacking(r, request); });
    } catch (out_of_memory const&) {
      growth_lock const growing = heap_.lock_growth();
      ++heap_.counters(growing).ooms;
      throw;
    }
  }
  /// What the device lacks for a request, bytes; the whole request if it has that much, but cannot use it.
  [[nodiscard]] std::size_t lacking(memory_report const& refused,
                                    block_request const& request) const noexcept {
    std::size_t wanted = align_up(request.block, usual_granule);
    if (refused.headroom != memory_report::unknown)
      wanted += refused.headroom + allocation_overhead(heap_.driver());
    std::size_t const free = refused.device_free != memory_report::unknown ? refused.device_free : 0;
    return wanted > free ? wanted - free : wanted;
  }

  /// Gives back what the last allocations did not need, unless another thread climbs, or this call is made from within a climb.
  TARN_NOINLINE void give_back_unused(stream_id id) noexcept {
    if (heap_.holds_growth_lock() || !heap_.try_lock_growth()) return;
    growth_lock const growing = heap_.adopt_growth_lock();
    try {
      heap_.give_back_unused(growing, id);
    } catch (...) {  // no host memory for the lists: a later step gives back
    }
  }

  Pool& pool_;
  typename Pool::heap_type& heap_;
  typename Pool::deferred_type& deferred_;
  front_type& front_;
  typename Pool::graphs_type& graphs_;
};

}  // namespace tarn::detail
