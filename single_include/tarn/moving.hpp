// SPDX-License-Identifier: Apache-2.0
#pragma once
// tarn/moving.hpp over the single tarn.hpp, made by .ci/amalgamate.py. Do not edit.
#include "tarn.hpp"
// ---- tarn/moving.hpp
// Moving memory: batches between host and device, work that fits what is free, lower precision, eviction, several
// devices. Opt-in: it is as much to compile as the pool.

// ---- tarn/core/bytes_of.hpp
// Budgets by element type: how many bytes elements take, and how many elements bytes hold. Nothing wraps.

#include <concepts>
#include <cstddef>

namespace tarn {

namespace detail {
/// A count that a caller passed, signed or not. @throws length_error  negative
template <std::integral Count>
[[nodiscard]] constexpr std::size_t checked_count(Count count) {
  if constexpr (std::signed_integral<Count>) {
    if (count < 0) throw length_error("tarn: a count of elements is negative");
  }
  return static_cast<std::size_t>(count);
}
}  // namespace detail

/// Bytes of so many elements of each type, side by side and without padding: `bytes_of<float>(n)`, or of one sample with
/// its label: `bytes_of<float, std::uint8_t>(3 * 224 * 224, 1)`. A resource rounds each block up (block_bytes()).
/// @throws length_error  more than max_request_bytes, or a negative count; in a constant expression: does not compile
template <class... T, std::integral... Count>
requires(sizeof...(T) != 0 && sizeof...(T) == sizeof...(Count)) [[nodiscard]] constexpr std::size_t
    bytes_of(Count... counts) {
  std::size_t sum = 0;
  auto const add = [&](std::size_t bytes) {
    if (bytes > max_request_bytes - sum) {
      throw length_error("tarn: the sum of count * sizeof(T) overflows; ask for fewer elements");
    }
    sum += bytes;
  };
  (add(checked_bytes(detail::checked_count(counts), sizeof(T))), ...);
  return sum;
}

/// Whole elements that fit into `bytes`.
template <class T>
[[nodiscard]] constexpr std::size_t items_in(std::size_t bytes) noexcept {
  return bytes / sizeof(T);
}

}  // namespace tarn
// ---- tarn/policy/reachable_from.hpp
// reachable_from: lets other devices at a device's pages, so that their kernels may read and write a pool's memory where
// it is, and copies go straight.

#include <cstddef>
#include <exception>
#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

namespace tarn {

/// A device that cannot be let at another's memory: no NVLink or PCIe path between them that allows it.
class unreachable_device : public std::exception {
 public:
  unreachable_device(device_id memory, device_id from) noexcept : memory_(memory), from_(from) {
    text_.add("tarn: memory of device ").add_number(memory.value).add(" cannot be reached from device ");
    text_.add_number(from.value)
        .add("; leave that one out of reachable_from, copies between them work without it");
  }
  [[nodiscard]] char const* what() const noexcept override { return text_.c_str(); }
  /// Whose memory it is.
  [[nodiscard]] device_id memory() const noexcept { return memory_; }
  /// Who cannot reach it.
  [[nodiscard]] device_id from() const noexcept { return from_; }

 private:
  device_id memory_;
  device_id from_;
  message<192> text_;
};

template <class Upstream>
class reachable_layer;

/// Below a pool: `cuda_pages{0} | reachable_from{1, 2} | pooled{}`. One more driver call per device and mapping (some 25
/// us), none per allocation. The pages' own device may be named and costs nothing.
class reachable_from {
 public:
  template <class Upstream>
  using layer = reachable_layer<Upstream>;

  /// No other device.
  reachable_from() = default;
  reachable_from(std::initializer_list<device_id> devices) : devices_(devices) {}
  explicit reachable_from(std::span<device_id const> devices) : devices_(devices.begin(), devices.end()) {}

  [[nodiscard]] std::vector<device_id> const& devices() const noexcept { return devices_; }

 private:
  std::vector<device_id> devices_;
};

/// A page source whose mappings are shared with other devices as they are made. It passes no plain blocks on: those of
/// cudaMalloc are not reachable in this way, so a pool over it is one that an attached memory tool does not see into.
template <class Upstream>
class reachable_layer {
  static_assert(page_source<Upstream>,
                "tarn: reachable_from is for pages; put it below the pool: cuda_pages{0} | reachable_from{1} "
                "| pooled{}");

 public:
  using upstream_type = Upstream;
  using driver_type = typename Upstream::driver_type;
  using properties = typename Upstream::properties;

  explicit reachable_layer(Upstream upstream) : upstream_(std::move(upstream)) {}
  /// @throws unreachable_device  a device that cannot be let at these pages
  /// @throws cuda_error          of kind `no_device` where there is no such device
  reachable_layer(Upstream upstream, reachable_from const& options) : upstream_(std::move(upstream)) {
    for (device_id const other : options.devices()) {
      if (other == driver().device()) continue;
      bool yes = false;
      if (status const s = driver().can_share(other, yes); !s.ok()) throw cuda_error(s, other.value);
      if (!yes) throw unreachable_device(driver().device(), other);
      others_.push_back(other);
    }
  }
  reachable_layer(reachable_layer const&) = delete;
  reachable_layer& operator=(reachable_layer const&) = delete;

  [[nodiscard]] std::size_t granularity() const noexcept { return upstream_.granularity(); }
  [[nodiscard]] void* reserve(std::size_t bytes) { return upstream_.reserve(bytes); }
  void unreserve(void* p, std::size_t bytes) noexcept { upstream_.unreserve(p, bytes); }
  [[nodiscard]] page_handle create(std::size_t bytes) { return upstream_.create(bytes); }
  void destroy(page_handle handle, std::size_t bytes) noexcept { upstream_.destroy(handle, bytes); }
  /// As the source's, and readable and writable by the other devices. @throws out_of_memory, cuda_error; nothing is mapped
  void map(void* p, std::size_t bytes, page_handle handle) {
    upstream_.map(p, bytes, handle);
    for (device_id const other : others_) {
      status const s = driver().share_pages(p, bytes, other);
      if (s.ok()) continue;
      upstream_.unmap(p, bytes);
      detail::refuse(driver(), s, stream_ref{}, bytes, granularity());
    }
  }
  void unmap(void* p, std::size_t bytes) noexcept { upstream_.unmap(p, bytes); }

  [[nodiscard]] Upstream& upstream() noexcept { return upstream_; }
  [[nodiscard]] driver_type const& driver() const noexcept { return upstream_.driver(); }
  /// The devices besides the memory's own that reach it.
  [[nodiscard]] std::span<device_id const> reached_from() const noexcept { return others_; }

 private:
  Upstream upstream_;
  std::vector<device_id> others_;
};

}  // namespace tarn
// ---- tarn/raii/collect_batches.hpp
// collect_batches: a loop over host batches of device memory, the next ones being copied back meanwhile.

#include <cstddef>
#include <iterator>
#include <span>
#include <type_traits>
#include <utility>

// ---- tarn/raii/batch_iterator.hpp
// The iterator of a range of batches, which goes through it once and holds nothing but the range.

#include <cstddef>
#include <iterator>

namespace tarn {

/// An input iterator; the range must outlive it. A Range has `Batch now()`, `void next()` and `bool is_over() const noexcept`
/// for it.
template <class Range, class Batch>
class batch_iterator {
 public:
  using iterator_concept = std::input_iterator_tag;
  using value_type = Batch;
  using difference_type = std::ptrdiff_t;

  batch_iterator() noexcept = default;
  explicit batch_iterator(Range& range) noexcept : range_(&range) {}

  /// The batch. It is the loop body's until ++.
  [[nodiscard]] Batch operator*() const { return range_->now(); }
  batch_iterator& operator++() {
    range_->next();
    return *this;
  }
  void operator++(int) { ++*this; }
  friend bool operator==(batch_iterator const& it, std::default_sentinel_t) noexcept { return it.is_over(); }

 private:
  [[nodiscard]] bool is_over() const noexcept { return range_->is_over(); }
  Range* range_ = nullptr;
};

}  // namespace tarn
// ---- tarn/raii/batch_options.hpp
// What one asks of batches that are moved while others are worked on, and what one gets: batch_options, device_batch,
// host_batch.

#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <string_view>

namespace tarn {

struct batch_options {
  /// Most bytes of one batch; elements are never split. From 16 MiB on, what a batch costs besides its copy is below 3 %; where
  /// threads fill slots on the host, more are slower, since the slots leave the processor's cache (bench/results/moving.jsonl).
  std::size_t batch_bytes = 16_MiB;
  /// Slots on the device: so many batches are held at once, the one being worked on included. 1 copies and works in turn; 2
  /// overlap; the third keeps a late host from showing. On the host as many where copies are staged; where threads
  /// fill them one more, so that they need not wait for the copy, and one more than threads for a generator.
  std::size_t depth = 3;
  /// Threads that fill slots ahead of the loop. 0: for memory and files as many as the size is worth, up to 8; a generator is
  /// then called by the looping thread.
  unsigned threads = 0;
};

/// Options that cannot be met, or a generator that does not keep to its slot. Nothing was moved for it.
class bad_batch : public std::exception {
 public:
  explicit bad_batch(std::string_view text) noexcept { text_.add("tarn: ").add(text); }
  [[nodiscard]] char const* what() const noexcept override { return text_.c_str(); }

 private:
  message<192> text_;
};

/// Elements of one batch and where they stood in their source. A view: gone once the loop moves on.
template <class T>
class batch_view {
 public:
  using element_type = T;
  batch_view(std::span<T> elements, std::size_t index, std::size_t offset) noexcept
      : elements_(elements), index_(index), offset_(offset) {}

  [[nodiscard]] T* data() const noexcept { return elements_.data(); }
  /// Elements; never 0.
  [[nodiscard]] std::size_t size() const noexcept { return elements_.size(); }
  [[nodiscard]] std::size_t bytes() const noexcept { return elements_.size_bytes(); }
  [[nodiscard]] std::span<T> span() const noexcept { return elements_; }
  /// Batches before it.
  [[nodiscard]] std::size_t index() const noexcept { return index_; }
  /// Elements before it.
  [[nodiscard]] std::size_t offset() const noexcept { return offset_; }

 private:
  std::span<T> elements_;
  std::size_t index_;
  std::size_t offset_;
};

/// A batch in device memory, for work on the loop's stream; that work may write to it.
template <class T>
class device_batch : public batch_view<T> {
 public:
  using batch_view<T>::batch_view;
};

/// A batch in host memory, a contiguous range.
template <class T>
class host_batch : public batch_view<T> {
 public:
  using batch_view<T>::batch_view;
  [[nodiscard]] T* begin() const noexcept { return this->data(); }
  [[nodiscard]] T* end() const noexcept { return this->data() + this->size(); }
  [[nodiscard]] T& operator[](std::size_t i) const noexcept { return this->data()[i]; }
};

namespace detail {

/// "Not known", for a number of elements or batches.
inline constexpr std::size_t unknown_count = static_cast<std::size_t>(-1);

/// Elements of a full batch. @throws bad_batch  the options cannot be met
[[nodiscard]] inline std::size_t batch_capacity(batch_options const& options, std::size_t element_bytes) {
  if (options.depth == 0) throw bad_batch("batch_options::depth is 0; ask for 1 or more, 2 to overlap");
  if (options.batch_bytes < element_bytes || options.batch_bytes > max_request_bytes) {
    message<160> text;
    text.add("batch_options::batch_bytes is ").add_number(std::uint64_t{options.batch_bytes});
    if (options.batch_bytes < element_bytes) {
      text.add("; ask for at least one element, ").add_number(std::uint64_t{element_bytes}).add(" B");
    } else {
      text.add(": more than there can be; check the number for overflow");
    }
    throw bad_batch(text.view());
  }
  return options.batch_bytes / element_bytes;
}

}  // namespace detail

}  // namespace tarn
// ---- tarn/raii/copy_lane.hpp
// copy_lane: a stream of its own for copies, and the events by which others are ordered with it.

#include <cstddef>
#include <utility>
#include <vector>

namespace tarn::detail {

/// Copies on a stream of its own and orders them with the user's stream by events, which are numbered. Waits on the host only
/// where it says so. Destruction waits for the copies under way, so that what they touch may go. One thread at a time.
template <stream_driver Driver>
class copy_lane {
 public:
  /// @param user  the stream of the other work; not being captured
  /// @throws misuse  it is being captured; cuda_error
  copy_lane(Driver const& driver, stream_ref user, std::size_t events) : copy_lane(driver, user) {
    events_.reserve(events);
    while (events_.size() < events) {
      event_handle event = nullptr;
      require(driver_.create_event(event));
      events_.push_back(event);
    }
  }
  copy_lane(copy_lane const&) = delete;
  copy_lane& operator=(copy_lane const&) = delete;
  ~copy_lane() {
    finish();
    for (event_handle const event : events_) (void)driver_.destroy_event(event);
  }

  [[nodiscard]] stream_ref user() const noexcept { return user_; }

  void copy(void* to, void const* from, std::size_t bytes) {
    require(driver_.copy(stream_, to, from, bytes));
  }
  /// Marks the copies so far.
  void mark(std::size_t event) { require(driver_.record_event(events_[event], stream_)); }
  /// Marks the user's work so far.
  void mark_user(std::size_t event) { require(driver_.record_event(events_[event], user_)); }
  /// Later copies wait for a mark of the user's.
  void wait_for(std::size_t event) { require(driver_.wait_event(stream_, events_[event])); }
  /// The user's later work waits for a mark.
  void let_user_wait(std::size_t event) { require(driver_.wait_event(user_, events_[event])); }
  /// True where the device is past a mark.
  [[nodiscard]] bool is_past(std::size_t event) {
    status const s = driver_.query_event(events_[event]);
    if (s.kind == failure::not_ready) return false;
    require(s);
    return true;
  }
  /// Waits on the host until the device is past a mark.
  void synchronize(std::size_t event) { require(driver_.synchronize_event(events_[event])); }

  /// Waits on the host for all copies.
  void finish() noexcept {
    // One that the stream does not tell of must not see its memory go.
    if (!driver_.synchronize_stream(stream_).ok()) (void)driver_.synchronize_device();
  }

 private:
  copy_lane(Driver const& driver, stream_ref user) : driver_(driver), user_(user), stream_(driver) {
    bool capturing = false;
    require(driver_.is_capturing(user_, capturing));
    if (capturing) {
      throw misuse(misuse_kind::capture, nullptr,
                   "batches on a stream that is being captured; copy before the capture or after it");
    }
  }
  void require(status const& s) const {
    if (!s.ok()) throw cuda_error(s, driver_.device().value);
  }

  Driver driver_;
  stream_ref user_;
  basic_stream<Driver> stream_;
  std::vector<event_handle> events_;
};

}  // namespace tarn::detail
// ---- tarn/raii/pinned_slots.hpp
// pinned_slots: host memory that copies are staged in, used again and again.

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace tarn::detail {

/// `count` slots of so many elements each. Nothing uses them any more when they are destroyed: a pool may hand them to the
/// host at once. Unlike pinned_buffer's, which are freed in a stream's order.
template <class T, class Pinned>
class pinned_slots {
  static_assert(has_property<Pinned, host_accessible>,
                "tarn: batches are staged in memory that the host can touch; use pinned_host, "
                "registered_host or a pool "
                "over them");

 public:
  /// @throws length_error, out_of_memory
  pinned_slots(Pinned memory, std::size_t count, std::size_t elements)
      : pinned_slots(std::move(memory), checked_bytes(elements, sizeof(T))) {
    elements_ = elements;
    slots_.reserve(count);
    while (slots_.size() < count) slots_.push_back(static_cast<T*>(memory_.allocate_sync(bytes_, alignment)));
  }
  pinned_slots(pinned_slots const&) = delete;
  pinned_slots& operator=(pinned_slots const&) = delete;
  ~pinned_slots() {
    for (T* const p : slots_) memory_.deallocate_sync(p, bytes_, alignment);
  }

  [[nodiscard]] std::span<T> operator[](std::size_t slot) const noexcept { return {slots_[slot], elements_}; }

 private:
  static constexpr std::size_t alignment = larger_of(default_alignment, alignof(T));

  pinned_slots(Pinned memory, std::size_t bytes) : memory_(std::move(memory)), bytes_(bytes) {}

  Pinned memory_;
  std::size_t bytes_;
  std::size_t elements_ = 0;
  std::vector<T*> slots_;
};

}  // namespace tarn::detail

namespace tarn {

/// The range that collect_batches() returns: an input range, gone through once, by one thread. Neither copied nor moved.
template <class T, class Pinned, class Driver>
class batch_collector {
 public:
  using value_type = T;
  using batch = host_batch<T>;
  /// A batch is in pinned memory that is the host's until ++.
  using iterator = batch_iterator<batch_collector, batch>;

  /// See collect_batches().
  batch_collector(std::span<T const> from, batch_options const& options, Driver const& driver,
                  stream_ref stream, Pinned pinned)
      : from_(from),
        capacity_(detail::smaller_of(detail::batch_capacity(options, sizeof(T)),
                                     detail::larger_of(from.size(), std::size_t{1}))),
        end_((from.size() + capacity_ - 1) / capacity_),
        depth_(detail::smaller_of(options.depth, end_)),
        slots_(std::move(pinned), depth_, capacity_),
        lane_(driver, identified(driver, stream), depth_ + 1) {}
  batch_collector(batch_collector const&) = delete;
  batch_collector& operator=(batch_collector const&) = delete;
  /// Waits for the copies under way. After it the device memory is no longer read.
  ~batch_collector() = default;

  /// Starts at the first call; later ones are where the loop is.
  [[nodiscard]] iterator begin() {
    if (!started_) {
      started_ = true;
      if (end_ != 0) start();
    }
    return iterator(*this);
  }
  [[nodiscard]] std::default_sentinel_t end() const noexcept { return {}; }

 private:
  friend iterator;

  [[nodiscard]] std::size_t slot_of(std::size_t index) const noexcept { return index % depth_; }
  [[nodiscard]] bool is_over() const noexcept { return current_ == end_; }
  [[nodiscard]] std::span<T const> elements(std::size_t index) const noexcept {
    std::size_t const offset = index * capacity_;
    return from_.subspan(offset, detail::smaller_of(capacity_, from_.size() - offset));
  }
  [[nodiscard]] batch now() const noexcept {
    return {slots_[slot_of(current_)].first(elements(current_).size()), current_, current_ * capacity_};
  }

  void start() {
    lane_.mark_user(depth_);  // what is copied is what the stream has written by now
    lane_.wait_for(depth_);
    while (sent_ < depth_) send();
    lane_.synchronize(slot_of(current_));
  }
  void next() {
    ++current_;
    if (sent_ != end_) send();  // into the slot that the host is done with
    if (!is_over()) lane_.synchronize(slot_of(current_));
  }
  void send() {
    std::span<T const> const part = elements(sent_);
    lane_.copy(slots_[slot_of(sent_)].data(), part.data(), part.size_bytes());
    lane_.mark(slot_of(sent_));
    ++sent_;
  }

