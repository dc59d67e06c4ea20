// SPDX-License-Identifier: Apache-2.0
#pragma once
// One stream, one event and one device of the simulated GPU: what each has to wait for.

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "tarn/core/stream.hpp"
#include "tarn/driver/sim/sim_capture.hpp"
#include "tarn/driver/sim/sim_cost.hpp"
#include "tarn/driver/sim/sim_options.hpp"
#include "tarn/driver/sim/sim_order.hpp"
#include "tarn/driver/sim/sim_tsan.hpp"

namespace TARN_NAMESPACE::detail {

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

}  // namespace TARN_NAMESPACE::detail
