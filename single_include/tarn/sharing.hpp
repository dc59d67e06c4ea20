// SPDX-License-Identifier: Apache-2.0
#pragma once
// tarn/sharing.hpp over the single tarn.hpp, made by .ci/amalgamate.py. Do not edit.
#include "tarn.hpp"
// ---- tarn/sharing.hpp
// Memory that others use, too: the physical segments behind a block, pins that keep them in place,
// registrations with libraries, and blocks for other processes and devices. Opt-in; needs POSIX.

// ---- tarn/sharing/exported_block.hpp
// export_block(): a block of a pool for other processes. dma_buf: a block for other devices.

#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

// ---- tarn/core/descriptor.hpp
#ifndef TARN_SINGLE_CORE_DESCRIPTOR_HPP
#define TARN_SINGLE_CORE_DESCRIPTOR_HPP
// unique_descriptor: a unique owner of a file descriptor.

#include <fcntl.h>
#include <unistd.h>

#include <utility>

namespace TARN_NAMESPACE {

/// Owns a file descriptor and closes it. Move-only; a moved-from owner is empty.
class unique_descriptor {
 public:
  unique_descriptor() noexcept = default;
  explicit unique_descriptor(int descriptor) noexcept : descriptor_(descriptor) {}
  unique_descriptor(unique_descriptor&& other) noexcept : descriptor_(other.release()) {}
  unique_descriptor& operator=(unique_descriptor&& other) noexcept {
    unique_descriptor(std::move(other)).swap(*this);
    return *this;
  }
  ~unique_descriptor() {
    if (descriptor_ >= 0) (void)::close(descriptor_);
  }

  void swap(unique_descriptor& other) noexcept { std::swap(descriptor_, other.descriptor_); }
  /// -1 if it owns none.
  [[nodiscard]] int get() const noexcept { return descriptor_; }
  /// Releases ownership without closing.
  [[nodiscard]] int release() noexcept { return detail::exchange(descriptor_, -1); }
  explicit operator bool() const noexcept { return descriptor_ >= 0; }
  /// A program that this process starts does not get the descriptor.
  void close_on_exec() const noexcept {
    if (descriptor_ >= 0) (void)::fcntl(descriptor_, F_SETFD, FD_CLOEXEC);
  }

 private:
  int descriptor_ = -1;
};

}  // namespace TARN_NAMESPACE
#endif  // TARN_SINGLE_CORE_DESCRIPTOR_HPP
// ---- tarn/sharing/block_description.hpp
// block_description: what a process must know of another process's block to import it, and its form as bytes.

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

// ---- tarn/sharing/sharing_error.hpp
// sharing_error: why memory could not be shared with another process. sharing_timeout: how long calls wait
// for that process.

#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string_view>

namespace TARN_NAMESPACE {

/// How long one step of the other process may take.
inline constexpr std::chrono::milliseconds default_sharing_timeout{30'000};

namespace detail {

/// A longer limit counts as this one, which can be added to the time of any clock.
inline constexpr std::chrono::milliseconds longest_wait = std::chrono::hours(24 * 365);

}  // namespace detail

/// Why memory could not be shared.
enum class sharing_failure : std::uint8_t {
  peer_closed,     ///< the other process has ended or closed the socket
  timed_out,       ///< the other process does not answer
  refused,         ///< the other process could not import the block
  truncated,       ///< the description ends early
  damaged,         ///< not a description of a block, or changed since it was made
  other_version,   ///< made by a version of tarn with another format
  other_machine,   ///< made on another machine, or before the last start of this one
  other_device,    ///< of a device that is not the importing one
  exporter_ended,  ///< the process that exported the block has ended
  importer_ended,  ///< the process that imported the block has ended
  wrong_pages,     ///< the descriptors are not those of the description
  system           ///< a system call failed: error() is its errno
};

/// Memory could not be shared with another process. Nothing was mapped, and nothing is leaked.
class sharing_error : public detail::error_of<std::runtime_error, 512> {
 public:
  sharing_error(sharing_failure kind, std::string_view text, int error = 0) : kind_(kind), error_(error) {
    text_.add("tarn: ").add(text);
    if (error != 0) text_.add(" (errno ").add_number(error).add(")");
  }
  [[nodiscard]] sharing_failure kind() const noexcept { return kind_; }
  /// errno of a system call that failed; 0: none did.
  [[nodiscard]] int error() const noexcept { return error_; }

 private:
  sharing_failure kind_;
  int error_;
};

}  // namespace TARN_NAMESPACE

namespace TARN_NAMESPACE {

/// A process on a machine since its last start. Zeros: the system does not report it.
struct process_identity {
  std::array<char, 36> machine{};    ///< changes at each start of the machine
  std::array<char, 32> pid_space{};  ///< in which process numbers mean the same, such as a container
  std::uint64_t pid = 0;
  std::uint64_t started = 0;  ///< tells apart processes that had the same number
  friend bool operator==(process_identity const&, process_identity const&) noexcept = default;
};

namespace detail {

/// Reads the beginning of a short file of the system without allocating; nothing if it cannot be read.
[[nodiscard]] inline std::string_view read_short(char const* path, std::span<char> into) noexcept {
  unique_descriptor const file(::open(path, O_RDONLY | O_CLOEXEC));
  ::ssize_t const got = file ? ::read(file.get(), into.data(), into.size()) : -1;
  return {into.data(), got < 0 ? 0 : static_cast<std::size_t>(got)};
}

/// What /proc/PID/stat says of a process. Zeros: it cannot be read.
struct process_status {
  std::uint64_t pid = 0;
  std::uint64_t started = 0;  ///< in clock ticks
  bool is_dead = false;       ///< killed or ended, but its parent has not asked yet
};
[[nodiscard]] inline process_status status_of_process(char const* path) noexcept {
  char text[1024];
  std::string_view const line = read_short(path, text);
  auto const number_at = [&](std::size_t at) {
    std::uint64_t n = 0;
    for (; at < line.size() && line[at] >= '0' && line[at] <= '9'; ++at)
      n = n * 10 + static_cast<std::uint64_t>(line[at] - '0');
    return n;
  };
  // "pid (name) state ...": the name may have blanks and brackets. Of the fields after the name, the first is
  // the state, the 18th the number of threads and the 20th the start.
  std::size_t at = line.rfind(')');
  if (at == std::string_view::npos) return {};
  bool const is_zombie = line.substr(at).starts_with(") Z");
  std::uint64_t threads = 0;
  for (int field = 1; field <= 20; ++field) {
    at = line.find(' ', at + 1);
    if (at == std::string_view::npos) return {};
    if (field == 18) threads = number_at(at + 1);
  }
  // The first thread of a process may end before the others.
  return {number_at(0), number_at(at + 1), is_zombie && threads <= 1};
}

/// Calls f with each member, since there is padding between them.
template <class Identity, class F>
void each_part(Identity& id, F const& f) {
  f(id.machine), f(id.pid_space), f(id.pid), f(id.started);
}

/// Of the calling process; asked at each call, so it is right after fork().
[[nodiscard]] inline process_identity this_process_identity() noexcept {
  process_identity id;
  (void)read_short("/proc/sys/kernel/random/boot_id", id.machine);
  if (::readlink("/proc/self/ns/pid", id.pid_space.data(), id.pid_space.size()) < 0) id.pid_space = {};
  id.pid = static_cast<std::uint64_t>(::getpid());
  // /proc may be that of another space of process numbers.
  process_status const own = status_of_process("/proc/self/stat");
  if (own.pid == id.pid) id.started = own.started;
  return id;
}

/// Whether a process is known to have ended. False if the system does not report it.
[[nodiscard]] inline bool has_ended(process_identity const& id) noexcept {
  process_identity const own = this_process_identity();
  if (id.started == 0 || own.started == 0 || id.machine != own.machine || id.pid_space != own.pid_space)
    return false;
  message<64> const path("/proc/", id.pid, "/stat");
  process_status const found = status_of_process(path.c_str());
  if (found.pid == id.pid) return found.is_dead || found.started != id.started;
  // The file may be unreadable: other users' are, where /proc is mounted so.
  return ::kill(static_cast<::pid_t>(id.pid), 0) != 0 && errno == ESRCH;
}

}  // namespace detail

/// What a process must know of another process's block to import it; not the right to do so, which is in the
/// descriptors (or in the tokens of a fabric). Plain data: copy it freely.
struct block_description {
  /// Changes with the form, and with what send_block() and receive_block() send.
  static constexpr std::uint32_t current_version = 2;