  std::span<T const> from_;
  std::size_t capacity_;  ///< elements of a slot
  std::size_t end_;       ///< batches
  std::size_t depth_;
  detail::pinned_slots<T, Pinned> slots_;
  detail::copy_lane<Driver> lane_;  ///< goes first, and waits: the slots are copied to
  bool started_ = false;
  std::size_t current_ = 0;
  std::size_t sent_ = 0;
};

/// Brings device memory to the host in batches: `for (auto batch : collect_batches(buffer, {.batch_bytes = 16_MiB}, stream))`. Each
/// is a host_batch: a contiguous range of pinned memory, the body's until the loop moves on, while the next ones are
/// copied on a stream of their own. What is copied is what `stream` has written when the loop begins; the body leaves it alone.
/// @param from     device memory, or a device_buffer; it outlives the loop
/// @param memory   says which device it is on
/// @param pinned   the slots come from it: best a pool, kept over several loops
/// Leave the loop at any time, by exceptions too: destruction waits for the copies under way, nothing leaks. The host waits for
/// the batch that comes next. @throws as stream_batches()
template <class T, std::size_t N, class Memory, class Pinned>
requires resource<Memory> && resource<Pinned>
[[nodiscard]] auto collect_batches(std::span<T, N> from, batch_options const& options, Memory const& memory,
                                   stream_ref stream, Pinned pinned) {
  return batch_collector<std::remove_const_t<T>, Pinned, typename Memory::driver_type>(
      from, options, memory.driver(), stream, std::move(pinned));
}
template <class T, std::size_t N, class Memory>
requires resource<Memory>
[[nodiscard]] auto collect_batches(std::span<T, N> from, batch_options const& options, Memory const& memory,
                                   stream_ref stream) {
  using pinned = basic_pinned<typename Memory::driver_type>;
  return batch_collector<std::remove_const_t<T>, pinned, typename Memory::driver_type>(
      from, options, memory.driver(), stream, pinned(memory.driver()));
}
template <class T, class Memory>
[[nodiscard]] auto collect_batches(device_buffer<T, Memory> const& from, batch_options const& options,
                                   stream_ref stream) {
  using pinned = basic_pinned<typename Memory::driver_type>;
  return batch_collector<T, pinned, typename Memory::driver_type>(
      from.span(), options, from.resource().driver(), stream, pinned(from.resource().driver()));
}
template <class T, class Memory, class Pinned>
requires resource<Pinned>
[[nodiscard]] auto collect_batches(device_buffer<T, Memory> const& from, batch_options const& options,
                                   stream_ref stream, Pinned pinned) {
  return batch_collector<T, Pinned, typename Memory::driver_type>(
      from.span(), options, from.resource().driver(), stream, std::move(pinned));
}

}  // namespace tarn
// ---- tarn/core/element.hpp
#ifndef TARN_SINGLE_CORE_ELEMENT_HPP
#define TARN_SINGLE_CORE_ELEMENT_HPP
// Elements that can be converted into each other, their names and sizes, and the conversion of one.

#include <concepts>
#include <cstddef>
#include <cstdint>

// ---- tarn/core/small_float.hpp
#ifndef TARN_SINGLE_CORE_SMALL_FLOAT_HPP
#define TARN_SINGLE_CORE_SMALL_FLOAT_HPP
// float16, bfloat16, float8_e4m3, float8_e5m2: elements to store numbers in, not to calculate with.

#include <type_traits>

// ---- tarn/core/float_format.hpp
#ifndef TARN_SINGLE_CORE_FLOAT_FORMAT_HPP
#define TARN_SINGLE_CORE_FLOAT_FORMAT_HPP
// Formats of binary floating point and the two conversions between them, on bits alone: rounding to nearest even to a
// narrower one, and the exact way back.

#include <cstdint>
#include <type_traits>

namespace tarn {

/// What the largest exponent of a format stands for.
enum class top_exponent : std::uint8_t {
  infinity_and_nan,  ///< as in IEEE 754
  numbers_and_nan    ///< numbers, but for the last pattern, which is NaN: the OCP formats marked FN
};

/// What becomes of what is too large, infinities included.
enum class overflow : std::uint8_t {
  to_infinity,
  to_largest  ///< the largest number of its sign, as cuda_fp8's types do it (__NV_SATFINITE)
};

/// IEEE 754 binary32, the format of float.
struct binary32 {
  using bits_type = std::uint32_t;
  static constexpr int exponent_bits = 8;
  static constexpr int mantissa_bits = 23;
  static constexpr top_exponent top = top_exponent::infinity_and_nan;
};
/// IEEE 754 binary64, the format of double.
struct binary64 {
  using bits_type = std::uint64_t;
  static constexpr int exponent_bits = 11;
  static constexpr int mantissa_bits = 52;
  static constexpr top_exponent top = top_exponent::infinity_and_nan;
};
/// IEEE 754 binary16: 11 significant bits, up to 65,504.
struct binary16 {
  using bits_type = std::uint16_t;
  static constexpr int exponent_bits = 5;
  static constexpr int mantissa_bits = 10;
  static constexpr top_exponent top = top_exponent::infinity_and_nan;
  static constexpr overflow on_overflow = overflow::to_infinity;
};
/// The upper half of a binary32: 8 significant bits, the range of float.
struct brain16 {
  using bits_type = std::uint16_t;
  static constexpr int exponent_bits = 8;
  static constexpr int mantissa_bits = 7;
  static constexpr top_exponent top = top_exponent::infinity_and_nan;
  static constexpr overflow on_overflow = overflow::to_infinity;
};
/// OCP E4M3 (FN): 4 significant bits, up to 448, no infinities.
struct ocp_e4m3 {
  using bits_type = std::uint8_t;
  static constexpr int exponent_bits = 4;
  static constexpr int mantissa_bits = 3;
  static constexpr top_exponent top = top_exponent::numbers_and_nan;
  static constexpr overflow on_overflow = overflow::to_largest;
};
/// OCP E5M2: 3 significant bits, up to 57,344. It has infinities, but no conversion makes one.
struct ocp_e5m2 {
  using bits_type = std::uint8_t;
  static constexpr int exponent_bits = 5;
  static constexpr int mantissa_bits = 2;
  static constexpr top_exponent top = top_exponent::infinity_and_nan;
  static constexpr overflow on_overflow = overflow::to_largest;
};

namespace detail {

/// What follows from a format.
template <class Format>
struct format_of {
  using bits_type = typename Format::bits_type;
  static constexpr int sign_at = Format::exponent_bits + Format::mantissa_bits;
  static constexpr int bias = (1 << (Format::exponent_bits - 1)) - 1;
  static constexpr int top_field = (1 << Format::exponent_bits) - 1;
  static constexpr bool has_infinity = Format::top == top_exponent::infinity_and_nan;
  static constexpr std::uint64_t mantissa_mask = (std::uint64_t{1} << Format::mantissa_bits) - 1;
  static constexpr std::uint64_t infinity = std::uint64_t{top_field} << Format::mantissa_bits;
  static constexpr std::uint64_t largest = has_infinity ? infinity - 1 : (infinity | mantissa_mask) - 1;
  /// The NaN that conversions make, with every bit but the sign: CUDA's.
  static constexpr std::uint64_t nan = (std::uint64_t{1} << sign_at) - 1;
};

/// The nearest pattern of To for a pattern of From, ties to the even one. Every NaN becomes To's one.
template <class To, class From>
[[nodiscard]] TARN_HOST_DEVICE constexpr typename To::bits_type narrowed(
    typename From::bits_type bits) noexcept {
  using to = format_of<To>;
  using from = format_of<From>;
  using word = typename From::bits_type;
  static_assert(To::mantissa_bits < From::mantissa_bits && To::exponent_bits <= From::exponent_bits);
  constexpr int m = From::mantissa_bits;
  constexpr int dropped = m - To::mantissa_bits;
  auto const sign = static_cast<word>(bits >> from::sign_at);
  auto const field = static_cast<int>((bits >> m) & static_cast<word>(from::top_field));
  auto mantissa = static_cast<word>(bits & static_cast<word>(from::mantissa_mask));
  auto const signed_as = [sign](word magnitude) {
    return static_cast<typename To::bits_type>(magnitude | static_cast<word>(sign << to::sign_at));
  };
  if (field == from::top_field) {
    if (mantissa != 0) return static_cast<typename To::bits_type>(to::nan);
    return signed_as(
        static_cast<word>(To::on_overflow == overflow::to_infinity ? to::infinity : to::largest));
  }
  // The value is mantissa * 2^(exponent - m); `steps` is how far the exponent is above To's least one.
  if (field != 0) mantissa = static_cast<word>(mantissa | word{1} << m);
  int const exponent = (field != 0 ? field : 1) - from::bias;
  int const steps = exponent - (1 - to::bias);
  int shift = dropped;
  if (steps < 0)
    shift = -steps < m + 2 - dropped ? dropped - steps : m + 2;  // beyond which all is below a half
  auto const half = static_cast<word>(word{1} << (shift - 1));
  auto const kept = static_cast<word>(mantissa >> shift);
  auto rounded = static_cast<word>((mantissa + (half - 1) + (kept & 1U)) >> shift);
  // A carry goes into the exponent, which is right, and so is the leading one of a normal number.
  if (steps > 0) rounded = static_cast<word>(rounded + (static_cast<word>(steps) << To::mantissa_bits));
  if (rounded > static_cast<word>(to::largest)) {
    rounded = static_cast<word>(To::on_overflow == overflow::to_infinity ? to::infinity : to::largest);
  }
  return signed_as(rounded);
}

/// The pattern of binary32 that has exactly the value. A NaN keeps its sign and payload and is quiet.
template <class From>
[[nodiscard]] TARN_HOST_DEVICE constexpr std::uint32_t widened(typename From::bits_type bits) noexcept {
  using from = format_of<From>;
  constexpr int m = From::mantissa_bits;
  constexpr int up = binary32::mantissa_bits - m;
  auto const word = static_cast<std::uint32_t>(bits);
  std::uint32_t const sign = word >> from::sign_at << 31;
  std::uint32_t mantissa = word & static_cast<std::uint32_t>(from::mantissa_mask);
  int const field = static_cast<int>(word >> m) & from::top_field;
  constexpr std::uint32_t top = 0x7f80'0000;
  constexpr std::uint32_t quiet = 0x0040'0000;
  bool const is_nan = from::has_infinity ? field == from::top_field && mantissa != 0
                                         : (word & static_cast<std::uint32_t>(from::nan)) == from::nan;
  if (is_nan) return sign | top | quiet | mantissa << up;
  if (from::has_infinity && field == from::top_field) return sign | top;
  constexpr int rebias = format_of<binary32>::bias - from::bias;
  if (field != 0 || rebias == 0)
    return sign | static_cast<std::uint32_t>(field + rebias) << 23 | mantissa << up;
  if (mantissa == 0) return sign;
  int exponent = rebias + 1;
  while ((mantissa >> m) == 0) {  // at most m steps: subnormal here, normal there
    mantissa <<= 1;
    --exponent;
  }
  return sign | static_cast<std::uint32_t>(exponent) << 23 |
         (mantissa & static_cast<std::uint32_t>(from::mantissa_mask)) << up;
}

}  // namespace detail
}  // namespace tarn
#endif  // TARN_SINGLE_CORE_FLOAT_FORMAT_HPP

namespace tarn {

/// A number stored in 1 or 2 bytes, on host and device; bit for bit CUDA's type of the same format (__half, __nv_bfloat16,
/// __nv_fp8_e4m3, __nv_fp8_e5m2). Convert to float, calculate, convert back: both ways are explicit. Rounds to nearest even,
/// from double in one step; keeps -0.0, subnormals and NaN (as one NaN per format; its sign and payload are not kept).
/// What is too large becomes infinity in the 16-bit formats and the largest number in the 8-bit ones, infinities too.
/// Trivially copyable; uninitialised by default, zero when value-initialised.
template <class Format>
class basic_float {
 public:
  using format = Format;
  using bits_type = typename Format::bits_type;

  basic_float() = default;
  TARN_HOST_DEVICE explicit constexpr basic_float(float value) noexcept
      : bits_(detail::narrowed<Format, binary32>(__builtin_bit_cast(std::uint32_t, value))) {}
  /// A template, so that integers go the way of float and nothing is ambiguous.
  template <class Double>
  requires std::is_same_v<Double, double> TARN_HOST_DEVICE explicit constexpr basic_float(
      Double value) noexcept
      : bits_(detail::narrowed<Format, binary64>(__builtin_bit_cast(std::uint64_t, value))) {}
  /// From another of these formats, in one rounding.
  template <class Other>
  TARN_HOST_DEVICE explicit constexpr basic_float(basic_float<Other> other) noexcept
      : basic_float(static_cast<float>(other)) {}

  /// The number with these bits.
  [[nodiscard]] TARN_HOST_DEVICE static constexpr basic_float from_bits(bits_type bits) noexcept {
    basic_float made{};
    made.bits_ = bits;
    return made;
  }
  [[nodiscard]] TARN_HOST_DEVICE constexpr bits_type bits() const noexcept { return bits_; }

  /// Exact.
  [[nodiscard]] TARN_HOST_DEVICE explicit constexpr operator float() const noexcept {
    return __builtin_bit_cast(float, detail::widened<Format>(bits_));
  }
  [[nodiscard]] TARN_HOST_DEVICE explicit constexpr operator double() const noexcept {
    return static_cast<double>(static_cast<float>(*this));
  }

  /// The largest number.
  [[nodiscard]] TARN_HOST_DEVICE static constexpr basic_float largest() noexcept {
    return from_bits(static_cast<bits_type>(detail::format_of<Format>::largest));
  }
  /// The smallest number above zero, a subnormal one.
  [[nodiscard]] TARN_HOST_DEVICE static constexpr basic_float smallest() noexcept { return from_bits(1); }
  /// The smallest number with full precision.
  [[nodiscard]] TARN_HOST_DEVICE static constexpr basic_float smallest_normal() noexcept {
    return from_bits(static_cast<bits_type>(1U << Format::mantissa_bits));
  }
  /// Distance from 1 to the next number above it; rounding errs by at most half of it, relatively.
  [[nodiscard]] TARN_HOST_DEVICE static constexpr float epsilon() noexcept {
    return 1.0F / static_cast<float>(1U << Format::mantissa_bits);
  }

  /// As numbers: a NaN equals nothing, and both zeros are equal.
  [[nodiscard]] friend TARN_HOST_DEVICE constexpr bool operator==(basic_float a, basic_float b) noexcept {
    return static_cast<float>(a) == static_cast<float>(b);
  }

 private:
  bits_type bits_;
};

using float16 = basic_float<binary16>;
using bfloat16 = basic_float<brain16>;
using float8_e4m3 = basic_float<ocp_e4m3>;
using float8_e5m2 = basic_float<ocp_e5m2>;

static_assert(std::is_trivially_copyable_v<float16> && std::is_trivially_default_constructible_v<float16>);
static_assert(sizeof(float16) == 2 && sizeof(bfloat16) == 2 && sizeof(float8_e4m3) == 1 &&
              sizeof(float8_e5m2) == 1);

}  // namespace tarn
#endif  // TARN_SINGLE_CORE_SMALL_FLOAT_HPP

namespace tarn {

namespace detail {
template <class T>
inline constexpr bool is_basic_float = false;
template <class Format>
inline constexpr bool is_basic_float<basic_float<Format>> = true;
}  // namespace detail

/// double, float and the formats of small_float.hpp.
template <class T>
concept element = std::same_as<T, double> || std::same_as<T, float> || detail::is_basic_float<T>;

/// One element as another, rounded to nearest even once. double to float as the processor does it.
template <element To, element From>
[[nodiscard]] TARN_HOST_DEVICE constexpr To element_cast(From value) noexcept {
  return static_cast<To>(value);
}

/// An element type as a value: for settings, tables and budgets; the largest first.
enum class element_type : std::uint8_t { f64, f32, f16, bf16, f8_e4m3, f8_e5m2 };
inline constexpr std::size_t element_type_count = 6;

/// Its value for a type: `element_type_of<tarn::float16>`.
template <element T>
inline constexpr element_type element_type_of = std::same_as<T, double>        ? element_type::f64
                                                : std::same_as<T, float>       ? element_type::f32
                                                : std::same_as<T, float16>     ? element_type::f16
                                                : std::same_as<T, bfloat16>    ? element_type::bf16
                                                : std::same_as<T, float8_e4m3> ? element_type::f8_e4m3
                                                                               : element_type::f8_e5m2;

/// Bytes of one element.
[[nodiscard]] constexpr std::size_t bytes_of(element_type type) noexcept {
  constexpr std::uint8_t sizes[element_type_count] = {8, 4, 2, 2, 1, 1};
  return sizes[static_cast<std::size_t>(type)];
}
/// Bytes of `count` elements. @throws length_error  they do not fit in size_t
[[nodiscard]] constexpr std::size_t bytes_of(std::size_t count, element_type type) {
  return checked_bytes(count, bytes_of(type));
}
/// Elements that fit into a budget.
[[nodiscard]] constexpr std::size_t items_in(std::size_t bytes, element_type type) noexcept {
  return bytes / bytes_of(type);
}
/// The type's name; static storage.
[[nodiscard]] constexpr char const* name_of(element_type type) noexcept {
  constexpr char const* names[element_type_count] = {"float64",  "float32",     "float16",
                                                     "bfloat16", "float8_e4m3", "float8_e5m2"};
  return names[static_cast<std::size_t>(type)];
}

/// Calls `call` with a value of the type that `type` names: from settings back into the type system.
template <class Call>
constexpr decltype(auto) with_element(element_type type, Call const& call) {
  switch (type) {
    case element_type::f64:
      return call(double{});
    case element_type::f32:
      return call(float{});
    case element_type::f16:
      return call(float16{});
    case element_type::bf16:
      return call(bfloat16{});
    case element_type::f8_e4m3:
      return call(float8_e4m3{});
    case element_type::f8_e5m2:
      break;
  }
  return call(float8_e5m2{});
}

}  // namespace tarn
#endif  // TARN_SINGLE_CORE_ELEMENT_HPP
// ---- tarn/raii/convert.hpp
// Copies that change the element type: store in lower precision, calculate in higher. On CUDA the file that converts must
// be compiled by nvcc; on the simulated device and on plain host memory any compiler does.

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

// ---- tarn/driver/host_convert.hpp
// Converting elements of plain host memory: done when the call returns.

#include <cstddef>

namespace tarn {

template <class To, class From>
status no_driver::convert(stream_ref, To* to, From const* from, std::size_t count) const noexcept {
  if (count == 0) return {};
  if (to == nullptr || from == nullptr) return invalid(driver_call::convert);
  for (std::size_t i = 0; i < count; ++i) to[i] = element_cast<To>(from[i]);
  return {};
}

}  // namespace tarn
// ---- tarn/raii/in_turn.hpp
// Work on one stream that touches what belongs to others: ordered behind them, and they behind it, on the device.

namespace tarn::detail {

/// A stream with the driver of its device.
template <class Driver>
struct driven_stream {
  Driver const& driver;
  stream_ref stream;
};

/// Runs `enqueue`, which puts work on `on`, behind all that the others have enqueued so far; their later work waits for
/// it. A stream that is `on` itself costs nothing; any other two events. Where an other cannot be made to wait, the host
/// waits for the work instead. @throws what enqueue throws; cuda_error
template <class Driver, class Enqueue, class... Others>
void in_turn(driven_stream<Driver> on, Enqueue const& enqueue, Others const&... others) {
  (order_streams(on.driver, on.stream, others.driver, others.stream), ...);
  enqueue();
  try {
    (order_streams(others.driver, others.stream, on.driver, on.stream), ...);
  } catch (...) {
    Driver const& driver = on.driver;
    (void)driver.synchronize_stream(on.stream);  // whoever uses the memory next may not be told to wait
    throw;
  }
}

}  // namespace tarn::detail
// ---- tarn/raii/require_apart.hpp
// What a copy writes must lie apart from what it reads.

