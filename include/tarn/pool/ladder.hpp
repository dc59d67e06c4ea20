// SPDX-License-Identifier: Apache-2.0
#pragma once
// The ladder: the steps tried, in order, when neither a stream's own memory nor neutral memory has a range.
//   -             a request above a limit below the pool is refused at once
//   0 small pool  grows at once: below roomy_limit speed matters more than memory
//   1 caches      all threads' caches are flushed into the heap, if they hold enough
//   2 finished    frees of other streams that the device has completed become neutral
//   3 stealing    the taker's stream waits, on the device, for another stream's frees, and takes them over;
//                 neutral ranges join its own, so that neighbours coalesce
//   4 growth      creates handles while reserved memory may grow, makes a view or reuses one; free segments,
//                 which are never joined nor moved, go back first if too much would be reserved
//   5 exhaustion  the source refused: the host waits for all streams and recorded uses, free handles are
//                 remapped, and free memory is given back
//   6 refusal     if the device refused, other pools give back what they cache (slow_path.hpp)
//
// A rung releases memory and takes again; with nothing to release it does not search a second time.
// One thread climbs at a time. The hot lock is released around driver calls, which voids what was looked up.

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "tarn/core/error.hpp"
#include "tarn/core/layers.hpp"
#include "tarn/driver/capture_gate.hpp"
#include "tarn/pool/arena/hot_lock.hpp"
#include "tarn/pool/block_request.hpp"
#include "tarn/pool/cache/front.hpp"
#include "tarn/pool/options.hpp"
#include "tarn/pool/order/reclaim.hpp"
#include "tarn/pool/pages/growth.hpp"
#include "tarn/pool/pages/growth_lock.hpp"
#include "tarn/pool/pages/growth_rules.hpp"
#include "tarn/pool/pages/memory_left.hpp"
#include "tarn/pool/tool/quarantine.hpp"
#include "tarn/source/refusal.hpp"

namespace TARN_NAMESPACE::detail {

/// Up to this many bytes per thread, a pool over pages grows before it takes other threads' cached blocks or
/// other streams' memory. The full magazines of one thread and one stream hold 104 MiB (magazine.hpp).
/// Limited to one part in roomy_part of the device's memory: 2 GiB on a device of 128 GiB.
inline constexpr std::size_t roomy_limit = 128_MiB;
inline constexpr std::size_t roomy_part = 64;
/// Growth for small blocks is this fraction of the reserved bytes.
inline constexpr std::size_t roomy_step = 8;

/// If several threads cache less than this fraction of the reserved bytes, they are not stopped to take it
/// back: to stop them takes microseconds, and growth tens.
inline constexpr std::size_t idle_part = 1024;

/// One climb. Both locks are held when it starts and when it ends; the hot lock is released in between.
template <class Heap, class Front, class Deferred>
class ladder {
 public:
  using source_type = typename Heap::upstream_type;

  /// @param found  receives the block, and others of its class
  ladder(growth_lock const& growing, Heap& heap, Front& front, Deferred& deferred, may_release hot,
         block_request const& wanted, block_batch& found)
      : growing_(growing),
        heap_(heap),
        front_(front),
        deferred_(deferred),
        hot_(hot),
        wanted_(wanted),
        batch_(found) {
    request_.taker = space().streams.get(wanted.id, wanted.stream, wanted.part);
    request_.part = wanted.part;
    request_.where = wanted.where;
    request_.bytes = wanted.in_run ? run_bytes(wanted.size_class) : wanted.block;
    request_.alignment = wanted.in_run ? frame_bytes : wanted.alignment;
    request_.asked = wanted.asked;
    request_.asked_alignment = wanted.alignment;
  }

