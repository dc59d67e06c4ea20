// SPDX-License-Identifier: Apache-2.0
#pragma once
// pinned_buffer<T>: an owning contiguous range of host memory that devices copy from and to at full speed.

#include <cstddef>
#include <cstring>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

#include "tarn/core/bytes.hpp"
#include "tarn/core/layers.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/core/shared_resource.hpp"
#include "tarn/driver/default_driver.hpp"
#include "tarn/raii/owned_elements.hpp"
#include "tarn/raii/stream.hpp"
#include "tarn/source/pinned_host.hpp"

namespace TARN_NAMESPACE {

/// The initial contents of new elements.
enum class elements { value_initialised, uninitialised };

namespace detail {
void elements_without_a_default_constructor_can_only_be_uninitialised();  // not defined: its name is the
                                                                          // error message

/// Parameter for a type without a default constructor: anything but elements::uninitialised does not compile.
struct can_only_be_uninitialised {
  consteval can_only_be_uninitialised(elements what) {  // NOLINT: stands for the enumerator
    if (what != elements::uninitialised) elements_without_a_default_constructor_can_only_be_uninitialised();
  }
};

}  // namespace detail

/// Owns `size()` elements of page-locked host memory: a contiguous range with iterators, usable as std::span
/// and with std::ranges. Freed on stream(): a running copy on that stream keeps its memory, since a pool
/// reuses it only behind that work, and a bare pinned source waits for the stream. Set the stream that the
/// copies run on, of any device, here or by set_stream(); report further streams to a pool by
/// record_stream(). A default stream without a device is the current device's at that call; since one handle
/// means those of all devices, other streams get such a buffer's memory behind the default streams of each
/// device in use; the default stream that it names may get it at once. No call waits on the host: synchronise
/// the stream before the host reads what a device wrote. Holds its resource. A moved-from buffer is empty,
/// keeps its resource and stream, and may be reused. Destruction never throws, and does nothing once the
/// driver is unloaded. Not thread-safe.
template <class T, class Resource = basic_pinned<detail::default_driver<T>>>
class pinned_buffer : public owned_elements<T, Resource> {
  using base = owned_elements<T, Resource>;
  static_assert(std::is_trivially_copyable_v<T>,
                "tarn: pinned_buffer<T> is for copies to devices: T must be trivially copyable");

 public:
  using difference_type = std::ptrdiff_t;
  using reference = T&;
  using const_reference = T const&;
  using iterator = T*;
  using const_iterator = T const*;

  /// Constructs an empty buffer without a resource, to be assigned later: a copy of it throws misuse. A
  /// resource that is no handle is default-constructed.
  pinned_buffer() noexcept(detail::is_nothrow_absent<Resource>)
    requires detail::can_be_absent<Resource>
  = default;
  /// Constructs an empty buffer.
  explicit pinned_buffer(Resource memory, stream_ref stream = {},
                         source_location where = source_location::current())
      : base(std::move(memory), stream, alignment(), where) {
    static_assert(has_property<Resource, host_accessible>,
                  "tarn: pinned_buffer needs memory that the host can access; use pinned_host, managed or a "
                  "pool over them");
  }
  /// Allocates `count` elements, which the host may use at once. @throws length_error, out_of_memory
  pinned_buffer(Resource memory, std::size_t count, elements what = elements::value_initialised,
                stream_ref stream = {}, attribution call = attribution::current())
    requires std::is_default_constructible_v<T>
      : pinned_buffer(std::move(memory), stream, call.where) {
    detail::called_from<Resource>(call, [&] { take_uninitialised(count); });
    if (what == elements::value_initialised) value_initialise(data_, size_);
  }
  /// Allocates for a T without a default constructor: the elements stay uninitialised until they are written.
  pinned_buffer(Resource memory, std::size_t count, detail::can_only_be_uninitialised, stream_ref stream = {},
                attribution call = attribution::current())
    requires(!std::is_default_constructible_v<T>)
      : pinned_buffer(std::move(memory), stream, call.where) {
    detail::called_from<Resource>(call, [&] { take_uninitialised(count); });
  }
  /// Constructs a copy of host elements.
  pinned_buffer(Resource memory, std::span<T const> from, stream_ref stream = {},
                attribution call = attribution::current())
      : pinned_buffer(std::move(memory), stream, call.where) {
    detail::called_from<Resource>(call, [&] { take_uninitialised(from.size()); });
    copy_elements(from.data(), size_, data_);
  }
  pinned_buffer(pinned_buffer const& other, attribution call = attribution::current())
      : pinned_buffer(other.memory_, std::span<T const>(other), other.stream_, call) {}
  pinned_buffer(pinned_buffer&&) noexcept = default;
  /// Copies elements, stream and resource. Strong guarantee.
  pinned_buffer& operator=(pinned_buffer const& other) {
    if (this != &other) {
      pinned_buffer copied(other);
      swap(copied);
    }
    return *this;
  }
  /// Takes over the other's block; the old block is freed on its own stream. Self-move changes nothing.
  pinned_buffer& operator=(pinned_buffer&&) noexcept = default;

