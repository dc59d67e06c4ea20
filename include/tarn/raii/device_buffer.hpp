// SPDX-License-Identifier: Apache-2.0
#pragma once
// device_buffer<T>: an owning, sized, uninitialised array in device memory with stream-ordered operations.

#include <concepts>
#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>

#include "tarn/core/bytes.hpp"
#include "tarn/core/config.hpp"
#include "tarn/core/layers.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/driver/default_driver.hpp"
#include "tarn/policy/device_pool.hpp"
#include "tarn/raii/copy.hpp"
#include "tarn/raii/owned_elements.hpp"
#include "tarn/raii/stream.hpp"

namespace TARN_NAMESPACE {

namespace detail {
/// device_pool, or what it means in a program without CUDA (driver/default_driver).
template <class T>
using default_device_resource = pool_over<basic_pages<default_driver<T>>>;
}  // namespace detail

/// Owns `size()` elements of device memory. Elements are never constructed: T is trivially copyable.
/// Every operation is ordered on stream(); none synchronises the host unless documented. Report use on
/// another stream by set_stream() or record_stream(). One thread at a time per buffer. Holds its resource, so
/// the pool stays alive as long as the buffer. A default-constructed buffer has no resource: until a buffer
/// with one is assigned, what allocates, copies or orders throws misuse. A moved-from buffer is empty, keeps
/// its resource and stream, and may be reused. Destruction never throws, works with any current device and
/// after the stream is destroyed, and does nothing once the driver is unloaded. All other operations need the
/// stream to exist.
template <class T, class Resource = detail::default_device_resource<T>>
class device_buffer : public owned_elements<T, Resource> {
  using base = owned_elements<T, Resource>;
  static_assert(std::is_trivially_copyable_v<T>,
                "tarn: device_buffer<T> never constructs elements: T must be trivially copyable");

 public:
  /// Constructs an empty buffer without a resource, to be assigned later. A resource that is no handle is
  /// default-constructed.
  device_buffer() noexcept(detail::is_nothrow_absent<Resource>)
    requires detail::can_be_absent<Resource>
  = default;
  /// Constructs an empty buffer. @param alignment  of the data, bytes; kept by copies and moves
  explicit device_buffer(Resource memory, stream_ref stream = {},
                         std::size_t alignment = detail::alignment_of<T>,
                         source_location where = source_location::current())
      : base(std::move(memory), stream, detail::max_of(alignment, detail::alignment_of<T>), where) {
    require_alignment(alignment);
  }
  template <std::integral Count>
  device_buffer(Resource, Count) = delete;  // no stream: write tarn::stream_ref{} for the default stream
  /// Allocates `count` uninitialised elements.
  /// @throws length_error   count * sizeof(T) overflows
  /// @throws out_of_memory  nothing is held
  device_buffer(Resource memory, std::size_t count, stream_ref stream,
                std::size_t alignment = detail::alignment_of<T>, attribution call = attribution::current())
      : device_buffer(std::move(memory), stream, alignment, call.where) {
    data_ = take(count, call);
    size_ = capacity_ = count;
  }
  /// Allocates with a name: `device_buffer<float> weights(pool, n, stream, tarn::tag("weights"));`
  /// (core/tag). The name belongs to the block: a new block taken by a later resize() gets the name given
  /// there.
  device_buffer(Resource memory, std::size_t count, stream_ref stream, attribution call)
      : device_buffer(std::move(memory), count, stream, detail::alignment_of<T>, call) {}
  /// Constructs a copy of host or device elements, in stream order.
  device_buffer(Resource memory, std::span<T const> from, stream_ref stream,
                std::size_t alignment = detail::alignment_of<T>, attribution call = attribution::current())
      : device_buffer(std::move(memory), from.size(), stream, alignment, call) {
    copy_from(
        from,
        call.where);  // if it throws, the destructor runs, since the delegated-to constructor has completed
  }
  device_buffer(Resource memory, std::span<T const> from, stream_ref stream, attribution call)
      : device_buffer(std::move(memory), from, stream, detail::alignment_of<T>, call) {}
  device_buffer(device_buffer const&) = delete;  // copies are explicit: buffer.clone(stream), or copy_from()
  device_buffer& operator=(device_buffer const&) = delete;
  device_buffer(device_buffer&&) noexcept = default;
  /// Takes over the other's block; the old block is freed on its own stream. Self-move changes nothing.
  device_buffer& operator=(device_buffer&&) noexcept = default;

  /// Returns the elements as device pointers. The host must not access them unless the memory is
  /// host-accessible.
  [[nodiscard]] std::span<T> span() noexcept { return {data_, size_}; }
  [[nodiscard]] std::span<T const> span() const noexcept { return {data_, size_}; }

  /// Changes the number of elements; keeps the first min(size(), count). Shrinking keeps the pointer.
  /// @param count   elements, not bytes
  /// @param stream  orders the copy, the release of the old block, and later work
  /// @throws length_error, out_of_memory, cuda_error  nothing has changed
  void resize(std::size_t count, stream_ref stream, attribution call = attribution::current()) {
    reserve(count, stream, call);
    size_ = count;
  }
  void resize(std::size_t count, attribution call = attribution::current()) { resize(count, stream_, call); }

  /// Reserves capacity for `count` elements; size() is unchanged. Strong guarantee, as resize().
  void reserve(std::size_t count, stream_ref stream, attribution call = attribution::current()) {
    move_to(count > capacity_ ? count : capacity_, stream, call);
  }
  void reserve(std::size_t count, attribution call = attribution::current()) {
    reserve(count, stream_, call);
  }

