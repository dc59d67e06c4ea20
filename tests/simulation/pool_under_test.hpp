// SPDX-License-Identifier: Apache-2.0
#pragma once
// A pool behind virtual calls, so that one program can hold pools of several kinds: over pages or over
// blocks, with or without remapping, each with a limit below and exact counters above.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "in_library.hpp"
#include "mapped_pages.hpp"
#include "tarn/driver/sim/sim_driver.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/tracked.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/raii/device_ptr.hpp"
#include "tarn/raii/growing_buffer.hpp"
#include "tarn/raii/peak_scope.hpp"
#include "tarn/report/memory_stats.hpp"
#include "tarn/report/stats.hpp"
#include "tarn/source/cuda_malloc.hpp"
#include "tarn/source/cuda_pages.hpp"
#include "witness.hpp"

// Earlier headers have no graph memories, sleep, page pins or headroom: programs with them do without.
#if __has_include("tarn/raii/graph_memory.hpp")
#define TARN_SIMULATION_GRAPHS 1
#include "tarn/raii/graph_memory.hpp"
#else
#define TARN_SIMULATION_GRAPHS 0
#endif
#if __has_include("tarn/raii/sleep.hpp")
#define TARN_SIMULATION_SLEEP 1
#include "tarn/raii/compact.hpp"
#include "tarn/raii/sleep.hpp"
#else
#define TARN_SIMULATION_SLEEP 0
#endif
#if __has_include("tarn/sharing/page_pin.hpp")
#define TARN_SIMULATION_PINS 1
#include "tarn/sharing/page_pin.hpp"
#else
#define TARN_SIMULATION_PINS 0
#endif
// Earlier pools cannot be used on streams of another device.
#if __has_include("tarn/driver/stream_device.hpp")
#define TARN_SIMULATION_ACROSS 1
#include "tarn/policy/accessible_from.hpp"
#include "tarn/source/pinned_host.hpp"
#else
#define TARN_SIMULATION_ACROSS 0
#endif
#if __has_include("tarn/policy/headroom.hpp")
#define TARN_SIMULATION_HEADROOM 1
#include "tarn/policy/headroom.hpp"
#else
#define TARN_SIMULATION_HEADROOM 0
#endif