#include <cstddef>
#include <cstdint>

namespace tarn::detail {

/// @throws misuse  of kind `overlap`, with `what_to_do`: the two share a byte
inline void require_apart(void const* from, std::size_t from_bytes, void const* to, std::size_t to_bytes,
                          char const* what_to_do) {
  auto const source = reinterpret_cast<std::uintptr_t>(from);
  auto const target = reinterpret_cast<std::uintptr_t>(to);
  if (source < target + to_bytes && target < source + from_bytes)
    throw misuse(misuse_kind::overlap, to, what_to_do);
}

}  // namespace tarn::detail

#if TARN_HAS_CUDA
// ---- tarn/driver/cuda_convert.hpp
// Converting elements on CUDA: a kernel that moves 16 bytes at a time and converts by the device's own instructions.
// Needs nvcc; a file that no CUDA compiler compiles may include it, and is told so where it converts.

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

namespace tarn {

namespace detail {

template <class To, class From>
struct cuda_conversion {
  /// Elements that one thread takes at a time: 16 bytes of the wider type.
  static constexpr int together =
      16 / static_cast<int>(sizeof(To) > sizeof(From) ? sizeof(To) : sizeof(From));

  static __device__ float widen(float x) { return x; }
  static __device__ float widen(bfloat16 x) { return __uint_as_float(std::uint32_t{x.bits()} << 16); }
  static __device__ float widen(float16 x) { return __half2float(__ushort_as_half(x.bits())); }
  static __device__ float widen(float8_e4m3 x) {
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(x.bits(), __NV_E4M3)));
  }
  static __device__ float widen(float8_e5m2 x) {
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(x.bits(), __NV_E5M2)));
  }
  static __device__ To narrow(float x) {
    if constexpr (sizeof(To) >= sizeof(float)) {
      return static_cast<To>(x);
    } else if constexpr (element_type_of<To> == element_type::f16) {
      return To::from_bits(__half_as_ushort(__float2half_rn(x)));
    } else if constexpr (element_type_of<To> == element_type::bf16) {
      return To::from_bits(__bfloat16_as_ushort(__float2bfloat16_rn(x)));
    } else {
      return To::from_bits(__nv_cvt_float_to_fp8(x, __NV_SATFINITE, eight_bits<To>));
    }
  }

  static __device__ To one(From x) {
    if constexpr (sizeof(From) == sizeof(double)) {
      return element_cast<To>(x);  // in one rounding, which two instructions are not
    } else {
      return narrow(widen(x));
    }
  }
  /// Two at a time where the instruction takes two.
  static __device__ void two(To* to, From const* from) {
    if constexpr (sizeof(From) == sizeof(double) || (sizeof(To) != 1 && sizeof(From) != 1)) {
      to[0] = one(from[0]);
      to[1] = one(from[1]);
    } else if constexpr (sizeof(To) == 1) {
      __nv_fp8x2_storage_t const bits =
          __nv_cvt_float2_to_fp8x2(widen_two(from), __NV_SATFINITE, eight_bits<To>);
      to[0] = To::from_bits(static_cast<std::uint8_t>(bits));
      to[1] = To::from_bits(static_cast<std::uint8_t>(bits >> 8));
    } else {
      float2 const pair = widen_two(from);
      to[0] = narrow(pair.x);
      to[1] = narrow(pair.y);
    }
  }

 private:
  static __device__ float2 widen_two(From const* from) {
    if constexpr (sizeof(From) == 1) {
      auto const bits = static_cast<__nv_fp8x2_storage_t>(from[0].bits() | from[1].bits() << 8);
      return __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(bits, eight_bits<From>)));
    } else {
      return make_float2(widen(from[0]), widen(from[1]));
    }
  }
  template <class T>
  static constexpr __nv_fp8_interpretation_t eight_bits =
      element_type_of<T> == element_type::f8_e5m2 ? __NV_E5M2 : __NV_E4M3;
};

/// A word of so many bytes, which is loaded and stored as one.
template <int Bytes>
struct cuda_word;
template <>
struct cuda_word<2> {
  using type = std::uint16_t;
};
template <>
struct cuda_word<4> {
  using type = std::uint32_t;
};
template <>
struct cuda_word<8> {
  using type = uint2;
};
template <>
struct cuda_word<16> {
  using type = uint4;
};

/// What of a range can be taken in words: first some elements singly, then words, then the rest.
struct cuda_split {
  std::size_t head;
  std::size_t words;
  std::size_t count;
};

template <class To, class From>
__global__ void __launch_bounds__(256) cuda_convert_elements(To* to, From const* from, cuda_split split) {
  using conversion = cuda_conversion<To, From>;
  constexpr int n = conversion::together;
  using to_word = typename cuda_word<n* static_cast<int>(sizeof(To))>::type;
  using from_word = typename cuda_word<n* static_cast<int>(sizeof(From))>::type;
  std::size_t const stride = std::size_t{gridDim.x} * blockDim.x;
  std::size_t const first = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;

  std::size_t const singly = split.count - split.words * n;
  for (std::size_t i = first; i < singly; i += stride) {
    std::size_t const at = i < split.head ? i : i + split.words * n;
    to[at] = conversion::one(from[at]);
  }

  auto const* const source = reinterpret_cast<from_word const*>(from + split.head);
  auto* const target = reinterpret_cast<to_word*>(to + split.head);
  auto const convert = [](from_word loaded) {
    From in[n];
    To out[n];
    to_word stored;
    memcpy(in, &loaded, sizeof loaded);
#pragma unroll
    for (int i = 0; i < n; i += 2) conversion::two(out + i, in + i);
    memcpy(&stored, out, sizeof stored);
    return stored;
  };
  // Four loads are under way before the first result is needed: that hides the memory's latency.
  std::size_t i = first;
  for (; i + 3 * stride < split.words; i += 4 * stride) {
    from_word const a = source[i];
    from_word const b = source[i + stride];
    from_word const c = source[i + 2 * stride];
    from_word const d = source[i + 3 * stride];
    target[i] = convert(a);
    target[i + stride] = convert(b);
    target[i + 2 * stride] = convert(c);
    target[i + 3 * stride] = convert(d);
  }
  for (; i < split.words; i += stride) target[i] = convert(source[i]);
}

/// Splits a range so that both sides' words are aligned; all singly where no place in it makes them so.
template <class To, class From>
[[nodiscard]] cuda_split cuda_split_of(To const* to, From const* from, std::size_t count) noexcept {
  constexpr std::size_t n = static_cast<std::size_t>(cuda_conversion<To, From>::together);
  for (std::size_t head = 0; head < n && head < count; ++head) {
    if (is_aligned(to + head, n * sizeof(To)) && is_aligned(from + head, n * sizeof(From))) {
      return {head, (count - head) / n, count};
    }
  }
  return {0, 0, count};
}

}  // namespace detail

template <null_stream Null>
template <class To, class From>
status basic_cuda_driver<Null>::convert(stream_ref stream, To* to, From const* from,
                                        std::size_t count) const noexcept {
  static_assert(element<To> && element<From>, "tarn: convert() is for the types of tarn/core/element.hpp");
  if (count == 0) return {};
  detail::on_device const here(device_);
  if (!here.entered().ok()) return here.entered();
  detail::cuda_split split = detail::cuda_split_of(to, from, count);
  // Each thread gets four words, more where the grid would be beyond its limit.
  constexpr std::size_t threads = 256;
  constexpr std::size_t most_blocks = std::size_t{1} << 20;
  std::size_t const units = split.words != 0 ? split.words / 4 + 1 : count;
  std::size_t const blocks = units / threads + 1 < most_blocks ? units / threads + 1 : most_blocks;
  void* arguments[] = {&to, &from, &split};
  return detail::cuda_status(
      cudaLaunchKernel(&detail::cuda_convert_elements<To, From>, dim3(static_cast<unsigned>(blocks)),
                       dim3(static_cast<unsigned>(threads)), arguments, 0, reach(stream)),
      "cudaLaunchKernel");
}

}  // namespace tarn

#else

namespace tarn {

template <null_stream Null>
template <class To, class From>
status basic_cuda_driver<Null>::convert(stream_ref, To*, From const*, std::size_t) const noexcept {
  static_assert(sizeof(To) == 0,
                "tarn: converting on CUDA launches a kernel; compile this file with nvcc (name it .cu)");
  return {};
}

}  // namespace tarn

#endif
#endif

namespace tarn {

namespace detail {

[[noreturn]] inline void refuse_sizes(std::size_t from, std::size_t to) {
  message<160> text;
  text.add("tarn: conversion of ").add_number(std::uint64_t{from});
  text.add(" elements to ").add_number(std::uint64_t{to});
  throw length_error(text.add("; take a subspan of the longer one").c_str());
}
[[noreturn]] inline void refuse_devices(void const* p, device_id from, device_id to) {
  message<200> text;
  text.add("elements of device ").add_number(from.value).add(" cannot be converted into a buffer of device ");
  text.add_number(to.value).add("; convert() on one device and copy the smaller of the two by copy_from()");
  throw misuse(misuse_kind::wrong_device, p, text.view());
}

/// Memory that only its own device can touch.
template <class Resource>
inline constexpr bool is_devices_own =
    has_property<Resource, device_accessible> && !has_property<Resource, host_accessible>;

}  // namespace detail

/// Copies elements into another type in stream order, each rounded to the nearest, ties to even. The spans have the same
/// number of elements and do not overlap: a buffer cannot be converted in place, since many threads write at once. Both are
/// memory that the driver's device may touch (device, pinned or managed memory, not the host's own). One kernel that is
/// bound by memory: 16 bytes at a time where both sides' alignments allow. Same type: a copy.
/// @throws length_error  the sizes differ; nothing is converted
/// @throws misuse        of kind `overlap`
/// @throws cuda_error    the driver refused
template <stream_driver Driver, class From, element To>
requires element<std::remove_const_t<From>>
void convert(Driver const& driver, std::span<From> from, std::span<To> to, stream_ref stream) {
  if (from.size() != to.size()) detail::refuse_sizes(from.size(), to.size());
  if (from.empty()) return;
  detail::require_apart(from.data(), from.size_bytes(), to.data(), to.size_bytes(),
                        "a conversion's target overlaps its source; convert into memory of its own");
  if constexpr (std::is_same_v<std::remove_const_t<From>, To>) {
    tarn::copy(driver, from, to, stream);
  } else {
    status const s = driver.convert(stream, to.data(), from.data(), from.size());
    if (!s.ok()) throw cuda_error(s, driver.device().value);
  }
}

/// The same between buffers on one device, on `stream` of it, which first waits, on the device, for the streams of both; these
/// wait for the conversion, so either may be changed or destroyed at once. No events where all three are one stream.
/// @throws length_error, cuda_error
/// @throws misuse  of kind `wrong_device`
template <element From, class FromResource, element To, class ToResource>
requires std::is_same_v<typename FromResource::driver_type, typename ToResource::driver_type>
void convert(device_buffer<From, FromResource> const& from, device_buffer<To, ToResource>& to,
             stream_ref stream) {
  auto const& driver = to.resource().driver();
  auto const& theirs = from.resource().driver();
  if constexpr (detail::is_devices_own<FromResource> && detail::is_devices_own<ToResource>) {
    if (theirs.device() != driver.device()) {
      detail::refuse_devices(from.data(), theirs.device(), driver.device());
    }
  }
  if (from.size() != to.size()) detail::refuse_sizes(from.size(), to.size());
  if (from.empty()) return;
  // The device that can touch both: a buffer of host memory may carry any device's driver.
  auto const& on = detail::is_devices_own<ToResource> ? driver : theirs;
  using driver_type = typename ToResource::driver_type;
  stream = identified(on, stream);
  detail::in_turn(
      detail::driven_stream<driver_type>{on, stream},
      [&] { tarn::convert(on, from.span(), to.span(), stream); },
      detail::driven_stream<driver_type>{theirs, from.stream()},
      detail::driven_stream<driver_type>{driver, to.stream()});
}
/// The same on the target's own stream; on the source's where only its device can touch both.
template <element From, class FromResource, element To, class ToResource>
requires std::is_same_v<typename FromResource::driver_type, typename ToResource::driver_type>
void convert(device_buffer<From, FromResource> const& from, device_buffer<To, ToResource>& to) {
  bool const apart = from.resource().driver().device() != to.resource().driver().device();
  tarn::convert(from, to, apart && !detail::is_devices_own<ToResource> ? from.stream() : to.stream());
}

/// A new buffer of `memory` on `stream` with the elements of another, as To: `auto half =
/// tarn::converted<tarn::float16>(pool, weights, stream)`. Both exist until the old one is destroyed: at the peak their
/// bytes add up.
/// @throws length_error, out_of_memory, misuse, cuda_error; nothing is held
template <element To, class Memory, element From, class FromResource>
requires resource<Memory>
[[nodiscard]] device_buffer<To, Memory> converted(Memory memory,
                                                  device_buffer<From, FromResource> const& from,
                                                  stream_ref stream, place where = place::current()) {
  device_buffer<To, Memory> to(std::move(memory), from.size(), stream, default_alignment, where);
  tarn::convert(from, to);
  return to;
}
/// The same from the memory that the other buffer is of.
template <element To, element From, class Resource>
[[nodiscard]] device_buffer<To, Resource> converted(device_buffer<From, Resource> const& from,
                                                    stream_ref stream, place where = place::current()) {
  return tarn::converted<To>(from.resource(), from, stream, where);
}
template <element To, element From, class Resource>
[[nodiscard]] device_buffer<To, Resource> converted(device_buffer<From, Resource> const& from,
                                                    place where = place::current()) {
  return tarn::converted<To>(from, from.stream(), where);
}

}  // namespace tarn
// ---- tarn/raii/evict_scope.hpp
// evict_scope: device buffers whose elements wait in pinned host memory for the length of a scope.
//
//   stream A (a buffer's own)   S (the scope's)                     the device memory
//   work on it
//            --- event --->     copy to the host
//                               freed ------------------------->    another's, at once on S
//                               ...
//                               allocated, copied back
//            <-- event ---
//   work on it again

#include <cstddef>
#include <exception>
#include <functional>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>

// ---- tarn/raii/retire.hpp
// retire: gives the memory of an owner back early, in the order of the stream that used it last.
//
// Three ways to tell that memory was used on another stream than its owner's:
//
//                    order of the two streams          when it is free                 for
//   set_stream(s)    made now, by an event             later, when the owner ends      s goes on owning the work
//   record_use(p,s)  made when the owner frees         once the device is past s, for  uses on the side, e.g. of a copy
//                                                      the owner's stream; a pool only
//   retire(b, s)     made now, or known to be made     at once, for later work on s    s was the last to use it

#include <concepts>
#include <cstddef>
#include <type_traits>
#include <utility>

namespace tarn {

/// Whether the last user already comes after what was enqueued on the owner's own stream.
enum class earlier_work {
  wait_for,       ///< make it so: one event where the streams differ
  is_waited_for,  ///< it is so, as where the last user waited for what the owner's stream made: no driver call
};

/// What retire() takes: device_buffer, device_ptr, pinned_buffer, and owners like them.
template <class Owner>
concept retirable = std::is_nothrow_move_constructible_v<Owner> && requires(Owner& owner) {
  { owner.stream() } -> std::same_as<stream_ref>;
  { owner.resource() } -> std::same_as<typename Owner::resource_type const&>;
  { owner.alignment() } -> std::same_as<std::size_t>;
  { owner.size() } -> std::same_as<std::size_t>;
  owner.release();
};

namespace detail {

/// Elements that an owner's block holds.
template <class Owner>
[[nodiscard]] std::size_t block_elements(Owner const& owner) noexcept {
  if constexpr (requires { owner.capacity(); }) {
    return owner.capacity();
  } else {
    return owner.size();
  }
}

/// Frees an owner's block in the order of `stream`, which is known to come after all that uses it.
template <retirable Owner>
void give_back_on(Owner& owner, stream_ref stream) noexcept {
  std::size_t const count = block_elements(owner);
  auto* const p = owner.release();
  if (p == nullptr) return;
  typename Owner::resource_type memory = owner.resource();
  memory.deallocate(stream, p, count * sizeof(*p), owner.alignment());
}

/// Orders `stream` behind those of owners that own anything; one event for neighbours of one stream.
/// @throws cuda_error  some may be ordered, which harms nothing
template <retirable... Owners>
void order_behind(stream_ref stream, Owners const&... owners) {
  stream_ref last = stream;
  auto const order = [&](auto const& owner) {
    if (block_elements(owner) == 0 || owner.stream() == last) return;
    order_streams(owner.resource().driver(), stream, owner.stream());
    last = owner.stream();
  };
  (order(owners), ...);
}

}  // namespace detail

/// Gives the memory of owners back now, in the order of `stream`, their last user: later work on `stream` may have it at
/// once, other streams when ordered. The owners are empty afterwards and keep their streams; they may be used again.
/// Never waits, over a pool; without one, sources that cannot free in stream order wait as they always do.
/// @param stream   of the owners' device; all that uses the memory is enqueued on it, or on the owners' streams, by now
/// @param earlier  whether `stream` must be made to wait for the owners' own streams first
/// @throws cuda_error  a stream could not be made to wait: nothing was freed
template <class... Owners>
requires(sizeof...(Owners) != 0 && (retirable<std::remove_reference_t<Owners>> &&
                                    ...)) void retire(stream_ref stream, earlier_work earlier,
                                                      Owners&&... owners) {
  static_assert((!std::is_lvalue_reference_v<Owners> && ...),
                "tarn: an owner is empty once it is retired; say std::move(owner)");
  ((stream = identified(owners.resource().driver(), stream)), ...);
  if (earlier == earlier_work::wait_for) detail::order_behind(stream, owners...);
  (detail::give_back_on(owners, stream), ...);
}
template <class... Owners>
requires(sizeof...(Owners) != 0 && (retirable<std::remove_reference_t<Owners>> &&
                                    ...)) void retire(stream_ref stream, Owners&&... owners) {
  retire(stream, earlier_work::wait_for, std::forward<Owners>(owners)...);
}
/// The same for one owner, as one says it: `tarn::retire(std::move(weights), stream);`
template <class Owner>
requires retirable<std::remove_reference_t<Owner>>
void retire(Owner&& owner, stream_ref stream, earlier_work earlier = earlier_work::wait_for) {
  retire(stream, earlier, std::forward<Owner>(owner));
}

}  // namespace tarn

