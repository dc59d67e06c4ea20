// SPDX-License-Identifier: Apache-2.0
#pragma once
// stream_batches: a loop over device batches of a host source; the next batches are filled and copied
// meanwhile.
//
//   threads   fill pinned slot i               wait for copied[i] of the slot's last batch (looping thread, then opens it)
//   lane      copy pinned i -> device i        waits on the device for released[i] of the slot's last batch; records copied[i]
//   user      the body's work on device i      waits on the device for copied[i]; ++ records released[i]
//
// Only the looping thread calls the driver. For the other direction, see collect_batches.

#include <cstddef>
#include <iterator>
#include <optional>
#include <span>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "tarn/core/bytes.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/raii/stream.hpp"
#include "tarn/transfer/batch_options.hpp"
#include "tarn/transfer/batch_source.hpp"
#include "tarn/transfer/copy_stream.hpp"
#include "tarn/transfer/fill_threads.hpp"
#include "tarn/transfer/pinned_slots.hpp"

namespace TARN_NAMESPACE {

/// The range that stream_batches() returns: a single-pass input range for one thread. Neither copyable nor
/// movable. Its end stops filling and waits for the running copies; the body's work continues. Afterwards the
/// source is no longer read.
template <class Source, class Memory, class Pinned>
class batch_stream {
 public:
  using value_type = typename Source::value_type;
  using batch = device_batch<value_type>;
  /// A batch may be used by work on the loop's stream until ++; work that the body enqueued before may still
  /// use it afterwards.
  using iterator = batch_iterator<batch_stream, batch>;
  static_assert(has_property<Memory, device_accessible>,
                "tarn: batches are streamed to memory that the device can access");

  /// See stream_batches().
  batch_stream(Source source, batch_options const& options, Memory memory, stream_ref stream, Pinned pinned,
               source_location where = source_location::current())
      : source_(std::move(source)),
        capacity_(capacity_for(source_.size(), detail::batch_capacity(options, sizeof(value_type)))),
        end_(batches_of(source_.size(), capacity_)),
        depth_(detail::batch_depth(options, end_, capacity_ * sizeof(value_type))),
        threads_wanted_(threads_for(options)),
        host_depth_(detail::min_of(host_depth_for(depth_, threads_wanted_), end_)),
        lane_(detail::required(memory, where).driver(), identified(memory, stream, where), where) {
    device_.reserve(depth_);
    while (device_.size() < depth_) device_.emplace_back(memory, capacity_, lane_.user(), where);
    lane_.make_events(host_depth_ + depth_ + 1);
    sizes_.resize(depth_);
    if constexpr (Source::is_staged) {
      if (depth_ != 0) stage(std::move(pinned));
    }
  }

  /// Starts the loop on the first call. A later call returns an iterator at the current batch.
  [[nodiscard]] iterator begin() {
    if (!detail::exchange(started_, true) && end_ != 0) start();
    return iterator(*this);
  }
  [[nodiscard]] std::default_sentinel_t end() const noexcept { return {}; }

 private:
  friend iterator;

  /// Limits a slot to the size of the source, but to at least one element.
  static std::size_t capacity_for(std::size_t size, std::size_t most) noexcept {
    return detail::min_of(most, detail::max_of(size, std::size_t{1}));
  }
  static std::size_t batches_of(std::size_t size, std::size_t capacity) noexcept {
    return size == detail::unknown_count ? size : (size + capacity - 1) / capacity;
  }

  /// One more than the device slots if threads fill, so that they do not wait for the copy. If each slot is
  /// filled by a single thread, each thread gets a slot.
  static std::size_t host_depth_for(std::size_t depth, std::size_t threads) noexcept {
    if (depth == 0 || threads == 0) return depth;
    if constexpr (Source::is_staged) {
      if (!Source::is_divisible) return detail::max_of(depth, threads) + 1;
    }
    return depth + 1;
  }
  [[nodiscard]] std::size_t slot_of(std::size_t index) const noexcept { return index % depth_; }
  [[nodiscard]] std::size_t host_slot_of(std::size_t index) const noexcept { return index % host_depth_; }
  // Indices of the lane's events: copied per host slot, released per device slot, and one for the user's
  // stream at the start.
  [[nodiscard]] std::size_t copied(std::size_t index) const noexcept { return host_slot_of(index); }
  [[nodiscard]] std::size_t released(std::size_t index) const noexcept {
    return host_depth_ + slot_of(index);
  }
  [[nodiscard]] std::size_t beginning() const noexcept { return host_depth_ + depth_; }

