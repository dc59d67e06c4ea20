// SPDX-License-Identifier: Apache-2.0
#pragma once
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

#include "tarn/core/bytes.hpp"
#include "tarn/core/descriptor.hpp"
#include "tarn/core/message.hpp"
#include "tarn/driver/driver.hpp"
#include "tarn/sharing/sharing_error.hpp"

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