namespace tarn {

/// Elements that an evict_scope could not bring back at its end.
struct lost_elements {
  std::size_t index = 0;  ///< which of the scope's buffers, from 0
  std::span<std::byte const>
      bytes;  ///< the elements; valid during the call. Empty where the device failed before it had
              ///< copied them
  std::exception_ptr why;  ///< what bring_back() threw
};

/// Moves the elements of device buffers to pinned host memory, frees their device memory, and brings them back at the end.
/// `tarn::evict_scope evicted{pinned, stream, optimizer_state, embeddings};`
///
/// All in the order of `stream`: the constructor and bring_back() make it wait for the buffers' own streams, and those for
/// it; the host waits for nothing. The freed memory is reusable at once by later work on `stream`. During the scope the
/// buffers are empty (what one is given meanwhile is freed when its elements come back); they must outlive the scope at
/// their place, as must all streams. Afterwards they are the same objects with equal elements, the same size, stream and
/// resource, at another address: pointers and spans taken before are stale. Spare capacity is not brought back.
///
/// Elements are never lost silently. bring_back() throws where the device has no room, changes nothing then, and may be
/// called again. The destructor calls it, too; if that fails, it waits for the copies and hands what is left to the handler
/// named by when_lost(); where none is named it reports misuse (contents_lost), which ends the program unless a misuse
/// handler returns. So call bring_back() yourself where an error can be dealt with. Once the driver has gone at the
/// process's end nothing is done.
///
/// Host memory: as many bytes as the buffers have elements, from `pinned`: pool it, since pinning costs 460 ms per GiB and
/// a bare source waits for the stream when it frees; so does the scope where `pinned` is another device's. One thread at a
/// time.
template <class Pinned, class... Buffers>
class evict_scope {
  static_assert(sizeof...(Buffers) != 0, "tarn: name the buffers to evict");
  static_assert(has_property<Pinned, host_accessible>,
                "tarn: evict_scope needs host memory to move to; give pinned_host or a pool over it first");
  static_assert(
      ((!has_property<typename Buffers::resource_type, host_accessible>)&&...),
      "tarn: evict_scope frees device memory; a buffer of pinned or managed memory has none to free");

 public:
  using handler = std::function<void(lost_elements const&)>;

  /// Moves the elements out. @param stream  of the buffers' device
  /// @throws misuse         (capture) `stream` or a buffer's own is being captured into a graph
  /// @throws out_of_memory  the host has no room for all of them; nothing has changed
  /// @throws cuda_error     nothing has changed
  evict_scope(Pinned pinned, stream_ref stream, Buffers&... buffers)
      : pinned_(std::move(pinned)),
        slots_(slot<Buffers>{&buffers, nullptr, 0}...),
        stream_(identified(driver(), stream)) {
    refuse_capture();
    try {
      require(driver().create_event(copied_));
      each([&](auto& s) {
        if (!s.buffer->empty()) s.host = host_memory_for(s);
        s.count = s.buffer->size();
      });
      detail::order_behind(stream_, buffers...);
      copy_out();
    } catch (...) {
      give_host_memory();
      forget_event();
      throw;
    }
    (detail::give_back_on(buffers, stream_), ...);
  }
  evict_scope(evict_scope const&) = delete;
  evict_scope& operator=(evict_scope const&) = delete;
  /// Brings back what is not back. Never throws; see above for what happens where there is no room.
  ~evict_scope() {
    try {
      bring_back();
    } catch (cuda_error const& error) {
      if (error.kind() != failure::unloading) tell_lost();
    } catch (...) {
      tell_lost();
    }
    give_host_memory();
    forget_event();
  }

  /// Brings all elements back, in stream order. Does nothing once they are. Where the device has no room, the caches of the
  /// buffers' pools are given back to the driver and it is tried once more.
  /// @throws out_of_memory, cuda_error  nothing has changed: the elements are on the host, and it may be called again
  void bring_back() {
    if (evicted_bytes() == 0) return;
    refuse_capture();
    try {
      bring_all(std::index_sequence_for<Buffers...>{});
    } catch (out_of_memory const&) {
      if (!clear_caches()) throw;
      bring_all(std::index_sequence_for<Buffers...>{});
    }
  }

  /// The elements of the i-th buffer on the host, while they are there: waits for the copy. Empty once they are back.
  /// @throws cuda_error
  template <std::size_t I>
  [[nodiscard]] auto host_copy() const {
    auto const& s = std::get<I>(slots_);
    using element = typename std::remove_reference_t<decltype(s)>::element;
    if (s.host == nullptr) return std::span<element const>();
    require(driver().synchronize_event(copied_));
    return std::span<element const>(s.data(), s.count);
  }

  /// Names who takes the elements that the destructor cannot bring back: called once for each such buffer, after the copies
  /// to the host are done. An exception of the handler ends the program.
  void when_lost(handler h) { handler_ = std::move(h); }

  /// Bytes on the host now.
  [[nodiscard]] std::size_t evicted_bytes() const noexcept {
    std::size_t bytes = 0;
    each([&](auto const& s) { bytes += s.host != nullptr ? s.bytes() : 0; });
    return bytes;
  }
  [[nodiscard]] stream_ref stream() const noexcept { return stream_; }

 private:
  template <class Buffer>
  struct slot {
    using buffer_type = Buffer;
    using element = typename Buffer::value_type;
    Buffer* buffer;
    void* host;
    std::size_t count;
    [[nodiscard]] element* data() const noexcept { return static_cast<element*>(host); }
    [[nodiscard]] std::size_t bytes() const noexcept { return count * sizeof(element); }
  };

  template <class F>
  void each(F const& f) {
    std::apply([&](auto&... s) { (f(s), ...); }, slots_);
  }
  template <class F>
  void each(F const& f) const {
    std::apply([&](auto const&... s) { (f(s), ...); }, slots_);
  }
  template <class Slot>
  [[nodiscard]] static constexpr std::size_t alignment_of(Slot const&) noexcept {
    return detail::larger_of(default_alignment, alignof(typename Slot::element));
  }

  /// The one that orders the streams: pinned memory may be any device's.
  [[nodiscard]] auto driver() const noexcept { return std::get<0>(slots_).buffer->resource().driver(); }
  void require(status const& s) const {
    if (!s.ok()) throw cuda_error(s, driver().device().value);
  }
  /// Streams of the buffers' device say nothing to a pool of another's.
  [[nodiscard]] bool is_anothers() const noexcept { return pinned_.driver().device() != driver().device(); }
  template <class Slot>
  [[nodiscard]] void* host_memory_for(Slot const& s) {
    if (is_anothers()) return pinned_.allocate_sync(s.buffer->bytes(), alignment_of(s));
    return pinned_.allocate(stream_, s.buffer->bytes(), alignment_of(s));
  }

  /// A copy recorded into a graph would happen when that is launched, and not now; and a wait for a buffer's stream that is
  /// captured makes the scope's stream part of that capture.
  void refuse_capture() const {
    refuse_capture_of(stream_);
    each([&](auto const& s) { refuse_capture_of(s.buffer->stream()); });
  }
  void refuse_capture_of(stream_ref stream) const {
    bool capturing = false;
    require(driver().is_capturing(stream, capturing));
    if (capturing) {
      throw misuse(
          misuse_kind::capture, nullptr,
          "evict_scope on a stream that is being captured, or of buffers of one; begin and end it outside of "
          "the capture");
    }
  }

  void copy_out() {
    try {
      each([&](auto& s) {
        using element = typename std::remove_reference_t<decltype(s)>::element;
        if (s.host == nullptr) return;
        tarn::copy(s.buffer->resource().driver(), std::span<element const>(s.buffer->span()),
                   std::span<element>(s.data(), s.count), stream_);
      });
      require(driver().record_event(copied_, stream_));
    } catch (...) {
      (void)finish();  // the buffers' next users do not know of the copies that run
      throw;
    }
  }

  /// Makes new blocks on stream_, fills them, lets the buffers' streams wait; only then are the buffers changed.
  template <std::size_t... I>
  void bring_all(std::index_sequence<I...>) {
    std::tuple<Buffers...> back(block_for(std::get<I>(slots_))...);
    (copy_in(std::get<I>(slots_), std::get<I>(back)), ...);
    (std::get<I>(back).set_stream(std::get<I>(slots_).buffer->stream()), ...);
    (put_back(std::get<I>(slots_), std::get<I>(back)), ...);
  }
  template <class Slot>
  [[nodiscard]] auto block_for(Slot const& s) const {
    std::size_t const count = s.host != nullptr ? s.count : 0;
    return typename Slot::buffer_type(s.buffer->resource(), count, stream_, s.buffer->alignment());
  }
  template <class Slot, class Buffer>
  void copy_in(Slot const& s, Buffer& b) {
    if (s.host != nullptr) b.copy_from(std::span<typename Slot::element const>(s.data(), s.count));
  }
  template <class Slot, class Buffer>
  void put_back(Slot& s, Buffer& b) noexcept {
    if (s.host == nullptr) return;
    *s.buffer = std::move(b);
    give(s);
  }

  /// True where a pool gave anything back.
  [[nodiscard]] bool clear_caches() {
    std::size_t given = 0;
    each([&](auto& s) {
      typename std::remove_reference_t<decltype(s)>::buffer_type::resource_type memory = s.buffer->resource();
      auto const trim = [](auto& layer) -> decltype(layer.trim(std::size_t{})) {
        return layer.trim(std::size_t{});
      };
      if constexpr (reachable<decltype(memory), decltype(trim)>) given += nearest(memory, trim);
    });
    return given != 0;
  }

  /// In the order of stream_, behind the copies.
  template <class Slot>
  void give(Slot& s) noexcept {
    if (s.host == nullptr) return;
    void* const host = std::exchange(s.host, nullptr);
    if (!is_anothers()) return pinned_.deallocate(stream_, host, s.bytes(), alignment_of(s));
    if (!finish()) (void)finish();
    pinned_.deallocate_sync(host, s.bytes(), alignment_of(s));
  }
  void give_host_memory() noexcept {
    each([&](auto& s) { give(s); });
  }
  /// Waits on the host for the scope's copies. A stream that is being captured must not be waited for: nothing was brought
  /// back then, and for the copies to the host tell_lost() has waited.
  [[nodiscard]] bool finish() const noexcept {
    bool capturing = false;
    (void)driver().is_capturing(stream_, capturing);
    return capturing || driver().synchronize_stream(stream_).ok();
  }
  void forget_event() noexcept {
    if (copied_ != nullptr) (void)driver().destroy_event(std::exchange(copied_, nullptr));
  }

  /// In the handler of what bring_back() threw.
  void tell_lost() noexcept {
    bool const copied = driver().synchronize_event(copied_).ok();
    if (!handler_) {
      report_misuse(misuse(
          misuse_kind::contents_lost, std::get<0>(slots_).buffer,
          "evict_scope ended, and the elements of its buffers cannot be brought back; call bring_back() "
          "to get the error, or name a handler by when_lost()"));
      return;
    }
    std::size_t index = 0;
    each([&](auto& s) {
      lost_elements lost{index++, {}, std::current_exception()};
      if (s.host == nullptr) return;
      if (copied) lost.bytes = std::as_bytes(std::span(s.data(), s.count));
      handler_(lost);
    });
  }

  Pinned pinned_;
  std::tuple<slot<Buffers>...> slots_;
  stream_ref stream_;
  event_handle copied_ = nullptr;  ///< the elements are on the host
  handler handler_;
};

template <class Pinned, class... Buffers>
evict_scope(Pinned, stream_ref, Buffers&...) -> evict_scope<Pinned, Buffers...>;

}  // namespace tarn
// ---- tarn/raii/mapped_file.hpp
// mapped_file: a file as read-only memory.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace tarn {

/// A file that cannot be read as asked: says which, what was tried, and errno (0 where the host did not refuse).
class file_error : public std::exception {
 public:
  file_error(std::string_view path, std::string_view what, int error) noexcept : error_(error) {
    text_.add("tarn: ").add(path).add(": ").add(what);
    if (error != 0) text_.add(" (errno ").add_number(error).add(")");
  }
  [[nodiscard]] char const* what() const noexcept override { return text_.c_str(); }
  [[nodiscard]] int error() const noexcept { return error_; }

 private:
  int error_;
  message<384> text_;
};

/// Owns a read-only mapping of a whole file. Move-only; moved-from is empty. The host reads ahead, as for one pass from front to
/// back. Safe to read from any thread. A file that others shorten meanwhile ends the program where its missing pages are
/// touched (SIGBUS); read() throws instead, and is what streamed batches use.
class mapped_file {
 public:
  /// Never waits for a writer, and opens no device. @throws file_error  no such file, not readable, not a regular file, or
  /// one of those that the system makes up as they are read (/proc), whose size is not known
  explicit mapped_file(std::string path) : path_(std::move(path)) {
    struct ::stat facts {};
    if (::stat(path_.c_str(), &facts) == 0) require_regular(facts);
    // Without O_NONBLOCK the opening of a FIFO that has just taken the file's place would wait for a writer.
    file_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (file_ < 0) throw file_error(path_, "cannot be opened for reading", errno);
    if (::fstat(file_, &facts) != 0) fail("cannot be looked at");
    require_regular(facts);
    bytes_ = static_cast<std::size_t>(facts.st_size);
    if (bytes_ == 0) {
      require_empty();
      return;
    }
    void* const mapped = ::mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, file_, 0);
    if (mapped == MAP_FAILED) fail("cannot be mapped");
    data_ = static_cast<std::byte*>(mapped);
    (void)::madvise(mapped, bytes_, MADV_SEQUENTIAL);  // advice: a host that cannot take it is no error
    (void)::madvise(mapped, bytes_, MADV_WILLNEED);
  }
  mapped_file(mapped_file&& other) noexcept { swap(other); }
  mapped_file& operator=(mapped_file&& other) noexcept {
    mapped_file taken(std::move(other));
    swap(taken);
    return *this;
  }
  ~mapped_file() { close(); }
  void swap(mapped_file& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(file_, other.file_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }

  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  /// The file's bytes, in place.
  [[nodiscard]] std::span<std::byte const> span() const noexcept { return {data_, bytes_}; }
  /// The file as elements, in place. @throws file_error  its size is no multiple of theirs
  template <class T>
  [[nodiscard]] std::span<T const> as() const {
    return {reinterpret_cast<T const*>(data_), count_of<T>()};
  }
  /// Elements of T in the file. @throws file_error  its size is no multiple of theirs
  template <class T>
  [[nodiscard]] std::size_t count_of() const {
    static_assert(std::is_trivially_copyable_v<T>, "tarn: a file has bytes: T must be trivially copyable");
    if (bytes_ % sizeof(T) != 0)
      throw file_error(path_, "ends within an element: its size is no multiple", 0);
    return bytes_ / sizeof(T);
  }

  /// Copies bytes of the file to memory by the file's own calls, not through the mapping. From any thread. Of a file in the page
  /// cache one thread of an EPYC virtual machine read 17 GB/s so, 7 through a new mapping, whose pages come fault by fault.
  /// @throws file_error  they cannot be read, or the file has become shorter
  void read(std::size_t offset, std::span<std::byte> to) const {
    while (!to.empty()) {
      ssize_t const got = ::pread(file_, to.data(), to.size(), static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw file_error(path_, "cannot be read", errno);
      if (got == 0) throw file_error(path_, "has become shorter than it was when it was mapped", 0);
      offset += static_cast<std::size_t>(got);
      to = to.subspan(static_cast<std::size_t>(got));
    }
  }

 private:
  void require_regular(struct ::stat const& facts) {
    if (S_ISREG(facts.st_mode)) return;
    errno = 0;
    fail("is no regular file; read it by a generator");
  }
  /// Files that the system makes up have a size of 0 and contents all the same.
  void require_empty() {
    char first = 0;
    ssize_t const got = ::pread(file_, &first, 1, 0);
    if (got < 0) fail("cannot be read");
    if (got == 0) return;
    errno = 0;
    fail("has contents, but its size is not known; read it by a generator");
  }
  [[noreturn]] void fail(std::string_view what) {
    int const error = errno;
    close();
    throw file_error(path_, what, error);
  }
  void close() noexcept {
    if (data_ != nullptr) (void)::munmap(data_, bytes_);
    if (file_ >= 0) (void)::close(file_);
    data_ = nullptr;
    file_ = -1;
    bytes_ = 0;
  }

  std::string path_;
  int file_ = -1;
  std::byte* data_ = nullptr;  ///< mapped for reading alone
  std::size_t bytes_ = 0;
};

}  // namespace tarn
// ---- tarn/raii/micro_batches.hpp
// micro_batches: work split into parts that fit a budget, as gradient accumulation wants them.

#include <cstddef>
#include <iterator>

// ---- tarn/raii/memory_room.hpp
// room_in(): how much a resource could hand out now, and what bounds that.

#include <concepts>
#include <cstddef>
#include <type_traits>

namespace tarn {

/// What a resource could hand out at one moment. Bytes; fields that are not known stay memory_report::unknown.
struct memory_room {
  std::size_t bytes = 0;                             ///< could be handed out
  char const* bounded_by = "the device";             ///< what gives out first, static storage
  std::size_t limit = memory_report::unknown;        ///< where that is a limit
  std::size_t live = memory_report::unknown;         ///< handed out, as the nearest layer that knows says
  std::size_t cached = memory_report::unknown;       ///< held by the nearest pool, not handed out
  std::size_t device_free = memory_report::unknown;  ///< as the driver says
};

namespace detail {

template <class Layer>
concept bounds_bytes = requires(Layer& layer) {
  { layer.limit() } -> std::convertible_to<std::size_t>;
  { layer.used() } -> std::convertible_to<std::size_t>;
};
template <class Layer>
concept caches_bytes = stands_on_another<Layer> && !routes_calls<Layer> && requires(Layer & layer) {
  { layer.state() } -> std::same_as<pool_state>;
};

/// True where somebody knows: a limit, or the driver of a source of device memory or of plain host memory. What is left of
/// pinned and managed memory no driver tells.
template <class Layer>
constexpr bool tells_room() noexcept {
  if constexpr (bounds_bytes<Layer>) {
    return true;
  } else if constexpr (stands_on_another<Layer>) {
    return tells_room<std::remove_reference_t<decltype(layer_of(std::declval<Layer&>().upstream()))>>();
  } else {
    return !has_property<Layer, host_accessible> || std::same_as<typename Layer::driver_type, no_driver>;
  }
}

template <class Layer>
[[nodiscard]] memory_room room_of(Layer& layer) {
  constexpr std::size_t everything = ~std::size_t{0};
  memory_room room{everything, "nothing"};
  if constexpr (!stands_on_another<Layer>) {
    if constexpr (tells_room<Layer>()) {
      std::size_t total = 0;
      status const s = layer.driver().memory_info(room.bytes, total);
      if (!s.ok()) throw cuda_error(s, layer.driver().device().value);
      bool const of_host = std::same_as<typename Layer::driver_type, no_driver>;
      room.bounded_by = of_host ? "the host" : "the device";
      room.device_free = room.bytes;
    }
  } else {
    room = room_of(layer_of(layer.upstream()));
  }
  if constexpr (caches_bytes<Layer>) {
    pool_state const s = layer.state();
    // Over pages free pieces are put together. Over blocks they are not: of them one piece is sure.
    bool const puts_together = page_source<typename Layer::upstream_type>;
    std::size_t const reusable = puts_together ? s.cached : s.largest_free_range;
    room.bytes += smaller_of(reusable, everything - room.bytes);
    room.cached = s.cached;
    room.live = s.live;
  }
  if constexpr (bounds_bytes<Layer>) {
    std::size_t const limit = layer.limit();
    std::size_t const used = layer.used();
    std::size_t const left = limit - smaller_of(limit, used);
    if (left < room.bytes) {
      room.bytes = left;
      room.bounded_by = "limited";
      room.limit = limit;
      room.live = used;
    }
  }
  return room;
}

}  // namespace detail

/// How much `memory` could hand out now: from the source up, what the driver says is free; bounded by a `limited` layer
/// over pages; plus what a pool has cached (over pages all of it, over blocks the largest free range, since blocks are not
/// put together); bounded by each `limited` layer over that. What a `fallback_to` or `retry_on_oom` could add is not
/// counted, nor what recorded uses hold back. A moment's figure: other threads and processes go on.
/// Takes the pool's locks for a moment and asks the driver once (5 us). Never waits for a stream. Safe from any thread.
/// @throws cuda_error  the driver did not tell
template <class Resource>
[[nodiscard]] memory_room room_in(Resource const& memory) {
  using layer = std::remove_reference_t<decltype(detail::layer_of(std::declval<Resource&>()))>;
  static_assert(
      detail::tells_room<layer>(),
      "tarn: nobody knows how much of this memory is free (no driver tells it of pinned or managed memory); "
      "add: | tarn::limited{bytes}, or give a number of bytes");
  Resource handle = memory;
  return detail::room_of(detail::layer_of(handle));
}

}  // namespace tarn

