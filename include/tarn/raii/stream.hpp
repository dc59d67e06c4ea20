// SPDX-License-Identifier: Apache-2.0
#pragma once
// Streams: an owning stream, and the identity of a stream that is not owned.

#include <concepts>
#include <utility>

#include "tarn/core/config.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/layers.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/driver/capture_gate.hpp"
#include "tarn/driver/driver.hpp"
#include "tarn/driver/stream_device.hpp"

#if TARN_HAS_CUDA
#include "tarn/driver/cuda_driver.hpp"
#endif

namespace TARN_NAMESPACE {

namespace detail {

/// Finds the identity of a stream that exists, and learns where it lives: that device is in use. Returns it
/// unchanged if the driver does not know it.
template <default_streams Which, stream_driver Driver>
[[nodiscard]] stream_ref identify_and_learn(Driver const& driver, stream_ref stream,
                                            status& result) noexcept {
  stream_id id = 0;
  result = identify_named<Which>(driver, stream, id);
  if (!result.ok()) return stream;
  stream = stream_ref::from(stream.handle(), id);
  [[maybe_unused]] device_id const device = find_device(driver, stream);
  if constexpr (multi_device_driver<Driver>) driver.devices_of_streams().use(device);
  return stream;
}

}  // namespace detail

/// Queries the driver once for a stream's identity, so that a pool need not query it at every call (about 18
/// ns each). Query again if the stream is destroyed and its handle is reused.
/// @param memory  a resource or a driver. A default stream is that of its device, whichever is current; of
///                memory that the host can access it is that of the calling thread's current device
/// @throws cuda_error  the driver does not know the stream
template <stream_driver Driver>
[[nodiscard]] stream_ref identified(Driver const& memory, stream_ref stream,
                                    source_location where = source_location::current()) {
  if (stream.id() != stream_ref::unknown_id) return stream;
  status s;
  stream = detail::identify_and_learn<detail::default_streams::of_own_device>(memory, stream, s);
  if (!s.ok()) throw cuda_error(s, memory.device().value, where);
  return stream;
}
template <has_driver Resource>
[[nodiscard]] stream_ref identified(Resource const& memory, stream_ref stream,
                                    source_location where = source_location::current()) {
  if (stream.id() != stream_ref::unknown_id) return stream;
  status s;
  auto const& driver = detail::required(memory, where).driver();
  stream = detail::identify_and_learn<detail::default_streams_of<Resource>()>(driver, stream, s);
  if (!s.ok()) throw cuda_error(s, driver.device().value, where);
  return stream;
}

/// Returns the default stream of a driver's device, with its identity: the stream that a null handle means
/// there, whichever device is current when it is used. @throws cuda_error
template <stream_driver Driver>
[[nodiscard]] stream_ref default_stream(Driver const& driver,
                                        source_location where = source_location::current()) {
  return identified(driver, stream_ref{}, where);
}
#if TARN_HAS_CUDA
/// Returns the default stream of a device. @throws cuda_error  there is no such device
[[nodiscard]] inline stream_ref default_stream(device_id device,
                                               source_location where = source_location::current()) {
  cuda_driver const driver{device};
  detail::must_succeed(driver, detail::find_cuda_device(device), where);
  return default_stream(driver, where);
}
#endif

/// Owns a stream that does not synchronise with the legacy default stream. Its identity is queried once.
/// Destruction does not wait: the driver completes the stream's work. A moved-from object is empty: any use
/// but destruction, assignment and the test whether it has a stream throws misuse, since a null handle is the
/// default stream. The constructor takes no place for its errors: nvcc 13.0 ends without a message where a
/// default member initialiser constructs such a type in braces.
template <stream_driver Driver>
class basic_stream {
 public:
  /// @throws cuda_error
  explicit basic_stream(Driver driver = Driver{}) : driver_(std::move(driver)) {
    detail::must_succeed(driver_, driver_.create_stream(stream_));
    try {
      stream_ = identified(driver_, stream_, source_location{});
    } catch (...) {
      (void)driver_.destroy_stream(stream_);
      throw;
    }
  }
  basic_stream(basic_stream&& other) noexcept
      : driver_(other.driver_), stream_(detail::exchange(other.stream_, stream_ref{})) {}
  /// Destroys the stream owned so far. Self-move changes nothing.
  basic_stream& operator=(basic_stream&& other) noexcept {
    basic_stream stolen(std::move(other));
    std::swap(driver_, stolen.driver_);
    std::swap(stream_, stolen.stream_);
    return *this;
  }
  ~basic_stream() {
    if (stream_.handle() != nullptr) (void)driver_.destroy_stream(stream_);
  }

  /// False after it was moved from.
  [[nodiscard]] explicit operator bool() const noexcept { return stream_.handle() != nullptr; }
  [[nodiscard]] stream_ref ref() const {
    require_stream(source_location{});
    return stream_;
  }
  operator stream_ref() const { return ref(); }  // NOLINT: an owned stream is a stream
  /// The handle as a cudaStream_t; it also converts to one, for kernel launches and libraries.
  [[nodiscard]] CUstream_st* get() const { return ref().get(); }
  operator CUstream_st*() const { return get(); }  // NOLINT: as cudaStream_t is passed everywhere
  [[nodiscard]] Driver const& driver() const noexcept { return driver_; }

  /// Waits on the host for the stream's work. @throws cuda_error  also for errors of earlier kernels
  void synchronize(source_location where = source_location::current()) const {
    require_stream(where);
    detail::must_succeed(driver_, driver_.synchronize_stream(stream_), where);
  }

