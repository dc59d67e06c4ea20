// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reclaiming free memory of one stream for others. The device is found to have completed the work on it, the host waits for
// it, or another stream is made to wait on the device. Streams whose work is complete are forgotten.
//
// All functions run under the growth lock and the hot lock, and release the hot lock around driver calls. Under the growth lock
// a domain keeps its stream.

#include <cstddef>
#include <cstdint>

#include "tarn/driver/stream_life.hpp"
#include "tarn/pool/arena/arena.hpp"
#include "tarn/pool/arena/hot_lock.hpp"
#include "tarn/pool/growth/growth_lock.hpp"
#include "tarn/pool/order/ordering.hpp"

namespace tarn::detail {

/// Which streams a sweep may query the driver about.
enum class sweep_of : std::uint8_t {
  all_streams,
  default_streams  ///< marking them invalidates no capture: the calling thread may be capturing a graph
};

/// Whether a stream other than `taker` has free memory.
[[nodiscard]] inline bool others_have_free(arena const& space, domain_ref taker) noexcept {
  for (domain_ref d = 1; d < space.streams.size(); ++d) {
    if (d != taker && space.streams[d].has_free()) return true;
  }
  return false;
}

/// Whether work may still run on memory that a stream freed.
[[nodiscard]] inline bool has_unfinished(arena const& space) noexcept {
  for (domain_ref d = 1; d < space.streams.size(); ++d) {
    stream_domain const& domain = space.streams[d];
    if ((domain.has_free() || domain.gone) && domain.freed > domain.completed) return true;
  }
  return false;
}

/// Returns to their runs the blocks of other domains' runs that a stream freed, if the device has completed their uses.
inline void return_foreign(arena& space, domain_ref d) {
  stream_domain const& domain = space.streams[d];
  if (domain.foreign_count != 0 && domain.foreign_epoch <= domain.completed) space.send_foreign_home(d);
}

/// Makes the ranges that a stream freed neutral as far as the device has completed them; runs that are partly in use stay. Memory
/// that a stream never freed becomes neutral, too: its share of handles that were created for it (marked 0). O(its ranges)
inline void neutralise(growth_lock const& growing, arena& space, domain_ref d) {
  stream_domain& domain = space.streams[d];
  return_foreign(space, d);
  if (domain.free_bytes() != 0) space.hand_over(d, neutral, domain.completed);
  if (domain.is_over()) space.streams.forget(growing, d);
}

/// Makes frees neutral that the device has completed. Never waits.
template <stream_driver Driver>
void collect_finished(growth_lock const& growing, arena& space, ordering<Driver>& order, may_release hot,
                      domain_ref except) {
  for (domain_ref d = 1; d < space.streams.size(); ++d) {
    if (d == except) continue;
    if (space.streams[d].has_free()) (void)order.settle(space, hot, d);
    neutralise(growing, space, d);
  }
}

/// Waits on the host for everything that was freed. A block that returns to its run may empty that run in the domain of a
/// stream that was finished earlier, hence the second pass.
/// @param keeps  its ranges stay its own if no others are free: moving many of them takes milliseconds, and joins nothing
template <stream_driver Driver>
void finish_all(growth_lock const& growing, arena& space, ordering<Driver>& order, may_release hot,
                domain_ref keeps = neutral) {
  bool has_returned = true;
  for (int pass = 0; pass < 2 && has_returned; ++pass) {
    has_returned = false;
    for (domain_ref d = 1; d < space.streams.size(); ++d) {
      if (space.streams[d].has_free() || space.streams[d].gone) (void)order.finish(space, hot, d);
      bool const had_foreign = space.streams[d].foreign_count != 0;
      d == keeps ? return_foreign(space, d) : neutralise(growing, space, d);
      has_returned = has_returned || had_foreign;
    }
  }
  // Neighbours of different domains are not joined.
  if (keeps != neutral && space.streams[neutral].free_bytes() != 0) neutralise(growing, space, keeps);
}

/// Makes neutral what a captured stream freed: the capture has ended, and its owner's next graph may use the memory, since it is
/// never replayed together with this one.
inline void end_captured_stream(growth_lock const& growing, arena& space, stream_id kept_as) noexcept {
  domain_ref const d = space.streams.find(kept_as);
  if (d == neutral) return;
  stream_domain& domain = space.streams[d];
  domain.freed = domain.completed = domain.epoch++;  // the next stream in this place continues above
  if (domain.foreign_count != 0) space.send_foreign_home(d);
  space.hand_over(d, neutral, domain.completed);
  space.neutralise_runs(d);
  if (domain.is_empty()) space.streams.forget(growing, d);
}

/// Makes the taker's stream wait, on the device, for other streams' frees, and moves them to its domain. For memory that every
/// stream may use, the host waits instead. Returns false if no other stream has free ranges.
/// `covered` is read before order() releases the lock and used after it: memory freed meanwhile, by this stream or by one that
/// was given its place, has a later mark and stays.
template <stream_driver Driver>
bool steal(growth_lock const& growing, arena& space, ordering<Driver>& order, may_release hot,
           domain_ref taker) {
  bool any = false;
  for (domain_ref d = 1; d < space.streams.size(); ++d) {
    stream_domain const& owner = space.streams[d];
    if (d == taker || owner.free_bytes() == 0) continue;
    any = true;
    if (taker == neutral) {
      (void)order.finish(space, hot, d);
      neutralise(growing, space, d);
    } else if (std::uint64_t const covered = owner.recorded;
               covered != 0 && order.order(space, hot, taker, d)) {
      space.hand_over(d, taker, covered);
    }
  }
  return any;
}

/// Forgets the streams that no thread has used since the last sweep and whose work is complete; their memory becomes neutral.
/// Waits only for destroyed streams whose work cannot be marked.
template <stream_driver Driver>
void sweep(growth_lock const& growing, arena& space, ordering<Driver>& order, may_release hot,
           sweep_of which) {
  std::size_t in_vain = 0;
  for (domain_ref d = 1; d < space.streams.size(); ++d) {
    stream_domain& domain = space.streams[d];
    if (domain.used) {
      domain.used = domain.runs_marked = false;
      continue;
    }
    if (domain.id == 0 || domain.climbing) continue;
    // A destroyed stream with nothing to wait for needs no query.
    bool const is_left_over = domain.gone && domain.is_completed() && domain.holds_no_run();
    if (which == sweep_of::default_streams && !is_default_stream(domain.stream) && !is_left_over) continue;
    if (!domain.runs_marked && !domain.holds_no_run()) {
      (void)domain.mark();
      domain.runs_marked = true;
    }
    bool const done = order.settle(space, hot, d) == progress::completed;
    if (!done || domain.used) {  // the stream may have been used again while the lock was released
      ++in_vain;
      continue;
    }
    if (domain.foreign_count != 0) space.send_foreign_home(d);
    space.hand_over(d, neutral, domain.completed);
    space.neutralise_runs(d);
    if (domain.is_empty()) space.streams.forget(growing, d);
  }
  space.streams.swept(in_vain);
}

}  // namespace tarn::detail
