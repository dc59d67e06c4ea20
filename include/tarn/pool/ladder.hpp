// SPDX-License-Identifier: Apache-2.0
#pragma once
// The ladder: what is tried, in which order, when a stream's own domain and the neutral one have no fitting
// range.
//
//   0 small pools   grow at once: below roomy_limit speed is worth more than memory
//   1 magazines     every thread's cached blocks come home, where they are worth it
//   2 finished      frees of other streams that the device is past become neutral
//   3 stealing      the stream waits, on the device, for another stream's frees, and takes them over; neutral
//                   ranges join its own, so that neighbours coalesce
//   4 growth        a view of free handles is used again, new handles are created, or a new view is made
//   5 exhaustion    the driver refused: the host waits for all streams and recorded uses, whatever is free is put
//                   together, free handles and segments go back
//   6 out_of_memory
//
// One thread climbs at a time (the growth lock); the hot lock is let go around every driver call.
// Above it: pool. Below it: arena, ordering, page_growth, segment_growth, watched_growth.

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <type_traits>
#include <utility>

#include "tarn/core/at_fork.hpp"
#include "tarn/pool/hot_lock.hpp"
#include "tarn/pool/options.hpp"
#include "tarn/pool/page_growth.hpp"
#include "tarn/pool/segment_growth.hpp"
#include "tarn/pool/watched_growth.hpp"

namespace tarn::detail {

/// Up to this many bytes a thread a pool over pages grows before it takes other threads' cached blocks or other streams'
/// memory: two blocks of each class, so that a thread which replaces blocks at random always finds one. Of the device's
/// memory at most one part in roomy_part: 2 GiB on a device of 128 GiB.
inline constexpr std::size_t roomy_limit = 128_MiB;
inline constexpr std::size_t roomy_part = 64;
/// For small blocks each time by this part of what it holds.
inline constexpr std::size_t roomy_step = 8;

/// Where several threads keep less than this part of what is reserved, they are not stopped to bring it home.
inline constexpr std::size_t idle_part = 32;

/// Which streams a sweep may ask the driver about.
enum class sweep_of : std::uint8_t {
  all_streams,
  default_streams  ///< those whose mark spoils no capture: the calling thread may be capturing a graph
};

/// What the threads keep in their magazines, when the ladder is climbed.
struct idle_blocks {
  std::size_t bytes = 0;
  std::size_t threads = 1;
};

template <class Source>
struct growth_for {
  using type = segment_growth<Source>;
};
template <page_source Source>
struct growth_for<Source> {
  using type = page_growth<Source>;
};
template <watched_pages Source>
struct growth_for<Source> {
  using type = watched_growth<Source>;
};

template <class Source>
requires page_source<Source> || segment_source<Source>
class ladder {
 public:
  using driver_type = typename Source::driver_type;
  using growth_type = typename growth_for<Source>::type;

  ladder(Source source, pool_options const& chosen)
      : options(chosen), order(source.driver()), growth(std::move(source), counters) {
    space.keeps_handles_whole = page_source<Source> && options.remap == remapping::when_tight;
  }

  pool_options const options;
  hot_mutex hot;  ///< the arena's; held for tens of nanoseconds, never across a driver call
  /// The growth lock; taken before `hot`. The upstream is called under it, and a handler of the upstream (retry_on_oom) may
  /// call the pool: the thread that holds it may take it again.
  recursive_fork_mutex cold;
  arena space;
  growth_counters counters;
  ordering<driver_type> order;
  growth_type growth;
  std::uint64_t alloc_retries = 0;
  std::uint64_t ooms = 0;

