// SPDX-License-Identifier: Apache-2.0
#pragma once
// The simulated GPU's streams: queues in virtual time, events, default streams, capture. Deterministic: the end of an
// operation is known when it is enqueued, and the operation takes effect when the host's clock reaches that end.
//
// Over 400 lines: streams, events, default streams and captures all act on the same queues and clocks. Two classes would each need
// the private state of the other.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tarn/core/stream.hpp"
#include "tarn/driver/driver.hpp"
#include "tarn/driver/sim/sim_cost.hpp"
#include "tarn/driver/sim/sim_memory.hpp"
#include "tarn/driver/sim/sim_order.hpp"
#include "tarn/driver/sim/sim_tsan.hpp"
#include "tarn/driver/sim/sim_work.hpp"
#include "tarn/driver/thread_number.hpp"

namespace tarn {

namespace detail {

/// Operations that were recorded from a stream instead of run.
struct sim_capture {
  struct node {
    std::shared_ptr<sim_work> work;
    sim_nanoseconds duration;
  };
  std::vector<node> nodes;
  stream_id origin = 0;  ///< the stream where it began and must end
  bool invalid = false;
  bool open = true;
};

/// Whether a host thread knows all that other threads knew at their last driver call, or only what was published to it.
enum class sim_hosts : std::uint8_t { one_timeline, each_thread };

/// How far device work runs beyond its nominal duration: a different schedule for each seed. See sim_options.
struct sim_schedule {
  std::uint64_t seed = 0;
  sim_nanoseconds jitter = 0;
  unsigned slow_streams = 0;
  sim_nanoseconds slowness = 0;
  sim_nanoseconds late_events = 0;
};

enum class sim_blocking : std::uint8_t { with_legacy, independent };

struct sim_stream {
  stream_id id = 0;
  int device = 0;
  sim_blocking blocking = sim_blocking::independent;
  bool legacy = false;
  bool is_default = false;   ///< legacy or per-thread
  bool slow = false;         ///< as drawn from the schedule
  sim_nanoseconds tail = 0;  ///< when all work so far has completed
  std::shared_ptr<sim_capture> capture;
  sim_agent agent = 0;
  [[no_unique_address]] sim_past past;  ///< work that new work is ordered after
  [[no_unique_address]] sim_context context;
};

struct sim_event {
  int device = 0;
  sim_nanoseconds time = 0;  ///< when the event is reached; 0: never recorded
  std::shared_ptr<sim_capture> capture;
  sim_clock clock;
  [[no_unique_address]] sim_past past;
};

/// All streams and events of a machine, and its clock. Callers hold the machine's lock.
class sim_streams {
 public:
  sim_streams(int devices, sim_memory& memory, sim_schedule const& schedule, sim_order* order,
              sim_hosts hosts)
      : memory_(memory),
        devices_(static_cast<std::size_t>(devices)),
        machine_(next_machine.fetch_add(1, std::memory_order_relaxed)),
        schedule_(schedule),
        order_(order),
        hosts_(hosts) {
    if (order_ != nullptr && hosts_ == sim_hosts::one_timeline) host_ = order_->add_agent("host", 0);
    for (int d = 0; d < devices; ++d) {
      sim_stream& legacy = devices_[static_cast<std::size_t>(d)].legacy;
      // Fixed identities below all others, from 1: 0 means unknown.
      legacy = make_stream(d, sim_blocking::with_legacy, first_legacy_id + static_cast<stream_id>(d));
      legacy.legacy = legacy.is_default = true;
    }
  }

  [[nodiscard]] sim_nanoseconds now() const noexcept { return now_.load(std::memory_order_relaxed); }

  /// Advances the host's clock and runs operations that have become due.
  void advance(sim_nanoseconds by) { advance_to(now() + by); }
  void advance_to(sim_nanoseconds time) {
    if (time > now()) now_.store(time, std::memory_order_relaxed);
    while (!pending_.empty() && pending_.begin()->first.first <= now()) {
      auto node = pending_.extract(pending_.begin());
      sim_code const outcome = run(node.mapped());
      sim_code& broken = fault(node.mapped().device);
      if (broken == sim_code::ok) broken = outcome;
    }
  }

  /// The error state of a device; once set, every call on the device returns it.
  [[nodiscard]] sim_code& fault(int device) noexcept {
    return devices_[static_cast<std::size_t>(device)].fault;
  }