namespace tarn {

/// What happens where one item does not fit the budget.
enum class too_large_item {
  refuse,        ///< out_of_memory, before anything is done
  one_at_a_time  ///< parts of one item each: the allocation itself may still succeed, or refuse
};

struct micro_batch_options {
  /// Of what a resource could hand out, so many thousandths are left alone: blocks are rounded up (by up to 12.5 % where
  /// they are small), and other programs use the device. A budget given as a number is used to the last byte.
  unsigned reserve_per_mille = 50;
  too_large_item when_too_large = too_large_item::refuse;
  std::size_t most_items = ~std::size_t{0};  ///< in a part, however much fits; 0 counts as 1
};

/// Consecutive items: [first, first + count) of `of`.
struct micro_batch {
  std::size_t first = 0;
  std::size_t count = 0;
  std::size_t index = 0;  ///< of the part, from 0
  std::size_t of = 0;     ///< items in all parts together

  /// The part's share of all items: scale a part's mean loss by it, and the accumulated gradients are those of the whole
  /// batch, though the last parts are an item smaller. The weights of all parts add up to 1.
  [[nodiscard]] double weight() const noexcept {
    return static_cast<double>(count) / static_cast<double>(of);
  }
};

/// `n` items in the fewest parts that fit a budget, as even as possible: no two differ by more than one item. Decided once,
/// when made: a part's count and weight stay what they were, whatever is allocated meanwhile; ask again for a fresh look.
/// A forward range of micro_batch; a small value, holds no memory and no resource. Zero items: no part.
class micro_batches {
 public:
  class iterator;

  /// Splits by a number of bytes.
  /// @param n               items
  /// @param bytes_per_item  that one item needs while its part is worked on: `bytes_of<float>(features)`; 0: all fit
  /// @param budget          bytes that a part may need
  /// @throws out_of_memory  one item is larger than the budget (unless one_at_a_time); nothing was done
  micro_batches(std::size_t n, std::size_t bytes_per_item, std::size_t budget,
                micro_batch_options const& options = {})
      : micro_batches(n, bytes_per_item, memory_room{budget, "the budget of micro_batches", budget}, 0, -1,
                      options) {}

  /// Splits by what a resource could hand out now: room_in(memory) less the reserve.
  /// @throws cuda_error  the driver did not tell what is free
  template <has_driver Resource>
  micro_batches(std::size_t n, std::size_t bytes_per_item, Resource const& memory,
                micro_batch_options const& options = {})
      : micro_batches(n, bytes_per_item, room_in(memory), options.reserve_per_mille,
                      memory.driver().device().value, options) {}

  [[nodiscard]] inline iterator begin() const noexcept;
  [[nodiscard]] inline iterator end() const noexcept;
  /// Parts.
  [[nodiscard]] std::size_t size() const noexcept { return parts_; }
  [[nodiscard]] bool empty() const noexcept { return parts_ == 0; }
  /// Items of the largest part, which is the first: what buffers used by all parts must hold.
  [[nodiscard]] std::size_t largest() const noexcept {
    return parts_ == 0 ? 0 : each_ + (extra_ != 0 ? 1 : 0);
  }
  /// Bytes that a part may need, as decided.
  [[nodiscard]] std::size_t budget() const noexcept { return budget_; }
  /// One part; index < size().
  [[nodiscard]] micro_batch operator[](std::size_t index) const noexcept {
    std::size_t const larger = detail::smaller_of(index, extra_);
    return {index * each_ + larger, each_ + (index < extra_ ? 1 : 0), index, n_};
  }

 private:
  micro_batches(std::size_t n, std::size_t bytes_per_item, memory_room const& room,
                unsigned reserve_per_mille, int device, micro_batch_options const& options)
      : n_(n), budget_(room.bytes - share_of(room.bytes, reserve_per_mille)) {
    if (n == 0) return;
    std::size_t fit = bytes_per_item == 0 ? n : budget_ / bytes_per_item;
    if (fit == 0) {
      if (options.when_too_large == too_large_item::refuse) refuse(bytes_per_item, room, device);
      fit = 1;
    }
    fit = detail::smaller_of(fit, detail::larger_of(options.most_items, std::size_t{1}));
    parts_ = n / fit + (n % fit != 0 ? 1 : 0);
    each_ = n / parts_;
    extra_ = n % parts_;
  }

  [[nodiscard]] static std::size_t share_of(std::size_t bytes, unsigned per_mille) noexcept {
    std::size_t const part = detail::smaller_of(per_mille, 1000U);
    return bytes / 1000 * part + bytes % 1000 * part / 1000;
  }
  [[noreturn]] void refuse(std::size_t bytes_per_item, memory_room const& room, int device) const {
    bool const is_reserve = bytes_per_item <= room.bytes;
    memory_report r;
    r.asked = bytes_per_item;
    r.device = device;
    r.live = room.live;
    r.cached = room.cached;
    r.device_free = room.device_free;
    r.limit = is_reserve ? budget_ : room.limit;
    r.refused_by = is_reserve ? "the reserve of micro_batches" : room.bounded_by;
    throw out_of_memory(r);
  }

  std::size_t n_ = 0;
  std::size_t budget_ = 0;
  std::size_t parts_ = 0;
  std::size_t each_ = 0;   ///< items of the smaller parts
  std::size_t extra_ = 0;  ///< parts of one item more; they come first
};

class micro_batches::iterator {
 public:
  using value_type = micro_batch;
  using reference = micro_batch;
  using difference_type = std::ptrdiff_t;
  using iterator_category = std::input_iterator_tag;  // parts are made as they are asked for
  using iterator_concept = std::forward_iterator_tag;

  iterator() noexcept = default;
  [[nodiscard]] micro_batch operator*() const noexcept { return whole_[at_]; }
  iterator& operator++() noexcept {
    ++at_;
    return *this;
  }
  iterator operator++(int) noexcept {
    iterator const before = *this;
    ++at_;
    return before;
  }
  friend bool operator==(iterator const& a, iterator const& b) noexcept { return a.at_ == b.at_; }

 private:
  friend class micro_batches;
  iterator(micro_batches const& whole, std::size_t at) noexcept : whole_(whole), at_(at) {}
  inline static constexpr std::size_t nowhere = 0;
  micro_batches whole_{nowhere, nowhere, nowhere};  // by value: a range may be a temporary
  std::size_t at_ = 0;
};

inline micro_batches::iterator micro_batches::begin() const noexcept {
  return {*this, 0};
}
inline micro_batches::iterator micro_batches::end() const noexcept {
  return {*this, parts_};
}

}  // namespace tarn
// ---- tarn/raii/partitioned_buffer.hpp
// partitioned_buffer<T>: one array of elements over several devices, each part on its device with a stream of its own.

#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

// ---- tarn/raii/partition.hpp
// partition: how many elements are divided into contiguous parts, evenly or by weight.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

namespace tarn {

/// A division that cannot be made. Says why.
class bad_partition : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

/// Elements 0 to size() in contiguous parts, every one of them in exactly one part; parts may be empty. A value.
class partition {
 public:
  /// Parts whose sizes differ by at most one step.
  /// @param multiple_of  step: elements between two places where a part may begin (a row, a cache line)
  /// @throws bad_partition  no parts, or no step
  [[nodiscard]] static partition even(std::size_t count, std::size_t parts, std::size_t multiple_of = 1) {
    partition made(count, parts, multiple_of);
    std::size_t const steps = steps_of(count, multiple_of);
    for (std::size_t i = 1; i < parts; ++i) {
      std::size_t const before = steps / parts * i + detail::smaller_of(i, steps % parts);
      made.first_[i] = place_of(before, count, multiple_of);
    }
    return made;
  }
  /// Parts in proportion to weights (memory, speed), each within a step of it.
  /// @throws bad_partition  no weights, one that is negative or not finite, none above zero, or no step
  [[nodiscard]] static partition weighted(std::size_t count, std::span<double const> weights,
                                          std::size_t multiple_of = 1) {
    partition made(count, weights.size(), multiple_of);
    double total = 0;
    for (double const w : weights) {
      if (!(w >= 0)) refuse("a weight must be a number of at least 0");
      total += w;
    }
    if (!(total > 0) || !std::isfinite(total)) refuse("the weights must add up to a number above 0");
    auto const steps = static_cast<double>(steps_of(count, multiple_of));
    double before = 0;
    for (std::size_t i = 1; i < weights.size(); ++i) {
      before += weights[i - 1];
      double const place = std::floor(steps * (before / total) + 0.5);
      // Also where rounding has gone beyond the last step, or a step's number beyond what a double has exactly.
      made.first_[i] = place >= steps ? count : place_of(static_cast<std::size_t>(place), count, multiple_of);
    }
    return made;
  }

  /// Elements in all.
  [[nodiscard]] std::size_t size() const noexcept { return first_.back(); }
  /// How many parts there are.
  [[nodiscard]] std::size_t parts() const noexcept { return first_.size() - 1; }
  /// Where part i begins.
  [[nodiscard]] std::size_t first(std::size_t i) const noexcept { return first_[i]; }
  /// Elements of part i.
  [[nodiscard]] std::size_t size(std::size_t i) const noexcept { return first_[i + 1] - first_[i]; }
  /// The part that an element is in. @param element  below size(). O(log parts).
  [[nodiscard]] std::size_t part_of(std::size_t element) const noexcept {
    auto const next = std::upper_bound(first_.begin(), first_.end(), element);
    return static_cast<std::size_t>(next - first_.begin()) - 1;
  }

  friend bool operator==(partition const&, partition const&) = default;

 private:
  partition(std::size_t count, std::size_t parts, std::size_t multiple_of) {
    if (parts == 0) refuse("it needs at least one part");
    if (parts >= first_.max_size()) refuse("so many parts there cannot be; check the number for overflow");
    if (multiple_of == 0) refuse("parts begin at multiples of at least 1 element");
    first_.resize(parts + 1);
    first_.back() = count;
  }
  static std::size_t steps_of(std::size_t count, std::size_t multiple_of) noexcept {
    return count / multiple_of + (count % multiple_of != 0 ? 1 : 0);
  }
  static std::size_t place_of(std::size_t step, std::size_t count, std::size_t multiple_of) noexcept {
    return step > count / multiple_of ? count : step * multiple_of;
  }
  [[noreturn]] static void refuse(char const* why) {
    message<128> text;
    throw bad_partition(text.add("tarn: not a partition: ").add(why).c_str());
  }

  std::vector<std::size_t> first_;
};

}  // namespace tarn
// ---- tarn/raii/peer_copy.hpp
// Copies between buffers of two devices, whole or in pieces, whether or not one device can reach the other.

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace tarn {

namespace detail {

inline void require_elements(char const* whose, std::size_t first, std::size_t count, std::size_t size) {
  if (first <= size && count <= size - first) return;
  message<160> text;
  text.add("tarn: peer_copy of ").add_number(std::uint64_t{count}).add(" elements from place ");
  text.add_number(std::uint64_t{first}).add(" on of the ").add(whose).add(", which has ");
  throw length_error(text.add_number(std::uint64_t{size}).c_str());
}

template <class Resource>
inline constexpr bool host_may_touch = has_property<Resource, host_accessible>;

}  // namespace detail

/// Copies elements between buffers of any devices, the same one included, on the target's stream, which first waits, on
/// the device, for the source's; that one waits for the copy, so either buffer may be changed or destroyed at once. The
/// host waits for nothing. Works with peer access and without: where the devices cannot reach each other, the driver goes by
/// way of the host (and may take ten times as long); pages made `| reachable_from{...}` can be copied straight.
/// @param from_first, to_first, count  elements
/// @throws length_error  beyond the end of a buffer; nothing is copied
/// @throws misuse        of kind `overlap`: both are one buffer, and the pieces share elements
/// @throws cuda_error
template <class T, class FromResource, class ToResource>
requires std::is_same_v<typename FromResource::driver_type, typename ToResource::driver_type>
void peer_copy(device_buffer<T, FromResource> const& from, std::size_t from_first,
               device_buffer<T, ToResource>& to, std::size_t to_first, std::size_t count) {
  detail::require_elements("source", from_first, count, from.size());
  detail::require_elements("target", to_first, count, to.size());
  if (count == 0) return;
  auto const& theirs = from.resource().driver();
  auto const& driver = to.resource().driver();
  T const* const source = from.data() + from_first;
  T* const target = to.data() + to_first;
  detail::require_apart(source, count * sizeof(T), target, count * sizeof(T),
                        "a copy's target overlaps its source; copy by way of a buffer of its own");
  using driver_type = typename ToResource::driver_type;
  detail::driven_stream<driver_type> const on_source{theirs, from.stream()};
  detail::driven_stream<driver_type> const on_target{driver, to.stream()};
  bool const apart = theirs.device() != driver.device();
  // Memory of the host is copied by the device that the other side belongs to.
  if constexpr (detail::host_may_touch<ToResource> && !detail::host_may_touch<FromResource>) {
    if (apart) {
      detail::in_turn(
          on_source,
          [&] {
            status const s = theirs.copy(from.stream(), target, source, count * sizeof(T));
            if (!s.ok()) throw cuda_error(s, theirs.device().value);
          },
          on_target);
      return;
    }
  }
  detail::in_turn(
      on_target,
      [&] {
        status s;
        if constexpr (!detail::host_may_touch<ToResource> && !detail::host_may_touch<FromResource> &&
                      requires {
                        driver.copy_from_device(to.stream(), target, device_id{}, source, count);
                      }) {
          s = apart ? driver.copy_from_device(to.stream(), target, theirs.device(), source, count * sizeof(T))
                    : driver.copy(to.stream(), target, source, count * sizeof(T));
        } else {
          s = driver.copy(to.stream(), target, source, count * sizeof(T));
        }
        if (!s.ok()) throw cuda_error(s, driver.device().value);
      },
      on_source);
}

/// All elements. @throws length_error  the sizes differ; cuda_error
template <class T, class FromResource, class ToResource>
requires std::is_same_v<typename FromResource::driver_type, typename ToResource::driver_type>
void peer_copy(device_buffer<T, FromResource> const& from, device_buffer<T, ToResource>& to) {
  detail::require_elements("source", 0, to.size(), from.size());
  tarn::peer_copy(from, 0, to, 0, from.size());
}

}  // namespace tarn
// ---- tarn/raii/per_device.hpp
// per_device: one pool for each device, made when it is first asked for.

#include <atomic>
#include <concepts>
#include <cstddef>
#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>

namespace tarn {

namespace detail {

/// What is below all policies of a pool.
template <class Pool>
struct source_under {
  using type = Pool;
};
template <class Layer>
requires requires {
  typename Layer::upstream_type;
}
struct source_under<shared<Layer>> : source_under<typename Layer::upstream_type> {};

/// Makes a pool on a device's source, its policies with their defaults.
template <class Pool>
struct default_pool_of {
  [[nodiscard]] Pool operator()(device_id device) const {
    return Pool(typename source_under<Pool>::type(device));
  }
};

}  // namespace detail

/// A pool per device: `tarn::per_device<tarn::device_pool> pools;`, then `pools[device]` or `pools.current()`. With options,
/// or on a machine of one's own, give it what makes a pool:
/// `tarn::per_device pools{[](tarn::device_id d) { return tarn::cuda_pages{d} | tarn::pooled{} | tarn::limited{8_GiB}; }};`
/// Thread-safe; a pool that exists costs one atomic load. Pools stay until the whole is destroyed, and longer while
/// buffers hold them; references to them do not move.
template <class Pool, class Make = detail::default_pool_of<Pool>>
requires std::same_as<std::invoke_result_t<Make&, device_id>, Pool>
class per_device {
 public:
  using pool_type = Pool;
  using driver_type = typename Pool::driver_type;
  /// Ordinals go up to below this.
  static constexpr int most_devices = 128;

  /// Makes no pool yet. @param make  called with a device, by one thread at a time. It may ask for other devices' pools; it
  ///                                 must not wait for a thread that asks for one
  explicit per_device(Make make = Make{}) : make_(std::move(make)) {}
  per_device(per_device const&) = delete;
  per_device& operator=(per_device const&) = delete;
  ~per_device() {
    for (auto& slot : slots_) delete slot.load(std::memory_order_relaxed);
  }

  /// The device's pool, made now if there is none. The current device stays what it is.
  /// @throws cuda_error  of kind `no_device` where there is no such device, and whatever making a pool may throw; the next
  ///                     call tries again
  /// @throws misuse      of kind `wrong_device`: what was made is another device's; of kind `recursion`: making a device's
  ///                     pool asks for that same pool
  [[nodiscard]] Pool& operator[](device_id device) {
    if (device.value < 0 || device.value >= most_devices) refuse(device);
    std::atomic<Pool*>& slot = slots_[device.value];
    if (Pool* const there = slot.load(std::memory_order_acquire); there != nullptr) return *there;
    std::lock_guard const lock(mutex_);
    if (Pool* const there = slot.load(std::memory_order_relaxed); there != nullptr) return *there;
    making const here(in_making_[device.value], device);
    auto made = std::make_unique<Pool>(make_(device));
    if (made->device() != device) refuse(device, made->device());
    slot.store(made.get(), std::memory_order_release);
    return *made.release();
  }

  /// The pool of the calling thread's current device. @throws as operator[]
  [[nodiscard]] Pool& current() requires requires(device_id& device) { driver_type::current_device(device); }
  {
    device_id device;
    if (status const s = driver_type::current_device(device); !s.ok()) throw cuda_error(s);
    return (*this)[device];
  }

  /// The device's pool, null where it has not been made.
  [[nodiscard]] Pool* find(device_id device) noexcept {
    if (device.value < 0 || device.value >= most_devices) return nullptr;
    return slots_[device.value].load(std::memory_order_acquire);
  }
  /// Calls `call(device, pool)` for each pool that has been made, by ordinal.
  template <class Call>
  void for_each(Call const& call) {
    for (int device = 0; device < most_devices; ++device) {
      if (Pool* const pool = find(device_id{device}); pool != nullptr) call(device_id{device}, *pool);
    }
  }
  /// Pools made so far.
  [[nodiscard]] std::size_t size() const noexcept {
    std::size_t made = 0;
    for (auto const& slot : slots_) made += slot.load(std::memory_order_relaxed) != nullptr ? 1 : 0;
    return made;
  }

 private:
  /// Marks a device whose pool this thread is making.
  class making {
   public:
    making(bool& marked, device_id device) : marked_(marked) {
      if (marked) refuse_recursion(device);
      marked_ = true;
    }
    making(making const&) = delete;
    making& operator=(making const&) = delete;
    ~making() { marked_ = false; }

   private:
    bool& marked_;
  };