 private:
  void require_stream(source_location where) const {
    if (stream_.handle() != nullptr) [[likely]]
      return;
    throw detail::at(where,
                     misuse(misuse_kind::no_resource, nullptr,
                            "a moved-from stream is empty; use the one it was moved to, or assign one"));
  }

  Driver driver_;
  stream_ref stream_;
};

#if TARN_HAS_CUDA
/// An owning stream of the current device: `tarn::stream stream;`. A class, since g++ warns of a parameter
/// that shadows an alias.
class stream : public basic_stream<cuda_driver> {
 public:
  using basic_stream<cuda_driver>::basic_stream;
};
#endif

namespace detail {

/// A stream argument that knows the line of the call, for functions whose last parameters are a pack.
struct stream_at {
  template <class Stream>
    requires std::convertible_to<Stream const&, stream_ref>
  stream_at(Stream const& of_call, source_location line = source_location::current())  // NOLINT: a stream
      : stream(of_call), where(line) {}
  stream_ref stream;
  source_location where;
};

/// As identified(), where exceptions are not possible: returns a stream that the driver does not know
/// unchanged.
template <has_driver Resource>
[[nodiscard]] stream_ref identified_if_known(Resource const& memory, stream_ref stream) noexcept {
  if (stream.id() != stream_ref::unknown_id) return stream;
  status s;
  return identify_and_learn<default_streams_of<Resource>()>(memory.driver(), stream, s);
}

/// @throws misuse  (capture) with `what_to_do`: the stream is being captured into a graph; cuda_error
template <stream_driver Driver>
void refuse_capture(Driver const& driver, stream_ref stream, char const* what_to_do,
                    source_location where = source_location::current()) {
  bool capturing = false;
  must_succeed(driver, driver.is_capturing(stream, capturing), where);
  if (capturing) throw at(where, misuse(misuse_kind::capture, nullptr, what_to_do));
}

/// Whether two streams are the same one: by their identities if both are known, else by their handles.
[[nodiscard]] inline bool same_stream(stream_ref a, stream_ref b) noexcept {
  bool const known = a.id() != stream_ref::unknown_id && b.id() != stream_ref::unknown_id;
  return known ? a.id() == b.id() : a == b;
}

/// Orders later work on `after` behind earlier work on `before`, on the device. Both streams must exist, and
/// may be of any devices. A default stream without an identity is that of its driver's device. @throws
/// cuda_error
template <stream_driver Driver>
void order_streams(Driver const& driver_of_after, stream_ref after, Driver const& driver_of_before,
                   stream_ref before, source_location where = source_location::current()) {
  Driver const of_after = driver_of(driver_of_after, after);
  Driver const of_before = driver_of(driver_of_before, before);
  if (of_after.device() == of_before.device() && same_stream(after, before)) return;
  detail::must_succeed(of_after, make_wait(of_after, after, of_before, before), where);
}
/// A stream and the driver of its device.
template <class Driver>
struct driven_stream {
  Driver const& driver;
  stream_ref stream;
  default_streams which = default_streams::of_own_device;
};
/// The stream of a block of this memory.
template <has_driver Resource>
[[nodiscard]] auto stream_on(Resource const& memory, stream_ref stream) noexcept {
  return driven_stream<typename Resource::driver_type>{memory.driver(), stream,
                                                       default_streams_of<Resource>()};
}
/// Calls f(driver, stream) for a stream that has its identity. Where it may be the default stream of any
/// device, it is that of each device in use, unless it is captured. Returns false if that of another device
/// was left out: while a blocking stream there is captured, its use would end the capture. @throws cuda_error
/// the driver cannot say so
template <class Driver, class F>
bool for_each_named(driven_stream<Driver> const& named, F const& f, source_location where) {
  auto const& [driver, stream, which] = named;
  bool const is_any = is_of_any_device(driver, stream, which) &&
                      (is_legacy_stream<Driver>(stream) || !is_capturing(driver_of(driver, stream), stream));
  f(driver, stream);
  if (!is_any) return true;
  device_id const own = device_of(driver, stream);
  bool all = true;
  for_each_device_in_use(driver, [&](Driver const& there) {
    if (there.device() == own) return;
    stream_ref const its = default_stream_on(there, own, named.stream);
    capture_gate::passage const none_begins;  // between the question and the use
    bool capturing = false;
    status const asked = there.is_capturing(its, capturing);
    if (!is_capture_error(asked)) must_succeed(there, asked, where);
    bool const may_be_used = asked.ok() && !capturing;
    if (may_be_used) f(there, its);
    all = all && may_be_used;
  });
  return all;
}
/// Orders later work on `after` behind the earlier work on a block of `memory` whose stream is `before`. Both
/// have their identities. @throws cuda_error  also where the default stream of another device is left out
template <has_driver Resource>
void order_streams(Resource const& memory, stream_ref after, stream_ref before,
                   source_location where = source_location::current()) {
  auto const& driver = memory.driver();
  bool const all = for_each_named(
      stream_on(memory, before),
      [&](auto const& there, stream_ref its) { order_streams(driver, after, there, its, where); }, where);
  if (!all && !same_stream(after, before)) must_succeed(driver, refused_for_capture("wait_event"), where);
}
/// Changes the stream of an owner to `next`. Later work on that waits, on the device, for what was enqueued
/// on the old one, if there is a block. @throws misuse, cuda_error  nothing has changed
template <has_driver Resource>
void change_stream(Resource const& memory, void const* block, stream_ref& stream, stream_ref next,
                   source_location where) {
  next = identified(memory, next, where);
  if (block != nullptr) order_streams(memory, next, stream, where);
  stream = next;
}

}  // namespace detail
}  // namespace TARN_NAMESPACE