  /// Returns the stream of a handle; default handles mean the given device's. Null if there is none. A per-thread default
  /// stream of another thread cannot be reached by its handle: the legacy default stream, which is ordered with it, is returned
  /// instead (as in cuda_driver).
  sim_stream* find(stream_ref stream, int device) {
    auto const handle = reinterpret_cast<std::uintptr_t>(stream.handle());
    auto& d = devices_[static_cast<std::size_t>(device)];
    if (handle <= legacy_handle) return &d.legacy;
    if (handle == per_thread_handle) {
      sim_stream& own = own_default_stream(device);
      bool const reached = stream.id() == stream_ref::unknown_id || stream.id() == own.id;
      return reached ? &own : &d.legacy;
    }
    auto const it = streams_.find(handle);
    return it == streams_.end() ? nullptr : &it->second;
  }

  /// Handles are reused, the latest freed first, as drivers do; identities are never reused.
  void create_stream(int device, sim_blocking blocking, stream_ref& stream) {
    stream_id const id = next_id_++;
    std::uintptr_t const handle = take_handle(free_streams_, next_stream_, stream_handles);
    streams_.emplace(handle, make_stream(device, blocking, id));
    stream = stream_ref::from(reinterpret_cast<void*>(handle), id);
  }
  /// Work already enqueued continues; default streams are not destroyed.
  sim_code destroy_stream(stream_ref stream) {
    if (reinterpret_cast<std::uintptr_t>(stream.handle()) <= per_thread_handle) return sim_code::ok;
    auto const it = streams_.find(reinterpret_cast<std::uintptr_t>(stream.handle()));
    if (it == streams_.end()) return sim_code::invalid_handle;
    if (it->second.capture) it->second.capture->invalid = true;
    free_streams_.push_back(it->first);
    streams_.erase(it);
    return sim_code::ok;
  }

  void create_event(int device, event_handle& event) {
    std::uintptr_t const handle = take_handle(free_events_, next_event_, event_handles);
    events_[handle].device = device;
    event = reinterpret_cast<void*>(handle);
  }
  sim_code destroy_event(event_handle event) {
    auto const it = events_.find(reinterpret_cast<std::uintptr_t>(event));
    if (it == events_.end()) return sim_code::invalid_handle;
    free_events_.push_back(it->first);
    events_.erase(it);
    return sim_code::ok;
  }
  sim_event* find_event(event_handle event) noexcept {
    auto const it = events_.find(reinterpret_cast<std::uintptr_t>(event));
    return it == events_.end() ? nullptr : &it->second;
  }

  sim_code record(sim_event& event, sim_stream& stream) {
    if (stream.device != event.device) return sim_code::invalid_handle;
    if (sim_code const refused = check_capture(stream); refused != sim_code::ok) return refused;
    if (stream.capture) {
      event.capture = stream.capture;
      ++captured_;
      return sim_code::ok;
    }
    event.capture.reset();
    event.time = start_on(stream) + draw(schedule_.late_events);
    finish_on(stream, event.time);
    event.past = stream.past;
    if (order_ != nullptr) {
      event.clock = order_->clock(stream.agent);
      order_->marked(stream.agent);
    }
    return sim_code::ok;
  }

  /// Marks all work of the event's device, as cuCtxRecordEvent does; fails while any stream there is captured (the real call
  /// also ends the capture).
  sim_code record_all(sim_event& event) {
    bool capturing = false;
    each_stream(event.device, [&](sim_stream const& s) { capturing = capturing || s.capture != nullptr; });
    if (capturing) return sim_code::capture_unsupported;
    auto& d = devices_[static_cast<std::size_t>(event.device)];
    event.capture.reset();
    event.time = (d.tail < now() ? now() : d.tail) + draw(schedule_.late_events);
    event.past = d.past;
    if (order_ != nullptr) {
      event.clock = d.clock;
      each_stream(event.device, [&](sim_stream const& s) { order_->marked(s.agent); });
    }
    return sim_code::ok;
  }

  sim_code wait(sim_stream& stream, sim_event const& event) {
    if (sim_code const refused = check_capture(stream); refused != sim_code::ok) return refused;
    if (event.capture) {
      if (!event.capture->open) return sim_code::captured_event;
      if (stream.capture && stream.capture != event.capture) {
        stream.capture->invalid = event.capture->invalid = true;
        return sim_code::capture_merge;
      }
      if (stream.legacy) {
        event.capture->invalid = true;
        return sim_code::capture_implicit;
      }
      stream.capture = event.capture;  // a fork: the waiting stream is captured, too
      ++captured_;
      return sim_code::ok;
    }
    if (stream.capture) {
      ++captured_;
      if (event.time == 0) return sim_code::ok;
      stream.capture->invalid = true;
      return sim_code::capture_isolation;
    }
    if (event.time == 0) return sim_code::ok;
    sim_nanoseconds start = start_on(stream);
    if (start < event.time) start = event.time;
    finish_on(stream, start);
    stream.past.join(event.past);
    share_past(stream);
    if (order_ != nullptr) {
      order_->learn(stream.agent, event.clock);
      share_clock(stream);
    }
    return sim_code::ok;
  }