  [[noreturn]] static void refuse_recursion(device_id device) {
    message<160> text;
    text.add("per_device is making the pool of device ").add_number(device.value);
    text.add(", and making it asks for that same pool; make it from a source");
    throw misuse(misuse_kind::recursion, nullptr, text.view());
  }
  [[noreturn]] static void refuse(device_id device) {
    throw cuda_error({failure::no_device, 101, "cudaErrorInvalidDevice", "per_device"}, device.value);
  }
  [[noreturn]] static void refuse(device_id asked, device_id made) {
    message<160> text;
    text.add("per_device asked for a pool of device ")
        .add_number(asked.value)
        .add(" and was made one of device ");
    text.add_number(made.value).add("; hand the device on to the source");
    throw misuse(misuse_kind::wrong_device, nullptr, text.view());
  }

  Make make_;
  detail::recursive_fork_mutex mutex_;  ///< making one pool may ask for another
  bool in_making_[most_devices]{};
  std::atomic<Pool*> slots_[most_devices]{};
};

template <class Make>
per_device(Make) -> per_device<std::invoke_result_t<Make&, device_id>, Make>;

}  // namespace tarn

namespace tarn {

namespace detail {

/// The device of a part current while its work is enqueued, on drivers that know a current device.
template <class Driver>
concept has_current_device = requires(device_id device) {
  Driver::set_current_device(device);
};
struct no_guard {
  explicit constexpr no_guard(device_id) noexcept {}
};
template <class Driver>
struct guard_for {
  using type = no_guard;
};
template <has_current_device Driver>
struct guard_for<Driver> {
  using type = basic_device_guard<Driver>;
};

}  // namespace detail

/// Owns size() elements, part i of them in a block of memory i, uninitialised. Each part's work is ordered on its own stream,
/// parts run side by side, and nothing waits on the host unless it says so. Several parts may be on one device. Movable, not
/// copyable. One thread at a time. Moved-from: may be assigned and destroyed only. A constructor that throws has freed the
/// parts it had.
template <class T, class Resource = detail::default_device_resource>
class partitioned_buffer {
 public:
  using value_type = T;
  using resource_type = Resource;
  using driver_type = typename Resource::driver_type;
  using part_type = device_buffer<T, Resource>;

  /// What for_each_part() hands out: elements [first, first + elements.size()) of the whole.
  struct part_ref {
    std::size_t index;
    std::size_t first;
    part_type& elements;
    stream_ref stream;
  };

  /// Part i from memory i.
  /// @throws bad_partition  not as many memories as parts
  /// @throws length_error, out_of_memory, cuda_error; nothing is held
  partitioned_buffer(std::span<Resource const> memories, partition parts, place where = place::current())
      : layout_(std::move(parts)) {
    if (memories.size() != layout_.parts()) {
      message<160> text;
      text.add("tarn: ").add_number(std::uint64_t{layout_.parts()}).add(" parts and ");
      text.add_number(std::uint64_t{memories.size()}).add(" memories; give each part one");
      throw bad_partition(text.c_str());
    }
    parts_.reserve(memories.size());
    for (std::size_t i = 0; i < memories.size(); ++i)
      parts_.emplace_back(memories[i], layout_.size(i), where);
  }
  /// Part i on device i of `devices`, from its pool.
  template <class Make>
  partitioned_buffer(per_device<Resource, Make>& pools, std::span<device_id const> devices, partition parts,
                     place where = place::current())
      : partitioned_buffer(std::span<Resource const>(pools_of(pools, devices)), std::move(parts), where) {}
  /// `count` elements, evenly.
  template <class Make>
  partitioned_buffer(per_device<Resource, Make>& pools, std::span<device_id const> devices, std::size_t count,
                     place where = place::current())
      : partitioned_buffer(pools, devices, partition::even(count, devices.size()), where) {}

  partitioned_buffer(partitioned_buffer&&) noexcept = default;
  partitioned_buffer& operator=(partitioned_buffer&&) noexcept = default;

  /// Elements in all.
  [[nodiscard]] std::size_t size() const noexcept { return layout_.size(); }
  [[nodiscard]] std::size_t parts() const noexcept { return parts_.size(); }
  [[nodiscard]] partition const& layout() const noexcept { return layout_; }
  /// Part i, a buffer on its device whose stream is stream(i). Leave its size and its stream as they are.
  [[nodiscard]] part_type& part(std::size_t i) noexcept { return parts_[i].elements; }
  [[nodiscard]] part_type const& part(std::size_t i) const noexcept { return parts_[i].elements; }
  [[nodiscard]] stream_ref stream(std::size_t i) const noexcept { return parts_[i].stream.ref(); }
  [[nodiscard]] device_id device(std::size_t i) const noexcept { return driver(i).device(); }

  /// Calls `call(part_ref)` for each part, its device current: enqueue the part's work on its stream.
  template <class Call>
  void for_each_part(Call const& call) {
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      [[maybe_unused]] typename detail::guard_for<driver_type>::type const here(device(i));
      call(part_ref{i, layout_.first(i), part(i), stream(i)});
    }
  }

  /// Copies from size() elements of the host, each part in its stream's order: from pinned memory, to be kept until the
  /// streams are past it, all devices copy at once; from other memory one after the other.
  /// @throws length_error  another number of elements; nothing is copied
  /// @throws cuda_error    some parts may have been copied
  void scatter(std::span<T const> from) {
    require_size("scatter", from.size());
    for (std::size_t i = 0; i < parts_.size(); ++i) part(i).copy_from(piece(from, i));
  }
  /// Copies to size() elements of the host likewise. @throws as scatter
  void gather(std::span<T> to) const {
    require_size("gather", to.size());
    for (std::size_t i = 0; i < parts_.size(); ++i) part(i).copy_to(piece(to, i));
  }
  /// The same, and waits for all of it, so that the host may read; also where it throws, so that `to` may go.
  void gather_sync(std::span<T> to) const {
    try {
      gather(to);
    } catch (...) {
      (void)finish();
      throw;
    }
    synchronize();
  }
  /// Copies from another division of as many elements, piece by piece between the devices, ordered behind and before the
  /// work on every part concerned; either may be changed or destroyed at once. @throws as scatter
  template <class Other>
  requires std::is_same_v<typename Other::driver_type, driver_type>
  void copy_from(partitioned_buffer<T, Other> const& other) {
    require_size("copy_from", other.size());
    for (std::size_t at = 0; at < size();) {
      std::size_t const mine = layout_.part_of(at);
      std::size_t const theirs = other.layout().part_of(at);
      std::size_t const my_end = layout_.first(mine) + layout_.size(mine);
      std::size_t const their_end = other.layout().first(theirs) + other.layout().size(theirs);
      std::size_t const count = detail::smaller_of(my_end, their_end) - at;
      tarn::peer_copy(other.part(theirs), at - other.layout().first(theirs), part(mine),
                      at - layout_.first(mine), count);
      at += count;
    }
  }

  /// Sets every byte to 0, in each stream's order. @throws cuda_error
  void zero() {
    for (part_and_stream& p : parts_) p.elements.zero();
  }

  /// Waits on the host for all parts' work. @throws cuda_error  the first of what the parts had, also for errors of earlier
  /// kernels; all have been waited for
  void synchronize() const {
    if (failed_part const first = finish(); !first.what.ok()) throw cuda_error(first.what, first.device);
  }
  /// Makes all parts' later work wait, on the devices, for what `stream` has now. @throws cuda_error
  void order_behind(driver_type const& driver_of_stream, stream_ref stream) {
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      detail::order_streams(driver(i), this->stream(i), driver_of_stream,
                            identified(driver_of_stream, stream));
    }
  }
  /// Makes later work on `stream` wait, on the devices, for what all parts have now. @throws cuda_error
  void order_before(driver_type const& driver_of_stream, stream_ref stream) const {
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      detail::order_streams(driver_of_stream, identified(driver_of_stream, stream), driver(i),
                            this->stream(i));
    }
  }

 private:
  struct part_and_stream {
    part_and_stream(Resource memory, std::size_t count, place where)
        : stream(memory.driver()),
          elements(std::move(memory), count, stream, detail::larger_of(default_alignment, alignof(T)),
                   where) {}
    basic_stream<driver_type> stream;  // outlives the elements, which are freed on it
    part_type elements;
  };
  struct failed_part {
    status what;
    int device = 0;
  };

  /// Waits for all parts, whichever fail; the first that did.
  failed_part finish() const noexcept {
    failed_part first;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      driver_type const& driver = this->driver(i);
      status const s = driver.synchronize_stream(stream(i));
      if (s.ok()) continue;
      (void)driver.synchronize_device();
      if (first.what.ok()) first = {s, device(i).value};
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
  void require_size(char const* what, std::size_t count) const {
    if (count == size()) return;
    message<160> text;
    text.add("tarn: ")
        .add(what)
        .add(" of ")
        .add_number(std::uint64_t{count})
        .add(" elements with a buffer of ");
    throw length_error(text.add_number(std::uint64_t{size()}).c_str());
  }

  partition layout_;
  std::vector<part_and_stream> parts_;
};

}  // namespace tarn
// ---- tarn/raii/scratch.hpp
// scratch: a stack of temporaries on a device, with mark and rewind, as recomputation and layered work want it.
//
//   chunk 0                 chunk 1
//   [ a | b |    gap     ]  [ c | d | free         ]    mark m stood after b: rewind(m) takes c and d off
//           ^ m                     ^ top               chunk 1 stays, empty, for the next take()

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace tarn {

/// What take() does where the chunks are full.
enum class scratch_growth {
  doubling,  ///< takes another chunk, as large as all so far together, or as the request where that is larger
  none       ///< out_of_memory: chunk_bytes are all there is
};

struct scratch_options {
  std::size_t chunk_bytes = 4_MiB;  ///< of the first chunk; taken at the first take()
  scratch_growth growth = scratch_growth::doubling;
};

/// A place in a scratch, to rewind to. A small value; ends when it, or one before it, is rewound to.
class scratch_mark {
 private:
  template <class Resource>
  friend class scratch;
  void const* of_ = nullptr;
  std::uint64_t serial_ = 0;
  std::size_t depth_ = 0;
};

/// Hands out uninitialised device memory from chunks, upwards; what was handed out since a mark is taken back at once by
/// rewinding to it. Chunks come from `memory` and stay until release() or the end: a warm take() or rewind() is a few
/// instructions and no call of the pool.
///
/// All of it is ordered by one stream: memory that was taken back may be handed out again at once, for later work on
/// stream(). Work on another stream must be made to precede it (an event, or set_stream()) before the rewind.
///
/// It is no resource on purpose: an owner that frees in any order, or outlives a rewind, would be wrong without a sign.
/// Sizes do not wrap. One thread at a time. Destruction gives the chunks back in the order of stream(), and never throws.
template <class Resource>
class scratch {
 public:
  using resource_type = Resource;

  /// Takes no memory yet. @throws cuda_error  the stream is not known to the driver
  explicit scratch(Resource memory, scratch_options const& options = {}, stream_ref stream = {})
      : memory_(std::move(memory)), stream_(identified(memory_, stream)), options_(options) {}
  /// A template, so that `{}` means the default options, and not 0 bytes.
  template <std::integral Bytes>
  scratch(Resource memory, Bytes chunk_bytes, stream_ref stream = {})
      : scratch(std::move(memory), scratch_options{static_cast<std::size_t>(chunk_bytes)}, stream) {}
  scratch(scratch const&) = delete;
  scratch& operator=(scratch const&) = delete;
  ~scratch() { give_from(0); }

  /// `count` uninitialised elements, until a mark made before is rewound to; zero give null.
  /// @param count  elements, not bytes. Aligned to 256 bytes, or as T asks where that is more
  /// @throws length_error   count * sizeof(T) overflows
  /// @throws out_of_memory  nothing has changed. growth::none: says how large the scratch is
  /// O(1) where a kept chunk has room (O(chunks) where one must be skipped), else one allocation.
  template <class T>
  [[nodiscard]] T* take(std::size_t count) {
    static_assert(std::is_trivially_copyable_v<T>,
                  "tarn: scratch never constructs elements: T must be trivially copyable");
    constexpr std::size_t alignment = detail::larger_of(default_alignment, alignof(T));
    static_assert(alignment <= max_alignment, "tarn: no resource promises such an alignment");
    return static_cast<T*>(take_bytes(checked_bytes(count, sizeof(T)), alignment));
  }

  /// Notes the place that rewind() goes back to. @throws std::bad_alloc  (host) nothing has changed
  [[nodiscard]] scratch_mark mark() {
    marks_.push_back(noted{next_serial_, at_, used_});
    scratch_mark m;
    m.of_ = this;
    m.serial_ = next_serial_++;
    m.depth_ = marks_.size() - 1;
    return m;
  }
  /// Takes back all that was handed out since the mark, which ends, as do all marks made after it. A mark that has ended,
  /// or is another scratch's, is told to the misuse handler; where that returns, nothing has changed. Keeps the chunks.
  void rewind(scratch_mark const& m) noexcept {
    bool const known = m.of_ == this && m.depth_ < marks_.size() && marks_[m.depth_].serial == m.serial_;
    if (!known) return tell(m);
    at_ = marks_[m.depth_].at;
    used_ = marks_[m.depth_].used;
    while (marks_.size() > m.depth_) marks_.pop_back();
  }

  /// Gives the chunks back that nothing is taken from, in the order of stream(). Marks stay.
  void release() noexcept { give_from(used_ == 0 ? 0 : at_ + 1); }

  /// Makes `stream` the scratch's: its later work waits, on the device, for what was enqueued on the old one, which must
  /// still exist. @throws cuda_error  nothing has changed
  void set_stream(stream_ref stream) {
    stream = identified(memory_, stream);
    if (!chunks_.empty()) detail::order_streams(memory_.driver(), stream, stream_);
    stream_ = stream;
  }

  /// Bytes handed out, the gaps between them included.
  [[nodiscard]] std::size_t used() const noexcept {
    std::size_t bytes = used_;
    for (std::size_t i = 0; i < at_; ++i) bytes += chunks_[i].used_when_left;
    return bytes;
  }
  /// Bytes held from the resource.
  [[nodiscard]] std::size_t capacity() const noexcept {
    std::size_t bytes = 0;
    for (chunk const& c : chunks_) bytes += c.bytes;
    return bytes;
  }
  /// Marks that have not ended.
  [[nodiscard]] std::size_t marks() const noexcept { return marks_.size(); }
  [[nodiscard]] stream_ref stream() const noexcept { return stream_; }
  [[nodiscard]] Resource const& resource() const noexcept { return memory_; }

 private:
  struct chunk {
    void* p = nullptr;
    std::size_t bytes = 0;
    std::size_t alignment = 0;
    std::size_t used_when_left = 0;
  };
  struct noted {
    std::uint64_t serial = 0;
    std::size_t at = 0;
    std::size_t used = 0;
  };

  [[nodiscard]] void* take_bytes(std::size_t bytes, std::size_t alignment) {
    if (bytes == 0) return nullptr;
    for (std::size_t i = at_; i < chunks_.size(); ++i) {
      std::size_t const begin = i == at_ ? used_ : 0;
      if (void* const p = place_in(i, begin, bytes, alignment); p != nullptr) return p;
    }
    grow(bytes, alignment);
    return place_in(chunks_.size() - 1, 0, bytes, alignment);
  }

  /// Null where the chunk has no room above `begin`.
  [[nodiscard]] void* place_in(std::size_t i, std::size_t begin, std::size_t bytes,
                               std::size_t alignment) noexcept {
    chunk const& c = chunks_[i];
    auto const base = reinterpret_cast<std::uintptr_t>(c.p);
    std::size_t const offset = align_up(base + begin, alignment) - base;
    if (offset > c.bytes || bytes > c.bytes - offset) return nullptr;
    if (i != at_) {
      chunks_[at_].used_when_left = used_;
      for (std::size_t skipped = at_ + 1; skipped < i; ++skipped) chunks_[skipped].used_when_left = 0;
      at_ = i;
    }
    used_ = offset + bytes;
    return static_cast<std::byte*>(c.p) + offset;
  }

  void grow(std::size_t bytes, std::size_t alignment) {
    std::size_t const held = capacity();
    if (options_.growth == scratch_growth::none && (held != 0 || bytes > options_.chunk_bytes))
      refuse(bytes, alignment);
    chunks_.reserve(chunks_.size() + 1);
    std::size_t const wanted = held == 0 ? options_.chunk_bytes : held;
    chunk c;
    c.bytes = detail::larger_of(bytes, wanted);
    c.alignment = alignment;
    if (c.bytes == bytes || options_.growth == scratch_growth::none) {
      c.p = memory_.allocate(stream_, c.bytes, alignment);
    } else {
      try {
        c.p = memory_.allocate(stream_, c.bytes, alignment);
      } catch (out_of_memory const&) {
        c.bytes = bytes;  // what is needed now, then
        c.p = memory_.allocate(stream_, c.bytes, alignment);
      }
    }
    chunks_.push_back(c);
  }

  [[noreturn]] void refuse(std::size_t bytes, std::size_t alignment) const {
    memory_report r;
    r.asked = bytes;
    r.alignment = alignment;
    r.device = memory_.driver().device().value;
    r.stream = stream_.id();
    r.live = used();
    r.limit = options_.chunk_bytes;
    r.refused_by = "scratch";
    throw out_of_memory(r);
  }

  void give_from(std::size_t first) noexcept {
    while (chunks_.size() > first) {
      chunk const& c = chunks_.back();
      memory_.deallocate(stream_, c.p, c.bytes, c.alignment);
      chunks_.pop_back();
    }
  }

  void tell(scratch_mark const& m) const noexcept {
    bool const mine = m.of_ == this;
    report_misuse(
        misuse(mine ? misuse_kind::double_free : misuse_kind::foreign_pointer, this,
               mine ? "rewind to a mark that has ended: it, or one made before it, was rewound to already; "
                      "rewind in the reverse order of the marks"
                    : "rewind to a mark of another scratch; rewind the one that made it"));
  }

  Resource memory_;
  stream_ref stream_;
  scratch_options options_;
  detail::sequence<chunk> chunks_;
  detail::sequence<noted> marks_;  ///< that have not ended, oldest first
  std::size_t at_ = 0;             ///< the chunk that take() looks at first
  std::size_t used_ = 0;           ///< bytes of it that are handed out
  std::uint64_t next_serial_ = 1;
};

/// Rewinds a scratch to where it was when the scope began. Scopes nest.
template <class Resource>
class rewind_scope {
 public:
  /// @throws std::bad_alloc  (host)
  explicit rewind_scope(scratch<Resource>& arena) : arena_(arena), mark_(arena.mark()) {}
  rewind_scope(rewind_scope const&) = delete;
  rewind_scope& operator=(rewind_scope const&) = delete;
  ~rewind_scope() { arena_.rewind(mark_); }

 private:
  scratch<Resource>& arena_;
  scratch_mark mark_;
};

}  // namespace tarn
// ---- tarn/raii/stream_batches.hpp
// stream_batches: a loop over device batches of a host source, the next ones being filled and copied meanwhile.
//
//   threads   fill pinned slot i               wait for copied[i] of the slot's last batch (the looping thread does, then opens it)
//   lane      copy pinned i -> device i        waits for released[i] of the slot's last batch, on the device; then marks copied[i]
//   user      the body's work on device i      waits for copied[i], on the device; ++ marks released[i]
//
// Only the looping thread calls the driver. The other direction is collect_batches.

#include <cstddef>
#include <iterator>
#include <optional>
#include <span>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

