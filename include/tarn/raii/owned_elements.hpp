// SPDX-License-Identifier: Apache-2.0
#pragma once
// owned_elements: a block of elements, its resource and its stream: what device_buffer and pinned_buffer have
// in common.

#include <cstddef>
#include <utility>

#include "tarn/core/bytes.hpp"
#include "tarn/core/layers.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/source_location.hpp"
#include "tarn/core/stream.hpp"
#include "tarn/raii/stream.hpp"

namespace TARN_NAMESPACE {

/// The base of a buffer. Owns the block; a moved-from buffer is empty, keeps its resource and stream, and may
/// be reused.
template <class T, class Resource>
class owned_elements {
 public:
  using value_type = T;
  using size_type = std::size_t;
  using resource_type = Resource;

  [[nodiscard]] T* data() noexcept { return data_; }
  [[nodiscard]] T const* data() const noexcept { return data_; }
  /// Returns the number of elements.
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return size_ * sizeof(T); }
  /// Returns the number of elements that fit without a new block.
  [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  /// Returns the alignment of the memory, bytes.
  [[nodiscard]] std::size_t alignment() const noexcept { return alignment_; }
  [[nodiscard]] stream_ref stream() const noexcept { return stream_; }
  [[nodiscard]] Resource const& resource() const noexcept { return memory_; }

  /// Changes the buffer's stream, which frees the memory. Later work on `stream` waits, on the device, for
  /// what was enqueued on the old stream; if that is a default stream and the host can access the memory, on
  /// the default streams of each device in use. Both streams must exist. @throws cuda_error  nothing has
  /// changed
  void set_stream(stream_ref stream, source_location where = source_location::current()) {
    detail::change_stream(memory_, data_, stream_, stream, where);
  }

  /// Records that work on `stream`, enqueued before the memory is freed, uses it, as
  /// torch.Tensor.record_stream() does. The memory is deferred until that work is done; the order of the
  /// streams does not change. Needs a pool. Amortised O(1).
  /// @throws std::bad_alloc, cuda_error  nothing has changed
  void record_stream(stream_ref stream, source_location where = source_location::current()) const
    requires requires(Resource& memory) { memory.record_stream(nullptr, std::size_t{}, stream_ref{}); }
  {
    if (data_ == nullptr) return;
    detail::called_from(where, [&] { memory_.record_stream(data_, capacity_ * sizeof(T), stream); });
  }

  /// Makes the buffer empty and keeps its memory: size() is 0, capacity() is unchanged. Host cost O(1), no
  /// driver call.
  void clear() noexcept { size_ = 0; }
  /// Frees the memory in the order of stream(). The buffer is empty and may be reused. Costs one
  /// deallocation.
  void reset() noexcept {
    if (data_ != nullptr) detail::free_block(memory_, stream_, data_, capacity_ * sizeof(T), alignment_);
    data_ = nullptr;
    size_ = capacity_ = 0;
  }
  /// Releases ownership. The caller deallocates through resource(), at alignment(), as many bytes as
  /// capacity() elements had before the call.
  [[nodiscard]] T* release() noexcept {
    size_ = capacity_ = 0;
    return detail::exchange(data_, nullptr);
  }

 protected:
  owned_elements() noexcept(detail::is_nothrow_absent<Resource>)
    requires detail::can_be_absent<Resource>
      : memory_(detail::absent_resource<Resource>()) {}
  owned_elements(Resource memory, stream_ref stream, std::size_t alignment, source_location where)
      : memory_(std::move(memory)), stream_(identified(memory_, stream, where)), alignment_(alignment) {}
  owned_elements(owned_elements&& other) noexcept
      : memory_(other.memory_),
        stream_(other.stream_),
        alignment_(other.alignment_),
        data_(detail::exchange(other.data_, nullptr)),
        size_(detail::exchange(other.size_, 0)),
        capacity_(detail::exchange(other.capacity_, 0)) {}
  /// Takes over the other's block; the old block is freed on its own stream. Self-move changes nothing.
  owned_elements& operator=(owned_elements&& other) noexcept {
    owned_elements stolen(std::move(other));
    swap(stolen);
    return *this;
  }
  ~owned_elements() { reset(); }

  void swap(owned_elements& other) noexcept {
    using std::swap;
    swap(memory_, other.memory_);
    swap(stream_, other.stream_);
    swap(alignment_, other.alignment_);
    swap(data_, other.data_);
    swap(size_, other.size_);
    swap(capacity_, other.capacity_);
  }

  Resource memory_;
  stream_ref stream_;
  std::size_t alignment_ = detail::alignment_of<T>;
  T* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

}  // namespace TARN_NAMESPACE