  /// Climbs until a block is found.
  /// @param idle  what threads cache
  /// @throws out_of_memory  every rung failed, or the request is above a limit; nothing has changed
  void climb(idle_blocks const& idle) {
    kept_domain const kept(space().streams[request_.taker]);
    if (take()) return;
    refuse_above_limit();
    if (page_source<source_type>) renew_left();
    set_budget();
    if (request_.part != common)
      collect_for_part(growing_, space(), order(), hot_, request_.part, !taker_is_capturing());
    if (grow_roomy(request_.part == common ? idle.threads : 1)) return;
    if (request_.part == common && return_caches(idle) && take()) return;
    // While a stream is captured its frees cannot be marked, and others' must not wait for it.
    domain_ref const taker = request_.taker;
    if (others_have_free(space(), taker) && !taker_is_capturing()) {
      collect_finished(growing_, space(), order(), hot_, request_.part, taker);
      if (take()) return;
      if (steal(growing_, space(), order(), hot_, taker) && take()) return;
    }
    // Neutral ranges and the stream's own may be neighbours: coalesced, one may fit.
    if (!is_neutral(taker) && space().join_neutral(taker) && take()) return;
    refusal last(*this);
    for (int attempt = 0; attempt < 3 && !last.by_source; ++attempt) {
      give_back_spare();
      set_budget();
      if (grow(last)) return;
    }
    heap_.left(growing_).forget(growing_);
    request_.segment = 0;
    ++heap_.counters(growing_).alloc_retries;
    if (take_what_is_waited_for() || put_together(last)) return;
    bool const has_given = growth().shrink(growing_, space(), hot_, 0) != 0;
    if (has_given || !is_final(last)) {
      if (wanted_.view != 0 && take()) return;  // it lacks what was given back, too
      request_.may_exceed = request_.extend = true;
      if (grow(last)) return;
    }
    query_device(last);
    throw out_of_memory(report(last.why));
  }

 private:
  /// Why the last growth was refused.
  struct refusal {
    explicit refusal(ladder& at) noexcept : creates(at.counters().creates), waits(at.order().host_waits()) {}
    /// Whether the source was asked and gave nothing, not even for a moment.
    [[nodiscard]] bool took_nothing(ladder& at) const noexcept {
      return by_source && creates == at.counters().creates;
    }

    memory_report why;
    bool by_source = false;  ///< otherwise nothing could be created
    std::uint64_t creates;   ///< of the pool, before all growth
    std::uint64_t waits;     ///< of the host, likewise
  };
  [[nodiscard]] arena& space() noexcept { return heap_.space(hot_.held()); }
  [[nodiscard]] bool is_neutral(domain_ref d) noexcept { return space().streams[d].is_neutral(); }
  /// Bytes reserved for the request's part.
  [[nodiscard]] std::size_t reserved() noexcept {
    return space().reserved_of(request_.part, counters().reserved);
  }
  [[nodiscard]] auto& growth() noexcept { return heap_.growth(growing_); }
  [[nodiscard]] growth_counters const& counters() noexcept { return heap_.counters(growing_); }
  [[nodiscard]] auto& order() noexcept { return heap_.order(growing_); }

  bool take() {
    space().make_room();
    if (wanted_.view != 0) return extend();
    return heap_.take(hot_.held(), request_.taker, wanted_, batch_);
  }
  /// Takes whole handles for the end of a growing view. From then on the request is for what they lack.
  bool extend() {
    if (heap_.is_asleep()) return false;
    std::size_t lack = 0;
    request_.bytes = wanted_.block;
    void* const p = growth().template visit_pages<void*>([&](auto& pages) {
      return pages.growing().extend(space(), hot_, order(), request_, wanted_.view, wanted_.offset, lack);
    });
    request_.bytes = lack != 0 ? lack : wanted_.block;
    batch_.blocks[0] = p;
    batch_.count = p != nullptr ? 1 : 0;
    return p != nullptr;
  }

  /// Returns true if a growth assembled a block, or created memory that now serves the request. Returns false
  /// and sets `last` if the source refuses.
  bool grow(refusal& last) {
    void* block = nullptr;
    if (wanted_.view != 0) request_.extend = false;  // what it lacks is whole handles
    try {
      bool const grew = growth().visit(
          [&](auto& memory) { return memory.grow(growing_, space(), hot_, order(), request_, block); });
      if (!grew) return false;
    } catch (out_of_memory const& error) {
      last.why = error.report();
      last.by_source = true;
      return false;
    }
    if (block == nullptr) return take();
    batch_.blocks[0] = block;
    batch_.count = 1;
    return true;
  }

  /// Before rung 4, where free memory is neither joined nor moved: gives back wholly free segments, which are
  /// too small for the request, if too much would be reserved beside the new one. Never waits: those that
  /// work still uses stay. Does nothing for a part of a graph memory, since it would give back those of other
  /// parts, nor during a capture, which the driver's calls could invalidate.
  void give_back_spare() {
    if (request_.part != common || capture_gate::has_captures()) return;
    std::size_t const keep =
        growth().visit([&](auto const& memory) { return memory.keep_before(space(), request_); });
    if (reserved() <= keep) return;
    if (domain_ref const taker = request_.taker; !is_neutral(taker)) {
      if (taker_is_capturing()) return;
      // Where the device is always behind, a new mark for each growth would never be found complete.
      if (!order().is_running(space(), hot_, taker)) (void)order().settle(space(), hot_, taker);
    }
    (void)growth().shrink(growing_, space(), hot_, keep + (counters().reserved - reserved()));
  }