  process_identity exporter{};
  std::uint64_t number = 0;  ///< of this export in its process, from 1
  device_uuid device{};
  allocation_handle_type type = allocation_handle_type::none;
  std::size_t bytes = 0;      ///< of the block
  std::size_t offset = 0;     ///< of the block in the first handle
  std::size_t alignment = 0;  ///< of the block's address; the import has the same
  bool has_events = false;
  shared_event_token ready{};          ///< recorded by the exporter
  shared_event_token done{};           ///< recorded by the importer
  std::vector<std::size_t> handles{};  ///< bytes of each handle, in the order of their addresses

  friend bool operator==(block_description const&, block_description const&) noexcept = default;

  /// The description as bytes, for any channel to the other process. @throws std::bad_alloc
  [[nodiscard]] std::vector<std::byte> to_bytes() const {
    std::vector<std::byte> out;
    add(out, magic);
    add(out, current_version);
    add(out, static_cast<std::uint64_t>(0));  // the size of all, below
    each_field(*this, [&](auto const& field) { add(out, field); });
    add(out, static_cast<std::uint64_t>(handles.size()));
    for (std::size_t const h : handles) add(out, static_cast<std::uint64_t>(h));
    std::uint64_t const size = out.size() + sizeof(std::uint64_t);
    std::memcpy(out.data() + sizeof magic + sizeof current_version, &size, sizeof size);
    add(out, checksum(out));
    return out;
  }
  /// Reads what to_bytes() wrote. Everything is checked that can be without the device.
  /// @throws sharing_error (truncated, damaged, other_version); std::bad_alloc
  [[nodiscard]] static block_description from_bytes(std::span<std::byte const> in) {
    reader r{in};
    if (r.get<std::uint64_t>() != magic)
      refuse(sharing_failure::damaged, "these bytes are not a description of a block");
    if (r.get<std::uint32_t>() != current_version) {
      refuse(sharing_failure::other_version,
             "the description of the block was made by another version of tarn; build both programs with the "
             "same");
    }
    auto const size = r.get<std::uint64_t>();
    if (size > in.size()) refuse_truncated();
    if (size < in.size() || size < r.at + 2 * sizeof(std::uint64_t)) refuse_damaged();
    auto const body = in.first(in.size() - sizeof(std::uint64_t));
    r.in = body;
    std::uint64_t sum = 0;
    std::memcpy(&sum, in.data() + body.size(), sizeof sum);
    if (sum != checksum(body)) refuse_damaged();
    block_description d;
    each_field(d, [&](auto& field) { field = r.get<std::remove_cvref_t<decltype(field)>>(); });
    auto const count = r.get<std::uint64_t>();
    if (count != (body.size() - r.at) / sizeof(std::uint64_t)) refuse_damaged();
    d.handles.reserve(count);
    for (std::uint64_t i = 0; i < count; ++i) d.handles.push_back(r.get<std::uint64_t>());
    if (!d.is_consistent()) refuse_damaged();
    return d;
  }

  /// Whether the block lies in the handles, and needs all of them.
  [[nodiscard]] bool is_consistent() const noexcept {
    std::size_t sum = 0;
    for (std::size_t const h : handles) {
      if (h == 0 || h > max_request_bytes || sum > max_request_bytes - h) return false;
      sum += h;
    }
    bool const has_block = bytes != 0 && bytes <= sum && offset <= sum - bytes && is_alignment(alignment);
    return has_block && offset < handles.front() && offset + bytes > sum - handles.back() &&
           type <= allocation_handle_type::fabric && type != allocation_handle_type::none;
  }

 private:
  static constexpr std::uint64_t magic = 0x6b6c'626e'7261'74'0aU;

  template <class Self, class F>
  static void each_field(Self& d, F const& f) {
    detail::each_part(d.exporter, f);
    f(d.number);
    f(d.device);
    f(d.type);
    f(d.bytes);
    f(d.offset);
    f(d.alignment);
    f(d.has_events);
    f(d.ready);
    f(d.done);
  }
  template <class T>
  static void add(std::vector<std::byte>& out, T const& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    auto const* const p = reinterpret_cast<std::byte const*>(&value);
    out.insert(out.end(), p, p + sizeof value);
  }
  struct reader {
    std::span<std::byte const> in;
    std::size_t at = 0;
    template <class T>
    T get() {
      if (in.size() - at < sizeof(T)) refuse_truncated();
      T value;
      if constexpr (std::is_same_v<T, bool>) {
        value = in[at] != std::byte{0};
      } else {
        std::memcpy(&value, in.data() + at, sizeof value);
      }
      at += sizeof(T);
      return value;
    }
  };
  /// FNV-1a, 64 bits. Finds damage, not forgery.
  [[nodiscard]] static std::uint64_t checksum(std::span<std::byte const> bytes) noexcept {
    std::uint64_t sum = 0xcbf2'9ce4'8422'2325U;
    for (std::byte const b : bytes) sum = (sum ^ static_cast<std::uint64_t>(b)) * 0x100'0000'01b3U;
    return sum;
  }
  [[noreturn]] static void refuse(sharing_failure kind, std::string_view text) {
    throw sharing_error(kind, text);
  }
  [[noreturn]] static void refuse_truncated() {
    refuse(sharing_failure::truncated, "the description of the block ends early; pass all of its bytes");
  }
  [[noreturn]] static void refuse_damaged() {
    refuse(sharing_failure::damaged, "the description of the block was changed on its way; send it again");
  }
};

}  // namespace TARN_NAMESPACE
// ---- tarn/sharing/page_pin.hpp
#ifndef TARN_SINGLE_SHARING_PAGE_PIN_HPP
#define TARN_SINGLE_SHARING_PAGE_PIN_HPP
// page_pin: keeps the physical segments behind a block in place, for libraries that registered or exported
// them; segments_of() lists them.

#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

namespace TARN_NAMESPACE {

namespace detail {

/// Whether a pool over pages, below layers that keep addresses, has the blocks.
template <class Memory>
inline constexpr bool has_segments = reachable<Memory, pool_call::pin>;

template <class Memory>
constexpr bool require_segments() noexcept {
  static_assert(has_segments<Memory>,
                "tarn: only blocks of a pool over a page source, such as cuda_pages, have segments: use "
                "`cuda_pages{} | pooled{}`");
  return has_segments<Memory>;
}

}  // namespace detail

/// Returns the physical segments behind a block or a part of one, in order: the blocks of a pool over pages
/// may lie across several handles that are mapped side by side. A library that looks at the first handle only
/// (cuMemRetainAllocationHandle of the first address) sees the first of these. The list is valid as long as
/// the block is not freed and the pool does not sleep and is not compacted; take a page_pin before.
///
/// @param p      into a block of the pool
/// @param bytes  up to the end of the block
/// @throws misuse (foreign_pointer)  not all of these bytes are in blocks of the pool. A small freed block
/// may not be noticed
/// @throws pool_asleep               the pool sleeps
/// @throws cuda_error (unsupported)  the device has no virtual memory management, or a memory tool is
/// attached: the pool then has
///                                   cudaMalloc blocks and no handles
/// @throws std::bad_alloc, cuda_error  nothing has changed
/// Thread-safe. Stops all threads' caches for a moment, as trim() does. O(views + segments), no driver call.
template <class Memory>
[[nodiscard]] std::vector<memory_segment> segments_of(Memory const& memory, void const* p, std::size_t bytes,
                                                      source_location where = source_location::current()) {
  std::vector<memory_segment> all;
  if constexpr (detail::require_segments<Memory>()) {
    auto const add = [&](memory_segment const& s) { all.push_back(s); };
    detail::called_from(where, [&] { nearest(memory, pool_call::each_segment{p, bytes, add}); });
  }
  return all;
}

/// Keeps the physical pages behind a block mapped at their addresses while it lives: they are not given back,
/// moved, replaced by compact() or put to sleep. For memory that is exported or registered with a
/// communication library. sleep() gives back the rest of the pool, and pinned contents stay on the device.
///
/// The block should outlive the pin: after it was freed, its pages stay, but the pool gives the bytes to
/// others. Pins of one block, or of blocks that share a handle, are counted. Keeps a copy of the handle on
/// the memory. Thread-safe.
template <class Memory>
class [[nodiscard]] page_pin {
 public:
  /// @throws as segments_of(); misuse: by a handler of the pool's own growth, which may be moving the pages.
  /// Stops all threads' caches for a moment; O(views + segments)
  page_pin(Memory memory, void const* p, std::size_t bytes,
           source_location where = source_location::current())
      : memory_(std::move(memory)), p_(p), bytes_(bytes) {
    if constexpr (detail::require_segments<Memory>()) {
      detail::called_from(where, [&] { nearest(memory_, pool_call::pin{p, bytes}); });
    }
  }
  page_pin(page_pin&& other) noexcept
      : memory_(other.memory_), p_(detail::exchange(other.p_, nullptr)), bytes_(other.bytes_) {}
  /// Ends this pin, and takes over the other.
  page_pin& operator=(page_pin&& other) noexcept {
    if (this == &other) return *this;
    end();
    memory_ = other.memory_;
    p_ = detail::exchange(other.p_, nullptr);
    bytes_ = other.bytes_;
    return *this;
  }
  /// Waits for the pool's growth lock: another thread may be growing the pool.
  ~page_pin() { end(); }

