// SPDX-License-Identifier: Apache-2.0
#pragma once
// The exception types and status codes of tarn. Numbers are fields; texts are built without allocating.

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <utility>

#include "tarn/core/any_error.hpp"
#include "tarn/core/message.hpp"
#include "tarn/core/source_location.hpp"
#include "tarn/core/text.hpp"

namespace TARN_NAMESPACE {

/// The kind of a driver call's failure; the part of an error code that tarn acts on.
enum class failure : std::uint8_t {
  none,           ///< the call succeeded
  not_ready,      ///< an event or stream has pending work; not an error
  out_of_memory,  ///< the device or the host has no memory left
  unloading,      ///< the driver is shutting down: the process is exiting
  unsupported,    ///< this device or driver version lacks the call
  no_device,      ///< there is no device, or no driver
  forked,         ///< this process was forked: the driver's state belongs to the parent
  other           ///< everything else; often sticky, from an earlier failed kernel
};

/// Result of one driver call. Cheap, never allocates, never throws.
struct [[nodiscard]] status {
  failure kind = failure::none;
  int code = 0;           ///< the driver's own number (cudaError_t, CUresult), 0 on success
  char const* name = "";  ///< the driver's own name for the code, static storage
  char const* call = "";  ///< the call that was made, static storage

  [[nodiscard]] constexpr bool ok() const noexcept { return kind == failure::none; }
};

/// A count times a size overflows.
class length_error : public detail::error_of<std::length_error, 512> {
 public:
  explicit length_error(std::string_view text) { text_.add(text); }
};

/// An alignment that is not a power of two, or larger than the resource supports.
class bad_alignment : public detail::error_of<std::invalid_argument, 512> {
 public:
  bad_alignment(std::size_t alignment, std::size_t limit) : alignment_(alignment), limit_(limit) {
    text_.add("tarn: alignment ").add_number(alignment).add(" is not supported; use a power of two up to ");
    text_.add_number(limit);
  }
  [[nodiscard]] std::size_t alignment() const noexcept { return alignment_; }
  [[nodiscard]] std::size_t limit() const noexcept { return limit_; }

 private:
  std::size_t alignment_;
  std::size_t limit_;
};

/// A driver call failed. Holds the code, its name, the call, and the line of the user's program that led to
/// it.
class cuda_error : public detail::error_of<std::exception, 512> {
 public:
  explicit cuda_error(status what_happened, int device = -1,
                      source_location where = source_location::current()) noexcept
      : status_(what_happened), device_(device) {
    text_.add("tarn: ").add(status_.call).add(" failed");
    if (device >= 0) text_.add(" on device ").add_number(device);
    text_.add(": ").add(status_.name).add(" (").add_number(status_.code).add(")");
    text_.add(advice(status_));
    set_where(where);
  }
  [[nodiscard]] failure kind() const noexcept { return status_.kind; }
  [[nodiscard]] int code() const noexcept { return status_.code; }
  [[nodiscard]] char const* name() const noexcept { return status_.name; }
  [[nodiscard]] char const* call() const noexcept { return status_.call; }
  [[nodiscard]] int device() const noexcept { return device_; }

 private:
  [[nodiscard]] static constexpr std::string_view advice(status const& s) noexcept {
    constexpr int invalid_device = 101;    // cudaErrorInvalidDevice, CUDA_ERROR_INVALID_DEVICE
    constexpr int invalid_handle = 400;    // cudaErrorInvalidResourceHandle, CUDA_ERROR_INVALID_HANDLE
    constexpr int first_of_capture = 900;  // cudaErrorStreamCaptureUnsupported
    constexpr int last_of_capture = 908;   // cudaErrorStreamCaptureWrongThread
    switch (s.kind) {
      case failure::out_of_memory:
        return "; the driver is out of memory, free some";
      case failure::not_ready:
        return "; earlier work has not finished, synchronise first";
      case failure::no_device:
        return s.code == invalid_device ? "; there is no device of this number, see cudaGetDeviceCount()"
                                        : "; check that a device and its driver are installed";
      case failure::forked:
        return "; pools and devices that were used before fork() cannot be used in the child, fork earlier "
               "or start another program";
      case failure::unsupported:
        return "; this device or driver does not support it, use another source";
      case failure::unloading:
        return "; the driver is shutting down, release owners earlier";
      case failure::other:
        return s.code == invalid_handle ? "; the stream may not exist any more, or is of another device"
               : s.code >= first_of_capture && s.code <= last_of_capture
                   ? "; a stream is being captured into a graph: allocate in a tarn::capture_scope, or do "
                     "this before "
                     "or after"
                   : "; an earlier kernel or copy may have failed";
      case failure::none:
        break;
    }
    return "";
  }