namespace simulation {

/// The values of a peak_scope.
struct scope_reading {
  std::size_t peak, above_start, current, count;
  std::int64_t net;
};
struct scope_under_test {
  virtual ~scope_under_test() = default;
  [[nodiscard]] virtual scope_reading read() const = 0;
};

/// A device_buffer<std::byte>, or a device_ptr<std::byte[]>, of any pool.
struct owner_under_test {
  virtual ~owner_under_test() = default;
  [[nodiscard]] virtual void* data() const = 0;
  [[nodiscard]] virtual std::size_t size() const = 0;
  [[nodiscard]] virtual tarn::stream_ref stream() const = 0;
  virtual void set_stream(tarn::stream_ref stream) = 0;
  /// Releases the memory; the owner stays usable.
  virtual void reset() = 0;
  /// Another owner of the memory; this one is left empty and is reused.
  [[nodiscard]] virtual std::unique_ptr<owner_under_test> move() = 0;
  // For buffers; pointers do nothing.
  virtual void resize(std::size_t, tarn::stream_ref) {}
  virtual void reserve(std::size_t, tarn::stream_ref) {}
  virtual void shrink_to_fit(tarn::stream_ref) {}
  virtual void fill(std::byte) {}
  [[nodiscard]] virtual std::unique_ptr<owner_under_test> copy(tarn::stream_ref) const { return nullptr; }
  [[nodiscard]] virtual bool is_buffer() const { return false; }
};

/// A capture_scope.
struct capture_under_test {
  virtual ~capture_under_test() = default;
  virtual void join(tarn::stream_ref stream) = 0;
};
/// A graph_memory.
struct graph_memory_under_test {
  virtual ~graph_memory_under_test() = default;
  [[nodiscard]] virtual std::unique_ptr<capture_under_test> capture(tarn::stream_ref stream) = 0;
  /// A block of the owner outside a capture; null if the stack has no such call.
  [[nodiscard]] virtual void* allocate(tarn::stream_ref stream, std::size_t bytes, std::size_t alignment) = 0;
  /// Bytes of its live blocks, as the pool rounds them.
  [[nodiscard]] virtual std::size_t allocated() const = 0;
  [[nodiscard]] virtual std::size_t reserved() const = 0;
};

/// A page_pin.
struct pin_under_test {
  virtual ~pin_under_test() = default;
  [[nodiscard]] virtual std::vector<page_piece> segments() const = 0;
  /// To another page_pin and back.
  virtual void move() = 0;
};

/// The error of an allocation while the pool sleeps.
#if TARN_SIMULATION_SLEEP
using asleep_error = tarn::pool_asleep;
#else
struct asleep_error {};
#endif

struct pool_under_test {
  virtual ~pool_under_test() = default;
  [[nodiscard]] virtual void* allocate(tarn::stream_ref stream, std::size_t bytes, std::size_t alignment) = 0;
  virtual void deallocate(tarn::stream_ref stream, void* p, std::size_t bytes, std::size_t alignment) = 0;
  [[nodiscard]] virtual void* allocate_sync(std::size_t bytes, std::size_t alignment) = 0;
  virtual void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment) = 0;
  virtual void record_stream(void* p, std::size_t bytes, tarn::stream_ref stream) = 0;
  [[nodiscard]] virtual bool extend(tarn::stream_ref stream, void* p, std::size_t bytes, std::size_t more,
                                    std::size_t alignment) = 0;
  virtual std::size_t trim(std::size_t keep) = 0;
  virtual void reset_peaks() = 0;
  virtual void reset_totals() = 0;
  virtual void set_limit(std::size_t bytes) = 0;
  [[nodiscard]] virtual std::size_t limit() const = 0;
  [[nodiscard]] virtual std::size_t limited() const = 0;
  [[nodiscard]] virtual bool owns(void const* p) const = 0;
  [[nodiscard]] virtual std::size_t largest_free_range() const = 0;
  [[nodiscard]] virtual std::size_t block_bytes(std::size_t bytes, std::size_t alignment) const = 0;
  [[nodiscard]] virtual tarn::pool_state state() const = 0;
  [[nodiscard]] virtual tarn::tracked_statistics statistics() const = 0;
  /// The value under one of PyTorch's keys.
  [[nodiscard]] virtual std::int64_t memory_stat_of(char const* key) const = 0;
  [[nodiscard]] virtual std::unique_ptr<scope_under_test> open_scope() const = 0;
  [[nodiscard]] virtual std::unique_ptr<owner_under_test> make_buffer(std::size_t count,
                                                                      tarn::stream_ref stream,
                                                                      std::size_t alignment) const = 0;
  [[nodiscard]] virtual std::unique_ptr<owner_under_test> make_growing(std::size_t count,
                                                                       tarn::stream_ref stream) const = 0;
  [[nodiscard]] virtual std::unique_ptr<owner_under_test> make_pointer(std::size_t count,
                                                                       tarn::stream_ref stream) const = 0;
  /// Null if these headers have no graph memories.
  [[nodiscard]] virtual std::unique_ptr<graph_memory_under_test> make_graph_memory() const = 0;
  [[nodiscard]] virtual bool can_sleep() const noexcept = 0;
  virtual std::size_t sleep(unsigned) { return 0; }
  virtual std::size_t wake(unsigned) { return 0; }
  [[nodiscard]] virtual bool is_asleep() const { return false; }
  virtual std::size_t compact() { return 0; }
  /// Whether it is over pages, or over blocks in their place.
  [[nodiscard]] virtual bool can_pin() const noexcept { return false; }
  [[nodiscard]] virtual std::unique_ptr<pin_under_test> pin(void const*, std::size_t) const {
    return nullptr;
  }
  [[nodiscard]] virtual std::vector<page_piece> segments_of(void const*, std::size_t) const { return {}; }
  /// Nothing for a pool without headroom.
  virtual void keep_headroom() {}
};