  /// The driver of the memory's device.
  [[nodiscard]] decltype(auto) driver() const noexcept { return memory_.driver(); }
  [[nodiscard]] void const* data() const noexcept { return p_; }
  [[nodiscard]] std::size_t size_bytes() const noexcept { return p_ != nullptr ? bytes_ : 0; }
  /// The physical segments, which do not change while the pin lives. @throws as segments_of()
  [[nodiscard]] std::vector<memory_segment> segments(
      source_location where = source_location::current()) const {
    return segments_of(memory_, p_, bytes_, where);
  }

 private:
  void end() noexcept {
    if constexpr (detail::has_segments<Memory>) {
      if (p_ != nullptr) nearest(memory_, pool_call::unpin{p_, bytes_});
    }
  }

  Memory memory_;
  void const* p_;
  std::size_t bytes_;
};

}  // namespace TARN_NAMESPACE
#endif  // TARN_SINGLE_SHARING_PAGE_PIN_HPP

namespace TARN_NAMESPACE {

// An event that two processes use.

namespace detail {

/// Owns an event that other processes can open, or that another process has made. A forked child destroys
/// nothing.
template <sharing_driver D>
class shared_event {
 public:
  /// Creates one. @throws cuda_error
  shared_event(D driver, shared_event_token& token) : driver_(std::move(driver)) {
    must_succeed(driver_, driver_.create_shared_event(event_, token));
  }
  /// Opens another process's. @throws cuda_error
  shared_event(shared_event_token const& token, D driver) : driver_(std::move(driver)) {
    must_succeed(driver_, driver_.open_shared_event(token, event_));
  }
  shared_event& operator=(shared_event&&) = delete;
  ~shared_event() {
    if (process_.is_this()) (void)driver_.destroy_event(event_);
  }

  /// @throws cuda_error
  void record(stream_ref stream) const { must_succeed(driver_, record_in_order(driver_, event_, stream)); }
  /// Later work on the stream waits until the recorded work has ended. Asks `has_ended` about the process
  /// that recorded it, and throws `ended` instead if that work cannot end any more. Does not wait.
  /// @throws cuda_error; sharing_error (ended)
  template <class HasEnded>
  void wait(stream_ref stream, sharing_failure ended, HasEnded const& has_ended) const {
    // Queried again after the question: what the process did before its end counts.
    if (!is_reached() && has_ended() && !is_reached()) throw of_ended(ended);
    must_succeed(driver_, driver_.wait_event(stream, event_));
  }
  /// Waits on the host until the recorded work has ended. A device that waits for an event cannot stop when
  /// the process that recorded it is killed, so this queries the event, and asks `has_ended` about that
  /// process.
  /// @throws cuda_error; sharing_error (ended, timed_out)
  template <class HasEnded>
  void synchronize(std::chrono::milliseconds timeout, sharing_failure ended,
                   HasEnded const& has_ended) const {
    auto const deadline = std::chrono::steady_clock::now() + min_of(timeout, longest_wait);
    for (auto pause = shortest_pause;; pause = min_of(2 * pause, longest_pause)) {
      // Asked first: what the process did before its end counts.
      bool const is_gone = pause == longest_pause && has_ended();
      if (is_reached()) return;
      if (is_gone) throw of_ended(ended);
      if (std::chrono::steady_clock::now() >= deadline) {
        throw sharing_error(sharing_failure::timed_out,
                            "the other process's work on the block has not ended: wait longer, or give up");
      }
      std::this_thread::sleep_for(pause);
    }
  }

 private:
  static constexpr std::chrono::microseconds shortest_pause{20};
  static constexpr std::chrono::microseconds longest_pause{5000};

  [[nodiscard]] static sharing_error of_ended(sharing_failure ended) noexcept {
    return {ended, ended == sharing_failure::exporter_ended
                       ? "the process that exported the block has ended before its work on the block"
                       : "the process that imported the block has ended before its work on the block"};
  }
  [[nodiscard]] bool is_reached() const {
    status const s = driver_.query_event(event_);
    if (s.kind == failure::not_ready) return false;
    must_succeed(driver_, s);
    return true;
  }

  D driver_;
  creating_process process_{};
  event_handle event_ = nullptr;
};

inline constexpr char const* not_exportable =
    "export_block (the pool's pages were created without a type that can be exported: use cuda_pages{device, "
    "allocation_handle_type::posix_file_descriptor}; if its handle_type() is none, this device cannot)";
inline constexpr char const* not_side_by_side =
    "export_block (parts of the block do not lie side by side in their handles)";
inline constexpr char const* no_events = "export_block was called without a stream, so there are no events";
inline constexpr char const* several_handles =
    "dma_buf (the block lies in several handles, and a dma-buf spans one: allocate it from a pool with "
    "pooled{.handles = "
    "handles_per_block::one}, or give "
    "each segment of "
    "segments_of() to a dma_buf)";

/// Numbers the exports of this process, from 1.
[[nodiscard]] inline std::uint64_t next_export() noexcept {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

/// A process that becomes known once. Thread-safe.
class known_process {
 public:
  /// The first call counts.
  void set(process_identity const& id) noexcept {
    state before = state::unknown;
    if (!state_.compare_exchange_strong(before, state::changing)) return;
    id_ = id;
    state_.store(state::known);
  }
  /// False if the process is unknown.
  [[nodiscard]] bool has_ended() const noexcept {
    return state_.load() == state::known && detail::has_ended(id_);
  }

 private:
  enum class state : std::uint8_t { unknown, changing, known };
  process_identity id_{};
  std::atomic<state> state_{state::unknown};
};

}  // namespace detail

/// Memory of one handle, on its way to another process. Owns the descriptor.
class exported_pages {
 public:
  exported_pages() noexcept = default;
  /// Takes ownership of the descriptor, if there is one.
  explicit exported_pages(page_export const& pages) noexcept : pages_(pages), descriptor_(pages.descriptor) {
    descriptor_.close_on_exec();
  }
  [[nodiscard]] page_export const& get() const noexcept { return pages_; }
  [[nodiscard]] int descriptor() const noexcept { return descriptor_.get(); }

