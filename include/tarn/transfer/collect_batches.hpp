// SPDX-License-Identifier: Apache-2.0
#pragma once
// collect_batches: a loop over host batches of device memory; the next batches are copied back meanwhile.

#include <cstddef>
#include <iterator>
#include <span>
#include <type_traits>
#include <utility>

#include "tarn/core/layers.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/raii/stream.hpp"
#include "tarn/source/pinned_host.hpp"
#include "tarn/transfer/batch_options.hpp"
#include "tarn/transfer/copy_stream.hpp"
#include "tarn/transfer/pinned_slots.hpp"

namespace TARN_NAMESPACE {

/// The range that collect_batches() returns: a single-pass input range for one thread. Neither copyable nor
/// movable. Its end waits for the running copies; afterwards the device memory is no longer read.
template <class T, class Pinned, class Driver>
class batch_collector {
  static_assert(std::is_trivially_copyable_v<T>,
                "tarn: only trivially copyable elements can be copied between host and device");

 public:
  using value_type = T;
  using batch = host_batch<T>;
  /// A batch is in pinned memory, which the host may use until ++.
  using iterator = batch_iterator<batch_collector, batch>;

  /// See collect_batches().
  template <class Memory>
  batch_collector(std::span<T const> from, batch_options const& options, Memory const& memory,
                  stream_ref stream, Pinned pinned, source_location where = source_location::current())
      : from_(from),
        capacity_(detail::min_of(detail::batch_capacity(options, sizeof(T)),
                                 detail::max_of(from.size(), std::size_t{1}))),
        end_((from.size() + capacity_ - 1) / capacity_),
        depth_(detail::batch_depth(options, end_, capacity_ * sizeof(T))),
        slots_(std::move(pinned), depth_, capacity_),
        lane_(memory.driver(), identified(memory, stream, where), where) {
    lane_.make_events(depth_ + 1);
  }

  /// Starts the copies on the first call. A later call returns an iterator at the current batch.
  [[nodiscard]] iterator begin() {
    if (!detail::exchange(started_, true) && end_ != 0) start();
    return iterator(*this);
  }
  [[nodiscard]] std::default_sentinel_t end() const noexcept { return {}; }

 private:
  friend iterator;

  [[nodiscard]] std::size_t slot_of(std::size_t index) const noexcept { return index % depth_; }
  [[nodiscard]] bool is_over() const noexcept { return current_ == end_; }
  [[nodiscard]] std::span<T const> elements(std::size_t index) const noexcept {
    std::size_t const offset = index * capacity_;
    return from_.subspan(offset, detail::min_of(capacity_, from_.size() - offset));
  }
  [[nodiscard]] batch now() const noexcept {
    return {slots_[slot_of(current_)].first(elements(current_).size()), current_, current_ * capacity_};
  }

  void start() {
    lane_.mark_user(depth_);  // copies what the stream has written so far
    lane_.wait_for(depth_);
    while (sent_ < depth_) send();
    lane_.synchronize(slot_of(current_));
  }
  void next() {
    ++current_;
    if (sent_ != end_) send();  // into the slot that the host no longer uses
    if (!is_over()) lane_.synchronize(slot_of(current_));
  }
  void send() {
    std::span<T const> const part = elements(sent_);
    lane_.copy(slots_[slot_of(sent_)].data(), part.data(), part.size_bytes());
    lane_.mark(slot_of(sent_));
    ++sent_;
  }

  std::span<T const> from_;
  std::size_t capacity_;  ///< elements per slot
  std::size_t end_;       ///< number of batches
  std::size_t depth_;
  detail::pinned_slots<T, Pinned> slots_;
  detail::copy_stream<Driver> lane_;  ///< destroyed first; its destructor waits for the copies into the slots
  bool started_ = false;
  std::size_t current_ = 0;
  std::size_t sent_ = 0;
};

/// Copies device memory to the host in batches:
/// `for (auto batch : collect_batches(buffer, {.batch_bytes = 16_MiB}, stream))`.
/// Each batch is a host_batch: a contiguous range of pinned memory, valid until the loop advances. The next
/// batches are copied meanwhile on a separate stream. They contain what `stream` has written when the loop
/// begins; the body must not change it.
/// @param from     device memory, or a device_buffer; must outlive the loop
/// @param memory   identifies the device of `from`
/// @param pinned   provides the slots; preferably a pool that is kept over several loops
/// The loop may be left at any time, also by exceptions: destruction waits for the running copies, and
/// nothing leaks. The host waits for the next batch. @throws as stream_batches()
template <class T, std::size_t N, class Memory, class Pinned>
  requires resource<Memory> && resource<Pinned>
[[nodiscard]] auto collect_batches(std::span<T, N> from, batch_options const& options, Memory const& memory,
                                   stream_ref stream, Pinned pinned,
                                   source_location where = source_location::current()) {
  return detail::called_from(where, [&] {
    return batch_collector<std::remove_const_t<T>, Pinned, typename Memory::driver_type>(
        from, options, detail::required(memory, where), stream, std::move(pinned), where);
  });
}
template <class T, std::size_t N, class Memory>
  requires resource<Memory>
[[nodiscard]] auto collect_batches(std::span<T, N> from, batch_options const& options, Memory const& memory,
                                   stream_ref stream, source_location where = source_location::current()) {
  basic_pinned<typename Memory::driver_type> pinned(detail::required(memory, where).driver());
  return collect_batches(from, options, memory, stream, std::move(pinned), where);
}
template <class T, class Memory>
[[nodiscard]] auto collect_batches(device_buffer<T, Memory> const& from, batch_options const& options,
                                   stream_ref stream, source_location where = source_location::current()) {
  return collect_batches(from.span(), options, from.resource(), stream, where);
}
template <class T, class Memory, class Pinned>
  requires resource<Pinned>
[[nodiscard]] auto collect_batches(device_buffer<T, Memory> const& from, batch_options const& options,
                                   stream_ref stream, Pinned pinned,
                                   source_location where = source_location::current()) {
  return collect_batches(from.span(), options, from.resource(), stream, std::move(pinned), where);
}
// clang-format off
template <class T, class Memory, class... Rest>
void collect_batches(device_buffer<T, Memory> const&&, batch_options const&, Rest const&...) = delete;  // this temporary is destroyed before the loop begins; store it in a variable first
// clang-format on

}  // namespace TARN_NAMESPACE
