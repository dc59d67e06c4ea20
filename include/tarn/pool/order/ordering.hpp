// SPDX-License-Identifier: Apache-2.0
#pragma once
// The driver calls of stream order: record, query and wait, never under the hot lock and never on a capturing stream. Used
// only by the ladder, sweeps of streams that ended, trim() and ~pool().

#include <cstdint>

#include "tarn/core/min_max.hpp"
#include "tarn/driver/all_work.hpp"
#include "tarn/driver/driver.hpp"
#include "tarn/driver/stream_device.hpp"
#include "tarn/pool/arena/arena.hpp"
#include "tarn/pool/arena/hot_lock.hpp"
#include "tarn/pool/order/mark_work.hpp"

namespace tarn::detail {

/// The device's progress on what a domain freed.
enum class progress : std::uint8_t {
  completed,  ///< complete: every stream may take the memory
  running,    ///< not complete; an event covers it
  unknown     ///< cannot be queried now: the stream is being captured, or the driver refused
};

/// What settle() does about a stream that was destroyed, if the driver cannot mark its work.
enum class gone_stream : std::uint8_t {
  is_waited_for,  ///< the host waits for the device
  stays_unknown   ///< nothing waits
};

/// Whether nothing may be recorded or waited for on behalf of a stream, since it is capturing a graph: marking other streams'
/// work would invalidate the capture.
template <stream_driver Driver>
[[nodiscard]] bool may_be_capturing(Driver const& driver, stream_ref stream) noexcept {
  bool capturing = true;
  return !driver.is_capturing(stream, capturing).ok() || capturing;
}

template <stream_driver Driver>
class ordering {
 public:
  /// @param named  what a default stream refers to that is named without an identity
  ordering(Driver const& driver, default_streams named) : driver_(driver), named_(named) {}

  /// Covers all that `d` has freed with an event, of its stream or of the whole device (mark_work.hpp), and
  /// queries it. At most five driver calls, none if nothing was freed since the last completed mark; more
  /// where it is unknown on which device the stream lives.
  ///
  /// `domain` stays valid across releases of the lock: domains are forgotten only under the growth lock, which protects
  /// this object. The mark is taken before the event is recorded, so frees in between get a later mark.
  progress settle(arena& a, may_release hot, domain_ref d, gone_stream gone = gone_stream::is_waited_for) {
    stream_domain& domain = a.streams[d];
    if (domain.is_neutral() || domain.is_completed()) return progress::completed;
    if (is_capture_stream(domain.id)) return progress::unknown;
    if (domain.recorded < domain.freed) {
      std::uint64_t const mark = domain.epoch++;
      stream_ref const stream = domain.stream;
      bool const known_gone = domain.gone;
      mark_result result = mark_result::gone;
      {
        unlocked const open(hot);
        // Waiting for the device would invalidate a capture on any stream; recording an event is merely refused then.
        if (!known_gone || marks_all_work<Driver>) {
          device_id const device = device_to_mark(driver_, stream, named_);
          bool captured = false;
          result = ensure_event(domain, device_of_marks(driver_, device))
                       ? mark_work(driver_, device, domain.event, stream, captured)
                       : mark_result::refused;
        }
      }
      if (result == mark_result::refused) return progress::unknown;
      if (result == mark_result::gone) {
        if (gone == gone_stream::stays_unknown) return progress::unknown;
        domain.gone = true;
        return wait_for_gone(hot, domain, mark);
      }
      domain.recorded = mark;
    }
    if (is_running(a, hot, d)) return progress::running;
    return domain.freed <= domain.completed ? progress::completed : progress::running;
  }

  /// Whether the work up to the last mark of `d` runs still. At most one driver call.
  [[nodiscard]] bool is_running(arena& a, may_release hot, domain_ref d) {
    stream_domain& domain = a.streams[d];
    std::uint64_t const covered = domain.recorded;
    if (covered <= domain.completed) return false;
    bool done = false;
    {
      unlocked const open(hot);
      done = driver_.query_event(domain.event).ok();
    }
    if (done) domain.completed = max_of(domain.completed, covered);
    return !done;
  }

  /// Waits on the host until the device has completed all that `d` freed. Returns false if that cannot be determined.
  bool finish(arena& a, may_release hot, domain_ref d) {
    progress const now = settle(a, hot, d);
    if (now != progress::running) return now == progress::completed;
    stream_domain& domain = a.streams[d];
    std::uint64_t const covered = domain.recorded;
    bool done = false;
    {
      unlocked const open(hot);
      ++host_waits_;
      done = driver_.synchronize_event(domain.event).ok();
    }
    if (done) domain.completed = max_of(domain.completed, covered);
    return done;
  }

  /// Makes later work of `taker` wait on the device for all that `owner` freed up to its recorded event.
  bool order(arena& a, may_release hot, domain_ref taker, domain_ref owner) {
    stream_ref const stream = a.streams[taker].stream;
    event_handle const event = a.streams[owner].event;
    bool done = false;
    {
      unlocked const open(hot);
      bool capturing = true;
      done = driver_.is_capturing(stream, capturing).ok() && !capturing &&
             driver_.wait_event(stream, event).ok();
    }
    if (done) ++device_waits_;
    return done;
  }

  /// Destroys the events. The pool is ending and has finished every domain.
  void close(arena& a) noexcept {
    for (domain_ref d = 0; d < a.streams.size(); ++d) {
      if (a.streams[d].event != nullptr) (void)driver_.destroy_event(a.streams[d].event);
      a.streams[d].event = nullptr;
    }
  }

  [[nodiscard]] Driver const& driver() const noexcept { return driver_; }
  /// Times the host or a stream had to wait for another stream's frees.
  [[nodiscard]] std::uint64_t host_waits() const noexcept { return host_waits_; }
  [[nodiscard]] std::uint64_t device_waits() const noexcept { return device_waits_; }

 private:
  /// Makes sure that the domain has an event of the device: its place may have been that of another device's
  /// stream.
  bool ensure_event(stream_domain& domain, device_id device) const noexcept {
    if (domain.event != nullptr && domain.event_device != device) {
      (void)driver_.destroy_event(domain.event);
      domain.event = nullptr;
    }
    domain.event_device = device;
    Driver const there = driver_on(driver_, device);
    return domain.event != nullptr || there.create_event(domain.event).ok();
  }

  /// Waits for the whole device: nothing can be recorded on a destroyed stream, and its last work may still run.
  progress wait_for_gone(may_release hot, stream_domain& domain, std::uint64_t mark) {
    bool done = false;
    {
      unlocked const open(hot);
      ++host_waits_;
      done = wait_for_all_work(driver_).ok();
    }
    if (!done) return progress::unknown;
    domain.completed = max_of(domain.completed, mark);
    return domain.freed <= domain.completed ? progress::completed : progress::running;
  }

  Driver driver_;
  default_streams named_;
  std::uint64_t host_waits_ = 0;
  std::uint64_t device_waits_ = 0;
};

}  // namespace tarn::detail