 private:
  page_export pages_{};
  unique_descriptor descriptor_{};
};

/// A block of a pool that other processes can import: send_block() sends it over a Unix socket; description()
/// and pages() are for other channels. Any number of processes may import it if it was exported without a
/// stream. With one, export it once for each importer: they would share the event of record_done().
///
/// Pins the block's pages while it lives. It should live, and the block stay allocated, until the importers
/// have finished: an import keeps the physical memory, but not what the pool does with it. Move-only; a
/// moved-from object is empty. Thread-safe for const calls.
///
/// Stream order, if a stream was given: what was written on it before is seen by an importer's stream after
/// wait_ready(). The other way, an importer calls record_done(), says so, and wait_done() here orders a
/// stream after it. A stream that waits for work of a process that was killed may wait forever: on an H200
/// with driver 580 it still waited after 8 s, and CUDA's documentation leaves it open. So wait_ready() and
/// wait_done() throw if the process has ended before its work; they cannot notice that it is killed after the
/// call. Where that may happen, synchronize_ready() and synchronize_done() wait on the host instead, with a
/// limit. The events end with this object: an importer may then use the memory, but neither wait nor record.
template <class Memory>
class [[nodiscard]] exported_block {
  using driver_type = std::remove_cvref_t<decltype(std::declval<Memory const&>().driver())>;
  static_assert(sharing_driver<driver_type>, "tarn: this driver cannot export pages; see driver/driver.hpp");

 public:
  /// See export_block().
  exported_block(Memory memory, void const* p, std::size_t bytes, stream_ref const* ready,
                 std::size_t alignment, source_location where)
      : driver_(memory.driver()), pin_(std::move(memory), p, bytes, where) {
    detail::called_from(where, [&] {
      require_alignment(p, alignment);
      describe(bytes, alignment);
      if (ready == nullptr) return;
      ready_ = std::make_unique<event>(driver_, description_.ready);
      done_ = std::make_unique<event>(driver_, description_.done);
      description_.has_events = true;
      ready_->record(*ready);
    });
  }
  exported_block(exported_block&&) noexcept = default;
  /// Ends this export, and takes over the other. Self-move changes nothing.
  exported_block& operator=(exported_block&& other) noexcept {
    if (this != &other) {
      std::destroy_at(this);
      std::construct_at(this, std::move(other));
    }
    return *this;
  }

  [[nodiscard]] void const* data() const noexcept { return pin_.data(); }
  [[nodiscard]] std::size_t size_bytes() const noexcept { return pin_.size_bytes(); }
  [[nodiscard]] block_description const& description() const noexcept { return description_; }
  /// Exports the pages of one handle of the description; each call makes a new descriptor. @throws cuda_error
  [[nodiscard]] exported_pages pages(std::size_t index) const {
    page_export exported;
    exported.type = description_.type;
    detail::must_succeed(driver_, driver_.export_pages(handles_[index], exported));
    return exported_pages(exported);
  }

  /// What is on the stream so far comes before what importers do after their next wait_ready(). @throws
  /// cuda_error (unsupported: exported without a stream)
  void record_ready(stream_ref stream, source_location where = source_location::current()) const {
    detail::called_from(where, [&] { event_of(ready_).record(stream); });
  }
  /// Later work on the stream waits for the last record_done() of the importer. If that process is known and
  /// has ended before its work, this throws; if it is killed later and before its work has ended, the stream
  /// may wait forever.
  /// @throws sharing_error (importer_ended), cuda_error as above
  void wait_done(stream_ref stream, source_location where = source_location::current()) const {
    detail::called_from(where, [&] {
      event_of(done_).wait(stream, sharing_failure::importer_ended, [&] { return importer_->has_ended(); });
    });
  }
  /// The caller waits, on the host, for the last record_done() of the importer. Notices within 20 ms that a
  /// known importer has ended.
  /// @throws sharing_error (importer_ended, timed_out), cuda_error as above
  void synchronize_done(std::chrono::milliseconds timeout = default_sharing_timeout,
                        source_location where = source_location::current()) const {
    detail::called_from(where, [&] {
      event_of(done_).synchronize(timeout, sharing_failure::importer_ended,
                                  [&] { return importer_->has_ended(); });
    });
  }
  /// The process that imports the block, so that its end is noticed. send_block() calls this; of several
  /// calls the first counts.
  void set_importer(process_identity const& importer) const noexcept {
    if (importer_ != nullptr) importer_->set(importer);
  }

 private:
  using event = detail::shared_event<driver_type>;

  [[nodiscard]] event const& event_of(std::unique_ptr<event> const& e) const {
    if (e == nullptr) refuse(detail::no_events);
    return *e;
  }
  [[noreturn]] void refuse(char const* why) const {
    throw cuda_error(detail::unsupported_call(why), driver_.device().value, source_location{});
  }
  /// An import is aligned as far as its handles are.
  void require_alignment(void const* p, std::size_t alignment) const {
    std::size_t limit = 0;
    detail::must_succeed(driver_, driver_.page_granularity(limit));
    auto const address = reinterpret_cast<std::uintptr_t>(p);
    if (address % limit != 0) limit = std::size_t{1} << std::countr_zero(address);
    if (!is_alignment(alignment) || alignment > limit) throw bad_alignment(alignment, limit);
  }
  void describe(std::size_t bytes, std::size_t alignment) {
    auto const segments = pin_.segments();
    for (std::size_t i = 0; i < segments.size(); ++i) {
      memory_segment const& s = segments[i];
      bool const begins = i == 0 || s.offset == 0;
      bool const ends = i + 1 == segments.size() || s.offset + s.bytes == s.handle_bytes;
      if (!begins || !ends) refuse(detail::not_side_by_side);
      description_.handles.push_back(s.handle_bytes);
      handles_.push_back(s.handle);
    }
    description_.exporter = detail::this_process_identity();
    description_.number = detail::next_export();
    description_.bytes = bytes;
    description_.offset = segments.front().offset;
    description_.alignment = alignment;
    detail::must_succeed(driver_, driver_.uuid(description_.device));
    // A handle is exported with the type that it was created with, and another is an invalid value.
    for (auto const type : {allocation_handle_type::posix_file_descriptor, allocation_handle_type::fabric}) {
      page_export exported;
      exported.type = type;
      status const s = driver_.export_pages(handles_.front(), exported);
      if (!s.ok() && s.code == invalid_value) continue;
      detail::must_succeed(driver_, s);
      exported_pages const closed(exported);
      description_.type = type;
      return;
    }
    refuse(detail::not_exportable);
  }

  static constexpr int invalid_value = 1;  ///< CUDA_ERROR_INVALID_VALUE

  driver_type driver_;
  page_pin<Memory> pin_;
  block_description description_{};
  std::vector<page_handle> handles_{};
  std::unique_ptr<event> ready_{};
  std::unique_ptr<event> done_{};
  std::unique_ptr<detail::known_process> importer_ = std::make_unique<detail::known_process>();
};

/// Exports a block of a pool over pages, for other processes. The stream's work so far is what importers wait
/// for.
///
/// @param p, bytes    a live block or a part of one
/// @param alignment   of `p`, bytes, a power of two up to the granularity of the pages (2 MiB); the import
/// has the same
/// @throws misuse (foreign_pointer), pool_asleep, cuda_error (unsupported) as segments_of()
/// @throws cuda_error (unsupported)  the pages cannot be exported: the text says what to do
/// @throws bad_alignment             `p` is not so aligned
/// @throws cuda_error, std::bad_alloc  nothing has changed
/// Thread-safe. O(views + segments), one export to find the handle type.
template <class Memory>
[[nodiscard]] exported_block<Memory> export_block(Memory memory, void const* p, std::size_t bytes,
                                                  stream_ref ready, std::size_t alignment = default_alignment,
                                                  source_location where = source_location::current()) {
  return {std::move(memory), p, bytes, &ready, alignment, where};
}
/// The same without events: the caller has synchronised what wrote the block.
template <class Memory>
[[nodiscard]] exported_block<Memory> export_block(Memory memory, void const* p, std::size_t bytes,
                                                  source_location where = source_location::current()) {
  return {std::move(memory), p, bytes, nullptr, default_alignment, where};
}

/// A dma-buf of a block, through which other devices (network cards, other vendors' GPUs) reach its memory.
/// Spans the whole block, which must lie in one handle, or is refused. Pins the block's pages while it lives.
/// Move-only.
template <class Memory>
class [[nodiscard]] dma_buf {
 public:
  /// @param p, bytes  a live block or a part of one
  /// @throws cuda_error (unsupported)  the block lies in several handles, or the system has no dma-bufs for
  /// this device
  /// @throws as segments_of()
  dma_buf(Memory memory, void const* p, std::size_t bytes, source_location where = source_location::current())
      : pin_(std::move(memory), p, bytes, where) {
    detail::called_from(where, [&] { open(bytes); });
  }