  status status_;
  int device_;
};

namespace detail {
/// Throws a cuda_error unless a driver call succeeded.
template <class Driver>
void must_succeed(Driver const& driver, status const& s, source_location where = {}) {
  if (!s.ok()) throw cuda_error(s, driver.device().value, where);
}
}  // namespace detail

/// The live bytes of one tag, see core/tag.
struct bytes_of_tag {
  char const* name = nullptr;  ///< static storage; null: none
  std::size_t bytes = 0;
};

/// The memory state at the time of the failure; bytes. Fields that a resource cannot know stay `unknown`.
struct memory_report {
  static constexpr std::size_t unknown = static_cast<std::size_t>(-1);
  static constexpr std::uint64_t no_stream = ~std::uint64_t{0};
  std::size_t asked = 0;                     ///< bytes of the request
  std::size_t alignment = 0;                 ///< alignment of the request
  int device = -1;                           ///< device ordinal, -1 for the host
  std::uint64_t stream = 0;                  ///< stream identity as the driver numbers it, or no_stream
  std::size_t live = unknown;                ///< allocated to callers
  std::size_t cached = unknown;              ///< reserved from the driver, not allocated to callers
  std::size_t reserved = unknown;            ///< reserved from the driver
  std::size_t largest_free_range = unknown;  ///< the largest request that the cache could serve
  std::size_t device_free = unknown;         ///< free memory as reported by the driver
  std::size_t device_total = unknown;        ///< all memory of the device
  std::size_t limit = unknown;               ///< the limit that refused, if one did
  std::size_t limit_used = unknown;          ///< bytes that all users of that limit hold
  std::size_t headroom = unknown;            ///< the headroom that refused, if one did
  /// bytes that must become free first, on the device or under `limit`, if wake() refused
  std::size_t lacking = unknown;
  char const* refused_by = "the device";  ///< which layer refused: "limited", "the device", ...; static
  char const* call = nullptr;             ///< the driver call that failed, if one did; static storage
  char const* reason = nullptr;    ///< why it failed, as a source of the user's reports it; static storage
  bytes_of_tag biggest_tags[3]{};  ///< largest live tags first, if a `with_history` layer exists
};

/// More memory would have helped: reports which layer refused, the state, and what to try. Nothing has
/// changed.
class out_of_memory : public detail::error_of<std::bad_alloc, 960> {
 public:
  /// @param advice  what to try, static storage; empty: chosen from the report
  explicit out_of_memory(memory_report const& report, std::string_view advice = {}) noexcept
      : advice_(advice) {
    set_report(report);
  }
  [[nodiscard]] memory_report const& report() const noexcept { return report_; }
  [[nodiscard]] std::size_t asked() const noexcept { return report_.asked; }
  /// Replaces the report, in what() too: for layers that catch the error, add to its report and throw it on.
  void set_report(memory_report const& report) noexcept {
    report_ = report;
    rewrite_text([this] { write_report(); });
  }

 private:
  static constexpr std::size_t longest_tag = 63;  ///< longer names are cut, so that the advice has room
  static constexpr std::size_t max_sensible = std::size_t{1} << 46;  // 64 TiB, above any device of 2026