  sim_code query(sim_event const& event) {
    if (event.capture) {
      event.capture->invalid = true;
      return sim_code::captured_event;
    }
    if (event.time > now()) return sim_code::not_ready;
    event.past.observe();
    if (order_ != nullptr) order_->learn(host(), event.clock);
    return sim_code::ok;
  }

  sim_code synchronize(sim_event const& event) {
    if (event.capture) {
      event.capture->invalid = true;
      return sim_code::captured_event;
    }
    advance_to(event.time);
    event.past.observe();
    if (order_ != nullptr) order_->learn(host(), event.clock);
    return sim_code::ok;
  }
  sim_code synchronize(sim_stream& stream) {
    if (sim_code const refused = check_capture(stream); refused != sim_code::ok) return refused;
    if (stream.capture) {
      stream.capture->invalid = true;
      return sim_code::capture_unsupported;
    }
    sim_nanoseconds const end = start_on(stream);
    if (order_ != nullptr) order_->learn(host(), order_->clock(stream.agent));
    advance_to(end);
    stream.past.observe();
    return sim_code::ok;
  }
  sim_code synchronize_device(int device) {
    bool capturing = false;
    each_stream(device, [&](sim_stream& s) {
      if (!s.capture) return;
      s.capture->invalid = true;
      capturing = true;
    });
    if (capturing) return sim_code::capture_unsupported;
    join_device(device);
    return sim_code::ok;
  }
  /// Waits for a device without checking for captures: what cudaFree does besides freeing.
  void join_device(int device) {
    auto& d = devices_[static_cast<std::size_t>(device)];
    if (order_ != nullptr) order_->learn(host(), d.clock);
    advance_to(d.tail);
    d.past.observe();
    d.past = {};  // a later waiter is ordered after this thread's next call
  }

  /// Enqueues work: it starts when the stream is free and lasts `duration`.
  /// @param who  user: the work belongs in a capture; driver: being captured is an accident and is counted
  enum class caller : std::uint8_t { user, driver };
  sim_code enqueue(sim_stream& stream, sim_nanoseconds duration, std::shared_ptr<sim_work> work, caller who) {
    if (sim_code const refused = check_capture(stream); refused != sim_code::ok) return refused;
    if (stream.capture) {
      if (who == caller::driver) ++captured_;
      stream.capture->nodes.push_back({std::move(work), duration});
      return sim_code::ok;
    }
    sim_nanoseconds const end = start_on(stream) + duration + delay(stream);
    if (order_ != nullptr) {
      order_->tick(stream.agent);
      for (sim_access const& a : work->accesses()) order_->access(memory_, a, stream.agent);
    }
    int const device = stream.device;
    std::uint64_t const number = ++next_operation_;
    pending_.emplace(std::pair(end, number),
                     operation{device, {std::move(work), stream.context, stream.past, stream.id, number}});
    finish_on(stream, end);
    return sim_code::ok;
  }

  sim_code begin_capture(sim_stream& stream) {
    if (stream.legacy) return sim_code::capture_unsupported;
    if (stream.capture) return sim_code::capture_unmatched;
    stream.capture = std::make_shared<sim_capture>();
    stream.capture->origin = stream.id;
    ++open_captures_;
    return sim_code::ok;
  }
  sim_code end_capture(sim_stream& stream, std::shared_ptr<sim_capture const>& graph) {
    if (!stream.capture) return sim_code::capture_unmatched;
    if (stream.capture->origin != stream.id) {
      stream.capture->invalid = true;
      return sim_code::capture_unmatched;
    }
    std::shared_ptr<sim_capture> const done = stream.capture;
    done->open = false;
    --open_captures_;
    for (std::size_t d = 0; d < devices_.size(); ++d) {
      each_stream(static_cast<int>(d), [&](sim_stream& s) {
        if (s.capture == done) s.capture.reset();
      });
    }
    if (done->invalid) return sim_code::capture_invalidated;
    graph = done;
    return sim_code::ok;
  }
  /// Also true for the legacy stream while a stream that it synchronises with is captured: work on it would invalidate that.
  [[nodiscard]] bool is_capturing(sim_stream const& stream) {
    bool capturing = stream.capture != nullptr;
    if (stream.legacy && open_captures_ != 0) {
      each_stream(stream.device, [&](sim_stream const& s) {
        if (s.capture && s.blocking == sim_blocking::with_legacy) capturing = true;
      });
    }
    return capturing;
  }

