// SPDX-License-Identifier: Apache-2.0
#pragma once
// The ladder: what is tried, in which order, when neither a stream's own memory nor the neutral one has a fitting range.
//
//   0 small pools   grow at once: below roomy_limit speed is worth more than memory
//   1 magazines     all threads' cached blocks return to the heap, where they are worth it
//   2 finished      frees of other streams that the device is past become neutral
//   3 stealing      the stream waits, on the device, for another stream's frees, and takes them over; neutral ranges join its
//                   own, so that neighbours coalesce
//   4 growth        a view of free handles is used again, new handles are created, or a new view is made
//   5 exhaustion    the driver refused: the host waits for all streams and recorded uses, whatever is free is put together,
//                   free handles and segments are given back
//   6 out_of_memory
//
// One thread climbs at a time (the growth lock); the hot lock is released around every driver call, and what was looked up
// before is void then.

#include <cstddef>
#include <cstdint>

#include "tarn/core/error.hpp"
#include "tarn/pool/arena/hot_lock.hpp"
#include "tarn/pool/block_request.hpp"
#include "tarn/pool/front/front.hpp"
#include "tarn/pool/growth/growth.hpp"
#include "tarn/pool/inspection/described_blocks.hpp"
#include "tarn/pool/options.hpp"
#include "tarn/pool/order/reclaim.hpp"

namespace tarn::detail {

/// Up to this many bytes a thread a pool over pages grows before it takes other threads' cached blocks or other streams'
/// memory: two blocks of each class, so that a thread which replaces blocks at random always finds one. Of the device's
/// memory at most one part in roomy_part: 2 GiB on a device of 128 GiB.
inline constexpr std::size_t roomy_limit = 128_MiB;
inline constexpr std::size_t roomy_part = 64;
/// For small blocks each time by this part of what it holds.
inline constexpr std::size_t roomy_step = 8;

/// Where several threads keep less than this part of what is reserved, they are not stopped to take it back.
inline constexpr std::size_t idle_part = 32;

/// One climb. Both locks are held from its construction to its end; the hot lock is released in between.
template <class Heap, class Front, class Waiting>
class ladder {
 public:
  using source_type = typename Heap::source_type;

  /// @param batch  gets the block, and more of its class
  ladder(Heap& heap, Front& front, Waiting& waiting, may_release hot, block_request const& wanted,
         block_batch& batch)
      : heap_(heap), front_(front), waiting_(waiting), hot_(hot), wanted_(wanted), batch_(batch) {
    request_.taker = space().streams.get(wanted.id, wanted.stream);
    request_.where = wanted.where;
    request_.bytes = wanted.in_run ? run_bytes(wanted.size_class) : wanted.block;
    request_.alignment = wanted.in_run ? frame_bytes : wanted.alignment;
    request_.asked = wanted.asked;
    request_.asked_alignment = wanted.alignment;
  }

  /// Climbs until there is a block.
  /// @throws out_of_memory  every rung failed; nothing has changed
  void climb() {
    kept_domain const kept(space().streams[request_.taker]);
    idle_blocks const idle = front_.idle();
    set_budget();
    if (take()) return;
    if (page_source<source_type> && grow_roomy(idle.threads)) return;
    bool const flush_early = idle.threads == 1 || idle.bytes * idle_part > heap_.counters.reserved;
    if (flush_early) {
      {
        unlocked const open(hot_);
        front_.flush_all();
      }
      if (take()) return;
    }
    if (take_from_others()) return;
    memory_report refused;
    bool was_refused = false;
    try {
      for (int attempt = 0; attempt < 3; ++attempt) {
        set_budget();
        if (grow()) return;
      }
    } catch (out_of_memory const& error) {
      refused = error.report();
      was_refused = true;
    }
    ++heap_.alloc_retries;
    if (take_what_is_waited_for(flush_early) || put_together()) return;
    heap_.growth.shrink(space(), hot_, 0);
    request_.may_exceed = true;
    request_.extend = true;
    try {
      if (grow()) return;
    } catch (out_of_memory const& error) {
      refused = error.report();
      was_refused = true;
    }
    ++heap_.ooms;
    throw out_of_memory(report(refused, was_refused));
  }

 private:
  /// Keeps a stream's domain while the hot lock is released: blocks of a destroyed stream that return under the same handle make
  /// the living one look gone. Begins and ends under the hot lock.
  class kept_domain {
   public:
    explicit kept_domain(stream_domain& domain) noexcept : domain_(domain) { domain_.climbing = true; }
    kept_domain(kept_domain const&) = delete;
    kept_domain& operator=(kept_domain const&) = delete;
    ~kept_domain() { domain_.climbing = false; }

   private:
    stream_domain& domain_;
  };

  [[nodiscard]] arena& space() noexcept { return heap_.space(hot_.held()); }

  bool take() {
    space().make_room();
    return heap_.take(hot_.held(), request_.taker, wanted_, batch_);
  }