namespace detail {

#if TARN_SIMULATION_GRAPHS
template <class Memory>
class capture_of final : public capture_under_test {
 public:
  capture_of(tarn::graph_memory<Memory>& memory, tarn::stream_ref stream) { scope_.emplace(memory, stream); }
  capture_of(capture_of const&) = delete;
  capture_of& operator=(capture_of const&) = delete;
  ~capture_of() override {
    in_library const now;
    scope_.reset();
  }
  void join(tarn::stream_ref stream) override {
    in_library const now;
    scope_->join(stream);
  }

 private:
  std::optional<tarn::capture_scope> scope_;
};

template <class Memory>
class graph_memory_of final : public graph_memory_under_test {
 public:
  explicit graph_memory_of(Memory memory) { memory_.emplace(std::move(memory)); }
  graph_memory_of(graph_memory_of const&) = delete;
  graph_memory_of& operator=(graph_memory_of const&) = delete;
  ~graph_memory_of() override {
    in_library const now;
    memory_.reset();
  }
  std::unique_ptr<capture_under_test> capture(tarn::stream_ref stream) override {
    in_library const now;
    return std::make_unique<capture_of<Memory>>(*memory_, stream);
  }
  void* allocate(tarn::stream_ref stream, std::size_t bytes, std::size_t alignment) override {
    if constexpr (requires { memory_->allocate(stream, bytes, alignment); }) {
      in_library const now;
      return memory_->allocate(stream, bytes, alignment);
    } else {
      return nullptr;
    }
  }
  std::size_t allocated() const override {
    in_library const now;
    return memory_->state().allocated;
  }
  std::size_t reserved() const override {
    in_library const now;
    return memory_->state().reserved;
  }

 private:
  std::optional<tarn::graph_memory<Memory>> memory_;
};
#endif

#if TARN_SIMULATION_PINS
[[nodiscard]] inline std::vector<page_piece> pieces_of(std::vector<tarn::memory_segment> const& segments) {
  std::vector<page_piece> pieces;
  for (tarn::memory_segment const& s : segments)
    pieces.push_back({s.address, s.bytes, s.handle, s.offset, s.handle_bytes});
  return pieces;
}

template <class Memory>
class pin_of final : public pin_under_test {
 public:
  pin_of(Memory const& memory, void const* p, std::size_t bytes) { pin_.emplace(memory, p, bytes); }
  pin_of(pin_of const&) = delete;
  pin_of& operator=(pin_of const&) = delete;
  ~pin_of() override {
    in_library const now;
    pin_.reset();
  }
  std::vector<page_piece> segments() const override {
    in_library const now;
    return pieces_of(pin_->segments());
  }
  void move() override {
    in_library const now;
    tarn::page_pin<Memory> moved(std::move(*pin_));
    *pin_ = std::move(moved);
  }

