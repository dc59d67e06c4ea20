// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a pool does for a call that the calling thread's cache does not serve: allocation takes from the heap, then climbs the
// ladder; deallocation puts into the cache and gives what it displaces to the heap. Calls on captured streams go to graph/.
//
// Over 400 lines: allocation, deallocation and what other pools ask for enter the heap under the same locks, in the same order.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>

#include "tarn/core/error.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/property.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/core/sleeping.hpp"
#include "tarn/core/stream.hpp"
#include "tarn/driver/capture_gate.hpp"
#include "tarn/driver/no_driver.hpp"
#include "tarn/pool/block_request.hpp"
#include "tarn/pool/front/front.hpp"
#include "tarn/pool/front/magazine.hpp"
#include "tarn/pool/growth/growth_lock.hpp"
#include "tarn/pool/heap.hpp"
#include "tarn/pool/inspection/described_blocks.hpp"
#include "tarn/pool/ladder.hpp"
#include "tarn/pool/misuse_notes.hpp"
#include "tarn/pool/options.hpp"
#include "tarn/pool/other_pools.hpp"
#include "tarn/pool/pool_parts.hpp"
#include "tarn/pool/waiting_blocks.hpp"

namespace tarn::detail {

/// The base of `Pool`, a pool<Upstream>.
template <class Pool, memory_source Upstream>
class cache_misses : public pool_parts<Upstream> {
  using parts = pool_parts<Upstream>;

 public:
  /// Wakes the pool: see pool_parts::wake(). Before the device refuses it, other pools there give back what they cache.
  std::size_t wake(after_waking then)
    requires page_source<typename heap<Upstream>::source_type>
  {
    std::size_t taken = 0;
    with_help_of_others([&] { taken = parts::wake(then); },
                        [](memory_report const& refused) {
                          return refused.lacking != memory_report::unknown ? refused.lacking : refused.asked;
                        });
    return taken;
  }

  // ---- graph memories; see graph/graph_memories.hpp

  /// Makes free memory that the device has finished with usable by every stream, and marks the rest: while a capture is open, the
  /// host can wait only for what was marked before.
  void prepare_for_capture(growth_lock const& growing) {
    front_.flush_all(growing);
    waiting_.release(growing, false);
    hot_lock held(heap_.hot);
    collect_finished(growing, heap_.space(held), heap_.order(growing), may_release(held), neutral);
  }
  /// For the pool of a graph_memory: whether its end would wait for no work. While a capture is open, the end may be unable to wait.
  [[nodiscard]] bool can_end_now(growth_lock const& growing) {
    prepare_for_capture(growing);
    if (waiting_.asks_for_device() || this->state().pending != 0) return false;
    hot_lock held(heap_.hot);
    return !has_unfinished(heap_.space(held));
  }
  /// Waits for all work on the pool's memory and for its graphs. Returns false if a capture prevents it: work may then run still.
  [[nodiscard]] bool finish_work(growth_lock const& growing) noexcept {
    bool const graphs_done = graphs_.finish(growing, whole());
    collect(growing);
    bool const done = heap_.finish(growing, waiting_.asks_for_device() || graphs_.keeps_until_end());
    return done && graphs_done;
  }
  /// The same, but waits for the captures in scopes. If one stays open, none of the pool's memory is given back when it ends.
  void finish_or_keep_mapped(growth_lock const& growing) noexcept {
    bool done = false;
    for (int tries = 0; tries < 8 && !heap_.keeps_mapped(); ++tries) {  // the next capture may have begun
      bool const in_scope = capture_gate::has_captures();
      done = finish_work(growing);
      if (done && !waiting_.waits_for_capture()) return;
      // A capture without a scope is not waited for: nothing reports its end.
      if ((tries != 0 && !in_scope) || !capture_gate::wait_for_captures()) break;
    }
    // Recorded uses on a stream that is captured without a scope are never waited for.
    if (done && !capture_gate::has_captures()) return;
    keep_mapped(growing);
    graphs_.keep_mapped(growing);
  }
  /// Allocates a block of a graph memory; see graph_memory::allocate(). @throws as allocate()
  template <class Part>
  [[nodiscard]] void* allocate_from(Part& from, stream_ref stream, std::size_t bytes, std::size_t alignment) {
    stream_id const id = heap_.identity(stream);
    if (heap_.is_lost()) heap_.refuse_forked();
    if (heap_.is_asleep()) heap_.refuse_asleep(bytes);
    if (bytes > max_request_bytes) heap_.refuse(id, bytes, alignment);
    return graphs_.allocate_from(whole(), from, id, stream, bytes, alignment);
  }
  /// Work may still use the memory when the pool ends: none of it is given back.
  void keep_mapped(growth_lock const& growing) noexcept { heap_.keep_mapped(growing); }
  /// For the pool of a graph_memory: keeps the order of a captured stream from now on. There is room for as many as a pool has.
  void open_capture(growth_lock const&, stream_id kept_as) noexcept {
    heap_.kept_as.set(heap_.kept_as.free_place(), kept_as);
  }
  /// For the pool of a graph_memory: makes what a captured stream freed usable by the next capture.
  void end_capture(growth_lock const& growing, stream_id kept_as) noexcept {
    front_.drop_stream(growing, kept_as);
    hot_lock held(heap_.hot);
    heap_.kept_as.clear(heap_.kept_as.find(kept_as));
    end_captured_stream(growing, heap_.space(held), kept_as);
  }