  /// Climbs until `take` succeeds. Both locks are held on entry and on return; the hot lock is released in between.
  /// The taker's domain is kept meanwhile.
  /// @param take         called with the taker under the hot lock: true once the request is served
  /// @param flush        brings the magazines home; called without the hot lock
  /// @param wait_uses    waits for the uses that hold blocks back and frees those; called without the hot lock
  /// @returns null once `take` has succeeded, else a block that was put together from free pieces
  /// @throws out_of_memory  every rung failed; nothing has changed
  template <class Take, class Flush, class WaitUses>
  [[nodiscard]] void* climb(may_release held, growth_request request, idle_blocks const& idle,
                            Take const& take, Flush const& flush, WaitUses const& wait_uses) {
    void* block = nullptr;
    stays const place(space.streams[request.taker]);
    auto const served = [&] {
      space.make_room();
      return take(request.taker);
    };
    budget(request);
    if (served()) return block;
    if (page_source<Source> && grow_roomy(held, request, idle.threads, block) &&
        (block != nullptr || served()))
      return block;
    bool const flush_early = idle.threads == 1 || idle.bytes * idle_part > counters.reserved;
    if (flush_early) {
      {
        unlocked const open(held);
        flush();
      }
      if (served()) return block;
    }
    if (!others_have_free(request.taker) || !is_captured(held, request.taker)) {
      collect_finished(held, request.taker);
      if (served()) return block;
      steal(held, request.taker);
      if (served()) return block;
    }
    // What is neutral and what is the stream's own may lie side by side: as one range it may do.
    if (request.taker != neutral) space.hand_over(neutral, request.taker, ~std::uint64_t{0});
    if (served()) return block;
    memory_report refused;
    bool was_refused = false;
    try {
      for (int attempt = 0; attempt < 3; ++attempt) {
        budget(request);
        if (growth.grow(space, held, order, request, block) && (block != nullptr || served())) return block;
      }
    } catch (out_of_memory const& error) {
      refused = error.report();
      was_refused = true;
    }
    ++alloc_retries;
    {
      unlocked const open(held);
      if (!flush_early) flush();
      wait_uses();
    }
    if (!is_captured(held, request.taker)) finish_all(held);
    // Looks at every free range, which is O(ranges of the request's size).
    space.make_room();
    space.search_limit = ~std::size_t{0};
    bool const found = take(request.taker);
    space.search_limit = range_index::search_limit;
    if (found) return block;
    request.may_create = 0;
    request.may_exceed = false;
    for (bool const extend : {true, false}) {
      if (!request.may_remap) break;  // then a growth asks the driver: only once handles have gone back
      request.extend = extend;
      if (growth.grow(space, held, order, request, block) && (block != nullptr || served())) return block;
    }
    growth.shrink(space, held, 0);
    request.may_exceed = true;
    request.extend = true;
    try {
      if (growth.grow(space, held, order, request, block) && (block != nullptr || served())) return block;
    } catch (out_of_memory const& error) {
      refused = error.report();
      was_refused = true;
    }
    ++ooms;
    throw out_of_memory(report(request, refused, was_refused));
  }

  /// Frees that the device is past become neutral. Never waits.
  void collect_finished(may_release held, domain_ref except) {
    for (domain_ref d = 1; d < space.streams.size(); ++d) {
      if (d == except) continue;
      if (space.streams[d].has_free()) (void)order.settle(space, held, d);
      neutralise(d);
    }
  }

  /// Waits on the host for everything that was freed. Blocks that go home may leave a run empty in the domain of a stream
  /// that was finished before: hence a second pass.
  void finish_all(may_release held) {
    bool sent_home = true;
    for (int pass = 0; pass < 2 && sent_home; ++pass) {
      sent_home = false;
      for (domain_ref d = 1; d < space.streams.size(); ++d) {
        if (space.streams[d].has_free() || space.streams[d].gone) (void)order.finish(space, held, d);
        bool const had_foreign = space.streams[d].foreign_count != 0;
        neutralise(d);
        sent_home = sent_home || had_foreign;
      }
    }
  }

  /// Forgets the streams that no thread has used since the last sweep and whose work is done; what they have is neutral
  /// then. Waits only for destroyed streams whose work cannot be marked. Both locks are held on entry and on return.
  void sweep(may_release held, sweep_of which) {
    std::size_t in_vain = 0;
    for (domain_ref d = 1; d < space.streams.size(); ++d) {
      stream_domain& domain = space.streams[d];
      if (domain.used) {
        domain.used = domain.runs_marked = false;
        continue;
      }
      if (domain.id == 0 || domain.climbing) continue;
      // A destroyed stream with nothing to wait for is asked nothing.
      bool const is_left_over = domain.gone && domain.is_completed() && domain.holds_no_run();
      if (which == sweep_of::default_streams && !is_default_stream(domain.stream) && !is_left_over) continue;
      if (!domain.runs_marked && !domain.holds_no_run()) {
        (void)domain.mark();
        domain.runs_marked = true;
      }
      bool const done = order.settle(space, held, d) == progress::completed;
      if (!done || domain.used) {  // its stream may have come back while the lock was released
        ++in_vain;
        continue;
      }
      if (domain.foreign_count != 0) space.send_foreign_home(d);
      space.hand_over(d, neutral, domain.completed);
      space.neutralise_runs(d);
      if (domain.is_empty()) space.streams.forget(d);
    }
    space.streams.swept(in_vain);
  }

  /// True where work may still run on what a stream freed.
  [[nodiscard]] bool has_unfinished() const noexcept {
    for (domain_ref d = 1; d < space.streams.size(); ++d) {
      stream_domain const& domain = space.streams[d];
      if ((domain.has_free() || domain.gone) && domain.freed > domain.completed) return true;
    }
    return false;
  }

