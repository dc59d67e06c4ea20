// SPDX-License-Identifier: Apache-2.0
#pragma once
// The devices, streams and events of a simulated machine, and their handles.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tarn/core/stream.hpp"
#include "tarn/core/thread_tag.hpp"
#include "tarn/driver/driver.hpp"
#include "tarn/driver/sim/sim_capture.hpp"
#include "tarn/driver/sim/sim_cost.hpp"
#include "tarn/driver/sim/sim_options.hpp"
#include "tarn/driver/sim/sim_order.hpp"
#include "tarn/driver/sim/sim_status.hpp"
#include "tarn/driver/sim/sim_tsan.hpp"

namespace TARN_NAMESPACE::detail {

// One stream, one event and one device of the simulated GPU: what each has to wait for.

/// How far device work runs beyond its nominal duration: a different schedule for each seed. See sim_options.
struct sim_schedule {
  sim_options const& options;
  std::uint64_t seed = options.seed;

  /// Returns a number below `most`, drawn from the seed (splitmix64).
  sim_nanoseconds draw(sim_nanoseconds most) noexcept {
    if (seed == 0 || most == 0) return 0;
    std::uint64_t z = (seed += 0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return (z ^ (z >> 31)) % most;
  }
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
  sim_leaves leaves;  ///< in the capture
  sim_agent agent = 0;
  [[no_unique_address]] sim_past past;  ///< work that new work is ordered after
  [[no_unique_address]] sim_context context;

  void leave_capture() noexcept {
    capture.reset();
    leaves.clear();
  }
};

struct sim_event {
  std::uint64_t serial = 0;  ///< of a shared event, never reused; 0: not shared
  int device = 0;
  sim_nanoseconds time = 0;  ///< when the event is reached; 0: never recorded
  std::shared_ptr<sim_capture> capture;
  sim_leaves leaves;  ///< of the stream, if it was recorded in a capture
  sim_clock clock;
  [[no_unique_address]] sim_past past;
};

/// Extra time before an operation on a stream ends.
[[nodiscard]] inline sim_nanoseconds delay_on(sim_stream const& stream, sim_schedule& schedule) noexcept {
  return schedule.draw(schedule.options.jitter) +
         (stream.slow ? schedule.draw(schedule.options.slowness) : 0);
}

/// The default streams of a device, and what all its streams have done, destroyed ones included.
struct sim_device {
  sim_stream legacy;
  std::unordered_map<std::uint64_t, sim_stream> per_thread;
  sim_nanoseconds tail = 0;           ///< of all streams
  sim_nanoseconds blocking_tail = 0;  ///< of those that the legacy stream waits for
  sim_clock clock;                    ///< of all streams
  sim_clock blocking_clock;
  [[no_unique_address]] sim_past past;  ///< of all streams
  [[no_unique_address]] sim_past blocking_past;