 private:
  std::optional<tarn::page_pin<Memory>> pin_;
};
#endif

template <class Memory>
class buffer_of final : public owner_under_test {
 public:
  using buffer = tarn::device_buffer<std::byte, Memory>;
  explicit buffer_of(buffer b) : buffer_(std::move(b)) {}
  buffer_of(buffer_of const&) = delete;
  buffer_of& operator=(buffer_of const&) = delete;
  ~buffer_of() override {
    in_library const now;
    buffer const gone = std::move(buffer_);
  }
  void* data() const override { return const_cast<std::byte*>(buffer_.data()); }
  std::size_t size() const override { return buffer_.size(); }
  tarn::stream_ref stream() const override { return buffer_.stream(); }
  void set_stream(tarn::stream_ref stream) override {
    in_library const now;
    buffer_.set_stream(stream);
  }
  void reset() override {
    in_library const now;
    if constexpr (requires { buffer_.reset(); }) {
      buffer_.reset();
    } else {  // the headers of ea2f077
      buffer_.clear();
    }
  }
  std::unique_ptr<owner_under_test> move() override {
    in_library const now;
    return std::make_unique<buffer_of>(std::move(buffer_));
  }
  void resize(std::size_t count, tarn::stream_ref stream) override {
    in_library const now;
    buffer_.resize(count, stream);
  }
  void reserve(std::size_t count, tarn::stream_ref stream) override {
    in_library const now;
    buffer_.reserve(count, stream);
  }
  void shrink_to_fit(tarn::stream_ref stream) override {
    in_library const now;
    buffer_.shrink_to_fit(stream);
  }
  void fill(std::byte value) override {
    in_library const now;
    buffer_.fill(value);
  }
  std::unique_ptr<owner_under_test> copy(tarn::stream_ref stream) const override {
    in_library const now;
    if constexpr (requires { buffer_.clone(stream); }) {
      return std::make_unique<buffer_of>(buffer_.clone(stream));
    } else {  // the headers of ea2f077
      return std::make_unique<buffer_of>(buffer(buffer_, stream));
    }
  }
  bool is_buffer() const override { return true; }

 private:
  buffer buffer_;
};

/// An array that grows at one address. Where it has none left, it is refused as if memory were out.
template <class Memory>
class growing_of final : public owner_under_test {
 public:
  using buffer = tarn::growing_buffer<std::byte, Memory>;
  growing_of(Memory const& memory, std::size_t count, tarn::stream_ref stream)
      : buffer_(memory, 2 * count + 24 * 1024 * 1024, stream) {
    buffer_.resize(count);
  }
  explicit growing_of(buffer b) : buffer_(std::move(b)) {}
  growing_of(growing_of const&) = delete;
  growing_of& operator=(growing_of const&) = delete;
  ~growing_of() override {
    in_library const now;
    buffer const gone = std::move(buffer_);
  }
  void* data() const override {
    return buffer_.capacity() != 0 ? const_cast<std::byte*>(buffer_.data()) : nullptr;
  }
  std::size_t size() const override { return buffer_.size(); }
  tarn::stream_ref stream() const override { return buffer_.stream(); }
  void set_stream(tarn::stream_ref stream) override {
    in_library const now;
    buffer_.set_stream(stream);
  }
  void reset() override {
    in_library const now;
    buffer_.reset();
  }
  std::unique_ptr<owner_under_test> move() override {
    in_library const now;
    return std::make_unique<growing_of>(std::move(buffer_));
  }
  void resize(std::size_t count, tarn::stream_ref stream) override {
    change(count, stream, [&] { buffer_.resize(count); });
  }
  void reserve(std::size_t count, tarn::stream_ref stream) override {
    change(count, stream, [&] { buffer_.reserve(count); });
  }
  void shrink_to_fit(tarn::stream_ref stream) override {
    change(0, stream, [&] { buffer_.shrink_to_fit(); });
  }
  void fill(std::byte value) override {
    in_library const now;
    buffer_.fill(value);
  }
  std::unique_ptr<owner_under_test> copy(tarn::stream_ref stream) const override {
    in_library const now;
    return std::make_unique<growing_of>(buffer_.clone(stream));
  }
  bool is_buffer() const override { return true; }

 private:
  /// On its own stream, and then on `stream`.
  template <class Change>
  void change(std::size_t count, tarn::stream_ref stream, Change const& made) {
    if (count > buffer_.max_size()) throw tarn::out_of_memory(tarn::memory_report{});
    in_library const now;
    auto const* const at = buffer_.data();
    made();
    if (buffer_.keeps_address() && buffer_.data() != at) throw std::logic_error("a growing buffer moved");
    buffer_.set_stream(stream);
  }

