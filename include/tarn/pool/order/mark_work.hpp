// SPDX-License-Identifier: Apache-2.0
#pragma once
// Marks a stream's work with an event, without knowing whether the stream still exists. CUDA crashes if it is queried about a
// destroyed stream's handle (cudaStreamGetId and similar calls end in a segmentation fault). If the driver can mark the whole
// device's work, that is used instead: it covers more than needed, and uses no stream's handle.

#include <cstdint>

#include "tarn/driver/capture_gate.hpp"
#include "tarn/driver/driver.hpp"
#include "tarn/pool/arena/stream_order.hpp"

namespace tarn::detail {

enum class mark_result : std::uint8_t {
  marked,   ///< the event covers the stream's work so far
  refused,  ///< not now: a graph is being captured, or the driver failed
  gone      ///< the stream was destroyed, or may be: only waiting for the whole device helps
};

/// Marks the work of `stream`, which carries its identity. At most three driver calls.
/// @param captured  set to whether the mark was refused because of a capture
template <stream_driver Driver>
mark_result mark_work(Driver const& driver, event_handle event, stream_ref stream, bool& captured) noexcept {
  bool capturing = false;
  captured = false;
  if (!is_default_stream(stream)) {
    if constexpr (marks_all_work<Driver>) {
      status const s = record_all_work(driver, event);
      if (s.ok()) return mark_result::marked;
      captured = is_of_capture(s);
      return s.kind == failure::unsupported ? mark_result::gone : mark_result::refused;
    } else {
      // A captured stream cannot be identified. A capture that begins meanwhile waits for these two calls.
      capture_gate::passage const none_begins;
      if (driver.is_capturing(stream_ref::from(stream.handle()), capturing).ok() && capturing) {
        captured = true;
        return mark_result::refused;
      }
      stream_id now = 0;
      bool const same = driver.identify(stream_ref::from(stream.handle()), now).ok() && now == stream.id();
      if (!same) return mark_result::gone;
    }
  }
  bool const recorded =
      driver.is_capturing(stream, capturing).ok() && !capturing && driver.record_event(event, stream).ok();
  captured = !recorded && capturing;
  return recorded ? mark_result::marked : mark_result::refused;
}
template <stream_driver Driver>
mark_result mark_work(Driver const& driver, event_handle event, stream_ref stream) noexcept {
  bool captured = false;
  return mark_work(driver, event, stream, captured);
}

}  // namespace tarn::detail
