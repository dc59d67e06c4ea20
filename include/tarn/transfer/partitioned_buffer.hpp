// SPDX-License-Identifier: Apache-2.0
#pragma once
// partitioned_buffer<T>: one array divided over several devices; each part is on its device with its own
// stream.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "tarn/core/error.hpp"
#include "tarn/core/message.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/driver/all_work.hpp"
#include "tarn/raii/copy.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/raii/device_guard.hpp"
#include "tarn/raii/stream.hpp"
#include "tarn/transfer/peer_copy.hpp"
#include "tarn/transfer/per_device.hpp"

namespace TARN_NAMESPACE {

// Divides elements into contiguous parts, evenly or by weight.

/// Reports a partition that cannot be made, and why.
class bad_partition : public detail::error_of<std::invalid_argument, 320> {
 public:
  explicit bad_partition(std::string_view text) { text_.add(text); }
};

/// Divides elements 0 to size() into contiguous parts. Each element is in exactly one part; parts may be
/// empty. A value type.
class partition_layout {
 public:
  /// Constructs a partition without elements and parts.
  partition_layout() = default;
  /// Divides into parts whose sizes differ by at most one step.
  /// @param multiple_of  the step: a part begins at a multiple of this many elements (a row, a cache line)
  /// @throws bad_partition  `parts` or `multiple_of` is 0
  [[nodiscard]] static partition_layout even(std::size_t count, std::size_t parts,
                                             std::size_t multiple_of = 1,
                                             source_location where = source_location::current()) {
    partition_layout made(count, parts, multiple_of, where);
    std::size_t const steps = steps_of(count, multiple_of);
    for (std::size_t i = 1; i < parts; ++i) {
      std::size_t const before = steps / parts * i + detail::min_of(i, steps % parts);
      made.first_[i] = position_of(before, count, multiple_of);
    }
    return made;
  }
  /// Divides in proportion to weights (memory, speed); each part is within one step of its share.
  /// @throws bad_partition  no weights, a weight is negative or not finite, no weight is positive, or
  /// `multiple_of` is 0
  [[nodiscard]] static partition_layout weighted(std::size_t count, std::span<double const> weights,
                                                 std::size_t multiple_of = 1,
                                                 source_location where = source_location::current()) {
    partition_layout made(count, weights.size(), multiple_of, where);
    // Not double: it would round positions above 2^53, and large weights would add up to infinity.
    long double total = 0;
    for (double const w : weights) {
      if (!(w >= 0) || !std::isfinite(w)) refuse("a weight must be a finite number of at least 0", where);
      total += w;
    }
    if (!(total > 0) || !std::isfinite(total)) refuse("the weights must add up to a number above 0", where);
    auto const steps = static_cast<long double>(steps_of(count, multiple_of));
    long double before = 0;
    for (std::size_t i = 1; i < weights.size(); ++i) {
      before += weights[i - 1];
      long double const position = std::floor(steps * (before / total) + 0.5L);
      // Also covers rounding beyond the last step, and step counts that a long double of few bits cannot
      // represent.
      made.first_[i] =
          position >= steps ? count : position_of(static_cast<std::size_t>(position), count, multiple_of);
    }
    return made;
  }

  /// Returns the total number of elements.
  [[nodiscard]] std::size_t size() const noexcept { return first_.empty() ? 0 : first_.back(); }
  /// Returns the number of parts.
  [[nodiscard]] std::size_t parts() const noexcept { return first_.empty() ? 0 : first_.size() - 1; }
  /// Returns the first element of part i.
  [[nodiscard]] std::size_t first(std::size_t i) const noexcept { return first_[i]; }
  /// Returns the number of elements of part i.
  [[nodiscard]] std::size_t size(std::size_t i) const noexcept { return first_[i + 1] - first_[i]; }
  /// Returns the part that contains an element. @param element  below size(). O(log parts).
  [[nodiscard]] std::size_t part_of(std::size_t element) const noexcept {
    auto const next = std::upper_bound(first_.begin(), first_.end(), element);
    return static_cast<std::size_t>(next - first_.begin()) - 1;
  }

  friend bool operator==(partition_layout const&, partition_layout const&) = default;

 private:
  partition_layout(std::size_t count, std::size_t parts, std::size_t multiple_of, source_location where) {
    if (parts == 0) refuse("it needs at least one part", where);
    if (parts >= first_.max_size()) refuse("the number of parts is too large; check it for overflow", where);
    if (multiple_of == 0) refuse("the multiple at which parts begin must be at least 1 element", where);
    first_.resize(parts + 1);
    first_.back() = count;
  }
  static std::size_t steps_of(std::size_t count, std::size_t multiple_of) noexcept {
    return count / multiple_of + (count % multiple_of != 0 ? 1 : 0);
  }
  static std::size_t position_of(std::size_t step, std::size_t count, std::size_t multiple_of) noexcept {
    return step > count / multiple_of ? count : step * multiple_of;
  }
  [[noreturn]] static void refuse(char const* why, source_location where) {
    throw detail::at(where, bad_partition(message<128>("tarn: invalid partition: ", why).view()));
  }