// ---- tarn/raii/batch_source.hpp
// Where streamed batches come from: pageable memory, pinned memory, a file, a generator.
//
// | expression                  | of which | meaning                                                                       |
// |-----------------------------|----------|-------------------------------------------------------------------------------|
// | S::value_type               | all      | trivially copyable                                                            |
// | S::is_staged                | all      | elements go through pinned slots; else they lie in pinned memory already      |
// | s.size()                    | all      | elements in all, or detail::unknown_count: until a batch of none              |
// | s.data()                    | unstaged | the first element                                                             |
// | s.fill(to, index, offset)   | staged   | writes to.size() elements from the offset-th on; returns how many it wrote    |
// | S::is_divisible             | staged   | any part of a batch may be filled apart from the others                       |

#include <concepts>
#include <cstddef>
#include <cstring>
#include <memory>
#include <ranges>
#include <span>
#include <type_traits>
#include <utility>

namespace tarn {

/// Elements in memory of any kind, copied to pinned slots by the host.
template <class T>
class pageable_source {
 public:
  using value_type = T;
  static constexpr bool is_staged = true;
  static constexpr bool is_divisible = true;
  explicit pageable_source(std::span<T const> elements) noexcept : elements_(elements) {}
  [[nodiscard]] std::size_t size() const noexcept { return elements_.size(); }
  std::size_t fill(std::span<T> to, std::size_t, std::size_t offset) const noexcept {
    if (!to.empty()) std::memcpy(to.data(), elements_.data() + offset, to.size_bytes());
    return to.size();
  }

 private:
  std::span<T const> elements_;
};

/// Elements in pinned memory, copied from where they are.
template <class T>
class pinned_source {
 public:
  using value_type = T;
  static constexpr bool is_staged = false;
  explicit pinned_source(std::span<T const> elements) noexcept : elements_(elements) {}
  [[nodiscard]] std::size_t size() const noexcept { return elements_.size(); }
  [[nodiscard]] T const* data() const noexcept { return elements_.data(); }

 private:
  std::span<T const> elements_;
};

/// Elements of a file, read into pinned slots.
template <class T>
class file_source {
 public:
  using value_type = T;
  static constexpr bool is_staged = true;
  static constexpr bool is_divisible = true;
  /// @throws file_error  its size is no multiple of the element's
  explicit file_source(mapped_file const& file) : file_(&file), size_(file.count_of<T>()) {}
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  std::size_t fill(std::span<T> to, std::size_t, std::size_t offset) const {
    file_->read(offset * sizeof(T), std::as_writable_bytes(to));
    return to.size();
  }

 private:
  mapped_file const* file_;
  std::size_t size_;
};

/// Elements that a callable makes.
template <class T, class Fill>
class generated_source {
 public:
  using value_type = T;
  static constexpr bool is_staged = true;
  static constexpr bool is_divisible = false;
  explicit generated_source(Fill fill) : fill_(std::make_unique<Fill>(std::move(fill))) {}
  [[nodiscard]] std::size_t size() const noexcept { return detail::unknown_count; }
  std::size_t fill(std::span<T> to, std::size_t index, std::size_t) const {
    std::size_t const filled = (*fill_)(to, index);
    if (filled > to.size())
      throw bad_batch("a generator says that it filled more elements than its slot has");
    return filled;
  }

 private:
  std::unique_ptr<Fill> fill_;  ///< may be called from a const source; the range never copies it
};

/// Says that memory is pinned (pinned_buffer, cudaHostAlloc, cudaHostRegister): it is copied from without staging. Memory that
/// is not is copied right all the same, but slowly, the driver waiting for each batch.
template <class T, std::size_t N>
[[nodiscard]] pinned_source<std::remove_const_t<T>> pinned(std::span<T, N> elements) noexcept {
  return pinned_source<std::remove_const_t<T>>(elements);
}
/// The elements of a file; it must outlive the loop. @throws file_error  its size is no multiple of the element's
template <class T>
[[nodiscard]] file_source<T> from_file(mapped_file const& file) {
  return file_source<T>(file);
}
template <class T>
file_source<T> from_file(mapped_file const&&) = delete;  // it would be closed before the first batch

/// Batches that `fill(std::span<T> slot, std::size_t index) -> std::size_t` makes: the elements that it filled, at most
/// slot.size(); 0 ends. With batch_options::threads it is called by several threads at once, each with an index of its own, also
/// with some after the one that ends; batches come in order of their index all the same.
template <class T, class Fill>
requires std::is_invocable_r_v<std::size_t, Fill&, std::span<T>, std::size_t>
[[nodiscard]] generated_source<T, std::decay_t<Fill>> generate(Fill&& fill) {
  return generated_source<T, std::decay_t<Fill>>(std::forward<Fill>(fill));
}

namespace detail {

template <class S>
concept batch_source = requires(S const& s) {
  typename S::value_type;
  { S::is_staged } -> std::convertible_to<bool>;
  { s.size() } -> std::same_as<std::size_t>;
};

template <class R>
inline constexpr bool is_pinned_buffer = false;
template <class T, class Resource>
inline constexpr bool is_pinned_buffer<pinned_buffer<T, Resource>> = true;

/// What a user passes, as a source: itself, pinned buffers as pinned memory, other contiguous ranges as pageable memory. A
/// range that would be gone before the loop begins is refused.
template <class S>
[[nodiscard]] auto as_batch_source(S&& s) {
  using plain = std::remove_cvref_t<S>;
  if constexpr (batch_source<plain>) {
    return plain(std::forward<S>(s));
  } else {
    static_assert(std::ranges::contiguous_range<S> && std::ranges::sized_range<S>,
                  "tarn: batches come from contiguous memory, from_file<T>(file) or generate<T>(callable)");
    static_assert(std::ranges::borrowed_range<S>,
                  "tarn: these elements are gone before the loop begins; give them a name first");
    using element = std::ranges::range_value_t<S>;
    static_assert(std::is_trivially_copyable_v<element>,
                  "tarn: only trivially copyable elements can be copied between host and device");
    std::span<element const> const all(std::ranges::data(s), std::ranges::size(s));
    if constexpr (is_pinned_buffer<plain>) {
      return pinned_source<element>(all);
    } else {
      return pageable_source<element>(all);
    }
  }
}
template <class S>
using batch_source_of = decltype(as_batch_source(std::declval<S>()));

}  // namespace detail

}  // namespace tarn
// ---- tarn/raii/fill_threads.hpp
// fill_threads: a few threads that fill numbered slots in order, ahead of whoever takes them.

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace tarn::detail {

/// Calls fill(batch, piece) once for each piece of each batch that was opened, in order of (batch, piece), by several threads
/// at once. Batch b is in slot b % slots: whoever opens it says that the slot may be written. With no threads, the caller
/// does it where it asks. What fill throws is kept and comes out of take(). One thread opens and takes.
class fill_threads {
 public:
  /// @param fill  returns the elements that it filled; called by several threads at once
  using fill_function = std::function<std::size_t(std::size_t batch, std::size_t piece)>;

  /// @throws std::system_error  the host has no thread; std::bad_alloc
  fill_threads(unsigned threads, std::size_t pieces, std::size_t slots, fill_function fill)
      : fill_threads(pieces, slots, std::move(fill)) {
    // Should a thread be refused, the destructor runs: the constructor delegated to is done.
    threads_.reserve(threads);
    while (threads_.size() < threads) threads_.emplace_back([this] { work(); });
  }
  fill_threads(fill_threads const&) = delete;
  fill_threads& operator=(fill_threads const&) = delete;
  /// Waits for the pieces that are being filled, not for those that nobody has begun.
  ~fill_threads() { stop(); }

  /// Lets the next batch be filled: the first, then the second... Its slot's last batch was taken.
  void open() {
    {
      std::lock_guard const lock(mutex_);
      slots_[opened_ % slots_.size()] = {pieces_, 0, nullptr};
      ++opened_;
    }
    there_is_work_.notify_all();
  }
  [[nodiscard]] std::size_t opened() const noexcept { return opened_; }

  /// True where an opened batch is filled and nothing was thrown; does not wait. Without threads fills it.
  [[nodiscard]] bool is_filled(std::size_t batch) {
    slot const& s = slots_[batch % slots_.size()];
    if (threads_.empty()) fill_here(batch);
    std::lock_guard const lock(mutex_);
    return s.pieces_left == 0 && s.error == nullptr;
  }

  /// Waits until an opened batch is filled; returns its elements. @throws what fill threw for one of its pieces
  std::size_t take(std::size_t batch) {
    slot const& s = slots_[batch % slots_.size()];
    if (threads_.empty()) fill_here(batch);
    std::unique_lock lock(mutex_);
    filled_.wait(lock, [&] { return s.pieces_left == 0; });
    if (s.error != nullptr) std::rethrow_exception(s.error);
    return s.elements;
  }

 private:
  struct slot {
    std::size_t pieces_left = 0;
    std::size_t elements = 0;
    std::exception_ptr error;
  };

  fill_threads(std::size_t pieces, std::size_t slots, fill_function fill)
      : fill_(std::move(fill)), pieces_(pieces), slots_(slots) {}

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      there_is_work_.wait(lock, [this] { return stopping_ || next_ < opened_ * pieces_; });
      if (stopping_) return;
      std::size_t const piece = next_++;
      lock.unlock();
      bool const last = fill_piece(piece / pieces_, piece % pieces_);
      if (last) filled_.notify_one();
      lock.lock();
    }
  }
  void fill_here(std::size_t batch) {
    while (next_ < (batch + 1) * pieces_) {
      std::size_t const piece = next_++;
      (void)fill_piece(piece / pieces_, piece % pieces_);
    }
  }
  /// True where it was the batch's last piece.
  bool fill_piece(std::size_t batch, std::size_t piece) {
    std::size_t elements = 0;
    std::exception_ptr error;
    try {
      elements = fill_(batch, piece);
    } catch (...) {
      error = std::current_exception();
    }
    std::lock_guard const lock(mutex_);
    slot& s = slots_[batch % slots_.size()];
    s.elements += elements;
    if (error != nullptr && s.error == nullptr) s.error = std::move(error);
    return --s.pieces_left == 0;
  }
  void stop() noexcept {
    {
      std::lock_guard const lock(mutex_);
      stopping_ = true;
    }
    there_is_work_.notify_all();
    for (std::thread& t : threads_) t.join();
    threads_.clear();
  }

  fill_function const fill_;
  std::size_t const pieces_;
  std::mutex mutex_;
  std::condition_variable there_is_work_, filled_;
  std::vector<slot> slots_;  ///< under the mutex, as all that follows
  std::size_t opened_ = 0;   ///< batches; written by the one thread that opens
  std::size_t next_ = 0;     ///< pieces begun
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace tarn::detail

namespace tarn {

/// The range that stream_batches() returns: an input range, gone through once, by one thread. Neither copied nor moved.
template <class Source, class Memory, class Pinned>
class batch_stream {
 public:
  using value_type = typename Source::value_type;
  using batch = device_batch<value_type>;
  /// A batch is ready for work on the loop's stream until ++; what the body enqueued there before it may still use it.
  using iterator = batch_iterator<batch_stream, batch>;
  static_assert(has_property<Memory, device_accessible>,
                "tarn: batches are streamed to memory that the device can touch");

  /// See stream_batches().
  batch_stream(Source source, batch_options const& options, Memory memory, stream_ref stream, Pinned pinned)
      : source_(std::move(source)),
        capacity_(capacity_for(source_.size(), detail::batch_capacity(options, sizeof(value_type)))),
        end_(batches_of(source_.size(), capacity_)),
        depth_(detail::smaller_of(options.depth, end_)),
        threads_wanted_(threads_for(options)),
        host_depth_(detail::smaller_of(host_depth_for(depth_, threads_wanted_), end_)),
        lane_(memory.driver(), identified(memory, stream), host_depth_ + depth_ + 1) {
    device_.reserve(depth_);
    while (device_.size() < depth_) device_.emplace_back(memory, capacity_, lane_.user());
    sizes_.resize(depth_);
    if constexpr (Source::is_staged) {
      if (depth_ != 0) stage(std::move(pinned));
    }
  }
  batch_stream(batch_stream const&) = delete;
  batch_stream& operator=(batch_stream const&) = delete;
  /// Ends filling and waits for the copies under way; the body's work goes on. After it the source is no longer read.
  ~batch_stream() = default;

  /// Starts at the first call; later ones are where the loop is.
  [[nodiscard]] iterator begin() {
    if (!started_) {
      started_ = true;
      if (end_ != 0) start();
    }
    return iterator(*this);
  }
  [[nodiscard]] std::default_sentinel_t end() const noexcept { return {}; }

 private:
  friend iterator;

  /// No more than the source has, but one: a slot is never empty.
  static std::size_t capacity_for(std::size_t size, std::size_t most) noexcept {
    return detail::smaller_of(most, detail::larger_of(size, std::size_t{1}));
  }
  static std::size_t batches_of(std::size_t size, std::size_t capacity) noexcept {
    return size == detail::unknown_count ? size : (size + capacity - 1) / capacity;
  }

  /// One more than on the device where threads fill: they need not wait for the copy. Where a slot is filled by one thread, each
  /// thread has one.
  static std::size_t host_depth_for(std::size_t depth, std::size_t threads) noexcept {
    if (depth == 0 || threads == 0) return depth;
    if constexpr (Source::is_staged) {
      if (!Source::is_divisible) return detail::larger_of(depth, threads) + 1;
    }
    return depth + 1;
  }
  [[nodiscard]] std::size_t slot_of(std::size_t index) const noexcept { return index % depth_; }
  [[nodiscard]] std::size_t host_slot_of(std::size_t index) const noexcept { return index % host_depth_; }
  // Events of the lane: copied by host slot, released by slot, and one for where the user's stream was at first.
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
    // The slots were allocated in the stream's order: its earlier work may still use their memory.
    lane_.mark_user(beginning());
    lane_.wait_for(beginning());
    make_ready();
  }
  void next() {
    lane_.mark_user(released(current_));
    ++current_;
    make_ready();
  }

  /// Has the current batch copied, and of the next ones what needs no waiting.
  void make_ready() {
    while (sent_ <= current_ && sent_ != end_) send();
    while (sent_ != end_ && sent_ < current_ + depth_ && is_filled()) send();
    if (!is_over()) lane_.let_user_wait(copied(current_));
  }

  /// True where the next batch to send can be sent without waiting. Opens all slots that are free.
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
  /// True where the pinned slot of a batch is no longer copied from.
  [[nodiscard]] bool slot_is_free(std::size_t index) {
    return index < host_depth_ || lane_.is_past(copied(index));
  }

  /// Copies the next batch; the slot's last one was released. Ends the range where the source does.
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
      size = detail::smaller_of(capacity_, source_.size() - offset_);
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
    // Parts below 256 KiB cost more to hand out than to copy.
    constexpr std::size_t least_part = 256_KiB;
    std::size_t const parts = capacity_ * sizeof(value_type) / least_part;
    std::size_t pieces = 1;
    if (Source::is_divisible)
      pieces = detail::larger_of(detail::smaller_of(threads_wanted_, parts), std::size_t{1});
    threads_.emplace(
        static_cast<unsigned>(threads_wanted_), pieces, host_depth_,
        [this, pieces](std::size_t index, std::size_t piece) { return fill(index, piece, pieces); });
  }
  /// Threads that are worth it: below 64 MiB starting them takes longer than they save.
  [[nodiscard]] std::size_t threads_for(batch_options const& options) const {
    if constexpr (Source::is_staged) {
      if (options.threads != 0) return options.threads;
      if (!Source::is_divisible || source_.size() < 64_MiB / sizeof(value_type)) return 0;
      return detail::smaller_of(detail::larger_of(std::thread::hardware_concurrency(), 2U) - 1, 8U);
    } else {
      return 0;
    }
  }
  /// Fills one piece of a batch's pinned slot; called by the threads.
  std::size_t fill(std::size_t index, std::size_t piece, std::size_t pieces) {
    if constexpr (Source::is_staged) {
      std::span<value_type> slot = (*pinned_)[host_slot_of(index)];
      std::size_t const offset = source_.size() == detail::unknown_count ? 0 : index * capacity_;
      if (source_.size() != detail::unknown_count) {
        slot = slot.first(detail::smaller_of(capacity_, source_.size() - offset));
      }
      std::size_t const share = (slot.size() + pieces - 1) / pieces;
      std::size_t const from = detail::smaller_of(piece * share, slot.size());
      std::size_t const to = detail::smaller_of(from + share, slot.size());
      return source_.fill(slot.subspan(from, to - from), index, offset + from);
    } else {
      return 0;
    }
  }

  struct extent {
    std::size_t size = 0;
    std::size_t offset = 0;
  };

  // Going, from the last: the threads end, the lane waits for its copies, then the slots go.
  Source source_;
  std::size_t capacity_;  ///< elements of a slot
  std::size_t end_;       ///< batches, where known
  std::size_t depth_;
  std::size_t threads_wanted_;
  std::size_t host_depth_;  ///< pinned slots, where copies are staged
  std::vector<device_buffer<value_type, Memory>> device_;
  std::optional<detail::pinned_slots<value_type, Pinned>> pinned_;
  detail::copy_lane<typename Memory::driver_type> lane_;
  std::vector<extent> sizes_;  ///< of what each slot holds
  std::optional<detail::fill_threads> threads_;
  bool started_ = false;
  std::size_t current_ = 0;  ///< index of the batch that the body has
  std::size_t sent_ = 0;     ///< batches whose copy is enqueued
  std::size_t offset_ = 0;   ///< elements in them
};

/// Streams a source to the device: `for (auto batch : stream_batches(source, {.batch_bytes = 16_MiB}, pool, stream))`. Each batch
/// is a device_batch: elements in device memory, ready for work that the body enqueues on `stream`, while the next ones are
/// filled and copied on a stream of their own. The last batch has what is left; an empty source yields none.
/// @param source   contiguous memory (a span, a vector with a name: pageable), a pinned_buffer or pinned(span), from_file<T>(file),
///                 generate<T>(callable); it outlives the loop
/// @param memory   the device slots come from it, in the order of `stream`
/// @param pinned   the slots that a source which is not pinned is staged in come from it: best a pool, kept over several loops;
///                 by default pinned memory of the driver's own: some 450 ms per GiB at each loop, and freeing it stops the device
/// Leave the loop at any time, by exceptions too: destruction waits on the host for the copies under way, and so for the body's
/// work on the batches that they replace; nothing leaks. What a source or generator throws comes out of the loop in place of
/// its batch, whichever thread met it; then the range may only be destroyed.
/// @throws bad_batch  options that cannot be met; misuse  `stream` is being captured; out_of_memory, cuda_error,
///                    std::system_error (no thread)
/// The host waits for a pinned slot to be filled or copied, and for nothing else; from pinned memory it never waits. Five driver
/// calls a batch, some 2 to 3 µs of the host, or seven where it is staged. With a pinned source the loop copies as fast as
/// the device does; with others as fast as `threads` can fill.
template <class Source, class Memory, class Pinned>
requires resource<Memory> && resource<Pinned>
[[nodiscard]] auto stream_batches(Source&& source, batch_options const& options, Memory memory,
                                  stream_ref stream, Pinned pinned) {
  return batch_stream<detail::batch_source_of<Source>, Memory, Pinned>(
      detail::as_batch_source(std::forward<Source>(source)), options, std::move(memory), stream,
      std::move(pinned));
}
template <class Source, class Memory>
requires resource<Memory>
[[nodiscard]] auto stream_batches(Source&& source, batch_options const& options, Memory memory,
                                  stream_ref stream) {
  basic_pinned<typename Memory::driver_type> pinned(memory.driver());
  return batch_stream<detail::batch_source_of<Source>, Memory, decltype(pinned)>(
      detail::as_batch_source(std::forward<Source>(source)), options, std::move(memory), stream,
      std::move(pinned));
}

}  // namespace tarn
// ---- tarn/raii/with_oom_retry.hpp
// with_oom_retry: runs work at a size, and at smaller ones while memory runs out; can look for the largest that works.