  /// Returns when the stream could start work enqueued now. Passes to it the knowledge of the streams that
  /// the rules of the legacy default stream make it wait for.
  sim_nanoseconds start_on(sim_stream& stream, sim_nanoseconds now, sim_order* order) const {
    sim_nanoseconds start = stream.tail < now ? now : stream.tail;
    bool const blocking = stream.blocking == sim_blocking::with_legacy;
    sim_nanoseconds const other = stream.legacy ? blocking_tail : blocking ? legacy.tail : 0;
    if (start < other) start = other;
    if (stream.legacy) {
      stream.past.join(blocking_past);
      if (order != nullptr) order->learn(stream.agent, blocking_clock);
    } else if (blocking) {
      stream.past.join(legacy.past);
      if (order != nullptr) order->learn(stream.agent, order->clock(legacy.agent));
    }
    return start;
  }
  void finish_on(sim_stream& stream, sim_nanoseconds end, sim_order const* order) {
    stream.tail = end;
    if (tail < end) tail = end;
    if (stream.blocking == sim_blocking::with_legacy && blocking_tail < end) blocking_tail = end;
    share(stream, order);
  }
  /// Passes what a stream knows to those that wait for the whole device.
  void share(sim_stream const& stream, sim_order const* order) {
    bool const blocking = stream.blocking == sim_blocking::with_legacy;
    past.join(stream.past);
    if (blocking) blocking_past.join(stream.past);
    if (order == nullptr) return;
    clock.join(order->clock(stream.agent));
    if (blocking) blocking_clock.join(order->clock(stream.agent));
  }
};

/// Callers hold the machine's lock.
class sim_stream_table {
 public:
  /// Returns the stream of a handle; a default handle means the given device's, or that of the device which
  /// its identity names. Null if there is none. A per-thread default stream of another thread cannot be
  /// reached by its handle: the legacy default stream, which is ordered with it, is returned instead (as in
  /// cuda_driver).
  sim_stream* find(stream_ref stream, int device) {
    auto const handle = reinterpret_cast<std::uintptr_t>(stream.handle());
    if (handle <= per_thread_handle && stream.id() != stream_ref::unknown_id)
      device = device_of_default(stream.id(), device);
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

  /// Whether a stream that was created exists, by its handle and identity.
  [[nodiscard]] bool has(stream_ref stream) const noexcept {
    auto const it = streams_.find(reinterpret_cast<std::uintptr_t>(stream.handle()));
    return it != streams_.end() && it->second.id == stream.id();
  }

  /// Handles are reused, the latest freed first, as drivers do; identities are never reused.
  void create_stream(int device, sim_blocking blocking, stream_ref& stream) {
    stream_id const id = next_id_++;
    std::uintptr_t const handle = take_handle(free_streams_, next_stream_, stream_handles);
    streams_.emplace(handle, make_stream(device, blocking, id));
    stream = stream_ref::from(reinterpret_cast<void*>(handle), id);
  }

  void create_event(int device, event_handle& event) {
    auto made = std::make_shared<sim_event>();
    made->device = device;
    event = add_event(std::move(made));
  }
  /// Creates an event that open_event() finds by the serial number returned.
  std::uint64_t create_shared_event(int device, event_handle& event) {
    create_event(device, event);
    return find_event(event)->serial = ++last_serial_;
  }
  /// A second handle of a shared event, which lives until the last of its handles is destroyed.
  sim_code open_event(std::uint64_t serial, event_handle& event) {
    for (auto const& [of, shared] : events_) {
      if (serial == 0 || shared->serial != serial) continue;
      event = add_event(shared);
      return sim_code::ok;
    }
    return sim_code::invalid_value;
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
    return it == events_.end() ? nullptr : it->second.get();
  }

  [[nodiscard]] std::size_t streams() const noexcept { return streams_.size(); }
  [[nodiscard]] std::size_t events() const noexcept { return events_.size(); }

 protected:
  sim_stream_table(sim_options const& options, sim_order* order)
      : devices_(static_cast<std::size_t>(options.devices)),
        schedule_{options},
        order_(order),
        machine_(next_machine.fetch_add(1, std::memory_order_relaxed)) {
    for (int d = 0; d < options.devices; ++d) {
      sim_stream& legacy = devices_[static_cast<std::size_t>(d)].legacy;
      // Fixed identities below all others, from 1: 0 means unknown.
      legacy = make_stream(d, sim_blocking::with_legacy, first_legacy_id + static_cast<stream_id>(d));
      legacy.legacy = legacy.is_default = true;
    }
  }

  /// Work already enqueued continues; default streams are not destroyed.
  /// @param capture  the capture that the stream takes part in, if any
  /// @param id       the identity of the stream
  sim_code take_stream(stream_ref stream, std::shared_ptr<sim_capture>& capture, stream_id& id) {
    if (reinterpret_cast<std::uintptr_t>(stream.handle()) <= per_thread_handle) return sim_code::ok;
    auto const it = streams_.find(reinterpret_cast<std::uintptr_t>(stream.handle()));
    if (it == streams_.end()) return sim_code::invalid_handle;
    capture = std::move(it->second.capture);
    id = it->second.id;
    free_streams_.push_back(it->first);
    streams_.erase(it);
    return sim_code::ok;
  }
  [[nodiscard]] stream_id new_id() noexcept { return next_id_++; }

  template <class Visit>
  void each_stream(int device, Visit const& visit) {
    auto& d = devices_[static_cast<std::size_t>(device)];
    visit(d.legacy);
    for (auto& [thread, s] : d.per_thread) visit(s);
    for (auto& [handle, s] : streams_) {
      if (s.device == device) visit(s);
    }
  }

  std::vector<sim_device> devices_;
  sim_schedule schedule_;
  sim_order* order_;

 private:
  static constexpr std::uintptr_t legacy_handle = 1;      // cudaStreamLegacy
  static constexpr std::uintptr_t per_thread_handle = 2;  // cudaStreamPerThread
  static constexpr stream_id first_legacy_id = 1;
  static constexpr std::uintptr_t stream_handles = 0x51000000;
  static constexpr std::uintptr_t event_handles = 0x52000000;

  /// The device of a default stream by its identity; `otherwise` if it is none's.
  [[nodiscard]] int device_of_default(stream_id id, int otherwise) const noexcept {
    for (std::size_t d = 0; d < devices_.size(); ++d) {
      if (devices_[d].legacy.id == id) return static_cast<int>(d);
      for (auto const& [thread, s] : devices_[d].per_thread) {
        if (s.id == id) return static_cast<int>(d);
      }
    }
    return otherwise;
  }
  sim_stream& own_default_stream(int device) {
    auto& streams_here = devices_[static_cast<std::size_t>(device)].per_thread;
    auto const thread = this_thread_number();
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
    unsigned const slow = schedule_.options.slow_streams;
    if (slow != 0) s.slow = schedule_.draw(1000) < slow && schedule_.seed != 0;
    if (order_ != nullptr) s.agent = order_->add_agent("stream", id);
    return s;
  }
  [[nodiscard]] event_handle add_event(std::shared_ptr<sim_event> event) {
    std::uintptr_t const handle = take_handle(free_events_, next_event_, event_handles);
    events_[handle] = std::move(event);
    return reinterpret_cast<void*>(handle);
  }
  std::uintptr_t take_handle(std::vector<std::uintptr_t>& free, std::uintptr_t& next,
                             std::uintptr_t base) const {
    if (free.empty()) return (machine_ % 0x8000 + 1) << 32 | (base + 16 * next++);
    std::uintptr_t const handle = free.back();
    free.pop_back();
    return handle;
  }

  /// Numbers the machines, so that handles of one machine are invalid on another.
  inline static std::atomic<std::uintptr_t> next_machine{0};

  std::uintptr_t machine_;
  std::unordered_map<std::uintptr_t, sim_stream> streams_;
  std::unordered_map<std::uintptr_t, std::shared_ptr<sim_event>> events_;
  std::uint64_t last_serial_ = 0;
  std::vector<std::uintptr_t> free_streams_, free_events_;
  std::uintptr_t next_stream_ = 0, next_event_ = 0;
  stream_id next_id_ = 4096;  // above every device's legacy stream
};

}  // namespace TARN_NAMESPACE::detail