  /// Stays owned by this object.
  [[nodiscard]] int descriptor() const noexcept { return descriptor_.get(); }
  /// Of the block in the dma-buf, bytes: a dma-buf begins at a page of the host.
  [[nodiscard]] std::size_t offset() const noexcept { return size_bytes() != 0 ? offset_ : 0; }
  /// Of the block.
  [[nodiscard]] std::size_t size_bytes() const noexcept { return pin_.size_bytes(); }

 private:
  void open(std::size_t bytes) {
    auto const segments = pin_.segments();
    auto const driver = pin_.driver();
    if (segments.size() != 1) {
      detail::must_succeed(driver, detail::unsupported_call(detail::several_handles));
    }
    // Within the handle, whose address and size are multiples of larger pages.
    auto const address = reinterpret_cast<std::uintptr_t>(segments.front().address);
    offset_ = address % host_page;
    int made = -1;
    detail::must_succeed(driver, driver.export_dma_buf(reinterpret_cast<void*>(address - offset_),
                                                       align_up(bytes + offset_, host_page), made));
    descriptor_ = unique_descriptor(made);
    descriptor_.close_on_exec();
  }

  static constexpr std::size_t host_page = 64_KiB;  ///< a multiple of each host's page size

  page_pin<Memory> pin_;
  unique_descriptor descriptor_{};
  std::size_t offset_ = 0;
};

}  // namespace TARN_NAMESPACE
// ---- tarn/sharing/imported_block.hpp
// import_block(): a block that another process has exported. send_block() and receive_block() pass one over a
// Unix socket.
//
// Over the socket, in turn: the size and the bytes of the description; an answer; then for each group of
// handles a header with their descriptors, and an answer; and when all is mapped an answer with the
// importer's identity. So neither side, nor the kernel between them, holds more than one group of
// descriptors.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

// ---- tarn/sharing/unix_socket.hpp
// Bytes and file descriptors over a connected Unix socket, with a time limit for each step. The socket stays
// the caller's.

#include <poll.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

namespace TARN_NAMESPACE::detail {

/// One side of a connection, of type SOCK_STREAM. No call raises SIGPIPE.
class unix_socket {
 public:
  /// Descriptors in one message; the kernel's limit is 253.
  static constexpr std::size_t most_descriptors = 64;

  /// @param limit  for each call of send() and receive()
  unix_socket(int socket, std::chrono::milliseconds limit) noexcept
      : socket_(socket), limit_(min_of(limit, longest_wait)) {}

  /// Ends the connection in both directions: the other side's next call fails, and what was sent before still
  /// arrives.
  void shut_down() const noexcept { (void)::shutdown(socket_, SHUT_RDWR); }

  /// @throws sharing_error (peer_closed, timed_out, system)
  void send(std::span<std::byte const> bytes) const { send(bytes, {}); }
  /// Descriptors travel with the first of the bytes, of which there is at least one. @throws as above
  void send(std::span<std::byte const> bytes, std::span<int const> descriptors) const {
    auto const until = std::chrono::steady_clock::now() + limit_;
    while (!bytes.empty()) {
      wait_for(POLLOUT, until);
      // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): iovec has no pointer to const
      ::iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
      ::msghdr message = message_of(part);
      control space;
      if (!descriptors.empty()) attach(message, space, descriptors);
      ::ssize_t const sent = ::sendmsg(socket_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && is_transient(errno)) continue;
      if (sent < 0) fail("sendmsg");
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
      descriptors = {};
    }
  }

  /// Fills `bytes`. Descriptors that came along are added to `descriptors`, for which it allocates; without,
  /// the system closes them.
  /// @throws as send(); std::bad_alloc
  void receive(std::span<std::byte> bytes, std::vector<unique_descriptor>* descriptors = nullptr) const {
    auto const until = std::chrono::steady_clock::now() + limit_;
    while (!bytes.empty()) {
      wait_for(POLLIN, until);
      if (descriptors != nullptr) descriptors->reserve(descriptors->size() + control::most_received);
      ::iovec part{bytes.data(), bytes.size()};
      ::msghdr message = message_of(part);
      control space;
      message.msg_control = descriptors != nullptr ? space.bytes : nullptr;
      message.msg_controllen = descriptors != nullptr ? sizeof space.bytes : 0;
      ::ssize_t const got = ::recvmsg(socket_, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
      if (got < 0 && is_transient(errno)) continue;
      if (got < 0) fail("recvmsg");
      if (descriptors != nullptr) take(message, *descriptors);
      if (descriptors != nullptr && descriptors->size() > most_descriptors)
        throw sharing_error(sharing_failure::wrong_pages, "the other process sends too many descriptors");
      if (got == 0)
        throw sharing_error(sharing_failure::peer_closed, "the other process closed the socket, or ended");
      if (descriptors != nullptr && (message.msg_flags & MSG_CTRUNC) != 0) {
        throw sharing_error(
            sharing_failure::system,
            "file descriptors were lost: this process has no room for more; raise its limit (ulimit -n)");
      }
      bytes = bytes.subspan(static_cast<std::size_t>(got));
    }
  }

 private:
  struct control {
    // The system adds the sender's credentials if the socket's owner asked for them.
    alignas(::cmsghdr) char bytes[CMSG_SPACE(sizeof(int) * most_descriptors) + CMSG_SPACE(sizeof(::ucred))]{};
    /// A message without credentials may have more than most_descriptors: this many fill all bytes.
    static constexpr std::size_t most_received = sizeof bytes / sizeof(int);
  };

  [[nodiscard]] static ::msghdr message_of(::iovec& part) noexcept {
    ::msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    return message;
  }
  static void attach(::msghdr& message, control& space, std::span<int const> descriptors) noexcept {
    message.msg_control = space.bytes;
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    ::cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
  }
  static void take(::msghdr& message, std::vector<unique_descriptor>& descriptors) noexcept {
    for (::cmsghdr* h = CMSG_FIRSTHDR(&message); h != nullptr; h = CMSG_NXTHDR(&message, h)) {
      if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS) continue;
      std::size_t const count = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (std::size_t i = 0; i < count; ++i) {
        int descriptor = -1;
        std::memcpy(&descriptor, CMSG_DATA(h) + i * sizeof(int), sizeof descriptor);
        descriptors.emplace_back(descriptor);  // there is room: see receive()
      }
    }
  }
  void wait_for(short events, std::chrono::steady_clock::time_point until) const {
    ::pollfd asked{socket_, events, 0};
    for (;;) {
      auto const left =
          std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now())
              .count();
      int const ready = ::poll(&asked, 1,
                               left < 0           ? 0
                               : left > 3'600'000 ? 3'600'000
                                                  : static_cast<int>(left));
      if (ready > 0) return;
      if (ready < 0 && errno != EINTR) fail("poll");
      if (left <= 0)
        throw sharing_error(sharing_failure::timed_out, "the other process does not answer in time");
    }
  }
  [[nodiscard]] static bool is_transient(int error) noexcept {
    return error == EINTR || error == EAGAIN || error == EWOULDBLOCK;
  }
  [[noreturn]] static void fail(std::string_view call) {
    int const error = errno;
    if (error == EPIPE || error == ECONNRESET) {
      throw sharing_error(sharing_failure::peer_closed, "the other process closed the socket, or ended",
                          error);
    }
    message<96> const text(call, " failed; pass a connected Unix socket of type SOCK_STREAM");
    throw sharing_error(sharing_failure::system, text.view(), error);
  }