  void count_captured() noexcept { ++captured_; }
  [[nodiscard]] std::size_t captured() const noexcept { return captured_; }
  [[nodiscard]] std::size_t streams() const noexcept { return streams_.size(); }
  [[nodiscard]] std::size_t events() const noexcept { return events_.size(); }
  [[nodiscard]] std::size_t pending() const noexcept { return pending_.size(); }

  /// The calling thread's agent in the order checker.
  [[nodiscard]] sim_agent host() {
    if (hosts_ == sim_hosts::one_timeline) return host_;
    auto const thread = thread_number();
    auto it = threads_.find(thread);
    if (it == threads_.end()) it = threads_.emplace(thread, order_->add_agent("thread", thread)).first;
    return it->second;
  }
  /// Passes knowledge from the thread that publishes a token to threads that observe it later.
  void publish(void const* token) { tokens_[token].join(order_->clock(host())); }
  void observe(void const* token) {
    if (auto const it = tokens_.find(token); it != tokens_.end()) order_->learn(host(), it->second);
  }

  /// Returns true if work enqueued on `second` now would be ordered after all work so far on `first`.
  [[nodiscard]] bool is_ordered(sim_stream& first, sim_stream& second) {
    (void)start_on(second);
    return order_->is_ordered(first.agent, second.agent);
  }

  /// Returns when work enqueued on a stream now could start: when all earlier work has completed.
  sim_nanoseconds end_of(sim_stream& stream) { return start_on(stream); }

 private:
  /// Passes the host's knowledge to a stream that it is about to use.
  void host_reaches(sim_stream& stream) {
    if (order_ == nullptr) return;
    order_->learn(stream.agent, order_->clock(host()));
  }

  static constexpr std::uintptr_t legacy_handle = 1;      // cudaStreamLegacy
  static constexpr std::uintptr_t per_thread_handle = 2;  // cudaStreamPerThread
  static constexpr stream_id first_legacy_id = 1;
  static constexpr std::uintptr_t stream_handles = 0x51000000;
  static constexpr std::uintptr_t event_handles = 0x52000000;

  struct device_state {
    sim_stream legacy;
    std::unordered_map<std::uint64_t, sim_stream> per_thread;
    sim_nanoseconds tail = 0;           ///< of all streams, including destroyed ones
    sim_nanoseconds blocking_tail = 0;  ///< of those that the legacy stream waits for
    sim_clock clock;                    ///< of all streams
    sim_clock blocking_clock;
    [[no_unique_address]] sim_past past;  ///< of all streams
    [[no_unique_address]] sim_past blocking_past;
    sim_code fault = sim_code::ok;
  };
  struct operation {
    int device;
    sim_ordered_work<sim_work> work;
  };

  sim_stream& own_default_stream(int device) {
    auto& streams_here = devices_[static_cast<std::size_t>(device)].per_thread;
    auto const thread = thread_number();
    auto it = streams_here.find(thread);
    if (it == streams_here.end()) {
      it = streams_here.emplace(thread, make_stream(device, sim_blocking::with_legacy, next_id_++)).first;
    }
    it->second.is_default = true;
    return it->second;
  }
  sim_stream make_stream(int device, sim_blocking blocking, stream_id id) {
    sim_stream s;
    s.id = id;
    s.device = device;
    s.blocking = blocking;
    if (schedule_.slow_streams != 0) s.slow = draw(1000) < schedule_.slow_streams && schedule_.seed != 0;
    if (order_ != nullptr) s.agent = order_->add_agent("stream", id);
    return s;
  }
  std::uintptr_t take_handle(std::vector<std::uintptr_t>& free, std::uintptr_t& next,
                             std::uintptr_t base) const {
    if (free.empty()) return (machine_ % 0x8000 + 1) << 32 | (base + 16 * next++);
    std::uintptr_t const handle = free.back();
    free.pop_back();
    return handle;
  }

  template <class Visit>
  void each_stream(int device, Visit const& visit) {
    auto& d = devices_[static_cast<std::size_t>(device)];
    visit(d.legacy);
    for (auto& [thread, s] : d.per_thread) visit(s);
    for (auto& [handle, s] : streams_) {
      if (s.device == device) visit(s);
    }
  }