  buffer buffer_;
};

template <class Memory>
class pointer_of final : public owner_under_test {
 public:
  using pointer = tarn::device_ptr<std::byte[], Memory>;
  explicit pointer_of(pointer p) : pointer_(std::move(p)) {}
  pointer_of(pointer_of const&) = delete;
  pointer_of& operator=(pointer_of const&) = delete;
  ~pointer_of() override {
    in_library const now;
    pointer const gone = std::move(pointer_);
  }
  void* data() const override { return pointer_.get(); }
  std::size_t size() const override { return pointer_.size(); }
  tarn::stream_ref stream() const override { return pointer_.stream(); }
  void set_stream(tarn::stream_ref stream) override {
    in_library const now;
    pointer_.set_stream(stream);
  }
  void reset() override {
    in_library const now;
    pointer_ = nullptr;
  }
  std::unique_ptr<owner_under_test> move() override {
    in_library const now;
    return std::make_unique<pointer_of>(std::move(pointer_));
  }

 private:
  pointer pointer_;
};

template <class Memory>
class scope_of final : public scope_under_test {
 public:
  explicit scope_of(Memory memory) : scope_(std::move(memory)) {}
  scope_reading read() const override {
    in_library const now;
    return {scope_.peak_bytes(), scope_.peak_above_start(), scope_.current_bytes(), scope_.count(),
            scope_.net_bytes()};
  }

 private:
  tarn::peak_scope<Memory> scope_;
};

template <class Memory>
class pool_of final : public pool_under_test {
 public:
  explicit pool_of(Memory memory) : memory_(std::move(memory)) {}

