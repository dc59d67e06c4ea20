// SPDX-License-Identifier: Apache-2.0
#pragma once
// Streams: an owning stream, and the identity of a stream that is not owned.

#include <concepts>
#include <utility>

#include "tarn/core/config.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/driver/driver.hpp"

#if TARN_HAS_CUDA
#include "tarn/driver/cuda_driver.hpp"
#endif

namespace tarn {

/// Queries the driver once for a stream's identity, so that a pool need not query it at every call (about 18 ns each).
/// Query again if the stream is destroyed and its handle is reused.
/// @throws cuda_error  the driver does not know the stream
template <stream_driver Driver>
[[nodiscard]] stream_ref identified(Driver const& driver, stream_ref stream,
                                    source_location where = source_location::current()) {
  if (stream.id() != stream_ref::unknown_id) return stream;
  stream_id id = 0;
  if (status const s = driver.identify(stream, id); !s.ok())
    throw cuda_error(s, driver.device().value, where);
  return stream_ref::from(stream.handle(), id);
}
template <has_driver Resource>
[[nodiscard]] stream_ref identified(Resource const& memory, stream_ref stream,
                                    source_location where = source_location::current()) {
  return stream.id() != stream_ref::unknown_id ? stream : identified(memory.driver(), stream, where);
}

/// Owns a stream that does not synchronise with the legacy default stream. Its identity is queried once. Destruction does not
/// wait: the driver completes the stream's work. The constructor takes no place for its errors: nvcc 13.0 ends without a message
/// where a default member initialiser constructs such a type in braces.
template <stream_driver Driver>
class basic_stream {
 public:
  /// @throws cuda_error
  explicit basic_stream(Driver driver = Driver{}) : driver_(std::move(driver)) {
    if (status const s = driver_.create_stream(stream_); !s.ok())
      throw cuda_error(s, driver_.device().value, source_location{});
    try {
      stream_ = identified(driver_, stream_, source_location{});
    } catch (...) {
      (void)driver_.destroy_stream(stream_);
      throw;
    }
  }
  basic_stream(basic_stream&& other) noexcept
      : driver_(other.driver_), stream_(std::exchange(other.stream_, stream_ref{})) {}
  /// Destroys the stream owned so far. Self-move changes nothing.
  basic_stream& operator=(basic_stream&& other) noexcept {
    if (this != &other) {
      basic_stream stolen(std::move(other));
      std::swap(driver_, stolen.driver_);
      std::swap(stream_, stolen.stream_);
    }
    return *this;
  }
  ~basic_stream() {
    if (stream_.handle() != nullptr) (void)driver_.destroy_stream(stream_);
  }

  [[nodiscard]] stream_ref ref() const noexcept { return stream_; }
  operator stream_ref() const noexcept { return stream_; }  // NOLINT: an owned stream is a stream
  /// The handle as a cudaStream_t; it also converts to one, for kernel launches and libraries.
  [[nodiscard]] CUstream_st* get() const noexcept { return stream_.get(); }
  operator CUstream_st*() const noexcept { return get(); }  // NOLINT: as cudaStream_t is passed everywhere
  [[nodiscard]] Driver const& driver() const noexcept { return driver_; }

  /// Waits on the host for the stream's work. @throws cuda_error  also for errors of earlier kernels
  void synchronize(source_location where = source_location::current()) const {
    if (status const s = driver_.synchronize_stream(stream_); !s.ok())
      throw cuda_error(s, driver_.device().value, where);
  }

 private:
  Driver driver_;
  stream_ref stream_;
};

#if TARN_HAS_CUDA
/// An owning stream of the current device: `tarn::stream stream;`. A class, since g++ warns of a parameter that shadows an alias.
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

/// As identified(), where exceptions are not possible: returns a stream that the driver does not know unchanged.
template <has_driver Resource>
[[nodiscard]] stream_ref identified_if_known(Resource const& memory, stream_ref stream) noexcept {
  if (stream.id() != stream_ref::unknown_id) return stream;
  stream_id id = 0;
  return memory.driver().identify(stream, id).ok() ? stream_ref::from(stream.handle(), id) : stream;
}

/// Whether two streams of a device are the same one: by their identities if both are known, else by their handles.
[[nodiscard]] inline bool same_stream(stream_ref a, stream_ref b) noexcept {
  bool const known = a.id() != stream_ref::unknown_id && b.id() != stream_ref::unknown_id;
  return known ? a.id() == b.id() : a == b;
}

/// Orders later work on `after` behind earlier work on `before`, on the device. Both streams must exist. Each is passed with
/// the driver of its device: an event is recorded only on the device it was created for, but any device may wait for it.
/// @throws cuda_error
template <stream_driver Driver>
void order_streams(Driver const& driver_of_after, stream_ref after, Driver const& driver_of_before,
                   stream_ref before, source_location where = source_location::current()) {
  if (driver_of_after.device() == driver_of_before.device() && same_stream(after, before)) return;
  event_handle event = nullptr;
  status s = driver_of_before.create_event(event);
  if (s.ok()) {
    s = driver_of_before.record_event(event, before);
    if (s.ok()) s = driver_of_after.wait_event(after, event);
    (void)driver_of_before.destroy_event(event);
  }
  if (!s.ok()) throw cuda_error(s, driver_of_after.device().value, where);
}
/// Orders two streams of one device.
template <stream_driver Driver>
void order_streams(Driver const& driver, stream_ref after, stream_ref before,
                   source_location where = source_location::current()) {
  order_streams(driver, after, driver, before, where);
}

}  // namespace detail
}  // namespace tarn
