// SPDX-License-Identifier: Apache-2.0
#pragma once
// device_ptr<T> and device_ptr<T[]>: unique ownership of one object or array in device memory, as unique_ptr
// owns host memory.

#include <compare>
#include <cstddef>
#include <type_traits>
#include <typeindex>  // std::hash, at a seventh of the cost of <functional>
#include <utility>

#include "tarn/core/bytes.hpp"
#include "tarn/core/layers.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/shared_resource.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/raii/stream.hpp"

namespace TARN_NAMESPACE {

/// Owns device memory for one T, or for an array as device_ptr<T[]>, freed on stream(). The memory is
/// uninitialised: T is trivially copyable; it may be const, and incomplete until memory is allocated or
/// freed. Move-only. A moved-from pointer is null, keeps its resource and may be reused. Report use on
/// streams other than stream() by set_stream() or record_stream(). Not thread-safe.
/// Destruction never throws, works with any current device and after the stream is destroyed, and does
/// nothing once the driver is unloaded. Comparisons and the hash are those of the address.
template <class T, class Resource = detail::default_device_resource<T>>
class device_ptr {
  static constexpr bool is_array = std::is_unbounded_array_v<T>;

 public:
  using element_type = std::remove_extent_t<T>;
  using pointer = element_type*;
  using resource_type = Resource;
  static_assert(!std::is_bounded_array_v<T>, "tarn: use device_ptr<T[]> and pass the count to make_device");

  /// Constructs a null pointer without a resource, to be assigned later. A resource that is no handle is
  /// default-constructed.
  device_ptr() noexcept(detail::is_nothrow_absent<Resource>)
    requires detail::can_be_absent<Resource>
      : memory_(detail::absent_resource<Resource>()) {}
  device_ptr(std::nullptr_t) noexcept(detail::is_nothrow_absent<Resource>)  // NOLINT: as unique_ptr converts
    requires detail::can_be_absent<Resource>
      : device_ptr() {}
  /// Constructs a null pointer.
  explicit device_ptr(Resource memory, stream_ref stream = {}) noexcept
      : memory_(std::move(memory)), stream_(detail::identified_if_known(memory_, stream)) {}
  /// Takes over `count` elements at `p`, allocated by `memory` with alignment(). If `p` is null, `count` is
  /// ignored.
  device_ptr(Resource memory, pointer p, std::size_t count, stream_ref stream) noexcept
      : memory_(std::move(memory)),
        stream_(detail::identified_if_known(memory_, stream)),
        p_(p),
        count_(p != nullptr ? count : 0) {}
  device_ptr(device_ptr&& other) noexcept
      : memory_(other.memory_),
        stream_(other.stream_),
        p_(detail::exchange(other.p_, nullptr)),
        count_(detail::exchange(other.count_, 0)) {}
  /// Takes over a pointer to elements that are not const.
  template <class U>
    requires(std::is_const_v<element_type> && std::is_same_v<U const, T>)
  device_ptr(device_ptr<U, Resource>&& other) noexcept  // NOLINT: as unique_ptr converts
      : memory_(other.resource()), stream_(other.stream()), count_(other.size()) {
    p_ = other.release();
  }
  device_ptr& operator=(device_ptr&& other) noexcept {
    device_ptr stolen(std::move(other));
    swap(stolen);
    return *this;
  }
  device_ptr& operator=(std::nullptr_t) noexcept {
    reset();
    return *this;
  }
  ~device_ptr() { reset(); }

  [[nodiscard]] pointer get() const noexcept { return p_; }
  [[nodiscard]] explicit operator bool() const noexcept { return p_ != nullptr; }
  /// Returns the number of owned elements: 1 or 0 for device_ptr<T>.
  [[nodiscard]] std::size_t size() const noexcept { return count_; }
  [[nodiscard]] stream_ref stream() const noexcept { return stream_; }
  [[nodiscard]] Resource const& resource() const noexcept { return memory_; }
  /// Returns the alignment of the memory, bytes.
  [[nodiscard]] static constexpr std::size_t alignment() noexcept {
    return detail::alignment_of<element_type>;
  }

  /// Returns the object itself, if the host can access it.
  [[nodiscard]] element_type& operator*() const noexcept
    requires(!is_array && has_property<Resource, host_accessible>)
  {
    return *p_;
  }
  [[nodiscard]] pointer operator->() const noexcept
    requires(!is_array && has_property<Resource, host_accessible>)
  {
    return p_;
  }
  [[nodiscard]] element_type& operator[](std::size_t i) const noexcept
    requires(is_array && has_property<Resource, host_accessible>)
  {
    return p_[i];
  }

  /// Changes the stream that frees the memory. Later work on `stream` waits, on the device, for what was
  /// enqueued on the old stream, which must still exist, as device_buffer::set_stream() has it.
  /// @throws cuda_error  nothing has changed
  void set_stream(stream_ref stream, source_location where = source_location::current()) {
    detail::change_stream(memory_, block_of(p_), stream_, stream, where);
  }