  int socket_;
  std::chrono::milliseconds limit_;
};

}  // namespace TARN_NAMESPACE::detail

namespace TARN_NAMESPACE {

namespace detail {

/// Mappings of other processes' handles side by side.
template <sharing_driver D>
class imported_mapping {
 public:
  explicit imported_mapping(D driver) noexcept : driver_(std::move(driver)) {}
  imported_mapping& operator=(imported_mapping&&) = delete;
  /// Waits for the device's work, which may use the memory, and for captures in scopes, up to 10 s. If a
  /// capture still forbids to wait for the work, the memory stays mapped for good. A forked child unmaps
  /// nothing.
  ~imported_mapping() {
    if (range_ == nullptr || !process_.is_this()) return;
    if (mapped_ != 0 && may_run(wait_past_captures(driver_))) return;
    std::size_t at = 0;
    for (std::size_t i = 0; i < mapped_; at += sizes_[i], ++i) (void)driver_.unmap_pages(data(at), sizes_[i]);
    (void)driver_.release_range(range_, bytes_);
  }

  /// Reserves addresses for handles of these sizes, so that what is `offset` bytes behind the first is
  /// aligned.
  /// @throws sharing_error (damaged), cuda_error
  void reserve(std::vector<std::size_t> sizes, std::size_t offset, std::size_t alignment) {
    std::size_t granularity = 0;
    must_succeed(driver_, driver_.page_granularity(granularity));
    std::size_t sum = 0;
    for (std::size_t const bytes : sizes) {
      if (bytes % granularity != 0) {
        throw sharing_error(sharing_failure::damaged,
                            "a handle of the block is not a multiple of this device's granularity");
      }
      sum += bytes;
    }
    // The block is aligned as its offset in the first handle is.
    if (alignment > granularity || offset % alignment != 0) {
      throw sharing_error(sharing_failure::damaged, "the block cannot be aligned as its description says");
    }
    sizes_ = std::move(sizes);
    must_succeed(driver_, driver_.reserve_range(sum, granularity, range_));
    bytes_ = sum;
  }
  /// Maps the next handle. It then lives as long as the mapping. @throws cuda_error
  void add(page_export const& pages) {
    page_handle handle{};
    must_succeed(driver_, driver_.import_pages(pages, handle));
    status const s = driver_.map_pages(data(next_), sizes_[mapped_], handle);
    (void)driver_.destroy_pages(handle);
    must_succeed(driver_, s);
    next_ += sizes_[mapped_++];
  }
  [[nodiscard]] void* data(std::size_t offset) const noexcept { return static_cast<char*>(range_) + offset; }

 private:
  D driver_;
  creating_process process_{};
  void* range_ = nullptr;
  std::size_t bytes_ = 0;
  std::vector<std::size_t> sizes_{};
  std::size_t mapped_ = 0;  ///< of the sizes
  std::size_t next_ = 0;    ///< offset of the next mapping
};

/// Throws if a description is not of this device, or its exporter is gone.
template <sharing_driver D>
void require_importable(D const& driver, block_description const& d) {
  if (!d.is_consistent())
    throw sharing_error(sharing_failure::damaged, "the description of the block contradicts itself");
  device_uuid own{};
  must_succeed(driver, driver.uuid(own));
  process_identity const here = this_process_identity();
  if (d.type == allocation_handle_type::posix_file_descriptor && d.exporter.machine != here.machine) {
    throw sharing_error(
        sharing_failure::other_machine,
        "the block was exported on another machine, or before the last start of this one: export it again");
  }
  if (own != d.device) {
    throw sharing_error(sharing_failure::other_device,
                        "the block is on another device: pass the memory of that device to the import");
  }
  if (has_ended(d.exporter)) {
    throw sharing_error(sharing_failure::exporter_ended, "the process that exported the block has ended");
  }
}

}  // namespace detail

/// A block of another process, mapped into this one. Owns the mapping: it is unmapped at the end, after the
/// device's work has ended; that wait is as long as the device's work, including streams in wait_ready().
/// While another thread has a capture_scope open, it waits for the scope, too, up to 10 s. If the own thread
/// has one open, the block stays mapped for good; so it does while a stream is captured without a scope, and
/// that capture becomes invalid.
///
/// The physical memory stays while it lives, also if the exporter frees the block or ends; what is in it is
/// the exporter's matter. Move-only; a moved-from object is empty. Thread-safe for const calls.
template <sharing_driver D>
class [[nodiscard]] imported_block {
 public:
  /// See import_block().
  template <class Next>
  imported_block(D driver, block_description const& d, Next&& next, source_location where)
      : driver_(std::move(driver)), offset_(d.offset), bytes_(d.bytes), exporter_(d.exporter) {
    detail::called_from(where, [&] {
      detail::require_importable(driver_, d);
      mapping_ = std::make_unique<mapping>(driver_);
      mapping_->reserve(d.handles, d.offset, d.alignment);
      for (std::size_t i = 0; i < d.handles.size(); ++i) {
        exported_pages const pages = next(i);
        if (pages.get().type != d.type) {
          throw sharing_error(sharing_failure::wrong_pages,
                              "the pages are not of the type that the description says");
        }
        mapping_->add(pages.get());
      }
      if (!d.has_events) return;
      ready_ = std::make_unique<event>(d.ready, driver_);
      done_ = std::make_unique<event>(d.done, driver_);
    });
  }

  [[nodiscard]] void* data() const noexcept {
    return mapping_ != nullptr ? mapping_->data(offset_) : nullptr;
  }
  [[nodiscard]] std::size_t size_bytes() const noexcept { return data() != nullptr ? bytes_ : 0; }
  /// Whether the exporter gave a stream.
  [[nodiscard]] bool has_events() const noexcept { return ready_ != nullptr; }
  /// Later work on the stream waits for what the exporter recorded last. If that process has ended before
  /// that work, this throws; if it is killed later and before its work has ended, the stream may wait
  /// forever.
  /// @throws sharing_error (exporter_ended), cuda_error (unsupported: exported without a stream)
  void wait_ready(stream_ref stream, source_location where = source_location::current()) const {
    detail::called_from(where, [&] {
      event_of(ready_).wait(stream, sharing_failure::exporter_ended, [&] { return exporter_has_ended(); });
    });
  }
  /// The caller waits, on the host, for what the exporter recorded last. Notices within 20 ms that the
  /// exporter has ended.
  /// @throws sharing_error (exporter_ended, timed_out), cuda_error as above
  void synchronize_ready(std::chrono::milliseconds timeout = default_sharing_timeout,
                         source_location where = source_location::current()) const {
    detail::called_from(where, [&] {
      event_of(ready_).synchronize(timeout, sharing_failure::exporter_ended,
                                   [&] { return exporter_has_ended(); });
    });
  }
  /// The exporter's next wait_done() waits for what is on the stream so far. @throws as above
  void record_done(stream_ref stream, source_location where = source_location::current()) const {
    detail::called_from(where, [&] { event_of(done_).record(stream); });
  }

 private:
  using event = detail::shared_event<D>;
  using mapping = detail::imported_mapping<D>;
  [[nodiscard]] bool exporter_has_ended() const noexcept { return detail::has_ended(exporter_); }
  [[nodiscard]] event const& event_of(std::unique_ptr<event> const& e) const {
    if (e == nullptr) detail::must_succeed(driver_, detail::unsupported_call(detail::no_events));
    return *e;
  }