  /// Releases unused capacity by moving to a block of size() elements. Strong guarantee.
  void shrink_to_fit(stream_ref stream, attribution call = attribution::current()) {
    move_to(size_, stream, call);
  }
  void shrink_to_fit(attribution call = attribution::current()) { shrink_to_fit(stream_, call); }

  /// Returns a copy on `stream`, from the same resource, with the same alignment. `stream` first waits, on
  /// the device, for this buffer's stream, which then waits for the copy: this buffer may be changed or
  /// destroyed at once.
  /// @throws out_of_memory, cuda_error  nothing has changed
  [[nodiscard]] device_buffer clone(stream_ref stream, attribution call = attribution::current()) const {
    device_buffer made(memory_, size_, stream, alignment_, call);
    made.copy_from(*this, call.where);
    return made;
  }

  /// Copies from a host or device span of the same size, in stream order. @throws length_error, cuda_error
  void copy_from(std::span<T const> from, source_location where = source_location::current()) {
    detail::in_turn(
        own_stream(where), [&] { tarn::copy(driver(), from, span(), stream_, where); }, where);
  }
  /// Copies from a buffer of the same size, of any resource or device, on stream(), which first waits, on the
  /// device, for the other buffer's stream. That stream then waits for the copy, so the other buffer may be
  /// changed or destroyed at once.
  /// @throws length_error, cuda_error
  template <class Other>
    requires std::is_same_v<typename Other::driver_type, typename Resource::driver_type>
  void copy_from(device_buffer<T, Other> const& other, source_location where = source_location::current()) {
    if (size_ == 0 || other.size() != size_)
      return copy_from(other.span(), where);  // throws if the sizes differ
    detail::copy_in_turn<Other, Resource>(detail::stream_on(other.resource(), other.stream()), other.data(),
                                          own_stream(where), data_, this->bytes(), where);
  }
  /// Copies to a host or device span of the same size, in stream order. @throws length_error, cuda_error
  void copy_to(std::span<T> to, source_location where = source_location::current()) const {
    detail::in_turn(
        own_stream(where), [&] { tarn::copy(driver(), span(), to, stream_, where); }, where);
  }
  /// Copies as copy_to() does, then waits on the host, so that the host may read.
  void copy_to_sync(std::span<T> to, source_location where = source_location::current()) const {
    copy_to(to, where);
    detail::must_succeed(driver(), driver().synchronize_stream(stream_), where);
  }
  /// Sets every byte, in stream order. @throws cuda_error
  void fill(std::byte value, source_location where = source_location::current()) {
    if (size_ == 0) return;
    detail::fill_in_turn(own_stream(where), data_, value, this->bytes(), where);
  }
  /// Sets every byte to 0, in stream order. @throws cuda_error
  void zero(source_location where = source_location::current()) { fill(std::byte{}, where); }

  void swap(device_buffer& other) noexcept { base::swap(other); }
  friend void swap(device_buffer& a, device_buffer& b) noexcept { a.swap(b); }

 private:
  [[nodiscard]] auto const& driver(source_location where = source_location::current()) const {
    return detail::required(memory_, where).driver();
  }
  [[nodiscard]] auto own_stream(source_location where) const {
    return detail::stream_on(detail::required(memory_, where), stream_);
  }

  [[nodiscard]] T* take(std::size_t count, attribution const& call) {
    return detail::called_from<Resource>(call, [&] {
      return static_cast<T*>(detail::required(memory_, call.where)
                                 .allocate(stream_, checked_bytes(count, sizeof(T)), alignment_));
    });
  }
  /// Moves to a block of `count` elements on `stream`, or only to `stream` if the block has that many.
  void move_to(std::size_t count, stream_ref stream, attribution const& call) {
    detail::called_from<Resource>(call, [&] {
      if (count != capacity_) {
        relocate(count, stream);
      } else {
        this->set_stream(stream);
      }
    });
  }
  void relocate(std::size_t count, stream_ref stream) {
    device_buffer moved(memory_, count, stream, alignment_);
    moved.size_ = detail::min_of(size_, count);
    if (data_ != nullptr) {
      detail::order_streams(memory_, moved.stream_, stream_);
      tarn::copy(driver(), std::span<T const>(data_, moved.size_), moved.span(), moved.stream_);
      stream_ = moved.stream_;  // so that the old block is released behind the copy
    }
    swap(moved);
  }

  using base::alignment_, base::capacity_, base::data_, base::memory_, base::size_, base::stream_;
};

/// Allocates `count` uninitialised elements of T from a resource, in stream order.
/// @throws length_error, out_of_memory
template <class T, class Resource>
  requires tarn::resource<Resource>
[[nodiscard]] device_buffer<T, Resource> make_device_buffer(Resource memory, std::size_t count,
                                                            stream_ref stream,
                                                            attribution call = attribution::current()) {
  return device_buffer<T, Resource>(std::move(memory), count, stream, call);
}
/// Constructs a buffer with a copy of host elements. Pageable host memory may be reused at once, pinned
/// memory once the stream has completed the copy.
template <class T, class Resource>
  requires tarn::resource<Resource>
[[nodiscard]] device_buffer<T, Resource> make_device_buffer(Resource memory, std::span<T const> from,
                                                            stream_ref stream,
                                                            attribution call = attribution::current()) {
  return device_buffer<T, Resource>(std::move(memory), from, stream, call);
}
// Explain a call without a stream, or without memory.
template <class T, class Resource>
  requires tarn::resource<Resource>
void make_device_buffer(Resource, std::size_t) = delete;  // add a stream: tarn::stream_ref{} is the default
template <class T, class First, class... Rest>
  requires(!tarn::resource<First>)
void make_device_buffer(First, Rest...) = delete;  // pass a pool first; pages need one: pages | pooled{}

}  // namespace TARN_NAMESPACE
