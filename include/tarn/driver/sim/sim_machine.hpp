// SPDX-License-Identifier: Apache-2.0
#pragma once
// A simulated host with GPUs. Holds the options, the controls for tests (launch work, advance time, take
// memory away, capture) and the results (calls, usage, findings). driver/sim_driver provides drivers for its
// devices.

#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <new>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tarn/core/at_fork.hpp"
#include "tarn/core/mutex.hpp"
#include "tarn/core/stream.hpp"
#include "tarn/driver/driver.hpp"
#include "tarn/driver/sim/sim_async.hpp"
#include "tarn/driver/sim/sim_cost.hpp"
#include "tarn/driver/sim/sim_memory.hpp"
#include "tarn/driver/sim/sim_options.hpp"
#include "tarn/driver/sim/sim_order.hpp"
#include "tarn/driver/sim/sim_streams.hpp"
#include "tarn/driver/sim/sim_work.hpp"
#include "tarn/driver/stream_device.hpp"

namespace TARN_NAMESPACE {

class sim_driver;

namespace detail {

/// The whole state of a machine, behind one lock.
struct sim_state {
  explicit sim_state(sim_options const& o)
      : options(o),
        memory(options),
        order(o.checks == sim_checks::off ? nullptr : std::make_unique<sim_order>()),
        streams(options, memory, order.get()) {
    has_context.resize(static_cast<std::size_t>(o.devices > 0 ? o.devices : 0));
    for (int d = 0; d < o.devices; ++d) async.emplace_back(d, memory, order.get());
    if (order) memory.watch_gone();
    if (o.tool == sim_tool::attached) memory.attach_tool();
  }

  /// Counts a call, charges its cost and runs work that became due; the call itself runs afterwards.
  void charge(driver_call call, sim_nanoseconds cost) {
    ++calls.counts[static_cast<std::size_t>(call)];
    charge_more(cost);
    memory.drain_gone([&](sim_memory::piece p) { order->forget(p.key, p.bytes); });
  }
  /// Charges a cost that is known only during the call.
  void charge_more(sim_nanoseconds cost) {
    calls.driver_ns += cost;
    streams.advance(cost);
  }
  void trim_async(int device) { async[static_cast<std::size_t>(device)].trim(streams.now()); }

  sim_options const options;
  mutable fork_mutex mutex;
  sim_memory memory;
  std::unique_ptr<sim_order> order;
  sim_streams streams;
  std::vector<sim_async> async;
  sim_calls calls;
  stream_devices devices_of_streams;
  std::vector<bool>
      has_context;  ///< of each device: whether a call of a driver or of the user's program has used it
  creating_process const process{};
};

}  // namespace detail

/// Work recorded from a captured stream; launch it any number of times, on the machine where it was captured.
/// Copies are the same graph, whose launches are ordered after each other, like those of one cudaGraphExec_t.
class sim_graph {
 public:
  [[nodiscard]] bool is_empty() const noexcept { return size() == 0; }
  [[nodiscard]] std::size_t size() const noexcept { return exec_ ? exec_->graph->works() : 0; }

 private:
  friend class sim_machine;
  std::shared_ptr<detail::sim_exec> exec_;
};

/// A simulated host with devices. A cheap handle: copies are the same machine, which lives as long as any
/// handle or driver of it. Thread-safe; results are reproducible if one thread drives. Time is virtual: it
/// advances by the cost of each driver call, by advance(), and to the end of the work that a synchronisation
/// waits for. A forked child cannot use a machine of its parent, as with CUDA: each call fails, and page
/// contents remain the parent's.
class sim_machine {
 public:
  /// Constructs a machine with the default options: one device.
  sim_machine() : sim_machine(sim_options{}) {}
  explicit sim_machine(sim_options const& options)
      : state_(std::make_shared<detail::sim_state>(detail::resolved(options))) {}

  /// Returns the machine behind `sim_driver{}`: one per process, created at first use with the default
  /// options and never destroyed, so that objects with static storage may use it until exit. Variables of the
  /// environment change it: TARN_SIM_DEVICES is the number of its devices, TARN_SIM_SHARING=descriptors lets
  /// processes share memory, and TARN_SIM_TOOL=attached attaches the memory tool.
  [[nodiscard]] static sim_machine const& standard() {
    static sim_machine const* const machine = [] {
      sim_options options;
      auto const variable = [](char const* name) {
        char const* const value = std::getenv(name);
        return std::string(value != nullptr ? value : "");
      };
      int const devices = std::atoi(variable("TARN_SIM_DEVICES").c_str());
      if (devices > 0) options.devices = devices;
      if (variable("TARN_SIM_SHARING") == "descriptors") options.sharing = sim_sharing::descriptors;
      if (variable("TARN_SIM_TOOL") == "attached") options.tool = sim_tool::attached;
      return new sim_machine(options);
    }();
    return *machine;
  }

