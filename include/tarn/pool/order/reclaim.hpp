// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reclaiming free memory of one stream for others. The device is found to have completed the work on it, the
// host waits for it, or another stream is made to wait on the device. Streams whose work is complete are
// forgotten.
//
// All functions run under the growth lock and the hot lock, and release the hot lock around driver calls.
// Under the growth lock a domain keeps its stream.

#include <cstddef>
#include <cstdint>

#include "tarn/core/min_max.hpp"
#include "tarn/driver/stream_life.hpp"
#include "tarn/pool/arena/arena.hpp"
#include "tarn/pool/arena/hot_lock.hpp"
#include "tarn/pool/order/ordering.hpp"
#include "tarn/pool/pages/growth_lock.hpp"

namespace TARN_NAMESPACE::detail {

/// Keeps a stream's domain while the hot lock is released. Without it, blocks of a destroyed stream that
/// are returned under the same handle would make the living stream look destroyed. Constructed and
/// destroyed under the hot lock.
class kept_domain {
 public:
  explicit kept_domain(stream_domain& domain) noexcept : domain_(domain) { domain_.climbing = true; }
  kept_domain& operator=(kept_domain&&) = delete;
  ~kept_domain() { domain_.climbing = false; }

 private:
  stream_domain& domain_;
};

/// Which streams a sweep may query the driver about.
enum class sweep_of : std::uint8_t {
  all_streams,
  default_streams  ///< marking them invalidates no capture: the calling thread may be capturing a graph
};

/// Whether a stream other than `taker` has free memory of its part.
[[nodiscard]] inline bool others_have_free(arena const& space, domain_ref taker) noexcept {
  bool any = false;
  space.streams.for_each_in(space.streams[taker].part,
                            [&](domain_ref d) { any = any || (d != taker && space.streams[d].has_free()); });
  return any;
}

/// Whether work may still run on memory that a stream freed.
[[nodiscard]] inline bool has_unfinished(arena const& space) noexcept {
  bool any = false;
  space.streams.for_each([&](domain_ref d) {
    stream_domain const& domain = space.streams[d];
    any = any || ((domain.has_free() || domain.gone) && !domain.is_completed());
  });
  return any;
}

/// Returns to their runs the blocks of other domains' runs that a stream freed, if the device has completed
/// their uses.
inline void return_foreign(arena& space, domain_ref d) {
  stream_domain const& domain = space.streams[d];
  if (domain.foreign_count != 0 && domain.foreign_epoch <= domain.completed) space.send_foreign_home(d);
}

/// Makes the ranges that a stream freed neutral as far as the device has completed them; runs that are partly
/// in use stay. Memory that a stream never freed becomes neutral, too: its share of handles that were created
/// for it (marked 0). O(its ranges)
inline void neutralise(growth_lock const& growing, arena& space, domain_ref d) {
  stream_domain& domain = space.streams[d];
  return_foreign(space, d);
  if (domain.free_bytes() != 0) space.neutralise_ranges(d, domain.completed);
  domain.neutralised = domain.completed;
  if (domain.is_over()) space.streams.forget(growing, d);
}

/// Makes frees of a part neutral that the device has completed. Never waits.
template <stream_driver Driver>
void collect_finished(growth_lock const& growing, arena& space, ordering<Driver>& order, may_release hot,
                      part_ref part, domain_ref except = neutral) {
  typename ordering<Driver>::pass const all(order);
  order.mark_together(space, hot, [&](auto const& f) {
    space.streams.for_each_in(part, [&](domain_ref d) {
      if (d != except && space.streams[d].has_free()) f(d);
    });
  });
  space.streams.for_each_in(part, [&](domain_ref d) {
    if (d == except) return;
    if (space.streams[d].has_free()) (void)order.settle(space, hot, d);
    neutralise(growing, space, d);
  });
}
/// The same for the parts whose free memory goes back to the source.
template <stream_driver Driver>
void collect_finished(growth_lock const& growing, arena& space, ordering<Driver>& order, may_release hot) {
  for (part_ref p = common; p < space.streams.parts(); ++p) {
    if (!space.streams.part(p).keeps_addresses) collect_finished(growing, space, order, hot, p);
  }
}

/// Makes what other parts have finished with neutral, so that a graph memory's part may take whole handles of
/// it.
/// @param asks  whether the driver may be asked; false while the stream is captured: then only what is known
/// to be complete
template <stream_driver Driver>
void collect_for_part(growth_lock const& growing, arena& space, ordering<Driver>& order, may_release hot,
                      part_ref part, bool asks) {
  space.streams.for_each_source(part, [&](part_ref from) {
    if (asks) return collect_finished(growing, space, order, hot, from);
    space.streams.for_each_in(from, [&](domain_ref d) {
      if (space.streams[d].neutralised != space.streams[d].completed) neutralise(growing, space, d);
    });
  });
}

/// Makes all that a stream freed neutral, with its runs: the device has completed the uses.
inline void neutralise_all(arena& space, domain_ref d) noexcept {
  stream_domain const& domain = space.streams[d];
  if (domain.foreign_count != 0) space.send_foreign_home(d);
  space.neutralise_ranges(d, domain.completed);
  space.neutralise_runs(d);
}
/// The same, and forgets the stream.
inline void retire_stream(growth_lock const& growing, arena& space, domain_ref d) noexcept {
  neutralise_all(space, d);
  if (space.streams[d].is_empty()) space.streams.forget(growing, d);
}

/// Waits on the host for everything that was freed. A block that returns to its run may empty that run in the
/// domain of a stream that was finished earlier, hence the second pass.
/// @param keeps  its ranges stay its own if no others are free: moving many of them takes milliseconds, and
/// joins nothing
template <stream_driver Driver>
void finish_all(growth_lock const& growing, arena& space, ordering<Driver>& order, may_release hot,
                domain_ref keeps = neutral) {
  bool has_returned = true;
  for (int pass = 0; pass < 2 && has_returned; ++pass) {
    has_returned = false;
    typename ordering<Driver>::pass const all(order);
    order.mark_together(space, hot, [&](auto const& f) {
      space.streams.for_each([&](domain_ref d) {
        if (space.streams[d].has_free() || space.streams[d].gone) f(d);
      });
    });
    space.streams.for_each([&](domain_ref d) {
      if (space.streams[d].has_free() || space.streams[d].gone) (void)order.finish(space, hot, d);
      bool const had_foreign = space.streams[d].foreign_count != 0;
      d == keeps ? return_foreign(space, d) : neutralise(growing, space, d);
      has_returned = has_returned || had_foreign;
    });
  }
  // Neighbours of different domains are not joined.
  if (!space.streams[keeps].is_neutral() &&
      space.streams[space.streams[keeps].neutral_domain].free_bytes() != 0)
    neutralise(growing, space, keeps);
}

/// Makes neutral what a captured stream freed: the capture has ended, and its owner's next graph may use the
/// memory, since it is never replayed together with this one. Needs no growth lock: the domain stays, to be
/// forgotten.
inline void end_captured_stream(arena& space, stream_id captured_as, part_ref part) noexcept {
  domain_ref const d = space.streams.find(captured_as, part);
  if (d == neutral) return;
  stream_domain& domain = space.streams[d];
  domain.freed = domain.completed = domain.epoch++;  // the next stream in this place continues above
  domain.gone = true;
  ++domain.generation;  // runs that are wholly handed out are no longer its own
  neutralise_all(space, d);
}

/// Makes the taker's stream wait, on the device, for other streams' frees, and moves them to its domain. For
/// memory that every stream may use, the host waits instead. Returns false if no other stream has free
/// ranges. `covered` is read before order() releases the lock and used after it: memory freed meanwhile, by
/// this stream or by one that was given its place, has a later mark and stays.
template <stream_driver Driver>
bool steal(growth_lock const& growing, arena& space, ordering<Driver>& order, may_release hot,
           domain_ref taker) {
  bool any = false;
  typename ordering<Driver>::pass const all(order);
  space.streams.for_each_in(space.streams[taker].part, [&](domain_ref d) {
    stream_domain const& owner = space.streams[d];
    if (d == taker || owner.free_bytes() == 0) return;
    any = true;
    if (space.streams[taker].is_neutral()) {
      (void)order.finish(space, hot, d);
      neutralise(growing, space, d);
    } else if (std::uint64_t const covered = owner.recorded;
               covered != 0 && order.order(space, hot, taker, d)) {
      space.hand_over(d, taker, covered);
    }
  });
  return any;
}

/// Makes the mark of a domain cover what is free in its runs, which carry no marks of their own.
inline void mark_runs(stream_domain& domain) noexcept {
  if (domain.runs_marked || domain.holds_no_run()) return;
  (void)domain.mark();
  domain.runs_marked = true;
}

/// Finds out whether the device has completed the uses of all that is free in a part. @param wait  whether
/// the host waits for it
template <stream_driver Driver>
void settle_part(growth_lock const&, arena& space, ordering<Driver>& order, may_release hot, part_ref part,
                 bool wait) {
  space.streams.for_each_in(part, [&](domain_ref d) {
    stream_domain& domain = space.streams[d];
    if (detail::exchange(domain.used, false)) domain.runs_marked = false;
    mark_runs(domain);
    if (wait) {
      (void)order.finish(space, hot, d);
    } else {
      (void)order.settle(space, hot, d);
    }
  });
}
/// Whether all that is free in a part was found complete, and nothing was freed since.
[[nodiscard]] inline bool is_settled(arena const& space, part_ref part) noexcept {
  bool all = true;
  space.streams.for_each_in(
      part, [&](domain_ref d) { all = all && space.streams[d].is_completed() && !space.streams[d].used; });
  return all;
}

/// Forgets the streams that no thread has used since the last sweep and whose work is complete; their memory
/// becomes neutral. Waits only for destroyed streams whose work cannot be marked.
template <stream_driver Driver>
void sweep(growth_lock const& growing, arena& space, ordering<Driver>& order, may_release hot,
           sweep_of which) {
  std::size_t in_vain = 0;
  space.streams.for_each([&](domain_ref d) {
    stream_domain& domain = space.streams[d];
    if (domain.used) {
      domain.used = domain.runs_marked = false;
      return;
    }
    // The domain of a captured stream says that its capture is open, or is gone.
    if (domain.climbing || (is_captured_id(domain.id) && !domain.gone)) return;
    // A destroyed stream with nothing to wait for needs no query.
    bool const is_left_over = domain.gone && domain.is_completed() && domain.holds_no_run();
    if (which == sweep_of::default_streams && !is_default_stream(domain.stream) && !is_left_over) return;
    mark_runs(domain);
    bool const done = order.settle(space, hot, d) == progress::completed;
    if (!done || domain.used) {  // the stream may have been used again while the lock was released
      ++in_vain;
      return;
    }
    retire_stream(growing, space, d);
  });
  space.streams.swept(in_vain);
}

}  // namespace TARN_NAMESPACE::detail
