// SPDX-License-Identifier: Apache-2.0
#pragma once
// Marks a stream's work with an event, without knowing whether the stream still exists. CUDA crashes if it is
// queried about a destroyed stream's handle (cudaStreamGetId and similar calls end in a segmentation fault).
// If the driver can mark the whole device's work, that is used instead: it covers more than needed, and uses
// no stream's handle.

#include <cstdint>

#include "tarn/driver/all_work.hpp"
#include "tarn/driver/capture_gate.hpp"
#include "tarn/driver/captured_handles.hpp"
#include "tarn/driver/driver.hpp"
#include "tarn/driver/stream_device.hpp"
#include "tarn/driver/stream_life.hpp"
#include "tarn/pool/arena/stream_table.hpp"

namespace TARN_NAMESPACE::detail {

enum class mark_result : std::uint8_t {
  marked,    ///< the event covers the stream's work so far
  captured,  ///< not now: a graph is being captured
  refused,   ///< not now: the driver failed
  gone       ///< the stream was destroyed, or may be: only waiting for the whole device helps
};

/// Records an event on a stream. The capture of a stream may begin at any moment once its scope is open, also
/// in another pool, and the event would be part of the graph. So a scope that opens waits for the calls here,
/// and afterwards its stream is refused, and every default stream, whose handle says nothing.
template <stream_driver Driver>
mark_result mark_stream(Driver const& driver, event_handle event, stream_ref stream) noexcept {
  capture_gate::passage const none_begins;
  if (!none_begins &&
      (is_default_stream(stream) || captured_handles::find(stream.handle()) != stream_ref::unknown_id))
    return mark_result::captured;
  bool capturing = false;
  if (!driver.is_capturing(stream, capturing).ok()) return mark_result::refused;
  if (capturing) return mark_result::captured;
  return driver.record_event(event, stream).ok() ? mark_result::marked : mark_result::refused;
}

/// Marks what a default stream refers to where it may be any device's: the default stream of each device in
/// use. Refused while a scope is open, as a default stream is by mark_stream().
template <stream_driver Driver>
mark_result mark_default_streams(Driver const& driver, event_handle event, stream_ref stream) noexcept {
  capture_gate::passage const none_begins;
  if (!none_begins) return mark_result::captured;
  device_id const own = device_of(driver, stream);
  status const s = record_behind_devices(driver, event, [&](Driver const& there, event_handle e) noexcept {
    stream_ref const of_there = default_stream_on(there, own, stream);
    bool capturing = false;
    if (status const asked = there.is_capturing(of_there, capturing); !asked.ok()) return asked;
    return capturing ? refused_for_capture("record_event") : there.record_event(e, of_there);
  });
  if (s.ok()) return mark_result::marked;
  return is_capture_error(s) ? mark_result::captured : mark_result::refused;
}

/// Marks the work of `stream`, which carries its identity, with an event of the device that device_of_marks()
/// names. At most three driver calls; where the device is unknown, at most six for each device in use.
/// @param device    where the stream lives; unknown_device: the work of each device in use is marked
template <stream_driver Driver>
mark_result mark_work(Driver const& driver, device_id device, event_handle event,
                      stream_ref stream) noexcept {
  if (is_default_stream(stream)) {
    if (device == unknown_device) return mark_default_streams(driver, event, stream);
    return mark_stream(driver_on(driver, device), event, stream);
  }
  Driver const there = driver_on(driver, device);
  if constexpr (marks_all_work<Driver>) {
    status const s =
        device == unknown_device ? record_all_work_in_use(driver, event) : record_all_work(there, event);
    if (s.ok()) return mark_result::marked;
    if (is_capture_error(s)) return mark_result::captured;
    return s.kind == failure::unsupported ? mark_result::gone : mark_result::refused;
  } else {
    if (device == unknown_device) return mark_result::gone;
    {
      // A captured stream cannot be identified. A capture that begins meanwhile waits for these two calls.
      capture_gate::passage const none_begins;
      stream_ref const bare = stream_ref::from(stream.handle());
      bool capturing = false;
      if (there.is_capturing(bare, capturing).ok() && capturing) return mark_result::captured;
      stream_id now = 0;
      if (!there.identify(bare, now).ok() || now != stream.id()) return mark_result::gone;
    }
    return mark_stream(there, event, stream);
  }
}

/// The device whose events mark_work() takes for a stream, which is the driver's own where the stream's is
/// unknown.
template <stream_driver Driver>
[[nodiscard]] device_id device_of_marks(Driver const& driver, device_id device) noexcept {
  return device == unknown_device ? driver.device() : device;
}

/// The device whose work must be marked for what was freed or used on a stream; unknown_device: each device
/// in use. No driver call.
template <stream_driver Driver>
[[nodiscard]] device_id device_to_mark(Driver const& driver, stream_ref stream,
                                       default_streams which) noexcept {
  return is_of_any_device(driver, stream, which) ? unknown_device : device_of(driver, stream);
}

}  // namespace TARN_NAMESPACE::detail