  void* allocate(tarn::stream_ref stream, std::size_t bytes, std::size_t alignment) override {
    in_library const now;
    return memory_.allocate(stream, bytes, alignment);
  }
  void deallocate(tarn::stream_ref stream, void* p, std::size_t bytes, std::size_t alignment) override {
    in_library const now;
    memory_.deallocate(stream, p, bytes, alignment);
  }
  void* allocate_sync(std::size_t bytes, std::size_t alignment) override {
    in_library const now;
    return memory_.allocate_sync(bytes, alignment);
  }
  void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment) override {
    in_library const now;
    memory_.deallocate_sync(p, bytes, alignment);
  }
  void record_stream(void* p, std::size_t bytes, tarn::stream_ref stream) override {
    in_library const now;
    memory_.record_stream(p, bytes, stream);
  }
  bool extend(tarn::stream_ref stream, void* p, std::size_t bytes, std::size_t more,
              std::size_t alignment) override {
    in_library const now;
    if constexpr (requires { memory_.extend(stream, p, bytes, more, alignment); })
      return memory_.extend(stream, p, bytes, more, alignment);
    return false;
  }
  std::size_t trim(std::size_t keep) override {
    in_library const now;
    return tarn::nearest(memory_, [&](auto& l) -> decltype(l.trim(keep)) { return l.trim(keep); });
  }
  void reset_peaks() override {
    in_library const now;
    tarn::reset_peak_memory_stats(memory_);
  }
  void reset_totals() override {
    in_library const now;
    tarn::reset_accumulated_memory_stats(memory_);
  }
  void set_limit(std::size_t bytes) override {
    in_library const now;
    (void)tarn::nearest(memory_, [&](auto& l) -> decltype(l.set_limit(bytes)) { return l.set_limit(bytes); });
  }
  std::size_t limit() const override {
    in_library const now;
    return tarn::nearest(memory_, [](auto& l) -> decltype(l.limit()) { return l.limit(); });
  }
  std::size_t limited() const override {
    in_library const now;
    return tarn::nearest(memory_, [](auto& l) -> decltype(l.used()) { return l.used(); });
  }
  bool owns(void const* p) const override {
    in_library const now;
    return tarn::nearest(memory_, [&](auto& l) -> decltype(l.owns(p)) { return l.owns(p); });
  }
  std::size_t largest_free_range() const override {
    in_library const now;
    return tarn::nearest(memory_,
                         [](auto& l) -> decltype(l.largest_free_range()) { return l.largest_free_range(); });
  }
  std::size_t block_bytes(std::size_t bytes, std::size_t alignment) const override {
    in_library const now;
    return tarn::nearest(memory_, [&](auto& l) -> decltype(l.block_bytes(bytes, alignment)) {
      return l.block_bytes(bytes, alignment);
    });
  }
  tarn::pool_state state() const override {
    in_library const now;
    return tarn::nearest(memory_, [](auto& l) -> decltype(l.state()) { return l.state(); });
  }
  tarn::tracked_statistics statistics() const override {
    in_library const now;
    return tarn::nearest(memory_, [](auto& l) -> decltype(l.statistics()) { return l.statistics(); });
  }
  std::int64_t memory_stat_of(char const* key) const override {
    in_library const now;
    for (auto const& [name, value] : tarn::memory_stats(memory_)) {
      if (name == key) return value;
    }
    return -1;
  }
  std::unique_ptr<scope_under_test> open_scope() const override {
    in_library const now;
    return std::make_unique<scope_of<Memory>>(memory_);
  }
  std::unique_ptr<owner_under_test> make_buffer(std::size_t count, tarn::stream_ref stream,
                                                std::size_t alignment) const override {
    in_library const now;
    return std::make_unique<buffer_of<Memory>>(
        tarn::device_buffer<std::byte, Memory>(memory_, count, stream, alignment));
  }
  std::unique_ptr<owner_under_test> make_growing(std::size_t count, tarn::stream_ref stream) const override {
    in_library const now;
    return std::make_unique<growing_of<Memory>>(memory_, count, stream);
  }
  std::unique_ptr<owner_under_test> make_pointer(std::size_t count, tarn::stream_ref stream) const override {
    in_library const now;
    return std::make_unique<pointer_of<Memory>>(tarn::make_device<std::byte[]>(memory_, count, stream));
  }
  std::unique_ptr<graph_memory_under_test> make_graph_memory() const override {
#if TARN_SIMULATION_GRAPHS
    in_library const now;
    return std::make_unique<graph_memory_of<Memory>>(memory_);
#else
    return nullptr;
#endif
  }
#if TARN_SIMULATION_SLEEP
  static constexpr bool sleeps = tarn::detail::can_sleep<Memory>;
  bool can_sleep() const noexcept override { return sleeps; }
  std::size_t sleep(unsigned how) override {
    in_library const now;
    if constexpr (sleeps)
      return tarn::sleep(memory_,
                         how % 3 == 2 ? tarn::contents::discarded : tarn::contents::in_pinned_memory);
    return 0;
  }
  std::size_t wake(unsigned how) override {
    in_library const now;
    if constexpr (sleeps)
      return tarn::wake(memory_, how % 4 == 0 ? tarn::after_waking::keep_host_memory
                                              : tarn::after_waking::free_host_memory);
    return 0;
  }
  bool is_asleep() const override {
    in_library const now;
    if constexpr (sleeps) return tarn::is_asleep(memory_);
    return false;
  }
  std::size_t compact() override {
    in_library const now;
    if constexpr (sleeps) return tarn::compact(memory_).released;
    return 0;
  }
#else
  bool can_sleep() const noexcept override { return false; }
#endif
#if TARN_SIMULATION_PINS
  static constexpr bool pins = tarn::detail::has_segments<Memory>;
  bool can_pin() const noexcept override { return pins; }
  std::unique_ptr<pin_under_test> pin(void const* p, std::size_t bytes) const override {
    in_library const now;
    if constexpr (pins) return std::make_unique<pin_of<Memory>>(memory_, p, bytes);
    return nullptr;
  }
  std::vector<page_piece> segments_of(void const* p, std::size_t bytes) const override {
    in_library const now;
    if constexpr (pins) return pieces_of(tarn::segments_of(memory_, p, bytes));
    return {};
  }
#endif
#if TARN_SIMULATION_HEADROOM
  void keep_headroom() override {
    in_library const now;
    if constexpr (requires(Memory& m) {
                    tarn::nearest(m,
                                  [](auto& l) -> decltype(l.headroom_bytes()) { return l.headroom_bytes(); });
                  })
      (void)tarn::keep_headroom(memory_);
  }
#endif