  std::vector<std::size_t> first_;
};

using partition [[deprecated("write partition_layout")]] = partition_layout;

namespace detail {

/// Makes the device of a part current while its work is enqueued, for drivers that have a current device.
template <class Driver>
concept has_current_device = requires(device_id device) { Driver::set_current_device(device); };
struct no_guard {
  explicit constexpr no_guard(device_id) noexcept {}
};

}  // namespace detail

/// Owns size() uninitialised elements; part i is in a block of memory i. Each part's work is ordered on its
/// own stream; parts run concurrently, and the host waits only where documented. Several parts may be on one
/// device. Movable, not copyable. One thread at a time. A default-constructed or moved-from buffer has no
/// elements and no parts, and may be assigned. A constructor that throws frees the parts allocated so far.
template <class T, class Resource = detail::default_device_resource<T>>
class partitioned_buffer {
 public:
  using value_type = T;
  using resource_type = Resource;
  using driver_type = typename Resource::driver_type;
  using part_type = device_buffer<T, Resource>;

  /// Argument of the for_each_part() callback: elements [first, first + elements.size()) of the whole.
  struct part_ref {
    std::size_t index;
    std::size_t first;
    part_type& elements;
    stream_ref stream;
  };

  /// Constructs a buffer without parts.
  partitioned_buffer() = default;
  /// Allocates part i from memory i.
  /// @throws bad_partition  the number of memories differs from the number of parts
  /// @throws length_error, out_of_memory, cuda_error; nothing is held
  partitioned_buffer(std::span<Resource const> memories, partition_layout parts,
                     attribution call = attribution::current())
      : layout_(std::move(parts)) {
    if (memories.size() != layout_.parts()) {
      message<160> const text("tarn: ", layout_.parts(), " parts and ", memories.size(),
                              " memories; pass one memory per part");
      throw detail::at(call.where, bad_partition(text.view()));
    }
    parts_.reserve(memories.size());
    for (std::size_t i = 0; i < memories.size(); ++i) parts_.emplace_back(memories[i], layout_.size(i), call);
  }
  /// Allocates part i from the pool of device i of `devices`.
  template <class Make>
  partitioned_buffer(per_device<Resource, Make>& pools, std::span<device_id const> devices,
                     partition_layout parts, attribution call = attribution::current())
      : partitioned_buffer(std::span<Resource const>(pools_of(pools, devices)), std::move(parts), call) {}
  /// Divides `count` elements evenly.
  template <class Make>
  partitioned_buffer(per_device<Resource, Make>& pools, std::span<device_id const> devices, std::size_t count,
                     attribution call = attribution::current())
      : partitioned_buffer(pools, devices, partition_layout::even(count, devices.size()), call) {}

  partitioned_buffer(partitioned_buffer&&) noexcept = default;
  /// Takes over the other's parts; the old ones are freed on their streams. Self-move changes nothing.
  partitioned_buffer& operator=(partitioned_buffer other) noexcept {
    std::swap(layout_, other.layout_);
    parts_.swap(other.parts_);
    return *this;
  }

  /// Returns the total number of elements.
  [[nodiscard]] std::size_t size() const noexcept { return layout_.size(); }
  [[nodiscard]] std::size_t parts() const noexcept { return parts_.size(); }
  [[nodiscard]] partition_layout const& layout() const noexcept { return layout_; }
  /// Returns part i, a buffer on its device with the stream stream(i). Do not change its size or its stream.
  [[nodiscard]] part_type& part(std::size_t i) noexcept { return parts_[i].elements; }
  [[nodiscard]] part_type const& part(std::size_t i) const noexcept { return parts_[i].elements; }
  [[nodiscard]] stream_ref stream(std::size_t i) const noexcept { return parts_[i].stream.ref(); }
  [[nodiscard]] device_id device(std::size_t i) const noexcept { return driver(i).device(); }

  /// Calls `call(part_ref)` for each part with its device current; the callback enqueues the part's work on
  /// its stream.
  template <class Call>
  void for_each_part(Call const& call) {
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      [[maybe_unused]] guard const here(device(i));
      call(part_ref{i, layout_.first(i), part(i), stream(i)});
    }
  }

