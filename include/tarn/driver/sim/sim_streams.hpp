// SPDX-License-Identifier: Apache-2.0
#pragma once
// The simulated GPU's streams: queues in virtual time, events, default streams, capture. Deterministic: see
// sim_timeline.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tarn/core/stream.hpp"
#include "tarn/core/thread_tag.hpp"
#include "tarn/driver/sim/sim_capture.hpp"
#include "tarn/driver/sim/sim_cost.hpp"
#include "tarn/driver/sim/sim_memory.hpp"
#include "tarn/driver/sim/sim_order.hpp"
#include "tarn/driver/sim/sim_replay.hpp"
#include "tarn/driver/sim/sim_stream_table.hpp"
#include "tarn/driver/sim/sim_timeline.hpp"
#include "tarn/driver/sim/sim_tsan.hpp"
#include "tarn/driver/sim/sim_work.hpp"

namespace TARN_NAMESPACE {

namespace detail {

/// What the streams and events of a machine do, and its clock. Callers hold the machine's lock.
class sim_streams : public sim_stream_table {
 public:
  sim_streams(sim_options const& options, sim_memory& memory, sim_order* order)
      : sim_stream_table(options, order),
        memory_(memory),
        timeline_(options.devices, memory),
        each_thread_(options.checks == sim_checks::each_thread) {
    if (order_ != nullptr && !each_thread_) host_ = order_->add_agent("host", 0);
  }

  [[nodiscard]] sim_nanoseconds now() const noexcept { return timeline_.now(); }

  /// Advances the host's clock and runs operations that have become due.
  void advance(sim_nanoseconds by) { advance_to(now() + by); }
  void advance_to(sim_nanoseconds time) { timeline_.advance_to(time); }

  /// The error state of a device; once set, every call on the device returns it.
  [[nodiscard]] sim_code& fault(int device) noexcept { return timeline_.fault(device); }

  /// Work already enqueued continues; default streams are not destroyed.
  sim_code destroy_stream(stream_ref stream) {
    std::shared_ptr<sim_capture> left;
    stream_id id = 0;
    if (sim_code const refused = take_stream(stream, left, id); refused != sim_code::ok) return refused;
    if (left && left->origin == id) invalidate(*left);
    if (left && left->origin == id) close(left);  // nothing can end it now
    return sim_code::ok;
  }

  sim_code record(sim_event& event, sim_stream& stream) {
    if (stream.device != event.device) return sim_code::invalid_handle;
    if (sim_code const refused = check_capture(stream); refused != sim_code::ok) return refused;
    if (stream.capture) {
      event.capture = stream.capture;
      event.leaves = stream.leaves;
      ++captured_;
      return sim_code::ok;
    }
    event.capture.reset();
    event.time = start_on(stream) + schedule_.draw(schedule_.options.late_events);
    finish_on(stream, event.time);
    event.past = stream.past;
    if (order_ != nullptr) {
      event.clock = order_->clock(stream.agent);
      order_->marked(stream.agent);
    }
    return sim_code::ok;
  }

  /// Marks all work of the event's device, as cuCtxRecordEvent does. Fails while any stream there is
  /// captured, and invalidates the captures.
  sim_code record_all(sim_event& event) {
    if (sim_code const refused = invalidate_all(event.device); refused != sim_code::ok) return refused;
    auto& d = devices_[static_cast<std::size_t>(event.device)];
    event.capture.reset();
    event.time = (d.tail < now() ? now() : d.tail) + schedule_.draw(schedule_.options.late_events);
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
        invalidate(*stream.capture);
        return refuse(*event.capture, sim_code::capture_merge);
      }
      if (stream.legacy) return refuse(*event.capture, sim_code::capture_implicit);
      stream.capture = event.capture;  // a fork: the waiting stream is captured, too
      detail::join(stream.leaves, event.leaves);
      ++captured_;
      return sim_code::ok;
    }
    if (stream.capture) {
      ++captured_;
      return event.time == 0 ? sim_code::ok : refuse(*stream.capture, sim_code::capture_isolation);
    }
    if (event.time == 0) return sim_code::ok;
    sim_nanoseconds start = start_on(stream);
    if (start < event.time) start = event.time;
    finish_on(stream, start);
    stream.past.join(event.past);
    if (order_ != nullptr) order_->learn(stream.agent, event.clock);
    device_of(stream).share(stream, order_);
    return sim_code::ok;
  }