  /// True where a growth put a block together, or made memory that now serves the request.
  /// @throws what the source throws, nothing has changed
  bool grow() {
    void* block = nullptr;
    if (!heap_.growth.grow(space(), hot_, heap_.order, request_, block)) return false;
    if (block == nullptr) return take();
    batch_.blocks[0] = block;
    batch_.count = 1;
    return true;
  }

  /// Rung 0. False where the pool is no longer small, or what it has bounds it.
  bool grow_roomy(std::size_t threads) {
    std::size_t const reserved = heap_.counters.reserved;
    std::size_t const limit = smaller_of(roomy_limit * threads, heap_.growth.device_bytes() / roomy_part);
    if (reserved >= limit || align_up(request_.bytes, usual_granule) > limit - reserved) return false;
    growth_request const usual = request_;
    request_.may_create = limit - reserved;
    request_.may_exceed = false;
    // Many threads that begin together wait for each other here: a few handles, not hundreds.
    if (request_.where == zone::small)
      request_.least_growth =
          larger_of(request_.least_growth, align_down(reserved / roomy_step, usual_granule));
    bool served = false;
    try {
      served = grow();
    } catch (out_of_memory const&) {
    }
    request_ = usual;
    return served;
  }

  /// Rungs 2 and 3.
  bool take_from_others() {
    domain_ref const taker = request_.taker;
    if (!others_have_free(space(), taker) || !is_captured()) {
      collect_finished(space(), heap_.order, hot_, taker);
      if (take()) return true;
      steal(space(), heap_.order, hot_, taker);
      if (take()) return true;
    }
    // What is neutral and what is the stream's own may lie side by side: as one range it may do.
    if (taker != neutral) space().hand_over(neutral, taker, ~std::uint64_t{0});
    return take();
  }

  /// Rung 5: all that is free once the host has waited.
  bool take_what_is_waited_for(bool has_flushed) {
    {
      unlocked const open(hot_);
      if (!has_flushed) front_.flush_all();
      end_quarantine(heap_);
      waiting_.release(true);
    }
    if (!is_captured()) finish_all(space(), heap_.order, hot_);
    // Looks at every free range, which is O(ranges of the request's size).
    space().make_room();
    space().search_limit = ~std::size_t{0};
    bool const found = heap_.take(hot_.held(), request_.taker, wanted_, batch_);
    space().search_limit = range_index::search_limit;
    return found;
  }
  /// Rung 5: a view of free handles, without new ones.
  bool put_together() {
    request_.may_create = 0;
    request_.may_exceed = false;
    if (!request_.may_remap)
      return false;  // then a growth asks the driver: only once handles were given back
    for (bool const extend : {true, false}) {
      request_.extend = extend;
      if (grow()) return true;
    }
    return false;
  }

  /// Whether a graph is captured from the taker's stream at this moment: then nothing may be recorded or waited for on its
  /// behalf. Asked anew before each rung that needs it; the user's threads may begin a capture in between.
  [[nodiscard]] bool is_captured() {
    if (request_.taker == neutral) return false;
    stream_ref const stream = space().streams[request_.taker].stream;
    unlocked const open(hot_);
    return heap_.order.is_capturing(stream);
  }

  /// How much may be created before free handles are remapped: up to a little more than live memory has needed so far.
  void set_budget() noexcept {
    pool_options const& options = heap_.options;
    std::size_t const live = larger_of(space().live_peak, space().live_bytes + request_.bytes);
    request_.largest_handle =
        options.largest_handle != 0
            ? larger_of(align_down(options.largest_handle, usual_granule), usual_granule)
            : handle_limit(live);
    request_.least_growth = request_.where == zone::large
                                ? smaller_of(shared_handle(live), request_.largest_handle)
                                : usual_granule;
    request_.may_remap = options.remap == remapping::when_tight;
    if (!request_.may_remap) {
      // What a growth leaves over absorbs the small differences between one pass over the same work and the next.
      request_.least_growth = larger_of(request_.least_growth, align_up(live / 128, usual_granule));
      request_.may_create = max_request_bytes;
      return;
    }
    std::size_t const target = live + live / 1000 * options.slack_per_mille;
    std::size_t const reserved = heap_.counters.reserved;
    request_.may_create = target > reserved ? target - reserved : 0;
  }

  [[nodiscard]] memory_report report(memory_report const& refused, bool const was_refused) {
    memory_report r = refused;
    std::size_t const reserved = heap_.counters.reserved;
    r.asked = request_.asked;
    r.alignment = request_.asked_alignment;
    r.device = heap_.driver().device().value;
    r.stream = space().streams[request_.taker].id;
    r.live = space().live_bytes;
    r.reserved = reserved;
    r.cached = reserved > space().live_bytes ? reserved - space().live_bytes : 0;
    r.largest_free_range = space().largest_free();
    if (!was_refused) r.refused_by = "the pool";
    return r;
  }

  Heap& heap_;
  Front& front_;
  Waiting& waiting_;
  may_release hot_;
  block_request const& wanted_;
  block_batch& batch_;
  growth_request request_;
};

}  // namespace tarn::detail
