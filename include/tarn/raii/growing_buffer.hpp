// SPDX-License-Identifier: Apache-2.0
#pragma once
// growing_buffer<T>: an array in device memory that grows without a copy, at one address.

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "tarn/core/bytes.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/layers.hpp"
#include "tarn/core/message.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/pool_call.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/raii/copy.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/raii/stream.hpp"

namespace TARN_NAMESPACE {

/// How a growing_buffer grows.
struct growing_options {
  /// Bytes that it grows by at least, rounded up to 2 MiB; 0 is a sixteenth of its capacity, between 2 and 32
  /// MiB. What is unused at the end is less than one step.
  std::size_t step = 0;
};

namespace detail {
inline constexpr std::size_t growing_grain = 2_MiB;
inline constexpr std::size_t largest_growing_step = 32_MiB;
}  // namespace detail

/// An array that grows up to `most` elements and whose elements never move: it reserves addresses for all of
/// them and maps memory of the pool behind these as it grows. So data() is the same for its whole life,
/// kernels and captured graphs may keep it, and growth copies nothing. Elements are never constructed: T is
/// trivially copyable.
///
/// Its memory is the pool's: whole physical handles, free ones that its stream can be ordered behind, and new
/// ones where there are none. Layers above the pool count, limit, tag and record each growth as an allocation
/// of its bytes, and each shrink as a deallocation. An operation that needs no more capacity makes no driver
/// call and no call of the pool; growth costs 36 us for each handle that is mapped (H200).
///
/// Where the memory is not pages of up to 2 MiB, or a layer moves addresses (`fenced`, `checked`), it grows
/// by doubling and a copy, and keeps_address() is false. One thread at a time. Every operation is ordered on
/// stream().
///
/// Where it grows again over what it gave back, the host may wait: for the work on those elements, if other
/// memory has to be mapped there, and for streams that record_stream() named. While a graph may use them, or
/// a capture_scope that is open prevents the wait, growth throws cuda_error. The destructor waits for a
/// growth of the pool that another thread is in.
template <class T, class Resource = detail::default_device_resource<T>>
class growing_buffer {
  static_assert(std::is_trivially_copyable_v<T>,
                "tarn: growing_buffer<T> never constructs elements: T must be trivially copyable");

 public:
  using value_type = T;
  using resource_type = Resource;

  /// Reserves addresses for `most` elements and allocates nothing.
  /// @throws length_error   most * sizeof(T) overflows
  /// @throws out_of_memory  the pool has no addresses left for as many: it has eight times the device's
  ///                        memory for all views and growing buffers together
  /// @throws misuse         each block of the pool lies in one handle (handles_per_block::one)
  explicit growing_buffer(Resource memory, std::size_t most, stream_ref stream, growing_options options = {},
                          source_location where = source_location::current())
      : copied_(std::move(memory), stream, detail::alignment_of<T>, where),
        most_(most),
        step_(align_up(detail::min_of(options.step, max_request_bytes), detail::growing_grain)) {
    std::size_t const bytes = checked_bytes(most, sizeof(T));
    if constexpr (grows_in_place) {
      detail::called_from(where, [&] {
        if (nearest(resource(), pool_call::has_one_handle{}))
          throw misuse(misuse_kind::no_resource, nullptr,
                       "growing_buffer needs several handles for one block; use a pool without "
                       "handles_per_block::one");
        if (bytes != 0)
          base_ = static_cast<T*>(
              nearest(resource(), pool_call::reserve_growing{align_up(bytes, detail::growing_grain)}));
      });
    }
  }
  growing_buffer(growing_buffer const&) = delete;  // copies are explicit: buffer.clone(stream)
  growing_buffer& operator=(growing_buffer const&) = delete;
  /// The moved-from buffer is empty and cannot grow: its addresses are this one's.
  growing_buffer(growing_buffer&& other) noexcept
      : copied_(std::move(other.copied_)),
        base_(detail::exchange(other.base_, nullptr)),
        most_(detail::exchange(other.most_, 0)),
        step_(other.step_),
        size_(detail::exchange(other.size_, 0)),
        held_(detail::exchange(other.held_, 0)),
        steps_(std::move(other.steps_)) {}
  growing_buffer& operator=(growing_buffer&& other) noexcept {
    growing_buffer stolen(std::move(other));
    swap(stolen);
    return *this;
  }
  ~growing_buffer() {
    if constexpr (grows_in_place) {
      if (base_ == nullptr) return;
      release_down_to(0);
      nearest(resource(), pool_call::end_growing{base_});
    }
  }