  [[nodiscard]] bool is_over() const noexcept { return current_ == end_; }
  [[nodiscard]] batch now() noexcept {
    extent const e = sizes_[slot_of(current_)];
    return {device_[slot_of(current_)].span().first(e.size), current_, e.offset};
  }

  void start() {
    // The slots were allocated in stream order, so earlier work on the stream may still use their memory.
    lane_.mark_user(beginning());
    lane_.wait_for(beginning());
    make_ready();
  }
  void next() {
    lane_.mark_user(released(current_));
    ++current_;
    make_ready();
  }

  /// Enqueues the copy of the current batch, and of the following ones that need no waiting.
  void make_ready() {
    while (sent_ <= current_ && sent_ != end_) send();
    while (sent_ != end_ && sent_ < current_ + depth_ && is_filled()) send();
    if (!is_over()) lane_.let_user_wait(copied(current_));
  }

  /// Whether the next batch can be sent without waiting. Opens all free slots.
  [[nodiscard]] bool is_filled() {
    if constexpr (Source::is_staged) {
      while (threads_->opened() != end_ && threads_->opened() < sent_ + host_depth_ &&
             slot_is_free(threads_->opened())) {
        threads_->open();
      }
      return sent_ < threads_->opened() && threads_->is_filled(sent_);
    } else {
      return true;
    }
  }
  /// Whether no copy still reads the pinned slot of a batch.
  [[nodiscard]] bool slot_is_free(std::size_t index) {
    return index < host_depth_ || lane_.is_past(copied(index));
  }

  /// Copies the next batch; the slot's last batch was released. Ends the range when the source ends.
  void send() {
    value_type const* from = nullptr;
    std::size_t size = 0;
    if constexpr (Source::is_staged) {
      if (!is_filled()) {
        while (threads_->opened() <= sent_) {
          lane_.synchronize(copied(threads_->opened()));
          threads_->open();
        }
      }
      size = threads_->take(sent_);
      if (size == 0) {
        end_ = sent_;
        return;
      }
      from = (*pinned_)[host_slot_of(sent_)].data();
    } else {
      size = detail::min_of(capacity_, source_.size() - offset_);
      from = source_.data() + offset_;
    }
    if (sent_ >= depth_) lane_.wait_for(released(sent_));
    lane_.copy(device_[slot_of(sent_)].data(), from, size * sizeof(value_type));
    lane_.mark(copied(sent_));
    sizes_[slot_of(sent_)] = {size, offset_};
    offset_ += size;
    ++sent_;
  }

  void stage(Pinned pinned) {
    pinned_.emplace(std::move(pinned), host_depth_, capacity_);
    // Parts below 256 KiB cost more to distribute than to copy.
    constexpr std::size_t least_part = 256_KiB;
    std::size_t const parts = capacity_ * sizeof(value_type) / least_part;
    std::size_t pieces = 1;
    if (Source::is_divisible) pieces = detail::max_of(detail::min_of(threads_wanted_, parts), std::size_t{1});
    threads_.emplace(
        static_cast<unsigned>(threads_wanted_), pieces, host_depth_,
        [this, pieces](std::size_t index, std::size_t piece) { return fill(index, piece, pieces); });
  }
  /// Returns the number of useful threads: below 64 MiB, starting threads takes longer than they save.
  [[nodiscard]] std::size_t threads_for(batch_options const& options) const {
    if constexpr (Source::is_staged) {
      if (options.threads != 0) return options.threads;
      if (!Source::is_divisible || source_.size() < 64_MiB / sizeof(value_type)) return 0;
      return detail::min_of(detail::max_of(std::thread::hardware_concurrency(), 2U) - 1, 8U);
    } else {
      return 0;
    }
  }
  /// Fills one piece of a batch's pinned slot. Called by the threads.
  std::size_t fill(std::size_t index, std::size_t piece, std::size_t pieces) {
    if constexpr (Source::is_staged) {
      std::span<value_type> slot = (*pinned_)[host_slot_of(index)];
      std::size_t const offset = source_.size() == detail::unknown_count ? 0 : index * capacity_;
      if (source_.size() != detail::unknown_count) {
        slot = slot.first(detail::min_of(capacity_, source_.size() - offset));
      }
      std::size_t const share = (slot.size() + pieces - 1) / pieces;
      std::size_t const from = detail::min_of(piece * share, slot.size());
      std::size_t const to = detail::min_of(from + share, slot.size());
      return source_.fill(slot.subspan(from, to - from), index, offset + from);
    } else {
      return 0;
    }
  }