  /// Rung 0. Returns false if the pool is no longer small, or the source refuses.
  bool grow_roomy(std::size_t threads) {
    if (!heap_.uses_pages()) return false;
    std::size_t const reserved = this->reserved();
    std::size_t const limit = min_of(roomy_limit * threads, heap_.left(growing_).device_total() / roomy_part);
    if (reserved >= limit || align_up(request_.bytes, usual_granule) > limit - reserved) return false;
    growth_request const usual = request_;
    request_.may_create = limit - reserved;
    request_.may_exceed = false;
    // Many threads that start together wait for each other here: create a few handles, not hundreds.
    if (request_.where == zone::smaller)
      request_.least_growth = max_of(request_.least_growth, align_down(reserved / roomy_step, usual_granule));
    refusal unused(*this);
    bool const served = grow(unused);
    request_ = usual;
    return served;
  }

  /// Rung 1. Returns false if the threads cache nothing, or too little to stop them.
  bool return_caches(idle_blocks const& idle) {
    if (idle.bytes == 0) return false;
    if (idle.threads != 1 && idle.bytes * idle_part <= counters().reserved) return false;
    unlocked const released(hot_);
    front_.flush_all();
    return true;
  }

  /// Rung 5: everything that is free after the host has waited.
  bool take_what_is_waited_for() {
    {
      unlocked const released(hot_);
      // Also after rung 1: the lock was released since, and threads have cached blocks again.
      front_.flush_all();
      end_quarantine(heap_);
      deferred_.release(growing_, true);
    }
    if (request_.part != common || !taker_is_capturing())
      finish_all(growing_, space(), order(), hot_, request_.taker);
    arena::search_of_all const here(space());
    return take();
  }
  /// Rung 5: a view of free handles, without creating any.
  bool put_together(refusal& last) {
    request_.may_create = 0;
    request_.may_exceed = false;
    request_.uses_up_ends = true;           // this is all that there is
    if (!request_.may_remap) return false;  // it would call the driver: only after handles were given back
    request_.extend = true;
    if (grow(last)) return true;
    request_.extend = false;
    return grow(last);
  }

  /// Returns whether the taker's stream is capturing a graph now: then nothing may be recorded on it or
  /// waited for on its behalf. Asked again before each rung that needs it: a capture may begin in between.
  [[nodiscard]] bool taker_is_capturing() {
    if (is_neutral(request_.taker)) return false;
    if (is_captured_id(space().streams[request_.taker].id)) return true;
    stream_ref const stream = space().streams[request_.taker].stream;
    unlocked const released(hot_);
    return may_be_capturing(heap_.driver(), stream);
  }

  /// Finds out how much can still be created, if what is known is old, or may be too low for the request.
  void renew_left() {
    std::size_t const reserved = counters().reserved;
    bool const may_suffice = left() >= request_.bytes || reserved >= request_.bytes - left();
    if (may_suffice && !heap_.left(growing_).is_old(reserved)) return;
    memory_bound found;
    {
      unlocked const released(hot_);
      found = memory_left(layer_of(heap_.upstream()));
    }
    heap_.left(growing_).renew(growing_, found, counters().reserved);
  }
  /// What can still be created, as known now.
  [[nodiscard]] std::size_t left() noexcept { return heap_.left(growing_).bytes(counters().reserved); }

  /// Whether the upstream only bounds what its source has: what it refuses, a second call does not get.
  static constexpr bool is_bounded_source = only_bounds<layer_below<Heap>>();

  /// Refuses a request above a limit below the pool: more than the pool holds and the limit has left. The
  /// other steps would only search and wait. What the device reports as free is no such bound: where it
  /// shares the host's memory, it can provide more. Makes no driver call.
  /// @throws out_of_memory, nothing has changed
  void refuse_above_limit() {
    if constexpr (page_source<source_type> && is_bounded_source) {
      memory_bound const bound = limits_left(layer_of(heap_.upstream()));
      if (bound.bytes >= request_.bytes || counters().reserved >= request_.bytes - bound.bytes) return;
      memory_report refused;
      refused.refused_by = bound.by;
      refused.limit = bound.limit;
      refused.limit_used = bound.limit_used;
      throw out_of_memory(report(refused));
    }
  }
  /// Whether another growth would be refused again, after free memory was put together and none was given
  /// back: the source did not have even one handle of the smallest size, and the host has not waited since.
  [[nodiscard]] bool is_final(refusal const& last) noexcept {
    return is_bounded_source && heap_.uses_pages() && last.took_nothing(*this) &&
           last.why.asked <= usual_granule && last.waits == order().host_waits();
  }

