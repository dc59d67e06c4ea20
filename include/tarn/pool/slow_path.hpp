// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a pool does for a call that the calling thread's cache does not serve: allocation takes from the heap,
// then climbs the ladder; deallocation puts into the cache and gives what it displaces to the heap. Calls on
// captured streams go to graph/.

#include <cstddef>
#include <cstdint>

#include "tarn/core/config.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/stream.hpp"
#include "tarn/pool/block_request.hpp"
#include "tarn/pool/cache/front.hpp"
#include "tarn/pool/cache/magazine.hpp"
#include "tarn/pool/graph/captured_streams.hpp"
#include "tarn/pool/graph/graph_captures.hpp"
#include "tarn/pool/heap.hpp"
#include "tarn/pool/ladder.hpp"
#include "tarn/pool/misuse_notes.hpp"
#include "tarn/pool/pages/growth_lock.hpp"
#include "tarn/pool/tool/quarantine.hpp"

namespace TARN_NAMESPACE::detail {

template <class Pool>
class slow_path {
 public:
  using front_type = typename Pool::front_type;
  using cache_position = typename front_type::cache_position;

  explicit slow_path(Pool& pool) noexcept
      : pool_(pool),
        heap_(pool.heap_),
        deferred_(pool.deferred_),
        front_(pool.front_),
        graphs_(pool.graphs_) {}
  slow_path& operator=(slow_path&&) = delete;

