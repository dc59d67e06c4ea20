// SPDX-License-Identifier: Apache-2.0
#pragma once
// The device of a stream. Every device may use pinned, managed and shared memory, so a block may be used and
// freed on a stream of another device than its pool's. Events belong to a device: such a stream is marked and
// waited for through a driver of its own device.

#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>

#include "tarn/core/error.hpp"
#include "tarn/core/message.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/core/stream.hpp"
#include "tarn/driver/capture_gate.hpp"
#include "tarn/driver/driver.hpp"
#include "tarn/driver/stream_life.hpp"

namespace TARN_NAMESPACE::detail {

/// No device: where a stream lives was not learned.
inline constexpr device_id unknown_device{-1};

/// Where streams live, by their identities, which are never reused, and the devices in use: those whose
/// drivers were called or whose streams were named. Lock-free and without allocation. One identity in 2,048
/// displaces another; a stream whose device is then unknown counts as one of every device in use, which only
/// costs time.
class stream_devices {
 public:
  void note(stream_id id, device_id device) noexcept {
    use(device);
    if (id >= too_large || device.value < 0 || device.value >= most_devices) return;
    all_[id % places].store(id << device_bits | static_cast<std::uint64_t>(device.value),
                            std::memory_order_relaxed);
  }
  [[nodiscard]] device_id find(stream_id id) const noexcept {
    std::uint64_t const noted = all_[id % places].load(std::memory_order_relaxed);
    if (id == stream_ref::unknown_id || id >= too_large || noted >> device_bits != id) return unknown_device;
    return device_id{static_cast<int>(noted & (most_devices - 1))};
  }

  void use(device_id device) noexcept {
    if (device.value < 0 || device.value >= most_devices) return;
    std::atomic<std::uint64_t>& word = in_use_[device.value / 64];
    std::uint64_t const bit = std::uint64_t{1} << (device.value % 64);
    if ((word.load(std::memory_order_relaxed) & bit) == 0) word.fetch_or(bit, std::memory_order_relaxed);
  }
  /// Calls f(device) for each device in use.
  template <class F>
  void for_each_in_use(F const& f) const {
    for (int word = 0; word < most_devices / 64; ++word) {
      std::uint64_t bits = in_use_[word].load(std::memory_order_relaxed);
      for (int d = word * 64; bits != 0; ++d, bits >>= 1) {
        if ((bits & 1) != 0) f(device_id{d});
      }
    }
  }

 private:
  static constexpr int device_bits = 8;
  static constexpr int most_devices = 256;
  static constexpr std::size_t places = 2048;  // 16 KiB, committed only where used
  /// Larger identities are those of CUDA's default streams, which name their device, and of captures.
  static constexpr stream_id too_large = stream_id{1} << (64 - device_bits);