  /// Sets how much may be created before free handles are remapped: slightly more than the live peak.
  void set_budget() noexcept {
    pooled const& options = heap_.options();
    std::size_t const peak = space().peak_of(request_.part);
    std::size_t const live = max_of(peak, space().live_of(request_.part) + request_.bytes);
    bool const raises_peak = live > peak;
    std::size_t const reserved = this->reserved();
    if (options.largest_handle != 0) {
      request_.largest_handle = max_of(align_down(options.largest_handle, usual_granule), usual_granule);
    } else if (may_remap(options) && needs_finest_handles(live, reserved, request_.bytes)) {
      request_.largest_handle = usual_granule;
    } else {
      request_.largest_handle = min_of(handle_limit(live), handle_limit_near_full(left()));
    }
    request_.least_growth = request_.where == zone::larger
                                ? min_of(shared_handle(live, request_.bytes), request_.largest_handle)
                                : usual_granule;
    request_.may_remap = may_remap(options) && wanted_.view == 0;  // it needs whole handles
    request_.uses_up_ends = uses_up_ends(live, left(), request_.bytes, raises_peak);
    request_.device_bytes = heap_.left(growing_).device_total();
    if (!heap_.uses_pages()) request_.segment = segment_to_share();
    if (wanted_.view != 0) {
      request_.may_create = left();
      return;
    }
    if (!request_.may_remap) {
      if (options.handles == handles_per_block::one) {
        request_.largest_handle = max_request_bytes;
      } else {
        // The remainder of a growth absorbs small differences between passes over the same work.
        request_.least_growth = max_of(request_.least_growth, align_up(live / 128, usual_granule));
      }
      request_.may_create = max_request_bytes;
      return;
    }
    std::size_t const remaps = counters().remaps / (1 + space().window.volume() / 1_GiB);
    std::size_t const slack = slack_of(request_.bytes, options.slack_per_mille, remaps, raises_peak);
    std::size_t const target = live + live / 1000 * slack;
    request_.may_create = min_of(target > reserved ? target - reserved : 0, left());
  }

  /// The bytes of a new segment that other blocks share; 0 if only the request uses it. Not where another
  /// layer could find memory for the request alone, and not of host memory, which takes long to pin.
  [[nodiscard]] std::size_t segment_to_share() noexcept {
    if constexpr (is_bounded_source && !is_host_memory<source_type>) {
      if (request_.where == zone::larger)
        return segment_for(space(), request_.part, reserved(), request_.bytes);
    }
    return 0;
  }

  /// Reports the device's memory as it is now: what the attempt had taken has been given back. Only for
  /// memory of the device. A refusal that took nothing has reported it.
  void query_device(refusal& last) {
    memory_report& refused = last.why;
    if (!last.by_source) refused.refused_by = "the pool";
    if (refused.limit != memory_report::unknown || is_host_memory<source_type>) return;
    if (last.took_nothing(*this) && refused.device_total != memory_report::unknown) return;
    unlocked const released(hot_);
    std::size_t free = 0;
    std::size_t total = 0;
    if (!heap_.driver().memory_info(free, total).ok()) return;
    refused.device_free = free;
    refused.device_total = total;
    if (!last.by_source && request_.asked > total) refused.refused_by = name_of_memory(heap_.driver());
  }
  [[nodiscard]] memory_report report(memory_report const& refused) {
    memory_report r = refused;
    std::size_t const reserved = counters().reserved;
    r.asked = request_.asked;
    r.alignment = request_.asked_alignment;
    r.device = heap_.driver().device().value;
    r.stream = space().streams[request_.taker].id;
    r.live = space().all_live();
    r.reserved = reserved;
    std::size_t const held = r.live + (request_.part == common ? space().free_for_captures() : 0);
    r.cached = reserved > held ? reserved - held : 0;
    r.largest_free_range = space().largest_free();
    if (r.limit_used != memory_report::unknown) {  // as it is now, without what the attempt had taken
      r.limit_used = used_of_limit(layer_of(heap_.upstream()), r.limit);
    }
    return r;
  }

  growth_lock const& growing_;
  Heap& heap_;
  Front& front_;
  Deferred& deferred_;
  may_release hot_;
  block_request const& wanted_;
  block_batch& batch_;
  growth_request request_;
};

}  // namespace TARN_NAMESPACE::detail