 protected:
  using parts::front_;
  using parts::graphs_;
  using parts::heap_;
  using parts::waiting_;
  using typename parts::front_type;

  cache_misses(Upstream upstream, pooled const& options, recursive_fork_mutex* shared)
      : parts(std::move(upstream), options, shared),
        others_(heap_.driver(), this, &give_back_cached, place_in_list(shared != nullptr)) {}
  ~cache_misses() = default;

  /// Waits until no other pool asks this one for memory. The destructor's first step.
  void leave_others() noexcept { others_.leave(); }

  /// Whether a capture may have to take memory that the pool caches. The driver call takes 5 us, as long as the rest of opening a
  /// scope: an answer that was far from scarce holds for some captures, unless the pool grows.
  [[nodiscard]] bool is_memory_scarce(growth_lock const&) noexcept {
    std::size_t const reserved = heap_.sums.reserved;
    if (captures_with_ample_memory_ != 0 && reserved <= ample_up_to_) {
      --captures_with_ample_memory_;
      return false;
    }
    std::size_t free = 0;
    std::size_t total = 0;
    if (!heap_.driver().memory_info(free, total).ok()) return false;
    captures_with_ample_memory_ = free >= total / 4 ? 63 : 0;
    ample_up_to_ = reserved + total / 16;
    return free < total / 8;
  }

  /// Takes back a block with recorded uses, or one of a graph memory. Returns false if `p` is neither.
  TARN_NOINLINE bool take_back_noted(stream_id id, stream_ref stream, void* p, std::size_t bytes,
                                     std::size_t alignment) noexcept {
    if (heap_.is_lost()) return true;
    heap_.learn_if_named(id, stream);
    if (graphs_.may_hold(p) && graphs_.deallocate(id, stream, p, bytes, alignment)) return true;
    if (!waiting_.may_hold(p)) return false;
    if (graphs_.watches_frees() && graphs_.keep_if_captured(id, stream, p, bytes, alignment)) return true;
    return waiting_.hold_back(id, stream, p, bytes, alignment);
  }