  /// Returns the driver of one device. Every call on a device that the machine lacks returns no_device.
  [[nodiscard]] sim_driver driver(device_id device = {}) const noexcept;
  [[nodiscard]] sim_options const& options() const noexcept { return state_->options; }

  // Time.

  /// Virtual time, nanoseconds. May also be called inside simulated work.
  [[nodiscard]] sim_nanoseconds now() const noexcept { return state_->streams.now(); }
  /// Advances the host's time; device work that ends in that time takes effect.
  void advance(sim_nanoseconds by) const { hold()->streams.advance(by); }

  // Work. A default stream is device 0's here; sim_driver::launch uses its own device's.

  /// Launches simulated work that lasts `duration`.
  /// @param touched  bytes that it reads and writes; an address without backing when the work ends is an
  /// illegal access and
  ///                 breaks the device for good, as on a GPU
  /// @param body     runs on the host when the work ends, on a thread that drives the machine; may access
  /// host-backed
  ///                 memory but must not call a driver or throw
  template <class F>
    requires std::is_invocable_v<F&>
  status launch(stream_ref stream, sim_nanoseconds duration, std::initializer_list<sim_access> touched,
                F body) const {
    return launch_on(0, stream, duration, std::make_shared<detail::sim_kernel<F>>(touched, std::move(body)));
  }
  template <class F>
    requires std::is_invocable_v<F&>
  status launch(stream_ref stream, sim_nanoseconds duration, F body) const {
    return launch(stream, duration, {}, std::move(body));
  }
  status launch(stream_ref stream, sim_nanoseconds duration,
                std::initializer_list<sim_access> touched = {}) const {
    return launch(stream, duration, touched, [] {});
  }
  /// Launches what a capture recorded. A node starts when the nodes that it depends on have ended; later work
  /// on `stream` waits for all of them. On a captured stream, adds the graph to the capture.
  status launch(stream_ref stream, sim_graph const& graph) const { return launch_on(0, stream, graph); }

  /// Creates a stream that synchronises with the legacy default stream, as cudaStreamCreate does.
  status create_blocking_stream(device_id device, stream_ref& stream) const {
    detail::scoped_lock const lock(state_->mutex);
    if (!has(device)) return detail::sim_status(detail::sim_code::invalid_device, "create_stream");
    state_->streams.create_stream(device.value, detail::sim_blocking::with_legacy, stream);
    return {};
  }

  // Capture, in relaxed mode: other calls of the capturing thread are not restricted.

  status begin_capture(stream_ref stream) const { return begin_capture_on(0, stream); }
  /// Ends the capture; returns an error if it was invalidated, or if work of it is not joined to `stream`.
  status end_capture(stream_ref stream, sim_graph& graph) const { return end_capture_on(0, stream, graph); }
  /// Number of driver calls recorded into graphs; for an allocator each one is an error.
  [[nodiscard]] std::size_t captured_calls() const { return hold()->streams.captured(); }
  /// Number of captures that a call has invalidated so far.
  [[nodiscard]] std::size_t invalidated_captures() const { return hold()->streams.invalidated(); }

  // Memory.

  /// Sets how much of the device others hold; if it exceeds the free memory, all further allocations fail.
  void take_memory(device_id device, std::size_t bytes) const {
    if (has(device)) hold()->memory.usage(device.value).taken = bytes;
  }
  void set_capacity(device_id device, std::size_t bytes) const {
    if (has(device)) hold()->memory.usage(device.value).capacity = bytes;
  }
  [[nodiscard]] sim_usage usage(device_id device = {}) const {
    return has(device) ? hold()->memory.usage(device.value) : sim_usage{};
  }
  /// Returns what calls have said of the page of managed memory at `p`.
  [[nodiscard]] sim_managed_page managed_page(void const* p) const { return hold()->memory.managed_page(p); }

  // Failures of real machines.

