// SPDX-License-Identifier: Apache-2.0
#pragma once
// The driver calls of stream order: record, query and wait, never under the hot lock and never on a capturing
// stream. Used only by the ladder, sweeps of streams that ended, trim() and ~pool().

#include <cstdint>

#include "tarn/core/min_max.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/driver/all_work.hpp"
#include "tarn/driver/driver.hpp"
#include "tarn/driver/stream_device.hpp"
#include "tarn/pool/arena/arena.hpp"
#include "tarn/pool/arena/hot_lock.hpp"
#include "tarn/pool/order/mark_work.hpp"
#include "tarn/pool/order/slot_table.hpp"

namespace TARN_NAMESPACE::detail {

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

/// As is_capturing(), but true if the driver cannot report it. Then nothing may be recorded or waited for on
/// behalf of the stream: marking other streams' work would invalidate the capture.
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
  /// `domain` stays valid across releases of the lock: domains are forgotten only under the growth lock,
  /// which protects this object. The mark is taken before the event is recorded, so frees in between get a
  /// later mark.
  progress settle(arena& a, may_release hot, domain_ref d, gone_stream gone = gone_stream::is_waited_for) {
    stream_domain& domain = a.streams[d];
    if (domain.is_neutral() || domain.is_completed()) return progress::completed;
    if (is_captured_id(domain.id)) return progress::unknown;
    if (domain.recorded < domain.freed) {
      std::uint64_t const mark = domain.epoch++;
      stream_ref const stream = domain.stream;
      bool const known_gone = domain.gone;
      mark_result result = mark_result::gone;
      {
        unlocked const released(hot);
        // Waiting for the device would invalidate a capture on any stream; recording an event is merely
        // refused then.
        if (!known_gone || marks_all_work<Driver>) {
          result =
              mark_with(domain.event, domain.event_device, device_to_mark(driver_, stream, named_), stream);
        }
      }
      if (result == mark_result::captured || result == mark_result::refused) return progress::unknown;
      if (result == mark_result::gone) {
        if (gone == gone_stream::stays_unknown) return progress::unknown;
        domain.gone = true;
        return wait_for_gone(hot, domain, mark);
      }
      domain.recorded = mark;
      leave_shared(domain);
    }
    if (is_running(a, hot, d)) return progress::running;
    return domain.freed <= domain.completed ? progress::completed : progress::running;
  }

  /// A pass over many streams. While it lives, an event that covers several of them is queried once, and a
  /// stream waits for it once.
  class pass {
   public:
    explicit pass(ordering& order) noexcept : order_(order) { order_.pass_ = ++order_.passes_; }
    pass& operator=(pass&&) = delete;
    ~pass() { order_.pass_ = 0; }

   private:
    ordering& order_;
  };

  /// Covers all that streams have freed with one event for each device, if the driver can mark all of its
  /// work. The event is not queried. Default streams, a stream alone on its device, and what cannot be marked
  /// now are left to settle(). At most three driver calls, and O(streams), for each device in use.
  /// @param each  each(f) calls f(domain_ref) for the streams
  template <class Each>
  void mark_together(arena& a, may_release hot, Each const& each) noexcept {
    if constexpr (marks_all_work<Driver>) {
      for_each_device_in_use(driver_, [&](Driver const& there) {
        try {
          mark_on(a, hot, there, each);
        } catch (...) {  // no host memory for the list
        }
      });
    }
  }

  /// Whether the work up to the last mark of `d` runs still. At most one driver call.
  [[nodiscard]] bool is_running(arena& a, may_release hot, domain_ref d) {
    stream_domain& domain = a.streams[d];
    std::uint64_t const covered = domain.recorded;
    if (covered <= domain.completed) return false;
    shared_mark* const shared = shared_of(domain);
    bool done = shared != nullptr && shared->is_complete;
    if (!done && (shared == nullptr || pass_ == 0 || shared->found_running != pass_)) {
      event_handle const event = event_of(domain);
      unlocked const released(hot);
      done = driver_.query_event(event).ok();
    }
    if (done) domain.completed = max_of(domain.completed, covered);
    if (shared != nullptr) shared->note(done, pass_);
    return !done;
  }

  /// Waits on the host until the device has completed all that `d` freed. Returns false if that cannot be
  /// determined.
  bool finish(arena& a, may_release hot, domain_ref d) {
    progress const now = settle(a, hot, d);
    if (now != progress::running) return now == progress::completed;
    stream_domain& domain = a.streams[d];
    std::uint64_t const covered = domain.recorded;
    shared_mark* const shared = shared_of(domain);
    event_handle const event = event_of(domain);
    bool done = false;
    {
      unlocked const released(hot);
      ++host_waits_;
      done = driver_.synchronize_event(event).ok();
    }
    if (done) domain.completed = max_of(domain.completed, covered);
    if (shared != nullptr) shared->note(done, pass_);
    return done;
  }

  /// Makes later work of `taker` wait on the device for all that `owner` freed up to its recorded event. A
  /// pass has one taker.
  bool order(arena& a, may_release hot, domain_ref taker, domain_ref owner) {
    stream_ref const stream = a.streams[taker].stream;
    event_handle const event = event_of(a.streams[owner]);
    shared_mark* const shared = shared_of(a.streams[owner]);
    if (shared != nullptr && pass_ != 0 && shared->waited_for == pass_) return true;
    bool done = false;
    {
      unlocked const released(hot);
      bool capturing = true;
      done = driver_.is_capturing(stream, capturing).ok() && !capturing &&
             driver_.wait_event(stream, event).ok();
    }
    if (done) ++device_waits_;
    if (done && shared != nullptr) shared->waited_for = pass_;
    return done;
  }