 private:
  /// Keeps a stream's place while the hot lock is let go: blocks of a destroyed stream that come home under the same
  /// handle make the living one look gone. Begins and ends under the hot lock.
  class stays {
   public:
    explicit stays(stream_domain& domain) noexcept : domain_(domain) { domain_.climbing = true; }
    stays(stays const&) = delete;
    stays& operator=(stays const&) = delete;
    ~stays() { domain_.climbing = false; }

   private:
    stream_domain& domain_;
  };

  /// Whether a graph is captured from the taker's stream at this moment: then nothing may be recorded or waited for on its
  /// behalf. The answer is asked for anew before each rung that needs it; the user's threads may begin a capture in between.
  [[nodiscard]] bool is_captured(may_release held, domain_ref taker) {
    if (taker == neutral) return false;
    stream_ref const stream = space.streams[taker].stream;
    unlocked const open(held);
    return order.is_capturing(stream);
  }

  /// Rung 0. False where the pool is no longer small, or what it has bounds it.
  bool grow_roomy(may_release held, growth_request request, std::size_t threads, void*& block) {
    std::size_t const limit = smaller_of(roomy_limit * threads, growth.device_bytes() / roomy_part);
    if (counters.reserved >= limit) return false;
    request.may_create = limit - counters.reserved;
    request.may_exceed = false;
    if (align_up(request.bytes, usual_granule) > request.may_create) return false;
    // Many threads that begin together wait for each other here: a few handles, not hundreds.
    if (request.where == zone::small)
      request.least_growth =
          larger_of(request.least_growth, align_down(counters.reserved / roomy_step, usual_granule));
    try {
      return growth.grow(space, held, order, request, block);
    } catch (out_of_memory const&) {
      return false;
    }
  }

  [[nodiscard]] bool others_have_free(domain_ref taker) const noexcept {
    for (domain_ref d = 1; d < space.streams.size(); ++d) {
      if (d != taker && space.streams[d].has_free()) return true;
    }
    return false;
  }

  /// What a stream never freed is neutral, too: its share of handles that were made for it (marked 0).
  void neutralise(domain_ref d) {
    stream_domain& domain = space.streams[d];
    if (domain.foreign_count != 0 && domain.foreign_epoch <= domain.completed) space.send_foreign_home(d);
    if (domain.free_bytes() != 0) space.hand_over(d, neutral, domain.completed);
    if (domain.is_over()) space.streams.forget(d);
  }

  /// `covered` is read before order() releases the lock and used after it: what is freed meanwhile, by this stream or by one
  /// that was given its place, has a later mark and stays.
  void steal(may_release held, domain_ref taker) {
    for (domain_ref d = 1; d < space.streams.size(); ++d) {
      stream_domain const& owner = space.streams[d];
      if (d == taker || owner.free_bytes() == 0) continue;
      if (taker == neutral) {
        (void)order.finish(space, held, d);
        neutralise(d);
      } else if (std::uint64_t const covered = owner.recorded;
                 covered != 0 && order.order(space, held, taker, d)) {
        space.hand_over(d, taker, covered);
      }
    }
  }

  /// How much may be created before free handles are remapped: up to a little more than live memory has needed so
  /// far.
  void budget(growth_request& request) const noexcept {
    std::size_t const live = larger_of(space.live_peak, space.live_bytes + request.bytes);
    request.largest_handle = options.largest_handle != 0
                                 ? larger_of(align_down(options.largest_handle, usual_granule), usual_granule)
                                 : handle_limit(live);
    request.least_growth = request.where == zone::large
                               ? smaller_of(shared_handle(live), request.largest_handle)
                               : usual_granule;
    request.may_remap = options.remap == remapping::when_tight;
    if (!request.may_remap) {
      // What a growth leaves over absorbs the small differences between one pass over the same work and the next.
      request.least_growth = larger_of(request.least_growth, align_up(live / 128, usual_granule));
      request.may_create = max_request_bytes;
      return;
    }
    std::size_t const target = live + live / 1000 * options.slack_per_mille;
    request.may_create = target > counters.reserved ? target - counters.reserved : 0;
  }

  [[nodiscard]] memory_report report(growth_request const& request, memory_report const& refused,
                                     bool const was_refused) const {
    memory_report r = refused;
    r.asked = request.asked;
    r.alignment = request.asked_alignment;
    r.device = order.driver().device().value;
    r.stream = space.streams[request.taker].id;
    r.live = space.live_bytes;
    r.reserved = counters.reserved;
    r.cached = counters.reserved > space.live_bytes ? counters.reserved - space.live_bytes : 0;
    r.largest_free_range = space.largest_free();
    if (!was_refused) r.refused_by = "the pool";
    return r;
  }
};

}  // namespace tarn::detail