  /// Whether each deallocation that names a stream asks is_freed_in_capture() first.
  [[nodiscard]] TARN_ALWAYS_INLINE bool asks_at_frees() const noexcept {
    return may_be_captured && heap_.options.captures == capture_watch::at_frees;
  }
  /// Whether a stream that a block is freed on is captured; at most one driver call.
  [[nodiscard]] TARN_ALWAYS_INLINE bool is_freed_in_capture(stream_id id, stream_ref stream) const noexcept {
    return !heap_.is_lost() && detail::is_freed_in_capture(heap_.driver(), stream, id);
  }
  /// Keeps a block that is freed on a captured stream. Returns false if the capture has ended since.
  TARN_NOINLINE bool keep_of_capture(stream_id id, stream_ref stream, void* p, std::size_t bytes,
                                     std::size_t alignment) noexcept {
    return graphs_.keep_if_captured(id, stream, p, bytes, alignment);
  }

  [[nodiscard]] Pool& whole() noexcept { return static_cast<Pool&>(*this); }
  [[nodiscard]] misuse_report report_misuse_at_end() noexcept { return {heap_.notes, heap_.hot}; }

  // ---- allocation: the heap, the ladder

  TARN_NOINLINE void* allocate_slow(stream_id id, stream_ref stream, std::size_t bytes,
                                    std::size_t alignment) {
    if (heap_.is_lost()) [[unlikely]]
      heap_.refuse_forked();
    if (heap_.is_asleep()) [[unlikely]]
      heap_.refuse_asleep(bytes);
    if (bytes > max_request_bytes) heap_.refuse(id, bytes, alignment);
    if (id != neutral_id) heap_.require_access(stream_ref::from(stream.handle(), id));
    if (graphs_.is_watching() && id != neutral_id) [[unlikely]] {
      if (void* const p = graphs_.allocate(whole(), id, stream, bytes, alignment); p != nullptr) return p;
      if (alignment <= default_alignment && front_.is_this_thread_watched() == front_type::watched::yes) {
        if (void* const p = front_.take_watched(id, lazy_block_size{bytes}); p != nullptr) return p;
      }
    }
    misuse_report const last = report_misuse_at_end();
    if (heap_.is_crowded()) [[unlikely]]
      heap_.sweep_streams(id != neutral_id && may_be_capturing(heap_.driver(), stream)
                              ? sweep_of::default_streams
                              : sweep_of::all_streams);
    room_to_describe room(heap_.description);
    std::size_t const guard = heap_.description.active() ? guard_bytes : 0;
    block_request const request(id, stream, bytes, bytes + guard, alignment);
    auto position = front_.open(id, stream);
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

  bool take_from_heap(typename front_type::cache_position const& position, block_request const& request,
                      block_batch& batch) {
    // Return the cached large block first: it may coalesce with its neighbours.
    std::size_t cached_bytes = 0;
    void* const cached = position.of_stream != nullptr && request.where != zone::smaller
                             ? front_.take_large(position, cached_bytes)
                             : nullptr;
    hot_lock held(heap_.hot);
    if (cached != nullptr)
      heap_.return_range(may_release(held), request.id, request.stream, cached, cached_bytes);
    heap_.space(held).make_room();
    if (!heap_.take(held, heap_.space(held).streams.get(request.id, request.stream), request, batch))
      return false;
    heap_.count_if_uncached(held, request, position.cache == nullptr);
    return true;
  }

  /// Returns the large blocks that the thread caches for a captured stream to the heap, where they coalesce, and tries again.
  bool take_what_captures_cache(typename front_type::cache_position const& position,
                                block_request const& request, block_batch& batch) {
    if (!is_capture_stream(request.id) || position.of_stream == nullptr) return false;
    bool any = false;
    for (auto block = front_.take_of_capture(position); block.p != nullptr;
         block = front_.take_of_capture(position)) {
      heap_.give_back_range(request.id, request.stream, block.p, block.bytes);
      any = true;
    }
    return any && take_from_heap(position, request, batch);
  }

  TARN_NOINLINE void climb(typename front_type::cache_position const& position, block_request const& request,
                           block_batch& batch) {
    if (heap_.growth_mutex.is_mine()) [[unlikely]]  // a growth cannot start another one
      heap_.refuse(request.id, request.asked, request.alignment,
                   "the pool, because a handler of its own growth called it");
    try {
      with_help_of_others([&] { climb_alone(position, request, batch); },
                          [&](memory_report const& refused) { return lacking(refused, request); });
    } catch (out_of_memory const&) {
      growth_lock const growing(heap_.growth_mutex);
      ++heap_.counters.ooms;
      throw;
    }
  }
  /// Calls `attempt`. If the device refuses it, other pools there give back what they cache, first what is idle, then what the host
  /// must wait for, and it is called again. The caller holds no lock of a pool.
  /// @param lacking  returns what the device lacks after a refusal, bytes
  /// @throws what the last attempt throws
  template <class Attempt, class Lacking>
  void with_help_of_others(Attempt const& attempt, Lacking const& lacking) {
    constexpr giving in_turn[] = {giving::what_is_idle, giving::what_is_waited_for};
    for (std::size_t asked = 0;;) {
      try {
        return attempt();
      } catch (out_of_memory const& refused) {
        std::size_t given = 0;
        while (given == 0 && asked < 2 && is_refused_by_device(refused.report()))
          given = others_.ask(lacking(refused.report()), in_turn[asked++]);
        if (given == 0) throw;
      }
    }
  }
  /// Whether memory that other pools give back may help.
  [[nodiscard]] static bool is_refused_by_device(memory_report const& refused) noexcept {
    if (refused.device_total != memory_report::unknown && refused.asked > refused.device_total) return false;
    return is_on_device && refused.limit == memory_report::unknown;
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
  /// Climbs with the memory that this pool has or gets.
  void climb_alone(typename front_type::cache_position const& position, block_request const& request,
                   block_batch& batch) {
    growth_lock const growing(heap_.growth_mutex);
    if (heap_.is_asleep()) [[unlikely]]
      heap_.refuse_asleep(request.asked);
    waiting_.release(growing, false);
    if (graphs_.has_ended_parts()) (void)graphs_.reap(growing, whole(), false);
    for (;;) {
      try {
        hot_lock held(heap_.hot);
        ladder(growing, heap_, front_, waiting_, may_release(held), request, batch).climb();
        return heap_.count_if_uncached(held, request, position.cache == nullptr);
      } catch (out_of_memory const&) {
        if (!graphs_.has_ended_parts() || !graphs_.reap(growing, whole(), true)) throw;
      }
    }
  }

  /// Gives back what the last allocations did not need, unless another thread climbs, or this call is made from within a climb.
  TARN_NOINLINE void give_back_unused(stream_id id) noexcept {
    if (heap_.growth_mutex.is_mine() || !heap_.growth_mutex.try_lock()) return;
    growth_lock const growing(heap_.growth_mutex, std::adopt_lock);
    try {
      heap_.give_back_unused(growing, id);
    } catch (...) {  // no host memory for the lists: a later step gives back
    }
  }

  // ---- deallocation: the cache, the heap

  TARN_NOINLINE void deallocate_slow(stream_id id, stream_ref stream, void* p, std::size_t bytes,
                                     std::size_t alignment) noexcept {
    if (heap_.is_lost()) [[unlikely]]
      return;
    misuse_report const last = report_misuse_at_end();
    heap_.learn_if_named(id, stream);
    if (graphs_.is_watching()) [[unlikely]] {
      if_unknown const then = asks_at_frees() ? if_unknown::not_captured : if_unknown::ask;
      if (graphs_.keep_if_captured(id, stream, p, bytes, alignment, then)) return;
      if (alignment <= default_alignment && !heap_.is_asleep() &&
          front_.put_watched(id, p, lazy_block_size{bytes}))
        return;
    }
    // The stream may have been destroyed, so the driver cannot be asked whether it is capturing.
    if (heap_.is_crowded()) [[unlikely]]
      heap_.sweep_streams(sweep_of::default_streams);
    if (heap_.description.active()) [[unlikely]]
      return take_back_described(heap_, id, stream, p, bytes, alignment, reuse::later);
    block_request const request(id, stream, bytes, bytes, alignment);
    auto const position = heap_.is_asleep() ? typename front_type::cache_position{} : front_.open(id, stream);
    if (position.of_stream == nullptr) {
      heap_.count_given(request);
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

  /// Frees a block whose stream was destroyed: the block waits for all work, or the host waits for it now.
  TARN_NOINLINE void deallocate_unknown(stream_ref stream, void* p, std::size_t bytes,
                                        std::size_t alignment) noexcept {
    if (heap_.is_lost()) return;
    if (graphs_.may_hold(p) && graphs_.deallocate(stream_ref::unknown_id, stream, p, bytes, alignment))
      return;
    if (waiting_.hold_back_for_all(stream, p, bytes, alignment)) return;
    whole().deallocate_sync(p, bytes, alignment);
  }

  /// Returns to the heap the blocks in thread caches, in quarantine, and waiting, after the host has waited for their uses.
  void collect(growth_lock const& growing) noexcept {
    front_.flush_all(growing);
    end_quarantine(heap_);
    waiting_.release(growing, true);
  }

  // ---- for other pools on the device

  /// Gives cached memory back to the device for another pool. Returns the bytes given back; 0 while a thread grows this pool.
  static std::size_t give_back_cached(void* self, std::size_t bytes, giving how) noexcept {
    try {
      return static_cast<cache_misses*>(self)->give_back_cached(bytes, how);
    } catch (...) {
      return 0;
    }
  }
  std::size_t give_back_cached(std::size_t bytes, giving how) {
    misuse_report const last = report_misuse_at_end();
    if (!heap_.growth_mutex.try_lock()) return 0;
    growth_lock const growing(heap_.growth_mutex, std::adopt_lock);
    if (heap_.is_lost() || heap_.is_asleep()) return 0;
    bool const waits = how == giving::what_is_waited_for;
    std::size_t const before = heap_.sums.reserved;
    if (graphs_.has_ended_parts()) (void)graphs_.reap(growing, whole(), waits);
    std::size_t const given = before - heap_.sums.reserved;
    if (given >= bytes) return given;
    std::size_t const reserved = heap_.counters.reserved;
    std::size_t const keep = reserved > bytes - given ? reserved - (bytes - given) : 0;
    if (waits) {
      collect(growing);
      return given + heap_.shrink(growing, keep);
    }
    front_.flush_all(growing);
    waiting_.release(growing, false);
    return given + heap_.shrink_idle(growing, keep);
  }

 private:
  /// Blocks moved at once for a captured stream: what a capture has not used goes back when it ends.
  static constexpr std::uint32_t batch_of_capture = 4;
  /// Host memory is no device's.
  static constexpr bool is_on_device =
      !std::same_as<typename Upstream::driver_type, no_driver> && !has_property<Upstream, host_accessible>;

  /// Host memory without a device has no streams that can be.
  static constexpr bool may_be_captured = !std::same_as<typename Upstream::driver_type, no_driver>;

  using list_of_pools = other_pools<typename Upstream::driver_type>;
  [[nodiscard]] static constexpr typename list_of_pools::goes_to place_in_list(bool is_part) noexcept {
    using goes_to = typename list_of_pools::goes_to;
    if (!is_on_device || is_part) return goes_to::nowhere;
    return may_stand_on_a_pool<std::remove_reference_t<decltype(layer_of(std::declval<Upstream&>()))>>()
               ? goes_to::another_pool
               : goes_to::the_device;
  }

  list_of_pools others_;
  unsigned captures_with_ample_memory_ = 0;  ///< for which is_memory_scarce() does not ask
  std::size_t ample_up_to_ = 0;              ///< bytes reserved
};

}  // namespace tarn::detail