  void write_report() noexcept {
    constexpr std::size_t unknown = memory_report::unknown;
    text_.add("tarn: ").add_bytes(report_.asked).add(" asked");
    if (report_.device >= 0) text_.add(" on device ").add_number(report_.device);
    if (report_.stream != memory_report::no_stream) text_.add(", stream ").add_number(report_.stream);
    text_.add(": refused by ").add(report_.refused_by);
    bool const has_reason = report_.reason != nullptr;
    if (report_.call != nullptr) text_.add(" (").add(report_.call);
    if (has_reason) text_.add(": ").add(report_.reason);
    if (report_.call != nullptr) text_.add(")");
    if (report_.limit != unknown) text_.add("("), add_amount(report_.limit), text_.add(")");
    if (report_.headroom != unknown) text_.add("("), add_amount(report_.headroom), text_.add(")");
    if (report_.limit_used != unknown)
      text_.add(", of which ").add_bytes(report_.limit_used).add(" are used");
    text_.add(".");
    std::size_t const nothing_known = text_.size();
    field(nothing_known, "live ", report_.live);
    field(nothing_known, "cached ", report_.cached);
    field(nothing_known, "reserved ", report_.reserved);
    field(nothing_known, "largest free range ", report_.largest_free_range);
    field(nothing_known, report_.device >= 0 ? "free on the device " : "free on the host ",
          report_.device_free);
    field(nothing_known, "lacking ", report_.lacking);
    if (text_.size() != nothing_known) text_.add(".");
    if (report_.biggest_tags[0].name != nullptr) {
      char const* before = " By tag: ";
      for (bytes_of_tag const& t : report_.biggest_tags) {
        if (t.name != nullptr) {
          text_.add(before).add_printable(detail::text_prefix(t.name, longest_tag));
          text_.add(" ").add_bytes(t.bytes);
        }
        before = ", ";
      }
      text_.add(".");
    }
    if (advice_.empty()) {
      add_advice();
    } else {
      text_.add(advice_);
    }
  }
  /// What to try, from what is known.
  void add_advice() noexcept {
    constexpr std::size_t unknown = memory_report::unknown;
    memory_report const& r = report_;
    if (r.asked > max_sensible) {
      text_.add(" No device has that much: check the size for overflow.");
    } else if (r.device_total != unknown && r.asked > r.device_total) {
      text_.add(r.device >= 0 ? " The device has " : " The host has ").add_bytes(r.device_total);
      text_.add(" in all: ask for less, or split the work.");
    } else if (r.limit != unknown && r.asked > r.limit) {
      text_.add(" The limit is below this request alone: raise it or ask for less.");
    } else if (others() != 0 && r.asked > r.limit - (others() < r.limit ? others() : r.limit)) {
      text_.add(" Others under this limit hold ").add_bytes(others());
      text_.add(": free their memory, call empty_cache() on their pools, or raise the limit.");
    } else if (r.limit != unknown) {
      text_.add(" Free memory or raise the limit.");
    } else if (r.headroom != unknown) {
      text_.add(" What is free is left to others: free buffers, ask for less, or lower the headroom.");
    } else if (r.cached != unknown && r.cached >= r.asked && r.cached != 0) {
      text_.add(" The cache is fragmented: call empty_cache(), or pool over a page source.");
    } else if (r.device >= 0 && std::string_view(r.refused_by) != "the host") {
      text_.add(
          " Free buffers, call empty_cache() on other pools, ask for less, or close other programs on the "
          "device.");
    } else {
      text_.add(" Free memory or ask for less.");
    }
  }
  /// Bytes under the limit that are not this pool's.
  [[nodiscard]] std::size_t others() const noexcept {
    memory_report const& r = report_;
    if (r.limit_used == memory_report::unknown || r.reserved == memory_report::unknown) return 0;
    return r.limit_used > r.reserved ? r.limit_used - r.reserved : 0;
  }
  /// Appends one field if it is known; the first one, at text size `before`, starts the sentence.
  void field(std::size_t before, char const* label, std::size_t value) noexcept {
    if (value == memory_report::unknown) return;
    if (text_.size() == before) {
      char const capital[] = {static_cast<char>(label[0] - 'a' + 'A'), '\0'};
      text_.add(" ").add(capital).add(label + 1);
    } else {
      text_.add(", ").add(label);
    }
    add_amount(value);
  }
  /// Appends an amount, and how it differs from the request if both read the same.
  void add_amount(std::size_t value) noexcept {
    text_.add_bytes(value);
    std::size_t const asked = report_.asked;
    if (value == asked || message<72>().add_bytes(value).view() != message<72>().add_bytes(asked).view())
      return;
    text_.add(", ").add_bytes(value < asked ? asked - value : value - asked);
    text_.add(value < asked ? " less than asked" : " more than asked");
  }