  struct extent {
    std::size_t size = 0;
    std::size_t offset = 0;
  };

  // Destruction order, last member first: the threads end, the lane waits for its copies, then the slots are
  // freed.
  Source source_;
  std::size_t capacity_;  ///< elements per slot
  std::size_t end_;       ///< number of batches, if known
  std::size_t depth_;
  std::size_t threads_wanted_;
  std::size_t host_depth_;  ///< number of pinned slots, if copies are staged
  std::vector<device_buffer<value_type, Memory>> device_;
  std::optional<detail::pinned_slots<value_type, Pinned>> pinned_;
  detail::copy_stream<typename Memory::driver_type> lane_;
  std::vector<extent> sizes_;  ///< contents of each slot
  std::optional<detail::fill_threads> threads_;
  bool started_ = false;
  std::size_t current_ = 0;  ///< index of the body's current batch
  std::size_t sent_ = 0;     ///< number of batches whose copy is enqueued
  std::size_t offset_ = 0;   ///< number of elements in those batches
};

/// Streams a source to the device: `for (auto batch : stream_batches(source, {.batch_bytes = 16_MiB}, pool,
/// stream))`. Each batch is a device_batch: elements in device memory, ready for work that the body enqueues
/// on `stream`. The next batches are filled and copied meanwhile on a separate stream. The last batch has the
/// remaining elements; an empty source yields no batch.
/// @param source   contiguous memory (a span, a named vector: pageable), a pinned_buffer or pinned(span),
/// from_file<T>(file),
///                 generate<T>(callable); it must outlive the loop
/// @param memory   provides the device slots, in the order of `stream`
/// @param pinned   provides the slots in which a source that is not pinned is staged: best a pool, kept over
/// several loops;
///                 by default the driver's pinned memory: some 450 ms per GiB at each loop, and freeing it stops the device
/// The loop may be left at any time, also by exceptions: destruction waits on the host for the running
/// copies, and thus for the body's work on the batches that they replace; nothing leaks. An exception of a
/// source or generator is thrown from the loop in place of its batch, whichever thread it occurred on;
/// afterwards the range may only be destroyed.
/// @throws bad_batch  the options cannot be met; misuse  `stream` is being captured; out_of_memory,
/// cuda_error,
///                    std::system_error (no thread)
/// The host waits only for a pinned slot to be filled or copied; with a pinned source it never waits. Six
/// driver calls per batch, some 2 to 3 µs on the host, or eight if it is staged. With a pinned source the
/// loop copies at the speed of the device; with others as fast as `threads` can fill.
template <class Source, class Memory, class Pinned>
  requires resource<Memory> && resource<Pinned>
[[nodiscard]] auto stream_batches(Source&& source, batch_options const& options, Memory memory,
                                  stream_ref stream, Pinned pinned,
                                  source_location where = source_location::current()) {
  return detail::called_from(where, [&] {
    return batch_stream<detail::batch_source_of<Source>, Memory, Pinned>(
        detail::as_batch_source(std::forward<Source>(source)), options, std::move(memory), stream,
        std::move(pinned), where);
  });
}
template <class Source, class Memory>
  requires resource<Memory>
[[nodiscard]] auto stream_batches(Source&& source, batch_options const& options, Memory memory,
                                  stream_ref stream, source_location where = source_location::current()) {
  basic_pinned<typename Memory::driver_type> pinned(detail::required(memory, where).driver());
  return stream_batches(std::forward<Source>(source), options, std::move(memory), stream, std::move(pinned),
                        where);
}

}  // namespace TARN_NAMESPACE