  /// Destroys the events. The pool is ending and has finished every domain.
  void close(arena& a) noexcept {
    for (domain_ref d = 0; d < a.streams.size(); ++d) {
      if (a.streams[d].event != nullptr) (void)driver_.destroy_event(a.streams[d].event);
      a.streams[d].event = nullptr;
    }
    for (slot_number m = 1; m <= marks_.last(); ++m) {
      if (marks_[m].event != nullptr) (void)driver_.destroy_event(marks_[m].event);
      marks_[m].event = nullptr;
    }
  }

  [[nodiscard]] Driver const& driver() const noexcept { return driver_; }
  /// Times the host or a stream had to wait for another stream's frees.
  [[nodiscard]] std::uint64_t host_waits() const noexcept { return host_waits_; }
  [[nodiscard]] std::uint64_t device_waits() const noexcept { return device_waits_; }

 private:
  /// An event that covers what several streams freed. It keeps its event when no stream has it any more.
  struct shared_mark {
    event_handle event = nullptr;
    device_id device;
    std::uint32_t users = 0;
    slot_number next = 0;  ///< of the marks without users
    bool is_complete = false;
    std::uint64_t found_running = 0;  ///< the last pass that found it incomplete
    std::uint64_t waited_for = 0;     ///< the last pass in which the taker was made to wait for it

    void note(bool complete, std::uint64_t pass) noexcept {
      is_complete = complete;
      if (!complete) found_running = pass;
    }
  };

  [[nodiscard]] shared_mark* shared_of(stream_domain const& domain) noexcept {
    return domain.shared_mark != 0 ? &marks_[domain.shared_mark] : nullptr;
  }
  [[nodiscard]] event_handle event_of(stream_domain const& domain) const noexcept {
    return domain.shared_mark != 0 ? marks_[domain.shared_mark].event : domain.event;
  }
  void leave_shared(stream_domain& domain) noexcept {
    if (slot_number const m = detail::exchange(domain.shared_mark, 0); m != 0 && --marks_[m].users == 0)
      drop(m);
  }
  /// Keeps a mark without users for later.
  void drop(slot_number m) noexcept { marks_[m].next = detail::exchange(unused_marks_, m); }

  /// Marks together what streams of one device have freed. @throws std::bad_alloc, nothing has changed
  template <class Each>
  void mark_on(arena& a, may_release hot, Driver const& there, Each const& each) {
    marks_.make_room();
    sequence<domain_ref> chosen;
    each([&](domain_ref d) {
      stream_domain const& domain = a.streams[d];
      if (domain.recorded >= domain.freed || domain.is_neutral() || is_captured_id(domain.id)) return;
      if (is_default_stream(domain.stream)) return;
      if (device_to_mark(driver_, domain.stream, named_) == there.device()) chosen.push_back(d);
    });
    if (chosen.size() < 2) return;
    slot_number const m = unused_marks_ != 0 ? unused_marks_ : marks_.take();
    shared_mark& mark = marks_[m];
    if (m == unused_marks_) unused_marks_ = mark.next;
    // Frees from now on get a later mark.
    for (domain_ref const d : chosen) ++a.streams[d].epoch;
    stream_ref const any = a.streams[chosen[0]].stream;
    auto const is_marked = [&] {
      unlocked const released(hot);
      return mark_with(mark.event, mark.device, there.device(), any) == mark_result::marked;
    };
    if (!is_marked()) return drop(m);
    mark.is_complete = false;
    mark.found_running = mark.waited_for = 0;
    mark.users = static_cast<std::uint32_t>(chosen.size());
    for (domain_ref const d : chosen) {
      stream_domain& domain = a.streams[d];
      leave_shared(domain);
      domain.recorded = domain.epoch - 1;  // marks of streams are taken only under the growth lock
      domain.shared_mark = m;
    }
  }

  /// Marks the work of a stream with an event that is kept for it, or with a new one of the device where that
  /// one is another device's: a domain's place may have been that of another stream, and a device may become
  /// unknown. The kept event still covers earlier work until the new one is recorded.
  mark_result mark_with(event_handle& kept, device_id& kept_device, device_id device,
                        stream_ref stream) const noexcept {
    Driver const there = driver_on(driver_, device_of_marks(driver_, device));
    event_handle event = kept_device == there.device() ? kept : nullptr;
    if (event == nullptr && !there.create_event(event).ok()) return mark_result::refused;
    mark_result const result = mark_work(driver_, device, event, stream);
    if (event == kept) return result;
    if (result == mark_result::marked || kept == nullptr) {
      event = detail::exchange(kept, event);
      kept_device = there.device();
    }
    if (event != nullptr) (void)driver_.destroy_event(event);
    return result;
  }

  /// Waits for the whole device: nothing can be recorded on a destroyed stream, and its last work may still
  /// run.
  progress wait_for_gone(may_release hot, stream_domain& domain, std::uint64_t mark) {
    bool done = false;
    {
      unlocked const released(hot);
      ++host_waits_;
      done = wait_for_all_work(driver_).ok();
    }
    if (!done) return progress::unknown;
    domain.completed = max_of(domain.completed, mark);
    return domain.freed <= domain.completed ? progress::completed : progress::running;
  }

  Driver driver_;
  default_streams named_;
  slot_table<shared_mark> marks_;
  slot_number unused_marks_ = 0;
  std::uint64_t passes_ = 0;
  std::uint64_t pass_ = 0;  ///< the one that runs now
  std::uint64_t host_waits_ = 0;
  std::uint64_t device_waits_ = 0;
};

}  // namespace TARN_NAMESPACE::detail