  /// Breaks a device like a kernel's illegal access: every call on it fails until repair().
  void break_device(device_id device) const {
    if (has(device)) hold()->streams.fault(device.value) = detail::sim_code::illegal_address;
  }
  /// Simulates the driver at process exit: every call on any device fails with `unloading` until repair().
  void unload() const { set_faults(detail::sim_code::unloading); }
  /// Undoes break_device(), unload() and illegal accesses; memory and streams are unchanged.
  void repair() const { set_faults(detail::sim_code::ok); }

  void reset_peak(device_id device = {}) const {
    detail::scoped_lock const lock(state_->mutex);
    if (!has(device)) return;
    auto& u = state_->memory.usage(device.value);
    u.peak_used = u.used;
  }
  /// Returns true if simulated work may access the whole range.
  [[nodiscard]] bool is_accessible(void const* p, std::size_t bytes) const {
    return hold()->memory.accessible(p, bytes);
  }
  [[nodiscard]] sim_leaks leaks() const {
    detail::scoped_lock const lock(state_->mutex);
    auto& s = *state_;
    sim_leaks l;
    l.ranges = s.memory.ranges();
    l.maps = s.memory.maps();
    l.blocks = s.memory.host_blocks();
    for (int d = 0; d < s.options.devices; ++d) {
      auto const& u = s.memory.usage(d);
      l.handles += u.handles;
      l.blocks += u.blocks - s.async[static_cast<std::size_t>(d)].cached();
    }
    l.streams = s.streams.streams();
    l.events = s.streams.events();
    return l;
  }

  // Counters.

  [[nodiscard]] sim_calls calls() const { return hold()->calls; }
  void reset_calls() const { hold()->calls = {}; }
  /// Number of enqueued operations that have not ended.
  [[nodiscard]] std::size_t pending() const { return hold()->streams.pending(); }

  // The order checker; without sim_checks::stream_order these do nothing.

  /// Records that bytes have a new owner, which first uses them on `stream`. On a captured stream, each
  /// replay repeats this and freed() at their place in the graph, and the graph may use the bytes until eager
  /// work gets them.
  void allocated(void const* p, std::size_t bytes, stream_ref stream) const {
    change_owner(stream, detail::sim_node::kind::allocated, p, bytes);
  }
  /// Records that the owner has finished with bytes in the order of `stream`.
  void freed(void const* p, std::size_t bytes, stream_ref stream) const {
    change_owner(stream, detail::sim_node::kind::freed, p, bytes);
  }
  /// Records that the memory of graphs holds bytes: only captures may allocate them, and replays may use them
  /// although they are free. `holder`, unless null, names that memory; bytes cannot have two.
  void graph_holds(void const* p, std::size_t bytes, void const* holder = nullptr) const {
    if (state_->order) hold()->order->graph_holds(state_->memory, p, bytes, holder);
  }
  /// Records that bytes that graphs held have new physical memory: the pool has slept, or was compacted.
  void graph_holds_again(void const* p, std::size_t bytes) const {
    if (state_->order) hold()->order->graph_holds_again(state_->memory, p, bytes);
  }
  /// Records that graphs hold bytes, whose physical memory may have other addresses, too: graph_released() of
  /// those changes nothing until this is called again with false.
  void graph_stays(void const* p, std::size_t bytes, bool stays) const {
    if (state_->order) hold()->order->graph_stays(state_->memory, p, bytes, stays);
  }
  /// Records that no graph holds the bytes any more: replays must not access them.
  void graph_released(void const* p, std::size_t bytes) const {
    if (state_->order) hold()->order->graph_released(state_->memory, p, bytes);
  }
  /// Under sim_checks::each_thread: passes the calling thread's knowledge to threads that observe the token
  /// later, like the release and acquire of a mutex.
  void publish(void const* token) const {
    if (state_->order) hold()->streams.publish(token);
  }
  void observe(void const* token) const {
    if (state_->order) hold()->streams.observe(token);
  }
  /// Returns true if the next work on `second` is ordered after all work enqueued on `first`. Needs the
  /// checker.
  [[nodiscard]] bool is_ordered(stream_ref first, stream_ref second) const {
    detail::scoped_lock const lock(state_->mutex);
    auto* const a = state_->streams.find(first, 0);
    auto* const b = state_->streams.find(second, 0);
    return state_->order && a != nullptr && b != nullptr && state_->streams.is_ordered(*a, *b);
  }
  /// Findings of the checker so far, in order; empty if there are none.
  [[nodiscard]] std::vector<std::string> findings() const {
    return state_->order ? hold()->order->findings() : std::vector<std::string>{};
  }