  /// Copies from size() host elements, each part in its stream's order. From pinned memory, which must be
  /// kept until the streams have completed the copies, all devices copy concurrently; from other memory they
  /// copy one after the other.
  /// @throws length_error  the number of elements differs; nothing is copied
  /// @throws cuda_error    some parts may have been copied
  void scatter(std::span<T const> from, source_location where = source_location::current()) {
    require_size("scatter", from.size(), where);
    for (std::size_t i = 0; i < parts_.size(); ++i) part(i).copy_from(piece(from, i), where);
  }
  /// Copies to size() host elements in the same way. @throws as scatter
  void gather(std::span<T> to, source_location where = source_location::current()) const {
    require_size("gather", to.size(), where);
    for (std::size_t i = 0; i < parts_.size(); ++i) part(i).copy_to(piece(to, i), where);
  }
  /// Copies as gather() does, then waits for all copies, so that the host may read. It waits also if it
  /// throws, so `to` may be freed.
  void gather_sync(std::span<T> to, source_location where = source_location::current()) const {
    try {
      gather(to, where);
    } catch (...) {
      (void)finish();
      throw;
    }
    synchronize(where);
  }
  /// Copies from another division of the same number of elements, piece by piece between the devices, ordered
  /// with the streams of all parts involved; either buffer may be changed or destroyed at once. @throws as
  /// scatter
  template <class Other>
    requires std::is_same_v<typename Other::driver_type, driver_type>
  void copy_from(partitioned_buffer<T, Other> const& other,
                 source_location where = source_location::current()) {
    require_size("copy_from", other.size(), where);
    for (std::size_t at = 0; at < size();) {
      std::size_t const mine = layout_.part_of(at);
      std::size_t const theirs = other.layout().part_of(at);
      std::size_t const my_end = layout_.first(mine) + layout_.size(mine);
      std::size_t const their_end = other.layout().first(theirs) + other.layout().size(theirs);
      std::size_t const count = detail::min_of(my_end, their_end) - at;
      tarn::peer_copy(other.part(theirs), at - other.layout().first(theirs), part(mine),
                      at - layout_.first(mine), count, where);
      at += count;
    }
  }

  /// Sets every byte to 0, in each stream's order. @throws cuda_error
  void zero(source_location where = source_location::current()) {
    for (part_and_stream& p : parts_) p.elements.zero(where);
  }

  /// Waits on the host for the work of all parts. @throws cuda_error  the first error of the parts, also
  /// errors of earlier kernels; all parts have been waited for
  void synchronize(source_location where = source_location::current()) const {
    if (failed_part const first = finish(); !first.what.ok())
      throw cuda_error(first.what, first.device, where);
  }
  /// Makes later work of all parts wait, on the devices, for the work enqueued on `stream` so far. @throws
  /// cuda_error
  void order_behind(driver_type const& driver_of_stream, stream_ref stream,
                    source_location where = source_location::current()) {
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      detail::order_streams(driver(i), this->stream(i), driver_of_stream,
                            identified(driver_of_stream, stream, where), where);
    }
  }
  /// Makes later work on `stream` wait, on the devices, for the work enqueued by all parts so far. @throws
  /// cuda_error
  void order_before(driver_type const& driver_of_stream, stream_ref stream,
                    source_location where = source_location::current()) const {
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      detail::order_streams(driver_of_stream, identified(driver_of_stream, stream, where), driver(i),
                            this->stream(i), where);
    }
  }

 private:
  using guard = std::conditional_t<detail::has_current_device<driver_type>, basic_device_guard<driver_type>,
                                   detail::no_guard>;
  struct part_and_stream {
    part_and_stream(Resource memory, std::size_t count, attribution call)
        : stream(detail::called_from(call.where, [&] { return basic_stream<driver_type>(memory.driver()); })),
          elements(std::move(memory), count, stream, call) {}
    basic_stream<driver_type> stream;  // must outlive the elements, which are freed on it
    part_type elements;
  };
  struct failed_part {
    status what;
    int device = 0;
  };

  /// Waits for all parts, even if some fail. Returns the first failure.
  failed_part finish() const noexcept {
    failed_part first;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      status const s = detail::wait_for_stream(driver(i), stream(i));
      if (first.what.ok() && !s.ok()) first = {s, device(i).value};
    }
    return first;
  }

  template <class Make>
  static std::vector<Resource> pools_of(per_device<Resource, Make>& pools,
                                        std::span<device_id const> devices) {
    std::vector<Resource> memories;
    for (device_id const d : devices) memories.push_back(pools[d]);
    return memories;
  }
  [[nodiscard]] driver_type const& driver(std::size_t i) const noexcept { return parts_[i].stream.driver(); }
  template <class Element>
  [[nodiscard]] std::span<Element> piece(std::span<Element> whole, std::size_t i) const noexcept {
    return whole.subspan(layout_.first(i), layout_.size(i));
  }
  void require_size(char const* what, std::size_t count, source_location where) const {
    if (count == size()) return;
    message<160> const text("tarn: ", what, " of ", count, " elements does not match a buffer of ", size());
    throw detail::at(where, length_error(text.view()));
  }

  partition_layout layout_;
  std::vector<part_and_stream> parts_;
};

}  // namespace TARN_NAMESPACE