  D driver_;
  std::unique_ptr<mapping> mapping_{};
  std::size_t offset_;
  std::size_t bytes_;
  process_identity exporter_;
  std::unique_ptr<event> ready_{};
  std::unique_ptr<event> done_{};
};

/// Imports a block that another process has exported, on the device of `memory` (a source or any memory over
/// it).
///
/// @param next  next(i) returns the exported_pages of handle i; called once for each, in order
/// @throws sharing_error  damaged, other_machine, other_device, exporter_ended, wrong_pages: nothing was
/// mapped
/// @throws cuda_error, std::bad_alloc, and what `next` throws: likewise
/// A process can import its own block only if that was exported without a stream: CUDA refuses events of the
/// same process (201). A handle of a driver that has the right size but is not the block's cannot be
/// detected: pass only what the exporter sent. Reserves as many bytes of addresses as the handles have.
/// O(handles): an import and a map for each.
template <class Memory, class Next>
[[nodiscard]] auto import_block(Memory const& memory, block_description const& description, Next&& next,
                                source_location where = source_location::current()) {
  using driver_type = std::remove_cvref_t<decltype(memory.driver())>;
  return imported_block<driver_type>(memory.driver(), description, std::forward<Next>(next), where);
}

namespace detail {

/// Precedes a group of descriptors.
struct group_header {
  std::uint64_t number = 0;  ///< of the export
  std::uint64_t first = 0;   ///< index of the first handle
  std::uint64_t count = 0;
};
/// The importer's answer after each step.
enum class import_answer : std::uint8_t { go_on = 0x67, refused = 0x72 };

template <class T>
[[nodiscard]] std::span<std::byte const> bytes_to_send(T const& value) noexcept {
  return std::as_bytes(std::span(&value, 1));
}

inline void await_answer(unix_socket const& peer) {
  std::byte answer{};
  peer.receive(std::span(&answer, 1));
  if (answer != static_cast<std::byte>(import_answer::go_on)) {
    throw sharing_error(sharing_failure::refused,
                        "the other process could not import the block; its error says why");
  }
}
inline void give_answer(unix_socket const& peer, import_answer answer) {
  auto const byte = static_cast<std::byte>(answer);
  peer.send(std::span(&byte, 1));
}

/// The importing process sends its identity after its last answer.
inline void send_identity(unix_socket const& peer, process_identity const& id) {
  each_part(id, [&](auto const& part) { peer.send(bytes_to_send(part)); });
}
[[nodiscard]] inline process_identity receive_identity(unix_socket const& peer) {
  process_identity id;
  each_part(id, [&](auto& part) { peer.receive(std::as_writable_bytes(std::span(&part, 1))); });
  return id;
}

inline void send_description(unix_socket const& peer, block_description const& d) {
  auto const bytes = d.to_bytes();
  peer.send(bytes_to_send(static_cast<std::uint64_t>(bytes.size())));
  peer.send(bytes);
  await_answer(peer);
}
/// Sends the handles from `first` on that fit one message; returns their number.
template <class Memory>
std::size_t send_group(unix_socket const& peer, exported_block<Memory> const& block, std::size_t first) {
  block_description const& d = block.description();
  group_header const header{d.number, first, min_of(d.handles.size() - first, unix_socket::most_descriptors)};
  std::vector<exported_pages> group;
  std::vector<int> descriptors;
  std::vector<std::byte> tokens;
  for (std::size_t i = 0; i < header.count; ++i) {
    group.push_back(block.pages(first + i));
    if (d.type == allocation_handle_type::posix_file_descriptor) {
      descriptors.push_back(group.back().descriptor());
    } else {
      auto const token = std::as_bytes(std::span(group.back().get().fabric));
      tokens.insert(tokens.end(), token.begin(), token.end());
    }
  }
  peer.send(bytes_to_send(header), descriptors);
  peer.send(tokens);
  await_answer(peer);
  return header.count;
}

/// The handles of one message at a time.
class group_receiver {
 public:
  group_receiver(unix_socket const& peer, block_description const& d) noexcept : peer_(peer), of_(d) {}

  /// The pages of handle `i`, each once and in order. @throws sharing_error
  [[nodiscard]] exported_pages take(std::size_t i) {
    if (i == end_) {
      if (i != 0) give_answer(peer_, import_answer::go_on);
      receive(i);
    }
    return std::move(group_[i - (end_ - group_.size())]);
  }

 private:
  void receive(std::size_t first) {
    group_header header;
    std::vector<unique_descriptor> descriptors;
    peer_.receive(std::as_writable_bytes(std::span(&header, 1)), &descriptors);
    bool const by_fabric = of_.type == allocation_handle_type::fabric;
    bool const fits = header.number == of_.number && header.first == first && header.count != 0 &&
                      header.count <= min_of(of_.handles.size() - first, unix_socket::most_descriptors) &&
                      descriptors.size() == (by_fabric ? 0 : header.count);
    if (!fits)
      throw sharing_error(sharing_failure::wrong_pages, "the descriptors are not those of the block");
    group_.clear();
    for (std::size_t i = 0; i < header.count; ++i) {
      page_export pages;
      pages.type = of_.type;
      if (by_fabric) peer_.receive(std::as_writable_bytes(std::span(pages.fabric)));
      if (!by_fabric) pages.descriptor = descriptors[i].release();
      exported_pages taken(pages);  // which closes the descriptor if the group cannot grow
      group_.push_back(std::move(taken));
    }
    end_ = first + group_.size();
  }

  unix_socket const& peer_;
  block_description const& of_;
  std::vector<exported_pages> group_{};
  std::size_t end_ = 0;  ///< index of the handle behind the group
};

inline constexpr std::uint64_t longest_description = 64_MiB;

}  // namespace detail

/// Sends an exported block to a process that calls receive_block(), and returns when it has mapped the block.
/// @param socket   a connected Unix socket of type SOCK_STREAM (socketpair(), or connect() and accept());
/// used in both directions, stays
///                 the caller's. After an error the connection is shut down, so that the other process does not wait
/// @param timeout  for each step of the other process
/// @throws sharing_error (peer_closed, timed_out, refused, system), cuda_error, std::bad_alloc
/// Holds at most 64 descriptors at once. One call at a time for each socket.
template <class Memory>
void send_block(int socket, exported_block<Memory> const& block,
                std::chrono::milliseconds timeout = default_sharing_timeout) {
  detail::unix_socket const peer(socket, timeout);
  try {
    detail::send_description(peer, block.description());
    for (std::size_t first = 0; first < block.description().handles.size();)
      first += detail::send_group(peer, block, first);
    detail::await_answer(peer);
    block.set_importer(detail::receive_identity(peer));
  } catch (...) {
    peer.shut_down();
    throw;
  }
}

/// Receives a block from a process that calls send_block(), and imports it on the device of `memory`.
/// @param socket, timeout  as send_block()
/// @throws sharing_error, cuda_error, std::bad_alloc; nothing was mapped, and send_block() of the other
/// process throws, too Holds at most 64 descriptors at once. One call at a time for each socket.
template <class Memory>
[[nodiscard]] auto receive_block(int socket, Memory const& memory,
                                 std::chrono::milliseconds timeout = default_sharing_timeout,
                                 source_location where = source_location::current()) {
  detail::unix_socket const peer(socket, timeout);
  try {
    std::uint64_t size = 0;
    peer.receive(std::as_writable_bytes(std::span(&size, 1)));
    if (size > detail::longest_description) {
      throw sharing_error(sharing_failure::damaged, "these bytes are not a description of a block");
    }
    std::vector<std::byte> bytes(size);
    peer.receive(bytes);
    auto const description = block_description::from_bytes(bytes);
    detail::require_importable(memory.driver(), description);
    detail::give_answer(peer, detail::import_answer::go_on);

    detail::group_receiver groups(peer, description);
    auto block = import_block(
        memory, description, [&](std::size_t i) { return groups.take(i); }, where);
    detail::give_answer(peer, detail::import_answer::go_on);  // for the last group
    detail::give_answer(peer, detail::import_answer::go_on);  // all is mapped
    detail::send_identity(peer, detail::this_process_identity());
    return block;
  } catch (...) {
    try {
      detail::give_answer(peer, detail::import_answer::refused);
    } catch (sharing_error const&) {  // the other process sees that the connection is shut down
    }
    peer.shut_down();
    throw;
  }
}

}  // namespace TARN_NAMESPACE
// ---- tarn/sharing/page_registrations.hpp
#ifndef TARN_SINGLE_SHARING_PAGE_REGISTRATIONS_HPP
#define TARN_SINGLE_SHARING_PAGE_REGISTRATIONS_HPP
// page_registrations: a pool's pages registered with a library that must know them, such as NCCL, UCX or
// libfabric.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <type_traits>
#include <utility>
#include <vector>

namespace TARN_NAMESPACE {

/// A library that registers ranges of device memory.
///
/// | expression  | throws      | meaning                                                                                        |
/// |-------------|-------------|------------------------------------------------------------------------------------------------|
/// | l.add(p, n) | as it likes | registers n bytes, which stay mapped to the same memory until remove(); ranges may overlap        |
/// | l.remove(h) | never       | ends a registration, named by what add() returned                                               |
///
/// A library that uses only the first handle of a registration says so by `static constexpr bool
/// takes_one_handle = true`.
template <class L>
concept page_library = std::movable<L> && std::copyable<typename L::handle> &&
                       std::is_nothrow_copy_constructible_v<typename L::handle> &&
                       std::is_nothrow_move_constructible_v<typename L::handle> &&
                       requires(L& l, typename L::handle const& h, void* p, std::size_t bytes) {
                         { l.add(p, bytes) } -> std::same_as<typename L::handle>;
                         requires noexcept(l.remove(h));
                       };

namespace detail {

template <class Library>
inline constexpr bool takes_one_handle = requires { requires Library::takes_one_handle; };

inline constexpr char const* several_handles_to_register =
    "page_registrations or register_with_nccl (this library uses only the first handle of a registration, "
    "and a block of this pool "
    "may lie in several: allocate what it uses from a pool with pooled{.handles = handles_per_block::one})";

}  // namespace detail

/// The registrations of a pool's pages with one library. ensure() registers all handles behind a block, once:
/// later blocks in the same handles cost a lookup. Registered pages are pinned, see page_pin: the pool
/// neither unmaps nor moves them, also after the block was freed, until forget(), clear() or the end. So a
/// registration always ends before its pages go.
///
/// Nothing is deregistered before, because work may be using it: a block that lies partly in registered
/// handles gets one registration over all of these handles, and the earlier ones stay beside it.
///
/// In a forked child the library is not called: forget(), clear() and the end drop the registrations, which
/// stay the parent's.
///
/// Move-only. For one thread at a time.
template <class Memory, page_library Library>
class [[nodiscard]] page_registrations {
 public:
  using handle = typename Library::handle;

