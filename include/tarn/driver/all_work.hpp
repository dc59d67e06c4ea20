// SPDX-License-Identifier: Apache-2.0
#pragma once
// Marks and waits for all work: of one device, or of each device in use where it is unknown on which one the
// work runs.

#include "tarn/core/error.hpp"
#include "tarn/core/stream.hpp"
#include "tarn/driver/capture_gate.hpp"
#include "tarn/driver/driver.hpp"
#include "tarn/driver/stream_device.hpp"
#include "tarn/driver/stream_life.hpp"

namespace TARN_NAMESPACE::detail {

/// Marks all work of the driver's device, unless that would invalidate a capture.
template <class Driver>
status record_all_work(Driver const& driver, event_handle event) noexcept {
  capture_gate::passage const open;
  return open ? driver.record_all(event) : refused_for_capture("record_all");
}

/// Makes a stream of the driver's device wait for what `mark(there, event)` marks on the device of `there`,
/// unless that is complete already. @param later  finds the stream; called only if there is something to wait
/// for
template <stream_driver Driver, class Mark, class Later>
status order_behind_device(Driver const& driver, Driver const& there, Mark const& mark,
                           Later const& later) noexcept {
  event_handle event = nullptr;
  status s = there.create_event(event);
  if (!s.ok()) return s;
  s = mark(there, event);
  if (s.ok() && !there.query_event(event).ok()) {
    stream_ref waits;
    s = later(waits);
    if (s.ok()) s = driver.wait_event(waits, event);
  }
  (void)there.destroy_event(event);
  return s;
}
/// Orders later work of `later` behind what `mark(there, event)` marks on each device in use. Returns the
/// first failure; some devices may be waited for then.
template <stream_driver Driver, class Mark>
status order_behind_devices(Driver const& driver, stream_ref later, Mark const& mark) noexcept {
  status result;
  for_each_device_in_use(driver, [&](Driver const& there) {
    if (result.ok())
      result = order_behind_device(driver, there, mark, [later](stream_ref& waits) {
        waits = later;
        return status{};
      });
  });
  return result;
}
/// Records an event of the driver's own device behind what `mark(there, event)` marks on each device in use.
/// Where work of another device is not complete, a temporary stream joins the devices; the event is then
/// complete some microseconds after all work is.
template <stream_driver Driver, class Mark>
status record_behind_devices(Driver const& driver, event_handle event, Mark const& mark) noexcept {
  stream_ref joins;
  bool has_joined = false;
  status result;
  auto const later = [&](stream_ref& waits) {
    status const made = has_joined ? status{} : driver.create_stream(joins);
    has_joined = made.ok();
    waits = joins;
    return made;
  };
  for_each_device_in_use(driver, [&](Driver const& there) {
    if (result.ok() && there.device() != driver.device())
      result = order_behind_device(driver, there, mark, later);
  });
  if (!has_joined) return result.ok() ? mark(driver, event) : result;
  if (result.ok()) result = order_behind_device(driver, driver, mark, later);
  if (result.ok()) result = driver.record_event(event, joins);
  (void)driver.destroy_stream(joins);
  return result;
}
/// Marks all work of each device in use with an event of the driver's own device.
template <stream_driver Driver>
status record_all_work_in_use(Driver const& driver, event_handle event) noexcept {
  return record_behind_devices(
      driver, event, [](Driver const& there, event_handle e) noexcept { return record_all_work(there, e); });
}

/// Waits on the host for all work of each device in use, unless that would invalidate a capture. If a driver
/// cannot mark that work, a capture that begins meanwhile waits, too. Of several failures, returns that of a
/// capture.
template <class Driver>
status wait_for_all_work(Driver const& driver) noexcept {
  if (capture_gate::has_captures()) return refused_for_capture("synchronize_device");
  status result;
  for_each_device_in_use(driver, [&](Driver const& there) {
    status s = refused_for_capture("synchronize_device");
    if constexpr (marks_all_work<Driver>) {
      event_handle event = nullptr;
      s = there.create_event(event);
      if (s.ok()) s = record_all_work(there, event);
      if (s.ok()) s = there.synchronize_event(event);
      if (event != nullptr) (void)there.destroy_event(event);
    }
    if (!s.ok()) {
      capture_gate::passage const open;
      s = open ? there.synchronize_device() : refused_for_capture("synchronize_device");
    }
    if (result.ok() || is_capture_error(s)) result = s;  // a capture is over soon, so callers ask for it
  });
  return result;
}

/// Whether work that was to be waited for may still run, since the wait failed: what it uses must not be
/// freed or accessed. Once the driver has unloaded no work runs.
[[nodiscard]] constexpr bool may_run(status const& waited) noexcept {
  return !waited.ok() && waited.kind != failure::unloading;
}

/// Waits as above, but while a capture is open waits for its end first, up to 10 s. Returns the refusal if
/// one is open still, or if the caller's own thread may have it open.
template <class Driver>
status wait_past_captures(Driver const& driver) noexcept {
  status s = wait_for_all_work(driver);
  for (int tries = 0; tries < 8 && is_capture_error(s); ++tries) {  // the next capture may have begun
    if (capture_gate::may_be_mine() || !capture_gate::wait_for_captures()) break;
    s = wait_for_all_work(driver);
  }
  return s;
}
/// Waits on the host for the work of a stream that exists and is not captured: running work must not lose its
/// memory. If the stream cannot be synchronised, waits for all work, as above. Returns the stream's failure.
template <stream_driver Driver>
status wait_for_stream(Driver const& driver, stream_ref stream) noexcept {
  status const s = driver.synchronize_stream(stream);
  if (!s.ok()) (void)wait_past_captures(driver);
  return s;
}
/// The same; returns the failure of the last wait, and success if one succeeded.
template <stream_driver Driver>
[[nodiscard]] status finish_stream(Driver const& driver, stream_ref stream) noexcept {
  status const s = driver.synchronize_stream(stream);
  return may_run(s) ? wait_past_captures(driver) : s;
}
/// Waits on the host for the work of a stream on which a block is freed; it may be destroyed. A default
/// stream of memory that the host can access is that of each device in use. Does not wait while the stream is
/// captured, and returns a capture's refusal then and where a capture forbids to wait. If the stream cannot
/// be synchronised, waits for all work.
template <stream_driver Driver>
[[nodiscard]] status wait_for_last_use(Driver const& driver, stream_ref stream,
                                       default_streams which) noexcept {
  if (life_of(driver, stream) != stream_life::alive) return wait_past_captures(driver);
  auto const wait = [](Driver const& there, stream_ref on) noexcept {
    return is_capturing(there, on) ? refused_for_capture("synchronize_stream") : finish_stream(there, on);
  };
  if (which != default_streams::of_current_device || !is_default_stream(stream)) return wait(driver, stream);
  if constexpr (multi_device_driver<Driver>) driver.devices_of_streams().use(driver.named_device());
  status result;
  for_each_device_in_use(driver, [&](Driver const& there) {
    status const s = wait(there, default_stream_on(there, device_of(driver, stream), stream));
    if (result.ok() || s.kind == failure::unloading) result = s;
  });
  return result;
}
/// Orders later work of `later` after the work on a stream that may be destroyed: after all work of each
/// device in use. Waits on the host if the driver cannot mark that work. Fails if a capture forbids it.
template <stream_driver Driver>
status order_behind_lost(Driver const& driver, stream_ref later) noexcept {
  if constexpr (marks_all_work<Driver>) {
    auto const mark = [](Driver const& there, event_handle e) noexcept { return record_all_work(there, e); };
    if (status const s = order_behind_devices(driver, later, mark); s.ok()) return s;
  }
  return wait_for_all_work(driver);
}
/// Calls give(stream) with a temporary stream that is ordered behind all work of each device in use: for a
/// block whose stream may be destroyed. Where that fails, as while this thread's capture forbids it, the
/// block is never given back; nor is it once the driver has unloaded.
template <stream_driver Driver, class Give>
status free_behind_lost(Driver const& driver, Give const& give) noexcept {
  own_stream const own(driver);
  status s = order_behind_lost(driver, own.get());
  if (is_capture_error(s)) s = wait_past_captures(driver);
  return s.ok() ? give(own.get()) : s;
}
/// Chooses a stream for accessing memory that is freed on `stream`: `stream` itself, or, if it may be
/// destroyed or that of any device, the default stream after waiting for the work on it. Returns false if
/// that work may still run, as where a capture forbids to wait: the memory must not be accessed.
template <stream_driver Driver>
[[nodiscard]] bool make_usable(Driver const& driver, stream_ref& stream, default_streams which) noexcept {
  if (life_of(driver, stream) == stream_life::alive && !is_of_any_device(driver, stream, which)) return true;
  stream = {};
  return !may_run(wait_for_all_work(driver));
}

}  // namespace TARN_NAMESPACE::detail