  /// Whether the elements never move: data() stays the same until the buffer is destroyed.
  [[nodiscard]] bool keeps_address() const noexcept { return base_ != nullptr; }
  [[nodiscard]] T* data() noexcept { return base_ != nullptr ? base_ : copied_.data(); }
  [[nodiscard]] T const* data() const noexcept { return base_ != nullptr ? base_ : copied_.data(); }
  [[nodiscard]] std::span<T> span() noexcept { return {data(), size_}; }
  [[nodiscard]] std::span<T const> span() const noexcept { return {data(), size_}; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  /// Elements for which there is memory.
  [[nodiscard]] std::size_t capacity() const noexcept {
    return base_ != nullptr ? detail::min_of(held_ / sizeof(T), most_) : copied_.capacity();
  }
  /// Elements for which there are addresses.
  [[nodiscard]] std::size_t max_size() const noexcept { return most_; }
  [[nodiscard]] stream_ref stream() const noexcept { return copied_.stream(); }
  [[nodiscard]] Resource const& resource() const noexcept { return copied_.resource(); }

  /// Appends a copy of host or device elements, also of its own, in stream order. @throws as reserve();
  /// cuda_error: nothing has changed
  void append(std::span<T const> from, attribution call = attribution::current()) {
    if (from.size() > most_ - size_) refuse(from.size(), call.where);
    std::size_t const place =
        reinterpret_cast<std::uintptr_t>(from.data()) - reinterpret_cast<std::uintptr_t>(data());
    bool const is_own = place < size_ * sizeof(T);
    reserve(size_ + from.size(), call);
    if (is_own) from = {data() + place / sizeof(T), from.size()};  // they may have moved
    std::span<T> const to(data() + size_, from.size());
    auto const on = detail::stream_on(resource(), stream());
    detail::in_turn(
        on, [&] { tarn::copy(on.driver, from, to, on.stream, call.where); }, call.where);
    size_ += from.size();
  }
  /// Changes the number of elements. New ones are uninitialised; a smaller buffer keeps its memory.
  /// @throws as reserve()
  void resize(std::size_t count, attribution call = attribution::current()) {
    reserve(count, call);
    size_ = count;
  }
  /// Gets memory for `count` elements.
  /// @throws length_error   more than max_size(); nothing has changed
  /// @throws out_of_memory  likewise
  /// @throws cuda_error     likewise; also while the stream is captured into a graph
  void reserve(std::size_t count, attribution call = attribution::current()) {
    if (count <= capacity()) return;
    if (count > most_) refuse(count - size_, call.where);
    if (base_ == nullptr) {
      copied_.resize(size_, call);
      copied_.reserve(detail::min_of(detail::max_of(count, 2 * capacity()), most_), call);
      return;
    }
    if constexpr (grows_in_place) detail::called_from<Resource>(call, [&] { grow(count * sizeof(T)); });
  }
  /// Gives back, in stream order, what size() elements do not need: whole steps, the last ones first. Graphs
  /// that use those elements must not run any more.
  void shrink_to_fit(attribution call = attribution::current()) {
    if (base_ == nullptr) {
      copied_.resize(size_, call);
      return copied_.shrink_to_fit(call);
    }
    if constexpr (grows_in_place) release_down_to(size_ * sizeof(T));
  }
  /// Makes the buffer empty and keeps its memory.
  void clear() noexcept { size_ = 0; }
  /// Gives all memory back in the order of stream(), and keeps the addresses.
  void reset() noexcept {
    size_ = 0;
    copied_.reset();
    if constexpr (grows_in_place) release_down_to(0);
  }
  /// Sets every byte of the elements, in stream order. @throws cuda_error
  void fill(std::byte value, source_location where = source_location::current()) {
    if (size_ == 0) return;
    detail::fill_in_turn(detail::stream_on(resource(), stream()), data(), value, size_ * sizeof(T), where);
  }
  /// Changes the buffer's stream: later work on `stream` waits, on the device, for what was enqueued on the
  /// old one. Both exist. @throws cuda_error  nothing has changed
  void set_stream(stream_ref stream, source_location where = source_location::current()) {
    stream_ref now = this->stream();
    detail::change_stream(resource(), held_ != 0 ? base_ : nullptr, now, stream, where);
    copied_.set_stream(now, where);
  }

  /// Records that work on `stream`, enqueued before the memory is given back, uses it. O(steps)
  /// @throws std::bad_alloc, cuda_error
  void record_stream(stream_ref stream, source_location where = source_location::current()) const
    requires requires(Resource& memory) { memory.record_stream(nullptr, std::size_t{}, stream_ref{}); }
  {
    if (base_ == nullptr) return copied_.record_stream(stream, where);
    auto* at = reinterpret_cast<std::byte*>(base_);
    for (std::size_t const step : steps_) {
      detail::called_from(where, [&] { resource().record_stream(at, step, stream); });
      at += step;
    }
  }

  /// Returns a copy on `stream`, from the same resource, which can grow as far. Both streams wait for the
  /// copy, on the device. @throws out_of_memory, cuda_error  nothing has changed
  [[nodiscard]] growing_buffer clone(stream_ref stream, attribution call = attribution::current()) const {
    growing_buffer made(resource(), most_, stream, {step_}, call.where);
    made.reserve(size_, call);
    auto const& driver = resource().driver();
    detail::in_turn(
        detail::stream_on(resource(), made.stream()),
        [&] { tarn::copy(driver, span(), std::span<T>(made.data(), size_), made.stream(), call.where); },
        call.where, detail::stream_on(resource(), this->stream()));
    made.size_ = size_;
    return made;
  }

  void swap(growing_buffer& other) noexcept {
    using std::swap;
    copied_.swap(other.copied_);
    swap(base_, other.base_);
    swap(most_, other.most_);
    swap(step_, other.step_);
    swap(size_, other.size_);
    swap(held_, other.held_);
    steps_.swap(other.steps_);
  }
  friend void swap(growing_buffer& a, growing_buffer& b) noexcept { a.swap(b); }

 private:
  /// Whether the pool and all layers above it can make blocks that follow each other.
  static constexpr bool grows_in_place = has_allocate_at<Resource>;

  [[nodiscard]] std::byte* end_of_memory() const noexcept {
    return reinterpret_cast<std::byte*>(base_) + held_;
  }
  /// Takes one more block: a step if the pool has it, otherwise what is needed.
  void grow(std::size_t bytes) {
    Resource memory = resource();
    std::size_t const all = align_up(most_ * sizeof(T), detail::growing_grain);
    std::size_t const least = align_up(bytes - held_, detail::growing_grain);
    std::size_t const usual =
        step_ != 0 ? step_
                   : detail::max_of(align_down(detail::min_of(held_ / 16, detail::largest_growing_step),
                                               detail::growing_grain),
                                    detail::growing_grain);
    std::size_t const step = detail::min_of(detail::max_of(least, usual), all - held_);
    steps_.reserve(steps_.size() + 1);
    auto const take = [&](std::size_t wanted, bool may_be_more) {
      // Whatever handles are free: no more than a step, or a quarter, beside what is wanted.
      std::size_t n = may_be_more
                          ? nearest(memory, pool_call::suggest_growth{stream(), end_of_memory(), wanted})
                          : wanted;
      if (n > all - held_ || n > wanted + detail::max_of(usual, wanted / 4)) n = wanted;
      void* const p = memory.allocate_at(stream(), end_of_memory(), n, default_alignment);
      if (p != end_of_memory()) {
        memory.deallocate_at(stream(), p, n, default_alignment);
        throw misuse(misuse_kind::foreign_pointer, p,
                     "a layer moves the blocks of a growing_buffer; add to it: void allocate_at() = delete;");
      }
      steps_.push_back(n);
      held_ += n;
    };
    try {
      take(step, true);
    } catch (out_of_memory const&) {
      take(least, false);
    }
  }
  void release_down_to(std::size_t bytes) noexcept {
    Resource memory = resource();
    while (!steps_.empty() && held_ - steps_.back() >= bytes) {
      held_ -= steps_.back();
      memory.deallocate_at(stream(), end_of_memory(), steps_.back(), default_alignment);
      steps_.pop_back();
    }
  }
  [[noreturn]] TARN_NOINLINE void refuse(std::size_t more, source_location where) const {
    message<256> text;
    text.add("tarn: growing_buffer has addresses for ").add_number(static_cast<std::uint64_t>(most_));
    text.add(" elements; ").add_number(static_cast<std::uint64_t>(more)).add(" more than its ");
    text.add_number(static_cast<std::uint64_t>(size_)).add(" do not fit; make it with a larger `most`");
    throw detail::at(where, length_error(text.view()));
  }

  device_buffer<T, Resource> copied_;  ///< the resource, the stream; and the elements, where they move
  T* base_ = nullptr;                  ///< null if the elements move, or in a moved-from buffer
  std::size_t most_ = 0;
  std::size_t step_ = 0;
  std::size_t size_ = 0;
  std::size_t held_ = 0;                 ///< bytes from base_ on that have memory
  detail::sequence<std::size_t> steps_;  ///< bytes of each block, in order
};

}  // namespace TARN_NAMESPACE