  /// @throws cuda_error (unsupported)  the library uses only the first handle of a registration, and blocks
  /// of the pool may lie in
  ///                                   several
  page_registrations(Memory memory, Library library, source_location where = source_location::current())
      : memory_(std::move(memory)), library_(std::move(library)) {
    if constexpr (detail::takes_one_handle<Library>) {
      if (!nearest(memory_, pool_call::has_one_handle{}))
        throw cuda_error(detail::unsupported_call(detail::several_handles_to_register),
                         memory_.driver().device().value, where);
    }
  }
  page_registrations(page_registrations&& other) noexcept
      : memory_(std::move(other.memory_)),
        library_(std::move(other.library_)),
        process_(other.process_),
        entries_(detail::exchange(other.entries_, {})),
        added_(detail::exchange(other.added_, 0)) {}
  /// Ends all registrations, and takes over the others.
  page_registrations& operator=(page_registrations&& other) noexcept {
    if (this == &other) return *this;
    clear();
    memory_ = std::move(other.memory_);
    library_ = std::move(other.library_);
    process_ = other.process_;
    entries_ = detail::exchange(other.entries_, {});
    added_ = detail::exchange(other.added_, 0);
    return *this;
  }
  ~page_registrations() { clear(); }

  /// Returns a registration that covers a block or a part of one; registers its handles if there is none.
  ///
  /// @throws misuse (foreign_pointer), pool_asleep, cuda_error (unsupported) as segments_of(); what the
  /// library throws; std::bad_alloc:
  ///         nothing has changed
  /// O(log n) if it is covered; otherwise O(views + segments) and a call of the library.
  handle ensure(void const* p, std::size_t bytes, source_location where = source_location::current()) {
    auto const at = reinterpret_cast<std::uintptr_t>(p);
    if (entry const* const known = covering(at, bytes)) return known->held.back().registered;
    page_pin<Memory> pin(memory_, p, bytes, where);
    extent const all = joined(mapped_around(pin, where));
    entries fresh;
    entry& e = fresh[all.begin];
    e.bytes = all.bytes;
    e.held.reserve(held_in(all) + 1);
    registration made{std::move(pin), library_.add(reinterpret_cast<void*>(all.begin), all.bytes)};
    ++added_;
    for (auto i = first_in(all); is_in(i, all); i = entries_.erase(i)) {
      for (registration& old : i->second.held) e.held.push_back(std::move(old));
    }
    e.held.push_back(std::move(made));
    entries_.merge(fresh);
    return e.held.back().registered;
  }
  /// Whether ensure() would find the bytes registered. O(log n).
  [[nodiscard]] bool covers(void const* p, std::size_t bytes) const noexcept {
    return covering(reinterpret_cast<std::uintptr_t>(p), bytes) != nullptr;
  }
  /// Ends the registration that covers any of these bytes, with the earlier ones of its parts, and their
  /// pins. No work may use them any more.
  void forget(void const* p, std::size_t bytes) noexcept {
    if (bytes == 0) return;
    extent const range{reinterpret_cast<std::uintptr_t>(p), bytes};
    for (auto i = first_in(range); is_in(i, range);) i = end(i);
  }
  /// Ends all. No work may use them any more.
  void clear() noexcept {
    while (!entries_.empty()) end(entries_.begin());
  }

  /// Ranges that are registered.
  [[nodiscard]] std::size_t size() const noexcept { return entries_.size(); }
  /// Calls of the library's add() so far that succeeded. Constant while a program is warm.
  [[nodiscard]] std::size_t added() const noexcept { return added_; }

 private:
  struct registration {
    page_pin<Memory> pin;
    handle registered;
  };
  /// A range of addresses; its key is the first. Ranges do not overlap.
  struct entry {
    std::size_t bytes = 0;
    std::vector<registration>
        held{};  ///< the last covers the range, the others are earlier ones of parts of it
  };
  using entries = std::map<std::uintptr_t, entry>;
  struct extent {
    std::uintptr_t begin;
    std::size_t bytes;
  };

  /// All that the handles of the block are mapped to: a driver maps only whole handles.
  [[nodiscard]] static extent mapped_around(page_pin<Memory> const& pin, source_location where) {
    auto const segments = pin.segments(where);
    memory_segment const& first = segments.front();
    memory_segment const& last = segments.back();
    auto const begin = reinterpret_cast<std::uintptr_t>(first.address) - first.offset;
    auto const end = reinterpret_cast<std::uintptr_t>(last.address) - last.offset + last.handle_bytes;
    return {begin, end - begin};
  }
  /// The range and those that overlap it.
  [[nodiscard]] extent joined(extent range) noexcept {
    std::uintptr_t begin = range.begin;
    std::uintptr_t end = range.begin + range.bytes;
    for (auto i = first_in(range); is_in(i, range); ++i) {
      begin = detail::min_of(begin, i->first);
      end = detail::max_of(end, i->first + i->second.bytes);
    }
    return {begin, end - begin};
  }
  [[nodiscard]] std::size_t held_in(extent range) noexcept {
    std::size_t sum = 0;
    for (auto i = first_in(range); is_in(i, range); ++i) sum += i->second.held.size();
    return sum;
  }
  [[nodiscard]] entry const* covering(std::uintptr_t at, std::size_t bytes) const noexcept {
    auto const next = entries_.upper_bound(at);
    if (next == entries_.begin()) return nullptr;
    auto const& [begin, e] = *std::prev(next);
    return at - begin < e.bytes && bytes <= e.bytes - (at - begin) ? &e : nullptr;
  }
  /// The first entry that overlaps the range, or lies behind it.
  [[nodiscard]] auto first_in(extent range) noexcept {
    auto i = entries_.upper_bound(range.begin);
    if (i != entries_.begin() && range.begin - std::prev(i)->first < std::prev(i)->second.bytes) --i;
    return i;
  }
  [[nodiscard]] bool is_in(typename entries::iterator i, extent range) const noexcept {
    return i != entries_.end() && (i->first <= range.begin || i->first - range.begin < range.bytes);
  }
  auto end(typename entries::iterator i) noexcept {
    if (process_.is_this()) {
      for (registration const& r : i->second.held) library_.remove(r.registered);
    }
    return entries_.erase(i);
  }

  Memory memory_;
  Library library_;
  detail::creating_process process_{};
  entries entries_{};
  std::size_t added_ = 0;
};

}  // namespace TARN_NAMESPACE
#endif  // TARN_SINGLE_SHARING_PAGE_REGISTRATIONS_HPP