  TARN_NOINLINE void* allocate(stream_id id, stream_ref stream, std::size_t bytes, std::size_t alignment) {
    heap_.require_ready(id, bytes, alignment);
    if (id != neutral_id) heap_.require_access(stream_ref::from(stream.handle(), id));
    if (graphs_.is_watching() && id != neutral_id) [[unlikely]] {
      captured_stream const at = graphs_.captures().of_allocation(id, stream);
      if (at.is_captured()) return allocate_captured(at, bytes, alignment);
      if (alignment <= default_alignment && front_.is_this_thread_watched() == front_type::watched::yes) {
        if (void* const p = front_.take(id, lazy_block_size{bytes}, entry::always); p != nullptr) return p;
      }
    }
    return allocate_in(common, id, stream, bytes, alignment);
  }
  /// Serves a request of a capture.
  void* allocate_captured(captured_stream const& at, std::size_t bytes, std::size_t alignment) {
    void* p = nullptr;
    if (alignment <= default_alignment)
      p = front_.take(at.captured_as, lazy_block_size{bytes}, entry::always);
    if (p == nullptr) {
      try {
        p = allocate_in(at.owner->captured, at.captured_as, stream_ref::from(nullptr, at.captured_as), bytes,
                        alignment);
      } catch (out_of_memory& refused) {
        memory_report report = refused.report();
        report.stream = at.stream;
        refused.set_report(report);
        throw;
      }
    }
    graphs_.count_allocated(*at.owner, bytes, alignment);
    return p;
  }
  /// Serves a request from a part of the heap, by the calling thread's cache and the ladder.
  void* allocate_in(part_ref part, stream_id id, stream_ref stream, std::size_t bytes,
                    std::size_t alignment) {
    misuse_report const last = heap_.misuse_at_end();
    if (heap_.is_crowded()) [[unlikely]] {
      bool const may_mark =
          id == neutral_id || !(is_captured_id(id) || may_be_capturing(heap_.driver(), stream));
      heap_.sweep_streams(may_mark ? sweep_of::all_streams : sweep_of::default_streams);
    }
    room_for_region room(heap_.tool(), part == common);
    std::size_t const guard = part == common && heap_.tool().active() ? guard_bytes : 0;
    block_request request(id, stream, bytes, bytes + guard, alignment);
    request.part = part;
    // A cache holds the blocks of one part: those of a stream are common, those of a captured one of its
    // capture's part.
    bool const has_cache = part == common || is_captured_id(id);
    cache_position position = has_cache ? front_.find_or_make(id, stream) : cache_position{};
    block_batch batch;
    if (position.of_stream != nullptr && request.in_run) {
      batch.wanted = magazine_batch(request.size_class);
      if (is_captured_id(id)) batch.wanted = min_of(batch.wanted, batch_of_capture);
    }
    if (!take_from_heap(position, request, batch) && !take_what_captures_cache(position, request, batch)) {
      climb(position, request, batch);
      if (has_cache) front_.find_again(position, id, stream);
    }
    front_.keep_rest(position, request, batch);  // those that have no room in the cache are left in the batch
    if (batch.count > 1) heap_.put(id, stream, request.size_class, batch.blocks + 1, batch.count - 1);
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
          front_.put(id, p, lazy_block_size{bytes}, entry::always))
        return;
    }
    // The stream may have been destroyed, so the driver cannot be asked whether it is capturing.
    if (heap_.is_crowded()) [[unlikely]]
      heap_.sweep_streams(sweep_of::default_streams);
    if (heap_.tool().active()) [[unlikely]]
      return deallocate_under_tool(heap_, id, stream, p, bytes, alignment, reuse::later);
    put(id, stream, p, bytes, alignment, !heap_.is_asleep());
  }

  /// Frees a block whose stream was destroyed: the block is deferred for all work, or the host waits for it
  /// now.
  TARN_NOINLINE void deallocate_unknown(stream_ref stream, void* p, std::size_t bytes,
                                        std::size_t alignment) noexcept {
    if (heap_.is_lost()) return;
    if (graphs_.may_hold(p) && take_back_of_graphs(stream_ref::unknown_id, stream, p, bytes, alignment))
      return;
    if (deferred_.defer_for_all_work(stream, p, bytes, alignment)) return;
    pool_.deallocate_sync(p, bytes, alignment);
  }

  /// Takes back a block with recorded uses, or one of a graph memory. Returns false if `p` is neither.
  TARN_NOINLINE bool take_back_recorded(stream_id id, stream_ref stream, void* p, std::size_t bytes,
                                        std::size_t alignment) noexcept {
    if (heap_.is_lost()) return true;
    heap_.learn_if_named(id, stream);
    if (graphs_.may_hold(p) && take_back_of_graphs(id, stream, p, bytes, alignment)) return true;
    if (!deferred_.may_hold(p)) return false;
    if (graphs_.watches_frees() && graphs_.defer_if_captured(id, stream, p, bytes, alignment)) return true;
    return deferred_.defer(id, stream, p, bytes, alignment);
  }
  /// Returns a block that was deferred for graphs, which are complete.
  void free_deferred(void* p, std::size_t bytes, std::size_t alignment) noexcept {
    if (heap_.part_of(p) == common && (bytes < usual_granule || heap_.tool().active()))
      return pool_.deallocate_sync(p, bytes, alignment);
    return_to_part(neutral_id, {}, p, bytes, alignment);  // no cache keeps a block that grew in place
  }

  // ---- for in_place, too

  /// Takes back a block of an owner's part, or one that graphs use. Returns false if it is to be freed as any
  /// other.
  bool take_back_of_graphs(stream_id id, stream_ref stream, void* p, std::size_t bytes,
                           std::size_t alignment) noexcept {
    using fate = typename Pool::graphs_type::fate;
    misuse_report const last = heap_.misuse_at_end();
    stream_id as = 0;
    switch (graphs_.take_back(id, stream, p, bytes, alignment, as)) {
      case fate::ordinary:
        return false;
      case fate::deferred:
        break;
      case fate::reused:
        free_captured(as, p, bytes, alignment);
        break;
      case fate::returned:
        return_to_part(id, stream, p, bytes, alignment);
        break;
    }
    return true;
  }
  /// Returns a block to its part in the order of a stream that is of no capture.
  void return_to_part(stream_id id, stream_ref stream, void* p, std::size_t bytes,
                      std::size_t alignment) noexcept {
    if (id == stream_ref::unknown_id) {
      if (deferred_.defer_for_all_work(stream, p, bytes, alignment)) return;
      id = neutral_id;
    }
    if (deferred_.may_hold(p) && deferred_.defer(id, stream, p, bytes, alignment)) return;
    put(id, stream, p, bytes, alignment, false);
  }
  /// Climbs the ladder with the memory that the pool has or gets. If the device refuses, other pools there
  /// give back what they cache.
  TARN_NOINLINE void climb(cache_position const& position, block_request const& request, block_batch& batch) {
    if (heap_.holds_growth_lock()) [[unlikely]]  // a growth cannot start another one
      heap_.refuse(request.id, request.asked, request.alignment,
                   "the pool, because a handler of its own growth called it");
    auto const climb_alone = [&] {
      growth_lock const growing = heap_.lock_growth();
      if (heap_.is_asleep()) [[unlikely]]
        heap_.refuse_asleep(request.asked);
      if (!is_captured_id(request.id)) {
        deferred_.release(growing, false);
        if (graphs_.has_ended()) (void)graphs_.reap(growing, pool_, false);
      }
      for (;;) {
        try {
          idle_blocks const idle = front_.idle();
          hot_lock held = heap_.lock_hot();
          ladder(growing, heap_, front_, deferred_, may_release(held), request, batch).climb(idle);
          return heap_.count_if_uncached(held, request, position.cache == nullptr);
        } catch (out_of_memory const&) {
          if (!graphs_.has_ended() || !graphs_.reap(growing, pool_, true)) throw;
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

 private:
  /// Blocks moved at once for a captured stream: what a capture has not used goes back when it ends.
  static constexpr std::uint32_t batch_of_capture = 4;

  /// Frees a block under the identity that its stream has in a capture.
  void free_captured(stream_id as, void* p, std::size_t bytes, std::size_t alignment) noexcept {
    stream_ref const stream = stream_ref::from(nullptr, as);
    if (deferred_.may_hold(p) && deferred_.defer(as, stream, p, bytes, alignment)) return;
    if (alignment <= default_alignment && !heap_.is_asleep() &&
        front_.put(as, p, lazy_block_size{bytes}, entry::always))
      return;
    put(as, stream, p, bytes, alignment, !heap_.is_asleep());
  }
  /// Keeps a block in the calling thread's cache, if it may, and returns what has no room there to the heap.
  void put(stream_id id, stream_ref stream, void* p, std::size_t bytes, std::size_t alignment,
           bool caches) noexcept {
    block_request const request(id, stream, bytes, bytes, alignment);
    cache_position const position = caches ? front_.find_or_make(id, stream) : cache_position{};
    if (position.of_stream == nullptr) {
      heap_.count_given(request.block);
    } else {
      block_batch displaced;
      std::size_t displaced_bytes = 0;
      kept const result = front_.put_and_displace(position, request, p, displaced, displaced_bytes);
      if (result == kept::twice) [[unlikely]]
        return heap_.note_double_free(request, p);
      if (displaced.count != 0) heap_.put(request, displaced.blocks, displaced.count, displaced_bytes);
      if (result == kept::yes) return;
    }
    heap_.put(request, &p, 1, request.block);
  }

  bool take_from_heap(cache_position const& position, block_request const& request, block_batch& batch) {
    // Return cached blocks first: they may coalesce with their neighbours.
    bool const is_above_runs =
        request.where == zone::smaller && !request.in_run && !is_captured_id(request.id);
    if (is_above_runs && position.of_stream != nullptr) front_.return_unused(position, request.size_class);
    std::size_t cached_bytes = 0;
    void* const cached = position.of_stream != nullptr && request.where != zone::smaller
                             ? front_.take_large(position, cached_bytes)
                             : nullptr;
    hot_lock held = heap_.lock_hot();
    if (cached != nullptr)
      heap_.put_range(may_release(held), request.id, request.stream, cached, cached_bytes);
    heap_.space(held).make_room();
    domain_ref const taker = heap_.space(held).streams.get(request.id, request.stream, request.part);
    if (!heap_.take(held, taker, request, batch)) return false;
    heap_.count_if_uncached(held, request, position.cache == nullptr);
    return true;
  }

  /// Returns the large blocks that the thread caches for a captured stream to the heap, where they coalesce,
  /// and tries again.
  bool take_what_captures_cache(cache_position const& position, block_request const& request,
                                block_batch& batch) {
    if (!is_captured_id(request.id) || position.of_stream == nullptr) return false;
    bool any = false;
    for (auto block = front_.take_of_capture(position); block.p != nullptr;
         block = front_.take_of_capture(position)) {
      heap_.put_range(request.id, request.stream, block.p, block.bytes);
      any = true;
    }
    return any && take_from_heap(position, request, batch);
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

  /// Gives back what the last allocations did not need, unless another thread climbs, or this call is made
  /// from within a climb.
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

}  // namespace TARN_NAMESPACE::detail