 private:
  mutable Memory memory_;
};

}  // namespace detail

/// The source of a pool: pages of a driver that identifies streams only by identity, or pages of a driver
/// that can mark all work of a device; or blocks; or pinned memory of such drivers.
enum class ground : std::uint8_t { pages, marked_pages, blocks, pinned, marked_pinned };
inline constexpr char const* ground_names[] = {"pages", "pages, marking", "blocks, marking", "pinned memory",
                                               "pinned memory, marking"};
[[nodiscard]] constexpr bool marks_all(ground on) noexcept {
  return on != ground::pages && on != ground::pinned;
}
[[nodiscard]] constexpr bool is_pinned(ground on) noexcept {
  return on == ground::pinned || on == ground::marked_pinned;
}

struct pool_choice {
  ground on = ground::pages;
  int shared_with = -1;  ///< the other device that pages are accessible from; none if negative
  tarn::pooled options{};
  std::size_t limit = 0;     ///< of reserved bytes
  std::size_t headroom = 0;  ///< of the device, bytes; only over marked_pages
};

namespace detail {
template <class Source>
[[nodiscard]] std::unique_ptr<pool_under_test> make_pool_over(Source const& source, pool_choice const& choice,
                                                              witnessed const& who) {
  using tarn::limited, tarn::tracked;
  auto memory = source | limited{choice.limit} | choice.options | tracked{} | who;
  return std::make_unique<pool_of<decltype(memory)>>(std::move(memory));
}
}  // namespace detail

/// @tparam Driver, Marking  the drivers of the pools; each is made from `driver`
template <class Driver, class Marking, class From>
[[nodiscard]] std::unique_ptr<pool_under_test> make_pool(From const& driver, pool_choice const& choice,
                                                         witness& who, unsigned number) {
  witnessed const seen{&who, number};
#if TARN_SIMULATION_ACROSS
  if (is_pinned(choice.on)) {
    return choice.on == ground::pinned
               ? detail::make_pool_over(tarn::basic_pinned<Driver>(Driver(driver)), choice, seen)
               : detail::make_pool_over(tarn::basic_pinned<Marking>(Marking(driver)), choice, seen);
  }
  if (choice.shared_with >= 0) {
    tarn::accessible_from const other{tarn::device_id{choice.shared_with}};
    return choice.on == ground::pages
               ? detail::make_pool_over(tarn::basic_pages<Driver>(Driver(driver)) | other, choice, seen)
               : detail::make_pool_over(tarn::basic_pages<Marking>(Marking(driver)) | other, choice, seen);
  }
#endif
  switch (choice.on) {
    case ground::pages:
      return detail::make_pool_over(tarn::basic_pages<Driver>(Driver(driver)), choice, seen);
    case ground::marked_pages:
#if TARN_SIMULATION_HEADROOM
      if (choice.headroom != 0) {
        return detail::make_pool_over(
            tarn::basic_pages<Marking>(Marking(driver)) | tarn::headroom{choice.headroom}, choice, seen);
      }
#endif
      return detail::make_pool_over(tarn::basic_pages<Marking>(Marking(driver)), choice, seen);
    default:
      return detail::make_pool_over(tarn::basic_malloc<Marking>(Marking(driver)), choice, seen);
  }
}

}  // namespace simulation