  sim_code query(sim_event const& event) {
    if (event.capture) return refuse(*event.capture, sim_code::captured_event);
    if (event.time > now()) return sim_code::not_ready;
    event.past.observe();
    if (order_ != nullptr) order_->learn(host(), event.clock);
    return sim_code::ok;
  }

  sim_code synchronize(sim_event const& event) {
    if (!event.capture) advance_to(event.time);
    return query(event);
  }
  sim_code synchronize(sim_stream& stream) {
    if (sim_code const refused = check_capture(stream); refused != sim_code::ok) return refused;
    if (stream.capture) return refuse_captured(stream);
    sim_nanoseconds const end = start_on(stream);
    if (order_ != nullptr) order_->learn(host(), order_->clock(stream.agent));
    advance_to(end);
    stream.past.observe();
    return sim_code::ok;
  }
  sim_code synchronize_device(int device) {
    if (sim_code const refused = invalidate_all(device); refused != sim_code::ok) return refused;
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
      sim_node node;
      node.device = stream.device;
      node.work = std::move(work);
      node.duration = duration;
      if (order_ != nullptr) node.owners = order_->owners();
      stream.capture->add_work(std::move(node), stream.leaves);
      return sim_code::ok;
    }
    sim_nanoseconds const end = start_on(stream) + duration + delay_on(stream, schedule_);
    if (order_ != nullptr) {
      order_->tick(stream.agent);
      for (sim_access const& a : work->touched) order_->access(memory_, a, stream.agent);
    }
    timeline_.add(end, stream.device, std::move(work), stream.context, stream.past, stream.id);
    finish_on(stream, end);
    return sim_code::ok;
  }

  /// Enqueues a replay; on a captured stream, adds the graph's nodes to the capture.
  sim_code launch(sim_stream& stream, sim_exec& exec) {
    if (exec.machine != this) return sim_code::invalid_value;
    if (sim_code const refused = check_capture(stream); refused != sim_code::ok) return refused;
    if (stream.capture) {
      stream.capture->add_graph(*exec.graph, stream.leaves);
      return sim_code::ok;
    }
    while (exec.branches.size() + 1 < exec.graph->branches()) {
      auto& b = exec.branches.emplace_back();
      b.id = new_id();
      if (order_ != nullptr) b.agent = order_->add_agent("branch", b.id);
    }
    sim_nanoseconds const start = start_on(stream);
    sim_replay(memory_, timeline_, order_, schedule_, devices_, stream, exec).run(start);
    return sim_code::ok;
  }

  /// Notifies the checker that bytes changed owners in the order of a stream; replays repeat it if the stream
  /// is captured.
  void change_owner(sim_stream& stream, sim_node::kind what, void const* p, std::size_t bytes) {
    bool const captured = stream.capture != nullptr;
    sim_place const place = captured ? sim_place::captured : sim_place::eager;
    change_owner(stream.agent, what, p, bytes, place);
    if (!captured) return;
    sim_node node;
    node.what = what;
    node.device = stream.device;
    node.p = p;
    node.bytes = bytes;
    stream.capture->add_mark(std::move(node), stream.leaves);
  }
  void change_owner(sim_agent on, sim_node::kind what, void const* p, std::size_t bytes,
                    sim_place place = sim_place::eager) {
    if (what == sim_node::kind::allocated) {
      order_->allocated(memory_, p, bytes, on, place);
    } else {
      order_->freed(memory_, p, bytes, on, place);
    }
  }

  sim_code begin_capture(sim_stream& stream) {
    if (stream.legacy) return sim_code::capture_unsupported;
    if (stream.capture) return sim_code::capture_unmatched;
    stream.capture = std::make_shared<sim_capture>(stream.id);
    ++open_captures_;
    return sim_code::ok;
  }
  sim_code end_capture(sim_stream& stream, std::shared_ptr<sim_exec>& graph) {
    if (!stream.capture) return sim_code::capture_unmatched;
    if (stream.capture->origin != stream.id) return refuse(*stream.capture, sim_code::capture_unmatched);
    std::shared_ptr<sim_capture> const done = stream.capture;
    bool const joined = done->is_joined(stream.leaves);
    close(done);
    if (done->invalid) return sim_code::capture_invalidated;
    if (!joined) return sim_code::capture_unjoined;
    graph = std::make_shared<sim_exec>();
    graph->graph = done;
    graph->machine = this;
    return sim_code::ok;
  }
  /// Also true for the legacy stream while a stream that it synchronises with is captured: work on it would
  /// invalidate that.
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
  /// A call that a captured stream does not allow.
  sim_code refuse_captured(sim_stream& stream) noexcept {
    return refuse(*stream.capture, sim_code::capture_unsupported);
  }
  /// Number of captures that were invalidated so far.
  [[nodiscard]] std::size_t invalidated() const noexcept { return invalidated_; }
  [[nodiscard]] std::size_t pending() const noexcept { return timeline_.pending(); }

  /// The calling thread's agent in the order checker.
  [[nodiscard]] sim_agent host() {
    if (!each_thread_) return host_;
    auto const thread = this_thread_number();
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
  sim_code refuse(sim_capture& capture, sim_code why) noexcept {
    invalidate(capture);
    return why;
  }
  void invalidate(sim_capture& capture) noexcept {
    if (!capture.open || capture.invalid) return;
    capture.invalid = true;
    ++invalidated_;
  }
  /// Invalidates the captures of a device's streams; returns an error if there are any.
  sim_code invalidate_all(int device) {
    if (open_captures_ == 0) return sim_code::ok;
    sim_code outcome = sim_code::ok;
    each_stream(device, [&](sim_stream& s) {
      if (!s.capture) return;
      invalidate(*s.capture);
      outcome = sim_code::capture_unsupported;
    });
    return outcome;
  }
  /// Ends a capture: its streams run their work again.
  void close(std::shared_ptr<sim_capture> const& capture) {
    capture->end(order_ != nullptr ? order_->holds() : 0);
    --open_captures_;
    for (std::size_t d = 0; d < devices_.size(); ++d) {
      each_stream(static_cast<int>(d), [&](sim_stream& s) {
        if (s.capture == capture) s.leave_capture();
      });
    }
  }
  sim_code check_capture(sim_stream& stream) {
    if (stream.capture && stream.capture->invalid) return sim_code::capture_invalidated;
    if (!stream.legacy || open_captures_ == 0) return sim_code::ok;
    bool spoiled = false;
    each_stream(stream.device, [&](sim_stream& s) {
      if (!s.capture || s.blocking == sim_blocking::independent) return;
      invalidate(*s.capture);
      spoiled = true;
    });
    return spoiled ? sim_code::capture_implicit : sim_code::ok;
  }

  [[nodiscard]] sim_device& device_of(sim_stream const& stream) noexcept {
    return devices_[static_cast<std::size_t>(stream.device)];
  }
  /// Returns when the stream could start work enqueued now; passes to it the knowledge of the host and of
  /// what it waits for.
  sim_nanoseconds start_on(sim_stream& stream) {
    if (order_ != nullptr) order_->learn(stream.agent, order_->clock(host()));
    return device_of(stream).start_on(stream, now(), order_);
  }
  void finish_on(sim_stream& stream, sim_nanoseconds end) {
    device_of(stream).finish_on(stream, end, order_);
  }

  sim_memory& memory_;
  sim_timeline timeline_;
  std::size_t captured_ = 0;
  std::size_t invalidated_ = 0;
  std::size_t open_captures_ = 0;  ///< begun and not ended; while 0, no stream has to be searched
  bool each_thread_;               ///< whether threads of the host must be ordered, too
  sim_agent host_ = 0;
  std::unordered_map<std::uint64_t, sim_agent> threads_;
  std::unordered_map<void const*, sim_clock> tokens_;
};

}  // namespace detail

}  // namespace TARN_NAMESPACE