  memory_report report_;
  std::string_view advice_;
};

/// The pool sleeps. Nothing has changed. Not an out_of_memory: no memory would help.
class pool_asleep : public detail::error_of<std::exception, 512> {
 public:
  /// @param asked   bytes of the request
  /// @param device  of the pool; -1: the host's
  pool_asleep(std::size_t asked, int device) noexcept : asked_(asked), device_(device) {
    text_.add("tarn: ").add_bytes(asked).add(" asked");
    if (device >= 0) text_.add(" on device ").add_number(device);
    text_.add(": the pool is asleep; call tarn::wake(memory) first");
  }
  [[nodiscard]] std::size_t asked() const noexcept { return asked_; }
  [[nodiscard]] int device() const noexcept { return device_; }

 private:
  std::size_t asked_;
  int device_;
};

namespace detail {

/// The status of a call that cannot be made. @param call  what was called, and why it is refused; static
/// storage
[[nodiscard]] constexpr status unsupported_call(char const* call) noexcept {
  return {failure::unsupported, 801, "cudaErrorNotSupported", call};
}

}  // namespace detail

/// The kind of memory misuse that a checked build detects.
enum class misuse_kind : std::uint8_t {
  foreign_pointer,  ///< not from this resource
  double_free,      ///< freed before
  wrong_size,       ///< bytes at deallocation differ from those at allocation
  wrong_alignment,  ///< likewise the alignment
  wrong_device,     ///< the pointer, or the stream of a call, belongs to another device
  overrun,          ///< written past an end
  use_after_free,   ///< written after it was freed
  leak,             ///< live at destruction
  overlap,          ///< two ranges that must not overlap
  capture,          ///< not allowed while the stream is being captured into a graph
  contents_lost,    ///< a scope could not move contents back, and no handler was set to take them
  wrong_thread,     ///< a scope ended on another thread than it began on
  recursion,        ///< constructing an object requested that same object, or a growing pool was put to sleep
  in_use,           ///< work on memory was not finished when its pool was put to sleep or compacted
  no_resource       ///< an owner or a stream is empty, or its pool cannot serve it
};

/// Misuse of the library with defined behaviour. Thrown where possible; deallocation reports it to the misuse
/// handler instead.
class misuse : public detail::error_of<std::exception, 960> {
 public:
  misuse(misuse_kind kind, void const* pointer, std::string_view text) noexcept
      : kind_(kind), pointer_(pointer) {
    text_.add("tarn: ").add(text);
  }
  [[nodiscard]] misuse_kind kind() const noexcept { return kind_; }
  [[nodiscard]] void const* pointer() const noexcept { return pointer_; }

 private:
  misuse_kind kind_;
  void const* pointer_;
};

namespace detail {
// strerror_r returns a text (GNU) or a status (POSIX).
[[nodiscard]] inline char const* error_text(char const* text, char const*) noexcept {
  return text;
}
[[nodiscard]] inline char const* error_text(int failed, char const* text) noexcept {
  return failed == 0 ? text : "unknown error";
}
}  // namespace detail

/// Reports a file that cannot be read or written as requested: its path, the failed operation, and errno.
/// Where no system call failed, error() is 0 and code() is std::errc::invalid_argument. Of a long path, the
/// message has the end.
class file_error : public detail::error_of<std::system_error, 512> {
 public:
  file_error(std::string_view path, std::string_view what, int error)
      : error_of(std::in_place, std::error_code(error != 0 ? error : EINVAL, std::generic_category())),
        error_(error) {
    constexpr std::size_t longest = 200;
    text_.add("tarn: ").add(path.size() > longest ? "..." : "").add(detail::text_suffix(path, longest));
    text_.add(": ").add(what);
    if (error == 0) return;
    char reason[96] = "";
    text_.add(" (errno ").add_number(error).add(", ");
    text_.add(detail::error_text(::strerror_r(error, reason, sizeof reason), reason)).add(")");
  }
  [[nodiscard]] int error() const noexcept { return error_; }

 private:
  int error_;
};

}  // namespace TARN_NAMESPACE
