// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a pool does for blocks that grow where they are: a block that is extended into the free memory behind
// it, and the blocks of a growing_buffer, which follow each other at addresses that are reserved once.

#include <cstddef>
#include <cstdint>

#include "tarn/core/config.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/stream.hpp"
#include "tarn/pool/arena/hot_lock.hpp"
#include "tarn/pool/arena/range.hpp"
#include "tarn/pool/arena/size_class.hpp"
#include "tarn/pool/block_request.hpp"
#include "tarn/pool/graph/captured_streams.hpp"
#include "tarn/pool/heap.hpp"
#include "tarn/pool/ladder.hpp"
#include "tarn/pool/misuse_notes.hpp"
#include "tarn/pool/pages/growth_lock.hpp"
#include "tarn/pool/slow_path.hpp"

namespace TARN_NAMESPACE::detail {

template <class Pool>
class in_place {
 public:
  in_place(Pool& pool, slow_path<Pool>& slow) noexcept
      : heap_(pool.heap_),
        deferred_(pool.deferred_),
        front_(pool.front_),
        graphs_(pool.graphs_),
        slow_(slow) {}
  in_place& operator=(in_place&&) = delete;

  /// See pool::extend().
  [[nodiscard]] bool extend(stream_id id, stream_ref stream, void* p, std::size_t bytes, std::size_t more,
                            std::size_t alignment) {
    if (heap_.is_asleep() || heap_.tool().active() || is_captured_id(id)) return false;
    if (bytes > max_request_bytes || more > max_request_bytes - bytes) return false;
    heap_.require_access(stream_ref::from(stream.handle(), id));
    if (graphs_.is_watching() && graphs_.captures().of_allocation(id, stream).is_captured()) return false;
    std::size_t const now = rounded_bytes(bytes, alignment);
    std::size_t const wanted = rounded_bytes(bytes + more, alignment);
    if (wanted == now) return true;
    misuse_report const last = heap_.misuse_at_end();
    if (zone_of(wanted) != zone_of(now)) return false;
    if (zone_of(now) == zone::larger) put_cached_large(id, stream);
    hot_lock held = heap_.lock_hot();
    arena& space = heap_.space(held);
    space.make_room();
    if (heap_.is_asleep() || !space.extend(space.streams.find(id, common), p, now, wanted - now))
      return false;
    heap_.count_uncached(held, static_cast<std::int64_t>(wanted - now), 0);
    space.count_splits();
    return true;
  }

  /// See pool::allocate_at().
  void* allocate_at(stream_id id, stream_ref stream, void* at, std::size_t bytes) {
    heap_.require_ready(id, bytes, default_alignment);
    heap_.require_access(stream_ref::from(stream.handle(), id));
    if (is_captured_id(id) || may_be_capturing(heap_.driver(), stream))
      throw cuda_error(refused_for_capture("growing_buffer"), heap_.driver().device().value);
    misuse_report const last = heap_.misuse_at_end();
    if (heap_.holds_growth_lock())
      heap_.refuse(id, bytes, default_alignment, "the pool, because a handler of its own growth called it");
    block_request request(id, stream, bytes, bytes, default_alignment);
    {
      growth_lock const growing = heap_.lock_growth();
      if (heap_.is_lost()) heap_.refuse_forked();
      if (!find_growing(growing, request, at)) refuse_pointer(at, "growing_buffer");
      // A block that is deferred at these addresses is in the way: the host waits for the streams that use
      // it.
      if (has_blocks_from(growing, request)) deferred_.release(growing, true);
    }
    block_batch batch;
    slow_.climb({}, request, batch);
    return batch.blocks[0];
  }
  /// See pool::suggest_growth().
  std::size_t suggest_growth(stream_id id, stream_ref stream, void const* at, std::size_t bytes) {
    if (heap_.is_lost() || heap_.is_asleep() || heap_.holds_growth_lock()) return bytes;
    put_cached_large(id, stream);
    bool const is_captured = may_be_capturing(heap_.driver(), stream);
    growth_lock const growing = heap_.lock_growth();
    block_request request(id, stream, bytes, bytes, default_alignment);
    if (heap_.is_lost() || heap_.is_asleep() || !find_growing(growing, request, at)) return bytes;
    hot_lock held = heap_.lock_hot();
    arena& space = heap_.space(held);
    growth_request wanted;
    wanted.taker = space.streams.get(id, stream, common);
    wanted.where = zone::larger;
    wanted.bytes = bytes;
    kept_domain const kept(space.streams[wanted.taker]);
    auto const suggested = [&] {
      return heap_.growth(growing).template visit_pages<std::size_t>(
          [&](auto& pages) { return pages.growing().suggest(space, wanted, request.view, request.offset); });
    };
    std::size_t found = suggested();
    if (found == 0 && !is_captured && others_have_free(space, wanted.taker)) {
      collect_finished(growing, space, heap_.order(growing), may_release(held), common, wanted.taker);
      if (suggested() == 0)
        (void)steal(growing, space, heap_.order(growing), may_release(held), wanted.taker);
      found = suggested();
    }
    return found != 0 ? found : bytes;
  }
  /// Returns such a block to the heap. No cache keeps it: its address serves nothing else.
  void deallocate_at(stream_id id, stream_ref stream, void* p, std::size_t bytes) noexcept {
    misuse_report const last = heap_.misuse_at_end();
    if (id == stream_ref::unknown_id && graphs_.may_hold(p) &&
        slow_.take_back_of_graphs(id, stream, p, bytes, default_alignment))
      return;
    slow_.return_to_part(id, stream, p, bytes, default_alignment);
  }

 private:
  using front_type = typename Pool::front_type;
  using cache_position = typename front_type::cache_position;

  /// Returns the large block that the thread caches for the stream to the heap: it is the memory that the
  /// stream freed last.
  void put_cached_large(stream_id id, stream_ref stream) {
    std::size_t bytes = 0;
    cache_position const position = front_.find_or_make(id, stream);
    void* const cached = position.of_stream != nullptr ? front_.take_large(position, bytes) : nullptr;
    if (cached != nullptr) heap_.put_range(id, stream, cached, bytes);
  }
  bool has_blocks_from(growth_lock const& growing, block_request const& request) {
    hot_lock const held = heap_.lock_hot();
    return heap_.growth(growing).template visit_pages<bool>([&](auto& pages) {
      return pages.growing().has_blocks_from(heap_.space(held), request.view, request.offset);
    });
  }
  /// Sets the growing view that an address lies in, and the place in it. Returns false if there is none.
  bool find_growing(growth_lock const& growing, block_request& request, void const* at) {
    hot_lock const held = heap_.lock_hot();
    return heap_.growth(growing).template visit_pages<bool>([&](auto& pages) {
      auto const address = reinterpret_cast<std::uintptr_t>(at);
      request.view = pages.growing().find(heap_.space(held), address);
      if (request.view != 0) request.offset = address - pages.growing().address_of(request.view);
      return request.view != 0;
    });
  }

  typename Pool::heap_type& heap_;
  typename Pool::deferred_type& deferred_;
  front_type& front_;
  typename Pool::graphs_type& graphs_;
  slow_path<Pool>& slow_;
};

}  // namespace TARN_NAMESPACE::detail