  [[nodiscard]] iterator begin() noexcept { return data_; }
  [[nodiscard]] iterator end() noexcept { return data_ + size_; }
  [[nodiscard]] const_iterator begin() const noexcept { return data_; }
  [[nodiscard]] const_iterator end() const noexcept { return data_ + size_; }
  [[nodiscard]] T& operator[](std::size_t i) noexcept { return data_[i]; }
  [[nodiscard]] T const& operator[](std::size_t i) const noexcept { return data_[i]; }
  /// Returns the alignment of the memory, bytes.
  [[nodiscard]] static constexpr std::size_t alignment() noexcept { return detail::alignment_of<T>; }

  /// Changes the number of elements; keeps the first min(size(), count). Shrinking keeps the pointer. No copy
  /// may be running.
  /// @throws length_error, out_of_memory  nothing has changed
  void resize(std::size_t count, elements what = elements::value_initialised,
              attribution call = attribution::current())
    requires std::is_default_constructible_v<T>
  {
    if (count > capacity_) detail::called_from<Resource>(call, [&] { relocate(count); });
    if (what == elements::value_initialised && count > size_) value_initialise(data_ + size_, count - size_);
    size_ = count;
  }
  /// Changes the number of elements of a T without a default constructor.
  void resize(std::size_t count, detail::can_only_be_uninitialised, attribution call = attribution::current())
    requires(!std::is_default_constructible_v<T>)
  {
    if (count > capacity_) detail::called_from<Resource>(call, [&] { relocate(count); });
    size_ = count;
  }
  /// Releases unused capacity by moving to a block of size() elements. No copy may be running. Strong
  /// guarantee.
  void shrink_to_fit(attribution call = attribution::current()) {
    if (size_ < capacity_) detail::called_from<Resource>(call, [&] { relocate(size_); });
  }
  void swap(pinned_buffer& other) noexcept { base::swap(other); }
  friend void swap(pinned_buffer& a, pinned_buffer& b) noexcept { a.swap(b); }

 private:
  [[nodiscard]] T* take(std::size_t count) {
    // The host writes at once, not in stream order, so no earlier work may still use the memory.
    return static_cast<T*>(
        detail::required(memory_).allocate_sync(checked_bytes(count, sizeof(T)), alignment()));
  }
  void take_uninitialised(std::size_t count) {
    data_ = take(count);
    size_ = capacity_ = count;
  }

  static void value_initialise(T* to, std::size_t count)
    requires std::is_default_constructible_v<T>
  {
    for (std::size_t i = 0; i < count; ++i) ::new (static_cast<void*>(to + i)) T();
  }
  /// Copies elements. T is trivially copyable, so copying also creates the objects and cannot fail.
  static void copy_elements(T const* from, std::size_t count, T* to) noexcept {
    if (count != 0) std::memcpy(static_cast<void*>(to), from, count * sizeof(T));
  }

  /// Moves to a block of `count` elements.
  void relocate(std::size_t count) {
    pinned_buffer moved(memory_, stream_);
    moved.take_uninitialised(count);
    moved.size_ = size_;
    copy_elements(data_, size_, moved.data_);
    swap(moved);
  }

  using base::alignment_, base::capacity_, base::data_, base::memory_, base::size_, base::stream_;
};

}  // namespace TARN_NAMESPACE