  sim_code check_capture(sim_stream& stream) {
    if (stream.capture && stream.capture->invalid) return sim_code::capture_invalidated;
    if (!stream.legacy || open_captures_ == 0) return sim_code::ok;
    bool spoiled = false;
    each_stream(stream.device, [&](sim_stream& s) {
      if (!s.capture || s.blocking == sim_blocking::independent) return;
      s.capture->invalid = true;
      spoiled = true;
    });
    return spoiled ? sim_code::capture_implicit : sim_code::ok;
  }

  /// Returns when the stream could start work enqueued now. Passes to it the knowledge of the host, and of the streams that the
  /// rules of the legacy default stream make it wait for.
  sim_nanoseconds start_on(sim_stream& stream) {
    auto const& d = devices_[static_cast<std::size_t>(stream.device)];
    sim_nanoseconds start = stream.tail < now() ? now() : stream.tail;
    bool const blocking = stream.blocking == sim_blocking::with_legacy;
    sim_nanoseconds const other = stream.legacy ? d.blocking_tail : blocking ? d.legacy.tail : 0;
    if (start < other) start = other;
    if (stream.legacy) {
      stream.past.join(d.blocking_past);
    } else if (blocking) {
      stream.past.join(d.legacy.past);
    }
    if (order_ != nullptr) {
      host_reaches(stream);
      if (stream.legacy) {
        order_->learn(stream.agent, d.blocking_clock);
      } else if (blocking) {
        order_->learn(stream.agent, order_->clock(d.legacy.agent));
      }
    }
    return start;
  }
  void finish_on(sim_stream& stream, sim_nanoseconds end) {
    auto& d = devices_[static_cast<std::size_t>(stream.device)];
    stream.tail = end;
    if (d.tail < end) d.tail = end;
    if (stream.blocking == sim_blocking::with_legacy && d.blocking_tail < end) d.blocking_tail = end;
    share_past(stream);
    share_clock(stream);
  }
  void share_past(sim_stream& stream) {
    auto& d = devices_[static_cast<std::size_t>(stream.device)];
    d.past.join(stream.past);
    if (stream.blocking == sim_blocking::with_legacy) d.blocking_past.join(stream.past);
  }
  void share_clock(sim_stream& stream) {
    if (order_ == nullptr) return;
    auto& d = devices_[static_cast<std::size_t>(stream.device)];
    d.clock.join(order_->clock(stream.agent));
    if (stream.blocking == sim_blocking::with_legacy) d.blocking_clock.join(order_->clock(stream.agent));
  }

  /// The host looks up what the work accesses; the stream performs the work.
  sim_code run(operation& o) {
    sim_code const allowed = o.work.look([&](sim_work& work) { return work.check(memory_); });
    if (allowed != sim_code::ok) return allowed;
    sim_inside_work.store(true, std::memory_order_relaxed);
    o.work.run();
    sim_inside_work.store(false, std::memory_order_relaxed);
    return sim_code::ok;
  }

  /// Extra time before an operation ends.
  sim_nanoseconds delay(sim_stream const& stream) noexcept {
    return draw(schedule_.jitter) + (stream.slow ? draw(schedule_.slowness) : 0);
  }
  /// Returns a number below `most`, drawn from the seed (splitmix64).
  sim_nanoseconds draw(sim_nanoseconds most) noexcept {
    if (schedule_.seed == 0 || most == 0) return 0;
    std::uint64_t z = (schedule_.seed += 0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return (z ^ (z >> 31)) % most;
  }

  /// Numbers the machines, so that handles of one machine are invalid on another.
  inline static std::atomic<std::uintptr_t> next_machine{0};

  sim_memory& memory_;
  std::vector<device_state> devices_;
  std::uintptr_t machine_;
  std::unordered_map<std::uintptr_t, sim_stream> streams_;
  std::unordered_map<std::uintptr_t, sim_event> events_;
  std::vector<std::uintptr_t> free_streams_, free_events_;
  std::uintptr_t next_stream_ = 0, next_event_ = 0;
  stream_id next_id_ = 4096;  // above every device's legacy stream
  std::map<std::pair<sim_nanoseconds, std::uint64_t>, operation> pending_;
  std::uint64_t next_operation_ = 0;
  std::atomic<sim_nanoseconds> now_{1};  // never 0, which marks an event as unrecorded
  std::size_t captured_ = 0;
  std::size_t open_captures_ = 0;  ///< begun and not ended; while 0, no stream has to be searched
  sim_schedule schedule_;
  sim_order* order_;
  sim_hosts hosts_;
  sim_agent host_ = 0;
  std::unordered_map<std::uint64_t, sim_agent> threads_;
  std::unordered_map<void const*, sim_clock> tokens_;
};

}  // namespace detail

}  // namespace tarn