  /// Records that work on `stream`, enqueued before the memory is freed, uses it; see
  /// device_buffer::record_stream(). Needs a pool. @throws std::bad_alloc, cuda_error  nothing has changed
  void record_stream(stream_ref stream, source_location where = source_location::current()) const
    requires requires(Resource& memory) { memory.record_stream(nullptr, std::size_t{}, stream_ref{}); }
  {
    if (p_ == nullptr) return;
    detail::called_from(where,
                        [&] { memory_.record_stream(block_of(p_), count_ * sizeof(element_type), stream); });
  }

  /// Releases ownership. The caller deallocates, at alignment(), as many bytes as size() elements had before
  /// the call.
  [[nodiscard]] pointer release() noexcept {
    count_ = 0;
    return detail::exchange(p_, nullptr);
  }
  /// Frees the owned memory.
  void reset(std::nullptr_t = nullptr) noexcept { replace(nullptr, 0); }
  /// Frees the owned memory, then takes over `p`, allocated by resource() with alignment().
  void reset(pointer p) noexcept
    requires(!is_array)
  {
    replace(p, 1);
  }
  void reset(pointer p, std::size_t count) noexcept
    requires(is_array)
  {
    replace(p, count);
  }
  void swap(device_ptr& other) noexcept {
    using std::swap;
    swap(memory_, other.memory_);
    swap(stream_, other.stream_);
    swap(p_, other.p_);
    swap(count_, other.count_);
  }
  friend void swap(device_ptr& a, device_ptr& b) noexcept { a.swap(b); }
  friend bool operator==(device_ptr const& a, device_ptr const& b) noexcept { return a.p_ == b.p_; }
  friend bool operator==(device_ptr const& a, std::nullptr_t) noexcept { return a.p_ == nullptr; }
  friend std::strong_ordering operator<=>(device_ptr const& a, device_ptr const& b) noexcept {
    return std::compare_three_way{}(a.p_, b.p_);
  }

 private:
  [[nodiscard]] static void* block_of(pointer p) noexcept {
    // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): the memory is not written
    return const_cast<std::remove_cv_t<element_type>*>(p);
  }
  void replace(pointer p, std::size_t count) noexcept {
    static_assert(std::is_trivially_copyable_v<element_type>,
                  "tarn: device_ptr<T> never constructs elements: T must be trivially copyable");
    pointer const old = detail::exchange(p_, p);
    std::size_t const old_count = detail::exchange(count_, p != nullptr ? count : 0);
    if (old == nullptr) return;
    detail::free_block(memory_, stream_, block_of(old), old_count * sizeof(element_type), alignment());
  }

  Resource memory_;
  stream_ref stream_;
  pointer p_ = nullptr;
  std::size_t count_ = 0;
};

/// Allocates one uninitialised T. @throws out_of_memory
template <class T, class Resource>
  requires(tarn::resource<Resource> && !std::is_array_v<T>)
[[nodiscard]] device_ptr<T, Resource> make_device(Resource memory, stream_ref stream,
                                                  attribution call = attribution::current()) {
  stream = identified(memory, stream, call.where);
  void* const p = detail::called_from<Resource>(call, [&] {
    return detail::required(memory, call.where)
        .allocate(stream, sizeof(T), device_ptr<T, Resource>::alignment());
  });
  return device_ptr<T, Resource>(std::move(memory), static_cast<T*>(p), 1, stream);
}
/// Allocates `count` uninitialised elements: make_device<T[]>(memory, count, stream). @throws length_error,
/// out_of_memory
template <class T, class Resource>
  requires(tarn::resource<Resource> && std::is_unbounded_array_v<T>)
[[nodiscard]] device_ptr<T, Resource> make_device(Resource memory, std::size_t count, stream_ref stream,
                                                  attribution call = attribution::current()) {
  using element = std::remove_extent_t<T>;
  stream = identified(memory, stream, call.where);
  void* const p = detail::called_from<Resource>(call, [&] {
    return detail::required(memory, call.where)
        .allocate(stream, checked_bytes(count, sizeof(element)), device_ptr<T, Resource>::alignment());
  });
  return device_ptr<T, Resource>(std::move(memory), static_cast<element*>(p), count, stream);
}
// Explain a call without a stream, or without memory.
template <class T, class Resource, std::convertible_to<std::size_t>... Count>
  requires tarn::resource<Resource>
void make_device(Resource, Count...) = delete;  // add a stream: tarn::stream_ref{} is the default
template <class T, class First, class... Rest>
  requires(!tarn::resource<First>)
void make_device(First, Rest...) = delete;  // pass a pool first; pages need one: pages | tarn::pooled{}

}  // namespace TARN_NAMESPACE

namespace std {
/// Hashes the address, as std::hash of unique_ptr does.
template <class T, class Resource>
struct hash<tarn::device_ptr<T, Resource>> {
  [[nodiscard]] size_t operator()(tarn::device_ptr<T, Resource> const& p) const noexcept {
    return hash<typename tarn::device_ptr<T, Resource>::pointer>{}(p.get());
  }
};
}  // namespace std