  // The memory tool; without sim_tool::attached these return nothing.

  /// Findings of the tool so far, in order.
  [[nodiscard]] std::vector<std::string> tool_findings() const {
    return state_->memory.tool() != nullptr ? hold()->memory.tool()->findings() : std::vector<std::string>{};
  }
  [[nodiscard]] sim_tool_counts tool_counts() const {
    detail::scoped_lock const lock(state_->mutex);
    auto const* const tool = state_->memory.tool();
    if (tool == nullptr) return {};
    return {tool->calls(), tool->heaps(), tool->regions(), tool->region_bytes()};
  }

  friend bool operator==(sim_machine const& a, sim_machine const& b) noexcept { return a.state_ == b.state_; }

 private:
  friend class sim_driver;

  /// The machine's state, whose lock it holds.
  class locked {
   public:
    explicit locked(detail::sim_state& state) : lock_(state.mutex), state_(state) {}
    detail::sim_state* operator->() const noexcept { return &state_; }

   private:
    detail::scoped_lock<detail::fork_mutex> lock_;
    detail::sim_state& state_;
  };
  /// For one statement: `hold()->streams`. What the constructor of the state has set needs no lock.
  [[nodiscard]] locked hold() const { return locked(*state_); }
  void set_faults(detail::sim_code code) const {
    detail::scoped_lock const lock(state_->mutex);
    for (int d = 0; d < state_->options.devices; ++d) state_->streams.fault(d) = code;
  }

  [[nodiscard]] bool has(device_id device) const noexcept {
    return device.value >= 0 && device.value < state_->options.devices;
  }
  status launch_on(int device, stream_ref stream, sim_nanoseconds duration,
                   std::shared_ptr<detail::sim_work> work) const {
    return launch_by(device, stream, [&](detail::sim_stream& s) {
      return state_->streams.enqueue(s, duration, std::move(work), detail::sim_streams::caller::user);
    });
  }
  status launch_on(int device, stream_ref stream, sim_graph const& graph) const {
    return launch_by(device, stream, [&](detail::sim_stream& s) {
      return graph.exec_ ? state_->streams.launch(s, *graph.exec_) : detail::sim_code::invalid_value;
    });
  }
  template <class Enqueue>
  status launch_by(int device, stream_ref stream, Enqueue const& enqueue) const {
    return on_stream(device, stream, "launch", [&](detail::sim_stream& s) {
      state_->streams.advance(state_->options.costs.launch);
      state_->has_context[static_cast<std::size_t>(s.device)] = true;
      detail::sim_code const broken = state_->streams.fault(s.device);
      return broken == detail::sim_code::ok ? enqueue(s) : broken;
    });
  }
  status begin_capture_on(int device, stream_ref stream) const {
    return on_stream(device, stream, "begin_capture",
                     [&](detail::sim_stream& s) { return state_->streams.begin_capture(s); });
  }
  status end_capture_on(int device, stream_ref stream, sim_graph& graph) const {
    return on_stream(device, stream, "end_capture",
                     [&](detail::sim_stream& s) { return state_->streams.end_capture(s, graph.exec_); });
  }
  /// Calls `f` with a stream; a default stream is that of `device`.
  template <class F>
  status on_stream(int device, stream_ref stream, char const* call, F const& f) const {
    detail::scoped_lock const lock(state_->mutex);
    if (!has(device)) return detail::sim_status(detail::sim_code::invalid_device, call);
    auto* const s = state_->streams.find(stream, device);
    return detail::sim_status(s == nullptr ? detail::sim_code::invalid_handle : f(*s), call);
  }
  void change_owner(stream_ref stream, detail::sim_node::kind what, void const* p, std::size_t bytes) const {
    detail::scoped_lock const lock(state_->mutex);
    if (!state_->order) return;
    // Memory changes owners even if the stream was destroyed or its handle was reused.
    auto* const s = state_->streams.find(stream, 0);
    bool const known =
        s != nullptr && (stream.id() == stream_ref::unknown_id || stream.id() == s->id || s->is_default);
    if (known) return state_->streams.change_owner(*s, what, p, bytes);
    state_->streams.change_owner(state_->order->agent_of("stream", stream.id()), what, p, bytes);
  }

  std::shared_ptr<detail::sim_state> state_;
};

}  // namespace TARN_NAMESPACE
