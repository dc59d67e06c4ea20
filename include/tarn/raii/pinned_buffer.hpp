// SPDX-License-Identifier: Apache-2.0
#pragma once
// pinned_buffer<T>: an owned contiguous range of host memory that devices copy from and to at full speed.
// Above it: user code. Below it: core/resource.

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include "tarn/core/bytes.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/source/pinned_host.hpp"

namespace tarn {

/// What the elements of a new range hold.
enum class elements { value_initialised, uninitialised };

namespace detail {
#if TARN_HAS_CUDA
using default_pinned_resource = pinned_host;
#else
struct name_a_pinned_resource;  // without CUDA there is no default: say pinned_buffer<T, sim_pinned_host>
using default_pinned_resource = name_a_pinned_resource;
#endif
}  // namespace detail

/// Owns `size()` elements of page-locked host memory: a contiguous range with iterators, usable as std::span
/// and with std::ranges. Freed on stream(), so a copy that is still running on that stream stays valid if the
/// resource is stream-ordered (a pool); a bare pinned source waits for the stream. Holds its resource. Not
/// for two threads at once.
template <class T, class Resource = detail::default_pinned_resource>
class pinned_buffer {
  static_assert(std::is_trivially_copyable_v<T>,
                "tarn: pinned_buffer<T> is for copies to devices: T must be trivially copyable");

 public:
  using value_type = T;
  using size_type = std::size_t;
  using difference_type = std::ptrdiff_t;
  using reference = T&;
  using const_reference = T const&;
  using iterator = T*;
  using const_iterator = T const*;
  using resource_type = Resource;

  /// Empty.
  explicit pinned_buffer(Resource memory, stream_ref stream = {})
      : memory_(std::move(memory)), stream_(stream) {
    static_assert(has_property<Resource, host_accessible>,
                  "tarn: pinned_buffer needs memory that the host can touch; use pinned_host, managed or a "
                  "pool over them");
  }
  /// `count` elements, usable by the host at once. @throws length_error, out_of_memory
  pinned_buffer(Resource memory, std::size_t count, elements what = elements::value_initialised,
                stream_ref stream = {})
      : pinned_buffer(std::move(memory), stream) {
    data_ = take(count);
    size_ = count;
    if (what == elements::value_initialised) std::uninitialized_value_construct_n(data_, size_);
  }
  /// A copy of host elements.
  pinned_buffer(Resource memory, std::span<T const> from, stream_ref stream = {})
      : pinned_buffer(std::move(memory), from.size(), elements::uninitialised, stream) {
    std::copy(from.begin(), from.end(), data_);
  }
  pinned_buffer(pinned_buffer const& other)
      : pinned_buffer(other.memory_, std::span<T const>(other), other.stream_) {}
  pinned_buffer(pinned_buffer&& other) noexcept
      : memory_(other.memory_),
        stream_(other.stream_),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  pinned_buffer& operator=(pinned_buffer const& other) {
    if (this != &other) {
      pinned_buffer copied(other);
      swap(copied);
    }
    return *this;
  }
  pinned_buffer& operator=(pinned_buffer&& other) noexcept {
    if (this != &other) {
      pinned_buffer stolen(std::move(other));
      swap(stolen);
    }
    return *this;
  }
  ~pinned_buffer() { clear(); }

  [[nodiscard]] T* data() noexcept { return data_; }
  [[nodiscard]] T const* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return size_ * sizeof(T); }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] iterator begin() noexcept { return data_; }
  [[nodiscard]] iterator end() noexcept { return data_ + size_; }
  [[nodiscard]] const_iterator begin() const noexcept { return data_; }
  [[nodiscard]] const_iterator end() const noexcept { return data_ + size_; }
  [[nodiscard]] T& operator[](std::size_t i) noexcept { return data_[i]; }
  [[nodiscard]] T const& operator[](std::size_t i) const noexcept { return data_[i]; }
  [[nodiscard]] stream_ref stream() const noexcept { return stream_; }
  [[nodiscard]] Resource const& resource() const noexcept { return memory_; }

  /// The stream whose copies the release waits for. The caller orders them.
  void set_stream(stream_ref stream) noexcept { stream_ = stream; }

  /// Changes the number of elements; keeps the first min(size(), count). A smaller size keeps the pointer
  /// only if equal. No copy may be running. @throws length_error, out_of_memory  nothing has changed
  void resize(std::size_t count, elements what = elements::value_initialised) {
    if (count == size_) return;
    pinned_buffer moved(memory_, count, elements::uninitialised, stream_);
    std::size_t const kept = std::min(size_, count);
    std::copy(data_, data_ + kept, moved.data_);
    if (what == elements::value_initialised)
      std::uninitialized_value_construct_n(moved.data_ + kept, count - kept);
    swap(moved);
  }
  /// Frees the elements; the buffer is empty and ready for use.
  void clear() noexcept {
    if (data_ != nullptr) memory_.deallocate(stream_, data_, bytes(), alignment);
    data_ = nullptr;
    size_ = 0;
  }
  void swap(pinned_buffer& other) noexcept {
    using std::swap;
    swap(memory_, other.memory_);
    swap(stream_, other.stream_);
    swap(data_, other.data_);
    swap(size_, other.size_);
  }
  friend void swap(pinned_buffer& a, pinned_buffer& b) noexcept { a.swap(b); }

 private:
  static constexpr std::size_t alignment = std::max(default_alignment, alignof(T));

  [[nodiscard]] T* take(std::size_t count) {
    // The host writes at once, without asking the stream: the memory must be free of earlier work.
    return static_cast<T*>(memory_.allocate_sync(checked_bytes(count, sizeof(T)), alignment));
  }

  Resource memory_;
  stream_ref stream_;
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace tarn