#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

namespace tarn {

/// Which sizes are tried once one works.
enum class oom_search {
  downward,  ///< none: the first size that works is the answer
  upward     ///< larger ones, to find the largest that works
};

/// Which exceptions mean that memory ran out. Types decide, never texts.
enum class oom_errors {
  tarns_own,     ///< tarn::out_of_memory: of a resource of tarn's, also through Thrust and containers
  any_bad_alloc  ///< each std::bad_alloc: also what Thrust and the host's operator new throw of their own
};

/// The sizes known to work and not to. Keep one beside a loop that calls with_oom_retry again and again: what failed once
/// is not tried again. Assign {} when memory has become free.
struct oom_sizes {
  std::size_t good = 0;               ///< the largest that worked; 0: none yet
  std::size_t bad = ~std::size_t{0};  ///< the smallest that did not; all ones: none yet
};

struct oom_retry_options {
  std::size_t least = 1;  ///< the smallest size to try; a start below it is tried all the same
  oom_search search = oom_search::downward;
  std::size_t most =
      ~std::size_t{0};        ///< upward: the largest size to try, also where a larger one is remembered
  std::size_t tolerance = 1;  ///< upward: ends when a size at most so much larger has failed; 0 counts as 1
  oom_errors errors = oom_errors::tarns_own;
  oom_sizes* remember = nullptr;  ///< read before, written after each call of f; must outlive the call
};

/// What f returned, and for which size.
template <class T>
struct oom_retry_result {
  T value;
  std::size_t size = 0;      ///< the largest size that worked
  std::size_t attempts = 0;  ///< calls of f, failed ones included
};
template <>
struct oom_retry_result<void> {
  std::size_t size = 0;
  std::size_t attempts = 0;
};

namespace detail {

/// One with_oom_retry: its books and its tries.
template <class F, class Clear>
class oom_retry {
 public:
  using value = std::invoke_result_t<F&, std::size_t>;
  using result = oom_retry_result<value>;

  oom_retry(F& f, Clear const& clear, oom_retry_options const& options)
      : f_(f),
        clear_(clear),
        options_(options),
        known_(options.remember != nullptr ? *options.remember : own_) {}
  oom_retry(oom_retry const&) = delete;
  oom_retry& operator=(oom_retry const&) = delete;

  result run(std::size_t start) {
    auto const keep = [this](std::size_t size) { return call_keeping(size); };
    start = first_size(start);
    if (options_.search == oom_search::downward) return descend(start, keep);
    auto const drop = [this](std::size_t size) { return call_dropping(size); };
    std::size_t good = 0;
    if (is_found(start)) {  // if it works it is the answer, and its value is kept
      result first = descend(start, keep);
      if (is_found(first.size)) return first;
      good = first.size;
    } else {
      good = descend(start, drop);
    }
    good = ascend(good, drop);
    if constexpr (std::is_void_v<value>) {
      return {good, attempts_};
    } else {
      return descend(good, keep);
    }
  }

 private:
  [[nodiscard]] std::size_t least() const noexcept { return larger_of(options_.least, std::size_t{1}); }

  /// The size to begin with: `start`, unless what is remembered knows better. A search upward stays within options.most.
  [[nodiscard]] std::size_t first_size(std::size_t start) noexcept {
    bool const upward = options_.search == oom_search::upward;
    if (known_.good >= known_.bad) known_.good = 0;  // contradictory: the smaller claim holds
    if (upward) start = smaller_of(start, options_.most);
    if ((known_.bad != no_size && start >= known_.bad) || (upward && start < known_.good))
      start = known_.good;
    if (start == 0 && known_.bad != no_size) start = larger_of(known_.bad / 2, least());
    return upward ? smaller_of(start, options_.most) : start;
  }

  /// True where a size that works need not be exceeded.
  [[nodiscard]] bool is_found(std::size_t good) const noexcept {
    return good >= options_.most || known_.bad - good <= larger_of(options_.tolerance, std::size_t{1});
  }

  result call_keeping(std::size_t size) {
    ++attempts_;
    if constexpr (std::is_void_v<value>) {
      f_(size);
      note_good(size);
      return {size, attempts_};
    } else {
      result r{f_(size), size, attempts_};
      note_good(size);
      return r;
    }
  }
  /// What f returns is gone when this returns: it holds no memory while a larger size is tried.
  std::size_t call_dropping(std::size_t size) {
    ++attempts_;
    (void)f_(size);
    note_good(size);
    return size;
  }

  /// Halves the size until a call succeeds. @throws the last error where nothing smaller is left
  template <class Call>
  auto descend(std::size_t size, Call const& call) -> decltype(call(size)) {
    for (bool cleared = false;; cleared = true) {
      try {
        return call(size);
      } catch (out_of_memory const&) {
        size = after_failure(size, cleared);
      } catch (std::bad_alloc const&) {
        if (options_.errors == oom_errors::tarns_own) throw;
        size = after_failure(size, cleared);
      }
    }
  }
  /// The size to try next; inside the handler, where f's own state is gone and what it had lies in the cache. The same size
  /// once, where clearing gave anything back: what was cached before the first try is gone now, too.
  [[nodiscard]] std::size_t after_failure(std::size_t size, bool cleared) {
    note_bad(size);
    std::size_t const given = clear_();
    if (!cleared && given != 0) return size;
    if (size <= least()) throw;
    return larger_of(size / 2, least());
  }

  /// Doubles, then bisects between what works and what does not. Each try begins with an empty cache.
  /// @returns the largest size that worked
  template <class Call>
  std::size_t ascend(std::size_t good, Call const& call) {
    while (!is_found(good)) {
      std::size_t next = good + (known_.bad - good) / 2;
      if (known_.bad == no_size)
        next = good > no_size / 2 ? no_size - 1 : larger_of(good * 2, std::size_t{1});
      next = smaller_of(next, options_.most);
      (void)clear_();
      try {
        good = call(next);
      } catch (out_of_memory const&) {
        fail_above(good, next);
      } catch (std::bad_alloc const&) {
        if (options_.errors == oom_errors::tarns_own) throw;
        fail_above(good, next);
      }
    }
    return good;
  }
  void fail_above(std::size_t good, std::size_t bad) noexcept {
    note_bad(bad);
    known_.good = good;
  }

  void note_good(std::size_t size) noexcept {
    known_.good = larger_of(known_.good, size);
    if (known_.bad <= known_.good) known_.bad = no_size;  // it works by now
  }
  void note_bad(std::size_t size) noexcept {
    known_.bad = smaller_of(known_.bad, size);
    if (known_.good >= known_.bad) known_.good = 0;  // it no longer works
  }

  static constexpr std::size_t no_size = ~std::size_t{0};
  F& f_;
  Clear const& clear_;
  oom_retry_options const& options_;
  oom_sizes own_;
  oom_sizes& known_;
  std::size_t attempts_ = 0;
};

/// Gives back what the nearest pool has cached; nothing where there is none.
template <class Resource>
[[nodiscard]] std::size_t clear_cache_of(Resource& memory) {
  auto const trim = [](auto& layer) -> decltype(layer.trim(std::size_t{})) {
    return layer.trim(std::size_t{});
  };
  if constexpr (reachable<Resource, decltype(trim)>) {
    return nearest(memory, trim);
  } else {
    return 0;
  }
}

}  // namespace detail

/// Calls f(start). Where that throws out_of_memory, gives the cache of `memory`'s pool back to the driver and tries the same
/// size once more if that freed anything, then half of it, and so on down to options.least. With oom_search::upward it then
/// doubles while that works, and bisects, for the largest size that works.
/// @param memory   its nearest pool's cache is cleared before each further try; without a pool nothing is
/// @param f        is called with a size, often more than once: what it changed before it threw it must undo, as unwinding
///                 does for owners. Memory that outlives its failed call makes the next try fail as well
/// @returns f's value (if any), the size, and the number of calls. With upward, values of tries are dropped before the next,
///          and f is called once more with the size found, unless it returns void
/// @throws what f threw last where nothing smaller is left; whatever else f throws, at once; cuda_error from clearing
/// Which exceptions count is decided by type (options.errors), never by text. Not for two threads with one `remember`.
template <has_driver Resource, class F>
requires std::is_invocable_v<F&, std::size_t>
auto with_oom_retry(Resource memory, std::size_t start, F&& f, oom_retry_options const& options = {}) {
  auto const clear = [&memory] { return detail::clear_cache_of(memory); };
  return detail::oom_retry<std::remove_reference_t<F>, decltype(clear)>(f, clear, options).run(start);
}

/// The same where there is no pool whose cache could be cleared.
template <class F>
requires std::is_invocable_v<F&, std::size_t>
auto with_oom_retry(std::size_t start, F&& f, oom_retry_options const& options = {}) {
  auto const clear = [] { return std::size_t{0}; };
  return detail::oom_retry<std::remove_reference_t<F>, decltype(clear)>(f, clear, options).run(start);
}

}  // namespace tarn
// ---- tarn/source/registered_host.hpp
#ifndef TARN_SINGLE_SOURCE_REGISTERED_HOST_HPP
#define TARN_SINGLE_SOURCE_REGISTERED_HOST_HPP
// registered_host: pinned memory made of the host's own pages: mapped, touched by several threads, then registered with
// the driver.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <utility>

// ---- tarn/source/host_pages.hpp
#ifndef TARN_SINGLE_SOURCE_HOST_PAGES_HPP
#define TARN_SINGLE_SOURCE_HOST_PAGES_HPP
// host_pages: the host's own memory by the page: mapped, placed and touched. System calls only, no libnuma.

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <system_error>
#include <thread>
#include <vector>

namespace tarn::detail {

inline constexpr std::size_t usual_page = 4_KiB;
inline constexpr std::size_t huge_page = 2_MiB;

/// A stretch of private memory, whole pages. Says what failed by a status, for a source to act upon.
struct host_pages {
  std::size_t bytes = 0;
  std::size_t alignment = usual_page;  ///< of the first page; a power of two

  /// Below this, bytes, one thread touches the pages: starting another costs as much as clearing 1 MiB.
  static constexpr std::size_t worth_threads = 64_MiB;
  /// Highest NUMA node that can be named.
  static constexpr int most_nodes = 1024;

  [[nodiscard]] status map(void*& p) const noexcept {
    // The host aligns to its page only: more is mapped, and what is before and behind given back.
    std::size_t const spare = alignment > usual_page ? alignment : 0;
    void* const all =
        ::mmap(nullptr, bytes + spare, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) return failed("mmap", errno);
    auto const begin = reinterpret_cast<std::uintptr_t>(all);
    std::uintptr_t const aligned = align_up(begin, alignment);
    if (aligned != begin) (void)::munmap(all, aligned - begin);
    std::size_t const behind = begin + bytes + spare - (aligned + bytes);
    if (behind != 0) (void)::munmap(reinterpret_cast<void*>(aligned + bytes), behind);
    p = reinterpret_cast<void*>(aligned);
    return {};
  }
  /// From the pages that the administrator reserved; they are aligned to themselves.
  [[nodiscard]] status map_reserved_huge(void*& p) const noexcept {
    constexpr int of_2_mib = 21 << MAP_HUGE_SHIFT;
    void* const all = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | of_2_mib, -1, 0);
    if (all == MAP_FAILED) return failed("mmap (reserve huge pages: vm.nr_hugepages)", errno);
    p = all;
    return {};
  }
  /// Asks for huge pages; a host without them gives usual ones.
  void advise_huge(void* p) const noexcept { (void)::madvise(p, bytes, MADV_HUGEPAGE); }

  /// Has the pages come from one NUMA node only; before they are touched.
  [[nodiscard]] status bind(void* p, int node) const noexcept {
    constexpr char const* call = "mbind (no such NUMA node, or not allowed here: leave numa_node out)";
    constexpr int word = 8 * sizeof(unsigned long);
    if (node < 0 || node >= most_nodes) return {failure::unsupported, EINVAL, "EINVAL", call};
    unsigned long nodes[most_nodes / word]{};
    nodes[node / word] = 1UL << (node % word);
    constexpr int bind_policy = 2;  // MPOL_BIND of <linux/mempolicy.h>
    // The kernel reads one bit less than it is told.
    if (::syscall(SYS_mbind, p, bytes, bind_policy, nodes, most_nodes + 1UL, 0U) == 0) return {};
    return {failure::unsupported, errno, name_of_error(errno), call};
  }

  /// Has the host make every page now. @param threads  0: one for each processor, up to 16
  [[nodiscard]] status touch(void* p, unsigned threads) const noexcept {
    auto* const first = static_cast<std::byte*>(p);
    std::atomic<int> error{0};
    auto const part = [first, &error](std::size_t from, std::size_t to) {
      if (int const e = populate(first + from, to - from); e != 0) error.store(e, std::memory_order_relaxed);
    };
    if (threads == 0) threads = smaller_of(larger_of(std::thread::hardware_concurrency(), 1U), 16U);
    if (bytes < worth_threads) threads = 1;
    // Whole huge pages each, so that no two threads wait for the same one to be cleared.
    std::size_t const share = align_up((bytes + threads - 1) / threads, huge_page);
    std::vector<std::thread> others;
    std::size_t from = share;
    try {
      others.reserve(threads);
      for (; from < bytes; from += share) others.emplace_back(part, from, smaller_of(from + share, bytes));
    } catch (...) {
      part(from, bytes);  // no further thread: this one does it
    }
    part(0, smaller_of(share, bytes));
    for (std::thread& t : others) t.join();
    if (error == 0) return {};
    return {failure::out_of_memory, error, name_of_error(error),
            "madvise (the host has no page left for it, on that NUMA node)"};
  }

  void unmap(void* p) const noexcept { (void)::munmap(p, bytes); }

 private:
  /// 0, or errno. A page that the host cannot make would end a program that writes to it (SIGBUS, where reserved pages of a
  /// node run out); where it is asked for them, it says so, from Linux 5.14 on.
  [[nodiscard]] static int populate(std::byte* p, std::size_t length) noexcept {
    constexpr int populate_write = 23;  // MADV_POPULATE_WRITE, which older headers do not know
    int result = 0;
    do {
      result = ::madvise(p, length, populate_write);
    } while (result != 0 && (errno == EINTR || errno == EAGAIN));
    if (result == 0) return 0;
    if (errno != EINVAL) return errno;
    for (std::size_t at = 0; at < length; at += usual_page) {
      *static_cast<std::byte volatile*>(p + at) = std::byte{};
    }
    return 0;
  }
  [[nodiscard]] static char const* name_of_error(int error) noexcept {
    return error == ENOMEM   ? "ENOMEM"
           : error == EINVAL ? "EINVAL"
           : error == EFAULT ? "EFAULT"
                             : "refused by the host";
  }
  [[nodiscard]] static status failed(char const* call, int error) noexcept {
    failure const kind = error == ENOMEM || error == EAGAIN ? failure::out_of_memory : failure::other;
    return {kind, error, name_of_error(error), call};
  }
};

}  // namespace tarn::detail
#endif  // TARN_SINGLE_SOURCE_HOST_PAGES_HPP
#if TARN_HAS_CUDA
#endif

namespace tarn {

/// What the pages of registered memory are.
enum class host_page_size : std::uint8_t {
  usual,  ///< the host's own, 4 KiB
  huge,   ///< 2 MiB where the host has them (transparent huge pages), usual ones elsewhere
  reserved_huge  ///< 2 MiB from those that the administrator reserved (vm.nr_hugepages), refused where there are none
};

struct registered_options {
  host_page_size pages = host_page_size::huge;
  /// NUMA node to take the pages from, and no other; any_node leaves the choice to the host. The node that the device hangs
  /// on (nvidia-smi topo -m) copies fastest.
  int numa_node = any_node;
  /// Threads that touch the pages of blocks of 64 MiB and more; 0: as many as there are processors, up to 16.
  unsigned threads = 0;

  static constexpr int any_node = -1;
  friend bool operator==(registered_options const&, registered_options const&) = default;
};

/// mmap, madvise, mbind, and the driver's register_host.
struct registered_calls {
  using properties = property_set<device_accessible, host_accessible>;
  registered_options options;

  template <registering_driver D>
  status take(D const& driver, std::size_t bytes, std::size_t alignment, void*& p) const noexcept {
    detail::host_pages const pages = {.bytes = mapped_bytes(bytes), .alignment = alignment_of(alignment)};
    void* mapped = nullptr;
    status s =
        options.pages == host_page_size::reserved_huge ? pages.map_reserved_huge(mapped) : pages.map(mapped);
    if (!s.ok()) return s;
    if (options.pages == host_page_size::huge) pages.advise_huge(mapped);
    if (options.numa_node != registered_options::any_node) s = pages.bind(mapped, options.numa_node);
    if (s.ok()) s = pages.touch(mapped, options.threads);
    if (s.ok()) s = driver.register_host(mapped, pages.bytes);
    if (s.ok()) {
      p = mapped;
    } else {
      pages.unmap(mapped);
    }
    return s;
  }
  /// Memory that the driver would not let go of stays mapped: a device may still reach it.
  template <registering_driver D>
  status give(D const& driver, void* p, std::size_t bytes, std::size_t) const noexcept {
    status const s = driver.unregister_host(p);
    if (s.ok() || s.kind == failure::unloading) detail::host_pages{.bytes = mapped_bytes(bytes)}.unmap(p);
    return s;
  }

 private:
  [[nodiscard]] std::size_t page_bytes() const noexcept {
    return options.pages == host_page_size::usual ? detail::usual_page : detail::huge_page;
  }
  [[nodiscard]] std::size_t mapped_bytes(std::size_t bytes) const noexcept {
    return align_up(bytes, page_bytes());
  }
  [[nodiscard]] std::size_t alignment_of(std::size_t alignment) const noexcept {
    return alignment > page_bytes() ? alignment : page_bytes();
  }
};

/// Pinned host memory, portable, in whole pages: with huge ones every block is a multiple of 2 MiB, so pool it. Takes 168 ms
/// per GiB with huge pages where pinned_host takes 430 to 490: the pages are cleared by several threads, and fewer of
/// them are to be pinned. Aligned to the page. Out of memory is told as out_of_memory; a node that is missing or not
/// allowed as cuda_error of kind `unsupported`. Linux.
template <registering_driver D>
class basic_registered : public block_source<D, registered_calls> {
 public:
  using base = block_source<D, registered_calls>;
  basic_registered() requires std::default_initializable<D>
  = default;
  /// On one device.
  explicit basic_registered(device_id device,
                            registered_options options = {}) requires std::constructible_from<D, device_id>
      : base(D(device), registered_calls{options}) {}
  /// On the driver's default device, or on a driver of one's own making.
  explicit basic_registered(registered_options options) requires std::default_initializable<D>
      : base(D{}, registered_calls{options}) {}
  explicit basic_registered(D driver, registered_options options = {}) noexcept
      : base(std::move(driver), registered_calls{options}) {}
};

#if TARN_HAS_CUDA
using registered_host = basic_registered<cuda_driver>;
static_assert(resource<registered_host>);
#endif

}  // namespace tarn
#endif  // TARN_SINGLE_SOURCE_REGISTERED_HOST_HPP