  std::atomic<std::uint64_t> all_[places]{};
  std::atomic<std::uint64_t> in_use_[most_devices / 64]{};
};

/// A driver of one of several devices. Drivers without these calls have one device, on which all streams
/// live.
template <class D>
concept multi_device_driver =
    stream_driver<D> && requires(D const& d, D& other, stream_ref stream, device_id device) {
      { d.known_device(stream) } noexcept -> std::same_as<device_id>;
      { d.ask_device(stream, device) } noexcept -> std::same_as<status>;
      { d.named_device() } noexcept -> std::same_as<device_id>;
      { d.devices_of_streams() } noexcept -> std::same_as<stream_devices&>;
      { other.retarget(device) } noexcept;
    };

/// The device of a stream, or unknown_device. No driver call.
template <stream_driver Driver>
[[nodiscard]] device_id device_of(Driver const& driver, stream_ref stream) noexcept {
  if constexpr (multi_device_driver<Driver>) {
    return driver.known_device(stream);
  } else {
    return driver.device();
  }
}

/// The driver of another device; `driver` itself where the device is unknown.
template <stream_driver Driver>
[[nodiscard]] Driver driver_on(Driver const& driver, device_id device) noexcept {
  Driver there = driver;
  if constexpr (multi_device_driver<Driver>) {
    if (device != unknown_device && device != driver.device()) there.retarget(device);
  }
  return there;
}

/// Finds where a stream lives that exists; unknown_device while it is captured, since the question would
/// invalidate the capture. If the stream has an identity, the driver is asked once: two calls at the first
/// time, none where there is one device.
template <stream_driver Driver>
device_id find_device(Driver const& driver, stream_ref stream) noexcept {
  device_id device = device_of(driver, stream);
  if constexpr (multi_device_driver<Driver>) {
    if (device != unknown_device) return device;
    capture_gate::passage const none_begins;
    stream_ref const bare = stream_ref::from(stream.handle());
    bool captured = false;
    bool const may_ask = driver.is_capturing(bare, captured).ok() && !captured;
    if (!may_ask || !driver.ask_device(bare, device).ok()) return unknown_device;
    if (stream.id() != stream_ref::unknown_id) driver.devices_of_streams().note(stream.id(), device);
  }
  return device;
}

/// The driver of the device where a stream lives that exists; `driver` itself where that cannot be found.
template <stream_driver Driver>
[[nodiscard]] Driver driver_of(Driver const& driver, stream_ref stream) noexcept {
  return driver_on(driver, find_device(driver, stream));
}

/// Whether the stream that a block is freed on is captured into a graph. It may be destroyed, so that the
/// answer is no where the driver must not be asked: about a stream that tarn did not create and whose
/// identity was noted earlier, and about the default stream of another thread, which no handle denotes. A
/// bare handle names a stream that exists. One driver call.
template <stream_driver Driver>
[[nodiscard]] bool is_freed_in_capture(Driver const& driver, stream_ref stream, stream_id id) noexcept {
  stream_ref const bare = stream_ref::from(stream.handle());
  if (is_legacy_stream<Driver>(stream)) return false;
  if (is_default_stream(stream)) {
    Driver const there = driver_on(driver, device_of(driver, stream_ref::from(stream.handle(), id)));
    stream_id now = id;
    return there.identify(bare, now).ok() && now == id && is_capturing(there, bare);
  }
  if (stream.id() == stream_ref::unknown_id) return is_capturing(driver, bare);
  if constexpr (requires { driver.has_made(stream); }) {
    return driver.has_made(stream) && is_capturing(driver, stream);
  } else if constexpr (!marks_all_work<Driver> && requires { driver.made_identity(stream.handle()); }) {
    return is_capturing(driver, bare) && driver.made_identity(stream.handle()) == id;
  } else {
    return false;
  }
}

/// The error for memory that the device of a stream cannot use.
template <stream_driver Driver>
[[nodiscard]] misuse unusable_from(stream_ref stream, Driver const& driver) noexcept {
  message<256> const text("the stream is of device ", find_device(driver, stream).value,
                          ", which cannot use this memory of device ", driver.device().value,
                          "; allocate on a stream of that device, or add accessible_from to its pages");
  return {misuse_kind::wrong_device, nullptr, text.view()};
}
/// Orders later work on `later` behind earlier work on `earlier`, on the device. Both streams must exist.
/// Each is passed with the driver of its device: an event is recorded only on the device it was created for,
/// but any device may wait for it.
template <stream_driver Driver>
status make_wait(Driver const& driver_of_later, stream_ref later, Driver const& driver_of_earlier,
                 stream_ref earlier) noexcept {
  event_handle event = nullptr;
  status s = driver_of_earlier.create_event(event);
  if (!s.ok()) return s;
  s = driver_of_earlier.record_event(event, earlier);
  if (s.ok()) s = driver_of_later.wait_event(later, event);
  (void)driver_of_earlier.destroy_event(event);
  return s;
}

/// Records an event of the driver's device behind the work of a stream of any device.
template <stream_driver Driver>
status record_in_order(Driver const& driver, event_handle event, stream_ref stream) noexcept {
  Driver const there = driver_of(driver, stream);
  if (there.device() == driver.device()) return driver.record_event(event, stream);
  own_stream const here(driver);
  status s = here.made();
  if (s.ok()) s = make_wait(driver, here.get(), there, stream);
  return s.ok() ? driver.record_event(event, here.get()) : s;
}
/// Calls enqueue(stream), which puts work of the driver's device on a stream of it, in the order of a stream
/// of any device. A stream of another device, which may not reach the memory, waits for a stream of the
/// driver's device; if that cannot be ordered, the host waits. After a failure the work is done or was not
/// enqueued.
template <stream_driver Driver, class Enqueue>
status enqueue_in_order(Driver const& driver, stream_ref stream, Enqueue const& enqueue) noexcept {
  Driver const there = driver_of(driver, stream);
  if (there.device() == driver.device()) return enqueue(stream);
  own_stream const here(driver);
  status s = here.made();
  if (s.ok()) s = make_wait(driver, here.get(), there, stream);
  if (s.ok()) s = enqueue(here.get());
  if (s.ok() && !make_wait(there, stream, driver, here.get()).ok()) s = driver.synchronize_stream(here.get());
  return s;
}
/// Sets bytes of the driver's memory in the order of a stream of any device.
template <stream_driver Driver>
status fill_in_order(Driver const& driver, stream_ref stream, void* p, unsigned char byte,
                     std::size_t bytes) noexcept {
  return enqueue_in_order(driver, stream, [&](stream_ref on) { return driver.fill(on, p, byte, bytes); });
}

/// Calls f(driver) for the driver's own device and for each other device in use.
template <stream_driver Driver, class F>
void for_each_device_in_use(Driver const& driver, F const& f) {
  f(driver);
  if constexpr (multi_device_driver<Driver>) {
    driver.devices_of_streams().for_each_in_use([&](device_id device) {
      if (device != driver.device()) f(driver_on(driver, device));
    });
  }
}
template <stream_driver Driver>
[[nodiscard]] bool uses_several_devices(Driver const& driver) noexcept {
  int count = 0;
  for_each_device_in_use(driver, [&](Driver const&) { ++count; });
  return count > 1;
}

/// Which device a default stream belongs to that a call names without an identity.
enum class default_streams : std::uint8_t {
  of_own_device,     ///< of the driver's, whichever is current
  of_current_device  ///< of the calling thread's current device, as CUDA has it: for memory that the host can
                     ///< access
};

/// Which device those belong to that a call on a resource names.
template <class Resource>
[[nodiscard]] constexpr default_streams default_streams_of() noexcept {
  if constexpr (requires { typename Resource::properties; }) {
    return has_property<Resource, host_accessible> ? default_streams::of_current_device
                                                   : default_streams::of_own_device;
  } else {
    return default_streams::of_own_device;
  }
}

/// Whether a stream may be that of any device: on memory that the host can access, programs name one handle
/// for the default streams of all of them. No driver call.
template <stream_driver Driver>
[[nodiscard]] bool is_of_any_device(Driver const& driver, stream_ref stream, default_streams which) noexcept {
  return which == default_streams::of_current_device && is_default_stream(stream) &&
         uses_several_devices(driver);
}

/// What a default stream that may be that of any device is on the device of `there`: itself on its own; on
/// another one the legacy stream, which is ordered with every blocking stream there.
/// @param own  the device that its identity names
template <stream_driver Driver>
[[nodiscard]] stream_ref default_stream_on(Driver const& there, device_id own, stream_ref stream) noexcept {
  return there.device() == own ? stream : stream_ref::from(reinterpret_cast<void*>(std::uintptr_t{1}));
}

/// The identity of the stream that a call names. At most one driver call, and one question for the current
/// device.
template <default_streams Which, stream_driver Driver>
status identify_named(Driver const& driver, stream_ref stream, stream_id& id) noexcept {
  if constexpr (Which == default_streams::of_current_device && multi_device_driver<Driver>) {
    if (stream.id() == stream_ref::unknown_id && is_default_stream(stream)) {
      device_id const named = driver.named_device();
      driver.devices_of_streams().use(named);
      return driver_on(driver, named).identify(stream, id);
    }
  }
  return driver.identify(stream, id);
}
/// The stream that a call names, with its identity if that depends on the current device. The same cost.
template <default_streams Which, stream_driver Driver>
[[nodiscard]] stream_ref named_stream(Driver const& driver, stream_ref stream) noexcept {
  stream_id id = stream_ref::unknown_id;
  bool const depends = Which == default_streams::of_current_device && is_default_stream(stream);
  return depends && identify_named<Which>(driver, stream, id).ok() ? stream_ref::from(stream.handle(), id)
                                                                   : stream;
}

}  // namespace TARN_NAMESPACE::detail
